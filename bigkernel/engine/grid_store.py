"""Predictions of the cells of a grid on disk, as a zarr group that xarray opens: with dimensions and coordinates.

The tasks of a sweep write them block by block; a block of the grid is a chunk of the arrays. Cells with a bad feature
are NaN, or "" among text. The group is published as `prediction_store` publishes rows.
Shapes: c targets or classes.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import zarr

from bigkernel.arrays import Array, DType, Labelled, Place
from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import require_free
from bigkernel.data.cf import decoded
from bigkernel.data.visible import log_of
from bigkernel.engine.grids import Grid, label_cells, label_dtype
from bigkernel.engine.prediction_store import FORMAT, Location, StoreWriter
from bigkernel.errors import DataError
from bigkernel.statistics.blend import AnyPredictor, Deviations
from bigkernel.streaming.chunk import Chunk

log = log_of(__name__)


@dataclass(frozen=True, eq=False)
class GridWriter(StoreWriter):
    """Writes the blocks of a grid, each one chunk of the arrays; a chunk of rows may have several."""

    grid: Grid  # without coordinates
    names: tuple[str, ...]  # of the arrays: one for each column of the values, or one of labels

    def pieces(self, chunk: Chunk) -> list[tuple[Place, dict[str, Array]]]:
        values = self.predictor.values(chunk)
        if chunk.weight is not None:
            values[np.asarray(chunk.weight) == 0] = np.nan  # bad rows
        arrays = dict(zip(self.names, values.T, strict=False))
        if (classes := self.predictor.classes) is not None:
            arrays = {self.names[0]: label_cells(values, classes)}
        if self.decision:
            arrays["decision"] = values
        ends = np.cumsum([math.prod(self.grid.block_shape(block)) for block in self.grid.blocks])
        first, last = np.searchsorted(ends, [chunk.start, chunk.start + len(chunk) - 1], side="right")
        at, pieces = 0, []
        for block in self.grid.blocks[first : last + 1]:
            shape = self.grid.block_shape(block)
            rows = slice(at, at := at + math.prod(shape))
            starts = [sum(sizes[:place]) for sizes, place in zip(self.grid.chunks, block, strict=True)]
            place = tuple(slice(start, start + size) for start, size in zip(starts, shape, strict=True))
            each = {name: one[rows].reshape(*shape, *one.shape[1:]) for name, one in arrays.items()}
            pieces.append((place, each))
        return pieces


def create(
    place: Location,
    predictor: AnyPredictor | Deviations,
    grid: Grid,
    targets: Sequence[Mapping[str, str]] | None,
    *,
    chunk_rows: int,
    decision: bool,
    std: bool,
) -> GridWriter:
    """Create the empty arrays and the coordinates of a store in the (scratch) `place`, if the disk has room."""
    steps = tuple(sizes[0] for sizes in grid.chunks)
    if any({*sizes[:-1]} - {sizes[0]} or sizes[-1] > sizes[0] for sizes in grid.chunks):
        raise DataError(f"X: expected chunks of equal size along every dimension, found {grid.chunks}; call chunk()")
    classes, c = predictor.classes, predictor.width // (1 + std)
    last = "target" if classes is None else "class"  # dimension of decision values
    each = grid.outputs(
        targets, c if classes is None else 1, std=std, more=["decision", last] if decision else [], stored=True
    )
    stored: DType = np.dtype(np.float64) if classes is None else label_dtype(classes)
    dtype: DType = np.dtypes.StringDType() if stored.kind in "UT" else stored
    made = [(name, dtype, (), attrs) for name, attrs in each]
    names, tail = tuple(name for name, *_ in made), (c,)
    arrays = [*made, *([("decision", np.dtype(np.float64), tail, {})] if decision else [])]
    needed_bytes = math.prod(grid.shape) * sum(8 * math.prod(more) for _, _, more, _ in arrays)
    require_free(place, needed_bytes, "the prediction store")
    attributes = {"kind": "predictions", "format": FORMAT, "dims": list(grid.dims)}
    group = zarr.create_group(place, zarr_format=3, attributes={zarr_arrays.ATTRIBUTE: attributes})
    written = [name for name, coordinate in grid.coords.items() if _write_coordinate(group, name, coordinate)]
    auxiliary = " ".join(name for name in written if name not in grid.dims)
    for name, kind, more, attrs in arrays:
        dims = (*grid.dims, *([last] if more else []))
        array = zarr_arrays.create(
            group, name, shape=(*grid.shape, *more), chunks=(*steps, *more), dtype=kind, dims=dims
        )
        array.attrs.update(attrs | ({"coordinates": auxiliary} if auxiliary else {}))
    if decision and classes is not None:
        _write_coordinate(group, "class", sys.modules["xarray"].DataArray(classes, dims="class"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not part of zarr's specification, but what xarray reads first
        zarr.consolidate_metadata(group.store, group.path, zarr_format=3)
    return GridWriter(predictor, place, chunk_rows, decision, replace(grid, coords={}), names)


def _write_coordinate(group: zarr.Group, name: str, coordinate: Labelled) -> bool:
    """Write a coordinate, dates of any calendar as numbers; return False for one of objects, which is left out."""
    plain = decoded(coordinate).compute().variable.drop_encoding()
    coded = sys.modules["xarray"].conventions.encode_cf_variable(plain)
    values: Array = coded.values
    if values.dtype.kind in "UT" or (values.dtype.kind == "O" and all(isinstance(one, str) for one in values.flat)):
        values = values.astype(np.dtypes.StringDType())
    elif values.dtype.kind not in "biuf":
        log.warning("coordinate %s of %s is not written: expected numbers, dates or text", name, values.dtype)
        return False
    array = zarr_arrays.create(
        group, name, shape=values.shape, chunks=values.shape, dtype=values.dtype, dims=tuple(map(str, coded.dims))
    )
    array[...] = values
    array.attrs.update({key: value for key, value in coded.attrs.items() if isinstance(value, str)})
    return True
