"""Options that several commands share, and the execution that they describe."""

from __future__ import annotations

import contextvars
import functools
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bigkernel.cli.transforms import Transform
from bigkernel.data.visible import visible

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def say(text: object = "", *, err: bool = False) -> None:
    """Write lines to standard output or standard error, with unprintable characters escaped."""
    click.echo(visible(text, lines=True, most=2**20), err=err)


class Numbers(click.ParamType):
    """A number or one of some `words`; with `several` a tuple of them, the values of a grid.

    Several are given as "0.5", "0.3,1,3", or "0.3:3:10" for ten from 0.3 to 3 in equal ratios.
    """

    def __init__(self, *choices: str, several: bool = True, whole: bool = False) -> None:
        self.choices, self.several, self.whole = choices, several, whole
        self.name = "numbers" if several else "|".join(("number", *choices))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            numbers = self._several(value) if self.several else [self._one(value)]
        except (ValueError, IndexError):
            several = ", several separated by commas, or FIRST:LAST:COUNT (geometric, both above 0)"
            known = " or ".join(("a number", *self.choices))
            self.fail(f"{value!r}: expected {known}{several * self.several}", param, ctx)
        if self.whole:
            if not all(0.5 < number < math.inf for number in numbers):
                self.fail(f"{value!r}: expected whole numbers of at least 1", param, ctx)
            numbers = sorted({round(number) for number in numbers})
        return tuple(numbers) if self.several else numbers[0]

    def _one(self, text: str) -> Any:
        return text if text in self.choices else float(text)

    def _several(self, text: str) -> list[Any]:
        fields = text.split(":")
        if len(fields) == 1:
            return [self._one(number) for number in text.split(",")]
        first, last, count = float(fields[0]), float(fields[1]), int(fields[2])
        if len(fields) > 3 or not (0 < first < math.inf and 0 < last < math.inf) or not 2 <= count <= 10_000:
            raise ValueError
        import numpy as np

        return np.geomspace(first, last, count).tolist()  # type: ignore[no-any-return]


# headings of the options in the help of commands that fit models; those of no heading come between
_HEADINGS = {
    "Main options": (
        *(
            "--target",
            "--labels-are",
            "--drop",
            "--out",
            "--method",
            "--landmarks",
            "--kernel",
            "--sigma",
            "--alpha",
            "--transform",
            "--score",
            "--folds",
        ),
        *("--scoring", "--no-time"),
    ),
    "Where and how it runs": (
        *("--cluster", "--workers", "--memory-limit", "--dashboard-port", "--tls", "--device", "--run", "--resume"),
        *("--overwrite", "--dry-run", "--json", "--help"),
    ),
}
_OPTION_WIDTH = 22  # letters of the first column


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings, the most important ones first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by heading."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {param.opts[-1]: record for param in options if (record := param.get_help_record(ctx))}
        (first, main), (last, execution) = _HEADINGS.items()
        rest = [name for name in records if name not in (*main, *execution)]
        for heading, names in ((first, main), ("More options", rest), (last, execution)):
            with formatter.section(heading):
                formatter.write_dl([records[name] for name in names if name in records], col_max=_OPTION_WIDTH)


def together(*options: Decorator) -> Decorator:
    """Return a decorator that adds options, in this order."""
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(options), function)


json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON object only.")
overwrite_option: Decorator = click.option("--overwrite", is_flag=True, help="Overwrite an existing target.")
# as one argument `transforms`; `transforms.steps` makes estimators of it
transform_option: Decorator = click.option(
    "--transform",
    "transforms",
    multiple=True,
    type=Transform(),
    metavar="NAME",
    help="Row transform, stored in the model; repeat for several. standardize: columns of variance 1; unit-norm; "
    "scale: by that of the corpus; project: principal components; metric: scales learned from the targets, for "
    "--sigma 1; of images: moments, orientations. Or project:n-components=300,whiten=yes.",
)
bad_rows_option: Decorator = click.option(
    "--on-bad-rows",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    metavar="WORD",
    help="refuse: stop at missing or infinite values; skip: leave out and count these rows.  [default: refuse]",
)
text_options = together(
    click.option("--delimiter", help="csv: a character, tab or blank (runs of blanks) [detected]."),
    click.option("--decimal", type=click.Choice([".", ","]), help="csv: what begins decimals [detected]."),
    click.option("--header", type=bool, metavar="yes|no", help="csv: whether line 1 names the columns [detected]."),
)
table_options = together(
    click.option(
        "--target",
        metavar="COLUMN",
        help="csv, parquet: label column: name, number from 0, or none [called label, target, class or y; the last].",
    ),
    click.option(
        "--labels-are",
        type=click.Choice(["auto", "classes", "numbers"]),
        default="auto",
        metavar="KIND",
        help="classes, numbers or auto: text is classes; so are whole numbers if at most 10 are distinct, 20 that "
        "count from 0 or 1, or 1,000 of images.  [auto]",
    ),
    click.option("--drop", multiple=True, metavar="COLUMN", help="csv, parquet: leave out a column; may be repeated."),
)
run_options = together(
    click.option("--run", type=click.Path(file_okay=False), help="Directory that keeps finished work, for --resume."),
    click.option("--resume", is_flag=True, help="Continue the same job in --run."),
)
_TLS = "Certificates made by `bigkernel certs`."
_cluster_options = together(
    click.option(
        "--cluster",
        default="threads",
        metavar="WHERE",
        help="threads or processes (local) here, a scheduler (tls://host:8786) or a YAML file.  [default: threads]",
    ),
    click.option("--workers", type=click.IntRange(1), metavar="N", help="Local processes.  [default: processors]"),
    click.option("--memory-limit", metavar="BYTES", help="Memory limit of each local worker.  [default: 2GiB]"),
    click.option(
        "--dashboard-port",
        type=click.IntRange(0, 65535),
        default=8787,
        metavar="PORT",
        help="Of a local dashboard.  [default: 8787]",
    ),
    click.option("--tls", type=click.Path(file_okay=False), help=_TLS),
    click.option(
        "--device",
        type=click.Choice(("cpu", "cuda", "auto")),
        metavar="NAME",
        help="Computes blocks: cpu, cuda (a GPU) or auto.  [cpu]",
    ),
)


@dataclass(frozen=True)
class Where:
    """The location of a command's tasks, from `cluster_options`."""

    cluster: str
    workers: int | None
    memory_limit: str | None
    dashboard_port: int
    tls: str | None

    @property
    def own(self) -> dict[str, Any]:
        """Options of the cluster, as `connect` takes them."""
        return {"workers": self.workers, "memory_limit": self.memory_limit, "tls": self.tls and Path(self.tls)}

    def limits(self) -> tuple[int | None, int]:
        """Return the memory limit of a worker (bytes, None: unknown) and the number of workers; start none.

        `ConfigError`: the file, packages, certificates or address with which they could not be started.
        """
        from bigkernel.cluster.connect import described
        from bigkernel.cluster.dask_settings import memory_limit, n_workers

        threads = self.cluster == "threads"
        file = described("local" if threads else self.cluster, self.own, self.dashboard_port)
        unknown = file.kind == "address" or (threads and self.memory_limit is None)
        return None if unknown else memory_limit(file), 1 if unknown else n_workers(file)

    def announce(self) -> None:
        """Say on standard error what begins, before slow imports."""
        if self.cluster == "local":
            count = "one worker per processor" if self.workers is None else f"{self.workers} workers"
            say(f"bigkernel: starting {count} on this machine …", err=True)
        elif self.cluster != "threads":
            say(f"bigkernel: connecting to {self.cluster} …", err=True)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --device, and the options of a cluster, passed on as one argument `where`."""

    @functools.wraps(function)
    def command(**options: Any) -> Any:
        where = Where(**{name: options.pop(name) for name in Where.__dataclass_fields__})
        if not any(options.get(name) for name in ("as_json", "dry_run", "no_time")):
            where.announce()
        from bigkernel.config import given_device

        context = contextvars.copy_context()
        context.run(given_device.set, options.pop("device"))
        return context.run(function, where=where, **options)

    return _cluster_options(command)


@contextmanager
def execution(
    where: Where, *, run: str | None = None, resume: bool = False, quiet: bool = False, report: Path | None = None
) -> Iterator[None]:
    """Run the sweeps of a command at the location of its options, with progress on standard error.

    The report of the run is moved to `report`, if given.
    """
    from bigkernel.engine.context import executing
    from bigkernel.engine.interrupts import collect_as_usual
    from bigkernel.monitor.terminal.bar import progress

    if resume and not run:
        raise click.UsageError("--resume needs --run DIR")
    with ExitStack() as stack:
        client: Any = "threads"
        if where.cluster != "threads":
            from bigkernel.cluster.connect import connect

            client = stack.enter_context(connect(where.cluster, dashboard=where.dashboard_port, **where.own))
            if not quiet:
                say(f"dashboard: {client.dashboard_link}", err=True)
        if not quiet and (run or where.cluster != "threads"):
            certificates = f" --tls {shlex.quote(where.tls)}" if where.tls and not run else ""
            place = shlex.quote(run) if run else client.scheduler.address
            say(f"to watch: bigkernel watch {place}{certificates}", err=True)
        stack.enter_context(progress(enabled=not quiet))
        try:
            with executing(client, run=run, resume=resume, command=sys.argv):
                collect_as_usual()
                yield
        finally:
            _leave_report(run, report, quiet=quiet)


def _leave_report(run: str | None, target: Path | None, *, quiet: bool) -> None:
    page = Path(run or "", "report.html")
    if run is None or not os.path.isfile(page):
        return
    if target is not None:
        with suppress(OSError):  # it stays in the run
            page = Path(shutil.move(page, target))
    if not quiet:
        say(f"report: {page}", err=True)
