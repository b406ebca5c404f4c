"""Feature maps: what a block of rows becomes before it enters the moments.

A map gives a block of width p for b rows: the rows themselves (`IdentityMap`, p = d), their kernel values against m
landmarks (`LandmarkMap`, p = m, the rows of B), or those of several kernels, one after the other (`LandmarkFamily`).
Whitening is not applied here: the moments of B are whitened once, as an m×m matrix, with m² less work a row.

A prediction f(x) = Σ_s k(x, Z_s) w_s needs no whole row of k(x, Z): `LandmarkSlices` gives it in slices of s columns.
Landmarks are prepared once, where the model is, and travel so, in the dtype of the blocks: a worker holds neither
float64 landmarks nor a wide block. The width of a slice follows from the dtype alone: who computes, and in how much
memory, changes no bit; one slice gives the bits of a `LandmarkMap`. Shapes: d features of a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from bigkernel.arrays import Array, DType
from bigkernel.kernels.algebra import Bound, Kernel, strips
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Matern
from bigkernel.streaming.chunk import Chunk, MapCost

UFUNC_BYTES = 2**18  # of NumPy's buffers where it works on columns of a wider matrix
SLICE_ROW_BYTES = 2**16  # of a row of kernel values: 16,384 columns of float32
PACKED_BYTES = 2**24  # what BLAS keeps of a slice, in the order of its product
PREPARED_BYTES = 2**27  # of float64 landmarks, from which on they travel prepared
_DIAGONAL_ROWS = 128  # whose k(x, x) are computed at a time

Map = TypeVar("Map")


class FeatureMap(Protocol):
    """Rows of a chunk to a block (b, width) of `dtype`, valid until the next call; or to `count` blocks in turn."""

    @property
    def count(self) -> int:
        """The number of blocks that the same rows give: one a kernel of a family, 1 for a single map."""

    @property
    def width(self) -> int:
        """p, the number of columns of a block."""

    @property
    def dtype(self) -> DType:
        """float32 or float64, of the block."""

    @property
    def cost(self) -> MapCost:
        """Flops of a row of a block, bytes of buffers for it, and bytes of the map in a process, at most."""

    def about(self, place: int) -> Array | None:
        """What is subtracted from the rows of block number `place`, (p,); None: nothing."""

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        """The features of these rows of the chunk, `count` times, in a buffer of the chunk's workspace.

        The buffer is contiguous, (b, width + spare); its last `spare` columns are the caller's to fill.
        """


class SingleMap(ABC):
    """A map that gives one block."""

    count: ClassVar[int] = 1
    shift: Array | None = None

    def about(self, place: int) -> Array | None:
        return self.shift

    @abstractmethod
    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        """The one block; see `FeatureMap.blocks`."""

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        yield self.block(chunk, block, spare)

    def parts(self, chunk: Chunk, block: slice | Array) -> Iterator[tuple[slice, Array]]:
        """Columns, and the features of these rows in them: here all at once (`LandmarkSlices` gives several)."""
        yield slice(None), self.block(chunk, block)


@dataclass(frozen=True, eq=False)
class IdentityMap(SingleMap):
    """φ(x) = x − shift, with a shift (d,) near the mean so that centring the moments loses no digits."""

    shift: Array
    dtype: DType = field(default_factory=lambda: np.dtype(np.float64))

    @property
    def width(self) -> int:
        return len(self.shift)

    @property
    def cost(self) -> MapCost:
        return MapCost(float(self.width), self.width * self.dtype.itemsize, 8 * self.width)

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        rows = chunk.load(block, self.width + spare, self.dtype)
        features = rows[:, : self.width]
        np.subtract(features, self.shift.astype(self.dtype), out=features)
        return rows


class _AtLandmarks:
    """What maps of landmarks (m, d) share; what is prepared of them does not travel."""

    landmarks: Array
    dtype: DType

    @property
    def width(self) -> int:
        return len(self.landmarks)

    @property
    def n_features(self) -> int:
        """Columns of the rows: d."""
        return int(self.landmarks.shape[1])

    def __getstate__(self) -> dict[str, object]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    def _cost_of(self, kernels: Sequence[Kernel], columns: int) -> MapCost:
        """Cost of blocks of kernels of one argument, which is computed once, and rows in buffers of so many columns."""
        (m, d), itemsize = self.landmarks.shape, self.dtype.itemsize
        # the landmarks as they came and as prepared, and NumPy's own buffers
        held = 8 * m * d + max(kernel.prepared_bytes(m, d, itemsize) for kernel in kernels) + UFUNC_BYTES
        flops = 2.0 * m * d * max(kernel.leaves for kernel in kernels)
        return MapCost(flops, (columns + d + 2) * itemsize, held)


@dataclass(frozen=True, eq=False)
class LandmarkMap(_AtLandmarks, SingleMap):
    """φ(x) = k(x, Z): a row of the Nyström landmark block B."""

    kernel: Kernel  # every parameter a number
    landmarks: Array  # (m, d)
    dtype: DType = field(default_factory=lambda: np.dtype(np.float32))  # of the block
    shift: Array | None = None  # (m,) subtracted from every row of the block, or None; see `centre_of`

    @cached_property
    def bound(self) -> Bound:
        """The landmarks prepared for blocks; made once a process."""
        return self.kernel.bind(self.landmarks, self.dtype)

    @property
    def cost(self) -> MapCost:
        return self._cost_of([self.kernel], self.width)

    def diagonal(self, chunk: Chunk, block: slice | Array) -> Array:
        """k(x, x) of these rows of the chunk, (b,) float64."""
        chosen = np.arange(len(chunk))[block]
        found = [np.empty(0)]
        for start in range(0, len(chosen), _DIAGONAL_ROWS):  # a few at a time, for a small buffer
            rows = chunk.load(chosen[start : start + _DIAGONAL_ROWS], self.n_features, self.dtype)
            found.append(self.kernel.diag(rows))
        return np.concatenate(found)

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        rows = chunk.load(block, len(self.bound.weights), self.dtype)
        out = chunk.work.buffer("block", (rows.shape[0], self.width + spare), self.dtype)
        with chunk.work.stage("block"):
            self.bound.place(rows)
            self.bound.multiply(rows, out[:, : self.width])
        with chunk.work.stage("exp"):
            out[:, self.width :] = 0  # so that contiguous passes serve
            shift = None if self.shift is None else np.append(self.shift, np.zeros(spare, self.dtype))
            for strip in strips(out):
                self.bound.value(out[strip])
                if shift is not None:
                    np.subtract(out[strip], shift, out=out[strip])
        return out


def argument(kernel: Kernel) -> str | None:
    """The argument of a resolved kernel, "euclidean", "manhattan" or "inner"; None: one that no other kernel shares."""
    if isinstance(kernel, Gaussian | Matern):
        return "euclidean" if kernel.widths()[1] is None else None
    if isinstance(kernel, Laplacian):
        return "manhattan"
    return "inner" if isinstance(kernel, Linear) else None


def gather(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Positions of kernels that may share a computation, in lists; kernels that share with none stand alone."""
    families: dict[str | int, list[int]] = {}
    for place, kernel in enumerate(kernels):
        families.setdefault(argument(kernel) or place, []).append(place)
    return list(families.values())


@dataclass(frozen=True, eq=False)
class LandmarkFamily(_AtLandmarks):
    """φ_k(x) = k(x, Z) for several kernels k of one argument and the same landmarks.

    One block of distances or products serves all: each kernel takes a scale of it and its own in-place pass.
    """

    kernels: tuple[Kernel, ...]  # resolved kernels, all of the same `argument`; or one kernel of any kind
    landmarks: Array  # (m, d)
    dtype: DType = field(default_factory=lambda: np.dtype(np.float32))  # of the blocks
    shifts: Array | None = None  # (K, m) subtracted from the rows of each kernel's blocks, or None; see `centre_of`

    @property
    def count(self) -> int:
        return len(self.kernels)

    @cached_property
    def bound(self) -> Bound:
        """The landmarks prepared for the shared argument: that of the narrowest kernel."""
        narrowest = self.kernels[int(np.argmax(self.scales))]
        return narrowest.bind(self.landmarks, self.dtype, touching=any(kernel.kinked for kernel in self.kernels))

    @cached_property
    def scales(self) -> list[float]:
        """The factor of each kernel at the shared argument."""
        shared = argument(self.kernels[0]) == "euclidean"
        gammas = [kernel.widths()[0] if shared else 1.0 for kernel in self.kernels]
        return [gamma / max(gammas) for gamma in gammas]

    @property
    def cost(self) -> MapCost:
        return self._cost_of(self.kernels, 2 * self.width)  # the argument and a block of one kernel

    def about(self, place: int) -> Array | None:
        return None if self.shifts is None else self.shifts[place]

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        rows = chunk.load(block, len(self.bound.weights), self.dtype)
        shared = chunk.work.buffer("argument", (rows.shape[0], self.width), self.dtype)
        with chunk.work.stage("block"):
            self.bound.place(rows)
            self.bound.multiply(rows, shared)
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


@dataclass(frozen=True, eq=False)
class LandmarkSlices:
    """φ(x) = k(x, Z), given in slices of its columns."""

    kernel: Kernel  # every parameter a number
    bound: Bound  # Z prepared for blocks
    width: int  # m
    slice_width: int  # s, of every slice but the last

    @property
    def dtype(self) -> DType:
        """float32 or float64, of the blocks."""
        return self.bound.dtype

    @property
    def cost(self) -> MapCost:
        """See `FeatureMap`; a quarter of the landmarks as prepared is beside them while they arrive."""
        flops = 2.0 * self.width * self.bound.n_features * self.kernel.leaves
        held = self.bound.nbytes * 5 // 4 + self.bound.spare_bytes(self.slice_width) + PACKED_BYTES + UFUNC_BYTES
        return MapCost(flops, (self.slice_width + len(self.bound.weights)) * self.dtype.itemsize, held)

    def parts(self, chunk: Chunk, block: slice | Array) -> Iterator[tuple[slice, Array]]:
        """Columns, and the values (b, s) of these rows of the chunk in them, until all are given.

        The buffer is the chunk's, and valid until the next slice.
        """
        rows, s = chunk.load(block, len(self.bound.weights), self.dtype), self.slice_width
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


def in_slices(features: Map) -> Map | LandmarkSlices:
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


def centre_of(kernel: Kernel, landmarks: Array, dtype: DTypeLike) -> Array:
    """A point near the mean of k(·, Z) for `LandmarkMap.shift`, (m,) of `dtype`: the mean over some landmarks.

    Values of a wide kernel differ little from one another. Their products, summed in float32, lose the small
    eigenvalues of G to rounding; those of values less their mean keep them.
    """
    return np.asarray(kernel(landmarks[:256], landmarks).mean(axis=0), dtype)
