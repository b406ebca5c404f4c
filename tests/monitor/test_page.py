"""The page without a browser: what it sends, what it says, how long it takes, and what becomes of a part that fails."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from bigkernel.monitor.dashboard.page import Page
from bigkernel.monitor.dashboard.page_facts import chosen, detail_facts, jobs_facts, rate, title
from bigkernel.monitor.dashboard.page_figures import Memory, Rate, Stages
from bigkernel.monitor.dashboard.page_map import RowMap
from bokeh.document import Document
from bokeh.document.events import ColumnDataChangedEvent, ColumnsPatchedEvent
from bokeh.protocol import Protocol
from simulated import messages

from bigkernel.events.board import Board
from bigkernel.monitor.dashboard import page as page_module

SECONDS_AN_UPDATE = 0.05
ROWS = 65_536


class Simulated:
    """The state of a scheduler whose job goes on message by message."""

    def __init__(self, segments: int = 2000, workers: int = 100, **options: Any) -> None:
        self.board = Board()
        self._messages = iter(sorted(messages(segments, workers, **options), key=lambda pair: pair[1]))
        self.now = 0.0

    def go_on(self, count: int | None = None) -> int:
        """Apply `count` messages, or all that are left; how many there were."""
        done = 0
        for message, now in self._messages:
            self.now = now
            self.board.apply(message, now)
            done += 1
            if done == count:
                break
        return done

    def __call__(self) -> dict[str, Any]:
        state = self.board.snapshot(self.now)
        shares = state["jobs"][0]["sweeps"][0]["workers"] if state["jobs"] and state["jobs"][0]["sweeps"] else {}
        memory = {"memory_bytes": 4 * 10**8, "limit_bytes": 2 * 2**30, "status": "running"}
        return {**state, "workers": {name: {"name": name, **memory} for name in shares}}


class Sent:
    """Hears what a document would send to the browser."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def _document_patched(self, event: Any) -> None:
        self.events.append(event)

    def messages(self) -> list[str]:
        """The texts that a server would send."""
        return [Protocol().create("PATCH-DOC", [event]).content_json for event in self.events]


def opened(read: Any) -> tuple[Page, Sent]:
    """An open page, and what it sends from now on."""
    page, document, sent = Page(read, "tcp://127.0.0.1:8786"), Document(), Sent()
    page.update()
    page.attach(document, {})
    document.on_change_dispatch_to(sent)
    return page, sent


def shown(segments: int, workers: int, **options: Any) -> tuple[Simulated, Page]:
    """A job whose messages have all come, and its page."""
    simulated = Simulated(segments, workers, **options)
    simulated.go_on()
    return simulated, opened(simulated)[0]


def part(page: Page, kind: type) -> Any:
    """The drawing of this kind."""
    return next(found for found in page.parts if isinstance(found, kind))


def facts(page: Page, name: str) -> Any:
    """What the browser was told about this part."""
    return next(found for found in [*page.parts, page._failures] if found.name == name).carrier.tags[0]


def sweep_of(simulated: Simulated) -> dict[str, Any]:
    """The snapshot of the sweep that is shown."""
    return simulated()["jobs"][0]["sweeps"][0]


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_the_card_of_a_job_says_what_the_snapshot_says():
    simulated, page = shown(40, 4)
    sweep, card = sweep_of(simulated), facts(page, "jobs")["cards"][0]
    done = 20 * ROWS + sweep["rows_under_way"]
    assert sweep["rows_under_way"] > 0
    assert card["sentence"] == card["rows"] == f"moments: {done:,} of {40 * ROWS:,} rows"
    assert card["shares"] == pytest.approx(
        {
            "merged": sweep["segments"]["merged"] / 40,
            "published": sweep["segments"]["published"] / 40,
            "running": sweep["rows_under_way"] / (40 * ROWS),
        }
    )
    assert card["merged"] == f"{sweep['segments']['merged'] * ROWS:,} merged"
    assert card["percent"] == f"{100 * done / (40 * ROWS):.0f} %"
    assert card["title"] == "fit simulated"
    assert re.fullmatch(r"[\d,]+ GFLOP/s, \d+ % of the calibrated 380 GFLOP/s", card["rate"])
    assert card["left"].startswith("about ")
    detail = facts(page, "detail")
    assert detail["counts"] == {**sweep["segments"], "resumed": sweep["segments_resumed"]}
    assert detail["merges"]["text"] == f"{sweep['merges_done']} of 39 merges"
    assert detail["memory"] == {"announced": "630 MB", "limit": "2.15 GB"}


def test_a_card_says_what_its_job_waits_for_and_gives_no_time_left_to_merges():
    told, seen = messages(4, 2, finished=True), []
    board = Board()
    for message, now in told:
        board.apply(message, now)
        state = {**board.snapshot(now), "workers": {}}
        card, shown_sweep = jobs_facts(state, (), "")["cards"][0], chosen(state, ())[1]
        if not seen or seen[-1] != card["sentence"]:
            seen.append(card["sentence"])
        if card["sentence"].startswith("moments: all rows done"):
            assert (card["left"], card["percent"]) == ("", "100 %")
        if card["sentence"] == "moments: waiting for the first segment":
            assert (
                detail_facts(state, state["jobs"][0], shown_sweep)["rate"]["measured"]
                == "waiting for the first segment"
            )
            assert card["rate"] == ""
    assert seen[:2] == ["waiting for the first sweep", "moments: waiting for the first segment"]
    assert "moments: all rows done, 2 of 3 merges" in seen
    assert re.fullmatch(r"finished after \d+ s", seen[-1])
    assert seen[-2] == "moments: finished; the driver goes on"


def test_the_bar_shows_what_the_driver_does_between_sweeps():
    board = Board()
    for message, now in messages(4, 2, finished=True):
        board.apply(message, now)
    (job,) = board.jobs.values()
    job.state = "running"
    board.apply({"kind": "step", "job": job.id, "what": "normal matrix", "done": 30, "total": 120}, now)
    state = {**board.snapshot(now), "workers": {}}
    card = jobs_facts(state, (), "")["cards"][0]
    assert (card["sentence"], card["percent"], card["rate"]) == ("normal matrix: 30 of 120", "25 %", "")
    assert card["shares"] == {"merged": 0.0, "published": 0.0, "running": 0.25}
    assert title(*chosen(state, ())).startswith("25 % · ")


def test_the_map_has_a_cell_of_the_right_state_for_every_segment():
    simulated, page = shown(200, 10)
    cells, sweep = part(page, RowMap)._cells.data, sweep_of(simulated)
    counts = {name: list(cells["state"]).count(name) for name in sweep["segments"]}
    assert counts == sweep["segments"]
    assert counts["running"] == 10
    assert counts["merged"] + counts["published"] == 100
    assert cells["rows"][3] == f"{3 * ROWS:,} to {4 * ROWS:,}"
    assert cells["worker"][150] == ""
    assert cells["worker"][90].startswith("tcp://10.0.0.")
    assert cells["attempts"][50] == 2
    assert len(part(page, RowMap)._resumed.data["x"]) == 20


def test_a_running_cell_is_filled_as_far_as_its_segment_is():
    simulated, page = shown(200, 10)
    fills, cells = part(page, RowMap)._parts.data, part(page, RowMap)._cells.data
    fractions = sweep_of(simulated)["fractions"]
    assert len(fills["left"]) == len(fractions) == 10
    for k, (index, share) in enumerate(fractions.items()):
        whole = cells["right"][int(index)] - cells["left"][int(index)]
        assert fills["left"][k] == cells["left"][int(index)]
        assert fills["right"][k] - fills["left"][k] == pytest.approx(share * whole)


@pytest.mark.parametrize("segments", [1, 4, 7, 100, 999])
def test_the_cells_fill_a_grid_that_is_wider_than_high_and_do_not_overlap(segments):
    _, page = shown(segments, 2, finished=True)
    drawn = part(page, RowMap)
    cells = drawn._cells.data
    places = {(int(left), int(top)) for left, top in zip(cells["left"], cells["top"], strict=True)}
    columns, lines = drawn.root.x_range.end, drawn.root.y_range.start
    assert len(places) == segments
    assert columns * (lines - 1) < segments <= columns * lines
    assert columns >= lines
    assert 30 <= drawn.root.height <= 260
    assert drawn.root.height / lines >= 10


def test_a_sweep_without_rows_is_an_empty_map():
    simulated = Simulated(1, 1, finished=True)
    for message, now in messages(1, 1, finished=True):
        if message["kind"] == "sweep_started":
            message = {**message, "stops": [], "plan": {**message["plan"], "rows": 0, "flops": 0.0}}
        simulated.board.apply(message, now)
    page, _ = opened(simulated)
    assert facts(page, "failed") == []
    assert facts(page, "jobs")["cards"][0]["rows"] == "moments: 0 of 0 rows"
    assert facts(page, "detail")["merges"]["text"] == "nothing to merge"
    assert {len(column) for column in part(page, RowMap)._cells.data.values()} == {0}


def test_rate_stages_and_memory_are_those_of_the_snapshot():
    simulated, page = shown(40, 4, finished=True)
    sweep, job = sweep_of(simulated), simulated()["jobs"][0]
    history = part(page, Rate)._source.data
    assert [1e9 * rate for rate in history["rate"][1::2]] == pytest.approx([rate for _, rate in sweep["rate_history"]])
    assert history["rate"][::2] == history["rate"][1::2]
    assert history["time"][1::2] == [at for at, _ in sweep["rate_history"]]
    assert history["time"][2::2] == history["time"][1:-1:2]
    assert part(page, Rate)._calibrated.location == 380
    bars = part(page, Stages)._source.data
    told = dict(zip(bars["stage"], bars["seconds"], strict=True))
    assert told["solve"] == job["stage_seconds"]["solve"] == 1.5
    assert told["merge"] == 12
    per = {"time (s)": 1, "time (min)": 60, "time (h)": 3600}[part(page, Stages).root.xaxis.axis_label]
    assert {stage: told[stage] * per for stage in sweep["stage_seconds"] if stage in told} == pytest.approx(
        {**sweep["stage_seconds"]}
    )
    memory = part(page, Memory)
    assert list(memory._source.data["now"]) == [0.4] * 4
    assert list(memory._source.data["peak"]) == [0.55] * 4
    assert memory._announced.location == 0.63
    assert memory._limit.location == pytest.approx(2.147, abs=0.001)
    assert memory.root.y_range.end > memory._limit.location


def test_the_rate_of_a_long_sweep_is_drawn_from_its_start():
    simulated, page = shown(400, 1, finished=True)
    last = sweep_of(simulated)["rate_history"][-1][0] / 60
    drawn = part(page, Rate)
    assert (drawn._source.data["time"][0], drawn._source.data["time"][-1]) == (0, last)
    assert (drawn.root.x_range.start, drawn.root.x_range.end) == (0, last)
    assert drawn.root.xaxis.axis_label == "since the start of the sweep (min)"


def test_the_newest_event_is_first_and_text_is_carried_as_it_came():
    simulated = Simulated(4, 2)
    simulated.go_on()
    hostile = "<img src=x onerror=alert(1)>"
    simulated.board.apply({"kind": "note", "job": "simulated", "text": hostile}, simulated.now)
    page, _ = opened(simulated)
    assert facts(page, "log")[0] == [simulated.now, "note", hostile]


def test_the_script_makes_no_markup_of_any_text():
    script = (Path(page_module.__file__).parent / "page.js").read_text()
    assert "textContent" in script
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)


# -- which job -------------------------------------------------------------------------------------------------------


def jobs_of(*states: tuple[str, str]) -> dict[str, Any]:
    """A state with jobs of these names and states, each with two sweeps."""
    sweeps = [{"token": "one", "state": "finished"}, {"token": "two", "state": "finished"}]
    return {"jobs": [{"id": name, "state": state, "sweeps": sweeps} for name, state in states]}


def test_the_newest_running_job_is_shown_until_another_is_chosen():
    state = jobs_of(("new", "running"), ("old", "running"), ("past", "finished"))
    names = [(chosen(state, wanted)[0]["id"], chosen(state, wanted)[1]["token"]) for wanted in ([], ["past"], ["x"])]
    assert names == [("new", "two"), ("past", "two"), ("new", "two")]
    assert chosen(state, ["old", "one"])[1]["token"] == "one"
    assert chosen({"jobs": []}, ["gone"]) == (None, None)


def test_choosing_an_ended_job_shows_its_sweep_and_following_goes_back():
    simulated = Simulated(30, 2, job="past", finished=True)
    simulated.go_on()
    for message, now in messages(50, 2, job="present"):
        simulated.board.apply(message, now)
    page, _ = opened(simulated)
    assert facts(page, "jobs")["job"] == "present"
    assert len(part(page, RowMap)._cells.data["state"]) == 50
    page._choice.tags = ["past"]
    assert facts(page, "jobs")["job"] == "past"
    assert not facts(page, "jobs")["followed"]
    assert set(part(page, RowMap)._cells.data["state"]) == {"merged"}
    assert len(part(page, RowMap)._cells.data["state"]) == 30
    page._choice.tags = []
    assert facts(page, "jobs")["job"] == "present"


def test_a_scheduler_without_jobs_is_shown_as_such():
    page, _ = opened(Simulated())
    assert facts(page, "jobs")["cards"] == []
    assert facts(page, "jobs")["address"] == "tcp://127.0.0.1:8786"
    assert facts(page, "detail") == {"sweep": ""}
    assert facts(page, "failed") == []


# -- what is sent ----------------------------------------------------------------------------------------------------


def test_only_the_cells_that_changed_are_sent():
    simulated = Simulated()
    simulated.go_on(2500)
    page, sent = opened(simulated)
    before = list(sweep_of(simulated)["states"])
    simulated.go_on(40)
    page.update()
    after = list(sweep_of(simulated)["states"])
    changed = {i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
    cells = part(page, RowMap)._cells
    patches = [
        event.patches for event in sent.events if isinstance(event, ColumnsPatchedEvent) and event.model is cells
    ]
    assert len(patches) == 1
    assert {i for i, _ in patches[0]["state"]} == changed
    assert 0 < len(changed) <= 40
    assert not [event for event in sent.events if isinstance(event, ColumnDataChangedEvent) and event.model is cells]


def test_nothing_is_sent_when_nothing_has_changed():
    simulated = Simulated(100, 4, finished=True)
    simulated.go_on()
    page, sent = opened(simulated)
    page.update()
    assert sent.events == []


@pytest.mark.slow
def test_an_update_with_2000_segments_and_100_workers_takes_the_scheduler_less_than_50_ms(capsys):
    simulated = Simulated()
    simulated.go_on(1500)
    page, sent = opened(simulated)
    seconds, sizes = [], []
    while simulated.go_on(60) == 60:
        sent.events.clear()
        start = time.thread_time()
        page.update()
        sizes.append(sum(map(len, sent.messages())))
        seconds.append(time.thread_time() - start)
    seconds.sort()
    median, worst = seconds[len(seconds) // 2], seconds[-1]
    with capsys.disabled():
        times = f"{1e3 * median:.1f} ms in the median, {1e3 * worst:.1f} ms at most"
        print(f"\n{len(seconds)} updates: {times}, {sum(sizes) / len(sizes) / 1e3:.1f} kB sent each")
    assert len(seconds) > 20
    assert 1000 < sum(sizes) / len(sizes) < 60_000
    assert median < SECONDS_AN_UPDATE


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_part_that_fails_is_named_and_logged_once_while_the_others_go_on(caplog, monkeypatch):
    simulated = Simulated(40, 4)
    simulated.go_on(60)
    page, _ = opened(simulated)

    def broken(*args):
        raise ZeroDivisionError("a drawing without figures")

    monkeypatch.setattr(part(page, Rate), "update", broken)
    rows = facts(page, "jobs")["cards"][0]["rows"]
    for _ in range(3):
        simulated.go_on(40)
        page.update()
    assert facts(page, "failed") == ["rate"]
    assert facts(page, "jobs")["cards"][0]["rows"] != rows
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "Traceback" in told[0].getMessage()
    monkeypatch.undo()
    page.update()
    assert facts(page, "failed") == []


def test_a_state_that_cannot_be_read_leaves_the_page_open(caplog):
    simulated, page = shown(40, 4)
    page._read = lambda: 1 / 0
    for _ in range(3):
        page.update()
    assert facts(page, "failed") == ["state"]
    assert len(caplog.records) == 1
    page._read = simulated
    page.update()
    assert facts(page, "failed") == []
    assert len(facts(page, "jobs")["cards"]) == 1


# -- numbers as people say them --------------------------------------------------------------------------------------


def test_the_rate_is_held_against_the_calibrated_one():
    sweep = {"flops_per_second": 160e9, "calibrated_flops_per_second": 190e9}
    assert rate(sweep) == "160 GFLOP/s, 84 % of the calibrated 190 GFLOP/s"
    assert rate({**sweep, "calibrated_flops_per_second": 0.0}) == "160 GFLOP/s"
