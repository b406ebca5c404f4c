"""Predictions as a table: a CSV or Parquet file with a line for every row, made from a prediction store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import clear_orphans, remove_at_once, replacing, scratch_path
from bigkernel.data.labels import named_labels
from bigkernel.data.readers.source import load_library, number_in
from bigkernel.data.run_lock import claimed
from bigkernel.errors import DataError
from bigkernel.statistics.predictor import softmax

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # the first letters of what spreadsheets run


def is_table(path: object) -> bool:
    """Return whether predictions at `path` are a table, by the ending of its name."""
    return str(path).lower().endswith((".csv", ".parquet"))


def _library(path: str) -> Any:
    """Return the module of pyarrow that reads and writes a table by the ending of its name."""
    name = "pyarrow.csv" if path.lower().endswith(".csv") else "pyarrow.parquet"
    return load_library(name, "tables need pyarrow")


def _require_replaceable(path: str, overwrite: bool) -> None:
    """Raise an error if pyarrow is missing, or a file exists at `path` that may not be replaced."""
    library = _library(path)
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise DataError(f"{path}: already exists; choose another path or set overwrite")
    try:
        schema = library.open_csv(path).schema if hasattr(library, "open_csv") else library.read_schema(path)
    except (OSError, ValueError):  # those of Arrow are ValueErrors
        schema = None
    if schema is None or schema.names[1:2] != ["prediction"]:
        raise DataError(f"{path}: expected a table of predictions to replace, found something else; choose another")


@contextmanager
def preparing_table(path: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield the path of the prediction store that a table at `path` is to be made of; it is removed in the end."""
    _require_replaceable(path, overwrite)
    store = scratch_path(Path(path), "predictions")
    with claimed(path, "the predictions"):
        try:
            clear_orphans(Path(path))
            yield store
        finally:
            remove_at_once(store)


def write_table(
    path: str, store: zarr.Group, *, decision: bool, probability: bool, raw_text: bool = False
) -> list[str]:
    """Write a prediction store as a table, which appears complete or not at all; return the names of its columns.

    The columns are the ids, else `row`; `prediction` (classes by name), `std` if it was stored, and with `decision` or
    `probability` one `decision_CLASS` or `probability_CLASS` a class. One chunk is in memory at a time. In CSV, text
    that a spreadsheet would take for a formula begins with an apostrophe, unless `raw_text`.
    """
    arrow, library = load_library("pyarrow", "tables need pyarrow"), _library(path)
    make = library.CSVWriter if hasattr(library, "CSVWriter") else library.ParquetWriter
    array: Any = store["prediction"]
    steps = range(0, array.shape[0], array.chunks[0])
    chosen = {"prediction", "std", *(["decision"] if decision else []), *(["probability"] if probability else [])}
    pieces = (_columns(store, start, min(start + steps.step, steps.stop), chosen) for start in steps)
    if hasattr(library, "CSVWriter") and not raw_text:
        pieces = ({_inert(name): _inert(values) for name, values in piece.items()} for piece in pieces)
    tables = map(arrow.table, pieces)
    first = next(tables)
    with replacing(path) as scratch, make(os.fspath(scratch), first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    return list(first.schema.names)


def _inert(value: Any) -> Any:
    """Return text, or a column of it, with an apostrophe before what a spreadsheet would take for a formula."""
    if isinstance(value, str):
        return f"'{value!s}" if value.startswith(_FORMULA) and number_in(value) is None else value
    texts = isinstance(value, list) or getattr(value, "dtype", np.dtype(int)).kind == "U"
    return [_inert(item) for item in value] if texts else value


def _columns(store: zarr.Group, start: int, stop: int, chosen: set[str]) -> dict[str, Any]:
    """Return rows start … stop of a prediction store as columns by name."""
    attributes: Any = store.attrs[zarr_arrays.ATTRIBUTE]
    classes = attributes["classes"]
    values = {name: zarr_arrays.read(array, start, stop) for name, array in store.arrays()}
    values["prediction"] = named_labels(values["prediction"], classes)
    if "probability" in chosen:
        values["probability"] = softmax(values["decision"] - attributes["log_weights"])
    columns: dict[str, Any] = {name: values[name].tolist() for name in attributes["ids"]}
    columns = columns or {"row": np.arange(start, stop)}
    for name in ("prediction", "std", "decision", "probability"):
        if name in chosen and name in values:
            block = values[name]
            labels = classes if block.ndim > 1 and len(classes) == block.shape[1] else range(block.shape[-1])
            columns |= {name: block} if block.ndim == 1 else {f"{name}_{k}": block[:, j] for j, k in enumerate(labels)}
    return columns
