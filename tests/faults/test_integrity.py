"""What is stored and then damaged, lost, exchanged or old: seen and named, never computed with.

F9 (a flipped bit of the input), F10 (a damaged partial result), F11 (a lost chunk), F12 (zeros are no loss), F17 (a
store that fails now and then), F36 (odd paths, links, read-only stores), and single flipped bits over all files of a
corpus, a run and a model, metadata and manifests included.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from numpy.testing import assert_array_equal
from probes import Sums
from zarr.storage import LocalStore

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, load_model, open_corpus, save_model
from bigkernel.cli import main
from bigkernel.config import settings
from bigkernel.data import zarr_arrays
from bigkernel.data.check import kind_at, walk
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import Swept, sweep
from bigkernel.errors import ChunkCorruptError, ChunkMissingError, DataError, ModelRejectedError, ResumeMismatchError
from bigkernel.statistics.moments import add
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint

N, D, CHUNK_ROWS = 300, 6, 20
rng = np.random.default_rng(3)
X = rng.integers(0, 256, (N, D), dtype=np.uint8)
Y = rng.integers(0, 3, N)

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, never to be changed."""
    root = tmp_path_factory.mktemp("made")
    info = CorpusInfo("digits", "made here", (0, 1, 2), (2, 3), 255.0)
    with CorpusWriter(
        root / "corpus", n_features=D, dtype="u1", columns={"y": "i8"}, info=info, chunk_rows=CHUNK_ROWS
    ) as writer:
        writer.append(x=X, y=Y)
    return root


@pytest.fixture
def corpus(made: Path, tmp_path: Path) -> Corpus:
    """A copy of the corpus, to be damaged."""
    shutil.copytree(made / "corpus", tmp_path / "corpus")
    return open_corpus(tmp_path / "corpus")


def files_of(root: Path) -> list[Path]:
    return [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())


def chunks_of(root: Path) -> list[Path]:
    return [path for path in files_of(root) if path.name != "zarr.json"]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def swept(corpus: Corpus, **options: Any) -> Swept:
    """A sweep that reads every row and label."""
    return sweep(as_rows(corpus), LabelledSums(), client="serial", **options)


@dataclass(frozen=True)
class LabelledSums:
    """Σx and Σy; stops at row `start` for as long as the file `stop` is there."""

    stop: str = ""
    start: int = 0

    def zero(self) -> Accumulator:
        return {"x": np.zeros(D), "y": np.zeros(1)}

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        if self.stop and chunk.start == self.start and Path(self.stop).exists():
            raise RuntimeError("stopped")
        total["x"] += np.asarray(chunk.x, float).sum(axis=0)
        total["y"] += chunk.y.sum()

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        return add(a, b)

    def footprint(self, block_rows: int) -> Footprint:
        return Footprint(float(D), 8 * (D + 1), 8 * block_rows)


# ---------------------------------------------------------------- F9, F11, F12: the input


def test_one_flipped_bit_in_any_chunk_of_the_input_ends_the_sweep_and_is_named(corpus):
    """F9: 40 of 40."""
    chunks, unseen = chunks_of(Path(corpus.path)), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        file = chunks[rng.integers(len(chunks))]
        sound = file.read_bytes()
        flip(file, int(rng.integers(8 * len(sound))))
        name, *key = file.relative_to(corpus.path).parts
        start = int(key[1]) * CHUNK_ROWS
        try:
            swept(corpus)
            unseen.append(f"{seed}: not seen")
        except ChunkCorruptError as error:
            said = f"{name}: rows {start}:{start + CHUNK_ROWS} cannot", f"chunk {'/'.join(key)} from a copy"
            if not all(text in str(error) for text in said):
                unseen.append(f"{seed}: {error}")
        file.write_bytes(sound)
    assert unseen == []
    assert_array_equal(swept(corpus).total["x"], X.sum(axis=0))


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_lost_chunk_of_the_input_is_named_before_the_first_task(corpus, name):
    """F11."""
    chunks_of(Path(corpus.path, name))[7].unlink()
    with pytest.raises(ChunkMissingError, match=rf"{name}: 1 of 15 chunks are missing, the first is c/"):
        swept(corpus)


def test_chunks_of_nothing_but_zeros_are_as_good_as_any(tmp_path):
    """F12."""
    info = CorpusInfo("zeros", classes=(0, 1))
    with CorpusWriter(
        tmp_path / "zeros", n_features=D, dtype="u1", columns={"y": "i8"}, info=info, chunk_rows=CHUNK_ROWS
    ) as writer:
        writer.append(x=np.zeros((N, D), np.uint8), y=np.zeros(N, np.int64))
    corpus = open_corpus(tmp_path / "zeros")
    assert_array_equal(swept(corpus).total["x"], np.zeros(D))
    assert sum(looked.damage is None for looked in walk(corpus.path, "corpus")) == 2 * N // CHUNK_ROWS
    chunks_of(Path(corpus.path, "x"))[3].unlink()
    with pytest.raises(ChunkMissingError):
        swept(corpus)


# ---------------------------------------------------------------- F10: partial results


@pytest.fixture
def interrupted(corpus: Corpus, tmp_path: Path) -> Path:
    """A run that was stopped in its fourth segment of five: two partial results are published."""
    (tmp_path / "stop").touch()
    start = int(as_rows(corpus).bounds(settings())[-3])
    statistic = LabelledSums(str(tmp_path / "stop"), start)
    with pytest.raises(RuntimeError, match="stopped"):
        sweep(as_rows(corpus), statistic, client="serial", run=tmp_path / "run")
    (tmp_path / "stop").unlink()
    assert len(list((tmp_path / "run" / "partials").iterdir())) == 2
    return tmp_path / "run"


def resumed(corpus: Corpus, run: Path) -> Swept:
    statistic = LabelledSums(str(run.parent / "stop"), int(as_rows(corpus).bounds(settings())[-3]))
    return sweep(as_rows(corpus), statistic, client="serial", run=run, resume=True)


# ---------------------------------------------------------------- any file of a corpus, a run, a model


def said_of_corpus(root: Path) -> str:
    """What refuses a damaged corpus: opening it, or reading it as a fit does."""
    try:
        found = swept(open_corpus(root))
    except DataError as error:
        return str(error)
    assert_array_equal(found.total["x"], X.sum(axis=0))
    return ""


def said_of_model(root: Path) -> str:
    """What refuses a damaged model."""
    try:
        load_model(root)
    except ModelRejectedError as error:
        return str(error)
    return ""


def said_of_run(root: Path, corpus: Corpus, expected: str) -> str:
    """What `check` says of a damaged run, which is then gone on with: to the same bits, or not at all."""
    said = " ".join(str(looked.damage) for looked in walk(root, "run") if looked.damage)
    try:
        assert zarr_arrays.digest(resumed(corpus, root).total) == expected
    except ResumeMismatchError as error:
        return f"{said} {error}"
    return said


def test_flipped_bits_in_a_corpus_a_run_and_a_model_are_all_seen(corpus, interrupted, tmp_path):
    """Files are hit in proportion to their size: chunks, zarr.json, manifests and receipts alike."""
    save_model(KernelRidgeClassifier(Gaussian(200.0), n_landmarks=12, random_state=0).fit(X, Y), tmp_path / "model")
    expected = zarr_arrays.digest(swept(corpus).total)
    roots = {"corpus": Path(corpus.path), "model": tmp_path / "model", "run": tmp_path / "copy"}
    targets = [(kind, file.relative_to(roots[kind])) for kind in ("corpus", "model") for file in files_of(roots[kind])]
    stored = [interrupted / "manifest.json", *files_of(interrupted / "partials"), *files_of(interrupted / "receipts")]
    targets += [("run", file.relative_to(interrupted)) for file in stored]
    sizes = np.array(
        [(interrupted if kind == "run" else roots[kind]).joinpath(f).stat().st_size for kind, f in targets]
    )
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
            said = said_of_run(roots["run"], corpus, expected)
            shutil.rmtree(roots["run"])
        else:
            said = said_of_corpus(roots[kind]) if kind == "corpus" else said_of_model(roots[kind])
            file.write_bytes(sound)
        hit[kind] += 1
        # the file itself, or the array or partial result that it belongs to
        part = "/".join(name.parts[: 2 if kind == "run" else 1])
        if str(file) not in said and f"{roots[kind]}/{part}" not in said:
            wrong.append(f"{kind} {name} bit {bit}: {said or 'not seen'}")
    assert wrong == []
    assert min(hit.values()) >= 4, hit


def test_a_corpus_that_lost_its_manifest_or_gained_an_array_is_refused(corpus):
    root = Path(corpus.path)
    shutil.copytree(root / "y", root / "weight")
    with pytest.raises(DataError, match=r"corpus/weight: array is not listed in the manifest"):
        open_corpus(root)
    shutil.rmtree(root / "weight")
    shutil.rmtree(root / "manifest")
    with pytest.raises(DataError, match=r"with a manifest, found none: .*ingest the source again"):
        open_corpus(root)


# ---------------------------------------------------------------- check


def test_check_names_all_that_is_damaged_in_a_run(corpus, interrupted):
    assert kind_at(interrupted) == "run"
    assert [looked.damage for looked in walk(interrupted, "run") if looked.damage] == []
    receipts = sorted((interrupted / "receipts").iterdir())
    flip(chunks_of(interrupted / "partials" / "0-2")[0], 5)
    flip(next(file for file in receipts if file.name == "0-0.json"), 900)
    found = [str(looked.damage) for looked in walk(interrupted, "run") if looked.damage]
    assert len(found) == 2
    assert "receipts/0-0.json" in found[0]
    assert "partials/0-2" in found[1]


def run_check(*arguments: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON and errors of the command."""
    result = CliRunner().invoke(main, ["check", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout or "{}"), result.stderr


def test_the_command_ends_with_3_or_7_and_names_all_damage(corpus, tmp_path):
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
    told = CliRunner().invoke(main, ["check", corpus.path]).stdout
    assert [line.partition("chunk ")[2][:6] for line in told.splitlines() if line.startswith("damaged: ")] == [
        "c/3/0 ",
        "c/9 fr",
    ]
    for bit in (-40, 4000):
        flip(tmp_path / "model", bit % (8 * (tmp_path / "model").stat().st_size))
        code, _, errors = run_check(tmp_path / "model")
        assert code == 7
        assert "ModelRejectedError" in errors


def test_the_command_reads_runs_and_refuses_what_is_none_of_ours(interrupted, tmp_path):
    code, report, _ = run_check(interrupted)
    assert (code, report["kind"], report["intact"]) == (0, "run directory", True)
    (tmp_path / "empty").mkdir()
    for path, message in [(tmp_path / "nothing", "does not exist"), (tmp_path / "empty", "found something else")]:
        code, _, errors = run_check(path)
        assert code == 3
        assert message in errors


# ---------------------------------------------------------------- F17: a store that fails


class Unreliable(LocalStore):
    """A local store of which every `period`-th read of a chunk fails; from the first one on when `period` is 1."""

    period = 3
    reads = failed = 0

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.001)
        if "/c/" in f"/{key}":
            Unreliable.reads += 1
            if Unreliable.reads % Unreliable.period == 0:
                Unreliable.failed += 1
                raise OSError(5, "Input/output error")
        return await super().get(key, *arguments, **options)


@pytest.fixture
def unreliable(tmp_path: Path) -> zarr.Array:
    """A foreign array of 40 chunks, four to a step, in a store that fails."""
    values = np.random.default_rng(1).integers(0, 256, (200, D), dtype=np.uint8)
    zarr.create_array(tmp_path / "foreign", data=values, chunks=(10, 3))
    Unreliable.reads = Unreliable.failed = 0
    Unreliable.period = 3
    return zarr.open_array(Unreliable(tmp_path / "foreign", read_only=True), mode="r")


def test_a_store_that_fails_at_every_third_read_is_read_to_the_end(unreliable, tmp_path, caplog):
    expected = sweep(as_rows(zarr.open_array(tmp_path / "foreign", mode="r")), Sums(D), client="serial")
    found = sweep(as_rows(unreliable), Sums(D), client="threads")
    assert zarr_arrays.digest(found.total) == zarr_arrays.digest(expected.total)
    assert Unreliable.failed > 10
    # in the log; several reads of one piece fail as one
    assert 10 < sum("retrying" in record.message for record in caplog.records) <= Unreliable.failed


def test_a_store_that_always_fails_ends_the_sweep_with_its_error(unreliable):
    Unreliable.period = 1
    with pytest.raises(DataError, match=r"rows 0:\d+: reading the rows .*Input/output error"):
        sweep(as_rows(unreliable), Sums(D), client="serial")
    assert 3 <= Unreliable.reads < 100


# ---------------------------------------------------------------- F36: where stores lie


def test_paths_with_spaces_and_letters_of_any_language_and_links_to_stores_work(made, tmp_path):
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
        assert all(looked.damage is None for looked in walk(path, kind_at(path)))


def test_a_store_that_may_only_be_read_is_not_written_to(corpus):
    def state() -> list[tuple[str, int, int]]:
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*"))]

    root = Path(corpus.path)
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    before = state()
    try:
        model = KernelRidgeClassifier(Gaussian(200.0), n_landmarks=9, random_state=0).fit(open_corpus(root))
        assert model.score(open_corpus(root)) > 0.2
        assert all(looked.damage is None for looked in walk(corpus.path, "corpus"))
        assert state() == before
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
