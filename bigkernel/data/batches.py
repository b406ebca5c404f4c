"""Batches of rows: what Python holds, a few MB at a time, as `write_corpus` takes it.

Shapes: n rows, d features; a batch has k rows. Arrays, frames and matrices of any library are told by what they can do,
so that none is imported for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask
import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.config import settings
from bigkernel.errors import DataError

Array = NDArray[Any]
COLUMNS = ("y", "weight", "domain", "group")


@dataclass(frozen=True)
class Batch:
    """Rows `start` and up of `name`, by what they are: x (k, d), and y, weight, domain, group (k,)."""

    name: str
    start: int
    values: dict[str, Array]
    file: int = 0
    image_shape: tuple[int, int] | None = None

    @property
    def kind(self) -> tuple[int, list[str]]:
        """What all batches of a corpus have alike: features, and names of columns."""
        return self.values["x"].shape[1], sorted(set(self.values) - {"x"})

    def require_finite(self) -> None:
        """Refuse values that are not finite, of rows or of weights."""
        for name in ("x", "weight"):
            values = self.values.get(name)
            if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
                bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[:5]
                raise DataError(
                    f"{self.name}: rows with NaN or infinite values in {name}, the first are "
                    f"{(self.start + bad).tolist()}; clean or leave them out"
                )


def batches_of(X: Any, columns: Mapping[str, Any]) -> Iterator[Batch]:
    """Yield the rows of X with what goes with them.

    Parameters
    ----------
    X : what `write_corpus` takes
    columns : y, weight, domain, group, each (n,)
    """
    if isinstance(X, Iterator):
        if columns:
            raise DataError(f"{next(iter(columns))}: X comes in pieces; let each piece bring its own, as a pair (X, y)")
        for number, piece in enumerate(X):
            yield from _of_values(f"piece {number} of X", *_parted(piece))
    elif hasattr(X, "batches"):  # a corpus, rows, a source
        recuts = {key: _Recut(values, key) for key, values in columns.items()}
        start = 0
        for values in X.batches():
            count = len(values["x"])
            taken = {key: recut.take(count) for key, recut in recuts.items()}
            yield Batch("X", start, {**values, **taken})
            start += count
        _require_ends(recuts, start)
    else:
        yield from _of_values("X", X, columns)


def _of_values(name: str, X: Any, columns: Mapping[str, Any]) -> Iterator[Batch]:
    count = _length(X)
    for key, values in columns.items():
        if count is not None and _length(values) not in (None, count):
            raise DataError(f"{key}: expected {count} values to go with {name}, found {_length(values)}")
    recuts, start = {key: _Recut(values, key) for key, values in columns.items()}, 0
    for x in _pieces(X, name):
        if x.dtype.kind not in "biuf" or x.ndim not in (2, 3) or not x[:1].size > 0 < len(x):
            raise DataError(
                f"{name}: expected numbers (n, d), or pictures (n, h, w), found {x.dtype} of shape {x.shape}"
            )
        taken = {key: recut.take(len(x)) for key, recut in recuts.items()}
        shape = (int(x.shape[1]), int(x.shape[2])) if x.ndim == 3 else None
        rows = x.reshape(len(x), -1)
        rows = rows.astype(np.uint8) if rows.dtype.kind == "b" else rows
        yield Batch(name, start, {"x": rows, **taken}, image_shape=shape)
        start += len(x)
    _require_ends(recuts, start)


def _parted(piece: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the rows and the columns of what an iterator gave."""
    if isinstance(piece, Mapping):
        unknown = sorted(set(piece) - {"x", *COLUMNS})
        if "x" not in piece or unknown:
            raise DataError(f"X: a piece has {', '.join(map(str, piece))}; expected x and any of {', '.join(COLUMNS)}")
        return piece["x"], {key: values for key, values in piece.items() if key != "x"}
    if isinstance(piece, tuple):
        if len(piece) != 2:
            raise DataError(f"X: a piece is a tuple of {len(piece)}; expected a pair (X, y)")
        return piece[0], {"y": piece[1]}
    return piece, {}


def _length(values: Any) -> int | None:
    """Return how many rows there are, where that is known without a pass over them."""
    shape = getattr(values, "shape", None)
    if shape is None:
        return len(values) if hasattr(values, "__len__") else None
    return int(shape[0]) if shape and isinstance(shape[0], int | np.integer) else None


def _pieces(values: Any, name: str) -> Iterator[Array]:
    """Yield rows (k, …) of an array, frame or matrix, in memory or lazy."""
    if hasattr(values, "dims") and hasattr(values, "data"):  # xarray
        values = values.data
    if dask.is_dask_collection(values) and hasattr(values, "chunks"):
        whole = values.rechunk(dict.fromkeys(range(1, values.ndim), -1))
        for i in range(whole.numblocks[0]):
            yield from _cut(np.asarray(whole.blocks[i].compute()))
    elif dask.is_dask_collection(values) and hasattr(values, "npartitions"):
        for i in range(values.npartitions):
            yield from _cut(_in_memory(values.partitions[i].compute(), name))
    elif hasattr(values, "chunks") and hasattr(values, "store_path"):  # zarr
        rows = values.chunks[0] * max(1, _rows_at_once(values) // values.chunks[0])
        for start in range(0, values.shape[0], rows):
            yield np.asarray(values[start : start + rows])
    elif sparse.issparse(values):
        rows, matrix = _rows_at_once(values), values.tocsr()
        for start in range(0, matrix.shape[0], rows):
            yield matrix[start : start + rows].toarray()
    else:
        yield from _cut(_in_memory(values, name))


def _cut(values: Array) -> Iterator[Array]:
    if not values.ndim:
        raise DataError(f"expected rows or a column, found {values!r}")
    step = _rows_at_once(values)
    bounds = (*range(0, len(values), step), len(values))
    return (values[start:stop] for start, stop in pairwise(bounds))


def _rows_at_once(values: Any) -> int:
    """Return how many rows have about the size of a chunk."""
    row_bytes = int(np.prod(values.shape[1:], dtype=object)) * values.dtype.itemsize
    return max(1, int(settings().chunk_bytes // max(1, row_bytes)))


def _in_memory(values: Any, name: str) -> Array:
    if is_dataframe_like(values):
        kinds = {column: kind for column, kind in values.dtypes.items() if getattr(kind, "kind", "O") not in "biuf"}
        if kinds:
            text = ", ".join(f"{column}: {kind}" for column, kind in list(kinds.items())[:5])
            raise DataError(f"{name}: columns that are no numbers ({text}); drop them or encode them")
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        row = int(np.argwhere(np.ma.getmaskarray(values))[0, 0])
        raise DataError(f"{name}: row {row} has masked values; fill them or leave the row out")
    return np.asarray(values)


class _Recut:
    """A column, handed out in the portions of the rows."""

    def __init__(self, values: Any, name: str) -> None:
        self.name = name
        self._blocks = _pieces(values, name)
        self._held: Array | None = None

    def take(self, count: int) -> Array:
        """Return the next `count` values."""
        while self._held is None or len(self._held) < count:
            block = next(self._blocks, None)
            if block is None:
                raise DataError(f"{self.name}: fewer values than rows; give one a row")
            self._held = block if self._held is None else np.concatenate([self._held, block])
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def left(self) -> int:
        """Return how many values were not taken."""
        return len(self._held if self._held is not None else ()) + sum(map(len, self._blocks))


def _require_ends(recuts: Mapping[str, _Recut], count: int) -> None:
    for key, recut in recuts.items():
        if more := recut.left():
            raise DataError(f"{key}: expected {count} values to go with X, found {count + more}")
