"""Row maps of images as transformers: a common pose by moments, oriented strokes.

A row is an image. Both transform each image on its own, learn only the shape of the images, and are applied in the
tasks of the next step.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import ClassVar, Self

from sklearn.base import OneToOneFeatureMixin
from sklearn.utils._param_validation import Interval

from bigkernel.arrays import ColumnLike, RowsLike
from bigkernel.estimators.base import parameters
from bigkernel.estimators.transforms.rows import RowTransformer
from bigkernel.streaming.chunk import RowMap
from bigkernel.streaming.images import MomentNormalise, Orientations, image_shape_of

ImageShape = tuple[int, ...] | None


class ImageTransformer(RowTransformer):
    """Base of the transformers that learn only the height and the width of images."""

    image_shape: ImageShape

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Learn the shape of the images, without reading a pixel.

        Raises
        ------
        DataError
            The number of features does not match the shape, or is no square where no shape is known.
        """
        super().fit(X, y)
        self.image_height_, self.image_width_ = image_shape_of(X, self.image_shape, self.n_features_in_)
        return self


@parameters
class MomentNormalizer(OneToOneFeatureMixin, ImageTransformer):
    """Bring every image to a common position, slant and size by the moments of its ink.

    The centroid moves to the middle, the slant cov(x, y)/var(y) is removed, the height is scaled to one spread and the
    breadth half of the way to another (see `MomentNormalise` in `images.pose_and_strokes`). Pixel values are ink; 0 is
    the background. An image without ink stays as it is.

    Parameters
    ----------
    image_shape : (height, width) or None
        None: that of the corpus, or else a square.
    spread, breadth : float
        Deviation of the ink down and across, as shares of the sides of the image.
    aspect : float, 0 … 1
        0: proportions of the original; 1: the same breadth for all images.

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

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "image_shape": ["array-like", None],
        "spread": [Interval(Real, 0, 1, closed="right")],
        "breadth": [Interval(Real, 0, 1, closed="right")],
        "aspect": [Interval(Real, 0, 1, closed="both")],
    }

    image_shape: ImageShape = None
    _: KW_ONLY
    spread: float = 0.22
    breadth: float = 0.17
    aspect: float = 0.5

    def _row_map(self) -> RowMap:
        return MomentNormalise(
            self.image_height_, self.image_width_, float(self.spread), float(self.breadth), float(self.aspect)
        )


@parameters
class OrientationFeatures(ImageTransformer):
    """Describe every image by its strokes: 8 directions of the gradient in cells, features of unit norm.

    A feature is the square root of the share of a direction and a cell in all gradients of the image, 512 with 8×8
    cells (see `Orientations` in `images.pose_and_strokes`), so that features do not depend on the brightness of an
    image. An image without any edge gives zeros.

    Parameters
    ----------
    image_shape : (height, width) or None
        None: that of the corpus, or else a square.
    cells : int
        Number of cells down and across.

    Attributes
    ----------
    image_height_, image_width_ : int

    References
    ----------
    Liu, Nakashima, Sako & Fujisawa (2004), as for `MomentNormalizer`.

    Examples
    --------
    >>> import numpy as np
    >>> OrientationFeatures(image_shape=(6, 4)).fit_transform(np.eye(24)).shape
    (24, 512)
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "image_shape": ["array-like", None],
        "cells": [Interval(Integral, 1, 64, closed="both")],
    }

    image_shape: ImageShape = None
    _: KW_ONLY
    cells: int = 8

    def _row_map(self) -> RowMap:
        return Orientations(self.image_height_, self.image_width_, int(self.cells))
