"""The plan of a sweep: rows → chunks → segments, and the estimated cost of the work.

Plain data that depends on the input and the settings but not on the cluster: the same plan gives the same bits on any
number of workers. A segment is a run of whole chunks, the unit of commit.

The partial results of segments are merged in a fixed binary tree. A node is named by its level and place: "0-3" is
segment 3, "1-1" the merge of segments 2 and 3. The tree depends on the number of segments only, so that sums are
rounded in the same way everywhere. A finished node leaves a receipt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import PlanTooLargeError
from bigkernel.html import table

_SMALL_BYTES = 2**20  # size of a partial result that is negligible in a process
_MAPPED_BYTES = 2**25  # glibc maps arrays of this size separately; workers use a lower threshold
_PANEL_ROWS = 384  # most rows that BLAS packs in a rank-k update


Accumulator = dict[str, NDArray[np.float64]]  # a partial result: sums over rows, by name
Merge = tuple[str, str, str]  # node, left, right
_MOST_SECONDS = 1e11
# metadata of dataclass fields that a resumed run does not compare (`data.fingerprint`): places that are written to, and
# values that follow from compared ones, but whose last bits depend on the processor
NOT_COMPARED = {"identity": False}


@dataclass(frozen=True)
class Receipt:
    """The record of a finished task: worker, rows, result and timings."""

    node: str  # of the merge tree, "0-3" for segment 3
    start: int  # rows start … stop
    stop: int
    digest: str = ""  # SHA-256 of the partial; empty where it was not published
    seconds: dict[str, float] = field(default_factory=dict)  # per stage; "read": spent waiting for rows
    elapsed: float = 0.0  # seconds in total
    bytes_read: int = 0
    worker: str = ""
    peak_bytes: int = 0  # highest resident memory of the worker's process so far
    kept_bytes: int = 0  # blocks that the process keeps for later sweeps
    device: str = "cpu"  # where blocks were computed
    device_peak_bytes: int = 0  # most bytes of arrays of the process on it so far
    skipped: int = 0  # rows left out because they were not finite
    starts: int = 1  # number of times that a worker started it, as counted by the run
    retries: tuple[str, ...] = ()  # the reason of each retry
    resumed: bool = False  # read from the run, not computed again
    ended: float = 0.0  # seconds since 1970 on the worker's clock

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def to_json(self) -> dict[str, object]:
        """Return the receipt as plain data."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, object]) -> Receipt:
        """Build a receipt from plain data; raise ValueError or TypeError for invalid values."""
        receipt = cls(**{**stored, "retries": tuple(stored["retries"])})  # type: ignore[arg-type]  # checked below
        counts: tuple[int, ...] = (receipt.start, receipt.stop, receipt.bytes_read, receipt.peak_bytes)
        counts += receipt.kept_bytes, receipt.device_peak_bytes, receipt.skipped, receipt.starts
        times = (receipt.elapsed, receipt.ended, *receipt.seconds.values())
        texts = (receipt.node, receipt.digest, receipt.worker, receipt.device, *receipt.retries)
        if not all(type(count) is int and 0 <= count < 2**63 for count in counts) or receipt.start > receipt.stop:
            raise ValueError("expected whole numbers of rows and bytes")
        if not all(type(time) in (int, float) and abs(time) < _MOST_SECONDS for time in times):  # NaN is not
            raise ValueError("expected seconds")
        if not all(isinstance(text, str) for text in (*texts, *receipt.seconds)):
            raise ValueError("expected texts")
        return receipt


def leaf(index: int) -> str:
    """Name the node of a segment."""
    return f"0-{index}"


def merge_tree(count: int) -> list[Merge]:
    """List the merges over `count` segments: (node, left, right), children before parents."""
    level, names, merges = 0, [leaf(i) for i in range(count)], []
    while len(names) > 1:
        level += 1
        above = []
        for i in range(0, len(names) - 1, 2):
            node = f"{level}-{i // 2}"
            merges.append((node, names[i], names[i + 1]))
            above.append(node)
        names = above + names[len(names) - len(names) % 2 :]
    return merges


def spans(count: int) -> dict[str, tuple[int, int]]:
    """Return the first segment of every node, and one past the last."""
    covers = {leaf(i): (i, i + 1) for i in range(count)}
    for node, left, right in merge_tree(count):
        covers[node] = covers[left][0], covers[right][1]
    return covers


def ancestors_of(merges: Sequence[Merge], beyond: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Return the ancestors of every node of some merges, nearest first; `beyond` are ancestors of all."""
    above: dict[str, tuple[str, ...]] = {}
    for node, left, right in reversed(merges):  # parents before children
        above[left] = above[right] = (node, *above.setdefault(node, beyond))
    return above


@dataclass(frozen=True)
class Segment:
    """Rows start … stop of the input, read in steps between `bounds` (start first, stop last)."""

    index: int
    bounds: tuple[int, ...]

    @property
    def start(self) -> int:
        """First row."""
        return self.bounds[0]

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.bounds[-1]


@dataclass(frozen=True)
class Footprint:
    """The cost of a statistic: flops per row, bytes of its accumulator, bytes of its buffers for one task.

    `width` and `dtype` are those of the block whose Gram matrix is summed; 0 and "" if there is none. `shared_bytes` is
    the part of `work_bytes` that the tasks of a process share: landmarks, given and prepared.
    """

    flops_per_row: float
    partial_bytes: int
    work_bytes: int
    width: int = 0
    dtype: str = ""
    shared_bytes: int = 0


@dataclass(frozen=True)
class Sharing:
    """How the tasks of a sweep share the memory of a process."""

    tasks: int = 1  # tasks that run in it at once
    workers: int = 1  # processes of the cluster that share the segments; 0: all tasks run in this process
    published: bool = False  # partial results wait in a run directory, not in memory
    partials: int = 1  # partial results that exist at once, if all tasks run in this process


ONE_WORKER = Sharing()


@dataclass(frozen=True)
class Memory:
    """Bytes of a sweep: the announced peak of the fullest process, and blocks that stay in memory between sweeps."""

    announced: int
    kept: int = 0  # most of the blocks that one process keeps
    held: int = 0  # of the blocks that all processes keep already


@dataclass(frozen=True)
class Plan:
    """The work of a sweep, in rows, flops and bytes."""

    n_rows: int
    n_features: int
    segments: tuple[Segment, ...]
    chunk_rows: int  # most rows of a step
    flops: float  # of the whole sweep
    bytes_read: int  # decoded, of the whole sweep
    chunk_bytes: int  # of one step with its columns, decoded
    partial_bytes: int  # of one accumulator
    work_bytes: int  # of the buffers of a task
    width: int = 0  # width and dtype as in `Footprint`
    dtype: str = ""
    shared_bytes: int = 0  # of `work_bytes`, shared by the tasks of a process
    # stored over decoded bytes of a chunk; None: unknown
    stored_share: float | None = None
    kept_bytes: int = 0  # of all blocks, where they may stay in memory between sweeps
    in_memory: bool = False  # the rows are in the driver's memory, so that its own tasks copy none
    block_rows: int = 2048  # most rows of a block
    row_bytes: int = 0  # of the buffers of a row of a block
    device_bytes: int = 0  # of a GPU, without kept blocks; 0: blocks are in main memory

    def _repr_html_(self) -> str:
        return table("plan of a sweep", self.summary())

    def first_node(self, rows: int) -> str:
        """Return the node of the first segments of at least so many rows; empty if that is over a third of all rows."""
        for level in range(len(self.segments).bit_length()):
            done = self.segments[2**level - 1].stop - self.segments[0].start
            if done >= rows:
                return f"{level}-0" if 3 * done <= self.n_rows else ""
        return ""

    @property
    def task_bytes(self) -> int:
        """Peak memory of a task in addition to the process, if one worker has all segments."""
        return self.held_bytes(ONE_WORKER)

    @property
    def merges_bundled(self) -> bool:
        """Whether one task of a cluster merges up to four partials: they are small against the memory of a segment."""
        return self.partial_bytes <= max(_SMALL_BYTES, (4 * self.chunk_bytes + self.work_bytes) // 4)

    def held_bytes(self, sharing: Sharing) -> int:
        """Return the peak memory of the tasks of a process in addition to the process.

        Each task has its rows and buffers, with those of BLAS; the process has prepared landmarks and partial results
        that are being summed or merged, or wait.
        """
        panel = _PANEL_ROWS * self.width * (8 if self.dtype == "float64" else 4)  # packed by BLAS
        task = self.rows_bytes(sharing) + self.work_bytes - self.shared_bytes + panel
        if sharing.published:
            return self.shared_bytes + self._publishing_bytes(sharing, task, panel)
        held = self.shared_bytes + sharing.tasks * task + self.partials_held(sharing) * self.partial_bytes
        return held if sharing.workers else held + held // 32  # short-lived strips and heaps of threads

    def _publishing_bytes(self, sharing: Sharing, task: int, panel: int) -> int:
        """Return the peak memory of tasks that publish their partials, each with `task` bytes of rows and buffers."""
        # a partial is copied when it is written, after the rows of its segment are freed; a merge reads two and copies
        # their sum
        partial, tasks = self.partial_bytes, sharing.tasks
        summing, merging = task + partial, 3 * partial + panel
        if sharing.workers:
            return tasks * max(summing, merging)
        kept = 3 * partial if partial < _MAPPED_BYTES else 0  # copies that heaps of threads keep until a task ends
        if tasks == 1:
            return max(summing, merging + kept)
        # the driver merges beside the threads
        return tasks * max(summing, 2 * partial + panel) + 3 * partial + kept

    def rows_bytes(self, sharing: Sharing) -> int:
        """Return the bytes of the rows that a task holds."""
        if self.in_memory and not sharing.workers:
            return 0
        if self.in_memory:  # all rows of its segment, in the message and as read
            most = max((segment.stop - segment.start for segment in self.segments), default=0)
            return 2 * most * self.chunk_bytes // max(1, self.chunk_rows)
        if self.stored_share is None:
            return 4 * self.chunk_bytes
        # the current step, and the next one while it is decoded, with its stored bytes
        return int((3 + self.stored_share) * self.chunk_bytes)

    def partials_held(self, sharing: Sharing) -> int:
        """Return the most partials that a process holds if they are not published.

        A worker is one segment ahead of its merges, for which about one partial waits on each level of the tree, or
        three on two levels where one task merges four. It holds the sum of a merge besides its inputs, and may take a
        segment or a partial from another worker.
        """
        if not sharing.workers:
            return sharing.partials
        count, tasks = len(self.segments), sharing.tasks
        if count < 2:
            return 1
        own, levels = -(-count // sharing.workers), math.ceil(math.log2(count))
        waiting = -(-3 * levels // 2) if self.merges_bundled else levels
        return max(3, min(own + tasks, waiting + 1 + tasks)) + 2 * self.merges_bundled

    def worker_bytes(self, base_bytes: int, sharing: Sharing = ONE_WORKER) -> int:
        """Return the announced peak of a process that holds `base_bytes` before its first task."""
        return base_bytes + self.held_bytes(sharing)

    def kept_share(self, room_bytes: int, setting: int | str, workers: int = 1) -> int:
        """Return the most bytes of blocks that one of some workers keeps between sweeps.

        `room_bytes`: its memory beside the announced peak, of which "auto" takes at most half. A worker may have
        somewhat more than its share of the segments.
        """
        share = self.kept_bytes if workers == 1 else min(self.kept_bytes, math.ceil(1.25 * self.kept_bytes / workers))
        return max(0, min(share, room_bytes // 2 if isinstance(setting, str) else min(setting, room_bytes)))

    def check(self, limit_bytes: int, base_bytes: int, sharing: Sharing = ONE_WORKER) -> None:
        """Raise unless the workers need at most `limit_bytes`.

        `PlanTooLargeError`: states what is needed, what is available, and what would fit.
        """
        needed = self.worker_bytes(base_bytes, sharing)
        if needed <= limit_bytes:
            return
        rows = sharing.tasks * self.rows_bytes(sharing)
        room = (limit_bytes - base_bytes) * 9 // 10  # a process holds a little more after each job
        if room <= 0:
            advice = "use more memory per worker"
        elif fitting := self._fitting_rows(room, sharing):
            advice = f"use chunks of at most {fitting:,} rows (now {self.chunk_rows:,})"
        elif share := self._fitting_landmarks(room, sharing):
            count = f", {self.width * share // 100:,}" if self.width else ""
            advice = f"use at most about {share}% of the landmarks{count}"
        else:
            advice = "use more memory per worker"
        raise PlanTooLargeError(
            f"a worker needs {needed / 1e6:,.0f} MB ({base_bytes / 1e6:,.0f} for the process, {rows / 1e6:,.0f} for "
            f"rows, {self.work_bytes / 1e6:,.0f} for buffers, the rest for partial results of "
            f"{self.partial_bytes / 1e6:,.0f} MB), more than its limit of {limit_bytes / 1e6:,.0f} MB: {advice}"
        )

    def _fitting_rows(self, room: int, sharing: Sharing) -> int:
        """Return about the most rows of a chunk with which the tasks of a process fit into `room` bytes, or 0."""
        row_bytes, rows = self.chunk_bytes / max(1, self.chunk_rows), self.chunk_rows
        while rows > 1:
            rows = rows * 19 // 20
            # smaller chunks may make up to about four times as many segments, and so a deeper tree of merges
            count = min(math.ceil(self.n_rows / rows), max(16, 4 * len(self.segments)))
            pieces = (Segment(0, (0, 1, 2)),) * count
            if replace(self, chunk_bytes=math.ceil(rows * row_bytes), segments=pieces).held_bytes(sharing) <= room:
                return rows
        return 0

    def _fitting_landmarks(self, room: int, sharing: Sharing) -> int:
        """Return the percentage of landmarks with which the tasks of a process fit into `room` bytes, or 0."""
        for percent in range(99, 1, -1):
            t = percent / 100  # a share t of the landmarks needs t² of the partials and at most t of the buffers
            fewer = replace(
                self,
                partial_bytes=int(t * t * self.partial_bytes),
                work_bytes=int(t * self.work_bytes),
                shared_bytes=int(t * self.shared_bytes),
                width=int(t * self.width),
            )
            if fewer.held_bytes(sharing) <= room:
                return percent
        return 0

    def summary(self) -> dict[str, int | float]:
        """Return the figures of the plan as plain data, for display and JSON."""
        return {
            "rows": self.n_rows,
            "features": self.n_features,
            "segments": len(self.segments),
            "segment_rows": max((s.stop - s.start for s in self.segments), default=0),
            "chunk_rows": self.chunk_rows,
            "flops": self.flops,
            "bytes_read": self.bytes_read,
            "partial_bytes": self.partial_bytes,
            "task_bytes": self.held_bytes(ONE_WORKER),
            **({"kept_bytes": self.kept_bytes} if self.kept_bytes else {}),
            **({"device_bytes": self.device_bytes, "block_rows": self.block_rows} if self.device_bytes else {}),
        }


def plan(
    bounds: Sequence[int],
    n_features: int,
    itemsize: int,
    footprint: Footprint,
    *,
    segment_rows: int = 65_536,
    min_segments: int = 8,
    column_bytes: int = 0,
) -> Plan:
    """Split rows into about equal segments of whole chunks, and add up their cost.

    Parameters
    ----------
    bounds : row ids where steps of the input begin, the first 0, the last the number of rows
    n_features, itemsize : of a stored row
    footprint : cost of the statistic
    segment_rows : most rows of a segment, unless a single chunk has more
    min_segments : least number of segments, if there are as many chunks
    column_bytes : stored bytes of the columns (targets, weights) of a row
    """
    if not bounds or bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)):
        raise ValueError(f"bounds: expected non-decreasing row ids from 0, found {tuple(bounds)[:8]}…")
    n_rows = bounds[-1]
    n_chunks = len(bounds) - 1
    chunk_rows = max((bounds[i + 1] - bounds[i] for i in range(n_chunks)), default=0)
    per_segment = max(1, segment_rows // max(1, chunk_rows))
    count = min(n_chunks, max(min_segments, -(-n_chunks // per_segment)))
    cuts = [n_chunks * i // max(1, count) for i in range(count + 1)]
    segments = tuple(Segment(i, tuple(bounds[cuts[i] : cuts[i + 1] + 1])) for i in range(count))
    return Plan(
        n_rows=n_rows,
        n_features=n_features,
        segments=segments,
        chunk_rows=chunk_rows,
        flops=footprint.flops_per_row * n_rows,
        bytes_read=n_rows * n_features * itemsize,
        chunk_bytes=chunk_rows * (n_features * itemsize + column_bytes),
        partial_bytes=footprint.partial_bytes,
        work_bytes=footprint.work_bytes,
        width=footprint.width,
        dtype=footprint.dtype,
        shared_bytes=footprint.shared_bytes,
    )
