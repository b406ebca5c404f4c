"""Interrupted writes of stores are resumed to the same bytes, or leave no store.

F8 for stores (a crash at any written chunk), F13 (a full disk), F36 (a read-only disk) and F39 (no chunk is written by
two tasks).
"""

import errno
import importlib
import os
import shutil

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from zarr.storage import LocalStore

from bigkernel import Gaussian, KernelRidge, executing
from bigkernel.data import atomic_write, zarr_arrays
from bigkernel.data.check import walk
from bigkernel.data.corpus import CorpusInfo, CorpusWriter
from bigkernel.data.ingest import ingest
from bigkernel.data.readers import open_source
from bigkernel.errors import DataError, PlanTooLargeError
from bigkernel.events.job import Incident, observe

N, D, CHUNK_ROWS = 210, 5, 20
rng = np.random.default_rng(11)
X = rng.normal(size=(N, D))

pytestmark = pytest.mark.usefixtures("small_steps")


class CrashError(Exception):
    """Ends a job in the middle."""


class Puts:
    """Counts the chunks written to any store, and fails at one of them."""

    def __init__(self):
        self.done = 0
        self.fail_at = None
        self.error = CrashError

    def __call__(self, key):
        if key.endswith("zarr.json"):
            return
        if self.fail_at is not None and self.done >= self.fail_at:
            raise self.error()
        self.done += 1


@pytest.fixture
def puts(monkeypatch):
    counter, put = Puts(), LocalStore.set

    async def counted(self, key, value, *arguments, **options):
        if "partials" not in str(self.root):  # chunks of runs are not counted
            counter(key)
        await put(self, key, value, *arguments, **options)

    monkeypatch.setattr(LocalStore, "set", counted)
    return counter


def content(path):
    """Return every file of a store."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def partial_names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".partial"))


# ---------------------------------------------------------------- ingest


@pytest.fixture
def source(tmp_path):
    """A file of rows."""
    np.save(tmp_path / "table.npy", X)
    return tmp_path / "table.npy"


def write(source, tmp_path):
    return ingest(open_source(source), tmp_path / "c", chunk_rows=CHUNK_ROWS)


def test_an_ingest_that_dies_leaves_nothing(source, tmp_path, puts):
    puts.fail_at = 9
    with pytest.raises(CrashError):
        write(source, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.npy"]


def test_partial_directories_of_a_killed_ingest_are_removed_by_the_next(source, tmp_path):
    for name in (".c.0123456789abcdef.partial", ".c.d.0123456789abcdef.partial"):  # the second is of a corpus c.d
        (tmp_path / name / "x").mkdir(parents=True)
    assert_array_equal(write(source, tmp_path).array("x")[:], X)
    assert partial_names(tmp_path) == [".c.d.0123456789abcdef.partial"]


# ---------------------------------------------------------------- predictions


@pytest.fixture
def corpus(make_corpus):
    return make_corpus(X, chunk_rows=CHUNK_ROWS)


@pytest.fixture
def model():
    return KernelRidge(Gaussian(1.5), n_landmarks=12, random_state=0).fit(X, X @ np.arange(D))


def predict(model, corpus, path, run=None, *, resume=False, decision=True):
    with executing("serial", run=run, resume=resume):
        model.predict_to(corpus, path, decision=decision)


def test_predictions_that_crash_at_any_chunk_are_resumed_to_the_same_bytes(model, corpus, tmp_path, puts):
    puts.done = 0
    predict(model, corpus, tmp_path / "undisturbed", decision=False)
    expected, total = content(tmp_path / "undisturbed"), puts.done
    assert total == 11
    wrong, redone = [], []
    for k in (0, 3, 7, total - 1):
        path, run = tmp_path / f"p{k}", tmp_path / f"run{k}"
        puts.done, puts.fail_at = 0, k
        with pytest.raises(CrashError):
            predict(model, corpus, path, run, decision=False)
        assert not path.exists()
        puts.done, puts.fail_at = 0, None
        predict(model, corpus, path, run, resume=True, decision=False)
        redone.append(puts.done)
        if content(path) != expected or partial_names(tmp_path):
            wrong.append(k)
    assert wrong == []
    # chunks of finished segments are not written again
    assert redone == sorted(redone, reverse=True)
    assert redone[0] == total
    assert redone[-1] <= total / 3


@pytest.fixture
def interrupted(model, corpus, tmp_path, puts):
    """The temporary directory of predictions that crashed near their end."""
    puts.done, puts.fail_at = 0, 18
    with pytest.raises(CrashError):
        predict(model, corpus, tmp_path / "p", tmp_path / "run")
    puts.done, puts.fail_at = 0, None
    (name,) = partial_names(tmp_path)
    return tmp_path / name


@pytest.mark.parametrize("damage", ["flipped", "deleted", "no directory", "metadata"])
def test_chunks_of_finished_segments_are_checked_before_publishing(model, corpus, tmp_path, interrupted, damage):
    chunk = interrupted / "prediction" / "c" / "2"
    if damage == "flipped":
        sound = chunk.read_bytes()
        chunk.write_bytes(sound[:-1] + bytes([sound[-1] ^ 128]))
    elif damage == "deleted":
        chunk.unlink()
    elif damage == "metadata":
        (interrupted / "decision" / "zarr.json").write_text("{}")
    else:
        shutil.rmtree(interrupted)
    events = []
    with observe(events.append):
        predict(model, corpus, tmp_path / "p", tmp_path / "run", resume=True)
    predict(model, corpus, tmp_path / "undisturbed")
    assert content(tmp_path / "p") == content(tmp_path / "undisturbed")
    assert not any(chunk.damage for chunk in walk(tmp_path / "p", "predictions"))
    texts = [event.text for event in events if isinstance(event, Incident) and event.kind == "damage"]
    assert ["writing all rows again" in text for text in texts] == [True] * (damage != "metadata")
    assert partial_names(tmp_path) == []


@pytest.mark.parametrize("index, shift", [(1, -1), (5, 1), (10, -1)])
def test_a_segment_boundary_inside_a_chunk_is_refused(model, corpus, tmp_path, monkeypatch, index, shift):
    """F39: an inner boundary of the plan is shifted by one row, up and down."""
    engine = importlib.import_module("bigkernel.engine.sweep")
    plan = engine.plan

    def shifted(bounds, *arguments, **options):
        changed = list(bounds)
        changed[index] += shift
        return plan(changed, *arguments, **options)

    monkeypatch.setattr(engine, "plan", shifted)
    with pytest.raises(DataError, match=r"expected 20 rows in chunk \d+, found (19|21)"):
        predict(model, corpus, tmp_path / "p")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


def test_a_job_that_does_not_fit_on_the_disk_is_refused_before_it_starts(model, corpus, tmp_path, monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=N * 16 - 1)
    monkeypatch.setattr(atomic_write.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(PlanTooLargeError, match=r"p.*: the prediction store needs up to 0.0 MB"):
        predict(model, corpus, tmp_path / "p")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG], ids=errno.errorcode.get)
def test_an_error_of_the_disk_ends_a_job_and_leaves_nothing(model, corpus, source, tmp_path, puts, number):
    before = sorted(path.name for path in tmp_path.iterdir())
    puts.error = lambda: OSError(number, os.strerror(number))
    jobs = [
        lambda: predict(model, corpus, tmp_path / "p"),
        lambda: write(source, tmp_path),
        lambda: zarr_arrays.publish(tmp_path / "g", "test", {"a": np.ones(9)}, {}),
    ]
    for job in jobs:
        puts.fail_at = puts.done + 1 if job is not jobs[2] else puts.done
        with pytest.raises(DataError, match=rf"cannot be written: {os.strerror(number)} \(.* MB free\)"):
            job()
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_transient_write_errors_are_raised_for_a_retry(tmp_path, puts):
    puts.error, puts.fail_at = lambda: OSError(errno.EIO, "Input/output error"), 0
    with pytest.raises(OSError, match="Input/output error"):
        zarr_arrays.publish(tmp_path / "g", "test", {"a": np.ones(9)}, {})
    info = CorpusInfo("c")
    with (
        pytest.raises(DataError, match="Input/output error"),
        CorpusWriter(tmp_path / "c", n_features=D, dtype="f8", columns={}, info=info) as writer,
    ):
        writer.append(x=X)
    assert list(tmp_path.iterdir()) == []
