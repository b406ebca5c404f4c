"""Sweeps that several candidates share: kernels with a common argument, and the candidates of each kernel.

Candidates with the same kernel share its moments; α, the number of components and the intercept take a small solve
each, on every fold: moments without a fold are the total less those of the fold. The error of a solve has a formula in
whitened coordinates (`solvers.ridge`); eigenfunctions and canonical directions are solved again from perturbed sums.
Shapes: p columns of the solutions, r coordinates, k candidates, c targets, K kernels, F folds.
Tests: search/test_search.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np
from distributed import Client
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.engine.process import processors
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import choose_executor, plan_sweep
from bigkernel.errors import DataError, PlanTooLargeError
from bigkernel.estimators.base import RowsEstimator
from bigkernel.estimators.fit.basis import BasisChoice, LandmarkBasis, RowChoice, of_kernel
from bigkernel.estimators.fit.folds import Choice, choose_in_search, join_folds, landmarks_without
from bigkernel.estimators.fit.method import Method
from bigkernel.estimators.fit.precision import (
    Coefficients,
    Finer,
    Whitened,
    next_precision,
    of_columns,
    perturbed_errors,
    probed_sweep,
    rounding_estimate,
    whitened,
    with_probe,
)
from bigkernel.estimators.fit.state import GRAPH_SUMS, Columns, FoldSums, Problem, RowBasis
from bigkernel.estimators.inputs.checks import chosen_by_folds
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.events.job import Step, emit, spent
from bigkernel.kernels.feature_maps import FeatureMap, LandmarkFamily
from bigkernel.kernels.threads import one_thread
from bigkernel.search.domain_scoring import Domains
from bigkernel.search.scoring import FoldSolutions, Scoring, Tested
from bigkernel.search.splits import Partition
from bigkernel.solvers.conjugate_gradients import PreconditionerChoice
from bigkernel.solvers.penalty_grid import (
    Coordinates,
    SolveSettings,
    add_moments,
    gcv_scores,
    resolve_gcv,
    squared_errors,
    total_spread,
)
from bigkernel.solvers.residuals import ENOUGH, Errors
from bigkernel.solvers.ridge import RoundingEstimate, rounding_of_rotation
from bigkernel.solvers.whitening import Whitening, reduce_moments
from bigkernel.statistics.domain_scores import DomainScores
from bigkernel.statistics.held_out import GridScores
from bigkernel.statistics.moments import SUMS, Moments, MomentStatistic, Targets, without
from bigkernel.statistics.statistic import Statistic
from bigkernel.streaming.plan import Plan

T = TypeVar("T")
P = TypeVar("P")
_ROTATED_BYTES = 2**28  # of the folds of kernels that are solved in parallel
_FOLD_BYTES = 2**32  # of the sums of the folds of a kernel that are solved in parallel, each over its own landmarks


@dataclass(eq=False)
class Candidate:
    """One point of the grid."""

    index: int
    params: Mapping[str, object]
    model: BaseEstimator  # an estimator or Pipeline with these parameters
    last: RowsEstimator  # its last step
    method: Method  # of the last step
    columns: BasisChoice | RowChoice  # how it chooses its columns
    solve_settings: SolveSettings  # in which candidates that share all moments may differ
    wrapper: TransformedTargetRegressor | None = None  # what transforms the targets of `model`
    wraps_last: bool = False  # whether the wrapper is the last step of a Pipeline, and not around it
    labelled: bool = False  # whether `last` is in a LabelledRowsClassifier
    basis: Columns = field(init=False)  # the columns, once they are chosen
    choice: PreconditionerChoice | None = None  # of conjugate gradients; None: a direct solve


@dataclass(eq=False)
class KernelGroup:
    """Candidates of one kernel, which share its columns and moments; those of a linear model are one group."""

    candidates: list[Candidate]  # in the order of their solutions
    white: Whitened | None = None  # the columns with their whitening, for the sweeps of a dtype and the fit of the best
    sums: Problem | None = None  # of all rows, for the fit of the best
    solved: list[FoldSolutions] = field(default_factory=list)  # by the last sweep, for each fold
    # why that sweep was made, or tried, in more digits than the one before
    finer: Finer | None = None
    # the columns of the one before; again those of the group where more digits did not fit
    coarser: Columns | None = None

    @property
    def lead(self) -> Candidate:
        """The first candidate."""
        return self.candidates[0]

    @property
    def basis(self) -> Columns:
        """The columns of all of them."""
        return self.lead.basis

    @property
    def method(self) -> Method:
        """The method that whitens the columns: one that does so to solve, whatever the order of the grid."""
        methods = [candidate.method for candidate in self.candidates]
        return next((method for method in methods if method.whitens), methods[0])

    @property
    def chooses(self) -> bool:
        """Whether the dtype of blocks may be chosen."""
        return all(candidate.columns.dtype == "auto" for candidate in self.candidates)

    def take(self, basis: Columns) -> None:
        """Give all candidates these columns; a whitening of other blocks is dropped."""
        if self.white is not None and self.white[0].dtype != basis.dtype:
            self.white = None
        for candidate in self.candidates:
            candidate.basis = basis

    def whiten(self) -> Whitened:
        """Return the columns with their whitening, which is kept; in float64 if a float32 core would lose landmarks."""
        if self.white is None:
            choose = self.chooses and self.method.whitens
            with one_thread():  # as in the solves, so that bits do not depend on threads
                self.white = whitened(self.basis, choose=choose, solves=self.method.whitens)
            self.take(self.white[0])
        _, whitening, diagnostics = self.white
        return self.basis, whitening, deepcopy(diagnostics)  # to which solves add

    def next_precision(self, *, probed: bool) -> Finer | None:
        """Return the precision that one of the solutions needs; None where predictions are not off."""
        errors = [error for fold in self.solved for error in fold.errors if error is not None] if probed else []
        worst = max(errors, key=lambda error: error.total, default=None)
        unresolved = any(fold.unresolved for fold in self.solved)
        return next_precision(self.basis, worst, choose=self.chooses, unresolved=unresolved)


@dataclass(eq=False)
class SearchData:
    """The training data of a search, and results of its sweeps for the fit of the best candidate."""

    # rows, targets, inputs: as in `Training`
    rows: Rows
    targets: Targets
    inputs: Inputs
    judging: Rows  # the rows with the weights, without those of classes, and targets of scores
    # from values of f (n, c) to predictions on the scale of these targets
    inverse: Callable[[Array], Array] | None = None
    domains: Domains | None = None  # source and target, for scores without labels of the target
    kernels: list[KernelGroup] = field(default_factory=list)  # that are solved from sums
    # by candidate, the sum of the coefficients of conjugate gradients over folds, and the number of folds
    ends: dict[int, tuple[Array, int]] = field(default_factory=dict)

    def keep(self, kernel: KernelGroup, problem: Problem, partition: Partition, *, unlabelled: bool) -> None:
        """Keep the moments of all rows, as a fit of one candidate would sum them, if there is room."""
        total, sides = problem.statistics, partition.sides
        # those of an earlier sweep or partition go in any case
        kernel.sums = None
        if not partition.whole or total["G"][0].nbytes * (1 + unlabelled) > self._room():
            return
        # one group of labelled rows, or source and target of the split that hides no label
        joined = join_folds(total, int(unlabelled)) if sides is None else sides.split_sums(total, sides.folds.count)
        kernel.sums = replace(problem, statistics=joined)

    def _room(self) -> int:
        """Return the bytes that may be kept beside the sums of kernels."""
        held = sum(one.sums.statistics["G"].nbytes for one in self.kernels if one.sums is not None)
        return settings().memory_limit_bytes - held

    def drop_whitenings(self) -> None:
        """Drop whitenings that do not fit beside the sums that are kept, those of the first kernels."""
        room = self._room()
        for kernel in reversed(self.kernels):
            room -= 8 * kernel.basis.width**2 if kernel.white else 0
            if room < 0:
                kernel.white = None

    def require_fold(self, split: int, tested: float, trained: float, classes: Array) -> None:
        """Raise `DataError` unless the test and training rows of a split, and of each class (c,), have weight."""
        for weight, role in ((tested, "test"), (trained, "train on")):
            if not weight > 0:
                raise DataError(
                    f"cv: split {split} expects a labelled row with a positive weight to {role}, found none"
                )
        values, names, y = self.targets.classes, self.inputs.classes, self.rows.columns.get("y")
        if values is None or names is None or y is None or (classes > 0).all():
            return
        # of several values of y that are one class, any counts
        number, position = int(np.argmin(classes)), self.targets.position
        codes = values[(np.arange(len(values)) if position is None else position) == number]
        rows = int(np.isin(y.read(0, len(self.rows)), codes).sum())
        raise DataError(
            f"cv: split {split} has no training row of class {names.tolist()[number]!r}, which has {rows} labelled "
            f"row{'s' * (rows != 1)}; {'use fewer or stratified folds, or ' * (rows > 1)}leave these rows out"
        )


@dataclass(frozen=True)
class PlanLine:
    """Sweeps that are planned together: a line for the user, and the figures of each sweep."""

    text: str
    flops: float
    task_bytes: int
    count: int = 1
    driver_bytes: int = 0


def split_to_fit(one: T, check: Callable[[T], P], halves: Callable[[T], Sequence[T]]) -> list[tuple[T, P]]:
    """Halve a value until `check` accepts all pieces; return each with the result of `check`.

    Raises
    ------
    PlanTooLargeError
        By `check`, if a piece that has no halves does not fit.
    """
    try:
        return [(one, check(one))]
    except PlanTooLargeError:
        pieces = halves(one)
        if not pieces:
            raise
    return [pair for piece in pieces for pair in split_to_fit(piece, check, halves)]


def limit_bytes(rows: Rows) -> int:
    """Return the memory limit of a worker."""
    limit, executor = settings().memory_limit_bytes, choose_executor(rows)
    if isinstance(executor, Client):
        wait_for_workers(executor, 1, settings().stall_seconds)
        workers = executor.scheduler_info(n_workers=-1)["workers"].values()
        limit = min([limit, *(int(w["memory_limit"] // w["nthreads"]) for w in workers if w["memory_limit"])])
    return limit


def checked_plan(rows: Rows, statistic: Statistic) -> Plan:
    """Return the plan of a sweep; `PlanTooLargeError` if a worker lacks the memory for it."""
    plan = plan_sweep(rows, statistic)
    plan.check(limit_bytes(rows), settings().worker_base_bytes)
    return plan


@dataclass(frozen=True, eq=False)
class KernelSums:
    """The sums of a kernel by group of rows, and what else the solves of its candidates need."""

    data: SearchData
    members: list[Candidate]
    problem: Problem
    statistic: MomentStatistic
    # None where the sums were not probed
    whitening: Whitening | None
    partition: Partition
    scoring: Scoring
    # (m,) the fold that tests the row of each landmark; None where landmarks stay in all folds
    landmark_folds: Array | None = None

    @property
    def first_labelled(self) -> int:
        """The first group of labelled rows."""
        return int(self.statistic.unlabelled == "keep")

    def choices(self, pool: ThreadPoolExecutor) -> list[dict[int, Choice]]:
        """Return by fold what other folds choose for candidates with `alpha="cv"`, by their place."""
        places = [place for place, one in enumerate(self.members) if chosen_by_folds(one.method.alpha)]
        count, first, total = self.partition.folds.count, self.first_labelled, self.problem.statistics
        found: list[dict[int, Choice]] = [{} for _ in range(max(count, 1))]
        if places:
            sums = {name: total[name][first:] for name in SUMS}
            folds = FoldSums(sums, count, self.landmark_folds, joins=bool(first))
            problem = replace(self.problem, statistics=join_folds(total, first), folds=folds)
            for place in places:
                for fold, choice in enumerate(
                    choose_in_search(self.members[place].method, problem, pool, self.whitening)
                ):
                    found[fold][place] = choice
        return found

    def without_landmarks(self, fold: int) -> tuple[KernelSums, Array]:
        """Return the sums with this fold alone over the landmarks that are not among its rows, and these landmarks."""
        assert self.landmark_folds is not None
        # coefficients at landmarks among held-out rows would be nearly undetermined by the other rows
        kept = np.flatnonzero(kept_landmarks(self.landmark_folds, self.partition, fold))
        sums = self.problem.statistics
        total = {name: np.concatenate([sums[name][fold : fold + 1], one]) for name, one in without(sums, fold).items()}
        problem = of_columns(replace(self.problem, statistics=total), kept, probed=True)
        # the core of fewer landmarks has a whitening of its own
        own = replace(
            self,
            problem=problem,
            statistic=replace(self.statistic, features=problem.basis.features()),
            whitening=None
            if self.whitening is None
            else problem.basis.whitening(solves=self.members[0].method.whitens),
            partition=replace(self.partition, splits=self.partition.splits[fold : fold + 1]),
            landmark_folds=None,
        )
        return own, kept


@dataclass(eq=False)
class GridSweep:
    """Kernels that share a sweep, each with its candidates; `keeps_moments`: a fit to all rows may use the sums."""

    kernels: list[KernelGroup]
    keeps_moments: ClassVar[bool] = True

    @property
    def candidates(self) -> list[Candidate]:
        """All candidates."""
        return [candidate for kernel in self.kernels for candidate in kernel.candidates]

    @property
    def lead(self) -> Candidate:
        """The first candidate."""
        return self.kernels[0].lead

    @property
    def rounds(self) -> int:
        """Maximum number of rounds of pseudo-labels of a candidate."""
        return 0

    # -- sums ----------------------------------------------------------------------------------------------------------

    @property
    def features(self) -> FeatureMap:
        """The feature map, with a block for each kernel."""
        basis = self.lead.basis
        if len(self.kernels) == 1 or not isinstance(basis, LandmarkBasis):
            return basis.features()
        kernels = tuple(of_kernel(one.basis).kernel for one in self.kernels)
        return LandmarkFamily(kernels, basis.landmarks, np.dtype(basis.dtype))

    @property
    def predicting(self) -> FeatureMap:
        """The part of the feature map that predictions need."""
        return self.lead.basis.predicting(self.features)

    def statistic(
        self, targets: Targets, partition: Partition, rows: int, whitenings: Sequence[Whitening] = ()
    ) -> MomentStatistic:
        """Return the moments of all kernels, by fold; with whitenings, their rounding is probed."""
        basis, features = self.lead.basis, self.features
        # about a point near the mean of the blocks, where sums of squares lose least
        if isinstance(features, LandmarkFamily):
            shifts = np.array([one.basis.centred().shift_of(0) for one in self.kernels])
            features = replace(features, shifts=shifts)
        else:
            features = basis.centred()
        unlabelled, sums = "keep" if self.lead.method.semi_supervised else "drop", basis.sum_dtype
        statistic = MomentStatistic(features, targets, unlabelled, partition.folds, sums=sums)
        # of one kernel, if one of its candidates has a graph
        graph = max((candidate.method.graph for candidate in self.candidates), key=lambda graph: graph.exists)
        statistic = graph.add_anchors(statistic)
        return with_probe(statistic, whitenings, rows) if basis.probed else statistic

    def grid_scores(self, targets: Targets, partition: Partition, scoring: Scoring, *fits: Array) -> GridScores:
        """Return the scores of all candidates by fold; without weights and intercepts, for a plan."""
        weights, intercepts = fits or self.zeros(targets, partition)
        sums = scoring.loss, scoring.weighted
        return GridScores(self.predicting, weights, intercepts, partition.folds, targets, *sums)

    def domain_scores(self, targets: Targets, partition: Partition, *fits: Array) -> DomainScores:
        """Return the sums of the scores on a target without labels; without weights and intercepts, for a plan."""
        weights, intercepts = fits or self.zeros(targets, partition)
        return DomainScores(self.predicting, weights, intercepts, partition.folds, targets)

    def zeros(self, targets: Targets, partition: Partition) -> tuple[Array, Array]:
        """Return zeros for weights (K, F, p, k·c) and intercepts (K, F, k·c), which take no memory."""
        wide = max(len(kernel.candidates) for kernel in self.kernels) * targets.width
        shape = (len(self.kernels), partition.folds.count, self.predicting.width, wide)
        return np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (*shape[:2], wide))

    # -- memory --------------------------------------------------------------------------------------------------------

    def by_precision(self) -> list[GridSweep]:
        """Divide the kernels into a sweep for each precision."""
        groups: dict[object, list[KernelGroup]] = {}
        for kernel in self.kernels:
            basis = kernel.basis
            key = (basis.dtype, basis.sums) if isinstance(basis, LandmarkBasis) else None
            groups.setdefault(key, []).append(kernel)
        return [replace(self, kernels=kernels) for kernels in groups.values()]

    def halves(self) -> Sequence[GridSweep]:
        """Return two sweeps of half the kernels each; none for a single kernel."""
        middle = len(self.kernels) // 2
        both = (self.kernels[:middle], self.kernels[middle:])
        return [replace(self, kernels=half) for half in both] if middle else []

    def within_memory(self, data: SearchData, partitions: Sequence[Partition], scoring: Scoring) -> list[GridSweep]:
        """Divide the kernels into as few sweeps as fit the memory of a worker."""

        def check(one: GridSweep) -> None:
            if len(one.kernels) > 1:
                one.require_room(data, partitions, scoring)

        return [one for one, _ in split_to_fit(self, check, GridSweep.halves)]

    def require_room(self, data: SearchData, partitions: Sequence[Partition], scoring: Scoring) -> None:
        """Raise `PlanTooLargeError` unless a worker has the memory for the sweeps of partitions and of their scores."""
        for partition in partitions:
            for statistic in self.statistics(data.targets, partition, len(data.rows), scoring):
                checked_plan(partition.attach(data.rows), statistic)

    def statistics(self, targets: Targets, partition: Partition, rows: int, scoring: Scoring) -> list[Statistic]:
        """Return the statistics of all sweeps."""
        return [self.statistic(targets, partition, rows), *self.of_scores(targets, partition, scoring).values()]

    def of_scores(self, targets: Targets, partition: Partition, scoring: Scoring) -> dict[str, Statistic]:
        """Return the statistics of the sweeps that sum scores, by what they sum, for a plan."""
        found: dict[str, Statistic] = {}
        if scoring.counts:
            found["scores"] = self.grid_scores(targets, partition, scoring)
        if scoring.of_domains:
            found["scores on the target"] = self.domain_scores(targets, partition)
        return found

    def divide(self, data: SearchData, partition: Partition, scoring: Scoring) -> list[tuple[GridSweep, Partition]]:
        """Return the sweeps to evaluate one after the other, each with its folds."""
        return [(self, partition)]

    # -- plan ----------------------------------------------------------------------------------------------------------

    def lines(self, data: SearchData, partition: Partition, scoring: Scoring) -> Iterator[PlanLine]:
        """Plan the sweeps over a partition, except those of values."""
        kernels, candidates = len(self.kernels), len(self.candidates)
        what = f"{kernels} kernel{'s' * (kernels > 1)}, {candidates} candidates, {len(partition.splits)} folds: "
        yield from self.sum_lines(what, data, partition)
        for name, statistic in self.of_scores(data.targets, partition, scoring).items():
            plan = plan_sweep(partition.attach(data.rows), statistic)
            yield PlanLine(f"  {name} of its {candidates} candidates", plan.flops, plan.task_bytes)

    def sum_lines(self, what: str, data: SearchData, partition: Partition) -> Iterator[PlanLine]:
        """Plan the sweeps that solutions need."""
        steps = plan_sweep(partition.attach(data.rows), self.statistic(data.targets, partition, len(data.rows)))
        yield PlanLine(what + f"moments, {steps.flops:.2g} flops", steps.flops, steps.task_bytes)

    # -- solutions -----------------------------------------------------------------------------------------------------

    def solve(self, data: SearchData, partition: Partition, scoring: Scoring) -> list[list[FoldSolutions]]:
        """Return the solutions of each kernel, by fold, from one sweep."""
        # T with TᵀKT = I of each kernel, whose columns also probe the rounding of the sums
        white = [kernel.whiten() for kernel in self.kernels] if self.lead.basis.probed else []
        whitenings = [whitening for _, whitening, _ in white]
        statistic = self.statistic(data.targets, partition, len(data.rows), whitenings)
        # one sweep sums the moments of all kernels by fold
        total = probed_sweep(partition.attach(data.rows), statistic, what="tune").total
        for kernel, (*_, diagnostics) in zip(self.kernels, white, strict=False):
            if kernel.method.whitens:
                diagnostics.warn()
        # those of each kernel, and of all rows for the fit of the best
        groups, problems = statistic.groups, []
        for place, kernel in enumerate(self.kernels):
            own = slice(place * groups, (place + 1) * groups)
            of_kernel = {name: sums if name in GRAPH_SUMS else sums[own] for name, sums in total.items()}
            shift = None if isinstance(kernel.basis, RowBasis) else statistic.features.shift_of(place)
            problems.append(Problem.of_sums(data.inputs, kernel.basis, of_kernel, shift))
            data.keep(kernel, problems[-1], partition, unlabelled=statistic.unlabelled == "keep")
        data.drop_whitenings()

        def solve(place: int, pool: ThreadPoolExecutor) -> list[FoldSolutions]:
            whitening = whitenings[place] if whitenings else None
            members = self.kernels[place].candidates
            own = data, members, problems[place], statistic, whitening, partition, scoring, landmark_folds
            return self.solve_kernel(KernelSums(*own), pool)

        # kernels side by side, as far as their rotated sums fit
        landmark_folds = self.landmark_folds(data, partition)
        beside = _ROTATED_BYTES // (8 * groups * statistic.features.width**2)
        return _side_by_side(solve, len(problems), max(1, min(processors(), beside)))

    def landmark_folds(self, data: SearchData, partition: Partition) -> Array | None:
        """Return the fold that tests the row of each landmark, (m,); None where landmarks stay in all folds."""
        ids, rows = self.lead.basis.ids, partition.attach(data.rows)
        # landmarks that are no rows stay, as do those of semi-supervised methods, which train on held-out rows too
        if ids is None or self.lead.method.semi_supervised or not partition.folds.count:
            return None
        y = rows.take_column("y", ids)
        if y.dtype.kind == "f":
            y = np.where(np.isfinite(y), y, np.nan)
        # rows without a label are in no fold
        return np.where(data.targets.labelled(y, 0), rows.folds_of(partition.folds, ids), -1)

    def solve_kernel(self, sums: KernelSums, pool: ThreadPoolExecutor) -> list[FoldSolutions]:
        """Return the solutions of a kernel, by fold, from its sums."""
        _require_folds(sums)
        return solve_folds(sums, pool)

    def finish(self, data: SearchData, partition: Partition) -> list[list[FoldSolutions]]:
        """Return the solutions by kernel and fold, after further rounds if there are any."""
        return [kernel.solved for kernel in self.kernels]


def kept_landmarks(landmark_folds: Array, partition: Partition, fold: int) -> Array:
    """Return which landmarks are not among the held-out rows of a fold, (m,) bool; `DataError`: none."""
    kept = landmarks_without(landmark_folds, fold)
    if not kept.any():
        raise DataError(
            f"cv: split {partition.splits[fold]} has no landmark among its training rows; use a larger n_landmarks, or "
            "pass landmarks"
        )
    return kept


def _require_folds(sums: KernelSums) -> None:
    """Raise `DataError` unless every fold has rows to train on and to test."""
    total, first = sums.problem.statistics, sums.first_labelled
    n, t, partition = total["n"][first:], total["t"][first:], sums.partition
    if not partition.folds.count:
        sums.problem.require_labels()
        return
    for fold, split in enumerate(partition.splits):
        others = without({"n": n, "t": t}, fold)
        sums.data.require_fold(split, float(n[fold]), float(others["n"][0]), others["t"][0])


def _side_by_side(
    solve: Callable[[int, ThreadPoolExecutor], list[FoldSolutions]], count: int, beside: int
) -> list[list[FoldSolutions]]:
    """Call `solve` for each of `count` kernels, `beside` of them in parallel, with a pool that their folds share."""
    pool, kernels = ThreadPoolExecutor(processors()), ThreadPoolExecutor(beside)
    solved = []
    with spent("solve"), one_thread(), pool, kernels:
        jobs = [kernels.submit(solve, place, pool) for place in range(count)]
        try:
            for place, job in enumerate(jobs):
                emit(Step("solve", place, count))
                solved.append(job.result())
        except BaseException:  # do not wait for kernels and folds that have not started
            for job in jobs:
                job.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    emit(Step("solve", count, count))
    return solved


# -- solves of one kernel, without each fold ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Folds:
    """The labelled rows by fold in the coordinates of some candidates, and `everything`, all rows over the columns.

    `count` is the number of folds; the last of `parts` holds the rows that no fold tests. Without folds, all rows are
    trained on.
    """

    coordinates: Coordinates
    parts: list[Moments]
    everything: Moments
    count: int

    @classmethod
    def of(cls, sums: KernelSums, pool: ThreadPoolExecutor) -> _Folds:
        """Reduce the sums of a kernel to the coordinates of its candidates."""
        problem, lead, first = sums.problem, sums.members[0], sums.first_labelled
        # (n, G, C, s, t, q) of each group, over the columns of the map
        groups = range(len(problem.statistics["n"]))
        raw = [Moments.of(problem.statistics, group, shift=problem.centre) for group in groups]
        most, everything = max(one.solve_settings.n_components or 0 for one in sums.members), add_moments(raw)
        # in which all candidates are ridge: T, or the leading eigenfunctions of all rows
        coordinates = lead.method.coordinates(problem, most, sums.whitening)
        # usually every row is in a fold; the group of those in none is not rotated where it is empty
        folded = raw[first:] if raw[-1].rows else raw[first:-1]
        return cls(coordinates, list(pool.map(coordinates.reduce, folded)), everything, len(raw) - first - 1)

    def train(self, fold: int) -> Moments:
        """Sum up all labelled rows but those of a fold."""
        return add_moments([part for number, part in enumerate(self.parts) if number != fold or not self.count])

    def test(self, fold: int, weights: Array, intercepts: Array) -> list[Tested]:
        """Test candidates, weights (k, r, c) and intercepts (k, c), on the rows of a fold."""
        if not self.count:
            nothing = np.zeros(weights.shape[2])
            return [Tested(0.0, 0.0, nothing, nothing, nothing)] * len(weights)
        return tested(self.parts[fold], squared_errors(self.parts[fold], weights, intercepts))

    def expand(self, weights: Array, intercepts: Array) -> Coefficients:
        """Expand (k, r, c) and (k, c) over the columns of the map: to (p, k·c) and (k·c,)."""
        flat, b = weights.transpose(1, 0, 2).reshape(weights.shape[1], -1), intercepts.ravel()
        return self.coordinates.expand(flat), self.coordinates.intercepts(flat, b)


def tested(moments: Moments, squares: Array) -> list[Tested]:
    """Return the figures of candidates with these squared errors (k, c) on the rows of some moments."""
    spread = total_spread(moments)
    return [Tested(float(moments.n), float(moments.rows), one, spread, moments.q) for one in squares]


def solve_folds(sums: KernelSums, pool: ThreadPoolExecutor) -> list[FoldSolutions]:
    """Solve by fold; one BLAS thread each, so that the bits do not depend on the number of threads."""
    choices = sums.choices(pool)
    if sums.landmark_folds is None:
        return _solve_together(sums, choices, pool)

    def solve(fold: int) -> FoldSolutions:
        own, kept = sums.without_landmarks(fold)
        with ThreadPoolExecutor(1) as inner:
            (solved,) = _solve_together(own, choices[fold : fold + 1], inner)
        if not len(solved.weights):
            return solved
        weights = np.zeros((sums.statistic.features.width, solved.weights.shape[1]))
        weights[kept] = solved.weights
        return replace(solved, weights=weights)

    count = sums.partition.folds.count
    beside = max(1, _FOLD_BYTES // (32 * sums.problem.basis.width**2))  # sums of two groups, twice
    parts = [range(first, min(first + beside, count)) for first in range(0, count, beside)]
    return [fold for part in parts for fold in pool.map(solve, part)]


def _solve_together(
    sums: KernelSums, choices: list[dict[int, Choice]], pool: ThreadPoolExecutor
) -> list[FoldSolutions]:
    """Solve all folds in the same coordinates, with what is chosen without each of them, by place of the candidate."""
    members, problem, whitening = sums.members, sums.problem, sums.whitening
    method, c = members[0].method, problem.statistics["t"].shape[1]
    # errors have a formula, or come from solves of perturbed sums
    estimate = rounding_estimate(problem, whitening)
    perturbs = estimate is not None and not method.has_formula
    expand = sums.scoring.coefficients or perturbs
    width = problem.basis.predicting(sums.statistic.features).width if expand else 0
    folds_or_one = max(1, len(problem.statistics["n"]) - sums.first_labelled - 1)
    solved = [FoldSolutions.of(len(members), width, c) for _ in range(folds_or_one)]
    for places in _by_coordinates(members):
        some = [members[place] for place in places]
        own = replace(sums, members=some)
        # candidates that are ridge in the same coordinates share the rotated sums of each fold
        if not some[0].solve_settings.fit_intercept:
            own = replace(own, problem=problem.of_targets())
        folds = _Folds.of(own, pool)
        rounding = None
        if estimate is not None and whitening is not None and not perturbs:
            rotation = rounding_of_rotation(folds.everything, add_moments(folds.parts), whitening)
            rounding = estimate.with_solve(rotation, folds.everything.rows)
        # a solve of all of them without each fold, and their squared errors on it
        resolves, grids = perturbs or folds.coordinates.blocks, []
        for fold, of_fold in enumerate(choices):
            grid = [_settings(members[place], of_fold.get(place), folds.coordinates) for place in places]
            grids.append(_resolved_grid(folds, grid, fold) if resolves else grid)
        fit = partial(_fit_fold, folds, rounding, sums.scoring, expand)
        results = list(pool.map(fit, range(len(solved)), grids))
        if perturbs:
            _estimate_errors(own, results, grids, pool)
        # to their places among the candidates of the kernel
        columns = np.concatenate([np.arange(place * c, (place + 1) * c) for place in places])
        for out, found, chosen in zip(solved, results, choices, strict=True):
            out.unresolved |= found.unresolved or any(one.unresolved for one in chosen.values())
            for place, test, error in zip(places, found.tested, found.errors, strict=True):
                out.tested[place], out.errors[place] = test, error
            if expand:
                out.weights[:, columns], out.intercepts[columns] = found.weights, found.intercepts
    return solved


def _by_coordinates(members: list[Candidate]) -> list[list[int]]:
    """Group the positions of candidates that are ridge in the same coordinates, with or without an intercept."""
    groups: dict[object, list[int]] = {}
    for place, candidate in enumerate(members):
        method, settings = candidate.method, candidate.solve_settings
        key = (
            *(method.whitens, method.graph.manifold, getattr(method, "view_alpha", None)),
            *(settings.fit_intercept, settings.column_weights),
        )
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _settings(candidate: Candidate, choice: Choice | None, coordinates: Coordinates) -> SolveSettings:
    """Return the settings of a candidate, with what folds have chosen for it."""
    if choice is None:
        return candidate.solve_settings
    block = coordinates.blocks[choice.block] if coordinates.blocks else None
    return replace(candidate.solve_settings, alpha=choice.alpha, block=block)


def _resolved_grid(folds: _Folds, grid: list[SolveSettings], fold: int) -> list[SolveSettings]:
    """Return what is chosen without a fold in numbers, so that perturbed sums are solved with the same ones."""
    if all(one.block is not None if folds.coordinates.blocks else not isinstance(one.alpha, str) for one in grid):
        return grid
    resolved = resolve_gcv(folds.train(fold), grid, folds.coordinates.blocks)
    return [one if one.block is not None else other for one, other in zip(grid, resolved, strict=True)]


def _fit_fold(
    folds: _Folds,
    rounding: RoundingEstimate | None,
    scoring: Scoring,
    expand: bool,
    fold: int,
    grid: Sequence[SolveSettings],
) -> FoldSolutions:
    """Train candidates without a fold, and test them on it."""
    coordinates, train = folds.coordinates, folds.train(fold)
    # (TᵀGT + αI)u = TᵀC of the other folds, for every α
    errors, tests, expanded = list[Errors | None](), list[Tested](), list[Coefficients]()
    for weights, intercepts, own in coordinates.fits(train, grid, rounding):
        errors, tests = errors + own, tests + folds.test(fold, weights, intercepts)
        expanded.append(folds.expand(weights, intercepts) if expand else (weights[0, :0], intercepts.ravel()))
    # GCV of a model without an intercept takes moments about 0
    if coordinates.origin is not None and not grid[0].fit_intercept:
        train = reduce_moments(replace(train, shift=coordinates.origin), Whitening(len(train.G), len(train.G)))
    scores = gcv_scores(train, grid) if scoring.gcv else [float("nan")] * len(grid)
    totals = [float("nan") if error is None else error.total for error in errors]
    figures = [
        replace(one, gcv=score, error=error, allowed=ENOUGH)
        for one, score, error in zip(tests, scores, totals, strict=True)
    ]
    return FoldSolutions(figures, errors, *joined_coefficients(expanded), unresolved=coordinates.unresolved)


def joined_coefficients(fits: Sequence[Coefficients]) -> Coefficients:
    """Return coefficients of several solutions side by side: weights (p, ·) and intercepts (·,)."""
    return np.hstack([weights for weights, _ in fits]), np.concatenate([intercepts for _, intercepts in fits])


def _estimate_errors(
    sums: KernelSums, solved: list[FoldSolutions], grids: list[list[SolveSettings]], pool: ThreadPoolExecutor
) -> None:
    """Note the errors of candidates on all folds, from solves of perturbed sums."""

    # the same solves from perturbed sums
    def solve_other(other: Problem) -> Coefficients:
        folds = _Folds.of(replace(sums, problem=other), pool)
        fits = list(pool.map(partial(solve_fold, folds), range(len(solved))))
        return joined_coefficients(fits)

    def solve_fold(folds: _Folds, fold: int) -> Coefficients:
        try:
            fits = [*folds.coordinates.fits(folds.train(fold), grids[fold], None)]
        except DataError:
            return np.full_like(solved[fold].weights, np.nan), np.full_like(solved[fold].intercepts, np.nan)
        return joined_coefficients([folds.expand(weights, intercepts) for weights, intercepts, _ in fits])

    # how far predictions of all candidates on all folds move, relative to their norm
    fitted = joined_coefficients([(one.weights, one.intercepts) for one in solved])
    problem, k = sums.problem, len(sums.members)
    moments = problem.basis.predicted_from(problem.moments)
    errors = perturbed_errors(problem, sums.whitening, fitted, solve_other, moments, problem.basis, k * len(solved))
    assert errors is not None
    # to each fold those of its candidates
    for fold, out in enumerate(solved):
        own = errors[fold * k : (fold + 1) * k]
        out.errors = list(own)
        out.tested = [
            replace(one, error=error.total, allowed=ENOUGH) for one, error in zip(out.tested, own, strict=True)
        ]
