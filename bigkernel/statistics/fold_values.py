"""Values of many models at rows that took no part in them, from one sweep: for scores that need every prediction.

The models are those of `statistics.grid_scores`; here their values are kept, not counted. Shapes: r labelled rows, K
kernels, F folds, p columns of the map, k candidates a kernel, c targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class FoldValues:
    """Values of f of every candidate at the labelled rows that a fold tests.

    Accumulates `row` (r,), `fold` (r,) that tests it, and `values` (r, K, k·c) by the models without this fold.

    Attributes
    ----------
    features : FeatureMap of K blocks
    weights : (K, F, p, k·c) float64
    intercepts : (K, F, k·c)
    folds, targets : which fold tests a row, and whether it is labelled
    rows : about how many there are
    """

    features: FeatureMap
    weights: Array
    intercepts: Array
    folds: Folds
    targets: Targets
    rows: int

    @cached_property
    def _weights(self) -> Array:
        cast: Array = self.weights.astype(self.features.dtype)
        return cast

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_weights"}

    @property
    def _shape(self) -> tuple[int, int]:
        """(K, k·c)."""
        return self.weights.shape[0], self.weights.shape[3]

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        return {"row": np.zeros(0), "fold": np.zeros(0), "values": np.zeros((0, *self._shape))}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """See `Statistic`."""
        return {name: np.concatenate([a[name], b[name]]) for name in a}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        p, wide, numbers = *self.weights.shape[2:], int(np.prod(self._shape))
        return Footprint(
            self.features.flops_per_row + 2.0 * p * numbers,
            8 * self.rows * (numbers + 2),
            self.features.fixed_bytes
            + 2 * self.weights.nbytes
            + block_rows * (self.features.row_bytes + (numbers + wide) * (8 + self.features.dtype.itemsize)),
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        assert chunk.y is not None
        known, fold = self.targets.labelled(chunk.y, chunk.start), self.folds.of(chunk)
        for number in range(self.folds.count):
            ids, values = self._values(chunk, known & (fold == number), number)
            more = {"row": np.asarray(ids + chunk.start, np.float64), "fold": np.asarray(fold[ids], np.float64)}
            total.update(self.merge(total, {**more, "values": values}))

    def _values(self, chunk: Chunk, chosen: Array, fold: int) -> tuple[Array, Array]:
        """The chosen rows (n,) bool of a chunk, and the values there of the models without a fold."""
        ids = np.flatnonzero(chosen)
        values, done = np.empty((len(ids), *self._shape)), 0
        for block in chunk.blocks(ids):
            for place, phi in enumerate(self.features.blocks(chunk, block)):
                rows = slice(done, done + len(phi))
                with chunk.work.stage("predict"):
                    values[rows, place] = phi @ self._weights[place, fold]
                    values[rows, place] += self.intercepts[place, fold]
            done = rows.stop
        return ids, values
