"""Chunks: blocks cover the rows once, buffers are kept, what is not finite is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.row_maps import UnitNorm

D = 4
KERNELS = [Gaussian(1.3), Laplacian(0.4), Matern(1.1, 2.5), Linear(), Polynomial(2, 0.5, 1.0), Sigmoid(0.2, 0.1)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_landmark_map_is_equivariant_under_permutation(kernel, rng):
    x, order = rng.normal(size=(50, D)), rng.permutation(50)
    features = LandmarkMap(kernel, rng.normal(size=(9, D)), np.dtype(np.float64))

    def f(rows):
        chunk = Chunk(rows, row_maps=(UnitNorm(),), block_rows=50)
        return features.block(chunk, slice(0, 50)).copy()

    assert_allclose(f(x[order]), f(x)[order], rtol=1e-14, atol=1e-14)


@given(n=st.integers(0, 60), block_rows=st.integers(1, 70), pick=st.booleans())
def test_blocks_cover_the_rows_once_in_order_and_none_is_too_large(n, block_rows, pick):
    chunk = Chunk(np.zeros((n, 1)), block_rows=block_rows)
    index = np.arange(n)[::3] if pick else None
    ids = np.arange(n)
    blocks = [ids[block] for block in chunk.blocks(index)]
    expected = ids if index is None else index
    assert_array_equal(np.concatenate([*blocks, np.empty(0, int)]), expected)
    sizes = [len(block) for block in blocks]
    assert all(0 < size <= block_rows for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_buffer_is_allocated_once_and_never_shrinks():
    work = Workspace()
    first = work.buffer("a", (10, 3), np.float32)
    assert work.buffer("a", (4, 3), np.float32).base is first.base or np.shares_memory(
        first, work.buffer("a", (4, 3), np.float32)
    )
    assert work.buffer("a", (12, 3), np.float32).shape == (12, 3)
    assert work.buffer("a", (2, 3), np.float64).dtype == np.float64


def test_a_stage_adds_its_seconds_even_when_it_raises():
    work = Workspace()
    for _ in range(2):
        with pytest.raises(KeyError), work.stage("read"):
            raise KeyError
    assert list(work.seconds) == ["read"]
    assert work.seconds["read"] > 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_that_are_not_finite_are_named_and_counted(value, dtype):
    x = np.ones((40, D), dtype)
    x[[3, 17, 18], [0, 1, 2]] = value
    with pytest.raises(DataError, match=r"digits: 3 of rows 100 to 139 .*\[103, 117, 118\]"):
        Chunk(x, start=100).require_finite("digits")


def test_opposite_infinities_do_not_hide_each_other_and_a_large_sum_is_no_fault():
    x = np.ones((5, D))
    x[1, 0], x[2, 0] = np.inf, -np.inf
    with pytest.raises(DataError, match=r"\[1, 2\]"):
        Chunk(x).require_finite("X")
    large = Chunk(np.full((5, D), 1e308))
    large.require_finite("X")
    assert np.isfinite(large.x).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_identity_map_shifts_the_rows(dtype, rng):
    x, shift = rng.normal(size=(11, D)), rng.normal(size=D)
    features = IdentityMap(shift, np.dtype(dtype))
    block = features.block(Chunk(x), slice(2, 9))
    assert block.dtype == dtype
    assert_allclose(block, x[2:9] - shift, atol=1e-6 if dtype == np.float32 else 1e-15)
    assert features.width == D


def test_the_prepared_landmarks_do_not_travel_with_the_map(rng):
    import pickle

    features = LandmarkMap(Gaussian(1.0), rng.normal(size=(300, D)), np.dtype(np.float32))
    bare = len(pickle.dumps(features))
    features.bound
    assert len(pickle.dumps(features)) == bare
    again = pickle.loads(pickle.dumps(features))
    chunk = Chunk(rng.normal(size=(5, D)))
    assert_array_equal(again.block(chunk, slice(0, 5)).copy(), features.block(chunk, slice(0, 5)))
