"""From an estimator and the parameters of candidates to the work that judges them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sklearn.base import clone, is_classifier
from sklearn.pipeline import Pipeline

from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import ClassWeightSource
from bigkernel.errors import ConfigError
from bigkernel.estimators.artl import CellTargets
from bigkernel.estimators.base import RowsEstimator
from bigkernel.estimators.domain_base import DomainedTransformer
from bigkernel.events.kinds import Event, SweepStarted
from bigkernel.events.scope import observe
from bigkernel.search.arrangement import Candidate, arrange
from bigkernel.search.scorers import require_served
from bigkernel.search.scoring import OF_SUMS, Scoring
from bigkernel.search.shared_sweeps import Work
from bigkernel.search.side_sweeps import with_sides
from bigkernel.search.splits import Partition, partitions
from bigkernel.statistics.moments import Targets


@dataclass(eq=False)
class Prepared:
    """Candidates with the same transforms: their fitted steps, and the work that judges them.

    `learned`: the sweeps in which these transforms were fitted.
    """

    members: list[Candidate]
    steps: Pipeline | None
    work: Work
    learned: tuple[SweepStarted, ...]


@dataclass(frozen=True, eq=False)
class Given:
    """What a search is given to fit: rows, targets, and columns of them."""

    X: Any
    y: Any = None
    groups: Any = None
    sample_weight: Any = None
    sample_domain: Any = None


def candidates_of(estimator: Any, grid: Iterable[Mapping[str, Any]]) -> list[Candidate]:
    """Make candidates with these parameters.

    Raises
    ------
    ConfigError
        A parameter that the estimator has not, or an estimator that is none of ours or exact.
    """
    found = []
    for index, params in enumerate(grid):
        try:
            model = clone(estimator)
            model.set_params(**{key: clone(value, safe=False) for key, value in params.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"param_grid: {error}") from error
        last = model[-1] if isinstance(model, Pipeline) else model
        if isinstance(last, DomainedTransformer):
            raise ConfigError(
                f"estimator: {type(last).__name__} predicts nothing that folds could be judged by; search a Pipeline "
                "of it and a classifier, for which it is fitted once to all rows, or ARTLClassifier"
            )
        if not isinstance(last, RowsEstimator):
            raise ConfigError(f"estimator: expected one of bigkernel's that predict, found {type(last).__name__}")
        last.check_parameters()
        if last.exact:
            raise ConfigError(
                "estimator: without n_landmarks it is exact, and its fits share no sweep; take n_landmarks, or "
                "scikit-learn's GridSearchCV"
            )
        found.append(Candidate(index, dict(params), model, last, last.penalty()))
    return found


def prepare(everyone: list[Candidate], given: Given, *, cv: Any, seed: int, scoring: Scoring) -> list[Prepared]:
    """Make the work of all candidates, those with the same transforms together.

    Raises
    ------
    ConfigError
        A score that a candidate does not go with.
    DataError
        Rows, targets or folds that cannot be used.
    """
    classifier = is_classifier(everyone[0].last)
    several = _differ_in_weights(everyone, scoring)
    prepared: list[Prepared] = []
    for members in _by_transforms(everyone):
        model = members[0].model
        steps = model[:-1] if isinstance(model, Pipeline) and len(model) > 1 else None
        inner, learned = _through(steps, given)
        proto = clone(members[0].last)
        if any(member.penalty.fit_intercept for member in members):
            proto.set_params(fit_intercept=True)
        rows, targets, inputs = proto.searched(
            inner, given.y, given.sample_weight, sample_domain=given.sample_domain, groups=given.groups
        )
        require_served(scoring, inputs, targets.width)
        if prepared:
            parts = prepared[0].work.partitions
        else:
            parts = _partitions(cv, rows, targets, classifier=classifier, seed=seed)
        if isinstance(targets, CellTargets):
            parts = with_sides(parts, rows, targets.cells)
        judging = _with_own_weights(rows) if several else rows
        sweeps = arrange(members, rows, targets, parts, scoring=scoring)
        if scoring.gcv:
            _require_gcv(members)
        work = Work(rows, targets, inputs, judging, parts, sweeps)
        prepared.append(Prepared(members, steps, work, learned))
    return prepared


def _by_transforms(everyone: list[Candidate]) -> list[list[Candidate]]:
    """Group candidates by transforms, kind of model and weights of classes."""
    groups: dict[Any, list[Candidate]] = {}
    for candidate in everyone:
        steps = candidate.model[:-1] if isinstance(candidate.model, Pipeline) else None
        transforms = repr([_described(step) for _, step in steps.steps]) if steps else ""
        key = type(candidate.last).__name__, candidate.penalty.weighting, transforms
        groups.setdefault(key, []).append(candidate)
    return list(groups.values())


def _through(steps: Pipeline | None, given: Given) -> tuple[Any, tuple[SweepStarted, ...]]:
    """The rows as transforms that are fitted here leave them, and the sweeps that this took."""
    if steps is None:
        return given.X, ()
    seen: list[Event] = []
    with observe(seen.append):
        inner = steps.fit(given.X, given.y).transform(given.X)
    return inner, tuple(event for event in seen if isinstance(event, SweepStarted))


def _partitions(cv: Any, rows: Rows, targets: Targets, *, classifier: bool, seed: int) -> list[Partition]:
    """The folds of the labelled rows; of lazy rows, labels are read only where the folds need them."""
    labels = rows.column("y") if rows.in_memory or not isinstance(cv, int | float | None) else None
    labelled = None if labels is None else targets.labelled(labels, 0)
    return partitions(cv, rows, labelled, classifier=classifier, seed=seed)


def _with_own_weights(rows: Rows) -> Rows:
    """The rows without the factors of their classes."""
    weight = rows.columns.get("weight")
    if not isinstance(weight, ClassWeightSource):
        return rows
    columns = {name: column for name, column in rows.columns.items() if name != "weight"}
    return replace(rows, columns=columns if weight.weight is None else {**columns, "weight": weight.weight})


def _differ_in_weights(everyone: list[Candidate], scoring: Scoring) -> bool:
    """Whether candidates weigh classes in several ways; scores of sums, which hold these weights, are refused then."""
    kinds = {candidate.penalty.weighting for candidate in everyone}
    if len(kinds) > 1 and (found := [name for name in scoring.names.values() if name in OF_SUMS]):
        raise ConfigError(
            f"class_weight: {found[0]} is read from the sums of a fit, whose rows have the weights of its classes, and "
            f"candidates have {len(kinds)} such weighings; take accuracy, balanced_accuracy or neg_log_loss"
        )
    return len(kinds) > 1


def _require_gcv(members: list[Candidate]) -> None:
    """Refuse generalised cross-validation of what has several penalties, or no moments."""
    if any(member.penalty.by_direction for member in members):
        raise ConfigError(
            f"scoring: neg_gcv is of one penalty for all directions, and {type(members[0].last).__name__} has one for "
            "each; take another score"
        )
    if any(member.choice for member in members):
        raise ConfigError(
            "scoring: neg_gcv is read from moments, which conjugate gradients do not sum; take another score, or "
            "solver='direct'"
        )


def _described(step: Any) -> Any:
    """A step of a pipeline as text that is the same for equal steps."""
    if isinstance(step, str) or not hasattr(step, "get_params"):
        return step
    return type(step), sorted(step.get_params().items(), key=str)
