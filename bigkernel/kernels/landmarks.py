"""Landmarks among rows, and a bandwidth from the distances between them.

Uniform draws are of row ids alone, so that the rows may come from anywhere. `rp_cholesky` follows the kernel: it draws
among n rows that are in memory, a uniform sample of a few for each landmark, for the Nyström approximation
K̂ = K_nm K_mm⁺ K_mn of their kernel matrix K. Rows that others have explained already are not drawn, so that small
clusters get landmarks where uniform draws miss them. Shapes: X (n, d) rows, m landmarks.

Williams & Seeger, "Using the Nyström method to speed up kernel machines" (NIPS 2000); Chen, Epperly, Tropp & Webber,
"Randomly pivoted Cholesky" (2022, arXiv 2207.06503), in the blocks of Epperly, Tropp & Webber, "Embrace rejection"
(2024, arXiv 2410.03969), which follow the same law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import Gaussian

Ids = NDArray[np.int64]

SHARE = 0.7  # of the median distance, that is a bandwidth
MOST_POINTS = 2048  # whose pairs are looked at for it
_EPS = float(np.finfo(np.float64).eps)
_RESIDUE = 64 * float(np.finfo(np.float32).eps)  # of k(x, x), that products in float32 leave of what is explained
_STRIP_ROWS, _STRIP_COLUMNS = 8192, 1024  # of the factor, and of a product in float32, that are worked on at a time
_BLOCKS = 10  # of randomly pivoted Cholesky, at least, if they have `_LEAST` proposals
_LEAST, _MOST = 8, 512


def uniform(
    n_rows: int,
    n_landmarks: int,
    rng: np.random.RandomState,
    *,
    sound: Callable[[Ids], Array] | None = None,
) -> Ids:
    """Draw `n_landmarks` of `n_rows` row ids, without replacement, all equally likely; sorted (Williams & Seeger 2000).

    `sound` tells which of sorted row ids may serve, (k,) bool; None: all. Those that may not are replaced by further
    draws, and where too few may serve these are all that there are. `DataError` where none may, or rows are fewer.
    """
    require_count(n_rows, n_landmarks)
    drawn = _draw(n_rows, n_landmarks, rng)
    return drawn if sound is None else _replace_bad(drawn, n_rows, rng, sound)


def _replace_bad(drawn: Ids, n_rows: int, rng: np.random.RandomState, sound: Callable[[Ids], Array]) -> Ids:
    """Draw further rows in the place of those that may not serve, until there are as many or no more are left."""
    tried, kept, wanted = drawn, drawn[sound(drawn)], len(drawn)
    while len(kept) < wanted:
        left = n_rows - len(tried)
        if not left and not len(kept):
            raise DataError(f"n_landmarks={wanted}: expected rows without NaN or infinity, found none among {n_rows}")
        if not left:
            break
        # more each time: the number of draws grows with the logarithm of the rows, whatever share of them is bad
        places = _draw(left, min(left, len(tried)), rng)
        fresh = places + np.searchsorted(tried - np.arange(len(tried)), places, side="right")  # ids not tried before
        tried, fresh = np.sort(np.concatenate([tried, fresh])), fresh[sound(fresh)]
        missing = min(wanted - len(kept), len(fresh))
        kept = np.concatenate([kept, fresh[_draw(len(fresh), missing, rng)] if missing else fresh])
    return np.sort(kept)


def _draw(n_rows: int, n_landmarks: int, rng: np.random.RandomState) -> Ids:
    if n_rows <= 4 * n_landmarks:
        return np.sort(rng.permutation(n_rows)[:n_landmarks])
    # rejection: no permutation of all N in memory
    drawn = np.empty(0, np.int64)
    while len(drawn) < n_landmarks:
        more = rng.randint(0, n_rows, size=2 * n_landmarks, dtype=np.int64)
        together = np.concatenate([drawn, more])
        _, first = np.unique(together, return_index=True)
        drawn = together[np.sort(first)]
    return np.sort(drawn[:n_landmarks])


def require_count(n_rows: int, n_landmarks: int) -> None:
    """Raise `DataError` unless 1 ≤ n_landmarks ≤ n_rows."""
    if not 1 <= n_landmarks <= n_rows:
        raise DataError(f"n_landmarks={n_landmarks}: expected from 1 to the number of rows (n_samples = {n_rows})")


def as_landmarks(landmarks: ArrayLike, n_features: int) -> Array:
    """Check landmarks that are given as an array (m, d), and copy them to float64."""
    array = np.array(landmarks, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != n_features or not len(array):
        raise DataError(f"landmarks: expected an array of shape (m, {n_features}), found {array.shape}")
    if not np.isfinite(array).all():
        raise DataError(f"landmarks: row {int(np.argmin(np.isfinite(array).all(axis=1)))} is not finite")
    return array


def rp_cholesky(
    kernel: Kernel,
    X: Array,
    count: int,
    rng: np.random.RandomState,
    *,
    proposals: int | None = None,
    dtype: DTypeLike = np.float64,
) -> Ids:
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


def median_width(Z: Array, *, share: float = SHARE) -> float:
    """σ = share·√(median ‖z − z'‖²) over the pairs of different landmarks Z (m, d); 1 where there is no such pair.

    Of more than 2,048 landmarks, as many are looked at, evenly spaced in their order.

    Examples
    --------
    >>> median_width(np.array([[0.0], [1.0], [3.0]]), share=1.0)
    2.0
    """
    from scipy.spatial.distance import pdist  # slow to load, and needed here alone

    Z = np.asarray(Z, np.float64)
    if len(Z) > MOST_POINTS:
        Z = Z[np.linspace(0, len(Z) - 1, MOST_POINTS).astype(np.int64)]
    squares = pdist(Z, "sqeuclidean")
    squares = squares[squares > 0]
    return share * float(np.sqrt(np.median(squares))) if len(squares) else 1.0


@dataclass
class MedianGaussian(Gaussian):
    """The Gaussian whose σ is `median_width` of its landmarks; resolved, it is a plain `Gaussian`."""

    def resolve(self, Z: Array, weight: Array | None = None) -> Gaussian:
        return Gaussian(median_width(Z))
