"""`bigkernel ingest | info | check`: files become corpora; what a corpus or model is; whether all of it is sound."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import click

from bigkernel import arrays
from bigkernel.checks import STORES, kind_at, protections, walk
from bigkernel.cli.options import json_option, overwrite_option, run_options, show
from bigkernel.corpus import Corpus, open_corpus
from bigkernel.errors import DataError, ModelRejected
from bigkernel.ingest import ingest as ingest_source
from bigkernel.io import FORMATS, open_source
from bigkernel.model import load_model
from bigkernel.monitor.terminal import bar

_CLASSES: dict[str, Literal["auto"] | bool] = {"auto": "auto", "classes": True, "numbers": False}
_NAMES = {"predictions": "prediction store", "run": "run directory", "zarr": "zarr store", "partial": "partial result"}
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
@run_options
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
    run: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Read SOURCE into a chunked corpus at CORPUS.

    Rows stream through: memory does not depend on the size of the file. A damaged source ends in an error that names
    the byte or the line, and leaves no corpus. With --run DIR an interrupted ingest keeps its chunks, and --resume
    writes the rest.
    """
    if resume and not run:
        raise click.UsageError("--resume needs --run DIR")
    start = time.perf_counter()
    opened = open_source(
        source, format=format_, labels=labels, target=target, delimiter=delimiter, x=x, y=y, dtype=dtype
    )
    classes = _CLASSES[labels_are]
    with bar(f"ingest {os.path.basename(source)}", enabled=not as_json) as update:
        made = ingest_source(
            opened,
            corpus,
            name=name,
            overwrite=overwrite,
            classes=classes,
            chunk_rows=chunk_rows,
            progress=update,
            run=run,
            resume=resume,
        )
    figures = {"format": opened.format, **_describe(made), "seconds": time.perf_counter() - start}
    show(figures, as_json=as_json, title=corpus)


@click.command()
@click.argument("path", type=click.Path())
@json_option
def info(path: str, as_json: bool) -> None:
    """Say what the corpus, model or prediction store at PATH is."""
    kind = kind_at(path)
    if kind == "corpus":
        show(_describe(open_corpus(path)), as_json=as_json, title=path)
        return
    if kind not in STORES:
        raise DataError(f"{path}: expected a corpus, model or prediction store, found {_NAMES.get(kind, kind)}")
    with _rejecting(kind):
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
@click.option("--all", "every", is_flag=True, help="Name every damaged chunk, not the first alone.")
@json_option
def check(path: str, every: bool, as_json: bool) -> None:
    """Read all of what is at PATH: every chunk, every checksum, every value.

    PATH is a corpus, a model, a prediction store, a run directory (every partial result of every sweep, against its
    receipt) or any zarr array or group on a local disk. The line `protection` says what damage can be seen at all.

    Ends with 0 if all is sound; with 3 (7 for a model) otherwise, and the first damage is named.
    """
    start, kind = time.perf_counter(), kind_at(path)
    names: list[str] = []
    damaged: list[DataError] = []
    parts = 0
    with _rejecting(kind):
        with bar(f"check {os.path.basename(path)}", enabled=not as_json) as update:
            for looked in walk(path, kind):
                parts += 1
                if looked.array not in names:
                    names.append(looked.array)
                if looked.damage:
                    damaged.append(looked.damage)
                    if not every:
                        raise looked.damage
                update(looked.done, looked.total)
        if kind == "model" and not damaged:
            load_model(path)
        figures = {
            "kind": _NAMES.get(kind, kind),
            "sound": not damaged,
            "protection": protections(path, kind),
            "arrays": names,
            "chunks_read": parts,
            "damaged": [str(error) for error in damaged],
            "seconds": time.perf_counter() - start,
        }
        if not damaged:
            del figures["damaged"]
        show(figures, as_json=as_json, title=path)
        if damaged:
            raise DataError(f"{path}: {len(damaged)} of {parts} chunks are damaged; the first: {damaged[0]}")


@contextmanager
def _rejecting(kind: str) -> Iterator[None]:
    """What is wrong with a model is a ModelRejected, whoever finds it."""
    try:
        yield
    except DataError as error:
        if kind == "model":
            raise ModelRejected(str(error)) from error
        raise


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
