"""Invalid targets are refused by name before any segment runs, in Python and on the command line (F45)."""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bigkernel import KernelRidge, executing, save_model, write_corpus
from bigkernel.data import atomic_write, run_lock
from bigkernel.data.atomic_write import require_apart, require_target
from bigkernel.data.run_lock import claimed
from bigkernel.errors import DataError, RunLockedError
from bigkernel.events.job import SegmentDone, SweepStarted, observe

rng = np.random.default_rng(44)
X = rng.normal(size=(60, 3))
FIT = ("--landmarks", 10, "--sigma", 1.0)

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def corpus(make_corpus):
    return make_corpus(X, y=X[:, 0])


@pytest.fixture
def model():
    return KernelRidge(n_landmarks=10, random_state=0).fit(X, X[:, 0])


@pytest.fixture
def no_segment():
    """Assert that nothing is swept in the test."""
    events = []
    with observe(events.append):
        yield
    assert not [event for event in events if isinstance(event, SweepStarted | SegmentDone)]


def content(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ways(model, corpus, path):
    """Return the ways to write to a path from Python."""
    return {
        "save": lambda: save_model(model, path),
        "predict_to": lambda: model.predict_to(corpus, path),
        "corpus": lambda: write_corpus(path, X),
    }


# ---------------------------------------------------------------- inside a store


@pytest.mark.parametrize("way", ["save", "predict_to", "corpus"])
@pytest.mark.parametrize("deep", ["in.model", "x/in.model", "x/c/new/in.model"])
def test_nothing_is_written_into_a_corpus(corpus, model, no_segment, way, deep):
    before = content(Path(corpus.path))
    with pytest.raises(DataError, match=r"lies inside the zarr store .*corpus; choose a path"):
        ways(model, corpus, Path(corpus.path) / deep)[way]()
    assert content(Path(corpus.path)) == before


def test_a_run_inside_a_store_is_refused(corpus, tmp_path, no_segment, run):
    before = content(Path(corpus.path))
    inside = Path(corpus.path) / "job.run"
    with pytest.raises(DataError, match=r"the run lies inside the zarr store"), executing(run=inside):
        pass
    for command in (
        ["fit", corpus.path, tmp_path / "m", "--run", inside, *FIT],
        ["tune", corpus.path, "--out", tmp_path / "t", "--run", inside, *FIT],
        ["tune", corpus.path, "--out", inside, *FIT],
    ):
        assert "lies inside the zarr store" in " ".join(run(*command, code=3).stderr.split())
    assert content(Path(corpus.path)) == before
    assert not (tmp_path / "m").exists()


# ---------------------------------------------------------------- inside one another


def test_targets_of_one_job_inside_one_another_are_refused(corpus, tmp_path, no_segment, run):
    for model, job, message in (
        ("a", "a", "a: is both the "),
        ("a", "a/job", r"a/job: the run lies inside the model .*/a; choose a path outside it"),
        ("job/a", "job", r"job/a: the model lies inside the run .*/job; choose a path outside it"),
    ):
        with pytest.raises(DataError, match=message):
            require_apart({"run": tmp_path / job, "model": tmp_path / model})
        assert "DataError" in run("fit", corpus.path, tmp_path / model, "--run", tmp_path / job, *FIT, code=3).stderr
        assert not (tmp_path / "a").exists()
        assert not (tmp_path / "job").exists()
    require_apart({"run": tmp_path / "a", "model": tmp_path / "ab", "report": None})


# ---------------------------------------------------------------- read-only and full disks


def test_a_read_only_disk_is_refused_before_work(corpus, model, tmpfs, no_segment, run):
    disk = tmpfs("1m")
    done = subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted again here: {done.stderr.decode().strip()}")
    for job in ways(model, corpus, disk / "new").values():
        with pytest.raises(DataError, match=r"cannot be written: .*Read-only file system; choose another path"):
            job()
    for command in (["fit", corpus.path, disk / "m", *FIT], ["tune", corpus.path, "--out", disk / "t", *FIT]):
        assert "Read-only file system" in run(*command, code=3).stderr
    with pytest.raises(DataError, match="cannot be written"), executing(run=disk / "job"):
        pass


def test_a_full_disk_and_an_existing_model_are_refused_before_work(corpus, tmp_path, monkeypatch, no_segment, run):
    usage = shutil.disk_usage(".")._replace(free=8 * (10 * 10 + 10 * 4) - 1)
    monkeypatch.setattr(atomic_write.shutil, "disk_usage", lambda path: usage)
    message = run("fit", corpus.path, tmp_path / "m", *FIT, code=4).stderr
    assert "the model needs up to" in message
    assert "free some space or choose another path" in message
    assert not (tmp_path / "m").exists()
    (tmp_path / "there").touch()
    assert "already exists" in run("fit", corpus.path, tmp_path / "there", *FIT, code=3).stderr


# ---------------------------------------------------------------- two drivers


@pytest.fixture
def other():
    """Another running process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def claim_of(target, pid):
    """Create the claim of another driver on a target."""
    claim = target.with_name(f".{target.name}.claim")
    claim.mkdir()
    lock = {"token": "other", "host": socket.gethostname(), "pid": pid, "birth": run_lock._birth(pid), "since": "noon"}
    (claim / "lock.json").write_text(json.dumps(lock))
    return claim


def test_a_second_driver_of_a_target_is_refused_by_name(corpus, model, tmp_path, other, no_segment, run):
    claim = claim_of(tmp_path / "m", other.pid)
    message = rf"m: the .* is being written: .* in use by process {other.pid} on .* since noon; wait for it to end, or"
    for job in ways(model, corpus, tmp_path / "m").values():
        with pytest.raises(RunLockedError, match=message):
            job()
    assert f"process {other.pid}" in run("fit", corpus.path, tmp_path / "m", *FIT, code=9).stderr
    assert claim.exists()
    assert not (tmp_path / "m").exists()


def test_the_claim_of_a_dead_driver_is_removed(model, tmp_path, other):
    claim_of(tmp_path / "m", other.pid)
    other.kill()
    other.wait()
    save_model(model, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_driver_holds_its_target_until_it_ends(model, tmp_path):
    with suppress(ZeroDivisionError), claimed(tmp_path / "m", "the model"):
        assert run_lock.read(tmp_path / ".m.claim")["pid"] == os.getpid()
        save_model(model, tmp_path / "m")  # under the same claim
        assert (tmp_path / ".m.claim").exists()
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "{corpus}", "{name}", *FIT),
        ("fit", "{corpus}", "m", *FIT, "--run", "{name}"),
        ("tune", "{corpus}", "--landmarks", 10, "--sigma", 1.0, "--out", "{name}"),
        ("ingest", "{rows}", "{name}"),
        *((name, "{name}") for name in ("info", "check", "report")),
        ("watch", "{name}", "--once"),
    ],
    ids=str,
)
def test_a_too_long_name_is_refused_in_one_line(command, corpus, run, tmp_path, monkeypatch, no_segment):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", X)
    names = {"name": 300 * "a", "corpus": corpus.path, "rows": "rows.npy"}
    errors = run(*(str(argument).format(**names) for argument in command), code=3).stderr.splitlines()
    assert errors[-1].startswith("DataError: aaa")


def test_a_name_too_long_for_its_temporary_name_is_refused(tmp_path):
    require_target(tmp_path / (213 * "a"), "the model")
    with pytest.raises(DataError, match="need 256 bytes, and the file system allows 255; choose a shorter name"):
        require_target(tmp_path / (214 * "a"), "the model")
