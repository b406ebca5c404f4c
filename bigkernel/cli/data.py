"""`bigkernel info | check`: what a corpus or model is; whether all of it is sound."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bigkernel.cli.options import json_option
from bigkernel.cli.said import say
from bigkernel.errors import DataError, ModelRejected
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from bigkernel.data.corpus import Corpus


_NAMES = {"predictions": "prediction store", "run": "run directory", "partial": "partial result"}


@click.command()
@click.argument("path", type=click.Path())
@json_option
def info(path: str, as_json: bool) -> None:
    """Say what the corpus, model, prediction store or predictor file at PATH is.

    Of a model what people ask for; --json has all of its settings and arrays.
    """
    from bigkernel.data import zarr_arrays
    from bigkernel.data.check import STORES, kind_at
    from bigkernel.data.corpus import open_corpus
    from bigkernel.models.file import is_predictor

    if is_predictor(path):
        show(_predictor_figures(path), as_json=as_json, title=path)
        return
    kind = kind_at(path)
    if kind == "corpus":
        show(describe(open_corpus(path)), as_json=as_json, title=path)
        return
    if kind not in STORES:
        raise DataError(f"{path}: expected a corpus, model or prediction store, found {_NAMES.get(kind, kind)}")
    with _rejecting(kind):
        group, attributes = zarr_arrays.open_group(path, kind)
    figures: dict[str, Any] = {"kind": kind}
    for step in attributes.get("steps", []):
        figures[f"step {step['name']}"] = step["class"]
        if not all(isinstance(step.get(part), dict) for part in ("params", "fitted")):
            raise ModelRejected(f"{path}: its description is damaged")
        stated = {**step["params"], **step["fitted"]}
        shown = {key: value for key, value in stated.items() if value is not None and not key.startswith("_")}
        figures.update({f"  {key.rstrip('_')}": _short(value) for key, value in shown.items()})
    if kind == "model" and not as_json:
        words = _model_in_words(attributes.get("steps", []), path, zarr_arrays.array_names(group))
        show(words, as_json=False, title=path)
        return
    figures["arrays"] = [
        f"{name} {zarr_arrays.open_array(group, name).shape}" for name in zarr_arrays.array_names(group)
    ]
    show(figures, as_json=as_json, title=path)


@click.command()
@click.argument("path", type=click.Path())
@click.option("--all", "every", is_flag=True, help="Name every damaged chunk, not the first alone.")
@json_option
def check(path: str, every: bool, as_json: bool) -> None:
    """Read all of what is at PATH: every chunk, every checksum, every value.

    PATH is a corpus, a model, a prediction store, a predictor file or a run directory (every partial result of every
    sweep, against its receipt).

    Ends with 0 if all is sound; with 3 (7 for a model or predictor) otherwise, and the first damage is named.
    """
    from bigkernel.data.check import kind_at, walk
    from bigkernel.models.file import is_predictor
    from bigkernel.monitor.terminal.bar import bar

    start = time.perf_counter()
    if is_predictor(path):
        described = _predictor_figures(path)
        found = {"kind": "predictor", "sound": True, "protection": "CRC-32 of each array and of the description"}
        found |= {"bytes_read": described["stored_bytes"], "seconds": time.perf_counter() - start}
        show(found, as_json=as_json, title=path)
        return
    kind = kind_at(path)
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
                    if not as_json:
                        say(f"damaged: {looked.damage}")  # as it is found: a large store takes hours
                update(looked.done, looked.total)
        if kind == "model" and not damaged:
            from bigkernel.models.persistence import load_model  # with scikit-learn: a second that rows do without

            load_model(path)
        figures = {
            "kind": _NAMES.get(kind, kind),
            "sound": not damaged,
            "protection": "a checksum in every chunk; metadata and the set of chunks are sealed",
            "arrays": names,
            "chunks_read": parts,
            "damaged": [str(error) for error in damaged] if as_json else len(damaged),
            "seconds": time.perf_counter() - start,
        }
        if not damaged:
            del figures["damaged"]
        show(figures, as_json=as_json, title=path)
        if damaged:
            raise DataError(f"{path}: {len(damaged)} of {parts} chunks are damaged; the first: {damaged[0]}")


def _predictor_figures(path: str) -> dict[str, Any]:
    """The figures of a predictor file, all of which is read."""
    from bigkernel.kernels.feature_maps import LandmarkMap
    from bigkernel.models.predictor import Predictor

    predictor = Predictor.load(path)
    expansion = predictor.expansion
    features, classes = expansion.features, predictor.classes
    figures: dict[str, Any] = {"kind": "predictor", "features": predictor.n_features}
    if isinstance(features, LandmarkMap):
        figures |= {"kernel": features.kernel.formula(), "landmarks": features.width}
    else:
        figures["kernel"] = "none, a linear model"
    figures |= {"targets": expansion.width} if classes is None else {"classes": classes.tolist()}
    figures["probabilities"] = expansion.logits
    figures["dtype"] = str(features.dtype)
    figures["row_maps"] = [row_map.name for row_map in predictor.row_maps]
    figures["stored_bytes"] = os.path.getsize(path)
    return figures


@contextmanager
def _rejecting(kind: str) -> Iterator[None]:
    """Raise errors of a model's content as ModelRejected, whoever finds them."""
    try:
        yield
    except DataError as error:
        if kind == "model":
            raise ModelRejected(str(error)) from error
        raise


# what a model keeps for its own use, and parameters that its kernel states better
_PLUMBING = {
    *("classes_dtype", "coef0", "degree", "gamma", "max_iter", "tol", "fourier_seed", "fourier_origin"),
    *("n_features_in", "n_landmarks", "epsilon", "allow_single_domain", "intercept"),
}


def _model_in_words(steps: list[dict[str, Any]], path: str, arrays: list[str]) -> dict[str, Any]:
    """The figures of a model that `info` prints for people."""
    figures: dict[str, Any] = {"kind": "model", "steps": " → ".join(str(step["class"]) for step in steps)}
    widths = (step["fitted"].get("n_features_in_") for step in steps)
    figures["features"] = next((width for width in widths if isinstance(width, int)), None)
    for step in steps:
        stated = {key.rstrip("_"): value for key, value in {**step["params"], **step["fitted"]}.items()}
        if "n_landmarks" in stated:
            chosen, count = stated.get("landmarks"), stated["n_landmarks"]
            if isinstance(count, int) and "landmarks_" in step["arrays"]:  # rows may have been fewer
                count = min(count, int(step["arrays"]["landmarks_"]["shape"][0]))
            how = f", {chosen}" if isinstance(chosen, str) else ", given"
            stated["landmarks"] = f"{count:,}{how}" if isinstance(count, int) else "every row (exact)"
        if not any(isinstance(stated.get("kernel"), kind) for kind in (dict, str)):
            stated.pop("kernel", None)
        for key, value in stated.items():
            if not (key in _PLUMBING or key.startswith("_") or value is None or value == {}):
                figures[key] = _short(value)
    # more rows, or another alpha, can follow then
    figures["keeps_its_sums"] = any(".statistics." in name for name in arrays)
    figures["stored_bytes"] = stored_bytes(path)
    return {name: value for name, value in figures.items() if value is not None}


def stored_bytes(path: str) -> int:
    """Bytes of all files below a directory."""
    return sum(os.path.getsize(os.path.join(place, file)) for place, _, files in os.walk(path) for file in files)


def describe(corpus: Corpus) -> dict[str, Any]:
    """The figures of a corpus that `info` and `ingest` print."""
    figures = {
        "kind": "corpus",
        "rows": corpus.n_rows,
        "features": corpus.n_features,
        "dtype": corpus.dtype,
        "chunk_rows": corpus.chunk_rows,
        "columns": list(corpus.columns),
        "stored_bytes": stored_bytes(corpus.path),
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
    figures["source"] = described["source"]
    return figures


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(
            [str(value.get("kernel", "")), *(f"{k}={_short(v)}" for k, v in value.get("params", {}).items())]
        )
    return value if not isinstance(value, float) else f"{value:.6g}"
