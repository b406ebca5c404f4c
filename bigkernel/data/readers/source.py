"""The interface of readers, and helpers for bytes, lines and arrays.

A `Source` is the header of a file and a stream of blocks over the rest: n rows, d features; a block has k rows, about a
megabyte. Faults in a file are `DataError`s that name it and, where there is one, the row.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import importlib
import io
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.table import TableEncoding
from bigkernel.errors import ConfigError, DataError

BLOCK_BYTES = 2**20
READ_BYTES = 2**18  # bytes of text read at once
MOST_FEATURES = 2**24
DEFLATE_RATIO = 1100  # deflate expands at most 1032-fold
_SMALL_BYTES = 2**28  # of content that any compressed file may have, and of memory to decompress
AGAIN = "copy or download the file again"
_HEAD_BYTES = 2**16
_MOST_LINE_BYTES = 2**26
_BROKEN = (zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError)
_COMPRESSIONS = {  # name -> first bytes
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P)",
    "xz": rb"\xfd7zXZ\x00",
    "zstd": rb"\x28\xb5\x2f\xfd",
    "zip": rb"PK\x03\x04(?!.{26,296}\.npy)",  # npz is an archive of arrays
}
_FOREIGN = {  # first bytes -> what the content is
    rb"\x89HDF|CDF[\x01\x02\x05]": "HDF5 or NetCDF",
    rb"ARROW1|FEA1\x00": "Feather (Arrow)",
    rb"\s*[\[{]\s*[\[{\"]": "JSON",
    rb"\s*<(?i:\?xml|!doctype|html)": "a web page or XML",
    rb"\xd0\xcf\x11\xe0": "an Excel workbook",
    rb"\x1f\x9d|\x04\x22\x4d\x18|LZIP|7z\xbc\xaf|Rar!\x1a|.{257}ustar": "a compressed file or an archive (unpack it)",
}

Block = tuple[Any, ...]  # x (k, d), then y, group, id and row, each (k,) or None; trailing ones may be omitted
BLOCK_ARRAYS = ("x", "y", "group", "id", "row")


@dataclass(frozen=True)
class Source:
    """Properties of a file, read from its header, and a stream of its rows."""

    format: str  # a key of `bigkernel.data.readers.FORMATS`
    path: str
    n_features: int
    dtype: np.dtype[Any]  # dtype of the rows as they will be stored
    blocks: Callable[[], Iterator[Block]]  # each call starts anew; y is as in the file, numbers or strings
    n_rows: int | None = None  # None: not known before the end (text)
    labelled: bool = False
    grouped: bool = False
    image_shape: tuple[int, int] | None = None
    scale: float = 1.0  # divides stored values into their range: 255 for 8-bit pixels
    files: tuple[str, ...] = ()  # files that are read, for their digests; empty for a folder or a store
    feature_names: tuple[str, ...] = ()  # of a table with names
    target: str = ""  # name of the column of labels of such a table
    id_column: str = ""  # name of the column of ids; empty: there are none
    skipped: SkippedRows | None = None  # counts rows that are left out
    encoding: TableEncoding | None = None  # how columns of a table became the rows
    notes: tuple[str, ...] = ()  # what was chosen in reading and may be wrong

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield the rows and their columns by name; `row` (k,) numbers the rows of the file from 0."""
        start = 0
        for block in self.blocks():
            named = zip(BLOCK_ARRAYS, block, strict=False)
            row = np.arange(start, start + len(block[0]))
            yield {"row": row, **{name: values for name, values in named if values is not None}}
            start += len(row)


@dataclass
class SkippedRows:
    """The number of rows that were left out as bad, and the first ones."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, path: str, rows: Sequence[int]) -> None:
        """Count rows of a file."""
        self.count += len(rows)
        self.first += [f"{os.path.basename(path)} row {row}" for row in rows[: 5 - len(self.first)]]


def without_bad_rows(source: Source, skipped: SkippedRows) -> Source:
    """Return a source without the rows that are not finite or have an infinite label, which it counts."""

    def blocks() -> Iterator[Block]:
        before, kept = skipped.count, 0
        for batch in source.batches():
            bad = ~np.isfinite(batch["x"]).all(axis=1)
            if "y" in batch and batch["y"].dtype.kind == "f":
                bad |= np.isinf(batch["y"])
            skipped.add(source.path, batch["row"][bad].tolist())
            kept += int((~bad).sum())
            if not bad.all():
                yield tuple(batch[name][~bad] if name in batch else None for name in BLOCK_ARRAYS)
        if not kept:
            rows = skipped.count - before
            raise DataError(f"{source.path}: all {rows} rows have bad values; leave out columns of text (--drop)")

    return replace(source, blocks=blocks, n_rows=None, skipped=skipped)


# ---------------------------------------------------------------- arrays


class StoredArray(Protocol):
    """An array in a file or store, whose rows (n, …) are read in order."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def rows(self, step: int) -> Iterator[NDArray[Any]]:
        """Yield all rows in their stored form (see `native`), `step` at a time."""


def source_of_arrays(
    format: str, path: str, x: StoredArray, y: StoredArray | None, *, step: int | None = None, **properties: Any
) -> Source:
    """Return the source of rows (n, d), images (n, h, w) or single numbers (n,), and of labels (n,) or (n, 1).

    `properties`: `files`, and `scale` if it is not 255 for images of bytes and 1 otherwise.
    """
    shape, dtype = x.shape, x.dtype
    if len(shape) not in (1, 2, 3) or dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise DataError(f"{x.name}: expected numbers (n, d) or (n, height, width), found {dtype} of shape {shape}")
    n_rows, n_features = shape[0], int(np.prod(shape[1:], dtype=object))
    if not n_rows:
        raise DataError(f"{x.name}: expected at least one row, found shape {shape}")
    require_features(x.name, n_features)
    if y is not None and (y.shape not in ((n_rows,), (n_rows, 1)) or y.dtype.kind not in "biufU"):
        raise DataError(f"{y.name}: expected {n_rows} labels to match {x.name}, found {y.dtype} of shape {y.shape}")
    image_shape = (shape[1], shape[2]) if len(shape) == 3 else None
    properties.setdefault("scale", 255.0 if image_shape and dtype == np.uint8 else 1.0)
    rows_at_once = step or block_rows(n_features * dtype.itemsize)

    def blocks() -> Iterator[Block]:
        labels: Iterator[Any] = y.rows(rows_at_once) if y else repeat(None, -(-n_rows // rows_at_once))
        for rows, targets in zip(x.rows(rows_at_once), labels, strict=True):
            yield rows.reshape(len(rows), n_features), None if targets is None else targets.reshape(len(rows))

    given = {"labelled": y is not None, "image_shape": image_shape, **properties}
    return Source(format, path, n_features, native(dtype), blocks, n_rows, **given)


def require_features(path: str, n_features: int) -> None:
    """Raise an error unless rows have from 1 to 2²⁴ features."""
    if not 1 <= n_features <= MOST_FEATURES:
        raise DataError(f"{path}: expected rows of 1 to {MOST_FEATURES:,} features, found {n_features:,}")


def block_rows(row_bytes: int) -> int:
    """Return the rows of a block: about a megabyte, from 1 to 4,096."""
    return max(1, min(4096, BLOCK_BYTES // max(1, row_bytes)))


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the stored form of a file's dtype: native byte order, booleans as uint8."""
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("=")


def in_native_order(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in their stored form; text is unchanged."""
    return values if values.dtype.kind == "U" else values.astype(native(values.dtype), copy=False)


# ---------------------------------------------------------------- bytes and lines


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors of reading the bytes of a file into a DataError that names it."""
    try:
        yield
    except EOFError:
        raise DataError(f"{name}: truncated: the compressed data end early; {AGAIN}") from None
    except _BROKEN as error:
        raise DataError(f"{name}: cannot be read: {error}; {AGAIN}") from error


@dataclass(frozen=True)
class Stream:
    """The bytes of a binary file in order; `name` is its name in messages."""

    name: str
    handle: Any

    def read(self, count: int) -> bytes:
        """Read at most `count` bytes; fewer only at the end of the content."""
        with reading(self.name):
            return bytes(self.handle.read(count))

    def read_exactly(self, count: int, what: str) -> bytes:
        """Read `count` bytes, or raise a DataError that names what is truncated."""
        data = self.read(count)
        if len(data) != count:
            raise DataError(f"{self.name}: truncated: the file ends within {what}; {AGAIN}")
        return data

    def rows(self, shape: tuple[int, ...], dtype: np.dtype[Any], step: int) -> Iterator[NDArray[Any]]:
        """Yield rows (k, …) in native byte order, `step` at a time, up to the end of the file."""
        n_rows, row_bytes = shape[0], dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        for start in range(0, n_rows, step):
            stop = min(start + step, n_rows)
            data = self.read_exactly((stop - start) * row_bytes, f"rows {start}:{stop} of {n_rows}")
            yield in_native_order(np.frombuffer(data, dtype).reshape(stop - start, *shape[1:]))
        if self.read(1):
            raise DataError(f"{self.name}: trailing bytes after {n_rows} rows; {AGAIN}")


class Pieces(io.RawIOBase):
    """A file of pieces of bytes, to be buffered."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held, self._done = pieces, b"", 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._done

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the pieces."""
        self._held = self._held or next(self._pieces, b"")
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        self._done += size
        return size


def _unpacked(path: str, handle: Any) -> Iterator[bytes]:
    """Yield decompressed bytes, or raise an error beyond the most that the file may hold."""
    done = 0
    while piece := handle.read(READ_BYTES):
        yield piece
        if (done := done + len(piece)) > most_bytes(path):
            raise DataError(f"{path}: expands to more than {done:,} bytes; decompress it first, if that is right")


def compression_of(path: str) -> str:
    """Return the name of a file's compression, "" if there is none."""
    with open(path, "rb") as handle:
        head = handle.read(400)
    return next((name for name, magic in _COMPRESSIONS.items() if re.match(magic, head, re.DOTALL)), "")


def most_bytes(path: str) -> int:
    """Return the most bytes that a compressed file may hold."""
    return max(_SMALL_BYTES, DEFLATE_RATIO * os.path.getsize(path))


def plain_name(path: str) -> str:
    """Return the name of a file without the ending of its compression."""
    stem, ending = os.path.splitext(path)
    return stem if ending.lower() in (".gz", ".bz2", ".xz", ".zst", ".zip") else path


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[Stream]:
    """Open the content of a file, decompressing gzip, bzip2, xz, zstd, or zip of one file."""
    with contextlib.ExitStack() as stack:
        with reading(path):
            kind = compression_of(path)
            openers: dict[str, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
            handle: Any = stack.enter_context(open(path, "rb"))
            if kind == "zip":
                archive = stack.enter_context(zipfile.ZipFile(handle))
                names = [name for name in archive.namelist() if not name.endswith("/") and name[:8] != "__MACOSX"]
                if len(names) != 1:
                    found = f"{len(names)}: {', '.join(names):.99}; unpack it, or save a workbook as CSV"
                    raise DataError(f"{path}: expected one file in a compressed archive, found {found}")
                handle = archive.open(names[0])
            elif kind == "zstd":
                handle = load_library("pyarrow", "zstd needs pyarrow").CompressedInputStream(handle, kind)
            elif kind:
                handle = openers[kind](handle)
        handle = stack.enter_context(handle)
        yield Stream(path, handle if kind in ("", "gzip") else io.BufferedReader(Pieces(_unpacked(path, handle))))


def require_file(path: str) -> bytes:
    """Return the first bytes of a file's content; raise an error unless it can be read and may be one of ours."""
    if not os.path.isfile(path):
        problem = "no such file" if not os.path.exists(path) else "expected a file, found something else"
        raise DataError(f"{path}: {problem}")
    with open_stream(path) as stream:
        head = stream.read(1024) + stream.read(_HEAD_BYTES)
    if found := next((what for magic, what in _FOREIGN.items() if re.match(magic, head, re.DOTALL)), ""):
        raise DataError(f"{path}: found {found}; convert it to CSV, Parquet or npz, or pass its arrays to write_corpus")
    return head


def require_size(path: str, expected_bytes: int, claim: str) -> None:
    """Compare the size in a header with what the file can hold, before allocating memory."""
    size = os.path.getsize(path)
    if compression_of(path):
        if expected_bytes > most_bytes(path):
            raise DataError(f"{path}: header claims {claim}, more than {size} compressed bytes can hold; {AGAIN}")
    elif size != expected_bytes:
        what = "truncated" if size < expected_bytes else "trailing bytes"
        raise DataError(f"{path}: {what}: header claims {claim}, {expected_bytes} bytes, found {size}; {AGAIN}")


def number_in(text: str) -> float | None:
    """Parse a decimal number as C writes it (including nan and inf), else return None."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def lines_of(path: str, *, closed: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, from 1, and lines) of UTF-8 text, a quarter of a megabyte at a time.

    `closed`: refuse a last line without newline, which may have been cut.
    """
    number, rest = 1, b""
    with open_stream(path) as stream:
        while piece := stream.read(READ_BYTES):
            whole, end, after = piece.rpartition(b"\n")
            if not end:
                rest += piece
                if len(rest) > _MOST_LINE_BYTES:
                    raise DataError(
                        f"{path}: line {number}: longer than {_MOST_LINE_BYTES:,} bytes; check that this is a text file"
                    )
                continue
            lines = _decoded(path, number, rest + whole)
            yield number, lines
            number, rest = number + len(lines), after
    if rest and closed:
        raise DataError(
            f"{path}: line {number}: the file ends within this line, at {rest[-20:]!r}, and may be truncated; copy "
            "it again, or add the newline if it is complete"
        )
    if rest:
        yield number, _decoded(path, number, rest)


def _decoded(path: str, number: int, raw: bytes) -> list[str]:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = number + raw.count(b"\n", 0, error.start)
        raise DataError(f"{path}: line {line}: not UTF-8 text; convert the file to UTF-8") from None
    if "\0" in text:
        line = number + text.count("\n", 0, text.index("\0"))
        raise DataError(f"{path}: line {line}: found a NUL character; expected text in UTF-8")
    return text.replace("\r", "").split("\n")


# ---------------------------------------------------------------- names and digests


def load_library(module: str, what: str) -> Any:
    """Import a module of the extra `data`; if missing, raise a ConfigError that names its purpose and the extra."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f'{what}, which is not installed: pip install "bigkernel[data]"') from None


def origin_of(source: Source) -> str:
    """Return names and digests of a source's files as one text for the attributes of a corpus."""
    if not source.files:
        return os.path.basename(os.path.abspath(source.path)) if "://" not in source.path else source.path
    return ", ".join(f"{os.path.basename(path)} sha256:{_sha256(path)}" for path in source.files)


def _sha256(path: str) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
