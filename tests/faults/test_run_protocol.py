"""The protocol of runs, searched: from every state that a crash can leave a resume ends in the same sum, bit for bit.

Driver, workers and run directory are the real code on a disk whose every write is a step (`crashing_disk`,
`run_protocol`). In every state: no segment that was told to be finished is computed again, none is counted twice, no
receipt promises more than there is, nothing half-written stays.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from run_protocol import explore, mortal_workers, world

slow = pytest.mark.slow


@pytest.fixture
def place(tmp_path):
    """A directory in memory, where there is one: thousands of states are written to it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path / "disk"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield Path(memory) / "disk"


@pytest.mark.parametrize("segments, states", [(1, 30), pytest.param(3, 150, marks=slow)])
def test_from_every_state_that_a_crash_leaves_a_resume_ends_in_the_same_sum(place, segments, states):
    with world(place, segments) as machine:
        assert explore(machine, power=False) >= states


@pytest.mark.parametrize(
    "segments, most, states",
    [(2, 30, 30), pytest.param(1, None, 200, marks=slow), pytest.param(2, 600, 600, marks=slow)],
)
def test_from_every_state_that_a_loss_of_power_leaves_too(place, segments, most, states):
    with world(place, segments) as machine:
        assert explore(machine, power=True, most=most) >= states


def pairs(freezes, wakes, count, seed=7):
    """So many of the moments at which something happens, and at which something else does; None: all."""
    every = [(a, b) for a in freezes for b in wakes]
    return every if count is None else random.Random(seed).sample(every, count)


@pytest.mark.parametrize("count", [30, pytest.param(150, marks=slow)])
def test_workers_that_die_at_any_step_of_their_tasks_cost_nothing(place, count):
    """Two of them in every sweep: the second one may die while it does the task of the first again."""
    died = Counter()
    with world(place, 2) as machine:
        for first, after in pairs(range(1, 90), range(1, 60), count):
            machine.disk.restore({})
            machine.reported = set()
            with mortal_workers(machine, {first, first + after}) as deaths:
                bits = machine.drive()
            machine.require_valid(bits, ())
            died[len(deaths)] += 1
    assert died[2] > count / 2
