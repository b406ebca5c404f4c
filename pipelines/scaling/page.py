"""The page of `python -m pipelines scaling`: its tables. Workers are processes of one task and one BLAS thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bigkernel.monitor.report.page import Column, Table
from pipelines.shared.experiments import Report

Record = dict[str, Any]
TARGET = 1.85  # strong speed-up of two workers on a machine that does nothing else
SEGMENT_TARGET = 1e-3  # seconds of a segment whose rows cost nothing, with the monitor on; and the scheduler's of them


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
