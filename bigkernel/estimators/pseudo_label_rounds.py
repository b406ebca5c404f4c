"""Rounds of pseudo-labels, for JDA and ARTL.

A first sweep takes the moments of both sides. Every round after it sweeps the target alone: what the last solution
says of its rows, as sums of features by class (`solvers.pseudo_labels`), then solves again. All of it is transductive:
the target's rows are seen, its labels never.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError, PseudoLabelsCollapsed
from bigkernel.estimators.arithmetic import sweep_until_right, told
from bigkernel.estimators.domain_base import DomainedEstimator, cell_counts
from bigkernel.estimators.exact_rows import EveryRowALandmark
from bigkernel.estimators.fit_state import Fitted, Inputs, MomentFit, Problem, Solved
from bigkernel.estimators.label_course import Course
from bigkernel.events.scope import part_of_job
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.bandwidths import MedianGaussian
from bigkernel.kernels.functions import as_kernel
from bigkernel.solvers.adaptation import Aligned, SidedMomentStatistic
from bigkernel.solvers.pseudo_labels import Decision, JointPseudoLabels, PseudoLabels, Sides
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import Cells
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ReducedSides:
    """Shared by all rounds: the whitening, both sides' moments in it, and the graph, where the method has one."""

    whitening: Whitening
    aligned: Aligned
    graph: Array | None = None


class SidedEstimator(EveryRowALandmark, DomainedEstimator):
    """Base of the estimators of a labelled source and an unlabelled target, each row of either kind by its domain.

    Without domains the labelled rows are the source. With them, a domain without any label is the target, and rows
    without a label in a domain that has some are left out.

    Attributes
    ----------
    source_domains_, target_domains_ : (·,) integers; 0 and 1 where there are no domains
    pseudo_labels_ : PseudoLabels over the columns of the map, by which the last solution was made; None: by none
    rounds_ : list of dict, one a round: `entropy` of the soft labels (mean a row, nats), `equivocation` (their entropy
        as a share of that of the classes at large), `changed` (share of the target whose predicted class is new)
    """

    guarded = False  # against labels that become flat, or of one class
    rounds_ = Fitted("rounds")

    unlabelled = "keep"
    _of_every_row = ("uniform", "k-means")
    _least_target_rows = 1
    source_domains_ = Fitted("inputs.source_domains")
    target_domains_ = Fitted("inputs.target_domains")

    # -- settings ------------------------------------------------------------------------------------------------------

    def given_kernel(self) -> Kernel:
        """See `KernelEstimator`."""
        if self.gamma == "median" and isinstance(self.kernel, str) and self.kernel in ("rbf", "gaussian"):
            return MedianGaussian()
        gamma = "scale" if self.gamma == "median" else self.gamma
        return as_kernel(self.kernel, gamma=gamma, degree=self.degree, coef0=self.coef0)

    # -- training input ----------------------------------------------------------------------------------------------

    def _read_fit(self, X: Any, y: Any, sample_domain: Any, sample_weight: Any) -> tuple[Rows, Sides, Inputs]:
        """Validated rows, which of them are source and target, and their names.

        Raises
        ------
        DataError
            No row without a label in a domain of its own, or too few of them.
        """
        rows, cells, inputs = self._read(X, y, sample_domain, sample_weight, fallback="labels")
        return rows, *self._sides(rows, cells, inputs)

    def _sides(self, rows: Rows, cells: Cells, inputs: Inputs) -> tuple[Sides, Inputs]:
        """Which rows are source and target, and the names with those of their domains; raises as `_read_fit`."""
        domains = inputs.domains
        assert domains is not None
        counts = cell_counts(rows, cells)
        source = counts[:, : cells.n_classes].sum(axis=1) > 0
        found, least = int(counts[~source].sum()), self._least_target_rows
        name = type(self).__name__
        if not found:
            named = ", ".join(map(str, domains[:5])) + (", …" if len(source) > 5 else "")
            where = "all rows are labelled" if cells.domains is None else f"every domain ({named}) has labelled rows"
            raise DataError(
                f"y: {name} has nothing to adapt to, {where}; expected the rows of a target without labels: -1 in "
                "their place, the other labels numbers, or the target's rows in a corpus of named classes"
            )
        if found < least:
            raise DataError(f"y: {name} needs at least {least} rows of the target, to see how they vary; found {found}")
        if not source.any():
            raise DataError(f"y: {name} needs labelled rows of a source domain; found none")
        return Sides(cells, source), replace(inputs, source_domains=domains[source], target_domains=domains[~source])

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X (n, d) of both domains and labels y (n,), −1 (among text "-1") where unlabelled.

        Parameters
        ----------
        y : None for a corpus or Rows, which carry their own
        sample_domain : (n,) integers, or None: the column `domain` of the rows, and without one the labels tell
        sample_weight : (n,), or None: the column `weight`; copies of a row that are made up weigh its share each

        Raises
        ------
        DataError
            No labelled row, labels of one class alone, or labels in every domain: there is nothing to adapt to.
        """
        self.check_parameters()
        rows, sides, inputs = self._read_fit(X, y, sample_domain, sample_weight)
        with part_of_job(f"{type(self).__name__}.fit"):
            solved, report = sweep_until_right(self, rows, sides, inputs, self._basis_of(rows, sides))
            self._fitted = self._adapt(rows, sides, self.n_rounds, solved, report)
        return self

    def adopt(self, rows: Rows, targets: Any, inputs: Inputs, basis: Any, problem: Problem | None) -> Self:
        """See `RowsEstimator`; the rounds are sweeps of its own. With `probability` so is the first."""
        self._see(inputs)
        sides, inputs = self._sides(rows, targets.cells, inputs)
        swept: tuple[Problem, dict[str, Any]] | None = None
        if problem is not None and not getattr(self, "probability", False):
            swept = replace(problem, inputs=inputs), {}
        solved, report = sweep_until_right(self, rows, sides, inputs, basis, swept)
        self._fitted = self._adapt(rows, sides, self.n_rounds, solved, report)
        return self

    def _with_domains(self, rows: Rows, cells: Cells) -> Rows:
        """Rows with a column `domain` where landmarks are balanced over domains that only labels tell."""
        if "domain" in rows.columns or not (isinstance(self.landmarks, str) and "balanced" in self.landmarks):
            return rows
        labels = Chunk(np.empty((len(rows), 0)), y=rows.column("y"))
        return as_rows(rows, domain=cells.domain(labels).astype(np.int8))

    def _basis_of(self, rows: Rows, targets: Any, *, look: bool = True) -> Any:
        return self.basis(self._with_domains(rows, targets.cells), look=look)

    def with_landmarks(self, count: int) -> Self:
        """Refused: the rounds depend on all landmarks.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(f"{type(self).__name__}: with_landmarks would need new rounds; fit with n_landmarks={count}")

    # -- the rounds ----------------------------------------------------------------------------------------------------

    @property
    def pseudo_labels_(self) -> PseudoLabels | None:
        """See the attributes."""
        if not isinstance(self._fitted, MomentFit):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'pseudo_labels_'")
        return self._fitted.pseudo_labels

    def decision(self, solved: Solved, number: int) -> tuple[Decision, float]:
        """f over the columns of the map by a solution, and the slope of the softmax in round `number`."""
        raise TypeError(type(self).__name__)

    def _adapt(self, rows: Rows, sides: Sides, count: int, solved: Solved, report: dict[str, Any]) -> MomentFit:
        """The fit after at most `count` rounds from a first solution and the report of its sweep.

        Fewer where no label changes; where labels collapse, the least equivocal round is kept.
        """
        kept = {"sweep": report, "skipped_rows": report.get("skipped_rows", 0)}
        if count:  # what is told is of the last solution
            solved.certificates.errors = None
        fit = self._settle(solved, **kept)
        course, features = Course(self, solved, count), fit.basis.centred()
        while not course.ended:
            statistic = JointPseudoLabels(features, (course.asked(features, sides),))
            total = sweep(rows, statistic, what=f"round-{course.number}").total
            course.take(*statistic.labels(total, features.shift))
        solved = course.solved
        if course.rounds:
            assert solved.whitening is not None
            solved.certificates.errors = told(self, solved.problem, solved.whitening, solved.solution)
            solved.certificates.warn()
        if course.fault:
            warnings.warn(course.fault, PseudoLabelsCollapsed, 6)
        certificates = {**fit.certificates, **solved.certificates.report()}
        return replace(
            fit,
            solution=solved.solution,
            pseudo_labels=solved.problem.pseudo_labels,
            certificates=certificates if course.rounds else fit.certificates,
            rounds=course.rounds,
        )

    # -- the sweeps --------------------------------------------------------------------------------------------------

    def _statistic(self, basis: Any, sides: Any) -> Any:
        cells = sides.cells
        targets = Targets(cells.n_classes, cells.classes, cells.position)
        return SidedMomentStatistic(basis.centred(), targets, sides=sides, sums=basis.sum_dtype)

    def _summed(self, problem: Problem, rows: Rows) -> Problem:
        problem = super()._summed(problem, rows)
        for group, side in enumerate(("target", "labelled source")):
            if not problem.statistics["n"][group] > 0:
                raise DataError(f"weight: no row of the {side} has a weight above zero")
        return problem

    def _reduce(self, problem: Problem, whitening: Whitening) -> ReducedSides:
        return ReducedSides(whitening, Aligned.of(problem.statistics, whitening, shift=problem.centre))

    def fit_report(self) -> dict[str, Any]:
        """As of every landmark estimator, with `source_rows`, `target_rows` and `rounds`."""
        report: dict[str, Any] = super().fit_report()
        target, source = (int(count) for count in self.statistics_["rows"])
        report["source_rows"], report["target_rows"] = source, target
        report["rounds"] = list(self.rounds_)
        return report
