"""`bigkernel report`: the report page of a run, made again from its directory."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from bigkernel.cli.options import json_option
from bigkernel.cli.said import say
from bigkernel.monitor.terminal.figures import show


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
