"""Many penalties of one ridge problem, from one eigendecomposition of its moments.

With G = VΛVᵀ the solution of (G + αI)w = C is w = V(Λ + αI)⁻¹VᵀC: a penalty more costs a product with V, where a
Cholesky factor costs r³/3 and the triangular solves behind it. Shapes: r coordinates.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.factors import Factor, factorize

Array = NDArray[np.float64]
SHARED = 8  # penalties from which on a decomposition costs less than their Cholesky factors


class PenaltyPath:
    """Factors of G + αI for many α.

    Parameters
    ----------
    G : (r, r) centred moments in the coordinates of the ridge
    rows : behind them
    condition : see `factorize`
    """

    def __init__(self, G: Array, rows: float, condition: float) -> None:
        self._G, self._rows, self._condition = G, rows, condition

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        # NumPy's, unlike SciPy's, lets other threads work meanwhile
        values, vectors = np.linalg.eigh(self._G)
        return values, vectors

    def factor(self, alpha: float, *, shared: bool) -> Factor:
        """G + αI by its eigenvectors where they are `shared` and rounding leaves α alone, else as `factorize` does."""
        if shared and self._stands_out(alpha):
            values, vectors = self._spectrum
            return Factor(values=values + alpha, vectors=vectors, plain=values)
        spectrum = lambda: self._spectrum  # noqa: E731
        return factorize(self._G, alpha, n_rows=self._rows, condition=self._condition, spectrum=spectrum)

    def _stands_out(self, alpha: float) -> bool:
        """Tell if a penalty stands out from rounding: where `factorize` would take a Cholesky factor of G + αI."""
        G = self._G
        if not len(G):
            return False
        relative = 10 * max(len(G), self._rows) * float(np.finfo(np.float64).eps)
        scale = float(np.abs(np.diagonal(G) + alpha).max())
        return bool(alpha > relative * scale > 0 and self._spectrum[0][0] + alpha > alpha / 2)
