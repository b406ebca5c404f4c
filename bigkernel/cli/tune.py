"""The command `bigkernel tune`: search a grid of kernels and penalties, and save the best model."""

from __future__ import annotations

import csv
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bigkernel.cli import options as shared
from bigkernel.cli.model_options import grid_options
from bigkernel.cli.options import GroupedCommand, Numbers, Where, execution, say
from bigkernel.data.atomic_write import require_apart, require_target
from bigkernel.data.run_lock import claimed
from bigkernel.data.visible import visible
from bigkernel.errors import DataError
from bigkernel.monitor.terminal.figures import show
from bigkernel.search.scoring import OF_DOMAINS, SCORES

if TYPE_CHECKING:
    from bigkernel.data.corpus import Corpus
    from bigkernel.search.sweep_search import SweepSearchCV


_MOST_SHOWN = 400  # best candidates that the report shows
# fields of a record beside parameters
_OF_TESTS = ("score", "standard_error", "rank", "prediction_error", "converged")


@click.command(cls=GroupedCommand)
@click.argument("corpus", type=click.Path())
@grid_options
@click.option(
    "--folds",
    type=Numbers("domains", several=False),
    default="5",
    show_default=True,
    metavar="N|SHARE|domains",
    help="Number of folds, by a hash of the row or its group; a share below 1 to hold out; or domains, to leave each "
    "out in turn.",
)
@click.option(
    "--scoring",
    metavar="SCORE",
    help=f"One of {', '.join(SCORES)}; of a target without labels, one of {', '.join(OF_DOMAINS)}; or a scorer of "
    "scikit-learn (roc_auc, f1_macro, ...), which needs the values of all held-out rows in memory; larger is better  "
    "[accuracy for classes, r2 for numbers].",
)
@click.option("--one-standard-error", is_flag=True, help="Choose the simplest within one standard error of the best.")
@shared.bad_rows_option
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Directory for the results.")
@shared.run_options
@click.option("--dry-run", is_flag=True, help="Print the sweeps, their cost and, for many rows, their time; then exit.")
@shared.cluster_options
@shared.overwrite_option
@shared.json_option
def tune(
    corpus: str, scoring: str | None, on_bad_rows: str, out: str, run: str | None, resume: bool, dry_run: bool,
    where: Where, overwrite: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Search a grid on CORPUS by cross-validation and save the best model.

    --sigma, --gamma, --alpha and --components take a number, comma-separated numbers, or FIRST:LAST:COUNT in equal
    ratios. All alphas and numbers of components share a sweep; several bandwidths share one, as far as memory
    allows. Accuracy takes one more sweep. With --solver cg all alphas and folds of a bandwidth come from the
    sweeps of about one fit.

    \b
    bigkernel tune train.corpus --transform unit-norm --landmarks 1000 \\
        --sigma 0.3:3:10 --alpha 1e-6:1e2:20 --folds 5 --out tuned
    bigkernel tune train.corpus --sigma 0.2,0.4 --out tuned --dry-run

    \b
    In --out: results.csv (a line per candidate), results.json, report.html, and
    best.model, which predict and score take.
    """
    from bigkernel.cli.describe import chosen_rows
    from bigkernel.data.corpus import open_corpus
    from bigkernel.events.job import Figures, emit

    opened = open_corpus(corpus)
    rows = chosen_rows(opened, on_bad_rows)
    search = _search_of(opened, scoring, options)
    if dry_run:
        _show_plan(search, rows, corpus, where, as_json=as_json)
        return
    target = Path(out)
    require_apart({"run": run, "best model": target / "best.model"})
    # our own name: it is removed when the search has ended, or starts anew
    own = target / ".tune.run" if run is None else None
    _prepare(target, own, resume=resume, overwrite=overwrite)
    start = time.perf_counter()
    best = claimed(target / "best.model", "the best model")
    with best, execution(where, run=run or str(own), resume=resume, quiet=as_json, report=target / "report.html"):
        search.fit(rows)
        label = scoring or ("accuracy" if hasattr(search, "classes_") else "r2")
        records = _records(search)
        emit(Figures("tune", {"name": f"Search on {Path(corpus).name}", **_outcome(search, label, records)}))
    figures = _write_results(search, opened, label, records, target, time.perf_counter() - start)
    if own:
        shutil.rmtree(own, ignore_errors=True)
    if not as_json:
        _print_best(records, label)
    show(figures, as_json=as_json, title=f"tuned on {corpus}")


def _search_of(corpus: Any, scoring: str | None, options: dict[str, Any]) -> SweepSearchCV:
    """Return the search that the options describe."""
    from bigkernel.cli.describe import build_grid
    from bigkernel.search.sweep_search import SweepSearchCV

    simplest, cv = options.pop("one_standard_error"), options.pop("folds")
    cv = int(cv) if isinstance(cv, float) and cv.is_integer() else cv
    if not isinstance(cv, str) and not (cv == 0 or 0 < cv < 1 or (isinstance(cv, int) and cv > 1)):
        raise click.UsageError(f"--folds: expected at least 2 folds, a share between 0 and 1, or domains, found {cv:g}")
    estimator, grid = build_grid(corpus, options)
    seed = options["seed"]
    return SweepSearchCV(estimator, grid, cv=cv, scoring=scoring, random_state=seed, one_standard_error=simplest)


def _outcome(search: SweepSearchCV, label: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the report shows: the best candidates with the chosen one, and grid edges that are best."""
    marked = [{**record, "chosen": number == search.best_index_} for number, record in enumerate(records)]
    return {
        "score": label,
        "candidates": len(records),
        "folds": search.n_splits_,
        "edges": [str(edge) for edge in search.edges_],
        "records": sorted(marked, key=lambda record: (not record["chosen"], record["rank"]))[:_MOST_SHOWN],
    }


def _show_plan(search: SweepSearchCV, rows: Any, corpus: str, where: Where, *, as_json: bool) -> None:
    from bigkernel.cli.plan import time_of
    from bigkernel.engine.pilot import LONG_ROWS, pilot

    with execution(where, quiet=as_json):
        planned = search.plan(rows)
        # the first sweep fits a transform, and says nothing about the others; few rows have no long sweep
        learns = any(getattr(step, "learns", "") for _, step in getattr(search.estimator, "steps", ()))
        timed = len(rows) > LONG_ROWS and not learns
        time = time_of(pilot(lambda: search.fit(rows), flops=planned.flops)) if timed else {}
    figures = {
        "candidates": planned.candidates,
        "splits": planned.splits,
        "sweeps": list(planned.sweeps) if as_json else len(planned.sweeps),
        "flops": planned.flops,
        "task_bytes": planned.task_bytes,
        **time,
    }
    if planned.driver_bytes:
        figures |= {"expected_sweeps": planned.count, "driver_bytes": planned.driver_bytes}
    show(figures, as_json=as_json, title=f"plan: tune on {corpus}")
    for number, line in enumerate(() if as_json else planned.sweeps, 1):
        say(f"sweep {number}: {line.strip()}")


def _prepare(target: Path, own: Path | None, *, resume: bool, overwrite: bool) -> None:
    """Make the directory of the results; refuse one that holds those of another search, ended or interrupted."""
    from bigkernel.data.run_lock import require_free_lock

    require_target(target / "best.model", "the best model")
    if os.path.exists(target / "results.json") and not overwrite:
        raise DataError(f"{target}: holds the results of a search; choose another directory or pass --overwrite")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{target}: cannot be created: {error.strerror}") from error
    if own and os.path.exists(own) and not resume:
        require_free_lock(own)
        if not overwrite:
            raise DataError(f"{target}: holds an interrupted search; pass --resume to continue, or --overwrite")
        shutil.rmtree(own)


def _write_results(
    search: SweepSearchCV, corpus: Corpus, label: str, records: list[dict[str, Any]], target: Path, seconds: float
) -> dict[str, Any]:
    """Write the best model, the table and the records; return the figures to show."""
    from bigkernel.cli.describe import with_encoder
    from bigkernel.data.atomic_write import clear_orphans, write_json
    from bigkernel.estimators.persistence import save_model
    from bigkernel.events.job import plain

    clear_orphans(target / "best.model")
    save_model(with_encoder(search.best_estimator_, corpus), target / "best.model", overwrite=True)
    with open(target / "results.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    best = records[search.best_index_]
    figures = {
        "best": {name: value for name, value in best.items() if name not in _OF_TESTS},
        label: best["score"],
        "standard_error": best["standard_error"],
        "candidates": len(records),
        "folds": search.n_splits_,
        "edges": [str(edge) for edge in search.edges_],
        "sweeps": search.plan_.count,
        "seconds": seconds,
        "model": str(target / "best.model"),
    }
    clear_orphans(target / "results.json")
    write_json(target / "results.json", plain({**figures, "results": records}))
    return figures


def _records(search: SweepSearchCV) -> list[dict[str, Any]]:
    """Return a flat record for each candidate: its parameters, score, standard error and rank."""
    import numpy as np

    from bigkernel.kernels.algebra import Kernel

    results, records = search.cv_results_, []
    for i, params in enumerate(results["params"]):
        record: dict[str, Any] = {}
        for name, value in params.items():
            name = name.removeprefix("model__")
            if isinstance(value, Kernel):
                record.update({"kernel": value.name, **value.get_params()})
            else:
                record[name] = value
        record |= {
            "score": float(results["mean_test_score"][i]),
            "standard_error": float(results["sem_test_score"][i]),
            "rank": int(results["rank_test_score"][i]),
            "prediction_error": error if np.isfinite(error := float(results["prediction_error"][i])) else None,
        }
        if "converged" in results:
            record["converged"] = bool(results["converged"][i])
        records.append(record)
    return records


def _print_best(records: Sequence[dict[str, Any]], label: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from bigkernel.solvers.residuals import ENOUGH

    shown = sorted(records, key=lambda record: record["rank"])[:10]
    names = [name for name in shown[0] if name not in (*_OF_TESTS, "kernel")]
    table = Table(box=None, pad_edge=False, title="the best ten", title_justify="left")
    for name in (*names, label, "", "±"):
        table.add_column(name, justify="right", no_wrap=True)
    right = [record.get("converged", not record["prediction_error"] > ENOUGH) for record in shown]
    for record, is_right in zip(shown, right, strict=True):
        cells = [f"{record[name]:.4g}" if isinstance(record[name], float) else visible(record[name]) for name in names]
        table.add_row(*cells, f"{record['score']:.5f}", "" if is_right else "?", f"{record['standard_error']:.5f}")
    Console().print(table)
    if not all(right):
        say("?: the score may be off, see prediction_error in results.csv")
