"""`python -m pipelines wine`: regression on white wine, reproduced, accelerated and corrected.

The experiment of “Fast Domain Generalization with Kernel Methods”, part 1, the printed reference.

Linear regression (LR), ridge regression (RR) and kernel ridge regression (KRR) predict the quality of a wine, 0 to 10,
from d = 11 attributes. Kernel Gaussian with σ = 1.4, λ = 10 for RR and KRR, as the reference found them by grid search.

The reference prepends a column of ones to X and penalises its weight in RR, standardises the test rows by their own
statistics, and its random splits put copies of one wine on both sides. We repeat that, and a second time without it.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.model_selection import GroupShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from bigkernel import Gaussian, KernelRidge, LinearRegression, Ridge
from bigkernel.arrays import Array
from bigkernel.errors import RankDeficiencyWarning
from bigkernel.kernels.landmarks import require_count
from bigkernel.monitor.terminal.bar import bar
from pipelines.shared.experiments import Report, data_file, options, read_all, timed, with_ones
from pipelines.wine import page
from pipelines.wine.formula import compare, race
from pipelines.wine.page import Run

REFERENCE = "“Fast Domain Generalization with Kernel Methods”, part 1"
PENALTY = 10.0  # λ of RR and KRR
SIGMA = 1.4
HONEST_LANDMARKS = 400


@dataclass(frozen=True)
class Split:
    """Training and test rows, standardised."""

    X: Array  # (n, d) and (n,), training rows, by their own statistics
    y: Array
    X_test: Array  # (q, d) and (q,), test rows by the statistics of the training rows
    y_test: Array
    X_apart: Array  # the same test rows by their own statistics, as the reference has them
    y_apart: Array
    points: float  # quality points in one unit of y


def read(data: Path) -> tuple[Array, Array]:
    """Read attributes (n, d) and quality (n,) of the wines, float64."""
    X, y = read_all(data_file(data, "winequality-white.csv"), target=-1)  # quality comes last
    return X.astype(np.float64), y.astype(np.float64)


def zscore(values: Array, like: Array | None = None) -> Array:
    """Standardise columns as MATLAB's zscore does (divisor n − 1; a deviation of 0 counts as 1).

    Mean and deviation are those of `like` if it is given.
    """
    reference = values if like is None else like
    deviation = reference.std(axis=0, ddof=1)
    scaled: Array = (values - reference.mean(axis=0)) / np.where(deviation == 0, 1, deviation)
    return scaled


def groups(X: Array) -> Array:
    """Return a number for each distinct row of X, (n,)."""
    return np.unique(X, axis=0, return_inverse=True)[1].reshape(-1)


def standardised(X: Array, y: Array, train: Array, test: Array) -> Split:
    """Standardise the rows `train` and `test` (ids)."""
    by_train = zscore(X[test], X[train]), zscore(y[test], y[train])
    points = float(y[train].std(ddof=1))
    return Split(zscore(X[train]), zscore(y[train]), *by_train, zscore(X[test]), zscore(y[test]), points)


def random_splits(n: int, repeats: int, seed: int) -> list[tuple[Array, Array]]:
    """Yield training and test ids as the reference draws them: int32(0.9 n) training rows, which MATLAB rounds."""
    rng, n_train = np.random.RandomState(seed), int(np.floor(0.9 * n + 0.5))
    orders = [rng.permutation(n) for _ in range(repeats)]
    return [(order[:n_train], order[n_train:]) for order in orders]


def grouped_splits(group: Array, repeats: int, seed: int) -> list[tuple[Array, Array]]:
    """Yield training and test ids with every group on one side; a tenth of the groups is for testing."""
    splitter = GroupShuffleSplit(n_splits=repeats, test_size=0.1, random_state=seed)
    return list(splitter.split(group, groups=group))


def dense() -> dict[str, Any]:
    """Return the reference's three methods."""
    ones = partial(make_pipeline, FunctionTransformer(with_ones))
    return {
        "LR": ones(LinearRegression(fit_intercept=False)),
        "RR": ones(Ridge(PENALTY, fit_intercept=False)),
        "KRR": KernelRidge(Gaussian(SIGMA), alpha=PENALTY, fit_intercept=False),
    }


def nystrom(landmarks: Sequence[int], seed: int) -> dict[str, Any]:
    """Return KRR on uniform landmarks, one model for each number of them, by name."""
    same: dict[str, Any] = {"alpha": PENALTY, "fit_intercept": False, "random_state": seed}
    return {page.nystrom_name(m): KernelRidge(Gaussian(SIGMA), n_landmarks=m, **same) for m in landmarks}


def judge(method: str, number: int, model: Any, split: Split) -> Run:
    """Fit a model to a split and measure its errors."""

    def fit_predict() -> tuple[Array, Array]:
        model.fit(split.X, split.y)
        return model.predict(split.X), model.predict(split.X_apart)

    with warnings.catch_warnings():
        # landmarks repeat one another as rows do; the rank is in the table
        warnings.simplefilter("ignore", RankDeficiencyWarning)
        (train, apart), seconds = timed(fit_predict)
    mse = {
        "train": (train - split.y) ** 2,
        "apart": (apart - split.y_apart) ** 2,
        "test": (model.predict(split.X_test) - split.y_test) ** 2,
        "constant": split.y_test**2,
    }
    return Run(
        method,
        number,
        {rows: float(squares.mean()) for rows, squares in mse.items()},
        points=split.points,
        n_train=len(split.y),
        n_test=len(split.y_test),
        seconds=seconds,
        rank=getattr(model, "rank_", None),
    )


def judge_all(what: str, splits: Sequence[Split], models: Callable[[int], dict[str, Any]], *, quiet: bool) -> list[Run]:
    """Fit every model of `models(number of the split)` on every split; the bar counts training rows."""
    runs: list[Run] = []
    with bar(what, enabled=not quiet) as update:
        for number, one in enumerate(splits):
            for method, model in (made := models(number)).items():
                runs.append(judge(method, number, model, one))
                update(len(runs) * len(one.y), len(splits) * len(made) * len(one.y))
    return runs


@click.command()
@options("wine", repeats=10, repeats_help="Random splits of either kind.")
@click.option(
    "--landmarks",
    type=click.IntRange(1),
    multiple=True,
    default=(100, 200, 400, 800, 1600),
    show_default=True,
    help="A number of Nyström landmarks; may be given several times.",
)
@click.option(
    "--pairs",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Times that exact KRR and the printed formula run in turn, about 10 s each; 0 skips this.",
)
def wine(data: Path, repeats: int, seed: int, out: Path, as_json: bool, landmarks: tuple[int, ...], pairs: int) -> None:
    """Fit linear, ridge and kernel ridge regression to white wine.

    The printed reference is “Fast Domain Generalization with Kernel Methods”, part 1.

    \b
    1. As in the reference: LR, RR (λ = 10) and exact KRR (λ = 10, σ = 1.4) on
       ten random 90/10 splits, training and test rows standardised separately;
       errors and seconds beside the printed numbers.
    2. Nyström KRR on the same splits with 100 to 1,600 uniform landmarks: error
       and time relative to exact KRR.
    3. Without leakage: statistics of the training rows alone, and duplicate
       rows on one side of the split.
    4. Exact KRR against the printed formula, which inverts an n×n matrix twice:
       seconds in the same run, and the largest difference.

    Needs winequality-white.csv (UCI Wine Quality) in --data. A minute or two on two processors.

    \b
    python -m pipelines wine
    python -m pipelines wine --repeats 3 --landmarks 400 --landmarks 1600 --pairs 0
    python -m pipelines wine --json | jq '.as_printed[] | {method, mse, within}'
    """
    X, y = read(data)
    group = groups(X)
    counts = sorted(set(landmarks))
    ids_of_splits = random_splits(len(X), repeats, seed)
    cut = partial(standardised, X, y)
    splits = [cut(*ids) for ids in ids_of_splits]
    together = [cut(*ids) for ids in grouped_splits(group, repeats, seed)]
    require_count(min(len(one.y) for one in (*splits, *together)), max(*counts, HONEST_LANDMARKS))
    subtitle = f"{len(X):,} wines, {X.shape[1]} attributes, quality from 0 to 10; {REFERENCE}, redone"
    report = Report(out, "Kernel ridge regression on white wine", subtitle, quiet=as_json)
    page.introduction(report, repeats, PENALTY, SIGMA)
    fit = partial(judge_all, quiet=as_json)
    exact = fit("LR, RR and exact KRR", splits, lambda _: dense())
    page.as_printed(report, exact)
    few = fit("Nyström KRR", splits, lambda number: nystrom(counts, seed + number))
    page.landmarks(report, exact, few, counts)
    honest = fit("honest splits", together, lambda number: dense() | nystrom([HONEST_LANDMARKS], seed + number))
    page.honest(report, honest, *(len(rows) - groups(rows).max() - 1 for rows in (X, np.column_stack([X, y]))))
    if pairs:
        one = splits[0]
        compare(report, race(dense()["KRR"], one.X, one.y, one.X_apart, PENALTY, SIGMA, pairs=pairs, quiet=as_json))
    facts = {
        "data": f"winequality-white.csv, {len(X):,} rows, {X.shape[1]} attributes and the quality",
        "splits": f"{repeats} of either kind, seed {seed}; {len(splits[0].y):,} training rows of {len(X):,} at random",
        "models": f"λ = {PENALTY:g} (RR, KRR), Gaussian kernel of σ = {SIGMA:g}, uniform landmarks; float64",
    }
    runs = {"random": exact + few, "grouped": honest}
    report.finish(facts, runs={name: [asdict(run) for run in several] for name, several in runs.items()})
