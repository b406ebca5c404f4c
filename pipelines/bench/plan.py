"""`bench plan`: what the plan tells of a fit against what the fit then takes, in one run.

The machine is calibrated first, with the corpus of the bench; then fits of each number of landmarks are alternated, so
that a slow minute meets all of them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from distributed import Client

from bigkernel import Gaussian, KernelRidgeClassifier, UnitNormalizer, connect, executing
from bigkernel.config import settings
from bigkernel.data.corpus import Corpus
from bigkernel.events.kinds import Event, Spent
from bigkernel.events.scope import observe
from bigkernel.forecast.calibration import TOLERANCE_PERCENT, Calibration
from bigkernel.forecast.fit_plan import plan_of, work_of
from bigkernel.forecast.measuring import SECONDS, calibrate
from pipelines.shared.timed_sweeps import SIGMA, table

_DRIVER = ("landmarks", "solve")  # stages of the driver, which events tell
_TASKS = ("read", "convert", "block", "exp", "gram", "add", "merge")


def estimator(landmarks: int) -> KernelRidgeClassifier:
    """The model that is fitted."""
    return KernelRidgeClassifier(Gaussian(SIGMA), alpha=0.1, n_landmarks=landmarks, random_state=0)


def measure(
    corpus: Corpus, landmarks: list[int], *, repeats: int, published: bool, out: Path, seconds: float = SECONDS
) -> dict[str, Any]:
    """Forecasts, and medians of as many fits, on a local cluster of all processors."""
    calibration = calibrate(corpus=corpus, seconds=seconds)
    rows = UnitNormalizer().fit(corpus).transform(corpus)
    with connect("local", dashboard=0) as client:
        workers = len(client.ncores())
        expected = {m: forecast(calibration, corpus, m, workers, published=published) for m in landmarks}
        _fit(client, rows, 64, published, out)  # workers have imported everything, the files are in the page cache
        fits: dict[int, list[dict[str, Any]]] = {m: [] for m in landmarks}
        for _ in range(repeats):
            for m in landmarks:
                fits[m].append(_fit(client, rows, m, published, out))
    peaks = peak_bytes(rows, landmarks)
    figures = [_compared(m, expected[m], fits[m], peaks[m]) for m in landmarks]
    within = all(abs(f["ratio"] - 1) <= TOLERANCE_PERCENT / 100 for f in figures)
    return {"workers": workers, "calibration": calibration.origin(), "fits": figures, "within": within}


def forecast(calibration: Calibration, corpus: Corpus, landmarks: int, workers: int, *, published: bool) -> Any:
    """Return what `bigkernel plan` would tell: the forecast, and the announced peak of a worker in bytes."""
    model = estimator(landmarks)
    steps = plan_of(model, UnitNormalizer().fit(corpus).transform(corpus))
    told = calibration.forecast(steps, work_of(model, steps, corpus), workers=workers, run=published)
    return told, steps.worker_bytes(settings().worker_base_bytes)


def _fit(client: Client, rows: Any, landmarks: int, published: bool, out: Path) -> dict[str, Any]:
    """Seconds of a fit and of its stages."""
    spent: dict[str, float] = {}

    def keep(event: Event) -> None:
        if isinstance(event, Spent):
            spent[event.stage] = spent.get(event.stage, 0.0) + event.seconds

    with tempfile.TemporaryDirectory(dir=out) as scratch:
        run = f"{scratch}/run" if published else None
        with executing(client, run=run), observe(keep):
            start = time.perf_counter()
            model = estimator(landmarks).fit(rows)
            seconds = time.perf_counter() - start
    swept = model.sweep_
    stages = {**spent, **swept["stage_seconds"]}
    return {"seconds": seconds, "sweep_seconds": swept["seconds"], "stage_seconds": stages}


def peak_bytes(rows: Any, landmarks: list[int]) -> dict[int, int]:
    """Highest resident memory of a worker in a fit: of workers that have done nothing else."""
    peaks = {}
    for m in landmarks:
        with connect("local", dashboard=0) as client, executing(client):
            peaks[m] = int(estimator(m).fit(rows).sweep_["peak_bytes"])
    return peaks


def _compared(landmarks: int, expected: Any, fits: list[dict[str, Any]], peak: int) -> dict[str, Any]:
    told, announced = expected
    seconds = statistics.median(fit["seconds"] for fit in fits)
    names = {name for fit in fits for name in fit["stage_seconds"]}
    return {
        "landmarks": landmarks,
        "predicted_seconds": told.fit_seconds,
        "measured_seconds": seconds,
        "all_seconds": [fit["seconds"] for fit in fits],
        "ratio": told.fit_seconds / seconds,
        "predicted_sweep_seconds": told.sweep_seconds,
        "measured_sweep_seconds": statistics.median(fit["sweep_seconds"] for fit in fits),
        "predicted_stage_seconds": told.stage_seconds,
        "measured_stage_seconds": {
            name: statistics.median(fit["stage_seconds"].get(name, 0.0) for fit in fits) for name in sorted(names)
        },
        "announced_bytes": announced,
        "peak_bytes": peak,
    }


def show(result: dict[str, Any], title: str, *, stages: bool) -> None:
    """Print predicted and measured side by side, and whether all fits are as near as forecasts are meant to be."""
    table(
        f"fit of {title}",
        ["landmarks", "predicted s", "measured s", "ratio", "announced MB", "peak MB", "ratio"],
        _fit_rows(result),
    )
    if stages:
        columns = [f"m = {f['landmarks']:,}" for f in result["fits"]]
        table("seconds by stage, all workers together: predicted measured", ["stage", *columns], _stage_rows(result))
    ratios = [f["ratio"] for f in result["fits"]]
    click.echo(
        f"predicted / measured: {min(ratios):.2f} to {max(ratios):.2f}, "
        f"{'all' if result['within'] else 'NOT all'} within ±{TOLERANCE_PERCENT} %"
    )


def _fit_rows(result: dict[str, Any]) -> list[list[str]]:
    """Predicted, measured, ratio; announced and measured memory."""
    return [
        [
            f"{f['landmarks']:,}",
            f"{f['predicted_seconds']:.2f}",
            f"{f['measured_seconds']:.2f}",
            f"{f['ratio']:.2f}",
            f"{f['announced_bytes'] / 1e6:,.0f}",
            f"{f['peak_bytes'] / 1e6:,.0f}",
            f"{f['announced_bytes'] / f['peak_bytes']:.2f}",
        ]
        for f in result["fits"]
    ]


def _stage_rows(result: dict[str, Any]) -> list[list[str]]:
    """Predicted and measured seconds of each stage, a column a fit."""
    rows = []
    for stage in (*_DRIVER[:1], *_TASKS, *_DRIVER[1:]):
        pairs = [
            (f["predicted_stage_seconds"].get(stage), f["measured_stage_seconds"].get(stage)) for f in result["fits"]
        ]
        rows.append([stage, *(f"{_shown(a)} {_shown(b)}" for a, b in pairs)])
    sweeps = [(f["predicted_sweep_seconds"], f["measured_sweep_seconds"]) for f in result["fits"]]
    return [*rows, ["sweep, by the clock", *(f"{_shown(a)} {_shown(b)}" for a, b in sweeps)]]


def _shown(seconds: float | None) -> str:
    return "    –" if seconds is None else f"{seconds:5.2f}"
