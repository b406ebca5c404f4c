"""Following a job from another terminal, by the scheduler that it runs on or by its run directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click
from distributed import Client
from rich.console import Console, Group
from rich.live import Live

from bigkernel.cli.options import say
from bigkernel.cluster import connect
from bigkernel.cluster.cluster_file import read_file
from bigkernel.data.visible import visible
from bigkernel.errors import ConfigError, Stalled
from bigkernel.events.board import VERSION
from bigkernel.events.job import plain
from bigkernel.events.plugin import state_of
from bigkernel.monitor.report import RunReader, State
from bigkernel.monitor.terminal.live import done, ended_job, no_job, picture, run_words, sentence

Show = Callable[[State], None]

ASK_SECONDS = 30  # most that a scheduler may take to answer
CODES = {"finished": 0, "interrupted": 75, "failed": 1, "lost": 6}  # the worse, the later
_SOON_SECONDS = 0.5  # between two looks while a driver begins or ends
_EVENTS = 4  # that a log begins with


class Source(Protocol):
    """A source of the state of jobs: plain data of `Board.snapshot`, more with `workers` and `run`."""

    def look(self) -> State:
        """The state now."""


class Scheduler:
    """The books that a scheduler keeps."""

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address

    def look(self) -> State:
        """See `Source`; a `ConfigError` where no job of ours has run or versions differ, `Stalled` if it is mute."""
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
        return dict(state)

    def _gone(self, error: Exception) -> Stalled:
        detail = str(error) or type(error).__name__
        return Stalled(
            f"{self._address}: the scheduler does not answer ({detail}); a local one ends with its job, whose run "
            "directory tells how"
        )


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
        run = state.get("run", {})
        # a job may begin: a driver holds the run directory, or the scheduler has had none yet
        expected = bool(run["holder"]) if run else not states
        if once or not (running or expected):
            ended = [found for name, found in states.items() if name in seen]
            if not ended and run.get("known", True):
                ended = list(states.values())[:1]
            left = CODES["interrupted"] if run.get("state") in ("interrupted", "failed") else 0
            # a state that nobody knows is no success
            codes = [0 if one == "running" else CODES.get(one, CODES["failed"]) for one in ended] or [left]
            return max(codes, key=list(CODES.values()).index)
        seen |= running
        changing = states and not running and run.get("known", True)
        time.sleep(min(seconds, _SOON_SECONDS) if changing else seconds)


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
                self._say(job["id"], job["state"], ended_job(job).plain)
        if not state["jobs"] and "run" not in state:
            self._say("", "none", no_job(state))
        for line in run_words(state["run"]) if "run" in state else ():
            self._say(line[:9], "", line)  # once each: their seconds run on

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
        return Group(*picture(state, console.width))

    if as_json:
        yield lambda state: click.echo(json.dumps(plain(state), allow_nan=False))
    elif once:
        yield lambda state: console.print(drawn(state))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda state: live.update(drawn(state), refresh=True)
    else:
        yield Log(say)


@contextmanager
def source_at(place: str, tls: str | None) -> Iterator[Source]:
    """Return the source that ADDRESS_OR_RUN names."""
    if os.path.isdir(place) or not ("://" in place or place.endswith((".yaml", ".yml"))):
        if tls:
            raise click.UsageError("--tls belongs to an address; a run directory needs no certificates")
        yield RunReader(place)
        return
    if "://" not in place and read_file(Path(place)).kind != "address":
        raise ConfigError(
            f"{place}: describes a cluster that each command starts for itself; give the address that the job printed, "
            "or the directory that it was given with --run"
        )
    with connect.connect(place, tls=tls) as client:
        yield Scheduler(client, client.scheduler.address)
