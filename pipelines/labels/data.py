"""Digits as features: training rows, few of them labelled, and test digits that are read at the end.

All go through the same row maps, which look at one image alone: a common pose, oriented strokes, unit norm.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline

from bigkernel import MomentNormalizer, OrientationFeatures, UnitNormalizer
from bigkernel.arrays import Array
from bigkernel.errors import ConfigError
from bigkernel.kernels.landmarks import median_width
from pipelines.shared.digit_corpora import MNIST_FILES, bundled_originals
from pipelines.shared.experiments import USPS, data_file, read_all

SHARE = 0.5  # σ in median distances between rows; not chosen by labels
LOOKED_AT = 2000  # rows sampled for that median
SETS = ("bundled", "mnist", "usps")


@dataclass(frozen=True)
class Digits:
    """Features of n rows and t test digits, and their classes."""

    title: str
    X: Array  # (n + t, d) float32, the rows first, in a random order
    y: Array  # (n + t,)
    rows: int  # n
    sigma: float  # of the Gaussian kernel, from the distances between rows

    def sample(self, per_class: int, among: int, rng: np.random.RandomState) -> Array:
        """Return the ids of `per_class` random rows of each class among the first `among` rows."""
        ids_by_class = []
        for label in np.unique(self.y):
            ids = np.flatnonzero(self.y[:among] == label)
            if len(ids) < per_class:
                raise ConfigError(
                    f"--labels {per_class}: class {label} has {len(ids)} of {among:,} rows; expected fewer labels"
                )
            ids_by_class.append(rng.permutation(ids)[:per_class])
        return np.concatenate(ids_by_class)


def read(name: str, data: Path, seed: int) -> Digits:
    """Read the digits of one of `SETS`; files are in the directory `data`."""
    if name == "bundled":
        images, labels, others, truth = bundled_originals(seed)
        sets, title = [(images.reshape(-1, 64), labels), (others.reshape(-1, 64), truth)], "scikit-learn's digits, 8×8"
    elif name == "mnist":
        sets, title = [_read(data_file(data, file)) for file in MNIST_FILES], "MNIST, 28×28"
    else:
        files, title = ("zip.train.gz", "zip.test.gz"), "USPS, 16×16"
        sets = [_read(data_file(data, file), **USPS) for file in files]
    order = np.random.RandomState(seed).permutation(len(sets[0][0]))
    pixels = np.concatenate([sets[0][0][order], sets[1][0]])
    y = np.concatenate([sets[0][1][order], sets[1][1]]).astype(np.int64)
    X = features(pixels)
    return Digits(title, X, y, len(order), median_width(X[: min(LOOKED_AT, len(order))], share=SHARE))


def features(pixels: Array) -> Array:
    """Return images (n, h·h), ink above 0, as rows of features (n, 512) float32 of unit norm."""
    maps = make_pipeline(MomentNormalizer(), OrientationFeatures(), UnitNormalizer())
    return np.asarray(maps.fit_transform(pixels.astype(np.float32)), np.float32)


def _read(path: Path, **options: Any) -> tuple[Array, Array]:
    pixels, labels = read_all(path, **options)
    return pixels - pixels.min(), labels  # USPS has −1 where there is no ink
