"""What every reader gives, and the stream of bytes under those that need one.

A `Source` is what the head of a file says, and a stream of blocks over the rest of it: n rows, d features; a block has
k rows, about a megabyte. What is wrong with a file is a `DataError` that names it and, where there is one, the row.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError

BLOCK_BYTES = 2**20
BLOCK_ROWS = 4096
MOST_FEATURES = 2**24
DEFLATE_RATIO = 1100  # deflate expands at most 1032-fold
GZIP_MAGIC = b"\x1f\x8b"
AGAIN = "copy or download the file again"
_BROKEN = (zlib.error, zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError)
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DIGITS = re.compile(r"([0-9]+)")

Block = tuple[Any, ...]  # x (k, d), y (k,) or None, group (k,); what comes last may be left out


@dataclass(frozen=True)
class Source:
    """The findings of a reader in the head of a file, before the rows are read.

    Attributes
    ----------
    format : a key of `bigkernel.data.readers.FORMATS`
    path : str
    n_features : int
    dtype : of the rows, as they will be stored
    blocks : each call starts a new stream of blocks; y is as the file has it, numbers or strings
    n_rows : int or None
        None: not known before the end (text).
    labelled, grouped : whether the rows carry labels, and groups
    image_shape : (height, width) or None
    scale : what divides stored values into the range they mean: 255 for 8-bit pixels, else 1
    files : every file that is read, for the digest
    origin : says in one text what was read and its digest, where that is not one file or two: a folder, a store
    """

    format: str
    path: str
    n_features: int
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[Block]]
    n_rows: int | None = None
    labelled: bool = False
    grouped: bool = False
    image_shape: tuple[int, int] | None = None
    scale: float = 1.0
    files: tuple[str, ...] = ()
    origin: Callable[[], str] | None = None

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield the rows and what goes with them by name: {"x": (k, d), "y": (k,), "group": (k,)}."""
        for block in self.blocks():
            named = zip(("x", "y", "group"), block, strict=False)
            yield {name: values for name, values in named if values is not None}


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise what goes wrong with the bytes of a file as a DataError that names it."""
    try:
        yield
    except EOFError:
        raise DataError(f"{name}: truncated: the compressed data stop before their end; {AGAIN}") from None
    except _BROKEN as error:
        raise DataError(f"{name}: cannot be read: {error}; {AGAIN}") from error


class Stream:
    """The bytes of a file in order.

    Parameters
    ----------
    name : what messages call the file
    handle : binary file
    """

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self.handle = handle

    def read(self, count: int) -> bytes:
        """Read at most `count` bytes; fewer only at the end of the content."""
        with reading(self.name):
            return bytes(self.handle.read(count))

    def read_exactly(self, count: int, what: str) -> bytes:
        """Read `count` bytes, or raise a DataError that says what was cut."""
        data = self.read(count)
        if len(data) != count:
            raise DataError(f"{self.name}: truncated: the file ends within {what}; {AGAIN}")
        return data

    def rows(self, n_rows: int, row_shape: tuple[int, ...], dtype: np.dtype[Any], step: int) -> Iterator[NDArray[Any]]:
        """Yield fixed-width rows (k, *row_shape) in native byte order, `step` at a time, up to the end of the file."""
        row_bytes = dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        for start in range(0, n_rows, step):
            stop = min(start + step, n_rows)
            data = self.read_exactly((stop - start) * row_bytes, f"rows {start}:{stop} of {n_rows}")
            yield in_native_order(np.frombuffer(data, dtype).reshape(stop - start, *row_shape))
        if self.read(1):
            raise DataError(f"{self.name}: trailing bytes after its {n_rows} rows; {AGAIN}")


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[Stream]:
    """Open the content of a file, looking through gzip."""
    with contextlib.ExitStack() as stack:
        with reading(path):
            handle = stack.enter_context(open(path, "rb"))
            zipped = handle.peek(2)[:2] == GZIP_MAGIC
        yield Stream(path, stack.enter_context(gzip.GzipFile(fileobj=handle)) if zipped else handle)


def is_gzip(path: str) -> bool:
    """Return True where the file begins as gzip data do."""
    with open(path, "rb") as handle:
        return handle.read(2) == GZIP_MAGIC


def require_file(path: str) -> None:
    """Refuse what is not a regular file that can be opened."""
    if not os.path.isfile(path):
        found = "no such file" if not os.path.exists(path) else "expected a file, found something else"
        raise DataError(f"{path}: {found}")
    with open_stream(path):
        pass


def require_size(path: str, wanted_bytes: int, claim: str) -> None:
    """Compare what a header claims with what the file can hold, before anything is allocated."""
    size = os.path.getsize(path)
    if is_gzip(path):
        if wanted_bytes > size * DEFLATE_RATIO:
            raise DataError(f"{path}: its header claims {claim}, more than {size} compressed bytes can hold; {AGAIN}")
    elif size != wanted_bytes:
        what = "truncated" if size < wanted_bytes else "trailing bytes"
        raise DataError(f"{path}: {what}: its header claims {claim}, {wanted_bytes} bytes; it has {size}; {AGAIN}")


def require_features(path: str, n_features: int) -> None:
    """Refuse rows that have not from 1 to 2²⁴ features."""
    if not 1 <= n_features <= MOST_FEATURES:
        raise DataError(f"{path}: expected rows of 1 to {MOST_FEATURES:,} features, found {n_features:,}")


def block_rows(row_bytes: int) -> int:
    """Return the rows of a block: about a megabyte, from 1 to 4,096."""
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the stored form of a file's dtype: this machine's byte order, booleans as uint8."""
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("=")


def in_native_order(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in their stored form; text stays as it is."""
    return values if values.dtype.kind == "U" else values.astype(native(values.dtype), copy=False)


def pixel_scale(image_shape: tuple[int, int] | None, dtype: np.dtype[Any]) -> float:
    """Return what divides pixels: 255 for images of unsigned bytes, else 1."""
    return 255.0 if image_shape and dtype == np.uint8 else 1.0


def group_ids(values: Iterable[Any]) -> NDArray[np.int64]:
    """Return groups as numbers (k,): whole numbers stay, names become 63 bits of their BLAKE2b."""
    return np.array([_group_id(str(value)) for value in values], np.int64)


def _group_id(text: str) -> int:
    if _WHOLE.fullmatch(text):
        return int(text)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def natural(name: str) -> tuple[tuple[int, str | int], ...]:
    """Return a key that sorts names as people do: img2 before img10."""
    pieces = _DIGITS.split(name)
    return tuple((1, int(piece)) if place % 2 else (0, piece) for place, piece in enumerate(pieces))


def origin_of(source: Source) -> str:
    """Return the names and digests of what a source was read from, as one text for the attributes of a corpus."""
    if source.origin is not None:
        return source.origin()
    return ", ".join(f"{os.path.basename(path)} sha256:{_sha256(path)}" for path in source.files)


def folder_origin(path: str, names: Iterable[str]) -> str:
    """Return the name of a folder, the number of its files `names` and a SHA-256 over their names and contents."""
    total, count = hashlib.sha256(), 0
    for name in names:
        total.update(f"{name}\0{_sha256(os.path.join(path, name))}\n".encode())
        count += 1
    return f"{os.path.basename(os.path.abspath(path))} ({count} files) sha256:{total.hexdigest()}"


def _sha256(path: str) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
