"""The sweeps and solves that judge candidates which share their rows.

Candidates that share a kernel share its moments; what is left, α, the number of components and the intercept, costs a
small solve each. A witness tells each solve how far the rounding of the moments has moved it; kernels of candidates
that are moved too far are swept again in better arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bigkernel.config import settings
from bigkernel.engine.context import processors
from bigkernel.engine.sweep import sweep
from bigkernel.estimators.arithmetic import better, seeing_sweep, whitening_for
from bigkernel.estimators.fit_state import Problem
from bigkernel.events.kinds import Note, Step
from bigkernel.events.scope import emit, spent
from bigkernel.search.arrangement import Candidate, Descents, SidedSweep, Sweep, about, fits, within_memory
from bigkernel.search.conjugate_gradients import solve_folds_by_cg
from bigkernel.search.fold_solves import solve_folds
from bigkernel.search.scoring import Scoring, Solved, Tested
from bigkernel.search.side_sweeps import adapted, begun
from bigkernel.search.splits import Partition, require_fold
from bigkernel.search.value_sweeps import Training, coefficients, value_scores
from bigkernel.solvers.accuracy import PROMISE
from bigkernel.solvers.residuals import Certificates
from bigkernel.statistics.moments import MomentStatistic
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]
_ROTATED_BYTES = 2**28  # of the folds of kernels that are solved side by side


@dataclass(eq=False)
class Work(Training):
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
            next((c.last for c in members if c.last.whitens), members[0].last)
            for members in one.members
            if one.lead.last.has_witness
        ]
        certificates = [Certificates() for _ in leads]
        with threadpool_limits(limits=1, user_api="blas"):  # the same bits however many there are, as in the solves
            whitenings = [
                whitening_for(last, members[0].basis, noted)
                for members, last, noted in zip(one.members, leads, certificates, strict=False)
            ]
        statistic = one.statistic(self.targets, partition, len(self.rows), whitenings)
        total = seeing_sweep(partition.attach(self.rows), statistic, what="tune").total
        for last, noted in zip(leads, certificates, strict=True):
            if last.whitens:
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
        if isinstance(one, Descents) or not one.lead.last.has_witness:
            return []
        for members in one.members:
            errors = [error for fold in solved[id(members)] for error in fold.errors if error is not None]
            worst = max(errors, key=lambda error: error.total, default=None)
            choose = all(candidate.last.dtype == "auto" for candidate in members)
            hidden = any(fold.hidden for fold in solved[id(members)])
            wider = None if worst is None else better(members[0].basis, worst, choose=choose, hidden=hidden)
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
        places = {
            candidate.index: (place, number)
            for place, members in enumerate(one.members)
            for number, candidate in enumerate(members)
        }
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
            candidate.last.adopt_descent(self.rows, targets, inputs, candidate.basis, start)
        else:
            candidate.last.adopt(self.rows, targets, inputs, candidate.basis, problem)


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
