"""`python -m pipelines bench …`: benchmarks on this machine, as ratios measured in one run.

Rows are digits or random pixels (`shared.timed_sweeps`).
"""

import functools
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bigkernel import connect
from bigkernel.data.corpus import Corpus
from bigkernel.engine.process import processors
from bigkernel.kernels.functions import Gaussian
from bigkernel.monitor.terminal.bar import bar, progress
from pipelines.shared.experiments import data_option, json_option, out_option
from pipelines.shared.timed_sweeps import FEATURES, SIGMA, digits_corpus, table


@dataclass(frozen=True)
class Place:
    """Where rows come from, where corpora are kept, and whether one JSON object is printed and nothing else."""

    data: Path
    out: Path
    as_json: bool

    def corpus(self, rows: int, **options: Any) -> Corpus:
        """Return a corpus of so many digits, made once."""
        return digits_corpus(self.out, self.data, rows, quiet=self.as_json, **options)

    def bar(self, unit: str) -> AbstractContextManager[Callable[[int, int | None], None]]:
        """Show progress in a unit."""
        return bar(unit, enabled=not self.as_json, unit=unit)

    def tell(self, result: Any, show: Callable[..., Any], *description: Any) -> None:
        """Print JSON, or tables."""
        if self.as_json:
            click.echo(json.dumps(result))
        else:
            show(result, *description)


def bench_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --data, --out and --json, passed on as one argument `place`."""

    @functools.wraps(function)
    def command(data: Path, out: Path, as_json: bool, **options: Any) -> Any:
        return function(Place(data, out, as_json), **options)

    several = (
        data_option("Directory with MNIST's idx files."),
        out_option("bench", "Directory for the corpora."),
        json_option,
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(several), command)


@click.group()
def bench() -> None:
    """Measure speed, memory and reproducibility on this machine.

    `python -m pipelines bench NAME --help` describes a benchmark.
    """


@bench.command(short_help="Compare the sweep with its two products.")
@bench_options
@click.option("--rows", default=200_000, show_default=True)
@click.option("--landmarks", default=2_000, show_default=True)
@click.option("--repeats", default=5, show_default=True, help="Rounds of GEMM, limit and sweep.")
@click.option("--seconds", default=1.5, show_default=True, help="Time for which each product is repeated.")
@click.option("--threads", is_flag=True, help="Use threads of this process, not a local cluster.")
def gram(place: Place, rows: int, landmarks: int, repeats: int, seconds: float, threads: bool) -> None:
    """Measure the rate of a sweep relative to its two matrix products.

    The sweep reads from zarr on a local cluster; its rate is 2·n·m·d + n·m² flops over the time from the first task to
    the merged total. The limit is the block's product and the Gram's update alone, in float32, on all workers at the
    same time. A GEMM of 4096³ on one core, times the number of cores, is shown beside it. "processor" is the ratio of
    sweep to limit in processor time, which other work on the machine hardly changes.
    """
    from pipelines.bench import gram as bench_gram

    corpus = place.corpus(rows)
    with ExitStack() as stack:
        update = stack.enter_context(place.bar("turns"))
        client = "threads" if threads else stack.enter_context(connect("local", workers=processors()))
        result = bench_gram.measure(corpus, landmarks, repeats=repeats, client=client, seconds=seconds, update=update)
    place.tell(result, bench_gram.show)


@bench.command(short_help="Compare peak memory with the plan.")
@bench_options
@click.option("--small", default=60_000, show_default=True)
@click.option("--large", default=1_400_000, show_default=True)
@click.option("--landmarks", default=1_000, show_default=True)
@click.option("--memory-limit", default=500_000_000, show_default=True, help="Memory limit of each worker, in bytes.")
@click.option("--sizes", default="500,1000,2000,4000,8000", show_default=True, help="Landmarks of the second table.")
@click.option("--sizes-rows", default=20_000, show_default=True, help="Rows of the second table.")
def memory(place: Place, small: int, large: int, landmarks: int, memory_limit: int, **of_sizes: Any) -> None:
    """Compare the peak resident memory of a process with its planned peak.

    The first table compares a worker for few and for many rows; the second compares workers and the threads of one
    process for few and many landmarks. Workers may take 4 GiB there; m = 8,000 takes 3 GB. Workers publish partial
    results in a run directory, as in any job that can be resumed.
    """
    from pipelines.bench import memory as bench_memory

    few_and_many, sizes = [], [int(m) for m in of_sizes["sizes"].split(",") if m]
    for n_rows in (small, large):
        # chunks small enough for both to read ahead
        corpus = place.corpus(n_rows, chunk_rows=5_000)
        few_and_many.append(bench_memory.on_workers(corpus, landmarks, memory_limit, place.out))
    corpus = place.corpus(of_sizes["sizes_rows"], chunk_rows=5_000)
    with place.bar("sizes") as update:
        peaks = bench_memory.measured(corpus, sizes, 2**32, place.out, update)
    if place.as_json:
        figures = {
            "runs": [bench_memory.plain(one) for one in few_and_many],
            "difference": bench_memory.difference(few_and_many),
            "sizes": [bench_memory.plain(one) for one in peaks],
        }
        click.echo(json.dumps(figures))
    else:
        bench_memory.show(few_and_many, peaks)


@bench.command(short_help="Compare the bits of all executors.")
@bench_options
@click.option("--rows", default=60_000, show_default=True)
@click.option("--landmarks", default=500, show_default=True)
def bits(place: Place, rows: int, landmarks: int) -> None:
    """Compare the bits of the coefficients from serial, threads, one worker and two."""
    from bigkernel import KernelRidgeClassifier, UnitNormalizer, executing
    from bigkernel.data.zarr_arrays import digest

    corpus = place.corpus(rows)
    lazy = UnitNormalizer().fit(corpus).transform(corpus)
    digests: dict[str, str] = {}

    def fit(name: str, client: Any) -> None:
        model = KernelRidgeClassifier(Gaussian(SIGMA), alpha=0.1, n_landmarks=landmarks, random_state=0)
        with executing(client):
            model.fit(lazy)
        digests[name] = digest({"coef": model.dual_coef_, **model.statistics_})

    for name in ("serial", "threads"):
        fit(name, name)
    for workers in (1, 2):
        with connect("local", workers=workers) as client:
            fit(f"{workers} worker{'s' * (workers > 1)}", client)
    same = len(set(digests.values())) == 1
    if place.as_json:
        click.echo(json.dumps({"digests": digests, "same": same}))
    else:
        table(
            "SHA-256 of coefficients and statistics",
            ["executor", "digest"],
            [[k, v[:32] + "…"] for k, v in digests.items()],
        )
        click.echo("identical" if same else "DIFFERENT")
    if not same:
        raise SystemExit(1)


@bench.command(short_help="Compare predictions with least squares.")
@bench_options
@click.option("--rows", default=3_000, show_default=True)
@click.option("--landmarks", default=200, show_default=True)
def numbers(place: Place, rows: int, landmarks: int) -> None:
    """Compare predictions with least squares and with their estimated errors.

    Fits all combinations of tables, dtypes, widths and penalties; exits with 1 if a fit is off by more than 1e-3
    without a warning.
    """
    from pipelines.bench import numbers as bench_numbers

    fits: list[bench_numbers.Cell] = []
    cases = len(bench_numbers.SIGMAS) * len(bench_numbers.ALPHAS) * len(bench_numbers.METHODS)
    total = len(bench_numbers.tables(rows, place.data)) * 2 * cases
    with place.bar("fits") as update:
        for cell in bench_numbers.cells(rows, landmarks, place.data):
            fits.append(cell)
            update(len(fits), total)
    result = bench_numbers.summary(fits)
    if place.as_json:
        click.echo(json.dumps(result))
    else:
        lines = [bench_numbers.row(cell) for cell in fits]
        table(f"{rows:,} rows, m = {landmarks:,}: errors of predictions", bench_numbers.COLUMNS, lines)
        click.echo(bench_numbers.verdict(result))
    if result["silently_wrong"]:
        raise SystemExit(1)


@bench.command(short_help="Compare with scikit-learn and Dask arrays.")
@bench_options
@click.option("--rows", default=100_000, show_default=True)
@click.option("--landmarks", default=1_000, show_default=True)
@click.option("--alpha", default=10.0, show_default=True)
@click.option("--repeats", default=3, show_default=True, help="Alternated rounds of all three.")
@click.option("--without-dask", is_flag=True, help="Leave out plain Dask array algebra.")
def peers(place: Place, rows: int, landmarks: int, alpha: float, repeats: int, without_dask: bool) -> None:
    """Compare a fit from zarr with scikit-learn and with Dask arrays.

    The peers are scikit-learn's Nystroem + Ridge from memory and plain Dask array algebra, on the same rows, landmarks,
    penalty and ten one-hot targets. Each contender has its own process and thus its own peak memory (ours: the driver
    and the largest worker).
    """
    from pipelines.bench import peers as bench_peers

    corpus = place.corpus(rows)
    contenders = [name for name in bench_peers.CONTENDERS if name != "dask-array" or not without_dask]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    start = time.perf_counter()
    with place.bar("rounds") as update:
        for i in range(repeats):
            for name in contenders:
                runs[name].append(bench_peers.run(name, corpus.path, landmarks, alpha))
            update(i + 1, repeats)
    result = bench_peers.compare(runs)
    result["wall_seconds"] = time.perf_counter() - start
    if place.as_json:
        click.echo(json.dumps(result))
        return
    table(
        f"fit of {rows:,} × {FEATURES}, m = {landmarks:,}, alpha = {alpha}",
        ["contender", "seconds", "to ours", "peak MB", "a worker MB", "differs by"],
        [
            [
                name,
                f"{r['seconds']:.2f}",
                f"{r['ratio']:.2f}×",
                f"{r['peak_bytes'] / 1e6:,.0f}",
                f"{r['worker_bytes'] / 1e6:,.0f}" if "worker_bytes" in r else "",
                f"{r['difference']:.1e}",
            ]
            for name, r in result["contenders"].items()
        ],
    )


@bench.command(short_help="Compare a search with GridSearchCV.")
@bench_options
@click.option("--rows", default=60_000, show_default=True)
@click.option("--landmarks", default=1_000, show_default=True)
@click.option("--sigmas", default=10, show_default=True, help="Bandwidths, from 0.3 to 3.")
@click.option("--alphas", default=20, show_default=True, help="Penalties, from 1e-6 to 100.")
@click.option("--folds", default=5, show_default=True)
@click.option("--peer-cells", default=1, show_default=True, help="Penalties for which the peer is timed.")
@click.option("--peer-folds", default=2, show_default=True, help="Folds for which the peer is timed.")
def tune(
    place: Place, rows: int, landmarks: int, sigmas: int, alphas: int, folds: int, peer_cells: int, peer_folds: int
) -> None:
    """Compare a grid search with scikit-learn's GridSearchCV.

    The grid has bandwidths, penalties and folds; the peer is GridSearchCV(Pipeline(Nystroem, Ridge)). It is timed on a
    part of the cells and scaled to all of them, as it fits each one alike.
    """
    from pipelines.bench import tune as bench_tune

    corpus = place.corpus(rows)
    widths, penalties = np.geomspace(0.3, 3, sigmas), np.geomspace(1e-6, 1e2, alphas)
    cells = sigmas * alphas * folds
    with progress(enabled=not place.as_json):
        error = bench_tune.ours(corpus, landmarks, widths, penalties, folds, "neg_mean_squared_error")
        accuracy = bench_tune.ours(corpus, landmarks, widths, penalties, folds, "accuracy")
    some = penalties[np.linspace(0, alphas - 1, peer_cells + 2).astype(int)[1:-1]]
    timed = bench_tune.peer(corpus, landmarks, SIGMA, some, peer_folds)
    # a fold of fewer folds trains on fewer rows: scale to those of the whole grid
    share = (1 - 1 / folds) / (1 - 1 / peer_folds)
    scaled = timed["seconds_a_fit"] * share * cells
    result = {
        "cells": cells,
        "bigkernel": error,
        "bigkernel_accuracy": accuracy,
        "peer": timed,
        "peer_seconds_scaled": scaled,
        "ratio": scaled / error["seconds"],
        "ratio_accuracy": scaled / accuracy["seconds"],
    }
    if place.as_json:
        click.echo(json.dumps(result))
        return
    table(
        f"{sigmas} bandwidths × {alphas} penalties × {folds} folds, {rows:,} × {FEATURES}, m = {landmarks:,}",
        ["what", "fits", "seconds", "to ours", "best score"],
        [
            ["SweepSearchCV, squared error", f"{cells:,}", f"{error['seconds']:.1f}", "", f"{error['score']:.5f}"],
            ["SweepSearchCV, accuracy", f"{cells:,}", f"{accuracy['seconds']:.1f}", "", f"{accuracy['score']:.5f}"],
            ["GridSearchCV, timed", f"{timed['fits']:,}", f"{timed['seconds_a_fit'] * timed['fits']:.1f}", "", ""],
            ["GridSearchCV, scaled to all", f"{cells:,}", f"{scaled:,.0f}", f"{result['ratio']:.0f}×", ""],
        ],
    )


@bench.command(short_help="Compare predictions with plain NumPy.")
@bench_options
@click.option("--rows", default=10_000, show_default=True, help="Rows of the fit.")
@click.option("--landmarks", default=1_000, show_default=True)
@click.option("--rounds", default=30, show_default=True, help="Alternated rounds of all contenders.")
def serve(place: Place, rows: int, landmarks: int, rounds: int) -> None:
    """Compare predictions in memory with plain NumPy, and time loading.

    Times a model's `predict` and its predictor's, for one row and 1,000, in float32 and float64.
    """
    from pipelines.bench import serve as bench_serve

    corpus = place.corpus(rows)
    with place.bar("rounds") as update:
        result = bench_serve.measure(corpus, landmarks, rounds=rounds, update=update)
    place.tell(result, bench_serve.show)


@bench.command(short_help="Check a GPU: limits, equal fits, sweeps.")
@click.option("--all", "every", is_flag=True, help="Run all steps.")
@click.option("--step", "steps", multiple=True, help="A step by name; repeat for several. See a run's table.")
@click.option(
    "--json", "path", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Where figures go."
)
@click.option("--device", default="cuda", show_default=True, help="cuda; or torch, strict: processors, tiny sizes.")
@click.option("--seconds", default=420.0, show_default=True, help="No step begins later.")
def gpu(every: bool, steps: tuple[str, ...], path: Path, device: str, seconds: float) -> None:
    """Check a GPU in minutes: its limits, its fits against those of processors, and sweeps against its limits.

    Products, copies, exp and Cholesky factors come first; then fits of all kernels on both, a million rows, rows like
    MNIST's with 2,000 and 20,000 landmarks, 20 million predictions, planned against measured memory, and the bits of
    two runs. Figures are written after every step. Exits with 1 if a step failed or was left out.
    """
    from pipelines.bench import gpu as bench_gpu

    if not every and not steps:
        raise click.UsageError(f"expected --all, or --step with one of {', '.join(bench_gpu.STEPS)}")
    made: dict[str, Any] = {}
    for made in bench_gpu.measure(device, path, seconds=seconds, tiny=device != "cuda", steps=steps):
        bench_gpu.show([*made["steps"]][-1], made)
    if bad := bench_gpu.wrong(made):
        click.echo(f"look at: {', '.join(bad)}")
        raise SystemExit(1)
