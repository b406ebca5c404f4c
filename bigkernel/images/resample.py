"""Bilinear resampling of images by an affine map each, many images at a time.

Positions are multiples of 2⁻¹⁶ pixels, computed with integers, and all else is elementwise: the pixels of an image do
not depend on what is resampled beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FRACTION_BITS = 16


@dataclass
class Resampler:
    """Bilinear resampling of some images at a time by an affine map each, with its buffers.

    Attributes
    ----------
    height, width : of an image
    rows : most images at a time
    dtype : of the pixels that come out, float32 or float64
    """

    height: int
    width: int
    rows: int
    dtype: Any

    def __post_init__(self) -> None:
        h, w, b = self.height, self.width, self.rows
        self._framed = np.zeros((b, h + 3, w + 3), self.dtype)
        self._down, self._across = np.empty((b, h, w), np.int32), np.empty((b, h, w), np.int32)
        self._index = np.empty((b, h, w), np.intp)
        self._parts = [np.empty((b, h, w), self.dtype) for _ in range(5)]
        self._first = (np.arange(b) * (h + 3) * (w + 3))[:, None, None]

    @staticmethod
    def pixel_bytes(itemsize: int) -> int:
        """Of the buffers, for a pixel of an image (and its frame)."""
        return 8 + 8 + 6 * itemsize

    def __call__(self, images: Array, affine: Array, ground: float = 0.0) -> Array:
        """Images (b, h, w) at affine (b, 2, 3) times (row, column, 1) of every pixel, `ground` beyond their edges.

        Returns
        -------
        (b, h, w), a buffer that the next call overwrites
        """
        b, h, w = len(images), self.height, self.width
        framed = self._framed[:b]
        framed[...] = ground
        framed[:, 1 : h + 1, 1 : w + 1] = images
        down, down_part = self._positions(affine[:, 0], self._down[:b], self._parts[0][:b], h)
        across, across_part = self._positions(affine[:, 1], self._across[:b], self._parts[1][:b], w)
        index = self._index[:b]
        np.multiply(down, w + 3, out=index)
        np.add(index, across, out=index)
        np.add(index, self._first[:b], out=index)
        top, right, bottom = (part[:b] for part in self._parts[2:])
        flat = framed.reshape(-1)
        self._lines(flat, index, across_part, top, right)
        index += w + 3
        self._lines(flat, index, across_part, bottom, right)
        return _between(top, bottom, down_part)

    def _positions(self, coefficients: Array, whole: Array, part: Array, side: int) -> tuple[Array, Array]:
        """Pixel before each position, in the frame, and how far behind it the position lies, 0 … 1."""
        one = 1 << FRACTION_BITS
        fixed = np.rint(coefficients * one).astype(np.int32)
        down = fixed[:, 0, None] * np.arange(self.height, dtype=np.int32) + fixed[:, 2, None]
        across = fixed[:, 1, None] * np.arange(self.width, dtype=np.int32)
        np.add(down[:, :, None], across[:, None, :], out=whole)
        # beyond the frame there is nothing but ground
        np.clip(whole, -one, side * one, out=whole)
        np.add(whole, one, out=whole)
        np.bitwise_and(whole, one - 1, out=self._index[: len(whole)])
        np.multiply(self._index[: len(whole)], 1 / one, out=part, casting="unsafe")
        np.right_shift(whole, FRACTION_BITS, out=whole)
        return whole, part

    def _lines(self, flat: Array, index: Array, part: Array, left: Array, right: Array) -> None:
        """`left` becomes the values between the pixels at index and index + 1."""
        np.take(flat, index, out=left, mode="clip")
        np.take(flat[1:], index, out=right, mode="clip")
        _between(left, right, part)


@dataclass
class LineResampler:
    """`Resampler` for maps that leave lines level: between two lines first, then along them, beyond whose ends is 0.

    Attributes
    ----------
    height, width, rows, dtype : see `Resampler`
    """

    height: int
    width: int
    rows: int
    dtype: Any

    def __post_init__(self) -> None:
        h, w, b = self.height, self.width, self.rows
        self._framed = np.zeros((b, h + 3, w + 3), self.dtype)
        self._lines = [np.empty((b, h, w + 3), self.dtype) for _ in range(2)]
        self._places, self._index = np.empty((b, h, w), np.int64), np.empty((b, h, w), np.intp)
        self._parts = [np.empty((b, h, w), self.dtype) for _ in range(3)]

    @staticmethod
    def pixel_bytes(itemsize: int) -> int:
        """See `Resampler`."""
        return 8 + 8 + 6 * itemsize

    def __call__(self, images: Array, affine: Array) -> Array:
        """Images (b, h, w) at affine (b, 2, 3) times (row, column, 1) of every pixel; affine[:, 0, 1] is 0.

        Returns
        -------
        (b, h, w), a buffer that the next call overwrites
        """
        b, h, w = len(images), self.height, self.width
        one = 1 << FRACTION_BITS
        fixed = np.rint(affine * one).astype(np.int64)
        self._framed[:b, 1 : h + 1, 1 : w + 1] = images
        lines, slope = self._between_lines(fixed[:, 0, :1] * np.arange(h) + fixed[:, 0, 2:])
        places, index = self._places[:b], self._index[:b]
        starts = fixed[:, 1, :1] * np.arange(h) + fixed[:, 1, 2:] + one
        np.add(starts[:, :, None], (fixed[:, 1, 1:2] * np.arange(w))[:, None, :], out=places)
        # beyond the frame there is nothing but ground
        np.clip(places, 0, (w + 1) * one, out=places)
        np.add(places, (np.arange(b * h) * ((w + 3) * one)).reshape(b, h, 1), out=places)
        np.right_shift(places, FRACTION_BITS, out=index)
        np.bitwise_and(places, one - 1, out=places)
        part, left, right = (values[:b] for values in self._parts)
        np.copyto(part, places, casting="unsafe")
        np.take(lines, index, out=left, mode="clip")
        np.take(slope, index, out=right, mode="clip")
        np.multiply(right, part, out=right)
        np.add(left, right, out=left)
        return left

    def _between_lines(self, places: Array) -> tuple[Array, Array]:
        """Lines at places (b, h) of the framed images, and 2⁻¹⁶ of what each of their pixels is to the next, flat."""
        (b, h), one, flat = places.shape, 1 << FRACTION_BITS, self._framed.reshape(-1, self.width + 3)
        inside = np.clip(places, -one, h * one) + one
        index = (inside >> FRACTION_BITS) + (np.arange(b) * (h + 3))[:, None]
        top, bottom = (line[:b] for line in self._lines)
        np.take(flat, index, axis=0, out=top, mode="clip")
        np.take(flat, index + 1, axis=0, out=bottom, mode="clip")
        _between(top, bottom, ((inside & (one - 1)) / one).astype(self.dtype)[:, :, None])
        lines, slope = top.reshape(-1), bottom.reshape(-1)
        np.subtract(lines[1:], lines[:-1], out=slope[:-1])
        np.multiply(slope[:-1], 1 / one, out=slope[:-1])
        slope[-1] = 0
        return lines, slope


def _between(a: Array, b: Array, part: Array) -> Array:
    """a + part·(b − a), in a; b is overwritten."""
    np.subtract(b, a, out=b)
    np.multiply(b, part, out=b)
    np.add(a, b, out=a)
    return a
