"""One thread of BLAS: for several blocks at once, and for predictions, which equal those of one thread."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bigkernel import Gaussian, KernelRidge, PartitionedRegressor
from bigkernel.kernels import threads
from bigkernel.statistics import predictor


class Pools:
    """A controller of thread pools that counts limits and their ends."""

    def __init__(self):
        self.calls = []

    def limit(self, **given):
        self.calls.append(given)
        return self

    def restore_original_limits(self):
        self.calls.append("ended")


def test_the_limit_ends_with_the_last_of_blocks_that_overlap(monkeypatch):
    pools, both, over = Pools(), Barrier(2), Barrier(2)
    monkeypatch.setattr(threads, "_pools", lambda with_scipy: pools)

    def second():
        with threads.one_thread():
            both.wait(20)  # both are inside
            over.wait(20)  # the first has ended

    with ThreadPoolExecutor(1) as pool:
        with threads.one_thread():
            later = pool.submit(second)
            both.wait(20)
        assert pools.calls == [{"limits": 1}]
        over.wait(20)
        later.result(20)
    assert pools.calls[1:] == ["ended"]


@pytest.mark.parametrize("leaves", [1, 4])
def test_threads_share_the_rows_of_a_prediction(leaves, monkeypatch):
    X = np.random.default_rng(0).normal(size=(20_000, 4))
    model = KernelRidge(Gaussian(2.0), n_landmarks=120, random_state=0)
    model = model if leaves == 1 else PartitionedRegressor(model, leaves, random_state=0)
    expected = model.fit(X[:500], np.sin(X[:500, 0])).predict(X)
    started = []
    for count in (2, 5):
        monkeypatch.setattr(predictor, "blas_threads", lambda count=count: started.append(count) or count)
        assert_allclose(model.predict(X), expected, rtol=0, atol=1e-10)
    assert {*started} == {2, 5}
