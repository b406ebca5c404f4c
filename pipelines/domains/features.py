"""The three tables of features of `python -m pipelines domains`, and tasks between two sets; never mixed.

bare      the 256 grey values of an image, of unit norm: what the published figures are about
copies    the same, and five restyled copies of every image of the source, all with the weight of one
moments   images brought to one pose by their moments, then 512 oriented strokes
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.preprocessing import normalize

from bigkernel import MomentNormalizer, OrientationFeatures
from bigkernel.arrays import Array
from pipelines.domains.data import Digits, Task
from pipelines.shared.deformed import RESTYLED, copies_of

BARE, COPIES, MOMENTS = "bare", "copies", "moments"
N_COPIES = 5


@dataclass(frozen=True)
class Table:
    """Title of a table of features, and a sentence about it."""

    title: str
    text: str


TABLES = {
    BARE: Table("Bare vectors", "256 grey values, rows of unit norm."),
    COPIES: Table(
        "Bare vectors and virtual copies",
        f"Each image of the source, and {N_COPIES} restyled copies of it (size, slant, shift, thickness drawn at "
        "random), with the weight of one; 256 grey values, rows of unit norm. The target is as it is.",
    ),
    MOMENTS: Table(
        "Moments and orientations",
        "Images brought to one pose by their moments, then eight directions of strokes in 8×8 cells: 512 features.",
    ),
}


def grey(images: Array) -> Array:
    """Return images (n, h, w) as rows (n, h·w) of unit norm."""
    rows: Array = normalize(images.reshape(len(images), -1))
    return rows


def oriented(images: Array) -> Array:
    """Return images (n, h, w) as rows of oriented strokes (n, 512), after moment normalisation."""
    shape, rows = images.shape[1:], images.reshape(len(images), -1)
    upright = MomentNormalizer(image_shape=shape).fit_transform(rows)
    strokes: Array = OrientationFeatures(image_shape=shape).fit_transform(upright)
    return strokes


def restyled(digits: Digits, seed: int) -> Digits:
    """Return a restyled copy of every digit."""
    return with_copies(digits, seed, 1)[0].take(slice(len(digits), None))


def with_copies(digits: Digits, seed: int, copies: int = N_COPIES) -> tuple[Digits, Array]:
    """Return the digits followed by restyled copies of each, and 0 for a digit or 1 for a copy."""
    n, images = len(digits), digits.images
    shown = np.concatenate([images, copies_of(images, copies, seed, RESTYLED)])
    return Digits(digits.name, shown, np.tile(digits.labels, copies + 1)), np.repeat([0, 1], [n, copies * n])


def task_of(source: Digits, target: Digits, table: str, seed: int) -> Task:
    """Return the task from one set to the other with the features of a table; `seed` is that of its copies."""
    features = oriented if table == MOMENTS else grey
    shown, style = (source, np.zeros(len(source), np.int64)) if table != COPIES else with_copies(source, seed)
    return Task(
        f"{source.name} → {target.name}",
        features(shown.images),
        shown.labels,
        np.full(len(shown), len(source) / len(shown)),
        np.arange(len(shown)) % len(source),
        style,
        features(target.images),
        target.labels,
    )


def tasks_of(sets: tuple[Digits, Digits], table: str, seed: int) -> Iterator[Task]:
    """Return the tasks in both directions."""
    first, second = sets
    yield task_of(first, second, table, seed)
    yield task_of(second, first, table, seed)
