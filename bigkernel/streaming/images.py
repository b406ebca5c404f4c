"""Row maps for images of digits: normalisation of pose by moments, and features of oriented strokes.

Both transform single images and need neither labels nor images of the target domain; they remove what differs between
sources of digits (position, slant, size, thickness of the pen). n images of h×w pixels are rows of h·w; pixels are ink,
0 is the background, and negative values count as 0.

All operations are elementwise, sums in a fixed order, or products of a fixed shape, so that a row has the same bits in
any block.

Liu, Nakashima, Sako & Fujisawa, Handwritten digit recognition: investigation of normalization and feature extraction
techniques, Pattern Recognition 37 (2004): moment normalisation, directions of the gradient by the parallelogram rule,
and the square root of the features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from bigkernel.arrays import Array, DType
from bigkernel.errors import ConfigError, DataError
from bigkernel.streaming.chunk import MapCost

LONGEST_SIDE = 1024  # pixels: positions then fit 32 bits
DIRECTIONS = 8  # of the gradient, in the order of `Orientations`
_MOST_CELLS = 64
_STRIP_PIXELS = 2**16  # pixels of images that are processed at a time; buffers stay in the cache of a core
_POSED_ROWS = 512  # images whose poses are computed at a time
_POSE_BYTES = 600  # per pose
_LANES = 32  # images of a tile of orientations, a multiple of the vector length of any processor
_TILES = 4  # tiles whose features are scaled together
_LANE_PIXELS = 2**12  # largest image that shares its tile with others
# Cells of a product: from 12 on OpenBLAS' float32 kernel of AVX2 sums images at the ends of a tile in another order.
_CELLS_AT_ONCE = 8
_SCALES = (0.25, 4.0)  # limits of the scale of a normalised image
_STEEPEST = 2.0  # largest slant that is removed, in pixels across for one down
_PIXEL_VARIANCE = 1 / 12  # of ink spread evenly over one pixel
_FRACTION_BITS = 16  # of positions in pixels


@dataclass(frozen=True)
class _ImageMap:
    """Base of the maps: rows of `height`·`width` pixels."""

    height: int  # in pixels, as columns
    columns: int
    name: ClassVar[str]

    def __post_init__(self) -> None:
        require_image(self.height, self.columns)

    def _require(self, d: int) -> None:
        if d != self.height * self.columns:
            raise DataError(
                f"{self.name}: expected rows of {self.height}×{self.columns} = {self.height * self.columns} pixels, "
                f"found {d} features; set image_shape=(height, width)"
            )

    @property
    def _strip_rows(self) -> int:
        """Number of images that are processed at a time; it does not affect the bits."""
        return max(1, _STRIP_PIXELS // (self.height * self.columns))


@dataclass(frozen=True)
class MomentNormalise(_ImageMap):
    """Translate, shear and scale every image so that the moments of its ink agree with a standard.

    The centroid moves to the middle; the slant cov(x, y)/var(y) is removed; the vertical standard deviation of the ink
    becomes `spread`·h. The horizontal one becomes the geometric mean, weighted by `aspect`, of its value after scaling
    by the vertical factor and of `breadth`·w: an aspect of 0 keeps the proportions of the original, 1 makes all images
    equally broad. Scales are limited to ¼ … 4 and slants to ±2; an image without ink is not changed.
    """

    spread: float = 0.22  # of the ink, as a share of the height; positive
    breadth: float = 0.17  # and of the width
    aspect: float = 0.5  # 0 … 1
    name: ClassVar[str] = "moment-normalise"

    def width(self, d: int) -> int:
        self._require(d)
        return d

    def cost(self, d: int, itemsize: int) -> MapCost:
        pixels = self._strip_rows * (self.height + 3) * (self.columns + 3)
        held = pixels * (8 + _LineResampler.pixel_bytes(itemsize, self._reach))
        return MapCost(30.0 * d, 0, held + _POSED_ROWS * _POSE_BYTES)

    def apply(self, x: Array) -> Array:
        images = x.reshape(len(x), self.height, self.columns)
        rows = min(self._strip_rows, max(1, len(x)))
        resampler = _LineResampler(self.height, self.columns, rows, x.dtype, self._reach)
        for start in range(0, len(x), _POSED_ROWS):
            posed = images[start : start + _POSED_ROWS]
            with np.errstate(over="ignore", invalid="ignore"):  # rows that are not finite are not changed
                affine, inked = self._affine(posed)
                for first in range(0, len(posed), rows):
                    some = slice(first, first + rows)
                    np.copyto(posed[some], resampler(posed[some], affine[some]), where=inked[some, None, None])
        return x

    @property
    def _reach(self) -> float:
        """The largest position along a line, in pixels: a centroid and half an image, enlarged and slanted."""
        return self.columns + (self.columns + _STEEPEST * self.height) / 2 / _SCALES[0]

    def _affine(self, images: Array) -> tuple[Array, Array]:
        """Return maps (b, 2, 3) from pixels of the result to places in images (b, h, w), and which have ink (b,)."""
        h, w = images.shape[1:]
        peak = np.empty(len(images))
        sums = np.empty((len(images), 3, 3))
        for first in range(0, len(images), self._strip_rows):
            some = slice(first, first + self._strip_rows)
            peak[some], sums[some] = _moment_sums(images[some])
        inked = (peak > 0) & np.isfinite(peak)
        mass = np.where(inked, sums[:, 0, 0], 1.0)
        (_, x, x2), (y, xy, _), (y2, *_) = (sums / mass[:, None, None]).transpose(1, 2, 0)
        first_row, first_column = -(h - 1) / 2, -(w - 1) / 2  # from the middle
        var_y = y2 - y**2 + _PIXEL_VARIANCE
        slant = np.clip((xy - x * y) / var_y, -_STEEPEST, _STEEPEST)
        # of the ink after removal of the slant
        var_x = np.maximum(x2 - x**2 - 2 * slant * (xy - x * y) + slant**2 * (y2 - y**2), 0) + _PIXEL_VARIANCE
        down = np.clip(self.spread * h / np.sqrt(var_y), *_SCALES)
        across = np.clip(down ** (1 - self.aspect) * (self.breadth * w / np.sqrt(var_x)) ** self.aspect, *_SCALES)
        affine = np.zeros((len(images), 2, 3))
        # v = ȳ + (r − r₀)/s_y,  u = x̄ + (c − c₀)/s_x + slant·(r − r₀)/s_y
        affine[:, 0, 0] = 1 / down
        affine[:, 1, 0] = slant / down
        affine[:, 1, 1] = 1 / across
        affine[:, 0, 2] = y + (h - 1) / 2 + first_row / down
        affine[:, 1, 2] = x + (w - 1) / 2 + first_column / across + slant * first_row / down
        affine[~inked] = 0
        return affine, inked


def _moment_sums(images: Array) -> tuple[Array, Array]:
    """Return the largest pixels (b,) of images (b, h, w), and Σ rᵃcᵏ·ink for a, k of 0, 1, 2, (b, 3, 3) float64."""
    h, w = images.shape[1:]
    peak = images.reshape(len(images), -1).max(axis=1).astype(np.float64)
    ink = images.astype(np.float64)
    if not images.min() >= 0:  # the check is much faster than the maximum, and fails for NaN too
        np.maximum(ink, 0, out=ink)
    if images.dtype == np.float64:  # against overflow of sums
        np.divide(ink, np.where((peak > 0) & np.isfinite(peak), peak, 1.0)[:, None, None], out=ink)
    # products of one image each
    sums: Array = np.matmul(_powers(h).T, np.matmul(ink, _powers(w)))
    return peak, sums


def _powers(side: int) -> Array:
    """Return 1, u and u² (side, 3) of the places u of the pixels along a side, from its middle."""
    places = np.arange(side) - (side - 1) / 2
    return np.stack([np.ones_like(places), places, places**2], axis=1)


@dataclass
class _LineResampler:
    """Bilinear resampling of some images at a time by affine maps that keep lines horizontal, with its buffers.

    Interpolates between two lines first, then along them; 0 outside. Positions are multiples of 2⁻¹⁶ pixels: float32
    represents those below 2⁸ exactly, float64 all others. The pixels of an image do not depend on the other images.
    """

    height: int
    width: int
    rows: int  # most images at a time
    dtype: DTypeLike  # of the resulting pixels, float32 or float64
    reach: float  # bound on a position along a line and its terms, in pixels

    def __post_init__(self) -> None:
        h, w, b = self.height, self.width, self.rows
        self._framed = np.zeros((b, h + 3, w + 3), self.dtype)
        self._lines = [np.empty((b, h, w + 3), self.dtype) for _ in range(2)]
        places = self._place_dtype(self.reach, self.dtype)
        self._places, self._whole = np.empty((b, h, w), places), np.empty((b, h, w), places)
        self._values = [np.empty((b, h, w), self.dtype) for _ in range(2)]
        self._near, self._index = np.empty((b, h, w), np.int32), np.empty((b, h, w), np.intp)
        self._line_starts = np.repeat(np.arange(b * h, dtype=np.int32) * (w + 3), w).reshape(b, h, w)
        self._columns = np.tile(np.arange(w, dtype=places), h).reshape(h, w)

    @staticmethod
    def _place_dtype(reach: float, dtype: DTypeLike) -> DType:
        """Return a dtype that represents positions up to `reach` pixels, and one more, exactly."""
        exact = np.dtype(dtype) == np.float32 and reach + 1 < 1 << np.finfo(np.float32).nmant + 1 - _FRACTION_BITS
        return np.dtype(np.float32 if exact else np.float64)

    @staticmethod
    def pixel_bytes(itemsize: int, reach: float) -> int:
        """Return the bytes of the buffers per pixel of an image with its frame."""
        return 8 + 4 + 4 + 5 * itemsize + 2 * _LineResampler._place_dtype(reach, f"f{itemsize}").itemsize

    def __call__(self, images: Array, affine: Array) -> Array:
        """Resample images (b, h, w) at affine (b, 2, 3) times (row, column, 1) of every pixel; affine[:, 0, 1] is 0.

        The result is in a buffer that the next call overwrites.
        """
        b, h, w = len(images), self.height, self.width
        fixed = np.rint(affine * (1 << _FRACTION_BITS)) / (1 << _FRACTION_BITS)
        self._framed[:b, 1 : h + 1, 1 : w + 1] = images
        lines, slope = self._between_lines(fixed[:, 0, :1] * np.arange(h) + fixed[:, 0, 2:])
        places, whole, index = self._places[:b], self._whole[:b], self._index[:b]
        starts = (fixed[:, 1, :1] * np.arange(h) + (fixed[:, 1, 2:] + 1)).astype(places.dtype)
        np.multiply(self._columns, fixed[:, 1, 1, None, None].astype(places.dtype), out=whole)
        np.copyto(places, starts[:, :, None])
        np.add(places, whole, out=places)
        # outside the frame everything is background
        np.clip(places, 0, w + 1, out=places)
        np.floor(places, out=whole)
        np.subtract(places, whole, out=places)
        # by way of int32, since conversion to int64 takes several times as long
        near = self._near[:b]
        np.copyto(near, whole, casting="unsafe")
        np.add(near, self._line_starts[:b], out=near)
        np.copyto(index, near)
        left, right = (values[:b] for values in self._values)
        # every index is valid; "wrap" is faster than "clip"
        np.take(lines, index, out=left, mode="wrap")
        np.take(slope, index, out=right, mode="wrap")
        np.multiply(right, places, out=right, casting="same_kind")
        return np.add(left, right, out=left)

    def _between_lines(self, places: Array) -> tuple[Array, Array]:
        """Return lines at places (b, h) of the framed images and the differences of neighbouring pixels, flat."""
        (b, h), flat = places.shape, self._framed.reshape(-1, self.width + 3)
        inside = np.clip(places, -1, h) + 1
        whole = np.floor(inside)
        index = whole.astype(np.intp) + (np.arange(b) * (h + 3))[:, None]
        top, bottom = (line[:b] for line in self._lines)
        np.take(flat, index, axis=0, out=top, mode="clip")
        np.take(flat, index + 1, axis=0, out=bottom, mode="clip")
        # top + part·(bottom − top)
        np.subtract(bottom, top, out=bottom)
        np.multiply(bottom, (inside - whole).astype(self.dtype)[:, :, None], out=bottom)
        np.add(top, bottom, out=top)
        lines, slope = top.reshape(-1), bottom.reshape(-1)
        np.subtract(lines[1:], lines[:-1], out=slope[:-1])
        slope[-1] = 0
        return lines, slope


@dataclass(frozen=True)
class Orientations(_ImageMap):
    """Features of strokes by direction and place: 8 directions of the gradient in c×c cells, 512 features with 8×8.

    The gradient (central differences, background outside) is decomposed into components along an axis and along a
    diagonal (parallelogram rule); cells average the components of each of the 8 directions with weights that fall
    linearly to 0 at the centre of the next cell. A feature is √(f/Σf). An image without edges gives zeros.

    Features are ordered by direction (right, left, down, up, and the diagonals right down, left down, right up, left
    up: towards more ink), then by cell, line by line.
    """

    cells: int = 8  # c, down and across
    name: ClassVar[str] = "orientations"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.cells <= _MOST_CELLS:
            raise ConfigError(f"cells: expected 1 to {_MOST_CELLS}, found {self.cells}")

    def width(self, d: int) -> int:
        self._require(d)
        return DIRECTIONS * self.cells * self.cells

    def cost(self, d: int, itemsize: int) -> MapCost:
        framed = (self.height + 2) * (self.columns + 2)
        features = self.cells * self.cells
        pixels = (6 + DIRECTIONS) * framed + 2 * DIRECTIONS * (self.cells * self.columns + (1 + 2 * _TILES) * features)
        pooling = 2.0 * self.cells * (self.height * self.columns + self.columns * self.cells)
        return MapCost(DIRECTIONS * (3.0 * d + pooling), 0, self._lanes * pixels * itemsize)

    def apply(self, x: Array) -> Array:
        out = np.empty((len(x), self.width(x.shape[1])), x.dtype)
        work = _Gradients(self, self._lanes, x.dtype)
        rows = self._lanes * _TILES
        for first in range(0, len(x), rows):
            strip = x[first : first + rows]
            with np.errstate(invalid="ignore"):  # rows that are not finite give NaN
                out[first : first + len(strip)] = work(strip).T
        return out

    @property
    def _lanes(self) -> int:
        """Number of images of a tile, from their size; large images are processed one by one."""
        return _LANES if self.height * self.columns <= _LANE_PIXELS else 1

    def pooling(self, side: int) -> Array:
        """Return the weights (cells, side) of pixels along a side in each cell, float64, falling from its centre."""
        reach = max(1.0, side / self.cells)
        shares = np.zeros((self.cells, side))
        for cell, weights in enumerate(shares):
            centre = (cell + 0.5) * side / self.cells - 0.5
            weights[:] = np.maximum(0.0, 1 - np.abs(np.arange(side) - centre) / reach)
            weights /= weights.sum()
        return shares


class _Gradients:
    """Orientation features of some tiles of images, with the buffers: images are the last axis of all arrays.

    A tile has a fixed width, with empty lanes, so that products have a fixed shape and rows the same bits in any block.
    """

    def __init__(self, orientations: Orientations, lanes: int, dtype: DTypeLike) -> None:
        height, columns, cells = orientations.height, orientations.columns, orientations.cells
        self._scaled = np.empty((lanes, height * columns), dtype)
        self._framed = np.zeros((height + 2, columns + 2, lanes), dtype)
        self._slopes = np.empty((2, 2, height, columns, lanes), dtype)  # across and down, and their lengths
        self._planes = np.empty((DIRECTIONS, height, columns, lanes), dtype)
        self._pooled = np.empty((DIRECTIONS, cells, columns, lanes), dtype)
        self._cells = np.empty((DIRECTIONS, cells, cells, lanes), dtype)
        self._features = np.empty((DIRECTIONS, cells * cells, _TILES * lanes), dtype)
        self._sums = np.empty((DIRECTIONS // 2 * cells * cells, _TILES * lanes), dtype)
        self._down, self._across = (orientations.pooling(side).astype(dtype) for side in (height, columns))

    def __call__(self, x: Array) -> Array:
        """Compute features (p, b) of x (b, h·w), in a buffer that the next call overwrites."""
        b, lanes = len(x), self._framed.shape[-1]
        for first in range(0, b, lanes):
            self._features[:, :, first : first + lanes] = self._pool(x[first : first + lanes])
        features = self._features[:, :, :b]
        features[4:] *= math.sqrt(2)
        return self._normalise(self._features.reshape(-1, lanes * _TILES)[:, :b])

    def _pool(self, x: Array) -> Array:
        """Compute sums (8, cells, lanes) of the planes of a tile x (b, h·w)."""
        b, (h, w) = len(x), self._slopes.shape[2:4]
        # in units of the largest pixel, against overflow
        scaled = np.abs(x, out=self._scaled[:b])
        peak = scaled.max(axis=1, keepdims=True)
        peak[peak == 0] = 1
        np.divide(x, peak, out=scaled)
        np.copyto(self._framed[1:-1, 1:-1, :b], scaled.T.reshape(h, w, b))
        self._framed[1:-1, 1:-1, b:] = 0
        self._split()
        lines = self._planes.reshape(DIRECTIONS, h, -1)
        pooled = self._pooled.reshape(DIRECTIONS, len(self._down), -1)
        for first in range(0, len(self._down), _CELLS_AT_ONCE):
            some = slice(first, first + _CELLS_AT_ONCE)
            np.matmul(self._down[some], lines, out=pooled[:, some])
        for first in range(0, len(self._across), _CELLS_AT_ONCE):
            some = slice(first, first + _CELLS_AT_ONCE)
            np.matmul(self._across[some], self._pooled, out=self._cells[:, :, some])
        return self._cells.reshape(DIRECTIONS, -1, self._cells.shape[-1])

    def _split(self) -> None:
        """Write twice the gradients of the framed images to the planes of 8 directions, diagonal ones without √2."""
        framed, planes = self._framed, self._planes
        slopes, lengths = self._slopes
        np.subtract(framed[1:-1, 2:], framed[1:-1, :-2], out=slopes[0])
        np.subtract(framed[2:, 1:-1], framed[:-2, 1:-1], out=slopes[1])
        np.abs(slopes, out=lengths)
        # |s| + s and |s| − s: twice the positive and negative parts of a slope s; right, left, down, up
        np.add(lengths, slopes, out=planes[0:4:2])
        np.subtract(lengths, slopes, out=planes[1:4:2])
        # along the diagonals: √2 times the shorter one; right down, left down, right up, left up
        across, along = planes[:2], planes[2:4]
        np.minimum(across, along[0], out=planes[4:6])
        np.minimum(across, along[1], out=planes[6:])
        # along the axes: the longer of the two slopes less the shorter one
        for shorter in (planes[4:6], planes[6:]):
            np.subtract(across, shorter, out=across)
        for shorter in (planes[4::2], planes[5::2]):
            np.subtract(along, shorter, out=along)

    def _normalise(self, values: Array) -> Array:
        """Replace values (p, b) by √(f/Σf), in place; pairwise sums give the same bits for any b."""
        half = -(-len(values) // 2)
        total = self._sums[:half, : values.shape[1]]
        np.copyto(total, values[:half])
        np.add(total[: len(values) - half], values[half:], out=total[: len(values) - half])
        while len(total) > 1:
            half = -(-len(total) // 2)
            np.add(total[: len(total) - half], total[half:], out=total[: len(total) - half])
            total = total[:half]
        sums = np.where(total[0] == 0, 1, total[0])
        np.divide(values, sums, out=values)
        return np.sqrt(values, out=values)


def require_image(height: int, width: int) -> None:
    """Raise `ConfigError` unless both sides are from 1 to `LONGEST_SIDE` pixels."""
    if not (1 <= height <= LONGEST_SIDE and 1 <= width <= LONGEST_SIDE):
        raise ConfigError(f"images: expected sides of 1 to {LONGEST_SIDE:,} pixels, found {height}×{width}")


def image_shape_of(X: object, image_shape: Sequence[int] | None, d: int) -> tuple[int, int]:
    """Return height and width of rows of d values: as given, or of the corpus X, or of a square.

    `ConfigError`: the shape is not two whole numbers from 1. `DataError`: their product is not d; or no shape is known
    and d is not a square.
    """
    if image_shape is None:
        image_shape = getattr(getattr(X, "info", None), "image_shape", None)  # of a corpus
    if image_shape is None:
        side = math.isqrt(d)
        if side * side != d:
            raise DataError(f"rows of {d} features are not square images; set image_shape=(height, width)")
        return side, side
    shape = tuple(np.ravel(image_shape).tolist())
    if len(shape) != 2 or not all(side >= 1 and side == int(side) for side in shape):
        raise ConfigError(f"image_shape: expected (height, width) in pixels, found {image_shape!r}")
    height, width = map(int, shape)
    if height * width != d:
        raise DataError(f"image_shape: {height}×{width} pixels are {height * width} values, but rows have {d}")
    return height, width
