"""Rows on disk by leaf, for fits of leaves: written by the tasks of a sweep, chunk by chunk, and read by leaf.

The file of a chunk holds its rows ordered by leaf, where those of each leaf end, and their CRC-32. It appears complete
or not at all. Workers that write it need no scikit-learn. Shapes: n rows, d features, L leaves.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from bigkernel.arrays import Array, DType
from bigkernel.data.atomic_write import replacing
from bigkernel.engine.rows import Rows, Source
from bigkernel.errors import DataError
from bigkernel.statistics.blend import Tree
from bigkernel.statistics.moments import Targets, require_weights
from bigkernel.statistics.statistic import Shapes, Statistic
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import NOT_COMPARED, Accumulator, Footprint

COLUMNS = ("y", "weight", "domain")  # that fits of leaves use


@dataclass(frozen=True, eq=False)
class LeafRows(Statistic):
    """A statistic that writes the rows of every chunk, ordered by leaf; accumulates the number of `rows` (L,)."""

    prepares: ClassVar[bool] = True
    tree: Tree
    targets: Targets
    path: str = field(metadata=NOT_COMPARED)
    starts: tuple[int, ...]  # first row of every chunk
    dtype: DType  # of a row as written, with the fields x, y, …, or of its number
    skips: bool  # bad rows have weight 0, and are left out

    @classmethod
    def of(cls, tree: Tree, targets: Targets, path: Path, rows: Rows, bounds: tuple[int, ...]) -> LeafRows:
        """Return the statistic for rows between bounds."""
        written: dict[str, Source] = {"x": rows.x} | {key: rows.columns[key] for key in COLUMNS if key in rows.columns}
        fields = [(name, source.dtype, source.shape[1:]) for name, source in written.items()]
        dtype: DType = np.dtype(np.int64) if rows.in_memory else np.dtype(fields)
        return cls(tree, targets, str(path), bounds[:-1], dtype, rows.bad_rows == "skip")

    def shapes(self) -> Shapes:
        return {"rows": (self.tree.n_leaves,)}

    def footprint(self, block_rows: int) -> Footprint:
        d, most = self.tree.directions.shape[1], int(np.diff(self.starts).max(initial=block_rows))
        work = most * (16 * d + 4 * self.dtype.itemsize + 64)
        return Footprint(2.0 * d * self.tree.n_leaves.bit_length(), self.partial_bytes, work)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        self.targets.labelled_in(chunk)  # errors name rows of the input, not of a leaf
        if chunk.weight is not None:
            require_weights(np.asarray(chunk.weight, np.float64), chunk.start)
        x = chunk.on_host().load(slice(None), self.tree.directions.shape[1], np.float64)
        members = [places for places, _ in self.tree.leaves(x)]
        if self.skips and chunk.weight is not None:
            members = [places[chunk.weight[places] > 0] for places in members]
        counts = np.array([len(places) for places in members])
        order = np.concatenate(members)
        if self.dtype.names is None:
            written: Array = order + chunk.start
        else:
            written = np.empty(len(order), self.dtype)
            for name in self.dtype.names:
                written[name] = getattr(chunk, name)[order]
        with chunk.work.stage("write"):
            self._write(chunk.start, counts, written)
        total["rows"] += counts

    def _write(self, start: int, counts: Array, rows: Array) -> None:
        if not Path(self.path).is_dir():
            raise DataError(
                f"{self.path}: not found on a worker; fit inside executing(run=…), with a directory that all machines "
                "share"
            )
        ends = np.cumsum(counts)
        sums = [
            zlib.crc32(rows[end - count : end].view(np.uint8).data, start)  # no other chunk has this sum
            for count, end in zip(counts, ends, strict=True)
        ]
        with replacing(self._file(start)) as scratch, open(scratch, "wb") as file:
            file.write(np.array([ends, sums], np.int64).data)
            file.write(rows.data)

    def _file(self, start: int) -> Path:
        return Path(self.path) / f"{start}.rows"

    def is_complete(self) -> bool:
        """Return whether the file of every chunk is there, with as many bytes as it says."""
        for start in self.starts:
            try:
                ends, _ = self._places(start)
                size = self._file(start).stat().st_size
            except (OSError, DataError):
                return False
            if size != 16 * self.tree.n_leaves + int(ends[-1]) * self.dtype.itemsize:
                return False
        return True

    def _places(self, start: int) -> Array:
        """Return where the rows of each leaf end in the file of a chunk, and their CRC-32, (2, L)."""
        places = np.fromfile(self._file(start), np.int64, 2 * self.tree.n_leaves)
        if len(places) != 2 * self.tree.n_leaves:
            raise DataError(f"{self._file(start)}: expected the rows of {self.tree.n_leaves} leaves, found fewer bytes")
        return places.reshape(2, -1)

    def rows_of(self, leaf: int) -> Array:
        """Read the rows of a leaf in their order, (r,) of `dtype`."""
        pieces = [np.empty(0, self.dtype)]
        for start in self.starts:
            ends, sums = self._places(start)
            first, end = int(ends[leaf - 1]) if leaf else 0, int(ends[leaf])
            at = 16 * self.tree.n_leaves + first * self.dtype.itemsize
            piece = np.fromfile(self._file(start), self.dtype, end - first, offset=at)
            if zlib.crc32(piece.view(np.uint8).data, start) != sums[leaf]:
                raise DataError(
                    f"{self._file(start)}: the rows of leaf {leaf + 1} were changed; remove this file and resume, "
                    "which writes it again"
                )
            pieces.append(piece)
        return np.concatenate(pieces)
