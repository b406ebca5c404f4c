"""Measures this machine for `calibration`: a local cluster of as many workers as it has processors, all busy at once.

Two processes share caches, memory and turbo: what one does alone is no rate of a sweep. Each point is therefore timed
in all workers at the same moment, in separate processes with one BLAS thread, by the very code that a fit runs; the
solve in this process, with its BLAS threads. Points are timed in rounds, whose median counts, and by the
processor's time: what else the machine does meanwhile counts little, and how much it did is kept with the rates.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client, Future, wait

from bigkernel.cluster.connect import connect
from bigkernel.config import settings
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, Stalled
from bigkernel.forecast.calibration import Calibration, now_here, place, this_machine
from bigkernel.forecast.measuring import tasks
from bigkernel.forecast.time_model import Curve, Rates, Stages, fresh_bytes
from bigkernel.kernels.functions import KERNELS
from bigkernel.monitor.events import Step
from bigkernel.monitor.scope import emit
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.storage.corpus import Corpus, CorpusInfo, CorpusWriter, open_corpus
from bigkernel.storage.run_directory import make_directory

SECONDS = 4.0  # for the points of a sweep; the rest takes about as long
_WIDTHS = {"float32": (128, 512, 1024, 2048, 4096), "float64": (128, 512, 1024, 2048)}
_SOLVED = (128, 512, 1024, 3584)
_FEATURES = (2, 32, 256, 784)  # the last is that of all widths
_WIDEST_BYTES = 10**9  # that a worker needs for the widest point
_PATIENCE_SECONDS = 120.0
_KERNELS = tuple(sorted(set(KERNELS) - {"laplacian"}))  # its argument is no product
_FASTEST = 2e10  # bytes a second: memory that is new cannot be had faster
_Times = dict[tuple[str, str, Any], list[dict[str, float]]]


def calibrate(*, corpus: Corpus | None = None, seconds: float = SECONDS, client: Client | None = None) -> Calibration:
    """Measure this machine; about 20 seconds. Progress is told as steps (`monitor.events.Step`).

    Parameters
    ----------
    corpus : whose chunks are read; None: one of random pixels
    seconds : for the points of a sweep, in rounds of two seconds; below one second: of the narrowest alone, roughly
    client : of a local cluster with a worker a processor; None: one is started

    Raises
    ------
    ConfigError
        `seconds` is not above 0.
    DataError
        The cache directory, where partial results are written and read, cannot be.
    Stalled
        The workers did not come, or not answer.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds: expected a number above 0, found {seconds}")
    start, effort = time.perf_counter(), _Effort.of(seconds)
    make_directory(place().parent)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="calibrate-", dir=place().parent))
        told = _Told(8)
        told.next()
        if client is None:
            client = stack.enter_context(connect("local", dashboard=0))
        crew = _Crew(client, effort.rounds)
        rows = as_rows(corpus if corpus is not None and len(corpus) else _corpus(Path(scratch, "pixels")))
        told.next()
        stages, share = _stages(crew, effort)
        told.next()
        reading = _reading(crew, rows)
        told.next()
        moving = _moving(crew, effort)
        told.next()
        publishing = _publishing(crew, scratch, effort.partial_bytes // 2)
        told.next()
        fixed = _fixed(crew, Path(scratch, "rows"))
        told.next()
        rates = Rates(stages=stages, **reading, **moving, **publishing, **fixed, **_solving(effort))
        told.next()
    host, date = now_here()
    return Calibration(this_machine(), rates, host, date, time.perf_counter() - start, share)


@dataclass(frozen=True)
class _Effort:
    """The extent of a measurement.

    Attributes
    ----------
    seconds : for the points of a sweep
    rounds : of everything else
    solved : m of the systems that are solved
    partial_bytes : of what is merged, sent and published
    middle : width at which kernels and numbers of features are compared
    widths : how many, from the least on
    """

    seconds: float
    rounds: int = 3
    solved: tuple[int, ...] = _SOLVED
    partial_bytes: int = 2**26
    middle: int = 512
    widths: int = 9

    @classmethod
    def of(cls, seconds: float) -> _Effort:
        """Less than a second is for those who want any calibration, soon."""
        return cls(seconds) if seconds >= 1 else cls(seconds, 1, _SOLVED[:1], 2**20, 128, 1)


class _Told:
    """Tells how far it is."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total

    def next(self) -> None:
        self._done += 1
        emit(Step("calibrate", self._done, self._total))


class _Crew:
    """All workers, asked to do the same at the same moment."""

    def __init__(self, client: Client, rounds: int) -> None:
        self.client, self.addresses, self.rounds = client, sorted(client.ncores()), range(rounds)

    def all(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The results of one call a worker."""
        return self.each(function, [args] * len(self.addresses))

    def each(self, function: Callable[..., Any], args: list[tuple[Any, ...]]) -> list[Any]:
        """The results of one call a worker, each with its own arguments."""
        futures = [
            self.client.submit(
                function, *some, workers=[address], pure=False, key=f"calibrate-{time.monotonic_ns()}-{i}"
            )
            for i, (address, some) in enumerate(zip(self.addresses, args, strict=True))
        ]
        self.wait(*futures)
        results: list[Any] = self.client.gather(futures)
        return results

    def on(self, address: str, function: Callable[..., Any], *args: Any) -> Future:
        """A call on one worker, done."""
        future = self.client.submit(function, *args, workers=[address], pure=False)
        self.wait(future)
        return future

    def wait(self, *futures: Future) -> None:
        """Until these calls are done.

        Raises
        ------
        Stalled
            They are not done in time.
        """
        try:
            with self.client.as_current():
                wait(futures, timeout=_PATIENCE_SECONDS)
        except TimeoutError as error:
            raise Stalled(f"calibration: a worker did not answer within {_PATIENCE_SECONDS:.0f} s") from error

    def stages(self, function: Callable[..., dict[str, float]], *args: Any) -> dict[str, float]:
        """The means of the stages that all workers time at once."""
        answers = self.all(function, *args)
        return {stage: statistics.fmean(one[stage] for one in answers) for stage in answers[0]}

    def median(self, function: Callable[..., float], *args: Any) -> float:
        """The median over the rounds of the mean of what all workers time at once."""
        return statistics.median(statistics.fmean(self.all(function, *args)) for _ in self.rounds)


def _stages(crew: _Crew, effort: _Effort) -> tuple[dict[str, Stages], float]:
    """Rates of blocks, by dtype, in as many rounds as time permits; and the share of the processors that was ours."""
    most = 10**9 if psutil.virtual_memory().available > _WIDEST_BYTES * len(crew.addresses) else 1024
    block_rows, middle, end = settings().block_rows, effort.middle, time.perf_counter() + effort.seconds
    # (function, dtype, width or features or kernel): seconds by stage, of every round
    times: _Times = defaultdict(list)
    while True:
        for dtype, widths in _WIDTHS.items():
            for width in widths[: effort.widths]:
                if width <= most:
                    times["update", dtype, width].append(
                        crew.stages(tasks.update_seconds, width, _FEATURES[-1], dtype, block_rows)
                    )
            for d in _FEATURES:
                times["block", dtype, d].append(crew.stages(tasks.block_seconds, middle, d, dtype, block_rows))
            for name in _KERNELS:
                few = (middle, _FEATURES[1], dtype, block_rows, name)
                times["exp", dtype, name].append(crew.stages(tasks.block_seconds, *few))
        if time.perf_counter() >= end:
            break
    crew.all(tasks.forget)
    updates = [one for (what, *_), found in times.items() for one in found if what == "update"]
    share = sum(one["processor"] for one in updates) / sum(one["clock"] for one in updates)
    return {dtype: _of_dtype(dtype, times, block_rows, middle) for dtype in _WIDTHS}, min(share, 1.0)


def _of_dtype(dtype: str, times: _Times, rows: int, middle: int) -> Stages:
    """Rates from the medians of what was timed on so many rows; kernels and features at the width `middle`."""

    def seconds(what: str, at: Any, stage: str) -> float:
        return max(statistics.median(one[stage] for one in times[what, dtype, at]), 1e-9)

    widths = tuple(width for width in _WIDTHS[dtype] if ("update", dtype, width) in times)
    d = _FEATURES[-1]
    targets = seconds("update", widths[0], "add") / rows
    gaussian = seconds("exp", "gaussian", "exp")
    shares = [features / seconds("block", features, "block") for features in _FEATURES]

    def curve(stage: str, work: Callable[[int], float], less: float = 0.0) -> Curve:
        spent = [max(seconds("update", m, stage) - less, 1e-9) for m in widths]
        return Curve(widths, tuple(work(m) / time for m, time in zip(widths, spent, strict=True)))

    return Stages(
        block=curve("block", lambda m: 2.0 * rows * m * d),
        features=Curve(_FEATURES, tuple(share / shares[-1] for share in shares)),
        gram=curve("gram", lambda m: float(rows) * m * m),
        # of the least width next to nothing is the Gram matrix's
        flush=curve("add", lambda m: float(m) * m, less=0.9 * targets * rows),
        exp=curve("exp", lambda m: float(rows) * m),
        kernels={name: gaussian / seconds("exp", name, "exp") for name in _KERNELS},
        fresh=Curve(
            widths,
            tuple(
                fresh_bytes(m, d, rows, dtype)
                / max(fresh_bytes(m, d, rows, dtype) / _FASTEST, seconds("update", m, "fresh"))
                for m in widths
            ),
        ),
        convert=rows * d / statistics.median(seconds("update", width, "convert") for width in widths),
        targets=1 / targets,
    )


def _reading(crew: _Crew, rows: Rows) -> dict[str, Any]:
    """Rates of decoding rows, in all workers at once and in this process."""
    bounds = rows.bounds(settings())
    steps = list(pairwise(bounds))[:4]
    row_bytes = rows.stored_width * rows.dtype.itemsize
    size = statistics.fmean(stop - start for start, stop in steps) * row_bytes
    chosen = [(rows, *steps[i % len(steps)], max(1, round(2e7 / size))) for i in range(len(crew.addresses))]
    decode = statistics.median(statistics.fmean(crew.each(tasks.read_seconds, chosen)) for _ in crew.rounds)
    ids, taken = np.asarray([start for start, _ in steps]), []
    for _ in crew.rounds:
        start = time.perf_counter()
        rows.take(ids)
        taken.append(time.perf_counter() - start)
    return {"decode": size / decode, "take": steps[-1][1] * row_bytes / statistics.median(taken)}


def _moving(crew: _Crew, effort: _Effort) -> dict[str, Any]:
    """Rates of memory, of merges and of what travels between processes."""
    size, width = effort.partial_bytes, 4 * effort.middle
    sent, home = list[float](), list[float]()
    for _ in crew.rounds:
        held = crew.on(crew.addresses[0], tasks.ones, size)
        start = time.perf_counter()
        crew.on(crew.addresses[-1], tasks.length, held)
        sent.append(time.perf_counter() - start)
        start = time.perf_counter()
        held.result(_PATIENCE_SECONDS)
        home.append(time.perf_counter() - start)
    return {
        "merge": size / crew.median(tasks.merge_seconds, size),
        "prepare": width * 784.0 / crew.median(tasks.prepare_seconds, width, 784),
        "transfer": size / statistics.median(sent if len(crew.addresses) > 1 else home),
        "home": size / statistics.median(home),
    }


def _publishing(crew: _Crew, scratch: str, most: int) -> dict[str, Any]:
    """Rates of a run directory and of the disk, in the user's cache directory."""
    large, small = list[Any](), list[Any]()
    for i in crew.rounds:
        for size, found in ((most, large), (2**13, small)):
            args = [(scratch, f"{size}-{i}-{worker}", size) for worker in range(len(crew.addresses))]
            found.append(np.mean(crew.each(tasks.publish_seconds, args), axis=0))
    (publish, retrieve), (fixed, _) = np.median(large, axis=0), np.median(small, axis=0)
    return {
        "publish": float(most / max(publish - fixed, 1e-9)),
        "publish_seconds": float(fixed),
        "retrieve": float(most / retrieve),
        "disk": most / tasks.disk_seconds(scratch, most),
    }


def _fixed(crew: _Crew, path: Path) -> dict[str, Any]:
    """Measure the fixed cost of a sweep and of each segment, by sweeps of few rows in few and many segments."""
    rows, few, many = as_rows(_corpus(path, n_rows=320, n_features=8, chunk_rows=16)), 4, 20
    statistic = MomentStatistic(tasks.landmark_map(8, 8, "float32"), Targets(tasks.CLASSES, np.arange(tasks.CLASSES)))
    times: dict[int, list[float]] = {few: [], many: []}
    for i in (0, *(1 + i for i in crew.rounds)):
        for segments, found in times.items():
            with dask.config.set({"bigkernel.min-segments": segments, "bigkernel.chunk-bytes": 1024}):
                start = time.perf_counter()
                sweep(rows, statistic, client=crew.client, what="calibrate")
                if i:  # workers know one another after the first
                    found.append(time.perf_counter() - start)
    a, b = statistics.median(times[few]), statistics.median(times[many])
    workers = len(crew.addresses)
    task = max(b - a, 1e-6) * workers / (many - few)
    return {"task_seconds": task, "sweep_seconds": max(a - task * few / workers, 1e-6)}


def _solving(effort: _Effort) -> dict[str, Any]:
    """Rates of this process, with its BLAS threads, after a sweep; of small systems alone where there is no time."""
    sizes, rates = effort.solved, list[float]()
    for m in sizes:
        # the least: this process is alone, what else runs can only slow it down
        rates.append(float(m) ** 3 / min(tasks.solve_seconds(m) for _ in range(2 if m > 1024 else 3)))
    m, few, many = sizes[len(sizes) // 2], _FEATURES[1], _FEATURES[-1]
    a, b = (statistics.median(tasks.core_seconds(m, d) for _ in range(3)) / m**2 for d in (few, many))
    slope = max(b - a, 0.0) / (many - few)
    return {"solve": Curve(sizes, tuple(rates)), "core": (max(a - slope * few, 0.0), slope)}


def _corpus(path: Path, n_rows: int = 40_000, n_features: int = 784, chunk_rows: int = 10_000) -> Corpus:
    """A corpus of random pixels with classes."""
    info = CorpusInfo("calibrate", classes=tuple(range(tasks.CLASSES)))
    x, y = tasks.pixels(n_rows, n_features), np.arange(n_rows) % tasks.CLASSES
    with CorpusWriter(
        path, n_features=n_features, dtype=x.dtype, columns={"y": y.dtype}, info=info, chunk_rows=chunk_rows
    ) as writer:
        writer.append(x=x, y=y)
    return open_corpus(path)
