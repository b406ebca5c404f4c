"""The events of a job, frozen dataclasses that its driver emits and observers receive, and their plain messages.

A message is what travels to the scheduler, and what a line of the journal holds: a dict of JSON values with `kind`,
`job`, mostly `sweep`, and the fields of its event. The first pulse of a segment is "running". Besides those of events
there are the scheduler's own: "published", "released" and "failed", each with `node`.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bigkernel.streaming.merge_tree import Receipt
from bigkernel.streaming.plan import Plan

TOPIC = "bigkernel"  # of Dask's events: from drivers and workers to the scheduler
_LONGEST_TEXT = 2000


@dataclass(frozen=True)
class JobStarted:
    """A job begins: its title for people, and the run directory that it works in, or ""."""

    title: str
    run: str = ""


@dataclass(frozen=True)
class JobEnded:
    """A job has ended: `state` is "finished", "failed" or "interrupted"."""

    state: str
    error: str = ""


@dataclass(frozen=True)
class SweepStarted:
    """A sweep begins."""

    what: str
    executor: str  # "serial", "threads" or "dask"
    plan: Plan
    token: str = ""  # names it among all sweeps
    run: str = ""  # its run directory, or ""
    announced_bytes: int = 0  # planned peak of a worker process


@dataclass(frozen=True)
class Pulse:
    """A running segment tells how far it is: `rows` done by `worker` (0: it begins), and that process's peak memory.

    `seconds` are those of its stages so far.
    """

    node: str
    rows: int
    worker: str
    peak_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SegmentDone:
    """A segment is finished (`done` of `total`)."""

    receipt: Receipt
    done: int
    total: int


@dataclass(frozen=True)
class Receipted:
    """The receipt of a finished segment has come, where `SegmentDone` could not wait for it."""

    receipt: Receipt


@dataclass(frozen=True)
class Merged:
    """Two partial results were merged into those of a node of the tree."""

    node: str


@dataclass(frozen=True)
class SweepEnded:
    """A sweep has ended after `seconds`, its partials merged; or by an error, which is told.

    `stages` holds seconds of tasks that no segment has told (merge).
    """

    seconds: float
    error: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spent:
    """The driver spent `seconds` on a stage between sweeps (solve)."""

    stage: str
    seconds: float


@dataclass(frozen=True)
class Figures:
    """Results of a job that its report shows: plain data under a name ("fit", "score")."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """Work in the driver between sweeps: `done` of `total` pieces of `what` (solves); told at its begin and end too."""

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class Note:
    """A line for whoever watches: what comes next."""

    text: str


@dataclass(frozen=True)
class Incident:
    """Something went wrong and the job goes on.

    `kind` is "retry" (of input or output), "worker" (one was lost), "repeat" (a task was begun again) or "damage"
    (found in a run and computed again).
    """

    kind: str
    text: str
    worker: str = ""


_OfSweep = SweepStarted | Pulse | SegmentDone | Receipted | Merged | SweepEnded
Event = JobStarted | JobEnded | _OfSweep | Step | Spent | Figures | Note | Incident
Observer = Callable[[Event], None]


def message_of(event: Event, job: str, sweep: str) -> dict[str, Any]:
    """Make the message of an event of a job, whose latest sweep has the token `sweep`."""
    kind = re.sub(r"\B([A-Z])", r"_\1", type(event).__name__).lower()
    if isinstance(event, SegmentDone | Receipted):
        kind = "segment"
    elif isinstance(event, Pulse) and not event.rows:
        kind = "running"
    message: dict[str, Any] = {"kind": kind, "job": job, "sweep": sweep}
    if isinstance(event, JobStarted | SweepStarted):
        message |= {"host": socket.gethostname(), "pid": os.getpid()}
    for name, value in vars(event).items():
        if isinstance(value, Plan):
            message |= {"plan": value.summary(), "stops": [segment.stop for segment in value.segments]}
        elif isinstance(value, Receipt):
            message["receipt"] = value.to_json()
        elif name == "kind":
            message["incident"] = value
        else:
            message[name] = value[:_LONGEST_TEXT] if name in ("text", "error") else plain(value)
    return message


def plain(value: Any) -> Any:
    """Turn nested figures into what JSON knows; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
