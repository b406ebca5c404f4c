"""The arrays of a corpus that is being written: rows and their columns, chunk by chunk.

All share `chunk_rows`. A chunk of rows is written in every array before the next one, so that an interruption leaves
leading chunks that are whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bigkernel.data import zarr_arrays
from bigkernel.errors import DataError

KEPT_LABELS = "labels"  # labels as they came, until it is known what they are; see `labels`

Array = NDArray[Any]
Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


class CorpusArrays:
    """Of an unpublished group.

    Parameters
    ----------
    group : zarr.Group
    shapes : the shape of a row, and the dtype, of `x` and of each column
    chunk_rows : int
    """

    def __init__(self, group: zarr.Group, shapes: Shapes, chunk_rows: int) -> None:
        self._group, self._shapes, self._step = group, shapes, chunk_rows
        self._arrays = {
            name: zarr_arrays.create(group, name, shape=(0, *tail), chunks=(chunk_rows, *tail), dtype=dtype)
            for name, (tail, dtype) in shapes.items()
        }

    def recover(self) -> int:
        """Rows of the leading chunks that are there in every array and read back; all later chunks are removed."""
        counts = [sum(1 for _ in zarr_arrays.directory_of(array).glob("c/*")) for array in self._arrays.values()]
        whole = min(counts) * self._step
        self.resize(max(counts) * self._step)
        sound = 0
        for stop in range(self._step, whole + 1, self._step):
            try:
                for array in self._arrays.values():
                    zarr_arrays.require_chunk(array, stop // self._step - 1)
                    zarr_arrays.read(array, sound, stop)
            except DataError:
                break
            sound = stop
        self.resize(sound)
        return sound

    def resize(self, n_rows: int) -> None:
        """Keep the first rows, or make room for more."""
        for name, array in self._arrays.items():
            array.resize((n_rows, *self._shapes[name][0]))

    def write(self, first: int, rows: Mapping[str, Any]) -> None:
        """Write rows and columns from row `first` on, the first of a chunk."""
        count = rows["x"].shape[0]
        for start in range(0, count, self._step):
            part = slice(start, min(count, start + self._step))
            for name, array in self._arrays.items():
                zarr_arrays.write(array, first + start, fitting(rows[name][part], array.dtype, name))

    def store_labels(self, labels: Any, n_rows: int) -> None:
        """Write `y` as `Labels` says from those that were kept, which are removed when it is there."""
        kept = self._arrays[KEPT_LABELS]
        place = zarr_arrays.directory_of(kept)
        shutil.rmtree(place.with_name("y"), ignore_errors=True)  # of an interrupted writer
        y = zarr_arrays.create(self._group, "y", shape=(n_rows,), chunks=(self._step,), dtype=labels.dtype)
        for start in range(0, n_rows, self._step):
            found = zarr_arrays.read(kept, start, min(start + self._step, n_rows))
            zarr_arrays.write(y, start, labels.stored(found))
        self._arrays = {**{name: array for name, array in self._arrays.items() if name != KEPT_LABELS}, "y": y}
        shutil.rmtree(place)

    def finish(self) -> None:
        """See that every chunk is there."""
        for array in self._arrays.values():
            zarr_arrays.require_chunks(array)


def joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Pieces of rows and columns, one after the other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def fitting(values: Array, dtype: Any, name: str) -> Array:
    """Values in the stored dtype; refused where that would change one (300 or −1 as uint8, 0.5 as an integer)."""
    if np.can_cast(values.dtype, dtype, "safe"):
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        cast: Array = values.astype(dtype)
    if np.dtype(dtype).kind == "f":  # a shorter float rounds, which is meant; it must not overflow
        changed = np.isinf(cast) & np.isfinite(values)
    else:
        changed = cast != values
    if changed.any():
        raise DataError(f"{name}: the value {values[changed][0]} cannot be stored as {np.dtype(dtype)}")
    return cast
