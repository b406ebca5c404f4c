"""Row maps of images as transformers: a common pose by moments, oriented strokes, kernel features of patches.

A row is an image. Pose and strokes transform each image on its own, and learn only the shape of the images. The
landmarks of patches are learnt in a sweep. All are applied in the tasks of the next step.
"""

from __future__ import annotations

from itertools import repeat
from numbers import Integral, Real
from typing import ClassVar, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError
from bigkernel.estimators.base import set_parameters
from bigkernel.estimators.inputs import input_rows
from bigkernel.estimators.transforms import RowTransformer
from bigkernel.images.checks import image_shape_of
from bigkernel.images.patch_layers import PatchFeatures, PatchGrid, PatchLayer
from bigkernel.images.patch_learning import LayerOptions, learn_layers
from bigkernel.images.pose_and_strokes import MomentNormalise, Orientations
from bigkernel.streaming.chunk import RowMap

ImageShape = tuple[int, ...] | None
RandomState = int | np.random.RandomState | None
_MOST_LAYERS = 2
_OF_A_LAYER = ("patch_size", "n_landmarks", "subsampling", "sigma")


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
        self.image_height_, self.image_width_, _ = image_shape_of(X, self.image_shape, self.n_features_in_)
        return self


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

    def __init__(
        self, image_shape: ImageShape = None, *, spread: float = 0.22, breadth: float = 0.17, aspect: float = 0.5
    ) -> None:
        set_parameters(self, locals())

    def _row_map(self) -> RowMap:
        return MomentNormalise(
            self.image_height_, self.image_width_, float(self.spread), float(self.breadth), float(self.aspect)
        )


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

    def __init__(self, image_shape: ImageShape = None, *, cells: int = 8) -> None:
        set_parameters(self, locals())

    def _row_map(self) -> RowMap:
        return Orientations(self.image_height_, self.image_width_, int(self.cells))


class ConvolutionalNystroem(RowTransformer):
    """Kernel features of the patches of an image, averaged in cells: a convolutional kernel network of 1 or 2 layers.

    A patch less its mean, x, has the features ‖x‖ K_ZZ^(−½) k(Z, x/‖x‖) of the landmarks Z, which spherical k-means
    finds among patches of the images; k(u, v) = exp(−‖u − v‖²/2σ²) on the unit sphere. Cells average them with Gaussian
    weights. The second layer takes the cells of the first as the pixels of an image. The final rows have unit norm; an
    image without any contrast gives zeros. Each layer is learnt in one sweep; nothing is stored, and the tasks of the
    next step apply it.

    Parameters
    ----------
    image_shape : (height, width), (height, width, channels) or None
        Rows are images line by line, the channels of a pixel side by side. None: that of the corpus, or else a square,
        of one channel.
    patch_size : int or (int, int)
        Side of a patch in pixels, for each layer.
    n_landmarks : int or (int, int)
        m of each layer; fewer where patches have fewer directions.
    subsampling : int or (int, int)
        Distance between neighbouring cells in patch positions, for each layer.
    sigma : float or (float, float)
        σ of k; the distance of two patches is at most 2.
    n_patches : int
        Maximum size of the sample of patches for k-means.
    random_state : int, RandomState or None

    Attributes
    ----------
    landmarks_, whitening_ : (m, q), (m, m)
        Z and K_ZZ^(−½) of the first layer, q = patch_size²·channels.
    second_landmarks_, second_whitening_ : of the second layer, where there is one
    image_height_, image_width_, image_channels_ : int

    References
    ----------
    Mairal, Koniusz, Harchaoui & Schmid, "Convolutional kernel networks" (NeurIPS 2014, arXiv 1406.3332); Mairal,
    "End-to-end kernel learning with supervised convolutional kernel networks" (NeurIPS 2016, arXiv 1605.06265).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import ConvolutionalNystroem
    >>> images = np.random.default_rng(0).uniform(size=(50, 64))
    >>> features = ConvolutionalNystroem(patch_size=3, n_landmarks=8, subsampling=3, random_state=0)
    >>> features.fit_transform(images).shape  # 2×2 cells of 8 features
    (50, 32)
    """

    learns = "patches"
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "image_shape": ["array-like", None],
        **{name: [Interval(Integral, 1, None, closed="left"), "array-like"] for name in _OF_A_LAYER},
        "sigma": [Interval(Real, 0, None, closed="neither"), "array-like"],
        "n_patches": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        image_shape: ImageShape = None,
        *,
        patch_size: int | tuple[int, int] = 5,
        n_landmarks: int | tuple[int, int] = 64,
        subsampling: int | tuple[int, int] = 4,
        sigma: float | tuple[float, float] = 0.5,
        n_patches: int = 100_000,
        random_state: RandomState = None,
    ) -> None:
        set_parameters(self, locals())

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Learn the landmarks of patches of the images X (n, height·width·channels), in one sweep a layer.

        Raises
        ------
        ConfigError
            Parameters for more than two layers, or for different numbers of layers.
        DataError
            Rows do not match the shape, or the images are smaller than a patch or without any contrast.
        """
        self._validate_params()
        options = self._options()
        rows = input_rows(self, X, reset=True)
        image = image_shape_of(X, self.image_shape, rows.shape[1], channels=True)
        rng = check_random_state(self.random_state)
        layers = learn_layers(rows, image, options, rng, n_patches=int(self.n_patches))
        self.image_height_, self.image_width_, self.image_channels_ = image
        self.landmarks_, self.whitening_ = layers[0].landmarks, layers[0].whitening
        for name in ("second_landmarks_", "second_whitening_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        if len(layers) > 1:
            self.second_landmarks_, self.second_whitening_ = layers[1].landmarks, layers[1].whitening
        return self

    def widest(self, rows: Rows) -> Rows:
        return rows.map(self._features(image_shape_of(rows, self.image_shape, rows.shape[1], channels=True)))

    def _options(self) -> list[LayerOptions]:
        """Return the options of each layer; a single value holds for all of them."""
        given = {name: np.atleast_1d(np.asarray(getattr(self, name))) for name in _OF_A_LAYER}
        count = max(map(len, given.values()))
        for name, values in given.items():
            length, whole, value = len(values), name != "sigma", f"found {getattr(self, name)!r}"
            if values.ndim != 1 or not 1 <= length <= _MOST_LAYERS or length not in (1, min(count, _MOST_LAYERS)):
                raise ConfigError(
                    f"{name}: expected one value, or one for each of at most {_MOST_LAYERS} layers (the same number "
                    f"for all parameters), {value}"
                )
            is_number = values.dtype.kind in "iuf" and (values > 0).all()
            if not is_number or (whole and (values != np.rint(values)).any()):
                raise ConfigError(f"{name}: expected {'whole ' if whole else ''}numbers above 0, {value}")
        layers = zip(*(np.broadcast_to(given[name], count) for name in _OF_A_LAYER), strict=True)
        return [LayerOptions(int(patch), int(apart), float(sigma), int(m)) for patch, m, apart, sigma in layers]

    def _features(self, image: tuple[int, int, int], learnt: list[tuple[Array, Array]] | None = None) -> PatchFeatures:
        """Return the row map of images, with landmarks and whitening of each layer, or zeros before they are learnt."""
        options, layers = self._options(), list[PatchLayer]()
        for layer, arrays in zip(options, learnt or repeat(None, len(options)), strict=True):
            grid = PatchGrid(*image, patch=layer.patch, subsampling=layer.subsampling, centred=not layers)
            m = layer.n_landmarks
            landmarks, whitening = arrays or (np.zeros((m, grid.width)), np.zeros((m, m)))
            layers.append(PatchLayer(grid, layer.sigma, landmarks, whitening))
            image = (*grid.cells, len(landmarks))
        return PatchFeatures(tuple(layers))

    def _row_map(self) -> PatchFeatures:
        learnt = [(self.landmarks_, self.whitening_)]
        if hasattr(self, "second_landmarks_"):
            learnt.append((self.second_landmarks_, self.second_whitening_))
        row_map = self._features((self.image_height_, self.image_width_, self.image_channels_), learnt)
        row_map.width(self.n_features_in_)  # refuses what does not fit together
        return row_map
