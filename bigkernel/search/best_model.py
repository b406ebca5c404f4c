"""What the best model of a search does."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.utils import estimator_html_repr
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigkernel.html import columns, readable, table

_BEST = 10  # candidates that a notebook shows


def _gives_probabilities(search: Any) -> bool:
    """True where the best model, and before a fit the estimator, gives probabilities."""
    return hasattr(getattr(search, "best_estimator_", search.estimator), "predict_proba")


class BestModel:
    """Mixin of a search, whose best model it asks: `estimator`, and once it is fitted `best_estimator_`."""

    estimator: Any
    best_estimator_: Any

    def predict(self, X: Any) -> Any:
        """Predictions of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Values of f of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.decision_function(X)

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, (n, c), of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> Any:
        """The logarithms of `predict_proba`."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_log_proba(X)

    def score(self, X: Any, y: Any = None) -> float:
        """The best model's own score: accuracy or R²."""
        check_is_fitted(self, "best_estimator_")
        result: float = self.best_estimator_.score(X, y)
        return result

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_of_search(self)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        sub = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
            sub.estimator_type,
            sub.classifier_tags,
            sub.regressor_tags,
        )
        return tags


def html_of_search(search: Any) -> str:
    """Return the best candidates of a search, and scikit-learn's picture of the estimator."""
    diagram = str(estimator_html_repr(search)) if get_config()["display"] == "diagram" else ""
    results = getattr(search, "cv_results_", None)
    if results is None:
        return diagram
    label = next(iter(search.scorer_)) if search.multimetric_ else "score"
    figures = {"candidates": len(results["params"]), "splits": search.n_splits_, "sweeps": search.plan_.count}
    if hasattr(search, "best_params_"):
        figures |= {"best": {name: str(value) for name, value in search.best_params_.items()}}
    names = list(dict.fromkeys(name for params in results["params"] for name in params))
    lines = [
        [
            *(readable(name, results["params"][i].get(name, "")) for name in names),
            f"{results[f'mean_test_{label}'][i]:.5g} ± {results[f'sem_test_{label}'][i]:.2g}",
        ]
        for i in np.argsort(results[f"rank_test_{label}"], kind="stable")[:_BEST]
    ]
    return table(type(search).__name__, figures) + columns([*names, label], lines) + diagram
