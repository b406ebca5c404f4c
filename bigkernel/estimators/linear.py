"""Linear and ridge regression from additive moments: one sweep over rows of any number, then a d×d solve.

Where the rounding of the moments would move predictions, one more sweep sums the R factor of a QR factorisation.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array
from bigkernel.estimators.base import Regressor, parameters
from bigkernel.estimators.fit.basis import RowChoice
from bigkernel.estimators.fit.method import Method
from bigkernel.estimators.fit.precision import r_factor_of
from bigkernel.estimators.fit.state import Fitted, LinearSolution, Problem, Report, RowBasis
from bigkernel.estimators.inputs.checks import PENALTIES, penalty_of
from bigkernel.solvers.linear import linear_fit, linear_ridge_of
from bigkernel.solvers.penalty_grid import Coordinates, SolveSettings
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.whitening import Whitening
from bigkernel.streaming.plan import Accumulator


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearMethod(Method[Whitening, LinearSolution]):
    """Least squares on the rows themselves, about a point near their mean, with a penalty or none."""

    has_formula: ClassVar[bool] = True
    fit_intercept: bool

    def solve(self, problem: Problem, reduced: Whitening, diagnostics: SolveDiagnostics) -> LinearSolution:
        assert isinstance(problem.basis, RowBasis)
        shift, flag, alpha = problem.basis.shift, self.fit_intercept, penalty_of(self.alpha)
        if problem.r_factor is None:
            moments = (problem if flag else problem.of_targets()).moments
            result = linear_fit(moments, shift, alpha, fit_intercept=flag, diagnostics=diagnostics)
        else:
            result = linear_ridge_of(
                r_factor_of(problem, fit_intercept=flag),
                shift,
                alpha,
                fit_intercept=flag,
                rows=float(problem.statistics["rows"].sum()),
                diagnostics=diagnostics,
            )
        coef, level, error, alpha = result
        if flag:
            level = level + problem.inputs.shift
        return LinearSolution(
            coef=coef,
            intercept=level - shift @ coef if flag else np.zeros_like(level),
            rank=problem.basis.width,
            alpha=alpha,
            training_mse=error / float(problem.statistics["n"][0]),
            with_intercept=flag,
            level=level,
        )

    def solve_settings(self) -> SolveSettings:
        return SolveSettings(penalty_of(self.alpha), self.fit_intercept)

    def coordinates(self, problem: Problem, n_components: int, whitening: Whitening | None = None) -> Coordinates:
        assert isinstance(problem.basis, RowBasis)
        return Coordinates(origin=problem.basis.shift)


@parameters
class _Linear(Regressor):
    """Base of the linear models: min ‖XW + 1b − Y‖² + α‖W‖² from n, XᵀX, XᵀY, Xᵀ1, Yᵀ1."""

    _: KW_ONLY
    fit_intercept: bool = True
    verbose: int = 0
    statistics_ = Fitted[Accumulator]("statistics")
    shift_ = Fitted[Array]("basis.shift")

    def _method(self) -> LinearMethod:
        alpha, flag = getattr(self, "alpha", 0.0), bool(self.fit_intercept)
        return LinearMethod(name=type(self).__name__, alpha=alpha, fit_intercept=flag)

    def _columns(self) -> RowChoice:
        return RowChoice()

    @property
    def coef_(self) -> Array:
        """Coefficients, (c, d); (d,) for one column of numbers."""
        fit = self._require("coef_")
        coef: Array = fit.solution.coef
        return coef[:, 0] if fit.inputs.flat else coef.T

    def fit_report(self) -> Report:
        """Describe the fit as plain data; see `KernelRidge.fit_report`."""
        check_is_fitted(self)
        return self._report(self._require("fit"), features=self.n_features_in_, sums="float64")


class LinearRegression(_Linear):
    """Least squares; the minimum-norm solution where the columns are dependent.

    Solved by the normal equations of centred columns of unit length. Where their rounding would change predictions by a
    thousandth, one more sweep factors the rows by QR; directions whose singular value is below about 1e-14 of the
    largest are dropped.

    Parameters
    ----------
    fit_intercept : bool, default True
    verbose : as in `KernelRidge`

    Attributes
    ----------
    coef_ : (d,) or (c, d)
    intercept_ : float or (c,)
    statistics_ : dict of float64 arrays, the moments of the rows
    training_mse_ : (c,)
    alpha_ : float, the penalty that was used
    diagnostics_ : dict, residuals and condition of the solve; see `fit_report`
    skipped_rows_ : int, number of bad rows that were left out

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import LinearRegression
    >>> LinearRegression().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).coef_.round(6)
    array([2.])
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {"fit_intercept": ["boolean"], "verbose": ["verbose"]}


@parameters
class Ridge(_Linear):
    """Ridge regression, min ‖XW + 1b − Y‖² + α‖W‖², with an unpenalised intercept b.

    Parameters
    ----------
    alpha : float ≥ 0, array (c,), "cv", "cv-per-target" or "gcv", default 1
        Ridge penalty, one for each target if it is an array. Names: chosen from the sums of the fit (`alpha_`), as in
        `KernelRidge`.
    fit_intercept : bool, default True
    verbose : as in `KernelRidge`

    Attributes
    ----------
    coef_, intercept_, statistics_, training_mse_, alpha_ : as in `LinearRegression`

    Examples
    --------
    >>> from bigkernel import Ridge
    >>> Ridge(alpha=1.0).fit([[-1.0], [1.0]], [-1.0, 1.0]).coef_.round(6)
    array([0.666667])
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **PENALTIES,
        "fit_intercept": ["boolean"],
        "verbose": ["verbose"],
    }

    alpha: float | str | ArrayLike = 1.0
