"""Who runs the sweeps of a block of code, and in which run directory: `executing(client, run=…)` around any fit."""

from __future__ import annotations

import ipaddress
import logging
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import distributed
from distributed import Client

from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError
from bigkernel.monitor.events import Note
from bigkernel.monitor.scope import emit, job
from bigkernel.monitor.sinks import send_to_scheduler, write_journal
from bigkernel.storage.run_directory import make_directory, write_json
from bigkernel.storage.run_lock import locked

_LONGEST_TITLE = 200
_log = logging.getLogger(__name__)
Executor: TypeAlias = Client | Literal["serial", "threads"] | None


@dataclass(frozen=True)
class Execution:
    """Who runs the sweeps of a block of code, and where they may be resumed; see `executing`."""

    client: Executor = None
    run: str | None = None
    resume: bool = False
    sweeps: Counter[str] = field(default_factory=Counter)

    def directory(self, what: str) -> Path:
        """Where the next sweep for `what` publishes: "moments", "moments-2", … below the run."""
        assert self.run is not None
        self.sweeps[what] += 1
        count = self.sweeps[what]
        return Path(self.run) / (what if count == 1 else f"{what}-{count}")


_DEFAULT = Execution()
_execution: ContextVar[Execution] = ContextVar("bigkernel_execution", default=_DEFAULT)


@contextmanager
def executing(
    client: Executor = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    command: Sequence[str] = (),
) -> Iterator[None]:
    """Choose client and run directory for every sweep inside the block, those of estimators included.

    Each sweep has its own directory below `run`, named after what it is for, and numbered from the second on. With
    `resume`, sweeps that are there are gone on with, and the others are started. The directory is locked meanwhile;
    `command` is noted in it, for whoever has to start the job again. The block is one job for all who watch: in the
    journal and the report (`report.html`) of the run, on the dashboard of the scheduler.

    Raises
    ------
    RunLocked
        Another driver works in `run`.
    DataError
        `run` cannot be written.
    """
    with ExitStack() as stack:
        if run is not None:
            make_directory(run)
            lock = stack.enter_context(locked(run))
            if command:
                write_json(Path(run) / "command.json", {"command": list(command)})
        if run is not None:
            stack.callback(report, run)
        scope = stack.enter_context(job(_title(command), "" if run is None else os.fspath(Path(run).absolute())))
        send_to_scheduler(scope, client, wanted=settings().monitor)
        if run is not None and settings().monitor:
            write_journal(scope, run)
        if run is not None and lock.left_by:
            emit(Note(f"{os.fspath(run)}: {lock.left_by} died and left its lock, which is taken"))
        token = _execution.set(Execution(client, None if run is None else os.fspath(run), resume))
        stack.callback(_execution.reset, token)
        yield


def _title(command: Sequence[str]) -> str:
    """What the job is, for people: the command without its path, or the name of the script."""
    words = list(command or sys.argv[:1])
    if words:
        words[0] = Path(words[0]).name
    return shlex.join(words)[:_LONGEST_TITLE] or "python"


def report(run: str | os.PathLike[str]) -> None:
    """Leave the report of a run, however the job ended; that it cannot be written is told, and ends nothing."""
    if not settings().monitor:
        return
    try:
        from bigkernel.monitor.report import write  # late: a worker does without it

        write(run)
    except Exception as error:
        _log.warning("%s: no report is written (%s: %s)", os.fspath(run), type(error).__name__, error)


def choose(rows: Rows, client: Executor) -> Client | Literal["serial", "threads"]:
    """Who runs the tasks; see `sweep`."""
    if isinstance(client, Client):
        return "threads" if rows.in_memory else client
    if client in ("serial", "threads"):
        return client
    if client is not None:
        raise ConfigError(f"client: expected a distributed.Client, 'serial', 'threads' or None, found {client!r}")
    if not rows.in_memory:
        try:
            return distributed.default_client()
        except ValueError:
            pass
    return "threads"


def executor_in_force(rows: Rows) -> Client | Literal["serial", "threads"]:
    """Who would run a sweep of these rows now."""
    return choose(rows, _execution.get().client)


def in_force() -> Execution:
    """What the surrounding `executing` says."""
    return _execution.get()


def run_in_force() -> tuple[str | None, bool]:
    """The run directory of the surrounding `executing`, and whether it is gone on with."""
    execution = _execution.get()
    return execution.run, execution.resume


def forget(what: str) -> None:
    """Remove what the last sweep for `what` left in the run in force; the next one for it starts anew in its place."""
    execution = _execution.get()
    if execution.run is not None and execution.sweeps[what]:
        execution.sweeps[what] -= 1
        shutil.rmtree(execution.directory(what), ignore_errors=True)  # counts it once more
        execution.sweeps[what] -= 1


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_loopback(host: str) -> bool:
    """Whether only this machine is meant: "localhost" or an address such as 127.0.0.1 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # any other name may lead elsewhere
