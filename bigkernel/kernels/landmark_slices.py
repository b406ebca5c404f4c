"""Kernel values at more landmarks than a block should have columns: a slice of them at a time, for predictions.

A prediction f(x) = Σ_s k(x, Z_s) w_s needs no whole row of k(x, Z). Landmarks are prepared once, where the model is,
and travel so, in the dtype of the blocks: a worker holds neither float64 landmarks nor a wide block. The width of a
slice follows from the dtype alone: who computes, and in how much memory, changes no bit; one slice gives the bits of a
`LandmarkMap`. Shapes: b rows of a block, m landmarks, d features, s columns of a slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.kernels.algebra import Bound, Kernel, strips
from bigkernel.kernels.feature_maps import UFUNC_BYTES, LandmarkMap
from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]
SLICE_ROW_BYTES = 2**16  # of a row of kernel values: 16,384 columns of float32
PACKED_BYTES = 2**24  # what BLAS keeps of a slice, in the order of its product
PREPARED_BYTES = 2**27  # of float64 landmarks, from which on they travel prepared


@dataclass(frozen=True, eq=False)
class LandmarkSlices:
    """φ(x) = k(x, Z), given in slices of its columns."""

    kernel: Kernel  # every parameter a number
    bound: Bound  # Z prepared for blocks
    width: int  # m
    slice_width: int  # s, of every slice but the last

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, of the blocks."""
        return self.bound.dtype

    @property
    def flops_per_row(self) -> float:
        """Floating-point operations to make one row of all slices."""
        return 2.0 * self.width * self.bound.n_features * self.kernel.leaves

    @property
    def row_bytes(self) -> int:
        """Bytes of buffer a row of a slice takes."""
        return (self.slice_width + len(self.bound.weights)) * self.dtype.itemsize

    @property
    def fixed_bytes(self) -> int:
        """Bytes that the landmarks take in a process, at most: as prepared, and a quarter of that while they arrive."""
        spare = self.bound.spare_bytes(self.slice_width)
        return self.bound.nbytes * 5 // 4 + spare + PACKED_BYTES + UFUNC_BYTES

    def parts(self, chunk: Chunk, block: slice | Array) -> Iterator[tuple[slice, Array]]:
        """Columns, and the values (b, s) of these rows of the chunk in them, until all are given.

        The buffer is the chunk's, and valid until the next slice.
        """
        rows, s = self.bound.load(chunk, block), self.slice_width
        with chunk.work.stage("block"):
            self.bound.place(rows)
        for first in range(0, self.width, s):
            columns = slice(first, min(first + s, self.width))
            shape = rows.shape[0], columns.stop - columns.start
            out = chunk.work.buffer("block", (shape[0] * shape[1],), self.dtype).reshape(shape)
            with chunk.work.stage("block"):
                self.bound.multiply(rows, out, columns)
            with chunk.work.stage("exp"):
                for strip in strips(out):
                    self.bound.value(out[strip])
            yield columns, out


def in_slices(features: Any) -> Any:
    """A map of landmarks as predictions see it: prepared and in slices where there are many; any other as it is.

    Raises
    ------
    DataError
        The dtype of its blocks cannot resolve the distances between the landmarks.
    """
    if not isinstance(features, LandmarkMap) or features.shift is not None:
        return features
    slices = -(-features.width // (SLICE_ROW_BYTES // features.dtype.itemsize))
    if slices == 1 and features.landmarks.nbytes <= PREPARED_BYTES:
        return features
    width = -(-features.width // slices)
    return LandmarkSlices(features.kernel, features.bound, features.width, width)
