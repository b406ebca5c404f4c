"""Source and target in every split of a search: rows by what the splits make of them, and their sums from one sweep.

A split hides the labels of the rows that it tests, and is a fit to the labels that are left: a domain without any of
these is the target, all its rows; labelled rows of the others are the source, and those without a label are left out.
So folds of source rows share a target, and where a split tests all of a domain, that domain is the target. Rows of
which every split makes the same are one group, so that the sums of each split are sums of groups.

Shapes: g groups, F splits, G domains, k classes, p columns of the map.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.solvers.anchor_graph import AnchorMomentStatistic
from bigkernel.solvers.pseudo_labels import Sides
from bigkernel.statistics.domain_cells import Cells
from bigkernel.statistics.moments import MomentStatistic
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.plan import Accumulator, Footprint

_OF_LABELS = ("C", "t", "q")
_OF_GRAPH = ("anchors", "degrees")


def label_slots(cells: Cells, folds: Folds, chunk: Chunk) -> Array:
    """domain·(F + 2) + slot of each row, (n,): slot 0 without a label that counts, 1 of no fold, 2 + f of fold f."""
    label, fold = cells.label(chunk), folds.of(chunk)
    slot = np.where((label < cells.n_classes) & (fold >= -1), fold + 2, 0)
    return cells.domain(chunk, label=label) * (folds.count + 2) + slot


@dataclass(frozen=True, eq=False)
class SplitSides:
    """What each split makes of the rows; the last, number F, is of all labels and tests nothing."""

    cells: Cells  # of the rows
    folds: Folds
    source: Array  # (F + 1, G) bool, the domains that are the source
    group: Array  # (G·(F + 2),) the group of a slot (`label_slots`), −1: no split needs its rows
    targets: Array  # (g, F + 1) bool, whether a split has the rows of a group in its target,
    sources: Array  # in its source,
    tested: Array  # or tests them

    @classmethod
    def of(cls, cells: Cells, folds: Folds, counts: Array) -> SplitSides:
        """From the number of rows of each slot, (G, F + 2)."""
        F, slots = folds.count, np.arange(folds.count + 2)
        own = slots[:, None] == np.arange(F + 1) + 2  # (slot, split): tested there
        own[:, F] = False
        trained = (slots > 0)[:, None] & ~own
        source = ((counts > 0) @ trained > 0).T  # (F + 1, G)
        found: dict[bytes, tuple[int, Array]] = {}
        group = np.full(counts.shape, -1)
        for domain, slot in zip(*np.nonzero(counts), strict=True):
            roles = np.stack([~source[:, domain], source[:, domain] & trained[slot], own[slot]])
            if roles.any():
                group[domain, slot], _ = found.setdefault(roles.tobytes(), (len(found), roles))
        targets, sources, tested = np.stack([roles for _, roles in found.values()], axis=1)
        return cls(cells, folds, source, group.ravel(), targets, sources, tested)

    def sides(self, split: int) -> Sides:
        """Source and target of a split."""
        return Sides(self.cells, self.source[split])

    @property
    def labelled(self) -> Array:
        """(g,) the groups whose labels some split reads; all their rows have one."""
        return np.asarray((self.sources | self.tested).any(axis=1))

    def has_both(self, split: int) -> bool:
        """Whether a split has rows of a source and of a target."""
        return bool(self.sources[:, split].any() and self.targets[:, split].any())

    def part(self, total: Accumulator, split: int) -> Accumulator:
        """The sums of a split as a fit of its own has them: target and source, and the graph of both."""
        sides = np.stack([self.targets[:, split], self.sources[:, split]])
        plain = {name: values for name, values in total.items() if name not in _OF_GRAPH}
        found = {name: np.stack([values[side].sum(axis=0) for side in sides]) for name, values in plain.items()}
        for name in _OF_LABELS:  # of the target none is read
            found[name][0] = 0
        return found | {name: total[name][sides.any(axis=0)].sum(axis=0) for name in _OF_GRAPH if name in total}

    def tests(self, total: Accumulator, split: int) -> Accumulator:
        """The sums of the rows that a split tests, one group."""
        here = self.tested[:, split]
        return {
            name: values[here].sum(axis=0, keepdims=True) for name, values in total.items() if name not in _OF_GRAPH
        }


@dataclass(frozen=True, eq=False)
class SplitMomentStatistic(AnchorMomentStatistic):
    """The moments of each group of rows, and with `neighbours` > 0 its anchors: A (g, m, p) and δ (g, m)."""

    splits: SplitSides = field(kw_only=True)

    @property
    def groups(self) -> int:
        """g."""
        return len(self.splits.targets)

    def zero(self) -> Accumulator:
        if not self.neighbours:
            return MomentStatistic.zero(self)
        graph = {name: values for name, values in super().zero().items() if name in _OF_GRAPH}
        by_group = {name: np.zeros((self.groups, *values.shape)) for name, values in graph.items()}
        return MomentStatistic.zero(self) | by_group

    def footprint(self, block_rows: int) -> Footprint:
        if not self.neighbours:
            return MomentStatistic.footprint(self, block_rows)
        p, one = self.features.width, super().footprint(block_rows)
        return replace(one, partial_bytes=one.partial_bytes + (self.groups - 1) * 8 * (p * p + p))

    def _split(self, chunk: Chunk) -> list[Array | None]:
        group = self.splits.group[label_slots(self.splits.cells, self.splits.folds, chunk)]
        parts = [np.flatnonzero(group == number) for number in range(self.groups)]
        return [None if len(part) == len(chunk) else part for part in parts]

    def _encode(self, chunk: Chunk, block: slice | Array, group: int, values: Array) -> None:
        if self.splits.labelled[group]:
            assert self.targets is not None
            assert chunk.y is not None
            self.targets.encode(chunk.y[block], values)
        else:
            values[...] = 0

    def _look(self, total: Accumulator, group: int, chunk: Chunk, block: slice | Array, phi: Array) -> None:
        if self.neighbours:
            super()._look(total, group, chunk, block, phi)

    def _add_anchors(self, total: Accumulator, group: int, A: Array, degrees: Array) -> None:
        total["anchors"][group] += A
        total["degrees"][group] += degrees
