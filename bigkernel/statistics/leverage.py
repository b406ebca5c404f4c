"""A sub-sample of the rows that keeps those of great leverage: what preconditioners of large problems are made of.

The ridge leverage of a row is bᵀH⁻¹b for a matrix H near the normal equations (Alaoui & Mahoney, NIPS 2015). Rows of
great leverage shape the normal equations alone; a uniform draw misses most of them and counts the others as many. Half
of the sub-sample is drawn by weight, half by weight times leverage, by one priority sample for both (Duffield, Lund &
Thorup, J. ACM 2007): a row whose key u/priority, u its own uniform number, is among the smallest is taken, with the
chance that follows from the first key that is not. Such samples merge, as sums do. Shapes: b rows of a block, p columns
of the map, q probe vectors, k rows kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.statistics.moments import Targets, weights_of
from bigkernel.statistics.products import products, tile_bytes
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds, mixed
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

_NAMES = ("row", "weight", "leverage", "fold")


@dataclass(frozen=True, eq=False)
class LeverageSample:
    """Draw the labelled rows with the smallest keys, by weight and by leverage.

    Accumulates `row` (k,), their ids, `weight`, `leverage` and `fold`, the one that tests them, of each.

    Attributes
    ----------
    features : a single map of width p
    targets : which rows are labelled
    projection : V (p, q) with VVᵀ ≈ H⁻¹, so that ‖bᵀV‖² is about the leverage; not compared when a run resumes, for
        other processors round it otherwise
    size : how many rows are drawn at most
    step : what they are drawn for, by which a run knows the sweep
    folds : only rows that one of them is trained on; None: all
    """

    features: IdentityMap | LandmarkMap | FourierMap
    targets: Targets
    projection: Array = field(metadata={"identity": False})  # `data.fingerprint.NOT_COMPARED`
    size: int
    step: str
    folds: Folds | None = None

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        return {name: np.zeros(0) for name in _NAMES}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """See `Statistic`: what is among the smallest of all is among the smallest of its part."""
        return self._smallest([a, b])

    def _smallest(self, totals: list[Accumulator]) -> Accumulator:
        """Keep the rows with the smallest keys: one more than `size`, which gives their chances."""
        rows = {name: np.concatenate([total[name] for total in totals]) for name in _NAMES}
        kept = self._ranks(rows) <= self.size
        return {name: values[kept] for name, values in rows.items()}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        p, q = self.projection.shape
        kept = 2 * (self.size + 1) * len(_NAMES)
        return Footprint(
            flops_per_row=self.features.cost.flops_per_row + 2.0 * p * q,
            partial_bytes=8 * kept,
            work_bytes=self.features.cost.fixed_bytes
            + block_rows * (self.features.cost.row_bytes + 8 * (q + 4 * len(_NAMES)))
            + tile_bytes(q)
            + 8 * (2 * p * q + 3 * kept),
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        if chunk.y is None:
            raise DataError("y: labels are needed and the input has none")
        fold = np.full(len(chunk), -1) if self.folds is None else self.folds.of(chunk)
        # a single fold trains on none of its own rows
        trained = fold == -1 if self.folds is not None and self.folds.count == 1 else fold >= -1
        totals = [total]
        for block in chunk.blocks(np.flatnonzero(self.targets.labelled(chunk.y, chunk.start) & trained)):
            phi = self.features.block(chunk, block)
            with chunk.work.stage("product"):
                w = np.ones(len(phi)) if chunk.weight is None else weights_of(chunk, block)
                with np.errstate(over="ignore"):
                    leverage = (products(chunk, phi, self.projection) ** 2).sum(axis=1)
                row = chunk.start + np.arange(len(chunk))[block]
                values = zip(_NAMES, (row, w, leverage, fold[block]), strict=True)
                totals.append({name: np.asarray(column, np.float64)[w > 0] for name, column in values})
        total.update(self._smallest(totals))

    def sample(self, total: Accumulator) -> tuple[Array, Array, Array]:
        """Draw at most `size` rows: their ids, rising, weights in the sub-sample, and folds, (k,) each."""
        weight, chance = total["weight"], np.ones(len(total["row"]))
        if len(chance) > self.size:
            ranks = self._ranks(total)
            first_left = np.sort(ranks)[self.size]  # both draws have given as many
            by_weight, by_leverage = (np.sort(key)[first_left] for key in self._keys(total))
            with np.errstate(over="ignore", invalid="ignore"):
                chance = np.fmax(weight * by_weight, weight * total["leverage"] * by_leverage)
            chance = np.where(ranks < first_left, np.minimum(chance, 1), 0)
        taken = np.flatnonzero(chance > 0)
        taken = taken[np.argsort(total["row"][taken])]
        ids, fold = (total[name][taken].astype(np.int64) for name in ("row", "fold"))
        return ids, weight[taken] / chance[taken], fold

    def _keys(self, total: Accumulator) -> tuple[Array, Array]:
        """Compute keys by weight and by leverage, (k,) each."""
        # the 53 highest bits, in the middle between 0 and 1 of their steps
        u = ((mixed(total["row"].astype(np.uint64), seed=1) >> np.uint64(11)) + 0.5) / 2.0**53
        with np.errstate(divide="ignore", over="ignore"):
            return u / total["weight"], u / (total["weight"] * total["leverage"])

    def _ranks(self, total: Accumulator) -> Array:
        """Rank each row by its keys, (k,), in the draw that takes it first."""
        ranks = np.empty((2, len(total["row"])), np.int64)
        for rank, key in zip(ranks, self._keys(total), strict=True):
            rank[np.lexsort((total["row"], key))] = np.arange(len(key))
        return np.asarray(ranks.min(axis=0))
