"""Small grey images: as text in a message, and as PNG bytes. Shapes: k images of (h, w)."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_IMAGES = 40
MOST_BYTES = 65_536  # of base64 text, all images of a message together
_MOST_SIDE = 4096


def pack(images: Array) -> dict[str, Any]:
    """Images (k, h, w) as plain data of at most 64 kB: {"shape": [h, w], "data": [base64 of h·w bytes, …]}.

    Each is stretched from its least to its largest value over 0 … 255. What does not fit is made smaller: sides by
    whole factors, means of their pixels; beyond 40 images none are taken.
    """
    images = np.asarray(images, np.float64)[:MOST_IMAGES]
    k, h, w = images.shape
    factor = 1
    while k * _text_bytes(-(-h // factor) * -(-w // factor)) > MOST_BYTES:
        factor += 1
    if factor > 1:
        # the last pixels stand in for those that a whole number of squares would need
        images = np.pad(images, ((0, 0), (0, -h % factor), (0, -w % factor)), mode="edge")
        images = images.reshape(k, -(-h // factor), factor, -(-w // factor), factor).mean(axis=(2, 4))
    low = images.min(axis=(1, 2), keepdims=True)
    spread = images.max(axis=(1, 2), keepdims=True) - low
    levels = np.rint((images - low) * (255 / np.where(spread > 0, spread, 1))).astype(np.uint8)
    return {
        "shape": list(levels.shape[1:]),
        "data": [base64.b64encode(image.tobytes()).decode() for image in levels],
    }


def _text_bytes(pixels: int) -> int:
    return 4 * -(-pixels // 3)


def unpack(packed: Mapping[str, Any]) -> Array:
    """The images of `pack`, (k, h, w) uint8.

    Raises
    ------
    ValueError
        It is not what `pack` gives.
    """
    try:
        h, w = (int(side) for side in packed["shape"])
        data = [base64.b64decode(text, validate=True) for text in packed["data"][:MOST_IMAGES]]
        if not (0 < h <= _MOST_SIDE and 0 < w <= _MOST_SIDE) or any(len(image) != h * w for image in data):
            raise ValueError(f"images of {h} by {w} pixels do not have {[len(image) for image in data][:3]}… bytes")
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"expected packed images, found {str(packed)[:80]}") from error
    return np.frombuffer(b"".join(data), np.uint8).reshape(len(data), h, w)


def png(image: Array) -> bytes:
    """A grey image (h, w) uint8, 0 black, as a PNG file."""
    h, w = image.shape
    # every line begins with the number of its filter: 0, none
    lines = np.concatenate([np.zeros((h, 1), np.uint8), image], axis=1)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _piece(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 0, 0, 0, 0)),
            _piece(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _piece(b"IEND", b""),
        )
    )


def _piece(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
