"""Detection of the kind of labels, row by row.

Labels are classes (stored as int64, −1 for unlabelled; names as positions in the sorted list of all, in which the name
"-1" means unlabelled) or numbers (float64, NaN for unlabelled). Given as NaN, a label is unlabelled among classes too.
The kind is known after the last row: until then a writer keeps float64, with names numbered in order of appearance.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import DataError
from bigkernel.streaming.chunk import LARGEST_WHOLE

Classes = Literal["auto"] | bool

# most distinct whole numbers that are classes, unless classes=True: any, 0 … k − 1 or 1 … k, and labels of images
FEW_CLASSES, CODED_CLASSES, IMAGE_CLASSES = 10, 20, 1000
MOST_CLASSES = 2**16
_UNLABELLED = "-1"  # among names
_MISSING = {-1, _UNLABELLED}
_WHOLE = re.compile(r"-?[0-9]{1,18}")


_LIKE_MISSING = {"", "?", "-1.0", "<na>", "missing", "n/a", "na", "nan", "none", "null"}  # in lower case
_LIKE_MISSING |= {"unknown", "unlabelled", "unlabeled"}


def looks_missing(label: object) -> bool:
    """Return whether a label is text that people, pandas or R write for a missing one."""
    return isinstance(label, str) and label.lower() in _LIKE_MISSING


@dataclass(frozen=True)
class Labels:
    """The distinct labels in order without −1 (empty: `y` holds numbers), and how kept labels are stored."""

    classes: tuple[int | str, ...]
    table: NDArray[np.int64] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the stored column: int64 for classes, float64 for numbers."""
        return np.dtype(np.int64 if self.classes else np.float64)

    def stored(self, kept: NDArray[Any]) -> NDArray[Any]:
        """Convert labels from `Labelling.encode` to their stored form."""
        if not self.classes:
            return kept.astype(self.dtype)
        known = ~np.isnan(kept)
        codes = np.where(known, kept, -1).astype(np.int64)
        return codes if self.table is None else np.where(known, self.table[codes], -1)


class Labelling:
    """Detects the kind of labels, block by block.

    Names are always classes. Whole numbers (3 or 3.0) are classes when `classes` is True; with "auto" if at most 10 are
    distinct, or 20 that are 0 … k − 1 or 1 … k, or 1,000 labels of images. −1 among classes means unlabelled. Anything
    else is numbers. NaN means unlabelled.
    """

    def __init__(self, classes: Classes = "auto", *, images: bool = False) -> None:
        self._classes, self._images = classes, images
        self._named: bool | None = None
        self._whole = classes is not False
        self._names: dict[str, int] = {}
        self._numbers: set[int] = set()

    def encode(self, y: NDArray[Any], name: str, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Record the labels of these rows of `name`, and return what to keep of them, float64 (k,)."""
        if y.ndim != 1:
            raise DataError(
                f"y: expected one label a row, found {np.shape(y)[1]}; write the rows without y, and pass y to "
                "fit(corpus, y)"
            )
        y = checked_labels(y)
        named = y.dtype.kind == "U"
        if y.dtype.kind == "f" and np.isnan(y).all():  # of either kind
            return y.astype(np.float64)
        if self._named not in (None, named):
            raise DataError(
                f"{name}: row {rows[0]} (from 0): found labels that are {'names' if named else 'numbers'}, unlike "
                "the earlier ones; convert them to one kind"
            )
        self._named = named
        if not named:
            return self._encode_numbers(y, name, rows)
        distinct, places = np.unique(y, return_inverse=True)
        if self._classes is False and len(y):
            raise DataError(f"{name}: row {rows[0]} (from 0): expected a number, found the label {str(y[0])!r}")
        codes = [self._names.setdefault(label, len(self._names)) for label in distinct.tolist()]
        self._require_few(self._names, name)
        return np.array(codes, np.float64)[places]

    def _encode_numbers(self, y: NDArray[Any], name: str, rows: NDArray[Any]) -> NDArray[np.float64]:
        if y.dtype.kind in "iu":
            require_exact(name, rows, "y", y)
        values = y.astype(np.float64)
        if np.isinf(values).any():
            raise DataError(f"{name}: row {rows[np.argmax(np.isinf(values))]} (from 0): found an infinite label")
        if not self._whole:
            return values
        known = ~np.isnan(values)
        odd = known & ~((np.abs(values) <= LARGEST_WHOLE) & (values == np.round(values)))
        if odd.any():
            if self._classes != "auto":
                place = np.argmax(odd)
                raise DataError(f"{name}: row {rows[place]} (from 0): expected a class, found {y[place]}")
            self._whole = False
        elif self._classes != "auto" or len(self._numbers) <= IMAGE_CLASSES + 1:  # + 1: −1 may be one of them
            distinct = np.unique(values[known]).astype(np.int64).tolist()
            self._numbers.update(distinct)
            self._require_few(self._numbers, name)
        return values

    def _require_few(self, values: Iterable[Any], name: str) -> None:
        if len(set(values) - _MISSING) > MOST_CLASSES:
            raise DataError(
                f"{name}: found more than {MOST_CLASSES:,} distinct classes; check that the target "
                "column is the right one"
            )

    def decide(self, name: str) -> Labels:
        """Return the kind of the labels after the last row."""
        distinct: set[Any] = set(self._names or self._numbers)
        classes = tuple(sorted(distinct - _MISSING))
        coded = classes in (tuple(range(len(classes))), tuple(range(1, len(classes) + 1)))
        most = IMAGE_CLASSES if self._images else CODED_CLASSES if coded else FEW_CLASSES
        if not self._named and not (self._whole and (self._classes != "auto" or len(classes) <= most)):
            return Labels(())
        if distinct & _MISSING and len(classes) < (1 if self._classes is True else 2):
            raise DataError(
                f"{name}: labels {', '.join(map(str, (-1, *classes)))} are ambiguous, as −1 among classes means "
                "unlabelled; write the labels as 0 and 1 if −1 is a class, or set classes=True (−1 is unlabelled) or "
                "classes=False (−1 is a number); on the command line --labels-are classes or numbers"
            )
        if not self._named:
            return Labels(classes)
        place = {label: i for i, label in enumerate(classes)}
        return Labels(classes, np.array([place.get(label, -1) for label in self._names], np.int64))


def named_labels(y: NDArray[Any], classes: Sequence[int | str], *, unlabelled: str = _UNLABELLED) -> NDArray[Any]:
    """Return stored labels as names if the classes are names, else unchanged."""
    if not any(isinstance(label, str) for label in classes):
        return y
    return np.array([*map(str, classes), unlabelled])[y.astype(np.int64)]


def beyond_exact(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where numbers may be whole ones that float64 rounds, those from ±2⁵³ on."""
    return np.asarray((values >= LARGEST_WHOLE) | (values <= -LARGEST_WHOLE))


def require_exact(path: str, rows: NDArray[Any], column: str, values: NDArray[Any]) -> None:
    """Raise `DataError` for a whole number (k,) that float64 would round."""
    if (beyond := beyond_exact(values) & np.isfinite(values)).any():
        place = int(np.argmax(beyond))
        raise DataError(
            f"{path}: row {rows[place]} (from 0), column {column!r}: expected whole numbers below 2⁵³, which float64 "
            f"holds, found {int(values[place])}; keep it as id or group (--id-column), or leave it out (--drop)"
        )


def is_missing(label: object) -> bool:
    """Return whether this label of an array of objects is None, NaN or pandas' NA."""
    return label is None or type(label).__name__ == "NAType" or bool(isinstance(label, Real) and label != label)


def codes_of_names(names: NDArray[Any], what: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the place of each name (n,) among all, and these in order; `DataError` for a missing one, or two kinds."""
    missing = np.array([is_missing(name) for name in names.tolist()], bool)
    if missing.any():
        raise DataError(f"{what}: row {int(np.argmax(missing))} is missing; expected one in every row")
    try:
        distinct, codes = np.unique(names, return_inverse=True)
    except TypeError as error:
        raise DataError(f"{what}: expected only text or only integers, found both") from error
    return codes, np.array(distinct.tolist())


def hash_names(names: NDArray[Any], what: str = "group") -> NDArray[np.int64]:
    """Return names of groups (n,) as codes that do not depend on other rows, (n,); see `group_code`."""
    places, distinct = codes_of_names(names, what)
    return np.array([group_code(str(name)) for name in distinct], np.int64)[places]


def group_code(name: str) -> int:
    """Return the code of a group in text: the whole number that it is, or 63 bits of its BLAKE2b."""
    if _WHOLE.fullmatch(name.strip()):
        return int(name)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def checked_labels(values: Any) -> NDArray[Any]:
    """Return labels (k,) as numbers or text; refuse dates, complex numbers, bytes and mixed objects.

    Objects become names, with None, NaN and pandas' NA as unlabelled ("-1"), or numbers, with these as NaN.
    """
    y: NDArray[Any] = np.asarray(values)
    if y.dtype.kind == "T":
        return y.astype(np.str_)
    if y.dtype.kind in "biufU":
        return y
    if y.dtype.kind != "O":
        raise DataError(f"y: expected integers, numbers or names as labels, found {y.dtype}; convert them with astype")
    missing = np.array([is_missing(label) for label in y.flat], bool)
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
