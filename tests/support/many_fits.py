"""Many small fits in one process, some of them killed in a fork and resumed, and the resources of the process."""

import gc
import json
import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import dask
import numpy as np
import psutil
from distributed import Client
from probes import local_cluster, threads_kept

from bigkernel import Gaussian, KernelRidge, executing, write_corpus
from bigkernel.data.run_directory import Run

MARKS, PUBLISHES = 20, 5  # measurements; publishes of a fit: segments and merges


def fit(corpus, where, run=None, *, resume=False):
    """Return the coefficients of one fit."""
    with executing(where, run=run, resume=resume):
        model = KernelRidge(Gaussian(2.0), n_landmarks=6, random_state=0).fit(corpus)
    return model.dual_coef_.tobytes()


def fit_killed(corpus, run, at):
    """Fit in a fork of this process that is killed at its `at`-th publish."""
    child = os.fork()
    if not child:
        publish, done = Run.publish, 0

        def counted(self, *arguments):
            nonlocal done
            done += 1
            if done == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return publish(self, *arguments)

        Run.publish = counted
        fit(corpus, "serial", run)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def held():
    """Return resident bytes, open files, threads and temporary files."""
    gc.collect()
    process = psutil.Process()
    strays = sum(1 for path in Path().iterdir() if path.name.startswith("tmp"))
    return process.memory_info().rss, process.num_fds(), threads_kept(), strays


def main(where, fits, kills):
    """Print, as JSON, the number of wrong fits, and the resources after every `every` fits."""
    dask.config.set({"bigkernel.min-segments": 3, "bigkernel.chunk-bytes": 1024, "bigkernel.monitor": False})
    X, run = np.random.default_rng(0).normal(size=(60, 8)), Path("run")
    corpus = write_corpus("corpus", X, X[:, 0].copy(), chunk_rows=20)
    wrong, every, marks = 0, fits // MARKS, []
    struck = {fits * number // kills: 1 + number % PUBLISHES for number in range(kills)}  # fit: publish
    with ExitStack() as stack:
        client = where
        if where == "dask":
            client = stack.enter_context(Client(stack.enter_context(local_cluster(2)), set_as_default=False))
        clean = fit(corpus, client)
        for number in range(fits):
            if number in struck:
                fit_killed(corpus, run, struck[number])
                wrong += fit(corpus, client, run, resume=True) != clean
                wrong += any(path.name.endswith((".partial", ".old")) for path in run.rglob("*"))
                shutil.rmtree(run)
            else:
                wrong += fit(corpus, client) != clean
            if number % every == every - 1:
                marks.append(held())
    print(json.dumps({"wrong": wrong, "every": every, "marks": marks}))
