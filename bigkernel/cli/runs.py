"""The commands `bigkernel watch` and `report`: follow a job, and write the page of its run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from bigkernel.cli.options import json_option, say
from bigkernel.data.visible import visible
from bigkernel.errors import ConfigError, StalledError
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from distributed import Client
    from rich.console import Console

    from bigkernel.monitor.report import State

ASK_SECONDS = 30  # most seconds for a scheduler to answer
CODES = {"finished": 0, "interrupted": 75, "failed": 1, "lost": 6}  # the worse, the later
_SOON_SECONDS = 0.5  # seconds between two readings while a driver begins or ends


@click.command()
@click.argument("run", type=click.Path())
@click.option("--out", type=click.Path(dir_okay=False), help="Path of the page  [RUN/report.html].")
@json_option
def report(run: str, out: str | None, as_json: bool) -> None:
    """Write the report page of RUN again.

    Every job with --run leaves one when it ends: the page of the dashboard with its state embedded, which needs no
    network. With --json the state is printed, and a page is written only to --out.
    """
    from bigkernel.monitor import report as reports

    page = None if as_json and not out else reports.write(run, out)
    if as_json:
        show(reports.gather(run), as_json=True)
    elif page is not None:
        say(page)


@click.command()
@click.argument("place", metavar="ADDRESS_OR_RUN")
@click.option("--once", is_flag=True, help="Show the state once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print states as JSON only, one object per line.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Seconds between updates  [1 on a terminal and with --json, 10 elsewhere].",
)
@click.option("--tls", type=click.Path(file_okay=False), help="Certificates created by `bigkernel certs`, for tls://.")
@click.pass_context
def watch(ctx: click.Context, place: str, once: bool, as_json: bool, interval: float | None, tls: str | None) -> None:
    """Follow a job from another terminal, until it ends.

    \b
    bigkernel watch job.run                      the directory of --run
    bigkernel watch tcp://127.0.0.1:8786         a scheduler
    bigkernel watch tls://host:8786 --tls DIR
    bigkernel watch job.run --once --json | jq .jobs[0].sweeps[0].rows_done

    A run directory can be watched even after the driver has died: it shows what is kept, and the command to resume. If
    the output is not a terminal, changes are printed as lines. The page shows every segment and worker.

    Exits with 0 when the job has finished (or is running, with --once), 1 if it failed, 6 if it was lost (its driver
    died) or the scheduler does not answer, 75 if the job or `watch` was interrupted (Ctrl-C; the job continues).
    """
    from rich.console import Console

    with suppress(AttributeError):  # characters that the terminal cannot show become question marks
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    console = Console()
    seconds = interval or (1.0 if as_json or console.is_terminal else 10.0)
    try:
        with source_at(place, tls) as look, shown(console, as_json=as_json, once=once) as draw:
            code = follow(look, draw, seconds, once=once)
    except KeyboardInterrupt:
        say("stopped watching; the job continues", err=True)
        code = CODES["interrupted"]
    ctx.exit(code)


@contextmanager
def source_at(place: str, tls: str | None) -> Iterator[Callable[[], State]]:
    """Yield a function that reads the state at ADDRESS_OR_RUN: `Board.snapshot`, with `run` for a run."""
    if os.path.isdir(place) or "://" not in place:
        from bigkernel.monitor.report import RunReader

        if tls:
            raise click.UsageError("--tls: expected an address, found a run directory, which needs no certificates")
        yield RunReader(place).look
        return
    from bigkernel.cluster import connect

    with connect.connect(place, tls=tls) as client:
        yield partial(ask_scheduler, client, client.scheduler.address)


def ask_scheduler(client: Client, address: str) -> State:
    """Return the state of the jobs on a scheduler.

    `ConfigError`: no job of ours has run there, or its version differs. `StalledError`: it does not answer.
    """
    from bigkernel.events.board import VERSION
    from bigkernel.events.plugin import state_of

    try:
        state = client.run_on_scheduler(state_of, callback_timeout=ASK_SECONDS)
    except Exception as error:
        if isinstance(error, ImportError | AttributeError) and client.status == "running":
            raise ConfigError(
                f"{address}: the scheduler cannot read the state of its jobs ({error}); install the same bigkernel "
                "there, or watch the --run directory of the job"
            ) from error
        raise StalledError(
            f"{address}: the scheduler does not answer ({str(error) or type(error).__name__}); a local scheduler "
            "ends with its job, see the --run directory for the outcome"
        ) from error
    if state is None:
        raise ConfigError(
            f"{address}: found no bigkernel job on this scheduler; start one with --cluster {address}, or watch the "
            "--run directory of a job"
        )
    if state.get("version") != VERSION:
        raise ConfigError(
            f"{address}: expected job states of version {VERSION}, found {state.get('version')}; install the same "
            "bigkernel on both"
        )
    return dict(state)


def follow(look: Callable[[], State], draw: Callable[[State], None], seconds: float, *, once: bool = False) -> int:
    """Show the state every `seconds` until no job runs; return the worst exit code of the jobs seen running.

    If none runs at the start, it is that of the job that ended last, or of the run if a driver without a journal has
    resumed it. If no job has begun, wait for one.
    """
    followed: set[str] = set()
    while True:
        state = look()
        draw(state)
        states = {job["id"]: str(job["state"]) for job in state["jobs"]}
        running = {name for name, status in states.items() if status == "running"}
        run = state.get("run", {})
        # a job may begin: a driver holds the run directory, or the scheduler has had none yet
        expected = bool(run["holder"]) if run else not states
        if once or not (running or expected):
            ended = [status for name, status in states.items() if name in followed]
            if not ended and run.get("known", True):
                ended = list(states.values())[:1]
            left = CODES["interrupted"] if run.get("state") in ("interrupted", "failed") else 0
            # an unknown state is no success
            codes = [0 if one == "running" else CODES.get(one, CODES["failed"]) for one in ended] or [left]
            return max(codes, key=list(CODES.values()).index)
        followed |= running
        changing = states and not running and run.get("known", True)
        time.sleep(min(seconds, _SOON_SECONDS) if changing else seconds)


@contextmanager
def shown(console: Console, *, as_json: bool, once: bool) -> Iterator[Callable[[State], None]]:
    """Yield a function that shows states: JSON lines, a picture drawn again and again, one picture, or plain lines."""
    from rich.console import Group
    from rich.live import Live

    from bigkernel.events.job import plain
    from bigkernel.monitor.terminal.live import picture

    if as_json:
        yield lambda state: click.echo(json.dumps(plain(state), allow_nan=False))
    elif once:
        yield lambda state: console.print(Group(*picture(state, console.width)))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda state: live.update(Group(*picture(state, console.width)), refresh=True)
    else:
        yield log_changes()


def log_changes() -> Callable[[State], None]:
    """Return a function that prints what has changed: states of jobs, finished segments, events."""
    said = set()

    def write(state: State) -> None:
        for key, line in _lines(state):
            if key not in said:
                said.add(key)
                say(line)

    return write


def _lines(state: State) -> Iterator[tuple[object, str]]:
    """Yield the lines that describe a state, each with what it depends on."""
    from bigkernel.monitor.terminal.live import done, ended_job, no_job, run_lines, sentence, step_sentence

    for job in reversed(state["jobs"]):
        name = job["id"]
        for event in job["events"]:
            # the line of the job itself says how it ended
            if not (event["kind"] == "end" and event["text"].startswith(job["state"])):
                at = time.strftime("%H:%M:%S", time.localtime(event["time"]))
                yield (name, event["time"], event["text"]), f"{at} {visible(event['text'])}"
        if job["state"] != "running":
            yield (name, job["state"]), ended_job(job).plain
            continue
        for sweep in job["sweeps"]:
            if sweep["ended"] is None:
                yield (name, sweep["token"], done(sweep)), sentence(job, sweep)
        if step := job["step"]:
            yield (name, step["what"], step["done"]), step_sentence(job)
    if not state["jobs"] and "run" not in state:
        yield "", no_job(state)
    for line in run_lines(state["run"]) if "run" in state else ():
        yield line[:9], line  # once each: their seconds run on
