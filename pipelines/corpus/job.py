"""The stages of `python -m pipelines corpus`: originals, corpus, plan, fits of growing numbers of rows, errors.

The rows are swept once. A fit begins with the originals, and `partial_fit` adds the rest in steps, so that the error
against the number of rows costs no sweep of its own; the error against the number of landmarks comes from the same
statistics (`with_landmarks`). Every sweep publishes in the run directory, in the same order each time, so that the
whole job is simply done again to go on with it: what is finished is found and taken.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from bigkernel import Corpus, Gaussian, KernelRidgeClassifier, SSSLClassifier, UnitNormalizer, open_corpus, save_model
from bigkernel.config import settings
from bigkernel.engine.context import executor_in_force, processors
from bigkernel.engine.preflight import check_cluster
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.evaluation import judge, told
from bigkernel.forecast.measuring.tasks import gemm_flops_per_second
from bigkernel.images.deform_corpus import deform_corpus, deformation_of, deformed_at, deformed_rows
from bigkernel.monitor.events import Figures, Note, Step
from bigkernel.monitor.format import flops, size
from bigkernel.monitor.scope import emit
from bigkernel.monitor.terminal.bar import bar
from bigkernel.storage.atomic_write import require_free
from bigkernel.storage.corpus import chunk_rows_for
from bigkernel.streaming.plan import Plan
from bigkernel.streaming.row_maps import MapCost
from pipelines.shared import digit_corpora

Array = NDArray[Any]
Record = dict[str, Any]
DEFAULT_ROWS = 200_000
LANDMARK_SHARE = 5  # rows of the first fit for each landmark drawn from them, at least
SIGMA = {"krr": (0.5, 0.35), "sssl": (0.4, 0.2)}  # of 28×28 and of 8×8 digits of unit norm
MNIST_SIZE = (60_000, 784)


@dataclass(frozen=True)
class Settings:
    """The settings of a job; see the options of `pipelines.corpus.command`."""

    data: Path | None
    corpus: Path | None
    test: Path | None
    rows: int | None
    landmarks: int
    method: str
    sigma: float | None
    alpha: float | str
    components: int
    labelled_per_class: int
    steps: int
    strength: float | None
    seed: int

    def check(self) -> None:
        """Refuse settings that contradict one another; a ConfigError."""
        if (self.corpus is None) != (self.test is None):
            raise ConfigError("--corpus and --test go together: the rows to fit, and true test rows that are not in it")
        if self.corpus is not None and self.data is not None:
            raise ConfigError("--corpus is fitted as it is, --data holds originals to deform: give one of them")
        if self.method == "sssl" and self.components > self.landmarks:
            raise ConfigError(f"--components {self.components}: more than the {self.landmarks} landmarks")


@dataclass(frozen=True)
class Material:
    """The corpora of a job: the originals (none where a corpus is given), all rows, and the test digits."""

    originals: Corpus | None
    train: Corpus
    test: Corpus
    kept: bool
    seconds: float


@dataclass
class Outcome:
    """The results of a job, for the page.

    Attributes
    ----------
    fits : a record a fit: rows, seconds, GFLOP/s, alpha, peak memory, what was resumed
    errors : a record a number of rows and of landmarks, with the error in % and its standard error
    gemm : flop/s of the matrix product on all workers together, measured before every fit and after the last
    verdict : of the last model on the test digits, see `cli.judgement`
    """

    job: Settings
    material: Material
    sigma: float
    plan: Plan
    fits: list[Record] = field(default_factory=list)
    errors: list[Record] = field(default_factory=list)
    gemm: list[float] = field(default_factory=list)
    verdict: Record = field(default_factory=dict)
    workers: int = 0
    model: str = ""

    @property
    def rate(self) -> float:
        """flop/s of all sweeps together, of what was computed and not resumed."""
        computed = [fit for fit in self.fits if fit["computed_flops"]]
        seconds = sum(fit["sweep_seconds"] for fit in computed)
        return sum(fit["computed_flops"] for fit in computed) / seconds if computed else 0.0


def work(job: Settings, run: Path, *, quiet: bool) -> Outcome:
    """All stages on the executor in force, which publishes in `run`."""
    material = _material(job, run, quiet=quiet)
    train, test = material.train, material.test
    if not train.info.classes or "y" not in train.columns or "y" not in test.columns:
        raise DataError(f"{train.path}, {test.path}: expected rows with labels that are classes, in both")
    if (train.n_features, train.info.classes) != (test.n_features, test.info.classes):
        raise DataError(
            f"{test.path}: {test.n_features} features and classes {test.info.classes}, the training rows have "
            f"{train.n_features} and {train.info.classes}"
        )
    sigma, model = _model(job, train.n_features)
    normalizer = UnitNormalizer().fit(train)
    rows, seen = normalizer.transform(train), normalizer.transform(test)
    known, truth = _truth(test)
    first = _first(job, material)
    if job.method == "sssl":
        rows = as_rows(rows, _few_labels(rows, first, job))
    outcome = Outcome(job, material, sigma, model.plan(rows), workers=_workers(rows))
    _require_room(outcome.plan, rows)
    a_worker = outcome.plan.worker_bytes(settings().worker_base_bytes)
    emit(Note(f"plan: {flops(outcome.plan.flops)}, {size(outcome.plan.bytes_read)} to read, a worker {size(a_worker)}"))
    ends = growing(first, len(train), job.steps)
    counts = growing(max(10, job.landmarks // 16), job.landmarks, job.steps)
    for number, (start, stop) in enumerate(zip((0, *ends), ends, strict=False)):
        emit(Step("fits", number, len(ends)))
        new = f", {stop - start:,} of them new" if start else ""
        emit(Note(f"fit {number + 1} of {len(ends)}: {stop:,} rows{new}"))
        outcome.gemm.append(_machine_rate(rows))
        begun = time.perf_counter()
        (model.partial_fit if start else model.fit)(rows.window(start, stop))
        outcome.fits.append(_fitted(model, stop, time.perf_counter() - begun))
        for count in counts:
            fewer = model if count == job.landmarks else model.with_landmarks(count)
            wrong = float(np.mean(_predicted(fewer, seen)[known] != truth))
            outcome.errors.append(
                {
                    "rows": stop,
                    "landmarks": count,
                    "alpha": fewer.alpha_,
                    "error": 100 * wrong,
                    "error_se": 100 * float(np.sqrt(wrong * (1 - wrong) / len(truth))),
                }
            )
    emit(Step("fits", len(ends), len(ends)))
    outcome.gemm.append(_machine_rate(rows))
    pipeline = Pipeline([("unitnormalizer", normalizer), (type(model).__name__.lower(), model)])
    outcome.model = str(run / "model")
    emit(Figures("fit", {**model.fit_report(), "corpus": train.path, "model": outcome.model, "seed": job.seed}))
    save_model(pipeline, outcome.model, overwrite=True)
    outcome.verdict = judge(pipeline, test, as_rows(test), of="held-out", pictures=True)
    emit(Figures("score", told(outcome.verdict)))
    return outcome


def _truth(test: Corpus) -> tuple[Array, Array]:
    """Return (n,) bool, the test rows that have a label, and the classes of those, as a model tells them."""
    y, classes = test.column("y"), test.info.classes
    if not _named(classes):
        known: Array = np.isin(y, classes)
        return known, y[known]
    known = y >= 0
    return known, np.array(classes)[y[known]]


def _predicted(model: Any, rows: Rows) -> Array:
    # a model travels with the tasks that predict; Dask takes more than 10 MB for a mistake
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
        return np.asarray(model.predict(rows))


def growing(first: int, last: int, count: int) -> list[int]:
    """At most `count` whole numbers from `first` to `last`, rising in about equal ratios; for one, `last`."""
    if count == 1 or first >= last:
        return [last]
    numbers = np.rint(np.geomspace(first, last, count)).astype(np.int64)
    return [int(number) for number in np.unique(np.clip(numbers, first, last))]


def _model(job: Settings, n_features: int) -> tuple[float, Any]:
    large, small = SIGMA[job.method]
    sigma = job.sigma or (small if n_features < 256 else large)
    nystrom: dict[str, Any] = {"n_landmarks": job.landmarks, "random_state": job.seed}
    if job.method == "sssl":
        return sigma, SSSLClassifier(Gaussian(sigma=sigma), job.components, job.alpha, **nystrom)
    return sigma, KernelRidgeClassifier(Gaussian(sigma=sigma), job.alpha, **nystrom)


def _first(job: Settings, material: Material) -> int:
    """Rows of the first fit: the originals, or enough for the landmarks that are drawn from them; all, for one step.

    Raises
    ------
    DataError
        Some classes are not among them: the rows of a corpus that was given stand in another than a random order.
    """
    if job.steps == 1:
        return len(material.train)
    count = len(material.train) // 100 if material.originals is None else len(material.originals)
    first = min(len(material.train), max(count, LANDMARK_SHARE * job.landmarks))
    y = as_rows(material.train).window(0, first).column("y")
    lacking = _classes(material.train) - set(() if y is None else y.tolist())
    if lacking:
        raise DataError(
            f"{material.train.path}: its first {first:,} rows, from which landmarks (and labels) are drawn, lack "
            f"{len(lacking)} of the classes; give --steps 1, which draws from all rows, or a corpus in random order"
        )
    return first


def _classes(corpus: Corpus) -> set[Any]:
    """The classes as the column y has them: names as their places."""
    classes = corpus.info.classes
    return set(range(len(classes))) if _named(classes) else set(classes)


def _named(classes: Sequence[Any]) -> bool:
    return any(isinstance(label, str) for label in classes)


def _few_labels(rows: Rows, first: int, job: Settings) -> Array:
    """Labels (n,) of which all but a few of the first rows are hidden."""
    start = rows.window(0, first)
    y, group = start.column("y"), start.column("group")
    assert y is not None
    few = np.full(len(rows), -1)
    chosen = digit_corpora.choose_labelled(
        y, np.arange(first) if group is None else group, job.labelled_per_class, job.seed
    )
    few[chosen] = y[chosen]
    return few


def _material(job: Settings, run: Path, *, quiet: bool) -> Material:
    """Open or make the corpora; what is whole in `run` already and made with the same settings is kept."""
    start = time.perf_counter()
    if job.corpus is not None:
        assert job.test is not None
        train = open_corpus(job.corpus)
        if job.rows not in (None, len(train)):
            raise ConfigError(f"--rows {job.rows:,}: {train.path} has {len(train):,}, and is fitted as it is")
        return Material(None, train, open_corpus(job.test), True, time.perf_counter() - start)
    if job.data is None:
        found = digit_corpora.originals(run / "originals", job.seed, keep=True)
    else:
        with bar("ingest", enabled=not quiet) as shown:
            found = digit_corpora.mnist(run / "originals", job.data, keep=True, progress=shown)
    originals, n_rows = found.train, job.rows or DEFAULT_ROWS
    if n_rows == len(originals):
        return Material(originals, originals, found.test, found.kept, time.perf_counter() - start)
    strength = (digit_corpora.STRENGTH if job.data is None else 1.0) if job.strength is None else job.strength
    deformation = deformation_of(originals, seed=job.seed, strength=strength)
    target = run / "train.corpus"
    kept = deformed_at(target, originals, n_rows, deformation)
    if kept is None:
        # a fit that could not be is refused before the corpus is made
        rows = deformed_rows(originals, n_rows, deformation)
        _, model = _model(job, originals.n_features)
        _require_room(model.plan(UnitNormalizer().fit(rows).transform(rows)), rows)
        emit(Note(f"corpus: {n_rows:,} rows from {len(originals):,} originals"))
    train = kept or deform_corpus(
        originals, target, n_rows, seed=job.seed, strength=strength, overwrite=target.exists()
    )
    return Material(originals, train, found.test, kept is not None, time.perf_counter() - start)


def _require_room(plan: Plan, rows: Rows) -> None:
    """Refuse a cluster that cannot do the fit: memory, versions, input that a worker does not see."""
    executor = executor_in_force(rows)
    if isinstance(executor, Client):
        check_cluster(executor, rows, plan, settings())


def _workers(rows: Rows) -> int:
    executor = executor_in_force(rows)
    return len(executor.ncores()) if isinstance(executor, Client) else processors() if executor == "threads" else 1


def _machine_rate(rows: Rows) -> float:
    """flop/s of the float32 matrix product, one thread a worker, on all workers at the same time."""
    executor = executor_in_force(rows)
    if isinstance(executor, Client):
        return float(sum(executor.run(gemm_flops_per_second, 2048, 1.0).values()))
    return gemm_flops_per_second(2048, 0.2) * (processors() if executor == "threads" else 1)


def _fitted(model: Any, stop: int, seconds: float) -> Record:
    """Return the record of a fit from the report of its sweep."""
    swept = model.sweep_
    return {
        "rows": stop,
        "new_rows": swept["rows"],
        "alpha": model.alpha_,
        "fit_seconds": seconds,
        "sweep_seconds": swept["seconds"],
        "computed_flops": swept["gflops_per_second"] * 1e9 * swept["seconds"],
        "gflops_per_second": swept["gflops_per_second"],
        "peak_bytes": swept["peak_bytes"],
        "segments": swept["segments"],
        "resumed_segments": swept["resumed_segments"],
        "stage_seconds": swept["stage_seconds"],
        "incidents": swept["incidents"],
    }


# -- a plan without any data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Blank:
    """Rows of zeros that are nowhere: what a plan needs to know of a corpus that is not made yet."""

    shape: tuple[int, ...]
    chunk_rows: int
    dtype: Any

    @property
    def steps(self) -> tuple[int, ...]:
        return (*range(0, self.shape[0], self.chunk_rows), self.shape[0])

    def read(self, start: int, stop: int) -> Array:
        return np.ones((stop - start, *self.shape[1:]), self.dtype)

    def part(self, start: int, stop: int) -> _Blank:
        return self

    def fingerprint(self) -> str:
        return f"blank {self.shape}"

    @property
    def origin(self) -> _Blank:
        return self

    def cost(self) -> MapCost:
        return MapCost()


def planned(job: Settings, run: Path) -> Record:
    """Return the needs of a job: rows, disk, flops, memory of a worker. Nothing is made.

    Raises
    ------
    PlanTooLarge
        The corpus does not fit on the disk.
    """
    job.check()
    if job.corpus is not None:
        train = open_corpus(job.corpus)
        rows, originals = as_rows(train), None
    else:
        n, d = MNIST_SIZE if job.data else (1797 - digit_corpora.TEST_ORIGINALS, 64)
        n_rows, originals = job.rows or DEFAULT_ROWS, n
        chunk_rows, bytes_ = chunk_rows_for(d, 1, n_rows), np.dtype(np.uint8)
        x, y = _Blank((n_rows, d), chunk_rows, bytes_), _Blank((n_rows,), chunk_rows, bytes_)
        rows = Rows(x, {"y": y}, name="deformed digits", classes=tuple(range(10)))
    _, model = _model(job, rows.shape[1])
    plan = model.plan(UnitNormalizer().fit(rows).transform(rows))
    corpus_bytes = 0 if originals is None else len(rows) * (rows.shape[1] + 16)
    run.parent.mkdir(parents=True, exist_ok=True)
    require_free(run.parent, corpus_bytes, "the corpus")
    rate = gemm_flops_per_second() * processors()
    return {
        "originals": originals,
        **plan.summary(),
        "worker_bytes": plan.worker_bytes(settings().worker_base_bytes),
        "corpus_bytes": corpus_bytes,
        "partial_bytes": plan.partial_bytes,
        "sweep_seconds_here": plan.seconds(rate),
    }


def median_rate(rates: Sequence[float]) -> float:
    """The machine's rate: the median of what was measured between the fits."""
    return statistics.median(rates) if rates else 0.0


def steps_of(outcome: Outcome) -> Iterator[tuple[Record, Record]]:
    """Each fit with the error of its model with all landmarks."""
    last = outcome.job.landmarks
    whole = {record["rows"]: record for record in outcome.errors if record["landmarks"] == last}
    for fit in outcome.fits:
        yield fit, whole[fit["rows"]]
