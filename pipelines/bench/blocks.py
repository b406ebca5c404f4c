"""`bench blocks`: seconds and memory of a fit that sweeps often, over the share of its kernel blocks that memory keeps.

Each fit has a process of its own, whose peak nothing else has raised. Rounds alternate shares; seconds are medians.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import dask

from bigkernel import Gaussian, KernelLogisticClassifier, KernelRidgeClassifier, UnitNormalizer, executing
from bigkernel.data.corpus import Corpus, open_corpus
from bigkernel.engine.process import peak_bytes
from pipelines.shared.timed_sweeps import SIGMA, table

SHARES = (0.0, 0.1, 0.5, 1.0)
GIVEN: dict[str, Any] = {"kernel": Gaussian(SIGMA), "alpha": 0.1, "random_state": 0}
METHODS = {"cg": KernelRidgeClassifier(solver="cg", **GIVEN), "logistic": KernelLogisticClassifier(**GIVEN)}


def measure(corpus: Corpus, method: str, m: int, repeats: int, update: Callable[[int, int], object]) -> Any:
    """Return the figures of a fit with every share of the blocks, with the medians of the seconds."""
    fits: dict[float, list[dict[str, float]]] = {share: [] for share in SHARES}
    for number in range(repeats * len(SHARES)):
        share = SHARES[number % len(SHARES)]
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            fits[share].append(process.submit(_fit, corpus.path, method, m, share).result())
        update(number + 1, repeats * len(SHARES))
    return [
        {**some[0], "share": share, "seconds": median(one["seconds"] for one in some)} for share, some in fits.items()
    ]


def _fit(path: str, method: str, m: int, share: float) -> dict[str, float]:
    rows, model = UnitNormalizer().fit_transform(open_corpus(path)), METHODS[method].set_params(n_landmarks=m)
    with dask.config.set({"bigkernel.block-cache": round(share * 4 * len(rows) * m)}), executing("threads"):
        start = time.perf_counter()
        report = model.fit(rows).fit_report()["sweep"]
    seconds = time.perf_counter() - start
    return {
        **{name: report[name] for name in ("sweeps", "planned_bytes")},
        "peak_bytes": peak_bytes(),
        "seconds": seconds,
    }


def show(fits: Any, title: str) -> None:
    """Print the table."""
    columns = ["blocks kept", "seconds", "to none", "sweeps", "planned MB", "peak MB"]
    texts = [
        (f"{one['share']:.0%}", f"{one['seconds']:.1f}", f"{fits[0]['seconds'] / one['seconds']:.2f}×") for one in fits
    ]
    figures = [(str(one["sweeps"]), *(f"{one[n] / 1e6:,.0f}" for n in ("planned_bytes", "peak_bytes"))) for one in fits]
    table(title, columns, [[*text, *figure] for text, figure in zip(texts, figures, strict=True)])
