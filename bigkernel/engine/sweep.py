"""The one engine: `sweep` streams rows through a statistic, over segments, and merges the partials in a fixed tree.

Executors: serial (the specification), threads (rows in this process or in a store, no cluster) and Dask (a client).
Same plan ⇒ same bits, whichever runs it, whatever the number of workers, deaths and resumes.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import scipy
import zarr
from distributed import Client

import bigkernel
from bigkernel.config import Settings, settings
from bigkernel.data.fingerprint import described, fingerprint
from bigkernel.data.run_directory import Run, detach
from bigkernel.engine.context import ExecutorChoice, choose, in_force, processors
from bigkernel.engine.dask_executor import DaskExecutor
from bigkernel.engine.executor import Executor, LocalExecutor, Work, schedule
from bigkernel.engine.preflight import require_disk
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import NumpySource, ZarrSource
from bigkernel.engine.tasks import Job, merge_seconds
from bigkernel.engine.telemetry import blas_threads
from bigkernel.errors import Stalled
from bigkernel.events.kinds import Event, Incident, SweepEnded, SweepStarted
from bigkernel.events.scope import Scope, emit, ending, observe, part_of_job
from bigkernel.events.sinks import send_to_scheduler, show_run, write_journal
from bigkernel.statistics.moments import Statistic
from bigkernel.streaming.chunk import map_costs
from bigkernel.streaming.merge_tree import Accumulator, Receipt
from bigkernel.streaming.plan import Plan, plan

_COUNTED = {"retries": "retry", "lost_workers": "worker", "repeated_segments": "repeat", "damaged_partials": "damage"}


@dataclass(frozen=True)
class Swept:
    """The result of a sweep."""

    total: Accumulator  # the accumulator of all rows
    plan: Plan  # what was planned
    receipts: tuple[Receipt, ...]  # one a segment, in order
    seconds: float  # from the first task to the merged total
    executor: str  # "serial", "threads" or "dask"
    incidents: tuple[Incident, ...] = ()  # what went wrong meanwhile
    merge_seconds: float = 0.0  # of all merges together
    announced_bytes: int = 0  # planned peak of a process that runs tasks, from what it held before the first one
    blas_threads: int = 0  # of the driver, which solves from the total

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
        """Return the figures of the sweep as plain data."""
        return {
            **self.plan.summary(),
            "executor": self.executor,
            "workers": len({receipt.worker for receipt in self.receipts}),
            "seconds": self.seconds,
            "gflops_per_second": self.flops_per_second / 1e9,
            "peak_bytes": self.peak_bytes,
            "announced_bytes": self.announced_bytes,
            "blas_threads_of_the_driver": self.blas_threads,
            "skipped_rows": sum(receipt.skipped for receipt in self.receipts),
            **{name: [incident.kind for incident in self.incidents].count(kind) for name, kind in _COUNTED.items()},
            "incidents": [incident.text for incident in self.incidents],
            "resumed_segments": sum(receipt.resumed for receipt in self.receipts),
            "stage_seconds": self.stages,
        }


@dataclass(frozen=True)
class Place:
    """The directory that a sweep publishes in."""

    path: Path
    resume: bool  # go on with the run that is there
    alone: bool  # it belongs to no job's directory, and has a journal and a report of its own


@dataclass(frozen=True)
class SweepSpec:
    """A sweep as it was asked for: what to accumulate, who runs it, and how.

    `what` is a word for messages; without a `place` nothing is written.
    """

    rows: Rows
    statistic: Statistic
    plan: Plan
    executor: Executor
    wanted: Settings
    what: str
    place: Place | None


before_sweep: ContextVar[Callable[[SweepSpec], None] | None] = ContextVar("bigkernel_before_sweep", default=None)


def sweep(
    rows: Rows,
    statistic: Statistic,
    *,
    client: ExecutorChoice = None,
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
    wanted, execution = settings(), in_force()
    steps = plan_sweep(rows, statistic, wanted)
    chosen = choose(rows, execution.client if client is None else client)
    executor: Executor
    if isinstance(chosen, Client):
        executor = DaskExecutor(chosen)
    else:
        executor = LocalExecutor(chosen, processors() if chosen == "threads" else 1)
    rows.require_unchanged()
    place, job = None, execution.job
    if run is not None:
        place = Place(Path(run), resume, alone=job is None)
    elif job is not None:
        place = Place(job.next(what), job.resume, alone=False)
    spec = SweepSpec(rows, statistic, steps, executor, wanted, what, place)
    if (stop := before_sweep.get()) is not None:
        stop(spec)
    return run_sweep(spec)


def run_sweep(spec: SweepSpec) -> Swept:
    """Run all segments and merges of a plan, and finish their total."""
    with open_session(spec) as work:
        if spec.plan.segments:
            total, receipt = spec.executor.run(work)
        else:
            total, receipt = spec.statistic.zero(), Receipt("0-0", 0, 0)
        spec.rows.require_unchanged()
        run = work.job.run
        if run is not None:  # the root of the merges is the only partial that stays there
            total = run.partial(receipt.node, receipt.digest) if total is None else total
            run.keep_only(receipt.node)
        assert total is not None
        if hasattr(spec.statistic, "finish"):
            total = spec.statistic.finish(total)
        seconds = time.perf_counter() - work.start
        merged = 0.0 if receipt.resumed else merge_seconds(receipt)
        emit(SweepEnded(seconds, stages={"merge": merged} if merged else {}))
    return Swept(
        total,
        spec.plan,
        tuple(sorted(work.receipts, key=lambda receipt: receipt.start)),
        seconds,
        spec.executor.name,
        tuple(work.incidents),
        merged,
        work.announced_bytes,
        max(blas_threads().values(), default=0),
    )


def plan_sweep(rows: Rows, statistic: Statistic, wanted: Settings | None = None) -> Plan:
    """Plan what `sweep` would do with these rows and this statistic."""
    wanted = wanted or settings()
    bounds = rows.bounds(wanted)
    block_rows = min(wanted.block_rows, max((b - a for a, b in pairwise(bounds)), default=1))  # none is of two chunks
    footprint = statistic.footprint(block_rows)
    # what a float64 block of rows needs on its way through the row maps, beside the statistic's own buffers
    maps, made = map_costs(rows.row_maps, rows.stored_width, 8), rows.x.cost()
    footprint = replace(
        footprint,
        flops_per_row=footprint.flops_per_row + maps.flops_per_row + made.flops_per_row,
        work_bytes=footprint.work_bytes + maps.fixed_bytes + block_rows * maps.row_bytes + made.fixed_bytes,
    )
    found = plan(
        bounds,
        rows.stored_width,
        rows.dtype.itemsize,
        footprint,
        column_bytes=sum(math.prod(source.shape[1:]) * source.dtype.itemsize for source in rows.columns.values()),
        segment_rows=wanted.segment_rows,
        min_segments=wanted.min_segments,
    )
    stored_share = None
    if isinstance(rows.x, ZarrSource) and rows.x.digests is not None and len(rows.x.digests.sizes):
        decoded = math.prod(rows.x.array.chunks) * rows.dtype.itemsize
        stored_share = float(min(1.0, rows.x.digests.sizes.max() / max(1, decoded)))
    copied = found.chunk_bytes if rows.in_memory and rows.bad_rows == "skip" else 0  # where bad rows are blanked
    return replace(
        found,
        work_bytes=found.work_bytes + copied,
        in_memory=isinstance(rows.x, NumpySource),
        stored_share=stored_share,
    )


@contextmanager
def open_session(spec: SweepSpec) -> Iterator[Work]:
    """Hold all that a sweep needs for a block, and give it back however it ends.

    Outermost first: the job that is told about it, the lock and the journal of its run, the checks before the first
    task, the events of its beginning and its end.
    """
    token, incidents, lost = uuid.uuid4().hex[:12], list[Incident](), False

    def keep(event: Event) -> None:
        if isinstance(event, Incident):
            incidents.append(event)

    with observe(keep), part_of_job(spec.what) as scope:
        send_to_scheduler(scope, spec.executor.client, wanted=spec.wanted.monitor)
        plain = Job(spec.statistic, spec.wanted.block_rows, None, spec.wanted.retries)
        with _open_run(spec, spec.place, scope) if spec.place else nullcontext((plain, lambda: None)) as (job, alive):
            run = job.run
            announced = spec.executor.preflight(spec.rows, spec.plan, spec.wanted, run)
            scope.sweep = token
            path = "" if run is None else run.path
            emit(SweepStarted(spec.what, spec.executor.name, spec.plan, token, path, announced))
            start = time.perf_counter()
            try:
                try:
                    left = schedule(spec.plan, run)
                    work = Work(job, spec.rows, left, spec.wanted, token, alive, announced, incidents, start)
                    if run is not None:
                        work.recover(run)
                    yield work
                except Stalled:
                    lost = True  # workers may still be at what is half-written, and a resume will
                    raise
                finally:
                    if run is not None and not lost:
                        run.remove_partials()
            except BaseException as error:
                text = f"{type(error).__name__}: {error}".removesuffix(": ")
                emit(SweepEnded(time.perf_counter() - start, text))
                raise


@contextmanager
def _open_run(spec: SweepSpec, place: Place, scope: Scope) -> Iterator[tuple[Job, Callable[[], None]]]:
    """Make the job of a sweep in a run, locked and begun; and what raises where the lock is lost.

    A run that is of one sweep alone has a journal, and leaves a report; the job may go on after it.
    """
    wanted = spec.wanted
    run = Run(str(place.path.absolute()))
    fields = identity(spec.rows, spec.statistic, spec.plan, wanted)
    size = {"segments": len(spec.plan.segments), "rows": spec.plan.n_rows}
    with ExitStack() as stack:
        lock = stack.enter_context(run.held(fields, resume=place.resume, plan=size))
        if place.alone and wanted.monitor:
            stack.callback(show_run, run.path)
            name = write_journal(scope, run.path)
            stack.push(lambda kind, error, trace: scope.drop(name, ending(error)))
        require_disk(run, spec.plan, spec.executor.slots()[0])
        yield Job(detach(spec.statistic, run), wanted.block_rows, run, wanted.retries), lock.require


def identity(rows: Rows, statistic: Statistic, steps: Plan, wanted: Settings) -> dict[str, str]:
    """Describe every field that changes a number of the result, each as a short text."""
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
