"""The fast path of a kernel block: landmarks prepared once, blocks filled in preallocated buffers.

Shapes: b rows of a block, d features, m landmarks. Nothing in here allocates more than a few strips of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Array = NDArray[Any]
_FAR = 1e6  # times from the ends of the range of a dtype, that squares and γ stay
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
    touching: Array | None = None  # (m, d): shifted and stretched as rows are, where `product` is to look at them again

    @classmethod
    def of_distance(
        cls,
        value: Callable[[Array], None],
        Z: Array,
        gamma: float,
        lengths: Array | None,
        dtype: np.dtype[Any],
        *,
        touching: bool,
    ) -> tuple[Bound, float]:
        """Landmarks Z (m, d) prepared for −γ‖x−z‖², and the error of γ‖x−z‖² that their rounding may cause.

        With `touching` the distances of rows that nearly touch a landmark keep their digits: for kernels whose slope
        in ‖x−z‖² is infinite at 0.
        """
        # the mean as the blocks see it: rounded once, the same for rows and landmarks
        with np.errstate(over="ignore", invalid="ignore"):
            shift = Z.mean(axis=0).astype(dtype)
            centred, lost = Z - shift.astype(np.float64), np.zeros(Z.shape[1])
            for strip in strips(Z):
                np.maximum(lost, np.abs(Z[strip].astype(dtype) - Z[strip]).max(axis=0, initial=0.0), out=lost)
            stretch = None
            if lengths is not None:
                stretch = (1 / lengths).astype(dtype)
                centred, lost = centred * stretch.astype(np.float64), lost * stretch
            rounded = centred.astype(dtype)
            centred[...] = rounded
            squares = np.einsum("ij,ij->i", centred, centred)
            # what rounding leaves of γ‖x−z‖²: of the product, and of the values as they come
            limits, largest = np.finfo(dtype), float(squares.max(initial=0.0))
            blur = gamma * largest * limits.eps + (2 * gamma) ** 0.5 * np.linalg.norm(lost)
            vanish = gamma * largest > limits.eps and largest < _FAR * float(limits.tiny)
            if gamma > float(limits.max) / _FAR or vanish:  # rows so small that γ or their squares leave the range
                blur = np.inf
            # [x, ‖x‖², 1] · [2γz, −γ, −γ‖z‖²] = −γ‖x−z‖²
            weights = np.empty((Z.shape[1] + 2, len(Z)), dtype)
            np.multiply(centred.T, 2 * gamma, out=weights[:-2], casting="same_kind")
            weights[-2] = -gamma
            weights[-1] = -gamma * squares
        return cls(value, weights, shift, stretch, None, Z.shape[1], rounded if touching else None), float(blur)

    @property
    def columns(self) -> int:
        """Width of the row buffer: d, or d + 2 for kernels of the distance."""
        return int(self.weights.shape[0])

    @property
    def horizon(self) -> float:
        """The squared distance from the landmarks' mean beyond which a row is as good as infinitely far."""
        return float(np.finfo(self.dtype).max) / (16 * max(1.0, self._gamma))

    @property
    def _gamma(self) -> float:
        return -float(self.weights[-2, 0]) if self.weights.size else 1.0

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
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite product is a value of tanh; sums are looked at
            np.matmul(rows, self.weights, out=out)
        if self.touching is not None:
            self._look_again(x, rows[:, d], out)

    def _look_again(self, x: Array, squares: Array, out: Array) -> None:
        """Compute the few ‖x−z‖² < √eps·‖x‖² from the differences: the product has lost half of their digits."""
        assert self.touching is not None
        limits = (-self._gamma * float(np.finfo(self.dtype).eps) ** 0.5 * squares)[:, None]
        most = max(1, _STRIP_BYTES // (self.dtype.itemsize * max(1, self.n_features)))
        for strip in strips(out):
            near, values = x[strip], out[strip]
            found = np.flatnonzero(values > limits[strip])
            for first in range(0, len(found), most):
                i, j = np.divmod(found[first : first + most], values.shape[1])
                gap = near[i] - self.touching[j]
                values[i, j] = -self._gamma * np.einsum("ij,ij->i", gap, gap)

    def finish(self, out: Array) -> None:
        """out ← k, from its argument, in place."""
        for strip in strips(out):
            self.value(out[strip])


def strips(block: Array) -> list[slice]:
    """Slices of rows of `block` that each stay in cache."""
    rows = max(1, _STRIP_BYTES // max(1, block[:1].nbytes))
    return [slice(i, i + rows) for i in range(0, len(block), rows)]
