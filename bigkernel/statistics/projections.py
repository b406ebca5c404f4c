"""A fitted projection of kernel features as a row map: z(x) = φ(x)ᵀW + b, r features in the place of d.

Transformers that learn such a W (components of DICA and JDA, whitened Nyström features) apply it in the task, block by
block, as any row map: nothing is stored, and the next step sees rows of r features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from bigkernel.errors import DataError
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk, MapCost

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Projection:
    """See the head of the module.

    Attributes
    ----------
    n_features : d
    predictor : features of width p, `coef` (p, r) and `intercept` (r,)
    """

    n_features: int
    predictor: Predictor
    name: ClassVar[str] = "projection"

    def width(self, d: int) -> int:
        """See `RowMap`."""
        if d != self.n_features:
            raise DataError(f"projection: expected rows of {self.n_features} features, found {d}")
        return self.predictor.width

    def cost(self, d: int, itemsize: int) -> MapCost:
        """See `RowMap`."""
        predictor = self.predictor
        # values leave in float64 before they take the dtype of the rows
        row_bytes = predictor.features.row_bytes + predictor.row_bytes + (8 + itemsize) * predictor.width
        return MapCost(predictor.flops_per_row, row_bytes, predictor.fixed_bytes)

    def apply(self, x: Array) -> Array:
        """See `RowMap`."""
        # in blocks of its own: x may be a whole array
        mapped: Array = self.predictor.values(Chunk(x)).astype(x.dtype, copy=False)
        return mapped
