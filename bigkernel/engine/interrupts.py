"""Fast start and orderly end of a command's process.

SIGTERM and Ctrl-C: a job keeps its finished work, reports what it waits for, and ends in time.

SIGTERM becomes an exception, so that contexts end properly. Python handles signals only between its own instructions,
and library calls may take minutes. So a thread receives them too, and ends the process if the rest takes longer than
`LAST_SECONDS`; a run survives this as it survives a kill.

Importing the scientific stack creates hundreds of thousands of permanent objects, which Python's cyclic garbage
collector visits again and again: 0.6 s of a fit of 4.5 s. Only the process of a command reduces that, never a program
that imports bigkernel.
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

INTERRUPTED = 75  # exit code of an interrupted, resumable command, by Ctrl-C or SIGTERM
GRACE_SECONDS = 4.0  # after SIGTERM, for running segments; or `bigkernel.grace-seconds`, if that is less
LAST_SECONDS = 9.0  # from SIGTERM, or a second Ctrl-C, to the end of the process
SEGMENT_THREADS = "bigkernel-segment"
_NEW_OBJECTS = 100_000  # threshold of the youngest generation while modules are imported; Python's default is 700
_usual: list[tuple[int, int, int]] = []


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def patience(error: BaseException, grace_seconds: float) -> float:
    """Return the seconds that running segments have to finish after an error."""
    return min(GRACE_SECONDS, grace_seconds) if isinstance(error, Terminated) else grace_seconds


def tell_waiting(error: BaseException, segments: int, seconds: float) -> None:
    """Report what is waited for, if a user interrupted the job and waits too."""
    if not segments or not isinstance(error, KeyboardInterrupt):
        return
    from bigkernel.events.job import Note, emit  # imported late: a command that only shows its help does not need it

    what = f"finishing {segments} segment{'s' * (segments > 1)}"
    if isinstance(error, Terminated):
        emit(Note(f"{what} (at most {seconds:g} s)"))
    else:
        emit(Note(f"{what}; press Ctrl-C again to stop now"))


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in the block at the first SIGTERM; a second one ends the process at once.

    Only in the main thread and if SIGTERM has its default handler; otherwise nothing changes.
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
    """Let a thread receive every signal during the block immediately."""
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
    """End the process `LAST_SECONDS` after SIGTERM or a second Ctrl-C, unless the block ends earlier."""
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
    """End the process without waiting for segments in its threads."""
    if any(thread.name.startswith(SEGMENT_THREADS) for thread in threading.enumerate()):
        end_now(code)
    sys.exit(code)


def end_now(code: int) -> None:
    """End the process as a kill does, after flushing its output, with this exit code."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def collect_rarely() -> None:
    """Make the garbage collector run a hundred times less often, and not at all when the process ends."""
    if not _usual:
        _usual.append(gc.get_threshold())
        gc.set_threshold(_NEW_OBJECTS, *_usual[0][1:])
        atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Restore Python's collection threshold before there is data; existing objects are never collected."""
    if _usual:
        gc.freeze()
        gc.set_threshold(*_usual.pop())
