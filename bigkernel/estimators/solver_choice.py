"""Which solver fits kernel ridge to given rows: sums of m×m and one solve, or conjugate gradients.

For estimators with the parameters alpha, fit_intercept, solver, tol and max_iter. Shapes: m landmarks.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import ConfigError, Inaccurate, PlanTooLarge
from bigkernel.estimators.cg_problem import CGProblem, StoppingRule, planned_sample
from bigkernel.estimators.choice_memory import free_bytes
from bigkernel.estimators.conjugate_gradients import fit_by_cg
from bigkernel.estimators.fit_state import Inputs, IterativeFit, MomentFit
from bigkernel.estimators.moment_estimator import LandmarkEstimator
from bigkernel.estimators.number_range import finite, solving
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
from bigkernel.solvers.preconditioners import describe_preconditioner
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import ProductStatistic
from bigkernel.streaming.plan import Plan


class ChoosesSolver(LandmarkEstimator):
    """Base of the estimators that fit by sums or by conjugate gradients."""

    tells_by_formula = True

    @property
    def has_witness(self) -> bool:
        """False of conjugate gradients, whose products are float64."""
        return bool(self.solver != "cg")

    @property
    def factors_rows(self) -> bool:
        return True

    def _check_settings(self) -> None:
        super()._check_settings()
        refusal = self._not_iterative()
        if self.solver == "cg" and refusal:
            raise ConfigError(f"{type(self).__name__}(solver='cg'): {refusal}")

    def _not_iterative(self) -> str:
        """Why conjugate gradients cannot fit this, or nothing."""
        if self.exact:
            return "the exact form is solved directly; set n_landmarks"
        if np.ndim(self.alpha):
            return "all targets share a penalty there; give one number for alpha, or take solver='direct'"
        if self.alpha == "gcv":
            return "alpha='gcv' chooses from m×m sums; give a number, or search a grid by SweepSearchCV with cv=0.2"
        if not self.alpha > 0:
            return f"expected a number above 0 for alpha, found {self.alpha!r}"
        return "" if self.given_kernel().positive else f"the {self.given_kernel().name} kernel is not positive definite"

    def descent(
        self, rows: Rows, targets: Targets, *, models: int = 1, trained: float | None = None
    ) -> PreconditionerChoice | None:
        """How conjugate gradients fit these rows; None where the fit is direct.

        Parameters
        ----------
        models : that are fitted side by side, of other penalties or folds: a direct solve each, or columns
        trained : rows that each of several folds has, which share a preconditioner
        """
        return self._weighed(rows, targets, models, trained)[0]

    def _weighed(
        self, rows: Rows, targets: Targets, models: int = 1, trained: float | None = None
    ) -> tuple[PreconditionerChoice | None, str]:
        """See `descent`; and why, where "auto" chooses."""
        m, auto, refusal = self._width_for(rows), self.solver == "auto", self._not_iterative()
        if self.solver == "direct":
            return None, ""
        if auto and m < AUTO_LEAST:
            return None, f"below {AUTO_LEAST:,} landmarks sums are kept, for more rows and another alpha"
        if refusal:
            return None, refusal
        choice = choose_preconditioner(*rows.shape, m, models * targets.width, self.tol, trained)
        if not auto:
            return choice, ""
        float64 = self.dtype == "float64" or (self.dtype == "auto" and rows.dtype == np.float64)
        direct = direct_flops(*rows.shape, m, float64=float64) + (models - 1) * solve_flops(m)
        costs = f"{choice.flops / 1e12:.3g} TFLOP by cg, {direct / 1e12:.3g} by direct sums and their solve"
        return choice if choice.flops < direct else None, costs

    def _fit_landmarks(self, rows: Rows, targets: Any, inputs: Inputs, basis: Any) -> MomentFit | IterativeFit:
        choice = self.descent(rows, targets)
        if choice is None:
            return self._fit_moments(rows, targets, inputs, basis)
        return self._fit_iteratively(rows, targets, inputs, basis, choice)

    def _fit_iteratively(
        self,
        rows: Rows,
        targets: Targets,
        inputs: Inputs,
        basis: Any,
        choice: PreconditionerChoice,
        start: NDArray[Any] | None = None,
    ) -> MomentFit | IterativeFit:
        stopping = StoppingRule(self.tol, self.max_iter)
        problem = CGProblem(rows, targets, basis, (float(self.alpha),), self._intercept, stopping, choice.rows)
        with solving(self):
            fit, missed = fit_by_cg(problem, inputs, start)
        if missed and self.solver == "auto" and driver_bytes(self._width_for(rows), None) <= free_bytes():
            emit(Note(f"{missed}: solved directly instead"))
            with suppress(PlanTooLarge):
                return self._fit_moments(rows, targets, inputs, basis)
        if missed:
            warnings.warn(missed, Inaccurate, stacklevel=4)
        finite(self, fit.solution)
        return fit

    def adopt_descent(
        self, rows: Rows, targets: Targets, inputs: Inputs, basis: Any, start: NDArray[Any] | None
    ) -> Self:
        """Become the model that a descent from coefficients near it ends at, (m, c); None: from anew."""
        self._see(inputs)
        choice = choose_preconditioner(*rows.shape, self._width_for(rows), targets.width, self.tol)
        self._fitted = self._fit_iteratively(rows, targets, inputs, basis, choice, start)
        return self

    def _statistic(self, basis: Any, targets: Any) -> Any:
        if self.solver != "cg":
            return super()._statistic(basis, targets)
        return ProductStatistic(basis.features(), targets, np.zeros((basis.width, targets.width)), "plan")

    def plan(self, X: Any, y: Any = None, sample_domain: Any = None) -> Plan:
        """See `LandmarkEstimator.plan`; of conjugate gradients, the arithmetic and bytes of all expected sweeps."""
        self._check_settings()
        if self.exact:
            return super().plan(X, y, sample_domain)
        other = self.__class__(**self.get_params(deep=False))
        choice = self.descent(*self._read(X, y))
        other.solver = "direct" if choice is None else "cg"
        plan = super(ChoosesSolver, other).plan(X, y, sample_domain)
        sweeps = 1 if choice is None else choice.sweeps
        return replace(plan, flops=sweeps * plan.flops, bytes_read=sweeps * plan.bytes_read)

    def _planned(self, rows: Rows, targets: Any, basis: Any) -> Plan:
        """See `LandmarkEstimator._planned`; of conjugate gradients, with the memory of the sweep that draws rows."""
        plan = super()._planned(rows, targets, basis)
        choice = self.descent(rows, targets) if self.solver == "cg" else None
        if choice is None or not choice.rows:
            return plan
        drawn = plan_sweep(rows, planned_sample(targets, basis, choice.rows))
        largest = {name: max(getattr(plan, name), getattr(drawn, name)) for name in ("partial_bytes", "work_bytes")}
        return replace(plan, **largest)

    def plan_solver(self, X: Any, y: Any = None) -> dict[str, Any]:
        """Tell how `fit` would solve for these rows, without running it.

        Returns
        -------
        dict
            `solver`, "exact", "direct" or "cg"; of the latter `preconditioner`, in words; `sweeps` of the rows to be
            expected, and about the `driver_bytes` that m×m arrays take in this process; `because`, where "auto" chose.
        """
        self._check_settings()
        if self.exact:
            return {"solver": "exact"}
        rows, targets = self._read(X, y)
        (choice, reason), m = self._weighed(rows, targets), self._width_for(rows)
        because = {"because": reason} if reason else {}
        if choice is None:
            return {"solver": "direct", **because, "sweeps": 1, "driver_bytes": driver_bytes(m, None)}
        told = {
            "solver": "cg",
            **because,
            "preconditioner": describe_preconditioner(choice.rows),
            "sweeps": choice.sweeps,
        }
        return {**told, "driver_bytes": driver_bytes(m, choice)}

    def _read(self, X: Any, y: Any) -> tuple[Rows, Targets]:
        """The rows and targets that `fit` would see; the estimator stays as it is."""
        rows, targets, _ = self.__class__(**self.get_params(deep=False)).training(X, y, None)
        return rows, targets

    @property
    def _width(self) -> int:
        """m, of a fit on landmarks."""
        return int(self.n_landmarks or len(self.landmarks))

    def _width_for(self, rows: Rows) -> int:
        """m, of a fit on landmarks to these rows: landmarks that are drawn are no more than they."""
        drawn = isinstance(self.landmarks, str) and not self._fourier
        return min(self._width, len(rows)) if drawn else self._width
