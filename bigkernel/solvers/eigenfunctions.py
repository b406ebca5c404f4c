"""Leading eigenvectors: semi-supervised ridge on the eigenfunctions of a kernel, and principal axes of rows.

Notation: m landmarks, p columns of the map, s components, c targets; all rows, labelled or not, shape the
eigenfunctions, the labelled ones (l) alone the weights β. See Ji, Yang, Lin, Jin & Han (ICML 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import ridge
from bigkernel.solvers.whitening import Whitening, positive_part, reduced, signs, top_eigen
from bigkernel.statistics.moments import Moments

# a number, or a function that chooses it for ridge with moments G (s, s) and C (s, c)
Alpha: TypeAlias = float | Callable[[Array, Array], float]


def sssl_all(
    everything: Moments,
    labelled: Moments,
    whitening: Whitening,
    n_components: int,
    alpha: Alpha,
    *,
    penalty: Array | None = None,
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Array, Array]:
    """SSSL_m with eigenfunctions of all rows: coefficients over the landmarks (p, c), and the s eigenvalues.

    ΦᵀΦ = WΛWᵀ over all N rows; the features √λ_j φ(x)ᵀW_j are what VᵀK gives in the exact form, so that λ means the
    same in all three. With a `penalty` P (r, r) in whitened coordinates they are those of ΦᵀΦ w = λ P w.
    """
    values, W = leading(reduced(everything, whitening).G, n_components, diagnostics, penalty=penalty)
    basis, of_labelled = W * np.sqrt(values), reduced(labelled, whitening)
    # β = (PPᵀ + λI)⁻¹ P y with P = Λ^{1/2}WᵀΦ_lᵀ
    G, C = basis.T @ of_labelled.G @ basis, basis.T @ of_labelled.C
    chosen = alpha(G, C) if callable(alpha) else alpha
    beta = ridge(G, C, chosen, n_rows=labelled.rows, diagnostics=diagnostics)
    return whitening.expand(basis @ beta), values


def sssl_core(
    core: Array,
    labelled_G: Array,
    labelled_C: Array,
    n_components: int,
    alpha: Alpha,
    *,
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Array, Array]:
    """SSSL with eigenfunctions of the core: coefficients over its points (p, c), and the s eigenvalues.

    Core of m landmarks: SSSL_m; core of all N rows: SSSL_N. With K = VΛVᵀ and P = VᵀK_{:,l}: β = (PPᵀ + λI)⁻¹Py,
    f(x) = k(x, ·)Vβ.
    """
    values, V = leading(core, n_components, diagnostics)
    G, C = V.T @ labelled_G @ V, V.T @ labelled_C
    beta = ridge(G, C, alpha(G, C) if callable(alpha) else alpha, diagnostics=diagnostics)
    return V @ beta, values


def rough(graph: Array, weight: float) -> Array:
    """I + weight·ΦᵀLΦ (r, r) of a Laplacian in whitened coordinates; positive definite.

    What rounding has made negative in ΦᵀLΦ is left out, where it would matter.
    """
    base = np.eye(len(graph))
    P: Array = base + weight * graph
    if linalg.lapack.dpotrf(P, lower=1)[1]:
        values, vectors = linalg.eigh(graph)
        P = base + weight * (vectors * np.maximum(values, 0)) @ vectors.T
    return P


def leading(
    S: Array, count: int, diagnostics: SolveDiagnostics | None = None, *, penalty: Array | None = None
) -> tuple[Array, Array]:
    """The largest eigenvalues γ (s,) of S w = γ P w, descending, and their w as columns (r, s), with wᵀPw = 1.

    Those that are rounding are left out, so that s may be less than `count`. `penalty` is P (r, r), positive definite;
    None: I.
    """
    if penalty is not None:
        # P = LLᵀ: L⁻¹SL⁻ᵀ (Lᵀw) = γ (Lᵀw)
        L = linalg.cholesky(penalty, lower=True, check_finite=False)
        half = linalg.solve_triangular(L, S, lower=True, check_finite=False)
        S = linalg.solve_triangular(L, half.T, lower=True, check_finite=False)
        S = (S + S.T) / 2
    values, vectors = positive_part(*top_eigen(S, count))
    if diagnostics is not None and len(values):
        ratios = diagnostics.ratios
        ratios["eigenfunctions"], ratios["eigenfunctions_orthogonality"] = residuals.eigen(S, values, vectors)
    if penalty is not None:
        vectors = linalg.solve_triangular(L, vectors, lower=True, trans="T", check_finite=False)
    return values, vectors


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Axes of rows about their mean."""

    mean: Array  # (d,)
    axes: Array  # (r, d), of unit length, at right angles
    variances: Array  # (r,), falling, above rounding
    total: float  # the variances of all directions together


def principal_axes(moments: Moments, count: float | None) -> PrincipalAxes:
    """The leading axes of rows, from their moments about a point near their mean; their largest coordinate is positive.

    `count` is a whole number of axes, or a share below 1 of the variance that they hold together at least; None: all
    that have a variance above rounding.
    """
    mean = moments.s / moments.n
    S = moments.G / moments.n - np.outer(mean, mean)
    total = float(np.trace(S))
    wanted = len(S) if count is None or count < 1 else int(count)
    values, vectors = positive_part(*top_eigen(S, wanted))
    if count is not None and count < 1:
        kept = int(np.searchsorted(np.cumsum(values), count * total)) + 1
        values, vectors = values[:kept], vectors[:, :kept]
    shift = 0.0 if moments.shift is None else moments.shift
    return PrincipalAxes(mean + shift, (vectors * signs(vectors)).T, values, total)
