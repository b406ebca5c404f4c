"""The evaluation of every candidate on every split, and the fit of the best one.

The order is that of a fit (`estimators.fit.fit.fit_sums`), for many kernels and folds: kernels whose moments are too
coarse for one of their candidates are swept again in the next precision. Scores that need predictions take one more
sweep, or several where memory is short.
Shapes: p columns of the solutions, k candidates, c targets, K kernels, F folds. Tests: search/test_search.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.sweep import sweep
from bigkernel.errors import PlanTooLargeError
from bigkernel.estimators.base import restore
from bigkernel.estimators.fit.precision import whitened
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.ridge import fit_by_cg_with_fallback
from bigkernel.events.job import Note, emit
from bigkernel.search.conjugate_gradients import by_ridge
from bigkernel.search.scorers import TestedRows
from bigkernel.search.scoring import FoldSolutions, Scoring, Tested
from bigkernel.search.splits import Partition
from bigkernel.search.sweeps import Candidate, GridSweep, KernelGroup, SearchData, checked_plan, split_to_fit
from bigkernel.statistics.held_out import FoldValues
from bigkernel.streaming.plan import Accumulator, Plan

Scores = dict[tuple[int, int], dict[str, float]]  # by candidate and fold


@dataclass(eq=False)
class Work:
    """The sweeps that evaluate candidates of the same rows, in order, on these partitions of the folds."""

    data: SearchData
    partitions: list[Partition]
    sweeps: list[GridSweep]
    # by label, the largest score so far of a candidate that is precise enough; less its standard error where a
    # candidate within it may be chosen
    best: dict[str, float] = field(default_factory=dict)

    def run(self, scoring: Scoring) -> Iterator[tuple[Candidate, int, Tested]]:
        """Evaluate every candidate on every split; moments of kernels that fit in memory are kept for the refit."""
        for one in self.sweeps:
            for whole in self.partitions:
                for some, partition in one.divide(self.data, whole, scoring):
                    yield from self._score(some, partition, scoring)

    def _score(self, one: GridSweep, partition: Partition, scoring: Scoring) -> Iterator[tuple[Candidate, int, Tested]]:
        # whether scores are functions of squared errors that the sums of one sweep give on all splits
        early = scoring.of_squares and not one.rounds and [partition] == self.partitions
        waiting = one.kernels
        for kernel in waiting:
            kernel.solved, kernel.finer, kernel.coarser = [], None, None
        while waiting:
            # a sweep for as many kernels as fit, and a small solve of each candidate without each fold
            parts = replace(one, kernels=waiting).by_precision()
            sweeps = [some for part in parts for some in part.within_memory(self.data, [partition], scoring)]
            for shared in sweeps:
                self._solve(shared, partition, scoring, len(one.kernels))
                for kernel in shared.kernels if early else ():
                    for figures in _by_candidate(kernel.solved):
                        self._note_best(figures, scoring)
            # the same in the next precision for kernels that rounding moves, if one of their candidates may be the best
            waiting = []
            for shared in sweeps:
                again = [kernel for kernel in shared.kernels if self._refine(one, kernel, scoring, early)]
                waiting += again
                if done := [kernel for kernel in shared.kernels if kernel not in again]:
                    yield from self._test(replace(shared, kernels=done), partition, scoring)

    def _solve(self, shared: GridSweep, partition: Partition, scoring: Scoring, count: int) -> None:
        """Sweep and solve for some of `count` kernels; solutions of a coarser sweep stay where a finer does not fit."""
        finer, number = shared.kernels[0].finer, len(shared.kernels)
        if finer is not None:
            off = "estimated error too large, or some directions lost in rounding error"
            emit(Note(f"{number} of {count} kernels: {off}; {finer.remedy}"))
        try:
            if finer is not None:
                shared.require_room(self.data, [partition], scoring)
            solved = shared.solve(self.data, partition, scoring)
        except PlanTooLargeError:
            if finer is None:
                raise
            for kernel in shared.kernels:  # an `AccuracyWarning` names candidates that are off in any case
                assert kernel.coarser is not None
                kernel.take(kernel.coarser)
            return
        for kernel, solutions in zip(shared.kernels, solved, strict=True):
            kernel.solved = solutions

    def _refine(self, one: GridSweep, kernel: KernelGroup, scoring: Scoring, early: bool) -> bool:
        """Return whether to sweep again for a kernel, whose candidates then have the columns in the next precision."""
        finer = kernel.next_precision(probed=one.keeps_moments and one.lead.basis.probed)
        # there is none, or it did not fit
        if finer is None or kernel.basis is kernel.coarser:
            return False
        # no figure is needed in more digits where the best is another kernel's
        if early and not any(fold.unresolved for fold in kernel.solved) and not self._may_be_best(kernel, scoring):
            emit(Note(f"{finer.reason}, but no candidate of this kernel can be the best"))
            for fold in kernel.solved:
                fold.tested = [replace(each, allowed=float("inf")) for each in fold.tested]
            return False
        kernel.coarser, kernel.finer = kernel.basis, finer
        kernel.take(finer.basis)
        return True

    def _may_be_best(self, kernel: KernelGroup, scoring: Scoring) -> bool:
        """Return whether a candidate may have the largest score, given the errors of its figures."""
        return any(
            not np.mean([scoring.most(label, each) for each in figures]) < self.best.get(label, -np.inf)
            for figures in _by_candidate(kernel.solved)
            for label in scoring.names
        )

    def _note_best(self, figures: tuple[Tested, ...], scoring: Scoring) -> None:
        """Note the scores of a candidate, by split, if they are precise enough."""
        if any(each.is_off for each in figures):
            return
        for label in scoring.names:
            scores = np.array([scoring.of(label, each) for each in figures])
            error = scores.std(ddof=1) / len(scores) ** 0.5 if scoring.one_standard_error and len(scores) > 1 else 0.0
            self.best[label] = max(self.best.get(label, -np.inf), float(scores.mean() - error))

    def _test(self, one: GridSweep, partition: Partition, scoring: Scoring) -> Iterator[tuple[Candidate, int, Tested]]:
        """Test candidates on every split, with sweeps for the scores that need predictions."""
        solved = one.finish(self.data, partition)
        # a sweep of predictions for each kind of score that moments do not give
        counted = self._count(one, partition, solved, scoring) if scoring.counts else {}
        scored = value_scores(one, partition, self.data, solved, scoring) if scoring.scorers else {}
        judged = self._judge_domains(one, partition, solved, scoring)
        for (place, number), candidate in _places(one):
            for fold, split in enumerate(partition.splits):
                tested = _with_counts(solved[place][fold].tested[number], counted, (place, fold, number))
                more = {label: values[place, fold, number] for label, values in judged.items()}
                yield candidate, split, replace(tested, scored={**scored.get((candidate.index, fold), {}), **more})

    def _judge_domains(
        self, one: GridSweep, partition: Partition, solved: list[list[FoldSolutions]], scoring: Scoring
    ) -> dict[str, Array]:
        """Return the scores without labels of the target, by label, (K, F, k)."""
        domains = self.data.domains
        if domains is None:
            return {}
        fits = coefficients(one, one, partition, self.data, solved)
        statistic = one.domain_scores(self.data.targets, partition, *fits)
        found = domains.scores(statistic, partition.attach(self.data.judging), scoring.of_domains)
        return {
            label: found[name]
            for label, name in scoring.names.items()
            if name in found and label not in scoring.scorers
        }

    def _count(
        self, one: GridSweep, partition: Partition, solved: list[list[FoldSolutions]], scoring: Scoring
    ) -> Accumulator:
        """Sweep for the confusion matrices, losses and squared errors of all candidates."""
        fits = coefficients(one, one, partition, self.data, solved)
        scores = one.grid_scores(self.data.targets, partition, scoring, *fits)
        return sweep(partition.attach(self.data.judging), scores, what="scores").total

    def fit(self, candidate: Candidate) -> None:
        """Fit a candidate to all rows: from kept sums, where they are precise enough, or from sweeps."""
        targets, inputs = self.data.targets, self.data.inputs
        if not candidate.solve_settings.fit_intercept:  # as in a fit of one candidate
            targets, inputs = replace(targets, shift=None), inputs.of_targets()
        data = Training(self.data.rows, targets, inputs)
        # conjugate gradients start at the mean of the solutions of the folds
        if candidate.choice:
            ends, folds = self.data.ends.get(candidate.index, (None, 1))
            start = None if ends is None else ends / folds
            fit = fit_by_cg_with_fallback(*by_ridge(candidate), data, candidate.basis, start=start)
            restore(candidate.last, inputs, fit)
            return
        # a direct solve has the sums of all folds together, and T
        kernel = next(kernel for kernel in self.data.kernels if candidate in kernel.candidates)
        problem, method = kernel.sums, candidate.method
        if problem is not None and not candidate.solve_settings.fit_intercept:
            problem = problem.of_targets()
        white = kernel.whiten() if method.whitens == kernel.method.whitens else None
        white = white or whitened(kernel.basis, choose=False, solves=method.whitens)
        candidate.last.fit_from_sums(data, white, problem)


def _by_candidate(solved: list[FoldSolutions]) -> Iterator[tuple[Tested, ...]]:
    """Yield the figures of each candidate of a kernel, by fold."""
    return zip(*(fold.tested for fold in solved), strict=True)


# -- scores that need predictions --------------------------------------------------------------------------------------


def value_sweeps(
    one: GridSweep, partition: Partition, data: SearchData, scoring: Scoring
) -> list[tuple[GridSweep, Plan]]:
    """Return sweeps of some candidates each, whose values fit the memory of a worker and of this process.

    Raises
    ------
    PlanTooLargeError
        The values of a single candidate do not fit.
    """

    # a sweep of some candidates must fit this process, which holds the values of all held-out rows, and a worker
    def check(some: GridSweep) -> Plan:
        statistic = _statistic(some, partition, data, *some.zeros(data.targets, partition))
        plan, room = checked_plan(partition.attach(data.rows), statistic), settings().memory_limit_bytes
        if 2 * plan.partial_bytes > room:  # two partial results and their sum
            raise PlanTooLargeError(
                f"{2 * plan.partial_bytes / 1e6:,.0f} MB of values exceed the limit of {room / 1e6:,.0f} MB"
            )
        return plan

    # fewer kernels first, which share nothing but the argument, then fewer candidates of one
    def halves(some: GridSweep) -> Sequence[GridSweep]:
        middle = len(some.candidates) // 2
        if len(some.kernels) > 1 or not middle:
            return some.halves()
        return [GridSweep([KernelGroup(half)]) for half in (some.candidates[:middle], some.candidates[middle:])]

    try:
        return split_to_fit(GridSweep(one.kernels), check, halves)
    except PlanTooLargeError as error:
        raise PlanTooLargeError(
            f"scoring: {', '.join(scoring.scorers)} need the predictions for all held-out rows at once, which do not "
            f"fit into memory ({error}); use a score that sums over rows (accuracy, r2, ...), or hold out fewer rows "
            "(cv=0.1)"
        ) from error


def value_scores(
    one: GridSweep, partition: Partition, data: SearchData, solved: list[list[FoldSolutions]], scoring: Scoring
) -> Scores:
    """Return the scores of all candidates that need values of f, from one or several sweeps."""
    scores: Scores = {}
    for some, _ in value_sweeps(one, partition, data, scoring):
        statistic = _statistic(some, partition, data, *coefficients(some, one, partition, data, solved))
        total = sweep(partition.attach(data.judging), statistic, what="values").total
        # chunks end in any order: by row number, as scorers expect
        order = np.argsort(total["row"], kind="stable")
        rows = TestedRows.of(data.judging, data.targets, data.inputs, total["row"][order].astype(np.int64))
        fold, c = total["fold"][order].astype(np.int64), data.targets.width
        for (place, number), candidate in _places(some):
            values = total["values"][order][:, place, number * c : (number + 1) * c]
            if data.inverse is not None:
                values = data.inverse(values)
            for own in range(partition.folds.count):
                tested = fold == own
                scores[candidate.index, own] = rows.at(tested).scores(scoring, values[tested])
    return scores


def coefficients(
    one: GridSweep, whole: GridSweep, partition: Partition, data: SearchData, solved: list[list[FoldSolutions]]
) -> tuple[Array, Array]:
    """Return weights (K, F, p, k·c) and intercepts (K, F, k·c) of some candidates, from the solutions of `whole`.

    Intercepts include the shift of the targets.
    """
    weights, intercepts = (np.array(values) for values in one.zeros(data.targets, partition))
    c, shift = data.targets.width, data.targets.shift
    where = {candidate.index: place for place, candidate in _places(whole)}
    for (place, number), candidate in _places(one):
        kernel, column = where[candidate.index]
        here, there = slice(number * c, (number + 1) * c), slice(column * c, (column + 1) * c)
        for fold, out in enumerate(solved[kernel]):
            weights[place, fold, :, here], intercepts[place, fold, here] = out.weights[:, there], out.intercepts[there]
            if shift is not None and candidate.solve_settings.fit_intercept:
                intercepts[place, fold, here] += shift
    return weights, intercepts


def _places(one: GridSweep) -> Iterator[tuple[tuple[int, int], Candidate]]:
    """Yield each candidate with its kernel and its place among the candidates of the kernel."""
    for place, kernel in enumerate(one.kernels):
        for number, candidate in enumerate(kernel.candidates):
            yield (place, number), candidate


def _statistic(one: GridSweep, partition: Partition, data: SearchData, weights: Array, intercepts: Array) -> FoldValues:
    return FoldValues(one.predicting, weights, intercepts, partition.folds, data.targets, len(data.rows))


def _with_counts(tested: Tested, counted: Accumulator, place: tuple[int, int, int]) -> Tested:
    """Add the confusion matrix, loss and squared errors, if summed, at a place (kernel, fold, candidate)."""
    if not counted:
        return tested
    confusion, loss, sse = counted["confusion"][place], counted["loss"], counted["sse"]
    tested = replace(tested, confusion=confusion, loss=float(loss[place]) if loss.size else float("nan"))
    if not sse.size:
        return tested
    t, n = confusion.sum(axis=1), float(confusion.sum())  # of one-hot targets Σy = Σy²
    return replace(tested, n=n, sse=sse[place], spread=t * (1 - t / n), q=t)
