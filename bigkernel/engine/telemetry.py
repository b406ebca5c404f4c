"""Telemetry of running tasks: how far a segment is, told to the driver in this process or by way of the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from distributed import get_worker

from bigkernel.engine.process_probes import peak_bytes, worker_name
from bigkernel.monitor.events import Pulse
from bigkernel.monitor.transport.messages import TOPIC

PULSE_SECONDS = 0.5  # between what a running segment tells of itself, and between two looks at it


@dataclass(frozen=True)
class ToScheduler:
    """Hears the segments of a sweep on their workers, and tells the scheduler."""

    token: str

    def __call__(self, pulse: Pulse) -> None:
        """Send a message; it leaves with the worker's next heartbeat of messages, and nobody waits for it."""
        message = {"kind": "pulse" if pulse.rows else "running", "sweep": self.token, **vars(pulse)}
        get_worker().log_event(TOPIC, {"messages": [message]})


class PulseTeller:
    """Tells `heard` how far a segment is, now and then; stops for good if that fails."""

    def __init__(self, heard: Callable[[Pulse], None] | None, node: str) -> None:
        self._heard, self._node, self._worker = heard, node, worker_name()
        self._next = 0.0

    def tell(self, rows: int) -> None:
        """Tell that so many rows are done, unless it was told a moment ago."""
        if self._heard is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PULSE_SECONDS
        try:
            self._heard(Pulse(self._node, rows, self._worker, peak_bytes()))
        except Exception:  # nobody hears it then
            self._heard = None
