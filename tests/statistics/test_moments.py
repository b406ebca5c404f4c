"""Moments against their dense sums: any chunking, weights, labels, unlabelled rows; they add, and take away again."""

from copy import deepcopy

import numpy as np
import peers
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel.errors import DataError
from bigkernel.kernels.blas import add_upper, mirror
from bigkernel.kernels.feature_maps import UFUNC_BYTES, IdentityMap, LandmarkMap
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics import moments as moments_module
from bigkernel.statistics.moments import FeatureSums, Moments, MomentStatistic, RoundingProbe, Targets, probe_interval
from bigkernel.statistics.qr import QRStatistic
from bigkernel.streaming.chunk import Chunk, Workspace

N, D, M, CLASSES = 90, 3, 7, np.array([2, 5, 9])
rng = np.random.default_rng(5)
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
B = reference.gaussian(X, Z, 1.1)
LABELS = rng.choice(CLASSES, N)
ONE_HOT = (LABELS[:, None] == CLASSES).astype(float)
NUMBERS = rng.normal(size=(N, 2)) + 1
WEIGHT = rng.uniform(0, 3, N) * (rng.uniform(size=N) > 0.1)
FEATURES = LandmarkMap(Gaussian(1.1), Z, np.dtype(np.float64))
MANY = NUMBERS[:, :1] * rng.normal(size=moments_module.MANY_TARGETS + 1)
TARGETS = {
    "classes": (Targets(3, CLASSES), LABELS, ONE_HOT),
    "numbers": (Targets(2), NUMBERS, NUMBERS),
    "many": (Targets(MANY.shape[1]), MANY, MANY),
}


def accumulate(statistic, x, y=None, weight=None, cuts=(), block_rows=16):
    return peers.accumulate(statistic, x, y=y, weight=weight, cuts=cuts, block_rows=block_rows)


def assert_moments(moments, expected, tolerance=1e-11):
    for name, values in expected.items():
        result = getattr(moments, name)
        assert np.shape(result) == np.shape(values), name
        assert_allclose(
            result, values, rtol=tolerance, atol=tolerance * np.max(np.abs(values), initial=1), err_msg=name
        )


@pytest.mark.parametrize("kind", list(TARGETS))
@pytest.mark.parametrize("weighted", [False, True])
@given(cuts=st.lists(st.integers(0, N), max_size=8), block_rows=st.integers(1, 100))
def test_any_chunking_gives_the_dense_moments(kind, weighted, cuts, block_rows):
    targets, y, dense = TARGETS[kind]
    weight = WEIGHT if weighted else None
    statistic = MomentStatistic(FEATURES, targets)
    total = accumulate(statistic, X, y, weight, cuts, block_rows)
    assert_moments(Moments.of(total), reference.moments(B, dense, weight))
    assert total["rows"] == [np.count_nonzero(WEIGHT) if weighted else N]  # rows of weight 0 do not count


def test_a_total_that_cannot_be_written_is_finished_in_a_copy_and_stays_finished():
    statistic = MomentStatistic(FEATURES, TARGETS["numbers"][0])
    total = statistic.zero()
    statistic.update(total, Chunk(X, 0, NUMBERS))
    total["G"].flags.writeable = False
    before = total["G"].copy()
    finished = statistic.finish(total)
    assert_array_equal(total["G"], before)
    assert_moments(Moments.of(finished), reference.moments(B, NUMBERS))
    assert_array_equal(finished["G"], finished["G"].swapaxes(1, 2))
    assert_array_equal(statistic.finish(finished)["G"], finished["G"])


def test_wide_sums_are_symmetric_however_their_strips_fall():
    upper = np.triu(np.random.default_rng(0).normal(size=(300, 300)))
    total = np.zeros((300, 300))
    for _ in range(2):
        add_upper(total, upper + np.tril(np.full((300, 300), np.nan), -1))  # what is below the diagonal is not read
    mirror(total)
    assert_array_equal(total, 2 * (upper + np.triu(upper, 1).T))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_labels_of_any_stored_dtype_are_the_same_classes(dtype):
    total = accumulate(MomentStatistic(FEATURES, TARGETS["classes"][0]), X, LABELS.astype(dtype))
    assert_moments(Moments.of(total), reference.moments(B, ONE_HOT))


def test_float32_blocks_agree_with_float64_to_their_precision():
    single = MomentStatistic(LandmarkMap(Gaussian(1.1), Z, np.dtype(np.float32)), Targets(2))
    total = accumulate(single, X.astype(np.float32), NUMBERS, WEIGHT, (30, 31))
    assert_moments(Moments.of(total), reference.moments(B, NUMBERS, WEIGHT), 1e-5)
    assert all(values.dtype == np.float64 for values in total.values())
    # t and q are of the targets alone, which are not rounded
    assert_allclose(total["q"][0], (WEIGHT[:, None] * NUMBERS**2).sum(0), rtol=1e-13)


def test_without_targets_the_features_alone_are_summed():
    total = accumulate(MomentStatistic(FEATURES), X, None, WEIGHT, (10, 50))
    assert total["C"].shape == (1, M, 0)
    expected = reference.moments(B, np.empty((N, 0)), WEIGHT)
    assert_moments(Moments.of(total), expected)


def test_the_identity_map_gives_the_moments_of_shifted_rows():
    shift = np.array([1.0, -2.0, 0.5])
    total = accumulate(MomentStatistic(IdentityMap(shift), Targets(2)), X, NUMBERS, WEIGHT, (7,))
    assert_moments(Moments.of(total), reference.moments(X - shift, NUMBERS, WEIGHT))


@pytest.mark.parametrize(
    "kind, weighted, share", [("classes", False, 0.6), ("numbers", True, 0.6), ("numbers", False, 1)]
)
def test_unlabelled_rows_are_dropped_or_kept_apart(kind, weighted, share):
    targets, y, dense = TARGETS[kind]
    hidden, weight = np.random.default_rng(3).uniform(size=N) < share, WEIGHT if weighted else np.ones(N)
    y = y.copy()
    y[hidden] = -1 if kind == "classes" else np.nan
    given_weight = weight if weighted else None
    cuts = (20, 21, 60)
    dropped = Moments.of(accumulate(MomentStatistic(FEATURES, targets), X, y, given_weight, cuts))
    total = accumulate(MomentStatistic(FEATURES, targets, "keep"), X, y, given_weight, cuts)
    labelled = reference.moments(B[~hidden], dense[~hidden], weight[~hidden])
    nothing = np.zeros((hidden.sum(), targets.width))
    assert_moments(dropped, labelled)
    assert_moments(Moments.of(total, 1), labelled)
    assert_moments(Moments.of(total, 0), reference.moments(B[hidden], nothing, weight[hidden]))
    # the groups add up to all rows; targets are those of the labelled ones
    everything = reference.moments(B, dense, weight)
    whole = Moments.of(total)
    assert_moments(whole, {name: everything[name] for name in "nGs"} | {name: labelled[name] for name in "Ctq"})
    counted = weight > 0
    assert_array_equal(total["rows"], [(hidden & counted).sum(), (~hidden & counted).sum()])


def test_a_row_has_all_targets_or_none_and_minus_one_is_a_label_where_it_is_a_class():
    y = NUMBERS.copy()
    y[4, 1] = np.nan
    with pytest.raises(DataError, match="row 4 has 1 of 2 targets, expected all or none"):
        accumulate(MomentStatistic(FEATURES, Targets(2)), X, y)
    y[4] = np.nan
    total = accumulate(MomentStatistic(FEATURES, Targets(2)), X, y)
    assert_moments(Moments.of(total), reference.moments(np.delete(B, 4, 0), np.delete(NUMBERS, 4, 0)))
    classes, y = np.array([-1, 1]), np.where(LABELS > 2, 1, -1)
    total = accumulate(MomentStatistic(FEATURES, Targets(2, classes)), X, y)
    assert_moments(Moments.of(total), reference.moments(B, (y[:, None] == classes).astype(float)))


@pytest.mark.parametrize("strange", [7, -2, 100])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_a_label_outside_the_classes_is_refused_with_its_row(strange, dtype):
    y = LABELS.astype(dtype)
    y[[41, 50]] = strange
    for unlabelled in ("drop", "keep"):
        with pytest.raises(DataError, match=rf"y: row 41 has the label .*{strange}"):
            accumulate(MomentStatistic(FEATURES, Targets(3, CLASSES), unlabelled), X, y, cuts=(40,))


REFUSED = {
    **{f"target {value}": (r"y.*41", {"y": value}) for value in (np.inf, -np.inf)},
    **{f"weight {value}": (r"weight.*41", {"weight": value}) for value in (-0.5, np.nan, np.inf)},
    "no targets": ("y: expected labels", {"y": None}),
}


@pytest.mark.parametrize("message, wrong", REFUSED.values(), ids=REFUSED)
def test_an_invalid_value_is_refused_with_its_row(message, wrong):
    y, weight = NUMBERS.copy(), WEIGHT.copy()
    y[41, 1], weight[41] = wrong.get("y") or 0.0, wrong.get("weight", 1.0)
    with pytest.raises(DataError, match=message):
        accumulate(MomentStatistic(FEATURES, Targets(2)), X, None if wrong.get("y", 0) is None else y, weight, (40,))


@pytest.mark.parametrize("kind", [MomentStatistic, QRStatistic])
def test_a_merge_may_consume_its_first_total_and_gives_the_same_bits(kind):
    statistic = kind(FEATURES, Targets(2))
    a, b = (accumulate(statistic, X[i:j], NUMBERS[i:j], WEIGHT[i:j]) for i, j in ((0, 30), (30, N)))
    given, expected = deepcopy((a, b)), statistic.merge(a, b)
    for total, before in zip((a, b), given, strict=True):
        for name, values in before.items():
            assert_array_equal(total[name], values)  # neither is changed
    consumed = statistic.merge(a, b, consume=True)
    assert {name: values.shape for name, values in consumed.items()} == statistic.shapes()
    assert {name for name in a if consumed[name] is a[name]} >= {"rows", "n", "t", "q"}
    for name, values in expected.items():
        assert_array_equal(consumed[name], values)
        assert_array_equal(b[name], given[1][name])


def test_merging_is_a_commutative_monoid():
    statistic = MomentStatistic(FEATURES, Targets(2))
    a, b, c = (accumulate(statistic, X[i:j], NUMBERS[i:j], WEIGHT[i:j]) for i, j in ((0, 30), (30, 37), (37, 90)))
    before = deepcopy(b)
    ab_c = statistic.merge(statistic.merge(deepcopy(a), b), c)
    a_bc = statistic.merge(deepcopy(a), statistic.merge(deepcopy(b), c))
    for name in a:
        # commutative to the last bit; associative to rounding
        assert_array_equal(statistic.merge(deepcopy(a), b)[name], statistic.merge(deepcopy(b), a)[name])
        assert_allclose(ab_c[name], a_bc[name], rtol=1e-12)
        assert_array_equal(statistic.merge(deepcopy(a), statistic.zero())[name], a[name])
        assert_array_equal(statistic.merge(statistic.zero(), a)[name], a[name])
        assert_array_equal(b[name], before[name])  # the right-hand side is not changed
    assert_moments(Moments.of(ab_c), reference.moments(B, NUMBERS, WEIGHT))


def test_a_probe_covers_the_first_window_and_a_share_of_the_others_of_each_chunk(monkeypatch):
    monkeypatch.setattr(moments_module, "GRAM_ROWS", 10)
    probe = RoundingProbe(np.ones((1, M, 2)), every=3)
    covered = np.array([[probe.includes(start, window) for window in range(300)] for start in range(0, 9000, 30)])
    assert all(RoundingProbe(probe.vectors, every).includes(0, 0) for every in range(1, 10))
    for shares in (covered.mean(axis=0), covered.mean(axis=1)):  # of starts by window, of windows by start
        assert 0.2 < shares.min() <= shares.max() < 0.5
    total = accumulate(MomentStatistic(FEATURES, probe=probe), X, cuts=(30, 60), block_rows=5)
    assert total["probed_rows"] == 10 * sum(
        covered[start // 30, window] for start in (0, 30, 60) for window in range(3)
    )
    assert 0 < total["probed_rows"] < N
    given = (1e9, 8000, 10**6), (1e6, 8000, 10**6), (1e6, 8000, 10), (1e6, 8000, 0)
    assert [probe_interval(*one) for one in given] == [1, 80, 5, 1]


@pytest.mark.parametrize("kind", ["numbers", "many"])
@pytest.mark.parametrize("unlabelled", ["drop", "keep"])
def test_the_announced_bytes_are_those_that_are_held(kind, unlabelled):
    targets, y, _ = TARGETS[kind]
    statistic = MomentStatistic(FEATURES, targets, unlabelled)
    work = Workspace()
    total = statistic.zero()
    statistic.update(total, Chunk(X, 0, y, WEIGHT, block_rows=16, work=work))
    footprint = statistic.footprint(16)
    assert sum(values.nbytes for values in total.values()) == footprint.partial_bytes
    held = sum(buffer.nbytes for buffer in work.buffers.values())
    assert held <= footprint.work_bytes - UFUNC_BYTES <= 2 * held


@pytest.mark.parametrize("weighted", [False, True])
def test_feature_sums_are_the_sums_of_each_column(weighted):
    weight = WEIGHT if weighted else None
    total = accumulate(FeatureSums(FEATURES), X, None, weight, (0, 13, 50))
    w = np.ones(N) if weight is None else weight
    assert_allclose(total["n"], w.sum(), rtol=1e-12)
    assert_allclose(total["s"], w @ B, rtol=1e-12)
    assert_allclose(total["q"], w @ B**2, rtol=1e-12)
