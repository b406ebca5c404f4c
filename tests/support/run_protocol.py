"""The protocol of runs on a `crashing_disk`: sweeps and workers that die at any step.

Driver, schedule, receipts, tasks, locks and file writes are the real ones. The codec of arrays is simpler (zarr takes
5 ms for a partial result), and a process is a thread or a call: it dies by an exception that is raised again at each
later step, so that nothing is cleaned up.
"""

import json
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from crashing_disk import Disk, known

from bigkernel.data import run_lock, zarr_arrays
from bigkernel.data.run_directory import Run
from bigkernel.data.zarr_arrays import publishing
from bigkernel.engine import executor
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import DataError
from bigkernel.events.job import SegmentDone, observe
from bigkernel.statistics.statistic import Statistic
from bigkernel.streaming.plan import Footprint, ancestors_of, leaf

CHUNK_ROWS = 64  # 1,024 bytes of two columns: the smallest chunk


class Ended(BaseException):
    """The process is dead."""


class ViolationError(AssertionError):
    """The protocol was broken."""


@dataclass(frozen=True)
class Sum(Statistic):
    """Σx, which shows the order of its terms."""

    computed: Any = None  # collects the first row of each segment

    def shapes(self):
        return {"sum": (2,)}

    def update(self, total, chunk):
        if self.computed is not None:
            self.computed.append(chunk.start)
        for block in chunk.blocks():
            total["sum"] += chunk.load(block, 2, np.float64).sum(axis=0)

    def footprint(self, block_rows):
        return Footprint(1.0, 16, 16)


def _publish(path, kind, arrays, attributes, *, overwrite=False):
    """Publish arrays without zarr."""
    with publishing(path, kind=kind, overwrite=overwrite) as scratch:
        scratch.joinpath(zarr_arrays.METADATA).write_text(
            json.dumps({"attributes": {zarr_arrays.ATTRIBUTE: {"kind": kind, **attributes}}})
        )
        for name, values in arrays.items():
            scratch.joinpath(name).mkdir()
            scratch.joinpath(name, zarr_arrays.METADATA).write_text(json.dumps({"shape": values.shape}))
            scratch.joinpath(name, "0").write_bytes(values.tobytes())


def _read_group(path, kind):
    """Read the arrays of `_publish`."""
    manifest = zarr_arrays.read_manifest(Path(path))
    arrays = {}
    for name, array in manifest.arrays.items():
        if zarr_arrays.chunks_digest(Path(path, name))[0] != array.chunks:
            raise DataError(f"{path}/{name}: other chunks than those that were published")
        arrays[name] = np.frombuffer(bytearray(Path(path, name, "0").read_bytes()))  # may be written, as those of zarr
    return arrays, {}


@dataclass
class World:
    """A machine with one run directory, and its drivers in order."""

    disk: Disk
    segments: int  # of the sweep
    reported: set[int] = field(default_factory=set)  # first rows of the segments reported as finished
    computed: list[int] = field(default_factory=list)  # first rows of the segments begun by the last driver
    generation: int = 0

    def __post_init__(self):
        signs = np.random.default_rng(5).normal(size=(self.segments * CHUNK_ROWS, 2))
        self._rows = as_rows(signs * 10.0 ** (np.arange(len(signs))[:, None] % 17 - 8))
        self.clean = self.digest(sweep(self._rows, Sum(), client="serial"))
        names = {leaf(i): CHUNK_ROWS * i for i in range(self.segments)}
        assert {receipt.start for receipt in sweep(self._rows, Sum(), client="serial").receipts} == set(names.values())

    def digest(self, swept):
        """Return the bits of a sum."""
        return zarr_arrays.digest(swept.total)

    @property
    def run(self):
        """The run directory."""
        return self.disk.root / "run"

    def drive(self):
        """Start a driver that resumes the run; return the bits of its result."""
        self.generation += 1
        self.computed.clear()

        def note(event):
            if isinstance(event, SegmentDone):
                self.reported.add(event.receipt.start)

        with observe(note):
            swept = sweep(self._rows, Sum(self.computed), client="serial", run=self.run, resume=True)
        return self.digest(swept)

    def require_valid(self, bits, done_before):
        """Check the result of a driver that started with these segments reported as finished."""
        if bits != self.clean:
            raise ViolationError("another sum")
        if again := set(self.computed) & set(done_before):
            raise ViolationError(f"segments at rows {sorted(again)} were finished, and were computed again")
        if left := [str(path) for path in self.run.rglob("*") if path.name.endswith((".partial", ".old"))]:
            raise ViolationError(f"half-written: {left}")
        if (self.run / run_lock.NAME).exists():
            raise ViolationError("the lock is still there")


@contextmanager
def world(root, segments):
    """Yield a world on `root` without delays and zarr."""
    with ExitStack() as stack:
        settings = {"chunk-bytes": 1024, "min-segments": segments, "monitor": False, "block-rows": 64}
        stack.enter_context(dask.config.set({f"bigkernel.{key}": value for key, value in settings.items()}))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(zarr_arrays, "publish", _publish)
        patch.setattr(zarr_arrays, "read_group", _read_group)
        patch.setattr(zarr_arrays.time, "sleep", lambda seconds: None)
        patch.setattr(run_lock.Lock, "_beat", lambda self: None)
        made = World(Disk(root), segments)
        # drivers share a process number, and the earlier ones are dead
        patch.setattr(run_lock, "_birth", lambda pid: str(made.generation))
        patch.setattr(Run, "usable", _honest(Run.usable))
        with made.disk.watched():
            yield made


def _honest(usable):
    """Wrap `Run.usable`: without damage no receipt may promise data that is missing."""

    def watched(self, merges, leaves):
        before = {path.stem for path in self.root.glob("receipts/*.json")}
        usable_nodes, damaged = usable(self, merges, leaves)
        above = ancestors_of(merges)
        lost = before - {path.stem for path in self.root.glob("receipts/*.json")}
        if broken := {node for node in lost if not {node, *above.get(node, ())} & set(usable_nodes)}:
            raise ViolationError(f"the receipts of {sorted(broken)} promised more than there was")
        return usable_nodes, damaged

    return watched


def explore(world, *, power, most=None):
    """Resume from every state that a crash at any step of any driver can leave; return the number of states.

    With `power`, data that was not synchronised may be lost; at most `most` states, None: all of them.
    """
    first = ({}, frozenset())
    queue, visited = deque([first]), {(known({}), frozenset[int]())}
    done = 0
    while queue and (most is None or done < most):
        image, reported = queue.popleft()
        done += 1
        world.disk.restore(image)
        world.reported = set(reported)

        def look(step, path):
            now = frozenset(world.reported)
            images = [world.disk.image(), *(world.disk.after_power_loss() if power else ())]
            for image in images:
                key = known(image), now
                if key not in visited:
                    visited.add(key)
                    queue.append((image, now))

        world.disk.hook = look
        bits = world.drive()
        world.disk.hook = lambda step, path: None
        world.require_valid(bits, reported)
        look("", "")
    return done


@contextmanager
def mortal_workers(world, dies_at):
    """Let workers die at these steps of their tasks, which others repeat; yield the deaths."""
    steps, dead, deaths = 0, False, list[int]()

    def hook(step, path):
        nonlocal steps, dead
        if working:
            steps += not dead
            if steps in dies_at and not dead:
                deaths.append(steps)
                dead = True
            if dead:
                raise Ended

    working = 0

    def surviving(task):
        def run(*arguments):
            nonlocal working, dead
            while True:
                try:
                    working += 1
                    return task(*arguments)
                except Ended:
                    dead = False
                finally:
                    working -= 1

        return run

    world.disk.hook = hook
    with pytest.MonkeyPatch.context() as patch:
        for name in ("run_segment", "merge"):
            patch.setattr(executor, name, surviving(getattr(executor, name)))
        yield deaths
    world.disk.hook = lambda step, path: None
