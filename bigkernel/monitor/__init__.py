"""What a running job tells whoever listens: events, and the observers that receive them.

A job emits events in the process that drives it. An observer is any callable of one event; an observer that raises
is dropped with one warning, for no observer may ever stop a job. Observers of a block (`observe`) hear what happens
inside it; sinks of a job (its journal, its scheduler) hear all of it.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from bigkernel.storage.run_directory import Receipt
from bigkernel.streaming.plan import Plan


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
    """A sweep begins.

    Attributes
    ----------
    what : what it is for
    executor : "serial", "threads" or "dask"
    plan : Plan
    token : names it among all sweeps
    run : its run directory, or ""
    announced_bytes : planned peak of a worker process
    calibrated : flops a second that its machines were measured to do together; 0: not measured
    """

    what: str
    executor: str
    plan: Plan
    token: str = ""
    run: str = ""
    announced_bytes: int = 0
    calibrated: float = 0.0


@dataclass(frozen=True)
class Pulse:
    """A running segment tells how far it is: `rows` done by `worker` (0: it begins), and that process's peak memory."""

    node: str
    rows: int
    worker: str
    peak_bytes: int = 0


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

    Attributes
    ----------
    kind : "retry" (of input or output), "worker" (one was lost), "repeat" (a task was begun again) or "damage" (found
        in a run and computed again)
    text : what happened, for people
    worker : which one, where it is about one
    """

    kind: str
    text: str
    worker: str = ""


Event = (
    JobStarted
    | JobEnded
    | SweepStarted
    | Pulse
    | SegmentDone
    | Receipted
    | Merged
    | SweepEnded
    | Step
    | Spent
    | Figures
    | Note
    | Incident
)
Observer = Callable[[Event], None]

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("bigkernel_observers", default=())


@dataclass
class Scope:
    """One job: its name, its latest sweep, and who hears all of it.

    Attributes
    ----------
    job : names it among all jobs
    sweep : token of the latest sweep
    sinks : by name, so that each is there once
    said : before the first sweep, for sinks that come later
    """

    job: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    sweep: str = ""
    sinks: dict[str, Observer] = field(default_factory=dict)
    said: list[Event] = field(default_factory=list)

    def add_sink(self, name: str, sink: Observer) -> None:
        """Let a sink hear the job, unless one of this name does; it is told what was said before the first sweep."""
        if name not in self.sinks:
            self.sinks[name] = sink
            for event in self.said:
                self._tell(name, event)

    def tell(self, event: Event) -> None:
        """Tell all sinks."""
        if not self.sweep:
            self.said.append(event)
        for name in tuple(self.sinks):
            self._tell(name, event)

    def _tell(self, name: str, event: Event) -> None:
        try:
            self.sinks[name](event)
        except Exception as error:
            _warn(error)
            self.drop(name)

    def close(self) -> None:
        """Nobody hears this job any more."""
        for name in tuple(self.sinks):
            self.drop(name)

    def drop(self, name: str, last: Event | None = None) -> None:
        """Close a sink, if it is there and can be closed, after a last event."""
        if last is not None and name in self.sinks:
            self._tell(name, last)
        sink = self.sinks.pop(name, None)
        try:
            getattr(sink, "close", lambda: None)()
        except Exception as error:
            _warn(error)


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
def job(title: str, run: str = "") -> Iterator[Scope]:
    """One job: the block. How it ends is told by the exception that leaves it."""
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
        scope.close()


def ending(error: BaseException | None) -> JobEnded:
    """How a job has ended that an exception has left, or none."""
    if isinstance(error, KeyboardInterrupt):
        return JobEnded("interrupted")
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return JobEnded("finished")
    return JobEnded("failed", f"{type(error).__name__}: {error}")


@contextmanager
def part_of_job(title: str) -> Iterator[Scope]:
    """The job of this context, of which the block is a part; where there is none, the block is a job."""
    scope = _scope.get()
    if scope is not None:
        yield scope
        return
    with job(title) as scope:
        yield scope


@contextmanager
def spent(stage: str) -> Iterator[None]:
    """Tell how long the block took."""
    start = time.perf_counter()
    yield
    emit(Spent(stage, time.perf_counter() - start))


def emit(event: Event) -> None:
    """Tell all observers, and the sinks of the job."""
    for observer in _observers.get():
        try:
            observer(event)
        except Exception as error:
            _observers.set(tuple(other for other in _observers.get() if other is not observer))
            _warn(error)
    scope = _scope.get()
    if scope is not None:
        scope.tell(event)


def _warn(error: Exception) -> None:
    warnings.warn(f"an observer of the job failed and is dropped: {error!r}", RuntimeWarning, stacklevel=3)
