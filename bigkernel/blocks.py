"""The fast path of a kernel block: landmarks prepared once, blocks filled in preallocated buffers.

Shapes: b rows of a block, d features, m landmarks. Nothing in here allocates more than a strip of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Array = NDArray[Any]
_STRIP_BYTES = 2**18  # in-place passes go over the block in strips of this size, so that a strip stays in cache


@dataclass
class Bound:
    """k(·, Z) with Z prepared: fills blocks in preallocated buffers. Made by `Kernel.bind`.

    Call `product(rows, out)`, then `finish(out)`. `rows` is a (b, columns) buffer with x in its first d columns, which
    is overwritten; `out` is (b, m). Both are of `dtype`, C-contiguous.
    """

    value: Callable[[Array], None]  # turns a strip of the argument into a strip of the kernel, in place
    weights: Array  # (columns, m): what the rows are multiplied by
    shift: Array | None  # (d,): subtracted from the rows; None for kernels of the inner product
    stretch: Array | None  # (d,): the rows are multiplied by it (one length per feature)
    landmarks: Array | None  # (m, d): only where no product serves (L1 distances)
    n_features: int

    @property
    def columns(self) -> int:
        """Width of the row buffer: d, or d + 2 for kernels of the distance."""
        return int(self.weights.shape[0])

    @property
    def horizon(self) -> float:
        """The squared distance from the landmarks' mean beyond which a row is as good as infinitely far."""
        largest, gamma = float(np.finfo(self.dtype).max), -float(self.weights[-2, 0]) if self.weights.size else 1.0
        return largest / (16 * max(1.0, gamma))

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64: of the rows, of the block and of the product."""
        return self.weights.dtype

    def product(self, rows: Array, out: Array) -> None:
        """out ← the kernel's argument: −γ‖x−z‖², ⟨x,z⟩ or ‖x−z‖₁."""
        d = self.n_features
        x = rows[:, :d]
        if self.shift is not None:
            np.subtract(x, self.shift, out=x)
        if self.stretch is not None:
            np.multiply(x, self.stretch, out=x)
        if self.landmarks is not None:
            for strip in strips(out):
                out[strip] = cdist(x[strip], self.landmarks, "cityblock")
            return
        if self.columns > d:
            with np.errstate(over="ignore", invalid="ignore"):
                np.einsum("ij,ij->i", x, x, out=rows[:, d])
            far = ~(rows[:, d] < self.horizon)
            if far.any():  # too far for their squares, or for ∞ − ∞: farther than any landmark matters
                x[far], rows[far, d] = 0, self.horizon
            rows[:, d + 1] = 1
        np.matmul(rows, self.weights, out=out)

    def finish(self, out: Array) -> None:
        """out ← k, from its argument, in place."""
        for strip in strips(out):
            self.value(out[strip])


def strips(block: Array) -> list[slice]:
    """Slices of rows of `block` that each stay in cache."""
    rows = max(1, _STRIP_BYTES // max(1, block[:1].nbytes))
    return [slice(i, i + rows) for i in range(0, len(block), rows)]
