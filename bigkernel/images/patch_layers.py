"""Kernel features of image patches, pooled over positions: convolutional kernel networks as a row map.

A patch x of p×p pixels and c channels has the features ‖x‖ K_ZZ^(−½) k(Z, x/‖x‖) of m landmarks Z on the unit sphere,
k(u, v) = exp(−‖u − v‖²/2σ²): their inner products approximate ‖x‖ ‖x′‖ k(x/‖x‖, x′/‖x′‖). Cells average them with
Gaussian weights about their centres, and form an image of m channels, the input of the next layer.

Averaging and whitening are linear, so cells are averaged first: whitening is then a product per cell instead of per
place. Every product is of one image and of a fixed shape, so that a row has the same bits in any block.

Mairal, Koniusz, Harchaoui & Schmid, Convolutional kernel networks (NeurIPS 2014); Mairal, End-to-end kernel learning
with supervised convolutional kernel networks (NeurIPS 2016): projection on landmarks of patches.

Shapes: images (b, h·w·c), channels last; P = (h − p + 1)(w − p + 1) places; q = p·p·c numbers of a patch; m landmarks;
g cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError, DataError
from bigkernel.images.checks import require_image
from bigkernel.streaming.chunk import MapCost
from bigkernel.streaming.row_maps import UnitNorm

_STRIP_BYTES = 2**22  # patches and values of the images that are processed at a time; they stay in cache
_MOST_CHANNELS = 4096


@dataclass(frozen=True)
class PatchGrid:
    """Patches of an image, and cells that average over their places."""

    height: int  # of the image, as columns and channels
    columns: int
    channels: int
    patch: int  # p, side of a patch in pixels
    subsampling: int  # places from one cell to the next, down and across
    centred: bool = True  # subtract the mean of each patch, by channel, so that brightness does not matter

    def __post_init__(self) -> None:
        require_image(self.height, self.columns)
        if not 1 <= self.channels <= _MOST_CHANNELS:
            raise ConfigError(f"channels: expected 1 to {_MOST_CHANNELS:,}, found {self.channels}")
        if self.patch < 1 or self.subsampling < 1:
            raise ConfigError(
                f"patch, subsampling: expected at least 1 pixel, found {self.patch} and {self.subsampling}"
            )
        if self.patch > min(self.height, self.columns):
            raise DataError(
                f"patches of {self.patch}×{self.patch} pixels do not fit in images of {self.height}×{self.columns}; "
                "use smaller patches, or fewer layers"
            )

    @property
    def places(self) -> tuple[int, int]:
        """Number of places of a patch, down and across."""
        return self.height - self.patch + 1, self.columns - self.patch + 1

    @property
    def cells(self) -> tuple[int, int]:
        """Number of cells, down and across."""
        down, across = self.places
        return -(-down // self.subsampling), -(-across // self.subsampling)

    @property
    def image_width(self) -> int:
        """Number of values of an image."""
        return self.height * self.columns * self.channels

    @property
    def width(self) -> int:
        """Number of values of a patch, q."""
        return self.patch * self.patch * self.channels

    def windows(self, images: Array) -> Array:
        """Return the patches of images (b, h·w·c), C-contiguous, as a view (b, places down, places across, p, p·c)."""
        line, step = self.columns * self.channels, images.itemsize
        strides = (images.strides[0], line * step, self.channels * step, line * step, step)
        shape = (len(images), *self.places, self.patch, self.patch * self.channels)
        return as_strided(images, shape, strides, writeable=False)

    def normalise(self, patches: Array) -> Array:
        """Scale patches (…, q) to unit length, in place, less their means if `centred`; return ‖x‖ (…,).

        A patch without contrast becomes zeros.
        """
        columns = patches.reshape(-1, self.width).T.copy()[None]
        norms = self.normalise_columns(columns)[0]
        patches[...] = columns[0].T.reshape(patches.shape)
        return np.asarray(norms.reshape(patches.shape[:-1]))

    def normalise_columns(self, columns: Array) -> Array:
        """Scale patches that are columns of matrices (b, q, P) like `normalise`; return ‖x‖ (b, P)."""
        b, _, places = columns.shape
        if self.centred:
            channels = columns.reshape(b, self.patch**2, self.channels, places)
            means = channels.sum(axis=1) / self.patch**2
            np.subtract(channels, means[:, None], out=channels)
        norms: Array = np.sqrt(np.einsum("bqp,bqp->bp", columns, columns))
        if self.centred:
            # a mean of p² values has an error of up to p² eps: the rest of a patch of one colour is rounding
            blur = self.patch**3 * np.finfo(columns.dtype).eps * np.sqrt(np.einsum("bcp,bcp->bp", means, means))
            norms[norms <= blur] = 0
        np.divide(columns, np.where(norms == 0, np.inf, norms)[:, None], out=columns)
        return norms

    def pooling(self) -> tuple[Array, Array]:
        """Return the weights of places in each cell, of sum 1, (cells, places) float64, down and across."""
        return tuple(_gaussian_cells(*sides) for sides in zip(self.places, self.cells, strict=True))  # type: ignore[return-value]


def _gaussian_cells(places: int, cells: int) -> Array:
    """Compute exp(−(u − centre)²/s²), normalised for each cell; s is the distance of the centres."""
    apart = places / cells
    centres = (np.arange(cells) + 0.5) * apart - 0.5
    weights = np.exp(-(((np.arange(places) - centres[:, None]) / apart) ** 2))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class PatchLayer:
    """Kernel features of patches in cells."""

    grid: PatchGrid
    sigma: float  # σ of k, on the unit sphere
    landmarks: Array  # Z (m, q) float64, of unit length
    whitening: Array  # K_ZZ^(−½) (m, m) float64

    @property
    def width(self) -> int:
        """Number of features of an image, g·m."""
        down, across = self.grid.cells
        return down * across * len(self.landmarks)

    @property
    def flops_per_row(self) -> float:
        """Floating-point operations per image, 20 for an exponential."""
        (tall, wide), (down, across), m = self.grid.places, self.grid.cells, len(self.landmarks)
        pooling = down * tall * wide + down * across * wide
        return 2.0 * m * (tall * wide * (self.grid.width + 12) + pooling + down * across * m)

    def __post_init__(self) -> None:
        m = len(self.landmarks)
        if not m or self.landmarks.shape != (m, self.grid.width) or self.whitening.shape != (m, m):
            raise ConfigError(
                f"landmarks, whitening: expected (m, {self.grid.width}) and (m, m) of patches of {self.grid.patch}×"
                f"{self.grid.patch} pixels, found {self.landmarks.shape} and {self.whitening.shape}"
            )

    def image_bytes(self, itemsize: int) -> int:
        """Return the bytes of the buffers of one image."""
        (tall, wide), (down, across), m = self.grid.places, self.grid.cells, len(self.landmarks)
        return (tall * wide * (2 * self.grid.width + 6 + m) + (down * wide + 2 * down * across) * m) * itemsize

    @property
    def held_bytes(self) -> int:
        """Bytes of landmarks and whitening, given and prepared."""
        return 2 * 8 * (self.landmarks.size + self.whitening.size + 2 * len(self.landmarks))

    def prepare(self, rows: int, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
        """Return a function from at most `rows` images (b, h·w·c) of `dtype`, C-contiguous, to features (b, g·m).

        The features are in a buffer that the next call overwrites.
        """
        m, (tall, wide), (down, across) = len(self.landmarks), self.grid.places, self.grid.cells
        # shapes of patches, exponents, lines of cells, cells, and features
        patches = (self.grid.width + 1, tall * wide) if self.grid.centred else (tall * wide, self.grid.width)
        shapes = (patches, (tall * wide, m), (down, wide * m), (down, across, m), (down * across, m))
        weights = self.landmarks.T * self.sigma**-2
        if self.grid.centred:  # for the row that `_pixel_exponents` appends to the patches
            weights = np.vstack([weights, np.ones((1, m))])
        factors = [np.ascontiguousarray(one, dtype) for one in (weights, *self.grid.pooling(), self.whitening)]
        return partial(self._features, factors, [np.empty((rows, *shape), dtype) for shape in shapes])

    def _features(self, factors: Sequence[Array], buffers: Sequence[Array], images: Array) -> Array:
        weights, down, across, whitening = factors
        patches, values, lines, cells, features = (buffer[: len(images)] for buffer in buffers)
        b, m, (tall, wide) = len(images), len(self.landmarks), self.grid.places
        exponents = self._pixel_exponents if self.grid.centred else self._cell_exponents
        exponents(images, weights, patches, values)
        np.exp(values, out=values)
        np.matmul(down, values.reshape(b, tall, -1), out=lines)
        np.matmul(across, lines.reshape(b, -1, wide, m), out=cells)
        np.matmul(cells.reshape(b, -1, m), whitening, out=features)
        return features.reshape(b, -1)

    # values (b, P, m) ← ⟨x, z⟩/(‖x‖σ²) − 1/σ² + log‖x‖: the exponential is ‖x‖ k(x/‖x‖, z)

    def _pixel_exponents(self, images: Array, weights: Array, columns: Array, values: Array) -> None:
        """Compute the exponents for patches of pixels, stored as columns for fast passes along lines."""
        grid, windows, patches = self.grid, self.grid.windows(images), columns[:, :-1]
        np.copyto(patches.reshape(len(images), grid.patch, -1, *grid.places), windows.transpose(0, 3, 4, 1, 2))
        with np.errstate(divide="ignore"):  # log 0: the features of a patch without contrast are 0
            np.log(grid.normalise_columns(patches), out=columns[:, -1])
        columns[:, -1] -= images.dtype.type(self.sigma**-2)
        np.matmul(columns.swapaxes(1, 2), weights, out=values)

    def _cell_exponents(self, images: Array, weights: Array, patches: Array, values: Array) -> None:
        """Compute the exponents for patches of cells of many channels, with norms summed from those of the cells."""
        grid, b, inverse = self.grid, len(images), images.dtype.type(self.sigma**-2)
        windows = grid.windows(images)
        np.copyto(patches.reshape(windows.shape), windows)
        np.matmul(patches, weights, out=values)
        cells = images.reshape(b, grid.height, grid.columns, grid.channels)
        squares = np.einsum("bijc,bijc->bij", cells, cells)
        sums = sliding_window_view(squares, (grid.patch, grid.patch), axis=(1, 2)).sum(axis=(3, 4))
        norms = np.sqrt(sums).reshape(b, -1)
        np.divide(values, np.where(norms == 0, np.inf, norms)[..., None], out=values)
        with np.errstate(divide="ignore"):
            np.add(values, (np.log(norms) - inverse)[..., None], out=values)


@dataclass(frozen=True, eq=False)
class PatchFeatures:
    """A stack of layers as a row map; with `unit_norm` rows of features have length 1.

    An image is first divided by its largest value, so that brightness does not matter and nothing overflows. An image
    without contrast gives zeros.
    """

    layers: tuple[PatchLayer, ...]
    unit_norm: bool = True
    name: ClassVar[str] = "patch-kernels"

    def __post_init__(self) -> None:
        for before, after in pairwise(self.layers):
            grid = after.grid
            if (*before.grid.cells, len(before.landmarks)) != (grid.height, grid.columns, grid.channels):
                raise ConfigError(
                    "layers: expected the image of each layer to match the cells and landmarks of the previous layer"
                )

    def width(self, d: int) -> int:
        grid = self.layers[0].grid
        if d != grid.image_width:
            raise DataError(
                f"{self.name}: expected rows of {grid.height}×{grid.columns} pixels of {grid.channels} channels = "
                f"{grid.image_width} values, found {d} features; set image_shape=(height, width, channels)"
            )
        return self.layers[-1].width

    def cost(self, d: int, itemsize: int) -> MapCost:
        flops = sum(layer.flops_per_row for layer in self.layers)
        held = sum(layer.held_bytes for layer in self.layers)
        rows = self._strip_rows(np.dtype(f"f{itemsize}"))
        work = rows * (sum(layer.image_bytes(itemsize) for layer in self.layers) + 2 * d * itemsize)
        return MapCost(flops, 0, held + work)

    def apply(self, x: Array) -> Array:
        out = np.empty((len(x), self.width(x.shape[1])), x.dtype)
        rows = min(self._strip_rows(x.dtype), max(1, len(x)))
        layers = [layer.prepare(rows, x.dtype) for layer in self.layers]
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # a row that is not finite gives NaN
            for first in range(0, len(x), rows):
                strip = x[first : first + rows]
                peak = np.abs(strip).max(axis=1, initial=0, keepdims=True)
                peak[peak == 0] = 1
                images = np.ascontiguousarray(strip / peak)
                for layer in layers:
                    images = layer(images)
                out[first : first + len(strip)] = images
            return UnitNorm().apply(out) if self.unit_norm else out

    def _strip_rows(self, dtype: np.dtype[Any]) -> int:
        """Return the number of images that are processed at a time; it does not affect the bits."""
        return max(1, _STRIP_BYTES // max(layer.image_bytes(dtype.itemsize) for layer in self.layers))
