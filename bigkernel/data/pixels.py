"""Small grey images as text in a message. Shapes: k images of (h, w)."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.arrays import Array

MOST_IMAGES = 40
MOST_BYTES = 65_536  # of base64 text, all images of a message together


def pack(images: Array) -> dict[str, Any]:
    """Return images (k, h, w) as plain data of at most 64 kB: {"shape": [h, w], "data": [base64 of h·w bytes, …]}.

    Each is stretched from its least to its largest value over 0 … 255. What does not fit is made smaller: sides by
    whole factors, means of their pixels; beyond 40 images none are taken.
    """
    images = np.asarray(images, np.float64)[:MOST_IMAGES]
    k, h, w = images.shape
    factor = 1
    while k * 4 * -(-(-(-h // factor) * -(-w // factor)) // 3) > MOST_BYTES:
        factor += 1
    if factor > 1:
        # the last pixels stand in for those that a whole number of squares would need
        images = np.pad(images, ((0, 0), (0, -h % factor), (0, -w % factor)), mode="edge")
        images = images.reshape(k, -(-h // factor), factor, -(-w // factor), factor).mean(axis=(2, 4))
    levels = grey(images)
    return {
        "shape": list(levels.shape[1:]),
        "data": [base64.b64encode(image.tobytes()).decode() for image in levels],
    }


def grey(images: Array) -> NDArray[np.uint8]:
    """Stretch every image (k, h, w) from its least to its largest value over 0 … 255."""
    images = np.asarray(images, np.float64)
    low = images.min(axis=(1, 2), keepdims=True)
    spread = images.max(axis=(1, 2), keepdims=True) - low
    levels: NDArray[np.uint8] = np.rint((images - low) * (255 / np.where(spread > 0, spread, 1))).astype(np.uint8)
    return levels
