"""A model of a fit's time over workers and rows, and the largest m that time and memory permit.

n rows of d features, m landmarks, S segments, W workers of one task each; a partial result has P bytes. What a process
does in a second is a calibration of this machine (`forecast.time_model.Rates`). On top of it, once for the whole
cluster: the scheduler, which spends c seconds on every segment, one after the other (less where several short segments
are one task), and storage, which gives all
workers together no more than its ceiling. With t the seconds of a segment and its merge on a worker,

    seconds = start + max(⌈S/W⌉·t, S·c, stored bytes / ceiling) + ⌈log₂ min(W, S)⌉·(moved + merged) + home + solve

where the start is that landmarks are drawn and brought to every worker. Pure functions of plain data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bigkernel.engine.schedule import MOST_SEGMENTS, segments_a_task
from bigkernel.forecast.time_model import Rates, fresh_bytes, row_seconds
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.moments import GRAM_ROWS, MomentStatistic, Targets
from bigkernel.streaming.plan import Footprint, Plan, Segment

SEGMENT_ROWS = 65_536  # most rows of a segment, as the plan cuts them
CHUNK_ROWS = 10_000  # of a corpus of digits
LEAST_SEGMENTS = 4
CLASSES = 10
BLOCK_ROWS = 2048
BASE_BYTES = 150_000_000  # of a worker process before its first row
MOST_LANDMARKS = 1_000_000  # that `largest` looks at
BOUNDS = ("workers", "scheduler", "storage", "merges", "start", "solve")


@dataclass(frozen=True)
class Cluster:
    """The resources of a fit.

    Attributes
    ----------
    rates : of one busy process of a worker, and of the driver
    scheduler_seconds : c, of the scheduler for a segment that has a task of its own
    shared_seconds : c of one of sixteen segments in a task; None: the same
    storage_bytes : a second, that storage gives all workers together
    stored_share : bytes stored over bytes decoded, of the rows
    correction : measured seconds of a segment over those that `rates` tell
    """

    rates: Rates
    scheduler_seconds: float
    storage_bytes: float
    stored_share: float = 1.0
    correction: float = 1.0
    shared_seconds: float | None = None

    def segment_cost(self, together: int) -> float:
        """c where so many segments are one task: a part of each segment, and one of each task."""
        least = self.scheduler_seconds if self.shared_seconds is None else self.shared_seconds
        task = (self.scheduler_seconds - least) * MOST_SEGMENTS / (MOST_SEGMENTS - 1)
        return self.scheduler_seconds - task * (1 - 1 / together)


@dataclass(frozen=True)
class Fit:
    """Kernel ridge regression with m Gaussian landmarks: n rows of d 8-bit features, ten classes, float32 blocks.

    The rows are a corpus in chunks of `chunk_rows`.
    """

    rows: int
    landmarks: int
    features: int = 784
    chunk_rows: int = CHUNK_ROWS

    @property
    def chunks(self) -> int:
        """Of the corpus."""
        return -(-self.rows // self.chunk_rows)

    @property
    def segments(self) -> int:
        """S: as `bigkernel.streaming.plan` cuts a corpus."""
        return min(self.chunks, max(LEAST_SEGMENTS, -(-self.chunks // max(1, SEGMENT_ROWS // self.chunk_rows))))

    @property
    def segment_rows(self) -> float:
        """Rows of a segment, the mean."""
        return self.rows / self.segments

    def segments_a_task(self, workers: int) -> int:
        """As a cluster of so many workers has them; 0: as any has them where rows are without end."""
        flops, stored = self.segment_rows * self.footprint.flops_per_row, self.segment_rows * self.features
        return segments_a_task(flops, stored, self.segments if workers else math.inf, max(1, workers))

    @property
    def footprint(self) -> Footprint:
        """Of its statistic."""
        landmarks = np.broadcast_to(np.zeros(1), (self.landmarks, self.features))  # none is looked at
        features = LandmarkMap(Gaussian(1.0), landmarks, np.dtype(np.float32), np.zeros(self.landmarks))
        return MomentStatistic(features, Targets(CLASSES, np.arange(CLASSES))).footprint(BLOCK_ROWS)

    @property
    def worker_bytes(self) -> int:
        """Announced peak of a worker process (`Plan.worker_bytes`)."""
        footprint, rows = self.footprint, min(self.chunk_rows, self.rows)
        steps = Plan(
            n_rows=self.rows,
            n_features=self.features,
            segments=(Segment(0, (0,)),) * self.segments,  # their number alone is looked at
            chunk_rows=rows,
            flops=0.0,
            bytes_read=0,
            chunk_bytes=rows * (self.features + 8),
            partial_bytes=footprint.partial_bytes,
            work_bytes=footprint.work_bytes,
            width=footprint.width,
            dtype=footprint.dtype,
            shared_bytes=footprint.shared_bytes,
        )
        return steps.worker_bytes(BASE_BYTES)


@dataclass(frozen=True)
class Times:
    """Seconds of a fit on so many workers, by what they are spent on; `tasks`, `scheduler` and `storage` overlap.

    Attributes
    ----------
    start : until the first segment: landmarks are drawn and brought to every worker
    tasks : of the workers on segments and on merges within a worker
    scheduler, storage : at least, whatever the number of workers
    merges : after the last segment, across workers and home to the driver
    solve : in the driver
    """

    start: float
    tasks: float
    scheduler: float
    storage: float
    merges: float
    solve: float

    @property
    def total(self) -> float:
        """Seconds of the fit."""
        return self.start + max(self.tasks, self.scheduler, self.storage) + self.merges + self.solve

    @property
    def bound(self) -> str:
        """The part that takes most of the time, one of `BOUNDS`."""
        streaming = {"workers": self.tasks, "scheduler": self.scheduler, "storage": self.storage}
        first = max(streaming, key=streaming.__getitem__)
        parts = {first: streaming[first], "merges": self.merges, "start": self.start, "solve": self.solve}
        return max(parts, key=parts.__getitem__)


def segment_seconds(fit: Fit, cluster: Cluster) -> float:
    """t: of one worker for a segment and a merge of what it has."""
    rates, m, d = cluster.rates, fit.landmarks, fit.features
    stages = rates.stages["float32"]
    per_row = row_seconds(stages, m, d, "gaussian")
    assert per_row is not None
    rows = d / rates.decode + math.fsum(per_row.values()) + m**2 / stages.flush(m) / GRAM_ROWS
    fixed = rates.task_seconds + fresh_bytes(m, d, BLOCK_ROWS, "float32") / stages.fresh(m)
    return cluster.correction * (fit.segment_rows * rows + fixed) + fit.footprint.partial_bytes / rates.merge


def solve_seconds(fit: Fit, cluster: Cluster) -> float:
    """Of the driver, k(Z, Z) included."""
    m, rates = fit.landmarks, cluster.rates
    return m**2 * (rates.core[0] + rates.core[1] * fit.features) + m**3 / rates.solve(m)


def times(fit: Fit, cluster: Cluster, workers: int) -> Times:
    """Seconds of the fit on so many workers.

    Raises
    ------
    ValueError
        Fewer than one worker.
    """
    if workers < 1:
        raise ValueError(f"workers: expected at least 1, found {workers}")
    rates, m, d, partial = cluster.rates, fit.landmarks, fit.features, fit.footprint.partial_bytes
    # m draws leave a chunk out with the probability (1 − 1/chunks)ᵐ
    drawn = fit.rows * d * (1 - (1 - 1 / fit.chunks) ** m) / rates.take
    # landmarks go from worker to worker, twice as many have them after every round
    shipped = (1 + math.log2(workers)) * 8 * m * d / rates.transfer + 3 * m * d / rates.prepare
    levels = math.ceil(math.log2(min(workers, fit.segments)))
    return Times(
        start=rates.sweep_seconds + drawn + shipped,
        tasks=math.ceil(fit.segments / workers) * segment_seconds(fit, cluster),
        scheduler=fit.segments * cluster.segment_cost(fit.segments_a_task(workers)),
        storage=fit.rows * d * cluster.stored_share / cluster.storage_bytes,
        merges=levels * (partial / rates.transfer + partial / rates.merge) + partial / rates.home,
        solve=solve_seconds(fit, cluster),
    )


def most_workers(fit: Fit, cluster: Cluster) -> float:
    """Return the number of workers that the scheduler keeps busy, t/c; beyond them it bounds any number of rows."""
    return segment_seconds(fit, cluster) / cluster.segment_cost(fit.segments_a_task(0))


def largest(
    rows: int, cluster: Cluster, *, workers: int, hours: float, memory_bytes: float, features: int = 784
) -> tuple[int, str]:
    """The largest m of a fit within the hours and the memory of a worker, to three digits; and what it is bound by.

    "memory", "time" or "rows" (m is at most their number, and `MOST_LANDMARKS`); 0 where one landmark is too many.
    """

    def limit(m: int) -> str:
        fit = Fit(rows, m, features)
        if fit.worker_bytes > memory_bytes:
            return "memory"
        return "time" if times(fit, cluster, workers).total > 3600 * hours else ""

    low, high = 0, min(rows, MOST_LANDMARKS)
    if not limit(high):
        return high, "rows"
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if limit(middle) else (middle, high)
    digits = max(0, len(str(low)) - 3)
    return low // 10**digits * 10**digits, limit(high)


def corrected(cluster: Cluster, fit: Fit, seconds: float) -> Cluster:
    """The cluster with the correction that makes one worker spend so many seconds on the segments of a fit."""
    plain = replace(cluster, correction=1.0)
    merge = fit.footprint.partial_bytes / cluster.rates.merge
    told = segment_seconds(fit, plain) - merge
    left = seconds - times(fit, plain, 1).merges - fit.segments * merge - cluster.rates.sweep_seconds
    return replace(cluster, correction=max(left / (fit.segments * told), 1e-3))
