"""Grids of xarray as rows: a cell is a row, and a chunk a chunk of rows, flattened in the task that reads it.

The variables of a Dataset are features; so are coordinates where they are named. They are broadcast against each other.
xarray is not imported here, as its objects exist only after its import.
Shapes: n cells, d features, c targets; a block is a chunk of all dimensions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeGuard

import dask
import numpy as np

from bigkernel.arrays import Array, DType, Labelled
from bigkernel.config import settings
from bigkernel.data.cf import decoded
from bigkernel.data.containers import plain, refuse_rounded
from bigkernel.data.zarr_arrays import require_names
from bigkernel.errors import DataError

if TYPE_CHECKING:
    import dask.array as da

FEATURES = ("variable", "feature", "features", "band")  # names of the dimension of features of an array
_DAY = np.timedelta64(1, "D")
_UNITS = ("units", "long_name", "standard_name")  # attributes of a target that its predictions have too


def is_grid(values: object) -> TypeGuard[Labelled]:
    """Return True for a Dataset of xarray, and a DataArray of more or fewer dimensions than two."""
    xarray = sys.modules.get("xarray")
    if xarray is None or not hasattr(xarray, "Dataset"):
        return False
    matrix = isinstance(values, xarray.DataArray) and values.ndim == 2 and not set(values.dims) & set(FEATURES)
    return isinstance(values, xarray.Dataset | xarray.DataArray) and not matrix


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells that are rows: their dimensions, chunks and coordinates. Rows are in the order of the blocks."""

    dims: tuple[str, ...]
    chunks: tuple[tuple[int, ...], ...]  # sizes, along each dimension
    coords: Mapping[str, Labelled]  # DataArrays of these dimensions
    lazy: bool  # whether results are

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells along each dimension."""
        return tuple(map(sum, self.chunks))

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """Positions of the blocks along each dimension."""
        return list(np.ndindex(*map(len, self.chunks)))

    def block_shape(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of cells of a block along each dimension."""
        return tuple(sizes[place] for sizes, place in zip(self.chunks, block, strict=True))

    def rows_at(self, places: Array) -> Array:
        """Return the rows of cells by their places (k,) in the whole grid, whatever its chunks: (k,) int64."""
        sizes = [np.array(steps) for steps in self.chunks]
        counts = reduce(np.multiply.outer, sizes)  # cells of each block
        cell = np.unravel_index(places, self.shape)
        block = tuple(np.searchsorted(np.cumsum(size), i, side="right") for size, i in zip(sizes, cell, strict=True))
        inside = np.zeros_like(places)
        for size, i, at in zip(sizes, cell, block, strict=True):
            inside = inside * size[at] + i - (np.cumsum(size) - size)[at]
        before: Array = (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)
        return before[block] + inside

    def flatten(self, arrays: Sequence[Labelled], dtype: DType) -> da.Array:
        """Return DataArrays as the columns of a Dask array (n, k), broadcast to the grid."""
        from bigkernel.data import dask_arrays as da

        pairs: list[object] = []  # arrays and their dimensions, for dask.array.blockwise
        for array in arrays:
            self._require_same(array)
            axes = tuple(self.dims.index(dim) for dim in array.dims)
            chunks = tuple(self.chunks[axis] for axis in axes)
            values = da.as_dask_array(array.data)
            pairs += [values.rechunk(chunks) if axes else values, axes]
        last, count = len(self.dims), len(arrays)
        whole = da.blockwise(
            _stack,
            (*range(last), last),
            *pairs,
            da.broadcast_to(da.zeros((), dtype=bool), self.shape, chunks=self.chunks),
            tuple(range(last)),
            axes=pairs[1::2],
            names=[array.name or "y" for array in arrays],
            row_dtype=dtype,
            dtype=dtype,
            new_axes={last: count},
            align_arrays=False,
            meta=np.empty((0,) * (last + 1), dtype),
        )
        return da.reshape_blockwise(whole, (math.prod(self.shape), count))

    def column(self, values: object) -> object:
        """Return values of the cells, of xarray or an array of the shape of the grid, as those of rows.

        A Dataset becomes (n, c), anything else (n,); a Dask array if it is one, else an array. Other values are
        returned unchanged, as are those of a grid of one dimension.
        """
        xarray = sys.modules["xarray"]
        arrays: list[Labelled]
        if isinstance(values, xarray.Dataset):
            arrays = [*variables(values, None, "y").values()]
            flat = self.flatten(arrays, np.dtype(np.float64))
        else:
            if not isinstance(values, xarray.DataArray):
                if len(self.dims) == 1 or getattr(values, "shape", None) != self.shape:
                    return values
                values = xarray.DataArray(values, dims=self.dims)
            arrays = [decoded(values)]
            flat = self.flatten(arrays, arrays[0].dtype)[:, 0]
        return flat if any(dask.is_dask_collection(array.data) for array in arrays) else flat.compute()

    def _require_same(self, array: Labelled) -> None:
        """Raise unless an array has dimensions of the grid, and equal coordinates along them."""
        for dim in array.dims:
            if dim not in self.dims:
                raise DataError(f"{array.name or 'y'}: found the dimension {dim!r}, expected some of {self.dims}")
            size, own = self.shape[self.dims.index(dim)], self.coords.get(dim)
            if array.sizes[dim] != size:
                raise DataError(f"{array.name or 'y'}: found {array.sizes[dim]} cells of {dim!r}, expected {size}")
            if own is not None and dim in array.coords and not np.array_equal(own.values, array.coords[dim].values):
                raise DataError(f"{array.name or 'y'}: the coordinates of {dim!r} differ from those of the features")

    def unflatten(self, values: da.Array) -> da.Array:
        """Return values of rows (n, …), in the blocks of the grid, as an array over its dimensions."""
        from bigkernel.data import dask_arrays as da

        shape, chunks = (*self.shape, *values.shape[1:]), (*self.chunks, *values.chunks[1:])
        return da.reshape_blockwise(values, shape, chunks=chunks)

    def outputs(
        self,
        targets: Sequence[Mapping[str, str]] | None,
        count: int,
        *,
        std: int = 0,
        more: Sequence[str] = (),
        stored: bool = False,
    ) -> list[tuple[str, dict[str, str]]]:
        """Return name and attributes of each of `count` predictions, as the targets if these are known, and of `std`.

        `DataError`: some have the name of each other, a coordinate, or one `more` output; or zarr cannot store them. A
        single one in memory may have the name of a coordinate, as arrays of xarray may. `std` 2: shares too.
        """
        if targets is None or len(targets) != count:
            targets = [{"name": "prediction" if count == 1 else f"prediction_{i}"} for i in range(count)]
        plain = [(one["name"], {key: text for key, text in one.items() if key != "name"}) for one in targets]
        made = [(f"{name}{ending}", attrs) for ending in ("", "_std", "_share")[: 1 + std] for name, attrs in plain]
        names = [name for name, _ in made] if stored or len(made) > 1 else []
        require_names([*names, *more], {*self.dims, *self.coords}, stored=stored)
        return made

    def array(self, values: da.Array, name: str, attrs: Mapping[str, str], classes: Array | None = None) -> Labelled:
        """Return values of rows, (n,), or (n, c) with the classes of their columns, as a DataArray."""
        data = self.unflatten(values)
        more = {} if classes is None else {"class": classes}
        data = data if self.lazy else data.compute()
        return sys.modules["xarray"].DataArray(data, {**self.coords, **more}, (*self.dims, *more), name, dict(attrs))


def _stack(*pieces: Array, axes: Sequence[tuple[int, ...]], names: Sequence[str], row_dtype: DType) -> Array:
    """Return the values of a block side by side, in a new last dimension; raise `DataError` if some are infinite.

    Each piece but the last has some axes of the block; the last one has its shape. Dates and durations become days.
    """
    *columns, whole = pieces
    out = np.empty((*whole.shape, len(columns)), row_dtype)
    for column, (piece, place, name) in enumerate(zip(columns, axes, names, strict=True)):
        values = plain(piece, labels=True).transpose(np.argsort(place))
        if values.dtype.kind in "mM":
            values = (values - np.array(0, f"{values.dtype.kind}8[D]")) / _DAY
        if values.dtype.kind == "f" and (abs(values) > np.float32(9.96e36)).any():
            found = "infinite values, or 9.97e36, which netCDF writes for missing ones"
            raise DataError(f"{name}: found {found}; make them NaN (.where(abs({name}) < 9e36)) or finite")
        if row_dtype.kind == "f":
            refuse_rounded(values.ravel(), name)
        values = np.expand_dims(values, [axis for axis in range(whole.ndim) if axis not in place])
        out[..., column] = values
    return out


def target_names(y: object) -> tuple[dict[str, str], ...] | None:
    """Return names and units of targets given as variables of xarray; None: they are not."""
    xarray = sys.modules.get("xarray")
    if xarray is None or not isinstance(y, xarray.DataArray | xarray.Dataset):
        return None
    arrays = [y] if isinstance(y, xarray.DataArray) else [*variables(y, None, "y").values()]
    return tuple(
        {"name": str(array.name or "prediction")} | {key: str(array.attrs[key]) for key in _UNITS if key in array.attrs}
        for array in arrays
    )


def dataset_of(arrays: Sequence[Labelled]) -> Labelled:
    """Return DataArrays as a Dataset."""
    return sys.modules["xarray"].Dataset({array.name: array for array in arrays})


def label_dtype(classes: Array) -> DType:
    """Return the dtype of labels of cells: numbers may be NaN, text may be ""."""
    return np.dtype(np.float64) if classes.dtype.kind in "biuf" else classes.dtype


def label_cells(values: Array, classes: Array) -> Array:
    """Return the labels (n,) of the largest of values (n, c); NaN, or "" among text, where these are NaN."""
    labels: Array = classes[np.argmax(values, axis=1)].astype(label_dtype(classes))
    labels[np.isnan(values[:, 0])] = np.nan if labels.dtype.kind == "f" else ""
    return labels


def variables(values: Labelled, names: Iterable[str] | None, what: str) -> dict[str, Labelled]:
    """Return the variables of a Dataset or DataArray of xarray by name; None: all that are no coordinates.

    `DataError` for `what`: a name is missing, values are no numbers, or an array has no dimension of features.
    """
    if hasattr(values, "to_dataset"):
        along = [dim for dim in values.dims if dim in FEATURES]
        if not along:
            raise DataError(
                f"{what}: found an xarray DataArray of the dimensions {values.dims}; expected one of {FEATURES} among "
                "them, or a Dataset of features"
            )
        before = "" if along[0] in values.coords else f"{along[0]} "
        values = decoded(values).to_dataset(dim=along[0])
        values = values.rename({key: f"{before}{key}" for key in values.data_vars})
    names = [str(name) for name in (values.data_vars if names is None else names)]
    known = {str(key): key for key in values.variables}
    if missing := [name for name in names if name not in known]:
        raise DataError(f"{what}: expected the variable {missing[0]!r}, found {', '.join(known) or 'none'}")
    if not names:
        raise DataError(f"{what}: expected a variable, found a Dataset of {', '.join(known) or 'none'}")
    found = {name: decoded(values[known[name]]) for name in names}
    for name, array in found.items():
        if array.dtype.kind not in "biufmM":
            raise DataError(
                f"{what}: {name}: expected numbers, dates or durations, found dtype {array.dtype}; convert numbers by "
                "astype(float), and dates of another calendar by X.convert_calendar('standard', align_on='year')"
            )
    return found


def grid_of(arrays: Mapping[str, Labelled], dataset: Labelled, what: str) -> Grid:
    """Return the grid over which variables of a dataset are broadcast; its first dimensions are those of the largest.

    Chunks are those of the largest of these variables that has some, else of others, else of the size of a task.
    Results are lazy unless a variable in memory has all cells, and none has chunks.
    """
    ordered = sorted(arrays.values(), key=lambda array: -array.ndim)
    sizes = {dim: size for array in ordered for dim, size in array.sizes.items()}
    if not sizes:
        raise DataError(f"{what}: expected variables over some dimension, found numbers")
    inside = [*ordered, *(one for one in getattr(dataset, "variables", {}).values() if {*one.dims} <= {*sizes})]
    chunked = [array for array in inside if array.chunks]
    chunks = {dim: steps for array in reversed(chunked) for dim, steps in zip(array.dims, array.chunks, strict=True)}
    if len(chunks) < len(sizes):
        from bigkernel.data import dask_arrays as da

        given, limit = tuple(chunks.get(dim, "auto") for dim in sizes), max(8, settings().chunk_bytes // len(arrays))
        chunks = dict(zip(sizes, da.normalize_chunks(given, tuple(sizes.values()), limit, np.float64), strict=True))
    lazy = bool(chunked) or max(array.size for array in inside) < math.prod(sizes.values())
    coords = dict[str, Labelled]()
    for array in ordered:
        coords |= {str(name): one for name, one in array.coords.items() if set(one.dims) <= set(sizes)}
    return Grid(tuple(sizes), tuple(chunks[dim] for dim in sizes), coords, lazy)
