"""The writer of corpora: `write_corpus` takes Python objects or iterators, `ingest` takes files.

Shapes: n rows, d features; a batch has k rows. Batches of a few MB stream through `fill` into a `CorpusWriter`: memory
does not depend on n, and a corpus appears when it is complete. Arrays, frames and matrices of other libraries are
recognised by their attributes, without importing these libraries.

A split is by a hash of a row's number or group, that of `folds.HashFolds`: a row falls on the same side on every
machine and in every pass, and rows appended to a file do not move earlier ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.data.atomic_write import require_target
from bigkernel.data.containers import batches_in, by_name, contained, is_dask_array, is_dask_frame, names_of, plain
from bigkernel.data.corpus import (
    COLUMNS,
    IDENTITY,
    KEPT,
    TEXT,
    Corpus,
    CorpusInfo,
    CorpusWriter,
    checked_attributes,
    open_corpus,
    require_count,
)
from bigkernel.data.labels import Classes, Labelling, hash_names
from bigkernel.errors import ConfigError, DataError
from bigkernel.streaming.chunk import Chunk, nonfinite_rows
from bigkernel.streaming.folds import HashFolds

_SHARES = 10**6  # shares are counted in millionths
_FILE_ROWS = 2**40  # row i of file f has the number f·2⁴⁰ + i, so that rows of one file do not move those of another
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def write_corpus(
    path: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    *,
    weight: Any = None,
    domain: Any = None,
    group: Any = None,
    ids: Any = None,
    classes: Classes = "auto",
    name: str | None = None,
    image_shape: tuple[int, int] | None = None,
    scale: float = 1.0,
    chunk_rows: int | None = None,
    overwrite: bool = False,
) -> Corpus:
    """Write rows and their columns as a corpus, chunk by chunk; it appears when it is complete.

    Parameters
    ----------
    path : of the corpus; must not exist, unless `overwrite` (then only a corpus is replaced)
    X : (n, d) of numbers, or (n, h, w) of images, stored in their own dtype; bool as uint8
        A NumPy, Dask, zarr or xarray array, a frame (pandas, Polars, Dask, Arrow), `Rows`, a corpus, a sparse matrix, a
        pair (X, y), or an iterator or list of batches: (k, d), pairs (X, y), or mappings {"x": …, "y": …, "weight": …}.
        Columns of frames have the names, in any order, of those of the first one.
    y : labels (n,), or None. Whole numbers and text become classes, as `classes` says, among which −1 and "-1" mean
        unlabelled; others are numbers, among which NaN does.
    weight, domain, group : (n,), or None; groups may be text
    ids : (n,) of whole numbers or text that predictions repeat, or None
    classes : "auto", True or False
        "auto": whole numbers (3 or 3.0) are classes if at most 10 are distinct, or 20 that are 0 … k − 1 or 1 … k, or
        1,000 labels of images.
    name : of the corpus; None: that of its directory
    image_shape : (h, w) of a row
    scale : divides stored values into the range of the source (255 for 8-bit pixels)
    chunk_rows : None: about `bigkernel.chunk-bytes` (8 MB) of rows

    Raises
    ------
    ConfigError
        An invalid name, image shape, scale or chunk_rows; nothing is read or written.
    DataError
        Rows that are not a matrix of finite numbers, columns of other lengths, a target that exists or cannot be
        written, or no row. Nothing is left at `path`.
    PlanTooLargeError
        The rows do not fit on the disk.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from bigkernel import write_corpus
    >>> folder = tempfile.TemporaryDirectory()
    >>> corpus = write_corpus(pathlib.Path(folder.name, "ab"), np.eye(3), ["b", "a", "b"])
    >>> corpus.info.classes, corpus[:2], corpus.head(2)["y"].tolist()
    (('a', 'b'), array([[1., 0., 0.],
           [0., 1., 0.]]), ['b', 'a'])
    >>> folder.cleanup()
    """
    given = {"y": y, "weight": weight, "domain": domain, "group": group, "id": ids}
    given = {column: values for column, values in given.items() if values is not None}
    named = os.path.basename(os.path.abspath(path)) if name in (None, "") else name
    attributes, chunk_rows = checked_attributes(named, image_shape, scale), require_count("chunk_rows", chunk_rows)
    if not (isinstance(classes, bool) or (isinstance(classes, str) and classes == "auto")):
        raise DataError(f"classes: expected 'auto', True or False, found {classes!r}")
    if classes == "auto" and y is None and hasattr(X, "batches"):
        classes = bool(getattr(getattr(X, "info", X), "classes", ()))  # as they were
    require_target(path, "the corpus", needed_bytes=_size_bytes(X))
    first, batches = peek(batches_of(X, given), os.fspath(path))
    info = _info_of(X, first, attributes)
    with writer_for(path, first, info, chunk_rows=chunk_rows, overwrite=overwrite) as writer:
        fill([writer], batches, Labelling(classes, images=info.image_shape is not None))
    return open_corpus(path)


def _info_of(X: Any, first: Batch, attributes: dict[str, Any]) -> CorpusInfo:
    """Return the attributes of a corpus of X, given its first batch; raise `DataError` for images of another size."""
    shape = attributes["image_shape"] or first.image_shape or getattr(getattr(X, "info", None), "image_shape", None)
    if shape is not None and shape[0] * shape[1] != (width := first.values["x"].shape[1]):
        h, w = shape
        raise DataError(f"image_shape: expected {width} pixels as in a row, found {h}×{w} = {h * w}")
    names = first.names if all(isinstance(name, str) for name in first.names) else ()
    known: dict[str, Any] = {**attributes, "image_shape": shape, "feature_names": tuple(map(str, names))}
    return CorpusInfo(**known, source="Python", id_column=getattr(getattr(X, "info", X), "id_column", "") or "id")


def _size_bytes(X: Any) -> int:
    """Return the bytes of rows if known beforehand and not compressed; else 0."""
    shape, dtype = getattr(X, "shape", ()), getattr(X, "dtype", None)
    known = dtype is not None and not hasattr(X, "nnz") and all(isinstance(size, int | np.integer) for size in shape)
    return int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize if known else 0


def peek(batches: Iterator[Batch], what: str) -> tuple[Batch, Iterator[Batch]]:
    """Return the first batch, and an iterator over all of them."""
    first = next(batches, None)
    if first is None:
        raise DataError(f"{what}: expected at least one row, found none")
    return first, chain([first], batches)


def writer_for(path: str | os.PathLike[str], first: Batch, info: CorpusInfo, **options: Any) -> CorpusWriter:
    """Return the writer of rows like those of the first batch."""
    kinds: dict[str, Any] = {key: values.dtype for key, values in first.values.items() if key not in ("x", "y")}
    kinds |= {KEPT["y"]: np.float64} if "y" in first.values else {}
    kinds |= {KEPT["id"]: TEXT} if kinds.pop("id", None) else {}
    x = first.values["x"]
    return CorpusWriter(path, n_features=x.shape[1], dtype=x.dtype, columns=kinds, info=info, **options)


def fill(
    writers: Sequence[CorpusWriter], batches: Iterator[Batch], labelling: Labelling, split: Split | None = None
) -> int:
    """Append all rows to the writers, one for each side of a split, store labels and ids; return the row count."""
    done, written, kind, whole = 0, [0] * len(writers), None, True
    for batch in batches:
        kind = kind or batch.kind
        if batch.kind != kind:
            (width, columns), (expected, before) = batch.kind, kind
            raise DataError(
                f"{batch.name}: expected rows of {expected} features with {', '.join(before) or 'none'} as in the "
                f"first batch, found {width} with {', '.join(columns) or 'no column'}"
            )
        batch.require_finite()
        values = dict(batch.values)
        count = len(values["x"])
        if "y" in values:
            values[KEPT["y"]] = labelling.encode(values.pop("y"), batch.name, batch.rows)
        if "row" in values:
            values["row"] = batch.first_row + values["row"]
        if "id" in values:
            ids = values.pop("id")
            if ids.dtype.kind not in "iuUT" and not all(isinstance(one, str | int) for one in ids.tolist()):
                raise DataError(f"{batch.name}: expected whole numbers or text as ids, found {ids.dtype} {ids[:2]}")
            whole &= np.can_cast(ids.dtype, np.int64)
            values[KEPT["id"]] = ids.astype(TEXT)
        sides = None if split is None else split.sides(batch.start, count, file=batch.file, group=values.get("group"))
        for side, writer in enumerate(writers):
            selected = values if sides is None else {key: column[sides == side] for key, column in values.items()}
            if len(selected["x"]):
                writer.append(**selected)
            written[side] += len(selected["x"])
        done += count
    for writer, count in zip(writers, written, strict=True):
        if not count:
            raise DataError(f"{writer.target}: found no row in this split among {done} rows ({split}); choose another")
    if kind and "y" in kind[1]:
        labels = labelling.decide(os.fspath(writers[0].target))
        for writer in writers:
            writer.store_labels(labels)
    if kind and "id" in kind[1]:
        kind_of_ids = np.dtype(np.int64) if whole else TEXT
        for writer in writers:
            writer.store("id", kind_of_ids, lambda kept: kept.astype(kind_of_ids))
    return done


# ---------------------------------------------------------------- splits and batches


@dataclass(frozen=True)
class Split:
    """Named shares of the rows, each for a separate corpus; the rest stays."""

    shares: Mapping[str, float]  # above 0, their sum below 1; resolved to a millionth
    by: Literal["row", "group"] = "row"
    seed: int = 0  # another seed, other rows

    def __post_init__(self) -> None:
        for name, share in self.shares.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(f"split: expected a name of letters, digits and _, such as test, found {name!r}")
            if not 1 / _SHARES <= share < 1:
                raise ConfigError(
                    f"split: expected a share of the rows between 0 and 1, such as 0.1, found {name}={share}"
                )
        if not self.shares or sum(self.shares.values()) >= 1:
            raise ConfigError(f"split: expected shares whose sum is below 1, found {self}")
        if self.by not in ("row", "group"):
            raise ConfigError(f"split: expected by row or group, found {self.by!r}")

    def __str__(self) -> str:
        shares = " ".join(f"{name}={share:g}" for name, share in self.shares.items())
        return f"{shares} by {self.by}, seed {self.seed}"

    def sides(self, start: int, rows: int, *, file: int = 0, group: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Return the side of each of the rows `start` and up of a file, (rows,): 0 stays, 1 is the first share.

        `group` is (rows,) int64, where `by` is "group".
        """
        chunk = Chunk(np.empty((rows, 0)), file * _FILE_ROWS + start, group=group)
        place = HashFolds(_SHARES, self.seed, self.by).of(chunk)
        ends = np.round(np.cumsum(list(self.shares.values())) * _SHARES).astype(np.int64)
        side = np.searchsorted(ends, place, side="right") + 1
        return np.where(side > len(ends), 0, side).astype(np.int64)


def split_path(target: str | os.PathLike[str], name: str) -> Path:
    """Return the path of a share of the corpus at `target`, as train-test.corpus for train.corpus; "": `target`."""
    path = Path(target)
    return path.with_name(f"{path.stem}-{name}{path.suffix}") if name else path


@dataclass(frozen=True)
class Batch:
    """Rows `start` and up of `name`, as arrays by name: x (k, d), and y, weight, domain, group, row, id (k,)."""

    name: str
    start: int
    values: dict[str, Array]
    file: int = 0
    first_row: int = 0  # number of rows in earlier files
    image_shape: tuple[int, int] | None = None
    names: tuple[Any, ...] = ()  # of the features

    @property
    def rows(self) -> Array:
        """The numbers of the rows in their source, (k,)."""
        return self.values.get("row", self.start + np.arange(len(self.values["x"])))

    @property
    def kind(self) -> tuple[int, list[str]]:
        """Properties that all batches of a corpus share: features, and names of columns."""
        return self.values["x"].shape[1], sorted(set(self.values) - {"x"})

    def require_finite(self) -> None:
        """Raise an error for rows or weights that are not finite, or whole numbers that float64 rounds."""
        for name in ("x", "weight"):
            values = self.values.get(name)
            if values is not None and (bad := nonfinite_rows(values)) is not None:
                found = "NaN or infinite values" if values.dtype.kind == "f" else "whole numbers beyond 2**53"
                raise DataError(
                    f"{self.name}: found rows with {found} in {name}, the first are "
                    f"{self.rows[bad][:5].tolist()} (from 0); clean or remove them"
                )


def batches_of(X: Any, columns: Mapping[str, Any]) -> Iterator[Batch]:
    """Yield the rows of X as accepted by `write_corpus`, with their columns, each (n,)."""
    if several := batches_in(X):
        first = several[0]
        if hasattr(first, "dtype") and not (hasattr(first, "tocsr") or hasattr(first, "batches")):
            raise DataError(
                f"X: found a {type(X).__name__} of {len(X)} arrays of two or more dimensions; pass iter(X) if they are "
                "batches of rows, numpy.stack(X) if they are images"
            )
        X = iter(several)
    if isinstance(X, Iterator):
        if columns:
            raise DataError(
                f"{next(iter(columns))}: expected in each batch, as a pair (X, y), because X is an iterator of batches"
            )
        names: tuple[Any, ...] = ()
        for number, piece in enumerate(X):
            name, (rows, own) = f"batch {number} of X", _rows_and_columns(piece)
            names = names if number else names_of(rows)
            yield from _of_values(name, by_name(rows, names, name, "the first batch"), own)
    elif hasattr(X, "batches"):  # a corpus, rows, a source
        yield from _joined((Batch("X", 0, values, names=names_of(X)) for values in X.batches()), columns)
    else:
        yield from _of_values("X", X, columns)


def _of_values(name: str, X: Any, columns: Mapping[str, Any]) -> Iterator[Batch]:
    def batch_of(x: Array) -> Batch:
        if x.dtype.kind not in "biuf" or x.ndim not in (2, 3) or not x[:1].size > 0 < len(x):
            raise DataError(f"{name}: expected numbers (n, d), or images (n, h, w), found {x.dtype} of shape {x.shape}")
        shape = (int(x.shape[1]), int(x.shape[2])) if x.ndim == 3 else None
        rows = x.reshape(len(x), -1)
        values = {"x": rows.astype(np.uint8) if rows.dtype.kind == "b" else rows}
        return Batch(name, 0, values, image_shape=shape, names=names_of(X))

    return _joined(map(batch_of, _pieces(X, name)), columns)


def _joined(batches: Iterator[Batch], columns: Mapping[str, Any]) -> Iterator[Batch]:
    """Yield batches with their position, and with the matching portions of the columns."""
    pieces = {key: _pieces(values, key) for key, values in columns.items()}
    held: dict[str, Array | None] = dict.fromkeys(columns)
    start = 0
    for batch in batches:
        count, taken = len(batch.values["x"]), dict[str, Array]()
        for key in columns:
            while (have := held[key]) is None or len(have) < count:
                if (more := next(pieces[key], None)) is None:
                    raise DataError(f"{key}: expected one value per row, found fewer")
                held[key] = more if have is None else np.concatenate([have, more])
            taken[key], held[key] = have[:count], have[count:]
        yield replace(batch, start=start, values={**batch.values, **taken})
        start += count
    for key, have in held.items():
        if left := len(have if have is not None else ()) + sum(map(len, pieces[key])):
            raise DataError(f"{key}: expected {start} values to match X, found {start + left}")


def _rows_and_columns(piece: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the rows and columns of an item of an iterator."""
    if isinstance(piece, Mapping):
        known = COLUMNS + IDENTITY
        if "x" not in piece or set(piece) - {"x", *known}:
            raise DataError(f"X: expected x and any of {', '.join(known)}, found {', '.join(map(str, piece))}")
        return piece["x"], {key: values for key, values in piece.items() if key != "x"}
    if isinstance(piece, tuple):
        if len(piece) != 2:
            raise DataError(f"X: expected a batch (X, y), found a tuple of {len(piece)}")
        return piece[0], {"y": piece[1]}
    return piece, {}


def _pieces(values: Any, name: str) -> Iterator[Array]:
    """Yield rows (k, …), about a chunk at a time, of an array, frame or matrix, in memory or lazy."""
    if is_dask_frame(values):
        for part in values.to_delayed():
            piece = part.compute()
            yield from _pieces(by_name(piece, names, name, "the frame") if (names := names_of(values)) else piece, name)
        return
    labels = name in ("y", "domain", "group", "row", "id")
    values = contained(values, name, labels=labels)
    if is_dask_array(values):
        for block in np.ravel(values.rechunk(dict.fromkeys(range(1, values.ndim), -1)).to_delayed()):
            yield from _pieces(block.compute(), name)
        return
    if not values.ndim:
        raise DataError(f"expected rows or a column, found {values!r}")
    row_bytes = int(np.prod(values.shape[1:], dtype=object)) * values.dtype.itemsize
    rows, whole = int(settings().chunk_bytes // max(1, row_bytes)), getattr(values, "chunks", (1,))[0]
    rows = whole * max(1, rows // whole)
    for start in range(0, values.shape[0], rows):
        piece = plain(values[start : start + rows], name, labels=labels)
        yield hash_names(piece) if name == "group" and piece.dtype.kind in "OTU" else piece
