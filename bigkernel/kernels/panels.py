"""Triangular factors of wide matrices (m, m), in place and a panel of columns at a time.

OpenBLAS on several threads writes past its buffers where a rank-k update is too wide for them: on two, `syrk`, and
`potrf` and `lauum`, which are made of it, end the process at m = 16,000 in float64 (AVX-512; elsewhere and in float32
somewhat later). Panels are products of rectangles, which it does in pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

Array = NDArray[Any]
WIDE = 8192  # columns, beyond which it is panels
PANEL = 1024


def cholesky(A: Array, *, lower: bool) -> int:
    """Factor A = LLᵀ into its lower triangle, or A = LᵀL into its upper one; the other triangle is not touched.

    Parameters
    ----------
    A : (m, m) float32 or float64, positive definite, of which the same triangle is read; in either order

    Returns
    -------
    int
        0, or the order of the leading minor that is not positive; then A is not to be used.
    """
    L = A if lower else A.T
    if len(L) <= WIDE:
        return _factor(L)
    for i in range(0, len(L), PANEL):
        j = min(i + PANEL, len(L))
        panel = L[i:, i:j] - L[i:, :i] @ L[i:j, :i].T
        corner = np.asfortranarray(panel[: j - i])
        if info := _factor(corner):
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


def _factor(L: Array) -> int:
    """The same of a matrix whose order may be either, by LAPACK."""
    (potrf,) = linalg.get_lapack_funcs(("potrf",), (L,))
    own, lower = (L, 1) if L.flags.f_contiguous else (L.T, 0)
    factor, info = potrf(own, lower=lower, clean=0, overwrite_a=1)
    assert np.shares_memory(factor, L)
    return int(info)


def _write_lower(corner: Array, values: Array) -> None:
    places = np.tril_indices(len(corner))
    corner[places] = values[places]
