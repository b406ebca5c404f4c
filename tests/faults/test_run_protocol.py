"""Search of all states of a run: from every state after a crash, a resume gives the same sum, bit for bit.

Driver, workers and run directory are the real code on a disk whose every write is a step (`crashing_disk`,
`run_protocol`). In every state: no segment reported as finished is computed again, none is counted twice, every receipt
has its partial result, and no partial file remains.
"""

import os
import random
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from run_protocol import explore, mortal_workers, world

slow = pytest.mark.slow


@pytest.fixture
def disk(tmp_path):
    """A directory in memory, if there is one: thousands of states are written to it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path / "disk"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield Path(memory) / "disk"


@pytest.mark.parametrize("segments, states", [(1, 30), pytest.param(3, 150, marks=slow)])
def test_a_resume_from_every_state_after_a_crash_gives_the_same_sum(disk, segments, states):
    with world(disk, segments) as machine:
        assert explore(machine, power=False) >= states


@pytest.mark.parametrize(
    "segments, most, states",
    [(2, 30, 30), pytest.param(1, None, 200, marks=slow), pytest.param(2, 600, 600, marks=slow)],
)
def test_a_resume_from_every_state_after_a_power_loss_gives_the_same_sum(disk, segments, most, states):
    with world(disk, segments) as machine:
        assert explore(machine, power=True, most=most) >= states


@pytest.mark.parametrize("count", [30, pytest.param(150, marks=slow)])
def test_workers_that_die_at_any_step_of_their_tasks_change_no_sum(disk, count):
    """Two die in every sweep: the second may die while it repeats the task of the first."""
    died = Counter()
    with world(disk, 2) as machine:
        for first, after in random.Random(7).sample(list(product(range(1, 90), range(1, 60))), count):
            machine.disk.restore({})
            machine.reported = set()
            with mortal_workers(machine, {first, first + after}) as deaths:
                bits = machine.drive()
            machine.require_valid(bits, ())
            died[len(deaths)] += 1
    assert died[2] > count / 2
