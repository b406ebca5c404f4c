"""The collector of cyclic garbage: rare while a command begins, as ever while it works, and untouched in a host."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from click.testing import CliRunner

from bigkernel.cli import main
from bigkernel.engine.interrupts import collect_as_usual

CODE = """
import atexit, gc, sys
from bigkernel.engine.interrupts import collect_as_usual, collect_rarely
usual, frozen = gc.get_threshold(), gc.get_freeze_count()
atexit.register(lambda: print(gc.get_freeze_count() == 0))  # called after what is registered later
collect_rarely()
collect_rarely()
rare = gc.get_threshold()
collect_as_usual()
kept, now = gc.get_freeze_count(), gc.get_threshold()
gc.unfreeze()
collect_as_usual()
print(rare[0] > 100 * usual[0], rare[1:] == usual[1:], now == usual, kept > frozen, gc.get_freeze_count() == 0)
"""

BEGUN = """
import gc, sys
from bigkernel.cli import main
sys.argv, usual = ["bigkernel", "--version"], gc.get_threshold()
try:
    main()
finally:
    print(gc.get_threshold()[0] > usual[0])
"""


def test_a_command_collects_rarely_until_it_works_and_not_when_it_ends():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 5 + ["False"]


def test_the_process_of_a_command_asks_for_it():
    done = subprocess.run([sys.executable, "-c", BEGUN], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"


def test_a_command_that_a_host_invokes_leaves_its_collector_alone():
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0
    with pytest.raises(SystemExit):
        main(["--version"])
    collect_as_usual()  # as the execution of a command does
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() <= frozen
