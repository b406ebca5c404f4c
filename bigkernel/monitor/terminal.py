"""Progress of a job on the terminal: a bar with rate and ETA where there is one, plain lines elsewhere.

Nothing is shown for the first half second, so that short sweeps stay silent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bigkernel.monitor import Event, Incident, Note, SegmentDone, Step, SweepEnded, SweepStarted, observe

_LINE_SECONDS = 10.0  # between plain lines
_QUIET_SECONDS = 0.5


class _Bar:
    """Draws the sweeps of a block, one after the other."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._rows = 0
        self._plan_rows = 1
        self._start = self._line = time.monotonic()
        self._flops = 0.0
        self._what = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, SweepStarted):
            self._what = event.what
            self._plan_rows, self._flops, self._rows = max(1, event.plan.n_rows), event.plan.flops, 0
            self._start = self._line = time.monotonic()
        elif isinstance(event, SegmentDone):
            self._rows += event.receipt.rows
            self._draw(self._rows, self._plan_rows, event.done, event.total, self._rate())
        elif isinstance(event, SweepEnded):
            self._close()
        elif isinstance(event, Incident):
            self._console.print(f"{self._what}: {event.text}", soft_wrap=True, highlight=False, markup=False)
        elif isinstance(event, Note):
            self._console.print(event.text, soft_wrap=True, highlight=False, markup=False)
        elif isinstance(event, Step):
            if event.done <= 1:
                self._start = self._line = time.monotonic()
            self._what = event.what
            self._draw(event.done, event.total, event.done, event.total, "")
            if event.done >= event.total:
                self._close()

    def _rate(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        gflops = self._flops * self._rows / self._plan_rows / seconds / 1e9
        return f"{self._rows / seconds:,.0f} rows/s {gflops:,.0f} GFLOP/s"

    def _draw(self, completed: int, of: int, done: int, total: int, rate: str) -> None:
        """`done` of `total` segments or solves, `completed` of `of` in the units of the bar."""
        if time.monotonic() - self._start < _QUIET_SECONDS:
            return
        if not self._console.is_terminal:
            if time.monotonic() - self._line > _LINE_SECONDS and done < total:
                self._line = time.monotonic()
                left = (self._line - self._start) * (of - completed) / max(1, completed)
                segments = f" segments, {rate}" if rate else ""
                self._console.print(f"{self._what}: {done} of {total}{segments}, {left:,.0f} s left", soft_wrap=True)
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[done]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[rate]}", style="dim"),
                console=self._console,
                transient=True,
                expand=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=of, done="", rate="")
        assert self._task is not None
        self._progress.update(self._task, completed=completed, done=f"{done}/{total}", rate=rate, refresh=True)

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None


@contextmanager
def progress(*, enabled: bool = True, stream: TextIO | None = None) -> Iterator[None]:
    """Show the progress of every sweep inside the block on `stream` (default: standard error)."""
    if not enabled:
        yield
        return
    bar = _Bar(Console(file=stream or sys.stderr))
    try:
        with observe(bar):
            yield
    finally:
        bar._close()


@contextmanager
def bar(
    what: str, *, enabled: bool = True, stream: TextIO | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar for work that is not a sweep: yields `update(done, total)`; total None where it is not known yet."""
    console = Console(file=stream or sys.stderr)
    if not enabled or not console.is_terminal:
        yield lambda done, total: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,} rows"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=True,
    ) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
