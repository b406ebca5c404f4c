"""Sweeps that serve several candidates: kernels that share an argument, and the candidates of each kernel.

Candidates that share a kernel share its moments; what is left, α, the number of components and the intercept, costs a
small solve each, on every fold: moments without a fold are the total less those of the fold. The error of a solve has a
formula in whitened coordinates (`solvers.ridge`); eigenfunctions and canonical directions are solved again from
perturbed sums.
Shapes: p columns that solutions have coefficients of, r coordinates, k candidates, c targets, K kernels, F folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
from distributed import Client
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_limits

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.process import processors
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import choose_executor, plan_sweep
from bigkernel.errors import DataError, PlanTooLargeError
from bigkernel.estimators.base import RowsEstimator
from bigkernel.estimators.fit_state import Columns, Inputs, Problem
from bigkernel.estimators.fitting import Method
from bigkernel.estimators.kernel_basis import BasisChoice, LandmarkBasis, RowChoice, of_kernel
from bigkernel.estimators.precision import Coefficients, perturbed_errors, probed_sweep, rounding_estimate, with_probe
from bigkernel.events.job import Step, emit, spent
from bigkernel.kernels.feature_maps import FeatureMap, IdentityMap, LandmarkFamily
from bigkernel.search.scoring import FoldSolutions, Scoring, Tested
from bigkernel.search.splits import Partition, require_fold
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
from bigkernel.solvers.residuals import ENOUGH, SolveDiagnostics
from bigkernel.solvers.ridge import RoundingEstimate, rounding_of_rotation
from bigkernel.solvers.whitening import Whitening, reduce_moments
from bigkernel.statistics.held_out import GridScores
from bigkernel.statistics.moments import Moments, MomentStatistic, Statistic, Targets
from bigkernel.streaming.plan import Plan

T = TypeVar("T")
P = TypeVar("P")
_ROTATED_BYTES = 2**28  # of the folds of kernels that are solved side by side


@dataclass(eq=False)
class Candidate:
    """One point of the grid.

    Attributes
    ----------
    index, params : its number and its parameters
    model, last : an estimator or Pipeline with these parameters, and its last step
    method, columns : of the last step
    solve_settings : in which candidates that share all moments may differ
    basis : the columns, once they are chosen
    choice : of conjugate gradients; None of a direct solve
    """

    index: int
    params: Mapping[str, object]
    model: BaseEstimator
    last: RowsEstimator
    method: Method
    columns: BasisChoice | RowChoice
    solve_settings: SolveSettings
    basis: Columns = field(init=False)
    choice: PreconditionerChoice | None = None


@dataclass(eq=False)
class SearchData:
    """Rows and what they are fitted to, as a fit has them; and what sweeps leave for the fit of the best candidate.

    Attributes
    ----------
    rows, targets, inputs : as of `Training`
    judging : the rows with the weights that scores have
    moments : of all rows, by the identity of the list of a kernel's candidates
    ends : by candidate, a sum of coefficients at which conjugate gradients have ended, and of how many folds
    """

    rows: Rows
    targets: Targets
    inputs: Inputs
    judging: Rows
    moments: dict[int, Problem] = field(default_factory=dict)
    ends: dict[int, tuple[Array, int]] = field(default_factory=dict)

    def keep(self, members: list[Candidate], problem: Problem, partition: Partition, *, unlabelled: bool) -> None:
        """Keep the moments of all rows, as a fit of its own would have them, if there is room."""
        total, sides = problem.statistics, partition.sides
        self.moments.pop(id(members), None)
        held = sum(one.statistics["G"].nbytes for one in self.moments.values())
        room = settings().memory_limit_bytes
        if not partition.whole or held + total["G"][0].nbytes * (1 + unlabelled) > room:
            return
        if sides is not None:
            joined = sides.split_sums(total, sides.folds.count)
        else:
            joined = {name: values[unlabelled:].sum(axis=0, keepdims=True) for name, values in total.items()}
            if unlabelled:
                joined = {name: np.concatenate([total[name][:1], values]) for name, values in joined.items()}
        self.moments[id(members)] = replace(problem, statistics=joined)


@dataclass(frozen=True)
class PlanLine:
    """Sweeps that are planned together: what a user reads, and of each sweep its figures."""

    text: str
    flops: float
    task_bytes: int
    count: int = 1
    driver_bytes: int = 0


def split_to_fit(one: T, check: Callable[[T], P], halves: Callable[[T], Sequence[T]]) -> list[tuple[T, P]]:
    """Return the whole with what `check` says of it, or its halves' halves, as few as fit.

    Raises
    ------
    PlanTooLargeError
        By `check`, where one does not fit that has no halves.
    """
    try:
        return [(one, check(one))]
    except PlanTooLargeError:
        parts = halves(one)
        if not parts:
            raise
    return [found for part in parts for found in split_to_fit(part, check, halves)]


def limit_bytes(rows: Rows) -> int:
    """Return what a worker may take."""
    limit, executor = settings().memory_limit_bytes, choose_executor(rows)
    if isinstance(executor, Client):
        workers = executor.scheduler_info(n_workers=-1)["workers"].values()
        limit = min([limit, *(int(w["memory_limit"] // w["nthreads"]) for w in workers if w["memory_limit"])])
    return limit


def checked_plan(rows: Rows, statistic: Statistic) -> Plan:
    """Return the plan of a sweep; `PlanTooLargeError` unless a worker has the memory for it."""
    plan = plan_sweep(rows, statistic)
    plan.check(limit_bytes(rows), settings().worker_base_bytes)
    return plan


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
    def lead(self) -> Candidate:
        """The first of them."""
        return self.members[0][0]

    @property
    def keeps_moments(self) -> bool:
        """Whether a fit to all rows may go on from the sums."""
        return True

    @property
    def rounds(self) -> int:
        """Most rounds of pseudo-labels of a candidate."""
        return 0

    # -- what is summed ------------------------------------------------------------------------------------------------

    @property
    def features(self) -> FeatureMap:
        """The feature map: one block a kernel."""
        basis = self.lead.basis
        if len(self.members) == 1 or not isinstance(basis, LandmarkBasis):
            return basis.features()
        kernels = tuple(of_kernel(one[0].basis).kernel for one in self.members)
        return LandmarkFamily(kernels, basis.landmarks, np.dtype(basis.dtype))

    @property
    def predicting(self) -> FeatureMap:
        """The part of the feature map that solutions have coefficients of."""
        return self.lead.method.predicting(self.features)

    def statistic(
        self, targets: Targets, partition: Partition, rows: int, whitenings: Sequence[Whitening] = ()
    ) -> MomentStatistic:
        """Return the moments of all kernels, by fold; with their whitenings, a probe sees them."""
        basis, features = self.lead.basis, self.features
        if isinstance(features, LandmarkFamily):
            features = replace(features, shifts=np.stack([_shift(one[0]) for one in self.members]))
        else:
            features = basis.centred()
        unlabelled, sums = self.lead.method.unlabelled, basis.sum_dtype
        statistic = MomentStatistic(features, targets, unlabelled, partition.folds, sums=sums)
        return with_probe(statistic, whitenings, rows) if self.lead.method.probed else statistic

    def grid_scores(self, targets: Targets, partition: Partition, scoring: Scoring, *fits: Array) -> GridScores:
        """Return the scores of all candidates by fold; without weights and intercepts it serves a plan."""
        weights, intercepts = fits or self.zeros(targets, partition)
        return GridScores(self.predicting, weights, intercepts, partition.folds, targets, scoring.loss)

    def zeros(self, targets: Targets, partition: Partition) -> tuple[Array, Array]:
        """Return weights (K, F, p, k·c) and intercepts (K, F, k·c) of nothing, which take no memory."""
        wide = max(len(members) for members in self.members) * targets.width
        shape = (len(self.members), partition.folds.count, self.predicting.width, wide)
        return np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (*shape[:2], wide))

    # -- what fits -----------------------------------------------------------------------------------------------------

    def by_precision(self) -> list[Sweep]:
        """Return a sweep for each precision that its kernels are in; itself where there is one."""
        groups: dict[object, list[list[Candidate]]] = {}
        for members in self.members:
            basis = members[0].basis
            key = (basis.dtype, basis.sums) if isinstance(basis, LandmarkBasis) else None
            groups.setdefault(key, []).append(members)
        return [replace(self, members=members) for members in groups.values()]

    def halves(self) -> list[Sweep]:
        """Return two sweeps of half the kernels each; nothing of one kernel."""
        middle = len(self.members) // 2
        both = (self.members[:middle], self.members[middle:])
        return [replace(self, members=half) for half in both] if middle else []

    def within_memory(self, data: SearchData, parts: Sequence[Partition], scoring: Scoring) -> list[Sweep]:
        """Return itself, or several sweeps of fewer kernels where one would not fit the memory of a worker."""

        def check(one: Sweep) -> None:
            if len(one.members) > 1:
                one.require_room(data, parts, scoring)

        return [one for one, _ in split_to_fit(self, check, Sweep.halves)]

    def require_room(self, data: SearchData, parts: Sequence[Partition], scoring: Scoring) -> None:
        """Raise `PlanTooLargeError` unless a worker has the memory for a sweep of these parts and of its scores."""
        for partition in parts:
            for statistic in self.statistics(data.targets, partition, len(data.rows), scoring):
                checked_plan(partition.attach(data.rows), statistic)

    def statistics(self, targets: Targets, partition: Partition, rows: int, scoring: Scoring) -> list[Statistic]:
        """Return all that is summed."""
        scores = [self.grid_scores(targets, partition, scoring)] if scoring.counts else []
        return [self.statistic(targets, partition, rows), *scores]

    def divide(self, data: SearchData, partition: Partition, scoring: Scoring) -> list[tuple[Sweep, Partition]]:
        """Return what is judged together, of all folds."""
        return [(self, partition)]

    # -- its plan ------------------------------------------------------------------------------------------------------

    def lines(self, data: SearchData, partition: Partition, scoring: Scoring) -> Iterator[PlanLine]:
        """Plan the sweeps over a partition, without those of values."""
        kernels, candidates = len(self.members), len(self.candidates)
        what = f"{kernels} kernel{'s' * (kernels > 1)}, {candidates} candidates, {len(partition.splits)} folds: "
        yield from self.sum_lines(what, data, partition)
        if scoring.counts:
            scores = self.grid_scores(data.targets, partition, scoring)
            counting = plan_sweep(partition.attach(data.rows), scores)
            yield PlanLine(f"  scores of its {candidates} candidates", counting.flops, counting.task_bytes)

    def sum_lines(self, what: str, data: SearchData, partition: Partition) -> Iterator[PlanLine]:
        """Plan what solutions are made of."""
        steps = plan_sweep(partition.attach(data.rows), self.statistic(data.targets, partition, len(data.rows)))
        yield PlanLine(what + f"moments, {steps.flops:.2g} flops", steps.flops, steps.task_bytes)

    # -- its solutions -------------------------------------------------------------------------------------------------

    def solve(self, data: SearchData, partition: Partition, scoring: Scoring) -> list[list[FoldSolutions]]:
        """Return the solutions of each kernel, by fold, from one sweep."""
        whitenings, noted = self._whiten()
        statistic = self.statistic(data.targets, partition, len(data.rows), whitenings)
        total = probed_sweep(partition.attach(data.rows), statistic, what="tune").total
        for diagnostics in noted:
            diagnostics.warn()
        groups, problems = statistic.groups, []
        for place, members in enumerate(self.members):
            of_kernel = {name: values[place * groups : (place + 1) * groups] for name, values in total.items()}
            problems.append(Problem.of_sums(data.inputs, members[0].basis, of_kernel, _about(statistic, place)))
            data.keep(members, problems[-1], partition, unlabelled=statistic.unlabelled == "keep")

        def solve(place: int, pool: ThreadPoolExecutor) -> list[FoldSolutions]:
            whitening = whitenings[place] if whitenings else None
            return self.solve_kernel(place, problems[place], statistic, whitening, partition, scoring, pool)

        beside = _ROTATED_BYTES // (8 * groups * statistic.features.width**2)
        return _side_by_side(solve, len(problems), max(1, min(processors(), beside)))

    def _whiten(self) -> tuple[list[Whitening], list[SolveDiagnostics]]:
        """Return the whitening of each kernel, where their sums are probed; and what is to be warned of."""
        if not self.lead.method.probed:
            return [], []
        # one that whitens to solve tells the whitening, wherever it stands in the grid
        leads = [next((c.method for c in members if c.method.whitens), members[0].method) for members in self.members]
        diagnostics = [SolveDiagnostics() for _ in leads]
        with threadpool_limits(limits=1, user_api="blas"):  # the same bits however many there are, as in the solves
            found = [
                method.whiten(members[0].basis, noted)
                for members, method, noted in zip(self.members, leads, diagnostics, strict=True)
            ]
        return found, [noted for method, noted in zip(leads, diagnostics, strict=True) if method.whitens]

    def solve_kernel(
        self,
        place: int,
        problem: Problem,
        statistic: MomentStatistic,
        whitening: Whitening | None,
        partition: Partition,
        scoring: Scoring,
        pool: ThreadPoolExecutor,
    ) -> list[FoldSolutions]:
        """Return the solutions of a kernel, by fold, from its sums."""
        _require_folds(problem, partition, statistic)
        return solve_folds(self.members[place], problem, statistic, whitening, scoring, pool)

    def finish(
        self, data: SearchData, partition: Partition, solved: list[list[FoldSolutions]]
    ) -> list[list[FoldSolutions]]:
        """Return the solutions after what follows the last solve."""
        return solved


def _shift(candidate: Candidate) -> Array:
    assert isinstance(candidate.basis, LandmarkBasis)
    return candidate.basis.shift


def _about(statistic: MomentStatistic, place: int) -> Array | None:
    """What the moments of a kernel are about, (p,); None: those of rows themselves, which stay about their point."""
    features = statistic.features
    if isinstance(features, IdentityMap):
        return None
    return features.shift_of(place)


def _require_folds(problem: Problem, partition: Partition, statistic: MomentStatistic) -> None:
    """Raise `DataError` unless every fold has what it is trained and tested on."""
    total, first = problem.statistics, int(statistic.unlabelled == "keep")
    n, t, classes = total["n"][first:], total["t"][first:], statistic.targets is not None and statistic.targets.classes
    if not partition.folds.count:
        problem.require_labels()
        return
    for fold, split in enumerate(partition.splits):
        others = np.arange(len(n)) != fold
        known = None if classes is None or classes is False else t[others].sum(axis=0)
        require_fold(split, float(n[fold]), float(n[others].sum()), known)


def _side_by_side(
    solve: Callable[[int, ThreadPoolExecutor], list[FoldSolutions]], count: int, beside: int
) -> list[list[FoldSolutions]]:
    """What `solve` makes of each of `count` kernels, `beside` of them at a time, with a pool that their folds share."""
    pool, kernels = ThreadPoolExecutor(processors()), ThreadPoolExecutor(beside)
    solved = []
    with spent("solve"), threadpool_limits(limits=1, user_api="blas"), pool, kernels:
        jobs = [kernels.submit(solve, place, pool) for place in range(count)]
        try:
            for place, job in enumerate(jobs):
                emit(Step("solve", place, count))
                solved.append(job.result())
        except BaseException:  # what has not begun need not be waited for, nor the folds of what has
            for job in jobs:
                job.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    emit(Step("solve", count, count))
    return solved


# -- solves of one kernel, without each fold ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Folds:
    """The labelled rows by fold in the coordinates of some candidates, and `everything`, all rows, as they are.

    `count` of the folds; the last part is of rows that no fold tests. Without folds, all rows are trained on.
    """

    coordinates: Coordinates
    parts: list[Moments]
    everything: Moments
    count: int

    @classmethod
    def of(
        cls, some: list[Candidate], problem: Problem, first: int, whitening: Whitening | None, pool: ThreadPoolExecutor
    ) -> _Folds:
        """Of the sums of a kernel, whose labelled rows begin with the group `first`."""
        groups = range(len(problem.statistics["n"]))
        raw = [Moments.of(problem.statistics, group, shift=problem.centre) for group in groups]
        most, everything = max(one.solve_settings.n_components or 0 for one in some), add_moments(raw)
        coordinates = some[0].method.coordinates(some[0].basis, everything, most, whitening)
        # mostly every row is in a fold, and what is in none need not be rotated
        folded = raw[first:] if raw[-1].rows else raw[first:-1]
        return cls(coordinates, list(pool.map(coordinates.reduce, folded)), everything, len(raw) - first - 1)

    def train(self, fold: int) -> Moments:
        """All labelled rows but those of a fold."""
        return add_moments([part for number, part in enumerate(self.parts) if number != fold or not self.count])

    def test(self, fold: int, weights: Array, intercepts: Array) -> list[Tested]:
        """Candidates, weights (k, r, c) and intercepts (k, c), on the rows of a fold."""
        if not self.count:
            nothing = np.zeros(weights.shape[2])
            return [Tested(0.0, 0.0, nothing, nothing, nothing)] * len(weights)
        return tested(self.parts[fold], squared_errors(self.parts[fold], weights, intercepts))

    def expanded(self, weights: Array, intercepts: Array) -> Coefficients:
        """(p, k·c) and (k·c,), over the columns of the map, of (k, r, c) and (k, c)."""
        flat, b = weights.transpose(1, 0, 2).reshape(weights.shape[1], -1), intercepts.ravel()
        return self.coordinates.expand(flat), self.coordinates.intercepts(flat, b)


def tested(moments: Moments, squares: Array) -> list[Tested]:
    """Return the figures of candidates on the rows of these moments, of which they leave `squares` (k, c)."""
    spread = total_spread(moments)
    return [Tested(float(moments.n), float(moments.rows), one, spread, moments.q) for one in squares]


def solve_folds(
    members: list[Candidate],
    swept: Problem,
    statistic: MomentStatistic,
    whitening: Whitening | None,
    scoring: Scoring,
    pool: ThreadPoolExecutor,
) -> list[FoldSolutions]:
    """Solve by fold; one BLAS thread each, so that the bits do not depend on how many there are."""
    method, c, first = members[0].method, swept.statistics["t"].shape[1], int(statistic.unlabelled == "keep")
    estimate = rounding_estimate(swept, whitening)
    by_draw = estimate is not None and not method.has_formula
    expand = scoring.coefficients or by_draw
    width = method.predicting(statistic.features).width if expand else 0
    folds_or_one = max(1, len(swept.statistics["n"]) - first - 1)
    solved = [FoldSolutions.of(len(members), width, c) for _ in range(folds_or_one)]
    for places in _alike(members):
        some = [members[place] for place in places]
        problem = swept if some[0].solve_settings.fit_intercept else swept.of_targets()
        folds = _Folds.of(some, problem, first, whitening, pool)
        known = None
        if estimate is not None and whitening is not None and not by_draw:
            rotation = rounding_of_rotation(folds.everything, add_moments(folds.parts), whitening)
            known = estimate.with_solve(rotation, folds.everything.rows)
        grids = [
            _resolved_grid(folds, some, fold) if by_draw else [one.solve_settings for one in some]
            for fold in range(len(solved))
        ]
        fit = partial(_fit_fold, folds, known, scoring, expand)
        found = list(pool.map(fit, range(len(solved)), grids))
        if by_draw:
            _estimate(some, problem, found, grids, first, whitening, pool)
        columns = np.concatenate([np.arange(place * c, (place + 1) * c) for place in places])
        for out, of_fold in zip(solved, found, strict=True):
            out.unresolved |= of_fold.unresolved
            for place, test, error in zip(places, of_fold.tested, of_fold.errors, strict=True):
                out.tested[place], out.errors[place] = test, error
            if expand:
                out.weights[:, columns], out.intercepts[columns] = of_fold.weights, of_fold.intercepts
    return solved


def _alike(members: list[Candidate]) -> list[list[int]]:
    """Positions of candidates that are ridge in the same coordinates, with or without an intercept."""
    groups: dict[object, list[int]] = {}
    for place, candidate in enumerate(members):
        groups.setdefault((candidate.method.whitens, candidate.solve_settings.fit_intercept), []).append(place)
    return list(groups.values())


def _resolved_grid(folds: _Folds, some: list[Candidate], fold: int) -> list[SolveSettings]:
    """With the numbers that are chosen on a fold, so that moved sums are solved with the same."""
    grid = [one.solve_settings for one in some]
    if not any(isinstance(one.alpha, str) for one in grid):
        return grid
    return resolve_gcv(folds.train(fold), grid)


def _fit_fold(
    folds: _Folds,
    known: RoundingEstimate | None,
    scoring: Scoring,
    expand: bool,
    fold: int,
    grid: Sequence[SolveSettings],
) -> FoldSolutions:
    """Candidates trained on all parts but one and tested on that one."""
    coordinates, train = folds.coordinates, folds.train(fold)
    weights, intercepts, errors = coordinates.fit(train, grid, known)
    if coordinates.origin is not None and not grid[0].fit_intercept:
        train = reduce_moments(replace(train, shift=coordinates.origin), Whitening(len(train.G), len(train.G)))
    scores = gcv_scores(train, grid) if scoring.gcv else [None] * len(grid)
    totals = [float("nan") if error is None else error.total for error in errors]
    found = [
        replace(one, gcv=score, error=error, allowed=ENOUGH)
        for one, score, error in zip(folds.test(fold, weights, intercepts), scores, totals, strict=True)
    ]
    expanded = folds.expanded(weights, intercepts) if expand else (weights[0, :0], intercepts.ravel())
    return FoldSolutions(found, errors, *expanded, unresolved=coordinates.unresolved)


def _estimate(
    some: list[Candidate],
    problem: Problem,
    found: list[FoldSolutions],
    grids: list[list[SolveSettings]],
    first: int,
    whitening: Whitening | None,
    pool: ThreadPoolExecutor,
) -> None:
    """Note the errors of candidates on all folds, from solves of perturbed sums."""

    def solve_other(other: Problem) -> Coefficients:
        folds = _Folds.of(some, other, first, whitening, pool)
        fits = list(pool.map(partial(solve_fold, folds), range(len(found))))
        return np.hstack([weights for weights, _ in fits]), np.concatenate([intercepts for _, intercepts in fits])

    def solve_fold(folds: _Folds, fold: int) -> Coefficients:
        try:
            weights, intercepts, _ = folds.coordinates.fit(folds.train(fold), grids[fold])
        except DataError:
            return np.full_like(found[fold].weights, np.nan), np.full_like(found[fold].intercepts, np.nan)
        return folds.expanded(weights, intercepts)

    fitted = np.hstack([one.weights for one in found]), np.concatenate([one.intercepts for one in found])
    moments, k = some[0].method.predicted_from(problem), len(some)
    errors = perturbed_errors(problem, whitening, fitted, solve_other, moments, problem.basis, k * len(found))
    assert errors is not None
    for fold, out in enumerate(found):
        own = errors[fold * k : (fold + 1) * k]
        out.errors = list(own)
        out.tested = [
            replace(one, error=error.total, allowed=ENOUGH) for one, error in zip(out.tested, own, strict=True)
        ]
