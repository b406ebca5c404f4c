"""Corpora of deformed images: row i is image i of another corpus, and from its end on a deformed copy of image i mod n.

`deformed_rows` makes any of the rows (N, h·w) where they are asked for, so that a sweep over them is the way both to
write them (`deform_corpus`) and to fit to them without writing. All copies of an image share its `group`: a fold that
separates copies of one image reports an error that is far too low. Two recipes: "elastic" (`deformed`) moves pixels by
smooth random fields, "restyled" (`restyled`) draws the image in another size, slant and pen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data import zarr_arrays
from bigkernel.data.corpus import Corpus, CorpusWriter, chunk_rows_for, open_corpus, write_chunk
from bigkernel.data.fingerprint import NOT_COMPARED, fingerprint
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sources import Source
from bigkernel.engine.store_filler import fill, kept_for_run
from bigkernel.errors import ConfigError, DataError
from bigkernel.images.elastic import REFERENCE_HEIGHT, REFERENCE_SMOOTHNESS, Deformation
from bigkernel.images.image_sources import DeformedSource, Repeated, RowNumbers
from bigkernel.images.restyle import Restyling
from bigkernel.images.virtual_copies import pixel_range
from bigkernel.statistics.moments import add
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class CorpusFiller:
    """A statistic that writes the rows it is shown, with their columns, as chunks of the corpus at `path`.

    `work_bytes` is what the source of the rows takes for the originals of a step; what it takes to make rows of them is
    counted by the plan.
    """

    path: str = field(metadata=NOT_COMPARED)
    chunk_rows: int
    work_bytes: int = field(metadata=NOT_COMPARED)

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        return {"rows": np.zeros(1)}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """See `Statistic`."""
        return add(a, b)

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        return Footprint(0.0, 8, self.work_bytes)

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
    corpus: Corpus,
    *,
    recipe: str = "elastic",
    seed: int = 0,
    strength: float = 1.0,
    smoothness: float | None = None,
    shift: int | None = None,
) -> Deformation | Restyling:
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
    options = _options(height, width, recipe, seed, strength, smoothness, shift)
    if np.dtype(corpus.dtype) == np.uint8:
        return options
    low, high = pixel_range(as_rows(corpus))
    return replace(options, low=low, high=high)


def _options(
    height: int, width: int, recipe: str, seed: int, strength: float, smoothness: float | None, shift: int | None
) -> Deformation | Restyling:
    if recipe == "elastic":
        smooth = REFERENCE_SMOOTHNESS * height / REFERENCE_HEIGHT if smoothness is None else smoothness
        moved = round(height / REFERENCE_HEIGHT) if shift is None else shift
        return Deformation(height, width, seed, strength, smooth, moved)
    if recipe != "restyled":
        raise ConfigError(f"recipe: expected elastic or restyled, found {recipe!r}")
    for name, value in (("smoothness", smoothness), ("shift", shift)):
        if value is not None:
            raise ConfigError(f"{name}: is of the recipe elastic; restyled copies take strength and seed")
    return Restyling(height, width, seed).times(strength)


def source_text(corpus: Corpus, deformation: Deformation | Restyling) -> str:
    """Return the attribute `source` of the deformed corpus: its originals, by content, and every option."""
    content = fingerprint(tuple(zarr_arrays.stored_fingerprint(corpus.array(name)) for name in ("x", *corpus.columns)))
    if isinstance(deformation, Restyling):
        options = ", ".join(f"{name} ±{value!r}" for name, value in deformation.ranges.items())
    else:
        options = (
            f"strength {deformation.strength!r}, smoothness {deformation.smoothness!r} px, shift {deformation.shift} px"
        )
    return (
        f"deformed copies of {corpus.n_rows} originals {content[:16]}, recipe {deformation.recipe}, "
        f"seed {deformation.seed}, {options}, originals: {corpus.info.source or corpus.info.name}"
    )


def deformed_rows(
    corpus: Corpus, n_rows: int, deformation: Deformation | Restyling, *, chunk_rows: int | None = None
) -> Rows:
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
    n = corpus.n_rows
    columns: dict[str, Source] = {name: Repeated(source, n, n_rows) for name, source in rows.columns.items()}
    columns.setdefault("group", Repeated(RowNumbers(n), n, n_rows))
    made = DeformedSource(rows.x, n, n_rows, chunk_rows=chunk_rows, deformation=deformation)
    return replace(rows, x=made, columns=columns, name=f"deformed {corpus.info.name}")


def deformed_at(
    target: str | os.PathLike[str], corpus: Corpus, n_rows: int, deformation: Deformation | Restyling
) -> Corpus | None:
    """The corpus at `target`, if it is whole and what `deform_corpus` would make of these; else None."""
    try:
        found = open_corpus(target)
        for name in ("x", *found.columns):
            zarr_arrays.require_chunks(found.array(name))
    except DataError:
        return None
    wanted = source_text(corpus, deformation), n_rows
    return found if (found.info.source, found.n_rows) == wanted else None


def deform_corpus(
    corpus: Corpus,
    target: str | os.PathLike[str],
    n_rows: int,
    *,
    recipe: str = "elastic",
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
    recipe : "elastic" or "restyled"
    seed : int
    strength : float
        Elastic: see `Deformation`; restyled: what the ranges of `Restyling` are multiplied by.
    smoothness, shift : see `Deformation`
        Of the recipe elastic; None: a smoothness of 4·h/28 pixels and a shift of h/28, rounded.
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
    deformation = deformation_of(
        corpus, recipe=recipe, seed=seed, strength=strength, smoothness=smoothness, shift=shift
    )
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
        # the images of a step
        work_bytes = rows.x.chunk_rows * corpus.n_features * rows.dtype.itemsize
        path = str(writer.path.absolute())
        fill(rows, CorpusFiller(path, writer.chunk_rows, work_bytes), what="corpus")
    return open_corpus(target)
