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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.residuals import probes
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
    """What is known of the errors behind the moments of a fit, in the columns of the map.

    Attributes
    ----------
    z : (r, k) the vectors of the witness in whitened coordinates; it carried v = Tz
    rounding : Ev, (p, k)
    noise : δ of some rows, (rows, p): what their blocks differ by from those in float64; None where they are float64
    widest : the blocks are float64, as `Errors` has it
    """

    z: Array
    rounding: Array
    noise: Array | None = None
    widest: bool = False


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
    blocks : (r,) the d_i, or None where the blocks are as good as their rows
    rows : behind the moments
    widest : see `Errors`
    """

    sums: Array
    solve: Array
    blocks: Array | None
    rows: float
    widest: bool = False

    @cached_property
    def changes(self) -> list[Array]:
        """Changes of Hw of the variances `sums`, `solve` and, where there are, `blocks`, (r, k) each."""
        given = [one for one in (self.sums, self.solve, self.blocks) if one is not None]
        return [np.sqrt(one)[:, None] * probes(len(one), VECTORS) for one in given]


def variances(evidence: Evidence, raw: Moments, rotated: Moments, whitening: Any) -> Variances:
    """What evidence says in whitened coordinates; `raw`: of the columns of the map, `rotated`: TᵀGT of the same."""
    return variances_of(evidence, rounding_of_rotation(evidence.z, raw, rotated, whitening), whitening, raw.rows)


def rounding_of_rotation(z: Array, raw: Moments, rotated: Moments, whitening: Any) -> Array:
    """What rounding does to TᵀGT, seen by the vectors z (r, k) of a witness: (r, k)."""
    reduce = whitening.reduce
    seen: Array = rotated.G @ z - reduce(raw.G @ whitening.expand(z))
    if raw.shift is not None:
        a, s = reduce(raw.shift), reduce(raw.s)
        seen -= np.outer(s, a @ z) + np.outer(a, s @ z + raw.n * (a @ z))
    return seen


def variances_of(evidence: Evidence | None, of_solve: Array, whitening: Any, rows: float) -> Variances:
    """The same from what was seen of the rounding of the solve, (r, k); without evidence of that alone."""
    solve = (of_solve**2).mean(axis=1)
    if evidence is None:
        return Variances(np.zeros(len(solve)), solve, None, float(rows))
    blocks = None if evidence.noise is None else (whitening.reduce(evidence.noise.T) ** 2).mean(axis=1)
    of_sums = (whitening.reduce(evidence.rounding) ** 2).mean(axis=1)
    return Variances(of_sums, solve, blocks, float(rows), evidence.widest)


@dataclass(frozen=True)
class Moved:
    """‖predictions‖² of a fit, and of what moves it: of the changes H⁻¹x that `Variances.changes` gives, together.

    Attributes
    ----------
    fit, squares : of the fit itself, wᵀGw, and its squared errors of training, over all targets
    lost : of directions that are hidden or dropped
    rows : ‖GH⁻¹ξ‖² of the vectors of signs ξ; 0 where there is no d_i
    sums, solve : of the changes that a_i of the sums, and of the solve, make
    values : of the changes that d_i makes, for squared errors of 1
    own : of n d_i w_i
    """

    fit: float
    squares: float
    lost: float
    rows: float
    sums: float
    solve: float
    values: float = 0.0
    own: float = 0.0


def prediction_errors(known: Variances, small: Any, fit: tuple[Array, Array, Array], solver: Any) -> Errors:
    """The errors of predictions of a fit.

    Parameters
    ----------
    small : `Reduced` moments in whitened coordinates, centred as for the fit; of G products are asked alone
    fit : w (r, c), the squared errors of training (c,), and wᵀGw (c,)
    solver : its `bent` gives what changes of Hw do to predictions, `image` is GH⁻¹, and `hidden` the number of
        directions that rounding hides
    """
    w, squares, predicted = fit[0], float(fit[1].sum()), float(fit[2].sum())
    G, d = small.G, known.blocks
    if not w.any() or not predicted > 0:
        return told_errors(known, small.n, w, Moved(predicted, squares, 0.0, 0.0, 0.0, 0.0))
    # all at once: a solve and a product with G are dear
    changes = known.changes if d is None else [*known.changes, small.n * d[:, None] * w]
    bent = np.split(np.abs(solver.bent(G, np.hstack(changes))), np.cumsum([one.shape[1] for one in changes])[:-1])
    # where rounding has made G negative, its size
    of_changes = [float(one.sum()) for one in bent]
    of_rows = 0.0 if d is None else float((solver.image(G, probes(len(w), VECTORS)) ** 2).sum())
    # in directions that are hidden, least squares would fit as much of the residual as chance would
    lost = solver.hidden * squares / max(known.rows, 1.0) + _dropped(known, small, solver)
    return told_errors(known, small.n, w, Moved(predicted, squares, lost, of_rows, *of_changes))


def told_errors(known: Variances, n: float, w: Array, moved: Moved) -> Errors:
    """The errors of predictions of w (r, c) on rows of the weight n, from what moves them; see the module."""
    d = known.blocks
    if not w.any() or moved.fit == 0:
        # columns that do not vary although they are rounded may hide all that there is to fit
        hidden = d is not None and bool(d.any()) and moved.squares > 0
        return Errors(0.0, 0.0, np.inf if hidden else 0.0, widest=known.widest)
    if not moved.fit > 0:  # G is all rounding
        return Errors(np.inf, np.inf, 0.0 if d is None else np.inf)

    def of_matrix(a: Array, changed: float) -> float:
        total = float(a.sum())
        # a may be near the end of the range
        return changed / VECTORS * (float((a @ w**2).sum()) / total) if total else 0.0

    blocks = 0.0
    if d is not None:
        seen = float((d @ w**2).sum())
        blocks = (moved.values * moved.squares + seen * moved.rows) / VECTORS + moved.own + n * seen
    parts = of_matrix(known.sums, moved.sums), of_matrix(known.solve, moved.solve) + moved.lost, blocks
    sums, solve, of_blocks = (float(np.sqrt(part / moved.fit)) for part in parts)
    return Errors(sums, solve, of_blocks, widest=known.widest)


def _dropped(known: Variances, small: Any, solver: Any) -> float:
    """‖predictions‖² that least squares would have along directions which were dropped although sums resolve them."""
    V = getattr(solver, "dropped", None)
    if V is None or not V.size:
        return 0.0
    values = (V * (small.G @ V)).sum(axis=0)
    blur = np.sqrt((V**2 * (known.sums + known.solve)[:, None]).sum(axis=0))
    clear = values > _CLEAR * blur
    return float(((V[:, clear].T @ small.C) ** 2 / values[clear, None]).sum())
