"""What a step of softmax regression needs of the rows: its loss and the gradient of it, m×c numbers.

With φ(x) of a row, w its weight, t its one-hot class and p = softmax(φᵀV + b), a sweep sums up −Σ w log p_y,
Σ w φ (t − p)ᵀ and Σ w (t − p). Blocks have the dtype of the map, products and sums are float64. Shapes: b rows of a
block, p columns of the map, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array
from bigkernel.kernels.random_fourier import BlockMap
from bigkernel.statistics.moments import Sums, Targets, block_footprint, weights_of
from bigkernel.statistics.predictor import log_softmax
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint

_STRIP_NUMBERS = 2**18  # of the float64 copy of some rows of a block
_NOT_COMPARED = {"identity": False}  # `data.fingerprint.NOT_COMPARED`


@dataclass(frozen=True, eq=False)
class SoftmaxStatistic(Sums):
    """Loss and gradient of a softmax regression at one point, over the labelled rows.

    Accumulates `loss` (), `U` (p, c) = Σ w φ (t − p)ᵀ and `e` (c,) = Σ w (t − p).
    """

    features: BlockMap  # a single map of width p
    targets: Targets  # the classes
    # coef, intercept: V (p, c) and b (c,) float64; no part of what a run is known by, as in `ProductStatistic`
    coef: Array = field(metadata=_NOT_COMPARED)
    intercept: Array = field(metadata=_NOT_COMPARED)
    step: str  # what they are a step of, in words: a run is known by it

    def zero(self) -> Accumulator:
        p, c = self.coef.shape
        return {"loss": np.zeros(()), "U": np.zeros((p, c)), "e": np.zeros(c)}

    def footprint(self, block_rows: int) -> Footprint:
        p, c = self.coef.shape
        partial, work = 8 * (p * c + c + 1), 8 * (max(p, _STRIP_NUMBERS) + 3 * p * (c + 1))
        row_bytes, flops = 8 * (5 * c + 4), 4.0 * p * c
        return block_footprint(
            self.features, block_rows, flops=flops, row_bytes=row_bytes, partial_bytes=partial, work_bytes=work
        )

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        known = self.targets.labelled_in(chunk)
        for block in chunk.blocks(None if known.all() else np.flatnonzero(known)):
            phi = self.features.block(chunk, block)
            with chunk.work.stage("product"):
                truth, weight = self.targets.one_hot(chunk, block), weights_of(chunk, block)
                rows = max(1, _STRIP_NUMBERS // max(1, phi.shape[1]))
                for start in range(0, len(phi), rows):
                    strip = slice(start, start + rows)
                    wide = chunk.work.buffer("wide", phi[strip].shape, np.float64)
                    np.copyto(wide, phi[strip])
                    logarithms = log_softmax(wide @ self.coef + self.intercept)
                    total["loss"] -= weight[strip] @ (truth[strip] * logarithms).sum(axis=1)
                    left = weight[strip, None] * (truth[strip] - np.exp(logarithms))
                    total["U"] += wide.T @ left
                    total["e"] += left.sum(axis=0)
