"""From the input of users to `Training`: validated rows, how their y becomes targets, and the names of both.

NumPy arrays pass scikit-learn's validation; all else is read chunk by chunk. The label of a row is its class, or −1
where it has none (NaN, or None beside text, where allowed). Its domain is an integer, or a name of `sample_domain`, and
an integer in the column `domain`. Methods with domains have `Cells` (a domain and a class, or no label) as targets,
whose sums one sweep accumulates beside the moments of all rows.

Weights by class are those of scikit-learn, a factor for the weights of every row of a class. "balanced" gives every
class the same total weight: the factor of class c is W/(k W_c), W_c the weight of its rows, W that of all labelled rows
and k the number of classes with rows. It reads only the columns y and weight, before the sweep.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np
import zarr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_X_y,
    column_or_1d,
    validate_data,
)

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.config import settings
from bigkernel.data.containers import contained, in_memory, is_dask_array, is_dask_frame, is_frame
from bigkernel.data.corpus import Corpus, require_same_columns
from bigkernel.data.labels import codes_of_names, is_missing, looks_missing
from bigkernel.engine.grids import is_grid, target_names
from bigkernel.engine.rows import ClassWeightSource, Rows, as_rows, cells
from bigkernel.errors import ConfigError, DataError, MissingLabelWarning
from bigkernel.estimators.inputs.checks import (
    require_exact,
    require_some,
    require_squares,
    require_targets,
    warn_of_scales,
)
from bigkernel.estimators.inputs.training import AnyTargets, Inputs, Training
from bigkernel.kernels.algebra import Kernel
from bigkernel.solvers.pseudo_labels import label_slots
from bigkernel.statistics.domain_cells import MOST_CELLS, Cells, cell_targets
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds
from bigkernel.statistics.moments import Targets, require_weights
from bigkernel.streaming.chunk import DTYPES, Chunk, is_plain
from bigkernel.streaming.folds import Folds

CLASS_WEIGHT: dict[str, list[object]] = {"class_weight": [dict, StrOptions({"balanced"}), None]}

# -- rows --------------------------------------------------------------------------------------------------------------


def is_lazy(X: RowsLike) -> bool:
    """Return whether X is read chunk by chunk rather than held in memory."""
    lazy = isinstance(X, Rows | Corpus | zarr.Array) or is_dask_frame(X) or is_dask_array(X) or is_grid(X)
    return lazy or (hasattr(X, "dims") and is_dask_array(getattr(X, "data", None)))  # of xarray


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


# -- weights and domains -----------------------------------------------------------------------------------------------


def validated_weight(sample_weight: ColumnLike, n: int) -> Array | None:
    """Validate weights of n rows in memory, (n,) float64, or None; `DataError` if one is negative or missing."""
    if sample_weight is None:
        return None
    sample_weight = in_memory(sample_weight, "sample_weight")
    try:
        weight: Array = _check_sample_weight(sample_weight, np.empty(n), dtype=np.float64, ensure_non_negative=True)
    except ValueError as error:
        raise DataError(f"sample_weight: {error}") from error
    return weight


def domain_column(domain: ColumnLike) -> tuple[ColumnLike, Array | None]:
    """Return a column of domains as integers, and the sorted names of those that were text or objects, else None.

    Lazy columns are checked when they are read.
    """
    if domain is None or is_lazy(domain):
        return domain, None
    column = in_memory(domain, "sample_domain", labels=True)
    if column.dtype.kind not in "OTU" or column.ndim != 1:
        return _integers(column, 0), None
    return codes_of_names(column, "sample_domain")


def _integers(column: Array, start: int) -> Array:
    """Return the domains of rows `start` and up as integers."""
    if column.ndim != 1:
        raise DataError(f"sample_domain: expected one domain per row, found shape {column.shape}")
    if column.dtype.kind in "iub":
        return column
    if column.dtype.kind != "f":
        raise DataError(f"sample_domain: expected integers, found dtype {column.dtype}; pass text as a NumPy array")
    wrong = ~np.isfinite(column) | (column != np.trunc(column))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"sample_domain: row {start + row} has the domain {column[row]}; expected integers")
    return column.astype(np.int64)


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


# -- classes -----------------------------------------------------------------------------------------------------------


def is_semi_supervised(estimator: BaseEstimator) -> bool:
    """Return whether labels may be missing in arrays."""
    return bool(getattr(estimator, "_semi_supervised", False))


def no_label(y: Array) -> Array:
    """Return which labels (n,) are −1 or NaN, or "-1" among text, as in corpora: (n,) bool."""
    missing: Array = y == "-1" if y.dtype.kind in "OTU" else (y == -1) | (y != y)
    return missing


def plain_labels(y: ColumnLike) -> Array:
    """Return labels (n,) in memory as numbers or text, with −1 or "-1" for None, NaN and pandas' NA.

    `DataError`: labels are of several kinds, or infinite.
    """
    given: Array = column_or_1d(in_memory(y, "y", labels=True), warn=True)
    if given.dtype.kind == "f":
        try:
            assert_all_finite(given, allow_nan=True, input_name="y")
        except ValueError as error:
            raise DataError(str(error)) from error
        missing = np.isnan(given)
        if missing.any() and (given == -1).any():
            warnings.warn(
                "y: −1 and NaN both mark rows without a label; if −1 is a class, give it another number",
                MissingLabelWarning,
                stacklevel=6,
            )
        return np.where(missing, -1, given)
    if given.dtype.kind != "O":
        return given
    missing = np.array([is_missing(label) or label in (-1, "-1") for label in given], bool)
    labelled = given[~missing]
    booleans = [isinstance(label, bool | np.bool_) for label in labelled]
    if any(booleans):
        if all(booleans) and not missing.any():
            return given.astype(bool)
        advice = "[-1 if label is None else int(label) for label in y]"
        raise DataError(f"y: found booleans beside missing or other labels; expected integers or text, as in {advice}")
    for kind, dtype in ((Integral, np.int64), (Real, np.float64), (str, np.str_)):
        if all(isinstance(label, kind) for label in labelled):
            return np.where(missing, "-1" if kind is str else -1, given).astype(dtype)
    row = next(row for row, label in enumerate(given) if not (missing[row] or isinstance(label, str)))
    raise DataError(f"y: row {row} has the label {given[row]!r}; expected only text or only numbers")


def labels_in_memory(estimator: BaseEstimator, y: ColumnLike) -> Array:
    """Return y with −1 where a label is missing; `DataError` if the estimator needs all labels."""
    if is_semi_supervised(estimator):
        return plain_labels(y)
    given = in_memory(y, "y", labels=True)
    if given.dtype.kind == "O" and given.ndim == 1:
        missing = np.flatnonzero([is_missing(label) for label in given])
        if len(missing):
            raise DataError(
                f"y: {len(missing)} of {len(given)} rows have no label (the first is row {missing[0]}), and "
                f"{type(estimator).__name__} needs all; leave these rows out, fit LabelledRowsClassifier(…), which "
                "does, or use SSSLClassifier, which learns from them"
            )
    return given


def find_classes(estimator: BaseEstimator, rows: Rows, y: ColumnLike, classes: ColumnLike = None) -> Array:
    """Return the sorted labels of rows, of a corpus or as listed, without −1 where labels may be missing."""
    if classes is not None:
        labels = np.unique(np.asarray(classes))
    elif y is None and rows.classes:
        labels = np.unique(rows.classes)
    else:
        values = rows.column("y") if y is None else y if isinstance(y, np.ndarray) else in_memory(y, "y")
        assert values is not None
        labels = np.unique(values)
        missing = no_label(labels)
        if not is_semi_supervised(estimator) and y is not None and (labels != labels).any():
            raise DataError(f"y: found rows without a label, and {type(estimator).__name__} needs all; leave these out")
        if is_semi_supervised(estimator) or y is None:
            labels = labels[~missing]
        elif missing.any() and len(labels) > 3:
            warnings.warn(
                f"y: −1 is one of the {len(labels)} classes of {type(estimator).__name__}; if it marks rows without a "
                "label, leave these out, or fit LabelledRowsClassifier(…), which does",
                MissingLabelWarning,
                stacklevel=6,
            )
    warn_of_names(labels, estimator)
    return _require_classes(estimator, labels)


def warn_of_names(labels: Array, estimator: BaseEstimator, stacklevel: int = 7) -> None:
    """Warn of text among the labels (k,) that Python, pandas or an empty field of a file give for a missing one."""
    for name in sorted({*filter(looks_missing, labels.tolist())}):
        cure = f"pass np.where(y == {name!r}, '-1', y)" if is_semi_supervised(estimator) else "leave these rows out"
        warnings.warn(
            f"y: the class {name!r} looks like a missing label; if it marks rows without a label, {cure}",
            MissingLabelWarning,
            stacklevel=stacklevel,
        )


def _require_classes(estimator: BaseEstimator, labels: Array) -> Array:
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise DataError("y: found an infinite label; expected a class, or NaN for an unlabelled row")
    if len(labels) < 2:
        raise DataError(
            f"y: {type(estimator).__name__} needs labelled rows of at least 2 classes; the data contains "
            f"{'no label' if not len(labels) else f'only one class, {labels[0]}'}"
        )
    return labels


def class_targets(estimator: BaseEstimator, rows: Rows, y: ColumnLike, labels: Array) -> tuple[Rows, Targets]:
    """Return rows with y as a column (positions among the labels if it is an array), and how it becomes targets.

    −1 means unlabelled in corpora and semi-supervised learning.
    """
    given = y if isinstance(y, np.ndarray) else None
    rows = as_rows(rows, y) if given is None else rows
    shape = rows.columns["y"].shape if given is None else given.shape
    if len(shape) != 1:
        raise DataError(f"y: expected one label per row, found shape {shape}")
    if y is None and any(isinstance(label, str) for label in rows.classes):
        # the column holds positions in the corpus's list of names: find each name among our classes
        names = np.asarray(rows.classes)
        unknown = [str(name) for name in names if name not in labels]
        if unknown:
            raise DataError(f"{rows.name}: expected labels among the classes {labels.tolist()}, found {unknown[0]!r}")
        return rows, Targets(len(labels), np.arange(len(names)), position=np.searchsorted(labels, names))
    if given is None:
        return rows, Targets(len(labels), labels)
    codes = np.searchsorted(labels, given)
    codes[codes == len(labels)] = 0
    strange = labels[codes] != given
    if is_semi_supervised(estimator):
        codes[no_label(given)] = -1
        strange &= codes != -1
    if strange.any():
        row = int(np.argmax(strange))
        raise DataError(f"y: row {row} has the label {given[row]}, which is not one of the classes {labels.tolist()}")
    return as_rows(rows, codes), Targets(len(labels), np.arange(len(labels)))


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


def distinct(rows: Rows, name: str) -> Array:
    """Return the sorted unique values of the column y or domain, read step by step; domains must be integers.

    `DataError`: more values than cells may have, or a domain that is no integer.
    """
    source = rows.columns[name]
    unique = source.read(0, 0)
    for start, stop in pairwise(rows.bounds(settings())):
        values = source.read(start, stop)
        unique = np.union1d(unique, _integers(values, start) if name == "domain" else values)
        if len(unique) > MOST_CELLS:
            what = "classes" if name == "y" else "domains"
            raise DataError(f"{name}: expected at most {MOST_CELLS:,} different values for {what}, found more")
    return unique.astype(np.int64) if name == "domain" else unique


def cell_counts(rows: Rows, cells: Cells, folds: Folds | None = None) -> Array:
    """Count the rows of each cell regardless of their weights, from the columns alone: (G, k + 1) int64.

    With `folds` count those of each slot (`solvers.pseudo_labels`), (G, F + 2). `DataError`: a label or a domain is in
    no cell; names the row.
    """
    counts = np.zeros((cells.n_domains, cells.n_classes + 1 if folds is None else folds.count + 2), np.int64)
    for chunk in _without_features(rows, "y", "domain", "group", "fold"):
        place = cells.of(chunk) if folds is None else label_slots(cells, folds, chunk)
        counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)
    return counts


def _without_features(rows: Rows, *names: str) -> Iterator[Chunk]:
    """Yield columns of the rows, step by step."""
    columns = {name: source for name, source in rows.columns.items() if name in names}
    for start, stop in pairwise(rows.bounds(settings())):
        chunk = Chunk(np.empty((stop - start, 0)), start)
        for name, source in columns.items():
            setattr(chunk, name, source.read(start, stop))
        yield chunk


# -- rows of the exact form --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExactRows:
    """The k training rows of an exact fit, all in memory."""

    name: str  # of the rows, for messages
    chunk: Chunk  # all n rows with their columns
    keep: Array  # (k,) positions of the training rows
    X: Array  # (k, d) float64
    weight: Array | None  # (k,) or None
    skipped: int  # number of bad rows that were left out

    def gram(self, kernel: Kernel) -> tuple[Kernel, Array]:
        """Return the kernel with every parameter a number, and K (k, k)."""
        kernel = kernel.resolve(self.X, self.weight)
        warn_of_scales(kernel, self.X)
        with np.errstate(over="ignore", invalid="ignore"):
            K = kernel(self.X)
        if not np.isfinite(K).all():
            raise DataError(f"{kernel.name} kernel: its values exceed the range of float64; scale the rows")
        return kernel, K

    def folds(self) -> Array:
        """Return the fold of each row, (k,)."""
        return np.asarray(HeldOutFolds(FOLDS - 1).of(self.chunk)[self.keep] % FOLDS)

    def targets(self, targets: AnyTargets) -> tuple[Array, Array | Cells]:
        """Return the targets of the labelled rows, and which these are; or the cell of each row, and all cells."""
        if isinstance(targets, Targets):
            return self.labels(targets)
        assert isinstance(targets, Cells)
        if self.weight is not None and not self.weight.any():
            raise DataError(f"{self.name}: expected a row with a positive weight, found none")
        return targets.of(self.chunk, self.keep), targets

    def labels(self, targets: Targets) -> tuple[Array, Array]:
        """Return the targets (l, c) of the labelled rows, and which of the k rows these are, (k,) bool.

        `DataError`: there are none, or none with a weight above zero.
        """
        assert self.chunk.y is not None
        y = self.chunk.y[self.keep]
        labelled = targets.labelled(self.chunk.y, 0)[self.keep]
        if not labelled.any():
            raise DataError("y: expected a labelled row, found none")
        Y = np.empty((int(labelled.sum()), targets.width))
        targets.encode(y[labelled], Y)
        with np.errstate(over="ignore"):
            require_squares("y", (Y**2).sum(axis=0), Y)
        if self.weight is not None and not self.weight[labelled].any():
            raise DataError("y: expected a labelled row with a positive weight, found none")
        return Y, labelled


def read_exact(estimator: str, rows: Rows, labelled: AnyTargets | None) -> ExactRows:
    """Read the finite rows for the exact form of an estimator; with `Targets`, only rows with a label.

    `PlanTooLargeError`: more rows than an n×n matrix may have. `DataError`: a row with NaN or infinity (unless such
    rows are skipped), or no other row.
    """
    n = len(rows)
    require_exact(estimator, n)
    given = rows.read(0, n)
    sound = ~given.faults()
    chunk, skipped = rows.validate_or_mask(given)  # refuses or blanks bad rows
    if isinstance(labelled, Targets):
        assert chunk.y is not None
        sound &= labelled.labelled(chunk.y, 0)
    keep = np.flatnonzero(sound)
    X = chunk.load(keep, rows.shape[1], np.float64)
    require_some(rows, skipped)
    weight = None
    if "weight" in rows.columns and chunk.weight is not None:
        weight = require_weights(np.asarray(chunk.weight, np.float64), 0)[keep]
    return ExactRows(rows.name, chunk, keep, X, weight, skipped)


# -- weights by class --------------------------------------------------------------------------------------------------


def weigh_classes(estimator: BaseEstimator, rows: Rows, targets: Targets, inputs: Inputs) -> Rows:
    """Return rows whose weights include the factors of their classes, by `class_weight` of the estimator."""
    given = getattr(estimator, "class_weight", None)
    if given is None:
        return rows
    labels, names = targets.classes, inputs.classes
    assert labels is not None
    assert names is not None
    position = np.arange(len(labels)) if targets.position is None else targets.position
    if isinstance(given, dict):
        factors = class_factors(given, names)
    else:
        weights = np.bincount(position, class_weights(rows, labels), len(names))
        there = weights > 0
        factors = np.ones(len(names))
        factors[there] = weights.sum() / (there.sum() * weights[there])
    y, weight = rows.columns["y"], rows.columns.get("weight")
    weighed = ClassWeightSource(y, weight, labels, factors[position])
    return replace(rows, columns={**rows.columns, "weight": weighed})


def without_class_weights(rows: Rows) -> Rows:
    """Return the rows without the factors of their classes."""
    weight = rows.columns.get("weight")
    if not isinstance(weight, ClassWeightSource):
        return rows
    columns = {name: column for name, column in rows.columns.items() if name != "weight"}
    return replace(rows, columns=columns if weight.weight is None else {**columns, "weight": weight.weight})


def class_weights(rows: Rows, labels: Array) -> Array:
    """Return the sum of the weights of the rows of each label (k,), sorted as in the column y; bad rows count too."""
    sums = np.zeros(len(labels))
    for chunk in _without_features(rows, "y", "weight"):
        y, weight = chunk.y, chunk.weight
        assert y is not None
        weight = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
        place = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
        counts = (labels[place] == y) & np.isfinite(weight) & (weight > 0)
        sums += np.bincount(place[counts], weight[counts], len(labels))
    return sums


def class_factors(class_weight: Mapping[object, object], names: Array) -> Array:
    """Return the factor of each class by a dict; 1 for classes that it does not name.

    `ConfigError`: a factor is not a finite number of at least 0. `DataError`: the dict names an unknown class, and
    leaves out a known one.
    """
    factors: dict[object, float] = {}
    for label, factor in class_weight.items():
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= float(factor) < np.inf:
            raise ConfigError(
                f"class_weight: expected finite non-negative numbers, found {factor!r} for class {label!r}"
            )
        factors[label] = float(factor)
    known = names.tolist()
    strange = [label for label in class_weight if label not in known]
    missing = [label for label in known if label not in class_weight]
    if strange and missing:
        raise DataError(
            f"class_weight: expected a weight for each of the classes {known}; {strange[0]!r} is not one of them, "
            f"and {missing[0]!r} has no weight"
        )
    return np.array([factors.get(label, 1.0) for label in known])
