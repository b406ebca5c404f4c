"""From tables with text, times and missing values to numbers: n rows, d columns of the table, p numbers a row."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Self

import dask
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from bigkernel.arrays import Array, ColumnLike, DType, RowsLike
from bigkernel.data.containers import array_of_partitions, is_dask_frame, is_frame, plain
from bigkernel.data.table import TableColumn, TableEncoding, cells_of
from bigkernel.errors import DataError
from bigkernel.estimators.base import parameters
from bigkernel.estimators.inputs.columns import is_lazy
from bigkernel.estimators.transforms.rows import framing_in_memory

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    from sklearn.utils import Tags

SAMPLE_ROWS = 100_000  # of a Dask DataFrame or a file, from which a fit learns


@framing_in_memory
@parameters
class TableEncoder(TransformerMixin, BaseEstimator):
    """Turn a table of numbers, categories and times into numbers without missing values.

    It takes frames of pandas, Polars and Dask, Arrow tables, and arrays with NaN. A column of one value is left out.

    * Numbers, also booleans: a missing one becomes the median of the fit. If the fit has missing ones, a column
      "NAME missing" of 0 and 1 follows. Times, also as text in ISO 8601 ("2013-01-31 05:30"), are seconds since 1970
      (UTC), durations and times of day are seconds.
    * Categories (other text, pandas' category, mixed objects): a column "NAME=CATEGORY" of 0 and 1 for each, at most
      for the `max_categories` most frequent ones. If there are more, a column of places by frequency, from 0, is added.
      Missing ones are a category. One that the fit has not seen has zeros, and the last place. They are compared as
      values: 1, 1.0 and True are equal, "1" is another.
    * `CategoriesWarning` if nearly all texts of a column are different, or nearly all are unknown to the fit.
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

    max_categories: int = 16
    _target = ""  # column of labels of the table, if it was read from a file

    @classmethod
    def of(cls, encoding: TableEncoding) -> Self:
        """Return the fitted encoder of what was learned."""
        made = cls(max((column.n_flags for column in encoding.columns), default=1))
        made.columns_, made.n_features_in_ = encoding.columns, len(encoding.names)
        made.feature_names_in_ = np.array(encoding.names, object)
        made._target = encoding.target
        return made

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Learn medians and categories; `DataError` for columns of other types, or if none varies."""
        self._validate_params()
        table = self._table(X, reset=True)
        if is_dask_frame(table):
            most = -(-SAMPLE_ROWS // table.npartitions)
            table = table.map_partitions(lambda part: part.iloc[:: max(1, -(-len(part) // most))]).compute()
        names = _check_feature_names_in(self)
        each = zip(names, cells_of(table, names), strict=True)
        self.columns_ = tuple(TableColumn.learn(str(name), cells, self.max_categories) for name, cells in each)
        if not any(column.varies or column.labels for column in self.columns_):
            raise DataError(f"X: all rows are equal (n_samples = {len(table)}); expected rows that vary")
        return self

    def transform(self, X: RowsLike) -> Array | da.Array:
        """Encode a table (n, d) as numbers (n, p), lazily for a Dask frame."""
        check_is_fitted(self)
        table, fit, dtype = self._table(X, reset=False), self.encoding(), np.dtype(np.float64)
        if not is_dask_frame(table):
            return fit.encode(table, dtype)
        encode, model = dask.delayed(_encode, pure=True), dask.delayed(fit, traverse=False, pure=True)
        return array_of_partitions(table, "X", (len(fit.outputs),), dtype, encode, model)

    def get_feature_names_out(self, input_features: ColumnLike = None) -> Array:
        """Return the names (p,) of the numbers."""
        check_is_fitted(self)
        return np.array(self.encoding(input_features).outputs, object)

    def encoding(self, input_features: ColumnLike = None) -> TableEncoding:
        """Return what was learned, which needs NumPy alone."""
        names = tuple(map(str, _check_feature_names_in(self, input_features)))
        return TableEncoding(names, self.columns_, self._target)

    def _table(self, X: RowsLike, *, reset: bool) -> dd.DataFrame | Array:
        """Return X as a frame or array; set (`reset`) or compare its number and names of columns."""
        framed = is_frame(X) or is_dask_frame(X)
        try:
            if is_lazy(X) and not framed:
                raise DataError(f"expected a frame, or an array in memory, found {type(X).__name__}")
            X = plain(X, labels=True) if isinstance(X, np.ma.MaskedArray) else X
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


def _encode(table: dd.DataFrame | Array, shape: tuple[int, ...], dtype: DType, what: str, fit: TableEncoding) -> Array:
    """Return a table, or a partition of one, as numbers."""
    return fit.encode(table, dtype)
