"""Drivers in their own processes, for tests that kill, freeze and interrupt them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from bigkernel.models.file import LIMIT_BYTES, opened

N, D, SEGMENTS = 10_240, 32, 16
# processes in the background of a shell, and their children, ignore Ctrl-C
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
SLOW = {"DASK_BIGKERNEL__BLOCK_ROWS": "64"}  # a fit takes a few seconds
# SLOW, and slower from the third segment on: time to signal a driver on a busy machine
HELD = {**SLOW, "DASK_DISTRIBUTED__WORKER__PRELOAD": '["slow_publish"]'}


def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_until(condition, seconds=90.0, what=""):
    """Wait for a condition, long enough for a machine that is ten times slower."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what or condition}")
        time.sleep(0.01)


class Driver:
    """A command of bigkernel, or Python code, in its own process group."""

    def __init__(self, arguments, cwd, **environment):
        code = "from bigkernel.cli import main; main()" if not isinstance(arguments, str) else arguments
        command = [] if isinstance(arguments, str) else list(map(str, arguments))
        code = f"import slow_publish\n{code}" if HELD.items() <= environment.items() else code
        here = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.out, self.err = cwd / f"out-{time.monotonic_ns()}", cwd / f"err-{time.monotonic_ns()}"
        with open(self.out, "w") as out, open(self.err, "w") as err:
            own = {"PYTHONPATH": os.pathsep.join(here), "PYTHONFAULTHANDLER": "1"}
            own |= {"DASK_BIGKERNEL__MIN_SEGMENTS": str(SEGMENTS), **environment}
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{HEARS_CTRL_C}\n{code}", *command],
                cwd=cwd, stdout=out, stderr=err, env={**os.environ, **own}, start_new_session=True,
            )  # fmt: skip

    def workers(self):
        """Return its worker processes."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
            return [p for p in below if "spawn_main" in " ".join(p.cmdline())]
        except psutil.Error:
            return []

    def until(self, condition, what):
        """Wait for a condition; fail with standard error if the process ends before."""
        met = False

        def met_or_ended():
            nonlocal met
            ended = self.process.poll() is not None
            met = bool(condition())  # evaluated once, as it may be short-lived
            return met or ended

        wait_until(met_or_ended, what=what)
        assert met, f"it ended with {self.process.returncode} before {what}: {self.errors()[-20000:]}"

    def wait(self, seconds=120.0):
        """Return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.process.send_signal(signal.SIGABRT)  # prints the stack of every thread
            self.process.wait(10)
            self.end()
            raise AssertionError(f"no end after {seconds} s: {self.errors()[-20000:]}") from error

    def errors(self):
        """Return its standard error."""
        return self.err.read_text()

    def end(self):
        """Kill its remaining processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def published(run):
    """Return the number of segments that a run has published, in all of its sweeps."""
    return len(list(run.glob("*/receipts/0-*.json"))) + len(list(run.glob("receipts/0-*.json")))


def same_model(a, b):
    """Return whether two models have the same bits."""
    return sums_of(a) == sums_of(b)


def sums_of(model):
    """Return the checksum of every array of a model file."""
    with opened(model, limit_bytes=LIMIT_BYTES) as contents:
        return contents.crc32


def leftovers(run):
    """Return half-written files and directories."""
    return [path for path in run.rglob("*") if path.name.endswith((".partial", ".old"))]
