"""The small problems: from moments and the m×m core to coefficients. Nothing here sees a row.

Notation: p columns of the map, r the rank kept, c targets. The core is whitened first, φ = L⁻¹ Π k(Z, x) with
ΠK_mmΠᵀ = LLᵀ (pivoted Cholesky, stopped at the numerical rank), so that every method below is plain ridge in r
dimensions. Any whitening with the same span gives the same model; this one needs no eigendecomposition. A core that is
not positive (sigmoid kernels) goes through its eigenvectors, its negative part is dropped, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel import mercer
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
    eps : relative precision of the blocks that the moments are made from
    """

    width: int
    rank: int
    pivots: Array | None = None
    factor: Array | None = None
    basis: Array | None = None
    eps: float = float(np.finfo(np.float64).eps)

    @property
    def condition(self) -> float:
        """About that of the core as kept: how much whitening adds to the rounding of moments."""
        pivots = np.diagonal(np.eye(1) if self.factor is None else self.factor)
        return float((pivots.max() / pivots.min()) ** 2)

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


def whiten(
    core: Array, *, eps: float = float(np.finfo(np.float64).eps), kernel: str = "", warn: bool = True
) -> Whitening:
    """Whiten the m×m core, keeping what exceeds m·eps of its largest part.

    Parameters
    ----------
    core : K_mm, symmetric, float64
    eps : relative precision of the blocks that the moments were made from
    kernel : its name, for the warnings
    warn : False where the core is one that was warned of before

    Warns
    -----
    RankDeficient
        Fewer than m directions are kept, or a negative part was dropped; with rank, m and what was dropped.
    """
    m = len(core)
    scale = float(np.abs(core).max(initial=0.0))
    tolerance = m * eps * scale
    if scale == 0:
        if warn:
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
            return _whiten_indefinite(core, m * eps, kernel, warn)
        if warn:
            warnings.warn(
                f"{kernel} kernel: the core of {m} landmarks has numerical rank {rank}; "
                f"{m - rank} landmarks (the first is {int(lost.min())}) repeat the others and are left out",
                RankDeficient,
                2,
            )
    else:
        kept = pivots
    lower = np.asfortranarray(np.tril(factor[:rank, :rank]))
    return Whitening(m, int(rank), pivots=kept, factor=lower, eps=eps)


def _whiten_indefinite(core: Array, relative: float, kernel: str, warn: bool) -> Whitening:
    # K_mm = U D Uᵀ, keep D_j > m·eps·D_max: φ(x) = D^{-1/2} Uᵀ k(Z, x)
    values, vectors = linalg.eigh(core)
    keep = values > relative * np.abs(values).max()
    if warn:
        mercer.warn_negative(values, kernel, tolerance=relative)
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


def reduced(moments: Moments, whitening: Whitening) -> Moments:
    """Moments of the whitened features."""
    return replace(moments, G=whitening.rotate(moments.G), C=whitening.reduce(moments.C), s=whitening.reduce(moments.s))


def centre(moments: Moments, *, fit_intercept: bool) -> Reduced:
    """For an intercept, take the means out: G − ssᵀ/n, C − stᵀ/n; exact, without the data."""
    G, C, s = moments.G, moments.C, moments.s
    if not fit_intercept or moments.n == 0:
        return Reduced(float(moments.n), G, C, moments.q, np.zeros_like(s), np.zeros_like(moments.t))
    mean, target_mean = s / moments.n, moments.t / moments.n
    q = moments.q - moments.n * target_mean**2
    G = G - np.outer(mean, s)
    return Reduced(float(moments.n), G, C - np.outer(mean, moments.t), np.maximum(q, 0), mean, target_mean)


@dataclass(frozen=True)
class Factor:
    """G + αI factored: by Cholesky, or by its eigenvectors where it is singular; made by `factorize`.

    Attributes
    ----------
    lower : (r, r) Cholesky factor R, or None
    values, vectors : (k,), (r, k) eigenpairs kept where it is singular, and `dropped` (r, r − k) the other vectors
    """

    lower: Array | None = None
    values: Array | None = None
    vectors: Array | None = None
    dropped: Array | None = None

    def solve(self, C: Array) -> Array:
        """(G + αI)⁻¹C, (r, c): the minimum-norm solution where G + αI is singular."""
        if self.lower is not None:
            solution: Array = linalg.cho_solve((self.lower, True), C, check_finite=False)
            return solution
        assert self.vectors is not None
        assert self.values is not None
        w: Array = self.vectors @ ((self.vectors.T @ C) / self.values[:, None])
        return w

    def half(self, C: Array) -> Array:
        """HC with HᵀH = (G + αI)⁻¹ (or its pseudo-inverse), (·, c)."""
        if self.lower is not None:
            return _solve_lower(self.lower, C)
        assert self.vectors is not None
        assert self.values is not None
        rotated: Array = (self.vectors.T @ C) / np.sqrt(self.values)[:, None]
        return rotated

    def unseen(self, C: Array) -> Array:
        """C along the directions that were dropped as null, (r − k, c)."""
        if self.dropped is None:
            return np.zeros((0, C.shape[1]))
        along: Array = self.dropped.T @ C
        return along


def factorize(
    G: Array, alpha: float, *, n_rows: float = 0.0, condition: float = 1.0, spectrum: Callable[[], Any] | None = None
) -> Factor:
    """Factor G + αI, G (r, r) positive semi-definite, alpha ≥ 0; see `ridge`. `spectrum()` gives eigh(G)."""
    require_alpha(alpha)
    if not len(G):
        return Factor(values=np.zeros(0), vectors=np.zeros((0, 0)), dropped=np.zeros((0, 0)))
    regular = _regular(G, alpha)
    scale, norm = float(np.abs(np.diagonal(regular)).max()), linalg.lapack.dlange("1", regular)
    relative = 10 * max(len(G), n_rows) * float(np.finfo(np.float64).eps)
    penalised = alpha > relative * scale
    if not penalised:  # rounding of the moments, which whitening amplifies, is not a direction
        relative = min(relative * condition, max(relative, 1e-8))
    if scale > 0:
        lower, info = linalg.lapack.dpotrf(regular, lower=1, clean=1, overwrite_a=1)
        # pivots of rounding let a singular matrix pass: its condition tells
        if info == 0 and (penalised or linalg.lapack.dpocon(lower, norm, uplo="L")[0] > relative):
            return Factor(lower=lower)
    values, vectors = linalg.eigh(G) if spectrum is None else spectrum()
    values = values + alpha
    largest = max(float(np.abs(values).max(initial=0.0)), 1e-300)
    keep = values > relative * largest
    return Factor(values=values[keep], vectors=vectors[:, keep], dropped=vectors[:, ~keep])


def _regular(G: Array, alpha: float) -> Array:
    # a copy in column order, as LAPACK wants it (G is symmetric: its transpose costs nothing), with α on the diagonal
    regular = np.array(G.T, order="F")
    regular[np.diag_indices(len(G))] += alpha
    return regular


def ridge(G: Array, C: Array, alpha: float, *, n_rows: float = 0.0, condition: float = 1.0) -> Array:
    """w = (G + αI)⁻¹C by Cholesky; the minimum-norm solution where that matrix is singular.

    Parameters
    ----------
    G : (r, r), C : (r, c), alpha ≥ 0
    n_rows, condition : rows behind G and condition of what whitened it, for what counts as null
    """
    return factorize(G, alpha, n_rows=n_rows, condition=condition).solve(C)


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
    small = centre(reduced(moments, whitening), fit_intercept=fit_intercept)
    factor = factorize(small.G, alpha, n_rows=moments.rows, condition=whitening.condition)
    if factor.lower is None and alpha > 0 and whitening.eps > 1e-10:
        warnings.warn(
            f"in float32 the moments carry rounding beyond alpha = {alpha:.3g}; take dtype='float64' or a larger alpha",
            RankDeficient,
            3,
        )
    w = factor.solve(small.C)
    return whitening.expand(w), small.target_mean - small.mean @ w, squared_error(small, w)


def exact_krr(
    K: Array, Y: Array, alpha: float, *, fit_intercept: bool = False, weight: Array | None = None
) -> tuple[Array, Array]:
    """Dual coefficients (n, c) and intercept (c,): (K + λI)a = Y by Cholesky (seed 000 eq. 17; with b: seed 002).

    Row weights enter as scikit-learn's KernelRidge has them: √w on rows and columns of K and on Y. K is positive
    semi-definite; `indefinite_krr` is for kernels that are not.
    """
    n = len(K)
    scaled, root = weigh(K, weight)
    target = root[:, None] * Y
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


def weigh(K: Array, weight: Array | None) -> tuple[Array, Array]:
    """W^{1/2}KW^{1/2} (K itself without weights) and the roots of the weights, (n,)."""
    if weight is None:
        return K, np.ones(len(K))
    root: Array = np.sqrt(weight)
    return K * np.outer(root, root), root


def indefinite_krr(
    K: Array, Y: Array, alpha: float, *, fit_intercept: bool = False, weight: Array | None = None, kernel: str = ""
) -> tuple[Array, Array]:
    """`exact_krr` for a kernel that need not be positive: the Nyström form with every row a landmark.

    K = UDUᵀ keeps its positive part, φ = D^{-1/2}Uᵀk(X, x), and a `RankDeficient` warning tells the mass dropped; where
    there is no negative part this is `exact_krr`.
    """
    tolerance = len(K) * float(np.finfo(np.float64).eps)
    shifted = _regular(K, tolerance * float(np.abs(K).max(initial=0.0)))
    positive = linalg.lapack.dpotrf(shifted, lower=1, overwrite_a=1)[1] == 0
    values, vectors = (np.zeros(0), K) if positive else linalg.eigh(K)
    if positive or not mercer.warn_negative(values, kernel):
        return exact_krr(K, Y, alpha, fit_intercept=fit_intercept, weight=weight)
    keep = values > tolerance * np.abs(values).max()
    roots, basis = np.sqrt(values[keep]), vectors[:, keep]
    phi, weights = basis * roots, np.ones(len(K)) if weight is None else weight
    share = weights / weights.sum() if fit_intercept else np.zeros(len(K))
    mean, target_mean = share @ phi, share @ Y
    phi, target = phi - mean, Y - target_mean
    w = ridge(phi.T @ (weights[:, None] * phi), phi.T @ (weights[:, None] * target), alpha, n_rows=len(K))
    return basis @ (w / roots[:, None]), target_mean - mean @ w


def top_eigen(S: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest eigenvalues (descending) and their vectors (columns) of a symmetric matrix."""
    size = len(S)
    count = min(count, size)
    if not count:
        return np.zeros(0), np.zeros((size, 0))
    if size <= 600 or 3 * count > size:  # all of them by divide and conquer: sooner than bisection for some
        values, vectors = linalg.eigh(S, driver="evd", check_finite=False)
    else:
        values, vectors = linalg.eigh(S, subset_by_index=(size - count, size - 1), check_finite=False)
    return values[::-1][:count], vectors[:, ::-1][:, :count]


def sssl_all(
    everything: Moments, labelled: Moments, whitening: Whitening, n_components: int, alpha: float
) -> tuple[Array, Array]:
    """SSSL_m with eigenfunctions of all rows: coefficients over the landmarks (p, c), and the s eigenvalues.

    ΦᵀΦ = WΛWᵀ over all N rows; the features √λ_j φ(x)ᵀW_j are what VᵀK gives in the exact form, so that λ means the
    same in all three (Ji et al. 2012; MATH §4).
    """
    values, W = positive_part(*top_eigen(whitening.rotate(everything.G), n_components))
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
    values, V = positive_part(*top_eigen(core, n_components))
    beta = ridge(V.T @ labelled_G @ V, V.T @ labelled_C, alpha)
    return V @ beta, values


def positive_part(values: Array, vectors: Array) -> tuple[Array, Array]:
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
