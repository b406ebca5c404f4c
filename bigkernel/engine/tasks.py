"""What runs on a worker: one segment of a sweep, one merge of two partials, and the plugin that pins BLAS.

The serial executor, the threads and Dask all run these same functions; that is why they give the same bits. A task
takes plain data, opens its store itself and returns plain data.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from distributed import Worker, WorkerPlugin, get_worker
from threadpoolctl import threadpool_info, threadpool_limits

from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import NumpySource, Source
from bigkernel.errors import ConfigError, DataError
from bigkernel.monitor.events import Pulse
from bigkernel.monitor.transport.messages import TOPIC
from bigkernel.statistics.moments import Accumulator, Statistic
from bigkernel.storage.atomic_write import LASTING
from bigkernel.storage.run_directory import Receipt, Run, attach
from bigkernel.streaming.chunk import Workspace
from bigkernel.streaming.merge_tree import ancestors_of, covered, leaf, merge_tree
from bigkernel.streaming.plan import Plan, Segment

_OVERTAKEN_SECONDS = 0.5
_PULSE_SECONDS = 0.5  # between what a running segment tells of itself
Partial = tuple[Accumulator | None, Receipt]  # the accumulator is None when it was published in a run


@dataclasses.dataclass(frozen=True)
class Job:
    """What every task of a sweep needs: the statistic (its large arrays in the run, where there is one).

    `retries` is how often a task tries again after an error of input or output; `heard` is told how far a running
    segment is, where somebody listens.
    """

    statistic: Any
    block_rows: int
    run: Run | None = None
    retries: int = 0
    heard: Callable[[Pulse], None] | None = None

    def open(self) -> Statistic:
        """The statistic with its arrays."""
        statistic: Statistic = attach(self.statistic, self.run.path) if self.run else self.statistic
        return statistic


@dataclasses.dataclass(frozen=True)
class ToScheduler:
    """Hears the segments of a sweep on their workers, and tells the scheduler."""

    token: str

    def __call__(self, pulse: Pulse) -> None:
        """Send a message; it leaves with the worker's next heartbeat of messages, and nobody waits for it."""
        message = {"kind": "pulse" if pulse.rows else "running", "sweep": self.token, **vars(pulse)}
        get_worker().log_event(TOPIC, {"messages": [message]})


class _Pulses:
    """Tells how far a segment is, now and then; stops for good if that fails."""

    def __init__(self, job: Job, node: str) -> None:
        self._heard, self._node, self._worker = job.heard, node, worker_name()
        self._next = 0.0

    def tell(self, rows: int) -> None:
        """So many rows are done."""
        if self._heard is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PULSE_SECONDS
        try:
            self._heard(Pulse(self._node, rows, self._worker, peak_bytes()))
        except Exception:  # nobody hears it then
            self._heard = None


def run_segment(job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...] = ()) -> Partial:
    """Accumulate one segment; with a run, publish it and return the receipt alone.

    A segment that is published already, or merged into one of `ancestors`, is not computed again.

    Raises
    ------
    DataError
        Rows that cannot be used; or input or output failed more than `job.retries` times.
    """
    return _patiently(
        job,
        f"rows {segment.start}:{segment.stop} could not be read, or their result not be written,",
        lambda reasons: _segment(job, rows, segment, ancestors, reasons),
    )


def _segment(job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...], reasons: tuple[str, ...]) -> Partial:
    node = leaf(segment.index)
    found = _published(job, node, ancestors)
    if found:
        return None, found
    starts = job.run.start(node, worker_name()) - len(reasons) if job.run else 1
    start = time.perf_counter()
    statistic, work = job.open(), Workspace()
    total, skipped = statistic.zero(), 0
    pulses = _Pulses(job, node)
    pulses.tell(0)
    for chunk, stop in zip(rows.chunks(segment.bounds, job.block_rows, work), segment.bounds[1:], strict=True):
        chunk, bad = rows.admit(chunk)
        skipped += bad
        statistic.update(total, chunk)
        pulses.tell(stop - segment.start)
    receipt = Receipt(
        node=node,
        start=segment.start,
        stop=segment.stop,
        seconds=work.seconds,
        elapsed=time.perf_counter() - start,
        bytes_read=(segment.stop - segment.start) * rows.stored_width * rows.dtype.itemsize,
        worker=worker_name(),
        peak_bytes=peak_bytes(),
        skipped=skipped,
        starts=starts,
        retries=reasons,
        ended=time.time(),
    )
    if job.run:
        return None, job.run.publish(receipt, total)
    return total, receipt


def _patiently(job: Job, what: str, task: Callable[[tuple[str, ...]], Partial]) -> Partial:
    """Run a task, again after an error of input or output; it is told why it was tried before."""
    reasons: tuple[str, ...] = ()
    while True:
        try:
            return task(reasons)
        except OSError as error:
            reasons += (str(error),)
            if len(reasons) > job.retries or error.errno in LASTING:
                raise DataError(f"{what} in {len(reasons)} attempts: {error}") from error
        time.sleep(min(2.0, 0.05 * 2 ** len(reasons)))


def run_held(
    job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...], names: tuple[str, ...], *values: Any
) -> Partial:
    """`run_segment` where a cluster holds some of the rows already: the values of "x" and columns, by `names`."""
    held: dict[str, Source] = {
        name: NumpySource(np.asarray(value), segment.start) for name, value in zip(names, values, strict=True)
    }
    x = held.pop("x", rows.x)
    return run_segment(job, dataclasses.replace(rows, x=x, columns={**rows.columns, **held}), segment, ancestors)


def _published(job: Job, node: str, ancestors: tuple[str, ...]) -> Receipt | None:
    """The receipt of a node that this run has published already, and that is whole or merged: a task may run twice."""
    receipt = job.run.receipt(node) if job.run else None
    if job.run is None or receipt is None:
        return None
    return receipt if any(job.run.receipt(name) for name in ancestors) else job.run.finished(node)


def merge(job: Job, node: str, a: Partial, b: Partial, ancestors: tuple[str, ...] = ()) -> Partial:
    """Merge two partials, in this order; with a run, publish the sum and remove the two."""
    what = f"the partial results of rows {a[1].start}:{b[1].stop} could not be read or merged"
    return _patiently(job, what, lambda reasons: _merge(job, node, a, b, ancestors, reasons))


def _merge(
    job: Job, node: str, a: Partial, b: Partial, ancestors: tuple[str, ...], reasons: tuple[str, ...]
) -> Partial:
    start = time.perf_counter()
    (left, ra), (right, rb) = a, b
    if job.run:
        found = _published(job, node, ancestors)
        if found:
            job.run.discard(ra.node, rb.node)  # whoever published it may have died before this
            return None, found
        try:
            left, right = job.run.partial(ra.node, ra.digest), job.run.partial(rb.node, rb.digest)
        except DataError:
            # a worker that was given up may still be at this very merge: it has removed or is replacing what we read
            time.sleep(_OVERTAKEN_SECONDS)
            found = _published(job, node, ancestors)
            if found:
                job.run.discard(ra.node, rb.node)
                return None, found
            left, right = job.run.partial(ra.node, ra.digest), job.run.partial(rb.node, rb.digest)
    assert left is not None
    assert right is not None
    total = job.statistic.merge(left, right)
    elapsed = time.perf_counter() - start
    receipt = Receipt(
        node=node,
        start=ra.start,
        stop=rb.stop,
        seconds={"merge": elapsed + merge_seconds(ra) + merge_seconds(rb)},
        elapsed=elapsed,
        worker=worker_name(),
        peak_bytes=peak_bytes(),
        retries=reasons,
        ended=time.time(),
    )
    if job.run:
        receipt = job.run.publish(receipt, total)
        job.run.discard(ra.node, rb.node)
        return None, receipt
    return total, receipt


def merge_seconds(receipt: Receipt) -> float:
    """Seconds of the merges in a node and below it, those in which their sums were published included."""
    return receipt.seconds["merge"] + receipt.seconds.get("publish", 0.0) if "merge" in receipt.seconds else 0.0


def receipt_of(partial: Partial) -> Receipt:
    """The receipt, which travels to the driver while the accumulator stays on the worker."""
    return dataclasses.replace(partial[1], peak_bytes=max(partial[1].peak_bytes, peak_bytes()))


def recover(job: Job, steps: Plan) -> tuple[dict[str, Receipt], list[Receipt], dict[str, str]]:
    """What a run holds already: usable nodes; receipts of the segments that they cover, in order; damage by node."""
    if job.run is None:
        return {}, [], {}
    merges, leaves = merge_tree(len(steps.segments)), [leaf(segment.index) for segment in steps.segments]
    (finished, damaged), above = job.run.usable(merges, leaves), ancestors_of(merges)
    receipts = []
    for segment in steps.segments:
        node = leaf(segment.index)
        if covered(node, finished, above):
            known = job.run.receipt(node) or Receipt(node, segment.start, segment.stop, resumed=True)
            receipts.append(known)
    return finished, receipts, damaged


def at_work(token: str, dask_worker: Worker) -> bool:
    """Whether a worker executes a task of the sweep with this token; for `Client.run`."""
    return any(
        token in str(task.key) for task in list(dask_worker.state.executing | dask_worker.state.long_running)
    ) or any(token in str(key) for key, task in list(dask_worker.state.tasks.items()) if task.state == "cancelled")


def worker_name() -> str:
    """Address of the Dask worker, or host and process."""
    try:
        return str(get_worker().address)
    except ValueError:
        return f"{socket.gethostname()}:{os.getpid()}"


def peak_bytes() -> int:
    """Highest resident memory of this process so far."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def state_of(dask_worker: Worker) -> dict[str, Any]:
    """What a worker says of itself when a job stalls: status, memory, tasks under way, free disk; for `Client.run`."""
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


def blas_threads() -> dict[str, int]:
    """Threads of every BLAS library loaded in this process."""
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


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
