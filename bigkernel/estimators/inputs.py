"""Inputs of the estimators: NumPy arrays that scikit-learn validates, or what is read chunk by chunk."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_feature_names, _check_sample_weight, validate_data

from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sources import feature_names, is_dask_array, is_dask_frame, unwrapped
from bigkernel.errors import DataError
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import DTYPES, is_plain

Array = NDArray[Any]


def is_lazy(X: Any) -> bool:
    """True where X is read chunk by chunk rather than held in memory."""
    if isinstance(X, Rows | Corpus | zarr.Array) or is_dask_frame(X) or is_dask_array(X):
        return True
    return dask.is_dask_collection(X) and is_dask_array(unwrapped(X, "X"))  # of xarray


def input_rows(estimator: BaseEstimator, X: Any, *, reset: bool) -> Rows:
    """Rows of X alone; sets (`reset`) or compares the estimator's n_features_in_."""
    if not is_lazy(X):
        return as_rows(validate_input(estimator, X, reset=reset))
    rows = as_rows(X)
    if reset:
        estimator.n_features_in_ = rows.shape[1]
        _check_names(estimator, feature_names(X), rows.name, reset=True)  # those of a fit before are gone
        if not len(rows):
            raise DataError(f"{rows.name}: 0 rows; at least one is needed")
        if not rows.stored_width:
            raise DataError(f"{rows.name}: rows of 0 features; at least one is needed")
        return rows
    if (names := feature_names(X)) is not None:
        _check_names(estimator, names, rows.name, reset=False)
    if rows.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"{rows.name} has {rows.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    return rows


def _check_names(estimator: BaseEstimator, frame: Any, name: str, *, reset: bool) -> None:
    """scikit-learn's check of the names of columns (None: there are none), its refusals as ours."""
    try:
        _check_feature_names(estimator, frame, reset=reset)
    except (ValueError, TypeError) as error:  # TypeError: names of several types
        raise DataError(f"{name}: {' '.join(str(error).split())}") from error


def validated_weight(sample_weight: Any, X: Array) -> Any:
    """Weights of rows in memory, (n,) float64, or None.

    Raises
    ------
    DataError
        Weights of another number than the rows, or below 0.
    """
    if sample_weight is None:
        return None
    try:
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    except ValueError as error:
        raise DataError(f"sample_weight: {error}") from error


def is_sound(estimator: BaseEstimator, X: Any) -> bool:
    """True where validation is sure to give X itself: `is_plain`, and the fit knows no names of features.

    What is not sure goes to scikit-learn's checks, which convert it, warn of it or refuse it.
    """
    return is_plain(X, estimator.n_features_in_) and not hasattr(estimator, "feature_names_in_")


def validate_input(estimator: BaseEstimator, *data: Any, **options: Any) -> Any:
    """scikit-learn's validation, its refusals of values as ours (which are ValueErrors too)."""
    try:
        return validate_data(
            estimator, unwrapped(data[0], "X"), *data[1:], dtype=DTYPES, accept_sparse="csr", **options
        )
    except ValueError as error:
        X = data[0]
        bad = np.zeros(0, np.int64)
        if isinstance(X, np.ndarray) and X.dtype.kind == "f" and X.ndim == 2:
            bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
        where = f" The first rows that are not finite: {bad[:5].tolist()} ({len(bad)} in all)." if len(bad) else ""
        raise DataError(f"{error}{where}") from error


def domain_column(domain: Any, start: int = 0) -> Any:
    """A column of domains from row `start`, refused unless it holds integers; lazy ones are looked at where read."""
    if is_lazy(domain):
        return domain
    column = np.asarray(domain)
    if column.ndim != 1:
        raise DataError(f"sample_domain: expected one domain a row, found shape {column.shape}")
    if column.dtype.kind in "iub":
        return column
    if column.dtype.kind == "f":
        wrong = ~np.isfinite(column) | (column != np.trunc(column))
        if not wrong.any():
            return column.astype(np.int64)
        row = int(np.argmax(wrong))
        raise DataError(f"sample_domain: row {start + row} has the domain {column[row]}; expected integers")
    raise DataError(f"sample_domain: expected integers, found dtype {column.dtype}; number the domains")


def with_domains(rows: Rows, sample_domain: Any) -> Rows:
    """Rows with the column domain, (n,) integers, where one is given."""
    return rows if sample_domain is None else as_rows(rows, domain=domain_column(sample_domain))


def no_label(y: Array) -> Array:
    """Which labels (n,) are −1, or "-1" among text, as in corpora: (n,) bool."""
    missing: Array = y == ("-1" if y.dtype.kind in "OTU" else -1)
    return missing


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
