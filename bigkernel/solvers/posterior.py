"""Predictive variance: kernel ridge regression as a Gaussian process with covariance k and noise variance α.

    exact     Var[y|x] = k(x,x) − k(x,X)(K + αW⁻¹)⁻¹k(X,x) + α                  (Rasmussen & Williams 2006, eq. 2.26)
    Nyström   Var[y|x] = [k(x,x) − ‖φ‖²] + αφᵀ(ΦᵀWΦ + αI)⁻¹φ + α, φ whitened           (DTC; Quiñonero & Rasmussen 2005)

An intercept is a constant with a flat prior: it adds its own uncertainty (ibid., eq. 2.42). Row weights w_i are inverse
noise variances, α/w_i; a new observation has noise variance α. Both become a `Spread`, of kernel values as they are.
Shapes: n rows, p columns of a block, r the rank, c targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.solvers.exact import weigh
from bigkernel.solvers.ridge import DenseFactor, factorize
from bigkernel.solvers.whitening import Reduced, Whitening
from bigkernel.statistics.predictor import Spread


@dataclass(frozen=True, eq=False)
class Posterior:
    """The spread of a fit, and the degrees of freedom that are left for its noise."""

    spread: Spread  # of scale 1
    left: float  # rows less the effective degrees of freedom
    noise: float  # α

    def scaled(self, squares: Array, missing: float) -> Spread:
        """Return the spread with a scale for each target that is estimated from residuals.

        The weighted sums of their squares (c,) give the variance σ̂² = squares/(n − tr H) of the noise, which is
        unbiased for a smoother H without bias (Wahba 1990, eq. 4.7.2), and of what landmarks miss: on average
        `missing`, the mean of k(x,x) − ‖φ‖². Variances are multiplied by σ̂²/(α + missing).
        """
        squares = squares / max(self.left, 1.0)
        return replace(self.spread, scale=np.sqrt(squares / max(self.noise + missing, 1e-300)))


def exact_posterior(K: Array, alpha: float, *, fit_intercept: bool, weight: Array | None = None) -> Posterior:
    """Build the posterior from the kernel matrix (n, n) of the training rows, their weights and α."""
    scaled, root = weigh(K, weight)
    factor = factorize(scaled, alpha, n_rows=len(K))
    half = factor.half(np.eye(len(K)))  # of W^{1/2}KW^{1/2} + αI
    uncertain, centre = np.zeros((len(K), 0)), np.zeros(0)
    left = alpha * float((half**2).sum()) - np.count_nonzero(root == 0)
    # the constant has no variance if the rows determine it without noise: α = 0 and 1 outside the range of K
    known = np.linalg.norm(factor.null_coordinates(root[:, None])) > 1e-6 * np.linalg.norm(root)
    if fit_intercept and not known:
        # (1 − 1ᵀA⁻¹k)² / 1ᵀA⁻¹1 with A = K + αW⁻¹
        constant = half @ root
        unit = 1 / np.sqrt(max(float(constant @ constant), 1e-300))
        uncertain, centre = (unit * (constant @ half))[:, None], np.array([unit])
        left -= alpha * float((uncertain**2).sum())
        uncertain *= root[:, None]
    spread = Spread(root[:, None] * half.T, uncertain, centre, alpha, np.ones(1))
    return Posterior(spread, left, alpha)


def nystrom_posterior(
    small: Reduced, rows: float, whitening: Whitening, alpha: float, *, fit_intercept: bool
) -> Posterior:
    """Build the posterior from the whitened and centred moments of so many rows, the whitening and α."""
    factor = factorize(small.G, alpha, n_rows=rows, condition=whitening.condition)
    constant = alpha / small.n if fit_intercept and small.n > 0 else 0.0
    return posterior_of_factor(factor, whitening, small.mean, rows, alpha, constant)


def posterior_of_factor(
    factor: DenseFactor, whitening: Whitening, mean: Array, rows: float, alpha: float, constant: float
) -> Posterior:
    """Build the posterior from the factor of ΦᵀWΦ + αI about the mean of φ (r,), and the variance of the intercept."""
    identity = np.eye(whitening.rank)
    # of directions that no row determines, the variance stays that of the prior
    uncertain = np.vstack([np.sqrt(alpha) * factor.half(identity), factor.null_coordinates(identity)])
    spread = Spread(
        whitening.expand(identity), whitening.expand(uncertain.T), uncertain @ mean, alpha + constant, np.ones(1)
    )
    left = rows - whitening.rank + float((uncertain**2).sum()) - float(constant > 0)
    return Posterior(spread, left, alpha)
