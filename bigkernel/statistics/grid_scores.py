"""Scores of many classifiers from one sweep: a wide product gives every candidate's values at once.

The candidates differ in their coefficients and share their features, so that a block of rows meets one matrix of all
coefficients. A row is predicted by the models of its fold, which were trained without it. Shapes: p columns of the
map, k candidates a kernel, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.statistics.moments import Sums, Targets
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

Array = NDArray[Any]
FLOOR = 1e-3  # least probability that log-loss reads from a value of f


@dataclass(frozen=True, eq=False)
class GridScores(Sums):
    """Confusion matrices (and log-losses) of every candidate on the rows of each fold.

    Accumulates `confusion` (K, F, k, c, c), true class by predicted class, for K kernels and F folds; and `loss`
    (K, F, k), Σ −log p of the true class with p the values of f cut to [0.001, 1] and divided by their sum. Rows count
    with their weights.

    Attributes
    ----------
    features : FeatureMap of K blocks
    weights : (K, F, p, k·c) float64
    intercepts : (K, F, k·c)
    folds, targets : which fold tests a row, and its class
    with_loss : whether log-losses are wanted
    """

    features: FeatureMap
    weights: Array
    intercepts: Array
    folds: Folds
    targets: Targets
    with_loss: bool = False

    @cached_property
    def _weights(self) -> Array:
        cast: Array = self.weights.astype(self.features.dtype)
        return cast

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_weights"}

    @property
    def candidates(self) -> int:
        """k."""
        return int(self.weights.shape[3]) // self.targets.width

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        shape, c = (*self.weights.shape[:2], self.candidates), self.targets.width
        loss = shape if self.with_loss else (0,)
        return {"confusion": np.zeros((*shape, c, c)), "loss": np.zeros(loss)}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        count, folds, p, wide = self.weights.shape
        c = self.targets.width
        return Footprint(
            self.features.flops_per_row + 2.0 * count * p * wide,
            8 * count * folds * self.candidates * (c * c + 1),
            self.features.fixed_bytes
            + 2 * self.weights.nbytes
            + block_rows * (self.features.row_bytes + wide * (8 + self.features.dtype.itemsize) + 16 * self.candidates),
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        assert chunk.y is not None
        known, fold = self.targets.labelled(chunk.y, chunk.start), self.folds.of(chunk)
        for number in range(self.folds.count):
            self._meet(total, chunk, known & (fold == number), number)

    def _meet(self, total: Accumulator, chunk: Chunk, rows: Array, number: int) -> None:
        """Add what the models without the fold `number` say of some rows, (n,) bool."""
        assert chunk.y is not None
        c, k = self.targets.width, self.candidates
        for block in chunk.blocks(np.flatnonzero(rows)):
            encoded = np.empty((len(chunk.y[block]), c))
            self.targets.encode(chunk.y[block], encoded)
            truth = encoded.argmax(axis=1)
            weight = np.ones(len(truth)) if chunk.weight is None else np.asarray(chunk.weight[block], np.float64)
            for place, phi in enumerate(self.features.blocks(chunk, block)):
                with chunk.work.stage("predict"):
                    values = (phi @ self._weights[place, number]).astype(np.float64)
                    values += self.intercepts[place, number]
                    values = values.reshape(len(phi), k, c)
                    # (candidate, truth, predicted) as one number
                    cell = (np.arange(k) * c + truth[:, None]) * c + values.argmax(axis=2)
                    counts = np.bincount(cell.ravel(), np.repeat(weight, k), minlength=k * c * c)
                    total["confusion"][place, number] += counts.reshape(k, c, c)
                    if self.with_loss:
                        np.clip(values, FLOOR, 1, out=values)
                        of_truth = np.take_along_axis(values, truth[:, None, None], axis=2)[:, :, 0]
                        total["loss"][place, number] -= weight @ np.log(of_truth / values.sum(axis=2))
