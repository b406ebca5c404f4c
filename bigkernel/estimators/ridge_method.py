"""Kernel ridge as a method: by sums of m×m and one solve, exactly, or by conjugate gradients.

Shapes: n rows, m landmarks, c targets.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import ConfigError, Inaccurate, PlanTooLarge
from bigkernel.estimators.cg_problem import CGProblem, StoppingRule, planned_sample
from bigkernel.estimators.conjugate_gradients import fit_by_cg as solve_by_cg
from bigkernel.estimators.fit_state import (
    ExactProblem,
    Fit,
    Problem,
    RidgeSolution,
    Solution,
    Training,
)
from bigkernel.estimators.fitting import Method, fit_moments
from bigkernel.estimators.kernel_basis import BasisChoice
from bigkernel.estimators.number_range import finite, solving
from bigkernel.estimators.parameter_checks import free_bytes, penalty_of
from bigkernel.estimators.precision import evidence_of, solve_triangle
from bigkernel.events.kinds import Note
from bigkernel.events.scope import emit
from bigkernel.solvers.cg_cost import (
    AUTO_LEAST,
    PreconditionerChoice,
    choose_preconditioner,
    direct_flops,
    driver_bytes,
    solve_flops,
)
from bigkernel.solvers.exact import exact_krr, indefinite_krr
from bigkernel.solvers.gcv import best_alpha, best_alpha_exact
from bigkernel.solvers.penalty_grid import Coordinates, Penalty
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import Columns, by_penalty, nystrom_ridge
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments, unshifted
from bigkernel.statistics.products import ProductStatistic
from bigkernel.streaming.plan import Plan


@dataclass(frozen=True)
class IterativeSettings:
    """How the equations are solved: "auto", "direct" or "cg"; and of "cg" the tolerance and most steps."""

    solver: str
    tol: float
    max_iter: int


def why_not_cg(method: RidgeMethod, columns: BasisChoice) -> str:
    """Say why conjugate gradients cannot fit this, or nothing."""
    alpha, kernel = method.alpha, columns.kernel
    if method.probability:
        return "probability=True needs the m×m sums of folds; take solver='direct'"
    if columns.exact:
        return "the exact form is solved directly; set n_landmarks"
    if np.ndim(alpha):
        return "all targets share a penalty there; give one number for alpha, or take solver='direct'"
    if isinstance(alpha, str):
        return "alpha='gcv' chooses from m×m sums; give a number, or search a grid by SweepSearchCV with cv=0.2"
    if not alpha > 0:
        return f"expected a number above 0 for alpha, found {alpha!r}"
    return "" if kernel.positive else f"the {kernel.name} kernel is not positive definite"


def choose_solver(
    method: RidgeMethod, columns: BasisChoice, data: Training, *, models: int = 1, trained: float | None = None
) -> tuple[PreconditionerChoice | None, str]:
    """Choose how conjugate gradients fit these rows, None where the fit is direct; and why, where "auto" chooses.

    Parameters
    ----------
    models : that are fitted side by side, of other penalties or folds: a direct solve each, or columns
    trained : rows that each of several folds has, which share a preconditioner
    """
    rows, solver = data.rows, method.by_cg.solver
    if solver == "direct":
        return None, ""
    m, auto, refusal = columns.width_for(rows), solver == "auto", why_not_cg(method, columns)
    if auto and m < AUTO_LEAST:
        return None, f"below {AUTO_LEAST:,} landmarks sums are kept, for more rows and another alpha"
    if refusal:
        return None, refusal
    choice = choose_preconditioner(*rows.shape, m, models * data.targets.width, method.by_cg.tol, trained)
    if not auto:
        return choice, ""
    float64 = columns.dtype == "float64" or (columns.dtype == "auto" and rows.dtype == np.float64)
    direct = direct_flops(*rows.shape, m, float64=float64) + (models - 1) * solve_flops(m)
    costs = f"{choice.flops / 1e12:.3g} TFLOP by cg, {direct / 1e12:.3g} by direct sums and their solve"
    return choice if choice.flops < direct else None, costs


def fit_by_cg(
    method: RidgeMethod,
    columns: BasisChoice,
    data: Training,
    basis: Any,
    choice: PreconditionerChoice | None = None,
    start: NDArray[Any] | None = None,
) -> Fit:
    """Fit by conjugate gradients, from coefficients near the solution where they are given, (m, c).

    Where "auto" chose them and they do not reach `tol`, by a direct solve, if there is memory for it.
    """
    rows, settings = data.rows, method.by_cg
    if choice is None:
        choice = choose_preconditioner(*rows.shape, columns.width_for(rows), data.targets.width, settings.tol)
    stopping, alphas = StoppingRule(settings.tol, settings.max_iter), (float(method.alpha),)
    equations = CGProblem(rows, data.targets, basis, alphas, method.fit_intercept, stopping, choice.rows)
    with solving(method):
        fit, missed = solve_by_cg(equations, data.inputs, start)
    if missed and settings.solver == "auto" and driver_bytes(columns.width_for(rows), None) <= free_bytes():
        emit(Note(f"{missed}: solved directly instead"))
        with suppress(PlanTooLarge):
            return fit_moments(method, data, basis, choose=columns.dtype == "auto")
    if missed:
        warnings.warn(missed, Inaccurate, stacklevel=4)
    finite(method, fit.solution)
    return fit


def plan_by_cg(data: Training, basis: Any, choice: PreconditionerChoice) -> Plan:
    """Return the arithmetic, bytes and memory of all sweeps that are to be expected of conjugate gradients."""
    vectors = np.zeros((basis.width, data.targets.width))
    plan = plan_sweep(data.rows, ProductStatistic(basis.features(), data.targets, vectors, "plan"))
    if choice.rows:  # with the memory of the sweep that draws rows
        drawn = plan_sweep(data.rows, planned_sample(data.targets, basis, choice.rows))
        largest = {name: max(getattr(plan, name), getattr(drawn, name)) for name in ("partial_bytes", "work_bytes")}
        plan = replace(plan, **largest)
    return replace(plan, flops=choice.sweeps * plan.flops, bytes_read=choice.sweeps * plan.bytes_read)


Array = NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeMethod(Method):
    """Least squares with a penalty, by sums of m×m and one solve, or by conjugate gradients."""

    solution_type: ClassVar[type[Solution]] = RidgeSolution
    has_formula: ClassVar[bool] = True
    fit_intercept: bool
    by_cg: IterativeSettings

    @property
    def probed(self) -> bool:
        """False of conjugate gradients, whose products are float64."""
        return self.by_cg.solver != "cg"

    @property
    def factors_rows(self) -> bool:
        """False where f without each fold is solved for from moments alone."""
        return not self.probability

    def check_settings(self, columns: BasisChoice) -> None:
        """See `Method`."""
        refusal = why_not_cg(self, columns)
        if self.by_cg.solver == "cg" and refusal:
            raise ConfigError(f"{self.name}(solver='cg'): {refusal}")

    def solve(self, problem: Problem, reduced: Whitening, certificates: Certificates) -> RidgeSolution:
        """See `Method`."""
        whitening, flag, shift = reduced, self.fit_intercept, problem.inputs.shift
        # targets were summed about a point near their mean where the fit had an intercept
        moments = problem.moments
        if not flag:
            moments = Moments.of(unshifted(problem.statistics, shift), shift=problem.centre)
        alpha = penalty_of(self.alpha)
        if problem.triangle is not None:
            coef, intercept, error, alpha = solve_triangle(problem, whitening, alpha, certificates, fit_intercept=flag)
        else:
            if isinstance(alpha, str):
                alpha = best_alpha(moments, whitening, fit_intercept=flag)
            evidence = evidence_of(problem, whitening)
            coef, intercept, error = nystrom_ridge(
                moments, whitening, alpha, fit_intercept=flag, certificates=certificates, evidence=evidence
            )
        return RidgeSolution(
            coef=coef,
            intercept=(intercept if flag else intercept - shift) + shift,
            rank=whitening.rank,
            alpha=alpha,
            training_mse=error / max(float(problem.statistics["n"].sum()), 1e-300),
            with_intercept=flag,
        )

    def solve_exact(self, problem: ExactProblem, certificates: Certificates) -> RidgeSolution:
        """See `Method`."""
        K, weight, kernel, flag = problem.K, problem.weight, problem.basis.kernel, self.fit_intercept
        Y, _ = problem.wanted
        alpha = penalty_of(self.alpha)
        if isinstance(alpha, str):
            alpha = best_alpha_exact(K, Y, fit_intercept=flag, weight=weight)
        krr = exact_krr if kernel.positive else partial(indefinite_krr, kernel=kernel.name)

        def solve(value: float, columns: Columns, noted: Certificates | None) -> tuple[Array, ...]:
            return krr(K, Y[:, columns], value, fit_intercept=flag, weight=weight, certificates=noted)

        coef, intercept = by_penalty(alpha, Y.shape[1], certificates, solve)
        # Y is without its shift here, as is the intercept
        error = np.average((K @ coef + intercept - Y) ** 2, axis=0, weights=weight)
        return RidgeSolution(
            coef=coef,
            intercept=intercept + problem.inputs.shift,
            rank=len(K),
            alpha=alpha,
            training_mse=error,
            with_intercept=flag,
        )

    def penalty(self) -> Penalty:
        """See `Method`."""
        return Penalty(penalty_of(self.alpha), self.fit_intercept)

    def coordinates(
        self, basis: Any, everything: Moments, n_components: int, whitening: Whitening | None = None
    ) -> Coordinates:
        """Return the whitened coordinates."""
        return Coordinates(whitening or basis.whitening())

    def fit(self, data: Training, columns: Any, basis: Any) -> Fit:
        """Fit by the solver that costs less, where that is a choice."""
        choice, _ = choose_solver(self, columns, data)
        return super().fit(data, columns, basis) if choice is None else fit_by_cg(self, columns, data, basis, choice)

    def plan(self, data: Training, columns: Any, basis: Any) -> Plan:
        """See `Method`; of conjugate gradients, the arithmetic and bytes of all expected sweeps."""
        choice, _ = choose_solver(self, columns, data)
        return super().plan(data, columns, basis) if choice is None else plan_by_cg(data, basis, choice)
