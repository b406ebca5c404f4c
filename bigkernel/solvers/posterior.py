"""Predictive variance: kernel ridge regression as a Gaussian process with covariance k and noise variance α.

    exact     Var[y|x] = k(x,x) − k(x,X)(K + αW⁻¹)⁻¹k(X,x) + α                  (Rasmussen & Williams 2006, eq. 2.26)
    Nyström   Var[y|x] = [k(x,x) − ‖φ‖²] + αφᵀ(ΦᵀWΦ + αI)⁻¹φ + α, φ whitened           (DTC; Quiñonero & Rasmussen 2005)

An intercept is a constant with a flat prior: it adds its own uncertainty (ibid., eq. 2.42). Row weights w_i are inverse
noise variances, α/w_i; a new observation has noise variance α. Both become a `Spread`, of kernel values as they are.
Shapes: n rows, p columns of a block, r the rank, c targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array
from bigkernel.solvers.exact import weigh
from bigkernel.solvers.ridge import DenseFactor, factorize
from bigkernel.solvers.whitening import Reduced, Whitening
from bigkernel.statistics.predictor import Spread


@dataclass(frozen=True, eq=False)
class Posterior:
    """Var[y|x] = s²(k(x,x) − ‖Aᵀφ‖² + ‖Pᵀφ − p‖²) + σ²(‖Uᵀφ − u‖² + κ + 1) for any scale s² of the kernel, σ² = s²α."""

    explained: Array  # A (p, r)
    prior: tuple[Array, Array]  # P (p, k) and p (k,), of directions that no row determines, or of the intercept
    noisy: tuple[Array, Array]  # U (p, q) and u (q,), of directions that rows determine but for their noise
    constant: float  # κ, of the intercept
    left: float  # rows less the effective degrees of freedom
    alpha: float

    @property
    def spread(self) -> Spread:
        """The spread for s² = 1."""
        return self.scaled(np.ones(1), self.alpha)

    def scaled(self, scale: Array, noise: float, least: float = 0.0, weight: float = 1.0) -> Spread:
        """Return the spread for deviations s (c,) of the kernel and s²·`noise` of a row of weight 1.

        New rows have the weight `weight`, and what landmarks miss of k(x, x) counts beyond `least`.
        """
        factors = np.hstack([self.prior[0], np.sqrt(noise) * self.noisy[0]])
        centre = np.concatenate([self.prior[1], np.sqrt(noise) * self.noisy[1]])
        return Spread(self.explained, factors, centre, noise * (1 / weight + self.constant), scale, least)


def exact_posterior(K: Array, alpha: float, *, fit_intercept: bool, weight: Array | None = None) -> Posterior:
    """Build the posterior from the kernel matrix (n, n) of the training rows, their weights and α."""
    scaled, root = weigh(K, weight)
    factor = factorize(scaled, alpha, n_rows=len(K))
    half = factor.half(np.eye(len(K)))  # of W^{1/2}KW^{1/2} + αI
    none = np.zeros((len(K), 0)), np.zeros(0)
    uncertain, centre = none
    left = alpha * float((half**2).sum()) - np.count_nonzero(root == 0)
    # the constant has no variance if the rows determine it without noise: α = 0 and 1 outside the range of K
    determined = np.linalg.norm(factor.null_coordinates(root[:, None])) > 1e-6 * np.linalg.norm(root)
    if fit_intercept and not determined:
        # (1 − 1ᵀA⁻¹k)² / 1ᵀA⁻¹1 with A = K + αW⁻¹
        constant = half @ root
        unit = 1 / np.sqrt(max(float(constant @ constant), 1e-300))
        uncertain, centre = (unit * (constant @ half))[:, None], np.array([unit])
        left -= alpha * float((uncertain**2).sum())
        uncertain *= root[:, None]
    return Posterior(root[:, None] * half.T, (uncertain, centre), none, 0.0, left, alpha)


def nystrom_posterior(
    small: Reduced, rows: float, whitening: Whitening, alpha: float, *, fit_intercept: bool
) -> Posterior:
    """Build the posterior from the whitened and centred moments of so many rows, the whitening and α."""
    factor = factorize(small.G, alpha, n_rows=rows, condition=whitening.condition)
    constant = 1 / small.n if fit_intercept and small.n > 0 else 0.0
    return posterior_of_factor(factor, whitening, small.mean, rows, alpha, constant)


def posterior_of_factor(
    factor: DenseFactor, whitening: Whitening, mean: Array, rows: float, alpha: float, constant: float
) -> Posterior:
    """Build the posterior from the factor of ΦᵀWΦ + αI about the mean of φ (r,), and κ of the intercept."""
    identity = np.eye(whitening.rank)
    half, null = factor.half(identity), factor.null_coordinates(identity)
    left = rows - whitening.rank + alpha * float((half**2).sum()) + len(null) - float(constant > 0)
    prior, noisy = ((whitening.expand(rows_of.T), rows_of @ mean) for rows_of in (null, half))
    return Posterior(whitening.expand(identity), prior, noisy, constant, left, alpha)
