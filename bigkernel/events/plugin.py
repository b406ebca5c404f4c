"""The scheduler plugin: keeps the state of all jobs, and reports to each driver what happens to its tasks.

A driver sends the messages of its jobs, workers those of running segments; the scheduler itself knows which tasks are
done, and which were on a lost worker. The page, the JSON, Prometheus and `watch` read its board.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

from bigkernel.data.visible import log_of
from bigkernel.events.board import Board, steady
from bigkernel.events.job import TOPIC

NAME = "bigkernel"
_PREFIX = "bigkernel-"
_log = log_of(__name__)


class Monitor(SchedulerPlugin):
    """Keeps a `Board` on the scheduler; installed by `sinks.install_monitor`. `shown`: views show it."""

    name = NAME
    idempotent = True

    def __init__(self) -> None:
        self.board = Board()
        self.shown = False
        self._drivers: dict[str, str] = {}  # token of a running sweep → Dask's name of its driver's client
        self._failed = False

    async def start(self, scheduler: Scheduler) -> None:
        """Do nothing; Dask calls it first."""
        self._scheduler = scheduler

    def log_event(self, topic: str, msg: Any) -> None:
        """Handle a message of a driver or worker, or of Dask about a worker."""
        action = msg.get("action") if isinstance(msg, dict) else None
        if topic == TOPIC:
            for message in msg.get("messages", ()) if isinstance(msg, dict) else (msg,):
                try:
                    self._apply(message)
                except Exception as error:
                    if not self._failed:  # once: a sender of one invalid message sends many
                        kind = type(error).__name__
                        _log.warning("ignoring an invalid message about a job: %s: %s", kind, error)
                    self._failed = True
        elif topic == "all" and action == "remove-worker":
            self._release(msg)
        elif topic == "scheduler" and action == "worker-ttl-timed-out":
            self._send(set(self._drivers.values()), {"kind": "frozen", "workers": list(msg["workers"])})

    def _apply(self, message: Mapping[str, Any]) -> None:
        kind, token = message["kind"], str(message.get("sweep", ""))
        if kind == "listen":
            self._drivers[token] = str(message["driver"])
        elif kind == "leave":
            self._drivers.pop(token, None)
        else:
            self.board.apply(message, steady())
            if kind in ("running", "pulse") and token in self._drivers:
                self._send({self._drivers[token]}, message)

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """Handle finished and failed tasks of sweeps; called for every task of the scheduler."""
        if finish not in ("memory", "erred") or not isinstance(key, str) or not key.startswith(_PREFIX):
            return
        kind, token, node = parse_key(key)
        if kind not in ("segment", "merge") or token not in self._drivers:
            return
        task = self._scheduler.tasks.get(key)
        blamed = task.exception_blame if task is not None else None
        if finish == "erred" and blamed is not None and str(blamed.key) != key:
            return  # it fails because of another
        # a task of several segments has merged them
        is_leaf = node.startswith("0-")
        what = "failed" if finish == "erred" else "published" if is_leaf else "merged"
        message = {"kind": what, "sweep": token, "node": node}
        self.board.apply(message, steady())
        if not is_leaf:
            self._send({self._drivers[token]}, message)

    def _release(self, report: Mapping[str, Any]) -> None:
        """Record a lost worker: its segments, and sums that it alone held, are computed again.

        A merge that it ran needs no record: its lost inputs have their own. Nor does a task that is given up.
        """
        under_way = [str(key) for key in report["processing-tasks"]]
        held = [str(key) for key in report["lost-computed-tasks"]]
        for key in (*under_way, *held):
            kind, token, node = parse_key(key)
            task = self._scheduler.tasks.get(key)
            given_up = task is not None and task.state == "erred"
            if (kind == "segment" or (kind == "merge" and key in held)) and not given_up:
                self.board.apply({"kind": "released", "sweep": token, "node": node}, steady())
        lost = {"worker": str(report["worker"]), "stimulus": str(report.get("stimulus_id", ""))}
        message = {"kind": "worker_lost", **lost, "under_way": under_way, "held": held}
        self._send(set(self._drivers.values()), message)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Handle the departure of a driver, whether its jobs have ended or not."""
        self._drivers = {token: driver for token, driver in self._drivers.items() if driver != client}
        self.board.lose(client, steady())

    def _send(self, drivers: set[str], message: Mapping[str, Any]) -> None:
        for driver in drivers:
            self._scheduler.log_event(f"{TOPIC}-{driver}", dict(message))


def parse_key(key: str) -> tuple[str, str, str]:
    """Return kind, token and node in the key of a task: "bigkernel-segment-TOKEN-0-3"; empty for other tasks."""
    if not key.startswith(_PREFIX):
        return "", "", ""
    _, kind, token, node = (*key.split("-", 3), "", "", "")[:4]
    return kind, token, node


def board_of(scheduler: Scheduler) -> Board | None:
    """Return the board of a scheduler, if it has one."""
    plugin = scheduler.plugins.get(NAME)
    return plugin.board if isinstance(plugin, Monitor) else None


def state_of(dask_scheduler: Scheduler) -> dict[str, Any] | None:
    """Return the snapshot of a scheduler's board, for `Client.run_on_scheduler` and the dashboard; None without one.

    It also has `workers`, with memory, limit and status of each, and `address`.
    """
    board = board_of(dask_scheduler)
    if board is None:
        return None
    workers = {
        address: {
            "name": str(worker.name),
            "memory_bytes": int(worker.memory.process),
            "limit_bytes": int(worker.memory_limit or 0),
            "status": worker.status.name,
        }
        for address, worker in dask_scheduler.workers.items()
    }
    return {**board.snapshot(steady()), "workers": workers, "address": str(dask_scheduler.address)}
