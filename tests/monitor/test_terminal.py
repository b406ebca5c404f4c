"""Events of a sweep reach observers, none of which can stop it; the terminal is silent until it has news."""

import io
import re
import types

import pytest
from rich.console import Console

from bigkernel.events.job import Incident, Note, Pulse, SegmentDone, Step, SweepEnded, SweepStarted, emit, observe
from bigkernel.monitor.terminal import bar
from bigkernel.streaming.plan import Footprint, Receipt, plan

PLAN = plan(range(0, 1001, 100), 3, 8, Footprint(1e9, 8, 8), segment_rows=100)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test sets it."""
    now = types.SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(bar, "time", types.SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture
def screen(monkeypatch):
    """A terminal of 80 columns: what was written to it, the lines between control codes."""
    stream = io.StringIO()

    def lines():
        return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())) if line]

    monkeypatch.setattr(
        bar, "Console", lambda file: Console(file=file, force_terminal=True, width=80, color_system=None)
    )
    return types.SimpleNamespace(stream=stream, lines=lines)


def receipt(i, segment):
    return Receipt(f"0-{i}", segment.start, segment.stop, worker="w1", elapsed=10.0)


def run(clock, seconds, each=10):
    """A sweep of ten segments that takes its time; what it prints."""
    stream = io.StringIO()
    with bar.progress(stream=stream):
        emit(SweepStarted("moments", "threads", PLAN))
        for i, segment in enumerate(PLAN.segments[:each]):
            clock.seconds += seconds / len(PLAN.segments)
            emit(SegmentDone(receipt(i, segment), i + 1, len(PLAN.segments)))
        emit(SweepEnded(seconds))
    return stream.getvalue()


def test_observers_hear_nothing_after_their_block():
    events, inner = [], []
    with observe(events.append):
        with observe(inner.append):
            emit(SweepEnded(1.0))
        emit(SweepEnded(2.0))
    emit(SweepEnded(3.0))
    assert [[event.seconds for event in each] for each in (events, inner)] == [[1.0, 2.0], [1.0]]


def test_a_long_sweep_says_where_it_is_every_ten_seconds_and_a_short_one_nothing(clock):
    assert [run(clock, seconds) for seconds in (0.1, 4.0, 9.9)] == ["", "", ""]
    lines = run(clock, 100.0).splitlines()
    assert 3 <= len(lines) <= 9
    assert all(line.startswith("moments: ") for line in lines)
    # 20 s for 2 of 10 segments of 100 rows and 1e9 flops a row: 80 s left, half to twice that below three receipts
    assert lines[0] == "moments: 2 of 10 segments, 40 s to 2 min 40 s left, 10 rows/s, 10 GFLOP/s"
    assert lines[1] == "moments: 4 of 10 segments, 1 min left, 10 rows/s, 10 GFLOP/s"


@pytest.mark.parametrize("seconds, shown", [(0.3, False), (30.0, True)])
def test_a_terminal_shows_a_bar_after_half_a_second_and_clears_it(clock, screen, seconds, shown):
    with bar.progress(stream=screen.stream):
        emit(SweepStarted("moments", "threads", PLAN))
        clock.seconds += seconds
        emit(SegmentDone(receipt(0, PLAN.segments[0]), 1, 10))
    assert any("moments" in line and "1/10" in line for line in screen.lines()) == shown
    assert ("\x1b[2K" in screen.stream.getvalue()) == shown, "the line is erased"


def test_the_bar_is_one_line_of_80_columns_with_rate_range_workers_and_retries(clock, screen):
    with bar.progress(stream=screen.stream):
        emit(SweepStarted("moments", "threads", PLAN))
        emit(Pulse("0-1", 0, "w2"))
        emit(Incident("retry", "rows 0-99: a file was not there; tried again"))
        clock.seconds += 20
        emit(SegmentDone(receipt(0, PLAN.segments[0]), 1, 10))
    line = screen.lines()[-1]
    assert len(line) == 80
    # 100 of 1,000 rows in 20 s: 180 s left, half and twice that while only one receipt is there
    found = re.sub("[━╸╺ ]+", " ", line)
    assert found.strip() == "moments 1/10 1 min 30 s to 6 min left 1 retries 5 rows/s"


@pytest.mark.parametrize(
    "sweeps, shown",
    [
        ((4,), "sweep 2 of 3 2 min 40 s left in the sweeps 4/10"),
        ((10, 2), "sweep 3 of 3 2 min left in all 2/10"),  # 80 s of the sweep, 40 s of solves
    ],
)
def test_a_search_shows_which_sweep_runs_and_the_time_left_with_its_solves(clock, screen, sweeps, shown):
    with bar.progress(stream=screen.stream):
        emit(bar.job.Figures("sweeps", {"count": 3, "flops": 3 * PLAN.flops, "begun": 1, "flops_done": PLAN.flops}))
        for done in sweeps:
            emit(SweepStarted("tune", "threads", PLAN, token=str(done)))
            clock.seconds += 10 * done
            for i, segment in enumerate(PLAN.segments[:done]):
                emit(SegmentDone(receipt(i, segment), i + 1, 10))
            if done == 10:
                emit(SweepEnded(100.0))
                emit(Step("solve", 1, 2))
                clock.seconds += 40
                emit(Step("solve", 2, 2))
    assert re.sub("[━╸╺ ]+", " ", screen.lines()[-1]).startswith(f"tune {shown}")


def test_a_pulse_that_comes_after_the_end_of_its_sweep_brings_no_bar_back(clock, screen):
    with bar.progress(stream=screen.stream):
        emit(Pulse("0-0", 50, "w1"))
        emit(SweepStarted("moments", "threads", PLAN))
        clock.seconds += 5
        emit(SweepEnded(5.0))
        emit(Pulse("0-0", 50, "w1"))
    assert screen.lines() == []


def test_incidents_and_notes_are_lines_above_the_bar_as_they_were_written(clock, screen):
    with bar.progress(stream=screen.stream):
        emit(Note("[bold]kernel 1 of 2[/bold] :warning:\x1b[31m"))
        emit(SweepStarted("moments", "threads", PLAN))
        clock.seconds += 5
        emit(SegmentDone(receipt(0, PLAN.segments[0]), 1, 10))
        emit(Incident("worker", "worker [w1] lost"))
    lines = screen.lines()
    assert lines[0] == "[bold]kernel 1 of 2[/bold] :warning:\\x1b[31m"
    assert "moments: worker [w1] lost" in [line.strip() for line in lines]


def test_steps_are_printed_in_lines_where_there_is_no_terminal(clock):
    stream = io.StringIO()
    with bar.progress(stream=stream):
        for done in range(1, 21):
            emit(Step("solves", done, 20))
            clock.seconds += 4.0
    lines = stream.getvalue().splitlines()
    assert (lines[0], len(lines)) == ("solves: 4 of 20", 6)
    assert "20 of 20" not in stream.getvalue()


def test_a_bar_that_cannot_be_drawn_is_given_up_with_one_warning(clock, screen, monkeypatch, caplog):
    monkeypatch.setattr(bar.lines, "sweep_bar", lambda *_: 1 / 0)
    with bar.progress(stream=screen.stream):
        emit(SweepStarted("moments", "threads", PLAN))
        for i in range(10):
            clock.seconds += 5
            emit(SegmentDone(receipt(i, PLAN.segments[i]), i + 1, 10))
        emit(SweepEnded(50.0))
    expected = "progress bar disabled: ZeroDivisionError: division by zero"
    assert [record.getMessage() for record in caplog.records] == [expected]


def test_a_terminal_that_knows_ascii_only_gets_ascii(clock, screen):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")  # as standard error is
    with bar.progress(stream=stream):
        emit(SweepStarted("Übung", "threads", PLAN))
        clock.seconds += 5
        emit(SegmentDone(receipt(0, PLAN.segments[0]), 1, 10))
    assert b"\\xdcbung  -" in raw.getvalue()


def test_a_bar_of_other_work_shows_counts_and_clears_itself(clock, screen):
    with bar.bar("ingest [x]", stream=screen.stream, unit="files") as update:
        update(1234, None)
        update(1500, 6000)
    assert re.fullmatch(r"(?=.{80}$)ingest \[x\] .*1,500 files.*", screen.lines()[-1])
