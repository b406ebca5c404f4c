"""Convolutional kernel features as a transformer: landmarks of patches learnt in a sweep, applied in the task."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.inputs import input_rows
from bigkernel.estimators.transforms import PlainTransformer
from bigkernel.images.checks import image_shape_of
from bigkernel.images.patch_layers import PatchFeatures, PatchGrid, PatchLayer
from bigkernel.images.patch_learning import LayerOptions, learn_layers

Array = NDArray[Any]
_MOST_LAYERS = 2
_OF_A_LAYER = ("patch_size", "n_landmarks", "subsampling", "sigma")


class ConvolutionalNystroem(PlainTransformer):
    """Kernel features of the patches of an image, averaged in cells: a convolutional kernel network of 1 or 2 layers.

    A patch less its mean, x, has the features ‖x‖ K_ZZ^(−½) k(Z, x/‖x‖) of the landmarks Z, which spherical k-means
    finds among patches of the images; k(u, v) = exp(−‖u − v‖²/2σ²) on the unit sphere. Cells average them with Gaussian
    weights. The second layer takes the cells of the first as the pixels of an image. A row ends with the length 1; an
    image without any contrast gives zeros. One sweep a layer; nothing is stored, the tasks of the next step apply it.

    Parameters
    ----------
    image_shape : (height, width), (height, width, channels) or None
        Rows are images line by line, the channels of a pixel side by side. None: that of the corpus to fit, or else a
        square, of one channel.
    patch_size : int or (int, int)
        Side of a patch in pixels, of each layer.
    n_landmarks : int or (int, int)
        m, of each layer; fewer where patches have fewer directions.
    subsampling : int or (int, int)
        Places of a patch from one cell to the next.
    sigma : float or (float, float)
        σ of k; the distance of two patches is at most 2.
    n_patches : int
        Of the sample that k-means sees, at most.
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
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "image_shape": ["array-like", None],
        "patch_size": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "n_landmarks": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "subsampling": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "sigma": [Interval(Real, 0, None, closed="neither"), "array-like"],
        "n_patches": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        image_shape: Any = None,
        *,
        patch_size: Any = 5,
        n_landmarks: Any = 64,
        subsampling: Any = 4,
        sigma: Any = 0.5,
        n_patches: int = 100_000,
        random_state: Any = None,
    ) -> None:
        self.image_shape = image_shape
        self.patch_size = patch_size
        self.n_landmarks = n_landmarks
        self.subsampling = subsampling
        self.sigma = sigma
        self.n_patches = n_patches
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the landmarks of patches of the images X (n, height·width·channels), in one sweep a layer.

        Raises
        ------
        ConfigError
            Parameters of more than two layers, or of different numbers of layers.
        DataError
            Rows that are no images of the shape, images too small for a patch, or without any contrast.
        """
        self._validate_params()
        options = self._options()
        rows = input_rows(self, X, reset=True)
        image = self._image(X, rows.shape[1])
        rng = check_random_state(self.random_state)
        layers = learn_layers(rows, image, options, rng, n_patches=int(self.n_patches))
        self.image_height_, self.image_width_, self.image_channels_ = image
        self.landmarks_, self.whitening_ = layers[0].landmarks, layers[0].whitening
        for name in ("second_landmarks_", "second_whitening_"):
            self.__dict__.pop(name, None)  # of a fit before
        if len(layers) > 1:
            self.second_landmarks_, self.second_whitening_ = layers[1].landmarks, layers[1].whitening
        return self

    def widest(self, rows: Rows) -> Rows:
        """Rows through layers of as many landmarks as were asked for."""
        image, layers = self._image(rows, rows.shape[1]), list[PatchLayer]()
        for wanted in self._options():
            grid = PatchGrid(*image, patch=wanted.patch, subsampling=wanted.subsampling, centred=not layers)
            m = wanted.n_landmarks
            layers.append(PatchLayer(grid, wanted.sigma, np.zeros((m, grid.width)), np.zeros((m, m))))
            image = (*grid.cells, m)
        return rows.map(PatchFeatures(tuple(layers)))

    def _image(self, X: Any, d: int) -> tuple[int, int, int]:
        """Height, width and channels of the rows."""
        shape = None if self.image_shape is None else tuple(np.ravel(self.image_shape).tolist())
        if shape is None:
            return *image_shape_of(X, None, d), 1
        if len(shape) not in (2, 3) or not all(side >= 1 and side == int(side) for side in shape):
            raise ConfigError(
                f"image_shape: expected (height, width) or (height, width, channels), found {self.image_shape!r}"
            )
        height, width, channels = (*map(int, shape), 1)[:3]
        if height * width * channels != d:
            raise DataError(
                f"image_shape {height}×{width} of {channels} channels is {height * width * channels} numbers, but rows "
                f"have {d}"
            )
        return height, width, channels

    def _options(self) -> list[LayerOptions]:
        """What each layer is to be; a single value serves all of them."""
        given = {name: np.atleast_1d(np.asarray(getattr(self, name))) for name in _OF_A_LAYER}
        count = max(len(values) for values in given.values())
        for name, values in given.items():
            whole, most = name != "sigma", _MOST_LAYERS
            if values.ndim != 1 or not 1 <= len(values) <= most or (len(values) not in (1, count) and count <= most):
                raise ConfigError(
                    f"{name}: expected one value, or one for each of at most {most} layers and as many as of the "
                    f"others, found {getattr(self, name)!r}"
                )
            if (
                values.dtype.kind not in "iuf"
                or not (values > 0).all()
                or (whole and (values != np.rint(values)).any())
            ):
                raise ConfigError(
                    f"{name}: expected {'whole ' if whole else ''}numbers above 0, found {getattr(self, name)!r}"
                )
        patch, m, apart, sigma = (np.broadcast_to(given[name], count) for name in _OF_A_LAYER)
        return [LayerOptions(int(patch[i]), int(apart[i]), float(sigma[i]), int(m[i])) for i in range(count)]

    def _row_map(self) -> PatchFeatures:
        image = self.image_height_, self.image_width_, self.image_channels_
        held = [(self.landmarks_, self.whitening_)]
        if hasattr(self, "second_landmarks_"):
            held.append((self.second_landmarks_, self.second_whitening_))
        layers: list[PatchLayer] = []
        for wanted, (landmarks, whitening) in zip(self._options(), held, strict=True):
            grid = PatchGrid(*image, patch=wanted.patch, subsampling=wanted.subsampling, centred=not layers)
            layers.append(PatchLayer(grid, wanted.sigma, landmarks, whitening))
            image = (*grid.cells, len(landmarks))
        row_map = PatchFeatures(tuple(layers))
        row_map.width(self.n_features_in_)
        return row_map
