"""BLAS and LAPACK beyond SciPy's wrappers: rank-k updates, factors in place, and panels of what is wide.

SciPy's wrappers hold the interpreter's lock while they compute, so that threads which each have a matrix take turns.
Called through the pointers that `scipy.linalg.cython_blas` and `cython_lapack` publish for other languages, routines do
not; and `syrk` can add to what is there, which `numpy.matmul` cannot: a block then costs its flops and nothing else.

OpenBLAS on several threads writes past its buffers where a rank-k update is too wide for them: on two, `syrk`, and
`potrf` and `lauum`, which are made of it, end the process at m = 16,000 in float64 (AVX-512; elsewhere and in float32
somewhat later). What is wider than `WIDE` goes by panels of columns: products of rectangles, which it does in pieces.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from scipy import linalg
from scipy.linalg import cython_blas, cython_lapack
from threadpoolctl import threadpool_limits

from bigkernel.arrays import Array

WIDE = 8192  # columns, beyond which it is panels
PANEL = 1024
_STRIP = 128  # rows of sums of triangles that stay in cache
_WORK_COLUMNS = 64  # of LAPACK's workspace, enough for the panels of any build
_REFLECTED = 32  # columns that are reflected together: the fastest of 16 to 64 for q = 200 to 2,000
# arguments of routines, all of them addresses: c: char, i: int, r: real numbers
_SIGNATURES = {
    "syrk": "cciirrirri",
    "gemm": "cciiirririrri",
    "sygst": "iciririi",
    "sytrd": "cirirrrrii",
    "orgtr": "cirirrii",
}


@cache
def _routine(name: str) -> Callable[..., None] | None:
    """A routine of SciPy's library; None where it has another signature there (64-bit integers, say)."""
    capsule = cython_blas.__pyx_capi__.get(name, cython_lapack.__pyx_capi__.get(name))
    of_capsule = ctypes.pythonapi.PyCapsule_GetName
    of_capsule.restype, of_capsule.argtypes = ctypes.c_char_p, [ctypes.py_object]
    # the name of the capsule is the C signature
    if capsule is None or _kinds(of_capsule(capsule).decode(), name[0]) != _SIGNATURES[name[1:]]:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(_SIGNATURES[name[1:]]))
    return kind(pointer(capsule, of_capsule(capsule)))


def _kinds(signature: str, letter: str) -> str:
    """Kinds of the arguments of "void (char *, int *, …)", as `_SIGNATURES` has them."""
    letters = {"char *": "c", "int *": "i"}
    parts = signature.removeprefix("void (").removesuffix(")").split(", ")
    return "".join(letters.get(part, "r" if part.endswith(f"_{letter} *") else "?") for part in parts)


def _call(
    routine: Callable[..., None], *given: Array | bytes | int | ctypes._SimpleCData[int] | ctypes._SimpleCData[float]
) -> None:
    """Call a routine with the addresses of these."""
    pointers: list[object] = []
    for one in given:
        if isinstance(one, np.ndarray):
            pointers.append(one.ctypes.data)
        elif isinstance(one, bytes):
            pointers.append(one)
        else:
            pointers.append(ctypes.byref(ctypes.c_int(one) if isinstance(one, int) else one))
    routine(*pointers)


def syrk(block: Array, out: Array, *, accumulate: bool) -> None:
    """Upper triangle of out (p, p) ← BᵀB, or out + BᵀB; what is below the diagonal of `out` is not touched.

    B is the block (b, p), float32 or float64; both are of one dtype and C-contiguous.
    """
    b, p = block.shape
    if not (block.flags.c_contiguous and out.flags.c_contiguous and out.shape == (p, p) and out.dtype == block.dtype):
        raise ValueError(
            f"syrk: expected C-contiguous (b, p) and (p, p) of one dtype, found {block.shape}, {out.shape}"
        )
    if not b or not p:
        if not accumulate:
            out[...] = 0
        return
    letter, number = {"float32": ("s", ctypes.c_float), "float64": ("d", ctypes.c_double)}[block.dtype.name]
    rank_k, product = _routine(letter + "syrk"), _routine(letter + "gemm")
    if rank_k is None or product is None:
        upper = np.triu(block.T @ block)
        out[...] = out + upper if accumulate else upper
        return
    one, beta = number(1.0), number(1.0 if accumulate else 0.0)
    step = p if p <= WIDE else PANEL
    for i in range(0, p, step):
        j = min(i + step, p)
        panel = block[:, i:]
        # Fortran sees the C-ordered B as Bᵀ (p×b) and our upper triangle as its lower one
        _call(rank_k, b"L", b"N", j - i, b, one, panel, p, beta, out[i:, i:], p)
        if j < p:
            _call(product, b"N", b"T", p - j, j - i, b, one, block[:, j:], p, panel, p, beta, out[i:, j:], p)


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


def cholesky(A: Array, *, lower: bool) -> int:
    """Factor A = LLᵀ into its lower triangle, or A = LᵀL into its upper one; the other triangle is not touched.

    A is (m, m) float32 or float64, positive definite, in either order, and the same triangle of it is read. Returns 0,
    or the order of the leading minor that is not positive; then A is not to be used.
    """
    L = A if lower else A.T
    if len(L) <= WIDE:
        (potrf,) = linalg.get_lapack_funcs(("potrf",), (L,))
        own, low = (L, 1) if L.flags.f_contiguous else (L.T, 0)
        factor, info = potrf(own, lower=low, clean=0, overwrite_a=1)
        assert np.shares_memory(factor, L)
        return int(info)
    return _cholesky_by_panels(L)


def _cholesky_by_panels(L: Array) -> int:
    for i in range(0, len(L), PANEL):
        j = min(i + PANEL, len(L))
        panel = L[i:, i:j] - L[i:, :i] @ L[i:j, :i].T
        corner = np.asfortranarray(panel[: j - i])
        if info := cholesky(corner, lower=True):
            return i + info
        _write_lower(L[i:j, i:j], corner)
        below = panel[j - i :].T
        L[j:, i:j] = linalg.solve_triangular(corner, below, lower=True, check_finite=False, overwrite_b=True).T
    return 0


def times_transposed(A: Array) -> None:
    """LᵀL into the lower triangle of A (m, m), of L there; the upper one is not touched."""
    if len(A) <= WIDE:
        (lauum,) = linalg.get_lapack_funcs(("lauum",), (A,))
        own, lower = (A, 1) if A.flags.f_contiguous else (A.T, 0)
        product, info = lauum(own, lower=lower, overwrite_c=1)
        assert info == 0
        assert np.shares_memory(product, A)
        return
    for i in range(0, len(A), PANEL):
        j = min(i + PANEL, len(A))
        panel = A[i:, i:j].copy()
        panel[: j - i] = np.tril(panel[: j - i])
        A[i:j, :i] = panel.T @ A[i:, :i]
        _write_lower(A[i:j, i:j], panel.T @ panel)


def _write_lower(corner: Array, values: Array) -> None:
    places = np.tril_indices(len(corner))
    corner[places] = values[places]


def congruent(A: Array, lower: Array) -> Array:
    """L⁻¹AL⁻ᵀ in the lower triangle of A, which is overwritten; m³ flops.

    Both are (m, m) float64 in column order; their lower triangles are read, and the upper ones not touched.
    """
    m, routine = len(A), _routine("dsygst")
    for given in (A, lower):
        if not (given.flags.f_contiguous and given.dtype == np.float64):
            raise ValueError(f"expected float64 in column order, found {given.dtype} of strides {given.strides}")
    if routine is None:
        return np.asarray(linalg.lapack.dsygst(A, lower, itype=1, lower=1, overwrite_a=1)[0])
    if m:
        info = ctypes.c_int(0)
        _call(routine, 1, b"L", m, A, m, lower, m, info)
        assert info.value == 0, info.value
    return A


def tridiagonal(A: Array) -> tuple[Array, Array, Array]:
    """A = QTQᵀ: the diagonal (m,) of T, what is beside it (m − 1,), and Q (m, m) orthogonal, of A (m, m) float64.

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
        work, info = np.empty(_WORK_COLUMNS * m), ctypes.c_int(0)
        _call(sytrd, b"L", m, Q, m, d, e, tau, work, work.size, info)
        assert info.value == 0, info.value
        _call(orgtr, b"L", m, Q, m, tau, work, work.size, info)
        assert info.value == 0, info.value
    return d, e, Q


def add_rows(R: Array, rows: Array, *, triangular: bool = False) -> Array:
    """The triangle of a QR factorisation of R (q, q), upper, and of rows (k, q) below it, float64: LAPACK's tpqrt.

    Its diagonal is at least 0; neither is changed. `triangular`: the rows are a triangle too.
    """
    q = len(R)
    below = np.array(rows, order="F")
    out = linalg.lapack.dtpqrt(
        q if triangular else 0, min(_REFLECTED, q), np.array(R, order="F"), below, overwrite_a=1, overwrite_b=1
    )[0]
    return np.asarray(np.where(np.diagonal(out) < 0, -1.0, 1.0)[:, None] * np.triu(out))
