"""`bigkernel watch`: a job by its scheduler or its run directory: running, ended, lost."""

import io
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import simulated
from click.testing import CliRunner
from rich.console import Console

from bigkernel.cli import main
from bigkernel.cli import runs as watching
from bigkernel.data import run_lock
from bigkernel.data.run_directory import command_of, survey, write_sealed
from bigkernel.engine.context import executing
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, StalledError
from bigkernel.events import journal
from bigkernel.events.plugin import board_of
from bigkernel.events.sinks import install_monitor
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.monitor import report
from bigkernel.monitor.report import RunReader
from bigkernel.statistics.moments import FeatureSums

X = np.random.default_rng(0).normal(size=(200, 3))
STATISTIC = FeatureSums(IdentityMap(np.zeros(3)))
HERE = {"host": socket.gethostname(), "pid": os.getpid()}  # the holder of locks in these tests
STARTED = {"kind": "job_started", "job": "later", "title": "fit later", "run": "", **HERE}


def invoke(*arguments, code=0):
    """Run `watch` in this process, 80 columns wide, and return its result; the exit code must be `code`."""
    result = CliRunner().invoke(main, ["watch", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def state(*arguments, code=0):
    """Return the state that --once --json prints."""
    (line,) = invoke(*arguments, "--once", "--json", code=code).stdout.splitlines()
    return json.loads(line)


def write(run, messages):
    """Append messages to the journal of a run directory, with recent times."""
    run.mkdir(exist_ok=True)
    messages = list(messages)
    late = time.time() - messages[-1][1] - 1
    with open(run / journal.NAME, "a") as file:
        for message, at in messages:
            file.write(json.dumps({"time": at + late, **message}) + "\n")


def ended(job="simulated", how="finished", error=""):
    return [({"kind": "job_ended", "job": job, "sweep": "", "state": how, "error": error}, time.time())]


def dead_lock(run):
    """Write the lock of a process of this host that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    content = {"token": "", "host": os.uname().nodename, "pid": process.pid, "birth": "long ago", "since": "then"}
    (run / run_lock.NAME).write_text(json.dumps(content))


def half_way(here):
    """Yield the messages of a job that is half done; its driver runs on node1, or as `here` says."""
    for message, at in simulated.messages(40, 3):
        yield ({**message, **here} if message["kind"] == "job_started" else message), at


@pytest.fixture
def half(tmp_path):
    """Make a run directory with the journal of a job of this process that is half done."""
    write(tmp_path / "job.run", half_way(HERE))
    return tmp_path / "job.run"


@pytest.fixture
def left(tmp_path):
    """Make a run directory with the journal of such a job of a driver on another host, which went silent."""
    write(tmp_path / "job.run", half_way({}))
    return tmp_path / "job.run"


@pytest.fixture
def follow():
    """Return a function that starts `watch` in a thread and returns a function that waits for its result."""
    threads = []

    def start(*arguments):
        found = SimpleNamespace()

        def work():
            found.result = CliRunner().invoke(main, ["watch", *map(str, arguments), "--interval", "0.1"])

        thread = threading.Thread(target=work)
        thread.start()
        threads.append(thread)

        def result():
            thread.join(20)
            assert not thread.is_alive(), "watch has not ended"
            return found.result

        return result

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_finished_run_is_shown_and_ends_with_0(tmp_path, small_steps):
    run = tmp_path / "job.run"
    with executing("serial", run=run, command=["bigkernel", "fit", "c", "m"]):
        sweep(as_rows(X), STATISTIC, what="means")
    found = state(run)
    (job,) = found["jobs"]
    assert (job["state"], job["title"]) == ("finished", "bigkernel fit c m")
    (swept,) = job["sweeps"]
    assert swept["rows_done"] == swept["rows"] == 200
    assert (found["run"]["holder"], found["run"]["state"]) == ("", "finished")
    shown = invoke(run, "--once").stdout
    assert shown.startswith("finished ")
    assert "to resume" not in shown
    assert invoke(run).stdout.splitlines()[-1].startswith("finished ")


def test_a_run_is_watched_while_its_driver_runs(half):
    with run_lock.locked(half):
        found = state(half)
        text = invoke(half, "--once").stdout
    assert [job["state"] for job in found["jobs"]] == ["running"]
    assert found["run"]["holder"] == f"process {os.getpid()} on {os.uname().nodename}"
    assert "20/40" in text
    assert "died" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_changes_are_printed_as_lines_until_the_job_ends(half, follow):
    with run_lock.locked(half):
        result = follow(half)
        time.sleep(0.3)
        done = [pair for pair in simulated.messages(40, 3, finished=True) if pair[0]["kind"] == "segment"]
        write(half, done[20:30])
        time.sleep(0.3)
        note = {"kind": "note", "job": "simulated", "sweep": "", "text": "[bold]the solve[/bold]"}
        write(half, [(note, time.time()), *ended()])
    lines = result().stdout.splitlines()
    assert result().exit_code == 0
    assert [line for line in lines if line.startswith("moments: 20 of 40 segments, ")]
    assert [line for line in lines if line.startswith("moments: 30 of 40 segments, ")]
    assert any(line.endswith(" [bold]the solve[/bold]") for line in lines)
    assert lines[-1].startswith("finished ")
    assert len(lines) == len(set(lines))


def test_a_replaced_journal_is_read_from_the_beginning(half):
    source = RunReader(half)
    with run_lock.locked(half):
        source.look()
        (half / journal.NAME).unlink()
        write(half, [(STARTED, 1.0)])
        assert [job["id"] for job in source.look()["jobs"]] == ["later"]


def test_the_run_of_a_dead_driver_shows_how_to_resume_it(left):
    (left / "command.json").write_text(json.dumps({"command": ["bigkernel", "fit", "c", "m", "--run", "job.run"]}))
    dead_lock(left)
    os.utime(left / run_lock.NAME, (time.time() - 200, time.time() - 200))
    found = state(left, code=6)
    assert [job["state"] for job in found["jobs"]] == ["lost"]
    lines = invoke(left, code=6).stdout.splitlines()
    # the lock was touched 200 s ago, the last message is of a second ago; the simulation leaves no receipts
    assert re.fullmatch(r"the driver \(process 4242 on node1\) died [\d.]+ m?s ago; no segment is kept yet", lines[-2])
    assert lines[-1] == "to resume: bigkernel fit c m --run job.run --resume"


def test_the_clock_of_a_lost_job_stops(half):
    dead_lock(half)
    source = RunReader(half)
    first = source.look()["jobs"][0]["sweeps"][0]["elapsed_seconds"]
    time.sleep(0.1)
    assert source.look()["jobs"][0]["sweeps"][0]["elapsed_seconds"] == first


def test_the_job_that_resumes_a_lost_one_is_followed(left, follow):
    write(left, [(STARTED, 1.0)])
    with run_lock.locked(left):
        result = follow(left)
        time.sleep(0.3)
        write(left, ended("later"))
    assert result().exit_code == 0
    assert "fit simulated: the driver died" in result().stdout
    assert result().stdout.splitlines()[-1].endswith("fit later")


def line_of(kind, **changes):
    return json.dumps({"time": time.time(), "kind": kind, "job": "simulated", "sweep": "simulated-sweep", **changes})


SWEEP = {"sweep": "t", "what": "x", "executor": "dask", "run": "", "planned_bytes": 1}
RECEIPT = {"node": "0-30", "worker": "a", "resumed": False, "elapsed": 1, "peak_bytes": 1, "starts": 1, "seconds": {}}
LINES = {
    "no receipt": line_of("segment", receipt=None),
    "an end without seconds": line_of("sweep_ended"),
    "a time far off": line_of("note", text="x", time=1e300),
    "an end far off": line_of("job_ended", state="failed", time=1e300),
    "an endless step": line_of("step", what="x", done=1, total=10**400),
    "a step of lists": line_of("step", what=["x"], done=1, total=3),
    "long stages": line_of("spent", stage="x", seconds=1e308),
    "deep figures": line_of("figures", name="x", values=7).replace("7}", "[" * 500 + "]" * 500 + "}"),
    "a large plan": line_of("sweep_started", **SWEEP, plan={"flops": 1e308, "rows": 1}, stops=[1]),
    "endless rows": line_of("sweep_started", **SWEEP, plan={"flops": 1, "rows": 1}, stops=[10**400]),
    "a numbered worker": line_of("segment", receipt={**RECEIPT, "worker": 7}),
    "a long segment": line_of("segment", receipt={**RECEIPT, "elapsed": 1e308}),
    "an endless pulse": line_of("pulse", node="0-39", rows=10**400, worker="x"),
}


def test_no_line_of_a_journal_stops_watch(tmp_path):
    for name, line in LINES.items():
        run = tmp_path / name
        write(run, half_way(HERE))
        with open(run / journal.NAME, "a") as file:
            file.write(line + "\n")
        with run_lock.locked(run):
            invoke(run, "--once")
            before = state(run)["jobs"][0]["sweeps"][0]
            assert (before["state"], before["segments"]["failed"]) == ("running", 0), name
            write(run, [(STARTED, time.time())])
            assert state(run)["jobs"][0]["id"] == "later", f"{name}: later lines are read"


@pytest.mark.parametrize("how, code", [("finished", 0), ("failed", 1), ("fnished", 1), ("interrupted", 75)])
def test_the_exit_code_is_that_of_the_outcome(half, how, code):
    write(half, ended(how=how, error="DataError: row 3" if how == "failed" else ""))
    result, shown = invoke(half, code=code), "failed" if code == 1 else how
    assert invoke(half, "--once", code=code).stdout.startswith(f"{shown} ")
    assert result.stdout.splitlines()[-1 if code == 0 else -2].startswith(f"{shown} ")
    assert ("DataError: row 3" in result.stdout) == (how == "failed")


def test_a_run_without_a_journal_is_described_by_its_receipts(tmp_path, small_steps):
    run = tmp_path / "job.run"
    sweep(as_rows(X), STATISTIC, client="serial", run=run)
    (run / journal.NAME).unlink(missing_ok=True)
    assert invoke(run).stdout == f"{run} is finished; details are missing, as its last driver kept no journal\n"
    shutil.rmtree(next((run / "partials").glob("3-0")))
    for receipt in sorted((run / "receipts").iterdir())[1:]:
        receipt.unlink()
    text = invoke(run, code=75).stdout
    assert f"no driver is running in {run}; 1 of 5 segments of the sweeps begun are kept" in text
    with run_lock.locked(run):
        text = invoke(run, "--once").stdout
    assert f"process {os.getpid()} on {os.uname().nodename} is running, without a journal; 1 of 5 segments" in " ".join(
        text.split()
    )


@pytest.mark.parametrize(
    "what, options, code, found",
    [
        ("nothing", (), 3, "found nothing"),
        ("file", (), 3, "found a file"),
        ("empty", (), 3, "found no run"),
        ("empty", ("--tls", "."), 2, "--tls: expected an address"),
        ("tcp://127.0.0.1:9", (), 6, "check that it is running"),
    ],
)
def test_other_places_are_refused(tmp_path, monkeypatch, what, options, code, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with dask.config.set({"bigkernel.stall-seconds": 1}):
        assert found in invoke(what, *options, code=code).stderr


# ---------------------------------------------------------------- a scheduler


def test_a_job_on_a_cluster_is_watched_from_its_scheduler(cluster, client, make_corpus, follow, small_steps):
    with executing(client, command=["bigkernel", "fit", "c", "m"]):
        sweep(as_rows(make_corpus(X.astype("f4"))), STATISTIC, what="means")
    found = state(cluster.scheduler_address)
    job = next(job for job in found["jobs"] if job["title"] == "bigkernel fit c m")
    assert (job["state"], job["sweeps"][0]["rows_done"]) == ("finished", 200)
    assert len(found["workers"]) == 2
    assert all(worker["memory_bytes"] > 0 for worker in found["workers"].values())


@pytest.mark.parametrize("how, code", [("failed", 1), ("lost", 6)])
def test_a_job_on_a_scheduler_is_followed_to_its_end(client, cluster, follow, monkeypatch, how, code):
    assert install_monitor(client)
    answered, ask = threading.Semaphore(0), watching.ask_scheduler

    def ask_and_count(*arguments):
        answer = ask(*arguments)
        answered.release()
        return answer

    monkeypatch.setattr(watching, "ask_scheduler", ask_and_count)
    board, name = board_of(cluster.scheduler), f"followed-{how}"
    client.sync(_apply, board, simulated.messages(40, 3, job=name))
    result = follow(cluster.scheduler_address)
    for _ in range(5):  # lines of progress come after the first state
        assert answered.acquire(timeout=20)
    client.sync(_apply, board, ended(name, how))
    assert result().exit_code == code
    assert result().stdout.splitlines()[-1].startswith(f"{how} ")
    assert "moments: 20 of 40 segments, " in result().stdout


async def _apply(board, messages):
    """Apply messages in the event loop of the scheduler, as the plugin does."""
    for message, _ in messages:
        board.apply(message, time.time())


class Client:
    """A client whose scheduler gives `answers` in order; errors are raised."""

    status = "running"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.scheduler = SimpleNamespace(address="tcp://127.0.0.1:1")

    def run_on_scheduler(self, function, **options):
        assert options == {"callback_timeout": watching.ASK_SECONDS}, "every wait is bounded"
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


ANSWERS = [
    (None, ConfigError, "found no bigkernel job on this scheduler; start one with --cluster"),
    (OSError("in <closed>"), StalledError, "the scheduler does not answer"),
    (TimeoutError(), StalledError, "the scheduler does not answer"),
    (ImportError("no bigkernel"), ConfigError, "bigkernel"),
    (AttributeError("state_of"), ConfigError, "bigkernel"),
    ({"version": 99}, ConfigError, "expected job states of version"),
]


@pytest.mark.parametrize("answer, error, message", ANSWERS)
def test_a_scheduler_without_a_state_of_jobs_is_refused(answer, error, message):
    with pytest.raises(error, match=message):
        watching.ask_scheduler(Client(answer), "tcp://a:1")


def test_json_output_is_one_object_a_line(half, follow):
    with run_lock.locked(half):
        result = follow(half, "--json")
        time.sleep(0.4)
        write(half, ended())
    states = [json.loads(line)["jobs"][0]["state"] for line in result().stdout.splitlines()]
    assert states == sorted(states, reverse=True), "running, then finished"
    assert set(states) == {"running", "finished"}


def test_an_interrupted_watch_does_not_stop_the_job(half, monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "time", SimpleNamespace(**{**vars(time), "sleep": interrupted}))
    with run_lock.locked(half) as lock:
        result = invoke(half, code=75)
        lock.require()
    assert result.stderr == "stopped watching; the job continues\n"


def test_a_terminal_is_redrawn_in_place(half):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=40, color_system=None)
    source = RunReader(half)
    with run_lock.locked(half), watching.shown(console, as_json=False, once=False) as show:
        show(source.look())
        show(source.look())
    text = stream.getvalue()
    assert text.count("fit simulated") == 3, "once more when it ends, and stays"
    assert "\x1b[1A\x1b[2K" in text, "lines are erased"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lock.json", '{"host": "h", "pid": 1e999, "since": "", "birth": ""}'),
        ("lock.json", 100_000 * "["),
        ("command.json", 100_000 * "["),
        ("sums/manifest.json", 100_000 * "["),
        ("sums/manifest.json", '{"plan": {"segments": 1e999}}'),
        ("sums/manifest.json", '{"plan": {"segments": 1000000000000}}'),
    ],
)
def test_invalid_files_of_a_run_directory_are_survived(tmp_path, name, content):
    with executing("serial", run=tmp_path, command=["x"]):
        sweep(as_rows(X), STATISTIC, what="sums")
    path = tmp_path / name
    path.write_text(content)
    if content.startswith("{") and name.endswith("manifest.json"):
        write_sealed(path, json.loads(content))
    assert [state.state for state in survey(tmp_path)] == ["unreadable" if "manifest" in name else "finished"]
    assert command_of(tmp_path) == ([] if name == "command.json" else ["x"])
    assert report.write(tmp_path).is_file()
