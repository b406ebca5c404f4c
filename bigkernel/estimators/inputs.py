"""Inputs of the estimators: NumPy arrays that scikit-learn validates, or what is read chunk by chunk.

Weights by class are as scikit-learn has them, a factor for the weights of every row of a class. "balanced" gives every
class the same weight in all: the factor of class c is W/(k W_c), W_c the weight of its rows, W that of all labelled
rows and k the number of classes that have any. The columns y and weight alone are read for it, before the sweep.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from numbers import Real
from typing import Any

import dask
import numpy as np
import zarr
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import _check_feature_names, _check_sample_weight, validate_data

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import (
    ClassWeightSource,
    Rows,
    as_rows,
    feature_names,
    is_dask_array,
    is_dask_frame,
    unwrapped,
)
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.fit_state import Inputs
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import DTYPES, is_plain


def is_lazy(X: Any) -> bool:
    """True where X is read chunk by chunk rather than held in memory."""
    if isinstance(X, Rows | Corpus | zarr.Array) or is_dask_frame(X) or is_dask_array(X):
        return True
    return dask.is_dask_collection(X) and is_dask_array(unwrapped(X, "X"))  # of xarray


def input_rows(estimator: BaseEstimator, X: Any, *, reset: bool) -> Rows:
    """Read X as rows alone; sets (`reset`) or compares the estimator's n_features_in_ and names of features."""
    if not is_lazy(X):
        return as_rows(validate_input(estimator, X, reset=reset))
    rows, names = as_rows(X), feature_names(X)
    if reset:
        estimator.n_features_in_ = rows.shape[1]
    if reset or names is not None:
        try:
            _check_feature_names(estimator, names, reset=reset)  # None forgets those of a fit before
        except (ValueError, TypeError) as error:  # TypeError: names of several types
            raise DataError(f"{rows.name}: {' '.join(str(error).split())}") from error
    if reset and not (len(rows) and rows.x.shape[1]):
        what = "rows of 0 features" if len(rows) else "0 rows"
        raise DataError(f"{rows.name}: {what}; at least one is needed")
    if rows.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"{rows.name} has {rows.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    return rows


def validated_weight(sample_weight: Any, X: Array) -> Any:
    """Check weights of rows in memory, (n,) float64, or None; `DataError` where one is below 0 or missing."""
    if sample_weight is None:
        return None
    try:
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    except ValueError as error:
        raise DataError(f"sample_weight: {error}") from error


def is_sound(estimator: BaseEstimator, X: Any) -> bool:
    """True where scikit-learn's checks would give X itself: `is_plain`, and the fit knows no names of features."""
    return is_plain(X, estimator.n_features_in_) and not hasattr(estimator, "feature_names_in_")


def validate_input(estimator: BaseEstimator, *data: Any, **options: Any) -> Any:
    """Validate by scikit-learn, its refusals of values as ours (which are ValueErrors too)."""
    try:
        X = unwrapped(data[0], "X")
        return validate_data(estimator, X, *data[1:], dtype=DTYPES, accept_sparse="csr", **options)
    except ValueError as error:
        X, where = data[0], ""
        if isinstance(X, np.ndarray) and X.dtype.kind == "f" and X.ndim == 2 and not np.isfinite(X).all():
            bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
            where = f" The first rows that are not finite: {bad[:5].tolist()} ({len(bad)} in all)."
        raise DataError(f"{error}{where}") from error


def domain_column(domain: Any, start: int = 0) -> Any:
    """Check that a column of domains from row `start` holds integers; lazy ones are looked at where they are read."""
    if is_lazy(domain):
        return domain
    column = np.asarray(domain)
    if column.ndim != 1:
        raise DataError(f"sample_domain: expected one domain a row, found shape {column.shape}")
    if column.dtype.kind in "iub":
        return column
    if column.dtype.kind != "f":
        raise DataError(f"sample_domain: expected integers, found dtype {column.dtype}; number the domains")
    wrong = ~np.isfinite(column) | (column != np.trunc(column))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"sample_domain: row {start + row} has the domain {column[row]}; expected integers")
    return column.astype(np.int64)


def with_domains(rows: Rows, sample_domain: Any) -> Rows:
    """Add the column domain, (n,) integers, where one is given."""
    return rows if sample_domain is None else as_rows(rows, domain=domain_column(sample_domain))


def no_label(y: Array) -> Array:
    """Tell which labels (n,) are −1, or "-1" among text, as in corpora: (n,) bool."""
    missing: Array = y == ("-1" if y.dtype.kind in "OTU" else -1)
    return missing


def near_mean(rows: Rows) -> Array:
    """Return a point near the mean of the mapped rows, (d,) float64: the mean of the first ones."""
    mean: Array = rows.take(np.arange(min(len(rows), 256))).mean(axis=0)
    return mean


def near_target(rows: Rows, targets: Targets) -> Array:
    """Return a point near the mean of numeric targets, (c,): of the first labelled rows; zeros for classes."""
    shift = np.zeros(targets.width)
    if targets.classes is None and "y" in rows.columns and len(rows):
        chunk, _ = rows.validate_or_mask(rows.read(0, min(len(rows), 4096)))
        y = chunk.y
        assert y is not None
        y = y[targets.labelled(y, 0) & (True if chunk.weight is None else chunk.weight > 0)]
        if len(y):
            values = np.empty((len(y), targets.width))
            targets.encode(y, values)
            shift = values.mean(axis=0)
    return shift


CLASS_WEIGHT: dict[str, list[Any]] = {"class_weight": [dict, StrOptions({"balanced"}), None]}


def check_class_weight(given: Any) -> None:
    """Raise `ConfigError` where a dict gives a class no finite number of at least 0."""
    for label, factor in given.items() if isinstance(given, dict) else ():
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= float(factor) < np.inf:
            raise ConfigError(
                f"class_weight: expected finite numbers of at least 0, found {factor!r} for the class {label!r}"
            )


def weigh_classes(rows: Rows, targets: Targets, inputs: Inputs, given: Any) -> Rows:
    """Return rows whose weights have the factors of their classes, which `class_weight` has given."""
    if given is None:
        return rows
    labels, names = targets.classes, inputs.classes
    assert labels is not None
    assert names is not None
    position = np.arange(len(labels)) if targets.position is None else targets.position
    if isinstance(given, dict):
        factors = _given(given, names)[position]
    else:
        factors = _balanced(np.bincount(position, class_weights(rows, labels), len(names)))[position]
    y, weight = rows.columns["y"], rows.columns.get("weight")
    return replace(rows, columns={**rows.columns, "weight": ClassWeightSource(y, weight, labels, factors)})


def class_weights(rows: Rows, labels: Array) -> Array:
    """The sum of the weights of the rows of each label (k,), sorted as the column y holds them; bad rows count too."""
    found, columns = np.zeros(len(labels)), rows.columns
    for start, stop in pairwise(rows.bounds(settings())):
        y = columns["y"].read(start, stop)
        weight = np.ones(len(y)) if "weight" not in columns else columns["weight"].read(start, stop)
        place = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
        counts = (labels[place] == y) & np.isfinite(weight) & (weight > 0)
        found += np.bincount(place[counts], np.asarray(weight, np.float64)[counts], len(labels))
    return found


def _balanced(weights: Array) -> Array:
    there = weights > 0
    factors: Array = np.ones(len(weights))
    factors[there] = weights.sum() / (there.sum() * weights[there])
    return factors


def _given(wanted: dict[Any, Any], names: Array) -> Array:
    """The factors of a dict; 1 where it names no class.

    Raises
    ------
    DataError
        It names a class that is not there, and leaves out one that is.
    """
    known = [name.item() for name in names]
    strange = [label for label in wanted if label not in known]
    missing = [label for label in known if label not in wanted]
    if strange and missing:
        raise DataError(
            f"class_weight: {strange[0]!r} is none of the classes {known}, and {missing[0]!r} has no weight"
        )
    return np.array([float(wanted.get(label, 1.0)) for label in known])
