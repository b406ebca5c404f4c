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
ROWS = Rows(Blank((SEGMENTS, 1), 1))

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def one_row_a_segment():
    with dask.config.set({"bigkernel.segment-rows": 1, "bigkernel.min-segments": 1}):
        yield


@pytest.fixture
def maps(monkeypatch, client):
    """The function, the columns and the number of keys of each call of `client.map`."""
    calls, original = [], client.map

    def call(function, *columns, **options):
        calls.append((function, columns, len(options["key"])))
        return original(function, *columns, **options)

    monkeypatch.setattr(client, "map", call)
    return calls


def swept_in_order(client, statistic, run=None):
    """Sweep all rows, each of which is counted once, in order."""
    swept = sweep(ROWS, statistic, client=client, run=run)
    assert swept.total["rows"].tolist() == [SEGMENTS]
    assert [receipt.start for receipt in swept.receipts] == list(range(SEGMENTS))
    return swept


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
    client, tmp_path, maps, statistic, tasks, published
):
    """A task has two short segments on two workers, a merging task four partials; receipts are further tasks."""
    swept_in_order(client, statistic, tmp_path / "run" if published else None)
    # without a run also the job, and receipts
    assert [size for *_, size in maps] == (tasks if published else [1, *tasks[:2], tasks[1], *tasks[2:]])


@dataclass(frozen=True)
class Bulky(Count):
    """Says that its partials are larger than the rows and buffers of a segment."""

    def footprint(self, block_rows):
        return replace(super().footprint(block_rows), partial_bytes=2**24)


@pytest.mark.parametrize("published", [False, True])
def test_partials_that_would_exceed_what_is_announced_do_not_wait_for_one_another(client, tmp_path, maps, published):
    swept_in_order(client, Bulky(), tmp_path / "run" if published else None)
    merges = [zip(*columns[4:], strict=True) for function, columns, _ in maps if function is merge_bundle]
    merged = [sum(partial is not None for partial in partials) for batch in merges for partials in batch]
    # of twenty partials of two segments each; with a run none wait in memory
    assert sorted(merged) == ([2, *[4] * 6] if published else [2] * 19)


def test_larger_batches_than_allowed_are_several_messages(monkeypatch, client):
    monkeypatch.setattr("bigkernel.engine.dask_executor.BATCH", 7)
    assert len({receipt.node for receipt in swept_in_order(client, Count()).receipts}) == SEGMENTS


def test_receipts_that_cannot_come_together_come_one_by_one(monkeypatch, client):
    def refuse(*args, **options):
        raise OSError("not together")

    expected = swept_in_order(client, Count())
    monkeypatch.setattr(client, "gather", refuse)
    events = []
    with observe(events.append):
        swept = swept_in_order(client, Count())
    assert not [event for event in events if isinstance(event, Incident)]
    assert [receipt.node for receipt in swept.receipts] == [receipt.node for receipt in expected.receipts]
    assert all(receipt.elapsed > 0 and receipt.worker for receipt in swept.receipts)


@dataclass(frozen=True, eq=False)
class Weighty(Count):
    """A statistic with a large array, which its merges do not look at."""

    weights: np.ndarray = field(default_factory=lambda: np.ones(2**18))


def test_merges_bring_no_large_array_and_wait_for_no_worker_that_has_it(client, maps):
    swept_in_order(client, Weighty())
    jobs = [job for function, columns, _ in maps if function is merge_bundle for job in columns[0]]
    assert len(jobs) == 7
    assert all(isinstance(job, SweepTask) and job.statistic.weights == ArrayRef("") for job in jobs)
