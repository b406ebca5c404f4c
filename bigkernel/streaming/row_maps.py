"""Row maps: transforms that depend on one row only (scaling, unit norm, a projection); see `chunk.RowMap`.

Shapes: b rows of a block, d features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from bigkernel.arrays import Array, DType
from bigkernel.errors import DataError
from bigkernel.streaming.chunk import MapCost, RowMap, apply_maps, map_costs, mapped_width


class SameWidth:
    """Base of row maps that keep the number of features and work in place; their cost is neglected."""

    def width(self, d: int) -> int:
        return d

    def cost(self, d: int, itemsize: int) -> MapCost:
        return MapCost()


def float_of(dtype: DTypeLike) -> DType:
    """Return the dtype in which rows in memory are mapped: float64 for 8-byte numbers, else float32."""
    return np.dtype(np.float64 if np.dtype(dtype).itemsize > 4 else np.float32)


def map_rows(x: Array, row_map: RowMap, dtype: DType) -> Array:
    """Map rows x (n, d) in memory to (n, width) of `dtype`; x is not changed, and rows with NaN become NaN.

    `DataError`: a finite row becomes infinite or NaN.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mapped = apply_maps((row_map,), np.array(x, dtype, copy=True, order="C"))
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        mapped[~np.isfinite(x).all(axis=1)] = np.nan  # a kernel or a cosine of them may be finite
    elif not np.isfinite(mapped).all():
        row = int(np.argmin(np.isfinite(mapped).all(axis=1)))
        raise DataError(f"X: row {row} exceeds the range of {dtype} after the transform; scale the rows")
    return mapped


@dataclass(frozen=True)
class Scale(SameWidth):
    """x·factor, for example 1/255 for pixels."""

    factor: float
    name: ClassVar[str] = "scale"

    def apply(self, x: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # the reader checks for infinity
            np.multiply(x, np.asarray(self.factor).astype(x.dtype), out=x)
        return x


@dataclass(frozen=True)
class UnitNorm(SameWidth):
    """x/‖x‖₂; rows of zeros are kept."""

    name: ClassVar[str] = "unit-norm"

    def apply(self, x: Array) -> Array:
        limits = np.finfo(x.dtype)
        with np.errstate(over="ignore", under="ignore"):
            squares = np.einsum("ij,ij->i", x, x)
        extreme = ~((squares > limits.tiny / limits.eps) & (squares <= limits.max))
        if extreme.any():  # squares beyond the range of the dtype, and zeros: scale the largest value to 1 first
            largest = np.abs(x[extreme]).max(axis=1, initial=0)
            x[extreme] /= np.where(largest == 0, 1, largest)[:, None]
            squares[extreme] = np.einsum("ij,ij->i", x[extreme], x[extreme])
            squares[squares == 0] = 1
        np.divide(x, np.sqrt(squares)[:, None], out=x)
        return x


@dataclass(frozen=True, eq=False)
class Standardize(SameWidth):
    """(x − mean)/std per feature; std is 1 for constant features."""

    mean: Array
    std: Array
    name: ClassVar[str] = "standardize"

    def width(self, d: int) -> int:
        shapes = self.mean.shape, self.std.shape
        if shapes != ((d,), (d,)):
            raise DataError(f"{self.name}: expected mean and deviation of {d} features, found the shapes {shapes}")
        return d

    def apply(self, x: Array) -> Array:
        np.subtract(x, self.mean.astype(x.dtype), out=x)
        np.divide(x, self.std.astype(x.dtype), out=x)
        return x


@dataclass(frozen=True, eq=False)
class TakeColumns:
    """The features at some positions, in their order."""

    positions: Array
    name: ClassVar[str] = "columns"

    def width(self, d: int) -> int:
        return len(self.positions)

    def cost(self, d: int, itemsize: int) -> MapCost:
        return MapCost(row_bytes=len(self.positions) * itemsize)

    def apply(self, x: Array) -> Array:
        return np.take(x, self.positions, axis=1)


class _Turned(ABC):
    """Base of row maps that replace columns by points of circles or spheres, behind the other columns."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def replaced(self) -> Array:
        """Positions of the columns that are replaced."""

    @abstractmethod
    def points(self, x: Array) -> list[Array]:
        """Compute the new columns (n,) from those that are replaced, (n, k)."""

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the features after the map; () if those before it are unknown."""
        if not before:
            return ()
        kept = [name for i, name in enumerate(before) if i not in self.replaced]
        return (*kept, *(f"{self.name} {i}" for i in range(self.width(len(before)) - len(kept))))

    def width(self, d: int) -> int:
        taken = self.replaced
        if not (len({*taken.tolist()}) == len(taken) and ((taken >= 0) & (taken < d)).all()):
            raise DataError(f"{type(self).__name__}: expected distinct columns of {d}, found {taken.tolist()}")
        return d - len(taken) + len(self.points(np.zeros((0, len(taken)))))

    def cost(self, d: int, itemsize: int) -> MapCost:
        width = self.width(d)
        return MapCost(40.0 * width, 2 * width * itemsize)

    def apply(self, x: Array) -> Array:
        points = self.points(x[:, self.replaced])
        return np.column_stack([np.delete(x, self.replaced, axis=1), *points]).astype(x.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Circles(_Turned):
    """Columns of some periods p as points of unit circles, cos 2πx/p and sin 2πx/p, behind the other columns."""

    columns: Array  # (k,) positions
    periods: Array  # (k,)
    name: ClassVar[str] = "periodic"

    @property
    def replaced(self) -> Array:
        return self.columns

    def points(self, x: Array) -> list[Array]:
        angles = (2 * np.pi / self.periods).astype(x.dtype) * x
        return [turn(angles[:, i]) for i in range(angles.shape[1]) for turn in (np.cos, np.sin)]


@dataclass(frozen=True, eq=False)
class Sphere(_Turned):
    """Latitude and longitude in degrees as points of a sphere, (3,), behind the other columns."""

    latitude: int  # position of the column
    longitude: int
    radius: float
    name: ClassVar[str] = "on-sphere"

    @property
    def replaced(self) -> Array:
        return np.array([self.latitude, self.longitude])

    def points(self, x: Array) -> list[Array]:
        if (beyond := np.abs(x[:, 0]) > 90.0001).any():  # but for rounding
            raise DataError(
                f"{self.name}: expected latitudes from -90 to 90 degrees, found {x[beyond, 0][0]:g} in column "
                f"{self.latitude}; check that latitude and longitude have not changed places"
            )
        up, east = np.deg2rad(x).T
        level = np.asarray(self.radius, x.dtype) * np.cos(up)
        return [level * np.cos(east), level * np.sin(east), np.asarray(self.radius, x.dtype) * np.sin(up)]


# Every product has the same number of rows, so that with one BLAS thread the bits of a row never depend on its place.
# OpenBLAS' float32 kernel for AVX2 sums the first and the last eight rows of a call in another order than those between
# them, which hold ours. A product with one column would call another routine.
_TILE, _MARGIN, _LEAST_COLUMNS = 312, 8, 2


@dataclass(frozen=True, eq=False)
class LinearMap:
    """(x − centre)W: d features to r."""

    centre: Array  # (d,)
    weights: Array  # W (d, r)
    name: ClassVar[str] = "linear"

    def width(self, d: int) -> int:
        if self.centre.shape != (d,) or len(self.weights) != d:
            raise DataError(f"{self.name}: expected rows of {len(self.centre)} features, found {d}")
        return int(self.weights.shape[1])

    def cost(self, d: int, itemsize: int) -> MapCost:
        r = max(self.weights.shape[1], _LEAST_COLUMNS)
        share = _TILE / (_TILE - 2 * _MARGIN)
        return MapCost(2.0 * d * r * share, 0, (8 + itemsize) * d * (r + 1) + _TILE * (d + r) * itemsize)

    def apply(self, x: Array) -> Array:
        d, r = x.shape[1], self.width(x.shape[1])
        out = np.empty((len(x), r), x.dtype)
        centre, weights = self.centre.astype(x.dtype), np.zeros((d, max(r, _LEAST_COLUMNS)), x.dtype)
        weights[:, :r] = self.weights
        tile, product = np.zeros((_TILE, d), x.dtype), np.empty((weights.shape[1], _TILE), x.dtype)
        step = _TILE - 2 * _MARGIN
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(x), step):
                rows = x[first : first + step]
                inside = slice(_MARGIN, _MARGIN + len(rows))
                np.subtract(rows, centre, out=tile[inside])
                np.matmul(weights.T, tile.T, out=product)  # so that rows of the tile are rows of the BLAS call
                out[first : first + len(rows)] = product[:r, inside].T
        return out


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Concatenate the features of several chains of row maps of a row, each multiplied by its scale."""

    chains: tuple[tuple[RowMap, ...], ...]
    scales: tuple[float, ...]  # one per chain
    name: ClassVar[str] = "side-by-side"

    def width(self, d: int) -> int:
        return sum(mapped_width(chain, d) for chain in self.chains)

    def cost(self, d: int, itemsize: int) -> MapCost:
        costs = [map_costs(chain, d, itemsize) for chain in self.chains]
        widest = max(d + mapped_width(chain, d) for chain in self.chains) * itemsize
        row_bytes = max(cost.row_bytes for cost in costs) + widest
        flops = sum(cost.flops_per_row for cost in costs)
        return MapCost(flops, row_bytes, sum(cost.fixed_bytes for cost in costs))

    def apply(self, x: Array) -> Array:
        out = np.empty((len(x), self.width(x.shape[1])), x.dtype)
        first = 0
        for chain, scale in zip(self.chains, self.scales, strict=True):
            mapped = x.copy()
            for row_map in chain:
                mapped = row_map.apply(mapped)
            last = first + mapped.shape[1]
            with np.errstate(over="ignore", invalid="ignore"):
                np.multiply(mapped, np.asarray(scale).astype(x.dtype), out=out[:, first:last])
            first = last
        return out
