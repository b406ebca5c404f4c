"""The corpora of `python -m pipelines corpus`, opened or made, and which of their rows are labelled."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigkernel import Corpus, open_corpus
from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.events.job import Note, emit
from bigkernel.monitor.terminal.bar import bar
from pipelines.corpus.settings import LANDMARK_SHARE, Settings
from pipelines.shared import digit_corpora
from pipelines.shared.blank import blank_rows
from pipelines.shared.deformed import ELASTIC


@dataclass(frozen=True)
class Material:
    """Corpora of a job: the originals (None if a corpus is given), all rows, and the test digits."""

    originals: Corpus | None
    train: Corpus
    test: Corpus
    kept: bool
    seconds: float

    @property
    def has_copies(self) -> bool:
        """Whether rows are copies of others, marked by `group`."""
        return "group" in self.train.columns

    def require_labels(self) -> None:
        """Raise `DataError` unless both corpora have labels and the same features and classes."""
        train, test = self.train, self.test
        if not train.info.classes or "y" not in train.columns or "y" not in test.columns:
            raise DataError(f"{train.path}, {test.path}: expected rows with labels that are classes, in both")
        if (train.n_features, train.info.classes) != (test.n_features, test.info.classes):
            raise DataError(
                f"{test.path}: {test.n_features} features and classes {test.info.classes}, the training rows have "
                f"{train.n_features} and {train.info.classes}"
            )


def gather(job: Settings, run: Path, require_room: Callable[[Rows, Corpus], None], *, quiet: bool) -> Material:
    """Open or make the corpora; complete ones in `run` with the same settings are kept.

    `require_room(rows, originals)` refuses a fit that is not possible before the rows are made.
    """
    start = time.perf_counter()
    if job.corpus is not None:
        assert job.test is not None
        train = open_corpus(job.corpus)
        if job.rows not in (None, len(train)):
            raise ConfigError(f"--rows {job.rows:,}: {train.path} has {len(train):,}, and is fitted as it is")
        return Material(None, train, open_corpus(job.test), True, time.perf_counter() - start)
    if job.data is None:
        digits = digit_corpora.originals(run / "originals", job.seed, keep=True)
    else:
        with bar("ingest", enabled=not quiet) as shown:
            digits = digit_corpora.mnist(run / "originals", job.data, keep=True, progress=shown)
    originals, n_rows = digits.train, job.corpus_rows
    if n_rows == len(originals):
        return Material(originals, originals, digits.test, digits.kept, time.perf_counter() - start)
    variation = digit_corpora.VARIATION if job.data is None else ELASTIC
    target, options = run / "train.corpus", {"seed": job.seed, "variation": variation.times(job.strength)}
    kept = digit_corpora.kept_copies(target, originals, n_rows, **options)
    if kept is None:
        require_room(blank_rows(n_rows, originals.n_features, originals.info.classes), originals)
        emit(Note(f"corpus: {n_rows:,} rows from {len(originals):,} originals"))
    train = kept or digit_corpora.deform(originals, target, n_rows, **options, quiet=quiet, overwrite=True)
    return Material(originals, train, digits.test, kept is not None, time.perf_counter() - start)


def truth(test: Corpus) -> tuple[Array, Array]:
    """Return which test rows have a label, (n,) bool, and their classes as a model predicts them."""
    y, classes = test.column("y"), test.info.classes
    if not _named(classes):
        known: Array = np.isin(y, classes)
        return known, y[known]
    known = y >= 0
    return known, np.array(classes)[y[known]]


def first_rows(job: Settings, material: Material) -> int:
    """Return the number of rows of the first fit: the originals, or a few per landmark, with every class present."""
    if job.steps == 1:
        return len(material.train)
    count = len(material.train) // 100 if material.originals is None else len(material.originals)
    first = min(len(material.train), max(count, LANDMARK_SHARE * job.landmarks))
    y = as_rows(material.train).window(0, first).column("y")
    lacking = _classes(material.train) - set(() if y is None else y.tolist())
    if lacking:
        raise DataError(
            f"{material.train.path}: its first {first:,} rows, which are the first fit, lack {len(lacking)} of the "
            "classes; give --steps 1, which fits all rows at once, or a corpus in random order"
        )
    return first


def _classes(corpus: Corpus) -> set[Any]:
    """Return the classes as the column y holds them: names as their positions."""
    classes = corpus.info.classes
    return set(range(len(classes))) if _named(classes) else set(classes)


def _named(classes: Sequence[Any]) -> bool:
    return any(isinstance(label, str) for label in classes)
