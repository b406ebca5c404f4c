"""F40: hundreds of sweeps in one process, and a hundred that are killed, leave no memory, files or threads behind.

The process is one of its own: in that of a whole test run, other tests' clusters come and go meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipelines.soak import Mark, troubles

ROOT = Path(__file__).parents[2]

SWEEPS, EVERY = 200, 20
CODE = """
import gc, json, shutil, sys
from contextlib import ExitStack
from pathlib import Path

import dask
import numpy as np
import psutil
from distributed import Client
from probes import local_cluster, threads_kept

from bigkernel import Gaussian
from bigkernel.data.corpus import CorpusInfo, CorpusWriter, open_corpus
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.engine.rows import as_rows
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.engine.sweep import sweep


def held():
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss, process.num_fds(), threads_kept()


def main():
    dask.config.set({"bigkernel.min-segments": 2, "bigkernel.chunk-bytes": 1024})
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 8)), rng.integers(0, 3, 60)
    columns = {"y": y.dtype}
    with CorpusWriter("corpus", n_features=8, dtype=X.dtype, columns=columns, info=CorpusInfo("soak")) as writer:
        writer.append(x=X, y=y)
    rows = as_rows(open_corpus("corpus"))
    statistic = MomentStatistic(LandmarkMap(Gaussian(1.0), X.copy(), np.dtype("f8")), Targets(3, np.arange(3)))
    with ExitStack() as stack:
        client = "threads"
        if sys.argv[1] == "dask":
            cluster = stack.enter_context(local_cluster(2))
            client = stack.enter_context(Client(cluster, set_as_default=False))
        marks = []
        for i in range(-EVERY, SWEEPS):  # the first ones fill caches and pools
            run = Path("run")
            assert sweep(rows, statistic, client=client, run=run if i % 4 == 0 else None).total["n"] == 60
            if run.exists():
                assert not [path for path in run.rglob("*") if ".partial" in path.name]
                shutil.rmtree(run)
            if i % EVERY == EVERY - 1:
                marks.append(held())
        print(json.dumps(marks))


if __name__ == "__main__":
    main()
"""


# a scheduler in the same process keeps logs of every transition, up to a length that two hundred sweeps do not reach
@pytest.mark.slow
@pytest.mark.parametrize("where, most", [("threads", 30_000), ("dask", 200_000)])
def test_F40_two_hundred_sweeps_leave_nothing_behind(start, tmp_path, where, most):
    script = tmp_path / "soak.py"
    script.write_text(CODE.replace("SWEEPS", str(SWEEPS)).replace("EVERY", str(EVERY)), encoding="utf-8")
    driver = start(
        f"import runpy, sys; sys.argv = ['soak.py', {where!r}]; runpy.run_path('soak.py', run_name='__main__')"
    )
    assert driver.wait(200) == 0, driver.errors()
    memory, files, threads = np.array(json.loads(driver.out.read_text())).T
    assert len(memory) == SWEEPS // EVERY + 1
    # the slope, for the level moves with the allocator
    slope = np.polyfit(np.arange(len(memory)) * EVERY, memory, 1)[0]
    assert slope < most, f"{slope / 1e3:.0f} kB a sweep; {memory[0] / 1e6:.0f} to {memory[-1] / 1e6:.0f} MB"
    # Dask's pool of connections fills by five or so in the first hundred sweeps, and stays there for four hundred
    assert files[-1] <= files[0] + 8
    assert threads[-1] <= threads[0] + 1


@pytest.mark.slow
def test_F40_fits_that_are_killed_and_gone_on_with_leave_nothing_behind(tmp_path):
    results = soak(tmp_path, "--fits", "60", "--kills", "10")
    assert results["troubles"] == []
    assert [mark["fits"] for mark in results["marks"]] == list(range(3, 61, 3))


@pytest.mark.endurance
@pytest.mark.timeout(600)
def test_F40_a_thousand_fits_of_which_a_hundred_are_killed_leave_nothing_behind(tmp_path):
    assert soak(tmp_path, "--fits", "1000", "--kills", "100")["troubles"] == []


def soak(place, *options):
    """What `python -m pipelines soak` found, in a process of its own."""
    command = [sys.executable, "-m", "pipelines", "soak", *options, "--out", str(place), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_what_grows_is_told():
    flat = [Mark(10 * i, 300_000_000, 9, 2, 0) for i in range(1, 21)]
    assert troubles(flat, 0) == []
    growing = [Mark(m.fits, m.memory + 30_000 * m.fits, 9 + (m.fits == 190), 2 + (m.fits == 50), 0) for m in flat]
    assert troubles(growing, 2) == [
        "2 fits had other coefficients or left half-written files",
        "memory grows by 30 kB a fit",
        "files grow from 9 to 10",
    ]
