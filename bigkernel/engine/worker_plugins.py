"""Plugins of the workers: one BLAS thread a process, and Ctrl-C left to the driver."""

from __future__ import annotations

import signal
import threading

import numpy as np
import scipy.linalg
import scipy.spatial.distance  # kernels load it where they need it; a worker before its memory is looked at
from distributed import Worker, WorkerPlugin
from threadpoolctl import threadpool_limits

from bigkernel.engine.telemetry import blas_threads
from bigkernel.errors import ConfigError


class Undisturbed(WorkerPlugin):
    """Ctrl-C reaches every process of a terminal: workers of a local cluster leave it to the driver.

    What they are at is then still published before the driver ends them.
    """

    name = "bigkernel-undisturbed"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Ignore SIGINT in a worker's own process."""
        if worker.nanny and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class OneBlasThread(WorkerPlugin):
    """Pins BLAS to one thread in the worker's process, and asserts it: parallelism is over chunks.

    Processes that a nanny starts get it from the environment; workers inside another process, and workers started
    without a nanny, would take all cores for each task.
    """

    name = "bigkernel-one-blas-thread"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Set one thread where it is not so, and refuse the worker if that has no effect."""
        np.ones((2, 2)) @ np.ones((2, 2))
        scipy.linalg.cholesky(np.eye(2))  # both libraries are loaded now, so that both are seen
        self._limits = None
        if any(threads != 1 for threads in blas_threads().values()):
            self._limits = threadpool_limits(limits=1, user_api="blas")
        wrong = {path: threads for path, threads in blas_threads().items() if threads != 1}
        if wrong:
            raise ConfigError(f"{worker.address}: BLAS keeps more than one thread: {wrong}; set OPENBLAS_NUM_THREADS=1")

    def teardown(self, worker: Worker) -> None:
        """Give a process that is not ours its threads back."""
        if self._limits is not None:
            self._limits.restore_original_limits()
