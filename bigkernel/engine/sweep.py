"""The one engine: `sweep` streams rows through a statistic, over segments, and merges the partials in a fixed tree.

Executors: serial (the specification), threads (rows in this process or in a store, no cluster) and Dask (a client).
Same plan ⇒ same bits, whichever runs it, whatever the number of workers, deaths and resumes.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from distributed import Client

from bigkernel.config import Settings, settings
from bigkernel.data.run_directory import Receipt
from bigkernel.engine.context import Execution, ExecutorChoice, choose, in_force
from bigkernel.engine.dask_executor import DaskExecutor
from bigkernel.engine.executor import Executor
from bigkernel.engine.local_executor import serial, threads
from bigkernel.engine.pilot import stop_for_pilot
from bigkernel.engine.process_probes import blas_threads
from bigkernel.engine.rows import Rows
from bigkernel.engine.session import Place, SweepSpec, open_session
from bigkernel.engine.sources import NumpySource, ZarrSource
from bigkernel.events.kinds import Incident
from bigkernel.statistics.moments import Statistic
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Plan, plan
from bigkernel.streaming.row_maps import map_costs

_COUNTED = {"retries": "retry", "lost_workers": "worker", "repeated_segments": "repeat", "damaged_partials": "damage"}


@dataclass(frozen=True)
class Swept:
    """The result of a sweep.

    Attributes
    ----------
    total : the accumulator of all rows
    plan : what was planned
    receipts : one a segment, in order
    seconds : from the first task to the merged total
    executor : "serial", "threads" or "dask"
    incidents : what went wrong meanwhile
    merge_seconds : of all merges together
    announced_bytes : planned peak of a process that runs tasks, from what it held before the first one
    blas_threads : of the driver, which solves from the total
    """

    total: Accumulator
    plan: Plan
    receipts: tuple[Receipt, ...]
    seconds: float
    executor: str
    incidents: tuple[Incident, ...] = ()
    merge_seconds: float = 0.0
    announced_bytes: int = 0
    blas_threads: int = 0

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
            "announced_bytes": self.announced_bytes,
            "blas_threads_of_the_driver": self.blas_threads,
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
    executor = _executor_of(choose(rows, execution.client if client is None else client))
    rows.require_chunks()
    rows.require_unchanged()
    place = _place(execution, run, resume, what)
    spec = SweepSpec(rows, statistic, steps, executor, wanted, what, place)
    stop_for_pilot(spec)
    with open_session(spec) as session:
        root = executor.run(session.work) if steps.segments else (statistic.zero(), Receipt("0-0", 0, 0))
        rows.require_unchanged()
        total = session.end(root)
    receipts, incidents = session.work.receipts.ordered(), tuple(session.incidents)
    return Swept(
        total,
        steps,
        receipts,
        session.seconds,
        executor.name,
        incidents,
        session.merge_seconds,
        session.announced_bytes,
        max(blas_threads().values(), default=0),
    )


def _executor_of(chosen: Client | str) -> Executor:
    """The executor of a client, or of a name."""
    if isinstance(chosen, Client):
        return DaskExecutor(chosen)
    return serial() if chosen == "serial" else threads()


def _place(execution: Execution, run: str | os.PathLike[str] | None, resume: bool, what: str) -> Place | None:
    """The directory `run`; without it one below that of the job, if it has one."""
    if run is not None:
        return Place(Path(run), resume, alone=execution.job is None)
    if execution.job is None:
        return None
    return Place(execution.job.next(what), execution.job.resume, alone=False)


def plan_sweep(rows: Rows, statistic: Statistic, wanted: Settings | None = None) -> Plan:
    """The plan that `sweep` would follow for these rows and this statistic."""
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
    columns = sum(math.prod(source.shape[1:]) * source.dtype.itemsize for source in rows.columns.values())
    found = plan(
        bounds,
        rows.stored_width,
        rows.dtype.itemsize,
        footprint,
        column_bytes=columns,
        segment_rows=wanted.segment_rows,
        min_segments=wanted.min_segments,
    )
    copied = found.chunk_bytes if rows.in_memory and rows.bad_rows == "skip" else 0  # where bad rows are blanked
    return replace(
        found,
        work_bytes=found.work_bytes + copied,
        in_memory=isinstance(rows.x, NumpySource),
        stored_share=_stored_share(rows),
    )


def _stored_share(rows: Rows) -> float | None:
    """Bytes of the rows as they lie in our store over those that a task decodes; None where that is not known."""
    marks = getattr(rows.x, "marks", None)
    if not isinstance(rows.x, ZarrSource) or marks is None or not len(marks.sizes):
        return None
    of_chunk = math.prod(rows.x.array.chunks) * rows.dtype.itemsize
    return float(min(1.0, marks.sizes.max() / max(1, of_chunk)))
