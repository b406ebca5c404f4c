"""Which rows are sparse: SciPy's csr_array, told without SciPy, and rows that are better kept so."""

from __future__ import annotations

from typing import Any

SPARSE_SHARE, SPARSE_FEATURES = 0.25, 64


def is_sparse(x: Any) -> bool:
    """Tell SciPy's csr_array from an array."""
    return hasattr(x, "indptr")


def worthwhile(share: float, n_features: int) -> bool:
    """Tell if rows of which `share` of the values are not 0 are better sparse: at most half the bytes, and some rows.

    Examples
    --------
    >>> worthwhile(0.001, 50_000), worthwhile(0.19, 784), worthwhile(0.6, 784), worthwhile(0.1, 10)
    (True, True, False, False)
    """
    return share <= SPARSE_SHARE and n_features >= SPARSE_FEATURES


def parts_of(rows: Any) -> Any:
    """The arrays that sparse rows are; dense ones as they are."""
    return (rows.data, rows.indices, rows.indptr) if is_sparse(rows) else rows
