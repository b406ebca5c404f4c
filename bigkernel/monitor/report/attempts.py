"""The attempts of a run: the jobs of its journal, each replayed by itself; or one, read from receipts.

A board forgets old jobs and a report does not, so that every job has a board of its own. Lines may be damaged, or
written by somebody who means harm, and still be JSON: values that are not what they should be leave out the line or the
attempt, never the report.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigkernel.data.run_directory import Receipt
from bigkernel.data.run_status import RunState
from bigkernel.events import journal
from bigkernel.events.board import Board

# what values that are not what they should be raise
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError)
_ALONE = "receipts"  # names the one attempt of a run without a journal
_LATEST = 1e11  # seconds since 1970, about the year 5100
_LARGEST = 1e60  # of any figure; products of a few of them are still finite
_DEEPEST = 20  # lists and objects within one another, in figures and plans


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
                job, now = str(message["job"]), time_of(message)
                last[job] = max(now, last.get(job, now))
                boards.setdefault(job, Board(bounded=False)).apply(message, now)
            except DAMAGED:
                damaged += 1
    except (OSError, ValueError, RecursionError) as error:
        gaps.append(f"The journal cannot be read: {error}.")
    if damaged:
        gaps.append(f"{damaged:,} lines of the journal are damaged and left out.")
    found = []
    for job, board in boards.items():
        there = len(board.jobs)
        found += [Attempt(snapshot, last[job]) for snapshot in sound_snapshot(board, last[job])["jobs"]]
        if len(board.jobs) < there:
            gaps.append("What the journal tells of one attempt is damaged and left out.")
    return sorted(found, key=lambda attempt: attempt.started)


def time_of(message: Mapping[str, Any]) -> float:
    """Return when a line of a journal was written, in seconds since 1970.

    Raises
    ------
    KeyError, TypeError, ValueError, OverflowError
        It says no time, or one that no clock shows.
    """
    time = float(message["time"])
    if not 0 <= time < _LATEST:
        raise ValueError(f"expected seconds since 1970, found {time}")
    return time


def sound_snapshot(board: Board, now: float) -> dict[str, Any]:
    """`Board.snapshot` of jobs whose values are what they should be; the board forgets all others."""
    try:
        found = board.snapshot(now)
        if all(_sound(job) for job in found["jobs"]):
            return found
    except DAMAGED:
        pass  # of which job is found below
    for name, job in list(board.jobs.items()):
        try:
            sound = _sound(job.snapshot(now))
        except DAMAGED:
            sound = False
        if not sound:
            del board.jobs[name]
    return board.snapshot(now)


def _sound(job: Mapping[str, Any]) -> bool:
    """Tell whether all figures that are drawn, added up or printed are figures, and all names are names."""
    step, nested = job["step"] or {"what": "", "done": 0, "total": 0}, [job["figures"]]
    times, names = [job["started"], job["ended"] or 0, *(event["time"] for event in job["events"])], [step["what"]]
    numbers = [job["elapsed_seconds"], *job["stage_seconds"].values(), step["done"], step["total"]]
    for sweep in job["sweeps"]:
        plan = sweep["plan"]
        nested.append(plan)
        times += [sweep["started"], sweep["ended"] or 0]
        numbers += [sweep[key] for key in ("elapsed_seconds", "rows", "rows_done", "rows_under_way", "announced_bytes")]
        numbers += [plan.get(key) or 0 for key in ("rows", "flops", "bytes_read")]
        numbers += [sweep["flops_per_second"], sweep["calibrated_flops_per_second"], *sweep["segments"].values()]
        numbers += [value for point in sweep["rate_history"] for value in point]
        numbers += [*sweep["stage_seconds"].values(), *(sweep["left_seconds"] or {}).values()]
        names += [*sweep["workers"], *sweep["ran_on"].values()]
        for share in sweep["workers"].values():
            numbers += [share["segments"], share["rows"], share["busy_seconds"], share["peak_bytes"]]
    return (
        all(isinstance(value, int | float) and abs(value) < _LARGEST for value in numbers)
        and all(isinstance(time, int | float) and 0 <= time < _LATEST for time in times)
        and all(isinstance(name, str) for name in names)
        and all(_shallow(value, _DEEPEST) for value in nested)
    )


def _shallow(value: Any, depth: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_shallow(item, depth - 1) for item in items)


def place_of(job_run: str, sweep_run: str) -> str:
    """Return where a sweep kept its results, below the directory of its journal, which may have been moved since.

    The journal of a job without a run directory is that of the sweep itself.
    """
    return os.path.relpath(sweep_run, job_run or sweep_run)


def may_hold(holder: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Tell whether the holder of a lock (`run_lock.read`) may be the driver of a job; a damaged lock names nobody."""
    return not holder["pid"] or (holder["host"], holder["pid"]) == (job["host"], job["pid"])


def finished_untold(root: Path, states: Sequence[RunState], told: Collection[str | None]) -> bool:
    """Tell whether a driver without a journal has finished what the jobs of the journal had begun.

    All sweeps are finished, of some the journal does not tell it (`told`: places of those of which it does), and the
    last receipt is younger than the journal, by the clock of their file system.
    """
    if not states or any(state.state != "finished" for state in states):
        return False
    if all(os.path.relpath(state.path, root) in told for state in states):
        return False
    try:
        return max(state.changed for state in states) > (root / journal.NAME).stat().st_mtime
    except OSError:
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
