"""Linear and ridge regression from additive moments: one sweep over rows of any number, then a d×d solve.

Where the rounding of the moments would move predictions, one more sweep sums the triangle of a QR factorisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import DataError
from bigkernel.estimators.base import LazyScoreMixin, RowsEstimator
from bigkernel.estimators.fit_state import Fitted, Inputs, MomentFit, Problem, RidgeSolution, RowBasis, Solved
from bigkernel.estimators.inputs import near_mean
from bigkernel.estimators.number_range import finite, require_row_squares, require_sums, solving
from bigkernel.estimators.parameter_checks import PENALTIES, penalty_of, require_some
from bigkernel.estimators.reports import FitReport
from bigkernel.estimators.triangle_sweeps import factor_rows, triangle_of, worth_factoring
from bigkernel.events.scope import part_of_job
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.solvers.linear import linear_fit, linear_ridge_of
from bigkernel.solvers.penalty_grid import Coordinates, Penalty
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import require_alpha
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets, add
from bigkernel.streaming.plan import Plan

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearSolution(RidgeSolution):
    """With the `level` (c,) of predictions at the point that rows were summed about."""

    level: Array


class _Linear(LazyScoreMixin, MultiOutputMixin, RegressorMixin, RowsEstimator):
    """Base: min ‖XW + 1b − Y‖² + α‖W‖² from n, XᵀX, XᵀY, Xᵀ1, Yᵀ1."""

    statistics_ = Fitted("statistics")
    shift_ = Fitted("basis.shift")
    training_mse_ = Fitted("solution.training_mse")

    @property
    def coef_(self) -> Array:
        """Coefficients, (c, d); (d,) of one column of numbers."""
        fit = self._require("coef_")
        coef: Array = fit.solution.coef
        return coef[:, 0] if fit.inputs.flat else coef.T

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X (n, d) and targets y (n,) or (n, c); y may be None for a corpus, which carries its own."""
        return self._add(X, y, sample_weight, None)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows: the model becomes that of one fit on all rows."""
        return self._add(X, y, sample_weight, self._fitted)

    def refit(self) -> Self:
        """Solve again from the statistics that are kept, after `set_params(alpha=…)`: no sweep."""
        check_is_fitted(self)
        self._check_settings()
        before = self._require("fit")
        self._fitted = self._settle(self._solved(before), sweep=before.sweep, skipped_rows=before.skipped_rows)
        return self

    def plan(self, X: Any, y: Any = None) -> Plan:
        """Return the plan of `fit` on these rows, without running it."""
        rows = as_rows(X, y)
        shape = rows.columns["y"].shape
        targets = Targets(1 if len(shape) == 1 else shape[1])
        return plan_sweep(rows, MomentStatistic(IdentityMap(np.zeros(rows.shape[1])), targets))

    def _alpha(self) -> Any:
        return 0.0

    @property
    def _intercept(self) -> bool:
        return bool(self.fit_intercept)

    def _check_settings(self) -> None:
        alpha = self._alpha()
        if not isinstance(alpha, str):
            require_alpha(alpha)

    def penalty(self) -> Penalty:
        """Return what may differ between candidates that share all moments."""
        return Penalty(self._alpha(), self.fit_intercept)

    def coordinates(self, basis: Any, everything: Moments, n_components: int, whitening: Any = None) -> Coordinates:
        """Return the coordinates of the rows themselves."""
        return Coordinates(origin=basis.shift)

    def basis(self, rows: Rows, *, like: RowBasis | None = None) -> RowBasis:
        """Choose the point that is taken off the rows, near their mean, so that centring their moments loses nothing.

        `like`: a basis whose point is taken.
        """
        return like or RowBasis(near_mean(rows))

    def adopt(self, rows: Rows, targets: Targets, inputs: Inputs, basis: RowBasis, problem: Problem | None) -> Self:
        """Become the model of these sums of the rows, or of a sweep where there are none or they prove too coarse."""
        report: dict[str, Any] = {}
        if problem is None:
            problem, report = self.sweep(rows, targets, inputs, basis)
        self._see(problem.inputs)
        solved, report = self._until_right(rows, targets, problem, report)
        self._fitted = self._settle(
            solved, **({"sweep": report, "skipped_rows": report["skipped_rows"]} if report else {})
        )
        return self

    def fit_report(self) -> dict[str, Any]:
        """Describe the fit as plain data; see `KernelRidge.fit_report`."""
        check_is_fitted(self)
        fit = self._require("fit")
        return FitReport(
            estimator=type(self).__name__,
            features=self.n_features_in_,
            sums="float64" if fit.triangle is None else "qr",
            alpha=np.asarray(fit.solution.alpha).tolist(),
            certificates=dict(fit.certificates),
            skipped_rows=fit.skipped_rows,
            rows=int(fit.statistics["rows"].sum()),
            sweep=dict(fit.sweep),
        )

    def sweep(self, rows: Rows, targets: Targets, inputs: Inputs, basis: RowBasis) -> tuple[Problem, dict[str, Any]]:
        """Sum up the rows: what a solve starts from, and the report of the sweep."""
        swept = sweep(rows, MomentStatistic(basis.centred(), targets), what="moments")
        report = swept.report()
        require_some(rows, report["skipped_rows"])
        return Problem(inputs=inputs, basis=basis, statistics=swept.total), report

    def _add(self, X: Any, y: Any, sample_weight: Any, before: Any) -> Self:
        self.check_parameters()
        rows, targets, inputs = self.training(X, y, sample_weight, known=None if before is None else before.inputs)
        basis = self.basis(rows, like=None if before is None else before.basis)
        with part_of_job(f"{type(self).__name__}.fit"):
            problem, report = self.sweep(rows, targets, inputs, basis)
            skipped = report["skipped_rows"]
            if before is None:
                solved, report = self._until_right(rows, targets, problem, report)
            else:
                skipped += before.skipped_rows
                solved = self._solved(replace(problem, statistics=add(before.statistics, problem.statistics)))
            self._fitted = self._settle(solved, sweep=report, skipped_rows=skipped)
        return self

    def _until_right(
        self, rows: Rows, targets: Targets, problem: Problem, report: dict[str, Any]
    ) -> tuple[Solved, dict[str, Any]]:
        """Solve, from the triangle of the rows where predictions would be off; with the report of the last sweep."""
        solved = self._solved(problem)
        if worth_factoring(solved.certificates.errors, problem.basis.width + targets.width):
            notes: list[str] = []
            found = factor_rows(self, problem, rows, targets, problem.basis.shift, solved.certificates, notes)
            if found is not None:
                return self._solved(found[0]), {**found[1], "swept_again": notes}
        return solved, report

    def _solved(self, problem: Problem) -> Solved:
        if not problem.statistics["n"][0] > 0:
            raise DataError("y: no labelled row with a weight above zero")
        sums = problem.statistics
        require_row_squares(np.diagonal(sums["G"][0]), sums["s"][0], problem.basis.shift, float(sums["n"][0]))
        require_sums(sums)
        flag, certificates = self.fit_intercept, Certificates()
        with solving(self):
            by = self._by_moments if problem.triangle is None else self._by_triangle
            coef, level, error, alpha = by(problem, certificates)
        shift = problem.basis.shift
        if flag:
            level = level + problem.inputs.shift
        solution = LinearSolution(
            coef=coef,
            intercept=level - shift @ coef if flag else np.zeros_like(level),
            rank=problem.basis.width,
            alpha=alpha,
            training_mse=error / float(sums["n"][0]),
            with_intercept=flag,
            level=level,
        )
        return Solved(problem, finite(self, solution), certificates)

    def _by_moments(self, problem: Problem, certificates: Certificates) -> tuple[Any, ...]:
        shift, alpha, flag = problem.basis.shift, self._alpha(), self.fit_intercept
        moments = (problem if flag else problem.of_targets()).moments
        return linear_fit(moments, shift, alpha, fit_intercept=flag, certificates=certificates)

    def _by_triangle(self, problem: Problem, certificates: Certificates) -> tuple[Any, ...]:
        return linear_ridge_of(
            triangle_of(problem, fit_intercept=self.fit_intercept),
            problem.basis.shift,
            self._alpha(),
            fit_intercept=self.fit_intercept,
            rows=float(problem.statistics["rows"].sum()),
            certificates=certificates,
        )

    def _settle(self, solved: Solved, **kept: Any) -> MomentFit:
        """The fit of a solution, after a warning of what the solve has met."""
        solved.certificates.warn()
        return MomentFit.of(solved, certificates=solved.certificates.report(), **kept)

    def _features(self) -> IdentityMap:
        centred: IdentityMap = self._require("predict").basis.centred()
        return centred

    def _coefficients(self) -> tuple[Array, Array]:
        """W (d, c), and b (c,) about the point of the features: about 0 it would lose the digits of an offset."""
        solution = self._require("predict").solution
        return solution.coef, solution.level


class LinearRegression(_Linear):
    """Least squares; the minimum-norm solution where the columns are dependent.

    Solved through the normal equations of centred columns of unit length, and where these would move predictions by a
    thousandth, from one more sweep that factors the rows by QR: directions whose singular value is below about 1e-14
    of the largest count as absent.

    Parameters
    ----------
    fit_intercept : bool, default True

    Attributes
    ----------
    coef_ : (d,) or (c, d)
    intercept_ : float or (c,)
    statistics_ : dict of float64 arrays, the moments of the rows
    training_mse_ : (c,)
    alpha_ : float, the penalty that was used
    certificates_ : dict, residuals and condition of the solve; see `fit_report`
    skipped_rows_ : int, bad rows that were left out

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import LinearRegression
    >>> LinearRegression().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).coef_.round(6)
    array([2.])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"fit_intercept": ["boolean"]}

    def __init__(self, *, fit_intercept: bool = True) -> None:
        self.fit_intercept = fit_intercept


class Ridge(_Linear):
    """Ridge regression, min ‖XW + 1b − Y‖² + α‖W‖², the intercept b without penalty.

    Parameters
    ----------
    alpha : float ≥ 0, array (c,) or "gcv", default 1
        An array: one for each target. "gcv": chosen by generalised cross-validation from the statistics of the fit
        (`alpha_`).
    fit_intercept : bool, default True

    Attributes
    ----------
    coef_, intercept_, statistics_, training_mse_, alpha_ : as in `LinearRegression`

    Examples
    --------
    >>> from bigkernel import Ridge
    >>> Ridge(alpha=1.0).fit([[-1.0], [1.0]], [-1.0, 1.0]).coef_.round(6)
    array([0.666667])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PENALTIES,
        "fit_intercept": ["boolean"],
    }

    def __init__(self, alpha: Any = 1.0, *, fit_intercept: bool = True) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept

    def _alpha(self) -> Any:
        return penalty_of(self.alpha)
