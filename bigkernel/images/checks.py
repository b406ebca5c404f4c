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
