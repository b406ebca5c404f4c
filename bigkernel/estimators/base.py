"""Inputs, targets and scores of all estimators; their predictions are in `prediction`.

NumPy input passes scikit-learn's validation and is swept in this process. Dask and zarr arrays, corpora and `Rows` are
never brought into memory: `fit` sweeps them, `predict` returns a lazy Dask array, `predict_to` writes to disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted

from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.fit_state import Fitted, Inputs, Problem
from bigkernel.estimators.inputs import input_rows, is_lazy, near_target, no_label, validate_input, validated_weight
from bigkernel.estimators.number_range import require_targets
from bigkernel.estimators.prediction import PredictingEstimator
from bigkernel.solvers.penalty_grid import Coordinates, Penalty
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments, Targets
from bigkernel.statistics.scores import JudgingStatistic, ScoreStatistic, score
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]


class RowsEstimator(PredictingEstimator):
    """Base of the estimators that are fitted to rows and predict.

    A subclass says how rows become features (`_features`), and a search by sweeps asks for `basis`, `penalty`,
    `coordinates` and `adopt`.

    Attributes
    ----------
    unlabelled : "keep" where rows without a label (−1, NaN) shape the model, "drop" where they are left out
    exact : True where a fit needs all rows in memory at once
    """

    unlabelled: ClassVar[str] = "drop"
    _semi_supervised = False  # labels may be missing in arrays
    classes_ = Fitted("inputs.classes")
    target_shift_ = Fitted("inputs.target_shift")
    certificates_ = Fitted("certificates")
    skipped_rows_ = Fitted("skipped_rows")
    sweep_ = Fitted("sweep")
    alpha_ = Fitted("solution.alpha")

    @property
    def intercept_(self) -> Any:
        """The intercept, (c,); a float of one column of numbers."""
        fit = self._require("intercept_")
        return fit.solution.intercept[0] if fit.inputs.flat else fit.solution.intercept

    # -- parameters ----------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """See the attributes."""
        return False

    def check_parameters(self) -> None:
        """Raise where a parameter is none that a fit can use."""
        self._validate_params()
        self._check_settings()

    def _check_settings(self) -> None:
        """Check what the table of constraints does not say."""

    @property
    def _intercept(self) -> bool:
        """True where an intercept is fitted to numbers: their sums are then taken about a point near their mean."""
        return False

    # -- what a search over a grid asks --------------------------------------------------------------------------------

    def basis(self, rows: Rows) -> Any:
        """Choose the columns for rows."""
        raise TypeError(f"{type(self).__name__} has no basis")

    def penalty(self) -> Penalty:
        """Return what may differ between candidates that share all moments."""
        raise ConfigError(
            f"{type(self).__name__}: a search by sweeps does not know its penalty; use scikit-learn's GridSearchCV"
        )

    @property
    def has_witness(self) -> bool:
        """True where a witness sees the sums."""
        return False

    def coordinates(
        self, basis: Any, everything: Moments, n_components: int, whitening: Whitening | None = None
    ) -> Coordinates:
        """Return where the method is ridge, from the moments of all rows; `whitening`: of the basis, where known."""
        raise TypeError(f"{type(self).__name__} has no coordinates")

    def searched(
        self, X: Any, y: Any, sample_weight: Any, *, sample_domain: Any = None, groups: Any = None
    ) -> tuple[Rows, Targets, Inputs]:
        """Return what `training` does, of rows with the domains and groups that folds may ask for."""
        rows, targets, inputs = self.training(X, y, sample_weight)
        return as_rows(rows, domain=sample_domain, group=groups), targets, inputs

    def predicting(self, features: Any) -> Any:
        """Return the part of a feature map that solutions have coefficients of."""
        return features

    def sweep(self, rows: Rows, targets: Targets, inputs: Inputs, basis: Any) -> tuple[Problem, dict[str, Any]]:
        """Sum up the rows: what a solve starts from, and the report of the sweep."""
        raise TypeError(f"{type(self).__name__} has no sweep")

    def adopt(self, rows: Rows, targets: Targets, inputs: Inputs, basis: Any, problem: Problem | None) -> Self:
        """Become the model of these sums of the rows, as after a sweep of one's own; without any, of such a sweep."""
        raise TypeError(f"{type(self).__name__} has no sums")

    # -- training input ------------------------------------------------------------------------------------------------

    def training(
        self, X: Any, y: Any, sample_weight: Any, *, known: Inputs | None = None, classes: Any = None
    ) -> tuple[Rows, Targets, Inputs]:
        """Validated rows with their column y, and how y becomes targets; `known`: of the fit that rows are added to."""
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
            return as_rows(rows, y, weight=sample_weight), targets, known or Inputs.of(self, classes=labels)
        rows = as_rows(rows, y, weight=sample_weight)
        shape = rows.columns["y"].shape
        width = 1 if len(shape) == 1 else shape[1]
        # rows without a label carry −1 where the corpus has classes
        targets = Targets(width, missing=-1 if y is None and rows.classes else None)
        if known is None:
            shift = near_target(rows, targets) if self._intercept else np.zeros(width)
            known = Inputs.of(self, flat=len(shape) == 1, target_shift=shift)
        elif width != len(known.shift):
            raise DataError(f"y: expected {len(known.shift)} targets as before, found {width}")
        return rows, replace(targets, shift=known.shift) if known.shift.any() else targets, known

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

    def score_totals(self, X: Any, y: Any = None, sample_weight: Any = None, *, worst: int = 0) -> Accumulator:
        """Return the sums that scores are made of, from one sweep: `confusion` (c, c), or `n`, `sse`, `t`, `q` (c,).

        `worst` k > 0 adds the k worst-classified rows, or the histogram of the residuals (`JudgingStatistic`).
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
        if not worst:
            return sweep(rows, ScoreStatistic(self._kept_predictor(), targets, shift), what="score").total
        # sums of squares of rows that fit exactly leave residuals without a unit
        spread = np.sqrt(np.maximum(getattr(self, "training_mse_", 1.0), 1e-300))
        statistic = JudgingStatistic(self._kept_predictor(), targets, shift, keep=worst, spread=spread)
        return sweep(rows, statistic, what="score").total


class LazyScoreMixin:
    """`score` for every kind of input; stands left of scikit-learn's mixin, which scores what is in memory."""

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy of a classifier, R² of a regressor; rows without a label are left out.

        Lazy input is scored by one sweep; its labels are those it carries unless y is given.
        """
        if is_lazy(X):
            return score(self.score_totals(X, y, sample_weight))  # type: ignore[attr-defined]
        result: float = super().score(X, y, sample_weight)  # type: ignore[misc]
        return result
