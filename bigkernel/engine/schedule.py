"""The schedule of a sweep: what of it is finished, damaged or waiting, and which merges are due.

It knows names and receipts alone; executors run the tasks and hold what these return.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bigkernel.storage.run_directory import Receipt, Run
from bigkernel.streaming.merge_tree import Merge, ancestors_of, covered, leaf, merge_tree, spans
from bigkernel.streaming.plan import Plan, Segment

BUNDLE = 4  # most segments whose merges are one task
SMALL_BYTES = 2**20  # of a partial: beside the process it is nothing


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

    @cached_property
    def bundles(self) -> dict[str, tuple[Merge, ...]]:
        """The merges that one task may do: those still to be done within a few segments, by the node that ends them."""
        covers, found = spans(len(self.plan.segments)), dict[str, tuple[Merge, ...]]()
        for merge in self._merges:
            node, left, right = merge
            first, stop = covers[node]
            if stop - first <= BUNDLE and not self._done(node):
                found[node] = (*found.pop(left, ()), *found.pop(right, ()), merge)
        return found

    def bundles_fit(self) -> bool:
        """Tell if a bundle that holds what it takes until it ends stays within `Plan.task_bytes`.

        Four partials wait then, and three sums are made of them: two more than where every merge is a task. They have
        the room that rows and buffers of a segment leave.
        """
        plan = self.plan
        return plan.partial_bytes <= max(SMALL_BYTES, (4 * plan.chunk_bytes + plan.work_bytes) // 2)

    def merge_batches(self, *, bundled: bool = False) -> Iterator[list[Merge]]:
        """All merges that are still to be done, in batches none of whose merges waits for another of its batch.

        `bundled`: but for those that are in `bundles`.
        """
        batch: dict[str, Merge] = {}
        inside = {node for merges in self.bundles.values() for node, _, _ in merges} if bundled else set[str]()
        for merge in self._merges:
            node, left, right = merge
            if self._done(node) or node in inside:
                continue
            if left in batch or right in batch:
                yield list(batch.values())
                batch = {}
            batch[node] = merge
        if batch:
            yield list(batch.values())

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


def spread(segments: Sequence[Segment], workers: int) -> list[Segment]:
    """The order in which segments are begun: each worker mostly meets neighbours, so that most merges move nothing.

    An order binds nobody to a task. (Dask's `workers=` does, `allow_other_workers` or not, once all of them have died.)
    """
    share = -(-len(segments) // max(1, workers))
    order = (first + i for i in range(share) for first in range(0, len(segments), share))
    return [segments[i] for i in order if i < len(segments)]


def longest_last_rounds(segments: Sequence[Segment], slots: int) -> list[Segment]:
    """The order in which so many threads begin segments: the last two rounds the longest first, to end together.

    Before them neighbours follow one another, so that few partials wait.
    """
    first = max(0, len(segments) - 2 * slots)
    last = sorted(segments[first:], key=lambda segment: segment.start - segment.stop)
    return [*segments[:first], *last]
