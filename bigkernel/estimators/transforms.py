"""Row transforms as scikit-learn transformers: scale, unit norm, standardize; fitted in at most one sweep.

On NumPy and Dask arrays they give arrays of the same kind. On zarr arrays, corpora and Rows they give `Rows` with one
more row map: nothing is stored, the tasks of the next step apply it. So a Pipeline of them and an estimator works on
all four.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sources import is_dask_array
from bigkernel.engine.sweep import sweep
from bigkernel.errors import DataError
from bigkernel.estimators.inputs import input_rows, is_lazy, is_sound, near_mean
from bigkernel.estimators.number_range import require_row_squares
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.statistics.moments import FeatureSums
from bigkernel.streaming.chunk import RowMap
from bigkernel.streaming.row_maps import Scale, Standardize, UnitNorm, float_of, mapped_rows

Array = NDArray[Any]


class RowTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base: a fitted transformer is a `RowMap`; `learns` names the sweep of its fit, where it takes one."""

    learns: ClassVar[str] = ""

    def widest(self, rows: Rows) -> Rows:
        """Rows as wide as a fit to them can make them, for plans of the step after it; without a sweep."""
        raise TypeError(f"{type(self).__name__} learns by no sweep")

    def _row_map(self) -> RowMap:
        raise TypeError(f"{type(self).__name__} has no row map")

    @property
    def _n_features_out(self) -> int:
        return self._row_map().width(self.n_features_in_)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the number of features; nothing else is needed."""
        self._validate_params()
        input_rows(self, X, reset=True)
        return self

    def transform(self, X: Any) -> Any:
        """The mapped rows: an array (NumPy, Dask; of sparse rows a dense one), or Rows that are mapped when read."""
        check_is_fitted(self)
        if is_sound(self, X):
            return mapped_rows(X, self._row_map(), float_of(X.dtype))
        rows = input_rows(self, X, reset=False)
        row_map = self._row_map()
        if is_dask_array(X):
            dtype, width = float_of(X.dtype), row_map.width(rows.shape[1])
            whole = X.rechunk({1: -1})
            chunks, meta = (whole.chunks[0], (width,)), np.empty((0, 0), dtype)
            return whole.map_blocks(mapped_rows, row_map, dtype, dtype=dtype, chunks=chunks, meta=meta)
        if is_lazy(X):
            return rows.map(row_map)
        return mapped_rows(rows.x.read(0, len(rows)), row_map, float_of(rows.dtype))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        return tags


class PlainTransformer(RowTransformer):
    """Base of those whose fit is a few numbers, kept as scikit-learn keeps them."""


class SameWidthTransformer(OneToOneFeatureMixin, PlainTransformer):
    """Base of those that give a feature for every feature."""


class Rescaler(SameWidthTransformer):
    """Multiply every value by a factor.

    Parameters
    ----------
    factor : float
        For example 1/255 for 8-bit pixels.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"factor": [Interval(Real, None, None, closed="neither")]}

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def _row_map(self) -> RowMap:
        return Scale(float(self.factor))


class UnitNormalizer(SameWidthTransformer):
    """Scale every row to unit L2 norm; rows of zeros stay as they are."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    def _row_map(self) -> RowMap:
        return UnitNorm()


class Standardizer(SameWidthTransformer):
    """Subtract the mean and divide by the standard deviation of every feature, learnt in one sweep.

    The deviation is the maximum-likelihood one (divided by the sum of weights), as in scikit-learn's StandardScaler; it
    is 1 where a feature does not vary.

    Attributes
    ----------
    mean_, scale_ : (d,)
    """

    learns = "standardize"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn means and deviations, of weighted rows where weights are given."""
        rows = input_rows(self, X, reset=True)
        if sample_weight is not None and not is_lazy(X):
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        rows = as_rows(rows, weight=sample_weight)
        plain = replace(rows, columns={name: source for name, source in rows.columns.items() if name == "weight"})
        shift = near_mean(rows)
        swept = sweep(plain, FeatureSums(IdentityMap(shift)), what=self.learns)
        n, s, q = (swept.total[name] for name in ("n", "s", "q"))
        if not n > 0:
            raise DataError(f"{rows.name}: the weights of all rows are zero")
        require_row_squares(q, s, shift, float(n))
        mean = s / n
        variance = q / n - mean**2
        self.mean_ = shift + mean
        # what rounding leaves of a constant feature is not a deviation
        with np.errstate(over="ignore"):
            flat = variance <= 10 * np.finfo(np.float64).eps * (q / n + self.mean_**2)
        self.scale_ = np.sqrt(np.where(flat, 1.0, variance))
        return self

    def widest(self, rows: Rows) -> Rows:
        """The rows as they are."""
        return rows

    def _row_map(self) -> RowMap:
        return Standardize(self.mean_, self.scale_)
