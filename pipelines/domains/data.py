"""The digits of `python -m pipelines domains`: sets of images, and the tables of features that methods are given.

A set is n images with labels 0 to 9. The pair, of 16×16 pixels, is that of Long et al. (ICCV 2013). Its MNIST file is
sorted by class, and a feature that looks across rows would see that: every set is shuffled first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from bigkernel.arrays import Array
from pipelines.shared.experiments import USPS, data_file, read_all

SIDE = 16
USPS_ROWS, MNIST_ROWS = 1800, 2000  # of the pair


@dataclass(frozen=True)
class Digits:
    """A set of digits."""

    name: str  # name of the set
    images: Array  # (n, h, w), 0 is empty, 1 is full ink
    labels: Array  # (n,) 0 to 9

    def __len__(self) -> int:
        return len(self.images)

    def take(self, ids: Array | slice) -> Digits:
        """Return the digits at these positions."""
        return replace(self, images=self.images[ids], labels=self.labels[ids])


@dataclass(frozen=True)
class Task:
    """Labelled rows of one set, and rows of another whose features a method may use but not their labels."""

    name: str  # source → target
    source: Array  # (n, d), (n,) and (n,)
    labels: Array
    weight: Array
    digit: Array  # (n,) which digit of the set a row shows; copies of one share it
    style: Array  # (n,) style of a row; 0 everywhere without copies
    target: Array  # (k, d) and (k,); the labels only measure accuracies
    target_labels: Array

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
        """Domain of each row, 0 for the source and 1 for the target."""
        return np.repeat([0, 1], [len(self.source), len(self.target)])

    def labelled(self, kept: Array) -> Task:
        """Return the task with some rows of the source, given as positions or as a mask."""
        columns = ("source", "labels", "weight", "digit", "style")
        return replace(self, **{name: getattr(self, name)[kept] for name in columns})


def the_pair(data: Path, seed: int) -> tuple[Digits, Digits]:
    """Return 1,800 USPS and 2,000 MNIST digits (Long et al.), each shuffled with `seed`."""
    sets = []
    for name, file in (("USPS", "digits16_USPS_1800.mat"), ("MNIST", "digits16_MNIST_2000.mat")):
        stored = loadmat(data_file(data, file))
        images = stored["fts"].astype(np.float64).reshape(-1, SIDE, SIDE)
        sets.append(_shuffled(Digits(name, images, stored["labels"].ravel().astype(np.int64) - 1), seed))
    return sets[0], sets[1]


def _shuffled(digits: Digits, seed: int) -> Digits:
    return digits.take(np.random.default_rng(seed).permutation(len(digits)))


def usps_digits(data: Path) -> Digits:
    """Return the 7,291 training digits of USPS, 16×16 pixels."""
    pixels, labels = read_all(data_file(data, "zip.train.gz"), **USPS)
    return Digits("USPS", (pixels.reshape(-1, SIDE, SIDE) + 1) / 2, labels.astype(np.int64))


def mnist_digits(data: Path) -> Digits:
    """Return MNIST's 60,000 training digits, 28×28 pixels."""
    data_file(data, "train-labels-idx1-ubyte.gz")
    pixels, labels = read_all(data_file(data, "train-images-idx3-ubyte.gz"))
    side = int(np.sqrt(pixels.shape[1]))
    return Digits("MNIST", pixels.reshape(-1, side, side) / 255, labels.astype(np.int64))
