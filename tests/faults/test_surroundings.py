"""The environment of a job: clocks, disks, home directories, umasks, and forks."""

import os
import subprocess
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import dask
import pytest
from drivers import SEGMENTS, SLOW, D, N, leftovers, same_model, wait_until
from probes import Hold, Sums, bits

from bigkernel import connect, executing
from bigkernel.data.run_directory import survey
from bigkernel.data.run_lock import locked
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import DataError, RunLockedError
from bigkernel.events import journal
from bigkernel.events.board import Board

pytestmark = pytest.mark.usefixtures("fault_segments")


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("hours", [-1, 1])
def test_f36_a_clock_set_during_a_job_changes_nothing(rows, clean, tmp_path, monkeypatch, hours):
    """The sum, the lock, the journal and the report are the same, and the remaining time is not wrong by an hour."""
    true, jumps, run = time.time, [], tmp_path / "run"
    monkeypatch.setattr(time, "time", lambda: true() + 3600 * hours * bool(jumps))

    def jump(chunk):
        if chunk.start >= N // 2 and not jumps:
            jumps.append(chunk.start)
            with pytest.raises(RunLockedError), locked(run):
                pass

    start = time.monotonic()
    with executing("serial", run=run):
        swept = sweep(rows, Sums(D, jump))
        board = Board()
        for message, _ in journal.read(run):
            board.apply(message, message["time"])
            shown = board.snapshot(message["time"])["jobs"][0]
            assert 0 <= shown["elapsed_seconds"] < time.monotonic() - start + 1
            for one in shown["sweeps"]:
                left = one["remaining_seconds"] or {"expected": 0.0}
                assert 0 <= left["expected"] < 3600 / 2
    assert jumps
    assert bits(swept) == clean
    assert leftovers(run) == []
    (state,) = survey(run)
    assert (state.state, state.segments_done) == ("finished", state.segments)
    assert (run / "report.html").stat().st_size > 1000
    with executing("serial", run=run, resume=True):
        assert bits(sweep(rows, Sums(D, jump))) == clean


# ---------------------------------------------------------------- disks


@pytest.mark.slow
@pytest.mark.cluster
def test_f13_a_run_directory_that_becomes_read_only_is_named_and_resumed(rows, clean, tmp_path, tmpfs):
    disk, gate = tmpfs("60M"), str(tmp_path / "gate")
    hold = Hold(plan_sweep(rows, Sums(D)).segments[5].start, gate)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"bigkernel.monitor": False}))  # an open journal keeps a disk writable
        client = stack.enter_context(connect("local", workers=2, dashboard=0))
        left = disk / "run" / "partials" / f".left.{uuid.uuid4().hex}.partial"  # a half-written segment
        thread = threading.Thread(target=make_read_only, args=(disk, hold, left))
        thread.start()
        with pytest.raises(DataError, match=r"(?i)read-only file system"):
            sweep(rows, Sums(D, hold), client=client, run=disk / "run")
        thread.join(100)
        remount(disk, "rw")
        resumed = sweep(rows, Sums(D, hold), client=client, run=disk / "run", resume=True)
    assert bits(resumed) == clean
    assert leftovers(disk / "run") == []


def make_read_only(disk, hold, left):
    """Make a disk read-only while a task is held, with a half-written directory on it."""
    try:
        wait_until(hold.holding, what="a held task")
        left.mkdir()
        wait_until(lambda: remount(disk, "ro", check=False), what="a moment without open files")
    finally:
        Path(hold.gate).touch()


def remount(disk, how, *, check=True):
    command = ["mount", "-o", f"remount,{how}", str(disk)]
    return subprocess.run(command, capture_output=True, check=check).returncode == 0


# ---------------------------------------------------------------- homes


FIT = ["--landmarks", "300", "--seed", "1"]
LOCAL = ["--cluster", "local", "--workers", "1", "--dashboard-port", "0", "--run", "run"]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("case", ["invalid home, umask 077", "no home"])
def test_f36_a_fit_needs_no_home_and_keeps_the_umask(fault_corpus, undisturbed, tmp_path, monkeypatch, start, case):
    if case == "no home":
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", "/proc/nowhere")
    before = os.umask(0o077 if "umask" in case else 0o022)
    try:
        driver = start(["fit", fault_corpus.path, "a.model", *FIT, *LOCAL], **SLOW)
    finally:
        os.umask(before)
    assert driver.wait() == 0, driver.errors()
    assert same_model(tmp_path / "a.model", undisturbed)
    if "umask" in case:
        assert not any(path.stat().st_mode & 0o077 for path in (tmp_path / "run", tmp_path / "a.model"))


# ---------------------------------------------------------------- forks


@pytest.mark.slow
def test_a_process_that_has_swept_may_fork(start, fault_corpus, clean):
    """The event loop and thread pools of zarr do not work in a fork."""
    code = f"""
import multiprocessing, sys
import dask
from probes import Sums
from bigkernel.data import zarr_arrays
from bigkernel.data.corpus import open_corpus
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep

def bits(place):
    steps = {{"bigkernel.min-segments": {SEGMENTS}, "bigkernel.chunk-bytes": {N // (2 * SEGMENTS) * D * 4}}}
    with dask.config.set(steps):
        return zarr_arrays.digest(sweep(as_rows(open_corpus({fault_corpus.path!r})), Sums({D}), client=place).total)

if __name__ == "__main__":
    print(bits("threads"))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply_async(bits, ("threads",)).get(100))
    print(bits("threads"))
"""
    driver = start(code)
    assert driver.wait(110) == 0, driver.errors()
    assert driver.out.read_text().split() == [clean] * 3
