"""Small tables and grey pictures as HTML, for values that a notebook shows.

Text from outside is escaped, and its control characters are shown as letters.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bigkernel.figures import readable

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
