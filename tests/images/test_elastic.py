"""Deformed images: equal to the oracle, the same bits however they are asked for, fields of the stated correlation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference_deformed import deformed, shifted, smoothed_noise_correlation

from bigkernel.errors import ConfigError, DataError
from bigkernel.images.elastic import NORMAL_BITS, TRUNCATION, Deformation, _normals, field_basis

MNIST = Deformation(28, 28, seed=5)
ROWS = 300


def strokes(rng: np.random.Generator, n: int, height: int, width: int) -> np.ndarray:
    """Bright bars on a dark ground, (n, h·w) uint8."""
    images = np.zeros((n, height, width), np.uint8)
    for image in images:
        i, j = rng.integers(0, height - 2), rng.integers(0, width - 2)
        image[i : i + 2, :] = rng.integers(60, 256)
        image[:, j : j + 2] = rng.integers(60, 256)
    return images.reshape(n, -1)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return strokes(np.random.default_rng(1), ROWS, 28, 28)


@pytest.mark.parametrize(
    "options",
    [
        Deformation(28, 28, seed=3),
        Deformation(8, 8, seed=2**40, strength=2.5, smoothness=1.1, shift=0),
        Deformation(7, 12, seed=1, strength=6.0, smoothness=0.8, shift=3, low=20.0, high=200.0),
        Deformation(5, 4, strength=4.0, smoothness=0.0, shift=2),
        Deformation(1, 9, strength=20.0, smoothness=2.0, shift=0),
    ],
)
def test_a_copy_is_what_the_oracle_says(rng, options):
    h, w = options.height, options.width
    x = np.clip(rng.integers(0, 256, (4, h * w)), options.low, options.high).astype(np.uint8)
    basis = field_basis(h, w, options.smoothness).astype(float)
    found = options.copies(x, 11)
    for k in range(4):
        wanted = deformed(
            x[k].reshape(h, w).astype(float),
            11 + k,
            basis,
            seed=options.seed,
            strength=options.strength,
            shift=options.shift,
            low=options.low,
            high=options.high,
        ).reshape(-1)
        sure = np.abs(wanted - np.rint(wanted)) > 1e-3  # elsewhere float32 may truncate to the other side
        assert sure.any()
        assert_array_equal(found[k][sure], np.floor(wanted)[sure])
        assert_allclose(found[k], wanted, atol=1.001)


@pytest.mark.parametrize("shape", [(28, 28, 4.0), (16, 16, 16 / 7), (8, 8, 8 / 7), (20, 30, 1.0), (6, 6, 0.0)])
def test_the_product_of_normals_and_basis_is_exact_in_any_order(rng, shape):
    basis = field_basis(*shape)
    unit = 2.0**NORMAL_BITS * 2.0 ** -float(np.log2(smallest_step(basis)))
    # the largest sum there can be, in units of the last place of a product
    assert float(_normals().max()) * np.abs(basis).sum(axis=0, dtype=float).max() * unit < 2**24
    normals = _normals()[rng.integers(0, 65536, (64, len(basis)))]
    exact = normals.astype(float) @ basis.astype(float)
    assert_array_equal(normals @ basis, exact)
    order = rng.permutation(len(basis))
    assert_array_equal(np.cumsum(normals[:1, order, None] * basis[order], axis=1)[:, -1], exact[:1])


def smallest_step(basis: np.ndarray) -> float:
    """The power of 2 of which all values are multiples."""
    return next(2.0**-bits for bits in range(1, 40) if (basis * 2.0**bits % 1 == 0).all())


@pytest.mark.parametrize("shape", [(28, 28, 4.0), (16, 16, 16 / 7), (8, 8, 8 / 7), (9, 14, 1.5)])
def test_fields_are_smoothed_white_noise_of_variance_one(shape):
    basis = field_basis(*shape).astype(float)
    covariance = basis.T @ basis
    assert_allclose(covariance, smoothed_noise_correlation(*shape), atol=4e-3)
    assert_allclose(np.diag(covariance), 1, atol=2e-3)


def test_few_modes_are_kept_and_what_is_left_out_is_as_stated():
    line = np.exp(-(np.subtract.outer(np.arange(28), np.arange(28)) ** 2) / 64)
    variance = np.sort(np.outer(*[np.linalg.eigvalsh(line)] * 2).reshape(-1))[::-1]
    modes = len(field_basis(28, 28, 4.0))
    assert modes < 80
    assert variance[modes:].sum() <= TRUNCATION * variance.sum() < variance[modes - 1 :].sum()


def test_drawn_normals_are_symmetric_and_of_variance_one():
    table = _normals().astype(float)
    assert_array_equal(table, -table[::-1])
    assert table.var() == pytest.approx(1, abs=1e-3)
    assert (table**4).mean() == pytest.approx(3, abs=0.02)
    assert (np.diff(table) >= 0).all()


def test_displacements_have_the_strength_in_pixels():
    ramp = np.tile(np.arange(28, dtype=np.float32), (28, 1)).reshape(1, -1)  # slope 1 to the right
    options = Deformation(28, 28, strength=2.0, shift=0, low=-1000.0, high=1000.0)
    moved = (options.copies(np.repeat(ramp, 4000, 0), 0) - ramp).reshape(-1, 28, 28)[:, 1:-1, 1:-1]
    assert_allclose(moved.std(axis=0), 2.0, rtol=0.08)
    half = Deformation(14, 14, strength=2.0, smoothness=2.0, shift=0, low=-1000.0, high=1000.0)
    small = np.tile(np.arange(14, dtype=np.float32), (14, 1)).reshape(1, -1)
    moved = (half.copies(np.repeat(small, 4000, 0), 0) - small).reshape(-1, 14, 14)[:, 1:-1, 1:-1]
    assert_allclose(moved.std(axis=0), 1.0, rtol=0.08)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_without_strength_a_copy_is_the_image_moved_by_each_shift_equally_often(images, shift):
    options = Deformation(28, 28, strength=0.0, shift=shift, low=7.0)
    image = np.maximum(images[:1], 7)
    copies = options.copies(np.repeat(image, 2000, 0), 60_000)
    steps = range(-shift, shift + 1)
    counts = [
        (copies == shifted(image.reshape(28, 28), i, j, 7.0).reshape(-1)).all(axis=1).sum()
        for i in steps
        for j in steps
    ]
    assert sum(counts) == 2000
    expected = 2000 / len(counts)
    assert max(abs(np.array(counts) - expected)) < 5 * math.sqrt(expected)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"strength": math.nan}, "strength: expected pixels between 0 and 28"),
        ({"strength": -1.0}, "strength"),
        ({"strength": 29.0}, "strength"),
        ({"smoothness": math.inf}, "smoothness: expected a finite number of pixels, at least 0, found inf"),
        ({"smoothness": math.nan}, "smoothness"),
        ({"smoothness": -0.5}, "smoothness"),
        ({"shift": -1}, "shift: expected whole pixels"),
        ({"shift": 8}, "shift: expected whole pixels, at least 0 and below the 8"),
        ({"seed": -1}, "seed: expected 0 to"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, text):
    with pytest.raises(ConfigError, match=text):
        Deformation(8, 8, **options)


def test_images_that_do_not_fit_are_refused(images):
    with pytest.raises(DataError, match=r"expected rows of 28×28 = 784 pixels, found shape \(2, 700\)"):
        MNIST.copies(images[:2, :700], 0)
    with pytest.raises(DataError, match="images of 0×8 pixels: expected sides of 1 to 1,024"):
        Deformation(0, 8)
    with pytest.raises(ConfigError, match=r"smoothness: 0\.1 pixels on images of 128×128 need .* modes, above 256 MiB"):
        field_basis(128, 128, 0.1)
