"""Height and width of rows that are images, and their limits."""

from __future__ import annotations

import math
from typing import Any

from bigkernel.errors import ConfigError, DataError

LONGEST_SIDE = 1024  # pixels: positions then fit 32 bits


def require_image(height: int, width: int) -> None:
    """Raise `ConfigError` unless both sides are from 1 to `LONGEST_SIDE` pixels."""
    if not (1 <= height <= LONGEST_SIDE and 1 <= width <= LONGEST_SIDE):
        raise ConfigError(f"images: expected sides of 1 to {LONGEST_SIDE:,} pixels, found {height}×{width}")


def image_shape_of(X: Any, image_shape: tuple[int, int] | None, d: int) -> tuple[int, int]:
    """Return (height, width) of rows of d pixels: as given, or of the corpus X, or of a square.

    `DataError`: the product of the sides is not d; or no shape is known and d is not a square.
    """
    if image_shape is None:
        image_shape = getattr(getattr(X, "info", None), "image_shape", None)  # of a corpus
    if image_shape is None:
        side = math.isqrt(d)
        if side * side != d:
            raise DataError(f"rows of {d} features are not square images; set image_shape=(height, width)")
        return side, side
    height, width = (int(side) for side in image_shape)
    if height * width != d:
        raise DataError(f"image_shape: {height}×{width} is {height * width} pixels, but rows have {d}")
    return height, width
