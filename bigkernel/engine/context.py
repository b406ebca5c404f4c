"""The execution of a block of code: its client and its run directory; `executing(client, run=…)` around any fit."""

from __future__ import annotations

import ipaddress
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import distributed
from distributed import Client

from bigkernel.config import settings
from bigkernel.data.atomic_write import clear_orphans, write_json
from bigkernel.data.run_directory import make_directory
from bigkernel.data.run_lock import locked
from bigkernel.engine.driver_blas import solving_as_begun
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError
from bigkernel.events.kinds import Figures, Note
from bigkernel.events.scope import emit, job
from bigkernel.events.sinks import send_to_scheduler, show_run, write_journal

_LONGEST_TITLE = 200
ExecutorChoice: TypeAlias = Client | Literal["serial", "threads"] | None  # what users pass as `client`


class JobDirectory:
    """The run directory of a job, and below it those of its sweeps: "moments", "moments-2", … in order."""

    def __init__(self, path: str, *, resume: bool) -> None:
        self.path, self.resume = path, resume  # sweeps that are there are gone on with
        self._begun: Counter[str] = Counter()  # sweeps by what they are for

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
    """The client of the sweeps of a block of code, and the directory where they can be resumed; see `executing`."""

    client: ExecutorChoice = None
    job: JobDirectory | None = None


_DEFAULT = Execution()
_execution: ContextVar[Execution] = ContextVar("bigkernel_execution", default=_DEFAULT)


@contextmanager
def executing(
    client: ExecutorChoice = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    command: Sequence[str] = (),
) -> Iterator[None]:
    """Choose client and run directory for every sweep inside the block, those of estimators included.

    Each sweep has its own directory below `run`, named after what it is for, and numbered from the second on. With
    `resume`, sweeps that are there are gone on with, and the others are started. Inside the block, BLAS of this process
    has as many threads as when the run began, so that what is solved keeps its bits. The directory is locked meanwhile;
    `command` is noted in it, for whoever has to start the job again. The block is one job for all who watch: in the
    journal and the report (`report.html`) of the run, on the dashboard of the scheduler.

    Raises
    ------
    RunLocked
        Another driver works in `run`.
    DataError
        `run` cannot be written.

    Warns
    -----
    DifferentBlas
        The run began with another BLAS, or with a number of threads that this one does not take.
    """
    wanted, directory = settings(), None if run is None else os.fspath(run)
    with ExitStack() as stack:
        left_by = ""
        if directory is not None:
            make_directory(directory)
            left_by = stack.enter_context(locked(directory)).left_by
            clear_orphans(Path(directory) / "command.json")
            if command:
                write_json(Path(directory) / "command.json", {"command": list(command)})
            begun, before = stack.enter_context(solving_as_begun(Path(directory)))
            if wanted.monitor:
                stack.callback(show_run, directory)
        scope = stack.enter_context(job(_title(command), "" if directory is None else str(Path(directory).absolute())))
        send_to_scheduler(scope, client, wanted=wanted.monitor)
        if directory is not None and wanted.monitor:
            write_journal(scope, directory)
        if left_by:
            emit(Note(f"{directory}: {left_by} died and left its lock, which is taken"))
        if directory is not None:
            emit(Figures("driver", {"blas_threads": begun.threads, "blas": begun.libraries}))
            if begun.threads != before.threads:
                slower = f", which takes longer on {processors()}" if begun.threads > processors() else ""
                taken = f"solves with {begun.threads} BLAS threads as the run began{slower}"
                emit(Note(f"{taken}; this process had {before.threads}"))
        place = None if directory is None else JobDirectory(directory, resume=resume)
        token = _execution.set(Execution(client, place))
        stack.callback(_execution.reset, token)
        yield


def _title(command: Sequence[str]) -> str:
    """Title the job for people: the command without its path, or the name of the script or package."""
    words = list(command or sys.argv[:1])
    if words:
        script = Path(words[0])
        words[0] = script.parent.name if script.name == "__main__.py" else script.name  # of `python -m package`
    return shlex.join(words)[:_LONGEST_TITLE] or "python"


def choose(rows: Rows, client: ExecutorChoice) -> Client | Literal["serial", "threads"]:
    """Choose the client or the name of the executor that runs the tasks; see `sweep`."""
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
            "client: this distributed.Client is asynchronous, and a fit waits for its answers; make one without "
            "asynchronous=True, for instance Client(client.scheduler.address)"
        )
    return client


def executor_in_force(rows: Rows) -> Client | Literal["serial", "threads"]:
    """Return the client or the name of the executor that would run a sweep of these rows now."""
    return choose(rows, _execution.get().client)


def in_force() -> Execution:
    """Return the execution of the surrounding `executing`."""
    return _execution.get()


def forget(what: str) -> None:
    """Remove what the last sweep for `what` left in the run in force; the next one for it starts anew in its place."""
    job = in_force().job
    if job is not None:
        job.forget(what)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_loopback(host: str) -> bool:
    """Tell if only this machine is meant: "localhost" or an address such as 127.0.0.1 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # any other name may lead elsewhere
