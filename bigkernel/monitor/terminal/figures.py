"""Named figures on the terminal: one JSON object, or a table of two columns with units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bigkernel.monitor.format import duration, flops, size
from bigkernel.storage.visible import visible


def show(figures: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
    """Print named figures: as one JSON object, or as a table of two columns that fits 80 characters."""
    if as_json:
        from bigkernel.monitor.transport.messages import plain

        print(json.dumps(plain(figures), allow_nan=False), flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(visible(title)) if title else None, title_justify="left", show_header=False, box=None, pad_edge=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in figures.items():
        table.add_row(Text(visible(name.replace("_", " "))), Text(visible(readable(name, value))))
    Console(soft_wrap=False).print(table)


def readable(name: str, value: Any) -> str:
    """A figure for people, with the unit that its name ends in."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {readable(name, item)}" for key, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    if "bytes" in name and isinstance(value, int):
        return size(value)
    if isinstance(value, float) and "seconds" in name:
        return duration(value)
    if name == "flops":
        return flops(value)
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
