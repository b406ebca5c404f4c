"""Kernel ridge regression and classification: exact for some thousands of rows, Nyström for any number."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bigkernel.estimators.base import Classifier, Regressor, set_parameters
from bigkernel.estimators.calibration import PROBABILITY
from bigkernel.estimators.class_weights import CLASS_WEIGHT
from bigkernel.estimators.deviations import posterior_of
from bigkernel.estimators.fit_state import (
    ExactFit,
    IterativeFit,
    MomentFit,
)
from bigkernel.estimators.landmark_estimator import LandmarkEstimator
from bigkernel.estimators.parameter_checks import KERNEL_CONSTRAINTS, PENALTIES
from bigkernel.estimators.ridge_method import IterativeSettings, RidgeMethod, choose_solver
from bigkernel.kernels.algebra import Kernel
from bigkernel.solvers.cg_cost import driver_bytes
from bigkernel.solvers.posterior import SpreadPredictor
from bigkernel.solvers.preconditioners import describe_preconditioner

Array = NDArray[Any]
_CONSTRAINTS: dict[str, list[Any]] = {
    **KERNEL_CONSTRAINTS,
    "alpha": [Real, StrOptions({"gcv"})],
    "fit_intercept": ["boolean"],
    "solver": [StrOptions({"auto", "direct", "cg"})],
    "tol": [Interval(Real, 0, None, closed="neither")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
}


def _method(estimator: Any) -> RidgeMethod:
    return RidgeMethod(
        name=type(estimator).__name__,
        alpha=estimator.alpha,
        probability=getattr(estimator, "probability", False),
        fit_intercept=bool(estimator.fit_intercept),
        by_cg=IterativeSettings(estimator.solver, estimator.tol, estimator.max_iter),
    )


def plan_solver(self: Any, X: Any, y: Any = None) -> dict[str, Any]:
    """Tell how `fit` would solve for these rows, without running it.

    Returns
    -------
    dict
        `solver`, "exact", "direct" or "cg"; of the latter `preconditioner`, in words; `sweeps` of the rows to be
        expected, and about the `driver_bytes` that m×m arrays take in this process; `because`, where "auto" chose.
    """
    self._check_settings()
    columns = self._columns()
    if columns.exact:
        return {"solver": "exact"}
    data = self.__class__(**self.get_params(deep=False)).training(X, y, None)
    (choice, reason), m = choose_solver(_method(self), columns, data), columns.width_for(data.rows)
    because = {"because": reason} if reason else {}
    if choice is None:
        return {"solver": "direct", **because, "sweeps": 1, "driver_bytes": driver_bytes(m, None)}
    planned = {
        "solver": "cg",
        **because,
        "preconditioner": describe_preconditioner(choice.rows),
        "sweeps": choice.sweeps,
    }
    return {**planned, "driver_bytes": driver_bytes(m, choice)}


class KernelRidge(Regressor, LandmarkEstimator):
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {**_CONSTRAINTS, **PENALTIES}
    _spread: tuple[ExactFit | MomentFit | IterativeFit, SpreadPredictor] | None = None  # of which fit

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
        set_parameters(self, locals())

    _method = _method
    plan_solver = plan_solver

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


class KernelRidgeClassifier(Classifier, LandmarkEstimator):
    """Classification by kernel ridge regression on one-hot targets; the class of the largest value wins.

    Parameters and attributes as in `KernelRidge`, with those below. Rows of a corpus labelled −1 are unlabelled and
    left out.

    Parameters
    ----------
    class_weight : dict, "balanced" or None
        Factors of the weights of all rows of a class; "balanced": such that every class weighs as much in all. With
        `partial_fit` a dict alone; `refit` goes on from sums of rows that were weighed at the fit.
    probability : bool, default False
        Calibrate probabilities, for `predict_proba`, on rows that took no part in the f that judges them: one sweep
        more, of at most about a million values of f, and sums of five folds (where they would not fit a worker, one
        fold is held out). `partial_fit`, `refit`, `with_landmarks` and solver="cg" are refused with it. Probabilities
        are those of rows as they weigh, `class_weight` included. A `DataError` where the groups leave fewer than two
        classes in more than one fold.

    Attributes
    ----------
    classes_ : (c,)
    calibration_scale_, calibration_offset_ : (c,), p = softmax(scale ∘ f + offset); with `probability`

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, KernelRidgeClassifier
    >>> X = np.linspace(0, 6, 300)[:, None]
    >>> model = KernelRidgeClassifier(Gaussian(sigma=1.0), n_landmarks=12, probability=True, random_state=0)
    >>> bool(model.fit(X, np.sin(X[:, 0]) > 0).predict_proba([[1.5]])[0, 1] > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {**_CONSTRAINTS, **CLASS_WEIGHT, **PROBABILITY}

    def __init__(
        self,
        kernel: Kernel | str = "rbf",
        alpha: float | str = 1.0,
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
        class_weight: dict[Any, float] | str | None = None,
        probability: bool = False,
        random_state: Any = None,
    ) -> None:
        set_parameters(self, locals())

    _method = _method
    plan_solver = plan_solver
