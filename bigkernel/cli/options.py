"""Options that several commands share, and how results are printed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bigkernel.clusters import connect
from bigkernel.monitor.terminal import progress
from bigkernel.sweep import executing

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")(function)


def overwrite_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--overwrite."""
    return click.option("--overwrite", is_flag=True, help="Replace what is at the target.")(function)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--cluster, --workers, --memory-limit, --dashboard-port."""
    for option in reversed(
        (
            click.option(
                "--cluster",
                default="threads",
                show_default=True,
                metavar="threads|local|ADDRESS|FILE",
                help="Where tasks run: threads of this process; worker processes started here (local); a scheduler "
                "(tcp://host:8786); or a YAML file that describes a cluster.",
            ),
            click.option("--workers", type=click.IntRange(1), help="Processes of a local cluster [one a processor]."),
            click.option("--memory-limit", metavar="BYTES", help="Of each local worker, such as 2GiB [2GiB]."),
            click.option(
                "--dashboard-port",
                type=click.IntRange(0, 65535),
                default=8787,
                show_default=True,
                help="Of a local cluster's dashboard, on 127.0.0.1.",
            ),
        )
    ):
        function = option(function)
    return function


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--run, --resume."""
    for option in reversed(
        (
            click.option(
                "--run", type=click.Path(file_okay=False), help="Directory that keeps finished work, to resume from."
            ),
            click.option("--resume", is_flag=True, help="Go on with the work in --run; refused if the job differs."),
        )
    ):
        function = option(function)
    return function


@contextmanager
def execution(
    cluster: str,
    workers: int | None,
    memory_limit: str | None,
    dashboard_port: int,
    *,
    run: str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Iterator[None]:
    """Run the sweeps of a command where its options say, with progress on standard error."""
    if resume and not run:
        raise click.UsageError("--resume needs --run DIR")
    with ExitStack() as stack:
        if cluster == "threads":
            stack.enter_context(executing("threads", run=run, resume=resume))
        else:
            client = stack.enter_context(
                connect(cluster, workers=workers, memory_limit=memory_limit, dashboard=dashboard_port)
            )
            if not quiet:
                click.echo(f"dashboard: {client.dashboard_link}", err=True)
            stack.enter_context(executing(client, run=run, resume=resume))
        stack.enter_context(progress(enabled=not quiet))
        yield


def show(figures: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
    """Print named figures: as one JSON object, or as a table of two columns that fits 80 characters."""
    if as_json:
        click.echo(json.dumps(plain(figures), allow_nan=False))
        return
    table = Table(
        title=Text(title) if title else None, title_justify="left", show_header=False, box=None, pad_edge=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in figures.items():
        table.add_row(Text(name.replace("_", " ")), Text(readable(name, value)))
    Console(soft_wrap=False).print(table)


def plain(value: Any) -> Any:
    """Nested figures as what JSON knows; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def readable(name: str, value: Any) -> str:
    """A figure for people, with the unit that its name ends in."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {readable(name, item)}" for key, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    if "bytes" in name and isinstance(value, int):
        for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{value / size:,.1f} {unit}"
        return f"{value} bytes"
    if isinstance(value, float) and "seconds" in name:
        return f"{value:,.2f} s"
    if name == "flops":
        return f"{value:.3g}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
