"""Bilinear resampling of images by an affine map each that leaves lines level, many images at a time.

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
class LineResampler:
    """Resampling of some images at a time, with its buffers: between two lines first, then along them; 0 beyond.

    Positions are multiples of 2⁻¹⁶ pixels: float32 holds those below 2⁸ exactly, and float64 all others.
    """

    height: int
    width: int
    rows: int  # most images at a time
    dtype: Any  # of the pixels that come out, float32 or float64
    reach: float  # pixels; neither a position along a line nor a term of it is larger

    def __post_init__(self) -> None:
        h, w, b = self.height, self.width, self.rows
        self._framed = np.zeros((b, h + 3, w + 3), self.dtype)
        self._lines = [np.empty((b, h, w + 3), self.dtype) for _ in range(2)]
        places = self._place_dtype(self.reach, self.dtype)
        self._places, self._whole = np.empty((b, h, w), places), np.empty((b, h, w), places)
        self._parts = [np.empty((b, h, w), self.dtype) for _ in range(2)]
        self._near, self._index = np.empty((b, h, w), np.int32), np.empty((b, h, w), np.intp)
        self._line_starts = np.repeat(np.arange(b * h, dtype=np.int32) * (w + 3), w).reshape(b, h, w)
        self._columns = np.tile(np.arange(w, dtype=places), h).reshape(h, w)

    @staticmethod
    def _place_dtype(reach: float, dtype: Any) -> np.dtype[Any]:
        """A dtype that holds positions up to `reach` pixels, and one more, exactly."""
        exact = np.dtype(dtype) == np.float32 and reach + 1 < 1 << np.finfo(np.float32).nmant + 1 - FRACTION_BITS
        return np.dtype(np.float32 if exact else np.float64)

    @staticmethod
    def pixel_bytes(itemsize: int, reach: float) -> int:
        """Of the buffers, for a pixel of an image (and its frame)."""
        return 8 + 4 + 4 + 5 * itemsize + 2 * LineResampler._place_dtype(reach, f"f{itemsize}").itemsize

    def __call__(self, images: Array, affine: Array, out: Array | None = None) -> Array:
        """Images (b, h, w) at affine (b, 2, 3) times (row, column, 1) of every pixel; affine[:, 0, 1] is 0.

        Returns
        -------
        (b, h, w), `out`, which may be `images`, or a buffer that the next call overwrites
        """
        b, h, w = len(images), self.height, self.width
        fixed = np.rint(affine * (1 << FRACTION_BITS)) / (1 << FRACTION_BITS)
        self._framed[:b, 1 : h + 1, 1 : w + 1] = images
        lines, slope = self._between_lines(fixed[:, 0, :1] * np.arange(h) + fixed[:, 0, 2:])
        places, whole, index = self._places[:b], self._whole[:b], self._index[:b]
        starts = (fixed[:, 1, :1] * np.arange(h) + (fixed[:, 1, 2:] + 1)).astype(places.dtype)
        np.multiply(self._columns, fixed[:, 1, 1, None, None].astype(places.dtype), out=whole)
        np.copyto(places, starts[:, :, None])
        np.add(places, whole, out=places)
        # beyond the frame there is nothing but ground
        np.clip(places, 0, w + 1, out=places)
        np.floor(places, out=whole)
        np.subtract(places, whole, out=places)
        # by way of int32: a conversion to int64 takes several times as long
        near = self._near[:b]
        np.copyto(near, whole, casting="unsafe")
        np.add(near, self._line_starts[:b], out=near)
        np.copyto(index, near)
        left, right = (values[:b] for values in self._parts)
        # every index is inside; to wrap it is less work than to clip it
        np.take(lines, index, out=left, mode="wrap")
        np.take(slope, index, out=right, mode="wrap")
        np.multiply(right, places, out=right, casting="same_kind")
        return np.add(left, right, out=left if out is None else out)

    def _between_lines(self, places: Array) -> tuple[Array, Array]:
        """Lines at places (b, h) of the framed images, and how far each of their pixels is from the next, flat."""
        (b, h), flat = places.shape, self._framed.reshape(-1, self.width + 3)
        inside = np.clip(places, -1, h) + 1
        whole = np.floor(inside)
        index = whole.astype(np.intp) + (np.arange(b) * (h + 3))[:, None]
        top, bottom = (line[:b] for line in self._lines)
        np.take(flat, index, axis=0, out=top, mode="clip")
        np.take(flat, index + 1, axis=0, out=bottom, mode="clip")
        _between(top, bottom, (inside - whole).astype(self.dtype)[:, :, None])
        lines, slope = top.reshape(-1), bottom.reshape(-1)
        np.subtract(lines[1:], lines[:-1], out=slope[:-1])
        slope[-1] = 0
        return lines, slope


def _between(a: Array, b: Array, part: Array) -> Array:
    """a + part·(b − a), in a; b is overwritten."""
    np.subtract(b, a, out=b)
    np.multiply(b, part, out=b)
    np.add(a, b, out=a)
    return a
