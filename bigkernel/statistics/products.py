"""Products of a feature block with a few vectors: all that a step of conjugate gradients needs of the rows.

With b = φ(x) of a row, w its weight and y its targets, a step sums up Σ w b (bᵀv), (p, c), and a look at the residual
Σ w b (y − bᵀv). Blocks have the dtype of the map, products and sums are float64: rounding of products in float32 would
end the descent early. Shapes: b rows of a block, p columns of the map, c targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.statistics.moments import Sums, Targets, weights_of
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

Array = NDArray[Any]
_TILE = (128, 512)  # rows and columns of a block that are float64 at a time: they stay in cache


@dataclass(frozen=True, eq=False)
class ProductStatistic(Sums):
    """Σ w b (bᵀv) over the labelled rows, or of what v leaves of their targets.

    Accumulates `U` (p, c); with `residual` that of y − bᵀv in the place of bᵀv, and `rows`, `n` = Σw, `s` = Σ w b (p,),
    and of y, of the residuals r and of f = bᵀv, a target each (c,): `t` = Σ w y, `q` = Σ w y², `e` = Σ w r,
    `sse` = Σ w r², `squares` = Σ w f².

    Attributes
    ----------
    features : a single map of width p
    targets : how y becomes (b, c), and which rows are labelled
    vectors : v, (p, c) float64; no part of what a run is known by, for other processors round them otherwise
    step : what they are a step of, in words: a run is known by it
    residual : whether targets are looked at
    """

    features: IdentityMap | LandmarkMap | FourierMap
    targets: Targets
    vectors: Array = field(metadata={"identity": False})  # `storage.fingerprint.NOT_COMPARED`
    step: str
    residual: bool = False

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        p, c = self.vectors.shape
        shapes: dict[str, tuple[int, ...]] = {"U": (p, c)}
        if self.residual:
            shapes |= {"rows": (), "n": (), "s": (p,)} | dict.fromkeys(("t", "q", "e", "sse", "squares"), (c,))
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        p, c = self.vectors.shape
        return Footprint(
            flops_per_row=self.features.flops_per_row + 4.0 * p * (c + self.residual),
            partial_bytes=8 * (p * (c + 1) + 5 * c + 2),
            work_bytes=self.features.fixed_bytes
            + block_rows * (self.features.row_bytes + 8 * (3 * c + 2))
            + tile_bytes(c)
            + 16 * p * (c + 1),
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        if chunk.y is None:
            raise DataError("y: labels are needed and the input has none")
        known = self._used(chunk)
        for block in chunk.blocks(None if known.all() else np.flatnonzero(known)):
            phi = self.features.block(chunk, block)
            with chunk.work.stage("product"):
                w = None if chunk.weight is None else weights_of(chunk, block)
                y = self._wanted(chunk, block, len(phi)) if self.residual else None
                self._add(total, chunk, block, phi, w, y)

    def _used(self, chunk: Chunk) -> Array:
        """Which rows count, (n,) bool."""
        return self.targets.labelled(chunk.y, chunk.start)  # type: ignore[arg-type]

    def _wanted(self, chunk: Chunk, block: slice | Array, count: int) -> Array:
        """Targets of a block, (b, c)."""
        y = chunk.work.buffer("targets", (count, self.targets.width), np.float64)
        self.targets.encode(chunk.y[block], y)  # type: ignore[index]
        return y

    def _add(
        self, total: Accumulator, chunk: Chunk, block: slice | Array, phi: Array, w: Array | None, y: Array | None
    ) -> None:
        """Add a block (b, p) with its weights (b,) and targets (b, c), a strip of rows at a time."""
        if y is not None:
            total["rows"] += len(phi) if w is None else np.count_nonzero(w)
        for strip in _strips(phi):
            values: Array = products(chunk, phi[strip], self.vectors)
            weight = np.ones(len(values)) if w is None else w[strip]
            if y is not None:
                total["squares"] += weight @ values**2
                total["t"] += weight @ y[strip]
                total["q"] += weight @ y[strip] ** 2
                values = y[strip] - values
                total["n"] += weight.sum()
                total["e"] += weight @ values
                total["sse"] += weight @ values**2
            weighted = values if w is None else weight[:, None] * values
            for columns, wide in _tiles(chunk, phi[strip]):
                total["U"][columns] += wide.T @ weighted
                if y is not None:
                    total["s"][columns] += weight @ wide


@dataclass(frozen=True, eq=False)
class FoldProducts(ProductStatistic):
    """Products for models that are each trained without a fold: a row adds nothing to the columns of its own fold.

    `vectors` are (p, F·k), fold by fold, each of equal groups of c columns. `U`, `e`, `sse` and `squares` are sums over
    the rows that a column is trained on. With `residual`, what is the same for all k is summed by group of rows, those
    of each fold and then those of none, g = F + 1: `rows`, `n` (g,), `s` (g, p), and of the targets `t` = Σ w y and
    `q` = Σ w y², (g, c). `held_e` and `held_sse` are `e` and `sse` over the rows of the column's own fold.

    Attributes
    ----------
    folds : which fold a row is of; rows below −1 are left out
    """

    folds: Folds = field(kw_only=True)

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        (p, columns), g, c = self.vectors.shape, self.folds.count + 1, self.targets.width
        shapes: dict[str, tuple[int, ...]] = {"U": (p, columns)}
        if self.residual:
            shapes |= {"rows": (g,), "n": (g,), "s": (g, p), "t": (g, c), "q": (g, c)}
            shapes |= dict.fromkeys(("e", "sse", "squares", "held_e", "held_sse"), (columns,))
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        (p, columns), g, c = self.vectors.shape, self.folds.count + 1, self.targets.width
        return Footprint(
            flops_per_row=self.features.flops_per_row + 4.0 * p * columns + 2.0 * p * g * self.residual,
            partial_bytes=8 * (p * (columns + g) + 5 * columns + 2 * g * (c + 1)),
            work_bytes=self.features.fixed_bytes
            + block_rows * (self.features.row_bytes + 8 * (c + 4))
            + tile_bytes(columns + g)
            + 16 * p * (columns + g),
        )

    def _used(self, chunk: Chunk) -> Array:
        return super()._used(chunk) & (self.folds.of(chunk) >= -1)

    def _add(
        self, total: Accumulator, chunk: Chunk, block: slice | Array, phi: Array, w: Array | None, y: Array | None
    ) -> None:
        count, fold = self.folds.count, self.folds.of(chunk)[block]
        for strip in _strips(phi):
            part = phi[strip]
            weight = np.ones(len(part)) if w is None else w[strip]
            held = np.flatnonzero(fold[strip] >= 0)
            own = fold[strip][held]
            values: Array = products(chunk, part, self.vectors).reshape(len(part), count, -1)
            apart = np.zeros((len(part), count + 1))  # weights by group
            if y is not None:
                apart[np.arange(len(part)), np.where(fold[strip] < 0, count, fold[strip])] = weight
                _add_groups(total, y[strip], apart)
                squares = values**2
                squares[held, own] = 0
                total["squares"] += weight @ squares.reshape(len(part), -1)
                # y is the same for every group of c columns
                values = np.tile(y[strip], values.shape[2] // self.targets.width)[:, None] - values
                left = values[held, own]
                total["held_e"] += (apart[held, :count].T @ left).ravel()
                total["held_sse"] += (apart[held, :count].T @ left**2).ravel()
            values[held, own] = 0
            values = values.reshape(len(part), -1)
            if y is not None:
                total["e"] += weight @ values
                total["sse"] += weight @ values**2
            weighted = values if w is None else weight[:, None] * values
            for columns, wide in _tiles(chunk, part):
                total["U"][columns] += wide.T @ weighted
                if y is not None:
                    total["s"][:, columns] += apart.T @ wide


def _add_groups(total: Accumulator, y: Array, apart: Array) -> None:
    """Add what is summed by group of rows: targets (b, c), weights by group (b, g)."""
    total["rows"] += np.count_nonzero(apart, axis=0)
    total["n"] += apart.sum(axis=0)
    total["t"] += apart.T @ y
    total["q"] += apart.T @ y**2


def products(chunk: Chunk, phi: Array, vectors: Array) -> Array:
    """Φv of some rows (b, p) and vectors (p, c), (b, c), multiplied and summed in float64."""
    values: Array = np.zeros((len(phi), vectors.shape[1]))
    for strip in _strips(phi):
        for columns, wide in _tiles(chunk, phi[strip]):
            values[strip] += wide @ vectors[columns]
    return values


def tile_bytes(c: int) -> int:
    """Working memory of products with c vectors, beside what they read and give."""
    rows, columns = _TILE
    return 8 * (rows * (columns + 4 * c) + 2 * columns * c)


def _strips(phi: Array) -> Iterator[slice]:
    """Some rows of a block at a time."""
    for start in range(0, len(phi), _TILE[0]):
        yield slice(start, min(start + _TILE[0], len(phi)))


def _tiles(chunk: Chunk, phi: Array) -> Iterator[tuple[slice, Array]]:
    """Some columns of some rows (b, p) at a time, in float64; one buffer serves them all."""
    for start in range(0, phi.shape[1], _TILE[1]):
        columns = slice(start, min(start + _TILE[1], phi.shape[1]))
        wide = chunk.work.buffer("wide", (_TILE[0] * _TILE[1],), np.float64)[: phi[:, columns].size]
        tile = wide.reshape(len(phi), -1)
        np.copyto(tile, phi[:, columns])
        yield columns, tile
