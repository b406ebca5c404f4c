"""Tasks of a sweep: accumulate a segment, merge two partials, or several of both in order.

The serial executor, the threads and Dask all run these functions; that is why they give the same bits. A task takes
plain data, opens its store itself and returns plain data. It reports its progress here or through the scheduler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from distributed import Reschedule, get_worker

from bigkernel.arrays import Array
from bigkernel.data.atomic_write import LASTING
from bigkernel.data.run_directory import Run, attach
from bigkernel.data.zarr_arrays import retry
from bigkernel.engine.cards import CPU, limited
from bigkernel.engine.process import give_back, peak_bytes, worker_name
from bigkernel.engine.rows import NumpySource, Rows, Source
from bigkernel.errors import DataError
from bigkernel.events.job import TOPIC, Pulse
from bigkernel.kernels.kept_blocks import BLOCKS
from bigkernel.statistics.statistic import Statistic
from bigkernel.streaming.chunk import Workspace
from bigkernel.streaming.devices import device_of
from bigkernel.streaming.plan import Accumulator, Merge, Receipt, Segment, ancestors_of, leaf

PULSE_SECONDS = 0.5  # seconds between reports of a running segment, and between two checks
_OVERTAKEN_SECONDS = 0.5
_thread = threading.local()  # time of the next report
Partial = tuple[Accumulator | None, Receipt]  # the accumulator is None if it was published in a run
Bundled = tuple[Accumulator | None, Receipt, tuple[Receipt, ...]]  # with the receipts of the segments below


@dataclass(frozen=True)
class SweepTask:
    """Needs of every task of a sweep: the statistic (its large arrays in the run, if there is one).

    `retries` is the number of retries after an error of input or output; `on_pulse` receives the progress of a running
    segment. `consumes`: no partial is used again after its merge, so that the merge may reuse its memory (a cluster may
    repeat a merge with the same inputs). `kept_bytes`: most bytes of blocks that a process keeps for later sweeps.
    `stop`: ends the running segments of this process, whose sums nobody will use. `device`: the name of what computes
    blocks, of whose memory the plan says `device_bytes`.
    """

    statistic: Statistic
    block_rows: int
    run: Run | None = None
    retries: int = 0
    on_pulse: Callable[[Pulse], None] | None = None
    consumes: bool = False
    kept_bytes: int = 0
    stop: threading.Event | None = None
    device: str = CPU
    device_bytes: int = 0


class Stopped(Exception):  # noqa: N818 not an error
    """A segment has ended because nobody will use its sums."""


@dataclass
class _Pulses:
    """Reports the progress of a segment at intervals; stops for good if that fails."""

    on_pulse: Callable[[Pulse], None] | None
    node: str
    work: Workspace  # holds the seconds of the stages
    rows: int = 0  # rows done
    stop: int = 0  # rows that will be done after the current chunk

    def count(self, rows: int) -> None:
        """Count a block of the chunk, once if a statistic uses it twice; report at intervals.

        The beginning of a segment is reported at once if workers are few.
        """
        self.rows = min(self.stop, self.rows + rows)
        if self.on_pulse is None:
            return
        pause, now = float(getattr(self.on_pulse, "pause_seconds", PULSE_SECONDS)), time.monotonic()
        at_once = not self.rows and pause <= PULSE_SECONDS
        if not at_once and now < getattr(_thread, "next_time", 0.0):
            return
        _thread.next_time = now + pause
        try:
            self.on_pulse(Pulse(self.node, self.rows, worker_name(), peak_bytes(), dict(self.work.seconds)))
        except Exception:  # nobody receives it then
            self.on_pulse = None


def run_segment(task: SweepTask, rows: Rows, segment: Segment, ancestors: tuple[str, ...] = ()) -> Partial:
    """Accumulate one segment; with a run, publish it and return only the receipt.

    A segment that is published already, or merged into one of `ancestors`, is not computed again. `DataError`: rows
    cannot be used, or input or output failed more than `task.retries` times. `PlanTooLargeError`: the device has no
    memory left.
    """
    named = f"rows {segment.start}:{segment.stop}"
    what = f"{named}: reading the rows or writing their result failed"
    with limited(task.device, task.device_bytes + task.kept_bytes, named):
        return _retried(task, what, lambda reasons: _accumulate(task, rows, segment, ancestors, reasons))


def _accumulate(
    task: SweepTask, rows: Rows, segment: Segment, ancestors: tuple[str, ...], reasons: tuple[str, ...]
) -> Partial:
    node, started, run = leaf(segment.index), time.perf_counter(), task.run
    if run and (published := _published(run, node, ancestors)):
        return None, published
    starts = run.start(node, worker_name()) - len(reasons) if run else 1
    statistic: Statistic = attach(task.statistic, run.path) if run else task.statistic
    total, work = statistic.zero(), Workspace(kept_bytes=task.kept_bytes, device=device_of(task.device))
    pulses = _Pulses(task.on_pulse, node, work)
    work.on_block = pulses.count
    pulses.count(0)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller finishes the sums
        for chunk in rows.chunks(segment.bounds, task.block_rows, work):
            pulses.stop += len(chunk)
            if task.stop is not None and task.stop.is_set():
                raise Stopped
            statistic.update(total, chunk)
            pulses.rows = pulses.stop
        work.collect(total)
    pulses.count(0)
    work.buffers.clear()  # publishing copies the sums
    receipt = Receipt(
        node,
        segment.start,
        segment.stop,
        worker=worker_name(),
        seconds=work.seconds,
        elapsed=time.perf_counter() - started,
        bytes_read=int((segment.stop - segment.start) * rows.row_bytes),
        peak_bytes=peak_bytes(),
        kept_bytes=BLOCKS.held_bytes(),
        device=task.device,
        device_peak_bytes=device_of(task.device).peak_bytes,
        retries=reasons,
        skipped=work.skipped,
        starts=starts,
        ended=time.time(),
    )
    if run is None:
        return total, receipt
    receipt = run.publish(receipt, total)
    give_back(sum(values.nbytes for values in total.values()))  # copies made by threads of the store
    return None, receipt


def run_held(
    task: SweepTask, rows: Rows, segment: Segment, ancestors: tuple[str, ...], names: tuple[str, ...], *values: Array
) -> Partial:
    """Run a segment some of whose rows a cluster holds: the values of "x" and columns, by `names`."""
    held: dict[str, Source] = {
        name: NumpySource(np.asarray(value), segment.start) for name, value in zip(names, values, strict=True)
    }
    x = held.pop("x", rows.x)
    return run_segment(task, replace(rows, x=x, columns={**rows.columns, **held}), segment, ancestors)


def merge(
    task: SweepTask, node: str, a: Partial | Bundled, b: Partial | Bundled, ancestors: tuple[str, ...] = ()
) -> Partial:
    """Merge two partials, in this order; with a run, publish the sum and remove the two."""
    what = f"the partial results of rows {a[1].start}:{b[1].stop} could not be read or merged"
    return _retried(task, what, lambda reasons: _merge(task, node, a, b, ancestors, reasons))


def _merge(
    task: SweepTask,
    node: str,
    a: Partial | Bundled,
    b: Partial | Bundled,
    ancestors: tuple[str, ...],
    reasons: tuple[str, ...],
) -> Partial:
    start, run = time.perf_counter(), task.run
    (left, ra), (right, rb) = a[:2], b[:2]  # a bundle has more
    if run:
        # a worker that was given up may still run this merge and have removed or be replacing what we read
        published, left, right = retry(
            lambda: _inputs(run, node, ra, rb, ancestors),
            times=1,
            passing=lambda error: isinstance(error, DataError),
            pause_seconds=_OVERTAKEN_SECONDS,
        )
        if published:
            run.discard(ra.node, rb.node)  # the task that published it may have died before this
            return None, published
    assert left is not None
    assert right is not None
    # partials of a run were read anew, so that nobody else holds them
    total = task.statistic.merge(left, right, consume=task.consumes or run is not None)
    elapsed = time.perf_counter() - start
    receipt = Receipt(
        node,
        ra.start,
        rb.stop,
        worker=worker_name(),
        seconds={"merge": elapsed + merge_seconds(ra) + merge_seconds(rb)},
        elapsed=elapsed,
        peak_bytes=peak_bytes(),
        retries=reasons,
        ended=time.time(),
    )
    if run is None:
        return total, receipt
    receipt = run.publish(receipt, total)
    run.discard(ra.node, rb.node)
    freed = sum(values.nbytes for values in total.values())
    del left, right, total
    give_back(freed)
    return None, receipt


def _inputs(
    run: Run, node: str, left: Receipt, right: Receipt, ancestors: tuple[str, ...]
) -> tuple[Receipt | None, Accumulator | None, Accumulator | None]:
    """Read the two partials of a merge; or the receipt of a merge that was published already."""
    if published := _published(run, node, ancestors):
        return published, None, None
    return None, run.partial(left.node, left.digest), run.partial(right.node, right.digest)


def run_subtree(
    task: SweepTask,
    rows: Rows,
    segments: Sequence[Segment],
    merges: Sequence[Merge],
    ancestors: tuple[str, ...] = (),
    home: object = None,
) -> Bundled:
    """Run segments in order, each by `run_segment`, and merge two as soon as both are there.

    `merges` are those of the tree over these segments, children before parents; `ancestors` are the nodes that contain
    all of them. So few partials wait: one on each level, as many as `Plan.task_bytes` counts. One task replaces
    several, as each costs the scheduler time. `home` is an input for the sake of the worker that holds it. Between
    segments `Reschedule` ends a task that nobody waits for.
    """
    above, merge_of = ancestors_of(merges, ancestors), {right: merge for merge in merges for right in merge[2:]}
    consuming, held, receipts = replace(task, consumes=True), dict[str, Partial](), list[Receipt]()
    for segment in segments:
        if receipts and _is_released():
            raise Reschedule
        node = leaf(segment.index)
        held[node] = run_segment(task, rows, segment, above.get(node, ancestors))
        receipts.append(held[node][1])
        while node in merge_of:  # its left sibling came before it
            node, left, right = merge_of[node]
            children = held.pop(left), held.pop(right)
            held[node] = merge(consuming, node, *children, above[node])
            del children  # neither is held while the next segment is summed
    ((total, receipt),) = held.values()
    return total, receipt, tuple(receipts)


def merge_bundle(
    task: SweepTask,
    merges: Sequence[Merge],
    ancestors: tuple[str, ...],
    with_receipts: bool,
    *partials: Partial | Bundled | None,
) -> Bundled:
    """Run some merges, children before parents, the last of which is the parent of all.

    `partials` are their external inputs, in order, padded with None; `ancestors` are the nodes above the last.
    `with_receipts`: return also those of the segments below, which no other task returns.
    """
    above, made = ancestors_of(merges, ancestors), {node for node, _, _ in merges}
    outside = [child for _, *children in merges for child in children if child not in made]
    held = {node: partial for node, partial in zip(outside, partials, strict=False) if partial}
    receipts = tuple(one for partial in held.values() for one in receipts_in(partial)) if with_receipts else ()
    for node, left, right in merges:
        held[node] = merge(task, node, held.pop(left), held.pop(right), above[node])
    (partial,) = held.values()
    return partial[0], partial[1], receipts


def merge_seconds(receipt: Receipt) -> float:
    """Return the seconds of the merges in and below a node, including those of publishing."""
    return receipt.seconds["merge"] + receipt.seconds.get("publish", 0.0) if "merge" in receipt.seconds else 0.0


def receipts_of(partial: Partial | Bundled) -> tuple[Receipt, ...]:
    """Return `receipts_in` to the driver, with the worker's current peak, while the accumulator stays there."""
    here, peak = worker_name(), peak_bytes()
    return tuple(
        replace(one, peak_bytes=max(one.peak_bytes, peak * (one.worker == here))) for one in receipts_in(partial)
    )


def receipts_in(partial: Partial | Bundled) -> tuple[Receipt, ...]:
    """Return the receipts of segments in a partial: those of its own task, or itself."""
    return partial[2] if len(partial) == 3 else (partial[1],)


def _retried(task: SweepTask, what: str, attempt: Callable[[tuple[str, ...]], Partial]) -> Partial:
    """Make an attempt, and others after errors of input or output; each receives the reasons of earlier ones."""
    reasons: list[str] = []
    try:
        return retry(
            lambda: attempt(tuple(reasons)),
            times=task.retries,
            passing=lambda error: isinstance(error, OSError) and error.errno not in LASTING,
            failed=lambda error: reasons.append(str(error)),
        )
    except OSError as error:
        raise DataError(f"{what} in {len(reasons) + 1} attempts: {error}") from error


def _published(run: Run, node: str, ancestors: tuple[str, ...]) -> Receipt | None:
    """Return the receipt of an intact or merged node that a run has published: a task may run twice."""
    receipt = run.receipt(node)
    return receipt if receipt is None or any(run.receipt(name) for name in ancestors) else run.finished(node)


def _is_released() -> bool:
    """Return True if nobody waits for the Dask task in this thread; False outside of one."""
    try:
        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except ValueError:
        return False
    return task is None or task.state in ("cancelled", "released", "forgotten")


@dataclass(frozen=True)
class ToScheduler:
    """Sends the pulses of a sweep on its workers to the scheduler, at most one per thread and interval."""

    token: str
    pause_seconds: float = PULSE_SECONDS

    def __call__(self, pulse: Pulse) -> None:
        """Send a pulse; it leaves with the worker's next batch of messages, without waiting."""
        message = {"kind": "pulse" if pulse.rows else "running", "sweep": self.token, **vars(pulse)}
        get_worker().log_event(TOPIC, {"messages": [message]})
