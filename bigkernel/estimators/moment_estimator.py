"""What KernelRidge and SSSL share: a kernel, landmarks, one sweep of moments, `partial_fit`; and the exact form.

Exact (`n_landmarks=None`): the n×n kernel matrix in memory, for some thousands of rows. Nyström (`n_landmarks=m`): one
sweep for the moments of the landmark block, then an m×m solve; the statistics are kept, so that more rows, another
alpha or another number of components need no second sweep of the old ones.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import ConfigError, DataError, PlanTooLarge
from bigkernel.estimators.base import RowsEstimator
from bigkernel.estimators.kernel_basis import KernelBasis
from bigkernel.estimators.parameter_checks import require_exact, require_some
from bigkernel.monitor.scope import part_of_job, spent
from bigkernel.solvers import residuals
from bigkernel.solvers.penalty_grid import Coordinates, Penalty
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import require_alpha
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets, add, require_weights, selected, uncentred
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Plan

Array = NDArray[Any]


class LandmarkEstimator(KernelBasis, RowsEstimator):
    """Base of the kernel estimators; a subclass says how moments (or the exact matrix) become coefficients."""

    # -- what a subclass gives ---------------------------------------------------------------------------------------

    def _solve(self, certificates: Certificates) -> None:
        """Set dual_coef_, intercept_, rank_ and alpha_ from statistics_ and the landmarks."""
        raise TypeError(type(self).__name__)

    def _solve_exact(
        self, K: Array, Y: Array, labelled: Array, weight: Array | None, certificates: Certificates
    ) -> None:
        """The same from K (n, n), targets of the labelled rows, and weights."""
        raise TypeError(type(self).__name__)

    # -- fitting -----------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        self._validate_params()
        self._check_settings()
        rows, targets = self._training(X, y, sample_weight)
        with part_of_job(f"{type(self).__name__}.fit"):
            if self._exact:
                self._fit_exact(rows, targets)
            else:
                self._start(rows)
                self._learn(rows, targets)
        return self

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        first = not hasattr(self, "statistics_")
        self._validate_params()
        self._check_settings()
        if self._exact:
            raise ConfigError(
                f"{type(self).__name__}: partial_fit needs n_landmarks, the exact form keeps no statistics"
            )
        rows, targets = self._training(X, y, sample_weight, reset=first, classes=classes)
        with part_of_job(f"{type(self).__name__}.partial_fit"):
            if first:
                self._start(rows)
                self._learn(rows, targets)
            else:
                before = getattr(self, "skipped_rows_", 0)
                statistics = add(self.statistics_, self._sweep(rows, targets))
                self.skipped_rows_ += before
                self._adopt(statistics)
        return self

    def refit(self) -> Self:
        """Solve again from the statistics that are kept, after `set_params(alpha=…)` or `n_components=…`: no sweep.

        The kernel and the landmarks stay those of the fit.
        """
        check_is_fitted(self)
        self._check_settings()
        if not hasattr(self, "statistics_"):
            raise ConfigError(f"{type(self).__name__}: the exact form keeps no statistics; fit again")
        self._finish()
        return self

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
        if not hasattr(self, "statistics_"):
            raise ConfigError(f"{type(self).__name__}: the exact form keeps no statistics; fit with n_landmarks")
        if self._fourier:
            raise ConfigError(
                f"with_landmarks: landmarks={self.landmarks!r} are random features; fit with a smaller n_landmarks"
            )
        if not 1 <= count <= len(self.landmarks_):
            raise ConfigError(
                f"with_landmarks: expected from 1 to the {len(self.landmarks_):,} landmarks of the fit, found {count}"
            )
        fewer, drawn = copy(self), isinstance(self.landmarks, str)
        # landmarks that were drawn stand in the order of their rows, which may be one of classes or of time
        order = np.random.RandomState(0).permutation(len(self.landmarks_)) if drawn else np.arange(count)
        columns = np.sort(order[:count])
        fewer.n_landmarks = count
        if not drawn:
            fewer.landmarks = np.asarray(self.landmarks)[:count]
        fewer.landmarks_ = self.landmarks_[columns]
        return fewer._adopt(selected(self.statistics_, columns))

    def plan(self, X: Any, y: Any = None) -> Plan:
        """What `fit` on these rows would cost, without running it.

        Returns
        -------
        Plan
            Rows, chunks, segments, flops, bytes read and memory of a task of its sweep.
        """
        self._check_settings()
        if self._exact:
            raise ConfigError(f"{type(self).__name__}: the exact form has no sweep to plan; set n_landmarks")
        other = self.__class__(**self.get_params(deep=False))
        rows, targets = other._training(X, y, None)
        other._start(rows, look=False)
        return plan_sweep(rows, other._statistic(targets))

    def _check_settings(self) -> None:
        if self.alpha != "gcv":
            require_alpha(self.alpha)
        if self.dtype not in ("auto", "float32", "float64"):
            raise ConfigError(f"dtype: expected 'auto', 'float32' or 'float64', found {self.dtype!r}")
        self._check_landmarks()

    def _statistic(self, targets: Targets) -> MomentStatistic:
        return MomentStatistic(self._centred(), targets, self._unlabelled)

    # -- what a search over a grid asks ------------------------------------------------------------------------------

    def _penalty(self) -> Penalty:
        """What may differ between candidates that share all moments."""
        raise TypeError(type(self).__name__)

    def _coordinates(self, everything: Moments, n_components: int) -> Coordinates:
        """Where the method is ridge, from the moments of all rows."""
        raise TypeError(type(self).__name__)

    def _adopt(self, statistics: Accumulator) -> Self:
        """Become the model of these statistics, as after a sweep of one's own."""
        self.statistics_ = statistics
        self._finish()
        return self

    def _sweep(self, rows: Rows, targets: Targets) -> Accumulator:
        statistic = self._statistic(targets)
        swept = sweep(rows, statistic, what="moments")
        self.sweep_ = swept.report()
        self.skipped_rows_ = require_some(rows, self.sweep_["skipped_rows"])
        return uncentred(swept.total, statistic.features.shift)  # type: ignore[attr-defined]

    def _learn(self, rows: Rows, targets: Targets) -> None:
        """Sweep and solve; once more in float64 where float32 proves too coarse and the dtype is ours to choose."""
        self.statistics_ = self._sweep(rows, targets)
        certificates = self._solved()
        if self._blind(certificates) and self.dtype == "auto" and self.dtype_ == "float32":
            note, self.dtype_ = self._rounding_note(certificates), "float64"
            try:
                self.statistics_ = self._sweep(rows, targets)
            except PlanTooLarge as error:
                self.dtype_ = "float32"
                certificates.notes.append(f"{note}, and float64 does not fit: {error}")
            else:
                certificates = self._solved()
                certificates.notes.insert(0, f"{note}: the rows are swept again in float64")
        self._settle(certificates)

    def _finish(self) -> None:
        self._settle(self._solved())

    def _solved(self) -> Certificates:
        if not self.statistics_["rows"].sum() or not self.statistics_["n"][-1] > 0:
            raise DataError("y: no labelled row with a weight above zero")
        certificates = Certificates()
        with spent("solve"):
            self._solve(certificates)
        return certificates

    def _settle(self, certificates: Certificates) -> None:
        """Warn of what the solve has met, and keep its certificates for the report."""
        if self._blind(certificates):
            narrow = self.dtype_ == "float32" and hasattr(self, "statistics_")
            advice = "dtype='float64' or " if narrow else "fewer landmarks, centred and scaled rows, or "
            certificates.notes.append(f"{self._rounding_note(certificates)}; take {advice}a larger alpha")
        certificates.warn()
        self.certificates_ = certificates.report()
        if not self._fourier:
            self.certificates_["duplicate_landmarks"] = residuals.duplicates(self.landmarks_)
            self.certificates_["constant_features"] = residuals.constant_features(self.landmarks_)

    def _blind(self, certificates: Certificates) -> bool:
        # "gcv" asks for what serves with the moments as they are
        return certificates.blind and self.alpha != "gcv"

    def _rounding_note(self, certificates: Certificates) -> str:
        values = "moments" if hasattr(self, "statistics_") else "kernel values"
        condition = certificates.figures.get("core_condition")
        return (
            f"{self.kernel_.name} kernel: in {self.dtype_} the {values} carry rounding of up to "
            f"{certificates.rounding:.2g}, beyond alpha = {self.alpha_:.3g}"
            + ("" if condition is None else f"; the core has the condition {condition:.1e}")
        )

    def _fit_exact(self, rows: Rows, targets: Targets) -> None:
        n = len(rows)
        require_exact(type(self).__name__, n)
        given = rows.read(0, n)
        sound = ~given.faults()
        chunk, self.skipped_rows_ = rows.validate_or_mask(given)  # refuses rows that are not sound, or blanks them
        y, weight = chunk.y, chunk.weight if "weight" in rows.columns else None
        assert y is not None
        labelled = targets.labelled(y, 0) & sound
        keep = sound if self._semi_supervised else labelled
        X = chunk.load(np.flatnonzero(keep), rows.shape[1], np.float64)
        labelled = labelled[keep]
        require_some(rows, self.skipped_rows_)
        if not labelled.any():
            raise DataError("y: no labelled row")
        Y = np.empty((int(labelled.sum()), targets.width))
        targets.encode(y[keep][labelled], Y)
        if weight is not None:
            weight = require_weights(np.asarray(weight, np.float64), 0)[keep]
            if not weight[labelled].any():
                raise DataError("y: no labelled row with a weight above zero")
        self.kernel_ = self._kernel().resolve(X, weight)
        self.landmarks_, self.dtype_ = X, "float64"
        for name in ("statistics_", "sample_weight_"):
            self.__dict__.pop(name, None)
        if weight is not None:
            self.sample_weight_ = weight
        certificates = Certificates()
        with np.errstate(over="ignore", invalid="ignore"):
            K = self.kernel_(X)
        if not np.isfinite(K).all():
            raise DataError(f"{self.kernel_.name} kernel: its values leave the range of float64; scale the rows")
        self._solve_exact(K, Y, labelled, weight, certificates)
        self._settle(certificates)

    # -- prediction --------------------------------------------------------------------------------------------------

    def _coefficients(self) -> tuple[Array, Array]:
        coef = self.dual_coef_
        return (coef[:, None] if coef.ndim == 1 else coef), np.atleast_1d(self.intercept_)

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        flat, intercept = getattr(self, "_flat", False), intercept + getattr(self, "target_shift_", 0.0)
        self.dual_coef_ = coef[:, 0] if flat else coef
        self.intercept_ = float(intercept[0]) if flat else intercept

    def fit_report(self) -> dict[str, Any]:
        """What the fit was, as plain data.

        Kernel, landmarks, rank, dtype, the sweep's seconds, rates and peak memory, bad rows that were skipped,
        `trace_error`, tr(K − K̂)/tr(K) of the choice of landmarks (of the rows of the fit by their moments where
        k(x, x) = 1, else of 256 rows; None for random features and models from files of other kernels), and
        `certificates`: residual ratios of the solve (`solvers.residuals`; rounding leaves about 1, above 30 is an
        error), conditions of the core and of the solved matrix, effective degrees of freedom, the rounding of the
        moments, landmarks that repeat another and features that do not vary among them.
        """
        check_is_fitted(self)
        report: dict[str, Any] = {
            "estimator": type(self).__name__,
            "kernel": {"name": self.kernel_.name, **self.kernel_.get_params()},
            "landmarks": self._columns,
            "landmark_choice": self.landmarks if isinstance(self.landmarks, str) else "given",
            "rank": int(self.rank_),
            "dtype": self.dtype_,
            "alpha": self.alpha_,
            "certificates": getattr(self, "certificates_", {}),  # a model that was read from a file has none
            "skipped_rows": getattr(self, "skipped_rows_", 0),
        }
        if hasattr(self, "statistics_"):
            report["trace_error"] = self._trace_error()
            report["rows"] = int(self.statistics_["rows"].sum())
            report["labelled_rows"] = int(self.statistics_["rows"][-1])
            report["sweep"] = getattr(self, "sweep_", {})
            report["block_rows"] = settings().block_rows
        return report
