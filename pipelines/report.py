"""What a pipeline shows: a table (terminal, CSV, HTML) and a report page that opens anywhere, without a network.

A `Page` is put together from text, tables and figures and written as one HTML file: inline CSS, pictures as base64 PNG,
light and dark after the reader's preference, readable on a phone. All text is escaped.
"""

from __future__ import annotations

import base64
import csv
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its values, its header, and how a value is written ("" as `str` does it).

    `show` is a format specification such as ",.1f" or a function of the whole record. Text stands left, all else right.
    A hidden column is written to CSV only.
    """

    key: str
    header: str
    show: str | Callable[[Mapping[str, Any]], str] = ""
    left: bool = False
    hidden: bool = False

    def text(self, record: Mapping[str, Any]) -> str:
        """The cell of a record."""
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
        """Print it, one line a record, no cell wrapped."""
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0), show_edge=False)
        for column in self.shown:
            table.add_column(column.header, justify="left" if column.left else "right", no_wrap=True)
        for record in self.records:
            table.add_row(*(column.text(record) for column in self.shown))
        (console or Console()).print(table)

    def write_csv(self, path: Path) -> None:
        """Write the values themselves, unrounded, under their keys; what is missing stays empty."""
        keys = [column.key for column in self.columns]
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, keys, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.records)

    def html(self) -> str:
        """An HTML table in a box that scrolls sideways where the screen is narrow."""
        kinds = ["text" if column.left else "number" for column in self.shown]
        head = "".join(
            f'<th scope="col" class="{kind}">{html.escape(column.header)}</th>'
            for kind, column in zip(kinds, self.shown, strict=True)
        )
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td class="{kind}">{html.escape(column.text(record))}</td>'
                for kind, column in zip(kinds, self.shown, strict=True)
            )
            + "</tr>\n"
            for record in self.records
        )
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'


@dataclass
class Page:
    """A report page. Every method adds a part and returns the page.

    Examples
    --------
    >>> page = Page("Digits").text("One run.").heading("What came out")
    >>> "<h2>What came out</h2>" in page.html()
    True
    """

    title: str
    subtitle: str = ""
    _parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> Self:
        """Begin a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")
        return self

    def text(self, *paragraphs: str) -> Self:
        """Add paragraphs."""
        self._parts.extend(f"<p>{_escape(paragraph)}</p>" for paragraph in paragraphs)
        return self

    def facts(self, values: Mapping[str, Any]) -> Self:
        """Add names and values, a line each."""
        rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(v))}</dd>\n" for name, v in values.items())
        self._parts.append(f"<dl>\n{rows}</dl>")
        return self

    def table(self, table: Table, *, caption: str = "") -> Self:
        """Add a table."""
        below = f"<figcaption>{_escape(caption)}</figcaption>" if caption else ""
        self._parts.append(f"<figure>{table.html()}{below}</figure>")
        return self

    def figure(self, light: bytes, dark: bytes | None = None, *, caption: str, alt: str = "") -> Self:
        """Add a picture (PNG), with another one for dark screens if there is one."""
        other = f'<source media="(prefers-color-scheme: dark)" srcset="{_data_url(dark)}">' if dark else ""
        # pictures are drawn at two pixels a CSS pixel
        width = int.from_bytes(light[16:20], "big") // 2
        image = f'<img src="{_data_url(light)}" width="{width}" alt="{html.escape(alt or caption)}">'
        self._parts.append(
            f'<figure class="{"drawn" if dark else "paper"}"><picture>{other}{image}</picture>'
            f"<figcaption>{_escape(caption)}</figcaption></figure>"
        )
        return self

    def html(self) -> str:
        """The whole page."""
        title, subtitle = html.escape(self.title), html.escape(self.subtitle)
        body = "\n".join(self._parts)
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<style>{_CSS}</style>\n</head>\n<body>\n<main>\n<header><h1>{title}</h1><p>{subtitle}</p></header>\n"
            f"{body}\n</main>\n</body>\n</html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page and return its path."""
        path.write_text(self.html(), encoding="utf-8")
        return path


def _escape(text: str) -> str:
    """Text as HTML; a number stays with its %."""
    return html.escape(text).replace(" %", "\u00a0%")


def _data_url(png: bytes | None) -> str:
    return f"data:image/png;base64,{base64.b64encode(png or b'').decode()}"


_CSS = """
:root { --ink: #1c2430; --soft: #5a6573; --line: #d9dee5; --page: #ffffff; --accent: #1f6fb2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9f0; --soft: #9aa7b6; --line: #333d49; --page: #14191f; --accent: #6cb4ee; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto,
  "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
header { border-bottom: 3px solid var(--accent); margin-bottom: 1.5rem; }
header p { color: var(--soft); margin: .3rem 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p { max-width: 44rem; }
figure { margin: 1.2rem 0 1.8rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .5rem; max-width: 44rem; }
img { max-width: 100%; height: auto; display: block; }
figure.paper img { background: #ffffff; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; }
th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); }
th, td { padding: .4rem .8rem; white-space: nowrap; text-align: right; }
th:first-child, td:first-child { padding-left: 0; }
td { border-bottom: 1px solid var(--line); }
.text { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: 1rem 0; font-size: .95rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 480px) {
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
}
"""
