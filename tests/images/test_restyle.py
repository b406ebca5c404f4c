"""Restyled copies and styles: equal to the oracle, the same bits however they are asked for, figures spread evenly."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference_images import restyled, styled, thickened

from bigkernel.errors import ConfigError, DataError
from bigkernel.images.restyle import Restyling, Style, Styling

ROWS = 200
RANGES = ("size", "aspect", "rotation", "shear", "shift", "thickness")
STILL = Restyling(12, 12, size=0, aspect=0, rotation=0, shear=0, shift=0, thickness=0)
STYLES = (Style(), Style(30.0, 0.7, 0.6), Style(-75.0, -0.4, 1.8))


def bars(rng: np.random.Generator, n: int, height: int, width: int) -> np.ndarray:
    """Bright bars and spots on a dark ground, (n, h·w) uint8."""
    x = np.zeros((n, height, width), np.uint8)
    for image in x:
        i, j = rng.integers(0, height), rng.integers(0, width)
        image[i : i + 2] = rng.integers(60, 256)
        image[:, j : j + 2] = rng.integers(60, 256)
        image[rng.integers(0, height), rng.integers(0, width)] = 255
    return x.reshape(n, -1)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return bars(np.random.default_rng(1), ROWS, 12, 12)


@pytest.mark.parametrize(
    "options",
    [
        Restyling(12, 12, seed=3),
        Restyling(7, 11, seed=2**40, low=20.0, high=200.0),
        Restyling(9, 9, seed=1, size=1.0, aspect=1.0, rotation=180.0, shear=1.0, shift=1.0, thickness=1.0),
        Restyling(1, 9, thickness=0.0),
    ],
)
def test_a_copy_is_what_the_oracle_says(rng, options):
    x = bars(rng, 6, options.height, options.width).clip(options.low, options.high).astype(np.float64)
    found = options.copies(x, 11)
    for k in range(6):
        wanted = restyled(
            x[k].reshape(options.height, options.width),
            11 + k,
            seed=options.seed,
            ranges=options.ranges,
            low=options.low,
            high=options.high,
        )
        assert_allclose(found[k], wanted.reshape(-1), atol=2e-4)  # of 255, in float32


def test_bytes_are_rounded_to_the_nearest(images):
    exact, stored = Restyling(12, 12).copies(images.astype(np.float32), 5), Restyling(12, 12).copies(images, 5)
    assert stored.dtype == np.uint8
    assert_array_equal(stored, np.rint(exact))


def test_without_ranges_a_copy_is_its_original(images):
    assert_array_equal(STILL.copies(images, 7), images)
    assert Restyling(12, 12).times(0.0) == STILL


@pytest.mark.parametrize("name", RANGES)
def test_each_figure_is_drawn_evenly_from_its_range(name):
    """Seen in what it does to a point and a cross on a large image."""
    side, n = 41, 400
    widest = {"size": 0.4, "aspect": 0.4, "rotation": 20.0, "shear": 0.4, "shift": 0.2, "thickness": 1.0}[name]
    options = replace(STILL, height=side, width=side, **{name: widest}, high=1.0)
    image = np.zeros((side, side))
    image[20, 30] = image[10, 20] = 1  # 10 to the right, 10 up
    copies = options.copies(np.tile(image.reshape(1, -1), (n, 1)), 0).reshape(n, side, side)
    place = np.arange(side)

    def centre(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mass = part.sum(axis=(1, 2))
        return (part.sum(axis=2) @ place) / mass - 20, (part.sum(axis=1) @ place) / mass - 20

    i, j = np.mgrid[:side, :side] - 20
    if name == "thickness":
        found = np.where(copies[:, 20, 31] > 0, copies[:, 20, 31], copies[:, 20, 30] - 1)
    elif name == "shift":
        down, across = centre(copies)
        assert_allclose([np.corrcoef(down, across)[0, 1]], 0, atol=0.15)
        found = (across - 5) / (side / 2)
    else:
        right, top = centre(copies * (j > np.abs(i))), centre(copies * (-i > np.abs(j)))
        found = {
            "size": np.log(right[1] / 10),
            "aspect": np.log(right[1] / -top[0]),
            "rotation": np.degrees(np.arctan2(right[0], right[1])),
            "shear": -top[1] / 10,
        }[name]
    assert np.abs(found).max() <= widest * 1.08
    # deciles of an even spread, within what 400 draws leave open
    assert_allclose(np.quantile(found / widest, np.linspace(0.1, 0.9, 9)), np.linspace(-0.8, 0.8, 9), atol=0.13)


@pytest.mark.parametrize("style", STYLES)
def test_a_style_is_what_the_oracle_says(rng, style):
    x = bars(rng, 4, 9, 13).astype(np.float64)
    found = Styling(9, 13, (style,), low=0.0, high=255.0).images(x, 3)
    for image, drawn in zip(x, found, strict=True):
        wanted = styled(image.reshape(9, 13), style.rotation, style.thickness, style.contrast, low=0.0, high=255.0)
        assert_allclose(drawn, wanted.reshape(-1), atol=2e-4)


def test_plain_styles_are_what_they_are_called(images):
    def drawn(style: Style) -> np.ndarray:
        return Styling(12, 12, (style,)).images(images, 0).reshape(-1, 12, 12)

    square = images.reshape(-1, 12, 12)
    assert_array_equal(drawn(Style()), square)
    assert_array_equal(drawn(Style(rotation=90)), np.rot90(square, -1, axes=(1, 2)))
    assert_array_equal(drawn(Style(thickness=1)), [thickened(image, 1.0, 0.0) for image in square])
    assert_array_equal(drawn(Style(contrast=0)), np.full_like(square, 128))


def test_every_row_is_in_one_domain_and_its_image_in_that_style(images):
    styling = Styling(12, 12, STYLES, seed=9)
    domains = styling.domains(1000, 1000 + ROWS)
    assert_array_equal(styling.domains(1050, 1060), domains[50:60])
    assert np.bincount(domains, minlength=3).min() > ROWS / 3 - 5 * math.sqrt(ROWS * 2 / 9)
    found = styling.images(images, 1000)
    for number, style in enumerate(STYLES):
        alone = Styling(12, 12, (style,)).images(images, 0)
        assert_array_equal(found[domains == number], alone[domains == number])


@pytest.mark.parametrize(
    "options, text",
    [
        ({"size": math.nan}, "size: expected a range of 0 to 1, found nan"),
        ({"size": -0.1}, "size"),
        ({"aspect": 1.1}, "aspect"),
        ({"rotation": 181.0}, "rotation: expected a range of 0 to 180"),
        ({"shear": math.inf}, "shear"),
        ({"shift": -1.0}, "shift"),
        ({"thickness": 1.5}, "thickness"),
        ({"seed": -1}, "seed: expected 0 to"),
        ({"low": 2.0, "high": 1.0}, "low, high: expected two finite numbers in order"),
        ({"high": math.inf}, "low, high"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, text):
    with pytest.raises(ConfigError, match=text):
        Restyling(8, 8, **options)


def test_styles_and_images_that_do_not_fit_are_refused(images):
    for options, text in (
        ({"rotation": 400.0}, "rotation: expected -360 to 360, found 400"),
        ({"thickness": math.nan}, "thickness: expected -1 to 1"),
        ({"contrast": -1.0}, "contrast: expected 0 to 4"),
    ):
        with pytest.raises(ConfigError, match=text):
            Style(**options)
    with pytest.raises(ConfigError, match="styles: expected 1 to 65,536 of them, found 0"):
        Styling(8, 8, ())
    with pytest.raises(ConfigError, match="seed: expected 0 to"):
        Styling(8, 8, STYLES, seed=-1)
    with pytest.raises(DataError, match=r"expected rows of 8×8 = 64 pixels, found shape \(200, 144\)"):
        Restyling(8, 8).copies(images, 0)
    with pytest.raises(ConfigError, match=r"images of 0×8 pixels: expected sides of 1 to 1,024"):
        Restyling(0, 8)


def test_a_restyling_says_its_ranges_in_words():
    assert Restyling(28, 28).text == ("log size ±0.5, log aspect ±0.1, rotation ±10°, shear ±0.15, shift ±3%, pen ±50%")
