"""What a task tells: of its process (name, memory, BLAS threads), and how far it is, here or through a scheduler."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psutil
from distributed import Worker, get_worker
from threadpoolctl import threadpool_info

from bigkernel.events.kinds import TOPIC, Pulse
from bigkernel.streaming.chunk import Chunk, Workspace

PULSE_SECONDS = 0.5  # between what a running segment tells of itself, and between two looks at it
WORTH_BYTES = 2**22  # of freed memory, from which on it is worth the time to give it back
FIRST_TASK_BYTES = 8_000_000  # of a process for its first task: modules, threads that read
TASK_BYTES = 12_000_000  # of every task: buffers that BLAS keeps whatever it multiplies, and freed memory that is kept
_MOST_SWEEPS = 4  # of one worker at a time; one more sends its pulses without a pause


def worker_name() -> str:
    """Return the address of the Dask worker, or host and process."""
    try:
        return str(get_worker().address)
    except ValueError:
        return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True)
class Resident:
    """Resident memory of a process, in bytes: `now`, and its `peak` so far."""

    now: int
    peak: int

    def base(self, tasks: int) -> int:
        """Return what the process holds beside the rows, buffers and sums of so many tasks."""
        return self.now + FIRST_TASK_BYTES + tasks * TASK_BYTES


def resident(*, trim: bool = True) -> Resident:
    """Measure this process; with `trim` without what its allocator keeps of freed memory."""
    if trim:
        give_back()
    return Resident(_status_bytes("VmRSS") or psutil.Process().memory_info().rss, peak_bytes())


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far."""
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(name: str) -> int:
    """Read a size that Linux tells of this process; 0 elsewhere."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def give_back(freed_bytes: int = WORTH_BYTES) -> None:
    """Have the allocator give freed memory back to the system, where it is that of the GNU library and is worth it.

    It looks at all that is free, which takes some 15 ms of a process that has run for a while.
    """
    if freed_bytes >= WORTH_BYTES:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def blas_threads() -> dict[str, int]:
    """Return the threads of every BLAS library loaded in this process."""
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def is_released() -> bool:
    """Tell if nobody waits any more for the Dask task that this thread runs; False outside of one."""
    try:
        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except ValueError:
        return False
    return task is None or task.state in ("cancelled", "released", "forgotten")


class PulseTeller:
    """Tells `heard` how far a segment is, now and then; stops for good if that fails.

    `work` counts blocks here, and has the seconds of the stages.
    """

    def __init__(self, heard: Callable[[Pulse], None] | None, node: str, work: Workspace) -> None:
        self._heard, self._node, self._worker, self._seconds = heard, node, worker_name(), work.seconds
        self._next, self._pause = 0.0, float(getattr(heard, "pause_seconds", PULSE_SECONDS))
        work.passed = self.count
        self._rows = self._stop = 0  # rows that are done, and those that will be with the chunk at hand

    def follow(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Pass chunks on, and tell at the beginning, after blocks and at the end."""
        self.count(0)
        for chunk in chunks:
            self._stop += len(chunk)
            yield chunk
            self._rows = self._stop
        self.count(0)

    def count(self, rows: int) -> None:
        """Count a block of the chunk, once where a statistic looks at it twice; tell, unless it was told just now."""
        self._rows = min(self._stop, self._rows + rows)
        if self._heard is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._pause
        try:
            self._heard(Pulse(self._node, self._rows, self._worker, peak_bytes(), dict(self._seconds)))
        except Exception:  # nobody hears it then
            self._heard = None


class _Outbox:
    """The latest pulse of each segment of a sweep on one worker, which leave together after a pause."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._next = 0.0

    def put(self, pulse: Pulse, token: str, pause_seconds: float) -> list[dict[str, Any]]:
        """Take a pulse; return the messages that leave now: none in the pause, but a begin where workers are few."""
        with self._lock:
            before = self._waiting.get(pulse.node)
            begins = not pulse.rows or (before is not None and before["kind"] == "running")  # nobody knows it yet
            message = {"kind": "running" if begins else "pulse", "sweep": token, **vars(pulse)}
            self._waiting[pulse.node] = message
            told_at_once = not pulse.rows and pause_seconds <= PULSE_SECONDS  # there are few workers
            if time.monotonic() < self._next and not told_at_once:
                return []
            self._next = time.monotonic() + pause_seconds
            messages, self._waiting = list(self._waiting.values()), {}
            return messages


_outboxes: WeakKeyDictionary[Worker, dict[str, _Outbox]] = WeakKeyDictionary()  # of the latest sweeps by their tokens


@dataclass(frozen=True)
class ToScheduler:
    """Hears the segments of a sweep on their workers and tells the scheduler, a worker at most once in a pause."""

    token: str
    pause_seconds: float = PULSE_SECONDS

    def __call__(self, pulse: Pulse) -> None:
        """Send what has gathered; it leaves with the worker's next heartbeat of messages, and nobody waits for it."""
        worker = get_worker()
        boxes = _outboxes.setdefault(worker, {})
        if self.token not in boxes and len(boxes) >= _MOST_SWEEPS:
            boxes.pop(next(iter(boxes)), None)
        messages = boxes.setdefault(self.token, _Outbox()).put(pulse, self.token, self.pause_seconds)
        if messages:
            worker.log_event(TOPIC, {"messages": messages})
