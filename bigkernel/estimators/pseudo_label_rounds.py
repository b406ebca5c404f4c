"""Rounds of pseudo-labels: what JDA, ARTL and SSSL with aligned eigenfunctions share.

A first sweep takes the moments of both sides. Every round after it sweeps the target alone: what the last solution
says of its rows, as sums of features by class (`solvers.pseudo_labels`), then solves again. All of it is transductive:
the target's rows are seen, its labels never.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import ConfigError, DataError, PseudoLabelsCollapsed
from bigkernel.estimators.domain_base import DomainedEstimator, cell_counts
from bigkernel.estimators.parameter_checks import require_exact
from bigkernel.kernels.bandwidths import MedianGaussian
from bigkernel.kernels.functions import Kernel, as_kernel
from bigkernel.monitor.scope import part_of_job
from bigkernel.solvers.jda import Aligned, SidedMomentStatistic
from bigkernel.solvers.pseudo_labels import Decision, PseudoLabels, PseudoLabelStatistic, Sides
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import Whitening
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.merge_tree import Accumulator
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

    pseudo_labels_: PseudoLabels | None
    rounds_: list[dict[str, float]]
    certificates_: dict[str, float | int]
    _guarded = False  # against labels that become flat, or of one class

    def _decision(self, number: int) -> tuple[Decision, float]:
        """f over the columns of the map by the last solution, and the slope of the softmax in round `number`."""
        raise TypeError(type(self).__name__)

    def _told(self, rows: Rows, sides: Sides, number: int, before: Decision | None) -> tuple[PseudoLabels, Decision]:
        """The pseudo-labels of round `number`, from one sweep of the target, and the decision that gave them."""
        features = self._centred()  # type: ignore[attr-defined]
        decision, slope = self._decision(number)
        about = [
            None if f is None else replace(f, intercept=f.intercept + features.shift.astype(np.float64) @ f.coef)
            for f in (decision, before)
        ]
        assert about[0] is not None
        statistic = PseudoLabelStatistic(features, sides, about[0], slope, about[1])
        swept = sweep(rows, statistic, what=f"round-{number}")
        return PseudoLabels.of(swept.total, features.shift), decision

    def _adapt(self, rows: Rows, sides: Sides, count: int) -> None:
        """At most `count` rounds, fewer where no label changes; where labels collapse, the least equivocal is kept."""
        self.rounds_, before, certificates, fault = [], None, Certificates(), ""
        least, best = np.inf, self.pseudo_labels_
        for number in range(1, count + 1):
            labels, before = self._told(rows, sides, number, before)
            self.rounds_.append(
                {"entropy": labels.entropy, "equivocation": labels.equivocation, "changed": labels.changed}
            )
            if labels.equivocation <= least:
                least, best = labels.equivocation, self.pseudo_labels_
            settled = number == count or (number > 1 and labels.changed == 0)
            fault = self._collapse(labels, least, number, settled) if self._guarded else ""
            if fault:
                self.pseudo_labels_ = best
                certificates = self._solved()  # type: ignore[attr-defined]
                break
            if number > 1 and labels.changed == 0:
                break
            self.pseudo_labels_ = labels
            certificates = self._solved()  # type: ignore[attr-defined]
        if self.rounds_:
            certificates.warn()
            self.certificates_ = {**self.certificates_, **certificates.report()}
        if fault:
            warnings.warn(fault, PseudoLabelsCollapsed, 6)

    def _collapse(self, labels: PseudoLabels, least: float, number: int, settled: bool) -> str:
        """What is to be warned of, or nothing."""
        told, name = labels.equivocation, type(self).__name__
        if told > FLAT and (settled or number >= TRIAL_ROUNDS):
            share = labels.counts.max() / max(labels.counts.sum(), 1e-300)
            return (
                f"{name}: after {number} rounds the pseudo-labels tell too little (equivocation {told:.2f}, expected "
                f"at most {FLAT}; the largest class has {100 * share:.0f} % of the target): the least equivocal round "
                "is kept; take a larger sharpness, or a source that is more like the target"
            )
        if told > least + SLACK:
            return (
                f"{name}: the equivocation of the pseudo-labels rises, from {least:.2f} to {told:.2f} in round "
                f"{number}: the least equivocal round is kept; take a larger sharpness or fewer rounds"
            )
        return ""


class SidedEstimator(PseudoLabelRounds, DomainedEstimator):
    """Base of the estimators of a labelled source and an unlabelled target, each row of either kind by its domain.

    Without domains the labelled rows are the source. With them, a domain without any label is the target, and rows
    without a label in a domain that has some are left out.

    Attributes
    ----------
    source_domains_, target_domains_ : (·,) integers; 0 and 1 where there are no domains
    """

    landmarks: Any
    _unlabelled = "keep"
    _least_target_rows = 1
    _reduced: tuple[Array, Certificates, Any] | None = None

    # -- settings ----------------------------------------------------------------------------------------------------

    @property
    def _exact(self) -> bool:
        return False  # with every row a landmark the landmark form is exact

    @property
    def _every_row(self) -> bool:
        return self.n_landmarks is None and isinstance(self.landmarks, str)

    def _kernel(self) -> Kernel:
        if self.gamma == "median" and isinstance(self.kernel, str) and self.kernel in ("rbf", "gaussian"):
            return MedianGaussian()
        gamma = None if self.gamma == "median" else self.gamma
        return as_kernel(self.kernel, gamma=gamma, degree=self.degree, coef0=self.coef0)

    def _start(self, rows: Rows, *, look: bool = True) -> None:
        if not self._every_row:
            super()._start(rows, look=look)
            return
        require_exact(type(self).__name__, len(rows))
        choice = self.landmarks
        self.landmarks = rows.take(np.arange(len(rows)))
        try:
            super()._start(rows, look=look)
        finally:
            self.landmarks = choice

    # -- training input ----------------------------------------------------------------------------------------------

    def _sided(self, X: Any, y: Any, sample_domain: Any, sample_weight: Any) -> tuple[Rows, Sides]:
        """Validated rows, and which of them are source and target.

        Raises
        ------
        DataError
            No row without a label in a domain of its own, or too few of them.
        """
        rows, cells = self._door(X, y, sample_domain, sample_weight, fallback="labels")
        counts = cell_counts(rows, cells)
        source = counts[:, : cells.n_classes].sum(axis=1) > 0
        found, least = int(counts[~source].sum()), self._least_target_rows
        name = type(self).__name__
        if not found:
            domains = ", ".join(map(str, self.domains_[:5])) + (", …" if len(source) > 5 else "")
            where = "all rows are labelled" if cells.domains is None else f"every domain ({domains}) has labelled rows"
            raise DataError(
                f"y: {name} has nothing to adapt to, {where}; expected the rows of a target without labels: -1 in "
                "their place, the other labels numbers, or the target's rows in a corpus of named classes"
            )
        if found < least:
            raise DataError(f"y: {name} needs at least {least} rows of the target, to see how they vary; found {found}")
        if not source.any():
            raise DataError(f"y: {name} needs labelled rows of a source domain; found none")
        self.source_domains_, self.target_domains_ = self.domains_[source], self.domains_[~source]
        return rows, Sides(cells, source)

    def _fit_sides(self, X: Any, y: Any, sample_domain: Any, sample_weight: Any) -> Self:
        self._validate_params()
        self._check_settings()
        rows, sides = self._sided(X, y, sample_domain, sample_weight)
        with part_of_job(f"{type(self).__name__}.fit"):
            self._start(self._with_sides(rows, sides))
            self._learn(rows, sides)
        return self

    def _with_sides(self, rows: Rows, sides: Sides) -> Rows:
        """Rows with a column `domain` where landmarks are balanced over domains that only labels tell."""
        if "domain" in rows.columns or not (isinstance(self.landmarks, str) and "balanced" in self.landmarks):
            return rows
        told = Chunk(np.empty((len(rows), 0)), y=rows.column("y"))
        return as_rows(rows, domain=sides.cells.domain(told).astype(np.int8))

    def plan(self, X: Any, y: Any = None, sample_domain: Any = None) -> Plan:
        """What the sweep of moments on these rows would cost, without running it; a round costs less.

        Returns
        -------
        Plan
            Rows, chunks, segments, flops, bytes read and memory of a task of the sweep.
        """
        self._check_settings()
        other = self.__class__(**self.get_params(deep=False))
        rows, sides = other._sided(X, y, sample_domain, None)
        other._start(other._with_sides(rows, sides), look=False)
        return plan_sweep(rows, other._statistic(sides))

    def with_landmarks(self, count: int) -> Self:
        """Refused: the rounds depend on all landmarks.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(f"{type(self).__name__}: with_landmarks would need new rounds; fit with n_landmarks={count}")

    # -- the sweeps --------------------------------------------------------------------------------------------------

    def _statistic(self, sides: Any) -> Any:
        cells = sides.cells
        return SidedMomentStatistic(
            self._centred(), Targets(cells.n_classes, cells.classes, cells.position), sides=sides
        )

    def _sweep(self, rows: Rows, sides: Any) -> Accumulator:
        total = super()._sweep(rows, sides)
        weights = total["n"]
        for group, side in enumerate(("target", "labelled source")):
            if not weights[group] > 0:
                raise DataError(f"weight: no row of the {side} has a weight above zero")
        return total

    def _learn(self, rows: Rows, sides: Any) -> None:
        self.pseudo_labels_ = None
        try:
            super()._learn(rows, sides)
            self._adapt(rows, sides, self.n_rounds)
        finally:
            self._forget()

    def _finish(self) -> None:
        try:
            super()._finish()
        finally:
            self._forget()

    def _forget(self) -> None:
        """Leave what only the rounds need."""
        for name in ("_reduced", "_solution"):
            self.__dict__.pop(name, None)

    def _bases(self, certificates: Certificates) -> tuple[Whitening, Aligned, Any]:
        """The whitening, both sides' moments in it and what else a solve needs: made once for all rounds."""
        G = self.statistics_["G"]
        if self._reduced is None or self._reduced[0] is not G:
            own = Certificates()
            whitening = self._whitening(certificates=own)
            certificates.notes += own.notes
            aligned = Aligned.of(self.statistics_, whitening)
            self._reduced = G, own, (whitening, aligned, self._graph(whitening, aligned))
        _, own, bases = self._reduced
        certificates.ratios.update(own.ratios)
        certificates.figures.update(own.figures)
        return bases

    def _graph(self, whitening: Whitening, aligned: Aligned) -> Array | None:
        """The Laplacian in whitened coordinates, where the method has one."""
        return None

    def fit_report(self) -> dict[str, Any]:
        """As of every landmark estimator, with `source_rows`, `target_rows` and `rounds`."""
        report: dict[str, Any] = super().fit_report()
        if hasattr(self, "statistics_"):
            target, source = (int(count) for count in self.statistics_["rows"])
            report["source_rows"], report["target_rows"] = source, target
        report["rounds"] = getattr(self, "rounds_", [])
        return report
