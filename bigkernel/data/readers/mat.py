"""MATLAB files of version 5 to 7.2, read by SciPy.

x is the largest two-dimensional matrix of numbers, (n, d), and y a vector of n labels, unless they are named. Only
those two are decoded, whole, once what the file claims was compared with its size. Rows of 64, 256 or 784 features are
taken as pictures of 8×8, 16×16 or 28×28; no other picture shape is guessed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import AGAIN, DEFLATE_RATIO, Block, Source, block_rows, require_features
from bigkernel.errors import DataError

_EXPANSION = 8 * DEFLATE_RATIO  # a double takes a byte at least
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
    name: str
    shape: tuple[int, ...]
    kind: str

    def __str__(self) -> str:
        return f"{self.name} ({'×'.join(map(str, self.shape))} {self.kind})"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(_DTYPES[self.kind])

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * np.dtype(_DTYPES.get(self.kind, "u1")).itemsize


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
        Not a MATLAB file, of version 7.3, damaged or truncated, or variables not found (lists those there are).
    """
    variables = _variables(path)
    rows = _pick_x(path, variables, x)
    n_rows, n_features = rows.shape
    require_features(path, n_features)
    labels = None if y == "none" else _pick_y(path, variables, y, n_rows, rows.name)
    side = _IMAGE_SIDES.get(n_features)
    image_shape = (side, side) if side else None
    step = block_rows(n_features * rows.dtype.itemsize)

    def blocks() -> Iterator[Block]:
        values, targets = _load(path, rows), None if labels is None else _load(path, labels).reshape(-1)
        for start in range(0, n_rows, step):
            part = slice(start, start + step)
            yield np.ascontiguousarray(values[part]), None if targets is None else targets[part]

    return Source(
        format="mat",
        path=path,
        n_features=n_features,
        dtype=rows.dtype,
        blocks=blocks,
        n_rows=n_rows,
        labelled=labels is not None,
        image_shape=image_shape,
        scale=255.0 if side and rows.kind == "uint8" else 1.0,
        files=(path,),
    )


def _parsed(path: str, parse: Callable[[], Any]) -> Any:
    """Return what `scipy.io` finds; whatever it raises or warns of over damage is a DataError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what scipy.io cannot read it replaces by a text, and warns
            return parse()
    except NotImplementedError:
        raise _hdf5(path) from None
    except Exception as error:
        raise DataError(f"{path}: damaged or not a MATLAB file: {error} ({type(error).__name__}); {AGAIN}") from error


def _variables(path: str) -> list[_Variable]:
    import scipy.io  # late: --help needs none of it

    with open(path, "rb") as file:
        head = file.read(128)
    if head.startswith(_HDF5_MAGIC):
        raise _hdf5(path)
    if not head.startswith((b"MATLAB 5.0", b"MATLAB 7.3")) or len(head) < 128:
        raise DataError(f"{path}: expected the 128-byte header of a MATLAB 5.0 file, found {head[:16]!r}; {AGAIN}")
    found = [_Variable(name, tuple(shape), kind) for name, shape, kind in _parsed(path, lambda: scipy.io.whosmat(path))]
    held = _EXPANSION * os.path.getsize(path)
    for variable in found:
        claimed = int(np.prod(variable.shape, dtype=object)) * (
            variable.dtype.itemsize if variable.kind in _DTYPES else 1
        )
        if min(variable.shape, default=0) < 0 or claimed > held:
            raise DataError(f"{path}: {variable} claims more than the file can hold; {AGAIN}")
    if len({variable.name for variable in found}) < len(found):
        raise DataError(f"{path}: two variables have one name; {AGAIN}")
    return [variable for variable in found if not variable.name.startswith("__")]  # MATLAB's own workspace


def _hdf5(path: str) -> DataError:
    """Return the refusal of MATLAB 7.3: `scipy.io` says NotImplementedError of it."""
    return DataError(
        f"{path}: a MATLAB 7.3 (HDF5) file, which is not read; in MATLAB write it again with save(file, '-v7')"
    )


def _load(path: str, variable: _Variable) -> NDArray[Any]:
    """Return the values of a variable, in the dtype of its class."""
    import scipy.io

    values = _parsed(path, lambda: scipy.io.loadmat(path, variable_names=[variable.name])[variable.name])
    if values.dtype.kind not in "biuf" or values.shape != variable.shape:
        raise DataError(f"{path}: {variable} is stored as {values.dtype} of shape {values.shape}; save real numbers")
    found = values.astype(variable.dtype, copy=False)
    if variable.dtype.kind != "f" and (found != values).any():
        raise DataError(f"{path}: {variable} holds other values than its class can; {AGAIN}")
    return np.asarray(found)


def _pick_x(path: str, variables: list[_Variable], wanted: str | None) -> _Variable:
    matrices = [each for each in variables if len(each.shape) == 2 and each.kind in _DTYPES]
    if wanted is not None:
        found = [each for each in matrices if each.name == wanted and min(each.shape) > 0]
        return _single(path, variables, found, f"no matrix of numbers {wanted!r} for x", "x=NAME")
    sizes = {each: each.shape[0] * each.shape[1] for each in matrices if min(each.shape) > 1}
    found = [each for each, size in sizes.items() if size == max(sizes.values())]
    what = f"{len(found)} matrices of one size" if found else "no matrix of numbers"
    return _single(path, variables, found, f"{what} for x", "x=NAME")


def _pick_y(path: str, variables: list[_Variable], wanted: str | None, n_rows: int, rows: str) -> _Variable:
    vectors = [each for each in variables if each.shape in ((n_rows, 1), (1, n_rows)) and each.kind in _DTYPES]
    found = [each for each in vectors if each.name != rows and wanted in (None, each.name)]
    what = f"{len(found) or 'no'} vector of {n_rows} labels for the rows of {rows!r}"
    return _single(path, variables, found, what, 'y=NAME, or y="none" to read without labels')


def _single(path: str, variables: list[_Variable], found: list[_Variable], what: str, way_out: str) -> _Variable:
    if len(found) != 1:
        holds = ", ".join(map(str, variables)) or "nothing"
        raise DataError(f"{path}: {what}; it holds {holds}; give {way_out}")
    return found[0]
