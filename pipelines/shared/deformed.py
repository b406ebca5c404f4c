"""Deformed copies of digit images by SciPy: a random affine map, a smooth displacement, another pen.

Rows are made in blocks of `BLOCK_ROWS`, each with its own random generator, so that a row depends on the seed, its
number and its original alone.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import fft
from scipy.ndimage import map_coordinates, maximum_filter, minimum_filter

from bigkernel.arrays import Array

BLOCK_ROWS = 512
PARALLEL_ROWS = 20_000  # fewer are made faster than processes start
HEIGHT, SMOOTHNESS = 28, 4.0  # image size in pixels that lengths refer to, and σ of the smoothing there


@dataclass(frozen=True)
class Variation:
    """How far copies differ from their originals: values are drawn uniformly between − and + of these."""

    elastic: float = 0.0  # standard deviation of the smooth displacement, in pixels of an image 28 high
    shift: float = 0.0  # pixels of an image 28 high
    size: float = 0.0  # logarithms of the scale, and of width over height
    aspect: float = 0.0
    rotation: float = 0.0  # degrees
    shear: float = 0.0  # pixels across per pixel down
    pen: float = 0.0  # share of the way to the largest (or smallest) of the 3×3 pixels around each

    def times(self, strength: float) -> Variation:
        """Return the same with another displacement."""
        return replace(self, elastic=self.elastic * strength)


ELASTIC = Variation(elastic=1.0, shift=1.0, rotation=3.0)
RESTYLED = Variation(size=0.5, aspect=0.1, rotation=10.0, shear=0.15, shift=0.84, pen=0.5)


def deformed(images: Array, block: int, seed: int, variation: Variation) -> Array:
    """Return a copy of each of at most `BLOCK_ROWS` images (b, h, w), deformed as `block` says; the dtype is kept."""
    (b, h, w), rng = images.shape, np.random.default_rng([seed, block])
    size, aspect, rotation, shear, down, across, pen = rng.uniform(-1, 1, (BLOCK_ROWS, 7))[:b].T
    scale = h / HEIGHT
    matrices = inverse_maps(
        variation.size * size, variation.aspect * aspect, variation.rotation * rotation, variation.shear * shear
    )
    shifts = np.stack([down, across], axis=1) * variation.shift * scale
    places = places_of(matrices, shifts, h, w)
    if variation.elastic:
        noise = rng.standard_normal((BLOCK_ROWS, 2, h, w), np.float32)
        places += variation.elastic * scale * smooth(noise, SMOOTHNESS * scale)[:b]
    return redrawn(images, places, variation.pen * pen)


def turned(images: Array, rotation: float, pen: float, contrast: float) -> Array:
    """Return images (b, h, w) of pixels 0 to 1, rotated, with another pen and contrast about 1/2."""
    b, h, w = images.shape
    zero = np.zeros(b)
    places = places_of(inverse_maps(zero, zero, zero + rotation, zero), np.zeros((b, 2)), h, w)
    shown = redrawn(images, places, zero + pen)
    return np.clip(0.5 + contrast * (shown - 0.5), 0, 1)


def inverse_maps(size: Array, aspect: Array, degrees: Array, shear: Array) -> Array:
    """Return matrices (b, 2, 2) of (down, across) that map a place in a copy to its place in the original."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    tall, wide = np.exp(size - aspect / 2), np.exp(size + aspect / 2)
    of_down = np.stack([cos, -sin], axis=1) / tall[:, None]
    of_across = np.stack([sin - shear * cos, cos + shear * sin], axis=1) / wide[:, None]
    return np.stack([of_down, of_across], axis=1)


def places_of(matrices: Array, shifts: Array, h: int, w: int) -> Array:
    """Return places (b, 2, h, w) in the originals of every pixel of the copies; both are mapped about their middles."""
    middle = np.array([(h - 1) / 2, (w - 1) / 2])
    grid = np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij")).reshape(2, -1)
    from_middle = grid - middle[:, None] - shifts[:, :, None]
    places: Array = matrices @ from_middle + middle[:, None]
    return places.reshape(-1, 2, h, w)


def smooth(noise: Array, sigma: float) -> Array:
    """Smooth white noise (b, 2, h, w) with a Gaussian of σ pixels, edges joined, to a standard deviation of 1."""
    h, w = noise.shape[2:]
    down, across = fft.fftfreq(h)[:, None], fft.rfftfreq(w)
    transfer = np.exp(-2 * (np.pi * sigma) ** 2 * (down**2 + across**2))
    weights = fft.irfft2(transfer, (h, w))  # weights of the noise in each smoothed value
    transfer /= np.sqrt((weights**2).sum())
    fields: Array = fft.irfft2(fft.rfft2(noise) * transfer.astype(noise.dtype), (h, w))
    return fields


def redrawn(images: Array, places: Array, pen: Array) -> Array:
    """Return images (b, h, w) at places (b, 2, h, w), 0 outside them; `pen` (b,) thickens above 0, thins below."""
    values = [map_coordinates(x, at, np.float32, order=1, cval=0) for x, at in zip(images, places, strict=True)]
    shown = np.stack(values)
    if pen.any():
        amount = np.abs(pen).astype(np.float32)[:, None, None]
        near = (1, 3, 3)
        thick = maximum_filter(shown, near, mode="constant")
        goal = np.where(pen[:, None, None] > 0, thick, minimum_filter(shown, near, mode="constant"))
        shown += amount * (goal - shown)
    return shown.round().astype(images.dtype) if images.dtype.kind in "iu" else shown.astype(images.dtype)


def block_of(originals: Array, block: int, n_rows: int, seed: int, variation: Variation) -> Array:
    """Return the rows of a block of `n_rows`: first the originals (n, h, w), then copies round by round."""
    ids = np.arange(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, n_rows))
    images = originals[ids % len(originals)]
    if ids[-1] < len(originals):
        return images
    copies = deformed(images, block, seed, variation)
    return np.where((ids < len(originals))[:, None, None], images, copies)


def blocks(originals: Array, n_rows: int, seed: int, variation: Variation, processes: int = 1) -> Iterator[Array]:
    """Yield all rows, block by block in order; large numbers are made by several processes that hold the originals."""
    numbers = range(-(-n_rows // BLOCK_ROWS))
    if processes == 1 or n_rows < PARALLEL_ROWS:
        for block in numbers:
            yield block_of(originals, block, n_rows, seed, variation)
        return
    shared = originals, n_rows, seed, variation
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _hold, shared) as pool:
        yield from pool.map(_held_block, numbers, chunksize=4)


def copies_of(images: Array, rounds: int, seed: int, variation: Variation) -> Array:
    """Return copies of each image (n, h, w), round by round."""
    made = blocks(images, (rounds + 1) * len(images), seed, variation)
    return np.concatenate(list(made))[len(images) :]


_held: tuple[Array, int, int, Variation]


def _hold(*shared: Any) -> None:
    """Keep the arguments of all blocks of this process."""
    global _held
    _held = shared  # type: ignore[assignment]


def _held_block(block: int) -> Array:
    originals, n_rows, seed, variation = _held
    return block_of(originals, block, n_rows, seed, variation)
