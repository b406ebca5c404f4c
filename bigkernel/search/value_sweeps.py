"""Sweeps that give the values of candidates at held-out rows, of as many side by side as memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import PlanTooLarge
from bigkernel.estimators.fit_state import Inputs
from bigkernel.search.arrangement import Candidate, Sweep, limit_bytes
from bigkernel.search.scorers import TestedRows
from bigkernel.search.scoring import Scoring, Solved
from bigkernel.search.splits import Partition
from bigkernel.statistics.grid_scores import FoldValues
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.plan import Plan

Array = NDArray[Any]
Scores = dict[tuple[int, int], dict[str, float]]  # by candidate and fold


@dataclass(eq=False)
class Training:
    """Rows, and what they are fitted to, as a fit of its own has them; `judging`: with the weights that scores have."""

    rows: Rows
    targets: Targets
    inputs: Inputs
    judging: Rows


def batches(one: Sweep, partition: Partition, work: Training, scoring: Scoring) -> list[tuple[Sweep, Plan]]:
    """Sweeps of some candidates each, whose values fit the memory of a worker and of this process.

    Raises
    ------
    PlanTooLarge
        Those of one candidate do not.
    """
    statistic = _statistic(one, partition, work, *_nothing(one, partition, work))
    plan, room = plan_sweep(partition.attach(work.rows), statistic), settings().memory_limit_bytes
    try:
        if 2 * plan.partial_bytes > room:  # the sum of two parts, and the parts
            raise PlanTooLarge(
                f"{2 * plan.partial_bytes / 1e6:,.0f} MB of values, and {room / 1e6:,.0f} MB are allowed"
            )
        plan.check(limit_bytes(work.rows), settings().worker_base_bytes)
    except PlanTooLarge as error:
        if len(one.candidates) == 1:
            raise PlanTooLarge(
                f"scoring: {', '.join(scoring.scorers)} need the values of a candidate at all held-out rows at once, "
                f"which memory does not hold ({error}); take a score that sums over rows (accuracy, r2, ...), or hold "
                "fewer rows out (cv=0.1)"
            ) from error
        halves = [Sweep([part]) for part in _halved(one.members[0])] if len(one.members) == 1 else one.halves()
        return [found for half in halves for found in batches(Sweep(half.members), partition, work, scoring)]
    return [(one, plan)]


def value_scores(
    one: Sweep, partition: Partition, work: Training, found: list[list[Solved]], scoring: Scoring
) -> Scores:
    """The scores of all candidates that need values of f, from a sweep or several."""
    where = {candidate.index: place for place, candidate in _places(one)}
    scores: Scores = {}
    for some, _ in batches(Sweep(one.members), partition, work, scoring):
        weights, intercepts = coefficients(some, partition, work, found, where)
        statistic = _statistic(some, partition, work, weights, intercepts)
        total = sweep(partition.attach(work.judging), statistic, what="values").total
        order = np.argsort(total["row"], kind="stable")
        rows = TestedRows.of(work.judging, work.targets, work.inputs, total["row"][order].astype(np.int64))
        fold, c = total["fold"][order].astype(np.int64), work.targets.width
        for (place, number), candidate in _places(some):
            values = total["values"][order][:, place, number * c : (number + 1) * c]
            for own in range(partition.folds.count):
                tested = fold == own
                scores[candidate.index, own] = rows.at(tested).scored(scoring, values[tested])
    return scores


def coefficients(
    one: Sweep, partition: Partition, work: Training, found: list[list[Solved]], where: dict[int, tuple[int, int]]
) -> tuple[Array, Array]:
    """Weights (K, F, p, k·c) and intercepts (K, F, k·c) of some of the candidates that were solved, where they stand.

    Intercepts are of the targets as they were given.
    """
    weights, intercepts = (np.array(values) for values in _nothing(one, partition, work))
    c, shift = work.targets.width, work.targets.shift
    for (place, number), candidate in _places(one):
        kernel, column = where[candidate.index]
        here, there = slice(number * c, (number + 1) * c), slice(column * c, (column + 1) * c)
        for fold, out in enumerate(found[kernel]):
            weights[place, fold, :, here], intercepts[place, fold, here] = out.weights[:, there], out.intercepts[there]
            if shift is not None and candidate.penalty.fit_intercept:
                intercepts[place, fold, here] += shift
    return weights, intercepts


def _places(one: Sweep) -> Iterator[tuple[tuple[int, int], Candidate]]:
    """(kernel, place among its candidates) of each candidate."""
    for place, members in enumerate(one.members):
        for number, candidate in enumerate(members):
            yield (place, number), candidate


def _halved(members: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    return members[: len(members) // 2], members[len(members) // 2 :]


def _nothing(one: Sweep, partition: Partition, work: Training) -> tuple[Array, Array]:
    wide = max(len(members) for members in one.members) * work.targets.width
    shape = (len(one.members), partition.folds.count, one.predicting.width, wide)
    return np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (*shape[:2], wide))


def _statistic(one: Sweep, partition: Partition, work: Training, weights: Array, intercepts: Array) -> FoldValues:
    return FoldValues(one.predicting, weights, intercepts, partition.folds, work.targets, len(work.rows))
