"""Regressors in stages: each is fitted to what those before it leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator, clone

from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError
from bigkernel.estimators.base import NamedSteps, Regressor, last_step, parameters, training_values
from bigkernel.estimators.evaluation import FitReport
from bigkernel.estimators.fit.state import BlendFit, Fitted
from bigkernel.estimators.inputs.classes import is_semi_supervised
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.tables.blended import as_targets, member_of, require_member
from bigkernel.statistics.blend import Blend, Everywhere, Member


@parameters
class ResidualRegressor(NamedSteps, Regressor):
    """Fit regressors one after the other, each to the residuals of those before it, and sum their predictions.

    A linear trend costs one sweep of d×d sums, and kernels do well on what it leaves: without it, landmarks are spent
    on the trend, and a `LearnedMetric` learns the features that carry it.

    Parameters
    ----------
    estimators : list of (name, regressor of bigkernel, or a Pipeline of its transformers that ends with one)
    verbose : int
        1: show progress.

    Attributes
    ----------
    stages_ : tuple of models, in the order of the list: `row_maps`, `predictor`, number of `rows`, `alpha` and
        `prediction_error` of the fit

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

    stages_ = Fitted[tuple[Member, ...]]("blend.members")
    _keeps_sums = False
    _steps_name: ClassVar[str] = "estimators"
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {"estimators": [list, tuple], "verbose": ["verbose"]}

    estimators: Sequence[tuple[str, BaseEstimator]]
    _: KW_ONLY
    verbose: int = 0

    @property
    def _semi_supervised(self) -> bool:  # type: ignore[override]
        return any(is_semi_supervised(last_step(stage)) for _, stage in self.estimators)

    def check_parameters(self) -> None:
        """Raise if there is no stage, or one without a name or that is no estimator of ours."""
        self._validate_params()
        if not self.estimators or not all(isinstance(one, tuple | list) and len(one) == 2 for one in self.estimators):
            raise ConfigError(f"estimators: expected a list of (name, regressor), found {self.estimators!r}")
        try:
            self._validate_names([name for name, _ in self.estimators])
        except ValueError as error:
            raise ConfigError(f"estimators: {error}") from error
        for name, stage in self.estimators:
            require_member(stage, f"estimators: {name}", classifies=False)

    def _fit_members(self, data: Training) -> BlendFit:
        rows, targets, y = data.rows, as_targets(data), data.rows.column("y")
        assert y is not None
        residual = np.where(targets.labelled(y, 0).reshape(-1, *[1] * (y.ndim - 1)), y, np.nan).astype(np.float64)
        members: list[Member] = []
        for _, stage in self.estimators:
            if members:
                last = Blend(Everywhere(rows.shape[1], 1), (members[-1],))
                residual -= training_values(rows, last.sliced()).reshape(residual.shape)
            left = replace(as_rows(rows, residual), classes=())
            members.append(member_of(clone(stage).fit(left), len(rows)))
        return BlendFit(data.inputs, Blend(Everywhere(rows.shape[1], len(members)), tuple(members)))

    def fit_report(self) -> FitReport:
        """Describe the fit as plain data: landmarks, penalties and error estimates of the stages."""
        names = [name for name, _ in self.estimators]
        stages = [
            {
                "stage": name,
                "landmarks": member.predictor.n_landmarks,
                "alpha": member.alpha,
                "prediction_error": member.prediction_error,
            }
            for name, member in zip(names, self.stages_, strict=True)
        ]
        return FitReport(estimator=type(self).__name__, stages=stages)
