"""The time of a fit: a model over rates that were measured on a machine.

The rates are those of one process while as many work as the machine has processors (`measuring` takes them). Shapes:
n rows, d features, p columns of the block (m landmarks), c targets; a partial result has P bytes. A task spends

    n·item·d/decode + n·d/convert + n·2pd/block(p, d) + n·p/exp + n·p²/gram(p) + n/targets + flushes·p²/flush(p)

seconds on its rows. Segments are handed in order to workers as they become free; of the tree of merges, the levels that
span workers come after the last segment. What was not measured (another solve, another kernel) is named, not guessed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from bigkernel.statistics.moments import GRAM_ROWS
from bigkernel.streaming.plan import Plan

_MOST_SCHEDULED = 10_000  # segments; of more, the mean over the workers is as good
ORDER = (
    *("landmarks", "start", "read", "convert", "block", "exp", "gram", "add", "merge", "publish", "solve"),
)  # of the stages, as a fit meets them


@dataclass(frozen=True)
class Curve:
    """A rate that was measured at several sizes, in ascending order.

    Between two of them log(rate) is linear in log(size); beyond the ends it is that of the end.
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        sound = len(self.sizes) == len(self.rates) > 0 and all(a < b for a, b in pairwise(self.sizes))
        if not sound or not all(math.isfinite(value) and value > 0 for value in (*self.sizes, *self.rates)):
            raise ValueError(
                f"a curve: expected as many rates as ascending sizes, all above 0, found {self.sizes} and {self.rates}"
            )

    def __call__(self, size: float) -> float:
        """The rate at a size above 0."""
        return float(np.exp(np.interp(np.log(size), np.log(self.sizes), np.log(self.rates))))


@dataclass(frozen=True)
class Stages:
    """Rates of one process on blocks of one dtype, all processors busy.

    Attributes
    ----------
    block : flops of the kernel's argument, 2pd a row, over p; at `features.sizes[-1]` features
    features : share of `block` that is left at fewer features, over d; 1 at the last
    gram : flops of the rank-k update, p² a row, over p
    flush : elements of G brought into the float64 total, p² a time, over p
    exp : values of the Gaussian finished, p a row, over p
    kernels : rates of finishing other kernels, by name, as shares of `exp`
    fresh : bytes of a task's memory used for the first time (`fresh_bytes`), over p
    convert : values converted and normalised, d a row
    targets : rows whose targets are encoded
    """

    block: Curve
    features: Curve
    gram: Curve
    flush: Curve
    fresh: Curve
    exp: Curve
    kernels: Mapping[str, float]
    convert: float
    targets: float


@dataclass(frozen=True)
class Rates:
    """A machine: what one of its busy processes does in a second, and what is spent once.

    Attributes
    ----------
    stages : by dtype of the blocks, "float32" and "float64"
    decode : bytes of rows decoded (zstd, crc32c)
    take : bytes of rows decoded by the driver, alone, on all its threads
    disk : bytes of files read from the disk, the whole machine
    prepare : values of landmarks prepared for blocks, m·d a time
    merge : bytes of a partial result added to another
    transfer : bytes sent from worker to worker
    home : bytes sent from a worker to the driver
    publish, publish_seconds : bytes of a partial published in a run, and seconds of it whatever the size
    retrieve : bytes of a partial read back from a run, its digest taken
    sweep_seconds : of a sweep whatever its size
    task_seconds : of a worker for every segment and its merge, whatever their size
    core : seconds of k(Z, Z) a pair of landmarks, and a pair and feature; in the driver
    solve : m³ a second of the solve of kernel ridge regression, over m; in the driver
    """

    stages: Mapping[str, Stages]
    decode: float
    take: float
    disk: float
    prepare: float
    merge: float
    transfer: float
    home: float
    publish: float
    publish_seconds: float
    retrieve: float
    sweep_seconds: float
    task_seconds: float
    core: tuple[float, float]
    solve: Curve


@dataclass(frozen=True)
class Work:
    """The work of a fit beyond its plan.

    Attributes
    ----------
    width : p
    dtype : of the blocks
    kernel : its name; "": the rows themselves are the block
    drawn : whether landmarks are drawn from the rows
    solved : "krr": kernel ridge regression with a given penalty; anything else is not forecast
    groups : of rows that are kept apart
    block_rows : most rows of a block
    stored_bytes : of the files with the rows, where they are larger than the machine's memory can keep; else 0
    unknown : what else the fit does that is not forecast, for people
    """

    width: int
    dtype: str = "float32"
    kernel: str = "gaussian"
    drawn: bool = True
    solved: str = "krr"
    groups: int = 1
    block_rows: int = 2048
    stored_bytes: int = 0
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """Seconds of a fit.

    Attributes
    ----------
    stage_seconds : by stage, added up over all tasks; those of the driver (landmarks, solve) as they are
    sweep_seconds : from the first task to the merged total; None where a part of it is not known
    fit_seconds : all of it; None where a part of it is not known
    unknown : which parts these are, for people
    """

    stage_seconds: dict[str, float] = field(default_factory=dict)
    sweep_seconds: float | None = None
    fit_seconds: float | None = None
    unknown: tuple[str, ...] = ()


def fresh_bytes(width: int, n_features: int, block_rows: int, dtype: str) -> int:
    """Return a task's bytes that are new to its process: the float64 total, the Gram matrix, the rows and the block."""
    itemsize = 8 if dtype == "float64" else 4
    return 8 * width**2 + itemsize * (width**2 + block_rows * (width + n_features))


def row_seconds(stages: Stages, width: int, n_features: int, kernel: str) -> dict[str, float] | None:
    """Seconds of one process for one row, by stage, but for reading and flushes; None for a kernel not measured."""
    seconds = {"convert": n_features / stages.convert}
    if kernel:
        if kernel not in stages.kernels:
            return None
        seconds["block"] = 2.0 * width * n_features / (stages.block(width) * stages.features(n_features))
        seconds["exp"] = width / (stages.exp(width) * stages.kernels[kernel])
    return {**seconds, "gram": float(width) ** 2 / stages.gram(width), "add": 1 / stages.targets}


def flops_per_second(rates: Rates, plan: Plan, width: int, dtype: str, kernel: str, block_rows: int = 2048) -> float:
    """Rate of one process over all stages of a sweep's tasks, reading included; 0 where it was not measured."""
    stages, n = rates.stages.get(dtype), plan.n_rows
    per_row = None if stages is None else row_seconds(stages, width, plan.n_features, kernel)
    if stages is None or per_row is None or not n:
        return 0.0
    flushes = sum(_flushes(segment.bounds, block_rows) for segment in plan.segments)
    seconds = n * math.fsum(per_row.values()) + plan.bytes_read / rates.decode
    return plan.flops / (seconds + flushes * width**2 / stages.flush(width))


def forecast(rates: Rates, plan: Plan, work: Work, *, workers: int, run: bool = False) -> Forecast:
    """Forecast the seconds of a fit on so many busy processes of a machine.

    Parameters
    ----------
    plan : of its sweep
    workers : processes, one task each
    run : whether partial results are published in a run directory
    """
    if workers < 1:
        raise ValueError(f"workers: expected at least 1, found {workers}")
    p, d, P, count = work.width, plan.n_features, plan.partial_bytes, len(plan.segments)
    stages, unknown = rates.stages.get(work.dtype), list(work.unknown)
    per_row = None if stages is None else row_seconds(stages, p, d, work.kernel)
    spent: dict[str, float] = {}
    if work.drawn:
        spent["landmarks"] = _landmark_seconds(rates, plan, p)
    sweep_seconds = None
    if stages is None or per_row is None:
        unknown.insert(0, f"blocks of the {work.kernel} kernel in {work.dtype}")
    else:
        n, per_row = plan.n_rows, {"read": plan.bytes_read / max(1, plan.n_rows) / rates.decode, **per_row}
        fresh = fresh_bytes(p, d, work.block_rows, work.dtype) / stages.fresh(p)
        fixed = rates.task_seconds + fresh + (rates.publish_seconds + P / rates.publish if run else 0.0)
        flush = work.groups * p**2 / stages.flush(p)
        lengths = [
            (s.stop - s.start) * math.fsum(per_row.values()) + _flushes(s.bounds, work.block_rows) * flush + fixed
            for s in plan.segments
        ]
        spent |= {stage: n * seconds for stage, seconds in per_row.items()}
        spent["add"] += count * fresh + flush * sum(_flushes(s.bounds, work.block_rows) for s in plan.segments)
        tasks = _makespan(lengths, workers)
        # a machine whose disk gives less than its processes decode waits for it
        tasks = max(tasks, work.stored_bytes / rates.disk)
        merges, tail = _merges(rates, P, count, workers, run=run)
        start = rates.sweep_seconds + _shipping_seconds(rates, work, d, workers, run=run)
        spent |= {"merge": merges, "start": start + count * rates.task_seconds}
        if run:
            spent["publish"] = (2 * count - 1) * (rates.publish_seconds + P / rates.publish) if count else 0.0
        sweep_seconds = start + tasks + tail
    fit_seconds = None
    if work.solved == "krr" and work.kernel:
        spent["solve"] = p**2 * (rates.core[0] + rates.core[1] * d) + p**3 / rates.solve(p)
        if sweep_seconds is not None and not unknown:
            fit_seconds = sweep_seconds + spent["solve"] + spent.get("landmarks", 0.0)
    else:
        unknown.append("the solve")
    ordered = {stage: spent[stage] for stage in ORDER if stage in spent}
    return Forecast(ordered, sweep_seconds, fit_seconds, tuple(unknown))


def _flushes(bounds: tuple[int, ...], block_rows: int) -> int:
    """Count how often Gram matrices of a segment join the float64 total: at the end of a chunk, or of enough blocks."""
    rows = block_rows * math.ceil(GRAM_ROWS / block_rows)
    return sum(math.ceil((b - a) / rows) for a, b in pairwise(bounds))


def _landmark_seconds(rates: Rates, plan: Plan, m: int) -> float:
    """Return the seconds of the driver, which decodes every chunk that holds some of m rows."""
    chunks = max(1, sum(len(segment.bounds) - 1 for segment in plan.segments))
    # m draws leave a chunk out with the probability (1 − 1/chunks)ᵐ
    touched = 1 - (1 - 1 / chunks) ** m
    return plan.bytes_read * touched / rates.take


def _shipping_seconds(rates: Rates, work: Work, n_features: int, workers: int, *, run: bool) -> float:
    """Until every worker has the landmarks, prepared there, and twice in the driver (for the dtype and the centre)."""
    if not work.kernel:
        return 0.0
    values = work.width * n_features
    bytes_ = 8.0 * values
    sent = bytes_ / rates.publish + bytes_ / rates.retrieve if run else (1 + workers) * bytes_ / rates.transfer
    return sent + 3 * values / rates.prepare


def _makespan(lengths: list[float], workers: int) -> float:
    """Return when the last of these tasks ends, each begun by the first worker that is free."""
    if len(lengths) > _MOST_SCHEDULED:
        return math.fsum(lengths) / workers + max(lengths) / 2
    free = [0.0] * workers
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def _merges(rates: Rates, partial_bytes: int, segments: int, workers: int, *, run: bool) -> tuple[float, float]:
    """Seconds of all merges; and what of them, and of bringing the total to the driver, comes after the segments."""
    if not segments:
        return 0.0, 0.0
    added = partial_bytes / rates.merge
    if run:
        read = 2 * partial_bytes / rates.retrieve
        one, moved, home = added + read, rates.publish_seconds + partial_bytes / rates.publish, read / 2
    else:
        one, moved = added, partial_bytes / rates.transfer
        home = partial_bytes / rates.home
    across = math.ceil(math.log2(max(1, min(workers, segments))))  # levels whose children are on two workers
    within = segments - 1 - across
    everywhere = moved if run else 0.0
    tail = across * (one + moved) + max(0, within) * (one + everywhere) / workers + home
    return (segments - 1) * one + (0.0 if run else across * moved), tail
