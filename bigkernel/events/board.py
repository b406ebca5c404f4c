"""The state of all jobs known to one process: what the page, the JSON, the metrics and `watch` show.

A board receives messages (`events.job`) and gives a snapshot of plain data. The scheduler keeps one of all its jobs;
`watch` and the report make theirs from the journal of a run directory.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bigkernel.events.progress import Progress, finite, shallow, whole

VERSION = 2
ENDED = ("finished", "failed", "interrupted", "lost")  # states of a job that has ended
ENDED_JOBS = 8  # that are remembered
ENDED_SWEEPS = 12  # of one job that are remembered, the latest
_LEAST_SHARE = 0.02  # of a search, from which on its remaining time is estimated
_EVENTS = 300  # of a job that are remembered
_BEGUN = time.time() - time.monotonic()
# raised by messages with invalid values
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError)


def steady() -> float:
    """Return seconds since 1970 by the clock at the start of this process, and monotonic since.

    Setting the clock during a job would otherwise make its rates and its remaining time wrong by hours.
    """
    return _BEGUN + time.monotonic()


@dataclass
class Search:
    """The sweeps of a search: how many are planned, with how many flops, and what has begun and ended."""

    count: int
    flops: float
    begun: int  # with those that learned transforms before the search was planned
    flops_done: float  # of ended sweeps
    planned: float  # when it was; what follows counts from then on
    ended: int = 0
    flops_computed: float = 0.0  # of ended sweeps, without what a run held
    sweep_seconds: float = 0.0

    def add(self, sweep: Progress, now: float) -> None:
        """Add what a sweep has done."""
        self.flops_done += sweep.flops_of(sweep.rows_done + sweep.rows_under_way)
        self.flops_computed += sweep.flops_of(sweep.rows_computed)
        self.sweep_seconds += sweep.elapsed(now)

    def snapshot(self, running: Sequence[Progress], now: float) -> dict[str, Any]:
        """Return plain data, with the share that is done and the seconds left; `running` are the sweeps that run.

        Every sweep is expected to be followed by as many seconds of the driver as those that have ended.
        """
        total = replace(self)
        for sweep in running:
            total.add(sweep, now)
        share, left = total.flops_done / max(1.0, self.flops, total.flops_done), None
        if share >= _LEAST_SHARE and total.flops_computed >= 1 and self.begun <= self.count:
            solves = max(0.0, now - self.planned - total.sweep_seconds) / max(1, self.ended)
            left = total.sweep_seconds * max(0.0, self.flops - total.flops_done) / total.flops_computed
            left += solves * (self.count - self.begun + len(running)) if self.ended else 0.0
        counts = {name: getattr(self, name) for name in ("count", "begun", "ended")}
        return {**counts, "share": share, "remaining_seconds": left}


@dataclass
class Job:
    """One job: the sweeps of an `executing` block, or of one fit, and what its driver does between them."""

    id: str
    title: str
    started: float
    host: str = ""
    pid: int = 0
    run: str = ""
    driver: str = ""  # Dask's name of its client, if any
    ended: float | None = None
    state: str = "running"  # or one of ENDED
    error: str = ""
    sweeps: dict[str, Progress] = field(default_factory=dict)
    search: Search | None = None
    step: dict[str, Any] | None = None
    stage_seconds: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_EVENTS))

    def note(self, kind: str, text: str, now: float) -> None:
        """Add a line to the log of events."""
        self.events.append({"time": now, "kind": kind, "text": text})

    def end(self, state: str, now: float, error: str = "") -> None:
        """End the record of this job."""
        self.state, self.ended, self.error, self.step = state, now, error, None
        self.note("end", f"{state}{f': {error}' if error else ''}", now)

    def progress(self, now: float) -> dict[str, Any]:
        """Return what the driver does and how far its search is, as plain data; see `Board.snapshot`."""
        running = [sweep for sweep in self.sweeps.values() if sweep.ended is None]
        return {"step": self.step, "search": None if self.search is None else self.search.snapshot(running, now)}

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return plain data; see `Board.snapshot`."""
        plain = ("id", "title", "host", "pid", "run", "state", "error", "started", "ended", "figures")
        return {
            **{name: getattr(self, name) for name in plain},
            **self.progress(now),
            "elapsed_seconds": (now if self.ended is None else self.ended) - self.started,
            "stage_seconds": dict(self.stage_seconds),
            "sweeps": [sweep.snapshot(now) for sweep in self.sweeps.values()],
            "events": list(self.events),
        }


class Board:
    """All jobs by id, and totals since it was created; `bounded`: only the last ended ones are kept."""

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self.jobs: dict[str, Job] = {}
        names = ("jobs", "sweeps", "segments", "rows", "flops", "stage_seconds", "incidents")
        self.totals: dict[str, defaultdict[str, float]] = {name: defaultdict(float) for name in names}
        self._sweeps: dict[str, str] = {}  # token → job

    def apply(self, message: Mapping[str, Any], now: float) -> None:
        """Apply one message, which arrived at `now`; raises one of DAMAGED for invalid values."""
        kind, name = str(message["kind"]), message.get("job") or self._sweeps.get(message.get("sweep", ""), "")
        if kind == "job_started":
            if (name := str(message["job"])) not in self.jobs:
                host, run = str(message["host"]), str(message["run"])
                self.jobs[name] = Job(name, str(message["title"]), now, host, whole(message["pid"]), run)
            return
        job = self.jobs.get(name)
        if job is None:
            return
        job.driver = job.driver or str(message.get("driver", ""))
        sweep = job.sweeps.get(message.get("sweep", ""))
        if kind == "sweep_started" and (token := str(message["sweep"])) not in job.sweeps:
            sweep = job.sweeps[token] = Progress.begun(message, now)
            self._sweeps[token], job.step = job.id, None
            if job.search is not None:
                job.search.begun += 1
            plural = "s" * (len(sweep.stops) != 1)
            text = f"{sweep.what}: {sweep.plan['rows']:,} rows in {len(sweep.stops):,} segment{plural}"
            resumed = whole(message.get("resumed", 0))
            job.note("start", f"{text}, {resumed:,} resumed from the run" if resumed else text, now)
        elif kind == "job_ended":
            state = str(message["state"])
            self._end(job, state if state in ENDED else "failed", now, str(message.get("error", "")))
        elif kind == "step":
            step = {"what": str(message["what"]), "done": whole(message["done"]), "total": whole(message["total"])}
            job.step = None if message["done"] >= message["total"] else step
        elif kind == "spent":
            stage, seconds = str(message["stage"]), finite(message["seconds"])
            job.stage_seconds[stage] = job.stage_seconds.get(stage, 0.0) + seconds
            self.totals["stage_seconds"][stage] += seconds
        elif kind == "note":
            job.note("note", str(message["text"]), now)
        elif kind == "figures" and isinstance(message["values"], Mapping):
            job.figures[str(message["name"])] = values = shallow(message["values"])
            if message["name"] == "sweeps":
                done = finite(values["flops_done"])
                job.search = Search(whole(values["count"]), finite(values["flops"]), whole(values["begun"]), done, now)
        elif sweep is not None:
            self._progress(job, sweep, message, now)

    def _progress(self, job: Job, sweep: Progress, message: Mapping[str, Any], now: float) -> None:
        kind, rows, stages = message["kind"], sweep.rows_done, dict(sweep.stage_seconds)
        done, resumed = sweep.done, kind == "segment" and bool(message["receipt"]["resumed"])
        sweep.apply(message, now)
        if not resumed:
            gained = max(0, sweep.rows_done - rows)
            self.totals["rows"]["computed"] += gained
            self.totals["flops"]["computed"] += round(sweep.flops_of(gained))
        self.totals["segments"]["resumed" if resumed else "computed"] += max(0, sweep.done - done)
        for stage, seconds in sweep.stage_seconds.items():
            self.totals["stage_seconds"][stage] += seconds - stages.get(stage, 0.0)
        if kind == "incident":
            self.totals["incidents"][str(message["incident"])] += 1
            job.note(str(message["incident"]), str(message["text"]), now)
        elif kind == "sweep_ended":
            self.totals["sweeps"][sweep.state] += 1
            if job.search is not None:
                job.search.add(sweep, now)
                job.search.ended += 1
            how = f"ended early ({sweep.early})" if sweep.early else "done"
            job.note("end", f"{sweep.what}: {sweep.error or f'{how} in {sweep.elapsed(now):,.1f} s'}", now)
            ended = [token for token, other in job.sweeps.items() if other.ended is not None]
            for token in ended[:-ENDED_SWEEPS] if self._bounded else ():
                del job.sweeps[token], self._sweeps[token]

    def lose(self, driver: str, now: float) -> None:
        """Mark the running jobs of a driver as lost when its connection has ended."""
        for job in list(self.jobs.values()):
            if job.driver == driver and job.state == "running":
                self._end(job, "lost", now, "the driver ended or lost its connection")

    def _end(self, job: Job, state: str, now: float, error: str = "") -> None:
        job.end(state, now, error)
        self.totals["jobs"][state] += 1
        ended = [other for other in self.jobs.values() if other.ended is not None]
        for old in sorted(ended, key=lambda other: other.ended or 0.0)[:-ENDED_JOBS] if self._bounded else ():
            for token in old.sweeps:
                self._sweeps.pop(token, None)
            del self.jobs[old.id]

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return everything as plain data: jobs that run first, then those that ended, the latest before.

        Keys: `version`, `time`, `totals`, and `jobs`: each with `id`, `title`, `host`, `pid`, `run`, `state` (running,
        finished, failed, interrupted, lost), `error`, `started`, `ended`, `elapsed_seconds`, `step` (what the driver
        does between sweeps: `what`, `done`, `total`), `search` (its sweeps: `count` planned, `begun`, `ended`, the
        `share` of flops done, `remaining_seconds` or null; or null), `stage_seconds` (of the driver), `figures`,
        `events` (`time`, `kind`, `text`), and `sweeps` (`Progress.snapshot`). Times are seconds since 1970.
        """
        order = sorted(self.jobs.values(), key=lambda job: (job.ended is not None, -(job.ended or job.started)))
        return {
            "version": VERSION,
            "time": now,
            "totals": {name: dict(counts) for name, counts in self.totals.items()},
            "jobs": [job.snapshot(now) for job in order],
        }
