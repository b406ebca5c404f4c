"""The state of jobs for a terminal: the figures of a bar, and the display of `bigkernel watch`.

Input is plain data of `Board.snapshot` (with `run` of a run directory, if any), output are renderables of rich.
External text is shown literally: no markup, no control characters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bigkernel.data.visible import visible
from bigkernel.html import duration, measured, percent
from bigkernel.monitor.palette import LIGHT

Data = Mapping[str, Any]

_COLOURS = {"finished": LIGHT["good"], "failed": LIGHT["failed"], "lost": LIGHT["failed"]}
_EVENTS, _SWEEPS, _JOBS = 4, 3, 3  # most lines of each kind
_NAME_LETTERS = 24  # most letters of the name of a bar


def done(sweep: Data) -> int:
    """Count the finished segments of a sweep."""
    return int(sweep["segments"]["published"] + sweep["segments"]["merged"])


def figures(sweep: Data) -> list[str]:
    """Describe the progress of a sweep in short texts, the most important first."""
    incidents, left, rate = sweep["incidents"], sweep["remaining_seconds"], sweep["flops_per_second"]
    ended = done(sweep) == len(sweep["stops"])
    merging = f"merging {sweep['merges_done']}/{sweep['merges']}" if sweep["merges_done"] < sweep["merges"] else ""
    counts = ((incidents.get("retry", 0) + incidents.get("repeat", 0), "retries"), (incidents.get("worker", 0), "lost"))
    busy = len(set(sweep["running_on"].values()))
    # rows have the same share of the flops
    rows = rate / max(1e-9, sweep["plan"]["flops"]) * sweep["rows"]
    texts = [
        f"{done(sweep):,}/{len(sweep['stops']):,}",
        merging if ended else _left(left) if left else "",
        *(f"{count:,} {what}" for count, what in counts if count),
        f"{rows:,.0f} rows/s" if rows >= 1 else "",
        measured(rate, "FLOP/s") if rate > 0 else "",
        f"{busy:,} busy" if busy else "",
    ]
    return [text for text in texts if text]


def _left(seconds: Data) -> str:
    low, high = duration(seconds["low"]), duration(seconds["high"])
    return f"{low} left" if low == high else f"{low} to {high} left"


def search_texts(job: Data) -> list[str]:
    """Describe which sweep of a search runs, and the time left; sweeps in another precision are not planned."""
    search = job["search"] or {"count": 0}
    if search["count"] < 2:
        return []
    place = f"sweep {search['begun']:,}" + (f" of {search['count']:,}" if search["begun"] <= search["count"] else "")
    left, what = search["remaining_seconds"], "all" if search["ended"] else "the sweeps"
    return [place, f"{duration(left)} left in {what}"] if left else [place]


def fitted(texts: Sequence[str], room: int) -> str:
    """Join the first texts that fit in so many letters; always at least one."""
    line = texts[0]
    for text in texts[1:]:
        if len(line) + 2 + len(text) > room:
            break
        line += f"  {text}"
    return line


def sentence(job: Data, sweep: Data) -> str:
    """Describe the progress of a sweep for a log, with its place in a search."""
    first, *rest = figures(sweep)
    texts = [f"{visible(sweep['what'])}: {first.replace('/', ' of ')} segments", *rest]
    return ", ".join([*search_texts(job)[:1], *texts, *search_texts(job)[1:]])


def step_sentence(job: Data) -> str:
    """Describe the progress of a driver between sweeps for a log."""
    step = job["step"]
    return ", ".join([f"{visible(step['what'])}: {step['done']:,} of {step['total']:,}", *search_texts(job)])


def ended_job(job: Data) -> Text:
    """Describe how a job has ended."""
    at = time.strftime("%H:%M:%S", time.localtime(job["ended"]))
    text = f" {at} after {duration(job['elapsed_seconds'])}: {visible(job['title'])}"
    error = f": {visible(job['error'])}" if job["error"] else ""
    return Text.assemble((visible(job["state"]), _COLOURS.get(job["state"], "")), text, error)


def run_lines(run: Data) -> Iterator[str]:
    """Describe what a run directory holds beyond its journal, and how to resume it."""
    kept = "no segment is kept yet"
    if run["segments"]:
        of = "" if run["planned"] else " of the sweeps begun"
        kept = f"{run['segments_done']:,} of {run['segments']:,} segments{of} are kept"
    if run["holder"]:
        if not run["known"]:
            yield f"{visible(run['holder'])} is running, without a journal; {kept}"
        return
    if run["died"]:
        yield f"the driver ({visible(run['died'])}) died {duration(run['silent_seconds'])} ago; {kept}"
    elif run["state"] != "finished":
        yield f"no driver is running in {visible(run['path'])}; {kept}"
    elif not run["known"]:
        yield f"{visible(run['path'])} is finished; details are missing, as its last driver kept no journal"
    if run["state"] != "finished" and run["command"]:
        yield f"to resume: {visible(run['command'])}"


def no_job(state: Data) -> str:
    """Return the line shown if no job has begun."""
    place = visible(state.get("address", ""))
    return "no job has started here yet" + (f"; start one with --cluster {place}" if place else "")


def bar(what: str, share: float, texts: Sequence[str], width: int) -> RenderableType:
    """Draw a name, a bar in the remaining space, and texts in one line."""
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=_NAME_LETTERS)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    name = Text(visible(what))
    room = width - min(_NAME_LETTERS, name.cell_len) - 14
    full = ProgressBar(total=1.0, completed=share, style="dim")
    grid.add_row(name, full, Text(fitted(texts, room)))
    return grid


def sweep_bar(job: Data, sweep: Data, width: int) -> RenderableType:
    """Draw the progress of a sweep, or of its search, in one line."""
    rows, texts = sweep["rows_done"] + sweep["rows_under_way"], search_texts(job)
    share = job["search"]["share"] if texts else rows / max(1, sweep["rows"])
    return bar(str(sweep["what"]), share, [*texts, *figures(sweep)], width)


def step_bar(job: Data, width: int) -> RenderableType:
    """Draw the progress of a driver between sweeps in one line."""
    step = job["step"]
    counted = f"{step['done']:,}/{step['total']:,}"
    return bar(str(step["what"]), step["done"] / max(1, step["total"]), [counted, *search_texts(job)], width)


def _sweep(job: Data, sweep: Data, width: int) -> Iterator[RenderableType]:
    yield sweep_bar(job, sweep, width)
    rows = sweep["rows_done"] + sweep["rows_under_way"]
    resumed = f", {len(sweep['resumed']):,} segments resumed from the run" if sweep["resumed"] else ""
    yield Text(f"{rows:,} of {sweep['rows']:,} rows{resumed}")
    stages = sorted(sweep["stage_seconds"].items(), key=lambda item: -item[1])
    total = sum(seconds for _, seconds in stages)
    if total > 0:
        yield Text("stages: " + ", ".join(f"{visible(name)} {percent(value, total)}" for name, value in stages))


def _job(job: Data, width: int) -> Iterator[RenderableType]:
    """Draw a running job: its sweeps, what its driver does, and its latest events."""
    yield Text(visible(job["title"]), style="bold")
    place = f"{job['host']}:{job['pid']}" if job["pid"] else job["host"]
    facts = [f"running for {duration(job['elapsed_seconds'])}", visible(place), visible(job["run"])]
    yield Text(", ".join(filter(None, facts)), style="dim")
    for sweep in [sweep for sweep in job["sweeps"] if sweep["ended"] is not None][-_SWEEPS:]:
        text = sweep["error"] or f"{sweep['rows_done']:,} rows in {duration(sweep['elapsed_seconds'])}"
        yield Text(f"{visible(sweep['what'])}: {visible(sweep['state'])}, {visible(text)}")
    for sweep in job["sweeps"]:
        if sweep["ended"] is None:
            yield from _sweep(job, sweep, width)
    if job["step"]:
        yield step_bar(job, width)
    for event in job["events"][-_EVENTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        yield Text.assemble((f"{at} ", "dim"), visible(" ".join(event["text"].split())))


def picture(state: Data, width: int) -> list[RenderableType]:
    """Draw a state: running jobs, those that ended last, and the run directory."""
    lines: list[RenderableType] = []
    jobs = state["jobs"]
    for job in jobs:
        if job["state"] == "running":
            lines.extend(_job(job, width))
    lines.extend([ended_job(job) for job in jobs if job["state"] != "running"][:_JOBS])
    if not jobs and "run" not in state:
        lines.append(Text(no_job(state)))
    for line in lines:
        if isinstance(line, Text):
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
    if "run" in state:
        lines.extend(Text(line, overflow="fold") for line in run_lines(state["run"]))  # a command is never cut
    return lines
