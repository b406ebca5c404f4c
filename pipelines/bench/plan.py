"""`bench plan`: a pilot's estimates beside the measured time and memory of the fit."""

import statistics
import time
from typing import Any

import click
from distributed import Client

from bigkernel import Gaussian, KernelRidgeClassifier, UnitNormalizer, connect, executing
from bigkernel.config import settings
from bigkernel.data.corpus import Corpus
from bigkernel.engine.pilot import pilot
from pipelines.shared.timed_sweeps import SIGMA, table


def estimator(landmarks: int) -> KernelRidgeClassifier:
    """Return the model to fit."""
    return KernelRidgeClassifier(Gaussian(SIGMA), alpha=0.1, n_landmarks=landmarks, random_state=0)


def measure(corpus: Corpus, landmarks: list[int], *, repeats: int) -> dict[str, Any]:
    """Run pilots and fits, each on a fresh local cluster of all processors; return medians."""
    rows = UnitNormalizer().fit(corpus).transform(corpus)
    fits = []
    for m in landmarks:
        with connect("local", dashboard=0) as client, executing(client):
            fits.append(_compared(client, rows, m, repeats))
    return {"fits": fits, "within": all(fit["within"] for fit in fits)}


def _compared(client: Client, rows: Any, landmarks: int, repeats: int) -> dict[str, Any]:
    model = estimator(landmarks)
    estimate = pilot(lambda: model.fit(rows))
    all_seconds, peaks = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        model.fit(rows)
        all_seconds.append(time.perf_counter() - start)
        peaks.append(int(model.sweep_["peak_bytes"]))
    seconds = statistics.median(all_seconds)
    return {
        "landmarks": landmarks,
        "workers": len(client.ncores()),
        "expected_seconds": estimate.seconds,
        "least_seconds": estimate.least,
        "most_seconds": estimate.most,
        "pilot_seconds": estimate.pilot_seconds,
        "measured_seconds": seconds,
        "all_seconds": all_seconds,
        "within": estimate.least <= seconds <= estimate.most,
        "planned_bytes": model.plan(rows).worker_bytes(settings().worker_base_bytes),
        "peak_bytes": max(peaks),
    }


def show(result: dict[str, Any], title: str) -> None:
    """Print expected and measured values, and whether all fits are within the estimated range."""
    columns = ["landmarks", "least s", "expected", "most", "pilot s", "fit s", "planned MB", "peak MB"]
    table(f"fit of {title}", columns, [_row(fit) for fit in result["fits"]])
    click.echo(f"{'all' if result['within'] else 'NOT all'} fits within the range that was told")


def _row(fit: dict[str, Any]) -> list[str]:
    seconds = ("least_seconds", "expected_seconds", "most_seconds", "pilot_seconds", "measured_seconds")
    memory = (f"{fit[name] / 1e6:,.0f}" for name in ("planned_bytes", "peak_bytes"))
    return [f"{fit['landmarks']:,}", *(f"{fit[name]:.1f}" for name in seconds), *memory]
