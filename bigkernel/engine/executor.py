"""The protocol of those who run the tasks of a sweep, and what they are given: plain data and a book of receipts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bigkernel.config import Settings
from bigkernel.data.run_directory import Run
from bigkernel.engine.receipt_book import ReceiptBook
from bigkernel.engine.rows import Rows
from bigkernel.engine.schedule import Schedule
from bigkernel.engine.tasks import Job, Partial
from bigkernel.events.scope import Scope
from bigkernel.streaming.plan import Plan


@dataclass(frozen=True)
class Slots:
    """The room that an executor has for tasks.

    Attributes
    ----------
    workers : workers of a cluster, or tasks at once in this process
    tasks : that run at once
    """

    workers: int
    tasks: int


@dataclass(frozen=True)
class Work:
    """A sweep that is to be run.

    Attributes
    ----------
    job : Job
        What every task needs.
    rows : Rows
    schedule : Schedule
    receipts : ReceiptBook
        Takes the receipt of every segment.
    wanted : Settings
    token : part of the names of all tasks
    require_lock : called now and then; raises where the lock of the run is lost and the sweep must not go on
    """

    job: Job
    rows: Rows
    schedule: Schedule
    receipts: ReceiptBook
    wanted: Settings
    token: str
    require_lock: Callable[[], None]


class Executor(Protocol):
    """Runs the tasks of a sweep."""

    @property
    def name(self) -> str:
        """ "serial", "threads" or "dask"."""

    def slots(self) -> Slots:
        """The room for tasks as it is now."""

    def listen(self, scope: Scope, wanted: Settings) -> None:
        """Let those hear the job who belong to the executor: the scheduler of a cluster."""

    def preflight(self, rows: Rows, steps: Plan, wanted: Settings, run: Run | None) -> int:
        """The announced peak of a process in bytes; or an error that says why the plan cannot be run here."""

    def run(self, work: Work) -> Partial:
        """Run all segments and merges that the schedule waits for; the merged partial."""
