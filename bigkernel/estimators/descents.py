"""Descents by conjugate gradients, many columns side by side: each step one sweep, until every column is near enough.

Columns come in groups, one a penalty, that begin together and end together: those that have ended take part in no
further sweep. Shapes: m landmarks, c columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.monitor.events import Note
from bigkernel.monitor.scope import emit
from bigkernel.solvers.conjugate_gradients import Descent, begin, step

Array = NDArray[Any]
_SLOW, _SLOW_STEPS = 0.6, 2  # of the excess that a step leaves, so many steps in a row
_AGREE = 10.0  # times by which the residual of the recurrence may differ from the true one


@dataclass(frozen=True)
class Goal:
    """What is solved, and when it is enough.

    Attributes
    ----------
    alphas : penalties, which are solved for side by side
    intercept : whether one is fitted
    tol : the excess of the objective, relative to it, that is left
    max_iter : most steps
    probes : columns of random signs beside the targets, which tell what to choose
    """

    alphas: tuple[float, ...]
    intercept: bool
    tol: float
    max_iter: int
    probes: int = 0

    @property
    def words(self) -> str:
        """By which the sweeps of a run are known."""
        alpha = self.alphas[0] if len(self.alphas) == 1 else self.alphas
        return f"alpha={alpha!r}, intercept={self.intercept}, tol={self.tol!r}"


class Descending(Protocol):
    """The normal equations of groups of columns, whose products are sweeps."""

    goal: Goal
    sample: int  # rows of the sub-sample, or 0

    @property
    def may_grow(self) -> bool:
        """True where there is a sub-sample, and one of twice the rows is possible."""

    @property
    def objective(self) -> Array:
        """Of the latest look at all columns, (c,)."""

    def columns(self, places: list[int]) -> Array:
        """The columns of some groups, in the order in which a system of these alone has them."""

    def part(self, places: list[int]) -> Self:
        """The system of some groups."""

    def residual(self, alpha: Array) -> Array:
        """C − Aα, (m, c), from the rows."""

    def product(self, vectors: Array) -> Array:
        """Av, (m, c)."""

    def of_sub_sample(self) -> tuple[Any, Array]:
        """The preconditioner of the sub-sample, and the solution of its rows alone."""


@dataclass(frozen=True, eq=False)
class Reached:
    """Where columns stand, when their descents have ended.

    Attributes
    ----------
    alpha : α, (m, c)
    excess : about what the objective is above its least value, (c,)
    descent : ρ of the recurrence, (c,)
    """

    alpha: Array
    excess: Array
    descent: Array

    @classmethod
    def of(cls, state: Descent) -> Self:
        """What a state has reached; a copy."""
        return cls(state.alpha.copy(), state.excess.copy(), state.descent.copy())

    def put(self, columns: Array, state: Descent) -> None:
        """Write down what some columns have reached since."""
        self.alpha[:, columns] = state.alpha
        self.excess[columns], self.descent[columns] = state.excess, state.descent

    def only(self, columns: Array) -> Reached:
        """Of some columns."""
        return Reached(self.alpha[:, columns], self.excess[columns], self.descent[columns])


def descend(system: Descending, alpha: Array, left: Array, P: Any) -> tuple[Reached, Any, list[float]]:
    """Steps from α with the residual `left` until the goal is met, as the rows themselves confirm.

    Where a sub-sample proves too small for them to be quick, one of twice the rows takes its place.

    Returns
    -------
    What was reached, the preconditioner, and after each step the largest excess that was left, relative.
    """
    state, goal = begin(alpha, left, P.solve), system.goal
    shares: list[float] = []
    while True:
        begun = len(shares)
        reached, grows = _step_on(system, state, P, shares)
        left = system.residual(reached.alpha)
        if grows:
            system.sample *= 2
            del P
            P, _ = system.of_sub_sample()
        again = begin(reached.alpha, left, P.solve)
        agrees = bool((again.descent <= _AGREE * np.maximum(reached.descent, goal.tol * system.objective)).all())
        if not grows and (agrees or len(shares) >= goal.max_iter or len(shares) == begun):
            return reached, P, shares
        state = again


def _step_on(system: Descending, state: Descent, P: Any, shares: list[float]) -> tuple[Reached, bool]:
    """Steps from a state, whose excess is put down, until the goal is met; True where a larger sub-sample is due."""
    goal, objective, begun = system.goal, system.objective, len(shares)
    reached, part, grows = Reached.of(state), system, False
    moving = list(range(len(goal.alphas)))
    while True:
        going = [place for place in range(len(moving)) if _moves(state, goal.tol * objective, part.columns([place]))]
        grows = bool(going) and system.may_grow and _is_slow(shares[begun:])
        if not going or grows or len(shares) >= goal.max_iter:
            reached.put(system.columns(moving), state)
            return reached, grows
        if len(going) < len(moving):
            reached.put(system.columns(moving), state)
            columns, moving = part.columns(going), [moving[place] for place in going]
            state, objective, P = state.only(columns), objective[columns], P.only(columns)
            part = system.part(moving)
        state = step(state, part.product(state.direction), P.solve)
        objective = objective - state.falls[-1]
        shares.append(largest_share(state.excess, objective))
        said = f"step {len(shares)} of at most {goal.max_iter}: the objective is about {shares[-1]:.1g} of it above"
        emit(Note(f"{said} its least value; {goal.tol:g} is enough"))


def _moves(state: Descent, enough: Array, own: Array) -> bool:
    """True where a group of columns is not near enough yet, and can come nearer."""
    return not (state.excess[own] <= enough[own]).all() and not state.stuck[own].all()


def _is_slow(shares: list[float]) -> bool:
    """True where the last two steps have both left too much of the excess."""
    return len(shares) > _SLOW_STEPS and all(
        after > _SLOW * before for before, after in pairwise(shares[-_SLOW_STEPS - 1 :])
    )


def largest_share(excess: Array, objective: Array) -> float:
    """The largest excess of a column, relative to its objective."""
    return float((excess / np.maximum(objective, 1e-300)).max())
