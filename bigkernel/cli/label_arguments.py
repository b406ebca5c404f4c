"""Labels and classes as people give them, told apart before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bigkernel.errors import DataError

Classes = Literal["auto"] | bool | Sequence[int | str]
Wanted = Literal["auto"] | bool | tuple[int | str, ...]  # as checked
_UNLABELLED = "-1"  # among names


def checked_classes(classes: Any) -> Wanted:
    """`classes` of `write_corpus`: "auto", True, False, or all labels in a list.

    Raises
    ------
    DataError
        Anything else, labels of two kinds among it.
    """
    if isinstance(classes, bool) or (isinstance(classes, str) and classes == "auto"):
        return "auto" if isinstance(classes, str) else classes
    if (
        isinstance(classes, str | bytes | Mapping)
        or not isinstance(classes, Iterable)
        or getattr(classes, "ndim", 1) != 1
    ):
        raise DataError(f"classes: expected 'auto', True, False or the labels in a list, found {classes!r}")
    labels = [label.item() if isinstance(label, np.generic) else label for label in classes]
    kinds = {type(label) for label in labels if not (isinstance(label, int | str) and label in (-1, _UNLABELLED))}
    if kinds not in ({int}, {str}):
        raise DataError(f"classes: expected whole numbers or names, all of one kind, found {labels[:8]}")
    return tuple(labels)


def checked_labels(y: Any) -> Any:
    """Labels (n,) as numbers or as text, an array in memory or a lazy one.

    Objects become what they all are: names, among which None and NaN mean unlabelled ("-1"), or numbers, among which
    they are NaN.

    Raises
    ------
    DataError
        Dates, complex numbers, bytes; objects of several kinds.
    """
    if isinstance(y, np.ndarray) and y.dtype.kind == "O":
        return _of_objects(y)
    if isinstance(y, np.ndarray) and y.dtype.kind == "T":
        return y.astype(np.str_)
    if y.dtype.kind not in "biufU":
        raise DataError(
            f"y: labels of {y.dtype}; expected whole numbers, numbers or names: convert them, with astype(str) to names"
        )
    return y


def _of_objects(y: Any) -> Any:
    missing = np.array([label is None or (isinstance(label, float) and label != label) for label in y.flat], bool)
    missing = missing.reshape(y.shape)
    kinds = sorted({_kind(label) for label in y[~missing]})
    if kinds == ["names"]:
        return np.where(missing, _UNLABELLED, y).astype(np.str_)
    if set(kinds) <= {"numbers", "whole numbers"}:
        whole = kinds == ["whole numbers"] and not missing.any()
        try:
            return np.where(missing, np.nan, y).astype(np.int64 if whole else np.float64)
        except OverflowError as error:
            raise DataError(f"y: a label is out of the range of 64 bits: {error}") from error
    raise DataError(f"y: labels of several kinds or none ({', '.join(kinds)}); make them all numbers or all names")


def _kind(label: Any) -> str:
    if isinstance(label, str):
        return "names"
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return "whole numbers"
    return "numbers" if isinstance(label, float | np.floating | bool | np.bool_) else type(label).__name__
