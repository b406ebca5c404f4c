"""The sections of the report page, from the facts of a run. A section without facts is left out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import bigkernel
from bigkernel.data.visible import log_of
from bigkernel.monitor.format import duration, flops_rate, moment, percent, plainly, rounds_in_words, size
from bigkernel.monitor.report import measured, outcome
from bigkernel.monitor.report.attempts import Attempt
from bigkernel.monitor.report.facts import Facts
from bigkernel.monitor.report.page import MISSING, Column, Page, Table

_log = log_of(__name__)
_MOST_EVENTS = 200
_INCIDENTS = {
    "resume": "taken over",
    "retry": "input/output",
    "worker": "worker lost",
    "repeat": "begun again",
    "damage": "damage",
}


def page_of(facts: Facts) -> Page:
    """The whole page. A section that cannot be made says so and is left out, with one logged warning."""
    page = Page(outcome.name_of(facts), _subtitle(facts))
    sections: tuple[tuple[str, Callable[[Page, Facts], None]], ...] = (
        ("state", _state),
        ("main figures", _tiles),
        ("what came out", outcome.results),
        ("what was run", _what),
        ("plan against measurement", measured.plan),
        ("timeline", measured.timeline),
        ("rate over time", measured.rate),
        ("where the time went", measured.stages),
        ("memory of the workers", measured.memory),
        ("retries and incidents", _incidents),
        ("steps of conjugate gradients", outcome.descent),
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
    count, took = len(facts.attempts), duration(_seconds(facts))
    attempts = f" in {count} attempts" if count > 1 else ""
    done = sum(sweep.segments_done for sweep in facts.sweeps)
    planned = sum(sweep.segments for sweep in facts.sweeps)
    kept = f"{done:,} of {planned:,} segments are kept" if planned else "nothing was finished yet"
    if facts.state == "finished":
        page.state("good", f"Finished{attempts}, after {took} of work.")
    elif facts.state == "running":
        told = facts.attempts[-1] if count and facts.attempts[-1].job["state"] == "running" else None
        since = f" since {moment(told.started)}" if told else ", by a driver that keeps no journal"
        page.state("open", f"Running{since}; {kept}.")
    elif facts.state == "unreadable":
        page.state("bad", "The manifest of a sweep is damaged: it cannot be gone on with.")
    else:
        died = "" if facts.state == "failed" else _last_sign(facts)
        word = "Failed" if facts.state == "failed" else "Interrupted"
        page.state("bad" if word == "Failed" else "open", f"{word}{attempts}, after {took}; {kept}.{died}", facts.error)
        if facts.command:
            page.text("To go on:").command(shlex.join(facts.command))


def _last_sign(facts: Facts) -> str:
    if not facts.attempts or not _lost(facts, facts.attempts[-1]):
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
        tiles.append((duration(_seconds(facts)), "at work, all attempts" if len(facts.attempts) > 1 else "at work"))
    if longest.get("flops_per_second"):
        share = longest["calibrated_flops_per_second"]
        of = f", {percent(longest['flops_per_second'], share)} of the calibrated rate" if share else ""
        tiles.append((flops_rate(longest["flops_per_second"]), f"rate of the longest sweep{of}"))
    if longest.get("peak_bytes"):
        of = f" of {size(longest['announced_bytes'])} announced" if longest["announced_bytes"] else ""
        tiles.append((size(longest["peak_bytes"]), f"highest memory of a worker{of}"))
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
        ("landmark_choice", "chosen by"),
        ("trace_error", "trace error"),
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
            described[name] = plainly(fit[key])
    if fit.get("sums") == "qr":
        described["solved from"] = "a QR factorisation of the rows in place of moments"
    swept = fit.get("sweep")
    if isinstance(swept, Mapping) and swept.get("swept_again"):
        described["swept again"] = plainly(swept["swept_again"])
    if fit.get("rounds"):
        described["rounds of pseudo-labels"] = rounds_in_words(fit["rounds"])
    described["run directory"] = facts.run
    if facts.attempts:
        described["driver"] = f"{_hosts(facts) or MISSING}, process {facts.attempts[-1].job['pid']}"
    threads = facts.outcome.get("driver", {}).get("blas_threads")
    if threads:
        described["BLAS threads of the driver"] = plainly(threads)
    executors = dict.fromkeys(str(part["executor"]) for sweep in facts.sweeps for _, part in sweep.parts)
    workers = {name for sweep in facts.sweeps for name in sweep.workers()}
    if any(executors):
        plural = "es" if len(workers) != 1 else ""
        described["executor"] = f"{', '.join(filter(None, executors))}; {len(workers):,} worker process{plural}"
    page.facts(described)
    if len(facts.attempts) > 1:
        records = [
            {"number": number, **attempt.job, "lost": _lost(facts, attempt), **_work(facts, number - 1)}
            for number, attempt in enumerate(facts.attempts, 1)
        ]
        page.subheading("Attempts").table(Table(_ATTEMPTS, records[-50:]))


def _lost(facts: Facts, attempt: Attempt) -> bool:
    """Tell whether an attempt has no end, and nobody is at it."""
    state, last = attempt.job["state"], attempt is facts.attempts[-1]
    return state == "lost" or (state == "running" and not (facts.state == "running" and last))


def _work(facts: Facts, attempt: int) -> dict[str, int]:
    parts = [part for sweep in facts.sweeps for number, part in sweep.parts if number == attempt]
    return {
        "computed": sum(int(share["segments"]) for part in parts for share in part["workers"].values()),
        "resumed": sum(int(part["segments_resumed"]) for part in parts),
    }


_ATTEMPTS = (
    Column("number", "attempt"),
    Column("started", "begun", lambda r: moment(r["started"]), left=True),
    Column("elapsed_seconds", "lasted", lambda r: duration(r["elapsed_seconds"])),
    Column("state", "ended", lambda r: "driver died" if r["lost"] else str(r["state"]), left=True),
    Column("computed", "segments computed", ","),
    Column("resumed", "taken over", ","),
)


# -- what went wrong, and the fine print -----------------------------------------------------------------------------


def _incidents(page: Page, facts: Facts) -> None:
    records = [
        {**event, "attempt": number}
        for number, attempt in enumerate(facts.attempts, 1)
        for event in attempt.job["events"]
        if event["kind"] in _INCIDENTS
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
            page.heading("Resumes, retries and incidents").text("There were none.")
        return
    page.heading("Resumes, retries and incidents")
    records.sort(key=lambda record: record["time"])
    shown = records[-_MOST_EVENTS:]
    caption = f"The last {len(shown)} of {len(records):,}." if len(records) > len(shown) else ""
    page.table(Table(_EVENTS, shown), caption=caption)


_EVENTS = (
    Column("time", "time", lambda r: moment(r["time"]), left=True),
    Column("attempt", "attempt"),
    Column("kind", "kind", lambda r: _INCIDENTS[r["kind"]], left=True),
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
