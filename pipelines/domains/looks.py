"""Digits of two sets on the page of `python -m pipelines domains`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel import MomentNormalizer
from pipelines.domains.data import Digits
from pipelines.domains.methods import N_CLASSES
from pipelines.shared import pictures
from pipelines.shared.experiments import Report

Array = NDArray[Any]


def examples(report: Report, sets: Sequence[Digits], restyled: Sequence[Digits], seed: int) -> None:
    """One digit of each class: as they are, a restyled copy of the same, and after moment normalisation."""
    rows: dict[str, Array] = {}
    for digits, copies in zip(sets, restyled, strict=True):
        rng = np.random.default_rng(seed)
        ids = np.array([rng.choice(np.flatnonzero(digits.labels == label)) for label in range(N_CLASSES)])
        upright = MomentNormalizer(image_shape=digits.images.shape[1:])
        shown = digits.images[ids]
        rows[digits.name] = shown
        rows[f"restyled {digits.name}"] = copies.images[ids]
        rows[f"upright {digits.name}"] = upright.fit_transform(shown.reshape(len(shown), -1)).reshape(shown.shape)
    report.figure(
        "examples",
        pictures.contact_sheet,
        {"": np.stack([bright(images) for images in rows.values()])},
        list(rows),
        caption="A digit of each class of either set; a virtual copy of it, whose size, slant, rotation, place and "
        "thickness were drawn at random; and the digit itself with the moments of its ink brought to those of any "
        "other. Every image is scaled to its brightest pixel.",
    )


def one_of_each(labels: Array) -> Array:
    """The first row of each class; of a class that is missing, the first of all."""
    return np.array([np.argmax(labels == label) for label in range(N_CLASSES)])


def bright(images: Array) -> Array:
    """Images (n, h, w) with their brightest pixel at 255."""
    scaled: Array = 255 * images / np.maximum(images.max(axis=(-2, -1), keepdims=True), 1e-300)
    return scaled
