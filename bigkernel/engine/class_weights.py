"""Weights of rows by their class: a column that is computed where it is read, so that every statistic sees it.

Shapes: n rows, k labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data import zarr_arrays
from bigkernel.engine.sources import Source

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ClassWeightSource(Source):
    """The weight of each row times the factor of its class; of rows without a label, the weight itself.

    Attributes
    ----------
    y : the column of labels
    weight : the column of weights, or None: ones
    labels : (k,) sorted, as the column holds them
    factors : (k,) of each label
    words : what they were asked as
    """

    y: Source
    weight: Source | None
    labels: Array
    factors: Array
    words: str

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.y.shape[0],)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    @property
    def steps(self) -> tuple[int, ...]:
        return self.y.steps

    def read(self, start: int, stop: int) -> Array:
        y = self.y.read(start, stop)
        place = np.minimum(np.searchsorted(self.labels, y), len(self.labels) - 1)
        factor: Array = np.where(self.labels[place] == y, self.factors[place], 1.0)
        return factor if self.weight is None else factor * self.weight.read(start, stop)

    def part(self, start: int, stop: int) -> Source:
        weight = None if self.weight is None else self.weight.part(start, stop)
        return replace(self, y=self.y.part(start, stop), weight=weight)

    def fingerprint(self) -> str:
        table = zarr_arrays.digest({"labels": self.labels, "factors": self.factors})
        weight = "" if self.weight is None else self.weight.fingerprint()
        return f"weights by class {table} of {self.y.fingerprint()} and {weight}"

    @property
    def origin(self) -> Source:
        return (self.y if self.weight is None else self.weight).origin
