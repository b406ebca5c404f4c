"""IDX, the format of MNIST: big-endian binary, gzip or plain.

Two zero bytes, a type code, the number of dimensions, the dimensions as 32-bit integers, then the values. Images are
(n, h, w) and become rows of h·w values; a matrix (n, d) is taken as it is. Labels are a file of their own with one
dimension. Unsigned bytes are pixels: scale 255. Format: http://yann.lecun.com/exdb/mnist (foot of the page).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import (
    Block,
    Source,
    block_rows,
    native,
    open_stream,
    pixel_scale,
    require_features,
    require_file,
    require_size,
)
from bigkernel.errors import DataError

# type code -> dtype, as in the file
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IMAGES_NAME = re.compile(r"images([-.])idx\d(-\w+?)(\.gz)?$")


@dataclass(frozen=True)
class _Header:
    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return 4 + 4 * len(self.shape)

    def rows(self, step: int) -> Iterator[NDArray[Any]]:
        row_shape = (int(np.prod(self.shape[1:], dtype=np.int64)),) if len(self.shape) > 1 else ()
        with open_stream(self.path) as stream:
            stream.read_exactly(self.size_bytes, "the header")
            yield from stream.rows(self.shape[0], row_shape, self.dtype, step)


def recognises(head: bytes) -> bool:
    """Return True for a file that begins as IDX with one to four dimensions."""
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in TYPES and 1 <= head[3] <= 4


def read(path: str, *, labels: str | None = None) -> Source:
    """Open IDX images (n, h, w) or rows (n, d), with their labels.

    Parameters
    ----------
    path : str
    labels : path, "none" or None
        None: the file beside `path` that the MNIST naming convention gives (images-idx3 → labels-idx1, with or without
        .gz; images.idx3 likewise), no labels where there is none.

    Raises
    ------
    DataError
        Wrong magic or number of dimensions, sizes that the file cannot hold, truncation, trailing bytes, a number of
        labels that is not the number of images.
    """
    images = _read_header(path, (2, 3), "images (n, h, w) or rows (n, d)")
    n_rows, *tail = images.shape
    n_features = int(np.prod(tail, dtype=object))
    require_features(path, n_features)
    labels = _labels_beside(path) if labels is None else labels
    targets = None
    if labels is not None and labels != "none":
        require_file(labels)
        targets = _read_header(labels, (1,), "labels (n,)")
        if targets.shape != (n_rows,):
            raise DataError(f"{labels}: {targets.shape[0]} labels, but {path} has {n_rows} images; they are not a pair")
    step = block_rows(n_features * images.dtype.itemsize)
    image_shape = (tail[0], tail[1]) if len(tail) == 2 else None

    def blocks() -> Iterator[Block]:
        y = targets.rows(step) if targets else repeat(None, -(-n_rows // step))
        yield from zip(images.rows(step), y, strict=True)

    return Source(
        format="idx",
        path=path,
        n_features=n_features,
        dtype=native(images.dtype),
        blocks=blocks,
        n_rows=n_rows,
        labelled=targets is not None,
        image_shape=image_shape,
        scale=pixel_scale(image_shape or (1, n_features), images.dtype),
        files=(path, targets.path) if targets else (path,),
    )


def _read_header(path: str, dimensions: tuple[int, ...], meaning: str) -> _Header:
    with open_stream(path) as stream:
        magic = stream.read_exactly(4, "the IDX magic")
        if magic[:2] != b"\0\0" or magic[2] not in TYPES:
            codes = ", ".join(f"{code:02x}" for code in TYPES)
            raise DataError(f"{path}: expected an IDX magic (00 00, a type of {codes}), found {magic.hex(' ')}")
        if magic[3] not in dimensions:
            wanted = " or ".join(map(str, dimensions))
            raise DataError(f"{path}: expected {wanted} dimensions for {meaning}, found {magic[3]}")
        shape = struct.unpack(f">{magic[3]}I", stream.read_exactly(4 * magic[3], "the IDX header"))
    header = _Header(path, np.dtype(TYPES[magic[2]]), shape)
    if 0 in shape:
        raise DataError(f"{path}: no rows: its dimensions are {shape}")
    claim = " × ".join(map(str, shape)) + f" values of {header.dtype.itemsize} bytes"
    require_size(path, header.size_bytes + int(np.prod(shape, dtype=object)) * header.dtype.itemsize, claim)
    return header


def _labels_beside(path: str) -> str | None:
    folder, name = os.path.split(path)
    found = _IMAGES_NAME.search(name)
    if not found:
        return None
    stem = f"{name[: found.start()]}labels{found[1]}idx1{found[2]}"
    endings = (".gz", "") if found[3] else ("", ".gz")
    candidates = (os.path.join(folder, stem + ending) for ending in endings)
    return next((candidate for candidate in candidates if os.path.exists(candidate)), None)
