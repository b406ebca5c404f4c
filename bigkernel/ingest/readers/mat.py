"""MATLAB files of version 5 to 7.2.

x is the largest two-dimensional matrix of numbers, (n, d), and y a vector of n labels, unless they are named. Only
those two are decoded; structs, cells and objects are never touched. MATLAB has no streams: the matrix is loaded whole.
Rows of 64, 256 or 784 features are taken as pictures of 8×8, 16×16 or 28×28; no other picture shape is guessed.

The bytes are parsed here, each length checked before it is believed: scipy.io.loadmat crashes the process
(segmentation fault, scipy 1.17) over some single damaged bytes. Format: MathWorks, *MAT-File Format*, chapter 1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError
from bigkernel.ingest.readers.source import Block, Source, Stream, aligned, block_rows, open_stream, require_features

_HEADER_BYTES = 128
_LOOK_BYTES = 2**16  # more than the flags, dimensions and name of a variable take
_EXPANSION = 1100  # deflate expands at most 1032-fold
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 6: "double", 7: "single"} | dict(
    enumerate(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"), 8)
)
_DTYPES = {
    "double": "f8",
    "single": "f4",
    "logical": "u1",
    **{f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)},
}
_IMAGE_SIDES = {64: 8, 256: 16, 784: 28}


class _Damaged(Exception):
    """What is wrong inside a variable; `_variables` and `_load` say where."""


@dataclass(frozen=True)
class _Variable:
    """Where a variable lies and what it says of itself. Of numbers only: `stored`, `data_start` and `data_stop`."""

    name: str
    shape: tuple[int, ...]
    kind: str
    complex: bool = False
    stored: str = ""
    data_start: int = 0  # within the decompressed element
    data_stop: int = 0
    start: int = 0  # of the element in the content of the file
    length: int = 0
    compressed: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({'×'.join(map(str, self.shape))} {'complex ' * self.complex}{self.kind})"


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a MATLAB file, of whatever version, or HDF5."""
    return head.startswith((b"MATLAB ", _HDF5_MAGIC))


def read(path: str, *, x: str | None = None, y: str | None = None) -> Source:
    """Open a MATLAB file.

    Parameters
    ----------
    path : str
    x, y : str or None
        Names of the variables. None: the largest matrix, and the vector with one entry a row. y="none": without labels.

    Raises
    ------
    DataError
        Not a MATLAB file, of version 7.3, damaged or truncated (names the bytes), or variables not found (lists those
        there are).
    """
    variables = _variables(path)
    rows = _pick_x(path, variables, x)
    n_rows, n_features = rows.shape
    require_features(path, n_features)
    labels = None if y == "none" else _pick_y(path, variables, y, rows)
    dtype = np.dtype(_DTYPES[rows.kind])
    side = _IMAGE_SIDES.get(n_features)
    step = block_rows(n_features * dtype.itemsize)

    def cut(whole: NDArray[Any]) -> Iterator[NDArray[Any]]:
        return (np.ascontiguousarray(whole[start : start + step]) for start in range(0, n_rows, step))

    def blocks() -> Iterator[Block]:
        return aligned(cut(_load(path, rows)), None if labels is None else targets())

    def targets() -> Iterator[NDArray[Any]]:
        assert labels is not None
        return cut(_load(path, labels).reshape(-1))

    return Source(
        format="mat",
        path=path,
        n_rows=n_rows,
        n_features=n_features,
        dtype=dtype,
        image_shape=(side, side) if side else None,
        scale=255.0 if side and rows.kind == "uint8" else 1.0,
        blocks=blocks,
        targets=None if labels is None else targets,
        files=(path,),
    )


def _variables(path: str) -> list[_Variable]:
    """What the file holds, its frame walked from end to end; nothing is decoded but the heads."""
    found: list[_Variable] = []
    with open_stream(path) as stream:
        order = _byte_order(stream)
        while tag := stream.read(8):
            start = stream.offset
            if len(tag) < 8:
                raise _truncated(stream, start - len(tag), start - len(tag) + 8)
            kind, length = struct.unpack(order + "2I", tag)
            look = stream.read(min(length, _LOOK_BYTES))
            while stream.offset < start + length and stream.read(min(2**20, start + length - stream.offset)):
                pass
            if stream.offset < start + length:
                raise _truncated(stream, start - 8, start + length)
            try:
                if kind not in (_MATRIX, _COMPRESSED):
                    raise _Damaged(f"an element of type {kind}, where only variables (14) may stand")
                compressed = kind == _COMPRESSED
                variable = _describe(_inflate(look, _LOOK_BYTES)[0][8:] if compressed else look, order)
                if variable.data_stop > length * (_EXPANSION if compressed else 1):
                    raise _Damaged(f"{variable} of {variable.data_stop} bytes, more than its {length} bytes can hold")
            except _Damaged as error:
                raise DataError(f"{path}: damaged: the variable that begins at byte {start - 8}: {error}") from None
            if variable.name:  # without one: MATLAB's own workspace
                found.append(replace(variable, start=start, length=length, compressed=compressed))
    twice = [variable.name for variable in found if [other.name for other in found].count(variable.name) > 1]
    if twice:
        raise DataError(f"{path}: damaged: the variable {twice[0]!r} is there more than once")
    return found


def _load(path: str, variable: _Variable) -> NDArray[Any]:
    """The numbers of a variable, in the dtype of its class."""
    with open_stream(path) as stream:
        order = _byte_order(stream)
        while stream.offset < variable.start:
            stream.read_exactly(min(2**20, variable.start - stream.offset), f"the way to {variable.name!r}")
        data = stream.read_exactly(variable.length, f"the variable {variable.name!r}")
    try:
        if variable.compressed:
            data, whole = _inflate(data, 8 + variable.data_stop + 2**10)  # padding, and no imaginary part
            data = data[8:]
            if not whole:
                raise _Damaged("its compressed data do not end where they should")
        if len(data) < variable.data_stop:
            raise _Damaged(f"it ends at byte {len(data)} of {variable.data_stop}")
    except _Damaged as error:
        raise DataError(f"{path}: damaged: {variable} at byte {variable.start - 8}: {error}") from None
    stored = np.dtype(order + variable.stored)
    count = (variable.data_stop - variable.data_start) // stored.itemsize
    values = np.frombuffer(data, stored, count, variable.data_start).reshape(variable.shape, order="F")
    return values.astype(_DTYPES[variable.kind], copy=False)


def _byte_order(stream: Stream) -> str:
    head = stream.read(_HEADER_BYTES)
    if head.startswith((b"MATLAB 7.3", _HDF5_MAGIC)):
        raise DataError(
            f"{stream.name}: a MATLAB 7.3 (HDF5) file, which is not read; in MATLAB write it again with "
            "save(file, '-v7'), or in Python with scipy.io.savemat"
        )
    order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
    if not head.startswith(b"MATLAB 5.0") or order is None:
        raise DataError(
            f"{stream.name}: byte 0: expected the 128-byte header of a MATLAB 5.0 file, found {len(head)} bytes that "
            f"begin {head[:16]!r}"
        )
    return order


def _truncated(stream: Stream, start: int, stop: int) -> DataError:
    return DataError(
        f"{stream.name}: truncated: the content ends at byte {stream.offset}, but the variable that begins at byte "
        f"{start} goes on to byte {stop} at least; copy or download the file again"
    )


def _inflate(data: bytes, limit_bytes: int) -> tuple[bytes, bool]:
    """At most `limit_bytes` of the decompressed data, and whether that was all, its checksum right."""
    inflating = zlib.decompressobj()
    try:
        return inflating.decompress(data, limit_bytes), inflating.eof
    except zlib.error as error:
        raise _Damaged(str(error)) from None


def _describe(data: bytes, order: str) -> _Variable:
    """The head of a variable: flags, dimensions, name and, of numbers, the extent of the real part."""
    kind, start, stop = _element(data, 0, order)
    if kind != _UINT32 or stop - start != 8:
        raise _Damaged("no array flags")
    (flags,) = struct.unpack_from(order + "I", data, start)
    number = flags & 0xFF
    if number not in _CLASSES:
        return _Variable("(an object)", (), "object")
    kind, start, stop = _element(data, _padded(stop), order)
    if kind != _INT32 or (stop - start) % 4 or not 8 <= stop - start <= 128:
        raise _Damaged("no dimensions")
    shape = struct.unpack_from(f"{order}{(stop - start) // 4}i", data, start)
    kind, start, stop = _element(data, _padded(stop), order)
    if kind != _INT8 or min(shape) < 0:
        raise _Damaged("no name" if kind != _INT8 else f"impossible dimensions {shape}")
    name = data[start:stop].decode("latin-1")
    described = "logical" if flags & 0x200 else _CLASSES[number]
    variable = _Variable(name, shape, described, complex=bool(flags & 0x800))
    if described not in _DTYPES:
        return variable
    kind, start, stop = _element(data, _padded(stop), order, whole=False)
    stored = _STORED.get(kind, "")
    count = int(np.prod(shape, dtype=object))
    if not stored or (stored[0] == "f" and _DTYPES[described][0] != "f"):
        raise _Damaged(f"{variable} is stored as type {kind}")
    if stop - start != count * int(stored[1]):
        raise _Damaged(f"{variable} has {stop - start} bytes of data, expected {count * int(stored[1])}")
    return replace(variable, stored=stored, data_start=start, data_stop=stop)


def _element(data: bytes, at: int, order: str, *, whole: bool = True) -> tuple[int, int, int]:
    """(type, start, stop) of the element whose tag is at `at`; its data may go on past `data` unless `whole`."""
    if len(data) < at + 8:
        raise _Damaged(f"it ends at its byte {len(data)}, within a tag")
    kind, length = struct.unpack_from(order + "2I", data, at)
    start = at + 8
    if kind >> 16:  # up to four bytes of data, kept in the tag
        kind, length, start = kind & 0xFFFF, kind >> 16, at + 4
        if length > 4:
            raise _Damaged(f"a short element of {length} bytes at its byte {at}")
    if whole and start + length > len(data):
        raise _Damaged(f"an element that ends at its byte {start + length}, of {len(data)}")
    return kind, start, start + length


def _padded(at: int) -> int:
    return -(-at // 8) * 8


def _pick_x(path: str, variables: list[_Variable], wanted: str | None) -> _Variable:
    matrices = [
        variable
        for variable in variables
        if len(variable.shape) == 2 and variable.kind in _DTYPES and variable.data_stop
    ]
    if wanted is not None:
        found = [variable for variable in matrices if variable.name == wanted and min(variable.shape) > 0]
        what = f"no matrix of numbers {wanted!r}"
    else:
        matrices = [variable for variable in matrices if min(variable.shape) > 1]
        largest = max((variable.shape[0] * variable.shape[1] for variable in matrices), default=0)
        found = [variable for variable in matrices if variable.shape[0] * variable.shape[1] == largest]
        what = f"equally large matrices {', '.join(each.name for each in found)}" if found else "no matrix of numbers"
    return _only(path, variables, found, f"{what} for x", "x=NAME")


def _pick_y(path: str, variables: list[_Variable], wanted: str | None, x: _Variable) -> _Variable:
    n_rows, n_features = x.shape

    def vectors(count: int) -> list[_Variable]:
        shapes = ((count, 1), (1, count))
        return [each for each in variables if each is not x and each.shape in shapes and each.kind in _DTYPES]

    found = [each for each in vectors(n_rows) if wanted in (None, each.name)]
    what = f"no vector of {n_rows} labels" + (f" named {wanted!r}" if wanted is not None else "")
    if found:
        what = f"several vectors of {n_rows} labels ({', '.join(each.name for each in found)})"
    elif wanted is None and vectors(n_features):
        what += f" (but one of {n_features}: if the samples are the columns of {x.name!r}, save its transpose)"
    return _only(
        path, variables, found, f"{what} for the rows of {x.name!r}", 'y=NAME, or y="none" to read without labels'
    )


def _only(path: str, variables: list[_Variable], found: list[_Variable], what: str, way_out: str) -> _Variable:
    if len(found) != 1:
        holds = ", ".join(map(str, variables)) or "nothing"
        raise DataError(f"{path}: {what}; it holds {holds}; give {way_out}")
    if found[0].complex:
        raise DataError(f"{path}: expected real numbers, found {found[0]}; save its real part")
    return found[0]
