"""Folders of PNG images: FOLDER/LABEL/*.png, or FOLDER/*.png without labels.

The heads of all files are read first: their size and kind must agree before the first is decoded. A row is an image,
h·w grey values, row by row: 8 bits (uint8, scale 255) or 16 (uint16, scale 65535). Rows come in natural order of the
labels, then of the names. `png_chunks` looks through a file before Pillow decodes it. Format: https://www.w3.org/TR/png-3
(IHDR, 11.2.1).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.png_chunks import DAMAGED, DEPTHS, MAGIC, pixel_bytes, require_whole
from bigkernel.data.readers.source import MOST_FEATURES, Block, Source, block_rows, folder_origin, natural
from bigkernel.errors import ConfigError, DataError

_HEAD_BYTES = 29
_COLOURS = {0: "grey", 2: "colour", 3: "palette", 4: "grey with transparency", 6: "colour with transparency"}
_LARGEST_LABEL = 18  # digits of a folder's name that is a number


@dataclass(frozen=True)
class _Kind:
    """The head of an image, as far as all images must agree."""

    height: int
    width: int
    bits: int
    colour: int
    interlaced: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.height}×{self.width} pixels, {_COLOURS[self.colour]} of {self.bits} bits"


@dataclass(frozen=True)
class _Folder:
    path: str
    labels: tuple[str, ...]  # names of the folders of labels, ("",) without
    names: tuple[tuple[str, ...], ...]  # of the images, for each
    kind: _Kind
    grey: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if (self.kind.bits, self.kind.colour) == (16, 0) else np.uint8)

    @property
    def numbered(self) -> bool:
        return all(_is_number(label) for label in self.labels)

    def images(self) -> Iterator[tuple[str, str]]:
        """(label, path below the folder) of every image."""
        for label, names in zip(self.labels, self.names, strict=True):
            for name in names:
                yield label, os.path.join(label, name)

    def blocks(self) -> Iterator[Block]:
        step = block_rows(self.kind.height * self.kind.width)
        pixels: list[NDArray[Any]] = []
        labels: list[str] = []
        for label, name in self.images():
            path = os.path.join(self.path, name)
            kind = _kind_of(path)
            _require_alike(path, kind, self.path, self.kind, self.grey)
            pixels.append(_decoded(path, kind, self.dtype))
            labels.append(label)
            if len(pixels) == step:
                yield np.stack(pixels).reshape(len(pixels), -1), self._labels(labels)
                pixels, labels = [], []
        if pixels:
            yield np.stack(pixels).reshape(len(pixels), -1), self._labels(labels)

    def targets(self) -> Iterator[NDArray[Any]]:
        for label, names in zip(self.labels, self.names, strict=True):
            found = self._labels([label])
            assert found is not None
            yield np.repeat(found, len(names))

    def _labels(self, labels: Sequence[str]) -> NDArray[Any] | None:
        if self.labels == ("",):
            return None
        return np.array([int(label) for label in labels], np.int64) if self.numbered else np.array(labels, np.str_)


def recognises_folder(names: Sequence[str]) -> bool:
    """Return True where one of these files is a PNG image by its name."""
    return any(name.lower().endswith(".png") for name in names)


def read(path: str, *, grey: bool = False) -> Source:
    """Open a folder of PNG images, all of one size and kind.

    Parameters
    ----------
    path : str
    grey : bool
        Convert colour, palettes and fewer bits to 8-bit grey (ITU-R 601 luma; transparency is dropped).

    Raises
    ------
    DataError
        Names the file: another size or kind than the first image, colour without `grey`, damaged or cut, no PNG; more
        than 2²⁴ pixels, before anything is decoded.
    ConfigError
        pillow is not installed.
    """
    _decoder()
    labels, names = _listing(path)
    folder = _Folder(path, labels, names, _Kind(1, 1, 8, 0), grey)
    kind, first = None, ""
    for _, name in folder.images():
        found = _kind_of(os.path.join(path, name))
        if kind is None:
            kind, first = found, name
            _require_kind(os.path.join(path, name), kind, grey)
        _require_alike(os.path.join(path, name), found, first, kind, grey)
    assert kind is not None
    folder = _Folder(path, labels, names, kind, grey)
    return Source(
        format="png",
        path=path,
        n_rows=sum(map(len, names)),
        n_features=kind.height * kind.width,
        dtype=folder.dtype,
        image_shape=(kind.height, kind.width),
        scale=float(np.iinfo(folder.dtype).max),
        blocks=folder.blocks,
        targets=None if labels == ("",) else folder.targets,
        files=(),
        origin=lambda: folder_origin(path, (name for _, name in folder.images())),
    )


def _listing(path: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    here, folders = _entries(path)
    if here and folders:
        raise DataError(
            f"{path}: images ({here[0]!r}) beside folders ({folders[0]!r}): either all images lie in folders named as "
            "their labels, or none does"
        )
    if here:
        return ("",), (here,)
    within = []
    for folder in folders:
        names, deeper = _entries(os.path.join(path, folder))
        if deeper:
            raise DataError(
                f"{path}: the folder {os.path.join(folder, deeper[0])!r} within a label's; images lie in it"
            )
        if not names:
            raise DataError(f"{os.path.join(path, folder)}: no PNG image; remove the folder, or fill it")
        within.append(names)
    if not within:
        raise DataError(f"{path}: no PNG image in this folder")
    return folders, tuple(within)


def _entries(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the images and of the folders at `path`; hidden ones are passed over, other files refused."""
    names, folders = [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(".png") and entry.is_file():  # a pipe would block
                    names.append(entry.name)
                else:
                    raise DataError(f"{entry.path}: no PNG image among PNG images; convert it or move it elsewhere")
    except OSError as error:
        raise DataError(f"{path}: cannot be listed: {error.strerror}") from error
    return tuple(sorted(names, key=natural)), tuple(sorted(folders, key=natural))


def _kind_of(path: str) -> _Kind:
    try:
        with open(path, "rb") as handle:
            head = handle.read(_HEAD_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if head[:8] != MAGIC:
        raise DataError(
            f"{path}: byte 0: expected the signature of a PNG image, found {head[:8].hex(' ') or 'nothing'}"
        )
    if len(head) < _HEAD_BYTES or head[8:16] != b"\0\0\0\rIHDR":
        raise DataError(f"{path}: truncated: its head ends at byte {len(head)}, or is not that of a PNG image")
    width, height, bits, colour, packing, filters, interlace = struct.unpack(">IIBBBBB", head[16:])
    if bits not in DEPTHS.get(colour, ()) or not width or not height:
        raise DataError(
            f"{path}: byte 16: impossible size, bits or colour type: {height}×{width}, {bits} bits, {colour}"
        )
    if packing or filters or interlace > 1:
        raise DataError(
            f"{path}: byte 26: expected compression 0, filters 0 and interlacing 0 or 1, found {packing}, {filters} "
            f"and {interlace}"
        )
    if width * height > MOST_FEATURES:
        raise DataError(f"{path}: {height}×{width} pixels, at most {MOST_FEATURES:,} are read; is it a digit?")
    return _Kind(height, width, bits, colour, bool(interlace))


def _require_kind(path: str, kind: _Kind, grey: bool) -> None:
    if not grey and not (kind.colour == 0 and kind.bits in (8, 16)):
        raise DataError(f"{path}: {kind}; expected grey of 8 or 16 bits; grey=True (--grey) converts to 8 bits of grey")


def _require_alike(path: str, found: _Kind, first: str, kind: _Kind, grey: bool) -> None:
    deep = (found.bits, found.colour) == (16, 0), (kind.bits, kind.colour) == (16, 0)
    if (found.height, found.width) != (kind.height, kind.width) or deep[0] != deep[1] or (not grey and found != kind):
        advice = (
            "" if (found.height, found.width) != (kind.height, kind.width) else "; grey=True (--grey) converts colour"
        )
        raise DataError(f"{path}: {found}, but {first} has {kind}; all images of a corpus are alike{advice}")


def _is_number(label: str) -> bool:
    return label.isascii() and label.removeprefix("-").isdigit() and len(label) <= _LARGEST_LABEL


def _decoder() -> Callable[[str], Any]:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(
            'images are decoded by pillow, which is not installed: pip install "bigkernel[data]"'
        ) from None
    return lambda path: Image.open(path, formats=("PNG",))


def _decoded(path: str, kind: _Kind, dtype: np.dtype[Any]) -> NDArray[Any]:
    size = pixel_bytes(kind.height, kind.width, kind.bits, kind.colour, interlaced=kind.interlaced)
    try:
        require_whole(path, size)
        with _decoder()(path) as image:
            wide = dtype == np.uint16
            pixels = np.asarray(image if wide or image.mode == "L" else image.convert("L")).astype(dtype, copy=False)
    except (ConfigError, DataError):
        raise
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise DataError(f"{path}: {DAMAGED}: {error}") from error
    if pixels.shape != (kind.height, kind.width):
        raise DataError(f"{path}: {pixels.shape} pixels, but its head said {kind.height}×{kind.width}")
    return pixels
