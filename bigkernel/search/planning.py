"""What a search is to do: its candidates and the work that judges them, and what that takes, before it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.pipeline import Pipeline

from bigkernel.engine.rows import ClassWeightSource, Rows
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import ConfigError
from bigkernel.estimators.base import RowsEstimator, method_of
from bigkernel.estimators.domains import CellTargets
from bigkernel.events.job import Event, SweepStarted, observe
from bigkernel.html import columns, table
from bigkernel.search.adapting import planned_rounds, with_sides
from bigkernel.search.candidates import Candidate, Descents, SidedSweep, Sweep, arrange
from bigkernel.search.judging import Work, batches
from bigkernel.search.scorers import require_served
from bigkernel.search.scoring import OF_SUMS, Scoring
from bigkernel.search.splits import Partition, partitions
from bigkernel.solvers.preconditioners import describe_preconditioner
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.plan import Plan


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
        if isinstance(last, RowsEstimator) and hasattr(last, "transform"):
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
        (method, columns), weighting = method_of(last), getattr(last, "class_weight", None)
        penalty = replace(method.penalty(), weighting="" if weighting is None else repr(weighting))
        found.append(Candidate(index, dict(params), model, last, method, columns, penalty))
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
        data = proto.read_search(inner, given.y, given.sample_weight, given.sample_domain, given.groups)
        rows, targets, inputs = data.rows, data.targets, data.inputs
        require_served(scoring, inputs, targets.width)
        if prepared:
            parts = prepared[0].work.partitions
        else:
            parts = _partitions(cv, rows, targets, classifier=classifier, seed=seed)
        if isinstance(targets, CellTargets):
            parts = with_sides(parts, rows, targets.cells)
        judging = _with_own_weights(rows) if several else rows
        sweeps = arrange(members, rows, targets, inputs, parts, scoring=scoring)
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
        with np.printoptions(threshold=sys.maxsize, floatmode="unique"):  # arrays whole, and every digit of them
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


@dataclass(frozen=True)
class SearchPlan:
    """The plan of a search: candidates, splits, sweeps and their cost.

    Attributes
    ----------
    candidates, splits : how many
    sweeps : a line each; of conjugate gradients one for all that are expected of a descent
    flops : of the sweeps
    task_bytes : most memory that a task of one of them needs, on top of the process
    count : of the sweeps
    driver_bytes : most memory that the arrays of a descent take on the driver, about; 0 where there is none
    """

    candidates: int
    splits: int
    sweeps: tuple[str, ...]
    flops: float
    task_bytes: int
    count: int
    driver_bytes: int = 0

    def _repr_html_(self) -> str:
        figures = {
            "candidates": self.candidates,
            "splits": self.splits,
            "sweeps": self.count,
            "flops": self.flops,
            "task_bytes": self.task_bytes,
            "driver_bytes": self.driver_bytes or None,
        }
        return table("plan of a search", figures) + columns(["its sweeps"], [[line.strip()] for line in self.sweeps])

    def __str__(self) -> str:
        lines = [f"{self.candidates} candidates, {self.splits} splits: {self.count} sweeps"]
        return "\n".join(lines + [f"  {line}" for line in self.sweeps])


@dataclass(frozen=True)
class _Line:
    """Sweeps that are told together, and each of their plans."""

    text: str
    flops: float
    task_bytes: int
    count: int = 1
    driver_bytes: int = 0


def planned(
    work: Sequence[tuple[Sequence[Candidate], Work]],
    scoring: Scoring,
    *,
    learned: Sequence[SweepStarted] = (),
    refit: bool = True,
) -> SearchPlan:
    """The plan of candidates with the work that judges them.

    `learned`: the sweeps that their transforms took; `refit`: with those of the best on all rows.
    """
    splits = sum(len(part.splits) for part in work[0][1].partitions)
    lines = [_Line(f"transforms: the sweep of {one.what}", one.plan.flops, one.plan.task_bytes) for one in learned]
    lines += [
        line
        for _, one in work
        for sweep in one.sweeps
        for part in one.partitions
        for line in _lines(sweep, part, one, scoring)
    ]
    if refit:  # the best is of one work, not known of which
        lines += max(([*_of_best(one)] for _, one in work), key=lambda found: sum(line.count for line in found))
    return SearchPlan(
        candidates=sum(len(members) for members, _ in work),
        splits=splits,
        sweeps=tuple(line.text for line in lines),
        flops=sum((line.count * line.flops for line in lines), 0.0),
        task_bytes=max((line.task_bytes for line in lines), default=0),
        count=sum(line.count for line in lines),
        driver_bytes=max((line.driver_bytes for line in lines), default=0),
    )


def _of_rounds(whose: str, rounds: int, sweeps: Sequence[Plan]) -> _Line:
    """Rounds of pseudo-labels, each of these sweeps; they may be fewer."""
    flops, largest = sum(plan.flops for plan in sweeps), max(plan.task_bytes for plan in sweeps)
    said = f"  at most {rounds * len(sweeps)} sweeps for the pseudo-labels {whose}, {rounds * flops:.2g} flops"
    return _Line(said, flops / len(sweeps), largest, rounds * len(sweeps))


def _of_best(work: Work) -> Iterator[_Line]:
    """The sweeps that the best candidate may take on all rows, beside what it goes on from."""
    direct = [one for one in work.sweeps if not isinstance(one, Descents)]
    calibrated = any(getattr(candidate.last, "probability", False) for one in direct for candidate in one.candidates)
    whole = next((part for part in work.partitions if part.whole), None)
    if direct and (calibrated or whole is None):
        part = whole or work.partitions[0]
        steps = [
            plan_sweep(part.attach(work.rows), one.statistic(work.targets, part, len(work.rows))) for one in direct
        ]
        largest = max(steps, key=lambda plan: plan.flops)
        yield _Line("the best on all rows: moments", largest.flops, largest.task_bytes)
        if calibrated:
            yield _Line("the best on all rows: values to calibrate on", largest.flops, largest.task_bytes)
    sided = [one for one in direct if isinstance(one, SidedSweep)]
    if rounds := max((one.rounds for one in sided), default=0):
        part = work.partitions[0]
        each = [planned_rounds(one, work.rows, work.targets, part, best=True) for one in sided]
        yield _of_rounds("of the best on all rows", rounds, max(each, key=lambda plans: plans[0].flops))


def _lines(sweep: Sweep, partition: Partition, work: Work, scoring: Scoring) -> Iterator[_Line]:
    """The sweeps over a partition."""
    together: list[tuple[Sweep, Partition]] = [(sweep, partition)]
    if isinstance(sweep, Descents):
        together = [*sweep.at_once(work.rows, work.targets, partition, scoring)]
    for one, part in together:
        rows = part.attach(work.rows)
        steps = plan_sweep(rows, one.statistic(work.targets, part, len(rows)))
        kernels, candidates = len(one.members), len(one.candidates)
        what = f"{kernels} kernel{'s' * (kernels > 1)}, {candidates} candidates, {len(part.splits)} folds: "
        if isinstance(one, Descents):
            number, held = one.choice.sweeps, one.driver_bytes(work.targets, part)
            what += f"about {number} sweeps of conjugate gradients by the {describe_preconditioner(one.choice.rows)}, "
            what += f"{number * steps.flops:.2g} flops, {held / 1e6:,.0f} MB in this process"
            drawn = [plan_sweep(rows, statistic).task_bytes for statistic in one.draws(work.targets)]
            yield _Line(what, steps.flops, max(steps.task_bytes, *drawn, 0), number, held)
        else:
            yield _Line(what + f"moments, {steps.flops:.2g} flops", steps.flops, steps.task_bytes)
        if isinstance(one, SidedSweep) and one.rounds:
            of_round = planned_rounds(one, work.rows, work.targets, part)
            yield _of_rounds("of all of them", one.rounds, of_round)
        if scoring.counts:
            counting = plan_sweep(rows, one.judge(work.targets, part, scoring=scoring))
            yield _Line(f"  scores of its {candidates} candidates", counting.flops, counting.task_bytes)
        for some, valuing in batches(Sweep(one.members), part, work, scoring) if scoring.scorers else []:
            said = f"  values of {len(some.candidates)} candidates at held-out rows"
            yield _Line(said, valuing.flops, valuing.task_bytes)
