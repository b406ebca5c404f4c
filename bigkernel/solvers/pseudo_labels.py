"""Source and target of a fit or of the splits of a search, and pseudo-labels of the target as sums of features.

The rows of a target domain have no labels. A round of joint distribution adaptation or adaptation regularization needs
of them only, with f(x) = φ(x)ᵀW + b and Q = softmax(f·slope) for each row,
    T = Σ w φ Qᵀ (p×c),   q = Σ w Q (c),   the mean entropy of Q,
which one sweep of the target gives; labels are not stored.

A split of a search is a fit without the labels of its test rows: a domain without any remaining label is the target,
with all its rows; labelled rows of other domains are the source, and their unlabelled rows are left out. Folds of
source rows thus share a target, and a domain whose rows a split tests completely is its target. Rows with the same role
in every split form a group, so that the sums of a split are sums of groups.
Shapes: p columns of φ, c classes, b rows of a block, G domains, g groups, F splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.feature_maps import FeatureMap, WithoutCaches
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import Cells
from bigkernel.statistics.moments import weights_of
from bigkernel.statistics.predictor import softmax
from bigkernel.statistics.statistic import BlockStatistic, Shapes
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.plan import Accumulator, Footprint

_SAME = 1e-3  # difference of log Q up to which two classes count as equally likely
_OF_LABELS = ("C", "t", "q")
_OF_GRAPH = ("anchors", "degrees")
_HARD = 1e100  # stands for an infinite slope


@dataclass(frozen=True, eq=False)
class SourceTarget:
    """Assigns rows to source and target by domain."""

    cells: Cells  # of the rows
    source: Array  # (G,) bool, the domains with labels; the others are the target

    def split(self, chunk: Chunk) -> tuple[Array, Array]:
        """Return the positions of the target's rows and of the labelled rows of the source, sorted.

        Unlabelled rows of a source domain are in neither.
        """
        label = self.cells.label(chunk)
        in_source = self.source[self.cells.domain(chunk, label=label)]
        return np.flatnonzero(~in_source), np.flatnonzero(in_source & (label < self.cells.n_classes))


def label_slots(cells: Cells, folds: Folds, chunk: Chunk) -> Array:
    """Return domain·(F + 2) + slot of each row, (n,): slot 0 without a usable label, 1 in no fold, 2 + f in fold f."""
    label, fold = cells.label(chunk), folds.of(chunk)
    slot = np.where((label < cells.n_classes) & (fold >= -1), fold + 2, 0)
    return cells.domain(chunk, label=label) * (folds.count + 2) + slot


@dataclass(frozen=True, eq=False)
class SourceTargetSplits:
    """The roles of rows in each split; the last split, number F, uses all labels and tests nothing."""

    cells: Cells  # of the rows
    folds: Folds
    source: Array  # (F + 1, G) bool, the domains that are the source
    group: Array  # (G·(F + 2),) the group of a slot (`label_slots`); −1: unused
    targets: Array  # (g, F + 1) bool, whether a group is in the target of a split,
    sources: Array  # in its source,
    tested: Array  # or among its test rows

    @classmethod
    def of(cls, cells: Cells, folds: Folds, counts: Array) -> SourceTargetSplits:
        """Build the splits from the number of rows of each slot, (G, F + 2)."""
        F, slots = folds.count, np.arange(folds.count + 2)
        own = slots[:, None] == np.arange(F + 1) + 2  # (slot, split): tested there
        own[:, F] = False
        trained = (slots > 0)[:, None] & ~own
        source = ((counts > 0) @ trained > 0).T  # (F + 1, G)
        groups: dict[bytes, tuple[int, Array]] = {}
        group = np.full(counts.shape, -1)
        for domain, slot in zip(*np.nonzero(counts), strict=True):
            roles = np.stack([~source[:, domain], source[:, domain] & trained[slot], own[slot]])
            if roles.any():
                group[domain, slot], _ = groups.setdefault(roles.tobytes(), (len(groups), roles))
        targets, sources, tested = np.stack([roles for _, roles in groups.values()], axis=1)
        return cls(cells, folds, source, group.ravel(), targets, sources, tested)

    def sides(self, split: int) -> SourceTarget:
        """Return source and target of a split."""
        return SourceTarget(self.cells, self.source[split])

    @property
    def labelled(self) -> Array:
        """(g,) bool, the groups whose labels some split reads; all their rows have one."""
        return np.asarray((self.sources | self.tested).any(axis=1))

    def has_both(self, split: int) -> bool:
        """Return whether a split has rows of a source and of a target."""
        return bool(self.sources[:, split].any() and self.targets[:, split].any())

    def split_sums(self, total: Accumulator, split: int) -> Accumulator:
        """Return the sums of a split as in a fit to it: target and source, and the graph of both."""
        sides = np.stack([self.targets[:, split], self.sources[:, split]])
        plain = {name: values for name, values in total.items() if name not in _OF_GRAPH}
        sums = {name: np.stack([values[side].sum(axis=0) for side in sides]) for name, values in plain.items()}
        for name in _OF_LABELS:  # labels of the target are not read
            sums[name][0] = 0
        return sums | {name: total[name][sides.any(axis=0)].sum(axis=0) for name in _OF_GRAPH if name in total}

    def test_sums(self, total: Accumulator, split: int) -> Accumulator:
        """Return the sums of the test rows of a split, as one group."""
        here = self.tested[:, split]
        return {
            name: values[here].sum(axis=0, keepdims=True) for name, values in total.items() if name not in _OF_GRAPH
        }


def soft_labels(values: Array, slope: float) -> Array:
    """Compute Q = softmax(slope·f) of values f (b, c); for an infinite slope, 1 at the largest."""
    if np.isinf(slope):
        hard = np.zeros(values.shape)
        hard[np.arange(len(values)), values.argmax(axis=1)] = 1
        return hard
    return softmax(values, slope)


@dataclass(frozen=True, eq=False)
class Decision:
    """f(x) = φ(x)ᵀW + b over the columns of a map: `coef` (p, c) and `intercept` (c,)."""

    coef: Array
    intercept: Array


@dataclass(frozen=True, eq=False)
class LabelQuery:
    """A request for pseudo-labels by a decision, on its target."""

    sides: SourceTarget
    decision: Decision
    slope: float  # factor of f; ∞: hard labels
    before: Decision | None = None  # f of the round before; None: every label is new

    @property
    def n_classes(self) -> int:
        """The number of classes, c."""
        return int(self.decision.coef.shape[1])

    def add(self, total: Accumulator, phi: Array, weights: Array, weight: Array) -> None:
        """Add the features phi (b, p) of a block of the target, with weights (b,).

        `weights` are the coefficients of both decisions side by side, in the dtype of the features.
        """
        c = self.n_classes
        both = (phi @ weights).astype(np.float64)
        values = both[:, :c] + self.decision.intercept
        labels = soft_labels(values, self.slope)
        changed: Array = np.ones(len(phi), bool)
        if self.before is not None:
            rows, was = np.arange(len(values)), (both[:, c:] + self.before.intercept).argmax(axis=1)
            changed = (values.max(axis=1) - values[rows, was]) * min(self.slope, _HARD) > _SAME
        # 0·log 0 = 0
        entropy = -(labels * np.log(np.where(labels > 0, labels, 1))).sum(axis=1)
        total["n"] += weight.sum()
        total["entropy"] += weight @ entropy
        total["changed"] += weight @ changed
        labels *= weight[:, None]
        total["q"] += labels.sum(axis=0)
        total["T"] += phi.T @ labels.astype(phi.dtype)


@dataclass(frozen=True, eq=False)
class JointPseudoLabels(WithoutCaches, BlockStatistic):
    """Sums of the target's features by predicted class, for several decisions over one map, from one sweep.

    Accumulates, with decisions along the first axis, `T` (p, c), `q` (c,), and `n` (the sum of weights),
    `entropy` (Σ −w Q log Q, in nats) and `changed` (the weight of rows whose predicted class differs from the round
    before by more than rounding), over the target.
    """

    features: FeatureMap  # a single map of width p
    queries: tuple[LabelQuery, ...]  # at least one

    @cached_property
    def _weights(self) -> list[Array]:
        both = [[one.decision.coef, *([] if one.before is None else [one.before.coef])] for one in self.queries]
        return [np.hstack(coef).astype(self.features.dtype) for coef in both]

    @cached_property
    def _same_target(self) -> list[list[int]]:
        """Positions of decisions on the same target."""
        groups: dict[bytes, list[int]] = {}
        for place, one in enumerate(self.queries):
            groups.setdefault(one.sides.source.tobytes(), []).append(place)
        return list(groups.values())

    def shapes(self) -> Shapes:
        k, p, c = len(self.queries), self.features.width, self.queries[0].n_classes
        return {"T": (k, p, c), "q": (k, c), **dict.fromkeys(("n", "entropy", "changed"), (k,))}

    def footprint(self, block_rows: int) -> Footprint:
        cost, itemsize = self.features.cost, self.features.dtype.itemsize
        p, c = self.features.width, self.queries[0].n_classes
        columns = [c if one.before is None else 2 * c for one in self.queries]
        return self.block_cost(
            block_rows,
            # the block is computed anew for each further target
            flops=cost.flops_per_row * (len(self._same_target) - 1) + sum(2 * p * (count + c) for count in columns),
            # the values of both decisions in either dtype, Q, its logarithm and its weighted copies
            row_bytes=max(columns) * (itemsize + 8) + c * (4 * 8 + itemsize) + 5 * 8,
            work_bytes=p * (sum(columns) + c) * (8 + itemsize),
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        for places in self._same_target:
            target, _ = self.queries[places[0]].sides.split(chunk)
            everything = len(target) == len(chunk)
            for block in chunk.blocks(None if everything else target):
                phi = chunk.work.device.to_host(*self.features.blocks(chunk, block))
                weight = weights_of(chunk, block)
                with chunk.work.stage("predict"):
                    for place in places:
                        own = {name: values[place, ...] for name, values in total.items()}
                        self.queries[place].add(own, phi, self._weights[place], weight)

    def labels(self, total: Mapping[str, Array], shift: Array | None = None) -> list[PseudoLabels]:
        """Return the pseudo-labels of each decision, from the sums of φ − shift."""
        return [
            PseudoLabels.of({name: values[place] for name, values in total.items()}, shift)
            for place in range(len(self.queries))
        ]


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Sums over the target by predicted class: `sums` T (p, c), `counts` q (c,), and how far to trust the labels."""

    sums: Array
    counts: Array
    entropy: float = 0.0  # mean of −Σ Q log Q per row, in nats
    changed: float = 1.0  # share of the rows whose predicted class differs from the round before
    congruence: float | None = None  # of the class means with those of the source (`adaptation.congruence`)

    @classmethod
    def of(cls, total: Mapping[str, Array], shift: Array | None = None) -> PseudoLabels:
        """Build from the sums of φ − shift."""
        n, q = max(float(total["n"]), 1e-300), total["q"]
        sums = total["T"] if shift is None else total["T"] + np.outer(shift.astype(np.float64), q)
        return cls(sums, q, float(total["entropy"]) / n, float(total["changed"]) / n)

    def reduce(self, whitening: Whitening) -> PseudoLabels:
        """Return the sums of whitened features."""
        return replace(self, sums=whitening.reduce(self.sums))

    @property
    def conditional_entropy(self) -> float:
        """Normalized conditional entropy H(class | row)/H(class) of labels, from 0 (certain) to 1 (Shannon 1948).

        It is 1 if labels are uniform and also if all rows are in one class, the two ways in which labels collapse.
        """
        share = self.counts[self.counts > 0] / max(float(self.counts.sum()), 1e-300)
        of_classes = float(-(share * np.log(share)).sum())
        return min(1.0, self.entropy / of_classes) if of_classes > 1e-12 else 1.0
