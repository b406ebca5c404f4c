"""Sources of rows that are made when they are asked for: images and their copies, and the columns that go with them.

N rows are made of n originals: these themselves first, then a copy of each of the chosen ones (all, where none are
chosen), round by round. Any range of them can be read, on any worker, and is the same wherever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bigkernel.data import zarr_arrays
from bigkernel.data.fingerprint import fingerprint
from bigkernel.engine.sources import Derived, Source
from bigkernel.images.restyle import Styling
from bigkernel.streaming.row_maps import MapCost

Array = NDArray[Any]


class Copier(Protocol):
    """A maker of copies of images: `Deformation` or `Restyling`; `recipe` names the version that makes these rows."""

    recipe: ClassVar[str]

    @property
    def work_bytes(self) -> int:
        """Most memory of `copies` beside what it returns."""

    @property
    def flops_per_row(self) -> float:
        """Of one copy."""

    def copies(self, originals: Array, start: int) -> Array:
        """Copies number start, start + 1, … of rows (b, h·w), one each."""


def _with_copier(cost: MapCost, copier: Copier | Styling) -> MapCost:
    """The cost of rows that `copier` makes of rows at `cost`."""
    return MapCost(
        cost.flops_per_row + copier.flops_per_row, cost.row_bytes, max(cost.fixed_bytes, int(copier.work_bytes))
    )


@dataclass(frozen=True, eq=False)
class Chosen:
    """Sorted ids of the originals that are copied, or the part ids[first …] of `count` of them that a task needs."""

    ids: Array
    count: int
    first: int = 0

    def at(self, start: int, stop: int) -> Array:
        """Ids number start … stop."""
        return self.ids[start - self.first : stop - self.first]

    def part(self, start: int, stop: int) -> Chosen:
        """Enough of it for ids number start … stop."""
        return Chosen(self.at(start, stop), self.count, start)


@dataclass(frozen=True, eq=False)
class Repeated(Derived):
    """Values of the originals, and again those of the chosen ones: a column of copies.

    Attributes
    ----------
    source : Source of (n, …)
    n_originals, n_rows : n and N
    chosen : Chosen or None
        None: every original is copied.
    """

    n_originals: int
    n_rows: int
    chosen: Chosen | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, …)."""
        return self.n_rows, *self.source.shape[1:]

    @property
    def steps(self) -> tuple[int, ...]:
        """None is natural."""
        return ()

    def read(self, start: int, stop: int) -> Array:
        """Values of rows start … stop."""
        parts = [self._originals(first, last) for first, last in self._rounds(start, stop)]
        return np.concatenate(parts) if parts else self.source.read(start, start)[:0]

    def part(self, start: int, stop: int) -> Self:
        """Return a source for rows start … stop in a task: of one round, with the originals of these rows alone."""
        if start >= stop or len(list(self._rounds(start, stop))) > 1:
            return self
        first, last = self._span(start, stop)
        chosen = self.chosen
        if chosen is not None:
            held = np.searchsorted(chosen.ids, (first, last)) + chosen.first
            chosen = chosen.part(int(held[0]), int(held[1]))
        return replace(self, source=self.source.part(first, last), chosen=chosen)

    def fingerprint(self) -> str:
        """Of the values, which are copied, and the number of rows."""
        chosen = "" if self.chosen is None else f" {zarr_arrays.digest({'': self.chosen.ids})}"
        return f"repeated {self.n_rows}{chosen} {self.source.fingerprint()}"

    @property
    def _round_rows(self) -> int:
        return self.n_originals if self.chosen is None else self.chosen.count

    def _rounds(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Rows start … stop, cut where rounds begin."""
        while start < stop:
            past = start - self.n_originals
            end = self.n_originals if past < 0 else start - past % self._round_rows + self._round_rows
            yield start, min(stop, end)
            start = min(stop, end)

    def _place(self, row: int) -> int:
        """Return the place of a copy's original among the chosen ones."""
        return (row - self.n_originals) % self._round_rows

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """Ids of originals between which those of rows start … stop of one round lie."""
        if start < self.n_originals:
            return start, stop
        place = self._place(start)
        if self.chosen is None:
            return place, place + stop - start
        ids = self.chosen.at(place, place + stop - start)
        return int(ids[0]), int(ids[-1]) + 1

    def _originals(self, start: int, stop: int) -> Array:
        """Values of the originals of rows start … stop of one round."""
        if start < self.n_originals or self.chosen is None:
            return self.source.read(*self._span(start, stop))
        place = self._place(start)
        ids, parts = self.chosen.at(place, place + stop - start), []
        while len(ids):
            # as many as lie so close together that no more than the rows of a step are held for them
            far = np.searchsorted(ids, ids[0] + stop - start)
            few = ids[:far]
            parts.append(self.source.read(int(few[0]), int(few[-1]) + 1)[few - few[0]])
            ids = ids[far:]
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class DeformedSource(Repeated):
    """Images (N, h·w): the originals as they are, then copies of the chosen ones; row i is copy number i.

    Attributes
    ----------
    chunk_rows : rows of a step
    deformation : what makes the copies
    """

    chunk_rows: int = 0
    deformation: Copier | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """Row ids where chunks begin."""
        return (*range(0, self.n_rows, self.chunk_rows), self.n_rows)

    def read(self, start: int, stop: int) -> Array:
        """Rows start … stop, (stop − start, h·w)."""
        assert self.deformation is not None
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for first, last in self._rounds(start, stop):
            images = self._originals(first, last)
            copied = first >= self.n_originals
            out[first - start : last - start] = self.deformation.copies(images, first) if copied else images
        return out

    def fingerprint(self) -> str:
        """Of the images, which are copied, and all options."""
        assert self.deformation is not None
        return f"deformed {self.deformation.recipe} {fingerprint(self.deformation)} {super().fingerprint()}"

    def cost(self) -> MapCost:
        """Of the images, and of a copy."""
        assert self.deformation is not None
        return _with_copier(self.source.cost(), self.deformation)


@dataclass(frozen=True, eq=False)
class SharedWeight(Repeated):
    """Weights (N,) float64: an original that is copied and its copies share the weight of the original equally.

    Attributes
    ----------
    share : float
        Of each: 1/(copies + 1).
    """

    share: float = 1.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64."""
        return np.dtype(np.float64)

    def read(self, start: int, stop: int) -> Array:
        """Weights of rows start … stop."""
        weights = super().read(start, stop).astype(np.float64)
        shared = np.ones(len(weights), bool)
        if self.chosen is not None:
            originals = np.arange(start, min(stop, self.n_originals))
            shared[: len(originals)] = np.isin(originals, self.chosen.ids, assume_unique=True)
        weights[shared] *= self.share
        return weights

    def fingerprint(self) -> str:
        """Of the weights, which are copied, and the share."""
        return f"shared {self.share!r} {super().fingerprint()}"


@dataclass(frozen=True)
class RowNumbers(Source):
    """The column 0, 1, …, n − 1, int64."""

    n_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,)."""
        return (self.n_rows,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """int64."""
        return np.dtype(np.int64)

    @property
    def steps(self) -> tuple[int, ...]:
        """None is natural."""
        return ()

    def read(self, start: int, stop: int) -> Array:
        """Numbers of rows start … stop."""
        return np.arange(start, stop, dtype=np.int64)

    def part(self, start: int, stop: int) -> Source:
        """The source itself."""
        return self

    def fingerprint(self) -> str:
        """Of the number of rows."""
        return f"row numbers {self.n_rows}"


@dataclass(frozen=True)
class Ones(RowNumbers):
    """The column 1, 1, …, float64: the weights of rows that have none."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64."""
        return np.dtype(np.float64)

    def read(self, start: int, stop: int) -> Array:
        """Ones for rows start … stop."""
        return np.ones(stop - start)

    def fingerprint(self) -> str:
        """Of the number of rows."""
        return f"ones {self.n_rows}"


@dataclass(frozen=True, eq=False)
class StyledSource(Derived):
    """Images (n, h·w) of `source`, each in the style of its domain."""

    styling: Styling

    def read(self, start: int, stop: int) -> Array:
        """Rows start … stop, (stop − start, h·w)."""
        return self.styling.images(self.source.read(start, stop), start)

    def part(self, start: int, stop: int) -> Source:
        """Return a source that reads rows start … stop in a task, with their images alone."""
        return StyledSource(self.source.part(start, stop), self.styling)

    def fingerprint(self) -> str:
        """Of the images and their styles."""
        return f"styled {self.styling.recipe} {fingerprint(self.styling)} {self.source.fingerprint()}"

    def cost(self) -> MapCost:
        """Of the images, and of their styles."""
        return _with_copier(self.source.cost(), self.styling)


@dataclass(frozen=True)
class DomainNumbers(RowNumbers):
    """The column of domains (n,) int64 that `styling` gives its rows."""

    styling: Styling

    def read(self, start: int, stop: int) -> Array:
        """Domains of rows start … stop."""
        return self.styling.domains(start, stop)

    def fingerprint(self) -> str:
        """Of the number of rows and the styles."""
        return f"domains {self.n_rows} {fingerprint(self.styling)}"
