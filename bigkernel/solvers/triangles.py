"""Symmetric matrices (m, m) worked on in place, some columns at a time: an m×m of its own for each step is too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.kernels import blas
from bigkernel.kernels.blas import mirror

_STRIP = 256  # columns that are worked on at a time


@dataclass(frozen=True, eq=False)
class Upper:
    """A symmetric matrix K (m, m) above the diagonal of `array`, in column order, whose lower triangle is another's."""

    array: Array  # (m, m)
    diagonal: Array  # (m,) that of K

    def __len__(self) -> int:
        return len(self.diagonal)

    def __matmul__(self, C: Array) -> Array:
        """KC, (m, c)."""
        # the columns from the second on hold what is strictly above the diagonal, as a triangle of order m − 1
        above, out = self.array[:, 1:], np.asarray(self.diagonal[:, None] * C)
        if len(self) > 1:
            out[:-1] += times_triangle(above, C[1:], lower=False)
            out[1:] += times_triangle(above, C[:-1], lower=False, transposed=True)
        return out

    def part(self, some: Array) -> Array:
        """K of some rows and the same columns, (k, k)."""
        half = self.array[np.ix_(some, some)]
        out: Array = np.where(some[:, None] < some, half, half.T)
        out[np.diag_indices(len(some))] = self.diagonal[some]
        return out

    def whole(self) -> Array:
        """K in the place of `array`: what was in its lower triangle is lost."""
        mirror(self.array)
        self.array[np.diag_indices(len(self))] = self.diagonal
        return self.array


def clear_upper(A: Array) -> Array:
    """Write zeros above the diagonal of A, and return it."""
    for i in range(0, len(A), _STRIP):
        j = i + _STRIP
        A[:i, i:j] = 0
        A[i:j, i:j] = np.tril(A[i:j, i:j])
    return A


def add_outer(A: Array, left: Array, right: Array) -> None:
    """A ← A + Σ left·rightᵀ, over the columns of left and right (m, k)."""
    if A.flags.f_contiguous:
        A, left, right = A.T, right, left
    for i in range(0, len(A), _STRIP):
        A[i : i + _STRIP] += left[i : i + _STRIP] @ right.T


def congruence(lower: Array, G: Array, kept: Array) -> Array:
    """L⁻¹G'L⁻ᵀ (r, r) of L (r, r) in column order and the rows and columns `kept` (r,) of a symmetric G; m³ flops."""
    rows = G[np.ix_(kept, kept)].T  # in column order, as LAPACK wants it
    out = blas.congruent(rows, lower)
    mirror(out.T)  # its lower triangle is whole
    return np.asarray(out)


def regularised(G: Array, alpha: float) -> Array:
    """G + αI, a copy in column order, as LAPACK wants it (G is symmetric: its transpose costs nothing)."""
    regular = np.array(G if G.flags.f_contiguous else G.T, order="F")
    regular[np.diag_indices(len(G))] += alpha
    return regular


def times_triangle(A: Array, C: Array, *, lower: bool, transposed: bool = False) -> Array:
    """AC or AᵀC of one triangle of A (r, r) in column order, with the diagonal; the other one is not read. (r, c).

    Of an A (r + 1, r) the last row is not read.
    """
    if C.shape[1] == 1 and len(A) == len(C):
        (trmv,) = linalg.get_blas_funcs(("trmv",), (A, C))
        return np.asarray(trmv(A, C[:, 0], lower=int(lower), trans=int(transposed)))[:, None]
    (trmm,) = linalg.get_blas_funcs(("trmm",), (A, C))
    return np.asarray(trmm(1.0, A, C, lower=int(lower), trans_a=int(transposed)))


def solve_factored(factor: Array, C: Array, *, lower: bool) -> Array:
    """A⁻¹C (r, c), of the Cholesky factor L of A = LLᵀ, or R of A = RᵀR, in one triangle of `factor`."""
    if C.shape[1] != 1:
        return np.asarray(linalg.cho_solve((factor, lower), C, check_finite=False))
    # LAPACK's routine takes a single column as one of many, which is a third as fast
    for trans in "NT" if lower else "TN":
        C = linalg.solve_triangular(factor, C, lower=lower, trans=trans, check_finite=False)
    return np.asarray(C)


def solve_lower(factor: Array | None, right: Array) -> Array:
    """L⁻¹C of a lower triangular L (r, r), (r, c)."""
    return np.asarray(linalg.solve_triangular(factor, right, lower=True, check_finite=False))
