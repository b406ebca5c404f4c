"""Sums of the columns of a map: what means and deviations are made from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.statistics.moments import Sums, weights_of
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Footprint


@dataclass(frozen=True, eq=False)
class FeatureSums(Sums):
    """n = Σw, s = Σ w φ and q = Σ w φ² (p,) of every column of a map: means and deviations."""

    features: FeatureMap

    def zero(self) -> Accumulator:
        """See `Statistic`."""
        return {"n": np.zeros(()), "s": np.zeros(self.features.width), "q": np.zeros(self.features.width)}

    def footprint(self, block_rows: int) -> Footprint:
        """See `Statistic`."""
        p = self.features.width
        row_bytes = self.features.row_bytes + 8 * p
        return Footprint(
            self.features.flops_per_row + 3 * p, 16 * p + 8, self.features.fixed_bytes + block_rows * row_bytes
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """See `Statistic`."""
        for block in chunk.blocks():
            (phi,) = self.features.blocks(chunk, block)
            with chunk.work.stage("add"):
                w = np.ones(len(phi)) if chunk.weight is None else weights_of(chunk, block)
                total["n"] += w.sum()
                total["s"] += w @ phi
                np.multiply(phi, phi, out=phi)
                total["q"] += w @ phi
