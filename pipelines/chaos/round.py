"""One fit of the chaos pipeline: its drivers are watched, disturbed and ended, and what they leave is looked at."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bigkernel.data.run_status import survey
from bigkernel.errors import BigKernelError
from pipelines.chaos.driver import (
    STALL_SECONDS,
    TTL_SECONDS,
    Driver,
    Fit,
    Ledger,
    addresses_of,
    kind_of,
    ledger,
    leftovers,
    lives,
    send,
)

POLL_SECONDS = 0.1
SOON_SECONDS = 0.5
PATIENCE_SECONDS = STALL_SECONDS + 30.0  # a driver that finishes no segment for this long hangs
REPLACED_SECONDS = TTL_SECONDS + 30.0  # the longest that a frozen or a dead worker may stay without a successor
GONE_SECONDS = 15.0  # for the workers of a dead driver to notice
EXIT_SECONDS = 60.0  # for a driver to end after SIGTERM: it waits for the segments under way
MOST_MORE = 4  # segments of each worker that a driver may still see finished after a signal to end
INTERRUPTED = 75
DEATHS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)  # of the drivers of a round


class Trouble(Exception):
    """A promise that was not kept: the round is over, and the pipeline ends with exit code 1."""

    def __init__(self, text: str, last_lines: list[str] | None = None) -> None:
        super().__init__(text)
        self.last_lines = last_lines or []


@dataclass
class Log:
    """Events, each a line of JSON with the seconds since the start, and a line for who watches."""

    path: Path
    say: Callable[[str], None]
    _start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.path.write_text("")

    def __call__(self, event: str, text: str, *, quiet: bool = False, **more: Any) -> None:
        """Write an event; `text` is for people, who are spared it where it is `quiet`."""
        seconds = self.seconds()
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": round(seconds, 3), "event": event, "text": text, **more}) + "\n")
        if not quiet:
            self.say(shorten(f"{seconds:7.1f} s  {text}"))

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start


def shorten(text: str) -> str:
    """Return the characters that fit a line of the terminal; 80 where there is none."""
    width = shutil.get_terminal_size().columns
    return text if len(text) <= width else f"{text[: width - 1]}…"


@dataclass
class Record:
    """A round: what was done to it and what came of it; seconds count from its beginning.

    Attributes
    ----------
    name : "undisturbed", or the number of the round
    drivers : (begin, end, how it ended) of every driver
    kills : when workers were killed
    freezes : (begin, end) of workers that were frozen
    segments : of the run
    again : times that a segment was begun again
    in_flight : segments that were under way on healthy workers when a driver died, one number a death
    identical : the model is the undisturbed one; None: there is none to compare
    trouble : what went wrong; empty: nothing
    last_lines : of the driver that it went wrong with
    """

    name: str
    seconds: float = 0.0
    drivers: list[tuple[float, float, str]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    freezes: list[tuple[float, float]] = field(default_factory=list)
    segments: int = 0
    again: int = 0
    in_flight: list[int] = field(default_factory=list)
    identical: bool | None = None
    trouble: str = ""
    last_lines: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True where it has finished after every kind of disturbance."""
        return bool(self.identical and self.kills and self.freezes and len(self.drivers) == len(DEATHS) + 1)


@dataclass
class Frozen:
    """A stopped worker, since when; whether its driver has died meanwhile, and whether it was let go then."""

    process: psutil.Process
    since: float
    orphan: bool = False
    awake: bool = False


class Round:
    """One fit from beginning to end, by as many drivers as it takes.

    Parameters
    ----------
    fit, directory : the job, and where the run, the model and the drivers' words go
    name : "undisturbed" or a number
    log : of all events
    rng : draws deaths and victims; None: nothing is disturbed
    every : mean seconds between disturbances of workers
    """

    def __init__(
        self, fit: Fit, directory: Path, name: str, log: Log, rng: np.random.Generator | None, every: float
    ) -> None:
        self.record = Record(name)
        self._fit, self._directory, self._log, self._rng, self._every = fit, directory, log, rng, every
        self._begun = time.monotonic()
        self._frozen: list[Frozen] = []
        self._orphans: list[psutil.Process] = []  # processes that have outlived their driver
        self._lost = 0  # workers that the drivers have missed
        self._struck: set[str] = set()  # addresses of workers that were killed or frozen
        self._before: list[Ledger] = []  # what the run held when a driver died
        self._pending: list[tuple[int, signal.Signals]] = []  # segments finished, and the death of the driver then
        self._next: list[str] = []
        if rng is not None:
            counts = np.sort(rng.choice(np.arange(1, fit.segments - 3), len(DEATHS), replace=False))
            self._pending = [(int(count), DEATHS[i]) for count, i in zip(counts, rng.permutation(4), strict=True)]
            self._next = [str(kind) for kind in rng.permutation(["kill", "freeze"])]

    def run(self) -> Record:
        """Fit; trouble is noted in the record, and no process is left."""
        record = self.record
        try:
            while not self._drive(len(record.drivers) + 1):
                pass
            record.seconds = self._now()
            self._inspect()
        except (Trouble, BigKernelError) as error:
            record.trouble, record.seconds = str(error), self._now()
            record.last_lines = getattr(error, "last_lines", [])
            self._tell("trouble", f"TROUBLE: {error}", last_lines=record.last_lines)
        finally:
            for process in [*self._orphans, *(frozen.process for frozen in self._frozen)]:
                send(process, signal.SIGKILL)
        return record

    def _drive(self, number: int) -> bool:
        """Start a driver and watch it until it ends; whether it has finished the job."""
        begin = self._now()
        known = ledger(self._run)
        with Driver(self._fit, self._directory, number) as driver:
            self._tell("driver", f"driver {number} {'resumes' if number > 1 else 'begins'}", pid=driver.process.pid)
            try:
                ended = self._watch(driver, known)
                self._repeat(driver)
                code = driver.process.wait(0)
                self.record.drivers.append((begin, self._now(), ended))
                self._bury(driver, code, ended)
            except Trouble as error:
                raise Trouble(str(error), driver.last_lines()) from None
        return ended == "finished"

    def _watch(self, driver: Driver, known: Ledger) -> str:
        """Disturb a driver's workers until it ends or is ended; "finished", "SIGKILL" or "SIGTERM"."""
        finished, begun = len(known.finished), sum(map(len, known.starts.values()))
        progress = staffed = time.monotonic()
        strike = float("inf")
        while driver.process.poll() is None:
            time.sleep(POLL_SECONDS)
            self._repeat(driver)
            state, now = ledger(self._run), time.monotonic()
            working = sum(map(len, state.starts.values())) > begun
            if len(state.finished) > finished:
                finished, progress = len(state.finished), now
                # the new driver is at work: those of dead ones may meet it
                for frozen in self._frozen:
                    if frozen.orphan:
                        self._wake(frozen)
            workers = self._look(driver)
            if len(workers) >= self._fit.workers or not working or len(state.finished) >= self._fit.segments:
                staffed = now
            if now - staffed > REPLACED_SECONDS:
                raise Trouble(
                    f"a dead worker was not replaced within {REPLACED_SECONDS:.0f} s: {len(workers)} are left"
                )
            if now - progress > PATIENCE_SECONDS:
                raise Trouble(f"no segment was finished for {PATIENCE_SECONDS:.0f} s: the driver hangs and is killed")
            if self._rng is None or not working:
                continue
            if strike == float("inf"):
                strike = now + self._wait()
            # a worker is killed and one frozen before any driver dies: no round goes without
            if self._pending and not self._next and finished >= self._pending[0][0]:
                _, number = self._pending.pop(0)
                return self._end(driver, number)
            if now >= strike:
                self._strike(workers, state)
                strike = now + self._wait()
        return "finished"

    def _wait(self) -> float:
        """Seconds to the next disturbance of a worker."""
        assert self._rng is not None
        if self._next:
            return SOON_SECONDS
        return float(np.clip(self._rng.exponential(self._every), SOON_SECONDS, 3 * self._every))

    def _strike(self, workers: list[psutil.Process], state: Ledger) -> None:
        """Kill or freeze a worker that has begun a segment, and is not frozen."""
        assert self._rng is not None
        stopped = {frozen.process.pid for frozen in self._frozen}
        seen = {who for starters in state.starts.values() for who in starters}
        able = [(w, found) for w in workers if w.pid not in stopped and (found := addresses_of(w)) & seen]
        if not able:
            return
        victim, addresses = able[int(self._rng.integers(len(able)))]
        kind = self._next.pop(0) if self._next else str(self._rng.choice(["kill", "freeze"], p=[0.6, 0.4]))
        if kind == "freeze" and any(not frozen.orphan for frozen in self._frozen):
            kind = "kill"  # one at a time
        if not send(victim, signal.SIGKILL if kind == "kill" else signal.SIGSTOP):
            return
        self._struck |= addresses
        done = f"{len(state.finished)} of {self._fit.segments} segments finished"
        if kind == "kill":
            self.record.kills.append(self._now())
            self._tell("kill", f"worker {victim.pid} killed (SIGKILL); {done}", pid=victim.pid)
        else:
            self._frozen.append(Frozen(victim, self._now()))
            self._tell("freeze", f"worker {victim.pid} frozen (SIGSTOP); {done}", pid=victim.pid)

    def _look(self, driver: Driver) -> list[psutil.Process]:
        """The driver's workers; frozen ones that are gone are noted, and may not stay too long."""
        for frozen in list(self._frozen):
            seconds = self._now() - frozen.since
            if not lives(frozen.process):
                self._frozen.remove(frozen)
                self.record.freezes.append((frozen.since, self._now()))
                what = "was replaced" if driver.process.poll() is None and not frozen.orphan else "has ended"
                pid = frozen.process.pid
                self._tell("replaced", f"frozen worker {pid} {what}, {seconds:.1f} s after it was stopped", pid=pid)
            elif not frozen.orphan and seconds > REPLACED_SECONDS:
                raise Trouble(f"frozen worker {frozen.process.pid} was not replaced within {REPLACED_SECONDS:.0f} s")
        return driver.workers()

    def _end(self, driver: Driver, number: signal.Signals) -> str:
        """End the driver by a signal and wait for it."""
        self._tell("death", f"driver {driver.process.pid} gets {number.name}", signal=number.name)
        kept = ledger(self._run).finished
        driver.family()
        driver.process.send_signal(number)
        deadline = time.monotonic() + EXIT_SECONDS
        while driver.process.poll() is None:
            if time.monotonic() > deadline:
                raise Trouble(f"driver {driver.process.pid} has not ended {EXIT_SECONDS:.0f} s after {number.name}")
            time.sleep(POLL_SECONDS)
            self._look(driver)
        if driver.process.returncode == 0:  # it was faster than the signal
            return "finished"
        more = len(ledger(self._run).finished) - len(kept)
        if more > MOST_MORE * self._fit.workers:
            raise Trouble(f"{number.name} to the driver: it went on for {more} more segments")
        if lost := kept - ledger(self._run).finished:
            raise Trouble(f"{number.name} to the driver: finished segments {sorted(lost)} have lost their receipts")
        return number.name

    def _bury(self, driver: Driver, code: int, ended: str) -> None:
        """Look at what a driver that is dead has left: its exit code, its processes, its run."""
        wanted = {"finished": 0, "SIGTERM": INTERRUPTED, "SIGKILL": -int(signal.SIGKILL)}[ended]
        if code != wanted:
            raise Trouble(f"driver {len(self.record.drivers)} ({ended}) has exit code {code}, expected {wanted}")
        self._look(driver)
        for frozen in () if self._rng is None or ended == "finished" else self._frozen:
            # a stopped process cannot notice that its driver is dead; some wake while the next driver is at work
            if self._pending and (frozen.orphan or self._rng.random() < 0.5):
                frozen.orphan = True
                self._orphans += driver.release(frozen.process)
            else:
                self._wake(frozen)
        if left := driver.remaining(GONE_SECONDS):
            raise Trouble(f"{GONE_SECONDS:.0f} s after the driver's end its processes {[p.pid for p in left]} live")
        self._look(driver)
        state, wanted_state = ledger(self._run), "interrupted"
        if ended == "finished":
            wanted_state = "finished"
            self._tell("exit", f"driver {len(self.record.drivers)} has finished: exit code 0", code=0)
        else:
            # what a struck worker was at is not the driver's loss
            in_flight = [node for node, who in state.open.items() if who not in self._struck]
            self._before.append(state)
            self.record.in_flight.append(len(in_flight))
            kept = f"{len(state.finished)} of {self._fit.segments} segments kept"
            text = f"exit code {code}; {kept}, {len(in_flight)} were under way"
            self._tell("exit", text, code=code, kept=len(state.finished), in_flight=len(in_flight))
            if len(in_flight) > self._fit.workers:
                raise Trouble(f"{len(in_flight)} segments were under way on {self._fit.workers} workers")
        kinds = sorted({run.state for run in survey(self._run)})
        if kinds != [wanted_state]:
            raise Trouble(f"the run of driver {len(self.record.drivers)} is {kinds}, expected {wanted_state}")

    def _wake(self, frozen: Frozen) -> None:
        """Let a worker of a dead driver go on, once."""
        if not frozen.awake and send(frozen.process, signal.SIGCONT):
            frozen.awake = True
            self._tell("thaw", f"worker {frozen.process.pid} of a dead driver goes on", pid=frozen.process.pid)

    def _inspect(self) -> None:
        """Look at what the finished round has left, and count."""
        record = self.record
        state = ledger(self._run)
        record.segments, record.again = len(state.finished), state.repeats
        deadline = time.monotonic() + GONE_SECONDS
        while late := [process.pid for process in self._orphans if lives(process)]:
            if time.monotonic() > deadline:
                raise Trouble(f"processes {late} of dead drivers are still there")
            time.sleep(POLL_SECONDS)
        record.freezes += [(frozen.since, self._now()) for frozen in self._frozen]
        for before in self._before:
            if again := before.begun_again(state):
                raise Trouble(f"segments {again} were finished when a driver died, and were computed again")
        strikes = len(record.kills) + len(record.freezes)
        most = max(strikes, self._lost) + sum(record.in_flight)
        if record.again > most:
            raise Trouble(f"{record.again} segments were done again; at most {most} were under way at a signal")
        if left := leftovers(self._directory):
            raise Trouble(f"half-written or locked files are left: {', '.join(left[:5])}")

    def _repeat(self, driver: Driver) -> None:
        """Log what the driver has printed since."""
        for line in driver.lines():
            kind = kind_of(line)
            self._lost += " lost: " in line
            self._tell(kind, f"  {line}", quiet=kind != "incident")

    def _tell(self, event: str, text: str, **more: Any) -> None:
        self._log(event, f"{self.record.name}: {text}", round=self.record.name, **more)

    def _now(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _run(self) -> Path:
        return self._directory / "run"
