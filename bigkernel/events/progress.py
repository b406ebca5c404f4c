"""The progress of one sweep: the state of every segment, its workers, rate, stages and time left.

Plain bookkeeping fed with messages (`events.messages`), in any order and from any process; a message about
an unknown segment is ignored.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bigkernel.streaming.merge_tree import leaf, merge_tree, spans

# of a segment; one letter each in a snapshot
WAITING, RUNNING, AGAIN, PUBLISHED, MERGED, FAILED = "w", "r", "a", "p", "m", "f"
STATES = {
    WAITING: "waiting",
    RUNNING: "running",
    AGAIN: "retried",
    PUBLISHED: "published",
    MERGED: "merged",
    FAILED: "failed",
}
_DONE = (PUBLISHED, MERGED)
_HISTORY = 240  # most points of the rate over time; neighbours are joined where there would be more
_HISTORY_SECONDS = 1.0  # between two points, at first


@dataclass
class Share:
    """The share of one worker in the sweep."""

    segments: int = 0
    rows: int = 0
    busy_seconds: float = 0.0
    peak_bytes: int = 0
    lost: bool = False


@dataclass
class Progress:
    """One sweep. Times are seconds since 1970, of whoever keeps the books."""

    token: str
    what: str
    executor: str
    started: float
    plan: dict[str, Any]
    stops: list[int]  # row ids where segments end
    announced_bytes: int = 0  # peak of a worker process, as planned
    calibrated: float = 0.0  # flops a second that the machines were measured to do together; 0: not measured
    run: str = ""
    ended: float | None = None
    seconds: float | None = None  # as the driver measured it
    error: str = ""
    merged_nodes: set[str] = field(default_factory=set)
    workers: dict[str, Share] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    incidents: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        count = len(self.stops)
        self.states = [WAITING] * count
        self._spans = spans(count)
        self._children = {node: (left, right) for node, left, right in merge_tree(count)}
        self._partial: dict[int, tuple[int, str]] = {}  # rows done of running segments, and by whom
        self._partial_seconds: dict[int, dict[str, float]] = {}  # of their stages
        self._rows_under_way = 0  # their sum, for it is asked for with every message
        self._attempts = Counter[int]()
        self._received: set[int] = set()  # segments whose receipt came
        self._resumed: set[int] = set()
        self._ran_on: dict[int, str] = {}
        self._costs: list[tuple[float, float]] = []  # rows and seconds of computed segments
        self.done = 0  # finished segments
        self.rows_done = 0  # of finished segments, those that were resumed included
        self._rows_resumed = 0
        self.history: list[tuple[float, float]] = []  # seconds since the start, flops a second until then
        self._marked = (self.started, 0.0)
        self._mark_seconds = _HISTORY_SECONDS

    # -- messages ----------------------------------------------------------------------------------------------------

    def apply(self, message: Mapping[str, Any], now: float) -> None:
        """Take one message about this sweep."""
        kind = message["kind"]
        if kind == "segment":
            self._receive(message["receipt"])
        elif kind in ("running", "pulse"):
            self._run(message)
        elif kind == "published":
            for index in self._leaves(message["node"]):
                self._done(index, PUBLISHED)
        elif kind == "merged":
            self._merge(message["node"])
        elif kind == "failed":
            for index in self._leaves(message["node"]):
                if self.states[index] not in _DONE:
                    self._undone(index, FAILED)
        elif kind == "released":
            self._release(message["node"])
        elif kind == "incident":
            self.incidents[str(message["incident"])] += 1
            if message.get("worker") in self.workers:
                self.workers[message["worker"]].lost = True
        elif kind == "sweep_ended":
            self.ended, self.seconds, self.error = now, float(message["seconds"]), str(message.get("error", ""))
            for index in tuple(self._partial):
                self._leave(index)
            if not self.error:
                for node in self._spans:
                    self._merge(node)
            for stage, seconds in message.get("stages", {}).items():
                self.stage_seconds[stage] = self.stage_seconds.get(stage, 0.0) + seconds
        self._mark(now)

    def _leaves(self, node: str) -> range:
        return range(*self._spans.get(node, (0, 0)))

    def _share(self, worker: str) -> Share:
        return self.workers.setdefault(worker, Share())

    def _receive(self, receipt: Mapping[str, Any]) -> None:
        leaves = self._leaves(receipt["node"])
        if not leaves or receipt["node"] != leaf(leaves.start):
            return  # unknown, or of a merge
        index, rows = leaves.start, self._rows(leaves.start)
        if self.states[index] not in _DONE:
            self._done(index, PUBLISHED)
        if receipt["resumed"]:
            if index not in self._resumed:
                self._resumed.add(index)
                self._rows_resumed += rows
            return
        if receipt["starts"] > 1:
            self._attempts[index] = max(self._attempts[index], int(receipt["starts"]))
        if not receipt["worker"] or index in self._received:
            return
        self._received.add(index)
        self._ran_on[index] = receipt["worker"]
        share = self._share(receipt["worker"])
        share.segments += 1
        share.rows += rows
        share.busy_seconds += receipt["elapsed"]
        share.peak_bytes = max(share.peak_bytes, int(receipt["peak_bytes"]))
        self._costs.append((float(rows), float(receipt["elapsed"])))
        for stage, seconds in receipt["seconds"].items():
            self.stage_seconds[stage] = self.stage_seconds.get(stage, 0.0) + seconds

    def _run(self, message: Mapping[str, Any]) -> None:
        for index in self._leaves(message["node"]):
            if self.states[index] in _DONE:
                return
            if message["kind"] == "running":
                self._attempts[index] += 1
            self._attempts[index] = max(1, self._attempts[index])
            rows, worker = int(message.get("rows", 0)), str(message["worker"])
            self.states[index] = RUNNING if self._attempts[index] < 2 else AGAIN
            self._rows_under_way += rows - self._partial.get(index, (0, ""))[0]
            self._partial[index] = rows, worker
            self._partial_seconds[index] = {
                str(stage): float(seconds) for stage, seconds in message.get("seconds", {}).items()
            }
            share = self._share(worker)
            share.peak_bytes = max(share.peak_bytes, int(message.get("peak_bytes", 0)))

    def _done(self, index: int, state: str) -> None:
        if self.states[index] not in _DONE:
            self.rows_done += self._rows(index)
            self.done += 1
        if self.states[index] != MERGED:
            self.states[index] = state
        self._leave(index)

    def _leave(self, index: int) -> None:
        """A segment runs no more."""
        rows, _ = self._partial.pop(index, (0, ""))
        self._partial_seconds.pop(index, None)
        self._rows_under_way -= rows

    def _undone(self, index: int, state: str) -> None:
        if self.states[index] in _DONE:
            self.rows_done -= self._rows(index)
            self.done -= 1
        self.states[index] = state
        self._leave(index)

    def _release(self, node: str) -> None:
        """Its worker is gone: with a run, what was published stays."""
        if self.run and not all(self.states[index] not in _DONE for index in self._leaves(node)):
            return
        first, stop = self._spans.get(node, (0, 0))
        for index in range(first, stop):
            self._undone(index, AGAIN if self._attempts[index] else WAITING)
        within = [node]
        while within:
            gone = within.pop()
            self.merged_nodes.discard(gone)
            within.extend(self._children.get(gone, ()))

    def _merge(self, node: str) -> None:
        if node.startswith("0-") and len(self.stops) > 1:
            return
        if node in self._spans:
            within = [node]  # one task may have done several merges, and tells of the last
            while within:
                done = within.pop()
                if done in self._children and done not in self.merged_nodes:
                    self.merged_nodes.add(done)
                    within.extend(self._children[done])
            for index in self._leaves(node):
                self._done(index, MERGED)

    # -- figures -----------------------------------------------------------------------------------------------------

    def _rows(self, index: int) -> int:
        return self.stops[index] - (self.stops[index - 1] if index else 0)

    @property
    def resumed(self) -> int:
        """Segments that were found finished in the run."""
        return len(self._resumed)

    @property
    def rows_under_way(self) -> int:
        """Rows of running segments that are done."""
        return self._rows_under_way

    @property
    def rows_merged(self) -> int:
        """Rows whose partial results are merged."""
        return sum(self._rows(index) for index, state in enumerate(self.states) if state == MERGED)

    def stages(self) -> dict[str, float]:
        """Seconds by stage: of finished segments, and of running ones so far."""
        found = dict(self.stage_seconds)
        for stages in self._partial_seconds.values():
            for stage, seconds in stages.items():
                found[stage] = found.get(stage, 0.0) + seconds
        return found

    @property
    def state(self) -> str:
        """ "running", "finished" or "failed"."""
        return "running" if self.ended is None else "failed" if self.error else "finished"

    def elapsed(self, now: float) -> float:
        """Seconds since the start, or in all."""
        if self.seconds is not None and not self.error:
            return self.seconds
        return max(0.0, (now if self.ended is None else self.ended) - self.started)

    def flops_per_second(self, now: float) -> float:
        """Mean rate of what was computed, not resumed."""
        rows = self.rows_done - self._rows_resumed + self.rows_under_way
        return self._flops(rows) / max(self.elapsed(now), 1e-9)

    def _flops(self, rows: float) -> float:
        return float(self.plan["flops"]) * rows / max(1.0, float(self.plan["rows"]))

    def _mark(self, now: float) -> None:
        """A point of the rate over time, once a second: what was computed since the point before."""
        then, before = self._marked
        rows = float(self.rows_done - self._rows_resumed + self.rows_under_way)
        if now - then >= self._mark_seconds or (self.ended is not None and now > then and not self.history):
            self.history.append((now - self.started, max(0.0, self._flops(rows - before)) / max(now - then, 1e-9)))
            self._marked = now, rows
        if len(self.history) > _HISTORY:
            self._mark_seconds *= 2
            times, rates = zip(*self.history, strict=True)
            begins = (0.0, *times)
            flops = [(times[i] - begins[i]) * rates[i] for i in range(len(times))]
            pairs = range(0, len(times) - 1, 2)
            joined = [(times[i + 1], (flops[i] + flops[i + 1]) / max(times[i + 1] - begins[i], 1e-9)) for i in pairs]
            self.history = joined + self.history[2 * len(joined) :]

    def left(self, now: float) -> tuple[float, float, float] | None:
        """Seconds left, with a lower and an upper end (about 95 %); None before anything is known.

        From the mean rate so far. The ends come from how much the costs of finished segments differ, for the mean that
        was measured and for what is still to come; half and twice while fewer than three segments are finished.
        """
        if self.ended is not None:
            return 0.0, 0.0, 0.0
        computed = self.rows_done - self._rows_resumed + self.rows_under_way
        remaining = self.stops[-1] - self.rows_done - self.rows_under_way if self.stops else 0
        if computed <= 0 or self.elapsed(now) <= 0:
            return None
        expected = self.elapsed(now) * remaining / computed
        if len(self._costs) < 3:
            return expected, expected / 2, expected * 2
        per_row = [seconds / max(1.0, rows) for rows, seconds in self._costs]
        mean = math.fsum(per_row) / len(per_row)
        variance = math.fsum((cost - mean) ** 2 for cost in per_row) / (len(per_row) - 1)
        open_segments = max(1, len(self.stops) - self.done)
        spread = 2 * math.sqrt(variance * (1 / len(per_row) + 1 / open_segments)) / max(mean, 1e-12)
        return expected, expected * max(0.0, 1 - spread), expected * (1 + spread)

    def snapshot(self, now: float) -> dict[str, Any]:
        """All of it as plain data for JSON; see `board` for the whole."""
        counts = Counter(self.states)
        running = defaultdict[str, list[int]](list)
        for index, (_, worker) in self._partial.items():
            running[worker].append(index)
        left = self.left(now)
        return {
            "token": self.token,
            "what": self.what,
            "executor": self.executor,
            "run": self.run,
            "state": self.state,
            "error": self.error,
            "started": self.started,
            "ended": self.ended,
            "elapsed_seconds": self.elapsed(now),
            "plan": self.plan,
            "stops": self.stops,
            "states": "".join(self.states),
            "fractions": {str(i): rows / max(1, self._rows(i)) for i, (rows, _) in self._partial.items()},
            "running_on": {str(i): worker for i, (_, worker) in self._partial.items()},
            "ran_on": {str(i): worker for i, worker in self._ran_on.items()},
            "resumed": sorted(self._resumed),
            "segments_resumed": self.resumed,
            "attempts": {str(i): n for i, n in self._attempts.items() if n > 1},
            "segments": {name: counts[letter] for letter, name in STATES.items()},
            "merges_done": len(self.merged_nodes),
            "merges": max(0, len(self.stops) - 1),
            "rows": self.stops[-1] if self.stops else 0,
            "rows_done": self.rows_done,
            "rows_merged": self.rows_merged,
            "rows_under_way": self.rows_under_way,
            "rows_resumed": self._rows_resumed,
            "flops_per_second": self.flops_per_second(now),
            "calibrated_flops_per_second": self.calibrated,
            "rate_history": [[round(t, 2), rate] for t, rate in self.history],
            "stage_seconds": self.stages(),
            "announced_bytes": self.announced_bytes,
            "left_seconds": None if left is None else {"expected": left[0], "low": left[1], "high": left[2]},
            "incidents": dict(self.incidents),
            "workers": {
                name: {
                    "segments": share.segments,
                    "rows": share.rows,
                    "busy_seconds": share.busy_seconds,
                    "peak_bytes": share.peak_bytes,
                    "lost": share.lost,
                    "running": running[name],
                }
                for name, share in self.workers.items()
            },
        }
