"""Sources of sparse rows: SciPy's CSR in memory, and the CSR of a corpus; and statistics as sparse rows see them.

Where few of the values are other than 0, rows stay sparse up to the block, and landmarks become sparse too where that
costs less (`kernels.sparse_blocks`). Where many are, a piece of the rows becomes dense when it is read. Which it is
follows from all rows, never from those of a chunk, so that no cut of the rows changes a kernel value.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.config import settings
from bigkernel.data import zarr_arrays
from bigkernel.data.sparse_rows import entry_bytes, read_rows
from bigkernel.engine.sources import Source, ZarrSource
from bigkernel.streaming.row_maps import keep_zeros
from bigkernel.streaming.sparse_form import worthwhile

Array = NDArray[Any]
Value = TypeVar("Value")


class _Csr(Source):
    """What rows in CSR have, wherever they lie."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """Values that are stored."""

    @property
    def share(self) -> float:
        """Of the values of all rows that are stored."""
        n, d = self.shape
        return self.entries / max(1, n * d)

    @property
    def sparse(self) -> bool:
        """True where `read` gives a csr_array."""
        return worthwhile(self.share, self.shape[1])

    @property
    def row_bytes(self) -> float:
        """Of a row as it is read, on average."""
        n, d = self.shape
        return entry_bytes(self.dtype) * self.entries / max(1, n) + 4 if self.sparse else d * self.dtype.itemsize

    @property
    def largest_row_bytes(self) -> float:
        """Of a row in the fullest piece of the rows."""
        return self.row_bytes

    def _steps(self, within: int) -> tuple[int, ...]:
        """Pieces of so many rows at most, and so few that they fit in a chunk when they are dense."""
        n, d = self.shape
        rows = max(1, min(within, settings().chunk_bytes // max(1, d * self.dtype.itemsize)))
        return (*range(0, n, rows), n)


@dataclass(frozen=True, eq=False)
class SparseSource(_Csr):
    """Rows `offset` and up of a sparse matrix in memory; `whole` are the values and rows of which it is a part."""

    values: Any
    offset: int = 0
    whole: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    @property
    def entries(self) -> int:
        return int(self.values.nnz)

    @property
    def share(self) -> float:
        """Of all values, those of the rows that this is a part of too."""
        entries, rows = self.whole or (self.entries, self.shape[0])
        return entries / max(1, rows * self.shape[1])

    @property
    def steps(self) -> tuple[int, ...]:
        return () if self.sparse else self._steps(self.shape[0])

    def read(self, start: int, stop: int) -> Any:
        rows = self.values[start - self.offset : stop - self.offset]
        return rows if self.sparse else rows.toarray()

    def part(self, start: int, stop: int) -> Source:
        whole = self.whole or (self.entries, self.shape[0])
        return SparseSource(self.values[start - self.offset : stop - self.offset], start, whole)

    def fingerprint(self) -> str:
        parts = {name: getattr(self.values, name) for name in ("data", "indices", "indptr")}
        return zarr_arrays.digest({**parts, "shape": np.array(self.shape)})


@dataclass(frozen=True, eq=False)
class CsrSource(_Csr):
    """The sparse rows of a corpus, read chunk by chunk, every chunk compared with those that were sealed.

    Attributes
    ----------
    lengths, indices, values : see `storage.sparse_rows`
    places : (k, 2) where the values of a chunk of rows begin, and how many there are
    chunk_rows, n_features : int
    """

    lengths: ZarrSource
    indices: ZarrSource
    values: ZarrSource
    places: Array
    chunk_rows: int
    n_features: int

    @classmethod
    def of_corpus(cls, path: str, n_features: int, seal: str = "") -> Self:
        """See `ZarrSource.of_corpus`."""
        lengths, indices, values, places = (
            ZarrSource.of_corpus(path, name, seal) for name in ("lengths", "indices", "values", "places")
        )
        found = places.read(0, places.shape[0])
        return cls(lengths, indices, values, found, lengths.array.chunks[0], n_features)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lengths.shape[0], self.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def stored(self) -> tuple[ZarrSource, ...]:
        """The arrays that a task opens itself."""
        return self.lengths, self.indices, self.values

    @property
    def entries(self) -> int:
        return int(self.places[:, 1].sum())

    @property
    def largest_row_bytes(self) -> float:
        """Of a row in the fullest chunk, on average."""
        fullest = entry_bytes(self.dtype) * int(self.places[:, 1].max(initial=0)) / self.chunk_rows + 4
        return max(self.row_bytes, fullest) if self.sparse else self.row_bytes

    @property
    def steps(self) -> tuple[int, ...]:
        n = self.shape[0]
        return (*range(0, n, self.chunk_rows), n) if self.sparse else self._steps(self.chunk_rows)

    def read(self, start: int, stop: int) -> Any:
        def read(name: str, first: int, last: int) -> Array:
            source: ZarrSource = getattr(self, name)
            return source.read(first, last)

        n, d = self.shape
        rows = read_rows(read, self.places, self.chunk_rows, (n, d), start, stop)
        return rows if self.sparse else rows.toarray()

    def part(self, start: int, stop: int) -> CsrSource:
        chunks = self.places[start // self.chunk_rows : -(-stop // self.chunk_rows)]
        first, last = (int(chunks[0, 0]), int(chunks[-1].sum())) if len(chunks) else (0, 0)
        return replace(
            self,
            lengths=self.lengths.part(start, stop),
            indices=self.indices.part(first, last),
            values=self.values.part(first, last),
        )

    def fingerprint(self) -> str:
        return " ".join(source.fingerprint() for source in self.stored)


def suited(value: Value, x: Source, row_maps: Sequence[Any] = ()) -> Value:
    """A statistic, or any plain data with feature maps in it, as rows of a source see it after some row maps.

    Where they are sparse still, so are the landmarks of its maps that cost less so; else it is the value itself.
    """
    share = getattr(x, "share", 1.0) if getattr(x, "sparse", False) and keep_zeros(row_maps) else None
    return value if share is None else _as_sparse(value, share)


def suited_maps(x: Source, row_maps: Sequence[Any]) -> tuple[Any, ...]:
    """Row maps as the rows see them that are sparse when they come to them."""
    return tuple(suited(row_map, x, row_maps[:place]) for place, row_map in enumerate(row_maps))


def _as_sparse(value: Any, share: float) -> Any:
    of_sparse_rows = getattr(value, "of_sparse_rows", None)
    if of_sparse_rows is not None:
        return of_sparse_rows(share)
    if isinstance(value, tuple):
        found = tuple(_as_sparse(item, share) for item in value)
        return found if any(a is not b for a, b in zip(found, value, strict=True)) else value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    held = {part.name: getattr(value, part.name) for part in dataclasses.fields(value) if part.init}
    changed = {name: made for name, item in held.items() if (made := _as_sparse(item, share)) is not item}
    return replace(value, **changed) if changed else value


def dense(rows: Any, dtype: Any = None) -> Array:
    """Rows, sparse or dense, as an array."""
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype)
