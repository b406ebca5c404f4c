"""The facts in a run directory: its attempts, its sweeps over all attempts, its settings, what came out.

Attempts are the jobs of the journal, each replayed by itself; what they did to one sweep directory is added up. A run
without a journal (or one that lost it) is read from its receipts, as one attempt. Whatever is missing or damaged is
left out and named in `Facts.gaps`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bigkernel.data import run_lock
from bigkernel.data.run_directory import Receipt, Run, read_sealed
from bigkernel.data.run_status import RunState, command_of, survey
from bigkernel.errors import DataError
from bigkernel.events.progress import MERGED, PUBLISHED
from bigkernel.monitor.report.attempts import Attempt, attempts_of, finished_untold, may_hold, place_of, replayed


@dataclass(frozen=True)
class Sweep:
    """One sweep directory, over all attempts; or a sweep that kept nothing, of one attempt.

    Attributes
    ----------
    name : of the directory below the run, or what the sweep was for
    state : "finished", "running", "interrupted", "unreadable" or "failed"
    segments, segments_done, rows, rows_done : int
    parts : its snapshots, each with the number of its attempt
    receipts : of segments and merges, with the number of the attempt that made them
    settings : everything that changes its result, by name
    """

    name: str
    state: str
    segments: int = 0
    segments_done: int = 0
    rows: int = 0
    rows_done: int = 0
    parts: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    receipts: tuple[tuple[int, Receipt], ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Return planned and measured figures, over all attempts; None where it is not known."""
        parts = [part for _, part in self.parts]
        plan = dict(parts[-1]["plan"]) if parts else {}
        seconds = sum(float(part["elapsed_seconds"]) for part in parts)
        flops = sum(float(part["flops_per_second"]) * float(part["elapsed_seconds"]) for part in parts)
        calibrated = max((float(part["calibrated_flops_per_second"]) for part in parts), default=0.0)
        workers = self.workers()
        peak = max((int(worker["peak_bytes"]) for worker in workers.values()), default=0)
        leaves = [receipt for _, receipt in self.receipts if receipt.node.startswith("0-")]
        return {
            "sweep": self.name,
            "state": self.state,
            "attempts": len(parts),
            "segments": self.segments,
            "segments_done": self.segments_done,
            "rows": self.rows,
            "rows_done": self.rows_done,
            "planned_flops": plan.get("flops") or None,
            "computed_flops": flops or None,
            "planned_bytes_read": plan.get("bytes_read") or None,
            "bytes_read": sum(receipt.bytes_read for receipt in leaves) or None,
            "announced_bytes": max((int(part["announced_bytes"]) for part in parts), default=0) or None,
            "peak_bytes": peak or None,
            "predicted_seconds": plan["flops"] / calibrated if calibrated and plan.get("flops") else None,
            "seconds": seconds or None,
            "calibrated_flops_per_second": calibrated or None,
            "flops_per_second": flops / seconds if flops and seconds else None,
            "stage_seconds": self.stages(),
            "skipped_rows": sum(receipt.skipped for receipt in leaves),
            "retries": sum(len(receipt.retries) for receipt in leaves),
            "repeated_segments": sum(receipt.starts > 1 for receipt in leaves),
            "workers": workers,
        }

    def stages(self) -> dict[str, float]:
        """Seconds of all workers by stage, over all attempts."""
        stages: dict[str, float] = {}
        for _, part in self.parts:
            for stage, seconds in part["stage_seconds"].items():
                stages[stage] = stages.get(stage, 0.0) + float(seconds)
        return stages

    def workers(self) -> dict[str, dict[str, float]]:
        """Segments, rows, busy seconds and highest memory of every worker, over all attempts."""
        workers: dict[str, dict[str, float]] = {}
        for _, part in self.parts:
            for name, share in part["workers"].items():
                one = workers.setdefault(name, {"segments": 0, "rows": 0, "busy_seconds": 0.0, "peak_bytes": 0})
                for key in ("segments", "rows", "busy_seconds"):
                    one[key] += share[key]
                one["peak_bytes"] = max(one["peak_bytes"], share["peak_bytes"])
        return workers


@dataclass(frozen=True)
class Facts:
    """All that a run directory tells.

    Attributes
    ----------
    run : its path
    state : "finished", "running", "interrupted", "failed" or "unreadable"
    error : of the last attempt
    command : that began it, or that an interrupted one is gone on with; empty where none was noted
    attempts : in order of their start
    sweeps : in order of their first work
    gaps : what could not be read, a sentence each
    """

    run: str
    state: str
    error: str
    command: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    sweeps: tuple[Sweep, ...]
    gaps: tuple[str, ...]

    @property
    def outcome(self) -> dict[str, Any]:
        """Figures that jobs gave by name ("fit", "score"), the latest of each."""
        found: dict[str, Any] = {}
        for attempt in self.attempts:
            found.update(attempt.job["figures"])
        return {name: values for name, values in found.items() if isinstance(values, Mapping)}

    @property
    def driver_stages(self) -> dict[str, float]:
        """Seconds of the driver by stage, over all attempts."""
        stages: dict[str, float] = {}
        for attempt in self.attempts:
            for stage, seconds in attempt.job["stage_seconds"].items():
                stages[stage] = stages.get(stage, 0.0) + float(seconds)
        return stages

    def to_json(self) -> dict[str, Any]:
        """The figures of the page as plain data."""
        keys = ("id", "title", "host", "pid", "state", "error", "started", "ended", "elapsed_seconds", "events")
        return {
            "run": self.run,
            "state": self.state,
            "error": self.error,
            "command": list(self.command),
            "attempts": [{key: attempt.job[key] for key in keys} for attempt in self.attempts],
            "sweeps": [{**sweep.figures(), "settings": dict(sweep.settings)} for sweep in self.sweeps],
            "driver_stage_seconds": self.driver_stages,
            "figures": self.outcome,
            "gaps": list(self.gaps),
        }


def gather(run: str | os.PathLike[str]) -> Facts:
    """Read a run directory.

    Raises
    ------
    DataError
        There is no run and no journal in it.
    """
    root, gaps = Path(run), list[str]()
    attempts = attempts_of(root, gaps)
    try:
        states = survey(root)
    except DataError:
        if not attempts:
            raise
        states = []
        gaps.append("No sweep had begun.")
    last = attempts[-1].job["state"] if attempts else ""
    holder = run_lock.read(root)
    alive = holder is not None and bool(holder["alive"])
    untold = bool(attempts) and alive and not may_hold(holder or {}, attempts[-1].job)
    at_work = untold or (alive and last in ("", "running"))
    sweeps = [_stored(root, state, attempts, gaps, at_work=at_work) for state in states]
    if not attempts and any(sweep.parts for sweep in sweeps):
        gaps.append("There is no journal: times and workers are those of the receipts.")
    places = {os.path.relpath(state.path, root) for state in states}
    sweeps += _passing(attempts, places)
    sweeps.sort(key=lambda sweep: min((part["started"] for _, part in sweep.parts), default=float("inf")))
    untold = untold or (bool(attempts) and not at_work and finished_untold(root, states, _finished_places(attempts)))
    if untold:
        gaps.append("The last attempt left no journal: what it did is known from the receipts only.")
    state = _state("" if untold else last, [sweep.state for sweep in sweeps], at_work)
    command = command_of(root)
    if command and state in ("interrupted", "failed") and "--resume" not in command:
        command.append("--resume")
    error = str(attempts[-1].job["error"]) if attempts and not untold else ""
    return Facts(os.fspath(root), state, error, tuple(command), tuple(attempts), tuple(sweeps), tuple(gaps))


def _state(last: str, sweeps: list[str], alive: bool) -> str:
    if last in ("finished", "failed", "interrupted"):
        return last
    if alive:
        return "running"
    if last:  # a job that did not end, and whose driver is gone
        return "interrupted"
    order = ("unreadable", "running", "interrupted")
    return next((state for state in order if state in sweeps), "finished")


# -- the journal -----------------------------------------------------------------------------------------------------


def _of_directory(attempts: list[Attempt], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The snapshots of one sweep directory; a run that was moved keeps the places below it."""
    for number, attempt in enumerate(attempts):
        for sweep in attempt.job["sweeps"]:
            if _place_of(attempt, sweep) == name:
                yield number, sweep


def _place_of(attempt: Attempt, sweep: Mapping[str, Any]) -> str | None:
    """Below the run; None of a sweep that kept nothing."""
    return place_of(str(attempt.job["run"]), str(sweep["run"])) if sweep["run"] else None


def _finished_places(attempts: list[Attempt]) -> set[str | None]:
    """Return the places of sweeps that were finished according to the journal."""
    pairs = [(attempt, sweep) for attempt in attempts for sweep in attempt.job["sweeps"]]
    return {_place_of(attempt, sweep) for attempt, sweep in pairs if sweep["state"] == "finished"}


def _passing(attempts: list[Attempt], stored: set[str]) -> list[Sweep]:
    """Sweeps that left no directory: each attempt's own."""
    found = []
    for number, attempt in enumerate(attempts):
        for sweep in attempt.job["sweeps"]:
            if _place_of(attempt, sweep) in stored:
                continue
            done, all_ = int(sweep["rows_done"]), int(sweep["rows"])
            state = "interrupted" if sweep["state"] == "running" else str(sweep["state"])
            segments = len(sweep["stops"])
            merged = sum(sweep["segments"].get(name, 0) for name in ("published", "merged"))
            found.append(Sweep(str(sweep["what"]), state, segments, merged, all_, done, ((number, sweep),)))
    return found


# -- the directory ---------------------------------------------------------------------------------------------------


def _stored(root: Path, state: RunState, attempts: list[Attempt], gaps: list[str], *, at_work: bool) -> Sweep:
    path = Path(state.path)
    name, settings = os.path.relpath(path, root), dict[str, str]()
    if name == ".":
        name = root.absolute().name
    try:
        job = read_sealed(path / "manifest.json").get("job")
        settings = {str(key): str(value) for key, value in job.items()} if isinstance(job, dict) else {}
    except (OSError, ValueError):
        gaps.append(f"{name}/manifest.json is damaged: its settings are not known.")
    receipts = _receipts(path)
    parts = tuple(_of_directory(attempts, os.path.relpath(path, root)))
    if not parts and receipts:
        parts = replayed(state, receipts)
    made, begun = _made_in(parts), [attempt.started for attempt in attempts]
    numbered = tuple(
        # of what no attempt told, the clock of its worker
        (made.get(receipt.node, max(0, sum(start <= receipt.ended for start in begun) - 1)), receipt)
        for receipt in receipts
    )
    seen = "interrupted" if state.state == "running" and not at_work else state.state
    return Sweep(
        name, seen, state.segments, state.segments_done, state.rows, state.rows_done, parts, numbered, settings
    )


def _made_in(parts: tuple[tuple[int, Mapping[str, Any]], ...]) -> dict[str, int]:
    """By node, the attempt that computed a segment, as the journal tells it: clocks of hosts may differ."""
    made: dict[str, int] = {}
    for number, part in parts:
        resumed = set(part["resumed"])
        for index, state in enumerate(str(part["states"])):
            if state in (PUBLISHED, MERGED) and index not in resumed:
                made.setdefault(f"0-{index}", number)
    return made


def _receipts(path: Path) -> list[Receipt]:
    """All receipts that read back; where one does not say when it ended, its file does."""
    run, found = Run(str(path)), []
    try:
        files = [file for file in (path / "receipts").iterdir() if file.suffix == ".json" and file.name[0] != "."]
    except OSError:
        return []
    for file in files:
        try:
            receipt = run.receipt(file.stem)
            if receipt is not None:
                ended = receipt.ended or file.stat().st_mtime
                found.append(replace(receipt, ended=float(ended), elapsed=float(receipt.elapsed), resumed=False))
        except (OSError, TypeError, ValueError):
            continue  # gone meanwhile, or of another version
    return sorted(found, key=lambda receipt: receipt.ended)
