"""The candidates of a kernel on every fold, from its moments by fold; and how far rounding has moved each of them.

Least squares in whitened coordinates have a formula for that (`solvers.accuracy`). Eigenfunctions and canonical
directions have none: their candidates are solved once more, from sums that are moved as rounding moved them
(`solvers.accuracy`). Shapes: p columns that solutions have coefficients of, r coordinates, k candidates, c targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError
from bigkernel.estimators.arithmetic import drawn, evidence_of
from bigkernel.estimators.fit_state import Problem
from bigkernel.search.arrangement import Candidate
from bigkernel.search.scoring import Scoring, Solved, Tested
from bigkernel.solvers.accuracy import ENOUGH, Evidence, Variances, changes, variances
from bigkernel.solvers.penalty_grid import (
    Coordinates,
    Penalty,
    gcv_scores,
    settled,
    squared_errors,
    summed,
    total_spread,
)
from bigkernel.solvers.whitening import Whitening, identity, reduced
from bigkernel.statistics.moments import Moments, MomentStatistic
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class _Folds:
    """The labelled rows by fold in the coordinates of some candidates, and `everything`, all rows, as they are."""

    coordinates: Coordinates
    parts: list[Moments]
    everything: Moments

    @classmethod
    def of(
        cls, some: list[Candidate], problem: Problem, first: int, whitening: Whitening | None, pool: ThreadPoolExecutor
    ) -> _Folds:
        """Of the sums of a kernel, whose labelled rows begin with the group `first`."""
        groups = range(len(problem.statistics["n"]))
        raw = [Moments.of(problem.statistics, group, shift=problem.centre) for group in groups]
        most, everything = max(one.penalty.n_components or 0 for one in some), summed(raw)
        coordinates = some[0].last.coordinates(some[0].basis, everything, most, whitening)
        # mostly every row is in a fold, and what is in none need not be rotated
        folded = raw[first:] if raw[-1].rows else raw[first:-1]
        return cls(coordinates, list(pool.map(coordinates.reduce, folded)), everything)

    def train(self, fold: int) -> Moments:
        """All labelled rows but those of a fold."""
        return summed([part for number, part in enumerate(self.parts) if number != fold])

    def expanded(self, weights: Array, intercepts: Array) -> tuple[Array, Array]:
        """(p, k·c) and (k·c,), over the columns of the map, of (k, r, c) and (k, c)."""
        flat, b = weights.transpose(1, 0, 2).reshape(weights.shape[1], -1), intercepts.ravel()
        return self.coordinates.expand(flat), self.coordinates.intercepts(flat, b)


def solve_folds(
    members: list[Candidate],
    swept: Problem,
    statistic: MomentStatistic,
    whitening: Whitening | None,
    scoring: Scoring,
    pool: ThreadPoolExecutor,
) -> list[Solved]:
    """By fold; one BLAS thread each, so that the bits do not depend on how many there are."""
    last, c, first = members[0].last, swept.statistics["t"].shape[1], int(statistic.unlabelled == "keep")
    evidence = None if whitening is None else evidence_of(swept, whitening)
    by_draw = evidence is not None and not last.tells_by_formula
    expand = scoring.coefficients or by_draw
    width = last.predicting(statistic.features).width if expand else 0
    solved = [Solved.of(len(members), width, c) for _ in range(len(swept.statistics["n"]) - first - 1)]
    for places in _alike(members):
        some = [members[place] for place in places]
        problem = swept if some[0].penalty.fit_intercept else swept.of_targets()
        folds = _Folds.of(some, problem, first, whitening, pool)
        known = None
        if evidence is not None and whitening is not None and not by_draw:
            known = variances(evidence, folds.everything, summed(folds.parts), whitening)
        penalties = [
            _penalties(folds, some, fold) if by_draw else [one.penalty for one in some] for fold in range(len(solved))
        ]
        fit = partial(_fit_fold, folds, known, scoring, expand)
        found = list(pool.map(fit, range(len(solved)), penalties))
        if by_draw:
            assert evidence is not None
            assert whitening is not None
            _tell(some, problem, folds, found, penalties, (first, whitening, evidence), pool)
        columns = np.concatenate([np.arange(place * c, (place + 1) * c) for place in places])
        for out, of_fold in zip(solved, found, strict=True):
            out.hidden |= of_fold.hidden
            for place, tested, error in zip(places, of_fold.tested, of_fold.errors, strict=True):
                out.tested[place], out.errors[place] = tested, error
            if expand:
                out.weights[:, columns], out.intercepts[columns] = of_fold.weights, of_fold.intercepts
    return solved


def _penalties(folds: _Folds, some: list[Candidate], fold: int) -> list[Penalty]:
    """With the numbers that are chosen on a fold, so that moved sums are solved with the same."""
    penalties = [one.penalty for one in some]
    if not any(isinstance(penalty.alpha, str) for penalty in penalties):
        return penalties
    return settled(folds.train(fold), penalties)


def _tell(
    some: list[Candidate],
    problem: Problem,
    folds: _Folds,
    found: list[Solved],
    penalties: list[list[Penalty]],
    given: tuple[int, Whitening, Evidence],
    pool: ThreadPoolExecutor,
) -> None:
    """Note the errors of candidates, from solves of sums that are moved as rounding moved them."""
    first, whitening, evidence = given
    last, basis, k = some[0].last, problem.basis, len(some)
    total, glance = last.predicted_from(problem), basis.glance()
    seen = None if glance is None else glance[0][:, : len(total.s)]

    def changed(sums: Accumulator) -> Array:
        """(F·k,)."""
        moved = replace(problem, statistics=sums)
        try:
            others = _Folds.of(some, moved, first, whitening, pool)
        except DataError:  # they cannot be solved from
            return np.full(k * len(found), np.inf)
        return np.concatenate(list(pool.map(partial(of_fold, others), range(len(found)))))

    def of_fold(others: _Folds, fold: int) -> Array:
        try:
            weights, intercepts, _ = others.coordinates.fit(others.train(fold), penalties[fold])
        except DataError:
            return np.full(k, np.inf)
        fit = found[fold].weights, found[fold].intercepts
        return changes(total, fit, others.expanded(weights, intercepts), k, seen=seen)

    errors = drawn(problem, whitening, evidence, changed)
    for fold, out in enumerate(found):
        out.errors = list(errors[fold * k : (fold + 1) * k])
        out.tested = [
            replace(tested, error=error.total, allowed=ENOUGH)
            for tested, error in zip(out.tested, errors[fold * k : (fold + 1) * k], strict=True)
        ]


def _fit_fold(
    folds: _Folds, known: Variances | None, scoring: Scoring, expand: bool, fold: int, penalties: Sequence[Penalty]
) -> Solved:
    """Candidates trained on all parts but one and tested on that one."""
    coordinates, train, one = folds.coordinates, folds.train(fold), folds.parts[fold]
    weights, intercepts, errors = coordinates.fit(train, penalties, known)
    if coordinates.origin is not None and not penalties[0].fit_intercept:
        train = reduced(replace(train, shift=coordinates.origin), identity(len(train.G)))
    scores = gcv_scores(train, penalties) if scoring.gcv else [None] * len(penalties)
    told = [float("nan") if error is None else error.total for error in errors]
    tested = [
        replace(of_test, gcv=score, error=error, allowed=ENOUGH)
        for of_test, score, error in zip(
            _tested(one, squared_errors(one, weights, intercepts)), scores, told, strict=True
        )
    ]
    expanded = folds.expanded(weights, intercepts) if expand else (weights[0, :0], intercepts.ravel())
    return Solved(tested, errors, *expanded, hidden=coordinates.hidden)


def _tested(moments: Moments, squares: Array) -> list[Tested]:
    """Candidates on the rows of these moments, of which they leave `squares` (k, c)."""
    spread = total_spread(moments)
    return [Tested(float(moments.n), float(moments.rows), one, spread, moments.q) for one in squares]


def _alike(members: list[Candidate]) -> list[list[int]]:
    """Positions of candidates that are ridge in the same coordinates, with or without an intercept."""
    groups: dict[Any, list[int]] = {}
    for place, candidate in enumerate(members):
        key = (getattr(candidate.last, "eigenfunctions", None), candidate.penalty.fit_intercept)
        groups.setdefault(key, []).append(place)
    return list(groups.values())
