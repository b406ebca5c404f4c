"""Restyled copies of images of digits: other sizes, slants and pens, as other hands and scanners would give.

A copy of an image is drawn as `Restyling` says: scaled, stretched, slanted, turned and shifted by one affine map, with
bilinear resampling, and then thickened or thinned. Where labels hold whatever the style, a model of such copies needs
no image of the place where it will be used. A `Style` is one fixed choice for a whole domain. Images (b, h·w) are rows
of pixels; everything is computed in float32.

A copy depends on the seed, its number and its original alone, to the bit: positions are multiples of 2⁻¹⁶ pixels, all
other steps are elementwise.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError
from bigkernel.images.checks import require_image, require_rows, require_seed
from bigkernel.images.elastic import draws
from bigkernel.images.resample import Resampler

Array = NDArray[Any]
RECIPE = 1  # raise it when the same options give other rows
_DRAW_LEVELS = 2**16
_BLOCK_PIXELS = 2**16  # of the images that are worked on at a time
_FLOPS_PER_PIXEL = 30.0
_FIGURE_BYTES = 1024  # of all that is computed to draw a copy, before its pixels
# the widest a range may be, by the name of the field
_WIDEST = {"size": 1.0, "aspect": 1.0, "rotation": 180.0, "shear": 1.0, "shift": 1.0, "thickness": 1.0}


@dataclass(frozen=True)
class Restyling:
    """Restyling of images (height, width): each figure is drawn evenly from − its range to + its range.

    Attributes
    ----------
    height, width : int
        Pixels of an image.
    seed : int
        Of all copies, 0 … 2⁶³ − 1.
    size : float
        Logarithm of the scale.
    aspect : float
        Logarithm of width over height.
    rotation : float
        Degrees.
    shear : float
        Pixels across for one down.
    shift : float
        Across and down, in halves of the sides.
    thickness : float
        Above 0, how far a pixel goes to the largest of the 3×3 about it; below 0, to the smallest. At most 1.
    low, high : float
        Range of the pixels; `low` is the ground.

    Raises
    ------
    ConfigError
        An option out of its range.

    Examples
    --------
    >>> restyling = Restyling(28, 28, seed=3)
    >>> images = np.zeros((5, 784), np.uint8)
    >>> images[:, 300:310] = 255
    >>> copies = restyling.copies(images, 60_000)
    >>> bool((copies[2] == restyling.copies(images[:1], 60_002)).all())
    True
    """

    height: int
    width: int
    seed: int = 0
    size: float = 0.5
    aspect: float = 0.1
    rotation: float = 10.0
    shear: float = 0.15
    shift: float = 0.06
    thickness: float = 0.5
    low: float = 0.0
    high: float = 255.0
    recipe: ClassVar[str] = f"restyled {RECIPE}"

    def __post_init__(self) -> None:
        require_image(self.height, self.width)
        require_seed(self.seed)
        for name, widest in _WIDEST.items():
            value = getattr(self, name)
            if not 0 <= value <= widest:
                raise ConfigError(f"{name}: expected a range of 0 to {widest:g}, found {value}")
        _require_range(self.low, self.high)

    def times(self, strength: float) -> Restyling:
        """The same with all ranges multiplied by `strength`."""
        return replace(
            self,
            size=self.size * strength,
            aspect=self.aspect * strength,
            rotation=self.rotation * strength,
            shear=self.shear * strength,
            shift=self.shift * strength,
            thickness=self.thickness * strength,
        )

    @property
    def ranges(self) -> dict[str, float]:
        """The range of each figure by its name."""
        return {name: getattr(self, name) for name in _WIDEST}

    @property
    def text(self) -> str:
        """All ranges in a few words, shift as a share of a side."""
        return (
            f"log size ±{self.size:g}, log aspect ±{self.aspect:g}, rotation ±{self.rotation:g}°, "
            f"shear ±{self.shear:g}, shift ±{50 * self.shift:g}%, pen ±{100 * self.thickness:g}%"
        )

    @property
    def work_bytes(self) -> int:
        """Most memory of `copies` beside what it returns."""
        return _work_bytes(self.height, self.width)

    @property
    def flops_per_row(self) -> float:
        """Multiplications, additions and comparisons of one copy."""
        return _FLOPS_PER_PIXEL * self.height * self.width

    def copies(self, originals: Array, start: int) -> Array:
        """Restyled copies number start, start + 1, … of the given images, one each.

        Parameters
        ----------
        originals : (b, h·w), pixels as stored
        start : int
            Number of the first copy; it decides the random draws.

        Returns
        -------
        (b, h·w), of the same dtype; integers are rounded
        """
        return _drawn(originals, start, self)

    def drawing(self, start: int, rows: int) -> Drawing:
        """Return maps and figures of copies number start, start + 1, …."""
        # draws u in 0 … 2¹⁶ − 1 become figures (2u + 1)/2¹⁶ − 1 in −1 … 1
        figures = (2.0 * draws(self.seed, start, rows, len(_WIDEST) + 1) + 1) / _DRAW_LEVELS - 1
        size, aspect, rotation, shear, across, down, thickness = figures.T
        matrices = _inverse(
            size * self.size, aspect * self.aspect, np.deg2rad(rotation * self.rotation), shear * self.shear
        )
        moved = np.stack([down * self.shift * self.height / 2, across * self.shift * self.width / 2], axis=1)
        affine = _affine(matrices, moved, self.height, self.width)
        return Drawing(affine, thickness * self.thickness, np.ones(rows))


@dataclass(frozen=True)
class Style:
    """The style in which all images of a domain are drawn.

    Attributes
    ----------
    rotation : float
        Degrees, clockwise.
    thickness : float
        −1 … 1; see `Restyling`.
    contrast : float
        Factor, 0 … 4, of a pixel's distance from the middle of the range, to which it is clipped: below 1 the ground
        is grey and the ink pale.

    Raises
    ------
    ConfigError
        A figure out of its range.
    """

    rotation: float = 0.0
    thickness: float = 0.0
    contrast: float = 1.0

    def __post_init__(self) -> None:
        for name, smallest, largest in (("rotation", -360, 360), ("thickness", -1, 1), ("contrast", 0, 4)):
            value = getattr(self, name)
            if not smallest <= value <= largest:
                raise ConfigError(f"{name}: expected {smallest} to {largest}, found {value}")


@dataclass(frozen=True)
class Styling:
    """Images (height, width), each in one of some styles, which its number decides: every style is as likely.

    Attributes
    ----------
    height, width : int
    styles : tuple of Style
        Of the domains 0, 1, ….
    seed : int
    low, high : float
        Range of the pixels; `low` is the ground.
    """

    height: int
    width: int
    styles: tuple[Style, ...]
    seed: int = 0
    low: float = 0.0
    high: float = 255.0
    recipe: ClassVar[str] = f"{RECIPE}"

    def __post_init__(self) -> None:
        require_image(self.height, self.width)
        if not 1 <= len(self.styles) <= _DRAW_LEVELS:
            raise ConfigError(f"styles: expected 1 to {_DRAW_LEVELS:,} of them, found {len(self.styles)}")
        require_seed(self.seed)
        _require_range(self.low, self.high)

    @property
    def work_bytes(self) -> int:
        """Most memory of `images` beside what it returns."""
        return _work_bytes(self.height, self.width)

    @property
    def flops_per_row(self) -> float:
        """Multiplications, additions and comparisons of one image."""
        return _FLOPS_PER_PIXEL * self.height * self.width

    def domains(self, start: int, stop: int) -> Array:
        """The domains of rows start … stop, (stop − start,) int64."""
        drawn = draws(self.seed, start, stop - start, 1)[:, 0].astype(np.int64)
        domains: Array = drawn * len(self.styles) // _DRAW_LEVELS
        return domains

    def images(self, originals: Array, start: int) -> Array:
        """The images (b, h·w) of rows start, start + 1, … in the styles of their domains, of the same dtype."""
        return _drawn(originals, start, self)

    def drawing(self, start: int, rows: int) -> Drawing:
        """Return maps and figures of rows start, start + 1, …."""
        figures = np.array([astuple(style) for style in self.styles])[self.domains(start, start + rows)]
        rotation, thickness, contrast = figures.T
        zero = np.zeros(rows)
        matrices = _inverse(zero, zero, np.deg2rad(rotation), zero)
        return Drawing(_affine(matrices, np.zeros((rows, 2)), self.height, self.width), thickness, contrast)


@dataclass(frozen=True)
class Drawing:
    """For each of b images: its affine map (b, 2, 3), thickness (b,) and contrast (b,)."""

    affine: Array
    thickness: Array
    contrast: Array


def _require_range(low: float, high: float) -> None:
    if not -math.inf < low <= high < math.inf:
        raise ConfigError(f"low, high: expected two finite numbers in order, found {low} and {high}")


def _block_rows(height: int, width: int) -> int:
    return max(1, _BLOCK_PIXELS // (height * width))


def _work_bytes(height: int, width: int) -> int:
    # the resampler, the frame of the neighbours and their largest across, a picture; figures of a row
    pixels = (height + 3) * (width + 3) * (Resampler.pixel_bytes(4) + 4 * 4)
    return _block_rows(height, width) * (pixels + _FIGURE_BYTES)


def _inverse(log_size: Array, log_aspect: Array, turn: Array, shear: Array) -> Array:
    """(b, 2, 2), of (down, across): A⁻¹ for A = turn · shear · scale, which brings an image to its place."""
    cos, sin = np.cos(turn), np.sin(turn)
    tall, wide = np.exp(log_size - log_aspect / 2), np.exp(log_size + log_aspect / 2)
    # scale⁻¹ · shear⁻¹ · turn⁻¹, with the y axis downwards
    across_of = np.stack([(sin - shear * cos), (cos + shear * sin)], axis=1) / wide[:, None]
    down_of = np.stack([cos, -sin], axis=1) / tall[:, None]
    return np.stack([down_of, across_of], axis=1)


def _affine(inverse: Array, moved: Array, height: int, width: int) -> Array:
    """(b, 2, 3): where a pixel (row, column, 1) of the result lies in the original, both about their middles."""
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    # q = A⁻¹(p − middle − moved) + middle
    constant = middle - np.einsum("bij,bj->bi", inverse, middle + moved)
    return np.concatenate([inverse, constant[:, :, None]], axis=2)


def _drawn(originals: Array, start: int, what: Restyling | Styling) -> Array:
    """Images (b, h·w), drawn as rows start, start + 1, … of `what`."""
    height, width, low, high = what.height, what.width, what.low, what.high
    require_rows(originals, height, width)
    b, rows = len(originals), _block_rows(height, width)
    resampler = Resampler(height, width, min(rows, max(b, 1)), np.float32)
    pen = _Pen(height, width, min(rows, max(b, 1)), low)
    out = np.empty(originals.shape, originals.dtype)
    whole, middle = originals.dtype.kind in "iu", np.float32((low + high) / 2)
    for first in range(0, b, rows):
        some = slice(first, first + rows)
        part = what.drawing(start + first, len(originals[some]))
        images = resampler(originals[some].reshape(-1, height, width), part.affine, low)
        pen(images, part.thickness)
        if (part.contrast != 1).any():
            # middle + c·(x − middle)
            np.subtract(images, middle, out=images)
            np.multiply(images, part.contrast.astype(np.float32)[:, None, None], out=images)
            np.add(images, middle, out=images)
        np.clip(images, np.float32(low), np.float32(high), out=images)
        if whole:
            np.rint(images, out=images)
        np.copyto(out[some], images.reshape(-1, height * width), casting="unsafe")
    return out


class _Pen:
    """Thickens and thins some images at a time, with the buffers."""

    def __init__(self, height: int, width: int, rows: int, low: float) -> None:
        self._framed = np.empty((rows, height + 2, width + 2), np.float32)
        self._largest = np.empty((rows, height + 2, width), np.float32)
        self._low = low

    def __call__(self, images: Array, thickness: Array) -> None:
        """Images (b, h, w) in place, by thickness (b,)."""
        b, (h, w) = len(images), images.shape[1:]
        amount = np.abs(thickness).astype(np.float32)[:, None, None]
        # the smallest neighbour is the largest one of the negative
        sign = np.where(thickness < 0, -1, 1).astype(np.float32)[:, None, None]
        framed, largest = self._framed[:b], self._largest[:b]
        framed[...] = sign * np.float32(self._low)
        np.multiply(images, sign, out=framed[:, 1:-1, 1:-1])
        np.maximum(framed[:, :, :-2], framed[:, :, 1:-1], out=largest)
        np.maximum(largest, framed[:, :, 2:], out=largest)
        np.maximum(largest[:, :h], largest[:, 1 : h + 1], out=images)
        np.maximum(images, largest[:, 2:], out=images)
        # x + amount·(neighbour − x), with the sign taken back
        inner = framed[:, 1 : h + 1, 1 : w + 1]
        np.subtract(images, inner, out=images)
        np.multiply(images, amount, out=images)
        np.add(images, inner, out=images)
        np.multiply(images, sign, out=images)
