"""Jobs that have finished: what a command made and told is noted in its run, so that `--resume` finds nothing to do.

A note is believed where the command, its options and the seals of what it read and made are the same; where the tasks
run is no part of that. Any other job goes the usual way, which refuses it or does it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from bigkernel.cli.said import say
from bigkernel.errors import BigKernelError, DataError
from bigkernel.monitor.terminal.figures import show

NAME = "finished.json"
_NO_PART = {"resume", "overwrite", "as_json", "cluster", "workers", "memory_limit", "dashboard_port", "tls", "dry_run"}


def job_of(*inputs: str | os.PathLike[str]) -> str:
    """A digest of the command that runs, its options, and the seals of the stores that it reads."""
    context = click.get_current_context()
    options = {name: value for name, value in sorted(context.params.items()) if name not in _NO_PART}
    known = [context.info_name, options, [seal_of(path) for path in inputs]]
    return hashlib.sha256(json.dumps(known, default=str).encode()).hexdigest()


def note_finished(run: str | None, job: str, made: str | None, figures: Mapping[str, Any]) -> None:
    """Note in a run, if there is one, that a job has finished: what it made (None: nothing) and what it told."""
    from bigkernel.data.atomic_write import clear_orphans, write_json
    from bigkernel.events.messages import plain

    if run is not None:
        # a note only: without it, the same command finds its segments finished
        with suppress(BigKernelError, OSError):
            clear_orphans(Path(run, NAME))
            write_json(Path(run, NAME), {"job": job, "made": made and seal_of(made), "figures": plain(figures)})


def tell_finished(run: str | None, job: str, made: str | None, *, as_json: bool, title: str) -> bool:
    """Tell what a job told when it finished, if this is the job and what it made is there; False: it is to be done."""
    try:
        found = json.loads(Path(run or "", NAME).read_text(encoding="utf-8"))
        if run is None or found["job"] != job or found["made"] != (made and seal_of(made, whole=True)):
            return False
        figures = dict(found["figures"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, BigKernelError):
        return False
    say_finished(made or run)
    for name in () if as_json else ("confusion", "classes"):
        figures.pop(name, None)
    show(figures, as_json=as_json, title=title)
    return True


def say_finished(what: str) -> None:
    """Say that there is nothing to do."""
    say(f"already finished: {what}", err=True)


def may_be_finished(options: Mapping[str, Any]) -> bool:
    """Tell if a command goes on with a run that has finished once: it may have nothing to start."""
    return bool(options.get("resume")) and any(
        Path(str(options.get(place) or ""), name).is_file() for place, name in (("run", NAME), ("out", "results.json"))
    )


def seal_of(path: str | os.PathLike[str], *, whole: bool = False) -> str:
    """The seal of a store; raises `DataError` where it is damaged or none, with `whole` also by its chunks' marks."""
    from bigkernel.data import seals

    seal = seals.verify(Path(path))
    for name, text in seals.changed_arrays(Path(path), seal) if whole else ():
        raise DataError(f"{os.fspath(path)}/{name}: {text}")
    return seal.digest
