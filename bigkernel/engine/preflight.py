"""Checks before the first task, on every worker, for what would fail after hours.

There are workers; they import bigkernel and the driver's versions of its libraries; the input opens, matches the
driver's and is readable; the run directory is shared and writable; disk and memory suffice; BLAS has one thread.
"""

from __future__ import annotations

import platform
import time
import uuid
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import distributed
import numpy as np
import scipy
import zarr
from distributed import Client, Future
from threadpoolctl import threadpool_info

import bigkernel
from bigkernel.config import Settings
from bigkernel.data.atomic_write import require_free
from bigkernel.data.run_directory import Run
from bigkernel.data.zarr_arrays import digest, retry
from bigkernel.engine.cards import HOST_CARD, Card, common_card, find_card
from bigkernel.engine.process import OneBlasThread, Resident, Undisturbed, free_memory, resident
from bigkernel.engine.rows import Rows, ZarrSource
from bigkernel.errors import ConfigError, DataError, StalledError
from bigkernel.kernels.kept_blocks import BLOCKS
from bigkernel.streaming.plan import Memory, Plan, Sharing

_RETRIES = 2  # attempts to read the first row: an unreliable store is not refused


def versions() -> dict[str, str]:
    """Return versions that driver and workers must share, as they exchange pickles and change bits."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "bigkernel": bigkernel.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "zarr": zarr.__version__,
        "distributed": distributed.__version__,
        "codec_pipeline.path of zarr": str(zarr.config.get("codec_pipeline.path")),
    }


def processor() -> str:
    """Return the kind of processor as BLAS sees it: another kind may round differently."""
    kinds = {str(pool.get("architecture")) for pool in threadpool_info() if pool["user_api"] == "blas"}
    return f"{platform.machine()} {' '.join(sorted(kinds))}"


@dataclass(frozen=True)
class WorkerState:
    """The state of a worker before its first task."""

    versions: dict[str, str]
    processor: str
    wrong: list[str]  # reasons why it cannot work
    fingerprints: list[str]  # fingerprints of the stored rows and columns
    resident: Resident
    kept: int  # bytes of blocks that it keeps for this job
    free: int  # bytes that it may still take


def examine(sources: tuple[ZarrSource, ...], run: str | None, token: str, owner: str) -> WorkerState:
    """Examine the worker that this runs on; blocks of other jobs than `owner` are forgotten."""
    BLOCKS.release(but=owner)
    wrong, prints = [], []
    for source in sources:
        there = replace(source, digests=None)  # the fingerprint detects data that differ from the driver's
        try:
            read = partial(_fingerprint, there)
            prints.append(retry(read, times=_RETRIES, passing=lambda error: isinstance(error, OSError)))
        except (OSError, DataError) as error:
            wrong.append(f"the input cannot be read: {error}")
    if run is not None:
        try:
            if (Path(run) / f".preflight.{token}").read_text() != token:
                raise OSError("a different file of the same name exists there")
            (Path(run) / f".preflight.{token}.{uuid.uuid4().hex}").write_text(token)
        except OSError as error:
            wrong.append(f"the run directory {run} is not shared with it, or is not writable: {error}")
    return WorkerState(versions(), processor(), wrong, prints, resident(), BLOCKS.held_bytes(owner), free_memory())


def _fingerprint(source: ZarrSource) -> str:
    """Read the first row of a source, and return its fingerprint.

    In other stores than ours a missing chunk is no error, so that some rows are compared, too: `memory://` is empty in
    another process.
    """
    last = source.shape[0] - 1
    places = {last * place // 4 for place in range(1 if source.foreign is None else 5)} if last >= 0 else ()
    rows = {str(row): source.read(row, row + 1) for row in sorted(places)}
    return source.fingerprint() + digest(rows)


def cards_of(client: Client, config: Settings) -> Card:
    """Return the device of the workers by the name in the settings; see `common_card`, which refuses some.

    `StalledError`: no workers, or they do not answer.
    """
    _held = wait_for_workers(client, 1, config.stall_seconds)
    name = "cuda" if config.device == "auto" else config.device
    try:
        answers = client.run(find_card, name, on_error="return", callback_timeout=config.stall_seconds)
    except OSError as error:  # also if they do not answer in time
        raise StalledError(f"workers did not say what GPU they have ({error})") from error
    cards = {address: answer for address, answer in answers.items() if isinstance(answer, Card)}
    found = common_card(config.device, cards) if cards else Card(name)  # other answers are refused by `check_cluster`
    for address, tasks in client.ncores().items() if found.total else ():
        if tasks > 1:
            what = f"worker {address} runs {tasks} tasks at once, which would all hold arrays on its GPU"
            raise ConfigError(f"{what}; start it with --nthreads 1")
    return found


def check_cluster(
    client: Client, rows: Rows, steps: Plan, config: Settings, run: Run | None = None, owner: str = "",
    card: Card = HOST_CARD,
) -> Memory:  # fmt: skip
    """Return the planned memory of the workers, and the blocks of `owner`; raise an error if they cannot do the job.

    What a worker holds before its first task is what it says, not a constant. `StalledError`: no workers, or they do
    not answer. `ConfigError`: a worker lacks bigkernel, or has other versions of it or of what it computes with.
    `DataError`: a worker cannot read the input, or write the run. `PlanTooLargeError`: the plan does not fit in the
    memory of a worker.
    """
    for _ in range(2):  # a cluster that scales may end an idle worker before it answers
        _held = wait_for_workers(client, 1, config.stall_seconds)  # its result keeps a worker
        if states := ask(client, rows, run, config, owner):
            break
    mine, kind = versions(), processor()
    for address, state in states.items():
        for name, version in state.versions.items():
            if version != mine[name]:
                raise ConfigError(
                    f"worker {address}: found {name} {version}, expected {mine[name]} as on the driver; install the "
                    "same versions, with the same settings of zarr"
                )
        if state.wrong:
            raise DataError(f"worker {address}: {state.wrong[0]}")
        if state.processor != kind:
            warnings.warn(
                f"worker {address} runs on {state.processor}, the driver on {kind}: results may differ in the last "
                "bits from those of another cluster",
                RuntimeWarning,
                stacklevel=2,
            )
    prints = {tuple(state.fingerprints) for state in states.values()}
    if len(prints | {tuple(map(_fingerprint, rows.stored))}) > 1:
        raise DataError(
            f"{rows.name}: expected the same data on all workers and the driver, found different data; "
            "copy or mount it again"
        )
    for plugin in (OneBlasThread(), Undisturbed()):
        client.register_plugin(plugin)
    return _check_memory(client, steps, states, run, config, card)


def _check_memory(
    client: Client, steps: Plan, states: dict[str, WorkerState], run: Run | None, config: Settings, card: Card
) -> Memory:
    """Return the planned memory; raise `PlanTooLargeError` if the peak without blocks exceeds a worker's limit."""
    kept, planned = steps.kept_bytes, dict[str, int]()
    workers = client.scheduler_info(n_workers=-1)["workers"]
    for address, worker in workers.items():
        if address not in states:
            continue  # it joined meanwhile
        state, limit = states[address], worker["memory_limit"]
        sharing = Sharing(worker["nthreads"], len(workers), published=run is not None)
        base = state.resident.base(sharing.tasks) - state.kept
        if limit:
            steps.check(limit, max(base, config.reserved_bytes), sharing)
        planned[address] = steps.worker_bytes(base, sharing)
        # Dask pauses a worker at 80 % of its limit
        room = min(limit * 3 // 4 or state.free, state.free + state.resident.now) - planned[address]
        if card.total:
            room = card.free + state.kept - steps.device_bytes
        kept = min(kept, steps.kept_share(room, config.block_cache, len(workers)))
    here = 0 if card.total else kept  # of the blocks, in main memory
    announced = max((max(states[one].resident.peak, planned[one] + here) for one in planned), default=0)
    return Memory(announced, kept, sum(state.kept for state in states.values()))


def wait_for_workers(client: Client, count: int, seconds: float) -> Future | None:
    """Wait for so many workers; raise `StalledError` if fewer join within these seconds.

    A cluster that scales starts workers for tasks only, and ends those that hold no result: so there is a task if
    workers lack, which is returned.

    `Client.wait_for_workers` replaces the worker table of an in-process cluster while departures are in flight; an
    unknown departure ends the cluster's watch, and its `with` block then ends in a KeyError.
    """
    until, asked = time.monotonic() + seconds, None
    while True:
        known = client.scheduler_info(n_workers=-1)["workers"].values()
        there = sum(worker["status"] == "running" for worker in known)
        if there >= count:
            return asked
        asked = asked or client.submit(int, pure=False)
        if time.monotonic() > until:
            address = client.scheduler.address if client.scheduler else "the scheduler"
            present = f"{there} of {count} workers" if there else "no worker"
            raise StalledError(
                f"{present} connected to {address} within {seconds:g} s; start workers or check their logs"
            )
        time.sleep(0.1)


def ask(client: Client, rows: Rows, run: Run | None, config: Settings, owner: str) -> dict[str, WorkerState]:
    """Examine all remaining workers; return their states by address."""
    token = uuid.uuid4().hex
    try:
        if run is not None:
            (run.root / f".preflight.{token}").write_text(token)
        answers = client.run(
            examine,
            rows.stored,
            None if run is None else run.path,
            token,
            owner,
            on_error="return",
            callback_timeout=config.stall_seconds,
        )
        if run is not None and len(list(run.root.glob(f".preflight.{token}.*"))) < sum(
            isinstance(answer, WorkerState) and not answer.wrong for answer in answers.values()
        ):
            raise DataError(f"{run.path}: files written by workers are not visible to the driver; share the directory")
    except TypeError as error:
        raise DataError(f"{rows.name}: cannot be sent to other processes ({error}); use a store of files") from error
    except TimeoutError as error:
        raise StalledError(f"workers did not answer within {config.stall_seconds} s before the first task") from error
    except OSError as error:
        raise StalledError(f"the cluster was lost before the first task ({error})") from error
    finally:
        if run is not None:
            for probe in run.root.glob(f".preflight.{token}*"):
                probe.unlink(missing_ok=True)
    there = client.scheduler_info(n_workers=-1)["workers"]
    for address, answer in answers.items():
        if isinstance(answer, OSError) and there.get(address, {}).get("status") != "running":
            continue  # it was lost meanwhile
        if isinstance(answer, BaseException) and "bigkernel" in repr(answer) and "No module" in repr(answer):
            raise ConfigError(
                f"worker {address} cannot import bigkernel {bigkernel.__version__} ({answer}); install it there"
            )
        if isinstance(answer, BaseException):
            raise StalledError(f"worker {address} failed before the first task: {answer!r}")
    return {address: answer for address, answer in answers.items() if isinstance(answer, WorkerState)}


def require_disk(run: Run, steps: Plan, workers: int) -> None:
    """Raise `PlanTooLargeError` if the run's disk cannot hold the partial results that wait for merging."""
    count = len(steps.segments)
    waiting = min(2 * count, 2 * workers + count.bit_length() + 3)
    require_free(run.path, 2**20 + waiting * (steps.partial_bytes + 2**15), "storage of partial results")
