"""A sweep on a Dask cluster: futures of segments and merges, and what remains of them when something goes wrong.

Only receipts come to the driver; accumulators stay on the workers (or in the run) until one is left. A scheduler pays
for tasks, whatever they do: so neighbouring segments that are short are one task (`Subtree`), and so are some merges.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import dask
import numpy as np
from distributed import Client, Future

from bigkernel.arrays import Array
from bigkernel.data.run_directory import ArrayRef, detach
from bigkernel.engine.executor import RunningSweep, Schedule
from bigkernel.engine.interrupts import patience, tell_waiting
from bigkernel.engine.rows import DaskSource, NumpySource, Rows
from bigkernel.engine.tasks import (
    PULSE_SECONDS,
    Bundled,
    Partial,
    SweepTask,
    ToScheduler,
    merge_bundle,
    receipts_in,
    receipts_of,
    run_held,
    run_subtree,
)
from bigkernel.engine.worker_watch import ASK_SECONDS, Watch, at_work
from bigkernel.streaming.plan import Merge, Segment, leaf

BATCH = 512  # most tasks of one message to the scheduler
PULSES_PER_SECOND = 200  # of all workers together: each takes the scheduler about 0.2 ms
REPLICATE_SECONDS = 30.0  # most that landmarks may take to reach every worker before the first task
TASK_SECONDS = 10.0  # of a task of several segments at most, where a processor does what follows in a second
_FLOPS_PER_SECOND = 1e11
_BYTES_PER_SECOND = 5e8  # of rows, decoded
MOST_SEGMENTS = 16  # of one task
ROUNDS = 8  # least tasks of segments for every slot, so that all slots end at about the same time
BUNDLE = 4  # most partials that one task merges
T = TypeVar("T")


def run_on_cluster(work: RunningSweep, client: Client) -> Partial:
    """Run all segments and merges that are left on the workers of a client; return the merged partial."""
    tasks, wanted = _Tasks(client, work), work.spec.wanted
    try:
        tasks.share()
        with Watch(client, work) as watch:
            tasks.begin(watch)
            return tasks.finish(watch)
    except BaseException as error:
        tasks.let_go()
        with contextlib.suppress(Exception):  # the cluster may be gone; the error that brought us here counts
            if work.task.run:
                _await_tasks(client, work.token, error, patience(error, wanted.grace_seconds))
        raise
    finally:
        tasks.let_go()


class _Tasks:
    """The tasks of one sweep on a cluster: segments, merges and, without a run, receipts."""

    def __init__(self, client: Client, work: RunningSweep) -> None:
        self._client, self._work, self._schedule, self._run = client, work, work.schedule, work.task.run
        pause = max(PULSE_SECONDS, sum(client.ncores().values()) / PULSES_PER_SECOND)
        to_scheduler = ToScheduler(work.token, pause) if work.spec.wanted.monitor else None
        self._task = replace(work.task, on_pulse=to_scheduler)
        self._segments: dict[Future, str] = {}  # not done yet, and their nodes
        self._receipts: dict[Future, str] = {}
        self._top = ""  # the node that all others are merged into
        self._last: Future | Partial | None = None
        self._shared: SweepTask | Future = self._task
        self._merger = self._task

    def share(self) -> None:
        """Bring the statistic, with its landmarks, to every worker; with a run, tasks load them from its store.

        As a task, which unlike scattered data is done again when all who hold its result die. Before anybody listens
        to the scheduler: what it tells of a replication cannot be sent.
        """
        if self._run:
            return
        (shared,) = self._submit(_given, "job", ["all"], [self._task], priority=3)
        self._shared = shared
        # merges look at no large array of the statistic; one that needs the shared task could run wherever that is:
        # the scheduler would weigh all workers against one another, and send both of its inputs to one that is idle
        self._merger = replace(self._task, statistic=detach(self._task.statistic, _NoStore()), on_pulse=None)
        with contextlib.suppress(Exception):  # without it the first tasks all go to the one worker that has it
            self._client.replicate([shared], callback_timeout=REPLICATE_SECONDS)

    def begin(self, watch: Watch) -> None:
        """Submit all that the schedule waits for."""
        nodes: dict[str, Future | Partial] = {
            node: (None, receipt) for node, receipt in self._schedule.finished.items()
        }
        slots = sum(self._client.ncores().values())
        # rows that the cluster holds come with their own tasks
        most = 1 if self._work.spec.rows.persisted else segments_a_task(self._schedule, slots)
        subtrees = spread(bundle_segments(self._schedule, most), len(self._client.ncores()))
        tasks = self._begin_segments(subtrees)
        nodes.update(zip((subtree.node for subtree in subtrees), tasks, strict=True))
        self._segments = {task: subtree.node for task, subtree in zip(tasks, subtrees, strict=True)}
        for task in tasks:
            watch.expect(task)
        # a task holds what it takes until it ends, within what the plan announces; with a run it reads two at a time
        at_once = BUNDLE if self._run or self._schedule.plan.merges_bundled else 2
        batches = bundle_merges(self._schedule, subtrees, at_once)
        self._begin_merges(next(batches, []), nodes, with_receipts=self._run is None)
        if not self._run:  # with a run the result is the receipt
            receipts = self._submit(receipts_of, "receipt", list(nodes), list(nodes.values()), priority=2)
            self._receipts = dict(zip(receipts, nodes, strict=True))
        for batch in batches:
            self._begin_merges(batch, nodes, with_receipts=False)
        ((self._top, self._last),) = nodes.items()  # all others were merged into it
        for future in (*self._receipts, self._last):
            if isinstance(future, Future) and future not in self._segments:
                watch.expect(future)

    def _begin_segments(self, subtrees: Sequence[Subtree]) -> list[Future]:
        rows, names = self._work.spec.rows, [subtree.node for subtree in subtrees]
        segments = [subtree.segments for subtree in subtrees]
        pieces = [rows.restrict(some[0].start, some[-1].stop) for some in segments]
        shared, ancestors = [self._shared] * len(names), [self._schedule.ancestors[node] for node in names]
        if not rows.persisted or not names:
            merges = [subtree.merges for subtree in subtrees]
            return self._submit(run_subtree, "segment", names, shared, pieces, segments, merges, ancestors)
        plain, lazy, held = zip(*(_split_dask_arrays(piece, self._client) for piece in pieces), strict=True)
        columns = shared, plain, [one for (one,) in segments], ancestors, lazy, *zip(*held, strict=True)
        return self._submit(run_held, "segment", names, *columns)

    def _begin_merges(
        self, tasks: Sequence[tuple[Merge, ...]], nodes: dict[str, Future | Partial], with_receipts: bool
    ) -> None:
        """Submit merges none of whose tasks waits for another; the inputs leave `nodes`, and so are forgotten then."""
        names = [merges[-1][0] for merges in tasks]
        inputs: list[list[Future | Partial | None]] = []
        for merges in tasks:
            taken = [nodes.pop(child) for _, *children in merges for child in children if child in nodes]
            inputs.append([*taken, *[None] * (BUNDLE - len(taken))])
        ancestors = [self._schedule.ancestors[node] for node in names]
        columns = (
            [self._merger] * len(names),
            tasks,
            ancestors,
            [with_receipts] * len(names),
            *zip(*inputs, strict=True),
        )
        # before other segments, so that few partials wait
        nodes.update(zip(names, self._submit(merge_bundle, "merge", names, *columns, priority=1), strict=True))

    def finish(self, watch: Watch) -> Partial:
        """Wait for all of it; the last merge, which ends early where any task has failed, is waited for meanwhile."""
        top = self._last if isinstance(self._last, Future) else None
        partial = None if isinstance(self._last, Future) else self._last
        while self._segments or self._receipts or top is not None:
            last = self._schedule.name_of(self._top) if top is not None else "a receipt"
            done = watch.first_done("a segment" if self._segments else last)
            come = watch.receipts({future: self._receipts[future] for future in done if future in self._receipts})
            for future in done:
                node = self._segments.get(future) or self._receipts.get(future, self._top)
                if future.status in ("error", "cancelled"):
                    watch.result(future, node, self._run)
                if future in self._segments:
                    self._finish_segments(node, future, watch)
                elif future in self._receipts:
                    # it comes when its worker has a moment
                    del self._receipts[future]
                    for receipt in come[future]:
                        self._work.add_receipt(receipt)
                if future is top:
                    partial, top = self._published(node, future, watch), None
        assert partial is not None
        return partial

    def let_go(self) -> None:
        """Release all futures: what has not begun never will.

        (To cancel them would break the connection where a task inside the tree is wanted by no client.)
        """
        for future in (*self._segments, *self._receipts, self._last, self._shared):
            if isinstance(future, Future):
                future.release()

    def _submit(
        self,
        function: object,
        kind: str,
        nodes: Sequence[str],
        *columns: Sequence[object],
        priority: int = 0,
    ) -> list[Future]:
        """Submit a task a node, with its values of the columns; many in one message, for each costs the scheduler."""
        if not nodes:
            return []
        keys = [f"bigkernel-{kind}-{self._work.token}-{node}" for node in nodes]
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
            futures: list[Future] = self._client.map(
                function, *columns, key=keys, pure=False, priority=priority, batch_size=BATCH
            )
        return futures

    def _finish_segments(self, node: str, future: Future, watch: Watch) -> None:
        del self._segments[future]
        if self._run is None:
            return  # their receipts come when a worker has a moment
        # the run knows it, even when the worker that did it has died since
        leaves = self._schedule.segments_of(node)
        receipts = [receipt for one in leaves if (receipt := self._run.receipt(one))]
        if len(receipts) < len(leaves):
            receipts = list(receipts_in(cast(Partial | Bundled, watch.result(future, node, self._run))))
        for receipt in receipts:
            self._work.add_receipt(replace(receipt, resumed=False))

    def _published(self, node: str, future: Future, watch: Watch) -> Partial:
        # the run may know it here too
        receipt = self._run.receipt(node) if self._run else None
        if receipt:
            return None, replace(receipt, resumed=False)
        total, receipt, *_ = cast(Partial | Bundled, watch.result(future, node, self._run))
        return total, receipt


def _given(task: SweepTask) -> SweepTask:
    return task


class _NoStore:
    """An array store that keeps nothing."""

    def keep(self, values: Array) -> ArrayRef:
        """Return a reference that nobody follows."""
        return ArrayRef("")


@dataclass(frozen=True)
class Subtree:
    """Neighbouring segments that one task computes, and their merges, children before parents, up to `node`."""

    node: str
    segments: tuple[Segment, ...]
    merges: tuple[Merge, ...]


def bundle_segments(schedule: Schedule, most: int) -> list[Subtree]:
    """Take the segments that are still to be computed, in order, up to `most` together that the tree merges."""
    subtrees = {leaf(s.index): Subtree(leaf(s.index), (s,), ()) for s in schedule.waiting}
    for merge in schedule.merges:
        node, left, right = merge
        first, stop = schedule.covers[node]
        if stop - first <= most and left in subtrees and right in subtrees and not schedule.is_done(node):
            a, b = subtrees.pop(left), subtrees.pop(right)
            subtrees[node] = Subtree(node, (*a.segments, *b.segments), (*a.merges, *b.merges, merge))
    return sorted(subtrees.values(), key=lambda subtree: subtree.segments[0].index)


def bundle_merges(schedule: Schedule, subtrees: Sequence[Subtree], most: int) -> Iterator[list[tuple[Merge, ...]]]:
    """Yield the merges that are left beside `subtrees`, in batches none of whose tasks waits for another of its batch.

    A task is up to `most` - 1 merges, children before parents, the last of which is the parent of all.
    """
    inside = {merge[0] for subtree in subtrees for merge in subtree.merges}
    due = [merge for merge in schedule.merges if merge[0] not in inside and not schedule.is_done(merge[0])]
    tasks: dict[str, tuple[Merge, ...]] = {}
    for merge in due:
        node, left, right = merge
        # a task of j merges takes j + 1 partials; one that is full is an input itself
        below = [tasks[child] for child in (left, right) if child in tasks]
        if sum(len(merges) for merges in below) + 2 <= most:
            for child in (left, right):
                tasks.pop(child, None)
            tasks[node] = tuple(one for merges in below for one in merges) + (merge,)
        else:
            tasks[node] = (merge,)
    batch: dict[str, tuple[Merge, ...]] = {}
    for node, merges in tasks.items():
        if any(child in batch for merge in merges for child in merge[1:]):
            yield list(batch.values())
            batch = {}
        batch[node] = merges
    if batch:
        yield list(batch.values())


def segments_a_task(schedule: Schedule, slots: int) -> int:
    """Return how many segments one task computes, where so many tasks run at once: 1, 2, 4, 8 or 16.

    A task costs the scheduler the same however much it does, and a lost worker costs at most one task's segments (with
    a run, the one that it was at). So several short segments are one task, reckoned from the plan and not from a clock.
    The sums do not depend on it: the tree of merges is the same. Each slot has `ROUNDS` tasks at least.
    """
    plan = schedule.plan
    seconds = (plan.flops / _FLOPS_PER_SECOND + plan.bytes_read / _BYTES_PER_SECOND) / max(1, len(plan.segments))
    most = int(min(MOST_SEGMENTS, TASK_SECONDS / max(seconds, 1e-9), len(schedule.waiting) / (ROUNDS * max(1, slots))))
    return 1 << max(0, most.bit_length() - 1)


def spread(tasks: Sequence[T], workers: int) -> list[T]:
    """Order tasks as they are begun: each worker mostly meets neighbours, so that most merges move nothing.

    An order binds nobody to a task. (Dask's `workers=` does, `allow_other_workers` or not, once all of them have died.)
    """
    share = -(-len(tasks) // max(1, workers))
    order = (first + i for i in range(share) for first in range(0, len(tasks), share))
    return [tasks[i] for i in order if i < len(tasks)]


def _await_tasks(client: Client, token: str, error: BaseException, seconds: float) -> None:
    """Wait until no worker is at a task of this sweep: what is under way is still published in the run."""
    deadline, said = time.monotonic() + seconds, False
    while client.status == "running" and time.monotonic() < deadline:
        busy = client.run(at_work, token, on_error="return", callback_timeout=ASK_SECONDS)
        count = sum(answer is True for answer in busy.values())
        if not count:
            return
        if not said:
            tell_waiting(error, count, seconds)
            said = True
        time.sleep(0.1)


def _split_dask_arrays(piece: Rows, client: Client) -> tuple[Rows, tuple[str, ...], list[Future]]:
    """Take rows without their Dask arrays, and the names ("x" or of a column) and futures of these."""
    sources = {"x": piece.x, **piece.columns}
    lazy = {name: source for name, source in sources.items() if isinstance(source, DaskSource)}
    futures = [client.compute(source.array) for source in lazy.values()]
    kept = {name: source for name, source in piece.columns.items() if name not in lazy}
    x = NumpySource(np.empty((0, 0))) if "x" in lazy else piece.x
    return replace(piece, x=x, columns=kept), tuple(lazy), futures
