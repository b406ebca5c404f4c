"""Timed tasks: each function does what a task of a fit does, with the same code, and returns seconds.

Workers run all but `solve_seconds` and `core_seconds`, which are of the driver. Where a processor does the work, its
time is taken: what other processes had of it meanwhile is not ours. What waits for disk or network is timed by the
clock. Rows are 8-bit pixels, four in five zero, brought to unit norm, with one of ten classes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bigkernel.data.run_directory import Receipt, Run
from bigkernel.engine.rows import Rows
from bigkernel.kernels.blas import syrk
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import KERNELS, Gaussian
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import nystrom_ridge, whiten
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets, add, uncentred
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.row_maps import UnitNorm

Array = NDArray[Any]
CLASSES = 10
SIGMA = 0.7071  # of rows of unit norm


class _Processor(Workspace):
    """A workspace whose stages are of the processor's time that this thread has had."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """See `Workspace`."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - start


def gemm_flops_per_second(size: int = 2048, seconds: float = 0.5) -> float:
    """Rate of the single-threaded float32 matrix product of this machine."""
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
    """Rates of one thread at the two float32 products of a sweep, by the calls and in the buffers of a sweep.

    "block": rows (b, columns) by landmarks, into the first columns of a block (b, width); "gram": the rank-b update of
    a Gram matrix (width, width). By the clock; with "_processor" behind in the time that this thread had. Each is
    repeated for so many seconds, and done once at least.
    """
    rng = np.random.default_rng(0)
    x, Z = rng.random((rows, columns), np.float32), rng.random((columns, landmarks), np.float32)
    block, gram = np.zeros((rows, width), np.float32), np.zeros((width, width), np.float32)
    work: dict[str, tuple[float, Callable[[], Any]]] = {
        "block": (2.0 * rows * columns * landmarks, lambda: np.matmul(x, Z, out=block[:, :landmarks])),
        "gram": (float(rows) * width**2, lambda: syrk(block, gram, accumulate=True)),
    }
    found = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for name, (flops, function) in work.items():
            function()
            clock, processor, count = time.perf_counter(), time.thread_time(), 0
            while not count or time.perf_counter() - clock < seconds:
                function()
                count += 1
            found[name + "_processor"] = flops * count / (time.thread_time() - processor)
            found[name] = flops * count / (time.perf_counter() - clock)
    return found


@cache
def pixels(n_rows: int, n_features: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows (n, d) that compress about as digits do."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n_rows, n_features), dtype=np.uint8)
    x[rng.random(x.shape) < 0.8] = 0
    return x


@cache
def landmark_map(width: int, n_features: int, dtype: str, name: str = "gaussian") -> LandmarkMap:
    """Landmarks (m, d) of unit norm for the kernel `name`, about their centre."""
    Z = pixels(width, n_features, 1).astype(np.float64) + 1
    Z /= np.linalg.norm(Z, axis=1)[:, None]
    kernel, kind = Gaussian(SIGMA) if name == "gaussian" else KERNELS[name]().resolve(Z), np.dtype(dtype)
    return LandmarkMap(kernel, Z, kind, centre_of(kernel, Z, kind))


def update_seconds(width: int, n_features: int, dtype: str, block_rows: int) -> dict[str, float]:
    """Time a block of rows in the moments of landmarks, by stage; "fresh" is what memory cost that was new to it.

    "clock" is how long it took, of which the stages are the processor's time.
    """
    statistic = MomentStatistic(landmark_map(width, n_features, dtype), Targets(CLASSES, np.arange(CLASSES)))
    work, total = _Processor(), statistic.zero()
    chunk = _chunk(n_features, block_rows, work)
    start = time.perf_counter()
    statistic.update(total, chunk)
    first = sum(work.seconds.values())
    work.seconds.clear()
    statistic.update(total, chunk)
    clock = time.perf_counter() - start
    second = sum(work.seconds.values())
    return {**work.seconds, "fresh": first - second, "clock": clock, "processor": first + second}


def block_seconds(width: int, n_features: int, dtype: str, block_rows: int, name: str = "gaussian") -> dict[str, float]:
    """Time a block of kernel values, by stage."""
    features, chunk = landmark_map(width, n_features, dtype, name), _chunk(n_features, block_rows, _Processor())
    features.block(chunk, slice(0, block_rows))
    chunk.work.seconds.clear()
    features.block(chunk, slice(0, block_rows))
    return dict(chunk.work.seconds)


def _chunk(n_features: int, rows: int, work: Workspace) -> Chunk:
    y = np.arange(rows) % CLASSES
    return Chunk(pixels(rows, n_features), 0, y=y, row_maps=(UnitNorm(),), block_rows=rows, work=work)


def forget() -> None:
    """Let go of what the timed functions keep from call to call."""
    for kept in (pixels, landmark_map):
        kept.cache_clear()


def prepare_seconds(width: int, n_features: int) -> float:
    """Time preparing landmarks for blocks in float32."""
    features = landmark_map(width, n_features, "float32")
    return _worked(lambda: features.kernel.bind(features.landmarks, np.float32))


def read_seconds(rows: Rows, start: int, stop: int, times: int) -> float:
    """Time reading rows start … stop once, the first reading left out."""
    rows.read(start, stop)
    return _worked(lambda: [rows.read(start, stop) for _ in range(times)]) / times


def merge_seconds(size: int) -> float:
    """Time adding two partial results of so many bytes, into memory that is new to the process."""
    a, b = {"G": np.ones(size // 8)}, {"G": np.ones(size // 8)}
    return _worked(lambda: add(a, b))


def publish_seconds(directory: str, name: str, size: int) -> tuple[float, float]:
    """Time publishing a partial result of so many bytes in a run, and of reading it back."""
    run = Run(directory)
    for part in ("partials", "receipts"):
        Path(directory, part).mkdir(parents=True, exist_ok=True)
    side = max(1, round((size / 8) ** 0.5))
    partial = {"G": np.random.default_rng(0).normal(size=(1, side, side))}
    start = time.perf_counter()
    receipt = run.publish(Receipt(name, 0, 1), partial)
    published = time.perf_counter()
    run.partial(name, receipt.digest)
    return published - start, time.perf_counter() - published


def disk_seconds(directory: str, size: int) -> float:
    """Time reading a file of so many bytes that the system does not hold in memory."""
    path = Path(directory, "read")
    path.write_bytes(np.random.default_rng(0).bytes(size))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        def read() -> None:
            while os.read(descriptor, 2**20):
                pass

        return _timed(read)
    finally:
        os.close(descriptor)
        path.unlink()


def solve_seconds(width: int) -> float:
    """Time kernel ridge regression from moments and core (m, m), after the sweep."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(width, 16))
    core, n = Gaussian(2.0)(Z), 1e5
    total = {
        "rows": np.full(1, n),
        "n": np.full(1, n),
        "G": 100 * (core + np.eye(width))[None],
        "C": rng.normal(size=(1, width, CLASSES)),
        "s": rng.normal(size=(1, width)),
        "t": np.full((1, CLASSES), n / CLASSES),
        "q": np.full((1, CLASSES), n),
    }

    def solve() -> None:
        certificates, shift = Certificates(), np.full(width, 1e-3)
        moments = Moments.of(uncentred(total, shift))
        whitening = whiten(core, eps=float(np.finfo(np.float32).eps), kernel="gaussian", certificates=certificates)
        nystrom_ridge(moments, whitening, 1.0, certificates=certificates)

    return _worked(solve)


def core_seconds(width: int, n_features: int) -> float:
    """Time k(Z, Z)."""
    Z = np.random.default_rng(0).normal(size=(width, n_features))
    kernel = Gaussian(float(n_features))
    kernel(Z[:16])
    return _worked(lambda: kernel(Z))


def ones(size: int) -> Array:
    """So many bytes, to be sent."""
    return np.ones(size // 8)


def length(values: Array) -> int:
    """Receives `ones`."""
    return len(values)


def _timed(function: Callable[[], Any]) -> float:
    """By the clock."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _worked(function: Callable[[], Any]) -> float:
    """By the clock, or by the processors' time where that is less: then others had them meanwhile."""
    start = time.process_time()
    clock = _timed(function)
    return min(clock, time.process_time() - start)
