"""MATLAB files of version 5 to 7.2.

x is the largest two-dimensional matrix of numbers, (n, d), and y a vector of n labels, unless they are named. Only
those two are decoded; structs, cells and objects are never touched. MATLAB has no streams: a variable is loaded whole.
Rows of 64, 256 or 784 features are taken as pictures of 8×8, 16×16 or 28×28; no other picture shape is guessed.

The frame of the file, where each variable begins and how long it is, is walked here. `scipy.io` decodes the variables,
in a process of its own (`mat_process`) whose memory and time are bounded by what they may hold; a crash there is a
DataError. Format: MathWorks, *MAT-File Format*, chapter 1.
"""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers import mat_process
from bigkernel.data.readers.mat_process import HEADER_BYTES, LOOK_BYTES
from bigkernel.data.readers.source import Block, Source, Stream, aligned, block_rows, open_stream, require_features
from bigkernel.errors import DataError

_EXPANSION = 8 * 1100  # a double takes a byte at least, and deflate expands at most 1032-fold
_MOST_VARIABLES = 2**14
_SPARE_BYTES = 2**28  # of memory, beside the values
_SPARE_SECONDS, _BYTES_A_SECOND = 60, 2**20
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_DTYPES = {
    "double": "f8",
    "single": "f4",
    "logical": "u1",
    **{f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)},
}
_IMAGE_SIDES = {64: 8, 256: 16, 784: 28}


@dataclass(frozen=True)
class _Variable:
    """A variable: what it says of itself, and where its element lies in the content of the file, tag included."""

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.name} ({'×'.join(map(str, self.shape))} {self.kind})"

    @property
    def size_bytes(self) -> int:
        """Bytes of its values in the dtype of its class."""
        return int(np.prod(self.shape, dtype=object)) * int(_DTYPES[self.kind][1])


def recognises(head: bytes) -> bool:
    """Return True for a file that begins as a MATLAB file, of whatever version, or HDF5."""
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
    load = functools.cache(lambda variable: _load(path, variable).reshape(-1))  # of the labels alone

    def cut(whole: NDArray[Any]) -> Iterator[NDArray[Any]]:
        return (np.ascontiguousarray(whole[start : start + step]) for start in range(0, n_rows, step))

    def targets() -> Iterator[NDArray[Any]]:
        return cut(load(labels))

    def blocks() -> Iterator[Block]:
        return aligned(cut(_load(path, rows)), None if labels is None else targets())

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
    """Return the variables of a file, whose frame is walked from end to end; nothing is decoded but their heads."""
    frame: list[tuple[int, int]] = []
    looks: list[bytes] = []
    with open_stream(path) as stream:
        header, order = _header(stream)
        while tag := stream.read(8):
            start = stream.offset - len(tag)
            stop = start + 8 + (struct.unpack(order + "4xI", tag)[0] if len(tag) == 8 else 0)
            if len(looks) == _MOST_VARIABLES:
                raise DataError(f"{path}: byte {start}: more than {_MOST_VARIABLES:,} variables; is it damaged?")
            looks.append(tag + stream.read(min(stop - start, LOOK_BYTES) - 8))
            while stream.offset < stop and stream.read(min(2**20, stop - stream.offset)):
                pass
            if stream.offset < stop:
                raise DataError(
                    f"{path}: truncated: the content ends at byte {stream.offset}, but the variable that begins at "
                    f"byte {start} goes on to byte {stop} at least; copy or download the file again"
                )
            frame.append((start, stop))
    described = _run("describe", header + b"".join(looks), _SPARE_BYTES)
    answers = [json.loads(line) for line in described.stdout.splitlines()]
    found: list[_Variable] = []
    for place, (start, stop) in enumerate(frame):
        where = f"{path}: damaged: the variable that begins at byte {start}"
        told: dict[str, Any] = answers[place] if place < len(answers) else {"error": _ending(described)}
        if "error" in told:
            raise DataError(f"{where}: {told['error']}")
        variable = _Variable(told["name"], tuple(told["shape"]), told["kind"], start, stop - start)
        if min(variable.shape, default=0) < 0:
            raise DataError(f"{where}: impossible dimensions {variable.shape}")
        if variable.kind in _DTYPES and variable.size_bytes > _EXPANSION * variable.length:
            raise DataError(
                f"{where}: {variable} of {variable.size_bytes} bytes, more than its {variable.length} bytes can hold"
            )
        if any(variable.name == other.name for other in found):
            raise DataError(f"{path}: damaged: the variable {variable.name!r} is there more than once")
        if not variable.name.startswith("__"):  # MATLAB's own workspace
            found.append(variable)
    return found


def _load(path: str, variable: _Variable) -> NDArray[Any]:
    """Return the values of a variable, in the dtype of its class."""
    with open_stream(path) as stream:
        header, _ = _header(stream)
        while stream.offset < variable.start:
            stream.read_exactly(min(2**20, variable.start - stream.offset), f"the way to {variable.name!r}")
        content = header + stream.read_exactly(variable.length, f"the variable {variable.name!r}")
    ended = _run("load", content, 4 * (len(content) + variable.size_bytes) + _SPARE_BYTES)
    if ended.returncode:
        raise DataError(f"{path}: damaged: {variable} at byte {variable.start}: {_ending(ended)}")
    values = np.load(io.BytesIO(ended.stdout), allow_pickle=False)
    if values.dtype.kind == "c":
        raise DataError(f"{path}: expected real numbers, found complex ones in {variable}; save its real part")
    dtype = np.dtype(_DTYPES[variable.kind])
    if values.shape != variable.shape or (values.dtype.kind == "f" and dtype.kind != "f"):
        raise DataError(
            f"{path}: damaged: {variable} at byte {variable.start}: it is stored as {values.dtype} of shape "
            f"{values.shape}"
        )
    return np.asarray(values.astype(dtype, copy=False))


def _run(task: str, content: bytes, memory_bytes: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", mat_process.__file__, task, str(memory_bytes)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    seconds = _SPARE_SECONDS + memory_bytes / _BYTES_A_SECOND
    try:
        return subprocess.run(
            command, input=content, capture_output=True, timeout=seconds, env={**os.environ, **threads}
        )
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, 1, late.stdout or b"", b"nothing after %d s" % seconds)


def _ending(ended: subprocess.CompletedProcess[bytes]) -> str:
    if ended.returncode < 0:
        return f"scipy.io crashed over it ({signal.Signals(-ended.returncode).name})"
    return ended.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "scipy.io told nothing of it"


def _header(stream: Stream) -> tuple[bytes, str]:
    """Read the header of a file; return it and the byte order, "<" or ">"."""
    head = stream.read(HEADER_BYTES)
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
    return head, order


def _pick_x(path: str, variables: list[_Variable], wanted: str | None) -> _Variable:
    matrices = [variable for variable in variables if len(variable.shape) == 2 and variable.kind in _DTYPES]
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
    return found[0]
