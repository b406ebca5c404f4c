"""Types of arrays and of their indexes; dtypes are documented in docstrings and checked at the public functions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]  # float32 or float64
Library = Any  # NumPy, or another namespace of the array API standard, whose arrays are called `Array` too
Plain = Any  # plain data with arrays inside
Index = slice | Array  # indexes some of the rows or columns
Place = tuple[slice, ...]  # of a piece of an array

# X: NumPy, SciPy and zarr arrays, pandas and Polars frames, Dask collections, a Corpus, Rows, lists; examined when read
RowsLike = object
# y, weights, domains: the same kinds with one value a row (of y also (n, c)), or None where there are none
ColumnLike = object
# a DataArray or Dataset of xarray, which need not be installed
Labelled = Any
