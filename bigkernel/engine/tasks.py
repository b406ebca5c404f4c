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
from bigkernel.data.run_directory import Run, attach
from bigkernel.data.zarr_arrays import retry
from bigkernel.engine.rows import Rows
from bigkernel.engine.sources import NumpySource, Source
from bigkernel.engine.telemetry import PulseTeller, give_back, is_released, peak_bytes, worker_name
from bigkernel.errors import DataError
from bigkernel.events.kinds import Pulse
from bigkernel.statistics.moments import Statistic
from bigkernel.streaming.chunk import Workspace
from bigkernel.streaming.merge_tree import Accumulator, Merge, Receipt, ancestors_of, leaf
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


def run_segment(job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...] = ()) -> Partial:
    """Accumulate one segment; with a run, publish it and return the receipt alone.

    A segment that is published already, or merged into one of `ancestors`, is not computed again. `DataError`: rows
    cannot be used, or input or output failed more than `job.retries` times.
    """
    what = f"rows {segment.start}:{segment.stop} could not be read, or their result not be written,"
    return _retried(job, what, lambda reasons: _accumulate(job, rows, segment, ancestors, reasons))


def _accumulate(
    job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...], reasons: tuple[str, ...]
) -> Partial:
    node, started = leaf(segment.index), time.perf_counter()
    if job.run and (published := _published(job.run, node, ancestors)):
        return None, published
    starts = job.run.start(node, worker_name()) - len(reasons) if job.run else 1
    statistic: Statistic = attach(job.statistic, job.run.path) if job.run else job.statistic
    total, work = statistic.zero(), Workspace()
    pulses = PulseTeller(job.heard, node, work)
    with np.errstate(over="ignore", invalid="ignore"):  # who asked for the sums looks at them
        for chunk in pulses.follow(rows.chunks(segment.bounds, job.block_rows, work)):
            statistic.update(total, chunk)
    work.buffers.clear()  # publishing copies the sums
    receipt = Receipt(
        node,
        segment.start,
        segment.stop,
        seconds=work.seconds,
        elapsed=time.perf_counter() - started,
        bytes_read=int((segment.stop - segment.start) * rows.row_bytes),
        skipped=work.skipped,
        starts=starts,
        **_signature(reasons),
    )
    if job.run is None:
        return total, receipt
    receipt = job.run.publish(receipt, total)
    give_back(sum(values.nbytes for values in total.values()))  # copies that threads of the store made
    return None, receipt


def run_held(
    job: Job, rows: Rows, segment: Segment, ancestors: tuple[str, ...], names: tuple[str, ...], *values: Any
) -> Partial:
    """Do as `run_segment` where a cluster holds some rows already: the values of "x" and columns, by `names`."""
    held: dict[str, Source] = {
        name: NumpySource(np.asarray(value), segment.start) for name, value in zip(names, values, strict=True)
    }
    x = held.pop("x", rows.x)
    return run_segment(job, replace(rows, x=x, columns={**rows.columns, **held}), segment, ancestors)


def merge(job: Job, node: str, a: Partial | Bundled, b: Partial | Bundled, ancestors: tuple[str, ...] = ()) -> Partial:
    """Merge two partials, in this order; with a run, publish the sum and remove the two."""
    what = f"the partial results of rows {a[1].start}:{b[1].stop} could not be read or merged"
    return _retried(job, what, lambda reasons: _merge(job, node, a, b, ancestors, reasons))


def _merge(
    job: Job,
    node: str,
    a: Partial | Bundled,
    b: Partial | Bundled,
    ancestors: tuple[str, ...],
    reasons: tuple[str, ...],
) -> Partial:
    start, run = time.perf_counter(), job.run
    (left, ra), (right, rb) = a[:2], b[:2]  # of a bundle there is more
    if run:
        # a worker that was given up may still be at this very merge: it has removed or is replacing what we read
        published, left, right = retry(
            lambda: _inputs(run, node, ra, rb, ancestors),
            times=1,
            passing=lambda error: isinstance(error, DataError),
            pause_seconds=_OVERTAKEN_SECONDS,
        )
        if published:
            run.discard(ra.node, rb.node)  # whoever published it may have died before this
            return None, published
    assert left is not None
    assert right is not None
    into = getattr(job.statistic, "merge_into", None) if job.spends or run else None  # a run's were just read
    total = (into or job.statistic.merge)(left, right)
    elapsed = time.perf_counter() - start
    seconds = {"merge": elapsed + merge_seconds(ra) + merge_seconds(rb)}
    receipt = Receipt(node, ra.start, rb.stop, seconds=seconds, elapsed=elapsed, **_signature(reasons))
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
    """Read the two partials that a merge takes; or the receipt of a merge that was published already."""
    if published := _published(run, node, ancestors):
        return published, None, None
    return None, run.partial(left.node, left.digest), run.partial(right.node, right.digest)


def run_subtree(
    job: Job, rows: Rows, segments: Sequence[Segment], merges: Sequence[Merge], ancestors: tuple[str, ...] = ()
) -> Bundled:
    """Run segments one after another, as `run_segment` does each, and merge two as soon as both are there.

    `merges` are those of the tree over these segments, children before parents; `ancestors` the nodes that contain all
    of them. So few partials wait: one on each level, as many as `Plan.task_bytes` counts. One task in the place of
    several: a scheduler pays for each task, however little it does. `Reschedule` ends it between two segments, where
    nobody waits for it any more.
    """
    above, merge_of = ancestors_of(list(merges)), {right: merge for merge in merges for right in merge[2:]}
    spending, held, receipts = replace(job, spends=True), dict[str, Partial](), list[Receipt]()
    for segment in segments:
        if receipts:
            last = receipts[-1]
            if job.heard is not None:  # all of its rows are done, and the task goes on
                with suppress(Exception):  # nobody hears it then
                    job.heard(Pulse(last.node, last.rows, last.worker, last.peak_bytes, last.seconds))
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
    """Return the seconds of the merges in a node and below it, with those in which their sums were published."""
    return receipt.seconds["merge"] + receipt.seconds.get("publish", 0.0) if "merge" in receipt.seconds else 0.0


def receipts_of(partial: Partial | Bundled) -> tuple[Receipt, ...]:
    """Return `receipts_in` to the driver, while the accumulator stays on the worker, with its peak by now."""
    here, peak = worker_name(), peak_bytes()
    return tuple(
        replace(one, peak_bytes=max(one.peak_bytes, peak * (one.worker == here))) for one in receipts_in(partial)
    )


def receipts_in(partial: Partial | Bundled) -> tuple[Receipt, ...]:
    """Return the receipts of segments that a partial brings: those of its own task, or itself."""
    return partial[2] if len(partial) == 3 else (partial[1],)


def _signature(reasons: tuple[str, ...]) -> dict[str, Any]:
    """Tell who has ended a task just now, and what has failed before; fields of its receipt."""
    return {"worker": worker_name(), "peak_bytes": peak_bytes(), "retries": reasons, "ended": time.time()}


def _retried(job: Job, what: str, task: Callable[[tuple[str, ...]], Partial]) -> Partial:
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


def _published(run: Run, node: str, ancestors: tuple[str, ...]) -> Receipt | None:
    """Find the receipt of a node that a run has published, and that is whole or merged: a task may run twice."""
    receipt = run.receipt(node)
    return receipt if receipt is None or any(run.receipt(name) for name in ancestors) else run.finished(node)
