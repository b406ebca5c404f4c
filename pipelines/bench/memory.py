"""`bench memory`: the planned peak memory of sweeps beside the measured peak of a process that runs their tasks.

Each sweep has processes of its own, whose peak nothing else has raised: two workers that publish in a run directory, or
a fresh process with a thread a processor.
"""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bigkernel import connect
from bigkernel.data.corpus import Corpus, open_corpus
from bigkernel.engine.process import peak_bytes
from bigkernel.engine.sweep import Swept, sweep
from pipelines.shared.timed_sweeps import FEATURES, moments_job, table


@dataclass(frozen=True)
class Peak:
    """Planned and measured peak of a process in one sweep, in bytes."""

    executor: str
    rows: int
    landmarks: int
    planned_bytes: int
    peak_bytes: int
    limit_bytes: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Planned over measured peak."""
        return self.planned_bytes / self.peak_bytes


def on_workers(corpus: Corpus, landmarks: int, limit_bytes: int, out: Path) -> Peak:
    """Sum the moments of a corpus on the workers of a local cluster that publish in a run directory."""
    rows, statistic = moments_job(corpus, landmarks)
    with connect("local", memory_limit=limit_bytes, dashboard=0) as client, tempfile.TemporaryDirectory(dir=out) as run:
        swept = sweep(rows, statistic, client=client, run=run)
        peaks = client.run(peak_bytes)  # including the last merges
    return _peak("processes", corpus, landmarks, swept, max(peaks.values()), limit_bytes * len(peaks))


def in_threads(corpus: Corpus, landmarks: int) -> Peak:
    """Sum the moments of a corpus in threads of a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_in_threads, corpus.path, landmarks).result()


def measured(
    corpus: Corpus, sizes: Sequence[int], limit_bytes: int, out: Path, update: Callable[[int, int], object]
) -> list[Peak]:
    """Measure the peaks for several numbers of landmarks, on workers and in threads."""
    peaks = []
    for landmarks in sizes:
        for one in (on_workers(corpus, landmarks, limit_bytes, out), in_threads(corpus, landmarks)):
            peaks.append(one)
            update(len(peaks), 2 * len(sizes))
    return peaks


def show(few_and_many: Sequence[Peak], sizes: Sequence[Peak]) -> None:
    """Print the tables."""
    table(
        f"memory of a worker, m = {few_and_many[0].landmarks:,}",
        ["rows", "corpus MB", "workers' limit MB", "peak MB", "planned MB", "seconds"],
        [
            [
                f"{one.rows:,}",
                *(
                    f"{size / 1e6:,.0f}"
                    for size in (one.rows * FEATURES, one.limit_bytes, one.peak_bytes, one.planned_bytes)
                ),
                f"{one.seconds:.1f}",
            ]
            for one in few_and_many
        ],
    )
    print(f"difference of the peaks: {100 * difference(few_and_many):+.1f} %")
    if sizes:
        table(
            f"memory of a process, {sizes[0].rows:,} rows",
            ["m", "", "planned MB", "peak MB", "ratio"],
            [
                [
                    f"{one.landmarks:,}",
                    one.executor,
                    *(f"{size / 1e6:,.0f}" for size in (one.planned_bytes, one.peak_bytes)),
                    f"{one.ratio:.2f}",
                ]
                for one in sizes
            ],
        )


def difference(few_and_many: Sequence[Peak]) -> float:
    """Return how much the peak for many rows exceeds that for few, relative to the latter."""
    few, many = few_and_many
    return many.peak_bytes / few.peak_bytes - 1


def plain(one: Peak) -> dict[str, Any]:
    """Return a peak as plain data."""
    return {**vars(one), "corpus_bytes": one.rows * FEATURES, "ratio": one.ratio}


def _in_threads(path: str, landmarks: int) -> Peak:
    corpus = open_corpus(path)
    rows, statistic = moments_job(corpus, landmarks)
    swept = sweep(rows, statistic, client="threads")
    return _peak("threads", corpus, landmarks, swept, peak_bytes(), 0)


def _peak(executor: str, corpus: Corpus, landmarks: int, swept: Swept, peak: int, limit_bytes: int) -> Peak:
    return Peak(executor, len(corpus), landmarks, swept.planned_bytes, peak, limit_bytes, swept.seconds)
