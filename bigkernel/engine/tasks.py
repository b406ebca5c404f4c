"""The tasks of a sweep: accumulate a segment, merge two partials; or several of both, one after another.

The serial executor, the threads and Dask all run these same functions; that is why they give the same bits. A task
takes plain data, opens its store itself and returns plain data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from distributed import Reschedule

from bigkernel.data.atomic_write import LASTING
from bigkernel.data.run_directory import Receipt, Run, attach
from bigkernel.data.zarr_arrays import retry
from bigkernel.engine.process_probes import give_back, is_released, peak_bytes, worker_name
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import NumpySource, Source
from bigkernel.engine.telemetry import PulseTeller
from bigkernel.errors import DataError
from bigkernel.events.kinds import Pulse
from bigkernel.statistics.moments import Statistic
from bigkernel.streaming.chunk import Workspace
from bigkernel.streaming.merge_tree import Accumulator, Merge, ancestors_of, leaf
from bigkernel.streaming.plan import Segment

_OVERTAKEN_SECONDS = 0.5
Partial = tuple[Accumulator | None, Receipt]  # the accumulator is None when it was published in a run
Bundled = tuple[Accumulator | None, Receipt, tuple[Receipt, ...]]  # with receipts of the segments below


@dataclass(frozen=True)
class Job:
    """The needs of every task of a sweep: the statistic (its large arrays in the run, where there is one).

    `retries` is how often a task tries again after an error of input or output; `heard` is told how far a running
    segment is, where somebody listens. `spends`: no partial is asked for again once it was merged, so that it may take
    the sum (a cluster may repeat a merge with what it holds).
    """

    statistic: Any
    block_rows: int
    run: Run | None = None
    retries: int = 0
    heard: Callable[[Pulse], None] | None = None
    spends: bool = False

    def open(self) -> Statistic:
        """Return the statistic with its arrays."""
        statistic: Statistic = attach(self.statistic, self.run.path) if self.run else self.statistic
        return statistic


def run_segment(job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...] = ()) -> Partial:
    """Accumulate one segment; with a run, publish it and return the receipt alone.

    A segment that is published already, or merged into one of `ancestors`, is not computed again.

    Raises
    ------
    DataError
        Rows that cannot be used; or input or output failed more than `job.retries` times.
    """
    return _patiently(
        job,
        f"rows {segment.start}:{segment.stop} could not be read, or their result not be written,",
        lambda reasons: _segment(job, rows, segment, ancestors, reasons),
    )


def run_held(
    job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...], names: tuple[str, ...], *values: Any
) -> Partial:
    """`run_segment` where a cluster holds some of the rows already: the values of "x" and columns, by `names`."""
    held: dict[str, Source] = {
        name: NumpySource(np.asarray(value), segment.start) for name, value in zip(names, values, strict=True)
    }
    x = held.pop("x", rows.x)
    return run_segment(job, replace(rows, x=x, columns={**rows.columns, **held}), segment, ancestors)


def merge(job: Job, node: str, a: Partial | Bundled, b: Partial | Bundled, ancestors: tuple[str, ...] = ()) -> Partial:
    """Merge two partials, in this order; with a run, publish the sum and remove the two."""
    what = f"the partial results of rows {a[1].start}:{b[1].stop} could not be read or merged"
    return _patiently(job, what, lambda reasons: _merge(job, node, a, b, ancestors, reasons))


def run_subtree(
    job: Job, rows: Rows, segments: Sequence[Segment], merges: Sequence[Merge], ancestors: tuple[str, ...] = ()
) -> Bundled:
    """Run segments one after another, as `run_segment` does each, and merge two as soon as both are there.

    `merges` are those of the tree over these segments, children before parents; `ancestors` the nodes that contain all
    of them. So few partials wait: one on each level, as many as `Plan.task_bytes` counts. One task in the place of
    several: a scheduler pays for each task, however little it does.

    Raises
    ------
    Reschedule
        Between two segments, where nobody waits for the task any more.
    """
    above, merge_of = ancestors_of(list(merges)), {right: merge for merge in merges for right in merge[2:]}
    spending, held, receipts = replace(job, spends=True), dict[str, Partial](), list[Receipt]()
    for segment in segments:
        if receipts:
            _tell_done(job, receipts[-1])
            if is_released():
                raise Reschedule
        node = leaf(segment.index)
        held[node] = run_segment(job, rows, segment, (*above.get(node, ()), *ancestors))
        receipts.append(held[node][1])
        while node in merge_of:  # its left sibling came before it
            node, left, right = merge_of[node]
            children = held.pop(left), held.pop(right)
            held[node] = merge(spending, node, *children, (*above.get(node, ()), *ancestors))
            del children  # neither is held while the next segment is summed
    ((total, receipt),) = held.values()
    return total, receipt, tuple(receipts)


def merge_bundle(
    job: Job, merges: Sequence[Merge], ancestors: tuple[str, ...], told: bool, *partials: Partial | Bundled | None
) -> Bundled:
    """Do some merges, children before parents, the last of which is the parent of all; each as `merge` does it.

    `partials` are what they take from outside, in order, and None behind them; `ancestors` the nodes above the last.
    `told`: without the receipts of the segments below, which others have brought already.
    """
    above, made = ancestors_of(list(merges)), {node for node, _, _ in merges}
    outside = [child for _, *children in merges for child in children if child not in made]
    held = {node: partial for node, partial in zip(outside, partials, strict=False) if partial}
    receipts = () if told else tuple(receipt for partial in held.values() for receipt in receipts_in(partial))
    for node, left, right in merges:
        held[node] = merge(job, node, held.pop(left), held.pop(right), (*above.get(node, ()), *ancestors))
    (partial,) = held.values()
    return partial[0], partial[1], receipts


def merge_seconds(receipt: Receipt) -> float:
    """Seconds of the merges in a node and below it, those in which their sums were published included."""
    return receipt.seconds["merge"] + receipt.seconds.get("publish", 0.0) if "merge" in receipt.seconds else 0.0


def receipts_of(partial: Partial | Bundled) -> tuple[Receipt, ...]:
    """The receipts of the segments in it, which travel to the driver while the accumulator stays on the worker."""
    here, peak = worker_name(), peak_bytes()
    return tuple(
        replace(one, peak_bytes=max(one.peak_bytes, peak * (one.worker == here))) for one in receipts_in(partial)
    )


def receipts_in(partial: Partial | Bundled) -> tuple[Receipt, ...]:
    """The receipts of segments that a partial brings: those of its own task, or itself."""
    return partial[2] if len(partial) == 3 else (partial[1],)


def _tell_done(job: Job, receipt: Receipt) -> None:
    """Tell that all rows of a segment are done, whose task goes on."""
    if job.heard is not None:
        with suppress(Exception):  # nobody hears it then
            job.heard(Pulse(receipt.node, receipt.rows, receipt.worker, receipt.peak_bytes, receipt.seconds))


def _patiently(job: Job, what: str, task: Callable[[tuple[str, ...]], Partial]) -> Partial:
    """Run a task, again after an error of input or output; it is told why it was tried before."""
    reasons: list[str] = []
    try:
        return retry(
            lambda: task(tuple(reasons)),
            times=job.retries,
            passing=lambda error: isinstance(error, OSError) and error.errno not in LASTING,
            failed=lambda error: reasons.append(str(error)),
        )
    except OSError as error:
        raise DataError(f"{what} in {len(reasons) + 1} attempts: {error}") from error


def _segment(job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...], reasons: tuple[str, ...]) -> Partial:
    node = leaf(segment.index)
    found = _published(job, node, ancestors)
    if found:
        return None, found
    starts = job.run.start(node, worker_name()) - len(reasons) if job.run else 1
    start = time.perf_counter()
    statistic, work = job.open(), Workspace()
    total, skipped = statistic.zero(), 0
    pulses = PulseTeller(job.heard, node, work.seconds)
    work.passed = pulses.passed
    pulses.tell()
    for chunk, stop in zip(rows.chunks(segment.bounds, job.block_rows, work), segment.bounds[1:], strict=True):
        pulses.enter(stop - segment.start)
        chunk, bad = rows.validate_or_mask(chunk)
        skipped += bad
        with np.errstate(over="ignore", invalid="ignore"):  # who asked for the sums looks at them
            statistic.update(total, chunk)
    pulses.enter(segment.stop - segment.start)
    pulses.tell()
    work.buffers.clear()  # publishing copies the sums
    receipt = Receipt(
        node=node,
        start=segment.start,
        stop=segment.stop,
        seconds=work.seconds,
        elapsed=time.perf_counter() - start,
        bytes_read=int((segment.stop - segment.start) * rows.row_bytes),
        worker=worker_name(),
        peak_bytes=peak_bytes(),
        skipped=skipped,
        starts=starts,
        retries=reasons,
        ended=time.time(),
    )
    if job.run:
        published = job.run.publish(receipt, total)
        give_back(_bytes_of(total))  # copies on their way to the disk, which threads of the store made
        return None, published
    return total, receipt


def _merge(
    job: Job,
    node: str,
    a: Partial | Bundled,
    b: Partial | Bundled,
    ancestors: tuple[str, ...],
    reasons: tuple[str, ...],
) -> Partial:
    start = time.perf_counter()
    (left, ra), (right, rb) = a[:2], b[:2]  # of a bundle there is more
    if job.run:
        # a worker that was given up may still be at this very merge: it has removed or is replacing what we read
        found, left, right = retry(
            lambda: _inputs(job, node, ra, rb, ancestors),
            times=1,
            passing=lambda error: isinstance(error, DataError),
            pause_seconds=_OVERTAKEN_SECONDS,
        )
        if found:
            job.run.discard(ra.node, rb.node)  # whoever published it may have died before this
            return None, found
    assert left is not None
    assert right is not None
    merged = getattr(job.statistic, "merge_into", None) if job.spends or job.run else None  # a run's were just read
    total = (merged or job.statistic.merge)(left, right)
    elapsed = time.perf_counter() - start
    receipt = Receipt(
        node=node,
        start=ra.start,
        stop=rb.stop,
        seconds={"merge": elapsed + merge_seconds(ra) + merge_seconds(rb)},
        elapsed=elapsed,
        worker=worker_name(),
        peak_bytes=peak_bytes(),
        retries=reasons,
        ended=time.time(),
    )
    if job.run:
        receipt = job.run.publish(receipt, total)
        job.run.discard(ra.node, rb.node)
        freed = _bytes_of(total)
        del left, right, total
        give_back(freed)
        return None, receipt
    return total, receipt


def _bytes_of(total: Accumulator) -> int:
    return sum(values.nbytes for values in total.values())


def _inputs(
    job: Job, node: str, left: Receipt, right: Receipt, ancestors: tuple[str, ...]
) -> tuple[Receipt | None, Accumulator | None, Accumulator | None]:
    """The receipt of a merge that was published already; or none, and the two partials that it takes."""
    assert job.run is not None
    found = _published(job, node, ancestors)
    if found:
        return found, None, None
    return None, job.run.partial(left.node, left.digest), job.run.partial(right.node, right.digest)


def _published(job: Job, node: str, ancestors: tuple[str, ...]) -> Receipt | None:
    """The receipt of a node that this run has published already, and that is whole or merged: a task may run twice."""
    receipt = job.run.receipt(node) if job.run else None
    if job.run is None or receipt is None:
        return None
    return receipt if any(job.run.receipt(name) for name in ancestors) else job.run.finished(node)
