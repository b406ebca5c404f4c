"""The sections that hold the plan against what was measured: figures, timeline, rate, stages, memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from bigkernel.monitor.format import count, duration, flops, flops_rate, percent, size
from bigkernel.monitor.report import drawings
from bigkernel.monitor.report import timeline as timelines
from bigkernel.monitor.report.facts import Facts, Sweep
from bigkernel.monitor.report.page import MISSING, Column, Page, Table
from bigkernel.monitor.report.timeline import Axis, Bar, short_names

_DETAILED = 4  # sweeps that have tables and stages of their own, the longest

_COMPARED: tuple[tuple[str, str, str, Callable[[Any], str]], ...] = (
    ("rows", "rows", "rows_done", count),
    ("segments", "segments", "segments_done", count),
    ("arithmetic", "planned_flops", "computed_flops", flops),
    ("rows read, decoded", "planned_bytes_read", "bytes_read", size),
    ("highest memory of a worker", "announced_bytes", "peak_bytes", size),
    ("time", "predicted_seconds", "seconds", duration),
    ("rate of all workers", "calibrated_flops_per_second", "flops_per_second", flops_rate),
)
_PLAN = (
    Column("what", "", left=True),
    Column("planned", "planned"),
    Column("measured", "measured"),
    Column("ratio", "of plan"),
)
_SWEEPS = (
    Column("sweep", "sweep", left=True),
    Column("state", "state", left=True),
    Column("rows", "rows", ","),
    Column("segments", "segments", lambda r: f"{r['segments_done']:,} of {r['segments']:,}"),
    Column("seconds", "time", lambda r: duration(r["seconds"])),
    Column("predicted_seconds", "predicted", lambda r: duration(r["predicted_seconds"])),
    Column("flops_per_second", "rate", lambda r: flops_rate(r["flops_per_second"])),
    Column("peak_bytes", "memory", lambda r: size(r["peak_bytes"])),
)


def _detailed(facts: Facts) -> list[Sweep]:
    """The longest sweeps, in their order."""
    longest = sorted(facts.sweeps, key=lambda sweep: -(sweep.figures()["seconds"] or 0.0))[:_DETAILED]
    return [sweep for sweep in facts.sweeps if any(sweep is other for other in longest)]


def plan(page: Page, facts: Facts) -> None:
    """Add the table of planned and measured figures of each sweep."""
    if not facts.sweeps:
        return
    page.heading("Plan against measurement")
    if len(facts.sweeps) > 1:
        page.table(Table(_SWEEPS, [sweep.figures() for sweep in facts.sweeps]))
    known = False
    for sweep in _detailed(facts):
        figures, records = sweep.figures(), []
        for what, planned, measured, show in _COMPARED:
            a, b = figures[planned], figures[measured]
            if a is None and b is None:
                continue
            ratio = MISSING if not a or b is None else percent(b, a)
            records.append({"what": what, "planned": show(a), "measured": show(b), "ratio": ratio})
        known |= figures["calibrated_flops_per_second"] is not None
        if len(facts.sweeps) > 1:
            page.subheading(sweep.name)
        page.table(Table(_PLAN, records))
    note = "Time is predicted at the rate that the machines were calibrated to" if known else ""
    page.text(note + "; both are of the sweep alone, without solves." if note else "")


# -- time ------------------------------------------------------------------------------------------------------------


def _axis(facts: Facts) -> Axis:
    intervals = [(attempt.started, attempt.ended) for attempt in facts.attempts]
    intervals += [
        (receipt.ended - receipt.elapsed, receipt.ended) for sweep in facts.sweeps for _, receipt in sweep.receipts
    ]
    return Axis.over(intervals)


def timeline(page: Page, facts: Facts) -> None:
    """Segments and merges by worker, over time."""
    several = len(facts.sweeps) > 1
    bars = []
    for sweep in facts.sweeps:
        for attempt, receipt in sweep.receipts:
            leaf = receipt.node.startswith("0-")
            name = f"segment {receipt.node[2:]}" if leaf else f"merge {receipt.node}"
            again = leaf and (receipt.starts > 1 or bool(receipt.retries))
            text = f"{sweep.name}: " if several else ""
            text += f"{name}, rows {receipt.start:,} to {receipt.stop:,}, {duration(receipt.elapsed)}"
            text += f", begun {receipt.starts} times" if receipt.starts > 1 else ""
            start = receipt.ended - receipt.elapsed
            bars.append(Bar(start, receipt.ended, receipt.worker, attempt, text, thin=not leaf, again=again))
    if not bars:
        return
    page.heading("Timeline")
    axis = _axis(facts)
    keys = [(number, f"attempt {number + 1}") for number in range(len(facts.attempts))][:7] if facts.attempts else []
    caption = "Segments by worker, merges thinner, over the time at work."
    if any(bar.again for bar in bars):
        caption += " Outlined segments were begun more than once."
    if axis.pauses():
        lengths = ", ".join(duration(seconds) for *_, seconds in axis.pauses()[:6])
        caption += f" Grey bands are pauses of {lengths}."
    drawing = timelines.timeline(bars, axis) + (drawings.legend(keys) if len(keys) > 1 else "")
    page.svg(drawing, caption=caption)


def rate(page: Page, facts: Facts) -> None:
    """Floating-point operations a second, over time."""
    parts = [part for sweep in facts.sweeps for _, part in sweep.parts]
    histories = [(float(part["started"]), part["rate_history"]) for part in parts]
    calibrated = max((float(part["calibrated_flops_per_second"]) for part in parts), default=0.0)
    if sum(len(history) for _, history in histories) < 3:
        return
    drawing = drawings.rate(histories, _axis(facts), calibrated)
    if drawing:
        page.heading("Rate over time").svg(drawing, caption="Floating-point operations a second, all workers together.")


def stages(page: Page, facts: Facts) -> None:
    """Add the seconds of the workers and of the driver by stage."""
    detailed, driver = _detailed(facts), facts.driver_stages
    names = list(dict.fromkeys(chain.from_iterable(sweep.stages() for sweep in detailed))) + list(driver)
    names = list(dict.fromkeys(names))
    if not names:
        return
    page.heading("Where the time went")
    for sweep in detailed:
        drawing = drawings.shares(sweep.stages(), names)
        if drawing:
            page.subheading(sweep.name).svg(drawing, caption="Seconds of all workers together.")
    drawing = drawings.shares(driver, names)
    if drawing:
        page.subheading("driver").svg(drawing, caption="Seconds of the driver between the sweeps.")


def memory(page: Page, facts: Facts) -> None:
    """Highest memory of each worker, against what was announced."""
    peaks: dict[str, int] = {}
    for sweep in facts.sweeps:
        for name, worker in sweep.workers().items():
            peaks[name] = max(peaks.get(name, 0), int(worker["peak_bytes"]))
    announced = max((int(sweep.figures()["announced_bytes"] or 0) for sweep in facts.sweeps), default=0)
    drawing = drawings.memory(peaks, announced, short_names(list(peaks)))
    if drawing:
        caption = "Highest resident memory of each worker process"
        line = f"; the dashed line is the {size(announced)} that the plan announced." if announced else "."
        page.heading("Memory of the workers").svg(drawing, caption=caption + line)
