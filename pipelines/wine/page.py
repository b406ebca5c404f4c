"""The tables, pictures and sentences of `python -m pipelines wine`, computed from its runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel.arrays import Array
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, show_seconds, spread, spread_columns
from pipelines.shared.page import Column, Table

# printed in the reference: mean and deviation of the MSE on training and test rows, and seconds of a run
PRINTED = {
    "LR": {"train": (0.716, 0.004), "apart": (0.735, 0.037), "seconds": 0.02},
    "RR": {"train": (0.718, 0.004), "apart": (0.719, 0.039), "seconds": 0.02},
    "KRR": {"train": (0.590, 0.004), "apart": (0.663, 0.032), "seconds": 21.0},
}


@dataclass(frozen=True)
class Run:
    """One method on one split."""

    method: str
    split: int
    # of the standardised quality: of the rows "train", of the test rows "apart" (standardised by themselves) and "test"
    # (by the training rows), and of a "constant" prediction on "test"
    mse: dict[str, float]
    points: float  # quality points in one unit of the standardised quality
    n_train: int
    n_test: int
    seconds: float  # to fit, and to predict training and test rows
    rank: int | None  # rank of the kernel matrix or core, for kernel methods


def nystrom_name(m: int) -> str:
    """Return the name of KRR on m landmarks."""
    return f"Nyström, m = {m:,}"


def of(runs: Sequence[Run], method: str) -> list[Run]:
    """Return the runs of one method, one for each split."""
    return [run for run in runs if run.method == method]


def errors(runs: Sequence[Run], method: str, rows: str) -> Array:
    """Return the MSE of a method on `rows` of every split, (splits,)."""
    return np.array([run.mse[rows] for run in of(runs, method)], np.float64)


def seconds(runs: Sequence[Run], method: str) -> float:
    """Return the median over the splits."""
    return statistics.median(run.seconds for run in of(runs, method))


SECONDS = Column("seconds", "s", lambda record: show_seconds(record["seconds"]))


def introduction(report: Report, repeats: int, penalty: float, sigma: float) -> None:
    """Say what is compared."""
    report.page.text(
        f"Linear regression (LR), ridge regression (RR, λ = {penalty:g}) and kernel ridge regression (KRR, λ = "
        f"{penalty:g}, Gaussian kernel of σ = {sigma:g}) predict what experts say of a wine. Errors are mean squared "
        "errors (MSE) of the standardised quality, so that a constant prediction has an error of about 1; ± is the "
        f"sample standard deviation over {repeats} splits. Seconds are the median time of one fit with its predictions "
        "of training and test rows."
    )


def as_printed(report: Report, runs: Sequence[Run]) -> None:
    """Show LR, RR and KRR beside the reference's numbers."""
    records = []
    for method, printed in PRINTED.items():
        for rows, shown in (("train", "training"), ("apart", "test")):
            figures, (mean, deviation) = spread("mse", errors(runs, method, rows)), printed[rows]
            difference = figures["mse"] - mean
            records.append(
                {"method": method, "rows": shown, **figures, "printed_mse": mean, "printed_mse_std": deviation}
                | {"difference": difference, "within": abs(difference) <= deviation}
                | {"seconds": seconds(runs, method), "printed_seconds": printed["seconds"]}
            )
    columns = [
        Column("method", "method", left=True),
        Column("rows", "rows", left=True),
        *spread_columns("mse", "MSE", ".3f"),
        *spread_columns("printed_mse", "printed MSE", ".3f"),
        Column("difference", "diff.", "+z.3f"),
        Column("within", "within ±", lambda r: "yes" if r["within"] else "no"),
        # of training and test rows together, said once
        Column("seconds", "s", lambda r: show_seconds(r["seconds"]) if r["rows"] == "training" else ""),
        Column(
            "printed_seconds", "printed s", lambda r: f"{r['printed_seconds']:g}" if r["rows"] == "training" else ""
        ),
    ]
    report.table(
        "as_printed",
        "As the reference does it",
        Table(columns, records),
        caption="diff. is our mean less the printed one; “within ±”: whether that is at most one of the printed "
        "standard deviations. The reference's seconds are of MATLAB on its author's computer.",
    )
    outside = [f"{r['method']} on {r['rows']} rows" for r in records if not r["within"]]
    report.tell(
        f"{len(records) - len(outside)} of {len(records)} errors lie within one of the printed standard deviations"
        + (f"; these do not: {', '.join(outside)}." if outside else "."),
        "Before LR and RR the reference prepends a column of ones to X and RR penalises its weight like any other: "
        "here LinearRegression and Ridge with fit_intercept=False on [1, X]. (The columns have mean zero, so that this "
        "weight is zero and its penalty without effect.)",
    )


def landmarks(report: Report, exact: Sequence[Run], runs: Sequence[Run], counts: Sequence[int]) -> None:
    """Compare Nyström KRR with RR and exact KRR: a table and two pictures."""
    everything, best, slow = [*exact, *runs], errors(exact, "KRR", "apart"), seconds(exact, "KRR")
    names = [nystrom_name(m) for m in counts]
    records = []
    for method in (*names, "KRR", "RR"):
        test, time = errors(everything, method, "apart"), seconds(everything, method)
        ranks = [run.rank for run in of(runs, method) if run.rank is not None]
        records.append(
            {"method": "exact KRR" if method == "KRR" else method.removeprefix("Nyström, ")}
            | {"rank": statistics.mean(ranks) if ranks else None}
            | spread("train_mse", errors(everything, method, "train"))
            | spread("test_mse", test)
            | (spread("excess_mse", test - best) if method != "KRR" else {})
            | {"seconds": time, "faster": slow / time}
        )
    columns = [
        Column("method", "landmarks", left=True),
        Column("rank", "rank", ",.0f"),
        *spread_columns("train_mse", "training MSE", ".3f"),
        *spread_columns("test_mse", "test MSE", ".3f"),
        *spread_columns("excess_mse", "over exact", ".3f"),
        SECONDS,
        Column("faster", "faster", lambda r: f"{r['faster']:,.1f}×" if r["faster"] < 100 else f"{r['faster']:,.0f}×"),
    ]
    report.table(
        "nystrom",
        "Nyström KRR on the same splits",
        Table(columns, records),
        caption="“over exact” is the test error less that of exact KRR on the same split; “faster”, the time of exact "
        "KRR over this one. Landmarks are drawn from the rows and repeat one another as the rows do: the rank (mean) "
        "counts those that do not.",
    )
    _against_landmarks(report, exact, runs, counts)


def _against_landmarks(report: Report, exact: Sequence[Run], runs: Sequence[Run], counts: Sequence[int]) -> None:
    """Plot errors and seconds of Nyström KRR over the number of landmarks, with RR and exact KRR as levels."""
    names, lines = [nystrom_name(m) for m in counts], []
    for key, rows in (("apart", "test"), ("train", "training")):
        spreads = [spread("mse", errors(runs, name, key)) for name in names]
        bars = [one["mse_std"] for one in spreads]
        lines.append(Curve(f"Nyström, {rows}", counts, [one["mse"] for one in spreads], None if None in bars else bars))
    methods = {"exact KRR": "KRR", "RR": "RR"}
    levels = {name: float(errors(exact, method, "apart").mean()) for name, method in methods.items()}
    times = {name: seconds(exact, method) for name, method in methods.items()}
    axes: dict[str, Any] = {"x_label": "landmarks m", "x_log": True, "x_ticks": counts}
    report.figure(
        "nystrom_error",
        curves,
        lines,
        **axes,
        y_label="mean squared error of the\nstandardised quality (variance 1)",
        levels=[(f"{name}, test: {value:.3f}", value) for name, value in levels.items()],
        caption="Error against the number of landmarks: mean and sample standard deviation over the splits. The bars "
        "of the test error show how much splits differ; all points and both levels share the same splits.",
    )
    report.figure(
        "nystrom_seconds",
        curves,
        [Curve("Nyström KRR", counts, [seconds(runs, name) for name in names])],
        **axes,
        y_label="seconds to fit and predict (median)",
        levels=[(f"{name}: {show_seconds(value)} s", value) for name, value in times.items()],
        y_log=True,
        caption=f"Time against the number of landmarks, on logarithmic axes; {exact[0].n_train:,} training rows.",
    )


def honest(report: Report, runs: Sequence[Run], repeated: int, repeated_with_quality: int) -> None:
    """Show the errors without copies on both sides and without the test rows' own statistics."""
    records = [
        {"method": method}
        | spread("train_mse", errors(runs, method, "train"))
        | spread("test_mse", errors(runs, method, "test"))
        | spread("test_rmse_points", points(of(runs, method), "test"))
        | {"seconds": seconds(runs, method)}
        for method in dict.fromkeys(run.method for run in runs)
    ]
    columns = [
        Column("method", "method", left=True),
        *spread_columns("train_mse", "training MSE", ".3f"),
        *spread_columns("test_mse", "test MSE", ".3f"),
        *spread_columns("test_rmse_points", "test RMSE, points", ".3f"),
        SECONDS,
    ]
    constant = np.mean(points(of(runs, "LR"), "constant"))
    report.table(
        "honest",
        "An honest variant (not the reference's): copies together, training statistics",
        Table(columns, records),
        caption="MSE of the quality standardised by the training rows; RMSE in points of the quality, which goes from "
        f"0 to 10. A constant prediction, the mean of the training rows, has an RMSE of {constant:.3f} points.",
    )
    report.tell(
        f"{repeated:,} rows repeat an earlier row in all attributes, {repeated_with_quality:,} of them in the quality "
        "too. Rows of the same attributes, whatever their quality, are on one side of each of these splits (on average "
        f"{np.mean([run.n_test for run in of(runs, 'LR')]):,.0f} test rows), and X and y of both sides are "
        "standardised by mean and deviation of the training rows alone."
    )


def points(runs: Sequence[Run], rows: str) -> list[float]:
    """Return root mean squared errors in quality points, one for each split."""
    return [run.points * run.mse[rows] ** 0.5 for run in runs]
