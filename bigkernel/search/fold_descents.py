"""Models of a kernel for every penalty and fold by conjugate gradients, side by side in the same sweeps.

A column is fitted to the rows that its fold does not test. The last look at the rows tells its squared error on those
that it does. Shapes: m landmarks, F folds, A penalties, c targets; columns come fold by fold, then penalty by penalty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.estimators.descents import descend, least_objective
from bigkernel.estimators.fit_state import Inputs
from bigkernel.estimators.iterative import System, begun, cancellation
from bigkernel.estimators.number_range import solving
from bigkernel.estimators.sub_samples import ByPenalty, Core, Drawn, draw_by_leverage, of_folds, of_others
from bigkernel.events.scope import spent
from bigkernel.search.candidates import Descents
from bigkernel.search.scoring import Solved, Tested
from bigkernel.search.splits import Partition, require_fold
from bigkernel.solvers.accuracy import PROMISE
from bigkernel.statistics.leverage import LeverageSample
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import FoldProducts
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]


@dataclass
class FoldSystem(System):
    """The normal equations of the training rows of each fold, for every penalty.

    Attributes
    ----------
    partition : of the folds
    """

    partition: Partition = field(kw_only=True)

    @property
    def penalties(self) -> Array:
        """See `System`."""
        return np.tile(np.repeat(np.array(self.goal.alphas), self.targets.width), self.partition.folds.count)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(F, A, c)."""
        return self.partition.folds.count, len(self.goal.alphas), self.targets.width

    def columns(self, places: list[int]) -> Array:
        """See `System`."""
        return np.arange(math.prod(self.shape)).reshape(self.shape)[:, places].ravel()

    @property
    def weight(self) -> Array:
        """See `System`."""
        return np.repeat(np.maximum(self.looked["n"], 1e-300), self.shape[1] * self.shape[2])

    @property
    def count(self) -> Array:
        """See `System`."""
        return np.repeat(self.looked["rows"], self.shape[1] * self.shape[2])

    def along_mean(self, vectors: Array) -> Array:
        """See `System`."""
        by_fold = vectors.reshape(len(vectors), self.shape[0], -1)
        return np.asarray(np.einsum("fp,pfk->fk", self.looked["s"], by_fold).ravel())

    def of_mean(self, values: Array) -> Array:
        """See `System`."""
        s = self.looked["s"]
        spread: Array = s.T[:, :, None] * values.reshape(self.shape[0], -1)
        return np.asarray(spread.reshape(s.shape[1], -1))

    def seen(self, total: Accumulator) -> Accumulator:
        """The sums of a look: `n`, `s`, `t` of the rows that a fold trains on, `held_…` of those that it tests."""
        held = {f"held_{name}": total[name][:-1] for name in ("rows", "n", "t", "q")}
        return {**total, **held, **{name: of_others(total[name]) for name in ("rows", "n", "s", "t", "q")}}

    def require_labels(self) -> None:
        """Raise `DataError` unless every fold has what it is trained and tested on."""
        for fold, split in enumerate(self.partition.splits):
            classes = None if self.targets.classes is None else self.looked["t"][fold]
            require_fold(split, float(self.looked["held_n"][fold]), float(self.looked["n"][fold]), classes)

    def statistic(self, vectors: Array, words: str, *, residual: bool = False) -> FoldProducts:
        """See `System`."""
        features, folds = self.basis.features(), self.partition.folds
        return FoldProducts(features, self.targets, vectors, words, residual, folds=folds)

    @property
    def null_objective(self) -> Array:
        """See `System`."""
        n, t, q = self.looked["n"][:, None], self.looked["t"], self.looked["q"]
        spread = np.maximum(q - t**2 / np.maximum(n, 1e-300), 0) if self.goal.intercept else q
        return np.repeat(spread, self.shape[1], axis=0).ravel()

    def draw(self) -> LeverageSample:
        """See `System`."""
        with spent("preconditioner"):
            folds = self.partition.folds
            return draw_by_leverage(self.rows, self.targets, folds, self.basis, self.core, self.goal, self.sample)

    def preconditioned(self, drawn: Drawn) -> tuple[ByPenalty, Array]:
        """See `System`: for all folds."""
        rows, targets, count, basis, core = self.rows, self.targets, self.shape[0], self.basis, self.core
        return of_folds(rows, targets, count, basis, core, self.penalties, drawn, intercept=self.goal.intercept)

    def error(self) -> Array:
        """Σ w (y − f)² over the rows that a fold tests, (F, A, c), of the latest look."""
        seen = (self.looked["held_e"], self.looked["held_sse"], self.intercept)
        e, sse, b = (v.reshape(self.shape) for v in seen)
        return np.asarray(np.maximum(sse - 2 * b * e + b**2 * self.looked["held_n"][:, None, None], 0))

    def sums(self, fold: int) -> tuple[float, float, Array, Array]:
        """Weight and number of the rows that a fold tests, and spread and squares of their targets, (c,)."""
        n, rows, t, q = (self.looked[f"held_{name}"][fold] for name in ("n", "rows", "t", "q"))
        spread = q - t**2 / n
        return float(n), float(rows), np.where(spread <= 1e-12 * q, 0, spread), q


def descended(
    one: Descents, partition: Partition, rows: Rows, targets: Targets, inputs: Inputs
) -> tuple[list[Solved], list[float]]:
    """All candidates on all folds of a partition: by fold; and the largest excess that each step left."""
    if not one.goal.intercept:  # as a fit of its own would have the targets
        targets, inputs = replace(targets, shift=None), inputs.of_targets()
    basis, rows = one.lead.basis, partition.attach(rows)
    system = FoldSystem(
        rows, targets, basis, one.goal, Core(basis), one.choice.rows, what="tune-cg", partition=partition
    )
    with solving(one.lead.method):
        alpha, left, P = begun(system)
        reached, shares = descend(system, alpha, left, P)
    by_fold = reached.alpha.reshape(basis.width, len(partition.splits), -1).transpose(1, 0, 2)
    intercepts = system.intercept.reshape(len(partition.splits), -1)
    tested = _tested(system, reached.alpha, reached.excess, inputs)
    nothing: list[Any] = [None] * len(one.candidates)
    return [Solved(*told) for told in zip(tested, [nothing] * len(tested), by_fold, intercepts, strict=True)], shares


def _tested(system: FoldSystem, alpha: Array, excess: Array, inputs: Inputs) -> list[list[Tested]]:
    """What the test of each candidate says, by fold."""
    looked, shape = system.looked, system.shape
    enough = system.goal.tol * least_objective(system.objective, system.null_objective)
    near = np.asarray((excess <= enough).reshape(shape).all(axis=2))
    squares = looked["squares"].reshape(shape).sum(axis=2)
    # ‖f − f*‖² is at most the excess, but for rounding
    bound = np.sqrt(excess.reshape(shape).sum(axis=2) / np.maximum(squares, 1e-300))
    models = np.arange(alpha.shape[1]).reshape(-1, shape[2])
    cancelled = cancellation(system, alpha, inputs, list(models)).reshape(shape[:2])
    errors, sums = system.error(), [system.sums(fold) for fold in range(shape[0])]

    def of(fold: int, place: int) -> Tested:
        n, rows, spread, q = sums[fold]
        return Tested(
            n,
            rows,
            errors[fold, place],
            spread,
            q,
            error=max(bound[fold, place], cancelled[fold, place]),
            allowed=max(PROMISE, bound[fold, place]),
            ended=bool(near[fold, place]),
        )

    return [[of(fold, place) for place in range(shape[1])] for fold in range(shape[0])]
