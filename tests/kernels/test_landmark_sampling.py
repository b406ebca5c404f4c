"""Landmarks that follow the kernel: against the plain pivoted Cholesky, exact leverage scores, and rows that repeat."""

import tracemalloc
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import reference_sampling as oracle
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare

from bigkernel import Gaussian, Linear
from bigkernel.kernels import landmark_sampling
from bigkernel.kernels.landmark_sampling import leverage_scores, recursive_leverage, rp_cholesky

rng = np.random.default_rng(20241003)
N = 60
X = np.concatenate([rng.normal(size=(N - 6, 3)), rng.normal(size=(6, 3)) + 6])
KERNEL = Gaussian(1.5)
K = KERNEL(X)
METHODS = {"rpcholesky": rp_cholesky, "leverage": recursive_leverage}
either = pytest.mark.parametrize("draw", METHODS.values(), ids=METHODS)


@pytest.mark.parametrize("proposals", [1, 3, 8])
def test_blocks_of_proposals_follow_the_law_of_one_draw_after_another(proposals):
    few = np.array([[0.0], [0.3], [1.0], [2.5]])
    kernel, draws = Gaussian(1.0), np.random.RandomState(proposals)
    law = oracle.pivot_law(kernel(few), 2)
    counts = dict.fromkeys(permutations(range(4), 2), 0)
    for _ in range(1500):
        counts[tuple(map(int, rp_cholesky(kernel, few, 2, draws, proposals=proposals)))] += 1
    orders = list(counts)
    assert chisquare([counts[order] for order in orders], [1500 * law[order] for order in orders]).pvalue > 1e-3


def test_scores_with_all_rows_as_the_dictionary_are_exact():
    for ridge in (1e-3, 0.1, 10.0):
        found = leverage_scores(KERNEL, X, ridge, X, np.ones(N))
        assert_allclose(found, oracle.leverage(K, ridge), rtol=0, atol=1e-8)


def test_scores_of_a_weighted_dictionary_equal_those_of_rows_repeated_as_often():
    places, times = np.arange(0, N, 4), 1 + np.arange(15) % 3
    found = leverage_scores(KERNEL, X, 0.2, X[places], times.astype(float))
    repeated = np.repeat(places, times)
    L = np.linalg.cholesky(K[np.ix_(repeated, repeated)] + 0.2 * np.eye(len(repeated)))
    half = np.linalg.solve(L, K[repeated])
    assert_allclose(found, np.minimum(1, (1 - (half**2).sum(axis=0)) / 0.2), rtol=0, atol=1e-9)


def test_recursive_draws_favour_rows_of_high_leverage():
    counts = np.zeros(N)
    for seed in range(400):
        counts[recursive_leverage(KERNEL, X, 12, np.random.RandomState(seed))] += 1
    exact = oracle.leverage(K, oracle.tail_ridge(K, 2))
    assert np.corrcoef(counts, exact)[0, 1] > 0.7
    assert counts[-6:].mean() > 1.15 * counts[:-6].mean()  # those apart from all others


@pytest.mark.parametrize("method, least", [("rpcholesky", 3.7), ("leverage", 3.1)])
def test_small_clusters_get_landmarks_where_uniform_draws_miss_them(method, least):
    sizes, draws = [900, 90, 9, 1], [np.random.RandomState(seed) for seed in range(10)]
    centres = np.repeat(5 * np.eye(4), sizes, axis=0)
    rows, where = centres + 0.1 * rng.normal(size=centres.shape), np.repeat(np.arange(4), sizes)
    met = [len(np.unique(where[METHODS[method](Gaussian(4.0), rows, 20, draw)])) for draw in draws]
    by_chance = [len(np.unique(where[draw.permutation(1000)[:20]])) for draw in draws]
    assert np.mean(met) > least > 2.8 > np.mean(by_chance)


@either
def test_a_draw_is_of_different_rows_and_the_same_for_the_same_state(draw):
    drawn, again = (draw(KERNEL, X, 25, np.random.RandomState(3)) for _ in range(2))
    assert_array_equal(drawn, again)
    assert len(np.unique(drawn)) == 25
    assert drawn.min() >= 0
    assert drawn.max() < N


@either
def test_rows_that_repeat_are_drawn_once(draw):
    rows = np.repeat(X[:8], 7, axis=0)
    drawn = draw(KERNEL, rows, 30, np.random.RandomState(0))
    assert sorted(drawn // 7) == list(range(8))
    signs = np.array([[0.0, 1.0], [-0.0, 1.0], [3.0, 4.0]])
    assert len(draw(KERNEL, signs, 3, np.random.RandomState(0))) == 2


def test_a_matrix_of_low_rank_is_explained_by_as_many_rows():
    drawn = rp_cholesky(Linear(), X, 20, np.random.RandomState(0))
    assert len(drawn) == 3
    assert oracle.trace_error(Linear()(X), drawn) < 1e-12
    assert len(rp_cholesky(Linear(), np.zeros((5, 2)), 2, np.random.RandomState(0))) == 0


@either
@pytest.mark.parametrize("count", [1, 2, N])
def test_one_landmark_or_all_rows_can_be_asked_for(draw, count):
    assert len(draw(KERNEL, X, count, np.random.RandomState(0))) == count


@pytest.fixture
def small_strips(monkeypatch):
    """Strips that cut some dozen rows into several."""
    for name, value in {"_STRIP_ROWS": 17, "_STRIP_COLUMNS": 5, "_STRIP_BYTES": 2**12}.items():
        monkeypatch.setattr(landmark_sampling, name, value)


@pytest.mark.parametrize("method", METHODS)
def test_work_by_strips_draws_the_same_rows(method, monkeypatch, request):
    whole = METHODS[method](KERNEL, X, 30, np.random.RandomState(2))
    request.getfixturevalue("small_strips")
    assert_array_equal(METHODS[method](KERNEL, X, 30, np.random.RandomState(2)), whole)
    monkeypatch.setattr(landmark_sampling, "_BASE", 9)  # a smaller dictionary to begin with draws others, no fewer
    assert len(set(METHODS[method](KERNEL, X, 30, np.random.RandomState(2)))) == 30


@pytest.mark.usefixtures("small_strips")
@pytest.mark.parametrize("count", [10, 37])
def test_a_factor_in_float32_explains_as_much(count):
    drawn = rp_cholesky(KERNEL, X, count, np.random.RandomState(1), dtype=np.float32)
    assert_array_equal(drawn, rp_cholesky(KERNEL, X, count, np.random.RandomState(1)))
    # what float32 cannot tell from nothing is not drawn
    wide = rp_cholesky(Gaussian(50.0), X, N, np.random.RandomState(1), dtype=np.float32)
    assert len(wide) < N / 2
    assert oracle.trace_error(Gaussian(50.0)(X), wide) < 1e-5


# m² bytes of each method where there are two rows a landmark; see `bigkernel.estimators.landmark_choice`
STATE = {"rpcholesky": (rp_cholesky, 16), "in float32": (partial(rp_cholesky, dtype=np.float32), 8)}
STATE["leverage"] = (recursive_leverage, 8)


@pytest.mark.parametrize(("draw", "per_square"), STATE.values(), ids=STATE)
def test_a_draw_holds_no_more_than_its_matrix(draw, per_square, monkeypatch):
    for name, value in {"_STRIP_ROWS": 256, "_STRIP_BYTES": 2**20, "_MOST": 64}.items():
        monkeypatch.setattr(landmark_sampling, name, value)
    m, d = 1200, 5
    rows, around = rng.normal(size=(2 * m, d)), 2**22 + 16 * 2 * m * d
    tracemalloc.start()
    found = draw(Gaussian(1.0), rows, m, np.random.RandomState(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == m
    assert peak < per_square * m**2 + around
    assert peak > per_square * m**2 / 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [1988, *range(12)])
def test_rows_that_are_all_but_explained_end_the_draw(seed):
    # what subtraction leaves of k(x, x) may stay above rounding where the residual itself is below it
    chance = np.random.default_rng(seed)
    n, d = int(chance.integers(5, 80)), int(chance.integers(1, 5))
    count = int(chance.integers(1, min(n, 12) + 1))
    base = chance.normal(size=(int(chance.integers(1, n + 1)), d)) * 10 ** chance.uniform(-3, 3)
    if chance.random() < 0.3:
        base = base + 10 ** chance.uniform(0, 6)
    rows = base[chance.integers(0, len(base), n)]
    drawn = rp_cholesky(Linear(), rows, count, np.random.RandomState(seed))
    assert len(set(drawn)) == len(drawn) <= count
