"""Chunks of rows with their columns, row maps and work buffers: the input of a statistic.

A chunk is the streaming step (n rows as stored). It yields rows block by block, converted to the dtype of the
computation and transformed by the row maps, in a buffer that is allocated once per task. Where blocks are computed on a
device, the rows of a chunk are copied there once, as stored (after row maps, which the host applies). Shapes: n rows of
a chunk, b ≤ block_rows rows of a block, d features.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Protocol, TypeGuard

import numpy as np
from numpy.typing import DTypeLike

from bigkernel.arrays import Array, DType, Index
from bigkernel.errors import DataError
from bigkernel.streaming.devices import HOST, Device, converted, dtype_of

DTYPES = (np.float64, np.float32, np.uint8, np.int8, np.uint16, np.int16)  # streamed without conversion
LARGEST_WHOLE = 2**53  # up to which float64 tells whole numbers apart
_DTYPES = frozenset(map(np.dtype, DTYPES))


class RowMap(Protocol):
    """A row-wise transform of d features, whose result depends on one row only."""

    name: ClassVar[str]

    def width(self, d: int) -> int:
        """Return the number of features of a mapped row of d features; `DataError` if it cannot have d."""

    def cost(self, d: int, itemsize: int) -> MapCost:
        """Return the cost of mapping a row of d features of `itemsize` bytes."""

    def apply(self, x: Array) -> Array:
        """Transform x (b, d), float32 or float64, possibly in place; return (b, width(d)) of its dtype."""


@dataclass(frozen=True)
class MapCost:
    """Flops per row, buffer bytes per row besides the rows themselves, and bytes of the map in a process."""

    flops_per_row: float = 0.0
    row_bytes: int = 0
    fixed_bytes: int = 0


def mapped_width(row_maps: Sequence[RowMap], d: int) -> int:
    """Return the number of features of a row of d after the maps."""
    for row_map in row_maps:
        d = row_map.width(d)
    return d


def apply_maps(row_maps: Sequence[RowMap], x: Array, block_rows: int = 2048) -> Array:
    """Map rows x (n, d), float32 or float64, to (n, width), a block at a time and in place where possible."""
    width = mapped_width(row_maps, x.shape[1])
    out = x if width == x.shape[1] else np.empty((len(x), width), x.dtype)
    for start in range(0, len(x), block_rows):
        mapped = x[start : start + block_rows]
        for row_map in row_maps:
            mapped = row_map.apply(mapped)
        out[start : start + block_rows] = mapped
    return out


def map_costs(row_maps: Sequence[RowMap], d: int, itemsize: int) -> MapCost:
    """Add up the costs of maps; one that changes the width needs rows before and after it."""
    flops, row_bytes, fixed = 0.0, 0, 0
    for row_map in row_maps:
        cost, after = row_map.cost(d, itemsize), row_map.width(d)
        flops, fixed = flops + cost.flops_per_row, fixed + cost.fixed_bytes
        row_bytes = max(row_bytes, cost.row_bytes + (d + after) * itemsize * (after != d))
        d = after
    return MapCost(flops, row_bytes, fixed)


@dataclass
class Workspace:
    """Buffers of one task, allocated on first use, the seconds of each stage, and the number of skipped bad rows.

    `on_block` is called with the number of rows of every block that a statistic has processed. `kept_bytes`: most bytes
    of blocks that the process keeps for later sweeps. `device`: where blocks are computed.
    """

    buffers: dict[str, Array] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    on_block: Callable[[int], None] | None = None
    skipped: int = 0
    kept_bytes: int = 0
    device: Device = HOST
    sums: dict[str, Array] = field(default_factory=dict)  # on the device, of the rows since `collect`
    rows: tuple[Array, DType | None, Array] | None = None  # those of a chunk, the dtype of their maps, and their copy

    def buffer(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the first `shape` of the buffer `name`, which grows along its first axis and never shrinks."""
        held = self.buffers.get(name)
        if self.device is not HOST:
            if held is None or dtype_of(held) != dtype or held.shape[1:] != shape[1:] or held.shape[0] < shape[0]:
                held = None
                self.buffers.pop(name, None)  # before there are two of them on the device
                held = self.buffers[name] = self.device.empty(shape, dtype)
            return held[: shape[0], ...]
        if held is None or held.dtype != dtype or held.shape[1:] != shape[1:] or len(held) < shape[0]:
            held = self.buffers[name] = np.empty(shape, dtype)
        return held[: shape[0]]

    @property
    def on_host(self) -> bool:
        """Whether blocks are NumPy's."""
        return self.device is HOST

    @cached_property
    def beside(self) -> Workspace:
        """Buffers of the host for what is not computed on the device, with the same stages."""
        return Workspace(seconds=self.seconds)

    def place(self, chunk: Chunk, dtype: DType) -> Array:
        """Return the rows of a chunk on the device, as stored or mapped by the host in `dtype`; copied once."""
        of_maps = dtype if chunk.row_maps else None
        if self.rows is None or self.rows[0] is not chunk.x or self.rows[1] != of_maps:
            self.rows = None  # its memory is reused
            with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite
                x = apply_maps(chunk.row_maps, chunk.x.astype(dtype)) if of_maps else chunk.x
            self.rows = chunk.x, of_maps, self.device.array(x)
        return self.rows[2]

    def summed(self, total: dict[str, Array], *names: str) -> dict[str, Array]:
        """Return what to add to for some sums of a total: itself, or sums on the device, which `collect` adds to it."""
        if self.on_host:
            return total
        self.sums |= {name: self.device.zeros(total[name].shape) for name in names if name not in self.sums}
        return self.sums

    def collect(self, total: dict[str, Array]) -> None:
        """Add the sums on the device to the total of a segment, and forget them."""
        for name, values in self.sums.items():
            total[name] += self.device.to_host(values)
        self.sums = {}

    def stage(self, name: str) -> Stage:
        """Return a context that adds its time to the stage `name`."""
        return Stage(self.seconds, name, self.device)


@dataclass(slots=True)
class Stage:
    """A context that adds its duration to the seconds of a stage; a class, since a generator is slower."""

    seconds: dict[str, float]
    name: str
    device: Device = HOST  # waited for, so that times and errors belong to their stage
    start: float = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self.device is not HOST:
            self.device.wait()
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + time.perf_counter() - self.start


@dataclass
class Chunk:
    """Rows start … start + n of the input."""

    x: Array  # (n, d), as stored
    start: int = 0  # row id of the first row
    y: Array | None = None  # (n,) or (n, c); the other columns (n,)
    weight: Array | None = None
    domain: Array | None = None
    group: Array | None = None
    fold: Array | None = None
    row_maps: tuple[RowMap, ...] = ()  # applied in order to every block
    block_rows: int = 2048  # most rows of a block
    work: Workspace = field(default_factory=Workspace)  # buffers and stage times of the task

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def blocks(self, index: Array | None = None) -> Iterator[Index]:
        """Yield the rows of the chunk (or those of `index`) in blocks of about equal size."""
        count = len(self) if index is None else len(index)
        blocks = -(-count // self.block_rows)
        for i in range(blocks):
            block = slice(count * i // blocks, count * (i + 1) // blocks)
            yield block if index is None else index[block]
            if self.work.on_block is not None:
                self.work.on_block(block.stop - block.start)

    def load(self, block: Index, columns: int, dtype: DTypeLike) -> Array:
        """Convert and map the rows of a block into the first columns of a (b, columns) buffer."""
        with self.work.stage("convert"):
            if self.work.device is not HOST:
                return self._load_placed(block, columns, np.dtype(dtype))
            x = self.x[block]
            d = x.shape[1]
            rows = self.work.buffer("rows", (x.shape[0], columns), dtype)
            if not self.row_maps and x.dtype == dtype:
                rows[:, :d] = x
                return rows
            plain = mapped_width(self.row_maps, d) == d <= columns
            mapped = rows[:, :d] if plain else self.work.buffer("unmapped rows", x.shape, dtype)
            with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite
                np.copyto(mapped, x, casting="unsafe")
            for row_map in self.row_maps:
                mapped = row_map.apply(mapped)
            filled = rows[:, : mapped.shape[1]]
            if not np.may_share_memory(mapped, filled):
                np.copyto(filled, mapped)
        return rows

    def _load_placed(self, block: Index, columns: int, dtype: DType) -> Array:
        work, xp = self.work, self.work.device.xp
        placed = work.place(self, dtype)
        x = placed[block, :] if isinstance(block, slice) else xp.take(placed, work.device.array(block), axis=0)
        rows = work.buffer("rows", (x.shape[0], columns), dtype)
        rows[:, : x.shape[1]] = converted(x, dtype)
        return rows

    def on_host(self) -> Chunk:
        """Return the chunk for what is computed on the host, with buffers there."""
        return self if self.work.on_host else replace(self, work=self.work.beside)

    def require_finite(self, name: str) -> None:
        """Raise `DataError` with the number of rows of `x` (input `name`) that are not finite, and the first of them.

        Also for infinite numbers in `y` (NaN: unlabelled), and NaN or infinity in `weight`.
        """
        if (bad := nonfinite_rows(self.x)) is not None:
            whole = "whole numbers beyond 2**53, which float64 rounds"
            what = "NaN or infinity" if self.x.dtype.kind == "f" else whole
            self._refuse(bad, name, f"contain {what}", "remove or impute them")
        if (bad := nonfinite_rows(self.y, missing=True)) is not None:
            self._refuse(bad, "y", "are infinite", "NaN marks unlabelled rows")
        if (bad := nonfinite_rows(self.weight)) is not None:
            self._refuse(bad, "weight", "are NaN or infinite", "expected finite numbers")

    def faults(self) -> Array:
        """Return the rows that `require_finite` rejects, (n,) bool."""
        bad = np.zeros(len(self), bool)
        for rows in (nonfinite_rows(self.x), nonfinite_rows(self.y, missing=True), nonfinite_rows(self.weight)):
            if rows is not None:
                bad |= rows
        return bad

    def without(self, bad: Array, *, fresh: bool = False) -> Chunk:
        """Blank the rows `bad` (n,) bool: x and weight 0, infinite y missing.

        They add nothing to any statistic, and all other rows keep their position. `fresh`: x is not shared and may be
        written in place.
        """
        x, y = self.x if fresh and self.x.flags.writeable else self.x.copy(), self.y
        x[bad] = 0
        if y is not None and y.dtype.kind == "f":
            y = y.copy()
            y[np.isinf(y).reshape(len(y), -1).any(axis=1)] = np.nan
        weight = np.ones(len(self)) if self.weight is None else np.asarray(self.weight, np.float64)
        return replace(self, x=x, y=y, weight=np.where(bad, 0.0, weight))

    def _refuse(self, bad: Array, name: str, what: str, advice: str) -> None:
        first = np.flatnonzero(bad)
        raise DataError(
            f"{name}: {len(first)} of rows {self.start} to {self.start + len(self) - 1} {what}, the first are "
            f"{(self.start + first[:5]).tolist()}; {advice}, or skip them (Rows.skip_bad_rows)"
        )


def is_plain(X: object, n_features: int) -> TypeGuard[Array]:
    """Return whether X is a finite NumPy matrix, of one or more rows of `n_features`, that needs no conversion.

    Takes a few microseconds, as predictions of single rows require.
    """
    if type(X) is not np.ndarray or X.ndim != 2 or X.dtype not in _DTYPES:
        return False
    return X.shape[1] == n_features and len(X) > 0 and (X.dtype.kind != "f" or bool(np.isfinite(X).all()))


def nonfinite_rows(values: Array | None, *, missing: bool = False) -> Array | None:
    """Return the rows with a value that is not finite, (n,) bool, or None; `missing`: NaN and any labels are allowed.

    Whole numbers beyond those of float64 count as infinite.
    """
    if values is None:
        return None
    wrong = None if missing else rounded_cells(values)
    if values.dtype.kind in "fc":
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.sum(values, dtype=np.float64)):
                return None
        wrong = np.isinf(values) if missing else ~np.isfinite(values)
    if wrong is None:
        return None
    bad: Array = np.any(wrong, axis=tuple(range(1, values.ndim)))
    return bad if bad.any() else None


def rounded_cells(values: Array) -> Array | None:
    """Return which whole numbers float64 would round, bool; None: no one."""
    if values.dtype.kind == "O":
        whole = [isinstance(one, int | np.integer) and abs(int(one)) > LARGEST_WHOLE for one in values.flat]
        beyond: Array = np.array(whole, bool).reshape(values.shape)
    elif values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return None
    else:
        beyond = (values > LARGEST_WHOLE) | (values < -LARGEST_WHOLE)
    return beyond if beyond.any() else None
