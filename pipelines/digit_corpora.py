"""Digit corpora for the pipelines: scikit-learn's bundled digits, deformed to any number of rows, and MNIST.

A deformed row is a pure function of (seed, row index): row i is a copy of training original i mod n, shifted, rotated
and with noise, so any worker makes any row. `Deformed` is therefore a source of rows like a stored array, and writing
the corpus is a sweep over it. Copies of one original share its number in the column `group`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from bigkernel import arrays
from bigkernel.chunks import Chunk
from bigkernel.corpus import Corpus, CorpusInfo, CorpusWriter, open_corpus, write_chunk
from bigkernel.errors import DataError
from bigkernel.filling import fill, kept_for_run
from bigkernel.identity import NOT_COMPARED
from bigkernel.ingest import ingest
from bigkernel.io import open_source
from bigkernel.plan import Footprint
from bigkernel.rows import Rows
from bigkernel.statistics import Accumulator, add

Array = NDArray[Any]
TEST_ORIGINALS = 597  # of 1,797
SHIFT_PIXELS, ROTATION_DEGREES, NOISE = 0.7, 10.0, 12.0  # noise: standard deviation, of 255
RECIPE = 1  # raise it when the same numbers give other rows
BLOCK_ROWS = 4096
MNIST_FILES = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Digits:
    """Training and test corpus, and whether they were found whole in the output directory."""

    train: Corpus
    test: Corpus
    kept: bool


@dataclass(frozen=True, eq=False)
class Deformed:
    """A source of `n_rows` deformed copies of `originals` (n, h, w) uint8, in steps of `chunk_rows`."""

    originals: Array
    n_rows: int
    chunk_rows: int
    seed: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """(n_rows, h·w)."""
        return self.n_rows, self.originals[0].size

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8."""
        return np.dtype(np.uint8)

    @property
    def steps(self) -> tuple[int, ...]:
        """Row ids where the chunks of the corpus begin."""
        return (*range(0, self.n_rows, self.chunk_rows), self.n_rows)

    def part(self, start: int, stop: int) -> Self:
        """The source itself: the originals are small."""
        return self

    def fingerprint(self) -> str:
        """By content."""
        return f"deformed {RECIPE} {self.seed} {self.n_rows} {arrays.digest({'originals': self.originals})}"

    def read(self, start: int, stop: int) -> Array:
        """Rows start … stop, (stop − start, h·w) uint8."""
        out = np.empty((stop - start, self.shape[1]), np.uint8)
        for first in range(start, stop, BLOCK_ROWS):
            last = min(first + BLOCK_ROWS, stop)
            out[first - start : last - start] = self._block(first, last)
        return out

    def _block(self, start: int, stop: int) -> Array:
        n, height, width = self.originals.shape
        # four draws a tick of the counter: row i begins at tick i·ticks, whoever asks for it
        ticks = -(-(3 + height * width) // 4)
        counter = np.random.Philox(key=self.seed).advance(start * ticks)
        draws = np.random.Generator(counter).random((stop - start, 4 * ticks))
        down, right, turn = (2 * draws[:, :3] - 1).T
        angle = np.deg2rad(ROTATION_DEGREES) * turn[:, None]
        # where each pixel of the copy lies in the original: turned about the centre, then moved
        v, h = np.divmod(np.arange(height * width), width)
        v, h = v - (height - 1) / 2, h - (width - 1) / 2
        v, h = (
            np.cos(angle) * v - np.sin(angle) * h + SHIFT_PIXELS * down[:, None],
            np.sin(angle) * v + np.cos(angle) * h + SHIFT_PIXELS * right[:, None],
        )
        values = _bilinear(self.originals, np.arange(start, stop) % n, v + (height - 1) / 2, h + (width - 1) / 2)
        values += NOISE * ndtri(np.maximum(draws[:, 3 : 3 + height * width], 1e-12))
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _bilinear(images: Array, which: Array, v: Array, h: Array) -> Array:
    """Values of images[which[i]] at the points (v[i, j], h[i, j]), 0 outside: each row sees its own image alone."""
    _, height, width = images.shape
    padded = np.pad(images.astype(np.float32), ((0, 0), (2, 2), (2, 2)))
    v, h = np.clip(v + 2, 0, height + 2.99), np.clip(h + 2, 0, width + 2.99)
    top, left = v.astype(np.intp), h.astype(np.intp)
    v, h = v - top, h - left
    stride, flat = width + 4, padded.reshape(-1)
    corner = which[:, None] * padded[0].size + top * stride + left
    upper = (1 - h) * flat[corner] + h * flat[corner + 1]
    lower = (1 - h) * flat[corner + stride] + h * flat[corner + stride + 1]
    result: Array = (1 - v) * upper + v * lower
    return result


@dataclass(frozen=True, eq=False)
class CorpusFiller:
    """A statistic that writes the rows it is shown, with y and group, as chunks of the corpus at `path`."""

    path: str = field(metadata=NOT_COMPARED)
    chunk_rows: int
    labels: Array

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        return {"rows": np.zeros(1)}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """See `Statistic`."""
        return add(a, b)

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        return Footprint(0.0, 8, 24 * self.chunk_rows)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`; the chunk begins where a chunk of the corpus does."""
        for start in range(0, len(chunk), self.chunk_rows):
            x = chunk.x[start : start + self.chunk_rows]
            first = chunk.start + start
            group = np.arange(first, first + len(x)) % len(self.labels)
            with chunk.work.stage("write"):
                rows = {"x": x, "y": self.labels[group], "group": group}
                write_chunk(self.path, first // self.chunk_rows, self.chunk_rows, rows)
            total["rows"] += len(x)


def bundled_originals(seed: int) -> tuple[Array, Array, Array, Array]:
    """scikit-learn's digits as (training images, their labels, test images, their labels), pixels 0 to 255 uint8.

    597 originals are held out, the classes in proportion; they are never deformed and never seen in training.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    train, test = train_test_split(
        np.arange(len(images)), test_size=TEST_ORIGINALS, stratify=digits.target, random_state=seed
    )
    return images[train], digits.target[train], images[test], digits.target[test]


def bundled(out: Path, n_rows: int, seed: int, *, keep: bool) -> Digits:
    """Training corpus of `n_rows` deformed digits and test corpus of originals; made by the cluster in force."""
    images, labels, test_images, test_labels = bundled_originals(seed)
    pixels, classes, shape = images[0].size, tuple(range(10)), images.shape[1:]
    source = (
        f"scikit-learn digits: {len(images)} training originals, shift {SHIFT_PIXELS} px, rotation {ROTATION_DEGREES}°,"
        f" noise {NOISE}, seed {seed}, recipe {RECIPE}"
    )
    columns = {"y": np.int64, "group": np.int64}
    kept = _kept(out / "train.corpus", source, n_rows, keep=keep)
    if kept is None:
        info = CorpusInfo("deformed digits", source, classes, shape, 255.0)
        token, resume = kept_for_run("corpus")
        writer = CorpusWriter(
            out / "train.corpus",
            n_features=pixels,
            dtype=np.uint8,
            columns=columns,
            info=info,
            n_rows=n_rows,
            overwrite=True,
            keep=token,
            resume=resume,
        )
        with writer:
            rows = Rows(Deformed(images, n_rows, writer.chunk_rows, seed), name="deformed digits")
            fill(rows, CorpusFiller(str(writer.path.absolute()), writer.chunk_rows, labels), what="corpus")
    source = f"scikit-learn digits: {len(test_images)} originals held out, seed {seed}"
    test = _kept(out / "test.corpus", source, len(test_images), keep=keep)
    if test is None:
        info = CorpusInfo("test digits", source, classes, shape, 255.0)
        with CorpusWriter(
            out / "test.corpus", n_features=pixels, dtype=np.uint8, columns={"y": np.int64}, info=info, overwrite=True
        ) as writer:
            writer.append(x=test_images.reshape(-1, pixels), y=test_labels)
        test = open_corpus(out / "test.corpus")
    return Digits(kept or open_corpus(out / "train.corpus"), test, kept is not None)


def mnist(out: Path, data: Path, *, keep: bool, progress: Progress) -> Digits:
    """Training and test corpus of the MNIST files in `data`; the labels' files are found by their names."""
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


def _kept(path: Path, source: str, n_rows: int | None, *, keep: bool) -> Corpus | None:
    """The corpus at `path` if it is whole and of the same source and rows, and may be kept."""
    try:
        found = open_corpus(path)
        for name in ("x", *found.columns):
            arrays.require_chunks(found.array(name))
    except DataError:
        return None
    return found if keep and (found.info.source, found.n_rows) == (source, n_rows) else None


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
