"""Figures of a fit, and of a model on rows with labels, for the terminal, the journal, notebooks and reports.

Of a model on rows with labels:

rows, seconds      number of scored rows, and the time that took
of, corpus         "held-out", "training" or "scored"; and the path of the corpus
classifiers        accuracy_percent, standard_error_percent, balanced_accuracy_percent (mean over classes),
                   error_percent, classes; confusion (true by predicted class) up to 64 classes, beyond that `confused`,
                   the most frequent [true, predicted, rows]; worst (row, true, predicted, margin: lists of at most 40;
                   images where rows are pictures); log_loss (nats), brier, calibration_error with probabilities
regressors         r2, rmse, mae, mse, residuals (counts in 40 bins from −4 to 4), residual_unit (what 1 is, in
                    targets); sample (row, actual, predicted: lists of at most 400, of the first of `targets` targets);
                    crps, interval_score and coverage (of bands of 95 %) with standard deviations
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast

import numpy as np
import zarr
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.corpus import Corpus
from bigkernel.engine.prediction_store import Target
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.fit.state import Report
from bigkernel.estimators.inputs.columns import is_lazy
from bigkernel.html import MOST_IMAGES, columns, folded, pack, table
from bigkernel.models.predictor import steps_of
from bigkernel.statistics.scores import OF_NORMAL, probability_scores
from bigkernel.statistics.scores import score as score_of
from bigkernel.streaming.plan import Accumulator

R = TypeVar("R")  # rows of any kind
_MOST_CONFUSED = 40
_MOST_FEATURES = 40  # whose importances the report shows
_SAMPLE = 400  # rows whose targets and predictions the report shows
MOST_CLASSES = 64  # of a confusion matrix in the journal of a job


class FitReport(dict[str, object]):
    """Figures of a fit by name: a dict of numbers, text, lists and dicts."""

    def _repr_html_(self) -> str:
        """Return a table of the figures; nested ones are folded, and lists of dicts are tables."""
        plain, nested, tables = {}, "", ""
        for name, value in self.items():
            if isinstance(value, Mapping) and name != "kernel":
                nested += folded(name, table(name, value)) if value else ""
            elif isinstance(value, list) and value and all(isinstance(line, Mapping) for line in value):
                tables += folded(name, columns(list(value[0]), [list(line.values()) for line in value]))
            elif name != "estimator":
                plain[name] = value
        return table(str(self.get("estimator", "fit")), plain) + nested + tables


class Model(Protocol):
    """A fitted model of any library, which has some of these."""

    classes_: Array

    def predict(self, X: RowsLike) -> Array:
        """Predict labels or numbers."""

    def decision_function(self, X: RowsLike) -> Array:
        """Compute decision values."""

    def predict_proba(self, X: RowsLike) -> Array:
        """Predict probabilities."""

    def predict_log_proba(self, X: RowsLike) -> Array:
        """Predict log-probabilities."""

    def score(self, X: RowsLike, y: ColumnLike = None) -> float:
        """Return R² or the accuracy."""

    def score_totals(
        self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None, *, worst: int = 0, std: bool = False
    ) -> Accumulator:
        """Sum up what scores are computed from."""

    def predict_to(self, X: RowsLike, path: Target, **options: bool) -> zarr.Group | list[str]:
        """Write predictions."""


def whole(model: BaseEstimator) -> BaseEstimator:
    """Return a model with the steps of the Pipeline that its last step chose, if it did, in place of that step."""
    last, steps = model.steps[-1][1] if isinstance(model, Pipeline) else model, steps_of(model)
    return model if steps[-1][1] is last else Pipeline(steps)


def split(model: BaseEstimator, rows: R) -> tuple[Model, R | Rows]:
    """Return the last step of a model, and the rows as transformed by the steps before it.

    `ConfigError` for a transformer of scikit-learn and rows that are not in memory.
    """
    model = whole(model)
    if not isinstance(model, Pipeline):
        return cast(Model, model), rows
    for step in model[:-1] if is_lazy(rows) else ():
        if type(step).__module__.startswith("sklearn."):
            raise ConfigError(
                f"{type(step).__name__}: transformers of scikit-learn need rows in memory; predict arrays, or fit "
                "with bigkernel's transforms (Standardizer, UnitNormalizer, Rescaler)"
            )
    return model[-1], model[:-1].transform(rows) if len(model) > 1 else rows


def predict_to(
    model: BaseEstimator,
    X: RowsLike,
    path: Target,
    *,
    decision: bool = False,
    probability: bool = False,
    return_std: bool = False,
    overwrite: bool = False,
    raw_text: bool = False,
) -> zarr.Group | list[str]:
    """Predict the rows of a zarr array or corpus on the workers and write the predictions to disk.

    Parameters
    ----------
    model : fitted estimator of bigkernel, Pipeline that ends with one, or search over them
    X, path, decision, probability, return_std, overwrite, raw_text : as in `KernelRidge.predict_to`

    Returns
    -------
    zarr.Group, or the names of the columns of a table

    Raises
    ------
    ConfigError
        The model does not end with an estimator of bigkernel that predicts, or begins with a transformer of
        scikit-learn, which needs rows in memory.
    """
    last, rows = split(getattr(model, "best_estimator_", model), X)
    try:
        write = last.predict_to
    except AttributeError as error:
        raise ConfigError(f"predict_to: expected a model that ends with an estimator of bigkernel: {error}") from error
    named = {"decision": decision, "probability": probability, "return_std": return_std}
    written: zarr.Group | list[str] = write(rows, path, **named, overwrite=overwrite, raw_text=raw_text)
    return written


def describe_metric(model: BaseEstimator, names: Sequence[str], image_shape: Sequence[int] | None) -> Report | None:
    """Return what a fitted model's learned metric sees: its `features` and their `importances`, largest first.

    Also the held-out error of its `rounds`, and an `image` of all importances where rows are images. None: it has none.
    """
    steps = [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]
    learned = next((step for step in steps if hasattr(step, "feature_importances_")), None)
    if learned is None:
        return None
    shares = learned.feature_importances_
    order = np.argsort(-shares, kind="stable")[:_MOST_FEATURES]
    named = len(names) == len(shares)
    figures: Report = {
        "features": [names[i] if named else f"column {i}" for i in order],
        "importances": shares[order].tolist(),
        "count": len(shares),
    }
    if hasattr(learned, "rounds_"):
        figures["rounds"] = learned.rounds_.tolist()
    if image_shape and np.prod(image_shape) == len(shares):
        figures["image"] = pack(shares.reshape(1, *image_shape))
    return figures


def evaluate(model: BaseEstimator, corpus: Corpus, rows: Rows, *, of: str, pictures: bool, std: bool = False) -> Report:
    """Return the figures of a model on the labelled rows of a corpus, from one sweep; `std`: also of its deviations.

    `rows` are those of the corpus, with bad ones refused or skipped; `of` is explained in the module's docstring. With
    `pictures`, include the images of the worst-classified rows, if rows are images. `DataError` if no row has a label.
    """
    last, scored = split(model, rows)
    start = time.perf_counter()
    classifies = is_classifier(last)
    totals = last.score_totals(scored, worst=MOST_IMAGES if classifies else _SAMPLE, std=std)
    seconds = time.perf_counter() - start
    n = totals["confusion"].sum() if classifies else totals["n"][0]
    if not n:
        raise DataError(f"{corpus.path}: expected labelled rows to score, found none")
    known = np.isfinite(totals["margin"])  # places that are used
    figures: Report = {"of": of, "corpus": corpus.path, "rows": int(n), "seconds": seconds}
    if not classifies:
        return {
            **figures,
            "r2": score_of(totals),
            "rmse": float(np.sqrt(totals["sse"] / n).mean()),
            "mae": float((totals["sae"] / n).mean()),
            "mse": float((totals["sse"] / n).mean()),
            **{name: float((totals[name] / n).mean()) for name in OF_NORMAL if name in totals},
            "residuals": totals["residuals"].sum(axis=0).tolist(),
            "residual_unit": float(np.sqrt(np.mean(getattr(last, "training_mse_", 1.0)))),
            "targets": len(totals["n"]),
            "sample": {
                "row": totals["row"][known].astype(np.int64).tolist(),
                "actual": totals["truth"][known].tolist(),
                "predicted": totals["guess"][known].tolist(),
            },
        }
    error, classes = 1 - score_of(totals), last.classes_.tolist()
    of_class = totals["confusion"].sum(axis=1)
    recall = np.diag(totals["confusion"])[of_class > 0] / of_class[of_class > 0]
    worst = totals["row"][known].astype(np.int64)
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
        "accuracy_percent": 100 * (1 - error),
        "standard_error_percent": 100 * float(np.sqrt(error * (1 - error) / n)),
        "balanced_accuracy_percent": 100 * float(recall.mean()),
        "error_percent": 100 * error,
        "classes": classes,
        "confusion": totals["confusion"].astype(np.int64).tolist(),
        **(probability_scores(totals, float(n)) if "log_loss" in totals else {}),
        "worst": listed,
    }


def limit_classes(figures: Report) -> Report:
    """Replace the confusion matrix of more than 64 classes by the most frequent confusions."""
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
