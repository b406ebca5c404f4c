"""Models that adapt a source to a target on every split of a search: from the sums of one sweep, and shared rounds.

Each is the fit to the labels that its split leaves (`solvers.split_sides`). The models of a split share its sums in
whitened coordinates, so that one more is a solve; those of all splits share the sweeps of their rounds. Shapes: r
whitened coordinates, c classes, k models of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError
from bigkernel.estimators.arithmetic import drawn, evidence_of
from bigkernel.estimators.fit_state import Problem
from bigkernel.estimators.label_course import Course
from bigkernel.estimators.number_range import solving
from bigkernel.solvers.accuracy import Errors, changes
from bigkernel.solvers.penalty_grid import Coordinates, squared_errors
from bigkernel.solvers.pseudo_labels import Sides
from bigkernel.solvers.split_sides import SplitSides
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]


@dataclass(eq=False)
class SplitFits:
    """The models of one split.

    Attributes
    ----------
    sides : of the split
    problem : its sums, of target and source
    whitening : of the columns
    tested : moments of the rows that it tests, in whitened coordinates
    courses : one a model
    """

    sides: Sides
    problem: Problem
    whitening: Whitening
    tested: Moments
    courses: list[Course]

    @classmethod
    def of(
        cls, estimators: Sequence[Any], splits: SplitSides, swept: Problem, whitening: Whitening, split: int
    ) -> SplitFits:
        """The first solution of each estimator, from the sums of groups; all that they differ in is how they solve."""
        problem = replace(swept, statistics=splits.part(swept.statistics, split))
        shared, to_whitened = _reduced(estimators, problem, whitening), Coordinates(whitening).reduce
        tested = Moments.of(splits.tests(swept.statistics, split), shift=swept.centre)
        courses = [
            Course(one, one._solved(problem, whitening, reduced=shared, tell=False), one.n_rounds) for one in estimators
        ]
        sides = splits.sides(split)
        return cls(sides, problem, whitening, to_whitened(tested), courses)

    @property
    def weights(self) -> Array:
        """Coefficients over the columns of the map, (p, k·c)."""
        return np.hstack([course.solved.solution.coef for course in self.courses])

    def squares(self, moments: Moments) -> Array:
        """Σ w (y − f)² of some rows by every model, (k, c), from their moments in whitened coordinates."""
        whitened = np.stack([course.solved.solution.whitened for course in self.courses])  # type: ignore[attr-defined]
        return squared_errors(moments, whitened, np.zeros((len(whitened), whitened.shape[2])))

    def errors(self) -> list[Errors | None]:
        """How far rounding has moved each model, its pseudo-labels given: by solves of sums that are moved as it does.

        None where no witness saw the sums.
        """
        evidence = evidence_of(self.problem, self.whitening)
        if evidence is None:
            return [None] * len(self.courses)
        estimators, count = [course.estimator for course in self.courses], len(self.courses)
        glance, moments = self.problem.basis.glance(), self.problem.moments
        seen, nothing = None if glance is None else glance[0], np.zeros(self.weights.shape[1])

        def changed(total: Accumulator) -> Array:
            moved = replace(self.problem, statistics=total)
            try:
                shared = _reduced(estimators, moved, self.whitening)
                found = [
                    course.estimator._solved(
                        replace(moved, pseudo_labels=course.solved.problem.pseudo_labels),
                        self.whitening,
                        reduced=shared,
                        tell=False,
                    ).solution.coef
                    for course in self.courses
                ]
            except DataError:  # it cannot be solved from these
                return np.full(count, np.inf)
            return changes(moments, (self.weights, nothing), (np.hstack(found), nothing), count, seen=seen)

        return [*drawn(self.problem, self.whitening, evidence, changed)]


def _reduced(estimators: Sequence[Any], problem: Problem, whitening: Whitening) -> Any:
    """What all solves of a split share; with the graph, where one of them has one."""
    lead = max(estimators, key=lambda one: one.manifold)
    with solving(lead):
        return lead._reduce(problem, whitening)
