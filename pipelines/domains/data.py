"""The digits of `python -m pipelines domains`: sets of images, and the tables of features that methods are given.

A set is n images of 16×16 pixels with labels 0 to 9. The pair is that of Long et al. (ICCV 2013). Fresh digits are made
as the pair was, from others: its MNIST half is MATLAB's antialiased bicubic resize of MNIST's test images (found by
comparison: cosine 0.99996), its USPS half every fifth row of the zip code digits, smoothed by a Gaussian of 0.75 pixels
(to 4·10⁻⁷). The MNIST file of the pair is sorted by class, and a feature that looks across rows would see that: every
set is shuffled first.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.ndimage import gaussian_filter

from bigkernel.data.readers import open_source
from bigkernel.errors import DataError
from pipelines.shared.experiments import data_file

Array = NDArray[Any]
SIDE = 16
SMOOTHING = 0.75  # pixels; of the pair's USPS digits
PAIR_STEP = 5  # the pair has every fifth USPS digit
USPS_ROWS, MNIST_ROWS = 1800, 2000  # of the pair


@dataclass(frozen=True)
class Digits:
    """A set of digits.

    Attributes
    ----------
    name : of the set
    images : (n, h, w), 0 is empty, 1 is full ink
    labels : (n,) 0 to 9
    """

    name: str
    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.images)

    def take(self, ids: Array | slice) -> Digits:
        """Those with these numbers."""
        return replace(self, images=self.images[ids], labels=self.labels[ids])


@dataclass(frozen=True)
class Task:
    """Labelled rows of one set and rows of another, of which a method may see the features and never a label.

    Attributes
    ----------
    name : source → target
    source, labels, weight : (n, d), (n,) and (n,)
    digit : (n,) which digit of the set a row shows; copies of one share it
    style : (n,) how a row was restyled; 0 everywhere where none was
    target, target_labels : (k, d) and (k,); the labels only measure accuracies
    """

    name: str
    source: Array
    labels: Array
    weight: Array
    digit: Array
    style: Array
    target: Array
    target_labels: Array
    _cached: dict[str, Array] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def rows(self) -> Array:
        """All rows, source above target."""
        return np.concatenate([self.source, self.target])

    @cached_property
    def partial_labels(self) -> Array:
        """Labels of all rows, −1 for those of the target."""
        return np.concatenate([self.labels, np.full(len(self.target), -1)])

    @cached_property
    def weights(self) -> Array:
        """Weights of all rows, 1 for those of the target."""
        return np.concatenate([self.weight, np.ones(len(self.target))])

    @cached_property
    def domains(self) -> Array:
        """0 for rows of the source, 1 for those of the target."""
        return np.repeat([0, 1], [len(self.source), len(self.target)])

    def labelled(self, kept: Array) -> Task:
        """The same with some rows of the source, given as numbers or as a mask."""
        columns = ("source", "labels", "weight", "digit", "style")
        return replace(self, **{name: getattr(self, name)[kept] for name in columns}, _cached={})


def the_pair(data: Path, seed: int) -> tuple[Digits, Digits]:
    """1,800 USPS and 2,000 MNIST digits (Long et al.), each in an order drawn with `seed`."""
    found = []
    for name, file in (("USPS", "digits16_USPS_1800.mat"), ("MNIST", "digits16_MNIST_2000.mat")):
        stored = loadmat(data_file(data, file))
        images = stored["fts"].astype(np.float64).reshape(-1, SIDE, SIDE)
        found.append(_shuffled(Digits(name, images, stored["labels"].ravel().astype(np.int64) - 1), seed))
    return found[0], found[1]


def _shuffled(digits: Digits, seed: int, count: int | None = None) -> Digits:
    return digits.take(np.random.default_rng(seed).permutation(len(digits))[:count])


@dataclass(frozen=True)
class Fresh:
    """USPS digits that the pair has not, and MNIST's training digits; the pair's are test digits.

    Attributes
    ----------
    usps : 16×16 images
    mnist : 28×28 images, made smaller when they are drawn
    """

    usps: Digits
    mnist: Digits

    @classmethod
    def read(cls, data: Path) -> Fresh:
        """The full sets in a directory."""
        return cls(_other_usps(data), mnist_digits(data))

    def draw(self, seed: int, usps_rows: int = USPS_ROWS, mnist_rows: int = MNIST_ROWS) -> tuple[Digits, Digits]:
        """As many of either as the pair has."""
        mnist = _shuffled(self.mnist, seed, mnist_rows)
        return _shuffled(self.usps, seed, usps_rows), replace(mnist, images=resized(mnist.images, SIDE))


def _other_usps(data: Path) -> Digits:
    """Rows of zip.train and then zip.test whose number is no multiple of five, smoothed as the pair's are."""
    parts = []
    for name in ("zip.train.gz", "zip.test.gz"):
        path = data_file(data, name)
        try:
            with gzip.open(path, "rt", encoding="ascii") as file:
                parts.append(np.loadtxt(file, ndmin=2))
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path}: expected gzipped lines of 257 numbers: {error}") from error
        if parts[-1].shape[1] != 1 + SIDE**2:
            raise DataError(f"{path}: expected lines of {1 + SIDE**2} numbers, found {parts[-1].shape[1]}")
    rows = np.concatenate(parts)
    rows = rows[np.arange(len(rows)) % PAIR_STEP > 0]
    grey = (rows[:, 1:].reshape(-1, SIDE, SIDE) + 1) / 2
    return Digits("USPS", gaussian_filter(grey, (0, SMOOTHING, SMOOTHING), mode="constant"), rows[:, 0].astype(int))


def mnist_digits(data: Path) -> Digits:
    """MNIST's 60,000 training digits, 28×28 pixels."""
    data_file(data, "train-labels-idx1-ubyte.gz")
    source = open_source(data_file(data, "train-images-idx3-ubyte.gz"))
    blocks = list(source.blocks())
    pixels = np.concatenate([np.asarray(block[0]) for block in blocks])
    labels = np.concatenate([np.asarray(block[1]) for block in blocks]).astype(np.int64)
    side = int(np.sqrt(pixels.shape[1]))
    return Digits("MNIST", pixels.reshape(-1, side, side) / 255, labels)


def resized(images: Array, side: int) -> Array:
    """Images (n, h, h) as (n, side, side), by antialiased bicubic interpolation, grey levels in 256 steps.

    MATLAB's imresize: Keys' kernel with a = −1/2, widened by the factor of the reduction; weights of a pixel sum to 1.
    """
    h = images.shape[1]
    step = h / side
    places = (np.arange(side) + 0.5) * step - 0.5
    x = np.abs(np.arange(h) - places[:, None]) / max(step, 1.0)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x <= 1, near, np.where(x <= 2, far, 0.0))
    weights /= weights.sum(axis=1, keepdims=True)
    smaller = np.einsum("ij,njk,lk->nil", weights, images, weights, optimize=True)
    levels: Array = np.rint(255 * smaller.clip(0, 1)) / 256
    return levels
