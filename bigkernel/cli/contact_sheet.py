"""A contact sheet of deformed images: originals, one a line, and their copies beside. Needs pillow, bigkernel[data]."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError
from bigkernel.images.elastic import Deformation
from bigkernel.images.restyle import Restyling

Array = NDArray[Any]
LINES, COPIES = 10, 11
INK, SOFT, GROUND = (28, 36, 48), (90, 101, 115), (255, 255, 255)
_CELL, _GAP, _MARGIN, _LABEL, _FONT = 64, 8, 20, 56, 17  # pixels


def contact_sheet(corpus: Corpus, deformation: Deformation | Restyling) -> bytes:
    """A PNG of `LINES` originals, of as many classes as there are, and the first `COPIES` copies of each.

    The largest pixel value is black and the smallest white.

    Raises
    ------
    ConfigError
        Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ConfigError(
            'the picture is drawn by pillow, which is not installed: pip install "bigkernel[data]"'
        ) from error
    chosen, names = _choose(corpus)
    images = _images(corpus, deformation, chosen)
    scale = max(1, round(_CELL / max(deformation.height, deformation.width)))
    tall, wide = scale * deformation.height, scale * deformation.width
    left, top = _MARGIN + _LABEL, _MARGIN + 2 * _FONT
    apart = 2 * _GAP  # the originals from their copies
    size = (left + (COPIES + 1) * (wide + _GAP) + apart + _MARGIN, top + len(chosen) * (tall + _GAP) + _MARGIN)
    sheet = Image.new("RGB", size, GROUND)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT)
    first = left + wide + _GAP + apart
    draw.text((left, _MARGIN), "original", fill=SOFT, font=font)
    draw.text((first, _MARGIN), f"copies: {deformation.text}", fill=SOFT, font=font)
    for line in range(len(chosen)):
        y = top + line * (tall + _GAP)
        draw.text((_MARGIN, y + tall // 2), names[line], fill=INK, font=font, anchor="lm")
        for place in range(COPIES + 1):
            x = left if not place else first + (place - 1) * (wide + _GAP)
            shade = Image.fromarray(images[line, place]).resize((wide, tall), Image.Resampling.NEAREST)
            sheet.paste(shade, (x, y))
            draw.rectangle((x - 1, y - 1, x + wide, y + tall), outline=(217, 222, 229))
    buffer = io.BytesIO()
    sheet.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _choose(corpus: Corpus) -> tuple[Array, list[str]]:
    """Rows of the originals to show, and what to call them: by their class, or else by their number."""
    count = min(LINES, corpus.n_rows)
    spread = np.arange(count) * corpus.n_rows // count
    if "y" not in corpus.columns or not corpus.info.classes:
        return spread, [f"{row:,}" for row in spread]
    y = corpus.column("y")
    classes = np.unique(y[y != -1]) if y.dtype.kind in "iu" else np.empty(0)
    if not 1 <= len(classes) <= LINES:
        return spread, [f"{row:,}" for row in spread]
    chosen = np.array([int(np.argmax(y == label)) for label in classes])
    text = corpus.info.classes
    named = any(isinstance(label, str) for label in text)
    return chosen, [str(text[int(label)] if named else label)[:6] for label in classes]


def _images(corpus: Corpus, deformation: Deformation | Restyling, chosen: Array) -> Array:
    """The pictures, (lines, 1 + copies, h, w) uint8, 255 for the smallest value."""
    source, n = as_rows(corpus).x, corpus.n_rows
    lines = []
    for row in chosen:
        original = source.read(int(row), int(row) + 1)
        copies = [deformation.copies(original, int(row) + n * (turn + 1)) for turn in range(COPIES)]
        lines.append(np.concatenate([original, *copies]))
    shown = np.stack(lines).reshape(len(chosen), COPIES + 1, deformation.height, deformation.width)
    span = (deformation.high - deformation.low) or 1.0
    grey: Array = (255 - 255 * (shown.astype(np.float64) - deformation.low) / span).round().astype(np.uint8)
    return grey
