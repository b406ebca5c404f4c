"""Feature maps from blocks of rows to the columns whose moments are summed.

A map gives a block of width p for b rows: the rows themselves (`IdentityMap`, p = d), their kernel values against m
landmarks (`LandmarkMap`, p = m, the rows of B), or those of several kernels, one after the other (`LandmarkFamily`).
Whitening is not applied here: the moments of B are whitened once, as an m×m matrix, which saves m² work per row.
Maps write into buffers of the chunk's workspace only. Shapes: d features of a row.

A prediction f(x) = Σ_s k(x, Z_s) w_s does not need whole rows of k(x, Z): `LandmarkSlices` gives slices of s columns.
Landmarks are prepared once, with the model, and sent to workers in the dtype of the blocks, so that a worker holds
neither float64 landmarks nor a wide block. The width of a slice follows from the dtype alone, so that the bits do not
depend on the machine; a single slice gives the bits of a `LandmarkMap`.
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
from bigkernel.kernels.algebra import Kernel, PreparedLandmarks, strips
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Matern
from bigkernel.streaming.chunk import Chunk, MapCost
from bigkernel.streaming.devices import namespace, write

UFUNC_BYTES = 2**18  # NumPy's buffers for columns of a wider matrix
SLICE_ROW_BYTES = 2**16  # a row of a slice: 16,384 columns of float32
PACKED_BYTES = 2**24  # BLAS's packed copy of a slice
PREPARED_BYTES = 2**27  # largest float64 landmarks that are sent unprepared
_DIAGONAL_ROWS = 128  # rows at a time whose k(x, x) are computed

Map = TypeVar("Map")


class FeatureMap(Protocol):
    """Map rows of a chunk to a block (b, width) of `dtype`, valid until the next call, or to `count` blocks in turn."""

    @property
    def count(self) -> int:
        """The number of blocks per block of rows: one for each kernel of a family, 1 for a single map."""

    @property
    def width(self) -> int:
        """p, the number of columns of a block."""

    @property
    def dtype(self) -> DType:
        """float32 or float64: dtype of the block."""

    @property
    def cost(self) -> MapCost:
        """Upper bounds on the flops per row, the buffer bytes per row, and the bytes of the map per process."""

    def shift_of(self, place: int) -> Array | None:
        """Return the vector that is subtracted from the rows of block number `place`, (p,), or None."""

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        """Yield `count` blocks of features of rows of the chunk, in a buffer of its workspace.

        The buffer is contiguous, (b, width + spare); the caller fills its last `spare` columns.
        """


class SingleMap(ABC):
    """A map that gives one block."""

    count: ClassVar[int] = 1
    shift: Array | None = None

    def shift_of(self, place: int) -> Array | None:
        return self.shift

    @abstractmethod
    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        """Return the only block; see `FeatureMap.blocks`."""

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        yield self.block(chunk, block, spare)

    def slices(self, chunk: Chunk, block: slice | Array) -> Iterator[tuple[slice, Array]]:
        """Yield columns and the features of the rows in them, here all at once; see `LandmarkSlices`."""
        yield slice(None), self.block(chunk, block)


@dataclass(frozen=True, eq=False)
class IdentityMap(SingleMap):
    """φ(x) = x − shift; a shift (d,) near the mean keeps centred moments accurate."""

    shift: Array
    dtype: DType = field(default_factory=lambda: np.dtype(np.float64))

    @property
    def width(self) -> int:
        return len(self.shift)

    @property
    def n_features(self) -> int:
        """Number of features of a row, d."""
        return len(self.shift)

    @property
    def cost(self) -> MapCost:
        return MapCost(float(self.width), self.width * self.dtype.itemsize, 8 * self.width)

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        rows = chunk.load(block, self.width + spare, self.dtype)
        features = rows[:, : self.width]
        features -= chunk.work.device.array(self.shift.astype(self.dtype))
        return rows


class WithoutCaches:
    """Base of dataclasses whose pickles hold their fields alone, without cached properties."""

    def __getstate__(self) -> dict[str, object]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]


class _AtLandmarks(WithoutCaches):
    """Base of maps of landmarks (m, d)."""

    landmarks: Array
    dtype: DType

    @property
    def width(self) -> int:
        return len(self.landmarks)

    @property
    def n_features(self) -> int:
        """d, the number of columns of the rows."""
        return int(self.landmarks.shape[1])

    def _cost_of(self, kernels: Sequence[Kernel], columns: int) -> MapCost:
        """Return the cost of blocks of kernels that share one argument, with buffers of `columns` numbers per row."""
        (m, d), itemsize = self.landmarks.shape, self.dtype.itemsize
        # the landmarks, given and prepared, and NumPy's own buffers
        held = 8 * m * d + max(kernel.prepared_bytes(m, d, itemsize) for kernel in kernels) + UFUNC_BYTES
        flops = 2.0 * m * d * max(kernel.leaves for kernel in kernels)
        return MapCost(flops, (columns + d + 2) * itemsize, held)


@dataclass(frozen=True, eq=False)
class LandmarkMap(_AtLandmarks, SingleMap):
    """φ(x) = k(x, Z): a row of the Nyström landmark block B."""

    kernel: Kernel  # resolved: every parameter a number
    landmarks: Array  # (m, d)
    dtype: DType = field(default_factory=lambda: np.dtype(np.float32))  # of the block
    shift: Array | None = None  # (m,) subtracted from every row of the block; see `centre_of`

    @cached_property
    def prepared(self) -> PreparedLandmarks:
        """Landmarks prepared for blocks, once per process."""
        return self.kernel.bind(self.landmarks, self.dtype)

    @property
    def cost(self) -> MapCost:
        return self._cost_of([self.kernel], self.width)

    def diagonal(self, chunk: Chunk, block: slice | Array) -> Array:
        """Compute k(x, x) of rows of the chunk, (b,) float64."""
        chosen, chunk = np.arange(len(chunk))[block], chunk.on_host()
        diagonal = [np.empty(0)]
        for start in range(0, len(chosen), _DIAGONAL_ROWS):  # a few at a time, for a small buffer
            rows = chunk.load(chosen[start : start + _DIAGONAL_ROWS], self.n_features, self.dtype)
            diagonal.append(self.kernel.diag(rows))
        return np.concatenate(diagonal)

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        rows = chunk.load(block, len(self.prepared.weights), self.dtype)
        out, device = chunk.work.buffer("block", (rows.shape[0], self.width + spare), self.dtype), chunk.work.device
        prepared = device.once(self.prepared)
        with chunk.work.stage("block"):
            prepared.place(rows)
            prepared.multiply(rows, out[:, : self.width])
        with chunk.work.stage("exp"):
            out[:, self.width :] = 0  # defined values for passes over whole rows
            shift = None if self.shift is None else device.array(np.append(self.shift, np.zeros(spare, self.dtype)))
            for strip in strips(out):
                values = out[strip, :]
                prepared.value(values)
                if shift is not None:
                    values -= shift
        return out


def argument(kernel: Kernel) -> str | None:
    """Return the argument of a resolved kernel: "euclidean", "manhattan", "inner"; None if no other kernel has it."""
    if isinstance(kernel, Gaussian | Matern):
        return "euclidean" if kernel.widths()[1] is None else None
    if isinstance(kernel, Laplacian):
        return "manhattan"
    return "inner" if isinstance(kernel, Linear) else None


def group_by_argument(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Group the positions of kernels that share an argument; others are groups of one."""
    families: dict[str | int, list[int]] = {}
    for place, kernel in enumerate(kernels):
        families.setdefault(argument(kernel) or place, []).append(place)
    return list(families.values())


@dataclass(frozen=True, eq=False)
class LandmarkFamily(_AtLandmarks):
    """φ_k(x) = k(x, Z) for several kernels k of one argument and the same landmarks.

    One block of distances or products serves all: each kernel scales it and applies its own in-place pass.
    """

    kernels: tuple[Kernel, ...]  # resolved, all of the same `argument`; or a single kernel of any kind
    landmarks: Array  # (m, d)
    dtype: DType = field(default_factory=lambda: np.dtype(np.float32))  # of the blocks
    shifts: Array | None = None  # (K, m) subtracted from the rows of each kernel's blocks; see `centre_of`

    @property
    def count(self) -> int:
        return len(self.kernels)

    @cached_property
    def prepared(self) -> PreparedLandmarks:
        """Landmarks prepared for the shared argument, that of the narrowest kernel."""
        narrowest = self.kernels[int(np.argmax(self.scales))]
        return narrowest.bind(self.landmarks, self.dtype, touching=any(kernel.kinked for kernel in self.kernels))

    @cached_property
    def scales(self) -> list[float]:
        """Factors of the shared argument, one for each kernel."""
        shared = argument(self.kernels[0]) == "euclidean"
        gammas = [kernel.widths()[0] if shared else 1.0 for kernel in self.kernels]
        return [gamma / max(gammas) for gamma in gammas]

    @property
    def cost(self) -> MapCost:
        return self._cost_of(self.kernels, 2 * self.width)  # the argument and a block of one kernel

    def shift_of(self, place: int) -> Array | None:
        return None if self.shifts is None else self.shifts[place]

    def blocks(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Iterator[Array]:
        rows = chunk.load(block, len(self.prepared.weights), self.dtype)
        shared, device = chunk.work.buffer("argument", (rows.shape[0], self.width), self.dtype), chunk.work.device
        prepared = device.once(self.prepared)
        with chunk.work.stage("block"):
            prepared.place(rows)
            prepared.multiply(rows, shared)
        for place, (kernel, scale) in enumerate(zip(self.kernels, self.scales, strict=True)):
            out = chunk.work.buffer("block", (rows.shape[0], self.width + spare), self.dtype)
            with chunk.work.stage("exp"):
                out[:, self.width :] = 0  # defined values for passes over whole rows
                own = None if self.shifts is None else np.append(self.shifts[place], np.zeros(spare, self.dtype))
                shift = None if own is None else device.array(own)
                for strip in strips(out):
                    values = out[strip, :]
                    write(values[:, : self.width], "multiply", shared[strip, :], float(self.dtype.type(scale)))
                    kernel.finish(values)
                    if shift is not None:
                        values -= shift
            yield out


@dataclass(frozen=True, eq=False)
class LandmarkSlices:
    """φ(x) = k(x, Z) in slices of its columns."""

    kernel: Kernel  # resolved: every parameter a number
    prepared: PreparedLandmarks  # Z prepared for blocks
    width: int  # m
    slice_width: int  # s, of all slices but the last

    @property
    def n_features(self) -> int:
        """Number of features of a row, d."""
        return self.prepared.n_features

    @property
    def dtype(self) -> DType:
        return self.prepared.dtype

    @property
    def cost(self) -> MapCost:
        """Cost as in `FeatureMap`, with a quarter of the prepared landmarks more while they are received."""
        flops = 2.0 * self.width * self.prepared.n_features * self.kernel.leaves
        held = self.prepared.nbytes * 5 // 4 + self.prepared.spare_bytes(self.slice_width) + PACKED_BYTES + UFUNC_BYTES
        return MapCost(flops, (self.slice_width + len(self.prepared.weights)) * self.dtype.itemsize, held)

    def slices(self, chunk: Chunk, block: slice | Array) -> Iterator[tuple[slice, Array]]:
        """Yield columns and the values (b, s) of rows of the chunk in them.

        The buffer belongs to the chunk and is valid until the next slice.
        """
        rows, s = chunk.load(block, len(self.prepared.weights), self.dtype), self.slice_width
        prepared = chunk.work.device.once(self.prepared)
        with chunk.work.stage("block"):
            prepared.place(rows)
        for first in range(0, self.width, s):
            columns = slice(first, min(first + s, self.width))
            shape = rows.shape[0], columns.stop - columns.start
            flat = chunk.work.buffer("block", (shape[0] * shape[1],), self.dtype)
            out = namespace(flat).reshape(flat, shape)
            with chunk.work.stage("block"):
                prepared.multiply(rows, out, columns)
            with chunk.work.stage("exp"):
                for strip in strips(out):
                    prepared.value(out[strip, :])
            yield columns, out


def slice_map(features: Map) -> Map | LandmarkSlices:
    """Return the map for predictions: many landmarks prepared and in slices, any other map unchanged.

    `DataError`: the dtype of the blocks cannot resolve the distances between the landmarks.
    """
    if not isinstance(features, LandmarkMap) or features.shift is not None:
        return features
    slices = -(-features.width // (SLICE_ROW_BYTES // features.dtype.itemsize))
    if slices == 1 and features.landmarks.nbytes <= PREPARED_BYTES:
        return features
    width = -(-features.width // slices)
    return LandmarkSlices(features.kernel, features.prepared, features.width, width)


def centre_of(kernel: Kernel, landmarks: Array, dtype: DTypeLike) -> Array:
    """Return a point near the mean of k(·, Z) for `LandmarkMap.shift`, (m,) of `dtype`: the mean over some landmarks.

    Values of a wide kernel differ little from each other. Sums of their products in float32 lose the small eigenvalues
    of G to rounding; sums of products of differences from the mean keep them.
    """
    return np.asarray(kernel(landmarks[:256], landmarks).mean(axis=0), dtype)
