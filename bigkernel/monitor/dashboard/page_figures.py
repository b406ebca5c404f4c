"""The rate of a sweep, the time of its stages and the memory of its workers, drawn; see `page_drawing`."""

from __future__ import annotations

from math import ceil

from bokeh.models import (
    AdaptiveTicker,
    BasicTicker,
    CategoricalColorMapper,
    ColumnDataSource,
    FactorRange,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.models.annotations import Span

from bigkernel.data.visible import visible
from bigkernel.monitor.dashboard.page_drawing import Paints, State, empty, frame_paints, hover, replace
from bigkernel.monitor.format import duration, percent, size
from bigkernel.monitor.palette import OTHER, STAGES, meaning


class Rate:
    """GFLOP/s over the time of the sweep, with the calibrated rate as a dashed line."""

    name = "rate"

    def __init__(self) -> None:
        self._source = ColumnDataSource({"time": [], "rate": [], "after": []})
        self.root = empty(
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
        self.root.add_tools(hover(line, ("rate", "@rate{0,0.[0]} GFLOP/s"), ("after", "@after"), mode="vline"))
        self.root.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
        self.paints: Paints = [
            *frame_paints(self.root),
            (area.glyph, "fill_color", "accent"),
            (line.glyph, "line_color", "accent"),
            (self._calibrated, "line_color", "mark"),
        ]

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Show the history of the sweep."""
        history = sweep["rate_history"] if sweep else []
        unit, per = ("min", 60.0) if history and history[-1][0] > 900 else ("s", 1.0)
        # a rate holds since the point before it
        starts = [0.0, *(t for t, _ in history)]
        times = [t / per for start, (end, _) in zip(starts, history, strict=False) for t in (start, end)]
        rates = [value / 1e9 for _, value in history for _ in range(2)]
        calibrated = sweep["calibrated_flops_per_second"] / 1e9 if sweep else 0.0
        if replace(self._source, {"time": times, "rate": rates, "after": [duration(t * per) for t in times]}):
            self.root.xaxis.axis_label = f"since the start of the sweep ({unit})"
            self.root.x_range.end = max([1.0 / per, *times[-1:]])
        self._calibrated.location = calibrated or -1
        self.root.y_range.end = _roof(max([calibrated, *rates, 1e-3]))


def _roof(value: float) -> float:
    """A little above the value, the same for many values: two significant digits, so that the axis seldom moves."""
    step = 10.0 ** (len(str(int(value))) - 1) / 2 if value >= 1 else 0.1
    return float(ceil(value * 1.04 / step) * step)


class Stages:
    """Seconds of each stage, summed over the workers, running segments included; those of the driver as they passed."""

    name = "stages"

    def __init__(self) -> None:
        self._source = ColumnDataSource({column: [] for column in ("stage", "seconds", "text", "kind", "meaning")})
        self.root = empty(
            self.name, y_range=FactorRange(factors=[]), x_range=Range1d(start=0, end=1), x_axis_label="time (s)"
        )
        kinds = [*STAGES, OTHER]
        mapper = CategoricalColorMapper(factors=kinds, palette=["#888888"] * len(kinds))
        fill = {"field": "kind", "transform": mapper}
        bars = self.root.hbar(
            y="stage", right="seconds", height=0.66, source=self._source, fill_color=fill, line_color=None
        )
        texts = self.root.text(
            "seconds", "stage", text="text", source=self._source, x_offset=6, text_baseline="middle",
            text_font_size="12px",
        )  # fmt: skip
        self.root.ygrid.grid_line_color = None
        self.root.xaxis.ticker = BasicTicker(desired_num_ticks=4)
        self.root.xaxis.formatter = NumeralTickFormatter(format="0,0.[0]")
        self.root.add_tools(hover(bars, ("", "@meaning"), ("", "@text")))
        self.paints: Paints = [
            *frame_paints(self.root),
            (mapper, "palette", ",".join(f"stage-{kind}" for kind in kinds)),
            (texts.glyph, "text_color", "ink"),
        ]

    def update(self, state: State, job: State, sweep: State | None) -> None:
        """Show the stages that took any time, in the order in which they come."""
        found = dict(sweep["stage_seconds"]) if sweep else {}
        for stage, seconds in job["stage_seconds"].items():
            found[stage] = found.get(stage, 0.0) + seconds
        stages = [stage for stage in STAGES if found.get(stage)] + sorted(set(found) - set(STAGES))
        longest, total = max([*found.values(), 1e-9]), sum(found.values()) or 1.0
        unit, per = ("h", 3600.0) if longest > 7200 else ("min", 60.0) if longest > 600 else ("s", 1.0)
        data = {
            "stage": (named := [visible(stage, most=200) for stage in stages]),
            "seconds": [found[stage] / per for stage in stages],
            "text": [f"{duration(found[stage])} ({percent(found[stage], total)})" for stage in stages],
            "kind": [stage if stage in STAGES else OTHER for stage in stages],
            "meaning": [meaning(stage) for stage in stages],
        }
        if self.root.y_range.factors != named[::-1]:
            self.root.y_range.factors = named[::-1]
        if replace(self._source, data):
            self.root.xaxis.axis_label = f"time ({unit})"
            self.root.x_range.end = longest / per * 1.75  # room for the text


class Memory:
    """Memory of each worker now (bar) and at most (mark), with the announced peak and the limit as lines."""

    name = "memory"

    def __init__(self) -> None:
        columns = ("place", "left", "right", "now", "peak", "worker", "now_text", "peak_text", "state")
        self._source = ColumnDataSource({column: [] for column in columns})
        self.root = empty(
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
            hover(bars, ("worker", "@worker"), ("now", "@now_text"), ("peak", "@peak_text"), ("", "@state"))
        )
        self.root.xaxis.ticker = AdaptiveTicker(min_interval=1, mantissas=[1, 2, 5], num_minor_ticks=0)
        self.paints: Paints = [
            *frame_paints(self.root),
            (bars.glyph, "fill_color", "accent"),
            (peaks.glyph, "line_color", "ink"),
            (self._announced, "line_color", "mark"),
            (self._limit, "line_color", "bad"),
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
                "worker": [visible(name, most=200) for name in names],
                "now_text": [size(value) for value in now],
                "peak_text": [size(value) if value else "not known yet" for value in peaks],
                "state": [living[name]["status"] if name in living else "gone" for name in names],
            },
        )
        self.root.x_range.start, self.root.x_range.end = 0.4, max(1, len(names)) + 0.6
        self._announced.location, self._limit.location = announced / 1e9 or -1, limit / 1e9 or -1
        self.root.y_range.end = 1.08 * max([announced / 1e9, limit / 1e9, *(value / 1e9 for value in peaks + now), 0.1])
