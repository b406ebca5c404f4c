"""Landmarks: uniform draws, randomly pivoted Cholesky against the plain method, and the width from their distances."""

from itertools import permutations

import numpy as np
import pytest
import reference_sampling as oracle
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from scipy.stats import chisquare
from threadpoolctl import threadpool_limits
from traced import traced

from bigkernel import Gaussian, Linear
from bigkernel.errors import DataError
from bigkernel.kernels import landmarks
from bigkernel.kernels.landmarks import (
    MOST_POINTS,
    as_landmarks,
    median_width,
    move_centres,
    rp_cholesky,
    spread,
    uniform,
)

rng = np.random.default_rng(20241003)
N = 60
X = np.concatenate([rng.normal(size=(N - 6, 3)), rng.normal(size=(6, 3)) + 6])
KERNEL = Gaussian(1.5)


@pytest.mark.parametrize("proposals", [1, 8])
def test_blocks_of_proposals_follow_the_law_of_one_draw_after_another(proposals):
    few = np.array([[0.0], [0.3], [1.0], [2.5]])
    kernel, draws = Gaussian(1.0), np.random.RandomState(proposals)
    law = oracle.pivot_law(kernel(few), 2)
    counts = dict.fromkeys(permutations(range(4), 2), 0)
    for _ in range(600):
        counts[tuple(map(int, rp_cholesky(kernel, few, 2, draws, proposals=proposals)))] += 1
    orders = list(counts)
    assert chisquare([counts[order] for order in orders], [600 * law[order] for order in orders]).pvalue > 1e-3


def test_small_clusters_get_landmarks_where_uniform_draws_miss_them():
    sizes, draws = [900, 90, 9, 1], [np.random.RandomState(seed) for seed in range(10)]
    centres = np.repeat(5 * np.eye(4), sizes, axis=0)
    rows, where = centres + 0.1 * rng.normal(size=centres.shape), np.repeat(np.arange(4), sizes)
    met = [len(np.unique(where[rp_cholesky(Gaussian(4.0), rows, 20, draw)])) for draw in draws]
    by_chance = [len(np.unique(where[draw.permutation(1000)[:20]])) for draw in draws]
    assert np.mean(met) > 3.7 > 2.8 > np.mean(by_chance)


def test_repeated_rows_are_sampled_once():
    rows = np.repeat(X[:8], 7, axis=0)
    sampled = rp_cholesky(KERNEL, rows, 30, np.random.RandomState(0))
    assert sorted(sampled // 7) == list(range(8))
    signs = np.array([[0.0, 1.0], [-0.0, 1.0], [3.0, 4.0]])
    assert len(rp_cholesky(KERNEL, signs, 3, np.random.RandomState(0))) == 2


def test_a_matrix_of_low_rank_is_explained_by_as_many_rows():
    sampled = rp_cholesky(Linear(), X, 20, np.random.RandomState(0))
    assert len(sampled) == 3
    assert oracle.trace_error(Linear()(X), sampled) < 1e-12
    assert len(rp_cholesky(Linear(), np.zeros((5, 2)), 2, np.random.RandomState(0))) == 0


@pytest.fixture
def small_strips(monkeypatch):
    """Strips that cut some dozen rows into several."""
    for name, value in {"_STRIP_ROWS": 17, "_STRIP_COLUMNS": 5}.items():
        monkeypatch.setattr(landmarks, name, value)


def test_work_by_strips_draws_the_same_rows(request):
    whole = rp_cholesky(KERNEL, X, 30, np.random.RandomState(2))
    request.getfixturevalue("small_strips")
    assert_array_equal(rp_cholesky(KERNEL, X, 30, np.random.RandomState(2)), whole)


@pytest.mark.usefixtures("small_strips")
@pytest.mark.parametrize("count", [10, 37])
def test_a_factor_in_float32_explains_as_much(count):
    sampled = rp_cholesky(KERNEL, X, count, np.random.RandomState(1), dtype=np.float32)
    assert_array_equal(sampled, rp_cholesky(KERNEL, X, count, np.random.RandomState(1)))
    # rows whose residual is below the rounding of float32 are not sampled
    wide = rp_cholesky(Gaussian(50.0), X, N, np.random.RandomState(1), dtype=np.float32)
    assert len(wide) < N / 2
    assert oracle.trace_error(Gaussian(50.0)(X), wide) < 1e-5


# m² bytes where there are two rows a landmark; see `bigkernel.estimators.fit.basis`
@pytest.mark.parametrize(("dtype", "per_square"), [(np.float64, 16), (np.float32, 8)])
def test_a_draw_holds_no_more_than_its_matrix(dtype, per_square, monkeypatch):
    for name, value in {"_STRIP_ROWS": 256, "_MOST": 64}.items():
        monkeypatch.setattr(landmarks, name, value)
    m, d = 1200, 5
    rows, around = rng.normal(size=(2 * m, d)), 2**22 + 16 * 2 * m * d
    sampled, peak = traced(lambda: rp_cholesky(Gaussian(1.0), rows, m, np.random.RandomState(0), dtype=dtype))
    assert len(sampled) == m
    assert peak < per_square * m**2 + around
    assert peak > per_square * m**2 / 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [1988, *range(4)])
def test_rows_that_are_all_but_explained_end_the_draw(seed):
    # what subtraction leaves of k(x, x) may stay above rounding where the residual itself is below it
    chance = np.random.default_rng(seed)
    n, d = int(chance.integers(5, 80)), int(chance.integers(1, 5))
    count = int(chance.integers(1, min(n, 12) + 1))
    base = chance.normal(size=(int(chance.integers(1, n + 1)), d)) * 10 ** chance.uniform(-3, 3)
    if chance.random() < 0.3:
        base = base + 10 ** chance.uniform(0, 6)
    rows = base[chance.integers(0, len(base), n)]
    sampled = rp_cholesky(Linear(), rows, count, np.random.RandomState(seed))
    assert len(set(sampled)) == len(sampled) <= count


@given(n=st.integers(1, 400), share=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_landmarks_are_distinct_rows_in_order(n, share, seed):
    m = max(1, round(share * n))
    sampled = uniform(n, m, np.random.RandomState(seed))
    assert sampled.dtype == np.int64
    assert len(sampled) == m
    assert (np.diff(sampled) > 0).all()
    assert 0 <= sampled[0] <= sampled[-1] < n
    assert_array_equal(sampled, uniform(n, m, np.random.RandomState(seed)))


@pytest.mark.parametrize(("n", "m"), [(20, 6), (40, 6)])  # by permutation, and by rejection
def test_every_row_is_equally_likely(n, m):
    draws, counts = np.random.RandomState(0), np.zeros(n)
    for _ in range(3000):
        counts[uniform(n, m, draws)] += 1
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("n", "m"), [(10, 0), (10, 11), (0, 1), (10, -1), (0, 0)])
def test_an_impossible_number_is_refused(n, m):
    with pytest.raises(DataError, match=f"n_landmarks={m}.*n_samples = {n}"):
        uniform(n, m, np.random.RandomState(0))


def test_given_landmarks_are_checked_and_copied():
    Z = np.arange(6, dtype=np.float32).reshape(2, 3)
    taken = as_landmarks(Z, 3)
    assert taken.dtype == np.float64
    assert_array_equal(taken, Z)
    assert not np.shares_memory(taken, Z)
    for wrong in (Z[0], Z[:, :2], Z[:0], Z[None]):
        with pytest.raises(DataError, match=r"shape \(m, 3\)"):
            as_landmarks(wrong, 3)
    Z[1, 2] = np.nan
    with pytest.raises(DataError, match="row 1 is not finite"):
        as_landmarks(Z, 3)


def test_the_width_is_the_share_of_the_median_distance_over_all_pairs():
    Z = rng.normal(size=(31, 4))
    squares = [((a - b) ** 2).sum() for i, a in enumerate(Z) for b in Z[:i]]
    assert_allclose(median_width(Z), 0.7 * np.sqrt(np.median(squares)), rtol=1e-12)
    assert_allclose(median_width(10 * Z), 10 * median_width(Z), rtol=1e-12)


def test_repeated_landmarks_count_for_no_distance():
    Z = np.array([[0.0], [0.0], [0.0], [2.0]])
    assert_allclose(median_width(Z, share=1.0), 2.0)
    assert median_width(np.zeros((5, 2))) == median_width(np.zeros((1, 2))) == 1.0


def test_many_landmarks_are_thinned():
    Z = rng.normal(size=(3 * MOST_POINTS, 2))
    assert_allclose(median_width(Z), median_width(Z[: 2 * MOST_POINTS : 2]), rtol=0.05)


def test_centres_move_to_the_means_of_their_rows_and_an_empty_one_to_the_farthest_row():
    first = np.concatenate([X[:5], [[100.0, 0.0, 0.0]]])  # nearest to no row
    expected, farthest = first.copy(), 0
    for _ in range(3):
        distances = cdist(X, expected)
        nearest, farthest = distances.argmin(axis=1), distances.min(axis=1).argmax()
        for j in range(6):
            expected[j] = X[nearest == j].mean(axis=0) if (nearest == j).any() else X[farthest]
    actual, nearest = move_centres(X, first, 3)
    assert_allclose(actual, expected, rtol=1e-12)
    assert_array_equal(nearest, cdist(X, expected).argmin(axis=1))
    assert first[-1, 0] == 100.0
    last, _ = move_centres(X, first, 100)
    assert_array_equal(move_centres(X, last, 1)[0], last)


def test_first_centres_follow_squared_distances_and_repeat_only_where_no_other_row_is_left():
    rows = np.array([[0.0], [1.0], [3.0], [3.0]])
    pairs = np.array([spread(rows, 2, np.random.RandomState(seed)) for seed in range(2000)])
    seconds = np.bincount(pairs[pairs[:, 0] == 0, 1], minlength=4)
    assert seconds[0] == 0
    assert chisquare(seconds[1:], seconds.sum() * np.array([1, 9, 9]) / 19).pvalue > 1e-3
    assert {tuple(np.unique(rows[spread(rows, 3, np.random.RandomState(seed))])) for seed in range(20)} == {(0, 1, 3)}
    assert len(spread(rows, 4, np.random.RandomState(0))) == 4


def test_centres_have_the_same_bits_with_any_number_of_threads():
    rows, found = rng.normal(size=(9_000, 20)).astype(np.float32), []
    for threads in (1, 2, 4):
        with threadpool_limits(threads, user_api="blas"):
            found.append(move_centres(rows, rows[:60], 4)[0])
    assert_array_equal(found[1], found[0])
    assert_array_equal(found[2], found[0])
