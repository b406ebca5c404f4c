"""Rows: a matrix that is read lazily, with the columns that go with it, wherever it lies.

`Rows` holds where `x` (n, d) and its columns y, weight, domain and group come from (NumPy, Dask, a zarr array, a
corpus) and the row maps to apply, and it is plain picklable data: a task opens the store itself and reads chunk by
chunk.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import Any, Literal

import numpy as np
from distributed import futures_of

from bigkernel.arrays import Array
from bigkernel.config import Settings, settings
from bigkernel.data.corpus import COLUMNS, Corpus, open_corpus
from bigkernel.data.labels import named_labels
from bigkernel.engine.sources import (
    DaskSource,
    NumpySource,
    Source,
    SparseSource,
    ZarrSource,
    corpus_sources,
    source_of,
    window,
)
from bigkernel.errors import DataError
from bigkernel.html import table
from bigkernel.streaming.chunk import Chunk, RowMap, Workspace, apply_maps, mapped_width

_PICKED_BYTES = 2**23  # of the pieces in which picked rows are read


@dataclass(frozen=True, eq=False)
class Rows:
    """A matrix of rows with aligned columns."""

    x: Source  # Source of (n, d)
    # mapping of "y", "weight", "domain", "group", "fold" to their sources
    columns: dict[str, Source] = field(default_factory=dict)
    row_maps: tuple[RowMap, ...] = ()  # applied in order to every block, never stored
    name: str = "X"  # for messages
    classes: tuple[int | str, ...] = ()  # labels of a class column `y`, from the corpus, or empty
    bad_rows: Literal["refuse", "skip"] = "refuse"  # "refuse" or "skip" rows with NaN or infinity; see `skip_bad_rows`

    def _repr_html_(self) -> str:
        figures = {
            "rows": len(self),
            "features": self.shape[1],
            "stored as": f"{self.dtype}, {self.stored_width} features",
            "columns": list(self.columns),
            "transforms": [type(row_map).__name__ for row_map in self.row_maps],
            "bad rows": self.bad_rows,
        }
        found = table(f"rows of {self.name}", figures)
        if isinstance(self.x, ZarrSource) and self.x.path:
            found += open_corpus(self.x.path).first_rows()
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """(n rows, d features), after the row maps."""
        return self.x.shape[0], mapped_width(self.row_maps, self.x.shape[1])

    @property
    def stored_width(self) -> int:
        """Features of a row as stored."""
        return self.x.shape[1]

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the rows as stored."""
        return self.x.dtype

    @property
    def in_memory(self) -> bool:
        """True where the rows are in this process already, so that no cluster helps."""
        return isinstance(self.x, NumpySource | SparseSource)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is read."""
        return math.prod(self.x.shape[1:]) * self.x.dtype.itemsize

    def map(self, row_map: RowMap) -> Rows:
        """Add a row-wise transform, applied in the task."""
        row_map.width(self.shape[1])  # refuses rows that it cannot take
        return replace(self, row_maps=(*self.row_maps, row_map))

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
        """Take rows start … stop with their columns as rows of their own, whose ids begin at 0.

        Raises
        ------
        DataError
            Not within the rows, or empty.

        Examples
        --------
        >>> import numpy as np
        >>> from bigkernel.engine.rows import as_rows
        >>> as_rows(np.arange(8.0)[:, None]).window(2, 5).read(0, 3).x[:, 0]
        array([2., 3., 4.])
        """
        if not 0 <= start < stop <= len(self):
            raise DataError(f"{self.name}: rows {start:,} to {stop:,} were asked for, of {len(self):,}")
        name = f"{self.name}, rows {start:,} to {stop:,}"
        columns = {key: window(source, start, stop) for key, source in self.columns.items()}
        return replace(self, x=window(self.x, start, stop), columns=columns, name=name)

    @property
    def persisted(self) -> bool:
        """True where some of the rows or columns are Dask arrays whose values a cluster holds."""
        sources = (self.x, *self.columns.values())
        return any(isinstance(source, DaskSource) and futures_of(source.array) for source in sources)

    @property
    def stored(self) -> tuple[ZarrSource, ...]:
        """The zarr arrays that the rows and columns are made of, which every task opens itself."""
        origins = (source.origin for source in (self.x, *self.columns.values()))
        return tuple(source for source in origins if isinstance(source, ZarrSource))

    def require_unchanged(self) -> None:
        """Raise `DataError` where values that reads do not verify have changed since this was first asked."""
        for name, source in {"X": self.x, **self.columns}.items():
            if source.origin.has_changed():
                raise DataError(
                    f"{self.name}: {name} was changed while it was read (a chunk or the file was written, exchanged or "
                    "removed); what was summed up is of neither state: fit again when it is at rest"
                )

    def part(self, start: int, stop: int) -> Rows:
        """Take the part of the rows that a task needs to read start … stop."""
        columns = {name: source.part(start, stop) for name, source in self.columns.items()}
        return replace(self, x=self.x.part(start, stop), columns=columns)

    def bounds(self, wanted: Settings) -> tuple[int, ...]:
        """Return row ids where the steps of a sweep begin: whole chunks of the input, joined up to a few MB."""
        n, target = len(self), max(1, int(wanted.chunk_bytes // max(1, self.row_bytes)))
        if n and not self.x.steps:
            # in memory: as many steps as give every segment one, of at least a quarter of a block
            parts = max(-(-n // target), min(wanted.min_segments, 4 * n // wanted.block_rows), 1)
            return tuple(n * i // parts for i in range(parts + 1))
        # never so far that a segment would be too long, or segments too few
        return self._pieces(min(target, wanted.segment_rows, max(1, n // wanted.min_segments)))

    def _pieces(self, target: int) -> tuple[int, ...]:
        """Return row ids where pieces of about `target` rows begin, whole chunks of the input where it has any."""
        n, steps = len(self), self.x.steps
        if n <= target:
            return (0, n) if n else (0,)
        if not steps:
            parts = -(-n // target)
            return tuple(n * i // parts for i in range(parts + 1))
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
        """Read rows start … stop as a chunk of their own."""
        columns: dict[str, Any] = {name: source.read(start, stop) for name, source in self.columns.items()}
        return Chunk(self.x.read(start, stop), start, row_maps=self.row_maps, **columns)

    def batches(self) -> Iterator[dict[str, Array]]:
        """Yield the rows as their maps give them, and the columns, a few MB at a time; labels as their names."""
        for start, stop in pairwise(self.bounds(settings())):
            chunk = self.read(start, stop)
            x = chunk.load(slice(None), self.shape[1], np.float64).copy() if self.row_maps else chunk.x
            columns = {name: getattr(chunk, name) for name in COLUMNS if name in self.columns}
            if "y" in columns:
                columns["y"] = named_labels(columns["y"], self.classes)
            yield {"x": x, **columns}

    def chunks(self, bounds: Sequence[int], block_rows: int, work: Workspace) -> Iterator[Chunk]:
        """Yield the chunks between `bounds` as a statistic may see them; the next one is read meanwhile.

        Bad rows are refused, or blanked and counted in `work`; see `validate_or_mask`.
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
        """Return a chunk as a statistic may see it, and how many of its rows are blanked, with weight 0.

        Raises
        ------
        DataError
            Rows that are not finite and not to be skipped; names the array, the first ones and their number.
        """
        if self.bad_rows == "refuse":
            chunk.require_sound(self.name)
            return chunk, 0
        bad, fresh = chunk.faults(), isinstance(self.x.origin, ZarrSource)  # what a store gives was decoded for us
        return (chunk.without(bad, fresh=fresh), int(bad.sum())) if bad.any() else (chunk, 0)

    def take(self, index: Array) -> Array:
        """Map the rows of sorted ids, (k, d) float64; bad ones that are to be skipped are the mean of the rest.

        Raises
        ------
        DataError
            A row that is not finite and not to be skipped.
        """
        none = np.empty((0, self.x.shape[1]))
        taken = np.concatenate([none, *self._gather(index, self.x.read)], dtype=np.float64)
        bad = ~np.isfinite(taken).all(axis=1)
        if bad.any():
            if self.bad_rows == "refuse":
                raise DataError(f"{self.name}: row {int(index[np.argmax(bad)])} contains NaN or infinity")
            taken[bad] = 0 if bad.all() else taken[~bad].mean(axis=0)
        mapped = apply_maps(self.row_maps, taken)
        lost = ~np.isfinite(mapped).all(axis=1)
        if lost.any():
            row = int(index[np.argmax(lost)])
            raise DataError(
                f"{self.name}: row {row} leaves the range of float64 when it is transformed; scale the rows"
            )
        return mapped

    def sound(self, index: Array) -> Array:
        """Tell of sorted row ids which are not bad rows, (k,) bool."""
        return ~np.concatenate([np.zeros(0, bool), *self._gather(index, lambda a, b: self.read(a, b).faults())])

    def take_column(self, name: str, index: Array) -> Array:
        """Read a column at sorted row ids, (k,) or (k, …)."""
        source = self.columns[name]
        return np.concatenate([source.read(0, 0), *self._gather(index, source.read)])

    def _gather(self, index: Array, read: Callable[[int, int], Array]) -> list[Array]:
        """Read the pieces of the rows that hold some of the sorted ids, and take what is read of these, in order."""
        if not len(index):
            return []
        bounds = self._pieces(max(1, _PICKED_BYTES // max(1, self.row_bytes)))
        ids = np.split(index, np.searchsorted(index, bounds[1:-1]))
        wanted = [(*pair, piece) for pair, piece in zip(pairwise(bounds), ids, strict=True) if len(piece)]
        if self.in_memory:
            return [read(start, stop)[piece - start] for start, stop, piece in wanted]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="bigkernel-read") as readers:
            return list(readers.map(lambda one: read(*one[:2])[one[2] - one[0]], wanted))

    def column(self, name: str) -> Array | None:
        """Read a whole column, or None where there is none."""
        source = self.columns.get(name)
        return None if source is None else source.read(0, len(self))


def as_rows(
    X: Any, y: Any = None, *, weight: Any = None, domain: Any = None, group: Any = None, fold: Any = None
) -> Rows:
    """Make rows of an array (NumPy, Dask, zarr, xarray), a frame (pandas, Dask, Arrow), a Corpus or Rows.

    Columns that are given here come before those that it has.

    Raises
    ------
    DataError
        Not a matrix of numbers, or a column of another length.
    """
    if isinstance(X, Rows):
        rows = X
    elif isinstance(X, Corpus):
        columns: dict[str, Source] = {**corpus_sources(X)}
        rows = Rows(columns.pop("x"), columns, name=X.path, classes=X.info.classes)
    else:
        rows = Rows(source_of(X, "X"))
    if len(rows.x.shape) != 2:
        raise DataError(f"{rows.name}: expected a matrix (rows, features), found shape {rows.x.shape}")
    given = {"y": y, "weight": weight, "domain": domain, "group": group, "fold": fold}
    columns = {name: source_of(values, name) for name, values in given.items() if values is not None}
    for name, source in columns.items():
        matrix = len(source.shape) > 1 + (name == "y")
        if not source.shape or source.shape[0] != len(rows) or matrix:
            raise DataError(f"{name}: expected {len(rows)} values to go with the rows, found shape {source.shape}")
    return replace(rows, columns={**rows.columns, **columns})
