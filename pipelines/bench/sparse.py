"""`bench sparse`: a fit of sparse rows that would fill a disk if they were dense, on workers of little memory.

Rows are like texts: each has the same number of different columns, half of them drawn by Zipf's law (the word of rank r
with a probability in proportion to 1/r) and half from the columns of its class, of which there are ten. Row i is a
function of the seed and of the chunk that it is made in.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigkernel import Gaussian, KernelRidgeClassifier, UnitNormalizer, connect, executing, open_corpus
from bigkernel.config import settings
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import DataError
from bigkernel.monitor.terminal.bar import bar
from bigkernel.statistics.moments import MomentStatistic, Targets
from pipelines.shared.timed_sweeps import table

CLASSES = 10
SIGMA, ALPHA = 0.7, 1e-3  # of rows of length one
_MADE_ROWS = 10_000  # at a time
_TEST_SEED = 2**32


def texts(
    n_rows: int, n_features: int, row_entries: int, rng: np.random.Generator
) -> tuple[sparse.csr_array, NDArray[np.int64]]:
    """Rows (n, d) float32 and classes (n,)."""
    labels = rng.integers(0, CLASSES, n_rows)
    draws = 3 * row_entries
    # the inverse of the distribution of 1/r, as far as that is smooth
    common = (n_features + 1.0) ** rng.random((n_rows, draws)) - 1
    band = n_features // CLASSES
    own = labels[:, None] * band + band * rng.random((n_rows, draws)) ** 2
    columns = np.where(rng.random((n_rows, draws)) < 0.5, common, own).astype(np.int64).clip(0, n_features - 1)
    columns.sort(axis=1)
    order = rng.random((n_rows, draws))
    order[:, 1:][columns[:, 1:] == columns[:, :-1]] = 2  # a column that is there already comes last
    chosen = np.take_along_axis(columns, np.argsort(order, axis=1)[:, :row_entries], axis=1)
    chosen.sort(axis=1)
    values = rng.uniform(0.5, 1.5, chosen.shape).astype(np.float32)
    starts = np.arange(n_rows + 1) * row_entries
    rows = sparse.csr_array((values.ravel(), chosen.ravel(), starts), shape=(n_rows, n_features))
    rows.sum_duplicates()  # of a row that found too few different ones
    return rows, labels


def corpus_of(path: Path, n_rows: int, n_features: int, row_entries: int, seed: int, *, quiet: bool) -> Corpus:
    """A corpus of such rows, made once."""
    try:
        return open_corpus(path)
    except DataError:
        pass
    info = CorpusInfo(path.stem, "benchmark", tuple(range(CLASSES)), sparse_features=n_features)
    writer = CorpusWriter(
        path,
        n_features=n_features,
        dtype=np.float32,
        columns={"y": np.int64},
        info=info,
        row_entries=row_entries,
        overwrite=True,
    )
    with bar(f"make {path.name}", enabled=not quiet) as update, writer:
        for start in range(0, n_rows, _MADE_ROWS):
            rng = np.random.default_rng([seed, start])
            x, y = texts(min(_MADE_ROWS, n_rows - start), n_features, row_entries, rng)
            writer.append(x=x, y=y)
            update(start + len(y), n_rows)
    return open_corpus(path)


def measure(train: Corpus, test: Corpus, landmarks: int, *, workers: int, memory_limit: str, out: Path) -> Any:
    """Fit, score and predict on a local cluster: bytes, seconds and peaks, planned and measured."""
    unit = UnitNormalizer().fit(train)
    rows, held = unit.transform(train), unit.transform(test)
    model = KernelRidgeClassifier(Gaussian(SIGMA), alpha=ALPHA, n_landmarks=landmarks, random_state=0)
    planned = _planned(rows, model)
    with (
        connect("local", workers=workers, memory_limit=memory_limit, dashboard=0) as client,
        tempfile.TemporaryDirectory(dir=out) as scratch,
        executing(client, run=f"{scratch}/run"),
    ):
        start = time.perf_counter()
        model.fit(rows)
        fitted = time.perf_counter()
        accuracy = model.score(held)
        scored = time.perf_counter()
    swept = model.sweep_
    return {
        "rows": len(train),
        "features": train.n_features,
        "row_entries": train.entries / len(train),
        "landmarks": landmarks,
        "workers": workers,
        "memory_limit": memory_limit,
        "stored_bytes": sum(file.stat().st_size for file in Path(train.path).rglob("*") if file.is_file()),
        "dense_bytes": len(train) * train.n_features * 4,
        "bytes_read": swept["bytes_read"],
        "fit_seconds": fitted - start,
        "sweep_seconds": swept["seconds"],
        "stage_seconds": swept["stage_seconds"],
        "score_seconds": scored - fitted,
        "test_rows": len(test),
        "accuracy": accuracy,
        "announced_bytes": planned,
        "peak_bytes": swept["peak_bytes"],
        "driver_peak_bytes": _peak_of_this_process(),
    }


def _planned(rows: Rows, model: Any) -> int:
    """Bytes of a worker, as the plan of the fit announces."""
    basis = model.basis(rows, look=False)
    statistic = MomentStatistic(basis.centred(), Targets(CLASSES, np.arange(CLASSES)))
    return plan_sweep(rows, statistic).worker_bytes(settings().worker_base_bytes)


def _peak_of_this_process() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run(
    out: Path,
    rows: int,
    features: int,
    row_entries: int,
    landmarks: int,
    workers: int,
    memory_limit: str,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Make what is missing of the corpora and measure."""
    name = f"{features}-{row_entries}"
    train = corpus_of(out / f"texts-{rows}-{name}.corpus", rows, features, row_entries, 0, quiet=quiet)
    tested = max(1, rows // 10)
    test = corpus_of(out / f"test-{tested}-{name}.corpus", tested, features, row_entries, _TEST_SEED, quiet=quiet)
    return measure(train, test, landmarks, workers=workers, memory_limit=memory_limit, out=out)


def show(result: dict[str, Any]) -> None:
    """Print the figures."""
    megabytes = {
        "on disk": "stored_bytes",
        "the same rows dense": "dense_bytes",
        "read by the fit": "bytes_read",
        "worker, announced": "announced_bytes",
        "worker, peak": "peak_bytes",
        "driver, peak": "driver_peak_bytes",
    }
    seconds = {"fit": "fit_seconds", "its sweep": "sweep_seconds", "score": "score_seconds"}
    table(
        f"{result['rows']:,} × {result['features']:,}, {result['row_entries']:.0f} values a row, "
        f"m = {result['landmarks']:,}",
        ["", "MB", "seconds"],
        [[name, f"{result[key] / 1e6:,.0f}", ""] for name, key in megabytes.items()]
        + [[name, "", f"{result[key]:.1f}"] for name, key in seconds.items()],
    )
    table(
        f"stages of the sweep, all of {result['workers']} workers of {result['memory_limit']} together",
        ["stage", "seconds"],
        [[name, f"{value:.1f}"] for name, value in result["stage_seconds"].items()],
    )
    print(f"accuracy on {result['test_rows']:,} other rows: {100 * result['accuracy']:.2f} %")
