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

from bigkernel.kernels.panels import PANEL, WIDE

Array = NDArray[Any]
_STRIP = 128  # rows of sums of triangles that stay in cache


@cache
def _routine(name: str, dtype: str) -> tuple[Any, Any] | None:
    """`syrk` or `gemm` and its type of numbers; None where SciPy's has another signature (64-bit integers, say)."""
    letter, number = {"float32": ("s", ctypes.c_float), "float64": ("d", ctypes.c_double)}[dtype]
    capsule = cython_blas.__pyx_capi__.get(letter + name)
    capsule_name = ctypes.pythonapi.PyCapsule_GetName
    capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    sizes = {"syrk": 2, "gemm": 3}[name]
    # the name of the capsule is the C signature
    if capsule is None or not capsule_name(capsule).startswith(b"void (char *, char *, " + b"int *, " * sizes):
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    integer, real, text = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(number), ctypes.c_char_p
    # void syrk(char *uplo, char *trans, int *n, int *k, T *alpha, T *a, int *lda, T *beta, T *c, int *ldc)
    # void gemm(char *transa, char *transb, int *m, int *n, int *k, T *alpha, …, T *b, int *ldb, T *beta, …)
    factors: list[Any] = [ctypes.c_void_p, integer] * (sizes - 1)
    kind = ctypes.CFUNCTYPE(None, text, text, *[integer] * sizes, real, *factors, real, ctypes.c_void_p, integer)
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
    rank_k, product = _routine("syrk", block.dtype.name), _routine("gemm", block.dtype.name)
    if rank_k is None or product is None:
        upper = np.triu(block.T @ block)
        out[...] = out + upper if accumulate else upper
        return
    number = rank_k[1]
    whole, k = ctypes.c_int(p), ctypes.c_int(b)
    one, beta = number(1.0), number(1.0 if accumulate else 0.0)
    step = p if p <= WIDE else PANEL  # see `panels`
    for i in range(0, p, step):
        j = min(i + step, p)
        panel, corner, n = block[:, i:].ctypes.data, out[i:, i:].ctypes.data, ctypes.c_int(j - i)
        # Fortran sees the C-ordered B as Bᵀ (p×b) and our upper triangle as its lower one
        rank_k[0](b"L", b"N", n, k, one, panel, whole, beta, corner, whole)
        if j < p:
            rest, others, right = ctypes.c_int(p - j), block[:, j:].ctypes.data, out[i:, j:].ctypes.data
            product[0](b"N", b"T", rest, n, k, one, others, whole, panel, whole, beta, right, whole)


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS of this process with one thread for a block: the same bits whoever computes, a worker or its driver."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def add_upper(total: Array, upper: Array) -> None:
    """total (p, p) += the upper triangle of `upper`, on and above the diagonal; below it stands what stood there."""
    p = len(total)
    for i in range(0, p, _STRIP):
        j = min(i + _STRIP, p)
        total[i:j, i:j] += np.triu(upper[i:j, i:j])  # below its diagonal may stand anything
        total[i:j, j:] += upper[i:j, j:]


def mirror(total: Array) -> None:
    """Make total (p, p) the symmetric matrix whose upper triangle it holds, in place."""
    p = len(total)
    for i in range(0, p, _STRIP):
        j = min(i + _STRIP, p)
        corner = np.triu(total[i:j, i:j])
        total[i:j, i:j] = corner + np.triu(corner, 1).T
        total[j:, i:j] = total[i:j, j:].T
