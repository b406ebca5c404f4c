"""The small problems: from moments and the m×m core to coefficients. Nothing here sees a row.

Notation: p columns of the map, r the rank kept, c targets. The core is whitened first, φ = L⁻¹ Π k(Z, x) with
ΠK_mmΠᵀ = LLᵀ (pivoted Cholesky, stopped at the numerical rank), so that every method below is plain ridge in r
dimensions. Any whitening with the same span gives the same model; this one needs no eigendecomposition. A core that is
not positive (sigmoid kernels) goes through its eigenvectors, its negative part is dropped, and a warning says so.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.errors import ConfigError, RankDeficient
from bigkernel.statistics import Moments

Array = NDArray[Any]


@dataclass(frozen=True)
class Whitening:
    """T (p×r) with TᵀK_mmT = I, applied without being formed where it is triangular.

    Attributes
    ----------
    width : p
    rank : r
    pivots : (r,) the landmarks kept, or None: all, through `basis`
    factor : (r, r) lower triangular L, or None
    basis : (p, r), T itself, for cores that are not positive
    """

    width: int
    rank: int
    pivots: Array | None = None
    factor: Array | None = None
    basis: Array | None = None

    def reduce(self, C: Array) -> Array:
        """TᵀC, for C (p,) or (p, c)."""
        if self.basis is not None:
            reduced: Array = self.basis.T @ C
            return reduced
        # TᵀC = L⁻¹ΠC
        return _solve_lower(self.factor, C[self.pivots])

    def rotate(self, G: Array) -> Array:
        """TᵀGT (r×r), for G (p×p) symmetric."""
        if self.basis is not None:
            rotated: Array = self.basis.T @ G @ self.basis
        else:
            half = _solve_lower(self.factor, G[np.ix_(self.pivots, self.pivots)])  # type: ignore[arg-type]
            rotated = _solve_lower(self.factor, half.T)
        return (rotated + rotated.T) / 2

    def expand(self, w: Array) -> Array:
        """Tw: coefficients over the landmarks, (p,) or (p, c), of weights w (r,) or (r, c)."""
        if self.basis is not None:
            expanded: Array = self.basis @ w
            return expanded
        out = np.zeros((self.width, *w.shape[1:]))
        out[self.pivots] = linalg.solve_triangular(self.factor, w, lower=True, trans="T", check_finite=False)
        return out


def identity(width: int) -> Whitening:
    """No whitening: for maps that are features already."""
    return Whitening(width, width, basis=np.eye(width))


def whiten(core: Array, *, eps: float = float(np.finfo(np.float64).eps), kernel: str = "") -> Whitening:
    """Whiten the m×m core, keeping what exceeds m·eps of its largest part.

    Parameters
    ----------
    core : K_mm, symmetric, float64
    eps : relative precision of the blocks that the moments were made from
    kernel : its name, for the warnings

    Warns
    -----
    RankDeficient
        Fewer than m directions are kept, or a negative part was dropped; with rank, m and what was dropped.
    """
    m = len(core)
    scale = float(np.abs(core).max(initial=0.0))
    tolerance = m * eps * scale
    if scale == 0:
        warnings.warn(f"{kernel} kernel: the core of {m} landmarks is zero; the model is zero", RankDeficient, 2)
        return Whitening(m, 0, basis=np.zeros((m, 0)))
    factor, pivots, rank, _ = linalg.lapack.dpstrf(core, tol=tolerance, lower=1)
    pivots = pivots.astype(np.int64) - 1
    if rank < m:
        kept, lost = pivots[:rank], pivots[rank:]
        # what is left of a positive core, K − LLᵀ, is below the tolerance; of an indefinite one it is not
        below = np.tril(factor)[rank:, :rank]
        rest = core[np.ix_(lost, lost)] - below @ below.T
        if np.abs(rest).max() > 10 * np.sqrt(m) * tolerance:
            return _whiten_indefinite(core, m * eps, kernel)
        warnings.warn(
            f"{kernel} kernel: the core of {m} landmarks has numerical rank {rank}; "
            f"{m - rank} landmarks (the first is {int(lost.min())}) repeat the others and are left out",
            RankDeficient,
            2,
        )
    else:
        kept = pivots
    lower = np.asfortranarray(np.tril(factor[:rank, :rank]))
    return Whitening(m, int(rank), pivots=kept, factor=lower)


def _whiten_indefinite(core: Array, relative: float, kernel: str) -> Whitening:
    # K_mm = U D Uᵀ, keep D_j > m·eps·D_max: φ(x) = D^{-1/2} Uᵀ k(Z, x)
    values, vectors = linalg.eigh(core)
    keep = values > relative * np.abs(values).max()
    dropped = -values[values < 0].sum() / np.abs(values).sum()
    warnings.warn(
        f"{kernel} kernel: the core is not positive semi-definite; its negative part, {dropped:.1%} of the absolute "
        f"eigenvalue mass, is dropped, and {int(keep.sum())} of {len(core)} directions are kept",
        RankDeficient,
        3,
    )
    return Whitening(len(core), int(keep.sum()), basis=vectors[:, keep] / np.sqrt(values[keep]))


@dataclass(frozen=True)
class Reduced:
    """Moments in whitened coordinates, centred when an intercept is wanted.

    G (r×r), C (r, c), and the means of the features (r,) and targets (c,) that were taken out (zeros without an
    intercept); q (c,) = Σ w (y − mean)².
    """

    n: float
    G: Array
    C: Array
    q: Array
    mean: Array
    target_mean: Array


def reduce_moments(moments: Moments, whitening: Whitening, *, fit_intercept: bool) -> Reduced:
    """Whiten moments and, for an intercept, centre them: G − ssᵀ/n, C − stᵀ/n; exact, without the data."""
    G, C, s = whitening.rotate(moments.G), whitening.reduce(moments.C), whitening.reduce(moments.s)
    if not fit_intercept or moments.n == 0:
        return Reduced(float(moments.n), G, C, moments.q, np.zeros_like(s), np.zeros_like(moments.t))
    mean, target_mean = s / moments.n, moments.t / moments.n
    q = moments.q - moments.n * target_mean**2
    G = G - np.outer(mean, s)
    return Reduced(float(moments.n), G, C - np.outer(mean, moments.t), np.maximum(q, 0), mean, target_mean)


def ridge(G: Array, C: Array, alpha: float, *, n_rows: float = 0.0) -> Array:
    """w = (G + αI)⁻¹C by Cholesky; the minimum-norm solution where that matrix is singular.

    Parameters
    ----------
    G : (r, r), C : (r, c), alpha ≥ 0
    n_rows : rows behind G, for the tolerance of the minimum-norm solution
    """
    require_alpha(alpha)
    if not len(G):
        return np.zeros_like(C)
    regular = G + alpha * np.eye(len(G))
    scale = float(np.abs(np.diagonal(regular)).max())
    floor = len(G) * float(np.finfo(np.float64).eps)
    if scale > 0:
        try:
            factor = linalg.cho_factor(regular, lower=True, check_finite=False)
            smallest = float(np.diagonal(factor[0]).min())
            if smallest**2 > floor * scale:
                solution: Array = linalg.cho_solve(factor, C, check_finite=False)
                return solution
        except linalg.LinAlgError:
            pass
    values, vectors = linalg.eigh(regular)
    keep = values > max(len(G), n_rows) * np.finfo(np.float64).eps * max(np.abs(values).max(), 1e-300)
    w: Array = vectors[:, keep] @ ((vectors[:, keep].T @ C) / values[keep, None])
    return w


def ridge_path(G: Array, C: Array, alphas: Array, *, n_rows: float = 0.0) -> Array:
    """w(α) = V(Λ+αI)⁻¹VᵀC for every alpha, (k, r, c), from one eigendecomposition G = VΛVᵀ; see `ridge`."""
    for alpha in alphas:
        require_alpha(float(alpha))
    values, vectors = linalg.eigh(G)
    values = np.maximum(values, 0)
    rotated = vectors.T @ C
    relative = max(len(G), n_rows) * np.finfo(np.float64).eps
    paths = []
    for alpha in alphas:
        shrunk = values + float(alpha)
        keep = shrunk > relative * shrunk.max(initial=0.0)
        paths.append(vectors[:, keep] @ (rotated[keep] / shrunk[keep, None]))
    return np.stack(paths)


def squared_error(reduced: Reduced, w: Array) -> Array:
    """Training Σ w (y − f)² per target, (c,): q − 2⟨w, C⟩ + ⟨w, Gw⟩."""
    error: Array = reduced.q - 2 * (w * reduced.C).sum(axis=0) + (w * (reduced.G @ w)).sum(axis=0)
    return np.maximum(error, 0)


def nystrom_ridge(
    moments: Moments, whitening: Whitening, alpha: float, *, fit_intercept: bool = False
) -> tuple[Array, Array, Array]:
    """Coefficients over the landmarks (p, c), intercept (c,) and training squared error (c,) of ridge on the map.

    For a landmark map this is Nyström KRR, min ‖Bα + 1b − Y‖² + λ αᵀK_mmα (Williams & Seeger 2000); b as in seed 002,
    whose right-hand side must read (Σy, y).
    """
    reduced = reduce_moments(moments, whitening, fit_intercept=fit_intercept)
    w = ridge(reduced.G, reduced.C, alpha, n_rows=moments.rows)
    return whitening.expand(w), reduced.target_mean - reduced.mean @ w, squared_error(reduced, w)


def exact_krr(
    K: Array, Y: Array, alpha: float, *, fit_intercept: bool = False, weight: Array | None = None
) -> tuple[Array, Array]:
    """Dual coefficients (n, c) and intercept (c,): (K + λI)a = Y by Cholesky (seed 000 eq. 17; with b: seed 002).

    Row weights enter as scikit-learn's KernelRidge has them: √w on rows and columns of K and on Y.
    """
    require_alpha(alpha)
    n = len(K)
    root = np.ones(n) if weight is None else np.sqrt(weight)
    scaled, target = K * np.outer(root, root), root[:, None] * Y
    if not fit_intercept:
        return root[:, None] * ridge(scaled, target, alpha, n_rows=n), np.zeros(Y.shape[1])
    # [[1ᵀW1, 1ᵀWK], [1, K + λW⁻¹]] (b; a) = (1ᵀWy; y). With a = W^{1/2}u, r = W^{1/2}1 and rᵀu = 0 at the optimum, the
    # projection P along r leaves (PSP + λI)u = P W^{1/2}y, S = W^{1/2}KW^{1/2}
    unit = root / np.linalg.norm(root)
    half = scaled - np.outer(unit, unit @ scaled)
    u = ridge(half - np.outer(half @ unit, unit), target - np.outer(unit, unit @ target), alpha, n_rows=n)
    u -= np.outer(unit, unit @ u)
    intercept = (root @ (target - scaled @ u)) / (root @ root)
    return root[:, None] * u, intercept


def top_eigen(S: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest eigenvalues (descending) and their vectors (columns) of a symmetric matrix."""
    size = len(S)
    count = min(count, size)
    if not count:
        return np.zeros(0), np.zeros((size, 0))
    values, vectors = linalg.eigh(S, subset_by_index=(size - count, size - 1), check_finite=False)
    return values[::-1], vectors[:, ::-1]


def sssl_all(
    everything: Moments, labelled: Moments, whitening: Whitening, n_components: int, alpha: float
) -> tuple[Array, Array]:
    """SSSL_m with eigenfunctions of all rows: coefficients over the landmarks (p, c), and the s eigenvalues.

    ΦᵀΦ = WΛWᵀ over all N rows; the features √λ_j φ(x)ᵀW_j are what VᵀK gives in the exact form, so that λ means the
    same in all three (Ji et al. 2012; MATH §4).
    """
    values, W = _positive(*top_eigen(whitening.rotate(everything.G), n_components))
    basis = W * np.sqrt(values)
    # β = (PPᵀ + λI)⁻¹ P y with P = Λ^{1/2}WᵀΦ_lᵀ
    beta = ridge(
        basis.T @ whitening.rotate(labelled.G) @ basis,
        basis.T @ whitening.reduce(labelled.C),
        alpha,
        n_rows=labelled.rows,
    )
    return whitening.expand(basis @ beta), values


def sssl_core(
    core: Array, labelled_G: Array, labelled_C: Array, n_components: int, alpha: float
) -> tuple[Array, Array]:
    """SSSL with eigenfunctions of the core: coefficients over its points (p, c), and the s eigenvalues.

    Core of m landmarks: SSSL_m as in seed 001 eq. 8; core of all N rows: SSSL_N (eq. 6, whose Λ^{1/2} only rescales β).
    With K = VΛVᵀ and P = VᵀK_{:,l}: β = (PPᵀ + λI)⁻¹Py, f(x) = k(x, ·)Vβ. (Eq. 7 prints the penalty as a norm; its
    solution is that of the squared norm.)
    """
    values, V = _positive(*top_eigen(core, n_components))
    beta = ridge(V.T @ labelled_G @ V, V.T @ labelled_C, alpha)
    return V @ beta, values


def _positive(values: Array, vectors: Array) -> tuple[Array, Array]:
    """Leave out eigenvalues that are rounding (below size·eps of the largest)."""
    keep = values > len(vectors) * np.finfo(np.float64).eps * max(float(np.abs(values).max(initial=0.0)), 1e-300)
    return values[keep], vectors[:, keep]


def require_alpha(alpha: float) -> None:
    """Raise `ConfigError` unless alpha is a finite number of at least 0."""
    if not np.isfinite(alpha) or alpha < 0:
        raise ConfigError(f"alpha: expected a finite number of at least 0, found {alpha!r}")


def _solve_lower(factor: Array | None, right: Array) -> Array:
    solved: Array = linalg.solve_triangular(factor, right, lower=True, check_finite=False)
    return solved
