"""`bigkernel plan | fit | predict | score`: what a job would cost, the job, and what its model is worth."""

from __future__ import annotations

import os
import time
from typing import Any

import click
import numpy as np
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from threadpoolctl import threadpool_limits

from bigkernel.cli.describe import bad_rows_option, build, chosen_rows, model_options
from bigkernel.cli.options import (
    Where,
    cluster_options,
    execution,
    json_option,
    overwrite_option,
    run_options,
    show,
)
from bigkernel.config import settings
from bigkernel.corpus import Corpus, open_corpus
from bigkernel.errors import ConfigError, DataError
from bigkernel.execution import processors
from bigkernel.model import load_model, save_model
from bigkernel.predictor import score as score_of
from bigkernel.rows import Rows


@click.command()
@click.argument("corpus", type=click.Path())
@model_options
@bad_rows_option
@click.option("--workers", type=click.IntRange(1), help="How many workers there would be  [one a processor].")
@json_option
def plan(corpus: str, on_bad_rows: str, workers: int | None, as_json: bool, **options: Any) -> None:
    """Tell what fitting CORPUS would cost: flops, bytes, memory of a worker, time. Nothing is run.

    The time is that of the sweep, at the rate of this machine's matrix product, measured here for half a second.
    """
    opened = open_corpus(corpus)
    model = build(opened, options)
    last = model[-1] if isinstance(model, Pipeline) else model
    if not hasattr(last, "plan"):
        raise ConfigError(f"--method {options['method']} has no plan: one sweep over {opened.n_rows:,} rows")
    steps = last.plan(chosen_rows(opened, on_bad_rows))
    rate, count = gemm_flops_per_second(), workers or processors()
    seconds = steps.seconds(rate * count)
    base = settings().worker_base_bytes
    figures = {
        **steps.summary(),
        "worker_bytes": steps.worker_bytes(base),
        "of_it_process_bytes": base,
        "workers": count,
        "gemm_gflops_per_second_each": rate / 1e9,
        "sweep_seconds": seconds,
        "sweep_hours": seconds / 3600,
    }
    show(figures, as_json=as_json, title=f"plan: {options['method']} on {corpus}")


def gemm_flops_per_second(size: int = 2048, seconds: float = 0.5) -> float:
    """Rate of the single-threaded float32 matrix product of this machine."""
    a = np.ones((size, size), np.float32)
    out = np.empty_like(a)
    with threadpool_limits(limits=1, user_api="blas"):
        np.matmul(a, a, out=out)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            np.matmul(a, a, out=out)
            count += 1
        return 2.0 * size**3 * count / (time.perf_counter() - start)


INCIDENTS = ("retries", "lost_workers", "repeated_segments", "damaged_partials", "incidents")  # where there were any


@click.command()
@click.argument("corpus", type=click.Path())
@click.argument("model", type=click.Path())
@model_options
@bad_rows_option
@cluster_options
@run_options
@overwrite_option
@json_option
def fit(
    corpus: str,
    model: str,
    on_bad_rows: str,
    where: Where,
    run: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit a model to CORPUS and save it at MODEL.

    \b
    bigkernel fit train.corpus digits.model --transform unit-norm \\
        --sigma 0.7071 --alpha 0.1 --landmarks 1000 --cluster local
    """
    opened = open_corpus(corpus)
    estimator = build(opened, options)
    _require_target(model, overwrite)
    with execution(where, run=run, resume=resume, quiet=as_json):
        start = time.perf_counter()
        estimator.fit(chosen_rows(opened, on_bad_rows))
        seconds = time.perf_counter() - start
    save_model(estimator, model, overwrite=overwrite)
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    report: dict[str, Any] = {"estimator": type(last).__name__}
    if hasattr(last, "fit_report"):
        report = last.fit_report()
    swept = report.pop("sweep", {})
    stages = swept.pop("stage_seconds", {})
    chosen = ("executor", "workers", "segments", "gflops_per_second", "peak_bytes", "resumed_segments")
    figures = {
        **report,
        "training_mse": float(np.mean(last.training_mse_)) if hasattr(last, "training_mse_") else None,
        "fit_seconds": seconds,
        "sweep_seconds": swept.get("seconds"),
        **{name: swept[name] for name in chosen if name in swept},
        **{name: swept[name] for name in INCIDENTS if swept.get(name)},
        "stage_seconds": stages,
    }
    figures = {name: value for name, value in figures.items() if value is not None}
    show(figures, as_json=as_json, title=model)


def _require_target(path: str, overwrite: bool) -> None:
    """Refuse a target that cannot be written before hours are spent."""
    if os.path.exists(path) and not overwrite:
        raise DataError(f"{path}: already exists; choose another path or give --overwrite")
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        raise DataError(f"{path}: {parent} cannot be written")


@click.command()
@click.argument("model", type=click.Path())
@click.argument("corpus", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--decision", is_flag=True, help="Write the values of f for every class too.")
@click.option("--std", is_flag=True, help="Write the standard deviation of an observation too (krr on numbers).")
@cluster_options
@run_options
@overwrite_option
@json_option
def predict(
    model: str,
    corpus: str,
    out: str,
    decision: bool,
    std: bool,
    where: Where,
    run: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Predict every row of CORPUS with MODEL and write a zarr group at OUT, chunk by chunk.

    With --run DIR an interrupted job leaves what it has written, and --resume writes the rest.
    """
    loaded, opened = load_model(model), open_corpus(corpus)
    _require_target(out, overwrite)
    last, rows = _split(loaded, opened)
    with execution(where, run=run, resume=resume, quiet=as_json):
        start = time.perf_counter()
        group = last.predict_to(rows, out, decision=decision, std=std, overwrite=overwrite)
        seconds = time.perf_counter() - start
    arrays = [f"{name} {group[name].shape}" for name in sorted(group.array_keys())]
    show({"rows": opened.n_rows, "arrays": arrays, "seconds": seconds}, as_json=as_json, title=out)


@click.command()
@click.argument("model", type=click.Path())
@click.argument("corpus", type=click.Path())
@bad_rows_option
@cluster_options
@json_option
def score(
    model: str,
    corpus: str,
    on_bad_rows: str,
    where: Where,
    as_json: bool,
) -> None:
    """Score MODEL on the labelled rows of CORPUS: error and accuracy, or MSE and R²."""
    loaded, opened = load_model(model), open_corpus(corpus)
    last, rows = _split(loaded, chosen_rows(opened, on_bad_rows))
    with execution(where, quiet=as_json):
        start = time.perf_counter()
        totals = last.score_totals(rows)
        seconds = time.perf_counter() - start
    figures: dict[str, Any]
    if is_classifier(last):
        confusion = totals["confusion"]
        n = confusion.sum()
        if not n:
            raise DataError(f"{corpus}: no labelled row to score")
        error = 1 - score_of(totals)
        figures = {
            "rows": int(n),
            "error_percent": 100 * error,
            "standard_error_percent": 100 * float(np.sqrt(error * (1 - error) / n)),
            "accuracy_percent": 100 * (1 - error),
            "seconds": seconds,
        }
        if as_json:
            figures["confusion"] = confusion.astype(int).tolist()
            figures["classes"] = last.classes_.tolist()
    else:
        n = totals["n"][0]
        if not n:
            raise DataError(f"{corpus}: no labelled row to score")
        figures = {"rows": int(n), "mse": float((totals["sse"] / n).mean()), "r2": score_of(totals), "seconds": seconds}
    show(figures, as_json=as_json, title=f"{model} on {corpus}")


def _split(model: Any, corpus: Corpus | Rows) -> tuple[Any, Any]:
    """The last step, and the rows as the steps before it hand them on."""
    if not isinstance(model, Pipeline):
        return model, corpus
    return model[-1], model[:-1].transform(corpus) if len(model) > 1 else corpus
