"""The schedule of a sweep: every merge once, after those it waits for, less what was finished before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bigkernel.engine.dask_executor import BUNDLE, bundle_merges, bundle_segments, spread
from bigkernel.engine.executor import Look, schedule
from bigkernel.engine.sweep import JobDirectory
from bigkernel.streaming.plan import Footprint, Plan, Receipt, leaf, plan, spans


def planned(count: int) -> Plan:
    """So many segments of two rows each."""
    return plan(range(0, 2 * count + 1, 2), 1, 8, Footprint(1.0, 8, 8), segment_rows=2)


@given(count=st.integers(1, 70), data=st.data())
def test_unfinished_segments_are_merged_once_in_batches_of_independent_merges(count, data):
    covers = spans(count)
    finished: dict[str, Receipt] = {}
    of_run: set[int] = set()
    for node in data.draw(st.lists(st.sampled_from(sorted(covers)), max_size=4)):
        inside = set(range(*covers[node]))
        if not inside & of_run:  # no usable node of a run contains another
            of_run |= inside
            finished[node] = Receipt(node, *covers[node])
    look = data.draw(st.none() | st.builds(Look, st.integers(1, 2 * count), st.none()))
    result = schedule(planned(count), finished, look)
    looked = result.first
    assert {segment.index for segment in result.waiting} == set(range(count)) - of_run
    # several segments may be one task with the merges within them, several merges one task
    most, at_once = data.draw(st.sampled_from([1, 2, 4, 16])), data.draw(st.sampled_from([2, BUNDLE]))
    subtrees = bundle_segments(result, most)
    assert [segment for subtree in subtrees for segment in subtree.segments] == list(result.waiting)
    there, done = set(finished), []
    for subtree in subtrees:
        assert len(subtree.segments) <= most
        within = [leaf(segment.index) for segment in subtree.segments]
        for node, left, right in subtree.merges:
            within = [name for name in within if name not in (left, right)] + [node]
            done.append(node)
        assert within == [subtree.node]
        there.add(subtree.node)
    batches = [*bundle_merges(result, subtrees, at_once)]
    assert not {*result.ancestors.get(looked, ())} & {node for batch in batches for one in batch for node, *_ in one}
    batches += bundle_merges(result, subtrees, at_once, looking=True)
    for batch in batches:
        before = set(there)  # the batch begins
        for merges in batch:
            assert len(merges) < at_once
            taken = {child for merge in merges for child in merge[1:]} - {node for node, _, _ in merges}
            assert taken <= before
            for node, left, right in merges:
                assert {left, right} <= there, node
                there = (there - {left, right}) | {node}
                done.append(node)
    assert [covers[node] for node in there] == [(0, count)]
    assert len(done) == len(set(done)) == len(finished) + len(result.waiting) - 1


def test_nodes_are_named_by_their_rows():
    result = schedule(planned(3))
    assert result.name_of("0-1") == "rows 2:4"
    assert result.name_of("1-0") == "the merge of rows 0:4"
    assert result.name_of("all") == "the job"
    assert result.segments_of("1-0") == ("0-0", "0-1")
    assert result.segments_of("0-2") == ("0-2",)
    assert result.segments_of("all") == ("all",)


@given(count=st.integers(0, 50), workers=st.integers(0, 9))
def test_workers_start_at_distant_segments(count, workers):
    segments = planned(count).segments if count else ()
    order = spread(segments, workers)
    assert sorted(order, key=lambda segment: segment.index) == list(segments)
    share = -(-count // max(1, workers))
    starts = list(range(0, count, share or 1))
    assert [segment.index for segment in order[: len(starts)]] == starts


def test_a_forgotten_sweep_begins_anew_in_its_place(tmp_path):
    job = JobDirectory(str(tmp_path), resume=False)
    first, second = job.next("score"), job.next("score")
    assert (first, second) == (tmp_path / "score", tmp_path / "score-2")
    second.mkdir()
    job.forget("score")
    assert not second.exists()
    assert job.next("score") == second
    job.forget("predict")  # none has begun
    assert job.next("predict") == tmp_path / "predict"
