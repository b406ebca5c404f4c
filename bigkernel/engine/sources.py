"""Sources: where a matrix or a column comes from, and how a piece of it is read.

A source is plain picklable data; a task reads only the rows that it needs. Row ids are those of the source.

`source_of` makes a source of any values: arrays, sparse matrices, and tables of other libraries. Dask DataFrames stay
lazy, and xarray arrays give what they hold; nothing is imported for them, for an object of a library can only come from
one that has imported it. pandas frames and Arrow tables are arrays to NumPy already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard

import dask
import numpy as np
import zarr
from dask.utils import is_dataframe_like, is_series_like
from distributed import futures_of
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.data import zarr_arrays
from bigkernel.data.seals import Marks
from bigkernel.errors import DataError
from bigkernel.streaming.chunk import MapCost

if TYPE_CHECKING:
    import dask.array as da

_NUMERIC = "biuf"


class Source(Protocol):
    """The origin of a matrix or a column, read piece by piece."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, …)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """As stored."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Row ids where the natural pieces begin, 0 first, n last; empty: none are natural."""
        return ()

    def read(self, start: int, stop: int) -> Array:
        """Read rows start … stop."""

    def part(self, start: int, stop: int) -> Source:
        """Take the part that a task needs to read rows start … stop; their row ids stay as they are."""

    def fingerprint(self) -> str:
        """Return a digest that differs where the values differ, as far as can be told without reading them all."""

    def state(self) -> object:
        """Return what changes when others change the values, where reads do not tell it; None: nothing."""
        return None

    def has_changed(self) -> bool:
        """Tell if the state is another than when this was first asked."""
        now = self.state()
        return bool(self.__dict__.setdefault("first_state", now) != now)

    @property
    def origin(self) -> Source:
        """The stored source that the rows are made of; the source itself where they are stored."""
        return self

    def cost(self) -> MapCost:
        """Return flops to make a row when it is asked for, and bytes of buffers in a task; none where it is stored."""
        return MapCost()


@dataclass(frozen=True, eq=False)
class NumpySource(Source):
    """Rows `offset` and up of a matrix, held in memory."""

    values: Array
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def read(self, start: int, stop: int) -> Array:
        return self.values[start - self.offset : stop - self.offset]

    def part(self, start: int, stop: int) -> Source:
        return NumpySource(self.read(start, stop), start)

    def fingerprint(self) -> str:
        return zarr_arrays.digest({"values": self.values})

    def state(self) -> object:
        values: Any = self.values
        while values is not None and not isinstance(values, np.memmap):
            values = getattr(values, "base", None)
        if values is None or values.filename is None:
            return None
        try:
            if values.mode in ("r+", "w+"):
                values.flush()  # what this process has written has its time on disk now, and not later
            found = os.stat(values.filename)
        except OSError:
            return "it was removed"
        return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, eq=False)
class SparseSource(Source):
    """Rows `offset` and up of a SciPy matrix in memory (CSR), made dense a piece at a time, where they are read."""

    values: sparse.csr_array
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.values.dtype))

    def read(self, start: int, stop: int) -> Array:
        return np.asarray(self.values[start - self.offset : stop - self.offset].toarray())

    def part(self, start: int, stop: int) -> Source:
        return SparseSource(self.values[start - self.offset : stop - self.offset], start)

    def fingerprint(self) -> str:
        parts = {name: getattr(self.values, name) for name in ("data", "indices", "indptr")}
        return zarr_arrays.digest({**parts, "shape": np.array(self.shape)})

    def cost(self) -> MapCost:
        """Return bytes of a segment as it travels to a task."""
        held = self.values.data.nbytes + self.values.indices.nbytes
        rows = min(self.shape[0], settings().segment_rows)
        return MapCost(fixed_bytes=held * rows // max(1, self.shape[0]))


@dataclass(frozen=True, eq=False)
class ZarrSource(Source):
    """A zarr array: by path and name where it is ours (opened again in every process), or as the object given.

    `marks` are those of the chunks of an array of ours, which every read compares with what is there.
    """

    path: str = ""
    name: str = ""
    foreign: zarr.Array | None = None
    marks: Marks | None = None

    @classmethod
    def of_corpus(cls, path: str, name: str, seal: str = "") -> Self:
        """Open an array of a corpus, whose chunks are those that were sealed; `seal`: of the corpus, see `Corpus`.

        Raises
        ------
        ChunkMissing, ChunkCorrupt, DataError
            They are not.
        """
        array = cls(path, name).array
        source = cls(path, name, marks=zarr_arrays.marks_of(path, name, array, seal))
        source.__dict__["array"] = array  # opened once in this process
        return source

    @cached_property
    def array(self) -> zarr.Array:
        """The open array."""
        if self.foreign is not None:
            return self.foreign
        return zarr_arrays.open_array(zarr_arrays.open_group(self.path, "corpus")[0], self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "array"}

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.array.dtype))

    @property
    def steps(self) -> tuple[int, ...]:
        step = (self.array.shards or self.array.chunks)[0]
        return (*range(0, self.shape[0], step), self.shape[0])

    def read(self, start: int, stop: int) -> Array:
        return zarr_arrays.read(self.array, start, stop, self.marks)

    def part(self, start: int, stop: int) -> ZarrSource:
        if self.marks is None:
            return self
        step = self.array.chunks[0]
        return replace(self, marks=self.marks.part(start // step, -(-stop // step)))

    def fingerprint(self) -> str:
        return zarr_arrays.stored_fingerprint(self.array)

    def state(self) -> object:
        """See `Source`; every read of an array with marks tells by itself."""
        if self.marks is not None:
            return None
        if self.path:
            zarr_arrays.require_chunks(self.array)  # a lost one would be read as zeros
        return self.fingerprint()


@dataclass(frozen=True, eq=False)
class DaskSource(Source):
    """A Dask array with known chunks, computed piece by piece inside the task that needs it."""

    array: da.Array
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.array.dtype))

    @property
    def steps(self) -> tuple[int, ...]:
        return (0, *np.cumsum(self.array.chunks[0]).tolist())

    def read(self, start: int, stop: int) -> Array:
        piece = self.array[start - self.offset : stop - self.offset]
        # what is persisted on a cluster is fetched from it; all else is computed here, in the task
        futures = futures_of(self.array)
        found = piece.compute(scheduler=futures[0].client.get if futures else "synchronous")
        return np.asarray(found.toarray() if sparse.issparse(found) else found)

    def part(self, start: int, stop: int) -> Source:
        # only the graph of these rows travels with the task
        (piece,) = dask.optimize(self.array[start - self.offset : stop - self.offset])
        return DaskSource(piece, start)

    def fingerprint(self) -> str:
        return f"dask {self.array.name}"


@dataclass(frozen=True, eq=False)
class Window(Source):
    """Some rows of another source, which are rows 0 … here."""

    source: Source  # the other
    first: int  # where they begin there
    count: int  # of them

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, *self.source.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def origin(self) -> Source:
        return self.source.origin

    @property
    def steps(self) -> tuple[int, ...]:
        if not self.source.steps:
            return ()
        inside = {step - self.first for step in self.source.steps if 0 < step - self.first < self.count}
        return (0, *sorted(inside), self.count)

    def read(self, start: int, stop: int) -> Array:
        return self.source.read(self.first + start, self.first + stop)

    def part(self, start: int, stop: int) -> Source:
        return replace(self, source=self.source.part(self.first + start, self.first + stop))

    def fingerprint(self) -> str:
        return f"rows {self.first} to {self.first + self.count} of {self.source.fingerprint()}"


@dataclass(frozen=True, eq=False)
class ClassWeightSource(Source):
    """The weight of each row times the factor of its class; of rows without a label, the weight itself.

    A column that is computed where it is read, so that every statistic sees it.
    """

    y: Source  # the column of labels
    weight: Source | None  # the column of weights, or None: ones
    labels: Array  # (k,) sorted, as the column holds them
    factors: Array  # (k,) of each label
    words: str  # what they were asked as

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.y.shape[0],)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    @property
    def steps(self) -> tuple[int, ...]:
        return self.y.steps

    def read(self, start: int, stop: int) -> Array:
        y = self.y.read(start, stop)
        place = np.minimum(np.searchsorted(self.labels, y), len(self.labels) - 1)
        factor: Array = np.where(self.labels[place] == y, self.factors[place], 1.0)
        return factor if self.weight is None else factor * self.weight.read(start, stop)

    def part(self, start: int, stop: int) -> Source:
        weight = None if self.weight is None else self.weight.part(start, stop)
        return replace(self, y=self.y.part(start, stop), weight=weight)

    def fingerprint(self) -> str:
        table = zarr_arrays.digest({"labels": self.labels, "factors": self.factors})
        weight = "" if self.weight is None else self.weight.fingerprint()
        return f"weights by class {table} of {self.y.fingerprint()} and {weight}"

    @property
    def origin(self) -> Source:
        return (self.y if self.weight is None else self.weight).origin


def window(source: Source, start: int, stop: int) -> Source:
    """Take rows start … stop of a source as a source of their own."""
    if isinstance(source, NumpySource):
        return NumpySource(source.read(start, stop))
    if isinstance(source, SparseSource):
        return SparseSource(source.values[start:stop])
    if isinstance(source, DaskSource):
        return DaskSource(source.array[start:stop])
    return Window(source, start, stop - start)


def source_of(values: Any, name: str) -> Source:
    """Make a source of an array or a frame; a `DataError` that names it where it holds no numbers."""
    values = unwrapped(values, name)
    if is_dask_array(values):
        if any(np.isnan(size) for size in values.shape):
            raise DataError(f"{name}: a Dask array of unknown chunk sizes; call compute_chunk_sizes() first")
        if values.ndim == 2 and values.numblocks[1] > 1:
            values = values.rechunk({1: -1})
        source: Source = DaskSource(values)
    elif isinstance(values, zarr.Array):
        source = ZarrSource(foreign=values)
    elif sparse.issparse(values):
        source = SparseSource(sparse.csr_array(values))
    else:
        masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        if masked is not None and masked.any():
            row = int(np.argwhere(masked)[0, 0])
            raise DataError(f"{name}: row {row} has masked values; fill them or leave the row out")
        source = NumpySource(np.asarray(values))
    if source.dtype.kind not in _NUMERIC:
        raise DataError(f"{name}: expected numbers, found dtype {source.dtype}")
    return source


def is_dask_frame(values: Any) -> bool:
    """Tell a Dask DataFrame or Series."""
    # an xarray array looks like a Series, but has no partitions
    partitioned = dask.is_dask_collection(values) and hasattr(values, "npartitions") and not hasattr(values, "chunks")
    return partitioned and (is_dataframe_like(values) or is_series_like(values))


def is_dask_array(values: object) -> TypeGuard[da.Array]:
    """Tell a Dask array; its module, with numba and more, loads where there is a collection of Dask, and not else."""
    if not dask.is_dask_collection(values):
        return False
    import dask.array as da

    return isinstance(values, da.Array)


def unwrapped(values: Any, name: str) -> Any:
    """Return what a source reads in place of an object of another library; anything else as it is.

    A Dask DataFrame or Series becomes a Dask array, an xarray DataArray the array inside it. `DataError`, of `name`: a
    table that is no matrix of numbers of one dtype; names the columns and says how to make it one.
    """
    if is_dask_frame(values):
        return _dask_array(values, name)
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(values, xarray.DataArray):
        return values.data
    if xarray is not None and isinstance(values, xarray.Dataset):
        raise DataError(
            f"{name}: an xarray Dataset of {', '.join(map(str, values)) or 'no variable'}; give one of its variables "
            "with the dimensions (rows, features), or stack them with to_dataarray() and transpose()"
        )
    return values


def feature_names(values: Any) -> Any:
    """Return a Dask DataFrame's columns as a frame without rows, for scikit-learn's checks of names, or None."""
    return values._meta if is_dask_frame(values) and is_dataframe_like(values) else None


def _dask_array(frame: Any, name: str) -> da.Array:
    """Make a Dask array (n, d) or (n,) with a chunk a partition, whose rows are counted in a pass of its own."""
    import dask.array as da

    dtype = _common_dtype(frame, name)
    # a shuffle between workers (P2P) wants all its tasks in one graph, and each task of ours takes a partition alone
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        pieces, count_of = frame.to_delayed(), dask.delayed(len)
    # of the partitions as they will be read: those of fewer columns may be others
    counts: Sequence[int] = dask.compute(*(count_of(piece) for piece in pieces))
    tail = () if is_series_like(frame) else (len(frame.columns),)
    number = dask.delayed(_numbers, pure=True)  # another process names its tasks alike, and so can resume
    parts = [
        da.from_delayed(number(part, (count, *tail), dtype, f"{name}: partition {i}"), (count, *tail), dtype)
        for i, (part, count) in enumerate(zip(pieces, counts, strict=True))
        if count
    ]
    return da.concatenate(parts) if parts else da.zeros((0, *tail), dtype=dtype)


def _common_dtype(frame: Any, name: str) -> np.dtype[Any]:
    """Return the one dtype of all columns."""
    series = is_series_like(frame)
    labels = [name] if series else [str(column) for column in frame._meta.columns]
    if not labels:
        raise DataError(f"{name}: a Dask DataFrame without columns")
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise DataError(
            f"{name}: a Dask DataFrame with several columns of one name ({', '.join(twice[:5])}); rename them"
        )
    if name == "y" and not series and len(labels) == 1:
        raise DataError(f"y: a Dask DataFrame of one column; give the column, frame[{labels[0]!r}]")
    kinds = {name: frame.dtype} if series else dict(zip(labels, frame._meta.dtypes, strict=True))
    odd = [column for column, dtype in kinds.items() if not (isinstance(dtype, np.dtype) and dtype.kind in _NUMERIC)]
    what = "Series" if series else "DataFrame"
    if odd:
        raise DataError(
            f"{name}: a Dask {what} with {len(odd)} of {len(kinds)} columns that are not NumPy's numbers "
            f"({', '.join(f'{column}: {kinds[column]}' for column in odd[:5])}); drop them, encode them, or convert "
            "with astype(\"float64\") (pandas' own numbers and Arrow's, in which values may be missing, too)"
        )
    found = sorted({str(dtype) for dtype in kinds.values()})
    if len(found) > 1:
        common = np.result_type(*kinds.values())
        raise DataError(
            f"{name}: a Dask DataFrame whose columns are of {', '.join(found)}; rows are read as one dtype: "
            f'take astype("{common}")'
        )
    return np.dtype(found[0])


def _numbers(part: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Take the values of a partition; refuse one that is not as its frame said."""
    values = np.ascontiguousarray(part.to_numpy())
    if values.shape != shape or values.dtype != dtype:
        raise DataError(
            f"{name}: {values.shape} values of {values.dtype}, where {shape} of {dtype} were found before; what the "
            "frame is read from was changed meanwhile, or its schema is not that of its files"
        )
    return values
