"""Inputs of the estimators that know domains: fit(X, y, sample_domain, sample_weight) for every kind of input.

A row's domain is an integer, from `sample_domain` or from the column `domain` of a corpus or Rows; its label, where it
has one, tells its class, and −1 or NaN that it has none (beside text: None). Rows become `Cells` (a domain and a class,
or no label), whose sums one sweep accumulates beside the moments of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import DataError
from bigkernel.estimators.fit_state import Inputs, Problem, Training
from bigkernel.estimators.inputs import (
    domain_column,
    input_rows,
    is_lazy,
    validate_input,
    validated_weight,
    weigh_classes,
    with_domains,
)
from bigkernel.solvers.pseudo_labels import label_slots
from bigkernel.statistics.domain_cells import MOST_CELLS, Cells
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds


@dataclass(frozen=True, eq=False)
class CellTargets(Targets):
    """Targets of which NaN is no label too, as `cells`, of the same classes, have it."""

    cells: Cells = field(kw_only=True)

    def labelled(self, y: Array, start: int) -> Array:
        """See `Targets`."""
        return super().labelled(np.where(np.isnan(y), -1, y) if y.dtype.kind == "f" else y, start)


def cell_targets(cells: Cells) -> CellTargets:
    """Return the classes of cells as targets."""
    return CellTargets(cells.n_classes, cells.classes, cells.position, cells=cells)


def read_cells(
    estimator: Any,
    X: Any,
    y: Any,
    sample_domain: Any,
    sample_weight: Any,
    *,
    labels: bool = True,
    fallback: str = "refuse",
    groups: bool = False,
) -> Training:
    """Return validated rows with their columns y, domain and weight, the cells they are in, and their names.

    Parameters
    ----------
    labels : read labels; False: y is ignored, and cells are domains
    fallback : what rows are that come without domains: "refuse" them; "one": all of domain 0; "labels": the
        labelled ones domain 0, the others domain 1
    groups : keep the column group too, whose rows are held out together

    Raises
    ------
    DataError
        Labels or domains that are missing, of another length or not of a kind that can be used.
    """
    name = type(estimator).__name__
    if is_lazy(X):
        rows = input_rows(estimator, X, reset=True)
    else:
        X = validate_input(estimator, X, reset=True)
        rows, sample_weight = as_rows(X), validated_weight(sample_weight, X)
    if labels and y is None and "y" not in rows.columns:
        raise DataError(f"{rows.name}: {name} requires y to be passed, but the target y is None")
    kept = {"domain", "weight"} | ({"y"} if labels else set())
    kept |= {"group"} if groups or getattr(estimator, "probability", False) else set()
    rows = replace(rows, columns={column: rows.columns[column] for column in kept & set(rows.columns)})
    rows = with_domains(as_rows(rows, weight=sample_weight), sample_domain)
    found: Array | None = None
    targets = Targets(0, np.zeros(0, np.int64))
    if labels:
        rows, targets, found = _labels(estimator, rows, y)
    assert targets.classes is not None
    rows, domains, told = _domains(estimator, rows, fallback)
    cells, inputs = Cells(told, targets.classes, targets.position), Inputs.of(estimator, classes=found, domains=domains)
    rows = weigh_classes(rows, cell_targets(cells), inputs, getattr(estimator, "class_weight", None))
    return Training(rows, cells, inputs)


def _labels(estimator: Any, rows: Rows, y: Any) -> tuple[Rows, Targets, Array]:
    """Rows with the column y, the targets that tell which label is which, and the sorted labels."""
    classes = None
    if y is not None and not is_lazy(y):
        try:
            y = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite="allow-nan", input_name="y")
            if y.dtype.kind == "O" and y.ndim == 1:
                return _object_labels(estimator, rows, y)
            y = column_or_1d(y, warn=True)
            check_consistent_length(y, np.empty(len(rows)))
            y = np.where(np.isnan(y), -1, y) if y.dtype.kind == "f" else y
            check_classification_targets(y)
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"y: {error}") from error
    elif y is not None or not rows.classes:
        rows = rows if y is None else replace(as_rows(rows, y), classes=())
        found = distinct(rows, "y")
        y, classes = None, found[(found != -1) & (found == found)]
    labels = estimator._find_classes(rows, y, classes)
    y, targets = estimator._class_targets(rows, y, labels)
    return as_rows(rows, y), targets, labels


def _object_labels(estimator: Any, rows: Rows, y: Array) -> tuple[Rows, Targets, Array]:
    """`_labels` of an array of objects: numbers, or text, with None, NaN, −1 or "-1" where there is no label."""
    check_consistent_length(y, np.empty(len(rows)))
    missing = np.array([label is None or label in (-1, "-1") or label != label for label in y], bool)
    text = np.array([isinstance(label, str) for label in y], bool)
    number = np.array([isinstance(label, Real) for label in y], bool)
    if (missing | number).all():
        return _labels(estimator, rows, np.where(missing, -1, y).astype(np.float64))
    if not (missing | text).all():
        row = int(np.argmin(missing | text))
        raise DataError(f"y: row {row} has the label {y[row]!r}; expected text alone, or numbers alone")
    labels, codes = np.unique(y[~missing].astype(str), return_inverse=True)
    estimator._require_classes(labels)
    column = np.full(len(y), -1)
    column[~missing] = codes
    return as_rows(rows, column), Targets(len(labels), np.arange(len(labels))), labels


def _domains(estimator: Any, rows: Rows, fallback: str) -> tuple[Rows, Array, Array | None]:
    """Rows with the column domain, the domains (G,), and the same or None where labels tell them."""
    if "domain" in rows.columns:
        domains = distinct(rows, "domain")
        return rows, domains, domains
    if fallback == "refuse":
        raise DataError(
            f"{rows.name}: {type(estimator).__name__} needs the domain of every row; pass sample_domain (n,), integers"
            ", or rows with a column 'domain'"
        )
    if fallback == "labels":
        return rows, np.arange(2), None
    return as_rows(rows, domain=np.zeros(len(rows), np.int8)), np.arange(1), np.arange(1)


def require_weight(problem: Problem, rows: str) -> None:
    """Raise `DataError` where the rows of this name weigh nothing."""
    if not problem.statistics["n"].sum() > 0:
        raise DataError(f"{rows}: the weights of all rows are zero")


def distinct(rows: Rows, name: str) -> Array:
    """The different values of the column y or domain, sorted, read step by step; domains have to be integers.

    Raises
    ------
    DataError
        More of them than cells can be, or a domain that is no integer.
    """
    source = rows.columns[name]
    found = source.read(0, 0)
    for start, stop in pairwise(rows.bounds(settings())):
        part = source.read(start, stop)
        found = np.union1d(found, domain_column(part, start) if name == "domain" else part)
        if len(found) > MOST_CELLS:
            what = "classes" if name == "y" else "domains"
            raise DataError(f"{name}: more than {MOST_CELLS:,} different values, too many for {what}")
    return found.astype(np.int64) if name == "domain" else found


def cell_counts(rows: Rows, cells: Cells) -> Array:
    """Count the rows of each cell, (G, k + 1) int64: from the columns alone, whatever their weights.

    Raises
    ------
    DataError
        A label or a domain that the cells do not know; names the row.
    """
    counts = np.zeros(cells.width, np.int64)
    for chunk in _without_features(rows, ("y", "domain")):
        counts += np.bincount(cells.of(chunk), minlength=cells.width)
    return counts.reshape(cells.n_domains, cells.n_classes + 1)


def slot_counts(rows: Rows, cells: Cells, folds: Folds) -> Array:
    """Count the rows of each slot (`solvers.pseudo_labels`), (G, F + 2) int64; otherwise as `cell_counts`."""
    counts = np.zeros((cells.n_domains, folds.count + 2), np.int64)
    for chunk in _without_features(rows, ("y", "domain", "group", "fold")):
        counts += np.bincount(label_slots(cells, folds, chunk), minlength=counts.size).reshape(counts.shape)
    return counts


def _without_features(rows: Rows, names: Sequence[str]) -> Iterator[Chunk]:
    """Some columns of the rows, step by step."""
    columns = {name: source for name, source in rows.columns.items() if name in names}
    for start, stop in pairwise(rows.bounds(settings())):
        read: dict[str, Any] = {name: source.read(start, stop) for name, source in columns.items()}
        yield replace(Chunk(np.empty((stop - start, 0)), start), **read)
