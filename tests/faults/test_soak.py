"""F40: hundreds of sweeps in one process, and a hundred that are killed, leave no memory, files or threads behind.

The process is one of its own: in that of a whole test run, other tests' clusters come and go meanwhile.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

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
from bigkernel.storage.corpus import CorpusInfo, CorpusWriter, open_corpus
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


FITS, KILLS = 1000, 100
KILLED = """
import gc, json, os, shutil, signal, tempfile
from pathlib import Path

import dask
import numpy as np
import psutil
from probes import threads_kept

from bigkernel import Gaussian, KernelRidge, executing, open_corpus
from bigkernel.storage.corpus import CorpusInfo, CorpusWriter
from bigkernel.storage.run_directory import Run

FITS, KILLS = @FITS, @KILLS
publish = Run.publish


def held():
    gc.collect()
    process = psutil.Process()
    strays = [path for path in Path(tempfile.gettempdir()).rglob("*") if not path.is_relative_to(Path.cwd() / "corpus")]
    return process.memory_info().rss, process.num_fds(), threads_kept(), len(strays)


def fit(corpus, run=None, resume=False):
    with executing("serial", run=run, resume=resume):
        return KernelRidge(Gaussian(2.0), n_landmarks=6, random_state=0).fit(corpus).dual_coef_.tobytes()


def killed(corpus, run, at):
    child = os.fork()
    if not child:
        done = []

        def counted(self, *arguments):
            done.append(0)
            if len(done) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return publish(self, *arguments)

        Run.publish = counted
        try:
            fit(corpus, run)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


dask.config.set({"bigkernel.min-segments": 3, "bigkernel.chunk-bytes": 1024, "bigkernel.monitor": False})
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 8))
info = CorpusInfo("soak")
with CorpusWriter("corpus", n_features=8, dtype=X.dtype, columns={"y": X.dtype}, info=info, chunk_rows=20) as writer:
    writer.append(x=X, y=X[:, 0].copy())
corpus, marks, run = open_corpus("corpus"), [], Path(tempfile.mkdtemp()) / "run"
clean = fit(corpus)
for i in range(FITS):
    if i % (FITS // KILLS) == 0:
        killed(corpus, run, 1 + i // (FITS // KILLS) % 5)
        assert fit(corpus, run, resume=True) == clean
        assert not [path for path in run.rglob("*") if path.name.endswith((".partial", ".old"))]
        shutil.rmtree(run)
    else:
        assert fit(corpus) == clean
    if i % 50 == 49:
        marks.append(held())
print(json.dumps(marks))
"""


@pytest.mark.endurance
@pytest.mark.timeout(600)
def test_F40_a_thousand_fits_of_which_a_hundred_are_killed_leave_nothing_behind(start, tmp_path):
    (tmp_path / "tmp").mkdir()
    code = KILLED.replace("@FITS", str(FITS)).replace("@KILLS", str(KILLS))
    driver = start(code, TMPDIR=str(tmp_path / "tmp"))
    assert driver.wait(550) == 0, driver.errors()
    memory, files, threads, strays = np.array(json.loads(driver.out.read_text())).T
    half = len(memory) // 2  # caches and pools are full by then
    slope = np.polyfit(np.arange(len(memory) - half) * 50, memory[half:], 1)[0]
    assert slope < 20_000, f"{slope / 1e3:.0f} kB a fit; {memory / 1e6} MB"
    assert max(files[half:]) <= max(files[:half])
    assert max(threads[half:]) <= max(threads[:half])
    assert max(strays) <= 1
