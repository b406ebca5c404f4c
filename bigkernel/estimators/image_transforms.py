"""Row maps for images of digits as transformers: a common pose by moments, and oriented strokes by place.

Both look at one image alone: they learn nothing but the shape of the images, and need no image of the place where a
model will be used.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval, Options

from bigkernel.errors import ConfigError
from bigkernel.estimators.transforms import PlainTransformer, SameWidthTransformer
from bigkernel.images.checks import image_shape_of
from bigkernel.images.pose_and_strokes import DIRECTIONS, MomentNormalise, Orientations
from bigkernel.streaming.chunk import RowMap

_SHAPE: dict[str, list[Any]] = {"image_shape": ["array-like", None]}


class _ImageTransformer(PlainTransformer):
    """Base: learns the height and the width of the images."""

    image_shape: Any

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the shape of the images; no pixel is looked at.

        Raises
        ------
        DataError
            Rows whose number of features is not that of the shape, or is no square where none is known.
        """
        super().fit(X, y)
        shape = None if self.image_shape is None else tuple(np.ravel(self.image_shape).tolist())
        if shape is not None and (len(shape) != 2 or not all(side >= 1 and side == int(side) for side in shape)):
            raise ConfigError(f"image_shape: expected (height, width) in pixels, found {self.image_shape!r}")
        self.image_height_, self.image_width_ = image_shape_of(X, shape, self.n_features_in_)
        return self


class MomentNormalizer(SameWidthTransformer, _ImageTransformer):
    """Bring every image to a common position, slant and size by the moments of its ink.

    The centroid comes to the middle, the slant cov(x, y)/var(y) is taken away, the height is brought to one spread and
    the breadth half of the way to another (see `MomentNormalise` in `images.pose_and_strokes`). Pixels are ink:
    0 is the ground. An image without ink stays as it is.

    Parameters
    ----------
    image_shape : (height, width) or None
        None: that of the corpus to fit, or else a square.
    spread, breadth : float
        Deviation of the ink down and across, as shares of the sides of the image.
    aspect : float, 0 … 1
        0: proportions of the original; 1: all images as broad.

    Attributes
    ----------
    image_height_, image_width_ : int

    References
    ----------
    Liu, Nakashima, Sako & Fujisawa, Handwritten digit recognition: investigation of normalization and feature
    extraction techniques, Pattern Recognition 37 (2004).

    Examples
    --------
    >>> import numpy as np
    >>> image = np.zeros((1, 64))
    >>> image[0, [1, 9, 17]] = 1
    >>> pose = MomentNormalizer().fit_transform(image).reshape(8, 8)
    >>> float((pose.sum(axis=1) @ np.arange(8) / pose.sum()).round(2))  # the middle
    3.5
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_SHAPE,
        "spread": [Interval(Real, 0, 1, closed="right")],
        "breadth": [Interval(Real, 0, 1, closed="right")],
        "aspect": [Interval(Real, 0, 1, closed="both")],
    }

    def __init__(
        self, image_shape: Any = None, *, spread: float = 0.22, breadth: float = 0.17, aspect: float = 0.5
    ) -> None:
        self.image_shape = image_shape
        self.spread = spread
        self.breadth = breadth
        self.aspect = aspect

    def _row_map(self) -> RowMap:
        return MomentNormalise(
            self.image_height_, self.image_width_, float(self.spread), float(self.breadth), float(self.aspect)
        )


class OrientationFeatures(_ImageTransformer):
    """Describe every image by its strokes: 8 directions of the gradient in cells, features of unit norm.

    A feature is the square root of the share of a direction and a cell in all gradients of the image, 512 with 8×8 (see
    `Orientations` in `images.pose_and_strokes`), so that features do not depend on the brightness of an image. An image
    without any edge gives zeros.

    Parameters
    ----------
    image_shape : (height, width) or None
        None: that of the corpus to fit, or else a square.
    cells : int
        Down and across.
    directions : 8 or 4
        4: an edge counts alike whichever side the ink is on.
    blur : float
        Distance from the centre of a cell at which a pixel counts no more, in distances of cells.
    power : float, above 0, at most 1
        In the place of the square root.

    Attributes
    ----------
    image_height_, image_width_ : int

    References
    ----------
    Liu, Nakashima, Sako & Fujisawa, Handwritten digit recognition: investigation of normalization and feature
    extraction techniques, Pattern Recognition 37 (2004).

    Examples
    --------
    >>> import numpy as np
    >>> OrientationFeatures(image_shape=(6, 4)).fit_transform(np.eye(24)).shape
    (24, 512)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_SHAPE,
        "cells": [Interval(Integral, 1, 64, closed="both")],
        "directions": [Options(Integral, {4, 8})],
        "blur": [Interval(Real, 0, 64, closed="right")],
        "power": [Interval(Real, 0, 1, closed="right")],
    }

    def __init__(
        self,
        image_shape: Any = None,
        *,
        cells: int = 8,
        directions: int = DIRECTIONS,
        blur: float = 1.0,
        power: float = 0.5,
    ) -> None:
        self.image_shape = image_shape
        self.cells = cells
        self.directions = directions
        self.blur = blur
        self.power = power

    def _row_map(self) -> RowMap:
        return Orientations(
            self.image_height_,
            self.image_width_,
            int(self.cells),
            int(self.directions),
            float(self.blur),
            float(self.power),
        )
