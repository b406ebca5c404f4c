"""A sweep on a Dask cluster: futures of segments and merges, and what remains of them when something goes wrong.

Only receipts come to the driver; accumulators stay on the workers (or in the run) until one is left. A scheduler pays
for tasks, whatever they do: so neighbouring segments that are short are one task (`Subtree`), and so are some merges.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import dask
import numpy as np
from distributed import Client, Future
from distributed.protocol.pickle import dumps

from bigkernel.config import Settings
from bigkernel.data.run_directory import ArrayRef, Run, detach
from bigkernel.engine.executor import Schedule, Work
from bigkernel.engine.interrupts import patience, tell_waiting
from bigkernel.engine.preflight import check_cluster
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import DaskSource, NumpySource
from bigkernel.engine.tasks import Bundled, Job, Partial, merge_bundle, receipts_in, receipts_of, run_held, run_subtree
from bigkernel.engine.telemetry import PULSE_SECONDS, ToScheduler
from bigkernel.engine.worker_watch import ASK_SECONDS, Watch, at_work
from bigkernel.events.kinds import Receipted
from bigkernel.events.scope import emit
from bigkernel.streaming.merge_tree import Merge, Receipt, leaf
from bigkernel.streaming.plan import Plan, Segment

BATCH = 512  # most tasks of one message to the scheduler
MERGER_BYTES = 2**16  # most of a job that every merge brings along
PULSES_PER_SECOND = 200  # of all workers together: each takes the scheduler about 0.2 ms
REPLICATE_SECONDS = 30.0  # most that landmarks may take to reach every worker before the first task
TASK_SECONDS = 10.0  # of a task of several segments at most, where a processor does what follows in a second
_FLOPS_PER_SECOND = 1e11
_BYTES_PER_SECOND = 5e8  # of rows, decoded
MOST_SEGMENTS = 16  # of one task
ROUNDS = 8  # least tasks of segments for every slot, so that all slots end at about the same time
BUNDLE = 4  # most partials that one task merges
T = TypeVar("T")


@dataclass(frozen=True)
class DaskExecutor:
    """Runs the tasks of a sweep on the workers of a client."""

    client: Client
    name: str = "dask"

    def slots(self) -> tuple[int, int]:
        threads = self.client.ncores()
        return len(threads), sum(threads.values())

    def preflight(self, rows: Rows, steps: Plan, wanted: Settings, run: Run | None) -> int:
        return check_cluster(self.client, rows, steps, wanted, run)

    def run(self, work: Work) -> Partial:
        tasks = _Tasks(self.client, work)
        try:
            tasks.share()
            with Watch(self.client, work.token, work.wanted, work.require_lock, work.schedule) as watch:
                tasks.begin(watch)
                return tasks.finish(watch)
        except BaseException as error:
            tasks.let_go()
            with contextlib.suppress(Exception):  # the cluster may be gone; the error that brought us here counts
                if work.job.run:
                    _settle(self.client, work.token, error, patience(error, work.wanted.grace_seconds))
            raise
        finally:
            tasks.let_go()


class _Tasks:
    """The tasks of one sweep on a cluster: segments, merges and, without a run, receipts."""

    def __init__(self, client: Client, work: Work) -> None:
        self._client, self._work, self._schedule, self._run = client, work, work.schedule, work.job.run
        pause = max(PULSE_SECONDS, len(client.ncores()) / PULSES_PER_SECOND)
        self._job = replace(work.job, heard=ToScheduler(work.token, pause) if work.wanted.monitor else None)
        self._segments: dict[Future, str] = {}  # not done yet, and their nodes
        self._receipts: dict[Future, str] = {}
        self._top = ""  # the node that all others are merged into
        self._last: Future | Partial | None = None
        self._shared: Job | Future = self._job
        self._merger: Job | Future = self._job

    def share(self) -> None:
        """Bring the statistic, with its landmarks, to every worker; with a run, tasks load them from its store.

        As a task, which unlike scattered data is done again when all who hold its result die. Before anybody listens
        to the scheduler: what it tells of a replication cannot be sent.
        """
        if self._run:
            return
        (shared,) = self._submit(_given, "job", ["all"], [self._job], priority=3)
        self._shared = shared
        self._merger = _without_arrays(self._job) or shared
        with contextlib.suppress(Exception):  # without it the first tasks all go to the one worker that has it
            self._client.replicate([shared], callback_timeout=REPLICATE_SECONDS)

    def begin(self, watch: Watch) -> None:
        """Submit all that the schedule waits for."""
        nodes: dict[str, Future | Partial] = {
            node: (None, receipt) for node, receipt in self._schedule.finished.items()
        }
        slots = sum(self._client.ncores().values())
        # rows that the cluster holds come with their own tasks
        most = 1 if self._work.rows.persisted else segments_a_task(self._schedule, slots)
        subtrees = spread(bundle_segments(self._schedule, most), len(self._client.ncores()))
        tasks = self._begin_segments(subtrees)
        nodes.update(zip((subtree.node for subtree in subtrees), tasks, strict=True))
        self._segments = {task: subtree.node for task, subtree in zip(tasks, subtrees, strict=True)}
        for task in tasks:
            watch.expect(task)
        # a task holds what it takes until it ends, within what the plan announces; with a run it reads two at a time
        at_once = BUNDLE if self._run or self._schedule.plan.merges_bundled else 2
        batches = bundle_merges(self._schedule, subtrees, at_once)
        self._begin_merges(next(batches, []), nodes, told=self._run is not None)
        if not self._run:  # with a run the result is the receipt
            receipts = self._submit(receipts_of, "receipt", list(nodes), list(nodes.values()), priority=2)
            self._receipts = dict(zip(receipts, nodes, strict=True))
        for batch in batches:
            self._begin_merges(batch, nodes, told=True)
        ((self._top, self._last),) = nodes.items()  # all others were merged into it
        for future in (*self._receipts, self._last):
            if isinstance(future, Future) and future not in self._segments:
                watch.expect(future)

    def _begin_segments(self, subtrees: Sequence[Subtree]) -> list[Future]:
        rows, names = self._work.rows, [subtree.node for subtree in subtrees]
        segments = [subtree.segments for subtree in subtrees]
        pieces = [rows.part(some[0].start, some[-1].stop) for some in segments]
        shared, ancestors = [self._shared] * len(names), [self._schedule.ancestors[node] for node in names]
        if not rows.persisted or not names:
            merges = [subtree.merges for subtree in subtrees]
            return self._submit(run_subtree, "segment", names, shared, pieces, segments, merges, ancestors)
        plain, lazy, held = zip(*(_split_dask_arrays(piece, self._client) for piece in pieces), strict=True)
        columns = shared, plain, [one for (one,) in segments], ancestors, lazy, *zip(*held, strict=True)
        return self._submit(run_held, "segment", names, *columns)

    def _begin_merges(self, tasks: Sequence[tuple[Merge, ...]], nodes: dict[str, Future | Partial], told: bool) -> None:
        """Submit merges none of whose tasks waits for another; the inputs leave `nodes`, and so are forgotten then."""
        names = [merges[-1][0] for merges in tasks]
        inputs: list[list[Future | Partial | None]] = []
        for merges in tasks:
            taken = [nodes.pop(child) for _, *children in merges for child in children if child in nodes]
            inputs.append([*taken, *[None] * (BUNDLE - len(taken))])
        ancestors = [self._schedule.ancestors[node] for node in names]
        columns = [self._merger] * len(names), tasks, ancestors, [told] * len(names), *zip(*inputs, strict=True)
        # before other segments, so that few partials wait
        nodes.update(zip(names, self._submit(merge_bundle, "merge", names, *columns, priority=1), strict=True))

    def finish(self, watch: Watch) -> Partial:
        """Wait for all of it; the last merge, which ends early where any task has failed, is waited for meanwhile."""
        top = self._last if isinstance(self._last, Future) else None
        partial = None if isinstance(self._last, Future) else self._last
        while self._segments or self._receipts or top is not None:
            last = self._schedule.name_of(self._top) if top is not None else "a receipt"
            done = watch.first_done("a segment" if self._segments else last)
            come = watch.results({future: self._receipts[future] for future in done if future in self._receipts})
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
                        emit(Receipted(receipt))
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
        self, function: Callable[..., Any], kind: str, nodes: Sequence[str], *columns: Sequence[Any], priority: int = 0
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
        leaves = self._schedule.segments_of(node)
        if self._run is None:
            for one in leaves:
                self._work.tell_done(Receipt(one, *self._schedule.rows[one]))
            return
        # the run knows it, even when the worker that did it has died since
        found = [receipt for one in leaves if (receipt := self._run.receipt(one))]
        if len(found) < len(leaves):
            found = list(receipts_in(watch.result(future, node, self._run)))
        for receipt in (replace(one, resumed=False) for one in found):
            self._work.add_receipt(receipt)
            self._work.tell_done(receipt)

    def _published(self, node: str, future: Future, watch: Watch) -> Partial:
        # here too
        receipt = self._run.receipt(node) if self._run else None
        if receipt:
            return None, replace(receipt, resumed=False)
        found: Partial | Bundled = watch.result(future, node, self._run)
        return found[0], found[1]


def _given(job: Job) -> Job:
    return job


class _NoStore:
    """An array store that keeps nothing."""

    def keep(self, values: np.ndarray[Any, Any]) -> ArrayRef:
        """Return a reference that nobody follows."""
        return ArrayRef("")


def _without_arrays(job: Job) -> Job | None:
    """Make a job for merges, which look at no large array of the statistic; None where it is large still.

    A merge that needs the shared job could run wherever that is: the scheduler would weigh all workers against one
    another for each merge, and send both of its inputs to one that is idle.
    """
    light = replace(job, statistic=detach(job.statistic, _NoStore()), heard=None)
    return light if len(dumps(light)) <= MERGER_BYTES else None


@dataclass(frozen=True)
class Subtree:
    """Neighbouring segments that one task computes, and their merges, children before parents, up to `node`."""

    node: str
    segments: tuple[Segment, ...]
    merges: tuple[Merge, ...]


def bundle_segments(schedule: Schedule, most: int) -> list[Subtree]:
    """Take the segments that are still to be computed, in order, up to `most` together that the tree merges."""
    found = {leaf(s.index): Subtree(leaf(s.index), (s,), ()) for s in schedule.waiting}
    for merge in schedule.merges:
        node, left, right = merge
        first, stop = schedule.covers[node]
        if stop - first <= most and left in found and right in found and not schedule.is_done(node):
            a, b = found.pop(left), found.pop(right)
            found[node] = Subtree(node, (*a.segments, *b.segments), (*a.merges, *b.merges, merge))
    return sorted(found.values(), key=lambda subtree: subtree.segments[0].index)


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


def _settle(client: Client, token: str, error: BaseException, seconds: float) -> None:
    """Wait until no worker is at a task of this sweep: what is under way is still published in the run."""
    deadline, told = time.monotonic() + seconds, False
    while client.status == "running" and time.monotonic() < deadline:
        busy = client.run(at_work, token, on_error="return", callback_timeout=ASK_SECONDS)
        count = sum(answer is True for answer in busy.values())
        if not count:
            return
        if not told:
            tell_waiting(error, count, seconds)
            told = True
        time.sleep(0.1)


def _split_dask_arrays(piece: Rows, client: Client) -> tuple[Rows, tuple[str, ...], list[Future]]:
    """Take rows without their Dask arrays, and the names ("x" or of a column) and futures of these."""
    sources = {"x": piece.x, **piece.columns}
    lazy = {name: source for name, source in sources.items() if isinstance(source, DaskSource)}
    futures = [client.compute(source.array) for source in lazy.values()]
    kept = {name: source for name, source in piece.columns.items() if name not in lazy}
    x = NumpySource(np.empty((0, 0))) if "x" in lazy else piece.x
    return replace(piece, x=x, columns=kept), tuple(lazy), futures
