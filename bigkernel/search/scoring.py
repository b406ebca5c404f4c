"""Figures of a candidate on a fold, and the scores computed from them.

For numbers: n, Σ(y − f)² and the spread Σ(y − mean)² of each target, all from moments. For classes: the confusion
matrix and log-loss too, which need predictions. Tests: search/test_values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.errors import ConfigError, DataError

if TYPE_CHECKING:  # the command line needs the names of scores without loading SciPy
    from sklearn.base import BaseEstimator

    from bigkernel.solvers.residuals import Errors


class Scorer(Protocol):
    """A score of an estimator on rows, larger is better, as in scikit-learn."""

    def __call__(self, estimator: BaseEstimator, X: RowsLike, y: ColumnLike, **weights: Array) -> float:
        """Return the score."""


@dataclass(frozen=True, eq=False)
class Tested:
    """A candidate on the rows of a fold."""

    # n, rows: sum of the weights of the rows, and number of rows with a weight above 0
    n: float
    rows: float
    # sse, spread, q: (c,) Σ(y − f)², Σ(y − mean)² (0 where it is rounding), and Σy²
    sse: Array
    spread: Array
    q: Array
    confusion: Array | None = None  # (c, c), true class by predicted class, or None
    loss: float = float("nan")  # Σ −log p; NaN: not requested
    gcv: float = float("nan")  # generalised cross-validation of the training rows; NaN: not requested
    # distance of predictions from those of exact sums, relative to their norm (`solvers.accuracy`); NaN: unknown
    error: float = float("nan")
    allowed: float = float("inf")  # largest allowed error
    ended: bool | None = None  # whether conjugate gradients have converged; None for a direct solve
    # the scores that need the value of f at every row, by label
    scored: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_off(self) -> bool:
        """Whether the error exceeds the allowed one."""
        return self.error > self.allowed


@dataclass(eq=False)
class FoldSolutions:
    """Candidates of one kernel on one fold."""

    tested: list[Tested]  # what their test says
    errors: list[Errors | None]  # of their predictions, or None where they are not known
    # weights, intercepts: coefficients (p, k·c), and (k·c,)
    weights: Array
    intercepts: Array
    unresolved: bool = False  # whether rounding leaves directions unresolved that float64 might resolve

    @classmethod
    def of(cls, count: int, width: int, c: int) -> FoldSolutions:
        """Make room for `count` candidates."""
        untested = Tested(0.0, 0.0, np.zeros(c), np.zeros(c), np.zeros(c))
        return cls([untested] * count, [None] * count, np.zeros((width, count * c)), np.zeros(count * c))


def _r2(tested: Tested) -> float:
    if tested.rows < 2:
        raise DataError("scoring: r2 needs at least two labelled rows in every fold; use neg_mean_squared_error")
    # as in scikit-learn, 1 for a constant target that is predicted exactly, else 0
    flat = tested.spread == 0
    exact = tested.sse <= 1e-12 * np.maximum(tested.q, 1e-300)
    return float(np.where(flat, exact * 1.0, 1 - tested.sse / np.where(flat, 1, tested.spread)).mean())


def _confusion(tested: Tested) -> Array:
    assert tested.confusion is not None
    return tested.confusion


def _accuracy(tested: Tested) -> float:
    confusion = _confusion(tested)
    return float(np.trace(confusion) / confusion.sum())


def _balanced(tested: Tested) -> float:
    confusion = _confusion(tested)
    there = confusion.sum(axis=1) > 0
    return float((np.diagonal(confusion)[there] / confusion.sum(axis=1)[there]).mean())


SCORES: dict[str, Callable[[Tested], float]] = {
    "neg_mean_squared_error": lambda tested: -float((tested.sse / tested.n).mean()),
    "neg_root_mean_squared_error": lambda tested: -float(np.sqrt(tested.sse / tested.n).mean()),
    "r2": _r2,
    "neg_gcv": lambda tested: -tested.gcv,
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced,
    "neg_log_loss": lambda tested: -tested.loss / float(_confusion(tested).sum()),
}
OF_CLASSES = ("accuracy", "balanced_accuracy", "neg_log_loss")
OF_SQUARES = ("neg_mean_squared_error", "neg_root_mean_squared_error", "r2")
# of a target without labels, see `search.domain_scoring`
OF_DOMAINS = ("mutual-information", "importance-weighted")
_MARGIN = 3.0  # errors of predictions are estimated to about this factor


@dataclass(frozen=True, eq=False)
class Scoring:
    """The requested scores, and the data that they need beside squared errors."""

    names: Mapping[str, str]  # of the scores, by their label in the results
    # by label, functions (estimator, X, y) that need the value of f at every row
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    weighted: bool = False  # whether rows have class weights, which moments include and scores do not
    one_standard_error: bool = False  # whether candidates within a standard error of the best may be chosen

    @property
    def counts(self) -> bool:
        """Whether a score counts classes, or needs squared errors without class weights: both take predictions."""
        kinds = OF_CLASSES + OF_SQUARES * self.weighted
        return any(name in kinds and label not in self.scorers for label, name in self.names.items())

    @property
    def of_labels(self) -> bool:
        """Whether a score may depend on predicted labels."""
        return bool(self.scorers) or not {"accuracy", "balanced_accuracy"}.isdisjoint(self.names.values())

    @property
    def coefficients(self) -> bool:
        """Whether a score needs the coefficients of candidates, for another sweep."""
        return self.counts or bool(self.scorers) or bool(self.of_domains)

    @property
    def of_domains(self) -> set[str]:
        """The scores of a target without labels."""
        return {name for label, name in self.names.items() if label not in self.scorers} & {*OF_DOMAINS}

    @property
    def loss(self) -> bool:
        """Whether the log-loss is requested."""
        return "neg_log_loss" in self.names.values()

    @property
    def gcv(self) -> bool:
        """Whether generalised cross-validation is requested."""
        return "neg_gcv" in self.names.values()

    def of(self, label: str, tested: Tested) -> float:
        """Return the score of a candidate on a fold."""
        name = self.names[label]
        return tested.scored[label] if label in self.scorers or name in OF_DOMAINS else SCORES[name](tested)

    @property
    def of_squares(self) -> bool:
        """Whether all scores are functions of the squared errors that moments give."""
        return not self.scorers and not self.weighted and set(self.names.values()) <= {*OF_SQUARES}

    def most(self, label: str, tested: Tested) -> float:
        """Return the largest score of squared errors that a candidate may have on a fold with exact sums."""
        residual = np.sqrt(tested.sse)
        # ‖f‖ is about ‖y‖, or about ‖y − f‖ where f is far off
        error = _MARGIN * tested.error * np.maximum(np.sqrt(tested.q), residual)
        return self.of(label, replace(tested, sse=np.maximum(residual - error, 0) ** 2))


def chosen(scoring: object, *, classifier: bool, by_values: bool = False) -> Scoring:
    """Return the requested scores: a single one under the label "score", several under their names.

    With `by_values`, all are computed from predictions. `ConfigError`: a score is unknown, or does not apply to the
    estimator.
    """
    # a label for each score
    if scoring is None:
        scoring = "accuracy" if classifier else "r2"
    if isinstance(scoring, str) or callable(scoring):
        requested = {"score": scoring}
    elif isinstance(scoring, Mapping):
        requested = dict(scoring)
    elif isinstance(scoring, list | tuple | set) and all(isinstance(name, str) for name in scoring):
        requested = {name: name for name in scoring}
    else:
        raise ConfigError(
            "scoring: expected the name of a score, a function (estimator, X, y), a list of names or a dict, found "
            f"{scoring!r}"
        )
    if not requested:
        raise ConfigError("scoring: expected at least one score, found none")
    # scores of sums are known by name; all others need every prediction
    names, scorers = {}, {}
    for label, one in requested.items():
        names[label] = one if isinstance(one, str) else getattr(one, "__name__", repr(one))
        if one in OF_CLASSES + OF_DOMAINS and not classifier:
            raise ConfigError(f"scoring: {one!r} expects a classifier, found a regressor; use another score")
        if by_values and one == "neg_gcv":
            raise ConfigError("scoring: neg_gcv is not on the original scale of transformed targets; use another score")
        if by_values or not isinstance(one, str) or one not in (*SCORES, *OF_DOMAINS):
            scorers[label] = _scorer(one, classifier=classifier)
    return Scoring(names, scorers)


def _scorer(given: object, *, classifier: bool) -> Scorer:
    """Return a scorer of scikit-learn by name, or a function, which must work with held-out values of f."""
    from sklearn.metrics import get_scorer  # the command line needs only the names of scores

    if not isinstance(given, str) and not callable(given):
        raise ConfigError(f"scoring: expected the name of a score or a function (estimator, X, y), found {given!r}")
    try:
        scorer: Scorer = get_scorer(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ConfigError(
            f"scoring: {given!r} is not one of {', '.join((*SCORES, *OF_DOMAINS))}, nor a scorer of scikit-learn"
        ) from error
    methods = getattr(scorer, "_response_method", "predict")
    methods = {methods} if isinstance(methods, str) else set(methods)
    if methods == {"predict_proba"}:
        raise ConfigError(
            f"scoring: {given!r} needs probabilities, but a search scores decision values; use neg_log_loss or "
            "accuracy (for two classes also roc_auc), and probability=True for the best model"
        )
    if "predict" not in methods and not classifier:
        raise ConfigError(f"scoring: {given!r} expects a classifier, found a regressor; use another score")
    return scorer
