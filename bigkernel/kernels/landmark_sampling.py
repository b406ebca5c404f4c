"""Landmarks that follow the kernel: randomly pivoted Cholesky, and recursive ridge leverage scores.

Both draw among n rows that are in memory, a uniform sample of a few for each landmark, for the Nyström approximation
K̂ = K_nm K_mm⁺ K_mn of their kernel matrix K. Rows that others have explained already are not drawn, so that small
clusters get landmarks where uniform draws miss them. Shapes: X (n, d) rows, m landmarks.

Chen, Epperly, Tropp & Webber, "Randomly pivoted Cholesky" (2022, arXiv 2207.06503), in the blocks of Epperly, Tropp &
Webber, "Embrace rejection" (2024, arXiv 2410.03969), which follow the same law; Musco & Musco, "Recursive sampling for
the Nyström method" (NIPS 2017, arXiv 1605.07583).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.kernels.algebra import Kernel, strips
from bigkernel.kernels.blas import cholesky

_EPS = float(np.finfo(np.float64).eps)
_RESIDUE = 64 * float(np.finfo(np.float32).eps)  # of k(x, x), that products in float32 leave of what is explained
_STRIP_ROWS, _STRIP_COLUMNS = 8192, 1024  # of the factor, and of a product in float32, that are worked on at a time
_STRIP_BYTES = 2**26  # of a half-solve
_BASE = 8192  # rows of the first dictionary, at most
_BLOCKS = 10  # of randomly pivoted Cholesky, at least, if they have `_LEAST` proposals
_LEAST, _MOST = 8, 512


def rp_cholesky(
    kernel: Kernel,
    X: Array,
    count: int,
    rng: np.random.RandomState,
    *,
    proposals: int | None = None,
    dtype: Any = np.float64,
) -> NDArray[np.int64]:
    """Draw rows, each with a probability in proportion to what is left of k(x, x) after those before it.

    `proposals` rows are drawn at a time, and each is accepted with the share that those accepted before it have left
    of it: the law of one draw after another, at the speed of matrix products. n·(m² + md) work; 8nm bytes, or 4nm in
    float32, beside strips of a fixed number of rows.

    Parameters
    ----------
    kernel : positive definite, every parameter a number
    proposals : in a block; None: m/10 within limits; 1: the plain method
    dtype : of the factor. In float32 rows of which a share of 8e-6 is left count as explained, which float32 blocks of
        a fit cannot tell apart either.

    Returns
    -------
    Positions of the rows (k,), in the order of the draw
        Fewer than m, the `count`, where what is left is rounding: K has a lower rank, or rows repeat.
    """
    block = proposals or max(_LEAST, min(_MOST, -(-count // _BLOCKS)))
    left = np.array(kernel.diag(X), np.float64)
    rounding = (_RESIDUE if np.dtype(dtype) == np.float32 else count * _EPS) * left.max(initial=0.0)
    F = np.empty((len(X), count), dtype, order="F")  # K̂ = FFᵀ
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        left[left <= rounding] = 0
        if not left.any():
            break
        k = len(drawn)
        proposed = rng.choice(len(X), size=block, p=left / left.sum())
        H = _less(kernel(X[proposed]), F[proposed, :k], F[proposed, :k])
        left[proposed[np.diagonal(H) <= rounding]] = 0  # by subtraction it may have stayed above
        accepted, L = _accepted(H, rounding, rng)
        accepted, L = accepted[: count - k], L[: count - k, : count - k]
        fresh = proposed[accepted]
        if not len(fresh):
            continue
        known = F[fresh, :k]
        for start in range(0, len(X), _STRIP_ROWS):
            rows = slice(start, start + _STRIP_ROWS)
            # the columns of K − FFᵀ at the rows accepted are GLᵀ
            column = _less(kernel(X[rows], X[fresh]), F[rows, :k], known)
            G = linalg.solve_triangular(L, column.T, lower=True, check_finite=False, overwrite_b=True).T
            F[rows, k : k + len(fresh)] = G
            left[rows] -= np.einsum("ij,ij->i", G, G)
        drawn = np.concatenate([drawn, fresh])
        left[drawn] = 0
    return drawn


def _less(values: Array, A: Array, B: Array) -> Array:
    """values − ABᵀ, in place: products in float32 are summed in float64, a strip of the columns at a time."""
    step = A.shape[1] if A.dtype == np.float64 else _STRIP_COLUMNS
    for start in range(0, A.shape[1], max(1, step)):
        columns = slice(start, start + step)
        values -= A[:, columns] @ B[:, columns].T
    return values


def _accepted(H: Array, rounding: float, rng: np.random.RandomState) -> tuple[Array, Array]:
    """Which of the proposals with the residual matrix H (b, b) are accepted, (t,), and the factor of theirs, (t, t)."""
    at_first, H = np.diagonal(H).copy(), H.copy()
    L = np.zeros_like(H)
    kept: list[int] = []
    for i, chance in enumerate(rng.random_sample(len(H))):
        if H[i, i] > max(rounding, chance * at_first[i]):
            column = H[i:, i] / np.sqrt(H[i, i])
            L[i:, len(kept)] = column
            H[i:, i:] -= np.outer(column, column)
            kept.append(i)
    return np.array(kept, np.int64), L[kept, : len(kept)]


def leverage_scores(kernel: Kernel, X: Array, ridge: float, dictionary: Array, weights: Array) -> Array:
    """Ridge leverage scores of rows X, (n,) from 0 to 1, as weighted rows of a dictionary see them.

    [k(x, x) − k(x, Z)(K_ZZ + λW⁻¹)⁻¹k(Z, x)]/λ; with all rows as the dictionary and weights of 1 the diagonal of
    K(K + λI)⁻¹, and with fewer not much less than it (Musco & Musco, lemma 6).

    The dictionary is Z (k, d), `ridge` λ > 0, and W the diagonal matrix of its weights (k,) > 0.
    """
    core = kernel(dictionary)
    core.flat[:: len(core) + 1] += ridge / weights
    L = core.T  # symmetric, and LAPACK's order of its transpose needs no copy
    if cholesky(L, lower=True):
        raise np.linalg.LinAlgError(f"the matrix of a dictionary of {len(core):,} rows is not positive definite")
    explained, step = np.empty(len(X)), max(1, _STRIP_BYTES // (8 * len(core)))
    for start in range(0, len(X), step):
        rows = slice(start, start + step)
        half = linalg.solve_triangular(
            L, kernel(X[rows], dictionary).T, lower=True, check_finite=False, overwrite_b=True
        )
        explained[rows] = np.einsum("ij,ij->j", half, half)
    scores: Array = (kernel.diag(X) - explained) / ridge
    return np.clip(scores, 0.0, 1.0)


def recursive_leverage(kernel: Kernel, X: Array, count: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    """Draw rows with probabilities in proportion to their ridge leverage scores, without replacement.

    The scores come from a dictionary that was drawn with those of half of the rows, and so on down to few of them. The
    ridge of a level is what the k = m/(4 log m) leading directions of its dictionary leave, over k. About n·m²/4 work;
    dictionaries have m/2 to 0.7m rows, whose matrix takes 2m² to 4m² bytes, and a spectrum of it is most of the time.

    Returns
    -------
    Positions of the rows (k,), in the order of the draw
        No two equal rows, and none of score 0: fewer than m, the `count`, where there are no more.
    """
    n, oversampling = len(X), max(1.0, float(np.log(count)))
    leading = max(1, int(np.ceil(count / (4 * oversampling))))
    order = rng.permutation(n)
    sizes = [n]
    while sizes[-1] > min(count, _BASE):
        sizes.append(-(-sizes[-1] // 2))
    dictionary, weights = order[: sizes[-1]], np.ones(sizes[-1])
    scores = np.ones(n)
    for size in reversed(sizes[:-1]):
        level = order[:size] if size < n else np.arange(n)
        scores = leverage_scores(
            kernel, X[level], _ridge(kernel, X[dictionary], weights, leading), X[dictionary], weights
        )
        if size < n:
            chances = np.minimum(1.0, oversampling * scores)
            taken = rng.random_sample(size) < chances
            if not taken.any():
                taken[rng.randint(size)] = True
                chances = np.full(size, 1 / size)
            dictionary, weights = level[taken], 1 / chances[taken]
    # the order of a draw without replacement: by exponential times of rates in proportion to the scores
    with np.errstate(divide="ignore"):
        times = rng.exponential(size=n) / scores
    return _different(X, np.argsort(times, kind="stable")[: np.count_nonzero(scores)], count)


def _ridge(kernel: Kernel, Z: Array, weights: Array, leading: int) -> float:
    """λ of a level: the tail of the spectrum of its weighted dictionary over the number of leading directions."""
    root = np.sqrt(weights)
    core = kernel(Z)
    for rows in strips(core):
        core[rows] *= np.outer(root[rows], root)
    trace = float(np.trace(core))
    least = 10 * len(Z) * _EPS * max(trace, 1e-300)  # below it the core is not positive
    if leading >= len(Z):
        return least
    top = linalg.eigvalsh(core.T, subset_by_index=(len(Z) - leading, len(Z) - 1), check_finite=False, overwrite_a=True)
    return max(least, (trace - float(top.sum())) / leading)


def _different(X: Array, order: Array, count: int) -> NDArray[np.int64]:
    """The first `count` of the rows in this order that are equal to none before them."""
    seen: set[bytes] = set()
    kept: list[int] = []
    for row in order:
        content = (X[row] + 0.0).tobytes()  # −0 is 0
        if content not in seen:
            seen.add(content)
            kept.append(int(row))
            if len(kept) == count:
                break
    return np.array(kept, np.int64)
