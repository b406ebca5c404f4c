"""Predictive variance: kernel ridge regression as a Gaussian process with covariance k and noise variance α.

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
from bigkernel.solvers.whitening import Reduced, Whitening
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk

BLOCK_BYTES = 2**28  # largest block of rows with its half-solves


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """Var[y|x] of rows from their kernel values, in the exact form, p = n."""

    factor: DenseFactor  # of W^{1/2}KW^{1/2} + αI
    root: Array  # (n,) roots of the weights
    constant: Array | None  # (n,) the half-solve of `root`, with an intercept
    noise: float  # α

    def variance(self, block: Array, diagonal: Array) -> Array:
        """Compute Var[y|x] (b,) from k(x, Z) in `block` (b, p) float64 and k(x, x) in `diagonal` (b,)."""
        half = self.factor.half((block * self.root).T)
        total: Array = np.maximum(diagonal - np.einsum("ij,ij->j", half, half), 0)
        if self.constant is not None:
            # (1 − 1ᵀA⁻¹k)² / 1ᵀA⁻¹1 with A = K + αW⁻¹
            total += (1 - self.constant @ half) ** 2 / max(float(self.constant @ self.constant), 1e-300)
        return total + self.noise


@dataclass(frozen=True, eq=False)
class NystromPosterior:
    """Var[y|x] of rows from their kernel values, in the Nyström form, p = m."""

    whitening: Whitening  # φ = Tᵀk(Z, x)
    factor: DenseFactor  # of ΦᵀWΦ + αI, centred with an intercept
    mean: Array  # (r,) subtracted from φ
    noise: float  # α
    constant: float  # variance of the intercept, α/Σw

    def variance(self, block: Array, diagonal: Array) -> Array:
        """Compute Var[y|x] (b,) from k(x, Z) in `block` (b, p) float64 and k(x, x) in `diagonal` (b,)."""
        phi = self.whitening.reduce(block.T)
        total: Array = np.maximum(diagonal - np.einsum("ij,ij->j", phi, phi), 0)
        phi = phi - self.mean[:, None]
        half, null = self.factor.half(phi), self.factor.null_coordinates(phi)
        total += self.noise * np.einsum("ij,ij->j", half, half) + np.einsum("ij,ij->j", null, null)
        return total + (self.noise + self.constant)


Posterior = ExactPosterior | NystromPosterior


def exact_posterior(K: Array, alpha: float, *, fit_intercept: bool, weight: Array | None = None) -> ExactPosterior:
    """Build the posterior from the kernel matrix (n, n) of the training rows, their weights and α."""
    scaled, root = weigh(K, weight)
    factor = factorize(scaled, alpha, n_rows=len(K))
    # the constant has no variance if the rows determine it without noise: α = 0 and 1 outside the range of K
    known = np.linalg.norm(factor.null_coordinates(root[:, None])) > 1e-6 * np.linalg.norm(root)
    constant = factor.half(root[:, None])[:, 0] if fit_intercept and not known else None
    return ExactPosterior(factor, root, constant, alpha)


def nystrom_posterior(
    small: Reduced, rows: float, whitening: Whitening, alpha: float, *, fit_intercept: bool
) -> NystromPosterior:
    """Build the posterior from the whitened and centred moments of so many rows, the whitening and α."""
    factor = factorize(small.G, alpha, n_rows=rows, condition=whitening.condition)
    constant = alpha / small.n if fit_intercept and small.n > 0 else 0.0
    return NystromPosterior(whitening, factor, small.mean, alpha, constant)


@dataclass(frozen=True, eq=False)
class SpreadPredictor(Predictor):
    """A `Predictor` with an additional column of values, the standard deviation of a new observation."""

    posterior: Posterior | None = None

    @property
    def width(self) -> int:
        """The number of columns of the values, c + 1."""
        return super().width + 1

    @property
    def row_bytes(self) -> int:
        """Bytes of buffers per row of a block: it and its half-solves in float64, and a few numbers."""
        return 8 * (4 * self.features.width + 8)

    @property
    def flops_per_row(self) -> float:
        """Floating-point operations per row, with two triangular solves."""
        return super().flops_per_row + 2.0 * self.features.width**2

    @property
    def fixed_bytes(self) -> int:
        """Upper bound on the bytes of the model: factors, received and unpacked, and NumPy's own buffers."""
        return super().fixed_bytes + 2 * 2 * 8 * self.features.width**2 + 2**18

    @property
    def most_rows(self) -> int:
        """Most rows of a block, which is not sliced because half-solves need whole rows."""
        return max(1, BLOCK_BYTES // (self.features.cost.row_bytes + self.row_bytes))

    def work_bytes(self, block_rows: int) -> int:
        return super().work_bytes(min(block_rows, self.most_rows))

    def values(self, chunk: Chunk) -> Array:
        """Compute f of every row and the standard deviation of y around it, (n, c + 1) float64."""
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
