"""Telemetry of running tasks: how far a segment is, told to the driver in this process or by way of the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distributed import get_worker

from bigkernel.engine.process_probes import peak_bytes, worker_name
from bigkernel.monitor.events import Pulse
from bigkernel.monitor.transport.messages import TOPIC

PULSE_SECONDS = 0.5  # between what a running segment tells of itself, and between two looks at it


@dataclass(frozen=True)
class ToScheduler:
    """Hears the segments of a sweep on their workers, each after so long a pause, and tells the scheduler."""

    token: str
    pause_seconds: float = PULSE_SECONDS

    def __call__(self, pulse: Pulse) -> None:
        """Send a message; it leaves with the worker's next heartbeat of messages, and nobody waits for it."""
        message = {"kind": "pulse" if pulse.rows else "running", "sweep": self.token, **vars(pulse)}
        get_worker().log_event(TOPIC, {"messages": [message]})


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
