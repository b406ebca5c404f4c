"""Blocks stay between the sweeps of a fit, within their limit, and never change a bit."""

import os
import signal
import warnings
from collections import Counter

import dask
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from bigkernel import Gaussian, KernelLogisticClassifier, KernelRidge, SweepSearchCV, executing
from bigkernel.config import settings
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import keeping_blocks, sweep
from bigkernel.errors import ConfigError
from bigkernel.events.job import SegmentDone, SweepEnded, SweepStarted, observe
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.kept_blocks import BLOCKS, BlockStore
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import ProductStatistic

rng = np.random.default_rng(2011)
N, M = 640, 40
X = rng.normal(size=(N, 3))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=N)
HALF = 4 * N * M  # bytes of half of the float64 blocks
RIDGE = KernelRidge(Gaussian(1.2), alpha=0.1, n_landmarks=M, solver="cg", tol=1e-8, random_state=0)
LOGISTIC = KernelLogisticClassifier(Gaussian(1.2), n_landmarks=M, random_state=0, dtype="float64")


@pytest.fixture
def built(monkeypatch, small_steps):
    """Count the blocks that are built, by their first row."""
    counts, block = Counter(), LandmarkMap.block

    def counted(self, chunk, rows, spare=0):
        counts[chunk.start + np.arange(len(chunk))[rows][0]] += 1
        return block(self, chunk, rows, spare)

    monkeypatch.setattr(LandmarkMap, "block", counted)
    return counts


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("model", [RIDGE, LOGISTIC], ids=["cg", "logistic"])
def test_bits_do_not_depend_on_the_blocks_that_are_kept(built, model, executor):
    target, sums = (y > 0 if model is LOGISTIC else y), {}
    for most in (0, HALF, "auto"):
        built.clear()
        with dask.config.set({"bigkernel.block-cache": most}), executing(executor):
            model.fit(X, target)
        sums[most] = model.dual_coef_, np.sort(list(built.values()))
        assert BLOCKS.held_bytes() == 0
    for most in (HALF, "auto"):
        assert_array_equal(sums[most][0], sums[0][0])
    none, half, every = (counts for _, counts in sums.values())
    steps = none.max()
    assert steps > 5
    assert every.max() <= 1 + (model is RIDGE)  # the residual of the sub-sample's rows is computed besides
    assert steps * len(none) * 0.45 < half.sum() - every.sum() / 2 < steps * len(none) * 0.6


def test_a_search_keeps_the_blocks_of_a_kernel(built):
    grid = SweepSearchCV(RIDGE, {"alpha": [0.1, 1.0]}, cv=2, random_state=0)
    scores = []
    for most in (0, "auto"):
        built.clear()
        with dask.config.set({"bigkernel.block-cache": most}):
            scores.append(grid.fit(X, y).cv_results_["mean_test_score"])
    assert_array_equal(*scores)
    assert np.median([*built.values()]) <= 2  # in the search, and in the fit of the best


def test_a_store_keeps_to_its_limit_and_prefers_the_owner_that_asks():
    store, block = BlockStore(), np.ones((10, 10))
    for rows in range(3):
        store.keep("first", rows, block, 1700)
    assert store.held_bytes() == store.held_bytes("first") == 1600
    store.keep("second", 0, 2 * block, 1700)
    assert store.held_bytes("first") == 0
    assert_array_equal(store.find("second", 0), 2 * block)
    assert not store.find("second", 0).flags.writeable
    assert store.find("second", 1) is store.find("first", 0) is None
    store.release(but="first")
    assert store.held_bytes() == 0


def test_announced_memory_has_the_blocks_and_an_error_releases_them(small_steps):
    features, rows = LandmarkMap(Gaussian(1.2), X[:M]), as_rows(X, y)
    planned = []

    def sweep_and_fail():
        with keeping_blocks(features, rows) as kept:
            for most in (0, HALF // 2, "auto"):
                with dask.config.set({"bigkernel.block-cache": most}):
                    statistic = ProductStatistic(kept, Targets(1), np.ones((M, 1)), "once")
                    planned.append(sweep(rows, statistic, client="serial"))
            assert BLOCKS.held_bytes(kept.owner) == planned[0].plan.kept_bytes == 4 * N * M
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sweep_and_fail()
    assert BLOCKS.held_bytes() == 0
    assert [swept.report()["kept_bytes"] for swept in planned] == [0, HALF // 2, 4 * N * M]


@pytest.mark.parametrize("lost", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_keep_blocks_and_lost_ones_change_no_bit(lost, cluster, make_corpus, small_steps):
    corpus, killed, sweeps = make_corpus(X, y=y, chunk_rows=64), [], []

    def held_bytes():  # here, as workers would load the libraries of this module for a function of it
        from bigkernel.kernels.kept_blocks import BLOCKS

        return BLOCKS.held_bytes()

    def kill(event):
        """Kill one or all of the workers in the fifth sweep."""
        sweeps.extend([event] * isinstance(event, SweepStarted))
        if isinstance(event, SegmentDone) and len(sweeps) == 5 and not killed:
            killed.extend([*client.run(os.getpid).values()][:lost])
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        if isinstance(event, SweepEnded) and len(sweeps) == 4:
            held.update(client.run(held_bytes))

    held: dict[str, int] = {}
    ridge = clone(RIDGE).set_params(tol=1e-4)  # seven sweeps
    with cluster.get_client() as client, executing(client), observe(kill), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client.wait_for_workers(2)  # another test may have killed one
        actual = ridge.fit(corpus).dual_coef_
        assert sum(client.run(held_bytes).values()) == 0
    assert len(killed) == lost
    assert len(sweeps) > 5
    assert sum(held.values()) > 7 * N * M
    assert min(held.values()) > 2 * N * M  # both have a good share
    with dask.config.set({"bigkernel.block-cache": 0}), executing("serial"):
        assert_array_equal(actual, ridge.fit(corpus).dual_coef_)


@pytest.mark.parametrize("value", [-1, 1.5, True, "all", None])
def test_invalid_limits_are_refused(value):
    with dask.config.set({"bigkernel.block-cache": value}), pytest.raises(ConfigError, match="block_cache: expected"):
        settings()
