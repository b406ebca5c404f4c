"""Strong and weak scaling over 1 and 2 worker processes, beside what the processors themselves do when both are busy.

A round is three sweeps, each on a fresh local cluster of processes with one BLAS thread: all rows on one worker, all
rows on two (strong scaling: half the time is ideal), half the rows on one (weak scaling: the same time is ideal). The
order of the rounds alternates. Before and after each sweep, every worker times a matrix product at the same moment: two
busy cores may clock lower, or share memory, and that is no fault of the sweep.
"""

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distributed import Client, wait

from bigkernel import connect
from bigkernel.data.corpus import Corpus
from bigkernel.engine.sweep import sweep
from pipelines.shared.product_rates import gemm_flops_per_second
from pipelines.shared.timed_sweeps import moments_job

GEMM_SIZE, GEMM_SECONDS = 2048, 0.5  # size of the matrices, and seconds of one timing
_WARM_LANDMARKS = 64
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Timing:
    """One sweep on a fresh cluster."""

    workers: int  # number of workers
    rows: int
    seconds: float  # from the first task to the merged total
    segments: int  # number of segments
    flops_per_second: float  # flops per second of the sweep, all workers together
    gemm_flops_per_second: float  # flops per second of one worker while all are busy, the mean
    load: float  # load average of the last minute at the beginning


def measure(
    whole: Corpus, half: Corpus, landmarks: int, *, repeats: int, update: Callable[[int, int | None], None]
) -> list[Timing]:
    """Time the sweeps of several rounds, and return them in order."""
    cases = [(1, whole), (2, whole), (1, half)]
    timings: list[Timing] = []
    for number in range(repeats):
        for workers, corpus in cases if number % 2 == 0 else cases[::-1]:
            timings.append(timed(corpus, landmarks, workers))
            update(len(timings), repeats * len(cases))
    return timings


def timed(corpus: Corpus, landmarks: int, workers: int) -> Timing:
    """Sweep all rows on a fresh cluster of so many processes."""
    load = os.getloadavg()[0]
    rows, statistic = moments_job(corpus, landmarks)
    _, small = moments_job(corpus, min(_WARM_LANDMARKS, landmarks))
    with connect("local", workers=workers, dashboard=0) as client:
        sweep(rows, small, client=client)  # workers have imported everything, and the files are in the page cache
        before = gemm(client)
        swept = sweep(rows, statistic, client=client)
        after = gemm(client)
    return Timing(
        workers,
        len(rows),
        swept.seconds,
        len(swept.plan.segments),
        1e9 * swept.report()["gflops_per_second"],
        statistics.fmean([*before, *after]),
        load,
    )


def gemm(client: Client) -> list[float]:
    """Return each worker's flops per second in a matrix product, measured at the same time."""
    futures = [
        client.submit(gemm_flops_per_second, GEMM_SIZE, GEMM_SECONDS, workers=[address], pure=False)
        for address in client.ncores()
    ]
    with client.as_current():
        wait(futures, timeout=_PATIENCE_SECONDS)
    rates: list[float] = client.gather(futures)
    return rates


def compare(timings: Sequence[Timing]) -> dict[str, Any]:
    """Return medians over the rounds as plain data.

    Keys: `strong` and `weak` (`one_seconds`, `two_seconds`, `speed_up`, `efficiency`; of weak scaling the efficiency is
    that of twice the rows in the same time), `gemm` (`one`, `two`: flops a second of a process when one is busy and
    when two are; `speed_up` of two) and `explained` (the sweep's strong speed-up over that of the processors).
    """

    def median(workers: int, rows: int, key: str) -> float:
        return statistics.median(getattr(t, key) for t in timings if (t.workers, t.rows) == (workers, rows))

    whole, half = max(t.rows for t in timings), min(t.rows for t in timings)
    one, two, small = (median(*case, "seconds") for case in ((1, whole), (2, whole), (1, half)))
    alone, both = (
        statistics.median(t.gemm_flops_per_second for t in timings if t.workers == workers) for workers in (1, 2)
    )
    return {
        "strong": {"one_seconds": one, "two_seconds": two, "speed_up": one / two, "efficiency": one / two / 2},
        "weak": {
            "one_seconds": small,
            "two_seconds": two,
            "speed_up": whole / half * small / two,
            "efficiency": whole / half * small / two / 2,
        },
        "gemm": {"one": alone, "two": both, "speed_up": 2 * both / alone},
        "explained": (one / two) / (2 * both / alone),
        "timings": [asdict(timing) for timing in timings],
    }
