"""Candidates that keep no statistics (the exact forms): one fit a candidate and split, as any grid search does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier

from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.estimators.fit_state import Inputs
from bigkernel.estimators.prediction import predicted_values
from bigkernel.search.arrangement import Candidate
from bigkernel.search.scorers import TestedRows
from bigkernel.search.scoring import FAILURES, Failures, Scoring, Tested
from bigkernel.search.splits import NOT_USED, Partition
from bigkernel.statistics.grid_scores import FLOOR
from bigkernel.statistics.moments import Targets

Array = NDArray[Any]


def refit_each(
    members: Sequence[Candidate],
    X: Array,
    rows: Rows,
    targets: Targets,
    inputs: Inputs,
    parts: Sequence[Partition],
    scoring: Scoring,
    failed: Failures | None = None,
) -> Iterator[tuple[Candidate, int, Tested]]:
    """Judge every candidate on every split by fits of its own.

    Parameters
    ----------
    X : as the estimators take it, an array or CSR
    rows, targets : the same with labels, as sweeps take them; classes are numbers there
    failed : takes the fits that fail; None: they raise
    """
    for partition in parts:
        chunk = partition.attach(rows).read(0, len(rows))
        assert chunk.y is not None
        known, fold = targets.labelled(chunk.y, 0), partition.folds.of(chunk)
        weight = chunk.weight

        def judged(model: Any, seen: Any, ids: Array, split: int, y: Array = chunk.y, w: Any = weight) -> Tested:
            values = predicted_values(model, seen[ids])
            tested = _test(values, y[ids], targets, w, ids, split)
            rows_there = TestedRows.of(rows, targets, inputs, ids) if scoring.scorers else None
            return tested if rows_there is None else replace(tested, scored=rows_there.scored(scoring, values))

        for number, split in enumerate(partition.splits):
            test = np.flatnonzero(known & (fold == number))
            used = fold != NOT_USED
            for candidate in members:
                # classes as the numbers that they have in the sweeps
                shown, train = chunk.y, np.flatnonzero(used & known & (fold != number))
                weightless = weight is not None and not (weight[test].any() and weight[train].any())
                if not len(test) or not len(train) or weightless:
                    raise DataError(
                        f"cv: split {split} has {len(train)} labelled rows to train on, {len(test)} to test on, "
                        "or their weights are zero"
                    )
                if candidate.last.unlabelled == "keep":  # tested rows stay, without their label
                    classes = is_classifier(candidate.last)
                    shown = chunk.y.astype(np.int64 if classes else np.float64)
                    shown[test] = -1 if classes else np.nan
                    train = np.flatnonzero(used | ~known)
                # rows of values of a kernel have a column for each row of the fit
                seen = X[:, train] if candidate.last.__sklearn_tags__().input_tags.pairwise else X
                try:
                    model = clone(candidate.last)
                    model.fit(seen[train], shown[train], None if weight is None else weight[train])
                    tested = judged(model, seen, test, split)
                    if scoring.trained:
                        train = np.flatnonzero(used & known & (fold != number))
                        tested = replace(tested, trained=judged(model, seen, train, split))
                except FAILURES as error:
                    if failed is None:
                        raise
                    failed[candidate.index, split] = error
                    continue
                yield candidate, split, tested


def _test(values: Array, y: Array, targets: Targets, weight: Array | None, test: Array, split: int) -> Tested:
    truth = np.empty((len(test), targets.width))
    if values.shape != truth.shape:
        raise DataError(
            f"cv: split {split} has rows of {values.shape[1]} of the {truth.shape[1]} classes to train on; take "
            "fewer or stratified folds"
        )
    targets.encode(y, truth)
    if targets.shift is not None:
        truth += targets.shift
    w = np.ones(len(test)) if weight is None else np.asarray(weight, np.float64)[test]
    sse, n = w @ (truth - values) ** 2, float(w.sum())
    q, spread = w @ truth**2, w @ (truth - (w @ truth) / n) ** 2
    tested = Tested(n, float(len(test)), sse, np.where(spread <= 1e-12 * q, 0, spread), q)
    if targets.classes is None:
        return tested
    c, codes = targets.width, truth.argmax(axis=1)
    counts = np.bincount(codes * c + values.argmax(axis=1), w, minlength=c * c).reshape(c, c)
    clipped = np.clip(values, FLOOR, 1)
    loss = -(w @ np.log(clipped[np.arange(len(test)), codes] / clipped.sum(axis=1)))
    return replace(tested, confusion=counts, loss=float(loss))
