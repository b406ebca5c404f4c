"""Linear and ridge regression from additive moments: one sweep over rows of any number, then a d×d solve."""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import DataError
from bigkernel.estimators.base import LazyScoreMixin, RowsEstimator, near_mean
from bigkernel.estimators.parameter_checks import require_some
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.monitor.scope import part_of_job
from bigkernel.solvers.gcv import best_alpha
from bigkernel.solvers.penalty_grid import Coordinates, Penalty
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import identity, nystrom_ridge, require_alpha
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets, add
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]


class _Linear(LazyScoreMixin, RegressorMixin, RowsEstimator):
    """Base: min ‖XW + 1b − Y‖² + α‖W‖² from n, XᵀX, XᵀY, Xᵀ1, Yᵀ1."""

    statistics_: Accumulator

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X (n, d) and targets y (n,) or (n, c); y may be None for a corpus, which carries its own."""
        return self._add(X, y, sample_weight, first=True)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows: the model becomes that of one fit on all rows."""
        return self._add(X, y, sample_weight, first=not hasattr(self, "statistics_"))

    def refit(self) -> Self:
        """Solve again from the statistics that are kept, after `set_params(alpha=…)`: no sweep."""
        check_is_fitted(self)
        self._check_settings()
        self._solve()
        return self

    def _alpha(self) -> float | str:
        return 0.0

    def _check_settings(self) -> None:
        alpha = self._alpha()
        if not isinstance(alpha, str):
            require_alpha(alpha)

    def _penalty(self) -> Penalty:
        return Penalty(self._alpha(), self.fit_intercept)

    def _coordinates(self, everything: Moments, n_components: int) -> Coordinates:
        return Coordinates()

    def _adopt(self, statistics: Accumulator) -> Self:
        """Become the model of these statistics, as after a sweep of one's own."""
        if not statistics["n"][0] > 0:
            raise DataError("y: no labelled row with a weight above zero")
        if not np.isfinite(statistics["G"]).all():
            raise DataError("X: squares of its values leave the range of float64; scale the rows")
        self.statistics_ = statistics
        self._solve()
        return self

    def fit_report(self) -> dict[str, Any]:
        """What the fit was, as plain data; see `KernelRidge.fit_report`."""
        check_is_fitted(self)
        return {
            "estimator": type(self).__name__,
            "features": self.n_features_in_,
            "alpha": self.alpha_,
            "certificates": getattr(self, "certificates_", {}),
            "skipped_rows": getattr(self, "skipped_rows_", 0),
            "rows": int(self.statistics_["rows"].sum()),
            "sweep": getattr(self, "sweep_", {}),
        }

    def _start(self, rows: Rows) -> None:
        # rows are shifted near their mean, so that centring the moments loses no digits
        self.shift_ = near_mean(rows) if self.fit_intercept else np.zeros(rows.shape[1])

    def _statistic(self, targets: Targets) -> MomentStatistic:
        return MomentStatistic(IdentityMap(self.shift_), targets)

    def _sweep(self, rows: Rows, targets: Targets) -> Accumulator:
        swept = sweep(rows, self._statistic(targets), what="moments")
        self.sweep_ = swept.report()
        self.skipped_rows_ = require_some(rows, self.sweep_["skipped_rows"])
        return swept.total

    def _add(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> Self:
        self._validate_params()
        self._check_settings()
        rows, targets = self._training(X, y, sample_weight, reset=first)
        if first:
            self._start(rows)
        before = 0 if first else getattr(self, "skipped_rows_", 0)
        with part_of_job(f"{type(self).__name__}.fit"):
            total = self._sweep(rows, targets)
            self.skipped_rows_ += before
            return self._adopt(total if first else add(self.statistics_, total))

    def _solve(self) -> None:
        moments = Moments.of(self.statistics_)
        whitening = identity(self.n_features_in_)
        alpha = self._alpha()
        if alpha == "gcv":
            alpha = best_alpha(moments, whitening, fit_intercept=self.fit_intercept)
        self.alpha_ = float(alpha)
        certificates = Certificates()
        coef, intercept, error = nystrom_ridge(
            moments, whitening, self.alpha_, fit_intercept=self.fit_intercept, certificates=certificates
        )
        certificates.warn()
        self.certificates_ = certificates.report()
        intercept = intercept - self.shift_ @ coef + self.target_shift_
        self.training_mse_ = error / moments.n
        self.coef_ = coef[:, 0] if self._flat else coef.T
        self.intercept_ = float(intercept[0]) if self._flat else intercept

    def _features(self) -> IdentityMap:
        return IdentityMap(np.zeros(self.n_features_in_))

    def _coefficients(self) -> tuple[Array, Array]:
        return np.atleast_2d(self.coef_).T, np.atleast_1d(self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class LinearRegression(_Linear):
    """Least squares; the minimum-norm solution where the columns are dependent.

    Solved through the normal equations of centred rows: directions whose singular value is below about √(n·eps) of the
    largest count as absent.

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
    alpha : float ≥ 0 or "gcv", default 1
        "gcv": chosen by generalised cross-validation from the statistics of the fit (`alpha_`).
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
        "alpha": [Real, StrOptions({"gcv"})],
        "fit_intercept": ["boolean"],
    }

    def __init__(self, alpha: float | str = 1.0, *, fit_intercept: bool = True) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept

    def _alpha(self) -> float | str:
        return self.alpha if isinstance(self.alpha, str) else float(self.alpha)
