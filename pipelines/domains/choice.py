"""Settings of ARTL chosen without labels of the target, by each score of a search, on a dozen pairs of domains.

For each pair one search tests all candidates on the labels of the target, which no choice sees; another scores them
without. The table shows the accuracy on the target of what each score chooses. `whole_sets` chooses by mutual
information on all of USPS and MNIST, by the protocol of SKADA-Bench (arXiv 2407.11676).
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedShuffleSplit
from threadpoolctl import threadpool_limits

from bigkernel import ARTLClassifier, SweepSearchCV
from bigkernel.arrays import Array
from bigkernel.errors import BestAtEdgeWarning
from pipelines.domains.data import Digits, Task, mnist_digits, usps_digits
from pipelines.domains.features import BARE, MOMENTS, task_of, tasks_of
from pipelines.domains.rotated import styled
from pipelines.shared.experiments import Report, mean_and_error, plus_minus, spread, steps
from pipelines.shared.page import Column, Table

SCORES = {  # and their headers
    "mutual-information": "MI",
    "importance-weighted": "IW",
    "accuracy": "source",
}
DEFAULT = {"mmd": 10.0, "manifold": 1.0, "alpha": 0.1}
GRID = {"mmd": (1.0, 10.0), "manifold": (0.0, 1.0, 10.0), "alpha": (0.1, 1.0)}
WIDTHS = (0.25, 1.0, 4.0)  # of γ, of that at the median distance
STYLES = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 2), (2, 0), (5, 3))  # sources and targets of the rotated digits


def pairs(sets: tuple[Digits, Digits], data: Path, rows: int, seed: int) -> Iterator[Task]:
    """Yield the pair of the papers in both directions, with two tables of features, and pairs of rotated digits."""
    for table in (BARE, MOMENTS):
        yield from (Task(**{**vars(task), "name": f"{task.name}, {table}"}) for task in tasks_of(sets, table, seed))
    domains = styled(mnist_digits(data), rows, seed)
    for source, target in STYLES:
        yield task_of(domains[source], domains[target], BARE, seed)


def scale(X: Array, seed: int) -> float:
    """Return γ at the median distance of some rows."""
    ids = np.random.default_rng(seed).permutation(len(X))[: 2 * min(250, len(X) // 2)]
    return 1 / float(np.median(((X[ids[::2]] - X[ids[1::2]]) ** 2).sum(axis=1)))


def measure(task: Task, m: int, seed: int) -> dict[str, Any]:
    """Return the accuracy in % on the target of the best candidate, of the default, and of each score's choice."""
    X, n = task.rows, len(task.source)
    gamma = scale(X, seed)
    grid = {"gamma": [width * gamma for width in WIDTHS], **GRID}
    domain = np.where(np.arange(len(X)) < n, 1, -1)
    model = ARTLClassifier(n_landmarks=m, random_state=seed)

    def searched(y: Array, **options: Any) -> dict[str, Array]:
        search = SweepSearchCV(model, grid, refit=False, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BestAtEdgeWarning)  # the table shows what lies there
            return dict(search.fit(X, y, sample_domain=domain).cv_results_)

    sides = [(np.arange(n), np.arange(n, len(X)))]
    truth = 100 * searched(np.concatenate([task.labels, task.target_labels]), cv=sides)["mean_test_score"]
    scored = searched(task.partial_labels, cv=0.2, scoring=list(SCORES))
    plain = [{**DEFAULT, "gamma": grid["gamma"][1]} == params for params in scored["params"]]
    chosen = {name: float(truth[scored[f"mean_test_{name}"].argmax()]) for name in SCORES}
    return {"pair": task.name, "best": float(truth.max()), "default": float(truth[plain.index(True)]), **chosen}


def compare(
    report: Report, sets: tuple[Digits, Digits], data: Path, rows: int, m: int, seed: int, *, quiet: bool
) -> dict[str, Any]:
    """Write the table of all pairs, and the mean distance of each choice from the best."""
    records = []
    with steps("choices without labels", 4 + len(STYLES), quiet=quiet) as after, threadpool_limits(1, user_api="blas"):
        for task in pairs(sets, data, rows, seed):
            records.append(measure(task, m, seed))
            after()
    names = ("best", "default", *SCORES)
    means = {name: statistics.fmean(record[name] for record in records) for name in names}
    columns = [Column("pair", "source → target", left=True)]
    columns += [Column(name, SCORES.get(name, name), ".1f") for name in names]
    caption = (
        f"Accuracy on the target in %, ARTL with {m} landmarks, 36 candidates. best: by labels of the target; default: "
        "without a search; source: by accuracy on held-out rows of the source. MI: mutual information, IW: "
        "importance-weighted accuracy."
    )
    table = Table(columns, [*records, {"pair": "mean", **means}])
    report.table("choice", "Settings chosen without labels of the target", table, caption=caption)
    return {"mean": means, "lost": {name: means["best"] - means[name] for name in names}}


def whole_sets(
    report: Report, data: Path, splits: Sequence[int], m: int, *, rows: int | None, quiet: bool
) -> dict[str, list[float]]:
    """Write accuracies on all of USPS and MNIST, a fifth of the target held out in each split, as in SKADA-Bench.

    Settings are chosen by the mutual information of the target's other rows, whose labels are not read.
    """
    sets = [digits.take(slice(0, rows)) for digits in (usps_digits(data), mnist_digits(data))]
    found: dict[str, list[float]] = {}
    with steps("whole sets", 2 * len(splits), quiet=quiet) as after:
        for task in tasks_of((sets[0], sets[1]), MOMENTS, 0):
            for split in splits:
                halves = StratifiedShuffleSplit(1, test_size=0.2, random_state=split)
                known, held = next(halves.split(task.target, task.target_labels))
                X = np.concatenate([task.source, task.target[known]])
                y = np.concatenate([task.labels, np.full(len(known), -1)])
                grid = {"gamma": [width * scale(X, split) for width in WIDTHS[1:]], "manifold": (0.1, 1.0, 10.0)}
                model = ARTLClassifier(n_landmarks=m, random_state=split)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", BestAtEdgeWarning)
                    search = SweepSearchCV(model, grid, scoring="mutual-information", cv=0.2).fit(X, y)
                right = search.predict(task.target[held]) == task.target_labels[held]
                found.setdefault(task.name, []).append(100 * float(right.mean()))
                after()
    records = [{"task": name, **spread("accuracy", values)} for name, values in found.items()]
    for record, values in zip(records, found.values(), strict=True):
        record["accuracy_error"] = mean_and_error(values)[1]
    columns = [
        Column("task", "source → target", left=True),
        Column("accuracy", "accuracy, %", plus_minus("accuracy", ".2f", "_error")),
    ]
    caption = (
        f"Accuracy on held-out rows of the target, mean and standard error of {len(splits)} splits; ARTL with {m} "
        "landmarks on moments and orientations, six settings. SKADA-Bench (2024), best deep method: USPS → MNIST 90.4, "
        "MNIST → USPS 98.2; nets on the source alone 73.4 and 94.2."
    )
    report.table("whole_sets", "All of USPS and MNIST", Table(columns, records), caption=caption)
    return found
