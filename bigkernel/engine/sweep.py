"""The one engine: `sweep` streams rows through a statistic, over segments, and merges the partials in a fixed tree.

Executors: serial (the specification), threads (rows in this process or in a store, no cluster) and Dask (a client).
Same plan ⇒ same bits, whichever runs it, whatever the number of workers, deaths and resumes.
"""

from __future__ import annotations

import functools
import math
import os
import queue
import time
import uuid
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import scipy
import zarr
from distributed import Client
from distributed.comm import get_address_host
from threadpoolctl import threadpool_limits

import bigkernel
from bigkernel.config import Settings, settings
from bigkernel.engine.context import Executor, choose, in_force, is_loopback, processors, report
from bigkernel.engine.dask_executor import on_cluster, tell_of
from bigkernel.engine.preflight import check_cluster, require_disk
from bigkernel.engine.rows import Rows
from bigkernel.engine.tasks import Job, Partial, ToScheduler, merge, merge_seconds, recover, run_segment
from bigkernel.errors import Stalled
from bigkernel.forecast.calibration import rate_of
from bigkernel.images.image_sources import making
from bigkernel.monitor.events import (
    Event,
    Incident,
    Merged,
    Pulse,
    SegmentDone,
    SweepEnded,
    SweepStarted,
)
from bigkernel.monitor.scope import (
    Scope,
    emit,
    ending,
    observe,
    part_of_job,
)
from bigkernel.monitor.sinks import send_to_scheduler, write_journal
from bigkernel.statistics.moments import Accumulator, Statistic
from bigkernel.storage.fingerprint import described, fingerprint
from bigkernel.storage.run_directory import Receipt, Run, detach
from bigkernel.streaming.chunk import map_costs
from bigkernel.streaming.merge_tree import ancestors_of, covered, leaf, merge_tree
from bigkernel.streaming.plan import Plan, Segment, plan

_PULSE_SECONDS = 0.5  # between two looks at how far running segments are
_COUNTED = {"retries": "retry", "lost_workers": "worker", "repeated_segments": "repeat", "damaged_partials": "damage"}


@dataclass(frozen=True)
class Swept:
    """What a sweep gives.

    Attributes
    ----------
    total : the accumulator of all rows
    plan : what was planned
    receipts : one a segment, in order
    seconds : from the first task to the merged total
    executor : "serial", "threads" or "dask"
    incidents : what went wrong meanwhile
    merge_seconds : of all merges together
    """

    total: Accumulator
    plan: Plan
    receipts: tuple[Receipt, ...]
    seconds: float
    executor: str
    incidents: tuple[Incident, ...] = ()
    merge_seconds: float = 0.0

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of all tasks by stage."""
        stages = {"merge": self.merge_seconds} if self.merge_seconds else {}
        for receipt in self.receipts:
            for name, seconds in receipt.seconds.items():
                stages[name] = stages.get(name, 0.0) + seconds
        return stages

    @property
    def flops_per_second(self) -> float:
        """Rate of what was computed, not resumed, in this sweep."""
        computed = sum(receipt.rows for receipt in self.receipts if not receipt.resumed)
        return self.plan.flops * computed / max(1, self.plan.n_rows) / max(self.seconds, 1e-9)

    @property
    def peak_bytes(self) -> int:
        """Highest resident memory of a process that ran tasks."""
        return max((receipt.peak_bytes for receipt in self.receipts), default=0)

    def report(self) -> dict[str, Any]:
        """The figures of the sweep as plain data."""
        return {
            **self.plan.summary(),
            "executor": self.executor,
            "workers": len({receipt.worker for receipt in self.receipts}),
            "seconds": self.seconds,
            "gflops_per_second": self.flops_per_second / 1e9,
            "peak_bytes": self.peak_bytes,
            "skipped_rows": sum(receipt.skipped for receipt in self.receipts),
            **{name: self._count(kind) for name, kind in _COUNTED.items()},
            "incidents": [incident.text for incident in self.incidents],
            "resumed_segments": sum(receipt.resumed for receipt in self.receipts),
            "stage_seconds": self.stages,
        }

    def _count(self, kind: str) -> int:
        return sum(incident.kind == kind for incident in self.incidents)


def sweep(
    rows: Rows,
    statistic: Statistic,
    *,
    client: Executor = None,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    what: str = "sweep",
) -> Swept:
    """Accumulate `statistic` over all rows.

    Parameters
    ----------
    rows : Rows
    statistic : Statistic
    client : distributed.Client, "serial", "threads" or None
        None: what `executing` says; without it the current Dask client, if there is one and the rows are not in
        memory; threads otherwise.
    run : directory or None
        Where partials and receipts are published, so that the job can be resumed. None: what `executing` says;
        without it nothing is written.
    resume : go on with the run in that directory
    what : a word for messages and progress, and the name of its directory below the run of `executing`

    Raises
    ------
    PlanTooLarge, DataError, ResumeMismatch, RunLocked, Stalled, ConfigError
    """
    wanted, inherited = settings(), in_force()
    steps = plan_sweep(rows, statistic, wanted)
    executor = choose(rows, inherited.client if client is None else client)
    rows.require_chunks()
    if run is None and inherited.run is not None:
        run, resume = inherited.directory(what), inherited.resume
    name = executor if isinstance(executor, str) else "dask"
    incidents: list[Incident] = []

    def keep(event: Event) -> None:
        if isinstance(event, Incident):
            incidents.append(event)

    with ExitStack() as stack:
        stack.enter_context(observe(keep))
        scope, token = stack.enter_context(part_of_job(what)), uuid.uuid4().hex[:12]
        send_to_scheduler(scope, executor, wanted=wanted.monitor)
        job, alive = Job(statistic, wanted.block_rows, None, wanted.retries), _nothing
        if run is not None:
            store = Run(str(Path(run).absolute()))
            identity = _identity(rows, statistic, steps, wanted)
            size = {"segments": len(steps.segments), "rows": steps.n_rows}
            lock = stack.enter_context(store.held(identity, resume=resume, plan=size))
            if inherited.run is None and wanted.monitor:
                stack.callback(report, run)
                stack.push(functools.partial(_end_journal, scope, write_journal(scope, store.path)))
            require_disk(store, steps, processors() if isinstance(executor, str) else len(executor.ncores()))
            job, alive = Job(detach(statistic, store), wanted.block_rows, store, wanted.retries), lock.require
        if not isinstance(executor, str):
            check_cluster(executor, rows, steps, wanted, job.run)
            job = replace(job, heard=ToScheduler(token) if wanted.monitor else None)
        path = "" if job.run is None else job.run.path
        # one process holds the tasks of all its threads
        tasks = processors() if executor == "threads" else 1
        if not isinstance(executor, str):
            tasks = max(executor.ncores().values(), default=1)
        announced = wanted.worker_base_bytes + tasks * steps.task_bytes
        scope.sweep = token
        calibrated = _processors_of(executor) * rate_of(steps)
        emit(SweepStarted(what, name, steps, token, path, announced, calibrated))
        start = time.perf_counter()
        stack.push(functools.partial(_tell_failure, start))
        if job.run is not None:
            stack.push(functools.partial(_tidy, job.run))
        if not steps.segments:
            root: Partial = (statistic.zero(), Receipt("0-0", 0, 0))
            receipts: list[Receipt] = []
        elif isinstance(executor, str):
            root, receipts = _in_process(job, rows, steps, 1 if executor == "serial" else processors(), wanted, alive)
        else:
            root, receipts = on_cluster(job, rows, steps, executor, wanted, alive, token)
        total = root[0]
        if job.run is not None:
            if total is None:
                total = job.run.partial(root[1].node, root[1].digest)
            job.run.keep_only(root[1].node)
        assert total is not None
        seconds = time.perf_counter() - start
        merged = 0.0 if root[1].resumed else merge_seconds(root[1])
        emit(SweepEnded(seconds, stages={"merge": merged} if merged else {}))
    ordered = tuple(sorted(receipts, key=lambda receipt: receipt.start))
    return Swept(total, steps, ordered, seconds, name, tuple(incidents), merged)


def _processors_of(executor: Client | str) -> int:
    """How many processors of this machine work on a sweep; 0 where other machines may, whose rates nobody measured."""
    if isinstance(executor, str):
        return 1 if executor == "serial" else processors()
    workers = executor.ncores()
    here = all(is_loopback(get_address_host(address)) for address in workers)
    return min(sum(workers.values()), processors()) if here else 0


def _end_journal(scope: Scope, name: str, kind: object, error: BaseException | None, *_: Any) -> None:
    """A run of this sweep alone: it has ended, whatever the job does after it."""
    scope.drop(name, ending(error))


def _tell_failure(start: float, kind: type[BaseException] | None, error: BaseException | None, *_: Any) -> None:
    if kind is not None:
        emit(SweepEnded(time.perf_counter() - start, f"{kind.__name__}: {error}".removesuffix(": ")))


def _tidy(run: Run, kind: type[BaseException] | None, *_: Any) -> None:
    """Remove what is half-written, unless the cluster was lost: its workers may still be at it, and a resume will."""
    if kind is None or not issubclass(kind, Stalled):
        run.sweep_up()


def _nothing() -> None:
    """Without a run there is no lock that could be lost."""


def plan_sweep(rows: Rows, statistic: Statistic, wanted: Settings | None = None) -> Plan:
    """The plan that `sweep` would follow for these rows and this statistic."""
    wanted, footprint = wanted or settings(), statistic.footprint((wanted or settings()).block_rows)
    # what a float64 block of rows needs on its way through the row maps, beside the statistic's own buffers
    maps, made = map_costs(rows.row_maps, rows.stored_width, 8), making(rows.x)
    footprint = replace(
        footprint,
        flops_per_row=footprint.flops_per_row + maps.flops_per_row + made.flops_per_row,
        work_bytes=footprint.work_bytes + maps.fixed_bytes + wanted.block_rows * maps.row_bytes + made.fixed_bytes,
    )
    return plan(
        rows.bounds(),
        rows.stored_width,
        rows.dtype.itemsize,
        footprint,
        column_bytes=sum(math.prod(source.shape[1:]) * source.dtype.itemsize for source in rows.columns.values()),
        segment_rows=wanted.segment_rows,
        min_segments=wanted.min_segments,
    )


def _identity(rows: Rows, statistic: Statistic, steps: Plan, wanted: Settings) -> dict[str, str]:
    """Every field that changes a number of the result, each as a short text."""
    return {
        "rows": fingerprint(rows.x),
        "bad_rows": rows.bad_rows,
        **{f"columns.{name}": fingerprint(source) for name, source in rows.columns.items()},
        **described(rows.row_maps, "row_maps"),
        **described(statistic, "statistic"),
        "plan": fingerprint(steps.segments),
        "block_rows": str(wanted.block_rows),
        "versions": f"bigkernel {bigkernel.__version__}, numpy {np.__version__}, scipy {scipy.__version__}, "
        f"zarr {zarr.__version__}, dask {dask.__version__}",
    }


class _Tree:
    """Merges partials as soon as both children of a node are there; few wait, about one on each level."""

    def __init__(self, job: Job, merges: list[tuple[str, str, str]]) -> None:
        self._job = job
        self._above = ancestors_of(merges)
        self._parent = {child: (node, left, right) for node, left, right in merges for child in (left, right)}
        self._waiting: dict[str, Partial] = {}

    def add(self, node: str, partial: Partial) -> None:
        """Take a finished node."""
        self._waiting[node] = partial
        while node in self._parent:
            above, left, right = self._parent[node]
            if left not in self._waiting or right not in self._waiting:
                return
            children = self._waiting.pop(left), self._waiting.pop(right)
            self._waiting[above] = merge(self._job, above, *children, self._above.get(above, ()))
            emit(Merged(above))
            node = above

    def root(self) -> Partial:
        """The only node left."""
        (partial,) = self._waiting.values()
        return partial


def _in_process(
    job: Job, rows: Rows, steps: Plan, workers: int, wanted: Settings, alive: Callable[[], None]
) -> tuple[Partial, list[Receipt]]:
    count, merges = len(steps.segments), merge_tree(len(steps.segments))
    tree, above = _Tree(job, merges), ancestors_of(merges)
    finished, receipts, damaged = recover(job, steps)
    waiting = [segment for segment in steps.segments if not covered(leaf(segment.index), finished, above)]
    for node, wrong in damaged.items():
        emit(Incident("damage", f"{node}: what the run holds is damaged and is computed again ({wrong})"))
    for i, receipt in enumerate(receipts):
        emit(SegmentDone(receipt, i + 1, count))
    pulses: queue.SimpleQueue[Pulse] = queue.SimpleQueue()
    job = replace(job, heard=emit if workers == 1 else pulses.put)

    def hear() -> None:
        with suppress(queue.Empty):
            while True:
                emit(pulses.get_nowait())

    def task(segment: Segment) -> Partial:
        return run_segment(job, rows, segment, above.get(leaf(segment.index), ()))

    def finish(partial: Partial) -> None:
        alive()
        receipts.append(partial[1])
        tell_of(partial[1], f"rows {partial[1].start}:{partial[1].stop}")
        emit(SegmentDone(partial[1], len(receipts), count))
        tree.add(partial[1].node, partial)

    # one BLAS thread a task, set once for the whole sweep: parallelism is over segments
    with threadpool_limits(limits=1, user_api="blas"):
        for node, receipt in finished.items():
            tree.add(node, (None, receipt))
        if workers == 1:
            for segment in waiting:
                finish(task(segment))
            return tree.root(), receipts
        pool = ThreadPoolExecutor(workers, thread_name_prefix="bigkernel-segment")
        running: set[Future[Partial]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.add(pool.submit(task, waiting.pop(0)))
                done, running = wait(running, timeout=_PULSE_SECONDS, return_when=FIRST_COMPLETED)
                hear()
                for future in done:
                    finish(future.result())
        except BaseException:
            wait(running, timeout=wanted.grace_seconds)  # what is under way is still published in the run
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
    return tree.root(), receipts
