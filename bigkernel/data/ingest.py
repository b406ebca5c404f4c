"""From files to a corpus: sources, one or several, stream into `write_corpus.fill`, whole or split, with a run or not.

Rows of several files follow one another, and the column `domain` numbers the files. With a run, an interrupted job
keeps its chunks and goes on with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import bigkernel
from bigkernel.data import seals
from bigkernel.data.atomic_write import remove_at_once, scratch_path, token_of, writing
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter, chunk_rows_for, open_corpus
from bigkernel.data.fingerprint import fingerprint
from bigkernel.data.labels import Classes, Labelling
from bigkernel.data.readers import ENDINGS
from bigkernel.data.readers.source import Source, origin_of
from bigkernel.data.run_directory import Receipt, Run
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
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Corpus:
    """Write the rows and labels of a source, or of several that agree, as a corpus.

    The classes of several are joined, and the column `domain` is 0, 1, … by file.

    Parameters
    ----------
    target_path, overwrite, classes, chunk_rows : see `write_corpus`
    name : of the corpus; None: the first file's
    split : named shares of the rows that go to corpora of their own: train.corpus and train-test.corpus
    progress : called after each batch with the rows done and the rows in all (None: not known)
    run : directory where it is noted what the job is; when it dies, its chunks stay beside `target_path`, hidden
    resume : go on with the job in `run`, from the chunks that read back; the corpus is the same, byte for byte

    After a DataError (a file, files that do not agree, a share without rows, a target that cannot be written) nothing
    new is left at `target_path`. ResumeMismatch, RunLocked: `run` belongs to another job, or to a process at work.
    """
    sources = [source] if isinstance(source, Source) else list(source)
    store, keep = (None, "") if run is None else (Run(os.path.abspath(run)), token_of(run))
    resume = resume and store is not None and os.path.exists(store.root / "manifest.json")
    shares = ("", *(split.shares if split else ()))
    for place in (split_path(target_path, share) for share in shares):
        if os.path.lexists(place) and not (overwrite or resume):
            raise DataError(f"{place}: already exists; choose another path or ask to overwrite it")
    _require_alike(sources, classes, split)
    reader = _Reader(sources, progress)
    first, batches = peek(iter(reader), sources[0].path)
    parts = _parts(Path(target_path), name or _name(sources[0].path), sources, split, reader.n_rows, chunk_rows)
    with ExitStack() as stack:
        if store is not None:
            job = _identity(sources, parts, classes, split)
            stack.enter_context(store.held(job, resume=resume, plan={"segments": 1, "rows": reader.n_rows or 0}))
            if resume and _is_finished(store, parts):
                return open_corpus(target_path)
        stack.enter_context(writing(target_path, passing=False))
        try:
            with ExitStack() as writing_all:
                writers = [writing_all.enter_context(part.writer(first, overwrite, keep, resume)) for part in parts]
                done = fill(writers, batches, Labelling(classes), split)
        except DataError as error:
            if keep and (reader.failed or not isinstance(error.__cause__, OSError)):  # refused, not interrupted
                for part in parts:
                    remove_at_once(scratch_path(part.target, keep))
            raise
        if store is not None:  # its receipt says that the job is finished
            store.publish(Receipt("0-0", 0, done), {"rows": np.array([float(done)])})
    return open_corpus(target_path)


class _Reader:
    """The batches of several sources; `failed` is True once one of them was refused."""

    def __init__(self, sources: Sequence[Source], progress: Progress | None) -> None:
        self._sources, self._progress = sources, progress
        self.failed = False
        counts = [source.n_rows for source in sources]
        self.n_rows = None if None in counts else sum(filter(None, counts))

    def __iter__(self) -> Iterator[Batch]:
        done = 0
        for file, source in enumerate(self._sources):
            start = 0
            try:
                for values in source.batches():
                    count = len(values["x"])
                    if len(self._sources) > 1:
                        values["domain"] = np.full(count, file, np.int64)
                    yield Batch(source.path, start, values, file)
                    start, done = start + count, done + count
                    if self._progress:
                        self._progress(done, self.n_rows)
                if not start:
                    raise DataError(f"{source.path}: no rows; expected one at least")
                if source.n_rows not in (None, start):
                    raise DataError(f"{source.path}: {start} rows, expected {source.n_rows} of them")
            except DataError:
                self.failed = True
                raise


@dataclass(frozen=True)
class _Part:
    """A corpus to be written: what stays of a split (`share` ""), or one of its shares."""

    share: str
    target: Path
    info: CorpusInfo
    chunk_rows: int

    @property
    def found(self) -> Corpus | None:
        """The corpus at `target` where it says of itself what `info` does; else None."""
        try:
            found = open_corpus(self.target)
        except DataError:
            return None
        return found if replace(found.info, complete=False, classes=()) == self.info else None

    def writer(self, first: Batch, overwrite: bool, keep: str, resume: bool) -> CorpusWriter:
        # shares appear before what stays: one that an interrupted ingest left is made again
        overwrite = overwrite or (resume and self.share != "" and self.found is not None)
        options: dict[str, Any] = {"chunk_rows": self.chunk_rows, "overwrite": overwrite, "keep": keep}
        return writer_for(self.target, first, self.info, **options, resume=resume)


def _parts(
    target: Path, name: str, sources: Sequence[Source], split: Split | None, n_rows: int | None, chunk_rows: int | None
) -> list[_Part]:
    first, origins = sources[0], [origin_of(source) for source in sources]
    origin = ", ".join(f"domain {file}: {text}" for file, text in enumerate(origins)) if sources[1:] else origins[0]
    info = CorpusInfo(name, origin, image_shape=first.image_shape, scale=first.scale)
    parts = []
    for share in ("", *(split.shares if split else ())):
        most = (
            n_rows
            if n_rows is None or split is None
            else 1 + round(n_rows * (split.shares[share] if share else 1 - sum(split.shares.values())))
        )
        step = chunk_rows or chunk_rows_for(first.n_features, first.dtype.itemsize, most)
        what = f"share {share} of a split" if share else "what stays of a split"
        here = replace(info, name=f"{name} {share}".strip(), source=f"{origin}, {what} {split}") if split else info
        parts.append(_Part(share, split_path(target, share), here, step))
    return parts


def _require_alike(sources: Sequence[Source], classes: Classes, split: Split | None) -> None:
    """Refuse sources that do not make one corpus, by the first property that differs."""
    if not sources:
        raise DataError("no source to ingest; give one at least")
    first, stated = sources[0], dict[str, Any]()
    for source in sources:
        found = {
            "features": source.n_features,
            "image shape": source.image_shape,
            "dtype": str(source.dtype),
            "scale": source.scale,
            "labels": "labels" if source.labelled else "no labels",
            "groups": "groups" if source.grouped else "no groups",
        }
        stated = stated or found
        for key, value in found.items():
            if value != stated[key]:
                advice = {"dtype": "; say which dtype to store", "labels": "; give its label file, or read none"}
                if "libsvm" in (source.format, first.format):
                    advice["features"] = "; say how many features all have (--features)"
                raise DataError(
                    f"{source.path}: {key}: {value}, but {first.path} has {stated[key]}; the files of a corpus "
                    f"agree{advice.get(key, '')}"
                )
    if classes is True and not first.labelled:
        raise DataError(f"{first.path}: classes=True, but the rows carry no labels")
    if split is not None and split.by == "group" and not first.grouped:
        raise DataError(f"{first.path}: a split by group, but the rows have no groups; name their column")


def _is_finished(store: Run, parts: Sequence[_Part]) -> bool:
    """Return True where the job of a run was done to its end, and all that it made is there as it was sealed."""
    receipt = store.finished("0-0")
    if receipt is None:
        return False
    rows = 0
    for corpus in (part.found for part in parts):
        if corpus is None or any(seals.changed_arrays(Path(corpus.path), seals.verify(Path(corpus.path)))):
            return False
        rows += corpus.n_rows
    return rows == int(store.partial(receipt.node, receipt.digest)["rows"][0])


def _identity(
    sources: Sequence[Source], parts: Sequence[_Part], classes: Classes, split: Split | None
) -> dict[str, str]:
    """Every field that changes a byte of the corpus, each as a short text."""
    # the settings of the reader are not known here, such as which matrix of a file it reads: the first rows tell
    starts = [fingerprint({k: v.tolist() for k, v in next(source.batches()).items()})[:16] for source in sources]
    stated = {name: str(value) for name, value in asdict(parts[0].info).items()}
    return {
        "file_format": ", ".join(source.format for source in sources),
        **{name: stated[name] for name in ("name", "source", "image_shape", "scale")},
        "classes": str(classes),
        "rows": f"{sources[0].dtype} of {sources[0].n_features}",
        "start_of_rows": ", ".join(starts),
        "chunk_rows": ", ".join(str(part.chunk_rows) for part in parts),
        **({"split": str(split)} if split else {}),
        "versions": f"bigkernel {bigkernel.__version__}, zarr {zarr.__version__}, numcodecs {version('numcodecs')}",
    }


def _name(path: str) -> str:
    stem, ending = os.path.splitext(os.path.basename(path.rstrip("/")).removesuffix(".gz"))
    return stem if ending in {*ENDINGS, ".zarr", ".corpus"} else stem + ending
