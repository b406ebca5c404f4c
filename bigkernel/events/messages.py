"""Events as plain messages: what travels to the scheduler, and what a line of the journal holds.

A message is a dict of JSON values: `kind`, `job`, mostly `sweep`, and the fields of its event. The first pulse of a
segment is "running". Besides those of events there are the scheduler's own: "published", "released" and "failed", each
with `node`.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from typing import Any

from bigkernel.data.run_directory import Receipt
from bigkernel.events import kinds as events
from bigkernel.events.kinds import Event
from bigkernel.events.scope import Scope
from bigkernel.streaming.plan import Plan

TOPIC = "bigkernel"  # of Dask's events: from drivers and workers to the scheduler
_LONGEST_TEXT = 2000

_KINDS: dict[type, str] = {
    events.JobStarted: "job_started",
    events.JobEnded: "job_ended",
    events.SweepStarted: "sweep_started",
    events.Pulse: "pulse",
    events.SegmentDone: "segment",
    events.Receipted: "segment",
    events.Merged: "merged",
    events.SweepEnded: "sweep_ended",
    events.Step: "step",
    events.Spent: "spent",
    events.Figures: "figures",
    events.Note: "note",
    events.Incident: "incident",
}


def message_of(event: Event, scope: Scope) -> dict[str, Any]:
    """Make the message of an event of a job."""
    kind = _KINDS[type(event)]
    if isinstance(event, events.Pulse) and not event.rows:
        kind = "running"
    message: dict[str, Any] = {"kind": kind, "job": scope.job, "sweep": scope.sweep}
    if kind in ("job_started", "sweep_started"):
        message |= {"host": socket.gethostname(), "pid": os.getpid()}
    for name, value in vars(event).items():
        if isinstance(value, Plan):
            message |= {"plan": value.summary(), "stops": [segment.stop for segment in value.segments]}
        elif isinstance(value, Receipt):
            message["receipt"] = value.to_json()
        elif name == "kind":
            message["incident"] = value
        elif name in ("text", "error"):
            message[name] = value[:_LONGEST_TEXT]
        else:
            message[name] = plain(value)
    return message


def plain(value: Any) -> Any:
    """Turn nested figures into what JSON knows; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
