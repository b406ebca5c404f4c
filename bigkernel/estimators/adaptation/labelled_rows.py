"""A wrapper that fits any classifier to the labelled rows, for the end of a pipeline that learns from all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Self, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils._tags import Tags
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.containers import in_memory
from bigkernel.engine.rows import as_rows
from bigkernel.errors import DataError
from bigkernel.estimators.base import RowsEstimator, available, lacking, parameters, score_in_memory
from bigkernel.estimators.inputs.classes import no_label, plain_labels, warn_of_names
from bigkernel.estimators.inputs.columns import is_lazy


@parameters
class LabelledRowsClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """Fit a classifier to the rows that have a label.

    In a Pipeline every step gets the labels of all rows. `JDA` and `DICA` learn from rows without a label too, but most
    classifiers take −1 for a class. Corpora and other lazy rows are passed on whole, as classifiers of bigkernel leave
    out their rows labelled −1.

    Parameters
    ----------
    estimator : classifier
        Of scikit-learn or bigkernel.

    Attributes
    ----------
    estimator_ : the fitted classifier
    classes_ : (c,)

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.svm import SVC
    >>> from bigkernel import JDA, LabelledRowsClassifier
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([0, 1], 100)
    >>> source = rng.normal(size=(200, 2)) * 0.3 + 2 * truth[:, None]
    >>> X, y = np.vstack([source, source + [1.0, -0.5]]), np.concatenate([truth, np.full(200, -1)])
    >>> model = make_pipeline(JDA(n_components=2, n_landmarks=30, random_state=0), LabelledRowsClassifier(SVC()))
    >>> bool(model.fit(X, y).score(X[200:], truth) > 0.95)
    True
    """

    estimator: BaseEstimator
    _semi_supervised = True

    def fit(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> Self:
        """Fit a clone to the rows whose label is not missing: −1, "-1", None, NaN or pandas' NA.

        Raises
        ------
        DataError
            No row has a label.
        """
        self.estimator_ = clone(self.estimator)
        if is_lazy(X):
            weighted = {} if sample_weight is None else {"sample_weight": sample_weight}
            self.estimator_.fit(with_labels(X, y), **weighted)
            return self
        if y is None:
            raise DataError("LabelledRowsClassifier requires y to be passed, but the target y is None")
        labels = plain_labels(y)
        check_consistent_length(X, labels)
        rows = np.flatnonzero(~no_label(labels))
        if not len(rows):
            raise DataError("y: expected a labelled row, found none")
        weight = {}
        if sample_weight is not None:
            weight["sample_weight"] = _check_sample_weight(in_memory(sample_weight, "sample_weight"), labels)[rows]
        if not isinstance(self.estimator_, RowsEstimator):  # which warn themselves
            warn_of_names(labels, self, stacklevel=3)
        self.estimator_.fit(_safe_indexing(X, rows), labels[rows], **weight)
        return self

    @property
    def classes_(self) -> Array:
        """The classes of the fitted classifier."""
        check_is_fitted(self)
        return cast(Array, self.estimator_.classes_)

    def predict(self, X: RowsLike) -> Array:
        """Predict classes (n,)."""
        check_is_fitted(self)
        return cast(Array, self.estimator_.predict(X))

    @available(lambda self: lacking(_inner(self), "predict_proba"))
    def predict_proba(self, X: RowsLike) -> Array:
        """Predict probabilities (n, c), if the classifier does."""
        check_is_fitted(self)
        return cast(Array, self.estimator_.predict_proba(X))

    @available(lambda self: lacking(_inner(self), "decision_function"))
    def decision_function(self, X: RowsLike) -> Array:
        """Compute decision values, if the classifier does."""
        check_is_fitted(self)
        return cast(Array, self.estimator_.decision_function(X))

    def score(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> float:
        """Return the accuracy over the rows that have a label."""
        if is_lazy(X):
            check_is_fitted(self)
            return float(self.estimator_.score(with_labels(X, y), sample_weight=sample_weight))
        return score_in_memory(self, self.predict(X), y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


def with_labels(X: RowsLike, y: ColumnLike) -> RowsLike:
    """Return lazy rows that carry their labels, as a corpus does, of which classifiers leave out −1."""
    if y is None:
        return X
    labels = plain_labels(y)
    missing = no_label(labels)
    classes = np.unique(labels[~missing])
    if labels.dtype.kind == "U":  # positions among the names
        labels = np.where(missing, -1, np.searchsorted(classes, labels))
    return replace(as_rows(X, labels), classes=tuple(classes.tolist()))


def _inner(model: object) -> object:
    return getattr(model, "estimator_", getattr(model, "estimator", None))
