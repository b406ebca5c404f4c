"""Dask arrays as they are read and made here: of the class of `dask.array.core`, whatever other classes there are.

With `array.query-planning`, dask.array has another class, and the package dask-array has its own: both are collections
with chunks, and a graph that makes an array of this class. Importing this loads dask.array, so its users do that late.
"""

from __future__ import annotations

from typing import Any

from dask.array.core import Array as Array
from dask.array.core import blockwise as blockwise
from dask.array.core import broadcast_to as broadcast_to
from dask.array.core import concatenate as concatenate
from dask.array.core import from_array
from dask.array.core import from_delayed as from_delayed
from dask.array.core import map_blocks as map_blocks
from dask.array.core import normalize_chunks as normalize_chunks
from dask.array.reshape import reshape_blockwise as reshape_blockwise
from dask.array.wrap import zeros as zeros
from dask.base import is_dask_collection
from dask.core import flatten


def as_dask_array(values: Any) -> Array:
    """Return an array of NumPy, or a collection with chunks, as a Dask array."""
    if isinstance(values, Array):
        return values
    if not is_dask_collection(values):
        return from_array(values, chunks=-1 if values.dtype.kind == "O" else "auto")
    name, *_ = next(flatten(values.__dask_keys__()))
    return Array(dict(values.__dask_graph__()), name, values.chunks, dtype=values.dtype)
