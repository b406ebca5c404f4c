"""The plan of a sweep: rows → chunks → segments, and what the work costs, before it runs.

Plain data, fixed by the input and the settings and not by the cluster: the same plan gives the same bits on any number
of workers. A segment is a run of whole chunks: the unit of commit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import bigkernel
from bigkernel.errors import PlanTooLarge


@dataclass(frozen=True)
class Segment:
    """Rows start … stop of the input, read in steps that end at `bounds` (start first, stop last)."""

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
    """The cost of a statistic: flops a row, bytes of its accumulator, bytes of its buffers for one task.

    `width` and `dtype` are those of the block whose Gram matrix is summed; 0 and "" where none is.
    """

    flops_per_row: float
    partial_bytes: int
    work_bytes: int
    width: int = 0
    dtype: str = ""


@dataclass(frozen=True)
class Plan:
    """The work of a sweep, in rows, flops and bytes.

    Attributes
    ----------
    n_rows, n_features : int
    segments : tuple of Segment
    chunk_rows : most rows of a step
    flops : of the whole sweep
    bytes_read : decoded, of the whole sweep
    chunk_bytes : of one step with its columns, decoded
    partial_bytes : of one accumulator
    work_bytes : of the buffers of a task
    width, dtype : of the block whose Gram matrix is summed; 0 and "" where none is
    preview_rows : of an excerpt that a fit may sweep first, to choose the arithmetic of this sweep; 0: it will not
    """

    n_rows: int
    n_features: int
    segments: tuple[Segment, ...]
    chunk_rows: int
    flops: float
    bytes_read: int
    chunk_bytes: int
    partial_bytes: int
    work_bytes: int
    width: int = 0
    dtype: str = ""
    preview_rows: int = 0

    def _repr_html_(self) -> str:
        return bigkernel._html_of(self)

    @property
    def task_bytes(self) -> int:
        """Most memory that one task needs on top of the process.

        Two steps of rows in flight and one being decoded (with its compressed bytes); the buffers; the accumulator,
        two being merged or sent, and those that wait for their sibling in the tree of merges.
        """
        return 4 * self.chunk_bytes + self.work_bytes + (3 + _levels(len(self.segments))) * self.partial_bytes

    def worker_bytes(self, base_bytes: int) -> int:
        """Announced peak of a worker process with one task at a time."""
        return base_bytes + self.task_bytes

    def check(self, limit_bytes: int, base_bytes: int) -> None:
        """Refuse a plan whose workers would need more than `limit_bytes`.

        Raises
        ------
        PlanTooLarge
            Says what is needed, what there is, and what would fit.
        """
        needed = self.worker_bytes(base_bytes)
        if needed <= limit_bytes:
            return
        room = limit_bytes - base_bytes
        fixed = self.task_bytes - 4 * self.chunk_bytes
        if room <= 0:
            advice = "give the workers more memory"
        elif rows := self._fitting_rows(room - fixed):
            advice = f"chunks of at most {rows:,} rows would fit (now {self.chunk_rows:,})"
        else:
            # a share t of the landmarks takes t² of the partial results and at most t of the buffers
            partials, left = fixed - self.work_bytes, room - 4 * self.chunk_bytes
            root = math.sqrt(self.work_bytes**2 + 4 * partials * max(0, left))
            share = (root - self.work_bytes) / (2 * max(1, partials))
            advice = f"about {share:.0%} of the landmarks would fit" if share > 0.01 else "give the workers more memory"
        raise PlanTooLarge(
            f"a worker would need {needed / 1e6:,.0f} MB ({base_bytes / 1e6:,.0f} for the process, "
            f"{4 * self.chunk_bytes / 1e6:,.0f} for rows, {self.work_bytes / 1e6:,.0f} for buffers, the rest for "
            f"partial results of {self.partial_bytes / 1e6:,.0f} MB), its limit is {limit_bytes / 1e6:,.0f} MB: "
            f"{advice}"
        )

    def _fitting_rows(self, room: float) -> int:
        """Rows of the largest chunk that fits in so many bytes beside what is fixed, or 0.

        Smaller chunks may make more segments, at most about four times as many as now, and so a deeper tree of merges.
        """
        row_bytes, now = 4 * max(1.0, self.chunk_bytes / max(1, self.chunk_rows)), len(self.segments)
        for deeper in range(64):
            rows = int((room - deeper * self.partial_bytes) / row_bytes)
            segments = min(math.ceil(self.n_rows / max(1, rows)), max(16, 4 * now))
            if rows < 1 or _levels(segments) <= _levels(now) + deeper:
                return max(rows, 0)
        return 0

    def seconds(self, flops_per_second: float) -> float:
        """Time of the sweep at a given rate of the whole cluster."""
        return self.flops / flops_per_second

    def summary(self) -> dict[str, Any]:
        """The figures of the plan as plain data, for people and for JSON."""
        return {
            "rows": self.n_rows,
            "features": self.n_features,
            "segments": len(self.segments),
            "segment_rows": max((s.stop - s.start for s in self.segments), default=0),
            "chunk_rows": self.chunk_rows,
            "flops": self.flops,
            "bytes_read": self.bytes_read,
            "partial_bytes": self.partial_bytes,
            "task_bytes": self.task_bytes,
            **({"preview_rows": self.preview_rows} if self.preview_rows else {}),
        }


def _levels(segments: int) -> int:
    """Of the tree that merges so many partial results."""
    return math.ceil(math.log2(max(2, segments)))


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
    """Cut rows into segments of whole chunks, about equal, and add up what they cost.

    Parameters
    ----------
    bounds : row ids where steps of the input begin, the first 0, the last the number of rows
    n_features, itemsize : of a row as stored
    footprint : of the statistic
    segment_rows : most rows of a segment, unless a single chunk has more
    min_segments : smaller inputs are still cut into this many, as far as they have chunks
    column_bytes : of the columns (targets, weights) of a row, as stored
    """
    if not bounds or bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)):
        raise ValueError(f"bounds: expected row ids that begin with 0 and never fall, found {tuple(bounds)[:8]}…")
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
    )
