"""Rows of the exact form, all in memory, with their kernel matrix and targets. Shapes: k rows, d features.

Tests: estimators/test_kernel_ridge.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.estimators.inputs.checks import require_exact, require_some, require_squares, warn_of_scales
from bigkernel.estimators.inputs.training import AnyTargets
from bigkernel.kernels.algebra import Kernel
from bigkernel.statistics.domain_cells import Cells
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds
from bigkernel.statistics.moments import Targets, require_weights
from bigkernel.streaming.chunk import Chunk


@dataclass(frozen=True, eq=False)
class ExactRows:
    """The k training rows of an exact fit, all in memory."""

    name: str  # of the rows, for messages
    chunk: Chunk  # all n rows with their columns
    keep: Array  # (k,) positions of the training rows
    X: Array  # (k, d) float64
    weight: Array | None  # (k,) or None
    skipped: int  # number of bad rows that were left out

    def gram(self, kernel: Kernel) -> tuple[Kernel, Array]:
        """Return the kernel with every parameter a number, and K (k, k)."""
        kernel = kernel.resolve(self.X, self.weight)
        warn_of_scales(kernel, self.X)
        with np.errstate(over="ignore", invalid="ignore"):
            K = kernel(self.X)
        if not np.isfinite(K).all():
            raise DataError(f"{kernel.name} kernel: its values exceed the range of float64; scale the rows")
        return kernel, K

    def folds(self) -> Array:
        """Return the fold of each row, (k,)."""
        return np.asarray(HeldOutFolds(FOLDS - 1).of(self.chunk)[self.keep] % FOLDS)

    def targets(self, targets: AnyTargets) -> tuple[Array, Array | Cells]:
        """Return the targets of the labelled rows, and which these are; or the cell of each row, and all cells."""
        if isinstance(targets, Targets):
            return self.labels(targets)
        assert isinstance(targets, Cells)
        if self.weight is not None and not self.weight.any():
            raise DataError(f"{self.name}: expected a row with a positive weight, found none")
        return targets.of(self.chunk, self.keep), targets

    def labels(self, targets: Targets) -> tuple[Array, Array]:
        """Return the targets (l, c) of the labelled rows, and which of the k rows these are, (k,) bool.

        `DataError`: there are none, or none with a weight above zero.
        """
        assert self.chunk.y is not None
        y = self.chunk.y[self.keep]
        labelled = targets.labelled(self.chunk.y, 0)[self.keep]
        if not labelled.any():
            raise DataError("y: expected a labelled row, found none")
        Y = np.empty((int(labelled.sum()), targets.width))
        targets.encode(y[labelled], Y)
        with np.errstate(over="ignore"):
            require_squares("y", (Y**2).sum(axis=0), Y)
        if self.weight is not None and not self.weight[labelled].any():
            raise DataError("y: expected a labelled row with a positive weight, found none")
        return Y, labelled


def read_exact(estimator: str, rows: Rows, labelled: AnyTargets | None) -> ExactRows:
    """Read the finite rows for the exact form of an estimator; with `Targets`, only rows with a label.

    `PlanTooLargeError`: more rows than an n×n matrix may have. `DataError`: a row with NaN or infinity (unless such
    rows are skipped), or no other row.
    """
    n = len(rows)
    require_exact(estimator, n)
    given = rows.read(0, n)
    sound = ~given.faults()
    chunk, skipped = rows.validate_or_mask(given)  # refuses or blanks bad rows
    if isinstance(labelled, Targets):
        assert chunk.y is not None
        sound &= labelled.labelled(chunk.y, 0)
    keep = np.flatnonzero(sound)
    X = chunk.load(keep, rows.shape[1], np.float64)
    require_some(rows, skipped)
    weight = None
    if "weight" in rows.columns and chunk.weight is not None:
        weight = require_weights(np.asarray(chunk.weight, np.float64), 0)[keep]
    return ExactRows(rows.name, chunk, keep, X, weight, skipped)
