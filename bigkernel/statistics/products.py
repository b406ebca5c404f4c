"""Products of a feature block with a few vectors: all that a step of conjugate gradients needs of the rows.

With b = φ(x) of a row, w its weight and y its targets, a step sums up Σ w b (bᵀv), (p, columns), and a residual
Σ w b (y − bᵀv). Blocks have the dtype of the map, products and sums are float64: rounding of products in float32 would
end the iteration early. Shapes: b rows of a block, p columns of the map, c targets, F folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.statistics.moments import Sums, Targets, weights_of
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

_TILE = (128, 512)  # rows and columns of a block that are float64 at a time: they stay in cache


@dataclass(frozen=True, eq=False)
class ProductStatistic(Sums):
    """Sum Σ w b (bᵀv) over the labelled rows, or with `residual` what v leaves of their targets.

    The columns of v come fold by fold, each with equal groups of c; a row adds nothing to those of the fold that tests
    it. Without folds there is one set of columns, and all rows count in it. Accumulates
        U (p, columns)          Σ w b f with f = bᵀv, or Σ w b r with r = y − f; the rest with `residual` alone:
        e, sse, squares         Σ w r, Σ w r² and Σ w f² (columns,) of the rows that a column is trained on
        held_e, held_sse        Σ w r and Σ w r² (columns,) of those that its fold tests, with folds
        rows, n, s, t, q        number, Σw (g,), Σ w b (g, p), Σ w y and Σ w y² (g, c) by group of rows: those of each
                                fold and then those of none, g = F + 1

    Attributes
    ----------
    features : a single map of width p
    targets : how y becomes (b, c), and which rows are labelled
    vectors : v, (p, columns) float64; not compared when a run resumes, for other processors round them otherwise
    step : the step that they belong to, by which a run knows the sweep
    residual : whether targets are read
    folds : which fold tests a row; rows below −1 are left out. None: nothing is held out
    """

    features: IdentityMap | LandmarkMap | FourierMap
    targets: Targets
    vectors: Array = field(metadata={"identity": False})  # `data.fingerprint.NOT_COMPARED`
    step: str
    residual: bool = False
    folds: Folds | None = None

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        (p, columns), c = self.vectors.shape, self.targets.width
        g = self.folds.count + 1 if self.folds else 1
        shapes: dict[str, tuple[int, ...]] = {"U": (p, columns)}
        if self.residual:
            shapes |= {"rows": (g,), "n": (g,), "s": (g, p), "t": (g, c), "q": (g, c)}
            shapes |= dict.fromkeys(("e", "sse", "squares"), (columns,))
            shapes |= dict.fromkeys(("held_e", "held_sse") if self.folds else (), (columns,))
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        (p, columns), c = self.vectors.shape, self.targets.width
        g = self.folds.count + 1 if self.folds else 1
        return Footprint(
            flops_per_row=self.features.cost.flops_per_row + 4.0 * p * columns + 2.0 * p * g * self.residual,
            partial_bytes=8 * (p * (columns + g) + (5 if self.folds else 3) * columns + 2 * g * (c + 1)),
            work_bytes=self.features.cost.fixed_bytes
            + block_rows * (self.features.cost.row_bytes + 8 * (c + 4))
            + tile_bytes(columns + g)
            + 16 * p * (columns + g),
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        if chunk.y is None:
            raise DataError("y: labels are needed and the input has none")
        fold = np.full(len(chunk), -1) if self.folds is None else self.folds.of(chunk)
        used = self.targets.labelled(chunk.y, chunk.start) & (fold >= -1)
        for block in chunk.blocks(None if used.all() else np.flatnonzero(used)):
            phi = self.features.block(chunk, block)
            with chunk.work.stage("product"):
                w = None if chunk.weight is None else weights_of(chunk, block)
                y = None
                if self.residual:
                    y = chunk.work.buffer("targets", (len(phi), self.targets.width), np.float64)
                    self.targets.encode(chunk.y[block], y)
                for strip in _strips(phi):
                    weight, wanted = (None if given is None else given[strip] for given in (w, y))
                    self._add(total, chunk, phi[strip], weight, wanted, fold[block][strip])

    def _add(self, total: Accumulator, chunk: Chunk, phi: Array, w: Array | None, y: Array | None, fold: Array) -> None:
        """Add rows (b, p) with their weights and folds (b,), and their targets (b, c)."""
        count, weight = self.folds.count if self.folds else 0, np.ones(len(phi)) if w is None else w
        values: Array = products(chunk, phi, self.vectors).reshape(len(phi), max(count, 1), -1)
        held = np.flatnonzero(fold >= 0)
        own = fold[held]
        if y is not None:
            by_group = np.zeros((len(phi), count + 1))  # the weight of a row, in the column of its group
            by_group[np.arange(len(phi)), np.where(fold < 0, count, fold)] = weight
            total["rows"] += (by_group != 0).sum(axis=0)
            total["n"] += by_group.sum(axis=0)
            total["t"] += by_group.T @ y
            total["q"] += by_group.T @ y**2
            squares = values**2
            squares[held, own] = 0
            total["squares"] += weight @ squares.reshape(len(phi), -1)
            # y is the same for every group of c columns
            values = np.tile(y, values.shape[2] // self.targets.width)[:, None] - values
            if self.folds:
                total["held_e"] += (by_group[held, :count].T @ values[held, own]).ravel()
                total["held_sse"] += (by_group[held, :count].T @ values[held, own] ** 2).ravel()
        values[held, own] = 0
        values = values.reshape(len(phi), -1)
        if y is not None:
            total["e"] += weight @ values
            total["sse"] += weight @ values**2
        weighted = values if w is None else weight[:, None] * values
        for columns, wide in _tiles(chunk, phi):
            total["U"][columns] += wide.T @ weighted
            if y is not None:
                total["s"][:, columns] += by_group.T @ wide


def products(chunk: Chunk, phi: Array, vectors: Array) -> Array:
    """Multiply rows (b, p) with vectors (p, c) in float64."""
    values: Array = np.zeros((len(phi), vectors.shape[1]))
    for strip in _strips(phi):
        for columns, wide in _tiles(chunk, phi[strip]):
            values[strip] += wide @ vectors[columns]
    return values


def tile_bytes(c: int) -> int:
    """Give the working memory of products with c vectors, beside what they read and give."""
    rows, columns = _TILE
    return 8 * (rows * (columns + 4 * c) + 2 * columns * c)


def _strips(phi: Array) -> Iterator[slice]:
    """Cut a block into strips of rows."""
    for start in range(0, len(phi), _TILE[0]):
        yield slice(start, min(start + _TILE[0], len(phi)))


def _tiles(chunk: Chunk, phi: Array) -> Iterator[tuple[slice, Array]]:
    """Cut rows (b, p) into tiles of columns in float64; one buffer serves them all."""
    for start in range(0, phi.shape[1], _TILE[1]):
        columns = slice(start, min(start + _TILE[1], phi.shape[1]))
        wide = chunk.work.buffer("wide", (_TILE[0] * _TILE[1],), np.float64)[: phi[:, columns].size]
        tile = wide.reshape(len(phi), -1)
        np.copyto(tile, phi[:, columns])
        yield columns, tile
