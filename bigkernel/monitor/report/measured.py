"""The sections that hold the plan against what was measured: figures, timeline, rate, stages, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bigkernel.monitor.format import count, duration, flops, flops_rate, size
from bigkernel.monitor.report import drawings
from bigkernel.monitor.report import timeline as timelines
from bigkernel.monitor.report.facts import Facts, Sweep
from bigkernel.monitor.report.page import Column, Page, Table
from bigkernel.monitor.report.timeline import Axis, Bar, short_names

_DETAILED = 4  # sweeps whose stages are drawn, the longest

_Figures = Mapping[str, Any]
_EXACT, _RATE = (0.995, 1.005), (0.8, 1.25)  # of plan: what is counted, and what depends on the machine
_MEMORY = (0.0, 1.0)


def _compared(
    planned: str, measured: str, header: str, show: Callable[[Any], str], within: tuple[float, float]
) -> Column:
    """A column of what was measured, with what was planned below where the two differ; marked where it is not within.

    `within` are the least and the largest share of the plan.
    """

    def share(record: _Figures) -> float | None:
        if not record[planned] or record[measured] is None or record["state"] != "finished":
            return None
        return float(record[measured] / record[planned])

    def note(record: _Figures) -> str:
        told = show(record[planned]) if record[planned] else ""
        return f"of {told}" if told and told != show(record[measured]) else ""

    def marked(record: _Figures) -> bool:
        found = share(record)
        return found is not None and not within[0] <= found <= within[1]

    return Column(measured, header, lambda record: show(record[measured]), note=note, marked=marked)


_PLAN = (
    Column("sweep", "sweep", left=True),
    Column("state", "state", left=True),
    _compared("rows", "rows_done", "rows", count, _EXACT),
    _compared("segments", "segments_done", "segments", count, _EXACT),
    _compared("planned_flops", "computed_flops", "arithmetic", flops, _EXACT),
    _compared("planned_bytes_read", "bytes_read", "rows read", size, _EXACT),
    _compared("announced_bytes", "peak_bytes", "memory", size, _MEMORY),
    _compared("predicted_seconds", "seconds", "time", duration, _RATE),
    _compared("calibrated_flops_per_second", "flops_per_second", "rate", flops_rate, _RATE),
)


def _detailed(facts: Facts) -> list[Sweep]:
    """The longest sweeps, in their order."""
    longest = sorted(facts.sweeps, key=lambda sweep: -(sweep.figures()["seconds"] or 0.0))[:_DETAILED]
    return [sweep for sweep in facts.sweeps if any(sweep is other for other in longest)]


def plan(page: Page, facts: Facts) -> None:
    """Add the table of what was planned and measured, a line a sweep."""
    if not facts.sweeps:
        return
    figures = [sweep.figures() for sweep in facts.sweeps]
    # what nobody knows, or what is the same of every sweep, needs no column
    known = [column for column in _PLAN if any(record[column.key] is not None for record in figures)]
    finished = all(record["state"] == "finished" for record in figures)
    told = [column for column in known if column.key != "state" or not finished]
    caption = (
        "What was measured, and what was planned where that is another figure. Memory is the highest of a worker "
        "process, rows read are decoded. Highlighted: more memory than announced, other counts than planned"
    )
    if any(record["calibrated_flops_per_second"] for record in figures):
        caption += (
            ", a time or rate that is off by more than a quarter. Time is planned at the rate that the machines were "
            "calibrated to; both are of the sweep alone, without solves"
        )
    page.heading("Plan against measurement").table(Table(told, figures), caption=f"{caption}.")


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
    workers, driver = "Seconds of all workers together.", "Seconds of the driver between the sweeps."
    parts = [(sweep.name, drawings.shares(sweep.stages()), workers) for sweep in _detailed(facts)]
    shown = [part for part in [*parts, ("driver", drawings.shares(facts.driver_stages), driver)] if part[1]]
    if shown:
        page.heading("Where the time went")
    for name, drawing, caption in shown:
        page.subheading(name).svg(drawing, caption=caption)


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
