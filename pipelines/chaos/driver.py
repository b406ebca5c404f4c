"""A fit in a process of its own, its workers below it, and what both leave in the run directory.

The process is the real command line (`bigkernel fit … --cluster local --run DIR`). Its workers are those of its
children that multiprocessing spawned; the nannies that replace them are threads of the driver. Everything here looks
from outside, by process numbers and files, and touches no process but its own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from bigkernel import errors
from bigkernel.models.file import LIMIT_BYTES, opened
from bigkernel.models.persistence import check_model

TTL_SECONDS = 5  # bigkernel.worker-ttl-seconds of the drivers: a frozen worker is replaced after it
STALL_SECONDS = 60  # bigkernel.stall-seconds of the drivers


@dataclass(frozen=True)
class Fit:
    """The job that all drivers do.

    Attributes
    ----------
    corpus : absolute path
    landmarks : m
    workers : processes of the local cluster
    segment_rows : rows of one segment, a chunk of the corpus
    segments : of the sweep
    seed : of the draw of landmarks
    """

    corpus: Path
    landmarks: int
    workers: int
    segment_rows: int
    segments: int
    seed: int

    def command(self, model: Path, run: Path, *, resume: bool) -> list[str]:
        """`bigkernel fit` by this interpreter."""
        words: list[Any] = [sys.executable, "-c", "from bigkernel.cli import main; main()", "fit", self.corpus, model]
        words += ["--transform", "unit-norm", "--sigma", 0.7, "--alpha", 1, "--landmarks", self.landmarks]
        words += ["--seed", self.seed, "--cluster", "local", "--workers", self.workers, "--dashboard-port", 0]
        words += ["--run", run, *(["--resume"] if resume else [])]
        return [str(word) for word in words]

    def environment(self, scratch: Path) -> dict[str, str]:
        """This process's own, with the settings of the job; workers spill below `scratch`."""
        return {
            **os.environ,
            "DASK_BIGKERNEL__WORKER_TTL_SECONDS": str(TTL_SECONDS),
            "DASK_BIGKERNEL__STALL_SECONDS": str(STALL_SECONDS),
            "DASK_BIGKERNEL__SEGMENT_ROWS": str(self.segment_rows),
            "TMPDIR": str(scratch),
        }


class Driver:
    """A running fit; used as a context manager, after which none of its processes is left.

    Parameters
    ----------
    fit : the job
    directory : of the round; holds the run, the model and what each driver printed
    number : of the driver in its round, from 1; later ones resume
    """

    def __init__(self, fit: Fit, directory: Path, number: int) -> None:
        scratch = directory / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        self.output = directory / f"driver-{number}.log"
        with open(self.output, "wb") as said, open(directory / f"driver-{number}.txt", "wb") as figures:
            self.process = subprocess.Popen(
                fit.command(directory / "fitted.model", directory / "run", resume=number > 1),
                env=fit.environment(scratch),
                stdin=subprocess.DEVNULL,
                stdout=figures,
                stderr=said,
                start_new_session=True,  # Ctrl-C here ends it through `__exit__`, not beside it
            )
        self._family: dict[int, psutil.Process] = {}
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def workers(self) -> list[psutil.Process]:
        """Its worker processes now, by number."""
        return [process for process in self.family() if _runs(process, "spawn_main")]

    def family(self) -> list[psutil.Process]:
        """All processes below it that were ever seen and are alive, by number."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            below = []
        self._family.update({process.pid: process for process in below if process.pid not in self._family})
        self._family = {pid: process for pid, process in self._family.items() if lives(process)}
        return sorted(self._family.values(), key=lambda process: process.pid)

    def lines(self) -> list[str]:
        """Return whole lines that it wrote on standard error since the last call."""
        with open(self.output, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return [line for line in whole.decode(errors="replace").splitlines() if line.strip()]

    def last_lines(self, count: int = 12) -> list[str]:
        """The end of what it has said."""
        return self.output.read_text(errors="replace").splitlines()[-count:]

    def remaining(self, seconds: float) -> list[psutil.Process]:
        """Those of its family that are alive still after at most `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def release(self, worker: psutil.Process) -> list[psutil.Process]:
        """Let a worker outlive the driver, which must be dead; the processes that are of the family no more.

        The resource tracker of multiprocessing stays as long as one that it serves is there.
        """
        gone = [worker, *(process for process in self.family() if _runs(process, "resource_tracker"))]
        for process in gone:
            self._family.pop(process.pid, None)
        return gone

    def end(self) -> None:
        """Kill it and its family; nothing happens where they are gone."""
        family = self.family()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for process in family:
            send(process, signal.SIGKILL)
        self.remaining(10)


def kind_of(line: str) -> str:
    """Return the kind of a driver's line: "progress", "incident", or "log" for what Dask and Python say."""
    if re.match(r"dashboard: |[\w-]+: \d+ of \d+ segments, ", line):
        return "progress"
    ours = line.partition(":")[0] in vars(errors) or re.match(r"[a-z][\w-]*: |/|interrupted|\w+Warning: ", line)
    return "incident" if ours and "resource_tracker" not in line else "log"


def lives(process: psutil.Process) -> bool:
    """True where a process is there and not only waiting to be reaped."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def send(process: psutil.Process, number: signal.Signals) -> bool:
    """Send a signal; False where the process is gone (psutil looks at its birth, so no other one is hit)."""
    try:
        process.send_signal(number)
    except psutil.Error:
        return False
    return True


def _runs(process: psutil.Process, what: str) -> bool:
    """True where a word of its command line holds `what`."""
    try:
        return any(what in word for word in process.cmdline())
    except psutil.Error:
        return False


def addresses_of(process: psutil.Process) -> set[str]:
    """Return the address of a worker, such as "tcp://127.0.0.1:40123"; empty while it starts, or when it is gone."""
    try:
        found = [c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return set()
    return {f"tcp://{place.ip}:{place.port}" for place in found}


@dataclass(frozen=True)
class Ledger:
    """Read the state of a run's segments from its files.

    Attributes
    ----------
    starts : who began a segment, in order, by segment
    finished : segments that have a receipt
    """

    starts: dict[str, list[str]]
    finished: frozenset[str]

    @property
    def open(self) -> dict[str, str]:
        """Segments begun and not finished, each with who began it last."""
        return {node: who[-1] for node, who in self.starts.items() if who and node not in self.finished}

    @property
    def repeats(self) -> int:
        """Times that a segment was begun again."""
        return sum(max(0, len(who) - 1) for who in self.starts.values())

    def begun_again(self, later: Ledger) -> list[str]:
        """Segments that were finished here and were begun once more before `later`."""
        return [node for node in sorted(self.finished) if len(later.starts.get(node, [])) > len(self.starts[node])]


def ledger(run: Path) -> Ledger:
    """The segments of all sweeps of a run, by sweep and node ("moments/0-3")."""
    starts = {_name(file): file.read_text().splitlines() for file in run.glob("*/starts/0-*")}
    return Ledger(starts, frozenset(_name(file) for file in run.glob("*/receipts/0-*.json")))


def _name(file: Path) -> str:
    return f"{file.parts[-3]}/{file.stem}"


def differences(model: Path, other: Path) -> list[str]:
    """Return the names of arrays in which two model files differ, or "model" where their descriptions do.

    Raises
    ------
    ModelRejected, DataError
        One of them is not sound, or not there.
    """
    described = []
    for path in (model, other):
        check_model(path)
        with opened(path, limit_bytes=LIMIT_BYTES) as contents:
            described.append((contents.values, contents.crc32))
    (mine, sums), (theirs, other_sums) = described
    found = [name for name in sorted({*sums, *other_sums}) if sums.get(name) != other_sums.get(name)]
    return found if mine == theirs else [*found, "model"]


def leftovers(directory: Path) -> list[str]:
    """Half-written `.partial` files and locks in the directory of a round, relative to it."""
    found = [*directory.rglob("*.partial"), *directory.rglob("lock.json")]
    return sorted(str(path.relative_to(directory)) for path in found)


def clear(directory: Path) -> None:
    """Remove what earlier rounds have left in `directory`, which is made where it is not there.

    Raises
    ------
    DataError
        It holds something that no round has left.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rounds = sorted(directory.iterdir())
    strange = [path.name for path in rounds if not (path.name == "undisturbed" or path.name.isdigit())]
    if strange:
        raise errors.DataError(
            f"{directory}: would be cleared, but {strange[0]} is not of a round; choose another --out"
        )
    for path in rounds:
        shutil.rmtree(path)
