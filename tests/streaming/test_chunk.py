"""Chunks: blocks cover the rows once, buffers are kept, what is not finite is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from bigkernel.errors import DataError
from bigkernel.streaming.chunk import Chunk, Workspace

D = 4


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


def test_a_stage_adds_its_seconds_even_when_it_raises():
    work = Workspace()
    for _ in range(2):
        with pytest.raises(KeyError), work.stage("read"):
            raise KeyError
    assert list(work.seconds) == ["read"]
    assert work.seconds["read"] > 0


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
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


def test_a_buffer_is_allocated_once_and_never_shrinks():
    work = Workspace()
    first = work.buffer("a", (10, 3), np.float32)
    assert np.shares_memory(first, work.buffer("a", (4, 3), np.float32))
    assert work.buffer("a", (12, 3), np.float32).shape == (12, 3)
