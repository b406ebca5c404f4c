"""Lines of a snapshot: every figure is the snapshot's, every line fits, and text from outside stays text."""

import io

import pytest
import simulated
from rich.console import Console, Group

from bigkernel.events.board import Board
from bigkernel.monitor.format import flops_rate, quantity, spell
from bigkernel.monitor.terminal import live


def state_of(segments=2000, workers=100, *, seconds=1.0, **options):
    """The snapshot of a simulated job, some time after its last message."""
    board, now = Board(), 0.0
    for message, now in simulated.messages(segments, workers, **options):
        board.apply(message, now)
    return board.snapshot(now + seconds)


def text_of(state, width=80):
    """What a terminal of this width prints."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Group(*live.picture(state, width)))
    return console.file.getvalue()


@pytest.fixture(scope="module")
def half():
    return state_of()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("segments, workers", [(2000, 100), (40, 3), (1, 1)])
def test_no_line_is_wider_than_the_terminal_and_none_is_wrapped(width, segments, workers):
    state = state_of(segments, workers)
    lines = live.picture(state, width)
    assert max(line.cell_len for line in lines) <= width
    assert text_of(state, width).splitlines() == [line.plain for line in lines]


@pytest.mark.parametrize("width", [30, 50, 80, 81, 99, 120, 200])
def test_the_line_of_a_sweep_is_exactly_as_wide_as_the_terminal(half, width):
    assert live.sweep_line(half["jobs"][0]["sweeps"][0], width).cell_len == width


def test_the_line_of_a_large_sweep_has_all_its_figures_at_80_columns(half):
    sweep = half["jobs"][0]["sweeps"][0]
    line = live.sweep_line(sweep, 80).plain
    low, high = (spell(sweep["left_seconds"][end]) for end in ("low", "high"))
    rate = sweep["flops_per_second"]
    rows = rate * sweep["rows"] / sweep["plan"]["flops"]
    for figure in (
        "moments ━",
        " 1000/2000 ",
        f" {quantity(rows)} rows/s ",
        f" {flops_rate(rate)} ",
        f" {low}–{high} left ",
        " 100 busy ",
        " 16 lost",
    ):
        assert figure in line


def test_the_bar_is_full_as_far_as_rows_are_done_or_under_way(half):
    sweep = half["jobs"][0]["sweeps"][0]
    line = live.sweep_line(sweep, 200).plain
    cells = line.count("━") + line.count("╸") + line.count("─")
    full = line.count("━") + line.count("╸") / 2
    share = (sweep["rows_done"] + sweep["rows_under_way"]) / sweep["rows"]
    assert full / cells == pytest.approx(share, abs=0.5 / cells)
    assert share > 0.5, "there are rows under way"


def test_a_narrow_line_leaves_out_the_least_important_first(half):
    sweep = half["jobs"][0]["sweeps"][0]
    assert "after" in live.sweep_line(sweep, 120).plain
    assert "rows/s" not in live.sweep_line(sweep, 50).plain
    assert "left" in live.sweep_line(sweep, 50).plain
    assert "1000/2000" in live.sweep_line(sweep, 30).plain


def test_a_sentence_says_what_the_bar_says_and_what_is_expected(half):
    sweep = half["jobs"][0]["sweeps"][0]
    expected, low, high = (spell(sweep["left_seconds"][key]) for key in ("expected", "low", "high"))
    words = live.sentence(sweep)
    assert words.startswith("moments: 1,000 of 2,000 segments, ")
    assert f"{expected} left ({low}–{high}), 100 busy, 16 lost" in words


def test_when_merges_are_all_that_is_left_they_are_counted_in_place_of_the_time():
    messages = list(simulated.messages(40, 3, finished=True))
    board = Board()
    for message, now in messages:
        if message["kind"] not in ("merged", "sweep_ended", "spent", "job_ended"):
            board.apply(message, now)
    for node in ("1-0", "1-1", "1-2"):
        board.apply({"kind": "merged", "job": "simulated", "sweep": "simulated-sweep", "node": node}, now)
    sweep = board.snapshot(now)["jobs"][0]["sweeps"][0]
    for words in (live.sweep_line(sweep, 80).plain, live.sentence(sweep)):
        assert "merging 3/39" in words
        assert "left" not in words
    assert live.merging({**sweep, "merges_done": 39}) == ""


def test_before_anything_is_known_neither_rate_nor_time_is_told():
    board = Board()
    for i, (message, now) in enumerate(simulated.messages(40, 3)):
        board.apply(message, now)
        if i == 1:
            break
    sweep = board.snapshot(now + 3)["jobs"][0]["sweeps"][0]
    assert live.sentence(sweep) == "moments: 0 of 40 segments"
    line = live.sweep_line(sweep, 80).plain
    assert "0/40" in line
    assert "rows/s" not in line
    assert "left" not in line


def test_the_map_shows_two_thousand_segments_in_at_most_four_lines(half):
    states = half["jobs"][0]["sweeps"][0]["states"]
    lines, each = live.segment_map(states, 78)
    assert each == 7
    assert [line.cell_len for line in lines] == [78, 78, 78, -(-2000 // 7) - 3 * 78]
    letters = "".join(line.plain for line in lines)
    assert letters.count("█") == 1000 // 7
    assert letters.index("·") == -(-1100 // 7), "100 run after the 1,000 that are done"


@pytest.mark.parametrize(
    "group, letter",
    [
        ("mmmm", "█"),
        ("pppp", "▓"),
        ("mmpp", "▓"),
        ("wwww", "·"),
        ("mmww", "▒"),
        ("pprw", "▒"),
        ("mrra", "a"),
        ("mraf", "x"),
    ],
)
def test_a_letter_of_the_map_shows_the_worst_of_its_segments(group, letter):
    lines, each = live.segment_map(group * 8, 8, lines=1)
    assert each == 4
    assert [line.plain for line in lines] == [letter * 8]


def test_states_are_told_apart_without_colours_and_the_legend_names_those_that_are_there():
    sweep = {"states": "mprafw" * 2}
    *lines, legend = live.segments_lines(sweep, 60)
    assert lines[0].plain == "█▓▒ax·" * 2
    for words in ("█ merged", "▓ published", "▒ running", "a again", "x failed", "· waiting"):
        assert words in legend.plain
    assert next(iter(live.segment_map("", 60))) == []
    assert list(live.segments_lines({"states": "mprafw" * 400}, 78))[-1].plain.endswith(" · waiting  8 per cell")
    assert "failed" not in list(live.segments_lines({"states": "mm"}, 60))[-1].plain


def test_the_workers_with_the_most_memory_against_the_plan_are_shown_and_the_others_counted(half):
    sweep = half["jobs"][0]["sweeps"][0]
    heavy = next(reversed(sweep["workers"]))
    sweep = {**sweep, "workers": {**sweep["workers"], heavy: {**sweep["workers"][heavy], "peak_bytes": 693_000_000}}}
    now = {heavy: {"memory_bytes": 500_000_000, "limit_bytes": 2_000_000_000, "status": "paused"}}
    head, first, *others, rest = [line.plain for line in live.workers_lines(sweep, now, 78)]
    assert head.split() == ["planned", "peak", "630", "MB", "segments", "peak", "of", "plan", "now", "of", "limit"]
    assert first.startswith(f"paused {heavy}"[:20])
    assert first.split()[-8:] == ["693", "MB", "110", "%", "500", "MB", "25", "%"]
    assert len(others) == 4
    assert rest == "95 more with lower peaks; 12 of all were lost"


def test_stages_have_their_share_and_the_rate_that_of_the_calibrated_one(half):
    text = text_of(half)
    assert "stages: gram 51 %, block 42 %, exp 3 %, read 2 %, convert 2 %" in text
    sweep = half["jobs"][0]["sweeps"][0]
    share = round(100 * sweep["flops_per_second"] / sweep["calibrated_flops_per_second"])
    assert f"  {share} % of calibrated 9.5 TFLOP/s · " in text
    rows = sweep["rows_done"] + sweep["rows_under_way"]
    assert f" · {quantity(rows)} of 131M rows · 200 segments resumed\n" in text


def test_jobs_that_have_ended_are_a_line_each():
    state = state_of(40, 3, finished=True)
    assert len(text_of(state).splitlines()) == 1
    assert text_of(state).startswith("finished ")
    assert "fit simulated" in text_of(state)
    state["jobs"][0].update(state="failed", error="DataError: row 3 is not finite")
    assert "DataError: row 3 is not finite" in text_of(state, 120)


def test_what_the_driver_does_between_sweeps_has_a_bar(half):
    job = {**half["jobs"][0], "sweeps": [], "events": [], "step": {"what": "solves", "done": 3, "total": 12}}
    last = live.picture({**half, "jobs": [job]}, 80)[-1]
    assert last.cell_len == 80
    assert last.plain.startswith("  solves ")
    assert last.plain.endswith(" 3/12")


def test_no_job_is_said():
    empty = Board().snapshot(0.0)
    assert text_of(empty) == "no job has begun here yet\n"
    assert text_of({**empty, "address": "tcp://a:1"}).endswith("; start one with --cluster tcp://a:1\n")


def test_text_from_outside_is_neither_markup_nor_control_codes():
    state = state_of(40, 3)
    job = state["jobs"][0]
    evil = "[bold]x[/bold] \x1b[31m\x07\u202eabc\nnext [link=http://x]"
    job.update(title=evil, host=evil, run=evil)
    job["events"].append({"time": 0.0, "kind": "note", "text": evil})
    sweep = job["sweeps"][0]
    sweep.update(what=evil, stage_seconds={evil: 1.0})
    sweep["workers"][evil] = {**next(iter(sweep["workers"].values())), "peak_bytes": 10**12}
    after = {**job, "state": evil, "ended": 0.0, "error": evil, "sweeps": []}
    before = {**sweep, "state": evil, "ended": 0.0, "error": evil}
    job["sweeps"].append(before)
    state["jobs"].append(after)
    text = text_of(state, 120)
    assert "[bold]x[/bold] \\x1b[31m\\x07\\u202eabc\\nnext [link=http://x]" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


RUN = {
    "path": "job.run",
    "holder": "",
    "died": "process 7 on node1",
    "command": ["bigkernel", "fit", "a corpus", "m"],
    "unfinished": True,
    "journal": True,
    "told": True,
    "segments": 40,
    "segments_done": 12,
    "on_workers": True,
    "receipt_seconds": 5.0,
    "silent_seconds": 180.0,
}


def words_of(**changes):
    return [line.plain for line in live.run_lines({**RUN, **changes})]


def test_a_run_whose_driver_died_says_what_is_kept_who_may_still_work_and_how_to_go_on():
    assert words_of() == [
        "the driver (process 7 on node1) died 3m00s ago; 12 of 40 segments are kept",
        "the newest is 5s old: workers may still be publishing",
        "to go on: bigkernel fit 'a corpus' m --resume",
    ]
    assert len(words_of(receipt_seconds=100.0)) == 2
    assert len(words_of(on_workers=False)) == 2
    assert words_of(segments_done=0, silent_seconds=9.0)[1] == "workers may still be publishing"
    assert words_of(command=["bigkernel", "--resume"])[-1] == "to go on: bigkernel --resume"
    assert words_of(segments=0)[0].endswith("; nothing is kept yet")
    assert words_of(died="")[0] == "no driver is at work in job.run; 12 of 40 segments are kept"


def test_a_run_that_is_finished_or_at_work_needs_no_words():
    assert words_of(died="", unfinished=False) == []
    assert words_of(died="", unfinished=False, told=False, journal=False) == [
        "job.run is finished; it has no journal, which would tell more"
    ]
    assert words_of(died="", unfinished=False, told=False) == [
        "job.run is finished; its last driver kept no journal, which would tell more"
    ]
    assert list(live.run_lines({"path": "r", "holder": "process 7 on node1", "died": "", "command": []})) == []
    assert words_of(holder="process 8 on node2") == [
        "process 8 on node2 is at work, without a journal; 12 of 40 segments are kept"
    ]


def test_the_command_to_go_on_with_is_never_cut():
    command = ["bigkernel", "fit", *(f"--option-{i}" for i in range(30))]
    state = {**Board().snapshot(0.0), "run": {**RUN, "command": command}}
    assert "".join(text_of(state, 60).split()).endswith("".join(command) + "--resume")


def test_a_picture_of_two_thousand_segments_is_made_in_a_few_milliseconds(half):
    import timeit

    assert min(timeit.repeat(lambda: live.picture(half, 80), number=1, repeat=5)) < 0.05
