"""The labels of sources: what they are, decided in one pass over them alone; and label maps, which replace them.

Labels are classes (stored as int64, −1 for unlabelled; names as positions in the sorted list of all, among which the
name "-1" is no class but means unlabelled) or numbers (float64, NaN for unlabelled).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import Block, Source, origin_of
from bigkernel.errors import ConfigError, DataError

AUTO_CLASSES = 1000  # integer labels with more distinct values are numbers, unless classes=True
MOST_CLASSES = 2**16
_UNLABELLED = "-1"  # among names
_MISSING = {-1, _UNLABELLED}
_LARGEST_EXACT = 2**53
_MOST_MAP_BYTES = 2**24


@dataclass(frozen=True)
class Labels:
    """The distinct labels and their number, from a pass over them.

    Attributes
    ----------
    classes : tuple of int or of str
        The distinct labels in order, −1 apart; empty: `y` holds numbers.
    n_rows : int
    path : str
        Of the file or files, for messages.
    """

    classes: tuple[int | str, ...]
    n_rows: int
    path: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the stored column: int64 for classes, float64 for numbers."""
        return np.dtype(np.int64 if self.classes else np.float64)

    def encode(self, y: NDArray[Any]) -> NDArray[Any]:
        """Labels of a block as they are stored: names become positions in `classes`."""
        if not self.classes and y.dtype.kind != "U":
            return y.astype(self.dtype)
        known = np.array(self.classes)
        if y.dtype.kind == "U" and known.dtype.kind == "U":
            positions = np.searchsorted(known, y).clip(max=len(known) - 1)
            unlabelled = y == _UNLABELLED
            if (unlabelled | (known[positions] == y)).all():
                return np.where(unlabelled, -1, positions).astype(self.dtype)
        elif y.dtype.kind != "U" and known.dtype.kind != "U" and np.isin(y, (-1, *known)).all():
            return y.astype(self.dtype)
        raise DataError(f"{self.path}: other labels than in the first pass over them; the file was changed meanwhile")


def survey(blocks: Iterable[NDArray[Any]], *, path: str, classes: Literal["auto"] | bool = "auto") -> Labels:
    """Decide what the labels are, from one pass over them.

    Names are always classes. Integers are classes when `classes` is True, or "auto" and at most 1,000 are distinct; −1
    among either means unlabelled. Anything else is numbers, of which NaN means unlabelled.

    Parameters
    ----------
    blocks : iterable of arrays (k,)
    path : str
        For messages.
    classes : "auto" or bool

    Raises
    ------
    DataError
        Infinite labels; classes asked for where labels are not integers; too many names; or −1 beside fewer than two
        classes, where it may be a class itself, unless `classes` is True.
    """
    return _decided(((path, y) for y in blocks), path, classes)


def survey_all(sources: Sequence[Source], *, classes: Literal["auto"] | bool = "auto") -> Labels | None:
    """`survey` over the labels of several sources, whose classes are the union of theirs; None: they carry none.

    Raises
    ------
    DataError
        As `survey`; or one file has names and another numbers.
    """
    if not all(source.targets for source in sources):
        return None
    blocks = ((source.path, y) for source in sources if source.targets for y in source.targets())
    paths = ", ".join(source.path for source in sources[:3]) + (", …" if len(sources) > 3 else "")
    return _decided(blocks, paths, classes)


def _decided(blocks: Iterable[tuple[str, NDArray[Any]]], path: str, classes: Literal["auto"] | bool) -> Labels:
    distinct: set[Any] = set()
    names, integral, n_rows = False, classes is not False, 0
    first = before = ""
    start = 0  # rows of all files before this one
    for file, y in blocks:
        if file != before:
            before, start = file, n_rows
        if first and (y.dtype.kind == "U") != names:
            kinds = ("names", "numbers") if names else ("numbers", "names")
            raise DataError(f"{file}: its labels are {kinds[1]}, but {first} has {kinds[0]}; map them to one kind")
        first, names = first or file, y.dtype.kind == "U"
        if names and classes is False:
            raise DataError(
                f"{file}: row {n_rows - start}: the label {str(y[0])!r} is a name, but classes=False asks for numbers"
            )
        if not names:
            odd = ~_is_integral(y)
            if y.dtype.kind == "f" and np.isinf(y).any():
                raise DataError(f"{file}: row {n_rows - start + int(np.argmax(np.isinf(y)))}: the label is infinite")
            if classes is True and odd.any():
                row = int(np.argmax(odd))
                raise DataError(
                    f"{file}: row {n_rows - start + row}: {y[row]} is no class, but classes=True asks for classes"
                )
            integral = integral and not odd.any()
        n_rows += len(y)
        if names:
            distinct.update(np.unique(y).tolist())
        elif integral and (classes is True or len(distinct) <= AUTO_CLASSES + 1):  # + 1: perhaps −1 is one of them
            distinct.update(int(value) for value in np.unique(y))
        if len(distinct - _MISSING) > MOST_CLASSES and (names or classes is True):
            raise DataError(f"{path}: more than {MOST_CLASSES:,} distinct classes; is the target the right one?")
    found = tuple(sorted(distinct - _MISSING))
    if n_rows == 0 or not (names or classes is True or (integral and len(found) <= AUTO_CLASSES)):
        return Labels((), n_rows, path)
    if distinct & _MISSING and len(found) < (1 if classes is True else 2):
        raise DataError(
            f"{path}: its labels are {', '.join(map(str, (-1, *found)))}, and −1 among classes means unlabelled; if it "
            "is a class here, write the labels as 0 and 1; classes=True: take it as unlabelled"
            + ("" if names else "; classes=False: as a number")
        )
    return Labels(found, n_rows, path)


def label_map(text: str) -> dict[str, str]:
    """A label map from a text "a:0,b:0,other:-1" or from the file of that name, a csv of two columns without a header.

    Returns
    -------
    dict
        Label as written -> new label as written, for `relabelled`.

    Raises
    ------
    ConfigError
        Not pairs, a label twice, a file that cannot be read or is larger than 16 MiB; names the line.
    """
    where = "label map"
    if os.path.isfile(text):
        where = text
        try:
            with open(text, encoding="utf-8-sig", newline="") as handle:
                content = handle.read(_MOST_MAP_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{text}: cannot be read as a label map: {error}") from error
        if len(content) > _MOST_MAP_BYTES:
            raise ConfigError(f"{text}: more than {_MOST_MAP_BYTES:,} characters for a label map")
        rows = [row for row in csv.reader(io.StringIO(content)) if row]
    elif ":" in text:
        rows = [part.rsplit(":", 1) for part in text.split(",")]
    else:
        raise ConfigError(f"label map: {text!r} is no file, and no pairs such as a:0,b:1")
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not all(cells):
            raise ConfigError(f"{where}: pair {number}: expected a label and its new one, found {','.join(row)!r}")
        if cells[0] in found:
            raise ConfigError(f"{where}: pair {number}: the label {cells[0]!r} is there twice")
        found[cells[0]] = cells[1]
    if not found:
        raise ConfigError(f"{where}: no pairs")
    return found


def relabelled(source: Source, mapping: Mapping[str, str]) -> Source:
    """A source whose labels are replaced by `mapping`: label -> new label, both as text; "other" stands for the rest.

    New labels are all whole numbers or all names; −1 means unlabelled among either. Numbers are looked up by their
    value, so that 3 and 3.0 are one.

    Raises
    ------
    ConfigError
        Some of the new labels are whole numbers (−1 apart) and others names.
    DataError
        The rows carry no labels; when they are read: a label that the map lacks, with its row.
    """
    targets = source.targets
    if targets is None:
        raise DataError(f"{source.path}: a label map, but the rows carry no labels")
    new, whole = _new_labels(mapping)
    other = new.pop("other", None)
    numbers = [key for key in new if _is_number(key)]
    by_value = {float(key): new[key] for key in numbers}
    if len(by_value) < len(numbers):
        raise ConfigError(f"a label map: of {', '.join(numbers)} some are the same number; give each label once")

    def mapped(start: int, y: NDArray[Any]) -> NDArray[Any]:
        distinct, places = np.unique(y, return_inverse=True)
        known: Mapping[Any, Any] = new if y.dtype.kind == "U" else by_value
        values = [known.get(label, other) for label in distinct.tolist()]
        if None in values:
            lost = values.index(None)
            raise DataError(
                f"{source.path}: row {start + int(np.argmax(places == lost))}: the label {distinct[lost]!s} is not in "
                "the label map; add it, or add other:-1 for all that are not"
            )
        return np.array(values, np.int64 if whole else np.str_)[places]

    def mapped_targets() -> Iterator[NDArray[Any]]:
        start = 0
        for y in targets():
            yield mapped(start, y)
            start += len(y)

    def blocks() -> Iterator[Block]:
        start = 0
        for x, y in source.blocks():
            yield x, None if y is None else mapped(start, y)
            start += x.shape[0]

    digest = hashlib.sha256(json.dumps(dict(mapping), sort_keys=True).encode()).hexdigest()
    return replace(
        source,
        targets=mapped_targets,
        blocks=blocks,
        origin=lambda: f"{origin_of(source)}, label map sha256:{digest}",
    )


def _new_labels(mapping: Mapping[str, str]) -> tuple[dict[str, int | str], bool]:
    """The new labels of a map, and whether they are numbers; −1 is a number among numbers and a name among names."""
    numbers = {key: int(text) for key, text in mapping.items() if _whole(text)}
    names = {key: text for key, text in mapping.items() if key not in numbers}
    if not names:
        return {**numbers}, True
    classes = [mapping[key] for key, number in numbers.items() if number != -1]
    if classes:
        raise ConfigError(
            f"label map: new labels are all whole numbers or all names, found both: {classes[0]!r} and "
            f"{next(iter(names.values()))!r}; write all as one kind (-1 for unlabelled may stand among names), and a "
            "table without a header line"
        )
    return {**names, **dict.fromkeys(numbers, _UNLABELLED)}, False


def _whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 18


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_integral(y: NDArray[Any]) -> NDArray[np.bool_]:
    values = y.astype(np.float64)
    whole: NDArray[np.bool_] = (np.abs(values) <= _LARGEST_EXACT) & (values == np.round(values))  # NaN: neither
    return whole
