"""Any values as a source: arrays, frames, sparse matrices; and windows of sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from scipy import sparse

from bigkernel.engine.frames import is_dask_array, unwrapped
from bigkernel.engine.sources import DaskSource, NumpySource, Source, SparseSource, Window, ZarrSource
from bigkernel.errors import DataError


def window(source: Source, start: int, stop: int) -> Source:
    """Rows start … stop of a source as a source of their own."""
    if isinstance(source, NumpySource):
        return NumpySource(source.read(start, stop))
    if isinstance(source, SparseSource):
        return SparseSource(source.values[start:stop])
    if isinstance(source, DaskSource):
        return DaskSource(source.array[start:stop])
    return Window(source, start, stop - start)


def source_of(values: Any, name: str) -> Source:
    """An array or a frame as a source; a `DataError` that names it where it holds no numbers."""
    values = unwrapped(values, name)
    if is_dask_array(values):
        if any(np.isnan(size) for size in values.shape):
            raise DataError(f"{name}: a Dask array of unknown chunk sizes; call compute_chunk_sizes() first")
        if values.ndim == 2 and values.numblocks[1] > 1:
            values = values.rechunk({1: -1})
        source: Source = DaskSource(values)
    elif isinstance(values, zarr.Array):
        source = ZarrSource(foreign=values)
    elif sparse.issparse(values):
        source = SparseSource(sparse.csr_array(values))
    else:
        masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        if masked is not None and masked.any():
            row = int(np.argwhere(masked)[0, 0])
            raise DataError(f"{name}: row {row} has masked values; fill them or leave the row out")
        source = NumpySource(np.asarray(values))
    if source.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected numbers, found dtype {source.dtype}")
    return source
