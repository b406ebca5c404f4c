"""From a source to a corpus: survey the labels, then stream the rows.

The labels alone are read first (`survey`): they decide whether `y` holds classes (int64, −1 for unlabelled) or numbers
(float64), and for text also how many rows there are. Then the rows go block by block through a `CorpusWriter`, which
removes what it wrote when anything goes wrong, unless there is a run to go on with. Memory does not depend on n.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray

import bigkernel
from bigkernel.corpus import Corpus, CorpusInfo, CorpusWriter, chunk_rows_for, open_corpus
from bigkernel.disk import token_of, writing
from bigkernel.errors import DataError
from bigkernel.identity import fingerprint
from bigkernel.io.source import Source
from bigkernel.runs import Receipt, Run

AUTO_CLASSES = 1000  # integer labels with more distinct values are numbers, unless classes=True
MOST_CLASSES = 2**16
_LARGEST_EXACT = 2**53


@dataclass(frozen=True)
class Labels:
    """What a pass over the labels found.

    Attributes
    ----------
    classes : tuple of int or of str
        The distinct labels in order, −1 apart; empty: `y` holds numbers.
    n_rows : int
    path : str
        Of the file, for messages.
    """

    classes: tuple[int | str, ...]
    n_rows: int
    path: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the stored column: int64 for classes, float64 for numbers."""
        return np.dtype(np.int64 if self.classes else np.float64)

    def encode(self, y: NDArray[Any]) -> NDArray[Any]:
        """Labels of a block as they are stored: names become positions in `classes`."""
        if not self.classes and y.dtype.kind != "U":
            return y.astype(self.dtype)
        known = np.array(self.classes)
        if y.dtype.kind == "U" and known.dtype.kind == "U":
            positions = np.searchsorted(known, y).clip(max=len(known) - 1)
            if (known[positions] == y).all():
                return positions.astype(self.dtype)
        elif y.dtype.kind != "U" and known.dtype.kind != "U" and np.isin(y, (-1, *known)).all():
            return y.astype(self.dtype)
        raise DataError(f"{self.path}: other labels than in the first pass over them; the file was changed meanwhile")


def survey(blocks: Iterable[NDArray[Any]], *, path: str, classes: Literal["auto"] | bool = "auto") -> Labels:
    """Decide what the labels are, from one pass over them.

    Names are always classes. Integers are classes when `classes` is True, or "auto" and at most 1,000 are distinct; −1
    among them means unlabelled. Anything else is numbers, of which NaN means unlabelled.

    Parameters
    ----------
    blocks : iterable of arrays (k,)
    path : str
        For messages.
    classes : "auto" or bool

    Raises
    ------
    DataError
        Infinite labels; classes asked for where labels are not integers; too many names; or −1 beside fewer than two
        classes, where it may be a class itself, unless `classes` is True.
    """
    distinct: set[Any] = set()
    names, integral, n_rows = False, classes is not False, 0
    for y in blocks:
        names = y.dtype.kind == "U"
        if names and classes is False:
            raise DataError(
                f"{path}: row {n_rows}: the label {str(y[0])!r} is a name, but classes=False asks for numbers"
            )
        if not names:
            odd = ~_is_integral(y)
            if y.dtype.kind == "f" and np.isinf(y).any():
                raise DataError(f"{path}: row {n_rows + int(np.argmax(np.isinf(y)))}: the label is infinite")
            if classes is True and odd.any():
                row = int(np.argmax(odd))
                raise DataError(f"{path}: row {n_rows + row}: {y[row]} is no class, but classes=True asks for classes")
            integral = integral and not odd.any()
        n_rows += len(y)
        if names:
            distinct.update(np.unique(y).tolist())
        elif integral and (classes is True or len(distinct) <= AUTO_CLASSES + 1):  # + 1: perhaps −1 is one of them
            distinct.update(int(value) for value in np.unique(y))
        if len(distinct - {-1}) > MOST_CLASSES and (names or classes is True):
            raise DataError(f"{path}: more than {MOST_CLASSES:,} distinct classes; is the target the right one?")
    found = tuple(sorted(distinct - {-1}))
    if n_rows == 0 or not (names or classes is True or (integral and len(found) <= AUTO_CLASSES)):
        return Labels((), n_rows, path)
    if -1 in distinct and len(found) < (1 if classes is True else 2):
        raise DataError(
            f"{path}: its labels are {', '.join(map(str, (-1, *found)))}, and −1 among classes means unlabelled; if it "
            "is a class here, write the labels as 0 and 1; classes=True: take it as unlabelled; classes=False: as a "
            "number"
        )
    return Labels(found, n_rows, path)


def ingest(
    source: Source,
    target_path: str | os.PathLike[str],
    *,
    name: str | None = None,
    overwrite: bool = False,
    classes: Literal["auto"] | bool = "auto",
    chunk_rows: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Corpus:
    """Write the rows and labels of a source as a corpus.

    Parameters
    ----------
    source : Source
        From `bigkernel.io.open_source`.
    target_path : path
        Must not exist, unless `overwrite`.
    name : str or None
        Of the corpus; None: the file's.
    overwrite : bool
        Replace a corpus at `target_path`; anything else there is left alone.
    classes : "auto" or bool
        Whether integer labels are classes; see `survey`. Numbers are stored as float64.
    chunk_rows : int or None
        None: `chunk_rows_for`.
    progress : callable or None
        Called after each block with the rows done and the rows in all (None: not known).
    run : directory or None
        Notes there what the job is. When it dies, its chunks stay beside `target_path`, hidden.
    resume : bool
        Go on with the job in `run`: chunks that read back through their checksums are kept, the source is read again
        and the rest of it written. The corpus is, byte for byte, that of an ingest that was not interrupted.

    Returns
    -------
    Corpus
        Opened for reading. Its `source` is each file's name and sha256.

    Raises
    ------
    DataError
        Anything wrong with the file, no rows, values that are not finite (names the first rows), or a target that
        exists or cannot be written. Nothing new is left at `target_path` then.
    ResumeMismatch, RunLocked
        `run` belongs to another job (names what differs), or to a process that is at work.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bigkernel.io import open_source
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "iris.csv")
    >>> _ = path.write_text("5.1,3.5,virginica\\n4.9,3.0,setosa\\n")
    >>> corpus = ingest(open_source(path), path.with_name("iris"))
    >>> corpus.shape, corpus.info.classes, corpus.column("y")
    ((2, 2), ('setosa', 'virginica'), array([1, 0]))
    >>> folder.cleanup()
    """
    if os.path.lexists(target_path) and not overwrite:
        raise DataError(f"{os.fspath(target_path)}: already exists; choose another path or ask to overwrite it")
    labels = None if source.targets is None else survey(source.targets(), path=source.path, classes=classes)
    n_rows = source.n_rows if labels is None else labels.n_rows
    if n_rows == 0:
        raise DataError(f"{source.path}: no rows")
    if labels is None and classes is True:
        raise DataError(f"{source.path}: classes=True, but the rows carry no labels")
    info = CorpusInfo(
        name=name or _name(source.path),
        source=", ".join(f"{os.path.basename(path)} sha256:{_sha256(path)}" for path in source.files),
        classes=labels.classes if labels else (),
        image_shape=source.image_shape,
        scale=source.scale,
    )
    chunk_rows = chunk_rows or chunk_rows_for(source.n_features, source.dtype.itemsize, n_rows)
    store, keep = (None, "") if run is None else (Run(os.path.abspath(run)), token_of(run))
    with ExitStack() as stack:
        if store is not None:
            resume = resume and (store.root / "manifest.json").exists()
            job = _identity(source, labels, info, chunk_rows)
            stack.enter_context(store.held(job, resume=resume, plan={"segments": 1, "rows": n_rows or 0}))
        stack.enter_context(writing(target_path, passing=False))
        writer = CorpusWriter(
            target_path,
            n_features=source.n_features,
            dtype=source.dtype,
            columns={"y": labels.dtype} if labels else {},
            info=info,
            chunk_rows=chunk_rows,
            overwrite=overwrite,
            keep=keep,
            resume=resume,
        )
        with writer:
            done = _fill(writer, source, labels, n_rows, progress)
        if store is not None:  # `bigkernel runs` tells by its receipt that the job is finished
            store.publish(Receipt("0-0", 0, n_rows or 0), {"rows": np.array([float(done)])})
    return open_corpus(target_path)


def _fill(
    writer: CorpusWriter,
    source: Source,
    labels: Labels | None,
    n_rows: int | None,
    progress: Callable[[int, int | None], None] | None,
) -> int:
    """Append all rows; how many there were."""
    done = 0
    for x, y in source.blocks():
        _require_finite(source.path, done, x)
        writer.append(x=x, **({"y": labels.encode(y)} if labels and y is not None else {}))
        done += len(x)
        if progress is not None:
            progress(done, n_rows)
    if done == 0:
        raise DataError(f"{source.path}: no rows")
    if n_rows is not None and done != n_rows:
        raise DataError(f"{source.path}: {done} rows, expected {n_rows}")
    return done


def _identity(source: Source, labels: Labels | None, info: CorpusInfo, chunk_rows: int) -> dict[str, str]:
    """Every field that changes a byte of the corpus, each as a short text."""
    x, y = next(source.blocks(), (np.empty(0), None))
    return {
        "format": source.format,
        **{name: str(value) for name, value in asdict(info).items() if name not in ("classes", "complete", "format")},
        "classes": fingerprint(info.classes)[:16],
        "labels": "none" if labels is None else str(labels.dtype),
        "rows": f"{source.dtype} of {source.n_features}",
        # the settings of the reader are not known here, such as which matrix of a file it reads: the first rows tell
        "start_of_rows": fingerprint((x, "" if y is None else y.tolist()))[:16],
        "chunk_rows": str(chunk_rows),
        "versions": f"bigkernel {bigkernel.__version__}, zarr {zarr.__version__}, numcodecs {version('numcodecs')}",
    }


def _is_integral(y: NDArray[Any]) -> NDArray[np.bool_]:
    values = y.astype(np.float64)
    whole: NDArray[np.bool_] = (np.abs(values) <= _LARGEST_EXACT) & (values == np.round(values))  # NaN: neither
    return whole


def _require_finite(path: str, start: int, x: NDArray[Any]) -> None:
    if x.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
        if bad.size:
            rows = (start + bad[:5]).tolist()
            raise DataError(f"{path}: rows with NaN or infinite values, the first are {rows}; clean or leave them out")


def _name(path: str) -> str:
    stem, ending = os.path.splitext(os.path.basename(path).removesuffix(".gz"))
    return stem if ending in {".csv", ".tsv", ".txt", ".mat", ".npy", ".npz", ".idx"} else stem + ending


def _sha256(path: str) -> str:
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
