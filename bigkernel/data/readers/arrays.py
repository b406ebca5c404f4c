"""Arrays in files: NumPy's own (.npy, .npz; never pickle), and IDX, the format of MNIST.

x is (n, d), (n, h, w) as images, or (n,) as a single feature. Arrays in C order stream block by block; those in Fortran
order are memory-mapped (.npy) or loaded whole (.npz). Three-dimensional uint8 is pixels: scale 255.

IDX (http://yann.lecun.com/exdb/mnist), gzip or plain, is big-endian: two zero bytes, a type code, the number of
dimensions, the dimensions as 32-bit integers, the values. Labels are a separate file. Unsigned bytes are pixels.

In an archive x and y have the usual names, or are the largest matrix and the vector of n labels, or are named. Only
these are decoded, after their claimed size was compared with the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import (
    AGAIN,
    DEFLATE_RATIO,
    Source,
    Stream,
    in_native_order,
    open_stream,
    require_file,
    require_size,
    source_of_arrays,
)
from bigkernel.errors import DataError

X_NAMES = ("x", "X", "data")
Y_NAMES = ("y", "labels", "target")
_MOST_HEADER_BYTES = 2**16
# errors of zipfile for damaged directories and headers, encryption and unknown compression
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, ValueError, RuntimeError, KeyError, EOFError)
# type code → dtype, as in the file
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IDX_IMAGES = re.compile(r"images([-.])idx\d(-\w+?)(\.gz)?$")


@dataclass(frozen=True)
class _Array:
    """An array in a file, or in an archive (`member`), as described by its header of `head_bytes`."""

    path: str
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    head_bytes: int
    fortran: bool = False

    @property
    def name(self) -> str:
        return f"{self.path}[{self.member}]" if self.member else self.path

    @property
    def size_bytes(self) -> int:
        return self.head_bytes + self.dtype.itemsize * int(np.prod(self.shape, dtype=object))

    def rows(self, step: int) -> Iterator[NDArray[Any]]:
        if not self.fortran:
            with _opened(self.path, self.member) as stream:
                stream.read_exactly(self.head_bytes, "the header")
                yield from stream.rows(self.shape, self.dtype, step)
            return
        whole = self._load() if self.member else None
        for start in range(0, self.shape[0], step):
            # mapped anew for each block, so that earlier pages do not count as memory of this process
            values = self._load() if whole is None else whole
            yield in_native_order(np.array(values[start : start + step], order="C"))

    def _load(self) -> NDArray[Any]:
        try:
            if self.member:
                with np.load(self.path, allow_pickle=False, max_header_size=_MOST_HEADER_BYTES) as archive:
                    values = archive[self.member]
            else:
                values = np.load(self.path, mmap_mode="r", allow_pickle=False, max_header_size=_MOST_HEADER_BYTES)
        except _ZIP_ERRORS as error:
            raise DataError(f"{self.name}: cannot be read: {error}; {AGAIN}") from error
        if (values.shape, values.dtype) != (self.shape, self.dtype):
            raise DataError(f"{self.name}: changed while it was read: found shape {values.shape} of {values.dtype}")
        return np.asarray(values)


def read_npy(path: str, *, labels: str | None = None) -> Source:
    """Open a .npy file of rows; `labels`: a .npy file with the labels, (n,) or (n, 1), or "none"."""
    x = _npy_header(path)
    if labels is None or labels == "none":
        return source_of_arrays("npy", path, x, None, files=(path,))
    require_file(labels)
    return source_of_arrays("npy", path, x, _npy_header(labels), files=(path, labels))


def read_npz(path: str, *, x: str | None = None, y: str | None = None) -> Source:
    """Open a .npz archive, in which x and y are arrays; see `_choose`."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except _ZIP_ERRORS as error:
        raise DataError(f"{path}: expected a complete .npz archive ({error}); {AGAIN}") from error
    rows, labels = _choose(path, {name: _npy_header(path, name) for name in names}, x, y)
    return source_of_arrays("npz", path, rows, labels, files=(path,))


def read_idx(path: str, *, labels: str | None = None) -> Source:
    """Open IDX images (n, h, w) or rows (n, d), with their labels.

    `labels` is a path or "none"; None: the file beside `path` that the MNIST naming convention gives (images-idx3 →
    labels-idx1, with or without .gz; images.idx3 likewise), no labels where there is none.
    """
    images = _idx_header(path, (2, 3), "images (n, h, w) or rows (n, d)")
    labels = _labels_beside(path) if labels is None else labels
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    if labels is None or labels == "none":
        return source_of_arrays("idx", path, images, None, scale=scale, files=(path,))
    require_file(labels)
    targets = _idx_header(labels, (1,), "labels (n,)")
    return source_of_arrays("idx", path, images, targets, scale=scale, files=(path, labels))


def _choose(path: str, arrays: Mapping[str, _Array], x: str | None, y: str | None) -> tuple[_Array, _Array | None]:
    """Choose the arrays of rows and labels in a file.

    x : name; None: "x", "X" or "data" where there is one of them, else the largest matrix
    y : name; None: "y", "labels" or "target", else the only vector of one number a row; "none": no labels, as
        where the rows are alone
    """
    numbers = {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
    usual = [numbers[name] for name in ((x,) if x else X_NAMES) if name in numbers]
    if not (candidates := usual) and x is None:
        matrices = [array for array in numbers.values() if len(array.shape) > 1 and min(array.shape) > 1]
        most = max((np.prod(array.shape, dtype=object) for array in matrices), default=0)
        candidates = [array for array in matrices if np.prod(array.shape, dtype=object) == most]
    rows = _single(path, arrays, candidates, f"matrix{f' {x!r}' if x else ''} for x", "x=NAME")
    if y == "none" or (y is None and len(arrays) == 1):
        return rows, None
    vectors = {(rows.shape[0],), (rows.shape[0], 1)}
    others = {name: array for name, array in arrays.items() if array is not rows and array.dtype.kind in "biufU"}
    candidates = [others[name] for name in ((y,) if y else Y_NAMES) if name in others]
    if not candidates and y is None:
        candidates = [array for array in others.values() if array.shape in vectors]
    what = f"vector of {rows.shape[0]} labels{f' {y!r}' if y else ''} for the rows of {rows.name}"
    return rows, _single(path, arrays, candidates, what, 'y=NAME, or y="none" to read without labels')


def _single(path: str, arrays: Mapping[str, _Array], candidates: Sequence[_Array], what: str, way_out: str) -> _Array:
    if len(candidates) != 1:
        holds = ", ".join(f"{name} ({'×'.join(map(str, array.shape))})" for name, array in arrays.items())
        raise DataError(f"{path}: found {len(candidates) or 'no'} {what} among {holds or 'nothing'}; pass {way_out}")
    return candidates[0]


@contextlib.contextmanager
def _opened(path: str, member: str) -> Iterator[Stream]:
    with contextlib.ExitStack() as stack:
        if not member:
            yield stack.enter_context(open_stream(path))
            return
        name = f"{path}[{member}]"
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            handle = stack.enter_context(archive.open(member + ".npy"))
        except _ZIP_ERRORS as error:
            raise DataError(f"{name}: cannot be read: {error}; {AGAIN}") from error
        yield Stream(name, handle)


def _npy_header(path: str, member: str = "") -> _Array:
    with _opened(path, member) as stream:
        try:
            version = np.lib.format.read_magic(stream.handle)
            parse = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = parse(stream.handle, max_header_size=_MOST_HEADER_BYTES)
            array = _Array(path, member, shape, dtype, stream.handle.tell(), bool(fortran) and len(shape) > 1)
        except Exception as error:  # errors of NumPy and zipfile for damage
            raise DataError(f"{stream.name}: its .npy header cannot be read: {error}; {AGAIN}") from error
    if dtype.hasobject:  # never read or chosen
        return array
    if min(shape, default=0) < 0:
        raise DataError(f"{array.name}: invalid shape {shape}; {AGAIN}")
    claim = f"shape {shape} of {dtype}"
    if not member:
        require_size(path, array.size_bytes, claim)
        return array
    with zipfile.ZipFile(path) as archive:
        held = archive.getinfo(member + ".npy")
    if held.file_size != array.size_bytes or held.file_size > DEFLATE_RATIO * held.compress_size:
        raise DataError(
            f"{array.name}: header claims {claim}, {array.size_bytes} bytes, but the archive holds {held.file_size} "
            f"in {held.compress_size} compressed; {AGAIN}"
        )
    return array


def _idx_header(path: str, dimensions: tuple[int, ...], meaning: str) -> _Array:
    with open_stream(path) as stream:
        magic = stream.read_exactly(4, "the IDX magic")
        if magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES:
            codes = ", ".join(f"{code:02x}" for code in IDX_TYPES)
            raise DataError(f"{path}: expected an IDX magic (00 00, a type of {codes}), found {magic.hex(' ')}")
        if magic[3] not in dimensions:
            expected = " or ".join(map(str, dimensions))
            raise DataError(f"{path}: expected {expected} dimensions for {meaning}, found {magic[3]}")
        shape = struct.unpack(f">{magic[3]}I", stream.read_exactly(4 * magic[3], "the IDX header"))
    array = _Array(path, "", shape, np.dtype(IDX_TYPES[magic[2]]), 4 + 4 * len(shape))
    claim = " × ".join(map(str, shape)) + f" values of {array.dtype.itemsize} bytes"
    require_size(path, array.size_bytes, claim)
    return array


def _labels_beside(path: str) -> str | None:
    folder, name = os.path.split(path)
    match = _IDX_IMAGES.search(name)
    if not match:
        return None
    stem = f"{name[: match.start()]}labels{match[1]}idx1{match[2]}"
    endings = (".gz", "") if match[3] else ("", ".gz")
    candidates = (os.path.join(folder, stem + ending) for ending in endings)
    return next((candidate for candidate in candidates if os.path.exists(candidate)), None)
