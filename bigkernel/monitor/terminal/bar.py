"""Progress of a job on the terminal of its own process: a bar where there is one, plain lines elsewhere.

The figures are those of the job's books (`events.progress`), in the words of `monitor.terminal.live`.
Nothing is shown for the first half second, so that short sweeps stay silent.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bigkernel.data.visible import log_of, visible
from bigkernel.events.board import Board
from bigkernel.events.kinds import (
    Event,
    Incident,
    JobStarted,
    Merged,
    Note,
    Pulse,
    SegmentDone,
    Step,
    SweepEnded,
    SweepStarted,
)
from bigkernel.events.messages import message_of
from bigkernel.events.progress import Progress
from bigkernel.events.scope import Scope, observe
from bigkernel.monitor.format import left_of, quantity
from bigkernel.monitor.terminal.live import Part, ascii_letters, bar_line, done, merging, sentence, sweep_line

_LINE_SECONDS = 10.0  # between plain lines
_QUIET_SECONDS = 0.5
_REFRESHES = 4  # of the bar, a second
_log = log_of(__name__)


class _Screen:
    """One line that is drawn a few times a second, whatever comes how often; a `line` that fails ends it, once."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._failed = False

    def show(self, line: Callable[[int], Text]) -> None:
        """Draw `line(width)` from now on; called in a thread of its own."""

        def drawn() -> Text:
            if self._failed:
                return Text()
            try:
                text = line(self.console.width)
            except Exception as error:
                self._failed = True
                _log.warning("the bar is not shown any more: %s: %s", type(error).__name__, error)
                return Text()
            return ascii_letters(text) if self.console.options.ascii_only else text

        if self._live is None and not self._failed:
            live = Live(console=self.console, transient=True, refresh_per_second=_REFRESHES, get_renderable=drawn)
            live.start(refresh=True)
            self._live = live

    def close(self) -> None:
        """Clear the line."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class _Display:
    """Shows the sweeps of a block, one after the other, and what its driver does between them."""

    def __init__(self, console: Console) -> None:
        self._console, self._screen = console, _Screen(console)
        self._lock = threading.Lock()  # the line is drawn by another thread
        self._sweep: Progress | None = None
        self._board, self._scope = Board(), Scope()
        self._step: Step | None = None
        self._first = 0  # pieces that were done when the step was first heard of
        self._begun = self._line = self._stepped = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Incident | Note):
            self._print(event)
        if isinstance(event, SweepStarted):
            self._begin()
        with self._lock:
            self._record(event)
        if isinstance(event, SweepEnded):
            self.close()
        elif isinstance(event, Step):
            self._draw()
            if event.done >= event.total:
                self.close()
        elif isinstance(event, SegmentDone | Pulse | Merged):
            self._draw()

    def _begin(self) -> None:
        self.close()
        self._begun = self._line = time.monotonic()

    def _record(self, event: Event) -> None:
        """Take an event into the books: those of one sweep, so that they stay small in a long search."""
        now = time.monotonic()
        if isinstance(event, Step):
            if self._step is None or self._step.what != event.what or event.done < self._step.done:
                self._begun = self._line = now
                self._first = event.done
            self._step, self._stepped = event, now
        elif isinstance(event, SweepStarted):
            self._board, self._scope, self._step = Board(), Scope(sweep=event.token), None
            for each in (JobStarted(event.what), event):
                self._board.apply(message_of(each, self._scope), now)
            self._sweep = self._board.jobs[self._scope.job].sweeps[event.token]
        elif self._sweep is not None:
            self._board.apply(message_of(event, self._scope), now)

    def _print(self, event: Incident | Note) -> None:
        what = f"{self._sweep.what}: " if isinstance(event, Incident) and self._sweep is not None else ""
        text = visible(f"{what}{event.text}", lines=True)
        self._console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._begun < _QUIET_SECONDS:
            return
        if self._step is None and (self._sweep is None or self._sweep.ended is not None):
            return  # a pulse that comes late
        if self._console.is_terminal:
            self._screen.show(self._bar)
        elif now - self._line > _LINE_SECONDS and (words := self._words(now)):
            self._line = now
            self._console.print(words, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def _words(self, now: float) -> str:
        """Say for a log how far the work is; empty when it is done."""
        if self._step is not None:
            step, seconds = self._step, self._left(now)
            counted = f"{visible(step.what)}: {step.done:,} of {step.total:,}"
            return "" if step.done >= step.total else f"{counted}, {seconds}" if seconds else counted
        assert self._sweep is not None
        found = self._sweep.snapshot(now)
        return sentence(found) if done(found) < len(found["stops"]) or merging(found) else ""

    def _left(self, now: float) -> str:
        step = self._step
        if step is None or step.done <= self._first or step.done >= step.total:
            return ""
        each = (self._stepped - self._begun) / (step.done - self._first)
        return left_of(each * (step.total - step.done) - (now - self._stepped))

    def _bar(self, width: int) -> Text:
        now = time.monotonic()
        with self._lock:
            if self._step is not None:
                step = self._step
                parts = [Part(f"{step.done:,}/{step.total:,}", 0), Part(self._left(now), 1)]
                return bar_line(step.what, step.done / max(1, step.total), parts, width)
            return Text() if self._sweep is None else sweep_line(self._sweep.snapshot(now), width)

    def close(self) -> None:
        """Clear the bar."""
        self._screen.close()
        self._step = None


@contextmanager
def progress(*, enabled: bool = True, stream: TextIO | None = None) -> Iterator[None]:
    """Show the progress of every sweep inside the block on `stream` (default: standard error).

    On a terminal a bar of one line; elsewhere a plain line every ten seconds. Incidents and notes are lines above it.
    """
    if not enabled:
        yield
        return
    display = _Display(Console(file=stream or sys.stderr))
    try:
        with observe(display):
            yield
    finally:
        display.close()


@contextmanager
def bar(
    what: str, *, enabled: bool = True, stream: TextIO | None = None, unit: str = "rows"
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar for work that is not a sweep: yields `update(done, total)`; total None where it is not known yet.

    `unit` is what `done` and `total` count.
    """
    console = Console(file=stream or sys.stderr)
    if not enabled or not console.is_terminal:
        yield lambda done, total: None
        return
    begun, screen = time.monotonic(), _Screen(console)
    latest: tuple[int, int | None] = (0, None)

    def line(width: int) -> Text:
        count, total = latest
        seconds = time.monotonic() - begun
        counted = f"{count:,} {unit}" if total is None else f"{count:,}/{total:,} {unit}"
        rate = f"{quantity(count / max(seconds, 1e-9))} {unit}/s"
        remains = left_of(seconds * (total - count) / count) if total is not None and 0 < count < total else ""
        parts = [Part(counted, 0), Part(remains, 1), Part(rate, 2, "dim")]
        return bar_line(what, None if total is None else count / max(1, total), parts, width)

    def update(done: int, total: int | None) -> None:
        nonlocal latest
        latest = done, total
        screen.show(line)

    try:
        yield update
    finally:
        screen.close()
