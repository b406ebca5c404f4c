"""A sweep on a Dask cluster: futures of segments and merges, and what remains of them when something goes wrong.

Only receipts come to the driver; accumulators stay on the workers (or in the run) until one is left.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dask
import numpy as np
from distributed import Client, Future

from bigkernel.config import Settings
from bigkernel.incidents import ASK_SECONDS, Watch
from bigkernel.monitor import Incident, SegmentDone, emit
from bigkernel.plan import Plan, Segment
from bigkernel.rows import DaskSource, NumpySource, Rows
from bigkernel.runs import Receipt
from bigkernel.worker import (
    Job,
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


def on_cluster(
    job: Job, rows: Rows, steps: Plan, client: Client, wanted: Settings, alive: Callable[[], None]
) -> tuple[Partial, list[Receipt]]:
    """Run all segments and merges of the plan; the merged partial and the receipts of the segments.

    `alive` is called now and then and raises where the job must not go on.
    """
    token, merges = uuid.uuid4().hex[:12], merge_tree(len(steps.segments))
    above = ancestors_of(merges)
    span = {leaf(segment.index): (segment.start, segment.stop) for segment in steps.segments}
    for node, left, right in merges:
        span[node] = span[left][0], span[right][1]

    def submit(function: Callable[..., Any], kind: str, node: str, *args: Any, priority: int = 0) -> Future:
        return client.submit(function, *args, key=f"bigkernel-{kind}-{token}-{node}", pure=False, priority=priority)

    def rows_of(node: str) -> str:
        if node not in span:
            return "the job itself"
        start, stop = span[node]
        return f"rows {start}:{stop}" if node.startswith("0-") else f"the merge of rows {start}:{stop}"

    def published(node: str, future: Future) -> Partial:
        # a run knows it, even when the worker that did it has died since
        if job.run and future.status == "finished":
            receipt = job.run.receipt(node)
            if receipt:
                return None, replace(receipt, resumed=False)
        partial: Partial = watch.result(future, rows_of(node), rows_of, job.run)
        return partial

    finished, collected, damaged = recover(job, steps)
    for node, wrong in damaged.items():
        emit(Incident("damage", f"{rows_of(node)}: what the run holds is damaged and is computed again ({wrong})"))
    for i, receipt in enumerate(collected):
        emit(SegmentDone(receipt, i + 1, len(steps.segments)))
    nodes: dict[str, Future | Partial] = {node: (None, receipt) for node, receipt in finished.items()}
    waiting: dict[Future, tuple[Segment, Future | None]] = {}  # the segment, and its receipt when it is done
    pending: list[tuple[str, Future]] = []
    with Watch(client, token, wanted, alive) as watch:
        try:
            # without a run the landmarks travel once, as a task, which unlike scattered data is repeated when all who
            # hold it die; with one, tasks load them from its store
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
                shared = job if job.run else submit(_given, "job", "all", job, priority=3)
            for segment in spread(steps.segments, len(client.ncores())):
                node, ancestors = leaf(segment.index), above.get(leaf(segment.index), ())
                if covered(node, finished, above):
                    continue
                piece = rows.part(segment.start, segment.stop)
                if rows.persisted:
                    plain, names, held = _held(piece, client)
                    task = submit(run_held, "segment", node, shared, plain, segment, ancestors, names, *held)
                else:
                    task = submit(run_segment, "segment", node, shared, piece, segment, ancestors)
                nodes[node] = task
                # with a run the result is the receipt
                waiting[task] = segment, None if job.run else submit(receipt_of, "receipt", node, task, priority=2)
            for node, left, right in merges:
                if covered(node, finished, above):
                    continue
                # merges go first, so that few partials wait; inputs are let go, and so forgotten when merged
                nodes[node] = submit(
                    *(merge, "merge", node, shared, node, nodes.pop(left), nodes.pop(right), above.get(node, ())),
                    priority=1,
                )
            ((top, root),) = nodes.items()  # all others were merged into it
            last = {root} if isinstance(root, Future) else set()
            while waiting:
                # the last merge ends early where another one has failed
                for future in watch.first_done({*waiting, *last}, "a segment"):
                    if future not in waiting:
                        if future.status != "finished":
                            watch.result(future, rows_of(top), rows_of, job.run)
                        continue
                    segment, receipt_future = waiting.pop(future)
                    node = leaf(segment.index)
                    done = Receipt(node, segment.start, segment.stop)
                    if future.status != "finished" or receipt_future is None:
                        done = published(node, future)[1]
                        collected.append(done)
                        tell_of(done, rows_of(node))
                    else:
                        # the receipt comes when its worker has a moment; the segment is done now
                        pending.append((rows_of(node), receipt_future))
                    emit(SegmentDone(done, len(collected) + len(pending), len(steps.segments)))
            if isinstance(root, Future):
                watch.first_done({root}, rows_of(top))
                root = published(top, root)
            partial: Partial = root
            for what, receipt_future in pending:
                watch.first_done({receipt_future}, f"the receipt of {what}")
                collected.append(watch.result(receipt_future, what, rows_of, job.run))
                tell_of(collected[-1], what)
        except BaseException:
            # nobody wants them any more: what has not begun never will (cancelling would break the connection where a
            # task in the middle of the tree is wanted by no client)
            receipts = (f for _, f in (*waiting.values(), *pending) if f is not None)
            for future in (*waiting, *receipts, *nodes.values()):
                if isinstance(future, Future):
                    future.release()
            with contextlib.suppress(Exception):  # the cluster may be gone; the error that brought us here counts
                if job.run:
                    _settle(client, token, wanted.grace_seconds)
            raise
    return partial, collected


def spread(segments: Sequence[Segment], workers: int) -> list[Segment]:
    """The order in which segments are begun: each worker mostly meets neighbours, so that most merges move nothing.

    An order binds nobody to a task. (Dask's `workers=` does, `allow_other_workers` or not, once all of them have died.)
    """
    share = -(-len(segments) // max(1, workers))
    order = (first + i for i in range(share) for first in range(0, len(segments), share))
    return [segments[i] for i in order if i < len(segments)]


def tell_of(receipt: Receipt, what: str) -> None:
    """Tell observers what a receipt says of attempts that failed."""
    for reason in receipt.retries:
        emit(Incident("retry", f"{what}: tried again after {reason}"))
    if receipt.starts > 1 and not receipt.resumed:
        emit(Incident("repeat", f"{what}: begun {receipt.starts} times"))


def _given(job: Job) -> Job:
    return job


def _settle(client: Client, token: str, seconds: float) -> None:
    """Wait until no worker is at a task of this sweep: what is under way is still published in the run."""
    deadline = time.monotonic() + seconds
    while client.status == "running" and time.monotonic() < deadline:
        busy = client.run(at_work, token, on_error="return", callback_timeout=ASK_SECONDS)
        if not any(answer is True for answer in busy.values()):
            return
        time.sleep(0.1)


def _held(piece: Rows, client: Client) -> tuple[Rows, tuple[str, ...], list[Future]]:
    """Rows without their Dask arrays, and the names ("x" or of a column) and futures of these."""
    sources = {"x": piece.x, **piece.columns}
    lazy = {name: source for name, source in sources.items() if isinstance(source, DaskSource)}
    futures = [client.compute(source.array) for source in lazy.values()]
    kept = {name: source for name, source in piece.columns.items() if name not in lazy}
    x = NumpySource(np.empty((0, 0))) if "x" in lazy else piece.x
    return replace(piece, x=x, columns=kept), tuple(lazy), futures
