"""BLAS and LAPACK beyond SciPy's wrappers: rank-k updates, factors in place, and wide matrices by panels.

SciPy's wrappers hold the interpreter lock while they compute, so that threads run one after the other. Routines that
are called through the pointers of `scipy.linalg.cython_blas` and `cython_lapack` release it; and `syrk` can add to its
output, which `numpy.matmul` cannot. These functions work in place on the arrays that they are given.

OpenBLAS with several threads writes past its buffers in rank-k updates that are too wide: with two, `syrk`, and `potrf`
and `lauum`, which call it, crash at m = 16,000 in float64 (AVX-512; elsewhere and in float32 somewhat later). Matrices
wider than `WIDE` are processed by panels of columns with rectangular products instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import linalg
from scipy.linalg import cython_blas, cython_lapack

from bigkernel.arrays import Array
from bigkernel.kernels import on_device
from bigkernel.streaming.devices import HOST, NUMPY

WIDE = 8192  # most columns that are processed without panels
PANEL = 1024
DEVICE_PANELS = 8  # of a product on a device, 9/16 of the operations of a whole one
_STRIP = 128  # rows of triangles that stay in cache
_WORK_COLUMNS = 64  # of LAPACK's workspace, enough for the panels of any build
_REFLECTED = 32  # block size of the QR factorisation: the fastest of 16 to 64 for q = 200 to 2,000
# arguments of routines, all passed by address: c: char, i: int, r: real numbers
_SIGNATURES = {
    "syrk": "cciirrirri",
    "gemm": "cciiirririrri",
    "sygst": "iciririi",
    "sytrd": "cirirrrrii",
    "orgtr": "cirirrii",
}


@cache
def _routine(name: str) -> Callable[..., None] | None:
    """Return a routine of SciPy's library; None if its signature differs (64-bit integers, say)."""
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
    """Return the kinds of the arguments of "void (char *, int *, …)" in the form of `_SIGNATURES`."""
    letters = {"char *": "c", "int *": "i"}
    types = signature.removeprefix("void (").removesuffix(")").split(", ")
    return "".join(letters.get(one, "r" if one.endswith(f"_{letter} *") else "?") for one in types)


def _call(
    routine: Callable[..., None], *given: Array | bytes | int | ctypes._SimpleCData[int] | ctypes._SimpleCData[float]
) -> None:
    """Call a routine with the addresses of the arguments."""
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
    """Write the first r rows of BᵀB, or add them, to out (r, p); entries below the diagonal are not changed.

    B is the block (b, p), float32 or float64; both are of one dtype and C-contiguous. On a device, whose library has no
    rank-k update, it is written by panels of columns, with the corners below the diagonal that are on it.
    """
    (b, p), r = block.shape, out.shape[0]
    if not isinstance(block, NUMPY):
        if not accumulate:
            out[...] = 0
        for i in range(0, r, step := -(-r // DEVICE_PANELS)):
            out[i : min(i + step, r), i:] += block[:, i : min(i + step, r)].T @ block[:, i:]
        return
    if not (
        block.flags.c_contiguous and out.flags.c_contiguous and r <= p == out.shape[1] and out.dtype == block.dtype
    ):
        raise ValueError(
            f"syrk: expected C-contiguous (b, p) and (r, p), r ≤ p, of one dtype, found {block.shape}, {out.shape}"
        )
    if not b or not r:
        if not accumulate:
            out[...] = 0
        return
    letter, number = {"float32": ("s", ctypes.c_float), "float64": ("d", ctypes.c_double)}[block.dtype.name]
    rank_k, product = _routine(letter + "syrk"), _routine(letter + "gemm")
    if rank_k is None or product is None:
        product_of = np.triu(block[:, :r].T @ block)
        out[...] = out + product_of if accumulate else product_of
        return
    one, beta = number(1.0), number(1.0 if accumulate else 0.0)
    step = r if r <= WIDE else PANEL
    for i in range(0, r, step):
        j = min(i + step, r)
        panel = block[:, i:]
        # for Fortran the C-ordered B is Bᵀ (p×b), and our upper triangle the lower one
        _call(rank_k, b"L", b"N", j - i, b, one, panel, p, beta, out[i:, i:], p)
        if j < p:
            _call(product, b"N", b"T", p - j, j - i, b, one, block[:, j:], p, panel, p, beta, out[i:, j:], p)


def add_upper(total: Array, upper: Array) -> None:
    """Add the upper triangle of `upper` to that of total (p, p), in place."""
    if not isinstance(total, NUMPY):
        total += upper  # zeros below the corners on the diagonal
        return
    p = len(total)
    for i in range(0, p, _STRIP):
        j = min(i + _STRIP, p)
        total[i:j, i:j] += np.triu(upper[i:j, i:j])  # below its diagonal is undefined
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
    """Factor A = LLᵀ into its lower triangle, or A = LᵀL into its upper one; the other triangle is not changed.

    A is (m, m) float32 or float64, positive definite, in either order; the same triangle of it is read. Return 0, or
    the order of the leading minor that is not positive; A is undefined then.
    """
    L = A if lower else A.T
    if on_device.device_for(len(L)) is not HOST:
        factor = on_device.cholesky(L)
        if factor is not None:
            write_lower(L, factor)
        return int(factor is None)
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
    """Replace L in the lower triangle of A (m, m) by LᵀL; the upper triangle is not changed."""
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


def write_lower(A: Array, values: Array) -> None:
    """Write the lower triangle of `values` into that of A, (m, m) each."""
    for i in range(0, len(A), PANEL):
        j = min(i + PANEL, len(A))
        A[j:, i:j] = values[j:, i:j]
        _write_lower(A[i:j, i:j], values[i:j, i:j])


def _write_lower(corner: Array, values: Array) -> None:
    places = np.tril_indices(len(corner))
    corner[places] = values[places]


def congruent(A: Array, lower: Array) -> Array:
    """Replace the lower triangle of A by that of L⁻¹AL⁻ᵀ; m³ flops.

    Both are (m, m) float64 in column order; only their lower triangles are read and written.
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
    """Factor A = QTQᵀ, (m, m) float64: return the diagonal (m,) and off-diagonal (m − 1,) of T, and Q (m, m).

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
    """Return the R factor of R (q, q), upper triangular, stacked on rows (k, q), float64, by LAPACK's tpqrt.

    Its diagonal is non-negative; the inputs are not changed. `triangular`: the rows are upper triangular too.
    """
    q = len(R)
    below = np.array(rows, order="F")
    out = linalg.lapack.dtpqrt(
        q if triangular else 0, min(_REFLECTED, q), np.array(R, order="F"), below, overwrite_a=1, overwrite_b=1
    )[0]
    return np.asarray(np.where(np.diagonal(out) < 0, -1.0, 1.0)[:, None] * np.triu(out))
