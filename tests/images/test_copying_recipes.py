"""What both recipes of copies promise, and styles: the same bits however they are asked for, types, ranges, memory."""

import hashlib
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from bigkernel.images.elastic import Deformation
from bigkernel.images.restyle import Restyling, Style, Styling

ROWS = 200
STYLES = (Style(), Style(30.0, 0.7, 0.6), Style(-75.0, -0.4, 1.8))
RECIPES = {"elastic": Deformation, "restyled": Restyling}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@pytest.fixture(scope="module")
def images():
    """Bright bars and spots on a dark ground, (n, 12·12) uint8."""
    rng = np.random.default_rng(1)
    x = np.zeros((ROWS, 12, 12), np.uint8)
    for image in x:
        i, j = rng.integers(0, 12, 2)
        image[i : i + 2] = rng.integers(60, 256)
        image[:, j : j + 2] = rng.integers(60, 256)
        image[tuple(rng.integers(0, 12, 2))] = 255
    return x.reshape(ROWS, -1)


@given(cuts=st.lists(st.integers(0, ROWS), max_size=6), start=st.integers(0, 2**33))
def test_any_cut_of_the_rows_gives_the_same_bits(images, cuts, start):
    styling = Styling(12, 12, STYLES, seed=5)
    bounds = sorted({0, *cuts, ROWS})
    for make in (*(recipe(12, 12, seed=5).copies for recipe in RECIPES.values()), styling.images):
        pieces = [make(images[a:b], start + a) for a, b in pairwise(bounds)]
        assert_array_equal(np.concatenate(pieces), make(images, start))


@every_recipe
def test_the_size_of_a_block_changes_no_bit(images, monkeypatch, recipe):
    whole, sizes = recipe(12, 12).copies(images, 60_000), set()
    for pixels in (1, 7 * 196, 10**9):
        monkeypatch.setattr(f"{recipe.__module__}._BLOCK_PIXELS", pixels)
        assert_array_equal(recipe(12, 12).copies(images, 60_000), whole)
        sizes.add(getattr(recipe(12, 12), "block_rows", pixels))
    assert len(sizes) == 3


@every_recipe
def test_seeds_rows_and_images_make_copies_of_their_own(images, recipe):
    same = np.repeat(images[:1], 100, 0)
    copies = recipe(12, 12).copies(same, 60_000)
    assert len(np.unique(copies, axis=0)) == 100
    assert (replace(recipe(12, 12), seed=6).copies(same, 60_000) != copies).any(axis=1).all()


def test_the_bits_of_a_recipe_stay():
    """Whoever changes them raises RECIPE: corpora on disk are told apart by it."""
    x = (np.arange(6 * 784) * 37 % 251).astype(np.uint8).reshape(6, 784)
    made = [recipe(28, 28, seed=1).copies(x, 8_000_000) for recipe in RECIPES.values()]
    made.append(Styling(28, 28, STYLES, seed=1).images(x, 8_000_000))
    found = [hashlib.sha256(rows.tobytes()).hexdigest()[:16] for rows in made]
    assert found == ["90c2bf33b62b0b6b", "aea475f2b2d2c7b3", "0fdb24072a4c9c50"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint16"])
@pytest.mark.parametrize(
    "recipe", [Restyling(8, 8), Deformation(8, 8, strength=3.0, smoothness=1.0)], ids=["restyled", "elastic"]
)
def test_other_dtypes_keep_their_type_and_their_range(rng, recipe, dtype):
    low, high = (-1.0, 1.0) if dtype.startswith("float") else (3.0, 900.0)
    x = rng.uniform(low, high, (50, 64)).astype(dtype)
    copies = replace(recipe, low=low, high=high).copies(x, 50)
    assert copies.dtype == dtype
    assert low <= copies.min() < low + 0.1 * (high - low)
    assert high - 0.1 * (high - low) < copies.max() <= high


@every_recipe
def test_memory_is_as_announced(recipe):
    x = np.zeros((4000, 784), np.uint8)
    made = recipe(28, 28)
    made.copies(x[:2], 0)
    tracemalloc.start()
    out = made.copies(x, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - out.nbytes < made.work_bytes < 8 * 2**20
    assert made.flops_per_row > 784
