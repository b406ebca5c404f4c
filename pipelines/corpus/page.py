"""The page of `python -m pipelines corpus`: its plan, its fits, and the error against rows and against landmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bigkernel.config import settings
from bigkernel.monitor.format import MISSING, duration, flops_rate, size
from bigkernel.monitor.report.page import Column, Table
from bigkernel.monitor.terminal.figures import show
from pipelines.corpus.job import Outcome, Record, Settings, median_rate, steps_of
from pipelines.shared import pictures
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, spread_columns
from pipelines.shared.pictures import LIGHT, Paper

FITS = [
    Column("rows", "rows", ","),
    Column("alpha", "α", ".3g"),
    *spread_columns("error", "error %", ".2f", suffix="_se"),
    Column("fit_seconds", "fit s", ",.1f"),
    Column("gflops_per_second", "GFLOP/s", lambda r: f"{r['gflops_per_second']:.0f}" if r["share"] else MISSING),
    Column("share", "of GEMM", lambda r: f"{r['share']:.2f}" if r["share"] else MISSING),
    Column("peak_bytes", "peak MB", lambda r: f"{r['peak_bytes'] / 1e6:,.0f}" if r["peak_bytes"] else MISSING),
    Column("resumed_segments", "resumed", lambda r: f"{r['resumed_segments']} of {r['segments']}"),
    Column("segments", "segments", hidden=True),
    Column("sweep_seconds", "sweep s", hidden=True),
]


def show_plan(figures: Record, *, as_json: bool) -> None:
    """The figures of a job that is not run."""
    shown = figures if as_json else {name: value for name, value in figures.items() if value is not None}
    show(shown, as_json=as_json, title="plan; nothing was made")


def error_picture(outcome: Outcome, against: str, *, paper: Paper = LIGHT) -> bytes:
    """Error on the test digits against rows or landmarks, with one standard error; a curve a number of the other."""
    other = "landmarks" if against == "rows" else "rows"
    values = sorted({record[other] for record in outcome.errors}, reverse=True)
    shown = []
    for value in values:
        records = [record for record in outcome.errors if record[other] == value]
        x, y, error = ([record[key] for record in records] for key in (against, "error", "error_se"))
        name = f"m = {value:,}" if other == "landmarks" else f"{value:,} rows"
        shown.append(Curve(name, x, y, error=error))
    ticks = sorted({record[against] for record in outcome.errors})
    return curves(
        shown,
        x_label="training rows" if against == "rows" else "landmarks m",
        y_label="error on test digits (%)",
        x_log=len(ticks) > 1,
        x_ticks=ticks,
        paper=paper,
    )


def begin(job: Settings, out: Path, *, quiet: bool) -> Report:
    """The report of a job that begins now; makes `out`."""
    method = {"krr": "Kernel ridge regression", "sssl": "Semi-supervised learning"}[job.method]
    return Report(out, "A digit corpus and its model", f"{method} on {job.landmarks:,} landmarks", quiet=quiet)


def _crossed(outcome: Outcome, counts: list[int]) -> Table:
    """Errors, a line a number of rows and a column a number of landmarks."""
    columns = [Column("rows", "rows", ",")]
    for count in counts:
        columns.append(Column(f"error_{count}", f"m = {count:,}", ".2f"))
        columns.append(Column(f"error_se_{count}", f"standard error, m = {count:,}", hidden=True))
    lines: dict[int, Record] = {}
    for record in outcome.errors:
        line = lines.setdefault(record["rows"], {"rows": record["rows"]})
        line[f"error_{record['landmarks']}"] = record["error"]
        line[f"error_se_{record['landmarks']}"] = record["error_se"]
    return Table(columns, list(lines.values()))


def fill(made: Report, outcome: Outcome) -> None:
    """Print the tables, and leave report.html, errors.csv, fits.csv, rows.png, landmarks.png."""
    gemm = median_rate(outcome.gemm)
    fits = [
        {**fit, "error": error["error"], "error_se": error["error_se"], "share": fit["computed_flops"] / gemm / sweep}
        for fit, error in steps_of(outcome)
        if (sweep := fit["sweep_seconds"] or 1e-9)
    ]
    _fits(made, outcome, fits, gemm)
    computed = sum(fit["computed_flops"] for fit in fits)
    if computed:
        made.say(
            f"all sweeps: {flops_rate(outcome.rate)}, {outcome.rate / gemm:.3f} of the matrix product's "
            f"{flops_rate(gemm)} on {outcome.workers} workers"
        )
    _errors(made, outcome, fits[-1]["rows"])
    made.finish(
        _facts(outcome, max(fit["peak_bytes"] for fit in fits)),
        gemm_gflops=[rate / 1e9 for rate in outcome.gemm],
        sweep_gflops=outcome.rate / 1e9,
        share_of_gemm=outcome.rate / gemm if computed else None,
        stage_seconds=[fit["stage_seconds"] for fit in outcome.fits],
        confusion=outcome.verdict["confusion"],
        corpus_seconds=outcome.material.seconds,
        all_errors=outcome.errors,
    )


def _fits(made: Report, outcome: Outcome, fits: list[Record], gemm: float) -> None:
    """Say what was fitted and how well, and write the table of the fits."""
    job, material = outcome.job, outcome.material
    train, ends = material.train, fits[:: max(1, len(fits) - 1)]
    made.tell(
        f"Corpus: {train.info.name}, {len(train):,} rows, {'found whole' if material.kept else 'made'} in "
        f"{duration(material.seconds)}. A Gaussian kernel of width {outcome.sigma:g}, rows of unit norm, the "
        f"penalty {'by generalised cross-validation' if job.alpha == 'gcv' else 'given'}. "
        f"Error on {len(material.test):,} test digits "
        + " and ".join(f"{r['error']:.2f} ± {r['error_se']:.2f} % from {r['rows']:,} rows" for r in ends)
        + "."
    )
    made.table(
        "fits",
        "Fits: the first one swept its rows, each other one the rows that it adds",
        Table(FITS, fits),
        caption=f"GFLOP/s of the sweep, and over that of the matrix product (float32, one thread a worker, all workers "
        f"at once, measured between the fits): {flops_rate(gemm)}. Resumed: segments that were found in the run.",
    )


def _errors(made: Report, outcome: Outcome, rows: int) -> None:
    """Write errors against rows and landmarks, and the confusion of the last fit, which has all `rows`."""
    counts = sorted({record["landmarks"] for record in outcome.errors})
    made.table("errors", "Error in % against rows and landmarks: all from the one sweep", _crossed(outcome, counts))
    for against in ("rows", "landmarks"):
        if len({record[against] for record in outcome.errors}) > 1:
            test = len(outcome.material.test)
            caption = f"Error on the {test:,} test digits against {against}; bars: one standard error."
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


def _facts(outcome: Outcome, peak_bytes: int) -> dict[str, Any]:
    """Settings at the foot of the page."""
    job, material = outcome.job, outcome.material
    announced = outcome.plan.worker_bytes(settings().worker_base_bytes)
    facts = {
        "corpus": f"{material.train.path}; {'found whole' if material.kept else 'made'} in {material.seconds:.1f} s",
        "source": material.train.info.source,
        "test": f"{material.test.path}: {material.test.info.source}",
        "method": f"{job.method}, σ {outcome.sigma:g}, m {job.landmarks:,}, α {job.alpha}",
        "workers": outcome.workers,
        "a worker": f"{size(peak_bytes)} at most; announced {size(announced)}",
        "model": outcome.model,
        "seed": job.seed,
    }
    incidents = [text for fit in outcome.fits for text in fit["incidents"]]
    return facts | ({"incidents": "; ".join(incidents[:10])} if incidents else {})
