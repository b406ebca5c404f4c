"""Leading eigenvectors: semi-supervised ridge on the eigenfunctions of a kernel, and principal axes of rows.

Only moments and cores are read. Notation: m landmarks, p columns of the map, s components, c targets; all rows
determine the eigenfunctions, only the labelled ones (l) the weights β. See Ji, Yang, Lin, Jin & Han (ICML 2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.solvers import gcv, residuals
from bigkernel.solvers.penalty_grid import Coordinates
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import RidgeSystem, RoundingEstimate, ridge
from bigkernel.solvers.whitening import Reduced, Whitening, centre, positive_part, reduce_moments, signs, top_eigen
from bigkernel.statistics.moments import Moments

Known = tuple[Moments, list[tuple[Array, Array]]]  # of all rows, whitened, and γ (k,) and w (r, k) of each penalty


def eigenfunctions_of_rows(
    everything: Moments,
    whitening: Whitening,
    count: int,
    *,
    penalties: Sequence[Array | None] = (None,),
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Coordinates, Array, Known]:
    """Return the leading eigenfunctions of all rows as coordinates, their eigenvalues, and what tells their error.

    ΦᵀΦ = WΛWᵀ over all N rows; the features √λ_j φ(x)ᵀW_j correspond to VᵀK of the exact form, so that α has the same
    meaning in all three. With a penalty P (r, r) in whitened coordinates they are those of ΦᵀΦ w = λ P w. The
    eigenfunctions of several penalties are blocks of the coordinates.
    """
    rows = reduce_moments(everything, whitening)
    # further ones tell the error: all where they cost nothing
    known = count + (len(rows.G) if len(rows.G) <= 600 else count // 4 + 1)
    pairs = [leading(rows.G, known, diagnostics, penalty=P) for P in penalties]
    ends = np.cumsum([0, *(len(values[:count]) for values, _ in pairs)]).tolist()
    basis = np.hstack([W[:, :count] * np.sqrt(values[:count]) for values, W in pairs])
    coordinates = Coordinates(whitening, basis, blocks=tuple(pairwise(ends)) if len(pairs) > 1 else ())
    return coordinates, np.concatenate([values[:count] for values, _ in pairs]), (rows, pairs)


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


@np.errstate(all="ignore")
def rounding_error(
    known: Known, block: int, few: Reduced, count: int, alpha: float, weight: float, estimate: RoundingEstimate
) -> float:
    """Estimate how far rounding moves predictions, relative to their norm, to first order; not finite where unknown.

    x weighs the first `count` eigenvectors w_j of a block, μ is the `weight` of its graph, `few` are labelled rows. For
    M = W_s Γ_s W_sᵀ, αx = M(C − Gₗx). Sums G + E, and so P + μE, of independent E_ij, change x by
        dx_i = Σ_j E_ij x_j (1 − μγ_j)/(γ_j − γ_i)                of eigenvectors that are not used,
        (αI + MGₗ)dx = dM(C − Gₗx) + M(dC − dGₗx − Gₗdx_i)        of those that are.
    """
    rows, (values, W) = known[0], known[1][block]
    s = min(count, len(values))
    used, root, least = values[:s], np.sqrt(values[:s]), values[-1] if s < len(values) < len(W) else 0.0
    half, C, mean, total = W.T @ (few.G @ W[:, :s]), W.T @ few.C, W.T @ few.mean, W.T @ rows.s
    H = root[:, None] * half[:s] * root
    H += max(alpha, s * np.finfo(np.float64).eps * float(np.trace(H)), 1e-300) * np.eye(s)
    step = root[:, None] * np.linalg.inv(H) * root
    rest, of_x, of_graph = C - half @ (x := step @ C[:s]), (x**2).sum(axis=1), 1 - weight * used
    # Var E_ij: a_i a_j/Σa of sums; of blocks those of w_iᵀ(Σ δφᵀ + Σ φδᵀ)w_j
    blocks = np.zeros(len(W)) if estimate.blocks is None else estimate.blocks
    norm = np.sqrt(max(float(estimate.sums.sum()), 1e-300))
    a, d = (W**2).T @ estimate.sums / norm, (W**2).T @ blocks
    V = np.outer(a, a) + np.outer(d, values) + np.outer(values, d)
    # with an intercept, f changes about the mean of the labelled rows
    Q = np.diag(values) - np.outer(mean, total) - np.outer(total, mean) + rows.n * np.outer(mean, mean)
    squared = step @ Q[:s, :s] @ step
    # dx_i with Gₗdx_i; eigenvectors that are not known have eigenvalues below the last one
    away = V[s:, :s] * (of_graph / (used - values[s:, None])) ** 2
    change = (away @ of_x) @ (np.diagonal(Q)[s:] + ((half[s:] @ squared) * half[s:]).sum(axis=1))
    beyond = (norm - a.sum()) * a[:s] + (blocks.sum() - d.sum()) * used + (len(W) - len(values)) * least * d[:s]
    change += least * (beyond * (of_graph / (used - least)) ** 2) @ of_x
    # dM(C − Gₗx); dC − dGₗx by the rounding of its sums, Σ δ(y − f)ᵀ, and Σ φδᵀ
    right = (V[:s, :s] * (of_graph[:, None] + of_graph - 1) ** 2) @ ((alpha / used) ** 2 * of_x) / used**2
    misfit = np.maximum(few.q - ((C[:s] + rest[:s]) * x).sum(axis=0), 0).sum()
    right += away.T @ (rest[s:] ** 2).sum(axis=1) + few.n / rows.n * a[:s] * (a[:s] @ of_x) + d[:s] * misfit
    change += np.diagonal(squared) @ right + (squared * half[:s]).sum() * (blocks @ (W[:, :s] @ x) ** 2).sum()
    size = used @ of_x - few.mean.any() * ((total[:s] @ x) ** 2).sum() / rows.n
    return float(np.sqrt(change / size))


def graph_penalty(graph: Array, weight: float) -> Array:
    """Compute I + weight·ΦᵀLΦ (r, r) of a Laplacian in whitened coordinates.

    If rounding makes it indefinite, the negative part of ΦᵀLΦ is dropped.
    """
    P: Array = np.eye(len(graph)) + weight * graph
    if linalg.lapack.dpotrf(P, lower=1)[1]:
        values, vectors = linalg.eigh(graph)
        P = np.eye(len(graph)) + weight * (vectors * np.maximum(values, 0)) @ vectors.T
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
