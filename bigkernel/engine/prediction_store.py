"""Predictions on disk: written by the tasks of a sweep, chunk by chunk, and published when complete.

A group of kind "predictions" with `prediction` (n,) or (n, c): labels (positions in `classes` if these are text) or
numbers; and, if requested, `decision` (n, c), the values of f, and `std`, the standard deviations of observations, of
the shape of the predictions. The ids of the rows, or their numbers in the source, are an array under their own name, in
`ids`.

In a store nothing can be renamed, but each object appears whole. While a group is written, its own zarr.json has
another name, `manifest/TOKEN/zarr.json`: no reader finds a group, nor does a task of another writer. It gets its name
as the last object. In stores of icechunk it has it at once, as the caller's commit publishes.
"""

from __future__ import annotations

import math
import os
import re
import uuid
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath, WrapperStore

from bigkernel.arrays import Array, Place
from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import require_free, require_target, token_of, writing
from bigkernel.data.check import check_chunks
from bigkernel.data.readers.stores import is_url, naming, open_store
from bigkernel.data.run_lock import claimed
from bigkernel.engine.context import forget
from bigkernel.engine.rows import Rows, Source
from bigkernel.engine.sweep import execution, sweep
from bigkernel.errors import ChunkMissingError, ConfigError, DataError
from bigkernel.events.job import Incident, emit
from bigkernel.statistics.blend import AnyPredictor, Deviations
from bigkernel.statistics.statistic import Shapes, Statistic
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import NOT_COMPARED, Accumulator, Footprint

FORMAT = 2
Target: TypeAlias = str | os.PathLike[str] | Store | StorePath
Location: TypeAlias = Path | StorePath
WHAT = "predict"  # the name of the sweep that writes them


@dataclass(frozen=True, eq=False)
class StoreWriter(Statistic):
    """Base of the statistics that write f of every chunk to the store at `place`; accumulates the number of rows."""

    writes: ClassVar[bool] = True
    predictor: AnyPredictor | Deviations
    place: Location = field(metadata=NOT_COMPARED)
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
            path = self.place if isinstance(self.place, Path) else None
            if path and zarr_arrays.has_manifest(path):
                raise DataError(f"{self.place}: already published; write changed rows to a new store")
            group = zarr.open_group(self.place, mode="r+", zarr_format=3)
            for place, arrays in pieces:
                for name, values in arrays.items():
                    array = group[name]
                    assert isinstance(array, zarr.Array)
                    start, step = place[0].start, array.chunks[0]
                    count = min(step, array.shape[0] - start)
                    if start % step or len(values) != count:
                        found = f"found {len(values)} from row {start}"
                        raise DataError(f"{self.place}/{name}: expected {count} rows in chunk {start // step}, {found}")
                    with writing(path) if path else nullcontext():
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
    place: Location,
    predictor: AnyPredictor | Deviations,
    n_rows: int,
    chunk_rows: int,
    *,
    decision: bool,
    flat: bool,
    std: bool = False,
    ids: Mapping[str, Source] | None = None,
) -> None:
    """Create the empty arrays of a prediction store in the (scratch) `place`, if the disk has room.

    `ids` are written at once.
    """
    classes = [] if predictor.classes is None else predictor.classes.tolist()
    c, ids = predictor.width // (1 + std), ids or {}
    sample = stored_form(predictor, np.zeros((0, c)), flat=flat)
    row_bytes = 8 * ((1 + std) * math.prod(sample.shape[1:]) + (c if decision else 0) + len(ids))
    require_free(place, n_rows * row_bytes, "the prediction store")
    weights = [0.0] if predictor.log_weights is None else predictor.log_weights.tolist()
    attributes = {"kind": "predictions", "format": FORMAT, "classes": classes, "ids": list(ids), "log_weights": weights}
    group = zarr.create_group(place, zarr_format=3, attributes={zarr_arrays.ATTRIBUTE: attributes})
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


def target_of(target: Target) -> Location:
    """Return the path, or the place in a store of zarr or at a URL, where predictions can be written; else raise."""
    if isinstance(target, str) and is_url(target):
        target = open_store(target, read_only=False)
    if not isinstance(target, Store | StorePath):
        require_target(target, "the predictions")
        return Path(target)
    place = StorePath(target) if isinstance(target, Store) else target
    if place.read_only or not place.store.supports_deletes:
        raise ConfigError(f"{place}: expected a store whose objects can be written and removed; open one so")
    return place


class Unpublished(WrapperStore[Store]):
    """A store in which some objects have other `names`: the metadata of a group that is being written."""

    def __init__(self, store: Store, names: dict[str, str]) -> None:
        super().__init__(store)
        self.names = names

    def _with_store(self, store: Store) -> Unpublished:
        return Unpublished(store, self.names)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return await super().get(self.names.get(key, key), prototype, byte_range)

    async def set(self, key: str, value: Buffer) -> None:
        await super().set(self.names.get(key, key), value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await super().set_if_not_exists(self.names.get(key, key), value)


@contextmanager
def publishing(target: Location, *, overwrite: bool) -> Iterator[Location]:
    """Yield where predictions are written, which become `target` if the block succeeds, and are kept for a run."""
    job = execution.get().job
    keep = "" if job is None else token_of(job.path)
    resume = job is not None and job.resume and Path(job.path, WHAT, "manifest.json").exists()
    if isinstance(target, Path):
        files = zarr_arrays.publishing(target, kind="predictions", overwrite=overwrite, keep=keep, resume=resume)
        with claimed(target, "the prediction store"), files as scratch:
            yield scratch
        return
    own, other, found = target / zarr_arrays.METADATA, target / zarr_arrays.MANIFEST, _keys_in(target)
    commits = hasattr(target.store, "session")
    hides = re.compile(re.escape(f"{other.path}/") + "[0-9a-f]{16,32}/" + re.escape(zarr_arrays.METADATA))
    unfinished = own.path not in found and any(map(hides.fullmatch, found))
    hidden = own if commits else other / (keep or uuid.uuid4().hex) / zarr_arrays.METADATA
    if resume and unfinished and hidden.path in found:
        for key in found:
            if key.endswith(zarr_arrays.METADATA):
                sync(target.store.delete(key))
    elif found:
        there = "unfinished predictions" if unfinished else min(found)
        with suppress(FileNotFoundError):
            stated = zarr.open_group(target, mode="r").attrs.get(zarr_arrays.ATTRIBUTE)
            there = str(stated["kind"]) if isinstance(stated, dict) else there
        if not overwrite or (there != "predictions" and not unfinished):
            raise DataError(f"{target}: expected an empty place, or predictions and overwrite=True, found {there}")
        if not commits:
            sync(own.delete())  # first, so that no reader finds a part
        sync(target.delete_dir())
    yield StorePath(Unpublished(target.store, {own.path: hidden.path}), target.path)
    if not commits:
        content = sync(hidden.get(default_buffer_prototype()))
        assert content is not None  # the tasks have read it
        sync(own.set(content))
        sync(hidden.delete())
        zarr.create_group(other)  # an empty folder, where objects are files, would make zarr warn


def fill(rows: Rows, writer: StoreWriter) -> None:
    """Sweep `rows` through `writer` until every chunk of its store is written and verified.

    Receipts of a resumed sweep record finished segments, but not that their chunks are still on disk: these are
    verified, and all are written again if one is damaged.
    """
    try:
        swept = sweep(rows, writer, what=WHAT)
    except TypeError as error:
        if "serialize" not in str(error):
            raise
        raise DataError(f"{writer.place}: cannot be sent to workers; take a store of files or a server") from error
    if any(receipt.resumed for receipt in swept.receipts):
        damage = _first_damage(writer.place)
        if damage is not None:
            emit(Incident("damage", f"{WHAT}: kept rows are damaged ({damage}): writing all rows again"))
            forget(WHAT)
            sweep(rows, writer, what=WHAT)
    require_chunks(writer.place)


def _first_damage(place: Location) -> DataError | None:
    try:
        arrays = require_chunks(place)
    except ChunkMissingError as error:
        return error
    # any value may be written; only changed bytes are damage, and objects of a store are whole
    files = arrays if isinstance(place, Path) else []
    checked = (one for array in files for one in check_chunks(array, array.basename, lambda *_: ""))
    return next((chunk.damage for chunk in checked if chunk.damage), None)


def require_chunks(place: Location) -> list[zarr.Array]:
    """Return the arrays of a group; raise `ChunkMissingError` unless all their chunks are there."""
    found = None if isinstance(place, Path) else _keys_in(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hidden name is no part of the group
        arrays = [array for _, array in sorted(zarr.open_group(place, mode="r", zarr_format=3).arrays())]
    for array in arrays:
        if found is None:
            zarr_arrays.require_chunks(array)
        elif lost := [key for key in zarr_arrays.chunk_keys(array) if f"{array.path}/{key}" not in found]:
            raise ChunkMissingError(f"{array.store_path}: {len(lost)} chunks are missing, the first is {lost[0]}")
    return arrays


def _keys_in(place: StorePath) -> set[str]:
    """Return the keys of all objects of a place."""
    prefix = f"{place.path}/" if place.path else ""

    async def listed() -> set[str]:
        return set() if await place.store.is_empty(prefix) else {key async for key in place.store.list_prefix(prefix)}

    with naming(str(place), "its objects"):
        return sync(listed())


def open_predictions(place: Location) -> zarr.Group:
    """Open a prediction store; raise `DataError` if it is none, or chunks are missing."""
    if isinstance(place, Path):
        zarr_arrays.open_store(place, "predictions")
        require_chunks(place)
    return zarr.open_group(place, mode="r", zarr_format=3)
