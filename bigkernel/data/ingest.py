"""Ingest of files: one or several sources stream into `write_corpus.fill`, with or without a split.

Rows of several files follow one another, and the column `domain` numbers the files. Where rows are split or skipped,
the column `row` numbers the rows of all files from 0, in the order of the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from bigkernel.data.atomic_write import writing
from bigkernel.data.corpus import Corpus, CorpusInfo, chunk_rows_for, open_corpus, require_same_columns
from bigkernel.data.labels import Classes, Labelling
from bigkernel.data.readers import ENDINGS
from bigkernel.data.readers.source import Source, origin_of, plain_name
from bigkernel.data.write_corpus import Batch, Split, fill, peek, split_path, writer_for
from bigkernel.errors import DataError

Progress = Callable[[int, int | None], None]


def ingest(
    source: Source | Sequence[Source],
    target_path: str | os.PathLike[str],
    *,
    name: str | None = None,
    overwrite: bool = False,
    classes: Classes = "auto",
    split: Split | None = None,
    chunk_rows: int | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Write the rows and labels of one source, or of several compatible ones, as a corpus; see `write_corpus`.

    The classes of several are joined, and the column `domain` is 0, 1, … by file. The name is that of the first file by
    default. `split` names shares of the rows that go to corpora of their own: train.corpus and train-test.corpus.
    `progress` is called after each batch with the rows done and the rows in all (None: not known). After a DataError
    nothing new is left at `target_path`.
    """
    sources = [source] if isinstance(source, Source) else list(source)
    shares = ("", *(split.shares if split else ()))
    places = {share: split_path(target_path, share) for share in shares}
    for place in places.values():
        if os.path.lexists(place) and not overwrite:
            raise DataError(f"{place}: already exists; choose another path or set overwrite")
    _require_agreement(sources, classes, split)
    counts = [source.n_rows for source in sources]
    n_rows = None if None in counts else sum(filter(None, counts))
    numbered = split is not None or any(source.skipped for source in sources)
    first, batches = peek(_batches(sources, n_rows, progress, numbered), sources[0].path)
    name = name or _name(sources[0].path)
    origins = [origin_of(source) for source in sources]
    origin = ", ".join(f"domain {file}: {text}" for file, text in enumerate(origins)) if sources[1:] else origins[0]
    known = {key: getattr(sources[0], key) for key in ("image_shape", "scale", "feature_names", "target", "encoding")}
    info = CorpusInfo(name, origin, **known, id_column=sources[0].id_column or "id")
    with writing(target_path, passing=False), ExitStack() as stack:
        writers = []
        for share, place in places.items():
            here, most = info, n_rows
            if split is not None:
                what = f"share {share} of a split" if share else "remainder of a split"
                here = replace(info, name=f"{name} {share}".strip(), source=f"{origin}, {what} {split}")
                portion = split.shares[share] if share else 1 - sum(split.shares.values())
                most = None if n_rows is None else 1 + round(n_rows * portion)
            step = chunk_rows or chunk_rows_for(sources[0].n_features, sources[0].dtype.itemsize, most)
            writers.append(stack.enter_context(writer_for(place, first, here, chunk_rows=step, overwrite=overwrite)))
        fill(writers, batches, Labelling(classes, images=info.image_shape is not None), split)
    return open_corpus(target_path)


def _batches(sources: Sequence[Source], n_rows: int | None, update: Progress | None, numbered: bool) -> Iterator[Batch]:
    """Yield the batches of several sources, with the column `row` if `numbered`."""
    done = first_row = 0
    for file, source in enumerate(sources):
        start, skipped = 0, source.skipped.count if source.skipped else 0
        for values in source.batches():
            count = len(values["x"])
            if len(sources) > 1:
                values["domain"] = np.full(count, file, np.int64)
            if not numbered:
                del values["row"]
            yield Batch(source.path, start, values, file, first_row)
            start, done = start + count, done + count
            if update:
                update(done, n_rows)
        if not start:
            raise DataError(f"{source.path}: expected at least one row, found none")
        if source.n_rows not in (None, start):
            raise DataError(f"{source.path}: expected {source.n_rows} rows, found {start}")
        first_row += start + (source.skipped.count - skipped if source.skipped else 0)


def _require_agreement(sources: Sequence[Source], classes: Classes, split: Split | None) -> None:
    """Raise an error if sources do not make one corpus, naming the first property that differs."""
    if not sources:
        raise DataError("sources: expected at least one, found none")
    first, stated = sources[0], dict[str, Any]()
    for source in sources:
        if source.feature_names and first.feature_names:
            require_same_columns(source.path, source.feature_names, first.feature_names, first.path, source.target)
        properties = {
            "features": source.n_features,
            "image shape": source.image_shape,
            "dtype": str(source.dtype),
            "scale": source.scale,
            "labels": "labels" if source.labelled else "no labels",
            "groups": "groups" if source.grouped else "no groups",
            "ids": source.id_column or "no ids",
        }
        stated = stated or properties
        for key, value in properties.items():
            if value != stated[key]:
                advice = {"dtype": "; set the dtype to store", "labels": "; pass its label file, or read no labels"}
                if "libsvm" in (source.format, first.format):
                    advice["features"] = "; set the number of features (--features)"
                raise DataError(
                    f"{source.path}: {key}: found {value}, expected {stated[key]} as in "
                    f"{first.path}{advice.get(key, '')}"
                )
    if classes is True and not first.labelled:
        raise DataError(f"{first.path}: classes=True needs labels, found none")
    if split is not None and split.by == "group" and not first.grouped:
        raise DataError(f"{first.path}: a split by group needs groups, found none; name their column")


def _name(path: str) -> str:
    stem, ending = os.path.splitext(plain_name(os.path.basename(path.rstrip("/"))))
    return stem if ending in {*ENDINGS, ".zarr", ".corpus"} else stem + ending
