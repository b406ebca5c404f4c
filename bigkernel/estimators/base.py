"""What the estimators share: one door for every kind of input, targets, predictions and scores.

NumPy input passes scikit-learn's validation and is swept in this process. Dask and zarr arrays, corpora and `Rows` are
never brought into memory: `fit` sweeps them, `predict` returns a lazy Dask array, `predict_to` writes to disk.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_is_fitted,
    validate_data,
)

from bigkernel.config import settings
from bigkernel.engine import prediction_store
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sources import DaskSource
from bigkernel.engine.store_filler import fill, kept_for_run
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import JudgingStatistic, Predictor, ScoreStatistic, score
from bigkernel.storage.atomic_write import publishing
from bigkernel.storage.corpus import Corpus
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.row_maps import RowMap

Array = NDArray[Any]
DTYPES = (np.float64, np.float32, np.uint8, np.int8, np.uint16, np.int16)  # what streams as it is stored


def is_lazy(X: Any) -> bool:
    """Whether X is read chunk by chunk rather than held in memory."""
    return isinstance(X, Rows | Corpus | da.Array | zarr.Array)


def input_rows(estimator: BaseEstimator, X: Any, *, reset: bool) -> Rows:
    """Rows of X alone; sets (`reset`) or compares the estimator's n_features_in_."""
    if not is_lazy(X):
        return as_rows(_validate(estimator, X, reset=reset))
    rows = as_rows(X)
    if reset:
        estimator.n_features_in_ = rows.shape[1]
        estimator.__dict__.pop("feature_names_in_", None)
        if not len(rows):
            raise DataError(f"{rows.name}: 0 rows; at least one is needed")
    elif rows.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"{rows.name} has {rows.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    return rows


def _validate(estimator: BaseEstimator, *data: Any, **options: Any) -> Any:
    """scikit-learn's validation, its refusals of values as ours (which are ValueErrors too)."""
    try:
        return validate_data(estimator, *data, dtype=DTYPES, **options)
    except ValueError as error:
        X = data[0]
        bad = np.zeros(0, np.int64)
        if isinstance(X, np.ndarray) and X.dtype.kind == "f" and X.ndim == 2:
            bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
        where = f" The first rows that are not finite: {bad[:5].tolist()} ({len(bad)} in all)." if len(bad) else ""
        raise DataError(f"{error}{where}") from error


def near_mean(rows: Rows) -> Array:
    """A point near the mean of the mapped rows, (d,) float64: the mean of the first ones."""
    sample = rows.take(np.arange(min(len(rows), 256)))
    mean: Array = sample.mean(axis=0)
    return mean


def near_target(rows: Rows, targets: Targets) -> Array:
    """A point near the mean of numeric targets, (c,): of the first labelled rows; zeros for classes."""
    shift = np.zeros(targets.width)
    if targets.classes is None and "y" in rows.columns and len(rows):
        chunk, _ = rows.validate_or_mask(rows.read(0, min(len(rows), 4096)))
        y = chunk.y
        assert y is not None
        admitted = np.ones(len(y), bool) if chunk.weight is None else chunk.weight > 0
        y = y[targets.labelled(y, 0) & admitted]
        if len(y):
            values = np.empty((len(y), targets.width))
            targets.encode(y, values)
            shift = values.mean(axis=0)
    return shift


class RowsEstimator(BaseEstimator):
    """Base of the predicting estimators. A subclass sets what `_features` and `_coefficients` return."""

    _semi_supervised = False  # rows without a label (−1, NaN) are kept and shape the model
    _unlabelled = "drop"  # what a sweep of moments does with them

    # -- training input ----------------------------------------------------------------------------------------------

    def _training(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool = True, classes: Any = None
    ) -> tuple[Rows, Targets]:
        """Validated rows with their column y, and how y becomes targets; sets classes_ where it is a classifier."""
        if is_lazy(X):
            rows = input_rows(self, X, reset=reset)
            if y is None and "y" not in rows.columns:
                raise DataError(f"{rows.name}: {type(self).__name__} requires y to be passed, but the target y is None")
        else:
            X, y = self._validated(X, y, reset=reset)
            if sample_weight is not None:
                try:
                    sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
                except ValueError as error:
                    raise DataError(f"sample_weight: {error}") from error
            rows = as_rows(X)
        if y is not None and not is_lazy(y):
            y = np.asarray(y)
        if is_classifier(self):
            y, targets = self._class_targets(rows, y, classes, reset=reset)
            return as_rows(rows, y, weight=sample_weight), targets
        rows = as_rows(rows, y, weight=sample_weight)
        shape = rows.columns["y"].shape
        width = 1 if len(shape) == 1 else shape[1]
        if reset:
            self._flat = len(shape) == 1
        elif width != len(self._coefficients()[1]):
            raise DataError(f"y: expected {len(self._coefficients()[1])} targets as before, found {width}")
        # rows without a label carry −1 where the corpus has classes
        targets = Targets(width, missing=-1 if y is None and rows.classes else None)
        if reset:
            self.target_shift_ = (
                near_target(rows, targets) if getattr(self, "fit_intercept", False) else np.zeros(width)
            )
        return rows, replace(targets, shift=self.target_shift_) if self.target_shift_.any() else targets

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        if is_classifier(self):
            X, y = _validate(self, X, y, reset=reset)
            check_classification_targets(y)
        elif self._semi_supervised and y is not None:
            y = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
            X, _ = _validate(self, X, np.zeros(len(y)), reset=reset)
        else:
            X, y = _validate(self, X, y, reset=reset, multi_output=True, y_numeric=True)
            y = np.asarray(y, np.float64)
        return X, y

    def _class_targets(self, rows: Rows, y: Any, classes: Any, *, reset: bool) -> tuple[Any, Targets]:
        """y (encoded where it is given) and targets; −1 is unlabelled in corpora and semi-supervised learning."""
        named = y is None and any(isinstance(label, str) for label in rows.classes)
        if reset:
            if classes is not None:
                labels = np.unique(classes)
            elif y is None and rows.classes:
                labels = np.unique(rows.classes)
            else:
                values = rows.column("y") if y is None else np.asarray(y)
                assert values is not None
                labels = np.unique(values)
                if (self._semi_supervised or y is None) and labels.dtype.kind in "iuf":
                    labels = labels[labels != -1]
            self._set_classes(labels)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise DataError(f"classes: {list(classes)} differ from those of the first call, {self.classes_.tolist()}")
        labels = self.classes_
        if named:
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
        if self._semi_supervised and y.dtype.kind in "iuf":
            codes[y == -1] = -1
            strange &= y != -1
        if strange.any():
            row = int(np.argmax(strange))
            raise DataError(f"y: row {row} has the label {y[row]}, which is none of the classes {labels.tolist()}")
        return codes, Targets(len(labels), np.arange(len(labels)))

    def _set_classes(self, labels: Array) -> None:
        if len(labels) < 2:
            raise DataError(
                f"y: {type(self).__name__} needs labelled rows of at least 2 classes; the data contains "
                f"{'no label' if not len(labels) else f'only one class, {labels[0]}'}"
            )
        self.classes_ = labels

    # -- prediction --------------------------------------------------------------------------------------------------

    def _features(self) -> Any:
        raise TypeError(f"{type(self).__name__} has no features")

    def _coefficients(self) -> tuple[Array, Array]:
        raise TypeError(f"{type(self).__name__} has no coefficients")

    def _predictor(self) -> Predictor:
        """The fitted model as plain data."""
        coef, intercept = self._coefficients()
        return Predictor(self._features(), coef, intercept, self.classes_ if is_classifier(self) else None)

    def _values(self, X: Any, predictor: Predictor | None = None) -> Any:
        """f(X), (n, c), or the values of another predictor: an array, or a lazy Dask array."""
        check_is_fitted(self)
        rows = input_rows(self, X, reset=False)
        predictor = predictor or self._predictor()
        if rows.in_memory:
            chunk = rows.read(0, len(rows))
            chunk.require_finite(rows.name)
            return predictor.values(chunk)
        return _lazy_values(rows, predictor)

    def _from_values(self, values: Any) -> Any:
        if is_classifier(self):
            classes = self.classes_
            if isinstance(values, da.Array):
                return values.map_blocks(_labels, classes, dtype=classes.dtype, drop_axis=1)
            return _labels(values, classes)
        return values[:, 0] if self._flat else values

    def predict(self, X: Any) -> Any:
        """Predicted labels (n,) or numbers (n,) or (n, c) of the rows X.

        A NumPy array for NumPy input, a lazy Dask array for Dask and zarr arrays, corpora and Rows.
        """
        return self._from_values(self._values(X))

    def _spread_predictor(self) -> Predictor:
        """The predictor whose values end with a standard deviation."""
        raise ConfigError(f"std: {type(self).__name__} has no predictive standard deviation; KernelRidge has")

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
        rows = input_rows(self, X, reset=False)
        bounds = rows.bounds(settings())
        chunk_rows = max(1, bounds[1] if len(bounds) > 1 else 1)
        if any(start % chunk_rows for start in bounds[:-1]):
            raise DataError(f"{rows.name}: chunks of unequal size; predict() gives a lazy array for such input")
        predictor = self._spread_predictor() if std else self._predictor()
        flat = getattr(self, "_flat", True)
        keep, resume = kept_for_run("predict")
        with publishing(path, kind="predictions", overwrite=overwrite, keep=keep, resume=resume) as scratch:
            prediction_store.create(scratch, predictor, len(rows), chunk_rows, decision=decision, flat=flat, std=std)
            writer = prediction_store.PredictionWriter(
                predictor, str(scratch.absolute()), chunk_rows, decision, flat, std
            )
            fill(Rows(rows.x, {}, rows.row_maps, rows.name), writer, what="predict")
        return prediction_store.open_predictions(path)

    # -- scores ------------------------------------------------------------------------------------------------------

    def score_totals(self, X: Any, y: Any = None, sample_weight: Any = None, *, worst: int = 0) -> Accumulator:
        """What scores are made of, from one sweep: `confusion` (c, c), or `n`, `sse`, `t`, `q` (c,).

        `worst` k > 0 adds the k worst-classified rows, or the histogram of the residuals (`JudgingStatistic`).
        """
        check_is_fitted(self)
        rows = input_rows(self, X, reset=False)
        if y is None and "y" not in rows.columns:
            raise DataError(f"{rows.name}: a score needs labels, and there are none")
        if is_classifier(self):
            y, targets = self._class_targets(rows, None if y is None else np.asarray(y), None, reset=False)
        else:
            targets = Targets(len(self._coefficients()[1]), missing=-1 if y is None and rows.classes else None)
        rows = as_rows(rows, y, weight=sample_weight)
        shift = near_target(rows, targets)
        if not worst:
            return sweep(rows, ScoreStatistic(self._predictor(), targets, shift), what="score").total
        # sums of squares of rows that fit exactly leave residuals without a unit
        spread = np.sqrt(np.maximum(getattr(self, "training_mse_", 1.0), 1e-300))
        statistic = JudgingStatistic(self._predictor(), targets, shift, keep=worst, spread=spread)
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


class DecisionMixin:
    """`decision_function` of the classifiers."""

    def decision_function(self, X: Any) -> Any:
        """Values of f: (n, c), or (n,) for two classes (positive: the second)."""
        values = self._values(X)  # type: ignore[attr-defined]
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values  # type: ignore[attr-defined]


def _labels(values: Array, classes: Array) -> Array:
    chosen: Array = classes[np.argmax(values, axis=1)]
    return chosen


def _lazy_values(rows: Rows, predictor: Predictor) -> da.Array:
    """f of lazily read rows as a Dask array with their chunks; the model travels once, as one node of the graph."""
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
