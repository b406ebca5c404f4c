"""Damaged, missing or exchanged files are detected and named, and never computed with.

F9 (a flipped bit of the input), F10 (a damaged partial result), F11 (a missing chunk), F12 (chunks of zeros), F17 (a
store that fails at some reads), F36 (odd paths, links, read-only stores), and flipped bits in any file of a corpus, a
run and a model.
"""

import asyncio
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from numpy.testing import assert_array_equal
from probes import Sums
from zarr.storage import LocalStore

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, load_model, open_corpus, save_model, write_corpus
from bigkernel.cli import main
from bigkernel.config import settings
from bigkernel.data import zarr_arrays
from bigkernel.data.check import kind_at, walk
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ChunkCorruptError, ChunkMissingError, DataError, ModelRejectedError, ResumeMismatchError

N, D, CHUNK_ROWS = 300, 6, 20
rng = np.random.default_rng(3)
X = rng.integers(0, 256, (N, D), dtype=np.uint8)
Y = rng.integers(0, 3, N)

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The directory of a corpus that no test changes."""
    root = tmp_path_factory.mktemp("made")
    write_corpus(root / "corpus", X, Y, image_shape=(2, 3), scale=255.0, chunk_rows=CHUNK_ROWS)
    return root


@pytest.fixture
def corpus(made, tmp_path):
    """A copy of the corpus, to be damaged."""
    shutil.copytree(made / "corpus", tmp_path / "corpus")
    return open_corpus(tmp_path / "corpus")


def files_of(root):
    return [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())


def chunks_of(root):
    return [path for path in files_of(root) if path.name != "zarr.json"]


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def swept(corpus, **options):
    """Sum every row and label."""
    return sweep(as_rows(corpus), LabelledSums(), client="serial", **options)


@dataclass(frozen=True)
class LabelledSums(Sums):
    """Σx and Σy; fails at row `start` while the file `stop` exists."""

    width: int = D
    stop: str = ""
    start: int = 0

    def shapes(self):
        return {**super().shapes(), "y": (1,)}

    def update(self, total, chunk):
        if self.stop and chunk.start == self.start and Path(self.stop).exists():
            raise RuntimeError("stopped")
        super().update(total, chunk)
        total["y"] += chunk.y.sum()


# ---------------------------------------------------------------- F9, F11, F12: the input


def test_a_flipped_bit_of_the_input_ends_the_sweep_and_is_named(corpus):
    """F9: 40 of 40."""
    chunks, wrong = chunks_of(Path(corpus.path)), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        file = chunks[rng.integers(len(chunks))]
        sound = file.read_bytes()
        flip(file, int(rng.integers(8 * len(sound))))
        name, *key = file.relative_to(corpus.path).parts
        start = int(key[1]) * CHUNK_ROWS
        try:
            swept(corpus)
            wrong.append(f"{seed}: not detected")
        except ChunkCorruptError as error:
            texts = f"{name}: rows {start}:{start + CHUNK_ROWS} cannot", f"chunk {'/'.join(key)} from a copy"
            if not all(text in str(error) for text in texts):
                wrong.append(f"{seed}: {error}")
        file.write_bytes(sound)
    assert wrong == []
    assert_array_equal(swept(corpus).total["sum"], X.sum(axis=0))


def test_chunks_of_zeros_are_valid_and_missing_chunks_are_named(tmp_path):
    """F11, F12."""
    corpus = write_corpus(tmp_path / "c", np.zeros((N, D), np.uint8), np.zeros(N, int), chunk_rows=CHUNK_ROWS)
    assert_array_equal(swept(corpus).total["sum"], np.zeros(D))
    assert [chunk.damage for chunk in walk(corpus.path, "corpus")] == [None] * (2 * N // CHUNK_ROWS)
    for name in ("y", "x"):
        chunks_of(Path(corpus.path, name))[3].unlink()
        with pytest.raises(ChunkMissingError, match=rf"{name}: 1 of 15 chunks are missing, the first is c/"):
            swept(corpus)


# ---------------------------------------------------------------- F10: partial results


@pytest.fixture
def interrupted(corpus, tmp_path):
    """A run that failed in its fourth segment of five, with two published partial results."""
    (tmp_path / "stop").touch()
    start = int(as_rows(corpus).bounds(settings())[-3])
    statistic = LabelledSums(stop=str(tmp_path / "stop"), start=start)
    with pytest.raises(RuntimeError, match="stopped"):
        sweep(as_rows(corpus), statistic, client="serial", run=tmp_path / "run")
    (tmp_path / "stop").unlink()
    assert len(list((tmp_path / "run" / "partials").iterdir())) == 2
    return tmp_path / "run"


def resumed(corpus, run):
    statistic = LabelledSums(stop=str(run.parent / "stop"), start=int(as_rows(corpus).bounds(settings())[-3]))
    return sweep(as_rows(corpus), statistic, client="serial", run=run, resume=True)


# ---------------------------------------------------------------- any file of a corpus, a run, a model


def message_of_corpus(root):
    """Return the error of opening or reading a damaged corpus."""
    try:
        result = swept(open_corpus(root))
    except DataError as error:
        return str(error)
    assert_array_equal(result.total["sum"], X.sum(axis=0))
    return ""


def message_of_model(root):
    """Return the error of loading a damaged model."""
    try:
        load_model(root)
    except ModelRejectedError as error:
        return str(error)
    return ""


def message_of_run(root, corpus, expected):
    """Return what `check` reports of a damaged run; resuming it must give the same bits or be refused."""
    text = " ".join(str(chunk.damage) for chunk in walk(root, "run") if chunk.damage)
    try:
        assert zarr_arrays.digest(resumed(corpus, root).total) == expected
    except ResumeMismatchError as error:
        return f"{text} {error}"
    return text


def test_flipped_bits_in_a_corpus_a_run_and_a_model_are_detected(corpus, interrupted, tmp_path):
    """Files are chosen in proportion to their size: chunks, zarr.json, manifests and receipts."""
    save_model(KernelRidgeClassifier(Gaussian(200.0), n_landmarks=12, random_state=0).fit(X, Y), tmp_path / "model")
    expected = zarr_arrays.digest(swept(corpus).total)
    roots = {"corpus": Path(corpus.path), "model": tmp_path / "model", "run": tmp_path / "copy"}
    targets = [(kind, file.relative_to(roots[kind])) for kind in ("corpus", "model") for file in files_of(roots[kind])]
    stored = [interrupted / "manifest.json", *files_of(interrupted / "partials"), *files_of(interrupted / "receipts")]
    targets += [("run", file.relative_to(interrupted)) for file in stored]
    sources = {**roots, "run": interrupted}
    sizes = np.array([(sources[kind] / name).stat().st_size for kind, name in targets])
    rng = np.random.default_rng(20)
    hit, wrong = {"corpus": 0, "model": 0, "run": 0}, []
    for _ in range(40):
        kind, name = targets[rng.choice(len(targets), p=sizes / sizes.sum())]
        if kind == "run":
            shutil.copytree(interrupted, roots["run"])
        file = roots[kind] / name
        sound = file.read_bytes()
        bit = int(rng.integers(8 * len(sound)))
        flip(file, bit)
        if kind == "run":
            text = message_of_run(roots["run"], corpus, expected)
            shutil.rmtree(roots["run"])
        else:
            text = message_of_corpus(roots[kind]) if kind == "corpus" else message_of_model(roots[kind])
            file.write_bytes(sound)
        hit[kind] += 1
        # the file itself, or the array or partial result that it belongs to
        owner = "/".join(name.parts[: 2 if kind == "run" else 1])
        if str(file) not in text and f"{roots[kind]}/{owner}" not in text:
            wrong.append(f"{kind} {name} bit {bit}: {text or 'not detected'}")
    assert wrong == []
    assert min(hit.values()) >= 4, hit


# ---------------------------------------------------------------- check


def run_check(*arguments):
    """Return the exit code, JSON and errors of the command."""
    result = CliRunner().invoke(main, ["check", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout or "{}"), result.stderr


def test_the_command_exits_with_3_or_7_and_names_all_damage(corpus, tmp_path):
    save_model(KernelRidge(Gaussian(200.0), n_landmarks=12, random_state=0).fit(X, Y), tmp_path / "model")
    for path in (corpus.path, tmp_path / "model"):
        code, report, _ = run_check(path)
        assert (code, report["intact"]) == (0, True)
        assert report["protection"].startswith(("a checksum in every chunk", "CRC-32 of each array"))
        assert "damaged" not in report
    for key in ("x/c/3/0", "y/c/9"):
        flip(Path(corpus.path, key), 77)
    code, report, errors = run_check(corpus.path)
    assert (code, report["intact"], report["chunks_read"]) == (3, False, 30)
    assert [text.split(": ")[1][:13] for text in report["damaged"]] == ["rows 60:80 ca", "rows 180:200 "]
    assert "2 of 30 chunks are damaged; the first: " in errors
    assert "rows 60:80 cannot be decoded" in errors
    lines = CliRunner().invoke(main, ["check", corpus.path]).stdout.splitlines()
    assert [line.partition("chunk ")[2][:6] for line in lines if line.startswith("damaged: ")] == ["c/3/0 ", "c/9 fr"]
    for bit in (-40, 4000):
        flip(tmp_path / "model", bit % (8 * (tmp_path / "model").stat().st_size))
        code, _, errors = run_check(tmp_path / "model")
        assert code == 7
        assert "ModelRejectedError" in errors


def test_the_command_names_all_damage_of_a_run_and_refuses_other_paths(interrupted, tmp_path):
    code, report, _ = run_check(interrupted)
    assert (code, report["kind"], report["intact"]) == (0, "run directory", True)
    flip(chunks_of(interrupted / "partials" / "0-2")[0], 5)
    flip(interrupted / "receipts" / "0-0.json", 900)
    receipt, partial = run_check(interrupted)[1]["damaged"]
    assert "receipts/0-0.json" in receipt
    assert "partials/0-2" in partial
    (tmp_path / "empty").mkdir()
    for path, message in [(tmp_path / "nothing", "does not exist"), (tmp_path / "empty", "found something else")]:
        code, _, errors = run_check(path)
        assert code == 3
        assert message in errors


# ---------------------------------------------------------------- F17: a store that fails


class Unreliable(LocalStore):
    """A local store where every `period`-th read of a chunk fails."""

    period = 3
    reads = failed = 0

    async def get(self, key, *arguments, **options):
        await asyncio.sleep(0.001)
        if "/c/" in f"/{key}":
            Unreliable.reads += 1
            if Unreliable.reads % Unreliable.period == 0:
                Unreliable.failed += 1
                raise OSError(5, "Input/output error")
        return await super().get(key, *arguments, **options)


@pytest.fixture
def unreliable(tmp_path):
    """A foreign array of 40 chunks, four to a step, in a store that fails."""
    values = np.random.default_rng(1).integers(0, 256, (200, D), dtype=np.uint8)
    zarr.create_array(tmp_path / "foreign", data=values, chunks=(10, 3))
    Unreliable.reads = Unreliable.failed = 0
    Unreliable.period = 3
    return zarr.open_array(Unreliable(tmp_path / "foreign", read_only=True), mode="r")


def test_a_store_that_fails_at_every_third_read_is_read(unreliable, tmp_path, caplog):
    expected = sweep(as_rows(zarr.open_array(tmp_path / "foreign", mode="r")), Sums(D), client="serial")
    result = sweep(as_rows(unreliable), Sums(D), client="threads")
    assert zarr_arrays.digest(result.total) == zarr_arrays.digest(expected.total)
    assert Unreliable.failed > 10
    # several failed reads of a step are logged once
    assert 10 < sum("retrying" in record.message for record in caplog.records) <= Unreliable.failed


def test_a_store_that_always_fails_ends_the_sweep_with_its_error(unreliable):
    Unreliable.period = 1
    with pytest.raises(DataError, match=r"rows 0:\d+: reading the rows .*Input/output error"):
        sweep(as_rows(unreliable), Sums(D), client="serial")
    assert 3 <= Unreliable.reads < 100


# ---------------------------------------------------------------- F36: where stores lie


def test_paths_with_spaces_and_any_letters_and_links_to_stores_work(made, tmp_path):
    folder = tmp_path / "mes données – 数据 'x' %20"
    folder.mkdir()
    shutil.copytree(made / "corpus", folder / "entraînement c")
    os.symlink(folder / "entraînement c", tmp_path / "link")
    direct, linked = open_corpus(folder / "entraînement c"), open_corpus(tmp_path / "link")
    expected = zarr_arrays.digest(swept(direct).total)
    assert zarr_arrays.digest(swept(direct, run=folder / "une exécution").total) == expected
    assert zarr_arrays.digest(swept(direct, run=folder / "une exécution", resume=True).total) == expected
    assert zarr_arrays.digest(swept(linked).total) == expected
    model = KernelRidge(Gaussian(200.0), n_landmarks=9, random_state=0).fit(direct)
    save_model(model, folder / "modèle")
    os.symlink(folder / "modèle", tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    group = loaded.predict_to(linked, folder / "prédictions")
    assert_array_equal(group["prediction"][...], model.predict(direct).compute())
    for path in (tmp_path / "link", folder / "prédictions", folder / "une exécution"):
        assert not any(chunk.damage for chunk in walk(path, kind_at(path)))


def test_a_read_only_store_is_not_written_to(corpus):
    def state():
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*"))]

    root = Path(corpus.path)
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    before = state()
    try:
        model = KernelRidgeClassifier(Gaussian(200.0), n_landmarks=9, random_state=0).fit(open_corpus(root))
        assert model.score(open_corpus(root)) > 0.2
        assert not any(chunk.damage for chunk in walk(corpus.path, "corpus"))
        assert state() == before
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
