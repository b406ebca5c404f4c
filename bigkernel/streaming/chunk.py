"""What a statistic sees of the data: a chunk of rows with its columns, and the buffers to work in.

A chunk is the streaming step (n rows of the store, as stored). Rows leave it block by block, converted to the dtype of
the computation and passed through the row maps (scale, unit norm, standardize), in a buffer that is allocated once a
task. Shapes: n rows of a chunk, b ≤ block_rows rows of a block, d features.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError

Array = NDArray[Any]


class RowMap(Protocol):
    """A row-wise transform of d features: what it gives for a row depends on that row alone."""

    name: ClassVar[str]

    def width(self, d: int) -> int:
        """Features of a row that has d before; `DataError` where it takes no rows of d features."""

    def cost(self, d: int, itemsize: int) -> MapCost:
        """What a row of d features costs, in a dtype of `itemsize` bytes."""

    def apply(self, x: Array) -> Array:
        """The transformed rows, (b, width(d)), of x (b, d), float32 or float64, which it may change; of its dtype."""


@dataclass(frozen=True)
class MapCost:
    """Flops a row, bytes of buffers a row beside the rows themselves, and bytes that the map takes in a process."""

    flops_per_row: float = 0.0
    row_bytes: int = 0
    fixed_bytes: int = 0


class SameWidth:
    """A row map in place: d features to d features, at a cost that is not counted."""

    def width(self, d: int) -> int:
        """See `RowMap`."""
        return d

    def cost(self, d: int, itemsize: int) -> MapCost:
        """See `RowMap`."""
        return MapCost()


def mapped_width(row_maps: Sequence[RowMap], d: int) -> int:
    """Features of a row of d after the maps."""
    for row_map in row_maps:
        d = row_map.width(d)
    return d


def apply_maps(row_maps: Sequence[RowMap], x: Array, block_rows: int = 2048) -> Array:
    """Rows x (n, d), float32 or float64, after the maps, (n, width); a block at a time, so that buffers stay small.

    x may be changed, and may be what is returned.
    """
    width = mapped_width(row_maps, x.shape[1])
    out = x if width == x.shape[1] else np.empty((len(x), width), x.dtype)
    for start in range(0, len(x), block_rows):
        mapped = x[start : start + block_rows]
        for row_map in row_maps:
            mapped = row_map.apply(mapped)
        out[start : start + block_rows] = mapped
    return out


def map_costs(row_maps: Sequence[RowMap], d: int, itemsize: int) -> MapCost:
    """What all maps cost together; one that changes the width needs its rows before and after it."""
    flops, row_bytes, fixed = 0.0, 0, 0
    for row_map in row_maps:
        cost, after = row_map.cost(d, itemsize), row_map.width(d)
        flops, fixed = flops + cost.flops_per_row, fixed + cost.fixed_bytes
        row_bytes = max(row_bytes, cost.row_bytes + (d + after) * itemsize * (after != d))
        d = after
    return MapCost(flops, row_bytes, fixed)


@dataclass(frozen=True)
class Scale(SameWidth):
    """x·factor, for example 1/255 for pixels."""

    factor: float
    name: ClassVar[str] = "scale"

    def apply(self, x: Array) -> Array:
        """See `RowMap`."""
        np.multiply(x, x.dtype.type(self.factor), out=x)
        return x


@dataclass(frozen=True)
class UnitNorm(SameWidth):
    """x/‖x‖₂; a row of zeros stays as it is."""

    name: ClassVar[str] = "unit-norm"

    def apply(self, x: Array) -> Array:
        """See `RowMap`."""
        limits = np.finfo(x.dtype)
        with np.errstate(over="ignore", under="ignore"):
            squares = np.einsum("ij,ij->i", x, x)
        extreme = ~((squares > limits.tiny / limits.eps) & (squares <= limits.max))
        if extreme.any():  # squares that leave the range of the dtype, and zeros: bring the largest value to 1 first
            largest = np.abs(x[extreme]).max(axis=1, initial=0)
            x[extreme] /= np.where(largest == 0, 1, largest)[:, None]
            squares[extreme] = np.einsum("ij,ij->i", x[extreme], x[extreme])
            squares[squares == 0] = 1
        np.divide(x, np.sqrt(squares)[:, None], out=x)
        return x


@dataclass(frozen=True, eq=False)
class Standardize(SameWidth):
    """(x − mean)/std per feature; std is 1 where a feature does not vary."""

    mean: Array
    std: Array
    name: ClassVar[str] = "standardize"

    def apply(self, x: Array) -> Array:
        """See `RowMap`."""
        np.subtract(x, self.mean.astype(x.dtype), out=x)
        np.divide(x, self.std.astype(x.dtype), out=x)
        return x


@dataclass
class Workspace:
    """Buffers of one task, allocated on first use, and the seconds spent in each stage."""

    buffers: dict[str, Array] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def buffer(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """The first `shape` of the buffer `name`; it grows along its first axis when more is asked, never shrinks."""
        held = self.buffers.get(name)
        if held is None or held.dtype != dtype or held.shape[1:] != shape[1:] or len(held) < shape[0]:
            held = self.buffers[name] = np.empty(shape, dtype)
        return held[: shape[0]]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass
class Chunk:
    """Rows start … start + n of the input.

    Attributes
    ----------
    x : (n, d), as stored
    y, weight, domain, group, fold : (n,) (y also (n, c)), or None
    start : row id of the first row
    row_maps : applied in order to every block
    block_rows : most rows of a block
    work : buffers and stage times of the task
    """

    x: Array
    start: int = 0
    y: Array | None = None
    weight: Array | None = None
    domain: Array | None = None
    group: Array | None = None
    fold: Array | None = None
    row_maps: tuple[RowMap, ...] = ()
    block_rows: int = 2048
    work: Workspace = field(default_factory=Workspace)

    def __len__(self) -> int:
        return len(self.x)

    def blocks(self, index: Array | None = None) -> Iterator[slice | Array]:
        """The rows of the chunk (or those of `index`) in blocks of about equal size."""
        count = len(self) if index is None else len(index)
        parts = -(-count // self.block_rows)
        for i in range(parts):
            block = slice(count * i // parts, count * (i + 1) // parts)
            yield block if index is None else index[block]

    def load(self, block: slice | Array, columns: int, dtype: Any) -> Array:
        """Rows of a block, converted and mapped, in a (b, columns) buffer whose first columns they fill."""
        with self.work.stage("convert"):
            x = self.x[block]
            d = x.shape[1]
            rows = self.work.buffer("rows", (len(x), columns), dtype)
            plain = mapped_width(self.row_maps, d) == d <= columns
            mapped = rows[:, :d] if plain else self.work.buffer("unmapped rows", x.shape, dtype)
            with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite: as far as rows can be
                np.copyto(mapped, x, casting="unsafe")
            for row_map in self.row_maps:
                mapped = row_map.apply(mapped)
            filled = rows[:, : mapped.shape[1]]
            if not np.may_share_memory(mapped, filled):
                np.copyto(filled, mapped)
        return rows

    def require_finite(self, name: str) -> None:
        """Raise `DataError` naming the first rows of `x` (of input `name`) that are not finite, and their number."""
        self._refuse(_unsound(self.x), name, "contain NaN or infinity", "remove or impute them")

    def require_sound(self, name: str) -> None:
        """`require_finite`, and the same of infinite numbers in `y` (NaN: unlabelled) and of `weight`.

        Raises
        ------
        DataError
            Names the array, the first rows and how many there are.
        """
        self.require_finite(name)
        self._refuse(_unsound(self.y, missing=True), "y", "are infinite", "NaN marks unlabelled rows")
        self._refuse(_unsound(self.weight), "weight", "are NaN or infinite", "expected finite numbers")

    def faults(self) -> Array:
        """Which rows `require_sound` refuses, (n,) bool."""
        bad = np.zeros(len(self), bool)
        for found in (_unsound(self.x), _unsound(self.y, missing=True), _unsound(self.weight)):
            if found is not None:
                bad |= found
        return bad

    def without(self, bad: Array, *, fresh: bool = False) -> Chunk:
        """The chunk with the rows `bad` (n,) bool blanked: x and weight 0, y missing where it holds such a number.

        They count nothing in any statistic, and every other row keeps its place. `fresh`: x is nobody else's, and is
        written rather than copied.
        """
        x, y = self.x if fresh and self.x.flags.writeable else self.x.copy(), self.y
        x[bad] = 0
        if y is not None and y.dtype.kind == "f":
            y = np.where(np.isinf(y), np.asarray(np.nan, y.dtype), y)
        weight = np.ones(len(self)) if self.weight is None else np.asarray(self.weight, np.float64)
        return replace(self, x=x, y=y, weight=np.where(bad, 0.0, weight))

    def _refuse(self, bad: Array | None, name: str, what: str, advice: str) -> None:
        if bad is not None:
            first = np.flatnonzero(bad)
            raise DataError(
                f"{name}: {len(first)} of rows {self.start} to {self.start + len(self) - 1} {what}, the first are "
                f"{(self.start + first[:5]).tolist()}; {advice}, or skip such rows (Rows.skip_bad_rows)"
            )


def _unsound(values: Array | None, *, missing: bool = False) -> NDArray[np.bool_] | None:
    """Rows with a value that is not finite, (n,) bool, or None: there is none; `missing`: NaN may stand."""
    if values is None or values.dtype.kind not in "fc":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values, dtype=np.float64)):
            return None
    wrong: Array = np.isinf(values) if missing else ~np.isfinite(values)
    bad: Array = np.any(wrong, axis=tuple(range(1, values.ndim)))
    return bad if bad.any() else None
