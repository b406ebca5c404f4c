"""Sources: where a matrix or a column comes from, and how a piece of it is read.

A source is plain picklable data; a task reads only the rows that it needs. Row ids are those of the source.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import dask
import numpy as np
import zarr
from distributed import futures_of
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.config import settings
from bigkernel.data import zarr_arrays
from bigkernel.data.seals import Marks
from bigkernel.streaming.row_maps import MapCost

if TYPE_CHECKING:
    import dask.array as da

Array = NDArray[Any]


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

    def read(self, start: int, stop: int) -> Array:
        """Rows start … stop."""

    def part(self, start: int, stop: int) -> Source:
        """The part that a task needs to read rows start … stop; their row ids stay as they are."""

    def fingerprint(self) -> str:
        """A digest that differs where the values differ, as far as can be told without reading them all."""

    @property
    def origin(self) -> Source:
        """The stored source that the rows are made of; the source itself where they are stored."""
        return self

    def cost(self) -> MapCost:
        """Flops to make a row when it is asked for, and bytes of buffers in a task; nothing where rows are stored."""
        return MapCost()


class Changeable(Source):
    """A source whose values others may change: memory, or a store that is not ours."""

    @cached_property
    def opened(self) -> Any:
        """`state_of` when it was first asked for."""
        return state_of(self)


@dataclass(frozen=True, eq=False)
class NumpySource(Changeable):
    """Rows `offset` and up of a matrix, held in memory."""

    values: Array
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def steps(self) -> tuple[int, ...]:
        return ()

    def read(self, start: int, stop: int) -> Array:
        return self.values[start - self.offset : stop - self.offset]

    def part(self, start: int, stop: int) -> Source:
        return NumpySource(self.read(start, stop), start)

    def fingerprint(self) -> str:
        return zarr_arrays.digest({"values": self.values})


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

    @property
    def steps(self) -> tuple[int, ...]:
        return ()

    def read(self, start: int, stop: int) -> Array:
        return np.asarray(self.values[start - self.offset : stop - self.offset].toarray())

    def part(self, start: int, stop: int) -> Source:
        return SparseSource(self.values[start - self.offset : stop - self.offset], start)

    def fingerprint(self) -> str:
        parts = {name: getattr(self.values, name) for name in ("data", "indices", "indptr")}
        return zarr_arrays.digest({**parts, "shape": np.array(self.shape)})

    def cost(self) -> MapCost:
        """Bytes of a segment as it travels to a task."""
        held = self.values.data.nbytes + self.values.indices.nbytes
        rows = min(self.shape[0], settings().segment_rows)
        return MapCost(fixed_bytes=held * rows // max(1, self.shape[0]))


@dataclass(frozen=True, eq=False)
class ZarrSource(Changeable):
    """A zarr array: by path and name where it is ours (opened again in every process), or as the object given.

    `marks` are those of the chunks of an array of ours, which every read compares with what is there.
    """

    path: str = ""
    name: str = ""
    foreign: zarr.Array | None = None
    marks: Marks | None = None

    @classmethod
    def of_corpus(cls, path: str, name: str, seal: str = "") -> Self:
        """An array of a corpus, whose chunks are those that were sealed; `seal`: of the corpus, see `Corpus`.

        Raises
        ------
        ChunkMissing, ChunkCorrupt, DataError
            They are not.
        """
        marks = zarr_arrays.marks_of(path, name, _opened(path, name), seal)
        return cls(path, name, marks=marks)

    @cached_property
    def array(self) -> zarr.Array:
        """The open array."""
        return _opened(self.path, self.name) if self.foreign is None else self.foreign

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

    @property
    def stored(self) -> tuple[ZarrSource, ...]:
        """Itself: a task opens it."""
        return (self,)


def _opened(path: str, name: str) -> zarr.Array:
    group, *_ = zarr_arrays.open_group(path, "corpus")
    return zarr_arrays.open_array(group, name)


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
    """Some rows of another source, which are rows 0 … here.

    Attributes
    ----------
    source : the other
    first : where they begin there
    count : of them
    """

    source: Source
    first: int
    count: int

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


def state_of(source: Source) -> Any:
    """What changes when the values of a source do, as far as can be told, where reads do not tell it; None: nothing."""
    if isinstance(source, ZarrSource):
        return None if source.marks is not None else source.fingerprint()
    values: Any = source.values if isinstance(source, NumpySource) else None
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
