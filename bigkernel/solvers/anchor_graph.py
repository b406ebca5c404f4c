"""The anchor graph: similarity of rows through their nearest landmarks.

Every row has weights p (of sum 1) on its k nearest landmarks, its anchors. The similarity of rows is by shared anchors,
W = P diag(δ)⁻¹ Pᵀ with δ = Pᵀ1, so that the graph Laplacian I − W of n rows needs no n×n matrix:
    Φᵀ(I − W)Φ = G − Aᵀ diag(δ)⁻¹ A,   A = PᵀΦ (m×p),
two more additive statistics of the sweep that gives G = ΦᵀΦ. Liu, He & Chang, "Large graph construction for scalable
semi-supervised learning" (ICML 2010). Shapes: b rows of a block, m landmarks, p columns of φ, k anchors per row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy import sparse

from bigkernel.arrays import Array, Index
from bigkernel.kernels.algebra import strips
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.solvers.pseudo_labels import SourceTarget, SourceTargetSplits, label_slots
from bigkernel.statistics.moments import MomentStatistic, weights_of
from bigkernel.statistics.statistic import Shapes
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint


def anchor_weights(
    values: Array, of_landmarks: Array, count: int, *, of_rows: Array | float = 1.0
) -> tuple[Array, Array]:
    """Return the `count` nearest landmarks of every row (b, k), nearest first, and the weights on them, of sum 1.

    From `values` k(x, Z) (b, m) in float64, k(z, z) `of_landmarks` (m,) and k(x, x) `of_rows`. Distances are those of
    the kernel's space, d² = k(x,x) + k(z,z) − 2k(x,z); the weights are e^{−2d²/d²_max}, d²_max that of the farthest of
    the k, divided by their sum. (The distance of the rows themselves, for the Gaussian, gives the same accuracies on
    digits to .2 points.) Landmarks whose k(x,z) agree to seven digits are equally near, and the first is nearest:
    rounding, which differs between processors, does not choose among them.
    """
    # d² is least where 2k(x,z) − k(z,z) is largest; a constant k(z,z) leaves the digits of a small k(x,z)
    largest = of_landmarks.max()
    exact = 2 * values + (largest - of_landmarks)
    score = exact.copy()
    bits = score.view(np.int64)  # rounded to 24 of 53 bits
    bits += 1 << 28
    bits &= -(1 << 29)
    places, rows = np.empty((len(values), count), np.int64), np.arange(len(values))
    for k in range(count):  # a few passes of argmax cost less than a partial sort
        places[:, k] = score.argmax(axis=1)
        score[rows, places[:, k]] = -np.inf
    # d² = k(x,x) + k(z,z) − 2k(x,z) of the chosen ones
    nearness = np.take_along_axis(exact, places, axis=1) - largest
    squares = np.maximum(np.broadcast_to(of_rows, len(values))[:, None] - nearness, 0)
    farthest = squares.max(axis=1, keepdims=True)
    # equal weights for a row that coincides with all k of them
    weights: Array = np.exp(-2 * np.divide(squares, farthest, out=np.zeros_like(squares), where=farthest > 0))
    weights /= weights.sum(axis=1, keepdims=True)
    return places, weights


@dataclass(frozen=True, eq=False)
class SourceTargetStatistic(MomentStatistic):
    """Moments of the target's rows (group 0) and of the labelled rows of the source (group 1, C by class).

    With `neighbours` k > 0 also `anchors` A (m, p) = Σ w p φᵀ and `degrees` δ (m,) = Σ w p, of all rows. The landmarks
    of the map are the anchors: p = m. A is of φ − shift, as G is; the Laplacian does not depend on a shift, because its
    rows sum to 0.
    """

    unlabelled: str = "keep"
    sides: SourceTarget | None = None  # None: labelled rows are the source, all others the target
    neighbours: int = 0  # k
    apart: ClassVar[bool] = False  # whether A and δ are summed by group of rows, the first axis

    def shapes(self) -> Shapes:
        p, lead = self.features.width, (self.groups,) if self.apart else ()
        graph = {"anchors": (*lead, p, p), "degrees": (*lead, p)} if self.neighbours else {}
        return {**super().shapes(), **graph}

    def footprint(self, block_rows: int) -> Footprint:
        plain, p, k = super().footprint(block_rows), self.features.width, self.neighbours
        if not k:
            return plain
        # a float64 copy of the block; per row: places, distances and weights; the product, before it is added
        work = block_rows * (8 * p + k * 9 * 8 + 3 * 8) + 8 * p * p
        # landmarks prepared in float64, and four strips of values to choose neighbours from
        strip_rows = strips(np.broadcast_to(np.zeros(()), (block_rows, p)))[0].stop
        work += self._exact.cost.fixed_bytes + min(strip_rows, block_rows) * (4 * 8 * p + self._exact.cost.row_bytes)
        return replace(
            plain,
            flops_per_row=plain.flops_per_row + self._exact.cost.flops_per_row + p * (k + 2) + 2 * k * p,
            work_bytes=plain.work_bytes + work,
        )

    def _split(self, chunk: Chunk) -> list[Array | None]:
        if self.sides is None:
            return super()._split(chunk)
        target, source = self.sides.split(chunk)
        groups = [target, source]
        if self.folds is not None:
            fold = self.folds.of(chunk)[source]
            groups = [target, *(source[fold == number] for number in (*range(self.folds.count), -1))]
        return [None if len(group) == len(chunk) else group for group in groups]

    def _add_block(self, total: Accumulator, group: int, chunk: Chunk, block: Index, phi: Array) -> None:
        if not self.neighbours:
            return
        places, weights = self._nearest(chunk, block)
        weights *= weights_of(chunk, block)[:, None]
        (b, k), m = places.shape, self.features.width
        # in float64, because the Laplacian is a difference in which rounding of A does not cancel
        dense = chunk.on_host().work.buffer("anchored", tuple(phi.shape), np.float64)
        np.copyto(dense, chunk.work.device.to_host(phi))
        P = sparse.csr_array((weights.ravel(), places.ravel(), np.arange(0, b * k + 1, k)), shape=(b, m))
        at = group if self.apart else ...
        total["anchors"][at] += P.T @ dense
        total["degrees"][at] += np.bincount(places.ravel(), weights.ravel(), m)

    @cached_property
    def _exact(self) -> LandmarkMap:
        """The map in float64, so that the graph does not depend on the dtype of blocks."""
        assert isinstance(self.features, LandmarkMap)
        return replace(self.features, dtype=np.dtype(np.float64), shift=None)

    def _nearest(self, chunk: Chunk, block: Index) -> tuple[Array, Array]:
        """Compute the `anchor_weights` of the rows of a block."""
        exact, at, chunk = self._exact, np.arange(len(chunk))[block], chunk.on_host()
        kernel, of_landmarks = exact.kernel, exact.kernel.diag(exact.landmarks)
        places, weights = np.empty((len(at), self.neighbours), np.int64), np.empty((len(at), self.neighbours))
        values = chunk.work.buffer("anchored", (len(at), exact.width), np.float64)
        for strip in strips(values):
            own = 1.0 if kernel.of_distance else exact.diagonal(chunk, at[strip])
            rows = chunk.load(at[strip], len(exact.prepared.weights), exact.dtype)
            exact.prepared.place(rows)
            exact.prepared.multiply(rows, values[strip])
            exact.prepared.value(values[strip])
            places[strip], weights[strip] = anchor_weights(values[strip], of_landmarks, self.neighbours, of_rows=own)
        return places, weights


def add_anchors(statistic: MomentStatistic, neighbours: int) -> SourceTargetStatistic:
    """Return a statistic of the same moments and the anchors of all rows."""
    given = {one.name: getattr(statistic, one.name) for one in fields(statistic)}
    return SourceTargetStatistic(**given | {"neighbours": neighbours})


@dataclass(frozen=True, eq=False)
class SplitMomentStatistic(SourceTargetStatistic):
    """Moments of each group of rows, and with `neighbours` > 0 its anchors: A (g, m, p) and δ (g, m)."""

    splits: SourceTargetSplits = field(kw_only=True)
    apart: ClassVar[bool] = True

    @property
    def groups(self) -> int:
        return len(self.splits.targets)

    def _split(self, chunk: Chunk) -> list[Array | None]:
        group = self.splits.group[label_slots(self.splits.cells, self.splits.folds, chunk)]
        rows = [np.flatnonzero(group == number) for number in range(self.groups)]
        return [None if len(own) == len(chunk) else own for own in rows]

    def _is_labelled(self, group: int) -> bool:
        return bool(self.splits.labelled[group])


def laplacian(G: Array, A: Array, degrees: Array) -> Array:
    """Compute Φᵀ(I − P diag(δ)⁻¹ Pᵀ)Φ = G − Aᵀ diag(δ)⁻¹ A, (r, r), from G (r, r) of all rows, A (m, r) and δ (m,)."""
    used = degrees > 0
    half = A[used] / np.sqrt(degrees[used])[:, None]
    L: Array = G - half.T @ half
    return (L + L.T) / 2
