"""Progress of a job in its own process: a bar in terminals and notebooks, plain lines elsewhere.

Nothing is shown for the first half second, or two seconds of a fit in Python, so that short jobs stay silent.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bigkernel.data.visible import log_of, visible
from bigkernel.events import job
from bigkernel.events.board import Board, Job
from bigkernel.events.progress import Progress
from bigkernel.monitor.terminal import live as lines

_LINE_SECONDS = 10.0  # seconds between plain lines
_QUIET_SECONDS = 0.5
_REFRESHES = 4  # updates of the bar per second
_log = log_of(__name__)


class _Display:
    """Shows the sweeps of a block one after the other, and what its driver does between them."""

    def __init__(self, console: Console, quiet: float, *, notes: bool) -> None:
        self._console, self._quiet, self._notes = console, quiet, notes
        self._cell: Any = None  # the line in a notebook
        self._live: Live | None = None
        self._failed = False
        self._lock = threading.Lock()  # the line is drawn by another thread
        self._begun = self._printed = time.monotonic()
        self._record(job.JobStarted(""))

    def __call__(self, event: job.Event) -> None:
        if isinstance(event, job.Incident | job.Note):
            what = f"{self._sweep.what}: " if isinstance(event, job.Incident) and self._sweep is not None else ""
            if self._notes or isinstance(event, job.Incident):
                self._print(f"{what}{event.text}")
        with self._lock:
            self._record(event)
        over = isinstance(event, job.SweepEnded) or (isinstance(event, job.Step) and event.done >= event.total)
        if over:
            self.close()
        elif self._job.step is not None or (self._sweep is not None and self._sweep.ended is None):
            self._draw()

    def _record(self, event: job.Event) -> None:
        if isinstance(event, job.JobStarted):
            self._board, self._scope = Board(), job.Scope()
        elif isinstance(event, job.SweepStarted):
            self._scope.sweep = event.token
        self._board.apply(job.message_of(event, self._scope.job, self._scope.sweep), time.monotonic())

    @property
    def _job(self) -> Job:
        return self._board.jobs[self._scope.job]

    @property
    def _sweep(self) -> Progress | None:
        return self._job.sweeps.get(self._scope.sweep)

    def _print(self, text: str) -> None:
        shown = visible(text, lines=True)
        self._console.print(shown, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._begun < self._quiet:
            return
        if self._console.is_terminal:
            if self._live is None and not self._failed:
                live = Live(
                    console=self._console, transient=True, refresh_per_second=_REFRESHES, get_renderable=self._bar
                )
                live.start(refresh=True)
                self._live = live
        elif "ipykernel" in sys.modules:
            if now - self._printed > 1 / _REFRESHES:
                self._printed = now
                self._show_in_cell(self._sentence(now))
        elif now - self._printed > _LINE_SECONDS:
            self._printed = now
            self._print(self._sentence(now))

    def _show_in_cell(self, text: str) -> None:
        """Show a line in the output of the notebook's cell, in place of the one before."""
        data = {"text/plain": visible(text)}
        if self._cell is None:
            self._cell = sys.modules["IPython.display"].display(data, raw=True, display_id=True)
        else:
            self._cell.update(data, raw=True)

    def _sentence(self, now: float) -> str:
        shown = self._job.progress(now)
        if shown["step"] is not None:
            return lines.step_sentence(shown)
        return "" if self._sweep is None else lines.sentence(shown, self._sweep.snapshot(now))

    def _bar(self) -> RenderableType:
        """Draw the line in a separate thread; after a failure, which is logged once, it stops."""
        try:
            with self._lock:
                now, width = time.monotonic(), self._console.width
                shown, sweep = self._job.progress(now), self._sweep
                if not self._failed and shown["step"] is not None:
                    return lines.step_bar(shown, width)
                if not self._failed and sweep is not None:
                    return lines.sweep_bar(shown, sweep.snapshot(now), width)
                return ""
        except Exception as error:
            self._failed = True
            _log.warning("progress bar disabled: %s: %s", type(error).__name__, error)
            return ""

    def close(self) -> None:
        """Clear the bar."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._cell is not None:
            self._show_in_cell("")


@contextmanager
def progress(*, enabled: bool = True, stream: TextIO | None = None, verbose: int | None = None) -> Iterator[None]:
    """Show the progress of every sweep inside the block on `stream` (default: standard error).

    In terminals and notebooks a bar of one line; elsewhere a plain line every ten seconds. Incidents and notes are
    lines above it. `verbose` is the parameter of an estimator: 1 shows nothing for two seconds, and no notes.
    """
    if not enabled:
        yield
        return
    brief = verbose == 1
    display = _Display(Console(file=stream or sys.stderr), 2.0 if brief else _QUIET_SECONDS, notes=not brief)
    try:
        with job.observe(display):
            yield
    finally:
        display.close()


@contextmanager
def bar(
    what: str, *, enabled: bool = True, stream: TextIO | None = None, unit: str = "rows"
) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar for work other than sweeps: yields `update(done, total)`; total None if not known yet.

    `unit` is what `done` and `total` count.
    """
    console = Console(file=stream or sys.stderr)
    if not enabled or not console.is_terminal:
        yield lambda done, total: None
        return
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(None), "{task.completed:,.0f}", unit, TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, expand=True) as shown:
        task = shown.add_task(visible(what), total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
