"""Several segments in one task: what they hold, what a lost worker costs, and when they end early."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from drivers import wait_until
from probes import Both, Bulky, Die, Hold, Sums, Touch
from traced import traced

from bigkernel.data import zarr_arrays
from bigkernel.data.run_directory import Run
from bigkernel.engine import process, tasks
from bigkernel.engine.dask_executor import MOST_SEGMENTS, bundle_segments, segments_a_task
from bigkernel.engine.executor import schedule
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.engine.tasks import SweepTask, ToScheduler, run_subtree
from bigkernel.errors import TaskAbandonedError
from bigkernel.streaming.chunk import Workspace
from bigkernel.streaming.plan import Footprint, Plan, leaf, plan

SEGMENTS, WIDTH, CHUNK = 64, 3, 5
rng = np.random.default_rng(8)
X = rng.normal(size=(CHUNK * SEGMENTS, WIDTH)) * 10.0 ** rng.integers(-8, 8, (CHUNK * SEGMENTS, 1))
VICTIM = 22  # neither the first nor the last segment of its task: four each on two workers
pytestmark = pytest.mark.usefixtures("five_rows_a_segment")


@pytest.fixture
def rows(make_corpus):
    return as_rows(make_corpus(X, chunk_rows=CHUNK))


@pytest.fixture
def expected(rows):
    return zarr_arrays.digest(sweep(rows, Sums(WIDTH), client="serial").total)


def planned(count: int, flops_per_row: float) -> Plan:
    """So many segments of 1,000 rows."""
    return plan(range(0, 1000 * count + 1, 1000), 10, 8, Footprint(flops_per_row, 8, 8), segment_rows=1000)


def test_a_task_has_as_many_segments_as_take_seconds_and_leave_every_slot_eight_tasks():
    assert segments_a_task(schedule(planned(10_000, 1.0)), 2) == MOST_SEGMENTS
    assert segments_a_task(schedule(planned(10_000, 1e12 / 3000)), 2) == 2  # a third of ten seconds each
    assert segments_a_task(schedule(planned(10_000, 1e12)), 2) == 1
    assert segments_a_task(schedule(planned(10_000, 1.0)), 300) == 4
    assert segments_a_task(schedule(planned(31, 1.0)), 2) == 1
    assert segments_a_task(schedule(planned(32, 1.0)), 2) == 2
    assert segments_a_task(schedule(planned(0, 1.0)), 2) == 1


@pytest.mark.parametrize("published", [False, True])
def test_sixteen_segments_of_a_task_hold_no_more_than_is_announced(rows, tmp_path, published):
    tail, levels = 200_000, 6  # of 64 segments
    statistic = Bulky(WIDTH, tail=tail)
    steps = plan_sweep(rows, statistic)
    two, subtree = (bundle_segments(schedule(steps), most)[i] for most, i in ((2, 0), (MOST_SEGMENTS, 1)))
    partial_bytes = 8 * (tail + WIDTH + 1)

    def peaks(name):
        """Return the peaks of a task of two segments and of one of sixteen."""
        run = Run(str(tmp_path / name)) if published else None
        if run:
            run.begin({}, resume=False)
        task = SweepTask(statistic, 16, run)
        run_subtree(task, rows, two.segments[:1], ())  # what is loaded once
        _, least = traced(run_subtree, task, rows, two.segments, two.merges)
        (total, receipt, receipts), peak = traced(run_subtree, task, rows, subtree.segments, subtree.merges)
        assert (len(receipts), receipt.node, receipt.start) == (MOST_SEGMENTS, subtree.node, CHUNK * MOST_SEGMENTS)
        assert (total is None) is published
        return least, peak

    if published:  # none waits in memory; a busy machine's threads release the buffers of writes late at times
        assert any(peak < least + 2 * partial_bytes for least, peak in map(peaks, "abc"))
    else:  # what `Plan.task_bytes` counts, with the real size of a partial
        assert peaks("only")[1] <= steps.task_bytes + (3 + levels) * (partial_bytes - steps.partial_bytes)


@pytest.mark.cluster
def test_a_worker_lost_between_segments_of_a_task_changes_no_bit(rows, expected, client, tmp_path):
    dead, run = Die(CHUNK * VICTIM, str(tmp_path / "died")), tmp_path / "run"
    swept = sweep(rows, Sums(WIDTH, dead), client=client, run=run)
    wait_for_workers(client, 2, 90)
    assert Path(dead.once).exists()
    assert zarr_arrays.digest(swept.total) == expected
    assert [receipt.node for receipt in swept.receipts] == [leaf(i) for i in range(SEGMENTS)]
    # the segments that its task had finished before are not begun again
    starts = [len(Run(str(run)).starts(leaf(i))) for i in range(4 * (VICTIM // 4), VICTIM + 2)]
    assert starts == [1, 1, 2, 1]


@pytest.mark.cluster
def test_a_segment_that_ends_its_workers_is_named_among_those_of_its_task(rows, cluster, client, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 1)
    with pytest.raises(TaskAbandonedError) as caught:
        sweep(rows, Sums(WIDTH, Die(CHUNK * VICTIM)), client=client, run=tmp_path / "run")
    wait_for_workers(client, 2, 90)
    assert str(caught.value).startswith(f"rows {CHUNK * VICTIM}:{CHUNK * VICTIM + CHUNK}: abandoned after 2 worker")


@pytest.mark.cluster
def test_a_released_task_ends_after_its_current_segment(rows, client, tmp_path):
    touch, gate = Touch(str(tmp_path / "touched")), Hold(0, str(tmp_path / "gate"))
    subtree = bundle_segments(schedule(plan_sweep(rows, Sums(WIDTH))), MOST_SEGMENTS)[0]
    task = SweepTask(Sums(WIDTH, Both((touch, gate))), 16)
    future = client.submit(run_subtree, task, rows, subtree.segments, subtree.merges, pure=False)
    wait_until(gate.holding)
    key = future.key
    future.release()
    wait_until(lambda: not client.run_on_scheduler(lambda dask_scheduler: key in dask_scheduler.tasks))

    def state(dask_worker):  # here, as workers would load the libraries of this module for a function of it
        task = dask_worker.state.tasks.get(key)
        return task.state if task else ""

    wait_until(lambda: "cancelled" in client.run(state).values())
    Path(gate.gate).touch()
    wait_until(lambda: set(client.run(state).values()) == {""})
    assert touch.starts() == [0]


@pytest.mark.parametrize(
    ("pause", "expected"),
    [(2.0, [("running", "0-0", 0), ("pulse", "0-0", 20), ("pulse", "0-1", 10)]),
     (0.5, [("running", "0-0", 0), ("pulse", "0-0", 20), ("running", "0-1", 0), ("pulse", "0-1", 20)])],
)  # fmt: skip
def test_a_thread_reports_its_rows_once_in_a_pause_and_new_segments_at_once_if_workers_are_few(
    monkeypatch, pause, expected
):
    sent, clock = [], [100.0]
    worker = SimpleNamespace(address="w", log_event=lambda topic, message: sent.extend(message["messages"]))
    for module in (tasks, process):
        monkeypatch.setattr(module, "get_worker", lambda: worker)
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(tasks, "_thread", threading.local())
    for node in ("0-0", "0-1"):
        pulses = tasks._Pulses(ToScheduler("tok", pause), node, Workspace(), stop=30)
        for rows in (0, 10, 10):
            pulses.count(rows)
            clock[0] += pause / 2
    assert [(m["kind"], m["node"], m["rows"]) for m in sent] == expected
    assert {m["sweep"] for m in sent} == {"tok"}
