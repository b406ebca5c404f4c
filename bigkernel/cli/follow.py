"""Following a job from another terminal, by the scheduler that it runs on or by its run directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import click
from distributed import Client
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from bigkernel.cli.said import say
from bigkernel.cluster import connect
from bigkernel.cluster.cluster_file import read_file
from bigkernel.data import run_lock
from bigkernel.data.run_status import command_of, survey
from bigkernel.data.visible import visible
from bigkernel.errors import BigKernelError, ConfigError, DataError, Stalled
from bigkernel.events import journal
from bigkernel.events.board import VERSION, Board, Job
from bigkernel.events.messages import plain
from bigkernel.events.plugin import state_of
from bigkernel.monitor.report.attempts import DAMAGED, finished_untold, may_hold, place_of, sound_snapshot, time_of
from bigkernel.monitor.terminal.live import ascii_letters, done, ended_job_line, no_job, picture, run_lines, sentence

State = dict[str, Any]
Show = Callable[[State], None]

ASK_SECONDS = 30  # most that a scheduler may take to answer
CODES = {"finished": 0, "interrupted": 75, "failed": 1, "lost": 6}  # the worse, the later
_SOON_SECONDS = 0.5  # between two looks while a driver begins or ends
_EVENTS = 4  # that a log begins with
_DIED = "its driver died"


class Source(Protocol):
    """A source of the state of jobs: plain data of `Board.snapshot`, more with `workers` and `run`."""

    def look(self) -> State:
        """The state now."""


class Scheduler:
    """The books that a scheduler keeps.

    Attributes
    ----------
    runs : run directories of the jobs that ran at the last look
    """

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address
        self.runs: list[str] = []

    def look(self) -> State:
        """See `Source`.

        Raises
        ------
        ConfigError
            No job of ours has run there, or the scheduler has no bigkernel, or another one.
        Stalled
            It does not answer.
        """
        try:
            state = self._client.run_on_scheduler(state_of, callback_timeout=ASK_SECONDS)
        except (ImportError, AttributeError) as error:
            if self._client.status == "running":
                raise ConfigError(
                    f"{self._address}: the scheduler cannot read its books ({error}); install the bigkernel of this "
                    "machine there, or watch the directory that the job was given with --run"
                ) from error
            raise self._gone(error) from error
        except Exception as error:
            raise self._gone(error) from error
        if state is None:
            raise ConfigError(
                f"{self._address}: no job of bigkernel has run on this scheduler; start one with --cluster "
                f"{self._address}, or watch the directory that a job was given with --run"
            )
        if state.get("version") != VERSION:
            raise ConfigError(
                f"{self._address}: its books have version {state.get('version')}, expected {VERSION}; install the same "
                "bigkernel on both"
            )
        found: State = {**state, "address": self._address}
        self.runs = [job["run"] for job in found["jobs"] if job["state"] == "running" and job["run"]]
        return found

    def _gone(self, error: Exception) -> Stalled:
        detail = str(error) or type(error).__name__
        return Stalled(f"{self._address}: the scheduler does not answer ({detail}); a local one ends with its job")


class Directory:
    """A run directory: its journal, its lock and, where nobody works in it, its receipts."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not os.path.isdir(self.path) or not (self._holder() or (self.path / journal.NAME).exists()):
            survey(self.path)  # raises what is wrong with it
        self._alive = 0.0  # when its driver was last seen
        self._restart()

    def _restart(self) -> None:
        self._board, self._start, self._latest, self._died = Board(), 0, 0.0, ""
        self._told = set[str]()  # places of sweeps that the journal tells to be finished

    def _holder(self) -> State:
        """Return the living holder of the lock, as `locks.read` says; empty: nobody."""
        found = run_lock.read(self.path)
        return found if found and found["alive"] else {}

    def look(self) -> State:
        """See `Source`; `run` says what the directory holds, where no driver that its journal knows is at work."""
        before = self._holder()
        self._read()
        # a driver takes the lock before its job begins, and gives it back after the job has ended
        after = self._holder()
        holders = [one for one in (before, after) if one]
        now = max(time.time(), self._latest)  # the clock may have been set back since
        self._alive = now if holders else max(self._alive, self._latest, self._touched())
        for job in self._running():
            if not any(may_hold(one, vars(job)) for one in holders):
                job.end("lost", self._latest if holders else self._alive, _DIED)
                self._died = f"process {job.pid} on {job.host}"
        if holders:
            self._died = ""
        # nothing is known of what a lost job was at after the last message
        state = {**sound_snapshot(self._board, now if holders else self._latest or now), "time": now}
        return {**state, "run": self._about(after or before, state["jobs"], now)}

    def _touched(self) -> float:
        """When the lock, if it was left there, was last touched; drivers do so every few seconds."""
        try:
            return (self.path / run_lock.NAME).stat().st_mtime
        except OSError:
            return 0.0

    def _read(self) -> None:
        with suppress(FileNotFoundError):
            if (self.path / journal.NAME).stat().st_size < self._start:
                self._restart()  # another journal in its place
        with suppress(OSError):
            for message, start in journal.read(self.path, start=self._start):
                self._start = start
                with suppress(*DAMAGED):  # a line of another version
                    self._latest = time_of(message)
                    if message["kind"] == "job_started" and message["job"] not in self._board.jobs:
                        for job in self._running():  # there is one driver at a time
                            job.end("lost", self._latest, _DIED)
                    self._board.apply(message, self._latest)
                    self._note_end(message)

    def _running(self) -> list[Job]:
        return [job for job in self._board.jobs.values() if job.state == "running"]

    def _note_end(self, message: State) -> None:
        job = self._board.jobs.get(message.get("job", ""))
        sweep = job.sweeps.get(message.get("sweep", "")) if job else None
        if job and sweep and sweep.run and sweep.state == "finished":
            self._told.add(place_of(job.run, sweep.run))

    def _about(self, holder: State, jobs: list[State], now: float) -> State:
        about: State = {
            "path": str(self.path),
            "holder": run_lock.holder_name(holder) if holder else "",
            "died": self._died,
            "command": command_of(self.path),
        }
        if holder and any(may_hold(holder, job) for job in jobs):
            return about
        try:
            found = survey(self.path)
        except DataError:
            found = []  # nothing was published yet
        untold = bool(holder) or finished_untold(self.path, found, self._told)
        if untold:
            about["died"] = self._died = ""
        told = bool(jobs) and not untold
        return {
            **about,
            "journal": bool(jobs),
            "told": told,
            "unfinished": jobs[0]["state"] != "finished" if told else any(one.state != "finished" for one in found),
            "segments": sum(one.segments for one in found),
            "segments_done": sum(one.segments_done for one in found),
            "on_workers": bool(jobs) and any(sweep["executor"] == "dask" for sweep in jobs[0]["sweeps"][-1:]),
            "receipt_seconds": now - max(one.changed for one in found) if found else None,
            "silent_seconds": now - self._alive,
        }


def follow(source: Source, show: Show, seconds: float, *, once: bool = False) -> int:
    """Show the state every `seconds` until no job runs; the exit code of the worst that was seen running.

    If none runs from the beginning, that of the job that ended last, or of the run where a driver without a journal has
    gone on with it. Where no job has begun, one is waited for.
    """
    seen: set[str] = set()
    while True:
        state = source.look()
        show(state)
        states = {job["id"]: str(job["state"]) for job in state["jobs"]}
        running = {name for name, found in states.items() if found == "running"}
        if once or not (running or _expected(state)):
            run = state.get("run", {})
            ended = [found for name, found in states.items() if name in seen]
            if not ended and run.get("told", True):
                ended = list(states.values())[:1]
            left = CODES["interrupted"] if run.get("unfinished") and not run["holder"] else 0
            codes = [_code(found) for found in ended] or [left]
            return max(codes, key=list(CODES.values()).index)
        seen |= running
        changing = states and not running and state.get("run", {}).get("told", True)
        time.sleep(min(seconds, _SOON_SECONDS) if changing else seconds)


def _code(state: str) -> int:
    """The exit code of a job; a state that nobody knows is no success."""
    return 0 if state == "running" else CODES.get(state, CODES["failed"])


def _expected(state: State) -> bool:
    """Tell if a job may begin: a driver holds the run directory, or the scheduler has had none yet."""
    return bool(state["run"]["holder"]) if "run" in state else not state["jobs"]


class Log:
    """Shows what has changed as plain lines: states of jobs, finished segments, events."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._said: dict[str, str] = {}
        self._until: dict[str, float] = {}  # time of the latest event of a job

    def __call__(self, state: State) -> None:
        for job in reversed(state["jobs"]):
            self._events(job)
            if job["state"] == "running":
                for key, mark, words in _progress(job):
                    self._say(f"{job['id']} {key}", mark, words)
            else:
                self._say(job["id"], job["state"], ended_job_line(job).plain)
        if not state["jobs"] and "run" not in state:
            self._say("", "none", no_job(state))
        for line in run_lines(state["run"]) if state.get("run") else ():
            self._say(line.plain[:9], "", line.plain)  # once each: their seconds run on

    def _events(self, job: State) -> None:
        until = self._until.get(job["id"])
        for event in job["events"][-_EVENTS:] if until is None else job["events"]:
            told = event["kind"] == "end" and event["text"].startswith(job["state"])  # by the line of the job itself
            if not told and (until is None or event["time"] > until):
                at = time.strftime("%H:%M:%S", time.localtime(event["time"]))
                self._write(f"{at} {visible(event['text'])}")
        self._until[job["id"]] = max((event["time"] for event in job["events"]), default=0.0)

    def _say(self, key: str, mark: str, words: str) -> None:
        if self._said.get(key) != mark:
            self._said[key] = mark
            self._write(words)


def _progress(job: State) -> Iterator[tuple[str, str, str]]:
    """(what, how far, in words) of all that runs in a job."""
    for sweep in job["sweeps"]:
        if sweep["ended"] is None:
            yield sweep["token"], str(done(sweep)), sentence(sweep)
    if job["step"]:
        what, count, total = (job["step"][key] for key in ("what", "done", "total"))
        yield f"step {what}", str(count), f"{visible(what)}: {count:,} of {total:,}"


@contextmanager
def shown(console: Console, *, as_json: bool, once: bool) -> Iterator[Show]:
    """Return a function that shows states: JSON lines, a picture drawn again and again, one picture, or plain lines."""

    def drawn(state: State) -> Group:
        lines: list[Text] = picture(state, console.width)
        return Group(*(map(ascii_letters, lines) if console.options.ascii_only else lines))

    if as_json:
        yield lambda state: click.echo(json.dumps(plain(state), allow_nan=False))
    elif once:
        yield lambda state: console.print(drawn(state))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda state: live.update(drawn(state), refresh=True)
    else:
        yield Log(say)


def awaited(place: str, wait_seconds: float) -> Directory:
    """The run directory at a place, where one is there or appears within so many seconds.

    Raises
    ------
    DataError
        Nothing is there then, or no run; a file at once.
    """
    deadline, told = time.monotonic() + wait_seconds, False
    while True:
        try:
            return Directory(place)
        except DataError as error:
            left = deadline - time.monotonic()
            if left <= 0 or os.path.isfile(place):
                raise
            if not told:
                say(f"{error}; waiting {wait_seconds:g} s for one (Ctrl-C ends)", err=True)
                told = True
            time.sleep(min(_SOON_SECONDS, left))


@contextmanager
def source_at(place: str, tls: str | None, *, wait_seconds: float = 0.0) -> Iterator[Source]:
    """Return the source that ADDRESS_OR_RUN names; a run directory may appear within `wait_seconds`."""
    if os.path.isdir(place) or not ("://" in place or place.endswith((".yaml", ".yml"))):
        if tls:
            raise click.UsageError("--tls belongs to an address; a run directory needs no certificates")
        yield awaited(place, wait_seconds)
        return
    if "://" not in place and read_file(Path(place)).kind != "address":
        raise ConfigError(
            f"{place}: describes a cluster that each command starts for itself; give the address that the job printed, "
            "or the directory that it was given with --run"
        )
    with connect.connect(place, tls=tls) as client:
        yield Scheduler(client, client.scheduler.address)


def run_here(source: Source) -> str:
    """The run directory of the one job that a scheduler had when it was lost, if this machine has it too."""
    runs = source.runs if isinstance(source, Scheduler) else []
    with suppress(BigKernelError):
        if len(runs) == 1:
            return str(Directory(runs[0]).path)
    return ""
