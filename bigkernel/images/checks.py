"""Checks of what makes copies of images: their sides, the seed, and the rows that come in."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError

LONGEST_SIDE = 1024  # pixels: positions then fit 32 bits


def require_image(height: int, width: int, refusal: type[ConfigError | DataError] = ConfigError) -> None:
    """Raise `refusal` where images of such sides cannot be worked on."""
    if not (1 <= height <= LONGEST_SIDE and 1 <= width <= LONGEST_SIDE):
        raise refusal(f"images of {height}×{width} pixels: expected sides of 1 to {LONGEST_SIDE:,} pixels")


def require_seed(seed: int) -> None:
    """Raise ConfigError unless `seed` is a key of `images.elastic.draws`."""
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed: expected 0 to 2⁶³ − 1, found {seed}")


def require_rows(originals: NDArray[Any], height: int, width: int) -> None:
    """Raise DataError unless `originals` are rows of height·width pixels."""
    if originals.ndim != 2 or originals.shape[1] != height * width:
        raise DataError(
            f"originals: expected rows of {height}×{width} = {height * width} pixels, found shape {originals.shape}"
        )
