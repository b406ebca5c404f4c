"""The sections of the report page, from the facts of a run. A section without facts is left out."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

import bigkernel
from bigkernel.report import drawings, outcome
from bigkernel.report.facts import Facts, Sweep
from bigkernel.report.page import MISSING, Column, Page, Table
from bigkernel.report.timeline import Axis, Bar, clock, short_names, timeline

_log = logging.getLogger(__name__)
_DETAILED = 4  # sweeps that have tables and stages of their own, the longest
_MOST_EVENTS = 200
_MERGE_AND_SOLVE = "driver"
_MISHAPS = {"retry": "input/output", "worker": "worker lost", "repeat": "begun again", "damage": "damage"}


def page_of(facts: Facts) -> Page:
    """The whole page. A section that cannot be made says so and is left out, with one logged warning."""
    page = Page(os.path.basename(os.path.abspath(facts.run)), _subtitle(facts))
    sections: tuple[tuple[str, Callable[[Page, Facts], None]], ...] = (
        ("state", _state),
        ("main figures", _tiles),
        ("what came out", outcome.results),
        ("what was run", _what),
        ("plan against measurement", _plan),
        ("timeline", _timeline),
        ("rate over time", _rate),
        ("where the time went", _stages),
        ("memory of the workers", _memory),
        ("retries and incidents", _incidents),
        ("certificates of the numbers", outcome.certificates),
        ("settings and versions", _settings),
        ("gaps", _gaps),
    )
    for name, section in sections:
        part = Page("")
        try:
            section(part, facts)
        except Exception as error:
            _log.warning("%s: the section %r of its report is left out (%r)", facts.run, name, error)
            part = Page("").text(f"The section “{name}” could not be made from what the run holds.")
        page.add(part)
    return page


def moment(time: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Local time for people; – where it is no time."""
    try:
        return datetime.fromtimestamp(time).strftime(form)
    except (OverflowError, OSError, ValueError, TypeError):
        return MISSING


def _subtitle(facts: Facts) -> str:
    begun = moment(facts.attempts[0].started, "%d %B %Y, %H:%M") if facts.attempts else ""
    title = str(facts.attempts[-1].job["title"]) if facts.attempts else shlex.join(facts.command)
    words = title.split()[:2]
    return " · ".join(text for text in (" ".join(words), begun, _hosts(facts)) if text)


def _hosts(facts: Facts) -> str:
    return ", ".join(dict.fromkeys(str(attempt.job["host"]) for attempt in facts.attempts if attempt.job["host"]))


def _seconds(facts: Facts) -> float:
    return sum(float(attempt.job["elapsed_seconds"]) for attempt in facts.attempts) or sum(
        float(sweep.figures()["seconds"] or 0) for sweep in facts.sweeps
    )


# -- what became of it -----------------------------------------------------------------------------------------------


def _state(page: Page, facts: Facts) -> None:
    count, took = len(facts.attempts), clock(_seconds(facts))
    attempts = f" in {count} attempts" if count > 1 else ""
    done = sum(sweep.segments_done for sweep in facts.sweeps)
    planned = sum(sweep.segments for sweep in facts.sweeps)
    kept = f"{done:,} of {planned:,} segments are kept" if planned else "nothing was finished yet"
    if facts.state == "finished":
        page.state("good", f"Finished{attempts}, after {took} of work.")
    elif facts.state == "running":
        page.state("open", f"Running since {moment(facts.attempts[-1].started) if count else MISSING}; {kept}.")
    elif facts.state == "unreadable":
        page.state("bad", "The manifest of a sweep is damaged: it cannot be gone on with.")
    else:
        died = "" if facts.error or facts.state == "failed" else _last_sign(facts)
        word = "Failed" if facts.state == "failed" else "Interrupted"
        page.state("bad" if word == "Failed" else "open", f"{word}{attempts}, after {took}; {kept}.{died}", facts.error)
        if facts.command:
            page.text("To go on:").command(shlex.join(facts.command))


def _last_sign(facts: Facts) -> str:
    if not facts.attempts or facts.attempts[-1].job["state"] != "running":
        return ""
    return f" The driver ended without a word; its last was at {moment(facts.attempts[-1].last)}."


def _tiles(page: Page, facts: Facts) -> None:
    tiles = outcome.tiles(facts)
    figures = [sweep.figures() for sweep in facts.sweeps]
    rows = max((each["rows"] for each in figures), default=0)
    if rows:
        tiles.append((f"{rows:,}", "rows"))
    longest = max(figures, key=lambda each: each["seconds"] or 0.0, default={})
    if _seconds(facts):
        tiles.append((clock(_seconds(facts)), "at work, all attempts" if len(facts.attempts) > 1 else "at work"))
    if longest.get("flops_per_second"):
        share = longest["calibrated_flops_per_second"]
        of = f", {longest['flops_per_second'] / share:.0%} of the calibrated rate" if share else ""
        tiles.append((_per_second(longest["flops_per_second"]), f"rate of the longest sweep{of}"))
    if longest.get("peak_bytes"):
        of = f" of {_bytes(longest['announced_bytes'])} announced" if longest["announced_bytes"] else ""
        tiles.append((_bytes(longest["peak_bytes"]), f"highest memory of a worker{of}"))
    page.tiles(tiles)


# -- what was run ----------------------------------------------------------------------------------------------------


def _what(page: Page, facts: Facts) -> None:
    page.heading("What was run")
    command = [word for word in facts.command if word != "--resume"] or []
    if command:
        command[0] = os.path.basename(command[0])
        page.command(shlex.join(command))
    fit = facts.outcome.get("fit", {})
    described: dict[str, Any] = {}
    for key, name in (
        ("estimator", "estimator"),
        ("kernel", "kernel"),
        ("landmarks", "landmarks"),
        ("rank", "rank"),
        ("components", "components"),
        ("alpha", "alpha"),
        ("dtype", "dtype"),
        ("transforms", "transforms"),
        ("seed", "seed"),
        ("corpus", "corpus"),
        ("model", "model"),
        ("rows", "rows"),
        ("labelled_rows", "labelled rows"),
        ("skipped_rows", "bad rows left out"),
    ):
        if fit.get(key) not in (None, [], "", {}) and (key != "skipped_rows" or fit[key]):
            described[name] = _plain(fit[key])
    described["run directory"] = facts.run
    if facts.attempts:
        described["driver"] = f"{_hosts(facts) or MISSING}, process {facts.attempts[-1].job['pid']}"
    executors = dict.fromkeys(str(part["executor"]) for sweep in facts.sweeps for _, part in sweep.parts)
    workers = {name for sweep in facts.sweeps for name in sweep.workers()}
    if any(executors):
        plural = "es" if len(workers) != 1 else ""
        described["executor"] = f"{', '.join(filter(None, executors))}; {len(workers):,} worker process{plural}"
    page.facts(described)
    if len(facts.attempts) > 1:
        records = [
            {"number": number, **attempt.job, "now": attempt.ended, **_work(facts, number - 1)}
            for number, attempt in enumerate(facts.attempts, 1)
        ]
        page.subheading("Attempts").table(Table(_ATTEMPTS, records[-50:]))


def _work(facts: Facts, attempt: int) -> dict[str, int]:
    parts = [part for sweep in facts.sweeps for number, part in sweep.parts if number == attempt]
    return {
        "computed": sum(int(share["segments"]) for part in parts for share in part["workers"].values()),
        "resumed": sum(int(part["segments_resumed"]) for part in parts),
    }


_ATTEMPTS = (
    Column("number", "attempt"),
    Column("started", "begun", lambda r: moment(r["started"]), left=True),
    Column("elapsed_seconds", "lasted", lambda r: clock(r["elapsed_seconds"])),
    Column("state", "ended", lambda r: "driver died" if r["state"] == "running" else str(r["state"]), left=True),
    Column("computed", "segments computed", ","),
    Column("resumed", "taken over", ","),
)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} = {_plain(item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({rest})" if "name" in value else rest
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


# -- plan against measurement ----------------------------------------------------------------------------------------


def _bytes(count: float | None) -> str:
    if not count:
        return MISSING
    unit, size = next(
        ((u, s) for u, s in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= s), ("B", 1)
    )
    return f"{count / size:.0f} {unit}" if count / size >= 100 else f"{count / size:.3g} {unit}"


def _flops(count: float | None) -> str:
    if not count:
        return MISSING
    unit, size = next(((u, s) for u, s in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)) if count >= s), ("", 1.0))
    return f"{count / size:.3g} {unit}FLOP"


def _per_second(rate: float | None) -> str:
    return f"{_flops(rate)}/s" if rate else MISSING


def _count(number: float | None) -> str:
    return MISSING if number is None else f"{number:,.0f}"


def _duration(seconds: float | None) -> str:
    return MISSING if not seconds else drawings.duration(seconds)


_COMPARED: tuple[tuple[str, str, str, Callable[[Any], str]], ...] = (
    ("rows", "rows", "rows_done", _count),
    ("segments", "segments", "segments_done", _count),
    ("arithmetic", "planned_flops", "computed_flops", _flops),
    ("rows read, decoded", "planned_bytes_read", "bytes_read", _bytes),
    ("highest memory of a worker", "announced_bytes", "peak_bytes", _bytes),
    ("time", "predicted_seconds", "seconds", _duration),
    ("rate of all workers", "calibrated_flops_per_second", "flops_per_second", _per_second),
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
    Column("seconds", "time", lambda r: _duration(r["seconds"])),
    Column("predicted_seconds", "predicted", lambda r: _duration(r["predicted_seconds"])),
    Column("flops_per_second", "rate", lambda r: _per_second(r["flops_per_second"])),
    Column("peak_bytes", "memory", lambda r: _bytes(r["peak_bytes"])),
)


def _detailed(facts: Facts) -> list[Sweep]:
    """The longest sweeps, in their order."""
    longest = sorted(facts.sweeps, key=lambda sweep: -(sweep.figures()["seconds"] or 0.0))[:_DETAILED]
    return [sweep for sweep in facts.sweeps if any(sweep is other for other in longest)]


def _plan(page: Page, facts: Facts) -> None:
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
            ratio = MISSING if not a or b is None else f"{100 * b / a:.0f} %"
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


def _timeline(page: Page, facts: Facts) -> None:
    several = len(facts.sweeps) > 1
    bars = []
    for sweep in facts.sweeps:
        for attempt, receipt in sweep.receipts:
            leaf = receipt.node.startswith("0-")
            name = f"segment {receipt.node[2:]}" if leaf else f"merge {receipt.node}"
            again = leaf and (receipt.starts > 1 or bool(receipt.retries))
            text = f"{sweep.name}: " if several else ""
            text += f"{name}, rows {receipt.start:,} to {receipt.stop:,}, {_duration(receipt.elapsed)}"
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
        caption += " Grey bands are pauses of " + ", ".join(clock(seconds) for *_, seconds in axis.pauses()[:6]) + "."
    drawing = timeline(bars, axis) + (drawings.legend(keys) if len(keys) > 1 else "")
    page.svg(drawing, caption=caption)


def _rate(page: Page, facts: Facts) -> None:
    parts = [part for sweep in facts.sweeps for _, part in sweep.parts]
    histories = [(float(part["started"]), part["rate_history"]) for part in parts]
    calibrated = max((float(part["calibrated_flops_per_second"]) for part in parts), default=0.0)
    if sum(len(history) for _, history in histories) < 3:
        return
    drawing = drawings.rate(histories, _axis(facts), calibrated)
    if drawing:
        page.heading("Rate over time").svg(drawing, caption="Floating-point operations a second, all workers together.")


def _stages(page: Page, facts: Facts) -> None:
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
        page.subheading(_MERGE_AND_SOLVE).svg(drawing, caption="Seconds of the driver between the sweeps.")


def _memory(page: Page, facts: Facts) -> None:
    peaks: dict[str, int] = {}
    for sweep in facts.sweeps:
        for name, worker in sweep.workers().items():
            peaks[name] = max(peaks.get(name, 0), int(worker["peak_bytes"]))
    announced = max((int(sweep.figures()["announced_bytes"] or 0) for sweep in facts.sweeps), default=0)
    drawing = drawings.memory(peaks, announced, short_names(list(peaks)))
    if drawing:
        caption = "Highest resident memory of each worker process"
        line = f"; the dashed line is the {_bytes(announced)} that the plan announced." if announced else "."
        page.heading("Memory of the workers").svg(drawing, caption=caption + line)


# -- what went wrong, and the fine print -----------------------------------------------------------------------------


def _incidents(page: Page, facts: Facts) -> None:
    records = [
        {**event, "attempt": number}
        for number, attempt in enumerate(facts.attempts, 1)
        for event in attempt.job["events"]
        if event["kind"] in _MISHAPS
    ]
    told = {(record["kind"], record["text"]) for record in records}
    for sweep in facts.sweeps:
        for number, receipt in sweep.receipts:
            for reason in receipt.retries:
                text = f"{sweep.name}/{receipt.node}: {reason}"
                if facts.attempts and any(reason in each for _, each in told):
                    continue
                records.append({"time": receipt.ended, "kind": "retry", "text": text, "attempt": number + 1})
    if not records:
        if facts.attempts:
            page.heading("Retries and incidents").text("There were none.")
        return
    page.heading("Retries and incidents")
    records.sort(key=lambda record: record["time"])
    shown = records[-_MOST_EVENTS:]
    caption = f"The last {len(shown)} of {len(records):,}." if len(records) > len(shown) else ""
    page.table(Table(_EVENTS, shown), caption=caption)


_EVENTS = (
    Column("time", "time", lambda r: moment(r["time"]), left=True),
    Column("attempt", "attempt"),
    Column("kind", "kind", lambda r: _MISHAPS[r["kind"]], left=True),
    Column("text", "what happened", lambda r: str(r["text"]), left=True, long=True),
)


def _settings(page: Page, facts: Facts) -> None:
    known = [sweep for sweep in facts.sweeps if sweep.settings]
    versions = dict.fromkeys(sweep.settings["versions"] for sweep in known if "versions" in sweep.settings)
    page.heading("Settings and versions")
    page.facts(
        {"versions of the run": "; ".join(versions) or MISSING, "this page": f"bigkernel {bigkernel.__version__}"}
    )
    for sweep in known[:20]:
        settings = {name: value for name, value in sweep.settings.items() if name != "versions"}
        page.folded(f"{sweep.name}: {len(settings)} settings that change its result", settings)


def _gaps(page: Page, facts: Facts) -> None:
    if facts.gaps:
        page.heading("What this page could not read").text(*facts.gaps)
