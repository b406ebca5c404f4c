"""Rows that are nowhere: what a plan or a scheduler needs to know of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.corpus import chunk_rows_for
from bigkernel.engine.rows import Rows, Source


@dataclass(frozen=True, eq=False)
class Blank(Source):
    """A matrix or a column of ones of a byte, `chunk_rows` of them a step, with the cost of reading none."""

    size: tuple[int, ...]
    chunk_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Source`."""
        return self.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Source`."""
        return np.dtype(np.uint8)

    @property
    def steps(self) -> tuple[int, ...]:
        """See `Source`."""
        return (*range(0, self.shape[0], self.chunk_rows), self.shape[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Ones."""
        return np.ones((stop - start, *self.shape[1:]), self.dtype)

    def part(self, start: int, stop: int) -> Source:
        """Itself."""
        return self

    def fingerprint(self) -> str:
        """Its shape."""
        return f"blank {self.shape}"


def blank_rows(n_rows: int, n_features: int, classes: tuple[Any, ...]) -> Rows:
    """Rows of bytes with labels, cut as a corpus of them would be."""
    chunk_rows = chunk_rows_for(n_features, 1, n_rows)
    x, y = Blank((n_rows, n_features), chunk_rows), Blank((n_rows,), chunk_rows)
    return Rows(x, {"y": y}, name="deformed digits", classes=classes)
