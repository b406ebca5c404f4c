"""A sweep in this process: one segment after another, which is the specification, or several in threads."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace

from threadpoolctl import threadpool_limits

from bigkernel.config import Settings
from bigkernel.data.run_directory import Run
from bigkernel.engine.context import processors
from bigkernel.engine.executor import Slots, Work
from bigkernel.engine.interrupts import SEGMENT_THREADS, patience, tell_waiting
from bigkernel.engine.process_probes import resident
from bigkernel.engine.rows import Rows
from bigkernel.engine.schedule import Schedule
from bigkernel.engine.tasks import Job, Partial, merge, run_segment
from bigkernel.engine.telemetry import PULSE_SECONDS
from bigkernel.events.kinds import Merged, Pulse
from bigkernel.events.scope import Scope, emit
from bigkernel.streaming.merge_tree import leaf
from bigkernel.streaming.plan import Plan, Segment, Sharing

_LONG_FLOPS = 5e9  # of a sweep that takes longer than it takes to find out what this process holds


@dataclass(frozen=True)
class LocalExecutor:
    """Runs the tasks of a sweep in this process, up to `threads` segments at a time."""

    name: str
    threads: int

    def slots(self) -> Slots:
        """See `Executor`."""
        return Slots(self.threads, self.threads)

    def listen(self, scope: Scope, wanted: Settings) -> None:
        """See `Executor`; nobody."""

    def preflight(self, rows: Rows, steps: Plan, wanted: Settings, run: Run | None) -> int:
        """See `Executor`; this process can do what it has planned."""
        tasks, partials = (
            min(self.threads, max(1, len(steps.segments))),
            most_partials(len(steps.segments), self.threads),
        )
        sharing = Sharing(tasks, 0, published=run is not None, partials=partials)
        found = resident(trim=steps.flops >= _LONG_FLOPS)
        return max(found.peak, steps.worker_bytes(found.base(sharing.tasks), sharing))

    def run(self, work: Work) -> Partial:
        """See `Executor`."""
        sums = PartialSums(work.job, work.schedule)

        def finish(partial: Partial) -> None:
            work.require_lock()
            work.receipts.add(partial[1])
            work.receipts.tell_done(partial[1])
            sums.add(partial[1].node, partial)

        # one BLAS thread a task, set once for the whole sweep: parallelism is over segments
        with threadpool_limits(limits=1, user_api="blas"):
            for node, receipt in work.schedule.finished.items():
                sums.add(node, (None, receipt))
            if self.threads == 1:
                _run_serially(work, finish)
            else:
                _run_in_threads(work, finish, self.threads, sums)
        return sums.root()


def serial() -> LocalExecutor:
    """One task at a time: the specification of all executors."""
    return LocalExecutor("serial", 1)


def threads() -> LocalExecutor:
    """A task on every processor that this process may use."""
    return LocalExecutor("threads", processors())


class PartialSums:
    """Merges partials as soon as both children of a node are there; few are held, about one on each level."""

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._job, self._schedule = replace(job, spends=True), schedule
        self.held: dict[str, Partial] = {}

    def add(self, node: str, partial: Partial) -> None:
        """Take a finished node."""
        self.held[node] = partial
        while due := self._schedule.merge_due(node, self.held):
            node, left, right = due
            children = self.held.pop(left), self.held.pop(right)
            self.held[node] = merge(self._job, node, *children, self._schedule.ancestors(node))
            emit(Merged(node))

    @property
    def in_memory(self) -> int:
        """Partials that are held here, and not in a run."""
        return sum(total is not None for total, _ in self.held.values())

    def root(self) -> Partial:
        """The only node left."""
        (partial,) = self.held.values()
        return partial


def most_partials(segments: int, threads: int) -> int:
    """Return how many partials are summed or wait at once at most: one a thread, and one on each level of the tree.

    Segments wait for one another rather than that more are held.
    """
    return min(segments, threads + (max(1, segments) - 1).bit_length())


def _task(work: Work, job: Job, segment: Segment) -> Partial:
    return run_segment(job, work.rows, segment, work.schedule.ancestors(leaf(segment.index)))


def _run_serially(work: Work, finish: Callable[[Partial], None]) -> None:
    job = replace(work.job, heard=emit)
    for segment in work.schedule.waiting():
        finish(_task(work, job, segment))


def _run_in_threads(work: Work, finish: Callable[[Partial], None], threads: int, sums: PartialSums) -> None:
    pulses: queue.SimpleQueue[Pulse] = queue.SimpleQueue()
    job = replace(work.job, heard=pulses.put)  # observers hear them in the thread of the driver
    waiting = deque(work.schedule.waiting())
    running: set[Future[Partial]] = set()
    most = most_partials(len(work.schedule.plan.segments), threads)  # as announced
    pool = ThreadPoolExecutor(threads, thread_name_prefix=SEGMENT_THREADS)

    def begin(done: int) -> None:
        """Begin segments while fewer partials are held than were announced, and one where none else would make room.

        `done` of those that are held are still to be merged.
        """
        held = sums.in_memory + done
        while waiting and len(running) < min(threads, max(most - held, not done)):
            running.add(pool.submit(_task, work, job, waiting.popleft()))

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
