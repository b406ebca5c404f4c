"""Scores and values of many models at rows that took no part in them, from one sweep.

The models differ in their coefficients and share their features, so that a block of rows meets one matrix of all
coefficients. A row is predicted by the models of its fold, which were trained without it. `GridScores` counts, and
`FoldValues` keeps the values, for scores that need every prediction. Shapes: r labelled rows, K kernels, F folds, p
columns of the map, k candidates a kernel, c classes or targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.statistics.moments import Sums, Targets, block_footprint
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.plan import Accumulator, Footprint

FLOOR = 1e-3  # least probability that log-loss reads from a value of f


@dataclass(frozen=True, eq=False)
class _FoldModels:
    """Models without each fold."""

    features: FeatureMap  # of K blocks
    weights: Array  # (K, F, p, k·c) float64
    intercepts: Array  # (K, F, k·c)
    folds: Folds  # which of them tests a row
    targets: Targets

    @cached_property
    def _weights(self) -> Array:
        return np.asarray(self.weights.astype(self.features.dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_weights"}

    def _rows(self, chunk: Chunk) -> list[Array]:
        """Positions of the labelled rows that each fold tests."""
        known, fold = self.targets.labelled_in(chunk), self.folds.of(chunk)
        return [np.flatnonzero(known & (fold == number)) for number in range(self.folds.count)]


@dataclass(frozen=True, eq=False)
class GridScores(_FoldModels, Sums):
    """Confusion matrices (and log-losses) of every candidate on the rows of each fold.

    Accumulates `confusion` (K, F, k, c, c), true class by predicted class, for K kernels and F folds; and `loss`
    (K, F, k), Σ −log p of the true class with p the values of f cut to [0.001, 1] and divided by their sum. Rows count
    with their weights.
    """

    with_loss: bool = False  # whether log-losses are wanted

    @property
    def candidates(self) -> int:
        return int(self.weights.shape[3]) // self.targets.width

    def zero(self) -> Accumulator:
        shape, c = (*self.weights.shape[:2], self.candidates), self.targets.width
        return {"confusion": np.zeros((*shape, c, c)), "loss": np.zeros(shape if self.with_loss else (0,))}

    def footprint(self, block_rows: int) -> Footprint:
        count, folds, p, wide = self.weights.shape
        c = self.targets.width
        return block_footprint(
            self.features,
            block_rows,
            flops=2.0 * count * p * wide,
            row_bytes=wide * (8 + self.features.dtype.itemsize) + 16 * self.candidates,
            partial_bytes=8 * count * folds * self.candidates * (c * c + 1),
            work_bytes=2 * self.weights.nbytes,
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        c, k = self.targets.width, self.candidates
        for number, rows in enumerate(self._rows(chunk)):
            for block in chunk.blocks(rows):
                truth = self.targets.one_hot(chunk, block).argmax(axis=1)
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


@dataclass(frozen=True, eq=False)
class FoldValues(_FoldModels):
    """Values of f of every candidate at the labelled rows that a fold tests.

    Accumulates `row` (r,), `fold` (r,) that tests it, and `values` (r, K, k·c) by the models without this fold.
    """

    rows: int  # about how many there are

    def zero(self) -> Accumulator:
        return {"row": np.zeros(0), "fold": np.zeros(0), "values": np.zeros((0, *self.weights.shape[::3]))}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        return {name: np.concatenate([a[name], b[name]]) for name in a}

    def footprint(self, block_rows: int) -> Footprint:
        count, _, p, wide = self.weights.shape
        return block_footprint(
            self.features,
            block_rows,
            flops=2.0 * p * count * wide,
            row_bytes=(count + 1) * wide * (8 + self.features.dtype.itemsize),
            partial_bytes=8 * self.rows * (count * wide + 2),
            work_bytes=2 * self.weights.nbytes,
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        for number, ids in enumerate(self._rows(chunk)):
            values, done = np.empty((len(ids), *self.weights.shape[::3])), 0
            for block in chunk.blocks(ids):
                for place, phi in enumerate(self.features.blocks(chunk, block)):
                    rows = slice(done, done + len(phi))
                    with chunk.work.stage("predict"):
                        values[rows, place] = phi @ self._weights[place, number]
                        values[rows, place] += self.intercepts[place, number]
                done = rows.stop
            row, fold = np.asarray(ids + chunk.start, np.float64), np.full(len(ids), float(number))
            total.update(self.merge(total, {"row": row, "fold": fold, "values": values}))
