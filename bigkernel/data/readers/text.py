"""Tables in text: CSV in its dialects, and the USPS "zip code" digits.

A table has one row a line and the same number of cells in each, d features and at most one target. Numbers are read
strictly: what is not a finite decimal number is an error that names path, line (from 1), column and the text found.
`pyarrow.csv` parses blocks of lines; line by line is only for finding the first fault of a block that it refuses.

A target column holds either numbers or names, throughout. Names reach `Source.targets` as strings; whoever stores them
collects the distinct ones in a first pass over that column alone, and stores positions in the sorted list.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.lines import lines_of, number_in
from bigkernel.data.readers.source import Block, Source, group_ids, require_features
from bigkernel.errors import ConfigError, DataError

USPS_FEATURES = 256
_DELIMITERS = {",": ",", ";": ";", "\t": "\t", "tab": "\t", "\\t": "\t", " ": None, "blank": None}
_LOOK_LINES = 50


@dataclass(frozen=True)
class _Table:
    """The lines of one file as rows. `delimiter` None: runs of blanks; `target`, `group` None: no such column."""

    path: str
    delimiter: str | None
    header: bool
    columns: tuple[str, ...]  # what messages call them
    target: int | None
    dtype: np.dtype[Any]
    group: int | None = None

    @property
    def features(self) -> list[int]:
        return [column for column in range(len(self.columns)) if column not in (self.target, self.group)]

    def blocks(self) -> Iterator[Block]:
        named: bool | None = None
        features = self.features
        for number, lines in lines_of(self.path, skip=self.header):
            found = self._parsed(number, lines, features if self.target is None else [*features, self.target])
            x = np.column_stack([column.to_numpy() for column in found.columns[: len(features)]])
            if not np.isfinite(x).all():
                raise self._first_fault(number, lines, "a number is not finite")
            y = None
            if self.target is not None:
                y = self._target(number, _stripped(found.column(len(features))), named)
                named = y.dtype.kind == "U"
            yield x.astype(self.dtype, copy=False), y

    def targets(self) -> Iterator[NDArray[Any]]:
        named: bool | None = None
        assert self.target is not None
        for number, texts in self._texts(self.target):
            y = self._target(number, texts, named)
            named = y.dtype.kind == "U"
            yield y

    def groups(self) -> Iterator[NDArray[Any]]:
        assert self.group is not None
        for number, texts in self._texts(self.group):
            if "" in texts:
                raise self._fault(number + texts.index(""), self.group, "")
            yield group_ids(texts)

    def _texts(self, column: int) -> Iterator[tuple[int, list[str]]]:
        for number, lines in lines_of(self.path, skip=self.header):
            yield number, _stripped(self._parsed(number, lines, [column]).column(0))

    def _parsed(self, number: int, lines: Sequence[str], wanted: Sequence[int]) -> Any:
        """Return a `pyarrow.Table` of the columns `wanted`: features as float64, the others as text."""
        import pyarrow as pa  # type: ignore[import-untyped]  # late: --help needs none of it
        import pyarrow.csv  # type: ignore[import-untyped]

        text, delimiter = "\n".join(lines), self.delimiter
        if delimiter is None or '"' in text:  # pyarrow knows no runs of blanks, and no blanks before a quotation mark
            plain = io.StringIO()
            csv.writer(plain, lineterminator="\n").writerows(self._cells(number, lines))
            text, delimiter = plain.getvalue(), ","
        content, names = text.encode(), [str(column) for column in range(len(self.columns))]
        kinds = {names[at]: pa.string() if at in (self.target, self.group) else pa.float64() for at in wanted}
        reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names)
        parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False)
        converting = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), null_values=[])
        try:
            table = pyarrow.csv.read_csv(pa.BufferReader(content), reading, parsing, converting)
        except pa.ArrowInvalid as error:
            raise self._first_fault(number, lines, str(error)) from None
        if table.num_rows != len(lines):
            raise self._first_fault(number, lines, f"{table.num_rows} rows in {len(lines)} lines")
        return table

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

    def _target(self, number: int, texts: list[str], named: bool | None) -> NDArray[Any]:
        """Return labels as float64 or as strings; `named`: which of the two it was so far, None at the start."""
        assert self.target is not None
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
            value = number_in(text)
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

    def _first_fault(self, number: int, lines: Sequence[str], reason: str) -> DataError:
        for line, row in enumerate(self._cells(number, lines), number):
            for column in self.features:
                value = number_in(row[column])
                if value is None or not math.isfinite(value):
                    return self._fault(line, column, row[column])
        return DataError(
            f"{self.path}: lines {number} to {number + len(lines) - 1} cannot be read as numbers: {reason}"
        )

    def _fault(self, line: int, column: int, text: str) -> DataError:
        found = f"found {text!r}" if text else "the cell is empty"
        advice = "fill in or leave out the row"
        if number_in(text) is None and text:
            advice = "leave out the column, or write it as numbers"
            if line == 1 and not self.header:
                advice += "; if line 1 is a header, say header=True"
            elif "," in text and number_in(text.replace(",", ".")) is not None:
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
    group: str | int | None = None,
) -> Source:
    """Open a table in text, gzip or plain, UTF-8.

    The last line needs no end, so that a file that was cut within its last number looks whole; gzip shows such a cut.

    Parameters
    ----------
    path : str
    target : str, int or None
        Column of the labels by name or by position from 0 (−1: the last); None: the last; "none": no labels.
    delimiter : "," ";" "tab" "blank" or None
        None: sniffed from the first lines.
    group : str, int or None
        Column of the groups, by name or position; see `source.group_ids`.
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
    names = first if headed else None
    position = _find_target(path, target, names, len(first))
    grouped = None if group is None else find_column(path, group, names, len(first), "the groups")
    if grouped is not None and grouped == position:
        raise DataError(
            f"{path}: {columns[grouped]} is the target and the group; name the target, or say target='none'"
        )
    return _source("csv", _Table(path, separator, headed, columns, position, np.dtype(np.float64), grouped), None)


def read_usps(path: str) -> Source:
    """Open the USPS digits as *The Elements of Statistical Learning* distributes them, gzip or plain.

    Blank-separated, no header; the digit first, then 16×16 grey values from −1 to 1, kept as float32. A cut within the
    last number cannot be seen, as in `read_csv`.

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
    """Return True where the first line is 257 blank-separated numbers, of which the first is integral."""
    cells = head.split(b"\n", 1)[0].decode("latin-1").split()
    if len(cells) != USPS_FEATURES + 1:
        return False
    values = [number_in(cell) for cell in cells]
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
        groups=None if table.group is None else table.groups,
        files=(table.path,),
    )


def _stripped(column: Any) -> list[str]:
    return [text.strip() for text in column.to_pylist()]


def _require_closed(path: str, number: int, line: str) -> None:
    if line.count('"') % 2:
        raise DataError(f"{path}: line {number}: a quotation mark is not closed on its line")


def _first_lines(path: str) -> list[str]:
    for _, lines in lines_of(path):
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
        return sum(number_in(cell) is not None for cell in body) / len(body), agreeing / len(cells)

    return max((",", ";", "\t", None), key=score)


def _has_header(lines: list[str], delimiter: str | None) -> bool:
    def numbers(cells: list[str]) -> bool:
        return any(number_in(cell) is not None for cell in cells)

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
    return find_column(path, target, names, width, "the target")


def find_column(path: str, wanted: str | int, names: list[str] | None, width: int, role: str) -> int:
    """The position of a column of `width` by its name or position; raises DataError that names `role` otherwise."""
    known = names or []
    if isinstance(wanted, str) and known.count(wanted) == 1:
        return known.index(wanted)
    if isinstance(wanted, str) and wanted in known:
        raise DataError(
            f"{path}: line 1: {known.count(wanted)} columns are named {wanted!r}; give the position of {role}"
        )
    try:
        position = int(wanted)
    except ValueError:
        there = f"its columns are {', '.join(map(repr, known))}" if known else "it has no header"
        raise DataError(f"{path}: no column {wanted!r} for {role}; {there}") from None
    if not -width <= position < width:
        raise DataError(f"{path}: no column {position} for {role}; its columns are 0 to {width - 1}")
    return position % width
