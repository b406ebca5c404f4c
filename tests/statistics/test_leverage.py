"""Rows sampled by weight and leverage: the same for any chunks, and their sums are near those of all rows."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import Gaussian
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import LeverageSample
from bigkernel.streaming.folds import ColumnFolds

rng = np.random.default_rng(17)
N, M, SIZE = 600, 17, 80
X = rng.normal(size=(N, 4))
X[::50] *= 6  # rows of their own, that few landmarks are near
Y = rng.normal(size=(N, 1))
WEIGHT = rng.uniform(0.5, 2, N) * (rng.uniform(size=N) > 0.1)
FEATURES = LandmarkMap(Gaussian(1.5), X[:M], np.dtype(np.float64))
B = Gaussian(1.5)(X, X[:M])
ROOT = np.linalg.inv(np.linalg.cholesky(B.T @ B + 0.1 * np.eye(M))).T  # exact leverages: as many numbers as landmarks
STATISTIC = LeverageSample(FEATURES, Targets(1), ROOT, SIZE, "sample")


def sampled(statistic=STATISTIC, **columns):
    total = sweep(as_rows(X, Y, **columns), statistic, client="serial").total
    return total, statistic.sample(total)


def test_the_sample_is_the_same_for_any_chunks_and_merges(small_steps):
    _, (ids, weight, fold) = sampled()
    whole = STATISTIC.zero()
    totals = [sweep(as_rows(X, Y), STATISTIC, client=client).total for client in ("serial", "threads")]
    assert_array_equal(totals[0]["row"], totals[1]["row"])
    for order in (totals[0], STATISTIC.merge(whole, totals[0])):
        again = STATISTIC.sample(order)
        for result, expected in zip(again, (ids, weight, fold), strict=True):
            assert_array_equal(result, expected)
    assert SIZE - 1 <= len(ids) <= SIZE
    assert (np.diff(ids) > 0).all()
    assert (fold == -1).all()


def test_leverages_are_those_of_the_formula_and_rows_of_great_ones_are_always_sampled():
    total, (ids, weight, _) = sampled()
    leverage = ((B @ ROOT) ** 2).sum(axis=1)
    assert_allclose(total["leverage"], leverage[total["row"].astype(int)], rtol=1e-8)
    greatest = np.flatnonzero(leverage > 0.7)
    assert 0 < len(greatest) < M
    assert np.isin(greatest, ids).all()
    assert_allclose(weight[np.isin(ids, greatest)], 1)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_sums_over_the_sample_are_near_those_of_all_rows_in_every_direction(weight):
    w = np.ones(N) if weight is None else weight
    _, (ids, result, _) = sampled(replace(STATISTIC, size=6 * M), weight=weight)
    assert (w[ids] > 0).all()
    all_rows, sample = (P.T @ (v[:, None] * P) for P, v in ((B, w), (B[ids], result)))
    R = np.linalg.inv(np.linalg.cholesky(all_rows + 0.1 * np.eye(M)))
    ratio = np.linalg.eigvalsh(R @ (sample + 0.1 * np.eye(M)) @ R.T)
    # six rows a direction leave (1 ± 6^-½)² of it, and more where few rows count
    assert ratio[0] > 0.2
    assert ratio[-1] < 3


def test_the_mean_of_many_draws_is_the_sum():
    total = sum(sampled(replace(STATISTIC, size=size))[1][1].sum() for size in range(60, 160, 5))
    assert_allclose(total / 20, N, rtol=0.05)


def test_few_rows_are_all_sampled_with_their_weights():
    _, (ids, weight, _) = sampled(replace(STATISTIC, size=N), weight=WEIGHT)
    assert_array_equal(ids, np.flatnonzero(WEIGHT))
    assert_allclose(weight, WEIGHT[ids])


def test_unlabelled_rows_and_those_of_no_fold_are_not_sampled():
    labels, fold = rng.integers(-1, 3, N), rng.integers(-2, 3, N)
    statistic = replace(STATISTIC, targets=Targets(3, np.arange(3)))
    for count in (3, 1):
        folds = np.where(fold > count - 1, -1, fold)
        rows = as_rows(X, labels, fold=folds)
        some = replace(statistic, folds=ColumnFolds(count))
        ids, _, result = some.sample(sweep(rows, some, client="serial").total)
        assert (labels[ids] >= 0).all()
        assert (folds[ids] >= -1).all()
        assert_array_equal(result, folds[ids])
        if count == 1:
            assert (result == -1).all()
