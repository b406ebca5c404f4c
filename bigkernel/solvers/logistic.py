"""Softmax regression with a ridge penalty, from losses and gradients that sweeps sum up.

    min Σ w −log softmax(φ'ᵀW + 1b)_y + α/2 ‖W‖²,   φ' whitened and about its mean, b without penalty.
Its Hessian is at most B = (½ Σ w φ'φ'ᵀ + α) ⊕ ½ Σ w, the same for every class (Böhning, Annals of the Institute of
Statistical Mathematics 1992): moments of m×m give it, where the Hessian itself has (mc)² numbers. A step with B alone
falls surely and slowly; so limited memory BFGS starts from B and learns from the gradients how much less the curvature
is where probabilities are sure (Nocedal & Wright, algorithm 7.4). On 10,000 digits with m = 500 and α = 0.1 the
objective is 1e-2, 1e-3 and 1e-4 of it above its least value after 19, 34 and 50 sweeps, and Newton steps by conjugate
gradients, whose every product is a sweep, take 20, 30 and 45 to 60; with α = 0.01 these need more.
Shapes: r coordinates, c classes; Θ = (W; b), (r + 1, c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.solvers.ridge import Factor

Array = NDArray[Any]
MEMORY = 20  # pairs of steps and changes of the gradient
_ARMIJO = 1e-4  # share of the fall that the slope promises
_HALVINGS = 12
_ROUNDING = 4 * float(np.finfo(np.float64).eps)  # of the objective


@dataclass(frozen=True, eq=False)
class Bound:
    """B⁻¹: `factor` of Σ w φ'φ'ᵀ + 2α, (r, r), and `n` = Σ w."""

    factor: Factor
    n: float

    def solve(self, gradient: Array) -> Array:
        """B⁻¹ of a gradient (r + 1, c)."""
        return np.vstack([2 * self.factor.solve(gradient[:-1]), 2 * gradient[-1:] / self.n])


@dataclass(frozen=True, eq=False)
class Point:
    """Θ, the objective there and its gradient."""

    theta: Array
    objective: float
    gradient: Array
    pairs: tuple[tuple[Array, Array], ...] = ()  # the last steps and changes of the gradient
    # Newton's decrement by the curvature that the steps have met: about what the objective is above its least
    excess: float = np.inf


def descend(start: Point, bound: Bound, evaluate: Callable[[Array], tuple[float, Array]]) -> Iterator[Point]:
    """The points of a descent; `evaluate` gives the objective and its gradient at Θ, a sweep each.

    It ends where no step along the descent falls, but for rounding.
    """
    here = start
    while True:
        direction = -_product(here, bound)
        slope = float((direction * here.gradient).sum())
        here = replace(here, excess=max(-slope / 2, 0.0))
        yield here
        rounding = _ROUNDING * abs(here.objective)
        if here.excess <= _ROUNDING * rounding:
            return
        length = 1.0
        for _ in range(_HALVINGS):
            theta = here.theta + length * direction
            objective, gradient = evaluate(theta)
            if objective <= here.objective + _ARMIJO * length * slope + rounding:
                break
            length /= 2
        else:
            return
        pair = theta - here.theta, gradient - here.gradient
        # of vectors, whose norms SciPy takes without their squares
        moved, turned = (float(linalg.norm(one.ravel())) for one in pair)
        bent = float((pair[0] * pair[1]).sum()) > 1e-14 * moved * turned
        pairs = (*here.pairs, pair)[-MEMORY:] if bent else here.pairs
        here = Point(theta, objective, gradient, pairs)


def _product(here: Point, bound: Bound) -> Array:
    """The inverse Hessian times the gradient, as the pairs tell it."""
    q, shares = here.gradient.copy(), []
    for s, y in reversed(here.pairs):
        share = float((s * q).sum() / (s * y).sum())
        shares.append(share)
        q -= share * y
    found = bound.solve(q)
    if here.pairs:
        s, y = here.pairs[-1]
        found *= float((s * y).sum() / (y * bound.solve(y)).sum())
    for (s, y), share in zip(here.pairs, reversed(shares), strict=True):
        found += (share - float((y * found).sum() / (s * y).sum())) * s
    return found
