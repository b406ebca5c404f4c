"""Kernel ridge regression and classification: exact for some thousands of rows, Nyström for any number.

By sums of m×m and one solve, or by conjugate gradients where that costs less.
Shapes: n rows, m landmarks, c targets.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array, ColumnLike, Index, RowsLike
from bigkernel.config import settings
from bigkernel.engine.process import free_memory
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import keeping_blocks, plan_sweep
from bigkernel.errors import AccuracyWarning, ConfigError, PlanTooLargeError
from bigkernel.estimators.base import Classifier, LandmarkEstimator, Regressor, parameters
from bigkernel.estimators.fit.basis import BasisChoice, RowChoice, of_kernel
from bigkernel.estimators.fit.calibration import PROBABILITY
from bigkernel.estimators.fit.cg_problem import CGProblem, StoppingRule, planned_sample
from bigkernel.estimators.fit.conjugate_gradients import fit_by_cg
from bigkernel.estimators.fit.deviations import spread_of
from bigkernel.estimators.fit.fit import fit_sums
from bigkernel.estimators.fit.folds import choose_by_rows
from bigkernel.estimators.fit.leverage import check_leverage, warn_of_leverage
from bigkernel.estimators.fit.method import Method
from bigkernel.estimators.fit.precision import rounding_estimate, solve_r_factor
from bigkernel.estimators.fit.state import Columns, ExactProblem, Fit, MomentFit, Problem, Report, RidgeSolution, Solved
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS, PENALTIES, RULES, chosen_by_folds, finite, penalty_of
from bigkernel.estimators.inputs.class_weights import CLASS_WEIGHT
from bigkernel.estimators.inputs.training import Training
from bigkernel.events.job import Note, emit
from bigkernel.kernels.kept_blocks import KeptMap
from bigkernel.solvers.conjugate_gradients import (
    AUTO_LEAST,
    PreconditionerChoice,
    choose_preconditioner,
    describe_preconditioner,
    direct_flops,
    driver_bytes,
    kept_share,
    solve_flops,
    sweep_flops,
)
from bigkernel.solvers.exact import exact_krr
from bigkernel.solvers.gcv import best_alpha, best_alpha_exact
from bigkernel.solvers.penalty_grid import Coordinates, SolveSettings
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import Penalties, by_penalty, nystrom_ridge
from bigkernel.solvers.whitening import Whitening, whiten
from bigkernel.statistics.moments import Moments, unshift_targets
from bigkernel.statistics.predictor import Predictor
from bigkernel.statistics.products import ProductStatistic
from bigkernel.streaming.plan import Plan

if TYPE_CHECKING:
    import dask.array as da


@dataclass(frozen=True)
class IterativeSettings:
    """The solver, "auto", "direct" or "cg", and for "cg" the tolerance and the maximum number of steps."""

    solver: str
    tol: float
    max_iter: int


def why_not_cg(method: RidgeMethod, columns: BasisChoice) -> str:
    """Return why conjugate gradients cannot fit this, or "" if they can."""
    alpha, kernel = method.alpha, columns.kernel
    if method.probability:
        return "probability=True needs the m×m sums of folds; use solver='direct'"
    if columns.exact:
        return "an exact fit is solved directly; set n_landmarks"
    if np.ndim(alpha):
        return "all targets share one penalty; pass one number for alpha, or use solver='direct'"
    if isinstance(alpha, str):
        return f"alpha={alpha!r} needs m×m sums; pass a number, or search a grid with SweepSearchCV and cv=0.2"
    if not alpha > 0:
        return f"alpha: expected a number above 0, found {alpha!r}"
    return "" if kernel.positive else f"the {kernel.name} kernel is not positive definite"


def choose_solver(
    method: RidgeMethod, columns: BasisChoice, data: Training, *, models: int = 1, trained: float | None = None
) -> tuple[PreconditionerChoice | None, str]:
    """Choose the preconditioner of conjugate gradients, None for a direct fit; and give the reason of "auto".

    `models` is the number of models fitted side by side, of other penalties or folds; `trained` that of training rows
    of each of several folds, which share a preconditioner.
    """
    rows, solver = data.rows, method.by_cg.solver
    if solver == "direct":
        return None, ""
    m, auto, refusal = columns.width_for(rows), solver == "auto", why_not_cg(method, columns)
    if auto and m < AUTO_LEAST:
        return None, f"direct below {AUTO_LEAST:,} landmarks, which keeps the sums for partial_fit and refit"
    if refusal:
        return None, refusal
    choice = _choose_preconditioner(method, rows, m, models * data.labels.width, trained)
    if not auto:
        return choice, ""
    float64 = columns.dtype == "float64" or (columns.dtype == "auto" and rows.dtype == np.float64)
    direct = direct_flops(*rows.shape, m, float64=float64) + (models - 1) * solve_flops(m)
    costs = f"{choice.flops / 1e12:.3g} TFLOP for cg, {direct / 1e12:.3g} for direct"
    return choice if choice.flops < direct else None, costs


def _choose_preconditioner(
    method: RidgeMethod, rows: Rows, m: int, columns: int, trained: float | None = None
) -> PreconditionerChoice:
    kept = kept_share(len(rows), m, settings().block_cache)
    return choose_preconditioner(*rows.shape, m, columns, method.by_cg.tol, trained, kept)


def fit_by_cg_with_fallback(
    method: RidgeMethod,
    columns: BasisChoice,
    data: Training,
    basis: Columns,
    choice: PreconditionerChoice | None = None,
    start: Array | None = None,
) -> Fit:
    """Fit by conjugate gradients, starting at coefficients (m, c) if given.

    If "auto" chose them and they do not reach `tol`, solve directly where there is memory for it.
    """
    rows, by_cg = data.rows, method.by_cg
    if choice is None:
        choice = _choose_preconditioner(method, rows, columns.width_for(rows), data.labels.width)
    stopping, alphas = StoppingRule(by_cg.tol, by_cg.max_iter), (float(method.alpha),)
    owned = of_kernel(basis)
    reserved = driver_bytes(owned.width, choice)
    with (
        np.errstate(all="ignore"),  # `finite` checks the solution
        keeping_blocks(owned.features(), rows, reserved_bytes=reserved) as features,
    ):
        problem = CGProblem(
            method, rows, data.labels, owned, features, alphas, method.fit_intercept, stopping, choice.rows
        )
        fit, missed = fit_by_cg(problem, data.inputs, start)
    if missed and by_cg.solver == "auto" and driver_bytes(columns.width_for(rows), None) <= free_memory():
        emit(Note(f"{missed}; solving directly instead"))
        with suppress(PlanTooLargeError):
            return fit_sums(method, data, basis, choose=columns.dtype == "auto")
    if missed:
        warnings.warn(missed, AccuracyWarning, stacklevel=4)
    finite(method, fit.solution)
    return fit


def plan_by_cg(data: Training, basis: Columns, choice: PreconditionerChoice) -> Plan:
    """Return the flops, bytes and memory of all expected sweeps of conjugate gradients."""
    owned, (n, d), c = of_kernel(basis), data.rows.shape, data.labels.width
    statistic = ProductStatistic(KeptMap(owned.features()), data.labels, np.zeros((owned.width, c)), "plan")
    plan = plan_sweep(data.rows, statistic)
    if choice.rows:  # with the memory of the sweep that draws rows
        sample = plan_sweep(data.rows, planned_sample(data.labels, owned, choice.rows))
        largest = {name: max(getattr(plan, name), getattr(sample, name)) for name in ("partial_bytes", "work_bytes")}
        plan = replace(plan, **largest)
    kept = kept_share(n, owned.width, settings().block_cache)
    later = sweep_flops(n, d, owned.width, c, kept) / sweep_flops(n, d, owned.width, c)
    flops = (1 + (choice.sweeps - 1) * later) * plan.flops
    return replace(plan, flops=flops, bytes_read=choice.sweeps * plan.bytes_read)


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeMethod(Method[Whitening, RidgeSolution]):
    """Least squares with a penalty, by sums of m×m and one solve, or by conjugate gradients."""

    has_formula: ClassVar[bool] = True
    fit_intercept: bool
    by_cg: IterativeSettings

    def check_settings(self, columns: BasisChoice) -> None:
        refusal = why_not_cg(self, columns)
        if self.by_cg.solver == "cg" and refusal:
            raise ConfigError(f"{self.name}(solver='cg'): {refusal}")

    def solve(self, problem: Problem, reduced: Whitening, diagnostics: SolveDiagnostics) -> RidgeSolution:
        whitening, flag, shift = reduced, self.fit_intercept, problem.inputs.shift
        # with an intercept, targets were summed about a point near their mean
        moments = problem.moments
        if not flag:
            moments = Moments.of(unshift_targets(problem.statistics, shift), shift=problem.centre)
        alpha = penalty_of(self.alpha)
        if problem.r_factor is not None:
            coef, intercept, error, alpha = solve_r_factor(problem, whitening, alpha, diagnostics, fit_intercept=flag)
        else:
            if isinstance(alpha, str):
                alpha = best_alpha(moments, whitening, fit_intercept=flag)
            estimate = rounding_estimate(problem, whitening)
            coef, intercept, error = nystrom_ridge(
                moments, whitening, alpha, fit_intercept=flag, diagnostics=diagnostics, estimate=estimate
            )
        return RidgeSolution(
            coef=coef,
            intercept=(intercept if flag else intercept - shift) + shift,
            rank=whitening.rank,
            alpha=alpha,
            training_mse=error / max(float(problem.statistics["n"].sum()), 1e-300),
            with_intercept=flag,
        )

    def solve_exact(self, problem: ExactProblem, diagnostics: SolveDiagnostics) -> RidgeSolution:
        K, weight, kernel, flag = problem.K, problem.weight, of_kernel(problem.basis).kernel, self.fit_intercept
        Y, _ = problem.targets
        alpha = self._chosen_exactly(problem) if chosen_by_folds(self.alpha) else penalty_of(self.alpha)
        if isinstance(alpha, str):
            alpha, errors = best_alpha_exact(K, Y, fit_intercept=flag, weight=weight)
            warn_of_leverage(self.name, errors, len(K))
        indefinite = "" if kernel.positive else kernel.name

        def solve(value: float, columns: Index, noted: SolveDiagnostics) -> tuple[Array, ...]:
            return exact_krr(
                K, Y[:, columns], value, fit_intercept=flag, weight=weight, indefinite=indefinite, diagnostics=noted
            )

        coef, intercept = by_penalty(alpha, Y.shape[1], diagnostics, solve)
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

    def _chosen_exactly(self, problem: ExactProblem) -> Penalties:
        """Choose the penalty on folds; without one, the kernel matrix is that of the other rows."""
        K, (Y, _), folds = problem.K, problem.targets, problem.folds
        assert folds is not None
        weight = np.ones(len(K)) if problem.weight is None else problem.weight

        def phi_of(rest: Array) -> tuple[Coordinates, Array]:
            whitening = whiten(K[np.ix_(rest, rest)], warn=False, diagnostics=SolveDiagnostics())
            return Coordinates(), whitening.reduce(K[rest]).T

        return choose_by_rows(self.solve_settings(), problem, Y, weight, folds, phi_of).alpha

    def finish(self, solved: Solved[Whitening, RidgeSolution], data: Training, sweep: Report) -> MomentFit:
        if isinstance(self.alpha, str) and not chosen_by_folds(self.alpha):
            check_leverage(self.name, solved, data)
        return super().finish(solved, data, sweep)

    def solve_settings(self) -> SolveSettings:
        return SolveSettings(penalty_of(self.alpha), self.fit_intercept)

    def coordinates(self, problem: Problem, n_components: int, whitening: Whitening | None = None) -> Coordinates:
        return Coordinates(whitening or problem.basis.whitening())

    def iterate(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> Fit | None:
        """Fit by conjugate gradients where the settings name them, or they are the cheaper solver."""
        assert isinstance(columns, BasisChoice)
        choice, _ = choose_solver(self, columns, data)
        return None if choice is None else fit_by_cg_with_fallback(self, columns, data, basis, choice)

    def plan(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> Plan:
        """Return the plan of the sweep, or of all expected sweeps of conjugate gradients."""
        assert isinstance(columns, BasisChoice)
        choice, _ = choose_solver(self, columns, data)
        return super().plan(data, columns, basis) if choice is None else plan_by_cg(data, basis, choice)


_CONSTRAINTS: dict[str, list[object]] = {
    **KERNEL_CONSTRAINTS,
    "alpha": [Real, StrOptions(RULES)],
    "fit_intercept": ["boolean"],
    "solver": [StrOptions({"auto", "direct", "cg"})],
    "tol": [Interval(Real, 0, None, closed="neither")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
}


def _method(estimator: KernelRidge | KernelRidgeClassifier) -> RidgeMethod:
    return RidgeMethod(
        name=type(estimator).__name__,
        alpha=estimator.alpha,
        probability=getattr(estimator, "probability", False),
        fit_intercept=bool(estimator.fit_intercept),
        by_cg=IterativeSettings(estimator.solver, estimator.tol, estimator.max_iter),
    )


def plan_solver(self: KernelRidge | KernelRidgeClassifier, X: RowsLike, y: ColumnLike = None) -> Report:
    """Describe how `fit` would solve for these rows, without running it.

    Returns
    -------
    dict
        `solver`, "exact", "direct" or "cg"; a description of the `preconditioner` for "cg"; the expected number of
        `sweeps` and the approximate `driver_bytes` of m×m arrays in this process; `because`, if "auto" chose.
    """
    self.check_parameters()
    columns = self._columns()
    if columns.exact:
        return {"solver": "exact"}
    data = copy(self)._read_fit(X, y, None, None)
    (choice, reason), m = choose_solver(_method(self), columns, data), columns.width_for(data.rows)
    because = {"because": reason} if reason else {}
    if choice is None:
        return {"solver": "direct", **because, "sweeps": 1, "driver_bytes": driver_bytes(m, None)}
    planned = {"solver": "cg", **because, "preconditioner": describe_preconditioner(choice.rows)}
    return {**planned, "sweeps": choice.sweeps, "driver_bytes": driver_bytes(m, choice)}


@parameters
class KernelRidge(Regressor, LandmarkEstimator):
    """Kernel ridge regression, min ‖Ka + 1b − Y‖² + α aᵀKa, exact or on m Nyström landmarks.

    Parameters
    ----------
    kernel : Kernel or name, default "rbf"
        Gaussian(sigma=…), Laplacian, Matern, Linear, Polynomial, Sigmoid; or scikit-learn's names with `gamma`,
        `degree` and `coef0`.
    alpha : float ≥ 0, array (c,), "cv", "cv-per-target" or "gcv", default 1
        Ridge penalty, one for each target if it is an array (not with "cg"); the loss is a sum over rows, as in
        scikit-learn. "cv": chosen by the errors of five folds of the same sweep (`alpha_`), the largest of 43 penalties
        whose error the folds do not tell from the least; "cv-per-target": one for each target. It takes five m×m sums
        more, and excludes `partial_fit`, `refit`, `with_landmarks` and "cg". "gcv": by generalised cross-validation
        from the sums of all rows, which is cheaper, but wrong where some rows have far more leverage than others
        (`PenaltyWarning`); not with "cg". A row with a weight counts as one row, as in scikit-learn's RidgeCV.
    n_landmarks : int or None
        None: exact, n×n in memory. m: Nyström, one sweep over the rows and an m×m solve. With fewer rows, all of them
        become landmarks, with a warning; `partial_fit` refuses so few first rows, as later ones never become landmarks.
    landmarks : str or array (m, d)
        The landmarks, or how they are chosen among the rows: "uniform"; "balanced", the same number of every domain;
        centres of "k-means", or "balanced-k-means"; "rpcholesky", by randomly pivoted Cholesky (see
        `bigkernel.estimators.fit.basis`). "fourier" and "orthogonal-fourier" use m random Fourier features
        (`RandomFourier`) instead of landmarks.
    fit_intercept : bool, default True
        Whether to fit an unpenalised intercept b. Without one, predictions of targets far from zero suffer.
    gamma : float > 0, "scale" or "auto", default "scale"
        Of a kernel given by name, in scikit-learn's parametrisation. "scale": 1/(d·var), with the variance of all
        values of the landmarks (of the weighted rows in the exact form), as in `sklearn.svm.SVC`; for "laplacian"
        1/(d·std). "auto": 1/d. Both are 1 for "chi2". The default of `sklearn.kernel_ridge.KernelRidge` is 1/d, which
        is ``gamma="auto"`` here.
    degree, coef0 : of a kernel given by name
    dtype : "auto", "float32" or "float64"
        The dtype of kernel blocks. "auto": float64 for float64 rows, float32 for narrower ones, unless their distances,
        the core, or the estimated float32 error of predictions require float64. Sums are accumulated in float64, and so
        are products of blocks where that error would exceed a thousandth (by a second sweep).
    solver : "auto", "direct" or "cg"
        "direct": from the m×m moments of one sweep, which are kept. "cg": by conjugate gradients, each step a sweep
        that sums m×c numbers, for more landmarks than m×m moments allow (beyond about 10,000); no statistics are kept,
        hence no `partial_fit`, `refit`, `with_landmarks` or `return_std`. "auto": "cg" from 4,000 landmarks on where
        that takes fewer flops (and alpha is above 0, the kernel positive definite), else "direct".
    tol : float, default 1e-3
        Tolerance of "cg": stop where the objective exceeds its least value by at most this share.
    max_iter : int, default 20
        Maximum number of steps of "cg".
    noise_variance : float or (c,), default None
        Of an observation of weight 1, for `return_std`: the kernel is scaled by noise_variance/alpha. None: estimated,
        for each target, from residuals: Σw(y − f)²/(n − tr H), H the hat matrix, is that of the noise and of what
        landmarks miss; exact fits take the errors of rows that are left out. New rows count as of the mean weight.
    random_state : int, RandomState or None
        Seed of the choice of landmarks.
    verbose : int, default 0
        1: show the progress of a fit of more than two seconds on standard error, as a bar in terminals and notebooks.
        2: also from its beginning, with notes. See also the logger "bigkernel".

    Attributes
    ----------
    dual_coef_ : (m,) or (m, c)
        Coefficients over the landmarks (over the rows in the exact form).
    intercept_ : float or (c,)
    landmarks_ : (m, d)
        Random features have `fourier_seed_` (an int) and `fourier_origin_` (d,) instead.
    n_landmarks_ : int
        Number of landmarks.
    kernel_ : Kernel, every parameter a number
    statistics_ : dict of float64 arrays
        The moments of the landmark block (Nyström only): n, G (1, m, m), C (1, m, c), s, t, q; for numeric targets
        those of y less `target_shift_` (c,), which is zero without an intercept.
    rank_ : int
        Numerical rank of the core.
    training_mse_ : (c,)
    alpha_ : float or (c,)
        The penalty of the solution.
    n_iter_ : int
        Number of steps of "cg"; 1 for a direct solve.
    diagnostics_ : dict
        Residuals and conditions of the solve; see `fit_report`. For "cg": `excess`, the share of the objective above
        its least value, and the bound of `prediction_error` that follows from it.
    skipped_rows_ : int
        Number of bad rows that were left out; see `Rows.skip_bad_rows`.
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

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **_CONSTRAINTS,
        **PENALTIES,
        "noise_variance": [Real, "array-like", None],
    }
    _spread = cast(tuple[Fit, object, Predictor] | None, None)  # of which fit and noise

    alpha: float | str | Array = 1.0
    _: KW_ONLY
    fit_intercept: bool = True
    solver: str = "auto"
    tol: float = 1e-3
    max_iter: int = 20
    noise_variance: float | ArrayLike | None = None

    _method = _method
    plan_solver = plan_solver

    def predict(self, X: RowsLike, return_std: bool = False) -> Array | da.Array | tuple[Array, Array]:
        """Predict numbers (n,) or (n, c) of the rows X, and with `return_std` their standard deviation.

        Returns arrays for NumPy input, lazy Dask arrays for Dask and zarr arrays, corpora and Rows.

        Parameters
        ----------
        return_std : bool
            Whether to return the standard deviation of an observation y around its prediction too, of the same shape,
            under a Gaussian process with covariance s²k and noise variance s²·alpha (which is included; see
            `bigkernel.solvers.posterior`). It takes 32 m² bytes for two factors in each worker: 2 GiB are enough for
            about 6,500 landmarks, and for more than 50,000 without it.

        Raises
        ------
        ConfigError
            `return_std` with a kernel that is not positive definite, and so no covariance function, after conjugate
            gradients, or with a penalty for each target.

        Warns
        -----
        AccuracyWarning
            The rounding of the sums of the fit changes deviations by more than a thousandth.
        """
        if not return_std:
            return super().predict(X)
        check_is_fitted(self)
        return self._mean_and_std(X)

    def _with_spread(self) -> Predictor:
        fit, noise = self._require("fit"), self.noise_variance
        if self._spread is None or self._spread[0] is not fit or self._spread[1] is not noise:
            spread = spread_of(fit, type(self).__name__, noise)
            # where landmarks explain nearly all of k(x, x), the rest is lost in float32 beside a small alpha
            features = replace(self._features(), dtype=np.dtype(np.float64))
            self._spread = fit, noise, Predictor(features, *self._coefficients(), spread=spread)
        return self._spread[2]

    def __getstate__(self) -> Report:
        # the factors are computed again when needed
        return {key: value for key, value in super().__getstate__().items() if key != "_spread"}


@parameters
class KernelRidgeClassifier(Classifier, LandmarkEstimator):
    """Classification by kernel ridge regression on one-hot targets; predicts the class of the largest value.

    Parameters and attributes are those of `KernelRidge` and those below, but `fit_intercept` is False by default: the
    largest of several values seldom depends on an intercept. Rows of a corpus labelled −1 are unlabelled and left out.

    Parameters
    ----------
    class_weight : dict, "balanced" or None
        Factors of the weights of all rows of a class; "balanced" gives every class the same total weight. `partial_fit`
        takes only a dict; `refit` uses sums with the weights of the fit.
    probability : bool, default False
        Whether to calibrate probabilities, for `predict_proba`, on rows held out from f: one more sweep, of at most
        about a million values of f, and sums of five folds (one held-out fold if these would not fit a worker). It
        excludes `partial_fit`, `refit`, `with_landmarks` and solver="cg". Probabilities are those of rows weighted by
        `sample_weight` alone; `predict` takes the largest, multiplied by `class_weight` if there is one. Raises
        `DataError` where the groups leave fewer than two classes in more than one fold.

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

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {**_CONSTRAINTS, **CLASS_WEIGHT, **PROBABILITY}

    alpha: float | str = 1.0
    _: KW_ONLY
    fit_intercept: bool = False
    solver: str = "auto"
    tol: float = 1e-3
    max_iter: int = 20
    class_weight: dict[object, float] | str | None = None
    probability: bool = False

    _method = _method
    plan_solver = plan_solver
