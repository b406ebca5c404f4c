"""What preconditioners of a descent are made of: the core by strips, and the normal matrix of a sub-sample of the rows.

The driver holds m×m, a factor for each decade of penalties; nothing here sweeps all rows. Shapes: m landmarks, c
targets, k rows of the sub-sample.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.estimators.descents import Goal
from bigkernel.events.kinds import Step
from bigkernel.events.scope import emit
from bigkernel.solvers.preconditioners import (
    CORE_BYTES,
    Preconditioner,
    decades,
    estimate_trace,
    falkon,
    preconditioner_itemsize,
    sub_sample,
)
from bigkernel.statistics.leverage import LeverageSample
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.statistics.products import FoldProducts
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import ColumnFolds, Folds
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]
CORE_ROWS = 1024  # of the core, or of the sub-sample, that are worked on at a time
_LABELS = 2**20  # rows whose labels are read at a time
_MATRIX = "rows of the normal matrix"
_TELL_SECONDS = 0.5
_FEW = 0.1  # hidden directions that are not worth being counted better
_NOTHING = 20.0  # times the rounding of m numbers, below which the core says nothing
_PENALISED = 1e-5  # of what a penalty halves: the least that a direction counts for
_DRAW = 0  # the sub-sample is the same in every process
_PROJECTED = 16  # numbers that tell the leverage of a row, to a third of it
Drawn = tuple[Array, Array, Array]  # ids of rows, rising, their weights in the sub-sample, and their folds, (k,) each


class Core:
    """K_mm in float64, in which it stays positive; kept where it takes at most `CORE_BYTES`, else made each time."""

    def __init__(self, basis: Any) -> None:
        self._basis, self.width = basis, int(basis.width)
        self._kept: list[Array] = []
        self._keeps = 8 * self.width**2 <= CORE_BYTES

    def strips(self) -> Iterator[tuple[slice, Array]]:
        """Some rows at a time, (b, m)."""
        for number, start in enumerate(range(0, self.width, CORE_ROWS)):
            rows = slice(start, min(start + CORE_ROWS, self.width))
            if number < len(self._kept):
                yield rows, self._kept[number]
                continue
            strip = self._basis.core_rows(rows)
            if self._keeps:
                self._kept.append(strip)
            yield rows, strip

    @property
    def largest(self) -> float:
        """The largest k(z, z)."""
        return float(np.abs(self._basis.core_diagonal()).max())

    @property
    def block_rounding(self) -> float:
        """What rounding does to an entry of the block, about."""
        return float(np.finfo(self._basis.dtype).eps) / 2 * self.largest

    def times(self, vectors: Array) -> Array:
        """K_mm v, (m, c)."""
        out = np.empty(vectors.shape)
        for rows, strip in self.strips():
            out[rows] = strip @ vectors
        return out


@dataclass(frozen=True, eq=False)
class ByPenalty:
    """A preconditioner for the columns of each decade of penalties.

    Attributes
    ----------
    parts : preconditioners
    columns : (columns,) which of them is for each column
    least : (columns,) about the smallest eigenvalue of P⁻¹A of each
    hidden : (columns,) about how many directions of each rounding hides
    """

    parts: Sequence[Preconditioner]
    columns: Array
    least: Array
    hidden: Array

    @property
    def name(self) -> str:
        """See `Preconditioner`."""
        return self.parts[0].name

    @property
    def jitter(self) -> float:
        """See `Preconditioner`; the largest."""
        return max(part.jitter for part in self.parts)

    def solve(self, R: Array) -> Array:
        """See `Preconditioner`."""
        out = np.empty(R.shape)
        for number, part in enumerate(self.parts):
            own = self.columns == number
            if own.any():
                out[:, own] = part.solve(R[:, own])
        return out

    def only(self, columns: Array) -> ByPenalty:
        """Of some columns."""
        return replace(self, columns=self.columns[columns], least=self.least[columns], hidden=self.hidden[columns])


def of_core(core: Core, alphas: Array, n: float, *, intercept: bool) -> ByPenalty:
    """Factors of the core for columns of penalties alphas (columns,), for n rows."""
    centres, which = decades(alphas)
    return _by_penalty(
        [falkon(_copied(core), alpha, n, intercept=intercept) for alpha in centres], centres, alphas, which, core, n
    )


def draw_by_leverage(
    rows: Rows, targets: Targets, folds: Folds | None, basis: Any, core: Core, goal: Goal, size: int
) -> LeverageSample:
    """What a sweep draws the sub-sample of `size` rows by: leverages as the factors of the core estimate them.

    Of several penalties the least tells most rows apart.
    """
    alpha, weight = min(goal.alphas), max(labelled_weight(rows, targets), 1e-300)
    factors = falkon(_copied(core), alpha, weight, intercept=goal.intercept)
    normal = np.random.RandomState(_DRAW).standard_normal((core.width, _PROJECTED)) / _PROJECTED**0.5
    step = f"drawn for {goal.words}"
    return LeverageSample(basis.features(), targets, factors.half_solve(normal), size, step, folds)


def planned_draw(targets: Targets, basis: Any, size: int) -> LeverageSample:
    """What such a sweep sums up, for a plan."""
    return LeverageSample(basis.features(), targets, np.zeros((basis.width, _PROJECTED)), size, "plan")


def of_sub_sample(
    rows: Rows, targets: Targets, basis: Any, core: Core, alphas: Array, drawn: Drawn, *, intercept: bool
) -> tuple[ByPenalty, Array]:
    """Normal matrices of drawn rows for columns of penalties alphas (columns,), and the solution of those rows."""
    total = _moments(_chunk(rows, drawn), targets, basis)
    C, n = total["C"][0], max(float(total["n"][0]), 1e-300)
    if intercept:
        C = C - np.outer(total["s"][0], total["t"][0] / n)
    P = _factored(total, core, alphas, len(drawn[0]), intercept=intercept)
    return P, P.solve(np.array(C))


def of_folds(
    rows: Rows, targets: Targets, count: int, basis: Any, core: Core, alphas: Array, drawn: Drawn, *, intercept: bool
) -> tuple[ByPenalty, Array]:
    """The same for models that are each trained without one of `count` folds, (columns,) of which come fold by fold.

    One normal matrix serves all folds: of the rows of all of them, as heavy as the mean of their training sets, which
    differ from it by less than the draw of a sub-sample does. A tested row shapes the pace by its x alone: every fold
    starts from the labels that it is trained on.
    """
    chunk = _chunk(rows, drawn)
    features, width = basis.features(), targets.width
    none = np.zeros((core.width, count * width))
    statistic = FoldProducts(features, targets, none, "start", residual=True, folds=ColumnFolds(count))
    looked = statistic.zero()
    statistic.update(looked, chunk)
    n, s = of_others(looked["n"]), of_others(looked["s"])
    C = looked["U"].reshape(core.width, count, width)
    if intercept:
        C = C - s.T[:, :, None] * (looked["e"].reshape(-1, width) / np.maximum(n, 1e-300)[:, None])
    total = _moments(chunk, targets, basis)
    del chunk
    share = float(n.mean()) / max(float(total["n"][0]), 1e-300)
    P = _factored(total, core, alphas, len(drawn[0]), intercept=intercept, share=share)
    begun = np.tile(C, len(alphas) // none.shape[1]).reshape(core.width, -1)
    return P, P.solve(begun)


def of_others(sums: Array) -> Array:
    """Sums over all groups of rows but each fold's own, (F, …), from those of each group, (F + 1, …)."""
    return np.stack([np.delete(sums, number, axis=0).sum(axis=0) for number in range(len(sums) - 1)])


def _chunk(rows: Rows, drawn: Drawn) -> Chunk:
    """Drawn rows with the weights that they have in a sub-sample, and their folds."""
    ids, weight, fold = drawn
    y = rows.take_column("y", ids)
    return Chunk(rows.take(ids), y=y, weight=weight, fold=fold, block_rows=CORE_ROWS)


def _moments(chunk: Chunk, targets: Targets, basis: Any) -> Accumulator:
    statistic = MomentStatistic(basis.features(), targets, sums=np.dtype(np.float64))
    total = statistic.zero()
    chunk.work.passed = _Told(len(chunk))
    statistic.update(total, chunk)
    emit(Step(_MATRIX, len(chunk), len(chunk)))
    return statistic.finish(total)


class _Told:
    """Tells whoever watches how many of the rows are in the normal matrix, at most twice a second."""

    def __init__(self, rows: int) -> None:
        self._done, self._rows, self._last = 0, rows, time.monotonic()
        emit(Step(_MATRIX, 0, rows))

    def __call__(self, rows: int) -> None:
        self._done += rows
        if time.monotonic() - self._last > _TELL_SECONDS and self._done < self._rows:
            self._last = time.monotonic()
            emit(Step(_MATRIX, self._done, self._rows))


def _factored(
    total: Accumulator, core: Core, alphas: Array, rows: int, *, intercept: bool, share: float = 1.0
) -> ByPenalty:
    """The normal matrix of so many rows, a share of the moments (whose G it takes), for each decade of alphas."""
    A, s, n = total.pop("G")[0], total["s"][0], max(float(total["n"][0]), 1e-300)
    for start in range(0, len(A), CORE_ROWS):
        strip = A[start : start + CORE_ROWS]
        if intercept:
            strip -= np.outer(s[start : start + CORE_ROWS] / n, s)
        if share != 1:
            strip *= share
    centres, which = decades(alphas)
    parts: list[Preconditioner] = []
    for place, alpha in enumerate(centres):
        emit(Step("factors of the normal matrix", place, len(centres)))
        own = A if place == len(centres) - 1 else A.copy()
        for part, of_core in core.strips():
            own[part] += alpha * of_core
        parts.append(sub_sample(own.T, rows))
    emit(Step("factors of the normal matrix", len(centres), len(centres)))
    return _by_penalty(parts, centres, alphas, which, core, share * n)


def _by_penalty(
    parts: Sequence[Preconditioner], centres: list[float], alphas: Array, which: Array, core: Core, n: float
) -> ByPenalty:
    # a column of a smaller penalty than its preconditioner's: P⁻¹A is smaller by as much at most
    least = np.array([part.least for part in parts])[which] * np.minimum(alphas / np.array(centres)[which], 1)
    hidden = np.array([_count_hidden(part, core, alpha, n) for part, alpha in zip(parts, centres, strict=True)])
    return ByPenalty(parts, which, least, hidden[which])


def _count_hidden(P: Preconditioner, core: Core, alpha: float, n: float) -> float:
    """How many directions rounding hides: those in which A is below that of P, or of sums of blocks over n rows."""
    m, floor = core.width, max(P.floor, n * core.block_rounding**2)
    hidden = floor * estimate_trace(P, m, lambda signs: signs)
    if hidden < _FEW:
        return hidden
    # nothing is hidden where the core is rounding alone, or penalised out of sight: K(K + least)⁻¹ leaves the rest
    least = max(_NOTHING * m * float(np.finfo(np.float64).eps) * core.largest, _PENALISED * alpha * m / n)
    A = _copied(core, np.float64)
    A[np.diag_indices(m)] += least
    shrunk = sub_sample(A, m)
    return max(floor * estimate_trace(P, m, lambda signs: signs - least * shrunk.solve(signs)), 0.0)


def _copied(core: Core, dtype: Any = None) -> Array:
    """K_mm in column order, in the dtype of the preconditioner."""
    copy = np.empty((core.width, core.width), dtype or f"f{preconditioner_itemsize(core.width)}")
    for rows, strip in core.strips():
        copy[rows] = strip
    return copy.T


def labelled_weight(rows: Rows, targets: Targets) -> float:
    """The weight of all labelled rows; their number, where none was given. Columns are read a part at a time."""
    source, weight, total = rows.columns["y"], rows.column("weight"), 0.0
    for start in range(0, len(rows), _LABELS):
        part = slice(start, min(start + _LABELS, len(rows)))
        y = source.read(part.start, part.stop)
        if y.dtype.kind == "f" and rows.bad_rows == "skip":
            y = np.where(np.isinf(y), np.nan, y)
        known = targets.labelled(y, start)
        w = np.ones(len(known)) if weight is None else np.asarray(weight[part], np.float64)
        total += float(np.maximum(w[known & np.isfinite(w)], 0).sum())
    return total
