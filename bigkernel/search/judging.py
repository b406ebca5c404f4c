"""The evaluation of every candidate on every split, and the fit of the best one.

`fitting.sweep_until_precise` is the loop: kernels whose moments are too coarse for one of their candidates are swept
again in the next precision. Scores that need predictions take one more sweep, or several where memory is short.
Shapes: p columns of the solutions, k candidates, c targets, K kernels, F folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import PlanTooLargeError
from bigkernel.estimators.base import restore
from bigkernel.estimators.fit_state import Columns, Training
from bigkernel.estimators.fitting import Trial, sweep_until_precise
from bigkernel.estimators.ridge import fit_by_cg_with_fallback
from bigkernel.events.job import Note, emit
from bigkernel.search.conjugate_gradients import by_ridge
from bigkernel.search.scorers import TestedRows
from bigkernel.search.scoring import FoldSolutions, Scoring, Tested
from bigkernel.search.splits import Partition
from bigkernel.search.sweeps import Candidate, GridSweep, SearchData, limit_bytes, split_to_fit
from bigkernel.statistics.held_out import FoldValues
from bigkernel.streaming.plan import Accumulator, Plan

Scores = dict[tuple[int, int], dict[str, float]]  # by candidate and fold


@dataclass(eq=False, kw_only=True)
class KernelTrial(Trial):
    """The candidates of a kernel, `solved` by fold.

    Attributes
    ----------
    members : the candidates, which share the basis of the next sweep; `basis` is that of the solutions
    fits : function that returns whether a worker has the memory for a sweep of them
    competes : function that returns whether one of the solved candidates may be the best
    """

    members: list[Candidate]
    fits: Callable[[list[Candidate]], bool]
    competes: Callable[[list[FoldSolutions]], bool]
    solved: list[FoldSolutions] = field(default_factory=list)

    def refine(self) -> bool:
        """Take the next precision where predictions would be off, a candidate may be the best, and memory allows it."""
        before = self.basis
        if not super().refine():
            return False
        if not self.unresolved and not self.competes(self.solved):
            self.basis = before
            self.notes.pop()
            emit(Note(f"{self.reason}, but no candidate of this kernel can be the best"))
            for fold in self.solved:
                fold.tested = [replace(one, allowed=float("inf")) for one in fold.tested]
            return False
        finer, self.basis = self.basis, before
        self._share(finer)
        if self.fits(self.members):
            return True
        self._share(before)
        self.notes.pop()
        return False

    def keep_coarser(self, error: PlanTooLargeError) -> None:
        """Keep the present solutions; an `AccuracyWarning` names candidates that are off in any case."""
        self._share(self.basis)

    def _share(self, basis: Columns) -> None:
        for candidate in self.members:
            candidate.basis = basis

    def note(self, solved: list[FoldSolutions], *, probed: bool) -> None:
        """Note the solutions by fold, and the largest error among them."""
        self.solved, self.basis, known = solved, self.members[0].basis, []
        if probed:
            known = [error for fold in solved for error in fold.errors if error is not None]
        self.errors = max(known, key=lambda error: error.total, default=None)
        self.unresolved = any(fold.unresolved for fold in solved)


@dataclass(eq=False)
class Work:
    """The sweeps that evaluate candidates of the same rows, in order, on these partitions of the folds.

    `best` is the largest score so far of a candidate that is precise enough, by label; less its standard error where
    a candidate within it may be chosen.
    """

    data: SearchData
    partitions: list[Partition]
    sweeps: list[GridSweep]
    best: dict[str, float] = field(default_factory=dict)

    def run(self, scoring: Scoring) -> Iterator[tuple[Candidate, int, Tested]]:
        """Evaluate every candidate on every split; moments of kernels that fit in memory are kept for the refit."""
        for one in self.sweeps:
            for whole in self.partitions:
                for some, partition in one.divide(self.data, whole, scoring):
                    yield from self._score(some, partition, scoring)

    def _score(self, one: GridSweep, partition: Partition, scoring: Scoring) -> Iterator[tuple[Candidate, int, Tested]]:
        def fits(members: list[Candidate]) -> bool:
            try:
                replace(one, members=[members]).require_room(self.data, [partition], scoring)
            except PlanTooLargeError:
                return False
            return True

        # squared errors on all splits are known before the candidates are tested otherwise
        known = scoring.of_squares and not one.rounds and [partition] == self.partitions

        def competes(solved: list[FoldSolutions]) -> bool:
            return not known or any(
                not np.mean([scoring.most(label, each) for each in figures]) < self.best.get(label, -np.inf)
                for figures in _by_candidate(solved)
                for label in scoring.names
            )

        groups: dict[object, list[tuple[GridSweep, list[KernelTrial]]]] = {}

        def group(trials: list[KernelTrial]) -> list[tuple[GridSweep, list[KernelTrial]]]:
            """Return trials that share a sweep, of one precision and within memory, which is planned once."""
            key = tuple((id(trial), trial.members[0].basis) for trial in trials)
            if trials and key not in groups:
                of_members = {id(trial.members): trial for trial in trials}
                groups[key] = [
                    (shared, [of_members[id(members)] for members in shared.members])
                    for precise in replace(one, members=[trial.members for trial in trials]).by_precision()
                    for shared in precise.within_memory(self.data, [partition], scoring)
                ]
            return groups.get(key, [])

        def attempt(trials: list[KernelTrial]) -> None:
            for together, some in group(trials):
                if some[0].notes:
                    _note_refinement(some, len(one.members))
                for trial, solved in zip(some, together.solve(self.data, partition, scoring), strict=True):
                    trial.note(solved, probed=one.keeps_moments and one.lead.method.probed)
                    for figures in _by_candidate(solved) if known else ():
                        self._note_best(figures, scoring)

        trials = []
        for members in one.members:
            basis, choose = members[0].basis, all(candidate.columns.dtype == "auto" for candidate in members)
            trials.append(KernelTrial(basis=basis, choose=choose, members=members, fits=fits, competes=competes))
        for done in sweep_until_precise(trials, attempt):
            for together, some in group(done):
                solved = together.finish(self.data, partition, [trial.solved for trial in some])
                yield from self._test(together, partition, solved, scoring)

    def _note_best(self, figures: tuple[Tested, ...], scoring: Scoring) -> None:
        """Note the scores of a candidate, by split, if they are precise enough."""
        if any(each.is_off for each in figures):
            return
        for label in scoring.names:
            scores = np.array([scoring.of(label, each) for each in figures])
            error = scores.std(ddof=1) / len(scores) ** 0.5 if scoring.one_standard_error and len(scores) > 1 else 0.0
            self.best[label] = max(self.best.get(label, -np.inf), float(scores.mean() - error))

    def _test(
        self, one: GridSweep, partition: Partition, solved: list[list[FoldSolutions]], scoring: Scoring
    ) -> Iterator[tuple[Candidate, int, Tested]]:
        """Test candidates on every split, with sweeps for the scores that need predictions."""
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
        places = {candidate.index: place for place, candidate in _places(one)}
        fits = coefficients(one, partition, self.data, solved, places)
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
        places = {candidate.index: place for place, candidate in _places(one)}
        fits = coefficients(one, partition, self.data, solved, places)
        scores = one.grid_scores(self.data.targets, partition, scoring, *fits)
        return sweep(partition.attach(self.data.judging), scores, what="scores").total

    def fit(self, candidate: Candidate) -> None:
        """Fit a candidate to all rows: from kept sums, where they are precise enough, or from sweeps."""
        members = next((m for one in self.sweeps for m in one.members if any(c is candidate for c in m)), None)
        targets, inputs = self.data.targets, self.data.inputs
        problem = None if members is None else self.data.moments.get(id(members))
        if not candidate.solve_settings.fit_intercept:  # as in a fit of one candidate
            targets, inputs = replace(targets, shift=None), inputs.of_targets()
            problem = None if problem is None else problem.of_targets()
        data = Training(self.data.rows, targets, inputs)
        if candidate.choice:
            ends, folds = self.data.ends.get(candidate.index, (None, 1))
            start = None if ends is None else ends / folds
            fit = fit_by_cg_with_fallback(*by_ridge(candidate), data, candidate.basis, start=start)
            restore(candidate.last, inputs, fit)
        else:
            candidate.last.adopt(data, candidate.basis, problem)


def _by_candidate(solved: list[FoldSolutions]) -> Iterator[tuple[Tested, ...]]:
    """Yield the figures of each candidate of a kernel, by fold."""
    return zip(*(fold.tested for fold in solved), strict=True)


def _note_refinement(trials: list[KernelTrial], count: int) -> None:
    off = "estimated error too large, or some directions lost in rounding error"
    emit(Note(f"{len(trials)} of {count} kernels: {off}; {trials[0].precision}"))


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

    def check(some: GridSweep) -> Plan:
        statistic = _statistic(some, partition, data, *some.zeros(data.targets, partition))
        plan, room = plan_sweep(partition.attach(data.rows), statistic), settings().memory_limit_bytes
        if 2 * plan.partial_bytes > room:  # two partial results and their sum
            raise PlanTooLargeError(
                f"{2 * plan.partial_bytes / 1e6:,.0f} MB of values exceed the limit of {room / 1e6:,.0f} MB"
            )
        plan.check(limit_bytes(data.rows), settings().worker_base_bytes)
        return plan

    def halves(some: GridSweep) -> list[GridSweep]:
        middle = len(some.candidates) // 2
        if len(some.members) > 1 or not middle:
            return some.halves()
        return [GridSweep([some.candidates[:middle]]), GridSweep([some.candidates[middle:]])]

    try:
        return split_to_fit(GridSweep(one.members), check, halves)
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
    where = {candidate.index: place for place, candidate in _places(one)}
    scores: Scores = {}
    for some, _ in value_sweeps(one, partition, data, scoring):
        statistic = _statistic(some, partition, data, *coefficients(some, partition, data, solved, where))
        total = sweep(partition.attach(data.judging), statistic, what="values").total
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
    one: GridSweep,
    partition: Partition,
    data: SearchData,
    solved: list[list[FoldSolutions]],
    where: dict[int, tuple[int, int]],
) -> tuple[Array, Array]:
    """Return weights (K, F, p, k·c) and intercepts (K, F, k·c) of some candidates; `where` gives their positions.

    Intercepts include the shift of the targets.
    """
    weights, intercepts = (np.array(values) for values in one.zeros(data.targets, partition))
    c, shift = data.targets.width, data.targets.shift
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
    for place, members in enumerate(one.members):
        for number, candidate in enumerate(members):
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
