"""G + αI factored: the small systems of every ridge, solved as well as rounding lets them be.

Shapes: r coordinates, c targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.kernels import blas
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.target_penalties import require_alpha
from bigkernel.solvers.triangles import clear_upper, regularised, solve_factored, solve_lower

Array = NDArray[Any]
_COARSE = 1e-4  # rounding of moments beyond this share of their largest eigenvalue is no level to cut at


@dataclass(frozen=True)
class Factor:
    """G + αI factored: by Cholesky, or by its eigenvectors where it is singular; made by `factorize`.

    Attributes
    ----------
    lower : (r, r) Cholesky factor R, or None
    values, vectors : (k,), (r, k) eigenpairs kept where it is singular, and `dropped` (r, r − k) the other vectors
    condition : about its condition number, of what is kept
    plain : (k,) those eigenvalues of G alone
    rounding : how far below 0 eigenvalues of G reach, which has none; 0 where that does not stand out
    hidden : in how many directions rounding hides the eigenvalue, so that another was taken or none
    """

    lower: Array | None = None
    values: Array | None = None
    vectors: Array | None = None
    dropped: Array | None = None
    condition: float = 1.0
    plain: Array | None = None
    rounding: float = 0.0
    hidden: int = 0

    def solve(self, C: Array) -> Array:
        """(G + αI)⁻¹C, (r, c): the minimum-norm solution where G + αI is singular."""
        if self.lower is not None:
            return solve_factored(self.lower, C, lower=True)
        assert self.vectors is not None
        assert self.values is not None
        return np.asarray(self.vectors @ ((self.vectors.T @ C) / self.values[:, None]))

    def bent(self, G: Array, C: Array) -> Array:
        """xᵀGx of every column x of (G + αI)⁻¹C, (c,)."""
        if self.vectors is not None and self.values is not None and self.plain is not None:
            return np.asarray(((self.vectors.T @ C) ** 2 * (self.plain / self.values**2)[:, None]).sum(axis=0))
        x = self.solve(C)
        return np.asarray((x * (G @ x)).sum(axis=0))

    def image(self, G: Array, C: Array) -> Array:
        """G(G + αI)⁻¹C, (r, c)."""
        return np.asarray(G @ self.solve(C))

    def half(self, C: Array) -> Array:
        """HC with HᵀH = (G + αI)⁻¹ (or its pseudo-inverse), (·, c)."""
        if self.lower is not None:
            return solve_lower(self.lower, C)
        assert self.vectors is not None
        assert self.values is not None
        return np.asarray((self.vectors.T @ C) / np.sqrt(self.values)[:, None])

    def certified(self, G: Array, C: Array, alpha: float, certificates: Certificates | None) -> Array:
        """`solve`, and say how well it solves (G + αI)w = C."""
        w = self.solve(C)
        if certificates is not None:
            if self.lower is not None:
                certificates.of_cholesky(G, C, alpha, w, self.lower)
            elif self.values is not None and self.vectors is not None and self.plain is not None and len(G):
                certificates.of_spectrum(G, C, w, self.plain, self.values, self.vectors)
            certificates.figures["solved_condition"] = self.condition
            certificates.meet(self.rounding, alpha)
        return w

    def unseen(self, C: Array) -> Array:
        """C along the directions that were dropped as null, (r − k, c)."""
        if self.dropped is None:
            return np.zeros((0, C.shape[1]))
        return np.asarray(self.dropped.T @ C)


def factorize(
    G: Array, alpha: float, *, n_rows: float = 0.0, condition: float = 1.0, spectrum: Callable[[], Any] | None = None
) -> Factor:
    """Factor G + αI, G (r, r) positive semi-definite, alpha ≥ 0; see `ridge`. `spectrum()` gives eigh(G).

    A G with eigenvalues below −α/2, down to −ν, is one whose rounding exceeds the penalty: little is known of what its
    eigenvalues below ν are, and none is taken to be less than ν/4 (without a penalty: they are null). Errors on digits,
    m = 4,000, σ = 1.4, α = 0.01, float32: 2.4 % with ν/4, as in float64; 2.7 % with ν, 2.9 % with nothing.
    """
    require_alpha(alpha)
    if not len(G):
        return Factor(values=np.zeros(0), vectors=np.zeros((0, 0)), dropped=np.zeros((0, 0)), plain=np.zeros(0))
    regular = regularised(G, alpha)
    scale, norm = float(np.abs(np.diagonal(regular)).max()), float(linalg.lapack.dlange("1", regular))
    relative = 10 * max(len(G), n_rows) * float(np.finfo(np.float64).eps)
    penalised = alpha > relative * scale
    if not penalised:  # rounding of the moments, which whitening amplifies, is not a direction
        relative = min(relative * condition, max(relative, 1e-8))
    if scale > 0:
        lower, info = clear_upper(regular), blas.cholesky(regular, lower=True)
        # pivots of rounding let a singular matrix pass: its condition tells, or its least eigenvalue, at least α
        if info == 0 and penalised:
            least = residuals.smallest_eigenvalue(lower)
            if least > alpha / 2:
                return Factor(lower=lower, condition=norm / least, rounding=max(alpha - least, 0.0))
        elif info == 0:
            reciprocal = float(linalg.lapack.dpocon(lower, norm, uplo="L")[0])
            if reciprocal <= relative and alpha > 0:
                reciprocal = _graded(G, alpha, lower)
            if reciprocal > relative:
                return Factor(lower=lower, condition=1 / reciprocal)
    plain, vectors = linalg.eigh(G, driver="evd") if spectrum is None else spectrum()
    largest = max(float(np.abs(plain + alpha).max(initial=0.0)), 1e-300)
    rounding, null, values = max(-float(plain[0]), 0.0), relative * largest, plain + alpha
    if rounding <= null:
        rounding = 0.0
    elif rounding <= _COARSE * largest:
        null, values = (rounding, plain) if alpha == 0 else (null, np.maximum(plain, rounding / 4) + alpha)
    keep = values > null
    hidden = int((plain < rounding).sum()) if rounding > alpha else 0
    kept, condition = values[keep], float(values[-1] / values[keep][0]) if keep.any() else 1.0
    return Factor(None, kept, vectors[:, keep], vectors[:, ~keep], condition, plain[keep], rounding, hidden)


def _graded(G: Array, alpha: float, lower: Array) -> float:
    """1/κ of G + αI scaled to a diagonal of ones: Cholesky loses no more, however its directions differ in size."""
    scale = 1 / np.sqrt(np.diagonal(G) + alpha)
    norm = float(linalg.lapack.dlange("1", regularised(G, alpha) * np.outer(scale, scale)))
    return float(linalg.lapack.dpocon(lower * scale[:, None], norm, uplo="L")[0])
