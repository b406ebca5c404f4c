"""Tables without settings: models made of the parts of this package, judged on held-out rows; the best is fitted.

Candidates come in a fixed order, each next to the best so far: a plain kernel, lines, a learned metric, a trend before
it, other forms of the kernel; then, on more rows, leaves and more landmarks.
Shapes: n rows, d columns of the table, p numbers a row, c targets or classes, k rows of the sample.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import Context
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.ensemble._base import _set_random_states
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.config import Settings, given_settings, settings
from bigkernel.data.containers import is_dask_frame, is_frame
from bigkernel.data.fingerprint import fingerprint
from bigkernel.data.run_directory import read_sealed, write_sealed
from bigkernel.engine.interrupts import Terminated
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import Execution, execution
from bigkernel.errors import BigKernelError, ConfigError, DataError, RankDeficiencyWarning
from bigkernel.estimators.base import RowsEstimator, last_step, parameters, score_in_memory, shown
from bigkernel.estimators.evaluation import FitReport, split
from bigkernel.estimators.fit.basis import draw_rows
from bigkernel.estimators.inputs.columns import is_lazy
from bigkernel.estimators.inputs.read import read_training, validate_input
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.linear import Ridge
from bigkernel.estimators.ridge import KernelRidge, KernelRidgeClassifier
from bigkernel.estimators.tables.blended import as_targets, plain_targets
from bigkernel.estimators.tables.learned_metric import LearnedMetric
from bigkernel.estimators.tables.partitioned import PartitionedClassifier, PartitionedRegressor, leaf_metric
from bigkernel.estimators.tables.residual import ResidualRegressor
from bigkernel.estimators.tables.table_encoder import TableEncoder
from bigkernel.estimators.transforms.rows import Standardizer
from bigkernel.events.job import Note, Step, emit, job
from bigkernel.kernels.functions import Gaussian, Laplacian, Matern
from bigkernel.kernels.threads import one_thread
from bigkernel.statistics.scores import score

if TYPE_CHECKING:
    import dask.array as da
    from sklearn.utils import Tags

_FORM_ROWS, _SIZE_ROWS = 10_000, 50_000  # of the samples on which form and size are chosen
_SAMPLE_BYTES = 2**29  # most bytes of a sample
_HELD_OUT = 0.2  # share of the first sample; of fewer rows than the next, each is held out once, in some folds
_MANY_ROWS, _FOLDS = 3000, 4
_FEWEST_ROWS = 30  # with which a metric is learned
_STEPS = 30  # of a metric
_EXACT_ROWS = 1000  # up to which every row is a landmark
_LANDMARKS, _BY_FOLDS, _MOST_LANDMARKS = 1000, 2000, 6000  # at first, with penalties by folds, and at most
_LEAF_ROWS = 5000
_WHAT, _MOST = "candidates", 13  # at most
_FEATURES = ("n_features_in_", "feature_names_in_")


@dataclass(frozen=True)
class Candidate:
    """A model of a table by its parts: what `build` makes."""

    kernel: Gaussian | Matern | Laplacian | None  # of width 1 behind a metric; None: lines
    metric: bool = False  # with scales of the columns; otherwise one width
    trend: bool = False
    leaf_rows: int = 0  # of each leaf; 0: no leaves
    landmarks: int = _LANDMARKS
    alpha: float | str = "cv"

    @property
    def name(self) -> str:
        """Its parts in words."""
        if self.kernel is None:
            return "lines"
        form = f"Matérn {int(2 * self.kernel.nu)}/2" if isinstance(self.kernel, Matern) else type(self.kernel).__name__
        parts = [*["trend"] * self.trend, *["metric"] * self.metric, form]
        parts += [f"leaves of {self.leaf_rows:,} rows"] if self.leaf_rows else []
        parts += [f"{self.landmarks:,} landmarks"] if self.landmarks != _LANDMARKS else []
        return ", ".join(parts)

    def build(self, rows: int, seed: int, *, classifies: bool, probability: bool = False) -> Pipeline:
        """Return the model for so many labelled rows."""
        parts: list[tuple[str, BaseEstimator]] = []
        model: BaseEstimator = Ridge(alpha="cv")
        if (kernel := self.kernel) is not None:
            if isinstance(kernel, Laplacian) or rows < _FEWEST_ROWS:
                kernel = replace(kernel, sigma="scale")
            else:  # after one evaluation a metric has a width and no scales
                most = _STEPS if self.metric else 1
                metric = LearnedMetric(kernel, method="gradient", n_landmarks=300, n_samples=8000, max_iter=most)
                parts = [("learned", metric)]
            kind, split = (
                (KernelRidgeClassifier, PartitionedClassifier) if classifies else (KernelRidge, PartitionedRegressor)
            )
            m = None if rows <= _EXACT_ROWS else self.landmarks
            model = kind(kernel, alpha=self.alpha, n_landmarks=m)
            if probability:
                model.set_params(probability=True)
            if self.leaf_rows:
                leaf = make_pipeline(leaf_metric().set_params(kernel=kernel), model)
                model = split(leaf, max(2, rows // self.leaf_rows), overlap=0.05)
        parts = [*parts, ("model", model)]
        if self.trend:
            parts = [("model", ResidualRegressor([("trend", Ridge(alpha="cv")), ("rest", Pipeline(parts))]))]
        whole = Pipeline([("scaled", Standardizer()), *parts])
        _set_random_states(whole, seed)
        return whole

    def cost(self, rows: int) -> float:
        """Return about how many operations a fit to so many rows takes, in units of that of a kernel of 1,000."""
        if self.kernel is None:
            return 0.1
        m, leaves = min(self.landmarks, rows) / 1000, max(2, rows // self.leaf_rows) if self.leaf_rows else 1
        return 0.3 * leaves + rows / 8000 * m**2 + leaves * m**3 * (1 if self.alpha == "cv" else 0.2)


@dataclass
class Judged:
    """What became of a candidate."""

    candidate: Candidate
    rows: int  # of the sample
    seconds: float
    loss: Array  # (h,) of held-out rows: squares in units of the targets' variance
    wrong: float | None = None  # share of classes
    alpha: float | None = None
    failed: str = ""

    @property
    def mean(self) -> float:
        """The mean loss; infinite if it failed."""
        return np.inf if self.failed else float(self.loss.mean())

    @property
    def error(self) -> float | None:
        """Share of wrong classes, or the root of the mean loss."""
        return None if self.failed else float(np.sqrt(self.mean)) if self.wrong is None else self.wrong


@dataclass(frozen=True, eq=False)
class Sample:
    """Labelled rows in memory, in random order: x (k, p), y (k,) or (k, c), of deviation 1 or positions of classes."""

    x: Array
    y: Array
    weight: Array  # (k,) of mean 1
    n_classes: int  # 0 of numbers

    def rows(self, places: Array) -> Rows:
        """Return some of the rows."""
        rows = as_rows(self.x[places], self.y[places], weight=self.weight[places])
        return replace(rows, classes=tuple(range(self.n_classes)))

    @classmethod
    def draw(cls, data: Training, rng: np.random.RandomState) -> Self:
        """Draw labelled rows of positive weight."""
        rows, targets = data.rows, as_targets(data)
        most = min(_SIZE_ROWS, max(_FORM_ROWS, _SAMPLE_BYTES // (8 * rows.shape[1])))
        ids = draw_rows(rows, min(most, len(rows)), rng)
        y = plain_targets(targets, rows.take_column("y", ids))
        known = y >= 0 if targets.classes is not None else ~np.isnan(y.reshape(len(y), -1)).any(axis=1)
        weight = rows.take_column("weight", ids) if "weight" in rows.columns else np.ones(len(ids))
        order = rng.permutation(np.flatnonzero(known & (weight > 0)))
        if len(order) < 2:
            raise DataError(f"{rows.name}: n_samples={len(order)} rows have a target; expected at least 2")
        weight = weight[order] / weight[order].mean()
        y = y[order]
        if targets.classes is None:
            spread = y.std(axis=0)
            y = y / np.where(spread > 0, spread, 1)
        return cls(rows.take(ids)[order], y, weight, 0 if targets.classes is None else targets.width)


@dataclass
class Search:
    """Candidates judged one after the other, until the time is over or Ctrl-C."""

    sample: Sample
    seed: int
    deadline: float
    n_rows: int  # of the fit that follows
    judged: list[Judged] = field(default_factory=list)
    ended: str = "complete"

    def run(self) -> Judged:
        """Judge the candidates, and return the best: the first one unless another is clearly better."""
        emit(Step(_WHAT, 0, _MOST))
        try:
            for candidate, rows in self._candidates():
                if self.judged and self._too_long(candidate, rows):
                    self.ended = "time_limit"
                    break
                self.judged.append(one := self._once(candidate, rows))
                found = one.failed or f"error {one.error:.4g} of held-out rows"
                emit(Note(f"candidate {len(self.judged)}, {candidate.name}: {found}, {one.seconds:.1f} s"))
                emit(Step(_WHAT, len(self.judged), _MOST))
        except KeyboardInterrupt as error:
            if not self.judged or isinstance(error, Terminated):
                raise
            self.ended = "interrupted"
        emit(Step(_WHAT, _MOST, _MOST))
        gain, doubt = self.gain(self.best)
        return self.best if gain > doubt else self.judged[0]

    @property
    def best(self) -> Judged:
        """The judged candidate of least mean loss."""
        return min(self.judged, key=lambda one: one.mean)

    def gain(self, one: Judged) -> tuple[float, float]:
        """Return by how much the loss of one is below that of the first, and the standard error of this."""
        first = self.judged[0]
        if one.failed or one is first:
            return 0.0, 0.0
        if first.failed:
            return np.inf, 0.0
        gains = first.loss - one.loss
        return float(gains.mean()), float(gains.std() / len(gains) ** 0.5)

    def _candidates(self) -> Iterator[tuple[Candidate, int]]:
        """Yield candidates and the number of rows on which each is judged, each beside the best so far."""
        few, many, numbers = min(len(self.sample.x), _FORM_ROWS), len(self.sample.x), not self.sample.n_classes
        yield Candidate(Gaussian(1.0)), few
        if numbers:
            yield Candidate(None), few
        if few < _FEWEST_ROWS:
            return
        yield Candidate(Laplacian()), few
        metric, trend = Candidate(Matern(1.0, nu=1.5), metric=True), False
        yield metric, few
        if numbers:
            yield replace(metric, trend=True), few
            trend = self.judged[-1].mean < self.judged[-2].mean
        for kernel in (Gaussian(1.0), Matern(1.0, nu=2.5), Matern(1.0, nu=0.5)):
            yield Candidate(kernel, metric=True, trend=trend), few
        best = self.best.candidate
        if few < _MANY_ROWS or best.kernel is None:
            return
        # sizes are judged with all rows: leaves beside one model, then more landmarks of the better one
        if many > few:
            yield best, many
        if many >= 2 * _LEAF_ROWS:
            yield replace(best, leaf_rows=_LEAF_ROWS), many
        more: Candidate | None = replace(best, landmarks=2 * _LANDMARKS)
        while more is not None and more.landmarks <= many // 2:
            yield more, many
            more = self._larger(self.best)

    def _larger(self, best: Judged) -> Candidate | None:
        """Return a candidate of more landmarks than the best so far; None if it should have no more, or was judged."""
        one = best.candidate
        count = min(2 * one.landmarks, _BY_FOLDS if one.leaf_rows else _MOST_LANDMARKS)
        more = replace(one, landmarks=count, alpha=one.alpha if count <= _BY_FOLDS else best.alpha or one.alpha)
        known = one.kernel is None or count == one.landmarks or more in [other.candidate for other in self.judged]
        return None if known else more

    def line(self, one: Judged, chosen: Judged) -> dict[str, object]:
        """Return the figures of a candidate."""
        gain, doubt = (None, None) if self.judged[0].failed else self.gain(one)
        figures = {"candidate": one.candidate.name, "error": one.error, "rows": one.rows, "seconds": one.seconds}
        return {**figures, "gain": gain, "gain_error": doubt, "chosen": one is chosen, "failed": one.failed}

    def _too_long(self, candidate: Candidate, rows: int) -> bool:
        """Return whether judging a candidate, and fitting it rather than the first, would probably take too long."""
        timed = [one for one in self.judged if one.candidate.kernel is not None and not one.failed]
        first, *_, last = [self.judged[0], *timed]
        later = max(0.0, candidate.cost(self.n_rows) - first.candidate.cost(self.n_rows))
        rate = last.seconds / last.candidate.cost(last.rows)
        return time.monotonic() + rate * (candidate.cost(rows) + later) > self.deadline

    def _once(self, candidate: Candidate, rows: int) -> Judged:
        """Judge a candidate and keep what was found in the run, if there is one; take it from a run that resumes."""
        if (run := execution.get().job) is None:
            return self._judge(candidate, rows)
        place = Path(run.path, f"candidate-{len(self.judged) + 1}.json")
        of = fingerprint((self._content, candidate, rows))
        with suppress(OSError, ValueError):
            found = read_sealed(place) if run.resume else {}
            if found.pop("of", "") == of:
                return Judged(candidate, rows, **{**found, "loss": np.array(found["loss"])})
        one = self._judge(candidate, rows)
        kept = {name: value for name, value in vars(one).items() if name not in ("candidate", "rows")}
        write_sealed(place, {**kept, "loss": one.loss.tolist(), "of": of})
        return one

    @cached_property
    def _content(self) -> str:
        return fingerprint((self.sample, self.seed))

    def _judge(self, candidate: Candidate, rows: int) -> Judged:
        """Fit a candidate without held-out rows, those of each fold in turn where rows are few, and find its losses."""
        start, sample, place = time.monotonic(), self.sample, np.arange(rows)
        if rows < _MANY_ROWS:
            folds = [place[fold::_FOLDS] for fold in range(min(_FOLDS, rows))]
        else:  # the same rows whatever the number of others
            folds = [place[: int(_HELD_OUT * min(len(sample.x), _FORM_ROWS))]]
        try:
            with _threads(rows):
                parts = [
                    Context().run(_held_out, candidate, sample, np.setdiff1d(place, fold), fold, self.seed, settings())
                    for fold in folds
                ]
        except (BigKernelError, np.linalg.LinAlgError) as error:
            return Judged(candidate, rows, time.monotonic() - start, np.empty(0), failed=str(error))
        tested, f = np.concatenate(folds), np.concatenate([values for values, _ in parts])
        y, weight, share = sample.y[tested], sample.weight[tested], None
        if sample.n_classes:
            share = float(np.average(f.argmax(axis=1) != y, weights=weight))
            y = np.eye(sample.n_classes)[y]
        loss = weight * ((f - y.reshape(f.shape)) ** 2).mean(axis=1)
        return Judged(candidate, rows, time.monotonic() - start, loss, share, parts[-1][1])


def _threads(rows: int) -> AbstractContextManager[None]:
    """Return a block with one thread of BLAS for few rows: in small products two wait for each other."""
    return one_thread() if rows < _MANY_ROWS else nullcontext()


def _held_out(
    candidate: Candidate, sample: Sample, fitted: Array, tested: Array, seed: int, config: Settings
) -> tuple[Array, float | None]:
    """Return f (h, c) of held-out rows by a fit to others, and its penalty; its sweeps are no steps of the job."""
    execution.set(Execution("threads"))
    given_settings.set(config)
    model = candidate.build(len(fitted), seed, classifies=bool(sample.n_classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(sample.rows(fitted))
    last = cast(RowsEstimator, last_step(model))
    inner = getattr(last, "stages_", (last,))[-1]
    alpha = getattr(inner, "alpha_", getattr(inner, "alpha", None))
    values = last._values(model[:-1].transform(sample.x[tested]))
    return np.asarray(values), None if alpha is None else float(np.mean(alpha))


@parameters
class _Tabular(BaseEstimator):
    """Base of the estimators without settings, which choose a model and keep it as `model_`."""

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "time_limit": [Interval(Real, 0, None, closed="left"), None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    _: KW_ONLY
    time_limit: float | None = 240.0
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    def fit(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> Self:
        """Choose a model by held-out rows, and fit it to all rows.

        Parameters
        ----------
        X : (n, d) a table: a frame of pandas, Polars or Dask, an Arrow table or array, also with text and missing
            values; or numbers in anything that `KernelRidge.fit` takes
        y : (n,) labels, or (n,) or (n, c) numbers; None for a corpus that carries its own
        sample_weight : (n,), or None
        """
        self._validate_params()
        started, classifies = time.monotonic(), isinstance(self, ClassifierMixin)
        with job(f"{type(self).__name__}.fit"), shown(self.verbose):
            encoder = TableEncoder().fit(X) if _is_table(X) else None
            numbers = X if encoder is None else encoder.transform(X)
            reader = copy(self)
            data = read_training(reader, numbers, y, sample_weight)
            if not (classifies or data.rows.grid):
                y = None  # the rows have it
            elif classifies and not is_lazy(numbers):
                y = np.asarray(data.inputs.classes)[data.rows.column("y")]
            rng = check_random_state(self.random_state)
            sample, seed = Sample.draw(data, rng), int(rng.randint(2**31 - 1))
            n, limit = len(data.rows), np.inf if self.time_limit is None else self.time_limit
            best = (search := Search(sample, seed, started + limit, n)).run()
            emit(Note(f"fitting {best.candidate.name} to all {n:,} rows"))
            model = best.candidate.build(n, seed, classifies=classifies, probability=classifies)
            with warnings.catch_warnings(), _threads(n):
                # a learned kernel may be flat: landmarks beyond its rank are no fault of the user
                warnings.simplefilter("ignore", RankDeficiencyWarning)
                try:
                    model.fit(data.rows, y)
                except DataError as error:
                    if not classifies:
                        raise
                    # too few rows of some class, all or in a leaf, to calibrate probabilities on
                    emit(Note(f"without probabilities: {error}"))
                    model = best.candidate.build(n, seed, classifies=True).fit(data.rows, y)
        self.model_ = model if encoder is None else Pipeline([("table", encoder), *model.steps])
        named = reader if encoder is None else encoder
        vars(self).pop("feature_names_in_", None)
        vars(self).update({name: getattr(named, name) for name in _FEATURES if hasattr(named, name)})
        self.candidates_ = tuple(search.line(one, best) for one in search.judged)
        self.ended_ = search.ended
        return self

    def _ask(self, method: str, X: RowsLike, **options: bool) -> Array:
        """Call a method of the chosen model, after the checks of the number and names of columns."""
        check_is_fitted(self)
        if not (is_lazy(X) or isinstance(self.model_[0], TableEncoder)):
            validate_input(self, X, reset=False)
        elif not is_lazy(X):
            try:
                validate_data(self, X, reset=False, skip_check_array=True)
            except ValueError as error:
                raise DataError(f"X: {error}") from error
        answer: Array = getattr(self.model_, method)(X, **options)
        return answer

    def predict(self, X: RowsLike) -> Array | da.Array:
        """Predict labels (n,) or numbers (n,) or (n, c) of the rows of a table, lazily for lazy input."""
        return self._ask("predict", X)

    def score(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> float:
        """Return R², or the accuracy of a classifier; lazy input is scored by one sweep."""
        if is_lazy(X):
            check_is_fitted(self)
            last, rows = split(self, X)
            return score(last.score_totals(rows, y, sample_weight))
        return score_in_memory(self, np.asarray(self.predict(X)), y, sample_weight)

    def fit_report(self) -> FitReport:
        """Describe the fit as plain data: the candidates, how the choice ended, and the report of the chosen model."""
        check_is_fitted(self)
        inner = cast(KernelRidge, last_step(self.model_)).fit_report()
        chosen = next(line["candidate"] for line in self.candidates_ if line["chosen"])
        own = {"estimator": type(self).__name__, "chosen": chosen, "ended": self.ended_}
        return FitReport({**inner, **own, "candidates": [*self.candidates_]})

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _is_table(X: RowsLike) -> bool:
    """Return whether rows need a `TableEncoder`: frames, and arrays with text, objects or missing values."""
    if is_lazy(X) or hasattr(X, "tocsr") or is_frame(X):
        return is_frame(X) or is_dask_frame(X)
    if hasattr(X, "__dlpack__") and not isinstance(X, np.ndarray):  # numbers of another library, on a GPU perhaps
        return False
    values = np.asarray(X)
    return values.dtype.kind in "OUTSmM" or (values.dtype.kind == "f" and bool(np.isnan(values).any()))


@parameters
class TabularRegressor(MultiOutputMixin, RegressorMixin, _Tabular):
    """Predict numbers from a table, by a model that is chosen on held-out rows: no settings are needed.

    The candidates are a Gaussian kernel of one width, lines, a Laplacian kernel, and kernels (Matérn 3/2, Gaussian,
    Matérn 5/2, 1/2) behind a `LearnedMetric`, after a linear trend if that is better; then the best of these with more
    landmarks or in leaves (`PartitionedRegressor`). Penalties are chosen by folds, up to 2,000 landmarks. Forms are
    judged on at most 10,000 rows, a fifth of them held out, or in four folds if there are fewer than 3,000; sizes on
    at most 50,000. The one of least error is fitted to all rows; the first one stays unless the gain of the best
    exceeds its standard error. Frames, text and missing values go through a `TableEncoder`; columns are standardised.
    Candidates are judged on rows in memory; the chosen one is fitted to lazy rows out of core, on workers if there are.

    Parameters
    ----------
    time_limit : float, or None for no limit
        Seconds. A candidate is not judged if the time that is left would probably not suffice for it and the fit that
        follows; the first one always is. The best so far is fitted, as it is after Ctrl-C (KeyboardInterrupt).
    random_state : int, RandomState or None
        With an int, fits that no limit ended are the same.
    verbose : int
        1: show progress, and a line for each candidate.

    Attributes
    ----------
    model_ : the chosen model, a fitted Pipeline of the parts above, for all that these offer
    candidates_ : tuple of dicts in the order of the search
        `candidate`, its parts in words; `error` of held-out rows, as root of the mean square in units of the targets'
        deviation (among classes the share of wrong rows); number of `rows`; `gain`, by how much its mean loss is below
        that of the first, and `gain_error`, the standard error of this; `seconds`; whether it was `chosen`; why it
        `failed`, or ""
    ended_ : "complete", "time_limit" or "interrupted"

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import TabularRegressor
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> model = TabularRegressor(time_limit=0, random_state=0).fit(X, 5 * X[:, 0] - X[:, 1])
    >>> bool(model.score(X, 5 * X[:, 0] - X[:, 1]) > 0.99), len(model.candidates_)
    (True, 1)
    """

    def predict(self, X: RowsLike, return_std: bool = False) -> Array | da.Array | tuple[Array, Array]:
        """Predict numbers (n,) or (n, c) of the rows of a table, lazily for lazy input."""
        if not return_std:
            return super().predict(X)
        check_is_fitted(self)
        last = last_step(self.model_)
        if not isinstance(last, KernelRidge):
            kind = type(last).__name__
            raise ConfigError(f"return_std: expected a KernelRidge, but the chosen model, {kind}, has no deviations")
        return self._ask("predict", X, return_std=True)


@parameters
class TabularClassifier(ClassifierMixin, _Tabular):
    """Predict classes from a table, by a model that is chosen on held-out rows: no settings are needed.

    The candidates are those of `TabularRegressor` without lines and trends. They are compared by the squared error of
    their values of 0 and 1, which tells more of few rows than the share of wrong ones. Probabilities are calibrated,
    and missing where some class has too few rows.

    Parameters
    ----------
    time_limit, random_state, verbose : as in `TabularRegressor`

    Attributes
    ----------
    classes_ : (c,)
    model_, candidates_, ended_ : as in `TabularRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import TabularClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = TabularClassifier(time_limit=0, random_state=0).fit(X, np.where(X[:, 0] > 0, "right", "left"))
    >>> model.classes_.tolist()
    ['left', 'right']
    """

    @property
    def classes_(self) -> Array:
        """The labels (c,), sorted."""
        return cast(KernelRidgeClassifier, last_step(self.model_)).classes_

    def predict_proba(self, X: RowsLike) -> Array | da.Array:
        """Predict probabilities of the classes (n, c)."""
        return self._ask("predict_proba", X)

    def decision_function(self, X: RowsLike) -> Array | da.Array:
        """Compute f, (n, c), or (n,) for two classes (positive: the second)."""
        return self._ask("decision_function", X)
