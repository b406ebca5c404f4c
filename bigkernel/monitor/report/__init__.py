"""The report of a run: one page, made from its directory alone, whatever became of the job.

    bigkernel.monitor.report.write("digits.run")        # digits.run/report.html
    bigkernel report digits.run --open

The page opens without a network or a script. It says what was run, what came out and what became of it, and holds the
plan against what was measured: time, rate, memory, the work of every worker, what went wrong.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bigkernel.data.targets import require_target
from bigkernel.monitor.report.facts import Facts, gather
from bigkernel.monitor.report.sections import page_of

NAME = "report.html"

__all__ = ["NAME", "Facts", "figures", "gather", "write"]


def write(run: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a run directory, whole or not at all, and return where it is.

    Parameters
    ----------
    run : directory of a run, finished or not; one that jobs work in is reported as it is now
    path : of the page; default `report.html` in the run directory

    Raises
    ------
    DataError
        There is no run, or the page cannot be written, or would lie inside a store.
    """
    target = Path(run) / NAME if path is None else Path(path)
    if path is not None:
        require_target(target, "the report")
    return page_of(gather(run)).write(target)


def figures(run: str | os.PathLike[str]) -> dict[str, Any]:
    """The figures of the page as plain data.

    Keys: `run`, `state` (finished, running, interrupted, failed, unreadable), `error`, `command` (to go on with),
    `attempts` (jobs of the journal with their `events`), `sweeps` (planned and measured, with `settings` by name),
    `driver_stage_seconds`, `figures` that jobs gave ("fit", "score") and `gaps` (what could not be read).

    Raises
    ------
    DataError
        There is no run.
    """
    return gather(run).to_json()
