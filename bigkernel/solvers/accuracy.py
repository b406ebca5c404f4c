"""How far predictions are from least squares in float64, told from what a witness saw.

In whitened coordinates φ = Tᵀb a fit is w = H⁻¹C with H = G + αI. Sums G + E in the place of G move it by −H⁻¹Ew.
`statistics.witness` has Ez for k random vectors z, of which entry i tells the size of row i of E,
    a_i = mean over z of (Ez)_i²,   Var E_ij ≈ a_i a_j / Σa,   hence Var (Ew)_i ≈ a_i Σ_j a_j w_j² / Σa.
Blocks b + δ in the place of b, Var (Tᵀδ)_i = d_i, move it by H⁻¹(Σ Tᵀδ (y − f) − Σ φ δᵀTw − Σ TᵀδδᵀTw), hence
    Cov ≈ diag(d) SSE + G Σ_j d_j w_j²,   the last term being n d_i w_i in the mean,
and predictions are made with such blocks too, which adds n Σ_j d_j w_j². A change x of H w moves predictions by H⁻¹x,
whose square on the rows of the fit is xᵀH⁻¹GH⁻¹x; for x of independent entries of variance v_i it is the mean of
(H⁻¹V^½ξ)ᵀG(H⁻¹V^½ξ) over vectors ξ of ±1, and for Σ φ ε of independent ε that of ‖GH⁻¹ξ‖²: O(r²) work beside the
factor. All is told relative to wᵀGw.

Measured on generated and public tables, cores of condition 1 to 1e10, float32 and float64: told and true error differ
by less than a factor of four, from 1e-14 to 1. Beyond 1e12 it errs to the side of a warning, up to a thousandfold.

Shapes: n rows, p columns of the map, r whitened coordinates, c targets, k vectors of the witness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.residuals import probes
from bigkernel.solvers.whitening import Reduced, Whitening
from bigkernel.statistics.moments import Moments

Array = NDArray[Any]
PROMISE = 1e-3  # predictions are this near those of exact sums, relative to their norm, or there is a warning
ENOUGH = PROMISE / 3  # errors are told to about a factor of three
_CLEAR = 10.0  # times its rounding, that an eigenvalue must be to be known
VECTORS = 8  # of the witness


def directions(rank: int) -> Array:
    """The vectors z of a witness, (r, k): fixed signs."""
    return probes(rank, VECTORS)


def scaled(total: Mapping[str, Array]) -> Array:
    """Ev (p, k) of all rows from what was seen of some: rounding grows as the root of their number."""
    seen, rows = float(total["seen"].sum()), float(total["rows"].sum())
    return np.asarray(total["E"].sum(axis=0) * np.sqrt(max(rows / seen, 1.0)))


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of the errors behind the moments of a fit, in the columns of the map."""

    z: Array  # (r, k) the vectors of the witness in whitened coordinates; it carried v = Tz
    rounding: Array  # Ev, (p, k)
    # δ of some rows, (rows, p): what their blocks differ by from those in float64; None where they are float64
    noise: Array | None = None
    widest: bool = False  # the blocks are float64, as `Errors` has it


@dataclass(frozen=True)
class Errors:
    """Of predictions on the rows of the fit, relative to their norm: from each cause, and of all together.

    `advice` says what makes them large and what to do; `widest`: the blocks are float64, and no dtype is finer.
    `doubt`: what directions that count as null may hold, where a QR factorisation can tell; none is warned of.
    """

    sums: float
    solve: float
    blocks: float
    advice: str = (
        "landmarks this alike and a penalty this small; take a larger alpha, a narrower kernel or fewer landmarks"
    )
    widest: bool = False
    doubt: float = 0.0

    def figures(self) -> dict[str, float]:
        """As figures of a fit report."""
        return {
            "prediction_error": self.total,
            "error_of_sums": self.sums,
            "error_of_solve": self.solve,
            "error_of_blocks": self.blocks,
        }

    @property
    def total(self) -> float:
        """The root of the sum of squares; infinite where G is all rounding."""
        return float(np.sqrt(self.sums**2 + self.solve**2 + self.blocks**2))

    @property
    def note(self) -> str:
        """What is to be warned of, if anything is."""
        if self.total <= ENOUGH:
            return ""
        causes = {"the moments": self.sums, "the solve": self.solve, "kernel values": self.blocks}
        worst = max(causes, key=lambda name: causes[name])
        far = f"about {self.total:.1g} of their norm" if self.total < 1 else "all of their norm"
        return (
            f"predictions may differ from least squares in float64 by {far}, and {PROMISE:g} is promised: the rounding "
            f"of {worst} is too large for {self.advice}"
            + (
                ""
                if worst != "kernel values"
                else ", or values nearer to zero"
                if self.widest
                else ", or dtype='float64'"
            )
        )


@dataclass(frozen=True, eq=False)
class Variances:
    """Of the errors behind moments, in whitened coordinates.

    Attributes
    ----------
    sums, solve : (r,) the a_i of the sums, and of TᵀGT, whose rounding T makes large as it does that of G, or of the
        factor of G + αK where moments are not rotated
    """

    sums: Array
    solve: Array
    blocks: Array | None  # (r,) the d_i, or None where the blocks are as good as their rows
    rows: float  # behind the moments
    widest: bool = False  # see `Errors`

    @cached_property
    def changes(self) -> Array:
        """Changes of Hw of the variances `sums`, `solve` and, where there are, `blocks`, and signs, side by side."""
        signs = probes(len(self.sums), VECTORS)
        given = [self.sums, self.solve] if self.blocks is None else [self.sums, self.solve, self.blocks]
        changes = [np.sqrt(one)[:, None] * signs for one in given]
        return np.hstack(changes if self.blocks is None else [*changes, signs])


def variances(evidence: Evidence, raw: Moments, rotated: Moments, whitening: Whitening) -> Variances:
    """What evidence says in whitened coordinates; `raw`: of the columns of the map, `rotated`: TᵀGT of the same."""
    return variances_of(evidence, rounding_of_rotation(evidence.z, raw, rotated, whitening), whitening, raw.rows)


def rounding_of_rotation(z: Array, raw: Moments, rotated: Moments, whitening: Whitening) -> Array:
    """What rounding does to TᵀGT, seen by the vectors z (r, k) of a witness: (r, k)."""
    reduce = whitening.reduce
    seen: Array = rotated.G @ z - reduce(raw.G @ whitening.expand(z))
    if raw.shift is not None:
        a, s = reduce(raw.shift), reduce(raw.s)
        seen -= np.outer(s, a @ z) + np.outer(a, s @ z + raw.n * (a @ z))
    return seen


def variances_of(evidence: Evidence | None, of_solve: Array, whitening: Whitening, rows: float) -> Variances:
    """The same from what was seen of the rounding of the solve, (r, k); without evidence of that alone."""
    solve = (of_solve**2).mean(axis=1)
    if evidence is None:
        return Variances(np.zeros(len(solve)), solve, None, float(rows))
    blocks = None if evidence.noise is None else (whitening.reduce(evidence.noise.T) ** 2).mean(axis=1)
    of_sums = (whitening.reduce(evidence.rounding) ** 2).mean(axis=1)
    return Variances(of_sums, solve, blocks, float(rows), evidence.widest)


class Solver(Protocol):
    """H⁻¹ in the coordinates of a factorization; see `solvers.ridge.Factorization`."""

    hidden: int
    dropped: Array | None
    basis: Array | None

    def quadratic(self, G: Any, C: Array) -> Array:
        """xᵀGx of every column x of H⁻¹C, (c,)."""

    def image(self, G: Any, C: Array) -> Array:
        """GH⁻¹C, (r, c)."""


def prediction_errors(
    known: Variances, small: Reduced, fit: tuple[Array, Array, Array], solver: Solver, changes: Array
) -> Errors:
    """The errors of predictions of a fit; see the module.

    Parameters
    ----------
    small : moments centred as for the fit, G in the coordinates of the solver; of it products are asked alone
    fit : w (r, c), the squared errors of training (c,), and wᵀGw (c,)
    changes : those of `known`, in the coordinates of the solver
    """
    w, squares, predicted, n, d = fit[0], float(fit[1].sum()), float(fit[2].sum()), small.n, known.blocks
    if not w.any() or predicted == 0:
        # columns that do not vary although they are rounded may hide all that there is to fit
        hidden = d is not None and bool(d.any()) and squares > 0
        return Errors(0.0, 0.0, np.inf if hidden else 0.0, widest=known.widest)
    if not predicted > 0:  # G is all rounding
        return Errors(np.inf, np.inf, 0.0 if d is None else np.inf)
    # all at once: a solve and a product with G are dear
    moved, signs = changes[:, : 2 * VECTORS], changes[:, :0]
    if d is not None:
        own = n * d[:, None] * w
        own = own if solver.basis is None else solver.basis.T @ own
        moved, signs = np.hstack([changes[:, : 3 * VECTORS], own]), changes[:, 3 * VECTORS :]
    # ‖predictions‖² of the changes H⁻¹x; where rounding has made G negative, its size
    power = np.abs(solver.quadratic(small.G, moved))
    of_sums, of_solve, of_values = (float(power[i : i + VECTORS].sum()) for i in (0, VECTORS, 2 * VECTORS))

    def of_matrix(a: Array, changed: float) -> float:
        total = float(a.sum())
        # a may be near the end of the range
        return changed / VECTORS * (float((a @ w**2).sum()) / total) if total else 0.0

    blocks = 0.0
    if d is not None:
        seen, of_rows = float((d @ w**2).sum()), float((solver.image(small.G, signs) ** 2).sum())
        blocks = (of_values * squares + seen * of_rows) / VECTORS + float(power[3 * VECTORS :].sum()) + n * seen
    # in directions that are hidden, least squares would fit as much of the residual as chance would
    lost = solver.hidden * squares / max(known.rows, 1.0) + _dropped(known, small, solver.dropped)
    parts = of_matrix(known.sums, of_sums), of_matrix(known.solve, of_solve) + lost, blocks
    sums, solve, of_blocks = (float(np.sqrt(part / predicted)) for part in parts)
    return Errors(sums, solve, of_blocks, widest=known.widest)


def _dropped(known: Variances, small: Reduced, V: Array | None) -> float:
    """‖predictions‖² that least squares would have along directions V which were dropped although sums resolve them."""
    if V is None or not V.size:
        return 0.0
    values = (V * (small.G @ V)).sum(axis=0)
    blur = np.sqrt((V**2 * (known.sums + known.solve)[:, None]).sum(axis=0))
    clear = values > _CLEAR * blur
    return float(((V[:, clear].T @ small.C) ** 2 / values[clear, None]).sum())
