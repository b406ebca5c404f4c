"""Many penalties of one ridge problem, from one eigendecomposition of its moments.

With G = VΛVᵀ the solution of (G + αI)w = C is w = V(Λ + αI)⁻¹VᵀC: a penalty more costs a product with V, where a
Cholesky factor costs r³/3 and the triangular solves behind it. The errors of predictions (`solvers.accuracy`) are the
same sums of squares, seen in the coordinates of V. Shapes: r coordinates, c targets.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.accuracy import VECTORS, Errors, Variances
from bigkernel.solvers.residuals import probes
from bigkernel.solvers.ridge import Reduced

Array = NDArray[np.float64]
SHARED = 8  # penalties from which on a decomposition costs less than their Cholesky factors


class PenaltyPath:
    """The ridge solutions of all penalties that rounding leaves alone.

    Parameters
    ----------
    part : centred moments in the coordinates of the ridge
    rows : behind them
    known : of the errors behind the moments; None: nothing
    """

    def __init__(self, part: Reduced, rows: float, known: Variances | None) -> None:
        self._part, self._rows, self._known = part, rows, known

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues Λ (r,), rising, and vectors V (r, r) of G."""
        # NumPy's, unlike SciPy's, lets other threads work meanwhile
        values, vectors = np.linalg.eigh(self._part.G)
        return values, vectors

    def takes(self, alpha: float) -> bool:
        """Tell if a penalty stands out from rounding: where `factorize` would take a Cholesky factor of G + αI."""
        G = self._part.G
        if not len(G):
            return False
        relative = 10 * max(len(G), self._rows) * float(np.finfo(np.float64).eps)
        scale = float(np.abs(np.diagonal(G) + alpha).max())
        return bool(alpha > relative * scale > 0 and self.spectrum[0][0] + alpha > alpha / 2)

    def solve(self, alpha: float, columns: slice | NDArray[np.int64]) -> tuple[Array, Errors | None]:
        """Weights w (r, c) of some targets, and the errors of their predictions where something is known of them."""
        values, V = self.spectrum
        turned = self._targets[:, columns] / (values + alpha)[:, None]
        w = V @ turned
        return w, None if self._known is None else self._errors(alpha, columns, w, turned)

    @cached_property
    def _targets(self) -> Array:
        return np.asarray(self.spectrum[1].T @ self._part.C)

    @cached_property
    def _fixed(self) -> list[tuple[Array, Array]]:
        """Variances (r,) of the sums and of their rotation, and the vectors that they move, in the coordinates of V."""
        assert self._known is not None
        parts = (self._known.sums, self._known.rotation)
        return [(a, self.spectrum[1].T @ _moving(a)) for a in parts]

    def _errors(self, alpha: float, columns: slice | NDArray[np.int64], w: Array, turned: Array) -> Errors:
        """As `accuracy.prediction_errors` of a solver that hides and drops nothing."""
        assert self._known is not None
        values, V = self.spectrum
        bent = (turned**2 * values[:, None]).sum(axis=0)
        predicted, d = float(bent.sum()), self._known.blocks
        if not w.any() or predicted == 0:
            return Errors(0.0, 0.0, 0.0)
        if not predicted > 0:  # G is all rounding
            return Errors(np.inf, np.inf, 0.0 if d is None else np.inf)
        # H⁻¹GH⁻¹ in the coordinates of V
        weight = (values / (values + alpha) ** 2)[:, None]

        def moved(x: Array) -> float:
            return float(np.abs((x**2 * weight).sum(axis=0)).sum())

        parts = []
        for a, x in self._fixed:
            total = float(a.sum())
            parts.append(moved(x) / VECTORS * (float((a @ w**2).sum()) / total) if total else 0.0)
        blocks = 0.0
        if d is not None:
            part, seen = self._part, float((d @ w**2).sum())
            squares = np.maximum(part.q[columns] - 2 * (turned * self._targets[:, columns]).sum(axis=0) + bent, 0)
            spread = d * float(squares.sum()) + np.maximum(np.diagonal(part.G), 0) * seen
            blocks = moved(V.T @ _moving(spread)) / VECTORS + moved(V.T @ (part.n * d[:, None] * w)) + part.n * seen
        sums, rotation, of_blocks = (float(np.sqrt(part / predicted)) for part in (*parts, blocks))
        return Errors(sums, rotation, of_blocks)


def _moving(variances: Array) -> Array:
    """Changes of Hw of these variances (r,), along a few fixed directions."""
    return np.asarray(np.sqrt(variances)[:, None] * probes(len(variances), VECTORS))
