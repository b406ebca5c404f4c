"""Tables, read by pyarrow: text in the dialects of CSV, Parquet files and folders.

Numeric columns become features (k, d) in their common dtype; at most one column is the target, of numbers or names, one
the group and one the ids of the rows, both of whole numbers or names. Rows stream by block or row group.

Messages count rows of data from 0, without the header and empty lines. In text, an invalid number is an error of
Arrow's that names row, column and text. Runs of blanks between cells are reduced to one before pyarrow reads them. Page
checksums of Parquet are verified if the file has them; without them not all damage is detected.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from dask.utils import natural_sort_key
from numpy.typing import NDArray

from bigkernel.data.labels import beyond_exact, checked_labels, group_code, require_exact
from bigkernel.data.readers import source
from bigkernel.data.table import TableEncoding
from bigkernel.data.zarr_arrays import OUTPUTS, require_names
from bigkernel.errors import BigKernelError, ConfigError, DataError

MOST_COLUMNS = 2**17  # each is an Arrow object
PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
_DELIMITERS = {"tab": "\t", "\\t": "\t", "blank": " "}
_COMMA = r"^([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)$"  # a number with a decimal comma
_THOUSANDS = r"[+-]?[1-9][0-9]{0,2},[0-9]{3}"  # or such a number
_WHOLE_ID = r"^(0|-?[1-9][0-9]{0,17})$"  # the text of an int64 that is written in the same way again
_ADVICE = (
    "set --decimal , for decimal commas, fill missing values, keep a column of text as the ids (--id-column COLUMN), "
    "leave out columns (--drop COLUMN) or rows (--on-bad-rows skip); copy a damaged file again"
)
_MISSING = ("", "?", "NA", "N/A", "null", "None")  # labels of rows that are left out as bad, and empty cells
_FALSE, _TRUE = ("False", "FALSE", "false"), ("True", "TRUE", "true")  # those of pandas
_CELLS: dict[str, Any] = {"null_values": _MISSING, "true_values": _TRUE, "false_values": _FALSE}
_MOST_TEXT_BYTES = 4096  # of a cell: 4,096 rows of a block are held as NumPy's text of the longest
_GROUP_BYTES = 2**28  # of a row group that is decoded, however small the file is
_INDEX = re.compile(r"__index_level_[0-9]+__|__null_dask_index__|Unnamed: 0(\.[0-9]+)?")  # of pandas and Dask
_TARGET = re.compile(r"(?i:labels?|targets?|class|y)")


def _arrow(module: str = "pyarrow") -> Any:
    return source.load_library(module, "tables need pyarrow")


@dataclass(frozen=True)
class Columns:
    """The positions of the columns of a table, and their names."""

    names: tuple[str, ...]
    features: tuple[int, ...]
    target: int | None
    group: int | None
    id: int | None
    flags: frozenset[int] = frozenset()  # features of True and False in text
    whole: frozenset[int] = frozenset()  # features whose first cells of text are whole numbers
    skipped: source.SkippedRows | None = None  # rows with missing or invalid cells become NaN, and lines are counted
    encode: TableEncoding | bool = False  # how columns become rows; True: they stay as they are
    notes: tuple[str, ...] = ()  # what was chosen and may be wrong

    @property
    def read(self) -> list[int]:
        """Positions of the columns to read: features, then the target, the group and the ids."""
        others = (self.target, self.group, self.id)
        return [*self.features, *(place for place in others if place is not None)]

    @property
    def named(self) -> dict[str, Any]:
        """The names of the features and of the target, as fields of a `Source`."""
        names = tuple(self.names[place] for place in self.features)
        if isinstance(self.encode, TableEncoding):
            names = tuple(self.encode.outputs)
        return {"feature_names": names, "target": "" if self.target is None else self.names[self.target]}

    @property
    def width(self) -> int:
        """The number of features of a row."""
        return len(self.encode.outputs) if isinstance(self.encode, TableEncoding) else len(self.features)

    @property
    def texts(self) -> set[int]:
        """The positions of features that are read from text as text."""
        if isinstance(self.encode, TableEncoding):
            numeric = [column.numeric for column in self.encode.columns]
            return {place for place, known in zip(self.features, numeric, strict=True) if not known}
        return {*self.features} if self.encode or self.skipped else set()

    @property
    def roles(self) -> dict[str, Any]:
        """What the columns are, as fields of a `Source`."""
        labelled, grouped = self.target is not None, self.group is not None
        encoding = self.encode if isinstance(self.encode, TableEncoding) else None
        return {
            "encoding": encoding,
            "notes": self.notes,
            "labelled": labelled,
            "grouped": grouped,
            "id_column": "" if self.id is None else self.names[self.id],
        }


Column = str | int  # a name or a position


def choose(
    path: str,
    names: Sequence[str],
    target: Column | None = None,
    group: Column | None = None,
    id: Column | None = None,
    drop: Sequence[Column] = (),
    skipped: source.SkippedRows | None = None,
    encode: TableEncoding | bool = False,
    index: Collection[str] = (),
    notes: Sequence[str] = (),
) -> Columns:
    """Choose the columns of features, target, group and ids.

    Parameters
    ----------
    target : name or position (−1: the last); None: that of the encoding, if known, else one that is called so, else the
        last; "none": no labels
    group, id : name or position, or None
    drop : names or positions of columns to leave out
    skipped, encode : see `Columns`; with an encoding the features are its columns, by name
    index : names of columns that are left out unless they are named
    """
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{path}: expected at most {MOST_COLUMNS:,} columns, found {len(names):,}; save a NumPy array")
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise DataError(f"{path}: two columns are named {twice!r}; rename or remove one")
    dropped = {_find(path, names, column, "--drop") for column in drop}
    identity = None if id is None else _find(path, names, id, "the ids")
    if identity is not None:
        require_names([names[identity]], OUTPUTS)
    grouped = None if group is None else _find(path, names, group, "the groups")
    given = encode.names if isinstance(encode, TableEncoding) else ()
    if missing := [name for name in given if name not in names]:
        raise DataError(f"{path}: expected the {len(given)} columns of the fit, found no {missing[0]!r}")
    unused = {place for place, name in enumerate(names) if name in index or _INDEX.fullmatch(name)} - dropped
    rest = [place for place in range(len(names)) if place not in dropped | unused or names[place] in given]
    if target in (None, -1):
        known = encode.target if isinstance(encode, TableEncoding) and target is None else ""
        others = [names[place] for place in rest if place not in (identity, grouped)]
        usual = [name for name in others if _TARGET.fullmatch(name) and name not in given]
        last = "none" if not others or others[-1] in given else others[-1]
        target = known or (usual[0] if len(usual) == 1 else last)
        notes = [*notes, f"the target is {target!r}; --target names another column"]
    label = None if target == "none" else _find(path, names, target, "the target")
    roles = [place for place in (label, grouped, identity) if place is not None]
    if len(set(roles)) < len(roles):
        place, _ = Counter(roles).most_common(1)[0]
        raise DataError(f"{path}: {names[place]!r} is two of target, group and id; name another column")
    for place in dropped & set(roles):
        raise DataError(f"{path}: {names[place]!r} is to be left out (--drop), and is the target, the group or the id")
    features = tuple(list(names).index(name) for name in given) or tuple(place for place in rest if place not in roles)
    for place in {*features} & {*roles, *dropped}:
        raise DataError(f"{path}: {names[place]!r} is a column of the fit; name another as target, group or id")
    source.require_features(path, len(features))
    if left := [names[place] for place in sorted(unused - {*features, *roles})]:
        notes = [*notes, f"left out {', '.join(map(repr, left))}, an index or empty; --id-column keeps one as the id"]
    chosen = Columns(tuple(names), features, label, grouped, identity, skipped=skipped, encode=encode)
    return replace(chosen, notes=tuple(notes))


def _find(path: str, names: Sequence[str], column: str | int, role: str) -> int:
    if column in names:
        return list(names).index(str(column))
    try:
        position = int(column)
    except ValueError:
        there = ", ".join(map(repr, names[:20]))
        advice = "; a table without labels needs --target none" if role == "the target" else ""
        raise DataError(f"{path}: found no column {column!r} for {role}; the columns are {there}{advice}") from None
    if not -len(names) <= position < len(names):
        raise DataError(f"{path}: found no column {position} for {role}; the columns are 0 to {len(names) - 1}")
    return position % len(names)


def _refuse_text(path: str, columns: Columns, places: Sequence[int]) -> None:
    """Raise `DataError` if there are columns of features that hold text."""
    if places:
        names = [columns.names[place] for place in places[:5]]
        shown = ", ".join(map(repr, names)) + ", …" * (len(places) > 5)
        drop = " ".join(f"--drop {shlex.quote(name)}" for name in names)
        raise DataError(
            f"{path}: {len(places)} column{'s' * (len(places) > 1)} of text: {shown}; encode text, dates and missing "
            f"values (--encode; in Python TableEncoder), leave them out ({drop}), or name one as --target, --id-column "
            "or --group-column"
        )


def _block_of(path: str, rows: NDArray[Any], batch: Any, columns: Columns, dtype: np.dtype[Any]) -> source.Block:
    """Return the block of an Arrow batch with these rows of the file, with `columns.read` in that order."""
    d, missing = len(columns.features), np.zeros(batch.num_rows, bool)
    holed, whole = list[str](), _arrow("pyarrow.types").is_integer
    for place, column in zip(columns.read, batch.columns, strict=True):
        _require_short(path, columns.names[place], column)
        numeric = place in columns.whole and not _is_text(column.type)
        if (numeric or whole(column.type)) and place not in (columns.group, columns.id):
            require_exact(path, rows, columns.names[place], column.to_numpy(zero_copy_only=False))
        if columns.encode and place in columns.features:
            continue
        if column.null_count and not (columns.skipped is None and place == columns.target):
            missing |= column.is_null().to_numpy(zero_copy_only=False)
            holed.append(columns.names[place])
    if holed and columns.skipped is None:
        several, names = "s" * (len(holed) > 1), ", ".join(map(repr, holed[:20])) + ", …" * (len(holed) > 20)
        raise DataError(
            f"{path}: row {rows[np.argmax(missing)]} (from 0), column{several} {names}: missing value{several}; encode "
            "them by medians (--encode; in Python TableEncoder), or leave out rows (--on-bad-rows skip) "
            f"or columns (--drop {shlex.quote(holed[0])})"
        )
    x = np.empty((batch.num_rows, d), dtype)
    if columns.encode:
        x = _table_of(columns, batch)
    for j in range(0 if columns.encode else d):
        x[:, j] = batch.column(j).to_numpy(zero_copy_only=False)
    if missing.any() and columns.encode is not True:
        x[missing] = np.nan
    others = {place: batch.column(d + k) for k, place in enumerate(columns.read[d:])}
    y = None if columns.target is None else _labels(others[columns.target])
    ids = None if columns.id is None else _ids(others[columns.id])
    if columns.group is None:
        return x, y, None, ids
    groups = [group_code(str(value)) for value in others[columns.group].to_pylist()]
    return x, y, np.array(groups, np.int64), ids


def _require_short(path: str, name: str, column: Any) -> None:
    """Raise an error for texts that would take far more memory than the file."""
    values = column.dictionary if hasattr(column, "dictionary") else column
    if _is_text(values.type):
        compute = _arrow("pyarrow.compute")
        if (longest := compute.max(compute.binary_length(values)).as_py() or 0) > _MOST_TEXT_BYTES:
            raise DataError(
                f"{path}: column {name!r}: expected texts of at most {_MOST_TEXT_BYTES:,} bytes, found one of "
                f"{longest:,}; leave the column out (--drop {shlex.quote(name)})"
            )


def _table_of(columns: Columns, batch: Any) -> NDArray[Any]:
    """Return the features of a batch: encoded (k, p), or as a structured array of cells (k,)."""
    pa, types, cells = _arrow(), _arrow("pyarrow.types"), {}
    for place, given in zip(columns.features, batch.columns, strict=False):
        column = given.dictionary_decode() if hasattr(given, "dictionary") else given
        if types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type):
            column = column.cast(pa.float64())
        elif types.is_date(column.type):
            column = column.cast(pa.timestamp("us"))
        cells[columns.names[place]] = column.to_numpy(zero_copy_only=False)
    if isinstance(columns.encode, TableEncoding):
        each = zip(columns.encode.columns, cells.items(), strict=True)
        parsed = {name: column.parse(own) if own.dtype == object else own for column, (name, own) in each}
        return columns.encode.encode(parsed)
    x = np.empty(batch.num_rows, [(name, own.dtype) for name, own in cells.items()])
    for name, own in cells.items():
        x[name] = own
    return x


def numbers_in(table: source.Source, cells: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return cells as numbers with NaN for missing ones, flags as 0 and 1; None if others are among them.

    Only in a text file is text a number.
    """
    if cells.dtype.kind == "f" or table.format != "csv":
        return cells if cells.dtype.kind == "f" else None
    flags = {**dict.fromkeys(_FALSE, 0.0), **dict.fromkeys(_TRUE, 1.0)}
    known = {*cells.tolist()} - {None}
    values = {text: flags.get(text) for text in known} if known <= {*flags} else {}
    values = values or {text: source.number_in(text) for text in known}
    if None in values.values():
        return None
    return np.array([values.get(text, np.nan) for text in cells], np.float64)


def _labels(column: Any) -> NDArray[Any]:
    values = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
    labels = values.to_numpy(zero_copy_only=False)
    if labels.dtype.kind == "O":
        labels = checked_labels(labels)
    if labels.dtype.kind == "U":  # empty cells and nan: unlabelled
        labels = np.where(np.isin(np.char.lower(np.char.strip(labels)), ("", "nan")), "-1", labels)
    return np.asarray(labels)


def _ids(column: Any) -> NDArray[Any]:
    """Return ids as int64 if all are whole numbers in their usual form, else as text; 0 or "" if missing."""
    pa, compute = _arrow(), _arrow("pyarrow.compute")
    texts = column.cast(pa.string())
    whole = compute.all(compute.match_substring_regex(texts, _WHOLE_ID)).as_py()
    texts = compute.fill_null(texts, "0" if whole else "")
    return np.asarray(texts.cast(pa.int64()) if whole else np.array(texts.to_pylist(), np.dtypes.StringDType()))


# ---------------------------------------------------------------- text


def _with_one_blank(handle: Any) -> Iterator[bytes]:
    """Yield lines with runs of blanks reduced to one."""
    while lines := handle.readlines(source.READ_BYTES):
        yield b"".join(b" ".join(line.split()) + b"\n" for line in lines)


def _text_source(path: str, columns: Columns, delimiter: str, header: bool, comma: bool) -> source.Source:
    """Return a source of the lines of a file as rows; labels are float64 or text. `comma`: decimals have one."""
    pa, csv_of, compute = _arrow(), _arrow("pyarrow.csv"), _arrow("pyarrow.compute")
    names = [str(place) for place in range(len(columns.names))]
    order, place, dtype = [names[column] for column in columns.read], len(columns.features), np.dtype(np.float64)
    kinds = dict.fromkeys(order, pa.string())
    numeric = {*columns.features} - columns.texts  # with `skipped` invalid cells of text become missing ones
    kinds |= {names[column]: pa.bool_() if column in columns.flags else pa.float64() for column in numeric}
    size = max(source.READ_BYTES, 8 * max(map(len, _first_lines(path))))

    def blocks() -> Iterator[source.Block]:
        start, named, omitted = 0, False, list[int]()  # omitted: rows of other cells, from `start` on

        def skip_line(line: Any) -> str:
            if columns.skipped is None:
                return "error"
            omitted.append(line.number - 1 - header)
            columns.skipped.add(path, omitted[-1:])
            return "skip"

        with source.open_stream(path) as stream, source.reading(path), _reading_arrow(path, columns.names, 1 + header):
            pieces = source.Pieces(_with_one_blank(stream.handle))
            handle = io.BufferedReader(pieces) if delimiter == " " else stream.handle
            reading = {"use_threads": False, "block_size": size, "column_names": names}
            reader = csv_of.open_csv(
                pa.PythonFile(handle, mode="r"),
                csv_of.ReadOptions(**reading, skip_rows_after_names=int(header)),
                csv_of.ParseOptions(delimiter=delimiter, invalid_row_handler=skip_line, newlines_in_values=True),
                csv_of.ConvertOptions(column_types=kinds, decimal_point=".,"[comma], include_columns=order, **_CELLS),
            )
            for batch in (batch.select(order) for batch in reader if batch.num_rows):
                rows = np.arange(start, start + batch.num_rows)
                if omitted:
                    rows += np.searchsorted(np.array(omitted) - np.arange(len(omitted)), rows, side="right")
                cells, labelled = batch.columns, columns.target is not None
                if comma:
                    cells[: place + labelled] = map(_with_points, cells[: place + labelled])
                if columns.encode:
                    cells[:place] = map(_without_missing, cells[:place])
                elif columns.skipped is not None:
                    kinds_of = zip(columns.features, cells, strict=False)
                    cells[:place] = [_numbers_or_none(texts, column in columns.flags) for column, texts in kinds_of]
                if columns.target is not None:
                    texts = compute.utf8_trim_whitespace(cells[place])
                    if columns.skipped is not None:
                        texts = _without_missing(texts)
                    cells[place], named = _numbers_or_names(path, columns.names[columns.target], rows, texts, named)
                if columns.id is not None:
                    texts = compute.utf8_trim_whitespace(cells[-1])
                    cells[-1] = compute.if_else(compute.equal(texts, ""), None, texts)
                block = _block_of(path, rows, pa.record_batch(cells, names=order), columns, dtype)
                yield block if columns.skipped is None else (*block, rows)
                start = int(rows[-1]) + 1
                omitted[:] = [row for row in omitted if row >= start]

    return source.Source("csv", path, columns.width, dtype, blocks, files=(path,), **columns.roles)


def _with_points(texts: Any) -> Any:
    """Return cells of text with decimal points instead of commas; those with points become no numbers."""
    if not _is_text(texts.type):
        return texts
    compute = _arrow("pyarrow.compute")
    texts = compute.replace_substring_regex(
        compute.utf8_trim_whitespace(texts), r"^([+-]?[0-9]*)\.([0-9.,]*)$", r"\1'\2"
    )
    return compute.replace_substring_regex(texts, _COMMA, r"\1.\2")


def _without_missing(texts: Any) -> Any:
    """Return cells of text with null for those that say so; numbers are unchanged."""
    pa, compute = _arrow(), _arrow("pyarrow.compute")
    if not _is_text(texts.type):
        return texts
    return compute.if_else(compute.is_in(compute.utf8_trim_whitespace(texts), pa.array(_MISSING)), None, texts)


def _numbers_or_none(texts: Any, flags: bool) -> Any:
    """Return cells of text (of True and False, with `flags`) as float64, null where they are no number."""
    pa, compute = _arrow(), _arrow("pyarrow.compute")
    if flags:
        known = compute.index_in(compute.utf8_trim_whitespace(texts), pa.array([*_FALSE, *_TRUE]))
        return compute.greater_equal(known, len(_FALSE)).cast(pa.float64())
    with contextlib.suppress(pa.ArrowInvalid):
        return texts.cast(pa.float64())
    return pa.array([source.number_in(text) for text in texts.to_pylist()], pa.float64())


def _numbers_or_names(path: str, name: str, rows: NDArray[Any], texts: Any, named: bool) -> tuple[Any, bool]:
    """Return labels as float64, or as text if they are names; `named`: earlier ones were names."""
    pa, compute = _arrow(), _arrow("pyarrow.compute")
    if not named:
        with contextlib.suppress(pa.ArrowInvalid):
            numbers = compute.if_else(compute.equal(texts, ""), "nan", texts).cast(pa.float64())
            values = numbers.to_numpy(zero_copy_only=False)
            if beyond_exact(values).any() and not compute.any(compute.match_substring_regex(texts, "[.eE]")).as_py():
                require_exact(path, rows, name, values)
            return numbers, False
    for text in compute.unique(texts.drop_null()).to_pylist():
        if _kind(text) in ("whole", "number") and text != "-1" and text.lower() != "nan":
            row = rows[compute.index(texts, text).as_py()]
            raise DataError(
                f"{path}: row {row} (from 0): found the label {text!r} among names; write all labels as numbers or all "
                "as names"
            )
    return texts, True


@contextlib.contextmanager
def _reading_arrow(path: str, names: Sequence[str] = (), first: int = 1) -> Iterator[None]:
    """Turn Arrow's errors about a file into a DataError, with row and column if known, the latter by name.

    `first` is the number that Arrow gives the first row of data.
    """
    try:
        yield
    except BigKernelError:
        raise
    except (_arrow().ArrowException, OSError, ValueError) as error:
        reason = str(error).strip().rstrip(".")
        reason = re.sub(
            "(straddling|CSV parser got).*", "a row is longer than 256 kB, or a quote lacks its end", reason
        )
        reason = re.sub(r"CSV column #(\d+)", lambda match: f"column {names[int(match[1])]!r}", reason)
        reason = re.sub(r"Row #(\d+)", lambda match: f"row {int(match[1]) - first} (from 0)", reason)
        raise DataError(f"{path}: cannot be read as a table of numbers: {reason}; {_ADVICE}") from error


def read_csv(
    path: str, *, delimiter: str | None = None, decimal: str | None = None, header: bool | None = None, **others: Any
) -> source.Source:
    """Open a table in UTF-8 text, also compressed.

    The last line needs no newline, so a file truncated within its last number is accepted; compression detects that.

    Parameters
    ----------
    delimiter, decimal : a character, "tab" or "blank" (runs of blanks); "." or ","; None: detected from the first lines
    header : whether line 1 names the columns; None: if it differs from the lines below as names do
    others : see `choose`
    """
    separator = _DELIMITERS.get(delimiter or "", delimiter)
    if not re.fullmatch(r'[^\w\r\n"]', separator or ",", re.ASCII):
        raise ConfigError(f"delimiter: expected one character, 'tab' or 'blank', found {delimiter!r}")
    if decimal not in (None, ".", ","):
        raise ConfigError(f"decimal: expected '.' or ',', found {decimal!r}")
    separator, comma, (first, *body) = _sniff(_first_lines(path), separator, decimal)
    notes = ["decimals have a comma; set --decimal . if they do not"] * (comma and decimal is None)
    width = Counter(map(len, body or [first])).most_common(1)[0][0]
    ends = bool(body) and not any(row[-1] for row in body)
    if {*map(len, body)} == {len(first) + 1} and not _has_header(body[0], body[1:])[0]:
        first = [*first, ""] if ends else ["", *first]  # delimiters at the end of rows, or the names that R writes
    shown = f"line 1, {separator.join(first)!r:.60},"
    if width != len(first) or (width == 1 and others.get("target") is None):
        raise DataError(
            f"{path}: expected several columns, found {len(first)} in {shown} and {width} in most lines; remove lines "
            "above the table, name what separates cells (--delimiter), or read a column without labels (--target none)"
        )
    given = others.get("encode")
    if header is None:
        fitted = isinstance(given, TableEncoding) and {*given.names} <= {*first}
        header, sure = (True, True) if fitted else _has_header(first, body)
        found, other = ("the header", "no") if header else ("a row of data", "yes")
        notes += [f"{shown} is {found}; set --header {other} if it is not"] * (not sure)
    names = [cell if header and cell else f"column {place}" for place, cell in enumerate(first)]
    index = names[:1] if header and not first[0] else names[-1:] if ends and not (header and first[-1]) else ()
    columns = choose(path, names, index=index, notes=notes, **others)
    rows = body if header else [first, *body]
    cells = {place: {row[place] for row in rows if len(row) > place} - {*_MISSING} for place in columns.features}
    texts = {place for place, found in cells.items() if {*map(_kind, found)} == {"text"}}
    flags = frozenset(place for place in texts if cells[place] <= {*_TRUE, *_FALSE})
    if not columns.encode:
        _refuse_text(path, columns, sorted(texts - flags))
    whole = frozenset(place for place, found in cells.items() if {*map(_kind, found)} <= {"whole"})
    columns = replace(columns, flags=flags, whole=whole)
    table = _text_source(path, columns, separator, header, comma)
    return replace(table, **columns.named) if header or columns.encode else table


def _kind(cell: str) -> str:
    if cell in _MISSING or cell.lstrip("+-").isdecimal():
        return "whole" if cell not in _MISSING else ""
    return "number" if re.fullmatch(_COMMA, cell) or source.number_in(cell) is not None else "text"


def _first_lines(path: str) -> list[str]:
    for _, lines in source.lines_of(path):
        if filled := [line for line in lines if line.strip()]:
            return filled[:500]
    raise DataError(f"{path}: expected at least one row, found an empty file")


def _rows_of(lines: list[str], delimiter: str) -> list[list[str]]:
    """Return the cells of the first 50 rows; those in quotes may have several lines."""
    ended = (f"{' '.join(line.split()) if delimiter == ' ' else line}\n" for line in lines)
    try:
        rows = [*islice(csv.reader(ended, delimiter=delimiter, skipinitialspace=True), 51)]
    except csv.Error:  # a cell of more than 131,072 characters: no cells
        return [[line] for line in lines]
    complete = rows[:-1] if len(rows) > 1 and (len(rows) > 50 or len(lines) == 500) else rows
    return [[cell.strip() for cell in row] for row in complete]


def _sniff(lines: list[str], delimiter: str | None, decimal: str | None) -> tuple[str, bool, list[list[str]]]:
    """Return a delimiter, whether decimals have commas, and the rows: equally many cells, most of them numbers."""

    def score(dialect: tuple[str, bool]) -> tuple[float, int]:
        rows = _rows_of(lines, dialect[0])
        widths = {len(row) for row in rows}
        body = [cell for row in rows[1:] or rows for cell in row]
        if max(widths) < 2:
            return -1.0, 0
        numbers = sum(",."[dialect[1]] not in cell and _kind(cell) in ("whole", "number") for cell in body)
        return numbers / len(body), -len(widths)

    commas = (False, True) if decimal is None else (decimal == ",",)
    separator, comma = max(((one, comma) for one in delimiter or ",;\t| " for comma in commas), key=score)
    rows = _rows_of(lines, separator)
    thousands = all(re.fullmatch(_THOUSANDS, cell) for row in rows for cell in row if re.fullmatch(_COMMA, cell))
    return separator, comma and not (thousands and decimal is None), rows


def _has_header(first: list[str], body: list[list[str]]) -> tuple[bool, bool]:
    """Return whether line 1 names the columns, as it differs from the lines below, and whether that is sure."""
    kinds, places = [*map(_kind, first)], range(len(first))
    below = [{row[place] for row in body if len(row) > place} for place in places]
    differ = {kinds[place] for place in places if below[place] and kinds[place] not in map(_kind, below[place])}
    again = any(kinds[place] == "text" and first[place] in below[place] for place in places)
    if "number" in kinds or "whole" not in kinds:
        named = "number" not in kinds and ("text" in differ or not again)
        return named, named or "number" in kinds
    if "text" in differ and len(body) > 1:
        return True, False
    steps = {*np.diff([int(cell) for cell in first if _kind(cell) == "whole"]).tolist()}
    rises = not again and len(steps) == 1 and min(steps) > 0  # as positions and years do
    return rises and "whole" in differ and kinds.count("whole") > 2, not (rises or "whole" in differ)


# ---------------------------------------------------------------- Parquet


def read_parquet(path: str, **options: Any) -> source.Source:
    """Open a Parquet file, or a folder of files in natural order of their names (without hidden ones and `_…`).

    Columns of an index, by the metadata of pandas or their names, are the last ones. `options` are those of `choose`.
    """
    files, n_rows, schema = _files(path), 0, None
    for name in files:
        with _opened(name) as file:
            schema = schema or file.schema_arrow
            if not file.schema_arrow.equals(schema):
                raise DataError(f"{name}: expected the columns of {files[0]}, found others; all files need the same")
            n_rows += file.metadata.num_rows
            groups = (file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            if (largest := max(groups, default=0)) > max(_GROUP_BYTES, source.DEFLATE_RATIO * os.path.getsize(name)):
                raise DataError(
                    f"{name}: a row group of {largest:,} bytes in a file of {os.path.getsize(name):,} may not fit in "
                    "memory; write it with smaller row groups, or with dictionaries"
                )
    assert schema is not None
    with _reading_arrow(path):
        index = {name for name in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)}
    names = sorted(schema.names, key=lambda name: name in index or _INDEX.fullmatch(name) is not None)
    columns = choose(path, names, index=index, **options)
    dtype = np.dtype(np.float64)
    if not columns.encode:
        _refuse_text(path, columns, [place for place in columns.features if _is_text(schema.field(names[place]).type)])
        dtype = np.result_type(*(_dtype(files[0], schema.field(names[place])) for place in columns.features))
    dtype = dtype if columns.skipped is None else np.result_type(dtype, np.float32)
    if columns.target is not None:
        _dtype(files[0], schema.field(names[columns.target]), text=True)
    kind, types = schema.field(names[columns.id or 0]).type, _arrow("pyarrow.types")
    if columns.id is not None and not (_is_text(kind) or types.is_integer(kind) or types.is_temporal(kind)):
        raise DataError(
            f"{path}: column {names[columns.id]!r}: expected whole numbers, text or times as ids, found {kind}"
        )
    order, step = [names[place] for place in columns.read], source.block_rows(columns.width * dtype.itemsize)
    texts = [field.name for field in schema if field.name in order and _is_text(field.type)]

    def blocks() -> Iterator[source.Block]:
        for name in files:
            with _opened(name, texts) as file:
                start = 0
                for batch in file.iter_batches(step, columns=order, use_threads=False):
                    rows = np.arange(start, start + batch.num_rows)
                    yield _block_of(name, rows, batch.select(order), columns, dtype)
                    start += batch.num_rows
                if start != (count := file.metadata.num_rows):
                    raise DataError(f"{name}: expected {count} rows as in the footer, found {start}; {source.AGAIN}")

    known = {"files": () if os.path.isdir(path) else files, **columns.named, **columns.roles}
    return source.Source("parquet", path, columns.width, dtype, blocks, n_rows, **known)


def _files(path: str) -> tuple[str, ...]:
    if not os.path.isdir(path):
        if kind := source.compression_of(path):
            raise DataError(f"{path}: expected Parquet without {kind}, as it is read in pieces; decompress it")
        return (path,)
    names = sorted((name for name in os.listdir(path) if not name.startswith((".", "_"))), key=natural_sort_key)
    for name in names:
        # reading a pipe would block
        if not name.lower().endswith(PARQUET_ENDINGS) or not os.path.isfile(os.path.join(path, name)):
            raise DataError(
                f"{path}: expected only Parquet files ({', '.join(PARQUET_ENDINGS)}), found {name!r}; move it elsewhere"
            )
    if not names:
        raise DataError(f"{path}: expected a Parquet file in the folder, found none")
    return tuple(os.path.join(path, name) for name in names)


@contextlib.contextmanager
def _opened(path: str, texts: Sequence[str] = ()) -> Iterator[Any]:
    parquet = _arrow("pyarrow.parquet")
    options = {
        "read_dictionary": list(texts),
        "buffer_size": 2**16,
        "pre_buffer": False,
        "page_checksum_verification": True,
    }
    with _reading_arrow(path), parquet.ParquetFile(path, **options) as file:
        yield file


def _is_text(kind: Any) -> bool:
    """Return whether a type of Arrow is text, or categories of text."""
    types = _arrow("pyarrow.types")
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _dtype(path: str, field: Any, *, text: bool = False) -> np.dtype[Any]:
    """Return the dtype of a column of numbers, or of labels with `text`."""
    types = _arrow("pyarrow.types")
    if text and _is_text(field.type):
        return np.dtype(np.str_)
    if types.is_boolean(field.type):
        return np.dtype(np.uint8)
    if types.is_integer(field.type) or types.is_floating(field.type):
        dtype: np.dtype[Any] = np.dtype(field.type.to_pandas_dtype())
        return dtype
    raise DataError(
        f"{path}: column {field.name!r}: expected numbers, found {field.type}; name it as target, group or id, leave "
        "it out (--drop), or convert it to numbers"
    )
