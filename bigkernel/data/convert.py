"""From sources to a corpus: survey the labels, then stream the rows.

The labels alone are read first (`labels`): they decide whether `y` holds classes (int64, −1 for unlabelled) or numbers
(float64), and for text also how many rows there are. Then the rows go block by block through a `CorpusWriter`, one for
each side of a split, which removes what it wrote when anything goes wrong, unless there is a run to go on with. Rows of
several files follow one another, and the column `domain` numbers the files. Memory does not depend on n.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray

import bigkernel
from bigkernel.data import seals
from bigkernel.data.atomic_write import token_of, writing
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter, chunk_rows_for, open_corpus
from bigkernel.data.fingerprint import fingerprint
from bigkernel.data.labels import Labels, survey_all
from bigkernel.data.readers.source import Source, origin_of
from bigkernel.data.run_directory import Receipt, Run
from bigkernel.data.split import Split, split_path
from bigkernel.errors import DataError
from bigkernel.streaming.chunk import unsound

_ENDINGS = {
    *(".csv", ".tsv", ".txt", ".dat", ".data", ".mat", ".npy", ".npz", ".idx"),
    *(".parquet", ".parq", ".pq", ".zarr", ".libsvm", ".svm", ".svmlight", ".corpus"),
}


def ingest(
    source: Source | Sequence[Source],
    target_path: str | os.PathLike[str],
    *,
    name: str | None = None,
    overwrite: bool = False,
    classes: Literal["auto"] | bool = "auto",
    split: Split | None = None,
    chunk_rows: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Corpus:
    """Write the rows and labels of a source, or of several, as a corpus.

    Parameters
    ----------
    source : Source, or a sequence of them
        From `ingest.readers.open_source`, or `labels.relabelled`. Several must agree in features, dtype and images;
        their classes are joined, and the column `domain` is 0, 1, … by file.
    target_path : path
        Must not exist, unless `overwrite`; nor may the corpora beside it that a split makes.
    name : str or None
        Of the corpus; None: the first file's.
    overwrite : bool
        Replace a corpus at `target_path`; anything else there is left alone.
    classes : "auto" or bool
        Whether integer labels are classes; see `survey`. Numbers are stored as float64.
    split : Split or None
        Named shares of the rows that go to corpora of their own, in the same pass: train.corpus and train-test.corpus.
    chunk_rows : int or None
        None: `chunk_rows_for`.
    progress : callable or None
        Called after each block with the rows done and the rows in all (None: not known).
    run : directory or None
        Notes there what the job is. When it dies, its chunks stay beside `target_path`, hidden.
    resume : bool
        Go on with the job in `run`: chunks that read back through their checksums are kept, the source is read again
        and the rest of it written. The corpus is, byte for byte, that of an ingest that was not interrupted. Where the
        job was finished and what it made is there, nothing is written.

    Returns
    -------
    Corpus
        Opened for reading: of a split, what stays. Its `source` is each file's name and sha256, in the order of the
        domains.

    Raises
    ------
    DataError
        Anything wrong with a file, no rows, values that are not finite (names the first rows), files that do not agree
        (names the first and both values), a share without rows, or a target that exists or cannot be written. Nothing
        new is left at `target_path` then.
    ResumeMismatch, RunLocked
        `run` belongs to another job (names what differs), or to a process that is at work.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bigkernel.data.readers import open_source
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "iris.csv")
    >>> _ = path.write_text("5.1,3.5,virginica\\n4.9,3.0,setosa\\n")
    >>> corpus = ingest(open_source(path), path.with_name("iris"))
    >>> corpus.shape, corpus.info.classes, corpus.column("y")
    ((2, 2), ('setosa', 'virginica'), array([1, 0]))
    >>> folder.cleanup()
    """
    sources = [source] if isinstance(source, Source) else list(source)
    store, keep = (None, "") if run is None else (Run(os.path.abspath(run)), token_of(run))
    resume = resume and store is not None and os.path.exists(store.root / "manifest.json")
    for share in _shares(split):
        target = split_path(target_path, share)
        if os.path.lexists(target) and not (overwrite or resume):
            raise DataError(f"{target}: already exists; choose another path or ask to overwrite it")
    _require_alike(sources)
    labels, n_rows = _surveyed(sources, classes, split)
    info = CorpusInfo(
        name=name or _name(sources[0].path),
        source=_origin(sources),
        classes=labels.classes if labels else (),
        image_shape=sources[0].image_shape,
        scale=sources[0].scale,
    )
    parts = _parts(Path(target_path), info, sources, labels, split, n_rows, chunk_rows)
    with ExitStack() as stack:
        if store is not None:
            job = _identity(sources, labels, info, parts, split)
            stack.enter_context(store.held(job, resume=resume, plan={"segments": 1, "rows": n_rows or 0}))
            if resume and _is_finished(store, parts):
                return open_corpus(target_path)
        stack.enter_context(writing(target_path, passing=False))
        with ExitStack() as writing_all:
            writers = [
                # shares appear before what stays: one that an interrupted ingest left is made again
                writing_all.enter_context(
                    part.writer(overwrite=overwrite or (resume and part.again), keep=keep, resume=resume)
                )
                for part in parts
            ]
            done = _fill(writers, sources, labels, split, n_rows, progress)
        if store is not None:  # `bigkernel runs` tells by its receipt that the job is finished
            store.publish(Receipt("0-0", 0, n_rows or 0), {"rows": np.array([float(done)])})
    return open_corpus(target_path)


@dataclass(frozen=True)
class _Part:
    """A corpus to be written: what stays of a split (`share` ""), or one of its shares."""

    share: str
    target: Path
    like: Source
    columns: Mapping[str, Any]
    info: CorpusInfo
    chunk_rows: int

    @property
    def found(self) -> Corpus | None:
        """The corpus at `target`, where it says of itself what `info` does; else None."""
        try:
            found = open_corpus(self.target)
        except DataError:
            return None
        return found if replace(found.info, complete=False) == self.info else None

    @property
    def again(self) -> bool:
        """True of a share that is there already."""
        return self.share != "" and self.found is not None

    def writer(self, *, overwrite: bool, keep: str, resume: bool) -> CorpusWriter:
        return CorpusWriter(
            self.target,
            n_features=self.like.n_features,
            dtype=self.like.dtype,
            columns=self.columns,
            info=self.info,
            chunk_rows=self.chunk_rows,
            overwrite=overwrite,
            keep=keep,
            resume=resume,
        )


def _shares(split: Split | None) -> list[str]:
    return ["", *(split.shares if split else ())]


def _surveyed(
    sources: Sequence[Source], classes: Literal["auto"] | bool, split: Split | None
) -> tuple[Labels | None, int | None]:
    """Return the labels and the number of rows, as far as they are known before the rows are read."""
    first = sources[0]
    if split is not None and split.by == "group" and first.groups is None:
        raise DataError(
            f"{first.path}: a split by group, but the rows have no groups; name their column, or split by row"
        )
    labels = survey_all(sources, classes=classes)
    counts = [part.n_rows for part in sources]
    n_rows = labels.n_rows if labels else None if None in counts else sum(count or 0 for count in counts)
    if n_rows == 0:
        raise DataError(f"{first.path}: no rows")
    if labels is None and classes is True:
        raise DataError(f"{first.path}: classes=True, but the rows carry no labels")
    return labels, n_rows


def _parts(
    target: Path,
    info: CorpusInfo,
    sources: Sequence[Source],
    labels: Labels | None,
    split: Split | None,
    n_rows: int | None,
    chunk_rows: int | None,
) -> list[_Part]:
    first = sources[0]
    columns: dict[str, Any] = {"y": labels.dtype} if labels else {}
    columns |= {"domain": np.int64} if len(sources) > 1 else {}
    columns |= {"group": np.int64} if first.groups else {}
    parts = []
    for share in _shares(split):
        most = _most_rows(n_rows, 1.0 if split is None else split.share_of(share))
        step = chunk_rows or chunk_rows_for(first.n_features, first.dtype.itemsize, most)
        parts.append(_Part(share, split_path(target, share), first, columns, _info_of(info, share, split), step))
    return parts


def _fill(
    writers: Sequence[CorpusWriter],
    sources: Sequence[Source],
    labels: Labels | None,
    split: Split | None,
    n_rows: int | None,
    progress: Callable[[int, int | None], None] | None,
) -> int:
    """Append all rows; how many there were."""
    done, written = 0, [0] * len(writers)
    for file, source in enumerate(sources):
        start, groups = 0, None if source.groups is None else _Recut(source.groups(), source.path)
        for x, y in source.blocks():
            _require_finite(source.path, start, x)
            count = x.shape[0]
            rows: dict[str, Any] = {"x": x}
            if labels is not None and y is not None:
                rows["y"] = labels.encode(y)
            if len(sources) > 1:
                rows["domain"] = np.full(count, file, np.int64)
            if groups is not None:
                rows["group"] = groups.take(count)
            sides = None if split is None else split.sides(start, count, file=file, group=rows.get("group"))
            for side, writer in enumerate(writers):
                part = rows if sides is None else {key: values[sides == side] for key, values in rows.items()}
                if part["x"].shape[0]:
                    writer.append(**part)
                written[side] += part["x"].shape[0]
            start += count
            done += count
            if progress is not None:
                progress(done, n_rows)
        if start == 0:
            raise DataError(f"{source.path}: no rows")
        if source.n_rows is not None and start != source.n_rows:
            raise DataError(f"{source.path}: {start} rows, expected {source.n_rows}")
    if n_rows is not None and done != n_rows:
        raise DataError(f"{sources[0].path}: {done} rows, expected {n_rows}")
    for writer, count in zip(writers, written, strict=True):
        if count == 0:
            raise DataError(
                f"{writer.target}: none of {done} rows falls into it ({split}); choose other shares or seed"
            )
    return done


class _Recut:
    """A stream of groups, handed out in the portions of the rows."""

    def __init__(self, blocks: Iterator[NDArray[Any]], path: str) -> None:
        self._blocks, self._path = blocks, path
        self._held = np.empty(0, np.int64)

    def take(self, count: int) -> NDArray[Any]:
        """The next `count` groups."""
        while len(self._held) < count:
            block = next(self._blocks, None)
            if block is None:
                raise DataError(f"{self._path}: fewer groups than rows; the file was changed meanwhile")
            self._held = np.concatenate([self._held, block])
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _require_alike(sources: Sequence[Source]) -> None:
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
            "groups": "groups" if source.groups else "no groups",
        }
        stated = stated or found
        for key, value in found.items():
            if value != stated[key]:
                advice = {
                    "dtype": "; say which dtype to store",
                    "labels": "; give its label file, or read none",
                }
                if "libsvm" in (source.format, first.format):
                    advice["features"] = "; say how many features all have (--features)"
                raise DataError(
                    f"{source.path}: {key}: {value}, but {first.path} has {stated[key]}; the files of a corpus "
                    f"agree{advice.get(key, '')}"
                )


def _origin(sources: Sequence[Source]) -> str:
    """Return the names and digests of what is read, in the order of the domains."""
    texts = [origin_of(source) for source in sources]
    return texts[0] if len(texts) == 1 else ", ".join(f"domain {file}: {text}" for file, text in enumerate(texts))


def _most_rows(n_rows: int | None, share: float) -> int | None:
    """Rows that a share of independent rows all but surely stays below: four standard deviations above its mean."""
    if n_rows is None or share == 1:
        return n_rows
    return min(n_rows, 1 + round(n_rows * share + 4 * math.sqrt(n_rows * share * (1 - share))))


def _info_of(info: CorpusInfo, share: str, split: Split | None) -> CorpusInfo:
    if split is None:
        return info
    what = f"share {share} of a split" if share else "what stays of a split"
    return replace(info, name=f"{info.name} {share}".strip(), source=f"{info.source}, {what} {split}")


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
    sources: Sequence[Source], labels: Labels | None, info: CorpusInfo, parts: Sequence[_Part], split: Split | None
) -> dict[str, str]:
    """Every field that changes a byte of the corpus, each as a short text."""
    starts, groups = [], []
    for source in sources:
        x, y = next(source.blocks(), (np.empty(0), None))
        groups += [] if source.groups is None else [fingerprint(next(source.groups(), np.empty(0)))[:16]]
        # the settings of the reader are not known here, such as which matrix of a file it reads: the first rows tell
        starts.append(fingerprint((x, "" if y is None else y.tolist()))[:16])
    return {
        "format": ", ".join(source.format for source in sources),
        **{name: str(value) for name, value in asdict(info).items() if name not in ("classes", "complete", "format")},
        "classes": fingerprint(info.classes)[:16],
        "labels": "none" if labels is None else str(labels.dtype),
        "rows": f"{sources[0].dtype} of {sources[0].n_features}",
        "start_of_rows": ", ".join(starts),
        "chunk_rows": ", ".join(str(part.chunk_rows) for part in parts),
        **({"split": str(split)} if split else {}),
        **({"groups": ", ".join(groups)} if groups else {}),
        "versions": f"bigkernel {bigkernel.__version__}, zarr {zarr.__version__}, numcodecs {version('numcodecs')}",
    }


def _require_finite(path: str, start: int, x: Any) -> None:
    bad = unsound(x)
    if bad is not None:
        rows = (start + np.flatnonzero(bad)[:5]).tolist()
        raise DataError(f"{path}: rows with NaN or infinite values, the first are {rows}; clean or leave them out")


def _name(path: str) -> str:
    stem, ending = os.path.splitext(os.path.basename(path.rstrip("/")).removesuffix(".gz"))
    return stem if ending in _ENDINGS else stem + ending
