"""`bench domains`: one sweep of XNV, DICA, JDA and ARTL each against the plain Gram sweep of equal width.

Rows are digits of unit norm in four domains, the last without labels. Jobs of the same m landmarks take turns on a
local cluster. Later rounds of JDA and ARTL, of the target rows alone, are not counted.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from bigkernel import DICA, JDA, ARTLClassifier, Gaussian, KernelRidgeClassifier, XNVClassifier, connect, executing
from bigkernel.config import settings
from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.kernels.landmarks import uniform
from bigkernel.streaming.row_maps import UnitNorm
from pipelines.shared.page import Column, Table
from pipelines.shared.timed_sweeps import SIGMA, moments_job

N_DOMAINS = 4
GRAM = "Gram sweep"


@dataclass(frozen=True)
class Job:
    """One sweep: `planned_bytes()` of a worker by its plan, and `run()` for seconds and peak bytes of a worker."""

    planned_bytes: Callable[[], int]
    run: Callable[[], tuple[float, int]]


def domained(corpus: Corpus) -> Rows:
    """Yield unit-norm rows in four domains, block by block; those of the last are unlabelled."""
    domain = np.arange(len(corpus)) * N_DOMAINS // len(corpus)
    y = np.where(domain == N_DOMAINS - 1, -1, corpus.column("y"))
    return as_rows(corpus, y=y, domain=domain.astype(np.int8)).map(UnitNorm())


def jobs(corpus: Corpus, m: int) -> dict[str, Job]:
    """Return all sweeps by name."""
    rows, kernel = domained(corpus), Gaussian(SIGMA)
    plain, statistic = moments_job(corpus, m)
    Z = rows.take(uniform(len(rows), m, np.random.RandomState(0)))
    base = settings().worker_base_bytes

    def gram() -> tuple[float, int]:
        swept = sweep(plain, statistic, what="moments")
        return swept.seconds, swept.report()["peak_bytes"]

    def of(make: Callable[[], Any]) -> Job:
        def run() -> tuple[float, int]:
            report = make().fit(rows).sweep_
            return report["seconds"], report["peak_bytes"]

        return Job(lambda: make().plan(rows).worker_bytes(base), run)

    half = m // 2
    return {
        GRAM: Job(lambda: plan_sweep(plain, statistic).worker_bytes(base), gram),
        "XNV": of(lambda: XNVClassifier(kernel, 1e-4, n_landmarks=half, landmarks=Z[: 2 * half])),
        "DICA": of(lambda: DICA(kernel, landmarks=Z)),
        "JDA": of(lambda: JDA(kernel, n_rounds=0, landmarks=Z)),
        "ARTL": of(lambda: ARTLClassifier(kernel, n_rounds=0, landmarks=Z)),
    }


def measure(
    corpus: Corpus, m: int, *, repeats: int, workers: int, update: Callable[[int, int], Any]
) -> dict[str, dict[str, Any]]:
    """Run every sweep `repeats` times on a local cluster; return seconds, ratios to the Gram sweep, and memory."""
    todo = jobs(corpus, m)
    announced = {name: job.planned_bytes() for name, job in todo.items()}
    results: dict[str, list[tuple[float, int]]] = {name: [] for name in todo}
    few = domained(corpus).window(0, min(len(corpus), 4_096))
    for number, name in product(range(repeats), todo):
        # a new cluster, so that the peak of a worker is that of this sweep
        with connect("local", workers=workers) as client, executing(client):
            KernelRidgeClassifier(Gaussian(SIGMA), n_landmarks=16).fit(few)  # workers import their modules
            results[name].append(todo[name].run())
        update(number * len(todo) + len([runs for runs in results.values() if len(runs) > number]), repeats * len(todo))
    return {
        name: {
            "seconds": statistics.median(seconds for seconds, _ in runs),
            "all_seconds": [seconds for seconds, _ in runs],
            "ratio": statistics.median(run[0] / gram[0] for run, gram in zip(runs, results[GRAM], strict=True)),
            "peak_bytes": max(peak for _, peak in runs),
            "planned_bytes": announced[name],
        }
        for name, runs in results.items()
    }


def summary(result: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a line for each method: seconds, ratio to the Gram sweep, measured and planned memory."""
    columns = [
        Column("name", "one sweep of", left=True),
        Column("seconds", "seconds", ".2f"),
        Column("ratio", "to Gram", lambda line: f"{line['ratio']:.2f}×"),
        Column("peak_bytes", "peak MB", lambda line: f"{line['peak_bytes'] / 1e6:,.0f}"),
        Column("planned_bytes", "planned MB", lambda line: f"{line['planned_bytes'] / 1e6:,.0f}"),
    ]
    return Table(columns, [{"name": name, **figures} for name, figures in result.items()])


def show(result: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """Print the table under its title."""
    print(title)
    summary(result).print()
