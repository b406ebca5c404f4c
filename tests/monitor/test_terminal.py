"""Events of a sweep reach observers, none of which can stop it; the terminal is silent until it has news."""

from __future__ import annotations

import io
import types

import numpy as np
import pytest
from rich.console import Console

from bigkernel.features import IdentityMap
from bigkernel.monitor import SegmentDone, SweepEnded, SweepStarted, emit, observe, terminal
from bigkernel.plan import Footprint, plan
from bigkernel.rows import as_rows
from bigkernel.runs import Receipt
from bigkernel.statistics import FeatureSums
from bigkernel.sweep import sweep

X = np.random.default_rng(0).normal(size=(200, 3))
STATISTIC = FeatureSums(IdentityMap(np.zeros(3)))
PLAN = plan(range(0, 1001, 100), 3, 8, Footprint(1e9, 8, 8), segment_rows=100)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told."""
    now = types.SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(terminal, "time", types.SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def run(clock, seconds, each=10):
    """A sweep of ten segments that takes its time; what it prints."""
    stream = io.StringIO()
    with terminal.progress(stream=stream):
        emit(SweepStarted("moments", "threads", PLAN))
        for i, segment in enumerate(PLAN.segments[:each]):
            clock.seconds += seconds / len(PLAN.segments)
            emit(SegmentDone(Receipt(f"0-{i}", segment.start, segment.stop), i + 1, len(PLAN.segments)))
        emit(SweepEnded(seconds))
    return stream.getvalue()


def test_a_sweep_tells_its_start_every_segment_and_its_end(small_steps):
    events = []
    with observe(events.append):
        swept = sweep(as_rows(X), STATISTIC, client="serial", what="means")
    assert isinstance(events[0], SweepStarted)
    assert (events[0].what, events[0].executor, events[0].plan) == ("means", "serial", swept.plan)
    done = [event for event in events if isinstance(event, SegmentDone)]
    assert [event.done for event in done] == list(range(1, len(swept.plan.segments) + 1))
    assert sum(event.receipt.rows for event in done) == 200
    assert isinstance(events[-1], SweepEnded)
    assert len(events) == len(done) + 2


def test_an_observer_that_raises_is_dropped_with_one_warning_and_the_others_hear_on(small_steps):
    heard, calls = [], []

    def broken(event):
        calls.append(event)
        raise OSError("the screen is gone")

    with observe(broken, heard.append), pytest.warns(RuntimeWarning, match="screen is gone") as caught:
        swept = sweep(as_rows(X), STATISTIC)
    np.testing.assert_allclose(swept.total["s"], X.sum(axis=0), atol=1e-12)
    assert len(caught) == len(calls) == 1
    assert len(heard) == len(swept.plan.segments) + 2


def test_observers_hear_nothing_after_their_block():
    events, inner = [], []
    with observe(events.append):
        with observe(inner.append):
            emit(SweepEnded(1.0))
        emit(SweepEnded(2.0))
    emit(SweepEnded(3.0))
    assert [event.seconds for event in events] == [1.0, 2.0]
    assert [event.seconds for event in inner] == [1.0]


def test_a_dropped_observer_may_be_given_again():
    told = []

    def broken(event):
        told.append(event.seconds)
        raise ValueError("no")

    with observe(broken):
        with pytest.warns(RuntimeWarning, match="dropped"):
            emit(SweepEnded(1.0))
        emit(SweepEnded(2.0))  # a second warning would be an error
    with pytest.warns(RuntimeWarning, match="dropped"), observe(broken):
        emit(SweepEnded(3.0))
    assert told == [1.0, 3.0]


@pytest.mark.parametrize("seconds", [0.1, 4.0, 9.9])
def test_a_short_sweep_is_silent_where_there_is_no_terminal(clock, seconds):
    assert run(clock, seconds) == ""


def test_a_long_sweep_says_where_it_is_every_ten_seconds(clock):
    lines = run(clock, 100.0).splitlines()
    assert 3 <= len(lines) <= 9
    assert all(line.startswith("moments: ") for line in lines)
    # 20 s for 2 of 10 segments of 100 rows and 1e9 flops a row: 10 rows/s, 10 GFLOP/s, 80 s left
    assert lines[0] == "moments: 2 of 10 segments, 10 rows/s 10 GFLOP/s, 80 s left"


def test_progress_that_is_not_wanted_prints_nothing(clock):
    stream = io.StringIO()
    with terminal.progress(enabled=False, stream=stream):
        emit(SweepStarted("moments", "threads", PLAN))
        clock.seconds += 100
        emit(SegmentDone(Receipt("0-0", 0, 100), 1, 10))
    assert stream.getvalue() == ""


@pytest.mark.parametrize("seconds, shown", [(0.3, False), (30.0, True)])
def test_a_terminal_shows_a_bar_after_half_a_second_and_clears_it(clock, monkeypatch, seconds, shown):
    stream = io.StringIO()
    monkeypatch.setattr(
        terminal, "Console", lambda file: Console(file=file, force_terminal=True, width=100, color_system=None)
    )
    with terminal.progress(stream=stream):
        emit(SweepStarted("moments", "threads", PLAN))
        clock.seconds += seconds
        emit(SegmentDone(Receipt("0-0", 0, 100), 1, 10))
    assert ("moments" in stream.getvalue()) == shown
    assert ("1/10" in stream.getvalue()) == shown


def test_a_bar_of_other_work_is_drawn_on_a_terminal_only(monkeypatch):
    plain = io.StringIO()
    with terminal.bar("ingest", stream=plain) as update:
        update(5, 10)
    assert plain.getvalue() == ""
    drawn = io.StringIO()
    monkeypatch.setattr(
        terminal, "Console", lambda file: Console(file=file, force_terminal=True, width=100, color_system=None)
    )
    with terminal.bar("ingest", stream=drawn) as update:
        update(1234, None)
    assert "ingest" in drawn.getvalue()
    assert "1,234 rows" in drawn.getvalue()
