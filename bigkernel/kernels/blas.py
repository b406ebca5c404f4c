"""The symmetric rank-k update, G ← BᵀB or G + BᵀB, from SciPy's BLAS; and BLAS with one thread.

`numpy.matmul` knows it too, but mirrors the triangle after every call, and SciPy's own wrapper holds the interpreter's
lock. Called through the pointers that `scipy.linalg.cython_blas` publishes for other languages, it does neither, and it
can add to what is there: a block then costs its flops and nothing else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas
from threadpoolctl import threadpool_limits

Array = NDArray[Any]
_STRIP = 128  # rows of the mirrored addition that stay in cache


@cache
def _routine(dtype: str) -> tuple[Any, Any] | None:
    """The routine and its type of numbers; None where SciPy's has another signature (64-bit integers, say)."""
    name = {"float32": "ssyrk", "float64": "dsyrk"}[dtype]
    number = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
    capsule = cython_blas.__pyx_capi__.get(name)
    capsule_name = ctypes.pythonapi.PyCapsule_GetName
    capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    # the name of the capsule is the C signature
    if capsule is None or not capsule_name(capsule).startswith(b"void (char *, char *, int *, int *, "):
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    integer, real, text = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(number), ctypes.c_char_p
    # void syrk(char *uplo, char *trans, int *n, int *k, T *alpha, T *a, int *lda, T *beta, T *c, int *ldc)
    kind = ctypes.CFUNCTYPE(
        None, text, text, integer, integer, real, ctypes.c_void_p, integer, real, ctypes.c_void_p, integer
    )
    return kind(pointer(capsule, capsule_name(capsule))), number


def syrk(block: Array, out: Array, *, accumulate: bool) -> None:
    """Upper triangle of out (p, p) ← BᵀB, or out + BᵀB; what is below the diagonal of `out` is not touched.

    Parameters
    ----------
    block : B (b, p), float32 or float64, C-contiguous
    out : (p, p), of the same dtype, C-contiguous
    """
    b, p = block.shape
    if not (block.flags.c_contiguous and out.flags.c_contiguous and out.shape == (p, p) and out.dtype == block.dtype):
        raise ValueError(
            f"syrk: C-contiguous (b, p) and (p, p) of one dtype expected, found {block.shape}, {out.shape}"
        )
    if not b or not p:
        if not accumulate:
            out[...] = 0
        return
    found = _routine(block.dtype.name)
    if found is None:
        product = np.triu(block.T @ block)
        out[...] = out + product if accumulate else product
        return
    routine, number = found
    n, k = ctypes.c_int(p), ctypes.c_int(b)
    one, beta = number(1.0), number(1.0 if accumulate else 0.0)
    # Fortran sees the C-ordered B as Bᵀ (p×b) and our upper triangle as its lower one
    routine(b"L", b"N", n, k, one, block.ctypes.data, n, beta, out.ctypes.data, n)


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS of this process with one thread for a block: the same bits whoever computes, a worker or its driver."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def add_mirrored(total: Array, upper: Array) -> None:
    """total (p, p) += the symmetric matrix whose upper triangle is in `upper`."""
    p = len(total)
    for i in range(0, p, _STRIP):
        j = min(i + _STRIP, p)
        corner = np.triu(upper[i:j, i:j])
        total[i:j, i:j] += corner
        total[i:j, i:j] += np.triu(corner, 1).T
        total[i:j, j:] += upper[i:j, j:]
        total[j:, i:j] += upper[i:j, j:].T
