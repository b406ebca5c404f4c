"""Events as plain messages: what travels to the scheduler, and what a line of the journal holds.

A message is a dict of JSON values: `kind`, `job`, mostly `sweep`, and what `_BODIES` lists for its kind. The first
pulse of a segment is "running". Besides those of events there are the scheduler's own: "published", "released" and
"failed", each with `node`.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from bigkernel.events import kinds as events
from bigkernel.events.kinds import Event
from bigkernel.events.scope import Scope

TOPIC = "bigkernel"  # of Dask's events: from drivers and workers to the scheduler
_LONGEST_TEXT = 2000


def _sweep_started(event: events.SweepStarted) -> dict[str, Any]:
    return {
        "what": event.what,
        "executor": event.executor,
        "plan": event.plan.summary(),
        "stops": [segment.stop for segment in event.plan.segments],
        "run": event.run,
        "announced_bytes": event.announced_bytes,
        "calibrated": event.calibrated,
    }


_BODIES: dict[type, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    events.JobStarted: ("job_started", lambda e: {"title": e.title, "run": e.run}),
    events.JobEnded: ("job_ended", lambda e: {"state": e.state, "error": e.error[:_LONGEST_TEXT]}),
    events.SweepStarted: ("sweep_started", _sweep_started),
    events.Pulse: ("pulse", lambda e: vars(e).copy()),
    events.SegmentDone: ("segment", lambda e: {"receipt": e.receipt.to_json()}),
    events.Receipted: ("segment", lambda e: {"receipt": e.receipt.to_json()}),
    events.Merged: ("merged", lambda e: {"node": e.node}),
    events.SweepEnded: (
        "sweep_ended",
        lambda e: {"seconds": e.seconds, "error": e.error[:_LONGEST_TEXT], "stages": dict(e.stages)},
    ),
    events.Step: ("step", lambda e: {"what": e.what, "done": e.done, "total": e.total}),
    events.Spent: ("spent", lambda e: {"stage": e.stage, "seconds": e.seconds}),
    events.Figures: ("figures", lambda e: {"name": e.name, "values": plain(e.values)}),
    events.Note: ("note", lambda e: {"text": e.text[:_LONGEST_TEXT]}),
    events.Incident: (
        "incident",
        lambda e: {"incident": e.kind, "text": e.text[:_LONGEST_TEXT], "worker": e.worker},
    ),
}


def message_of(event: Event, scope: Scope) -> dict[str, Any]:
    """The message of an event of a job."""
    kind, body = _BODIES[type(event)]
    if isinstance(event, events.Pulse) and not event.rows:
        kind = "running"
    head: dict[str, Any] = {"kind": kind, "job": scope.job, "sweep": scope.sweep}
    if kind in ("job_started", "sweep_started"):
        head |= {"host": socket.gethostname(), "pid": os.getpid()}
    return {**head, **body(event)}


def plain(value: Any) -> Any:
    """Nested figures as what JSON knows; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
