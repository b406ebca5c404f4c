"""The overhead of a segment: sweeps of segments that do next to nothing, on hundreds of workers.

A segment says how long it takes, for a task has several short ones (`engine.dask_executor.segments_a_task`): those of
most sweeps here are a task each, and sixteen are one where the least is measured.

Scheduler, driver and workers are processes of their own, joined by TCP on loopback as on a cluster; hundreds of Dask
workers share one process, for memory. The processor's time of each process tells what part is whose; the scheduler's is
the serial resource that bounds how many workers are of use. What a sweep costs whatever its segments (examining the
workers, planning) is taken off by a line fitted to two or three numbers of segments.
"""

import asyncio
import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, Scheduler, Worker

from bigkernel.engine.dask_executor import MOST_SEGMENTS
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import StalledError
from bigkernel.statistics.statistic import Shapes, Statistic
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint
from pipelines.shared.blank import Blank

START_SECONDS = 120.0  # most seconds for processes to start
CONNECTIONS = 24  # open connections of a worker to others
LONG_FLOPS = 1e12  # flops of a segment that is a task of its own
SHORT_SEGMENTS = (256, 768)  # segments of sweeps whose tasks have sixteen each, on `SHORT_WORKERS`
SHORT_WORKERS = 2
ROLES = ("driver", "scheduler", "workers")
_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "200ms",
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.scheduler.http.routes": ["distributed.http.health"],
    "distributed.worker.http.routes": [],
}


@dataclass(frozen=True)
class Count(Statistic):
    """A statistic of eight bytes: the number of rows. It reports so many flops for each row."""

    flops_per_row: float = 1.0

    def shapes(self) -> Shapes:
        """Return the shape of the count."""
        return {"rows": (1,)}

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        """Add the rows of a chunk."""
        total["rows"] += len(chunk)

    def footprint(self, block_rows: int) -> Footprint:
        """Return eight bytes and the reported flops."""
        return Footprint(self.flops_per_row, self.partial_bytes, 8)


@dataclass(frozen=True)
class Cost:
    """Seconds of one sweep."""

    segments: int  # number of segments
    seconds: float  # elapsed
    processor: dict[str, float]  # processor time by process: "driver", "scheduler" and "workers"


def count_rows(client: Client, segments: int, *, run: Path | None, long: bool = True) -> Cost:
    """Sweep so many segments of one row each; `long`: each is a task, as if segments took seconds."""
    statistic = Count(LONG_FLOPS if long else 1.0)
    with dask.config.set({"bigkernel.segment-rows": 1, "bigkernel.min-segments": 1}):
        before, start = processor_seconds(client), time.perf_counter()
        swept = sweep(Rows(Blank((segments, 1), 1)), statistic, client=client, run=run, what="count")
        seconds, after = time.perf_counter() - start, processor_seconds(client)
    if len(swept.receipts) != segments or swept.total["rows"][0] != segments:
        raise RuntimeError(f"a sweep of {segments} segments counted {swept.total['rows'][0]} rows")
    return Cost(segments, seconds, {role: after[role] - before[role] for role in ROLES})


def processor_seconds(client: Client) -> dict[str, float]:
    """Return the processor time used by driver, scheduler and workers."""
    first = min(client.scheduler_info(n_workers=-1)["workers"])
    return {
        "driver": time.process_time(),
        "scheduler": float(client.run_on_scheduler(time.process_time)),
        "workers": float(client.run(time.process_time, workers=[first])[first]),
    }


@contextmanager
def crowd(workers: int) -> Iterator[Client]:
    """Yield a client of a scheduler and many workers, one task each, in two further processes."""
    context = multiprocessing.get_context("spawn")
    with (
        _process(context, _scheduler) as address,
        _process(context, _workers, address, workers),
        Client(address, timeout=START_SECONDS) as client,
    ):
        wait_for_workers(client, workers, START_SECONDS)
        yield client


@contextmanager
def _process(context: Any, function: Callable[..., None], *args: Any) -> Iterator[str]:
    """Run `function(connection, …)` in a process for the block; yield what it sends when it is ready."""
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_SECONDS):
            raise StalledError(f"{function.__name__.strip('_')}: not started within {START_SECONDS:.0f} s")
        yield str(ours.recv())
    finally:
        ours.close()  # ends the process
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _scheduler(pipe: Connection) -> None:
    """Run a scheduler on loopback."""

    async def serve() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler:
            pipe.send(scheduler.address)
            await _closed(pipe)

    _run(serve())


def _workers(pipe: Connection, address: str, count: int) -> None:
    """Run workers in one process, which share its interpreter."""

    async def serve() -> None:
        with tempfile.TemporaryDirectory(prefix="bigkernel-crowd-") as scratch:
            made = [Worker(address, nthreads=1, memory_limit=0, local_directory=scratch) for _ in range(count)]
            await asyncio.gather(*made)
            for worker in made:  # connecting all to all would exceed the limit of open files
                worker.rpc.limit = CONNECTIONS
            pipe.send("ready")
            await _closed(pipe)
            await asyncio.gather(*(worker.close() for worker in made))

    _run(serve())


def _run(serving: Coroutine[Any, Any, None]) -> None:
    # hundreds of workers would log a line each
    logging.getLogger("distributed").setLevel(logging.WARNING)
    with dask.config.set(_QUIET):
        asyncio.run(serving)


async def _closed(pipe: Connection) -> None:
    """Wait until the other end of the pipe is closed."""
    await asyncio.to_thread(_wait, pipe)


def _wait(pipe: Connection) -> None:
    try:
        pipe.recv()
    except (EOFError, OSError):
        return


def line(costs: Sequence[Cost]) -> dict[str, float]:
    """Fit seconds per segment by least squares over the sweeps: `seconds` by process, and `fixed`."""
    counts = np.array([cost.segments for cost in costs], np.float64)
    if len(set(counts)) < 2:
        raise ValueError(f"a line: expected at least two numbers of segments, found {sorted(set(counts))}")
    seconds = {"seconds": [cost.seconds for cost in costs]}
    seconds |= {role: [cost.processor[role] for cost in costs] for role in ROLES}
    slopes = {name: np.polyfit(counts, np.array(values), 1) for name, values in seconds.items()}
    return {**{name: float(slope) for name, (slope, _) in slopes.items()}, "fixed": float(slopes["seconds"][1])}


def measure_short() -> dict[str, Any]:
    """Measure segments of which sixteen are one task; return a record."""
    with crowd(SHORT_WORKERS) as client:
        count_rows(client, SHORT_SEGMENTS[0], run=None, long=False)  # workers have imported everything
        costs = [count_rows(client, count, run=None, long=False) for count in SHORT_SEGMENTS]
    return {"task": MOST_SEGMENTS, "run": False, **line(costs)}


def measure(
    workers: int, counts: Sequence[int], *, out: Path, update: Callable[[int, int | None], None]
) -> list[dict[str, Any]]:
    """Measure segments that are tasks of their own, without and with a run directory; return records as `line` does."""
    results: dict[bool, list[Cost]] = {False: [], True: []}
    done = 0
    with crowd(workers) as client:
        # workers are connected and have imported everything
        count_rows(client, workers, run=None)
        # every round measures both cases, so that a slow minute affects both
        for count in counts:
            for published, costs in results.items():
                with tempfile.TemporaryDirectory(dir=out) as scratch:
                    costs.append(count_rows(client, count, run=Path(scratch, "run") if published else None))
                done += 1
                update(done, 2 * len(counts))
    return [{"task": 1, "run": published, **line(costs)} for published, costs in results.items()]
