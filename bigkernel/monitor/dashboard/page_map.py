"""The map of the rows: a cell for every segment; see `page_drawing`."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any

from bokeh.models import CategoricalColorMapper, ColumnDataSource, FixedTicker, Range1d

from bigkernel.data.visible import visible
from bigkernel.events.progress import STATES
from bigkernel.monitor.dashboard.page_drawing import Paints, State, empty, frame_paints, hover, replace
from bigkernel.monitor.format import quantity

_ASPECT = 5.0  # cells a line for one line
_LABEL_HEIGHT = 60.0  # pixels that the label of the axis takes
_EDGES = ("left", "right", "top", "bottom")
_LOWEST, _TALLEST, _MAP_HEIGHT, _MAP_WIDTH = 10.0, 30.0, 200.0, 1100.0  # pixels of a cell, and of all of them


class RowMap:
    """Every segment as a cell, in lines from left to right, coloured by its state; running ones fill from the left."""

    name = "map"

    def __init__(self) -> None:
        self._stops: Sequence[int] | None = None
        self._columns, self._gap = 1, (0.0, 0.0)
        cells = (*_EDGES, "state", "rows", "worker", "attempts")
        self._cells = ColumnDataSource({column: [] for column in cells})
        self._parts = ColumnDataSource({column: [] for column in (*_EDGES, "state")})
        self._resumed = ColumnDataSource({"x": [], "y": []})
        factors = list(STATES.values())
        self._mapper = CategoricalColorMapper(factors=factors, palette=["#888888"] * len(factors))
        self._fills = CategoricalColorMapper(factors=["running", "retried"], palette=["#888888"] * 2)
        self.root = empty(
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
            hover(drawn, ("rows", "@rows"), ("", "@state"), ("worker", "@worker"), ("attempts", "@attempts"))
        )
        self.paints: Paints = [
            *frame_paints(self.root),
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
        found["worker"] = [visible(ran_on.get(i, ""), most=200) for i in places]
        found["attempts"] = [
            attempts.get(i, int(letter != "w")) for i, letter in zip(places, sweep["states"], strict=True)
        ]
        if anew:
            self._cells.data = {**self._shapes, **found}
            self._stops = list(sweep["stops"])
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
        stops = sweep["stops"]
        count = len(stops)
        lines = max(1, ceil(sqrt(count / _ASPECT) - 0.5))
        self._columns = columns = max(1, ceil(count / lines))
        tall = min(_TALLEST, max(_LOWEST, _MAP_HEIGHT / lines))
        self.root.yaxis.axis_label = "first row" if lines * tall >= _LABEL_HEIGHT else ""
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
        self.root.yaxis.major_label_overrides = {line + 0.5: quantity(firsts[line * columns]) for line in marks}

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
