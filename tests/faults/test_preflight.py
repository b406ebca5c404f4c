"""Checks before the first task: F35, workers without bigkernel or with other versions, data or run not shared.

Workers are processes, with other modules or in their own mount namespace, where paths hold other data.
"""

import os
import subprocess
import sys
import time

import dask
import numpy as np
import pytest
from distributed import Client
from probes import Sums, local_cluster

from bigkernel import open_corpus, write_corpus
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError, StalledError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("small_steps")]
N, D = 230, 4
WORKER = "import sys; from distributed.cli.dask_worker import main; sys.argv[0] = 'dask worker'; main()"


def corpus(path, seed=0):
    return write_corpus(path, np.random.default_rng(seed).normal(size=(N, D)), chunk_rows=25)


@pytest.fixture
def rows(tmp_path):
    return as_rows(corpus(tmp_path / "corpus"))


@pytest.fixture
def joined(tmp_path):
    """Start a worker with other modules or another mount; return the client of its scheduler."""
    processes = []
    with local_cluster(0) as cluster, Client(cluster, set_as_default=False) as client:

        def join(*, modules=None, mount=""):
            command = [sys.executable, "-c", WORKER, cluster.scheduler_address, "--nthreads", "1", "--no-dashboard"]
            command += ["--host", "127.0.0.1", "--no-nanny", "--local-directory", str(tmp_path / "scratch")]
            if mount:
                if os.system("unshare -m true 2> /dev/null"):
                    pytest.skip("a mount namespace cannot be made here")
                command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
            path = os.pathsep.join(map(str, filter(None, [modules, *sys.path])))
            environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
            with open(tmp_path / "worker.log", "w") as log:
                processes.append(subprocess.Popen(command, env=environment, stderr=log, cwd=tmp_path))
            wait_for_workers(client, 1, 90)
            return client

        yield join
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "module, content, message",
    [
        (
            "bigkernel/__init__.py",
            "raise ModuleNotFoundError(\"No module named 'bigkernel'\")\n",
            r"worker tcp://\S+ cannot import bigkernel .* install it there",
        ),
        (
            "sitecustomize.py",
            "import numpy\nnumpy.__version__ += '.1'\n",
            r"worker tcp://\S+: found numpy \S+\.1, expected \S+ as on the driver; install",
        ),
    ],
    ids=["without bigkernel", "of another version"],
)
def test_f35_a_worker_with_other_modules_is_named_before_the_first_task(
    joined, rows, touch, tmp_path, module, content, message
):
    path = tmp_path / "modules" / module
    path.parent.mkdir(parents=True)
    path.write_text(content)
    client = joined(modules=tmp_path / "modules")
    with pytest.raises(ConfigError, match=message):
        sweep(rows, Sums(D, touch), client=client)
    assert touch.starts() == []


def test_a_worker_with_another_corpus_none_or_no_shared_run_is_named(joined, rows, touch, tmp_path):
    corpus(tmp_path / "other", seed=1)
    lost, run, private = as_rows(corpus(tmp_path / "lost")), tmp_path / "run", tmp_path / "private"
    for place in (run, private):
        place.mkdir()
    client = joined(
        mount=f"mount --bind {tmp_path}/other {rows.x.path} && mount -t tmpfs tmpfs {lost.x.path} "
        f"&& mount --bind {run} {run} && mount -o remount,ro,bind {run} && mount -t tmpfs tmpfs {private}"
    )
    shared = as_rows(open_corpus(tmp_path / "other"))
    not_shared = r"worker tcp://\S+: the run directory .* is not shared with it, or is not writable"
    for data, directory, message in (
        (rows, None, "expected the same data on all workers and the driver"),
        (lost, None, r"worker tcp://\S+: the input cannot be read: .*lost"),
        (shared, run, not_shared),
        (shared, private, not_shared),
    ):
        with pytest.raises(DataError, match=message):
            sweep(data, Sums(D, touch), client=client, run=directory)
    assert touch.starts() == []
    assert list(tmp_path.glob("*/.preflight*")) == []


def test_a_worker_that_does_not_answer_is_a_stall(rows, touch):
    with (
        dask.config.set({"bigkernel.stall-seconds": 1}),
        local_cluster(1) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        (pid,) = client.run(os.getpid).values()
        os.kill(pid, 19)
        try:
            start = time.monotonic()
            with pytest.raises(StalledError, match="workers did not answer within 1 s before the first task"):
                sweep(rows, Sums(D, touch), client=client)
            assert time.monotonic() - start < 40  # Dask replaces a frozen worker after five minutes
        finally:
            os.kill(pid, 18)
    assert touch.starts() == []


def test_another_kind_of_processor_is_a_warning(client, rows, monkeypatch):
    monkeypatch.setattr("bigkernel.engine.preflight.processor", lambda: "abacus")
    with pytest.warns(RuntimeWarning, match=r"runs on .*, the driver on abacus: .* last bits"):
        swept = sweep(rows, Sums(D), client=client)
    assert swept.total["rows"] == N


def test_f36_a_fit_needs_no_temporary_directory(tmp_path, start):
    data = corpus(tmp_path / "corpus")
    code = f"""
import numpy as np
from bigkernel import Gaussian, KernelRidge, executing, open_corpus
rows = open_corpus({data.path!r})
y = rows.array("x")[:, 0]
with executing("threads", run="run"):
    model = KernelRidge(Gaussian(1.0), n_landmarks=9, random_state=0).fit(rows, y)
print(len(model.dual_coef_) == 9)
"""
    driver = start(code, TMPDIR="/proc", TEMP="/proc", TMP="/proc")
    assert driver.wait() == 0, driver.errors()
    assert driver.out.read_text() == "True\n"
