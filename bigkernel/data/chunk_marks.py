"""What tells the chunk files of an array of ours from any others: their sizes and last four bytes, their crc32c.

A checksum says that a chunk is sound, not that it is the one that belongs there, and zarr reads a chunk that is not
there as zeros. The marks of a sealed array are taken when it is opened, and compared with its seal; every read compares
the files that it has read with them. So a store that is removed, exchanged or edited under a reader is an error at the
next read, on every thread and worker, and in every later sweep of the same rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bigkernel.data import seals
from bigkernel.errors import ChunkCorrupt, ChunkMissing

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Marks:
    """Of the chunks `first` and up of an array whose chunks hold whole rows.

    Attributes
    ----------
    sizes : (k,) int64, of the files
    ends : (k, 4) uint8, their last bytes
    """

    first: int
    sizes: Array
    ends: Array

    @classmethod
    def of(cls, array: zarr.Array, base: Path) -> Marks:
        """Those of all chunks of an array in the directory `base`."""
        sizes, ends = np.zeros(array.nchunks, np.int64), np.zeros((array.nchunks, 4), np.uint8)
        for index in range(array.nchunks):
            size, end = seals.mark_of(base / _key(array, index))
            sizes[index], ends[index, : len(end)] = size, np.frombuffer(end, np.uint8)
        return cls(0, sizes, ends)

    def digest(self, array: zarr.Array) -> str:
        """What a seal says of an array with these chunks; see `seals.chunks_digest`."""
        total = hashlib.sha256()
        for index in sorted(range(len(self.sizes)), key=str):
            total.update(seals.described(_key(array, index), int(self.sizes[index]), self.ends[index].tobytes()))
        return total.hexdigest()

    def part(self, start: int, stop: int) -> Marks:
        """Those of the chunks start … stop, where they are among these."""
        low, high = max(0, start - self.first), max(0, stop - self.first)
        return Marks(self.first + low, self.sizes[low:high], self.ends[low:high])

    def require(self, array: zarr.Array, base: Path, start: int, stop: int) -> None:
        """Raise unless the chunks start … stop are stored and are these.

        Raises
        ------
        ChunkMissing, ChunkCorrupt
            Name the array, the rows and the chunk.
        """
        for index in range(start, stop):
            key, place = _key(array, index), index - self.first
            rows = f"{index * array.chunks[0]}:{min((index + 1) * array.chunks[0], array.shape[0])}"
            try:
                size, end = seals.mark_of(base / key)
            except FileNotFoundError as error:
                raise ChunkMissing(
                    f"{array.store_path}: rows {rows} are missing: the chunk {key} was removed after the store was "
                    "opened; restore it from a copy"
                ) from error
            if size != self.sizes[place] or end != self.ends[place, : len(end)].tobytes():
                raise ChunkCorrupt(
                    f"{array.store_path}: rows {rows} are not those that were opened: the chunk {key} was changed or "
                    "exchanged since; a store must stay as it is while it is read"
                )


def _key(array: zarr.Array, index: int) -> str:
    return array.metadata.encode_chunk_key((index, *[0] * (array.ndim - 1)))
