"""Readers of other file formats, one per format, listed in one table.

`open_source` reads the header of a file, a folder or a store and returns a `Source`; `write_corpus` streams sources
into a corpus. No reader holds a whole file (except Fortran-ordered npz), and faults in a file are
`DataError`s that name the path and the row.

source : what a reader returns, and helpers for bytes, lines and arrays
arrays : npy, npz and IDX
libsvm : LIBSVM text
tables : CSV and Parquet
stores : zarr of other programs
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigkernel.data import zarr_arrays
from bigkernel.data.labels import beyond_exact
from bigkernel.data.readers import arrays, libsvm, stores, tables
from bigkernel.data.readers.source import (
    BLOCK_ARRAYS,
    Block,
    SkippedRows,
    Source,
    compression_of,
    plain_name,
    require_file,
    without_bad_rows,
)
from bigkernel.data.table import TableColumn, TableEncoding
from bigkernel.errors import ConfigError, DataError

__all__ = ["ENDINGS", "FORMATS", "OPTIONS", "Source", "is_table_file", "learn_encoding", "open_source"]

_SAMPLE_ROWS = 100_000  # from which an encoding is learned


@dataclass(frozen=True)
class _Reader:
    description: str
    read: Callable[..., Source]
    options: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    recognises: Callable[[bytes], bool] | None = None
    recognises_folder: Callable[[Sequence[str]], bool] | None = None
    files: bool = True  # whether a plain file may be of this format
    dtype: str | None = None  # of the rows as stored by default; None: as they are read


def _is_npz(head: bytes) -> bool:
    return head.startswith(b"PK\x03\x04") and b".npy" in head[30:300]


def _is_idx(head: bytes) -> bool:
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in arrays.IDX_TYPES and 1 <= head[3] <= 4


def _begins(*magic: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magic)


_TABLE = ("target", "group", "id", "drop", "encode")
_DIALECT = ("delimiter", "decimal", "header")
_TEXT = (".csv", ".tsv", ".txt", ".dat", ".data")
_SVM = (".libsvm", ".svm", ".svmlight")
# in the order in which `auto` tries them
_READERS: dict[str, _Reader] = {
    "npy": _Reader("NumPy array (n, d) or (n, h, w)", arrays.read_npy, ("labels",), (".npy",), _begins(b"\x93NUMPY")),
    "npz": _Reader("NumPy archive of x and y", arrays.read_npz, ("x", "y"), (".npz",), _is_npz),
    "idx": _Reader("IDX images as of MNIST", arrays.read_idx, ("labels",), (".idx", "-ubyte"), _is_idx),
    "parquet": _Reader(
        *("Parquet file, or folder of parts", tables.read_parquet, _TABLE, tables.PARQUET_ENDINGS),
        *(_begins(b"PAR1"), lambda names: any(name.lower().endswith(tables.PARQUET_ENDINGS) for name in names)),
    ),
    "zarr": _Reader(
        *("zarr array or group, folder or URL", stores.read, ("x", "y")),
        recognises_folder=lambda names: not {"zarr.json", ".zarray", ".zgroup"}.isdisjoint(names),
        files=False,
    ),
    "libsvm": _Reader(
        *("text: label index:value …", libsvm.read, ("features", "zero_based"), _SVM, libsvm.recognises),
        dtype="float32",
    ),
    "csv": _Reader("table in text: , ; | tab or blank", tables.read_csv, (*_TABLE, *_DIALECT), _TEXT),
}

FORMATS: dict[str, str] = {name: reader.description for name, reader in _READERS.items()}
"""Format name -> one line that describes it, for the command line's help."""

ENDINGS = {ending for reader in _READERS.values() for ending in reader.endings}

OPTIONS: dict[str, tuple[str, ...]] = {name: reader.options for name, reader in _READERS.items()}
"""Format name -> the options of `open_source` that it takes."""


def open_source(
    path: str | os.PathLike[str],
    *,
    format: str = "auto",
    dtype: Any = None,
    skipped: SkippedRows | None = None,
    **options: Any,
) -> Source:
    """Open a file, folder or store, reading only its header.

    Parameters
    ----------
    path : path
        A file, text and IDX also in gzip, bzip2, xz, zstd or zip; a folder of Parquet parts; a zarr store, also by URL
        (http, https, s3, memory).
    format : str
        A key of `FORMATS`, or "auto": by the first bytes, then by the file's name.
    dtype : dtype or None
        Of the rows as stored; None: the file's own (CSV: float64, LIBSVM: float32). A conversion that would lose a
        row's value to an integer dtype, or to infinity, is refused when the row is read.
    skipped : SkippedRows or None
        Counts the rows with missing, invalid or infinite values, which are left out; None: they are refused.
    **options : those of the format, see `OPTIONS`; None leaves one out
        labels : idx, npy: the file of the labels, or "none"
        target, group, id, drop : csv, parquet: column of the labels, of the groups, of the ids of the rows, and those
            to leave out, by name or position
        encode : csv, parquet: the `TableEncoding` that makes rows of the columns; True: x is a structured array of the
            cells, from which `learn_encoding` learns one
        delimiter, decimal : csv: a character, "tab" or "blank"; "." or ","
        header : csv: True or False: whether line 1 names the columns
        x, y : npz, zarr: names of the arrays; y="none": no labels
        features, zero_based : libsvm: number of features; indices begin at 0

    `DataError`: no such file or store, unknown format (lists the formats), or a head that does not make sense.
    `ConfigError`: an option that the format does not take, or with an impossible value.
    """
    name = os.fspath(path)
    kind = _detect(name) if format == "auto" else format
    if kind not in _READERS:
        raise DataError(f"{stores.shown(name)}: unknown format {kind!r}; expected one of {', '.join(FORMATS)}")
    reader = _READERS[kind]
    _require_kind(name, kind, reader)
    # options that the command line passes for every format
    unset: dict[str, Any] = {"zero_based": False, "drop": ()}
    given = {key: value for key, value in options.items() if value is not None and value != unset.get(key)}
    if "labels" in given:
        given["labels"] = os.fspath(given["labels"])
    foreign = sorted(set(given) - set(reader.options))
    if foreign:
        takes = ", ".join(reader.options) or "no options"
        raise ConfigError(f"{foreign[0]}: unknown option of format {kind!r}, which has {takes}")
    if skipped is not None and "drop" in reader.options:  # a table, in which cells may be missing
        given["skipped"] = skipped
    source = reader.read(name, **given)
    if given.get("encode") is True:
        return source
    source = source if skipped is None else without_bad_rows(source, skipped)
    dtype = dtype or reader.dtype
    return source if dtype is None else _stored_as(source, dtype)


def is_table_file(path: str) -> bool:
    """Return whether there is a file, or a folder of files, of named columns: CSV or Parquet."""
    with suppress(DataError):
        return os.path.exists(path) and zarr_arrays.kind_of(path) is None and "encode" in OPTIONS[_detect(path)]
    return False


def learn_encoding(sources: Sequence[Source], max_categories: int = 16) -> TableEncoding:
    """Learn how the columns of tables, opened with `encode=True`, become numbers.

    All rows say which columns of text files are numbers; at most 100,000, every k-th, give medians and categories.
    """
    names = sources[0].feature_names
    texts, kept, step, done = set[str](), list[tuple[Any, Any]](), 1, 0
    for source in sources:
        for x in (batch["x"] for batch in source.batches()):
            if missing := [name for name in names if name not in x.dtype.names]:
                raise DataError(f"{source.path}: expected the columns of {sources[0].path}, found no {missing[0]!r}")
            texts |= {name for name in names if name not in texts and tables.numbers_in(source, x[name]) is None}
            place, done = done + np.arange(len(x)), done + len(x)
            kept.append((place[place % step == 0], x[place % step == 0]))
            while sum(len(rows) for _, rows in kept) > _SAMPLE_ROWS:
                step *= 2
                kept = [(place[place % step == 0], rows[place % step == 0]) for place, rows in kept]
    columns = []
    for name in names:
        cells = np.concatenate([rows[name] for _, rows in kept])
        numbers = None if name in texts else tables.numbers_in(sources[0], cells)
        columns.append(TableColumn.learn(name, cells if numbers is None else numbers, max_categories))
    return TableEncoding(names, tuple(columns), sources[0].target)


def _require_kind(path: str, name: str, reader: _Reader) -> None:
    """Raise an error for a folder instead of a file, a file instead of a folder, and a missing path."""
    if stores.is_url(path):
        if name != "zarr":
            raise DataError(
                f"{stores.shown(path)}: format {name!r} can only be read from files; URLs are supported for zarr"
            )
    elif reader.files and not (os.path.isdir(path) and reader.recognises_folder):
        require_file(path)
    elif not os.path.isdir(path):
        actual = "a file" if os.path.exists(path) else "nothing"
        raise DataError(f"{path}: expected a folder for format {name!r}, found {actual}")


def _detect(path: str) -> str:
    """Return the format of a file by its first bytes, then by its name; of a folder by the names in it."""
    if stores.is_url(path):
        return "zarr"
    if os.path.isdir(path):
        try:
            names = os.listdir(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be listed: {error.strerror}") from error
        known = [name for name, one in _READERS.items() if one.recognises_folder and one.recognises_folder(names)]
        advice = "expected a file, or a folder of Parquet files or zarr; found another folder"
    else:
        head, names = require_file(path), [plain_name(path)]
        if compression_of(path) == "zip":
            with zipfile.ZipFile(path) as archive:
                names += archive.namelist()
        known = [name for name, reader in _READERS.items() if reader.recognises and reader.recognises(head)]
        known += [
            name for name, reader in _READERS.items() if any(one.lower().endswith(reader.endings) for one in names)
        ]
        advice = (
            f"unknown format (first bytes {head[:8].hex(' ') or 'none'}); set --format NAME (format=NAME) to one of "
            f"{', '.join(FORMATS)}"
        )
    if not known:
        raise DataError(f"{path}: {advice}")
    return known[0]


def _stored_as(source: Source, dtype: Any) -> Source:
    try:
        target = np.dtype(dtype)
    except TypeError:
        raise ConfigError(f"dtype: expected a dtype such as 'float32', found {dtype!r}") from None
    if target.kind not in "iuf" or target.itemsize > 8:
        raise ConfigError(f"dtype: expected integers or floats of at most 8 bytes, found {target}")

    def blocks() -> Iterator[Block]:
        for batch in source.batches():
            x, row = batch["x"], batch["row"]
            batch["x"], lost = zarr_arrays.cast_values(x, target)
            lost |= beyond_exact(x) if x.dtype.kind in "iu" and target.kind == "f" else False
            if lost.any():
                place, column = np.argwhere(lost)[0]
                raise DataError(
                    f"{source.path}: row {row[place]} (from 0), column {column}: expected {target}, found "
                    f"{x[place, column]}"
                )
            yield tuple(batch.get(name) for name in BLOCK_ARRAYS)

    return replace(source, dtype=target, blocks=blocks)
