"""Many penalties of one ridge problem, from one eigendecomposition of its moments.

With G = VΛVᵀ the solution of (G + αI)w = C is w = V(Λ + αI)⁻¹VᵀC: a penalty more costs a product with V, where a
Cholesky factor costs r³/3 and the triangular solves behind it. In that basis the errors of its predictions cost no
more than sums over r numbers. Shapes: r coordinates, c targets, k vectors of a witness.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.accuracy import VECTORS, Errors, Moved, Variances, prediction_errors, told_errors
from bigkernel.solvers.factors import factorize
from bigkernel.solvers.residuals import probes
from bigkernel.solvers.ridge import Reduced, bend, squared_error
from bigkernel.solvers.target_penalties import Columns

Array = NDArray[np.float64]
SHARED = 8  # penalties from which on a decomposition costs less than their Cholesky factors


class PenaltyPath:
    """(G + αI)w = C for many α.

    Parameters
    ----------
    small : moments in the coordinates of the ridge
    rows : behind them
    condition : see `factorize`
    known : of the errors behind them; None: those of predictions are not told
    """

    def __init__(self, small: Reduced, rows: float, condition: float = 1.0, known: Variances | None = None) -> None:
        self._small, self._rows, self._condition, self._known = small, rows, condition, known

    def solve(self, alpha: float, columns: Columns, *, shared: bool) -> tuple[Array, Errors | None]:
        """Weights (r, c) of some targets, and the errors of their predictions where something is known of them.

        By the eigenvectors where they are `shared` and rounding leaves α alone, else as `factorize` does.
        """
        if shared and self._stands_out(alpha):
            return self._turned_back(alpha, columns)
        whole, known = self._small, self._known
        part = replace(whole, C=whole.C[:, columns], q=whole.q[columns], target_mean=whole.target_mean[columns])
        spectrum = lambda: self._spectrum  # noqa: E731
        factor = factorize(part.G, alpha, n_rows=self._rows, condition=self._condition, spectrum=spectrum)
        w = factor.solve(part.C)
        if known is None:
            return w, None
        bent = bend(part.G, w)
        return w, prediction_errors(known, part, (w, squared_error(part, w, bent), bent), factor)

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        # NumPy's, unlike SciPy's, lets other threads work meanwhile
        values, vectors = np.linalg.eigh(self._small.G)
        return values, vectors

    @cached_property
    def _turned(self) -> tuple[Array, list[Array]]:
        """VᵀC (r, c); and of the changes of Hw that are known, and of signs, their squares along V, (r, k) each."""
        vectors = self._spectrum[1]
        changes = [] if self._known is None else [*self._known.changes, probes(len(vectors), VECTORS)]
        turned = vectors.T @ np.hstack([self._small.C, *changes])
        C, *others = np.split(turned, range(self._small.C.shape[1], turned.shape[1], VECTORS), axis=1)
        return C, [one**2 for one in others]

    def _stands_out(self, alpha: float) -> bool:
        """Tell if a penalty stands out from rounding: where `factorize` would take a Cholesky factor of G + αI."""
        G = self._small.G
        if not len(G):
            return False
        relative = 10 * max(len(G), self._rows) * float(np.finfo(np.float64).eps)
        scale = float(np.abs(np.diagonal(G) + alpha).max())
        return bool(alpha > relative * scale > 0 and self._spectrum[0][0] + alpha > alpha / 2)

    def _turned_back(self, alpha: float, columns: Columns) -> tuple[Array, Errors | None]:
        """See `solve`: by the eigenvectors."""
        (values, vectors), (C, along), known = self._spectrum, self._turned, self._known
        solved = values + alpha
        turned = C[:, columns] / solved[:, None]
        w = vectors @ turned
        if known is None:
            return w, None
        fit = float((values[:, None] * turned**2).sum())
        squares = np.maximum(self._small.q[columns] - ((values + 2 * alpha)[:, None] * turned**2).sum(axis=0), 0)
        of_change = values / solved**2
        # as of a factor: by column, where rounding has made G negative its size
        rows, of_changes = 0.0, [float(np.abs(of_change @ one).sum()) for one in along[:-1]]
        if known.blocks is not None:
            rows = float(((values / solved) ** 2 @ along[-1]).sum())
            own = vectors.T @ (self._small.n * known.blocks[:, None] * w)
            of_changes.append(float(np.abs(of_change @ own**2).sum()))
        moved = Moved(fit, float(squares.sum()), 0.0, rows, *of_changes)
        return w, told_errors(known, self._small.n, w, moved)
