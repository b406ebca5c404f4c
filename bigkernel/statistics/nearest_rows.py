"""The rows that lie nearest to some points: what a prediction of these points can be compared with.

Shapes: n rows, q points, k rows kept of each, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class NearestRows:
    """The k labelled rows nearest to each of q points; unlabelled rows are left out.

    Accumulates `distance` (q, k), ‖x − point‖ in rising order, and `row` (q, k), the ids of these rows. Rows are
    ordered by distance, then by id, so that the same k are kept however the rows are cut. Places that no row takes
    have the distance +∞ and the row −1. Distances come from differences in float64: equal rows are at 0.

    Attributes
    ----------
    points : (q, d) float64, as the rows are after their row maps
    targets : which rows are labelled
    keep : k
    """

    points: Array
    targets: Targets
    keep: int

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        shape = len(self.points), self.keep
        return {"distance": np.full(shape, np.inf), "row": np.full(shape, -1.0)}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """See `Statistic`."""
        return self._nearest(*(np.concatenate([a[name], b[name]], axis=1) for name in ("distance", "row")))

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        q, d = self.points.shape
        # of a row: itself, its difference to a point, and its distances with what orders them
        work = self.points.nbytes + 8 * block_rows * (2 * d + 4 * q)
        return Footprint(3.0 * q * d, 16 * q * self.keep, work + 64 * q * self.keep)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        assert chunk.y is not None
        q, d = self.points.shape
        for block in chunk.blocks(np.flatnonzero(self.targets.labelled(chunk.y, chunk.start))):
            x = chunk.load(block, d, np.float64)
            with chunk.work.stage("add"):
                difference = chunk.work.buffer("difference", x.shape, np.float64)
                squares = chunk.work.buffer("squares", (len(x), q), np.float64)
                for place, point in enumerate(self.points):
                    np.subtract(x, point, out=difference)
                    np.einsum("ij,ij->i", difference, difference, out=squares[:, place])
                ids = np.arange(chunk.start, chunk.start + len(chunk), dtype=np.float64)[block]
                found = np.sqrt(squares.T), np.broadcast_to(ids, (q, len(ids)))
                both = (np.concatenate([total[name], new], axis=1) for name, new in zip(total, found, strict=True))
                total.update(self._nearest(*both))

    def _nearest(self, distance: Array, row: Array) -> Accumulator:
        order = np.lexsort((row, distance), axis=1)[:, : self.keep]
        return {name: np.take_along_axis(of, order, 1) for name, of in (("distance", distance), ("row", row))}
