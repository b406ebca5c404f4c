"""MATLAB files of version 5 to 7.2, read by SciPy.

x is the largest two-dimensional matrix of numbers, (n, d), and y a vector of n labels, unless they are named. Only
those two are decoded, whole, once what the file claims was compared with its size. Rows of 64, 256 or 784 features are
taken as pictures of 8×8, 16×16 or 28×28; no other picture shape is guessed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import AGAIN, DEFLATE_RATIO, Source, source_of_arrays
from bigkernel.errors import DataError

_EXPANSION = 8 * DEFLATE_RATIO  # a double takes a byte at least
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_DTYPES = {
    "double": "f8",
    "single": "f4",
    "logical": "u1",
    **{f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)},
}
_IMAGE_SIDES = {64: 8, 256: 16, 784: 28}


@dataclass(frozen=True)
class _Variable:
    """A variable of a file; `shape` is what its values are taken as, of the `stored` shape."""

    path: str
    label: str
    stored: tuple[int, ...]
    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.label} ({'×'.join(map(str, self.stored))} {self.kind})"

    @property
    def name(self) -> str:
        return f"{self.path}: {self}"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(_DTYPES.get(self.kind, "u1"))

    @property
    def size(self) -> int:
        return int(np.prod(self.stored, dtype=object))

    def rows(self, step: int) -> Iterator[NDArray[Any]]:
        import scipy.io

        find = lambda: scipy.io.loadmat(self.path, variable_names=[self.label])[self.label]  # noqa: E731
        values = _parsed(self.path, find)
        if values.dtype.kind not in "biuf" or values.shape != self.stored:
            raise DataError(f"{self.name} is stored as {values.dtype} of shape {values.shape}; save real numbers")
        found = values.astype(self.dtype, copy=False)
        if self.dtype.kind != "f" and (found != values).any():
            raise DataError(f"{self.name} holds other values than its class can; {AGAIN}")
        found = found.reshape(self.shape)
        for start in range(0, self.shape[0], step):
            yield np.ascontiguousarray(found[start : start + step])


def read(path: str, *, x: str | None = None, y: str | None = None) -> Source:
    """Open a MATLAB file, in which x and y are variables.

    None: the largest matrix, and the vector with one entry a row; y="none": without labels.
    """
    variables = _variables(path)
    rows = _pick_x(path, variables, x)
    labels = None if y == "none" else _pick_y(path, variables, y, rows)
    side = _IMAGE_SIDES.get(rows.shape[1])
    scale = 255.0 if side and rows.kind == "uint8" else 1.0
    image_shape = (side, side) if side else None
    return source_of_arrays("mat", path, rows, labels, image_shape=image_shape, scale=scale, files=(path,))


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
    if head.startswith(HDF5_MAGIC):
        raise _hdf5(path)
    if not head.startswith((b"MATLAB 5.0", b"MATLAB 7.3")) or len(head) < 128:
        raise DataError(f"{path}: expected the 128-byte header of a MATLAB 5.0 file, found {head[:16]!r}; {AGAIN}")
    listed = _parsed(path, lambda: scipy.io.whosmat(path))
    found = [_Variable(path, name, tuple(shape), kind, tuple(shape)) for name, shape, kind in listed]
    for variable in found:
        claimed = variable.size * variable.dtype.itemsize
        if min(variable.stored, default=0) < 0 or claimed > _EXPANSION * os.path.getsize(path):
            raise DataError(f"{variable.name} claims more than the file can hold; {AGAIN}")
    if len({variable.label for variable in found}) < len(found):
        raise DataError(f"{path}: two variables have one name; {AGAIN}")
    return [variable for variable in found if not variable.label.startswith("__")]  # MATLAB's own workspace


def _hdf5(path: str) -> DataError:
    """Return the refusal of MATLAB 7.3: `scipy.io` says NotImplementedError of it."""
    return DataError(
        f"{path}: a MATLAB 7.3 (HDF5) file, which is not read; in MATLAB write it again with save(file, '-v7')"
    )


def _pick_x(path: str, variables: list[_Variable], wanted: str | None) -> _Variable:
    matrices = [each for each in variables if len(each.stored) == 2 and each.kind in _DTYPES]
    if wanted is not None:
        found = [each for each in matrices if each.label == wanted and min(each.stored) > 0]
        return _single(path, variables, found, f"no matrix of numbers {wanted!r} for x", "x=NAME")
    matrices = [each for each in matrices if min(each.stored) > 1]
    most = max((each.size for each in matrices), default=0)
    found = [each for each in matrices if each.size == most]
    what = f"{len(found)} matrices of one size" if found else "no matrix of numbers"
    return _single(path, variables, found, f"{what} for x", "x=NAME")


def _pick_y(path: str, variables: list[_Variable], wanted: str | None, rows: _Variable) -> _Variable:
    n_rows = rows.shape[0]
    vectors = [each for each in variables if each.stored in ((n_rows, 1), (1, n_rows)) and each.kind in _DTYPES]
    found = [each for each in vectors if each != rows and wanted in (None, each.label)]
    what = f"{len(found) or 'no'} vector of {n_rows} labels for the rows of {rows.label!r}"
    labels = _single(path, variables, found, what, 'y=NAME, or y="none" to read without labels')
    return replace(labels, shape=(n_rows,))


def _single(path: str, variables: list[_Variable], found: list[_Variable], what: str, way_out: str) -> _Variable:
    if len(found) != 1:
        holds = ", ".join(map(str, variables)) or "nothing"
        raise DataError(f"{path}: {what}; it holds {holds}; give {way_out}")
    return found[0]
