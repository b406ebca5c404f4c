"""Preconditioned conjugate gradients on Aα = C, a column for each target; whoever calls has the products with A.

Every step lowers ‖α* − α‖²_A by exactly Δ = ηρ (Hestenes & Stiefel 1952), the excess of the objective over its least
value: that is what tells how near the end is. β is that of Polak and Ribière, which bears with a P that rounding makes
a little different in each step. Shapes: m landmarks, c targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_SLOWEST = 0.95  # the share of the excess that a step is taken to leave, at most


@dataclass(frozen=True, eq=False)
class Descent:
    """The state between two steps.

    Attributes
    ----------
    alpha : α, (m, c)
    residual : C − Aα, (m, c)
    direction : p, (m, c)
    descent : ρ = ⟨r, P⁻¹r⟩, (c,): where P is near A, about the excess that is left
    falls : Δ of the steps so far, a tuple of (c,)
    stuck : (c,) columns that cannot fall further, as rounding has made ⟨p, Ap⟩ useless
    """

    alpha: Array
    residual: Array
    direction: Array
    descent: Array
    stuck: Array
    falls: tuple[Array, ...] = ()

    def only(self, columns: Array) -> Descent:
        """The state of some columns."""
        return Descent(
            self.alpha[:, columns],
            self.residual[:, columns],
            self.direction[:, columns],
            self.descent[columns],
            self.stuck[columns],
            tuple(fall[columns] for fall in self.falls),
        )

    @property
    def excess(self) -> Array:
        """About what the objective is above its least value, (c,): from the falls of the last steps, but at least ρ.

        Where P misses what a few rows add to A, steps fall little for a while, and ρ is above the excess.
        """
        if not self.falls:
            return self.descent
        pace = np.full(len(self.descent), 0.5)
        for back in range(1, min(3, len(self.falls))):
            ratio = self.falls[-1] / np.maximum(self.falls[-1 - back], 1e-300)
            pace = np.maximum(pace if back > 1 else 0.0, ratio ** (1 / back))
        pace = np.minimum(pace, _SLOWEST)
        ahead: Array = self.falls[-1] * pace / (1 - pace)
        return np.maximum(ahead, np.where(self.stuck, 0.0, self.descent))


def begin(alpha: Array, residual: Array, solve: Callable[[Array], Array]) -> Descent:
    """The state before the first step from α with the residual C − Aα; `solve` gives P⁻¹R."""
    z = solve(residual)
    return Descent(alpha, residual, z, _inner(residual, z), np.zeros(alpha.shape[1], bool))


def step(state: Descent, product: Array, solve: Callable[[Array], Array]) -> Descent:
    """The state after a step along its direction p, of which `product` is Ap."""
    curvature = _inner(state.direction, product)
    stuck = state.stuck | ~(curvature > 0) | ~(state.descent > 0)
    # ⟨p, r⟩ is ρ, but where rounding has left nothing of p: then the step ends at the least value along it all the same
    along = _inner(state.direction, state.residual)
    length = np.where(stuck, 0.0, along / np.where(stuck, 1.0, curvature))
    alpha = state.alpha + length * state.direction
    residual = state.residual - length * product
    z = solve(residual)
    descent = _inner(residual, z)
    turn = np.where(stuck, 0.0, _inner(residual - state.residual, z) / np.where(stuck, 1.0, state.descent))
    return replace(
        state,
        alpha=alpha,
        residual=residual,
        direction=z + np.maximum(turn, 0.0) * state.direction,
        descent=descent,
        stuck=stuck,
        falls=(*state.falls, length * along),
    )


def _inner(a: Array, b: Array) -> Array:
    return np.asarray((a * b).sum(axis=0))
