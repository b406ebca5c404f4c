"""Candidates that share their rows, and the sweeps and solves that judge them.

Candidates with the same landmarks whose kernels have a common argument share a sweep; those with the same kernel share
its moments; what is left, α, the number of components and the intercept, costs a small solve each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bigkernel.config import settings
from bigkernel.engine.context import executor_in_force, processors
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import ConfigError, DataError, PlanTooLarge
from bigkernel.estimators.fit_state import Inputs, Problem
from bigkernel.estimators.kernel_basis import FOURIER, LandmarkBasis
from bigkernel.estimators.landmark_choice import BY_KERNEL
from bigkernel.estimators.moment_estimator import LandmarkEstimator
from bigkernel.kernels.families import LandmarkFamily, gather
from bigkernel.kernels.feature_maps import centre_of
from bigkernel.kernels.functions import as_kernel
from bigkernel.monitor.events import Step
from bigkernel.monitor.scope import emit, spent
from bigkernel.search.scoring import OF_CLASSES, Tested
from bigkernel.search.splits import Partition
from bigkernel.solvers.penalty_grid import (
    Coordinates,
    Penalty,
    candidates,
    gcv_scores,
    squared_errors,
    summed,
    total_spread,
)
from bigkernel.statistics.grid_scores import GridScores
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets, uncentred
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]


@dataclass(eq=False)
class Candidate:
    """One point of the grid: its number, its parameters, its model, the last step of it, and what that is ridge in.

    `basis` is None where every fit chooses its own.
    """

    index: int
    params: dict[str, Any]
    model: Any
    last: Any
    penalty: Penalty
    basis: Any = None


@dataclass(eq=False)
class Sweep:
    """Kernels that share a sweep, each with its candidates; a linear model is a sweep of one map.

    Attributes
    ----------
    members : one list of candidates a kernel
    """

    members: list[list[Candidate]]

    @property
    def candidates(self) -> list[Candidate]:
        """All of them."""
        return [candidate for one in self.members for candidate in one]

    @property
    def features(self) -> Any:
        """The feature map: one block a kernel."""
        lead = self.members[0][0].basis
        if not isinstance(lead, LandmarkBasis):
            return lead.centred()
        kernels = tuple(one[0].basis.kernel for one in self.members)
        return LandmarkFamily(kernels, lead.landmarks, np.dtype(lead.dtype))

    def statistic(self, targets: Targets, partition: Partition) -> MomentStatistic:
        """The moments of all its kernels, by fold."""
        features = self.features
        if isinstance(features, LandmarkFamily):
            shifts = [centre_of(kernel, features.landmarks, features.dtype) for kernel in features.kernels]
            features = replace(features, shifts=np.stack(shifts))
        return MomentStatistic(features, targets, self.members[0][0].last.unlabelled, partition.folds)

    def judge(
        self,
        targets: Targets,
        partition: Partition,
        weights: Array | None = None,
        intercepts: Array | None = None,
        *,
        with_loss: bool = True,
    ) -> GridScores:
        """The scores of all candidates by fold; without coefficients it serves a plan."""
        wide = max(len(one) for one in self.members) * targets.width
        shape = (len(self.members), partition.folds.count, self.features.width, wide)
        if weights is None or intercepts is None:
            weights, intercepts = np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (*shape[:2], wide))
        return GridScores(self.features, weights, intercepts, partition.folds, targets, with_loss)

    def halves(self) -> list[Sweep]:
        """Two sweeps of half the kernels each."""
        middle = len(self.members) // 2
        return [Sweep(self.members[:middle]), Sweep(self.members[middle:])]


@dataclass(eq=False)
class Work:
    """Rows, what they are fitted to, and the sweeps over them.

    Attributes
    ----------
    rows, targets, inputs : as an estimator's own fit has them
    partitions : of the folds
    sweeps : in the order they run
    """

    rows: Rows
    targets: Targets
    inputs: Inputs
    partitions: list[Partition]
    sweeps: list[Sweep]
    kept: dict[int, Accumulator] = field(default_factory=dict)

    def run(self, scores: Sequence[str]) -> Iterator[tuple[Candidate, int, Tested]]:
        """Judge every candidate on every split; the totals of kernels that fit in memory are kept for the refit."""
        for one in self.sweeps:
            for partition in self.partitions:
                yield from self._judge(one, partition, scores)

    def _judge(
        self, one: Sweep, partition: Partition, scores: Sequence[str]
    ) -> Iterator[tuple[Candidate, int, Tested]]:
        rows, statistic = partition.attach(self.rows), one.statistic(self.targets, partition)
        total = sweep(rows, statistic, what="tune").total
        folds, c = partition.folds.count, self.targets.width
        tested: dict[tuple[int, int], Tested] = {}
        wide = max(len(members) for members in one.members)
        classes = [name for name in scores if name in OF_CLASSES]
        shape = (len(one.members), folds, statistic.features.width, wide * c)
        weights, intercepts = np.zeros(shape if classes else 0), np.zeros((*shape[:2], shape[3]))
        for place, members in enumerate(one.members):
            emit(Step("solve", place, len(one.members)))
            of_kernel = {
                name: v[place * statistic.groups : (place + 1) * statistic.groups] for name, v in total.items()
            }
            if isinstance(statistic.features, LandmarkFamily):
                assert statistic.features.shifts is not None
                of_kernel = uncentred(of_kernel, statistic.features.shifts[place])
            self._keep(members, of_kernel, partition, statistic)
            pool = ThreadPoolExecutor(processors())
            with spent("solve"), threadpool_limits(limits=1, user_api="blas"), pool:
                solved = self._solve(
                    members,
                    of_kernel,
                    partition,
                    statistic,
                    expand=bool(classes),
                    gcv="neg_gcv" in scores,
                    pool=pool,
                )
            for fold, found in solved.items():
                for number, candidate in enumerate(members):
                    tested[candidate.index, fold] = found.tested[number]
                if classes:
                    weights[place, fold, :, : len(members) * c] = found.weights
                    intercepts[place, fold, : len(members) * c] = found.intercepts
        emit(Step("solve", len(one.members), len(one.members)))
        if classes:
            judge = one.judge(self.targets, partition, weights, intercepts, with_loss="neg_log_loss" in classes)
            counted = sweep(rows, judge, what="scores").total
            for place, members in enumerate(one.members):
                for number, candidate in enumerate(members):
                    for fold in range(folds):
                        tested[candidate.index, fold] = replace(
                            tested[candidate.index, fold],
                            confusion=counted["confusion"][place, fold, number],
                            loss=float(counted["loss"][place, fold, number]) if judge.with_loss else None,
                        )
        by_index = {candidate.index: candidate for candidate in one.candidates}
        for (index, fold), found_ in tested.items():
            yield by_index[index], partition.splits[fold], found_

    def _solve(
        self,
        members: list[Candidate],
        total: Accumulator,
        partition: Partition,
        statistic: MomentStatistic,
        *,
        expand: bool,
        gcv: bool,
        pool: ThreadPoolExecutor,
    ) -> dict[int, Solved]:
        """By fold; one BLAS thread each, so that the bits do not depend on how many there are."""
        c, groups = self.targets.width, range(statistic.groups)
        swept = Problem(inputs=self.inputs, basis=members[0].basis, statistics=total)
        by_intercept = {
            flag: [Moments.of(problem.statistics, group) for group in groups]
            for flag, problem in ((True, swept), (False, swept.at_origin()))
        }
        labelled = by_intercept[True][statistic.unlabelled == "keep" :]
        for number in range(partition.folds.count):
            self._require_fold(labelled, number, partition.splits[number])
        solved = {
            fold: Solved(
                [None] * len(members),
                np.zeros((statistic.features.width if expand else 0, len(members) * c)),
                np.zeros(len(members) * c),
            )
            for fold in range(partition.folds.count)
        }
        for places in _alike(members):
            lead, penalties = members[places[0]], [members[place].penalty for place in places]
            parts, most = by_intercept[penalties[0].fit_intercept], max(p.n_components or 0 for p in penalties)
            coordinates = lead.last.coordinates(lead.basis, summed(parts), most)
            small = list(pool.map(coordinates.reduce, parts[statistic.unlabelled == "keep" :]))
            columns = np.concatenate([np.arange(place * c, (place + 1) * c) for place in places])
            fit = partial(_fit_fold, small, penalties, coordinates, expand=expand, gcv=gcv)
            for out, (tested, weights, intercepts) in zip(solved.values(), pool.map(fit, solved), strict=True):
                for place, one in zip(places, tested, strict=True):
                    out.tested[place] = one
                if expand:
                    out.weights[:, columns], out.intercepts[columns] = weights, intercepts
        return solved

    def _require_fold(self, labelled: list[Moments], fold: int, split: int) -> None:
        train = summed([part for number, part in enumerate(labelled) if number != fold])
        for moments, role in ((labelled[fold], "test"), (train, "train on")):
            if not moments.n > 0:
                raise DataError(f"cv: split {split} has no labelled row with a weight above zero to {role}")
        if self.targets.classes is not None and not (train.t > 0).all():
            raise DataError(
                f"cv: split {split} has no row of class number {int(np.argmin(train.t))} to train on; take fewer or "
                "stratified folds"
            )

    def _keep(
        self, members: list[Candidate], total: Accumulator, partition: Partition, statistic: MomentStatistic
    ) -> None:
        """Keep the moments of all rows, as a fit of its own would have them, if there is room."""
        size = total["G"][0].nbytes * (1 + (statistic.unlabelled == "keep"))
        held = sum(one["G"].nbytes for one in self.kept.values())
        if not partition.whole or held + size > settings().memory_limit_bytes:
            return
        if statistic.unlabelled == "keep":
            first = {name: values[:1] for name, values in total.items()}
            rest = {name: values[1:].sum(axis=0, keepdims=True) for name, values in total.items()}
            self.kept[id(members)] = {name: np.concatenate([first[name], rest[name]]) for name in total}
        else:
            self.kept[id(members)] = {name: values.sum(axis=0, keepdims=True) for name, values in total.items()}

    def problem_of(self, candidate: Candidate) -> Problem:
        """Return what a fit of the candidate to all rows would solve: sums that were kept, or are swept once more."""
        found = next((m for one in self.sweeps for m in one.members if any(c is candidate for c in m)), None)
        kept = None if found is None else self.kept.get(id(found))
        if kept is None:
            problem: Problem = candidate.last.sweep(self.rows, self.targets, self.inputs, candidate.basis)[0]
        else:
            problem = Problem(inputs=self.inputs, basis=candidate.basis, statistics=kept)
        return problem if candidate.penalty.fit_intercept else problem.at_origin()


@dataclass(eq=False)
class Solved:
    """Candidates of one kernel on one fold: what their test says, their coefficients (p, k·c), intercepts (k·c,)."""

    tested: list[Any]
    weights: Array
    intercepts: Array


def _fit_fold(
    parts: list[Moments],
    penalties: Sequence[Penalty],
    coordinates: Coordinates,
    fold: int,
    *,
    expand: bool,
    gcv: bool,
) -> tuple[list[Tested], Array | None, Array]:
    """Candidates trained on all parts but one and tested on that one: tests, coefficients (p, k·c), intercepts."""
    train, one = summed([part for number, part in enumerate(parts) if number != fold]), parts[fold]
    weights, intercepts = candidates(train, penalties, coordinates.condition)
    errors, spread = squared_errors(one, weights, intercepts), total_spread(one)
    scores = gcv_scores(train, penalties) if gcv else [None] * len(penalties)
    tested = [
        Tested(float(one.n), float(one.rows), error, spread, one.q, gcv=score)
        for error, score in zip(errors, scores, strict=True)
    ]
    flat = weights.transpose(1, 0, 2).reshape(weights.shape[1], -1)
    return tested, coordinates.expand(flat) if expand else None, intercepts.ravel()


def _alike(members: list[Candidate]) -> list[list[int]]:
    """Positions of candidates that are ridge in the same coordinates, with or without an intercept."""
    groups: dict[Any, list[int]] = {}
    for place, candidate in enumerate(members):
        key = (getattr(candidate.last, "eigenfunctions", None), candidate.penalty.fit_intercept)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def arrange(
    members: list[Candidate], rows: Rows, targets: Targets, parts: list[Partition], *, counts: bool
) -> list[Sweep]:
    """Sweeps that serve all members, as few as memory allows; `counts`: and sweeps of scores."""
    sweeps = []
    for group in _share_landmarks(members, rows):
        if not isinstance(group[0].basis, LandmarkBasis):
            sweeps.append(Sweep([group]))
            continue
        kernels: dict[Any, list[Candidate]] = {}
        for candidate in group:
            kernels.setdefault((candidate.basis.dtype, _key(candidate.basis.kernel)), []).append(candidate)
        for dtype in ("float32", "float64"):
            lists = [one for (name, _), one in kernels.items() if name == dtype]
            for family in gather([one[0].basis.kernel for one in lists]):
                sweeps += _within_memory(Sweep([lists[place] for place in family]), rows, targets, parts, counts)
    return sweeps


def _share_landmarks(members: list[Candidate], rows: Rows) -> list[list[Candidate]]:
    """Candidates grouped by their landmarks, which are drawn once a group; each is given its basis."""
    groups: dict[Any, list[Candidate]] = {}
    for candidate in members:
        last = candidate.last
        if not isinstance(last, LandmarkEstimator):
            groups.setdefault("rows", []).append(candidate)
            continue
        given = last.landmarks if isinstance(last.landmarks, str) else np.asarray(last.landmarks).tobytes()
        if given in FOURIER:
            raise ConfigError(f"landmarks={last.landmarks!r}: random features share no sweep; search with 'uniform'")
        kernel = _key(_kernel_of(last)) if given in BY_KERNEL else None
        groups.setdefault((given, last.n_landmarks, _seed(last.random_state), kernel), []).append(candidate)
    for group in groups.values():
        # rows are shifted where one of them has an intercept; `Problem.at_origin` undoes it for the others
        group.sort(key=lambda candidate: not candidate.penalty.fit_intercept)
        lead = group[0].basis = group[0].last.basis(rows)
        bases: dict[Any, Any] = {}
        for candidate in group[1:]:
            last = candidate.last
            key = (last.dtype, _key(_kernel_of(last))) if isinstance(last, LandmarkEstimator) else None
            if key not in bases:
                bases[key] = last.basis(rows, like=lead)
            candidate.basis = bases[key]
    return list(groups.values())


def _kernel_of(last: Any) -> Any:
    return as_kernel(last.kernel, gamma=last.gamma, degree=last.degree, coef0=last.coef0)


def _within_memory(one: Sweep, rows: Rows, targets: Targets, parts: list[Partition], counts: bool) -> list[Sweep]:
    """The sweep, or several of fewer kernels where one would not fit the memory of a worker."""
    if len(one.members) == 1:
        return [one]
    wanted, executor = settings(), executor_in_force(rows)
    limit = wanted.memory_limit_bytes
    if isinstance(executor, Client):
        workers = executor.scheduler_info(n_workers=-1)["workers"].values()
        limit = min([limit, *(int(w["memory_limit"] // w["nthreads"]) for w in workers if w["memory_limit"])])
    try:
        for partition in parts:
            statistics = [one.statistic(targets, partition)] + ([one.judge(targets, partition)] if counts else [])
            for statistic in statistics:
                plan_sweep(partition.attach(rows), statistic).check(limit, wanted.worker_base_bytes)
    except PlanTooLarge:
        return [fit for half in one.halves() for fit in _within_memory(half, rows, targets, parts, counts)]
    return [one]


def _seed(random_state: Any) -> Any:
    """Equal for candidates that would draw the same landmarks."""
    return (
        random_state if isinstance(random_state, int | np.integer) else repr(random_state and random_state.get_state())
    )


def _key(kernel: Any) -> Any:
    return kernel.name, tuple((name, np.asarray(value).tobytes()) for name, value in kernel.get_params().items())
