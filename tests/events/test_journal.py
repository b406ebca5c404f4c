"""Events of a job: the journal of its run, truncated lines, sinks that fail, and how jobs end."""

import os

import dask
import numpy as np
import pytest
from probes import FailingDisk, Sums

from bigkernel import Gaussian, KernelRidge, SweepSearchCV, executing, sweep
from bigkernel.engine.process import driver_blas
from bigkernel.engine.rows import as_rows
from bigkernel.errors import DataError
from bigkernel.events.job import (
    Figures,
    JobEnded,
    JobStarted,
    Note,
    Pulse,
    Scope,
    SweepEnded,
    SweepStarted,
    emit,
    job,
    observe,
)
from bigkernel.events.journal import NAME, Journal, read
from bigkernel.monitor.report import gather

X = np.random.RandomState(0).standard_normal((400, 3))
Y = X[:, 0]
MODEL = {"kernel": Gaussian(sigma=1.0), "alpha": 1.0, "n_landmarks": 20, "random_state": 0}


def kinds(run):
    return [message["kind"] for message, _ in read(run) if message is not None]


def jobs(run):
    """Snapshots of the jobs in a journal, in the order of their start."""
    return sorted(gather(run)["jobs"], key=lambda job: job["started"])


def events_of(action):
    events = []
    with observe(events.append):
        action()
    return events


def truncate(run):
    """End the journal of a run in an incomplete line."""
    with open(run / NAME, "a") as file:
        file.write('{"time": 1, "kind": "note", "text": "cut o')


def test_a_fit_leaves_every_step_in_the_journal_of_its_run(tmp_path):
    small = dask.config.set({"bigkernel.chunk-bytes": 1024})
    with small, executing("threads", run=tmp_path / "run", command=["bigkernel", "fit", "a b"]):
        KernelRidge(**MODEL).fit(X, Y)
        emit(Figures("fit", {"rank": np.int64(20), "bad": float("nan")}))
    (fit,) = jobs(tmp_path / "run")
    (swept,) = fit["sweeps"]
    assert (fit["title"], fit["state"]) == ("bigkernel fit 'a b'", "finished")
    assert fit["run"] == str(tmp_path / "run")
    assert set(fit["stage_seconds"]) == {"landmarks", "solve"}
    assert fit["figures"].pop("driver")["blas_threads"] == driver_blas().threads
    assert fit["figures"] == {"fit": {"rank": 20, "bad": None}}
    assert (swept["what"], swept["state"], swept["rows_done"]) == ("moments", "finished", 400)
    assert swept["states"] == "m" * len(swept["stops"])
    assert swept["merges_done"] == swept["merges"] == len(swept["stops"]) - 1
    assert {"gram", "merge"} <= set(swept["stage_seconds"])


def test_with_monitoring_off_a_run_has_neither_journal_nor_report(tmp_path):
    with dask.config.set({"bigkernel.monitor": False}):
        sweep(as_rows(X), Sums(3), client="serial", run=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()}.isdisjoint({NAME, "report.html"})


def test_reading_a_journal_continues_from_a_position_and_ignores_an_incomplete_line(tmp_path):
    journal = Journal(tmp_path, Scope())
    journal(JobStarted("one"))
    ((first, position),) = read(tmp_path)
    journal(Note("two"))
    assert [message["text"] for message, _ in read(tmp_path, start=position)] == ["two"]
    journal.close()
    truncate(tmp_path)
    assert kinds(tmp_path) == ["job_started", "note"]
    assert first["title"] == "one"


def test_messages_after_an_incomplete_line_are_read(tmp_path):
    with executing("serial", run=tmp_path, command=["first"]):
        sweep(as_rows(X), Sums(3), what="one")
    truncate(tmp_path)
    with executing("serial", run=tmp_path, command=["second"]):
        sweep(as_rows(X), Sums(3), what="two")
    assert [(job["title"], job["state"]) for job in jobs(tmp_path)] == [("first", "finished"), ("second", "finished")]


def test_sweeps_of_a_job_with_separate_runs_have_separate_journals(tmp_path):
    with executing("serial"):
        for i in range(3):
            sweep(as_rows(X), Sums(3), run=tmp_path / str(i), what=f"sweep {i}")
        open_files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        assert not [path for path in open_files if path.endswith(NAME)]
    for i in range(3):
        (one,) = jobs(tmp_path / str(i))
        assert [swept["what"] for swept in one["sweeps"]] == [f"sweep {i}"]
        assert one["state"] == "finished"
        assert (tmp_path / str(i) / "report.html").is_file()


def test_seconds_of_merges_before_a_resume_are_not_counted_again(tmp_path):
    with dask.config.set({"bigkernel.chunk-bytes": 1024}):
        sweep(as_rows(X), Sums(3), client="serial", run=tmp_path)
        again = sweep(as_rows(X), Sums(3), client="serial", run=tmp_path, resume=True)
    first, second = (one["sweeps"][0]["stage_seconds"] for one in jobs(tmp_path))
    assert first["merge"] > 0
    assert second == {}
    assert again.merge_seconds == 0


def test_frequent_pulses_of_a_segment_are_written_once(tmp_path):
    journal = Journal(tmp_path, Scope())
    for rows in range(0, 1000, 10):
        journal(Pulse("0-0", rows, "w"))
    journal.close()
    assert kinds(tmp_path) == ["running"]


def test_a_journal_that_cannot_be_written_ends_no_job_and_warns_once(tmp_path):
    run = tmp_path / "run"
    (run / NAME).mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="that failed: IsADirectoryError") as caught, executing("serial", run=run):
        swept = sweep(as_rows(X), Sums(3))
    assert swept.total["rows"] == [400]
    assert len(caught) == 1


def test_a_report_that_cannot_be_written_ends_no_job(tmp_path, caplog):
    run = tmp_path / "run"
    (run / "report.html").mkdir(parents=True)
    (run / "report.html" / "full").touch()
    with executing("serial", run=run):
        assert sweep(as_rows(X), Sums(3)).total["rows"] == [400]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "bigkernel.monitor.report:write: monitoring of" in caplog.text


# ---------------------------------------------------------------- jobs


def test_a_search_is_one_job_with_all_its_sweeps():
    search = SweepSearchCV(KernelRidge(**MODEL), {"alpha": [0.1, 1.0]}, cv=2)
    events = events_of(lambda: search.fit(X, Y))
    assert [event.title for event in events if isinstance(event, JobStarted)] == ["SweepSearchCV.fit"]
    assert sum(isinstance(event, SweepStarted) for event in events) >= 1


@pytest.mark.parametrize(
    "error, end",
    [
        (SystemExit(0), JobEnded("finished")),
        (SystemExit(), JobEnded("finished")),
        (SystemExit(3), JobEnded("failed", "SystemExit: 3")),
        (ZeroDivisionError("division by zero"), JobEnded("failed", "ZeroDivisionError: division by zero")),
        (KeyboardInterrupt(), JobEnded("interrupted")),
    ],
    ids=repr,
)
def test_the_end_of_a_job_has_its_state_and_error(error, end):
    def fail():
        with pytest.raises(type(error)), job("a title"):
            raise error

    assert events_of(fail) == [JobStarted("a title"), end]


def test_the_error_of_a_sweep_comes_before_the_end_of_its_job(tmp_path):
    failing = Sums(3, FailingDisk(str(tmp_path / "noted"), 0, times=10**6))

    def fail():
        with pytest.raises(DataError):
            sweep(as_rows(X), failing, client="serial")

    *_, ended, last = events_of(fail)
    assert isinstance(ended, SweepEnded)
    assert ended.error.startswith("DataError: ")
    assert last.state == "failed"


def test_a_late_sink_receives_earlier_events_and_a_second_one_of_its_name_is_ignored():
    received = []
    with job("late") as scope:
        emit(Note("before"))
        scope.add_sink("x", received.append)
        scope.add_sink("x", print)
        emit(Note("after"))
    assert received == [JobStarted("late"), Note("before"), Note("after"), JobEnded("finished")]


def test_a_sink_that_fails_is_dropped_with_one_warning():
    def broken(event):
        raise OSError("full")

    with job("x") as scope:
        with pytest.warns(RuntimeWarning, match=r"that failed: OSError\('full'\)"):
            scope.add_sink("broken", broken)
        emit(Note("again"))
    assert not scope.sinks


def test_a_sink_that_fails_to_close_warns():
    order = []

    class Closing:
        def __call__(self, event):
            order.append(type(event).__name__)

        def close(self):
            order.append("closed")
            raise OSError("late")

    def run():
        with job("x") as scope:
            scope.add_sink("closing", Closing())
            scope.add_sink("other", lambda event: None)

    with pytest.warns(RuntimeWarning, match="late"):
        run()
    assert order == ["JobStarted", "JobEnded", "closed"]
