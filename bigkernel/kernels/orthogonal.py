"""The triangle R of a QR factorisation, to which rows and other triangles are added: LAPACK's tpqrt.

Shapes: k rows of q columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

Array = NDArray[Any]
_PANEL = 32  # columns that are reflected together: the fastest of 16 to 64 for q = 200 to 2,000


def add_rows(R: Array, rows: Array, *, triangular: bool = False) -> Array:
    """The triangle of R (q, q) and rows (k, q) below it, float64, upper, its diagonal at least 0.

    Neither is changed. `triangular`: the rows are a triangle too.
    """
    q = len(R)
    below = np.array(rows, order="F")
    out = lapack.dtpqrt(
        q if triangular else 0, min(_PANEL, q), np.array(R, order="F"), below, overwrite_a=1, overwrite_b=1
    )[0]
    return np.asarray(np.where(np.diagonal(out) < 0, -1.0, 1.0)[:, None] * np.triu(out))
