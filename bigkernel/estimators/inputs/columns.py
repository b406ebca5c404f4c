"""Columns beside the rows: weights and domains as users pass them, and what is counted from columns alone.

The domain of a row is an integer, or a name of `sample_domain`, and an integer in the column `domain`.
Tests: estimators/test_dica.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import zarr
from sklearn.utils.validation import _check_sample_weight

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.config import settings
from bigkernel.data.containers import in_memory, is_dask_array, is_dask_frame
from bigkernel.data.corpus import Corpus
from bigkernel.data.labels import codes_of_names
from bigkernel.engine.grids import is_grid
from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.solvers.pseudo_labels import label_slots
from bigkernel.statistics.domain_cells import MOST_CELLS, Cells
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds


def is_lazy(X: RowsLike) -> bool:
    """Return whether X is read chunk by chunk rather than held in memory."""
    lazy = isinstance(X, Rows | Corpus | zarr.Array) or is_dask_frame(X) or is_dask_array(X) or is_grid(X)
    return lazy or (hasattr(X, "dims") and is_dask_array(getattr(X, "data", None)))  # of xarray


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
    for chunk in column_chunks(rows, "y", "domain", "group", "fold"):
        place = cells.of(chunk) if folds is None else label_slots(cells, folds, chunk)
        counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)
    return counts


def column_chunks(rows: Rows, *names: str) -> Iterator[Chunk]:
    """Yield columns of the rows, step by step."""
    columns = {name: source for name, source in rows.columns.items() if name in names}
    for start, stop in pairwise(rows.bounds(settings())):
        chunk = Chunk(np.empty((stop - start, 0)), start)
        for name, source in columns.items():
            setattr(chunk, name, source.read(start, stop))
        yield chunk
