"""scikit-learn's scorers, by name or as functions (estimator, X, y), applied to held-out values of f.

They get a model that returns the values of a sweep for any rows. Tests: search/test_right_scores.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags

from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.search.scoring import Scorer, Scoring
from bigkernel.statistics.moments import Targets


class _HeldOut(BaseEstimator):
    """A fitted classifier or regressor that returns given values (n, c) at the test rows."""

    def __init__(self, inputs: Inputs, values: Array) -> None:
        self.inputs, self.values = inputs, values

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor" if self.inputs.classes is None else "classifier"
        return tags

    @property
    def classes_(self) -> Array | None:
        """Sorted labels (c,); None for numbers."""
        return self.inputs.classes

    def _values(self, X: Array | None) -> Array:
        count = len(self.values) if X is None else X.shape[0]
        if count != len(self.values):
            raise ConfigError(
                f"scoring: expected a score of the {len(self.values)} rows of the fold, found a request for "
                f"predictions of {count} rows"
            )
        return self.values

    def predict(self, X: Array | None) -> Array:
        values = self._values(X)
        if self.classes_ is None:
            return values[:, 0] if self.inputs.flat else values
        return np.asarray(self.classes_[values.argmax(axis=1)])

    def decision_function(self, X: Array | None) -> Array:
        values = self._values(X)
        return values[:, 1] - values[:, 0] if values.shape[1] == 2 else values


def require_served(scoring: Scoring, inputs: Inputs, width: int) -> None:
    """Try scikit-learn's scores on a few made-up rows of these classes or targets, before any sweep.

    Other functions are not tried, as they may use the rows themselves. `ConfigError`: a score does not apply to such
    classes or targets, such as `f1` to three classes.
    """
    truth = np.tile(np.arange(width), 4)
    # values are above 0, for scores of logarithms; each class has right and wrong predictions
    values = 1 + np.eye(width)[np.roll(truth, 1)] + np.linspace(0, 0.5, truth.size * width).reshape(-1, width)
    values[: 2 * width] += np.eye(width)[truth[: 2 * width]] * 2
    if inputs.classes is None:
        y = 1 + np.linspace(0, 1, values.size).reshape(values.shape) ** 2
        y = y[:, 0] if inputs.flat else y
    else:
        y = inputs.classes[truth]
    model = _HeldOut(inputs, values)
    # scikit-learn's functions refuse by themselves what they do not serve
    for label, scorer in scoring.scorers.items():
        function = getattr(scorer, "_score_func", None)
        if not getattr(function, "__module__", "").startswith("sklearn.") or width < 1:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of so few rows
                float(scorer(model, None, y))
        except Exception as error:
            of = f"{width} targets" if inputs.classes is None else f"{width} classes"
            instead = "neg_mean_squared_error or r2" if inputs.classes is None else "f1_macro or accuracy"
            raise ConfigError(
                f"scoring: {scoring.names[label]} cannot be computed for {of}: {error}; use {instead}"
            ) from error


@dataclass(frozen=True, eq=False)
class TestedRows:
    """Labelled test rows, with the arguments of a scorer."""

    ids: Array  # (r,) their ascending row numbers
    y: Array  # (r,) or (r, c), as given
    weight: Array | None  # (r,), or None
    # rows, inputs: of the search
    rows: Rows
    inputs: Inputs

    @classmethod
    def of(cls, rows: Rows, targets: Targets, inputs: Inputs, ids: Array) -> TestedRows:
        """Read the rows with these numbers."""
        y = rows.take_column("y", ids)
        if inputs.classes is not None:
            truth = np.empty((len(ids), targets.width))
            targets.encode(y, truth)
            y = inputs.classes[truth.argmax(axis=1)]
        weight = rows.take_column("weight", ids) if "weight" in rows.columns else None
        return cls(ids, y, weight, rows, inputs)

    def at(self, chosen: Array) -> TestedRows:
        """Select some of the rows."""
        weight = None if self.weight is None else self.weight[chosen]
        return TestedRows(self.ids[chosen], self.y[chosen], weight, self.rows, self.inputs)

    def scores(self, scoring: Scoring, values: Array) -> dict[str, float]:
        """Compute by label the scores that need values of f, from those at these rows, (r, c)."""
        model = _HeldOut(self.inputs, values)
        return {label: self._score(scoring, label, scorer, model) for label, scorer in scoring.scorers.items()}

    def _score(self, scoring: Scoring, label: str, scorer: Scorer, model: BaseEstimator) -> float:
        weights: Mapping[str, Array] = {}
        if self.weight is not None and "sample_weight" in signature(scorer).parameters:
            weights = {"sample_weight": self.weight}
        # scorers of scikit-learn only pass the rows on to the model
        needs_rows = not hasattr(scorer, "_score_func") and self.rows.in_memory
        X = self.rows.take(self.ids) if needs_rows else None
        try:
            return float(scorer(model, X, self.y, **weights))
        except Exception as error:
            name = scoring.names[label]
            raise DataError(
                f"scoring: {name} failed on a fold: {type(error).__name__}: {error}; expected a function (estimator, "
                "X, y) that returns a number"
            ) from error
