"""F40: two hundred sweeps in one process leave no memory, files or threads behind."""

from __future__ import annotations

import gc
import shutil
import threading
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest

from bigkernel import Gaussian
from bigkernel.features import LandmarkMap
from bigkernel.rows import as_rows
from bigkernel.statistics import MomentStatistic, Targets
from bigkernel.sweep import sweep

SWEEPS = 200


@pytest.fixture(autouse=True)
def few_steps():
    """Two segments, so that what a sweep costs by itself is most of it."""
    with dask.config.set({"bigkernel.min-segments": 2, "bigkernel.chunk-bytes": 1024}):
        yield


def held():
    """Resident bytes, open files and threads of this process."""
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss, process.num_fds(), threading.active_count()


# a scheduler in this process keeps logs of every transition, up to a length that two hundred sweeps do not reach
@pytest.mark.parametrize("where, most", [("threads", 30_000), ("dask", 200_000)])
def test_F40_two_hundred_sweeps_leave_nothing_behind(make_corpus, tmp_path, request, where, most):
    client = request.getfixturevalue("client") if where == "dask" else where
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    rows = as_rows(make_corpus(X, y=rng.integers(0, 3, 60)))
    features = LandmarkMap(Gaussian(1.0), X.copy(), np.dtype("f8"))
    statistic = MomentStatistic(features, Targets(3, np.arange(3)))

    def once(i):
        run = tmp_path / "run"
        swept = sweep(rows, statistic, client=client, run=run if i % 4 == 0 else None)
        assert swept.total["n"] == 60
        if run.exists():
            assert not [path for path in run.rglob("*") if ".partial" in path.name]
            shutil.rmtree(run)

    for i in range(20):  # caches and pools fill
        once(i)
    memory, files, threads = held()
    marks = []
    for i in range(SWEEPS):
        once(i)
        if i % 20 == 19:
            marks.append(held()[0])
    grown, more_files, more_threads = held()
    # the slope, for the level moves with the allocator
    slope = np.polyfit(np.arange(len(marks)) * 20, marks, 1)[0]
    assert slope < most, f"{slope / 1e3:.0f} kB a sweep; {memory / 1e6:.0f} to {grown / 1e6:.0f} MB"
    assert more_files <= files + 2
    assert more_threads <= threads + 1
    assert list(Path(tmp_path).rglob("*.partial")) == []
