"""Kernel estimators: exact for some thousands of rows, or on landmarks or random features for any number."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.errors import ConfigError
from bigkernel.estimators import fitting, reports
from bigkernel.estimators.base import RowsEstimator
from bigkernel.estimators.calibration import refuse_calibrated
from bigkernel.estimators.fit_state import Fitted, IterativeFit, MomentFit
from bigkernel.estimators.kernel_basis import BasisChoice, check_landmarks, is_precomputed, of_kernel
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import as_kernel
from bigkernel.statistics.predictor import Projection
from bigkernel.streaming.plan import Accumulator


class LandmarkEstimator(RowsEstimator):
    """Base of the estimators with the parameters kernel, gamma, degree, coef0, landmarks, dtype and random_state."""

    kernel_ = Fitted[Kernel]("basis.kernel")
    dtype_ = Fitted[str]("basis.dtype")
    landmarks_ = Fitted[Array]("basis.landmarks")
    fourier_seed_ = Fitted[int]("basis.seed")
    fourier_origin_ = Fitted[Array]("basis.origin")
    rank_ = Fitted[int]("solution.rank")
    statistics_ = Fitted[Accumulator]("statistics_about_zero")
    sample_weight_ = Fitted[Array]("weight")
    # which of these there are depends on the method
    n_iter_ = Fitted[int]("solution.iterations")
    eigenvalues_ = Fitted[Array]("solution.eigenvalues")
    n_components_ = Fitted[int]("solution.n_components")
    correlations_ = Fitted[Array]("solution.correlations")
    view_ranks_ = Fitted[tuple[int, int]]("solution.view_ranks")
    distributional_variance_ = Fitted[Mapping[str, float]]("solution.variance")
    training_log_loss_ = Fitted[float]("solution.log_loss")
    domains_ = Fitted[Array]("inputs.domains")
    source_domains_ = Fitted[Array]("inputs.source_domains")
    target_domains_ = Fitted[Array]("inputs.target_domains")

    def given_kernel(self) -> Kernel:
        """Return the kernel that the parameters name, before rows tell it anything."""
        return as_kernel(self.kernel, gamma=self.gamma, degree=self.degree, coef0=self.coef0)

    def _columns(self) -> BasisChoice:
        exact = self.n_landmarks is None and isinstance(self.landmarks, str)
        return BasisChoice(
            kernel=self.given_kernel(),
            landmarks=self.landmarks,
            count=self.n_landmarks,
            dtype=self.dtype,
            random_state=self.random_state,
            exact=exact,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.dtype not in ("auto", "float32", "float64"):
            raise ConfigError(f"dtype: expected 'auto', 'float32' or 'float64', found {self.dtype!r}")
        self._check_landmarks()
        self._method().check_settings(self._columns())

    def _check_landmarks(self) -> None:
        check_landmarks(self.landmarks, self.n_landmarks)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = is_precomputed(self.kernel)
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X (n, d) with weights (n,); y is not looked at."""
        return self._fit(X, y, sample_weight)

    def _row_map(self) -> Projection:
        """Return the map of a transformer, z(x) = φ(x)ᵀW + b."""
        return Projection(int(self.n_features_in_), self._kept_predictor())

    @property
    def n_landmarks_(self) -> int:
        """How many landmarks there are, of each view where there are two."""
        return self._method().landmark_count(self._require("n_landmarks_").basis)

    @property
    def dual_coef_(self) -> Array:
        """Coefficients over the columns, (m, c); (m,) of one column of numbers."""
        fit = self._require("dual_coef_")
        coef: Array = fit.solution.coef
        return coef[:, 0] if fit.inputs.flat else coef

    def with_landmarks(self, count: int) -> Self:
        """A model on `count` of the landmarks, from the statistics that are kept: no sweep.

        The moments of some landmarks are a part of those of all, so one fit with many landmarks tells what fewer would
        have given. Of landmarks that were drawn, a random draw is taken, of which every smaller one is a part, the
        same in every process; of an array that was given, the first ones. The kernel stays that of the fit.

        Parameters
        ----------
        count : int, from 1 to the landmarks of the fit

        Returns
        -------
        A fitted estimator with `n_landmarks=count`, which has no statistics in common with this one.

        Raises
        ------
        ConfigError
            More landmarks than there are, or an exact fit, which keeps no statistics.

        Examples
        --------
        >>> import numpy as np
        >>> from bigkernel import Gaussian, KernelRidge
        >>> X = np.linspace(0, 6, 50)[:, None]
        >>> model = KernelRidge(Gaussian(sigma=0.5), alpha=0.01, n_landmarks=12, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.with_landmarks(5).dual_coef_.shape
        (5,)
        """
        check_is_fitted(self)
        method = self._method()
        refuse_calibrated(method, "with_landmarks")
        before = self._require_moments("fit with n_landmarks")
        columns = method.some_landmarks(before, count, self._columns())
        fewer: Self = copy(self).set_params(n_landmarks=count)
        if not isinstance(self.landmarks, str):
            fewer.set_params(landmarks=np.asarray(self.landmarks)[columns])
        fewer._fitted = fitting.fit_columns(fewer._method(), before, columns)
        return fewer

    def fit_report(self) -> dict[str, Any]:
        """Describe the fit as plain data.

        Kernel, landmarks, rank, dtype, the sweep's seconds, rates and peak memory, bad rows that were skipped,
        `trace_error`, tr(K − K̂)/tr(K) of the choice of landmarks (of the rows of the fit by their moments where
        k(x, x) = 1, else of 256 rows; None for random features and models from files of other kernels), and
        `certificates`: residual ratios of the solve (`solvers.residuals`; rounding leaves about 1, above 30 is an
        error), conditions of the core and of the solved matrix, effective degrees of freedom, the rounding of the
        moments, landmarks that repeat another and features that do not vary among them, and `prediction_error`: how far
        predictions are from least squares in float64, relative to their norm (`solvers.accuracy`). Of classifiers with
        `probability`, the rows of the calibration and their log-loss.
        """
        check_is_fitted(self)
        fit = self._require("fit")
        report = reports.FitReport(
            estimator=type(self).__name__,
            kernel=fit.basis.kernel.described(),
            landmarks=fit.basis.width,
            landmark_choice=self.landmarks if isinstance(self.landmarks, str) else "given",
            rank=int(fit.solution.rank),
            dtype=fit.basis.dtype,
            sums=fit.basis.sums or fit.basis.dtype,
            alpha=np.asarray(fit.solution.alpha).tolist(),
            certificates=dict(fit.certificates),  # none of a model that was read from a file
            skipped_rows=fit.skipped_rows,
        )
        if isinstance(fit, IterativeFit):
            report |= {"labelled_rows": fit.rows, "sweep": dict(fit.sweep), "block_rows": settings().block_rows}
        if isinstance(fit, MomentFit):
            rows, sweep = fit.statistics["rows"], dict(fit.sweep)
            report |= {"trace_error": of_kernel(fit.basis).trace_error(fit.moments), "rows": int(rows.sum())}
            report |= {"labelled_rows": int(rows[-1]), "sweep": sweep, "block_rows": settings().block_rows}
            report |= {} if fit.triangle is None else {"sums": "qr"}
        found = fit.calibration
        if found is not None and found.rows:
            report |= {"calibration_rows": found.rows, "calibration_log_loss": found.log_loss}
        report |= self._method().report(fit)
        return report


def every_row_choice(estimator: LandmarkEstimator) -> BasisChoice:
    """Return the choice of columns where, without n_landmarks, every row is one, and the landmark form is exact."""
    return replace(LandmarkEstimator._columns(estimator), exact=False, every_row=type(estimator).__name__)
