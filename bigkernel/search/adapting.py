"""Candidates that adapt a source to a target on every split, from one sweep of sums and rounds that all share.

A first sweep sums the rows by their role in the splits. Each model is the fit to the labels of its split
(`solvers.pseudo_labels`); models of a split share its sums in whitened coordinates, so that one more is a solve. Each
round is then one sweep of the target, for the pseudo-labels of all active candidates on all splits.
Shapes: r whitened coordinates, c classes, k models of a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from bigkernel.arrays import Array
from bigkernel.engine.process import processors
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import keeping_blocks, plan_sweep, sweep
from bigkernel.errors import DataError
from bigkernel.estimators.adaptation.self_training import AdaptingMethod, ReducedSides, SelfTraining
from bigkernel.estimators.fit.basis import of_kernel
from bigkernel.estimators.fit.method import solve
from bigkernel.estimators.fit.precision import Coefficients, perturbed_errors, with_probe
from bigkernel.estimators.fit.state import Problem
from bigkernel.estimators.inputs.checks import solving
from bigkernel.estimators.inputs.columns import cell_counts
from bigkernel.events.job import Note, emit, spent
from bigkernel.kernels.kept_blocks import KeptMap
from bigkernel.kernels.threads import one_thread
from bigkernel.search.scoring import FoldSolutions
from bigkernel.search.splits import Partition
from bigkernel.search.sweeps import (
    Candidate,
    GridSweep,
    KernelSums,
    PlanLine,
    SearchData,
    checked_plan,
    split_to_fit,
    tested,
)
from bigkernel.solvers.anchor_graph import SplitMomentStatistic
from bigkernel.solvers.penalty_grid import Coordinates, squared_errors
from bigkernel.solvers.pseudo_labels import (
    Decision,
    JointPseudoLabels,
    LabelQuery,
    PseudoLabels,
    SourceTarget,
    SourceTargetSplits,
)
from bigkernel.solvers.residuals import ENOUGH, Errors
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import Cells
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets
from bigkernel.streaming.plan import Plan


@dataclass(eq=False)
class SplitFits:
    """The models of one split."""

    sides: SourceTarget
    problem: Problem  # the sums of its target and of its source
    whitening: Whitening  # of the columns
    tested: Moments  # moments of its test rows, in whitened coordinates
    trainings: list[SelfTraining]  # the rounds of each model

    @classmethod
    def of(
        cls,
        methods: Sequence[AdaptingMethod],
        splits: SourceTargetSplits,
        swept: Problem,
        whitening: Whitening,
        split: int,
    ) -> SplitFits:
        """Solve by each method for the first time, from the sums of groups; the methods differ only in their solves."""
        # sums of target and source are sums of groups of rows with the same role in every split
        problem = replace(swept, statistics=splits.split_sums(swept.statistics, split))
        shared, to_whitened = _reduced(methods, problem, whitening), Coordinates(whitening).reduce
        tested = Moments.of(splits.test_sums(swept.statistics, split), shift=swept.centre)
        # the coordinates of the split are shared, so that a model is one small solve
        first = [solve(one, problem, whitening, reduced=shared, estimate=False) for one in methods]
        trainings = [SelfTraining(one, solved, one.n_rounds) for one, solved in zip(methods, first, strict=True)]
        return cls(splits.sides(split), problem, whitening, to_whitened(tested), trainings)

    @property
    def weights(self) -> Array:
        """Coefficients over the columns of the map, (p, k·c)."""
        return np.hstack([training.solved.solution.coef for training in self.trainings])

    def squares(self, moments: Moments) -> Array:
        """Compute Σ w (y − f)² of some rows by every model, (k, c), from their moments in whitened coordinates."""
        whitened = np.stack([training.solved.solution.whitened for training in self.trainings])
        return squared_errors(moments, whitened, np.zeros((len(whitened), whitened.shape[2])))

    def errors(self) -> list[Errors | None]:
        """Estimate the error of each model; None where the sums were not probed."""
        count, nothing = len(self.trainings), np.zeros(self.weights.shape[1])
        methods = [training.method for training in self.trainings]

        # the same solves from perturbed sums, with the pseudo-labels as they are
        def solve_other(other: Problem) -> Coefficients:
            shared = _reduced(methods, other, self.whitening)
            solved = [
                solve(
                    training.method,
                    replace(other, pseudo_labels=training.solved.problem.pseudo_labels),
                    self.whitening,
                    reduced=shared,
                    estimate=False,
                )
                for training in self.trainings
            ]
            return np.hstack([one.solution.coef for one in solved]), nothing

        problem, fitted = self.problem, (self.weights, nothing)
        moments, basis = problem.moments, problem.basis
        errors = perturbed_errors(problem, self.whitening, fitted, solve_other, moments, basis, count)
        return [None] * count if errors is None else [*errors]


def _reduced(methods: Sequence[AdaptingMethod], problem: Problem, whitening: Whitening) -> ReducedSides:
    """Reduce the problem of a split for all its methods, with the graph if one of them has one."""
    lead = max(methods, key=lambda one: one.graph.exists)
    with solving(lead):
        return lead.reduce(problem, whitening)


@dataclass(eq=False)
class AdaptingSolutions(FoldSolutions):
    """Candidates of one kernel on one fold, before or after their rounds."""

    fits: SplitFits = field(kw_only=True)


@dataclass(eq=False)
class AdaptingSweep(GridSweep):
    """Candidates of one kernel that adapt a source to a target."""

    @property
    def rounds(self) -> int:
        return max(int(_adapting(candidate).n_rounds) for candidate in self.candidates)

    def statistic(
        self, targets: Targets, partition: Partition, rows: int, whitenings: Sequence[Whitening] = ()
    ) -> MomentStatistic:
        """Return the moments of the rows by their role in the splits."""
        assert partition.sides is not None
        basis = self.lead.basis
        graphs = [_adapting(candidate).graph.neighbors_among(basis.width) for candidate in self.candidates]
        statistic = SplitMomentStatistic(
            basis.centred(),
            targets,
            sums=basis.sum_dtype,
            splits=partition.sides,
            neighbours=max(number or 0 for number in graphs),
        )
        return with_probe(statistic, whitenings, rows)

    def sum_lines(self, what: str, data: SearchData, partition: Partition) -> Iterator[PlanLine]:
        """Plan the moments and the rounds of all candidates."""
        yield from super().sum_lines(what, data, partition)
        if self.rounds:
            yield self.round_line("of all of them", data, partition)

    def round_line(self, whose: str, data: SearchData, partition: Partition, *, best: bool = False) -> PlanLine:
        """Plan the rounds with all candidates and splits active; `best`: with one candidate and all labels."""
        assert partition.sides is not None
        basis, c, rounds = self.lead.basis, data.targets.width, self.rounds
        decision = Decision(np.broadcast_to(0.0, (basis.width, c)), np.zeros(c))
        # a query for each model that may still be active
        count = partition.folds.count
        splits = [count] if best else [*range(count)] * len(self.candidates)
        queries = tuple(LabelQuery(partition.sides.sides(split), decision, 1.0, decision) for split in splits)
        plans = [plan for _, plan in _batches(JointPseudoLabels(basis.centred(), queries), partition.attach(data.rows))]
        flops, largest = sum(plan.flops for plan in plans), max(plan.task_bytes for plan in plans)
        text = f"  at most {rounds * len(plans)} sweeps for pseudo-labels {whose}, {rounds * flops:.2g} flops"
        return PlanLine(text, flops / len(plans), largest, rounds * len(plans))

    def solve_kernel(self, sums: KernelSums, pool: ThreadPoolExecutor) -> list[FoldSolutions]:
        problem, splits, sides = sums.problem, sums.partition.splits, sums.partition.sides
        assert sides is not None
        assert sums.whitening is not None
        for fold, split in enumerate(splits):
            held, own = sides.test_sums(problem.statistics, fold), sides.split_sums(problem.statistics, fold)
            sums.data.require_fold(split, float(held["n"].sum()), float(own["n"][1]), own["t"][1])
            if not own["n"][0] > 0:
                raise DataError(f"cv: split {split} expects a row of the target with a positive weight, found none")
        methods = [_adapting(candidate) for candidate in sums.members]
        fits = pool.map(partial(SplitFits.of, methods, sides, problem, sums.whitening), range(len(splits)))
        return list(pool.map(_solved, list(fits)))

    def finish(self, data: SearchData, partition: Partition) -> list[list[FoldSolutions]]:
        basis, rows = of_kernel(self.lead.basis), partition.attach(data.rows)
        with keeping_blocks(basis.features(), rows) as kept:
            return [_self_train(replace(kept, shift=basis.centred().shift), rows, one.solved) for one in self.kernels]


def _adapting(candidate: Candidate) -> AdaptingMethod:
    assert isinstance(candidate.method, AdaptingMethod)
    return candidate.method


def _self_train(features: KeptMap, rows: Rows, first: list[FoldSolutions]) -> list[FoldSolutions]:
    """Return the candidates after their rounds, by fold."""
    fits = [solved.fits for solved in first if isinstance(solved, AdaptingSolutions)]
    trainings, number = [(of_split.sides, training) for of_split in fits for training in of_split.trainings], 0
    pool = ThreadPoolExecutor(processors())
    with one_thread(), pool:  # as in the first solves
        # T = Σ w φ Qᵀ of all models that are still active, and one solve of each, until none is
        while active := [(sides, training) for sides, training in trainings if not training.ended]:
            number += 1
            queries = tuple(training.query(features, sides) for sides, training in active)
            labels: list[PseudoLabels] = []
            for statistic, _ in _batches(JointPseudoLabels(features, queries), rows):
                total = sweep(rows, statistic, what=f"tune-round-{number}").total
                labels += statistic.labels(total, features.shift)
            with spent("solve"):
                list(pool.map(lambda pair: pair[0][1].take(pair[1]), zip(active, labels, strict=True)))
        if not number:
            return first
        solved = list(pool.map(_solved, fits))
    if collapsed := sum(bool(training.fault) for _, training in trainings):
        emit(Note(f"pseudo-labels collapsed in {collapsed} of {len(trainings)} fits on folds, which ended early"))
    if different := sum(bool(training.mismatch) for _, training in trainings):
        emit(Note(f"classes of source and target lie differently in {different} of {len(trainings)} fits on folds"))
    return solved


def _solved(fits: SplitFits) -> FoldSolutions:
    """Test the present solutions and estimate their errors."""
    errors, weights = fits.errors(), fits.weights
    figures = [
        replace(one, error=float("nan") if error is None else error.total, allowed=ENOUGH)
        for one, error in zip(tested(fits.tested, fits.squares(fits.tested)), errors, strict=True)
    ]
    return AdaptingSolutions(figures, errors, weights, np.zeros(weights.shape[1]), fits=fits)


def _batches(statistic: JointPseudoLabels, rows: Rows) -> list[tuple[JointPseudoLabels, Plan]]:
    """Split the sweep of a round into several of fewer queries where it would not fit the memory of a worker."""

    def plan(one: JointPseudoLabels) -> Plan:
        return checked_plan(rows, one) if len(one.queries) > 1 else plan_sweep(rows, one)

    def halves(one: JointPseudoLabels) -> list[JointPseudoLabels]:
        middle = len(one.queries) // 2
        return [replace(one, queries=half) for half in (one.queries[:middle], one.queries[middle:])]

    return split_to_fit(statistic, plan, halves)


# -- source and target of splits ---------------------------------------------------------------------------------------


def with_sides(partitions: Sequence[Partition], rows: Rows, cells: Cells) -> list[Partition]:
    """Add source and target of each split to the partitions.

    `DataError`: a split has no source or no target.
    """
    result = []
    for one in partitions:
        sides = SourceTargetSplits.of(cells, one.folds, cell_counts(one.attach(rows), cells, one.folds))
        for number, split in enumerate(one.splits):
            if not sides.has_both(number):
                _refuse(split, target=bool(sides.sources[:, number].any()))
        result.append(replace(one, sides=sides))
    return result


def _refuse(split: int, *, target: bool) -> None:
    if target:
        raise DataError(
            f"cv: split {split} leaves labels in every domain; expected unlabelled target rows (-1), or "
            "cv='domains', which hides the labels of one domain in turn"
        )
    raise DataError(f"cv: split {split} leaves no labelled row for training; use fewer folds")
