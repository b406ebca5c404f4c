"""Predictions of the cells of a grid on disk, as a zarr group that xarray opens: with dimensions and coordinates.

The tasks of a sweep write them block by block; a block of the grid is a chunk of the arrays. Cells with a bad feature
are NaN, or "" among text. The group is published as `prediction_store` publishes rows.
Shapes: c targets or classes.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import zarr

from bigkernel.arrays import Array, DType
from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import require_free, writing
from bigkernel.data.visible import log_of
from bigkernel.engine.grids import Grid
from bigkernel.engine.prediction_store import FORMAT
from bigkernel.errors import DataError
from bigkernel.statistics.blend import AnyPredictor, Deviations
from bigkernel.statistics.moments import add
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import NOT_COMPARED, Accumulator, Footprint

log = log_of(__name__)


@dataclass(frozen=True, eq=False)
class GridWriter:
    """A statistic that writes f of every block to the store at `path`; accumulates the number of rows."""

    predictor: AnyPredictor | Deviations
    path: str = field(metadata=NOT_COMPARED)
    grid: Grid  # without coordinates
    names: tuple[str, ...]  # of the arrays: of one for each column of the values, or of the labels
    decision: bool
    chunk_rows: int  # most rows of a chunk, which may have several blocks

    def zero(self) -> Accumulator:
        return {"rows": np.zeros(1)}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        return add(a, b)

    def footprint(self, block_rows: int) -> Footprint:
        predictor = self.predictor
        written = 3 * self.chunk_rows * predictor.width * 8
        return Footprint(predictor.flops_per_row, 8, predictor.work_bytes(block_rows) + written)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        values = self.predictor.values(chunk)
        bad = np.zeros(len(chunk), bool) if chunk.weight is None else np.asarray(chunk.weight) == 0
        values[bad] = np.nan
        arrays = dict(zip(self.names, values.T, strict=False))
        if (classes := self.predictor.classes) is not None:
            labels = classes[np.argmax(values, axis=1)].astype(_of_labels(classes))
            labels[bad] = np.nan if labels.dtype.kind == "f" else ""
            arrays = {self.names[0]: labels}
        if self.decision:
            arrays["decision"] = values
        with chunk.work.stage("write"):
            self._write(chunk, arrays)
        total["rows"] += len(chunk)

    def _write(self, chunk: Chunk, arrays: Mapping[str, Array]) -> None:
        if zarr_arrays.has_manifest(self.path):
            raise DataError(f"{self.path}: already published; write changed rows to a new store")
        group = zarr.open_group(self.path, mode="r+", zarr_format=3)
        ends = np.cumsum([math.prod(self.grid.block_shape(block)) for block in self.grid.blocks])
        first, last = np.searchsorted(ends, [chunk.start, chunk.start + len(chunk) - 1], side="right")
        at = 0
        for block in self.grid.blocks[first : last + 1]:
            shape = self.grid.block_shape(block)
            rows = slice(at, at := at + math.prod(shape))
            starts = [sum(sizes[:place]) for sizes, place in zip(self.grid.chunks, block, strict=True)]
            region = tuple(slice(start, start + size) for start, size in zip(starts, shape, strict=True))
            for name, values in arrays.items():
                array = group[name]
                assert isinstance(array, zarr.Array)
                with writing(self.path):
                    array.with_config({"write_empty_chunks": True})[region] = values[rows].reshape(
                        *shape, *values.shape[1:]
                    )


def _of_labels(classes: Array) -> DType:
    """Return the dtype in which labels are stored: numbers may be NaN, text may be ""."""
    return np.dtype(np.float64) if classes.dtype.kind in "biuf" else np.dtypes.StringDType()


def create(
    path: str | os.PathLike[str],
    predictor: AnyPredictor | Deviations,
    grid: Grid,
    targets: Sequence[Mapping[str, str]],
    *,
    chunk_rows: int,
    decision: bool,
    std: bool,
) -> GridWriter:
    """Create the empty arrays and the coordinates of a store in the (scratch) directory, if the disk has room."""
    steps = tuple(sizes[0] for sizes in grid.chunks)
    if any({*sizes[:-1]} - {sizes[0]} or sizes[-1] > sizes[0] for sizes in grid.chunks):
        raise DataError(f"X: expected chunks of equal size along every dimension, found {grid.chunks}; call chunk()")
    classes, c = predictor.classes, predictor.width // (1 + std)
    told = [dict(one) for one in targets] if len(targets) == (1 if classes is not None else c) else []
    told = told or [{"name": "prediction" if c == 1 or classes is not None else f"prediction_{i}"} for i in range(c)]
    if classes is not None:
        told = told[:1]
    names = [one.pop("name") for one in told]
    numbers: DType = np.dtype(np.float64)
    made: list[tuple[str, DType, tuple[int, ...]]] = [
        (name, numbers if classes is None else _of_labels(classes), ()) for name in names
    ]
    made += [(f"{name}_std", numbers, ()) for name in names if std]
    made += [("decision", numbers, (c,))] if decision else []
    require_free(path, math.prod(grid.shape) * sum(8 * math.prod(tail) for *_, tail in made), "the prediction store")
    attributes = {"kind": "predictions", "format": FORMAT}
    group = zarr.create_group(Path(path), zarr_format=3, attributes={zarr_arrays.ATTRIBUTE: attributes})
    stored = [name for name, coordinate in grid.coords.items() if _write_coordinate(group, name, coordinate)]
    beside = " ".join(name for name in stored if name not in grid.dims)
    for (name, dtype, tail), attrs in zip(made, told * (1 + std) + [{}], strict=False):
        dims = (*grid.dims, *(["class" if classes is not None else "target"] if tail else []))
        array = zarr_arrays.create(
            group, name, shape=(*grid.shape, *tail), chunks=(*steps, *tail), dtype=dtype, dims=dims
        )
        array.attrs.update(attrs | ({"coordinates": beside} if beside else {}))
    if decision and classes is not None:
        _write_coordinate(group, "class", classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not part of zarr's specification, but what xarray reads first
        zarr.consolidate_metadata(group.store, zarr_format=3)
    writer_names = (*names, *(f"{name}_std" for name in names if std))
    return GridWriter(
        predictor, str(Path(path).absolute()), replace(grid, coords={}), writer_names, decision, chunk_rows
    )


def _write_coordinate(group: zarr.Group, name: str, coordinate: object) -> bool:
    """Write a coordinate, dates as whole numbers since 1970; return False for one of objects, which is left out."""
    values, dims = np.asarray(coordinate), getattr(coordinate, "dims", (name,))
    attrs = {key: value for key, value in getattr(coordinate, "attrs", {}).items() if isinstance(value, str)}
    if values.dtype.kind == "M":
        unit = {"D": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds"}
        step = unit.get(np.datetime_data(values.dtype)[0], "nanoseconds")
        attrs |= {"units": f"{step} since 1970-01-01", "calendar": "proleptic_gregorian"}
        values = values.astype(np.int64)
    elif values.dtype.kind in "UT" or (values.dtype.kind == "O" and all(isinstance(one, str) for one in values.flat)):
        values = values.astype(np.dtypes.StringDType())
    elif values.dtype.kind not in "biuf":
        log.warning("coordinate %s of %s is not written: expected numbers, dates or text", name, values.dtype)
        return False
    array = zarr_arrays.create(
        group, name, shape=values.shape, chunks=values.shape, dtype=values.dtype, dims=tuple(map(str, dims))
    )
    array[...] = values
    array.attrs.update(attrs)
    return True
