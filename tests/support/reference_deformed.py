"""Deformed images one pixel at a time, in float64: the oracle of `bigkernel.images.elastic`, written from MATH.md §10.

Nothing here imports `bigkernel`. A copy of an image x is x + α(F₁·∂x/∂horizontal − F₂·∂x/∂vertical), clipped, then
shifted; F₁ and F₂ are white noise smoothed with a Gaussian, of variance 1.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

Array = NDArray[np.float64]


def smoothed_noise_correlation(height: int, width: int, smoothness: float) -> Array:
    """Correlation (h·w, h·w) of white noise on the whole plane after a Gaussian filter of `smoothness` pixels."""
    reach = math.ceil(6 * smoothness)
    weights = [math.exp(-(t**2) / (2 * smoothness**2)) for t in range(-reach, reach + 1)]

    def in_a_line(apart: int) -> float:
        shared = range(apart, len(weights))
        return sum(weights[t] * weights[t - apart] for t in shared) / sum(weight**2 for weight in weights)

    line = [in_a_line(apart) for apart in range(max(height, width))]
    pixels = [(i, j) for i in range(height) for j in range(width)]
    return np.array([[line[abs(i - k)] * line[abs(j - m)] for k, m in pixels] for i, j in pixels])


def draws(seed: int, row: int, count: int) -> list[int]:
    """`count` numbers of 16 bits for a row: every row takes whole ticks (256 bits) of one Philox stream."""
    words = 4 * math.ceil(count / 16)
    mine = Philox(key=seed).random_raw(words * (row + 1))[words * row :]
    return [(int(word) >> shift) & 0xFFFF for word in mine for shift in (0, 16, 32, 48)][:count]


def normal(drawn: int) -> float:
    """The quantile of a draw, to the nearest 1/64."""
    return round(NormalDist().inv_cdf((drawn + 0.5) / 65536) * 64) / 64


def displaced(image: Array, across: Array, down: Array, amplitude: float, low: float, high: float) -> Array:
    """x + α(F₁·∂x/∂horizontal − F₂·∂x/∂vertical), clipped; derivatives are central differences."""
    height, width = image.shape

    def at(i: int, j: int) -> float:
        return float(image[i, j]) if 0 <= i < height and 0 <= j < width else low

    out = np.empty((height, width))
    for i in range(height):
        for j in range(width):
            horizontal = (at(i, j + 1) - at(i, j - 1)) / 2
            vertical = (at(i + 1, j) - at(i - 1, j)) / 2
            value = at(i, j) + amplitude * (across[i, j] * horizontal - down[i, j] * vertical)
            out[i, j] = min(max(value, low), high)
    return out


def shifted(image: Array, down: int, across: int, low: float) -> Array:
    """The image moved by whole pixels, `low` coming in."""
    height, width = image.shape
    out = np.full((height, width), low)
    for i in range(height):
        for j in range(width):
            if 0 <= i - down < height and 0 <= j - across < width:
                out[i, j] = image[i - down, j - across]
    return out


def deformed(
    image: Array, row: int, basis: Array, *, seed: int, strength: float, shift: int, low: float, high: float
) -> Array:
    """Copy number `row` of an image (h, w), before it is truncated; `basis` (k, h·w) makes fields of k normals."""
    height, modes = len(image), len(basis)
    drawn = draws(seed, row, 2 * modes + 2)
    across = sum(normal(drawn[k]) * basis[k] for k in range(modes))
    down = sum(normal(drawn[modes + k]) * basis[k] for k in range(modes))
    corner = [draw * (2 * shift + 1) // 65536 for draw in drawn[2 * modes :]]
    moved = displaced(
        image, np.reshape(across, image.shape), np.reshape(down, image.shape), strength * height / 28, low, high
    )
    return shifted(moved, shift - corner[0], shift - corner[1], low)
