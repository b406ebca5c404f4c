"""Candidates that adapt a source to a target on every split: from the sums of one sweep, and rounds that all share.

A first sweep sums the rows by what the splits make of them. Each model is the fit to the labels that its split leaves
(`solvers.split_sides`); the models of a split share its sums in whitened coordinates, so that one more is a solve. Each
round is then one sweep of the target, for the pseudo-labels of every candidate on every split that is still under way.
Shapes: r whitened coordinates, c classes, k models of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.process import processors
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import DataError, PlanTooLarge
from bigkernel.estimators.checks import solving
from bigkernel.estimators.domains import slot_counts
from bigkernel.estimators.fit_state import Problem
from bigkernel.estimators.fitting import solve
from bigkernel.estimators.precision import estimate_errors, is_probed
from bigkernel.estimators.self_training import SelfTraining
from bigkernel.events.job import Note, emit, spent
from bigkernel.search.candidates import SidedSweep, Sweep, limit_bytes
from bigkernel.search.scoring import Solved, Tested
from bigkernel.search.splits import Partition, require_fold
from bigkernel.solvers.accuracy import ENOUGH, Errors, changes
from bigkernel.solvers.penalty_grid import Coordinates, squared_errors, total_spread
from bigkernel.solvers.pseudo_labels import Asked, Decision, JointPseudoLabels, PseudoLabels, Sides
from bigkernel.solvers.split_sides import SplitSides
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import Cells
from bigkernel.statistics.moments import Moments, Targets
from bigkernel.streaming.plan import Accumulator, Plan


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
    courses: list[SelfTraining]

    @classmethod
    def of(
        cls, methods: Sequence[Any], splits: SplitSides, swept: Problem, whitening: Whitening, split: int
    ) -> SplitFits:
        """The first solution of each method, from the sums of groups; all that they differ in is how they solve."""
        problem = replace(swept, statistics=splits.part(swept.statistics, split))
        shared, to_whitened = _reduced(methods, problem, whitening), Coordinates(whitening).reduce
        tested = Moments.of(splits.tests(swept.statistics, split), shift=swept.centre)
        courses = [
            SelfTraining(one, solve(one, problem, whitening, reduced=shared, estimate=False), one.n_rounds)
            for one in methods
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
        if not is_probed(self.problem):
            return [None] * len(self.courses)
        methods, count = [course.method for course in self.courses], len(self.courses)
        glance, moments = self.problem.basis.glance(), self.problem.moments
        seen, nothing = None if glance is None else glance[0], np.zeros(self.weights.shape[1])

        def changed(total: Accumulator) -> Array:
            moved = replace(self.problem, statistics=total)
            try:
                shared = _reduced(methods, moved, self.whitening)
                found = [
                    solve(
                        course.method,
                        replace(moved, pseudo_labels=course.solved.problem.pseudo_labels),
                        self.whitening,
                        reduced=shared,
                        estimate=False,
                    ).solution.coef
                    for course in self.courses
                ]
            except DataError:  # it cannot be solved from these
                return np.full(count, np.inf)
            return changes(moments, (self.weights, nothing), (np.hstack(found), nothing), count, seen=seen)

        return [*(estimate_errors(self.problem, self.whitening, changed) or [])]


def _reduced(methods: Sequence[Any], problem: Problem, whitening: Whitening) -> Any:
    """What all solves of a split share; with the graph, where one of them has one."""
    lead = max(methods, key=lambda one: one.graph.manifold)
    with solving(lead):
        return lead.reduce(problem, whitening)


@dataclass(eq=False)
class SidedSolved(Solved):
    """Candidates of one kernel on one fold, whose rounds may be still to come."""

    fits: SplitFits | None = None


def with_sides(parts: Sequence[Partition], rows: Rows, cells: Cells) -> list[Partition]:
    """The partitions with source and target of each of their splits.

    Raises
    ------
    DataError
        A split has none of either.
    """
    found = []
    for one in parts:
        sides = SplitSides.of(cells, one.folds, slot_counts(one.attach(rows), cells, one.folds))
        for number, split in enumerate(one.splits):
            if not sides.has_both(number):
                _refuse(split, target=bool(sides.sources[:, number].any()))
        found.append(replace(one, sides=sides))
    return found


def _refuse(split: int, *, target: bool) -> None:
    if target:
        raise DataError(
            f"cv: split {split} leaves labels in every domain, and there is nothing to adapt to; expected the rows of "
            "a target without labels (-1), or cv='domains', which hides the labels of one domain in turn"
        )
    raise DataError(f"cv: split {split} leaves no label to train on")


def begun(
    one: Sweep, partition: Partition, problem: Problem, whitening: Whitening, pool: ThreadPoolExecutor
) -> list[Solved]:
    """The first solutions of all candidates, by fold."""
    sides, methods = partition.sides, [candidate.method for candidate in one.candidates]
    assert sides is not None
    for fold, split in enumerate(partition.splits):
        tested, part = sides.tests(problem.statistics, fold), sides.part(problem.statistics, fold)
        require_fold(split, float(tested["n"].sum()), float(part["n"][1]), part["t"][1])
        if not part["n"][0] > 0:
            raise DataError(f"cv: split {split} has no row of the target with a weight above zero")
    fits = pool.map(partial(SplitFits.of, methods, sides, problem, whitening), range(len(partition.splits)))
    return list(pool.map(_solved, list(fits)))


def adapted(one: Sweep, partition: Partition, rows: Rows, found: list[Solved]) -> list[Solved]:
    """The candidates after their rounds, by fold."""
    fits = [solved.fits for solved in found if isinstance(solved, SidedSolved) and solved.fits is not None]
    courses = [(of_split.sides, course) for of_split in fits for course in of_split.courses]
    features, attached, number = one.lead.basis.centred(), partition.attach(rows), 0
    pool = ThreadPoolExecutor(processors())
    with threadpool_limits(limits=1, user_api="blas"), pool:  # as in the first solves
        while active := [(sides, course) for sides, course in courses if not course.ended]:
            number += 1
            asked = tuple(course.asked(features, sides) for sides, course in active)
            told: list[PseudoLabels] = []
            for statistic, _ in _batches(JointPseudoLabels(features, asked), attached):
                total = sweep(attached, statistic, what=f"tune-round-{number}").total
                told += statistic.labels(total, features.shift)
            with spent("solve"):
                list(pool.map(lambda pair: pair[0][1].take(pair[1]), zip(active, told, strict=True)))
        if not number:
            return found
        solved = list(pool.map(_solved, fits))
    if collapsed := sum(bool(course.fault) for _, course in courses):
        emit(Note(f"{collapsed} of {len(courses)} fits on folds ended early: their pseudo-labels collapsed"))
    return solved


def _solved(fits: SplitFits) -> Solved:
    """What tests say of the solutions as they are."""
    errors = fits.errors()
    tested = _tested(fits.tested, fits.squares(fits.tested))
    tested = [
        replace(one, error=float("nan") if error is None else error.total, allowed=ENOUGH)
        for one, error in zip(tested, errors, strict=True)
    ]
    weights = fits.weights
    return SidedSolved(tested, errors, weights, np.zeros(weights.shape[1]), fits=fits)


def _tested(moments: Moments, squares: Array) -> list[Tested]:
    spread = total_spread(moments)
    return [Tested(float(moments.n), float(moments.rows), one, spread, moments.q) for one in squares]


def planned_rounds(
    one: SidedSweep, rows: Rows, targets: Targets, partition: Partition, *, best: bool = False
) -> list[Plan]:
    """The sweeps of one round, with all candidates and splits still under way; `best`: with one, of all labels."""
    assert partition.sides is not None
    basis, c = one.lead.basis, targets.width
    decision = Decision(np.broadcast_to(0.0, (basis.width, c)), np.zeros(c))
    count = partition.folds.count
    wanted = [count] if best else [*range(count)] * len(one.candidates)
    asked = tuple(Asked(partition.sides.sides(split), decision, 1.0, decision) for split in wanted)
    return [plan for _, plan in _batches(JointPseudoLabels(basis.centred(), asked), partition.attach(rows))]


def _batches(statistic: JointPseudoLabels, rows: Rows) -> list[tuple[JointPseudoLabels, Plan]]:
    """A round's sweep, or several of fewer decisions where one would not fit the memory of a worker."""
    plan = plan_sweep(rows, statistic)
    try:
        plan.check(limit_bytes(rows), settings().worker_base_bytes)
    except PlanTooLarge:
        if len(statistic.asked) > 1:
            middle = len(statistic.asked) // 2
            halves = statistic.asked[:middle], statistic.asked[middle:]
            return [found for half in halves for found in _batches(replace(statistic, asked=half), rows)]
    return [(statistic, plan)]
