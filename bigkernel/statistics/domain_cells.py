"""Sums of features by domain and class, as additional targets of a sweep.

A cell is a domain together with a class, or with no label. With one-hot cells as targets, the moments of a map φ
contain, in C (p × cells) and t (cells), the sums Σ w φ and the weights Σ w of every cell, which is all that DICA, joint
distribution adaptation and adaptation regularization need of domains and classes. Shapes: n rows of a
chunk, p columns of φ, G domains, k classes, G(k + 1) cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bigkernel.arrays import Array, Index
from bigkernel.errors import DataError
from bigkernel.statistics.moments import MomentStatistic, Targets, require_labels
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds

MOST_CELLS = 4096  # each is a column of C


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of rows: g·(k + 1) + c for class c of domain g, with c = k for rows without a label."""

    # (G,) sorted values of the column `domain`; None without such a column: labelled rows are domain 0, others domain 1
    domains: Array | None
    # (k,) sorted labels of the column `y`; empty: labels are not read, k = 0. −1 and NaN mark rows without a label.
    classes: Array
    position: Array | None = None  # index of each of `classes` among the k classes; None: its own index

    def __post_init__(self) -> None:
        if self.width > MOST_CELLS:
            raise DataError(
                f"domain: {self.n_domains:,} domains of {self.n_classes:,} classes and unlabelled rows give "
                f"{self.width:,} cells, more than {MOST_CELLS:,}; merge domains"
            )

    @property
    def n_domains(self) -> int:
        return 2 if self.domains is None else len(self.domains)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def width(self) -> int:
        """The number of cells, G(k + 1)."""
        return self.n_domains * (self.n_classes + 1)

    def of(self, chunk: Chunk, block: Index = slice(None)) -> Array:
        """Return the cell of each row of a block, (b,) int64; `DataError` for missing columns and unknown values."""
        label = self.label(chunk, block)
        return self.domain(chunk, block, label) * (self.n_classes + 1) + label

    def label(self, chunk: Chunk, block: Index = slice(None)) -> Array:
        """Return the class index of each row, (b,) int64, k for rows without a label; raise as `of` does."""
        if not self.n_classes:
            return np.zeros(len(np.arange(len(chunk))[block]), np.int64)
        y = require_labels(chunk)[block]
        # the class next to a label is its own, or the label is missing or strange
        place = np.minimum(np.searchsorted(self.classes, y), self.n_classes - 1)
        known = self.classes[place] == y
        missing = ~known & (y == -1) if y.dtype.kind in "if" else np.zeros(len(y), bool)
        if y.dtype.kind == "f":
            missing |= np.isnan(y)
        self._require(known | missing, chunk, block, "y", "label", y, "classes")
        return np.where(missing, self.n_classes, place if self.position is None else self.position[place])

    def domain(self, chunk: Chunk, block: Index = slice(None), label: Array | None = None) -> Array:
        """Return the domain index of each row, (b,) int64; `label`: the result of `label` if known."""
        if self.domains is None:
            label = self.label(chunk, block) if label is None else label
            return np.asarray(label == self.n_classes, np.int64)
        if chunk.domain is None:
            raise DataError("domain: expected a column of domains, found none")
        values = chunk.domain[block]
        place = np.minimum(np.searchsorted(self.domains, values), self.n_domains - 1)
        self._require(self.domains[place] == values, chunk, block, "domain", "domain", values, "domains")
        return place.astype(np.int64)

    def _require(
        self, valid: Array, chunk: Chunk, block: Index, column: str, what: str, values: Array, of: str
    ) -> None:
        if not valid.all():
            first = int(np.argmin(valid))
            row = chunk.start + int(np.arange(len(chunk))[block][first])
            raise DataError(f"{column}: row {row} has the {what} {values[first]}, which is not one of the {of}")


@dataclass(frozen=True, eq=False)
class CellTargets(Targets):
    """The classes of `cells` as targets; both take −1, unless it is a class, and NaN as unlabelled."""

    cells: Cells = field(kw_only=True)


def cell_targets(cells: Cells) -> CellTargets:
    """Return the classes of cells as targets."""
    return CellTargets(cells.n_classes, cells.classes, cells.position, cells=cells)


@dataclass(frozen=True, eq=False)
class CellMomentStatistic(MomentStatistic):
    """Moments of a feature map with one-hot cells as targets: C (p, cells) holds Σ w φ, t (cells) Σ w."""

    targets: Targets | None = field(init=False, default=None)
    unlabelled: str = field(init=False, default="drop")
    folds: Folds | None = field(init=False, default=None)
    cells: Cells

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", Targets(self.cells.width))

    def _split(self, chunk: Chunk) -> list[Array | None]:
        return [None]

    def _encode(self, chunk: Chunk, block: Index, group: int, values: Array) -> None:
        values[...] = 0
        values[np.arange(len(values)), self.cells.of(chunk, block)] = 1


@dataclass(frozen=True, eq=False)
class CellSums:
    """Sums of features and weights by domain and class, from the moments of a `CellMomentStatistic`."""

    sums: Array  # (p, G, k + 1) Σ w φ; the last class holds rows without a label
    weights: Array  # (G, k + 1) Σ w

    @classmethod
    def of(cls, total: Mapping[str, Array], cells: Cells) -> CellSums:
        """Reshape the moments of one group of rows."""
        shape = (cells.n_domains, cells.n_classes + 1)
        C, t = total["C"][0], total["t"][0]
        return cls(C.reshape(len(C), *shape), t.reshape(shape))

    def by_domain(self) -> tuple[Array, Array]:
        """Return the sums (p, G) and weights (G,) of every domain, labelled or not."""
        return self.sums.sum(axis=2), self.weights.sum(axis=1)

    def by_class(self) -> tuple[Array, Array]:
        """Return the sums (p, k) and weights (k,) of every class."""
        return self.sums[:, :, :-1].sum(axis=1), self.weights[:, :-1].sum(axis=0)


def means(sums: Array, weights: Array) -> Array:
    """Divide sums (p, g) by weights (g,); columns of groups without weight are 0."""
    return np.asarray(np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0))
