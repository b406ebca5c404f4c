"""Formatting for people: figures as text, and small tables and grey images as HTML for notebooks.

External text is escaped and its control characters are shown as escape sequences. Missing figures are shown as –.
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
MOST_BYTES = 65_536  # base64 text of all images in a message
MISSING = "–"
_POWERS = ("", "k", "M", "G", "T", "P")
_MOST_LETTERS = 300  # most letters of a cell
_CELL = 'style="text-align:left;padding:1px 8px 1px 0;vertical-align:top"'
_PICTURE = 'style="height:48px;image-rendering:pixelated;border:1px solid #8888"'


def duration(seconds: float | None) -> str:
    """Format a time span in at most two units: "0.4 ms", "40 ms", "4.2 s", "42 s", "3 min 20 s", "2 h 05 min"."""
    if seconds is None:
        return MISSING
    if seconds < 0.0995:
        thousandths = 1e3 * max(0.0, seconds)
        return f"{thousandths:.0f} ms" if thousandths >= 9.95 or not thousandths else f"{thousandths:.1f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole, minutes, hours = round(seconds), round(seconds / 60), round(seconds / 3600)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if minutes < 24 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")
    return f"{hours // 24} {'day' if hours < 48 else 'days'}" + (f" {hours % 24} h" if hours % 24 else "")


def measured(value: float | None, unit: str) -> str:
    """Format a quantity with three digits and a metric prefix: "121 GFLOP/s", "2.15 GB"."""
    if value is None:
        return MISSING
    power = 0
    while value >= 999.5 and power < len(_POWERS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.0f} {_POWERS[power]}{unit}" if value >= 99.5 else f"{value:.3g} {_POWERS[power]}{unit}"


def size(count: float | None) -> str:
    """Format a number of bytes: "630 MB", "2.15 GB"."""
    return measured(count, "B")


def percent(part: float, whole: float = 1.0) -> str:
    """Format a share as "52 %"; – if there is none."""
    return f"{100 * part / whole:,.0f} %" if whole > 0 else MISSING


def readable(name: str, value: Any) -> str:
    """Format a figure for people, with the unit that its name ends in; kernels by name."""
    if value is None:
        return MISSING
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
        return size(value)
    if name == "flops":
        return measured(value, "FLOP")
    if isinstance(value, float):
        return duration(value) if "seconds" in name else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(title: str, figures: Mapping[str, Any]) -> str:
    """Return a table of names and values without empty ones."""
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
    """Return HTML content that unfolds on a click."""
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


def escaped(value: object) -> str:
    """Escape markup and control characters in a text."""
    text = str(value)
    text = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}… ({len(text):,} letters)"
    return html.escape("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text))


def _png(image: bytes, height: int, width: int) -> bytes:
    """Encode a grey image, 0 black, as PNG."""
    # every line begins with the number of its filter: 0, none
    lines = b"".join(b"\0" + image[row * width : (row + 1) * width] for row in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pieces = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in pieces
    )


def pack(images: Array) -> dict[str, Any]:
    """Encode images (k, h, w) as plain data of at most 64 kB: {"shape": [h, w], "data": [base64 of h·w bytes, …]}.

    Each is stretched from its minimum and maximum to 0 … 255. Larger images are reduced by whole factors, with means of
    their pixels; more than 40 images are never taken.
    """
    images = np.asarray(images, np.float64)[:MOST_IMAGES]
    k, h, w = images.shape
    factor = 1
    while k * 4 * -(-(-(-h // factor) * -(-w // factor)) // 3) > MOST_BYTES:
        factor += 1
    if factor > 1:
        # repeat the last pixels to fill whole squares
        images = np.pad(images, ((0, 0), (0, -h % factor), (0, -w % factor)), mode="edge")
        images = images.reshape(k, -(-h // factor), factor, -(-w // factor), factor).mean(axis=(2, 4))
    levels = grey(images)
    return {"shape": list(levels.shape[1:]), "data": [base64.b64encode(image.tobytes()).decode() for image in levels]}


def grey(images: Array) -> NDArray[np.uint8]:
    """Stretch every image (k, h, w) from its minimum and maximum to 0 … 255."""
    images = np.asarray(images, np.float64)
    low = images.min(axis=(1, 2), keepdims=True)
    spread = images.max(axis=(1, 2), keepdims=True) - low
    levels: NDArray[np.uint8] = np.rint((images - low) * (255 / np.where(spread > 0, spread, 1))).astype(np.uint8)
    return levels
