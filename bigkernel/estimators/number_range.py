"""Sums and solutions that leave the range of float64: refused by name, where they would become NaN, zero or nonsense.

Sums are computed with overflow ignored (a square of 1e200 is infinite) and looked at here once they are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import BigKernelError, DataError

Array = NDArray[Any]
T = TypeVar("T")
_TINY = float(np.finfo(np.float64).tiny)
_NARROW = float(np.finfo(np.float32).tiny)


def require_targets(y: Array) -> None:
    """Refuse targets so small that float32, in which a sweep may sum them, takes them for zeros."""
    largest = float(np.abs(y).max(initial=0, where=np.isfinite(y)))
    if 0 < largest < _NARROW:
        raise DataError(f"y: the largest target is {largest:.2g}, too small for float32 sums; scale the targets")


def require_squares(name: str, squares: Array, sums: Array) -> None:
    """Refuse sums of squares, (c,), that have left the range; `sums`, (…, c): what is not 0 where values are not."""
    with np.errstate(invalid="ignore"):
        large = not (np.isfinite(squares).all() and np.isfinite(sums).all())
        lost = (squares < _TINY) & (np.abs(sums).reshape(-1, len(squares)).max(axis=0, initial=0) > 0)
    if large or lost.any():
        what, how = "the targets" if name == "y" else "the rows", "large" if large else "small"
        raise DataError(
            f"{name}: squares of its values leave the range of float64; scale {what}, which are too {how} for them"
        )


def require_row_squares(squares: Array, sums: Array, shift: Array, n: float) -> None:
    """Do `require_squares` for the rows X, from sums (d,) of x − shift over n rows."""
    with np.errstate(over="ignore"):
        require_squares("X", squares + n * shift**2, np.vstack([sums, shift]))


def require_sums(statistics: Mapping[str, Array]) -> None:
    """Refuse moments (`statistics.moments`) that have left the range."""
    G, C, s, t, q = (statistics[name] for name in ("G", "C", "s", "t", "q"))
    if not (np.isfinite(G).all() and np.isfinite(s).all()):
        raise DataError("X: sums of its kernel values leave the range of float64; scale the rows")
    for squares, cross, total in zip(q, C, t, strict=True):
        require_squares("y", squares, np.vstack([cross, total[None]]))


@contextmanager
def solving(method: Any) -> Iterator[None]:
    """Solve within the block: a factorisation that breaks down is a `DataError` that says what to do."""
    try:
        with np.errstate(all="ignore"):  # `finite` looks at what comes out
            yield
    except BigKernelError:
        raise
    except (np.linalg.LinAlgError, ValueError, OverflowError) as error:  # SciPy's: singular, or not finite; Python's
        raise DataError(_advice(method, f"a factorisation broke down: {error}")) from error


def finite(method: Any, solution: T) -> T:
    """Return a solution (a dataclass); `DataError` where an array of it is not finite."""
    for field in fields(solution):  # type: ignore[arg-type]
        value = getattr(solution, field.name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise DataError(_advice(method, f"{field.name} has numbers beyond its range"))
    return solution


def _advice(method: Any, what: str) -> str:
    return (
        f"{method.name}: its equations cannot be solved in float64 with "
        f"alpha={method.alpha!r} ({what}); take an alpha nearer to 1, or scale rows and targets"
    )
