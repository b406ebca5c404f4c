"""Options, data files, timing and the report of the experiments.

An experiment is a click command under `options`. It hands its tables and pictures to a `Report`, which prints the
tables and leaves CSV, PNG, JSON and one self-contained page in the output directory.
"""

import functools
import itertools
import json
import os
import platform
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from scipy.io import loadmat
from sklearn.preprocessing import normalize

import bigkernel
from bigkernel.arrays import Array
from bigkernel.data.atomic_write import clear_orphans, write_json
from bigkernel.data.readers import open_source
from bigkernel.engine.process import processors
from bigkernel.errors import DataError
from bigkernel.monitor.terminal.bar import bar
from pipelines.shared import pictures
from pipelines.shared.page import MISSING, Column, Page, Table

Value = TypeVar("Value")

# file: its contents and its source
FILES = {
    "winequality-white.csv": "UCI Wine Quality, white, doi 10.24432/C56S3T",
    "digits16_USPS_1800.mat": "the USPS half (1,800 digits) of the USPS–MNIST pair of Long et al., ICCV 2013",
    "digits16_MNIST_2000.mat": "the MNIST half (2,000 digits) of the USPS–MNIST pair of Long et al., ICCV 2013",
    "zip.train.gz": "the USPS training digits (7,291) of The Elements of Statistical Learning",
    "zip.test.gz": "the USPS test digits (2,007) of The Elements of Statistical Learning",
    "train-images-idx3-ubyte.gz": "the images of MNIST's training digits",
    "train-labels-idx1-ubyte.gz": "the labels of MNIST's training digits",
    "heaton/satellite_train.npz": "lon, lat and temperature of AllSatelliteTemps.RData, finnlindgren/heatoncomparison",
    "heaton/simulated.npz": "train and truth of AllSimulatedTemps.RData, finnlindgren/heatoncomparison",
}
# how the files of USPS are read: a digit, and 16×16 grey values from −1 to 1
USPS = {"format": "csv", "delimiter": "blank", "header": False, "target": 0, "dtype": "float32"}


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
seed_option = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**31), help="Seed of every random choice."
)


def data_option(text: str) -> Decorator:
    """Add --data, the directory that `text` describes."""
    return click.option(
        "--data",
        default=lambda: os.environ.get("BIGKERNEL_DATA", "../shared/data"),
        show_default="$BIGKERNEL_DATA or ../shared/data",
        type=click.Path(path_type=Path),
        help=text,
    )


def out_option(name: str, text: str) -> Decorator:
    """Add --out, by default out/NAME; `text` says what it is for."""
    path = click.Path(file_okay=False, path_type=Path)
    return click.option("--out", default=Path("out", name), show_default=True, type=path, help=text)


def options(name: str, *, repeats: int, repeats_help: str) -> Decorator:
    """Add the options of most experiments: --data, --repeats, --seed, --out, --json."""
    several = (
        data_option("Directory with the data files."),
        click.option(
            "--repeats", default=repeats, show_default=True, type=click.IntRange(1, 10_000), help=repeats_help
        ),
        seed_option,
        out_option(name, "Directory for report.html, CSV and PNG."),
        json_option,
    )
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(several), function)


def data_file(data: Path, name: str) -> Path:
    """Return the path of a data file; if it is missing, say what it is."""
    path = data / name
    if not path.is_file():
        raise DataError(f"{path}: not found; it is {FILES[name]}. --data or BIGKERNEL_DATA names its directory")
    return path


def read_all(path: Path, **options: Any) -> tuple[Array, Array]:
    """Read all rows of a file and their labels into memory; options are those of `open_source`."""
    blocks = [(np.asarray(block[0]), np.asarray(block[1])) for block in open_source(path, **options).blocks()]
    x, y = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    return x, y


def with_ones(X: Array) -> Array:
    """Return [1, X]: the references have the intercept as a column, which ridge regression then penalises."""
    return np.hstack([np.ones((len(X), 1)), X])


def digit_pair(data: Path) -> tuple[Array, Array, Array, Array]:
    """Read USPS rows (1800, 256) and labels, MNIST rows (2000, 256) and labels; 16×16 pixels, rows of unit norm."""
    arrays = []
    for name in ("digits16_USPS_1800.mat", "digits16_MNIST_2000.mat"):
        stored = loadmat(data_file(data, name))
        arrays += [normalize(stored["fts"].astype(np.float64)), stored["labels"].ravel().astype(np.int64) - 1]
    return arrays[0], arrays[1], arrays[2], arrays[3]


@contextmanager
def steps(what: str, count: int, *, quiet: bool, rows: int = 0) -> Iterator[Callable[[], None]]:
    """Show a bar over `count` steps, or over fits of `rows` rows; yield the function to call after each."""
    done = itertools.count(1)
    with bar(what, enabled=not quiet, unit="rows" if rows else "steps") as update:
        yield lambda: update(next(done) * (rows or 1), count * (rows or 1))


def timed(function: Callable[..., Value], *args: Any, **options: Any) -> tuple[Value, float]:
    """Return the value of a call, and its seconds."""
    start = time.perf_counter()
    value = function(*args, **options)
    return value, time.perf_counter() - start


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard error; None of a single value, or if the draws do not change it."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(set(values)) > 1 else None
    return statistics.fmean(values), error


def spread(key: str, values: Sequence[float] | Array) -> dict[str, float | None]:
    """Return mean and sample standard deviation under `key` and `key_std`; None of a single value."""
    values = np.asarray(values, np.float64)
    return {key: float(values.mean()), f"{key}_std": float(values.std(ddof=1)) if len(values) > 1 else None}


def plus_minus(key: str, spec: str, suffix: str) -> Callable[[Mapping[str, Any]], str]:
    """Format a record's `mean ± spread`, or the mean if it has no spread."""

    def show(record: Mapping[str, Any]) -> str:
        if record.get(key) is None:
            return MISSING
        spread = record.get(f"{key}{suffix}")
        return f"{record[key]:{spec}}" + (f" ± {spread:{spec}}" if spread is not None else "")

    return show


def spread_columns(key: str, header: str, spec: str, *, suffix: str = "_std") -> list[Column]:
    """Return `mean ± spread` as a shown column, and a hidden column of the spread for the CSV."""
    return [Column(key, header, plus_minus(key, spec, suffix)), Column(f"{key}{suffix}", f"{header} ±", hidden=True)]


def show_seconds(value: float) -> str:
    """Format seconds with three digits, from milliseconds to minutes."""
    return f"{value:.{4 if value < 0.1 else 3 if value < 1 else 2 if value < 10 else 1}f}"


@dataclass
class Report:
    """Tables and pictures of an experiment, which are printed, written to files and put on one page."""

    out: Path  # directory of the files, made when the report is
    title: str  # title of the page
    subtitle: str
    quiet: bool = False  # print nothing but one JSON object at the end
    page: Page = field(init=False)
    results: dict[str, Any] = field(init=False, default_factory=dict)
    _begun: float = field(init=False, default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.out}: the output directory cannot be made: {error.strerror}") from error
        self.page = Page(self.title, self.subtitle)

    def say(self, text: str) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            click.echo(text)

    def tell(self, *paragraphs: str) -> None:
        """Print paragraphs, wrapped, and put them on the page; a number stays with its %."""
        self.page.text(*paragraphs)
        for paragraph in paragraphs:
            self.say("\n" + textwrap.fill(paragraph.replace(" %", "\u00a0%"), 79))

    def table(self, name: str, heading: str, table: Table, *, caption: str = "") -> None:
        """Print a table under its heading, write NAME.csv, and begin a section of the page with it."""
        self.say(f"\n{heading}")
        if not self.quiet:
            table.print()
        table.write_csv(self.out / f"{name}.csv")
        self.page.heading(heading).table(table, caption=caption)
        self.results[name] = [
            {column.key: record.get(column.key) for column in table.columns} for record in table.records
        ]

    def figure(self, name: str, draw: Callable[..., bytes], *args: Any, caption: str, **options: Any) -> None:
        """Draw a picture, write NAME.png, and put it on the page for light and dark screens."""
        light, dark = pictures.both(draw, *args, **options)
        (self.out / f"{name}.png").write_bytes(light)
        self.page.figure(light, dark, caption=caption)

    def finish(self, facts: Mapping[str, Any], **more: Any) -> None:
        """Write report.html and results.json, and print where they are."""
        seconds = time.perf_counter() - self._begun
        facts = {
            **facts,
            "machine": f"{processors()} processors, {platform.machine()}",
            "versions": f"bigkernel {bigkernel.__version__}, Python {platform.python_version()}, "
            f"NumPy {np.__version__}",
            "made": f"{time.strftime('%Y-%m-%d %H:%M')}, in {seconds:.1f} s",
        }
        path = self.page.heading("Settings").facts(facts).write(self.out / "report.html")
        results = {"report": str(path), "facts": facts, "seconds": seconds, **self.results, **more}
        clear_orphans(self.out / "results.json")
        write_json(self.out / "results.json", results)
        self.say(f"\n{seconds:.1f} s in all; report: {path}")
        if self.quiet:
            click.echo(json.dumps(results))
