"""`python -m pipelines landmarks`: landmark choices by trace error, accuracy and seconds, against their number.

Two sets of rows: digits of two domains, and a mixture of four clusters of which the smallest has one row in a thousand,
where uniform draws miss what matters. Shapes: n rows, d features, m landmarks.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import normalize

from bigkernel import Gaussian, KernelRidgeClassifier
from bigkernel.arrays import Array
from bigkernel.engine.rows import as_rows
from bigkernel.errors import DataError
from bigkernel.kernels.algebra import Kernel
from bigkernel.monitor.terminal.bar import bar
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, digit_pair, mean_and_error, options, plus_minus, timed
from pipelines.shared.page import Column, Table

CHOICES = ("uniform", "balanced", "k-means", "balanced-k-means", "rpcholesky", "orthogonal-fourier")
COUNTS = (25, 50, 100, 200, 400), (5, 10, 20, 40, 80)  # numbers of landmarks, of digits and of the mixture
QUICK = (20, 60), (5, 20)
SHARES = (0.9, 0.09, 0.009, 0.001)  # of the clusters of the mixture
FEATURES, APART, WIDE = 5, 6.0, 0.5  # of the mixture: d, the distance of its centres and the deviation of a cluster


@dataclass(frozen=True)
class Problem:
    """Training and test rows, and the kernel and penalty of the classifier."""

    name: str  # name of files and headings
    title: str
    X: Array  # (n, d), (n,), (n,)
    y: Array
    domain: Array
    new: Array  # (t, d), (t,)
    truth: Array
    kernel: Kernel
    alpha: float
    counts: tuple[int, ...]  # numbers of landmarks, rising
    measure: str  # name of the accuracy

    def accuracy(self, guess: Array) -> float:
        """Return the accuracy in %; the mean over classes, so that a small cluster counts as much as a large one."""
        return 100 * float(balanced_accuracy_score(self.truth, guess))


def digits(data: Path, seed: int, counts: tuple[int, ...]) -> Problem:
    """Return USPS and MNIST digits of unit norm as two domains, a quarter for testing, or scikit-learn's digits."""
    try:
        usps, usps_labels, mnist, mnist_labels = digit_pair(data)
        X, y = np.concatenate([usps, mnist]), np.concatenate([usps_labels, mnist_labels])
        domain, what = np.repeat([0, 1], [len(usps), len(mnist)]), "USPS and MNIST digits, two domains"
    except DataError:
        bundled = load_digits()
        X, y = normalize(bundled.data), bundled.target
        domain, what = np.repeat([0, 1], [900, len(X) - 900]), "scikit-learn's digits (--data has no others)"
    order = np.random.RandomState(seed).permutation(len(X))
    new, fit = order[: len(X) // 4], np.sort(order[len(X) // 4 :])
    measure = "accuracy, mean over digits"
    return Problem("digits", what, X[fit], y[fit], domain[fit], X[new], y[new], Gaussian(0.5), 0.1, counts, measure)


def mixture(rows: int, seed: int, counts: tuple[int, ...]) -> Problem:
    """Return four Gaussian clusters of very different sizes, numbered as class and domain; 250 of each for testing."""
    rng = np.random.RandomState(seed)
    sizes = np.maximum(1, np.round(np.array(SHARES) * rows).astype(int))
    centres = APART / np.sqrt(2) * np.eye(len(SHARES), FEATURES)
    y, truth = np.repeat(np.arange(len(sizes)), sizes), np.repeat(np.arange(len(sizes)), 250)
    X, new = (centres[labels] + WIDE * rng.normal(size=(len(labels), FEATURES)) for labels in (y, truth))
    measure = "accuracy, mean over clusters"
    return Problem(
        "mixture",
        f"mixture of clusters of {', '.join(f'{100 * share:g}' for share in SHARES)} % of the rows",
        *(X, y, y, new, truth, Gaussian(2.0), 1e-3, counts, measure),
    )


@dataclass(frozen=True)
class Trial:
    """One fit: tr(K − K̂)/tr(K) in % (None for random features), accuracy in %, seconds of the fit and its choice."""

    trace_error: float | None
    accuracy: float
    seconds: float


def trial(problem: Problem, choice: str, count: int, draw: int) -> Trial:
    """Fit with `count` landmarks of a choice, and evaluate."""
    rows = as_rows(problem.X, problem.y, domain=problem.domain)
    model = KernelRidgeClassifier(problem.kernel, problem.alpha, n_landmarks=count, landmarks=choice, random_state=draw)
    _, seconds = timed(model.fit, rows)
    error = model.fit_report()["trace_error"]
    accuracy = problem.accuracy(model.predict(problem.new))
    return Trial(None if error is None else 100 * error, accuracy, seconds)


def record(choice: str, count: int, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return means over the draws with their standard errors, and the median of the seconds."""

    def mean(key: str, values: Sequence[float]) -> dict[str, float | None]:
        middle, error = mean_and_error(values)
        return {key: middle, f"{key}_se": error}

    errors = [one.trace_error for one in trials if one.trace_error is not None]
    return {
        "choice": choice,
        "m": count,
        **(mean("trace_error", errors) if errors else {"trace_error": None, "trace_error_se": None}),
        **mean("accuracy", [one.accuracy for one in trials]),
        "seconds": statistics.median(one.seconds for one in trials),
    }


def compared(problem: Problem, draws: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Return a record for every choice and number of landmarks; choices take turns so that their times compare."""
    for count in problem.counts:
        trials: dict[str, list[Trial]] = {choice: [] for choice in CHOICES}
        for draw in draws:
            for choice in CHOICES:
                trials[choice].append(trial(problem, choice, count, draw))
        yield from (record(choice, count, results) for choice, results in trials.items())


def summary(records: Sequence[dict[str, Any]], few: int, many: int) -> Table:
    """Return a line for each choice: few landmarks, and many."""
    columns = [Column("choice", "choice", left=True)]
    for count, key in ((few, "few"), (many, "many")):
        columns += [
            Column(f"{key}_trace_error", f"error % m={count}", plus_minus(f"{key}_trace_error", ".2f", "_se")),
            Column(f"{key}_accuracy", "accuracy %", plus_minus(f"{key}_accuracy", ".1f", "_se")),
        ]
    lines = []
    for choice in CHOICES:
        line: dict[str, Any] = {"choice": choice}
        for count, key in ((few, "few"), (many, "many")):
            entry = next(one for one in records if one["choice"] == choice and one["m"] == count)
            line |= {f"{key}_{name}": value for name, value in entry.items() if name not in ("choice", "m")}
        lines.append(line)
    return Table([*columns, Column("many_seconds", "s", ".2f")], lines)


@click.command()
@click.option(
    "--rows", type=click.IntRange(1000, 1_000_000), default=10_000, show_default=True, help="Rows of the mixture."
)
@click.option("--quick", is_flag=True, help="Use fewer rows and landmarks: some seconds a draw.")
@options("landmarks", repeats=10, repeats_help="Draws of the landmarks.")
def landmarks(rows: int, quick: bool, data: Path, repeats: int, seed: int, out: Path, as_json: bool) -> None:
    """Compare choices of landmarks by trace error, accuracy and seconds.

    \b
    1. Takes the USPS-MNIST digits, and a mixture of clusters with 90, 9, 0.9
       and 0.1 % of the rows.
    2. Fits KernelRidgeClassifier with every choice and growing numbers of
       landmarks, --repeats times each: uniform, balanced over domains, centres
       of k-means (of all rows, and of every domain), randomly pivoted Cholesky;
       and with as many orthogonal random features.
    3. Shows tr(K − K̂)/tr(K), the accuracy on test rows, and the seconds of a
       fit including the choice.

    \b
    python -m pipelines landmarks
    python -m pipelines landmarks --quick --repeats 2

    In --out: report.html; digits.csv and mixture.csv with every number of landmarks; a PNG of each figure.
    """
    of_digits, of_mixture = QUICK if quick else COUNTS
    problems = [digits(data, seed, of_digits), mixture(min(rows, 2000) if quick else rows, seed, of_mixture)]
    draws = range(seed, seed + repeats)
    report = Report(out, "Choices of landmarks", f"{repeats} draws of each", quiet=as_json)
    records: dict[str, list[dict[str, Any]]] = {problem.name: [] for problem in problems}
    steps = sum(len(problem.counts) for problem in problems) * len(CHOICES)
    with bar("fits", enabled=not as_json) as update:
        for problem in problems:
            for one in compared(problem, draws):
                records[problem.name].append(one)
                update(sum(map(len, records.values())), steps)
    report.page.text(
        "K̂ is the kernel that m landmarks make of K (Nyström). A choice is good where tr(K − K̂)/tr(K) is small; a "
        "classifier needs less. Seconds are of the fit with its choice, the median of the draws.",
        "“Balanced” choices are told the domain of every row: of the mixture its cluster, which no other choice knows.",
    )
    for problem in problems:
        _show(report, problem, records[problem.name], repeats)
    facts: dict[str, Any] = {}
    for problem in problems:
        n, d = problem.X.shape
        facts |= {
            f"{problem.name}, data": f"{problem.title}: {n:,} rows of {d} features; judged on {len(problem.new):,}",
            f"{problem.name}, model": f"KernelRidgeClassifier, {problem.kernel}, α {problem.alpha:g}",
        }
    everything = {f"{name}_all": lines for name, lines in records.items()}
    report.finish({**facts, "draws": repeats, "seed": seed}, **everything)


def _show(report: Report, problem: Problem, records: list[dict[str, Any]], repeats: int) -> None:
    few, many = problem.counts[max(0, len(problem.counts) - 4)], problem.counts[-1]
    report.table(
        f"{problem.name}_summary",
        problem.title[0].upper() + problem.title[1:],
        summary(records, few, many),
        caption=f"m landmarks, mean ± standard error of {repeats} draws; error: tr(K − K̂)/tr(K); accuracy on other "
        f"rows, {problem.measure.split(', ')[1]}; s: seconds of a fit with {many:,} landmarks.",
    )
    Table([Column(key, key) for key in records[0]], records).write_csv(report.out / f"{problem.name}.csv")
    for key, label in (
        ("trace_error", "trace error tr(K − K̂)/tr(K), %"),
        ("accuracy", f"{problem.measure}, %"),
        ("seconds", "seconds of a fit"),
    ):
        known = [one[key] for one in records if one[key] is not None]
        report.figure(
            f"{problem.name}_{key}",
            curves,
            [_curve(records, choice, key) for choice in CHOICES if _known(records, choice, key)],
            x_label="m, number of landmarks or random features",
            y_label=label,
            x_log=True,
            y_log=max(known) > 20 * min(known) > 0,  # an axis spanning fewer decades would have no tick labels
            x_ticks=problem.counts,
            height=4.2,
            caption=f"{problem.title[0].upper() + problem.title[1:]}: {label}, against the number of landmarks"
            + ("; bars are standard errors." if key != "seconds" else "."),
        )


def _known(records: Sequence[dict[str, Any]], choice: str, key: str) -> bool:
    return all(one[key] is not None for one in records if one["choice"] == choice)


def _curve(records: Sequence[dict[str, Any]], choice: str, key: str) -> Curve:
    mine = [one for one in records if one["choice"] == choice]
    errors = [one.get(f"{key}_se") for one in mine]
    shown = None if any(error is None for error in errors) else np.array(errors)
    values = np.array([one[key] for one in mine])
    if key == "trace_error":
        values = np.maximum(values, 1e-6)  # explained up to rounding
    return Curve(choice, np.array([one["m"] for one in mine]), values, error=shown, colour=CHOICES.index(choice))
