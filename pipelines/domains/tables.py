"""Settings of ARTL chosen without labels of the target, on tables of scikit-learn that are made two domains.

Source and target differ in their rows, in shift and scale of columns, in the shares of classes, or in noise and columns
that fail. The grid holds the defaults, and the source alone.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator

import numpy as np
from sklearn import datasets
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from bigkernel import ARTLClassifier, SweepSearchCV
from bigkernel.arrays import Array
from pipelines.shared.experiments import Report, steps
from pipelines.shared.page import Column, Table

TABLES = ("breast_cancer", "wine", "iris", "digits", "diabetes")
GRID = {"mmd": (10.0, 1.0, 0.0), "manifold": (1.0, 0.0), "alpha": (0.1, 1.0)}  # the defaults first
SCORES = {"mutual-information": "MI", "importance-weighted": "IW"}
Pair = tuple[str, Array, Array, Array]  # name, rows of source and target, their labels, which of them are the target


def pairs(seed: int, rows: int) -> Iterator[Pair]:
    """Yield four pairs of domains of each table, of columns of variance 1."""
    for name in TABLES:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        y = (y > np.median(y)).astype(int) if name == "diabetes" else y
        rng = np.random.default_rng(seed)
        some = rng.permutation(len(X))[:rows]
        X, y = StandardScaler().fit_transform(X[some]), y[some]
        (n, d), half = X.shape, np.arange(len(X)) % 2 == 1
        # rows far along the component of largest variance are more often in the target
        along = X @ np.linalg.svd(X, full_matrices=False)[2][0]
        far = rng.random(n) < 1 / (1 + np.exp(-2 * (along - np.median(along)) / along.std()))
        moved = X * rng.uniform(0.6, 1.6, d) + 0.5 * rng.normal(size=d)
        rare = half & (y < np.median(np.unique(y))) & (rng.random(n) < 0.75)
        noisy = np.where(rng.random(d) < 0.25, 0, X) + 0.5 * rng.normal(size=(n, d))
        yield f"{name}, rows", X, y, far
        yield f"{name}, columns", np.where(half[:, None], moved, X), y, half
        yield f"{name}, classes", X[~rare], y[~rare], half[~rare]
        yield f"{name}, sensors", np.where(half[:, None], noisy, X), y, half


def measure(pair: Pair, m: int, seed: int) -> dict[str, str | float]:
    """Return the accuracy in % on the target of the best candidate, of the defaults, and of each score's choice."""
    name, X, y, target = pair
    model = ARTLClassifier(n_landmarks=min(m, len(X) // 2), random_state=seed)

    def searched(labels: Array, **options: object) -> SweepSearchCV:
        search = SweepSearchCV(model, GRID, refit=False, **options)
        return search.fit(X, labels, sample_domain=np.where(target, -1, 1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table shows what lies at the ends of the grid
        sides = [(np.flatnonzero(~target), np.flatnonzero(target))]
        truth = 100 * searched(y, cv=sides).cv_results_["mean_test_score"]
        chosen = {one: searched(np.where(target, -1, y), cv=5, scoring=one).best_index_ for one in SCORES}
    places = {"best": int(truth.argmax()), "default": 0, **chosen}
    return {"pair": name, **{key: float(truth[place]) for key, place in places.items()}}


def compare(report: Report, rows: int, m: int, seed: int, *, quiet: bool) -> dict[str, float]:
    """Write the table of all pairs; return the means."""
    every, records = list(pairs(seed, rows)), []
    with steps("tables", len(every), quiet=quiet) as after, threadpool_limits(1, user_api="blas"):
        for pair in every:
            records.append(measure(pair, m, seed))
            after()
    names = ("best", "default", *SCORES)
    means = {name: statistics.fmean(float(record[name]) for record in records) for name in names}
    columns = [Column("pair", "table, difference", left=True)]
    columns += [Column(name, SCORES.get(name, name), ".1f") for name in names]
    caption = (
        "Accuracy on the target in %, ARTL, 12 candidates, five folds. best: by labels of the target; default: without "
        "a search; MI: mutual information, IW: importance-weighted accuracy."
    )
    table = Table(columns, [*records, {"pair": "mean", **means}])
    report.table("tables", "Tables: settings chosen without labels of the target", table, caption=caption)
    return means
