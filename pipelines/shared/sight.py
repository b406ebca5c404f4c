"""What a model of pictures sees: its features of some test digits, the landmarks nearest to them, and its worst errors.

Digits that it is most wrong about stand beside the labelled rows that are nearest to them.

Shapes: q digits, k neighbours of each, h×w pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from bigkernel import Corpus, MomentNormalizer, OrientationFeatures, Rescaler, UnitNormalizer
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.nearest_rows import NearestRows

Array = NDArray[Any]
DIGITS, NEIGHBOURS = 6, 5
WORST, OTHERS = 10, 6
_SCALES = (UnitNormalizer, Rescaler)  # they change no picture


@dataclass(frozen=True)
class Stage:
    """Digits after a row transform.

    Attributes
    ----------
    name : of what the transform gives
    kind : "image", "strokes" or "numbers"
    values : (q, h, w) images; (q, directions, cells, cells) strokes; (q, d) numbers
    """

    name: str
    kind: str
    values: Array


@dataclass(frozen=True)
class Neighbours:
    """Digits beside rows that are near to them.

    Attributes
    ----------
    digits : (q, h, w)
    true, predicted : (q,) texts
    rows : (q,) ids of the digits
    images : (q, k, h, w), the nearest first
    labels : (q, k) texts
    values : (q, k) kernel values, or distances
    """

    digits: Array
    true: list[str]
    predicted: list[str]
    rows: list[int]
    images: Array
    labels: list[list[str]]
    values: Array


@dataclass(frozen=True)
class Sight:
    """What a model sees of test digits: stages of `seen`, its nearest landmarks, and its worst digits; σ's median k."""

    stages: tuple[Stage, ...]
    landmarks: Neighbours
    worst: Neighbours | None


def looked_at(
    pipeline: Pipeline,
    train: Corpus,
    test: Corpus,
    worst: Mapping[str, Any],
    ids: Array,
    among: int,
    *,
    targets: Targets,
    names: Callable[[Array], list[str]],
) -> Sight:
    """Look at a test digit of each of some classes, and at those that the model is most wrong about.

    Parameters
    ----------
    pipeline : row transforms and a fitted model on landmarks
    worst : of `judge`: row, true, predicted, margin, the worst first
    ids : (m,) rows of the training corpus that are the landmarks, in their order
    among : first training rows that neighbours are looked for among, by one sweep
    targets, names : how the column y tells classes, and their texts
    """
    maps, model = pipeline[:-1], pipeline[-1]
    y = test.column("y")
    chosen = np.array([int(np.argmax(y == code)) for code in np.unique(y[targets.labelled(y, 0)])[:DIGITS]])
    images = _pixels(test, chosen)
    seen = maps.transform(as_rows(test))
    shown = rows_at(seen, chosen)
    values = model.kernel_(shown, model.landmarks_)
    near = np.argsort(-values, axis=1, kind="stable")[:, :NEIGHBOURS]
    predicted = [str(label) for label in np.asarray(model.predict(shown))]
    landmarks = _beside(
        train, images, names(y[chosen]), predicted, chosen, ids[near], np.take_along_axis(values, near, 1), names
    )
    neighbours = maps.transform(as_rows(train).window(0, among))
    return Sight(tuple(_stages(maps, images)), landmarks, _worst(seen, neighbours, train, test, worst, targets, names))


def _worst(
    seen: Rows,
    neighbours: Rows,
    train: Corpus,
    test: Corpus,
    worst: Mapping[str, Any],
    targets: Targets,
    names: Callable[[Array], list[str]],
) -> Neighbours | None:
    """The misread digits that the model is surest of, beside the labelled rows nearest to them, as it sees both."""
    wrong = [place for place, margin in enumerate(worst["margin"]) if margin < 0][:WORST]
    if not wrong:
        return None
    rows = np.array(worst["row"])[wrong]
    nearest = NearestRows(rows_at(seen, rows), targets, min(OTHERS, len(neighbours)))
    found = sweep(neighbours, nearest, what="nearest").total
    told = ([str(worst[name][place]) for place in wrong] for name in ("true", "predicted"))
    return _beside(train, _pixels(test, rows), *told, rows, found["row"].astype(np.int64), found["distance"], names)


def _beside(
    train: Corpus,
    digits: Array,
    true: list[str],
    predicted: list[str],
    rows: Array,
    near: Array,
    values: Array,
    names: Callable[[Array], list[str]],
) -> Neighbours:
    """Digits with the training rows `near` (q, k) to them."""
    distinct, place = np.unique(near, return_inverse=True)
    labels = names(as_rows(train).take_column("y", distinct))
    place = place.reshape(near.shape)
    texts = [[labels[number] for number in line] for line in place]
    return Neighbours(digits, true, predicted, rows.tolist(), _pixels(train, near), texts, values)


def _stages(maps: Pipeline, images: Array) -> list[Stage]:
    """The digits after each transform that changes what is seen."""
    x, found = images.reshape(len(images), -1).astype(np.float32), []
    for name, step in maps.steps:
        x = np.asarray(step.transform(x))
        if isinstance(step, _SCALES):
            continue
        if isinstance(step, MomentNormalizer):
            found.append(Stage("a common pose", "image", x.reshape(images.shape)))
        elif isinstance(step, OrientationFeatures):
            found.append(
                Stage("oriented strokes", "strokes", x.reshape(len(x), step.directions, step.cells, step.cells))
            )
        else:
            found.append(Stage(f"{x.shape[1]:,} numbers of {name}", "numbers", x))
    return found


def _pixels(corpus: Corpus, ids: Array) -> Array:
    """Rows of any order and shape of ids as images, (*ids.shape, h, w)."""
    shape = corpus.info.image_shape or (1, corpus.n_features)
    return rows_at(replace(as_rows(corpus), row_maps=()), ids).reshape(*ids.shape, *shape)


def rows_at(rows: Rows, ids: Array) -> Array:
    """The mapped rows of ids in any order and shape, (*ids.shape, d)."""
    distinct, place = np.unique(ids, return_inverse=True)
    taken: Array = rows.take(distinct)[place.reshape(ids.shape)]
    return taken
