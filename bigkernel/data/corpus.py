"""A corpus: rows on disk, chunk by chunk, with the columns that go with them.

A corpus is a zarr v3 group with `x` (n, d) and, where known, `y` (n,), `weight` (n,), `domain` (n,) and `group` (n,).
Its attributes say what it is (name, source, classes, image shape, scale) and whether it is complete. All columns share
`chunk_rows`, a chunk is written whole, once, and read through its checksum. Unlabelled rows carry −1 where labels are
classes (integers) and NaN where they are numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bigkernel.config import settings
from bigkernel.data import atomic_write, zarr_arrays
from bigkernel.data.batches import COLUMNS
from bigkernel.data.chunk_check import Looked, labels_of, look_store
from bigkernel.data.corpus_arguments import checked_attributes, require_count
from bigkernel.data.corpus_arrays import KEPT_LABELS, CorpusArrays, joined
from bigkernel.data.corpus_rows import CorpusRows
from bigkernel.data.targets import claimed, require_target
from bigkernel.errors import DataError

FORMAT = 2


@dataclass(frozen=True)
class CorpusInfo:
    """The attributes of a corpus.

    `classes` lists the labels in order, empty when `y` holds numbers or is absent; where they are strings, `y` holds
    positions in the list. `image_shape` is (height, width) of a row seen as a picture, or None. `scale` divides stored
    values into the range that the source means (255 for 8-bit pixels).
    """

    name: str
    source: str = ""
    classes: tuple[int | str, ...] = ()
    image_shape: tuple[int, int] | None = None
    scale: float = 1.0
    complete: bool = False
    format: int = FORMAT


@dataclass(frozen=True)
class Corpus(CorpusRows):
    """A corpus opened for reading; plain picklable data (the path and what the attributes say).

    `len`, slices and `np.asarray` read rows; see `head` and `x`.

    Attributes
    ----------
    path : str
    n_rows, n_features, chunk_rows : int
    dtype : str
        Of the stored rows, e.g. "uint8".
    columns : tuple of str
        Which of y, weight, domain and group are there.
    info : CorpusInfo
    seal : str
        What tells the content that was opened from any other.
    """

    path: str
    n_rows: int
    n_features: int
    chunk_rows: int
    dtype: str
    columns: tuple[str, ...]
    info: CorpusInfo
    seal: str = field(default="", compare=False, repr=False)

    def array(self, name: str) -> zarr.Array:
        """The zarr array of `x` or of a column."""
        group, *_ = zarr_arrays.open_group(self.path, "corpus")
        return zarr_arrays.open_array(group, name)

    def column(self, name: str) -> NDArray[Any]:
        """A whole column, shape (n_rows,): 8 bytes a row at most."""
        array = self.array(name)
        zarr_arrays.require_chunks(array)
        return zarr_arrays.read(array, 0, self.n_rows)

    def look(self) -> Iterator[Looked]:
        """Read every chunk of every array through its checksum, and look at every value.

        Damage to a chunk, rows of `x` or `weight` that are not finite, labels that are not among the classes, and
        chunks that are not those that were sealed come with the chunk or array in question.
        """
        arrays = {name: self.array(name) for name in ("x", *self.columns)}
        return look_store(Path(self.path), arrays, labels_of(self.info.classes))


def open_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Open a complete corpus.

    Raises
    ------
    DataError
        Nothing there, not a corpus, of another format, not complete, arrays that do not fit together, or another
        store that took its place meanwhile.
    """
    with zarr_arrays.opened(path, "corpus") as (group, attributes, seal):
        return _corpus_of(path, group, attributes, seal.digest)


def _corpus_of(path: str | os.PathLike[str], group: zarr.Group, attributes: Mapping[str, Any], seal: str) -> Corpus:
    known = {key: value for key, value in attributes.items() if key in CorpusInfo.__dataclass_fields__}
    if known.get("format") != FORMAT:
        raise DataError(
            f"{path}: corpus of format {known.get('format')!r}, this version reads format {FORMAT}; ingest its source "
            "again"
        )
    pixels = known.get("image_shape")
    if not isinstance(known.get("name"), str):
        raise DataError(f"{path}: its attributes lack the name of the corpus; it is damaged")
    scale = known.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise DataError(f"{path}: scale must be a number above 0, found {scale!r}")
    info = CorpusInfo(
        **{**known, "classes": tuple(known.get("classes", ())), "image_shape": tuple(pixels) if pixels else None}
    )
    if not info.complete:
        raise DataError(f"{path}: this corpus is not complete (its writing was interrupted); write it again")
    x = zarr_arrays.open_array(group, "x")
    shape, chunk_rows = tuple(x.shape), x.chunks[0]
    if len(shape) != 2:
        raise DataError(f"{path}/x: expected a matrix, found shape {shape}")
    there = zarr_arrays.array_names(group)
    columns = tuple(name for name in COLUMNS if name in there)
    for name in columns:
        column = zarr_arrays.open_array(group, name)
        if column.shape != (shape[0],):
            raise DataError(f"{path}/{name}: expected shape ({shape[0]},) to go with x, found {column.shape}")
    return Corpus(os.path.abspath(path), shape[0], shape[1], chunk_rows, str(x.dtype), columns, info, seal)


def chunk_rows_for(n_features: int, itemsize: int, n_rows: int | None = None) -> int:
    """Rows of a chunk: about `bigkernel.chunk-bytes`; with `n_rows` known, a number of chunks that divides evenly.

    An even number of chunks for each of the plan's segments keeps the workers equally busy to the end.
    """
    wanted = settings()
    rows = max(1, int(wanted.chunk_bytes // max(1, n_features * itemsize)))
    if n_rows is None or n_rows <= rows // 2:
        return max(1, min(rows, n_rows or rows))
    unit = wanted.min_segments
    return min(rows, -(-n_rows // (-(-n_rows // rows // unit) * unit)) if n_rows > rows * 2 else -(-n_rows // unit))


class CorpusWriter:
    """Writes a corpus chunk by chunk; used as a context manager.

    It writes beside the target, in `path`, and the corpus appears at `target` by one rename when the block has ended
    without an error; after an error nothing of it is left. Rows come in order through `append`.

    With `keep`, an error leaves the chunks where they are, and a writer of the same rows and token goes on with them
    under `resume`: `append` is given all rows again and passes over those of the leading chunks that read back
    (`kept_rows`).

    Parameters
    ----------
    target : where the corpus goes; must not exist unless `overwrite` (then only a corpus is replaced)
    n_features : int
    dtype : of the stored rows
    columns : mapping of column name to dtype; with `KEPT_LABELS` in the place of "y", `store_labels` makes it of them
    info : CorpusInfo (its `complete` is ours to set)
    chunk_rows : None: `chunk_rows_for`
    keep, resume : see `atomic_write.publishing`

    Raises
    ------
    DataError
        A target that exists or cannot be written (a full disk, …), rows that do not fit, chunks that are missing.
    ConfigError
        A name, image shape, scale or chunk_rows that is none.
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
        keep: str = "",
        resume: bool = False,
    ) -> None:
        unknown = sorted(set(columns) - {*COLUMNS, KEPT_LABELS})
        if unknown:
            raise DataError(f"unknown corpus column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
        self.target = self.path = Path(target)
        attributes = checked_attributes(info.name, info.image_shape, info.scale)
        self.info = replace(info, complete=False, **attributes)
        itemsize = np.dtype(dtype).itemsize
        self.chunk_rows = require_count("chunk_rows", chunk_rows) or chunk_rows_for(n_features, itemsize)
        self.n_rows = 0
        self._shapes: dict[str, tuple[tuple[int, ...], Any]] = {"x": ((n_features,), np.dtype(dtype))}
        self._shapes.update({name: ((), np.dtype(kind)) for name, kind in columns.items()})
        for name, (_, found) in self._shapes.items():
            if found.kind not in "biuf" or found.itemsize > 8:
                raise DataError(
                    f"{self.target}: {name}: expected numbers of at most 64 bits, found dtype {found}; number what is "
                    "none, or convert with astype"
                )
        self._overwrite, self._keep, self._resume = overwrite, keep, resume
        self._pending: list[dict[str, Any]] = []
        self._pending_rows = 0
        self._being_written: Future[None] | None = None
        self._seen_rows = 0
        self.kept_rows = 0

    def __enter__(self) -> CorpusWriter:
        require_target(self.target, "the corpus")
        with ExitStack() as stack:
            stack.enter_context(claimed(self.target, "the corpus"))
            stack.enter_context(atomic_write.writing(self.target, passing=False))
            publishing = atomic_write.publishing(
                self.target, kind="corpus", overwrite=self._overwrite, keep=self._keep, resume=self._resume
            )
            self.path = stack.enter_context(publishing)
            self._group = zarr.create_group(self.path, zarr_format=3, attributes=self._attributes())
            self._arrays = CorpusArrays(self._group, self._shapes, self.chunk_rows)
            if self._resume:
                self.n_rows = self.kept_rows = self._arrays.recover()
            # entered last: what it writes has ended before anything is published or removed
            self._thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="bigkernel-write"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        with self._stack:
            if error is not None:
                raise error
            self._write_rest()
            self._arrays.finish()
            self.info = replace(self.info, complete=True)
            self._group.attrs.update(self._attributes())

    def append(self, **rows: Any) -> None:
        """Add rows at the end: `x` (k, d) and every column (k,).

        They are copied, so that the caller may fill its arrays anew. Chunks are written as they fill, by a thread,
        while the caller reads on: an error of writing is raised by a later call, or at the end of the block.
        """
        count = np.shape(rows["x"])[0]
        for name, (tail, _) in self._shapes.items():
            found = np.shape(rows.get(name, ()))
            if found != (count, *tail):
                raise DataError(f"{self.path}/{name}: expected shape {(count, *tail)}, found {found}")
        passed = min(count, max(0, self.kept_rows - self._seen_rows))
        self._seen_rows += count
        self._pending.append({name: np.array(rows[name])[passed:] for name in self._shapes})
        self._pending_rows += count - passed
        if self._pending_rows >= self.chunk_rows:
            self._flush(everything=False)

    def store_labels(self, labels: Any) -> None:
        """Store the column `y`, once all rows are there, from the labels that were kept with them; see `Labels`."""
        self._write_rest()
        with atomic_write.writing(self.target, passing=False):
            self._arrays.store_labels(labels, self.n_rows)
        self.info = replace(self.info, classes=labels.classes)

    def _write_rest(self) -> None:
        self._flush(everything=True)
        self._await_writing()
        if self._seen_rows < self.kept_rows:  # the last chunk was kept, and is not full
            self._arrays.resize(self._seen_rows)
            self.n_rows = self.kept_rows = self._seen_rows

    def _flush(self, *, everything: bool) -> None:
        if not self._pending_rows:
            return
        rows = joined(self._pending)
        whole = self._pending_rows if everything else self._pending_rows // self.chunk_rows * self.chunk_rows
        self._pending = [{name: values[whole:] for name, values in rows.items()}]
        self._pending_rows -= whole
        self._await_writing()  # chunks are written in order, and few are held in memory
        first, self.n_rows = self.n_rows, self.n_rows + whole
        part = {name: values[:whole] for name, values in rows.items()}
        self._being_written = self._thread.submit(self._write, first, self.n_rows, part)

    def _write(self, first: int, stop: int, rows: dict[str, Any]) -> None:
        with atomic_write.writing(self.target, passing=False):
            self._arrays.resize(stop)
            self._arrays.write(first, rows)

    def _await_writing(self) -> None:
        """Raise what the writing of the last rows raised."""
        being_written, self._being_written = self._being_written, None
        if being_written is not None:
            being_written.result()

    def _attributes(self) -> dict[str, Any]:
        return {zarr_arrays.ATTRIBUTE: {"kind": "corpus", **asdict(self.info)}}
