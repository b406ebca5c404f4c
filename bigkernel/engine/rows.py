"""Rows: a lazily read matrix with its columns, from any storage.

`Rows` holds the sources of `x` (n, d) and of its columns y, weight, domain and group (NumPy, SciPy, Dask, a zarr array,
a corpus) and the row maps to apply. Rows and sources are plain picklable data: a task opens the store itself and reads
chunk by chunk. Row ids are those of the source.

`source_of` makes a source of what a container holds (`data.containers`). Of Datasets of xarray every cell is a row
(`engine.grids`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Literal, Protocol, Self

import dask
import numpy as np
import zarr
from distributed import futures_of
from scipy import sparse

from bigkernel.arrays import Array, DType, Labelled
from bigkernel.config import Settings, settings
from bigkernel.data import zarr_arrays
from bigkernel.data.containers import contained, in_memory, is_dask_array, plain, refuse_rounded
from bigkernel.data.corpus import COLUMNS, IDENTITY, Corpus, open_corpus
from bigkernel.data.labels import codes_of_names, named_labels
from bigkernel.engine.grids import Grid, grid_of, is_grid, variables
from bigkernel.errors import DataError
from bigkernel.html import table
from bigkernel.kernels.feature_maps import WithoutCaches
from bigkernel.streaming.chunk import Chunk, RowMap, Workspace, apply_maps, mapped_width
from bigkernel.streaming.folds import Folds
from bigkernel.streaming.row_maps import float_of, map_rows

if TYPE_CHECKING:
    import dask.array as da

_NUMERIC = "biuf"
_PICKED_BYTES = 2**23  # bytes of the pieces in which selected rows are read


class Source(Protocol):
    """The origin of a matrix or a column, read piece by piece."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (n, …)."""

    @property
    def dtype(self) -> DType:
        """Stored dtype."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Row ids where the natural pieces begin, 0 first, n last; empty if there are none."""
        return ()

    @property
    def segment_rows(self) -> int:
        """Most rows of a segment of a sweep; 0: as configured."""
        return 0

    def read(self, start: int, stop: int) -> Array:
        """Read rows start … stop."""

    def restrict(self, start: int, stop: int) -> Source:
        """Return the source that a task needs to read rows start … stop; row ids are unchanged."""

    def fingerprint(self) -> str:
        """Return a digest that differs if the values differ, as far as possible without reading them all."""

    def state(self) -> object:
        """Return a value that changes when the data are modified and reads do not detect it; None: nothing."""
        return None

    @property
    def origin(self) -> Source:
        """The stored source that the rows are made of; the source itself if they are stored."""
        return self


@dataclass(frozen=True, eq=False)
class _ArraySource(Source):
    """Rows `offset` and up of a matrix that can be sliced."""

    array: Array | sparse.csr_array | da.Array
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> DType:
        return np.dtype(self.array.dtype)

    def restrict(self, start: int, stop: int) -> Self:
        return replace(self, array=self.array[start - self.offset : stop - self.offset], offset=start)


@dataclass(frozen=True, eq=False)
class NumpySource(_ArraySource):
    """Rows of a matrix in memory."""

    array: Array

    def read(self, start: int, stop: int) -> Array:
        return self.array[start - self.offset : stop - self.offset]

    def fingerprint(self) -> str:
        return zarr_arrays.digest({"values": self.array})

    def state(self) -> object:
        values: object = self.array
        while values is not None and not isinstance(values, np.memmap):
            values = getattr(values, "base", None)
        if values is None or values.filename is None:
            return None
        try:
            if values.mode in ("r+", "w+"):
                values.flush()  # write this process's pending data to disk now, and not later
            status = os.stat(values.filename)
        except OSError:
            return "it was removed"
        return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, eq=False)
class SparseSource(_ArraySource):
    """Rows of a SciPy matrix in memory (CSR), made dense piece by piece when read."""

    array: sparse.csr_array

    def read(self, start: int, stop: int) -> Array:
        return np.asarray(self.array[start - self.offset : stop - self.offset].toarray())

    def fingerprint(self) -> str:
        arrays = {name: getattr(self.array, name) for name in ("data", "indices", "indptr")}
        return zarr_arrays.digest({**arrays, "shape": np.array(self.shape)})

    def held_bytes(self, rows: int) -> int:
        """Return an upper bound of the bytes of so many rows as they travel to a task."""
        held = self.array.data.nbytes + self.array.indices.nbytes
        return int(held * min(self.shape[0], rows) // max(1, self.shape[0]))


@dataclass(frozen=True, eq=False)
class ZarrSource(WithoutCaches, Source):
    """A zarr array: by path and name if it is ours (opened again in every process), or the given object.

    `digests` are those of the chunks of an array of ours, which every read verifies.
    """

    path: str = ""
    name: str = ""
    foreign: zarr.Array | None = None
    digests: zarr_arrays.ChunkDigests | None = None

    @cached_property
    def array(self) -> zarr.Array:
        """Open the array."""
        if self.foreign is not None:
            return self.foreign
        return zarr_arrays.open_store(self.path, "corpus").array(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> DType:
        return np.dtype(self.array.dtype)

    @property
    def steps(self) -> tuple[int, ...]:
        step = (self.array.shards or self.array.chunks)[0]
        return (*range(0, self.shape[0], step), self.shape[0])

    def read(self, start: int, stop: int) -> Array:
        return zarr_arrays.read(self.array, start, stop, self.digests)

    def restrict(self, start: int, stop: int) -> ZarrSource:
        if self.digests is None:
            return self
        step = self.array.chunks[0]
        return replace(self, digests=self.digests.restrict(start // step, -(-stop // step)))

    def fingerprint(self) -> str:
        packing = getattr(self.array, "packing", "")
        return f"{zarr_arrays.stored_fingerprint(self.array)}{packing}"

    def state(self) -> object:
        """Return None if digests verify every read."""
        return None if self.digests is not None else self.fingerprint()


@dataclass(frozen=True, eq=False)
class DaskSource(_ArraySource):
    """A Dask array with known chunks, computed piece by piece inside the task that needs it."""

    array: da.Array

    @property
    def steps(self) -> tuple[int, ...]:
        return (0, *np.cumsum(self.array.chunks[0]).tolist())

    def read(self, start: int, stop: int) -> Array:
        piece = self.array[start - self.offset : stop - self.offset]
        # values persisted on a cluster are fetched from it; all else is computed in this task
        futures = futures_of(self.array)
        return plain(piece.compute(scheduler=futures[0].client.get if futures else "synchronous"))

    @property
    def dense(self) -> da.Array:
        """The array, whose blocks are neither sparse nor masked."""
        meta = np.empty((0,) * self.array.ndim, self.dtype)
        return self.array.map_blocks(_rows_of, dtype=self.dtype, meta=meta)

    def restrict(self, start: int, stop: int) -> Self:
        # only the graph of these rows travels with the task
        (piece,) = dask.optimize(self.array[start - self.offset : stop - self.offset])
        return replace(self, array=piece, offset=start)

    def fingerprint(self) -> str:
        return f"dask {self.array.name}"


def _rows_of(block: object) -> Array:
    rows = plain(block)
    refuse_rounded(rows, "X")
    return rows


@dataclass(frozen=True, eq=False)
class Window(Source):
    """A range of rows of another source, numbered from 0."""

    source: Source  # the inner source
    first: int  # where the window begins there
    count: int  # number of its rows

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, *self.source.shape[1:]

    @property
    def dtype(self) -> DType:
        return self.source.dtype

    @property
    def origin(self) -> Source:
        return self.source.origin

    @property
    def steps(self) -> tuple[int, ...]:
        if not self.source.steps:
            return ()
        inside = {step - self.first for step in self.source.steps if 0 < step - self.first < self.count}
        return (0, *sorted(inside), self.count)

    def read(self, start: int, stop: int) -> Array:
        return self.source.read(self.first + start, self.first + stop)

    def restrict(self, start: int, stop: int) -> Source:
        return replace(self, source=self.source.restrict(self.first + start, self.first + stop))

    def fingerprint(self) -> str:
        return f"rows {self.first} to {self.first + self.count} of {self.source.fingerprint()}"


@dataclass(frozen=True, eq=False)
class ClassWeightSource(Source):
    """The weight of each row times the factor of its class; the weight itself for rows without a label.

    It is computed when read, so that every statistic uses it.
    """

    y: Source  # the column of labels
    weight: Source | None  # the column of weights, or None: ones
    labels: Array  # (k,) sorted, as the column holds them
    factors: Array  # (k,) factor of each label

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.y.shape[0],)

    @property
    def dtype(self) -> DType:
        return np.dtype(np.float64)

    @property
    def steps(self) -> tuple[int, ...]:
        return self.y.steps

    def read(self, start: int, stop: int) -> Array:
        y = self.y.read(start, stop)
        place = np.minimum(np.searchsorted(self.labels, y), len(self.labels) - 1)
        factor: Array = np.where(self.labels[place] == y, self.factors[place], 1.0)
        return factor if self.weight is None else factor * self.weight.read(start, stop)

    def restrict(self, start: int, stop: int) -> Source:
        weight = None if self.weight is None else self.weight.restrict(start, stop)
        return replace(self, y=self.y.restrict(start, stop), weight=weight)

    def fingerprint(self) -> str:
        table = zarr_arrays.digest({"labels": self.labels, "factors": self.factors})
        weight = "" if self.weight is None else self.weight.fingerprint()
        return f"weights by class {table} of {self.y.fingerprint()} and {weight}"

    @property
    def origin(self) -> Source:
        return (self.y if self.weight is None else self.weight).origin


def corpus_sources(corpus: Corpus) -> dict[str, ZarrSource]:
    """Open `x` and the columns of a corpus, verified against its manifest."""
    arrays = zarr_arrays.open_arrays(corpus.path, "corpus", ("x", *corpus.columns), corpus.digest)
    sources = {}
    for name, (array, digests) in arrays.items():
        sources[name] = ZarrSource(corpus.path, name, digests=digests)
        sources[name].__dict__["array"] = array  # opened once in this process
    return sources


def window(source: Source, start: int, stop: int) -> Source:
    """Return rows start … stop of a source as a source."""
    if isinstance(source, _ArraySource):
        return replace(source, array=source.array[start:stop])
    return Window(source, start, stop - start)


def source_of(values: object, name: str) -> Source:
    """Return a source of an array or a frame; raise `DataError` with its name if it holds no numbers."""
    values = held = contained(values, name, labels=name in ("domain", "group", "fold"))
    if is_dask_array(values):
        if any(np.isnan(size) for size in values.shape):
            raise DataError(
                f"{name}: expected known chunk sizes, found a Dask array with unknown ones; call "
                "compute_chunk_sizes() first"
            )
        if values.ndim == 2 and values.numblocks[1] > 1:
            values = values.rechunk({1: -1})
        source: Source = DaskSource(values)
    elif isinstance(values, zarr.Array):
        source = ZarrSource(foreign=values)
    else:
        source = SparseSource(held) if sparse.issparse(held) else NumpySource(held)
    if source.dtype.kind not in _NUMERIC:
        raise DataError(f"{name}: expected numbers, found dtype {source.dtype}")
    return source


@dataclass(frozen=True, eq=False)
class Rows:
    """A matrix of rows with aligned columns."""

    x: Source  # of (n, d)
    # mapping of "y", "weight", "domain", "group", "fold" to their sources
    columns: dict[str, Source] = field(default_factory=dict)
    row_maps: tuple[RowMap, ...] = ()  # applied in order to every block, never stored
    name: str = "X"  # name in messages
    classes: tuple[int | str, ...] = ()  # labels of a class column `y`, from the corpus, or empty
    bad_rows: Literal["refuse", "skip"] = "refuse"  # "refuse" or "skip" rows with NaN or infinity; see `skip_bad_rows`
    feature_names: tuple[str, ...] = ()  # those of a corpus, where no row map has changed them
    mapped_names: tuple[str, ...] = ()  # of the features after row maps, where these know them
    ids: dict[str, Source] = field(default_factory=dict)  # columns `row` and `id` of a corpus, not swept
    id_column: str = "id"
    grid: Grid | None = None  # of which the rows are the cells, in the order of its blocks

    def _repr_html_(self) -> str:
        figures = {
            "rows": len(self),
            "features": self.shape[1],
            "stored as": f"{self.x.dtype}, {self.x.shape[1]} features",
            "columns": list(self.columns),
            "transforms": [type(row_map).__name__ for row_map in self.row_maps],
            "bad rows": self.bad_rows,
        }
        html = table(f"rows of {self.name}", figures)
        if isinstance(self.x, ZarrSource) and self.x.path:
            html += open_corpus(self.x.path).first_rows()
        return html

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n rows, d features), after the row maps."""
        return self.x.shape[0], mapped_width(self.row_maps, self.x.shape[1])

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def dtype(self) -> DType:
        """Dtype of the stored rows."""
        return self.x.dtype

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in this process already, so that a cluster does not help."""
        return isinstance(self.x, NumpySource | SparseSource)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is read."""
        return math.prod(self.x.shape[1:]) * self.x.dtype.itemsize

    def map(self, row_map: RowMap) -> Rows:
        """Add a row-wise transform, applied in the task."""
        row_map.width(self.shape[1])  # raises an error for rows that it cannot map
        renamed = getattr(row_map, "names", lambda before: ())(self.feature_names or self.mapped_names)
        return replace(self, row_maps=(*self.row_maps, row_map), feature_names=(), mapped_names=renamed)

    def mapped_array(self) -> da.Array:
        """Return the mapped rows of a Dask array as one, (n, d) of its floating dtype; rows with NaN are NaN."""
        assert isinstance(self.x, DaskSource)
        values, dtype = self.x.dense, float_of(self.dtype)
        for row_map in self.row_maps:
            chunks, meta = (values.chunks[0], (row_map.width(values.shape[1]),)), np.empty((0, 0), dtype)
            values = values.map_blocks(map_rows, row_map, dtype, dtype=dtype, chunks=chunks, meta=meta)
        return values

    def to_dataarray(self) -> Labelled:
        """Return the mapped features of the cells of a Dataset as a DataArray with its dimensions, and `feature` last.

        It is lazy where predictions are. `DataError`: the rows are no cells.
        """
        if self.grid is None:
            raise DataError(f"{self.name}: expected the cells of a Dataset of xarray, found rows without dimensions")
        names = np.array(self.mapped_names or self.feature_names or range(self.shape[1]))
        return self.grid.array(self.mapped_array(), "features", {}, names).rename({"class": "feature"})

    def skip_bad_rows(self) -> Rows:
        """Leave out rows with NaN or infinity in x, or in a weight, of fits and scores.

        An infinite target makes a row bad too (NaN is a row without a label). The estimator counts them, in
        `skipped_rows_`. Rows keep their ids, hence their folds; no landmark is drawn among the bad ones. Without this,
        and for predictions always, such rows are refused.

        Examples
        --------
        >>> import numpy as np
        >>> from bigkernel import KernelRidge
        >>> from bigkernel.engine.rows import as_rows
        >>> X = np.array([[1.0], [np.nan], [2.0], [3.0]])
        >>> rows = as_rows(X, y=np.array([0.0, 1.0, 1.0, 2.0])).skip_bad_rows()
        >>> KernelRidge("linear", n_landmarks=1).fit(rows).skipped_rows_
        1
        """
        return replace(self, bad_rows="skip")

    def window(self, start: int, stop: int) -> Rows:
        """Return rows start … stop with their columns as rows numbered from 0; `DataError` if there are none."""
        if not 0 <= start < stop <= len(self):
            raise DataError(f"{self.name}: expected rows within 0 to {len(self):,}, found {start:,} to {stop:,}")
        name = f"{self.name}, rows {start:,} to {stop:,}"
        columns = {key: window(source, start, stop) for key, source in self.columns.items()}
        ids = {key: window(source, start, stop) for key, source in self.ids.items()}
        return replace(self, x=window(self.x, start, stop), columns=columns, ids=ids, name=name, grid=None)

    def flat(self, values: object) -> object:
        """Return a column that has values for the cells of the grid as one of rows; anything else unchanged."""
        return values if self.grid is None else self.grid.column(values)

    @property
    def persisted(self) -> bool:
        """Whether rows or columns are Dask arrays held by a cluster."""
        sources = (self.x, *self.columns.values())
        return any(isinstance(source, DaskSource) and futures_of(source.array) for source in sources)

    @property
    def stored(self) -> tuple[ZarrSource, ...]:
        """The zarr arrays of the rows and columns, which every task opens itself."""
        origins = (source.origin for source in (self.x, *self.columns.values()))
        return tuple(source for source in origins if isinstance(source, ZarrSource))

    def require_unchanged(self) -> None:
        """Raise `DataError` if values that reads do not verify have changed since the first call."""
        for name, source in {"X": self.x, **self.columns}.items():
            origin = source.origin
            now = origin.state()
            if origin.__dict__.setdefault("first_state", now) != now:
                raise DataError(
                    f"{self.name}: {name} was modified while it was read (a chunk or the file was written, replaced "
                    "or removed): the sums mix two states; fit again when the data no longer change"
                )

    def restrict(self, start: int, stop: int) -> Rows:
        """Return the rows that a task needs to read start … stop."""
        columns = {name: source.restrict(start, stop) for name, source in self.columns.items()}
        return replace(self, x=self.x.restrict(start, stop), columns=columns, feature_names=(), ids={}, grid=None)

    def bounds(self, config: Settings) -> tuple[int, ...]:
        """Return row ids where the steps of a sweep begin: whole chunks of the input, joined up to a few MB."""
        if self.x.segment_rows:
            return self._pieces(self.x.segment_rows)
        n, target = len(self), max(1, int(config.chunk_bytes // max(1, self.row_bytes)))
        if n and not self.x.steps:
            # in memory: enough steps to give every segment one, of at least a quarter of a block
            count = max(-(-n // target), min(config.min_segments, 4 * n // config.block_rows), 1)
            return tuple(n * i // count for i in range(count + 1))
        # never so large that a segment is too long, or there are too few segments
        return self._pieces(min(target, config.segment_rows, max(1, n // config.min_segments)))

    def _pieces(self, target: int) -> tuple[int, ...]:
        """Return row ids where pieces of about `target` rows begin, at whole chunks of the input if it has any."""
        n, steps = len(self), self.x.steps
        if n <= target:
            return (0, n) if n else (0,)
        if not steps:
            count = -(-n // target)
            return tuple(n * i // count for i in range(count + 1))
        step = steps[1] - steps[0]
        equal = all(b - a == step for a, b in pairwise(steps[:-1])) and n - steps[-2] <= step
        if equal:  # equal steps then, for which predictions can be written chunk by chunk
            return (*range(0, n, max(1, target // step) * step), n)
        joined = [0]
        for here, after in zip(steps[1:], (*steps[2:], None), strict=True):
            if after is None or after - joined[-1] > target:
                joined.append(here)
        return tuple(joined)

    def read(self, start: int, stop: int) -> Chunk:
        """Read rows start … stop as a chunk."""
        chunk = Chunk(self.x.read(start, stop), start, row_maps=self.row_maps)
        for name, source in self.columns.items():
            setattr(chunk, name, source.read(start, stop))
        return chunk

    def batches(self) -> Iterator[dict[str, Array]]:
        """Yield the mapped rows and the columns, a few MB at a time, with labels as names."""
        for start, stop in pairwise(self.bounds(settings())):
            chunk = self.read(start, stop)
            x = chunk.load(slice(None), self.shape[1], np.float64).copy() if self.row_maps else chunk.x
            columns = {name: getattr(chunk, name) for name in COLUMNS if name in self.columns}
            if "y" in columns:
                columns["y"] = named_labels(columns["y"], self.classes)
            yield {"x": x, **columns, **{name: source.read(start, stop) for name, source in self.ids.items()}}

    def chunks(self, bounds: Sequence[int], block_rows: int, work: Workspace) -> Iterator[Chunk]:
        """Yield the chunks between `bounds`, validated for a statistic; the next one is read meanwhile.

        Bad rows are refused, or masked and counted in `work`; see `validate_or_mask`.
        """
        pairs = list(pairwise(bounds))
        with ThreadPoolExecutor(1, thread_name_prefix="bigkernel-read") as reader:
            coming = reader.submit(self.read, *pairs[0]) if pairs and not self.in_memory else None
            for here, after in zip_longest(pairs, pairs[1:]):
                if coming is None:
                    chunk = self.read(*here)
                else:
                    with work.stage("read"):
                        chunk = coming.result()
                    coming = reader.submit(self.read, *after) if after else None
                chunk, bad = self.validate_or_mask(replace(chunk, block_rows=block_rows, work=work))
                work.skipped += bad
                yield chunk

    def validate_or_mask(self, chunk: Chunk) -> tuple[Chunk, int]:
        """Return a chunk for a statistic and the number of its bad rows, which are masked with weight 0.

        `DataError`: rows that are not finite and not to be skipped; names the array, the first ones and their number.
        """
        if self.bad_rows == "refuse":
            chunk.require_finite(self.name)
            return chunk, 0
        bad, fresh = chunk.faults(), isinstance(self.x.origin, ZarrSource)  # arrays of a store are our own copies
        return (chunk.without(bad, fresh=fresh), int(bad.sum())) if bad.any() else (chunk, 0)

    def take(self, index: Array) -> Array:
        """Map the rows of ids, (k, d) float64; skipped bad rows are the mean of the rest.

        `DataError`: a row that is not finite and not to be skipped.
        """
        taken = self._gather(index, self.x.read, np.empty((0, self.x.shape[1]))).astype(np.float64, copy=False)
        bad = ~np.isfinite(taken).all(axis=1)
        if bad.any():
            if self.bad_rows == "refuse":
                raise DataError(f"{self.name}: row {int(index[np.argmax(bad)])} contains NaN or infinity")
            taken[bad] = 0 if bad.all() else taken[~bad].mean(axis=0)
        mapped = apply_maps(self.row_maps, taken)
        lost = ~np.isfinite(mapped).all(axis=1)
        if lost.any():
            row = int(index[np.argmax(lost)])
            raise DataError(f"{self.name}: row {row} exceeds the range of float64 after the transform; scale the rows")
        return mapped

    def sound(self, index: Array) -> Array:
        """Return which of the row ids are good rows, (k,) bool."""
        return ~self._gather(index, lambda start, stop: self.read(start, stop).faults(), np.zeros(0, bool))

    def ids_at(self, places: Array) -> Array:
        """Return the ids of rows by their places (k,) among all; those in a grid do not depend on its chunks."""
        return places if self.grid is None else self.grid.rows_at(places)

    def take_column(self, name: str, index: Array) -> Array:
        """Read a column at row ids, (k,) or (k, …)."""
        source = self.columns[name]
        return self._gather(index, source.read, source.read(0, 0))

    def folds_of(self, folds: Folds, index: Array) -> Array:
        """Return the fold that tests each of the row ids, (k,) int64, as `Folds.of`."""
        if getattr(folds, "reads_rows", True):
            return self._gather(index, lambda start, stop: folds.of(self.read(start, stop)), np.empty(0, np.int64))
        names = ("domain", "group", "fold")
        columns = [self.take_column(name, index) if name in self.columns else None for name in names]

        def fold(place: int) -> Array:
            domain, group, own = (None if values is None else values[[place]] for values in columns)
            return folds.of(Chunk(np.empty((1, 0)), int(index[place]), domain=domain, group=group, fold=own))

        return np.concatenate([np.empty(0, np.int64), *map(fold, range(len(index)))])

    def _gather(self, index: Array, read: Callable[[int, int], Array], none: Array) -> Array:
        """Read the pieces that hold the ids (k,), and select their rows, (k, …); `none` of them if k is 0."""
        if not len(index):
            return none
        order = np.argsort(index, kind="stable")
        bounds, index = self._pieces(max(1, _PICKED_BYTES // max(1, self.row_bytes))), index[order]
        ids = np.split(index, np.searchsorted(index, bounds[1:-1]))
        needed = [(*pair, piece) for pair, piece in zip(pairwise(bounds), ids, strict=True) if len(piece)]
        if self.in_memory:
            found = [read(start, stop)[piece - start] for start, stop, piece in needed]
        else:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="bigkernel-read") as readers:
                found = list(readers.map(lambda one: read(*one[:2])[one[2] - one[0]], needed))
        gathered: Array = np.concatenate(found)[np.argsort(order)]
        return gathered

    def column(self, name: str) -> Array | None:
        """Read a whole column, or None if there is none."""
        source = self.columns.get(name)
        return None if source is None else source.read(0, len(self))


def as_rows(
    X: object,
    y: object = None,
    *,
    weight: object = None,
    domain: object = None,
    group: object = None,
    fold: object = None,
) -> Rows:
    """Return rows of an array (NumPy, Dask, zarr), a frame (pandas, Dask, Arrow), xarray, a Corpus or Rows.

    Columns that are given here come before those that it has. `DataError`: not a matrix of numbers, or a column of
    another length.
    """
    if isinstance(X, Rows):
        rows = X
    elif isinstance(X, Corpus):
        columns: dict[str, Source] = {**corpus_sources(X)}
        info, ids = X.info, {name: columns.pop(name) for name in IDENTITY if name in columns}
        rows = Rows(columns.pop("x"), columns, name=X.path, classes=info.classes, feature_names=info.feature_names)
        rows = replace(rows, ids=ids, id_column=info.id_column)
    elif is_grid(X):
        rows = cells(X)
    else:
        rows = Rows(source_of(X, "X"))
    if len(rows.x.shape) != 2:
        raise DataError(f"{rows.name}: expected a matrix (rows, features), found shape {rows.x.shape}")
    given = {"y": y, "weight": weight, "domain": domain, "group": _group_codes(group), "fold": fold}
    columns = {name: source_of(rows.flat(values), name) for name, values in given.items() if values is not None}
    for name, source in columns.items():
        matrix = len(source.shape) > 1 + (name == "y")
        if not source.shape or source.shape[0] != len(rows) or matrix:
            raise DataError(f"{name}: expected {len(rows)} values, one per row, found shape {source.shape}")
    return replace(rows, columns={**rows.columns, **columns})


def _group_codes(group: object) -> object:
    """Return groups given by name as whole numbers, and others unchanged."""
    values = None if group is None else contained(group, "group", labels=True)
    named = values is not None and values.dtype.kind in "OTU" and values.ndim == 1
    return codes_of_names(in_memory(values, "group", labels=True), "group")[0] if named else values


def cells(dataset: object, features: Iterable[str] | None = None) -> Rows:
    """Return the cells of a Dataset of xarray as rows, for fits whose features are coordinates too.

    Estimators take a Dataset as it is if all its variables, and no coordinates, are features. Predictions find the
    features of the fit by name, among both. Cells where a feature is NaN are left out. Landmarks are drawn by place, so
    they do not depend on chunks; random folds, leaves and landmarks by domain do.

    Parameters
    ----------
    dataset : Dataset, or DataArray with a dimension "variable", "feature" or "band"
    features : names of variables and coordinates, which are broadcast against each other; None: all variables. Dates
        are days since 1970

    Raises
    ------
    DataError
        A name is missing, or a variable holds no numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray
    >>> from bigkernel import KernelRidge, Matern, OnSphere, cells
    >>> from sklearn.pipeline import make_pipeline
    >>> lat, lon = np.linspace(-80, 80, 17), np.arange(0.0, 360, 10)
    >>> sea = xarray.Dataset(coords={"lat": lat, "lon": lon})
    >>> heat = (30 * np.cos(np.deg2rad(sea.lat)) + 0 * sea.lon).rename("sst")
    >>> ridge = KernelRidge(Matern(sigma=1.0), alpha=1e-3, n_landmarks=100, random_state=0)
    >>> model = make_pipeline(OnSphere(), ridge).fit(cells(sea, ["lat", "lon"]), heat.where(heat > 10))
    >>> filled = model.predict(sea)
    >>> filled.dims, filled.name, bool(abs(filled - heat).where(heat > 10).max() < 0.5)
    (('lat', 'lon'), 'sst', True)
    """
    found = variables(dataset, features, "X")
    grid = grid_of(found, dataset, "X")
    narrow = all(array.dtype.kind in "fiub" and array.dtype.itemsize <= 4 for array in found.values())
    x = grid.flatten([*found.values()], np.dtype(np.float32 if narrow else np.float64))
    return Rows(DaskSource(x), bad_rows="skip", feature_names=tuple(found), grid=grid)
