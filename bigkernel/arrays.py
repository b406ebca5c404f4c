"""The type of arrays whose dtype is told by docstrings and checked where they enter."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

# X: NumPy, SciPy and zarr arrays, pandas and Polars frames, Dask collections, a Corpus, Rows, lists; examined when read
RowsLike = object
# y, weights, domains: the same kinds with one value a row (of y also (n, c)), or None where there are none
ColumnLike = object
