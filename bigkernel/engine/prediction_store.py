"""Predictions on disk: written by the tasks of a sweep, chunk by chunk, and published when all are there.

A group of kind "predictions" with `prediction` (n,) or (n, c): labels (positions in `classes` where these are text) or
numbers; and, where asked, `decision` (n, c), the values of f, and `std` (n,), the standard deviation of an observation.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import require_free
from bigkernel.data.corpus import write_chunk
from bigkernel.data.fingerprint import NOT_COMPARED
from bigkernel.errors import DataError
from bigkernel.statistics.moments import add
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

Array = NDArray[Any]
FORMAT = 2


@dataclass(frozen=True, eq=False)
class PredictionWriter:
    """A statistic that writes f of every chunk to the store at `path`; accumulates the number of rows."""

    predictor: Predictor
    path: str = field(metadata=NOT_COMPARED)
    chunk_rows: int
    decision: bool
    flat: bool
    std: bool = False

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        return {"rows": np.zeros(1)}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """See `Statistic`."""
        return add(a, b)

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        predictor = self.predictor
        written = 3 * self.chunk_rows * predictor.width * 8
        return Footprint(predictor.flops_per_row, 8, predictor.work_bytes(block_rows) + written)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        values = self.predictor.values(chunk)
        index, rest = divmod(chunk.start, self.chunk_rows)
        if rest:
            raise DataError(f"{self.path}: row {chunk.start} does not begin a chunk of {self.chunk_rows} rows")
        rows = {"std": values[:, -1]} if self.std else {}
        values = values[:, :-1] if self.std else values
        rows["prediction"] = stored_form(self.predictor, values, flat=self.flat)
        if self.decision:
            rows["decision"] = values
        with chunk.work.stage("write"):
            write_chunk(self.path, index, self.chunk_rows, rows)
        total["rows"] += len(chunk)


def stored_form(predictor: Predictor, values: Array, *, flat: bool) -> Array:
    """The stored form of values (n, c): integer labels, positions of text labels, or the numbers themselves."""
    if predictor.classes is not None:
        best: Array = np.argmax(values, axis=1)
        return best if predictor.classes.dtype.kind not in "iub" else predictor.classes[best].astype(np.int64)
    return values[:, 0] if flat else values


def create(
    path: str | os.PathLike[str],
    predictor: Predictor,
    n_rows: int,
    chunk_rows: int,
    *,
    decision: bool,
    flat: bool,
    std: bool = False,
) -> None:
    """Create the empty arrays of a prediction store in the (scratch) directory `path`.

    Raises
    ------
    PlanTooLarge
        The file system of `path` has less free than the predictions take.
    """
    classes = [] if predictor.classes is None else predictor.classes.tolist()
    c = predictor.coef.shape[1]
    sample = stored_form(predictor, np.zeros((0, c)), flat=flat)
    row_bytes = 8 * (math.prod(sample.shape[1:]) + (c if decision else 0) + std)
    require_free(path, n_rows * row_bytes, "the prediction store")
    attributes = {zarr_arrays.ATTRIBUTE: {"kind": "predictions", "format": FORMAT, "classes": classes}}
    group = zarr.create_group(Path(path), zarr_format=3, attributes=attributes)
    shapes = {"prediction": sample.shape[1:]}
    if decision:
        shapes["decision"] = (c,)
    if std:
        shapes["std"] = ()
    for name, tail in shapes.items():
        dtype = sample.dtype if name == "prediction" else np.float64
        zarr_arrays.create(group, name, shape=(n_rows, *tail), chunks=(chunk_rows, *tail), dtype=dtype)


def open_predictions(path: str | os.PathLike[str]) -> zarr.Group:
    """Open a prediction store, every chunk there.

    Raises
    ------
    DataError
        Not a prediction store, or chunks are missing.
    """
    group, _ = zarr_arrays.open_group(path, "predictions")
    for name in zarr_arrays.array_names(group):
        zarr_arrays.require_chunks(zarr_arrays.open_array(group, name))
    return group
