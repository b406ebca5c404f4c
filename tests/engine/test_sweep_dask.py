"""What only a cluster can do: be too small, be empty, lose workers, stall; and never touch what is in memory."""

import asyncio
import os
import subprocess
import sys
import time
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from drivers import wait_until
from probes import Sleep, Sums, Touch, local_cluster

from bigkernel.data import zarr_arrays
from bigkernel.engine import pilot
from bigkernel.engine.context import executing
from bigkernel.engine.process import OneBlasThread
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import choose_executor, sweep
from bigkernel.errors import ConfigError, PlanTooLargeError, StalledError
from bigkernel.search.sweeps import limit_bytes

N, D = 230, 4
rng = np.random.default_rng(21)
X = rng.normal(size=(N, D)) * 10.0 ** rng.integers(-8, 8, (N, 1))

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("small_steps")]


@pytest.fixture
def rows(make_corpus):
    return as_rows(make_corpus(X))


@pytest.fixture
def expected(rows):
    return zarr_arrays.digest(sweep(rows, Sums(D), client="serial").total)


def test_one_worker_gives_the_bits_of_two(rows, expected, client):
    assert zarr_arrays.digest(sweep(rows, Sums(D), client=client).total) == expected
    with local_cluster(1, processes=False) as cluster, Client(cluster, set_as_default=False) as alone:
        swept = sweep(rows, Sums(D), client=alone)
    assert zarr_arrays.digest(swept.total) == expected
    assert swept.report()["workers"] == 1


def test_the_current_client_is_used_for_rows_that_are_not_in_memory(rows, cluster):
    assert choose_executor(rows, None) == "threads"
    with Client(cluster) as current:
        assert choose_executor(rows, None) is current
        assert choose_executor(as_rows(X), None) == "threads"
        assert sweep(rows, Sums(D)).executor == "dask"


def test_an_asynchronous_client_is_refused_by_name():
    async def try_it():
        async with Client(processes=False, asynchronous=True, dashboard_address=":0") as current:
            rows = as_rows(da.from_array(X, chunks=(20, -1)))
            for client in (current, None):  # given, or the default one
                with pytest.raises(ConfigError, match="expected a synchronous"):
                    choose_executor(rows, client)

    asyncio.run(try_it())


def test_rows_in_memory_never_travel(client, tmp_path):
    swept = sweep(as_rows(X), Sums(D), client=client)
    assert swept.executor == "threads"
    assert all(str(receipt.worker).endswith(f":{os.getpid()}") for receipt in swept.receipts)


def test_a_plan_that_does_not_fit_is_refused_before_any_task(rows, client, tmp_path):
    touch = Touch(str(tmp_path / "touched"))
    with (
        dask.config.set({"bigkernel.worker-base-bytes": 2**40}),
        pytest.raises(PlanTooLargeError, match="use more memory per worker"),
    ):
        sweep(rows, Sums(D, touch), client=client)
    assert touch.starts() == []


def test_without_a_worker_the_wait_is_bounded(rows):
    with (
        local_cluster(0) as cluster,
        Client(cluster, set_as_default=False) as client,
        dask.config.set({"bigkernel.stall-seconds": 1}),
    ):
        start = time.perf_counter()
        with pytest.raises(
            StalledError, match=rf"no worker connected to {cluster.scheduler_address} within 1 s; start workers"
        ):
            sweep(rows, Sums(D), client=client)
        assert time.perf_counter() - start < 60  # ten minutes otherwise


def test_a_cluster_that_scales_from_no_worker_starts_one_for_every_job(rows, expected, monkeypatch):
    monkeypatch.setattr(pilot, "LONG_ROWS", 0)
    with local_cluster(0, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.adapt(minimum=0, maximum=1, interval="50ms", wait_count=1)
        job = partial(sweep, rows, Sums(D), client=client)
        assert zarr_arrays.digest(job().total) == expected
        for ask in (job, partial(pilot.pilot, job), partial(limit_bytes, rows)):
            wait_until(lambda: not client.scheduler_info(n_workers=-1)["workers"])
            with executing(client):
                assert ask()


def test_a_task_that_never_ends_is_given_up(rows, client):
    sweep(rows, Sums(D), client=client)  # the libraries are loaded, and may take their time
    with dask.config.set({"bigkernel.stall-seconds": 2}):
        start = time.perf_counter()
        with pytest.raises(StalledError, match=r"a segment did not finish within 2 s .*workers: tcp://.* running"):
            sweep(rows, Sums(D, Sleep(4)), client=client)
        assert time.perf_counter() - start < 60


@pytest.mark.slow
def test_tasks_of_a_failed_job_are_released(rows, client):
    sweep(rows, Sums(D), client=client)
    with pytest.raises(PlanTooLargeError), dask.config.set({"bigkernel.worker-base-bytes": 2**40}):
        sweep(rows, Sums(D), client=client)
    wait_until(lambda: client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)) == [])


def test_an_in_process_worker_has_one_blas_thread_and_gives_the_others_back():
    code = """
import numpy as np
from distributed import Client
from probes import local_cluster
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.statistics.moments import FeatureSums
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.engine.process import blas_threads
import dask.array as da

before = blas_threads()
assert set(before.values()) == {2}, before
rows = as_rows(da.from_array(np.ones((200, 3)), chunks=(50, 3)))
with local_cluster(1, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
    assert sweep(rows, FeatureSums(IdentityMap(np.zeros(3))), client=client).total["n"] == 200
    assert set(client.submit(blas_threads, pure=False).result().values()) == {1}
assert blas_threads() == before
print("given back")
"""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "given back", done.stderr


def test_a_worker_whose_blas_cannot_be_pinned_is_refused(monkeypatch):
    class Worker:
        address = "tcp://127.0.0.1:1"

    monkeypatch.setattr("bigkernel.engine.process.blas_threads", lambda: {"libblas.so": 64})
    monkeypatch.setattr("bigkernel.engine.process.threadpool_limits", lambda **_: None)
    with pytest.raises(ConfigError, match=r"tcp://127.0.0.1:1: expected one BLAS thread, found .*OPENBLAS_NUM_THREADS"):
        OneBlasThread().setup(Worker())


def test_rows_that_the_cluster_holds_give_the_same_bits(client, expected):
    with client.as_current():
        held = da.from_array(X, chunks=(25, D)).persist(scheduler=client.get)
        y = da.from_array(np.arange(N), chunks=60)
        swept = sweep(as_rows(held, y), Sums(D), client=client)
    assert swept.executor == "dask"
    assert zarr_arrays.digest(swept.total) == expected
