"""Estimators of scikit-learn's kind over rows of any size: input, fit, prediction and score.

NumPy input passes scikit-learn's validation and is swept in this process. Dask and zarr arrays, corpora and `Rows` are
never brought into memory: `fit` sweeps them, `predict` returns a lazy Dask array, `predict_to` writes to disk. What is
summed and solved says a `Method`; which columns there are, a `BasisChoice` or `RowChoice`.
Shapes: n rows, d features, p columns, c targets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import dask
import numpy as np
import zarr
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names, check_array, check_is_fitted

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.data.atomic_write import require_target
from bigkernel.data.run_lock import claimed
from bigkernel.data.zarr_arrays import publishing
from bigkernel.engine import prediction_store
from bigkernel.engine.rows import DaskSource, Rows, SparseSource, as_rows, is_dask_array
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators import fitting
from bigkernel.estimators.calibration import calibrate, plan_calibration, refuse_calibrated
from bigkernel.estimators.checks import keeps_statistics, require_targets
from bigkernel.estimators.domains import read_cells
from bigkernel.estimators.fit_state import (
    ExactFit,
    Fitted,
    Inputs,
    IterativeFit,
    LinearSolution,
    LogisticSolution,
    MomentFit,
    Problem,
    Training,
)
from bigkernel.estimators.inputs import (
    check_class_weight,
    input_rows,
    is_lazy,
    is_sound,
    near_target,
    no_label,
    validate_input,
    validated_weight,
    weigh_classes,
    with_domains,
)
from bigkernel.estimators.kernel_basis import BasisChoice, RowChoice
from bigkernel.events.job import job
from bigkernel.solvers.ridge import require_alpha
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import Predictor, log_softmax, softmax
from bigkernel.statistics.scores import ScoreStatistic, score
from bigkernel.streaming.chunk import Chunk, RowMap
from bigkernel.streaming.plan import Accumulator, Plan

if TYPE_CHECKING:
    import dask.array as da

_KEPT: WeakKeyDictionary[Any, Predictor] = WeakKeyDictionary()  # of fits


def set_parameters(estimator: BaseEstimator, given: Mapping[str, Any]) -> None:
    """Keep the `locals()` of an `__init__` under the names of its parameters, as scikit-learn wants it."""
    for name, value in given.items():
        if name not in ("self", "__class__"):
            setattr(estimator, name, value)


def method_of(estimator: Any) -> tuple[fitting.Method, BasisChoice | RowChoice]:
    """Return what an estimator sums and solves, and how it chooses its columns."""
    return estimator._method(), estimator._columns()


def restore(estimator: Any, inputs: Inputs, fit: Any = None) -> None:
    """Know the features of a fit as if scikit-learn's validation had seen them, and take the fit where one is given."""
    estimator.n_features_in_ = inputs.n_features
    _check_feature_names(estimator, None, reset=True)
    if inputs.feature_names is not None:
        estimator.feature_names_in_ = inputs.feature_names
    if fit is not None:
        estimator._fitted = fit


def kept(fit: Any, make: Callable[[], Predictor]) -> Predictor:
    """Return the predictor of a fit: what is made of it first, as long as the fit is there.

    A fit is an immutable value, so another one has a predictor of its own; no pickle or file holds it.
    """
    found = _KEPT.get(fit)
    return _KEPT.setdefault(fit, make()) if found is None else found


def _predicts(estimator: Any) -> bool:
    """Return whether an estimator predicts: a transformer does not."""
    return not hasattr(estimator, "transform")


class RowsEstimator(BaseEstimator):
    """Base of the estimators that are fitted to rows.

    A subclass gives its method and its choice of columns, and says how it reads rows where that is not the usual way.
    The fit is one immutable value, from which fitted attributes are read.
    """

    _fitted: ExactFit | MomentFit | IterativeFit | None = None
    _semi_supervised = False  # labels may be missing in arrays
    _keeps_sums = True  # `partial_fit` adds to what a fit keeps
    classes_ = Fitted[Array]("inputs.classes")
    target_shift_ = Fitted[Array]("inputs.target_shift")
    certificates_ = Fitted[Mapping[str, float]]("certificates")
    skipped_rows_ = Fitted[int]("skipped_rows")
    sweep_ = Fitted[Mapping[str, object]]("sweep")
    alpha_ = Fitted[float | Array]("solution.alpha")
    training_mse_ = Fitted[Array]("solution.training_mse")

    def _method(self) -> fitting.Method:
        """Return what is summed and how it is solved."""
        raise TypeError(type(self).__name__)

    def _columns(self) -> BasisChoice | RowChoice:
        """Return how columns are chosen for rows."""
        raise TypeError(type(self).__name__)

    def _read_fit(self, X: Any, y: Any, sample_domain: Any, sample_weight: Any) -> Training:
        """Return validated rows with their domains, what they are fitted to, and their names."""
        if not _predicts(self):  # a transformer looks at no target, unless it reads its rows itself
            return read_cells(self, X, None, sample_domain, sample_weight, labels=False, fallback="one")
        data = self.training(X, y, sample_weight)
        return replace(data, rows=with_domains(data.rows, sample_domain))

    def read_search(self, X: Any, y: Any, sample_weight: Any, sample_domain: Any, groups: Any) -> Training:
        """Return what a search is fitted to: as `training`, with the domains and groups that folds may ask for."""
        data = self.training(X, y, sample_weight)
        return replace(data, rows=as_rows(data.rows, domain=sample_domain, group=groups))

    # -- parameters ----------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """True where a fit needs all rows in memory at once."""
        return self._columns().exact

    def check_parameters(self) -> None:
        """Raise where a parameter is none that a fit can use."""
        self._validate_params()
        self._check_settings()

    def _check_settings(self) -> None:
        """Check what the table of constraints does not say."""
        alpha = getattr(self, "alpha", 0.0)
        require_alpha(0.0 if isinstance(alpha, str) else alpha)
        check_class_weight(getattr(self, "class_weight", None))

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _require(self, name: str) -> Any:
        """Return the fit; `AttributeError` before it."""
        if self._fitted is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._fitted

    @property
    def intercept_(self) -> Any:
        """The intercept, (c,); a float of one column of numbers."""
        fit = self._require("intercept_")
        return fit.solution.intercept[0] if fit.inputs.flat else fit.solution.intercept

    # -- fitting -------------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, sample_weight: Any, sample_domain: Any = None) -> Self:
        self.check_parameters()
        data = self._read_fit(X, y, sample_domain, sample_weight)
        with job(f"{type(self).__name__}.fit"):
            method = self._method()
            self._fitted = calibrate(method, fitting.fit(method, self._columns(), data), data)
        return self

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        if isinstance(self._fitted, IterativeFit):
            self._require_moments("fit anew, or clone the estimator")
        before = self._fitted if isinstance(self._fitted, MomentFit) else None
        self.check_parameters()
        method, columns = self._method(), self._columns()
        if columns.exact:
            raise ConfigError(f"{type(self).__name__}: partial_fit needs n_landmarks; the exact form has no statistics")
        if before is not None:
            method.require_same(before)
        known = None if before is None else before.inputs
        data = self.training(X, y, sample_weight, known=known, classes=classes)
        with job(f"{type(self).__name__}.partial_fit"):
            if before is not None:
                self._fitted = fitting.add_rows(method, before, data)
            else:
                columns.require_rows(data.rows)
                basis = columns.choose(data.rows)
                self._fitted = fitting.fit_moments(method, data, basis, choose=columns.dtype == "auto")
        return self

    def refit(self) -> Self:
        """Solve again from the statistics that are kept, after `set_params(alpha=…)` or `n_components=…`: no sweep.

        The kernel and the landmarks stay those of the fit.
        """
        check_is_fitted(self)
        method = self._method()
        refuse_calibrated(method, "refit")
        self.check_parameters()
        before = self._require_moments("fit again")
        method.require_same(before)
        self._fitted = fitting.solve_again(method, before)
        return self

    def _require_moments(self, advice: str) -> MomentFit:
        """Return the fit; `ConfigError` where it is another."""
        if isinstance(self._fitted, MomentFit):
            return self._fitted
        form = "the exact form" if isinstance(self._fitted, ExactFit) else "a fit by conjugate gradients"
        raise ConfigError(f"{type(self).__name__}: {form} keeps no statistics; {advice}")

    def adopt(self, data: Training, basis: Any, problem: Problem | None) -> None:
        """Become the model of these sums of the rows, or of a sweep where there are none or they prove too coarse."""
        restore(self, data.inputs)
        method = self._method()
        # the folds of the calibration take a sweep of their own
        problem = None if problem is None or method.probability else method.check(problem, data.rows.name)
        choose = self._columns().dtype == "auto"
        fit = fitting.fit_moments(method, data, basis, choose=choose, problem=problem)
        self._fitted = calibrate(method, fit, data)

    def plan(self, X: Any, y: Any = None, sample_domain: Any = None) -> Plan:
        """Return the plan of `fit` on these rows, without running it.

        Returns
        -------
        Plan
            Rows, chunks, segments, flops, bytes read and memory of a task of its sweep.
        """
        self._check_settings()
        columns = self._columns()
        if columns.exact:
            raise ConfigError(f"{type(self).__name__}: the exact form has no sweep to plan; set n_landmarks")
        other = self.__class__(**self.get_params(deep=False))
        data, method = other._read_fit(X, y, sample_domain, None), self._method()
        basis = columns.choose(data.rows, look=False)
        return plan_calibration(method, data, basis, method.plan(data, columns, basis))

    # -- training input ------------------------------------------------------------------------------------------------

    def training(
        self, X: Any, y: Any, sample_weight: Any, *, known: Inputs | None = None, classes: Any = None
    ) -> Training:
        """Return validated rows with their column y, and how y becomes targets; `known`: of the fit to be added to."""
        reset = known is None
        if is_lazy(X):
            rows = input_rows(self, X, reset=reset)
            if y is None and "y" not in rows.columns:
                raise DataError(f"{rows.name}: {type(self).__name__} requires y to be passed, but the target y is None")
        else:
            X, y = self._validated(X, y, reset=reset)
            sample_weight = validated_weight(sample_weight, X)
            rows = as_rows(X)
        if y is not None and not is_lazy(y):
            y = np.asarray(y)
        if is_classifier(self):
            labels = self._find_classes(rows, y, classes) if known is None else known.classes
            assert labels is not None
            if known is not None and classes is not None and not np.array_equal(np.unique(classes), labels):
                raise DataError(f"classes: {list(classes)} differ from those of the first call, {labels.tolist()}")
            y, targets = self._class_targets(rows, y, labels)
            inputs = known or Inputs.of(self, classes=labels)
            rows = as_rows(rows, y, weight=sample_weight)
            return Training(weigh_classes(rows, targets, inputs, getattr(self, "class_weight", None)), targets, inputs)
        rows = as_rows(rows, y, weight=sample_weight)
        shape = rows.columns["y"].shape
        width = 1 if len(shape) == 1 else shape[1]
        # rows without a label carry −1 where the corpus has classes
        targets = Targets(width, missing=-1 if y is None and rows.classes else None)
        if known is None:
            shift = near_target(rows, targets) if getattr(self, "fit_intercept", False) else np.zeros(width)
            known = Inputs.of(self, flat=len(shape) == 1, target_shift=shift)
        elif width != len(known.shift):
            raise DataError(f"y: expected {len(known.shift)} targets as before, found {width}")
        return Training(rows, replace(targets, shift=known.shift) if known.shift.any() else targets, known)

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        if is_classifier(self):
            X, y = validate_input(self, X, y, reset=reset)
            check_classification_targets(y)
        elif self._semi_supervised and y is not None:
            y = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
            X, _ = validate_input(self, X, np.zeros(len(y)), reset=reset)
        else:
            X, y = validate_input(self, X, y, reset=reset, multi_output=True, y_numeric=True)
            y = np.asarray(y, np.float64)
            require_targets(y)
        return X, y

    def _find_classes(self, rows: Rows, y: Any, classes: Any) -> Array:
        """The sorted labels of rows, of a corpus or as listed; without `no_label` where labels may be missing."""
        if classes is not None:
            labels = np.unique(classes)
        elif y is None and rows.classes:
            labels = np.unique(rows.classes)
        else:
            values = rows.column("y") if y is None else np.asarray(y)
            assert values is not None
            labels = np.unique(values)
            if self._semi_supervised or y is None:
                labels = labels[~no_label(labels)]
        return self._require_classes(labels)

    def _class_targets(self, rows: Rows, y: Any, labels: Array) -> tuple[Any, Targets]:
        """y (encoded where it is given) and targets; −1 is unlabelled in corpora and semi-supervised learning."""
        shape = rows.columns["y"].shape if y is None else y.shape
        if len(shape) != 1:
            raise DataError(f"y: expected one label a row, found shape {shape}")
        if y is None and any(isinstance(label, str) for label in rows.classes):
            # the column holds positions in the corpus's list of names: where is each name among our classes?
            names = np.asarray(rows.classes)
            unknown = [str(name) for name in names if name not in labels]
            if unknown:
                raise DataError(f"{rows.name}: the label {unknown[0]!r} is none of the classes {labels.tolist()}")
            return None, Targets(len(labels), np.arange(len(names)), position=np.searchsorted(labels, names))
        if y is None or is_lazy(y):
            return y, Targets(len(labels), labels)
        codes = np.searchsorted(labels, y)
        codes[codes == len(labels)] = 0
        strange = labels[codes] != y
        if self._semi_supervised:
            codes[no_label(y)] = -1
            strange &= codes != -1
        if strange.any():
            row = int(np.argmax(strange))
            raise DataError(f"y: row {row} has the label {y[row]}, which is none of the classes {labels.tolist()}")
        return codes, Targets(len(labels), np.arange(len(labels)))

    def _require_classes(self, labels: Array) -> Array:
        if labels.dtype.kind == "f" and np.isinf(labels).any():
            raise DataError("y: a label is infinite; expected a class, or NaN where there is none")
        if len(labels) < 2:
            raise DataError(
                f"y: {type(self).__name__} needs labelled rows of at least 2 classes; the data contains "
                f"{'no label' if not len(labels) else f'only one class, {labels[0]}'}"
            )
        return labels

    # -- scores ------------------------------------------------------------------------------------------------------

    @available_if(_predicts)
    def score_totals(self, X: Any, y: Any = None, sample_weight: Any = None, *, worst: int = 0) -> Accumulator:
        """Return the sums that scores are made of, from one sweep: `confusion` (c, c), or `n`, `sse`, `t`, `q` (c,).

        `worst` k > 0 adds the k worst-classified rows, or the histogram of the residuals (`ScoreStatistic`).
        """
        check_is_fitted(self)
        rows = input_rows(self, X, reset=False)
        if y is None and "y" not in rows.columns:
            raise DataError(f"{rows.name}: a score needs labels, and there are none")
        if is_classifier(self):
            y, targets = self._class_targets(rows, None if y is None else np.asarray(y), self.classes_)
        else:
            targets = Targets(len(self._coefficients()[1]), missing=-1 if y is None and rows.classes else None)
        rows = as_rows(rows, y, weight=sample_weight)
        shift = near_target(rows, targets)
        # sums of squares of rows that fit exactly leave residuals without a unit
        spread = np.sqrt(np.maximum(getattr(self, "training_mse_", 1.0), 1e-300))
        statistic = ScoreStatistic(self._kept_predictor(), targets, shift, keep=worst, spread=spread)
        return sweep(rows, statistic, what="score").total

    # -- prediction ----------------------------------------------------------------------------------------------------

    def _features(self) -> Any:
        """Return the map of rows to the columns that the solution has coefficients of."""
        return self._method().predicting(self._require("predict").basis.features())

    def _coefficients(self) -> tuple[Array, Array]:
        """Return W (p, c) and b (c,) over the features; of calibrated models of the logits a ∘ f + b."""
        fit = self._require("predict")
        solution, found = fit.solution, getattr(fit, "calibration", None)
        # about the point of the features: about 0 it would lose the digits of an offset
        intercept = solution.level if isinstance(solution, LinearSolution) else solution.intercept
        return (solution.coef, intercept) if found is None else (solution.coef * found.scale, found.logits(intercept))

    def _kept_predictor(self) -> Predictor:
        """Return the fitted model as plain data, the same for all calls of the same fit."""
        fit = self._require("predict")

        def make() -> Predictor:
            classes = self.classes_ if is_classifier(self) else None
            logits = getattr(fit, "calibration", None) is not None or isinstance(fit.solution, LogisticSolution)
            return replace(Predictor.of(self._features(), *self._coefficients(), classes), logits=logits)

        return kept(fit, make)

    def _values(self, X: Any, make: Callable[[], Predictor] | None = None) -> Any:
        """f(X), (n, c), or the values of another predictor: an array, or a lazy Dask array."""
        if self._fitted is None:
            check_is_fitted(self)
        make = make or self._kept_predictor
        if is_sound(self, X):
            return make().values(Chunk(X))
        rows = input_rows(self, X, reset=False)
        if isinstance(rows.x, SparseSource):
            predictor, n = make(), len(rows)
            # the blocks of dense rows, where these are no larger than a chunk: the same bits
            parts = max(-(-n // Chunk.block_rows), -(-n * rows.row_bytes // settings().chunk_bytes), 1)
            bounds = [n * i // parts for i in range(parts + 1)]
            return np.concatenate([_part_values(predictor, rows, *piece) for piece in pairwise(bounds)])
        return _part_values(make(), rows, 0, len(rows)) if rows.in_memory else _lazy_values(rows, make())

    def _from_values(self, values: Any) -> Any:
        inputs = self._require("predict").inputs
        if inputs.classes is None:
            return values[:, 0] if inputs.flat else values
        if is_dask_array(values):
            return values.map_blocks(_labels, inputs.classes, dtype=inputs.classes.dtype, drop_axis=1)
        return _labels(values, inputs.classes)

    def _expansion(self) -> Predictor:
        """Return the fitted model as plain data, its landmarks whole: what a file holds."""
        check_is_fitted(self)
        return replace(self._kept_predictor(), features=self._features())

    @available_if(_predicts)
    def predict(self, X: Any) -> Any:
        """Predicted labels (n,) or numbers (n,) or (n, c) of the rows X.

        A NumPy array for NumPy input, a lazy Dask array for Dask and zarr arrays, corpora and Rows.
        """
        return self._from_values(self._values(X))

    def _spread_predictor(self) -> Predictor:
        """The predictor whose values end with a standard deviation."""
        raise ConfigError(f"std: {type(self).__name__} has no predictive standard deviation; KernelRidge has")

    @available_if(_predicts)
    def predict_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        decision: bool = False,
        std: bool = False,
        overwrite: bool = False,
    ) -> zarr.Group:
        """Predict the rows of a zarr array or corpus on the workers and write the predictions to disk.

        Parameters
        ----------
        X : corpus, zarr array or Rows of one
        path : where a group with `prediction` (and `decision` (n, c) or `std` (n,) where asked) appears, whole or not
            at all
        std : write the standard deviation of an observation too, as `KernelRidge.predict(…, return_std=True)`

        Inside `executing(run=…)` an interrupted call leaves its chunks beside `path`, and `resume` goes on with them.
        """
        check_is_fitted(self)
        require_target(path, "the prediction store")
        rows = input_rows(self, X, reset=False)
        bounds = rows.bounds(settings())
        chunk_rows = max(1, bounds[1] if len(bounds) > 1 else 1)
        if any(start % chunk_rows for start in bounds[:-1]):
            raise DataError(f"{rows.name}: chunks of unequal size; predict() gives a lazy array for such input")
        predictor = self._spread_predictor() if std else self._kept_predictor()
        flat = self._fitted.inputs.flat is not False  # type: ignore[union-attr]
        keep, resume = prediction_store.kept_for_run()
        with (
            claimed(path, "the prediction store"),
            publishing(path, kind="predictions", overwrite=overwrite, keep=keep, resume=resume) as scratch,
        ):
            prediction_store.create(scratch, predictor, len(rows), chunk_rows, decision=decision, flat=flat, std=std)
            writer = prediction_store.PredictionWriter(
                predictor, str(scratch.absolute()), chunk_rows, decision, flat, std
            )
            prediction_store.fill(Rows(rows.x, {}, rows.row_maps, rows.name), writer)
        return prediction_store.open_predictions(path)


class Regressor(MultiOutputMixin, RegressorMixin):
    """Manners of the regressors: fit, partial_fit and score; left of what they are fitted by."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, sample_domain: Any = None) -> Self:
        """Fit to rows X (n, d) and targets y (n,) or (n, c); y may be None for a corpus, which carries its own.

        NaN is no target, where the method is semi-supervised.

        `sample_domain`: (n,) integers, the domain of each row, for landmarks that are balanced; lazy rows may carry
        theirs in a column.
        """
        fitted: Self = self._fit(X, y, sample_weight, sample_domain)
        return fitted

    @available_if(keeps_statistics)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows: the model becomes that of one fit on all rows with the same landmarks (drawn at the first call)."""
        fitted: Self = self._partial_fit(X, y, None, sample_weight)
        return fitted

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R².

        Lazy input is scored by one sweep, without the rows that have no target; its targets are those it carries unless
        y is given.
        """
        if is_lazy(X):
            return score(self.score_totals(X, y, sample_weight))
        return float(RegressorMixin.score(self, X, y, sample_weight))


def _adds_rows(estimator: Any) -> bool:
    """Return whether a fit keeps what `partial_fit` adds to; raise where it could not calibrate again."""
    if getattr(estimator, "probability", False):
        try:
            refuse_calibrated(estimator._method(), "partial_fit")
        except ConfigError as error:
            raise AttributeError(str(error)) from None
    return bool(estimator._keeps_sums) and keeps_statistics(estimator)


def _gives_probabilities(estimator: Any) -> bool:
    """Return whether a fit makes them; else raise an `AttributeError` that says how."""
    if not getattr(estimator, "probability", True):
        raise AttributeError(
            f"{type(estimator).__name__} was made without probabilities; set probability=True and fit again"
        )
    return True


class Classifier(ClassifierMixin):
    """Manners of the classifiers: fit, partial_fit, decision values, probabilities, score; left of the rest.

    Where a model is calibrated its decision values are the logits a ∘ f + b, so that predictions, decision values and
    probabilities agree.
    """

    calibration_scale_ = Fitted[float]("calibration.scale")
    calibration_offset_ = Fitted[Array]("calibration.offset")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, sample_domain: Any = None) -> Self:
        """Fit to rows X (n, d) and labels y (n,); y may be None for a corpus, which carries its own.

        −1 (among text "-1") is no label, where the method is semi-supervised.

        `sample_domain`: (n,) integers, the domain of each row, for landmarks that are balanced; lazy rows may carry
        theirs in a column.
        """
        fitted: Self = self._fit(X, y, sample_weight, sample_domain)
        return fitted

    @available_if(_adds_rows)
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows, as in `KernelRidge.partial_fit`; `classes` lists all labels where the first rows lack some."""
        if self.class_weight == "balanced":
            raise ConfigError(
                "class_weight='balanced': partial_fit does not see all rows, and earlier ones cannot be weighed again; "
                "give a dict of weights, or fit to all rows"
            )
        fitted: Self = self._partial_fit(X, y, classes, sample_weight)
        return fitted

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy.

        Lazy input is scored by one sweep, without the rows that have no label; its labels are those it carries unless
        y is given.
        """
        if is_lazy(X):
            return score(self.score_totals(X, y, sample_weight))
        return float(ClassifierMixin.score(self, X, y, sample_weight))

    def decision_function(self, X: Any) -> Any:
        """Values of f: (n, c), or (n,) for two classes (positive: the second)."""
        values = self._values(X)
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes for the rows X, (n, c): an array, or a lazy Dask array for lazy input.

        Raises
        ------
        AttributeError
            The estimator has the parameter `probability`, and it is False.
        ConfigError
            It was so when the model was fitted.
        """
        return self._of_logits(X, softmax)

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> Any:
        """The logarithms of `predict_proba`, finite where those are too small for a number."""
        return self._of_logits(X, log_softmax)

    def _of_logits(self, X: Any, function: Any) -> Any:
        check_is_fitted(self)
        if not self._kept_predictor().logits:
            raise ConfigError(f"{type(self).__name__}: it was fitted with probability=False; fit again")
        values = self._values(X)
        return values.map_blocks(function, dtype=np.float64) if is_dask_array(values) else function(values)


def _labels(values: Array, classes: Array) -> Array:
    chosen: Array = classes[np.argmax(values, axis=1)]
    return chosen


def _lazy_values(rows: Rows, predictor: Predictor) -> da.Array:
    """f of lazily read rows as a Dask array with their chunks; the model travels once, as one node of the graph."""
    import dask.array as da

    c = predictor.width
    model = dask.delayed(predictor, traverse=False)
    if isinstance(rows.x, DaskSource):
        array = rows.x.array
        return da.map_blocks(
            _block_values,
            array,
            predictor=model,
            row_maps=rows.row_maps,
            block_rows=settings().block_rows,
            dtype=np.float64,
            chunks=(array.chunks[0], (c,)),
            meta=np.empty((0, c)),
        )
    bounds = rows.bounds(settings())
    task = dask.delayed(_part_values, pure=False)
    plain = Rows(rows.x, {}, rows.row_maps, rows.name)
    parts = [
        da.from_delayed(task(model, plain, start, stop), (stop - start, c), np.float64)
        for start, stop in pairwise(bounds)
    ]
    return da.concatenate(parts) if parts else da.zeros((0, c))


def _block_values(x: Array, predictor: Predictor, row_maps: tuple[RowMap, ...], block_rows: int) -> Array:
    chunk = Chunk(x, row_maps=row_maps, block_rows=block_rows)
    chunk.require_finite("X")
    return predictor.values(chunk)


def _part_values(predictor: Predictor, rows: Rows, start: int, stop: int) -> Array:
    chunk = rows.read(start, stop)
    chunk.require_finite(rows.name)
    return predictor.values(chunk)
