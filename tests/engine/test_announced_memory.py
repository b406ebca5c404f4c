"""What a sweep announces bounds the memory of its process from above, by at most a quarter."""

import ctypes
import json
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from bigkernel.config import settings
from bigkernel.engine import process
from bigkernel.engine.executor import most_partials
from bigkernel.engine.process import Resident, resident
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.statistics.moments import MomentStatistic

SWEEP = """
import json, os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import numpy as np
from bigkernel.engine.process import peak_bytes
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.moments import MomentStatistic

executor, m, d, run = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] or None
x = np.random.default_rng(0).standard_normal((8192, d), dtype=np.float32)
features = LandmarkMap(Gaussian(d**0.5), x[:m].astype(np.float64), np.dtype(np.float32))
swept = sweep(as_rows(x), MomentStatistic(features), client=executor, run=run)
print(json.dumps([swept.planned_bytes, peak_bytes(), swept.plan.partial_bytes, swept.plan.work_bytes]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="affinity and peaks need Linux")
@pytest.mark.parametrize("executor, m, d, run", [("threads", 300, 6000, ""), ("serial", 2200, 20, "run")])
def test_a_sweep_of_large_buffers_or_a_run_of_large_partials_takes_what_is_announced(executor, m, d, run, tmp_path):
    command = [sys.executable, "-c", SWEEP, executor, str(m), str(d), run and str(tmp_path / run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    announced, peak, partial, buffers = json.loads(done.stdout.splitlines()[-1])
    assert partial > max(2**25, buffers / 2) if run else buffers > 30_000_000 > 40 * partial  # merges, or rows decide
    assert peak <= announced <= 1.25 * peak


@pytest.mark.parametrize(
    ("segments", "threads", "most"), [(4, 1, 3), (16, 1, 5), (16, 2, 6), (2, 8, 2), (1, 2, 1), (0, 2, 0)]
)
def test_partials_that_wait_are_counted(segments, threads, most):
    assert most_partials(segments, threads) == most


@pytest.mark.parametrize("late", [0, 6, 15])
def test_threads_hold_no_more_partials_than_were_announced(monkeypatch, late):
    alive, counts, lock = set(), [], threading.Lock()

    class Counted(MomentStatistic):
        def zero(self):
            total = super().zero()
            with lock:
                alive.add(key := id(total["G"]))
                counts.append(len(alive))
            weakref.finalize(total["G"], alive.discard, key)
            return total

        def update(self, total, chunk):
            time.sleep(0.2 * (chunk.start == late * 64))  # others end meanwhile
            super().update(total, chunk)

    rows, statistic = as_rows(np.random.default_rng(0).normal(size=(16 * 64, 3))), Counted(IdentityMap(np.zeros(3)))
    chosen = settings(min_segments=16, block_rows=16)
    monkeypatch.setattr("bigkernel.engine.sweep.settings", lambda: chosen)
    monkeypatch.setattr("bigkernel.engine.sweep.processors", lambda: 2)
    assert len(plan_sweep(rows, statistic, chosen).segments) == 16
    assert float(sweep(rows, statistic, client="threads").total["n"][0]) == len(rows)
    assert 2 <= max(counts) <= most_partials(16, 2)


def test_the_resident_and_the_peak_memory_of_a_process_are_included_in_what_is_announced(monkeypatch):
    rows, statistic = as_rows(np.ones((64, 3))), MomentStatistic(IdentityMap(np.zeros(3)))
    announced = []
    for memory in (Resident(10**9, 10**9), Resident(2 * 10**9, 2 * 10**9), Resident(10**9, 10**10)):
        monkeypatch.setattr("bigkernel.engine.executor.resident", lambda memory=memory, **_: memory)
        announced.append(sweep(rows, statistic, client="serial").planned_bytes)
    assert 10**9 < announced[0] == announced[1] - 10**9
    assert announced[2] == 10**10


def test_memory_that_the_allocator_keeps_does_not_count_as_resident():
    before = resident().now
    kept = [np.ones(10_000) for _ in range(2000)]  # 160 MB in pieces that are not mapped alone
    assert resident().now > before + 150_000_000
    del kept
    assert resident().now < before + 50_000_000


def test_a_short_sweep_and_a_small_partial_do_not_wait_for_the_allocator(monkeypatch, tmp_path):
    loaded, library = [], ctypes.CDLL(None)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: loaded.append(name) or library)
    sweep(as_rows(np.ones((64, 3))), MomentStatistic(IdentityMap(np.zeros(3))), client="serial", run=tmp_path / "run")
    assert not loaded
    process.give_back()
    assert loaded
