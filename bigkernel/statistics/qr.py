"""The R factor of a QR factorisation of weighted rows: the content of moments, without squaring the condition.

    √W [1, Φ − a, Y − b] = QR,   RᵀR = Σ w (1, φ − a, y − b)ᵀ(1, φ − a, y − b),
R (q, q) is upper triangular with a non-negative diagonal, q = 1 + p + c. Two triangles merge by factoring one stacked
on the other, so that R adds up as moments do, with the rounding of the columns (Golub & Van Loan 2013, §5.2). The
column of ones comes first: without its first row and column, R is that of centred columns. Multiples of the first row
change the points a (p,) and b (c,).

Shapes: p columns of the map, c targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.blas import add_rows
from bigkernel.statistics.moments import GroupedBlocks
from bigkernel.statistics.statistic import Shapes, add
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint

MOST_COLUMNS = 4096  # largest q: 134 MB per R, and 2 q² float64 flops per row


@dataclass(frozen=True, eq=False)
class QRStatistic(GroupedBlocks):
    """R of the labelled rows, with their `rows`, `n` = Σw, and `t`, `q` of the targets as in moments.

    Blocks have the dtype of the (single) map; they are factored in float64.
    """

    @property
    def side(self) -> int:
        """q, the number of rows and columns of R."""
        return 1 + self.features.width + self.n_targets

    def shapes(self) -> Shapes:
        return {**super().shapes(), "R": (self.side, self.side)}

    def merge(self, a: Accumulator, b: Accumulator, *, consume: bool = False) -> Accumulator:
        sums = {name: values for name, values in a.items() if name != "R"}
        # the R factor of one triangle stacked on the other; all else are sums
        return {**add(sums, b, consume=consume), "R": add_rows(a["R"], b["R"], triangular=True)}

    def footprint(self, block_rows: int) -> Footprint:
        p, q = self.features.width, self.side
        # the spare columns of a row, and it twice in float64; triangles while they are factored
        row_bytes, work = (self.wide - p) * self.features.dtype.itemsize + 16 * q, 8 * (3 * q * q + 64 * q)
        cost = self.block_cost(block_rows, flops=2 * q * q, row_bytes=row_bytes, work_bytes=work)
        return replace(cost, shared_bytes=self.features.cost.fixed_bytes)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        p, q = self.features.width, self.side
        (index,) = self._split(chunk)
        for block in chunk.blocks(index):
            for rows in self._blocks(total, 0, chunk, block):
                with chunk.work.stage("gram"):
                    rows = chunk.work.device.to_host(rows)
                    wide = chunk.on_host().work.buffer("wide", (len(rows), q), np.float64)
                    # ones come first, and [Φ, Y] after them
                    wide[:, 0], wide[:, 1 : 1 + p], wide[:, 1 + p :] = rows[:, q - 1], rows[:, :p], rows[:, p : q - 1]
                    total["R"] = add_rows(total["R"], wide)


def shift_columns(R: Array, columns: Array | None, targets: Array | None = None) -> Array:
    """Return R of φ − a + `columns` (p,) and y − b + `targets` (c,); None: 0."""
    # the first row is √n (1, mean of φ − a, mean of y − b)
    out, p = R.copy(), 0 if columns is None else len(columns)
    if columns is not None:
        out[0, 1 : 1 + p] += R[0, 0] * columns
    if targets is not None:
        out[0, len(R) - len(targets) :] += R[0, 0] * targets
    return out


def select_columns(R: Array, columns: Array, width: int) -> Array:
    """Return R of some (k,) of the `width` columns of the map."""
    kept = R[:, np.concatenate([[0], 1 + columns, np.arange(1 + width, len(R))])]
    return add_rows(np.zeros((kept.shape[1], kept.shape[1])), kept)


@dataclass(frozen=True, eq=False)
class FactoredRows:
    """A few rows with the same normal equations as all rows, so that least squares on them solves that on all."""

    # (k, p) and (k, c), less their means where centred
    columns: Array
    targets: Array
    # (p,) of the columns about 0, and (c,) of the targets as factored
    mean: Array
    target_mean: Array
    n: float  # Σw
    lengths: Array  # (p,) norms of the columns as factored

    @classmethod
    def of(cls, R: Array, shift: Array | None, width: int, *, centred: bool) -> FactoredRows:
        """Build the rows from R about `shift` (p,), None: 0; less their means if `centred`."""
        lengths, R = np.linalg.norm(R[:, 1 : 1 + width], axis=0), shift_columns(R, shift)
        # the rows below the first are those of columns about their means
        means = R[0, 1:] / max(float(R[0, 0]), 1e-300)
        rows = R[1:, 1:] if centred else R[:, 1:]
        n = float(R[0, 0]) ** 2
        return cls(rows[:, :width], rows[:, width:], means[:width], means[width:], n, lengths)
