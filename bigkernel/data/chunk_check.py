"""Looking at every chunk of a stored array: is it there, does it decode, are its values what they may be."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bigkernel.data import seals, zarr_arrays
from bigkernel.errors import ChunkCorrupt, ChunkMissing, DataError

_CHUNK_BYTES = 2**34  # most that is decoded at once
_AHEAD_BYTES = 2**27  # of the chunks that are decoded side by side; a larger chunk is decoded alone
_MOST_READERS = 8

Judge = Callable[[int, NDArray[Any]], str]  # first row and values of a chunk: what is wrong with them, or ""


@dataclass(frozen=True)
class Looked:
    """One chunk that was looked at.

    Attributes
    ----------
    array : name of the array
    done, total : rows of the array looked at so far, and in all
    damage : what is wrong with the chunk, as the error that reading it would raise; None: it is sound
    """

    array: str
    done: int
    total: int
    damage: DataError | None = None


def finite(start: int, values: NDArray[Any]) -> str:
    """A fault of floating-point values of a chunk that begins with row `start`; "" if they are all finite."""
    if values.dtype.kind not in "fc":
        return ""
    sound = np.isfinite(values)
    if sound.all():
        return ""
    bad = ~sound
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)) if values.ndim else np.zeros(1, int)
    return f"{len(rows)} rows with values that are not finite, the first are {(start + rows[:5]).tolist()}"


def look_store(root: Path, arrays: Mapping[str, zarr.Array], labels: Judge | None = None) -> Iterator[Looked]:
    """Look at the arrays of a sealed store, and at whether their chunks are those that were sealed.

    Parameters
    ----------
    labels : judge of the values of `y`; all others must be finite
    """
    seal = seals.verify(root)
    damaged = set()
    for name, array in arrays.items():
        for looked in look(array, name, labels if labels and name == "y" else finite):
            if looked.damage:
                damaged.add(name)
            yield looked
    for name, text in seals.changed_arrays(root, seal):
        if name not in damaged:
            yield Looked(name, 1, 1, DataError(f"{root}/{name}: {text}"))


def look(array: zarr.Array, name: str, judge: Judge = finite) -> Iterator[Looked]:
    """Read every chunk of an array through its codecs, and look at its values; on all processors.

    Yields
    ------
    Looked
        After each chunk, in order of rows. A chunk that is missing, does not decode, or holds values that `judge`
        objects to carries its error.
    """
    steps = array.chunks
    grid = (range(-(-size // step)) for size, step in zip(array.shape, steps, strict=True))
    together = _AHEAD_BYTES // max(1, int(np.prod(steps, dtype=object)) * array.dtype.itemsize)
    readers = max(1, min(os.cpu_count() or 1, _MOST_READERS, together))
    waiting: deque[Future[Looked]] = deque()
    pool = ThreadPoolExecutor(readers, thread_name_prefix="bigkernel-check")
    try:
        for index in product(*grid):
            waiting.append(pool.submit(_look_at, array, name, index, judge))
            if len(waiting) > readers:  # few are ahead of who looks at what was found
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _look_at(array: zarr.Array, name: str, index: tuple[int, ...], judge: Judge) -> Looked:
    """One chunk, by its place in the grid of chunks.

    Raises
    ------
    OSError
        The store fails; the chunk may be sound.
    """
    steps = array.chunks
    place = tuple(
        slice(i * step, min((i + 1) * step, size)) for i, step, size in zip(index, steps, array.shape, strict=True)
    )
    start, stop = (place[0].start, place[0].stop) if place else (0, 1)
    root, key = zarr_arrays.directory_of(array), array.metadata.encode_chunk_key(index)
    where = f"{root}: chunk {key} (rows {start}:{stop})"
    damage: DataError | None = None
    if not (root / key).is_file():
        damage = ChunkMissing(
            f"{where} is missing, and would be read as {array.fill_value}; restore it, or write the array again"
        )
    elif int(np.prod(steps, dtype=object)) * array.dtype.itemsize > _CHUNK_BYTES:
        damage = DataError(f"{where} claims more than {_CHUNK_BYTES:,} bytes; it is not read")
    else:
        try:
            wrong = judge(start, np.asarray(array[place]))
        except Exception as error:  # whatever a codec says of bytes that it does not understand
            if isinstance(error, OSError) and error.errno is not None:
                raise
            damage = ChunkCorrupt(f"{where} cannot be decoded ({error}); restore the chunk from a copy")
        else:
            damage = DataError(f"{where} has {wrong}") if wrong else None
    return Looked(name, stop, array.shape[0] if array.ndim else 1, damage)


def labels_of(classes: Sequence[int | str]) -> Judge:
    """A judge of stored labels: those of the classes, or −1; any where there are no classes."""
    named = any(isinstance(label, str) for label in classes)
    known = np.append(np.arange(len(classes)) if named else np.asarray(classes, np.int64), -1)

    def judge(start: int, values: NDArray[Any]) -> str:
        bad = np.flatnonzero(~np.isin(values, known)) if classes else np.empty(0, int)
        if not bad.size:
            return ""
        return f"{len(bad)} rows with labels outside the classes, the first are {(start + bad[:5]).tolist()}"

    return judge
