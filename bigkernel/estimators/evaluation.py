"""Figures of a fit, and of a model on rows with labels, for the terminal, the journal, notebooks and reports.

Of a model on rows with labels:

rows, seconds      how many were scored, and how long that took
of, corpus         "held-out", "training" or "scored"; and which corpus
classifiers        error_percent, standard_error_percent, accuracy_percent, classes; confusion (true by predicted
                   class) up to 64 classes, beyond that `confused`, the commonest [true, predicted, rows]; worst
                   (row, true, predicted, margin: lists of at most 40; images where rows are pictures);
                   log_loss (nats), brier, calibration_error of a model with probabilities
regressors         mse, r2, residuals (counts in 40 bins from −4 to 4), residual_unit (what 1 is, in targets)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from typing import TypeVar

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import NumpySource, Rows, Source
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.fit_state import Report
from bigkernel.estimators.inputs import is_lazy
from bigkernel.html import MOST_IMAGES, columns, folded, pack, table
from bigkernel.statistics.scores import probability_scores
from bigkernel.statistics.scores import score as score_of

R = TypeVar("R")  # rows of any kind
SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 2**26  # of the sample, as doubles
_SAMPLE_STEPS = 256  # chunks that a sample is read from, at most
_MOST_CONFUSED = 40
MOST_CLASSES = 64  # of a confusion matrix that a job tells


class FitReport(dict[str, object]):
    """Figures of a fit by name; a dict, and nothing but numbers, text, lists and dicts in it."""

    def _repr_html_(self) -> str:
        """Return a table of the figures; nested ones are folded, and lists of alike ones are tables."""
        plain, nested, tables = {}, "", ""
        for name, value in self.items():
            if isinstance(value, Mapping) and name != "kernel":
                nested += folded(name, table(name, value)) if value else ""
            elif isinstance(value, list) and value and all(isinstance(line, Mapping) for line in value):
                tables += folded(name, columns(list(value[0]), [list(line.values()) for line in value]))
            elif name != "estimator":
                plain[name] = value
        return table(str(self.get("estimator", "fit")), plain) + nested + tables


def split(model: BaseEstimator, rows: R) -> tuple[BaseEstimator, R | Rows]:
    """Return the last step of a model, and the rows as the steps before it hand them on.

    `ConfigError` where one of scikit-learn's would take rows that are not in memory.
    """
    if not isinstance(model, Pipeline):
        return model, rows
    for step in model[:-1] if is_lazy(rows) else ():
        if type(step).__module__.startswith("sklearn."):
            raise ConfigError(
                f"{type(step).__name__}: a transformer of scikit-learn takes rows in memory alone; predict arrays, or "
                "fit with the transforms of bigkernel (Standardizer, UnitNormalizer, Rescaler)"
            )
    return model[-1], model[:-1].transform(rows) if len(model) > 1 else rows


def judge(model: BaseEstimator, corpus: Corpus, rows: Rows, *, of: str, pictures: bool) -> Report:
    """Return the figures of a model on the labelled rows of a corpus, from one sweep.

    `rows` are those of the corpus, the bad ones to be refused or skipped; `of`: see the module's head. `pictures`: take
    the images of the worst-classified rows, where rows are pictures. `DataError` where no row has a label.
    """
    last, mapped = split(model, rows)
    return {"of": of, **_figures(last, mapped, corpus, rows, None, pictures)}


def judge_on_training(model: BaseEstimator, corpus: Corpus, rows: Rows, *, pictures: bool) -> Report:
    """Return those of a classifier on at most 10,000 evenly spaced labelled rows that it was fitted to.

    They are read into this process, from at most 256 evenly spaced chunks and no more than 64 MB, and scored in a
    moment: the run in force keeps nothing of it, and nobody who watches the job hears of it.
    """
    last, mapped = split(model, rows)
    ids = _sample(last, rows)
    columns: dict[str, Source] = {
        name: NumpySource(rows.take_column(name, ids)) for name in ("y", "weight") if name in rows.columns
    }
    sample = Rows(NumpySource(mapped.take(ids)), columns, name=rows.name, classes=rows.classes)
    # in an empty context no `executing` is in force
    return {"of": "training", **Context().run(_figures, last, sample, corpus, rows, ids, pictures)}


def _figures(
    last: BaseEstimator, scored: Rows, corpus: Corpus, rows: Rows, ids: Array | None, pictures: bool
) -> Report:
    """Score rows by one sweep; `ids`: those of them among the rows of the corpus, None: they are all."""
    start = time.perf_counter()
    totals = last.score_totals(scored, worst=MOST_IMAGES)
    seconds = time.perf_counter() - start
    classifies = is_classifier(last)
    n = totals["confusion"].sum() if classifies else totals["n"][0]
    if not n:
        raise DataError(f"{corpus.path}: no labelled row to score")
    figures: Report = {"corpus": corpus.path, "rows": int(n), "seconds": seconds}
    if not classifies:
        return {
            **figures,
            "mse": float((totals["sse"] / n).mean()),
            "r2": score_of(totals),
            "residuals": totals["residuals"].sum(axis=0).tolist(),
            "residual_unit": float(np.sqrt(np.mean(getattr(last, "training_mse_", 1.0)))),
        }
    error, classes = 1 - score_of(totals), last.classes_.tolist()
    worst = totals["row"][np.isfinite(totals["margin"])].astype(np.int64)
    worst = worst if ids is None else ids[worst]
    count = len(worst)
    listed: Report = {
        "row": worst.tolist(),
        "true": [classes[int(place)] for place in totals["truth"][:count]],
        "predicted": [classes[int(place)] for place in totals["guess"][:count]],
        "margin": totals["margin"][:count].tolist(),
    }
    if pictures and corpus.info.image_shape and count:
        ordered, place = np.unique(worst, return_inverse=True)
        images = replace(rows, row_maps=()).take(ordered)[place]
        listed["images"] = pack(images.reshape(count, *corpus.info.image_shape))
    return {
        **figures,
        "error_percent": 100 * error,
        "standard_error_percent": 100 * float(np.sqrt(error * (1 - error) / n)),
        "accuracy_percent": 100 * (1 - error),
        "classes": classes,
        "confusion": totals["confusion"].astype(np.int64).tolist(),
        **(probability_scores(totals, float(n)) if "log_loss" in totals else {}),
        "worst": listed,
    }


def told(figures: Report) -> Report:
    """Return the figures as a job tells them: beyond 64 classes the commonest confusions stand for the matrix."""
    classes = figures.get("classes", ())
    assert isinstance(classes, Sequence)
    if len(classes) <= MOST_CLASSES:
        return figures
    wrong = np.array(figures["confusion"])
    np.fill_diagonal(wrong, 0)
    places = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSED]
    commonest = zip(*np.unravel_index(places, wrong.shape), strict=True)
    pairs = [[str(classes[i]), str(classes[j]), int(wrong[i, j])] for i, j in commonest if wrong[i, j] > 0]
    rest = {name: value for name, value in figures.items() if name != "confusion"}
    return {**rest, "classes": [str(label) for label in classes[:MOST_CLASSES]], "confused": pairs}


def _sample(last: BaseEstimator, rows: Rows) -> Array:
    """Draw row ids of labelled rows, evenly spaced, sorted."""
    bounds = np.asarray(rows.bounds(settings()))
    steps = np.unique(np.linspace(0, len(bounds) - 2, min(_SAMPLE_STEPS, len(bounds) - 1)).round().astype(np.int64))
    found = []
    for start, stop in zip(bounds[steps], bounds[steps + 1], strict=True):
        y = rows.columns["y"].read(int(start), int(stop))
        # the classes of a corpus with names stand in it as their positions
        known = y >= 0 if any(isinstance(label, str) for label in rows.classes) else np.isin(y, last.classes_)
        found.append(int(start) + np.flatnonzero(known))
    ids = np.concatenate(found)
    most = max(1, min(SAMPLE_ROWS, _SAMPLE_BYTES // (8 * max(1, rows.shape[1]))))
    if len(ids) > most:
        ids = ids[np.linspace(0, len(ids) - 1, most).round().astype(np.int64)]
    sound: Array = ids[rows.sound(ids)] if rows.bad_rows == "skip" else ids
    return sound
