"""Many segments on a cluster: few messages carry them, in order, and receipts come together or one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import dask
import numpy as np
import pytest

from bigkernel.data.run_directory import ArrayRef
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import sweep
from bigkernel.engine.tasks import SweepTask, merge_bundle
from bigkernel.events.job import Incident, observe
from pipelines.scaling.scheduler import Count
from pipelines.shared.blank import Blank

SEGMENTS = 40

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def one_row_a_segment():
    with dask.config.set({"bigkernel.segment-rows": 1, "bigkernel.min-segments": 1}):
        yield


def counted(monkeypatch, client, name):
    """Calls of a method of the client from now on: the length of their first list of keys, or of futures."""
    sizes, original = [], getattr(client, name)

    def call(*args, **options):
        sizes.append(len(options.get("key") or args[0]))
        return original(*args, **options)

    monkeypatch.setattr(client, name, call)
    return sizes


@dataclass(frozen=True)
class Long(Count):
    """Says that a segment takes a processor a minute."""

    def footprint(self, block_rows):
        return replace(super().footprint(block_rows), flops_per_row=5e12)


@pytest.mark.parametrize(
    ("statistic", "tasks", "published"),
    [(Count(), [20, 5, 1, 1], False), (Long(), [40, 10, 2, 1], True)],
    ids=["short", "long"],
)
def test_short_segments_share_a_task_and_the_tasks_of_a_level_are_one_message(
    monkeypatch, client, tmp_path, statistic, tasks, published
):
    """Two segments a task on two workers, where they are short; four partials a merging task; receipts beside these."""
    maps = counted(monkeypatch, client, "map")
    run = tmp_path / "run" if published else None
    swept = sweep(Rows(Blank((SEGMENTS, 1), 1)), statistic, client=client, run=run)
    assert swept.total["rows"].tolist() == [SEGMENTS]
    assert [receipt.start for receipt in swept.receipts] == list(range(SEGMENTS))
    # without a run also the job, and receipts
    assert maps == (tasks if published else [1, *tasks[:2], tasks[1], *tasks[2:]])


@dataclass(frozen=True)
class Bulky(Count):
    """Says that its partials are larger than the rows and buffers of a segment."""

    def footprint(self, block_rows):
        return replace(super().footprint(block_rows), partial_bytes=2**24)


@pytest.mark.parametrize("published", [False, True])
def test_partials_that_would_exceed_what_is_announced_do_not_wait_for_one_another(
    monkeypatch, client, tmp_path, published
):
    taken, original = [], client.map

    def call(function, *columns, **options):
        if function is merge_bundle:
            taken.extend(
                sum(partial is not None for partial in partials) for partials in zip(*columns[4:], strict=True)
            )
        return original(function, *columns, **options)

    monkeypatch.setattr(client, "map", call)
    swept = sweep(Rows(Blank((SEGMENTS, 1), 1)), Bulky(), client=client, run=tmp_path / "run" if published else None)
    assert swept.total["rows"].tolist() == [SEGMENTS]
    assert [receipt.start for receipt in swept.receipts] == list(range(SEGMENTS))
    # of twenty partials of two segments each; with a run none wait in memory
    assert sorted(taken) == ([2, *[4] * 6] if published else [2] * 19)


def test_larger_batches_than_allowed_are_several_messages(monkeypatch, client):
    monkeypatch.setattr("bigkernel.engine.dask_executor.BATCH", 7)
    swept = sweep(Rows(Blank((SEGMENTS, 1), 1)), Count(), client=client)
    assert swept.total["rows"].tolist() == [SEGMENTS]
    assert len({receipt.node for receipt in swept.receipts}) == SEGMENTS


def test_receipts_that_cannot_come_together_come_one_by_one(monkeypatch, client):
    def refuse(*args, **options):
        raise OSError("not together")

    expected = sweep(Rows(Blank((SEGMENTS, 1), 1)), Count(), client=client)
    monkeypatch.setattr(client, "gather", refuse)
    events = []
    with observe(events.append):
        swept = sweep(Rows(Blank((SEGMENTS, 1), 1)), Count(), client=client)
    assert not [event for event in events if isinstance(event, Incident)]
    assert [receipt.node for receipt in swept.receipts] == [receipt.node for receipt in expected.receipts]
    assert all(receipt.elapsed > 0 and receipt.worker for receipt in swept.receipts)
    assert np.array_equal(swept.total["rows"], expected.total["rows"])


@dataclass(frozen=True, eq=False)
class Weighty(Count):
    """A statistic with a large array, which its merges do not look at."""

    weights: np.ndarray = field(default_factory=lambda: np.ones(2**18))


def test_merges_bring_no_large_array_and_wait_for_no_worker_that_has_it(monkeypatch, client):
    jobs, original = [], client.map

    def call(function, *columns, **options):
        if function is merge_bundle:
            jobs.extend(columns[0])
        return original(function, *columns, **options)

    monkeypatch.setattr(client, "map", call)
    swept = sweep(Rows(Blank((SEGMENTS, 1), 1)), Weighty(), client=client)
    assert swept.total["rows"].tolist() == [SEGMENTS]
    assert len(jobs) == 7
    assert all(isinstance(job, SweepTask) and job.statistic.weights == ArrayRef("") for job in jobs)
