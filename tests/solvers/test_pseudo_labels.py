"""Rows of either side, soft and hard labels and when they change, memory, and several decisions in one sweep.

What the sums are, with weights and a shift, is shown by the dense forms of JDA and ARTL.
"""

import pickle

import numpy as np
import peers
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from traced import traced

from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import Gaussian
from bigkernel.solvers.pseudo_labels import (
    Decision,
    JointPseudoLabels,
    LabelQuery,
    PseudoLabels,
    SourceTarget,
    soft_labels,
)
from bigkernel.statistics.domain_cells import Cells
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(5)
N, D, M, C = 80, 3, 7, 3
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
DOMAIN = rng.choice([2, 4, 9], N)
LABEL = np.where((DOMAIN == 4) | (rng.uniform(size=N) < 0.2), -1, rng.integers(0, C, N))
WEIGHT = rng.uniform(0, 3, N) * (rng.uniform(size=N) > 0.1)
SIDES = SourceTarget(Cells(np.array([2, 4, 9]), np.arange(C)), np.array([True, False, True]))
FEATURES = LandmarkMap(Gaussian(1.1), Z, np.dtype(np.float64))
NOW, BEFORE = (Decision(rng.normal(size=(M, C)), rng.normal(size=C)) for _ in range(2))
TARGET = DOMAIN == 4


def accumulate(statistic, cuts=(), block_rows=16, **columns):
    given = {"y": LABEL, "domain": DOMAIN, "weight": WEIGHT, **columns}
    return peers.accumulate(statistic, X, cuts=cuts, block_rows=block_rows, **given)


def statistic_of(features, sides, decision, slope, before=None):
    return JointPseudoLabels(features, (LabelQuery(sides, decision, slope, before),))


def alone(statistic, *given, **columns):
    """The sums of its only decision."""
    return {name: values[0] for name, values in accumulate(statistic, *given, **columns).items()}


def test_rows_are_split_into_the_target_and_the_labelled_source():
    chunk = Chunk(X, y=LABEL, domain=DOMAIN)
    target, source = SIDES.split(chunk)
    assert_array_equal(target, np.flatnonzero(TARGET))
    assert_array_equal(source, np.flatnonzero(~TARGET & (LABEL >= 0)))
    assert 0 < len(target) + len(source) < N


def test_without_domains_labelled_rows_are_the_source():
    sides = SourceTarget(Cells(None, np.arange(C)), np.array([True, False]))
    target, source = sides.split(Chunk(X, y=LABEL))
    assert_array_equal(target, np.flatnonzero(LABEL < 0))
    assert_array_equal(source, np.flatnonzero(LABEL >= 0))


@pytest.mark.parametrize("slope, changes", [(50.0, 0), (np.inf, N)])
def test_a_change_of_label_within_rounding_counts_for_hard_labels_alone(slope, changes):
    near = rng.normal(size=(M, 1)) * np.ones(C)
    before, now = near.copy(), near.copy()
    before[:, 0] += 1e-7
    now[:, 1] += 1e-7
    targets = np.count_nonzero(TARGET)
    for further, expected in ((0.0, min(changes, targets)), (1.0, targets)):
        now[:, 1] += further
        decisions = Decision(now, np.zeros(C)), slope, Decision(before, np.zeros(C))
        total = alone(statistic_of(FEATURES, SIDES, *decisions), weight=np.ones(N))
        assert total["changed"] == expected


def test_an_infinite_slope_takes_the_first_of_equals_and_a_slope_of_zero_all():
    values = np.array([[1.0, 1.0, 0.0], [-5.0, -7.0, -1.0]])
    assert_array_equal(soft_labels(values, np.inf), [[1, 0, 0], [0, 0, 1]])
    assert_array_equal(soft_labels(values, 0.0), np.full((2, 3), 1 / 3))
    assert_array_equal(soft_labels(1e300 * values, 1e3), [[0.5, 0.5, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("counts", "entropy", "expected"),
    [
        ([5.0, 5.0], 0.0, 0.0),  # sure, and both classes
        ([5.0, 5.0], np.log(2), 1.0),  # flat
        ([10.0, 0.0], 0.0, 1.0),  # one class takes all
        ([9.0, 1.0], -(0.9 * np.log(0.9) + 0.1 * np.log(0.1)) / 2, 0.5),
    ],
)
def test_conditional_entropy_is_1_for_either_collapse(counts, entropy, expected):
    assert_allclose(PseudoLabels(np.zeros((1, 2)), np.array(counts), entropy).conditional_entropy, expected, rtol=1e-12)


def test_an_unknown_domain_is_named():
    statistic = statistic_of(FEATURES, SIDES, NOW, 2.5)
    with pytest.raises(DataError, match="row 11 has the domain 5"):
        statistic.update(statistic.zero(), Chunk(X[:3], 10, y=LABEL[:3], domain=np.array([2, 5, 9])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_memory_of_a_task_is_within_the_announced(dtype):
    rng, n, m, d, c = np.random.default_rng(0), 4096, 60, 10, 12
    Z, rows = rng.normal(size=(m, d)), rng.normal(size=(n, d)).astype(dtype)
    features = LandmarkMap(Gaussian(3.0), Z, np.dtype(dtype), centre_of(Gaussian(3.0), Z, dtype))
    now, before = (Decision(rng.normal(size=(m, c)), np.zeros(c)) for _ in range(2))
    sides = SourceTarget(Cells(None, np.arange(c)), np.array([True, False]))
    statistic = statistic_of(features, sides, now, 2.0, before)
    total, chunk = statistic.zero(), Chunk(rows, y=np.full(n, -1), weight=np.ones(n), block_rows=1024)
    assert features.prepared.n_features == d  # made before memory is counted
    _, peak = traced(statistic.update, total, chunk)
    assert peak <= statistic.footprint(1024).work_bytes <= 2.5 * peak


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decisions_side_by_side_have_the_bits_of_a_sweep_each(dtype):
    features = LandmarkMap(Gaussian(1.1), Z, np.dtype(dtype))
    other = SourceTarget(SIDES.cells, np.array([False, True, True]))
    queries = (LabelQuery(SIDES, NOW, 2.0, BEFORE), LabelQuery(other, BEFORE, 5.0), LabelQuery(SIDES, BEFORE, np.inf))
    joint = JointPseudoLabels(features, queries)
    total = accumulate(joint, cuts=(13, 50))
    for place, one in enumerate(queries):
        for name, values in alone(JointPseudoLabels(features, (one,)), cuts=(13, 50)).items():
            assert_array_equal(total[name][place], values)
    again = accumulate(pickle.loads(pickle.dumps(joint)), cuts=(13, 50))
    assert all(np.array_equal(again[name], total[name]) for name in total)
    single = [JointPseudoLabels(features, (one,)).footprint(16) for one in queries]
    assert joint.footprint(16).partial_bytes == sum(one.partial_bytes for one in single)
    assert max(one.work_bytes for one in single) < joint.footprint(16).work_bytes
