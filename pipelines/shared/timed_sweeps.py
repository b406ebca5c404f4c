"""Timed sweeps: corpora of digits, moments over them, and tables of the results.

Rows are MNIST's training digits, repeated (each copy shifted by a pixel or two), where `--data` has them; random
8-bit pixels otherwise. Corpora are kept in `--out` and used again.
"""

from pathlib import Path

import numpy as np

from bigkernel import open_corpus
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import Gaussian
from bigkernel.kernels.landmarks import uniform
from bigkernel.monitor.terminal.bar import bar
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.row_maps import UnitNorm
from pipelines.shared.experiments import read_all
from pipelines.shared.page import Column, Table

FEATURES = 784
SIGMA = 0.7071  # width for unit-norm digits


def digits_corpus(out: Path, data: Path, n_rows: int, *, quiet: bool, chunk_rows: int = 10_000) -> Corpus:
    """Return a corpus of n_rows × 784 uint8, made once."""
    source = data / "train-images-idx3-ubyte.gz"
    path = out / f"{'mnist' if source.exists() else 'random'}-{n_rows}-{chunk_rows}.corpus"
    try:
        return open_corpus(path)
    except DataError:
        pass
    if source.exists():
        x, y = read_all(source)
        y = y.astype(np.int64)
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
        chunk_rows=chunk_rows,
        overwrite=True,  # of an earlier format, or damaged
    )
    with bar(f"make {path.name}", enabled=not quiet) as update, writer:
        for index in range(-(-n_rows // writer.chunk_rows)):
            rows = np.arange(index * writer.chunk_rows, min((index + 1) * writer.chunk_rows, n_rows))
            writer.append(x=np.roll(x[rows % len(x)], int(rows[0]) // len(x), axis=1), y=y[rows % len(x)])
            update(int(rows[-1]) + 1, n_rows)
    return open_corpus(path)


def moments_job(corpus: Corpus, m: int) -> tuple[Rows, MomentStatistic]:
    """Return unit-norm rows, and the statistic of moments with m Gaussian landmarks and ten classes."""
    rows = as_rows(corpus).map(UnitNorm())
    landmarks = rows.take(uniform(len(rows), m, np.random.RandomState(0)))
    kernel, dtype = Gaussian(SIGMA), np.dtype(np.float32)
    features = LandmarkMap(kernel, landmarks, dtype, centre_of(kernel, landmarks, dtype))
    return rows, MomentStatistic(features, Targets(10, np.arange(10)))


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table that fits 80 characters."""
    print(title)
    shown = [Column(name, name, left=not place) for place, name in enumerate(columns)]
    Table(shown, [dict(zip(columns, row, strict=True)) for row in rows]).print()
