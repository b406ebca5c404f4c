"""What the best model of a search does."""

from __future__ import annotations

from typing import Any

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

import bigkernel


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
        return {"text/plain": repr(self), "text/html": bigkernel._html_of(self)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        sub = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
            sub.estimator_type,
            sub.classifier_tags,
            sub.regressor_tags,
        )
        return tags
