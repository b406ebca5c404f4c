"""Blocks of features that stay in the memory of the process that built them, for later sweeps of the same rows.

A solver that iterates needs the same blocks in every sweep. A block is a function of the map and of its rows, so that a
kept block has the bits of a new one: it never matters which blocks a process holds. Those that do not fit into
`Workspace.kept_bytes`, or were lost with their process, are built again.
"""

from __future__ import annotations

import hashlib
import math
import threading
import uuid
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array, DType
from bigkernel.kernels.feature_maps import SingleMap
from bigkernel.kernels.random_fourier import BlockMap
from bigkernel.streaming.chunk import Chunk, MapCost
from bigkernel.streaming.devices import NUMPY, converted, dtype_of
from bigkernel.streaming.plan import NOT_COMPARED


class BlockStore:
    """The blocks that this process keeps, by owner and rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[str, dict[Hashable, Array]] = {}
        self._bytes: dict[str, int] = {}

    def held_bytes(self, owner: str | None = None) -> int:
        """Return the bytes of all blocks, or of those of one owner."""
        with self._lock:
            return sum(self._bytes.values()) if owner is None else self._bytes.get(owner, 0)

    def find(self, owner: str, rows: Hashable) -> Array | None:
        """Return a block (b, p), not to be changed, or None if it is not kept."""
        return self._blocks.get(owner, {}).get(rows)

    def keep(self, owner: str, rows: Hashable, block: Array, most_bytes: int) -> None:
        """Keep a copy of a block, if no more than `most_bytes` are then held; blocks of other owners give way."""
        with self._lock:
            dtype = dtype_of(block)
            own = self._bytes.get(owner, 0) + math.prod(block.shape) * dtype.itemsize
            if own > most_bytes or rows in self._blocks.get(owner, {}):
                return
            for other in [name for name in self._bytes if name != owner]:
                if own + sum(held for name, held in self._bytes.items() if name != owner) > most_bytes:
                    del self._blocks[other], self._bytes[other]
            copy = self._blocks.setdefault(owner, {})[rows] = converted(block, dtype, copy=True)
            if isinstance(copy, NUMPY):
                copy.setflags(write=False)
            self._bytes[owner] = own

    def release(self, owner: str | None = None, *, but: str | None = None) -> None:
        """Forget the blocks of an owner, or of all owners but one."""
        with self._lock:
            for name in [name for name in self._blocks if (name == owner if owner else name != but)]:
                del self._blocks[name], self._bytes[name]


BLOCKS = BlockStore()


@dataclass(frozen=True, eq=False)
class KeptMap(SingleMap):
    """A map whose blocks are kept as far as the process has room; with a shift, which is subtracted afterwards."""

    features: BlockMap  # without a shift
    shift: Array | None = None  # (p,)
    # of the blocks: a fit, whose sweeps of the same rows share them
    owner: str = field(default_factory=lambda: uuid.uuid4().hex, metadata=NOT_COMPARED)
    reserved_bytes: int = field(default=0, metadata=NOT_COMPARED)  # memory of the driver that the solver needs itself

    @property
    def width(self) -> int:
        return self.features.width

    @property
    def dtype(self) -> DType:
        return self.features.dtype

    @property
    def cost(self) -> MapCost:
        """Cost where no block is kept."""
        return self.features.cost

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a block."""
        return self.width * self.dtype.itemsize

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        phi, most = None, chunk.work.kept_bytes
        if most:
            rows = chunk.start, *_bounds(block)
            phi = BLOCKS.find(self.owner, rows)
        if phi is None:
            phi = self.features.block(chunk, block, spare)
            if most:
                BLOCKS.keep(self.owner, rows, phi[:, : self.width], most)
        elif spare or self.shift is not None:
            with chunk.work.stage("block"):
                out = chunk.work.buffer("block", (phi.shape[0], self.width + spare), self.dtype)
                out[:, : self.width], out[:, self.width :] = phi, 0
                phi = out
        if self.shift is not None:
            with chunk.work.stage("exp"):
                values = phi[:, : self.width]
                values -= chunk.work.device.once(self.shift)
        return phi


SolverMap = BlockMap | KeptMap
"""The maps of solvers that sweep the rows several times."""


def kept_map(statistic: object) -> KeptMap | None:
    """Return the map of a statistic whose blocks are kept, or None."""
    features = getattr(statistic, "features", None)
    return features if isinstance(features, KeptMap) else None


def _bounds(block: slice | Array) -> tuple[int, int] | tuple[str]:
    """Return the rows of a block in a chunk, rising, as a short key."""
    if isinstance(block, slice):
        return block.start, block.stop
    if len(block) and block[-1] - block[0] == len(block) - 1:
        return int(block[0]), int(block[-1]) + 1
    return (hashlib.blake2b(np.ascontiguousarray(block).tobytes(), digest_size=16).hexdigest(),)
