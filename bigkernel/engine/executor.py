"""Executors: what is left of a plan (`Schedule`), a sweep under way (`Work`), and who runs its tasks.

`LocalExecutor` runs them in this process: one segment after another, which is the specification, or several in threads.
`dask_executor` runs the same functions on a cluster.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Container, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from distributed import Client
from threadpoolctl import threadpool_limits

from bigkernel.config import Settings
from bigkernel.data.run_directory import Run
from bigkernel.engine.interrupts import SEGMENT_THREADS, patience, tell_waiting
from bigkernel.engine.rows import Rows
from bigkernel.engine.tasks import Job, Partial, merge, run_segment
from bigkernel.engine.telemetry import PULSE_SECONDS, resident
from bigkernel.events.kinds import Incident, Merged, Pulse, SegmentDone
from bigkernel.events.scope import emit
from bigkernel.streaming.merge_tree import Merge, Receipt, ancestors_of, covered, leaf, merge_tree, spans
from bigkernel.streaming.plan import Plan, Sharing

_LONG_FLOPS = 5e9  # of a sweep that takes longer than it takes to find out what this process holds


class Schedule:
    """The segments and merges of a plan, and what a run held of them when the sweep began.

    It knows names and receipts alone; executors run the tasks and hold what these return. `finished` has, by name, the
    receipts of nodes that were usable, none of which contains another; `damaged` what is wrong with others.
    """

    def __init__(self, plan: Plan, finished: Mapping[str, Receipt], damaged: Mapping[str, str]) -> None:
        self.plan, self.finished, self.damaged = plan, finished, damaged
        self.merges = merge_tree(len(plan.segments))  # children before parents
        self.covers = spans(len(plan.segments))  # by node, the first segment that it covers and one past the last
        # by node, the rows that it covers, and the nodes that contain it, nearest first
        self.rows = {node: (plan.segments[a].start, plan.segments[b - 1].stop) for node, (a, b) in self.covers.items()}
        self.ancestors: dict[str, tuple[str, ...]] = dict.fromkeys(self.rows, ()) | ancestors_of(self.merges)
        self._merge_above = {child: merge for merge in self.merges for child in merge[1:]}
        self.waiting = tuple(segment for segment in plan.segments if not self.is_done(leaf(segment.index)))

    def is_done(self, node: str) -> bool:
        """Tell if a node, or one that contains it, was finished before."""
        return covered(node, self.finished, self.ancestors)

    def merge_due(self, node: str, held: Container[str]) -> Merge | None:
        """Return the merge that takes a node, if both of its children are `held` now."""
        merge = self._merge_above.get(node)
        return merge if merge is not None and merge[1] in held and merge[2] in held else None

    def segments_of(self, node: str) -> tuple[str, ...]:
        """Return the names of the segments that a node covers; its own where it is of no tree."""
        return tuple(leaf(i) for i in range(*self.covers[node])) if node in self.covers else (node,)

    def name_of(self, node: str) -> str:
        """Name a node in words, for people."""
        if node not in self.rows:
            return "the job itself"
        start, stop = self.rows[node]
        return f"rows {start}:{stop}" if node.startswith("0-") else f"the merge of rows {start}:{stop}"


def schedule(plan: Plan, run: Run | None) -> Schedule:
    """Schedule a plan, less what the run holds already; receipts that promise more than there is are removed."""
    names = [leaf(segment.index) for segment in plan.segments]
    return Schedule(plan, *(run.usable(merge_tree(len(names)), names) if run else ({}, {})))


@dataclass
class Work:
    """A sweep under way."""

    job: Job  # what every task needs
    rows: Rows
    schedule: Schedule
    wanted: Settings
    token: str  # part of the names of all tasks
    # called now and then; raises where the lock of the run is lost and the sweep must not go on
    require_lock: Callable[[], None]
    announced_bytes: int  # planned peak of a process
    incidents: list[Incident]  # what has gone wrong so far
    start: float  # when it began, by `time.perf_counter`
    receipts: list[Receipt] = field(default_factory=list)  # of the segments, first of those that the run held already
    _done: int = 0

    def recover(self, run: Run) -> None:
        """Take the receipts of segments that the run holds, and tell of what it holds that is damaged."""
        for node, wrong in self.schedule.damaged.items():
            what = f"{self.schedule.name_of(node)}: what the run holds is damaged and is computed again ({wrong})"
            emit(Incident("damage", what))
        for segment in self.schedule.plan.segments:
            node = leaf(segment.index)
            if self.schedule.is_done(node):
                found = run.receipt(node) or Receipt(node, segment.start, segment.stop, resumed=True)
                self.receipts.append(found)
        for receipt in self.receipts:
            self.tell_done(receipt)

    def add_receipt(self, receipt: Receipt) -> None:
        """Collect the receipt of a segment, and tell of the attempts that failed before it."""
        self.receipts.append(receipt)
        for reason in receipt.retries:
            emit(Incident("retry", f"{self.schedule.name_of(receipt.node)}: tried again after {reason}"))
        if receipt.starts > 1 and not receipt.resumed:
            emit(Incident("repeat", f"{self.schedule.name_of(receipt.node)}: begun {receipt.starts} times"))

    def tell_done(self, receipt: Receipt) -> None:
        """Tell that a segment is finished."""
        self._done += 1
        emit(SegmentDone(receipt, self._done, len(self.schedule.plan.segments)))


class Executor(Protocol):
    """Runs the tasks of a sweep."""

    @property
    def name(self) -> str:
        """ "serial", "threads" or "dask"."""

    @property
    def client(self) -> Client | None:
        """Of the cluster whose scheduler hears of the sweep."""

    def slots(self) -> tuple[int, int]:
        """Return how many workers there are now, and how many tasks run at once on all of them."""

    def preflight(self, rows: Rows, steps: Plan, wanted: Settings, run: Run | None) -> int:
        """Return the announced peak of a process in bytes; or raise what says why the plan cannot be run here."""

    def run(self, work: Work) -> Partial:
        """Run all segments and merges that the schedule waits for; return the merged partial."""


@dataclass(frozen=True)
class LocalExecutor:
    """Runs the tasks of a sweep in this process, up to `threads` segments at a time."""

    name: str
    threads: int
    client: None = None

    def slots(self) -> tuple[int, int]:
        return self.threads, self.threads

    def preflight(self, rows: Rows, steps: Plan, wanted: Settings, run: Run | None) -> int:
        """See `Executor`; this process can do what it has planned."""
        tasks, partials = (
            min(self.threads, max(1, len(steps.segments))),
            most_partials(len(steps.segments), self.threads),
        )
        sharing = Sharing(tasks, 0, published=run is not None, partials=partials)
        found = resident(trim=steps.flops >= _LONG_FLOPS)
        return max(found.peak, steps.worker_bytes(found.base(tasks), sharing))

    def run(self, work: Work) -> Partial:
        sums = PartialSums(work.job, work.schedule)

        def finish(partial: Partial) -> None:
            work.require_lock()
            work.add_receipt(partial[1])
            work.tell_done(partial[1])
            sums.add(partial[1].node, partial)

        # one BLAS thread a task, set once for the whole sweep: parallelism is over segments
        with threadpool_limits(limits=1, user_api="blas"):
            for node, receipt in work.schedule.finished.items():
                sums.add(node, (None, receipt))
            if self.threads == 1:
                job = replace(work.job, heard=emit)
                for segment in work.schedule.waiting:
                    finish(run_segment(job, work.rows, segment, work.schedule.ancestors[leaf(segment.index)]))
            else:
                _run_in_threads(work, finish, self.threads, sums)
        (root,) = sums.held.values()
        return root


class PartialSums:
    """Merges partials as soon as both children of a node are there; few are `held`, about one on each level."""

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._job, self._schedule = replace(job, spends=True), schedule
        self.held: dict[str, Partial] = {}

    def add(self, node: str, partial: Partial) -> None:
        """Take a finished node."""
        self.held[node] = partial
        while due := self._schedule.merge_due(node, self.held):
            node, left, right = due
            children = self.held.pop(left), self.held.pop(right)
            self.held[node] = merge(self._job, node, *children, self._schedule.ancestors[node])
            emit(Merged(node))


def most_partials(segments: int, threads: int) -> int:
    """Return how many partials are summed or wait at once at most: one a thread, and one on each level of the tree.

    Segments wait for one another rather than that more are held.
    """
    return min(segments, threads + (max(1, segments) - 1).bit_length())


def _run_in_threads(work: Work, finish: Callable[[Partial], None], threads: int, sums: PartialSums) -> None:
    """Run the segments that wait in threads, and `finish` each in this one."""
    pulses: queue.SimpleQueue[Pulse] = queue.SimpleQueue()
    job, ancestors = replace(work.job, heard=pulses.put), work.schedule.ancestors  # observers hear in this thread
    waiting, running = deque(work.schedule.waiting), set[Future[Partial]]()
    most = most_partials(len(work.schedule.plan.segments), threads)  # as announced
    pool = ThreadPoolExecutor(threads, thread_name_prefix=SEGMENT_THREADS)

    def begin(done: int) -> None:
        """Begin segments while fewer partials are held than were announced, and one where none else would make room.

        `done` of those that are held are still to be merged.
        """
        held = done + sum(total is not None for total, _ in sums.held.values())  # here, and not in a run
        while waiting and len(running) < min(threads, max(most - held, not done)):
            segment = waiting.popleft()
            running.add(pool.submit(run_segment, job, work.rows, segment, ancestors[leaf(segment.index)]))

    try:
        begin(0)
        while running:
            done, _ = wait(running, timeout=PULSE_SECONDS, return_when=FIRST_COMPLETED)
            running.difference_update(done)
            with suppress(queue.Empty):
                while True:
                    emit(pulses.get_nowait())
            partials = [future.result() for future in done]  # where one has failed, no more are begun
            done.clear()
            while partials:
                begin(len(partials))  # merged beside the next segments
                finish(partials.pop())  # and is let go: what was merged into another is no longer needed
            begin(0)
    except BaseException as error:
        if work.job.run is not None:  # what is under way is still published there
            seconds = patience(error, work.wanted.grace_seconds)
            tell_waiting(error, len(running), seconds)
            wait(running, timeout=seconds)
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
