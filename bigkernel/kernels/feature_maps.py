"""Feature maps: what a block of rows becomes before it enters the moments.

A map gives a block of width p for b rows: the rows themselves (`IdentityMap`, p = d) or their kernel values against m
landmarks (`LandmarkMap`, p = m, the rows of B). Whitening is not applied here: the moments of B are whitened once, as
an m×m matrix, with m² less work a row (MATH: sweep over B, not over φ).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bigkernel.kernels.algebra import Bound, Kernel, strips
from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]
UFUNC_BYTES = 2**18  # of NumPy's buffers where it works on columns of a wider matrix
_DIAGONAL_ROWS = 128  # whose k(x, x) are computed at a time


class FeatureMap(Protocol):
    """Rows of a chunk to a block (b, width) of `dtype`, valid until the next call; or to `count` blocks in turn."""

    @property
    def count(self) -> int:
        """The number of blocks that the same rows give: one a kernel of a family, 1 for a single map."""

    @property
    def width(self) -> int:
        """p, the number of columns of a block."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, of the block."""

    @property
    def flops_per_row(self) -> float:
        """Floating-point operations to make one row of a block."""

    @property
    def row_bytes(self) -> int:
        """Bytes of buffer a row of a block takes."""

    @property
    def fixed_bytes(self) -> int:
        """Bytes that the map itself takes in a process, at most."""

    def about(self, place: int) -> Array | None:
        """What is subtracted from the rows of block number `place`, (p,); None: nothing."""

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        """The features of these rows of the chunk, `count` times, in a buffer of the chunk's workspace.

        The buffer is contiguous, (b, width + spare); its last `spare` columns are the caller's to fill.
        """


class SingleMap:
    """A map that gives one block."""

    count: ClassVar[int] = 1
    shift: Array | None = None

    def about(self, place: int) -> Array | None:
        return self.shift

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        """The one block; see `FeatureMap.blocks`."""
        raise TypeError(type(self).__name__)

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        yield self.block(chunk, block, spare)

    def parts(self, chunk: Chunk, block: slice | Array) -> Iterator[tuple[slice, Array]]:
        """Columns, and the features of these rows in them: here all at once (`landmark_slices` gives several)."""
        yield slice(None), self.block(chunk, block)


@dataclass(frozen=True, eq=False)
class IdentityMap(SingleMap):
    """φ(x) = x − shift, with a shift (d,) near the mean so that centring the moments loses no digits."""

    shift: Array
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))

    @property
    def width(self) -> int:
        return len(self.shift)

    @property
    def flops_per_row(self) -> float:
        return float(len(self.shift))

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def fixed_bytes(self) -> int:
        return 8 * self.width

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        rows = chunk.load(block, self.width + spare, self.dtype)
        features = rows[:, : self.width]
        np.subtract(features, self.shift.astype(self.dtype), out=features)
        return rows


@dataclass(frozen=True, eq=False)
class LandmarkMap(SingleMap):
    """φ(x) = k(x, Z): a row of the Nyström landmark block B."""

    kernel: Kernel  # every parameter a number
    landmarks: Any  # (m, d)
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))  # of the block
    shift: Array | None = None  # (m,) subtracted from every row of the block, or None; see `centre_of`

    @property
    def n_features(self) -> int:
        return int(self.landmarks.shape[1])

    @cached_property
    def bound(self) -> Bound:
        """The landmarks prepared for blocks; made once a process."""
        return self.kernel.bind(self.landmarks, self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "bound"}

    @property
    def width(self) -> int:
        return len(self.landmarks)

    @property
    def flops_per_row(self) -> float:
        return float(2 * self.landmarks.size * self.kernel.leaves)

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize + loaded_bytes(self.landmarks, self.dtype)

    @property
    def fixed_bytes(self) -> int:
        """The landmarks as they came and as prepared, and NumPy's own buffers."""
        return held_bytes((self.kernel,), self.landmarks, self.dtype) + UFUNC_BYTES

    def diagonal(self, chunk: Chunk, block: slice | Array) -> Array:
        """k(x, x) of these rows of the chunk, (b,) float64."""
        chosen = np.arange(len(chunk))[block]
        found = [np.empty(0)]
        for start in range(0, len(chosen), _DIAGONAL_ROWS):  # a few at a time, for a small buffer
            rows = chunk.load(chosen[start : start + _DIAGONAL_ROWS], self.n_features, self.dtype)
            found.append(self.kernel.diag(rows))
        return np.concatenate(found)

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        rows = self.bound.load(chunk, block)
        out = chunk.work.buffer("block", (rows.shape[0], self.width + spare), self.dtype)
        with chunk.work.stage("block"):
            self.bound.product(rows, out[:, : self.width])
        with chunk.work.stage("exp"):
            out[:, self.width :] = 0  # so that contiguous passes serve
            shift = None if self.shift is None else np.append(self.shift, np.zeros(spare, self.dtype))
            for strip in strips(out):
                self.bound.value(out[strip])
                if shift is not None:
                    np.subtract(out[strip], shift, out=out[strip])
        return out


def loaded_bytes(landmarks: Array, dtype: np.dtype[Any]) -> int:
    """Bytes of a row on its way to its values at landmarks."""
    return int((landmarks.shape[1] + 2) * dtype.itemsize)


def held_bytes(kernels: Sequence[Kernel], landmarks: Array, dtype: np.dtype[Any]) -> int:
    """Bytes of landmarks (m, d) float64, and of what is prepared from them for blocks of kernels of one argument."""
    m, d = landmarks.shape
    return int(8 * m * d + max(kernel.prepared_bytes(m, d, dtype.itemsize) for kernel in kernels))


def centre_of(kernel: Kernel, landmarks: Array, dtype: Any) -> Array:
    """A point near the mean of k(·, Z) for `LandmarkMap.shift`, (m,) of `dtype`: the mean over some landmarks.

    Values of a wide kernel differ little from one another. Their products, summed in float32, lose the small
    eigenvalues of G to rounding; those of values less their mean keep them.
    """
    mean: Array = kernel(landmarks[:256], landmarks).mean(axis=0)
    return mean.astype(dtype)
