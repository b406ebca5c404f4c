"""From the input of users to `Training`: validated rows, how their y becomes targets, and the names of both.

NumPy arrays pass scikit-learn's validation; all else is read chunk by chunk. Methods with domains have `Cells` (a
domain and a class, or no label) as targets, whose sums one sweep accumulates beside the moments of all rows.
Tests: estimators/test_inputs.py.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeGuard

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_array,
    check_consistent_length,
    check_X_y,
    validate_data,
)

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.containers import contained, in_memory, is_dask_frame, is_frame, is_on_device
from bigkernel.data.corpus import require_same_columns
from bigkernel.engine.grids import is_grid, target_names
from bigkernel.engine.rows import Rows, as_rows, cells
from bigkernel.errors import DataError, MissingLabelWarning
from bigkernel.estimators.inputs.checks import require_targets
from bigkernel.estimators.inputs.class_weights import weigh_classes
from bigkernel.estimators.inputs.classes import (
    class_targets,
    find_classes,
    is_semi_supervised,
    labels_in_memory,
    no_label,
    plain_labels,
)
from bigkernel.estimators.inputs.columns import distinct, domain_column, is_lazy, validated_weight
from bigkernel.estimators.inputs.training import Inputs, Training
from bigkernel.events.job import Note, emit
from bigkernel.statistics.domain_cells import Cells, cell_targets
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import DTYPES, is_plain

# -- rows --------------------------------------------------------------------------------------------------------------


def is_sound(X: RowsLike, estimator: BaseEstimator) -> TypeGuard[Array]:
    """Return whether scikit-learn's checks would return X itself: it is plain, and the fit has no feature names."""
    return is_plain(X, estimator.n_features_in_) and not hasattr(estimator, "feature_names_in_")


def input_rows(estimator: BaseEstimator, X: RowsLike, *, reset: bool) -> Rows:
    """Read X as rows without targets; set (`reset`) or compare the estimator's n_features_in_ and feature names."""
    if not is_lazy(X):
        return _named(estimator, validate_input(estimator, X, reset=reset)[0])
    names = None if reset else getattr(estimator, "feature_names_in_", None)
    rows = cells(X, names) if is_grid(X) else as_rows(X)
    frame = X._meta if is_dask_frame(X) and X.ndim == 2 else None  # for scikit-learn's checks of names
    if rows.feature_names and names is not None:
        require_same_columns(rows.name, rows.feature_names, names, "the fit")
    try:
        if reset or (frame is not None and names is not None):
            _check_feature_names(estimator, frame, reset=reset)  # None removes those of an earlier fit
        _check_n_features(estimator, rows, reset=reset)
    except (ValueError, TypeError) as error:  # TypeError: names of several types
        raise DataError(f"{rows.name}: {' '.join(str(error).split())}") from error
    if rows.feature_names and reset:
        estimator.feature_names_in_ = np.array(rows.feature_names, object)
    if reset and not (len(rows) and rows.x.shape[1]):
        what = "rows of 0 features" if len(rows) else "0 rows"
        raise DataError(f"{rows.name}: found {what}; expected at least one")
    return rows if frame is None else _named(estimator, rows)


def _named(estimator: BaseEstimator, X: RowsLike) -> Rows:
    """Return rows with the names of the features of an estimator."""
    return replace(as_rows(X), feature_names=tuple(getattr(estimator, "feature_names_in_", ())))


def validate_input(
    estimator: BaseEstimator, X: RowsLike, y: ColumnLike = None, *, reset: bool, **options: bool
) -> tuple[Array, Array]:
    """Validate X, and y if given, by scikit-learn, whose errors of values become `DataError`."""
    given = contained(X, "X")
    if is_on_device(X) and reset:
        emit(Note("X: copied from the GPU to main memory, from where chunks go to the device of the fit"))
    checks = {"dtype": DTYPES, "accept_sparse": "csr", "estimator": estimator}
    try:
        if y is None:
            rows, labels = check_array(given, input_name="X", **checks), np.empty(0)
        else:
            rows, labels = check_X_y(given, y, **checks, **options)
        with ExitStack() as stack:
            if is_frame(X):  # a fit of lazy rows has no names to compare with those of a frame
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "X has feature names, but")
            validate_data(estimator, X if is_frame(X) else rows, reset=reset, skip_check_array=True)
    except ValueError as error:
        where = ""
        if isinstance(given, np.ndarray) and given.dtype.kind == "f" and given.ndim == 2:
            bad = np.flatnonzero(~np.isfinite(given).all(axis=1))
            where = f" The first rows that are not finite: {bad[:5].tolist()} ({len(bad)} in all)." * bool(len(bad))
        raise DataError(f"{error}{where}") from error
    return rows, labels


def near_mean(rows: Rows) -> Array:
    """Return a point near the mean of the mapped rows, (d,) float64: the mean of the first ones."""
    mean: Array = rows.take(np.arange(min(len(rows), 256))).mean(axis=0)
    return mean


# -- targets -----------------------------------------------------------------------------------------------------------


def read_training(
    estimator: BaseEstimator,
    X: RowsLike,
    y: ColumnLike,
    sample_weight: ColumnLike,
    sample_domain: ColumnLike = None,
    *,
    known: Inputs | None = None,
    classes: ColumnLike = None,
) -> Training:
    """Return validated rows with their columns, how y becomes targets, and the names of both.

    `known` are the inputs of the fit to which rows are added; `classes` lists all labels where the first rows may lack
    some.
    """
    if is_lazy(X):
        rows = input_rows(estimator, X, reset=known is None)
        names = target_names(y)
        rows, y = grid_targets(rows, y, classes=isinstance(estimator, ClassifierMixin))
        y = y if y is None else contained(y, "y", labels=isinstance(estimator, ClassifierMixin))
        sample_domain = rows.flat(sample_domain)
        _require_y(estimator, rows, y)
        if isinstance(estimator, ClassifierMixin) and y is not None and not is_lazy(y):
            y = labels_in_memory(estimator, y)
    else:
        names = None
        X, y = _validated(estimator, X, y, reset=known is None)
        rows = _named(estimator, X)
        sample_weight = validated_weight(sample_weight, len(rows))
    y = y if y is None or is_lazy(y) else np.asarray(y)
    domain = domain_column(sample_domain)[0]
    if isinstance(estimator, ClassifierMixin):
        labels = find_classes(estimator, rows, y, classes) if known is None else known.classes
        assert labels is not None
        listed = labels if known is None or classes is None else np.unique(np.asarray(classes))
        if not np.array_equal(listed, labels):
            raise DataError(f"classes: expected those of the first call, {labels.tolist()}, found {listed.tolist()}")
        rows, targets = class_targets(estimator, rows, y, labels)
        rows = as_rows(rows, weight=sample_weight, domain=domain)
        inputs = known or replace(Inputs.of(estimator), classes=labels, targets=names)
        return Training(weigh_classes(estimator, rows, targets, inputs), targets, inputs)
    rows = as_rows(rows, y, weight=sample_weight, domain=domain)
    shape = rows.columns["y"].shape
    width = 1 if len(shape) == 1 else shape[1]
    # rows without a label have −1 where the corpus has classes
    targets = Targets(width, missing=-1 if y is None and rows.classes else None)
    if known is None:
        shift = near_target(rows, targets) if getattr(estimator, "fit_intercept", False) else np.zeros(width)
        known = replace(Inputs.of(estimator), flat=len(shape) == 1, target_shift=shift, targets=names)
    elif width != len(known.shift):
        raise DataError(f"y: expected {len(known.shift)} targets as before, found {width}")
    return Training(rows, replace(targets, shift=known.shift) if known.shift.any() else targets, known)


def grid_targets(rows: Rows, y: ColumnLike, *, classes: bool) -> tuple[Rows, ColumnLike]:
    """Return targets that have a value for every cell of a grid as a column; `classes` become one of the rows.

    A cell without a target (NaN; None or "" among text) is unlabelled, as rows of a corpus may be.
    """
    if rows.grid is None or y is None or (flat := rows.flat(y)) is y:
        return rows, y
    if not classes:
        return rows, flat
    given = np.asarray(flat)
    if given.dtype.kind in "OTU":
        given = given.astype(object)
        given[given == ""] = None
    labels = plain_labels(given)
    known = np.unique(labels[~no_label(labels)])
    if labels.dtype.kind not in "TU":
        whole = labels.astype(np.int64)
        if not np.array_equal(whole, labels):
            raise DataError("y: expected whole numbers or text as classes, found fractions")
        return replace(as_rows(rows, whole), classes=tuple(known.astype(np.int64).tolist())), None
    codes = np.where(no_label(labels), -1, np.searchsorted(known, labels))
    return replace(as_rows(rows, codes), classes=tuple(known.tolist())), None


def _require_y(estimator: BaseEstimator, rows: Rows, y: ColumnLike) -> None:
    if y is None and "y" not in rows.columns:
        raise DataError(f"{rows.name}: {type(estimator).__name__} requires y to be passed, but the target y is None")


def _validated(estimator: BaseEstimator, X: RowsLike, y: ColumnLike, *, reset: bool) -> tuple[Array, Array]:
    if y is None:
        raise DataError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    if isinstance(estimator, ClassifierMixin):
        labels = labels_in_memory(estimator, y)
        rows, labels = validate_input(estimator, X, labels, reset=reset)
        check_classification_targets(labels)
        return rows, labels
    y = in_memory(y, "y")
    if is_semi_supervised(estimator):
        values = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
        Targets(1).labelled(values, 0)  # refuses rows with some of their targets
        if (values == -1).mean() > 0.5:
            warnings.warn(
                "y: most numbers are −1; if it marks rows without a label, pass NaN there: −1 is a number",
                MissingLabelWarning,
                stacklevel=5,
            )
        return validate_input(estimator, X, np.zeros(len(values)), reset=reset)[0], values
    require_numbers(y)
    rows, values = validate_input(estimator, X, y, reset=reset, multi_output=True, y_numeric=True)
    values = np.asarray(values, np.float64)
    require_targets(values)
    return rows, values


def require_numbers(values: Array) -> None:
    """Raise `DataError` for targets that are text, or of which some are NaN, where no row may lack one."""
    if values.dtype.kind in "TU":
        raise DataError("y: expected numbers, found text; classifiers take names")
    if values.dtype.kind == "f" and values.ndim in (1, 2) and (missing := np.isnan(values)).any():
        count = np.count_nonzero(missing if values.ndim == 1 else missing.any(axis=1))
        raise DataError(
            f"Input y contains NaN: {count} of {len(values)} rows have no target; leave these rows out of X and y, or "
            "use SSSL, which also learns from rows without a target"
        )


def near_target(rows: Rows, targets: Targets) -> Array:
    """Return a point near the mean of numeric targets, (c,), from the first labelled rows; zeros for classes."""
    shift = np.zeros(targets.width)
    if targets.classes is None and "y" in rows.columns and len(rows):
        stop, weight = min(len(rows), 4096), rows.columns.get("weight")
        y = rows.columns["y"].read(0, stop)
        usable = np.isfinite(y.reshape(stop, -1)).all(axis=1)  # the sweep refuses, skips or leaves out other rows
        y = y[usable & (True if weight is None else weight.read(0, stop) > 0)]
        y = y[targets.labelled(y, 0)]
        if len(y):
            values = np.empty((len(y), targets.width))
            targets.encode(y, values)
            shift = values.mean(axis=0)
    return shift


# -- domains and their classes -----------------------------------------------------------------------------------------


def read_cells(
    estimator: BaseEstimator,
    X: RowsLike,
    y: ColumnLike,
    sample_domain: ColumnLike,
    sample_weight: ColumnLike,
    *,
    labels: bool = True,
    fallback: str = "refuse",
    groups: bool = False,
) -> Training:
    """Return validated rows with their columns y, domain and weight, their cells, and the names of both.

    Without `labels` y is ignored, and cells are domains. `fallback` is for rows without domains: "refuse" them; "one":
    all are domain 0; "labels": labelled rows are domain 0, the others domain 1. `groups`: keep the column group too,
    whose rows are held out together.
    """
    rows = input_rows(estimator, X, reset=True)
    if not is_lazy(X):
        sample_weight = validated_weight(sample_weight, len(rows))
    if labels:
        rows, y = grid_targets(rows, y, classes=True)
        _require_y(estimator, rows, y)
    kept = {"domain", "weight"} | ({"y"} if labels else set())
    kept |= {"group"} if groups or getattr(estimator, "probability", False) else set()
    rows = replace(rows, columns={column: rows.columns[column] for column in kept & set(rows.columns)})
    domain, names = domain_column(rows.flat(sample_domain))
    rows = as_rows(rows, weight=sample_weight, domain=domain)
    classes: Array | None = None
    targets = Targets(0, np.zeros(0, np.int64))
    if labels:
        rows, targets, classes = _labels(estimator, rows, y)
    assert targets.classes is not None
    rows, domains, known = _domains(estimator, rows, fallback)
    cells = Cells(known, targets.classes, targets.position)
    inputs = replace(Inputs.of(estimator), classes=classes, domains=domains if names is None else names)
    return Training(weigh_classes(estimator, rows, cell_targets(cells), inputs), cells, inputs)


def _labels(estimator: BaseEstimator, rows: Rows, y: ColumnLike) -> tuple[Rows, Targets, Array]:
    """Return rows with the column y, the targets, and the sorted labels."""
    classes = None
    if y is not None and not is_lazy(y):
        try:
            y = plain_labels(y)
            check_consistent_length(y, np.empty(len(rows)))
            check_classification_targets(y)
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"y: {error}") from error
    elif y is not None or not rows.classes:
        rows = rows if y is None else replace(as_rows(rows, y), classes=())
        values = distinct(rows, "y")
        y, classes = None, values[(values != -1) & (values == values)]
    labels = find_classes(estimator, rows, y, classes)
    return *class_targets(estimator, rows, y, labels), labels


def _domains(estimator: BaseEstimator, rows: Rows, fallback: str) -> tuple[Rows, Array, Array | None]:
    """Return rows with the column domain, the domains (G,), and the same or None where labels define them."""
    if "domain" in rows.columns:
        domains = distinct(rows, "domain")
        return rows, domains, domains
    if fallback == "refuse":
        raise DataError(
            f"{rows.name}: {type(estimator).__name__} needs the domain of every row; pass sample_domain (one "
            "integer or name per row), or rows with a column 'domain'"
        )
    if fallback == "labels":
        return rows, np.arange(2), None
    return as_rows(rows, domain=np.zeros(len(rows), np.int8)), np.arange(1), np.arange(1)
