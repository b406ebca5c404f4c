"""A row transform that learns from targets which features a kernel should see."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, replace
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.containers import in_memory
from bigkernel.engine.process import processors
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import execution
from bigkernel.errors import DataError, MissingLabelWarning
from bigkernel.estimators.base import parameters
from bigkernel.estimators.inputs.classes import no_label, plain_labels
from bigkernel.estimators.inputs.columns import is_lazy
from bigkernel.estimators.inputs.read import input_rows
from bigkernel.estimators.transforms.rows import RowTransformer
from bigkernel.events.job import Note, Step, emit, job
from bigkernel.kernels.functions import Gaussian, Matern
from bigkernel.kernels.landmarks import uniform
from bigkernel.kernels.threads import one_thread
from bigkernel.solvers.metric import TILE, HeldOutLoss, Metric, Run, Sample, learn_products, learn_scales, plain_metric
from bigkernel.streaming.chunk import RowMap
from bigkernel.streaming.row_maps import LinearMap, Standardize

if TYPE_CHECKING:
    from sklearn.utils import Tags

_JUDGING = 0.2  # share of the sample that judges the outcome
_FITTED = 0.6  # share of the rest that is fitted; of fewer rows than the next, each of some folds is held out once
_MANY_ROWS, _FOLDS = 2500, 5
_FEWEST_ROWS = 10
_SAMPLE_BYTES = 2**29  # most bytes of a sample in float64
_ROUNDS, _EVALUATIONS = 5, 40
_WHAT = "learn a metric"
_MOST_CLASSES = 20  # whole numbers of more values are numbers


@parameters
class LearnedMetric(RowTransformer):
    """Learn scales of the features, or directions, under which a kernel predicts the targets best.

    x becomes xP, and a kernel of width 1 on the mapped rows is the learned kernel: features that do not matter shrink,
    those that matter more spread. Learnt on a sample of rows in memory. Where it is not better by more than a standard
    error, on rows that took no part, the plain kernel is kept. Standardize features of different units first.

    Parameters
    ----------
    kernel : Gaussian or Matern, or None
        Its form; the width is learned. None: Gaussian. Matern(nu=0.5) suits targets with kinks.
    method : "both", "gradient" or "products"
        "gradient": one scale for each feature, and the penalty, by gradient descent on the squared error of held-out
        rows. "products": the mean product ∇f∇fᵀ of the gradients of a fit (average gradient outer product) as metric,
        in rounds; directions too, unless `diagonal`. "both": gradient descent from the best scales of five rounds,
        which misses fewer features.
    diagonal : bool
        Whether "products" learns scales alone, for features with a meaning of their own.
    n_landmarks : int
        m of the fits; each evaluation costs about n_samples·m·(m + 4d) operations.
    n_samples : int
        Number of labelled rows that are drawn, at most 512 MB. A fifth judges the outcome. Of the rest, two fifths are
        held out, or each of five folds if there are fewer than 2,500.
    max_iter : int or None
        Most evaluations of the gradient (None: 40), or rounds of "products" alone (None: 5).
    random_state : int, RandomState or None

    Attributes
    ----------
    weights_ : P (d, r), or its diagonal (d,)
    centre_ : (d,), of the sample; subtracted before P
    metric_ : M = PPᵀ (d, d) for "products" without `diagonal`; else its diagonal (d,)
    feature_importances_ : (d,), the diagonal of M, which sums to 1
    kernel_ : the kernel for the mapped rows, of width 1
    penalty_ : α for the mapped rows, as a share of their number n: n times it is the `alpha` of `KernelRidge`
    rounds_ : (k,) lowest error of held-out rows, as a share of the targets' variance, with the plain kernel and after
        each evaluation or round
    n_iter_ : k − 1
    gain_, gain_error_ : by how much the error of judging rows is below that of the plain kernel, and the standard error
        of this difference; if it is larger, the plain kernel is kept

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit & Belkin (Science 2024); Rasmussen & Williams (2006), ch. 5.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import LearnedMetric
    >>> X = np.random.default_rng(0).normal(size=(1000, 5))
    >>> learned = LearnedMetric(n_landmarks=100, random_state=0).fit(X, np.sin(2 * X[:, 3]))
    >>> bool(learned.feature_importances_[3] > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "kernel": [Gaussian, Matern, None],
        "method": [StrOptions({"both", "gradient", "products"})],
        "diagonal": ["boolean"],
        "n_landmarks": [Interval(Integral, 1, None, closed="left")],
        "n_samples": [Interval(Integral, _FEWEST_ROWS, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
    }

    kernel: Gaussian | Matern | None = None
    _: KW_ONLY
    method: str = "both"
    diagonal: bool = False
    n_landmarks: int = 500
    n_samples: int = 40_000
    max_iter: int | None = None
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Learn the metric from rows X (n, d) and y (n,) or (n, c), numbers or classes.

        Rows without a target (NaN, −1 among classes) or of weight 0 are left out; other weights are not used. Whole
        numbers of at most 20 values are classes.

        Raises
        ------
        DataError
            There is no y, or fewer than ten rows have a label, or values leave the range of float32.
        """
        self._validate_params()
        kernel = replace(Gaussian() if self.kernel is None else self.kernel, sigma=1.0)
        rng = check_random_state(self.random_state)
        threads = 1 if execution.get().client == "serial" else processors()
        with job(_WHAT), ThreadPoolExecutor(threads) as pool, one_thread():
            sample, self.centre_ = self._sample(X, y, rng)
            # threads share tiles, of which few rows have one
            run: Run = pool.map if len(sample.x) > TILE else map
            losses, judge = _folds_of(sample, kernel, self.n_landmarks, run)
            plain = plain_metric(losses)
            learned, self.rounds_ = self._learn(losses, plain, rng)
            self.n_iter_ = len(self.rounds_) - 1
            gains = judge.errors(plain) - judge.errors(learned)
        self.gain_, self.gain_error_ = float(gains.mean()), float(gains.std() / len(gains) ** 0.5)
        kept = learned if self.gain_ > self.gain_error_ else plain
        self.kernel_, self.penalty_, self.weights_ = kernel, kept.penalty, kept.weights
        emit(Note(f"learned metric: error of held-out rows {plain.error:.3g} → {kept.error:.3g} of the variance"))
        return self

    def _learn(self, losses: list[HeldOutLoss], plain: Metric, rng: np.random.RandomState) -> tuple[Metric, Array]:
        rounds = {"both": _ROUNDS, "products": self.max_iter or _ROUNDS}.get(self.method, 0)
        evaluations = 0 if self.method == "products" else self.max_iter or _EVALUATIONS
        errors, most = [plain.error], rounds + evaluations

        def note(error: float) -> None:
            errors.append(min(errors[-1], error))
            emit(Step(_WHAT, min(len(errors) - 1, most), most))

        emit(Step(_WHAT, 0, most))
        diagonal = self.diagonal or self.method == "both"
        learned = learn_products(losses, plain, rounds, rng, diagonal=diagonal, note=note)
        if evaluations:
            learned = learn_scales(losses, learned, evaluations, note)
        emit(Step(_WHAT, most, most))
        return learned, np.array(errors)

    def _sample(self, X: RowsLike, y: ColumnLike, rng: np.random.RandomState) -> tuple[Sample, Array]:
        """Draw labelled rows in random order: centred, with targets of variance 1; also return their centre."""
        rows = input_rows(self, X, reset=True)
        values, classes, labelled = _read_targets(rows, rows.flat(y))
        if "weight" in rows.columns:
            labelled &= np.asarray(rows.column("weight")) > 0
        known = rows.ids_at(np.arange(len(rows)))
        known = known[labelled[known]]
        count = min(self.n_samples, len(known), max(_FEWEST_ROWS, _SAMPLE_BYTES // (8 * rows.shape[1])))
        usable = (lambda places: rows.sound(known[places])) if rows.bad_rows == "skip" else None
        ids = known[uniform(len(known), count, rng, usable=usable)] if count else known
        if (count := len(ids)) < _FEWEST_ROWS:
            raise DataError(f"{rows.name}: n_samples={count} rows have a label; expected at least {_FEWEST_ROWS}")
        order = rng.permutation(len(ids))
        x, values = rows.take(ids)[order], values[ids][order].reshape(count, -1)
        targets = np.asarray(values if classes is None else values == classes, np.float64)
        centre = x.mean(axis=0)
        targets -= targets.mean(axis=0)
        deviation = float(np.sqrt(np.square(targets).mean(axis=0).sum()))
        with np.errstate(over="ignore", invalid="ignore"):
            sample = Sample((x - centre).astype(np.float32), (targets / (deviation or 1)).astype(np.float32))
        if not all(np.isfinite(one).all() for one in sample):
            raise DataError(f"{rows.name}: values exceed the range of float32; scale rows and targets")
        return sample, centre

    @property
    def metric_(self) -> Array:
        """M = PPᵀ (d, d), or its diagonal (d,)."""
        check_is_fitted(self)
        weights = self.weights_
        return weights**2 if weights.ndim == 1 else weights @ weights.T

    @property
    def feature_importances_(self) -> Array:
        """The diagonal of M (d,), which sums to 1."""
        check_is_fitted(self)
        return importances_of(self._row_map())

    def widest(self, rows: Rows) -> Rows:
        return rows

    def _row_map(self) -> RowMap:
        if self.weights_.ndim == 1:
            return Standardize(self.centre_, 1 / self.weights_)
        return LinearMap(self.centre_, self.weights_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def importances_of(row_map: RowMap) -> Array:
    """Return the importances of the features (d,) in the row map of a learned metric."""
    if isinstance(row_map, LinearMap):
        squares = (row_map.weights**2).sum(axis=1)
    else:
        assert isinstance(row_map, Standardize)
        squares = row_map.std**-2.0
    return np.asarray(squares / squares.sum())


def _folds_of(
    sample: Sample, kernel: Gaussian | Matern, n_landmarks: int, run: Run
) -> tuple[list[HeldOutLoss], HeldOutLoss]:
    """Return the losses to minimise, one a fold, and that of the judging rows; landmarks are among the fitted rows."""
    learning, judging = _cut(sample, np.arange(len(sample.x)) < len(sample.x) * (1 - _JUDGING))
    n = len(learning.x)
    place, landmarks = np.arange(n), learning.x[: min(n_landmarks, -(-n // 2))]
    fitted = [place < n * _FITTED] if n >= _MANY_ROWS else [place % _FOLDS != fold for fold in range(_FOLDS)]

    def loss(fitted: Sample, held_out: Sample) -> HeldOutLoss:
        return HeldOutLoss(kernel, fitted, held_out, landmarks, run)

    return [loss(*_cut(learning, inside)) for inside in fitted], loss(learning, judging)


def _cut(sample: Sample, inside: Array) -> tuple[Sample, Sample]:
    """Return the rows inside, and those outside."""
    return Sample(sample.x[inside], sample.y[inside]), Sample(sample.x[~inside], sample.y[~inside])


def _read_targets(rows: Rows, y: ColumnLike) -> tuple[Array, Array | None, Array]:
    """Return the targets of all rows, the classes (k,) unless they are numbers, and which rows have one (n,) bool."""
    if y is None and "y" not in rows.columns:
        raise DataError(f"{rows.name}: LearnedMetric requires y to be passed, but the target y is None")
    if y is None or is_lazy(y):
        values = as_rows(rows, y).column("y")
    else:
        check_consistent_length(rows, y)
        values = in_memory(y, "y", labels=True)
        if values.dtype.kind not in "iufb":
            values = plain_labels(values)
    assert values is not None
    if values.ndim > 2 or values.dtype.kind not in "iufbUT":
        raise DataError(f"y: expected numbers or labels, (n,) or (n, c), found {values.dtype} of shape {values.shape}")
    if values.dtype.kind == "f" and not rows.classes:
        if np.isinf(values).any():
            raise DataError("y: found an infinite target; NaN marks rows without one")
        return values, None, np.asarray(~np.isnan(values).reshape(len(values), -1).any(axis=1))
    distinct = np.unique(values)
    if values.ndim == 2 or not (values.dtype.kind in "UTb" or rows.classes or len(distinct) <= _MOST_CLASSES):
        return values, None, np.ones(len(values), bool)
    classes = distinct[~no_label(distinct)]
    if len(classes) < 2:  # −1 and 1
        return values, distinct, np.ones(len(values), bool)
    if len(classes) < len(distinct) and not rows.classes and values.dtype.kind in "iu":
        warnings.warn(
            "y: whole numbers of few values are taken for classes, and −1 for none; pass floats if they are numbers",
            MissingLabelWarning,
            stacklevel=4,
        )
    return values, classes, ~no_label(values)
