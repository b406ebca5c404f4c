"""One thread of BLAS where blocks are computed side by side, or are too small to share.

NumPy alone is needed, as model files predict with nothing else; BLAS then has its own threads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

_lock = Lock()
_blocks: list[Any] = []  # the limit that the first of the running blocks has set, and None for each other


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread in a `with` block, so that workers and the driver compute the same bits.

    The limit ends with the last of several blocks, in whichever threads they run.
    """
    with _lock:
        pools = None if _blocks else _pools("scipy.linalg" in sys.modules)
        _blocks.append(None if pools is None else pools.limit(limits=1))
    try:
        yield
    finally:
        with _lock:
            if (limit := _blocks.pop()) is not None:
                limit.restore_original_limits()


def blas_threads() -> int:
    """Return how many threads BLAS has now; 1 if it cannot be limited."""
    pools = _pools("scipy.linalg" in sys.modules)
    return 1 if pools is None else max((pool["num_threads"] for pool in pools.info()), default=1)


@cache
def _pools(with_scipy: bool) -> Any:
    """Return the BLAS libraries that are loaded: finding them takes 6 ms, and SciPy brings another."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")
