"""`bench blocks`: seconds and memory of a fit that sweeps often, over the share of its kernel blocks that memory keeps.

Each fit has a process of its own, whose peak nothing else has raised. Rounds alternate shares; seconds are medians.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median

import dask

from bigkernel import Gaussian, KernelLogisticClassifier, KernelRidgeClassifier, UnitNormalizer, executing
from bigkernel.data.corpus import Corpus, open_corpus
from bigkernel.engine.process import peak_bytes
from pipelines.shared.timed_sweeps import SIGMA, table

SHARES = (0.0, 0.1, 0.5, 1.0)
METHODS = {
    "cg": KernelRidgeClassifier(Gaussian(SIGMA), alpha=0.1, solver="cg"),
    "logistic": KernelLogisticClassifier(Gaussian(SIGMA), alpha=0.1),
}


@dataclass(frozen=True)
class Fit:
    """A fit with a share of the blocks in memory: seconds, sweeps, and the announced and measured peak in bytes."""

    share: float
    seconds: float
    sweeps: int
    planned_bytes: int
    peak_bytes: int


def measure(
    corpus: Corpus, method: str, landmarks: int, *, repeats: int, update: Callable[[int, int], object]
) -> list[Fit]:
    """Fit with every share of the blocks, in alternated rounds; return medians."""
    fits: dict[float, list[Fit]] = {share: [] for share in SHARES}
    for number in range(repeats * len(SHARES)):
        share = SHARES[number % len(SHARES)]
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            fits[share].append(process.submit(_fit, corpus.path, method, landmarks, share).result())
        update(number + 1, repeats * len(SHARES))
    return [
        Fit(share, median(one.seconds for one in some), some[0].sweeps, some[0].planned_bytes, some[0].peak_bytes)
        for share, some in fits.items()
    ]


def _fit(path: str, method: str, landmarks: int, share: float) -> Fit:
    corpus = open_corpus(path)
    kept = round(share * 4 * len(corpus) * landmarks)
    model = METHODS[method].set_params(n_landmarks=landmarks, random_state=0)
    rows = UnitNormalizer().fit(corpus).transform(corpus)
    with dask.config.set({"bigkernel.block-cache": kept}), executing("threads"):
        start = time.perf_counter()
        report = model.fit(rows).fit_report()["sweep"]
        seconds = time.perf_counter() - start
    return Fit(share, seconds, report["sweeps"], report["planned_bytes"], peak_bytes())


def show(fits: list[Fit], title: str) -> None:
    """Print the table."""
    table(
        title,
        ["blocks kept", "seconds", "to none", "sweeps", "planned MB", "peak MB"],
        [
            [
                f"{one.share:.0%}",
                f"{one.seconds:.1f}",
                f"{fits[0].seconds / one.seconds:.2f}×",
                str(one.sweeps),
                *(f"{size / 1e6:,.0f}" for size in (one.planned_bytes, one.peak_bytes)),
            ]
            for one in fits
        ],
    )
