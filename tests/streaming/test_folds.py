"""Folds: the same for a row wherever it is read, balanced, unrelated to one another, and kept apart in the moments."""

from __future__ import annotations

import itertools

import dask.array as da
import numpy as np
import pytest
import reference
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from peers import accumulate

from bigkernel.engine.rows import as_rows
from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.folds import ColumnFolds, DomainFolds, HashFolds, HeldOut, SomeFolds

rng = np.random.default_rng(2014)
MASK = 2**64 - 1


def splitmix(key: int, seed: int) -> int:
    """SplitMix64 (Steele, Lea & Flood 2014) of one key, in whole numbers."""
    z = (key * 0xD1342543DE82EF95 + (seed + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def folds_of(folds, n, start=0, **columns):
    return folds.of(Chunk(np.empty((n, 0)), start, **columns))


@given(start=st.integers(0, 2**45), seed=st.integers(-(2**70), 2**70), count=st.integers(2, 1000))
def test_the_fold_of_a_row_is_the_hash_of_its_number(start, seed, count):
    result = folds_of(HashFolds(count, seed), 5, start)
    assert result.dtype == np.int64
    assert result.tolist() == [splitmix(key, seed) % count for key in range(start, start + 5)]


@given(keys=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), seed=st.integers(0, 9))
def test_the_fold_of_a_group_is_the_hash_of_its_number(keys, seed):
    result = folds_of(HashFolds(7, seed, "group"), len(keys), group=np.array(keys, np.int64))
    assert result.tolist() == [splitmix(key & MASK, seed) % 7 for key in keys]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
def test_a_share_of_rows_or_of_groups_is_held_out(share):
    result = folds_of(HeldOut(share, seed=3), 40_000)
    assert set(result.tolist()) == {0, -1}
    assert abs((result == 0).mean() - share) < 0.01
    assert_array_equal(folds_of(HeldOut(share, seed=3), 500, 700), result[700:1200])
    groups = np.arange(40_000) // 10
    of_groups = folds_of(HeldOut(share, seed=3, by="group"), 40_000, group=groups)
    assert_array_equal(of_groups, result[groups])


def test_some_folds_are_renumbered_and_the_others_are_trained_on():
    fold = np.array([0, 1, 2, 3, -1, -2, 2])
    result = folds_of(SomeFolds(ColumnFolds(4), (2, 0)), len(fold), fold=fold)
    assert result.tolist() == [1, -1, 0, -1, -1, -2, 0]
    assert SomeFolds(ColumnFolds(4), (2, 0)).count == 2


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, np.float64])
def test_groups_of_any_dtype_have_the_same_folds(dtype):
    groups = np.array([0, 1, 5, 100, 5])
    result = folds_of(HashFolds(5, by="group"), 5, group=groups.astype(dtype))
    assert_array_equal(result, folds_of(HashFolds(5, by="group"), 5, group=groups))
    assert result[2] == result[4]


def test_a_fold_is_the_same_in_every_chunking_of_every_kind_of_input(make_corpus):
    n = 103
    X, group = rng.normal(size=(n, 3)), rng.integers(0, 40, n)
    for by in ("row", "group"):
        expected = folds_of(HashFolds(4, 3, by), n, group=group)
        inputs = [
            as_rows(X, group=group),
            *(as_rows(make_corpus(X, group=group, name=f"{by}{rows}", chunk_rows=rows)) for rows in (1, 25)),
            as_rows(zarr.array(X, chunks=(17, 3)), group=zarr.array(group, chunks=(9,))),
            as_rows(da.from_array(X, chunks=((50, 3, 50), (3,))), group=da.from_array(group, chunks=(29,))),
        ]
        for rows, step in itertools.product(inputs, (7, 103)):
            bounds = sorted({*range(0, n, step), n})
            chunks = rows.chunks(bounds, 8, Workspace())
            assert_array_equal(np.concatenate([HashFolds(4, 3, by).of(chunk) for chunk in chunks]), expected)


def test_domains_are_left_out_in_turn_and_others_never():
    folds = DomainFolds(np.array([3, 7, 20]))
    assert folds.count == 3
    result = folds_of(folds, 6, domain=np.array([20, 3, 7, 5, 99, -1]))
    assert_array_equal(result, [2, 0, 1, -1, -1, -1])
    for without, name in ((folds, "domain"), (HashFolds(3, by="group"), "group")):
        with pytest.raises(DataError, match=rf"{name}: folds by {name} need a column of {name}s"):
            folds_of(without, 6)


@given(
    cuts=st.lists(st.integers(0, 60), max_size=5), block_rows=st.integers(1, 70), count=st.integers(2, 5),
    unlabelled=st.sampled_from(["drop", "keep"]), weighted=st.booleans(), seed=st.integers(0, 20),
)  # fmt: skip
def test_moments_of_each_fold_are_those_of_its_rows(cuts, block_rows, count, unlabelled, weighted, seed):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(60, 3)), rng.normal(size=(5, 3))
    y = np.where(rng.uniform(size=60) > 0.25, rng.normal(size=60), np.nan)
    weight = rng.uniform(0, 2, 60) if weighted else None
    fold = rng.integers(-2, count, 60)  # −1: every fold trains on it; −2: none uses it
    statistic = MomentStatistic(
        LandmarkMap(Gaussian(1.0), Z, np.dtype(np.float64)), Targets(1), unlabelled, ColumnFolds(count)
    )
    total = accumulate(statistic, X, y=y, weight=weight, fold=fold, cuts=cuts, block_rows=block_rows)
    known = ~np.isnan(y)
    groups = [~known] if unlabelled == "keep" else []
    groups += [known & (fold == number) for number in (*range(count), -1)]
    assert statistic.groups == len(groups) == len(total["n"])
    B, target = reference.gaussian(X, Z, 1.0), np.where(known, y, 0)
    for group, there in enumerate(groups):
        dense = reference.moments(B[there], target[there], None if weight is None else weight[there])
        result = Moments.of(total, group)
        for name, expected in dense.items():
            assert_allclose(getattr(result, name), expected, rtol=1e-11, atol=1e-11, err_msg=name)
        assert result.rows == (there if weight is None else there & (weight > 0)).sum()
