"""The state of a run directory (its journal, its lock, its finished work), and the page that shows it.

    bigkernel.monitor.report.write("digits.run")        # digits.run/report.html
    bigkernel report digits.run

The page opens without a network. Lines of a journal may be damaged or malicious and still be JSON: lines with invalid
values are left out.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import bigkernel
from bigkernel.data import run_lock
from bigkernel.data.atomic_write import replacing, require_target, writing
from bigkernel.data.run_directory import RunState, command_of, survey
from bigkernel.errors import DataError
from bigkernel.events import journal
from bigkernel.events.board import DAMAGED, Board, Job
from bigkernel.monitor.page import render

State = dict[str, Any]

NAME = "report.html"
_DIED = "the driver died"
_OF_SWEEP = ("state", "segments", "segments_done", "rows", "rows_done", "settings")
_LATEST = 1e11  # seconds since 1970, about the year 5100
_MOST_DETAILED = 40  # sweeps whose segments are shown, the longest
_DETAILS = ("stops", "states", "fractions", "running_on", "ran_on", "attempts", "rate_history")


def write(run: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a run directory atomically, and return its path.

    Parameters
    ----------
    run : directory of a run, finished or not; running jobs are reported in their current state
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
    with writing(target, passing=False), replacing(target) as scratch:
        scratch.write_text(text, encoding="utf-8")
    return target


def gather(run: str | os.PathLike[str]) -> State:
    """Return the state that the page shows (`RunReader.look`), with all attempts; raise `DataError` if there is no run.

    Of more than forty sweeps only the longest keep their segments. `residual_limit` of `run`: residuals above it are
    not rounding; `error_limit`: larger estimated errors of predictions cause a warning.
    """
    from bigkernel.solvers.residuals import ENOUGH, LIMIT  # imports SciPy, which `watch` does not need

    state = RunReader(run, bounded=False).look()
    sweeps = [sweep for job in state["jobs"] for sweep in job["sweeps"]]
    for sweep in sorted(sweeps, key=lambda sweep: -sweep["elapsed_seconds"])[_MOST_DETAILED:]:
        for name in _DETAILS:
            del sweep[name]
    state["run"] |= {"residual_limit": LIMIT, "error_limit": ENOUGH}
    return state


class RunReader:
    """Reads a run directory repeatedly, and of its journal only what is new; raises `DataError` if there is no run.

    `bounded`: old ended jobs are dropped; else all attempts are kept.
    """

    def __init__(self, path: str | os.PathLike[str], *, bounded: bool = True) -> None:
        self.path = Path(path)
        if not os.path.isdir(self.path) or not (self._holder() or (self.path / journal.NAME).exists()):
            survey(self.path)  # raises an error if there is no run
        self._bounded = bounded
        self._alive = 0.0  # when its driver was last seen
        self._restart()

    def _restart(self) -> None:
        self._board, self._start, self._latest = Board(bounded=self._bounded), 0, 0.0
        self._died, self._damaged = "", 0

    def _holder(self) -> State:
        """Return the live holder of the lock, as `run_lock.read` does; empty if there is none."""
        holder = run_lock.read(self.path)
        return holder if holder and holder["alive"] else {}

    def look(self) -> State:
        """Return `Board.snapshot` of its jobs, with the state of the directory under `run`.

        Keys of `run`: `path`, `name`, `state` (finished, running, interrupted, failed, unreadable), `command` (to go on
        with), `holder` (who works there), `died` (the driver that did), `journal` (there are jobs), `known` (by the
        journal, not by receipts alone), `silent_seconds`, `segments` (of the sweeps begun, with `planned` of all),
        `segments_done`, `sweeps` (`name`, `state`, `segments`, `segments_done`, `rows`, `rows_done`, `settings`),
        `gaps` (what could not be read) and `version`.
        """
        before = self._holder()
        self._read()
        # a driver takes the lock before its job begins, and releases it after the job has ended
        after = self._holder()
        holders = [one for one in (before, after) if one]
        now = max(time.time(), self._latest)  # the clock may have been set back since
        with suppress(OSError):  # drivers touch the lock every few seconds, and a dead one has left it
            self._alive = max(self._alive, (self.path / run_lock.NAME).stat().st_mtime)
        self._alive = now if holders else max(self._alive, self._latest)
        for job in self._running():
            if not any(_may_hold(one, job) for one in holders):
                job.end("lost", self._latest if holders else self._alive, _DIED)
                self._died = f"process {job.pid} on {job.host}"
        if holders:
            self._died = ""
        # nothing is known about a lost job after its last message
        state = {**self._board.snapshot(now if holders else self._latest or now), "time": now}
        return {**state, "run": self._run_state(after or before, now)}

    def _read(self) -> None:
        with suppress(FileNotFoundError):
            if (self.path / journal.NAME).stat().st_size < self._start:
                self._restart()  # another journal in its place
        with suppress(OSError):
            for message, start in journal.read(self.path, start=self._start):
                self._start = start
                try:
                    self._take(message or {})
                except DAMAGED:
                    self._damaged += 1

    def _take(self, message: Mapping[str, Any]) -> None:
        moment = float(message["time"])
        if not 0 <= moment < _LATEST:
            raise ValueError(f"expected seconds since 1970, found {moment}")
        self._latest = moment
        if message["kind"] == "job_started" and message["job"] not in self._board.jobs:
            for job in self._running():  # there is one driver at a time
                job.end("lost", moment, _DIED)
        self._board.apply(message, moment)

    def _running(self) -> list[Job]:
        return [job for job in self._board.jobs.values() if job.state == "running"]

    def _run_state(self, holder: State, now: float) -> State:
        jobs, gaps = list(self._board.jobs.values()), list[str]()
        busy = bool(holder) and any(_may_hold(holder, job) for job in self._running())
        states: list[RunState] = []
        if not (busy and self._bounded):  # its journal says enough, and receipts are many
            try:
                states = survey(self.path)
            except DataError:
                gaps.append("No sweep has started.")
        other = bool(holder) and not any(_may_hold(holder, job) for job in jobs)
        known = bool(jobs) and not other
        if not known:
            self._died = ""
            gaps.append("The last attempt left no journal; its progress is known from receipts only.")
        if self._damaged:
            gaps.append(f"{self._damaged:,} damaged lines of the journal are left out.")
        state, command = _state(jobs if known else [], holder, states), command_of(self.path)
        if command and state in ("interrupted", "failed") and "--resume" not in command:
            command.append("--resume")
        named = {os.path.relpath(one.path, self.path): one for one in states}
        damaged = [name for name, one in named.items() if one.state == "unreadable"]
        gaps += [f"{name}/manifest.json is damaged: the settings are unknown." for name in damaged]
        # all sweeps of a search have the same rows, hence as many segments
        search = jobs[-1].search if known else None
        count = max(len(states), search.count) if search else len(states)
        return {
            "path": str(self.path),
            "name": self.path.absolute().name,
            "state": state,
            "command": shlex.join(command),
            "holder": run_lock.holder_name(holder) if holder else "",
            "died": self._died,
            "journal": bool(jobs),
            "known": known,
            "silent_seconds": now - self._alive,
            "planned": search is not None,
            "segments": sum(one.segments for one in (*states, *states[-1:] * (count - len(states)))),
            "segments_done": sum(one.segments_done for one in states),
            "sweeps": [{"name": name, **{key: getattr(one, key) for key in _OF_SWEEP}} for name, one in named.items()],
            "gaps": gaps,
            "version": bigkernel.__version__,
        }


def _may_hold(holder: Mapping[str, Any], job: Job) -> bool:
    """Return True if the holder of a lock may be the driver of a job; a damaged lock names nobody."""
    return not holder["pid"] or (holder["host"], holder["pid"]) == (job.host, job.pid)


def _state(jobs: Sequence[Job], holder: State, sweeps: Sequence[RunState]) -> str:
    # a job that is refused, as the run belongs to another, has no sweep and leaves the run as it was
    ran = [job for job in jobs if job.sweeps or job.state != "failed"] or jobs
    last = max(ran, key=lambda job: job.started).state if ran else ""
    if last:
        return "interrupted" if last == "lost" else last
    if holder:
        return "running"
    states = [sweep.state for sweep in sweeps]
    return next((state for state in ("unreadable", "running", "interrupted") if state in states), "finished")
