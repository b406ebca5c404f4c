"""Descents by conjugate gradients, many columns side by side: each step one sweep, until every column is near enough.

Columns come in groups, one a penalty, that begin together and end together: those that have ended take part in no
further sweep. Shapes: m landmarks, c columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.events.kinds import Note
from bigkernel.events.scope import emit
from bigkernel.solvers.conjugate_gradients import Descent, begin, step

Array = NDArray[Any]
_HALVED = 0.5  # what steps between two looks leave of the bound, unless rounding ends them


@dataclass(frozen=True)
class Goal:
    """What is solved, and when it is enough.

    Attributes
    ----------
    alphas : penalties, which are solved for side by side
    intercept : whether one is fitted
    tol : the excess of the objective, relative to it, that is left
    max_iter : most steps
    """

    alphas: tuple[float, ...]
    intercept: bool
    tol: float
    max_iter: int

    @property
    def words(self) -> str:
        """By which the sweeps of a run are known."""
        alpha = self.alphas[0] if len(self.alphas) == 1 else self.alphas
        return f"alpha={alpha!r}, intercept={self.intercept}, tol={self.tol!r}"


class Descending(Protocol):
    """The normal equations of groups of columns, whose products are sweeps."""

    goal: Goal

    @property
    def objective(self) -> Array:
        """Of the latest look at all columns, (c,)."""

    @property
    def null_objective(self) -> Array:
        """The objective of α = 0, (c,)."""

    @property
    def count(self) -> Array | float:
        """How many rows columns are fitted to, a number or (c,)."""

    def columns(self, places: list[int]) -> Array:
        """The columns of some groups, in the order in which a system of these alone has them."""

    def part(self, places: list[int]) -> Self:
        """The system of some groups."""

    def residual(self, alpha: Array) -> Array:
        """C − Aα, (m, c), from the rows."""

    def product(self, vectors: Array) -> Array:
        """Av, (m, c)."""


@dataclass(frozen=True, eq=False)
class Reached:
    """Where columns stand, when their descents have ended.

    Attributes
    ----------
    alpha : α, (m, c)
    excess : bound of what the objective is above its least value, (c,)
    ritz : the smallest Ritz value, (c,)
    rounded : whether rounding of the residual has ended the descent
    """

    alpha: Array
    excess: Array
    ritz: Array
    rounded: bool = False

    @classmethod
    def of(cls, state: Descent) -> Self:
        """What a state has reached; a copy."""
        return cls(state.alpha.copy(), state.excess.copy(), state.ritz.copy())

    def put(self, columns: Array, state: Descent) -> None:
        """Write down what some columns have reached since."""
        self.alpha[:, columns] = state.alpha
        self.excess[columns], self.ritz[columns] = state.excess, state.ritz


def descend(system: Descending, alpha: Array, left: Array, P: Any) -> tuple[Reached, list[float]]:
    """Steps from α with the residual `left` until the goal is met, by the bound of the residual of the rows themselves.

    Returns
    -------
    What was reached, and after each step the largest bound of the excess, relative to the objective.
    """
    goal = system.goal
    shares: list[float] = []
    state = begin(alpha, left, P.solve, P.least)
    while True:
        begun, before = len(shares), state.excess
        reached = _step_on(system, state, P, shares)
        # steps carry their residual along, which rounding takes away from that of the rows
        left = system.residual(reached.alpha)
        state = begin(reached.alpha, left, P.solve, reached.ritz)
        over = state.excess > _enough(system, P.hidden) * least_objective(system.objective, system.null_objective)
        falling = over & (state.excess < _HALVED * before)
        if not falling.any() or len(shares) >= goal.max_iter or len(shares) == begun:
            return _with_hidden(Reached.of(state), system, P.hidden, over, len(shares)), shares


def _hidden_share(system: Descending, hidden: Array) -> Array:
    """The share of the objective that hidden directions may hold, (c,)."""
    return np.asarray(hidden / np.maximum(system.count, 1))


def _enough(system: Descending, hidden: Array) -> Array:
    """The share of the objective that steps may leave, (c,): of the tolerance, what hidden directions leave."""
    return np.maximum(system.goal.tol - _hidden_share(system, hidden), system.goal.tol / 2)


def _with_hidden(reached: Reached, system: Descending, hidden: Array, over: Array, steps: int) -> Reached:
    """What was reached, with what hidden directions may add: of noise each takes 1/n of the objective."""
    least = least_objective(system.objective, system.null_objective)
    share = _hidden_share(system, hidden)
    rounded = bool((over & (steps < system.goal.max_iter) | (share > system.goal.tol)).any())
    return replace(reached, excess=reached.excess + share * least, rounded=rounded)


def _step_on(system: Descending, state: Descent, P: Any, shares: list[float]) -> Reached:
    """Steps from a state until the goal is met; the bound after each is added to `shares`."""
    goal, objective, null = system.goal, system.objective, system.null_objective
    share = _enough(system, P.hidden)
    reached, part = Reached.of(state), system
    moving = list(range(len(goal.alphas)))
    while True:
        enough = share * least_objective(objective, null)
        going = [place for place in range(len(moving)) if _moves(state, enough, part.columns([place]))]
        if not going or len(shares) >= goal.max_iter:
            reached.put(system.columns(moving), state)
            return reached
        if len(going) < len(moving):
            reached.put(system.columns(moving), state)
            columns, moving = part.columns(going), [moving[place] for place in going]
            state, P = state.only(columns), P.only(columns)
            objective, null, share = objective[columns], null[columns], share[columns]
            part = system.part(moving)
        state = step(state, part.product(state.direction), P.solve)
        objective = objective - state.fall
        shares.append(largest_share(state.excess, least_objective(objective, null)))
        said = f"step {len(shares)} of at most {goal.max_iter}: the objective is at most {shares[-1]:.1g} of it above"
        emit(Note(f"{said} its least value; {goal.tol:g} is enough"))


def _moves(state: Descent, enough: Array, own: Array) -> bool:
    """True where a group of columns is not near enough yet, and can come nearer."""
    return not (state.excess[own] <= enough[own]).all() and not state.stuck[own].all()


def least_objective(objective: Array, null_objective: Array) -> Array:
    """What is known of the least objective, (c,): it is neither above that which is reached nor above that of α = 0."""
    return np.minimum(objective, null_objective)


def largest_share(excess: Array, objective: Array) -> float:
    """The largest excess of a column, relative to its objective."""
    return float((excess / np.maximum(objective, 1e-300)).max())
