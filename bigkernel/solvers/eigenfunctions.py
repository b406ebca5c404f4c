"""Leading eigenvectors: semi-supervised ridge on the eigenfunctions of a kernel, and principal axes of rows.

Only moments and cores are read. Notation: m landmarks, p columns of the map, s components, c targets; all rows
determine the eigenfunctions, only the labelled ones (l) the weights β. See Ji, Yang, Lin, Jin & Han (ICML 2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.solvers import gcv, residuals
from bigkernel.solvers.penalty_grid import Coordinates
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import RidgeSystem, ridge
from bigkernel.solvers.whitening import Whitening, centre, positive_part, reduce_moments, signs, top_eigen
from bigkernel.statistics.moments import Moments


def eigenfunctions_of_rows(
    everything: Moments,
    whitening: Whitening,
    count: int,
    *,
    penalties: Sequence[Array | None] = (None,),
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Coordinates, Array]:
    """Return the leading eigenfunctions of all rows as coordinates, and their eigenvalues.

    ΦᵀΦ = WΛWᵀ over all N rows; the features √λ_j φ(x)ᵀW_j correspond to VᵀK of the exact form, so that α has the same
    meaning in all three. With a penalty P (r, r) in whitened coordinates they are those of ΦᵀΦ w = λ P w. The
    eigenfunctions of several penalties are blocks of the coordinates.
    """
    G = reduce_moments(everything, whitening).G
    pairs = [leading(G, count, diagnostics, penalty=P) for P in penalties]
    bases = [W * np.sqrt(values) for values, W in pairs]
    if len(pairs) == 1:
        return Coordinates(whitening, bases[0]), pairs[0][0]
    ends = np.cumsum([len(values) for values, _ in pairs]).tolist()
    blocks = tuple(zip([0, *ends[:-1]], ends, strict=True))
    return Coordinates(whitening, np.hstack(bases), blocks=blocks), np.concatenate([values for values, _ in pairs])


def eigenfunctions_of_core(
    core: Array, count: int, *, diagnostics: SolveDiagnostics | None = None
) -> tuple[Coordinates, Array]:
    """Return the leading eigenvectors of a core as coordinates of its columns k(·, z), and s eigenvalues.

    The core of m landmarks gives SSSL_m, the core of all N rows SSSL_N.
    """
    values, V = leading(core, count, diagnostics)
    return Coordinates(Whitening(len(core), len(core)), V), values  # which moves moments to 0


def solve_labelled(
    coordinates: Coordinates,
    labelled: Moments,
    alpha: float | str,
    *,
    fit_intercept: bool = False,
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Array, Array, float]:
    """Solve ridge on the labelled rows in some coordinates, where "gcv" chooses α.

    Return coefficients over the columns (p, c), intercepts (c,), and α.
    """
    small = centre(coordinates.reduce(labelled), fit_intercept=fit_intercept)
    rows = float(labelled.rows)
    if isinstance(alpha, str):
        alpha = gcv.of_system(RidgeSystem(small, rows), fit_intercept=fit_intercept).best()
    beta = ridge(small.G, small.C, alpha, n_rows=rows, diagnostics=diagnostics)
    return coordinates.expand(beta), small.target_mean - small.mean @ beta, alpha


def graph_penalty(graph: Array, weight: float) -> Array:
    """Compute I + weight·ΦᵀLΦ (r, r) of a Laplacian in whitened coordinates.

    If rounding makes it indefinite, the negative part of ΦᵀLΦ is dropped.
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
    """Compute the largest eigenvalues γ (s,) of S w = γ P w, descending, and their w as columns (r, s), with wᵀPw = 1.

    Eigenvalues below rounding are left out, so that s may be less than `count`. `penalty` is P (r, r), positive
    definite; None: I.
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
    """Principal axes of rows about their mean."""

    mean: Array  # (d,)
    axes: Array  # (r, d), orthonormal
    variances: Array  # (r,), falling, above rounding
    total: float  # sum of the variances of all directions


def principal_axes(moments: Moments, count: float | None) -> PrincipalAxes:
    """Compute the leading axes of rows from moments about a point near their mean; largest coordinates are positive.

    `count` is a number of axes, or a share below 1 of the variance that they explain at least; None: all with a
    variance above rounding.
    """
    mean = moments.s / moments.n
    S = moments.G / moments.n - np.outer(mean, mean)
    total = float(np.trace(S))
    most = len(S) if count is None or count < 1 else int(count)
    values, vectors = positive_part(*top_eigen(S, most))
    certain = values > 10 * len(S) * np.finfo(np.float64).eps * float(mean @ mean)  # S is a difference
    values, vectors = values[certain], vectors[:, certain]
    if count is not None and count < 1:
        kept = int(np.searchsorted(np.cumsum(values), count * total)) + 1
        values, vectors = values[:kept], vectors[:, :kept]
    shift = 0.0 if moments.shift is None else moments.shift
    return PrincipalAxes(mean + shift, (vectors * signs(vectors)).T, values, total)
