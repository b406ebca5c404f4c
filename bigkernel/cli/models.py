"""The commands `bigkernel fit`, `predict` and `score`."""

from __future__ import annotations

import os
import shlex
import textwrap
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bigkernel.cli import options as shared
from bigkernel.cli.model_options import model_options
from bigkernel.cli.options import Where, execution, say
from bigkernel.data.atomic_write import require_apart, require_target
from bigkernel.data.run_lock import claimed
from bigkernel.errors import DataError, ResumeMismatchError
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from bigkernel.data.corpus import Corpus
    from bigkernel.engine.rows import Rows


_PROBABILITIES = ("log_loss", "brier", "calibration_error")
_SCORES = (
    *("accuracy_percent", "standard_error_percent", "balanced_accuracy_percent", "error_percent", *_PROBABILITIES),
    *("r2", "rmse", "mae", "mse", "crps", "interval_score", "coverage"),
)
# figures of a sweep's report
_FIGURES = (
    *("executor", "workers", "segments", "gflops_per_second", "peak_bytes", "resumed_segments"),
    *("driver_blas_threads", "device", "device_peak_bytes"),
)
# figures of a fit that people do not need every time
_DETAILS = {
    *("diagnostics", "block_rows", "trace_error", "landmark_choice", "dtype", "sums", "stage_seconds", "sweep_seconds"),
    *("training_mse", "held_out_mse", "training_error_percent", "held_out_error_percent", "candidates"),
    *(name for name in _FIGURES if name != "resumed_segments"),
}
# shown if there are any
_INCIDENTS = ("swept_again", "retries", "lost_workers", "repeated_segments", "damaged_partials", "incidents")


@click.command(cls=shared.GroupedCommand)
@click.argument("corpus", type=click.Path())
@click.argument("model", type=click.Path())
@shared.table_options
@model_options
@shared.bad_rows_option
@click.option(
    "--score", "held_out", type=click.Path(), metavar="CORPUS", help="Score it on labelled rows of a corpus or table."
)
@shared.cluster_options
@shared.run_options
@shared.overwrite_option
@shared.json_option
def fit(
    corpus: str, model: str, on_bad_rows: str, held_out: str | None, where: Where, run: str | None, resume: bool,
    overwrite: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Fit a model to CORPUS and save it at MODEL.

    CORPUS may be a table, CSV or Parquet, which needs no settings.

    \b
    bigkernel fit houses.csv houses.model --target price
    bigkernel fit train.corpus digits.model --transform unit-norm \\
        --sigma 0.7071 --alpha 0.1 --landmarks 1000 --cluster local

    bigkernel tune chooses --sigma and --alpha by cross-validation.
    """
    import numpy as np

    from bigkernel.cli.describe import build, chosen_rows, with_encoder
    from bigkernel.estimators.base import last_step
    from bigkernel.estimators.evaluation import describe_metric, limit_classes, whole
    from bigkernel.estimators.persistence import save_model
    from bigkernel.events.job import Figures, emit

    _require_target(model, overwrite, "model", run=run)
    opened = _open_training(corpus, model, options, quiet=as_json)
    estimator = build(opened, options)
    judged = _open_held_out(held_out, model, opened, on_bad_rows) if held_out else None
    _require_target(model, overwrite, "model", run=run, needed_bytes=_least_bytes(estimator, opened))
    rows = chosen_rows(opened, on_bad_rows)
    verdict: dict[str, Any] = {}
    with claimed(model, "the model"), execution(where, run=run, resume=resume, quiet=as_json):
        start = time.perf_counter()
        estimator.fit(rows)
        seconds = time.perf_counter() - start
        last: Any = last_step(estimator)
        report: dict[str, Any] = last.fit_report()
        last = last_step(estimator := whole(estimator))
        report["fit_seconds"] = seconds
        report["training_mse"] = mse = float(np.mean(last.training_mse_)) if hasattr(last, "training_mse_") else None
        if mse is not None and not opened.info.classes and "weight" not in opened.columns:
            report |= {"training_r2": 1 - mse / np.nanvar(opened.column("y")), "training_rmse": np.sqrt(mse)}
        given = {"corpus": corpus, "model": model, "transforms": list(options["transforms"]), "seed": options["seed"]}
        metric = describe_metric(estimator, opened.info.feature_names, opened.info.image_shape)
        emit(Figures("fit", {**report, **given, **({"metric": metric} if metric else {})}))
        save_model(with_encoder(estimator, opened), model, overwrite=overwrite)
        if judged is not None:
            of = "training" if os.path.samefile(held_out or "", corpus) else "held-out"
            verdict = {**_of_held_out(estimator, *judged, of=of, pictures=bool(run)), "corpus": held_out}
            emit(Figures("score", limit_classes(verdict)))
    figures = _fit_figures(report, verdict)
    if as_json:
        show(figures, as_json=True)
        return
    if "rounds" in figures:
        figures["rounds"] = len(figures["rounds"])
    same = {"labelled_rows"} if figures.get("labelled_rows") == figures.get("rows") else set()
    shown = {name: value for name, value in figures.items() if name not in _DETAILS | same and value != 0}
    show(shown, as_json=False, title=model)
    say(f"all figures: --json, or {run}/report.html" if run else "all figures: --json, or --run DIR")
    if options["probability"] and options["class_weight"]:
        say("probabilities are those of the rows; predictions take the largest after multiplying by the class weights")
    _say_score(model, figures, verdict)


def _open_training(path: str, model: str, options: dict[str, Any], *, quiet: bool) -> Corpus:
    """Open the corpus of a fit, or one of a table, for which the method is tabular unless another one is given."""
    from bigkernel.cli.ingest import open_rows
    from bigkernel.data.readers import is_table_file

    source = click.get_current_context().get_parameter_source("method")
    if source is ParameterSource.DEFAULT and is_table_file(path):
        options["method"] = "tabular"
    reading = {name: options.pop(name) for name in ("target", "drop", "labels_are")}
    if reading["labels_are"] != "auto" and not is_table_file(path):
        raise click.UsageError(f"--labels-are: is of tables, and {path} is none")
    return open_rows(path, model, quiet=quiet, **reading)


def _say_score(model: str, figures: dict[str, Any], verdict: dict[str, Any]) -> None:
    """Write the score that matters as the last line of a fit, or how to get one."""
    import numpy as np

    if verdict:
        classifies, corpus = "classes" in verdict, os.path.basename(verdict["corpus"])
        figure = f"accuracy {verdict['accuracy_percent']:.2f} %" if classifies else f"R² {verdict['r2']:.4g}"
        line = f"{verdict['of']} {figure} on {verdict['rows']:,} rows of {corpus}"
        if classifies:
            counts = np.sum(verdict["confusion"], axis=1)
            label = str(verdict["classes"][counts.argmax()])
            line += f" (always {label!r}: {100 * counts.max() / counts.sum():.1f} %)"
        say(_filled(line))
        return
    told = (f"training R² {figures['training_r2']:.4g}; " if "training_r2" in figures else "") + "no rows were held out"
    rows, errors = "CORPUS", [line["error"] for line in figures.get("candidates", ()) if line["chosen"]]
    if errors and errors[0] is not None:
        classes = figures["estimator"] == "TabularClassifier"
        figure = f"accuracy {100 * (1 - errors[0]):.2f} %" if classes else f"R² {1 - errors[0] ** 2:.4g}"
        rows, told = "TABLE", f"{figure} on held-out rows, a little too good as it is the best"
    say(_filled(f"{told}; fit with --score {rows}, or"))
    say(f"bigkernel score {shlex.quote(model)} {rows}")


def _filled(line: str) -> str:
    return textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _fit_figures(report: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a fit: its report, the main figures of its sweep, and its scores at the end."""
    swept = report.pop("sweep", {})
    kind = "held_out" if verdict.get("of") == "held-out" else "training"
    scores = {name: report.pop(name) for name in ("training_r2", "training_rmse", "training_mse") if name in report}
    figures = {
        **report,
        "sweep_seconds": swept.get("seconds"),
        **{name: swept[name] for name in _FIGURES if name in swept},
        **{name: swept[name] for name in _INCIDENTS if swept.get(name)},
        "stage_seconds": swept.get("stage_seconds", {}),
        **scores,
        **{f"{kind}_{name}": verdict[name] for name in ("rows", *_SCORES) if name in verdict},
    }
    return {name: value for name, value in figures.items() if value is not None}


def _open_held_out(path: str, model: str, training: Corpus, on_bad_rows: str) -> tuple[Corpus, Rows]:
    """Open the corpus or table to evaluate a fit on; raise an error before the fit if it cannot be used."""
    from bigkernel.cli.describe import chosen_rows
    from bigkernel.cli.ingest import open_rows

    kind = "classes" if training.info.classes else "numbers"
    opened = open_rows(path, f"{model}-score", training.info.encoding, quiet=True, labels_are=kind)
    if opened.info.encoding != training.info.encoding:
        raise DataError(
            f"--score {path}: was not encoded as {training.path}; ingest it with --encode-as {training.path}"
        )
    rows = chosen_rows(opened, on_bad_rows, training.info.feature_names)
    if rows.shape[1] != training.n_features:
        raise DataError(
            f"--score {path}: expected rows of {training.n_features} features as in {training.path}, found "
            f"{rows.shape[1]}"
        )
    if "y" not in opened.columns:
        raise DataError(f"--score {path}: expected labels y, found none; use a labelled corpus")
    return opened, rows


def _of_held_out(estimator: Any, corpus: Corpus, rows: Rows, *, of: str, pictures: bool) -> dict[str, Any]:
    """Evaluate held-out rows again if the run holds what another model (of another penalty) gave for them."""
    from bigkernel.engine.context import forget
    from bigkernel.estimators.evaluation import evaluate

    with suppress(ResumeMismatchError):
        return evaluate(estimator, corpus, rows, of=of, pictures=pictures)
    forget("score")
    return evaluate(estimator, corpus, rows, of=of, pictures=pictures)


def _require_target(path: str, overwrite: bool, what: str, *, run: str | None, needed_bytes: int = 0) -> None:
    """Raise an error before the fit for a target that cannot be written."""
    if os.path.exists(path) and not overwrite:
        raise DataError(f"{path}: already exists; choose another path or pass --overwrite")
    require_target(path, f"the {what}", needed_bytes=needed_bytes)
    require_apart({"run": run, what: path})


def _least_bytes(estimator: Any, corpus: Corpus) -> int:
    """Return the least bytes of a model: landmarks, coefficients, and the sums that it keeps."""
    from bigkernel.estimators.base import last_step
    from bigkernel.solvers.conjugate_gradients import AUTO_LEAST

    last = last_step(estimator)
    width = getattr(last, "n_landmarks", corpus.n_features) or 0
    width = width if getattr(last, "landmarks", "fourier") == "fourier" else min(width, corpus.n_rows)
    solver = getattr(last, "solver", "direct")
    keeps_sums = solver != "cg" and (solver != "auto" or width < AUTO_LEAST)
    return 8 * (keeps_sums * width**2 + width * (corpus.n_features + max(1, len(corpus.info.classes))))


@click.command()
@click.argument("model", type=click.Path())
@click.argument("corpus", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--id-column", "id", help="Of a table: column of ids, whole numbers or text, that predictions repeat.")
@shared.text_options
@click.option("--raw-text", is_flag=True, help="csv: write text as it is, also what spreadsheets take for formulas.")
@click.option("--decision", is_flag=True, help="Also write the decision values of every class.")
@click.option(
    "--probability",
    is_flag=True,
    help="csv, parquet: also write the probability of every class, by a model fitted with --probability.",
)
@click.option(
    "--std",
    is_flag=True,
    help="Also write standard deviations of observations (krr; --leaves with --posterior), by a Gaussian process whose "
    "noise variance is estimated, unless fit had --noise-variance.",
)
@shared.cluster_options
@shared.run_options
@shared.overwrite_option
@shared.json_option
def predict(
    model: str, corpus: str, out: str, id: str | None, raw_text: bool, decision: bool, probability: bool, std: bool,
    where: Where, run: str | None, resume: bool, overwrite: bool, as_json: bool, **reading: Any,
) -> None:  # fmt: skip
    """Predict every row of CORPUS with MODEL and write the predictions to OUT.

    \b
    bigkernel predict digits.model test.corpus predictions.csv --probability

    OUT is a table if its name ends in .csv or .parquet; otherwise a zarr group. The first column is the id of each row
    (ingest --id-column), else row: its number in the table that was ingested, from 0. Classes are written by name, in
    a zarr group by position if they are text.

    \b
    bigkernel predict flights.model new.csv predictions.csv

    For a model of a table, or of a corpus made with --encode, CORPUS may also be a table, CSV or Parquet, with the
    columns of the fit by name, in any order; others are ignored. Its rows are encoded beside OUT for the time of the
    command.

    CORPUS may also be a Dataset of xarray, as NetCDF or zarr, or at a URL of zarr: then OUT is one too, with its
    dimensions and coordinates. OUT may be a URL, too.

    With --run DIR an interrupted job keeps what it has written, and --resume writes the rest.
    """
    from bigkernel.cli.describe import chosen_rows, encoding_for, is_dataset, open_dataset, without_encoder
    from bigkernel.cli.ingest import open_rows
    from bigkernel.data.prediction_table import is_table
    from bigkernel.data.readers.stores import is_url, shown
    from bigkernel.estimators.evaluation import predict_to, whole
    from bigkernel.estimators.persistence import load_model

    loaded, table = whole(load_model(model)), is_table(out)
    if (elsewhere := is_url(out)) and not is_dataset(corpus):
        raise click.UsageError("only predictions of a Dataset are written to a URL; give OUT a path")
    if not elsewhere:
        _require_target(out, overwrite, "table" if table else "prediction store", run=run)
    if grid := is_dataset(corpus):
        opened, given = None, open_dataset(corpus)
    else:
        given = encoding_for(corpus, loaded)
        opened = open_rows(corpus, out, given, quiet=as_json, target="none", id=id, **reading)
        loaded = without_encoder(loaded, opened)
        given = chosen_rows(opened, "refuse", getattr(loaded, "feature_names_in_", None))
    if table and grid:
        raise click.UsageError("a table of predictions needs a corpus; give OUT a name without .csv or .parquet")
    if probability and not table:
        raise click.UsageError("--probability needs an OUT that ends in .csv or .parquet; see --decision")
    written = {
        "decision": decision,
        "probability": probability,
        "return_std": std,
        "overwrite": overwrite,
        "raw_text": raw_text,
    }
    with execution(where, run=run, resume=resume, quiet=as_json):
        start = time.perf_counter()
        made = predict_to(loaded, given, out, **written)
        seconds = time.perf_counter() - start
    listed = made if isinstance(made, list) else [f"{name} {value.shape}" for name, value in made.arrays()]
    counted = {"rows": opened.n_rows} if opened else {}
    show({**counted, "columns" if table else "arrays": listed, "seconds": seconds}, as_json=as_json, title=shown(out))


@click.command()
@click.argument("model", type=click.Path())
@click.argument("file", type=click.Path())
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", help="Of rows and numbers.")
@shared.overwrite_option
@shared.json_option
def export(model: str, file: str, dtype: Any, overwrite: bool, as_json: bool) -> None:
    """Write MODEL as an ONNX graph to FILE, for other languages and runtimes.

    \b
    bigkernel export digits.model digits.onnx

    FILE takes rows X in batches of any size, and gives numbers as variable, classes as label, with probabilities or
    scores. In Python: onnxruntime.InferenceSession("digits.onnx").run(None, {"X": rows.astype("float32")}).

    The metadata of FILE are a card of the model, which is also printed. Its line rounding says how far float32 moves
    predictions, as a share of their spread; above 0.001 there is a warning: take --dtype float64.
    """
    from bigkernel.models.onnx_graph import to_onnx

    made = to_onnx(model, file, dtype=dtype, overwrite=overwrite)
    show({line.key: line.value for line in made.metadata_props}, as_json=as_json, title=file)


@click.command()
@click.argument("model", type=click.Path())
@click.argument("corpus", type=click.Path())
@click.option("--target", help="Of a table: its label column.  [that of the fit]")
@click.option("--std", is_flag=True, help="Also score standard deviations: CRPS, and bands of 95 %.")
@shared.text_options
@shared.bad_rows_option
@shared.cluster_options
@shared.run_options
@shared.json_option
def score(
    model: str, corpus: str, std: bool, on_bad_rows: str, where: Where, run: str | None, resume: bool, as_json: bool,
    **reading: Any,
) -> None:  # fmt: skip
    """Score MODEL on the labelled rows of CORPUS, which may also be a table with the columns of the fit.

    Shows accuracy and error of classes, or R², RMSE and MAE of numbers; for a model fitted with --probability also
    the log-loss (nats), Brier score and calibration error. The balanced accuracy is the mean over classes.
    With --std, for models that predict --std takes, also the CRPS, and interval score and coverage of bands of 95 %.

    With --run DIR finished segments are kept for --resume, and DIR/report.html shows the confusion of classes and the
    worst-classified rows.
    """
    from sklearn.base import is_classifier

    from bigkernel.cli.describe import chosen_rows, encoding_for, without_encoder
    from bigkernel.cli.ingest import open_rows
    from bigkernel.estimators.evaluation import evaluate, limit_classes, whole
    from bigkernel.estimators.persistence import load_model
    from bigkernel.events.job import Figures, emit

    loaded, title = whole(load_model(model)), f"{model} on {corpus}"
    encoding, kind = encoding_for(corpus, loaded), "classes" if is_classifier(loaded) else "numbers"
    # in the current directory, as that of the model may be read-only
    place = f"{os.path.basename(model)}-{os.path.basename(corpus)}"
    opened = open_rows(corpus, place, encoding, quiet=as_json, labels_are=kind, **reading)
    loaded = without_encoder(loaded, opened)
    rows = chosen_rows(opened, on_bad_rows, getattr(loaded, "feature_names_in_", None))
    with execution(where, run=run, resume=resume, quiet=as_json):
        verdict = evaluate(loaded, opened, rows, of="scored", pictures=bool(run), std=std)
        emit(Figures("score", {**limit_classes(verdict), "model": model}))
    shown = ["rows", *_SCORES, "seconds", *["confusion", "classes"] * as_json]
    show({name: verdict[name] for name in shown if name in verdict}, as_json=as_json, title=title)
