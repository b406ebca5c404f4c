"""Kernel ridge by conjugate gradients: m beyond what m×m sums allow.

Nothing m×m is summed over the rows: the driver alone holds m×m, a preconditioner and the core. Every step is one
`sweep` of m×c numbers (`statistics.products`), so that a run resumes inside the descent. Shapes: m landmarks, c
targets.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import Swept, sweep
from bigkernel.errors import Inaccurate
from bigkernel.estimators.fit_state import Inputs, IterativeFit, IterativeSolution
from bigkernel.estimators.number_range import require_squares
from bigkernel.estimators.parameter_checks import require_labelled, require_some
from bigkernel.estimators.sub_samples import Core, of_core, of_sub_sample
from bigkernel.monitor.events import Note
from bigkernel.monitor.scope import emit, spent
from bigkernel.solvers.accuracy import PROMISE
from bigkernel.solvers.conjugate_gradients import Descent, begin, step
from bigkernel.solvers.descent_cost import PROBES, PreconditionerChoice, sample_fits
from bigkernel.solvers.preconditioners import Preconditioner
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import ProductStatistic

Array = NDArray[Any]
_SLOW, _SLOW_STEPS = 0.6, 2  # of the excess that a step leaves, so many steps in a row
_AGREE = 10.0  # times by which the residual of the recurrence may differ from the true one


@dataclass(frozen=True)
class Goal:
    """What is solved, and when it is enough.

    Attributes
    ----------
    alphas : penalties, of which the one of least GCV is kept; they are solved for side by side
    intercept : whether one is fitted
    tol : the excess of the objective, relative to it, that is left
    max_iter : most steps
    """

    alphas: tuple[float, ...]
    intercept: bool
    tol: float
    max_iter: int

    @property
    def probes(self) -> int:
        """Columns of random signs beside the targets, where there is something to choose."""
        return PROBES if len(self.alphas) > 1 else 0

    @property
    def words(self) -> str:
        """By which the sweeps of a run are known."""
        alpha = self.alphas[0] if len(self.alphas) == 1 else self.alphas
        return f"alpha={alpha!r}, intercept={self.intercept}, tol={self.tol!r}"


@dataclass
class System:
    """The normal equations as sweeps of rows: A = Σ w bbᵀ + αK, about the mean with an intercept.

    Every penalty has a group of columns: the targets, then the probes.

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

    @property
    def penalties(self) -> Array:
        """α of each column."""
        return np.repeat(np.array(self.goal.alphas), self.targets.width + self.goal.probes)

    def of_penalty(self, number: int) -> Array:
        """The places of its columns: targets, then probes."""
        width = self.targets.width + self.goal.probes
        return np.arange(number * width, (number + 1) * width)

    def only(self, number: int) -> System:
        """The system of the targets at one penalty, after a look."""
        columns = self.of_penalty(number)[: self.targets.width]
        whole = ("rows", "n", "s")
        looked = {name: v if name in whole else v[..., columns] for name, v in self.looked.items()}
        goal = replace(self.goal, alphas=(self.goal.alphas[number],))
        return replace(self, goal=goal, looked=looked, bent=self.bent[columns])

    def residual(self, alpha: Array) -> Array:
        """C − Aα, (m, c), from the rows: better rounded than from sums."""
        total, of_core = self._swept(alpha, residual=True).total, self._core_times(alpha)
        self.looked, self.bent = total, (alpha * of_core).sum(axis=0)
        left: Array = total["U"] - self.penalties * of_core
        if self.goal.intercept:
            left -= np.outer(total["s"], total["e"] / max(float(total["n"]), 1e-300))
        return left

    def product(self, vectors: Array) -> Array:
        """Av, (m, c)."""
        moved: Array = self._swept(vectors).total["U"] + self.penalties * self._core_times(vectors)
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
        return np.asarray(self.squared_error + self.penalties * self.bent)

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
        words = f"{number} of {goal.words}, sample={self.sample}"
        statistic = ProductStatistic(self.basis.features(), self.targets, vectors, words, residual, goal.probes)
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
    alpha: Array = np.zeros((basis.width, len(system.penalties)))
    P: Preconditioner | None = None
    if choice.rows:
        P, alpha = _of_sub_sample(system)
    left = system.residual(alpha)
    require_some(rows, system.reports[0]["skipped_rows"])
    require_labelled(float(system.looked["rows"]), float(system.looked["n"]))
    require_squares("y", system.looked["sse"] + system.looked["squares"], left)
    if P is None:
        emit(Note(f"factors of the core of {basis.width:,} landmarks are made"))
        with spent("preconditioner"):
            P = of_core(system.core, system.penalties, float(system.looked["n"]))
    state, P, shares = _descend(system, alpha, left, P)
    if len(goal.alphas) > 1:
        best, scores = _least_gcv(system, state)
        system, state = system.only(best), state.only(system.of_penalty(best)[: targets.width])
        system.reports[-1]["gcv"] = dict(zip(map(repr, goal.alphas), scores, strict=True))
    return _settled(system, state, P, shares, inputs)


def _least_gcv(system: System, state: Descent) -> tuple[int, list[float]]:
    """Which penalty has the least GCV, and that of all, from the latest look.

    Penalties whose descent has not ended are no choice, unless none has.

    Warns
    -----
    Inaccurate
        Some of them may be the better ones, or the least GCV is at an end of the grid.

    Of a probe ε of random signs and its ridge f, the least objective ‖ε − f‖² + αwᵀKw is εᵀ(I − H)ε, whose mean over
    probes is n − tr H, an intercept included.
    """
    c, rows = system.targets.width, float(system.looked["rows"])
    errors, objective = system.squared_error, system.objective
    scores, ended = [], []
    for number in range(len(system.goal.alphas)):
        columns = system.of_penalty(number)
        left = float(objective[columns[c:]].mean()) / rows
        scores.append(float(errors[columns[:c]].sum()) / rows / max(left, 1e-12) ** 2)
        ended.append(bool((state.excess[columns] <= system.goal.tol * objective[columns]).all()))
    best = int(np.argmin(np.where(ended, scores, np.inf) if any(ended) else scores))
    alphas, words = system.goal.alphas, ""
    if not all(ended[:best]):
        words = "the descents of smaller ones have not ended: take a larger max_iter, or a number"
    elif any(ended) and best in (0, len(alphas) - 1):
        words = f"it is the {'least' if best == 0 else 'largest'} that was looked at: take a number beyond it"
    if words:
        warnings.warn(f"alpha='gcv' has chosen {alphas[best]:.3g}, but {words}", Inaccurate, stacklevel=5)
    return best, scores


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


def _of_sub_sample(system: System) -> tuple[Preconditioner, Array]:
    """The preconditioner of the sub-sample, and the solution of its rows alone."""
    emit(Note(f"the normal matrix of {system.sample:,} rows is made"))
    with spent("preconditioner"):
        rows, targets, basis, core = system.rows, system.targets, system.basis, system.core
        flag = system.goal.intercept
        return of_sub_sample(rows, targets, basis, core, system.penalties, system.sample, intercept=flag)


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
    # ‖f − f*‖² is at most the excess, but for rounding
    error = float(np.sqrt(float(state.excess.sum()) / max(float(looked["squares"].sum()), 1e-300)))
    cancelled = _cancelled(system, state.alpha, inputs)
    if share <= goal.tol and cancelled > max(PROMISE, error):
        warnings.warn(
            f"predictions may differ from least squares in float64 by about {cancelled:.1g} of their norm: landmarks "
            "are much the same to the kernel, and their coefficients cancel; take fewer landmarks, a larger alpha, "
            "dtype='float64' or solver='direct'",
            Inaccurate,
            stacklevel=4,
        )
    return IterativeFit(
        inputs=inputs,
        basis=system.basis,
        solution=IterativeSolution(
            coef=state.alpha,
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


def _cancelled(system: System, alpha: Array, inputs: Inputs) -> float:
    """What rounding leaves of predictions, relative to their norm, where coefficients (m, c) all but cancel."""
    looked, n = system.looked, max(float(system.looked["n"]), 1e-300)
    norm = looked["squares"]
    if system.goal.intercept:  # f is about its mean then, and y about a point near its own
        norm = np.maximum(norm - looked["e"] ** 2 / n, 0) + n * inputs.shift**2
    rounded = 8 * np.finfo(np.float64).eps * np.abs(alpha).sum(axis=0)
    rounded += np.finfo(system.basis.dtype).eps * np.linalg.norm(alpha, axis=0)  # of blocks, each by itself
    largest = float(np.abs(system.basis.core_diagonal()).max())
    return float(largest * np.linalg.norm(rounded) * np.sqrt(n / max(norm.sum(), 1e-300)))


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
