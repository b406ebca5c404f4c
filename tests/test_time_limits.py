"""A test that reaches its time limit names the phase, the sweep and the processes that took it."""

import os
import re
import subprocess
import sys
from pathlib import Path

SLOW = """
import subprocess, time
import pytest
from bigkernel.events.job import Note, Step, emit

@pytest.fixture
def prepared():
    time.sleep(0.1)

@pytest.mark.timeout(2)
def test_that_waits_for_a_process(prepared):
    emit(Step("solves", 3, 7))
    with subprocess.Popen(["sleep", "61.5"]) as process:
        try:
            process.wait()
        finally:
            process.kill()

def test_that_is_quick():
    emit(Note("nothing to see"))
"""


def test_a_time_limit_names_what_took_it(tmp_path):
    (tmp_path / "test_slow.py").write_text(SLOW)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).with_name("support"))}
    options = [
        "-p",
        "time_limits",
        "-p",
        "no:zarr",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
    ]
    command = [sys.executable, "-m", "pytest", *options, tmp_path]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^-+ Captured what took it call -+$", done.stdout, re.MULTILINE)
    assert re.search(r"^setup: \d+\.\d s$", done.stdout, re.MULTILINE)
    assert re.search(r"^call: \d+\.\d s$", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+\.\d s ago: Step\(what='solves', done=3, total=7\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^process \d+, \d+\.\d s of processor in \d+ s: sleep 61\.5$", done.stdout, re.MULTILINE)
    assert "nothing to see" not in done.stdout
