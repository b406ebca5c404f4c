"""The sweeps and solves that judge candidates which share their rows.

Candidates that share a kernel share its moments; what is left, α, the number of components and the intercept, costs a
small solve each, on every fold. Each solve knows how far the rounding of the moments has moved it: least squares in
whitened coordinates have a formula for that (`solvers.accuracy`), eigenfunctions and canonical directions are solved
once more from perturbed sums (`solvers.accuracy`). Kernels of candidates that are moved too far are swept again in
the next precision. Scores that need predictions take one sweep more, or as many as memory asks for.
Shapes: p columns that solutions have coefficients of, r coordinates, k candidates, c targets, K kernels, F folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.context import processors
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import DataError, PlanTooLarge
from bigkernel.estimators.base import restore
from bigkernel.estimators.fit_state import Inputs, Problem, Training
from bigkernel.estimators.precision import estimate_errors, evidence_of, next_precision, probed_sweep
from bigkernel.estimators.ridge import fit_by_cg
from bigkernel.events.kinds import Note, Step
from bigkernel.events.scope import emit, spent
from bigkernel.search.adapting import adapted, begun
from bigkernel.search.candidates import (
    Candidate,
    Descents,
    SidedSweep,
    Sweep,
    about,
    by_ridge,
    fits,
    limit_bytes,
    within_memory,
)
from bigkernel.search.conjugate_gradients import solve_folds_by_cg
from bigkernel.search.scorers import TestedRows
from bigkernel.search.scoring import Scoring, Solved, Tested
from bigkernel.search.splits import Partition, require_fold
from bigkernel.solvers.accuracy import changes
from bigkernel.solvers.penalty_grid import (
    Coordinates,
    Penalty,
    gcv_scores,
    settled,
    squared_errors,
    summed,
    total_spread,
)
from bigkernel.solvers.residuals import ENOUGH, PROMISE, Certificates
from bigkernel.solvers.ridge import RoundingEstimate, rounding_of_rotation
from bigkernel.solvers.whitening import Whitening, reduced
from bigkernel.statistics.held_out import FoldValues
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Plan


@dataclass(frozen=True, eq=False)
class _Folds:
    """The labelled rows by fold in the coordinates of some candidates, and `everything`, all rows, as they are."""

    coordinates: Coordinates
    parts: list[Moments]
    everything: Moments

    @classmethod
    def of(
        cls, some: list[Candidate], problem: Problem, first: int, whitening: Whitening | None, pool: ThreadPoolExecutor
    ) -> _Folds:
        """Of the sums of a kernel, whose labelled rows begin with the group `first`."""
        groups = range(len(problem.statistics["n"]))
        raw = [Moments.of(problem.statistics, group, shift=problem.centre) for group in groups]
        most, everything = max(one.penalty.n_components or 0 for one in some), summed(raw)
        coordinates = some[0].method.coordinates(some[0].basis, everything, most, whitening)
        # mostly every row is in a fold, and what is in none need not be rotated
        folded = raw[first:] if raw[-1].rows else raw[first:-1]
        return cls(coordinates, list(pool.map(coordinates.reduce, folded)), everything)

    def train(self, fold: int) -> Moments:
        """All labelled rows but those of a fold."""
        return summed([part for number, part in enumerate(self.parts) if number != fold])

    def expanded(self, weights: Array, intercepts: Array) -> tuple[Array, Array]:
        """(p, k·c) and (k·c,), over the columns of the map, of (k, r, c) and (k, c)."""
        flat, b = weights.transpose(1, 0, 2).reshape(weights.shape[1], -1), intercepts.ravel()
        return self.coordinates.expand(flat), self.coordinates.intercepts(flat, b)


def solve_folds(
    members: list[Candidate],
    swept: Problem,
    statistic: MomentStatistic,
    whitening: Whitening | None,
    scoring: Scoring,
    pool: ThreadPoolExecutor,
) -> list[Solved]:
    """By fold; one BLAS thread each, so that the bits do not depend on how many there are."""
    method, c, first = members[0].method, swept.statistics["t"].shape[1], int(statistic.unlabelled == "keep")
    evidence = evidence_of(swept, whitening)
    by_draw = evidence is not None and not method.has_formula
    expand = scoring.coefficients or by_draw
    width = method.predicting(statistic.features).width if expand else 0
    solved = [Solved.of(len(members), width, c) for _ in range(len(swept.statistics["n"]) - first - 1)]
    for places in _alike(members):
        some = [members[place] for place in places]
        problem = swept if some[0].penalty.fit_intercept else swept.of_targets()
        folds = _Folds.of(some, problem, first, whitening, pool)
        known = None
        if evidence is not None and whitening is not None and not by_draw:
            known = evidence.with_solve(
                rounding_of_rotation(folds.everything, summed(folds.parts), whitening), folds.everything.rows
            )
        penalties = [
            _penalties(folds, some, fold) if by_draw else [one.penalty for one in some] for fold in range(len(solved))
        ]
        fit = partial(_fit_fold, folds, known, scoring, expand)
        found = list(pool.map(fit, range(len(solved)), penalties))
        if by_draw:
            _estimate(some, problem, folds, found, penalties, first, whitening, pool)
        columns = np.concatenate([np.arange(place * c, (place + 1) * c) for place in places])
        for out, of_fold in zip(solved, found, strict=True):
            out.hidden |= of_fold.hidden
            for place, tested, error in zip(places, of_fold.tested, of_fold.errors, strict=True):
                out.tested[place], out.errors[place] = tested, error
            if expand:
                out.weights[:, columns], out.intercepts[columns] = of_fold.weights, of_fold.intercepts
    return solved


def _penalties(folds: _Folds, some: list[Candidate], fold: int) -> list[Penalty]:
    """With the numbers that are chosen on a fold, so that moved sums are solved with the same."""
    penalties = [one.penalty for one in some]
    if not any(isinstance(penalty.alpha, str) for penalty in penalties):
        return penalties
    return settled(folds.train(fold), penalties)


def _estimate(
    some: list[Candidate],
    problem: Problem,
    folds: _Folds,
    found: list[Solved],
    penalties: list[list[Penalty]],
    first: int,
    whitening: Whitening | None,
    pool: ThreadPoolExecutor,
) -> None:
    """Note the errors of candidates, from solves of sums that are moved as rounding moved them."""
    method, basis, k = some[0].method, problem.basis, len(some)
    total, glance = method.predicted_from(problem), basis.glance()
    seen = None if glance is None else glance[0][:, : len(total.s)]

    def changed(sums: Accumulator) -> Array:
        """(F·k,)."""
        moved = replace(problem, statistics=sums)
        try:
            others = _Folds.of(some, moved, first, whitening, pool)
        except DataError:  # they cannot be solved from
            return np.full(k * len(found), np.inf)
        return np.concatenate(list(pool.map(partial(of_fold, others), range(len(found)))))

    def of_fold(others: _Folds, fold: int) -> Array:
        try:
            weights, intercepts, _ = others.coordinates.fit(others.train(fold), penalties[fold])
        except DataError:
            return np.full(k, np.inf)
        fit = found[fold].weights, found[fold].intercepts
        return changes(total, fit, others.expanded(weights, intercepts), k, seen=seen)

    errors = estimate_errors(problem, whitening, changed)
    assert errors is not None
    for fold, out in enumerate(found):
        out.errors = list(errors[fold * k : (fold + 1) * k])
        out.tested = [
            replace(tested, error=error.total, allowed=ENOUGH)
            for tested, error in zip(out.tested, errors[fold * k : (fold + 1) * k], strict=True)
        ]


def _fit_fold(
    folds: _Folds,
    known: RoundingEstimate | None,
    scoring: Scoring,
    expand: bool,
    fold: int,
    penalties: Sequence[Penalty],
) -> Solved:
    """Candidates trained on all parts but one and tested on that one."""
    coordinates, train, one = folds.coordinates, folds.train(fold), folds.parts[fold]
    weights, intercepts, errors = coordinates.fit(train, penalties, known)
    if coordinates.origin is not None and not penalties[0].fit_intercept:
        train = reduced(replace(train, shift=coordinates.origin), Whitening(len(train.G), len(train.G)))
    scores = gcv_scores(train, penalties) if scoring.gcv else [None] * len(penalties)
    told = [float("nan") if error is None else error.total for error in errors]
    tested = [
        replace(of_test, gcv=score, error=error, allowed=ENOUGH)
        for of_test, score, error in zip(
            _tested(one, squared_errors(one, weights, intercepts)), scores, told, strict=True
        )
    ]
    expanded = folds.expanded(weights, intercepts) if expand else (weights[0, :0], intercepts.ravel())
    return Solved(tested, errors, *expanded, hidden=coordinates.hidden)


def _tested(moments: Moments, squares: Array) -> list[Tested]:
    """Candidates on the rows of these moments, of which they leave `squares` (k, c)."""
    spread = total_spread(moments)
    return [Tested(float(moments.n), float(moments.rows), one, spread, moments.q) for one in squares]


def _alike(members: list[Candidate]) -> list[list[int]]:
    """Positions of candidates that are ridge in the same coordinates, with or without an intercept."""
    groups: dict[Any, list[int]] = {}
    for place, candidate in enumerate(members):
        key = (candidate.method.whitens, candidate.penalty.fit_intercept)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


Scores = dict[tuple[int, int], dict[str, float]]  # by candidate and fold


@dataclass(eq=False)
class SearchTraining:
    """Rows, and what they are fitted to, as a fit of its own has them; `judging`: with the weights that scores have."""

    rows: Rows
    targets: Targets
    inputs: Inputs
    judging: Rows


def batches(one: Sweep, partition: Partition, work: SearchTraining, scoring: Scoring) -> list[tuple[Sweep, Plan]]:
    """Sweeps of some candidates each, whose values fit the memory of a worker and of this process.

    Raises
    ------
    PlanTooLarge
        Those of one candidate do not.
    """
    statistic = _statistic(one, partition, work, *one.zeros(work.targets, partition))
    plan, room = plan_sweep(partition.attach(work.rows), statistic), settings().memory_limit_bytes
    try:
        if 2 * plan.partial_bytes > room:  # the sum of two parts, and the parts
            raise PlanTooLarge(
                f"{2 * plan.partial_bytes / 1e6:,.0f} MB of values, and {room / 1e6:,.0f} MB are allowed"
            )
        plan.check(limit_bytes(work.rows), settings().worker_base_bytes)
    except PlanTooLarge as error:
        if len(one.candidates) == 1:
            raise PlanTooLarge(
                f"scoring: {', '.join(scoring.scorers)} need the values of a candidate at all held-out rows at once, "
                f"which memory does not hold ({error}); take a score that sums over rows (accuracy, r2, ...), or hold "
                "fewer rows out (cv=0.1)"
            ) from error
        halves = [Sweep([part]) for part in _halved(one.members[0])] if len(one.members) == 1 else one.halves()
        return [found for half in halves for found in batches(Sweep(half.members), partition, work, scoring)]
    return [(one, plan)]


def value_scores(
    one: Sweep, partition: Partition, work: SearchTraining, found: list[list[Solved]], scoring: Scoring
) -> Scores:
    """The scores of all candidates that need values of f, from a sweep or several."""
    where = {candidate.index: place for place, candidate in _places(one)}
    scores: Scores = {}
    for some, _ in batches(Sweep(one.members), partition, work, scoring):
        weights, intercepts = coefficients(some, partition, work, found, where)
        statistic = _statistic(some, partition, work, weights, intercepts)
        total = sweep(partition.attach(work.judging), statistic, what="values").total
        order = np.argsort(total["row"], kind="stable")
        rows = TestedRows.of(work.judging, work.targets, work.inputs, total["row"][order].astype(np.int64))
        fold, c = total["fold"][order].astype(np.int64), work.targets.width
        for (place, number), candidate in _places(some):
            values = total["values"][order][:, place, number * c : (number + 1) * c]
            for own in range(partition.folds.count):
                tested = fold == own
                scores[candidate.index, own] = rows.at(tested).scored(scoring, values[tested])
    return scores


def coefficients(
    one: Sweep, partition: Partition, work: SearchTraining, found: list[list[Solved]], where: dict[int, tuple[int, int]]
) -> tuple[Array, Array]:
    """Weights (K, F, p, k·c) and intercepts (K, F, k·c) of some of the candidates that were solved, where they stand.

    Intercepts are of the targets as they were given.
    """
    weights, intercepts = (np.array(values) for values in one.zeros(work.targets, partition))
    c, shift = work.targets.width, work.targets.shift
    for (place, number), candidate in _places(one):
        kernel, column = where[candidate.index]
        here, there = slice(number * c, (number + 1) * c), slice(column * c, (column + 1) * c)
        for fold, out in enumerate(found[kernel]):
            weights[place, fold, :, here], intercepts[place, fold, here] = out.weights[:, there], out.intercepts[there]
            if shift is not None and candidate.penalty.fit_intercept:
                intercepts[place, fold, here] += shift
    return weights, intercepts


def _places(one: Sweep) -> Iterator[tuple[tuple[int, int], Candidate]]:
    """(kernel, place among its candidates) of each candidate."""
    for place, members in enumerate(one.members):
        for number, candidate in enumerate(members):
            yield (place, number), candidate


def _halved(members: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    return members[: len(members) // 2], members[len(members) // 2 :]


def _statistic(one: Sweep, partition: Partition, work: SearchTraining, weights: Array, intercepts: Array) -> FoldValues:
    return FoldValues(one.predicting, weights, intercepts, partition.folds, work.targets, len(work.rows))


_ROTATED_BYTES = 2**28  # of the folds of kernels that are solved side by side


@dataclass(eq=False)
class Work(SearchTraining):
    """Rows, what they are fitted to, and the sweeps over them.

    Attributes
    ----------
    partitions : of the folds
    sweeps : in the order they run
    """

    partitions: list[Partition]
    sweeps: list[Sweep]
    kept: dict[int, Problem] = field(default_factory=dict)
    starts: dict[int, tuple[Array, int]] = field(default_factory=dict)  # of candidates: a sum of coefficients, of folds

    def run(self, scoring: Scoring) -> Iterator[tuple[Candidate, int, Tested]]:
        """Judge every candidate on every split; the totals of kernels that fit in memory are kept for the refit."""
        for one in self.sweeps:
            for partition in self.partitions:
                if isinstance(one, Descents):
                    for some, folds in one.at_once(self.rows, self.targets, partition, scoring):
                        yield from self._judge(some, folds, scoring)
                    continue
                # the partition before may have found that some of its kernels need better arithmetic
                for part in one.by_arithmetic():
                    for fitting in within_memory(part, self.rows, self.targets, [partition], scoring):
                        yield from self._judge(fitting, partition, scoring)

    def _judge(self, one: Sweep, partition: Partition, scoring: Scoring) -> Iterator[tuple[Candidate, int, Tested]]:
        """Sweep, solve and test; kernels whose moments prove too coarse once more, in better arithmetic."""
        if isinstance(one, Descents):
            solved = {id(one.members[0]): self._descend(one, partition)}
        else:
            solved = self._solve_all(one, partition, scoring)
        again = self._again(one, partition, solved, scoring)
        for finer in again:
            yield from self._judge(finer, partition, scoring)
        done = {id(members) for finer in again for members in finer.members}
        rest = replace(one, members=[members for members in one.members if id(members) not in done])
        if not rest.members:
            return
        found = [solved[id(members)] for members in rest.members]
        if isinstance(rest, SidedSweep):
            found = [adapted(rest, partition, self.rows, found[0])]
        counted = self._count(rest, partition, found, scoring) if scoring.counts else {}
        scored = value_scores(rest, partition, self, found, scoring) if scoring.scorers else {}
        for place, members in enumerate(rest.members):
            for number, candidate in enumerate(members):
                for fold, split in enumerate(partition.splits):
                    tested = found[place][fold].tested[number]
                    tested = _with_counts(tested, counted, (place, fold, number))
                    scores = scored.get((candidate.index, fold), {})
                    yield candidate, split, replace(tested, scored=scores)

    def _solve_all(self, one: Sweep, partition: Partition, scoring: Scoring) -> dict[int, list[Solved]]:
        """One sweep, and the solves of each kernel, by fold; known by the list of its candidates."""
        # one that whitens to solve tells the whitening, wherever it stands in the grid
        leads = [
            next((c.method for c in members if c.method.whitens), members[0].method)
            for members in one.members
            if one.lead.method.probed
        ]
        certificates = [Certificates() for _ in leads]
        with threadpool_limits(limits=1, user_api="blas"):  # the same bits however many there are, as in the solves
            whitenings = [
                method.whiten(members[0].basis, noted)
                for members, method, noted in zip(one.members, leads, certificates, strict=False)
            ]
        known = [whitening for whitening in whitenings if whitening is not None]
        statistic = one.statistic(self.targets, partition, len(self.rows), known)
        total = probed_sweep(partition.attach(self.rows), statistic, what="tune").total
        for method, noted in zip(leads, certificates, strict=True):
            if method.whitens:
                noted.warn()
        groups, problems = statistic.groups, []
        for place, members in enumerate(one.members):
            of_kernel = {name: values[place * groups : (place + 1) * groups] for name, values in total.items()}
            problems.append(Problem.of_sums(self.inputs, members[0].basis, of_kernel, about(statistic, place)))
            self._keep(members, problems[-1], partition, statistic)

        def solve(place: int, pool: ThreadPoolExecutor) -> list[Solved]:
            problem, whitening = problems[place], whitenings[place] if whitenings else None
            if isinstance(one, SidedSweep):
                assert whitening is not None
                return begun(one, partition, problem, whitening, pool)
            self._require_folds(problem, partition, statistic)
            return solve_folds(one.members[place], problem, statistic, whitening, scoring, pool)

        beside = _ROTATED_BYTES // (8 * groups * statistic.features.width**2)
        solved = _side_by_side(solve, len(problems), max(1, min(processors(), beside)))
        return {id(members): of_kernel for members, of_kernel in zip(one.members, solved, strict=True)}

    def _descend(self, one: Descents, partition: Partition) -> list[Solved]:
        """The descents of all candidates on all folds, by fold; where they end, a fit to all rows may begin."""
        solved, steps = solve_folds_by_cg(one, partition, self.rows, self.targets, self.inputs)
        count = f"{len(one.candidates)} penalties and {len(partition.splits)} folds of a kernel"
        emit(Note(f"{count} descended side by side in {steps} steps"))
        c, width = self.targets.width, int(one.lead.basis.width)
        for place, candidate in enumerate(one.candidates):
            if 8 * width * c * (len(self.starts) + 1) > settings().memory_limit_bytes:
                break
            ends = [fold.weights[:, place * c : (place + 1) * c] for fold in solved]
            before, splits = self.starts.get(candidate.index, (np.zeros((width, c)), 0))
            self.starts[candidate.index] = before + np.sum(ends, axis=0), splits + len(ends)
        return solved

    def _again(
        self, one: Sweep, partition: Partition, solved: dict[int, list[Solved]], scoring: Scoring
    ) -> list[Sweep]:
        """Sweeps in better arithmetic, for kernels with a candidate whose predictions would be off; they fit."""
        coarse: dict[Any, list[list[Candidate]]] = {}
        if isinstance(one, Descents) or not one.lead.method.probed:
            return []
        for members in one.members:
            errors = [error for fold in solved[id(members)] for error in fold.errors if error is not None]
            worst = max(errors, key=lambda error: error.total, default=None)
            choose = all(candidate.columns.dtype == "auto" for candidate in members)
            hidden = any(fold.hidden for fold in solved[id(members)])
            wider = None if worst is None else next_precision(members[0].basis, worst, choose=choose, hidden=hidden)
            if wider is None:
                continue
            if self._move(one, members, wider, partition, scoring):
                coarse.setdefault((wider.dtype, wider.sums), []).append(members)
        sweeps = []
        for (dtype, sums), lists in coarse.items():
            what = f"blocks in {dtype}" if sums is None else f"sums in {sums}"
            off = f"some predictions would be off by more than {PROMISE:g}, or rounding hides directions"
            emit(Note(f"{len(lists)} of {len(one.members)} kernels are swept again with {what}: {off}"))
            sweeps += within_memory(replace(one, members=lists), self.rows, self.targets, [partition], scoring)
        return sweeps

    def _move(self, one: Sweep, members: list[Candidate], finer: Any, partition: Partition, scoring: Scoring) -> bool:
        """Give the candidates of a kernel a basis in better arithmetic; False: its sweep would not fit."""
        moved = replace(one, members=[[replace(candidate, basis=finer) for candidate in members]])
        if not fits(moved, self.rows, self.targets, [partition], scoring):
            return False
        for candidate in members:
            candidate.basis = finer
        return True

    def _count(self, one: Sweep, partition: Partition, found: list[list[Solved]], scoring: Scoring) -> Accumulator:
        """The confusion matrices and losses of all candidates, from a sweep."""
        places = {candidate.index: place for place, candidate in _places(one)}
        weights, intercepts = coefficients(one, partition, self, found, places)
        judge = one.judge(self.targets, partition, weights, intercepts, scoring=scoring)
        return sweep(partition.attach(self.judging), judge, what="scores").total

    def _require_folds(self, problem: Problem, partition: Partition, statistic: MomentStatistic) -> None:
        """Raise `DataError` unless every fold has what it is trained and tested on."""
        total, first = problem.statistics, int(statistic.unlabelled == "keep")
        n, t = total["n"][first:], total["t"][first:]
        for fold, split in enumerate(partition.splits):
            others = np.arange(len(n)) != fold
            classes = None if self.targets.classes is None else t[others].sum(axis=0)
            require_fold(split, float(n[fold]), float(n[others].sum()), classes)

    def _keep(
        self, members: list[Candidate], problem: Problem, partition: Partition, statistic: MomentStatistic
    ) -> None:
        """Keep the moments of all rows, as a fit of its own would have them, if there is room."""
        total, semi, sides = problem.statistics, statistic.unlabelled == "keep", partition.sides
        self.kept.pop(id(members), None)
        held = sum(one.statistics["G"].nbytes for one in self.kept.values())
        if not partition.whole or held + total["G"][0].nbytes * (1 + semi) > settings().memory_limit_bytes:
            return
        if sides is not None:
            joined = sides.part(total, sides.folds.count)
        else:
            joined = {name: values[semi:].sum(axis=0, keepdims=True) for name, values in total.items()}
            if semi:
                joined = {name: np.concatenate([total[name][:1], values]) for name, values in joined.items()}
        self.kept[id(members)] = replace(problem, statistics=joined)

    def fit(self, candidate: Candidate) -> None:
        """Fit a candidate to all rows: from sums that were kept, where they are good enough, or from sweeps."""
        found = next((m for one in self.sweeps for m in one.members if any(c is candidate for c in m)), None)
        problem, targets, inputs = None if found is None else self.kept.get(id(found)), self.targets, self.inputs
        if not candidate.penalty.fit_intercept:  # as its own fit would have the targets
            targets, inputs = replace(targets, shift=None), inputs.of_targets()
            problem = None if problem is None else problem.of_targets()
        if candidate.choice:
            ends, folds = self.starts.get(candidate.index, (None, 1))
            start = None if ends is None else ends / folds
            data = Training(self.rows, targets, inputs)
            restore(candidate.last, inputs, fit_by_cg(*by_ridge(candidate), data, candidate.basis, start=start))
        else:
            candidate.last.adopt(Training(self.rows, targets, inputs), candidate.basis, problem)


def _with_counts(tested: Tested, counted: Accumulator, place: tuple[int, int, int]) -> Tested:
    """With the counts of classes of a (kernel, fold, candidate)."""
    if not counted:
        return tested

    loss = counted["loss"]
    return replace(tested, confusion=counted["confusion"][place], loss=float(loss[place]) if loss.size else None)


def _side_by_side(
    solve: Callable[[int, ThreadPoolExecutor], list[Solved]], count: int, beside: int
) -> list[list[Solved]]:
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
