"""The page of `python -m pipelines tune`: the grid and its picture, and the final model.

A record is a candidate: `sigma`, `alpha`, figures in % each with its standard error under a key that ends in _se, and
`prediction_error`, how far rounding has moved its predictions.
"""

from typing import Any

import numpy as np

from pipelines.shared.experiments import Report, spread_columns
from pipelines.shared.page import Column, Table
from pipelines.shared.pictures import LIGHT, Paper, heat_map

Record = dict[str, Any]


GRID = [Column("sigma", "σ", ".3g"), Column("alpha", "α", ".3g")]
CHOSEN = Column("chosen", "", lambda record: "chosen" if record["chosen"] else "", left=True)
CANDIDATES = [Column("rank", "rank"), *GRID, *spread_columns("error", "error %", ".2f", suffix="_se"), CHOSEN]


def named(record: Record) -> str:
    """A candidate in words."""
    return f"σ = {record['sigma']:.3g}, α = {record['alpha']:.3g}"


def score_picture(records: list[Record], *, paper: Paper = LIGHT) -> bytes:
    """Draw the errors over widths and penalties; what is far off has the colour of the ninth tenth."""
    sigmas, alphas = (sorted({record[key] for record in records}) for key in ("sigma", "alpha"))
    error = np.zeros((len(sigmas), len(alphas)))
    for record in records:
        error[sigmas.index(record["sigma"]), alphas.index(record["alpha"])] = record["error"]
    return heat_map(
        np.minimum(error, np.percentile(error, 90)),
        [f"{alpha:.2g}" for alpha in alphas],
        [f"{sigma:.3g}" for sigma in sigmas],
        x_label="penalty α",
        y_label="width σ",
        value_label="error over the folds, %",
        texts=[[f"{value:.1f}" for value in row] for row in error],
        paper=paper,
    )


def grid(report: Report, records: list[Record], *, folds: int, sweeps: int, seconds: float) -> None:
    """The search on the page: the best ten, what it took, the heat map."""
    ranked = sorted(records, key=lambda record: (record["rank"], -record["alpha"], -record["sigma"]))
    chosen = next(record for record in records if record["chosen"])
    report.table(
        "candidates",
        f"The best ten of {len(records)} candidates",
        Table(CANDIDATES, ranked[:10] + [chosen] * (chosen not in ranked[:10])),
        caption=f"Error over {folds} folds ± its standard error. Chosen: of all candidates within one standard error "
        "of the best, the one of largest α, then of largest σ.",
    )
    Table(CANDIDATES, records).write_csv(report.out / "grid.csv")
    fits = len(records) * folds
    report.tell(
        f"{len(records)} candidates on {folds} folds took {sweeps} sweeps of the rows and {seconds:.0f} s. "
        f"One by one, as a grid search does it, they are {fits:,} fits."
    )
    if min(len({record[key] for record in records}) for key in ("sigma", "alpha")) > 1:
        report.figure("grid", score_picture, records, caption="Error over the folds, in %, of each width and penalty.")
    facts = {"candidates": len(records), "folds": folds, "sweeps": sweeps, "fits_one_by_one": fits, "seconds": seconds}
    report.results["search"] = {**facts, "chosen": chosen, "grid": records}


def final(report: Report, records: list[Record], error: Record, *, held_out: str, tested: str, landmarks: int) -> None:
    """Show the choice of the final model, and its error on the test digits."""
    ranked = sorted(records, key=lambda record: (not record["chosen"], record["rank"], -record["alpha"]))
    report.table(
        "final",
        f"The final model, {landmarks:,} landmarks: the best of {len(records)}",
        Table(CANDIDATES, ranked[:10]),
        caption=f"Candidates around the choice above, with {landmarks:,} landmarks: error on {held_out}, held out "
        "once, ± its standard error. Differences of candidates are surer than that: all are judged on the same digits.",
    )
    report.tell(
        f"The final model, {named(ranked[0])}, fitted to all training digits: {error['error']:.2f} ± "
        f"{error['error_se']:.2f} % error on the {error['digits']:,} {tested}, which were looked at once, after all "
        "this was chosen."
    )
    chosen = {key: ranked[0][key] for key in ("sigma", "alpha")}
    report.results["test"] = {**error, "landmarks": landmarks, **chosen}
