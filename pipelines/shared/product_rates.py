"""Rates of the matrix products of a sweep, for comparison with sweeps."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bigkernel.kernels.blas import syrk


def gemm_flops_per_second(size: int = 2048, seconds: float = 0.5) -> float:
    """Measure the rate of the single-threaded float32 matrix product of this machine."""
    a = np.ones((size, size), np.float32)
    out = np.empty_like(a)
    with threadpool_limits(limits=1, user_api="blas"):
        np.matmul(a, a, out=out)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            np.matmul(a, a, out=out)
            count += 1
        return 2.0 * size**3 * count / (time.perf_counter() - start)


def product_flops_per_second(
    rows: int, columns: int, landmarks: int, width: int, seconds: float = 1.0
) -> dict[str, float]:
    """Measure one thread's rates at the two float32 products of a sweep, by its calls and in its buffers.

    "block": rows (b, columns) by landmarks, into the first columns of a block (b, width); "gram": the rank-b update of
    a Gram matrix (width, width). Rates are per elapsed second and, with the suffix "_processor", per second of this
    thread's processor time. Each product is repeated for so many seconds, and done at least once.
    """
    rng = np.random.default_rng(0)
    x, Z = rng.random((rows, columns), np.float32), rng.random((columns, landmarks), np.float32)
    block, gram = np.zeros((rows, width), np.float32), np.zeros((width, width), np.float32)
    work: dict[str, tuple[float, Callable[[], Any]]] = {
        "block": (2.0 * rows * columns * landmarks, lambda: np.matmul(x, Z, out=block[:, :landmarks])),
        "gram": (float(rows) * width**2, lambda: syrk(block, gram, accumulate=True)),
    }
    rates = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for name, (flops, function) in work.items():
            function()
            clock, processor, count = time.perf_counter(), time.thread_time(), 0
            while not count or time.perf_counter() - clock < seconds:
                function()
                count += 1
            rates[name + "_processor"] = flops * count / (time.thread_time() - processor)
            rates[name] = flops * count / (time.perf_counter() - clock)
    return rates
