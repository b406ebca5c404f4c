"""The parts that all drawings of the page share: an empty figure, its colours, the text under the pointer.

Each drawing is a part with a Bokeh `root`, shown where the template embeds its name, and `update(state, job, sweep)`,
which sends the browser what has changed. Colours are roles ("ink", "running", …): `paints` lists which property of
which model has which role, and `page.js` sets them from the colours of `page.css`, for light and for dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from bokeh.models import Axis, ColumnDataSource, HoverTool
from bokeh.plotting import figure

State = Mapping[str, Any]
Paints = list[tuple[Any, str, str]]
_HEIGHT = 212


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


def empty(name: str, **options: Any) -> Any:
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


def frame_paints(plot: Any) -> Paints:
    """The roles of axes and grids, as far as they are drawn."""
    paints: Paints = [(grid, "grid_line_color", "line") for grid in plot.ygrid]
    for axis in plot.select(type=Axis):
        paints += [(axis, "axis_line_color", "line"), (axis, "major_tick_line_color", "line")]
        paints += [(axis, "major_label_text_color", "soft"), (axis, "axis_label_text_color", "soft")]
    return [(model, name, role) for model, name, role in paints if getattr(model, name) is not None]


def hover(renderer: Any, *lines: tuple[str, str], mode: Literal["mouse", "vline"] = "mouse") -> HoverTool:
    """Add the text of a mark under the pointer, or above it and below it ("vline"); Bokeh escapes the fields."""
    rows = "".join(f"<div><span>{label}</span> <b>{field}</b></div>" for label, field in lines)
    style = (
        "font: 12px Helvetica, Arial, sans-serif; line-height: 1.5; margin: -5px; padding: 6px 10px; "
        "color: var(--ink); background: var(--ground)"
    )
    return HoverTool(renderers=[renderer], mode=mode, tooltips=f'<div style="{style}">{rows}</div>')
