"""Self-training for JDA and ARTL: rounds of pseudo-labels of a target without labels.

A first sweep sums the moments of source and target. Every round after it sweeps the target alone for the pseudo-labels
of the last solution, as sums of features by class (`solvers.pseudo_labels`), then solves again. The method is
transductive: it uses the rows of the target, never its labels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

import numpy as np

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import keeping_blocks, sweep
from bigkernel.errors import CollapsedLabelsWarning, DataError, DifferentClassesWarning
from bigkernel.estimators.base import LandmarkEstimator, RowsEstimator
from bigkernel.estimators.fit.basis import CHOICES, LandmarkBasis, check_landmarks, of_kernel
from bigkernel.estimators.fit.method import Method, estimate_error, record, skipped, solve
from bigkernel.estimators.fit.state import AlignedSolution, Columns, MomentFit, Problem, Report, Solved
from bigkernel.estimators.inputs.columns import cell_counts
from bigkernel.estimators.inputs.read import read_cells
from bigkernel.estimators.inputs.training import AnyTargets, Training
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import as_kernel
from bigkernel.kernels.kept_blocks import KeptMap
from bigkernel.kernels.landmarks import MedianGaussian
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.solvers.adaptation import Aligned, congruence, preimage
from bigkernel.solvers.anchor_graph import SourceTargetStatistic
from bigkernel.solvers.conjugate_gradients import driver_bytes
from bigkernel.solvers.pseudo_labels import Decision, JointPseudoLabels, LabelQuery, PseudoLabels, SourceTarget
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import Cells, cell_targets
from bigkernel.statistics.moments import MomentStatistic
from bigkernel.streaming.chunk import Chunk

FLAT = 0.75  # of the conditional entropy, above which labels hold less than a quarter of the information on the class
SLACK = 0.02  # by which it may rise above its minimum without being a collapse
TRIAL_ROUNDS = 3  # before labels may count as flat
CONGRUENT = 0.4  # least congruence of class means without a warning, read off generated domains


@dataclass(frozen=True, eq=False)
class ReducedSides:
    """Data shared by all rounds: the whitening, the moments of source and target in it, and the graph or None.

    `preimage` B (r, d) leads back to rows; None for random features.
    """

    whitening: Whitening
    aligned: Aligned
    preimage: Array | None
    graph: Array | None = None


A = TypeVar("A", bound=AlignedSolution)
Sided = TypeVar("Sided", bound=LandmarkEstimator)


@dataclass(frozen=True, eq=False, kw_only=True)
class AdaptingMethod(Method[ReducedSides, A]):
    """Base of the methods that adapt a labelled source to an unlabelled target, by rounds of pseudo-labels.

    A `guarded` method stops where the labels become flat, or all of one class.
    """

    semi_supervised: ClassVar[bool] = True
    guarded: ClassVar[bool] = False
    n_rounds: int

    def decision(self, solved: Solved[ReducedSides, A], number: int) -> tuple[Decision, float]:
        """Return f of a solution over the columns of the map, and the slope of the softmax in round `number`."""
        raise TypeError(self.name)

    def statistic(self, basis: Columns, targets: AnyTargets) -> MomentStatistic:
        assert isinstance(targets, SourceTarget)
        labels = cell_targets(targets.cells)
        statistic = SourceTargetStatistic(basis.centred(), labels, sides=targets, sums=basis.sum_dtype)
        return self.graph.add_anchors(statistic)

    def check(self, problem: Problem, rows: str) -> Problem:
        problem.require_weight(rows)
        for group, side in enumerate(("target", "labelled source")):
            if not problem.statistics["n"][group] > 0:
                raise DataError(f"weight: expected a row of the {side} with a positive weight, found none")
        return super().check(problem, rows)

    def reduce(self, problem: Problem, whitening: Whitening) -> ReducedSides:
        aligned, basis = Aligned.of(problem.statistics, whitening, shift=problem.centre), problem.basis
        B = preimage(aligned, whitening, basis.landmarks) if isinstance(basis, LandmarkBasis) else None
        return ReducedSides(whitening, aligned, B)

    def reduce_without(self, reduced: ReducedSides, problem: Problem) -> ReducedSides:
        """Reduce the sums without a fold, and keep the graph of all rows."""
        return replace(reduced, aligned=Aligned.of(problem.statistics, reduced.whitening, shift=problem.centre))

    def finish(self, solved: Solved[ReducedSides, A], data: Training, sweep: Report) -> MomentFit:
        return self_train(self, solved, data, sweep)


@dataclass(eq=False)
class SelfTraining(Generic[A]):
    """A solution and the rounds that follow it, at most `count`; fewer where no label changes or labels collapse.

    Each round is a `query` of pseudo-labels, a sweep of the target by the caller, and `take`, a solve; `ended`: there
    are no more.
    """

    method: AdaptingMethod[A]
    solved: Solved[ReducedSides, A]  # the latest solution
    count: int
    # `entropy`, `conditional_entropy` and `changed` of each (see `JDA`)
    rounds: list[dict[str, float]] = field(default_factory=list)
    fault: str = ""  # why they ended early, with the round of least conditional entropy kept

    def __post_init__(self) -> None:
        self.ended = not self.count
        self._least, self._best = np.inf, self.solved.problem.pseudo_labels
        self._decision: Decision | None = None
        self._before: Decision | None = None

    @property
    def number(self) -> int:
        """Number of the next round, from 1."""
        return len(self.rounds) + 1

    def query(self, features: LandmarkMap | FourierMap | KeptMap, sides: SourceTarget) -> LabelQuery:
        """Return the query of this round's pseudo-labels, over the columns of a centred map."""
        decision, slope = self.method.decision(self.solved, self.number)
        self._decision = decision
        shift = features.shift
        assert shift is not None
        now, before = (
            None if f is None else replace(f, intercept=f.intercept + shift.astype(np.float64) @ f.coef)
            for f in (decision, self._before)
        )
        assert now is not None
        return LabelQuery(sides, now, slope, before)

    def take(self, labels: PseudoLabels) -> None:
        """End the round: solve with its labels, unless they have not changed."""
        number, unchanged, reduced = self.number, labels.changed == 0 and bool(self.rounds), self.solved.reduced
        if reduced.preimage is not None:
            whitened = labels.reduce(reduced.whitening)
            labels = replace(labels, congruence=congruence(reduced.aligned, whitened, reduced.preimage))
        self._before = self._decision
        self.rounds.append(
            {"entropy": labels.entropy, "conditional_entropy": labels.conditional_entropy, "changed": labels.changed}
        )
        if labels.conditional_entropy <= self._least:
            self._least, self._best = labels.conditional_entropy, self.solved.problem.pseudo_labels
        last = number == self.count or unchanged
        self.fault = self._collapse(labels, number, last=last) if self.method.guarded else ""
        self.ended = last or bool(self.fault)
        if unchanged and not self.fault:
            return
        problem = replace(self.solved.problem, pseudo_labels=self._best if self.fault else labels)
        self.solved = solve(self.method, problem, self.solved.whitening, reduced=self.solved.reduced, estimate=False)

    @property
    def mismatch(self) -> str:
        """The warning that the classes of source and target differ, or ""."""
        labels = self.solved.problem.pseudo_labels
        if labels is None or labels.congruence is None or labels.congruence >= CONGRUENT:
            return ""
        return (
            f"{self.method.name}: the classes of the target lie unlike those of the source (congruence of class means "
            f"{labels.congruence:.2f}, expected at least {CONGRUENT}), so that predicted classes may be wrong; scale "
            "each domain by itself, and compare with a classifier of the source on a few labels of the target"
        )

    def _collapse(self, labels: PseudoLabels, number: int, *, last: bool) -> str:
        """Return the warning of a collapse, or ""."""
        entropy, least, name = labels.conditional_entropy, self._least, self.method.name
        if entropy > FLAT and (last or number >= TRIAL_ROUNDS):
            share = labels.counts.max() / max(labels.counts.sum(), 1e-300)
            return (
                f"{name}: the pseudo-labels collapsed after {number} rounds (conditional entropy {entropy:.2f}, "
                f"expected at most {FLAT}; the largest class has {100 * share:.0f} % of the target): keeping the "
                "round of least entropy; use a larger sharpness, or a source closer to the target"
            )
        if entropy > least + SLACK:
            return (
                f"{name}: the conditional entropy of the pseudo-labels rises from {least:.2f} to {entropy:.2f} in "
                f"round {number}: keeping the round of least entropy; use a larger sharpness or fewer rounds"
            )
        return ""


def self_train(method: AdaptingMethod[A], solved: Solved[ReducedSides, A], data: Training, report: Report) -> MomentFit:
    """Return the fit after at most `n_rounds` rounds from a first solution.

    There are fewer if no label changes; if labels collapse, the round of least conditional entropy is kept.
    """
    if method.n_rounds:  # the error of the last solution is estimated
        solved.diagnostics.errors = None
    fit, sides = record(method, solved, report, skipped(report)), data.sides
    rounds, basis = SelfTraining(method, solved, method.n_rounds), of_kernel(fit.basis)
    with keeping_blocks(basis.features(), data.rows, reserved_bytes=driver_bytes(basis.width, None)) as kept:
        features = replace(kept, shift=basis.centred().shift)
        while not rounds.ended:
            statistic = JointPseudoLabels(features, (rounds.query(features, sides),))
            total = sweep(data.rows, statistic, what=f"round-{rounds.number}").total
            rounds.take(*statistic.labels(total, features.shift))
    solved = rounds.solved
    if rounds.rounds:
        solved.diagnostics.errors = estimate_error(method, solved.problem, solved.whitening, solved.solution)
        solved.diagnostics.warn()
    if rounds.fault:
        warnings.warn(rounds.fault, CollapsedLabelsWarning, 7)
    elif rounds.mismatch:
        warnings.warn(rounds.mismatch, DifferentClassesWarning, 7)
    diagnostics = {**fit.diagnostics, **solved.diagnostics.report()}
    return replace(
        fit,
        solution=solved.solution,
        pseudo_labels=solved.problem.pseudo_labels,
        diagnostics=diagnostics if rounds.rounds else fit.diagnostics,
        rounds=rounds.rounds,
    )


# -- shared by the two estimators: rows of source and target, landmarks of both ----------------------------------------


def fit_sides(
    estimator: Sided,
    X: RowsLike,
    y: ColumnLike = None,
    sample_domain: ColumnLike = None,
    sample_weight: ColumnLike = None,
) -> Sided:
    """Fit to rows X (n, d) of both domains and labels y (n,), −1 (among text "-1") where unlabelled.

    Parameters
    ----------
    y : (n,) labels; None for a corpus or Rows, which carry their own
    sample_domain : (n,) integers or names, or None: the column `domain`, or else labelled and unlabelled rows
    sample_weight : (n,), or None: the column `weight`

    Raises
    ------
    DataError
        There is no labelled row, only one class, or a label in every domain, so that there is nothing to adapt to.
    """
    return RowsEstimator.fit(estimator, X, y, sample_weight, sample_domain=sample_domain)


def median_kernel(estimator: LandmarkEstimator) -> Kernel:
    """Return the kernel; for gamma="median" a Gaussian has the bandwidth of the median distance of landmarks."""
    kernel, gamma = estimator.kernel, estimator.gamma
    if gamma == "median" and isinstance(kernel, str) and kernel in ("rbf", "gaussian"):
        return MedianGaussian()
    gamma = "scale" if gamma == "median" else gamma
    return as_kernel(kernel, gamma=gamma, degree=estimator.degree, coef0=estimator.coef0)


def check_choice(estimator: LandmarkEstimator) -> None:
    """Check the choice of landmarks, which need no number."""
    check_landmarks(estimator.landmarks, estimator.n_landmarks, uncounted=CHOICES)


def read_sides(
    estimator: LandmarkEstimator,
    X: RowsLike,
    y: ColumnLike,
    sample_domain: ColumnLike,
    sample_weight: ColumnLike,
    *,
    least: int = 1,
) -> Training:
    """Return validated rows with source and target, and their names; raises as `with_sides`."""
    return with_sides(
        estimator, read_cells(estimator, X, y, sample_domain, sample_weight, fallback="labels"), least=least
    )


def with_sides(estimator: LandmarkEstimator, data: Training, *, least: int = 1) -> Training:
    """Split rows into source and target, and add the names of their domains.

    Without domains the labelled rows are the source. With them, domains without any label are the target, and rows
    without a label in a domain that has some are left out. `DataError`: the target has fewer than `least` rows, or
    there is no source.
    """
    cells = data.cells
    inputs, domains, name = data.inputs, data.inputs.domains, type(estimator).__name__
    rows = with_label_domains(estimator, data.rows, cells)
    assert domains is not None
    counts = cell_counts(rows, cells)
    source = counts[:, : cells.n_classes].sum(axis=1) > 0
    target_rows = int(counts[~source].sum())
    if not target_rows:
        named = ", ".join(map(str, domains[:5])) + (", …" if len(source) > 5 else "")
        missing = "-1" if inputs.classes is not None and inputs.classes.dtype.kind == "U" else -1
        where, cure = "all rows are labelled", f"pass {missing!r} as their labels"
        if cells.domains is not None:
            where = f"every domain ({named}) has labelled rows"
            cure = f"pass, for example, np.where(sample_domain == {domains.tolist()[-1]!r}, {missing!r}, y)"
        raise DataError(
            f"y: {name} needs unlabelled rows of a target domain, but {where}; {cure}, or leave these rows unlabelled "
            "in a corpus"
        )
    if target_rows < least:
        raise DataError(f"y: {name} expects at least {least} rows of the target, found {target_rows}")
    if not source.any():
        raise DataError(f"y: {name} expects labelled rows of a source domain, found none")
    inputs = replace(inputs, source_domains=domains[source], target_domains=domains[~source])
    return Training(rows, SourceTarget(cells, source), inputs)


def with_label_domains(estimator: LandmarkEstimator, rows: Rows, cells: Cells) -> Rows:
    """Add a column `domain` where landmarks are balanced over domains that only labels define."""
    landmarks = estimator.landmarks
    if "domain" in rows.columns or not (isinstance(landmarks, str) and "balanced" in landmarks):
        return rows
    labels = Chunk(np.empty((len(rows), 0)), y=rows.column("y"))
    return as_rows(rows, domain=cells.domain(labels).astype(np.int8))


def pseudo_labels_of(estimator: LandmarkEstimator) -> PseudoLabels | None:
    """Return the sums of the target's features by class of the last solution; None if it used none."""
    fit = estimator._fitted
    if not isinstance(fit, MomentFit):
        raise AttributeError(f"{type(estimator).__name__!r} object has no attribute 'pseudo_labels_'")
    return fit.pseudo_labels
