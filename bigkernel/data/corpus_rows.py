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

from bigkernel.data import zarr_arrays
from bigkernel.data.labels import named_labels
from bigkernel.data.pixels import grey
from bigkernel.errors import BigKernelError, PlanTooLarge
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

    def __len__(self) -> int:
        return self.n_rows

    @abstractmethod
    def array(self, name: str) -> zarr.Array:
        """See `Corpus`."""

    @property
    def x(self) -> zarr.Array:
        """The rows as a zarr array (n, d), read where it is indexed; `dask.array.from_zarr(corpus.x)` is lazy."""
        return self.array("x")

    def __getitem__(self, index: Any) -> Any:
        """Rows in memory: (d,) of a number; (k, d) of a slice, of row ids (k,) or of a mask (n,).

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
            one: NDArray[Any] = self._read(row, row + 1)[0]
            return one
        ids = np.arange(self.n_rows)[np.asarray(index, np.int64 if not len(index) else None)]
        self._require_room(len(ids))
        found = np.empty((len(ids), self.n_features), self.dtype)
        for chunk in np.unique(ids // self.chunk_rows):
            start, here = int(chunk) * self.chunk_rows, np.flatnonzero(ids // self.chunk_rows == chunk)
            found[here] = self._read(start, min(start + self.chunk_rows, self.n_rows))[ids[here] - start]
        return found

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Every row (d,) in turn; a chunk is in memory at a time."""
        for start, stop in pairwise((*range(0, self.n_rows, self.chunk_rows), self.n_rows)):
            for first in range(start, stop, _ROWS):
                yield from self._read(first, min(first + _ROWS, stop))

    def batches(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the rows and their columns, a chunk at a time; labels that are text as their names."""
        for start in range(0, self.n_rows, self.chunk_rows):
            stop = min(start + self.chunk_rows, self.n_rows)
            found = {name: self._read(start, stop, name) for name in ("x", *self.columns)}
            if "y" in found:
                found["y"] = named_labels(found["y"], self.info.classes)
            yield found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All rows (n, d) in memory, where they are at most 1 GiB; else `PlanTooLarge`, which says how to go on."""
        if copy is False:
            raise ValueError(f"{self.path}: rows on disk cannot become an array without a copy")
        self._require_room(self.n_rows)
        rows: NDArray[Any] = self._slice(range(self.n_rows))
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def head(self, count: int = 5) -> dict[str, NDArray[Any]]:
        """The first rows and what goes with them, as they are stored: {"x": (count, d), "y": (count,), …}.

        Labels that are text come as their names, "" where there is none.
        """
        count = max(0, min(count, self.n_rows))
        found = {"x": self._slice(range(count))}
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
            "dtype": self.dtype,
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

    def _slice(self, rows: range) -> Any:
        self._require_room(len(rows))
        if not rows:
            return np.empty((0, self.n_features), self.dtype)
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        if abs(rows.step) > 1:
            return self[np.asarray(rows)]
        found = self._read(first, last + 1)
        return found if rows.step > 0 else found[::-1]

    def _read(self, start: int, stop: int, name: str = "x") -> Any:
        array = self.array(name)
        for chunk in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            zarr_arrays.require_chunk(array, chunk)
        return zarr_arrays.read(array, start, stop)

    def _require_room(self, rows: int) -> None:
        needed = rows * self.n_features * np.dtype(self.dtype).itemsize
        if needed > MOST_BYTES:
            raise PlanTooLarge(
                f"{self.path}: {rows:,} rows of {self.n_features:,} {self.dtype} are {needed / 1e9:,.1f} GB in memory, "
                f"more than the {MOST_BYTES / 1e9:.1f} GB that an index or np.asarray brings there; give the corpus "
                "itself to fit or predict, read some of it (corpus[start:stop]), or take corpus.x, which is lazy "
                "(corpus.x[:] reads all of it all the same)"
            )
