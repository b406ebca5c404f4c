"""`python -m pipelines bench gram | peers | tune | memory | bits`: figures of this machine, ratios in one run.

Rows are MNIST's training digits, repeated (each copy shifted by a pixel or two), where `--data` has them; random
8-bit pixels otherwise. Corpora are kept in `--out` and used again.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bigkernel import connect, open_corpus
from bigkernel.chunks import UnitNorm
from bigkernel.cli.models import gemm_flops_per_second
from bigkernel.config import settings
from bigkernel.corpus import Corpus, CorpusInfo, CorpusWriter
from bigkernel.errors import DataError
from bigkernel.execution import processors
from bigkernel.features import LandmarkMap, centre_of
from bigkernel.io import open_source
from bigkernel.kernels import Gaussian
from bigkernel.landmarks import uniform
from bigkernel.monitor.terminal import bar, progress
from bigkernel.rows import Rows, as_rows
from bigkernel.statistics import MomentStatistic, Targets
from bigkernel.sweep import sweep

FEATURES = 784
SIGMA = 0.7071  # of unit-norm digits


@click.group()
def bench() -> None:
    """Measure speed, memory and reproducibility on this machine."""


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every benchmark."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--out", default="out/bench", show_default=True, type=click.Path(path_type=Path)),
        click.option(
            "--data",
            default=lambda: os.environ.get("BIGKERNEL_DATA", "../shared/data"),
            show_default="$BIGKERNEL_DATA or ../shared/data",
            type=click.Path(path_type=Path),
            help="Directory with MNIST's idx files.",
        ),
    ):
        function = option(function)
    return function


def digits_corpus(out: Path, data: Path, n_rows: int, *, quiet: bool, chunk_rows: int = 10_000) -> Corpus:
    """A corpus of n_rows × 784 uint8 made once."""
    source = data / "train-images-idx3-ubyte.gz"
    path = out / f"{'mnist' if source.exists() else 'random'}-{n_rows}-{chunk_rows}.corpus"
    try:
        return open_corpus(path)
    except DataError:
        pass
    if source.exists():
        blocks = list(open_source(source).blocks())
        x = np.concatenate([block[0] for block in blocks])
        y = np.concatenate([np.asarray(block[1]) for block in blocks]).astype(np.int64)
    else:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (20_000, FEATURES), dtype=np.uint8)
        x[rng.random(x.shape) < 0.8] = 0
        y = rng.integers(0, 10, len(x))
    info = CorpusInfo(path.stem, "benchmark", tuple(range(10)), (28, 28), 255.0)
    writer = CorpusWriter(
        path,
        n_features=FEATURES,
        dtype=np.uint8,
        columns={"y": np.int64},
        info=info,
        n_rows=n_rows,
        chunk_rows=chunk_rows,
        overwrite=True,  # of an earlier format, or damaged
    )
    with bar(f"make {path.name}", enabled=not quiet) as update, writer:
        for index in range(-(-n_rows // writer.chunk_rows)):
            rows = np.arange(index * writer.chunk_rows, min((index + 1) * writer.chunk_rows, n_rows))
            writer.write_chunk(index, x=np.roll(x[rows % len(x)], int(rows[0]) // len(x), axis=1), y=y[rows % len(x)])
            update(int(rows[-1]) + 1, n_rows)
    return open_corpus(path)


def moments_job(corpus: Corpus, m: int, seed: int = 0) -> tuple[Rows, MomentStatistic]:
    """Unit-norm rows and the moments of m Gaussian landmarks with ten classes."""
    rows = as_rows(corpus).map(UnitNorm())
    landmarks = rows.take(uniform(len(rows), m, np.random.RandomState(seed)))
    kernel, dtype = Gaussian(SIGMA), np.dtype(np.float32)
    features = LandmarkMap(kernel, landmarks, dtype, centre_of(kernel, landmarks, dtype))
    return rows, MomentStatistic(features, Targets(10, np.arange(10)))


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table that fits 80 characters."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        shown.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)


@bench.command()
@shared
@click.option("--rows", default=200_000, show_default=True)
@click.option("--landmarks", default=2_000, show_default=True)
@click.option("--repeats", default=5, show_default=True, help="Pairs of GEMM and sweep, alternated.")
def gram(data: Path, out: Path, as_json: bool, rows: int, landmarks: int, repeats: int) -> None:
    """Rate of the sweep, from zarr on a local cluster, over that of the machine's own GEMM.

    2·n·m·d + n·m² flops over the time from the first task to the merged total; the GEMM is single-threaded, float32,
    4096³, times the cores.
    """
    corpus = digits_corpus(out, data, rows, quiet=as_json)
    lazy, statistic = moments_job(corpus, landmarks)
    cores = processors()
    flops = 2.0 * rows * landmarks * FEATURES + float(rows) * landmarks**2
    pairs, stages = [], {}
    with connect("local", workers=cores) as client:
        sweep(lazy, statistic, client=client)  # workers have imported everything and the file is in the page cache
        for _ in range(repeats):
            gemm = gemm_flops_per_second(4096, 1.5) * cores
            swept = sweep(lazy, statistic, client=client)
            pairs.append((gemm, flops / swept.seconds))
            stages = swept.stages
    ratios = [rate / gemm for gemm, rate in pairs]
    result = {
        "rows": rows,
        "landmarks": landmarks,
        "cores": cores,
        "gemm_gflops": [gemm / 1e9 for gemm, _ in pairs],
        "sweep_gflops": [rate / 1e9 for _, rate in pairs],
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "stage_seconds": stages,
    }
    if as_json:
        click.echo(json.dumps(result))
        return
    table(
        f"sweep of {rows:,} × {FEATURES}, m = {landmarks:,}, {cores} cores",
        ["pair", "GEMM × cores GFLOP/s", "sweep GFLOP/s", "ratio"],
        [[str(i + 1), f"{a / 1e9:.1f}", f"{b / 1e9:.1f}", f"{b / a:.3f}"] for i, (a, b) in enumerate(pairs)]
        + [["median", "", "", f"{result['ratio_median']:.3f}"]],
    )
    work = {"block": 2.0 * rows * landmarks * FEATURES, "gram": float(rows) * landmarks**2}
    total = sum(stages.values())
    table(
        "stages of the last sweep, all tasks",
        ["stage", "seconds", "share %", "GFLOP/s a core"],
        [
            [
                name,
                f"{value:.2f}",
                f"{100 * value / total:.1f}",
                f"{work[name] / value / 1e9:.1f}" if name in work else "",
            ]
            for name, value in stages.items()
        ],
    )


@bench.command()
@shared
@click.option("--small", default=60_000, show_default=True)
@click.option("--large", default=1_400_000, show_default=True)
@click.option("--landmarks", default=1_000, show_default=True)
@click.option("--memory-limit", default=500_000_000, show_default=True, help="Bytes, of each worker.")
def memory(data: Path, out: Path, as_json: bool, small: int, large: int, landmarks: int, memory_limit: int) -> None:
    """Peak resident memory of a worker for few and for many rows, against what the plan announced.

    Partial results are published in a run directory, as in any job that is to survive its workers.
    """
    figures = []
    for n_rows in (small, large):
        # chunks small enough for both to have some to read ahead
        corpus = digits_corpus(out, data, n_rows, quiet=as_json, chunk_rows=5_000)
        lazy, statistic = moments_job(corpus, landmarks)
        with connect("local", memory_limit=memory_limit) as client, tempfile.TemporaryDirectory(dir=out) as run:
            swept = sweep(lazy, statistic, client=client, run=run)
            workers = len(client.scheduler_info(n_workers=-1)["workers"])
        figures.append(
            {
                "rows": n_rows,
                "corpus_bytes": n_rows * FEATURES,
                "limit_bytes": memory_limit * workers,
                "peak_bytes": swept.peak_bytes,
                "announced_bytes": swept.plan.worker_bytes(settings().worker_base_bytes),
                "seconds": swept.seconds,
            }
        )
    difference = figures[1]["peak_bytes"] / figures[0]["peak_bytes"] - 1
    if as_json:
        click.echo(json.dumps({"runs": figures, "difference": difference}))
        return
    mb = 1e6
    table(
        f"memory of a worker, m = {landmarks:,}",
        ["rows", "corpus MB", "workers' limit MB", "peak MB", "announced MB", "seconds"],
        [
            [
                f"{f['rows']:,}",
                *(f"{f[k] / mb:,.0f}" for k in ("corpus_bytes", "limit_bytes", "peak_bytes", "announced_bytes")),
                f"{f['seconds']:.1f}",
            ]
            for f in figures
        ],
    )
    click.echo(f"difference of the peaks: {100 * difference:+.1f} %")


@bench.command()
@shared
@click.option("--rows", default=60_000, show_default=True)
@click.option("--landmarks", default=500, show_default=True)
def bits(data: Path, out: Path, as_json: bool, rows: int, landmarks: int) -> None:
    """The same bits of the coefficients from serial, threads, one worker and two."""
    from bigkernel import KernelRidgeClassifier, UnitNormalizer, executing
    from bigkernel.arrays import digest

    corpus = digits_corpus(out, data, rows, quiet=as_json)
    lazy = UnitNormalizer().fit(corpus).transform(corpus)
    found: dict[str, str] = {}

    def fit(name: str, client: Any) -> None:
        model = KernelRidgeClassifier(Gaussian(SIGMA), alpha=0.1, n_landmarks=landmarks, random_state=0)
        with executing(client):
            model.fit(lazy)
        found[name] = digest({"coef": model.dual_coef_, **model.statistics_})

    for name in ("serial", "threads"):
        fit(name, name)
    for workers in (1, 2):
        with connect("local", workers=workers) as client:
            fit(f"{workers} worker{'s' * (workers > 1)}", client)
    same = len(set(found.values())) == 1
    if as_json:
        click.echo(json.dumps({"digests": found, "same": same}))
    else:
        table(
            "SHA-256 of coefficients and statistics",
            ["executor", "digest"],
            [[k, v[:32] + "…"] for k, v in found.items()],
        )
        click.echo("identical" if same else "DIFFERENT")
    if not same:
        raise SystemExit(1)


@bench.command()
@shared
@click.option("--rows", default=100_000, show_default=True)
@click.option("--landmarks", default=1_000, show_default=True)
@click.option("--alpha", default=10.0, show_default=True)
@click.option("--repeats", default=3, show_default=True, help="Alternated rounds of all three.")
@click.option("--without-dask", is_flag=True, help="Leave out plain Dask array algebra.")
def peers(
    data: Path, out: Path, as_json: bool, rows: int, landmarks: int, alpha: float, repeats: int, without_dask: bool
) -> None:
    """A fit from zarr against scikit-learn's Nystroem + Ridge from memory, and against plain Dask array algebra.

    The same rows, landmarks, penalty and ten one-hot targets; each contender in its own process, so that its peak
    memory is its own (ours: of the driver and of the largest worker).
    """
    from pipelines import bench_peers

    corpus = digits_corpus(out, data, rows, quiet=as_json)
    contenders = [name for name in bench_peers.CONTENDERS if name != "dask-array" or not without_dask]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    start = time.perf_counter()
    with bar("rounds", enabled=not as_json) as update:
        for i in range(repeats):
            for name in contenders:
                runs[name].append(bench_peers.run(name, corpus.path, landmarks, alpha))
            update(i + 1, repeats)
    result = bench_peers.compare(runs)
    result["wall_seconds"] = time.perf_counter() - start
    if as_json:
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


@bench.command()
@shared
@click.option("--rows", default=60_000, show_default=True)
@click.option("--landmarks", default=1_000, show_default=True)
@click.option("--sigmas", default=10, show_default=True, help="Bandwidths, from 0.3 to 3.")
@click.option("--alphas", default=20, show_default=True, help="Penalties, from 1e-6 to 100.")
@click.option("--folds", default=5, show_default=True)
@click.option("--peer-cells", default=1, show_default=True, help="Penalties that the peer is timed on.")
@click.option("--peer-folds", default=2, show_default=True, help="Folds that the peer is timed on.")
def tune(
    data: Path,
    out: Path,
    as_json: bool,
    rows: int,
    landmarks: int,
    sigmas: int,
    alphas: int,
    folds: int,
    peer_cells: int,
    peer_folds: int,
) -> None:
    """A grid of bandwidths, penalties and folds against scikit-learn's GridSearchCV(Pipeline(Nystroem, Ridge)).

    The peer is timed on a part of the cells and scaled to all of them: it fits each one alike.
    """
    from pipelines import bench_tune

    corpus = digits_corpus(out, data, rows, quiet=as_json)
    widths, penalties = np.geomspace(0.3, 3, sigmas), np.geomspace(1e-6, 1e2, alphas)
    cells = sigmas * alphas * folds
    with progress(enabled=not as_json):
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
    if as_json:
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
