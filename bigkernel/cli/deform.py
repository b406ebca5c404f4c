"""`bigkernel deform`: a corpus of images grows to any number of rows by deformed copies."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigkernel.cli.options import Where, cluster_options, execution, json_option, overwrite_option, run_options
from bigkernel.errors import DataError
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from bigkernel.data.corpus import Corpus
    from bigkernel.engine.rows import Rows
    from bigkernel.images.elastic import Deformation
    from bigkernel.images.restyle import Restyling


_TIMED_ROWS = 8192
_UNITS = {"size": "_log", "aspect": "_log", "rotation": "_degrees", "shift": "_half_sides"}


@click.command()
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("--rows", "n_rows", type=click.IntRange(1), required=True, help="Rows of the new corpus.")
@click.option(
    "--recipe",
    type=click.Choice(["elastic", "restyled"]),
    default="elastic",
    show_default=True,
    help="Smooth distortions, or other sizes, slants and pens.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of all copies.")
@click.option(
    "--strength",
    type=float,
    default=1.0,
    show_default=True,
    help="Elastic: standard deviation of the displacement, in pixels of an image 28 high; restyled: a factor on all "
    "ranges.",
)
@click.option("--smoothness", type=float, metavar="PIXELS", help="Of the displacement, σ  [4/28 of the height].")
@click.option(
    "--shift", type=int, metavar="PIXELS", help="Most that a copy is moved by  [1/28 of the height, rounded]."
)
@click.option("--chunk-rows", type=click.IntRange(1), help="Rows of a chunk [about 8 MB of rows].")
@click.option("--name", help="Name of the corpus [deformed …].")
@click.option(
    "--picture", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw some originals and their copies."
)
@click.option("--dry-run", is_flag=True, help="Say how many bytes, chunks and seconds it takes, and stop.")
@cluster_options
@run_options
@overwrite_option
@json_option
def deform(
    source: str,
    target: str,
    n_rows: int,
    recipe: str,
    seed: int,
    strength: float,
    smoothness: float | None,
    shift: int | None,
    chunk_rows: int | None,
    name: str | None,
    picture: str | None,
    dry_run: bool,
    where: Where,
    run: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make a corpus of --rows rows at TARGET from the images of the corpus SOURCE.

    Its first rows are the images as they are; row i after them is a copy of image i mod n: smoothly distorted and
    shifted (Loosli, Canu & Bottou's infinite MNIST), or, with --recipe restyled, of another size, slant, angle and
    thickness. A row depends on the images, the options and its number alone: any cluster makes the same bytes. Copies
    keep the label and share the `group` of their original, so that folds by group keep them together.

    \b
    bigkernel ingest train-images-idx3-ubyte.gz mnist.corpus
    bigkernel deform mnist.corpus mnist8m.corpus --rows 8100000 --dry-run
    bigkernel deform mnist.corpus mnist8m.corpus --rows 8100000 \\
        --cluster local --run mnist8m.run --picture copies.png
    """
    from bigkernel.cli.contact_sheet import contact_sheet
    from bigkernel.data.atomic_write import free_bytes, require_free
    from bigkernel.data.corpus import open_corpus
    from bigkernel.data.targets import require_apart, require_target
    from bigkernel.images.deform_corpus import deform_corpus, deformation_of, deformed_rows

    corpus = open_corpus(source)
    deformation = deformation_of(
        corpus, recipe=recipe, seed=seed, strength=strength, smoothness=smoothness, shift=shift
    )
    rows = deformed_rows(corpus, n_rows, deformation, chunk_rows=chunk_rows)
    figures = _planned(corpus, rows, recipe, deformation)
    require_target(target, "the corpus")
    require_apart({"run": run, "corpus": target})
    if not resume:  # then some of them are there
        require_free(target, figures["raw_bytes"], "the corpus")
    if picture is not None:
        _write(Path(picture), contact_sheet(corpus, deformation))
        figures["picture"] = picture
    if dry_run:
        expected = _estimate(rows, figures["raw_bytes"])
        show({**figures, **expected, "free_bytes": free_bytes(target)}, as_json=as_json, title=target)
        return
    with execution(where, run=run, resume=resume, quiet=as_json):
        start = time.perf_counter()
        made = deform_corpus(
            corpus,
            target,
            n_rows,
            recipe=recipe,
            seed=seed,
            strength=strength,
            smoothness=smoothness,
            shift=shift,
            chunk_rows=chunk_rows,
            name=name,
            overwrite=overwrite,
        )
        seconds = time.perf_counter() - start
    show({**figures, **_done(made, figures["raw_bytes"], seconds, resume)}, as_json=as_json, title=target)


def _planned(corpus: Corpus, rows: Rows, recipe: str, deformation: Deformation | Restyling) -> dict[str, Any]:
    """What is known of the rows before any is made."""
    from bigkernel.images.image_sources import DeformedSource

    assert isinstance(rows.x, DeformedSource)
    n_rows, chunk_rows = len(rows), rows.x.chunk_rows
    row_bytes = corpus.n_features * rows.dtype.itemsize + sum(column.dtype.itemsize for column in rows.columns.values())
    return {
        "rows": n_rows,
        "originals": corpus.n_rows,
        "copies_of_each": round(max(0, n_rows - corpus.n_rows) / corpus.n_rows, 2),
        "features": corpus.n_features,
        "recipe": recipe,
        **_options(deformation),
        "chunk_rows": chunk_rows,
        "chunks": -(-n_rows // chunk_rows),
        "raw_bytes": n_rows * row_bytes,
    }


def _done(made: Corpus, raw_bytes: int, seconds: float, resume: bool) -> dict[str, Any]:
    """What the corpus takes on the disk, and the rates, unless some of it was there already."""
    stored = sum(file.stat().st_size for file in Path(made.path).rglob("*") if file.is_file())
    figures = {"stored_bytes": stored, "stored_of_raw": stored / raw_bytes, "seconds": seconds}
    if resume:
        return figures
    rates = {
        "rows_per_second": round(made.n_rows / seconds),
        "raw_bytes_per_second": round(raw_bytes / seconds),
    }
    return {**figures, **rates}


def _options(deformation: Deformation | Restyling) -> dict[str, Any]:
    from bigkernel.images.restyle import Restyling

    if isinstance(deformation, Restyling):
        return {f"{name}_range{_UNITS.get(name, '')}": value for name, value in deformation.ranges.items()}
    return {
        "strength": deformation.strength,
        "smoothness_pixels": deformation.smoothness,
        "shift_pixels": deformation.shift,
    }


def _estimate(rows: Rows, raw_bytes: int) -> dict[str, Any]:
    """Make and compress some rows in memory: what all of them would take on one processor."""
    import zarr
    from zarr.storage import MemoryStore

    from bigkernel.data import zarr_arrays

    n_rows = len(rows)
    count = min(_TIMED_ROWS, n_rows, rows.x.steps[1])
    first = n_rows - count  # the last rows: copies, if there are any
    rows.x.read(first, first + 1)  # the basis is made once a process
    group = zarr.create_group(MemoryStore(), zarr_format=3)
    array = zarr_arrays.create(
        group, "x", shape=(count, rows.shape[1]), chunks=(count, rows.shape[1]), dtype=rows.dtype
    )
    start = time.process_time()
    zarr_arrays.write(array, 0, rows.x.read(first, n_rows))
    seconds = max(time.process_time() - start, 1e-9)
    share = array.nbytes_stored() / (count * rows.shape[1] * rows.dtype.itemsize)
    return {
        "stored_bytes_expected": round(share * raw_bytes),
        "rows_per_second_of_a_processor": round(count / seconds),
        "seconds_on_one_processor": seconds * n_rows / count,
    }


def _write(path: Path, png: bytes) -> None:
    try:
        path.write_bytes(png)
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: the picture cannot be written: {error.strerror}") from error
