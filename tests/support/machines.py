"""Several hosts on one machine: daemons that end with their test, ports, and a fit to compare."""

import hashlib
import os
import random
import signal
import socket
import subprocess
import time
from contextlib import suppress

import psutil
from drivers import wait_until

from bigkernel import Gaussian, KernelRidge, executing

CUT = {"bigkernel.min-segments": 8, "bigkernel.stall-seconds": 60}  # eight segments of a short fit


def fit(rows, client, **options):
    """Return the digest of the coefficients of a fit."""
    with executing(client, **options):
        model = KernelRidge(Gaussian(2.0), alpha=1e-3, n_landmarks=80, random_state=0).fit(rows)
    return hashlib.sha256(model.dual_coef_.tobytes()).hexdigest()


def free_port(host="127.0.0.1"):
    """Return a free port, not one of those from 32,768 that outgoing connections of other tests may take meanwhile."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port


def listens(host, port):
    """Return whether a server accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


class Daemon:
    """A process in its own session, with its log and children."""

    def __init__(self, command, log, **options):
        self.log = log
        with open(log, "a") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            self.process = subprocess.Popen(list(map(str, command)), **streams, start_new_session=True, **options)

    def ready(self, condition, seconds=90.0):
        """Wait until it serves; fail with its log."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"{self.process.args} ended: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{self.process.args} does not serve: {self.log.read_text()[-2000:]}"
            time.sleep(0.02)

    def end(self):
        """End it and its children."""
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


def marked(mark):
    """Return the processes with MARK=`mark` in their environment."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("MARK") == mark:
                processes.append(process)
    return processes


def wait_until_gone(mark, seconds=90.0):
    """Wait until no process has this mark."""
    wait_until(lambda: not marked(mark), seconds, f"the end of {marked(mark)}")
