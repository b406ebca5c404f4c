"""A snapshot of jobs as lines for a terminal: what `bigkernel watch` shows, and the bar of a job's own process.

Pure: plain data of `Board.snapshot` (with `workers` of the scheduler and `run` of a run directory, where there are)
in, lines of rich text out, each at most as wide as asked. Text from outside is shown letter by letter: no markup, no
control characters.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from bigkernel.data.visible import visible
from bigkernel.monitor.format import flops_rate, left_of, percent, quantity, size, spell
from bigkernel.monitor.palette import DARK, LIGHT

Data = Mapping[str, Any]

# by state of a segment: letter of the map, colour; told apart without colours too
_MARKS = {
    "m": ("█", DARK["merged"]),
    "p": ("▓", DARK["published"]),
    "r": ("▒", LIGHT["running"]),
    "a": ("a", LIGHT["retried"]),
    "f": ("x", LIGHT["failed"]),
}
_WAITING = "·"
_NAMES = {"m": "merged", "p": "published", "r": "running", "a": "again", "f": "failed"}
_COLOURS = {
    "finished": LIGHT["c2"],
    "running": DARK["merged"],
    "failed": LIGHT["failed"],
    "lost": LIGHT["failed"],
    "interrupted": LIGHT["running"],
}
_NARROWEST_BAR = 6
_WIDE = 100  # columns from which a line says more
_MAP_LINES = 4
_WORKERS, _EVENTS, _SWEEPS, _JOBS = 5, 4, 3, 3  # most that a picture shows of each
_FRESH_SECONDS = 60.0  # since a receipt: somebody may still be publishing
# what a terminal without these letters gets
_ASCII = str.maketrans("━╸─█▓▒·–…≤", "=>-#+o.-~<")


# -- words -----------------------------------------------------------------------------------------------------------


def left(sweep: Data, *, expected: bool) -> str:
    """The time that a sweep still takes, from its lower to its upper end; empty before anything is known.

    With `expected` the likely time comes first: "80s left (40s–2m40s)".
    """
    found = sweep["left_seconds"]
    if found is None:
        return ""
    between = left_of(found["low"], found["high"])
    if not expected or "–" not in between:
        return between
    return f"{left_of(found['expected'])} ({between.removesuffix(' left')})"


def done(sweep: Data) -> int:
    """Finished segments of a sweep."""
    return int(sweep["segments"]["published"] + sweep["segments"]["merged"])


def merging(sweep: Data) -> str:
    """Say how far the merges are, once they are all that is left; empty before and after."""
    over = done(sweep) < len(sweep["stops"]) or sweep["merges_done"] >= sweep["merges"]
    return "" if over else f"merging {sweep['merges_done']}/{sweep['merges']}"


def _busy(sweep: Data) -> int:
    return len(set(sweep["running_on"].values()))


def _row_rate(sweep: Data) -> float:
    # rows have the same share of the flops
    return float(sweep["flops_per_second"] / max(1e-9, sweep["plan"]["flops"]) * sweep["rows"])


def _troubles(sweep: Data) -> list[str]:
    found = sweep["incidents"]
    counts = (
        (found.get("retry", 0) + found.get("repeat", 0), "retry", "retries"),
        (found.get("worker", 0), "lost", "lost"),
        (found.get("damage", 0), "damaged", "damaged"),
    )
    return [f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count]


def sentence(sweep: Data) -> str:
    """Say for a log how far a sweep is."""
    rate = sweep["flops_per_second"]
    parts = [
        f"{done(sweep):,} of {len(sweep['stops']):,} segments",
        f"{quantity(_row_rate(sweep))} rows/s {flops_rate(rate)}" if rate > 0 else "",
        merging(sweep) or left(sweep, expected=True),
        f"{_busy(sweep):,} busy" if _busy(sweep) else "",
        *_troubles(sweep),
    ]
    return f"{visible(sweep['what'])}: {', '.join(part for part in parts if part)}"


# -- lines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of a line that is left out where it does not fit, those of the highest `rank` first."""

    text: str
    rank: int
    style: str = ""


def bar_line(what: str, fraction: float | None, parts: Sequence[Part], width: int) -> Text:
    """A name, a bar that takes the place that is left, and parts: one line of exactly `width` columns.

    `fraction` of the bar is full; None: nobody knows how much.
    """
    name = Text(visible(what))
    name.truncate(max(8, width // 4), overflow="ellipsis")
    shown = [part for part in parts if part.text]
    room = width - name.cell_len - _NARROWEST_BAR

    def taken(gap: int) -> int:
        return gap + sum(len(part.text) + gap for part in shown)

    gap = 2 if taken(2) <= room else 1
    while shown and taken(gap) > room:
        shown.remove(max(shown, key=lambda part: part.rank))
    cells = max(1, width - name.cell_len - taken(gap))
    halves = round(2 * cells * min(1.0, max(0.0, fraction or 0.0)))
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    line = Text.assemble(name, " " * gap, (full, _MARKS["m"][1]), ("─" * (cells - len(full)), "dim"), no_wrap=True)
    for part in shown:
        line.append(" " * gap).append(part.text, part.style or None)
    return line


def sweep_line(sweep: Data, width: int) -> Text:
    """Draw how far a running sweep is, in one line."""
    rows = sweep["rows_done"] + sweep["rows_under_way"]
    busy, known = _busy(sweep), sweep["flops_per_second"] > 0
    parts = [
        Part(f"{done(sweep)}/{len(sweep['stops'])}", 0),
        Part(merging(sweep), 1),
        Part(f"{quantity(_row_rate(sweep))} rows/s" if known else "", 3, "dim"),
        Part(flops_rate(sweep["flops_per_second"]) if known else "", 4, "dim"),
        Part("" if merging(sweep) else left(sweep, expected=width >= _WIDE), 1),
        Part(f"{busy:,} busy" if busy else "", 5, "dim"),
        *(Part(trouble, 2, _MARKS["f"][1]) for trouble in _troubles(sweep)),
        Part(f"after {spell(sweep['elapsed_seconds'])}", 6, "dim"),
    ]
    return bar_line(str(sweep["what"]), rows / max(1, sweep["rows"]), parts, width)


def segment_map(states: str, width: int, lines: int = _MAP_LINES) -> tuple[list[Text], int]:
    """The states of all segments as at most `lines` lines of letters, and how many segments a letter stands for.

    A letter shows the worst of its segments: failed, begun again, then running; █ only if all are merged.
    """
    each = max(1, -(-len(states) // (width * lines)))
    letters = [_letter(states[i : i + each]) for i in range(0, len(states), each)]
    rows = [
        Text.assemble(*((mark, style) for mark, style in letters[i : i + width]), no_wrap=True)
        for i in range(0, len(letters), width)
    ]
    return rows, each


def _letter(group: str) -> tuple[str, str]:
    for state in ("f", "a", "r"):
        if state in group:
            return _MARKS[state]
    if set(group) <= {"m", "p"}:
        return _MARKS["m" if set(group) == {"m"} else "p"]
    return (_WAITING, "dim") if set(group) == {"w"} else _MARKS["r"]


def _legend(states: str, each: int) -> Text:
    there = [Text.assemble(_MARKS[state], f" {name}") for state, name in _NAMES.items() if state in states]
    if "w" in states:
        there.append(Text.assemble((_WAITING, "dim"), " waiting"))
    if each > 1:
        there.append(Text(f"{each} per cell"))
    return Text("  ").join(there)


def segments_lines(sweep: Data, width: int) -> Iterator[Text]:
    """The map of a sweep's segments, and what its letters mean."""
    rows, each = segment_map(sweep["states"], width)
    yield from rows
    yield _legend(sweep["states"], each)


def workers_lines(sweep: Data, workers: Data, width: int) -> Iterator[Text]:
    """The workers of a sweep with the most memory against the planned peak."""
    found: dict[str, Data] = sweep["workers"]
    if not found:
        return
    planned, columns = sweep["announced_bytes"], ("segments", "peak", "of plan", "now", "of limit")
    place = max(12, width - 2 - 10 * len(columns))
    head = f"planned peak {size(planned)}" if planned else "worker"
    yield Text(f"{head:<{place}}" + "".join(f"{column:>10}" for column in columns), style="dim")
    for name in sorted(found, key=lambda name: (-found[name]["peak_bytes"], found[name]["lost"], name))[:_WORKERS]:
        share, now = found[name], workers.get(name, {})
        cells = [
            f"{share['segments']:,}",
            size(share["peak_bytes"]) if share["peak_bytes"] else "–",
            percent(share["peak_bytes"], planned) if share["peak_bytes"] else "–",
            size(now["memory_bytes"]) if now else "–",
            percent(now["memory_bytes"], now["limit_bytes"]) if now else "–",
        ]
        state = str(now["status"]) if now else "lost" if share["lost"] else "running"
        line = Text(visible(name if state == "running" else f"{state} {name}"))
        line.truncate(place - 1, overflow="ellipsis")
        line.pad_right(place - line.cell_len)
        line.append("".join(f"{cell:>10}" for cell in cells))
        over = planned and share["peak_bytes"] > planned
        line.stylize(_MARKS["f"][1] if over or share["lost"] else "")
        yield line
    if len(found) > _WORKERS:
        lost = sum(share["lost"] for share in found.values())
        yield Text(
            f"{len(found) - _WORKERS:,} more with lower peaks{f'; {lost:,} of all were lost' if lost else ''}",
            style="dim",
        )


def _sweep_lines(sweep: Data, workers: Data, width: int) -> Iterator[Text]:
    yield sweep_line(sweep, width)
    calibrated, rate = sweep["calibrated_flops_per_second"], sweep["flops_per_second"]
    rows = sweep["rows_done"] + sweep["rows_under_way"]
    facts = [f"{percent(rate, calibrated)} of calibrated {flops_rate(calibrated)}"] if calibrated else []
    facts.append(f"{quantity(rows)} of {quantity(sweep['rows'])} rows")
    if sweep["segments_resumed"]:
        facts.append(f"{sweep['segments_resumed']:,} segments resumed")
    yield Text(" · ".join(facts))
    yield from segments_lines(sweep, width)
    stages = sorted(sweep["stage_seconds"].items(), key=lambda item: -item[1])
    total = sum(seconds for _, seconds in stages)
    if total > 0:
        yield Text("stages: " + ", ".join(f"{visible(name)} {percent(value, total)}" for name, value in stages))
    yield from workers_lines(sweep, workers, width)


def _ended_line(sweep: Data) -> Text:
    words = sweep["error"] or f"{sweep['rows']:,} rows in {spell(sweep['elapsed_seconds'])}"
    return Text.assemble((visible(sweep["what"]), "bold"), f"  {visible(sweep['state'])}: {visible(words)}")


def job_lines(job: Data, workers: Data, width: int) -> Iterator[Text]:
    """A running job: its sweeps, what its driver does, and what happened last."""
    place = f"{job['host']}:{job['pid']}" if job["pid"] else job["host"]
    yield Text(visible(job["title"]), style="bold")
    about = [f"running for {spell(job['elapsed_seconds'])}", visible(place), visible(job["run"])]
    yield Text("  " + " · ".join(filter(None, about)), style="dim")
    ended = [sweep for sweep in job["sweeps"] if sweep["ended"] is not None]
    if len(ended) > _SWEEPS:
        yield Text(f"  {len(ended) - _SWEEPS:,} sweeps before", style="dim")
    inner: list[Text] = [_ended_line(sweep) for sweep in ended[-_SWEEPS:]]
    for sweep in job["sweeps"]:
        if sweep["ended"] is None:
            inner.extend(_sweep_lines(sweep, workers, width - 2))
    if job["step"]:
        step = job["step"]
        counted = Part(f"{step['done']:,}/{step['total']:,}", 0)
        inner.append(bar_line(str(step["what"]), step["done"] / max(1, step["total"]), [counted], width - 2))
    for event in job["events"][-_EVENTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        inner.append(Text.assemble((f"{at} ", "dim"), visible(event["text"])))
    for line in inner:
        yield Text.assemble("  ", line)


def ended_job_line(job: Data) -> Text:
    """A job that has ended."""
    at = time.strftime("%H:%M:%S", time.localtime(job["ended"]))
    words = f" {at} after {spell(job['elapsed_seconds'])}: {visible(job['title'])}"
    error = f": {visible(job['error'])}" if job["error"] else ""
    return Text.assemble((visible(job["state"]), _COLOURS.get(job["state"], "")), words, error)


def run_lines(run: Data) -> Iterator[Text]:
    """Describe what a run directory holds beyond its journal; the command to go on with is never cut."""
    if "segments" not in run:
        return  # its driver is at work, and its journal tells
    kept = "nothing is kept yet"
    if run["segments"]:
        kept = f"{run['segments_done']:,} of {run['segments']:,} segments are kept"
    if run["holder"]:
        yield Text(f"{visible(run['holder'])} is at work, without a journal; {kept}")
        return
    if run["died"]:
        yield Text(f"the driver ({visible(run['died'])}) died {spell(run['silent_seconds'])} ago; {kept}", style="bold")
    elif run["unfinished"]:
        yield Text(f"no driver is at work in {visible(run['path'])}; {kept}")
    elif not run["told"]:
        without = "its last driver kept no journal" if run["journal"] else "it has no journal"
        yield Text(f"{visible(run['path'])} is finished; {without}, which would tell more")
    if run["died"] and run["on_workers"]:
        age = run["receipt_seconds"] if run["segments_done"] else None
        if age is not None and age < _FRESH_SECONDS:
            yield Text(f"the newest is {spell(age)} old: workers may still be publishing")
        elif run["silent_seconds"] < _FRESH_SECONDS:
            yield Text("workers may still be publishing")
    if run["unfinished"] and run["command"]:
        again = [] if "--resume" in run["command"] else ["--resume"]
        yield Text(f"to go on: {visible(shlex.join([*run['command'], *again]))}", overflow="fold", no_wrap=False)


def no_job(state: Data) -> str:
    """Return the line that is shown where no job has begun; a state of a scheduler has its `address`."""
    if state.get("starting"):
        return f"starting {state['starting']} workers …"
    place = visible(state.get("address", ""))
    return f"no job has begun here yet; start one with --cluster {place}" if place else "no job has begun here yet"


def picture(state: Data, width: int) -> list[Text]:
    """All lines for a state: running jobs, those that ended last, and the run directory."""
    lines: list[Text] = []
    jobs = state["jobs"]
    for job in jobs:
        if job["state"] == "running":
            lines.extend(job_lines(job, state.get("workers", {}), width))
    ended = [job for job in jobs if job["state"] != "running"]
    lines.extend(ended_job_line(job) for job in ended[:_JOBS])
    if not jobs and "run" not in state:
        lines.append(Text(no_job(state)))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    if state.get("run"):
        lines.extend(run_lines(state["run"]))
    return lines


def ascii_letters(text: Text) -> Text:
    """The same line for a terminal that knows ASCII only."""
    plain = text.plain.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return Text(plain, spans=text.spans, no_wrap=text.no_wrap, overflow=text.overflow)
