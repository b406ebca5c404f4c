"""Kernel ridge regression: exact for some thousands of rows, Nyström for any number."""

from __future__ import annotations

from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bigkernel.estimators.arithmetic import evidence_of
from bigkernel.estimators.deviations import posterior_of
from bigkernel.estimators.fit_state import (
    ExactFit,
    Fitted,
    IterativeFit,
    IterativeSolution,
    MomentFit,
    Problem,
    RidgeSolution,
)
from bigkernel.estimators.moment_estimator import ExactProblem
from bigkernel.estimators.parameter_checks import (
    KERNEL_CONSTRAINTS,
    PENALTIES,
    penalty_of,
)
from bigkernel.estimators.regressors import LandmarkRegressor
from bigkernel.estimators.solver_choice import ChoosesSolver
from bigkernel.estimators.triangle_sweeps import solve_triangle
from bigkernel.kernels.algebra import Kernel
from bigkernel.solvers.exact import exact_krr, indefinite_krr
from bigkernel.solvers.gcv import best_alpha, best_alpha_exact
from bigkernel.solvers.penalty_grid import Coordinates, Penalty
from bigkernel.solvers.posterior import SpreadPredictor
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import Columns, by_penalty, nystrom_ridge
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments, unshifted

Array = NDArray[Any]


class BaseKernelRidge(ChoosesSolver):
    """Base of the regressor and of the classifier (`ridge_classifier`)."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **KERNEL_CONSTRAINTS,
        "alpha": [Real, StrOptions({"gcv"})],
        "fit_intercept": ["boolean"],
        "solver": [StrOptions({"auto", "direct", "cg"})],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        kernel: Kernel | str = "rbf",
        alpha: Any = 1.0,
        *,
        n_landmarks: int | None = None,
        landmarks: Any = "uniform",
        fit_intercept: bool = False,
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 1.0,
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_iter: int = 20,
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, landmarks, gamma, degree, coef0, dtype, random_state)
        self.alpha = alpha
        self.n_landmarks = n_landmarks
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    _solution_type = RidgeSolution
    training_mse_ = Fitted("solution.training_mse")

    @property
    def n_iter_(self) -> int:
        """Steps of conjugate gradients; 1 where the fit was solved directly."""
        solution = self._require("n_iter_").solution
        return solution.iterations if isinstance(solution, IterativeSolution) else 1

    @property
    def _intercept(self) -> bool:
        return bool(self.fit_intercept)

    def penalty(self) -> Penalty:
        """Return what may differ between candidates that share all moments."""
        return Penalty(penalty_of(self.alpha), self.fit_intercept)

    def coordinates(
        self, basis: Any, everything: Moments, n_components: int, whitening: Whitening | None = None
    ) -> Coordinates:
        """Return the whitened coordinates."""
        return Coordinates(whitening or basis.whitening())

    def _solve(self, problem: Problem, whitening: Whitening, certificates: Certificates) -> RidgeSolution:
        flag, shift = self.fit_intercept, problem.inputs.shift
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

    def _solve_exact(self, problem: ExactProblem, certificates: Certificates) -> RidgeSolution:
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


class KernelRidge(LandmarkRegressor, BaseKernelRidge):
    """Kernel ridge regression, min ‖Ka + 1b − Y‖² + α aᵀKa, exact or on m Nyström landmarks.

    Parameters
    ----------
    kernel : Kernel or name, default "rbf"
        Gaussian(sigma=…), Laplacian, Matern, Linear, Polynomial, Sigmoid; or scikit-learn's names with `gamma`,
        `degree` and `coef0`.
    alpha : float ≥ 0, array (c,) or "gcv", default 1
        Ridge penalty, one for each target where it is an array (not with "cg"); the loss is a sum over rows, as in
        scikit-learn. "gcv": chosen by generalised cross-validation
        from the statistics of the fit (`alpha_`), not with "cg".
    n_landmarks : int or None
        None: exact, n×n in memory. m: Nyström, one sweep over the rows and an m×m solve. Where rows are fewer, all of
        them become landmarks, with a warning; `partial_fit` refuses so few first rows, for later ones become none.
    landmarks : str or array (m, d)
        The landmarks, or how they are chosen among the rows: "uniform"; "balanced", as many of every domain; centres of
        "k-means", or "balanced-k-means"; "leverage", by recursive ridge leverage scores; "rpcholesky", by randomly
        pivoted Cholesky (see `bigkernel.estimators.landmark_choice`). "fourier" and "orthogonal-fourier" take m random
        Fourier features (`RandomFourier`) in the place of landmarks.
    fit_intercept : bool
        An intercept b without penalty.
    gamma : float > 0, "scale" or "auto", default "scale"
        Of a kernel given by name, in scikit-learn's parametrisation. "scale": 1/(d·var), with the variance of all
        values of the landmarks (where exact, of the weighted rows), as in `sklearn.svm.SVC`; of "laplacian"
        1/(d·std). "auto": 1/d. Of "chi2" both are 1. The default of `sklearn.kernel_ridge.KernelRidge` is 1/d, which
        ``gamma="auto"`` gives.
    degree, coef0 : of a kernel given by name
    dtype : "auto", "float32" or "float64"
        Of the kernel blocks. "auto": float64 for float64 rows, float32 for narrower ones, unless their distances, the
        core, or the error that the rounding of float32 would cause in predictions need float64. Sums are carried in
        float64, and so are products of blocks where that error would exceed a thousandth (a second sweep).
    solver : "auto", "direct" or "cg"
        "direct": from the m×m moments of one sweep, which are kept. "cg": by conjugate gradients, each step a sweep
        that sums m×c numbers, for more landmarks than m×m moments allow (beyond about 10,000); no statistics are kept,
        hence no `partial_fit`, `refit`, `with_landmarks` or `return_std`. "auto": "cg" from 4,096 landmarks on where
        that costs less arithmetic (and alpha is above 0, the kernel positive definite), else "direct".
    tol : float, default 1e-3
        Of "cg": the share of the objective by which it may end above its least value.
    max_iter : int, default 20
        Of "cg": most steps.
    random_state : int, RandomState or None
        Of the landmark draw.

    Attributes
    ----------
    dual_coef_ : (m,) or (m, c)
        Coefficients over the landmarks (over the rows, where exact).
    intercept_ : float or (c,)
    landmarks_ : (m, d)
        With random features, `fourier_seed_` (an int) and `fourier_origin_` (d,) in its place.
    n_landmarks_ : int
        How many landmarks there are.
    kernel_ : Kernel, every parameter a number
    statistics_ : dict of float64 arrays
        The moments of the landmark block (Nyström only): n, G (1, m, m), C (1, m, c), s, t, q; those of numeric
        targets are of y less `target_shift_` (c,), which is zero without an intercept.
    rank_ : int
        Numerical rank of the core.
    training_mse_ : (c,)
    alpha_ : float or (c,)
        The penalty that the coefficients were solved with.
    n_iter_ : int
        Steps of "cg"; 1 of a direct solve.
    certificates_ : dict
        Residuals and conditions of the solve; see `fit_report`. Of "cg": `excess`, what the objective is above its
        least value as a share of it, and a bound of `prediction_error` that it gives.
    skipped_rows_ : int
        Bad rows that were left out; see `Rows.skip_bad_rows`.
    n_features_in_, feature_names_in_

    Notes
    -----
    The squared error of a row is ``(y - model.predict(X)) ** 2``; `sklearn.metrics.mean_squared_error` is their mean.

    References
    ----------
    Saunders, Gammerman & Vovk (ICML 1998); Williams & Seeger (NIPS 2000).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, KernelRidge
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> model = KernelRidge(Gaussian(sigma=1.0), alpha=1e-6, n_landmarks=12, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[1.0]])[0] - np.sin(1)) < 1e-2)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseKernelRidge._parameter_constraints,
        **PENALTIES,
    }
    _spread: tuple[ExactFit | MomentFit | IterativeFit, SpreadPredictor] | None = None  # of which fit

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predicted numbers (n,) or (n, c) of the rows X, and with `return_std` their standard deviation.

        Arrays for NumPy input, lazy Dask arrays for Dask and zarr arrays, corpora and Rows.

        Parameters
        ----------
        return_std : bool
            Also the standard deviation of an observation y around its prediction, of the same shape, when the model
            is read as a Gaussian process of covariance k and noise variance alpha (which is included; see
            `bigkernel.solvers.posterior`). It is the same for every target. It takes 32 m² bytes for two factors, in
            each worker: 2 GiB are enough for about 6,500 landmarks, predictions alone for more than 50,000.

        Raises
        ------
        ConfigError
            `return_std` with a kernel that is not positive definite, hence no covariance.

        Warns
        -----
        Inaccurate
            The rounding of the sums of the fit moves deviations by more than a thousandth.
        """
        if not return_std:
            return super().predict(X)
        check_is_fitted(self)
        values = self._values(X, self._spread_predictor)
        mean, std = values[:, :-1], values[:, -1:]
        if self._require("fit").inputs.flat:
            return mean[:, 0], std[:, 0]
        return mean, std * np.ones((1, mean.shape[1]))

    def _spread_predictor(self) -> SpreadPredictor:
        fit = self._require("fit")
        if self._spread is None or self._spread[0] is not fit:
            posterior = posterior_of(fit, type(self).__name__)
            self._spread = fit, SpreadPredictor(self._features(), *self._coefficients(), posterior=posterior)
        return self._spread[1]

    def __getstate__(self) -> dict[str, Any]:
        # the factors are made again when they are asked for
        return {key: value for key, value in super().__getstate__().items() if key != "_spread"}
