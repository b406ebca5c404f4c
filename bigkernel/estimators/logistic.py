"""Kernel logistic regression: softmax on Nyström or random features, by sweeps that sum m×c numbers each.

Shapes: m landmarks, r the rank of their core, c classes.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import ClassVar, NoReturn

import numpy as np
from sklearn.utils._param_validation import Interval

from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import keeping_blocks, plan_sweep, sweep
from bigkernel.errors import AccuracyWarning, ConfigError
from bigkernel.estimators.base import Classifier, LandmarkEstimator, every_row_choice, parameters
from bigkernel.estimators.fit.basis import BasisChoice, RowChoice
from bigkernel.estimators.fit.calibration import with_sweeps
from bigkernel.estimators.fit.method import Method, plan_sums, skipped, sum_up
from bigkernel.estimators.fit.precision import whitened
from bigkernel.estimators.fit.state import Columns, IterativeFit, LogisticSolution, Problem
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS, finite, solving
from bigkernel.estimators.inputs.class_weights import CLASS_WEIGHT
from bigkernel.estimators.inputs.training import Training
from bigkernel.events.job import Note, emit, spent
from bigkernel.kernels.kept_blocks import KeptMap, SolverMap
from bigkernel.solvers.conjugate_gradients import driver_bytes
from bigkernel.solvers.logistic import HessianBound, Point, descend
from bigkernel.solvers.penalty_grid import SolveSettings
from bigkernel.solvers.ridge import factorize
from bigkernel.solvers.whitening import Reduced, Whitening, reduce_and_centre
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import SoftmaxStatistic
from bigkernel.streaming.plan import Plan

_EXPECTED = 60  # sweeps of a fit


@dataclass(frozen=True, eq=False)
class _Bound(HessianBound):
    """A bound whose solves break down with advice."""

    method: LogisticMethod

    def solve(self, gradient: Array) -> Array:
        with solving(self.method):
            return super().solve(gradient)


@dataclass
class _System:
    """The objective as sweeps of rows, in whitened coordinates about the mean of the features.

    Attributes
    ----------
    method, rows, targets, problem, whitening : of the fit
    features : the map of the basis, whose blocks may be kept between sweeps
    small : the moments in these coordinates
    alpha : of both columns together, where there are two classes
    seconds : of each sweep
    """

    method: LogisticMethod
    rows: Rows
    targets: Targets
    problem: Problem
    whitening: Whitening
    features: SolverMap
    small: Reduced
    alpha: float
    seconds: list[float] = field(default_factory=list)

    def bound(self) -> HessianBound:
        """Factor the bound of the Hessian."""
        rows, condition = float(self.problem.statistics["rows"].sum()), self.whitening.condition
        with solving(self.method):
            factor = factorize(self.small.G, 2 * self.alpha, n_rows=rows, condition=condition)
        return _Bound(factor, self.small.n, self.method)

    def coefficients(self, theta: Array) -> tuple[Array, Array]:
        """Return coefficients over the columns of the map (m, c) and the intercept (c,) of Θ (r + 1, c)."""
        W, b = theta[:-1], theta[-1]
        return self.whitening.expand(W), b - self.small.mean @ W

    def start(self) -> Point:
        """Return the point where all p are the classes' shares.

        The moments give the gradient there: Σ w φ'(p − t) = −C, about the means.
        """
        small, r, c = self.small, len(self.small.mean), len(self.small.target_mean)
        shares = np.maximum(small.target_mean, 1e-12)
        logarithms = np.log(shares / shares.sum())
        loss = -small.n * float(small.target_mean @ logarithms)
        return Point(np.vstack([np.zeros((r, c)), logarithms]), loss, np.vstack([-small.C, np.zeros(c)]))

    def evaluate(self, theta: Array) -> tuple[float, Array]:
        """Sweep for the objective at Θ and its gradient."""
        loss, gradient = self._sweep("", theta)
        return loss + self.alpha * float((theta[:-1] ** 2).sum()) / 2, gradient

    def multiply(self, theta: Array, direction: Array) -> Array:
        """Sweep for the product of the Hessian at Θ with a direction, (r + 1, c)."""
        return self._sweep("a product, ", theta, direction)[1]

    def _sweep(self, kind: str, *at: Array) -> tuple[float, Array]:
        """Sweep for the loss at Θ and the gradient, or with a direction after Θ the change of the gradient along it."""
        number = len(self.seconds)
        coef, intercept = self.coefficients(np.hstack(at))
        step = f"{kind}{number} of alpha={self.method.alpha!r}, tol={self.method.tol!r}"  # a run knows the sweep by it
        statistic = SoftmaxStatistic(self.features, self.targets, coef, intercept, step)
        swept = sweep(self.rows, statistic, what=f"logistic-{number}")
        self.seconds.append(swept.seconds)
        U, e = self.whitening.reduce(swept.total["U"]), swept.total["e"]
        gradient = self.alpha * at[-1][:-1] - (U - np.outer(self.small.mean, e))
        return float(swept.total["loss"]), np.vstack([gradient, -e])


@dataclass(frozen=True, eq=False, kw_only=True)
class LogisticMethod(Method[Whitening, LogisticSolution]):
    """Softmax regression by gradients, each from a sweep."""

    tol: float
    max_iter: int

    def solve_settings(self) -> SolveSettings:
        """Raise `ConfigError`: candidates share no sweeps."""
        raise ConfigError(
            f"{self.name}: not supported by SweepSearchCV, as every step is a sweep for one model; use "
            "scikit-learn's GridSearchCV, or search the kernel with KernelRidgeClassifier (scoring='neg_log_loss') "
            "and then alpha"
        )

    def iterate(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> IterativeFit:
        basis, whitening, diagnostics = whitened(basis, choose=columns.dtype == "auto")
        diagnostics.warn()
        with keeping_blocks(basis.features(), data.rows, reserved_bytes=driver_bytes(basis.width, None)) as features:
            return self._fit_by_sweeps(data, basis, whitening, features)

    def _fit_by_sweeps(self, data: Training, basis: Columns, whitening: Whitening, features: KeptMap) -> IterativeFit:
        """Fit by sweeps of a map whose blocks are kept."""
        problem, report = sum_up(self, data, basis, kept=features)
        problem.require_labels()
        *_, small = reduce_and_centre(problem.moments, whitening, fit_intercept=True)
        c = len(small.target_mean)
        # with two classes, scikit-learn's single column is the difference of ours, whose squares are half of its
        alpha = float(self.alpha) * (2 if c == 2 else 1)
        system = _System(self, data.rows, data.labels, problem, whitening, features, small, alpha)
        with np.errstate(all="ignore"):  # `finite` checks the solution
            shares, end = self._descend(system)
            coef, intercept = system.coefficients(end.theta)
        penalty = alpha * float((end.theta[:-1] ** 2).sum()) / 2
        loss = max(end.objective - penalty, 0.0) / small.n
        rank, steps = whitening.rank, len(shares) - 1
        solution = LogisticSolution(
            coef=coef, intercept=intercept, rank=rank, alpha=float(self.alpha), log_loss=loss, iterations=steps
        )
        first = report["seconds"]
        assert isinstance(first, float)
        seconds = first + sum(system.seconds)
        swept = {**report, "seconds": seconds, "sweeps": 1 + len(system.seconds), "excess_by_step": shares}
        return IterativeFit(
            inputs=data.inputs,
            basis=basis,
            solution=finite(self, solution),
            diagnostics={"excess": shares[-1], "iterations": steps, **basis.figures()},
            sweep={**swept, "tol": self.tol},
            skipped_rows=skipped(report),
            rows=int(problem.statistics["rows"].sum()),
        )

    def _descend(self, system: _System) -> tuple[list[float], Point]:
        """Return the excess after each step, relative to the objective, and the last point."""
        with spent("solve"):
            bound = system.bound()
        shares: list[float] = []
        for end in descend(system.start(), bound, system.evaluate, system.multiply, self.tol):
            shares.append(end.excess / max(abs(end.objective), 1e-300))
            said = (
                f"step {len(shares) - 1} of at most {self.max_iter}: relative excess of the objective about "
                f"{shares[-1]:.1g}"
            )
            emit(Note(f"{said} (tol={self.tol:g})"))
            if len(shares) > self.max_iter:
                break
        if not (end.certain and shares[-1] <= self.tol):
            warnings.warn(
                f"stopped after {len(shares) - 1} steps with a relative excess of the objective of about "
                f"{shares[-1]:.1g}, not known to be below tol={self.tol:g}: increase max_iter, or use a larger alpha",
                AccuracyWarning,
                stacklevel=5,
            )
        return shares, end

    def plan(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> Plan:
        """Return the plan of the sweep of moments and of the expected steps."""
        targets = data.labels
        coef = np.broadcast_to(0.0, (basis.width, 2 * targets.width))
        more = plan_sweep(data.rows, SoftmaxStatistic(KeptMap(basis.features()), targets, coef, coef[0], "plan"))
        # sums that only bound the Hessian are not probed
        return with_sweeps(plan_sums(self, data, basis, probed=False), more, _EXPECTED)


@parameters
class KernelLogisticClassifier(Classifier, LandmarkEstimator):
    """Kernel logistic regression: probabilities softmax(f), f = φᵀW + b on Nyström features φ of m landmarks.

        min Σ w −log p_y + α/2 ‖W‖²,   the intercept b without penalty.

    Equivalent to scikit-learn's `LogisticRegression(C=1/alpha)` on the whitened kernel values of the landmarks
    (`Nystroem`), where two classes have one column W, here f₂ − f₁. One sweep sums m×m moments, which bound the
    Hessian; every step after it is a sweep that sums m×c numbers: some 5 to 80, more where alpha is small
    (`solvers.logistic`). No statistics are kept: there is no `partial_fit`, and `refit` and `with_landmarks` raise.

    Parameters
    ----------
    kernel, landmarks, gamma, degree, coef0, dtype, random_state, verbose : as in `KernelRidge`
    alpha : float > 0, default 1
    n_landmarks : int or None
        m. None: every row is a landmark, for some thousands of rows.
    tol : float, default 1e-4
        Stop where the objective exceeds its least value by at most this share, as estimated by a step of Newton's
        method (`solvers.logistic`).
    max_iter : int, default 200
        Maximum number of steps.
    class_weight : dict, "balanced" or None
        As in `KernelRidgeClassifier`.

    Attributes
    ----------
    classes_ : (c,)
    dual_coef_ : (m, c), over the landmarks
    intercept_ : (c,)
    n_iter_ : int, steps
    training_log_loss_ : float, mean over the rows, in nats
    landmarks_, kernel_, rank_, alpha_, diagnostics_, skipped_rows_, n_features_in_
        As in `KernelRidge`; `excess` among the diagnostics is the share of the objective above its least value.

    Warns
    -----
    AccuracyWarning
        After `max_iter` steps it is not known whether the objective exceeds its least value by at most `tol`.

    References
    ----------
    Zhu & Hastie (JCGS 2005); Böhning (Ann. Inst. Stat. Math. 1992) for the bound.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, KernelLogisticClassifier
    >>> X = np.linspace(0, 6, 300)[:, None]
    >>> model = KernelLogisticClassifier(Gaussian(sigma=1.0), alpha=0.01, n_landmarks=12, random_state=0)
    >>> bool(model.fit(X, np.sin(X[:, 0]) > 0).predict_proba([[1.5]])[0, 1] > 0.99)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **KERNEL_CONSTRAINTS,
        "alpha": [Interval(Real, 0, None, closed="neither")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        **CLASS_WEIGHT,
    }
    _keeps_sums = False

    alpha: float = 1.0
    _: KW_ONLY
    tol: float = 1e-4
    max_iter: int = 200
    class_weight: dict[object, float] | str | None = None

    def _method(self) -> LogisticMethod:
        return LogisticMethod(name=type(self).__name__, alpha=self.alpha, tol=self.tol, max_iter=self.max_iter)

    _columns = every_row_choice

    def _require_moments(self, advice: str) -> NoReturn:
        raise ConfigError(f"{type(self).__name__}: keeps no statistics that can be updated; fit again")
