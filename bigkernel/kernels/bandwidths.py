"""A bandwidth from the distances between landmarks, for estimators that take one setting to any data.

The median of the squared distances tells how far rows are from one another whatever their number of features; "scale"
of `kernels` tells their variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist

from bigkernel.arrays import Array
from bigkernel.kernels.functions import Gaussian

SHARE = 0.7
MOST_POINTS = 2048  # whose pairs are looked at


def median_width(Z: Array, *, share: float = SHARE) -> float:
    """σ = share·√(median ‖z − z'‖²) over the pairs of different landmarks Z (m, d); 1 where there is no such pair.

    Of more than 2,048 landmarks, as many are looked at, evenly spaced in their order.

    Examples
    --------
    >>> median_width(np.array([[0.0], [1.0], [3.0]]), share=1.0)
    2.0
    """
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
