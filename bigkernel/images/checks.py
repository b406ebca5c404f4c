"""Height and width of rows that are images, and their limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bigkernel.errors import ConfigError, DataError

LONGEST_SIDE = 1024  # pixels: positions then fit 32 bits


def require_image(height: int, width: int) -> None:
    """Raise `ConfigError` unless both sides are from 1 to `LONGEST_SIDE` pixels."""
    if not (1 <= height <= LONGEST_SIDE and 1 <= width <= LONGEST_SIDE):
        raise ConfigError(f"images: expected sides of 1 to {LONGEST_SIDE:,} pixels, found {height}×{width}")


def image_shape_of(
    X: object, image_shape: Sequence[int] | None, d: int, *, channels: bool = False
) -> tuple[int, int, int]:
    """Return height, width and channels of rows of d values: as given, or of the corpus X, or of a square.

    `channels`: whether an image may have more than one. `ConfigError`: the shape is not of so many whole numbers from
    1. `DataError`: their product is not d; or no shape is known and d is not a square.
    """
    if image_shape is None:
        image_shape = getattr(getattr(X, "info", None), "image_shape", None)  # of a corpus
    if image_shape is None:
        side = math.isqrt(d)
        if side * side != d:
            raise DataError(f"rows of {d} features are not square images; set image_shape=(height, width)")
        return side, side, 1
    shape = tuple(np.ravel(image_shape).tolist())
    if len(shape) not in (2, 2 + channels) or not all(side >= 1 and side == int(side) for side in shape):
        expected = "or (height, width, channels)" if channels else "in pixels"
        raise ConfigError(f"image_shape: expected (height, width) {expected}, found {image_shape!r}")
    height, width, count = map(int, (*shape, 1)[:3])
    if height * width * count != d:
        each = f" of {count} channels" if channels else ""
        raise DataError(
            f"image_shape: {height}×{width} pixels{each} are {height * width * count} values, but rows have {d}"
        )
    return height, width, count
