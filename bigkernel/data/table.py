"""From the columns of a table to numbers, with NumPy alone: n rows, d columns of the table, p numbers a row.

Cells are compared as values: 1, 1.0 and True are one category, and the text "1" is another. A date is the same as an
object and as text in ISO 8601.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import CategoriesWarning, ConfigError, DataError

Label = str | float | None  # None: missing
KINDS = ("number", "time", "duration", "category")
_MOST_PLACES = 10_000  # of categories by frequency; rarer ones share the last place
_FEWEST, _NEARLY_ALL = 20, 0.9  # cells of a column that say something, and the share of those that are alike
_CLOCK = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_ISO = re.compile(rf"\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?)?")
_ISO_CLOCK = re.compile(_CLOCK)


@dataclass(frozen=True)
class TableColumn:
    """What a fit learns of a column, which becomes one column of numbers, several, or none."""

    kind: str  # one of `KINDS`
    varies: bool  # numbers that do, and more than `n_flags` categories, become one column
    n_flags: int  # most labels with a column of 0 and 1
    labels: tuple[Label, ...]  # the most frequent category first
    median: float = 0.0  # of the numbers that are not missing

    def __post_init__(self) -> None:
        scalars = all(isinstance(label, str | float | int | None) for label in self.labels)
        if self.kind not in KINDS or not (scalars and np.isfinite(self.median)) or self.n_flags < 1:
            raise DataError(f"expected a column of a table, found {self!r:.100}")

    @classmethod
    def learn(cls, name: str, cells: Any, n_flags: int) -> Self:
        """Learn from cells (n,); warn of texts that are nearly all different."""
        kind, values = _read(name, cells)
        if kind == "category":
            counts = Counter(values.tolist())
            labels = sorted(counts, key=lambda label: (-counts[label], str(label or "")))[: max(n_flags, _MOST_PLACES)]
            known = len(values) - counts[None]
            if len(counts) - (None in counts) > max(_FEWEST, _NEARLY_ALL * known):
                warnings.warn(
                    f"column {name!r}: nearly all of {known:,} texts are different, as names and ids are; leave the "
                    "column out, or split it into parts that repeat",
                    CategoriesWarning,
                    stacklevel=2,
                )
            return cls(kind, len(labels) > n_flags, n_flags, tuple(labels) if len(labels) > 1 else ())
        numbers = values[~np.isnan(values)]
        median = float(np.median(numbers)) if len(numbers) else 0.0
        holed = (None,) * (0 < len(numbers) < len(values))
        return cls(kind, bool((numbers != median).any()), n_flags, holed, median)

    def encode(self, name: str, cells: Any) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the name and the values (n,) of each column of numbers; warn if nearly no category is known."""
        if not (self.varies or self.labels):
            return
        values = _read(name, cells, self)[1]
        if self.kind == "category":
            places = {label: place for place, label in enumerate(self.labels)}
            codes = np.fromiter((places.get(value, len(places)) for value in values), np.int64, len(values))
            numbers = np.minimum(codes, len(places) - 1)
            known = np.array([value is not None for value in values], bool)
            if (codes[known] == len(places)).sum() > max(_FEWEST, _NEARLY_ALL * known.sum()):
                warnings.warn(
                    f"column {name!r}: nearly no value is one of the {len(places):,} categories of the fit, such as "
                    f"{[*places][:3]}; all others are encoded alike",
                    CategoriesWarning,
                    stacklevel=2,
                )
        else:
            codes = np.where(np.isnan(values), 0, 1)
            numbers = np.where(codes == 0, self.median, values)
        if self.varies:
            yield name, numbers
        for place, label in enumerate(self.labels[: self.n_flags]):
            yield f"{name} missing" if label is None else f"{name}={label}", codes == place

    @property
    def numeric(self) -> bool:
        """Whether its cells in a text file are numbers."""
        labels = [label for label in self.labels if label is not None]
        return self.kind == "number" or (bool(labels) and not any(isinstance(label, str) for label in labels))

    def parse(self, texts: NDArray[Any]) -> NDArray[Any]:
        """Return cells of a text file (n,) as values: numbers, where they are labels and the text is not."""
        others = {str(label): label for label in self.labels if label is not None and str(label) not in self.labels}
        return np.array([others.get(text, text) for text in texts], object) if others else texts


@dataclass(frozen=True)
class TableEncoding:
    """The columns of a table and what each becomes."""

    names: tuple[str, ...]
    columns: tuple[TableColumn, ...]
    target: str = field(default="", compare=False)  # the column of labels, if known

    def __post_init__(self) -> None:
        texts = all(isinstance(name, str) for name in (*self.names, self.target))
        if not (texts and len(self.names) == len(self.columns) and self.outputs):
            raise DataError(f"expected as many names as columns, some of which vary, found {len(self.names)} names")

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """Return the encoding that `dataclasses.asdict` described; `DataError` if it is invalid."""
        try:
            columns = (TableColumn(**{**one, "labels": tuple(one["labels"])}) for one in said["columns"])
            return cls(tuple(said["names"]), tuple(columns), said.get("target", ""))
        except (KeyError, TypeError) as error:
            raise DataError(f"expected the encoding of a table: {error}") from error

    @property
    def outputs(self) -> list[str]:
        """The names (p,) of the numbers; repeated ones are counted."""
        names = list[str]()
        for name, column in zip(self.names, self.columns, strict=True):
            for own, _ in column.encode(name, np.empty(0, object)):
                others = (f"{own} ({count})" for count in range(2, len(names) + 3))
                names.append(own if own not in names else next(other for other in others if other not in names))
        return names

    def encode(self, X: Any, dtype: Any = np.float64) -> NDArray[Any]:
        """Return a table (n, d), of any kind that `cells_of` takes, as numbers (n, p)."""
        each = zip(self.names, self.columns, cells_of(X, self.names), strict=True)
        return np.stack([own for name, column, cells in each for _, own in column.encode(name, cells)], 1).astype(dtype)


def cells_of(X: Any, names: Sequence[str]) -> list[Any]:
    """Return the d columns (n,) of a frame, an array (n, d), or a mapping or structured array with these names."""
    if isinstance(X, Mapping) or getattr(getattr(X, "dtype", None), "names", None):
        if missing := [name for name in names if name not in (X if isinstance(X, Mapping) else X.dtype.names)]:
            raise DataError(f"X: expected the {len(names)} columns of the fit, found no {missing[0]!r}")
        columns = [X[name] for name in names]
        columns = [one if hasattr(one, "dtype") else np.array(one, object) for one in columns]
        if len(shapes := {np.shape(one) for one in columns}) > 1 or len(next(iter(shapes))) != 1:
            raise DataError(f"X: expected columns of one length, found the shapes {sorted(shapes)[:3]}")
        return columns
    if hasattr(X, "to_pandas"):  # Polars and Arrow
        try:
            X = X.to_pandas(date_as_object=False)
        except ImportError as error:
            needs = f"X: tables of Polars and Arrow are encoded by pandas and pyarrow ({error})"
            raise ConfigError(f"{needs}: pip install pandas pyarrow") from error
    array = X if hasattr(X, "iloc") else np.asarray(X, None if hasattr(X, "dtype") else object)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise DataError(f"X: expected rows of {len(names)} columns, found shape {array.shape}")
    return [(array.iloc if hasattr(array, "iloc") else array)[:, place] for place in range(len(names))]


def _read(name: str, cells: Any, expected: TableColumn | None = None) -> tuple[str, NDArray[Any]]:
    """Return the kind and the values of a column: numbers with NaN, or labels; of the expected kind, or missing."""
    wanted, kind = expected.kind if expected else "", cells.dtype.kind
    labelled = hasattr(cells.dtype, "categories")
    if labelled:  # of pandas
        pandas = getattr(cells, "cat", cells)
        cells = np.fromiter([*pandas.categories, None], object)[np.asarray(pandas.codes)]
    elif kind in "mM":
        cells = np.asarray(cells, f"{kind}8[us]")
    if wanted != "category" and kind in "biufmM" and not labelled:
        if kind in "mM":
            values = (cells - np.zeros((), cells.dtype)) / np.timedelta64(1, "s")
        else:
            values = np.asarray(cells, np.float64)
        found = {"m": "duration", "M": "time"}.get(kind, "number")
    else:
        known = _Values(str) if labelled else _Values()
        try:
            values = np.fromiter(map(known.__getitem__, np.asarray(cells, object)), object, len(cells))
        except TypeError as error:
            wrong = str(error).rpartition("type: ")[2].strip("')")
            raise DataError(f"X: column {name!r}: expected numbers, text, categories or times, found {wrong}") from None
        kinds = {_kind_of(value) for value in known.values() if value is not None}
        several = "category" if kinds or labelled else wanted or "number"
        found = several if labelled or len(kinds) != 1 else kinds.pop()
        if expected and wanted == "category":
            texts = all(isinstance(label, str | None) for label in expected.labels)
            found = found if found == "number" and texts else "category"
        if found == "category":
            values = np.fromiter((_label(value) for value in values), object, len(values))
        else:
            values = np.fromiter(map(_number, values), np.float64, len(values))
    if wanted not in ("", found) and not (found != "category" and np.isnan(values).all()):
        raise DataError(
            f"X: column {name!r}: expected values of the kind {wanted}, as in the fit, found {found}, such as "
            f"{next(str(cell) for cell in np.asarray(cells, object) if value_of(cell) is not None)!r:.50}"
        )
    if found != "category" and np.isinf(values).any():
        raise DataError(f"X: column {name!r}: found infinity; expected finite numbers, or NaN for missing ones")
    return found, values


class _Values(dict[Any, Any]):
    """Values of cells, each found once; `others` gives those of cells of unknown types."""

    def __init__(self, others: Callable[[Any], str] | None = None) -> None:
        self.others = others

    def __missing__(self, cell: Any) -> Any:
        try:
            value = value_of(cell)
        except TypeError:
            if self.others is None:
                raise
            value = self.others(cell)
        self[cell] = value
        return value


def value_of(cell: Any) -> str | float | datetime | timedelta | None:
    """Return a cell as text, number, time (UTC) or duration, equal if the cells are; None if it is missing."""
    if cell is None or type(cell).__name__ == "NAType" or cell != cell:
        return None
    if isinstance(cell, np.datetime64 | np.timedelta64):
        cell = cell.astype(f"{cell.dtype.kind}8[us]")
    cell = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(cell, str):
        text = cell.strip()
        try:
            cell = datetime.fromisoformat(text) if _ISO.fullmatch(text) else time.fromisoformat(text)
        except ValueError:
            return str(text) or None
        if isinstance(cell, time) and not _ISO_CLOCK.fullmatch(text):
            return str(text)
    if isinstance(cell, bool):
        return cell
    if isinstance(cell, int | float | Decimal):
        number = float(cell)
        return int(cell) if number.is_integer() and abs(number) < 2**63 else number
    if isinstance(cell, time):
        return datetime.combine(date.min, cell) - datetime.min
    if isinstance(cell, date) and not isinstance(cell, datetime):
        cell = datetime.combine(cell, time())
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=UTC) if cell.tzinfo is None else cell.astimezone(UTC)
    if isinstance(cell, timedelta):
        return timedelta(cell.days, cell.seconds, cell.microseconds)
    raise TypeError(type(cell).__name__)


def _kind_of(value: str | float | datetime | timedelta) -> str:
    if isinstance(value, str):
        return "category"
    return "time" if isinstance(value, datetime) else "duration" if isinstance(value, timedelta) else "number"


def _label(value: Any) -> Label:
    """Return a value as a label, which a file can hold."""
    if isinstance(value, datetime):
        return value.isoformat().removesuffix("+00:00").removesuffix("T00:00:00")
    label: Label = str(value) if isinstance(value, timedelta) else value
    return label


def _number(value: Any) -> float:
    """Return a value as a number: a time or duration in seconds, NaN if it is missing."""
    if isinstance(value, datetime):
        return value.timestamp()
    return value.total_seconds() if isinstance(value, timedelta) else float("nan") if value is None else float(value)
