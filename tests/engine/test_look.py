"""A look at the sums of the first rows of a sweep: what it sees, what it ends, and what a run keeps of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from probes import Sums

from bigkernel.config import settings
from bigkernel.data import zarr_arrays
from bigkernel.data.run_directory import Run, survey
from bigkernel.engine.executor import EndedEarly, Look, SweepSpec, local_memory
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.events.job import JobEnded, JobStarted, SegmentDone, SweepEnded, message_of, observe
from bigkernel.events.progress import Progress

SEGMENTS, WIDTH, CHUNK = 40, 3, 5
rng = np.random.default_rng(8)
X = rng.normal(size=(CHUNK * SEGMENTS, WIDTH)) * 10.0 ** rng.integers(-8, 8, (CHUNK * SEGMENTS, 1))
FIRST = 4 * CHUNK  # the first node of at least eleven rows has four segments: "2-0"
pytestmark = pytest.mark.usefixtures("five_rows_a_segment")
EXECUTORS = ["serial", "threads", pytest.param("client", marks=pytest.mark.cluster)]


@pytest.fixture
def rows(make_corpus):
    return as_rows(make_corpus(X, chunk_rows=CHUNK))


@pytest.fixture
def executor(request):
    return request.getfixturevalue("client") if request.param == "client" else request.param


def looking(found=None):
    """Return a look that keeps what it sees and returns what it is told to, and the list of what it has seen."""
    seen = []

    def judge(total, share):
        seen.append((total, share))
        return found

    return Look(FIRST - 9, judge), seen


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("executor", EXECUTORS, indirect=True)
def test_a_look_sees_the_first_rows_once_and_changes_no_bit(rows, executor, published, tmp_path):
    (look, seen), run = looking(), tmp_path / "run" if published else None
    swept = sweep(rows, Sums(WIDTH), client=executor, run=run, look=look)
    assert zarr_arrays.digest(swept.total) == zarr_arrays.digest(sweep(rows, Sums(WIDTH), client="serial").total)
    assert len(swept.receipts) == SEGMENTS
    ((total, share),) = seen
    assert share == FIRST / len(X)
    assert_allclose(total["sum"], X[:FIRST].sum(axis=0) / share, rtol=1e-12)
    assert total["rows"] == len(X)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("executor", EXECUTORS, indirect=True)
def test_what_a_look_finds_ends_the_sweep_and_each_of_its_resumes(rows, executor, published, tmp_path):
    run, events = tmp_path / "run" if published else None, []
    with observe(events.append):
        for resume in (False, True) if published else (False,):
            look, seen = looking("enough")
            with pytest.raises(EndedEarly) as caught:
                sweep(rows, Sums(WIDTH), client=executor, run=run, resume=resume, look=look)
            assert (caught.value.found, caught.value.node, len(seen)) == ("enough", "2-0", 1)
    ended = [event for event in events if isinstance(event, SweepEnded)]
    assert [(event.error, event.early) for event in ended] == [("", "enough")] * len(ended)
    done = [event.receipt for event in events if isinstance(event, SegmentDone)]
    if executor == "serial" and not published:
        assert [receipt.stop for receipt in done] == list(range(CHUNK, FIRST + 1, CHUNK))
        begun, *others = (
            message_of(event, "job", "sweep") for event in events if not isinstance(event, JobStarted | JobEnded)
        )
        progress = Progress.begun(begun, 0.0)
        for message in others:
            progress.apply(message, 1.0)
        assert (progress.state, progress.rows_done) == ("ended early", FIRST)
    if not published:
        return
    assert [(one.state, one.segments) for one in survey(run)] == [("ended early", SEGMENTS)]
    assert [place.name for place in (run / "partials").iterdir()] == ["2-0"]
    assert all(receipt.resumed for receipt in done[-4:])  # nothing was computed again
    # without the look the run continues where it ended
    swept = sweep(rows, Sums(WIDTH), client=executor, run=run, resume=True)
    assert zarr_arrays.digest(swept.total) == zarr_arrays.digest(sweep(rows, Sums(WIDTH), client="serial").total)


def test_the_memory_of_its_solve_is_announced(rows):
    steps = replace(plan_sweep(rows, Sums(WIDTH)), partial_bytes=10**10, width=10_000)
    spec = SweepSpec(rows, Sums(WIDTH), steps, settings(), "sums", "serial", None, 1, None)
    without, with_look = (local_memory(replace(spec, look=look)).announced for look in (None, looking()[0]))
    # its copy of the sums, finished, and six matrices of the columns
    assert with_look - without == pytest.approx(2 * 10**10 + 6 * 8 * 10_000**2, rel=0.01)


def test_first_rows_are_whole_segments_and_at_most_a_third(rows):
    steps = plan_sweep(rows, Sums(WIDTH))
    nodes = [
        steps.first_node(rows) for rows in (1, CHUNK, CHUNK + 1, FIRST, FIRST + 1, 8 * CHUNK, 8 * CHUNK + 1, 10**9)
    ]
    assert nodes == ["0-0", "0-0", "1-0", "2-0", "3-0", "3-0", "", ""]


def test_a_run_that_was_looked_at_and_lost_a_later_partial_is_not_looked_at_again(rows, tmp_path):
    look, seen = looking()
    total = sweep(rows, Sums(WIDTH), client="serial", run=tmp_path, look=look).total
    root = Run(str(tmp_path)).receipt("6-0")
    assert root is not None
    assert len(seen) == 1
    again = sweep(rows, Sums(WIDTH), client="serial", run=tmp_path, resume=True, look=look).total
    assert len(seen) == 1
    assert zarr_arrays.digest(again) == zarr_arrays.digest(total)
