"""The computing process: its name, memory, processors and BLAS threads, and the plugins of a worker.

Sweeps use one BLAS thread everywhere; solves use those of the driver. The last bits of a solution depend on their
number, so a run records it: a resumed run, on more or fewer processors, solves with as many threads as the process that
began it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import scipy.linalg
import scipy.spatial.distance
from distributed import Worker, WorkerPlugin, get_worker
from distributed.core import Status
from distributed.system import MEMORY_LIMIT
from threadpoolctl import threadpool_info, threadpool_limits

from bigkernel.data.atomic_write import clear_orphans
from bigkernel.data.run_directory import read_sealed, write_sealed
from bigkernel.errors import ConfigError, DifferentBlasWarning

WORTH_BYTES = 2**22  # bytes of freed memory that are worth returning
FIRST_TASK_BYTES = 8_000_000  # bytes that a process adds for its first task: modules, reading threads
TASK_BYTES = 12_000_000  # bytes of every task: buffers of BLAS, and freed memory that is kept
DRIVER = "driver.json"  # file of a run: BLAS of the process that began it


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_name() -> str:
    """Return the address of the Dask worker, or host and process."""
    try:
        return str(get_worker().address)
    except ValueError:
        return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True)
class Resident:
    """Resident memory of a process, in bytes: `now`, and its `peak` so far."""

    now: int
    peak: int

    def base(self, tasks: int) -> int:
        """Return the memory of the process without the rows, buffers and sums of so many tasks."""
        return self.now + FIRST_TASK_BYTES + tasks * TASK_BYTES


def resident(*, trim: bool = True) -> Resident:
    """Measure this process; with `trim` after releasing freed memory."""
    if trim:
        give_back()
    return Resident(psutil.Process().memory_info().rss, peak_bytes())


def free_memory() -> int:
    """Return the memory that this process may still take, within the limit of its machine or container."""
    left = MEMORY_LIMIT - psutil.Process().memory_info().rss
    return max(0, int(min(psutil.virtual_memory().available, left)))


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far."""
    with suppress(OSError):  # on Linux; the system's value may there be the parent's, if that was larger
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def give_back(freed_bytes: int = WORTH_BYTES) -> None:
    """Return freed memory from the allocator to the system, if it is that of the GNU library and worth it.

    This visits all free memory, about 15 ms in a process that has run for a while.
    """
    if freed_bytes >= WORTH_BYTES:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def blas_threads() -> dict[str, int]:
    """Return the threads of every BLAS library loaded in this process."""
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@dataclass(frozen=True)
class DriverBlas:
    """BLAS configuration of a process that solves."""

    threads: int  # the largest of its libraries; 0 if threadpoolctl knows none
    libraries: str  # their names, versions and target processors

    def __str__(self) -> str:
        return f"{self.threads} BLAS threads ({self.libraries or 'an unknown library'})"


def driver_blas() -> DriverBlas:
    """Return the BLAS configuration of this process, for NumPy's and SciPy's libraries."""
    libraries = {
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip()
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    }
    return DriverBlas(max(blas_threads().values(), default=0), ", ".join(sorted(libraries)))


@contextmanager
def solving_as_begun(run: Path) -> Iterator[tuple[DriverBlas, DriverBlas]]:
    """Solve inside the block with the number of BLAS threads that began the run; a new run records it.

    Yields the recorded BLAS and that of this process before; warns (`DifferentBlasWarning`) if the number is not
    possible here, or the library is another one.
    """
    path, before = run / DRIVER, driver_blas()
    clear_orphans(path)
    begun = _recorded_blas(path)
    if begun is None:
        begun = before
        write_sealed(path, asdict(begun))
    with threadpool_limits(limits=begun.threads or None, user_api="blas"):
        now = driver_blas()
        if now != begun:
            warnings.warn(
                f"{run}: started with {begun} and resumed with {now}: coefficients may differ in the last bits; "
                "resume on the original machine, or start a new run",
                DifferentBlasWarning,
                stacklevel=4,
            )
        yield begun, before


def _recorded_blas(path: Path) -> DriverBlas | None:
    """Return what a run has recorded; None if nothing."""
    if not path.exists():
        return None
    try:
        recorded = read_sealed(path)
        return DriverBlas(int(recorded["threads"]), str(recorded["libraries"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"{path} cannot be read ({error}): the number of BLAS threads at the start of the run is unknown, and "
            "coefficients may differ in the last bits; recording the threads of this process",
            DifferentBlasWarning,
            stacklevel=5,
        )
        return None


class Undisturbed(WorkerPlugin):
    """Ignores Ctrl-C, which reaches every process of a terminal, in workers of a local cluster.

    The driver ends them after their running tasks are published; they then end silently and soon.
    """

    name = "bigkernel-undisturbed"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Ignore SIGINT in a worker's own process."""
        if worker.nanny and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def teardown(self, worker: Worker) -> None:
        """End the log of a worker's own process that closes, and collect no garbage when it ends."""
        if worker.nanny and worker.status == Status.closing:
            logging.disable()  # a heartbeat on its way finds its connection closed, which Dask logs as two errors
            gc.freeze()


class OneBlasThread(WorkerPlugin):
    """Limits BLAS to one thread in the worker's process, and verifies it: parallelism is over chunks.

    Processes started by a nanny get it from the environment; workers in another process, and workers without a nanny,
    would use all cores for each task.
    """

    name = "bigkernel-one-blas-thread"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Set one thread if needed, and reject the worker if that has no effect."""
        np.ones((2, 2)) @ np.ones((2, 2))
        scipy.linalg.cholesky(np.eye(2))  # both libraries are loaded now, so both are found
        self._limits = None
        if any(threads != 1 for threads in blas_threads().values()):
            self._limits = threadpool_limits(limits=1, user_api="blas")
        wrong = {path: threads for path, threads in blas_threads().items() if threads != 1}
        if wrong:
            raise ConfigError(f"{worker.address}: expected one BLAS thread, found {wrong}; set OPENBLAS_NUM_THREADS=1")

    def teardown(self, worker: Worker) -> None:
        """Restore the threads of a process that is not ours."""
        if self._limits is not None:
            self._limits.restore_original_limits()
