"""Tables in text: CSV in its dialects, and the USPS "zip code" digits.

A table has one row a line and the same number of cells in each, d features and at most one target. Numbers are read
strictly: what is not a finite decimal number is an error that names path, line (from 1), column and the text found.
Blocks of lines go through numpy's parser; line by line is only for finding out what was wrong with a block.

A target column holds either numbers or names, throughout. Names reach `Source.targets` as strings; whoever stores them
collects the distinct ones in a first pass over that column alone, and stores positions in the sorted list.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError
from bigkernel.io.source import Block, Source, open_stream, require_features

USPS_FEATURES = 256
_DELIMITERS = {",": ",", ";": ";", "\t": "\t", "tab": "\t", "\\t": "\t", " ": None, "blank": None}
_READ_BYTES = 2**18
_MOST_LINE_BYTES = 2**26
_LOOK_LINES = 50


@dataclass(frozen=True)
class _Table:
    """How to read the lines of one file. `delimiter` None: runs of blanks; `target` None: no such column."""

    path: str
    delimiter: str | None
    header: bool
    columns: tuple[str, ...]  # what messages call them
    target: int | None
    dtype: np.dtype[Any]

    @property
    def features(self) -> list[int]:
        return [column for column in range(len(self.columns)) if column != self.target]

    def blocks(self) -> Iterator[Block]:
        named: bool | None = None
        features = self.features
        for number, lines in _lines(self.path, skip=self.header):
            cells = self._cells(number, lines)
            try:
                x = np.loadtxt(
                    lines, np.float64, comments=None, delimiter=self.delimiter, usecols=features, quotechar='"', ndmin=2
                )
            except ValueError as error:
                raise self._first_fault(number, cells, str(error)) from None
            if x.shape != (len(lines), len(features)) or not np.isfinite(x).all():
                raise self._first_fault(number, cells, "a number is not finite")
            y = None
            if self.target is not None:
                y = self._target(number, cells, named)
                named = y.dtype.kind == "U"
            yield x.astype(self.dtype, copy=False), y

    def targets(self) -> Iterator[NDArray[Any]]:
        named: bool | None = None
        for number, lines in _lines(self.path, skip=self.header):
            y = self._target(number, self._cells(number, lines), named)
            named = y.dtype.kind == "U"
            yield y

    def _cells(self, number: int, lines: Sequence[str]) -> list[list[str]]:
        cells = [split(line, self.delimiter) for line in lines]
        expected = len(self.columns)
        for line, found in enumerate(cells, number):
            if len(found) != expected:
                _require_closed(self.path, line, lines[line - number])
                length = "short" if len(found) < expected else "long"
                raise DataError(
                    f"{self.path}: line {line}: a {length} row of {len(found)} cells, expected {expected}; it ends "
                    f"with {found[-1] if found else ''!r}"
                )
        return cells

    def _target(self, number: int, cells: list[list[str]], named: bool | None) -> NDArray[Any]:
        """Labels of a block as float64 or as strings; `named`: which of the two it was so far, None at the start."""
        assert self.target is not None
        texts = [row[self.target] for row in cells]
        try:
            joined = "".join(texts)
            if named or not joined.isascii() or "_" in joined:
                raise ValueError
            values = np.array([float(text) for text in texts])
            if np.isfinite(values).all():
                return values
        except ValueError:
            pass
        for line, text in enumerate(texts, number):
            value = _number(text)
            if not text or (value is not None and not math.isfinite(value)):
                raise self._fault(line, self.target, text)
            if named is None:
                named = value is None
            if named != (value is None):
                before, here = ("names", "the number") if named else ("numbers", "the name")
                raise DataError(
                    f"{self.path}: line {line}, {self.columns[self.target]}: {here} {text!r} in a target column of "
                    f"{before}; write all of its labels as numbers or all as names, or choose another target"
                )
        return np.array(texts, dtype=np.str_)

    def _first_fault(self, number: int, cells: list[list[str]], reason: str) -> DataError:
        for line, row in enumerate(cells, number):
            for column in self.features:
                value = _number(row[column])
                if value is None or not math.isfinite(value):
                    return self._fault(line, column, row[column])
        return DataError(
            f"{self.path}: lines {number} to {number + len(cells) - 1} cannot be read as numbers: {reason}"
        )

    def _fault(self, line: int, column: int, text: str) -> DataError:
        found = f"found {text!r}" if text else "the cell is empty"
        advice = "fill in or leave out the row"
        if _number(text) is None and text:
            advice = "leave out the column, or write it as numbers"
            if line == 1 and not self.header:
                advice += "; if line 1 is a header, say header=True"
            elif "," in text and _number(text.replace(",", ".")) is not None:
                advice = "write decimals with a point"
        return DataError(
            f"{self.path}: line {line}, {self.columns[column]}: expected a finite number, {found}; {advice}"
        )


def read_csv(
    path: str,
    *,
    target: str | int | None = None,
    delimiter: str | None = None,
    header: bool | str = "auto",
) -> Source:
    """Open a table in text, gzip or plain, UTF-8.

    Parameters
    ----------
    path : str
    target : str, int or None
        Column of the labels by name or by position from 0 (−1: the last); None: the last; "none": no labels.
    delimiter : "," ";" "tab" "blank" or None
        None: sniffed from the first lines.
    header : bool or "auto"
        "auto": line 1 is a header when it holds no number, or only quoted ones while line 2 is not quoted throughout.

    Raises
    ------
    DataError
        Names path, line, column and the text found.
    """
    if delimiter is not None and delimiter not in _DELIMITERS:
        raise ConfigError(f"delimiter: expected ',', ';', 'tab' or 'blank', found {delimiter!r}")
    if header not in (True, False, "auto"):
        raise ConfigError(f"header: expected True, False or 'auto', found {header!r}")
    lines = _first_lines(path)
    separator = _sniff(lines) if delimiter is None else _DELIMITERS[delimiter]
    first = split(lines[0], separator)
    if len(first) == 1:
        _require_closed(path, 1, lines[0])
    headed = _has_header(lines, separator) if header == "auto" else bool(header)
    columns = tuple(
        f"column {number} ({name!r})" if headed and name else f"column {number}" for number, name in enumerate(first)
    )
    position = _find_target(path, target, first if headed else None, len(first))
    return _source("csv", _Table(path, separator, headed, columns, position, np.dtype(np.float64)), None)


def read_usps(path: str) -> Source:
    """Open the USPS digits as *The Elements of Statistical Learning* distributes them, gzip or plain.

    Blank-separated, no header; the digit first, then 16×16 grey values from −1 to 1, kept as float32.

    Raises
    ------
    DataError
        Names path, line, column and the text found.
    """
    found = len(split(_first_lines(path)[0], None))
    if found != USPS_FEATURES + 1:
        raise DataError(f"{path}: line 1: expected a digit and {USPS_FEATURES} grey values, found {found} columns")
    columns = tuple(f"column {number}" for number in range(found))
    return _source("usps", _Table(path, None, False, columns, 0, np.dtype(np.float32)), (16, 16))


def recognises_usps(head: bytes) -> bool:
    """Whether the first line is 257 blank-separated numbers, of which the first is integral."""
    cells = head.split(b"\n", 1)[0].decode("latin-1").split()
    if len(cells) != USPS_FEATURES + 1:
        return False
    values = [_number(cell) for cell in cells]
    return None not in values and bool(values[0] == round(values[0] or 0.0))


def split(line: str, delimiter: str | None) -> list[str]:
    """The cells of a line without blanks around them; None: blanks delimit."""
    if '"' in line:
        if delimiter is None:
            line, delimiter = " ".join(line.split()), " "
        try:
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True))
        except csv.Error:  # quotation marks that do not pair, or a cell of more than 131,072 characters: no cells
            return [line]
        return [cell.strip() for cell in cells]
    return line.split() if delimiter is None else [cell.strip() for cell in line.split(delimiter)]


def _source(kind: str, table: _Table, image_shape: tuple[int, int] | None) -> Source:
    require_features(table.path, len(table.features))
    return Source(
        format=kind,
        path=table.path,
        n_rows=None,
        n_features=len(table.features),
        dtype=table.dtype,
        image_shape=image_shape,
        scale=1.0,
        blocks=table.blocks,
        targets=None if table.target is None else table.targets,
        files=(table.path,),
    )


def _number(text: str) -> float | None:
    """A decimal number as C writes it (nan and inf included), else None."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def _lines(path: str, *, skip: bool = False) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, lines) a quarter of a megabyte at a time; empty lines are allowed at the end only."""
    number, rest, empty = 1, b"", 0
    with open_stream(path) as stream:
        while True:
            piece = stream.read(_READ_BYTES)
            cut = piece.rfind(b"\n") + 1
            if piece and not cut:
                rest += piece
                if len(rest) > _MOST_LINE_BYTES:
                    raise DataError(f"{path}: line {number}: longer than {_MOST_LINE_BYTES:,} bytes; is this text?")
                continue
            raw, rest = (rest + piece[:cut], piece[cut:]) if piece else (rest, b"")
            rows = _decoded(path, number, raw)
            first, number = number, number + len(rows)
            while rows and not rows[-1].strip():
                rows.pop()
            if rows:
                empty = empty or next((at for at, line in enumerate(rows, first) if not line.strip()), 0)
                if empty:
                    raise DataError(f"{path}: line {empty}: an empty line between rows; remove it")
            if first + len(rows) < number:
                empty = empty or first + len(rows)
            if skip and rows:
                first, rows, skip = first + 1, rows[1:], False
            if rows:
                yield first, rows
            if not piece:
                return


def _decoded(path: str, number: int, raw: bytes) -> list[str]:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = number + raw.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}: line {line}: byte {raw[error.start]:#04x} is not UTF-8 text; convert the file to UTF-8"
        ) from None
    if "\0" in text:
        line = number + text.count("\n", 0, text.index("\0"))
        raise DataError(f"{path}: line {line}: a NUL character; this is not text in UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n") if text else []


def _require_closed(path: str, number: int, line: str) -> None:
    if line.count('"') % 2:
        raise DataError(f"{path}: line {number}: a quotation mark is not closed on its line")


def _first_lines(path: str) -> list[str]:
    for _, lines in _lines(path):
        return lines[:_LOOK_LINES]
    raise DataError(f"{path}: no rows: the file is empty")


def _sniff(lines: list[str]) -> str | None:
    """The delimiter that cuts the lines into equally many cells, most of them numbers."""

    def score(delimiter: str | None) -> tuple[float, float]:
        cells = [split(line, delimiter) for line in lines]
        width, agreeing = Counter(map(len, cells)).most_common(1)[0]
        if width < 2:
            return 0.0, 0.0
        body = [cell for row in cells[1:] or cells for cell in row]
        return sum(_number(cell) is not None for cell in body) / len(body), agreeing / len(cells)

    return max((",", ";", "\t", None), key=score)


def _has_header(lines: list[str], delimiter: str | None) -> bool:
    def numbers(cells: list[str]) -> bool:
        return any(_number(cell) is not None for cell in cells)

    def bare(line: str) -> list[str]:  # cells with their quotation marks, which hide a number
        return line.split() if delimiter is None else line.split(delimiter)

    if numbers(bare(lines[0])):
        return False
    return not numbers(split(lines[0], delimiter)) or (len(lines) > 1 and numbers(bare(lines[1])))


def _find_target(path: str, target: str | int | None, names: list[str] | None, width: int) -> int | None:
    if target == "none":
        return None
    if target is None:
        if width == 1:
            raise DataError(f"{path}: line 1: a single column, which cannot be row and target; say target='none'")
        return width - 1
    known = names or []
    if isinstance(target, str) and known.count(target) == 1:
        return known.index(target)
    if isinstance(target, str) and target in known:
        raise DataError(
            f"{path}: line 1: {known.count(target)} columns are named {target!r}; give the target's position"
        )
    try:
        position = int(target)
    except ValueError:
        there = f"its columns are {', '.join(map(repr, known))}" if known else "it has no header"
        raise DataError(f"{path}: no column {target!r} for the target; {there}") from None
    if not -width <= position < width:
        raise DataError(f"{path}: no column {position} for the target; its columns are 0 to {width - 1}")
    return position % width
