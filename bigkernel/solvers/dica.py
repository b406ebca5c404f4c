"""Domain-invariant components from moments and from kernel matrices: UDICA and DICA in m×m and in exact form.

Muandet, Balduzzi & Schölkopf, "Domain generalization via invariant feature representation" (ICML 2013). Components are
directions along which the means of the domains differ little while the rows (UDICA), or the means of the classes
(DICA), differ much. With centred features Φ (n×p), S = ΦᵀΦ, domain means μ_g, their mean μ̄,
    R = (1/G) Σ_g (μ_g − μ̄)(μ_g − μ̄)ᵀ,                     the distributional variance is tr R,
    UDICA   (1/n) S² w        = γ [S(R + I) + λI] w,
    DICA    (1/n_l) M S w     = γ [S(R + I) + λI] w,    M = (ΦᵀY)(YᵀY + n_l εI)⁻¹(YᵀΦ),
which are the paper's (1/n) K² B = (KQK + K + λI) B Γ and (1/n) L(L + nεI)⁻¹K² B = (KQK + K + λI) B Γ for w = ΦᵀB.
In M, rows and one-hot labels are centred over the n_l labelled rows only, so that unlabelled rows contribute to S and R
but not to M. DICA's operator is a product of three positive ones and may have complex eigenvalues: a conjugate pair
gives the plane of its real and imaginary parts. R is small against I where kernel values are at most 1; δR instead, δ
the `invariance`, brings domains closer.
Shapes: p columns of Φ, G domains, k classes, c components.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.solvers.whitening import Whitening, reduce_moments, signs
from bigkernel.statistics.domain_cells import Cells, CellSums, means
from bigkernel.statistics.moments import Moments

_NULL = 1e-9  # eigenvalues below this share of the largest are rounding


@dataclass(frozen=True)
class Components:
    """Components z(x) = φ(x)ᵀW + b, centred by the mean of the training rows."""

    coef: Array  # W (p, c), over the columns of the map (over the rows, where exact)
    intercept: Array  # b (c,)
    eigenvalues: Array  # γ (c,), falling; the variance of each component over the training rows
    # distributional variance tr R of the features and of the components, and its share of the total variance
    variance: dict[str, float]
    rounding: float = 0.0  # of the moments; see `principal_scatter`


@dataclass(frozen=True)
class PrincipalScatter:
    """All rows in the centred coordinates of their principal axes: n = Σ w and S = Σ w φφᵀ = diag(values)."""

    n: float  # Σ w
    values: Array  # (p,) at least 0
    between: Array  # (p, G) with R = between·betweenᵀ
    rounding: float = 0.0  # size of the most negative eigenvalue of S


@dataclass(frozen=True)
class ClassSums:
    """C = ΦᵀY (p, k) and YᵀY (k, k), centred over the labelled rows, whose Σ w is n."""

    n: float
    C: Array
    YY: Array

    def root(self, epsilon: float) -> Array:
        """Compute E = C A^{1/2} with A = (YᵀY + n_l εI)⁻¹ on its range, so that M = EEᵀ."""
        values, vectors = linalg.eigh(self.YY)
        total = values + self.n * epsilon
        kept = total > _NULL * max(float(total[-1]), 1e-300)
        return np.asarray(self.C @ (vectors[:, kept] / np.sqrt(total[kept])))


def one_hot_labels(sums: Array, weights: Array) -> ClassSums:
    """Centre the sums Σ w φ (p, k) and Σ w (k,) of the labelled rows of each class."""
    n = float(weights.sum())
    if not n > 0:
        raise DataError("y: expected a labelled row with a positive weight, found none")
    C = sums - np.outer(sums.sum(axis=1) / n, weights)
    return ClassSums(n, C, np.diag(weights) - np.outer(weights, weights) / n)


def between_domains(sums: Array, weights: Array) -> Array:
    """Compute (μ_g − μ̄)/√G (p, G) from Σ w φ (p, G) and Σ w (G,); domains without weight are left out."""
    present = weights > 0
    centres = means(sums[:, present], weights[present])
    return np.asarray((centres - centres.mean(axis=1, keepdims=True)) / np.sqrt(present.sum()))


def principal_scatter(n: float, S: Array, between: Array) -> tuple[PrincipalScatter, Array]:
    """Compute the principal axes (p, p) of centred rows, and the scatter of the rows in their coordinates.

    The rounding ν of the moments is estimated by negative eigenvalues of S; eigenvalues count as at least ν/4, as in
    `ridge.factorize`.
    """
    values, V = linalg.eigh(S, driver="evd")
    rounding = max(-float(values.min(initial=0.0)), 0.0)
    return PrincipalScatter(n, np.maximum(values, rounding / 4), V.T @ between, rounding), V


def solve_udica(scatter: PrincipalScatter, alpha: float, count: int) -> tuple[Array, Array]:
    """Solve UDICA for directions w (p, c) and eigenvalues (c,)."""
    # w = Λ^{1/2}u: (1/n) Λ²u = γ (Λ^{1/2}RΛ^{1/2} + Λ + λI) u
    half = np.sqrt(scatter.values)
    right = _penalty_matrix(np.diag(scatter.values), half[:, None] * scatter.between, alpha)
    eigenvalues, u = _largest(np.diag(scatter.values**2 / scatter.n), right, count)
    return half[:, None] * u, eigenvalues


def solve_dica(
    scatter: PrincipalScatter, labels: ClassSums, alpha: float, epsilon: float, count: int
) -> tuple[Array, Array]:
    """Solve DICA for directions w (p, c) and eigenvalues (c,), at most one less than there are classes."""
    # w = D⁻¹E h with M = EEᵀ, D = Λ(R + I) + λI: (1/n_l) EᵀΛD⁻¹E h = γ h
    E, S = labels.root(epsilon), scatter.values[:, None]
    solved = linalg.solve((S * scatter.between) @ scatter.between.T + np.diag(scatter.values + alpha), E)
    eigenvalues, H = linalg.eig(E.T @ (S * solved) / labels.n)
    w = solved @ H
    return _real(eigenvalues, w, np.einsum("ij,ij->j", w, S * w), count)


def landmark_components(
    total: Mapping[str, Array],
    cells: Cells,
    whitening: Whitening,
    core: Array,
    *,
    alpha: float,
    epsilon: float | None,
    count: int,
    invariance: float = 1.0,
    shift: Array | None = None,
) -> Components:
    """Compute at most `count` components from the moments of a `CellMomentStatistic`, about `shift` (p,) or 0.

    `alpha` is λ > 0, `epsilon` ε ≥ 0 of DICA, or None: UDICA, and `invariance` δ ≥ 0. Signs are such that a component
    is positive at the landmark where its magnitude is largest, by the core (m, m).
    """
    # differences of means do not depend on the shift
    everything = reduce_moments(Moments.of(dict(total), shift=shift), whitening)
    sums, n = CellSums.of(total, cells), float(everything.n)
    mean, (by_domain, weights) = everything.s / n, sums.by_domain()
    # R = between·betweenᵀ of the domain means, and then all in the principal axes of the rows
    between = between_domains(whitening.reduce(by_domain), weights)
    scatter, V = principal_scatter(n, everything.G - n * np.outer(mean, mean), np.sqrt(invariance) * between)
    if epsilon is not None:
        of_class, class_weights = sums.by_class()
        labels = one_hot_labels(V.T @ whitening.reduce(of_class), class_weights)
        w, eigenvalues = solve_dica(scatter, labels, alpha, epsilon, count)
    else:
        w, eigenvalues = solve_udica(scatter, alpha, count)
    # the variance of a component is its eigenvalue
    w = w * np.sqrt(eigenvalues * n / (scatter.values @ w**2))
    w = V @ w
    report = _variance(between, float(scatter.values.sum()) / n, w.T @ between, eigenvalues)
    coef = whitening.expand(w)
    sign = signs(core @ coef)
    return Components(coef * sign, -(mean @ w) * sign, eigenvalues, report, scatter.rounding)


def exact_components(
    K: Array,
    cell: Array,
    cells: Cells,
    *,
    alpha: float,
    epsilon: float | None,
    count: int,
    invariance: float = 1.0,
    weight: Array | None = None,
) -> Components:
    """Compute components from the n×n kernel matrix of all rows, as in the paper (Algorithm 1).

    `cell` (n,) is the cell of each row; with weights (n,) the rows of Φ are those of the centred features times √w.
    """
    w = np.ones(len(K)) if weight is None else np.asarray(weight, np.float64)
    n, root, of_mean = float(w.sum()), np.sqrt(w), K @ w / float(w.sum())
    # √W H K Hᵀ √W, H the subtraction of the weighted mean
    centred = (K - of_mean[:, None] - of_mean + w @ of_mean / n) * np.outer(root, root)
    domain, label = np.divmod(cell, cells.n_classes + 1)
    # over the rows: Φᵀ·between are the domain means less their mean, and Q = between·betweenᵀ
    member = root[:, None] * (domain[:, None] == np.arange(cells.n_domains))
    between = between_domains(member, root @ member)
    right = _penalty_matrix(centred, np.sqrt(invariance) * (centred @ between), alpha)
    if epsilon is not None:
        hot = root[:, None] * (label[:, None] == np.arange(cells.n_classes))
        labels = one_hot_labels(hot, root @ hot)
        # L(L + n_l εI)⁻¹ = EEᵀ and B = D⁻¹E h with D = KQK + K + λI: (1/n_l) EᵀK²D⁻¹E h = γ h
        E = labels.root(epsilon)
        solved = linalg.solve(right, E, assume_a="pos")
        values, H = linalg.eig(E.T @ (centred @ (centred @ solved)) / labels.n)
        B = solved @ H
        B, eigenvalues = _real(values, B, ((centred @ B) ** 2).sum(axis=0), count)
    else:
        # (1/n) K²B = (KQK + K + λI) B Γ
        eigenvalues, B = _largest(centred @ centred / n, right, count)
    # the variance of a component is its eigenvalue, and its mean 0
    z = centred @ B
    scale = np.sqrt(eigenvalues * n / np.einsum("ij,ij->j", z, z))
    dual = root[:, None] * (B * scale)
    dual -= np.outer(w, dual.sum(axis=0) / n)
    sign = signs(K @ dual)
    scatter = (centred @ between * between).sum()
    report = _variance(np.sqrt(max(scatter, 0.0)), float(np.trace(centred)) / n, (z * scale).T @ between, eigenvalues)
    return Components(dual * sign, -(of_mean @ dual) * sign, eigenvalues, report)


def _penalty_matrix(K: Array, half: Array, alpha: float) -> Array:
    """Compute half·halfᵀ + K + αI."""
    right: Array = half @ half.T + K
    right[np.diag_indices(len(K))] += alpha
    return right


def _largest(left: Array, right: Array, count: int) -> tuple[Array, Array]:
    """Compute the largest eigenvalues above rounding of left·u = γ right·u, descending, and their vectors."""
    size = len(left)
    if not size:
        return np.zeros(0), np.zeros((0, 0))
    values, vectors = linalg.eigh(left, right, subset_by_index=(max(0, size - count), size - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > _NULL * max(float(values[0]), 1e-300)
    return values[kept], vectors[:, kept]


def _real(values: Array, vectors: Array, squares: Array, count: int) -> tuple[Array, Array]:
    """Return real vectors of the leading eigenvalues with positive real parts, and those parts, descending.

    A conjugate pair gives the real and imaginary parts of its vector w, rotated to be uncorrelated; `squares` is wᵀSw.
    """
    order = np.lexsort((-values.imag, -values.real))
    order = order[values[order].real > _NULL * max(float(np.abs(values).max(initial=0.0)), 1e-300)][:count]
    values, rotated = values[order], (vectors * np.exp(-0.5j * np.angle(squares)))[:, order]
    return np.where(values.imag < 0, rotated.imag, rotated.real), values.real


def _variance(features: float | Array, whole: float, components: Array, eigenvalues: Array) -> dict[str, float]:
    """Build `Components.variance` from square roots of the variances between domains."""
    report = {"features": float(np.sum(np.square(features))), "components": float(np.sum(np.square(components)))}
    wholes = {"features": whole, "components": float(eigenvalues.sum())}
    shares = {f"{name}_share": report[name] / max(wholes[name], 1e-300) for name in wholes}
    return {**report, **shares}
