"""Preconditioned conjugate gradients on Aα = C, a column for each target; whoever calls has the products with A.

The excess of the objective over its least value is rᵀA⁻¹r, at most ρ/λ with ρ = rᵀP⁻¹r and λ the smallest eigenvalue
of P⁻¹A. The steps themselves estimate λ: their lengths η and the β of their directions are the entries of a Lanczos
matrix T of P⁻¹A, whose least eigenvalue θ, the smallest Ritz value, comes near λ from above (Meurant & Tichý, Numerical
Algorithms 2013).
    T_ii = 1/η_i + β_{i−1}/η_{i−1},   T_{i,i+1} = √β_i/η_i
Before T has found λ, what is known of the preconditioner stands for it: θ is never above its `least`. β is that of
Polak and Ribière, which tolerates a P that rounding makes a little different in each step. Shapes: m landmarks, c
targets, k steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from bigkernel.arrays import Array

_SAFETY = 0.9  # of the smallest Ritz value, which is above the smallest eigenvalue


@dataclass(frozen=True, eq=False)
class CGState:
    """The state between two steps.

    Attributes
    ----------
    alpha : α, (m, c)
    residual : r = C − Aα, (m, c)
    direction : p, (m, c)
    rho : ρ = ⟨r, P⁻¹r⟩, (c,)
    ritz : θ, the smallest Ritz value so far, (c,)
    stalled : (c,) columns that cannot come nearer, as rounding has made ⟨p, Ap⟩ useless
    decrease : by how much the last step has lowered the objective, (c,) (Hestenes & Stiefel 1952)
    eta, beta : of the steps so far, (k, c)
    """

    alpha: Array
    residual: Array
    direction: Array
    rho: Array
    ritz: Array
    stalled: Array
    decrease: Array
    eta: Array
    beta: Array

    def select(self, columns: Array) -> CGState:
        """Select some columns."""
        return CGState(**{name: values[..., columns] for name, values in vars(self).items()})

    @property
    def excess(self) -> Array:
        """Bound of what the objective is above its least value, (c,): ρ/(0.9 θ)."""
        return np.asarray(self.rho / (_SAFETY * self.ritz))


def start_cg(alpha: Array, residual: Array, solve: Callable[[Array], Array], ritz: Array) -> CGState:
    """Start from α: the state before the first step.

    Parameters
    ----------
    alpha, residual : (m, c), C − Aα
    solve : gives P⁻¹R of R (m, c)
    ritz : (c,) that the smallest eigenvalue of P⁻¹A is not expected to exceed
    """
    z, c = solve(residual), alpha.shape[1]
    # ρ of an exact P⁻¹ is never below 0, but rounding can make it so
    rho, none = np.maximum(_inner(residual, z), 0), np.zeros((0, c))
    return CGState(alpha, residual, z, rho, ritz, np.zeros(c, bool), np.zeros(c), eta=none, beta=none)


def step_cg(state: CGState, product: Array, solve: Callable[[Array], Array]) -> CGState:
    """Step along the direction p, of which `product` is Ap."""
    curvature = _inner(state.direction, product)
    stalled = state.stalled | ~(curvature > 0) | ~(state.rho > 0)
    # ⟨p, r⟩ is ρ, but where rounding has left nothing of p: then the step ends at the least value along it all the same
    along = _inner(state.direction, state.residual)
    eta = np.where(stalled, 0.0, along / np.where(stalled, 1.0, curvature))
    residual = state.residual - eta * product
    z = solve(residual)
    beta = np.where(stalled, 0.0, _inner(residual - state.residual, z) / np.where(stalled, 1.0, state.rho))
    beta = np.maximum(beta, 0.0)
    etas = np.vstack([state.eta, eta])
    return CGState(
        alpha=state.alpha + eta * state.direction,
        residual=residual,
        direction=z + beta * state.direction,
        rho=np.maximum(_inner(residual, z), 0),
        ritz=np.minimum(state.ritz, _smallest_ritz(etas, state.beta, stalled)),
        stalled=stalled,
        decrease=eta * along,
        eta=etas,
        beta=np.vstack([state.beta, beta]),
    )


def _smallest_ritz(eta: Array, beta: Array, stalled: Array) -> Array:
    """Compute the smallest eigenvalue of the Lanczos matrix of η (k, c) and β (k − 1, c), (c,); ∞ where it stalls."""
    smallest = np.full(len(stalled), np.inf)
    for column in np.flatnonzero(~stalled & (eta > 0).all(axis=0)):
        lengths, betas = eta[:, column], beta[:, column]
        diagonal = 1 / lengths + np.append(0.0, betas / lengths[:-1])
        beside = np.sqrt(betas) / lengths[:-1]
        smallest[column] = eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(0, 0))[0]
    # rounding can take an eigenvalue that is small against the others below 0
    return np.asarray(np.maximum(smallest, 1e-300))


def _inner(a: Array, b: Array) -> Array:
    return np.asarray((a * b).sum(axis=0))
