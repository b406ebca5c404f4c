"""Linear and ridge regression from additive moments: one sweep over rows of any number, then a d×d solve.

Where the rounding of the moments would move predictions, one more sweep sums the R factor of a QR factorisation.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array, Index
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.base import Regressor, parameters
from bigkernel.estimators.fit.basis import RowChoice
from bigkernel.estimators.fit.folds import Choice
from bigkernel.estimators.fit.method import Method, choose_on_folds
from bigkernel.estimators.fit.precision import r_factor_of
from bigkernel.estimators.fit.state import Columns, Fitted, LinearSolution, Problem, Report, RowBasis
from bigkernel.estimators.inputs.checks import PENALTIES, chosen_by_folds, penalty_of
from bigkernel.estimators.inputs.training import AnyTargets
from bigkernel.solvers.linear import linear_fit, linear_ridge_of
from bigkernel.solvers.penalty_grid import Coordinates, SolveSettings
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import ALL, Penalties, by_penalty
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import MomentStatistic
from bigkernel.streaming.plan import Accumulator


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearMethod(Method[Whitening, LinearSolution]):
    """Least squares on the rows themselves, about a point near their mean, with a penalty or none."""

    has_formula: ClassVar[bool] = True
    fit_intercept: bool
    bands: Array | None = None  # (d,) the number of the band of each column
    band_weights: Array | None = None  # (b,); (k, b) of which folds choose; (c, b) if chosen for each target

    def statistic(self, basis: Columns, targets: AnyTargets) -> MomentStatistic:
        self._check_bands(basis.width)
        return super().statistic(basis, targets)

    def _check_bands(self, width: int) -> None:
        if self.bands is not None and self.bands.shape != (width,):
            raise DataError(f"bands: expected the band of each of {width} columns, found shape {self.bands.shape}")

    def solve(self, problem: Problem, reduced: Whitening, diagnostics: SolveDiagnostics) -> LinearSolution:
        assert isinstance(problem.basis, RowBasis)
        shift, flag, weights = problem.basis.shift, self.fit_intercept, self.band_weights
        if weights is None or weights.ndim == 1:
            coef, level, error, alpha = self._fit(problem, ALL, diagnostics)
        else:
            # targets of the same weights together
            (each, which), alpha = np.unique(weights, axis=0, return_inverse=True), np.asarray(self.alpha)

            def solve(place: float, targets: Index, noted: SolveDiagnostics) -> tuple[Array, ...]:
                own = replace(self, alpha=alpha[targets], band_weights=each[int(place)])
                return own._fit(problem, targets, noted)[:3]

            coef, level, error = by_penalty(which.ravel().astype(float), len(weights), diagnostics, solve)
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
            band_weights=weights,
        )

    def _fit(self, problem: Problem, targets: Index, noted: SolveDiagnostics) -> tuple[Array, Array, Array, Penalties]:
        """Return coefficients, level and squared errors of some targets, and their penalties."""
        to, flag, alpha = self.coordinates(problem, 0), self.fit_intercept, penalty_of(self.alpha)
        assert to.origin is not None
        if problem.r_factor is None:
            sums = to.reduce((problem if flag else problem.of_targets()).moments)
            own = replace(sums, C=sums.C[:, targets], t=sums.t[targets], q=sums.q[targets])
            v, level, error, alpha = linear_fit(own, to.origin, alpha, fit_intercept=flag, diagnostics=noted)
        else:
            n, d, R = float(problem.statistics["rows"].sum()), len(to.origin), r_factor_of(problem, fit_intercept=flag)
            columns = R[:, 1 : 1 + d] * (1.0 if to.scale is None else to.scale)
            R = np.hstack([R[:, :1], columns, R[:, 1 + d :][:, targets]])
            v, level, error, alpha = linear_ridge_of(R, to.origin, alpha, fit_intercept=flag, rows=n, diagnostics=noted)
        return to.expand(v), level, error, alpha

    def solve_settings(self) -> SolveSettings:
        if self.band_weights is not None and self.band_weights.ndim > 1:
            raise ConfigError("band_weights: expected one weight of each band in a search; list several in its grid")
        weights = () if self.band_weights is None else tuple(self.band_weights[self.bands].tolist())
        return SolveSettings(penalty_of(self.alpha), self.fit_intercept, column_weights=weights)

    def coordinates(self, problem: Problem, n_components: int, whitening: Whitening | None = None) -> Coordinates:
        assert isinstance(problem.basis, RowBasis)
        if self.bands is None or self.band_weights is None:
            return Coordinates(origin=problem.basis.shift)
        self._check_bands(problem.basis.width)
        # columns times √w, so that K = Σ w XXᵀ over the bands X
        scale = np.sqrt(self.band_weights)[self.bands]
        return Coordinates(origin=scale * problem.basis.shift, scale=scale)


@choose_on_folds.register(LinearMethod)
def _(method: LinearMethod, problem: Problem) -> tuple[Method, Choice | None]:
    options = method.band_weights
    if options is None or options.ndim == 1:
        return choose_on_folds.dispatch(Method)(method, problem)
    choices = [one for w in options if (one := choose_on_folds(replace(method, band_weights=w), problem)[1])]
    # the weights whose best penalty has the least error, for each target or for all
    errors, alphas = np.array([one.error for one in choices]), np.array([one.alpha for one in choices])
    best = errors.argmin(axis=0)
    alpha, weights = alphas.reshape(errors.shape)[best, np.arange(len(best))], options[best]
    own = replace(method, alpha=alpha, band_weights=weights if len(best) > 1 else weights[0])
    return own, Choice(alpha, errors.min(axis=0), 0, any(one.unresolved for one in choices))


@parameters
class _Linear(Regressor):
    """Base of the linear models: min ‖XW + 1b − Y‖² + α‖W‖² from n, XᵀX, XᵀY, Xᵀ1, Yᵀ1."""

    _: KW_ONLY
    fit_intercept: bool = True
    verbose: int = 0
    statistics_ = Fitted[Accumulator]("statistics")
    shift_ = Fitted[Array]("basis.shift")

    def _method(self) -> LinearMethod:
        name, alpha, flag = type(self).__name__, getattr(self, "alpha", 0.0), bool(self.fit_intercept)
        bands, weights = getattr(self, "bands", None), getattr(self, "band_weights", None)
        if (bands is None) != (weights is None):
            found = "bands" if weights is None else "band_weights"
            raise ConfigError(f"bands, band_weights: expected both or neither, found only {found}")
        if bands is not None:
            names, bands = np.unique(np.asarray(bands), return_inverse=True)
            weights = np.atleast_1d(np.asarray(weights, np.float64))
            fits = weights.ndim <= 1 + chosen_by_folds(alpha) and weights.shape[-1] == len(names) and weights.size
            if not fits or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any(axis=-1).all():
                raise ConfigError(
                    f"band_weights: expected weights ≥ 0 of {len(names)} bands, not all 0 (or rows with 'cv'), found "
                    f"{weights}"
                )
        return LinearMethod(name=name, alpha=alpha, fit_intercept=flag, bands=bands, band_weights=weights)

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
    bands : array (d,) or None
        The band of each column, numbers or names. Bands with weights w are banded ridge regression, with the kernel
        Σ w XXᵀ over the bands X of the columns, or penalties α/w (Nunez-Elizalde, Huth & Gallant, NeuroImage 2019).
    band_weights : array (b,) or (k, b), or None
        The weight ≥ 0 of each band, in sorted order of the bands. (k, b): folds choose a row, by "cv" for all targets,
        by "cv-per-target" for each, from the sums of the same sweep.
    fit_intercept : bool, default True
    verbose : as in `KernelRidge`

    Attributes
    ----------
    coef_, intercept_, statistics_, training_mse_, alpha_ : as in `LinearRegression`
    band_weights_ : (b,) or (c, b), those of the solution

    Examples
    --------
    >>> from bigkernel import Ridge
    >>> Ridge(alpha=1.0).fit([[-1.0], [1.0]], [-1.0, 1.0]).coef_.round(6)
    array([0.666667])
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **PENALTIES,
        "bands": ["array-like", None],
        "band_weights": ["array-like", None],
        "fit_intercept": ["boolean"],
        "verbose": ["verbose"],
    }

    alpha: float | str | ArrayLike = 1.0
    _: KW_ONLY
    bands: ArrayLike | None = None
    band_weights: ArrayLike | None = None
    band_weights_ = Fitted[Array]("solution.band_weights")
