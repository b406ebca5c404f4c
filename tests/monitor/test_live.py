"""A state of jobs on a terminal: every figure is the state's, every line fits, and text from outside stays text."""

import io
from itertools import product

import pytest
import simulated
from rich.console import Console, Group

from bigkernel.events.board import Board
from bigkernel.html import duration, measured
from bigkernel.monitor.terminal import live


def state_of(segments=2000, workers=100, *, seconds=1.0, **options):
    """The snapshot of a simulated job, some time after its last message."""
    board, now = Board(), 0.0
    for message, now in simulated.messages(segments, workers, **options):
        board.apply(message, now)
    return board.snapshot(now + seconds)


def printed(*renderables, width=80):
    """What a terminal of this width prints."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Group(*renderables))
    return console.file.getvalue()


def text_of(state, width=80):
    return printed(*live.picture(state, width), width=width)


@pytest.fixture(scope="module")
def half():
    return state_of()


@pytest.fixture(scope="module")
def sweep(half):
    return half["jobs"][0]["sweeps"][0]


def test_no_line_is_wider_than_the_terminal_and_none_is_wrapped(half):
    for state, width in product((half, state_of(40, 3), state_of(1, 1)), (40, 80, 160)):
        lines = text_of(state, width).splitlines()
        assert max(map(len, lines)) <= width
        assert sum(line.startswith("moments ") for line in lines) == 1
        assert len(lines) < 25


def test_the_line_of_a_large_sweep_has_its_figures_at_80_columns_and_fewer_where_it_is_narrow(sweep):
    low, high = (duration(sweep["remaining_seconds"][end]) for end in ("low", "high"))
    rate = sweep["flops_per_second"]
    rows = f"{rate * sweep['rows'] / sweep['plan']['flops']:,.0f}"
    figures = [
        "1,000/2,000",
        f"{low} to {high} left",
        "16 lost",
        f"{rows} rows/s",
        measured(rate, "FLOP/s"),
        "100 busy",
    ]
    assert live.figures(sweep) == figures
    for width, most in ((160, 6), (80, 4), (40, 1)):
        (line,) = printed(live.sweep_bar({"search": None}, sweep, width), width=width).splitlines()
        assert line.startswith("moments  ━")
        assert [figure for figure in figures if figure in line] == figures[:most] or width == 80
    assert live.sentence({"search": None}, sweep) == ", ".join(["moments: 1,000 of 2,000 segments", *figures[1:]])


def test_the_bar_is_full_as_far_as_rows_are_done_or_under_way(sweep):
    line = printed(live.bar("x", 0.75, ["1/2"], 100), width=100)
    assert line.count("━") == pytest.approx(0.75 * 91, abs=2)
    share = (sweep["rows_done"] + sweep["rows_under_way"]) / sweep["rows"]
    line = printed(live.sweep_bar({"search": None}, sweep, 300), width=300)
    assert 0.5 < share < 0.6
    assert line.count("━") == pytest.approx(share * (300 - len(line.replace("━", "").split("╸")[0].strip())), rel=0.5)


def test_when_merges_are_all_that_is_left_they_are_counted_in_place_of_the_time():
    board = Board()
    for message, now in simulated.messages(40, 3, finished=True):
        if message["kind"] not in ("merged", "sweep_ended", "spent", "job_ended"):
            board.apply(message, now)
    for node in ("1-0", "1-1", "1-2"):
        board.apply({"kind": "merged", "job": "simulated", "sweep": "simulated-sweep", "node": node}, now)
    words = live.figures(board.snapshot(now)["jobs"][0]["sweeps"][0])
    assert words[:2] == ["40/40", "merging 3/39"]
    assert "left" not in " ".join(words)


def test_before_anything_is_known_there_is_neither_rate_nor_time():
    board, messages = Board(), simulated.messages(40, 3)
    for message, now in (next(messages), next(messages)):
        board.apply(message, now)
    assert live.figures(board.snapshot(now + 3)["jobs"][0]["sweeps"][0]) == ["0/40"]


def test_stages_have_their_share_and_resumed_segments_are_counted(half, sweep):
    text = text_of(half)
    assert "stages: gram 51 %, block 42 %, exp 3 %, read 2 %, convert 2 %" in text
    rows = sweep["rows_done"] + sweep["rows_under_way"]
    assert f"{rows:,} of 131,072,000 rows, 200 segments resumed from the run" in text


def test_jobs_that_have_ended_are_a_line_each_and_no_job_is_said():
    state = state_of(40, 3, finished=True)
    assert text_of(state).startswith("finished ")
    assert len(text_of(state).splitlines()) == 1
    state["jobs"][0].update(state="failed", error="DataError: row 3 is not finite")
    assert "DataError: row 3 is not finite" in text_of(state, 120)
    empty = Board().snapshot(0.0)
    assert text_of(empty) == "no job has started here yet\n"
    assert "start one with --cluster tcp://a:1" in text_of({**empty, "address": "tcp://a:1"})


def test_what_the_driver_does_between_sweeps_has_a_bar(half):
    job = {**half["jobs"][0], "sweeps": [], "events": [], "step": {"what": "solves", "done": 3, "total": 12}}
    last = text_of({**half, "jobs": [job]}).splitlines()[-1]
    assert last.startswith("solves  ━")
    assert last.rstrip().endswith(" 3/12")


RUN = {
    "path": "job.run",
    "state": "interrupted",
    "holder": "",
    "died": "process 7 on node1",
    "command": "bigkernel fit 'a corpus' m --resume",
    "known": True,
    "planned": False,
    "segments": 40,
    "segments_done": 12,
    "silent_seconds": 180.0,
}
GO_ON = "to resume: bigkernel fit 'a corpus' m --resume"
DIED = "the driver (process 7 on node1) died 3 min ago; 12 of 40 segments of the sweeps begun are kept"


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, [DIED, GO_ON]),
        ({"planned": True}, [DIED.replace(" of the sweeps begun", ""), GO_ON]),
        ({"segments": 0}, ["the driver (process 7 on node1) died 3 min ago; no segment is kept yet", GO_ON]),
        ({"died": ""}, ["no driver is running in job.run; 12 of 40 segments of the sweeps begun are kept", GO_ON]),
        ({"died": "", "state": "finished"}, []),
        (
            {"died": "", "state": "finished", "known": False},
            ["job.run is finished; details are missing, as its last driver kept no journal"],
        ),
        ({"died": "", "holder": "process 7 on node1", "state": "running"}, []),
        (
            {"died": "", "holder": "process 8 on node2", "known": False},
            ["process 8 on node2 is running, without a journal; 12 of 40 segments of the sweeps begun are kept"],
        ),
    ],
)
def test_a_run_says_what_is_kept_and_how_to_go_on_where_that_is_needed(changes, words):
    assert list(live.run_lines({**RUN, **changes})) == words


def test_the_command_to_go_on_with_is_never_cut():
    command = " ".join(["bigkernel", "fit", *(f"--option-{i}" for i in range(30))])
    state = {**Board().snapshot(0.0), "run": {**RUN, "command": command}}
    assert "".join(text_of(state, 60).split()).endswith("".join(command.split()))
