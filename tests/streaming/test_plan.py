"""The plan: every row once, whole chunks, segments of about equal size; and what would fit when it does not."""

import dataclasses
import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bigkernel.errors import PlanTooLargeError
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.plan import Footprint, Sharing, plan

LIGHT = Footprint(flops_per_row=10.0, partial_bytes=100, work_bytes=1000)
chunk_sizes = st.lists(st.integers(1, 300), max_size=60)
limits = {"segment_rows": st.integers(1, 2000), "min_segments": st.integers(1, 20)}


def bounds_of(sizes):
    return (0, *np.cumsum(sizes, dtype=int).tolist())


@example(sizes=[10] * 6, segment_rows=30, min_segments=2)
@given(sizes=chunk_sizes, **limits)
def test_segments_cover_every_row_once_in_nearly_equal_numbers_of_whole_chunks(sizes, segment_rows, min_segments):
    bounds = bounds_of(sizes)
    steps = plan(bounds, 3, 4, LIGHT, segment_rows=segment_rows, min_segments=min_segments)
    pairs = [pair for s in steps.segments for pair in zip(s.bounds[:-1], s.bounds[1:], strict=True)]
    assert pairs == list(itertools.pairwise(bounds))
    assert [s.index for s in steps.segments] == list(range(len(steps.segments)))
    assert all((s.start, s.stop) == (s.bounds[0], s.bounds[-1]) for s in steps.segments)
    # at most `segment_rows`, unless it is one chunk; and all differ by one chunk at most
    assert all(s.stop - s.start <= segment_rows or len(s.bounds) == 2 for s in steps.segments)
    assert len(steps.segments) >= min(min_segments, len(sizes))
    counts = [len(s.bounds) - 1 for s in steps.segments]
    assert not counts or (min(counts) >= 1 and max(counts) - min(counts) <= 1)


@given(sizes=chunk_sizes)
def test_costs_add_up(sizes):
    steps = plan(bounds_of(sizes), 7, 4, LIGHT)
    assert steps.n_rows == sum(sizes)
    assert steps.flops == 10.0 * sum(sizes)
    assert steps.bytes_read == 28 * sum(sizes)
    assert steps.chunk_rows == max(sizes, default=0)
    assert steps.chunk_bytes == 28 * max(sizes, default=0)
    assert steps.summary()["segments"] == len(steps.segments)
    assert steps.summary()["segment_rows"] == max((s.stop - s.start for s in steps.segments), default=0)


def test_columns_of_a_chunk_are_counted_as_its_rows_are():
    # fifty targets in float64 and two features in float32
    plain, wide = (plan(bounds_of([10, 30]), 2, 4, LIGHT, column_bytes=size) for size in (0, 400))
    assert wide.chunk_bytes == plain.chunk_bytes + 30 * 400
    assert wide.task_bytes == plain.task_bytes + 4 * 30 * 400
    assert wide.bytes_read == plain.bytes_read


@pytest.mark.parametrize("bounds", [(0, 10, 5, 20), (0, 10, 9, 20), (5, 10), (0, 10, 10, -1)])
def test_steps_that_overlap_or_leave_rows_out_are_refused(bounds):
    # a shifted boundary would count rows twice, or let two tasks write one chunk (F39)
    with pytest.raises(ValueError, match="bounds"):
        plan(bounds, 3, 4, LIGHT)


def test_a_plan_that_fits_exactly_is_accepted_and_one_byte_less_refused():
    steps = plan(bounds_of([10] * 20), 3, 4, LIGHT)
    needed = steps.worker_bytes(5000)
    assert needed == 5000 + steps.task_bytes
    steps.check(needed, 5000)
    with pytest.raises(PlanTooLargeError):
        steps.check(needed - 1, 5000)


def test_the_message_has_the_memory_needed_and_the_limit():
    steps = plan(bounds_of([1000] * 9), 1000, 8, Footprint(1.0, 2_000_000, 3_000_000))
    with pytest.raises(PlanTooLargeError) as caught:
        steps.check(40_000_000, 10_000_000)
    text = str(caught.value)
    assert f"needs {steps.worker_bytes(10_000_000) / 1e6:,.0f} MB" in text
    for phrase in ("10 for the process", "32 for rows", "3 for buffers", "results of 2 MB", "its limit of 40 MB"):
        assert phrase in text


@example(n_rows=24_000, chunk_rows=8000, share=0.6, partial=81_000)  # more segments: a deeper tree of merges
@given(
    n_rows=st.integers(1, 300_000),
    chunk_rows=st.integers(1, 60_000),
    share=st.floats(0.05, 0.99),
    partial=st.integers(1, 10**6),
)
def test_the_chunk_that_is_advised_fits_a_whole_input_cut_into_such_chunks(n_rows, chunk_rows, share, partial):
    footprint = Footprint(1.0, partial, 10 * partial)

    def planned(rows):
        return plan((*range(0, n_rows, rows), n_rows), 100, 1, footprint, min_segments=4)

    limit = int(share * planned(chunk_rows).task_bytes)
    with pytest.raises(PlanTooLargeError) as caught:
        planned(chunk_rows).check(limit, 0)
    advice = re.search(r"chunks of at most ([\d,]+) rows", str(caught.value))
    if advice:
        planned(int(advice[1].replace(",", ""))).check(limit, 0)


@pytest.mark.parametrize(("m", "share_of_memory"), [(1000, 0.8), (4000, 0.2)])
def test_the_landmarks_that_are_advised_fit(m, share_of_memory):
    def planned(m):
        features = LandmarkMap(Gaussian(1.0), np.eye(m, 784), np.dtype(np.float32))
        return plan(bounds_of([500] * 64), 784, 1, MomentStatistic(features, Targets(10)).footprint(2048))

    limit = int(share_of_memory * planned(m).task_bytes)
    with pytest.raises(PlanTooLargeError) as caught:
        planned(m).check(limit, 0)
    advice = re.search(r"about (\d+)% of the landmarks", str(caught.value))
    assert advice
    fewer = int(m * int(advice[1]) / 100)
    assert planned(fewer).task_bytes <= 1.1 * limit  # "about": some buffers do not depend on it


def held_by_one_worker(count):
    """Partials that a worker holds at most: it begins the next segment before the merge that a segment made due."""
    merges, held, due, most = Counter(), 0, [], 0  # merges by level, and the levels of those that are due
    for index in range(count + 1):
        if index < count:
            held += 1  # the one that it sums
            most = max(most, held)
        waiting = len(due)  # when the segment began; after the last one all
        while due and (waiting or index == count):
            most, held, waiting = max(most, held + 1), held - 1, waiting - 1  # the sum, and its inputs
            merges[level := due.pop(0)] += 1
            if merges[level] % 2 == 0:
                due.append(level + 1)
        if index % 2 and index < count:
            due.append(1)
    return most


@pytest.mark.parametrize("count", [1, 2, 8, 64, 1024])
def test_a_worker_holds_no_more_partials_than_were_counted(count):
    large = Footprint(1.0, partial_bytes=2**30, work_bytes=1)
    steps = plan(bounds_of([10] * count), 3, 4, large, min_segments=count)
    assert len(steps.segments) == count
    assert not steps.merges_bundled
    held = held_by_one_worker(count)
    assert held <= steps.partials_held(Sharing()) <= held + 1
    # of two workers each has half of them, and the sum of the last merge is of both
    assert held_by_one_worker(-(-count // 2)) <= steps.partials_held(Sharing(workers=2)) <= held + 1


def test_tasks_that_share_a_process_share_the_landmarks():
    alone = Footprint(1.0, partial_bytes=100, work_bytes=5000)
    shared = dataclasses.replace(alone, shared_bytes=4000)
    one, two = Sharing(1), Sharing(2)
    apart, together = (plan(bounds_of([10] * 8), 3, 4, cost) for cost in (alone, shared))
    assert apart.held_bytes(one) == together.held_bytes(one)
    assert apart.held_bytes(two) - together.held_bytes(two) == 4000


def test_partials_that_are_published_do_not_wait_in_memory():
    large = Footprint(1.0, partial_bytes=2**30, work_bytes=1)
    published = Sharing(published=True)
    few, many = (plan(bounds_of([10] * count), 3, 4, large, min_segments=count) for count in (4, 1024))
    assert few.held_bytes(published) == many.held_bytes(published)
    assert few.held_bytes(Sharing()) < many.held_bytes(Sharing())
    # two that are merged, and a copy of their sum on its way to the disk
    assert 3 * 2**30 <= many.held_bytes(published) < 3 * 2**30 + 10_000
