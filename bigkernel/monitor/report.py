"""The report of a run: the page of its jobs with their state inside, made from its directory alone.

    bigkernel.monitor.report.write("digits.run")        # digits.run/report.html
    bigkernel report digits.run --open

The page opens without a network.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

from bigkernel.data.atomic_write import writing
from bigkernel.data.targets import require_target
from bigkernel.monitor.page import render
from bigkernel.monitor.run_state import RunReader

NAME = "report.html"
_MOST_DETAILED = 40  # sweeps whose segments are shown, the longest
_DETAILS = ("stops", "states", "fractions", "running_on", "ran_on", "attempts", "rate_history")


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
    text = render(gather(run))
    scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with writing(target, passing=False):
            scratch.write_text(text, encoding="utf-8")
            os.replace(scratch, target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return target


def gather(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state that the page shows (`RunReader.look`), of all attempts.

    Of more than forty sweeps only the longest keep their segments.

    Raises
    ------
    DataError
        There is no run.
    """
    state = RunReader(run, bounded=False).look()
    sweeps = [sweep for job in state["jobs"] for sweep in job["sweeps"]]
    for sweep in sorted(sweeps, key=lambda sweep: -sweep["elapsed_seconds"])[_MOST_DETAILED:]:
        for name in _DETAILS:
            del sweep[name]
    return state
