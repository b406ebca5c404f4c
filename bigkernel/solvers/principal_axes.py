"""Principal axes of rows from their moments: the directions of largest variance.

Shapes: d features, r axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.whitening import positive_part, top_eigen
from bigkernel.statistics.moments import Moments

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Axes of rows about their mean."""

    mean: Array  # (d,)
    axes: Array  # (r, d), of unit length, at right angles
    variances: Array  # (r,), falling, above rounding
    total: float  # the variances of all directions together


def principal_axes(moments: Moments, count: float | None) -> PrincipalAxes:
    """The leading axes of the rows whose moments, about a point near their mean, are given.

    The sign of an axis is that which makes its largest coordinate positive.

    Parameters
    ----------
    moments : of φ(x) = x
    count : a whole number of axes; a share below 1 of the variance that they hold together at least; None: all.
        Never more than have a variance above rounding.
    """
    mean = moments.s / moments.n
    S = moments.G / moments.n - np.outer(mean, mean)
    total = float(np.trace(S))
    wanted = len(S) if count is None or count < 1 else int(count)
    values, vectors = positive_part(*top_eigen(S, wanted))
    if count is not None and count < 1:
        kept = int(np.searchsorted(np.cumsum(values), count * total)) + 1
        values, vectors = values[:kept], vectors[:, :kept]
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(len(values))])
    shift = 0.0 if moments.shift is None else moments.shift
    return PrincipalAxes(mean + shift, (vectors * signs).T, values, total)
