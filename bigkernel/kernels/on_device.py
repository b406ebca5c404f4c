"""Operations on m×m matrices of a solve that a device does, if the matrices are large and there is one.

A solve factors two or three matrices, and then multiplies and solves with a few columns tens of times, which reads the
whole matrix each time. The matrices stay NumPy's; a copy of each goes to the device when it is first used in a block of
`solving_on`, and stays until that ends or three others are used, so that columns alone go up and down. Only what is
constant meanwhile may be `placed`. Shapes: A (m, m), columns C (m, c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array
from bigkernel.streaming.devices import HOST, Device

DEVICE_ORDER = 4000  # least order of matrices that are worth their copy to a device
_HELD = 3  # matrices at a time: core with its factor, G, and the factor of G + αK
_PANEL = 1024  # columns of a panel of a triangle, whose corner is copied


@dataclass(frozen=True)
class _Solve:
    find: Callable[[], Device]
    # by the identity of the original, which it keeps alive
    copies: dict[int, tuple[Array, Array]] = field(default_factory=dict)


_solve: ContextVar[_Solve | None] = ContextVar("bigkernel_solve", default=None)


@contextmanager
def solving_on(find: Callable[[], Device]) -> Iterator[None]:
    """Let the device that `find` returns work on large matrices within the block, and forget its copies afterwards."""
    token = _solve.set(_Solve(find))
    try:
        yield
    finally:
        _solve.reset(token)


def device_for(order: int) -> Device:
    """Return the device for matrices of this order: that of the block, or the host."""
    return HOST if order < DEVICE_ORDER or (current := _solve.get()) is None else current.find()


def placed(A: Array) -> Array | None:
    """Return the copy of a matrix on the device; None: the host works on it."""
    device, current = device_for(len(A)), _solve.get()
    if current is None or device is HOST:
        return None
    held = current.copies.pop(id(A), None)
    if held is None:
        while len(current.copies) >= _HELD:  # those that were used longest ago give way
            del current.copies[next(iter(current.copies))]
        held = A, device.array(A)
    current.copies[id(A)] = held
    return held[1]


def of_columns(function: Callable[[Array], Array], C: Array) -> Array:
    """Return what a function of columns on the device gives, for columns of the host."""
    current = _solve.get()
    assert current is not None
    device = current.find()
    return device.to_host(function(device.array(C)))


def cholesky(A: Array, least: float = 0.0) -> Array | None:
    """Return L (m, m) of the host with A = LLᵀ, of which the lower triangle is read; None: a pivot is below `least`."""
    device = device_for(len(A))
    try:
        lower = device.to_host(device.xp.linalg.cholesky(device.array(A)))
    except Exception as error:
        if "LinAlgError" not in type(error).__name__:  # of the library
            raise
        return None
    pivots = np.diagonal(lower) ** 2  # NaN of libraries that do not raise
    return lower if pivots.min(initial=np.inf) > least else None


def solve_triangle(A: Array, C: Array, *, lower: bool, transposed: bool = False) -> Array:
    """Compute A⁻¹C or A⁻ᵀC on the device from one triangle of A."""
    xp = device_for(A.shape[0]).xp
    solve = getattr(xp.linalg, "solve_triangular", None)
    if solve is None:  # the standard has none
        triangle = xp.tril(A) if lower else xp.triu(A)
        solved: Array = xp.linalg.solve(triangle.T if transposed else triangle, C)
    else:
        solved = solve(A.T if transposed else A, C, upper=lower == transposed)
    return solved


def times_triangle(A: Array, C: Array, *, lower: bool, transposed: bool = False, strict: bool = False) -> Array:
    """Compute AC or AᵀC on the device from one triangle of A, without its diagonal if `strict`."""
    xp, m = device_for(A.shape[0]).xp, A.shape[0]
    if transposed:
        A, lower = A.T, not lower
    out: Array = xp.zeros_like(C)
    for i in range(0, m, _PANEL):
        j = min(i + _PANEL, m)
        corner, rest = A[i:j, i:j], slice(0, i) if lower else slice(j, m)
        corner = xp.tril(corner, k=-strict) if lower else xp.triu(corner, k=int(strict))
        out[i:j, :] = corner @ C[i:j, :] + A[i:j, rest] @ C[rest, :]
    return out
