"""The cost of a fit before it runs: by sums of m×m, or by conjugate gradients, and with which preconditioner.

Counted in products of float32 numbers, of which float64 ones take twice as long; k(x, z) takes about twenty beside its
2d. Shapes: n rows, d features, m landmarks, c targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array

AUTO_LEAST = 4096  # landmarks below which the sums, which more rows and another alpha go on from, are worth their cost
CORE_BYTES = 2**32  # of the core that is kept; beyond, it is made again for each product
FACTOR_BYTES = 2**33  # of the factors of a whole grid of penalties, one for each decade
WIDE = 16_384  # landmarks from which float64 factors would take more than 2 GB
SHARES = (4, 6, 8, 12, 16)  # rows of the sub-sample a landmark
PACE = 0.75  # a step divides the excess by about so much of that number, as measured
MOST_OF_ROWS = 0.5  # of the rows in a sub-sample; beyond, it is a direct fit in disguise
SAMPLE_BYTES = 2**30  # of the rows of the sub-sample
FALKON_PACE = 1.7  # with factors of the core
_KERNEL = 20.0  # operations of a kernel value beside the product
_WIDE = 2.0  # float64 against float32
_SOLVE = 3.5  # m³ of whitening, solving and telling the errors, as measured
_NARROW = 5000  # landmarks beyond which float32 sums seldom keep what is promised, so that they are float64


@dataclass(frozen=True)
class PreconditionerChoice:
    """`rows` of a sub-sample, or 0: factors of the core; and the sweeps that are expected."""

    rows: int
    sweeps: int
    flops: float


def preconditioner_itemsize(m: int) -> int:
    """Give the bytes of a number of FALKON's factors: beyond `WIDE` landmarks float32, which serves as well."""
    return 4 if m >= WIDE else 8


def decades(alphas: Array) -> tuple[list[float], Array]:
    """Merge penalties within a decade of each other into one, rising; and say which is for each of alphas (columns,).

    Examples
    --------
    >>> decades(np.array([1.0, 100.0, 4.0]))
    ([2.0, 100.0], array([0, 1, 0]))
    """
    groups: list[list[float]] = []
    for alpha in np.unique(alphas):
        if groups and alpha <= 10.1 * groups[-1][0]:
            groups[-1].append(float(alpha))
        else:
            groups.append([float(alpha)])
    which = [next(place for place, group in enumerate(groups) if alpha in group) for alpha in alphas.tolist()]
    return [group[0] if len(group) == 1 else math.sqrt(group[0] * group[-1]) for group in groups], np.array(which)


def driver_bytes(m: int, choice: PreconditionerChoice | None, factors: int = 1) -> int:
    """Bound the memory that m×m arrays take on the driver at once, about; `None`: of a direct fit."""
    if choice is None:
        # sums as they are merged, a factor of the core, rotated moments, the same centred, and factored
        return 8 * 8 * m * m
    # beside the factors the sums of a block, or a float64 factor of the core that tells what is lost to rounding
    made = (factors * (8 if choice.rows else preconditioner_itemsize(m)) + 8) * m * m
    return made + (8 * m * m if 8 * m * m <= CORE_BYTES else 0)


def sweep_flops(n: float, d: int, m: int, c: int) -> float:
    """Count the flops of one product of the normal matrix with c vectors."""
    return n * m * (2 * d + _KERNEL + _WIDE * 4 * c)


def direct_flops(n: float, d: int, m: int, *, float64: bool = False) -> float:
    """Count the flops of a direct fit, with float64 sums where many landmarks call for it; `float64`: rows are in it.

    The error that float32 sums cause in predictions grows about threefold with twice the landmarks: 3e-5, 8e-5, 3e-4
    and 1e-3 at m = 1,000, 2,000, 4,000 and 8,000 (200,000 deformed digits, σ = 0.6, α = 0.1).
    """
    gram = _WIDE if m > _NARROW and not float64 else 1.0
    return n * m * (gram * m + 2 * d + _KERNEL) + _WIDE * _SOLVE * float(m) ** 3


def solve_flops(m: int) -> float:
    """Count the flops of one more solve from the same sums."""
    return _WIDE * float(m) ** 3 / 3


def choose_preconditioner(
    n: int, d: int, m: int, c: int, tol: float, trained: float | None = None
) -> PreconditionerChoice:
    """Choose the preconditioner whose fit is expected to be the sooner, to an excess of `tol`.

    `trained` : rows of each of several training sets that it serves, which differ from it as draws of so many rows do.
    """
    # pace of each sub-sample, or 0 rows: of factors of the core; sweeps beside the steps; and flops of its making
    core = _WIDE * (float(m) ** 2 * (2 * d + _KERNEL) + float(m) ** 3)
    options = [(0, FALKON_PACE, 2, core)]
    for share in SHARES:
        if share * m <= MOST_OF_ROWS * n and 8 * share * m * d <= SAMPLE_BYTES:
            pace = PACE / (1 / share + (0.0 if trained is None else m / trained))
            gram = share * m * m * (_WIDE * m + 2.0 * d + _KERNEL) + _WIDE * float(m) ** 3 / 3
            # one sweep more draws the rows by leverage, which the factors of the core estimate
            options.append((share * m, pace, 3, core + gram))
    choices = []
    for rows, pace, others, flops in options:
        sweeps = others + max(1, math.ceil(math.log(1 / tol) / math.log(pace)))
        choices.append(PreconditionerChoice(rows, sweeps, flops + sweeps * sweep_flops(n, d, m, c)))
    return min(choices, key=lambda choice: choice.flops)
