"""NumPy's own files: one array (.npy) or several (.npz); never pickle.

x is (n, d), or (n, h, w) as images, or (n,) as a single feature. Arrays in C order, gzip or zip included, stream block
by block. Arrays in Fortran order are memory-mapped in a plain .npy, and loaded whole from .npz. Three-dimensional uint8
is taken as pixels: scale 255. Format: numpy.lib.format.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError
from bigkernel.ingest.readers.source import (
    Block,
    Source,
    Stream,
    SupportsRead1,
    aligned,
    binary_rows,
    block_rows,
    is_gzip,
    native,
    open_stream,
    require_features,
    require_file,
    require_size,
)

MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 2**16
# what zipfile raises over damaged directories and headers, encryption and unknown compression included
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, ValueError, RuntimeError, KeyError, EOFError)
_X_NAMES = ("x", "X", "data")
_Y_NAMES = ("y", "labels", "target")


@dataclass(frozen=True)
class _Array:
    """An array in a file: its header, and how to open the bytes again."""

    name: str
    open: Callable[[], AbstractContextManager[Stream]]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    head_bytes: int
    mapped: str | None  # the path, when the array is a plain file

    @property
    def size_bytes(self) -> int:
        return self.head_bytes + self.dtype.itemsize * int(np.prod(self.shape, dtype=object))

    def rows(self, step: int) -> Iterator[NDArray[Any]]:
        """Blocks (k, the other dimensions in one), in native byte order."""
        row_shape = (int(np.prod(self.shape[1:], dtype=np.int64)),) if len(self.shape) > 1 else ()
        if not self.fortran:
            with self.open() as stream:
                yield from binary_rows(stream, self.head_bytes, self.shape[0], row_shape, self.dtype, step)
            return
        whole = self._fortran()
        for start in range(0, self.shape[0], step):
            rows = np.ascontiguousarray(whole[start : start + step])
            yield rows.reshape(len(rows), *row_shape).astype(native(self.dtype), copy=False)

    def _fortran(self) -> NDArray[Any]:
        if self.mapped is not None:
            return np.memmap(self.mapped, self.dtype, "r", self.head_bytes, self.shape, "F")
        with self.open() as stream:
            data = stream.read_exactly(self.size_bytes, "the array")
            stream.expect_end()
        return np.frombuffer(data, self.dtype, offset=self.head_bytes).reshape(self.shape, order="F")


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a .npy file."""
    return head.startswith(MAGIC)


def recognises_npz(head: bytes) -> bool:
    """Whether a file that begins so is a zip archive whose first member is a .npy file."""
    return head.startswith(b"PK\x03\x04") and b".npy" in head[30:300]


def read(path: str, *, labels: str | None = None) -> Source:
    """Open a .npy file of rows.

    Parameters
    ----------
    path : str
    labels : path, "none" or None
        A .npy file with the labels, (n,) or (n, 1).

    Raises
    ------
    DataError
        Not a .npy file, damaged, truncated, of objects, or labels that do not fit the rows.
    """
    x = _open_plain(path)
    if labels is None or labels == "none":
        return _source("npy", path, x, None, (path,))
    require_file(labels)
    return _source("npy", path, x, _open_plain(labels), (path, labels))


def read_npz(path: str, *, x: str | None = None, y: str | None = None) -> Source:
    """Open a .npz archive.

    Parameters
    ----------
    path : str
    x, y : str or None
        Names of the arrays. None: "x", "X" or "data" and "y", "labels" or "target". y="none": without labels.

    Raises
    ------
    DataError
        Not an archive, damaged, arrays not found (lists those there are), or labels that do not fit the rows.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except _ZIP_ERRORS as error:
        size = os.path.getsize(path)
        raise DataError(f"{path}: not a whole .npz archive ({error}); it has {size} bytes") from error
    rows_name = _pick(path, names, x, _X_NAMES, "x")
    assert rows_name is not None
    target_name = None if y == "none" else _pick(path, names, y, _Y_NAMES, "y", rows_name)
    rows = _open_member(path, rows_name)
    targets = None if target_name is None else _open_member(path, target_name)
    return _source("npz", path, rows, targets, (path,))


def _pick(
    path: str, names: list[str], wanted: str | None, usual: tuple[str, ...], option: str, rows: str | None = None
) -> str | None:
    found = [name for name in usual if name in names] if wanted is None else [name for name in names if name == wanted]
    if len(found) == 1:
        return found[0]
    if not found and wanted is None and names == [rows]:
        return None  # an archive of rows alone
    expected = " or ".join(usual) if wanted is None else repr(wanted)
    what = f"no array {expected}" if not found else f"more than one of {expected}"
    way_out = f'{option}=NAME, or y="none" to read without labels' if option == "y" else f"{option}=NAME"
    raise DataError(f"{path}: {what} for {option}; it holds {', '.join(names) or 'no arrays'}; give {way_out}")


def _open_plain(path: str) -> _Array:
    array = _read_header(path, lambda: open_stream(path), None if is_gzip(path) else path)
    require_size(path, array.size_bytes, f"shape {array.shape} of {array.dtype}")
    return array


def _open_member(path: str, name: str) -> _Array:
    label = f"{path}[{name}]"

    @contextlib.contextmanager
    def opened() -> Iterator[Stream]:
        with contextlib.ExitStack() as stack:
            try:
                archive = stack.enter_context(zipfile.ZipFile(path))
                member = cast(SupportsRead1, stack.enter_context(archive.open(name + ".npy")))
            except _ZIP_ERRORS as error:
                raise DataError(f"{label}: cannot be read: {error}") from error
            yield Stream(label, member)

    array = _read_header(label, opened, None)
    with zipfile.ZipFile(path) as archive:
        held = archive.getinfo(name + ".npy").file_size
    if held != array.size_bytes:
        raise DataError(
            f"{label}: its header claims shape {array.shape} of {array.dtype}, to end at byte {array.size_bytes}, "
            f"but the archive holds {held} bytes of it"
        )
    return array


def _read_header(name: str, opened: Callable[[], AbstractContextManager[Stream]], mapped: str | None) -> _Array:
    with opened() as stream:
        start = stream.read_exactly(8, "the magic of a .npy file")
        if start[:6] != MAGIC or start[6:] not in (b"\x01\x00", b"\x02\x00"):
            raise DataError(
                f"{name}: byte 0: expected {MAGIC!r} and version 1.0 or 2.0 of a .npy file, found {start!r}"
            )
        kind, width = ("<H", 2) if start[6] == 1 else ("<I", 4)
        size = stream.read_exactly(width, "the length of the header")
        (length,) = struct.unpack(kind, size)
        if length > _MOST_HEADER_BYTES:
            raise DataError(f"{name}: byte 8: its header claims {length} bytes, at most {_MOST_HEADER_BYTES} are read")
        text = io.BytesIO(size + stream.read_exactly(length, "the header"))
        head_bytes = stream.offset
    parse = np.lib.format.read_array_header_1_0 if start[6] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = parse(text)
    except Exception as error:
        raise DataError(f"{name}: byte 10: its .npy header cannot be read: {error}") from error
    if dtype.hasobject or dtype.kind not in "biufU" or dtype.itemsize < 1 or (dtype.kind == "f" and dtype.itemsize > 8):
        raise DataError(
            f"{name}: expected an array of numbers, found dtype {dtype}; save it as float32, float64 or integers"
        )
    if any(size < 0 for size in shape):
        raise DataError(f"{name}: byte 10: impossible shape {shape}")
    return _Array(name, opened, shape, dtype, bool(fortran) and len(shape) > 1, head_bytes, mapped)


def _source(kind: str, path: str, x: _Array, y: _Array | None, files: tuple[str, ...]) -> Source:
    if len(x.shape) not in (1, 2, 3) or x.dtype.kind == "U":
        raise DataError(
            f"{x.name}: expected numbers of shape (n, d) or (n, height, width), found {x.dtype} of shape {x.shape}"
        )
    n_rows = x.shape[0]
    if n_rows == 0:
        raise DataError(f"{x.name}: no rows: its shape is {x.shape}")
    n_features = int(np.prod(x.shape[1:], dtype=object))
    require_features(x.name, n_features)
    if y is not None and y.shape not in ((n_rows,), (n_rows, 1)):
        raise DataError(f"{y.name}: expected {n_rows} labels to go with {x.name}, found shape {y.shape}")
    image_shape = (x.shape[1], x.shape[2]) if len(x.shape) == 3 else None
    step = block_rows(n_features * x.dtype.itemsize)

    def rows() -> Iterator[NDArray[Any]]:
        return (block.reshape(len(block), n_features) for block in x.rows(step))

    def targets() -> Iterator[NDArray[Any]]:
        assert y is not None
        return (block.reshape(len(block)) for block in y.rows(step))

    def blocks() -> Iterator[Block]:
        return aligned(rows(), targets() if y is not None else None)

    return Source(
        format=kind,
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype=native(x.dtype),
        image_shape=image_shape,
        scale=255.0 if image_shape and x.dtype == np.uint8 else 1.0,
        blocks=blocks,
        targets=targets if y is not None else None,
        files=files,
    )
