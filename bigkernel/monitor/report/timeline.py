"""The timeline of a job: its segments and merges by worker, over a time axis on which pauses are short.

Places along the axis are percentages of the width, so that a drawing fits every screen and its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from bigkernel.monitor.palette import SERIES
from bigkernel.monitor.report.rendering import draw

_PAUSE = 0.12  # of the time at work: a longer pause is drawn short
_PAUSE_PERCENT = 4.0
_TITLED = 4000  # rectangles that have texts of their own
_MOST_LANES = 240
_LABEL_PIXELS = 17  # least height of a lane whose worker is named
_NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True)
class Bar:
    """One piece of work: when (seconds since 1970), by whom, in which attempt (0 first), and what it says."""

    start: float
    stop: float
    worker: str
    attempt: int = 0
    text: str = ""
    thin: bool = False
    again: bool = False


@dataclass(frozen=True)
class Axis:
    """Seconds since 1970 → percent of the width. `spans` are the times at work; what lies between is drawn short."""

    spans: tuple[tuple[float, float], ...]
    _edges: tuple[tuple[float, float], ...] = field(init=False)  # percent of the spans

    def __post_init__(self) -> None:
        pauses = len(self.spans) - 1
        short = min(_PAUSE_PERCENT, 30 / max(1, pauses))
        work = sum(stop - start for start, stop in self.spans)
        place, edges = 0.0, []
        for start, stop in self.spans:
            width = (100 - short * pauses) * (stop - start) / max(work, 1e-9)
            edges.append((place, place + width))
            place += width + short
        object.__setattr__(self, "_edges", tuple(edges))

    @classmethod
    def over(cls, intervals: Iterable[tuple[float, float]]) -> Axis:
        """The axis of all these times."""
        ordered = sorted((start, max(start, stop)) for start, stop in intervals)
        merged: list[list[float]] = []
        work = 0.0
        for start, stop in ordered:
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], stop)
            else:
                merged.append([start, stop])
        work = sum(stop - start for start, stop in merged)
        joined: list[list[float]] = []
        for start, stop in merged:
            if joined and start - joined[-1][1] <= max(_PAUSE * work, 1.0):
                joined[-1][1] = stop
            else:
                joined.append([start, stop])
        if not joined:
            joined = [[0.0, 1.0]]
        joined[-1][1] = max(joined[-1][1], joined[-1][0] + 1e-3)
        return cls(tuple((start, stop) for start, stop in joined))

    def at(self, time: float) -> float:
        """Return the place of a moment, in percent."""
        for (start, stop), (left, right) in zip(self.spans, self._edges, strict=True):
            if time <= stop:
                return left + (right - left) * max(0.0, time - start) / max(stop - start, 1e-9)
        return 100.0

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Places and texts: seconds or minutes at work since the beginning of each span."""
        work = sum(stop - start for start, stop in self.spans)
        step = next((float(nice) for nice in _NICE if work / nice <= most), 86400.0 * math.ceil(work / 86400 / most))
        if work < 4:
            step = 10 ** math.floor(math.log10(max(work / 2, 1e-3)))
            step *= next(factor for factor in (1, 2, 5, 10) if work / step / factor <= most)
        found: list[tuple[float, str]] = []
        before = 0.0
        for start, stop in self.spans:
            first = math.ceil(before / step - 1e-9)
            last = math.floor((before + stop - start) / step + 1e-9)
            for number in range(first, last + 1):
                place = self.at(start + number * step - before)
                if place < 97 and (not found or place - found[-1][0] > 60 / most):
                    found.append((place, _tick(number * step, step)))
            before += stop - start
        return found

    def pauses(self) -> list[tuple[float, float, float]]:
        """Left and right edge in percent of every pause, and its seconds."""
        pairs = zip(self._edges[:-1], self._edges[1:], self.spans[:-1], self.spans[1:], strict=True)
        return [(left[1], right[0], after[0] - before[1]) for left, right, before, after in pairs]


def _tick(seconds: float, step: float) -> str:
    unit, name = (1.0, "s") if step < 60 else (60.0, "min") if step < 3600 else (3600.0, "h")
    return f"{seconds / unit:g} {name}" if seconds else "0"


def lanes_of(bars: Sequence[Bar]) -> list[tuple[str, list[list[Bar]]]]:
    """Bars by worker, in the order of their first, each worker's in as few rows as do not overlap."""
    workers: dict[str, list[list[Bar]]] = {}
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.stop)):
        rows = workers.setdefault(bar.worker, [])
        for row in rows:
            # clocks of workers are a few milliseconds apart from what they measured
            if row[-1].stop <= bar.start + 0.02 * max(0.1, row[-1].stop - row[-1].start):
                row.append(bar)
                break
        else:
            rows.append([bar])
    return list(workers.items())


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Addresses without their protocol, and without the host where all have the same one."""
    plain = {name: name.split("://")[-1] for name in names}
    hosts = {text.rpartition(":")[0] for text in plain.values()}
    if len(hosts) == 1 and len(names) > 1:
        return {name: f":{text.rpartition(':')[2]}" for name, text in plain.items()}
    return {name: text if len(text) <= 22 else f"…{text[-21:]}" for name, text in plain.items()}


def timeline(bars: Sequence[Bar], axis: Axis) -> Markup:
    """Draw segments and merges (thinner) by worker, coloured by attempt."""
    lanes = lanes_of(bars)
    everything = sum(len(each) for _, each in lanes)
    most_of_one = max(1, _MOST_LANES // max(1, len(lanes))) if everything > _MOST_LANES else everything
    lanes = [(worker, each[:most_of_one]) for worker, each in lanes[:_MOST_LANES]]
    rows = sum(len(each) for _, each in lanes)
    pitch = 22 if rows <= 12 else 17 if rows <= 24 else 9 if rows <= 60 else 6 if rows <= 120 else 4
    names = short_names([worker for worker, _ in lanes])
    shown: list[_Rectangle] = []
    labels, top = [], 4
    for worker, each in lanes:
        if pitch >= _LABEL_PIXELS:
            labels.append((top + pitch * len(each) / 2 + 4, names[worker]))
        for row in each:
            shown += _rectangles(row, axis, top, pitch - max(1, pitch // 5), titled=len(bars) <= _TITLED)
            top += pitch
    return draw(
        "timeline",
        axis=axis,
        height=top + 4,
        bars=shown,
        names=labels,
        name_width=f"{7.2 * max(map(len, names.values()), default=0):.0f}",
        more=f"{rows:,} of {everything:,} rows of the timeline are drawn." if rows < everything else "",
    )


_Rectangle = tuple[str, float, float, str, str, str]  # class; left and width in percent; top and height; its text


def _rectangles(row: list[Bar], axis: Axis, top: float, height: float, *, titled: bool) -> list[_Rectangle]:
    """The rectangles of one row; beyond a few thousand in the drawing, without texts and joined where they touch."""
    found: list[_Rectangle] = []
    last: tuple[float, float, str] | None = None
    for bar in row:
        left = axis.at(bar.start)
        width = max(0.06, axis.at(bar.stop) - left)
        kind = f"c{bar.attempt % len(SERIES)}" + (" again" if bar.again else "")
        y, thick = (top + height * 0.34, height * 0.32) if bar.thin else (top, height)
        if not titled and last is not None and last[2] == kind and left - last[1] < 0.06:
            found.pop()
            left, width = last[0], max(last[1], left + width) - last[0]
        last = left, left + width, kind
        gap = 0.04 if width > 0.3 else 0.0
        found.append((kind, left, width - gap, f"{y:.4g}", f"{thick:.3g}", bar.text if titled else ""))
    return found
