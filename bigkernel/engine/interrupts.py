"""The process of a command: how it begins quickly, and how it ends when it is asked to.

SIGTERM and Ctrl-C: a job keeps what it has finished, says what it still does, and ends in time.

SIGTERM becomes an exception, so that contexts end as they should. Python hears signals between two steps of its own:
what it calls may take minutes. So a thread hears them too, at once, and ends the process where the rest takes longer
than `LAST_SECONDS`; a run stands that as it stands a kill.

Importing the scientific stack makes hundreds of thousands of objects that stay, through which Python's collector of
cyclic garbage goes again and again: 0.6 s of a fit of 4.5 s. Only the process of a command asks for less of it, never
a host that imports us.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 75  # exit code: to be gone on with, whether Ctrl-C or SIGTERM asked
GRACE_SECONDS = 4.0  # after SIGTERM, for segments under way; or `bigkernel.grace-seconds`, if that is less
LAST_SECONDS = 9.0  # from SIGTERM, or a second Ctrl-C, to the end of the process
SEGMENT_THREADS = "bigkernel-segment"
_NEW_OBJECTS = 100_000  # while modules are imported, before the collector looks at the youngest; Python's number is 700
_usual: list[tuple[int, int, int]] = []


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""


def patience(error: BaseException, grace_seconds: float) -> float:
    """Return the seconds that segments under way have to finish after an error."""
    return min(GRACE_SECONDS, grace_seconds) if isinstance(error, Terminated) else grace_seconds


def tell_waiting(error: BaseException, segments: int, seconds: float) -> None:
    """Say what is waited for, where somebody asked the job to end and waits too."""
    if not segments or not isinstance(error, KeyboardInterrupt):
        return
    from bigkernel.events.job import Note, emit  # late: a command that only shows its help does without it

    what = f"finishing {segments} segment{'s' * (segments > 1)}"
    if isinstance(error, Terminated):
        emit(Note(f"{what} (at most {seconds:g} s)"))
    else:
        emit(Note(f"{what}; press Ctrl-C again to stop now"))


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in the block at the first SIGTERM; a second one ends the process at once.

    In the main thread only, and only where SIGTERM has its default meaning: otherwise nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    with _read_at_once():
        signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _read_at_once() -> Iterator[None]:
    """Let a thread hear every signal of the block as it comes."""
    here, there = socket.socketpair()
    there.setblocking(False)
    before = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_watch_signals, args=(here,), name="bigkernel-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        there.close()
        thread.join(1)


def _watch_signals(signals: socket.socket) -> None:
    """End the process `LAST_SECONDS` after SIGTERM or a second Ctrl-C, unless the block ends before."""
    interrupts, deadline = 0, float("inf")
    with signals:
        while True:
            left = deadline - time.monotonic()
            signals.settimeout(None if left == float("inf") else max(0.001, left))
            try:
                received = signals.recv(64)
            except TimeoutError:
                end_now(INTERRUPTED)
            if not received:
                return
            interrupts += received.count(signal.SIGINT)
            if signal.SIGTERM in received or interrupts > 1:
                deadline = min(deadline, time.monotonic() + LAST_SECONDS)


def leave(code: int) -> None:
    """End the process, without waiting for segments that are still at work in threads of it."""
    if any(thread.name.startswith(SEGMENT_THREADS) for thread in threading.enumerate()):
        end_now(code)
    sys.exit(code)


def end_now(code: int) -> None:
    """End the process as a kill does, but for what was said, and this code."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def collect_rarely() -> None:
    """Have new objects looked at a hundred times as seldom from now on, and none of them when the process ends."""
    if not _usual:
        _usual.append(gc.get_threshold())
        gc.set_threshold(_NEW_OBJECTS, *_usual[0][1:])
        atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Go back to Python's own pace, before there is data; what is there already stays, and is not looked at again."""
    if _usual:
        gc.freeze()
        gc.set_threshold(*_usual.pop())
