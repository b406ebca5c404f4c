"""`python -m pipelines tune`: width and penalty by cross-validation, and a final model.

The whole grid (width σ × penalty α × folds) comes from a few sweeps of the training rows (`SweepSearchCV`). The test
digits are looked at once, when everything is chosen. All copies of a digit are in one fold: else folds would test on
copies of what they trained on, and promise too small an error.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.model_selection import GroupShuffleSplit, StratifiedShuffleSplit
from sklearn.pipeline import Pipeline

from bigkernel import Corpus, Gaussian, KernelRidgeClassifier, SweepSearchCV, UnitNormalizer
from bigkernel.cli.options import Numbers
from bigkernel.kernels.landmarks import require_count
from bigkernel.monitor.terminal.bar import bar, progress
from pipelines.shared import digit_corpora
from pipelines.shared.digit_corpora import MNIST_FILES, Digits
from pipelines.shared.experiments import Report, data_option, json_option, out_option, seed_option
from pipelines.tune import page
from pipelines.tune.page import Record

FOLDS = 5
HELD_OUT = 1 / 6  # of the training digits, to choose the final model by
# of the final model, times what fewer landmarks chose: widths around it, and penalties between, for more landmarks
# can do with less
FINAL_SIGMAS, FINAL_ALPHAS = (1 / 1.2, 1.0, 1.2), (0.0099, 1.0)


def pipeline(landmarks: int, seed: int, *, sigma: float = 1.0) -> Pipeline:
    """Rows of unit norm, then kernel ridge regression on landmarks."""
    model = KernelRidgeClassifier(Gaussian(sigma), n_landmarks=landmarks, random_state=seed)
    return Pipeline([("unit", UnitNormalizer()), ("krr", model)])


def search(
    train: Corpus, sigmas: Sequence[float], alphas: Sequence[float], *, landmarks: int, seed: int, cv: Any, refit: bool
) -> SweepSearchCV:
    """Accuracy of every (σ, α) on every fold; chosen is the simplest within one standard error of the best."""
    grid = {"krr__kernel": [Gaussian(sigma) for sigma in sigmas], "krr__alpha": list(alphas)}
    model = pipeline(landmarks, seed)
    return SweepSearchCV(model, grid, cv=cv, refit=refit, one_standard_error=True, random_state=seed).fit(train)


def cells(found: SweepSearchCV) -> list[Record]:
    """A record a candidate: σ, α, error and its standard error in %, rank, error of rounding, whether it is chosen."""
    results = found.cv_results_
    return [
        {
            "sigma": params["krr__kernel"].sigma,
            "alpha": params["krr__alpha"],
            "error": 100 * (1 - float(results["mean_test_score"][i])),
            "error_se": 100 * float(results["sem_test_score"][i]),
            "rank": int(results["rank_test_score"][i]),
            "prediction_error": float(results["prediction_error"][i]),
            "chosen": i == found.best_index_,
        }
        for i, params in enumerate(results["params"])
    ]


def finalists(train: Corpus, chosen: Record, alphas: Sequence[float], *, landmarks: int, seed: int) -> SweepSearchCV:
    """Candidates around the chosen one with more landmarks, on digits held out once; the best is fitted to all."""
    low, high = (factor * chosen["alpha"] for factor in FINAL_ALPHAS)
    near = [alpha for alpha in alphas if low <= alpha <= high]
    kind = GroupShuffleSplit if "group" in train.columns else StratifiedShuffleSplit
    cv = kind(n_splits=1, test_size=HELD_OUT, random_state=seed)
    sigmas = [factor * chosen["sigma"] for factor in FINAL_SIGMAS]
    return search(train, sigmas, near, landmarks=landmarks, seed=seed, cv=cv, refit=True)


def binomial(wrong: float, n: float) -> Record:
    """A share of n digits that is wrong, as error and standard error in %."""
    return {"error": 100 * wrong, "error_se": 100 * float(np.sqrt(wrong * (1 - wrong) / n))}


def error_on(test: Corpus, model: Pipeline) -> Record:
    """Error of the model on the test digits, in %."""
    wrong = float(np.mean(np.asarray(model.predict(test)) != test.column("y")))
    return {**binomial(wrong, len(test)), "digits": len(test)}


def originals(corpus: Corpus) -> int:
    """Return the number of digits that its rows are copies of."""
    return len(np.unique(corpus.column("group")))


def corpora(out: Path, data: Path, rows: int, seed: int, *, quiet: bool) -> tuple[Digits, bool]:
    """The digits to tune on, and whether they are MNIST's, or else deformed ones; made, or found, below `out`."""
    if not any((data / name).exists() for name in MNIST_FILES):
        return digit_corpora.bundled(out / "copies", rows, seed, keep=True, quiet=quiet), False
    with bar("ingest", enabled=not quiet) as shown:
        return digit_corpora.mnist(out / "mnist", data, keep=True, progress=shown), True


@click.command()
@click.option("--sigma", type=Numbers(), default="0.3:1.2:10", show_default=True, help="Widths of the Gaussian kernel.")
@click.option("--alpha", type=Numbers(), default="1e-4:1e1:16", show_default=True, help="Ridge penalties.")
@click.option("--landmarks", type=click.IntRange(10), default=1000, show_default=True, help="m, of the searches.")
@click.option("--final-landmarks", type=click.IntRange(10), default=4000, show_default=True, help="Of the final model.")
@click.option("--rows", type=click.IntRange(2400), default=20_000, show_default=True, help="Deformed digits to make.")
@data_option("Directory with MNIST's idx files; deformed digits without them.")
@seed_option
@out_option("tune", "Directory for report.html, CSV, PNG and the corpora.")
@json_option
def tune(
    data: Path,
    seed: int,
    out: Path,
    as_json: bool,
    rows: int,
    final_landmarks: int,
    landmarks: int,
    alpha: tuple[float, ...],
    sigma: tuple[float, ...],
) -> None:
    """Tune a classifier of digits by cross-validation.

    \b
    1. MNIST's 60,000 training digits: every width --sigma, penalty --alpha and
       fold of five from a few sweeps (SweepSearchCV); the best ten, a heat map,
       and how many fits one by one would be.
    2. The final model, --final-landmarks: a few widths and penalties around that
       choice, judged on a sixth of the training digits. Then, and only then, the
       error on the 10,000 test digits.

    --sigma and --alpha take a number, numbers with commas between, or FIRST:LAST:COUNT in equal ratios. --data is the
    directory of MNIST's idx files (train-images-idx3-ubyte.gz …); without them it takes --rows deformed copies of
    scikit-learn's digits, a digit and its copies in one fold, and says so. Some minutes on two processors, most of them
    for the final model.

    \b
    python -m pipelines tune
    python -m pipelines tune --sigma 0.4:0.8:5 --alpha 0.01,0.1,1
    python -m pipelines tune --final-landmarks 2000 --out /scratch/tune
    python -m pipelines tune --json | jq '.test'
    """
    sigmas, alphas = sorted(set(sigma)), sorted(set(alpha))
    size = f"{len(sigmas)} widths × {len(alphas)} penalties × {FOLDS} folds of digits"
    report = Report(out, "Tuning by cross-validation", size, quiet=as_json)
    with progress(enabled=not as_json):
        found, mnist = corpora(out, data, rows, seed, quiet=as_json)
        require_count(len(found.train), max(landmarks, final_landmarks))
        _introduction(report, found.train, landmarks, mnist=mnist)
        first = search(found.train, sigmas, alphas, landmarks=landmarks, seed=seed, cv=FOLDS, refit=False)
        page.grid(report, cells(first), folds=FOLDS, sweeps=len(first.plan_.sweeps), seconds=first.seconds_)
        chosen = cells(first)[first.best_index_]
        final = finalists(found.train, chosen, alphas, landmarks=final_landmarks, seed=seed)
        _final(report, found, final, final_landmarks, mnist=mnist)
    count = f"{landmarks:,} in the searches, {final_landmarks:,} in the final model"
    report.finish(_facts(found, final) | {"landmarks": count, "seed": seed})


def _facts(found: Digits, final: SweepSearchCV) -> dict[str, Any]:
    """Corpora and searches, for the foot of the page."""
    rows = f"{len(found.train):,} training, {len(found.test):,} test"
    sweeps = f"{len(final.plan_.sweeps)} sweeps, {final.seconds_:.0f} s"
    return {"data": found.train.info.source, "rows": rows, "final model": sweeps}


def _introduction(report: Report, train: Corpus, landmarks: int, *, mnist: bool) -> None:
    """Say what is tuned, and on what."""
    name = train.info.name if mnist else f"{train.info.name}, as --data has no MNIST"
    folded = "the row's number" if mnist else "the original's number, so that copies of a digit share a fold"
    report.tell(
        f"{len(train):,} training digits ({name}). Kernel ridge regression with a Gaussian kernel of width σ on "
        f"{landmarks:,} landmarks, penalty α, rows of unit norm; {FOLDS} folds by a hash of {folded}."
    )


def _final(report: Report, found: Digits, final: SweepSearchCV, landmarks: int, *, mnist: bool) -> None:
    """Look at the test digits, here and nowhere before, and show the final model."""
    held_out = HELD_OUT * (len(found.train) if mnist else originals(found.train))
    tuned = [cell | binomial(cell["error"] / 100, held_out) for cell in cells(final)]
    error = error_on(found.test, final.best_estimator_)
    what = f"{held_out:,.0f} training digits{'' if mnist else ' with their copies'}"
    tested = "test digits" if mnist else "test digits, not deformed"
    page.final(report, tuned, error, held_out=what, tested=tested, landmarks=landmarks)
