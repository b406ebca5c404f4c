"""`python -m pipelines tune`: width and penalty of a classifier by cross-validation, a final model, and copies in folds.

The whole grid (width σ × penalty α × folds) comes from a few sweeps of the training rows (`SweepSearchCV`). The test
digits are looked at once, when everything is chosen. A corpus of deformed digits then shows why all copies of a digit
belong in one fold: folds of single rows test on copies of what they trained on, and promise too small an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupShuffleSplit, StratifiedShuffleSplit
from sklearn.pipeline import Pipeline

from bigkernel import Corpus, Gaussian, KernelRidgeClassifier, SweepSearchCV, UnitNormalizer
from bigkernel.cli.describe import Numbers
from bigkernel.cli.pictures import score_map
from bigkernel.errors import DataError
from bigkernel.folds import HashFolds
from bigkernel.landmarks import require_count
from bigkernel.monitor.terminal import bar, progress
from pipelines import digit_corpora
from pipelines.charts import Curve, curves
from pipelines.digit_corpora import MNIST_FILES, Deformed, Digits
from pipelines.experiments import Report, options
from pipelines.pictures import LIGHT, Paper
from pipelines.report import Column, Table

Array = NDArray[Any]
FOLDS = 5
HELD_OUT = 1 / 6  # of the training rows, to tune the final model by
FINAL_WIDTHS = (1.0, 0.85, 0.7)  # of the σ that fewer landmarks chose: more landmarks resolve finer
FINAL_PENALTIES = 10.0  # the alphas of the grid within this factor of the one that fewer landmarks chose
COPY_SIGMAS, COPY_ALPHAS = (0.15, 0.2, 0.3, 0.4, 0.5), (0.001, 0.01, 0.1, 1.0)
TEST_COPIES = 20  # of each digit held out
WAYS = {"ungrouped": "row", "grouped": "group"}  # of making folds, and what they hash


def pipeline(landmarks: int, seed: int, *, sigma: float = 1.0) -> Pipeline:
    """Rows of unit norm, then kernel ridge regression on landmarks."""
    model = KernelRidgeClassifier(Gaussian(sigma), n_landmarks=landmarks, random_state=seed)
    return Pipeline([("unit", UnitNormalizer()), ("krr", model)])


def searched(
    corpus: Corpus, sigmas: Sequence[float], alphas: Sequence[float], *, landmarks: int, seed: int, cv: Any, refit: bool
) -> SweepSearchCV:
    """Accuracy of every (σ, α) on every fold; the choice is the simplest within one standard error of the best."""
    grid = {"krr__kernel": [Gaussian(sigma) for sigma in sigmas], "krr__alpha": list(alphas)}
    search = SweepSearchCV(
        pipeline(landmarks, seed), grid, cv=cv, refit=refit, one_standard_error=True, random_state=seed
    )
    return search.fit(corpus)


def cells(search: SweepSearchCV) -> list[dict[str, Any]]:
    """A record a candidate: σ, α, its error and standard error in %, its rank, and whether it is the chosen one."""
    results = search.cv_results_
    return [
        {
            "sigma": params["krr__kernel"].sigma,
            "alpha": params["krr__alpha"],
            "error_percent": 100 * (1 - float(results["mean_test_score"][i])),
            "error_percent_se": 100 * float(results["sem_test_score"][i]),
            "rank": int(results["rank_test_score"][i]),
            "chosen": i == search.best_index_,
        }
        for i, params in enumerate(results["params"])
    ]


def one_split(corpus: Corpus, seed: int) -> Any:
    """A splitter that holds out `HELD_OUT` of the rows once; of the groups, where the corpus has them."""
    kind = GroupShuffleSplit if "group" in corpus.columns else StratifiedShuffleSplit
    return kind(n_splits=1, test_size=HELD_OUT, random_state=seed)


def test_error(model: Pipeline, test: Corpus) -> dict[str, Any]:
    """Error on the test rows and its standard error, in %."""
    wrong = float(np.mean(np.asarray(model.predict(test)) != test.column("y")))
    return {
        "error_percent": 100 * wrong,
        "error_percent_se": 100 * float(np.sqrt(wrong * (1 - wrong) / len(test))),
        "rows": len(test),
    }


def true_errors(model: Pipeline, images: Array, labels: Array, copies: Array) -> dict[str, float]:
    """Errors in % on held-out originals (n, h, w) and on their copies (n·c, h·w), copy i of original i mod n.

    The standard error is that of a mean over originals: copies of one digit are wrong together.
    """
    wrong = (np.asarray(model.predict(copies)) != np.resize(labels, len(copies))).reshape(-1, len(labels)).mean(axis=0)
    originals = np.asarray(model.predict(images.reshape(len(images), -1))) != labels
    return {
        "true_percent": 100 * float(wrong.mean()),
        "true_percent_se": 100 * float(wrong.std(ddof=1) / np.sqrt(len(wrong))),
        "originals_percent": 100 * float(originals.mean()),
    }


def compare(train: Corpus, *, landmarks: int, seed: int, repeats: int) -> list[dict[str, Any]]:
    """The grid of `COPY_SIGMAS` and `COPY_ALPHAS` on deformed digits, by either way of making folds, and the truth.

    Errors and their standard errors over folds are means over `repeats` partitions into folds. The truth is the error
    on digits whose originals were held out, deformed as the training rows are; the model has all training rows.
    """
    judged: dict[str, dict[tuple[float, float], list[dict[str, Any]]]] = {}
    for way, by in WAYS.items():
        judged[way] = {}
        for number in range(repeats):
            folds = HashFolds(FOLDS, seed + number, "row" if by == "row" else "group")
            search = searched(
                train, COPY_SIGMAS, COPY_ALPHAS, landmarks=landmarks, seed=seed, cv=folds, refit=False
            )
            for cell in cells(search):
                judged[way].setdefault((cell["sigma"], cell["alpha"]), []).append(cell)
    _, _, images, labels = digit_corpora.bundled_originals(seed)
    n_copies = TEST_COPIES * len(images)
    copies = Deformed(images, n_copies, n_copies, seed + 1).read(0, n_copies)
    records = []
    for sigma in COPY_SIGMAS:
        model = pipeline(landmarks, seed, sigma=sigma).fit(train)
        for alpha in COPY_ALPHAS:
            model[-1].set_params(alpha=alpha).refit()
            record: dict[str, Any] = {"sigma": sigma, "alpha": alpha}
            for way, found in judged.items():
                for key, name in (("error_percent", "percent"), ("error_percent_se", "percent_se")):
                    record[f"{way}_{name}"] = float(np.mean([cell[key] for cell in found[sigma, alpha]]))
            records.append(record | true_errors(model, images, labels, copies))
    return records


def choices(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For either way of making folds: the candidate of least error, and by how much its true error is above it."""
    found = {}
    for way in WAYS:
        best = min(records, key=lambda record: record[f"{way}_percent"])
        found[way] = {**best, "optimism_percent": best["true_percent"] - best[f"{way}_percent"]}
    return found


def plus_minus(key: str, header: str) -> list[Column]:
    """`error ± standard error` as one shown column, and the standard error by itself in the CSV."""
    show = lambda record: f"{record[key]:.2f} ± {record[f'{key}_se']:.2f}"  # noqa: E731
    return [Column(key, header, show), Column(f"{key}_se", f"{header} standard error", hidden=True)]


GRID_COLUMNS = [Column("sigma", "σ", ".3g"), Column("alpha", "α", ".3g")]
CHOSEN = Column("chosen", "", lambda record: "chosen" if record["chosen"] else "", left=True)


def named(record: dict[str, Any]) -> str:
    """A candidate in words."""
    return f"σ = {record['sigma']:.3g}, α = {record['alpha']:.3g}"


def _map(mean: Array, error: Array, sigmas: Sequence[float], alphas: Sequence[float], *, paper: Paper = LIGHT) -> bytes:
    return score_map(
        mean, error, sigmas, alphas, label="accuracy", width_name="sigma", colours=(paper.ground, paper.ink)
    )


def show_grid(report: Report, search: SweepSearchCV, seconds: float) -> dict[str, Any]:
    """The search on the page: best ten, what it took, heat map; returns the record of the chosen candidate."""
    records = cells(search)
    ranked = sorted(records, key=lambda record: (record["rank"], -record["alpha"], -record["sigma"]))
    chosen = next(record for record in records if record["chosen"])
    shown = ranked[:10] + [record for record in ranked[10:] if record["chosen"]]
    table = Table([Column("rank", "rank"), *GRID_COLUMNS, *plus_minus("error_percent", "error %"), CHOSEN], shown)
    sweeps, fits = len(search.plan_.sweeps), len(records) * search.n_splits_
    report.table(
        "candidates",
        f"The best ten of {len(records)} candidates",
        table,
        caption=f"Error over {search.n_splits_} folds ± its standard error. Chosen: of those within one standard error "
        "of the best, the one of largest α, then of largest σ.",
    )
    Table(table.columns, records).write_csv(report.out / "grid.csv")
    told = (
        f"{len(records)} candidates on {search.n_splits_} folds: {sweeps} sweeps of the rows, {seconds:.0f} s. One by "
        f"one, as a grid search does it, they are {fits:,} fits, each with a sweep to fit and a part of one to test."
    )
    report.say(f"\n{told}")
    report.page.text(told)
    sigmas, alphas = (sorted({record[key] for record in records}) for key in ("sigma", "alpha"))
    if len(sigmas) > 1 and len(alphas) > 1:
        by_cell = {(record["sigma"], record["alpha"]): record for record in records}
        error, deviation = (
            np.array([[by_cell[sigma, alpha][key] / 100 for alpha in alphas] for sigma in sigmas])
            for key in ("error_percent", "error_percent_se")
        )
        caption = "Accuracy over the folds. The star is the best candidate; the line is around all within one standard "
        caption += "error of it."
        report.figure("grid", _map, 1 - error, deviation, sigmas, alphas, caption=caption)
    report.results["search"] = {
        "candidates": len(records),
        "folds": search.n_splits_,
        "sweeps": sweeps,
        "fits_one_by_one": fits,
        "seconds": seconds,
        "chosen": chosen,
        "grid": records,
    }
    return chosen


def show_final(report: Report, search: SweepSearchCV, test: Corpus, landmarks: int, held_out: str) -> None:
    """The final model on the page: how it was chosen, and then its error on the test rows."""
    records = cells(search)
    tested_rows = 0
    del tested_rows
    ranked = sorted(records, key=lambda record: (not record["chosen"], record["rank"], -record["alpha"]))
    found = test_error(search.best_estimator_, test)
    report.table(
        "final",
        f"The final model, {landmarks:,} landmarks",
        Table([Column("rank", "rank"), *GRID_COLUMNS, Column("error_percent", "error %", ".2f"), CHOSEN], ranked[:10]),
        caption=f"Error on {held_out}.",
    )
    told = (
        f"{named(ranked[0])}, fitted to all training rows: {found['error_percent']:.2f} ± "
        f"{found['error_percent_se']:.2f} % error on the {found['rows']:,} test digits, which nothing before this "
        "line has looked at."
    )
    report.say(f"\n{told}")
    report.page.text(told)
    report.results["test"] = {**found, "landmarks": landmarks, "sigma": ranked[0]["sigma"], "alpha": ranked[0]["alpha"]}
