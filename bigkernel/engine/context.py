"""The execution context of a block of code, its client, run directory and device: `executing`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distributed import Client

from bigkernel.config import given_device, settings
from bigkernel.data.atomic_write import clear_orphans, write_json
from bigkernel.data.run_directory import make_directory
from bigkernel.data.run_lock import locked
from bigkernel.engine.cards import find_card
from bigkernel.engine.process import DriverBlas, processors, solving_as_begun
from bigkernel.engine.sweep import Execution, ExecutorChoice, JobDirectory, execution
from bigkernel.events.job import Figures, Note, emit, job
from bigkernel.events.sinks import send_to_scheduler, show_run, write_journal

_LONGEST_TITLE = 200


@contextmanager
def executing(
    client: ExecutorChoice = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: str | None = None,
    command: Sequence[str] = (),
) -> Iterator[None]:
    """Choose client, run directory and device for every sweep inside the block, including those of estimators.

    Each sweep has its own directory below `run`, named after its purpose and numbered from the second on. With
    `resume`, existing sweeps are continued and the others are started. Inside the block, BLAS of this process has as
    many threads as when the run began, so that solves keep their bits. The directory is locked meanwhile; `command` is
    recorded in it, for resuming. The block is one job in the journal and the report (`report.html`) of the run, and on
    the scheduler's dashboard. `device` is what computes: "cpu", "cuda" (a GPU) or "auto" (a GPU if this process, or
    every worker, has one); None: as in the settings (`bigkernel.device`, "cpu").

    Raises
    ------
    RunLockedError
        Another driver works in `run`.
    DataError
        `run` cannot be written.
    ConfigError
        This process has no such device, and is to compute on it.

    Warns
    -----
    DifferentBlasWarning
        The run began with another BLAS, or with a number of threads that is not possible here.
    """
    with ExitStack() as stack:
        stack.callback(given_device.reset, given_device.set(given_device.get() if device is None else device))
        config, directory, left_by = settings(), None if run is None else os.fspath(run), ""
        if client in ("serial", "threads"):
            find_card(config.device).require()
        if directory is not None:
            make_directory(directory)
            left_by = stack.enter_context(locked(directory)).left_by
            clear_orphans(Path(directory) / "command.json")
            if command:
                write_json(Path(directory) / "command.json", {"command": list(command)})
            begun, before = stack.enter_context(solving_as_begun(Path(directory)))
            if config.monitor:
                stack.callback(show_run, directory)
        scope = stack.enter_context(
            job(_title(command), "" if directory is None else str(Path(directory).absolute()), own=True)
        )
        if isinstance(client, Client):
            send_to_scheduler(scope, client, monitored=config.monitor)
        if directory is not None and config.monitor:
            write_journal(scope, directory)
        if left_by:
            emit(Note(f"{directory}: taking over the lock of {left_by}, which died"))
        if directory is not None:
            _tell_blas(begun, before.threads)
        place = None if directory is None else JobDirectory(directory, resume=resume)
        token = execution.set(Execution(client, place))
        stack.callback(execution.reset, token)
        yield


def _tell_blas(begun: DriverBlas, before: int) -> None:
    """Emit the BLAS of the run, and a note if this process had another number of threads before."""
    emit(Figures("driver", {"blas_threads": begun.threads, "blas": begun.libraries}))
    if begun.threads != before:
        slower = f", slower on {processors()}" if begun.threads > processors() else ""
        taken = f"solving with {begun.threads} BLAS threads, as at the start of the run{slower}"
        emit(Note(f"{taken} (this process had {before})"))


def _title(command: Sequence[str]) -> str:
    """Return a title of the job: the command without its path, or the name of the script or package."""
    arguments = list(command or sys.argv[:1])
    if arguments:
        script = Path(arguments[0])
        arguments[0] = script.parent.name if script.name == "__main__.py" else script.name  # of `python -m package`
    return shlex.join(arguments)[:_LONGEST_TITLE] or "python"


def forget(what: str) -> None:
    """Remove what the last sweep for `what` left in the current run; the next one for it starts anew in its place."""
    directory = execution.get().job
    if directory is not None:
        directory.forget(what)
