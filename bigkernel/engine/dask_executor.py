"""A sweep on a Dask cluster: futures of segments and merges, and their recovery after failures.

Only receipts reach the driver; accumulators stay on the workers (or in the run) until one is left. Every task costs the
scheduler time, so neighbouring short segments form one task (`Subtree`), and so do some merges.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import dask
import numpy as np
from distributed import Client, Future, Scheduler

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
from bigkernel.kernels.kept_blocks import BLOCKS
from bigkernel.streaming.plan import Merge, Segment, leaf

BATCH = 512  # most tasks in one message to the scheduler
PULSES_PER_SECOND = 200  # of all workers together: each takes the scheduler about 0.2 ms
REPLICATE_SECONDS = 30.0  # most seconds for landmarks to reach every worker before the first task
HOME_SECONDS = 10.0  # most seconds to assign segments to workers, or to release their blocks
TASK_SECONDS = 10.0  # most seconds of a task with several segments
_FLOPS_PER_SECOND = 1e11
_BYTES_PER_SECOND = 5e8  # bytes of rows, decoded
MOST_SEGMENTS = 16  # most segments of a task
ROUNDS = 8  # least tasks of segments for every slot, so that all slots end at about the same time
BUNDLE = 4  # most partials that one task merges
T = TypeVar("T")


def run_on_cluster(work: RunningSweep, client: Client) -> Partial:
    """Run all remaining segments and merges on the workers of a client; return the merged partial."""
    tasks, config = _Tasks(client, work), work.spec.config
    try:
        tasks.share()
        with Watch(client, work) as watch:
            tasks.begin(watch)
            return tasks.finish(watch)
    except BaseException as error:
        tasks.let_go()
        with contextlib.suppress(Exception):  # the cluster may be gone; report the error that led here
            if work.task.run:
                _await_tasks(client, work.token, error, patience(error, config.grace_seconds))
        raise
    finally:
        tasks.let_go()


class _Tasks:
    """The tasks of one sweep on a cluster: segments, merges and, without a run, receipts."""

    def __init__(self, client: Client, work: RunningSweep) -> None:
        self._client, self._work, self._schedule, self._run = client, work, work.schedule, work.task.run
        pause = max(PULSE_SECONDS, sum(client.ncores().values()) / PULSES_PER_SECOND)
        to_scheduler = ToScheduler(work.token, pause) if work.spec.config.monitor else None
        self._task = replace(work.task, on_pulse=to_scheduler)
        self._segments: dict[Future, str] = {}  # pending futures, and their nodes
        self._receipts: dict[Future, str] = {}
        self._nodes: dict[str, Future | Partial] = {}  # those that no task takes yet
        self._waiting: list[list[tuple[Merge, ...]]] = []  # batches of merges that wait for a look
        self._looked: Future | None = None  # the sums that it judges
        self._top = ""  # the root of the tree of merges
        self._last: Future | Partial | None = None
        self._shared: SweepTask | Future = self._task
        self._merger = self._task

    def share(self) -> None:
        """Send the statistic, with its landmarks, to every worker; with a run, tasks load them from its store.

        This is a task, which unlike scattered data is recomputed when all workers that hold its result die. It precedes
        listening to the scheduler, whose reports of a replication cannot be sent.
        """
        if self._run:
            return
        (shared,) = self._submit(_given, "job", ["all"], [self._task], priority=3)
        self._shared = shared
        # merges use no large array of the statistic; depending on the shared task would let them run wherever it is:
        # the scheduler would compare all workers, and send both inputs to an idle one
        self._merger = replace(self._task, statistic=detach(self._task.statistic, _NoStore()), on_pulse=None)
        with contextlib.suppress(Exception):  # otherwise the first tasks all go to the one worker that has it
            self._client.replicate([shared], callback_timeout=REPLICATE_SECONDS)

    def begin(self, watch: Watch) -> None:
        """Submit everything the schedule needs."""
        nodes = self._nodes
        nodes.update({node: (None, receipt) for node, receipt in self._schedule.finished.items()})
        if self._schedule.first in nodes:  # known before any task
            self._work.look((None, self._schedule.finished[self._schedule.first]))
            self._schedule = replace(self._schedule, first="")
        slots = sum(self._client.ncores().values())
        # rows held by the cluster come with tasks of their own
        most = 1 if self._work.spec.rows.persisted else segments_a_task(self._schedule, slots)
        subtrees = spread(bundle_segments(self._schedule, most), len(self._client.ncores()))
        tasks = self._begin_segments(subtrees)
        nodes.update(zip((subtree.node for subtree in subtrees), tasks, strict=True))
        self._segments = {task: subtree.node for task, subtree in zip(tasks, subtrees, strict=True)}
        for task in tasks:
            watch.expect(task)
        # a task holds its inputs until it ends, within the planned memory; with a run it reads two at a time
        at_once = BUNDLE if self._run or self._schedule.plan.merges_bundled else 2
        batches = bundle_merges(self._schedule, subtrees, at_once)
        self._begin_merges(next(batches, []), nodes, with_receipts=self._run is None)
        if not self._run:  # with a run the result is the receipt
            receipts = self._submit(receipts_of, "receipt", list(nodes), list(nodes.values()), priority=2)
            self._receipts = dict(zip(receipts, nodes, strict=True))
        for batch in batches:
            self._begin_merges(batch, nodes, with_receipts=False)
        for future in self._receipts:
            watch.expect(future)
        self._waiting = [*bundle_merges(self._schedule, subtrees, at_once, looking=True)]
        if not self._schedule.first:
            self._begin_last(watch)
            return
        looked = nodes[self._schedule.first]
        assert isinstance(looked, Future)
        self._looked = looked
        if looked not in self._segments:
            watch.expect(looked)

    def _begin_last(self, watch: Watch) -> None:
        """Submit the merges that waited for a look, and expect the last merge of all."""
        for batch in self._waiting:
            self._begin_merges(batch, self._nodes, with_receipts=False)
        ((self._top, self._last),) = self._nodes.items()  # all others were merged into it
        if isinstance(self._last, Future) and self._last not in self._segments:
            watch.expect(self._last)

    def _begin_segments(self, subtrees: Sequence[Subtree]) -> list[Future]:
        rows, names = self._work.spec.rows, [subtree.node for subtree in subtrees]
        segments = [subtree.segments for subtree in subtrees]
        pieces = [rows.restrict(some[0].start, some[-1].stop) for some in segments]
        shared, ancestors = [self._shared] * len(names), [self._schedule.ancestors[node] for node in names]
        if not rows.persisted or not names:
            merges, homes = [subtree.merges for subtree in subtrees], self._homes(subtrees)
            return self._submit(run_subtree, "segment", names, shared, pieces, segments, merges, ancestors, homes)
        plain, lazy, held = zip(*(_split_dask_arrays(piece, self._client) for piece in pieces), strict=True)
        columns = shared, plain, [one for (one,) in segments], ancestors, lazy, *zip(*held, strict=True)
        return self._submit(run_held, "segment", names, *columns)

    def _homes(self, subtrees: Sequence[Subtree]) -> Sequence[Future | None]:
        """Return a future for each subtree, whose worker keeps its blocks, so that later sweeps run there again.

        Dask prefers the worker that holds an input of a task, gives the task to another one that is idle, and computes
        the input again if its worker is lost.
        """
        owner, kept = self._work.spec.owner, self._task.kept_bytes
        if not owner or not kept:
            return [None] * len(subtrees)
        homes = _HOMES.setdefault(owner, {})
        new = [subtree for subtree in subtrees if subtree.segments[0].index not in homes]
        workers = [*self._client.scheduler_info(n_workers=-1)["workers"]] if new else []
        if workers:
            row_bytes = self._schedule.plan.kept_bytes // max(1, self._schedule.plan.n_rows)
            made = []
            for place, subtree in enumerate(sorted(new, key=lambda subtree: subtree.segments[0].index)):
                rows = subtree.segments[-1].stop - subtree.segments[0].start
                key = f"bigkernel-home-{owner}-{subtree.node}"
                worker = workers[place * len(workers) // len(new)]
                made.append(
                    self._client.submit(
                        Home, rows * row_bytes, key=key, workers=[worker], allow_other_workers=True, priority=4
                    )
                )
                homes.update(dict.fromkeys((segment.index for segment in subtree.segments), made[-1]))
            with contextlib.suppress(Exception):  # tasks wait for their homes
                for future in made:
                    future.result(timeout=HOME_SECONDS)
            # a task that may only run on certain workers is never computed again once all of these are lost
            self._client.run_on_scheduler(_unbind, [future.key for future in made])
        return [homes.get(subtree.segments[0].index) for subtree in subtrees]

    def _begin_merges(
        self, tasks: Sequence[tuple[Merge, ...]], nodes: dict[str, Future | Partial], with_receipts: bool
    ) -> None:
        """Submit independent merges; their inputs leave `nodes` and are thus released later."""
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
        """Wait for all tasks; also for the last merge, which ends early if any task fails."""
        partial = None if isinstance(self._last, Future) else self._last
        while self._segments or self._receipts or self._looked is not None or partial is None:
            last = "a receipt" if partial is not None else self._schedule.name_of(self._top)
            done = watch.first_done("a segment" if self._segments else last)
            come = watch.receipts({future: self._receipts[future] for future in done if future in self._receipts})
            for future in done:
                node = self._segments.get(future) or self._receipts.get(future, self._top)
                if future is self._looked:
                    node = self._schedule.first
                if future.status in ("error", "cancelled"):
                    watch.result(future, node, self._run)
                if future in self._segments:
                    self._finish_segments(node, future, watch)
                elif future in self._receipts:
                    # it comes when its worker has a moment
                    del self._receipts[future]
                    for receipt in come[future]:
                        self._work.add_receipt(receipt)
                if future is self._last:
                    partial = self._published(node, future, watch)
                if future is self._looked:
                    self._work.look(self._published(node, future, watch))
                    self._looked = None
                    self._begin_last(watch)
        assert partial is not None
        return partial

    def let_go(self) -> None:
        """Release all futures, so that pending tasks never start.

        (Cancelling would break the connection if no client holds a task inside the tree.)
        """
        for future in (*self._segments, *self._receipts, *self._nodes.values(), self._last, self._shared):
            if isinstance(future, Future):
                future.release()

    def _submit(
        self, function: object, kind: str, nodes: Sequence[str], *columns: Sequence[object], priority: int = 0
    ) -> list[Future]:
        """Submit a task for each node with its values of the columns, many per message, as each message costs time."""
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
        # the run knows it, even if the worker that did it has died
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


@dataclass(frozen=True)
class Home:
    """The place of the blocks of some segments; its size, which is that of the blocks, keeps Dask from moving it."""

    nbytes: int

    def __sizeof__(self) -> int:
        return self.nbytes


_HOMES: dict[str, dict[int, Future]] = {}  # by owner of blocks and segment


def release_blocks(client: Client, owner: str) -> None:
    """Release the blocks of an owner on all workers; those that do not answer do so before the next sweep."""
    _HOMES.pop(owner, None)
    with contextlib.suppress(Exception):
        client.run(_release, owner, on_error="ignore", callback_timeout=HOME_SECONDS)


def _release(owner: str) -> None:
    BLOCKS.release(owner)


def _unbind(keys: list[str], dask_scheduler: Scheduler | None = None) -> None:
    assert dask_scheduler is not None
    for key in keys:
        if key in dask_scheduler.tasks:
            dask_scheduler.tasks[key].worker_restrictions = set()


def _given(task: SweepTask) -> SweepTask:
    return task


class _NoStore:
    """An array store that stores nothing."""

    def keep(self, values: Array) -> ArrayRef:
        """Return a reference without storing anything."""
        return ArrayRef("")


@dataclass(frozen=True)
class Subtree:
    """Neighbouring segments computed by one task, and their merges, children before parents, up to `node`."""

    node: str
    segments: tuple[Segment, ...]
    merges: tuple[Merge, ...]


def bundle_segments(schedule: Schedule, most: int) -> list[Subtree]:
    """Group the remaining segments, in order, into subtrees of up to `most`."""
    subtrees = {leaf(s.index): Subtree(leaf(s.index), (s,), ()) for s in schedule.waiting}
    for merge in schedule.merges:
        node, left, right = merge
        first, stop = schedule.covers[node]
        due = not schedule.is_done(node) and not schedule.awaits_look(node)
        if due and stop - first <= most and left in subtrees and right in subtrees:
            a, b = subtrees.pop(left), subtrees.pop(right)
            subtrees[node] = Subtree(node, (*a.segments, *b.segments), (*a.merges, *b.merges, merge))
    return sorted(subtrees.values(), key=lambda subtree: subtree.segments[0].index)


def bundle_merges(
    schedule: Schedule, subtrees: Sequence[Subtree], most: int, *, looking: bool = False
) -> Iterator[list[tuple[Merge, ...]]]:
    """Yield the merges outside `subtrees` in batches of independent tasks: those that wait for a look, or the others.

    A task is up to `most` - 1 merges, children before parents, the last of which is the parent of all.
    """
    inside = {merge[0] for subtree in subtrees for merge in subtree.merges}
    due = [
        merge
        for merge in schedule.merges
        if merge[0] not in inside and not schedule.is_done(merge[0]) and schedule.awaits_look(merge[0]) == looking
    ]
    tasks: dict[str, tuple[Merge, ...]] = {}
    for merge in due:
        node, left, right = merge
        # a task of j merges takes j + 1 partials; a full one becomes an input itself
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
    """Return how many segments one task computes, given the number of concurrent tasks: 1, 2, 4, 8 or 16.

    A task costs the scheduler the same whatever it does, and a lost worker costs at most one task's segments (with a
    run, only the current one). So short segments are grouped, by their planned and not their measured time. The sums do
    not change: the tree of merges is the same. Each slot has at least `ROUNDS` tasks.
    """
    plan = schedule.plan
    seconds = (plan.flops / _FLOPS_PER_SECOND + plan.bytes_read / _BYTES_PER_SECOND) / max(1, len(plan.segments))
    most = int(min(MOST_SEGMENTS, TASK_SECONDS / max(seconds, 1e-9), len(schedule.waiting) / (ROUNDS * max(1, slots))))
    return 1 << max(0, most.bit_length() - 1)


def spread(tasks: Sequence[T], workers: int) -> list[T]:
    """Order tasks so that each worker mostly gets neighbours, which makes most merges local.

    Tasks are not pinned. (Pinning by Dask's `workers=` fails once all of those workers have died, with or without
    `allow_other_workers`.)
    """
    share = -(-len(tasks) // max(1, workers))
    order = (first + i for i in range(share) for first in range(0, len(tasks), share))
    return [tasks[i] for i in order if i < len(tasks)]


def _await_tasks(client: Client, token: str, error: BaseException, seconds: float) -> None:
    """Wait until no worker runs a task of this sweep: running tasks are still published in the run."""
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
    """Return rows without their Dask arrays, and the names ("x" or of a column) and futures of these."""
    sources = {"x": piece.x, **piece.columns}
    lazy = {name: source for name, source in sources.items() if isinstance(source, DaskSource)}
    futures = [client.compute(source.array) for source in lazy.values()]
    kept = {name: source for name, source in piece.columns.items() if name not in lazy}
    x = NumpySource(np.empty((0, 0))) if "x" in lazy else piece.x
    return replace(piece, x=x, columns=kept), tuple(lazy), futures
