"""The one writer of corpora: `write_corpus`, of what Python holds or makes piece by piece; `ingest` gives it files.

Shapes: n rows, d features. Whatever the rows come from, batches of them stream through `fill` into a `CorpusWriter`, so
that memory does not depend on n, and a corpus appears when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from bigkernel.data.batches import Batch, batches_of
from bigkernel.data.corpus import (
    KEPT_LABELS,
    Corpus,
    CorpusInfo,
    CorpusWriter,
    checked_attributes,
    open_corpus,
    require_count,
)
from bigkernel.data.labels import Classes, Labelling
from bigkernel.data.split import Split
from bigkernel.data.targets import require_target
from bigkernel.errors import DataError


def write_corpus(
    path: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    *,
    weight: Any = None,
    domain: Any = None,
    group: Any = None,
    classes: Classes = "auto",
    name: str | None = None,
    image_shape: tuple[int, int] | None = None,
    scale: float = 1.0,
    chunk_rows: int | None = None,
    overwrite: bool = False,
) -> Corpus:
    """Write rows and what goes with them as a corpus, chunk by chunk; it appears when it is whole.

    Parameters
    ----------
    path : where the corpus goes; must not exist, unless `overwrite` (then only a corpus is replaced)
    X : (n, d) of numbers, or (n, h, w), which are pictures
        A NumPy, Dask, zarr or xarray array, a frame (pandas, Dask, Arrow), `Rows` or a corpus; a SciPy sparse matrix,
        which becomes dense a piece at a time; or an iterator of pieces (k, d), of pairs (X, y) of them, or of mappings
        {"x": …, "y": …, "weight": …}. It is stored in its own dtype; bool as uint8.
    y : labels (n,), or None. Whole numbers and text become classes, as `classes` says, −1 and "-1" among them meaning
        unlabelled; all else is numbers, NaN where there is none.
    weight, domain, group : (n,), or None
    classes : "auto", True or False
        "auto": whole numbers are classes where at most 1,000 differ.
    name : of the corpus; None: that of its directory
    image_shape : (h, w) of a row, where rows are pictures
    scale : divides stored values into the range that is meant (255 for pixels of 8 bits)
    chunk_rows : None: about `bigkernel.chunk-bytes` (8 MB) of rows

    Raises
    ------
    ConfigError
        A name, image shape, scale or chunk_rows that is none; nothing is read or written then.
    DataError
        Rows that are no matrix of finite numbers, columns of other lengths, a target that exists or cannot be written,
        no row at all. Nothing is left at `path` then.
    PlanTooLarge
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
    given = {"y": y, "weight": weight, "domain": domain, "group": group}
    given = {column: values for column, values in given.items() if values is not None}
    named = os.path.basename(os.path.abspath(path)) if name in (None, "") else name
    attributes, chunk_rows = checked_attributes(named, image_shape, scale), require_count("chunk_rows", chunk_rows)
    if not (isinstance(classes, bool) or (isinstance(classes, str) and classes == "auto")):
        raise DataError(f"classes: expected 'auto', True or False, found {classes!r}")
    if classes == "auto" and y is None and hasattr(X, "batches"):
        classes = bool(getattr(getattr(X, "info", X), "classes", ()))  # as they were
    require_target(path, "the corpus", needed_bytes=_size_bytes(X))
    first, batches = peek(batches_of(X, given), os.fspath(path))
    info = CorpusInfo(**attributes, source="Python")
    if info.image_shape is None:
        info = replace(info, image_shape=first.image_shape or getattr(getattr(X, "info", None), "image_shape", None))
    width = first.values["x"].shape[1]
    if info.image_shape is not None and info.image_shape[0] * info.image_shape[1] != width:
        height, breadth = info.image_shape
        raise DataError(f"image_shape: pictures of {height} by {breadth} have {height * breadth} pixels, rows {width}")
    with writer_for(path, first, info, chunk_rows=chunk_rows, overwrite=overwrite) as writer:
        fill([writer], batches, Labelling(classes))
    return open_corpus(path)


def _size_bytes(X: Any) -> int:
    """Return the bytes of rows, where they are known beforehand and do not shrink; else 0."""
    shape, dtype = getattr(X, "shape", ()), getattr(X, "dtype", None)
    known = dtype is not None and not hasattr(X, "nnz") and all(isinstance(size, int | np.integer) for size in shape)
    return int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize if known else 0


def peek(batches: Iterator[Batch], what: str) -> tuple[Batch, Iterator[Batch]]:
    """Return the first batch, and all of them."""
    first = next(batches, None)
    if first is None:
        raise DataError(f"{what}: there is no row to write")
    return first, chain([first], batches)


def writer_for(path: str | os.PathLike[str], first: Batch, info: CorpusInfo, **options: Any) -> CorpusWriter:
    """Return the writer of rows like those of the first batch."""
    kinds: dict[str, Any] = {key: values.dtype for key, values in first.values.items() if key not in ("x", "y")}
    kinds |= {KEPT_LABELS: np.float64} if "y" in first.values else {}
    x = first.values["x"]
    return CorpusWriter(path, n_features=x.shape[1], dtype=x.dtype, columns=kinds, info=info, **options)


def fill(
    writers: Sequence[CorpusWriter],
    batches: Iterator[Batch],
    labelling: Labelling,
    split: Split | None = None,
) -> int:
    """Append all rows to the writers, one for each side of a split, and store their labels; return the rows in all."""
    done, written, kind = 0, [0] * len(writers), None
    for batch in batches:
        kind = kind or batch.kind
        if batch.kind != kind:
            (width, columns), (wanted, before) = batch.kind, kind
            raise DataError(
                f"{batch.name}: rows of {width} features with {', '.join(columns) or 'no column'}; the first piece had "
                f"{wanted} with {', '.join(before) or 'none'}"
            )
        batch.require_finite()
        values = dict(batch.values)
        count = len(values["x"])
        if "y" in values:
            values[KEPT_LABELS] = labelling.encode(values.pop("y"), batch.name, batch.start)
        sides = None if split is None else split.sides(batch.start, count, file=batch.file, group=values.get("group"))
        for side, writer in enumerate(writers):
            part = values if sides is None else {key: found[sides == side] for key, found in values.items()}
            if len(part["x"]):
                writer.append(**part)
            written[side] += len(part["x"])
        done += count
    for writer, count in zip(writers, written, strict=True):
        if not count:
            raise DataError(f"{writer.target}: none of {done} rows falls into it ({split}); choose another split")
    if kind and "y" in kind[1]:
        labels = labelling.decide(os.fspath(writers[0].target))
        for writer in writers:
            writer.store_labels(labels)
    return done
