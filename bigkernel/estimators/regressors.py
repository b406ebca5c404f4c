"""What the regressors on landmarks share: fits, rows that are added, and scores."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from bigkernel.estimators.base import LazyScoreMixin
from bigkernel.estimators.parameter_checks import keeps_statistics


class LandmarkRegressor(LazyScoreMixin, MultiOutputMixin, RegressorMixin):
    """Mixin, left of what says what is summed and solved."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, sample_domain: Any = None) -> Self:
        """Fit to rows X (n, d) and targets y (n,) or (n, c); y may be None for a corpus, which carries its own.

        NaN is no target, where the method is semi-supervised.

        `sample_domain`: (n,) integers, the domain of each row, for landmarks that are balanced; lazy rows may carry
        theirs in a column.
        """
        fitted: Self = self._fit(X, y, sample_weight, sample_domain)
        return fitted

    @available_if(keeps_statistics)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows: the model becomes that of one fit on all rows with the same landmarks (drawn at the first call)."""
        fitted: Self = self._partial_fit(X, y, None, sample_weight)
        return fitted
