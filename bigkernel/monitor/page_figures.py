"""The drawings of the page: the map of the rows, the rate, the time of the stages, the memory of the workers.

Each is a part with a Bokeh `root`, shown where the template embeds its name, and `update(state, job, sweep)`, which
sends the browser what has changed. Colours are roles ("ink", "running", …): `paints` lists which property of which
model has which role, and `page.js` sets them from the colours of `page.css`, for light and for dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from typing import Any, Literal, Protocol

from bokeh.models import (
    AdaptiveTicker,
    Axis,
    BasicTicker,
    CategoricalColorMapper,
    ColumnDataSource,
    FactorRange,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from bigkernel.monitor.page_facts import compact, duration, percent, size
from bigkernel.monitor.progress import STATES

State = Mapping[str, Any]
Paints = list[tuple[Any, str, str]]
_LONGEST_HISTORY = 240  # points of a rate that a snapshot keeps
_ASPECT = 5.0  # of the map: cells a line for one line
_HEIGHT = 212
_STAGES = ("landmarks", "read", "convert", "block", "exp", "gram", "add", "merge", "solve")
_EDGES = ("left", "right", "top", "bottom")
_LOWEST, _TALLEST, _MAP_HEIGHT, _MAP_WIDTH = 10.0, 30.0, 200.0, 1100.0  # pixels of a cell, and of all of them


class Part(Protocol):
    """A part of the page that may fail by itself."""

    name: str

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Show this sweep of this job."""


def replace(source: ColumnDataSource, data: dict[str, Any]) -> bool:
    """Give a source other data, if they are others; whether they were."""
    if dict(source.data) == data:
        return False
    source.data = data
    return True


def _figure(name: str, **options: Any) -> Any:
    """An empty drawing of the page, which leaves pan, zoom and logo away."""
    plot = figure(
        name=name,
        tools="",
        toolbar_location=None,
        sizing_mode="stretch_width",
        min_border=4,
        **({"height": _HEIGHT} | options),
    )
    plot.outline_line_color = plot.background_fill_color = plot.border_fill_color = None
    plot.xgrid.grid_line_color = None
    plot.axis.minor_tick_line_color = None
    plot.axis.major_tick_in = 0
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_font_size = plot.axis.major_label_text_font_size = "12px"
    return plot


def _frame_paints(plot: Any) -> Paints:
    """The roles of axes and grids."""
    paints: Paints = [(grid, "grid_line_color", "line") for grid in plot.ygrid]
    for axis in plot.select(type=Axis):
        paints += [(axis, "axis_line_color", "line"), (axis, "major_tick_line_color", "line")]
        paints += [(axis, "major_label_text_color", "soft"), (axis, "axis_label_text_color", "soft")]
    return paints


def _hover(renderer: Any, *lines: tuple[str, str], mode: Literal["mouse", "vline"] = "mouse") -> HoverTool:
    """What a mark says under the pointer, or above it and below it ("vline"); Bokeh escapes the fields."""
    rows = "".join(f"<div><span>{label}</span> <b>{field}</b></div>" for label, field in lines)
    style = (
        "font: 12px Helvetica, Arial, sans-serif; line-height: 1.5; margin: -5px; padding: 6px 10px; "
        "color: var(--ink); background: var(--ground)"
    )
    return HoverTool(renderers=[renderer], mode=mode, tooltips=f'<div style="{style}">{rows}</div>')


class RowMap:
    """Every segment as a cell, in lines from left to right, coloured by its state; running ones fill from the left."""

    name = "map"

    def __init__(self) -> None:
        self._stops: Sequence[int] = ()
        self._columns, self._gap = 1, (0.0, 0.0)
        cells = (*_EDGES, "state", "rows", "worker", "attempts")
        self._cells = ColumnDataSource({column: [] for column in cells})
        self._parts = ColumnDataSource({column: [] for column in (*_EDGES, "state")})
        self._resumed = ColumnDataSource({"x": [], "y": []})
        factors = list(STATES.values())
        self._mapper = CategoricalColorMapper(factors=factors, palette=["#888888"] * len(factors))
        self._fills = CategoricalColorMapper(factors=["running", "retried"], palette=["#888888"] * 2)
        self.root = _figure(
            self.name,
            x_range=Range1d(start=0, end=1),
            y_range=Range1d(start=1, end=0),
            y_axis_label="first row",
            min_border_left=64,
        )
        self.root.xaxis.visible = False
        self.root.ygrid.grid_line_color = None
        self.root.yaxis.axis_line_color = self.root.yaxis.major_tick_line_color = None
        edges = {edge: edge for edge in _EDGES}
        drawn = self.root.quad(
            **edges, source=self._cells, fill_color={"field": "state", "transform": self._mapper}, line_color=None
        )
        self.root.quad(
            **edges, source=self._parts, fill_color={"field": "state", "transform": self._fills}, line_color=None
        )
        dots = self.root.scatter("x", "y", source=self._resumed, size=4, line_color=None)
        self.root.add_tools(
            _hover(drawn, ("rows", "@rows"), ("", "@state"), ("worker", "@worker"), ("attempts", "@attempts"))
        )
        self.paints: Paints = [
            *_frame_paints(self.root)[2:],
            (self._mapper, "palette", ",".join(f"cell-{name}" for name in factors)),
            (self._fills, "palette", "running,retried"),
            (dots.glyph, "fill_color", "ground"),
        ]

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Patch the cells that changed; lay them out anew for another sweep."""
        if sweep is None:
            return
        anew = self._stops != sweep["stops"]
        if anew:
            self._lay_out(sweep)
        ran_on, attempts = {**sweep.get("ran_on", {}), **sweep["running_on"]}, sweep["attempts"]
        found: dict[str, list[Any]] = {"state": [STATES[letter] for letter in sweep["states"]]}
        places = [str(i) for i in range(len(found["state"]))]
        found["worker"] = [ran_on.get(i, "") for i in places]
        found["attempts"] = [
            attempts.get(i, int(letter != "w")) for i, letter in zip(places, sweep["states"], strict=True)
        ]
        if anew:
            self._cells.data = {**self._shapes, **found}
        else:
            before = {column: list(self._cells.data[column]) for column in found}
            changed = {
                column: [
                    (i, new) for i, (new, old) in enumerate(zip(values, before[column], strict=True)) if new != old
                ]
                for column, values in found.items()
            }
            if changed := {column: patches for column, patches in changed.items() if patches}:
                self._cells.patch(changed)
        replace(self._parts, self._filled(sweep))
        resumed = sweep.get("resumed", [])
        replace(
            self._resumed,
            {"x": [i % self._columns + 0.5 for i in resumed], "y": [i // self._columns + 0.5 for i in resumed]},
        )

    def _lay_out(self, sweep: State) -> None:
        self._stops = stops = list(sweep["stops"])
        count = max(1, len(stops))
        lines = ceil(count / min(count, ceil(sqrt(count * _ASPECT))))
        self._columns = columns = ceil(count / lines)
        tall = min(_TALLEST, max(_LOWEST, _MAP_HEIGHT / lines))
        across, down = self._gap = columns / _MAP_WIDTH, 1 / tall  # a pixel on each side
        self._shapes = {
            "left": [i % columns + across for i in range(count)],
            "right": [i % columns + 1 - across for i in range(count)],
            "top": [i // columns + down for i in range(count)],
            "bottom": [i // columns + 1 - down for i in range(count)],
            "rows": [f"{start:,} to {stop:,}" for start, stop in zip([0, *stops], stops, strict=False)],
        }
        self.root.x_range.end, self.root.y_range.start = columns, lines
        self.root.height = round(lines * tall) + 12
        every = ceil(lines / 6)
        marks = range(0, lines, every)
        self.root.yaxis.ticker = FixedTicker(ticks=[line + 0.5 for line in marks])
        firsts = [0, *stops]
        self.root.yaxis.major_label_overrides = {line + 0.5: compact(firsts[line * columns]) for line in marks}

    def _filled(self, sweep: State) -> dict[str, list[Any]]:
        """The done parts of the cells under way."""
        under_way = [(int(i), min(1.0, share)) for i, share in sweep["fractions"].items()]
        columns, (across, down) = self._columns, self._gap
        return {
            "left": [i % columns + across for i, _ in under_way],
            "right": [i % columns + across + (1 - 2 * across) * share for i, share in under_way],
            "top": [i // columns + down for i, _ in under_way],
            "bottom": [i // columns + 1 - down for i, _ in under_way],
            "state": ["retried" if sweep["states"][i] == "a" else "running" for i, _ in under_way],
        }


class Rate:
    """GFLOP/s over the time of the sweep, with the calibrated rate as a dashed line."""

    name = "rate"

    def __init__(self) -> None:
        self._source = ColumnDataSource({"time": [], "rate": [], "after": []})
        self.root = _figure(
            self.name,
            x_range=Range1d(start=0, end=1),
            y_range=Range1d(start=0, end=1),
            x_axis_label="since the start of the sweep (s)",
            y_axis_label="GFLOP/s",
        )
        area = self.root.varea("time", 0, "rate", source=self._source, fill_alpha=0.15)
        line = self.root.line("time", "rate", source=self._source, line_width=2)
        self._calibrated = Span(location=-1, dimension="width", line_dash="dashed", line_width=1.5)
        self.root.add_layout(self._calibrated)
        self.root.add_tools(_hover(line, ("rate", "@rate{0,0.[0]} GFLOP/s"), ("after", "@after"), mode="vline"))
        self.root.yaxis.formatter = NumeralTickFormatter(format="0,0.[0]")
        self.paints: Paints = [
            *_frame_paints(self.root),
            (area.glyph, "fill_color", "merged"),
            (line.glyph, "line_color", "merged"),
            (self._calibrated, "line_color", "mark"),
        ]

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Show the history of the sweep."""
        history = sweep["rate_history"] if sweep else []
        unit, per = ("min", 60.0) if history and history[-1][0] > 900 else ("s", 1.0)
        # a rate holds since the point before it
        starts = (
            [0.0 if len(history) < _LONGEST_HISTORY else history[0][0], *(t for t, _ in history[:-1])]
            if history
            else []
        )
        times = [t / per for start, (end, _) in zip(starts, history, strict=True) for t in (start, end)]
        rates = [value / 1e9 for _, value in history for _ in range(2)]
        calibrated = sweep["calibrated_flops_per_second"] / 1e9 if sweep else 0.0
        if replace(self._source, {"time": times, "rate": rates, "after": [duration(t * per) for t in times]}):
            self.root.xaxis.axis_label = f"since the start of the sweep ({unit})"
            self.root.x_range.start = times[0] if times else 0.0
            self.root.x_range.end = max([1.0 / per, *times[-1:]])
        self._calibrated.location = calibrated or -1
        self.root.y_range.end = _roof(max([calibrated, *rates, 1e-3]))


def _roof(value: float) -> float:
    """A little above the value, the same for many values: two significant digits, so that the axis seldom moves."""
    step = 10.0 ** (len(str(int(value))) - 1) / 2 if value >= 1 else 0.1
    return float(ceil(value * 1.04 / step) * step)


class Stages:
    """Seconds of each stage, summed over the workers; of the solves, which the driver does, as they passed."""

    name = "stages"

    def __init__(self) -> None:
        self._source = ColumnDataSource({"stage": [], "seconds": [], "text": []})
        self.root = _figure(
            self.name, y_range=FactorRange(factors=[]), x_range=Range1d(start=0, end=1), x_axis_label="time (s)"
        )
        bars = self.root.hbar(y="stage", right="seconds", height=0.66, source=self._source, line_color=None)
        texts = self.root.text(
            "seconds", "stage", text="text", source=self._source, x_offset=6, text_baseline="middle",
            text_font_size="12px",
        )  # fmt: skip
        self.root.ygrid.grid_line_color = None
        self.root.xaxis.ticker = BasicTicker(desired_num_ticks=4)
        self.root.xaxis.formatter = NumeralTickFormatter(format="0,0.[0]")
        self.paints: Paints = [
            *_frame_paints(self.root)[1:],
            (bars.glyph, "fill_color", "merged"),
            (texts.glyph, "text_color", "ink"),
        ]

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Show the stages that took any time, in the order in which they come."""
        found = dict(sweep["stage_seconds"]) if sweep else {}
        for stage, seconds in job["stage_seconds"].items():
            found[stage] = found.get(stage, 0.0) + seconds
        stages = [stage for stage in _STAGES if found.get(stage)] + sorted(set(found) - set(_STAGES))
        longest, total = max([*found.values(), 1e-9]), sum(found.values()) or 1.0
        unit, per = ("h", 3600.0) if longest > 7200 else ("min", 60.0) if longest > 600 else ("s", 1.0)
        data = {
            "stage": stages,
            "seconds": [found[stage] / per for stage in stages],
            "text": [f"{duration(found[stage])} ({percent(found[stage] / total)})" for stage in stages],
        }
        if self.root.y_range.factors != stages[::-1]:
            self.root.y_range.factors = stages[::-1]
        if replace(self._source, data):
            self.root.xaxis.axis_label = f"time ({unit})"
            self.root.x_range.end = longest / per * 1.75  # room for the text


class Memory:
    """Memory of each worker now (bar) and at most (mark), with the announced peak and the limit as lines."""

    name = "memory"

    def __init__(self) -> None:
        columns = ("place", "left", "right", "now", "peak", "worker", "now_text", "peak_text", "state")
        self._source = ColumnDataSource({column: [] for column in columns})
        self.root = _figure(
            self.name,
            x_range=Range1d(start=0, end=1),
            y_range=Range1d(start=0, end=1),
            x_axis_label="worker",
            y_axis_label="memory (GB)",
        )
        bars = self.root.vbar(x="place", top="now", width=0.7, source=self._source, line_color=None)
        peaks = self.root.segment("left", "peak", "right", "peak", line_width=2, source=self._source)
        self._announced = Span(location=-1, dimension="width", line_dash="dashed", line_width=1.5)
        self._limit = Span(location=-1, dimension="width", line_width=1.5)
        self.root.add_layout(self._announced)
        self.root.add_layout(self._limit)
        self.root.add_tools(
            _hover(bars, ("worker", "@worker"), ("now", "@now_text"), ("peak", "@peak_text"), ("", "@state"))
        )
        self.root.xaxis.ticker = AdaptiveTicker(min_interval=1, mantissas=[1, 2, 5], num_minor_ticks=0)
        self.paints: Paints = [
            *_frame_paints(self.root),
            (bars.glyph, "fill_color", "published"),
            (peaks.glyph, "line_color", "ink"),
            (self._announced, "line_color", "mark"),
            (self._limit, "line_color", "failed"),
        ]

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Show the workers that are there and those that worked for the sweep."""
        shares = sweep["workers"] if sweep else {}
        living = state["workers"]
        names = [*living, *(name for name in shares if name not in living)]
        places = list(range(1, len(names) + 1))
        now = [living.get(name, {}).get("memory_bytes", 0) for name in names]
        peaks = [max(shares.get(name, {}).get("peak_bytes", 0), 0) for name in names]
        limits = [living[name]["limit_bytes"] for name in living]
        announced, limit = sweep["announced_bytes"] if sweep else 0, max(limits, default=0)
        replace(
            self._source,
            {
                "place": places,
                "left": [place - 0.35 for place in places],
                "right": [place + 0.35 for place in places],
                "now": [value / 1e9 for value in now],
                "peak": [value / 1e9 or -1 for value in peaks],
                "worker": names,
                "now_text": [size(value) for value in now],
                "peak_text": [size(value) if value else "not known yet" for value in peaks],
                "state": [living[name]["status"] if name in living else "gone" for name in names],
            },
        )
        self.root.x_range.start, self.root.x_range.end = 0.4, max(1, len(names)) + 0.6
        self._announced.location, self._limit.location = announced / 1e9 or -1, limit / 1e9 or -1
        self.root.y_range.end = 1.08 * max([announced / 1e9, limit / 1e9, *(value / 1e9 for value in peaks + now), 0.1])
