"""Digit corpora for the pipelines: scikit-learn's bundled digits, MNIST, and deformed copies to any number of rows.

The bundled digits are split into originals to train on and digits to test with; the training corpus is the originals
and their deformed copies (`shared.deformed`). Copies of one original share its number in the column `group`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bigkernel.arrays import Array
from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import require_free
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter, chunk_rows_for, open_corpus
from bigkernel.data.fingerprint import fingerprint
from bigkernel.data.ingest import ingest
from bigkernel.data.readers import open_source
from bigkernel.engine.process import processors
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import DataError
from bigkernel.monitor.terminal.bar import bar
from pipelines.shared.deformed import Variation, blocks

TEST_ORIGINALS = 597  # of 1,797
# variation of the copies of the bundled digits: more would move classes of 8×8 pixels into one another
VARIATION = Variation(elastic=0.35)
MNIST_FILES = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Digits:
    """Training and test corpus, and whether they were found complete in the output directory."""

    train: Corpus
    test: Corpus
    kept: bool


def bundled_originals(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return scikit-learn's digits: training images, labels, test images, labels; pixels 0 to 255, uint8.

    The 597 test digits have the classes in proportion and are never deformed.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    train, test = train_test_split(
        np.arange(len(images)), test_size=TEST_ORIGINALS, stratify=digits.target, random_state=seed
    )
    return images[train], digits.target[train], images[test], digits.target[test]


def originals(out: Path, seed: int, *, keep: bool) -> Digits:
    """Return the bundled digits, undeformed: 1,200 for training at originals.corpus, the others at test.corpus."""
    images, labels, test_images, test_labels = bundled_originals(seed)
    train, kept = _undeformed(out / "originals.corpus", "digits", f"kept, seed {seed}", images, labels, keep=keep)
    held_out = f"held out, seed {seed}"
    test, kept_too = _undeformed(out / "test.corpus", "test digits", held_out, test_images, test_labels, keep=keep)
    return Digits(train, test, kept and kept_too)


def _undeformed(path: Path, name: str, what: str, images: Array, labels: Array, *, keep: bool) -> tuple[Corpus, bool]:
    source, pixels = f"scikit-learn digits: {len(images)} originals {what}", images[0].size
    kept = _kept(path, source, len(images), keep=keep)
    if kept is None:
        info, columns = CorpusInfo(name, source, tuple(range(10)), images.shape[1:], 255.0), {"y": np.int64}
        with CorpusWriter(
            path, n_features=pixels, dtype=np.uint8, columns=columns, info=info, overwrite=True
        ) as writer:
            writer.append(x=images.reshape(-1, pixels), y=labels)
    return kept or open_corpus(path), kept is not None


def deform(
    originals: Corpus,
    target: Path,
    n_rows: int,
    *,
    seed: int,
    variation: Variation,
    quiet: bool,
    overwrite: bool = False,
) -> Corpus:
    """Write `n_rows` rows to `target`: the images of a corpus, then deformed copies round by round.

    Columns are repeated; `group` is the number of the original where there is none. The originals are held in memory.
    """
    shape, pixels = originals.info.image_shape, originals.array("x")
    if shape is None or pixels.dtype != np.uint8:
        raise DataError(f"{originals.path}: expected images (with an image_shape) of 8-bit pixels, to deform them")
    columns = {name: originals.column(name) for name in originals.columns}
    columns.setdefault("group", np.arange(len(originals)))
    images = np.asarray(pixels[:]).reshape(-1, *shape)
    require_free(target.parent, n_rows * (images[0].size + 16), "the corpus")
    info = replace(originals.info, name="deformed digits", source=_source_of_copies(originals, seed, variation))
    kinds = {name: values.dtype for name, values in columns.items()}
    size, chunk_rows = images[0].size, chunk_rows_for(images[0].size, 1, n_rows)  # as many chunks for each worker
    writer = CorpusWriter(
        target, n_features=size, dtype=np.uint8, columns=kinds, info=info, chunk_rows=chunk_rows, overwrite=overwrite
    )
    done = 0
    with bar("deform", enabled=not quiet) as update, writer:
        for rows in blocks(images, n_rows, seed, variation, processors()):
            ids = np.arange(done, done + len(rows)) % len(images)
            writer.append(x=rows.reshape(len(rows), -1), **{name: values[ids] for name, values in columns.items()})
            done += len(rows)
            update(done, n_rows)
    return open_corpus(target)


def kept_copies(path: Path, originals: Corpus, n_rows: int, *, seed: int, variation: Variation) -> Corpus | None:
    """Return the corpus at `path` if it is complete and what `deform` would make."""
    return _kept(path, _source_of_copies(originals, seed, variation), n_rows, keep=True)


def _source_of_copies(originals: Corpus, seed: int, variation: Variation) -> str:
    content = fingerprint(tuple(zarr_arrays.stored_fingerprint(originals.array(x)) for x in ("x", *originals.columns)))
    return f"{variation}, seed {seed}, of {originals.n_rows} originals {content[:16]}: {originals.info.source}"


def bundled(out: Path, n_rows: int, seed: int, *, keep: bool, quiet: bool = True) -> Digits:
    """Return a training corpus of `n_rows` deformed digits and a test corpus of originals."""
    undeformed, path = originals(out, seed, keep=keep), out / "train.corpus"
    options: dict[str, Any] = {"seed": seed, "variation": VARIATION}
    kept = kept_copies(path, undeformed.train, n_rows, **options) if keep else None
    train = kept or deform(undeformed.train, path, n_rows, **options, quiet=quiet, overwrite=True)
    return Digits(train, undeformed.test, kept is not None)


def mnist(out: Path, data: Path, *, keep: bool, progress: Progress) -> Digits:
    """Return training and test corpus of the MNIST files in `data`; files of labels are found by name."""
    corpora = []
    for name, file in zip(("train", "test"), MNIST_FILES, strict=True):
        source = open_source(data / file)
        if not source.labelled:
            raise DataError(f"{data / file}: found no labels beside it; {file.replace('images-idx3', 'labels-idx1')}?")
        text = ", ".join(f"{Path(path).name} sha256:{_sha256(path)}" for path in source.files)
        path = out / f"{name}.corpus"
        kept = _kept(path, text, source.n_rows, keep=keep)
        corpora.append(kept or ingest(source, path, name=f"MNIST {name}", overwrite=True, progress=progress))
    train, test = corpora
    if (train.n_features, train.info.classes) != (test.n_features, test.info.classes):
        raise DataError(f"{data}: training and test files differ in their pixels or classes")
    return Digits(train, test, kept is not None)


def choose_labelled(y: Array, group: Array, per_class: int, seed: int) -> Array:
    """Return sorted row ids: `per_class` random rows of each class, no two from one group."""
    order = np.random.RandomState(seed).permutation(len(y))
    chosen = []
    for label in np.unique(y[y != -1]):
        ids = order[y[order] == label]
        _, first = np.unique(group[ids], return_index=True)
        if len(first) < per_class:
            raise DataError(f"class {label}: {len(first)} different digits, fewer than the {per_class} to be labelled")
        chosen.append(ids[np.sort(first)[:per_class]])
    return np.sort(np.concatenate(chosen))


def rows_at(rows: Rows, ids: Array) -> Array:
    """Return the mapped rows of ids in any order and shape, (*ids.shape, d)."""
    distinct, place = np.unique(ids, return_inverse=True)
    taken: Array = rows.take(distinct)[place.reshape(ids.shape)]
    return taken


def images_at(corpus: Corpus, ids: Array) -> Array:
    """Return rows of ids in any order and shape as images, (*ids.shape, h, w)."""
    shape = corpus.info.image_shape or (1, corpus.n_features)
    return rows_at(as_rows(corpus), ids).reshape(*ids.shape, *shape)


def _kept(path: Path, source: str, n_rows: int | None, *, keep: bool) -> Corpus | None:
    """Return the corpus at `path` if it is complete, has the same source and rows, and may be kept."""
    try:
        corpus = open_corpus(path)
        for name in ("x", *corpus.columns):
            zarr_arrays.require_chunks(corpus.array(name))
    except DataError:
        return None
    return corpus if keep and (corpus.info.source, corpus.n_rows) == (source, n_rows) else None


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
