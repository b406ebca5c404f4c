"""LIBSVM text: one label per line, then index:value pairs of the nonzeros.

Rows become dense (k, d), a few at a time; a corpus compresses the zeros. d is the largest index of the file, found in a
first pass unless given. `sklearn.datasets.load_svmlight_file` parses blocks of lines; errors name the first
invalid line. Format: https://www.csie.ntu.edu.tw/~cjlin/libsvm (README, "Data format").
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import numpy as np

from bigkernel.data.labels import beyond_exact
from bigkernel.data.readers.source import MOST_FEATURES, Block, Source, block_rows, lines_of
from bigkernel.errors import ConfigError, DataError

_LENIENT = re.compile(r"_|qid:|[ \t]\+")  # what scikit-learn takes as Python does, or passes over
_HEAD = re.compile(rb"[-+0-9.eE]+(?:[ \t]+[0-9]{1,15}:[-+0-9.eEnaif]+)+[ \t]*(?:#.*)?")
_LARGE = re.compile(r"(?<![^\s:])[-+]?[0-9]{16,}(?!\S)")
_ZERO_BASED = "; indices that begin at 0 need --zero-based (zero_based=True)"
_SHOWN = 60  # longest excerpt of a line in a message


def _dense(path: str, first: int, n_features: int, numbers: list[int], rows: list[str]) -> Block:
    """Return lines as rows (k, d) and labels; errors name the first invalid line by number."""
    try:
        return _parse(rows, first, n_features)
    except (ValueError, OverflowError) as error:
        if len(rows) > 1:
            for number, row in zip(numbers, rows, strict=True):
                _dense(path, first, n_features, [number], [row])
        raise DataError(
            f"{path}: line {numbers[0]}: expected a number and index:value pairs of rising indices, "
            f"found {rows[0][:_SHOWN]!r}: {error}{_ZERO_BASED * ('Invalid index 0' in str(error))}"
        ) from None


def _parse(rows: list[str], first: int, n_features: int) -> Block:
    """Return rows and labels; ValueError if a line is invalid."""
    from sklearn.datasets import load_svmlight_file  # imported late: scikit-learn takes seconds to load

    text = "\n".join(rows)
    if _LENIENT.search(text):
        raise ValueError("underscores, signed indices and qid are not supported")
    pairs, y = load_svmlight_file(io.BytesIO(text.encode()), n_features=n_features, zero_based=first == 0)
    if (beyond_exact(pairs.data).any() or beyond_exact(y).any()) and (large := _LARGE.search(text)):
        raise ValueError(f"float64 rounds whole numbers from 2⁵³ on, as {large[0]}; leave them out")
    return pairs.toarray(), y


def recognises(head: bytes) -> bool:
    """Return True if the first nonempty line is a number and index:value pairs."""
    for line in head.split(b"\n")[:100]:
        text = line.strip()
        if text and not text.startswith(b"#"):
            return _HEAD.fullmatch(text) is not None
    return False


def read(path: str, *, features: int | None = None, zero_based: bool = False) -> Source:
    """Open LIBSVM (svmlight) text, also compressed; `zero_based`: indices begin at 0, not at 1.

    `features` is d; None: the largest index, for which the whole file is read once.
    """
    if features is not None and not 1 <= features <= MOST_FEATURES:
        raise ConfigError(f"features: expected 1 to {MOST_FEATURES:,}, found {features}")
    first = 0 if zero_based else 1
    n_rows: int | None = None
    if features is None:
        n_rows, largest = _measured(path, first)
        if n_rows == 0:
            raise DataError(f"{path}: expected at least one row, found no line with a label")
        if largest < first:
            raise DataError(f"{path}: found no index:value pair in {n_rows} lines; set the number of features")
        features = largest - first + 1
    d = features

    def blocks() -> Iterator[Block]:
        step = block_rows(8 * d)
        for numbers, rows in _rows(path):
            for start in range(0, len(rows), step):
                yield _dense(path, first, d, numbers[start : start + step], rows[start : start + step])

    return Source("libsvm", path, d, np.dtype(np.float64), blocks, n_rows, labelled=True, files=(path,))


def _measured(path: str, first: int) -> tuple[int, int]:
    """Return the number of rows and the largest index."""
    n_rows, largest = 0, first - 1
    for numbers, rows in _rows(path):
        n_rows += len(rows)
        for number, row in zip(numbers, rows, strict=True):
            index = row.rpartition(":")[0].split()[-1:]
            if not index or not (index[0].isascii() and index[0].isdigit()):
                continue
            if len(index[0]) > 15 or int(index[0]) - first >= MOST_FEATURES:
                raise DataError(
                    f"{path}: line {number}: expected an index up to {MOST_FEATURES:,}, found {index[0][:20]}; "
                    "renumber the features"
                )
            largest = max(largest, int(index[0]))
    return n_rows, largest


def _rows(path: str) -> Iterator[tuple[list[int], list[str]]]:
    """Yield line numbers and lines, without comments and empty lines."""
    for start, lines in lines_of(path, closed=True):
        kept = [(start + place, line.partition("#")[0].strip()) for place, line in enumerate(lines)]
        kept = [(number, line) for number, line in kept if line]
        if kept:
            yield [number for number, _ in kept], [line for _, line in kept]
