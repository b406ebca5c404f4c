"""Preconditioned conjugate gradients on Aα = C, a column for each target; whoever calls has the products with A.

The excess of the objective over its least value is rᵀA⁻¹r, at most ρ/λ with ρ = rᵀP⁻¹r and λ the smallest eigenvalue
of P⁻¹A. The steps themselves estimate λ: their lengths η and turns β are the entries of a Lanczos matrix T of P⁻¹A,
whose least eigenvalue θ, the smallest Ritz value, comes near λ from above (Meurant & Tichý, Numerical Algorithms 2013).
    T_ii = 1/η_i + β_{i−1}/η_{i−1},   T_{i,i+1} = √β_i/η_i
Before T has found λ, what is known of the preconditioner stands for it: θ is never above its `least`. β is that of
Polak and Ribière, which tolerates a P that rounding makes a little different in each step. Shapes: m landmarks, c
targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh_tridiagonal

Array = NDArray[Any]
_ARRAYS = ("alpha", "residual", "direction", "descent", "ritz", "stuck", "fall")
_SAFETY = 0.9  # of the smallest Ritz value, which is above the smallest eigenvalue


@dataclass(frozen=True, eq=False)
class Descent:
    """The state between two steps."""

    alpha: Array  # α, (m, c)
    residual: Array  # C − Aα, (m, c)
    direction: Array  # p, (m, c)
    descent: Array  # ρ = ⟨r, P⁻¹r⟩, (c,)
    ritz: Array  # θ, the smallest Ritz value so far, (c,)
    stuck: Array  # (c,) columns that cannot fall further, as rounding has made ⟨p, Ap⟩ useless
    fall: Array  # by how much the last step has lowered the objective, (c,) (Hestenes & Stiefel 1952)
    lengths: tuple[Array, ...] = ()  # η of the steps so far, (c,) each
    turns: tuple[Array, ...] = ()  # β of these

    def only(self, columns: Array) -> Descent:
        """The state of some columns."""
        some = {name: getattr(self, name)[..., columns] for name in _ARRAYS}
        some |= {name: tuple(one[columns] for one in getattr(self, name)) for name in ("lengths", "turns")}
        return Descent(**some)

    @property
    def excess(self) -> Array:
        """Bound of what the objective is above its least value, (c,): ρ/(0.9 θ)."""
        return np.asarray(self.descent / (_SAFETY * self.ritz))


def begin(alpha: Array, residual: Array, solve: Callable[[Array], Array], ritz: Array) -> Descent:
    """The state before the first step from α with the residual C − Aα; `solve` gives P⁻¹R of R (m, c).

    The smallest eigenvalues of P⁻¹A are not expected to exceed `ritz` (c,).
    """
    z, none = solve(residual), np.zeros(alpha.shape[1])
    # ρ of an exact P⁻¹ is never below 0, but rounding can make it so
    return Descent(alpha, residual, z, np.maximum(_inner(residual, z), 0), ritz, none.astype(bool), none)


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
    descent = np.maximum(_inner(residual, z), 0)
    turn = np.where(stuck, 0.0, _inner(residual - state.residual, z) / np.where(stuck, 1.0, state.descent))
    turn = np.maximum(turn, 0.0)
    lengths = (*state.lengths, length)
    return replace(
        state,
        alpha=alpha,
        residual=residual,
        direction=z + turn * state.direction,
        descent=descent,
        ritz=np.minimum(state.ritz, _smallest_ritz(lengths, state.turns, stuck)),
        stuck=stuck,
        fall=length * along,
        lengths=lengths,
        turns=(*state.turns, turn),
    )


def _smallest_ritz(lengths: tuple[Array, ...], turns: tuple[Array, ...], stuck: Array) -> Array:
    """The smallest eigenvalue of the Lanczos matrix of k steps, (c,); ∞ of columns that are stuck."""
    smallest = np.full(len(stuck), np.inf)
    eta, beta = np.array(lengths), np.array(turns).reshape(len(lengths) - 1, len(stuck))
    for column in np.flatnonzero(~stuck & (eta > 0).all(axis=0)):
        of, turn = eta[:, column], beta[:, column]
        diagonal = 1 / of + np.append(0.0, turn / of[:-1])
        beside = np.sqrt(turn) / of[:-1]
        smallest[column] = eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(0, 0))[0]
    # rounding can take an eigenvalue that is small against the others below 0
    return np.asarray(np.maximum(smallest, 1e-300))


def _inner(a: Array, b: Array) -> Array:
    return np.asarray((a * b).sum(axis=0))
