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
from bigkernel.estimators.parameter_checks import require_labelled
from bigkernel.kernels import uniform_landmarks as draws
from bigkernel.monitor.events import Step
from bigkernel.monitor.scope import emit
from bigkernel.solvers.descent_cost import CORE_BYTES, decades, preconditioner_itemsize
from bigkernel.solvers.preconditioners import Preconditioner, falkon, sub_sample
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.statistics.products import FoldProducts
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import ColumnFolds, Folds
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]
CORE_ROWS = 1024  # of the core, or of the sub-sample, that are worked on at a time
_CHANCES = 5  # rounds in which the rows that are certain to be drawn are found
_LABELS = 2**20  # rows whose labels are read at a time
_MATRIX = "rows of the normal matrix"
_TELL_SECONDS = 0.5
_DRAW = 0  # the sub-sample is the same in every process
_DRAW_OF_FOLDS = 7_919  # folds that are drawn by a seed of few digits share no permutation with it


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
    """

    parts: Sequence[Preconditioner]
    columns: Array

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
        return replace(self, columns=self.columns[columns])


def of_core(core: Core, alphas: Array, n: float) -> ByPenalty:
    """Factors of the core for columns of penalties alphas (columns,), for n rows."""
    centres, which = decades(alphas)
    return ByPenalty([falkon(_copied(core), alpha, n) for alpha in centres], which)


def of_sub_sample(
    rows: Rows, targets: Targets, basis: Any, core: Core, alphas: Array, count: int, *, intercept: bool
) -> tuple[ByPenalty, Array]:
    """Normal matrices of about `count` rows for columns of penalties alphas (columns,), and the solution of those rows.

    Columns come in equal groups, one a penalty; the first c of a group are the targets, what follows starts at 0.
    """
    chunk, _ = _chunk(rows, targets, count)
    total, drawn = _moments(chunk, targets, basis), len(chunk)
    del chunk
    C, n = total["C"][0], max(float(total["n"][0]), 1e-300)
    if intercept:
        C = C - np.outer(total["s"][0], total["t"][0] / n)
    P, groups = _factored(total, core, alphas, drawn, intercept=intercept), len(np.unique(alphas))
    begun = np.zeros((core.width, len(alphas)))
    width = len(alphas) // groups
    for number in range(groups):
        begun[:, number * width : number * width + C.shape[1]] = C
    return P, P.solve(begun)


def of_folds(
    rows: Rows, targets: Targets, folds: Folds, basis: Any, core: Core, alphas: Array, count: int, *, intercept: bool
) -> tuple[ByPenalty, Array]:
    """The same for models that are each trained without a fold, (columns,) of which come fold by fold.

    One normal matrix serves all folds: of the rows of all of them, as heavy as the mean of their training sets, which
    differ from it by less than the draw of a sub-sample does. A tested row shapes the pace by its x alone: every fold
    starts from the labels that it is trained on.
    """
    chunk, fold = _chunk(rows, targets, count, folds)
    features, width = basis.features(), targets.width
    given, none = ColumnFolds(folds.count), np.zeros((core.width, folds.count * width))
    statistic = FoldProducts(features, targets, none, "start", residual=True, folds=given)
    looked = statistic.zero()
    statistic.update(looked, replace(chunk, fold=fold))
    n, s = of_others(looked["n"]), of_others(looked["s"])
    C = looked["U"].reshape(core.width, folds.count, width)
    if intercept:
        C = C - s.T[:, :, None] * (looked["e"].reshape(-1, width) / np.maximum(n, 1e-300)[:, None])
    total, drawn = _moments(chunk, targets, basis), len(chunk)
    del chunk
    share = float(n.mean()) / max(float(total["n"][0]), 1e-300)
    P = _factored(total, core, alphas, drawn, intercept=intercept, share=share)
    begun = np.tile(C, len(alphas) // none.shape[1]).reshape(core.width, -1)
    return P, P.solve(begun)


def of_others(sums: Array) -> Array:
    """Sums over all groups of rows but each fold's own, (F, …), from those of each group, (F + 1, …)."""
    return np.stack([np.delete(sums, number, axis=0).sum(axis=0) for number in range(len(sums) - 1)])


def _chunk(rows: Rows, targets: Targets, count: int, folds: Folds | None = None) -> tuple[Chunk, Array | None]:
    """About `count` rows with the weights that they have in a sub-sample, and their folds, (k,)."""
    ids, weight, fold = _drawn(rows, targets, count, folds)
    y = rows.take_column("y", ids)
    return Chunk(rows.take(ids), y=y, weight=weight, block_rows=CORE_ROWS), fold


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
    return ByPenalty(parts, which)


def _copied(core: Core) -> Array:
    """K_mm in column order, in the dtype of the preconditioner."""
    copy = np.empty((core.width, core.width), f"f{preconditioner_itemsize(core.width)}")
    for rows, strip in core.strips():
        copy[rows] = strip
    return copy.T


def _labelled(rows: Rows, targets: Targets, folds: Folds | None = None) -> tuple[Array, Array | None]:
    """Which rows have a label, (n,) bool, and what they weigh, (n,), 0 without one; None where all weigh 1.

    With folds, only rows that one of them is trained on. Columns are read a part at a time.
    """
    source, known = rows.columns["y"], np.zeros(len(rows), bool)
    for start in range(0, len(rows), _LABELS):
        y = source.read(start, min(start + _LABELS, len(rows)))
        if y.dtype.kind == "f" and rows.bad_rows == "skip":
            y = np.where(np.isinf(y), np.nan, y)
        known[start : start + _LABELS] = targets.labelled(y, start)
        if folds is not None:
            # the only fold trains on none of its own rows
            fold = _folds_of(rows, folds, start)
            known[start : start + _LABELS] &= (fold >= -1) if folds.count > 1 else (fold == -1)
    weight = rows.column("weight")
    if weight is None:
        return known, None
    total = np.asarray(weight, np.float64)
    return known, np.where(known & np.isfinite(total), np.maximum(total, 0), 0)


def _folds_of(rows: Rows, folds: Folds, start: int) -> Array:
    """The folds of rows start … start + `_LABELS`, which no x tells."""
    stop = min(start + _LABELS, len(rows))
    read = {name: rows.columns[name] for name in ("domain", "group", "fold") if name in rows.columns}
    columns: dict[str, Any] = {name: source.read(start, stop) for name, source in read.items()}
    return folds.of(Chunk(np.empty((stop - start, 0)), start, **columns))


def labelled_weight(rows: Rows, targets: Targets) -> float:
    """The weight of all labelled rows; their number, where none was given."""
    known, weight = _labelled(rows, targets)
    return float((known if weight is None else weight).sum())


def _drawn(rows: Rows, targets: Targets, count: int, folds: Folds | None = None) -> tuple[Array, Array, Array | None]:
    """Sorted ids of a sub-sample of about `count` labelled rows, their weights in it, (k,), and their folds.

    Rows are drawn the likelier the more they weigh, the heaviest for certain: a few of them shape the normal matrix.
    """
    rng, (known, total) = np.random.RandomState(_DRAW_OF_FOLDS if folds else _DRAW), _labelled(rows, targets, folds)
    if total is None:
        among = np.flatnonzero(known)
        require_labelled(len(among), len(among))
        sound = (lambda places: rows.sound(among[places])) if rows.bad_rows == "skip" else None
        ids = among[draws.uniform(len(among), min(count, len(among)), rng, sound=sound)]
        weight = np.full(len(ids), len(among) / len(ids))
    else:
        chance = np.zeros(len(rows))
        for _ in range(_CHANCES):  # those that are certain leave the others more
            certain = chance >= 1
            left = max(float(total[~certain].sum()), 1e-300)
            chance = np.where(certain, 1.0, np.minimum(total * max(count - certain.sum(), 0) / left, 1.0))
        ids = np.flatnonzero(rng.random_sample(len(rows)) < chance)
        if rows.bad_rows == "skip":
            ids = ids[rows.sound(ids)]
        weight = total[ids] / chance[ids]
    if folds is None:
        return ids, weight, None
    parts = [
        _folds_of(rows, folds, start)[ids[ids // _LABELS == start // _LABELS] - start]
        for start in range(0, len(rows), _LABELS)
    ]
    return ids, weight, np.concatenate(parts)
