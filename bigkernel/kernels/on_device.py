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
from dataclasses import dataclass
from functools import cache

import numpy as np

from bigkernel.arrays import Array
from bigkernel.streaming.devices import HOST, Device

DEVICE_ORDER = 4000  # least order of matrices that are worth their copy to a device
_HELD = 3  # matrices at a time: core with its factor, G, and the factor of G + αK
_PANEL = 1024  # columns of a panel of a triangle, whose corner is copied


@dataclass(frozen=True, eq=False)
class Placed:
    """A copy of A on a device; columns, and what is returned, are the host's."""

    original: Array
    device: Device
    copy: Array

    def times(self, C: Array) -> Array:
        """Compute AC."""
        return self.device.to_host(self.copy @ self.device.array(C))

    def solve_triangle(self, C: Array, *, lower: bool, transposed: bool = False) -> Array:
        """Compute A⁻¹C or A⁻ᵀC from one triangle of A."""
        xp, A, right = self.device.xp, self.copy, self.device.array(C)
        if (solve := getattr(xp.linalg, "solve_triangular", None)) is None:  # the standard has none
            A, solve = xp.tril(A) if lower else xp.triu(A), lambda A, right, upper: xp.linalg.solve(A, right)
        return self.device.to_host(solve(A.T if transposed else A, right, upper=lower == transposed))

    def times_triangle(self, C: Array, *, lower: bool, transposed: bool = False, strict: bool = False) -> Array:
        """Compute AC or AᵀC from one triangle of A, without its diagonal if `strict`."""
        xp, right, m = self.device.xp, self.device.array(C), len(C)
        A, lower = (self.copy.T, not lower) if transposed else (self.copy, lower)
        out = xp.zeros_like(right)
        for i in range(0, m, _PANEL):
            j = min(i + _PANEL, m)
            rest = slice(0, i) if lower else slice(j, m)
            corner = xp.tril(A[i:j, i:j], k=-strict) if lower else xp.triu(A[i:j, i:j], k=int(strict))
            out[i:j, :] = corner @ right[i:j, :] + A[i:j, rest] @ right[rest, :]
        return self.device.to_host(out)


_solve: ContextVar[tuple[Callable[[], Device], dict[int, Placed]] | None] = ContextVar("bigkernel_solve", default=None)


@contextmanager
def solving_on(find: Callable[[], Device]) -> Iterator[None]:
    """Let the device that `find` returns work on large matrices within the block, and forget its copies afterwards."""
    token = _solve.set((cache(find), {}))
    try:
        yield
    finally:
        _solve.reset(token)


def device_for(order: int) -> Device:
    """Return the device for matrices of this order: that of the block, or the host."""
    return HOST if order < DEVICE_ORDER or (current := _solve.get()) is None else current[0]()


def placed(A: Array) -> Placed | None:
    """Return the copy of a matrix on the device; None: the host works on it."""
    device, current = device_for(len(A)), _solve.get()
    if current is None or device is HOST:
        return None
    held, copies = current[1].pop(id(A), None), current[1]
    if held is None:
        while len(copies) >= _HELD:  # those that were used longest ago give way
            del copies[next(iter(copies))]
        held = Placed(A, device, device.array(A))
    copies[id(A)] = held
    return held


def cholesky(A: Array, least: float = 0.0) -> Array | None:
    """Return L (m, m) of the host with A = LLᵀ, of which the lower triangle is read; None: a pivot is below `least`."""
    device = device_for(len(A))
    try:
        lower = device.to_host(device.xp.linalg.cholesky(device.array(A)))
    except Exception as error:
        if "LinAlgError" not in type(error).__name__:  # of the library
            raise
        return None
    # NaN of libraries that do not raise
    return lower if (np.diagonal(lower) ** 2).min(initial=np.inf) > least else None
