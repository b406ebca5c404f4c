"""The page of `python -m pipelines corpus`: plan, choices, fits, and the error against rows and landmarks."""

from typing import Any

import numpy as np

from bigkernel.config import settings
from bigkernel.html import MISSING, duration, size
from pipelines.corpus.choice import HELD_OUT, MOST_LANDMARKS, Record
from pipelines.corpus.job import Outcome, View, steps_of
from pipelines.shared import pictures
from pipelines.shared.charts import COLOURS, Curve, curves
from pipelines.shared.experiments import Report, spread_columns
from pipelines.shared.page import Column, Table
from pipelines.shared.pictures import LIGHT, Paper

VIEW = Column("features", "features", left=True)
SEARCHED = [
    VIEW,
    Column("sigma", "σ", ".3g"),
    Column("alpha", "best α", lambda r: "gcv" if r["alpha"] is None else f"{r['alpha']:.3g}"),
    Column("error", "held-out error %", ".2f"),
    Column("chosen", "", lambda r: "chosen" if r["chosen"] else "", left=True),
    Column("edge", "end of the grid", hidden=True),
]
FITS = [
    VIEW,
    Column("rows", "rows", ","),
    Column("alpha", "α", ".3g"),
    *spread_columns("error", "error %", ".2f", suffix="_se"),
    Column("fit_seconds", "fit s", ",.1f"),
    Column("gflops_per_second", "GFLOP/s", ".0f"),
    Column("peak_bytes", "peak MB", lambda r: f"{r['peak_bytes'] / 1e6:,.0f}" if r["peak_bytes"] else MISSING),
    Column("resumed_segments", "resumed", lambda r: f"{r['resumed_segments']} of {r['segments']}"),
    Column("segments", "segments", hidden=True),
    Column("sweep_seconds", "sweep s", hidden=True),
]


def error_picture(outcome: Outcome, against: str, *, paper: Paper = LIGHT) -> bytes:
    """Draw the error on the test digits against rows or landmarks, with one standard error.

    Each value of the other has its colour; with two views, those of unit norm have dashed curves.
    """
    other = "landmarks" if against == "rows" else "rows"
    values = sorted({record[other] for record in outcome.errors}, reverse=True)
    shown = []
    for view in (view.name for view in reversed(outcome.views)):
        for number, value in enumerate(values):
            records = [r for r in outcome.errors if r[other] == value and r["features"] == view]
            x, y, error = ([record[key] for record in records] for key in (against, "error", "error_se"))
            last, name = view == outcome.views[-1].name, f"m = {value:,}" if other == "landmarks" else f"{value:,} rows"
            style = {"dashed": not last, "colour": number % len(COLOURS), "mark": number}
            shown.append(Curve(name if last else "", x, y, error=error, **style))
    if len(outcome.views) > 1:
        first, last = outcome.views[0].name, outcome.views[-1].name
        for name, dashed in ((last, False), (first, True)):
            shown.append(Curve(name, [], [], dashed=dashed, marks=False, colour="ink"))
    ticks = sorted({record[against] for record in outcome.errors})
    return curves(
        shown,
        x_label="training rows" if against == "rows" else "landmarks m",
        y_label="error on test digits (%)",
        x_log=len(ticks) > 1,
        y_log=len(outcome.views) > 1,
        y_ticks=_ticks([r["error"] for r in outcome.errors]) if len(outcome.views) > 1 else None,
        x_ticks=ticks,
        paper=paper,
    )


def _ticks(values: list[float]) -> list[float]:
    """Return round numbers around positive values, three a decade."""
    every = [step * 10.0**power for power in range(-2, 3) for step in (1, 2, 5)]
    low = max([tick for tick in every if tick <= min(values)], default=every[0])
    high = min([tick for tick in every if tick >= max(values)], default=every[-1])
    return [tick for tick in every if low <= tick <= high]


def _crossed(outcome: Outcome, counts: list[int]) -> Table:
    """Return errors with a row for each view and number of rows, and a column for each number of landmarks."""
    columns = [VIEW, Column("rows", "rows", ",")]
    for count in counts:
        columns.append(Column(f"error_{count}", f"m = {count:,}", ".2f"))
        columns.append(Column(f"error_se_{count}", f"standard error, m = {count:,}", hidden=True))
    lines: dict[tuple[str, int], Record] = {}
    for record in outcome.errors:
        key = {"features": record["features"], "rows": record["rows"]}
        line = lines.setdefault(tuple(key.values()), key)
        line[f"error_{record['landmarks']}"] = record["error"]
        line[f"error_se_{record['landmarks']}"] = record["error_se"]
    return Table(columns, list(lines.values()))


def fill(made: Report, outcome: Outcome) -> None:
    """Print the tables and write report.html, errors.csv, fits.csv, rows.png and landmarks.png."""
    fits = [{**fit, "error": error["error"], "error_se": error["error_se"]} for fit, error in steps_of(outcome)]
    _introduction(made, outcome, fits)
    _choices(made, outcome)
    made.table(
        "fits",
        "Fits: the first one swept its rows, each other one the rows that it adds",
        Table(FITS, fits),
        caption="GFLOP/s of the sweep. Resumed: segments that were found in the run.",
    )
    _errors(made, outcome, fits[-1]["rows"])
    made.finish(
        _facts(outcome, max(fit["peak_bytes"] for fit in fits)),
        stage_seconds=[fit["stage_seconds"] for fit in outcome.fits],
        confusion=outcome.verdict["confusion"],
        corpus_seconds=outcome.material.seconds,
        all_errors=outcome.errors,
    )


def _introduction(made: Report, outcome: Outcome, fits: list[Record]) -> None:
    """Say what was fitted and with what result."""
    job, material = outcome.job, outcome.material
    train = material.train
    sigmas = " and ".join(f"{view.choice.sigma:g} ({view.name})" for view in outcome.views)
    rule = "by generalised cross-validation" if job.penalty == "gcv" and not job.searches else "given"
    made.tell(
        f"Corpus: {train.info.name}, {len(train):,} rows, {'found whole' if material.kept else 'made'} in "
        f"{duration(material.seconds)}. Gaussian kernels of width {sigmas}, {outcome.landmarks:,} landmarks drawn from "
        f"all rows, the penalty {'chosen below' if job.searches else rule}."
    )
    for view in outcome.views:
        ends = [fit for fit in fits if fit["features"] == view.name]
        ends_text = (
            f"{r['error']:.2f} ± {r['error_se']:.2f} % from {r['rows']:,} rows" for r in ends[:: max(1, len(ends) - 1)]
        )
        steps = ", ".join(name for name, _ in view.maps.steps)
        made.tell(f"{steps}: error on {len(material.test):,} test digits {' and '.join(ends_text)}.")


def _choices(made: Report, outcome: Outcome) -> None:
    """Write the table of the settings chosen on training rows."""
    records = [{"features": view.name, **record} for view in outcome.views for record in view.choice.searched]
    if not records:
        return
    held = "digits with all their copies" if outcome.material.has_copies else "rows"
    made.table(
        "search",
        f"Width and penalty, chosen on {outcome.searched_rows:,} training rows",
        Table(SEARCHED, records),
        caption=f"About {HELD_OUT:.0%} of these rows are held out once, {held}, and the others fitted on "
        f"{min(outcome.landmarks, MOST_LANDMARKS):,} of the landmarks. The test digits are not looked at.",
    )
    for record in records:
        if record["edge"]:
            made.tell(f"The choice for {record['features']} lies at an end: {record['edge']}.")


def _errors(made: Report, outcome: Outcome, rows: int) -> None:
    """Write errors against rows and landmarks, and the confusion of the last fit, which has all `rows`."""
    counts = sorted({record["landmarks"] for record in outcome.errors})
    made.table("errors", "Error in % against features, rows and landmarks", _crossed(outcome, counts))
    for against in ("rows", "landmarks"):
        if len({record[against] for record in outcome.errors}) > 1:
            test = len(outcome.material.test)
            caption = f"Error on the {test:,} test digits against {against}; bars: one standard error."
            if len(outcome.views) > 1:
                caption += " Dashed: rows of unit norm; full: through the transforms."
            made.figure(against, error_picture, outcome, against, caption=caption)
    verdict = outcome.verdict
    if len(verdict["classes"]) <= 20:
        made.page.heading("What is taken for what")
        made.figure(
            "confusion",
            pictures.confusion,
            np.array(verdict["confusion"]),
            verdict["classes"],
            caption=f"Test digits by true and predicted class: all {rows:,} rows, all landmarks.",
        )


def _described(view: View) -> str:
    """Describe transforms and settings of a view."""
    choice = view.choice
    alpha = choice.alpha if isinstance(choice.alpha, str) else f"{choice.alpha:g}"
    return f"{' → '.join(name for name, _ in view.maps.steps)}; σ {choice.sigma:g}, α {alpha}, {choice.model.solver}"


def _facts(outcome: Outcome, peak_bytes: int) -> dict[str, Any]:
    """Return the settings at the foot of the page."""
    job, material = outcome.job, outcome.material
    announced = max(view.plan.worker_bytes(settings().worker_base_bytes) for view in outcome.views)
    held, of_worker = f"{size(peak_bytes)} at most", outcome.fits[-1]["executor"] == "dask"
    facts = {
        "corpus": f"{material.train.path}; {'found whole' if material.kept else 'made'} in {material.seconds:.1f} s",
        "source": material.train.info.source,
        "test": f"{material.test.path}: {material.test.info.source}",
        "landmarks": outcome.landmarks,
        **{view.name: _described(view) for view in outcome.views},
        "workers": outcome.workers,
        **(
            {"a worker": f"{held}; announced {size(announced)}"}
            if of_worker
            else {"this process": f"{held}, with solves"}
        ),
        "model": outcome.model,
        "seed": job.seed,
    }
    incidents = [text for fit in outcome.fits for text in fit["incidents"]]
    return facts | ({"incidents": "; ".join(incidents[:10])} if incidents else {})
