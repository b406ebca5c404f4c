"""Tables in text, read by `pyarrow.csv`: CSV in its dialects, and the USPS "zip code" digits.

A table has one row a line and the same number of cells in each, d features and at most one target and one group. What
is no decimal number is an error that names the line, the column and the text found. Blanks between cells may be
several; they are made one before pyarrow sees them.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel.data.readers.columns import Columns, block_of, choose, load_pyarrow
from bigkernel.data.readers.lines import lines_of, number_in
from bigkernel.data.readers.source import Block, Source, open_stream, reading
from bigkernel.errors import ConfigError, DataError

USPS_FEATURES = 256
_DELIMITERS = {",": ",", ";": ";", "\t": "\t", "tab": "\t", "\\t": "\t", " ": " ", "blank": " "}
_LOOK_LINES = 50
_READ_BYTES = 2**18
_FAULT = re.compile(r"(?:In CSV column #(\d+)|CSV parse error): Row #(\d+): (.*)", re.DOTALL)


class _OneBlank(io.RawIOBase):
    """Text whose runs of blanks are one blank, and none at the ends of lines."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._held = handle, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._held:
            lines = self._handle.readlines(_READ_BYTES)
            self._held = b"".join(b" ".join(line.split()) + b"\n" for line in lines)
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        return size


@dataclass(frozen=True)
class _Table:
    """The lines of one file as rows."""

    path: str
    delimiter: str
    header: bool
    columns: Columns
    dtype: np.dtype[Any]
    longest_line: int

    def blocks(self) -> Iterator[Block]:
        start, named = 0, None
        with open_stream(self.path) as stream:
            handle = io.BufferedReader(_OneBlank(stream.handle)) if self.delimiter == " " else stream.handle
            batches = self._batches(handle)
            while True:
                with self._naming_faults(), reading(self.path):
                    batch = next(batches, None)
                if batch is None:
                    break
                if self.columns.target is not None:
                    batch, named = self._numbers_or_names(start, batch, named)
                yield block_of(self.path, start, batch, self.columns, self.dtype)
                start += batch.num_rows

    def _batches(self, handle: Any) -> Iterator[Any]:
        pa, csv_of = load_pyarrow("pyarrow"), load_pyarrow("pyarrow.csv")
        names = [str(place) for place in range(len(self.columns.names))]
        kinds = dict.fromkeys((names[place] for place in self.columns.read), pa.string())
        kinds |= {names[place]: pa.float64() for place in self.columns.features}
        size = max(_READ_BYTES, 8 * self.longest_line)
        reader = csv_of.open_csv(
            pa.PythonFile(handle, mode="r"),
            csv_of.ReadOptions(use_threads=False, block_size=size, column_names=names, skip_rows=int(self.header)),
            csv_of.ParseOptions(delimiter=self.delimiter),
            csv_of.ConvertOptions(column_types=kinds, include_columns=list(kinds), null_values=[]),
        )
        order = [names[place] for place in self.columns.read]
        yield from (batch.select(order) for batch in reader if batch.num_rows)

    @contextlib.contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except load_pyarrow("pyarrow").ArrowInvalid as error:
            found = _FAULT.fullmatch(str(error))
            if not found:
                raise DataError(f"{self.path}: no table in text: {error}") from None
            column, line, reason = found.groups()
            if column is None:
                raise DataError(f"{self.path}: line {line}: a row of another length: {reason[:100]}") from None
            advice = "leave the column out, name it as the target, or write it as numbers with a decimal point"
            if line == "1":
                advice += "; if line 1 is a header, say header=True"
            name = self.columns.names[int(column)]
            raise DataError(f"{self.path}: line {line}, {name}: expected a number: {reason}; {advice}") from None

    def _numbers_or_names(self, start: int, batch: Any, named: bool | None) -> tuple[Any, bool]:
        """Return a batch whose labels are float64, or text as it is; `named`: which of the two it was so far."""
        pa, compute = load_pyarrow("pyarrow"), load_pyarrow("pyarrow.compute")
        place = len(self.columns.features)
        texts = compute.utf8_trim_whitespace(batch.column(place))
        if not named:
            with contextlib.suppress(pa.ArrowInvalid):
                return batch.set_column(place, "target", texts.cast(pa.float64())), False
        distinct = compute.unique(texts).to_pylist()
        odd = [text for text in distinct if not text or (number_in(text) is not None and text != "-1")]
        if named is False:
            odd = [text for text in distinct if number_in(text) is None]
        if odd:
            row = start + compute.index(texts, odd[0]).as_py()
            raise DataError(
                f"{self.path}: row {row}, {self.columns.names[self.columns.target or 0]}: found {odd[0]!r} among "
                f"{'numbers' if named is False else 'names'}; write all labels as numbers or all as names"
            )
        return batch.set_column(place, "target", texts), True


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
    target, group : see `columns.choose`
    delimiter : "," ";" "tab" "blank" or None
        None: found from the first lines.
    header : bool or "auto"
        "auto": line 1 is a header when none of its cells is a number.
    """
    if delimiter is not None and delimiter not in _DELIMITERS:
        raise ConfigError(f"delimiter: expected ',', ';', 'tab' or 'blank', found {delimiter!r}")
    if header not in (True, False, "auto"):
        raise ConfigError(f"header: expected True, False or 'auto', found {header!r}")
    lines = _first_lines(path)
    separator = _sniff(lines) if delimiter is None else _DELIMITERS[delimiter]
    first = _cells(lines[0], separator)
    headed = all(number_in(cell) is None for cell in first) if header == "auto" else bool(header)
    if len(first) == 1 and target is None:
        raise DataError(f"{path}: line 1: a single column, which cannot be row and target; say target='none'")
    names = [cell if headed and cell else f"column {place}" for place, cell in enumerate(first)]
    return _source("csv", path, separator, headed, choose(path, names, target, group), np.dtype(np.float64), lines)


def read_usps(path: str) -> Source:
    """Open the USPS digits as *The Elements of Statistical Learning* distributes them, gzip or plain.

    Blank-separated, no header; the digit first, then 16×16 grey values from −1 to 1, kept as float32.
    """
    lines = _first_lines(path)
    found = len(lines[0].split())
    if found != USPS_FEATURES + 1:
        raise DataError(f"{path}: line 1: expected a digit and {USPS_FEATURES} grey values, found {found} columns")
    columns = choose(path, [f"column {place}" for place in range(found)], 0, None)
    return _source("usps", path, " ", False, columns, np.dtype(np.float32), lines)


def recognises_usps(head: bytes) -> bool:
    """Return True where the first line is 257 blank-separated numbers, of which the first is integral."""
    values = [number_in(cell) for cell in head.split(b"\n", 1)[0].decode("latin-1").split()]
    return len(values) == USPS_FEATURES + 1 and None not in values and (values[0] or 0.0).is_integer()


def _source(
    kind: str, path: str, delimiter: str, header: bool, columns: Columns, dtype: np.dtype[Any], lines: list[str]
) -> Source:
    table = _Table(path, delimiter, header, columns, dtype, max(map(len, lines)))
    return Source(
        format=kind,
        path=path,
        n_features=len(columns.features),
        dtype=dtype,
        blocks=table.blocks,
        labelled=columns.target is not None,
        grouped=columns.group is not None,
        image_shape=(16, 16) if kind == "usps" else None,
        files=(path,),
    )


def _first_lines(path: str) -> list[str]:
    for _, lines in lines_of(path):
        if filled := [line for line in lines if line.strip()]:
            return filled[:_LOOK_LINES]
    raise DataError(f"{path}: no rows: the file is empty")


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == " " and '"' not in line:
        return line.split()
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error:  # a cell of more than 131,072 characters: no cells
        return [line]


def _sniff(lines: list[str]) -> str:
    """Return the delimiter that cuts the lines into equally many cells, most of them numbers."""

    def score(delimiter: str) -> tuple[float, int]:
        rows = [_cells(line, delimiter) for line in lines]
        widths = {len(row) for row in rows}
        body = [cell for row in rows[1:] or rows for cell in row]
        if max(widths) < 2:
            return -1.0, 0
        return sum(number_in(cell) is not None for cell in body) / len(body), -len(widths)

    return max((",", ";", "\t", " "), key=score)
