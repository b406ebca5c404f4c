"""Adaptation regularization: ridge on a labelled source that holds on a target whose labels are unknown.

Long, Wang, Ding, Pan & Yu, "Adaptation regularization: a general framework for transfer learning" (IEEE TKDE 2014), in
landmark form: the features are the whitened Nyström map, the graph is that of anchors. In r dimensions, with the
moments G_s and C (by class) of the labelled source rows, those of the target and n rows in all,
    W = (G_s + λ(n/2)M + γL + σI)⁻¹ C,   M = (1 − μ)v₀v₀ᵀ + μ Σ_c v_c v_cᵀ,
v₀ and v_c the differences of the sides' means, of all rows and of class c by soft pseudo-labels Q = softmax(βf/τ), and
L the Laplacian of `anchors`. Shapes: r whitened columns, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.jda import Aligned
from bigkernel.solvers.pseudo_labels import PseudoLabels
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import ridge

Array = NDArray[Any]


@dataclass(frozen=True)
class Strengths:
    """λ (`mmd`), γ (`manifold`), σ (`alpha`) and μ (`balance`, from 0: domains alone, to 1: classes alone)."""

    mmd: float
    manifold: float
    alpha: float
    balance: float


def discrepancy(aligned: Aligned, labels: PseudoLabels | None, balance: float) -> Array:
    """M (r, r): (1 − μ)v₀v₀ᵀ, with pseudo-labels + μ Σ_c v_c v_cᵀ."""
    M: Array = (1 - balance) * np.outer(aligned.apart, aligned.apart)
    if labels is not None:
        v = aligned.classes_apart(labels)
        M += balance * (v @ v.T)
    return M


def adapted(
    aligned: Aligned,
    laplacian: Array | None,
    labels: PseudoLabels | None,
    strengths: Strengths,
    *,
    certificates: Certificates | None = None,
) -> Array:
    """W (r, c), over the whitened columns; `labels` in whitened coordinates, None: those of the first round."""
    M = discrepancy(aligned, labels, strengths.balance)
    H = aligned.source.G + strengths.mmd * aligned.n / 2 * M
    if laplacian is not None:
        H = H + strengths.manifold * laplacian
    rows = float(aligned.source.rows + aligned.target.rows)
    return ridge(H, aligned.source.C, strengths.alpha, n_rows=rows, certificates=certificates)


def slope(aligned: Aligned, W: Array, sharpness: float) -> float:
    """β/τ, by which f is multiplied before the softmax: τ² = tr(WᵀS_tW)/n_t, how far f spreads over the target.

    0 where f does not vary there: nothing is known of a class.
    """
    variance = float(np.einsum("rc,rc->", W, aligned.spread @ W)) / float(aligned.target.n)
    scale = float(np.abs(W).max(initial=0.0)) ** 2 * float(np.trace(aligned.target.G)) / float(aligned.target.n)
    return sharpness / variance**0.5 if variance > 1e-14 * scale else 0.0
