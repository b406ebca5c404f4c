"""Named figures on the terminal: one JSON object, or a table of two columns with units."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from bigkernel.data.visible import visible
from bigkernel.html import readable

_GAP = 2  # letters between the two columns
_KEPT_BLANK = "\0"  # in place of blanks within items; `visible` leaves none


def show(figures: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
    """Print named figures as one JSON object, or as a table of two columns that fits 80 characters."""
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
    if title:  # the table itself would split items at its width
        console.print(Text(visible(title), style="italic"))
    console.print(table)


def _lines(pieces: Sequence[str], room: int) -> str:
    """Return comma-separated items in lines of at most `room` letters; items are never split."""
    whole = [visible(piece).replace(" ", _KEPT_BLANK) for piece in pieces]
    lines = textwrap.wrap(", ".join(whole), max(1, room), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_KEPT_BLANK, " ")


def _pieces(name: str, value: Any) -> list[str]:
    """Return the items of a figure for people: several for a mapping or a list, else one."""
    if isinstance(value, Mapping) and "name" not in value:
        return [f"{key}: {readable(name, item)}" for key, item in value.items()] or ["none"]
    if isinstance(value, list | tuple):
        return [readable(name, item) for item in value] or ["none"]
    return [readable(name, value)]
