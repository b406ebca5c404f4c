"""The session of a sweep: all that is held while its tasks run, and given back however it ends.

Outermost first: the job that is told about it, the lock and the journal of its run, the checks before the first task,
the events of its beginning and its end.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dask
import numpy as np
import scipy
import zarr

import bigkernel
from bigkernel.config import Settings
from bigkernel.data.fingerprint import described, fingerprint
from bigkernel.data.run_directory import Run, detach
from bigkernel.engine.executor import Executor, Work
from bigkernel.engine.preflight import require_disk
from bigkernel.engine.receipt_book import ReceiptBook
from bigkernel.engine.rows import Rows
from bigkernel.engine.schedule import schedule
from bigkernel.engine.tasks import Job, Partial, merge_seconds
from bigkernel.errors import Stalled
from bigkernel.events.kinds import Event, Incident, SweepEnded, SweepStarted
from bigkernel.events.scope import Scope, emit, ending, observe, part_of_job
from bigkernel.events.sinks import show_run, write_journal
from bigkernel.statistics.moments import Statistic
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Plan


@dataclass(frozen=True)
class Place:
    """The directory that a sweep publishes in.

    Attributes
    ----------
    path : Path
    resume : go on with the run that is there
    alone : it belongs to no job's directory, and has a journal and a report of its own
    """

    path: Path
    resume: bool
    alone: bool


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


class RunSession:
    """A sweep under way: its work, and what became of it.

    Attributes
    ----------
    work : Work
    incidents : list of Incident
        What has gone wrong so far.
    announced_bytes : planned peak of a process
    seconds, merge_seconds : of the whole sweep and of all its merges, once it has ended
    """

    def __init__(self, work: Work, incidents: list[Incident], start: float, announced_bytes: int) -> None:
        self.work, self.incidents, self.announced_bytes = work, incidents, announced_bytes
        self.seconds = self.merge_seconds = 0.0
        self._start = start

    def end(self, root: Partial) -> Accumulator:
        """Return the total that the root of the merges holds, the only partial that stays in the run."""
        (total, receipt), run = root, self.work.job.run
        if run is not None:
            total = run.partial(receipt.node, receipt.digest) if total is None else total
            run.keep_only(receipt.node)
        assert total is not None
        finish = getattr(self.work.job.statistic, "finish", None)
        total = finish(total) if finish else total
        self.seconds = time.perf_counter() - self._start
        self.merge_seconds = 0.0 if receipt.resumed else merge_seconds(receipt)
        emit(SweepEnded(self.seconds, stages={"merge": self.merge_seconds} if self.merge_seconds else {}))
        return total


@contextmanager
def open_session(spec: SweepSpec) -> Iterator[RunSession]:
    """Hold all that a sweep needs for a block: its run and lock, checked before the first task.

    Raises
    ------
    PlanTooLarge, DataError, ResumeMismatch, RunLocked, Stalled, ConfigError
    """
    token, incidents = uuid.uuid4().hex[:12], list[Incident]()

    def keep(event: Event) -> None:
        if isinstance(event, Incident):
            incidents.append(event)

    with observe(keep), part_of_job(spec.what) as scope:
        spec.executor.listen(scope, spec.wanted)
        with _job(spec, scope) as (job, require_lock):
            announced = spec.executor.preflight(spec.rows, spec.plan, spec.wanted, job.run)
            scope.sweep = token
            with _announced(spec, token, job.run, announced) as start, _cleaned(job.run):
                steps = schedule(spec.plan, job.run)
                work = Work(job, spec.rows, steps, ReceiptBook(steps), spec.wanted, token, require_lock)
                yield RunSession(work, incidents, start, announced)


@contextmanager
def _job(spec: SweepSpec, scope: Scope) -> Iterator[tuple[Job, Callable[[], None]]]:
    """The job of a sweep, its run locked and begun where it has a place; and what raises where the lock is lost."""
    statistic, wanted = spec.statistic, spec.wanted
    if spec.place is None:
        yield Job(statistic, wanted.block_rows, None, wanted.retries), lambda: None
        return
    run = Run(str(spec.place.path.absolute()))
    fields = identity(spec.rows, statistic, spec.plan, wanted)
    size = {"segments": len(spec.plan.segments), "rows": spec.plan.n_rows}
    with ExitStack() as stack:
        lock = stack.enter_context(run.held(fields, resume=spec.place.resume, plan=size))
        if spec.place.alone and wanted.monitor:
            stack.enter_context(_journal(scope, run.path))
        require_disk(run, spec.plan, spec.executor.slots().workers)
        yield Job(detach(statistic, run), wanted.block_rows, run, wanted.retries), lock.require


@contextmanager
def _journal(scope: Scope, run: str) -> Iterator[None]:
    """Keep the journal of a run that is of one sweep alone, and leave its report; the job may go on after it."""
    with ExitStack() as stack:
        stack.callback(show_run, run)
        name = write_journal(scope, run)
        try:
            yield
        except BaseException as error:
            scope.drop(name, ending(error))
            raise
        scope.drop(name, ending(None))


@contextmanager
def _cleaned(run: Run | None) -> Iterator[None]:
    """Remove what is half-written, unless the cluster was lost: its workers may still be at it, and a resume will."""
    lost = False
    try:
        yield
    except Stalled:
        lost = True
        raise
    finally:
        if run is not None and not lost:
            run.sweep_up()


@contextmanager
def _announced(spec: SweepSpec, token: str, run: Run | None, announced: int) -> Iterator[float]:
    """Tell that a sweep begins, and that it has ended where an error leaves the block; when it began."""
    path = "" if run is None else run.path
    emit(SweepStarted(spec.what, spec.executor.name, spec.plan, token, path, announced))
    start = time.perf_counter()
    try:
        yield start
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        emit(SweepEnded(time.perf_counter() - start, text))
        raise


def identity(rows: Rows, statistic: Statistic, steps: Plan, wanted: Settings) -> dict[str, str]:
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
