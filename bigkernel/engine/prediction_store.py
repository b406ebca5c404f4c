"""Predictions on disk: written by the tasks of a sweep, chunk by chunk, and published when complete.

A group of kind "predictions" with `prediction` (n,) or (n, c): labels (positions in `classes` if these are text) or
numbers; and, if requested, `decision` (n, c), the values of f, and `std`, the standard deviations of observations, of
the shape of the predictions. The ids of the rows, or their numbers in the source, are an array under their own name, in
`ids`.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import zarr

from bigkernel.arrays import Array, Place
from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import require_free, token_of, writing
from bigkernel.data.check import check_chunks
from bigkernel.engine.context import forget
from bigkernel.engine.rows import Rows, Source
from bigkernel.engine.sweep import execution, sweep
from bigkernel.errors import DataError
from bigkernel.events.job import Incident, emit
from bigkernel.statistics.blend import AnyPredictor, Deviations
from bigkernel.statistics.statistic import Shapes, Statistic
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import NOT_COMPARED, Accumulator, Footprint

FORMAT = 2
WHAT = "predict"  # the name of the sweep that writes them


@dataclass(frozen=True, eq=False)
class StoreWriter(Statistic):
    """Base of the statistics that write f of every chunk to the store at `path`; accumulates the number of rows."""

    writes: ClassVar[bool] = True
    predictor: AnyPredictor | Deviations
    path: str = field(metadata=NOT_COMPARED)
    chunk_rows: int  # most rows of a chunk
    decision: bool

    def shapes(self) -> Shapes:
        return {"rows": (1,)}

    def footprint(self, block_rows: int) -> Footprint:
        predictor = self.predictor
        written = 3 * self.chunk_rows * predictor.width * 8
        return Footprint(predictor.flops_per_row, self.partial_bytes, predictor.work_bytes(block_rows) + written)

    @abstractmethod
    def pieces(self, chunk: Chunk) -> list[tuple[Place, dict[str, Array]]]:
        """Return what is written for the rows of a chunk: whole chunks of arrays by name, each with its place."""

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """Write the values of the chunk; `DataError` if the store is published, or its chunks are others."""
        pieces = self.pieces(chunk)
        with chunk.work.stage("write"):
            if zarr_arrays.has_manifest(self.path):
                raise DataError(f"{self.path}: already published; write changed rows to a new store")
            group = zarr.open_group(self.path, mode="r+", zarr_format=3)
            for place, arrays in pieces:
                for name, values in arrays.items():
                    array = group[name]
                    assert isinstance(array, zarr.Array)
                    start, step = place[0].start, array.chunks[0]
                    count = min(step, array.shape[0] - start)
                    if start % step or len(values) != count:
                        found = f"found {len(values)} from row {start}"
                        raise DataError(f"{self.path}/{name}: expected {count} rows in chunk {start // step}, {found}")
                    with writing(self.path):
                        array.with_config({"write_empty_chunks": True})[place] = values
        total["rows"] += len(chunk)


@dataclass(frozen=True, eq=False)
class PredictionWriter(StoreWriter):
    """Writes chunks of rows, each one chunk of the arrays."""

    flat: bool
    std: bool = False

    def pieces(self, chunk: Chunk) -> list[tuple[Place, dict[str, Array]]]:
        values = self.predictor.values(chunk)
        c = self.predictor.width // (1 + self.std)
        rows = {"std": stored_form(self.predictor, values[:, c:], flat=self.flat)} if self.std else {}
        rows["prediction"] = stored_form(self.predictor, values[:, :c], flat=self.flat)
        if self.decision:
            rows["decision"] = values[:, :c]
        return [((slice(chunk.start, chunk.start + len(chunk)),), rows)]


def stored_form(predictor: AnyPredictor | Deviations, values: Array, *, flat: bool) -> Array:
    """Return values (n, c) as integer labels, positions of text labels, or the numbers themselves."""
    if predictor.classes is not None:
        best: Array = np.argmax(values, axis=1)
        return best if predictor.classes.dtype.kind not in "iub" else predictor.classes[best].astype(np.int64)
    return values[:, 0] if flat else values


def create(
    path: str | os.PathLike[str],
    predictor: AnyPredictor | Deviations,
    n_rows: int,
    chunk_rows: int,
    *,
    decision: bool,
    flat: bool,
    std: bool = False,
    ids: Mapping[str, Source] | None = None,
) -> None:
    """Create the empty arrays of a prediction store in the (scratch) directory `path`, if the disk has room.

    `ids` are written at once.
    """
    classes = [] if predictor.classes is None else predictor.classes.tolist()
    c, ids = predictor.width // (1 + std), ids or {}
    sample = stored_form(predictor, np.zeros((0, c)), flat=flat)
    row_bytes = 8 * ((1 + std) * math.prod(sample.shape[1:]) + (c if decision else 0) + len(ids))
    require_free(path, n_rows * row_bytes, "the prediction store")
    weights = [0.0] if predictor.log_weights is None else predictor.log_weights.tolist()
    attributes = {"kind": "predictions", "format": FORMAT, "classes": classes, "ids": list(ids), "log_weights": weights}
    group = zarr.create_group(Path(path), zarr_format=3, attributes={zarr_arrays.ATTRIBUTE: attributes})
    shapes = {"prediction": sample.shape[1:]}
    if decision:
        shapes["decision"] = (c,)
    if std:
        shapes["std"] = sample.shape[1:]
    labels = range(c) if predictor.classes is None else classes
    columns = [f"{name}_{label}" for name in zarr_arrays.OUTPUTS for label in labels]  # of tables
    zarr_arrays.require_names([*ids], [*zarr_arrays.OUTPUTS, *columns], stored=False)
    for name, tail in shapes.items():
        dtype = sample.dtype if name == "prediction" else np.float64
        zarr_arrays.create(group, name, shape=(n_rows, *tail), chunks=(chunk_rows, *tail), dtype=dtype)
    for name, source in ids.items():
        array = zarr_arrays.create(group, name, shape=(n_rows,), chunks=(chunk_rows,), dtype=source.dtype)
        for start in range(0, n_rows, chunk_rows):
            zarr_arrays.write(array, start, source.read(start, min(start + chunk_rows, n_rows)))


def kept_for_run() -> tuple[str, bool]:
    """Return `keep` and `resume` of `zarr_arrays.publishing` under the current run; "" and False without one."""
    job = execution.get().job
    if job is None:
        return "", False
    return token_of(job.path), job.resume and Path(job.path, WHAT, "manifest.json").exists()


def fill(rows: Rows, writer: StoreWriter) -> None:
    """Sweep `rows` through `writer` until every chunk of its store is written and verified.

    Receipts of a resumed sweep record finished segments, but not that their chunks are still on disk: these are
    verified, and all are written again if one is damaged.
    """
    swept = sweep(rows, writer, what=WHAT)
    if any(receipt.resumed for receipt in swept.receipts):
        damage = _first_damage(writer.path)
        if damage is not None:
            emit(Incident("damage", f"{WHAT}: kept rows are damaged ({damage}): writing all rows again"))
            forget(WHAT)
            sweep(rows, writer, what=WHAT)
    _require_chunks(writer.path)


def _first_damage(path: str) -> DataError | None:
    group = zarr.open_group(path, mode="r", zarr_format=3)
    # any value may be written; only changed bytes are damage
    arrays = (check_chunks(array, name, lambda *_: "") for name, array in sorted(group.arrays()))
    return next((checked.damage for chunks in arrays for checked in chunks if checked.damage), None)


def _require_chunks(path: str | os.PathLike[str]) -> zarr.Group:
    group = zarr.open_group(path, mode="r", zarr_format=3)
    for _, array in sorted(group.arrays()):
        zarr_arrays.require_chunks(array)
    return group


def open_predictions(path: str | os.PathLike[str]) -> zarr.Group:
    """Open a prediction store; raise `DataError` if it is none, or chunks are missing."""
    zarr_arrays.open_store(path, "predictions")
    return _require_chunks(os.fspath(path))
