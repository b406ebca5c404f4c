"""Row maps: each row by itself, of any size, and their costs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel.streaming.chunk import Chunk, MapCost, apply_maps, map_costs, mapped_width
from bigkernel.streaming.row_maps import SameWidth, Scale, Standardize, UnitNorm

D = 4
MAPS = {
    "scale": Scale(1 / 255),
    "unit-norm": UnitNorm(),
    "standardize": Standardize(np.linspace(-1, 1, D), np.linspace(0.5, 3, D)),
}


def mapped(x, *row_maps, dtype=np.float64, block_rows=7):
    """All rows of a chunk, block by block, through its row maps."""
    chunk = Chunk(x, row_maps=row_maps, block_rows=block_rows)
    width = mapped_width(row_maps, x.shape[1])
    return np.concatenate([chunk.load(block, width, dtype).copy() for block in chunk.blocks()])


def test_row_maps_equal_their_formulas(rng):
    x = rng.normal(size=(20, D))
    x[3] = 0
    norms = np.linalg.norm(x, axis=1)
    norms[3] = 1
    assert_allclose(mapped(x, Scale(0.25)), x / 4, rtol=1e-15)
    assert_allclose(mapped(x, UnitNorm()), x / norms[:, None], rtol=1e-14)
    standard = MAPS["standardize"]
    assert_allclose(mapped(x, standard), (x - standard.mean) / standard.std, rtol=1e-14)
    assert_allclose(mapped(x, Scale(0.25), standard), (x / 4 - standard.mean) / standard.std, rtol=1e-14)


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float64, 1e200), (np.float64, 1e-200), (np.float32, 1e25), (np.float32, 1e-25)]
)
def test_unit_norm_holds_for_rows_of_any_size(dtype, size, rng):
    x = (rng.normal(size=(5, D)) * size).astype(dtype)
    assert_allclose(np.linalg.norm(mapped(x, UnitNorm(), dtype=dtype).astype(float), axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("stored", ["u1", ">i2", "f2", "?", ">f4", "i8"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stored_numbers_are_cast_exactly_and_left_unchanged(stored, dtype, rng):
    x = rng.integers(0, 2, (30, D)).astype(stored)
    before = x.copy()
    got = mapped(x, Scale(2.0), dtype=dtype)
    assert got.dtype == dtype
    assert_array_equal(got, 2.0 * before.astype(float))
    assert_array_equal(x, before)


class Doubled(SameWidth):
    """Every feature twice: a map that changes the width."""

    name = "doubled"

    def width(self, d):
        return 2 * d

    def cost(self, d, itemsize):
        return MapCost(1.0, 7, 11)

    def apply(self, x):
        return np.concatenate([x, x], axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("maps", [(Doubled(),), (Scale(2.0), Doubled(), Scale(3.0)), (Doubled(), Doubled())])
def test_a_map_may_change_the_width_of_the_rows(rng, maps, dtype):
    x = rng.normal(size=(23, 5))
    result, expected = mapped(x, *maps, dtype=dtype), x.astype(dtype)
    for row_map in maps:
        expected = row_map.apply(expected.copy())
    assert result.shape == (23, mapped_width(maps, 5)) == expected.shape
    assert_array_equal(result, expected)


@pytest.mark.parametrize("maps", [(), (Scale(2.0),), (Scale(2.0), Doubled()), (Doubled(), UnitNorm(), Doubled())])
def test_maps_applied_by_blocks_get_no_more_rows_than_a_block(rng, maps):
    sizes = []

    class Counted(SameWidth):
        name = "counted"

        def apply(self, x):
            sizes.append(len(x))
            return x

    x = rng.normal(size=(23, 5))
    assert_array_equal(apply_maps((*maps, Counted()), x.copy(), block_rows=7), mapped(x, *maps, block_rows=23))
    assert sizes == [7, 7, 7, 2]
    assert apply_maps(maps, np.empty((0, 5))).shape == (0, mapped_width(maps, 5))


def test_the_cost_of_maps_counts_the_rows_before_and_after_a_change_of_width():
    cost = map_costs((Scale(2.0), Doubled(), Doubled()), 5, 8)
    assert cost == MapCost(2.0, 7 + (10 + 20) * 8, 22)
    assert map_costs((Scale(2.0),), 5, 8) == MapCost()
