"""The protocol of runs, searched: from every state that a crash can leave a resume ends in the same sum, bit for bit.

Driver, workers, run directory and locks are the real code on a disk whose every write is a step (`crashing_disk`,
`run_protocol`, `interleaved`). In every state: no segment that was told to be finished is computed again, none is
counted twice, no receipt promises more than there is, nothing half-written stays, one driver works at a time. `MUTANTS`
are changes of the real code that the search has to find.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from crashing_disk import Disk
from interleaved import Drivers, Turns, schedules
from run_protocol import Late, Violation, explore, mortal_workers, world

from bigkernel.data import atomic_write, run_lock, zarr_arrays
from bigkernel.data.run_directory import Run
from bigkernel.data.run_lock import Lock
from bigkernel.errors import BigKernelError

slow = pytest.mark.slow


@pytest.fixture
def place(tmp_path):
    """A directory in memory, where there is one: thousands of states are written to it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path / "disk"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield Path(memory) / "disk"


@pytest.mark.parametrize("segments, states", [(1, 30), (2, 70), pytest.param(3, 150, marks=slow)])
def test_from_every_state_that_a_crash_leaves_a_resume_ends_in_the_same_sum(place, segments, states):
    with world(place, segments) as machine:
        assert explore(machine, power=False) >= states


@pytest.mark.parametrize(
    "segments, most, states",
    [(2, 60, 60), pytest.param(1, None, 200, marks=slow), pytest.param(2, None, 1600, marks=slow)],
)
def test_from_every_state_that_a_loss_of_power_leaves_too(place, segments, most, states):
    with world(place, segments) as machine:
        assert explore(machine, power=True, most=most) >= states


def pairs(freezes, wakes, count, seed=7):
    """So many of the moments at which something happens, and at which something else does; None: all."""
    every = [(a, b) for a in freezes for b in wakes]
    return every if count is None else random.Random(seed).sample(every, count)


@pytest.mark.parametrize("count", [60, pytest.param(250, marks=slow)])
def test_workers_that_die_at_any_step_of_their_tasks_cost_nothing(place, count):
    """Two of them in every sweep: the second one may die while it does the task of the first again."""
    died = Counter()
    with world(place, 2) as machine:
        for first, after in pairs(range(1, 90), range(1, 60), count):
            machine.disk.restore({})
            machine.told = set()
            with mortal_workers(machine, {first, first + after}) as deaths:
                bits = machine.drive()
            machine.require_sound(bits, ())
            died[len(deaths)] += 1
    assert died[2] > count / 2


@pytest.mark.parametrize("count", [25, pytest.param(250, marks=slow)])
@pytest.mark.parametrize("dies", [True, False], ids=["its driver has died", "its driver lives"])
def test_a_worker_that_comes_late_changes_nothing(place, dies, count):
    froze = 0
    with world(place, 2) as machine:
        for freezes_at, wakes_at in pairs(range(1, 90), range(1, 110), count):
            machine.disk.restore({})
            machine.told = set()
            bits, afterwards = Late(machine, freezes_at, wakes_at, dies=dies).run()
            if bits:
                froze += 1
                assert (bits, afterwards) == (machine.clean, machine.clean), (freezes_at, wakes_at)
    assert froze > count / 2


# ---------------------------------------------------------------- two drivers


def left_by_nobody(root):
    """No lock."""


def left_by_a_dead_process(root, monkeypatch):
    """A lock whose holder was a process of this host."""
    Lock(root)._write()
    monkeypatch.setattr(run_lock, "_birth", lambda pid: "later")


def left_elsewhere(root, monkeypatch):
    """A lock of another host, that nobody has touched for long."""
    with monkeypatch.context() as patch:
        patch.setattr(run_lock.socket, "gethostname", lambda: "elsewhere")
        Lock(root)._write()
    old = os.stat(root).st_mtime - 1000
    os.utime(root / "lock.json", (old, old))


def test_two_drivers_never_work_at_once(place, monkeypatch):
    assert contest(place, monkeypatch, most=1)


@slow
def test_two_drivers_never_work_at_once_however_often_their_turns_change(place, monkeypatch):
    assert contest(place, monkeypatch, most=3) > 1000


def contest(place, monkeypatch, most):
    """The number of orders of the steps of two drivers; of one that held a lock for long, and its successor, too."""
    monkeypatch.setattr(run_lock.Lock, "_beat", lambda self: None)
    monkeypatch.setattr(run_lock.time, "sleep", lambda seconds: None)
    disk, count = Disk(place), 0
    with disk.watched():
        for leave in (None, left_by_a_dead_process, left_elsewhere, "a holder that was frozen"):
            steps = 16
            for changes in schedules(steps, most):
                disk.hook = lambda step, path: None
                disk.restore({})
                with monkeypatch.context() as patch:
                    held = None
                    if leave == "a holder that was frozen":
                        left_elsewhere(disk.root, patch)
                        held = Lock(disk.root)
                        held._token = re.search(r'"token": "(\w+)"', (disk.root / "lock.json").read_text())[1]
                    elif leave is not None:
                        leave(disk.root, patch)
                        patch.setattr(run_lock, "_birth", lambda pid: "later")
                    turns = Turns(disk, changes)
                    drivers = Drivers(turns, disk.root)
                    turns.run((lambda: drivers.go_on(held)) if held else drivers.work, drivers.work)  # noqa: B023
                assert drivers.worked + drivers.refused + drivers.robbed == 2
                assert drivers.worked >= 1
                assert held is not None or not drivers.robbed  # of whoever lives nothing is taken
                assert sorted(path.name for path in disk.root.iterdir()) == [".lock"]
                count += 1
    return count


# ---------------------------------------------------------------- what the search has to find


def receipt_first(monkeypatch):
    publish = zarr_arrays.publish

    def late(self, receipt, partial):
        monkeypatch.setattr(zarr_arrays, "publish", lambda *_, **__: None)
        receipt = real(self, receipt, partial)
        monkeypatch.setattr(zarr_arrays, "publish", publish)
        publish(self.root / "partials" / receipt.node, "partial", partial, {"digest": receipt.digest}, overwrite=True)
        return receipt

    real = Run.publish
    monkeypatch.setattr(Run, "publish", late)


def children_removed_first(monkeypatch):
    read = Run.partial

    def once(self, node, digest):
        values = read(self, node, digest)
        if node.startswith("0-"):
            self.discard(node)
        return values

    monkeypatch.setattr(Run, "partial", once)


def lock_in_place(monkeypatch):
    monkeypatch.setattr(run_lock, "write_json", lambda path, value: path.write_text(run_lock.json.dumps(value)))


def old_ones_stay(monkeypatch):
    sweep_up = Run.sweep_up

    def hiding(self):
        kept = [(path, path.rename(path.with_suffix(".kept"))) for path in self.root.glob("partials/.*.old")]
        sweep_up(self)
        for path, aside in kept:
            aside.rename(path)

    monkeypatch.setattr(Run, "sweep_up", hiding)


MUTANTS = {
    "a receipt is written before its partial": (receipt_first, False),
    "partials are removed before their sum is published": (children_removed_first, False),
    "a lock is written in place": (lock_in_place, False),
    "what was replaced is not swept up": (old_ones_stay, False),
    "files are not synchronised": (lambda patch: patch.setattr(atomic_write, "_sync", lambda root: None), True),
    "names are not synchronised": (
        lambda patch: patch.setattr(atomic_write, "_sync_directory", lambda path: None),
        True,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_search_finds(place, mutant):
    change, power = MUTANTS[mutant]
    with world(place, 2) as machine, pytest.MonkeyPatch.context() as patch:  # undone before the world is
        change(patch)
        with pytest.raises((Violation, BigKernelError)):
            explore(machine, power=power, most=400)


LOCKS = {
    "two that take a lock at once": ("_alone", lambda directory: nullcontext()),
    "a lock that is not looked at": ("require_free_lock", lambda directory: None),
}


@pytest.mark.parametrize("mutant", LOCKS)
def test_the_search_finds_among_locks(place, monkeypatch, mutant):
    monkeypatch.setattr(run_lock, *LOCKS[mutant])
    with pytest.raises((AssertionError, BigKernelError, OSError)):
        contest(place, monkeypatch, most=2)
