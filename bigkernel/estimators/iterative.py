"""Kernel ridge by conjugate gradients: m beyond what m×m sums allow.

Nothing m×m is summed over the rows: the driver alone holds m×m, a preconditioner and the core. Every step is one
`sweep` of m×c numbers (`statistics.products`), so that a run resumes inside the descent. Shapes: m landmarks, c
targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import Swept, sweep
from bigkernel.errors import Inaccurate
from bigkernel.estimators.descents import Goal, Reached, descend, largest_share, least_objective
from bigkernel.estimators.fit_state import Inputs, IterativeFit, IterativeSolution
from bigkernel.estimators.number_range import require_squares
from bigkernel.estimators.parameter_checks import require_labelled, require_some
from bigkernel.estimators.sub_samples import ByPenalty, Core, Drawn, draw_by_leverage, of_core, of_sub_sample
from bigkernel.events.kinds import Note
from bigkernel.events.scope import emit, spent
from bigkernel.solvers.accuracy import PROMISE
from bigkernel.solvers.preconditioners import PreconditionerChoice
from bigkernel.statistics.leverage import LeverageSample
from bigkernel.statistics.moments import Statistic, Targets
from bigkernel.statistics.products import ProductStatistic
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]


@dataclass
class System:
    """The normal equations as sweeps of rows: A = Σ w bbᵀ + αK, about the mean with an intercept.

    Every penalty has a group of columns, the targets.

    Attributes
    ----------
    rows, targets, basis : of the fit
    goal : what is solved
    core : its products
    sample : rows of the sub-sample, or 0
    looked : the latest look at the residual
    bent : αᵀKα of that look, (c,)
    reports : of each sweep
    what : the sweeps are for, by which they are known
    """

    rows: Rows
    targets: Targets
    basis: Any
    goal: Goal
    core: Core
    sample: int
    looked: dict[str, Array] = field(default_factory=dict)
    bent: Array = field(default_factory=lambda: np.zeros(0))
    reports: list[dict[str, Any]] = field(default_factory=list)
    what: str = "cg"

    @property
    def penalties(self) -> Array:
        """α of each column."""
        return np.repeat(np.array(self.goal.alphas), self.targets.width)

    def columns(self, places: list[int]) -> Array:
        """Those of some penalties."""
        width = self.targets.width
        return np.concatenate([np.arange(place * width, (place + 1) * width) for place in places])

    def part(self, places: list[int]) -> Self:
        """The system of some penalties, whose sweeps are counted with those of all."""
        return replace(self, goal=replace(self.goal, alphas=tuple(self.goal.alphas[place] for place in places)))

    @property
    def weight(self) -> Any:
        """Σw of the rows that columns are fitted to, a number or (c,)."""
        return max(float(self.looked["n"]), 1e-300)

    @property
    def count(self) -> Any:
        """How many rows columns are fitted to, a number or (c,)."""
        return float(self.looked["rows"])

    def along_mean(self, vectors: Array) -> Array:
        """Σ w bᵀv, (c,)."""
        return np.asarray(self.looked["s"] @ vectors)

    def of_mean(self, values: Array) -> Array:
        """Σ w b times values (c,), (m, c)."""
        return np.outer(self.looked["s"], values)

    def residual(self, alpha: Array) -> Array:
        """C − Aα, (m, c), from the rows: better rounded than from sums."""
        self.looked = total = self.seen(self._swept(alpha, residual=True).total)
        of_core = self._core_times(alpha)
        self.bent = (alpha * of_core).sum(axis=0)
        left: Array = total["U"] - self.penalties * of_core
        if self.goal.intercept:
            left -= self.of_mean(total["e"] / self.weight)
        return left

    def product(self, vectors: Array) -> Array:
        """Av, (m, c)."""
        moved: Array = self._swept(vectors).total["U"] + self.penalties * self._core_times(vectors)
        if self.goal.intercept:
            moved -= self.of_mean(self.along_mean(vectors) / self.weight)
        return moved

    def of_sub_sample(self) -> tuple[ByPenalty, Array]:
        """The preconditioner of a sub-sample that one sweep draws, and the solution of its rows alone."""
        statistic = self.draw()
        swept = self._sweep(statistic)
        drawn = statistic.drawn(swept.total)
        require_some(self.rows, self.reports[-1]["skipped_rows"])
        require_labelled(len(drawn[0]), float(drawn[1].sum()))
        emit(Note(f"the normal matrix of {len(drawn[0]):,} rows is made"))
        with spent("preconditioner"):
            return self.preconditioned(drawn)

    def draw(self) -> LeverageSample:
        """What draws the sub-sample."""
        with spent("preconditioner"):
            return draw_by_leverage(self.rows, self.targets, None, self.basis, self.core, self.goal, self.sample)

    def preconditioned(self, drawn: Drawn) -> tuple[ByPenalty, Array]:
        """The preconditioner of drawn rows, and their solution."""
        rows, targets, basis, core = self.rows, self.targets, self.basis, self.core
        return of_sub_sample(rows, targets, basis, core, self.penalties, drawn, intercept=self.goal.intercept)

    @property
    def objective(self) -> Array:
        """Σ w (y − f)² + α αᵀKα of the latest look, (c,)."""
        return np.asarray(self.squared_error + self.penalties * self.bent)

    @property
    def null_objective(self) -> Array:
        """Σ w (y − b)² of the best constant b, or Σ w y², (c,)."""
        t, q = self.looked["t"], self.looked["q"]
        return np.asarray(np.maximum(q - t**2 / self.weight, 0) if self.goal.intercept else q)

    @property
    def squared_error(self) -> Array:
        """Σ w (y − f)² of the latest look, (c,)."""
        e = self.looked["e"]
        return np.asarray(self.looked["sse"] - (e**2 / self.weight if self.goal.intercept else 0.0))

    @property
    def intercept(self) -> Array:
        """The intercept of the latest look, (c,)."""
        e = self.looked["e"]
        return e / self.weight if self.goal.intercept else np.zeros_like(e)

    def _core_times(self, vectors: Array) -> Array:
        with spent("core"):
            return self.core.times(vectors)

    def require_labels(self) -> None:
        """Raise `DataError` unless a labelled row weighs something, after a look."""
        require_labelled(float(self.looked["rows"]), float(self.looked["n"]))

    def seen(self, total: Accumulator) -> Accumulator:
        """The sums of a look as they are used."""
        return total

    def statistic(self, vectors: Array, words: str, *, residual: bool = False) -> ProductStatistic:
        """What a sweep sums up."""
        return ProductStatistic(self.basis.features(), self.targets, vectors, words, residual)

    def _swept(self, vectors: Array, *, residual: bool = False) -> Swept:
        words = f"{len(self.reports)} of {self.goal.words}, sample={self.sample}"
        return self._sweep(self.statistic(vectors, words, residual=residual))

    def _sweep(self, statistic: Statistic) -> Swept:
        swept = sweep(self.rows, statistic, what=f"{self.what}-{len(self.reports)}")
        self.reports.append(swept.report())
        return swept


def fit_iteratively(
    rows: Rows,
    targets: Targets,
    inputs: Inputs,
    basis: Any,
    goal: Goal,
    choice: PreconditionerChoice,
    start: Array | None = None,
) -> tuple[IterativeFit, str]:
    """Descend until the excess of the objective is below `tol` of it, from `start` (m, c) where it is given.

    Returns
    -------
    The fit, and in words by how much it misses `tol`; empty where it does not.
    """
    system = System(rows, targets, basis, goal, Core(basis), choice.rows)
    alpha, left, P = begun(system, start)
    reached, shares = descend(system, alpha, left, P)
    return _settled(system, reached, P, shares, inputs)


def begun(system: System, start: Array | None = None) -> tuple[Array, Array, ByPenalty]:
    """Where a descent begins, what is left there, from a first look at the rows, and its preconditioner.

    Raises
    ------
    DataError
        No labelled row to train on, or targets whose squares leave float64.
    """
    P: ByPenalty | None = None
    alpha = np.zeros((system.basis.width, len(system.penalties)))
    if system.sample:
        P, alpha = system.of_sub_sample()
    alpha = alpha if start is None else start
    left = system.residual(alpha)
    require_some(system.rows, system.reports[0]["skipped_rows"])
    system.require_labels()
    require_squares("y", system.looked["sse"] + system.looked["squares"], left)
    if P is None:
        emit(Note(f"factors of the core of {system.basis.width:,} landmarks are made"))
        with spent("preconditioner"):
            P = of_core(system.core, system.penalties, float(np.mean(system.weight)), intercept=system.goal.intercept)
    return alpha, left, P


def _settled(
    system: System, reached: Reached, P: ByPenalty, shares: list[float], inputs: Inputs
) -> tuple[IterativeFit, str]:
    goal, looked = system.goal, system.looked
    share = largest_share(reached.excess, least_objective(system.objective, system.null_objective))
    missed = ""
    if share > goal.tol:
        advice = "rounding allows no more; take" if reached.rounded else "take a larger max_iter,"
        missed = (
            f"after {len(shares)} steps of conjugate gradients the objective may be {share:.1g} of it above its least "
            f"value, and tol={goal.tol:g} was asked: {advice} a larger alpha, or solver='direct'"
        )
    # ‖f − f*‖² is at most the excess, but for rounding
    error = float(np.sqrt(float(reached.excess.sum()) / max(float(looked["squares"].sum()), 1e-300)))
    cancelled = float(cancellation(system, reached.alpha, inputs, [slice(None)])[0])
    if share <= goal.tol and cancelled > max(PROMISE, error):
        warnings.warn(
            f"predictions may differ from least squares in float64 by about {cancelled:.1g} of their norm: landmarks "
            "are much the same to the kernel, and their coefficients cancel; take fewer landmarks, a larger alpha, "
            "dtype='float64' or solver='direct'",
            Inaccurate,
            stacklevel=4,
        )
    fit = IterativeFit(
        inputs=inputs,
        basis=system.basis,
        solution=IterativeSolution(
            coef=reached.alpha,
            intercept=system.intercept + inputs.shift,
            rank=system.basis.width,
            alpha=goal.alphas[0],
            training_mse=np.maximum(system.squared_error, 0) / max(float(looked["n"]), 1e-300),
            with_intercept=goal.intercept,
            iterations=len(shares),
        ),
        certificates={
            "excess": share,
            "prediction_error": max(error, cancelled),
            "iterations": len(shares),
            "jitter": P.jitter,
            **system.basis.figures(),
        },
        sweep={**_joined(system.reports), "preconditioner": P.name, "excess_by_step": shares, "tol": goal.tol},
        skipped_rows=system.reports[0]["skipped_rows"],
        rows=int(looked["rows"]),
    )
    return fit, missed


def cancellation(system: System, alpha: Array, inputs: Inputs, models: Sequence[Any]) -> Array:
    """What rounding leaves of predictions, relative to their norm, where coefficients (m, c) all but cancel.

    Of each of some models, which have some of the columns.
    """
    looked, n = system.looked, np.broadcast_to(system.weight, system.looked["e"].shape)
    norm = looked["squares"]
    if system.goal.intercept:  # f is about its mean then, and y about a point near its own
        shift = np.resize(inputs.shift, norm.shape)  # the targets, again and again
        norm = np.maximum(norm - looked["e"] ** 2 / n, 0) + n * shift**2
    rounded = 8 * np.finfo(np.float64).eps * np.abs(alpha).sum(axis=0)
    rounded += np.finfo(system.basis.dtype).eps * np.linalg.norm(alpha, axis=0)  # of blocks, each by itself
    largest = float(np.abs(system.basis.core_diagonal()).max())
    told = [np.sqrt((n * rounded**2)[own].sum() / max(float(norm[own].sum()), 1e-300)) for own in models]
    return largest * np.array(told)


def _joined(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The report of all sweeps: of the last one, with what adds up added up."""
    total = dict(reports[-1])
    adding: tuple[str, ...] = ("flops", "bytes_read", "seconds", "retries", "lost_workers", "repeated_segments")
    for name in (*adding, "damaged_partials", "resumed_segments"):
        if name in total:
            total[name] = sum(report[name] for report in reports)
    for name in ("peak_bytes", "announced_bytes"):
        total[name] = max(report[name] for report in reports)
    total["incidents"] = [text for report in reports for text in report["incidents"]]
    stages: dict[str, float] = {}
    for report in reports:
        for name, seconds in report["stage_seconds"].items():
            stages[name] = stages.get(name, 0.0) + seconds
    return {**total, "stage_seconds": stages, "sweeps": len(reports)}
