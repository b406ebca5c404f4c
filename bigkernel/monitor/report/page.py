"""A page that opens anywhere, without a network or a script, and the tables that are printed, saved and put on it.

A `Page` is put together from text, tables, tiles, drawings and pictures and written as one HTML file: inline CSS,
inline SVG, pictures as base64 PNG, light and dark after the reader's preference, readable on a phone and on paper. All
text is escaped, and a Content-Security-Policy forbids whatever is not in the file.
"""

from __future__ import annotations

import base64
import csv
import html
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bigkernel.monitor.format import MISSING as MISSING
from bigkernel.storage.atomic_write import writing

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its values, its header, and how a value is written ("" as `str` does it).

    `show` is a format specification such as ",.1f" or a function of the whole record. Text stands left, all else right.
    A hidden column is written to CSV only; the texts of a long one are broken into lines on a page.
    """

    key: str
    header: str
    show: str | Callable[[Mapping[str, Any]], str] = ""
    left: bool = False
    hidden: bool = False
    long: bool = False

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
            table.add_column(Text(column.header), justify="left" if column.left else "right", no_wrap=True)
        for record in self.records:
            table.add_row(*(Text(column.text(record)) for column in self.shown))
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
        kinds = [("text" if column.left else "number") + " long" * column.long for column in self.shown]
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

    def subheading(self, text: str) -> Self:
        """Begin a part of a section."""
        self._parts.append(f"<h3>{html.escape(text)}</h3>")
        return self

    def text(self, *paragraphs: str) -> Self:
        """Add paragraphs."""
        self._parts.extend(f"<p>{_escape(paragraph)}</p>" for paragraph in paragraphs if paragraph)
        return self

    def add(self, other: Page) -> Self:
        """Add the parts of another page."""
        self._parts += other._parts
        return self

    def state(self, kind: str, text: str, detail: str = "") -> Self:
        """Add what became of the work: `kind` is "good", "open" or "bad"; `detail` (an error) keeps its lines."""
        more = f"<pre>{html.escape(detail)}</pre>" if detail else ""
        self._parts.append(f'<div class="state {html.escape(kind)}"><p>{_escape(text)}</p>{more}</div>')
        return self

    def command(self, line: str) -> Self:
        """Add a line for a shell."""
        self._parts.append(f'<pre class="command">{html.escape(line)}</pre>')
        return self

    def tiles(self, tiles: Sequence[tuple[str, str]]) -> Self:
        """Add a few figures, each large above what it is: (value, meaning)."""
        if tiles:
            shown = "".join(f"<div><b>{_escape(value)}</b><span>{_escape(what)}</span></div>" for value, what in tiles)
            self._parts.append(f'<div class="tiles">{shown}</div>')
        return self

    def facts(self, values: Mapping[str, Any]) -> Self:
        """Add names and values, a line each."""
        rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(v))}</dd>\n" for name, v in values.items())
        self._parts.append(f"<dl>\n{rows}</dl>")
        return self

    def folded(self, summary: str, values: Mapping[str, Any]) -> Self:
        """Add names and values that are shown when the reader opens them, and on paper."""
        self.facts(values)
        self._parts[-1] = f"<details><summary>{_escape(summary)}</summary>\n{self._parts[-1]}</details>"
        return self

    def table(self, table: Table, *, caption: str = "") -> Self:
        """Add a table."""
        below = f"<figcaption>{_escape(caption)}</figcaption>" if caption else ""
        self._parts.append(f"<figure>{table.html()}{below}</figure>")
        return self

    def figure(self, light: bytes, dark: bytes | None = None, *, caption: str, alt: str = "") -> Self:
        """Add a picture (PNG), with another one for dark screens if there is one."""
        other = f'<source media="(prefers-color-scheme: dark)" srcset="{data_url(dark)}">' if dark else ""
        # pictures are drawn at two pixels a CSS pixel
        width = int.from_bytes(light[16:20], "big") // 2
        image = f'<img src="{data_url(light)}" width="{width}" alt="{html.escape(alt or caption)}">'
        self._parts.append(
            f'<figure class="{"drawn" if dark else "paper"}"><picture>{other}{image}</picture>'
            f"<figcaption>{_escape(caption)}</figcaption></figure>"
        )
        return self

    def svg(self, drawing: str, *, caption: str = "") -> Self:
        """Add a drawing of `bigkernel.monitor.report.drawings`: markup, taken as it is."""
        below = f"<figcaption>{_escape(caption)}</figcaption>" if caption else ""
        self._parts.append(f"<figure>{drawing}{below}</figure>")
        return self

    def html(self) -> str:
        """The whole page."""
        title, subtitle = html.escape(self.title), html.escape(self.subtitle)
        body = "\n".join(self._parts)
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<style>{_STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n<main>\n"
            f"<header><h1>{title}</h1><p>{subtitle}</p></header>\n{body}\n</main>\n</body>\n</html>\n"
        )

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


def data_url(png: bytes | None) -> str:
    """A picture as an address."""
    return f"data:image/png;base64,{base64.b64encode(png or b'').decode()}"


def _escape(text: str) -> str:
    """Text as HTML; a number stays with its %."""
    return html.escape(text).replace(" %", "\u00a0%")
