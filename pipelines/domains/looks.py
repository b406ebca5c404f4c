"""Pictures of the digits on the page of `python -m pipelines domains`: examples, two components, confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics import confusion_matrix

from bigkernel import JDA, MomentNormalizer, Nystroem
from pipelines.domains.data import Digits, Task
from pipelines.domains.methods import METHODS, N_CLASSES, TARGET, Draws, Fit, kernel_of
from pipelines.domains.pictures import View, two_views
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


def before_and_after(report: Report, task: Task, m: int, draw: int) -> None:
    """All rows in two kernel principal components, and in two components of JDA."""
    Z = Draws(task, m).landmarks(TARGET, draw)[0]
    kernel = kernel_of(Z, METHODS["jda"].setting["width"])
    principal = PCA(2).fit_transform(Nystroem(kernel, landmarks=Z).fit(task.rows).transform(task.rows))
    after = JDA(kernel, 2, n_rounds=10, landmarks=Z).fit(task.rows, task.partial_labels).transform(task.rows)
    n = len(task.source)
    views = [
        View(title, rows[:n], rows[n:], task.labels, task.target_labels, axes)
        for title, rows, axes in (
            ("before: principal components", principal, ("component 1", "component 2")),
            ("after: joint distribution adaptation", after, ("component 1", "component 2")),
        )
    ]
    source, target = task.name.split(" → ")
    report.figure(
        "components",
        two_views,
        views,
        (f"{source}, labelled", f"{target}, labels not seen"),
        caption=f"{task.name}, bare vectors: every digit as a point in the first two kernel principal components of "
        "all rows, and in the first two of JDA after ten rounds. Figures stand at the means of the classes, in the "
        "colour of their set; those of the target are by its true labels, which only this picture sees. The closer "
        "two equal figures stand, the more of what is learnt on one set holds for the other. Components have no unit.",
    )


def confusions(report: Report, task: Task, before: Fit, after: Fit, name: str) -> None:
    """Counts of true by predicted digits, without target images and after the alignment."""
    for key, fit, text in (
        ("confusion_before", before, f"{METHODS['krr'].name}, no target image seen"),
        ("confusion_after", after, f"{name}, target images seen without labels"),
    ):
        counts = confusion_matrix(task.target_labels, fit.predicted, labels=range(N_CLASSES))
        report.figure(
            key,
            pictures.confusion,
            counts,
            range(N_CLASSES),
            caption=f"{task.name}, bare vectors, one draw. {text}: {fit.accuracy:.1f} % right.",
        )
