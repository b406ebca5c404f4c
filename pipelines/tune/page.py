"""The page of `python -m pipelines tune`: the grid and its picture, the final model, and folds with and without groups.

A record is a candidate: `sigma`, `alpha`, figures in % each with its standard error under a key that ends in _se, and
`prediction_error`, how far rounding has moved its predictions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigkernel.solvers.accuracy import ENOUGH
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, spread_columns
from pipelines.shared.page import Column, Table
from pipelines.shared.pictures import LIGHT, Paper

Record = dict[str, Any]


GRID = [Column("sigma", "σ", ".3g"), Column("alpha", "α", ".3g")]
CHOSEN = Column("chosen", "", lambda record: "chosen" if record["chosen"] else "", left=True)
CANDIDATES = [Column("rank", "rank"), *GRID, *spread_columns("error", "error %", ".2f", suffix="_se"), CHOSEN]


def named(record: Record) -> str:
    """A candidate in words."""
    return f"σ = {record['sigma']:.3g}, α = {record['alpha']:.3g}"


def score_picture(records: list[Record], *, paper: Paper = LIGHT) -> bytes:
    """The heat map of accuracy over widths and penalties."""
    from bigkernel.search.score_map import score_map

    sigmas, alphas = (sorted({record[key] for record in records}) for key in ("sigma", "alpha"))
    mean, error, off = np.zeros((3, len(sigmas), len(alphas)))
    for record in records:
        place = sigmas.index(record["sigma"]), alphas.index(record["alpha"])
        mean[place], error[place] = 1 - record["error"] / 100, record["error_se"] / 100
        off[place] = record["prediction_error"]
    colours, inexact = (paper.ground, paper.ink), off > ENOUGH
    return score_map(
        mean, error, sigmas, alphas, label="accuracy", width_name="sigma", inexact=inexact, colours=colours
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
        caption = "Accuracy over the folds. The star is the best candidate, the line is around all within one standard "
        report.figure("grid", score_picture, records, caption=f"{caption}error of it.")
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


def promise(records: list[Record], way: str, what: str) -> tuple[Record, str]:
    """Return the choice of folds of one kind, with its true error less the promised one; and in words."""
    chosen = min(records, key=lambda record: (record[way], -record["alpha"]))
    optimism = chosen["true"] - chosen[way]
    text = (
        f"Folds of {what} choose {named(chosen)} and promise {chosen[way]:.2f} % error; the true error is "
        f"{chosen['true']:.2f} ± {chosen['true_se']:.2f} %, {abs(optimism):.2f} points "
        f"{'more' if optimism > 0 else 'less'}."
    )
    share = float(np.mean([record[way] / record["true"] for record in records]))
    return {**chosen, "optimism": optimism, "share": share}, text


def copies(report: Report, records: list[Record], *, rows: int, originals: int, folds: int, repeats: int) -> None:
    """Folds of rows and of groups: table, what either chooses and promises, picture."""
    judged = [
        column
        for way in ("ungrouped", "grouped", "true")
        for column in spread_columns(way, f"{way} %", ".2f", suffix="_se")
    ]
    report.table(
        "copies",
        "Copies share a fold",
        Table([*GRID, *judged, Column("originals", "originals %", ".2f")], records),
        caption=f"{rows:,} deformed copies of {originals:,} digits. Error over {folds} folds of rows (ungrouped) and "
        f"over {folds} folds of digits with all their copies (grouped), mean of {repeats} "
        f"partition{'s' * (repeats > 1)}; landmarks are drawn from all rows. True: the error on copies of digits that "
        "were held out, which is what cross-validation is to foretell. Originals: on the same digits undeformed, which "
        "is easier. ±: one standard error.",
    )
    ungrouped, first = promise(records, "ungrouped", "rows")
    grouped, second = promise(records, "grouped", "digits")
    report.tell(
        f"{first} {second} Over the whole grid folds of rows promise {ungrouped['share']:.2f} of the true error on "
        f"average, folds of digits {grouped['share']:.2f}. A fold of rows tests on copies of digits that were trained "
        "on, and a new digit has none there; SweepSearchCV keeps groups together where a corpus has them."
    )
    line = [record for record in records if record["alpha"] == grouped["alpha"]]
    sigmas = [record["sigma"] for record in line]
    names = {"ungrouped": "folds of rows", "grouped": "folds of digits", "true": "copies of new digits"}
    report.figure(
        "copies",
        curves,
        [Curve(name, sigmas, [r[key] for r in line], [r[f"{key}_se"] for r in line]) for key, name in names.items()],
        x_label="width σ of the kernel (rows of unit norm)",
        y_label="error, %",
        x_log=True,
        x_ticks=sigmas,
        y_range=(0, 1.05 * max(record[key] + record[f"{key}_se"] for record in line for key in names)),
        caption=f"Error at α = {grouped['alpha']:g} over the width, ± one standard error.",
    )
    report.results["optimism"] = {"ungrouped": ungrouped, "grouped": grouped}
