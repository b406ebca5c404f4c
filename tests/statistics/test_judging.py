"""The rows a classifier is most wrong about, and how residuals spread: against sorting everything at once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats
from sklearn.metrics import confusion_matrix

from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import Predictor
from bigkernel.statistics.scores import RESIDUAL_BINS, ScoreStatistic, normal_losses
from bigkernel.streaming.chunk import Chunk

N, D, C = 157, 3, 4
CHANCE = np.random.default_rng(3)
# small integers: every value of f is exact, whatever the shape of the product, and margins tie often
X = CHANCE.integers(-3, 4, (N, D)).astype(np.float64)
Y = CHANCE.integers(-1, C, N)
COEF = CHANCE.integers(-2, 3, (D, C)).astype(np.float64)
PREDICTOR = Predictor(IdentityMap(np.zeros(D)), COEF, np.zeros(C), np.arange(C))


def statistic(keep):
    return ScoreStatistic(PREDICTOR, Targets(C, np.arange(C)), keep=keep)


def oracle(keep, weight=None):
    """Row ids, true and predicted classes and margins of the worst rows, from one sort of all."""
    values, known = X @ COEF, (Y >= 0) & (True if weight is None else weight > 0)
    others = values.copy()
    others[np.arange(N), np.maximum(Y, 0)] = -np.inf
    margin = values[np.arange(N), np.maximum(Y, 0)] - others.max(axis=1)
    ids = np.flatnonzero(known)
    worst = ids[np.argsort(margin[ids], kind="stable")][:keep]
    return worst, Y[worst], values[worst].argmax(axis=1), margin[worst]


def accumulated(keep, cuts, block_rows=7):
    """The rows between cuts, each summed from zero and merged from left to right."""
    scores, total = statistic(keep), statistic(keep).zero()
    for start, stop in pairwise(sorted({0, N, *cuts})):
        scores.update(addend := scores.zero(), Chunk(X[start:stop], start, y=Y[start:stop], block_rows=block_rows))
        total = scores.merge(total, addend)
    return total


@given(st.lists(st.integers(0, N), max_size=12), st.integers(1, 2 * N), st.integers(1, 60))
def test_the_worst_rows_are_those_of_one_sort_however_the_rows_are_cut(cuts, keep, block_rows):
    total = accumulated(keep, cuts, block_rows)
    rows, truth, guess, margin = oracle(keep)
    result = len(rows)
    assert_array_equal(total["row"][:result], rows)
    assert_array_equal(total["truth"][:result], truth)
    assert_array_equal(total["guess"][:result], guess)
    assert_array_equal(total["margin"][:result], margin)
    assert np.isinf(total["margin"][result:]).all()
    assert len(total["margin"]) == keep
    known = Y >= 0
    assert_array_equal(total["confusion"], confusion_matrix(Y[known], (X @ COEF).argmax(axis=1)[known]))


@given(st.lists(st.integers(0, N), max_size=5), st.lists(st.integers(0, N), max_size=5))
def test_the_order_of_a_merge_does_not_matter(some, others):
    a, b = accumulated(20, some), accumulated(20, others)
    b["row"] = b["row"] + 0.5
    scores = statistic(20)
    left, right = scores.merge(a, b), scores.merge(b, a)
    for name, values in left.items():
        assert_array_equal(values, right[name])
    assert_array_equal(a["row"], accumulated(20, some)["row"], "a merge changed what it was given")


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_every_executor_keeps_the_same_bits(executor, small_steps):
    rows, expected = as_rows(X, Y), oracle(9)
    total = sweep(rows, statistic(9), client=executor).total
    assert_array_equal(total["row"], expected[0])
    assert_array_equal(total["margin"], expected[3])


def test_rows_of_weight_zero_are_never_the_worst():
    weight = np.ones(N)
    weight[oracle(10)[0]] = 0
    total = sweep(as_rows(X, Y, weight=weight), statistic(10)).total
    assert_array_equal(total["row"], oracle(10, weight)[0])


def test_a_value_that_is_not_a_number_is_the_worst_of_all():
    scores = statistic(3)
    total, values = scores.zero(), np.array([[1.0, 0, 0, 0], [np.nan, 0, 0, 0]])
    truth = np.eye(C)[[0, 0]]
    scores._add_classes(total, np.array([5.0, 6.0]), np.ones(2), values, truth)
    assert_array_equal(total["row"], [6, 5, -1])


def residuals_of(coef, y, spread):
    predictor = Predictor(IdentityMap(np.zeros(D)), coef, np.zeros(len(spread)))
    return sweep(as_rows(X, y), ScoreStatistic(predictor, Targets(len(spread)), keep=1, spread=np.array(spread))).total


def test_residuals_are_counted_in_units_of_their_spread():
    y = CHANCE.normal(size=(N, 2)) * [1, 10]
    total = residuals_of(np.zeros((D, 2)), y, [1.0, 10.0])
    edges = np.linspace(-4, 4, RESIDUAL_BINS + 1)
    edges[[0, -1]] = -np.inf, np.inf
    for column, unit in enumerate((1, 10)):
        assert_array_equal(total["residuals"][column], np.histogram(y[:, column] / unit, edges)[0])
    assert total["n"][0] == N


def test_a_perfect_fit_has_residuals_in_the_middle():
    total = residuals_of(COEF[:, :1], X @ COEF[:, :1], [1e-150])
    assert total["residuals"][0, RESIDUAL_BINS // 2] == N


@pytest.mark.parametrize("cuts", [[], [40, 41, 100]])
def test_the_sample_of_targets_and_predictions_does_not_depend_on_how_rows_are_cut(cuts):
    judge = ScoreStatistic(Predictor(IdentityMap(np.zeros(D)), COEF[:, :2], np.zeros(2)), Targets(2), keep=20)
    total, y = judge.zero(), CHANCE.normal(size=(N, 2))
    for start, stop in pairwise([0, *cuts, N]):
        piece = judge.zero()
        judge.update(piece, Chunk(X[start:stop], start, y=y[start:stop], block_rows=7))
        total = judge.merge(total, piece)
    rows = total["row"].astype(int)
    assert_array_equal(rows, np.argsort(np.arange(N) * 2_654_435_769 % 2**32)[:20])
    assert_array_equal(total["truth"], y[rows, 0])
    assert_array_equal(total["guess"], (X @ COEF)[rows, 0])


@pytest.mark.parametrize(("error", "std"), [(0.0, 1.0), (0.7, 0.3), (-5.0, 2.0), (40.0, 0.1), (0.001, 10.0)])
def test_losses_of_a_normal_distribution_are_those_of_its_quantiles(error, std):
    found = {name: float(one[0, 0]) for name, one in normal_losses(np.array([[error]]), np.array([[std]])).items()}
    # ∫ (F(x) − 1{x ≥ y})² dx, in two parts
    bounds = -12 * std + min(error, 0), error, 12 * std + max(error, 0)
    below = integrate.quad(lambda x: stats.norm.cdf(x / std) ** 2, *bounds[:2], points=[0], limit=200)[0]
    above = integrate.quad(lambda x: stats.norm.sf(x / std) ** 2, *bounds[1:], points=[0], limit=200)[0]
    assert found["crps"] == pytest.approx(below + above, rel=1e-7)
    low, high = stats.norm.interval(0.95, scale=std)
    missed = max(low - error, 0) + max(error - high, 0)
    assert found["interval_score"] == pytest.approx(high - low + 40 * missed)
    assert found["coverage"] == (missed == 0)


def test_losses_are_minimal_in_the_mean_at_the_right_deviation_and_absolute_without_one():
    y = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None]
    crps, interval = (
        [normal_losses(y, np.full_like(y, std))[name].mean() for std in (0.8, 0.95, 1.0, 1.05, 1.2)]
        for name in ("crps", "interval_score")
    )
    assert np.argmin(crps) == np.argmin(interval) == 2
    assert crps[2] == pytest.approx(1 / np.sqrt(np.pi), rel=1e-3)
    error = np.array([[0.0, -3.0, 1e200]])
    exact = normal_losses(error, np.zeros_like(error))
    assert_allclose(exact["crps"], np.abs(error))
    assert_array_equal(exact["coverage"], [[1, 0, 0]])
