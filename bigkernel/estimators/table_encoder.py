"""From tables with text, times and missing values to numbers: n rows, d columns of the table, p numbers a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, Self

import dask
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from bigkernel.arrays import Array, ColumnLike, DType, RowsLike
from bigkernel.data.labels import is_missing
from bigkernel.engine.rows import array_of_partitions, is_dask_frame
from bigkernel.errors import DataError
from bigkernel.estimators.base import set_parameters
from bigkernel.estimators.inputs import is_lazy

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    from sklearn.utils import Tags

_SAMPLE_ROWS = 100_000  # of a Dask DataFrame, from which a fit learns
_MOST_PLACES = 10_000  # of categories by frequency; rarer ones share the last place


@dataclass(frozen=True, eq=False)
class TableColumn:
    """What a fit learns of a column, which becomes one column of numbers, several, or none."""

    kind: str  # "number", "time" or "category"
    varies: bool  # numbers that do, and more than `n_flags` categories, become one column
    n_flags: int  # most labels with a column of 0 and 1
    labels: tuple[str | None, ...]  # the most frequent category first, None for missing values
    median: float = 0.0  # of the numbers that are not missing

    @classmethod
    def learn(cls, kind: str, values: Array, n_flags: int) -> Self:
        """Learn from values (n,), of which missing ones are NaN, or None among categories."""
        if kind == "category":
            counts = Counter(values.tolist())
            labels = sorted(counts, key=lambda label: (-counts[label], label or ""))[: max(n_flags, _MOST_PLACES)]
            return cls(kind, len(labels) > n_flags, n_flags, tuple(labels) if len(labels) > 1 else ())
        known = values[~np.isnan(values)]
        median = float(np.median(known)) if len(known) else 0.0
        return cls(kind, bool((known != median).any()), n_flags, (None,) * (0 < len(known) < len(values)), median)

    def encode(self, name: str, values: Array) -> Iterator[tuple[str, Array]]:
        """Yield the name and the values (n,) of each column of numbers."""
        if self.kind == "category":
            places = {label: place for place, label in enumerate(self.labels)}
            codes = np.array([places.get(label, len(places)) for label in values], np.int64)
            numbers = np.minimum(codes, len(places) - 1)
        else:
            codes = np.where(np.isnan(values), 0, 1)
            numbers = np.where(codes == 0, self.median, values)
        if self.varies:
            yield name, numbers
        for place, label in enumerate(self.labels[: self.n_flags]):
            yield f"{name} missing" if label is None else f"{name}={label}", codes == place


class TableEncoder(TransformerMixin, BaseEstimator):
    """Turn a table of numbers, categories and times into numbers without missing values.

    It takes frames of pandas, Polars and Dask, Arrow tables, and arrays with NaN. A column of one value is left out.

    * Numbers, also booleans: a missing one becomes the median of the fit. If the fit has missing ones, a column
      "NAME missing" of 0 and 1 follows. Times are seconds since 1970 (UTC), durations are seconds.
    * Categories (text, pandas' category, mixed objects): a column "NAME=CATEGORY" of 0 and 1 for each, at most for the
      `max_categories` most frequent ones. If there are more, a column of places by frequency, from 0, is added. Missing
      ones are a category. One that the fit has not seen has zeros, and the last place.
    * A Dask DataFrame is not loaded. `fit` learns all, also medians, from at most 100,000 rows, every k-th of each
      partition; `transform` gives a Dask array with a chunk for each partition.

    Parameters
    ----------
    max_categories : int
        Largest number of categories with columns of their own.

    Attributes
    ----------
    columns_ : tuple of d values with `kind`, `median`, and `labels` by frequency

    Examples
    --------
    >>> from bigkernel import TableEncoder
    >>> encoder = TableEncoder()
    >>> encoder.fit_transform([["red", 1.5], ["blue", None], ["red", 2.5]])
    array([[1. , 0. , 1.5, 0. ],
           [0. , 1. , 2. , 1. ],
           [1. , 0. , 2.5, 0. ]])
    >>> encoder.get_feature_names_out().tolist()
    ['x0=red', 'x0=blue', 'x1', 'x1 missing']
    """

    _parameter_constraints: ClassVar = {"max_categories": [Interval(Integral, 1, None, closed="left")]}

    def __init__(self, max_categories: int = 16) -> None:
        set_parameters(self, locals())

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Learn medians and categories; `DataError` for columns of other types, or if none varies."""
        self._validate_params()
        table = self._table(X, reset=True)
        if is_dask_frame(table):
            most = -(-_SAMPLE_ROWS // table.npartitions)
            table = table.map_partitions(lambda part: part.iloc[:: max(1, -(-len(part) // most))]).compute()
        read = (_read(table, place, name) for place, name in enumerate(_check_feature_names_in(self)))
        self.columns_ = tuple(TableColumn.learn(*one, self.max_categories) for one in read)
        if not len(self.get_feature_names_out()):
            raise DataError(f"X: all rows are equal (n_samples = {len(table)}); expected rows that vary")
        return self

    def transform(self, X: RowsLike) -> Array | da.Array:
        """Encode a table (n, d) as numbers (n, p), lazily for a Dask frame."""
        check_is_fitted(self)
        table, width, dtype = self._table(X, reset=False), len(self.get_feature_names_out()), np.dtype(np.float64)
        if not is_dask_frame(table):
            return _encode(table, (len(table), width), dtype, "X", self)
        encode, model = dask.delayed(_encode, pure=True), dask.delayed(self, traverse=False, pure=True)
        return array_of_partitions(table, "X", (width,), dtype, encode, model)

    def get_feature_names_out(self, input_features: ColumnLike = None) -> Array:
        """Return the names (p,) of the numbers."""
        check_is_fitted(self)
        each = zip(self.columns_, _check_feature_names_in(self, input_features), strict=True)
        return np.array([own for column, name in each for own, _ in column.encode(name, np.empty(0))], object)

    def _table(self, X: RowsLike, *, reset: bool) -> dd.DataFrame | Array:
        """Return X as a frame or array; set (`reset`) or compare its number and names of columns."""
        if hasattr(X, "to_pandas"):  # Polars and Arrow
            X = X.to_pandas(date_as_object=False)
        framed = hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2
        try:
            if is_lazy(X) and not framed:
                raise DataError(f"expected a frame, or an array in memory, found {type(X).__name__}")
            own = None if hasattr(X, "dtype") else object  # NumPy would make text of a list of numbers and text
            options = {"skip_check_array": True} if framed else {"dtype": own, "ensure_all_finite": "allow-nan"}
            valid = validate_data(self, X._meta if is_dask_frame(X) else X, reset=reset, **options)
        except (ValueError, TypeError) as error:
            raise DataError(f"X: {error}") from error
        return X if framed else valid

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _read(table: dd.DataFrame | Array, place: int, name: str, expected: str = "") -> tuple[str, Array]:
    """Return the kind and the values of a column; they have to be of the expected kind, or missing."""
    column: dd.Series = (table.iloc if hasattr(table, "iloc") else table)[:, place]
    if column.dtype.kind in "biuf":
        kind, values = "number", np.asarray(column, np.float64)
    elif column.dtype.kind in "mM":
        times = np.asarray(column, f"{column.dtype.kind}8[us]")
        kind, values = "time", (times - np.zeros((), times.dtype)) / np.timedelta64(1, "s")
    else:
        named = column.cat.rename_categories(str) if hasattr(column.dtype, "categories") else column
        values = np.asarray(named, object)
        missing = np.array([is_missing(value) for value in values], bool)
        types = {type(value) for value in values[~missing]}
        if wrong := sorted(one.__name__ for one in types if not issubclass(one, str | Real | Decimal)):
            raise DataError(f"X: column {name!r}: expected numbers, text, categories or times, found {wrong[0]}")
        if expected == "category" or any(issubclass(one, str) for one in types):
            texts = (None if gone else str(value) for gone, value in zip(missing, values, strict=True))
            kind, values = "category", np.array([*texts], object)
        else:
            kind, values = "number", np.where(missing, np.nan, values).astype(np.float64)
    if expected not in ("", kind) and (kind == "category" or not np.isnan(values).all()):
        raise DataError(f"X: column {name!r}: expected values of the kind {expected}, as in the fit, found {kind}")
    if kind != "category" and np.isinf(values).any():
        raise DataError(f"X: column {name!r}: found infinity; expected finite numbers, or NaN for missing ones")
    return kind, np.full(len(values), None) if expected == "category" != kind else values


def _encode(table: dd.DataFrame | Array, shape: tuple[int, ...], dtype: DType, what: str, fit: TableEncoder) -> Array:
    """Return a table, or a partition of one, as numbers."""
    encoded, column = np.empty(shape, dtype), 0
    for place, (name, own) in enumerate(zip(_check_feature_names_in(fit), fit.columns_, strict=True)):
        if own.varies or own.labels:
            for _, values in own.encode(name, _read(table, place, name, own.kind)[1]):
                encoded[:, column], column = values, column + 1
    return encoded
