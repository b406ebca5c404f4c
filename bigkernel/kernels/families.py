"""Families of kernels that share one computation: several bandwidths from the same distances.

Kernels of the Euclidean distance with one width (Gaussian, Matérn), of the L1 distance (Laplacian) and of the inner
product (linear, polynomial, sigmoid) each come from one block of distances or products: it is computed once, and each
kernel takes a scale and its own in-place pass. Shapes: b rows of a block, m landmarks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.kernels.algebra import Bound, Kernel, strips
from bigkernel.kernels.feature_maps import held_bytes, loaded_bytes
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]


def argument(kernel: Kernel) -> str | None:
    """The argument of a resolved kernel, "euclidean", "manhattan" or "inner"; None: one that no other kernel shares."""
    if isinstance(kernel, Gaussian | Matern):
        return "euclidean" if kernel.widths()[1] is None else None
    if isinstance(kernel, Laplacian):
        return "manhattan"
    return "inner" if isinstance(kernel, Linear | Polynomial | Sigmoid) else None


@dataclass(frozen=True, eq=False)
class LandmarkFamily:
    """φ_k(x) = k(x, Z) for several kernels k of one argument and the same landmarks."""

    kernels: tuple[Kernel, ...]  # resolved kernels, all of the same `argument`; or one kernel of any kind
    landmarks: Any  # (m, d)
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))  # of the blocks
    # (K, m) subtracted from the rows of each kernel's blocks, or None; see `feature_maps.centre_of`
    shifts: Array | None = None

    @property
    def count(self) -> int:
        return len(self.kernels)

    @cached_property
    def bound(self) -> Bound:
        """The landmarks prepared for the shared argument: that of the narrowest kernel."""
        narrowest = self.kernels[int(np.argmax(self._gammas))]
        return narrowest.bind(self.landmarks, self.dtype, touching=any(kernel.kinked for kernel in self.kernels))

    @cached_property
    def scales(self) -> list[float]:
        """The factor of each kernel at the shared argument."""
        return [gamma / max(self._gammas) for gamma in self._gammas]

    @property
    def _gammas(self) -> list[float]:
        shared = argument(self.kernels[0]) == "euclidean"
        return [kernel.widths()[0] if shared else 1.0 for kernel in self.kernels]

    def __getstate__(self) -> dict[str, Any]:
        made = ("bound", "scales")
        return {key: value for key, value in self.__dict__.items() if key not in made}

    @property
    def width(self) -> int:
        return len(self.landmarks)

    @property
    def flops_per_row(self) -> float:
        """The argument is computed once."""
        return float(2 * self.landmarks.size * max(kernel.leaves for kernel in self.kernels))

    @property
    def row_bytes(self) -> int:
        """The argument and a block of one kernel."""
        return 2 * self.width * self.dtype.itemsize + loaded_bytes(self.landmarks, self.dtype)

    @property
    def fixed_bytes(self) -> int:
        """The landmarks as they came and as prepared."""
        return held_bytes(self.kernels, self.landmarks, self.dtype)

    def about(self, place: int) -> Array | None:
        return None if self.shifts is None else self.shifts[place]

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        rows = self.bound.load(chunk, block)
        shared = chunk.work.buffer("argument", (rows.shape[0], self.width), self.dtype)
        with chunk.work.stage("block"):
            self.bound.product(rows, shared)
        for place, (kernel, scale) in enumerate(zip(self.kernels, self.scales, strict=True)):
            out = chunk.work.buffer("block", (rows.shape[0], self.width + spare), self.dtype)
            with chunk.work.stage("exp"):
                out[:, self.width :] = 0  # so that contiguous passes serve
                shift = None if self.shifts is None else np.append(self.shifts[place], np.zeros(spare, self.dtype))
                for strip in strips(out):
                    np.multiply(shared[strip], self.dtype.type(scale), out=out[strip, : self.width])
                    kernel.finish(out[strip])
                    if shift is not None:
                        np.subtract(out[strip], shift, out=out[strip])
            yield out


def gather(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Positions of kernels that may share a computation, in lists; kernels that share with none stand alone."""
    families: dict[Any, list[int]] = {}
    for place, kernel in enumerate(kernels):
        families.setdefault(argument(kernel) or place, []).append(place)
    return list(families.values())
