"""Targets that cannot be: refused by name before any segment runs, in Python and on the command line (F45)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigkernel import KernelRidge, executing, save_model
from bigkernel.data import atomic_write, run_lock
from bigkernel.data.atomic_write import require_apart, require_target
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter
from bigkernel.data.run_lock import claimed
from bigkernel.errors import DataError, RunLockedError
from bigkernel.events.job import SegmentDone, SweepStarted, observe

rng = np.random.default_rng(44)
X = rng.normal(size=(60, 3))
FIT = ("--landmarks", 10, "--sigma", 1.0)

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def corpus(make_corpus: Callable[..., Corpus]) -> Corpus:
    return make_corpus(X, y=X[:, 0])


@pytest.fixture
def model() -> KernelRidge:
    return KernelRidge(n_landmarks=10, random_state=0).fit(X, X[:, 0])


@pytest.fixture
def no_segment() -> Iterator[None]:
    """Nothing is swept in the test."""
    seen: list[Any] = []
    with observe(seen.append):
        yield
    assert not [event for event in seen if isinstance(event, SweepStarted | SegmentDone)]


def content(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def ways(model: KernelRidge, corpus: Corpus, path: Path) -> dict[str, Callable[[], Any]]:
    """Every way to write at a path from Python."""

    def ingest() -> None:
        with CorpusWriter(path, n_features=3, dtype="f8", columns={}, info=CorpusInfo("c")) as writer:
            writer.append(x=X)

    return {
        "save": lambda: save_model(model, path),
        "predict_to": lambda: model.predict_to(corpus, path),
        "corpus": ingest,
    }


# ---------------------------------------------------------------- inside a store


@pytest.mark.parametrize("way", ["save", "predict_to", "corpus"])
@pytest.mark.parametrize("deep", ["in.model", "x/in.model", "x/c/new/in.model"])
def test_nothing_is_written_into_a_corpus(corpus, model, no_segment, way, deep):
    before = content(Path(corpus.path))
    with pytest.raises(DataError, match=r"lies inside the zarr store .*corpus; choose a path"):
        ways(model, corpus, Path(corpus.path) / deep)[way]()
    assert content(Path(corpus.path)) == before


def test_no_run_lies_inside_a_store(corpus, tmp_path, no_segment, run):
    before = content(Path(corpus.path))
    inside = Path(corpus.path) / "job.run"
    with pytest.raises(DataError, match=r"the run lies inside the zarr store"), executing(run=inside):
        pass
    for words in (
        ["fit", corpus.path, tmp_path / "m", "--run", inside, *FIT],
        ["tune", corpus.path, "--out", tmp_path / "t", "--run", inside, *FIT],
    ):
        assert "the run lies inside" in " ".join(run(*words, code=3).stderr.split())
    assert "lies inside the zarr store" in " ".join(
        run("tune", corpus.path, "--out", inside, *FIT, code=3).stderr.split()
    )
    assert content(Path(corpus.path)) == before
    assert not (tmp_path / "m").exists()


# ---------------------------------------------------------------- in one another


def test_targets_of_one_job_lie_apart(corpus, tmp_path, no_segment, run):
    for model, job, said in (
        ("a", "a", "a: is both the "),
        ("a", "a/job", r"a/job: the run lies inside the model .*/a; choose a path outside it"),
        ("job/a", "job", r"job/a: the model lies inside the run .*/job; choose a path outside it"),
    ):
        with pytest.raises(DataError, match=said):
            require_apart({"run": tmp_path / job, "model": tmp_path / model})
        words = run("fit", corpus.path, tmp_path / model, "--run", tmp_path / job, *FIT, code=3).stderr
        assert "DataError" in words
        assert not (tmp_path / "a").exists()
        assert not (tmp_path / "job").exists()
    require_apart({"run": tmp_path / "a", "model": tmp_path / "ab", "report": None})


# ---------------------------------------------------------------- a disk that takes nothing


def mounted(place: Path, options: str) -> None:
    done = subprocess.run(["mount", "-o", options, str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted again here: {done.stderr.decode().strip()}")


def test_a_disk_that_is_read_only_is_refused_before_work(corpus, model, tmpfs, no_segment, run):
    place = tmpfs("1m")
    mounted(place, "remount,ro")
    for job in ways(model, corpus, place / "new").values():
        with pytest.raises(DataError, match=r"cannot be written: .*Read-only file system; choose another path"):
            job()
    for words in (["fit", corpus.path, place / "m", *FIT], ["tune", corpus.path, "--out", place / "t", *FIT]):
        assert "Read-only file system" in run(*words, code=3).stderr
    with pytest.raises(DataError, match="cannot be written"), executing(run=place / "job"):
        pass


def test_a_model_that_does_not_fit_on_its_disk_or_is_there_is_refused_before_work(
    corpus, tmp_path, monkeypatch, no_segment, run
):
    usage = shutil.disk_usage(".")._replace(free=8 * (10 * 10 + 10 * 4) - 1)
    monkeypatch.setattr(atomic_write.shutil, "disk_usage", lambda path: usage)
    said = run("fit", corpus.path, tmp_path / "m", *FIT, code=4).stderr
    assert "the model needs up to" in said
    assert "free some space or choose another path" in said
    assert not (tmp_path / "m").exists()
    (tmp_path / "there").touch()
    assert "already exists" in run("fit", corpus.path, tmp_path / "there", *FIT, code=3).stderr


# ---------------------------------------------------------------- two drivers


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A living process, which is not this one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def claim_of(target: Path, pid: int) -> Path:
    """The claim on a target by another driver."""
    place = target.with_name(f".{target.name}.claim")
    place.mkdir()
    about = {"token": "other", "host": socket.gethostname(), "pid": pid, "birth": run_lock._birth(pid), "since": "noon"}
    (place / "lock.json").write_text(json.dumps(about))
    return place


def test_a_second_driver_of_a_target_is_refused_by_name(corpus, model, tmp_path, other, no_segment, run):
    claim = claim_of(tmp_path / "m", other.pid)
    said = (
        rf"m: the .* is being written: .* in use by process {other.pid} on .* since noon; wait for it to end, or choose"
    )
    for job in ways(model, corpus, tmp_path / "m").values():
        with pytest.raises(RunLockedError, match=said):
            job()
    assert f"process {other.pid}" in run("fit", corpus.path, tmp_path / "m", *FIT, code=9).stderr
    assert claim.exists()
    assert not (tmp_path / "m").exists()


def test_the_claim_of_a_dead_driver_is_taken_and_nothing_of_it_is_left(model, tmp_path, other):
    claim_of(tmp_path / "m", other.pid)
    other.kill()
    other.wait()
    save_model(model, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_driver_holds_its_target_until_it_ends(model, tmp_path):
    def work() -> None:
        with claimed(tmp_path / "m", "the model"):
            assert run_lock.read(tmp_path / ".m.claim")["pid"] == os.getpid()
            save_model(model, tmp_path / "m")  # its own claim
            assert (tmp_path / ".m.claim").exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "{corpus}", "{name}", *FIT),
        ("fit", "{corpus}", "m", *FIT, "--run", "{name}"),
        ("tune", "{corpus}", "--landmarks", 10, "--sigma", 1.0, "--out", "{name}"),
        ("ingest", "{rows}", "{name}"),
        *((command, "{name}") for command in ("info", "check", "report")),
        ("watch", "{name}", "--once"),
    ],
    ids=lambda words: " ".join(map(str, words[:1])) if words[-1] != "{name}" else f"{words[0]} {words[-2]}",
)
def test_a_name_that_is_too_long_is_refused_in_one_line(words, corpus, run, tmp_path, monkeypatch, no_segment):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", X)
    names = {"name": 300 * "a", "corpus": corpus.path, "rows": "rows.npy"}
    said = run(*(str(word).format(**names) for word in words), code=3).stderr.splitlines()
    assert said[-1].startswith("DataError: aaa")
    assert "Traceback" not in "".join(said)


def test_a_name_that_leaves_no_room_for_the_name_of_what_is_begun_is_refused_before_the_work(tmp_path):
    require_target(tmp_path / (213 * "a"), "the model")
    with pytest.raises(DataError, match="need 256 bytes, and the file system allows 255; choose a shorter name"):
        require_target(tmp_path / (214 * "a"), "the model")
