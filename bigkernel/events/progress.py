"""The progress of one sweep: the state of every segment, its workers, rate, stages and remaining time.

It is updated by messages (`events.job`) in any order and from any process; a message about an unknown segment is
ignored.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from bigkernel.streaming.plan import Receipt, leaf, merge_tree, spans

# states of a segment: one letter each in a snapshot
WAITING, RUNNING, AGAIN, PUBLISHED, MERGED, FAILED = "wrapmf"
_NAMES = ("waiting", "running", "retried", "published", "merged", "failed")
_DONE = (PUBLISHED, MERGED)
_HISTORY = 240  # most points of the rate over time; every second one is removed beyond that
_LARGEST = 1e60  # largest figure; products of a few of them are still finite


def finite(value: Any) -> float:
    """Return a number from a message; raise ValueError or TypeError if it is none."""
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise ValueError(f"expected a number, found {str(value)[:40]}")
    return float(value)


def whole(value: Any) -> int:
    """Return a count from a message; raise ValueError or TypeError if it is none."""
    return int(finite(value))


def shallow(value: Any, depth: int = 20) -> Any:
    """Return nested figures from a message; raise ValueError if they are nested too deeply."""
    if depth == 0:
        raise ValueError("figures nested too deeply")
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        shallow(item, depth - 1)
    return value


@dataclass
class Share:
    """The share of one worker in the sweep."""

    segments: int = 0
    rows: int = 0
    peak_bytes: int = 0
    kept_bytes: int = 0
    device: str = ""
    device_peak_bytes: int = 0
    lost: bool = False


class Progress:
    """Progress of one sweep. Times are seconds since 1970, by the clock of the process that keeps it.

    `stops` are the row ids where segments end, `planned_bytes` is the planned peak of a worker process.
    """

    def __init__(
        self, token: str, what: str, executor: str, started: float, plan: dict[str, Any], stops: list[int],
        planned_bytes: int = 0, run: str = "",
    ) -> None:  # fmt: skip
        self.token, self.what, self.executor, self.run = token, what, executor, run
        self.plan, self.stops, self.planned_bytes = plan, stops, planned_bytes
        self.started, self.error, self.early = started, "", ""
        self.ended: float | None = None
        self.seconds: float | None = None  # as the driver measured it
        self.merged_nodes: set[str] = set()
        self.workers: dict[str, Share] = {}
        self.stage_seconds: dict[str, float] = {}
        self.incidents = Counter[str]()
        self.states = [WAITING] * len(stops)
        self.done = 0  # finished segments
        self.rows_done = 0  # of finished segments, those that were resumed included
        self.rows_under_way = 0  # done ones of running segments
        self._spans = spans(len(stops))
        self._children = {node: (left, right) for node, left, right in merge_tree(len(stops))}
        self._running: dict[int, tuple[int, str]] = {}  # rows done, worker
        self._reported: dict[int, dict[str, float]] = {}  # seconds of stages, of segments without a receipt
        self._attempts = Counter[int]()
        self._resumed: set[int] = set()
        self._rows_resumed = 0
        self._ran_on: dict[int, str] = {}  # finished segments with a receipt
        self._costs: list[tuple[float, float]] = []  # rows and seconds of computed segments
        self._points = [(0.0, 0)]  # seconds since the start, rows computed until then
        self._point_seconds = 1.0  # seconds between two points

    @classmethod
    def begun(cls, message: Mapping[str, Any], now: float) -> Self:
        """Return the progress of a sweep that has just begun, according to a message."""
        plan, stops = dict(shallow(message["plan"])), [whole(stop) for stop in message["stops"]]
        if not all(before < after for before, after in pairwise([0, *stops])):
            raise ValueError("expected segments in the order of their rows")
        plan |= {name: finite(plan.get(name, 0)) for name in ("flops", "bytes_read")} | {"rows": whole(plan["rows"])}
        token, what, executor = (str(message[name]) for name in ("sweep", "what", "executor"))
        return cls(token, what, executor, now, plan, stops, whole(message["planned_bytes"]), str(message["run"]))

    def apply(self, message: Mapping[str, Any], now: float) -> None:
        """Apply one message about this sweep."""
        kind = message["kind"]
        if kind == "segment":
            self._receive(Receipt.of_json(message["receipt"]))
        elif kind in ("running", "pulse"):
            self._run(message)
        elif kind in ("published", "failed"):
            for index in self._leaves(message["node"]):
                if kind == "published" or self.states[index] not in _DONE:
                    self._set(index, PUBLISHED if kind == "published" else FAILED)
        elif kind == "merged":
            self._merge(message["node"])
        elif kind == "released":
            self._release(message["node"])
        elif kind == "incident":
            self.incidents[str(message["incident"])] += 1
            if message.get("worker") in self.workers:
                self.workers[message["worker"]].lost = True
        elif kind == "sweep_ended":
            self._end(message, now)
        self._mark(now)

    def _end(self, message: Mapping[str, Any], now: float) -> None:
        stages = {str(stage): finite(seconds) for stage, seconds in message.get("stages", {}).items()}
        self.seconds, self.error, self.ended = finite(message["seconds"]), str(message.get("error", "")), now
        self.early = str(message.get("early", ""))
        self._running.clear()
        self.rows_under_way = 0
        if not self.error and not self.early:  # all receipts are here
            self._reported.clear()
            for node in self._spans:
                self._merge(node)
        self._spend(stages)

    def _spend(self, stages: Mapping[str, float]) -> None:
        for stage, seconds in stages.items():
            self.stage_seconds[stage] = self.stage_seconds.get(stage, 0.0) + seconds

    def _leaves(self, node: str) -> range:
        return range(*self._spans.get(node, (0, 0)))

    def _receive(self, receipt: Receipt) -> None:
        leaves = self._leaves(receipt.node)
        if not leaves or receipt.node != leaf(leaves.start):
            return  # unknown, or of a merge
        index, rows = leaves.start, self._rows(leaves.start)
        self._set(index, PUBLISHED)
        if receipt.resumed:
            if index not in self._resumed:
                self._resumed.add(index)
                self._rows_resumed += rows
            return
        if receipt.starts > 1:
            self._attempts[index] = max(self._attempts[index], receipt.starts)
        if not receipt.worker or index in self._ran_on:
            return
        self._ran_on[index] = receipt.worker
        self._reported.pop(index, None)
        share = self.workers.setdefault(receipt.worker, Share())
        share.segments += 1
        share.rows += rows
        share.peak_bytes, share.kept_bytes = max(share.peak_bytes, receipt.peak_bytes), receipt.kept_bytes
        share.device, share.device_peak_bytes = receipt.device, max(share.device_peak_bytes, receipt.device_peak_bytes)
        self._costs.append((float(rows), float(receipt.elapsed)))
        self._spend(receipt.seconds)

    def _run(self, message: Mapping[str, Any]) -> None:
        seconds = {str(stage): finite(value) for stage, value in message.get("seconds", {}).items()}
        rows, worker = whole(message.get("rows", 0)), str(message["worker"])
        peak = whole(message.get("peak_bytes", 0))
        for index in self._leaves(message["node"]):
            if self.states[index] in _DONE:
                return
            if message["kind"] == "running":
                self._attempts[index] += 1
            self._attempts[index] = max(1, self._attempts[index])
            self._set(index, RUNNING if self._attempts[index] < 2 else AGAIN)
            self._running[index] = rows, worker
            if index not in self._ran_on:  # an attempt that was lost took time too
                known = self._reported.setdefault(index, {})
                known.update({stage: max(value, known.get(stage, 0.0)) for stage, value in seconds.items()})
            self.rows_under_way += rows
            share = self.workers.setdefault(worker, Share())
            share.peak_bytes = max(share.peak_bytes, peak)

    def _set(self, index: int, state: str) -> None:
        """Set the state of a segment, which then does not run any more; merged does not become published again."""
        gained = (state in _DONE) - (self.states[index] in _DONE)
        self.done += gained
        self.rows_done += gained * self._rows(index)
        if (self.states[index], state) != (MERGED, PUBLISHED):
            self.states[index] = state
        self.rows_under_way -= self._running.pop(index, (0,))[0]

    def _release(self, node: str) -> None:
        """Record that the worker of a task is lost: with a run, what was published stays."""
        leaves = self._leaves(node)
        if self.run and any(self.states[index] in _DONE for index in leaves):
            return
        for index in leaves:
            self._set(index, AGAIN if self._attempts[index] else WAITING)
        self.merged_nodes -= self._below(node)

    def _below(self, node: str) -> set[str]:
        """Return a node and all merges below it."""
        within, below = [node], set()
        while within:
            one = within.pop()
            if one in self._children and one not in below:
                below.add(one)
                within.extend(self._children[one])
        return below

    def _merge(self, node: str) -> None:
        if (node.startswith("0-") and len(self.stops) > 1) or node in self.merged_nodes:
            return
        if node in self._spans:
            self.merged_nodes |= self._below(node)  # one task may have done several merges, and reports the last
            for index in self._leaves(node):
                self._set(index, MERGED)

    def _rows(self, index: int) -> int:
        return self.stops[index] - (self.stops[index - 1] if index else 0)

    @property
    def rows_computed(self) -> int:
        """Rows that were computed and not loaded from the run, including those of running segments."""
        return self.rows_done - self._rows_resumed + self.rows_under_way

    @property
    def state(self) -> str:
        """One of "running", "failed", "ended early" and "finished"."""
        if self.ended is None:
            return "running"
        return "failed" if self.error else "ended early" if self.early else "finished"

    def elapsed(self, now: float) -> float:
        """Return the seconds since the start, or in all."""
        if self.seconds is not None and not self.error:
            return self.seconds
        return max(0.0, (now if self.ended is None else self.ended) - self.started)

    def flops_of(self, rows: float) -> float:
        """Return the planned floating-point operations for so many rows."""
        return float(self.plan["flops"]) * rows / max(1.0, float(self.plan["rows"]))

    def _mark(self, now: float) -> None:
        """Record how many rows are computed, once a second."""
        since, (last, _) = now - self.started, self._points[-1]
        if since - last >= self._point_seconds or (self.ended is not None and len(self._points) == 1 and since > last):
            self._points.append((since, self.rows_computed))
        if len(self._points) > _HISTORY:
            self._points = self._points[::2]
            self._point_seconds *= 2

    def left(self, now: float) -> tuple[float, float, float] | None:
        """Return the seconds left, with a lower and an upper bound (about 95 %); None before anything is known.

        The estimate uses the mean rate so far. The bounds come from the variation between finished segments, for the
        measured mean and for the remaining segments; half and twice while fewer than three segments are finished.
        """
        if self.ended is not None:
            return 0.0, 0.0, 0.0
        remaining = self.stops[-1] - self.rows_done - self.rows_under_way if self.stops else 0
        if self.rows_computed <= 0 or self.elapsed(now) <= 0:
            return None
        expected = self.elapsed(now) * remaining / self.rows_computed
        if len(self._costs) < 3:
            return expected, expected / 2, expected * 2
        per_row = [seconds / max(1.0, rows) for rows, seconds in self._costs]
        mean = math.fsum(per_row) / len(per_row)
        variance = math.fsum((cost - mean) ** 2 for cost in per_row) / (len(per_row) - 1)
        open_segments = max(1, len(self.stops) - self.done)
        spread = 2 * math.sqrt(variance * (1 / len(per_row) + 1 / open_segments)) / max(mean, 1e-12)
        return expected, expected * max(0.0, 1 - spread), expected * (1 + spread)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return all of it as plain data.

        `plan` (`Plan.summary`), `stops` (row ids where segments end), `states` (a letter a segment: w waiting, r
        running, a begun again, p published, m merged, f failed); by index `fractions` and `running_on` of running
        segments, `ran_on` of finished ones (workers) and `attempts` above one; `resumed` (indices), `segments` (counts
        by state), `merges_done` of `merges`, `rows` (`_done`: of finished segments; `_under_way`: of running ones;
        `_merged`, `_resumed`), `flops_per_second` (of what was computed), `rate_history` (seconds, flops a second),
        `stage_seconds` (summed over workers, with what segments without a receipt reported last), `planned_bytes`,
        `remaining_seconds` (`expected`, `low`, `high`, or null), `incidents` by kind, and `workers` by address
        (`segments`, `rows`, `peak_bytes`, `kept_bytes`, `device`, `device_peak_bytes`, `lost`, `running`).
        """
        counts, left = Counter(self.states), self.left(now)
        history = [
            [round(time, 2), self.flops_of(max(0, rows - before)) / max(time - then, 1e-9)]
            for (then, before), (time, rows) in pairwise(self._points)
        ]
        stages, running = Counter(self.stage_seconds), defaultdict[str, list[int]](list)
        for seconds in self._reported.values():
            stages.update(seconds)
        for i, (_, worker) in self._running.items():
            running[worker].append(i)
        plain = ("token", "what", "executor", "run", "state", "error", "started", "ended", "plan", "stops")
        return {
            **{name: getattr(self, name) for name in plain},
            "elapsed_seconds": self.elapsed(now),
            "states": "".join(self.states),
            "fractions": {str(i): rows / max(1, self._rows(i)) for i, (rows, _) in self._running.items()},
            "running_on": {str(i): worker for i, (_, worker) in self._running.items()},
            "ran_on": {str(i): worker for i, worker in self._ran_on.items()},
            "resumed": sorted(self._resumed),
            "attempts": {str(i): n for i, n in self._attempts.items() if n > 1},
            "segments": {name: counts[letter] for letter, name in zip("wrapmf", _NAMES, strict=True)},
            "merges_done": len(self.merged_nodes),
            "merges": max(0, len(self.stops) - 1),
            "rows": self.stops[-1] if self.stops else 0,
            "rows_done": self.rows_done,
            "rows_merged": sum(self._rows(i) for i, state in enumerate(self.states) if state == MERGED),
            "rows_under_way": self.rows_under_way,
            "rows_resumed": self._rows_resumed,
            "flops_per_second": self.flops_of(self.rows_computed) / max(self.elapsed(now), 1e-9),
            "rate_history": history,
            "stage_seconds": dict(stages),
            "planned_bytes": self.planned_bytes,
            "remaining_seconds": None if left is None else dict(zip(("expected", "low", "high"), left, strict=True)),
            "incidents": dict(self.incidents),
            "workers": {name: {**vars(one), "running": running.get(name, [])} for name, one in self.workers.items()},
        }
