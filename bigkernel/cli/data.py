"""`bigkernel ingest | info | check`: files become corpora; what a corpus or model is; whether all of it is sound."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal

import click
import numpy as np

from bigkernel import arrays
from bigkernel.cli.options import json_option, overwrite_option, show
from bigkernel.corpus import Corpus, open_corpus
from bigkernel.errors import DataError, ModelRejected
from bigkernel.ingest import ingest as ingest_source
from bigkernel.io import FORMATS, open_source
from bigkernel.monitor.terminal import bar

_CLASSES: dict[str, Literal["auto"] | bool] = {"auto": "auto", "classes": True, "numbers": False}
_FORMATS = "\n".join(f"  {name:<5} {text}" for name, text in FORMATS.items())


@click.command(epilog=f"\b\nFormats:\n{_FORMATS}")
@click.argument("source", type=click.Path())
@click.argument("corpus", type=click.Path())
@click.option("--format", "format_", type=click.Choice(["auto", *FORMATS]), default="auto", show_default=True)
@click.option("--labels", type=click.Path(), help="Label file of idx and npy [found beside by its name].")
@click.option("--target", help="Label column of a csv: name, number from 0, or none [the last].")
@click.option("--delimiter", help="Of a csv [found out].")
@click.option("--x", help="Name of the matrix in a mat or npz file [the largest].")
@click.option("--y", help="Name of the labels in a mat or npz file.")
@click.option("--dtype", help="Store rows as this dtype [as in the source].")
@click.option(
    "--labels-are",
    type=click.Choice(["auto", "classes", "numbers"]),
    default="auto",
    show_default=True,
    help="auto: integers and text are classes, other numbers are numbers.",
)
@click.option("--chunk-rows", type=click.IntRange(1), help="Rows of a chunk [about 8 MB of rows].")
@click.option("--name", help="Name of the corpus [that of the file].")
@overwrite_option
@json_option
def ingest(
    source: str,
    corpus: str,
    format_: str,
    labels: str | None,
    target: str | None,
    delimiter: str | None,
    x: str | None,
    y: str | None,
    dtype: str | None,
    labels_are: str,
    chunk_rows: int | None,
    name: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Read SOURCE into a chunked corpus at CORPUS.

    Rows stream through: memory does not depend on the size of the file. A damaged source ends in an error that names
    the byte or the line, and leaves no corpus.
    """
    start = time.perf_counter()
    opened = open_source(
        source, format=format_, labels=labels, target=target, delimiter=delimiter, x=x, y=y, dtype=dtype
    )
    classes = _CLASSES[labels_are]
    with bar(f"ingest {os.path.basename(source)}", enabled=not as_json) as update:
        made = ingest_source(
            opened, corpus, name=name, overwrite=overwrite, classes=classes, chunk_rows=chunk_rows, progress=update
        )
    figures = {"format": opened.format, **_describe(made), "seconds": time.perf_counter() - start}
    show(figures, as_json=as_json, title=corpus)


@click.command()
@click.argument("path", type=click.Path())
@json_option
def info(path: str, as_json: bool) -> None:
    """Say what the corpus, model or prediction store at PATH is."""
    kind = _kind(path)
    if kind == "corpus":
        show(_describe(open_corpus(path)), as_json=as_json, title=path)
        return
    group, attributes = arrays.open_group(path, kind)
    figures: dict[str, Any] = {"kind": kind}
    for step in attributes.get("steps", []):
        figures[f"step {step['name']}"] = step["class"]
        if not all(isinstance(step.get(part), dict) for part in ("params", "fitted")):
            raise ModelRejected(f"{path}: its description is damaged")
        stated = {**step["params"], **step["fitted"]}
        shown = {key: value for key, value in stated.items() if value is not None and not key.startswith("_")}
        figures.update({f"  {key.rstrip('_')}": _short(value) for key, value in shown.items()})
    figures["arrays"] = [f"{name} {arrays.open_array(group, name).shape}" for name in arrays.array_names(group)]
    show(figures, as_json=as_json, title=path)


@click.command()
@click.argument("path", type=click.Path())
@json_option
def check(path: str, as_json: bool) -> None:
    """Read all of the corpus, model or prediction store at PATH: every checksum and every value.

    Ends with 0 if all is sound; otherwise the first damage is named.
    """
    start, kind, names, parts = time.perf_counter(), _kind(path), [], 0
    with bar(f"check {os.path.basename(path)}", enabled=not as_json) as update:
        for name, done, total in _walk(path, kind):
            parts += 1
            if name not in names:
                names.append(name)
            update(done, total)
    seconds = time.perf_counter() - start
    show(
        {"kind": kind, "sound": True, "arrays": names, "chunks_read": parts, "seconds": seconds},
        as_json=as_json,
        title=path,
    )


def _walk(path: str, kind: str) -> Iterator[tuple[str, int, int]]:
    if kind == "corpus":
        yield from open_corpus(path).check()
        return
    if kind == "model":
        from bigkernel.model import load_model

        load_model(path)
    values, _ = arrays.read_group(path, kind)
    for name, array in values.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{path}/{name}: contains values that are not finite")
        yield name, len(array) if array.ndim else 1, len(array) if array.ndim else 1


def _kind(path: str) -> str:
    for kind in ("corpus", "model", "predictions"):
        try:
            arrays.open_group(path, kind)
        except DataError:
            continue
        return kind
    arrays.open_group(path, "corpus, model or prediction store")
    raise AssertionError


def _describe(corpus: Corpus) -> dict[str, Any]:
    figures = {
        "kind": "corpus",
        "rows": corpus.n_rows,
        "features": corpus.n_features,
        "dtype": corpus.dtype,
        "chunk_rows": corpus.chunk_rows,
        "columns": list(corpus.columns),
        "stored_bytes": sum(
            os.path.getsize(os.path.join(directory, file))
            for directory, _, files in os.walk(corpus.path)
            for file in files
        ),
    }
    described = asdict(corpus.info)
    if "y" in corpus.columns and corpus.info.classes and len(corpus.info.classes) <= 100:
        y = corpus.column("y")
        names = corpus.info.classes
        codes = list(range(len(names))) if any(isinstance(label, str) for label in names) else list(names)
        figures["labels"] = {str(name): int((y == code).sum()) for name, code in zip(names, codes, strict=True)}
        figures["unlabelled"] = int((y == -1).sum())
    for name in ("name", "image_shape", "scale"):
        if described[name]:
            figures[name] = described[name]
    figures["source"] = described["source"].split(", ")
    return figures


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join([str(value.get("kernel", "")), *(f"{k}={v}" for k, v in value.get("params", {}).items())])
    return value if not isinstance(value, float) else f"{value:.6g}"
