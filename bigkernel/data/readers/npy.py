"""NumPy's own files: one array (.npy) or several (.npz); never pickle.

x is (n, d), or (n, h, w) as images, or (n,) as a single feature. A plain .npy is memory-mapped. Of an archive, arrays
in C order stream block by block, and those in Fortran order are loaded whole. Three-dimensional uint8 is taken as
pixels: scale 255. Format: numpy.lib.format.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import (
    AGAIN,
    DEFLATE_RATIO,
    Block,
    Source,
    Stream,
    block_rows,
    in_native_order,
    native,
    pixel_scale,
    require_features,
    require_file,
    require_size,
)
from bigkernel.errors import DataError

MAGIC = b"\x93NUMPY"
X_NAMES = ("x", "X", "data")
Y_NAMES = ("y", "labels", "target")
_MOST_HEADER_BYTES = 2**16
# what zipfile raises over damaged directories and headers, encryption and unknown compression included
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, ValueError, RuntimeError, KeyError, EOFError)


@dataclass(frozen=True)
class _Array:
    """An array in a file, or in an archive (`member`), as its header says."""

    path: str
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    head_bytes: int

    @property
    def name(self) -> str:
        return f"{self.path}[{self.member}]" if self.member else self.path

    @property
    def size_bytes(self) -> int:
        return self.head_bytes + self.dtype.itemsize * int(np.prod(self.shape, dtype=object))

    def rows(self, step: int) -> Iterator[NDArray[Any]]:
        """Yield blocks (k, …) of `step` rows, in native byte order."""
        if self.member and not self.fortran:
            with _opened(self.path, self.member) as stream:
                stream.read_exactly(self.head_bytes, "the header")
                yield from stream.rows(self.shape[0], self.shape[1:], self.dtype, step)
            return
        whole = self._load() if self.member else None
        for start in range(0, self.shape[0], step):
            # mapped anew for each block, so that the pages of those before do not count as this process's memory
            values = self._load() if whole is None else whole
            yield in_native_order(np.array(values[start : start + step], order="C"))

    def _load(self) -> NDArray[Any]:
        try:
            if self.member:
                with np.load(self.path, allow_pickle=False, max_header_size=_MOST_HEADER_BYTES) as archive:
                    found = archive[self.member]
            else:
                found = np.load(self.path, mmap_mode="r", allow_pickle=False, max_header_size=_MOST_HEADER_BYTES)
        except _ZIP_ERRORS as error:
            raise DataError(f"{self.name}: cannot be read: {error}; {AGAIN}") from error
        if (found.shape, found.dtype) != (self.shape, self.dtype):
            raise DataError(f"{self.name}: has shape {found.shape} of {found.dtype} now; it was changed meanwhile")
        return np.asarray(found)


def recognises(head: bytes) -> bool:
    """Return True for a file that begins as a .npy file."""
    return head.startswith(MAGIC)


def recognises_npz(head: bytes) -> bool:
    """Return True for a file that begins as a zip archive whose first member is a .npy file."""
    return head.startswith(b"PK\x03\x04") and b".npy" in head[30:300]


def read(path: str, *, labels: str | None = None) -> Source:
    """Open a .npy file of rows; `labels`: a .npy file with the labels, (n,) or (n, 1), or "none".

    Raises
    ------
    DataError
        Not a .npy file, damaged, truncated, of objects, or labels that do not fit the rows.
    """
    x = _read_header(path)
    if labels is None or labels == "none":
        return _source("npy", path, x, None, (path,))
    require_file(labels)
    return _source("npy", path, x, _read_header(labels), (path, labels))


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
        raise DataError(f"{path}: not a whole .npz archive ({error}); {AGAIN}") from error
    rows_name = _pick(path, names, x, X_NAMES, "x")
    others = [name for name in names if name != rows_name]
    bare = y == "none" or (y is None and not others)
    target = None if bare else _read_header(path, _pick(path, names, y, Y_NAMES, "y"))
    return _source("npz", path, _read_header(path, rows_name), target, (path,))


def _pick(path: str, names: list[str], wanted: str | None, usual: tuple[str, ...], option: str) -> str:
    found = [name for name in (usual if wanted is None else (wanted,)) if name in names]
    if len(found) == 1:
        return found[0]
    expected = " or ".join(usual) if wanted is None else repr(wanted)
    what = f"more than one of {expected}" if found else f"no array {expected}"
    way_out = f"{option}=NAME" + (' or y="none"' if option == "y" else "")
    raise DataError(f"{path}: {what} for {option}; it holds {', '.join(names) or 'no arrays'}; give {way_out}")


@contextlib.contextmanager
def _opened(path: str, member: str) -> Iterator[Stream]:
    with contextlib.ExitStack() as stack:
        name = f"{path}[{member}]" if member else path
        try:
            if member:
                archive = stack.enter_context(zipfile.ZipFile(path))
                handle: Any = stack.enter_context(archive.open(member + ".npy"))
            else:
                handle = stack.enter_context(open(path, "rb"))
        except _ZIP_ERRORS as error:
            raise DataError(f"{name}: cannot be read: {error}; {AGAIN}") from error
        yield Stream(name, handle)


def _read_header(path: str, member: str = "") -> _Array:
    with _opened(path, member) as stream:
        try:
            version = np.lib.format.read_magic(stream.handle)
            parse = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = parse(stream.handle, max_header_size=_MOST_HEADER_BYTES)
            array = _Array(path, member, shape, dtype, bool(fortran) and len(shape) > 1, stream.handle.tell())
        except Exception as error:  # whatever NumPy and zipfile raise over damage
            raise DataError(f"{stream.name}: its .npy header cannot be read: {error}; {AGAIN}") from error
    if (
        dtype.hasobject
        or dtype.kind not in "biufU"
        or not dtype.itemsize >= 1
        or (dtype.kind == "f" and dtype.itemsize > 8)
    ):
        raise DataError(
            f"{array.name}: expected an array of numbers, found dtype {dtype}; save it as float64 or integers"
        )
    if min(shape, default=0) < 0:
        raise DataError(f"{array.name}: impossible shape {shape}; {AGAIN}")
    claim = f"shape {shape} of {dtype}"
    if not member:
        require_size(path, array.size_bytes, claim)
        return array
    with zipfile.ZipFile(path) as archive:
        held = archive.getinfo(member + ".npy")
    if held.file_size != array.size_bytes or held.file_size > DEFLATE_RATIO * held.compress_size:
        raise DataError(
            f"{array.name}: its header claims {claim}, {array.size_bytes} bytes, but the archive says {held.file_size} "
            f"in {held.compress_size} compressed; {AGAIN}"
        )
    return array


def _source(kind: str, path: str, x: _Array, y: _Array | None, files: tuple[str, ...]) -> Source:
    if len(x.shape) not in (1, 2, 3) or x.dtype.kind == "U":
        raise DataError(f"{x.name}: expected numbers (n, d) or (n, height, width), found {x.dtype} of shape {x.shape}")
    n_rows, n_features = x.shape[0], int(np.prod(x.shape[1:], dtype=object))
    if n_rows == 0:
        raise DataError(f"{x.name}: no rows: its shape is {x.shape}")
    require_features(x.name, n_features)
    if y is not None and y.shape not in ((n_rows,), (n_rows, 1)):
        raise DataError(f"{y.name}: expected {n_rows} labels to go with {x.name}, found shape {y.shape}")
    image_shape = (x.shape[1], x.shape[2]) if len(x.shape) == 3 else None
    step = block_rows(n_features * x.dtype.itemsize)

    def blocks() -> Iterator[Block]:
        labels: Any = y.rows(step) if y else repeat(None, -(-n_rows // step))
        for rows, found in zip(x.rows(step), labels, strict=True):
            yield rows.reshape(len(rows), n_features), None if found is None else found.reshape(len(rows))

    return Source(
        format=kind,
        path=path,
        n_features=n_features,
        dtype=native(x.dtype),
        blocks=blocks,
        n_rows=n_rows,
        labelled=y is not None,
        image_shape=image_shape,
        scale=pixel_scale(image_shape, x.dtype),
        files=files,
    )
