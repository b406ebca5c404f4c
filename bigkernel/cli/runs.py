"""`bigkernel runs`: what is left to do in a run directory."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from bigkernel.cli.options import json_option
from bigkernel.cli.said import say
from bigkernel.data.visible import visible
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from rich.text import Text

    from bigkernel.data.run_status import RunState


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

    from bigkernel.data.run_status import command_of, survey

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
