"""Regressors in stages: each is fitted to what those before it leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.base import NamedSteps, score_in_pieces, set_parameters
from bigkernel.estimators.inputs import input_rows, is_lazy, validate_input

if TYPE_CHECKING:
    from sklearn.utils import Tags


class ResidualRegressor(RegressorMixin, NamedSteps):
    """Fit regressors one after the other, each to the residuals of those before it, and sum their predictions.

    A linear trend costs one sweep of d×d sums, and kernels do well on what it leaves: without it, landmarks are spent
    on the trend, and a `LearnedMetric` learns the features that carry it.

    Parameters
    ----------
    estimators : list of (name, regressor or Pipeline)

    Attributes
    ----------
    estimators_ : list of the fitted clones, in the order of the list

    References
    ----------
    Hastie, Tibshirani & Friedman, The Elements of Statistical Learning (2009), ch. 10 (forward stagewise models).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import KernelRidge, LinearRegression, Matern, ResidualRegressor
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> y = 100 * X[:, 0] + np.sin(3 * X[:, 1])
    >>> kernel = KernelRidge(Matern(), alpha=0.1, n_landmarks=100, random_state=0)
    >>> both = ResidualRegressor([("trend", LinearRegression()), ("kernel", kernel)]).fit(X, y)
    >>> bool(np.std(both.predict(X) - y) < 0.1 * np.std(kernel.fit(X, y).predict(X) - y))
    True
    """

    _steps_name: ClassVar[str] = "estimators"
    _semi_supervised: ClassVar[bool] = False
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {"estimators": [list, tuple]}

    def __init__(self, estimators: Sequence[tuple[str, BaseEstimator]]) -> None:
        set_parameters(self, locals())

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Fit the stages to rows X (n, d) and y (n,) or (n, c); y None for a corpus or Rows with their own.

        Raises
        ------
        ConfigError
            There is no stage, or one without a name, or two with the same.
        DataError
            Rows or targets are not finite numbers, or there is no y.
        """
        self._validate_params()
        stages = [one for one in self.estimators if isinstance(one, tuple | list) and len(one) == 2]
        if not stages or not all(hasattr(one, "fit") and hasattr(one, "predict") for _, one in stages):
            raise ConfigError(f"estimators: expected a list of (name, regressor), found {self.estimators!r}")
        try:
            self._validate_names([name for name, _ in self.estimators])
        except ValueError as error:
            raise ConfigError(f"estimators: {error}") from error
        if is_lazy(X):
            rows = as_rows(input_rows(self, X, reset=True), y)
            residual = rows.column("y")
            if residual is None:
                raise DataError(f"{rows.name}: ResidualRegressor requires y to be passed, but the target y is None")
        else:
            X, residual = validate_input(self, X, y, reset=True, multi_output=True, y_numeric=True)
        residual = np.array(residual, np.float64)
        self._target_shape = residual.shape[1:]
        self.estimators_: list[BaseEstimator] = []
        for place, (_, stage) in enumerate(self.estimators):
            if place:
                for ids, part in rows.pieces() if is_lazy(X) else ((slice(None), X),):
                    residual[ids] -= self._values(self.estimators_[-1], part)
            self.estimators_.append(clone(stage).fit(X, residual))
        return self

    def _values(self, stage: BaseEstimator, X: RowsLike) -> Array:
        return np.asarray(stage.predict(X)).reshape(-1, *self._target_shape)

    def predict(self, X: RowsLike) -> Array:
        """Predict targets (n,) or (n, c) of rows X (n, d)."""
        check_is_fitted(self)
        if not is_lazy(X):
            X, _ = validate_input(self, X, reset=False)
        return np.asarray(sum(self._values(stage, X) for stage in self.estimators_))

    def score(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> float:
        """Return R² of the predictions."""
        return score_in_pieces(self, X, y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        stages = [get_tags(stage) for _, stage in self.estimators if hasattr(stage, "fit")]
        tags.input_tags.sparse = all(stage.input_tags.sparse for stage in stages)
        tags.target_tags.multi_output = all(stage.target_tags.multi_output for stage in stages)
        return tags
