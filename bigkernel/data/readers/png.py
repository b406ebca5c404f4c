"""Folders of PNG images: FOLDER/LABEL/*.png, or FOLDER/*.png without labels, read by Pillow.

The headers of all files are read first: their size and kind must agree before the first is decoded. A row is an image,
h·w grey values, row by row: 8 bits (uint8, scale 255) or 16 (uint16, scale 65535). Rows are in natural order of the
labels, then of the names.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import MOST_FEATURES, Block, Source, block_rows, load_library, natural, reading
from bigkernel.errors import DataError

_LARGEST_LABEL = 18  # most digits of a folder's name that is a number
_WIDE = ("I;16", "I;16B", "I")  # modes of Pillow for 16 bits of grey


def read(path: str, *, grey: bool = False) -> Source:
    """Open a folder of PNG images, all of one size and kind.

    `grey`: convert colour, palettes and fewer bits to 8-bit grey (ITU-R 601 luma; transparency is dropped).
    """
    images = tuple(_listed(path))  # (label, path below the folder); labels are "" where the images lie in it
    first = os.path.join(path, images[0][1])
    (width, height), dtype = _head(first, grey)
    for _, name in images:
        head = _head(os.path.join(path, name), grey)
        if head != ((width, height), dtype):
            raise DataError(
                f"{os.path.join(path, name)}: expected {height}×{width} pixels of {dtype} as in {first}, found "
                f"{head[0][1]}×{head[0][0]} of {head[1]}"
            )
    labelled, numbered = images[0][0] != "", all(_is_number(label) for label, _ in images)
    step = block_rows(width * height * dtype.itemsize)

    def blocks() -> Iterator[Block]:
        for start in range(0, len(images), step):
            labels, names = zip(*images[start : start + step], strict=True)
            x = np.stack([_pixels(os.path.join(path, name), (height, width), dtype) for name in names])
            y = np.array(list(map(int, labels)), np.int64) if numbered else np.array(labels, np.str_)
            yield x.reshape(len(names), -1), y if labelled else None

    return Source(
        *("png", path, width * height, dtype, blocks, len(images), labelled),
        image_shape=(height, width),
        scale=float(np.iinfo(dtype).max),
    )


def _pixels(path: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    with _opened(path) as image:
        image.verify()  # the checksums of its chunks
    with _opened(path) as image:
        pixels = np.asarray(image if dtype == np.uint16 or image.mode == "L" else image.convert("L")).astype(dtype)
    if pixels.shape != shape:
        raise DataError(f"{path}: expected {shape} pixels as in earlier images, found {pixels.shape}")
    return pixels


def _listed(path: str) -> Iterator[tuple[str, str]]:
    """Yield (label, path below the folder) of all images; hidden files are skipped, others refused."""
    here, folders = _entries(path)
    if bool(here) == bool(folders):
        problem = "images beside folders" if here else "no PNG image"
        raise DataError(f"{path}: found {problem}; expected folders of images named by label, or images only")
    yield from (("", name) for name in here)
    for folder in folders:
        names, deeper = _entries(os.path.join(path, folder))
        if deeper or not names:
            raise DataError(f"{os.path.join(path, folder)}: expected only PNG images in the folder of a label")
        yield from ((folder, os.path.join(folder, name)) for name in names)


def _entries(path: str) -> tuple[list[str], list[str]]:
    """Return the names of images and folders at `path`, in natural order."""
    with reading(path):
        listed = sorted((name for name in os.listdir(path) if name[0] != "."), key=natural)
    folders = [name for name in listed if os.path.isdir(os.path.join(path, name))]
    names = sorted(set(listed) - set(folders), key=natural)
    for name in names:
        if not (name.lower().endswith(".png") and os.path.isfile(os.path.join(path, name))):  # a pipe would block
            raise DataError(f"{path}/{name}: expected only PNG images, found another file; convert or move it")
    return names, folders


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    Image = load_library("PIL.Image", "images need pillow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG",)) as image:
                yield image
    except DataError:
        raise
    except Exception as error:  # Pillow's errors for damage have no common base class
        raise DataError(f"{path}: expected a PNG image, found another, damaged or truncated file: {error}") from error


def _head(path: str, grey: bool) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Return width and height of an image, and the dtype of its pixels."""
    with _opened(path) as image:
        size, mode = image.size, image.mode
    if not size[0] or size[0] * size[1] > MOST_FEATURES:
        raise DataError(f"{path}: expected 1 to {MOST_FEATURES:,} pixels, found {size[1]}×{size[0]}")
    if not grey and mode not in ("L", *_WIDE):
        raise DataError(f"{path}: expected an image in grey of 8 or 16 bits, found mode {mode}; set grey=True (--grey)")
    return size, np.dtype(np.uint16 if mode in _WIDE else np.uint8)


def _is_number(label: str) -> bool:
    return label.isascii() and label.removeprefix("-").isdigit() and len(label) <= _LARGEST_LABEL
