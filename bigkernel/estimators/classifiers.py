"""What the classifiers on landmarks share: weights of classes, decision values and scores, and rows that are added."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if

from bigkernel.estimators.base import LazyScoreMixin
from bigkernel.estimators.class_weights import CLASS_WEIGHT, ClassWeighted
from bigkernel.estimators.prediction import DecisionMixin
from bigkernel.estimators.probabilities import PROBABILITY, adds_rows

CLASSIFIER = {**CLASS_WEIGHT, **PROBABILITY}


class LandmarkClassifier(ClassWeighted, LazyScoreMixin, DecisionMixin, ClassifierMixin):
    """Mixin, left of what says what is summed and solved."""


class CalibratedClassifier(LandmarkClassifier):
    """The same for those with the parameter `probability`, which have `Probabilities` on the right of them."""

    probability: bool

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, sample_domain: Any = None) -> Self:
        """Fit to rows X (n, d) and labels y (n,); y may be None for a corpus, which carries its own.

        −1 (among text "-1") is no label, where the method is semi-supervised.

        `sample_domain`: (n,) integers, the domain of each row, for landmarks that are balanced; lazy rows may carry
        theirs in a column.
        """
        fitted: Self = self._fit(X, y, sample_weight, sample_domain)
        return fitted

    @available_if(adds_rows)
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows, as in `KernelRidge.partial_fit`; `classes` lists all labels where the first rows lack some."""
        return self._partial_fit(X, y, classes, sample_weight)
