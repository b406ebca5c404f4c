"""Corpora of deformed images: row i is image i of another corpus, and from its end on a deformed copy of image i mod n.

`DeformedSource` makes any of the rows (N, h·w) where they are asked for, so that a sweep over it is the way both to
write them (`deform_corpus`) and to fit to them without writing. All copies of an image share its `group`: a fold that
separates copies of one image reports an error that is far too low.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel import arrays
from bigkernel.chunks import Chunk
from bigkernel.corpus import Corpus, CorpusWriter, chunk_rows_for, open_corpus, write_chunk
from bigkernel.deformed import RECIPE, REFERENCE_HEIGHT, REFERENCE_SMOOTHNESS, Deformation
from bigkernel.errors import ConfigError, DataError
from bigkernel.filling import fill, kept_for_run
from bigkernel.identity import NOT_COMPARED, fingerprint
from bigkernel.plan import Footprint
from bigkernel.rows import Rows, as_rows
from bigkernel.sources import Source
from bigkernel.statistics import Accumulator, add

Array = NDArray[Any]
_LARGEST_INTEGER, _LARGEST_FLOAT = 2**24, 1e30  # pixels that float32 holds, with room for sums of them


@dataclass(frozen=True, eq=False)
class DeformedSource:
    """`n_rows` rows made of the n images of `source`: these themselves, then their deformed copies, round by round."""

    source: Source
    n_rows: int
    chunk_rows: int
    deformation: Deformation

    @property
    def shape(self) -> tuple[int, ...]:
        """(n_rows, h·w)."""
        return self.n_rows, *self.source.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the images."""
        return self.source.dtype

    @property
    def steps(self) -> tuple[int, ...]:
        """Row ids where chunks begin."""
        return (*range(0, self.n_rows, self.chunk_rows), self.n_rows)

    def read(self, start: int, stop: int) -> Array:
        """Rows start … stop, (stop − start, h·w)."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for first, last, offset in _rounds(start, stop, self.source.shape[0]):
            images = self.source.read(first - offset, last - offset)
            out[first - start : last - start] = self.deformation.copies(images, first) if offset else images
        return out

    def part(self, start: int, stop: int) -> Source:
        """The source itself: a task opens the images where they are stored."""
        return self

    def fingerprint(self) -> str:
        """Of the images and all options."""
        return f"deformed {RECIPE} {self.n_rows} {fingerprint(self.deformation)} {self.source.fingerprint()}"


@dataclass(frozen=True, eq=False)
class Repeated:
    """A column of n values, again and again: row i has value i mod n of `source`."""

    source: Source
    n_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(n_rows, …)."""
        return self.n_rows, *self.source.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the values."""
        return self.source.dtype

    @property
    def steps(self) -> tuple[int, ...]:
        """None is natural."""
        return ()

    def read(self, start: int, stop: int) -> Array:
        """Values of rows start … stop."""
        parts = [
            self.source.read(first - offset, last - offset)
            for first, last, offset in _rounds(start, stop, self.source.shape[0])
        ]
        return np.concatenate(parts) if parts else self.source.read(0, 0)

    def part(self, start: int, stop: int) -> Source:
        """The source itself."""
        return self

    def fingerprint(self) -> str:
        """Of the values and the number of rows."""
        return f"repeated {self.n_rows} {self.source.fingerprint()}"


@dataclass(frozen=True)
class OriginalNumbers:
    """The column i mod `n_originals` (n_rows,) int64: which image a row was made of."""

    n_originals: int
    n_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(n_rows,)."""
        return (self.n_rows,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """int64."""
        return np.dtype(np.int64)

    @property
    def steps(self) -> tuple[int, ...]:
        """None is natural."""
        return ()

    def read(self, start: int, stop: int) -> Array:
        """Numbers of rows start … stop."""
        return np.arange(start, stop, dtype=np.int64) % self.n_originals

    def part(self, start: int, stop: int) -> Source:
        """The source itself."""
        return self

    def fingerprint(self) -> str:
        """Of its two numbers."""
        return f"original numbers {self.n_originals} {self.n_rows}"


def _rounds(start: int, stop: int, n: int) -> Iterator[tuple[int, int, int]]:
    """Rows start … stop cut at multiples of n: (first, last, largest multiple of n that is not above first)."""
    while start < stop:
        offset = start // n * n
        last = min(stop, offset + n)
        yield start, last, offset
        start = last


@dataclass(frozen=True, eq=False)
class CorpusFiller:
    """A statistic that writes the rows it is shown, with their columns, as chunks of the corpus at `path`.

    `work_bytes` is what the source of the rows needs while it makes a step of them.
    """

    path: str = field(metadata=NOT_COMPARED)
    chunk_rows: int
    work_bytes: int = field(metadata=NOT_COMPARED)
    flops_per_row: float = field(default=0.0, metadata=NOT_COMPARED)

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        return {"rows": np.zeros(1)}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """See `Statistic`."""
        return add(a, b)

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        return Footprint(self.flops_per_row, 8, self.work_bytes)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`; the chunk begins where a chunk of the corpus does."""
        columns = {"y": chunk.y, "weight": chunk.weight, "domain": chunk.domain, "group": chunk.group}
        held = {"x": chunk.x, **{name: values for name, values in columns.items() if values is not None}}
        with chunk.work.stage("write"):
            for first in range(0, len(chunk), self.chunk_rows):
                rows = {name: values[first : first + self.chunk_rows] for name, values in held.items()}
                write_chunk(self.path, (chunk.start + first) // self.chunk_rows, self.chunk_rows, rows)
        total["rows"] += len(chunk)


def deformation_of(
    corpus: Corpus, *, seed: int = 0, strength: float = 1.0, smoothness: float | None = None, shift: int | None = None
) -> Deformation:
    """The options of `deform_corpus`, resolved for the images of `corpus`.

    Pixels of 8 bits keep to 0 … 255; others to the range of the images, which are read once for it.

    Raises
    ------
    DataError
        A corpus without rows or without an image shape, or with pixels that are not finite or too large for float32.
    ConfigError
        An option out of its range.
    """
    if corpus.info.image_shape is None:
        raise DataError(
            f"{corpus.path}: its rows are no pictures (no image_shape) and cannot be deformed; ingest images, such as "
            "IDX files"
        )
    height, width = corpus.info.image_shape
    if height * width != corpus.n_features:
        raise DataError(
            f"{corpus.path}: image_shape {height}×{width} is {height * width} pixels, but rows have {corpus.n_features}"
        )
    if not corpus.n_rows:
        raise DataError(f"{corpus.path}: no rows; at least one image is needed to deform")
    options = Deformation(
        height,
        width,
        seed,
        strength,
        REFERENCE_SMOOTHNESS * height / REFERENCE_HEIGHT if smoothness is None else smoothness,
        round(height / REFERENCE_HEIGHT) if shift is None else shift,
    )
    if np.dtype(corpus.dtype) == np.uint8:
        return options
    low, high = _pixel_range(corpus)
    return replace(options, low=low, high=high)


def _pixel_range(corpus: Corpus) -> tuple[float, float]:
    source = as_rows(corpus).x
    if source.dtype.kind not in "uif":
        raise DataError(f"{corpus.path}/x: expected pixels that are numbers, found dtype {source.dtype}")
    largest = _LARGEST_FLOAT if source.dtype.kind == "f" else _LARGEST_INTEGER
    low, high = np.inf, -np.inf
    for start, stop in zip(source.steps, source.steps[1:], strict=False):
        x = source.read(start, stop)
        # NaN makes the comparison false
        bad = np.flatnonzero(~((x >= -largest) & (x <= largest)).all(axis=1))
        if bad.size:
            raise DataError(
                f"{corpus.path}: row {start + int(bad[0])} has a pixel that is not finite or beyond ±{largest:g}; "
                "clean it or leave it out"
            )
        low, high = min(low, float(x.min())), max(high, float(x.max()))
    return low, high


def source_text(corpus: Corpus, deformation: Deformation) -> str:
    """What the attribute `source` of the deformed corpus says: its originals, by content, and every option."""
    content = fingerprint(tuple(arrays.stored_fingerprint(corpus.array(name)) for name in ("x", *corpus.columns)))
    return (
        f"deformed copies of {corpus.n_rows} originals {content[:16]}, recipe {RECIPE}, seed {deformation.seed}, "
        f"strength {deformation.strength!r}, smoothness {deformation.smoothness!r} px, shift {deformation.shift} px, "
        f"originals: {corpus.info.source or corpus.info.name}"
    )


def deformed_rows(corpus: Corpus, n_rows: int, deformation: Deformation, *, chunk_rows: int | None = None) -> Rows:
    """Rows 0 … n_rows of the deformed corpus, with their columns, to be made by the tasks that ask for them.

    Raises
    ------
    ConfigError
        Fewer than one row.
    """
    if n_rows < 1:
        raise ConfigError(f"rows: expected at least 1, found {n_rows}")
    rows = as_rows(corpus)
    chunk_rows = chunk_rows or chunk_rows_for(corpus.n_features, rows.dtype.itemsize, n_rows)
    columns: dict[str, Source] = {name: Repeated(source, n_rows) for name, source in rows.columns.items()}
    columns.setdefault("group", OriginalNumbers(corpus.n_rows, n_rows))
    made = DeformedSource(rows.x, n_rows, chunk_rows, deformation)
    return replace(rows, x=made, columns=columns, name=f"deformed {corpus.info.name}")


def deformed_at(target: str | os.PathLike[str], corpus: Corpus, n_rows: int, deformation: Deformation) -> Corpus | None:
    """The corpus at `target`, if it is whole and what `deform_corpus` would make of these; else None."""
    try:
        found = open_corpus(target)
        for name in ("x", *found.columns):
            arrays.require_chunks(found.array(name))
    except DataError:
        return None
    wanted = source_text(corpus, deformation), n_rows
    return found if (found.info.source, found.n_rows) == wanted else None


def deform_corpus(
    corpus: Corpus,
    target: str | os.PathLike[str],
    n_rows: int,
    *,
    seed: int = 0,
    strength: float = 1.0,
    smoothness: float | None = None,
    shift: int | None = None,
    chunk_rows: int | None = None,
    name: str | None = None,
    overwrite: bool = False,
) -> Corpus:
    """Write `n_rows` rows made of the n images of `corpus` to `target`: these as they are, then deformed copies.

    The executor in force makes the chunks (`executing(client, run=…, resume=…)`); with a run, an interrupted corpus is
    gone on with, and one that is there already is returned. Row i depends on the images, the options and i alone.
    Columns of `corpus` are repeated, and `group` is the number of the original where `corpus` has none.

    Parameters
    ----------
    corpus : Corpus
        Of images: with an `image_shape`.
    target : path
    n_rows : int
        With fewer than n, the first images as they are.
    seed : int
    strength, smoothness, shift : see `Deformation`
        None: a smoothness of 4·h/28 pixels and a shift of h/28, rounded.
    chunk_rows : int or None
        Rows of a chunk; None: about 8 MB.
    name : str or None
        None: "deformed …".
    overwrite : bool
        Replace the corpus at `target`.

    Returns
    -------
    Corpus

    Raises
    ------
    DataError
        Images that cannot be deformed (see `deformation_of`), or a target that cannot be written.
    ConfigError
        An option out of its range.
    PlanTooLarge
        No room on the disk for the rows.
    """
    deformation = deformation_of(corpus, seed=seed, strength=strength, smoothness=smoothness, shift=shift)
    rows = deformed_rows(corpus, n_rows, deformation, chunk_rows=chunk_rows)
    assert isinstance(rows.x, DeformedSource)
    if os.path.realpath(target) == os.path.realpath(corpus.path):
        raise DataError(f"{os.fspath(target)}: is the corpus of the originals; write the copies elsewhere")
    info = replace(corpus.info, name=name or f"deformed {corpus.info.name}", source=source_text(corpus, deformation))
    token, resume = kept_for_run("corpus")
    if resume:
        made = deformed_at(target, corpus, n_rows, deformation)
        if made is not None and (made.info, made.chunk_rows) == (info, rows.x.chunk_rows):
            return made
    writer = CorpusWriter(
        target,
        n_features=corpus.n_features,
        dtype=rows.dtype,
        columns={column: source.dtype for column, source in rows.columns.items()},
        info=info,
        n_rows=n_rows,
        chunk_rows=rows.x.chunk_rows,
        overwrite=overwrite,
        keep=token,
        resume=resume,
    )
    with writer:
        # the images of a step, and the buffers of a block
        work_bytes = rows.x.chunk_rows * corpus.n_features * rows.dtype.itemsize + deformation.work_bytes
        path = str(writer.path.absolute())
        fill(rows, CorpusFiller(path, writer.chunk_rows, work_bytes, deformation.flops_per_row), what="corpus")
    return open_corpus(target)
