"""Rows of an exact fit: all of them in memory, and their n×n kernel matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.estimators.checks import require_exact, require_some, require_squares
from bigkernel.kernels.algebra import Kernel
from bigkernel.statistics.moments import Targets, require_weights
from bigkernel.streaming.chunk import Chunk


@dataclass(frozen=True, eq=False)
class ExactRows:
    """The k rows that are fitted to.

    Attributes
    ----------
    name : of the rows, for messages
    chunk : all n rows with their columns
    keep : (k,) positions of the rows that are fitted to
    X : (k, d) float64
    weight : (k,) or None
    skipped : bad rows that were left out
    """

    name: str
    chunk: Chunk
    keep: Array
    X: Array
    weight: Array | None
    skipped: int

    def gram(self, kernel: Kernel) -> tuple[Kernel, Array]:
        """The kernel with every parameter a number, and K (k, k)."""
        kernel = kernel.resolve(self.X, self.weight)
        with np.errstate(over="ignore", invalid="ignore"):
            K = kernel(self.X)
        if not np.isfinite(K).all():
            raise DataError(f"{kernel.name} kernel: its values leave the range of float64; scale the rows")
        return kernel, K

    def labels(self, targets: Targets) -> tuple[Array, Array]:
        """Targets (l, c) of the labelled rows, and which of the k rows these are (k,) bool.

        Raises
        ------
        DataError
            There is none, or none with a weight.
        """
        assert self.chunk.y is not None
        y = self.chunk.y[self.keep]
        labelled = targets.labelled(self.chunk.y, 0)[self.keep]
        if not labelled.any():
            raise DataError("y: no labelled row")
        Y = np.empty((int(labelled.sum()), targets.width))
        targets.encode(y[labelled], Y)
        with np.errstate(over="ignore"):
            require_squares("y", (Y**2).sum(axis=0), Y)
        if self.weight is not None and not self.weight[labelled].any():
            raise DataError("y: no labelled row with a weight above zero")
        return Y, labelled


def read_exact(estimator: str, rows: Rows, labelled: Targets | None) -> ExactRows:
    """Read the sound rows for the exact form of an estimator; those with a label alone where `labelled` tells them.

    Raises
    ------
    PlanTooLarge
        More rows than an n×n matrix may have.
    DataError
        A row with NaN or infinity (unless such rows are skipped), or no other row.
    """
    n = len(rows)
    require_exact(estimator, n)
    given = rows.read(0, n)
    sound = ~given.faults()
    chunk, skipped = rows.validate_or_mask(given)  # refuses rows that are not sound, or blanks them
    if labelled is not None:
        assert chunk.y is not None
        sound &= labelled.labelled(chunk.y, 0)
    keep = np.flatnonzero(sound)
    X = chunk.load(keep, rows.shape[1], np.float64)
    require_some(rows, skipped)
    weight = None
    if "weight" in rows.columns and chunk.weight is not None:
        weight = require_weights(np.asarray(chunk.weight, np.float64), 0)[keep]
    return ExactRows(rows.name, chunk, keep, X, weight, skipped)
