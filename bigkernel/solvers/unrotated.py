"""Ridge in whitened coordinates from moments that stay as they are: one Cholesky factor in the place of m³ for TᵀGT.

With K = ΠᵀLLᵀΠ whole, T = ΠᵀL⁻ᵀ is square, and the matrix of a ridge with the penalty α is
    H = TᵀGT + αI = TᵀMT,   M = G + αK,   so that   H⁻¹ = LᵀΠ M⁻¹ ΠᵀL:
products and solves in whitened coordinates take two triangular products with L more, and nothing is rotated. M is
factored about the mean of the columns, where its entries are smallest. With μ that mean, moments about 0 have one term
more, Mₒ = M + n μμᵀ, and with g = M⁻¹μ
    Mₒ⁻¹B = M⁻¹B − g gᵀB / (1/n + μᵀg).

What the rounding of the factor does is seen as that of a rotation is: by (RᵀR − M)v for the vectors v = Tz of a
witness.

Shapes: p landmarks and as many whitened coordinates, c targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.kernels import blas
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import Certificates, frobenius
from bigkernel.solvers.triangles import solve_factored, times_triangle
from bigkernel.statistics.moments import Moments

Array = NDArray[Any]
_STRIP = 128  # rows of M that are made at a time
_POWERS = 4  # steps towards the largest eigenvalue
_MARGIN = 2.0  # by which they may stay below it


@dataclass(frozen=True, eq=False)
class WhitenedGram:
    """TᵀGT (p, p) of centred moments, or of those about 0, as far as products tell of it.

    Attributes
    ----------
    moments : G and s, about any point
    whitening : of a core that is known and kept whole
    mean : μ (p,) where moments are about 0; None: centred
    """

    moments: Moments
    whitening: Any
    mean: Array | None

    def __len__(self) -> int:
        return int(self.whitening.rank)

    def __matmul__(self, w: Array) -> Array:
        """TᵀGTw, (p, c)."""
        return np.asarray(self.whitening.reduce(self.of_landmarks(self.whitening.expand(w))))

    def of_landmarks(self, B: Array) -> Array:
        """GB of coefficients over the landmarks, (p, c)."""
        G, s, n = self.moments.G, self.moments.s, self.moments.n
        out: Array = (B.T @ G).T - np.outer(s, (s @ B) / n)  # G is symmetric; so, BLAS is twice as fast
        return out if self.mean is None else out + np.outer(self.mean, n * (self.mean @ B))


@dataclass(frozen=True, eq=False)
class UnrotatedFactor:
    """H factored by M: what `factors.Factor` is to rotated moments, made by `factorize`.

    Attributes
    ----------
    gram : of which H = gram + αI
    alpha : α
    upper : (p, p) Cholesky factor R in the upper triangle, RᵀR = M, in column order
    along : g (p,), or None where moments are centred
    condition : about that of H
    rounding : how far below 0 eigenvalues of the moments reach, which have none
    hidden : 0: no direction is lost
    """

    gram: WhitenedGram
    alpha: float
    upper: Array
    along: Array | None = None
    condition: float = 1.0
    rounding: float = 0.0
    hidden: int = 0

    def fit(self, C: Array, target_mean: Array) -> tuple[Array, Array]:
        """B (p, c) over the landmarks and the right side (p, c) of MB, of C centred and the means of the targets."""
        B = solve_factored(self.upper, C, lower=False)
        if self.along is None or self.gram.mean is None:
            return B, C
        # MₒB = C + n μȳᵀ is MB = C + μtᵀ: no sums about 0, which are large
        t = (target_mean - self.along @ C) / self._pivot
        return B + np.outer(self.along, t), C + np.outer(self.gram.mean, t)

    def solve(self, C: Array) -> Array:
        """H⁻¹C in whitened coordinates, (p, c)."""
        whitening = self.gram.whitening
        return np.asarray(whitening.weights(self._solve(whitening.restore(C))))

    def bent(self, gram: WhitenedGram, C: Array) -> Array:
        """xᵀGx of every column x of H⁻¹C, (c,)."""
        B = self._solve(self.gram.whitening.restore(C))
        return np.asarray((B * gram.of_landmarks(B)).sum(axis=0))

    def image(self, gram: WhitenedGram, C: Array) -> Array:
        """GH⁻¹C in whitened coordinates, (p, c)."""
        return np.asarray(gram.whitening.reduce(gram.of_landmarks(self._solve(self.gram.whitening.restore(C)))))

    def rounding_of(self, B: Array) -> Array:
        """(RᵀR − M)B, (p, c)."""
        product = times_triangle(self.upper, times_triangle(self.upper, B, lower=False), lower=False, transposed=True)
        return np.asarray(product - self._times(B))

    def certify(self, B: Array, C: Array, certificates: Certificates) -> None:
        """Say how well B (p, c) solves MB = C."""
        moments, core = self.gram.moments, self.gram.whitening.core
        size = frobenius(moments.G) + self.alpha * frobenius(core.diagonal)  # at most ‖G‖ + α‖K‖
        certificates.ratios["solution"] = residuals.of_residual(self._times(B) - C, size, B, C)
        certificates.figures["effective_dof"] = residuals.effective_dof(self.gram, self.alpha, self.solve)
        certificates.figures["solved_condition"] = self.condition
        certificates.meet(self.rounding, self.alpha)

    def _times(self, B: Array) -> Array:
        """MB."""
        centred = replace(self.gram, mean=None)
        return np.asarray(centred.of_landmarks(B) + self.alpha * (centred.whitening.core @ B))

    @property
    def _pivot(self) -> float:
        """1/n + μᵀg."""
        return float(1 / self.gram.moments.n + self.gram.mean @ self.along)  # type: ignore[operator]

    def _solve(self, B: Array) -> Array:
        out = solve_factored(self.upper, B, lower=False)
        if self.along is not None:
            out -= np.outer(self.along, (self.along @ B) / self._pivot)
        return out


def factorize(gram: WhitenedGram, alpha: float) -> UnrotatedFactor | None:
    """Factor gram + αI; None where `factors.factorize` would not rely on a Cholesky factor, or might not.

    That is where the penalty does not stand out from the rounding of moments, or these have eigenvalues below −α/2.
    """
    rows, size = gram.moments.rows, len(gram)
    relative = 10 * max(size, rows) * float(np.finfo(np.float64).eps)
    largest = _largest_eigenvalue(gram)
    if not alpha > relative * (_MARGIN * largest + alpha) > 0:
        return None
    M = _regular(gram, alpha)
    if blas.cholesky(M, lower=True):
        return None
    factor = UnrotatedFactor(gram, alpha, M.T)
    if gram.mean is not None:
        factor = replace(factor, along=solve_factored(M.T, gram.mean[:, None], lower=False)[:, 0])
    least = residuals.smallest_of(factor.solve, size)
    if not least > alpha / 2:
        return None
    return replace(factor, condition=(largest + alpha) / least, rounding=max(alpha - least, 0.0))


def _regular(gram: WhitenedGram, alpha: float) -> Array:
    """The lower triangle of M, in row order; above it may stand anything."""
    G, s, n, core = gram.moments.G, gram.moments.s, gram.moments.n, gram.whitening.core
    K, M, means = core.array.T, np.empty(G.shape), s / n
    for i in range(0, len(G), _STRIP):
        j = min(i + _STRIP, len(G))
        # G − ssᵀ/n + αK
        strip = np.multiply(K[i:j, :j], alpha, out=M[i:j, :j])
        strip += G[i:j, :j]
        strip -= np.outer(means[i:j], s[:j])
    M[np.diag_indices(len(M))] = np.diagonal(G) - means * s + alpha * core.diagonal
    return M


def _largest_eigenvalue(gram: WhitenedGram) -> float:
    """About that, never above it, by the power method."""
    v, largest = residuals.probes(len(gram), 1), 0.0
    for _ in range(_POWERS):
        v = gram @ (v / max(frobenius(v), 1e-300))
        largest = frobenius(v)
    return largest
