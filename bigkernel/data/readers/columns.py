"""Columns of a table: which are features, labels and groups; and blocks of rows from Arrow's batches.

A target column holds either numbers or names, throughout. Groups are whole numbers or names; see `source.group_ids`.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.readers.source import Block, group_ids, require_features
from bigkernel.errors import ConfigError, DataError

MOST_COLUMNS = 2**17  # each is an object of Arrow's
_WHOLE_FLOATS = 2**53  # whole numbers up to here are float64s


@dataclass(frozen=True)
class Columns:
    """The positions of the columns of a table, and their names."""

    names: tuple[str, ...]
    features: tuple[int, ...]
    target: int | None
    group: int | None

    @property
    def read(self) -> list[int]:
        """Positions of those that are read: features, then the target, then the group."""
        others = (self.target, self.group)
        return [*self.features, *(place for place in others if place is not None)]


def choose(path: str, names: Sequence[str], target: str | int | None, group: str | int | None) -> Columns:
    """Tell features, target and group apart.

    Parameters
    ----------
    target : name or position (−1: the last); None: the last; "none": no labels
    group : name or position, or None

    Raises
    ------
    DataError
        Two columns of one name, no such column, one column for both, or no feature that is left.
    """
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{path}: {len(names):,} columns, at most {MOST_COLUMNS:,} are read; save the rows by NumPy")
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise DataError(f"{path}: two columns are named {twice!r}; rename one, or leave it out")
    label = None if target == "none" else _find(path, names, -1 if target is None else target, "the target")
    grouped = None if group is None else _find(path, names, group, "the groups")
    if grouped is not None and grouped == label:
        raise DataError(f"{path}: {names[grouped]!r} is the target and the group; name another target")
    features = tuple(place for place in range(len(names)) if place not in (label, grouped))
    require_features(path, len(features))
    return Columns(tuple(names), features, label, grouped)


def _find(path: str, names: Sequence[str], wanted: str | int, role: str) -> int:
    if wanted in names:
        return list(names).index(str(wanted))
    try:
        position = int(wanted)
    except ValueError:
        there = ", ".join(map(repr, names[:20]))
        raise DataError(f"{path}: no column {wanted!r} for {role}; its columns are {there}") from None
    if not -len(names) <= position < len(names):
        raise DataError(f"{path}: no column {position} for {role}; its columns are 0 to {len(names) - 1}")
    return position % len(names)


def block_of(path: str, start: int, batch: Any, columns: Columns, dtype: np.dtype[Any]) -> Block:
    """Return a block of an Arrow batch that begins with row `start` and holds `columns.read`, in that order."""
    d = len(columns.features)
    for place, column in zip(columns.read, batch.columns, strict=True):
        if column.null_count:
            row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(f"{path}: row {row}, column {columns.names[place]!r}: no value; leave out the row")
    x = np.empty((batch.num_rows, d), dtype)
    for j in range(d):
        values = batch.column(j).to_numpy(zero_copy_only=False)
        _require_kept(path, start, columns.names[columns.features[j]], values, dtype)
        x[:, j] = values
    y = None if columns.target is None else _labels(batch.column(d))
    return (x, y) if columns.group is None else (x, y, group_ids(_texts(batch.column(batch.num_columns - 1))))


def _require_kept(path: str, start: int, name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuse whole numbers that the common dtype of the columns may round: 64-bit ones beside floats."""
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and dtype.kind == "f":
        beyond = (values > _WHOLE_FLOATS) | (values < -_WHOLE_FLOATS)
        if beyond.any():
            row = int(np.argmax(beyond))
            raise DataError(
                f"{path}: row {start + row}, column {name!r}: {values[row]} is no {dtype}, the common dtype of the "
                "columns; leave the column out, or name it as the group or the target"
            )


def _texts(column: Any) -> list[Any]:
    return [value.strip() if isinstance(value, str) else value for value in column.to_pylist()]


def _labels(column: Any) -> NDArray[Any]:
    values = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
    found = values.to_numpy(zero_copy_only=False)
    return np.asarray(found if found.dtype.kind != "O" else found.astype(np.str_))


def load_pyarrow(module: str) -> Any:
    """Import a module of pyarrow, which reads tables; a ConfigError that names the extra where it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError('tables are read by pyarrow, which is not installed: pip install "bigkernel[data]"') from None
