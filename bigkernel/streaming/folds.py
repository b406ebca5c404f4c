"""Folds of cross-validation: which fold tests a row, computed from the row itself, the same on every worker.

A fold assignment is plain data that maps a chunk to a number from 0 to count − 1 for each row, −1 for rows that no fold
tests and every fold trains on. In columns made of pairs (train, test) it is −2, `NOT_USED`, for rows in neither.
`SweepSearchCV(cv=…)` takes an assignment of yours: a frozen dataclass with `count` and `of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal, Protocol

import numpy as np

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.streaming.chunk import Chunk

NOT_USED = -2  # the fold of a row that a split neither trains on nor tests


class Folds(Protocol):
    """An assignment of rows to the folds that test them.

    With `reads_rows = False` it needs their numbers, domains, groups and column of folds alone, so that the folds of
    landmarks are known without reading their rows.
    """

    @property
    def count(self) -> int:
        """The number of folds."""

    def of(self, chunk: Chunk) -> Array:
        """Return the fold that tests each row of the chunk, (n,) int64; −1: none."""


@dataclass(frozen=True)
class HashFolds:
    """Folds by a hash of the row number, or of the group, so that all copies of a digit are tested together."""

    reads_rows: ClassVar[bool] = False
    count: int  # number of folds, about equally large for many rows (or groups)
    seed: int = 0
    by: Literal["row", "group"] = "row"

    def of(self, chunk: Chunk) -> Array:
        if self.by == "row":
            ids = np.arange(chunk.start, chunk.start + len(chunk))
        elif chunk.group is None:
            raise DataError("group: folds by group need a column of groups, and the input has none")
        else:
            ids = np.asarray(chunk.group, np.int64)
        return (hash_ids(ids, self.seed) % np.uint64(self.count)).astype(np.int64)


@dataclass(frozen=True)
class ColumnFolds:
    """Folds from the column `fold` of the rows, given or computed before."""

    reads_rows: ClassVar[bool] = False
    count: int

    def of(self, chunk: Chunk) -> Array:
        assert chunk.fold is not None
        return np.asarray(chunk.fold, np.int64)


@dataclass(frozen=True, eq=False)
class DomainFolds:
    """Leave out one domain of `domains` (sorted, (count,)) in turn; rows of other domains are always trained on."""

    reads_rows: ClassVar[bool] = False
    domains: Array

    @property
    def count(self) -> int:
        return len(self.domains)

    def of(self, chunk: Chunk) -> Array:
        if chunk.domain is None:
            raise DataError("domain: folds by domain need a column of domains, and the input has none")
        place: Array = np.minimum(np.searchsorted(self.domains, chunk.domain), self.count - 1)
        return np.where(self.domains[place] == chunk.domain, place, -1)


@dataclass(frozen=True, eq=False)
class SomeFolds:
    """A renumbered subset of folds, all of which train on the rows of the other folds."""

    folds: Folds  # all folds
    among: tuple[int, ...]  # numbers of the chosen folds

    @property
    def reads_rows(self) -> bool:
        return getattr(self.folds, "reads_rows", True)

    @property
    def count(self) -> int:
        return len(self.among)

    def of(self, chunk: Chunk) -> Array:
        """Return the fold of each row of the chunk; numbers below −1 are kept."""
        fold, place = self.folds.of(chunk), np.full(self.folds.count, -1)
        place[list(self.among)] = np.arange(len(self.among))
        return np.where(fold >= 0, place[fold], fold)


@dataclass(frozen=True)
class HeldOut:
    """A single fold of about a share of the rows, or of the groups, by a hash."""

    reads_rows: ClassVar[bool] = False
    count: ClassVar[int] = 1
    share: float  # above 0, below 1
    seed: int = 0
    by: Literal["row", "group"] = "row"

    def of(self, chunk: Chunk) -> Array:
        buckets = 2**20
        return np.where(HashFolds(buckets, self.seed, self.by).of(chunk) < self.share * buckets, 0, -1)


@dataclass(frozen=True, eq=False)
class MapFolds:
    """Folds by coordinates: columns (k,) of rows as stored, before any transform.

    The fold of a place is that of its block in a grid, whose outer blocks have no end, or the number of the nearest
    centre. With a `number` it is this fold alone, whose training rows are a gap away, and if `forward`, before it.
    """

    count: int
    columns: Array
    lower: Array  # (k,) where the first block begins; or centres (count, k)
    size: Array  # (k,) of a block
    folds: Array | None = None  # of each block, an axis for each coordinate; None: nearest centres
    number: int = -1
    gap: Array | float = 0.0
    forward: bool = False

    def of(self, chunk: Chunk) -> Array:
        places = np.nan_to_num(np.asarray(chunk.x[:, self.columns], np.float64))
        fold = self._at(places)
        if self.number < 0:
            return fold
        if self.forward:
            trained = self._at(places + self.gap) < self.number
        elif self.folds is None:  # all of the box around the place is nearer to another centre
            squares, apart = self._squares(places), np.abs(self.lower - self.lower[self.number])
            trained = np.any(squares[:, [self.number]] - squares > 2 * (apart * self.gap).sum(axis=1), axis=1)
        else:  # the box around the place has no part in the fold
            signs = product((-1, 0, 1), repeat=len(self.columns))
            trained = np.all([self._at(places + np.array(one) * self.gap) != self.number for one in signs], axis=0)
        return np.where(fold == self.number, 0, np.where(trained, -1, NOT_USED))

    def _at(self, places: Array) -> Array:
        if self.folds is None:
            return np.asarray(self._squares(places).argmin(axis=1))
        index = np.clip(np.floor((places - self.lower) / self.size), 0, np.array(self.folds.shape) - 1)
        return np.asarray(self.folds[tuple(index.astype(np.int64).T)])

    def _squares(self, places: Array) -> Array:
        return np.asarray(np.square(places[:, None] - self.lower).sum(axis=2))


def hash_ids(ids: Array, seed: int) -> Array:
    """Hash ids (n,) to uint64 by SplitMix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    with np.errstate(over="ignore"):
        z: Array = ids.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + start
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
