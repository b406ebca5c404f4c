"""Predictive variance: kernel ridge regression read as a Gaussian process with covariance k and noise variance α.

    exact     Var[y|x] = k(x,x) − k(x,X)(K + αW⁻¹)⁻¹k(X,x) + α                  (Rasmussen & Williams 2006, eq. 2.26)
    Nyström   Var[y|x] = [k(x,x) − ‖φ‖²] + αφᵀ(ΦᵀWΦ + αI)⁻¹φ + α, φ whitened           (DTC; Quiñonero & Rasmussen 2005)

An intercept is a constant with a flat prior: it adds its own uncertainty (ibid., eq. 2.42). Row weights w_i are inverse
noise variances, α/w_i; a new observation has noise variance α. Shapes: b rows of a block, p columns of it, r the rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.solvers.exact import weigh
from bigkernel.solvers.ridge import DenseFactor, factorize
from bigkernel.solvers.whitening import Whitening, centred
from bigkernel.statistics.moments import Moments
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk

BLOCK_BYTES = 2**28  # of a block of rows and its half-solves


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """Var[y|x] of rows from their kernel values, of the exact form, p = n."""

    factor: DenseFactor  # of W^{1/2}KW^{1/2} + αI
    root: Array  # (n,) roots of the weights
    constant: Array | None  # (n,) the half-solve of `root`, where there is an intercept
    noise: float  # α

    def variance(self, block: Array, diagonal: Array) -> Array:
        """(b,) for k(x, Z) in `block` (b, p) float64 and k(x, x) in `diagonal` (b,)."""
        half = self.factor.half((block * self.root).T)
        total: Array = np.maximum(diagonal - np.einsum("ij,ij->j", half, half), 0)
        if self.constant is not None:
            # (1 − 1ᵀA⁻¹k)² / 1ᵀA⁻¹1 with A = K + αW⁻¹
            total += (1 - self.constant @ half) ** 2 / max(float(self.constant @ self.constant), 1e-300)
        return total + self.noise


@dataclass(frozen=True, eq=False)
class NystromPosterior:
    """Var[y|x] of rows from their kernel values, of the Nyström form, p = m."""

    whitening: Whitening  # φ = Tᵀk(Z, x)
    factor: DenseFactor  # of ΦᵀWΦ + αI, centred where there is an intercept
    mean: Array  # (r,) what was taken out
    noise: float  # α
    constant: float  # variance of the intercept, α/Σw

    def variance(self, block: Array, diagonal: Array) -> Array:
        """(b,) for k(x, Z) in `block` (b, p) float64 and k(x, x) in `diagonal` (b,)."""
        phi = self.whitening.reduce(block.T)
        total: Array = np.maximum(diagonal - np.einsum("ij,ij->j", phi, phi), 0)
        phi = phi - self.mean[:, None]
        half, unseen = self.factor.half(phi), self.factor.unseen(phi)
        total += self.noise * np.einsum("ij,ij->j", half, half) + np.einsum("ij,ij->j", unseen, unseen)
        return total + (self.noise + self.constant)


Posterior = ExactPosterior | NystromPosterior


def exact_posterior(K: Array, alpha: float, *, fit_intercept: bool, weight: Array | None = None) -> ExactPosterior:
    """From the kernel matrix (n, n) of the training rows, their weights and α."""
    scaled, root = weigh(K, weight)
    factor = factorize(scaled, alpha, n_rows=len(K))
    # rows that tell the constant without noise leave no doubt about it: α = 0 and 1 outside the range of K
    known = np.linalg.norm(factor.unseen(root[:, None])) > 1e-6 * np.linalg.norm(root)
    constant = factor.half(root[:, None])[:, 0] if fit_intercept and not known else None
    return ExactPosterior(factor, root, constant, alpha)


def nystrom_posterior(moments: Moments, whitening: Whitening, alpha: float, *, fit_intercept: bool) -> NystromPosterior:
    """From the moments of the landmark block, the whitening of its core and α."""
    *_, small = centred(moments, whitening, fit_intercept=fit_intercept)
    factor = factorize(small.G, alpha, n_rows=moments.rows, condition=whitening.condition)
    constant = alpha / small.n if fit_intercept and small.n > 0 else 0.0
    return NystromPosterior(whitening, factor, small.mean, alpha, constant)


@dataclass(frozen=True, eq=False)
class SpreadPredictor(Predictor):
    """A `Predictor` whose values have one column more: the standard deviation of a new observation."""

    posterior: Posterior | None = None

    @property
    def width(self) -> int:
        """c + 1."""
        return super().width + 1

    @property
    def row_bytes(self) -> int:
        """Bytes a row of a block takes beside its features: it and its half-solves in float64, and a few numbers."""
        return 8 * (4 * self.features.width + 8)

    @property
    def flops_per_row(self) -> float:
        """Two triangular solves on top of the prediction."""
        return super().flops_per_row + 2.0 * self.features.width**2

    @property
    def fixed_bytes(self) -> int:
        """The factors, as they come and as they are unpacked, and NumPy's own buffers."""
        return super().fixed_bytes + 2 * 2 * 8 * self.features.width**2 + 2**18

    @property
    def most_rows(self) -> int:
        """Rows of a block, at most: it cannot go in slices, for its half-solves need whole rows."""
        return max(1, BLOCK_BYTES // (self.features.cost.row_bytes + self.row_bytes))

    def work_bytes(self, block_rows: int) -> int:
        """Bytes that a task needs to predict, its chunk apart."""
        return super().work_bytes(min(block_rows, self.most_rows))

    def values(self, chunk: Chunk) -> Array:
        """f of every row and the standard deviation of y around it, (n, c + 1) float64."""
        assert self.posterior is not None
        assert isinstance(self.features, LandmarkMap | FourierMap)
        self.prepare()
        out = np.empty((len(chunk), self.width))
        chunk = replace(chunk, block_rows=min(chunk.block_rows, self.most_rows))
        for block in chunk.blocks():
            diagonal = self.features.diagonal(chunk, block)
            phi = self.features.block(chunk, block)
            with chunk.work.stage("predict"):
                out[block, :-1] = phi @ self.weights
                out[block, :-1] += self.intercept
                out[block, -1] = np.sqrt(self.posterior.variance(phi.astype(np.float64), diagonal))
        return out
