"""Who hears a job: the journal of a run, what a cut or damaged line costs, sinks that fail, and jobs inside jobs."""

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
    """The snapshot of the jobs in a journal, the first one first."""
    return sorted(gather(run)["jobs"], key=lambda job: job["started"])


def test_a_fit_leaves_every_step_in_the_journal_of_its_run(tmp_path):
    small = dask.config.set({"bigkernel.chunk-bytes": 1024})
    with small, executing("threads", run=tmp_path / "run", command=["bigkernel", "fit", "a b"]):
        KernelRidge(**MODEL).fit(X, Y)
        emit(Figures("fit", {"rank": np.int64(20), "bad": float("nan")}))
    (found,) = jobs(tmp_path / "run")
    (swept,) = found["sweeps"]
    assert (found["title"], found["state"]) == ("bigkernel fit 'a b'", "finished")
    assert found["run"] == str(tmp_path / "run")
    assert set(found["stage_seconds"]) == {"landmarks", "solve"}
    assert found["figures"].pop("driver")["blas_threads"] == driver_blas().threads
    assert found["figures"] == {"fit": {"rank": 20, "bad": None}}
    assert (swept["what"], swept["state"], swept["rows_done"]) == ("moments", "finished", 400)
    assert swept["states"] == "m" * len(swept["stops"])
    assert swept["merges_done"] == swept["merges"] == len(swept["stops"]) - 1
    assert {"gram", "merge"} <= set(swept["stage_seconds"])


def test_with_monitoring_off_a_run_has_neither_journal_nor_report(tmp_path):
    with dask.config.set({"bigkernel.monitor": False}):
        sweep(as_rows(X), Sums(3), client="serial", run=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()}.isdisjoint({NAME, "report.html"})


def test_a_journal_is_read_on_from_where_it_was_left(tmp_path):
    journal = Journal(tmp_path, Scope())
    journal(JobStarted("one"))
    ((first, place),) = read(tmp_path)
    journal(Note("two"))
    assert [message["text"] for message, _ in read(tmp_path, start=place)] == ["two"]
    journal.close()
    with open(tmp_path / NAME, "a") as file:
        file.write('{"time": 1, "kind": "note", "text": "cut o')
    assert kinds(tmp_path) == ["job_started", "note"]
    assert first["title"] == "one"


def test_what_comes_after_a_line_that_was_cut_off_is_read(tmp_path):
    with executing("serial", run=tmp_path, command=["first"]):
        sweep(as_rows(X), Sums(3), what="one")
    with open(tmp_path / NAME, "a") as file:
        file.write('{"time": 1, "kind": "note", "text": "cut o')
    with executing("serial", run=tmp_path, command=["second"]):
        sweep(as_rows(X), Sums(3), what="two")
    assert [(job["title"], job["state"]) for job in jobs(tmp_path)] == [("first", "finished"), ("second", "finished")]


def test_sweeps_of_one_job_with_runs_of_their_own_have_journals_of_their_own(tmp_path):
    with executing("serial"):
        for i in range(5):
            sweep(as_rows(X), Sums(3), run=tmp_path / str(i), what=f"sweep {i}")
        held = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        assert not [path for path in held if path.endswith(NAME)]
    for i in range(5):
        (found,) = jobs(tmp_path / str(i))
        assert [one["what"] for one in found["sweeps"]] == [f"sweep {i}"]
        assert found["state"] == "finished"
        assert (tmp_path / str(i) / "report.html").is_file()


def test_a_script_that_exits_well_has_finished():
    def leave(code):
        with pytest.raises(SystemExit), job("script"):
            raise SystemExit(code)

    assert [heard(lambda code=code: leave(code))[-1].state for code in (0, None, 3)] == ["finished"] * 2 + ["failed"]


def test_merges_that_a_resume_finds_are_not_told_as_its_work(tmp_path):
    with dask.config.set({"bigkernel.chunk-bytes": 1024}):
        sweep(as_rows(X), Sums(3), client="serial", run=tmp_path)
        again = sweep(as_rows(X), Sums(3), client="serial", run=tmp_path, resume=True)
    first, second = (one["sweeps"][0]["stage_seconds"] for one in jobs(tmp_path))
    assert first["merge"] > 0
    assert second == {}
    assert again.merge_seconds == 0


def test_pulses_of_one_segment_are_written_now_and_then_only(tmp_path):
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


def heard(action):
    events = []
    with observe(events.append):
        action()
    return events


def test_a_search_is_one_job_with_all_its_sweeps():
    search = SweepSearchCV(KernelRidge(**MODEL), {"alpha": [0.1, 1.0]}, cv=2)
    events = heard(lambda: search.fit(X, Y))
    assert [event.title for event in events if isinstance(event, JobStarted)] == ["SweepSearchCV.fit"]
    assert sum(isinstance(event, SweepStarted) for event in events) >= 1


def test_how_a_job_ends_is_told_with_the_error():
    def fail():
        with pytest.raises(ZeroDivisionError), job("division"):
            1 / 0

    def stop():
        with pytest.raises(KeyboardInterrupt), job("stopped"):
            raise KeyboardInterrupt

    assert heard(fail) == [JobStarted("division"), JobEnded("failed", "ZeroDivisionError: division by zero")]
    assert heard(stop) == [JobStarted("stopped"), JobEnded("interrupted")]


def test_a_sweep_that_fails_tells_it_before_its_job_does(tmp_path):
    failing = Sums(3, FailingDisk(str(tmp_path / "noted"), 0, times=10**6))

    def fail():
        with pytest.raises(DataError):
            sweep(as_rows(X), failing, client="serial")

    *_, ended, last = heard(fail)
    assert isinstance(ended, SweepEnded)
    assert ended.error.startswith("DataError: ")
    assert last.state == "failed"


def test_a_sink_that_comes_late_is_told_what_was_said_before_the_first_sweep():
    told = []
    with job("late") as scope:
        emit(Note("before"))
        scope.add_sink("x", told.append)
        scope.add_sink("x", print)  # one of a name
        emit(Note("after"))
    assert told == [JobStarted("late"), Note("before"), Note("after"), JobEnded("finished")]


def test_a_sink_that_fails_is_dropped_with_one_warning():
    def broken(event):
        raise OSError("gone")

    with job("x") as scope:
        with pytest.warns(RuntimeWarning, match=r"that failed: OSError\('gone'\)"):
            scope.add_sink("broken", broken)
        emit(Note("again"))
    assert not scope.sinks


def test_sinks_are_closed_whatever_they_raise():
    order = []

    class Closing:
        def __call__(self, event):
            order.append(type(event).__name__)

        def close(self):
            order.append("closed")
            raise OSError("late")

    def closing():
        with job("x") as scope:
            scope.add_sink("closing", Closing())
            scope.add_sink("other", lambda event: None)

    with pytest.warns(RuntimeWarning, match="late"):
        closing()
    assert order == ["JobStarted", "JobEnded", "closed"]
