"""Memory is told in time: what a sweep announces is what its process takes, from none too little to a quarter more."""

import ctypes
import json
import subprocess
import sys
import threading
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


def told(executor, m, d, run=""):
    """(announced, peak, a partial, the buffers of a task) of a sweep in a process of its own, in bytes."""
    command = [sys.executable, "-c", SWEEP, executor, str(m), str(d), str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="affinity and peaks are asked of Linux")
def test_threads_take_what_is_announced_where_buffers_are_large():
    announced, peak, partial, buffers = told("threads", 300, 6000)
    assert buffers > 30_000_000 > 40 * partial
    assert peak <= announced <= 1.25 * peak


@pytest.mark.skipif(sys.platform != "linux", reason="affinity and peaks are asked of Linux")
def test_a_run_takes_what_is_announced_where_partials_are_large(tmp_path):
    announced, peak, partial, buffers = told("serial", 2200, 20, tmp_path / "run")
    assert partial > 2**25
    assert 3 * partial > partial + buffers  # merges decide
    assert peak <= announced <= 1.25 * peak


@pytest.mark.parametrize(
    ("segments", "threads", "most"), [(4, 1, 3), (16, 1, 5), (16, 2, 6), (2, 8, 2), (1, 2, 1), (0, 2, 0)]
)
def test_partials_that_wait_are_counted(segments, threads, most):
    assert most_partials(segments, threads) == most


class Counted(MomentStatistic):
    """Moments that know how many of their accumulators there are, and whose segments take different times."""

    alive: set[int]
    most: list[int]
    lock: threading.Lock
    slow: threading.Event

    def zero(self):
        total = super().zero()
        with self.lock:
            self.alive.add(key := id(total["G"]))
            self.most.append(len(self.alive))
        weakref.finalize(total["G"], self.alive.discard, key)
        return total

    def update(self, total, chunk):
        if chunk.start == self.first:
            self.slow.wait(0.2)  # others end meanwhile
        super().update(total, chunk)


@pytest.mark.parametrize("late", [0, 6, 15])
def test_threads_hold_no_more_partials_than_were_announced(monkeypatch, late):
    rows = as_rows(np.random.default_rng(0).normal(size=(16 * 64, 3)))
    statistic = Counted(IdentityMap(np.zeros(3)))
    for name, value in {
        "alive": set(),
        "most": [],
        "lock": threading.Lock(),
        "slow": threading.Event(),
        "first": late * 64,
    }.items():
        object.__setattr__(statistic, name, value)
    wanted = settings(min_segments=16, block_rows=16)
    monkeypatch.setattr("bigkernel.engine.sweep.settings", lambda: wanted)
    monkeypatch.setattr("bigkernel.engine.sweep.processors", lambda: 2)
    steps = plan_sweep(rows, statistic, wanted)
    assert len(steps.segments) == 16
    swept = sweep(rows, statistic, client="threads")
    assert float(swept.total["n"][0]) == len(rows)
    assert 2 <= max(statistic.most) <= most_partials(len(steps.segments), 2)


def test_what_a_process_holds_and_has_held_is_part_of_what_is_announced(monkeypatch):
    rows, statistic = as_rows(np.ones((64, 3))), MomentStatistic(IdentityMap(np.zeros(3)))
    told = []
    for found in (Resident(10**9, 10**9), Resident(2 * 10**9, 2 * 10**9), Resident(10**9, 10**10)):
        monkeypatch.setattr("bigkernel.engine.executor.resident", lambda found=found, **_: found)
        told.append(sweep(rows, statistic, client="serial").planned_bytes)
    assert told[0] > 10**9
    assert told[1] - told[0] == 10**9
    assert told[2] == 10**10


def test_memory_that_the_allocator_keeps_is_not_taken_for_what_a_process_holds():
    before = resident().now
    kept = [np.ones(10_000) for _ in range(2000)]  # 160 MB in pieces that are not mapped alone
    assert resident().now > before + 150_000_000
    del kept
    assert resident().now < before + 50_000_000


def test_a_short_sweep_and_a_small_partial_do_not_wait_for_the_allocator(monkeypatch, tmp_path):
    asked, library = [], ctypes.CDLL(None)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: asked.append(name) or library)
    sweep(as_rows(np.ones((64, 3))), MomentStatistic(IdentityMap(np.zeros(3))), client="serial", run=tmp_path / "run")
    assert not asked
    process.give_back()
    assert asked
