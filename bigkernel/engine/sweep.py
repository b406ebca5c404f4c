"""Sweeps: `sweep` streams rows through a statistic, over segments, and merges the partials in a fixed tree.

Executors: serial (the reference), threads (rows in this process or in a store, no cluster) and Dask (a client). The
same plan gives the same bits, whatever the executor, the number of workers, their failures and resumes.
"""

from __future__ import annotations

import math
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import dask
import distributed
import numpy as np
import scipy
import zarr
from distributed import Client

import bigkernel
from bigkernel.config import Settings, settings
from bigkernel.data.fingerprint import described, fingerprint
from bigkernel.data.run_directory import Run, detach
from bigkernel.engine.cards import CPU, Card, check_card, find_card, needed_bytes, on_device, refuse_kernels
from bigkernel.engine.dask_executor import release_blocks, run_on_cluster
from bigkernel.engine.executor import (
    EndedEarly,
    Look,
    RunLocation,
    RunningSweep,
    SweepSpec,
    local_memory,
    run_locally,
    schedule,
)
from bigkernel.engine.preflight import cards_of, check_cluster, require_disk
from bigkernel.engine.process import processors
from bigkernel.engine.rows import NumpySource, Rows, SparseSource, ZarrSource
from bigkernel.engine.tasks import SweepTask, merge_seconds
from bigkernel.errors import ConfigError, StalledError
from bigkernel.events.job import Incident, Note, Scope, SweepEnded, SweepStarted, emit, ending, job
from bigkernel.events.sinks import send_to_scheduler, show_run, write_journal
from bigkernel.kernels.kept_blocks import BLOCKS, KeptMap, kept_map
from bigkernel.kernels.random_fourier import BlockMap
from bigkernel.kernels.threads import blas_threads
from bigkernel.statistics.statistic import Statistic
from bigkernel.streaming.chunk import map_costs
from bigkernel.streaming.devices import Device, device_of
from bigkernel.streaming.plan import Accumulator, Plan, Receipt, leaf, merge_tree, plan

_COUNTED = {"retries": "retry", "lost_workers": "worker", "repeated_segments": "repeat", "damaged_partials": "damage"}
ExecutorChoice: TypeAlias = Client | Literal["serial", "threads"] | None  # what users pass as `client`


@dataclass(frozen=True)
class Swept:
    """The result of a sweep."""

    total: Accumulator  # the accumulator of all rows
    plan: Plan
    receipts: tuple[Receipt, ...]  # one per segment, in order
    seconds: float  # from the first task to the merged total
    executor: str  # "serial", "threads" or "dask"
    incidents: tuple[Incident, ...] = ()
    merge_seconds: float = 0.0  # seconds of all merges together
    planned_bytes: int = 0  # planned peak of a process that runs tasks, given what it held before the first one
    blas_threads: int = 0  # BLAS threads of the driver, which solves from the total
    kept_bytes: int = 0  # most bytes of blocks that a process keeps for later sweeps
    device: str = CPU  # its name, GPU and versions

    def report(self) -> dict[str, object]:
        """Return the figures of the sweep as plain data.

        `gflops_per_second` counts what was computed, not resumed; `peak_bytes` is the highest resident memory of a
        process that ran tasks; `stage_seconds` are those of all tasks.
        """
        stages = {"merge": self.merge_seconds} if self.merge_seconds else {}
        for receipt in self.receipts:
            for name, seconds in receipt.seconds.items():
                stages[name] = stages.get(name, 0.0) + seconds
        computed = sum(receipt.rows for receipt in self.receipts if not receipt.resumed)
        flops = self.plan.flops * computed / max(1, self.plan.n_rows)
        return {
            **self.plan.summary(),
            "executor": self.executor,
            "workers": len({receipt.worker for receipt in self.receipts}),
            "seconds": self.seconds,
            "gflops_per_second": flops / max(self.seconds, 1e-9) / 1e9,
            "peak_bytes": max((receipt.peak_bytes for receipt in self.receipts), default=0),
            "planned_bytes": self.planned_bytes,
            **({"kept_bytes": self.kept_bytes} if self.plan.kept_bytes else {}),
            "driver_blas_threads": self.blas_threads,
            "device": self.device,
            "device_peak_bytes": max((receipt.device_peak_bytes for receipt in self.receipts), default=0),
            "skipped_rows": sum(receipt.skipped for receipt in self.receipts),
            **{name: [incident.kind for incident in self.incidents].count(kind) for name, kind in _COUNTED.items()},
            "incidents": [incident.text for incident in self.incidents],
            "resumed_segments": sum(receipt.resumed for receipt in self.receipts),
            "stage_seconds": stages,
        }


class JobDirectory:
    """The run directory of a job, with those of its sweeps below: "moments", "moments-2", … in order."""

    def __init__(self, path: str, *, resume: bool) -> None:
        self.path, self.resume = path, resume  # existing sweeps are continued
        self._begun: Counter[str] = Counter()  # number of sweeps by purpose

    def next(self, what: str) -> Path:
        """Return the directory of the next sweep for `what`, which begins now."""
        self._begun[what] += 1
        return self._place(what)

    def forget(self, what: str) -> None:
        """Remove what the last sweep for `what` left; the next one for it starts anew in its place."""
        if self._begun[what]:
            shutil.rmtree(self._place(what), ignore_errors=True)
            self._begun[what] -= 1

    def _place(self, what: str) -> Path:
        count = self._begun[what]
        return Path(self.path) / (what if count == 1 else f"{what}-{count}")


@dataclass(frozen=True)
class Execution:
    """The client of the sweeps of a block of code, and their run directory; see `executing`."""

    client: ExecutorChoice = None
    job: JobDirectory | None = None


execution: ContextVar[Execution] = ContextVar("bigkernel_execution", default=Execution())  # noqa: B039 it is frozen
before_sweep: ContextVar[Callable[[SweepSpec], None] | None] = ContextVar("bigkernel_before_sweep", default=None)


def choose_executor(rows: Rows, client: ExecutorChoice = None) -> Client | Literal["serial", "threads"]:
    """Choose the executor of a sweep of these rows: the given one, or that of `executing`; see `sweep`."""
    client = execution.get().client if client is None else client
    if client is None and not rows.in_memory:
        with suppress(ValueError):  # there is none
            client = distributed.default_client()
    if client is None:
        return "threads"
    if client in ("serial", "threads"):
        return client
    if not isinstance(client, Client):
        raise ConfigError(f"client: expected a distributed.Client, 'serial', 'threads' or None, found {client!r}")
    if rows.in_memory:
        return "threads"
    if client.asynchronous:
        raise ConfigError(
            "client: expected a synchronous distributed.Client, found one with asynchronous=True; use for instance "
            "Client(client.scheduler.address)"
        )
    return client


def choose_card(executor: Client | Literal["serial", "threads"], config: Settings) -> Card:
    """Return the device on which an executor computes; `ConfigError` if it has none of the name in the settings."""
    if config.device == CPU or not isinstance(executor, Client):
        card = find_card(config.device).require()
    else:
        card = cards_of(executor, config)
    if config.device == "auto":
        emit(Note(f"device 'auto': {card}"))
    return card


def device_here() -> Device:
    """Return the device for the driver's own work: that of the settings if it has one, else its processors."""
    card = find_card(settings().device)
    return device_of(CPU if card.wrong else card.device)


def sweep(
    rows: Rows,
    statistic: Statistic,
    *,
    client: ExecutorChoice = None,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    what: str = "sweep",
    look: Look | None = None,
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
    look : judges the sums of the first rows

    Raises
    ------
    EndedEarly : by its look; a run keeps the sums of the first rows, which end it again
    PlanTooLargeError, DataError, ResumeMismatchError, RunLockedError, StalledError, ConfigError
    """
    config, directory = settings(), execution.get().job
    chosen = choose_executor(rows, client)
    card = choose_card(chosen, config)
    config = replace(config, device=card.device)
    steps = plan_sweep(rows, statistic, config)
    check_card(steps, card)
    rows.require_unchanged()
    location = None
    if run is not None:
        location = RunLocation(Path(run), resume, alone=directory is None)
    elif directory is not None:
        location = RunLocation(directory.next(what), directory.resume, alone=False)
    # a GPU does one task at a time: two would hold twice the blocks and sums
    threads = processors() if chosen == "threads" and card.device == CPU else 1
    executor, cluster = ("dask", chosen) if isinstance(chosen, Client) else (chosen, None)
    spec = SweepSpec(rows, statistic, steps, config, what, executor, cluster, threads, location, look, card)
    if (stop := before_sweep.get()) is not None:
        stop(spec)
    return run_sweep(spec)


@contextmanager
def keeping_blocks(features: BlockMap, rows: Rows, *, reserved_bytes: int = 0) -> Iterator[KeptMap]:
    """Keep the blocks of a map in memory between the sweeps of the same rows that the block of code makes.

    Yields the map for its statistics. `reserved_bytes`: memory of the driver that the code needs besides.
    """
    kept = KeptMap(features, reserved_bytes=reserved_bytes)
    try:
        yield kept
    finally:
        BLOCKS.release(kept.owner)
        if isinstance(client := choose_executor(rows), Client):
            release_blocks(client, kept.owner)


def run_sweep(spec: SweepSpec) -> Swept:
    """Run all segments and merges of a plan, and finish their total.

    From outer to inner: the observed job, the lock and journal of its run, the checks before the first task, and the
    events of its beginning and end.
    """
    with ExitStack() as stack:
        scope = stack.enter_context(job(spec.what))
        if spec.client is not None:
            send_to_scheduler(scope, spec.client, monitored=spec.config.monitor)
        task, require_lock = SweepTask(spec.statistic, spec.plan.block_rows, retries=spec.config.retries), None
        if spec.location is not None:
            task, require_lock = stack.enter_context(_open_run(spec, spec.location, scope))
        memory = (
            local_memory(spec)
            if spec.client is None
            else check_cluster(spec.client, spec.rows, spec.plan, spec.config, task.run, spec.owner, spec.card)
        )
        task = replace(task, kept_bytes=memory.kept, device=spec.card.device, device_bytes=spec.plan.device_bytes)
        steps = _without_held(spec, memory.held)
        scope.sweep = token = uuid.uuid4().hex[:12]
        start = time.perf_counter()
        finished, damaged = usable_nodes(task.run, spec.plan) if task.run else ({}, {})
        work = RunningSweep(spec, task, schedule(spec.plan, finished, spec.look), token, require_lock)
        resumed = len(spec.plan.segments) - len(work.schedule.waiting)
        path = "" if task.run is None else task.run.path
        emit(SweepStarted(spec.what, spec.executor, steps, token, path, memory.announced, resumed))
        try:
            work.recover(damaged)
            total, receipt = _compute(work)
        except EndedEarly as early:
            emit(SweepEnded(time.perf_counter() - start, early=str(early)))
            raise
        except BaseException as error:
            emit(SweepEnded(time.perf_counter() - start, f"{type(error).__name__}: {error}".removesuffix(": ")))
            raise
        seconds = time.perf_counter() - start
        merged = 0.0 if receipt.resumed else merge_seconds(receipt)
        emit(SweepEnded(seconds, stages={"merge": merged} if merged else {}))
    return Swept(
        total,
        steps,
        tuple(sorted(work.receipts, key=lambda receipt: receipt.start)),
        seconds,
        spec.executor,
        tuple(work.incidents),
        merged,
        memory.announced,
        blas_threads(),
        memory.kept,
        str(spec.card),
    )


def _without_held(spec: SweepSpec, held_bytes: int) -> Plan:
    """Return the plan of a sweep without the flops of blocks that processes hold already."""
    steps, features = spec.plan, kept_map(spec.statistic)
    if features is None or not steps.kept_bytes:
        return steps
    share = min(1.0, held_bytes / steps.kept_bytes)
    return replace(steps, flops=steps.flops - share * features.cost.flops_per_row * steps.n_rows)


def _compute(work: RunningSweep) -> tuple[Accumulator, Receipt]:
    """Compute the total of all segments, and the receipt of its last merge."""
    spec, run, lost = work.spec, work.task.run, False
    try:
        total: Accumulator | None
        if spec.plan.segments:
            total, receipt = run_locally(work) if spec.client is None else run_on_cluster(work, spec.client)
        else:
            total, receipt = spec.statistic.zero(), Receipt("0-0", 0, 0)
        spec.rows.require_unchanged()
        if run is not None:  # the root of the merges is the only partial that stays there
            total = run.partial(receipt.node, receipt.digest) if total is None else total
            run.keep_root(receipt.node)
        assert total is not None
        return spec.statistic.finish(total), receipt
    except EndedEarly as early:
        if run is not None:
            run.end_early(early.node, str(early))
        raise
    except StalledError:
        lost = True  # workers may still write their partials; a resume removes what is incomplete
        raise
    finally:
        if run is not None and not lost:
            run.remove_partials()


def usable_nodes(run: Run, steps: Plan) -> tuple[dict[str, Receipt], dict[str, str]]:
    """Return the receipts of a plan's nodes in a run, and the faults of the rest, whose receipts are removed."""
    return run.usable(merge_tree(len(steps.segments)), [leaf(segment.index) for segment in steps.segments])


def plan_sweep(rows: Rows, statistic: Statistic, config: Settings | None = None) -> Plan:
    """Plan what `sweep` would do with these rows and this statistic."""
    config = config or settings()
    config = config if config.device != "auto" else replace(config, device=find_card("auto").device)
    refuse_kernels(statistic, config.device)
    footprint = statistic.footprint(1)
    row_bytes = statistic.footprint(2).work_bytes - footprint.work_bytes
    config = on_device(config, row_bytes, writes=statistic.writes)
    bounds = rows.bounds(config)
    block_rows = min(config.block_rows, max((b - a for a, b in pairwise(bounds)), default=1))  # none is of two chunks
    footprint = statistic.footprint(block_rows if config.device == CPU else 1)
    # needed by a float64 block of rows in the row maps, beside the statistic's own buffers
    maps = map_costs(rows.row_maps, rows.x.shape[1], 8)
    travelling = rows.x.held_bytes(config.segment_rows) if isinstance(rows.x, SparseSource) else 0
    footprint = replace(
        footprint,
        flops_per_row=footprint.flops_per_row + maps.flops_per_row,
        work_bytes=footprint.work_bytes + maps.fixed_bytes + block_rows * maps.row_bytes + travelling,
    )
    steps = plan(
        bounds,
        rows.x.shape[1],
        rows.x.dtype.itemsize,
        footprint,
        column_bytes=sum(math.prod(source.shape[1:]) * source.dtype.itemsize for source in rows.columns.values()),
        segment_rows=rows.x.segment_rows or config.segment_rows,
        min_segments=config.min_segments,
    )
    stored_share = None
    if isinstance(rows.x, ZarrSource) and rows.x.digests is not None and len(rows.x.digests.sizes):
        decoded = math.prod(rows.x.array.chunks) * rows.x.dtype.itemsize
        stored_share = float(min(1.0, rows.x.digests.sizes.max() / max(1, decoded)))
    copied = steps.chunk_bytes if rows.in_memory and rows.bad_rows == "skip" else 0  # if bad rows are masked
    features = kept_map(statistic)
    steps = replace(steps, block_rows=config.block_rows, row_bytes=row_bytes)
    return replace(
        steps,
        device_bytes=0 if config.device == CPU else needed_bytes(steps),
        work_bytes=steps.work_bytes + copied,
        kept_bytes=features.row_bytes * len(rows) if features else 0,
        in_memory=isinstance(rows.x, NumpySource),
        stored_share=stored_share,
    )


@contextmanager
def _open_run(spec: SweepSpec, location: RunLocation, scope: Scope) -> Iterator[tuple[SweepTask, Callable[[], None]]]:
    """Yield the task of a sweep in a run, locked and begun, and a function that raises if the lock is lost.

    A run of a single sweep has a journal and leaves a report; the job may continue after it.
    """
    config = spec.config
    run = Run(str(location.path.absolute()))
    fields = identity(spec.rows, spec.statistic, spec.plan, spec.card)
    size = {"segments": len(spec.plan.segments), "rows": spec.plan.n_rows}
    with ExitStack() as stack:
        lock = stack.enter_context(run.held(fields, resume=location.resume, plan=size))
        if location.alone and config.monitor:
            stack.callback(show_run, run.path)
            name = write_journal(scope, run.path)
            stack.push(lambda kind, error, trace: scope.drop(name, ending(error)))
        require_disk(run, spec.plan, spec.slots()[0])
        yield SweepTask(detach(spec.statistic, run), spec.plan.block_rows, run, config.retries), lock.require


def identity(rows: Rows, statistic: Statistic, steps: Plan, card: Card) -> dict[str, str]:
    """Describe every field that changes a number of the result as a short text."""
    return {
        "rows": fingerprint(rows.x),
        "bad_rows": rows.bad_rows,
        **{f"columns.{name}": fingerprint(source) for name, source in rows.columns.items()},
        **described(rows.row_maps, "row_maps"),
        **described(statistic, "statistic"),
        "plan": fingerprint(steps.segments),
        "block_rows": str(steps.block_rows),
        "device": str(card),
        "versions": f"bigkernel {bigkernel.__version__}, numpy {np.__version__}, scipy {scipy.__version__}, "
        f"zarr {zarr.__version__}, dask {dask.__version__}",
    }
