"""The page of `python -m pipelines chaos`: the table of its rounds, their timeline, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.shared.experiments import Report
from pipelines.shared.page import MISSING, Column, Table
from pipelines.shared.pictures import LIGHT, SERIES, WRONG, Paper, bare, drawing

if TYPE_CHECKING:
    from pipelines.chaos.round import Record

_VERDICTS = {True: "yes", False: "NO", None: MISSING}
COLUMNS = [
    Column("name", "round", left=True),
    Column("seconds", "seconds", ".1f"),
    Column("lost_seconds", "lost", "+.1f"),
    Column("kills", "killed"),
    Column("freezes", "frozen"),
    Column("deaths", "drivers"),
    Column("in_flight", "under way"),
    Column("again", "again"),
    Column("identical", "identical", lambda record: _VERDICTS[record["identical"]]),
    Column("segments", "segments", hidden=True),
    Column("longest_frozen_seconds", "longest", hidden=True),
    Column("trouble", "trouble", hidden=True),
]
CAPTION = (
    "Seconds: of the round, and lost against the undisturbed fit. Killed, frozen: workers. Drivers: driver processes "
    "that were ended. Under way: segments that healthy workers were at when their driver died. Again: times that a "
    "segment was begun once more, for whatever reason. Identical: every array of the model has the SHA-256 of the "
    "undisturbed one."
)


def row(record: Record, undisturbed: Record) -> dict[str, Any]:
    """A round as figures of the table."""
    return {
        "name": record.name,
        "seconds": record.seconds,
        "lost_seconds": None if record is undisturbed else record.seconds - undisturbed.seconds,
        "kills": len(record.kills),
        "freezes": len(record.freezes),
        "longest_frozen_seconds": max((end - begin for begin, end in record.freezes), default=None),
        "deaths": sum(ended != "finished" for _, _, ended in record.drivers),
        "segments": record.segments,
        "in_flight": sum(record.in_flight),
        "again": record.again,
        "identical": None if record is undisturbed else record.identical,
        "trouble": record.trouble,
    }


def show(report: Report, records: Sequence[Record], seconds: float) -> None:
    """Print the table and put it, the figures and the timeline on the page; the first record is the undisturbed one."""
    rows = [row(record, records[0]) for record in records]
    disturbed = rows[1:]
    failed = [one for one in rows if one["trouble"]]
    if failed:
        text = f"{len(failed)} of {len(rows)} fits did not keep a promise: "
        text += "; ".join(f"{one['name']}: {one['trouble']}" for one in failed)
    else:
        sums = {key: sum(one[key] for one in disturbed) for key in ("kills", "freezes", "deaths", "in_flight", "again")}
        text = (
            f"All {len(disturbed)} disturbed fits gave the model of the undisturbed one to the last bit, while "
            f"{sums['kills']} workers were killed, {sums['freezes']} frozen and {sums['deaths']} drivers ended, in "
            f"{seconds:.0f} s. Segments were begun again {sums['again']} times, {sums['in_flight']} of them at most "
            f"because a driver died. No finished segment was computed again after a driver's death; no process, lock "
            "or half-written file was left."
        )
    report.page.text(text)
    report.table("rounds", "Rounds", Table(COLUMNS, rows), caption=CAPTION)
    report.say(f"\n{text}")
    for record in records:
        if record.last_lines:
            report.page.text(f"Round {record.name}, the last lines of its driver:", *record.last_lines)
            report.say("\n".join([f"round {record.name}, the last lines of its driver:", *record.last_lines]))
    report.figure(
        "timeline",
        timeline,
        records,
        caption="Each bar is a driver, from its start to its end; between bars the next one starts with --resume. A "
        "worker that is frozen (pale band) is taken for lost after a few seconds and replaced; where its driver dies "
        "first, it stays until it is let go.",
    )


def timeline(records: Sequence[Record], *, paper: Paper = LIGHT) -> bytes:
    """Drivers as bars over seconds, a row a round; kills, freezes and the drivers' ends as marks."""
    with drawing(8.2, 1.35 + 0.5 * len(records), paper) as (figure, png):
        ax = figure.subplots()
        for place, record in enumerate(records):
            for begin, end, _ in record.drivers:
                ax.barh(place, end - begin, left=begin, height=0.3, color=paper.bar, alpha=0.45, linewidth=0)
            for begin, end in record.freezes:
                ax.barh(place, end - begin, left=begin, height=0.62, color=SERIES[1], alpha=0.28, linewidth=0)
        for name, mark, colour, moments in _marks(records, paper):
            x, y = np.array(moments, float).reshape(-1, 2).T
            ax.scatter(x, y, marker=mark, s=34, color=colour, linewidths=1.6, label=name, zorder=3)
        ax.set_yticks(range(len(records)), [record.name for record in records])
        ax.invert_yaxis()
        ax.set(xlabel="seconds since the beginning of the round", ylabel="round")
        ax.set_xlim(0, 1.03 * max(record.seconds for record in records))
        bare(ax, paper)
        figure.legend(loc="outside upper left", ncols=5, frameon=False, handletextpad=0.2, columnspacing=1.4)
    return png.getvalue()


def _marks(records: Sequence[Record], paper: Paper) -> list[tuple[str, str, str, list[tuple[float, float]]]]:
    """(name, marker, colour, places) of each kind of event."""
    ends = [(end, place, how) for place, record in enumerate(records) for _, end, how in record.drivers]
    kills = [(moment, place) for place, record in enumerate(records) for moment in record.kills]
    frozen = [(begin, place) for place, record in enumerate(records) for begin, _ in record.freezes]
    return [
        ("worker frozen", "s", SERIES[1], frozen),
        ("worker killed", "x", WRONG, kills),
        ("driver: SIGKILL", "v", paper.ink, [(end, place) for end, place, how in ends if how == "SIGKILL"]),
        ("driver: SIGTERM", "D", SERIES[3], [(end, place) for end, place, how in ends if how == "SIGTERM"]),
        ("finished", "o", SERIES[2], [(end, place) for end, place, how in ends if how == "finished"]),
    ]
