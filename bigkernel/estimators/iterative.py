"""Kernel ridge by conjugate gradients: m beyond what m×m sums allow.

Nothing m×m is summed over the rows: the driver alone holds m×m, a preconditioner and the core. Every step is one
`sweep` of m×c numbers (`statistics.products`), so that a run resumes inside the descent. Shapes: m landmarks, c
targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import Swept, sweep
from bigkernel.errors import Inaccurate
from bigkernel.estimators.fit_state import Inputs, IterativeFit, IterativeSolution
from bigkernel.estimators.parameter_checks import require_labelled, require_some
from bigkernel.kernels import uniform_landmarks as draws
from bigkernel.monitor.events import Note
from bigkernel.monitor.scope import emit, spent
from bigkernel.solvers.conjugate_gradients import Descent, begin, step
from bigkernel.solvers.descent_cost import CORE_BYTES, PreconditionerChoice, preconditioner_itemsize, sample_fits
from bigkernel.solvers.preconditioners import Preconditioner, falkon, sub_sample
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.statistics.products import ProductStatistic
from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]
CORE_ROWS = 1024  # of the core, or of the sub-sample, that are worked on at a time
_SLOW, _SLOW_STEPS = 0.6, 2  # of the excess that a step leaves, so many steps in a row
_AGREE = 10.0  # times by which the residual of the recurrence may differ from the true one
_CHANCES = 5  # rounds in which the rows that are certain to be drawn are found
_LABELS = 2**20  # rows whose labels are read at a time
_DRAW = 0  # the sub-sample is the same in every process


@dataclass(frozen=True)
class Goal:
    """What is solved, and when it is enough.

    Attributes
    ----------
    alpha : penalty
    intercept : whether one is fitted
    tol : the excess of the objective, relative to it, that is left
    max_iter : most steps
    """

    alpha: float
    intercept: bool
    tol: float
    max_iter: int


class Core:
    """K_mm in float64, in which it stays positive; kept where it takes at most `CORE_BYTES`, else made each time."""

    def __init__(self, basis: Any) -> None:
        self._basis, self.width = basis, int(basis.width)
        self._kept: list[Array] = []
        self._keeps = 8 * self.width**2 <= CORE_BYTES

    def strips(self) -> Iterator[tuple[slice, Array]]:
        """Some rows at a time, (b, m)."""
        for number, start in enumerate(range(0, self.width, CORE_ROWS)):
            rows = slice(start, min(start + CORE_ROWS, self.width))
            if number < len(self._kept):
                yield rows, self._kept[number]
                continue
            strip = self._basis.core_rows(rows)
            if self._keeps:
                self._kept.append(strip)
            yield rows, strip

    def times(self, vectors: Array) -> Array:
        """K_mm v, (m, c)."""
        out = np.empty(vectors.shape)
        for rows, strip in self.strips():
            out[rows] = strip @ vectors
        return out


@dataclass
class System:
    """The normal equations as sweeps of rows: A = Σ w bbᵀ + αK, about the mean with an intercept.

    Attributes
    ----------
    rows, targets, basis : of the fit
    goal : what is solved
    core : its products
    sample : rows of the sub-sample, or 0
    looked : the latest look at the residual
    bent : αᵀKα of that look, (c,)
    reports : of each sweep
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

    def residual(self, alpha: Array) -> Array:
        """C − Aα, (m, c), from the rows: better rounded than from sums."""
        total, of_core = self._swept(alpha, residual=True).total, self._core_times(alpha)
        self.looked, self.bent = total, (alpha * of_core).sum(axis=0)
        left: Array = total["U"] - self.goal.alpha * of_core
        if self.goal.intercept:
            left -= np.outer(total["s"], total["e"] / max(float(total["n"]), 1e-300))
        return left

    def product(self, vectors: Array) -> Array:
        """Av, (m, c)."""
        moved: Array = self._swept(vectors).total["U"] + self.goal.alpha * self._core_times(vectors)
        if self.goal.intercept:
            s = self.looked["s"]
            moved -= np.outer(s, s @ vectors / max(float(self.looked["n"]), 1e-300))
        return moved

    @property
    def may_grow(self) -> bool:
        """True where there is a sub-sample, and one of twice the rows is possible."""
        return self.sample > 0 and sample_fits(2 * self.sample, *self.rows.shape)

    @property
    def objective(self) -> Array:
        """Σ w (y − f)² + α αᵀKα of the latest look, (c,)."""
        return np.asarray(self.squared_error + self.goal.alpha * self.bent)

    @property
    def squared_error(self) -> Array:
        """Σ w (y − f)² of the latest look, (c,)."""
        e, n = self.looked["e"], max(float(self.looked["n"]), 1e-300)
        return np.asarray(self.looked["sse"] - (e**2 / n if self.goal.intercept else 0.0))

    @property
    def intercept(self) -> Array:
        """The intercept of the latest look, (c,)."""
        e = self.looked["e"]
        return e / max(float(self.looked["n"]), 1e-300) if self.goal.intercept else np.zeros_like(e)

    def _core_times(self, vectors: Array) -> Array:
        with spent("core"):
            return self.core.times(vectors)

    def _swept(self, vectors: Array, *, residual: bool = False) -> Swept:
        number, goal = len(self.reports), self.goal
        words = f"{number} of alpha={goal.alpha!r}, intercept={goal.intercept}, tol={goal.tol!r}, sample={self.sample}"
        statistic = ProductStatistic(self.basis.features(), self.targets, vectors, words, residual)
        swept = sweep(self.rows, statistic, what=f"cg-{number}")
        self.reports.append(swept.report())
        return swept


def fit_iteratively(
    rows: Rows, targets: Targets, inputs: Inputs, basis: Any, goal: Goal, choice: PreconditionerChoice
) -> IterativeFit:
    """Descend until the excess of the objective is below `tol` of it.

    Warns
    -----
    Inaccurate
        That it is not after `max_iter` steps.
    """
    system = System(rows, targets, basis, goal, Core(basis), choice.rows)
    alpha: Array = np.zeros((basis.width, targets.width))
    P: Preconditioner | None = None
    if choice.rows:
        P, alpha = _of_sub_sample(system)
    left = system.residual(alpha)
    require_some(rows, system.reports[0]["skipped_rows"])
    require_labelled(float(system.looked["rows"]), float(system.looked["n"]))
    if P is None:
        emit(Note(f"factors of the core of {basis.width:,} landmarks are made"))
        with spent("preconditioner"):
            P = falkon(_copied(system.core), goal.alpha, float(system.looked["n"]))
    state, P, shares = _descend(system, alpha, left, P)
    return _settled(system, state, P, shares, inputs)


def _descend(
    system: System, alpha: Array, left: Array, P: Preconditioner
) -> tuple[Descent, Preconditioner, list[float]]:
    """Steps until the goal is met, as the rows themselves confirm; and the excess after each, relative.

    Where a sub-sample proves too small for them to be quick, one of twice the rows takes its place.
    """
    state, goal = begin(alpha, left, P.solve), system.goal
    shares: list[float] = []
    while True:
        begun = len(shares)
        state, grows = _step_on(system, state, P, shares)
        told, left = state.descent, system.residual(state.alpha)
        if grows:
            system.sample *= 2
            del P
            P, _ = _of_sub_sample(system)
        again = begin(state.alpha, left, P.solve)
        agrees = bool((again.descent <= _AGREE * np.maximum(told, goal.tol * system.objective)).all())
        if not grows and (agrees or len(shares) >= goal.max_iter or len(shares) == begun):
            return state, P, shares
        state = again


def _step_on(system: System, state: Descent, P: Preconditioner, shares: list[float]) -> tuple[Descent, bool]:
    """Steps from a state, whose excess is put down, until the goal is met; True where a larger sub-sample is due."""
    goal, objective, begun = system.goal, system.objective, len(shares)
    while _share(state, objective) > goal.tol and len(shares) < goal.max_iter and not state.stuck.all():
        if system.may_grow and _is_slow(shares[begun:]):
            return state, True
        state = step(state, system.product(state.direction), P.solve)
        objective = objective - state.falls[-1]
        shares.append(_share(state, objective))
        said = f"step {len(shares)} of at most {goal.max_iter}: the objective is about {shares[-1]:.1g} of it above"
        emit(Note(f"{said} its least value; {goal.tol:g} is enough"))
    return state, False


def _is_slow(shares: list[float]) -> bool:
    """True where the last two steps have both left too much of the excess."""
    return len(shares) > _SLOW_STEPS and all(
        after > _SLOW * before for before, after in pairwise(shares[-_SLOW_STEPS - 1 :])
    )


def _share(state: Descent, objective: Array) -> float:
    """The largest excess of a target, relative to its objective."""
    return float((state.excess / np.maximum(objective, 1e-300)).max())


def _copied(core: Core) -> Array:
    """K_mm in column order, in the dtype of the preconditioner."""
    copy = np.empty((core.width, core.width), f"f{preconditioner_itemsize(core.width)}")
    for rows, strip in core.strips():
        copy[rows] = strip
    return copy.T


def _labelled(rows: Rows, targets: Targets) -> Array:
    """Which rows have a label, (n,) bool; the column is read a part at a time."""
    source, known = rows.columns["y"], np.zeros(len(rows), bool)
    for start in range(0, len(rows), _LABELS):
        y = source.read(start, min(start + _LABELS, len(rows)))
        if y.dtype.kind == "f" and rows.bad_rows == "skip":
            y = np.where(np.isinf(y), np.nan, y)
        known[start : start + _LABELS] = targets.labelled(y, start)
    return known


def _drawn(rows: Rows, targets: Targets, count: int) -> tuple[Array, Array]:
    """Sorted ids of a sub-sample of about `count` labelled rows, and the weights that they have in it, (k,).

    Rows are drawn the likelier the more they weigh, the heaviest for certain: a few of them shape the normal matrix.
    """
    rng, known, weight = np.random.RandomState(_DRAW), _labelled(rows, targets), rows.column("weight")
    if weight is None:
        among = np.flatnonzero(known)
        require_labelled(len(among), len(among))
        sound = (lambda places: rows.sound(among[places])) if rows.bad_rows == "skip" else None
        ids = among[draws.uniform(len(among), min(count, len(among)), rng, sound=sound)]
        return ids, np.full(len(ids), len(among) / len(ids))
    total, chance = np.asarray(weight, np.float64), np.zeros(len(rows))
    total = np.where(known & np.isfinite(total), np.maximum(total, 0), 0)
    for _ in range(_CHANCES):  # those that are certain leave the others more
        certain = chance >= 1
        left = max(float(total[~certain].sum()), 1e-300)
        chance = np.where(certain, 1.0, np.minimum(total * max(count - certain.sum(), 0) / left, 1.0))
    ids = np.flatnonzero(rng.random_sample(len(rows)) < chance)
    if rows.bad_rows == "skip":
        ids = ids[rows.sound(ids)]
    return ids, total[ids] / chance[ids]


def _of_sub_sample(system: System) -> tuple[Preconditioner, Array]:
    """The preconditioner of the sub-sample, and the solution of its rows alone."""
    rows, basis, goal, count = system.rows, system.basis, system.goal, system.sample
    emit(Note(f"the normal matrix of {count:,} rows is made"))
    with spent("preconditioner"):
        ids, weight = _drawn(rows, system.targets, count)
        y = rows.take_column("y", ids)
        chunk = Chunk(rows.take(ids), y=y, weight=weight, block_rows=CORE_ROWS)
        statistic = MomentStatistic(basis.features(), system.targets, sums=np.dtype(np.float64))
        total = statistic.zero()
        statistic.update(total, chunk)
        del chunk
        A, C, n = total.pop("G")[0], total["C"][0], max(float(total["n"][0]), 1e-300)
        if goal.intercept:
            s, t = total["s"][0], total["t"][0]
            for start in range(0, len(A), CORE_ROWS):
                A[start : start + CORE_ROWS] -= np.outer(s[start : start + CORE_ROWS] / n, s)
            C = C - np.outer(s, t / n)
        for part, strip in system.core.strips():
            A[part] += goal.alpha * strip
        P = sub_sample(A.T, len(ids))
        return P, P.solve(C)


def _settled(system: System, state: Descent, P: Preconditioner, shares: list[float], inputs: Inputs) -> IterativeFit:
    goal, looked = system.goal, system.looked
    share = _share(state, system.objective)
    if share > goal.tol:
        warnings.warn(
            f"after {len(shares)} steps of conjugate gradients the objective is about {share:.1g} of it above its "
            f"least value, and tol={goal.tol:g} was asked: take a larger max_iter, a larger alpha, or solver='direct'",
            Inaccurate,
            stacklevel=4,
        )
    # ‖f − f*‖² is at most the excess
    excess, squares = float(state.excess.sum()), max(float(looked["squares"].sum()), 1e-300)
    return IterativeFit(
        inputs=inputs,
        basis=system.basis,
        solution=IterativeSolution(
            coef=state.alpha,
            intercept=system.intercept + inputs.shift,
            rank=system.basis.width,
            alpha=goal.alpha,
            training_mse=np.maximum(system.squared_error, 0) / max(float(looked["n"]), 1e-300),
            with_intercept=goal.intercept,
            iterations=len(shares),
        ),
        certificates={
            "excess": share,
            "prediction_error": float(np.sqrt(excess / squares)),
            "iterations": len(shares),
            "jitter": P.jitter,
            **system.basis.figures(),
        },
        sweep={**_joined(system.reports), "preconditioner": P.name, "excess_by_step": shares, "tol": goal.tol},
        skipped_rows=system.reports[0]["skipped_rows"],
        rows=int(looked["rows"]),
    )


def _joined(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The report of all sweeps: of the last one, with what adds up added up."""
    total = dict(reports[-1])
    adding: tuple[str, ...] = ("flops", "bytes_read", "seconds", "retries", "lost_workers", "repeated_segments")
    for name in (*adding, "damaged_partials", "resumed_segments"):
        if name in total:
            total[name] = sum(report[name] for report in reports)
    total["peak_bytes"] = max(report["peak_bytes"] for report in reports)
    total["incidents"] = [text for report in reports for text in report["incidents"]]
    stages: dict[str, float] = {}
    for report in reports:
        for name, seconds in report["stage_seconds"].items():
            stages[name] = stages.get(name, 0.0) + seconds
    return {**total, "stage_seconds": stages, "sweeps": len(reports)}
