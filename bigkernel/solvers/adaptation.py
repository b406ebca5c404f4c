"""Domain adaptation from moments: components or a classifier for which source and target rows are similar.

With the features whitened, S = Σ (φ − φ̄)(φ − φ̄)ᵀ over the n rows of both sides, e_0 the difference of the sides' means
and e_c that of the means of class c (the target's by pseudo-labels), the components are the leading solutions of
    S w = γ [n Σ_j e_j e_jᵀ + μI] w.
Without classes these are transfer components (Pan, Tsang, Kwok & Yang, IEEE TNN 2011); with them, joint distribution
adaptation (Long, Wang, Ding, Sun & Yu, ICCV 2013).

Adaptation regularization (Long, Wang, Ding, Pan & Yu, IEEE TKDE 2014) is ridge on the labelled source, with the moments
G_s and C (by class), and the Laplacian L of the anchor graph,
    W = (G_s + λ(n/2)M + γL + σI)⁻¹ C,   M = (1 − μ)e_0e_0ᵀ + μ Σ_c e_c e_cᵀ.
Shapes: p columns of the map, r of it whitened, s components, c classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array
from bigkernel.solvers.eigenfunctions import leading
from bigkernel.solvers.pseudo_labels import Decision, PseudoLabels
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import ridge
from bigkernel.solvers.whitening import Whitening, centre, reduce_moments, signs
from bigkernel.statistics.moments import Moments

LEAST_EXPLAINED = 0.05  # share of the variance of rows that class means explain, below which they are not compared


@dataclass(frozen=True, eq=False)
class Aligned:
    """Moments of both domains in whitened coordinates: `target`, and `source` with C (r, c) and t (c,) by class."""

    target: Moments
    source: Moments

    @classmethod
    def of(cls, total: Mapping[str, Array], whitening: Whitening, *, shift: Array | None = None) -> Aligned:
        """Whiten the moments of a `SourceTargetStatistic` about `shift` (p,); None: 0."""
        target, source = (reduce_moments(Moments.of(dict(total), group, shift=shift), whitening) for group in (0, 1))
        return cls(target, source)

    @property
    def n(self) -> float:
        """The weight of all rows."""
        return float(self.target.n + self.source.n)

    @property
    def mean(self) -> Array:
        """φ̄ (r,)."""
        return np.asarray((self.target.s + self.source.s) / self.n)

    @property
    def scatter(self) -> Array:
        """S (r, r)."""
        G, mean = self.target.G + self.source.G, self.mean
        return np.asarray(G - self.n * np.outer(mean, mean))

    @property
    def spread(self) -> Array:
        """S_t (r, r), the scatter of the target about its own mean."""
        return np.asarray(self.target.G - np.outer(self.target.s, self.target.s) / self.target.n)

    @property
    def apart(self) -> Array:
        """e_0 (r,), the mean of the source less that of the target."""
        return np.asarray(self.source.s / self.source.n - self.target.s / self.target.n)

    def classes_apart(self, labels: PseudoLabels) -> Array:
        """Compute e_c (r, ≤ c) of the classes that occur in both domains; `labels` in whitened coordinates."""
        both = (self.source.t > 0) & (labels.counts > 0)
        return np.asarray(self.source.C[:, both] / self.source.t[both] - labels.sums[:, both] / labels.counts[both])


def components(
    aligned: Aligned,
    labels: PseudoLabels | None,
    n_components: int,
    alpha: float,
    *,
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Array, Array]:
    """Compute eigenvalues γ (s,), descending, and components W (r, s) with wᵀ[n Σ e eᵀ + μI]w = 1; alpha is μ > 0.

    This scale weights a component by its variance relative to the distance of the domains. (With unit variance instead,
    nearest neighbours in 100 components fall from 59 and 71 % to 30 and 44 % on the digit pair.)
    """
    # n Σ_j e_j e_jᵀ + μI over e_0 and, with pseudo-labels, all e_c
    E = aligned.apart[:, None]
    E = E if labels is None else np.hstack([E, aligned.classes_apart(labels)])
    penalty = aligned.n * (E @ E.T)
    penalty[np.diag_indices(len(penalty))] += alpha
    values, W = leading(aligned.scatter, n_components, diagnostics, penalty=penalty)
    return values, W * signs(W)


def fit_labeller(aligned: Aligned, W: Array, alpha: float, whitening: Whitening) -> Decision:
    """Fit ridge with an intercept on the components W (r, s) of labelled source rows; f is over columns of the map."""
    moments = aligned.source
    small = centre(
        Moments(moments.rows, moments.n, W.T @ moments.G @ W, W.T @ moments.C, W.T @ moments.s, moments.t, moments.q),
        fit_intercept=True,
    )
    beta = ridge(small.G, small.C, alpha, n_rows=moments.rows)
    return Decision(whitening.expand(W @ beta), small.target_mean - small.mean @ beta)


@dataclass(frozen=True)
class Strengths:
    """λ (`mmd`), γ (`manifold`), σ (`alpha`) and μ (`balance`, from 0: domains only, to 1: classes only)."""

    mmd: float
    manifold: float
    alpha: float
    balance: float


def discrepancy(aligned: Aligned, labels: PseudoLabels | None, balance: float) -> Array:
    """Compute M (r, r), with the pseudo-labels of a round after the first."""
    M: Array = (1 - balance) * np.outer(aligned.apart, aligned.apart)
    if labels is not None:
        e = aligned.classes_apart(labels)
        M += balance * (e @ e.T)
    return M


def adaptation_ridge(
    aligned: Aligned,
    laplacian: Array | None,
    labels: PseudoLabels | None,
    strengths: Strengths,
    *,
    diagnostics: SolveDiagnostics | None = None,
) -> Array:
    """Solve for W (r, c) over the whitened columns; `labels` in whitened coordinates, None in the first round."""
    M = discrepancy(aligned, labels, strengths.balance)
    H = aligned.source.G + strengths.mmd * aligned.n / 2 * M
    if laplacian is not None:
        H = H + strengths.manifold * laplacian
    rows = float(aligned.source.rows + aligned.target.rows)
    return ridge(H, aligned.source.C, strengths.alpha, n_rows=rows, diagnostics=diagnostics)


def slope(aligned: Aligned, W: Array, sharpness: float) -> float:
    """Return the factor β/τ of f in the softmax, τ² = tr(WᵀS_tW)/n_t its variance on the target; 0 without variance."""
    variance = float(np.einsum("rc,rc->", W, aligned.spread @ W)) / float(aligned.target.n)
    scale = float(np.abs(W).max(initial=0.0)) ** 2 * float(np.trace(aligned.target.G)) / float(aligned.target.n)
    return sharpness / variance**0.5 if variance > 1e-14 * scale else 0.0


def preimage(aligned: Aligned, whitening: Whitening, landmarks: Array) -> Array:
    """Return B (r, d) with x ≈ Bᵀφ(x) + constant, in units in which the rows of the source have the variance 1.

    This is kernel interpolation of the landmarks (m, d): f(z) = z at each of them.
    """
    Z, source = landmarks - landmarks.mean(axis=0), aligned.source
    B = whitening.reduce(Z / max(float(np.abs(Z).max(initial=0.0)), 1e-300))
    # Σ_j B_jᵀ S B_j / n, S the scatter of the source
    variance = (np.vdot(B, source.G @ B) - np.sum((source.s @ B) ** 2) / source.n) / source.n
    return np.asarray(B / max(float(variance), 1e-300) ** 0.5)


def congruence(aligned: Aligned, labels: PseudoLabels, B: Array) -> float | None:
    """Compute Tucker's congruence of class means of source and target rows, from -1 to 1, unchanged by a shift.

    With a_c and b_c (d,) the mean of a class less the mean of its side, and p_c the share of the class in the source,
        Σ p_c⟨a_c, b_c⟩ / (Σ p_c‖a_c‖² Σ p_c‖b_c‖²)^½   (Tucker 1951),
    where the means of rows are Bᵀφ̄ (`preimage`), and `labels` are in whitened coordinates. None for fewer than two
    classes in both, and where class means explain so little of the variance of the source that they do not tell classes
    apart.
    """
    source, target = aligned.source, aligned.target
    both = (source.t > 0) & (labels.counts > 0)
    root = (source.t[both] / source.n) ** 0.5
    a = B.T @ (source.C[:, both] / source.t[both] - source.s[:, None] / source.n) * root
    b = B.T @ (labels.sums[:, both] / labels.counts[both] - target.s[:, None] / target.n) * root
    explained, norms = float(np.vdot(a, a)), float(np.linalg.norm(a) * np.linalg.norm(b))
    if explained < LEAST_EXPLAINED or np.count_nonzero(both) < 2:
        return None
    return float(np.vdot(a, b)) / norms if norms > 0 else 0.0
