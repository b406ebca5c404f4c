"""LIBSVM text: a label a line, then index:value pairs of what is not zero.

Rows are stored as float32 (k, d), sparse where few of their values are not 0, unless it is said which. d is the largest
index of the file, found in a pass when the source is opened, unless it is given. Lines are read strictly: what is not
"number index:number …" with rising indices is an error that names path and line. `sklearn.datasets.load_svmlight_file`
parses the lines of a block; when it refuses them, or would take what is no plain number, the line at fault is looked
for here. Format: https://www.csie.ntu.edu.tw/~cjlin/libsvm (README, "Data format").
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.lines import lines_of, number_in
from bigkernel.data.readers.source import MOST_FEATURES, Block, Source, block_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.streaming.sparse_form import worthwhile

_LENIENT = re.compile(r"_|qid:|[ \t]\+")  # what scikit-learn takes as Python does, or passes over
_PAIR = re.compile(r"([^\s:]*):(\S*)")
_HEAD = re.compile(rb"[-+0-9.eE]+(?:[ \t]+[0-9]{1,15}:[-+0-9.eEnaif]+)+[ \t]*(?:#.*)?")


@dataclass(frozen=True)
class _Pairs:
    """The lines of one file, whose indices begin at `first`, as rows of d features."""

    path: str
    first: int
    n_features: int
    sparse: bool

    def blocks(self) -> Iterator[Block]:
        step = block_rows(0 if self.sparse else 4 * self.n_features)
        for numbers, rows in _rows(self.path):
            for start in range(0, len(rows), step):
                yield self._block(numbers[start : start + step], rows[start : start + step])

    def targets(self) -> Iterator[NDArray[Any]]:
        for numbers, rows in _rows(self.path):
            texts = [row.split(None, 1)[0] for row in rows]
            values = [number_in(text) for text in texts]
            for number, text, value in zip(numbers, texts, values, strict=True):
                if value is None or not math.isfinite(value):
                    raise DataError(f"{self.path}: line {number}: expected a number as the label, found {text!r}")
            yield np.array(values, np.float64)

    def _block(self, numbers: list[int], rows: list[str]) -> Block:
        """Return rows (k, d) and labels (k,) of lines without comments."""
        from scipy.sparse import csr_array
        from sklearn.datasets import load_svmlight_file  # late: scikit-learn takes seconds to load

        text = "\n".join(rows)
        try:
            if _LENIENT.search(text):
                raise ValueError("an underscore, a sign of an index, or qid:")
            pairs, y = load_svmlight_file(
                io.BytesIO(text.encode()), n_features=self.n_features, zero_based=self.first == 0
            )
            if not (np.isfinite(pairs.data).all() and np.isfinite(y).all()):
                raise ValueError("a number is not finite")
        except (ValueError, OverflowError) as error:
            raise self._first_fault(numbers, rows, str(error)) from None
        with np.errstate(over="ignore"):
            x = csr_array(pairs, dtype=np.float32)
        if not np.isfinite(x.data).all():
            bad = int(np.searchsorted(x.indptr, np.flatnonzero(~np.isfinite(x.data))[0], "right")) - 1
            raise DataError(f"{self.path}: line {numbers[bad]}: a value that float32 cannot hold")
        return x if self.sparse else x.toarray(), y

    def _first_fault(self, numbers: list[int], rows: list[str], reason: str) -> DataError:
        for number, row in zip(numbers, rows, strict=True):
            fault = self._fault(row)
            if fault:
                return DataError(f"{self.path}: line {number}: {fault}")
        return DataError(
            f"{self.path}: lines {numbers[0]} to {numbers[-1]} cannot be read as index:value pairs: {reason}"
        )

    def _fault(self, row: str) -> str:
        label, *pairs = row.split()
        value = number_in(label)
        if value is None or not math.isfinite(value):
            return f"expected a number as the label, found {label!r}"
        before, beyond = None, ""
        for place, text in enumerate(pairs):
            pair = _PAIR.fullmatch(text)
            if place == 0 and text.startswith("qid:"):
                return f"found {text!r}: rankings by query are not read; take the qid out"
            if not pair or not pair[1].isascii() or not pair[1].isdigit() or len(pair[1]) > 15:
                return f"expected index:value, found {text!r}"
            value, index = number_in(pair[2]), int(pair[1])
            if value is None or not math.isfinite(value):
                return f"index {index}: expected a finite number, found {pair[2]!r}"
            if index < self.first:
                return "index 0 in a file whose indices begin at 1; if they begin at 0, say zero_based (--zero-based)"
            if before is not None and index <= before:
                return f"index {index} after {before}; the indices of a row rise, each once"
            if index - self.first >= self.n_features:
                beyond = (
                    f"index {index}, but rows have {self.n_features} features; give more, or leave them to be found"
                )
            before = index
        return beyond


def recognises(head: bytes) -> bool:
    """Return True where the first line with anything in it is a number and index:value pairs."""
    for line in head.split(b"\n")[:100]:
        text = line.strip()
        if text and not text.startswith(b"#"):
            return _HEAD.fullmatch(text) is not None
    return False


def read(path: str, *, features: int | None = None, zero_based: bool = False, sparse: bool | None = None) -> Source:
    """Open LIBSVM (svmlight) text, gzip or plain.

    Parameters
    ----------
    path : str
    features : int or None
        d; None: the largest index, for which the whole file is read once.
    zero_based : bool
        Indices begin at 0, not at 1.
    sparse : bool or None
        Store rows sparse; None: where at most a quarter of the values of 64 features or more are not 0 (of the whole
        file, or of its first lines where `features` are given).

    Raises
    ------
    DataError
        Names path and line: text where a number belongs, indices that repeat, fall or exceed d (at most 2²⁴), index 0
        in a file from 1 on, `qid:`, a last line without its end (it may have been cut).
    """
    if features is not None and not 1 <= features <= MOST_FEATURES:
        raise ConfigError(f"features: expected 1 to {MOST_FEATURES:,}, found {features}")
    first = 0 if zero_based else 1
    n_rows: int | None = None
    if features is not None:
        row_entries = _first_entries(path)
    else:
        n_rows, largest, entries = _measured(path, first)
        if n_rows == 0:
            raise DataError(f"{path}: no rows: the file has no line with a label")
        if largest < first:
            raise DataError(f"{path}: no index:value pair in {n_rows} lines; give the number of features")
        features, row_entries = largest - first + 1, entries / n_rows
    if sparse is None:
        sparse = worthwhile(row_entries / features, features)
    pairs = _Pairs(path, first, features, sparse)
    return Source(
        format="libsvm",
        path=path,
        n_rows=n_rows,
        n_features=features,
        dtype=np.dtype(np.float32),
        image_shape=None,
        scale=1.0,
        blocks=pairs.blocks,
        targets=pairs.targets,
        files=(path,),
        row_entries=row_entries if sparse else None,
    )


def _first_entries(path: str) -> float:
    """Return the pairs of a row, on average over the first lines."""
    _, rows = next(_rows(path), ([], []))
    return sum(row.count(":") for row in rows) / max(1, len(rows))


def _measured(path: str, first: int) -> tuple[int, int, int]:
    """Return the number of rows, the largest of their last indices, and the number of pairs."""
    n_rows, largest, entries = 0, first - 1, 0
    for numbers, rows in _rows(path):
        n_rows += len(rows)
        entries += sum(row.count(":") for row in rows)
        for number, row in zip(numbers, rows, strict=True):
            before, colon, _ = row.rpartition(":")
            index = before[max(before.rfind(" "), before.rfind("\t")) + 1 :]
            if not colon or not (index.isascii() and index.isdigit()):
                continue
            if len(index) > 15 or int(index) - first >= MOST_FEATURES:
                raise DataError(
                    f"{path}: line {number}: index {index[:20]}, but rows have at most {MOST_FEATURES:,} "
                    "features; number the features anew"
                )
            largest = max(largest, int(index))
    return n_rows, largest, entries


def _rows(path: str) -> Iterator[tuple[list[int], list[str]]]:
    """Yield line numbers and lines, without comments and lines of nothing else."""
    for start, lines in lines_of(path, closed=True):
        kept = [(start + place, line.partition("#")[0].strip()) for place, line in enumerate(lines)]
        kept = [(number, line) for number, line in kept if line]
        if kept:
            yield [number for number, _ in kept], [line for _, line in kept]
