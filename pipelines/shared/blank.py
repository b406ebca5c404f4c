"""Rows without data: what a plan or a scheduler must know of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.data.corpus import chunk_rows_for
from bigkernel.engine.rows import Rows, Source


@dataclass(frozen=True, eq=False)
class Blank(Source):
    """A matrix or a column of 1-byte ones with steps of `chunk_rows`; it reports a zero cost of reading."""

    size: tuple[int, ...]
    chunk_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    @property
    def steps(self) -> tuple[int, ...]:
        return (*range(0, self.shape[0], self.chunk_rows), self.shape[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return ones."""
        return np.ones((stop - start, *self.shape[1:]), self.dtype)

    def restrict(self, start: int, stop: int) -> Source:
        """Return itself."""
        return self

    def fingerprint(self) -> str:
        """Return its shape."""
        return f"blank {self.shape}"


def blank_rows(n_rows: int, n_features: int, classes: tuple[Any, ...]) -> Rows:
    """Return rows of bytes with labels, chunked as a corpus of them would be."""
    chunk_rows = chunk_rows_for(n_features, 1, n_rows)
    x, y = Blank((n_rows, n_features), chunk_rows), Blank((n_rows,), chunk_rows)
    return Rows(x, {"y": y}, name="deformed digits", classes=classes)
