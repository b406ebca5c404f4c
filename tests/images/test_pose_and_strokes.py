"""Row maps of images: equal to the oracle, row by row, defined for every image, and of the memory they announce."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference_images import moment_normalised, orientation_features
from traced import traced

from bigkernel.errors import ConfigError, DataError
from bigkernel.streaming.chunk import map_costs
from bigkernel.streaming.images import MomentNormalise, Orientations

ROWS = 200
SHAPES = [(16, 16), (8, 8), (5, 9), (1, 7), (3, 1)]


MAPS = [MomentNormalise, Orientations, partial(Orientations, cells=14)]
every_map = pytest.mark.parametrize("kind", MAPS, ids=["moments", "orientations", "many cells"])
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def strokes(rng: np.random.Generator, n: int, height: int, width: int) -> np.ndarray:
    """Slanted bars with soft edges on an empty ground, (n, h·w) float64 in 0 … 1."""
    i, j = np.mgrid[:height, :width]
    images = np.zeros((n, height, width))
    for image in images:
        for _ in range(2):
            a, b, slope = rng.uniform(0, height), rng.uniform(0, width), rng.uniform(-1, 1)
            distance = np.abs(j - b - slope * (i - a)) + 3 * np.maximum(np.abs(i - a) - height / 4, 0)
            np.maximum(image, rng.uniform(0.3, 1) * np.clip(1.5 - distance, 0, 1), out=image)
    return images.reshape(n, -1)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return strokes(np.random.default_rng(3), ROWS, 16, 16)


@every_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_normalised_images_equal_the_oracle(rng, shape, dtype):
    x = strokes(rng, 6, *shape).astype(dtype)
    options = {"spread": 0.25, "breadth": 0.2, "aspect": 0.3}
    result = MomentNormalise(*shape, **options).apply(x.copy())
    assert result.dtype == dtype
    for image, normalised in zip(x, result, strict=True):
        expected = moment_normalised(image.reshape(shape).astype(float), **options).reshape(-1)
        assert_allclose(normalised, expected, atol=1e-8 if dtype == np.float64 else 1e-5)


@every_dtype
@pytest.mark.parametrize(
    "shape, options",
    [((16, 16), {}), ((28, 28), {"cells": 5}), ((8, 8), {"cells": 11}), ((5, 9), {}), ((1, 7), {}), ((3, 1), {})],
)
def test_oriented_strokes_equal_the_oracle(rng, shape, options, dtype):
    x = strokes(rng, 2, *shape).astype(dtype)
    row_map = Orientations(*shape, **options)
    result = row_map.apply(x.copy())
    assert result.dtype == dtype
    assert result.shape == (2, row_map.width(x.shape[1]))
    for image, features in zip(x, result, strict=True):
        expected = orientation_features(image.reshape(shape).astype(float), **options)
        assert_allclose(features**2, expected**2, atol=1e-8 if dtype == np.float64 else 1e-6)


@every_map
@given(cuts=st.lists(st.integers(0, ROWS), max_size=6), single=st.booleans())
def test_any_cut_of_the_rows_gives_the_same_bits(images, kind, cuts, single):
    x = images.astype(np.float32 if single else np.float64)
    whole = kind(16, 16).apply(x.copy())
    bounds = sorted({0, *cuts, 1, ROWS})
    assert_array_equal(np.concatenate([kind(16, 16).apply(x[a:b].copy()) for a, b in pairwise(bounds)]), whole)


@every_map
def test_the_size_of_a_strip_changes_no_bit(images, kind, monkeypatch):
    whole = kind(16, 16).apply(images.copy())
    for pixels in (1, 7 * 256, 10**7):
        monkeypatch.setattr("bigkernel.streaming.images._STRIP_PIXELS", pixels)
        assert_array_equal(kind(16, 16).apply(images.copy()), whole)


@every_dtype
def test_pixels_keep_their_range(rng, dtype):
    x = (255 * strokes(rng, 50, 16, 16)).astype(dtype)
    result = MomentNormalise(16, 16).apply(x.copy())
    assert result.min() >= 0
    assert result.max() <= x.max() * (1 + 4 * np.finfo(dtype).eps)
    features = Orientations(16, 16).apply(x.copy())
    assert features.min() >= 0
    assert_allclose((features.astype(float) ** 2).sum(axis=1), 1, rtol=1e-5)


@every_dtype
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_images_without_ink_stay_and_those_without_edges_give_zeros(dtype, value):
    x = np.full((3, 64), value, dtype)
    assert_array_equal(MomentNormalise(8, 8).apply(x.copy()), x)
    assert_array_equal(Orientations(8, 8).apply(np.zeros((3, 64), dtype)), 0)


@every_map
@pytest.mark.parametrize(
    "dtype, factors", [(np.float32, (1e-42, 1e-30, 3.4e38)), (np.float64, (5e-322, 1e-200, 1.79e308))]
)
def test_brightness_beyond_the_range_of_squares_changes_no_feature(images, kind, dtype, factors):
    x = (images[:5] / images[:5].max()).astype(dtype)
    plain = kind(16, 16).apply(x.copy())
    for factor in factors:
        with np.errstate(under="ignore"):
            scaled = x * dtype(factor)
        result = kind(16, 16).apply(scaled)
        assert np.isfinite(result).all()
        if factor > np.finfo(dtype).tiny:
            assert_allclose(result / dtype(factor) if kind is MomentNormalise else result, plain, atol=1e-3)


@every_map
@every_dtype
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_stays_so_and_changes_no_other(images, kind, dtype, value):
    x = images[:9].astype(dtype)
    whole = kind(16, 16).apply(x.copy())
    x[4, 100] = value
    result = kind(16, 16).apply(x)
    assert not np.isfinite(result[4]).all()
    assert_array_equal(np.delete(result, 4, axis=0), np.delete(whole, 4, axis=0))


def test_images_of_another_size_are_refused_by_name():
    with pytest.raises(DataError, match=r"moment-normalise: expected rows of 4×5 = 20 pixels, found 25 features"):
        MomentNormalise(4, 5).width(25)
    with pytest.raises(DataError, match=r"orientations: expected rows of 4×5 = 20 pixels"):
        Orientations(4, 5).width(25)
    with pytest.raises(ConfigError, match=r"images: expected sides of 1 to 1,024 pixels, found 0×8"):
        Orientations(0, 8)
    with pytest.raises(ConfigError, match="cells: expected"):
        Orientations(8, 8, cells=0)


@every_map
@every_dtype
def test_memory_is_as_announced(kind, dtype):
    x = np.random.default_rng(0).uniform(size=(2000, 784)).astype(dtype)
    row_map = kind(28, 28)
    row_map.apply(x[:2].copy())
    out, peak = traced(row_map.apply, x)
    cost = map_costs((row_map,), 784, x.itemsize)
    given_back = 0 if out is x else out.nbytes
    assert peak - given_back < cost.fixed_bytes < 16 * 2**20
    assert cost.flops_per_row > 784


@every_dtype
def test_one_pixel_is_centred_and_enlarged_to_the_limit(dtype):
    x = np.zeros((64, 64), dtype)
    np.fill_diagonal(x, 1)
    result = MomentNormalise(8, 8).apply(x.copy()).reshape(-1, 8, 8)
    assert_allclose(result, np.broadcast_to(result[0], result.shape), atol=1e-5)
    assert_allclose(result[0], result[0, ::-1, ::-1], atol=1e-5)
    assert_allclose(result.sum(axis=(1, 2)), 4 * 4, rtol=1e-3)
    assert np.isfinite(Orientations(8, 8).apply(x)).all()
