"""Sums for iterative solvers: products with a few vectors, gradients, and a sub-sample for a preconditioner.

A step of conjugate gradients sums, with b = φ(x) of a row, w its weight and y its targets, Σ w b (bᵀv), (p, columns),
and a residual Σ w b (y − bᵀv). A step of softmax regression sums, with t the one-hot class of a row and
p = softmax(φᵀV + b), −Σ w log p_y, Σ w φ (t − p)ᵀ and Σ w (t − p), m×c numbers. Blocks have the dtype of the map;
products and sums are float64, since rounding of float32 products would end the iteration early.

The ridge leverage of a row is bᵀH⁻¹b for a matrix H near the normal equations (Alaoui & Mahoney, NIPS 2015). Rows of
large leverage dominate directions of the normal equations; a uniform sample misses most of them and overweights the
others. Half of the sub-sample is drawn by weight, half by weight times leverage, by one priority sample for both
(Duffield, Lund & Thorup, J. ACM 2007): rows with the smallest keys u/priority, u a uniform number of each row, are
taken, with inclusion probabilities from the first key that is not. Such samples merge as sums do.
Shapes: b rows of a block, p columns of the map, c targets or classes, F folds, q probe vectors, k rows kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array, Index
from bigkernel.kernels.kept_blocks import SolverMap
from bigkernel.statistics.moments import DEVICE_ROWS, Targets, weights_of
from bigkernel.statistics.predictor import log_softmax
from bigkernel.statistics.statistic import BlockStatistic, RowSample, Shapes
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.devices import converted, dtype_of
from bigkernel.streaming.folds import Folds, hash_ids
from bigkernel.streaming.plan import NOT_COMPARED, Accumulator, Footprint

_STRIP = (64, 8192)  # rows that are converted to float64 at once, if they have at most so many columns
_TILE = (128, 512)  # rows and columns of wider blocks that are converted at once and stay in cache
_NAMES = ("row", "weight", "leverage", "fold")


@dataclass(frozen=True, eq=False)
class ProductStatistic(BlockStatistic):
    """Σ w b (bᵀv) over the labelled rows, or with `residual` the residuals of their targets.

    The columns of v come fold by fold, each with equal groups of c; a row adds nothing to those of the fold that tests
    it. Without folds there is one set of columns, to which all rows add. Accumulates
        U (p, columns)          Σ w b f with f = bᵀv, or Σ w b r with r = y − f; the rest only with `residual`:
        e, sse, squares         Σ w r, Σ w r² and Σ w f² (columns,) over the training rows of a column
        held_e, held_sse        Σ w r and Σ w r² (columns,) over its test rows, with folds
        rows, n, s, t, q        number, Σw (g,), Σ w b (g, p), Σ w y and Σ w y² (g, c) by group of rows: those of each
                                fold, then those of none, g = F + 1
    """

    features: SolverMap  # a single map of width p
    targets: Targets  # encoding of y as (b, c), and which rows are labelled
    vectors: Array = field(metadata=NOT_COMPARED)  # v, (p, columns) float64; other processors round them differently
    step: str  # description of the step, which identifies the sweep in a run
    residual: bool = False  # whether targets are read
    folds: Folds | None = None  # which fold tests a row; rows below −1 are left out. None: nothing is held out

    def shapes(self) -> Shapes:
        (p, columns), c = self.vectors.shape, self.targets.width
        g = self.folds.count + 1 if self.folds else 1
        if not self.residual:
            return {"U": (p, columns)}
        by_column = ("e", "sse", "squares", *(("held_e", "held_sse") if self.folds else ()))
        sums: Shapes = {"U": (p, columns), "rows": (g,), "n": (g,), "s": (g, p), "t": (g, c), "q": (g, c)}
        return {**sums, **dict.fromkeys(by_column, (columns,))}

    def footprint(self, block_rows: int) -> Footprint:
        (p, columns), c = self.vectors.shape, self.targets.width
        g = self.folds.count + 1 if self.folds else 1
        flops, work = (
            4.0 * p * columns + 2.0 * p * g * self.residual,
            (strip_bytes(p, columns + g) + 16 * p * (columns + g)),
        )
        return self.block_cost(block_rows, flops=flops, row_bytes=8 * (c + 4), work_bytes=work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        fold = np.full(len(chunk), -1) if self.folds is None else self.folds.of(chunk)
        used = self.targets.labelled_in(chunk) & (fold >= -1)
        for block in chunk.blocks(None if used.all() else np.flatnonzero(used)):
            phi = self.features.block(chunk, block)
            with chunk.work.stage("product"):
                weight = weights_of(chunk, block)
                y = self.targets.one_hot(chunk, block) if self.residual else None
                sums = chunk.work.device.zeros(self.vectors.T.shape)
                for strip, rows in _strips(chunk, phi):
                    own = None if y is None else y[strip]
                    self._add(total, sums, chunk, rows, weight[strip], own, fold[block][strip])
                chunk.work.summed(total, "U")["U"] += sums.T

    def _add(
        self, total: Accumulator, sums: Array, chunk: Chunk, phi: Array, weight: Array, y: Array | None, fold: Array
    ) -> None:
        """Add rows (b, p) with their weights and folds (b,), and their targets (b, c); `sums` are Uᵀ."""
        count = self.folds.count if self.folds else 0
        # φᵀv of every fold and penalty; a held-out row has no part in the column of its own fold
        b, device = len(weight), chunk.work.device
        values: Array = products(chunk, phi, self.vectors).reshape(b, max(count, 1), -1)
        held = np.flatnonzero(fold >= 0)
        own = fold[held]
        if y is not None:
            by_group = np.zeros((b, count + 1))  # the weight of a row, in the column of its group
            by_group[np.arange(b), np.where(fold < 0, count, fold)] = weight
            total["rows"] += (by_group != 0).sum(axis=0)
            total["n"] += by_group.sum(axis=0)
            total["t"] += by_group.T @ y
            total["q"] += by_group.T @ y**2
            # Σ w f² of the training rows of each column
            squares = values**2
            squares[held, own] = 0
            total["squares"] += weight @ squares.reshape(b, -1)
            # y is the same for every group of c columns
            values = np.tile(y, values.shape[2] // self.targets.width)[:, None] - values
            if self.folds:
                total["held_e"] += (by_group[held, :count].T @ values[held, own]).ravel()
                total["held_sse"] += (by_group[held, :count].T @ values[held, own] ** 2).ravel()
        values[held, own] = 0
        values = values.reshape(b, -1)
        if y is not None:
            total["e"] += weight @ values
            total["sse"] += weight @ values**2
        # U = Σ w φ (φᵀv)ᵀ, or of the residuals where there are targets
        weighted = device.array(np.ascontiguousarray((weight[:, None] * values).T))
        of_groups = None if y is None else device.array(by_group)
        for columns, wide in _tiles(chunk, phi):
            sums[:, columns] += weighted @ wide
            if of_groups is not None:
                chunk.work.summed(total, "s")["s"][:, columns] += of_groups.T @ wide


def products(chunk: Chunk, phi: Array, vectors: Array) -> Array:
    """Multiply rows (b, p) with vectors (p, c) in float64; the result is the host's."""
    values, device = np.zeros((phi.shape[0], vectors.shape[1])), chunk.work.device
    V = device.once(vectors)
    for strip, rows in _strips(chunk, phi) if vectors.any() else ():
        for columns, wide in _tiles(chunk, rows):
            values[strip] += device.to_host(wide @ V[columns, :])
    return values


def strip_bytes(p: int, c: int) -> int:
    """Return the working memory of products of rows of width p with c vectors, besides inputs and outputs."""
    numbers = _STRIP[0] * p if p <= _STRIP[1] else _TILE[0] * _TILE[1]
    return 8 * (numbers + 4 * _TILE[0] * c + 2 * p * c)


def _strips(chunk: Chunk, phi: Array) -> Iterator[tuple[Index, Array]]:
    """Yield some rows of a block (b, p) at a time, in float64 if they are not wide."""
    narrow = phi.shape[1] <= _STRIP[1]
    step = (_STRIP[0] if narrow else _TILE[0]) if chunk.work.on_host else DEVICE_ROWS
    for start in range(0, phi.shape[0], step):
        strip = slice(start, min(start + step, phi.shape[0]))
        rows = phi[strip, :]
        if not chunk.work.on_host:
            rows = converted(rows, np.float64)
        elif narrow and rows.dtype != np.float64:
            rows = chunk.work.buffer("wide", rows.shape, np.float64)
            np.copyto(rows, phi[strip])
        yield strip, rows


def _tiles(chunk: Chunk, rows: Array) -> Iterator[tuple[Index, Array]]:
    """Yield columns of rows (b, p) in float64: all that are so, or some at a time in one buffer."""
    if dtype_of(rows) == np.float64:
        yield slice(None), rows
        return
    for start in range(0, rows.shape[1], _TILE[1]):
        columns = slice(start, min(start + _TILE[1], rows.shape[1]))
        tile = chunk.work.buffer("tile", (_TILE[0] * _TILE[1],), np.float64)[: rows[:, columns].size]
        tile = tile.reshape(len(rows), -1)
        np.copyto(tile, rows[:, columns])
        yield columns, tile


@dataclass(frozen=True, eq=False)
class SoftmaxStatistic(BlockStatistic):
    """Loss and gradient of a softmax regression at one point, over the labelled rows.

    Accumulates `loss` (), `U` (p, c) = Σ w φ (t − p)ᵀ and `e` (c,) = Σ w (t − p); where V and b have c more columns, a
    direction, the changes of `U` and `e` along it.
    """

    features: SolverMap  # a single map of width p
    targets: Targets  # the classes
    coef: Array = field(metadata=NOT_COMPARED)  # V (p, c) or (p, 2c) float64
    intercept: Array = field(metadata=NOT_COMPARED)  # b (c,) or (2c,) float64
    step: str  # description of the step, which identifies the sweep in a run

    def shapes(self) -> Shapes:
        c = self.targets.width
        return {"loss": (), "U": (len(self.coef), c), "e": (c,)}

    def footprint(self, block_rows: int) -> Footprint:
        p, c = self.coef.shape
        work = strip_bytes(p, c) + 8 * 3 * p * (c + 1)
        return self.block_cost(block_rows, flops=4.0 * p * c, row_bytes=8 * (5 * c + 4), work_bytes=work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        labelled = self.targets.labelled_in(chunk)
        for block in chunk.blocks(None if labelled.all() else np.flatnonzero(labelled)):
            phi = self.features.block(chunk, block)
            with chunk.work.stage("product"):
                truth, weight = self.targets.one_hot(chunk, block), weights_of(chunk, block)
                sums, c = chunk.work.device.zeros(total["U"].T.shape), len(total["e"])
                for strip, rows in _strips(chunk, phi):
                    values = products(chunk, rows, self.coef) + self.intercept
                    values, along = values[:, :c], values[:, c:]
                    # t − p of each row, or its change along the direction: p(Σ p d − d) for changes d of f
                    logarithms = log_softmax(values)
                    total["loss"] -= weight[strip] @ (truth[strip] * logarithms).sum(axis=1)
                    error, p = truth[strip], np.exp(logarithms)
                    error = p * ((p * along).sum(axis=1, keepdims=True) - along) if along.size else error - p
                    error = np.ascontiguousarray((weight[strip, None] * error).T)
                    total["e"] += error.sum(axis=1)
                    error = chunk.work.device.array(error)
                    for columns, wide in _tiles(chunk, rows):
                        sums[:, columns] += error @ wide
                chunk.work.summed(total, "U")["U"] += sums.T


@dataclass(frozen=True, eq=False)
class LeverageSample(BlockStatistic, RowSample):
    """A sample of labelled rows: those with the smallest keys, by weight and by leverage.

    Accumulates `row` (k,), the ids, and `weight`, `leverage` and the `fold` that tests each row.
    """

    features: SolverMap  # a single map of width p
    targets: Targets  # which rows are labelled
    projection: Array = field(metadata=NOT_COMPARED)  # V (p, q) with VVᵀ ≈ H⁻¹, so that ‖bᵀV‖² estimates the leverage
    size: int  # most rows to sample
    step: str  # description of the purpose, which identifies the sweep in a run
    folds: Folds | None = None  # sample only training rows of some fold; None: all

    def shapes(self) -> Shapes:
        return dict.fromkeys(_NAMES, (2 * (self.size + 1),))

    def chosen(self, rows: Accumulator) -> Array:
        """Return those with the smallest keys: one more than `size`, for the inclusion probabilities."""
        return self._ranks(rows) <= self.size

    def footprint(self, block_rows: int) -> Footprint:
        p, q = self.projection.shape
        row_bytes, work = 8 * (q + 4 * len(_NAMES)), strip_bytes(p, q) + 16 * p * q + 3 * self.partial_bytes
        return self.block_cost(block_rows, flops=2.0 * p * q, row_bytes=row_bytes, work_bytes=work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        fold = np.full(len(chunk), -1) if self.folds is None else self.folds.of(chunk)
        # a single fold is not trained on its own rows
        trained = fold == -1 if self.folds is not None and self.folds.count == 1 else fold >= -1
        totals = [total]
        for block in chunk.blocks(np.flatnonzero(self.targets.labelled_in(chunk) & trained)):
            phi = self.features.block(chunk, block)
            with chunk.work.stage("product"):
                w = weights_of(chunk, block)
                # ‖Vᵀb‖² ≈ bᵀH⁻¹b; rows of weight 0 are left out
                with np.errstate(over="ignore"):
                    leverage = (products(chunk, phi, self.projection) ** 2).sum(axis=1)
                row = chunk.start + np.arange(len(chunk))[block]
                values = zip(_NAMES, (row, w, leverage, fold[block]), strict=True)
                totals.append({name: np.asarray(column, np.float64)[w > 0] for name, column in values})
        total.update(self.keep(*totals))

    def sample(self, total: Accumulator) -> tuple[Array, Array, Array]:
        """Sample at most `size` rows; return their ids, rising, weights in the sub-sample, and folds, (k,) each."""
        weight, chance = total["weight"], np.ones(len(total["row"]))
        if len(chance) > self.size:
            # a row is taken with probability priority · (key of the first that is not), at most 1
            ranks = self._ranks(total)
            first_left = np.sort(ranks)[self.size]  # both halves take this many rows
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
        # uniform in (0, 1), from the 53 highest bits
        u = ((hash_ids(total["row"].astype(np.uint64), seed=1) >> np.uint64(11)) + 0.5) / 2.0**53
        with np.errstate(divide="ignore", over="ignore"):
            return u / total["weight"], u / (total["weight"] * total["leverage"])

    def _ranks(self, total: Accumulator) -> Array:
        """Rank each row by the smaller of the ranks of its two keys, (k,)."""
        ranks = np.empty((2, len(total["row"])), np.int64)
        for rank, key in zip(ranks, self._keys(total), strict=True):
            rank[np.lexsort((total["row"], key))] = np.arange(len(key))
        return np.asarray(ranks.min(axis=0))
