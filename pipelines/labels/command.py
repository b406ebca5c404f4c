"""`python -m pipelines labels`: few labels among many rows, used by five methods.

Everything that a method needs to choose is chosen by cross-validation on the few labels of a draw; test digits are read
at the end. One sweep of all rows gives the eigenfunctions that every draw, fold and setting of SSSL shares.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

from bigkernel.arrays import Array
from bigkernel.cli.options import Numbers
from pipelines.labels.data import SETS, SHARE, Digits, read
from pipelines.labels.methods import (
    FOLDS,
    Eigenfunctions,
    LabelsAlone,
    Method,
    SelfTraining,
    Setting,
    Spreading,
    choose,
    eigenfunctions,
    neighbours,
)
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, options, plus_minus, spread, steps
from pipelines.shared.page import Column, Table

Record = dict[str, Any]
PLAIN, GRAPH, METHODS = "SSSL", "SSSL with a graph", 5
MANIFOLD = 10.0  # this and the candidates were chosen among some thirty on training labels of the three sets
COUNTS, ALPHAS = (20, 50, 200), (0.4, 0.04, 0.004, 0.0004)  # with the graph
PLAIN_COUNTS, PLAIN_ALPHAS = (50, 100, 200), (4.0, 0.4, 0.04)  # without


def settings(manifold: float, counts: Sequence[int], alphas: Sequence[float]) -> tuple[Setting, ...]:
    """Return the candidates of SSSL: larger penalties first, then fewer eigenfunctions."""
    return tuple({"manifold": manifold, "n_components": s, "alpha": alpha} for alpha, s in product(alphas, counts))


def methods(
    digits: Digits, ids: Array, *, landmarks: int, pool: int, seed: int, after: Callable[[], None]
) -> list[Method]:
    """Return the five methods with what draws share: eigenfunctions, and the graph of neighbours."""
    counts = {MANIFOLD: max(COUNTS), 0.0: max(PLAIN_COUNTS)}
    values = eigenfunctions(digits, ids, counts, landmarks=landmarks, seed=seed, after=after)
    graph = neighbours(np.concatenate([digits.X[:pool], digits.X[digits.rows :]]), pool)
    after()
    plain, manifold = settings(0.0, PLAIN_COUNTS, PLAIN_ALPHAS), settings(MANIFOLD, COUNTS, ALPHAS)
    return [
        LabelsAlone(digits.X, digits.sigma),
        SelfTraining(digits.X, digits.sigma, pool=np.arange(pool)),
        Spreading(graph, digits.rows),
        Eigenfunctions(PLAIN, values, plain, {"manifold": 0.0, "n_components": 50, "alpha": 0.4}),
        Eigenfunctions(GRAPH, values, manifold, {"manifold": MANIFOLD, "n_components": 20, "alpha": 0.004}),
    ]


def trials(
    digits: Digits,
    several: Sequence[Method],
    counts: Sequence[int],
    *,
    pool: int,
    draws: int,
    seed: int,
    after: Callable[[], None],
) -> list[Record]:
    """Return a record for every number of labels, draw and method: error on the test digits in %, and the choice."""
    test, records = np.arange(digits.rows, len(digits.X)), list[Record]()
    for per_class, draw in product(counts, range(draws)):
        ids = digits.sample(per_class, pool, np.random.RandomState([seed, per_class, draw]))
        labels = digits.y[ids]
        for method in several:
            setting = choose(method, ids, labels, seed + draw)
            wrong = method.predict(ids, labels, test, setting) != digits.y[test]
            error = 100 * float(wrong.mean())
            records.append({"labels": per_class, "draw": draw, "method": method.name, "error": error, **setting})
            after()
    return records


def summary(records: Sequence[Record]) -> list[Record]:
    """Return a line for each method: mean and standard deviation over draws, by number of labels per class."""
    lines = []
    for name in dict.fromkeys(one["method"] for one in records):
        line: Record = {"method": name}
        for count in dict.fromkeys(one["labels"] for one in records):
            line |= spread(str(count), [r["error"] for r in records if (r["method"], r["labels"]) == (name, count)])
        lines.append(line)
    return lines


def chosen(records: Sequence[Record]) -> list[Record]:
    """Return the setting chosen most often for each number of labels and method, and in how many draws."""
    lines = []
    for count, name in dict.fromkeys((one["labels"], one["method"]) for one in records):
        mine = [one for one in records if (one["labels"], one["method"]) == (count, name)]
        texts = Counter(_text({k: v for k, v in one.items() if k in NAMES}) for one in mine)
        text, times = texts.most_common(1)[0]
        lines.append({"labels": count, "method": name, "setting": text, "draws": f"{times} of {len(mine)}"})
    return lines


NAMES = {"alpha": "α", "manifold": "μ", "n_components": "s"}


def _text(setting: Setting) -> str:
    return ", ".join(f"{NAMES[name]} {value:g}" for name, value in setting.items())


@click.command()
@click.option("--set", "which", type=click.Choice(SETS), default="bundled", show_default=True, help="The digits.")
@click.option(
    "--labels", "counts", type=Numbers(whole=True), default="1,5,10,100", show_default=True, help="Labels per class."
)
@click.option(
    "--landmarks",
    "-m",
    type=click.IntRange(20),
    default=None,
    help="Landmarks of SSSL. [default: a quarter of the rows, at most 2,000]",
)
@click.option(
    "--pool", type=click.IntRange(100), default=10_000, show_default=True, help="Most rows from which labels are drawn."
)
@options("labels", repeats=5, repeats_help="Draws of the labels.")
def labels(
    which: str,
    counts: Sequence[int],
    landmarks: int | None,
    pool: int,
    data: Path,
    repeats: int,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Learn from few labels, with and without unlabelled rows.

    \b
    1. Takes digits, as oriented strokes in a common pose, and keeps the labels of
       --labels rows of each class, drawn --repeats times.
    2. Learns by kernel ridge on the labels alone, by self-training, by
       scikit-learn's LabelSpreading, by SSSL, and by SSSL with a graph of all
       rows (manifold=). Settings are chosen by cross-validation on these labels.
    3. Reads the test digits, once.

    \b
    python -m pipelines labels
    python -m pipelines labels --set mnist --repeats 10

    LabelSpreading and self-training use --pool rows, SSSL all. In --out: report.html, results.csv, draws.csv,
    chosen.csv, labels.png, results.json. A quarter of a minute with scikit-learn's digits, seven minutes with
    MNIST's and ten draws.
    """
    digits = read(which, data, seed)
    pool = min(pool, digits.rows)
    landmarks = landmarks or min(2000, digits.rows // 4)
    report = Report(out, "A few labels", f"{digits.title}: {digits.rows:,} rows, {repeats} draws", quiet=as_json)
    first = digits.sample(max(counts), pool, np.random.RandomState(seed))
    with steps("fits", 4 + METHODS * len(counts) * repeats, quiet=as_json) as after:
        several = methods(digits, first, landmarks=landmarks, pool=pool, seed=seed, after=after)
        records = trials(digits, several, counts, pool=pool, draws=repeats, seed=seed, after=after)
    _show(report, records, counts)
    _, d = digits.X.shape
    facts = {
        "data": f"{digits.title}: {digits.rows:,} rows of {d} features, {len(digits.X) - digits.rows:,} test digits",
        "kernel": f"Gaussian, σ {digits.sigma:.3g}: {SHARE:g} median distances between rows",
        "landmarks": f"{landmarks:,}, drawn once",
        "labels": f"drawn among {pool:,} rows, {repeats} times; LabelSpreading and self-training see no others",
        "seed": seed,
    }
    report.finish(facts, all=records)


def _show(report: Report, records: list[Record], counts: Sequence[int]) -> None:
    """Show tables of errors and choices, and the picture."""
    lines = summary(records)
    columns = [Column("method", "labels a class", left=True)]
    for count in map(str, counts):
        columns += [Column(count, count, plus_minus(count, ".1f", "_std")), Column(f"{count}_std", "±", hidden=True)]
    report.page.text(
        "All rows are seen, few labels: what do the others add? SSSL learns on eigenfunctions of the kernel over all "
        "rows; with a graph, on such as change where few rows lie.",
        "Within a draw, settings are chosen by its labels alone; which candidates there are, on training labels.",
    )
    report.table(
        "results",
        "Error on the test digits, %",
        Table(columns, lines),
        caption="Mean ± standard deviation over draws of the labels.",
    )
    report.table(
        "chosen",
        "What was chosen most often",
        Table(
            [Column(key, key, left=key in ("method", "setting")) for key in ("labels", "method", "setting", "draws")],
            chosen(records),
        ),
        caption=f"By cross-validation on the labelled rows, {FOLDS} folds, of equal settings the larger penalty; with "
        "one label a class a fixed setting, found on scikit-learn's digits. Self-training takes the penalty of its "
        "first round. μ: manifold; s: n_components.",
    )
    keys = ["labels", "draw", "method", "error", *NAMES]
    Table([Column(key, key) for key in keys], records).write_csv(report.out / "draws.csv")
    report.figure(
        "labels",
        curves,
        [_curve(line, counts) for line in lines],
        x_label="labels a class",
        y_label="error on test digits, %",
        x_log=True,
        y_log=True,
        x_ticks=counts,
        height=4.2,
        caption="Error against labels, both on logarithmic axes; bars are standard deviations over draws.",
    )


def _curve(line: Record, counts: Sequence[int]) -> Curve:
    """Return the errors of one method as a curve; its error bars stay above 0."""
    errors = np.array([line[str(count)] for count in counts])
    bars = np.array([line[f"{count}_std"] or 0.0 for count in counts])
    return Curve(line["method"], counts, np.maximum(errors, 1e-2), error=np.minimum(bars, 0.9 * errors))
