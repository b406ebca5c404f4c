"""Several hosts on one machine: daemons that end with their test, ports, and the fit that all must agree about."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from drivers import wait_until

from bigkernel import Gaussian, KernelRidge, executing
from bigkernel.data.corpus import Corpus
from bigkernel.engine.context import ExecutorChoice

# eight segments of a fit that takes a moment
CUT = {"bigkernel.min-segments": 8, "bigkernel.stall-seconds": 60}


def fit(rows: Corpus, client: ExecutorChoice, **options: Any) -> str:
    """The digest of all coefficients of a fit."""
    with executing(client, **options):
        model = KernelRidge(Gaussian(2.0), alpha=1e-3, n_landmarks=80, random_state=0).fit(rows)
    return hashlib.sha256(model.dual_coef_.tobytes()).hexdigest()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listens(host: str, port: int) -> bool:
    """Whether somebody answers there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


class Daemon:
    """A process in a session of its own, its log, and all that it has started."""

    def __init__(self, words: Sequence[object], log: Path, **options: Any) -> None:
        self.log = log
        with open(log, "a") as out:
            self.process = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                **options,
            )

    def ready(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        """Wait until it serves; its log where it does not."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"{self.process.args} ended: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{self.process.args} does not serve: {self.log.read_text()[-2000:]}"
            time.sleep(0.02)

    def end(self) -> None:
        """End it and what it has started."""
        family = [self.process.pid]
        with suppress(psutil.Error):
            family += [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


def marked(mark: str) -> list[psutil.Process]:
    """The processes with MARK=`mark` in their environment, whoever their parents are."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("MARK") == mark:
                found.append(process)
    return found


def wait_until_gone(mark: str, seconds: float = 90.0) -> None:
    """Wait until no process has this mark."""
    wait_until(lambda: not marked(mark), seconds, f"the end of {marked(mark)}")
