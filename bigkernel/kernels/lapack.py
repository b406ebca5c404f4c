"""LAPACK's routines for symmetric matrices, from SciPy's library, called without the interpreter's lock.

SciPy's own wrappers hold it while they compute, so that threads which each have a matrix take turns. Called through the
pointers that `scipy.linalg.cython_lapack` publishes for other languages, they do not. Matrices are float64; BLAS has as
many threads as the caller lets it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import cython_lapack

Array = NDArray[Any]
_PANEL = 64  # columns of workspace, enough for the panels of any build
_SIGNATURES = {"dsygst": "icididii", "dsytrd": "cididdddii", "dorgtr": "cididdii"}  # c: char, i: int, d: double


def congruent(A: Array, lower: Array) -> Array:
    """L⁻¹AL⁻ᵀ in the lower triangle of A, which is overwritten; m³ flops.

    Parameters
    ----------
    A : (m, m) symmetric, in column order, of which the lower triangle is read; the upper one is not touched
    lower : L (m, m), in column order, the same
    """
    m, routine = len(A), _routine("dsygst")
    _require_column_order(A, lower)
    if routine is None:
        return np.asarray(linalg.lapack.dsygst(A, lower, itype=1, lower=1, overwrite_a=1)[0])
    if m:
        _run(routine, 1, b"L", m, A, m, lower, m)
    return A


def tridiagonal(A: Array) -> tuple[Array, Array, Array]:
    """A = QTQᵀ: the diagonal (m,) of T, what is beside it (m − 1,), and Q (m, m) orthogonal.

    8/3 m³ flops, about two fifths of the time of all eigenvectors.
    """
    m = len(A)
    sytrd, orgtr = _routine("dsytrd"), _routine("dorgtr")
    if sytrd is None or orgtr is None:
        T, Q = linalg.hessenberg(A, calc_q=True)
        return np.diagonal(T).copy(), np.diagonal(T, 1).copy(), Q
    Q = np.array(A if A.flags.f_contiguous else A.T, dtype=np.float64, order="F")
    d, e, tau = np.empty(m), np.empty(max(m - 1, 0)), np.empty(max(m - 1, 0))
    if m:
        work = np.empty(_PANEL * m)
        _run(sytrd, b"L", m, Q, m, d, e, tau, work, work.size)
        _run(orgtr, b"L", m, Q, m, tau, work, work.size)
    return d, e, Q


@cache
def _routine(name: str) -> Any | None:
    """A routine whose arguments are all addresses; None where SciPy's has another signature (64-bit integers, say)."""
    capsule = cython_lapack.__pyx_capi__.get(name)
    of_capsule = ctypes.pythonapi.PyCapsule_GetName
    of_capsule.restype, of_capsule.argtypes = ctypes.c_char_p, [ctypes.py_object]
    # the name of the capsule is the C signature
    if capsule is None or _kinds(of_capsule(capsule).decode()) != _SIGNATURES[name]:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(_SIGNATURES[name]))
    return kind(pointer(capsule, of_capsule(capsule)))


def _kinds(signature: str) -> str:
    """Of "void (char *, int *, …)", as `_SIGNATURES` has it."""
    letters = {"char *": "c", "int *": "i"}
    parts = signature.removeprefix("void (").removesuffix(")").split(", ")
    return "".join(letters.get(part, "d" if part.endswith("_d *") else "?") for part in parts)


def _run(routine: Any, *given: Array | bytes | int) -> None:
    """Call a routine, the last argument of which tells if it could be done."""
    info = ctypes.c_int(0)
    routine(*(_address(one) for one in given), ctypes.addressof(info))
    assert info.value == 0, info.value


def _address(one: Array | bytes | int) -> Any:
    if isinstance(one, np.ndarray):
        return one.ctypes.data
    held = ctypes.c_char_p(one) if isinstance(one, bytes) else ctypes.pointer(ctypes.c_int(one))
    return ctypes.cast(held, ctypes.c_void_p)  # it keeps what it points to


def _require_column_order(*matrices: Array) -> None:
    for A in matrices:
        if not (A.flags.f_contiguous and A.dtype == np.float64):
            raise ValueError(f"float64 in column order expected, found {A.dtype} of strides {A.strides}")
