"""The schedule of a sweep: what of it is finished, damaged or waiting, and which merges are due.

It knows names and receipts alone; executors run the tasks and hold what these return.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from bigkernel.data.run_directory import Receipt, Run
from bigkernel.streaming.merge_tree import Merge, ancestors_of, covered, leaf, merge_tree, spans
from bigkernel.streaming.plan import Plan, Segment

TASK_SECONDS = 10.0  # of a task of several segments at most, where a processor does what follows in a second
_FLOPS_PER_SECOND = 1e11
_BYTES_PER_SECOND = 5e8  # of rows, decoded
MOST_SEGMENTS = 16  # of one task
ROUNDS = 8  # least tasks of segments for every slot, so that all slots end at about the same time
BUNDLE = 4  # most partials that one task merges
T = TypeVar("T")


@dataclass(frozen=True)
class Subtree:
    """Neighbouring segments that one task computes, and their merges, children before parents, up to `node`."""

    node: str
    segments: tuple[Segment, ...]
    merges: tuple[Merge, ...]


@dataclass(frozen=True)
class Schedule:
    """The segments and merges of a plan, and what a run held of them when the sweep began.

    Attributes
    ----------
    plan : Plan
    finished : by name, the receipts of nodes that were usable, none of which contains another
    recovered : receipts of the segments that these cover, in order
    damaged : by name, what is wrong with nodes that were there and are computed again
    """

    plan: Plan
    finished: Mapping[str, Receipt]
    recovered: tuple[Receipt, ...]
    damaged: Mapping[str, str]

    @cached_property
    def _merges(self) -> list[Merge]:
        return merge_tree(len(self.plan.segments))

    @cached_property
    def _ancestors(self) -> dict[str, tuple[str, ...]]:
        return ancestors_of(self._merges)

    @cached_property
    def _merge_above(self) -> dict[str, Merge]:
        """By the name of a node, the merge that takes it."""
        return {child: merge for merge in self._merges for child in merge[1:]}

    @cached_property
    def _covers(self) -> dict[str, tuple[int, int]]:
        """By the name of a node, the first segment that it covers and one past the last."""
        return spans(len(self.plan.segments))

    @cached_property
    def _spans(self) -> dict[str, tuple[int, int]]:
        """By the name of a node, the rows that it covers."""
        spans = {leaf(segment.index): (segment.start, segment.stop) for segment in self.plan.segments}
        for node, left, right in self._merges:
            spans[node] = spans[left][0], spans[right][1]
        return spans

    def ancestors(self, node: str) -> tuple[str, ...]:
        """The nodes that contain a node, nearest first."""
        return self._ancestors.get(node, ())

    def waiting(self) -> tuple[Segment, ...]:
        """The segments that are still to be computed, in order."""
        return tuple(segment for segment in self.plan.segments if not self._done(leaf(segment.index)))

    def merge_due(self, node: str, held: Container[str]) -> Merge | None:
        """The merge that takes a node, if both of its children are `held` now."""
        merge = self._merge_above.get(node)
        return merge if merge is not None and merge[1] in held and merge[2] in held else None

    def segments_a_task(self, slots: int) -> int:
        """Segments that one task computes, where so many tasks run at once."""
        plan = self.plan
        flops, stored = (total / max(1, len(plan.segments)) for total in (plan.flops, plan.bytes_read))
        return segments_a_task(flops, stored, len(self.waiting()), slots)

    def subtrees(self, most: int) -> list[Subtree]:
        """The segments that are still to be computed, in order, together where the tree merges up to `most` of them."""
        covers, found = self._covers, {leaf(s.index): Subtree(leaf(s.index), (s,), ()) for s in self.waiting()}
        for merge in self._merges:
            node, left, right = merge
            first, stop = covers[node]
            if stop - first <= most and left in found and right in found and not self._done(node):
                a, b = found.pop(left), found.pop(right)
                found[node] = Subtree(node, (*a.segments, *b.segments), (*a.merges, *b.merges, merge))
        return sorted(found.values(), key=lambda subtree: subtree.segments[0].index)

    def merge_tasks(self, subtrees: Sequence[Subtree], most: int) -> Iterator[list[tuple[Merge, ...]]]:
        """The merges that are left beside `subtrees`, in batches none of whose tasks waits for another of its batch.

        A task is up to `most` - 1 merges, children before parents, the last of which is the parent of all.
        """
        inside = {merge[0] for subtree in subtrees for merge in subtree.merges}
        due = [merge for merge in self._merges if merge[0] not in inside and not self._done(merge[0])]
        tasks: dict[str, tuple[Merge, ...]] = {}
        for merge in due:
            node, left, right = merge
            # a task of j merges takes j + 1 partials; one that is full is an input itself
            below = [tasks[child] for child in (left, right) if child in tasks]
            if sum(len(merges) for merges in below) + 2 <= most:
                for child in (left, right):
                    tasks.pop(child, None)
                tasks[node] = tuple(one for merges in below for one in merges) + (merge,)
            else:
                tasks[node] = (merge,)
        batch: dict[str, tuple[Merge, ...]] = {}
        for node, merges in tasks.items():
            if any(child in batch for merge in merges for child in merge[1:]):
                yield list(batch.values())
                batch = {}
            batch[node] = merges
        if batch:
            yield list(batch.values())

    def merged_at_once(self) -> int:
        """Partials that one task may merge, which holds what it takes until it ends, within what the plan announces."""
        return BUNDLE if self.plan.merges_bundled else 2

    def segments_of(self, node: str) -> tuple[str, ...]:
        """The names of the segments that a node covers; its own where it is of no tree."""
        return tuple(leaf(i) for i in range(*self._covers[node])) if node in self._covers else (node,)

    def rows_of(self, node: str) -> tuple[int, int]:
        """The rows start … stop that a node covers."""
        return self._spans[node]

    def name_of(self, node: str) -> str:
        """A node in words, for people."""
        if node not in self._spans:
            return "the job itself"
        start, stop = self._spans[node]
        return f"rows {start}:{stop}" if node.startswith("0-") else f"the merge of rows {start}:{stop}"

    def _done(self, node: str) -> bool:
        return covered(node, self.finished, self._ancestors)


def schedule(plan: Plan, run: Run | None) -> Schedule:
    """The schedule of a plan, less what the run holds already; receipts that promise more than there is are removed."""
    if run is None:
        return Schedule(plan, {}, (), {})
    leaves, merges = [leaf(segment.index) for segment in plan.segments], merge_tree(len(plan.segments))
    finished, damaged = run.usable(merges, leaves)
    above = ancestors_of(merges)
    recovered = tuple(
        run.receipt(node) or Receipt(node, segment.start, segment.stop, resumed=True)
        for node, segment in zip(leaves, plan.segments, strict=True)
        if covered(node, finished, above)
    )
    return Schedule(plan, finished, recovered, damaged)


def segments_a_task(flops: float, stored: float, segments: float, slots: int) -> int:
    """Segments that one task computes, each of so many flops and bytes of rows: 1, 2, 4, 8 or 16.

    A task costs the scheduler the same however much it does, and a lost worker costs at most one task's segments (with
    a run, the one that it was at). So several short segments are one task, reckoned from the plan and not from a clock.
    The sums do not depend on it: the tree of merges is the same.

    Parameters
    ----------
    flops, stored : of a segment; bytes of its rows, decoded
    segments : that are to be computed
    slots : tasks that run at once, each of which has `ROUNDS` at least
    """
    seconds = max(flops / _FLOPS_PER_SECOND + stored / _BYTES_PER_SECOND, 1e-9)
    most = int(min(MOST_SEGMENTS, TASK_SECONDS / seconds, segments / (ROUNDS * max(1, slots))))
    return 1 << max(0, most.bit_length() - 1)


def spread(tasks: Sequence[T], workers: int) -> list[T]:
    """The order in which tasks are begun: each worker mostly meets neighbours, so that most merges move nothing.

    An order binds nobody to a task. (Dask's `workers=` does, `allow_other_workers` or not, once all of them have died.)
    """
    share = -(-len(tasks) // max(1, workers))
    order = (first + i for i in range(share) for first in range(0, len(tasks), share))
    return [tasks[i] for i in order if i < len(tasks)]
