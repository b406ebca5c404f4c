"""The anchor graph against loops over rows and against its n×n Laplacian."""

import numpy as np
import peers
import pytest
import reference_adaptation as dense
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from traced import traced

from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Polynomial
from bigkernel.solvers.anchor_graph import SourceTargetStatistic, anchor_weights, laplacian
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(3)
N, D, M, K = 70, 3, 9, 3
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
LABEL = rng.integers(-1, 2, N)
WEIGHT = rng.uniform(0.2, 3, N)
KERNELS = [Gaussian(1.2), Laplacian(0.4), Polynomial(2, 0.5, 1.0), Linear()]


def weights_of(kernel, k=K):
    places, weights = anchor_weights(kernel(X, Z), kernel.diag(Z), k, of_rows=kernel.diag(X))
    P = np.zeros((N, M))
    np.put_along_axis(P, places, weights, axis=1)
    return P


def accumulate(statistic, cuts=(), block_rows=16, **columns):
    given = {"y": LABEL, "weight": WEIGHT, **columns}
    return peers.accumulate(statistic, X, cuts=cuts, block_rows=block_rows, **given)


def statistic_of(kernel, **options):
    features = LandmarkMap(kernel, Z, np.dtype(np.float64), centre_of(kernel, Z, np.float64))
    return SourceTargetStatistic(features, Targets(2, np.arange(2)), **options)


@pytest.mark.parametrize("k", [1, K])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_weights_are_those_of_the_nearest_landmarks_of_each_row(kernel, k):
    P = weights_of(kernel, k)
    assert_allclose(P, dense.anchors(X, Z, lambda x, z: kernel(x[None], z[None])[0, 0], k), atol=1e-12)
    assert_allclose(P.sum(axis=1), 1)


@pytest.mark.parametrize("sigma", [0.15, 1.2, 200.0])
def test_the_graph_does_not_depend_on_the_dtype_of_the_blocks(sigma):
    kernel, result = Gaussian(sigma), []
    for dtype in (np.float32, np.float64):
        features = LandmarkMap(kernel, Z, np.dtype(dtype), centre_of(kernel, Z, dtype))
        statistic = SourceTargetStatistic(features, Targets(2, np.arange(2)), neighbours=K)
        result.append(accumulate(statistic)["degrees"])
    assert_array_equal(*result)
    assert_allclose(result[1], WEIGHT @ weights_of(kernel), rtol=1e-9)


def test_landmarks_at_equal_distances_up_to_rounding_are_taken_in_their_order():
    for scale in (1.0, 1e-30):
        values = scale * np.array([[0.2, 0.5 * (1 + 1e-13), 0.5, 0.5 * (1 - 1e-13), 0.4], [0.2, 0.5, 0.5, 0.6, 0.5]])
        places, _ = anchor_weights(values, np.ones(5), 3)
        assert_array_equal(places, [[1, 2, 3], [3, 1, 2]])


def test_a_row_at_all_its_anchors_has_equal_weights():
    places, weights = anchor_weights(np.ones((2, 4)), np.ones(4), 3)
    assert_array_equal(places, [[0, 1, 2]] * 2)
    assert_allclose(weights, 1 / 3)


@given(cuts=st.lists(st.integers(0, N), max_size=6), block_rows=st.integers(1, 80))
@settings(max_examples=15)
def test_any_chunking_gives_anchors_and_degrees(cuts, block_rows):
    kernel = Gaussian(1.2)
    statistic, P = statistic_of(kernel, neighbours=K), weights_of(kernel)
    total = accumulate(statistic, cuts, block_rows)
    assert_allclose(total["anchors"], (P * WEIGHT[:, None]).T @ (kernel(X, Z) - statistic.features.shift), atol=1e-11)
    assert_allclose(total["degrees"], WEIGHT @ P, atol=1e-11)


def test_a_landmark_that_is_no_anchor_adds_nothing():
    A, degrees = rng.normal(size=(4, 3)), np.array([1.0, 0.0, 2.0, 0.0])
    A[[1, 3]] = 0
    G = 10 * np.eye(3)
    assert_allclose(laplacian(G, A, degrees), G - A[[0, 2]].T @ np.diag([1, 0.5]) @ A[[0, 2]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_memory_that_anchors_add_to_a_task_is_within_the_announced(dtype):
    rng, n, m, d, c = np.random.default_rng(0), 4096, 150, 40, 4
    Z, rows = rng.normal(size=(m, d)), rng.normal(size=(n, d)).astype(dtype)
    kernel, labels = Gaussian(6.0), np.resize([0, 1, 2, 3, -1], n)
    features = LandmarkMap(kernel, Z, np.dtype(dtype), centre_of(kernel, Z, dtype))
    targets, result = Targets(c, np.arange(c)), {}
    for neighbours in (0, 5):
        statistic = SourceTargetStatistic(features, targets, neighbours=neighbours)
        total, chunk = statistic.zero(), Chunk(rows, y=labels, weight=np.ones(n), block_rows=1024)
        assert features.prepared.n_features == d  # made before memory is counted
        result[neighbours] = traced(statistic.update, total, chunk)[1], statistic.footprint(1024).work_bytes
        assert sum(values.nbytes for values in total.values()) <= statistic.footprint(1024).partial_bytes
    (peak, announced), (plain_peak, plain_announced) = result[5], result[0]
    assert peak - plain_peak <= announced - plain_announced <= 2.5 * (peak - plain_peak)
