"""A sweep on a Dask cluster: futures of segments and merges, bounded waits, and checks before the first task.

Only receipts come to the driver; accumulators stay on the workers (or in the run) until one is left.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import distributed
import numpy as np
from distributed import Client, Future
from distributed.scheduler import KilledWorker

from bigkernel.config import Settings
from bigkernel.errors import BigKernelError, DataError, Stalled
from bigkernel.monitor import SegmentDone, emit
from bigkernel.plan import Plan, Segment
from bigkernel.rows import DaskSource, NumpySource, Rows
from bigkernel.runs import Receipt
from bigkernel.worker import (
    Job,
    OneBlasThread,
    Partial,
    ancestors_of,
    at_work,
    covered,
    leaf,
    merge,
    merge_tree,
    receipt_of,
    recover,
    run_held,
    run_segment,
)

SETTLE_SECONDS = 30.0  # most seconds that tasks under way are waited for after a failure


def on_cluster(job: Job, rows: Rows, steps: Plan, client: Client, wanted: Settings) -> tuple[Partial, list[Receipt]]:
    """Run all segments and merges of the plan; the merged partial and the receipts of the segments."""
    token, merges = uuid.uuid4().hex[:12], merge_tree(len(steps.segments))
    above = ancestors_of(merges)
    # without a run the landmarks travel once; with one, tasks load them from its store
    shared = job if job.run else client.scatter(job, broadcast=True, hash=False)

    def submit(
        function: Callable[..., Any], kind: str, node: str, *args: Any, priority: int = 0, where: str | None = None
    ) -> Future:
        key = f"bigkernel-{kind}-{token}-{node}"
        # a wish only: whoever is idle may take the task
        place: dict[str, Any] = {"workers": [where], "allow_other_workers": True} if where else {}
        return client.submit(function, *args, key=key, pure=False, retries=wanted.retries, priority=priority, **place)

    finished, collected = recover(job, steps)
    for i, receipt in enumerate(collected):
        emit(SegmentDone(receipt, i + 1, len(steps.segments)))
    nodes: dict[str, Future | Partial] = {node: (None, receipt) for node, receipt in finished.items()}
    waiting: dict[Future, tuple[Segment, Future]] = {}  # the segment, and its receipt when it is done
    # neighbours in the tree on one worker: most merges then move nothing
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    for segment in steps.segments:
        node, ancestors = leaf(segment.index), above.get(leaf(segment.index), ())
        if covered(node, finished, above):
            continue
        piece = rows.part(segment.start, segment.stop)
        if rows.persisted:
            plain, names, held = _held(piece, client)
            task = submit(run_held, "segment", node, shared, plain, segment, ancestors, names, *held)
        else:
            home = workers[segment.index * len(workers) // len(steps.segments)]
            task = submit(run_segment, "segment", node, shared, piece, segment, ancestors, where=home)
        nodes[node] = task
        waiting[task] = segment, submit(receipt_of, "receipt", node, task, priority=2)
    for node, left, right in merges:
        if covered(node, finished, above):
            continue
        # merges go first, so that few partials wait; inputs are let go, and so forgotten when merged
        children = nodes.pop(left), nodes.pop(right)
        nodes[node] = submit(merge, "merge", node, shared, node, *children, above.get(node, ()), priority=1)
    (root,) = nodes.values()
    pending: list[tuple[str, Future]] = []
    try:
        while waiting:
            for future in _first_done(client, set(waiting), wanted.stall_seconds, "a segment"):
                segment, receipt_future = waiting.pop(future)
                what = f"rows {segment.start}:{segment.stop}"
                if future.status != "finished":
                    _result(future, what)
                pending.append((what, receipt_future))
                # the receipt comes when its worker has a moment; the segment is done now
                done = Receipt(leaf(segment.index), segment.start, segment.stop)
                emit(SegmentDone(done, len(collected) + len(pending), len(steps.segments)))
        if isinstance(root, Future):
            _first_done(client, {root}, wanted.stall_seconds, "the merge of the partial results")
            partial: Partial = _result(root, "the merge of the partial results")
        else:
            partial = root
        for what, receipt_future in pending:
            _first_done(client, {receipt_future}, wanted.stall_seconds, f"the receipt of {what}")
            collected.append(_result(receipt_future, what))
    except BaseException:
        held_back = [*waiting, *(f for _, f in waiting.values()), *(f for _, f in pending)]
        client.cancel([*held_back, *([root] if isinstance(root, Future) else [])], force=True)
        if job.run:
            _settle(client, token)
        raise
    return partial, collected


def _settle(client: Client, token: str) -> None:
    """Wait, a little, until no worker is at a task of this sweep: what is under way would still write to the run."""
    deadline = time.monotonic() + SETTLE_SECONDS
    with contextlib.suppress(Exception):  # the cluster may be gone; the error that brought us here counts
        while time.monotonic() < deadline and any(client.run(at_work, token).values()):
            time.sleep(0.1)


def _held(piece: Rows, client: Client) -> tuple[Rows, tuple[str, ...], list[Future]]:
    """Rows without their Dask arrays, and the names ("x" or of a column) and futures of these."""
    sources = {"x": piece.x, **piece.columns}
    lazy = {name: source for name, source in sources.items() if isinstance(source, DaskSource)}
    futures = [client.compute(source.array) for source in lazy.values()]
    kept = {name: source for name, source in piece.columns.items() if name not in lazy}
    x = NumpySource(np.empty((0, 0))) if "x" in lazy else piece.x
    return replace(piece, x=x, columns=kept), tuple(lazy), futures


def check_cluster(client: Client, steps: Plan, wanted: Settings) -> None:
    """Before the first task: workers are there, BLAS is pinned, and the plan fits the smallest worker's memory."""
    try:
        client.wait_for_workers(1, timeout=wanted.stall_seconds)
    except TimeoutError as error:
        address = client.scheduler.address if client.scheduler else "the scheduler"
        raise Stalled(
            f"no worker came to {address} within {wanted.stall_seconds} s; start workers or check their logs"
        ) from error
    client.register_plugin(OneBlasThread())
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    for worker in workers:
        limit = worker["memory_limit"]
        if limit:
            # tasks of one worker share its memory
            steps.check(limit, wanted.worker_base_bytes + (worker["nthreads"] - 1) * steps.task_bytes)


def _first_done(client: Client, futures: set[Future], stall_seconds: int, what: str) -> list[Future]:
    try:
        with client.as_current():
            done, _ = distributed.wait(futures, timeout=stall_seconds, return_when="FIRST_COMPLETED")
    except TimeoutError as error:
        workers = client.scheduler_info(n_workers=-1)["workers"] if client.status == "running" else {}
        states = ", ".join(f"{address} {worker.get('status', '?')}" for address, worker in workers.items())
        raise Stalled(
            f"{what} was not finished within {stall_seconds} s (bigkernel.stall-seconds); workers: {states or 'none'}"
        ) from error
    except (distributed.CancelledError, OSError) as error:
        raise Stalled(f"the cluster was lost while waiting for {what} ({error}); start it again and resume") from error
    return list(done)


def _result(future: Future, what: str) -> Any:
    try:
        return future.result()
    except BigKernelError:
        raise
    except KilledWorker as error:
        raise Stalled(
            f"{what}: its task ended {len(getattr(error, 'args', ())) or 1} worker processes or more ({error}); "
            "look at the worker's log, give it more memory, or take smaller chunks"
        ) from error
    except (distributed.CancelledError, distributed.client.FutureCancelledError) as error:
        raise Stalled(f"{what}: the cluster was lost ({error}); start it again and resume") from error
    except OSError as error:
        raise DataError(f"{what}: a worker could not read or write: {error}") from error
