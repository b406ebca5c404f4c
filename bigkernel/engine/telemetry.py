"""Telemetry of running tasks: how far a segment is, told to the driver in this process or by way of the scheduler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Worker, get_worker

from bigkernel.engine.process_probes import peak_bytes, worker_name
from bigkernel.events.kinds import TOPIC, Pulse

PULSE_SECONDS = 0.5  # between what a running segment tells of itself, and between two looks at it


class _Outbox:
    """The latest pulse of each segment of a sweep on one worker, which leave together after a pause."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._next = 0.0

    def put(self, pulse: Pulse, token: str, pause_seconds: float) -> list[dict[str, Any]]:
        """Take a pulse; the messages that leave now: none within the pause, but a begin where there are few workers."""
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
_MOST_SWEEPS = 4  # of one worker at a time; one more sends its pulses without a pause


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


class PulseTeller:
    """Tells `heard` how far a segment is, now and then; stops for good if that fails.

    `seconds` are those of its stages, read whenever something is told.
    """

    def __init__(self, heard: Callable[[Pulse], None] | None, node: str, seconds: Mapping[str, float]) -> None:
        self._heard, self._node, self._worker, self._seconds = heard, node, worker_name(), seconds
        self._next, self._pause = 0.0, float(getattr(heard, "pause_seconds", PULSE_SECONDS))
        self._rows = self._stop = 0  # rows that are done, and those that will be with the chunk at hand

    def enter(self, stop: int) -> None:
        """Begin a chunk, with which so many rows of the segment will be done; all before it is."""
        self._rows, self._stop = self._stop, stop

    def passed(self, rows: int) -> None:
        """Count a block of the chunk; a statistic that looks at blocks twice counts them once."""
        self._rows = min(self._stop, self._rows + rows)
        self.tell()

    def tell(self) -> None:
        """Tell how many rows are done, unless it was told a moment ago."""
        if self._heard is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._pause
        try:
            self._heard(Pulse(self._node, self._rows, self._worker, peak_bytes(), dict(self._seconds)))
        except Exception:  # nobody hears it then
            self._heard = None
