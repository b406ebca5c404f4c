"""A sweep on a Dask cluster: futures of segments and merges, and what remains of them when something goes wrong.

Only receipts come to the driver; accumulators stay on the workers (or in the run) until one is left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask
import numpy as np
from distributed import Client, Future
from distributed.protocol.pickle import dumps

from bigkernel.config import Settings
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import DaskSource, NumpySource
from bigkernel.engine.tasks import (
    Job,
    Partial,
    at_work,
    merge,
    receipt_of,
    recover,
    run_held,
    run_segment,
)
from bigkernel.engine.worker_watch import ASK_SECONDS, Watch
from bigkernel.monitor.events import Incident, Receipted, SegmentDone
from bigkernel.monitor.scope import emit
from bigkernel.storage.run_directory import ArrayRef, Receipt, Run, detach
from bigkernel.streaming.merge_tree import ancestors_of, covered, leaf, merge_tree
from bigkernel.streaming.plan import Plan, Segment

BATCH = 512  # most tasks of one message to the scheduler
MERGER_BYTES = 2**16  # most of a job that every merge brings along
REPLICATE_SECONDS = 30.0  # most that landmarks may take to reach every worker before the first task


def on_cluster(
    job: Job, rows: Rows, steps: Plan, client: Client, wanted: Settings, alive: Callable[[], None], token: str
) -> tuple[Partial, list[Receipt]]:
    """Run all segments and merges of the plan; the merged partial and the receipts of the segments.

    `alive` is called now and then and raises where the job must not go on; `token` is part of the keys of all tasks.
    """
    sweep = _Sweep(job, steps, client, token)
    try:
        sweep.share()
        with Watch(client, sweep.token, wanted, alive, sweep.name_of) as watch:
            sweep.begin(rows, watch)
            return sweep.finish(watch)
    except BaseException:
        sweep.let_go()
        with contextlib.suppress(Exception):  # the cluster may be gone; the error that brought us here counts
            if job.run:
                _settle(client, sweep.token, wanted.grace_seconds)
        raise
    finally:
        sweep.let_go()


class _Sweep:
    """The tasks of one sweep on a cluster: segments, merges and, without a run, receipts."""

    def __init__(self, job: Job, steps: Plan, client: Client, token: str) -> None:
        self.token = token
        self._job, self._steps, self._client = job, steps, client
        self._merges = merge_tree(len(steps.segments))
        self._span = {leaf(segment.index): (segment.start, segment.stop) for segment in steps.segments}
        for node, left, right in self._merges:
            self._span[node] = self._span[left][0], self._span[right][1]
        self._segments: dict[Future, str] = {}  # not done yet, and their nodes
        self._receipts: dict[Future, str] = {}
        self._last: Future | Partial | None = None
        self._shared: Job | Future = job
        self._merger: Job | Future = job
        self._collected: list[Receipt] = []
        self._done = 0

    def name_of(self, node: str) -> str:
        """What a node is, for people."""
        if node not in self._span:
            return "the job itself"
        start, stop = self._span[node]
        return f"rows {start}:{stop}" if node.startswith("0-") else f"the merge of rows {start}:{stop}"

    def share(self) -> None:
        """Bring the statistic, with its landmarks, to every worker; with a run, tasks load them from its store.

        As a task, which unlike scattered data is done again when all who hold its result die. Before anybody listens
        to the scheduler: what it tells of a replication cannot be sent.
        """
        if self._job.run:
            return
        (shared,) = self._submit(_given, "job", ["all"], [self._job], priority=3)
        self._shared = shared
        self._merger = _without_arrays(self._job) or shared
        with contextlib.suppress(Exception):  # without it the first tasks all go to the one worker that has it
            self._client.replicate([shared], callback_timeout=REPLICATE_SECONDS)

    def begin(self, rows: Rows, watch: Watch) -> None:
        """Submit whatever the run does not hold yet."""
        job, above = self._job, ancestors_of(self._merges)
        finished, self._collected, damaged = recover(job, self._steps)
        for node, wrong in damaged.items():
            what = f"{self.name_of(node)}: what the run holds is damaged and is computed again ({wrong})"
            emit(Incident("damage", what))
        for receipt in self._collected:
            self._tell_done(receipt)
        nodes: dict[str, Future | Partial] = {node: (None, receipt) for node, receipt in finished.items()}
        left = [
            segment
            for segment in spread(self._steps.segments, len(self._client.ncores()))
            if not covered(leaf(segment.index), finished, above)
        ]
        names = [leaf(segment.index) for segment in left]
        tasks = self._begin_segments(rows, left, [above.get(node, ()) for node in names])
        nodes.update(zip(names, tasks, strict=True))
        self._segments = dict(zip(tasks, names, strict=True))
        for task in tasks:
            watch.expect(task)
        if not job.run:  # with a run the result is the receipt
            self._receipts = dict(
                zip(self._submit(receipt_of, "receipt", names, tasks, priority=2), names, strict=True)
            )
        level: list[tuple[str, str, str]] = []
        for node, first, second in self._merges:
            if covered(node, finished, above):
                continue
            if first not in nodes or second not in nodes:  # it waits for a merge of the level below
                self._begin_merges(level, nodes, above)
                level = []
            level.append((node, first, second))
        self._begin_merges(level, nodes, above)
        ((self._top, self._last),) = nodes.items()  # all others were merged into it
        for future in (*self._receipts, self._last):
            if isinstance(future, Future) and future not in self._segments:
                watch.expect(future)

    def _begin_segments(
        self, rows: Rows, segments: Sequence[Segment], ancestors: list[tuple[str, ...]]
    ) -> list[Future]:
        names = [leaf(segment.index) for segment in segments]
        pieces = [rows.part(segment.start, segment.stop) for segment in segments]
        shared = [self._shared] * len(segments)
        if not rows.persisted or not segments:
            return self._submit(run_segment, "segment", names, shared, pieces, segments, ancestors)
        plain, lazy, held = zip(*(_held(piece, self._client) for piece in pieces), strict=True)
        columns = shared, plain, segments, ancestors, lazy, *zip(*held, strict=True)
        return self._submit(run_held, "segment", names, *columns)

    def _begin_merges(
        self,
        merges: list[tuple[str, str, str]],
        nodes: dict[str, Future | Partial],
        above: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Submit merges none of which waits for another; the inputs leave `nodes`, and so are forgotten when merged."""
        names = [node for node, _, _ in merges]
        left, right = [nodes.pop(left) for _, left, _ in merges], [nodes.pop(right) for _, _, right in merges]
        columns = [self._merger] * len(names), names, left, right, [above.get(node, ()) for node in names]
        # before other segments, so that few partials wait
        nodes.update(zip(names, self._submit(merge, "merge", names, *columns, priority=1), strict=True))

    def finish(self, watch: Watch) -> tuple[Partial, list[Receipt]]:
        """Wait for all of it; the last merge, which ends early where any task has failed, is waited for meanwhile."""
        top = self._last if isinstance(self._last, Future) else None
        partial = None if isinstance(self._last, Future) else self._last
        while self._segments or self._receipts or top is not None:
            what = "a segment" if self._segments else self.name_of(self._top) if top is not None else "a receipt"
            done = watch.first_done(what)
            come = watch.results({future: self._receipts[future] for future in done if future in self._receipts})
            for future in done:
                node = self._segments.get(future) or self._receipts.get(future, self._top)
                if future.status in ("error", "cancelled"):
                    watch.result(future, node, self._job.run)
                if future in self._segments:
                    del self._segments[future]
                    segment = Receipt(node, *self._span[node])
                    if self._job.run:
                        segment = self._published(node, future, watch)[1]
                        self._collect(segment)
                    self._tell_done(segment)
                elif future in self._receipts:
                    # it comes when its worker has a moment
                    del self._receipts[future]
                    self._collect(come[future])
                    emit(Receipted(come[future]))
                if future is top:
                    partial, top = self._published(node, future, watch), None
        assert partial is not None
        return partial, self._collected

    def let_go(self) -> None:
        """Nobody wants the tasks any more: what has not begun never will.

        (To cancel them would break the connection where a task inside the tree is wanted by no client.)
        """
        for future in (*self._segments, *self._receipts, self._last, self._shared):
            if isinstance(future, Future):
                future.release()

    def _submit(
        self, function: Callable[..., Any], kind: str, nodes: Sequence[str], *columns: Sequence[Any], priority: int = 0
    ) -> list[Future]:
        """A task a node, with its values of the columns; many in one message, for each message costs the scheduler."""
        if not nodes:
            return []
        keys = [f"bigkernel-{kind}-{self.token}-{node}" for node in nodes]
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
            futures: list[Future] = self._client.map(
                function, *columns, key=keys, pure=False, priority=priority, batch_size=BATCH
            )
        return futures

    def _published(self, node: str, future: Future, watch: Watch) -> Partial:
        # a run knows it, even when the worker that did it has died since
        receipt = self._job.run.receipt(node) if self._job.run else None
        if receipt:
            return None, replace(receipt, resumed=False)
        partial: Partial = watch.result(future, node, self._job.run)
        return partial

    def _collect(self, receipt: Receipt) -> None:
        self._collected.append(receipt)
        tell_of(receipt, self.name_of(receipt.node))

    def _tell_done(self, receipt: Receipt) -> None:
        self._done += 1
        emit(SegmentDone(receipt, self._done, len(self._steps.segments)))


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


class _Nowhere(Run):
    """A store that keeps nothing."""

    def keep(self, values: np.ndarray[Any, Any]) -> ArrayRef:
        """A reference that nobody follows."""
        return ArrayRef("")


def _without_arrays(job: Job) -> Job | None:
    """A job for merges, which look at no large array of the statistic (as with a run); None where it is large still.

    A merge that needs the shared job could run wherever that is: the scheduler would weigh all workers against one
    another for each merge, and send both of its inputs to one that is idle.
    """
    light = replace(job, statistic=detach(job.statistic, _Nowhere("")), heard=None)
    return light if len(dumps(light)) <= MERGER_BYTES else None


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
