"""Scores and values of models at held-out rows, from one sweep.

The models share their features and differ in their coefficients, so that a block of rows is multiplied by one matrix of
all coefficients. A row is predicted by the models that were trained without its fold. `GridScores` counts classes,
`FoldValues` keeps the values for scores that need every prediction, and `HeldOutValues` keeps those of a sample, to
calibrate probabilities on. Shapes: r rows, K kernels, F folds, p columns of the map, k candidates per kernel, c classes
or targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.feature_maps import FeatureMap, WithoutCaches
from bigkernel.statistics.moments import Targets, weights_of
from bigkernel.statistics.statistic import BlockStatistic, RowSample, Shapes
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds, HashFolds, hash_ids
from bigkernel.streaming.plan import Accumulator, Footprint

FLOOR = 1e-3  # lower bound of probabilities in log-losses
FOLDS = 5
_FOLD_SEED, _ROW_SEED = 11, 12
_NUMBERS, _LEAST_ROWS = 2**20, 2**14  # number of values to keep, and least number of rows with many classes
_SURE = 8.0  # standard deviations by which the number of rows below a hash may fall short of its mean


def log_losses(values: Array, truth: Array) -> Array:
    """Compute −log p of the true class (r,) of each row, from values (r, k, c) of k models: (r, k).

    p are the values, clipped to [0.001, 1] and normalized.
    """
    p: Array = np.clip(values, FLOOR, 1)
    p /= p.sum(axis=-1, keepdims=True)
    return np.asarray(-np.log(np.take_along_axis(p, truth[:, None, None], axis=2)[:, :, 0]))


@dataclass(frozen=True, eq=False)
class FoldModels(WithoutCaches, BlockStatistic):
    """Base of statistics of the values of models trained without each fold."""

    features: FeatureMap  # of K blocks
    weights: Array  # (K, F, p, k·c) float64
    intercepts: Array  # (K, F, k·c)
    folds: Folds  # which fold tests a row
    targets: Targets

    @property
    def candidates(self) -> int:
        """k, the number of candidates of a kernel."""
        return int(self.weights.shape[3]) // self.targets.width

    @cached_property
    def _narrow_weights(self) -> Array:
        """The weights in the dtype of the features."""
        return np.asarray(self.weights.astype(self.features.dtype))

    def fold_cost(self, block_rows: int, row_bytes: int) -> Footprint:
        """Return the footprint where a row is predicted without one fold, from the bytes of its values."""
        count, _, p, wide = self.weights.shape
        flops, work = 2.0 * count * p * wide, 2 * self.weights.nbytes
        return self.block_cost(block_rows, flops=flops, row_bytes=row_bytes, work_bytes=work)

    def values_of(self, chunk: Chunk, fold: int, ids: Array) -> Iterator[tuple[Array, int, Array]]:
        """Predict rows by the models without a fold; yield positions, kernel and f (b, k·c) float64 of each block."""
        device = chunk.work.device
        weights = device.once(self._narrow_weights)
        for block in chunk.blocks(ids):
            assert not isinstance(block, slice)
            for kernel, phi in enumerate(self.features.blocks(chunk, block)):
                with chunk.work.stage("predict"):
                    values: Array = device.to_host(phi @ weights[kernel, fold, ...]).astype(np.float64)
                    values += self.intercepts[kernel, fold]
                yield block, kernel, values

    def test_rows(self, chunk: Chunk) -> list[Array]:
        """Return the positions of the labelled rows that each fold tests."""
        labelled, fold = self.targets.labelled_in(chunk), self.folds.of(chunk)
        return [np.flatnonzero(labelled & (fold == number)) for number in range(self.folds.count)]


@dataclass(frozen=True, eq=False)
class GridScores(FoldModels):
    """Confusion matrices (log-losses and squared errors) of every candidate on the rows of each fold.

    Accumulates `confusion` (K, F, k, c, c), true class by predicted class, for K kernels and F folds; `loss` (K, F, k),
    Σ −log p of the true class (`log_losses`); and `sse` (K, F, k, c), Σ (y − f)² of one-hot y. Rows are weighted.
    """

    with_loss: bool = False  # whether to sum log-losses
    with_squares: bool = False  # whether to sum squared errors

    def shapes(self) -> Shapes:
        each, c = (*self.weights.shape[:2], self.candidates), self.targets.width
        loss, sse = each if self.with_loss else (0,), (*each, c) if self.with_squares else (0,)
        return {"confusion": (*each, c, c), "loss": loss, "sse": sse}

    def footprint(self, block_rows: int) -> Footprint:
        number = 8 * (1 + self.with_squares + self.with_loss) + self.features.dtype.itemsize
        return self.fold_cost(block_rows, self.weights.shape[3] * number + 16 * self.candidates)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        c, k = self.targets.width, self.candidates
        for fold, ids in enumerate(self.test_rows(chunk)):
            for block, kernel, values in self.values_of(chunk, fold, ids):
                with chunk.work.stage("predict"):
                    one_hot, weight = self.targets.one_hot(chunk, block), weights_of(chunk, block)
                    truth, values = one_hot.argmax(axis=1), values.reshape(len(block), k, c)
                    # (candidate, truth, predicted) as one number
                    cell = (np.arange(k) * c + truth[:, None]) * c + values.argmax(axis=2)
                    counts = np.bincount(cell.ravel(), np.repeat(weight, k), minlength=k * c * c)
                    total["confusion"][kernel, fold] += counts.reshape(k, c, c)
                    if self.with_squares:
                        off = values - one_hot[:, None]
                        total["sse"][kernel, fold] += np.einsum("r,rkc,rkc->kc", weight, off, off)
                    if self.with_loss:
                        total["loss"][kernel, fold] += weight @ log_losses(values, truth)


@dataclass(frozen=True, eq=False)
class FoldValues(FoldModels, RowSample):
    """Values of f of every candidate at the labelled test rows of the folds.

    Accumulates `row` (r,), the `fold` (r,) that tests it, and `values` (r, K, k·c) of the models without this fold.
    """

    rows: int  # estimated number of rows

    def shapes(self) -> Shapes:
        return {"row": (self.rows,), "fold": (self.rows,), "values": (self.rows, *self.weights.shape[::3])}

    def footprint(self, block_rows: int) -> Footprint:
        count, *_, wide = self.weights.shape
        return self.fold_cost(block_rows, (count + 1) * wide * (8 + self.features.dtype.itemsize))

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        for fold, ids in enumerate(self.test_rows(chunk)):
            values = np.empty((len(ids), *self.weights.shape[::3]))
            for block, kernel, of_block in self.values_of(chunk, fold, ids):
                values[np.searchsorted(ids, block), kernel] = of_block
            row = np.asarray(ids + chunk.start, np.float64)
            total.update(self.keep(total, {"row": row, "fold": np.full(len(ids), float(fold)), "values": values}))


@dataclass(frozen=True)
class HeldOutFolds:
    """The first `count` of `FOLDS` folds, by a hash of row numbers, or of groups if there are any.

    Rows of the other folds are not tested.
    """

    reads_rows: ClassVar[bool] = False
    count: int

    def of(self, chunk: Chunk) -> Array:
        by: Literal["row", "group"] = "row" if chunk.group is None else "group"
        fold = HashFolds(FOLDS, _FOLD_SEED, by).of(chunk)
        return np.where(fold < self.count, fold, -1)


def most_rows(classes: int) -> int:
    """Return the number of rows to calibrate on: some ten thousand determine its few parameters."""
    return max(_LEAST_ROWS, _NUMBERS // classes)


@dataclass(frozen=True, eq=False)
class HeldOutValues(FoldModels, RowSample):
    """Held-out values of f at labelled rows of positive weight; of many rows, those with the smallest hashes.

    Accumulates, for at most `most` rows in the order of `key`: `key`, `row`, `weight` and `truth`, the index of the
    row's class, (r,); and `values` (r, c). Rows without a fold are predicted by f number `folds.count`, if given.
    The sample does not depend on chunks, and kernel values of other rows are not computed.
    """

    most: int  # rows to keep
    rows: float  # estimated number of rows to choose from

    @property
    def share(self) -> float:
        """Bound on the hash, such that `most` rows are practically certain to be below it."""
        return min(1.0, (self.most + _SURE * float(np.sqrt(self.most))) / max(self.rows, 1.0))

    def shapes(self) -> Shapes:
        kept = int(min(self.most, self.rows))
        columns: Shapes = dict.fromkeys(("key", "row", "weight", "truth"), (kept,))
        return {**columns, "values": (kept, self.targets.width)}

    def chosen(self, rows: Accumulator) -> Array:
        return np.lexsort((rows["row"], rows["key"]))[: self.most]

    def footprint(self, block_rows: int) -> Footprint:
        _, g, p, c = self.weights.shape
        cost, of_models = self.features.cost, g * p * c * (8 + self.features.dtype.itemsize)
        # of a task: the map and the models, a block with its values, and totals while they are joined
        work = cost.fixed_bytes + of_models + block_rows * (cost.row_bytes + 8 * (3 * c + 8)) + 2 * self.partial_bytes
        return Footprint(self.share * (cost.flops_per_row + 2.0 * p * c), self.partial_bytes, work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        ids = np.arange(chunk.start, chunk.start + len(chunk))
        # 53 bits of the hash, which a double holds
        key = (hash_ids(ids, _ROW_SEED) >> np.uint64(11)).astype(np.float64) / 2.0**53
        weight = weights_of(chunk, slice(None))
        chosen = self.targets.labelled_in(chunk) & (weight > 0) & (key <= self.share)
        # rows of no fold, −1, are predicted by f number `folds.count`
        fold, pieces = self.folds.of(chunk) % (self.folds.count + 1), [total]
        for number in range(self.weights.shape[1]):
            for block, _, values in self.values_of(chunk, number, np.flatnonzero(chosen & (fold == number))):
                truth = self.targets.one_hot(chunk, block).argmax(axis=1).astype(np.float64)
                columns = {"key": key[block], "row": ids[block].astype(np.float64), "weight": weight[block]}
                pieces.append({**columns, "truth": truth, "values": values})
        total.update(self.keep(*pieces))
