"""Scores of many classifiers in one sweep against predictions of each of them, one at a time."""

import itertools
import pickle

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from peers import accumulate
from sklearn.metrics import confusion_matrix

from bigkernel import Gaussian, Matern
from bigkernel.kernels.feature_maps import LandmarkFamily
from bigkernel.statistics.held_out import FLOOR, GridScores
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.folds import ColumnFolds

rng = np.random.default_rng(8)
N, D, M, C, F, K = 80, 3, 7, 3, 3, 4
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
KERNELS = (Gaussian(1.0), Matern(2.0, nu=1.5))
BLOCKS = [reference.gaussian(X, Z, 1.0), reference.matern(X, Z, 2.0, 1.5)]
CLASSES = np.array([2, 5, 9])
LABELS = rng.choice(CLASSES, N)
WEIGHTS = rng.normal(size=(2, F, M, K * C)) * 0.6
INTERCEPTS = rng.normal(size=(2, F, K * C)) * 0.6 + 0.3


def statistic(dtype=np.float64):
    family = LandmarkFamily(KERNELS, Z, np.dtype(dtype))
    return GridScores(family, WEIGHTS, INTERCEPTS, ColumnFolds(F), Targets(C, CLASSES), True, True)


def loss_of(values, truth, weight):
    p = np.clip(values, FLOOR, 1)
    return -(weight * np.log(p[np.arange(len(p)), truth] / p.sum(axis=1))).sum()


@given(
    cuts=st.lists(st.integers(0, N), max_size=4), block_rows=st.integers(1, 90), seed=st.integers(0, 30),
    weighted=st.booleans(),
)  # fmt: skip
def test_counts_losses_and_squares_are_those_of_each_model_on_the_rows_of_its_fold(cuts, block_rows, seed, weighted):
    rng = np.random.default_rng(seed)
    fold, labels = rng.integers(-2, F, N), np.where(rng.uniform(size=N) > 0.2, LABELS, -1)
    weight = rng.uniform(0, 2, N) if weighted else None
    total = accumulate(statistic(), X, y=labels, fold=fold, weight=weight, cuts=cuts, block_rows=block_rows)
    assert total["confusion"].shape == (2, F, K, C, C)
    assert total["loss"].shape == (2, F, K)
    for kernel, number, k in itertools.product(range(2), range(F), range(K)):
        there = (fold == number) & (labels != -1)
        own = slice(k * C, (k + 1) * C)
        values = BLOCKS[kernel][there] @ WEIGHTS[kernel, number, :, own] + INTERCEPTS[kernel, number, own]
        truth, w = np.searchsorted(CLASSES, labels[there]), np.ones(there.sum()) if weight is None else weight[there]
        if there.any():
            expected = confusion_matrix(truth, values.argmax(axis=1), labels=range(C), sample_weight=w)
            assert_allclose(total["confusion"][kernel, number, k], expected, rtol=1e-12)
        else:
            assert_array_equal(total["confusion"][kernel, number, k], 0)
        assert_allclose(total["loss"][kernel, number, k], loss_of(values, truth, w), rtol=1e-9, atol=1e-12)
        assert_allclose(total["sse"][kernel, number, k], w @ (values - np.eye(C)[truth]) ** 2, rtol=1e-9, atol=1e-12)


def test_blocks_of_float32_count_nearly_the_same():
    fold = np.arange(N) % F
    single = accumulate(statistic(np.float32), X.astype("f4"), y=LABELS, fold=fold)
    double = accumulate(statistic(), X, y=LABELS, fold=fold)
    assert np.abs(single["confusion"] - double["confusion"]).sum() <= 4
    assert_allclose(single["loss"], double["loss"], rtol=1e-4)
    assert all(values.dtype == np.float64 for values in single.values())


def test_totals_add_up_and_take_the_memory_that_is_announced():
    fold, one = np.arange(N) % F, statistic()
    whole = accumulate(one, X, y=LABELS, fold=fold)
    totals = [accumulate(one, X[ids], y=LABELS[ids], fold=fold[ids]) for ids in np.array_split(np.arange(N), 3)]
    merged = one.merge(one.merge(totals[0], totals[1]), totals[2])
    for name, values in whole.items():
        assert_allclose(merged[name], values, rtol=1e-12)
    sent = pickle.loads(pickle.dumps(one))
    assert_array_equal(accumulate(sent, X, y=LABELS, fold=fold)["confusion"], whole["confusion"])
    work, total = Workspace(), one.zero()
    one.update(total, Chunk(X, y=LABELS, fold=fold, block_rows=16, work=work))
    footprint = one.footprint(16)
    assert sum(values.nbytes for values in total.values()) == footprint.partial_bytes
    assert sum(buffer.nbytes for buffer in work.buffers.values()) + 2 * WEIGHTS.nbytes <= footprint.work_bytes


@pytest.mark.parametrize("scale", [0.0, 1e200])
def test_values_of_zero_or_of_extreme_size_have_a_finite_loss(scale):
    features = LandmarkFamily(KERNELS, Z, np.dtype(np.float64))
    one = GridScores(features, WEIGHTS * scale, INTERCEPTS * 0, ColumnFolds(F), Targets(C, CLASSES), True)
    total = accumulate(one, X, y=LABELS, fold=np.arange(N) % F)
    assert np.isfinite(total["loss"]).all()
    # between a certain hit and a certain miss of every row
    rows = total["confusion"].sum(axis=(3, 4))
    assert (total["loss"] <= rows * -np.log(FLOOR / (1 + (C - 1) * FLOOR)) * (1 + 1e-12)).all()
    if scale == 0:
        assert_allclose(total["loss"], rows * np.log(C))
        assert_array_equal(total["confusion"][..., 1:], 0)  # ties go to the first class, as in predict
