"""Rounds of pseudo-labels, for JDA, ARTL and SSSL with aligned eigenfunctions.

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
from bigkernel.estimators.fit_state import Fitted, Inputs, MomentFit, Problem, Solved
from bigkernel.estimators.parameter_checks import require_exact
from bigkernel.estimators.state_schema import SOLUTION, Integers, Labels, PseudoLabelSums, Statistics
from bigkernel.kernels import uniform_landmarks as draws
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.bandwidths import MedianGaussian
from bigkernel.kernels.functions import as_kernel
from bigkernel.monitor.scope import part_of_job
from bigkernel.solvers.jda import Aligned, SidedMomentStatistic
from bigkernel.solvers.pseudo_labels import Decision, PseudoLabels, PseudoLabelStatistic, Sides
from bigkernel.solvers.ridge import Whitening
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Plan

Array = NDArray[Any]
FLAT = 0.75  # of the equivocation: labels that tell less than a quarter of what there is to know of a class
SLACK = 0.02  # by which it may rise above its least without being a collapse
TRIAL_ROUNDS = 3  # before labels are judged flat


class PseudoLabelRounds:
    """Mixin of landmark estimators: the rounds, given how a solution decides.

    Attributes
    ----------
    pseudo_labels_ : PseudoLabels over the columns of the map, by which the last solution was made; None: by none
    rounds_ : list of dict, one a round: `entropy` of the soft labels (mean a row, nats), `equivocation` (their entropy
        as a share of that of the classes at large), `changed` (share of the target whose predicted class is new)
    """

    _fitted: Any
    _guarded = False  # against labels that become flat, or of one class
    rounds_ = Fitted("rounds")

    @property
    def pseudo_labels_(self) -> PseudoLabels | None:
        """See the attributes."""
        if not isinstance(self._fitted, MomentFit):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'pseudo_labels_'")
        return self._fitted.pseudo_labels

    def _decision(self, solved: Solved, number: int) -> tuple[Decision, float]:
        """f over the columns of the map by a solution, and the slope of the softmax in round `number`."""
        raise TypeError(type(self).__name__)

    def _adapt(self, rows: Rows, sides: Sides, count: int, solved: Solved, report: dict[str, Any]) -> MomentFit:
        """The fit after at most `count` rounds from a first solution and the report of its sweep.

        Fewer where no label changes; where labels collapse, the least equivocal round is kept.
        """
        kept = {"sweep": report, "skipped_rows": report["skipped_rows"]}
        if count:  # what is told is of the last solution
            solved.certificates.errors = None
        fit: MomentFit = self._settle(solved, **kept)  # type: ignore[attr-defined]
        rounds: list[dict[str, float]] = []
        before, fault, least, best = None, "", np.inf, solved.problem.pseudo_labels
        for number in range(1, count + 1):
            decision, slope = self._decision(solved, number)
            labels = _sweep_pseudo_labels(rows, sides, fit.basis.centred(), decision, slope, before, number)
            before = decision
            rounds.append({"entropy": labels.entropy, "equivocation": labels.equivocation, "changed": labels.changed})
            if labels.equivocation <= least:
                least, best = labels.equivocation, solved.problem.pseudo_labels
            settled = number == count or (number > 1 and labels.changed == 0)
            fault = self._collapse(labels, least, number, settled) if self._guarded else ""
            if not fault and number > 1 and labels.changed == 0:
                break
            problem = replace(solved.problem, pseudo_labels=best if fault else labels)
            solved = self._solved(problem, solved.whitening, reduced=solved.reduced, tell=False)  # type: ignore[attr-defined]
            if fault:
                break
        if rounds:
            assert solved.whitening is not None
            solved.certificates.errors = told(self, solved.problem, solved.whitening, solved.solution)
            solved.certificates.warn()
        if fault:
            warnings.warn(fault, PseudoLabelsCollapsed, 6)
        certificates = {**fit.certificates, **solved.certificates.report()}
        return replace(
            fit,
            solution=solved.solution,
            pseudo_labels=solved.problem.pseudo_labels,
            certificates=certificates if rounds else fit.certificates,
            rounds=rounds,
        )

    def _collapse(self, labels: PseudoLabels, least: float, number: int, settled: bool) -> str:
        """Return the warning that is due, or nothing."""
        found, name = labels.equivocation, type(self).__name__
        if found > FLAT and (settled or number >= TRIAL_ROUNDS):
            share = labels.counts.max() / max(labels.counts.sum(), 1e-300)
            return (
                f"{name}: after {number} rounds the pseudo-labels tell too little (equivocation {found:.2f}, expected "
                f"at most {FLAT}; the largest class has {100 * share:.0f} % of the target): the least equivocal round "
                "is kept; take a larger sharpness, or a source that is more like the target"
            )
        if found > least + SLACK:
            return (
                f"{name}: the equivocation of the pseudo-labels rises, from {least:.2f} to {found:.2f} in round "
                f"{number}: the least equivocal round is kept; take a larger sharpness or fewer rounds"
            )
        return ""


def _sweep_pseudo_labels(
    rows: Rows, sides: Sides, features: Any, decision: Decision, slope: float, before: Decision | None, number: int
) -> PseudoLabels:
    """The pseudo-labels of round `number`, from one sweep of the target; `before`: the decision of the last round."""
    about, about_before = (
        None if f is None else replace(f, intercept=f.intercept + features.shift.astype(np.float64) @ f.coef)
        for f in (decision, before)
    )
    assert about is not None
    statistic = PseudoLabelStatistic(features, sides, about, slope, about_before)
    swept = sweep(rows, statistic, what=f"round-{number}")
    return PseudoLabels.of(swept.total, features.shift)


@dataclass(frozen=True, eq=False)
class ReducedSides:
    """Shared by all rounds: the whitening, both sides' moments in it, and the graph, where the method has one."""

    whitening: Whitening
    aligned: Aligned
    graph: Array | None = None


class SidedEstimator(PseudoLabelRounds, DomainedEstimator):
    """Base of the estimators of a labelled source and an unlabelled target, each row of either kind by its domain.

    Without domains the labelled rows are the source. With them, a domain without any label is the target, and rows
    without a label in a domain that has some are left out.

    Attributes
    ----------
    source_domains_, target_domains_ : (·,) integers; 0 and 1 where there are no domains
    """

    unlabelled = "keep"
    _of_every_row = ("uniform", "k-means")
    _least_target_rows = 1
    state_schema = (
        *DomainedEstimator.state_schema,
        *SOLUTION,
        Integers("domains_", "inputs.domains"),
        Integers("source_domains_", "inputs.source_domains"),
        Integers("target_domains_", "inputs.target_domains"),
        Labels("classes_", "inputs.classes"),
        Statistics("statistics_", "statistics", groups=2, width=lambda sizes: sizes["k"]),
        PseudoLabelSums("pseudo_labels_", "pseudo_labels"),
    )
    source_domains_ = Fitted("inputs.source_domains")
    target_domains_ = Fitted("inputs.target_domains")

    # -- settings ------------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """False: with every row a landmark the landmark form is exact."""
        return False

    def _kernel(self) -> Kernel:
        if self.gamma == "median" and isinstance(self.kernel, str) and self.kernel in ("rbf", "gaussian"):
            return MedianGaussian()
        gamma = None if self.gamma == "median" else self.gamma
        return as_kernel(self.kernel, gamma=gamma, degree=self.degree, coef0=self.coef0)

    def _choose(self, rows: Rows, *, look: bool) -> Array:
        """The landmarks (m, d): every row where n_landmarks does not say how many."""
        if self.n_landmarks is not None or not isinstance(self.landmarks, str):
            return super()._choose(rows, look=look)
        require_exact(type(self).__name__, len(rows))
        return draws.given(rows.take(np.arange(len(rows))), rows.shape[1])

    # -- training input ----------------------------------------------------------------------------------------------

    def _read_sides(self, X: Any, y: Any, sample_domain: Any, sample_weight: Any) -> tuple[Rows, Sides, Inputs]:
        """Validated rows, which of them are source and target, and their names.

        Raises
        ------
        DataError
            No row without a label in a domain of its own, or too few of them.
        """
        rows, cells, inputs = self._read(X, y, sample_domain, sample_weight, fallback="labels")
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
        return (
            rows,
            Sides(cells, source),
            replace(inputs, source_domains=domains[source], target_domains=domains[~source]),
        )

    def _fit_sides(self, X: Any, y: Any, sample_domain: Any, sample_weight: Any) -> Self:
        self.check_parameters()
        rows, sides, inputs = self._read_sides(X, y, sample_domain, sample_weight)
        with part_of_job(f"{type(self).__name__}.fit"):
            basis = self.basis(self._with_sides(rows, sides))
            solved, report = sweep_until_right(self, rows, sides, inputs, basis)
            self._fitted = self._adapt(rows, sides, self.n_rounds, solved, report)
        return self

    def _with_sides(self, rows: Rows, sides: Sides) -> Rows:
        """Rows with a column `domain` where landmarks are balanced over domains that only labels tell."""
        if "domain" in rows.columns or not (isinstance(self.landmarks, str) and "balanced" in self.landmarks):
            return rows
        labels = Chunk(np.empty((len(rows), 0)), y=rows.column("y"))
        return as_rows(rows, domain=sides.cells.domain(labels).astype(np.int8))

    def plan(self, X: Any, y: Any = None, sample_domain: Any = None) -> Plan:
        """Return the plan of the sweep of moments on these rows, without running it; a round costs less.

        Returns
        -------
        Plan
            Rows, chunks, segments, flops, bytes read and memory of a task of the sweep.
        """
        self._check_settings()
        other = self.__class__(**self.get_params(deep=False))
        rows, sides, _ = other._read_sides(X, y, sample_domain, None)
        basis = other.basis(other._with_sides(rows, sides), look=False)
        return other._planned(rows, sides, basis)

    def with_landmarks(self, count: int) -> Self:
        """Refused: the rounds depend on all landmarks.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(f"{type(self).__name__}: with_landmarks would need new rounds; fit with n_landmarks={count}")

    # -- the sweeps --------------------------------------------------------------------------------------------------

    def _statistic(self, basis: Any, sides: Any) -> Any:
        cells = sides.cells
        targets = Targets(cells.n_classes, cells.classes, cells.position)
        return SidedMomentStatistic(basis.centred(), targets, sides=sides, sums=basis.sum_dtype)

    def sweep(
        self,
        rows: Rows,
        targets: Any,
        inputs: Inputs,
        basis: Any,
        whitening: Whitening | None = None,
        what: str = "moments",
    ) -> tuple[Problem, dict[str, Any]]:
        """Sum up the rows: what a solve starts from, and the report of the sweep."""
        problem, report = super().sweep(rows, targets, inputs, basis, whitening, what)
        for group, side in enumerate(("target", "labelled source")):
            if not problem.statistics["n"][group] > 0:
                raise DataError(f"weight: no row of the {side} has a weight above zero")
        return problem, report

    def _reduce(self, problem: Problem, whitening: Whitening) -> ReducedSides:
        return ReducedSides(whitening, Aligned.of(problem.statistics, whitening, shift=problem.centre))

    def fit_report(self) -> dict[str, Any]:
        """As of every landmark estimator, with `source_rows`, `target_rows` and `rounds`."""
        report: dict[str, Any] = super().fit_report()
        target, source = (int(count) for count in self.statistics_["rows"])
        report["source_rows"], report["target_rows"] = source, target
        report["rounds"] = list(self.rounds_)
        return report
