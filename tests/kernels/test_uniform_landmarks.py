"""Landmarks: drawn without replacement, equally likely, the same for the same state."""

import numpy as np
import pytest
from hypothesis import given as cases
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import chisquare

from bigkernel.errors import DataError
from bigkernel.kernels.uniform_landmarks import given, uniform


@cases(n=st.integers(1, 400), share=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_landmarks_are_distinct_rows_in_order(n, share, seed):
    m = max(1, round(share * n))
    drawn = uniform(n, m, np.random.RandomState(seed))
    assert drawn.dtype == np.int64
    assert len(drawn) == m
    assert (np.diff(drawn) > 0).all()
    assert drawn[0] >= 0
    assert drawn[-1] < n
    assert_array_equal(drawn, uniform(n, m, np.random.RandomState(seed)))


@pytest.mark.parametrize(("n", "m"), [(20, 6), (40, 6)])  # by permutation, and by rejection
def test_every_row_is_equally_likely(n, m):
    rng, counts = np.random.RandomState(0), np.zeros(n)
    for _ in range(3000):
        counts[uniform(n, m, rng)] += 1
    assert chisquare(counts).pvalue > 1e-3


def test_few_of_very_many_rows_are_drawn_without_a_list_of_them():
    drawn = uniform(10**15, 1000, np.random.RandomState(0))
    assert len(np.unique(drawn)) == 1000
    assert drawn[-1] > 2**40


@pytest.mark.parametrize(("n", "m"), [(10, 0), (10, 11), (0, 1), (10, -1), (0, 0)])
def test_an_impossible_number_is_refused(n, m):
    with pytest.raises(DataError, match=f"n_landmarks={m}.*n_samples = {n}"):
        uniform(n, m, np.random.RandomState(0))


def test_given_landmarks_are_checked_and_copied():
    Z = np.arange(6, dtype=np.float32).reshape(2, 3)
    taken = given(Z, 3)
    assert taken.dtype == np.float64
    assert_array_equal(taken, Z)
    assert not np.shares_memory(taken, Z)
    for wrong in (Z[0], Z[:, :2], Z[:0], Z[None]):
        with pytest.raises(DataError, match=r"shape \(m, 3\)"):
            given(wrong, 3)
    Z[1, 2] = np.nan
    with pytest.raises(DataError, match="row 1 is not finite"):
        given(Z, 3)
