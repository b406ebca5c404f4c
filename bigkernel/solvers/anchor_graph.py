"""The anchor graph: how rows resemble one another, through their nearest landmarks.

Every row is written on its k nearest landmarks, with weights p (row sum 1). Two rows are as similar as the anchors that
they share, W = P diag(δ)⁻¹ Pᵀ with δ = Pᵀ1, so that the graph Laplacian I − W of n rows needs no n×n matrix:
    Φᵀ(I − W)Φ = G − Aᵀ diag(δ)⁻¹ A,   A = PᵀΦ (m×p),
two more additive statistics of the sweep that gives G = ΦᵀΦ. Liu, He & Chang, "Large graph construction for scalable
semi-supervised learning" (ICML 2010). Shapes: b rows of a block, m landmarks, p columns of φ, k anchors a row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.blocks import strips
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.solvers.jda import SidedMomentStatistic
from bigkernel.solvers.pseudo_labels import weights_of
from bigkernel.statistics.moments import MomentStatistic
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

Array = NDArray[Any]


def anchor_weights(
    block: Array, of_landmarks: Array, count: int, *, shift: Array | None = None, of_rows: Array | float = 1.0
) -> tuple[Array, Array]:
    """The `count` nearest landmarks of every row (b, k), nearest first, and the row's weights on them (b, k), of sum 1.

    Distances are those of the kernel's space, d² = k(x,x) + k(z,z) − 2k(x,z), which any kernel has and which for a
    kernel of the distance order the landmarks as the distance does. The weights are e^{−2d²/d²_max}, d²_max that of the
    farthest of the k, divided by their sum. (The distance of the rows themselves, for the Gaussian, gives the same
    accuracies on digits to .2 points.)

    Parameters
    ----------
    block : (b, m) k(x, Z), less `shift`
    of_landmarks : (m,) k(z, z)
    count : k, from 1 to m
    shift : (m,) that was subtracted, or None
    of_rows : (b,) k(x, x), or a number

    Examples
    --------
    >>> places, weights = anchor_weights(np.array([[0.9, 0.1, 0.9]]), np.ones(3), 2)
    >>> places, weights
    (array([[0, 2]]), array([[0.5, 0.5]]))
    """
    # −2k(x,z) + k(z,z) is least where 2k(x,z) − k(z,z) is largest
    offset = (2 * (0.0 if shift is None else shift.astype(np.float64)) - of_landmarks).astype(block.dtype)
    places, nearness = np.empty((len(block), count), np.int64), np.empty((len(block), count))
    for strip in strips(block):
        score = np.multiply(block[strip], 2)
        np.add(score, offset, out=score)
        rows = np.arange(len(score))
        for k in range(count):  # a few passes of argmax cost less than a partial sort
            place = score.argmax(axis=1)
            places[strip, k], nearness[strip, k] = place, score[rows, place]
            score[rows, place] = -np.inf
    squares = np.maximum(np.broadcast_to(of_rows, len(block))[:, None] - nearness, 0)
    farthest = squares.max(axis=1, keepdims=True)
    # a row that coincides with all k of them is on each alike
    weights: Array = np.exp(-2 * np.divide(squares, farthest, out=np.zeros_like(squares), where=farthest > 0))
    weights /= weights.sum(axis=1, keepdims=True)
    return places, weights


def constant_diagonal(kernel: Kernel) -> bool:
    """True where k(x, x) = 1 for every row, as for kernels of a distance."""
    return type(kernel).diag is Kernel.diag


@dataclass(frozen=True, eq=False)
class AnchorMomentStatistic(SidedMomentStatistic):
    """The moments of source and target, with the anchors of all their rows: one sweep.

    Accumulates `anchors`, A (m, p) = Σ w p φᵀ, and `degrees`, δ (m,) = Σ w p, beside the moments. Where the map is
    shifted, A is of φ − shift, as G is: the Laplacian does not see a shift, for its rows sum to 0.

    Attributes
    ----------
    features : LandmarkMap, whose landmarks are the anchors: p = m
    neighbours : k
    """

    neighbours: int = 3

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        p = self.features.width
        return {**super().zero(), "anchors": np.zeros((p, p)), "degrees": np.zeros(p)}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        plain, p, k = super().footprint(block_rows), self.features.width, self.neighbours
        itemsize = self.features.dtype.itemsize
        # a contiguous copy of the block; of a row: places, distances and weights; the product, before it is added
        work = block_rows * (8 * p + k * (8 * 8 + itemsize) + 3 * 8) + 8 * p * p
        strip_rows = strips(np.broadcast_to(np.zeros((), self.features.dtype), (block_rows, p)))[0].stop
        work += 2 * min(strip_rows, block_rows) * p * itemsize  # two strips of the block, as they take turns
        return replace(
            plain,
            flops_per_row=plain.flops_per_row + p * (k + 2) + 2 * k * p,
            partial_bytes=plain.partial_bytes + 8 * (p * p + p),
            work_bytes=plain.work_bytes + work,
        )

    def _look(self, total: Accumulator, group: int, chunk: Chunk, block: slice | Array, phi: Array) -> None:
        features = self.features
        assert isinstance(features, LandmarkMap)
        kernel, landmarks = features.kernel, features.landmarks
        own = 1.0 if constant_diagonal(kernel) else features.diagonal(chunk, block)
        places, weights = anchor_weights(
            phi, kernel.diag(landmarks), self.neighbours, shift=features.shift, of_rows=own
        )
        w = weights_of(chunk, block)
        if w is not None:
            weights *= w[:, None]
        b, k = places.shape
        # in float64: what rounding moves A by is moved nowhere else, and the Laplacian is a difference
        dense = chunk.work.buffer("anchored", phi.shape, np.float64)
        np.copyto(dense, phi)
        shape, starts = (b, features.width), np.arange(0, b * k + 1, k)
        P = sparse.csr_array((weights.ravel(), places.ravel(), starts), shape=shape)
        self._add_anchors(total, group, P.T @ dense, np.bincount(places.ravel(), weights.ravel(), features.width))

    def _add_anchors(self, total: Accumulator, group: int, A: Array, degrees: Array) -> None:
        """Those of a block of rows of a group."""
        total["anchors"] += A
        total["degrees"] += degrees


def anchored(statistic: MomentStatistic, neighbours: int) -> AnchorMomentStatistic:
    """The same moments, with the anchors of all rows."""
    given = {one.name: getattr(statistic, one.name) for one in fields(statistic)}
    return AnchorMomentStatistic(**given, neighbours=neighbours)


def laplacian(G: Array, A: Array, degrees: Array) -> Array:
    """Φᵀ(I − P diag(δ)⁻¹ Pᵀ)Φ = G − Aᵀ diag(δ)⁻¹ A, (r, r), of G (r, r) of all rows, A (m, r) and δ (m,).

    Landmarks that are nobody's anchor leave nothing.
    """
    used = degrees > 0
    half = A[used] / np.sqrt(degrees[used])[:, None]
    L: Array = G - half.T @ half
    return (L + L.T) / 2
