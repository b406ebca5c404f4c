"""Classes: which rows have a label, which labels there are, and how they become targets.

The label of a row is its class, or −1 where it has none (NaN, or None beside text, where allowed).
Tests: estimators/test_labels.py.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from bigkernel.arrays import Array, ColumnLike
from bigkernel.data.containers import in_memory
from bigkernel.data.labels import is_missing, looks_missing
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import DataError, MissingLabelWarning
from bigkernel.statistics.moments import Targets


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
