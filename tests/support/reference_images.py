"""Row maps of images one pixel at a time, in float64: an oracle of `pose_and_strokes`.

Nothing here imports `bigkernel`. Images are (h, w); positions are (down, across) in pixels, 0 the middle of the first.
The one thing taken from the implementation's word is that the coefficients of an affine map are multiples of 2⁻¹⁶.
"""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pixel(image, i, j, ground=0.0):
    return float(image[i, j]) if 0 <= i < image.shape[0] and 0 <= j < image.shape[1] else ground


def between(image, down, across, ground=0.0):
    """The image between its pixels: linear down and across."""
    i, j = math.floor(down), math.floor(across)
    v, u = down - i, across - j
    return (
        (1 - v) * (1 - u) * pixel(image, i, j, ground)
        + (1 - v) * u * pixel(image, i, j + 1, ground)
        + v * (1 - u) * pixel(image, i + 1, j, ground)
        + v * u * pixel(image, i + 1, j + 1, ground)
    )


def resampled(image, affine, ground=0.0):
    """Pixel (i, j) is the image at affine·(i, j, 1)."""
    fixed = np.round(affine * 65536) / 65536
    out = np.empty(image.shape)
    for i, j in np.ndindex(image.shape):
        down, across = fixed @ [i, j, 1]
        out[i, j] = between(image, down, across, ground)
    return out


def moments(image):
    """Ink, its centroid (down, across) and its covariance (2, 2)."""
    mass, first, second = 0.0, np.zeros(2), np.zeros((2, 2))
    for place in np.ndindex(image.shape):
        ink, at = max(float(image[place]), 0.0), np.array(place, float)
        mass, first, second = mass + ink, first + ink * at, second + ink * np.outer(at, at)
    centre = first / mass
    return mass, centre, second / mass - np.outer(centre, centre)


def moment_normalised(image, spread, breadth, aspect):
    """Centroid to the middle, slant taken away, height to a spread, breadth between its own and another."""
    if image.max() <= 0:
        return image.copy()
    height, width = image.shape
    _, centre, covariance = moments(image)
    deep, wide = covariance[0, 0] + 1 / 12, covariance[1, 1]
    slant = min(max(covariance[0, 1] / deep, -2.0), 2.0)
    upright = wide - 2 * slant * covariance[0, 1] + slant**2 * covariance[0, 0]
    down = min(max(spread * height / math.sqrt(deep), 0.25), 4.0)
    own, other = down, breadth * width / math.sqrt(upright + 1 / 12)
    across = min(max(own ** (1 - aspect) * other**aspect, 0.25), 4.0)
    # a point of the original: across first loses the slant, then both sides are scaled about the centroid
    forward = np.array([[down, 0.0], [0.0, across]]) @ np.array([[1.0, 0.0], [-slant, 1.0]])
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    back = np.linalg.inv(forward)
    return resampled(image, np.column_stack([back, centre - back @ middle]))


def orientation_features(image, cells=8, blur=1.0, power=0.5):
    """Powers of the shares of 8 directions in cells, of unit length, in the order of the directions below."""
    height, width = image.shape
    towards = [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]  # (down, across)
    angles = np.array([math.atan2(down, across) for down, across in towards]) % (2 * math.pi)
    units = np.array([(math.cos(angle), math.sin(angle)) for angle in angles])
    around = np.argsort(angles)
    features = np.zeros((8, cells, cells))
    lines = [[(cell, cell_weight(i, cell, height, cells, blur)) for cell in range(cells)] for i in range(height)]
    posts = [[(cell, cell_weight(j, cell, width, cells, blur)) for cell in range(cells)] for j in range(width)]
    for i, j in np.ndindex(image.shape):
        slope = np.array(
            [pixel(image, i, j + 1) - pixel(image, i, j - 1), pixel(image, i + 1, j) - pixel(image, i - 1, j)]
        )
        if not slope.any():
            continue
        # the two directions next to the gradient, and its coefficients
        sector = int(math.atan2(slope[1], slope[0]) % (2 * math.pi) // (math.pi / 4)) % 8
        pair = [around[sector], around[(sector + 1) % 8]]
        segments = np.linalg.solve(units[pair].T, slope)
        for direction, segment in zip(pair, segments, strict=True):
            for (line, down), (post, across) in product(lines[i], posts[j]):
                features[direction, line, post] += down * across * max(segment, 0.0)
    raised = features.reshape(-1) ** power
    return raised / (np.linalg.norm(raised) or 1.0)


def cell_weight(position, cell, side, cells=8, blur=1.0):
    """Share of a pixel in the mean over a cell of one side."""

    def fall(pixel):
        centre = (cell + 0.5) * side / cells - 0.5
        return max(0.0, 1 - abs(pixel - centre) / (blur * max(side / cells, 1.0)))

    return fall(position) / sum(fall(pixel) for pixel in range(side))
