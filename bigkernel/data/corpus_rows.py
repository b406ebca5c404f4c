"""The rows of a corpus in Python: `corpus[:5]`, `np.asarray(corpus)`, `corpus.head()`, `corpus.x`.

Shapes: n rows, d features. What comes into memory at once is bounded; a fit takes the corpus itself and is not.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.data import sparse_rows, zarr_arrays
from bigkernel.data.pixels import grey
from bigkernel.errors import BigKernelError, DataError, PlanTooLarge
from bigkernel.html import columns, pictures, table

MOST_BYTES = 2**30  # that an index or np.asarray brings into memory
_PICTURES, _SHOWN, _COLUMNS = 10, 5, 8  # of a corpus in a notebook
_ROWS = 1024  # that become dense at once where each is asked for


class CorpusRows(ABC):
    """What a corpus does as a sequence of rows; it knows its path, sizes and arrays."""

    path: str
    n_rows: int
    n_features: int
    chunk_rows: int
    dtype: str
    columns: tuple[str, ...]
    info: Any  # CorpusInfo, of a module that imports this one

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_features), as of any matrix."""
        return self.n_rows, self.n_features

    @property
    def sparse(self) -> bool:
        """True where rows are stored, and read, sparse."""
        return self.info.sparse_features is not None

    @property
    def entries(self) -> int:
        """Values that are stored: of sparse rows those that are not 0."""
        return int(self._places()[:, 1].sum()) if self.sparse else self.n_rows * self.n_features

    def __len__(self) -> int:
        return self.n_rows

    @abstractmethod
    def array(self, name: str) -> zarr.Array:
        """See `Corpus`."""

    @property
    def x(self) -> zarr.Array:
        """The rows as a zarr array (n, d), read where it is indexed; `dask.array.from_zarr(corpus.x)` is lazy.

        Raises
        ------
        DataError
            Sparse rows, which are no one array.
        """
        if self.sparse:
            raise DataError(
                f"{self.path}: its rows are sparse, in the arrays {', '.join(sparse_rows.ARRAYS)}; take "
                "corpus[start:stop], a csr_array, or give the corpus itself to fit or predict"
            )
        return self.array("x")

    def __getitem__(self, index: Any) -> Any:
        """Rows in memory: (d,) of a number; (k, d) of a slice, of row ids (k,) or of a mask (n,).

        Several rows are a csr_array where the corpus is sparse.

        Raises
        ------
        PlanTooLarge
            More than 1 GiB.
        IndexError
            No such row.
        """
        if isinstance(index, tuple):
            raise TypeError(f"{self.path}: rows are indexed by one index, found {len(index)}; corpus.x takes several")
        if isinstance(index, slice):
            return self._slice(range(*index.indices(self.n_rows)))
        if np.ndim(index) == 0 and not isinstance(index, bool | np.bool_):
            row = range(self.n_rows)[operator.index(index)]
            found: NDArray[Any] = _dense(self._read(row, row + 1))[0]
            return found
        ids = np.arange(self.n_rows)[np.asarray(index, np.int64 if not len(index) else None)]
        self._require_room(len(ids))
        if self.sparse:
            return self._take(ids)
        found = np.empty((len(ids), self.n_features), self.dtype)
        for chunk in np.unique(ids // self.chunk_rows):
            start, here = int(chunk) * self.chunk_rows, np.flatnonzero(ids // self.chunk_rows == chunk)
            found[here] = self._read(start, min(start + self.chunk_rows, self.n_rows))[ids[here] - start]
        return found

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Every row (d,) in turn; a chunk is in memory at a time."""
        for start, stop in pairwise((*range(0, self.n_rows, self.chunk_rows), self.n_rows)):
            for first in range(start, stop, _ROWS):
                yield from _dense(self._read(first, min(first + _ROWS, stop)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All rows (n, d) in memory, where they are at most 1 GiB; else `PlanTooLarge`, which says how to go on."""
        if copy is False:
            raise ValueError(f"{self.path}: rows on disk cannot become an array without a copy")
        self._require_room(self.n_rows, dense=True)
        rows = _dense(self._slice(range(self.n_rows)))
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def head(self, count: int = 5) -> dict[str, NDArray[Any]]:
        """The first rows and what goes with them, as they are stored: {"x": (count, d), "y": (count,), …}.

        Labels that are text come as their names, "" where there is none.
        """
        count = max(0, min(count, self.n_rows))
        found = {"x": _dense(self._slice(range(count)))}
        for name in self.columns:
            found[name] = self._read(0, count, name)
        if "y" in found and any(isinstance(label, str) for label in self.info.classes):
            found["y"] = np.array([*map(str, self.info.classes), ""])[found["y"].astype(np.int64)]
        return found

    def _repr_html_(self) -> str:
        info = self.info
        classes = [str(label) for label in info.classes]
        figures = {
            "path": self.path,
            "rows": self.n_rows,
            "features": self.n_features,
            "dtype": f"{self.dtype}, sparse" if self.sparse else self.dtype,
            "columns": list(self.columns),
            "classes": [*classes[:12], *(["…"] if len(classes) > 12 else [])],
            "image shape": list(info.image_shape or ()),
            "chunk rows": self.chunk_rows,
            "source": info.source,
        }
        try:
            return table(f"corpus {info.name}", figures) + self.first_rows()
        except (BigKernelError, OSError, ValueError) as error:  # it was removed; a cell that shows it shall not fail
            return table(f"corpus {info.name}", {**figures, "now": str(error)})

    def first_rows(self) -> str:
        """Return the first rows as HTML: as pictures above their labels where they are some, else as numbers."""
        head, shape = self.head(_PICTURES if self.info.image_shape else _SHOWN), self.info.image_shape
        x = head.pop("x")
        if shape and shape[0] * shape[1] == x.shape[1] and len(x):
            labels = head.get("y", np.arange(len(x))).tolist()
            return pictures(shape, [image.tobytes() for image in grey(x.reshape(-1, *shape))], labels)
        shown = x[:, :_COLUMNS].tolist()
        lines = [[i, *(values[i].item() for values in head.values()), *row] for i, row in enumerate(shown)]
        return columns(["row", *head, *(f"x[{j}]" for j in range(min(x.shape[1], _COLUMNS)))], lines)

    def _take(self, ids: NDArray[Any]) -> Any:
        """Rows of these ids, csr_array (k, d); each chunk is read once."""
        order = np.argsort(ids, kind="stable")
        parts = [sparse.csr_array((0, self.n_features), dtype=self.dtype)]
        for piece in np.split(order, np.flatnonzero(np.diff(ids[order] // self.chunk_rows)) + 1) if len(ids) else []:
            first, last = int(ids[piece[0]]), int(ids[piece[-1]])
            parts.append(self._read(first, last + 1)[ids[piece] - first])
        return sparse.vstack(parts, format="csr")[np.argsort(order, kind="stable")]

    def _slice(self, rows: range) -> Any:
        self._require_room(len(rows))
        if not rows:
            empty = (0, self.n_features)
            return sparse.csr_array(empty, dtype=self.dtype) if self.sparse else np.empty(empty, self.dtype)
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        if abs(rows.step) > 1:
            return self[np.asarray(rows)]
        found = self._read(first, last + 1)
        return found if rows.step > 0 else found[::-1]

    def _read(self, start: int, stop: int, name: str = "x") -> Any:
        if name == "x" and self.sparse:
            return sparse_rows.read_rows(self._read_entries, self._places(), self.chunk_rows, self.shape, start, stop)
        array = self.array(name)
        for chunk in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            zarr_arrays.require_chunk(array, chunk)
        return zarr_arrays.read(array, start, stop)

    def _read_entries(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Of an array of sparse rows."""
        array = self.array(name)
        for chunk in range(start // array.chunks[0], -(-stop // array.chunks[0])):
            zarr_arrays.require_chunk(array, chunk)
        return zarr_arrays.read(array, start, stop)

    def _places(self) -> NDArray[Any]:
        return self._read_entries("places", 0, -(-self.n_rows // self.chunk_rows))

    def _require_room(self, rows: int, *, dense: bool = False) -> None:
        row_bytes = self.n_features * np.dtype(self.dtype).itemsize
        if self.sparse and not dense:
            row_bytes = self.entries * sparse_rows.entry_bytes(self.dtype) // max(1, self.n_rows)
        needed = rows * row_bytes
        if needed > MOST_BYTES:
            raise PlanTooLarge(
                f"{self.path}: {rows:,} rows of {self.n_features:,} {self.dtype} are {needed / 1e9:,.1f} GB in memory, "
                f"more than the {MOST_BYTES / 1e9:.1f} GB that an index or np.asarray brings there; give the corpus "
                "itself to fit or predict, read some of it (corpus[start:stop]), or take corpus.x, which is lazy "
                "(corpus.x[:] reads all of it all the same)"
            )


def _dense(rows: Any) -> NDArray[Any]:
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows)
