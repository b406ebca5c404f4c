"""Processes that die, freeze or are ended by a signal (F1 to F7, F13, F15, F16, F29)."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client
from drivers import HELD, SEGMENTS, SLOW, D, alive, leftovers, published, same_model, wait_until
from machines import free_port
from probes import Both, Bulky, Crash, Devour, DieUnless, Hold, Sleep, Sums, bits, local_cluster

from bigkernel import connect
from bigkernel.data.run_directory import survey
from bigkernel.data.run_lock import Lock, locked
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import DataError, PlanTooLargeError, RunLockedError, StalledError, TaskAbandonedError
from bigkernel.events.job import Incident, observe

pytestmark = pytest.mark.cluster
SLEEPY = Sums(D, Sleep(0.1))  # two chunks a segment


@pytest.fixture(autouse=True)
def patience(fault_segments):
    """Report a stall before the timeout of a test, but not on a slow machine."""
    with dask.config.set({"bigkernel.stall-seconds": 90}):
        yield


@pytest.fixture
def hold(rows, tmp_path):
    """Holds workers at the last three segments until its gate opens."""
    return Hold(plan_sweep(rows, SLEEPY).segments[-3].start, str(tmp_path / "gate"))


def open_gate(hold):
    Path(hold.gate).touch()


def call_when(condition, function):
    """Call a function in a thread as soon as a condition holds; return the thread."""

    def act():
        wait_until(condition)
        function()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


# ---------------------------------------------------------------- workers


@pytest.mark.parametrize(
    "kept, both",
    [(True, False), pytest.param(False, True, marks=pytest.mark.slow)],
    ids=["one worker, run", "both workers"],
)
def test_f1_f2_killed_workers_change_no_bit_and_are_reported(rows, clean, tmp_path, touch, hold, kept, both):
    run = tmp_path / "run" if kept else None

    def kill():
        for victim in workers if both else hold.holding()[:1]:
            os.kill(victim, signal.SIGKILL)
        open_gate(hold)

    with connect("local", workers=2, dashboard=0) as client:
        workers = list(client.run(os.getpid).values())
        thread = call_when(lambda: len(touch.starts()) >= 8 and hold.holding(), kill)
        swept = sweep(rows, Sums(D, Both((touch, hold))), client=client, run=run)
        thread.join(10)
    assert bits(swept) == clean
    report = swept.report()
    assert report["lost_workers"] == 1 + both
    assert any("the process ended" in text for text in report["incidents"])
    if kept:
        assert report["repeated_segments"] >= 1
        assert leftovers(run) == []


@pytest.mark.slow
def test_f3_workers_that_crash_repeatedly_end_in_the_result_or_a_named_error(rows, clean, tmp_path):
    # a worker lives for three segments, so that the sweep ends on any machine
    crashing = Sums(D, Both((Crash(7, spared=os.getpid()), Sleep(0.05))))
    with connect("local", workers=2, dashboard=0) as client:
        try:
            swept = sweep(rows, crashing, client=client, run=tmp_path / "run")
        except TaskAbandonedError as error:
            text = str(error)
        else:
            assert bits(swept) == clean
            text = " ".join(swept.report()["incidents"])
    assert re.search(r"rows \d+:\d+|worker tcp://\S+ lost", text)
    resumed = sweep(rows, crashing, client="threads", run=tmp_path / "run", resume=True)
    assert bits(resumed) == clean


@pytest.mark.slow
def test_f4_a_segment_that_kills_workers_is_named_and_the_rest_is_resumed(rows, clean, tmp_path):
    guilty = plan_sweep(rows, SLEEPY).segments[9]
    cure = tmp_path / "cure"
    poison = Sums(D, DieUnless(guilty.start, str(cure)))
    with dask.config.set({"bigkernel.allowed-failures": 2}), connect("local", workers=2, dashboard=0) as client:
        with pytest.raises(TaskAbandonedError) as caught:
            sweep(rows, poison, client=client, run=tmp_path / "run")
        # other segments of the killed workers are not named
        assert re.match(rf"rows {guilty.start}:{guilty.stop}: abandoned after 3 worker processes", str(caught.value))
        assert "last log message: " in str(caught.value)
        before = published(tmp_path / "run")
        cure.touch()
        wait_for_workers(client, 2, 90)
        swept = sweep(rows, poison, client=client, run=tmp_path / "run", resume=True)
    assert bits(swept) == clean
    assert sum(receipt.resumed for receipt in swept.receipts) == before


@pytest.mark.slow
def test_f5_a_frozen_worker_is_replaced_within_its_time_to_live(rows, clean, tmp_path, hold):
    stopped, reported = {}, {}  # times by address of the worker

    def held():
        """Return the address and process of a held worker."""
        workers = client.run(os.getpid, on_error="ignore")
        return next(((address, pid) for address, pid in workers.items() if pid in hold.holding()), None)

    def freeze():
        address, pid = held()
        os.kill(pid, signal.SIGSTOP)
        stopped[address] = time.monotonic()
        open_gate(hold)

    def note(event):
        if isinstance(event, Incident) and "did not respond for too long" in event.text:
            reported[event.worker] = time.monotonic()

    with dask.config.set({"bigkernel.worker-ttl-seconds": 6}), connect("local", workers=2, dashboard=0) as client:
        thread = call_when(held, freeze)
        with observe(note):
            swept = sweep(rows, Sums(D, hold), client=client, run=tmp_path / "run")
        thread.join(10)
    assert bits(swept) == clean
    ((address, since),) = stopped.items()
    assert 3 < reported[address] - since < 50  # after 6 s of silence, checked every 6 s
    assert any("did not respond for too long" in text for text in swept.report()["incidents"])
    assert leftovers(tmp_path / "run") == []


@pytest.mark.slow
def test_f15_a_task_beyond_its_workers_memory_ends_in_a_named_error(rows, tmp_path):
    with (
        dask.config.set({"bigkernel.allowed-failures": 0}),
        connect("local", workers=1, memory_limit="600MB", dashboard=0) as client,
        pytest.raises(TaskAbandonedError, match=r"rows \d+:\d+.* use more memory per worker"),
    ):
        sweep(rows, Sums(D, Devour(10**9)), client=client, run=tmp_path / "run")


# ---------------------------------------------------------------- scheduler and driver


@pytest.mark.slow
def test_f6_a_killed_scheduler_ends_the_driver_and_the_job_is_resumed(fault_corpus, undisturbed, start, tmp_path):
    here = f"tcp://127.0.0.1:{free_port()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def process(role, *arguments):
        code = f"import sys; from distributed.cli.dask_{role} import main; sys.argv[0] = 'dask {role}'; main()"
        command = [sys.executable, "-c", code, *arguments, "--host", "127.0.0.1", "--no-dashboard"]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=tmp_path, env=environment)

    def cluster():
        options = ["--nthreads", "1", "--memory-limit", "1GB", "--death-timeout", "60"]
        scheduler = process("scheduler", "--port", here.rpartition(":")[2])
        return scheduler, [process("worker", here, *options) for _ in range(2)]

    command = ["fit", fault_corpus.path, "a.model", "--landmarks", "300", "--seed", "1", "--cluster", here]
    command += ["--run", "run", "--json"]
    scheduler, workers = cluster()
    try:
        driver = start(command, **HELD)
        driver.until(lambda: published(tmp_path / "run") >= 3, "three segments")
        below = [child for worker in workers for child in psutil.Process(worker.pid).children(recursive=True)]
        scheduler.kill()
        assert driver.wait(60) == 6  # a stall is reported after ten minutes
        assert re.search(r"StalledError: .*(cluster was lost|connection).*resume", driver.errors().replace("\n", " "))
        wait_until(lambda: all(worker.poll() is not None for worker in workers), what="workers that end")
        wait_until(lambda: not any(map(alive, below)), what="processes of nannies that end")
        before = published(tmp_path / "run")
        scheduler.wait()
        scheduler, workers = cluster()
        again = start([*command, "--resume"], **SLOW)
        assert again.wait() == 0, again.errors()
    finally:
        for each in (scheduler, *workers):
            each.kill()
            each.wait()
    assert json.loads(again.out.read_text())["resumed_segments"] == before
    assert same_model(tmp_path / "a.model", undisturbed)


@pytest.mark.parametrize(
    "signal_, code, where",
    [
        (signal.SIGKILL, -9, "threads"),
        pytest.param(signal.SIGKILL, -9, "local", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 75, "local", marks=pytest.mark.slow),
    ],
)
def test_f7_an_ended_driver_is_resumed_bit_by_bit(fault_corpus, undisturbed, start, tmp_path, where, signal_, code):
    command = ["fit", fault_corpus.path, "a.model", "--landmarks", "300", "--seed", "1"]
    command += ["--cluster", where, "--run", "run", "--json"]
    command += ["--workers", "2", "--dashboard-port", "0"] if where == "local" else []
    driver = start(command, **HELD)
    driver.until(lambda: published(tmp_path / "run") >= 3, "three segments")
    children = driver.workers()
    if signal_ == signal.SIGINT:
        os.killpg(driver.process.pid, signal_)  # as a terminal does: to all of the group
    else:
        driver.process.send_signal(signal_)
    assert driver.wait() == code
    wait_until(lambda: not any(map(alive, children)), what="workers that end with their driver")
    kept = published(tmp_path / "run")
    assert 3 <= kept < SEGMENTS
    (state,) = survey(tmp_path / "run")
    assert (state.state, state.segments_done) == ("interrupted", kept)
    if code == 75:
        assert leftovers(tmp_path / "run") == []
        assert "finished segments are kept, and --resume continues from them" in driver.errors()
        # all started segments are published
        started = {path.name for path in tmp_path.glob("run/moments/starts/0-*")}
        assert started == {path.stem for path in tmp_path.glob("run/moments/receipts/0-*.json")}
    again = start([*command, "--resume"], **SLOW)
    assert again.wait() == 0, again.errors()
    assert json.loads(again.out.read_text())["resumed_segments"] == kept
    n_starts = sum(len(path.read_text().splitlines()) for path in tmp_path.glob("run/moments/starts/0-*"))
    assert n_starts - SEGMENTS <= 2  # at most one repeated segment per worker
    assert leftovers(tmp_path / "run") == []
    assert same_model(tmp_path / "a.model", undisturbed)


BUSY = """
import signal, time
from bigkernel.engine import interrupts
interrupts.LAST_SECONDS = 0.5
signal.signal(signal.SIGINT, signal.default_int_handler)
with interrupts.terminable():
    while True:
        try:
            print("running", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            pass  # like a call that takes minutes
"""


@pytest.mark.parametrize("signal_, times", [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_f7_a_driver_that_ignores_interrupts_is_ended(start, signal_, times):
    driver = start(BUSY)
    for i in range(times):
        driver.until(lambda i=i: driver.out.read_text().count("running") > i, "a received signal")
        driver.process.send_signal(signal_)
    assert driver.wait(30) == 75


# ---------------------------------------------------------------- two drivers


@pytest.mark.slow
def test_f29_a_second_driver_is_refused_and_the_lock_of_a_dead_one_is_taken(fault_corpus, start, tmp_path):
    command = ["fit", fault_corpus.path, "a.model", "--landmarks", "300", "--run", "run"]
    first = start(command, **HELD)
    first.until(lambda: published(tmp_path / "run") >= 1, "a segment")
    first.process.send_signal(signal.SIGSTOP)  # frozen is not dead
    second = start([*command[:2], "b.model", *command[3:], "--resume"], **SLOW)
    assert second.wait() == 9
    assert f"RunLockedError: run: in use by process {first.process.pid} on {socket.gethostname()}" in second.errors()
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGCONT)
    first.process.kill()
    first.wait()
    third = start([*command, "--resume"], **SLOW)
    assert third.wait() == 0, third.errors()
    message = f"run: taking over the lock of process {first.process.pid} on {socket.gethostname()}, which died"
    assert message in third.errors()


def make_old(file):
    old = time.time() - 100
    os.utime(file, (old, old))


def require_taken_by_age(run, message):
    """Assert that the lock of a run is refused while it is new, and taken once it is old; return who left it."""
    with pytest.raises(RunLockedError, match=message):
        Lock(run).acquire()
    make_old(run / "lock.json")
    with locked(run) as lock:
        lock.require()
        return lock.left_by


def test_f29_the_lock_of_another_host_is_taken_by_its_age(tmp_path, monkeypatch):
    with locked(tmp_path), pytest.raises(RunLockedError, match=r"in use by process .*; --resume .* continues a run"):
        Lock(tmp_path).acquire()
    lock = Lock(tmp_path)
    monkeypatch.setattr("bigkernel.data.run_lock.socket.gethostname", lambda: "elsewhere")
    lock.acquire()
    monkeypatch.setattr("bigkernel.data.run_lock.socket.gethostname", lambda: "here")
    with pytest.raises(RunLockedError, match="on elsewhere"):
        Lock(tmp_path).acquire()
    make_old(tmp_path / "lock.json")
    other = Lock(tmp_path)
    other.acquire()
    assert other.left_by.endswith("on elsewhere")
    with pytest.raises(RunLockedError, match="another process took over the lock"):
        lock.require()
    lock.release()  # does not remove the lock of the other
    other.require()
    other.release()
    assert not (tmp_path / "lock.json").exists()


def test_f29_process_numbers_of_another_namespace_are_ignored(tmp_path, monkeypatch):
    """In a container with the name of this host, whose processes may be alive."""
    lock = Lock(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("bigkernel.data.run_lock._namespace", lambda: "pid:[1]")
        patch.setattr("bigkernel.data.run_lock._birth", lambda pid: "there")
        lock.acquire()
    require_taken_by_age(tmp_path, "in use by process")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "a", "pid": -1, "since": "", "birth": ""}'])
def test_f29_a_damaged_lock_is_refused_and_taken_by_its_age(tmp_path, content):
    path = tmp_path / "lock.json"
    path.write_text(content)
    left_by = require_taken_by_age(tmp_path, rf"^{path}: damaged or empty.* 0 s ago.*; remove the file")
    assert left_by == "an unknown process (lock.json is damaged)"


def test_f29_a_lock_that_cannot_be_removed_is_not_held(tmp_path, monkeypatch):
    """The process has ended its run on a disk that became read-only."""
    with monkeypatch.context() as patch, locked(tmp_path):
        patch.setattr(Path, "unlink", lambda *_, **__: os.stat("/nowhere"))
    assert (tmp_path / "lock.json").exists()
    with locked(tmp_path), pytest.raises(RunLockedError):
        Lock(tmp_path).acquire()


def test_f29_a_driver_frozen_while_it_takes_the_lock_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("bigkernel.data.run_lock.GUARD_SECONDS", 0.1)
    with open(tmp_path / ".lock", "a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        with pytest.raises(RunLockedError, match="another process has been taking the lock"):
            Lock(tmp_path).acquire()
    with locked(tmp_path):
        pass


def test_f29_a_driver_without_its_lock_stops_before_it_publishes_more(rows, tmp_path, touch):
    hold = Hold(plan_sweep(rows, SLEEPY).segments[3].start, str(tmp_path / "gate"))
    lock = tmp_path / "run" / "lock.json"

    def steal():
        lock.write_text('{"token": "of another"}')
        open_gate(hold)

    thief = call_when(hold.holding, steal)
    with pytest.raises(RunLockedError, match="another process took over the lock; stopping this one"):
        sweep(rows, Sums(D, Both((touch, hold))), client="threads", run=tmp_path / "run")
    thief.join(10)
    assert len(touch.starts()) < 2 * SEGMENTS


@pytest.mark.slow
def test_f16_a_cluster_that_loses_all_workers_ends_in_a_named_error(rows, touch):
    message = r"did not finish within 5 s .* workers: none; 1 lost since the start .* tcp://\S+: "
    with local_cluster(1) as cluster, Client(cluster, set_as_default=False) as client:
        sweep(rows, Sums(D), client=client)  # loads the libraries
        thread = call_when(touch.starts, lambda: cluster.scale(0))
        with dask.config.set({"bigkernel.stall-seconds": 5}), pytest.raises(StalledError, match=message):
            sweep(rows, Sums(D, Both((touch, Sleep(0.5)))), client=client)
        thread.join(10)


def test_f13_a_full_disk_of_a_run_is_refused_before_the_first_task(rows, tmp_path, touch, monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=10**5)
    monkeypatch.setattr("bigkernel.data.atomic_write.shutil.disk_usage", lambda _: usage)
    with pytest.raises(PlanTooLargeError, match=r"partial results needs up to .* MB free; free some space"):
        sweep(rows, Sums(D, touch), client="serial", run=tmp_path / "run")
    assert touch.starts() == []


def test_f13_a_disk_that_fills_up_ends_the_job_which_is_resumed_later(rows, tmp_path, tmpfs):
    disk, statistic = tmpfs("24M"), Bulky(D)  # partials of 0.8 MB
    twin = sweep(rows, statistic, client="serial")

    def run(**options):
        return sweep(rows, statistic, client="threads", run=disk / "run", **options)

    (disk / "ballast").write_bytes(bytes(22 * 10**6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bigkernel.engine.sweep.require_disk", lambda *_: None)  # the disk fills later
        with pytest.raises(DataError, match=r"(?i)no space|disk"):
            run()
    (disk / "ballast").unlink()
    assert bits(run(resume=True)) == bits(twin)
    assert leftovers(disk / "run") == []
