"""A page that opens anywhere, without a network or a script, and the tables that are printed, saved and put on it.

A `Page` is put together from text, tables, tiles, drawings and pictures and written as one HTML file: inline CSS,
inline SVG, pictures as base64 PNG, light and dark after the reader's preference, readable on a phone and on paper. All
text is escaped, and a Content-Security-Policy forbids whatever is not in the file.
"""

from __future__ import annotations

import csv
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bigkernel.data.atomic_write import writing
from bigkernel.data.visible import visible
from bigkernel.monitor.format import MISSING as MISSING
from bigkernel.monitor.report.rendering import render_page


def _nothing(record: Mapping[str, Any]) -> str:
    return ""


def _never(record: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its values, its header, and how a value is written ("" as `str` does it).

    `show` is a format specification such as ",.1f" or a function of the whole record. Text stands left, all else right.
    A hidden column is written to CSV only; the texts of a long one are broken into lines on a page. A cell on a page
    may have a `note` in small letters below, and is highlighted where it is `marked`.
    """

    key: str
    header: str
    show: str | Callable[[Mapping[str, Any]], str] = ""
    left: bool = False
    hidden: bool = False
    long: bool = False
    note: Callable[[Mapping[str, Any]], str] = _nothing
    marked: Callable[[Mapping[str, Any]], bool] = _never

    @property
    def html_class(self) -> str:
        """The class of its cells on a page."""
        return ("text" if self.left else "number") + " long" * self.long

    def text(self, record: Mapping[str, Any]) -> str:
        """The cell of a record."""
        if callable(self.show):
            return self.show(record)
        value = record.get(self.key)
        return MISSING if value is None else format(value, self.show)


_PHONE_COLUMNS = 3


@dataclass(frozen=True)
class Table:
    """Records under columns, to be printed, saved and put on a page."""

    columns: Sequence[Column]
    records: Sequence[Mapping[str, Any]]

    @property
    def stacked(self) -> bool:
        """True if it has more columns than a phone shows beside each other."""
        return len(self.shown) > _PHONE_COLUMNS

    @property
    def shown(self) -> list[Column]:
        """The columns that are not hidden."""
        return [column for column in self.columns if not column.hidden]

    def print(self, console: Console | None = None) -> None:
        """Print it, one line a record, no cell wrapped."""
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0), show_edge=False)
        for column in self.shown:
            table.add_column(Text(visible(column.header)), justify="left" if column.left else "right", no_wrap=True)
        for record in self.records:
            table.add_row(*(Text(visible(column.text(record))) for column in self.shown))
        (console or Console()).print(table)

    def write_csv(self, path: Path) -> None:
        """Write the values themselves, unrounded, under their keys; what is missing stays empty."""
        keys = [column.key for column in self.columns]
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, keys, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.records)


@dataclass
class Page:
    """A report page. Every method adds a part and returns the page.

    Examples
    --------
    >>> page = Page("Digits").text("One run.").heading("What came out")
    >>> ">What came out</h2>" in page.html()
    True
    """

    title: str
    subtitle: str = ""
    _parts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # macros of `parts.html`, their values

    def _add(self, macro: str, /, **values: Any) -> Self:
        self._parts.append((macro, values))
        return self

    def heading(self, text: str) -> Self:
        """Begin a section."""
        return self._add("heading", text=text)

    def subheading(self, text: str) -> Self:
        """Begin a part of a section."""
        return self._add("subheading", text=text)

    def text(self, *paragraphs: str) -> Self:
        """Add paragraphs."""
        for paragraph in filter(None, paragraphs):
            self._add("text", text=paragraph)
        return self

    def add(self, other: Page) -> Self:
        """Add the parts of another page."""
        self._parts += other._parts
        return self

    def state(self, kind: str, text: str, detail: str = "") -> Self:
        """Add what became of the work: `kind` is "good", "open" or "bad"; `detail` (an error) keeps its lines."""
        return self._add("state", kind=kind, text=text, detail=detail)

    def command(self, line: str) -> Self:
        """Add a line for a shell."""
        return self._add("command", line=line)

    def tiles(self, tiles: Sequence[tuple[str, str]]) -> Self:
        """Add a few figures, each large above what it is: (value, meaning)."""
        return self._add("tiles", tiles=tiles) if tiles else self

    def facts(self, values: Mapping[str, Any]) -> Self:
        """Add names and values, a line each."""
        return self._add("facts", values=values)

    def folded(self, summary: str, values: Mapping[str, Any]) -> Self:
        """Add names and values that are shown when the reader opens them, and on paper."""
        return self._add("folded", summary=summary, values=values)

    def table(self, table: Table, *, caption: str = "") -> Self:
        """Add a table; on a narrow screen one of many columns becomes a list, a name and a value a line."""
        return self._add("table", table=table, caption=caption)

    def figure(self, light: bytes, dark: bytes | None = None, *, caption: str, alt: str = "") -> Self:
        """Add a picture (PNG), with another one for dark screens if there is one."""
        width = int.from_bytes(light[16:20], "big") // 2  # pictures are drawn at two pixels a CSS pixel
        return self._add("figure", light=light, dark=dark, width=width, caption=caption, alt=alt)

    def svg(self, drawing: Markup, *, caption: str = "") -> Self:
        """Add a drawing of `bigkernel.monitor.report.drawings`."""
        return self._add("svg", drawing=drawing, caption=caption)

    def html(self) -> str:
        """Render the whole page."""
        return render_page(title=self.title, subtitle=self.subtitle, parts=self._parts)

    def write(self, path: Path) -> Path:
        """Write the page, whole or not at all, and return its path.

        Raises
        ------
        DataError
            A full disk, or a directory that cannot be written.
        """
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
        try:
            with writing(path, passing=False):
                # what is no text (a lone surrogate in a file name) is shown by its number
                scratch.write_text(self.html(), encoding="utf-8", errors="xmlcharrefreplace")
                os.replace(scratch, path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        return path
