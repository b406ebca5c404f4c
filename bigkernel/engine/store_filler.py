"""Stores that a sweep fills: each task writes whole chunks of its own, and an interrupted sweep can be gone on with.

Receipts of a resumed sweep say which segments were finished, not that their chunks are still on disk: they are read
back through their checksums before the store is published, and written again where one is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import zarr

from bigkernel.data import zarr_arrays
from bigkernel.data.atomic_write import token_of
from bigkernel.data.chunk_check import look
from bigkernel.engine.context import forget, in_force
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import Swept, plan_sweep, sweep
from bigkernel.errors import DataError
from bigkernel.events.kinds import Incident
from bigkernel.events.scope import emit
from bigkernel.statistics.moments import Statistic


class ChunkWriter(Statistic, Protocol):
    """A statistic that writes whole chunks of `chunk_rows` rows into the unpublished group at `path`.

    Its field `path` is `identity.NOT_COMPARED`, so that the same job is known again in another place.
    """

    @property
    def path(self) -> str:
        """Of the group."""

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk of the group."""


def kept_for_run(what: str) -> tuple[str, bool]:
    """`keep` and `resume` of `disk.publishing` for a store that a sweep for `what` fills under the run in force.

    Without a run: "" and False; nothing is kept.
    """
    job = in_force().job
    if job is None:
        return "", False
    return token_of(job.path), job.resume and Path(job.path, what, "manifest.json").exists()


def require_owned(bounds: Sequence[int], chunk_rows: int) -> None:
    """Refuse steps of a sweep that would make two tasks write one chunk.

    Parameters
    ----------
    bounds : row ids where steps begin, the last the number of rows
    chunk_rows : rows of a chunk of the store

    Raises
    ------
    DataError
        Names the first boundary that is no multiple of `chunk_rows`.
    """
    for row in bounds[:-1]:
        if row % chunk_rows:
            raise DataError(
                f"a step of the sweep begins at row {row:,}, inside a chunk of {chunk_rows:,} rows that another task "
                "writes too; its chunks must begin at multiples of that"
            )


def fill(rows: Rows, writer: ChunkWriter, *, what: str) -> Swept:
    """Sweep `rows` through `writer`, until every chunk of its store is there and reads back.

    Raises
    ------
    ChunkMissing
        A chunk is not there although every row was swept.
    DataError
        The sweep's steps do not begin where chunks of the store do.
    """
    for segment in plan_sweep(rows, writer).segments:
        # the end of a segment is where another task begins
        require_owned(segment.bounds if segment.stop == len(rows) else (*segment.bounds, len(rows)), writer.chunk_rows)
    swept = sweep(rows, writer, what=what)
    if any(receipt.resumed for receipt in swept.receipts):
        damage = _first_damage(writer.path)
        if damage is not None:
            emit(Incident("damage", f"{what}: all rows are written again, for what was kept is damaged ({damage})"))
            forget(what)
            swept = sweep(rows, writer, what=what)
    group = zarr.open_group(writer.path, mode="r", zarr_format=3)
    for name in zarr_arrays.array_names(group):
        zarr_arrays.require_chunks(zarr_arrays.open_array(group, name))
    return swept


def _first_damage(path: str) -> DataError | None:
    group = zarr.open_group(path, mode="r", zarr_format=3)
    for name in zarr_arrays.array_names(group):
        # any value may be written; only bytes that are not as they were written are damage
        for looked in look(zarr_arrays.open_array(group, name), name, lambda start, values: ""):
            if looked.damage:
                return looked.damage
    return None
