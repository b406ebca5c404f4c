"""A job: the events that its driver emits, their receivers, and their form as plain messages.

`emit` sends an event to the observers of the context (`observe`: any callable of one event, for a block) and to the
sinks of the job (its journal, its scheduler), which receive all of it. One that raises is removed with one warning: no
observer may ever stop a job.

A message is what is sent to the scheduler, and a line of the journal: a dict of JSON values with `kind`, `job`, usually
`sweep`, and the fields of its event. The first pulse of a segment is "running". Besides those of events there are the
scheduler's own: "published", "released" and "failed", each with `node`.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bigkernel.data.visible import log_of
from bigkernel.streaming.plan import Plan, Receipt

Message: TypeAlias = dict[str, Any]  # JSON values, which the receiver checks
TOPIC = "bigkernel"  # topic of Dask's events: from drivers and workers to the scheduler
_LONGEST_TEXT = 2000
_log = log_of(__name__)


@dataclass(frozen=True)
class JobStarted:
    """A job begins: its title for people, and its run directory, or ""."""

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
    token: str = ""  # identifies it among all sweeps
    run: str = ""  # its run directory, or ""
    planned_bytes: int = 0  # planned peak of a worker process
    resumed: int = 0  # segments that its run holds already


@dataclass(frozen=True)
class Pulse:
    """Progress of a running segment: `rows` done by `worker` (0: it begins), and the peak memory of its process.

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
class Merged:
    """Two partial results were merged into those of a node of the tree."""

    node: str


@dataclass(frozen=True)
class SweepEnded:
    """A sweep has ended after `seconds`, with its partials merged, with an error, or `early`, for this reason.

    `stages` holds seconds of tasks not reported by any segment (merge).
    """

    seconds: float
    error: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)
    early: str = ""


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
    """Work in the driver between sweeps: `done` of `total` pieces of `what` (solves), including beginning and end."""

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class Note:
    """A line of information: what comes next."""

    text: str


@dataclass(frozen=True)
class Incident:
    """A fault after which the job continues.

    `kind` is "retry" (of input or output), "worker" (one was lost), "repeat" (a task was restarted) or "damage" (in a
    run, computed again).
    """

    kind: str
    text: str
    worker: str = ""


_OfSweep = SweepStarted | Pulse | SegmentDone | Merged | SweepEnded
Event = JobStarted | JobEnded | _OfSweep | Step | Spent | Figures | Note | Incident
Observer = Callable[[Event], None]


def message_of(event: Event, job: str, sweep: str) -> Message:
    """Return the message of an event of a job, whose latest sweep has the token `sweep`."""
    kind = re.sub(r"\B([A-Z])", r"_\1", type(event).__name__).lower()
    if isinstance(event, SegmentDone):
        kind = "segment"
    elif isinstance(event, Pulse) and not event.rows:
        kind = "running"
    message: Message = {"kind": kind, "job": job, "sweep": sweep}
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
            message[name] = value[:_LONGEST_TEXT] if name in ("text", "error", "early") else plain(value)
    return message


def plain(value: Any) -> Any:
    """Convert nested figures to JSON values; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass
class Scope:
    """One job: its id, the token of its latest sweep, and the sinks that receive all of it, by name.

    `early` holds the events before the first sweep, for sinks that are added later.
    """

    job: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    sweep: str = ""
    sinks: dict[str, Observer] = field(default_factory=dict)
    early: list[Event] = field(default_factory=list)

    def add_sink(self, name: str, sink: Observer) -> None:
        """Add a sink unless one of this name exists; it receives what was sent before the first sweep."""
        if name not in self.sinks:
            self.sinks[name] = sink
            for event in self.early:
                self._send(name, event)

    def _send(self, name: str, event: Event) -> None:
        try:
            if name in self.sinks:
                self.sinks[name](event)
        except Exception as error:
            _warn(error)
            self.drop(name)

    def drop(self, name: str, last: Event | None = None) -> None:
        """Remove a sink after a last event, and close it if possible."""
        if last is not None:
            self._send(name, last)
        try:
            getattr(self.sinks.pop(name, None), "close", lambda: None)()
        except Exception as error:
            _warn(error)


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("bigkernel_observers", default=())
_scope: ContextVar[Scope | None] = ContextVar("bigkernel_job", default=None)


@contextmanager
def observe(*observers: Observer) -> Iterator[None]:
    """Send the events of every sweep inside the block to `observers`."""
    token = _observers.set((*_observers.get(), *observers))
    try:
        yield
    finally:
        _observers.reset(token)


@contextmanager
def job(title: str, run: str = "", *, own: bool = False) -> Iterator[Scope]:
    """Run the block within the job of this context; if there is none, or with `own`, as a new job.

    An exception that leaves a job determines how it ends.
    """
    scope = _scope.get()
    if scope is not None and not own:
        yield scope
        return
    scope = Scope()
    token = _scope.set(scope)
    emit(JobStarted(title, run))
    try:
        yield scope
    except BaseException as error:
        emit(ending(error))
        raise
    else:
        emit(ending(None))
    finally:
        _scope.reset(token)
        for name in tuple(scope.sinks):
            scope.drop(name)


def ending(error: BaseException | None) -> JobEnded:
    """Return how a job ends after an exception, or without one."""
    if isinstance(error, KeyboardInterrupt):
        return JobEnded("interrupted")
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return JobEnded("finished")
    return JobEnded("failed", f"{type(error).__name__}: {error}")


@contextmanager
def spent(stage: str) -> Iterator[None]:
    """Emit the duration of the block."""
    start = time.perf_counter()
    yield
    emit(Spent(stage, time.perf_counter() - start))


def emit(event: Event) -> None:
    """Send an event to all observers and to the sinks of the job, and log it where that is of interest (INFO)."""
    if isinstance(event, Note | Incident):
        for line in event.text.splitlines():
            _log.info("%s", line)
    elif isinstance(event, SweepStarted):
        _log.info("%s: sweep of %s rows begins, on %s", event.what, f"{event.plan.n_rows:,}", event.executor)
    elif isinstance(event, SweepEnded):
        how = f"failed ({event.error})" if event.error else f"ended early ({event.early})" if event.early else "ended"
        _log.info("sweep %s after %.1f s", how, event.seconds)
    for observer in _observers.get():
        try:
            observer(event)
        except Exception as error:
            _observers.set(tuple(other for other in _observers.get() if other is not observer))
            _warn(error)
    scope = _scope.get()
    if scope is not None:
        if not scope.sweep:
            scope.early.append(event)
        for name in tuple(scope.sinks):
            scope._send(name, event)


def _warn(error: Exception) -> None:
    warnings.warn(f"dropping an observer of the job that failed: {error!r}", RuntimeWarning, stacklevel=3)
