"""Penalties of the targets, one for all or one for each: what is solved together, and what is known of it after.

Shapes: c targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError
from bigkernel.solvers.residuals import Certificates

Array = NDArray[Any]
Columns = slice | Array
Solve = Callable[[float, Columns, Certificates | None], tuple[Array, ...]]


def by_penalty(alpha: float | Array, count: int, certificates: Certificates | None, solve: Solve) -> tuple[Array, ...]:
    """Solve for the targets of each penalty together.

    Parameters
    ----------
    alpha : a number, or one for each of the `count` targets
    certificates : take what the solves have met, the worst of each figure
    solve : from a penalty and the places of its targets to arrays whose last axis these are

    Raises
    ------
    DataError
        Not as many penalties as targets.
    """
    if np.ndim(alpha) == 0:
        return solve(float(alpha), slice(None), certificates)
    alphas = np.asarray(alpha, np.float64)
    if alphas.shape != (count,):
        raise DataError(f"alpha: expected a number, or one for each of {count} targets, found {len(alphas)} of them")
    joined: list[Array] = []
    for value in np.unique(alphas):
        columns, own = np.flatnonzero(alphas == value), Certificates()
        parts = solve(float(value), columns, None if certificates is None else own)
        joined = joined or [np.zeros((*part.shape[:-1], count)) for part in parts]
        for whole, part in zip(joined, parts, strict=True):
            whole[..., columns] = part
        if certificates is not None:
            certificates.take_worst(own)
    return tuple(joined)


def require_alpha(alpha: Any) -> None:
    """Raise `ConfigError` unless alpha is a finite number of at least 0, or a list of such."""
    try:
        given = np.asarray(alpha)
    except ValueError:  # rows of different lengths
        given = np.asarray(None)
    if given.ndim > 1 or not given.size or given.dtype.kind not in "iuf":
        raise ConfigError(f"alpha: expected a number, or one for each target, found {alpha!r}")
    if not np.isfinite(given).all() or given.min() < 0:
        raise ConfigError(f"alpha: expected a finite number of at least 0, found {alpha!r}")
