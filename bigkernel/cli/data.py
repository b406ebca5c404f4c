"""The commands `bigkernel info` and `check`: describe a corpus or model, and verify it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bigkernel.cli.options import json_option, say
from bigkernel.errors import DataError
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from bigkernel.data.corpus import Corpus


_MOST_NAMES = 20  # most names of columns that people are shown
_MOST_ARRAYS = 12  # of a model, that are listed
_NAMES = {"predictions": "prediction store", "run": "run directory", "partial": "partial result"}


@click.command()
@click.argument("path", type=click.Path())
@json_option
def info(path: str, as_json: bool) -> None:
    """Describe the corpus, model or prediction store at PATH."""
    from bigkernel.models.file import is_model

    if is_model(path):
        show(_model_figures(path, as_json=as_json), as_json=as_json, title=path)
        return
    from bigkernel.data import zarr_arrays
    from bigkernel.data.check import STORES, kind_at
    from bigkernel.data.corpus import open_corpus

    kind = kind_at(path)
    if kind == "corpus":
        show(describe(open_corpus(path), as_json=as_json), as_json=as_json, title=path)
        return
    if kind not in STORES:
        raise DataError(f"{path}: expected a corpus, model or prediction store, found {_NAMES.get(kind, kind)}")
    store = zarr_arrays.open_store(path, kind)
    arrays = [f"{name} {store.array(name).shape}" for name in sorted(store.manifest.arrays)]
    show({"kind": kind, "arrays": arrays}, as_json=as_json, title=path)


@click.command()
@click.argument("path", type=click.Path())
@json_option
def check(path: str, as_json: bool) -> None:
    """Verify every chunk, checksum and value at PATH.

    PATH is a corpus, a model, a prediction store or a run directory (every partial result of every sweep, against its
    receipt).

    Exits with 0 if all is intact, otherwise with 3 (7 for a model) after naming every damaged chunk.
    """
    from bigkernel.models.file import is_model

    start = time.perf_counter()
    if is_model(path):
        from bigkernel.estimators.persistence import check_model  # imports scikit-learn: a second that rows do not need

        check_model(path)
        figures = {"kind": "model", "intact": True, "protection": "CRC-32 of each array and of the header"}
        figures |= {"bytes_read": os.path.getsize(path), "seconds": time.perf_counter() - start}
        show(figures, as_json=as_json, title=path)
        return
    from bigkernel.data.check import kind_at, walk
    from bigkernel.monitor.terminal.bar import bar

    kind = kind_at(path)
    names: list[str] = []
    damaged: list[DataError] = []
    chunks = 0
    with bar(f"check {os.path.basename(path)}", enabled=not as_json) as update:
        for looked in walk(path, kind):
            chunks += 1
            if looked.array not in names:
                names.append(looked.array)
            if looked.damage:
                damaged.append(looked.damage)
                if not as_json:
                    say(f"damaged: {looked.damage}")
            update(looked.done, looked.total)
    figures = {
        "kind": _NAMES.get(kind, kind),
        "intact": not damaged,
        "protection": "a checksum in every chunk; a manifest of metadata and chunks",
        "arrays": names,
        "chunks_read": chunks,
        **({"damaged": [str(error) for error in damaged] if as_json else len(damaged)} if damaged else {}),
        "seconds": time.perf_counter() - start,
    }
    show(figures, as_json=as_json, title=path)
    if damaged:
        raise type(damaged[0])(f"{path}: {len(damaged)} of {chunks} chunks are damaged; the first: {damaged[0]}")


def _model_figures(path: str, *, as_json: bool) -> dict[str, Any]:
    """Return the settings of a model and its arrays, from its description."""
    from bigkernel.models.file import LIMIT_BYTES, opened

    with opened(path, limit_bytes=LIMIT_BYTES) as contents:
        said = contents.values["model"]
        steps = said.get("steps", [["model", said]]) if said else []
        classes = " → ".join(str(step["class"]) for _, step in steps)
        figures: dict[str, Any] = {"kind": "model", "steps": classes or "a predictor only"}
        for _, step in steps:
            settings = step.get("params", {})
            figures |= {key: _shown(value) for key, value in settings.items() if value not in (None, {})}
        expansion = contents.values["predictor"].get("expansion", {}).get("fields", {})
        if classes_of := expansion.get("classes"):
            figures["classes"] = _names(classes_of["labels"], as_json=as_json).get("feature_names", [])
        fitted = (expansion.get("features") or {}).get("fields", {}).get("kernel")
        if isinstance(fitted, dict):
            figures["kernel"] = _shown(fitted)  # with the bandwidth of the fit
        names = contents.values["predictor"].get("feature_names") or {"labels": []}
        figures |= _names(names["labels"], as_json=as_json)
        # more rows, or another alpha, can follow then
        figures["keeps_its_sums"] = any(".statistics." in name for name in contents.entries)
        figures["numpy_alone"] = contents.values["predictor"].get("refused", "yes, by Predictor.load")
        figures["stored_bytes"] = os.path.getsize(path)
        arrays = [f"{name} {tuple(entry['shape'])}" for name, entry in contents.entries.items()]
        few = as_json or len(arrays) <= _MOST_ARRAYS
        figures["arrays"] = arrays if few else [*arrays[:_MOST_ARRAYS], f"and {len(arrays) - _MOST_ARRAYS:,} more"]
    return figures


def describe(corpus: Corpus, *, as_json: bool) -> dict[str, Any]:
    """Return the figures of a corpus that `info` and `ingest` print."""
    figures: dict[str, Any] = {
        "kind": "corpus",
        "rows": corpus.n_rows,
        "features": corpus.n_features,
        **_names(corpus.info.feature_names, as_json=as_json),
        **({"target": corpus.info.target} if corpus.info.target else {}),
        "dtype": corpus.dtype,
        "chunk_rows": corpus.chunk_rows,
        "columns": list(corpus.columns),
        "stored_bytes": sum(
            os.path.getsize(os.path.join(place, file)) for place, _, files in os.walk(corpus.path) for file in files
        ),
    }
    figures |= _describe_labels(corpus)
    described = asdict(corpus.info)
    figures |= {name: described[name] for name in ("name", "image_shape", "scale") if described[name]}
    return {**figures, "source": described["source"]}


def _describe_labels(corpus: Corpus) -> dict[str, Any]:
    """Return the kind of the labels of a corpus, their counts or range, and the number of rows without one."""
    import numpy as np

    if "y" not in corpus.columns:
        return {}
    y, classes = corpus.column("y"), corpus.info.classes
    known = y[np.isfinite(y)]
    numbers = "whole numbers" if (known == np.round(known)).all() else "numbers"
    figures: dict[str, Any] = {"labels_are": f"{len(classes)} classes" if classes else numbers}
    if 0 < len(classes) <= 100:
        codes = range(len(classes)) if any(isinstance(label, str) for label in classes) else classes
        counted = zip(classes, codes, strict=True)
        figures["labels"] = {str(name): int((y == code).sum()) for name, code in counted}
    elif not classes and len(known):
        figures["labels"] = {"from": float(known.min()), "to": float(known.max())}
    return {**figures, "unlabelled": int((y == -1).sum()) if classes else len(y) - len(known)}


def _names(names: Sequence[str], *, as_json: bool) -> dict[str, Any]:
    """Return the names of features as a figure, if there are any; people are shown the first ones."""
    if not as_json and len(names) > _MOST_NAMES:
        names = [*names[:_MOST_NAMES], f"… ({len(names)} in all)"]
    return {"feature_names": list(names)} if names else {}


def _shown(value: Any) -> Any:
    """Format a parameter in a file; a kernel by its name and parameters."""
    if not isinstance(value, dict):
        return value
    params = value.get("params", {})
    return {"name": value.get("kernel", ""), **{key: _shown(item) for key, item in params.items()}}
