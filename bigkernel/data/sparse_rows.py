"""Sparse rows of a corpus: SciPy's CSR in four arrays, whose chunks hold whole chunks of rows.

`lengths` (n,) says how many values each row has, in chunks of `chunk_rows`. `indices` and `values` hold the columns and
the values of the rows, one row after another, in chunks of equal size; each chunk of rows begins a new one of these,
and zeros fill the last, which compress to nothing. So every chunk is written whole and once, an interrupted corpus ends
with a chunk of rows, and some rows are read from the chunks that they are in. `places` (k, 2) says where the values of
each chunk of rows begin and how many there are.

Shapes: n rows, d features, k chunks of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy import sparse

from bigkernel.data import zarr_arrays
from bigkernel.errors import ChunkCorrupt, DataError

Array = NDArray[Any]
ARRAYS = ("lengths", "indices", "values", "places")
INDEX = np.dtype(np.int32)
_ENTRIES = (2**10, 2**18)  # of a chunk of values, at least and at most
Read = Callable[[str, int, int], Array]


def as_csr(x: Any, dtype: Any = None) -> sparse.csr_array:
    """Rows, dense or sparse, as a csr_array whose columns rise within a row, each once."""
    rows = sparse.csr_array(x, dtype=dtype)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the arrays may be the caller's
        rows.sum_duplicates()
    return rows


def join(parts: list[Any]) -> Any:
    """Rows of several pieces, dense or sparse as they are, one after the other."""
    if sparse.issparse(parts[0]):
        return parts[0] if len(parts) == 1 else sparse.vstack(parts, format="csr")
    return np.concatenate(parts)


def entry_bytes(dtype: Any) -> int:
    """Bytes of one stored value with its column."""
    return int(np.dtype(dtype).itemsize + INDEX.itemsize)


class SparseRows:
    """Writes `x` of a corpus as sparse rows; as an array of rows is written, `resize`, `write` and read back.

    Parameters
    ----------
    group : of the corpus
    n_features, dtype : of the rows
    chunk_rows : of the corpus
    row_entries : values of a row, about
    """

    def __init__(self, group: zarr.Group, n_features: int, dtype: Any, chunk_rows: int, row_entries: float) -> None:
        self.n_features, self.dtype, self._step, self._group = n_features, np.dtype(dtype), chunk_rows, group
        least, most = _ENTRIES
        self._unit = min(most, max(least, 2 ** int(np.ceil(np.log2(max(1.0, row_entries * chunk_rows / 4))))))
        self._lengths = zarr_arrays.create(group, "lengths", shape=(0,), chunks=(chunk_rows,), dtype=INDEX)
        self._indices = zarr_arrays.create(group, "indices", shape=(0,), chunks=(self._unit,), dtype=INDEX)
        self._values = zarr_arrays.create(group, "values", shape=(0,), chunks=(self._unit,), dtype=dtype)
        self._places: list[tuple[int, int]] = []

    @property
    def _end(self) -> int:
        """Where the values of the next chunk of rows begin."""
        if not self._places:
            return 0
        start, count = self._places[-1]
        return start + self._padded(count)

    def _padded(self, count: int) -> int:
        return int(max(1, -(-count // self._unit)) * self._unit)

    def files(self) -> int:
        """Chunks of rows that may be whole: those whose lengths are there, which are written last."""
        return sum(1 for _ in zarr_arrays.directory_of(self._lengths).glob("c/*"))

    def resize(self, n_rows: int) -> None:
        """Keep the first rows, or make room for more; whole chunks of rows but for the last."""
        del self._places[-(-n_rows // self._step) :]
        if len(self._places) * self._step >= n_rows:  # fewer rows than there were
            for array in (self._indices, self._values):
                array.resize((self._end,))
        self._lengths.resize((n_rows,))

    def recover(self, n_rows: int) -> int:
        """The first rows of so many whose chunks are there and read back, after an interruption.

        The last chunk may have been cut; `resize` to what is returned removes it.
        """
        sound = 0
        self._lengths.resize((n_rows,))
        for array in (self._indices, self._values):
            files = sum(1 for _ in zarr_arrays.directory_of(array).glob("c/*"))
            array.resize((files * self._unit,))
        for start in range(0, n_rows, self._step):
            stop = min(start + self._step, n_rows)
            try:
                zarr_arrays.require_chunk(self._lengths, start // self._step)
                count = int(zarr_arrays.read(self._lengths, start, stop).sum(dtype=np.int64))
                place = (self._end, count)
                for array in (self._indices, self._values):
                    for chunk in range(place[0] // self._unit, (place[0] + self._padded(count)) // self._unit):
                        zarr_arrays.require_chunk(array, chunk)
                        zarr_arrays.read(array, chunk * self._unit, (chunk + 1) * self._unit)
            except DataError:
                break
            self._places.append(place)
            sound = stop
        return sound

    def write(self, start: int, rows: sparse.csr_array) -> None:
        """Write the chunk of rows that begins with row `start`, whole; the lengths come last."""
        index, count = start // self._step, int(rows.nnz)
        del self._places[index:]
        first, room = self._end, self._padded(count)
        for array, values in ((self._indices, rows.indices), (self._values, rows.data)):
            padded = np.zeros(room, array.dtype)
            padded[:count] = values
            array.resize((first + room,))
            zarr_arrays.write(array, first, padded)
        zarr_arrays.write(self._lengths, start, np.diff(rows.indptr).astype(INDEX))
        self._places.append((first, count))

    def finish(self) -> None:
        """Write where each chunk of rows begins, and see that all is there."""
        values = np.array(self._places, np.int64).reshape(-1, 2)
        places = zarr_arrays.create(self._group, "places", shape=values.shape, chunks=values.shape, dtype=values.dtype)
        zarr_arrays.write(places, 0, values)
        for array in (self._lengths, self._indices, self._values, places):
            zarr_arrays.require_chunks(array)


def shape_of(path: Any, arrays: Mapping[str, zarr.Array], n_features: int) -> tuple[int, ...]:
    """(n, d) of the arrays of sparse rows, whose shapes must go together.

    Raises
    ------
    DataError
        They do not.
    """
    n = arrays["lengths"].shape[0]
    chunks = -(-n // arrays["lengths"].chunks[0])
    found = {name: arrays[name].shape for name in ARRAYS}
    sound = found["lengths"] == (n,) and found["places"] == (chunks, 2) and found["indices"] == found["values"]
    if not sound or len(found["values"]) != 1 or not 1 <= n_features < 2**31:
        raise DataError(f"{path}: its sparse rows do not fit together: {n_features} features, {found}")
    return n, n_features


def read_rows(read: Read, places: Array, chunk_rows: int, shape: tuple[int, int], start: int, stop: int) -> Any:
    """Rows start … stop as a csr_array; of the values, what these rows have is read and no more than its chunks.

    Parameters
    ----------
    read : name of an array, first and last entry: what is there

    Raises
    ------
    ChunkCorrupt
        Lengths that do not add up, or columns that do not rise within 0 … d.
    """
    n, d = shape
    parts = [sparse.csr_array((0, d), dtype=read("values", 0, 0).dtype)]
    for chunk in range(start // chunk_rows, -(-stop // chunk_rows)):
        first, last = chunk * chunk_rows, min((chunk + 1) * chunk_rows, n)
        lengths = read("lengths", first, last)
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        offset, count = (int(number) for number in places[chunk])
        low, high = max(start, first) - first, min(stop, last) - first
        a, b = offset + int(ends[low]), offset + int(ends[high])
        if lengths.min(initial=0) < 0 or ends[-1] != count:
            raise ChunkCorrupt(f"rows {first}:{last}: their lengths do not add up; restore the chunk from a copy")
        indices, values, indptr = read("indices", a, b), read("values", a, b), ends[low : high + 1] - ends[low]
        if not _rising(indices, indptr, d):
            raise ChunkCorrupt(f"rows {first}:{last}: columns that do not rise within 0:{d}; restore it from a copy")
        kind = np.int32 if b - a < 2**31 else np.int64
        rows = sparse.csr_array((values, indices, indptr.astype(kind)), shape=(high - low, d))
        rows.has_canonical_format = True
        parts.append(rows)
    return join(parts[1:]) if len(parts) > 1 else parts[0]


def _rising(indices: Array, indptr: Array, n_features: int) -> bool:
    """Tell if the columns of every row rise, within the features that there are."""
    if not len(indices):
        return True
    if indices.min() < 0 or indices.max() >= n_features:
        return False
    falls = np.flatnonzero(np.diff(indices) <= 0) + 1
    return bool(np.isin(falls, indptr).all())
