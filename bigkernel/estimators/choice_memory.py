"""Memory that a choice of landmarks by the kernel takes in the driver, compared with what is free before it begins.

Bytes for m landmarks among n rows of d features, n at least 2m, beside 16nd for the rows and strips of a fixed size:

    "rpcholesky"   8nm, the factor F of K̂ = FFᵀ: 16m² where n = 2m; half of that in float32
    "leverage"     8m², the matrix of a dictionary of at most m rows (0.7m: 4m²)

"k-means" takes no m×m matrix, and "uniform" takes the landmarks alone. How many rows are looked at does not depend on
what is free: the landmarks are the same on every machine on which they can be chosen.
"""

from __future__ import annotations

import psutil
from distributed.system import MEMORY_LIMIT

from bigkernel.errors import PlanTooLarge

STRIPS_BYTES = 2**28  # of rows and kernel values that are worked on at a time


def free_bytes() -> int:
    """Memory that this process may still take, within what its machine or its container has."""
    left = MEMORY_LIMIT - psutil.Process().memory_info().rss
    return max(0, int(min(psutil.virtual_memory().available, left)))


def choice_bytes(method: str, n_rows: int, n_features: int, count: int, itemsize: int) -> int:
    """Most bytes of a choice by the kernel among n rows; `itemsize` of the factor's numbers."""
    matrix = 8 * count**2 if method == "leverage" else itemsize * n_rows * count
    return matrix + 16 * n_rows * n_features + STRIPS_BYTES


def require_room(method: str, n_rows: int, n_features: int, count: int, itemsize: int) -> None:
    """Refuse a choice that takes more memory than is free.

    Raises
    ------
    PlanTooLarge
        Says what is needed and what there is.
    """
    needed, free = choice_bytes(method, n_rows, n_features, count, itemsize), free_bytes()
    if needed <= free:
        return
    raise PlanTooLarge(
        f"landmarks={method!r}: choosing {count:,} landmarks among {n_rows:,} rows takes {needed / 1e9:,.1f} GB in "
        f"this process, and {free / 1e9:,.1f} GB are free; take fewer, or 'uniform'"
    )
