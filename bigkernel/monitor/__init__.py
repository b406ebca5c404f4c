"""What a running job tells whoever listens: events, and the observers that receive them.

A sweep emits events in the process that drives it. An observer is any callable of one event; an observer that raises
is dropped with one warning, for no observer may ever stop a job.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from bigkernel.plan import Plan
from bigkernel.runs import Receipt


@dataclass(frozen=True)
class SweepStarted:
    """A sweep begins: `what` it is for, by which executor, with which plan."""

    what: str
    executor: str
    plan: Plan


@dataclass(frozen=True)
class SegmentDone:
    """A segment is finished (`done` of `total`)."""

    receipt: Receipt
    done: int
    total: int


@dataclass(frozen=True)
class SweepEnded:
    """A sweep has ended after `seconds`, its partials merged."""

    seconds: float


@dataclass(frozen=True)
class Step:
    """Work in the driver between sweeps: `done` of `total` pieces of `what` (solves)."""

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
    """

    kind: str
    text: str


Event = SweepStarted | SegmentDone | SweepEnded | Step | Note | Incident
Observer = Callable[[Event], None]

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("bigkernel_observers", default=())


@contextmanager
def observe(*observers: Observer) -> Iterator[None]:
    """Send the events of every sweep inside the block to `observers`."""
    token = _observers.set((*_observers.get(), *observers))
    try:
        yield
    finally:
        _observers.reset(token)


def emit(event: Event) -> None:
    """Tell all observers."""
    for observer in _observers.get():
        try:
            observer(event)
        except Exception as error:
            _observers.set(tuple(other for other in _observers.get() if other is not observer))
            warnings.warn(f"an observer of the job failed and is dropped: {error!r}", RuntimeWarning, stacklevel=2)
