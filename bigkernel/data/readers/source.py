"""The result of every reader, and the stream of bytes under most of them.

A `Source` is what the head of a file says, plus two streams over the rest of it: `targets` (the labels alone, cheap,
read first) and `blocks` (rows and labels). n rows, d features; a block has k rows, about a megabyte. `Stream` looks
through gzip and turns whatever is wrong with a file into a DataError that names the path and the byte, counted in the
uncompressed content.
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
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError

BLOCK_BYTES = 2**20
BLOCK_ROWS = 4096
MOST_FEATURES = 2**24
GZIP_MAGIC = b"\x1f\x8b"
_GZIP_RATIO = 1100  # deflate expands at most 1032-fold
_PIECE_BYTES = 2**16
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DIGITS = re.compile(r"([0-9]+)")

Block = tuple[Any, NDArray[Any] | None]


@dataclass(frozen=True)
class Source:
    """The findings of a reader in the head of a file, before the rows are read.

    Attributes
    ----------
    format : str
        A key of `bigkernel.data.readers.FORMATS`.
    path : str
    n_rows : int or None
        None: not known before the end (text).
    n_features : int
    dtype : numpy.dtype
        Of the rows, as `blocks` yields them and as they will be stored.
    image_shape : (height, width) or None
    scale : float
        What divides stored values into the range they mean: 255 for 8-bit pixels, else 1.
    blocks : callable
        Each call starts a new stream of (x (k, d), y (k,) or None). y is as the file has it: numbers or strings.
    targets : callable or None
        Each call starts a new stream of y alone, (k,); None: the rows carry no labels.
    files : tuple of str
        Every file that is read, for the digest.
    groups : callable or None
        Each call starts a new stream of the rows' groups (k,), int64, cut in any way; None: the rows have none.
    origin : callable or None
        Says in one text what was read and its digest, where that is not one file or two: a folder, a store.
    """

    format: str
    path: str
    n_rows: int | None
    n_features: int
    dtype: np.dtype[Any]
    image_shape: tuple[int, int] | None
    scale: float
    blocks: Callable[[], Iterator[Block]]
    targets: Callable[[], Iterator[NDArray[Any]]] | None
    files: tuple[str, ...]
    groups: Callable[[], Iterator[NDArray[Any]]] | None = None
    origin: Callable[[], str] | None = None

    @property
    def labelled(self) -> bool:
        """True where the rows carry labels."""
        return self.targets is not None


class SupportsRead1(Protocol):
    """A binary file that hands out what one read of the layer below gives, so that no byte before damage is lost."""

    def read1(self, size: int, /) -> bytes: ...


class Stream:
    """The bytes of a file in order; `offset` counts those handed out.

    Parameters
    ----------
    name : str
        What messages call the file.
    handle : binary file
    """

    def __init__(self, name: str, handle: SupportsRead1) -> None:
        self.name = name
        self.offset = 0
        self._handle = handle

    def read(self, count: int) -> bytes:
        """At most `count` bytes; fewer only at the end of the content."""
        pieces = []
        while count > 0:
            try:
                piece = self._handle.read1(min(count, _PIECE_BYTES))
            except EOFError:
                raise DataError(
                    f"{self.name}: truncated: the compressed data stop at byte {self.offset} of the content, without "
                    "their end mark; copy or download the file again"
                ) from None
            except (zlib.error, zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
                raise DataError(f"{self.name}: cannot be read at byte {self.offset} of the content: {error}") from error
            if not piece:
                break
            pieces.append(piece)
            self.offset += len(piece)
            count -= len(piece)
        return b"".join(pieces)

    def read_exactly(self, count: int, what: str) -> bytes:
        """`count` bytes, or a DataError that says where the content ended and what was expected there."""
        start = self.offset
        data = self.read(count)
        if len(data) != count:
            raise DataError(
                f"{self.name}: truncated: the content ends at byte {self.offset}, but {what} ends at byte "
                f"{start + count}; copy or download the file again"
            )
        return data

    def expect_end(self) -> None:
        """Raise DataError when bytes follow what the header announced."""
        end = self.offset
        if self.read(1):
            raise DataError(
                f"{self.name}: trailing bytes: by its header the content ends at byte {end}, but it goes on"
            )


def group_ids(values: Iterable[Any]) -> NDArray[np.int64]:
    """Groups as numbers (k,), each from itself alone: whole numbers stay, names become 63 bits of their BLAKE2b."""
    return np.array([_group_id(value) for value in values], np.int64)


def _group_id(value: Any) -> int:
    text = str(value)
    if _WHOLE.fullmatch(text):
        return int(text)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def natural(name: str) -> tuple[tuple[int, str | int], ...]:
    """A key that sorts names as people do: img2 before img10."""
    pieces = _DIGITS.split(name)
    return tuple((1, int(piece)) if place % 2 else (0, piece) for place, piece in enumerate(pieces))


def origin_of(source: Source) -> str:
    """Return the names and digests of what a source was read from, as one text for the attributes of a corpus."""
    if source.origin is not None:
        return source.origin()
    return ", ".join(f"{os.path.basename(path)} sha256:{_sha256(path)}" for path in source.files)


def _sha256(path: str) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def folder_origin(path: str, names: Iterable[str]) -> str:
    """Return the name of a folder, the number of its files `names` and a SHA-256 over their names and contents."""
    total, count = hashlib.sha256(), 0
    for name in names:
        total.update(f"{name}\0{_sha256(os.path.join(path, name))}\n".encode())
        count += 1
    return f"{os.path.basename(os.path.abspath(path))} ({count} files) sha256:{total.hexdigest()}"


def require_file(path: str) -> None:
    """Raise DataError unless `path` is a regular file that can be opened."""
    if not os.path.exists(path):
        raise DataError(f"{path}: no such file")
    if not os.path.isfile(path):
        found = "a directory" if os.path.isdir(path) else "neither a file nor a directory"
        raise DataError(f"{path}: expected a file, found {found}")
    with open_stream(path):
        pass


def is_gzip(path: str) -> bool:
    """Return True where the file begins as gzip data do."""
    with open(path, "rb") as handle:
        return handle.read(2) == GZIP_MAGIC


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[Stream]:
    """The content of the file at `path`, gzip looked through."""
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(open(path, "rb"))
            zipped = handle.peek(2)[:2] == GZIP_MAGIC
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        yield Stream(path, stack.enter_context(gzip.GzipFile(fileobj=handle)) if zipped else handle)


def require_size(path: str, wanted_bytes: int, claim: str) -> None:
    """Compare what a header claims with what the file holds, before anything is allocated.

    A plain file must have the size exactly. Of a gzip file only the impossible is refused here; the rest shows when it
    is read.
    """
    size = os.path.getsize(path)
    if is_gzip(path):
        if wanted_bytes > size * _GZIP_RATIO:
            raise DataError(
                f"{path}: its header claims {claim}, {wanted_bytes} bytes, more than {size} compressed bytes can hold"
            )
    elif size < wanted_bytes:
        raise DataError(
            f"{path}: truncated: the file ends at byte {size}, but its header claims {claim}, to end at byte "
            f"{wanted_bytes}; copy or download the file again"
        )
    elif size > wanted_bytes:
        raise DataError(
            f"{path}: trailing bytes: its header claims {claim}, to end at byte {wanted_bytes}, but the file goes on "
            f"to byte {size}"
        )


def require_features(path: str, n_features: int) -> None:
    """Raise DataError unless a row has from 1 to 2²⁴ features."""
    if not 1 <= n_features <= MOST_FEATURES:
        raise DataError(f"{path}: expected rows of 1 to {MOST_FEATURES:,} features, found {n_features:,}")


def block_rows(row_bytes: int) -> int:
    """Rows of a block: about a megabyte, from 1 to 4,096."""
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The stored form of a file's dtype: this machine's byte order, booleans as uint8."""
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("=")


def binary_rows(
    stream: Stream, head_bytes: int, n_rows: int, row_shape: tuple[int, ...], dtype: np.dtype[Any], step: int
) -> Iterator[NDArray[Any]]:
    """Fixed-width rows that follow `head_bytes` of header, `step` at a time, then the end of the content.

    Yields
    ------
    ndarray of shape (k, *row_shape), in native byte order
    """
    row_bytes = dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
    stream.read_exactly(head_bytes, "the header")
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        data = stream.read_exactly((stop - start) * row_bytes, f"row {stop - 1} of {n_rows}")
        rows = np.frombuffer(data, dtype).reshape(stop - start, *row_shape)
        yield rows if dtype.kind == "U" else rows.astype(native(dtype), copy=False)
    stream.expect_end()


def aligned(rows: Iterator[NDArray[Any]], targets: Iterator[NDArray[Any]] | None) -> Iterator[Block]:
    """Blocks from rows and labels that were cut alike, both read to their very end."""
    if targets is None:
        for x in rows:
            yield x, None
    else:
        yield from zip(rows, targets, strict=True)
