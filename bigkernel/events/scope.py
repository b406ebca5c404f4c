"""Jobs, and who hears them: `emit` sends an event to the observers of the context and to the sinks of its job.

A job emits events in the process that drives it. An observer is any callable of one event; an observer that raises
is dropped with one warning, for no observer may ever stop a job. Observers of a block (`observe`) hear what happens
inside it; sinks of a job (its journal, its scheduler) hear all of it.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from bigkernel.events.kinds import Event, JobEnded, JobStarted, Observer, Spent


@dataclass
class Scope:
    """One job: its name among all jobs, the token of its latest sweep, and the sinks that hear all of it, by name.

    `early` holds the events before the first sweep, for sinks that come later.
    """

    job: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    sweep: str = ""
    sinks: dict[str, Observer] = field(default_factory=dict)
    early: list[Event] = field(default_factory=list)

    def add_sink(self, name: str, sink: Observer) -> None:
        """Let a sink hear the job, unless one of this name does; it receives what was sent before the first sweep."""
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
        """Close a sink, if it is there and can be closed, after a last event."""
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
def job(title: str, run: str = "") -> Iterator[Scope]:
    """Make the block one job; an exception that leaves it tells how the job ends."""
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
    """Return the end of a job that an exception has left, or none."""
    if isinstance(error, KeyboardInterrupt):
        return JobEnded("interrupted")
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return JobEnded("finished")
    return JobEnded("failed", f"{type(error).__name__}: {error}")


@contextmanager
def part_of_job(title: str) -> Iterator[Scope]:
    """Make the block a part of the job of this context; where there is none, a job of its own."""
    scope = _scope.get()
    if scope is not None:
        yield scope
        return
    with job(title) as scope:
        yield scope


@contextmanager
def spent(stage: str) -> Iterator[None]:
    """Emit how long the block took."""
    start = time.perf_counter()
    yield
    emit(Spent(stage, time.perf_counter() - start))


def emit(event: Event) -> None:
    """Send an event to all observers, and to the sinks of the job."""
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
    warnings.warn(f"an observer of the job failed and is dropped: {error!r}", RuntimeWarning, stacklevel=3)
