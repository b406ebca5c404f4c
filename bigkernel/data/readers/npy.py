"""NumPy's own files: one array (.npy) or several (.npz); never pickle.

x is (n, d), or (n, h, w) as images, or (n,) as a single feature. A plain .npy is memory-mapped by `numpy.load`. Within
gzip or .npz, of which `numpy.load` would hold all, arrays in C order stream block by block, and those in Fortran order
are loaded whole. Three-dimensional uint8 is taken as pixels: scale 255. Format: numpy.lib.format.
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

from bigkernel.data.readers.source import (
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
from bigkernel.errors import DataError

MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 2**16
# what zipfile raises over damaged directories and headers, encryption and unknown compression included
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, ValueError, RuntimeError, KeyError, EOFError)
_X_NAMES = ("x", "X", "data")
_Y_NAMES = ("y", "labels", "target")


@dataclass(frozen=True)
class _Array:
    """An array in a file: its header, and a function that opens its bytes."""

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
        """Yield blocks (k, the other dimensions in one), in native byte order."""
        row_shape = (int(np.prod(self.shape[1:], dtype=np.int64)),) if len(self.shape) > 1 else ()
        if self.mapped is None and not self.fortran:
            with self.open() as stream:
                yield from binary_rows(stream, self.head_bytes, self.shape[0], row_shape, self.dtype, step)
            return
        whole = self._whole() if self.mapped is None else None
        for start in range(0, self.shape[0], step):
            # mapped anew for each block, so that the pages of those before do not count as this process's memory
            rows = np.array((self._map() if whole is None else whole)[start : start + step], order="C")
            rows = rows.reshape(len(rows), *row_shape)
            yield rows if self.dtype.kind == "U" else rows.astype(native(self.dtype), copy=False)

    def _map(self) -> NDArray[Any]:
        assert self.mapped is not None
        try:
            found = np.load(self.mapped, mmap_mode="r", allow_pickle=False, max_header_size=_MOST_HEADER_BYTES)
            if (found.shape, found.dtype) == (self.shape, self.dtype):
                return np.asarray(found)
            reason = f"it has shape {found.shape} of {found.dtype} now"
        except (OSError, ValueError) as error:
            reason = str(error)
        raise DataError(f"{self.name}: cannot be mapped: {reason}; was it changed meanwhile?")

    def _whole(self) -> NDArray[Any]:
        with self.open() as stream:
            data = stream.read_exactly(self.size_bytes, "the array")
            stream.expect_end()
        return np.frombuffer(data, self.dtype, offset=self.head_bytes).reshape(self.shape, order="F")


def recognises(head: bytes) -> bool:
    """Return True for a file that begins as a .npy file."""
    return head.startswith(MAGIC)


def recognises_npz(head: bytes) -> bool:
    """Return True for a file that begins as a zip archive whose first member is a .npy file."""
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
        head = io.BytesIO(stream.read(_MOST_HEADER_BYTES))
    start = head.getvalue()[:8]
    parse = {MAGIC + b"\1\0": np.lib.format.read_array_header_1_0, MAGIC + b"\2\0": np.lib.format.read_array_header_2_0}
    if start not in parse:
        raise DataError(f"{name}: byte 0: expected {MAGIC!r} and version 1.0 or 2.0 of a .npy file, found {start!r}")
    try:
        np.lib.format.read_magic(head)
        shape, fortran, dtype = parse[start](head, max_header_size=_MOST_HEADER_BYTES)
    except Exception as error:
        raise DataError(f"{name}: byte {head.tell()}: its .npy header cannot be read: {error}") from error
    if dtype.hasobject or dtype.kind not in "biufU" or dtype.itemsize < 1 or (dtype.kind == "f" and dtype.itemsize > 8):
        raise DataError(
            f"{name}: expected an array of numbers, found dtype {dtype}; save it as float32, float64 or integers"
        )
    if any(size < 0 for size in shape):
        raise DataError(f"{name}: byte 10: impossible shape {shape}")
    return _Array(name, opened, shape, dtype, bool(fortran) and len(shape) > 1, head.tell(), mapped)


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
