"""Statistics for tests of the engine: sums whose bits depend on the order, and events during them.

Workers import them from here by name, so that they are plain data on the way.
"""

import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import LocalCluster

from bigkernel.data import zarr_arrays
from bigkernel.statistics.statistic import Statistic
from bigkernel.streaming.plan import NOT_COMPARED, Footprint


def bits(swept):
    return zarr_arrays.digest(swept.total)


@dataclass(frozen=True)
class Touch:
    """Appends the first row of every chunk to a file."""

    path: str

    def __call__(self, chunk):
        with open(self.path, "a") as file:
            file.write(f"{chunk.start}\n")

    def starts(self):
        """Return the rows in the file, sorted."""
        return sorted(map(int, Path(self.path).read_text().split())) if Path(self.path).exists() else []


@dataclass(frozen=True)
class Die:
    """Ends the process at the chunk that begins with row `start`; only once if a file is given to record it."""

    start: int
    once: str = ""

    def __call__(self, chunk):
        if chunk.start != self.start or (self.once and Path(self.once).exists()):
            return
        if self.once:
            Path(self.once).touch()
        os._exit(1)


@dataclass(frozen=True)
class Sleep:
    """Sleeps."""

    seconds: float

    def __call__(self, chunk):
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Hold:
    """Waits at chunks that begin at row `start` or later until the file `gate` is there, two minutes at most."""

    start: int
    gate: str

    def __call__(self, chunk):
        if chunk.start < self.start:
            return
        Path(f"{self.gate}.{os.getpid()}").touch()
        deadline = time.monotonic() + 120
        while not Path(self.gate).exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def holding(self):
        """Return the processes that have waited."""
        gate = Path(self.gate)
        return [int(path.suffix[1:]) for path in gate.parent.glob(f"{gate.name}.*")]


_begun = count(1)  # chunks of this process, counted by `Crash`


@dataclass(frozen=True)
class Crash:
    """Ends every process but one by a signal from a thread, shortly after it began its n-th chunk."""

    nth: int
    spared: int
    seconds: float = 0.05

    def __call__(self, chunk):
        if os.getpid() != self.spared and next(_begun) == self.nth:
            threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGSEGV)).start()


@dataclass(frozen=True)
class FailingDisk:
    """Raises OSError at row `start`, the first `times` times; attempts are counted in a file."""

    path: str
    start: int
    times: int

    def __call__(self, chunk):
        if chunk.start == self.start:
            Touch(self.path)(chunk)
            if len(Touch(self.path).starts()) <= self.times:
                raise OSError(5, "Input/output error")


@dataclass(frozen=True)
class DieUnless:
    """Ends the process at the chunk that begins with row `start` until the file `cure` exists."""

    start: int
    cure: str

    def __call__(self, chunk):
        if chunk.start == self.start and not Path(self.cure).exists():
            os._exit(1)


@dataclass(frozen=True)
class Devour:
    """Allocates unplanned memory in steps, and keeps it for a minute."""

    n_bytes: int

    def __call__(self, chunk):
        held = []
        for _ in range(self.n_bytes // 10**8):
            held.append(b"\1" * 10**8)
            time.sleep(0.05)
        time.sleep(60)  # the memory monitor may be late


@dataclass(frozen=True)
class Change:
    """Changes the corpus at `path` at the chunk that begins with row `at`: see `CHANGES`.

    `other` is a corpus of the same shape, `chunk` the number of the chunk that is meant; `gate` a file that is made
    once it is done, for `Hold`.
    """

    what: str
    path: str
    other: str
    at: int
    chunk: int
    gate: str = ""

    def __call__(self, chunk):
        if chunk.start == self.at:
            self.here()
            if self.gate:
                Path(self.gate).touch()

    def here(self):
        """Apply the change now."""
        CHANGES[self.what](Path(self.path), Path(self.other), self.chunk)


def _chunk_file(path, chunk):
    return path / "x" / "c" / str(chunk) / "0"


def _exchange(path, other, chunk):
    path.rename(path.with_name("gone"))
    other.rename(path)


def _swap(path, other, chunk):
    one, two, aside = _chunk_file(path, chunk), _chunk_file(path, chunk - 1), path.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


CHANGES = {
    "the store is removed": lambda path, other, chunk: shutil.rmtree(path),
    "a chunk is removed": lambda path, other, chunk: _chunk_file(path, chunk).unlink(),
    "a chunk is cut short": lambda path, other, chunk: os.truncate(_chunk_file(path, chunk), 20),
    "the store is exchanged": _exchange,
    "two chunks are swapped": _swap,
    "a chunk is written anew": lambda path, other, chunk: shutil.copy(
        _chunk_file(other, chunk), _chunk_file(path, chunk)
    ),
}


@dataclass(frozen=True)
class Both:
    """Several acts in order."""

    acts: tuple[Any, ...]

    def __call__(self, chunk):
        for act in self.acts:
            act(chunk)


@dataclass(frozen=True)
class Sums(Statistic):
    """Σx per column, and the number of rows; `act` is called with every chunk."""

    width: int
    act: Any = field(default=None, metadata=NOT_COMPARED)  # it changes no sum

    def shapes(self):
        return {"sum": (self.width,), "rows": (1,)}

    def update(self, total, chunk):
        if self.act is not None:
            self.act(chunk)
        for block in chunk.blocks():
            total["sum"] += chunk.load(block, self.width, np.float64).sum(axis=0)
        total["rows"] += len(chunk)

    def footprint(self, block_rows):
        return Footprint(float(self.width), self.partial_bytes, 8 * block_rows * self.width)


@dataclass(frozen=True)
class Bulky(Sums):
    """Sums with a long tail, so that partials need room."""

    tail: int = 100_000

    def zero(self):
        return {**super().zero(), "tail": np.random.default_rng(0).random(self.tail)}


def local_cluster(n_workers, *, processes=True):
    """Return a cluster of workers of one thread, on free ports of loopback, that hardly watch themselves.

    By default the monitoring of Dask takes a sixth of a processor while nothing runs.
    """
    with dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            "distributed.admin.tick.interval": "2s",
            "distributed.admin.system-monitor.interval": "10s",
            "distributed.worker.memory.monitor-interval": "1s",
        }
    ):
        return LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=processes,
            host="127.0.0.1" if processes else None,
            dashboard_address="127.0.0.1:0",
        )


def threads_kept():
    """Return the number of threads of this process, without those of zarr, whose number varies."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())
