"""`bigkernel watch | runs | report`: a job from another terminal, what its run has left to do, and its page."""

from __future__ import annotations

import os
import shlex
import sys
import webbrowser
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bigkernel.cli.options import json_option, say
from bigkernel.data.visible import visible
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from rich.text import Text

    from bigkernel.data.run_directory import RunState


@click.command()
@click.argument("directory", type=click.Path())
@json_option
def runs(directory: str, as_json: bool) -> None:
    """List the runs in DIRECTORY: their state, and what is left to do.

    A run is what --run keeps: finished segments of every sweep of a job. It is finished, running (somebody holds its
    lock), interrupted, or unreadable. `bigkernel check DIRECTORY` reads all of it.
    """
    from rich.console import Console
    from rich.table import Table

    from bigkernel.data.run_directory import command_of, survey

    found = survey(directory)
    command = command_of(directory)
    open_ = [state for state in found if state.state == "interrupted"]
    if as_json:
        show({"runs": [asdict(state) for state in found], "command": command}, as_json=True)
        return
    table = Table(box=None, pad_edge=False)
    for name, justify in (("run", "left"), ("state", "left"), ("segments", "right"), ("rows left", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("repeats", justify="right")
    table.add_column("last change", no_wrap=True)
    for state in found:
        table.add_row(*_cells(state, directory))
    Console(soft_wrap=False).print(table)
    if open_ and command:
        if "--resume" not in command:
            command = [*command, "--resume"]
        say(f"to go on: {shlex.join(command)}")


def _cells(state: RunState, directory: str) -> list[Text]:
    from rich.text import Text

    name = os.path.relpath(state.path, directory)
    colours = {"finished": "green", "running": "cyan", "interrupted": "yellow", "unreadable": "red"}
    plain = [
        "" if not state.segments else f"{state.segments_done} of {state.segments}",
        "" if not state.segments else f"{state.rows - state.rows_done:,}",
        str(state.repeats or ""),
        datetime.fromtimestamp(state.changed).strftime("%Y-%m-%d %H:%M"),
    ]
    return [Text(visible(name)), Text(state.state, style=colours[state.state]), *map(Text, plain)]


@click.command()
@click.argument("run", type=click.Path())
@click.option("--out", type=click.Path(dir_okay=False), help="The page to write  [RUN/report.html].")
@click.option("--open", "open_it", is_flag=True, help="Show the page in a browser.")
@json_option
def report(run: str, out: str | None, open_it: bool, as_json: bool) -> None:
    """Make the report page of RUN again, from what its directory holds.

    Every job with --run leaves one when it ends: the page of the dashboard with its state inside, which needs no
    network. With --json the state is printed, and a page is written only to --out.
    """
    from bigkernel.monitor import report as reports

    page = None if as_json and not (out or open_it) else reports.write(run, out)
    if as_json:
        show(reports.gather(run), as_json=True)
    elif page is not None:
        say(page)
    if open_it and page is not None and not webbrowser.open(Path(page).absolute().as_uri()):
        say(f"no browser was found to show {page}", err=True)


@click.command()
@click.argument("place", metavar="ADDRESS_OR_RUN")
@click.option("--once", is_flag=True, help="Show one picture and end.")
@click.option("--json", "as_json", is_flag=True, help="Print states as JSON, one object a line, and nothing else.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Between two looks  [1 on a terminal and with --json, 10 elsewhere].",
)
@click.option("--tls", type=click.Path(file_okay=False), help="Certificates made by `bigkernel certs`, for tls://.")
@click.pass_context
def watch(ctx: click.Context, place: str, once: bool, as_json: bool, interval: float | None, tls: str | None) -> None:
    """Follow a job from another terminal, until it ends.

    \b
    bigkernel watch job.run                      the directory of --run
    bigkernel watch tcp://127.0.0.1:8786         a scheduler
    bigkernel watch tls://host:8786 --tls DIR
    bigkernel watch cluster.yaml                 as --cluster takes it
    bigkernel watch job.run --once --json | jq .jobs[0].sweeps[0].left_seconds

    A run directory tells of its job also after the driver has died: what is kept, and the command to go on with. The
    map shows segments: # merged, + published, > running, a running again, x failed, . waiting. Where the output is no
    terminal, a line is printed for what has changed.

    Ends with 0 when the job has finished (or is running, with --once), 1 if it failed, 6 if it was lost (its driver
    died) or the scheduler does not answer, 75 if it was interrupted or the watching was (Ctrl-C; the job goes on).
    """
    from rich.console import Console

    from bigkernel.cli.follow import CODES, follow, shown, source_at

    with suppress(AttributeError):  # what the terminal cannot show becomes a question mark
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    console = Console()
    seconds = interval or (1.0 if as_json or console.is_terminal else 10.0)
    try:
        with source_at(place, tls) as source, shown(console, as_json=as_json, once=once) as show:
            code = follow(source, show, seconds, once=once)
    except KeyboardInterrupt:
        say("watching ended; the job goes on", err=True)
        code = CODES["interrupted"]
    ctx.exit(code)
