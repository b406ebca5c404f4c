"""Many penalties of one ridge problem, from one tridiagonal form of its moments.

With G = QTQᵀ, T tridiagonal, the solution of (G + αI)w = C is w = Q(T + αI)⁻¹QᵀC: a penalty more costs a product with
Q, where a Cholesky factor costs r³/3 and the triangular solves behind it. In that basis the errors of its predictions
cost no more than sums over r numbers. Shapes: r coordinates, c targets, k vectors of a witness.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.kernels import blas
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

        By the tridiagonal form where it is `shared` and rounding leaves α alone, else as `factorize` does.
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
    def _tridiagonal(self) -> tuple[Array, Array, Array]:
        """The diagonal of T (r,), what is beside it (r − 1,), and Q (r, r)."""
        return blas.tridiagonal(self._small.G)

    @cached_property
    def _turned(self) -> tuple[Array, Array]:
        """QᵀC (r, c), and Qᵀ of the changes of Hw that are known, and of signs, side by side (r, ·)."""
        Q = self._tridiagonal[2]
        changes = [] if self._known is None else [*self._known.changes, probes(len(Q), VECTORS)]
        turned = Q.T @ np.hstack([self._small.C, *changes])
        c = self._small.C.shape[1]
        return turned[:, :c], turned[:, c:]

    def _stands_out(self, alpha: float) -> bool:
        """Tell if a penalty stands out from rounding: where `factorize` would take a Cholesky factor of G + αI."""
        G = self._small.G
        if not len(G):
            return False
        relative = 10 * max(len(G), self._rows) * float(np.finfo(np.float64).eps)
        scale = float(np.abs(np.diagonal(G) + alpha).max())
        # the least eigenvalue of G is above −α/2
        return bool(alpha > relative * scale > 0 and self._factored(alpha / 2)[2] == 0)

    def _factored(self, alpha: float) -> tuple[Array, Array, int]:
        """T + αI = LDLᵀ: the diagonal of D, what is below that of L, and 0 where it is positive definite."""
        d, e, _ = self._tridiagonal
        if not e.size:
            return d + alpha, e, int(not d[0] + alpha > 0)
        pivots, below, info = linalg.lapack.dpttrf(d + alpha, e)
        return pivots, below, int(info)

    def _times(self, x: Array) -> Array:
        """Tx, (r, k)."""
        d, e, _ = self._tridiagonal
        out = d[:, None] * x
        out[:-1] += e[:, None] * x[1:]
        out[1:] += e[:, None] * x[:-1]
        return out

    def _turned_back(self, alpha: float, columns: Columns) -> tuple[Array, Errors | None]:
        """See `solve`: by the tridiagonal form."""
        (C, along), Q, known, whole = self._turned, self._tridiagonal[2], self._known, self._small
        pivots, below, _ = self._factored(alpha)

        def solve(right: Array) -> Array:
            return np.asarray(linalg.lapack.dpttrs(pivots, below, right)[0]) if below.size else right / pivots

        x = solve(C[:, columns])
        w = Q @ x
        if known is None:
            return w, None
        fit = float((x * self._times(x)).sum())
        # q − 2⟨x, C⟩ + ⟨x, Tx⟩ with Tx = C − αx
        squares = np.maximum(whole.q[columns] - (x * (C[:, columns] + alpha * x)).sum(axis=0), 0)
        if known.blocks is not None:
            along = np.hstack([along, Q.T @ (whole.n * known.blocks[:, None] * w)])
        moves = solve(along)
        images = self._times(moves)
        # as of a factor: by column, where rounding has made G negative its size
        bent = np.abs((moves * images).sum(axis=0))
        count = len(known.changes) * VECTORS
        rows, of_changes = 0.0, [float(one.sum()) for one in np.split(bent[:count], len(known.changes))]
        if known.blocks is not None:
            rows = float((images[:, count : count + VECTORS] ** 2).sum())
            of_changes.append(float(bent[count + VECTORS :].sum()))
        moved = Moved(fit, float(squares.sum()), 0.0, rows, *of_changes)
        return w, told_errors(known, whole.n, w, moved)
