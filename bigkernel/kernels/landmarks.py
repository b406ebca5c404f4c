"""Choice of landmarks among rows, and a bandwidth from the distances between them.

`uniform` samples row ids only, so that the rows may be stored anywhere. `rp_cholesky` samples by the kernel among n
rows in memory, a uniform sample of a few rows per landmark, for the Nyström approximation K̂ = K_nm K_mm⁺ K_mn of their
kernel matrix K. Rows that earlier landmarks explain are not sampled, so that small clusters get landmarks that uniform
samples miss. Shapes: X (n, d) rows, m landmarks.

Williams & Seeger, "Using the Nyström method to speed up kernel machines" (NIPS 2000); Chen, Epperly, Tropp & Webber,
"Randomly pivoted Cholesky" (2022, arXiv 2207.06503), in the blocks of Epperly, Tropp & Webber, "Embrace rejection"
(2024, arXiv 2410.03969), which follow the same law.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import linalg, sparse

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import Gaussian
from bigkernel.kernels.threads import blas_threads, one_thread

Ids = NDArray[np.int64]

SHARE = 0.7  # bandwidth over median distance
MOST_POINTS = 2048  # most landmarks whose pairs enter the median
_EPS = float(np.finfo(np.float64).eps)
_RESIDUE = 64 * float(np.finfo(np.float32).eps)  # share of k(x, x) that is rounding where products are float32
_STRIP_ROWS, _STRIP_COLUMNS = 8192, 1024  # rows of the factor, and columns of a float32 product, at a time
_BLOCKS = 10  # least number of blocks of randomly pivoted Cholesky, if they have `_LEAST` proposals
_LEAST, _MOST = 8, 512
_NEAREST_ROWS = 1024  # whose distances from all centres a thread has at a time


def uniform(
    n_rows: int, n_landmarks: int, rng: np.random.RandomState, *, usable: Callable[[Ids], Array] | None = None
) -> Ids:
    """Sample `n_landmarks` of `n_rows` row ids uniformly without replacement; sorted (Williams & Seeger 2000).

    `usable` returns which of sorted row ids may be landmarks, (k,) bool; None: all. Others are replaced by further
    samples as long as there are rows. `DataError` if no row is usable, or there are fewer rows than landmarks.
    """
    require_count(n_rows, n_landmarks)
    # a generator of its own: folds that are shuffled with the same seed would hold most landmarks in one of them
    rng = np.random.RandomState(rng.randint(2**32, size=4, dtype=np.uint32))
    sampled = _sample(n_rows, n_landmarks, rng)
    return sampled if usable is None else _replace_bad(sampled, n_rows, rng, usable)


def _replace_bad(sampled: Ids, n_rows: int, rng: np.random.RandomState, usable: Callable[[Ids], Array]) -> Ids:
    """Replace unusable rows by further samples, until there are enough or no rows are left."""
    tried, kept, count = sampled, sampled[usable(sampled)], len(sampled)
    while len(kept) < count:
        left = n_rows - len(tried)
        if not left and not len(kept):
            raise DataError(f"n_landmarks={count}: expected rows without NaN or infinity, found none among {n_rows}")
        if not left:
            break
        # twice as many each time: the number of rounds is logarithmic in the rows, whatever share of them is bad
        places = _sample(left, min(left, len(tried)), rng)
        fresh = places + np.searchsorted(tried - np.arange(len(tried)), places, side="right")  # ids not tried before
        tried, fresh = np.sort(np.concatenate([tried, fresh])), fresh[usable(fresh)]
        missing = min(count - len(kept), len(fresh))
        kept = np.concatenate([kept, fresh[_sample(len(fresh), missing, rng)] if missing else fresh])
    return np.sort(kept)


def _sample(n_rows: int, n_landmarks: int, rng: np.random.RandomState) -> Ids:
    if n_rows <= 4 * n_landmarks:
        return np.sort(rng.permutation(n_rows)[:n_landmarks])
    # rejection sampling: no permutation of all rows in memory
    sampled = np.empty(0, np.int64)
    while len(sampled) < n_landmarks:
        more = rng.randint(0, n_rows, size=2 * n_landmarks, dtype=np.int64)
        together = np.concatenate([sampled, more])
        _, first = np.unique(together, return_index=True)
        sampled = together[np.sort(first)]
    return np.sort(sampled[:n_landmarks])


def require_count(n_rows: int, n_landmarks: int) -> None:
    """Raise `DataError` unless 1 ≤ n_landmarks ≤ n_rows."""
    if not 1 <= n_landmarks <= n_rows:
        raise DataError(f"n_landmarks={n_landmarks}: expected from 1 to the number of rows (n_samples = {n_rows})")


def as_landmarks(landmarks: ArrayLike, n_features: int) -> Array:
    """Check landmarks (m, d) and copy them to float64."""
    array = np.array(landmarks, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != n_features or not len(array):
        raise DataError(f"landmarks: expected an array of shape (m, {n_features}), found {array.shape}")
    if not np.isfinite(array).all():
        raise DataError(f"landmarks: row {int(np.argmin(np.isfinite(array).all(axis=1)))} is not finite")
    return array


def spread(X: Array, count: int, rng: np.random.RandomState) -> Ids:
    """Sample rows (n, d) by squares of distances, above rounding, from the nearest one before (k-means++, 2007)."""
    sampled, left = np.empty(count, np.int64), np.full(len(X), np.sqrt(np.finfo(X.dtype).max))
    least = (8 * np.finfo(X.dtype).eps) ** 2 * np.einsum("ij,ij->i", X, X)
    for k in range(count):
        sums = np.cumsum(np.where(left > least, left, 0), dtype=np.float64)
        sampled[k] = min(np.searchsorted(sums, rng.random_sample() * sums[-1], side="right"), len(X) - 1)
        left = np.minimum(left, np.einsum("ij,ij->i", apart := X - X[sampled[k]], apart))
    return sampled


def group_means(X: Array, group: Ids, count: int) -> tuple[Array, Ids]:
    """Compute the means (count, d) of groups of rows (n, d), 0 of an empty one, and their numbers of rows (count,)."""
    counts = np.bincount(group, minlength=count)
    sums = sparse.csc_array((np.ones(len(X), X.dtype), group, np.arange(len(X) + 1)), (count, len(X))) @ X
    return sums / np.maximum(counts, 1).astype(X.dtype)[:, None], counts


def move_centres(X: Array, centres: Array, steps: int) -> tuple[Array, Ids]:
    """Move centres (m, d) to the means of the rows (n, d) nearest to them, till none changes (Lloyd 1982).

    Return them and the centre nearest to each row (n,). A centre of no row moves to the row farthest from its own.
    Each thread of BLAS has 1,024 rows at a time; bits do not depend on their number.
    """
    centres, squares, before = centres.copy(), np.einsum("ij,ij->i", X, X), np.empty(0)

    def find(start: int) -> tuple[Array, Array]:
        # ‖x − z‖² − ‖x‖² = ‖z‖² − 2xᵀz
        distances = X[start : start + _NEAREST_ROWS] @ (-2 * centres.T)
        distances += np.einsum("ij,ij->i", centres, centres)
        nearest = distances.argmin(axis=1)
        return nearest, distances[np.arange(len(nearest)), nearest]

    threads = blas_threads()
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        for step in range(steps + 1):
            nearest, distances = map(np.concatenate, zip(*pool.map(find, range(0, len(X), _NEAREST_ROWS)), strict=True))
            if step == steps or np.array_equal(nearest, before):
                break
            means, counts = group_means(X, nearest, len(centres))
            centres, empty, before = np.where(counts[:, None] > 0, means, centres), np.flatnonzero(counts == 0), nearest
            # centres of no row go to the farthest rows, as long as these are no centres
            distances += squares
            far = np.argsort(distances, kind="stable")[len(X) - len(empty) :]
            far = far[distances[far] > _RESIDUE * squares.max()]
            centres[empty[: len(far)]] = X[far]
    return centres, nearest


def rp_cholesky(
    kernel: Kernel,
    X: Array,
    count: int,
    rng: np.random.RandomState,
    *,
    proposals: int | None = None,
    dtype: DTypeLike = np.float64,
) -> Ids:
    """Sample rows, each with probability proportional to the residual of k(x, x) after the rows before it.

    `proposals` rows are sampled at a time, and each is accepted with probability residual over proposal: the same law
    as one after another, at the speed of matrix products. n·(m² + md) work; 8nm bytes, or 4nm in float32, besides
    strips of a fixed number of rows. Return positions (k,) in the order of sampling: fewer than `count` if the residual
    is rounding, since K has a lower rank, or rows repeat.

    `kernel` is positive definite, every parameter a number. `proposals` None: m/10 within limits; 1: the plain method.
    `dtype` is that of the factor: in float32, rows with a relative residual of 8e-6 count as explained; float32 blocks
    of a fit cannot tell them apart either.
    """
    block = proposals or max(_LEAST, min(_MOST, -(-count // _BLOCKS)))
    left = np.array(kernel.diag(X), np.float64)
    rounding = (_RESIDUE if np.dtype(dtype) == np.float32 else count * _EPS) * left.max(initial=0.0)
    F = np.empty((len(X), count), dtype, order="F")  # K̂ = FFᵀ
    sampled = np.empty(0, np.int64)
    while len(sampled) < count:
        left[left <= rounding] = 0
        if not left.any():
            break
        k = len(sampled)
        proposed = rng.choice(len(X), size=block, p=left / left.sum())
        H = _subtract_product(kernel(X[proposed]), F[proposed, :k], F[proposed, :k])
        left[proposed[np.diagonal(H) <= rounding]] = 0  # its value by subtractions may be above
        accepted, L = _accept(H, rounding, rng)
        accepted, L = accepted[: count - k], L[: count - k, : count - k]
        fresh = proposed[accepted]
        if not len(fresh):
            continue
        before = F[fresh, :k]
        for start in range(0, len(X), _STRIP_ROWS):
            rows = slice(start, start + _STRIP_ROWS)
            # the columns of K − FFᵀ at the accepted rows are GLᵀ
            column = _subtract_product(kernel(X[rows], X[fresh]), F[rows, :k], before)
            G = linalg.solve_triangular(L, column.T, lower=True, check_finite=False, overwrite_b=True).T
            F[rows, k : k + len(fresh)] = G
            left[rows] -= np.einsum("ij,ij->i", G, G)
        sampled = np.concatenate([sampled, fresh])
        left[sampled] = 0
    return sampled


def _subtract_product(values: Array, A: Array, B: Array) -> Array:
    """Subtract ABᵀ from values in place; float32 products are summed in float64, a strip of columns at a time."""
    step = A.shape[1] if A.dtype == np.float64 else _STRIP_COLUMNS
    for start in range(0, A.shape[1], max(1, step)):
        columns = slice(start, start + step)
        values -= A[:, columns] @ B[:, columns].T
    return values


def _accept(H: Array, rounding: float, rng: np.random.RandomState) -> tuple[Array, Array]:
    """Accept proposals with the residual matrix H (b, b); return their indices (t,) and Cholesky factor (t, t)."""
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
    """Compute σ = share·√(median ‖z − z'‖²) over pairs of different landmarks Z (m, d); 1 if there is no such pair.

    Of more than 2,048 landmarks, 2,048 are used, evenly spaced.
    """
    from scipy.spatial.distance import pdist  # slow to load, and needed only here

    Z = np.asarray(Z, np.float64)
    if len(Z) > MOST_POINTS:
        Z = Z[np.linspace(0, len(Z) - 1, MOST_POINTS).astype(np.int64)]
    squares = pdist(Z, "sqeuclidean")
    squares = squares[squares > 0]
    return share * float(np.sqrt(np.median(squares))) if len(squares) else 1.0


@dataclass
class MedianGaussian(Gaussian):
    """A Gaussian whose σ is the `median_width` of its landmarks; `resolve` returns a plain `Gaussian`."""

    def resolve(self, Z: Array, weight: Array | None = None) -> Gaussian:
        return Gaussian(median_width(Z))
