"""A corpus: rows on disk in chunks, with the columns that go with them.

A corpus is a zarr v3 group with `x` (n, d) and, where known, `y` (n,), `weight` (n,), `domain` (n,) and `group` (n,).
Two more columns identify the rows in predictions: `row` (n,), numbers of the rows in the source from 0, where rows were
split or skipped; and `id` (n,), whole numbers or text.
Its attributes hold its description (name, source, classes, image shape, scale) and whether it is complete. All columns
share `chunk_rows`; a chunk is written once and read through its checksum. Unlabelled rows carry −1 if labels are
classes (integers) and NaN if they are numbers.
"""

from __future__ import annotations

import math
import operator
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from bigkernel import html
from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.data import atomic_write, zarr_arrays
from bigkernel.data.labels import Labels, named_labels
from bigkernel.data.run_lock import claimed
from bigkernel.data.table import TableEncoding
from bigkernel.errors import BigKernelError, ConfigError, DataError, PlanTooLargeError

FORMAT = 2
COLUMNS = ("y", "weight", "domain", "group")  # read by sweeps
IDENTITY = ("row", "id")  # copied to predictions
MOST_BYTES = 2**30  # most bytes read by an index or np.asarray
KEPT = {"y": "labels", "id": "ids"}  # names of columns as read, before their kind is known
TEXT = np.dtypes.StringDType()
_ITERATED_ROWS = 1024  # rows read at once if requested one by one


@dataclass(frozen=True)
class CorpusInfo:
    """The attributes of a corpus.

    `classes` lists the labels in order, empty if `y` holds numbers or is absent; for string labels, `y` holds positions
    in the list. `image_shape` is (height, width) if rows are images, or None. `scale` divides stored values into the
    range of the source (255 for 8-bit pixels). `feature_names` are the names of the columns of a table in order, and
    `target` that of the labels, empty if the source has none. `id_column` is the name of the ids. `encoding` says how
    columns of a table with text became the features.
    """

    name: str
    source: str = ""
    classes: tuple[int | str, ...] = ()
    image_shape: tuple[int, int] | None = None
    scale: float = 1.0
    complete: bool = False
    format: int = FORMAT
    feature_names: tuple[str, ...] = ()
    target: str = ""
    id_column: str = "id"
    encoding: TableEncoding | None = None


@dataclass(frozen=True)
class Corpus:
    """A corpus opened for reading; plain picklable data (the path and what the attributes say).

    It is a sequence of rows: `corpus[:5]`, `np.asarray(corpus)`, `corpus.head()`, and `corpus.x`, which is lazy. What
    these bring into memory at once is bounded; a fit takes the corpus itself and is not.

    Attributes
    ----------
    path : str
    n_rows, n_features, chunk_rows : int
    dtype : str
        Of the stored rows, e.g. "uint8".
    columns : tuple of str
        Which of y, weight, domain, group, row and id are there.
    info : CorpusInfo
    digest : str
        SHA-256 of the manifest, which identifies the content that was opened.
    """

    path: str
    n_rows: int
    n_features: int
    chunk_rows: int
    dtype: str
    columns: tuple[str, ...]
    info: CorpusInfo
    digest: str = field(default="", compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n_rows, n_features), as of a NumPy array."""
        return self.n_rows, self.n_features

    def __len__(self) -> int:
        return self.n_rows

    def array(self, name: str) -> zarr.Array:
        """Open the zarr array of `x` or of a column."""
        return zarr_arrays.open_store(self.path, "corpus").array(name)

    def column(self, name: str) -> Array:
        """Read a whole column, shape (n_rows,), of at most 8 bytes a row, or text."""
        return self._read(0, self.n_rows, name)

    @property
    def x(self) -> zarr.Array:
        """The rows as a zarr array (n, d), read when indexed; `dask.array.from_zarr(corpus.x)` is lazy."""
        return self.array("x")

    def __getitem__(self, index: Any) -> Any:
        """Read rows into memory: (d,) for a number; (k, d) for a slice, row ids (k,) or a mask (n,).

        Raises
        ------
        PlanTooLargeError
            More than 1 GiB.
        IndexError
            No such row.
        """
        if isinstance(index, tuple):
            raise TypeError(f"{self.path}: expected one index for rows, found {len(index)}; use corpus.x for several")
        if isinstance(index, slice):
            rows = range(*index.indices(self.n_rows))
            self._require_room(len(rows))
            if rows and abs(rows.step) == 1:
                return self._read(min(rows), max(rows) + 1)[:: rows.step]
            index = np.asarray(rows)
        if np.ndim(index) == 0 and not isinstance(index, bool | np.bool_):
            row = range(self.n_rows)[operator.index(index)]
            return self._read(row, row + 1)[0]
        ids = np.arange(self.n_rows)[np.asarray(index, np.int64 if not len(index) else None)]
        self._require_room(len(ids))
        values = np.empty((len(ids), self.n_features), self.dtype)
        for chunk in np.unique(ids // self.chunk_rows):
            start, here = int(chunk) * self.chunk_rows, np.flatnonzero(ids // self.chunk_rows == chunk)
            values[here] = self._read(start, min(start + self.chunk_rows, self.n_rows))[ids[here] - start]
        return values

    def __iter__(self) -> Iterator[Array]:
        """Yield every row (d,) in turn, with one chunk in memory at a time."""
        for start, stop in pairwise((*range(0, self.n_rows, self.chunk_rows), self.n_rows)):
            for first in range(start, stop, _ITERATED_ROWS):
                yield from self._read(first, min(first + _ITERATED_ROWS, stop))

    def batches(self) -> Iterator[dict[str, Array]]:
        """Yield the rows and their columns, a chunk at a time; text labels as names."""
        for start in range(0, self.n_rows, self.chunk_rows):
            stop = min(start + self.chunk_rows, self.n_rows)
            batch = {name: self._read(start, stop, name) for name in ("x", *self.columns)}
            if "y" in batch:
                batch["y"] = named_labels(batch["y"], self.info.classes)
            yield batch

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return all rows (n, d) if they are at most 1 GiB; otherwise raise `PlanTooLargeError` with alternatives."""
        if copy is False:
            raise ValueError(f"{self.path}: rows on disk cannot be converted to an array without a copy")
        rows: Array = self[:]
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def head(self, count: int = 5) -> dict[str, Array]:
        """Return the first rows with their columns, as stored: {"x": (count, d), "y": (count,), …}.

        Text labels are returned as names, "" if unlabelled.
        """
        count = max(0, min(count, self.n_rows))
        columns = {"x": self[:count], **{name: self._read(0, count, name) for name in self.columns}}
        if "y" in columns:
            columns["y"] = named_labels(columns["y"], self.info.classes, unlabelled="")
        return columns

    def _repr_html_(self) -> str:
        info = self.info
        classes = [str(label) for label in info.classes]
        figures = {
            "path": self.path,
            "rows": self.n_rows,
            "features": self.n_features,
            "dtype": self.dtype,
            "columns": list(self.columns),
            "classes": [*classes[:12], *(["…"] if len(classes) > 12 else [])],
            "image shape": list(info.image_shape or ()),
            "chunk rows": self.chunk_rows,
            "source": info.source,
        }
        try:
            return html.table(f"corpus {info.name}", figures) + self.first_rows()
        except (BigKernelError, OSError, ValueError) as error:  # it was removed; its display must not fail
            return html.table(f"corpus {info.name}", {**figures, "now": str(error)})

    def first_rows(self) -> str:
        """Return the first rows as HTML: as images with their labels if they are images, else as numbers."""
        head, shape = self.head(10 if self.info.image_shape else 5), self.info.image_shape
        x = head.pop("x")
        if shape and shape[0] * shape[1] == x.shape[1] and len(x):
            labels = head.get("y", np.arange(len(x))).tolist()
            return html.pictures(shape, [image.tobytes() for image in html.grey(x.reshape(-1, *shape))], labels)
        head = {"row": np.arange(len(x)), **head}
        lines = zip(*(values.tolist() for values in head.values()), *x.T[:8].tolist(), strict=True)
        return html.columns([*head, *(f"x[{j}]" for j in range(min(x.shape[1], 8)))], [list(line) for line in lines])

    def _read(self, start: int, stop: int, name: str = "x") -> Array:
        array = self.array(name)
        zarr_arrays.require_chunks(array, zarr_arrays.chunk_keys(array, start, stop))
        return zarr_arrays.read(array, start, stop)

    def _require_room(self, rows: int) -> None:
        needed = rows * self.n_features * np.dtype(self.dtype).itemsize
        if needed > MOST_BYTES:
            raise PlanTooLargeError(
                f"{self.path}: {rows:,} rows of {self.n_features:,} {self.dtype} need {needed / 1e9:,.1f} GB of "
                f"memory, more than the limit of {MOST_BYTES / 1e9:.1f} GB for an index or np.asarray; pass the "
                "corpus itself to fit or predict, read a slice (corpus[start:stop]), or use the lazy corpus.x "
                "(corpus.x[:] reads all rows)"
            )


def open_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Open a complete corpus.

    Raises
    ------
    DataError
        Nothing there, not a corpus, of another format, not complete, or arrays that do not fit together.
    """
    store = zarr_arrays.open_store(path, "corpus")
    known = {key: value for key, value in store.attributes.items() if key in CorpusInfo.__dataclass_fields__}
    if (version := known.get("format")) != FORMAT:
        raise DataError(f"{path}: expected corpus format {FORMAT}, found {version!r}; ingest the source again")
    try:
        known |= checked_attributes(known.get("name"), known.get("image_shape"), known.get("scale", 1.0))
        known["encoding"] = TableEncoding.of(said) if (said := known.get("encoding")) else None
    except (ConfigError, DataError) as error:
        raise DataError(f"{path}: attributes are damaged: {error}") from None
    info = CorpusInfo(**{**known, **{key: tuple(known.get(key, ())) for key in ("classes", "feature_names")}})
    if not info.complete:
        raise DataError(f"{path}: incomplete corpus (writing was interrupted); write it again")
    x = store.array("x")
    if x.ndim != 2 or np.dtype(x.dtype).kind == "T":
        raise DataError(f"{path}/x: expected a matrix of numbers, found {x.dtype} of shape {x.shape}")
    if len(info.feature_names) not in (0, x.shape[1]):
        raise DataError(f"{path}: expected {x.shape[1]} feature_names, found {len(info.feature_names)}")
    columns = tuple(name for name in (*COLUMNS, *IDENTITY) if name in store.manifest.arrays)
    for name in columns:
        column = store.array(name)
        if column.shape != x.shape[:1]:
            raise DataError(f"{path}/{name}: expected shape ({x.shape[0]},) to match x, found {column.shape}")
        if np.dtype(column.dtype).kind == "T" and name != "id":
            raise DataError(f"{path}/{name}: expected numbers, found text")
    n_rows, n_features = x.shape
    dtype, digest = str(x.dtype), store.manifest.digest
    return Corpus(str(store.root), n_rows, n_features, x.chunks[0], dtype, columns, info, digest)


def chunk_rows_for(n_features: int, itemsize: int, n_rows: int | None = None) -> int:
    """Return the rows of a chunk: about `bigkernel.chunk-bytes`, and at most a segment of a sweep.

    With `n_rows` known, chunks divide them evenly.

    An even number of chunks for each of the plan's segments keeps the workers equally busy to the end.
    """
    config = settings()
    rows = max(1, min(config.segment_rows, int(config.chunk_bytes // max(1, n_features * itemsize))))
    if n_rows is None or n_rows <= rows // 2:
        return max(1, min(rows, n_rows or rows))
    unit = config.min_segments
    return min(rows, -(-n_rows // (-(-n_rows // rows // unit) * unit)) if n_rows > rows * 2 else -(-n_rows // unit))


def checked_attributes(name: Any, image_shape: Any, scale: Any) -> dict[str, Any]:
    """Return name, image shape and scale as plain str, two ints (or None) and float; raise ConfigError for others.

    This refuses what `open_corpus` would refuse before anything is written.
    """
    if not isinstance(name, str):
        raise ConfigError(f"name: expected a str, found {name!r}")
    if image_shape is not None:
        sides = tuple(image_shape) if isinstance(image_shape, tuple | list | np.ndarray) else ()
        if len(sides) != 2 or not all(map(_is_count, sides)):
            raise ConfigError(f"image_shape: expected (height, width), two whole numbers from 1, found {image_shape!r}")
        image_shape = int(sides[0]), int(sides[1])
    plain = isinstance(scale, int | float | np.integer | np.floating) and not isinstance(scale, bool)
    try:
        divisor = float(scale) if plain else math.nan
    except OverflowError:
        divisor = math.inf
    if not 0 < divisor < math.inf:
        raise ConfigError(f"scale: expected a finite number above 0, found {scale!r}")
    return {"name": str(name), "image_shape": image_shape, "scale": divisor}


def require_columns(name: str, names: Sequence[str], expected: Sequence[str], whose: str, target: str = "") -> None:
    """Raise `DataError` unless the names of columns, in any order, have each expected one once.

    `target` is the name of the column of labels, which may be a feature that was read as them.
    """
    counts = Counter(names)
    if missing := [column for column in expected if counts[column] != 1]:
        shown = ", ".join(repr(str(column)) for column in missing[:5]) + ", …" * (len(missing) > 5)
        hint = "; if the table has no labels, ingest it with --target none"
        hint *= target in missing or list(names) == list(expected[:-1])
        raise DataError(f"{name}: expected the {len(expected)} columns of {whose}, found no {shown}{hint}")


def require_same_columns(
    name: str, names: Sequence[str], expected: Sequence[str], whose: str, target: str = ""
) -> None:
    """Raise `DataError` unless the names of columns are the expected ones in their order; see `require_columns`."""
    require_columns(name, names, expected, whose, target)
    if list(names) != list(expected):
        more = sorted(set(names) - set(expected))
        order = list(map(str, expected)) if len(expected) <= 20 else "names"
        raise DataError(
            f"{name}: found the columns of {whose} {f'and {more[0]!r}' if more else 'in another order'}; ingest the "
            f"table with these columns in this order, in pandas table[{order}], and its target and ids"
        )


def require_count(name: str, value: Any) -> int | None:
    """Return a whole number from 1 as an int, or None unchanged; raise ConfigError for anything else."""
    if value is not None and not _is_count(value):
        raise ConfigError(f"{name}: expected a whole number from 1, or None, found {value!r}")
    return None if value is None else int(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


class CorpusWriter:
    """Writes a corpus chunk by chunk; used as a context manager.

    It writes beside the target, in `path`, and the corpus appears at `target` by one rename when the block has ended
    without an error; after an error nothing of it is left. Rows come in order through `append`.

    Parameters
    ----------
    target : where the corpus goes; must not exist unless `overwrite` (then only a corpus is replaced)
    n_features : int
    dtype : of the stored rows
    columns : mapping of column name to dtype; a name of `KEPT` in the place of "y" or "id" is for `store`
    info : CorpusInfo (its `complete` is ours to set)
    chunk_rows : None: `chunk_rows_for`
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        n_features: int,
        dtype: Any,
        columns: Mapping[str, Any],
        info: CorpusInfo,
        chunk_rows: int | None = None,
        overwrite: bool = False,
    ) -> None:
        unknown = sorted(set(columns) - {*COLUMNS, *IDENTITY, *KEPT.values()})
        if unknown:
            raise DataError(f"unknown corpus column {unknown[0]!r}; expected one of {', '.join(COLUMNS + IDENTITY)}")
        self.target = self.path = Path(target)
        self.info = replace(info, complete=False, **checked_attributes(info.name, info.image_shape, info.scale))
        itemsize = np.dtype(dtype).itemsize
        self.chunk_rows = require_count("chunk_rows", chunk_rows) or chunk_rows_for(n_features, itemsize)
        # row shape and dtype of every array
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {"x": ((n_features,), np.dtype(dtype))}
        self._shapes |= {name: ((), np.dtype(kind)) for name, kind in columns.items()}
        for name, (_, stored) in self._shapes.items():
            if (stored.kind not in "biuf" or stored.itemsize > 8) and (name, stored) != (KEPT["id"], TEXT):
                raise DataError(
                    f"{self.target}: {name}: expected numbers of at most 64 bits, found dtype {stored}; encode other "
                    "values as numbers, or convert with astype"
                )
        self._overwrite = overwrite
        self._pending: list[dict[str, Any]] = []
        self._pending_rows = 0
        self._being_written: Future[None] | None = None
        self.n_rows = 0

    def __enter__(self) -> CorpusWriter:
        atomic_write.require_target(self.target, "the corpus")
        with ExitStack() as stack:
            alone = stack.enter_context(claimed(self.target, "the corpus"))
            stack.enter_context(atomic_write.writing(self.target, passing=False))
            if alone:  # otherwise it may belong to another writer of this process
                atomic_write.clear_orphans(self.target)
            publishing = zarr_arrays.publishing(self.target, kind="corpus", overwrite=self._overwrite)
            self.path = stack.enter_context(publishing)
            self._group = zarr.create_group(self.path, zarr_format=3, attributes=self._attributes())
            self._arrays = {name: self._create(name, (0, *tail), dtype) for name, (tail, dtype) in self._shapes.items()}
            # entered last, so that writing ends before anything is published or removed
            self._thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="bigkernel-write"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        with self._stack:
            if error is not None:
                raise error
            self._write_rest()
            for array in self._arrays.values():
                zarr_arrays.require_chunks(array)
            self.info = replace(self.info, complete=True)
            self._group.attrs.update(self._attributes())

    def append(self, **rows: Any) -> None:
        """Add rows at the end: `x` (k, d) and every column (k,).

        They are copied, so that the caller may reuse its arrays. Full chunks are written by a thread while the caller
        reads on; an error of writing is raised by a later call or at the end of the block.
        """
        count = np.shape(rows["x"])[0]
        for name, (tail, _) in self._shapes.items():
            shape = np.shape(rows.get(name, ()))
            if shape != (count, *tail):
                raise DataError(f"{self.path}/{name}: expected shape {(count, *tail)}, found {shape}")
        self._pending.append({name: np.array(rows[name]) for name in self._shapes})
        self._pending_rows += count
        if self._pending_rows >= self.chunk_rows:
            self._flush(everything=False)

    def store_labels(self, labels: Labels) -> None:
        """Store the column `y` from the labels kept with the rows, once all are there; see `Labels`."""
        self.store("y", labels.dtype, labels.stored)
        self.info = replace(self.info, classes=labels.classes)

    def store(self, name: str, dtype: np.dtype[Any], stored: Callable[[Array], Array]) -> None:
        """Store a column of `KEPT` in its final form, once all rows are there."""
        self._write_rest()
        with atomic_write.writing(self.target, passing=False):
            kept = self._arrays.pop(KEPT[name])
            place = zarr_arrays.directory_of(kept)
            column = self._arrays[name] = self._create(name, (self.n_rows,), dtype)
            for start in range(0, self.n_rows, self.chunk_rows):
                values = zarr_arrays.read(kept, start, min(start + self.chunk_rows, self.n_rows))
                zarr_arrays.write(column, start, stored(values))
            shutil.rmtree(place)

    def _create(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> zarr.Array:
        return zarr_arrays.create(self._group, name, shape=shape, chunks=(self.chunk_rows, *shape[1:]), dtype=dtype)

    def _write_rest(self) -> None:
        self._flush(everything=True)
        self._await_writing()

    def _flush(self, *, everything: bool) -> None:
        if not self._pending_rows:
            return
        rows = {name: np.concatenate([piece[name] for piece in self._pending]) for name in self._shapes}
        whole = self._pending_rows if everything else self._pending_rows // self.chunk_rows * self.chunk_rows
        self._pending = [{name: values[whole:] for name, values in rows.items()}]
        self._pending_rows -= whole
        self._await_writing()  # chunks are written in order, and few are held in memory
        first, self.n_rows = self.n_rows, self.n_rows + whole
        full = {name: values[:whole] for name, values in rows.items()}
        self._being_written = self._thread.submit(self._write, first, full)

    def _write(self, first: int, rows: dict[str, Array]) -> None:
        """Write rows from `first`, the first of a chunk, to every array."""
        with atomic_write.writing(self.target, passing=False):
            for name, array in self._arrays.items():
                array.resize((first + len(rows[name]), *array.shape[1:]))
                zarr_arrays.write(array, first, _fitting(rows[name], array.dtype, name))

    def _await_writing(self) -> None:
        """Raise the error of the last write, if any."""
        being_written, self._being_written = self._being_written, None
        if being_written is not None:
            being_written.result()

    def _attributes(self) -> dict[str, Any]:
        return {zarr_arrays.ATTRIBUTE: {"kind": "corpus", **asdict(self.info)}}


def _fitting(values: Array, dtype: Any, name: str) -> Array:
    """Cast values to the stored dtype; raise an error if that changes one (300 to uint8, 0.5 to an integer)."""
    if np.can_cast(values.dtype, dtype, "safe"):
        return values
    cast, changed = zarr_arrays.cast_values(values, np.dtype(dtype))
    if changed.any():
        raise DataError(f"{name}: value {values[changed][0]} cannot be stored as {np.dtype(dtype)}")
    return cast
