"""Positive definiteness: the eigenvalues of a Gram matrix, and whether a kernel has a feature map on given rows.

A kernel is positive definite symmetric (PDS) when every Gram matrix [k(x_i, x_j)] is symmetric with no negative
eigenvalue (equivalent to Mercer's condition). A finite sample can refute that but not prove it: the result holds for
the given rows only. Shapes: n rows X (n, d), Gram matrix (n, n).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from scipy.spatial.distance import cdist

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError, DataError, PlanTooLargeError
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import Laplacian, as_kernel

LIMIT_BYTES = 2**33  # largest Gram matrix


@dataclass(frozen=True, eq=False)
class GramSpectrum:
    """The eigenvalues of a Gram matrix."""

    eigenvalues: Array  # (n,) float64, descending
    asymmetry: float  # largest |k(x, z) − k(z, x)| over the largest |k|
    tolerance: float  # eigenvalues within this share of the largest |eigenvalue| count as zero

    @property
    def positive_definite(self) -> bool:
        """Whether the matrix is symmetric and no eigenvalue is below −tolerance times the largest."""
        return self.asymmetry <= self.tolerance and float(self.eigenvalues[-1]) >= -self.tolerance * self._largest

    @property
    def rank(self) -> int:
        """The number of eigenvalues that exceed the tolerance in absolute value."""
        return int(np.sum(np.abs(self.eigenvalues) > self.tolerance * self._largest))

    @property
    def negative_mass(self) -> float:
        """The share of negative eigenvalues, beyond rounding, in Σ|λ|, from 0 to 1."""
        return negative_mass(self.eigenvalues, self.tolerance)

    @property
    def _largest(self) -> float:
        return float(np.abs(self.eigenvalues).max())


def check_positive_definite(
    kernel: Kernel | str | Callable[[Array, Array], ArrayLike], X: ArrayLike, *, tolerance: float | None = None
) -> GramSpectrum:
    """Compute the spectrum of the Gram matrix of a kernel on rows X, to see whether the kernel is PDS there.

    Parameters
    ----------
    kernel : Kernel, name, or a function of (X, X) that returns the matrix (n, n)
    X : (n, d), some thousands of rows at most: the time grows as n³
    tolerance : share of the largest magnitude of an eigenvalue that counts as zero; max(n, d)·eps by default

    Raises
    ------
    DataError
        X or the matrix is not of the right shape, or not finite.
    PlanTooLargeError
        The matrix would take more than 8 GB.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, Sigmoid, check_positive_definite
    >>> X = np.random.RandomState(0).normal(size=(50, 3))
    >>> check_positive_definite(Gaussian(sigma=1.0), X).positive_definite
    True
    >>> check_positive_definite(Sigmoid(gamma=1.0, coef0=-1.0), X).positive_definite
    False
    """
    X = np.asarray(X, np.float64)
    if X.ndim != 2 or not X.size:
        raise DataError(f"X: expected rows (n, d), n at least 1, found an array of shape {X.shape}")
    if 8 * len(X) ** 2 > LIMIT_BYTES:
        raise PlanTooLargeError(
            f"X: the Gram matrix of {len(X):,} rows would take {8e-9 * len(X) ** 2:,.0f} GB; pass a sample of a few "
            "thousand rows"
        )
    if not np.isfinite(X).all():
        raise DataError(f"X: row {int(np.argmin(np.isfinite(X).all(axis=1)))} contains NaN or infinity")
    if tolerance is not None and not 0 <= tolerance < np.inf:
        raise ConfigError(f"tolerance: expected a finite number of at least 0, found {tolerance!r}")
    kernel = as_kernel(kernel) if isinstance(kernel, str) else kernel
    K = _gram(kernel, X) if isinstance(kernel, Kernel) else np.asarray(kernel(X, X), np.float64)
    if K.shape != (len(X), len(X)):
        raise DataError(f"kernel: expected a matrix of shape ({len(X)}, {len(X)}), found {K.shape}")
    if not np.isfinite(K).all():
        row = int(np.argmin(np.isfinite(K).all(axis=1)))
        raise DataError(f"kernel: row {row} of its Gram matrix is not finite")
    largest = float(np.abs(K).max())
    asymmetry = float(np.abs(K - K.T).max()) / (largest or 1.0)
    values = linalg.eigvalsh((K + K.T) / 2)[::-1]
    rounding = max(X.shape) * float(np.finfo(np.float64).eps)
    return GramSpectrum(values, asymmetry, rounding if tolerance is None else tolerance)


def _gram(kernel: Kernel, X: Array) -> Array:
    """Compute k(X, X) with distances from differences of rows, accurate also for rows that nearly coincide."""
    kernel = kernel.resolve(X)
    if not kernel.of_distance or isinstance(kernel, Laplacian):
        return kernel(X)
    gamma, lengths = kernel.widths()
    scaled = X if lengths is None else X / lengths
    out: Array = np.maximum(-gamma * cdist(scaled, scaled, "sqeuclidean"), -1e300)
    kernel.finish(out)
    return out


def negative_mass(values: Array, tolerance: float) -> float:
    """Compute the share of Σ|λ| in eigenvalues below −tolerance times the largest |λ|."""
    size = np.abs(values)
    below = values < -tolerance * size.max(initial=0.0)
    return float(size[below].sum() / max(float(size.sum()), 1e-300))


def negative_note(values: Array, kernel: str, *, tolerance: float | None = None) -> str:
    """Describe the negative part of a kernel matrix with these eigenvalues; "" if there is none."""
    tolerance = len(values) * float(np.finfo(np.float64).eps) if tolerance is None else tolerance
    mass = negative_mass(values, tolerance)
    if not mass:
        return ""
    kept = int(np.sum(values > tolerance * np.abs(values).max()))
    return (
        f"{kernel} kernel: the kernel matrix is not positive semi-definite; dropping its negative eigenvalues "
        f"({mass:.1%} of the sum of absolute values), keeping {kept} of {len(values)} directions"
    )
