"""The page of `python -m pipelines scaling`: tables of measurements, and their meaning for large clusters.

Workers are processes of one task each, with one BLAS thread.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.shared.experiments import Report
from pipelines.shared.page import Column, Table

Record = dict[str, Any]
TARGET = 1.85  # strong speed-up of two workers on an idle machine
SEGMENT_ROWS = 65_536  # most rows of a segment


def scaling(report: Report, result: Mapping[str, Any], *, landmarks: int) -> None:
    """Show strong and weak scaling, and the processors' rates when one and two are busy."""
    timings, gemm = result["timings"], result["gemm"]
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
            [{"what": name, **result[key]} for key, name in names.items()],
        ),
        caption=f"Moments of {landmarks:,} landmarks, each sweep on a fresh local cluster, from the first task to the "
        f"merged total; median over the rounds, whose order alternates ({len(timings) // 3} of them).",
    )
    speed = result["strong"]["speed_up"]
    report.tell(
        f"Two workers are {speed:.2f} times as fast as one on the same rows (target {TARGET}: "
        f"{'reached' if speed >= TARGET else 'NOT reached'}). The float32 matrix products of two busy processes "
        f"together are {gemm['speed_up']:.2f} times those of one ({gemm['one'] / 1e9:.0f} GFLOP/s), so that the sweep "
        f"has {100 * result['explained']:.0f} % of the speed-up that the processors had to give."
    )
    Table([Column(key, key) for key in timings[0]], timings).write_csv(report.out / "timings.csv")
    report.results["measured"] = dict(result)


def segments(report: Report, records: Sequence[Record], *, workers: int) -> None:
    """Show the overhead of a segment by process: scheduler, driver and workers."""
    milli = {"seconds": "wall", "scheduler": "scheduler", "driver": "driver", "workers": "workers"}
    yes = {True: "yes", False: "no"}
    columns = [
        Column("task", "segments a task"),
        Column("run", "run", lambda record: yes[record["run"]], left=True),
        *(Column(key, f"{name} ms", lambda r, key=key: f"{1e3 * r[key]:.2f}") for key, name in milli.items()),
        Column("fixed", "fixed s", ".2f"),
    ]
    report.table(
        "segments",
        f"The cost of a segment, {workers} workers",
        Table(columns, records),
        caption="Milliseconds a segment of one row and of a statistic of eight bytes: the slope over several numbers "
        "of segments; fixed: what a sweep costs besides. Wall: by the clock. The others are the processor's time of "
        f"three processes; all {workers} workers share one, and its interpreter, which no cluster does. Run: partial "
        "results are published in a run directory. Short segments share a task.",
    )


def limit(report: Report, result: Mapping[str, Any], cost: float, *, landmarks: int) -> None:
    """Say how many workers the scheduler keeps busy; `cost` is its seconds for a segment that is a task of its own."""
    rows = max(timing["rows"] for timing in result["timings"])
    seconds = result["strong"]["one_seconds"] / rows * SEGMENT_ROWS
    most = seconds / max(cost, 1e-6)
    report.tell(
        f"With {landmarks:,} landmarks a segment of {SEGMENT_ROWS:,} rows takes a worker {seconds:.2f} s, and a task "
        f"of its own {1e3 * cost:.2f} ms of the scheduler, which is the serial part on a cluster: it keeps about "
        f"{most:,.0f} workers busy, however many rows there are."
    )
    report.results["limit"] = {"segment_seconds": seconds, "scheduler_seconds": cost, "workers": most}
