"""The page of `python -m pipelines scaling`: its tables, its picture and the assumptions behind them.

Workers are processes of one task each, with one BLAS thread. Times of the model are those of kernel ridge regression on
digits (784 features of 8 bits, ten classes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bigkernel.engine.schedule import MOST_SEGMENTS
from pipelines.scaling.model import SEGMENT_ROWS, Cluster, Fit, largest, most_workers, segment_seconds, times
from pipelines.shared.charts import COLOURS
from pipelines.shared.experiments import Report
from pipelines.shared.page import Column, Table
from pipelines.shared.pictures import LIGHT, Paper, bare, drawing

Record = dict[str, Any]
ROWS = (8_100_000, 10**9, 10**10)  # of the model
WORKERS = (1, 10, 100, 1000, 5000)
HOURS = (1, 8, 24)
LANDMARKS = (500, 1000, 2000, 4000, 8000)
TARGET = 1.85  # strong speed-up of two workers on a machine that does nothing else
SEGMENT_TARGET = 1e-3  # seconds of a segment whose rows cost nothing, with the monitor on; and the scheduler's of them
_LETTERS = {"memory": "M", "time": "T", "rows": "R"}


def measured(report: Report, found: Mapping[str, Any], *, landmarks: int) -> None:
    """Strong and weak scaling, and what the processors do when one and two are busy."""
    timings = found["timings"]
    whole, half = (f(timing["rows"] for timing in timings) for f in (max, min))
    names = {"strong": f"strong: {whole:,} rows", "weak": f"weak: {half:,} rows a worker"}
    report.table(
        "scaling",
        "Strong and weak scaling, 1 and 2 workers",
        Table(
            [
                Column("what", "sweep", left=True),
                Column("one_seconds", "1 worker s", ".2f"),
                Column("two_seconds", "2 workers s", ".2f"),
                Column("speed_up", "speed-up", ".2f"),
                Column("efficiency", "efficiency %", lambda record: f"{100 * record['efficiency']:.0f}"),
            ],
            [{"what": name, **found[key]} for key, name in names.items()],
        ),
        caption=f"Moments of {landmarks:,} landmarks, each sweep on a fresh local cluster, from the first task to the "
        f"merged total; median over the rounds, whose order alternates ({len(timings) // 3} of them).",
    )
    gemm = found["gemm"]
    rates = {1: gemm["one"], 2: gemm["two"]}
    report.table(
        "processors",
        "What the processors do",
        Table(
            [
                Column("busy", "busy processes"),
                Column("gemm", "GEMM GFLOP/s each", ".1f"),
                Column("sweep", "sweep GFLOP/s each", ".1f"),
                Column("share", "sweep/GEMM", ".2f"),
                Column("load", "load average", ".1f"),
            ],
            [_processors(timings, workers, rates[workers], whole) for workers in (1, 2)],
        ),
        caption="GEMM: float32 products timed in all workers at the same moment, before and after every sweep. Load: "
        "mean number of processes that wanted a processor in the minute before a sweep began.",
    )
    speed = found["strong"]["speed_up"]
    verdict = "reached" if speed >= TARGET else "NOT reached"
    report.tell(
        f"Two workers are {speed:.2f} times as fast as one on the same rows (target {TARGET}: {verdict}). "
        f"The matrix products of two processes together are {gemm['speed_up']:.2f} times those of one, so that the "
        f"sweep has {100 * found['explained']:.0f} % of the speed-up that the processors had to give."
    )
    columns = [Column(key, key) for key in timings[0]]
    Table(columns, timings).write_csv(report.out / "timings.csv")
    report.results["measured"] = dict(found)


def _processors(timings: Sequence[Record], workers: int, gemm: float, rows: int) -> Record:
    some = [timing for timing in timings if (timing["workers"], timing["rows"]) == (workers, rows)]
    rate = float(np.median([timing["flops_per_second"] for timing in some])) / workers
    load = float(np.median([timing["load"] for timing in some]))
    return {"busy": workers, "gemm": gemm / 1e9, "sweep": rate / 1e9, "share": rate / gemm, "load": load}


def segments(
    report: Report, records: Sequence[Record], bare: Mapping[str, float], short: Mapping[str, float], *, workers: int
) -> None:
    """Show the cost of a segment whose rows cost nothing, by whose time it is."""
    milli = {"seconds": "wall", "scheduler": "scheduler", "driver": "driver", "workers": "workers"}
    yes = {True: "yes", False: "no"}
    shown = [
        Column("monitor", "monitor", lambda record: yes[record["monitor"]], left=True),
        Column("run", "run", lambda record: yes[record["run"]], left=True),
        *(Column(key, f"{name} ms", lambda r, key=key: f"{1e3 * r[key]:.2f}") for key, name in milli.items()),
        Column("fixed", "fixed s", ".2f"),
    ]
    counts = ", ".join(f"{count:,}" for count in records[0]["segments"])
    report.table(
        "segments",
        f"The cost of a segment, {workers} workers",
        Table(shown, records),
        caption=f"Milliseconds a segment of one row and of a statistic of eight bytes: the slope over {counts} "
        "segments; fixed: what a sweep costs besides. Wall: by the clock. The others are the processor's time of three "
        f"processes; all {workers} workers share one, and its interpreter, which no cluster does: the wall is theirs. "
        "Run: partial results are published in a run directory.",
    )
    report.results |= {"bare_task": dict(bare), "short_segment": dict(short)}
    main, kept = (next(r for r in records if r["monitor"] and r["run"] is run) for run in (False, True))

    def judged(seconds: float) -> str:
        verdict = "reached" if seconds <= SEGMENT_TARGET else "NOT reached"
        return f"{1e3 * seconds:.2f} ms (target {1e3 * SEGMENT_TARGET:.0f} ms: {verdict})"

    report.tell(
        f"With the monitor on a segment takes {judged(main['seconds'])} by the clock. Of the scheduler, which is the "
        f"serial part on a cluster, it takes {judged(main['scheduler'])}, with a run directory "
        f"{judged(kept['scheduler'])}. A bare task of Dask costs its scheduler {1e3 * bare['scheduler']:.2f} ms here. "
        "Four segments that have a task each are six tasks and a third: four of rows, one of their merges, one of "
        "receipts (none with a run directory), a third for the merges above. Of sixteen short segments that are one "
        f"task each takes {1e3 * short['scheduler']:.2f} ms of the scheduler."
    )


def model(report: Report, cluster: Cluster, measured: Fit, points: Sequence[tuple[int, float]]) -> None:
    """Hours over workers and rows as table and pictures; `points` are (workers, seconds) of the sweep of a fit."""
    landmarks = measured.landmarks
    records = [_told(Fit(n, landmarks), cluster, workers) for n in ROWS for workers in WORKERS]
    report.table(
        "hours",
        f"Hours of a fit, {landmarks:,} landmarks",
        Table(
            [
                Column("rows", "rows", lambda record: short(record["rows"])),
                Column("workers", "workers", ",d"),
                Column("hours", "hours", ",.3g"),
                Column("speed_up", "speed-up", ",.1f"),
                Column("efficiency", "efficiency %", lambda record: f"{100 * record['efficiency']:.0f}"),
                Column("bound", "bound by", left=True),
            ],
            records,
        ),
        caption="Of the model, not measured. Bound by: what most of the time is spent on.",
    )
    for name, m in (("hours", landmarks), ("hours-few", max(1, landmarks // 4))):
        report.figure(
            name,
            hours_picture,
            cluster,
            m,
            measured if m == landmarks else None,
            points,
            caption=f"Hours of a fit with {m:,} landmarks over workers; dashed: ideal, the time of one worker shared "
            "out." + (" Dots: measured sweeps." if m == landmarks else ""),
        )
    limits = [{"landmarks": m, **_limit(Fit(10**9, m), cluster)} for m in LANDMARKS]
    report.table(
        "scheduler",
        "How many workers the scheduler keeps busy",
        Table(
            [
                Column("landmarks", "landmarks", ",d"),
                Column("segment_seconds", "a segment s", ",.2f"),
                Column("together", "a task"),
                Column("cost", "scheduler ms", lambda record: f"{1e3 * record['cost']:.2f}"),
                Column("workers", "workers", ",.0f"),
            ],
            limits,
        ),
        caption=f"A segment has at most {SEGMENT_ROWS:,} rows; several are one task where they take less than ten "
        "seconds together. Beyond so many workers the scheduler is the bound, however many rows.",
    )


def _told(fit: Fit, cluster: Cluster, workers: int) -> Record:
    told, one = times(fit, cluster, workers), times(fit, cluster, 1)
    speed = one.total / told.total
    return {
        "rows": fit.rows,
        "workers": workers,
        "hours": told.total / 3600,
        "speed_up": speed,
        "efficiency": speed / workers,
        "bound": told.bound,
    }


def _limit(fit: Fit, cluster: Cluster) -> Record:
    together = fit.segments_a_task(0)
    return {
        "segment_seconds": segment_seconds(fit, cluster),
        "together": together,
        "cost": cluster.segment_cost(together),
        "workers": most_workers(fit, cluster),
    }


def widest(report: Report, cluster: Cluster, *, memory_bytes: int) -> None:
    """The largest m for workers and hours."""
    records = []
    for n in ROWS:
        for workers in WORKERS:
            found = {h: largest(n, cluster, workers=workers, hours=h, memory_bytes=memory_bytes) for h in HOURS}
            cells = {f"{h}h": found[h][0] for h in HOURS} | {f"{h}h_bound": found[h][1] for h in HOURS}
            records.append({"rows": n, "workers": workers, **cells})
    hours = [
        column
        for h in HOURS
        for column in (
            Column(f"{h}h", f"{h} h", lambda r, h=h: f"{r[f'{h}h']:,} {_LETTERS[r[f'{h}h_bound']]}"),
            Column(f"{h}h_bound", f"{h} h bound by", hidden=True),
        )
    ]
    report.table(
        "largest",
        f"The largest m, {memory_bytes / 2**30:.3g} GiB a worker",
        Table(
            [Column("rows", "rows", lambda r: short(r["rows"])), Column("workers", "workers", ",d"), *hours], records
        ),
        caption="Landmarks of a fit that ends within the hours, to three digits; one more is too many for the time "
        "(T) or for the memory of a worker (M). 0: not one.",
    )


def short(count: float) -> str:
    """8.1e6 rows as people write them: "8.1 million"."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:g} {name}"
    return f"{count:,.0f}"


def hours_picture(
    cluster: Cluster,
    landmarks: int,
    measured: Fit | None = None,
    points: Sequence[tuple[int, float]] = (),
    *,
    paper: Paper = LIGHT,
) -> bytes:
    """Hours over workers, a line for each number of rows, the ideal dashed, bounds named.

    `measured` is a fit that has a line too, on which `points` (workers, seconds) were measured.
    """
    workers = sorted({round(w) for w in np.geomspace(1, WORKERS[-1], 61)})
    with drawing(6.4, 4.4, paper) as (figure, png):
        ax = figure.subplots()
        least = float("inf")
        for number, fit in enumerate((*((measured,) if measured else ()), *(Fit(n, landmarks) for n in ROWS))):
            colour = COLOURS[number % len(COLOURS)]
            told = [times(fit, cluster, w) for w in workers]
            hours = [one.total / 3600 for one in told]
            least = min(least, *hours)
            ax.plot(workers, [hours[0] / w for w in workers], color=colour, linewidth=1, linestyle=(0, (4, 3)))
            ax.plot(workers, hours, color=colour, linewidth=1.8, label=f"{short(fit.rows)} rows")
            _name_bounds(ax, list(zip(workers, hours, [one.bound for one in told], strict=True)), paper)
        if measured:
            x, seconds = zip(*points, strict=True)
            y, style = np.array(seconds) / 3600, {"color": paper.ink, "markeredgecolor": paper.ground}
            least = min(least, *y)
            ax.plot(x, y, "o", markersize=7, label="measured", zorder=4, **style)
        ax.set_ylim(bottom=least / 3)
        ax.set(xscale="log", yscale="log", xlabel="workers (processes of one task each)", ylabel="hours")
        ax.set_xticks(WORKERS, [f"{tick:,}" for tick in WORKERS])
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        bare(ax, paper)
        ax.grid(axis="y", color=paper.line, linewidth=0.8)
        figure.legend(loc="outside upper left", ncols=4, frameon=False, handlelength=2, columnspacing=1.2)
    return png.getvalue()


def _name_bounds(ax: Any, line: Sequence[tuple[int, float, str]], paper: Paper) -> None:
    """Mark where on a line of (workers, hours, bound) another bound than the workers begins."""
    before = "workers"
    for workers, hours, bound in line:
        if bound != before:
            ax.plot(workers, hours, marker="|", markersize=9, color=paper.ink)
            style = {"color": paper.ink, "fontsize": 8, "ha": "left" if workers < 0.75 * WORKERS[-1] else "right"}
            ax.annotate(bound, (workers, hours), (0, 6), textcoords="offset points", **style)
            before = bound


def assumptions(cluster: Cluster, *, memory_bytes: int, calibration: str, correction: str) -> dict[str, str]:
    """Return the assumptions of the model, for the page."""
    rates = cluster.rates
    return {
        "a worker": f"does what one process of this machine does while all are busy ({calibration})",
        "correction": correction,
        "scheduler": f"{1e3 * cluster.scheduler_seconds:.2f} ms of one processor a segment that has a task of its own, "
        f"{1e3 * cluster.segment_cost(MOST_SEGMENTS):.2f} where sixteen are one, as measured here; segments of at most "
        f"{SEGMENT_ROWS:,} rows, whatever the number of workers",
        "storage": f"{cluster.storage_bytes / 1e9:g} GB/s for all workers together: assumed, not measured; a worker "
        f"decodes {rates.decode / 1e9:.2f} GB/s here; stored rows have {cluster.stored_share:.2f} of their bytes",
        "network": f"{rates.transfer / 1e9:.2f} GB/s between two workers, as on this machine's loopback; pairs do not "
        "share it; landmarks reach twice as many workers every round",
        "merges": "the fixed binary tree: neighbours first and mostly on one worker, then ⌈log₂ W⌉ levels across "
        "workers, each sending and adding m × m float64",
        "memory": f"{memory_bytes / 2**30:.3g} GiB a worker, against the peak that the plan announces; that of the "
        "driver, which solves m × m, is not bounded",
        "left out": "workers that die or differ, waiting for a job queue, other users of network and storage, a run "
        "directory's publishing",
    }
