"""Stores that are being written when something happens: gone on with to the same bytes, or not there at all.

F8 for stores (a crash at every chunk that is written), F13 (a full disk), F36 (a place that cannot be written) and F39
(no chunk is written by two tasks).
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from zarr.storage import LocalStore

from bigkernel import Gaussian, KernelRidge, executing
from bigkernel.data import atomic_write, zarr_arrays
from bigkernel.data.check import walk
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter
from bigkernel.data.ingest import ingest
from bigkernel.data.readers import open_source
from bigkernel.errors import DataError, PlanTooLargeError
from bigkernel.events.job import Event, Incident, observe
from bigkernel.streaming.plan import Plan

N, D, CHUNK_ROWS = 210, 5, 20
rng = np.random.default_rng(11)
X = rng.normal(size=(N, D))
Y = rng.integers(0, 3, N)

pytestmark = pytest.mark.usefixtures("small_steps")


class CrashError(Exception):
    """Ends a test's job in the middle."""


class Puts:
    """Counts the chunks that are written to any store, and fails at one of them."""

    def __init__(self) -> None:
        self.done = 0
        self.fail_at: int | None = None
        self.error: Callable[[], Exception] = CrashError

    def __call__(self, key: str) -> None:
        if key.endswith("zarr.json"):
            return
        if self.fail_at is not None and self.done >= self.fail_at:
            raise self.error()
        self.done += 1


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> Puts:
    counter, put = Puts(), LocalStore.set

    async def counted(self: LocalStore, key: str, value: Any, *arguments: Any, **options: Any) -> None:
        if "partials" not in str(self.root):  # those of runs are not what is counted
            counter(key)
        await put(self, key, value, *arguments, **options)

    monkeypatch.setattr(LocalStore, "set", counted)
    return counter


def content(path: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".partial"))


def free_of(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage(".")._replace(free=free)
    monkeypatch.setattr(atomic_write.shutil, "disk_usage", lambda path: usage)


# ---------------------------------------------------------------- ingest


@pytest.fixture
def source(tmp_path: Path) -> Callable[[], Any]:
    """A table; opened anew each time."""
    rows = "\n".join(",".join([*map(repr, map(float, row)), f"c{label}"]) for row, label in zip(X, Y, strict=True))
    (tmp_path / "table.csv").write_text(rows + "\n")
    return lambda: open_source(tmp_path / "table.csv")


def write(source: Callable[[], Any], tmp_path: Path, to: str = "c", **options: Any) -> Corpus:
    return ingest(source(), tmp_path / to, **{"chunk_rows": CHUNK_ROWS, "name": "table", **options})


def test_an_ingest_that_dies_leaves_nothing(source, tmp_path, puts):
    puts.fail_at = 9
    with pytest.raises(CrashError):
        write(source, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.csv"]


def test_what_a_killed_ingest_left_is_removed_by_the_next_and_nothing_else(source, tmp_path):
    for name in (".c.0123456789abcdef.partial", ".c.d.0123456789abcdef.partial"):  # the other is of a corpus c.d
        (tmp_path / name / "x").mkdir(parents=True)
    assert_array_equal(write(source, tmp_path).array("x")[:], X)
    assert left(tmp_path) == [".c.d.0123456789abcdef.partial"]


# ---------------------------------------------------------------- predictions


@pytest.fixture
def corpus(make_corpus: Callable[..., Corpus]) -> Corpus:
    """Eleven chunks of 20 rows."""
    return make_corpus(X, chunk_rows=CHUNK_ROWS)


@pytest.fixture
def model() -> KernelRidge:
    """A small regressor."""
    return KernelRidge(Gaussian(1.5), n_landmarks=12, random_state=0).fit(X, X @ np.arange(D))


def predict(
    model: KernelRidge,
    corpus: Corpus,
    path: Path,
    run: Path | None = None,
    *,
    resume: bool = False,
    decision: bool = True,
) -> None:
    with executing("serial", run=run, resume=resume):
        model.predict_to(corpus, path, decision=decision)


def test_predictions_that_die_at_any_chunk_are_gone_on_with_to_the_same_bytes(model, corpus, tmp_path, puts):
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
        if content(path) != expected or left(tmp_path):
            wrong.append(k)
    assert wrong == []
    # less and less is left to do: what finished segments wrote is not written again
    assert redone == sorted(redone, reverse=True)
    assert redone[0] == total
    assert redone[-1] <= total / 3


@pytest.fixture
def interrupted(model: KernelRidge, corpus: Corpus, tmp_path: Path, puts: Puts) -> Iterator[Path]:
    """A run whose predictions died near their end; its scratch directory."""
    puts.done, puts.fail_at = 0, 18
    with pytest.raises(CrashError):
        predict(model, corpus, tmp_path / "p", tmp_path / "run")
    puts.done, puts.fail_at = 0, None
    (name,) = left(tmp_path)
    return tmp_path / name


@pytest.mark.parametrize("damage", ["flipped", "deleted", "scratch gone", "metadata"])
def test_chunks_of_finished_segments_are_read_back_before_they_are_published(
    model, corpus, tmp_path, interrupted, puts, damage
):
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
    events: list[Event] = []
    with observe(events.append):
        predict(model, corpus, tmp_path / "p", tmp_path / "run", resume=True)
    predict(model, corpus, tmp_path / "undisturbed")
    assert content(tmp_path / "p") == content(tmp_path / "undisturbed")
    assert [looked.damage for looked in walk(tmp_path / "p", "predictions") if looked.damage] == []
    told = [event.text for event in events if isinstance(event, Incident) and event.kind == "damage"]
    assert ["writing all rows again" in text for text in told] == [True] * (damage != "metadata")
    assert left(tmp_path) == []


# ---------------------------------------------------------------- F39: one task, one chunk


@pytest.mark.parametrize("index, shift", [(1, -1), (5, 1), (10, -1)])
def test_a_boundary_inside_a_chunk_is_refused_and_no_store_appears(model, corpus, tmp_path, monkeypatch, index, shift):
    """F39: an inner boundary of the plan is shifted by one row, up and down."""
    engine = importlib.import_module("bigkernel.engine.sweep")
    plan = engine.plan

    def shifted(bounds: Any, *arguments: Any, **options: Any) -> Plan:
        moved = list(bounds)
        moved[index] += shift
        return plan(moved, *arguments, **options)

    monkeypatch.setattr(engine, "plan", shifted)
    with pytest.raises(DataError, match=r"expected 20 rows in chunk \d+, found (19|21)"):
        predict(model, corpus, tmp_path / "p")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


# ---------------------------------------------------------------- F13: a full disk


def test_a_job_that_does_not_fit_on_the_disk_is_refused_before_it_begins(model, corpus, tmp_path, monkeypatch):
    free_of(monkeypatch, N * 16 - 1)
    with pytest.raises(PlanTooLargeError, match=r"p.*: the prediction store needs up to 0.0 MB"):
        predict(model, corpus, tmp_path / "p")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG], ids=errno.errorcode.get)
def test_a_disk_that_cannot_be_written_ends_a_job_with_its_state_and_leaves_nothing(
    model, corpus, source, tmp_path, puts, number
):
    before = sorted(path.name for path in tmp_path.iterdir())
    puts.error = lambda: OSError(number, os.strerror(number))
    jobs: list[Callable[[], Any]] = [
        lambda: predict(model, corpus, tmp_path / "p"),
        lambda: write(source, tmp_path),
        lambda: zarr_arrays.publish(tmp_path / "g", "test", {"a": np.ones(9)}, {}),
    ]
    for job in jobs:
        puts.fail_at = puts.done + 1 if job is not jobs[2] else puts.done
        with pytest.raises(DataError, match=rf"cannot be written: {os.strerror(number)} \(.* MB free\)"):
            job()
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_errors_of_writing_that_may_pass_are_left_to_the_task_that_is_tried_again(tmp_path, puts):
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
