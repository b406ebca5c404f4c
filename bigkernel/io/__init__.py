"""Reading other people's files: one reader a format, found in one table.

`open_source` looks at the head of a file and returns a `Source`; `bigkernel.ingest.ingest` streams a source into a
corpus. A reader never holds the whole of a file (MATLAB's and Fortran-ordered npz excepted), and whatever is wrong with
a file is a `DataError` that names the path and the byte or line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigkernel.errors import ConfigError, DataError
from bigkernel.io import idx, mat, npy, text
from bigkernel.io.source import Block, Source, open_stream, require_file

__all__ = ["FORMATS", "Source", "open_source"]

_HEAD_BYTES = 2**16


@dataclass(frozen=True)
class _Reader:
    description: str
    read: Callable[..., Source]
    recognises: Callable[[bytes], bool]
    endings: tuple[str, ...]
    options: tuple[str, ...]


def _never(head: bytes) -> bool:
    return False


# The order is the order in which `auto` asks.
_READERS: dict[str, _Reader] = {
    "npy": _Reader("NumPy array (n, d) or (n, h, w)", npy.read, npy.recognises, (".npy",), ("labels",)),
    "npz": _Reader("NumPy archive of x and y", npy.read_npz, npy.recognises_npz, (".npz",), ("x", "y")),
    "mat": _Reader("MATLAB file, versions 5 to 7.2", mat.read, mat.recognises, (".mat",), ("x", "y")),
    "idx": _Reader("IDX images as of MNIST", idx.read, idx.recognises, (".idx", "-ubyte"), ("labels",)),
    "usps": _Reader('USPS "zip code" digits, text', text.read_usps, text.recognises_usps, (), ()),
    "csv": _Reader(
        "table in text: , ; tab or blank",
        text.read_csv,
        _never,
        (".csv", ".tsv", ".txt", ".dat", ".data"),
        ("target", "delimiter", "header"),
    ),
}

FORMATS: dict[str, str] = {name: reader.description for name, reader in _READERS.items()}
"""Format name -> one line that describes it, for the command line's help."""


def open_source(
    path: str | os.PathLike[str],
    *,
    format: str = "auto",
    labels: str | os.PathLike[str] | None = None,
    target: str | int | None = None,
    delimiter: str | None = None,
    header: bool | str = "auto",
    x: str | None = None,
    y: str | None = None,
    dtype: Any = None,
) -> Source:
    """Look at the head of a file and say what it holds.

    Parameters
    ----------
    path : path
        Plain or gzip.
    format : str
        A key of `FORMATS`, or "auto": by the first bytes, then by the file's name.
    labels : path, "none" or None
        idx, npy: the file of the labels. None: for idx the one that the MNIST naming convention gives, where it exists.
    target : str, int or None
        csv: the labels' column by name or position (−1: the last); None: the last; "none": no labels.
    delimiter : str or None
        csv: "," ";" "tab" or "blank"; None: sniffed.
    header : bool or "auto"
        csv: whether line 1 names the columns.
    x, y : str or None
        mat, npz: names of the arrays; y="none": no labels.
    dtype : dtype or None
        Of the rows as stored; None: the file's own (text: float64, USPS: float32). A conversion that would lose a row's
        value to an integer dtype, or to infinity, is refused when the row is read.

    Returns
    -------
    Source

    Raises
    ------
    DataError
        No such file, not a file, unknown format (lists the formats), or a head that does not make sense.
    ConfigError
        An option that the format does not take, or with an impossible value.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "wine.csv")
    >>> _ = path.write_text('"pH";"alcohol";"quality"\\n3;8.8;6\\n3.3;9.5;5\\n')
    >>> source = open_source(path)
    >>> source.format, source.n_features, source.labelled
    ('csv', 2, True)
    >>> [(x.tolist(), y.tolist()) for x, y in source.blocks()]
    [([[3.0, 8.8], [3.3, 9.5]], [6.0, 5.0])]
    >>> folder.cleanup()
    """
    name = os.fspath(path)
    require_file(name)
    found = _detect(name) if format == "auto" else format
    if found not in _READERS:
        raise DataError(f"{name}: unknown format {found!r}; the formats are {', '.join(FORMATS)}")
    reader = _READERS[found]
    given: dict[str, Any] = {
        "labels": None if labels is None else os.fspath(labels),
        "target": target,
        "delimiter": delimiter,
        "header": None if header == "auto" else header,
        "x": x,
        "y": y,
    }
    options = {key: value for key, value in given.items() if value is not None}
    foreign = sorted(set(options) - set(reader.options))
    if foreign:
        takes = ", ".join(reader.options) or "no options"
        raise ConfigError(f"{foreign[0]}: not an option of format {found!r}, which takes {takes}")
    source = reader.read(name, **options)
    return source if dtype is None else _stored_as(source, dtype)


def _detect(path: str) -> str:
    with open_stream(path) as stream:
        head = _readable_head(stream.read, path)
    for name, reader in _READERS.items():
        if reader.recognises(head):
            return name
    plain = path.lower().removesuffix(".gz")
    for name, reader in _READERS.items():
        if plain.endswith(reader.endings):
            return name
    raise DataError(
        f"{path}: unknown format: neither its first bytes ({head[:8].hex(' ') or 'none'}) nor its name say which; "
        f"the formats are {', '.join(FORMATS)}; give format=NAME"
    )


def _readable_head(read: Callable[[int], bytes], path: str) -> bytes:
    pieces: list[bytes] = []
    try:
        while len(pieces) < _HEAD_BYTES // 1024 and (piece := read(1024)):
            pieces.append(piece)
    except DataError:  # damage further on is the reader's to report, with what it expected there
        if not pieces:
            raise
    return b"".join(pieces)


def _stored_as(source: Source, dtype: Any) -> Source:
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        raise ConfigError(f"dtype: expected a dtype such as 'float32', found {dtype!r}") from None
    if wanted.kind not in "iuf" or wanted.itemsize > 8:
        raise ConfigError(f"dtype: expected integers or floats of at most 8 bytes, found {wanted}")

    def blocks() -> Iterator[Block]:
        start = 0
        for x, y in source.blocks():
            with np.errstate(over="ignore", invalid="ignore"):
                rows = x.astype(wanted)
            lost = rows != x if wanted.kind in "iu" else np.isinf(rows) & np.isfinite(x)
            if lost.any():
                row, column = np.argwhere(lost)[0]
                raise DataError(f"{source.path}: row {start + row}, column {column}: {x[row, column]} is no {wanted}")
            yield rows, y
            start += len(x)

    return replace(source, dtype=wanted, blocks=blocks)
