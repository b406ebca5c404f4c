"""Labels: what they are is found while they pass, row by row.

Labels are classes (stored as int64, −1 for unlabelled; names as positions in the sorted list of all, among which the
name "-1" is no class but means unlabelled) or numbers (float64, NaN for unlabelled). Which of them is known when all
have passed: until then a writer keeps them as float64, names as numbers in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError

Classes = Literal["auto"] | bool

AUTO_CLASSES = 1000  # integer labels with more distinct values are numbers, unless classes=True
MOST_CLASSES = 2**16
_UNLABELLED = "-1"  # among names
_MISSING = {-1, _UNLABELLED}
_LARGEST_EXACT = 2**53


@dataclass(frozen=True)
class Labels:
    """The distinct labels in order, −1 apart (none: `y` holds numbers), and how those that were kept are stored."""

    classes: tuple[int | str, ...]
    table: NDArray[np.int64] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the stored column: int64 for classes, float64 for numbers."""
        return np.dtype(np.int64 if self.classes else np.float64)

    def stored(self, kept: NDArray[Any]) -> NDArray[Any]:
        """Return labels that `Labelling.encode` gave as they are stored."""
        return kept.astype(self.dtype) if self.table is None else self.table[kept.astype(np.int64)]


class Labelling:
    """What the labels of rows are, found block by block.

    Names are always classes. Integers are classes when `classes` is True, or "auto" and at most 1,000 are distinct; −1
    among either means unlabelled. Anything else is numbers, of which NaN means unlabelled.
    """

    def __init__(self, classes: Classes = "auto") -> None:
        self._wanted = classes
        self._named: bool | None = None
        self._whole = classes is not False
        self._names: dict[str, int] = {}
        self._numbers: set[int] = set()

    def encode(self, y: NDArray[Any], name: str, start: int) -> NDArray[np.float64]:
        """Note the labels of rows `start` and up of `name`, and return what is kept of them, float64 (k,)."""
        y = checked_labels(y)
        named = y.dtype.kind == "U"
        if self._named not in (None, named):
            raise DataError(
                f"{name}: row {start}: found labels that are {'names' if named else 'numbers'}, unlike the earlier "
                "ones; convert them to one kind"
            )
        self._named = named
        if not named:
            return self._encode_numbers(y, name, start)
        distinct, places = np.unique(y, return_inverse=True)
        if self._wanted is False and len(y):
            raise DataError(f"{name}: row {start}: expected a number, found the label {str(y[0])!r}")
        codes = [self._names.setdefault(label, len(self._names)) for label in distinct.tolist()]
        self._require_few(self._names, name)
        return np.array(codes, np.float64)[places]

    def _encode_numbers(self, y: NDArray[Any], name: str, start: int) -> NDArray[np.float64]:
        values = y.astype(np.float64)
        if np.isinf(values).any():
            raise DataError(f"{name}: row {start + int(np.argmax(np.isinf(values)))}: found an infinite label")
        if not self._whole:
            return values
        odd = ~((np.abs(values) <= _LARGEST_EXACT) & (values == np.round(values)))  # NaN is odd
        if odd.any():
            if self._wanted != "auto":
                row = int(np.argmax(odd))
                raise DataError(f"{name}: row {start + row}: expected a class, found {y[row]}")
            self._whole = False
        elif self._wanted != "auto" or len(self._numbers) <= AUTO_CLASSES + 1:  # + 1: perhaps −1 is one of them
            distinct = np.unique(values).astype(np.int64).tolist()
            self._numbers.update(distinct)
            self._require_few(self._numbers, name)
        return values

    def _require_few(self, found: Iterable[Any], name: str) -> None:
        if len(set(found) - _MISSING) > MOST_CLASSES:
            raise DataError(
                f"{name}: found more than {MOST_CLASSES:,} distinct classes; check that the target "
                "column is the right one"
            )

    def decide(self, name: str) -> Labels:
        """Return what the labels are, now that all have passed."""
        distinct: set[Any] = set(self._names or self._numbers)
        classes = tuple(sorted(distinct - _MISSING))
        if not self._named and not (self._whole and (self._wanted != "auto" or len(classes) <= AUTO_CLASSES)):
            return Labels(())
        if distinct & _MISSING and len(classes) < (1 if self._wanted is True else 2):
            raise DataError(
                f"{name}: labels {', '.join(map(str, (-1, *classes)))} are ambiguous, as −1 among classes means "
                "unlabelled; write the labels as 0 and 1 if −1 is a class, or set classes=True (−1 is unlabelled) or "
                "classes=False (−1 is a number)"
            )
        if not self._named:
            return Labels(classes)
        place = {label: i for i, label in enumerate(classes)}
        return Labels(classes, np.array([place.get(label, -1) for label in self._names], np.int64))


def named_labels(y: NDArray[Any], classes: Sequence[int | str], *, unlabelled: str = _UNLABELLED) -> NDArray[Any]:
    """Return stored labels as names, where the classes are names; numbers as they are."""
    if not any(isinstance(label, str) for label in classes):
        return y
    return np.array([*map(str, classes), unlabelled])[y.astype(np.int64)]


def checked_labels(values: Any) -> NDArray[Any]:
    """Return labels (k,) as numbers or as text; dates, complex numbers, bytes and objects of several kinds are refused.

    Objects become what they all are: names, among which None and NaN mean unlabelled ("-1"), or numbers, among which
    they are NaN.
    """
    y: NDArray[Any] = np.asarray(values)
    if y.dtype.kind == "T":
        return y.astype(np.str_)
    if y.dtype.kind in "biufU":
        return y
    if y.dtype.kind != "O":
        raise DataError(f"y: expected integers, numbers or names as labels, found {y.dtype}; convert them with astype")
    missing = np.array([label is None or (isinstance(label, float) and label != label) for label in y.flat], bool)
    kinds = sorted({_kind(label) for label in y[~missing]})
    if kinds == ["names"]:
        return np.where(missing, _UNLABELLED, y).astype(np.str_)
    if not set(kinds) <= {"numbers", "whole numbers"}:
        raise DataError(f"y: expected only numbers or only names as labels, found {', '.join(kinds)}")
    whole = kinds == ["whole numbers"] and not missing.any()
    try:
        return np.where(missing, np.nan, y).astype(np.int64 if whole else np.float64)
    except OverflowError as error:
        raise DataError(f"y: a label exceeds the range of 64 bits: {error}") from error


def _kind(label: Any) -> str:
    if isinstance(label, str):
        return "names"
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return "whole numbers"
    return "numbers" if isinstance(label, float | np.floating | bool | np.bool_) else type(label).__name__
