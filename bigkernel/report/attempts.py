"""The attempts of a run: the jobs of its journal, each replayed by itself; or one, read from receipts.

A board forgets old jobs and a report does not, so that every job has a board of its own. Lines may be damaged and still
be JSON: values that are not what they should be leave out the line or the attempt, never the report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigkernel.monitor import journal
from bigkernel.monitor.board import Board
from bigkernel.runs import Receipt
from bigkernel.survey import RunState

_ALONE = "receipts"  # names the one attempt of a run without a journal


@dataclass(frozen=True)
class Attempt:
    """One job that worked in the run: its snapshot (`Board.snapshot`), and when its last message came."""

    job: Mapping[str, Any]
    last: float

    @property
    def started(self) -> float:
        """Seconds since 1970."""
        return float(self.job["started"])

    @property
    def ended(self) -> float:
        """Seconds since 1970; of a job that did not end, its last message."""
        return float(self.job["ended"] or self.last)


def attempts_of(root: Path, gaps: list[str]) -> list[Attempt]:
    """The jobs of the journal, each in books of its own: a board forgets old jobs, a report does not."""
    boards: dict[str, Board] = {}
    last: dict[str, float] = {}
    damaged = 0
    try:
        for message, _ in journal.read(root):
            try:
                job, now = str(message["job"]), float(message["time"])
                last[job] = max(now, last.get(job, now))
                boards.setdefault(job, Board()).apply(message, now)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
                damaged += 1
    except (OSError, ValueError) as error:
        gaps.append(f"The journal cannot be read: {error}.")
    if damaged:
        gaps.append(f"{damaged:,} lines of the journal are damaged and left out.")
    found = []
    for job, board in boards.items():
        snapshots = _snapshots(board, last[job])
        found += [Attempt(snapshot, last[job]) for snapshot in snapshots]
        if board.jobs and not snapshots:
            gaps.append("What the journal tells of one attempt is damaged and left out.")
    return sorted(found, key=lambda attempt: attempt.started)


def _snapshots(board: Board, now: float) -> list[dict[str, Any]]:
    """The jobs of a board whose values are what they should be: a line may be damaged and still be JSON."""
    try:
        return [job for job in board.snapshot(now)["jobs"] if _sound(job)]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError):
        return []


def _sound(job: Mapping[str, Any]) -> bool:
    try:
        numbers = [job["started"], job["ended"] or 0, job["elapsed_seconds"], *job["stage_seconds"].values()]
        numbers += [event["time"] for event in job["events"]]
        for sweep in job["sweeps"]:
            plan = sweep["plan"]
            numbers += [sweep["started"], sweep["elapsed_seconds"], sweep["rows"], sweep["announced_bytes"]]
            numbers += [plan.get(key) or 0 for key in ("rows", "flops", "bytes_read")]
            numbers += [sweep["flops_per_second"], sweep["calibrated_flops_per_second"], *sweep["segments"].values()]
            numbers += [value for point in sweep["rate_history"] for value in point]
            numbers += sweep["stage_seconds"].values()
            for share in sweep["workers"].values():
                numbers += [share["segments"], share["rows"], share["busy_seconds"], share["peak_bytes"]]
        return all(isinstance(value, int | float) and math.isfinite(value) for value in numbers)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return False


def replayed(state: RunState, receipts: list[Receipt]) -> tuple[tuple[int, Mapping[str, Any]], ...]:
    """The books of a sweep as its receipts tell them, for a run without a journal."""
    leaves = {receipt.node: receipt for receipt in receipts if receipt.node.startswith("0-")}
    count = state.segments
    stops = [
        leaves[f"0-{i}"].stop if f"0-{i}" in leaves else round(state.rows * (i + 1) / max(1, count))
        for i in range(count)
    ]
    begun = min(receipt.ended - receipt.elapsed for receipt in receipts)
    about = {"job": _ALONE, "sweep": _ALONE}
    board = Board()
    plan = {"rows": state.rows, "segments": count, "flops": 0.0, "bytes_read": 0}
    messages: list[dict[str, Any]] = [
        {"kind": "job_started", "job": _ALONE, "title": "", "host": "", "pid": 0, "run": ""},
        {
            **{"kind": "sweep_started", **about, "what": "", "executor": "", "run": state.path, "plan": plan},
            **{"stops": stops, "announced_bytes": 0, "calibrated": 0.0},
        },
    ]
    for receipt in receipts:
        if receipt.node in leaves:
            messages.append({"kind": "segment", **about, "receipt": receipt.to_json(), "time": receipt.ended})
    end = receipts[-1].ended
    if state.state == "finished":
        messages.append(
            {"kind": "sweep_ended", **about, "seconds": end - begun, "error": "", "stages": {}, "time": end}
        )
    for message in messages:
        board.apply(message, float(message.get("time", begun)))
    return tuple((0, sweep) for job in board.snapshot(end)["jobs"] for sweep in job["sweeps"])
