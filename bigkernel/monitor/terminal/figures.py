"""Named figures on the terminal: one JSON object, or a table of two columns with units."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bigkernel import html
from bigkernel.data.visible import visible
from bigkernel.monitor.format import duration, flops, plainly, size

_GAP = 2  # letters between the two columns


def show(figures: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
    """Print named figures: as one JSON object, or as a table of two columns that fits 80 characters."""
    if as_json:
        from bigkernel.events.job import plain

        print(json.dumps(plain(figures), allow_nan=False), flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, table = Console(soft_wrap=False), Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    names = {name: visible(name.replace("_", " ")) for name in figures}
    room = console.width - max(map(len, names.values()), default=0) - _GAP
    for name, value in figures.items():
        table.add_row(Text(names[name]), Text(_lines(_pieces(name, value), room)))
    if title:  # not the table's, which would be broken at the width of the table
        console.print(Text(visible(title), style="italic"))
    console.print(table)


def _lines(pieces: Sequence[str], room: int) -> str:
    """Pieces with commas between, in lines of at most `room` letters; a piece is broken over none, however long."""
    lines = [""]
    for number, piece in enumerate(map(visible, pieces), 1):
        text = piece + ("," if number < len(pieces) else "")
        if lines[-1] and len(lines[-1]) + 1 + len(text) > room:
            lines.append(text)
        else:
            lines[-1] += f" {text}" if lines[-1] else text
    return "\n".join(lines)


def _pieces(name: str, value: Any) -> list[str]:
    """The parts of a figure for people: several of a mapping or a list, else one."""
    if isinstance(value, Mapping) and "name" in value:  # a kernel
        return [plainly(value)]
    if isinstance(value, Mapping):
        return [f"{key}: {readable(name, item)}" for key, item in value.items()] or ["none"]
    if isinstance(value, list | tuple):
        return [str(item) for item in value] or ["none"]
    return [readable(name, value)]


def readable(name: str, value: Any) -> str:
    """A figure for people, with the unit that its name ends in."""
    if isinstance(value, Mapping | list | tuple):
        return ", ".join(_pieces(name, value))
    if "bytes" in name and isinstance(value, int) and not isinstance(value, bool):
        return size(value)
    if isinstance(value, float) and "seconds" in name:
        return duration(value)
    return flops(value) if name == "flops" else html.readable("", value)
