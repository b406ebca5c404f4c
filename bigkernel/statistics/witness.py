"""The witness of a sweep: what the rounding of its Gram matrix does to a few vectors, seen beside the rows.

A Gram matrix G = Σ w bbᵀ that is multiplied in the dtype of the blocks, and summed in it over some thousand rows, is
G + E with a rounding E that nobody sees afterwards. The witness carries k vectors v past the rows: u = Σ w b (bᵀv) in
float64 keeps √κ more digits than Gv, because |bᵀv| is of order one where v = Tz whitens the block, and so Ev = Gv − u.
What that means for a solution is in `solvers.accuracy`. Not every row needs to be seen: the errors of sums are alike,
and windows of rows are drawn by the hash of where they begin, the same in every process.

Shapes: b rows of a block, p columns of the map, k vectors, K blocks of the same rows; the column of ones goes with
them, because moments are summed about a shift a (p,) of the columns and taken back to 0 by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.feature_maps import FeatureMap

WITNESSED = ("E", "seen")  # what the witness adds to the moments
WITNESS_BYTES = 2**21  # of its float64 copies of some rows and columns
_STRIP_NUMBERS = 2**17  # of such a copy: it stays in cache
_MIX = 0x9E3779B97F4A7C15  # 2⁶⁴/φ: spreads whole numbers over all bits
_SLOWNESS = 25  # of the float64 products of a few vectors, against float32 ones of matrices
_SHARE = 0.01  # of the time of a sweep, that seeing it may take
_LEAST_WINDOWS = 2  # about so many are seen: each has k vectors for every column


@dataclass(frozen=True, eq=False)
class Witness:
    """Vectors that see the rounding of a Gram matrix."""

    # v, (K, p, k) float64; no part of what a run is known by, for other processors round them otherwise; see
    # `data.fingerprint.NOT_COMPARED`
    vectors: Array = field(metadata={"identity": False})
    every: int = 1  # one window of rows in so many is seen

    def sees(self, start: int, window: int) -> bool:
        """True for the windows that are seen: number `window` of the rows from `start`; the first of all is."""
        return start == window == 0 or ((start + window + 1) * _MIX % 2**64 >> 32) % self.every == 0

    def views(self, start: int, window: int, features: FeatureMap, place: int) -> list[View]:
        """What sees a window, for every block of the features; nothing of most. `place` is the column of the ones."""
        if not self.sees(start, window):
            return []
        return [View(vectors, features.about(number), place) for number, vectors in enumerate(self.vectors)]


def windows_to_skip(flops_per_row: float, size: int, windows: int) -> int:
    """One window in how many is seen, for a small share of the time of rows of so many flops; `size`: K·p·k."""
    affordable = -(-4 * size * _SLOWNESS // max(int(_SHARE * flops_per_row), 1))
    return int(max(1, min(affordable, windows // _LEAST_WINDOWS)))


class View:
    """What vectors (p, k) see of one window of rows [Φ, Y, 1, 0], weighted by √w and about `shift` (p,) or None.

    `place` is the column of the ones.
    """

    def __init__(self, vectors: Array, shift: Array | None, place: int) -> None:
        self._shift = np.zeros(len(vectors)) if shift is None else shift.astype(np.float64)
        self._place = place
        # b + a = (b, 1)(I; aᵀ)
        self._vectors = np.vstack([vectors, self._shift[None] @ vectors])
        self._seen = np.zeros(self._vectors.shape)
        self._step = max(8, _STRIP_NUMBERS // max(len(vectors), 1))  # rows of a strip

    def look(self, rows: Array) -> None:
        """See a block (b, wide): Σ b (bᵀv), in float64."""
        V, seen, p = self._vectors, self._seen, len(self._shift)
        for start in range(0, len(rows), self._step):
            strip = rows[start : start + self._step, :p].astype(np.float64)
            one = rows[start : start + self._step, self._place].astype(np.float64)
            values = strip @ V[:p]
            values += one[:, None] * V[p]
            seen[:p] += strip.T @ values
            seen[p] += one @ values

    def rounding_of(self, gram: Array) -> Array:
        """Ev (p, k) about 0, of the window whose matrix [Φ, Y, 1]ᵀ[Φ, Y, 1] has this upper triangle."""
        V, p, last = self._vectors, len(self._shift), self._place
        product = np.zeros((p, V.shape[1]))  # Gv
        for i in range(0, p, self._step):
            j = min(i + self._step, p)
            strip = np.empty((j - i, p - i))
            strip[:, j - i :] = gram[i:j, j:p]
            strip[:, : j - i] = np.triu(gram[i:j, i:j])  # below the diagonal may stand anything
            product[i:j] += strip @ V[i:p]
            strip[:, : j - i] = np.triu(strip[:, : j - i], 1)
            product[i:] += strip.T @ V[i:j]
        sums = gram[:p, last].astype(np.float64)
        error = product + sums[:, None] * V[p] - self._seen[:p]
        of_ones: Array = sums @ V[:p] + float(gram[last, last]) * V[p] - self._seen[p]
        return np.asarray(error + self._shift[:, None] * of_ones)
