"""Grids of xarray as rows: a cell is a row, and a chunk a chunk of rows, flattened in the task that reads it.

The variables of a Dataset are features; so are coordinates where they are named. They are broadcast against each other.
xarray is not imported here, as its objects exist only after its import.
Shapes: n cells, d features, c targets; a block is a chunk of all dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeGuard

import dask
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from bigkernel.arrays import Array, DType, Labelled
from bigkernel.config import settings
from bigkernel.errors import DataError

if TYPE_CHECKING:
    import dask.array as da

FEATURES = ("variable", "feature", "features", "band")  # names of the dimension of features of an array
_DAY = np.timedelta64(1, "D")


def is_grid(values: object) -> TypeGuard[Labelled]:
    """Return True for a Dataset of xarray, and a DataArray of more or fewer dimensions than two."""
    xarray = sys.modules.get("xarray")
    if xarray is None or not hasattr(xarray, "Dataset"):
        return False
    matrix = isinstance(values, xarray.DataArray) and values.ndim == 2 and not set(values.dims) & set(FEATURES)
    return isinstance(values, xarray.Dataset | xarray.DataArray) and not matrix


def is_data_array(values: object) -> TypeGuard[Labelled]:
    """Return True for a DataArray of xarray."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(values, xarray.DataArray)


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells that are rows: their dimensions, chunks and coordinates. Rows are in the order of the blocks."""

    dims: tuple[str, ...]
    chunks: tuple[tuple[int, ...], ...]  # sizes, along each dimension
    coords: Mapping[str, Labelled]  # DataArrays of these dimensions
    lazy: bool  # whether results are: a feature is a Dask array

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

    def flatten(self, arrays: Sequence[Labelled], dtype: DType) -> da.Array:
        """Return DataArrays as the columns of a Dask array (n, k), broadcast to the grid."""
        import dask.array as da

        pieces, axes = [], []
        for array in arrays:
            self._require_same(array)
            place = tuple(self.dims.index(dim) for dim in array.dims)
            chunks = tuple(self.chunks[axis] for axis in place)
            pieces.append(da.asarray(array.data).rechunk(chunks) if place else da.asarray(array.data))
            axes.append(place)
        name = f"rows-of-grid-{tokenize(self.chunks, axes, dtype.str, *(piece.name for piece in pieces))}"
        graph = {}
        for number, block in enumerate(self.blocks):
            keys = [(piece.name, *(block[axis] for axis in place)) for piece, place in zip(pieces, axes, strict=True)]
            graph[name, number, 0] = (_flatten_block, keys, axes, self.block_shape(block), dtype)
        sizes = tuple(int(np.prod(self.block_shape(block))) for block in self.blocks)
        whole = HighLevelGraph.from_collections(name, graph, dependencies=pieces)
        return da.Array(whole, name, (sizes, (len(arrays),)), dtype)

    def column(self, values: object) -> object:
        """Return values of the cells, of xarray or an array of the shape of the grid, as those of rows.

        A Dataset becomes (n, c), anything else (n,); a Dask array if it is one, else an array. Other values are
        returned unchanged.
        """
        xarray = sys.modules["xarray"]
        arrays: list[Labelled]
        if isinstance(values, xarray.Dataset):
            arrays = [*variables(values, None, "y").values()]
            flat = self.flatten(arrays, np.dtype(np.float64))
        else:
            if not isinstance(values, xarray.DataArray):
                if np.asarray(values).shape != self.shape:
                    return values
                values = xarray.DataArray(values, dims=self.dims)
            arrays = [values]
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
        import dask.array as da

        tail = values.shape[1:]
        name = f"grid-of-rows-{tokenize(self.chunks, values.name)}"
        graph = {
            (name, *block, *(0 for _ in tail)): (
                np.reshape,
                (values.name, number, *(0 for _ in tail)),
                (*self.block_shape(block), *tail),
            )
            for number, block in enumerate(self.blocks)
        }
        whole = HighLevelGraph.from_collections(name, graph, dependencies=[values])
        return da.Array(whole, name, (*self.chunks, *((size,) for size in tail)), values.dtype)

    def array(self, values: da.Array, name: str, attrs: Mapping[str, Labelled], **more: Labelled) -> Labelled:
        """Return values of rows (n,) or (n, k) as a DataArray; `more` names the last dimension and its labels."""
        data = self.unflatten(values)
        coords = {**self.coords, **more}
        data = data if self.lazy else data.compute()
        return sys.modules["xarray"].DataArray(data, coords, (*self.dims, *more), name, dict(attrs))


def describe(values: object) -> tuple[dict[str, str], ...] | None:
    """Return names and units of targets given as variables of xarray; None: they are not."""
    xarray = sys.modules.get("xarray")
    if xarray is None or not isinstance(values, xarray.DataArray | xarray.Dataset):
        return None
    arrays = [values] if isinstance(values, xarray.DataArray) else [*variables(values, None, "y").values()]
    told = ("units", "long_name", "standard_name")
    return tuple(
        {"name": str(array.name or "prediction")} | {key: str(array.attrs[key]) for key in told if key in array.attrs}
        for array in arrays
    )


def _flatten_block(
    pieces: Sequence[Array], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...], dtype: DType
) -> Array:
    """Return the cells of a block as rows, (cells, k); each piece has some of its axes."""
    out = np.empty((*shape, len(pieces)), dtype)
    for column, (piece, place) in enumerate(zip(pieces, axes, strict=True)):
        values = np.asarray(piece).transpose(np.argsort(place))
        values = values.reshape([size if axis in place else 1 for axis, size in enumerate(shape)])
        out[..., column] = (values - np.datetime64(0, "D")) / _DAY if values.dtype.kind == "M" else values
    return out.reshape(-1, len(pieces))


def merged(arrays: Sequence[Labelled]) -> Labelled:
    """Return DataArrays as a Dataset."""
    return sys.modules["xarray"].Dataset({array.name: array for array in arrays})


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
        labels = values.coords.get(along[0])
        values = values.to_dataset(dim=along[0])
        if labels is None:
            values = values.rename({key: f"{along[0]} {key}" for key in values.data_vars})
        else:
            values = values.rename({key: str(key) for key in values.data_vars})
    names = [str(name) for name in (values.data_vars if names is None else names)]
    known = {str(key): key for key in values.variables}
    if missing := [name for name in names if name not in known]:
        raise DataError(f"{what}: expected the variable {missing[0]!r}, found {', '.join(known) or 'none'}")
    if not names:
        raise DataError(f"{what}: expected a variable, found a Dataset of {', '.join(known) or 'none'}")
    found = {name: values[known[name]] for name in names}
    for name, array in found.items():
        if array.dtype.kind not in "biufM":
            raise DataError(f"{what}: {name}: expected numbers or dates, found dtype {array.dtype}")
    return found


def grid_of(arrays: Mapping[str, Labelled], what: str) -> Grid:
    """Return the grid over which variables are broadcast; its first dimensions are those of the largest of them."""
    ordered = sorted(arrays.values(), key=lambda array: -array.ndim)
    sizes = {dim: size for array in ordered for dim, size in array.sizes.items()}
    if not sizes:
        raise DataError(f"{what}: expected variables over some dimension, found numbers")
    lazy = [array for array in ordered if dask.is_dask_collection(array.data)]
    chunks = {dim: sizes_ for array in lazy for dim, sizes_ in zip(array.dims, array.data.chunks, strict=True)}
    if not lazy:
        target = max(1, settings().chunk_bytes // (8 * len(arrays)))
        chunks = dict(zip(sizes, _cut(tuple(sizes.values()), target), strict=True))
    coords = dict[str, Labelled]()
    for array in ordered:
        coords |= {str(name): one for name, one in array.coords.items() if set(one.dims) <= set(sizes)}
    return Grid(tuple(sizes), tuple(chunks.get(dim, (size,)) for dim, size in sizes.items()), coords, bool(lazy))


def _cut(shape: tuple[int, ...], target: int) -> list[tuple[int, ...]]:
    """Return chunks of at most about `target` cells: whole along the last dimensions, cut along the first ones."""
    chunks: list[tuple[int, ...]] = []
    for size in reversed(shape):
        step = max(1, min(size, target))
        target = max(1, target // max(1, size))
        bounds = [*range(0, size, step), size]
        chunks.insert(0, tuple(after - before for before, after in pairwise(bounds)) or (0,))
    return chunks
