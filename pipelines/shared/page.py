"""Tables that are printed, saved and put on a page, and the page of an experiment: one HTML file without a script.

Pictures are base64 PNG, light and dark after the reader's preference. All text is escaped, and a
Content-Security-Policy forbids whatever is not in the file.
"""

import base64
import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bigkernel.data.visible import visible
from bigkernel.html import MISSING as MISSING

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>
body { max-width: 1060px; margin: 0 auto; padding: 16px; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 28px 0 6px; }
header p, figcaption, dt, th { opacity: 0.7; font-weight: 400; }
p, figcaption, td { overflow-wrap: break-word; } figure { margin: 12px 0; } img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 14px 3px 0; vertical-align: top; } .text { text-align: left; }
dl { display: grid; grid-template-columns: minmax(90px, max-content) minmax(0, 1fr); gap: 2px 16px; font-size: 14px; }
dd { margin: 0; overflow-wrap: anywhere; }
</style></head><body><header><h1>{title}</h1><p>{subtitle}</p></header>
"""


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its values, its header, and their format ("" for `str`).

    `show` is a format specification such as ",.1f" or a function of the whole record. Text stands left, all else right.
    A hidden column is written to CSV only.
    """

    key: str
    header: str
    show: str | Callable[[Mapping[str, Any]], str] = ""
    left: bool = False
    hidden: bool = False

    def text(self, record: Mapping[str, Any]) -> str:
        """Return the text of a record's cell."""
        if callable(self.show):
            return self.show(record)
        value = record.get(self.key)
        return MISSING if value is None else format(value, self.show)


@dataclass(frozen=True)
class Table:
    """Records under columns, to be printed, saved and put on a page."""

    columns: Sequence[Column]
    records: Sequence[Mapping[str, Any]]

    @property
    def shown(self) -> list[Column]:
        """The columns that are not hidden."""
        return [column for column in self.columns if not column.hidden]

    def print(self, console: Console | None = None) -> None:
        """Print it, a line for each record, no cell wrapped."""
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0), show_edge=False)
        for column in self.shown:
            table.add_column(Text(visible(column.header)), justify="left" if column.left else "right", no_wrap=True)
        for record in self.records:
            table.add_row(*(Text(visible(column.text(record))) for column in self.shown))
        (console or Console()).print(table)

    def write_csv(self, path: Path) -> None:
        """Write the values, unrounded, under their keys; missing ones stay empty."""
        keys = [column.key for column in self.columns]
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, keys, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.records)


@dataclass
class Page:
    """A page. Every method but `html` and `write` appends to it and returns it."""

    title: str
    subtitle: str = ""
    _markup: list[str] = field(default_factory=list)

    def _add(self, markup: str) -> Self:
        self._markup.append(markup)
        return self

    def heading(self, text: str) -> Self:
        """Begin a section."""
        return self._add(f"<h2>{_shown(text)}</h2>")

    def text(self, *paragraphs: str) -> Self:
        """Add paragraphs."""
        return self._add("".join(f"<p>{_shown(paragraph)}</p>" for paragraph in filter(None, paragraphs)))

    def facts(self, values: Mapping[str, Any]) -> Self:
        """Add names and values, one per line."""
        lines = "".join(f"<dt>{_shown(name)}</dt><dd>{_shown(value)}</dd>" for name, value in values.items())
        return self._add(f"<dl>{lines}</dl>")

    def table(self, table: Table, *, caption: str = "") -> Self:
        """Add a table."""
        sides = [' class="text"' if column.left else "" for column in table.shown]
        columns = list(zip(table.shown, sides, strict=True))
        head = "".join(f"<th{side}>{_shown(column.header)}</th>" for column, side in columns)
        body = "".join(
            f"<tr>{''.join(f'<td{side}>{_shown(column.text(record))}</td>' for column, side in columns)}</tr>"
            for record in table.records
        )
        grid = f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
        return self._add(f"<figure>{grid}<figcaption>{_shown(caption)}</figcaption></figure>")

    def figure(self, light: bytes, dark: bytes | None = None, *, caption: str, alt: str = "") -> Self:
        """Add a picture (PNG), with another one for dark screens if there is one."""
        width = int.from_bytes(light[16:20], "big") // 2  # pictures are drawn at two pixels a CSS pixel
        other = f'<source media="(prefers-color-scheme: dark)" srcset="{_address(dark)}">' if dark else ""
        image = f'<img src="{_address(light)}" width="{width}" alt="{_shown(alt or caption)}">'
        return self._add(
            f"<figure><picture>{other}{image}</picture><figcaption>{_shown(caption)}</figcaption></figure>"
        )

    def html(self) -> str:
        """Render the whole page."""
        head = _HEAD.replace("{title}", _shown(self.title)).replace("{subtitle}", _shown(self.subtitle))
        return head + "\n".join(self._markup) + "\n</body></html>\n"

    def write(self, path: Path) -> Path:
        """Write the page and return its path."""
        path.write_text(self.html(), encoding="utf-8", errors="xmlcharrefreplace")
        return path


def _shown(text: object) -> str:
    return escape(visible(text, lines=True)).replace(" %", "\u00a0%")  # a number stays with its %


def _address(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
