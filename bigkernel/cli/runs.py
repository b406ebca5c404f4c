"""`bigkernel runs | worker-check`: what is left to do in a run directory; whether a cluster can do a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigkernel.cli.options import Where, cluster_options, json_option
from bigkernel.cli.said import say
from bigkernel.data.visible import visible
from bigkernel.errors import ConfigError
from bigkernel.monitor.format import size
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


@click.command("worker-check")
@click.argument("corpus", type=click.Path(), required=False)
@click.option("--run", type=click.Path(file_okay=False), help="A run directory that workers must be able to write.")
@cluster_options
@json_option
def worker_check(
    corpus: str | None,
    run: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Ask every worker of a cluster whether it can do a job: versions, CORPUS, run directory, disk.

    \b
    bigkernel worker-check train.corpus --run job.run --cluster tls.yaml

    The same is looked at before the first task of every job. Ends with 0 if every worker can.
    """
    from bigkernel.config import settings
    from bigkernel.data.corpus import open_corpus
    from bigkernel.data.run_directory import Run, make_directory
    from bigkernel.engine.preflight import ask, versions, wait_for_workers
    from bigkernel.engine.rows import as_rows

    if where.cluster == "threads":
        raise click.UsageError("--cluster local, an address or a file: threads of this process need no check")
    rows = as_rows(open_corpus(corpus)) if corpus else None
    store = None
    if run:
        make_directory(run)
        store = Run(str(Path(run).absolute()))
    with where.connect() as client:
        # every worker of a cluster that was started here; SLURM's jobs come one after another
        wait_for_workers(client, len(getattr(client.cluster, "worker_spec", ())) or 1, settings().stall_seconds)
        prints = [source.fingerprint() for source in rows.stored] if rows is not None else []
        limits = {address: worker["memory_limit"] for address, worker in sorted(_workers(client).items())}
        line = _worker_line(list(limits))
        if not as_json:
            say(line("worker", "can", "memory", "free disk", "processor"))
        checked: list[dict[str, Any]] = []
        for address, limit in limits.items():  # one after another: a line as soon as it is known
            for answer in ask(client, rows, store, settings(), workers=[address]).values():
                problems = _problems(answer, versions(), prints, corpus)
                found = {"memory_bytes": limit, "free_bytes": answer["free"], "processor": answer["processor"]}
                checked.append({"worker": address, "fit": not problems, "problems": problems, **found})
                if not as_json:
                    sizes = (size(limit or None), size(answer["free"]))
                    say(line(address, "no" if problems else "yes", *sizes, answer["processor"]))
                    for problem in problems:
                        say(f"    {problem}")
    wrong = [f"worker {one['worker']}: {problem}" for one in checked for problem in one["problems"]]
    if as_json:
        show({"workers": checked, "versions": versions()}, as_json=True)
    if wrong:
        raise ConfigError(f"{len(wrong)} problems on {len(checked)} workers; the first: {wrong[0]}")


def _worker_line(addresses: list[str]) -> Callable[..., str]:
    """Writes a line of the table of workers; addresses have the width of the longest."""
    width = max([24, *map(len, addresses)])
    return lambda worker, can, memory, free, kind: f"{worker:<{width}}  {can:<3}  {memory:>8}  {free:>9}  {kind}"


def _problems(answer: dict[str, Any], mine: dict[str, str], prints: list[str], corpus: str | None) -> list[str]:
    """What is wrong with a worker: by its own words, by its versions, and by the data that it sees."""
    found = list(answer["wrong"])
    found += [
        f"{name} {version}, the driver has {mine[name]}"
        for name, version in answer["versions"].items()
        if version != mine[name]
    ]
    if not found and answer["fingerprints"] != prints:
        found.append(f"{corpus} holds other data there than here; copy or mount it again")
    return found


def _workers(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return found
