"""Small tables and grey pictures as HTML, for values that a notebook shows, and as text in a message.

Text from outside is escaped, and its control characters are shown as letters.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.arrays import Array

MOST_IMAGES = 40
MOST_BYTES = 65_536  # of base64 text, all images of a message together
_MOST_LETTERS = 300  # of one cell
_CELL = 'style="text-align:left;padding:1px 8px 1px 0;vertical-align:top"'
_PICTURE = 'style="height:48px;image-rendering:pixelated;border:1px solid #8888"'


def table(title: str, figures: Mapping[str, Any]) -> str:
    """Return a table of names and values; what is empty is left out."""
    lines = "".join(
        f"<tr><th {_CELL}>{escaped(name.replace('_', ' '))}</th><td {_CELL}>{escaped(readable(name, value))}</td></tr>"
        for name, value in figures.items()
        if value is not None and value not in ("", [], (), {})
    )
    caption = f'<caption style="text-align:left;white-space:nowrap"><b>{escaped(title)}</b></caption>'
    return f"<table>{caption}{lines}</table>"


def columns(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a table of several columns with a header."""
    head = "".join(f"<th {_CELL}>{escaped(name)}</th>" for name in header)
    body = ("".join(f"<td {_CELL}>{escaped(readable('', cell))}</td>" for cell in line) for line in lines)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in body)}</table>"


def folded(summary: str, content: str) -> str:
    """Return content, HTML itself, that a click shows."""
    return f"<details><summary>{escaped(summary.replace('_', ' '))}</summary>{content}</details>"


def pictures(shape: Sequence[int], images: Iterable[bytes], labels: Iterable[object]) -> str:
    """Return grey pictures of height and width `shape`, h·w bytes each, side by side above their labels."""
    figures = (
        f'<figure style="display:inline-block;margin:4px;text-align:center"><img {_PICTURE} alt="row" '
        f'src="data:image/png;base64,{base64.b64encode(_png(image, *shape)).decode()}"/>'
        f"<figcaption>{escaped(label)}</figcaption></figure>"
        for image, label in zip(images, labels, strict=False)
    )
    return "".join(figures)


def readable(name: str, value: Any) -> str:
    """Return a figure for people; bytes and seconds, by their name, with a unit."""
    if isinstance(value, Mapping) and "name" in value:  # a kernel
        rest = (f"{key}={readable(key, item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({', '.join(rest)})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {readable(name, item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(readable(name, item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if "bytes" in name and isinstance(value, int):
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, float):
        return f"{value:,.4g}" + (" s" if name.endswith("seconds") else "")
    return f"{value:,}" if isinstance(value, int) else str(value)


def escaped(value: object) -> str:
    """Return the letters of a text, none of which is markup or obeyed."""
    text = str(value)
    text = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}… ({len(text):,} letters)"
    return html.escape("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text))


def _png(image: bytes, height: int, width: int) -> bytes:
    """Return a grey image, 0 black, as a PNG file."""
    # every line begins with the number of its filter: 0, none
    lines = b"".join(b"\0" + image[row * width : (row + 1) * width] for row in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pieces = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in pieces
    )


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
