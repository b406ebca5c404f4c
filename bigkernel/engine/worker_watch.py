"""Supervision of a cluster during a sweep: lost workers, restarted tasks, timeouts.

The scheduler's monitor (`events.plugin`) reports lost workers with their tasks, and the progress of running segments; a
wait turns these reports into events, so that the terminal, the journal and the report of the sweep agree.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Self, cast

import distributed
from distributed import Client, Future, Nanny, Worker
from distributed.scheduler import KilledWorker, NoWorkerError

from bigkernel.data.run_directory import Run
from bigkernel.engine.executor import RunningSweep
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.errors import BigKernelError, DataError, StalledError, TaskAbandonedError
from bigkernel.events.job import Merged, Message, Pulse, emit
from bigkernel.events.plugin import parse_key
from bigkernel.events.sinks import listen
from bigkernel.streaming.plan import Receipt

SLICE_SECONDS = 1.0  # seconds between checks of a wait
SETTLE_SECONDS = 1.0
ASK_SECONDS = 5.0  # seconds for workers to report their state
REPLACED_SECONDS = 20.0  # seconds for a nanny to restart its worker before its log is not requested
_REASONS = {"handle-worker-cleanup": "the process ended or lost its connection", "retire": "retired"}
_FROZEN = "did not respond for too long"


class Watch:
    """Waits for the tasks of one sweep and observes its workers; used as a context manager."""

    def __init__(self, client: Client, work: RunningSweep) -> None:
        self.deaths: Counter[str] = Counter()  # by segment or merge: workers lost with it
        self._client, self._work, self._token, self._schedule = client, work, work.token, work.schedule
        self._stall_seconds = work.spec.config.stall_seconds
        self._done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._frozen: set[str] = set()
        self._lost: list[str] = []  # workers, with the reasons
        self._reports: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._leave = listen(self._client, self._token, self._reports.put)
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        self._leave()

    def drain(self) -> None:
        """Turn the scheduler's reports into events."""
        while True:
            try:
                report = self._reports.get_nowait()
            except queue.Empty:
                return
            kind = report["kind"]
            if kind in ("running", "pulse"):
                keys = ("node", "rows", "worker", "peak_bytes", "seconds")
                emit(Pulse(**{key: report[key] for key in keys}))
            elif kind == "merged":
                emit(Merged(report["node"]))
            elif kind == "frozen":
                self._frozen.update(report["workers"])
            elif kind == "worker_lost":
                self._note_lost(report)

    def _note_lost(self, report: Message) -> None:
        here = [key for key in report["under_way"] if self._token in key]
        lost = [key for key in report["held"] if self._token in key]
        stimulus, address = report["stimulus"], report["worker"]
        self.deaths.update({node for key in here for node in self._suspects(key)})
        why = next((text for name, text in _REASONS.items() if name in stimulus), stimulus)
        why = _FROZEN if address in self._frozen else why
        again = f"recomputing {len(here)} running tasks and {len(lost)} results"
        self._lost.append(f"{address}: {why}")
        self._work.note("worker", f"worker {address} lost: {why}; {again}", address)

    def _suspects(self, key: str) -> tuple[str, ...]:
        """Return the nodes that a worker may have computed in a task: any of its segments, or the merge."""
        kind, _, node = parse_key(key)
        return self._schedule.segments_of(node) if kind == "segment" else (node,)

    def expect(self, future: Future) -> None:
        """Add a future to wait for."""
        future.add_done_callback(self._done.put)

    def first_done(self, what: str) -> list[Future]:
        """Wait for an expected future; return newly finished ones, or raise `StalledError`."""
        deadline = time.monotonic() + self._stall_seconds
        while True:
            self.drain()
            self._require_alive(what)
            try:
                done = [self._done.get(timeout=SLICE_SECONDS)]
            except queue.Empty:
                if time.monotonic() < deadline:
                    continue
                raise self._stalled(what) from None
            with suppress(queue.Empty):
                while True:
                    done.append(self._done.get_nowait())
            return done

    def _stalled(self, what: str) -> StalledError:
        return StalledError(
            f"{what} did not finish within {self._stall_seconds} s (bigkernel.stall-seconds); workers: "
            f"{self.states()}{self._lost_meanwhile()}; finished segments of a run are kept: restore the cluster and "
            "resume"
        )

    def _lost_meanwhile(self) -> str:
        """Return the workers lost meanwhile: one that dies again and again may not be running when examined."""
        self.drain()
        return (
            f"; {len(self._lost)} lost since the start of the sweep, most recently {self._lost[-1]}"
            if self._lost
            else ""
        )

    def _require_alive(self, what: str) -> None:
        """Raise an error if the lock of the run or the scheduler is lost."""
        if self._work.require_lock is not None:
            self._work.require_lock()
        if self._client.status != "running":
            raise StalledError(
                f"lost the connection to the cluster while waiting for {what}: the scheduler is gone (client status: "
                f"{self._client.status}); restart it and resume"
            )

    def _fetch(self, future: Future, what: str) -> object:
        """Fetch the result of a finished task, with growing timeouts, while there is a scheduler."""
        seconds, deadline = 2 * SLICE_SECONDS, time.monotonic() + self._stall_seconds
        while True:
            try:
                return future.result(timeout=seconds)
            except TimeoutError as error:
                self.drain()
                self._require_alive(what)
                if time.monotonic() > deadline:
                    raise StalledError(
                        f"{what}: the result did not arrive within {self._stall_seconds} s; workers: "
                        f"{self.states()}{self._lost_meanwhile()}"
                    ) from error
                seconds *= 1.5  # the next attempt fetches it from the beginning

    def states(self) -> str:
        """Describe the workers in a line: status, memory, tasks, and time since the last message of each."""
        if self._client.status != "running":
            return "none (the scheduler is gone)"
        texts = []
        for address, worker in self._client.scheduler_info(n_workers=-1)["workers"].items():
            metrics, limit = worker["metrics"], worker["memory_limit"]
            tasks = metrics.get("task_counts", {}).get("executing", 0)
            texts.append(
                f"{address} {worker['status']}, "
                f"{metrics.get('memory', 0) / 1e6:,.0f}{f' of {limit / 1e6:,.0f}' if limit else ''} MB, {tasks} "
                f"tasks, last seen {max(0.0, time.time() - worker['last_seen']):.0f} s ago"
            )
        return "; ".join(texts) or "none"

    def result(self, future: Future, node: str, run: Run | None = None) -> object:
        """Fetch the result of the task of a node, or raise a named error."""
        what = self._schedule.name_of(node)
        try:
            return self._fetch(future, what)
        except BigKernelError:
            raise
        except KilledWorker as error:
            raise self._abandoned(error, run) from error
        except NoWorkerError as error:
            raise self._stalled(f"{what} (no worker available)") from error
        except (distributed.CancelledError, distributed.client.FutureCancelledError) as error:
            raise StalledError(
                f"{what}: lost the connection to the cluster ({error}); restart it and resume"
            ) from error
        except OSError as error:
            raise DataError(f"{what}: a worker failed to read or write: {error}") from error

    def receipts(self, nodes: Mapping[Future, str]) -> dict[Future, tuple[Receipt, ...]]:
        """Fetch the results of `receipts_of` for these nodes in one message; or raise a named error."""
        futures = list(nodes)
        if len(futures) > 1:
            with suppress(Exception):  # one by one, to name the task and the error
                fetch = partial(self._client.gather, futures, asynchronous=True)
                return dict(zip(futures, self._client.sync(fetch, callback_timeout=2 * SLICE_SECONDS), strict=True))
        return {future: cast(tuple[Receipt, ...], self.result(future, node)) for future, node in nodes.items()}

    def _abandoned(self, error: KilledWorker, run: Run | None) -> TaskAbandonedError:
        """Return the error for the node that ended most workers; Dask blames every task of a dying worker."""
        time.sleep(SETTLE_SECONDS)  # the report of the last death and the nanny's log may still be on their way
        self.drain()
        deaths = dict(self.deaths) or dict.fromkeys(self._suspects(str(error.task)), 0)
        worst = max(deaths.values())
        suspects = [node for node, count in deaths.items() if count == worst]
        if run is not None:
            begun = {node: len(run.starts(node)) for node in suspects}
            suspects = [node for node in suspects if begun[node] == max(begun.values())]
        log = ""
        with suppress(Exception):
            wait_for_workers(self._client, 1, REPLACED_SECONDS)  # nannies are found by their workers
            said = self._client.run(last_log, nanny=True, on_error="ignore", callback_timeout=ASK_SECONDS)
            log = next((f"; last log message: {text}" for text in said.values() if text), "")
        named = " or ".join(
            self._schedule.name_of(node)
            for node in sorted(suspects, key=lambda node: [int(n) for n in node.split("-") if n.isdigit()])
        )
        return TaskAbandonedError(
            f"{named}: abandoned after {error.allowed_failures + 1} worker processes died on it{log}; check these "
            "rows and the worker's log, and use more memory per worker or smaller chunks; finished segments of a run "
            "are kept: resume to compute the rest"
        )


def at_work(token: str, dask_worker: Worker) -> bool:
    """Return True if a worker executes a task of the sweep with this token; for `Client.run`."""
    return any(
        token in str(task.key) for task in list(dask_worker.state.executing | dask_worker.state.long_running)
    ) or any(token in str(key) for key, task in list(dask_worker.state.tasks.items()) if task.state == "cancelled")


def last_log(dask_worker: Nanny) -> str:
    """Return the last lines that a nanny logged, newest first; for `Client.run` with `nanny=True`."""
    return " | ".join(text for _, text in dask_worker.get_logs(n=3))
