"""Models of a kernel for every penalty and fold by conjugate gradients, side by side in the same sweeps.

A column is fitted to the rows that its fold does not test; the last sweep gives its squared error on those that it
does. Shapes: m landmarks, F folds, A penalties, c targets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bigkernel.engine.rows import Rows
from bigkernel.estimators.cg_problem import CGProblem, Residual, StoppingRule
from bigkernel.estimators.checks import solving
from bigkernel.estimators.conjugate_gradients import CGResult, solve_cg
from bigkernel.estimators.fit_state import Inputs
from bigkernel.search.candidates import Descents, by_ridge
from bigkernel.search.scoring import Solved, Tested
from bigkernel.search.splits import Partition, require_fold
from bigkernel.solvers.residuals import PROMISE
from bigkernel.statistics.moments import Targets


def solve_folds_by_cg(
    one: Descents, partition: Partition, rows: Rows, targets: Targets, inputs: Inputs
) -> tuple[list[Solved], int]:
    """Solve for all candidates on all folds of a partition: by fold; and how many steps that took."""
    method, intercept = by_ridge(one.lead)[0], one.lead.penalty.fit_intercept
    if not intercept:  # as a fit of its own would have the targets
        targets, inputs = replace(targets, shift=None), inputs.of_targets()
    stopping, basis, folds = StoppingRule(method.by_cg.tol, method.by_cg.max_iter), one.lead.basis, partition.folds
    rows, sample_rows = partition.attach(rows), one.choice.rows
    problem = CGProblem(rows, targets, basis, one.alphas, intercept, stopping, sample_rows, folds, name="tune-cg")

    def require_labels(residual: Residual) -> None:
        sums = residual.sums
        for fold, split in enumerate(partition.splits):
            classes = None if targets.classes is None else sums["t"][fold]
            require_fold(split, float(sums["held_n"][fold]), float(sums["n"][fold]), classes)

    with solving(method):
        result = solve_cg(problem, require_labels)
    by_fold = result.alpha.reshape(basis.width, len(partition.splits), -1).transpose(1, 0, 2)
    intercepts = result.residual.intercept.reshape(len(partition.splits), -1)
    solved = [
        Solved(tested, [None] * len(tested), weights, intercept)
        for tested, weights, intercept in zip(_test(result, inputs), by_fold, intercepts, strict=True)
    ]
    return solved, len(result.history)


def _test(result: CGResult, inputs: Inputs) -> list[list[Tested]]:
    """Test each candidate on the rows that a fold tests, by fold."""
    shape, tol = result.problem.shape, result.problem.stopping.tol
    sums, bound, ended = result.residual.sums, result.stopping_error, result.relative_excess <= tol
    n, t, q = sums["held_n"][:, None], sums["held_t"], sums["held_q"]
    spread = q - t**2 / n
    spread = np.where(spread <= 1e-12 * q, 0, spread)
    # Σ w (y − f)² of residuals about the intercept b
    e, sse, b = (values.reshape(shape) for values in (sums["held_e"], sums["held_sse"], result.residual.intercept))
    squared_errors = np.maximum(sse - 2 * b * e + b**2 * n[:, None], 0)
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
