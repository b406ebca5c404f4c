"""Models of a kernel for every penalty and fold by conjugate gradients, side by side in the same sweeps.

A column is fitted to the training rows of its fold; the last sweep gives its squared error on the test rows.
Shapes: m landmarks, F folds, A penalties, c targets. Tests: search/test_cg_searches.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.sweep import keeping_blocks, plan_sweep
from bigkernel.errors import PlanTooLargeError
from bigkernel.estimators.fit.basis import BasisChoice, of_kernel
from bigkernel.estimators.fit.cg_problem import CGProblem, Residual, StoppingRule, planned_sample
from bigkernel.estimators.fit.conjugate_gradients import CGResult, solve_cg
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.estimators.ridge import RidgeMethod
from bigkernel.events.job import Note, emit
from bigkernel.search.scoring import FoldSolutions, Scoring, Tested
from bigkernel.search.splits import Partition
from bigkernel.search.sweeps import (
    Candidate,
    GridSweep,
    KernelGroup,
    PlanLine,
    SearchData,
    kept_landmarks,
    split_to_fit,
)
from bigkernel.solvers.conjugate_gradients import (
    FACTOR_BYTES,
    PreconditionerChoice,
    decades,
    describe_preconditioner,
    driver_bytes,
)
from bigkernel.solvers.residuals import PROMISE
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import ProductStatistic
from bigkernel.statistics.statistic import Statistic

_STATES = 16  # (m, columns) float64 arrays that a step holds: two states and what they are computed from


def by_ridge(candidate: Candidate) -> tuple[RidgeMethod, BasisChoice]:
    """Return the method and the choice of columns of a candidate that conjugate gradients may fit."""
    assert isinstance(candidate.method, RidgeMethod)
    assert isinstance(candidate.columns, BasisChoice)
    return candidate.method, candidate.columns


@dataclass(eq=False)
class CGSweep(GridSweep):
    """Candidates of one kernel fitted by conjugate gradients, by ascending penalty; all folds share the sweeps."""

    keeps_moments: ClassVar[bool] = False  # the sweeps sum products

    @property
    def choice(self) -> PreconditionerChoice:
        """The preconditioner."""
        assert self.lead.choice is not None
        return self.lead.choice

    @property
    def alphas(self) -> tuple[float, ...]:
        """Penalties of the candidates."""
        return tuple(float(candidate.solve_settings.alpha) for candidate in self.candidates)

    @property
    def factors(self) -> int:
        """Number of m×m arrays of the preconditioner, for each decade of penalties one or two.

        The second leaves out the landmarks of each fold.
        """
        return len(decades(np.array(self.alphas))[0]) * (1 + (self.lead.basis.ids is not None))

    def state_bytes(self, targets: Targets, partition: Partition) -> int:
        """Return the bytes of the vectors of a step in this process."""
        columns = partition.folds.count * len(self.candidates) * targets.width
        return _STATES * 8 * int(self.lead.basis.width) * columns

    def products(self, targets: Targets, partition: Partition) -> ProductStatistic:
        """Return the statistic of a step, for a plan."""
        shape = (self.lead.basis.width, partition.folds.count * len(self.candidates) * targets.width)
        features, vectors = self.lead.basis.features(), np.broadcast_to(0.0, shape)
        return ProductStatistic(features, targets, vectors, "plan", residual=True, folds=partition.folds)

    def samples(self, targets: Targets) -> list[Statistic]:
        """Return the statistic of the sweep that samples rows, for a plan; none where there is no such sweep."""
        return [planned_sample(targets, of_kernel(self.lead.basis), self.choice.rows)] if self.choice.rows else []

    def statistics(self, targets: Targets, partition: Partition, rows: int, scoring: Scoring) -> list[Statistic]:
        scores = self.of_scores(targets, partition, scoring).values()
        return [self.products(targets, partition), *self.samples(targets), *scores]

    def require_room(self, data: SearchData, partitions: Sequence[Partition], scoring: Scoring) -> None:
        """Raise `PlanTooLargeError` unless a worker and this process have the memory for a step."""
        room = settings().memory_limit_bytes
        if any(self.state_bytes(data.targets, one) > room for one in partitions):
            raise PlanTooLargeError(f"a step of conjugate gradients does not fit into {room / 1e6:,.0f} MB")
        super().require_room(data, partitions, scoring)

    def halves(self) -> list[CGSweep]:
        """Return two sweeps of half the candidates each; none for a single candidate."""
        middle = len(self.candidates) // 2
        both = self.candidates[:middle], self.candidates[middle:]
        return [CGSweep([KernelGroup(half)]) for half in both] if middle else []

    def divide(self, data: SearchData, partition: Partition, scoring: Scoring) -> list[tuple[GridSweep, Partition]]:
        """Return the sweeps to solve one after the other: of fewer folds, then fewer candidates, as memory requires."""

        def heavy(one: CGSweep) -> bool:
            return one.factors * 8 * int(one.lead.basis.width) ** 2 > FACTOR_BYTES and len(one.candidates) > 1

        def check(pair: tuple[CGSweep, Partition]) -> None:
            one, some = pair
            if heavy(one):
                raise PlanTooLargeError("the preconditioners of the penalties do not fit into memory")
            if some.folds.count > 1 or len(one.candidates) > 1:
                one.require_room(data, [some], scoring)

        def halves(pair: tuple[CGSweep, Partition]) -> list[tuple[CGSweep, Partition]]:
            one, some = pair
            if not heavy(one) and some.folds.count > 1:
                return [(one, half) for half in some.halves()]
            return [(half, some) for half in one.halves()]

        return [pair for pair, _ in split_to_fit((self, partition), check, halves)]

    def sum_lines(self, what: str, data: SearchData, partition: Partition) -> Iterator[PlanLine]:
        """Plan all expected sweeps in one line."""
        targets, rows, choice = data.targets, partition.attach(data.rows), self.choice
        steps, number = plan_sweep(rows, self.products(targets, partition)), choice.sweeps
        held = driver_bytes(int(self.lead.basis.width), choice, self.factors) + self.state_bytes(targets, partition)
        what += f"about {number} sweeps of conjugate gradients with the {describe_preconditioner(choice.rows)}, "
        what += f"{number * steps.flops:.2g} flops, {held / 1e6:,.0f} MB in this process"
        sampled = [plan_sweep(rows, statistic).task_bytes for statistic in self.samples(targets)]
        yield PlanLine(what, steps.flops, max(steps.task_bytes, *sampled, 0), number, held)

    def solve(self, data: SearchData, partition: Partition, scoring: Scoring) -> list[list[FoldSolutions]]:
        """Solve for all candidates on all folds; the solutions are the start of a fit to all rows."""
        solved, steps = self._solve_folds(data, partition)
        penalties, folds = len(self.candidates), len(partition.splits)
        emit(Note(f"conjugate gradients: {steps} steps for {penalties} penalties and {folds} folds of a kernel"))
        c, width = data.targets.width, int(self.lead.basis.width)
        # sums over folds, where all rows would start: as many as memory holds
        for place, candidate in enumerate(self.candidates):
            if 8 * width * c * (len(data.ends) + 1) > settings().memory_limit_bytes:
                break
            ends = [fold.weights[:, place * c : (place + 1) * c] for fold in solved]
            before, splits = data.ends.get(candidate.index, (np.zeros((width, c)), 0))
            data.ends[candidate.index] = before + np.sum(ends, axis=0), splits + len(ends)
        return [solved]

    def _solve_folds(self, data: SearchData, partition: Partition) -> tuple[list[FoldSolutions], int]:
        """Solve for all candidates; return solutions by fold, and the number of steps."""
        method, intercept = by_ridge(self.lead)[0], self.lead.solve_settings.fit_intercept
        targets, inputs, basis = data.targets, data.inputs, of_kernel(self.lead.basis)
        if not intercept:  # as in a fit of one candidate
            targets, inputs = replace(targets, shift=None), inputs.of_targets()
        stopping = StoppingRule(method.by_cg.tol, method.by_cg.max_iter)
        rows, sample_rows, folds = partition.attach(data.rows), self.choice.rows, partition.folds
        reserved = driver_bytes(basis.width, self.choice, self.factors) + self.state_bytes(targets, partition)

        def require_labels(residual: Residual) -> None:
            sums = residual.sums
            for fold, split in enumerate(partition.splits):
                data.require_fold(split, float(sums["held_n"][fold]), float(sums["n"][fold]), sums["t"][fold])

        # penalties, folds and targets are columns of the same steps
        with (
            np.errstate(all="ignore"),  # scores that are not finite are refused
            keeping_blocks(basis.features(), rows, reserved_bytes=reserved) as features,
        ):
            given = method, rows, targets, basis, features, self.alphas, intercept, stopping, sample_rows, folds
            problem = CGProblem(*given, self._left_out(data, partition), "tune-cg")
            result = solve_cg(problem, require_labels)
        # coefficients and figures by fold
        by_fold = result.coef.reshape(basis.width, len(partition.splits), -1).transpose(1, 0, 2)
        intercepts = result.residual.intercept.reshape(len(partition.splits), -1)
        solved = [
            FoldSolutions(tested, [None] * len(tested), weights, intercept)
            for tested, weights, intercept in zip(_test(result, inputs), by_fold, intercepts, strict=True)
        ]
        return solved, len(result.history)

    def _left_out(self, data: SearchData, partition: Partition) -> tuple[Array, ...]:
        """Return the landmarks among the held-out rows of each fold, which have no coefficients there."""
        folds = self.landmark_folds(data, partition)
        if folds is None:
            return ()
        return tuple(np.flatnonzero(~kept_landmarks(folds, partition, fold)) for fold in range(partition.folds.count))


def _test(result: CGResult, inputs: Inputs) -> list[list[Tested]]:
    """Test each candidate on the test rows of a fold, by fold, from the sums of the last sweep."""
    shape, tol = result.problem.shape, result.problem.stopping.tol
    sums, bound, ended = result.residual.sums, result.stopping_error, result.relative_excess <= tol
    n, t, q = sums["held_n"][:, None], sums["held_t"], sums["held_q"]
    # Σ w (y − mean)² of the targets, 0 where it is below rounding
    spread = q - t**2 / n
    spread = np.where(spread <= 1e-12 * q, 0, spread)
    # Σ w (y − f)² of residuals about the intercept b
    e, sse, b = (values.reshape(shape) for values in (sums["held_e"], sums["held_sse"], result.residual.intercept))
    squared_errors = np.maximum(sse - 2 * b * e + b**2 * n[:, None], 0)
    # the tolerance may leave more than the promise of a direct solve
    error, allowed = np.maximum(bound, result.cancellation_error(inputs)), np.maximum(bound, PROMISE)
    return [
        [
            Tested(
                float(n[fold, 0]),
                float(sums["held_rows"][fold]),
                squared_errors[fold, place],
                spread[fold],
                q[fold],
                error=float(error[fold, place]),
                allowed=float(allowed[fold, place]),
                ended=bool(ended[fold, place]),
            )
            for place in range(shape[1])
        ]
        for fold in range(shape[0])
    ]
