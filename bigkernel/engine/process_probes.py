"""Probes of a process: its name, memory and BLAS threads; and what a Dask worker says of its state."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from distributed import Worker, get_worker
from threadpoolctl import threadpool_info


def worker_name() -> str:
    """Address of the Dask worker, or host and process."""
    try:
        return str(get_worker().address)
    except ValueError:
        return f"{socket.gethostname()}:{os.getpid()}"


WORTH_BYTES = 2**22  # of freed memory, from which on it is worth the time to give it back
FIRST_TASK_BYTES = 8_000_000  # of a process for its first task: modules, threads that read
TASK_BYTES = 12_000_000  # of every task: buffers that BLAS keeps whatever it multiplies, and freed memory that is kept


@dataclass(frozen=True)
class Resident:
    """Resident memory of a process, in bytes: `now`, and its `peak` so far."""

    now: int
    peak: int

    def base(self, tasks: int) -> int:
        """What the process holds beside the rows, buffers and sums of so many tasks."""
        return self.now + FIRST_TASK_BYTES + tasks * TASK_BYTES


def give_back(freed_bytes: int = WORTH_BYTES) -> None:
    """Have the allocator give freed memory back to the system, where it is that of the GNU library and is worth it.

    It looks at all that is free, which takes some 15 ms of a process that has run for a while.
    """
    if freed_bytes < WORTH_BYTES:
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident(*, trim: bool = True) -> Resident:
    """The resident memory of this process; with `trim` without what its allocator keeps of freed memory."""
    if trim:
        give_back()
    return Resident(_status_bytes("VmRSS") or psutil.Process().memory_info().rss, peak_bytes())


def peak_bytes() -> int:
    """Highest resident memory of this process so far."""
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(name: str) -> int:
    """A size that Linux tells of this process; 0 elsewhere."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def blas_threads() -> dict[str, int]:
    """Threads of every BLAS library loaded in this process."""
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def at_work(token: str, dask_worker: Worker) -> bool:
    """Tell if a worker executes a task of the sweep with this token; for `Client.run`."""
    return any(
        token in str(task.key) for task in list(dask_worker.state.executing | dask_worker.state.long_running)
    ) or any(token in str(key) for key, task in list(dask_worker.state.tasks.items()) if task.state == "cancelled")


def is_released() -> bool:
    """Tell if nobody waits any more for the Dask task that this thread runs; False outside of one."""
    try:
        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except ValueError:
        return False
    return task is None or task.state in ("cancelled", "released", "forgotten")


def state_of(dask_worker: Worker) -> dict[str, Any]:
    """Status, memory, tasks under way and free disk of a worker, told when a job stalls; for `Client.run`."""
    free = shutil.disk_usage(dask_worker.local_directory).free
    return {
        "status": dask_worker.status.name,
        "memory": dask_worker.monitor.get_process_memory(),
        "limit": dask_worker.memory_manager.memory_limit,
        "tasks": [str(task.key) for task in list(dask_worker.state.executing)],
        "free_disk": free,
    }


def last_words(dask_worker: Any) -> str:
    """The last lines that a nanny logged, newest first; for `Client.run` with `nanny=True`."""
    return " | ".join(text for _, text in dask_worker.get_logs(n=3))
