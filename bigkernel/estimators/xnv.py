"""Correlated Nyström views: semi-supervised ridge on the directions that two sets of landmarks share, in one sweep.

McWilliams, Balduzzi & Buhmann, "Correlated random features for fast semi-supervised learning" (NIPS 2013, arXiv
1306.5554).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import ClassVar

from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bigkernel.data.containers import length
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.base import Classifier, LandmarkEstimator, Regressor, parameters
from bigkernel.estimators.fit.basis import (
    CHOICES,
    FOURIER,
    Basis,
    BasisChoice,
    LandmarkBasis,
    check_landmarks,
    of_kernel,
)
from bigkernel.estimators.fit.calibration import PROBABILITY
from bigkernel.estimators.fit.method import Method
from bigkernel.estimators.fit.state import Problem, RowBasis, ViewSolution
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS, number
from bigkernel.estimators.inputs.class_weights import CLASS_WEIGHT
from bigkernel.solvers.penalty_grid import SolveSettings
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.whitening import Whitening
from bigkernel.solvers.xnv import CanonicalCoordinates, canonical_ridge, canonical_views, first_view
from bigkernel.statistics.moments import Moments, unshift_targets

LANDMARKS = 200  # of a view, by default
_CONSTRAINTS: dict[str, list[object]] = {
    **KERNEL_CONSTRAINTS,
    "alpha": [Interval(Real, 0, None, closed="left")],
    "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
    "fit_intercept": ["boolean"],
    "view_alpha": [Interval(Real, 0, None, closed="left")],
}


class ViewChoice(BasisChoice):
    """Landmarks of two views, `count` of each, in random order, with those of the first view first."""

    def choose(self, rows: Rows, *, look: bool = True, like: Basis | RowBasis | None = None) -> Basis:
        basis = super().choose(rows, look=look, like=like)
        assert isinstance(basis, LandmarkBasis)
        basis = replace(basis, views=2)
        if like is not None or not isinstance(self.landmarks, str):
            return basis
        # landmarks are in the order of their rows, which may be sorted by class; a view needs all classes
        order = check_random_state(self.random_state).permutation(basis.width)
        order = order[: 2 * (len(order) // 2)]  # some choices find fewer than requested
        if not len(order):
            raise DataError(f"landmarks={self.landmarks!r}: expected at least two landmarks for two views, found one")
        return replace(basis, landmarks=basis.landmarks[order])

    def count_for(self, rows: Rows) -> int:
        """Return the number of landmarks of the two views together."""
        if not isinstance(self.landmarks, str):
            count = length(self.landmarks)
            if not count or count % 2 or self.count not in (None, count // 2):
                expected = "an even number of" if self.count is None else 2 * self.count
                raise DataError(f"landmarks: expected {expected} landmarks for two views, found {count}")
            return count
        if len(rows) < 2:
            raise DataError(f"{rows.name}: expected at least two rows for two views, found n_samples = {len(rows)}")
        return 2 * (min(LANDMARKS, max(1, len(rows) // 2)) if self.count is None else self.count)


@dataclass(frozen=True, eq=False, kw_only=True)
class XNVMethod(Method[CanonicalCoordinates, ViewSolution]):
    """Ridge on the canonical directions of two views."""

    semi_supervised: ClassVar[bool] = True
    fit_intercept: bool
    view_alpha: float

    def check_settings(self, columns: BasisChoice) -> None:
        if columns.fourier:
            raise ConfigError(
                f"landmarks={columns.landmarks!r}: random features are not supported by XNV; use a choice of landmarks"
            )

    @property
    def whitens(self) -> bool:
        """False: each view has its own directions."""
        return False

    def reduce(self, problem: Problem, whitening: Whitening) -> CanonicalCoordinates:
        return self.coordinates(problem, 0)

    def solve(self, problem: Problem, reduced: CanonicalCoordinates, diagnostics: SolveDiagnostics) -> ViewSolution:
        m, total, shift, flag = problem.basis.width // 2, problem.statistics, problem.inputs.shift, self.fit_intercept
        # with an intercept, targets were summed about a point near their mean
        labelled = first_view(Moments.of(total if flag else unshift_targets(total, shift), 1), m)
        alpha = number(self.alpha)
        coef, intercept = canonical_ridge(labelled, reduced, alpha, fit_intercept=flag, diagnostics=diagnostics)
        if problem.centre is not None:
            intercept = intercept - problem.centre[:m] @ coef
        return ViewSolution(
            coef=coef,
            intercept=(intercept if flag else intercept - shift) + shift,
            rank=len(reduced.correlations),
            alpha=alpha,
            correlations=reduced.correlations,
            view_ranks=reduced.ranks,
        )

    def solve_settings(self) -> SolveSettings:
        return SolveSettings(self.alpha, self.fit_intercept, by_direction=True)

    def coordinates(
        self, problem: Problem, n_components: int, whitening: Whitening | None = None
    ) -> CanonicalCoordinates:
        penalty = self.view_alpha * of_kernel(problem.basis).core() if self.view_alpha else 0.0
        return canonical_views(problem.moments, problem.basis.width // 2, penalty)


def _method(estimator: XNV | XNVClassifier) -> XNVMethod:
    return XNVMethod(
        name=type(estimator).__name__,
        alpha=estimator.alpha,
        probability=getattr(estimator, "probability", False),
        fit_intercept=bool(estimator.fit_intercept),
        view_alpha=float(estimator.view_alpha),
    )


def _columns(estimator: LandmarkEstimator) -> ViewChoice:
    return ViewChoice(**{**vars(LandmarkEstimator._columns(estimator)), "exact": False})


def _check_landmarks(estimator: LandmarkEstimator) -> None:
    check_landmarks(estimator.landmarks, estimator.n_landmarks, uncounted=CHOICES + FOURIER)


@parameters
class XNV(Regressor, LandmarkEstimator):
    """Semi-supervised regression on two correlated Nyström views; a NaN target means unlabelled.

    Two sets of m landmarks give two views of every row, labelled or not. A direction with the canonical correlation ρ
    of the views has the penalty (1 − ρ)/ρ, which is small where the views agree, so that a regression from few labels
    has less variance.

        min (1/n_l) Σ (βᵀz_i + b − y_i)² + Σ_j ((1 − ρ_j)/ρ_j) β_j² + α‖β‖²

    over the n_l labelled rows, z the canonical coordinates of the first view, of mean 0 over all rows. The second view
    only determines these coordinates and is not needed to predict.

    Parameters
    ----------
    kernel, gamma, degree, coef0, dtype, random_state, verbose : as in `KernelRidge`
    alpha : float ≥ 0, default 1e-3
        γ of the paper. The loss is a mean over the labelled rows, as in the paper, and not a sum.
    n_landmarks : int or None
        m of each view; 2m rows are sampled, or all if there are fewer (with a warning). None: half of a given array of
        landmarks, else 200, or half of the rows if there are fewer.
    landmarks : name or array (2m, d)
        How landmarks are chosen from the rows, as in `KernelRidge`, and then divided at random; or the landmarks of
        both views, with those of the first view first. Random Fourier features raise `ConfigError`: the paper finds
        Nyström views better throughout and reports no others.
    view_alpha : float ≥ 0, default 1
        Ridge of the canonical correlations, like the `alpha` of `KernelRidge` on all rows. 0: none, as in the paper;
        views of many landmarks then agree by chance, in directions of next to no variance. Noisy targets need more,
        about 10; a hundred labels a class less, about 0.1.
    fit_intercept : bool, default True
        Whether to fit an unpenalised intercept b. False: b = 0 as in the paper, which assumes targets of mean zero (z
        is centred in either case).

    Attributes
    ----------
    correlations_ : (r,) canonical correlations of the views over all rows, with their ridge, descending
    dual_coef_ : (m,) or (m, c), over the landmarks of the first view
    intercept_ : float or (c,)
    landmarks_ : (2m, d), those of the first view first
    n_landmarks_ : int, m
    rank_ : int, r; directions without correlation are left out
    view_ranks_ : (int, int), numerical rank of each view
    statistics_ : dict of float64 arrays
        The moments of both views (2m columns), in two groups of rows, unlabelled and labelled.
    kernel_, alpha_, diagnostics_, skipped_rows_, n_features_in_
        As in `KernelRidge`.

    References
    ----------
    McWilliams, Balduzzi & Buhmann (NIPS 2013, arXiv 1306.5554), Algorithm 1; Kakade & Foster (COLT 2007).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import XNV, Gaussian
    >>> X = np.linspace(0, 6, 300)[:, None]
    >>> y = np.full(300, np.nan)
    >>> y[::20] = np.sin(X[::20, 0])
    >>> model = XNV(Gaussian(sigma=1.0), alpha=1e-6, view_alpha=0.1, n_landmarks=12, random_state=0).fit(X, y)
    >>> bool(np.abs(model.predict(X) - np.sin(X[:, 0])).max() < 0.1)
    True
    """

    n_views = 2
    _semi_supervised = True
    _parameter_constraints: ClassVar[dict[str, list[object]]] = _CONSTRAINTS

    alpha: float = 1e-3
    _: KW_ONLY
    fit_intercept: bool = True
    view_alpha: float = 1.0

    _method = _method
    _columns = _columns
    _check_landmarks = _check_landmarks


@parameters
class XNVClassifier(Classifier, LandmarkEstimator):
    """Semi-supervised classification: `XNV` on one-hot targets. Rows labelled −1 (among text "-1") are unlabelled.

    Parameters and attributes are those of `XNV` and those below; −1 cannot be a class.

    Parameters
    ----------
    class_weight, probability : as in `KernelRidgeClassifier`
        For the labelled rows. Held-out rows still contribute to the directions, without their labels.

    Attributes
    ----------
    classes_ : (c,)
    calibration_scale_, calibration_offset_ : as in `KernelRidgeClassifier`
    """

    n_views = 2
    _semi_supervised = True
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {**_CONSTRAINTS, **CLASS_WEIGHT, **PROBABILITY}

    alpha: float = 1e-3
    _: KW_ONLY
    fit_intercept: bool = True
    view_alpha: float = 1.0
    class_weight: dict[object, float] | str | None = None
    probability: bool = False

    _method = _method
    _columns = _columns
    _check_landmarks = _check_landmarks
