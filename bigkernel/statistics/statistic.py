"""The base of everything that a sweep sums up.

A statistic says which arrays a total has (`shapes`), what a chunk of rows adds to them (`update`), and what that costs
(`footprint`). From the shapes follow the total of no rows, the sum of two totals and their bytes. Where totals do not
add up, the statistic says how two of them merge, and where the total of all rows is incomplete, how it is finished.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from bigkernel.arrays import Index
from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint

Shapes = dict[str, tuple[int, ...]]  # of the arrays of a total, by name


def add(a: Accumulator, b: Accumulator, *, consume: bool = False) -> Accumulator:
    """Add two totals; `consume`: in the memory of `a`, since to allocate it may cost more than the sums."""
    return {name: np.asarray(np.add(own, b[name], out=own if consume else None)) for name, own in a.items()}


class Statistic(ABC):
    """A statistic that a sweep accumulates: a commutative monoid over chunks of rows, and plain data.

    A total is a dict of float64 arrays, so that all totals are added, stored and sent in the same way. A statistic is a
    frozen dataclass of dataclasses, arrays, numbers and names: its fields are what a resumed run compares, except those
    marked `NOT_COMPARED`, and large arrays among them are sent to each worker once.
    """

    prepares: ClassVar[bool] = False  # whether it takes little time beside the sweep that follows, which a pilot times
    writes: ClassVar[bool] = False  # whether it writes whole chunks of rows

    @abstractmethod
    def shapes(self) -> Shapes:
        """Return the shapes of the arrays of a total, the largest where they grow with the rows."""

    @abstractmethod
    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """Add a chunk to `total`, in place."""

    @abstractmethod
    def footprint(self, block_rows: int) -> Footprint:
        """Return the cost in flops and bytes."""

    def zero(self) -> Accumulator:
        """Return the total of no rows."""
        return {name: np.zeros(shape) for name, shape in self.shapes().items()}

    def merge(self, a: Accumulator, b: Accumulator, *, consume: bool = False) -> Accumulator:
        """Return the total of the rows of both, those of `a` first.

        Neither is changed, since a task's inputs may be used again, unless nobody else holds them: `consume`.
        """
        return add(a, b, consume=consume)

    def finish(self, total: Accumulator) -> Accumulator:
        """Complete the total of all rows."""
        return total

    @property
    def partial_bytes(self) -> int:
        """The bytes of a total."""
        return 8 * sum(math.prod(shape) for shape in self.shapes().values())


class BlockStatistic(Statistic):
    """Base of statistics of blocks of features."""

    features: FeatureMap

    def block_cost(self, block_rows: int, *, flops: float, row_bytes: int, work_bytes: int = 0) -> Footprint:
        """Return the footprint from the statistic's own flops and bytes per row, and its bytes per task."""
        cost = self.features.cost
        work = cost.fixed_bytes + block_rows * (cost.row_bytes + row_bytes) + work_bytes
        return Footprint(cost.flops_per_row + flops, self.partial_bytes, work)


class RowSample(Statistic):
    """Base of statistics that keep numbers of some rows, in arrays with the rows along the first axis."""

    def zero(self) -> Accumulator:
        return {name: np.zeros((0, *tail)) for name, (_, *tail) in self.shapes().items()}

    def merge(self, a: Accumulator, b: Accumulator, *, consume: bool = False) -> Accumulator:
        return self.keep(a, b)

    def keep(self, *totals: Accumulator) -> Accumulator:
        """Join totals end to end, and keep the rows that are chosen among all of them."""
        rows = {name: np.concatenate([total[name] for total in totals]) for name in totals[0]}
        chosen = self.chosen(rows)
        return {name: values[chosen] for name, values in rows.items()}

    def chosen(self, rows: Accumulator) -> Index:
        """Return which of the joined rows are kept, and in which order; here all as they are."""
        return slice(None)
