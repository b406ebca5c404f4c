"""A sweep as requested, what remains of it, and its tasks in this process.

`run_locally` runs one segment after another, which is the reference, or several in threads. `dask_executor` runs the
same functions on a cluster.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from distributed import Client

from bigkernel.config import Settings
from bigkernel.engine.cards import HOST_CARD, Card
from bigkernel.engine.interrupts import SEGMENT_THREADS, patience, tell_waiting
from bigkernel.engine.process import free_memory, resident
from bigkernel.engine.rows import Rows
from bigkernel.engine.tasks import PULSE_SECONDS, Partial, SweepTask, merge, run_segment
from bigkernel.events.job import Incident, Merged, Pulse, SegmentDone, emit
from bigkernel.kernels.kept_blocks import BLOCKS, kept_map
from bigkernel.kernels.threads import one_thread
from bigkernel.statistics.statistic import Statistic
from bigkernel.streaming.plan import (
    Accumulator,
    Memory,
    Merge,
    Plan,
    Receipt,
    Segment,
    Sharing,
    ancestors_of,
    leaf,
    merge_tree,
    spans,
)

_LONG_FLOPS = 5e9  # for sweeps that take longer than measuring this process does


@dataclass(frozen=True)
class RunLocation:
    """The directory in which a sweep publishes."""

    path: Path
    resume: bool  # continue an existing run
    alone: bool  # outside a job's directory, with its own journal and report


@dataclass(frozen=True)
class Look:
    """A look at the sums of the first rows of a sweep, which may end it; of no sweep whose first rows are too many.

    `judge` takes the sums that all rows would have if they were like these, and the share of these in all rows. It
    returns what ends the sweep, or None.
    """

    rows: int  # at least so many
    judge: Callable[[Accumulator, float], object]


class EndedEarly(Exception):  # noqa: N818 not an error
    """A look ended a sweep: `found` is what it found, in the sums of the segments below `node`."""

    def __init__(self, found: object, node: str) -> None:
        super().__init__(str(found))
        self.found, self.node = found, node


@dataclass(frozen=True)
class SweepSpec:
    """A sweep as requested: what to accumulate, and how to run it."""

    rows: Rows
    statistic: Statistic
    plan: Plan
    config: Settings
    what: str  # a name for messages
    executor: str  # "serial", "threads" or "dask"
    client: Client | None  # of the cluster that runs the tasks; None: this process
    threads: int  # threads of this process, each with one segment
    location: RunLocation | None  # None: nothing is written
    look: Look | None = None
    card: Card = HOST_CARD  # on which tasks compute; of workers the one with the least free memory

    @property
    def owner(self) -> str:
        """Owner of the blocks that processes keep; empty if they keep none."""
        kept = kept_map(self.statistic)
        return kept.owner if kept else ""

    def slots(self) -> tuple[int, int]:
        """Return the current number of workers, and of concurrent tasks on all of them."""
        if self.client is None:
            return self.threads, self.threads
        cores = self.client.ncores()
        return len(cores), sum(cores.values())


@dataclass(frozen=True)
class Schedule:
    """Segments and merges of a plan, and what a run held of them when the sweep began; see `schedule`.

    It holds names and receipts; executors run the tasks and hold their results.
    """

    plan: Plan
    finished: Mapping[str, Receipt]  # of usable nodes, none of which contains another
    merges: list[Merge]  # children before parents
    covers: dict[str, tuple[int, int]]  # by node, the first segment that it covers and one past the last
    ancestors: dict[str, tuple[str, ...]]  # by node, those that contain it, nearest first
    merge_above: dict[str, Merge]  # by node, the merge that takes it
    waiting: tuple[Segment, ...]  # segments to compute
    first: str = ""  # node of the first rows, which a look judges before a merge takes it; empty: none does

    def awaits_look(self, node: str) -> bool:
        """Return whether a node contains the first rows that are looked at, and more."""
        return bool(self.first) and node in self.ancestors[self.first]

    def is_done(self, node: str) -> bool:
        """Return True if a node, or one that contains it, was finished before."""
        return node in self.finished or any(name in self.finished for name in self.ancestors[node])

    def segments_of(self, node: str) -> tuple[str, ...]:
        """Return the names of the segments that a node covers; its own name if it is outside the tree."""
        return tuple(leaf(i) for i in range(*self.covers[node])) if node in self.covers else (node,)

    def name_of(self, node: str) -> str:
        """Return a node's name for people."""
        if node not in self.covers:
            return "the job"
        first, last = self.covers[node]
        rows = f"rows {self.plan.segments[first].start}:{self.plan.segments[last - 1].stop}"
        return rows if node.startswith("0-") else f"the merge of {rows}"


def schedule(plan: Plan, finished: Mapping[str, Receipt] | None = None, look: Look | None = None) -> Schedule:
    """Return the schedule of a plan without what a run holds already, with its look unless that was passed."""
    finished, merges, covers = finished or {}, merge_tree(len(plan.segments)), spans(len(plan.segments))
    ancestors: dict[str, tuple[str, ...]] = dict.fromkeys(covers, ()) | ancestors_of(merges)
    above = {child: merge for merge in merges for child in merge[1:]}
    done = {i for node in finished for i in range(*covers[node])}
    waiting = tuple(segment for segment in plan.segments if segment.index not in done)
    first = "" if look is None else plan.first_node(look.rows)
    if first and any(node in finished for node in ancestors[first]):
        first = ""
    return Schedule(plan, finished, merges, covers, ancestors, above, waiting, first)


@dataclass
class RunningSweep:
    """A running sweep."""

    spec: SweepSpec
    task: SweepTask  # needs of every task
    schedule: Schedule
    token: str  # prefix of the names of all tasks
    # called regularly; raises if the lock of the run is lost
    require_lock: Callable[[], None] | None
    receipts: list[Receipt] = field(default_factory=list)  # of the segments, those that the run held first
    incidents: list[Incident] = field(default_factory=list)
    held: dict[str, Partial] = field(default_factory=dict)  # in this process, by node; about one per level

    def note(self, kind: str, text: str, worker: str = "") -> None:
        """Report an incident."""
        self.incidents.append(Incident(kind, text, worker))
        emit(self.incidents[-1])

    def recover(self, damaged: Mapping[str, str]) -> None:
        """Take the receipts of segments in the run, and report its damage."""
        for node, wrong in damaged.items():
            name = self.schedule.name_of(node)
            self.note("damage", f"{name}: partial result of the run is damaged and will be recomputed ({wrong})")
        for segment in self.schedule.plan.segments:
            node, run = leaf(segment.index), self.task.run
            if run is not None and self.schedule.is_done(node):
                self.add_receipt(run.receipt(node) or Receipt(node, segment.start, segment.stop, resumed=True))

    def add_receipt(self, receipt: Receipt) -> None:
        """Add the receipt of a finished segment, and report attempts that failed before it."""
        self.receipts.append(receipt)
        for reason in () if receipt.resumed else receipt.retries:
            self.note("retry", f"{self.schedule.name_of(receipt.node)}: retried after {reason}")
        if receipt.starts > 1 and not receipt.resumed:
            self.note("repeat", f"{self.schedule.name_of(receipt.node)}: started {receipt.starts} times")
        emit(SegmentDone(receipt, len(self.receipts), len(self.schedule.plan.segments)))

    def finish_segment(self, partial: Partial) -> None:
        """Take the partial of a segment computed in this process."""
        if self.require_lock is not None:
            self.require_lock()
        self.add_receipt(partial[1])
        self.hold(partial)

    def hold(self, partial: Partial) -> None:
        """Take a finished node, and merge two as soon as both children of a node are there."""
        held, task, node = self.held, replace(self.task, consumes=True), partial[1].node
        held[node] = partial
        self.look(partial)
        while (above := self.schedule.merge_above.get(node)) and {*above[1:]} <= held.keys():
            node, left, right = above
            children = held.pop(left), held.pop(right)
            held[node] = merge(task, node, *children, self.schedule.ancestors[node])
            emit(Merged(node))
            self.look(held[node])

    def look(self, partial: Partial) -> None:
        """Judge the sums of the first rows, if these are what a look waits for; raise `EndedEarly` if that ends all."""
        (total, receipt), look, run = partial, self.spec.look, self.task.run
        if look is None or receipt.node != self.schedule.first:
            return
        if total is None:
            assert run is not None
            total = run.partial(receipt.node, receipt.digest)
        # in a copy, as the sums of further rows join this total
        share = receipt.rows / self.spec.plan.n_rows
        of_all = self.spec.statistic.finish({name: values / share for name, values in total.items()})
        with one_thread():  # on a cluster as here
            found = look.judge(of_all, share)
        if found is not None:
            raise EndedEarly(found, receipt.node)


def most_partials(segments: int, threads: int) -> int:
    """Return the most partials summed or waiting at once: one per thread, and one on each level of the tree.

    Segments wait rather than exceed it.
    """
    return min(segments, threads + (max(1, segments) - 1).bit_length())


def local_memory(spec: SweepSpec) -> Memory:
    """Return the planned memory of this process."""
    segments = len(spec.plan.segments)
    tasks, partials = min(spec.threads, max(1, segments)), most_partials(segments, spec.threads)
    sharing = Sharing(tasks, 0, published=spec.location is not None, partials=partials)
    now = resident(trim=spec.plan.flops >= _LONG_FLOPS)
    planned, kept, held = spec.plan.worker_bytes(now.base(tasks), sharing), 0, 0
    if spec.look is not None:  # its solve takes about as many matrices as the one after the sweep
        planned += 2 * spec.plan.partial_bytes + 48 * spec.plan.width**2
    if features := kept_map(spec.statistic):
        held = BLOCKS.held_bytes(features.owner)
        room = free_memory() + held - (planned - now.now) - features.reserved_bytes
        if spec.card.total:
            room = spec.card.free + held - spec.plan.device_bytes
        kept = spec.plan.kept_share(room, spec.config.block_cache)
        planned += 0 if spec.card.total else max(0, kept - held)
    return Memory(max(now.peak, planned), kept, held)


def run_locally(work: RunningSweep) -> Partial:
    """Run all remaining segments and merges in this process; return the merged partial."""
    # one BLAS thread per task, set once for the whole sweep: parallelism is over segments
    with one_thread():
        for receipt in work.schedule.finished.values():
            work.hold((None, receipt))
        if work.spec.threads > 1:
            _run_in_threads(work, work.spec.threads)
        else:
            task = replace(work.task, on_pulse=emit)
            for segment in work.schedule.waiting:
                ancestors = work.schedule.ancestors[leaf(segment.index)]
                work.finish_segment(run_segment(task, work.spec.rows, segment, ancestors))
    (root,) = work.held.values()
    return root


def _run_in_threads(work: RunningSweep, threads: int) -> None:
    """Run the remaining segments in threads, and finish each in this one."""
    pulses: queue.SimpleQueue[Pulse] = queue.SimpleQueue()
    # observers are called in this thread
    stop, ancestors = threading.Event(), work.schedule.ancestors
    task = replace(work.task, on_pulse=pulses.put, stop=stop)
    waiting, running, done = deque(work.schedule.waiting), set[Future[Partial]](), list[Partial]()
    most = most_partials(len(work.schedule.plan.segments), threads)  # as planned
    pool = ThreadPoolExecutor(threads, thread_name_prefix=SEGMENT_THREADS)
    try:
        while True:
            # begin segments while fewer partials are held than planned, and one if nothing else would make room
            held = len(done) + sum(total is not None for total, _ in work.held.values())  # in memory, and not in a run
            while waiting and len(running) < min(threads, max(most - held, not done)):
                segment = waiting.popleft()
                arguments = work.spec.rows, segment, ancestors[leaf(segment.index)]
                running.add(pool.submit(run_segment, task, *arguments))
            if done:  # merged beside the next segments, and released: merged partials are no longer needed
                work.finish_segment(done.pop())
                continue
            if not running:
                break
            ended, _ = wait(running, timeout=PULSE_SECONDS, return_when=FIRST_COMPLETED)
            running.difference_update(ended)
            with suppress(queue.Empty):
                while True:
                    emit(pulses.get_nowait())
            done = [future.result() for future in ended]  # after a failure no more are begun
            del ended
    except BaseException as error:
        seconds = patience(error, work.spec.config.grace_seconds)
        if work.task.run is None or isinstance(error, EndedEarly):
            stop.set()  # after their chunk
        else:  # running segments are still published there
            tell_waiting(error, len(running), seconds)
        wait(running, timeout=seconds)
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
