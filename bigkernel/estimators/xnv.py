"""Correlated Nyström views: semi-supervised ridge on what two sets of landmarks agree on, in one sweep.

McWilliams, Balduzzi & Buhmann, "Correlated random features for fast semi-supervised learning" (NIPS 2013, arXiv
1306.5554).
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.base import DecisionMixin, LazyScoreMixin
from bigkernel.estimators.moment_estimator import LandmarkEstimator
from bigkernel.estimators.parameter_checks import KERNEL_CONSTRAINTS
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import Kernel
from bigkernel.solvers.penalty_grid import Penalty
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.xnv import canonical_ridge, canonical_views
from bigkernel.statistics.moments import Moments, selected, unshifted

Array = NDArray[Any]
LANDMARKS = 200  # of a view, where nothing says how many


class _XNV(LandmarkEstimator):
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **KERNEL_CONSTRAINTS,
        "alpha": [Interval(Real, 0, None, closed="left")],
        "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
        "fit_intercept": ["boolean"],
    }
    _semi_supervised = True
    _unlabelled = "keep"
    _exact = False

    def __init__(
        self,
        kernel: Kernel | str = "rbf",
        alpha: float = 1e-3,
        *,
        n_landmarks: int | None = None,
        landmarks: Any = "uniform",
        fit_intercept: bool = True,
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        dtype: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.alpha = alpha
        self.n_landmarks = n_landmarks
        self.landmarks = landmarks
        self.fit_intercept = fit_intercept
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.dtype = dtype
        self.random_state = random_state

    @property
    def _view(self) -> int:
        """m, landmarks of a view."""
        return len(self.landmarks_) // 2

    @property
    def _n_drawn(self) -> int | None:
        return self._pair

    def _check_landmarks(self) -> None:
        named = copy(self)
        named.n_landmarks = self.n_landmarks or LANDMARKS
        super(_XNV, named)._check_landmarks()
        if self._fourier:
            raise ConfigError(
                f"landmarks={self.landmarks!r}: XNV has two Nyström views; expected a choice of landmarks"
            )

    def _start(self, rows: Rows, *, look: bool = True) -> None:
        """Choose the landmarks of both views, in random order, the first view's first."""
        self._pair = self._both(rows)
        super()._start(rows, look=look)
        if isinstance(self.landmarks, str):
            # they stand in the order of their rows, which may be one of classes: a view is not to be half of those
            order = check_random_state(self.random_state).permutation(len(self.landmarks_))
            self.landmarks_ = self.landmarks_[order[: 2 * (len(order) // 2)]]  # some choices find fewer than are asked
            if not len(self.landmarks_):
                raise DataError(f"landmarks={self.landmarks!r}: one was found, and two views need two")

    def _both(self, rows: Rows) -> int:
        """How many landmarks the two views have together."""
        if not isinstance(self.landmarks, str):
            count = len(self.landmarks)
            if not count or count % 2 or self.n_landmarks not in (None, count // 2):
                wanted = "an even number" if self.n_landmarks is None else 2 * self.n_landmarks
                raise DataError(f"landmarks: two views need {wanted} of them, found {count}")
            return count
        view = min(LANDMARKS, max(1, len(rows) // 2)) if self.n_landmarks is None else self.n_landmarks
        if 2 * view > len(rows):
            raise DataError(
                f"n_landmarks={view}: two views draw {2 * view} rows, and n_samples = {len(rows)}; "
                f"expected at most {len(rows) // 2}"
            )
        return 2 * view

    def _features(self) -> LandmarkMap:
        """The first view: predictions need no other."""
        return LandmarkMap(self.kernel_, self.landmarks_[: self._view], np.dtype(self.dtype_))

    def _centred(self) -> LandmarkMap:
        shift = centre_of(self.kernel_, self.landmarks_, self.dtype_)
        return LandmarkMap(self.kernel_, self.landmarks_, np.dtype(self.dtype_), shift)

    def _solve(self, certificates: Certificates) -> None:
        m, total = self._view, self.statistics_
        views = canonical_views(Moments.of(total), m)
        self.correlations_, self.rank_, self.view_ranks_ = views.correlations, len(views.correlations), views.ranks
        self.alpha_ = float(self.alpha)
        # targets were summed about a point near their mean where the fit had an intercept
        labelled = Moments.of(total if self.fit_intercept else unshifted(total, self.target_shift_), 1)
        first_view = replace(labelled, G=labelled.G[:m, :m], C=labelled.C[:m], s=labelled.s[:m])
        coef, intercept = canonical_ridge(
            first_view, views, self.alpha_, fit_intercept=self.fit_intercept, certificates=certificates
        )
        self._set_coefficients(coef, intercept if self.fit_intercept else intercept - self.target_shift_)

    def _penalty(self) -> Penalty:
        raise ConfigError(
            f"{type(self).__name__}: its penalty differs from direction to direction, which the search of a sweep does "
            "not know; use scikit-learn's GridSearchCV, or refit() after set_params(alpha=…)"
        )

    def with_landmarks(self, count: int) -> Self:
        """A model on `count` landmarks a view, from the statistics that are kept: no sweep.

        The first of each view; they stand in random order where they were drawn. See `KernelRidge.with_landmarks`.
        """
        check_is_fitted(self)
        if not 1 <= count <= self._view:
            raise ConfigError(
                f"with_landmarks: expected from 1 to the {self._view:,} landmarks of a view of the fit, found {count}"
            )
        fewer, columns = copy(self), np.concatenate([np.arange(count), self._view + np.arange(count)])
        fewer.n_landmarks = count
        if not isinstance(self.landmarks, str):
            fewer.landmarks = np.asarray(self.landmarks)[columns]
        fewer.landmarks_ = self.landmarks_[columns]
        return fewer._adopt(selected(self.statistics_, columns))

    def fit_report(self) -> dict[str, Any]:
        """What the fit was, as plain data; see `KernelRidge.fit_report`. `rank` is that of the canonical directions."""
        return {**super().fit_report(), "view_ranks": list(self.view_ranks_)}


class XNV(LazyScoreMixin, RegressorMixin, _XNV):
    """Semi-supervised regression on two correlated Nyström views; NaN targets: unlabelled.

    Two draws of m landmarks give two views of every row, labelled or not. Directions on which the views agree, those of
    high canonical correlation ρ, cost little; a direction costs (1 − ρ)/ρ, so that a regression from few labels varies
    less.

        min (1/n_l) Σ (βᵀz_i + b − y_i)² + Σ_j ((1 − ρ_j)/ρ_j) β_j² + α‖β‖²

    over the n_l labelled rows, z the canonical coordinates of the first view, of mean 0 and variance 1 over all rows.
    The second view shapes them and is not needed to predict.

    Parameters
    ----------
    kernel, gamma, degree, coef0, dtype, random_state : as in `KernelRidge`
    alpha : float ≥ 0, default 1e-3
        The paper's γ. The loss is a mean over the labelled rows here, as in the paper, and not a sum.
    n_landmarks : int or None
        m, of each view; 2m rows are drawn. None: as many as an array of landmarks has, else 200, or half of the rows
        where they are fewer.
    landmarks : name or array (2m, d)
        How landmarks are chosen from the rows, as in `KernelRidge`, and then shared out at random; or the landmarks of
        both views, the first view's first.
        Random Fourier features are refused: the paper finds Nyström views better throughout and reports them alone.
    fit_intercept : bool, default True
        b, without penalty. False: b = 0 as in the paper, which supposes targets of mean zero (z is centred either way).

    Attributes
    ----------
    correlations_ : (r,) canonical correlations of the views over all rows, falling
    dual_coef_ : (m,) or (m, c), over the landmarks of the first view
    intercept_ : float or (c,)
    landmarks_ : (2m, d), the first view's first
    rank_ : int, r; directions without correlation are left out
    view_ranks_ : (int, int), directions of each view that stand above rounding
    statistics_ : dict of float64 arrays
        The moments of both views (2m columns), in two groups of rows, unlabelled and labelled.
    kernel_, alpha_, certificates_, skipped_rows_, n_features_in_
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
    >>> model = XNV(Gaussian(sigma=1.0), alpha=1e-6, n_landmarks=12, random_state=0).fit(X, y)
    >>> bool(np.abs(model.predict(X) - np.sin(X[:, 0])).max() < 0.1)
    True
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to all rows X (N, d) and targets y (N,) or (N, c), NaN where unlabelled."""
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows, labelled or not; see `KernelRidge.partial_fit`."""
        return self._partial_fit(X, y, None, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class XNVClassifier(LazyScoreMixin, DecisionMixin, ClassifierMixin, _XNV):
    """Semi-supervised classification: `XNV` on one-hot targets. Rows labelled −1 are unlabelled.

    Parameters and attributes as in `XNV`; −1 is therefore not available as a class.

    Attributes
    ----------
    classes_ : (c,)
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to all rows X (N, d) and labels y (N,), −1 where unlabelled; y may be None for a corpus."""
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows, labelled or not; `classes` lists all labels where the first rows lack some."""
        return self._partial_fit(X, y, classes, sample_weight)
