"""The state of the runs below a directory: finished, being worked on, or interrupted, and what is left to do.

Looks at names and receipts only, so that it takes a moment and disturbs nobody; `bigkernel check` reads the content.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigkernel.data import run_lock
from bigkernel.data.run_directory import Run, read_sealed, sweeps_below
from bigkernel.errors import DataError, ResumeMismatch

_MOST_SEGMENTS = 2**20  # whoever names more did not plan them


@dataclass(frozen=True)
class RunState:
    """One run; its counts are 0 where it has no segments."""

    path: str
    state: str  # "finished", "running", "interrupted", or "unreadable"
    segments: int = 0
    segments_done: int = 0
    rows: int = 0
    rows_done: int = 0
    repeats: int = 0  # times that a segment was begun again
    changed: float = 0.0  # seconds since 1970 of the last receipt, or of the manifest
    holder: str = ""  # process and host that work on it, or empty


def survey(directory: str | os.PathLike[str]) -> list[RunState]:
    """Return the runs in and below a directory, by path; a DataError where there is none."""
    root = Path(directory)
    if not os.path.isdir(root):
        raise DataError(
            f"{directory}: expected a run directory, found {'a file' if os.path.exists(root) else 'nothing'}"
        )
    found = sweeps_below(root)
    above = _holder(root)
    if not found:
        raise DataError(f"{directory}: no run is there{f' yet; {above} is at work' if above else ''}")
    return [_state(path, above) for path in found]


def command_of(directory: str | os.PathLike[str]) -> list[str]:
    """Return the command that began the run, where it was noted."""
    try:
        noted = json.loads((Path(directory) / "command.json").read_text())["command"]
        return [str(word) for word in noted]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _state(path: Path, above: str) -> RunState:
    manifest = path / "manifest.json"
    try:
        plan: dict[str, Any] = read_sealed(manifest).get("plan", {})
        segments, rows = int(plan.get("segments", 0)), int(plan.get("rows", 0))
        if not 0 <= segments <= _MOST_SEGMENTS:
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, ResumeMismatch):
        return RunState(str(path), "unreadable", changed=manifest.stat().st_mtime)
    run = Run(str(path))
    done = [receipt for i in range(segments) if (receipt := run.receipt(f"0-{i}"))]
    holder = _holder(path) or above
    root = f"{max(0, segments - 1).bit_length()}-0"  # of the binary tree over the segments
    ready = not segments or (run.receipt(root) is not None and (path / "partials" / root).is_dir())
    return RunState(
        str(path),
        "finished" if ready else "running" if holder else "interrupted",
        segments,
        len(done),
        rows,
        sum(receipt.rows for receipt in done),
        sum(max(0, len(run.starts(f"0-{i}")) - 1) for i in range(segments)),
        max((os.path.getmtime(file) for file in (path / "receipts").glob("*.json")), default=manifest.stat().st_mtime),
        holder,
    )


def _holder(path: Path) -> str:
    found = run_lock.read(path)
    return run_lock.holder_name(found) if found and found["alive"] else ""
