"""Predictions as a table: a CSV or Parquet file with a line for every row, made from a prediction store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import replacing
from bigkernel.data.labels import named_labels
from bigkernel.data.readers.source import load_library
from bigkernel.errors import DataError
from bigkernel.statistics.predictor import softmax

_FIRST = ["row", "prediction"]  # the first columns of every table


def is_table(path: str | os.PathLike[str]) -> bool:
    """Return True if the name of a file says that it is a table."""
    return Path(path).suffix.lower() in (".csv", ".parquet")


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise an error if pyarrow is missing, or if something other than a table of predictions exists at `path`."""
    parquet, text = (load_library(f"pyarrow.{name}", "tables need pyarrow") for name in ("parquet", "csv"))
    if not os.path.lexists(path):
        return
    try:
        if _is_parquet(path):
            names = parquet.read_schema(path).names
        else:
            with text.open_csv(path) as reader:
                names = reader.schema.names
    except (OSError, ValueError):  # those of Arrow are ValueErrors
        names = []
    if names[:2] != _FIRST:
        raise DataError(f"{path}: expected a table of predictions to replace, found something else; choose another")


def write_table(path: str | os.PathLike[str], store: zarr.Group, *, decision: bool, probability: bool) -> list[str]:
    """Write a prediction store as a table, which appears complete or not at all; return the names of its columns.

    The columns are `row`, `prediction` (classes by name), `std` if it was stored, and with `decision` or `probability`
    one `decision_CLASS` or `probability_CLASS` a class. One chunk is in memory at a time.
    """
    arrow, text = load_library("pyarrow", "tables need pyarrow"), load_library("pyarrow.csv", "tables need pyarrow")
    make = load_library("pyarrow.parquet", "tables need pyarrow").ParquetWriter if _is_parquet(path) else text.CSVWriter
    array = store["prediction"]
    assert isinstance(array, zarr.Array)
    n_rows, step = array.shape[0], array.chunks[0]
    tables = (
        arrow.table(_columns(store, start, min(start + step, n_rows), decision=decision, probability=probability))
        for start in range(0, n_rows, step)
    )
    first = next(tables)
    with replacing(path) as scratch, make(os.fspath(scratch), first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    return list(first.schema.names)


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() == ".parquet"


def _columns(store: zarr.Group, start: int, stop: int, *, decision: bool, probability: bool) -> dict[str, Any]:
    """Return rows start … stop of a prediction store as columns by name."""
    attributes: Any = store.attrs[zarr_arrays.ATTRIBUTE]
    classes = attributes["classes"]
    values = {name: zarr_arrays.read(array, start, stop) for name, array in store.arrays()}
    if probability:
        values["probability"] = softmax(values["decision"])
    if not decision:
        values.pop("decision", None)
    values["prediction"] = named_labels(values["prediction"], classes)
    columns: dict[str, Any] = {"row": np.arange(start, stop)}
    for name in ("prediction", "std", "decision", "probability"):
        if name in values and values[name].ndim == 1:
            columns[name] = values[name]
        elif name in values:
            width = values[name].shape[1]
            labels = classes if len(classes) == width else range(width)
            columns |= {f"{name}_{label}": values[name][:, j] for j, label in enumerate(labels)}
    return columns
