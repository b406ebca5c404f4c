"""Values of f at rows that took no part in their f: what probabilities are calibrated on, from one sweep.

The moments of folds give an f without each (`estimators.calibration`); here every labelled row meets the f that was
fitted without it. Some ten thousand rows fix the few numbers of a calibration, so of more rows those of least hash are
kept, the same however the rows are cut, and kernel values of the others are not computed. Shapes: n rows, p columns of
the map, c classes, g folds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.random_fourier import BlockMap
from bigkernel.statistics.moments import Targets, weights_of
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import HashFolds, mixed
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

FOLDS = 5
_FOLD_SEED, _ROW_SEED = 11, 12
_NUMBERS, _LEAST_ROWS = 2**20, 2**14  # kept values, and rows of them where classes are many
_SURE = 8.0  # standard deviations by which the number of rows below a hash may be less than its mean


@dataclass(frozen=True)
class HeldOutFolds:
    """The first `count` of `FOLDS` parts of the rows, by a hash of their number or, where there are groups, of these.

    Rows of the other parts are tested by no fold.
    """

    count: int

    def of(self, chunk: Chunk) -> Array:
        by: Literal["row", "group"] = "row" if chunk.group is None else "group"
        fold = HashFolds(FOLDS, _FOLD_SEED, by).of(chunk)
        return np.where(fold < self.count, fold, -1)


def most_rows(classes: int) -> int:
    """Rows that are kept at most."""
    return max(_LEAST_ROWS, _NUMBERS // classes)


@dataclass(frozen=True, eq=False)
class HeldOutValues:
    """Values of f, one f a fold, at labelled rows of weight above 0.

    Accumulates, of at most `most` rows in the order of `key`: `key`, `row`, `weight` and `truth`, the position of the
    row's class, (r,); and `values` (r, c).
    """

    features: BlockMap  # a single map of width p
    targets: Targets  # the classes
    folds: HeldOutFolds  # which f a row meets; with g = folds.count + 1, rows of no fold meet the last
    coef: Array  # (g, p, c)
    intercept: Array  # (g, c)
    most: int  # rows that are kept
    rows: float  # about how many there are to choose from

    @cached_property
    def weights(self) -> Array:
        """The coefficients in the dtype of the features."""
        return np.asarray(self.coef.astype(self.features.dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "weights"}

    @property
    def share(self) -> float:
        """Of the rows, by their hash: so many that `most` are certainly among them."""
        return min(1.0, (self.most + _SURE * float(np.sqrt(self.most))) / max(self.rows, 1.0))

    def zero(self) -> Accumulator:
        columns: Accumulator = {name: np.zeros(0) for name in ("key", "row", "weight", "truth")}
        return {**columns, "values": np.zeros((0, self.targets.width))}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        both = {name: np.concatenate([a[name], b[name]]) for name in a}
        order = np.lexsort((both["row"], both["key"]))[: self.most]
        return {name: values[order] for name, values in both.items()}

    def footprint(self, block_rows: int) -> Footprint:
        g, p, c = self.coef.shape
        kept = 8 * int(min(self.most, self.rows)) * (c + 4)
        return Footprint(
            flops_per_row=self.share * (self.features.cost.flops_per_row + 2.0 * p * c),
            partial_bytes=kept,
            work_bytes=self.features.cost.fixed_bytes
            + g * p * c * (8 + self.features.dtype.itemsize)
            + block_rows * (self.features.cost.row_bytes + 8 * (3 * c + 8))
            + 2 * kept,
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        known = self.targets.labelled_in(chunk)
        ids = np.arange(chunk.start, chunk.start + len(chunk))
        # 53 bits of the hash, which a double holds
        key = (mixed(ids, _ROW_SEED) >> np.uint64(11)).astype(np.float64) / 2.0**53
        weight = weights_of(chunk, slice(None))
        chosen = known & (weight > 0) & (key <= self.share)
        fold, found = self.folds.of(chunk) % (self.folds.count + 1), [total]
        for number in range(len(self.coef)):
            for block in chunk.blocks(np.flatnonzero(chosen & (fold == number))):
                phi = self.features.block(chunk, block)
                with chunk.work.stage("predict"):
                    place = self.targets.one_hot(chunk, block).argmax(axis=1).astype(np.float64)
                    values = (phi @ self.weights[number]).astype(np.float64) + self.intercept[number]
                columns = {"key": key[block], "row": ids[block].astype(np.float64), "weight": weight[block]}
                found.append({**columns, "truth": place, "values": values})
        both = {name: np.concatenate([part[name] for part in found]) for name in total}
        total.update(self.merge(both, self.zero()))
