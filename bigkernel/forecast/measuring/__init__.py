"""Measures this machine for `calibration`: a local cluster of as many workers as it has processors, all busy at once.

Two processes share caches, memory and turbo: what one does alone is no rate of a sweep. Each point is therefore timed
in all workers at the same moment, in separate processes with one BLAS thread, by the very code that a fit runs; the
solve in this process, with its BLAS threads. Points are timed in rounds, whose median counts, and by the
processor's time: what else the machine does meanwhile counts little, and how much it did is kept with the rates. On a
busy machine the widest points and all rounds but the first are left out, so that it ends in half a minute there too.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client, Future, wait

from bigkernel.cluster.connect import connect
from bigkernel.config import settings
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter, open_corpus
from bigkernel.data.run_directory import make_directory
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, Stalled
from bigkernel.events.kinds import Step
from bigkernel.events.scope import emit
from bigkernel.forecast.calibration import Calibration, now_here, place, this_machine
from bigkernel.forecast.measuring import tasks
from bigkernel.forecast.time_model import Curve, Rates, Stages, fresh_bytes
from bigkernel.kernels.functions import KERNELS
from bigkernel.statistics.moments import MomentStatistic, Targets

STEP = "calibrate: "  # begins the names of the steps
SECONDS = 4.0  # for the points of a sweep; the rest takes about as long
_WIDTHS = {"float32": (128, 512, 1024, 2048, 4096), "float64": (128, 512, 1024, 2048)}
_SOLVED = (128, 512, 1024, 3584)
_FEATURES = (2, 32, 256, 784)  # the last is that of all widths
_WIDEST_BYTES = 10**9  # that a worker needs for the widest point
_PATIENCE_SECONDS = 120.0
_REST_SECONDS = 20.0  # most for all else than the points of a sweep: what a busy machine cannot do in it is left out
# the steps, each with the share that it may take of the time that is left when it begins
_STEPS = {
    "workers start": 0.0,
    "blocks, kernels and sums": 0.5,
    "reading of rows": 0.2,
    "memory, merges and messages": 0.25,
    "the run directory": 0.3,
    "the start of sweeps and tasks": 0.4,
    "solves": 1.0,
}
_KERNELS = tuple(sorted(set(KERNELS) - {"laplacian"}))  # its argument is no product
_FASTEST = 2e10  # bytes a second: memory that is new cannot be had faster
_Times = dict[tuple[str, str, Any], list[dict[str, float]]]


def calibrate(*, corpus: Corpus | None = None, seconds: float = SECONDS, client: Client | None = None) -> Calibration:
    """Measure this machine; about 20 seconds, 30 on a busy one. Progress is told as steps (`events.kinds.Step`).

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
    start, effort, told = time.perf_counter(), _Effort.of(seconds), _Told(_REST_SECONDS + seconds)
    make_directory(place().parent)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="calibrate-", dir=place().parent))
        told.next()
        if client is None:
            client = stack.enter_context(connect("local", dashboard=0))
        crew = _Crew(client, effort.rounds)
        rows = as_rows(corpus if corpus is not None and len(corpus) else _corpus(Path(scratch, "pixels")))
        crew.until = told.next()
        stages, share = _stages(crew, effort)
        crew.until = told.next()
        reading = _reading(crew, rows)
        crew.until = told.next()
        moving = _moving(crew, effort)
        crew.until = told.next()
        publishing = _publishing(crew, scratch, effort.partial_bytes // 2)
        crew.until = told.next()
        fixed = _fixed(crew, Path(scratch, "rows"))
        rates = Rates(stages=stages, **reading, **moving, **publishing, **fixed, **_solving(effort, told.next()))
        told.end()
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
    """Tells which step begins, and until when it may take."""

    def __init__(self, seconds: float) -> None:
        self._end, self._done = time.perf_counter() + seconds, 0

    def next(self) -> float:
        """Begin the next step; the moment at which it has had its share of the time that is left."""
        name, share = list(_STEPS.items())[self._done]
        emit(Step(f"{STEP}{name}", self._done, len(_STEPS)))
        self._done += 1
        now = time.perf_counter()
        return now + share * (self._end - now)

    def end(self) -> None:
        """Say that all is done."""
        emit(Step(STEP.rstrip(": "), self._done, len(_STEPS)))


class _Crew:
    """All workers, asked to do the same at the same moment; `until` when rounds may begin, but for the first."""

    def __init__(self, client: Client, rounds: int) -> None:
        self.client, self.addresses, self._rounds = client, sorted(client.ncores()), rounds
        self.until = math.inf

    @property
    def rounds(self) -> Iterator[int]:
        """The numbers of the rounds, as long as there is time."""
        return (i for i in range(self._rounds) if not i or time.perf_counter() < self.until)

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
    block_rows, middle, end = settings().block_rows, effort.middle, time.perf_counter() + effort.seconds
    # (function, dtype, width or features or kernel): seconds by stage, of every round
    times: _Times = defaultdict(list)
    while True:
        start = time.perf_counter()
        for dtype in _WIDTHS:
            for d in _FEATURES:
                times["block", dtype, d].append(crew.stages(tasks.block_seconds, middle, d, dtype, block_rows))
            for name in _KERNELS:
                few = (middle, _FEATURES[1], dtype, block_rows, name)
                times["exp", dtype, name].append(crew.stages(tasks.block_seconds, *few))
        for dtype, width in _points(crew, effort, times):
            point = crew.stages(tasks.update_seconds, width, _FEATURES[-1], dtype, block_rows)
            times["update", dtype, width].append(point)
        now = time.perf_counter()
        if now >= end or now + (now - start) > crew.until:
            break
    crew.all(tasks.forget)
    updates = [one for (what, *_), found in times.items() for one in found if what == "update"]
    share = sum(one["processor"] for one in updates) / sum(one["clock"] for one in updates)
    return {dtype: _of_dtype(dtype, times, block_rows, middle) for dtype in _WIDTHS}, min(share, 1.0)


def _points(crew: _Crew, effort: _Effort, times: _Times) -> Iterator[tuple[str, int]]:
    """Dtypes and widths of a round, the narrow ones first: the same in all rounds.

    In the first round a width is left out that takes longer than there is time, by what the one before it took.
    """
    most = 10**9 if psutil.virtual_memory().available > _WIDEST_BYTES * len(crew.addresses) else 1024
    first, took = not any(what == "update" for what, *_ in times), dict.fromkeys(_WIDTHS, (1, 0.0))
    wanted = [(dtype, width) for dtype, widths in _WIDTHS.items() for width in widths[: effort.widths] if width <= most]
    for dtype, width in sorted(wanted, key=lambda point: point[1]):
        before, seconds = took[dtype]
        start = time.perf_counter()
        # blocks grow as the width, Gram matrices as its square
        fits = width <= effort.middle or start + seconds * (width / before) ** 1.5 < crew.until
        if (first and fits) or ("update", dtype, width) in times:
            yield dtype, width
            took[dtype] = width, time.perf_counter() - start


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
    row_bytes = rows.row_bytes
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
    for i in chain([0], (1 + i for i in crew.rounds)):
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


def _solving(effort: _Effort, until: float) -> dict[str, Any]:
    """Rates of this process, with its BLAS threads, after a sweep; of small systems alone where there is no time."""
    rates: dict[int, float] = {}
    before, took = 1, 0.0
    for m in effort.solved:
        if rates and time.perf_counter() + took * (m / before) ** 2 > until:
            break
        # the least: this process is alone, what else runs can only slow it down
        least = math.inf
        for i in range(2 if m > 1024 else 3):
            start = time.perf_counter()
            if i and start + took > until:
                break
            least = min(least, tasks.solve_seconds(m))
            before, took = m, time.perf_counter() - start
        rates[m] = float(m) ** 3 / least
    m, few, many = effort.solved[len(effort.solved) // 2], _FEATURES[1], _FEATURES[-1]
    a, b = (statistics.median(tasks.core_seconds(m, d) for _ in range(3)) / m**2 for d in (few, many))
    slope = max(b - a, 0.0) / (many - few)
    return {"solve": Curve(tuple(rates), tuple(rates.values())), "core": (max(a - slope * few, 0.0), slope)}


def _corpus(path: Path, n_rows: int = 40_000, n_features: int = 784, chunk_rows: int = 10_000) -> Corpus:
    """A corpus of random pixels with classes."""
    info = CorpusInfo("calibrate", classes=tuple(range(tasks.CLASSES)))
    x, y = tasks.pixels(n_rows, n_features), np.arange(n_rows) % tasks.CLASSES
    with CorpusWriter(
        path, n_features=n_features, dtype=x.dtype, columns={"y": y.dtype}, info=info, chunk_rows=chunk_rows
    ) as writer:
        writer.append(x=x, y=y)
    return open_corpus(path)
