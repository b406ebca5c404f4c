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
        _blocks.append(pools and pools.limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            if (limit := _blocks.pop()) is not None:
                limit.restore_original_limits()


@cache
def _pools(with_scipy: bool) -> Any:
    """Return the libraries that are loaded: finding them takes 6 ms, and SciPy brings another."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
