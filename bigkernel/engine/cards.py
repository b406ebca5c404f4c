"""What computes the blocks of a process, processors or a GPU: what it is, what a sweep needs, and what is refused.

A device is a name, "cpu", "cuda", or "auto", which is "cuda" where this process or every worker has a GPU that it can
use. It belongs to an execution, never to an estimator. No library is loaded for "cpu" (`streaming.devices`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from bigkernel.config import DEFAULTS, Settings
from bigkernel.errors import ConfigError, PlanTooLargeError
from bigkernel.kernels.given import computed_here
from bigkernel.kernels.on_device import DEVICE_ORDER
from bigkernel.streaming.devices import Device, device_of
from bigkernel.streaming.plan import Plan

CPU = "cpu"
BLOCK_BYTES = 2**29  # of a block on a device, whose products are then as fast as larger ones
FEWEST_ROWS, MOST_ROWS = 2048, 65_536  # of such a block
STEP_BYTES = 2**26  # of rows that are copied to a device at once
SEGMENT_ROWS = 2**20  # of a segment, whose sums come down once
CONTEXT_BYTES = 1_500_000_000  # of a CUDA context, and of workspaces of its libraries
_FIXED = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # workspaces of cuBLAS, for the same bits
# variables that round products
_INEXACT = ("CUBLAS_EMULATE_", "CUBLAS_EMULATION_", "NVIDIA_TF32_OVERRIDE", "CUPY_TF32")


@dataclass(frozen=True)
class Card:
    """A device as a process finds it."""

    device: str = CPU  # its name
    model: str = ""  # of the GPU; empty: main memory
    uuid: str = ""
    versions: str = ""  # of the library, CUDA and cuBLAS
    total: int = 0  # bytes of its memory
    free: int = 0  # of these, what the process may take
    wrong: str = ""  # why it cannot be used

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.device, self.model, self.versions)))

    def require(self, where: str = "") -> Card:
        """Return the card; raise `ConfigError` if it cannot be used."""
        if self.wrong:
            raise ConfigError(f"{where}{self.wrong}")
        return self


HOST_CARD = Card()


def find_card(name: str) -> Card:
    """Return the device of a name in this process, "auto" as "cuda" or "cpu"; its `wrong` says what is."""
    if name == CPU:
        return HOST_CARD
    if name == "auto":
        found = find_card("cuda")
        return HOST_CARD if found.wrong else found
    os.environ.setdefault(*_FIXED)  # before CUDA starts
    try:
        device = device_of(name)
    except (ConfigError, ImportError) as error:
        return Card(name, wrong=str(error))
    rounding = [key for key, value in os.environ.items() if key.startswith(_INEXACT) and value not in ("", "0")]
    if getattr(device.xp, "get_float32_matmul_precision", lambda: "highest")() != "highest":
        rounding.append('torch.set_float32_matmul_precision other than "highest"')
    wrong = f"device {name!r}: moments need exact products, and {rounding[0]} rounds them; unset it" if rounding else ""
    if not device.total_bytes:
        return Card(name, versions=_versions(device), wrong=wrong)
    of_card = device.xp.cuda.get_device_properties(device.place)
    # what the library has reserved, but not given to arrays, is free too
    free = device.free_bytes + device.xp.cuda.memory_reserved(device.place) - device.held_bytes
    return Card(name, of_card.name, str(of_card.uuid), _versions(device), device.total_bytes, int(free), wrong)


@cache
def _versions(device: Device) -> str:
    """Return the versions of the library of a device, of CUDA and of cuBLAS, as they may move the last bits."""
    built, found = getattr(getattr(device.xp, "version", None), "cuda", None), []
    for name in (device.xp.__name__.rpartition(".")[2], "nvidia-cublas-cu12", "nvidia-cublas"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join([*found, f"CUDA {built}"] if built else found)


def common_card(name: str, cards: Mapping[str, Card]) -> Card:
    """Return the device of all workers, by address, with the least free memory.

    `ConfigError`: one has none that it can use, two have the same GPU, or their models or versions differ.
    """
    if name == CPU or (name == "auto" and any(card.wrong for card in cards.values())):
        return HOST_CARD
    (first, one), owners = next(iter(cards.items())), dict[str, str]()
    for address, card in cards.items():
        card.require(f"worker {address}: ")
        if str(card) != str(one):
            raise ConfigError(f"worker {first} has {one}, and {address} has {card}; use one kind of GPU in a cluster")
        if card.uuid and (other := owners.setdefault(card.uuid, address)) != address:
            raise ConfigError(
                f"workers {other} and {address} have the same GPU ({card.model}, {card.uuid}), which would hold the "
                "arrays of both; start one worker a GPU, each with CUDA_VISIBLE_DEVICES of its own, as dask-cuda does"
            )
    return min(cards.values(), key=lambda card: card.free)


# -- what a sweep needs of it ------------------------------------------------------------------------------------------


def on_device(config: Settings, row_bytes: int, *, writes: bool) -> Settings:
    """Return the settings of a sweep on a device, by the bytes of a row of its blocks, never by the memory of a card.

    Those that nobody set become large blocks and steps, and few long segments; what `writes` chunks keeps these.
    """
    if config.device == CPU:
        return config
    chosen = {"block_rows": min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_BYTES // max(1, row_bytes)))}
    steps = {"chunk_bytes": STEP_BYTES, "segment_rows": SEGMENT_ROWS, "min_segments": 1}
    unset = {name for name in (*chosen, *steps) if getattr(config, name) == DEFAULTS[name.replace("_", "-")]}
    if not writes and unset >= {*steps}:
        chosen |= steps
    return replace(config, **{name: chosen[name] for name in chosen if name in unset})  # type: ignore[arg-type]


def needed_bytes(steps: Plan, share: float = 1.0) -> int:
    """Return the memory of a device for a sweep and a solve with a share of the landmarks, without kept blocks."""
    itemsize, row_bytes = 8 if steps.dtype == "float64" else 4, int(share * steps.row_bytes)
    m = int(share * steps.width) or row_bytes // itemsize
    # fewer columns: blocks of more rows
    rows = steps.block_rows if share == 1 else max(steps.block_rows, min(MOST_ROWS, BLOCK_BYTES // max(1, row_bytes)))
    # Φ, in float64 too where its sums are; Z
    block = min(rows, steps.chunk_rows) * row_bytes + m * (steps.n_features + 2) * itemsize
    # Σ BᵀB, and of a panel of m/8 columns; BᵀB of some rows, or later the core, G + αK and its factor
    sums = int(share**2 * steps.partial_bytes)
    beside = max(sums, 3 * 8 * m * m if steps.width and m >= DEVICE_ORDER else 0)
    return block + steps.chunk_bytes + sums + m * m * bool(steps.width) + beside + CONTEXT_BYTES


def check_card(steps: Plan, card: Card) -> None:
    """Raise `PlanTooLargeError` with the landmarks that would fit, unless a sweep fits into the memory of a card."""
    if not card.total or steps.device_bytes <= card.free:
        return
    room = card.free * 99 // 100  # some columns of a block are not of landmarks
    most = next((percent for percent in range(99, 0, -1) if needed_bytes(steps, percent / 100) <= room), 0)
    count = f", {steps.width * most // 100:,}" if steps.width else ""
    advice = f"use at most about {most}% of the landmarks{count}" if most else "use another device"
    raise PlanTooLargeError(
        f"device {card.device!r}: a sweep needs {steps.device_bytes / 1e9:,.1f} GB of {card.model}, which has "
        f"{card.free / 1e9:,.1f} of {card.total / 1e9:,.1f} GB free: {advice}, or smaller blocks "
        f"(bigkernel.block-rows, now {steps.block_rows:,})"
    )


def refuse_kernels(statistic: object, device: str) -> None:
    """Raise `ConfigError` for a kernel in a statistic that is computed by functions of the host."""
    for kernel in computed_here(statistic) if device != CPU else ():
        what = f"device {device!r}: the {kernel.formula()} kernel is computed on the host"
        raise ConfigError(f"{what}; use device='cpu', or another kernel")


@contextmanager
def limited(name: str, most_bytes: int, what: str) -> Iterator[None]:
    """Let a device give a block so many more bytes (0: all); `PlanTooLargeError` for `what` if there are none left."""
    device = device_of(name)
    device.limit(device.held_bytes + most_bytes if most_bytes else device.total_bytes)
    try:
        yield
    except Exception as error:
        # of PyTorch and CuPy, and of the libraries of CUDA inside
        if type(error).__name__ != "OutOfMemoryError" and "ALLOC_FAILED" not in str(error):
            raise
        planned = f" of the {most_bytes / 1e9:,.1f} GB that were planned" if most_bytes else ""
        raise PlanTooLargeError(
            f"{what}: device {name!r} has no memory left{planned}: {error}; use fewer landmarks, "
            "smaller blocks (bigkernel.block-rows) or a device of your own; a run keeps what is finished"
        ) from error
    finally:
        device.limit(device.total_bytes)
