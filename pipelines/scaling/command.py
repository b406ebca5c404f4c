"""`python -m pipelines scaling`: how fits scale with workers, and what they cost a cluster's scheduler.

Measures strong and weak scaling over one and two workers (`workers`), and the overhead of a segment (`scheduler`).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bigkernel.cli.options import Numbers
from bigkernel.errors import ConfigError
from bigkernel.monitor.terminal.bar import bar, progress
from pipelines.scaling import page, scheduler, workers
from pipelines.shared.experiments import Report, data_option, json_option, out_option
from pipelines.shared.timed_sweeps import digits_corpus

CHUNK_ROWS = 10_000
# values of --quick for options that are not given
QUICK: dict[str, Any] = {"rows": 8_000, "landmarks": 64, "repeats": 1, "crowd": 4, "segments": (20, 60)}


@dataclass(frozen=True)
class Effort:
    """Amount of work in the measurements: options of the command."""

    rows: int  # rows of the sweeps on one and two workers
    landmarks: int
    repeats: int
    crowd: int  # workers of the scheduler that is measured
    segments: tuple[int, ...]  # segments of the sweeps that measure it, at least two numbers

    def __post_init__(self) -> None:
        if len(self.segments) < 2:
            raise ConfigError(f"segments: expected two numbers or more, to draw a line by, found {self.segments}")
        if self.landmarks * 2 > self.rows:
            raise ConfigError(
                f"{self.landmarks:,} landmarks: expected at most half of the {self.rows:,} rows, which one worker has "
                "in a sweep; give fewer --landmarks or more --rows"
            )

    @property
    def chunk_rows(self) -> int:
        """Chunk rows of the corpora: the default, or fewer so that every worker has some."""
        return min(CHUNK_ROWS, max(1, self.rows // 32))


@click.command()
@click.option(
    "--rows", default=320_000, show_default=True, type=click.IntRange(64), help="Rows of the measured sweeps."
)
@click.option("--landmarks", default=2000, show_default=True, type=click.IntRange(1), help="Landmarks m.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Alternated rounds of 3 sweeps.")
@click.option(
    "--crowd", default=100, show_default=True, type=click.IntRange(1, 1000), help="Workers that share one process."
)
@click.option(
    "--segments", default="100,300,500", show_default=True, type=Numbers(whole=True), help="Numbers of empty segments."
)
@click.option("--quick", is_flag=True, help="Use small sizes for all that is not given; figures are not reliable.")
@json_option
@out_option("scaling", "Directory for report.html, CSV, PNG and the corpora.")
@data_option("Directory with MNIST's idx files; random pixels without them.")
@click.pass_context
def scaling(context: click.Context, quick: bool, as_json: bool, out: Path, data: Path, **sizes: Any) -> None:
    """Measure how fits scale on this machine.

    \b
    1. Strong and weak scaling over 1 and 2 worker processes: all rows on one,
       all rows on two, half the rows on one, each on a fresh cluster; beside it
       the matrix product of one process while one and while two are busy.
    2. The overhead of a segment: sweeps of nearly empty segments on a hundred
       workers, with and without a run directory, by scheduler, driver and
       workers. From both: how many workers a scheduler keeps busy.

    About ten minutes on two processors. Other use of the machine affects the figures; the load average is shown.

    \b
    python -m pipelines scaling --quick
    python -m pipelines scaling --rows 640000 --repeats 5 --out /scratch/scaling
    python -m pipelines scaling --json | jq '.measured.strong.speed_up'
    """
    if quick:
        default = (name for name in QUICK if context.get_parameter_source(name) is ParameterSource.DEFAULT)
        sizes |= {name: QUICK[name] for name in default}
    sizes["segments"] = tuple(int(n) for n in sizes["segments"])
    effort = Effort(**sizes)
    report = Report(out, "Scaling", f"{effort.rows:,} rows, {effort.landmarks:,} landmarks", quiet=as_json)
    with progress(enabled=not as_json):
        name = _measure(report, effort, data, quiet=as_json)
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    report.finish({"data": name, "rounds": effort.repeats, "load average": f"{load} (1, 5, 15 minutes)"})


def _measure(report: Report, effort: Effort, data: Path, *, quiet: bool) -> str:
    """Measure the sweeps and the segments, and show the results; return the name of the rows."""
    whole, half = (
        digits_corpus(report.out, data, n, quiet=quiet, chunk_rows=effort.chunk_rows)
        for n in (effort.rows, effort.rows // 2)
    )
    with bar("scaling", enabled=not quiet, unit="sweeps") as update:
        timings = workers.measure(whole, half, effort.landmarks, repeats=effort.repeats, update=update)
    result = workers.compare(timings)
    page.scaling(report, result, landmarks=effort.landmarks)
    with bar("segments", enabled=not quiet, unit="sweeps") as update:
        costs = scheduler.measure(effort.crowd, effort.segments, out=report.out, update=update)
    page.segments(report, [*costs, scheduler.measure_short()], workers=effort.crowd)
    page.limit(report, result, costs[0]["scheduler"], landmarks=effort.landmarks)
    return whole.info.name
