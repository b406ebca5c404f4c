"""The normal equations of kernel ridge as sweeps of the rows, and their preconditioners.

The columns of all solutions are side by side, fold by fold, penalty by penalty, target by target; a fit has one penalty
and no folds. No m×m matrix is summed over the rows: only the driver holds m×m, the core and a factor for each decade of
penalties. Shapes: m landmarks, F folds (1 where nothing is held out), A penalties, c targets, k rows of the
sub-sample. Tests: estimators/test_cg_bounds.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from bigkernel.arrays import Array, Index
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import device_here, sweep
from bigkernel.estimators.fit.basis import Basis
from bigkernel.estimators.fit.state import Report
from bigkernel.estimators.inputs.checks import Solver, solving
from bigkernel.events.job import Step, emit, spent
from bigkernel.kernels.kept_blocks import SolverMap
from bigkernel.solvers.conjugate_gradients import (
    CORE_BYTES,
    FalkonFactor,
    Preconditioner,
    PreconditionerFactor,
    decades,
    estimate_trace,
    factor_core,
    factor_sample,
    preconditioner_itemsize,
)
from bigkernel.statistics.moments import MomentStatistic, Targets, without
from bigkernel.statistics.products import LeverageSample, ProductStatistic
from bigkernel.statistics.statistic import Statistic
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.folds import ColumnFolds, Folds
from bigkernel.streaming.plan import Accumulator

STRIP_ROWS = 1024  # rows of the core, or of the sub-sample, at a time
_LABEL_ROWS = 2**20  # rows whose labels are read at a time
_REPORT_SECONDS = 0.5  # between two reports of progress on the normal matrix
_FEW = 0.1  # number of directions lost to rounding below which the rough count suffices
_NOTHING = 20.0  # eigenvalues of the core below this times the rounding of m numbers are rounding
_PENALISED = 1e-5  # directions below this share of the eigenvalue that the penalty halves are negligible
_SEED = 0  # the sub-sample is the same in every process
_PROJECTIONS = 16  # random projections that estimate the leverage of a row, to about a third


@dataclass(frozen=True)
class StoppingRule:
    """Stop where the excess of the objective is at most `tol` of it, or after `max_iter` steps."""

    tol: float
    max_iter: int


class Core:
    """K_mm in float64, which keeps it positive; kept up to `CORE_BYTES`, else recomputed each time.

    Of a kept matrix only the upper triangle is computed.
    """

    def __init__(self, basis: Basis) -> None:
        self._basis, self.width = basis, int(basis.width)
        self._kept: list[Array] = []
        self.largest = float(np.abs(basis.core_diagonal()).max())  # k(z, z)

    def strips(self) -> Iterator[tuple[Index, Array]]:
        """Yield some rows at a time, (b, m)."""
        keeps = 8 * self.width**2 <= CORE_BYTES
        for number, start in enumerate(range(0, self.width, STRIP_ROWS)):
            rows = slice(start, min(start + STRIP_ROWS, self.width))
            if not keeps:
                yield rows, self._basis.core_rows(rows)
                continue
            if number == len(self._kept):
                left = [strip[:, rows].T for strip in self._kept]
                self._kept.append(np.hstack([*left, self._basis.core_rows(rows, slice(start, None))]))
            yield rows, self._kept[number]

    def times(self, vectors: Array) -> Array:
        """Compute K_mm v, (m, columns)."""
        out = np.empty(vectors.shape)
        with spent("core"):
            for rows, strip in self.strips():
                out[rows] = strip @ vectors
        return out

    def copy(self, dtype: DTypeLike | None = None) -> Array:
        """Return a copy of K_mm in column order, by default in the dtype of FALKON's factors."""
        copy = np.empty((self.width, self.width), dtype or f"f{preconditioner_itemsize(self.width)}")
        for rows, strip in self.strips():
            copy[rows] = strip
        return copy.T


@dataclass(frozen=True, eq=False)
class Residual:
    """The residual at coefficients v, and sums of the same sweep over the training rows of each column.

    Attributes
    ----------
    values : C − Av, (m, columns), from the rows: more accurate than from sums
    sums : of `ProductStatistic`; `rows`, `n`, `s`, `t`, `q` over the training rows of a fold, (F, …), and with folds
        `held_rows`, `held_n`, `held_t`, `held_q` over those that it tests
    count, weight : number and weight of the training rows, (columns,)
    intercept : (columns,), 0 without one
    squared_error : Σ w (y − f)², (columns,)
    objective, null_objective : Σ w (y − f)² + α vᵀKv, and its value at v = 0, (columns,)
    """

    values: Array
    sums: Accumulator
    count: Array
    weight: Array
    intercept: Array
    squared_error: Array
    objective: Array
    null_objective: Array

    @property
    def least_objective(self) -> Array:
        """Upper bound on the least objective, (columns,)."""
        return np.minimum(self.objective, self.null_objective)


@dataclass(frozen=True, eq=False)
class CGProblem:
    """The equations (Σ w bbᵀ + αK) v = Σ w by of each fold, penalty and target; about the mean with an intercept.

    Attributes
    ----------
    rows, targets, basis : of the fit
    features : the map of the basis, whose blocks may be kept between sweeps
    alphas : penalties
    with_intercept : whether an intercept is fitted
    stopping : when to stop
    sample_rows : rows of the sub-sample of the preconditioner; 0: factors of the core
    folds : None: nothing is held out
    left_out : for each fold, the landmarks that it is solved without; empty: none
    name : of the sweeps
    reports : one for each sweep so far
    """

    method: Solver
    rows: Rows
    targets: Targets
    basis: Basis
    features: SolverMap
    alphas: tuple[float, ...]
    with_intercept: bool
    stopping: StoppingRule
    sample_rows: int
    folds: Folds | None = None
    left_out: tuple[Array, ...] = ()
    name: str = "cg"
    reports: list[Report] = field(default_factory=list)

    @cached_property
    def core(self) -> Core:
        """The core K_mm."""
        return Core(self.basis)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of folds, penalties and targets, (F, A, c)."""
        return self.folds.count if self.folds else 1, len(self.alphas), self.targets.width

    @property
    def label(self) -> str:
        """Description of the problem, which identifies its sweeps in a run."""
        alpha = self.alphas[0] if len(self.alphas) == 1 else self.alphas
        return f"alpha={alpha!r}, intercept={self.with_intercept}, tol={self.stopping.tol!r}"

    def penalties(self, active: Index = slice(None)) -> Array:
        """Return the penalty of each column, for the active penalties."""
        return np.tile(np.repeat(np.array(self.alphas)[active], self.targets.width), self.shape[0])

    def residual(self, coef: Array) -> Residual:
        """Sweep for the residual of all columns at v (m, columns)."""
        # U = Bᵀw(y − Bv) of every column, and sums of y and f
        sums = self._products(coef, residual=True)
        if self.folds:
            groups = {name: sums[name] for name in ("rows", "n", "s", "t", "q")}
            sums = {**sums, **{f"held_{name}": values[:-1] for name, values in groups.items()}}
            sums |= {name: _others(values) for name, values in groups.items()}
        each, K_coef = self.shape[1] * self.shape[2], self.core.times(coef)
        n = np.maximum(sums["n"], 1e-300)
        count, weight = np.repeat(sums["rows"], each), np.repeat(n, each)
        e, sse, null = sums["e"], sums["sse"], sums["q"]
        # r = U − αKv, less Σ w φ times the intercept
        values: Array = sums["U"] - self.penalties() * K_coef
        intercept = np.zeros_like(e)
        if self.with_intercept:  # b = Σ w (y − f)/n
            intercept = e / weight
            values -= self._times_sums(sums["s"], intercept)
            sse = sse - e**2 / weight
            null = np.maximum(null - sums["t"] ** 2 / n[:, None], 0)
        objective = sse + self.penalties() * (coef * K_coef).sum(axis=0)
        null = np.repeat(null, self.shape[1], axis=0).ravel()
        self._clear(values)
        return Residual(values, sums, count, weight, intercept, sse, objective, null)

    def product(self, vectors: Array, active: Array, at: Residual) -> Array:
        """Sweep for Av of the columns of the active penalties, (m, columns)."""
        # Av = BᵀwBv + αKv
        product: Array = self._products(vectors)["U"] + self.penalties(active) * self.core.times(vectors)
        if self.with_intercept:  # − s sᵀv/n of the rows that each column is trained on
            s, n = at.sums["s"], np.maximum(at.sums["n"], 1e-300)
            by_fold = vectors.reshape(len(vectors), len(n), -1)
            along = s @ vectors if self.folds is None else np.einsum("fp,pfk->fk", s, by_fold)
            product -= self._times_sums(s, along.ravel() / np.repeat(n, by_fold.shape[2]))
        return self._clear(product)

    def _clear(self, values: Array) -> Array:
        """Set the landmarks that each fold leaves out to 0 in values (m, columns), in place."""
        for fold, landmarks in enumerate(self.left_out):
            values.reshape(len(values), self.shape[0], -1)[landmarks, fold] = 0.0
        return values

    def _times_sums(self, s: Array, values: Array) -> Array:
        """Multiply Σ w b of each fold (F, m) with values (columns,), (m, columns)."""
        return np.asarray((s.T[:, :, None] * values.reshape(len(s), -1)).reshape(s.shape[1], -1))

    def _products(self, vectors: Array, *, residual: bool = False) -> Accumulator:
        step = f"{len(self.reports)} of {self.label}, sample={self.sample_rows}"
        statistic = ProductStatistic(self.features, self.targets, vectors, step, residual, self.folds)
        return self.sweep(statistic)

    def sweep(self, statistic: Statistic) -> Accumulator:
        """Sweep once, and keep the report."""
        swept = sweep(self.rows, statistic, what=f"{self.name}-{len(self.reports)}")
        self.reports.append(swept.report())
        return swept.total


def _others(sums: Array) -> Array:
    """Add up all groups of rows but each fold's own, (F, …), from sums of each group, (F + 1, …)."""
    return np.concatenate([without({"": sums}, number)[""] for number in range(len(sums) - 1)])


def precondition_by_core(problem: CGProblem, n: float) -> Preconditioner:
    """Factor the core for n rows."""
    factors = [_factor_core(problem, alpha, n) for alpha in decades(problem.penalties())[0]]
    with solving(problem.method):
        return _for_columns(problem, factors, n)


def _factor_core(problem: CGProblem, alpha: float, n: float) -> FalkonFactor:
    core = problem.core.copy()
    with solving(problem.method):
        return factor_core(core, alpha, n, intercept=problem.with_intercept)


def leverage_sample(problem: CGProblem) -> LeverageSample:
    """Return the statistic that samples rows by leverage, as estimated with the factors of the core.

    The least of several penalties distinguishes rows best.
    """
    n, width = max(_labelled_weight(problem.rows, problem.targets), 1e-300), problem.core.width
    factor = _factor_core(problem, min(problem.alphas), n)
    # leverages φᵀP⁻¹φ = ‖P^(−1/2)φ‖² are estimated from a few random projections
    normal = np.random.RandomState(_SEED).standard_normal((width, _PROJECTIONS)) / _PROJECTIONS**0.5
    features, step = problem.features, f"sampled for {problem.label}"
    with solving(problem.method):
        projections = factor.half_solve(normal)
    return LeverageSample(features, problem.targets, projections, problem.sample_rows, step, problem.folds)


def planned_sample(targets: Targets, basis: Basis, size: int) -> LeverageSample:
    """Return such a statistic for a plan."""
    return LeverageSample(basis.features(), targets, np.zeros((basis.width, _PROJECTIONS)), size, "plan")


def _labelled_weight(rows: Rows, targets: Targets) -> float:
    """Add up the weights of all labelled rows, or count them; columns are read a piece at a time."""
    source, weight, total = rows.columns["y"], rows.column("weight"), 0.0
    for start in range(0, len(rows), _LABEL_ROWS):
        stop = min(start + _LABEL_ROWS, len(rows))
        y = source.read(start, stop)
        if y.dtype.kind == "f" and rows.bad_rows == "skip":
            y = np.where(np.isinf(y), np.nan, y)
        known = targets.labelled(y, start)
        w = np.ones(len(known)) if weight is None else np.asarray(weight[start:stop], np.float64)
        total += float(np.maximum(w[known & np.isfinite(w)], 0).sum())
    return total


def precondition_by_sample(problem: CGProblem, ids: Array, weight: Array, fold: Array) -> tuple[Preconditioner, Array]:
    """Factor the normal matrix of a sub-sample of ids, weights and folds (k,); return also the solution of its rows.

    All folds share one normal matrix, of the rows of all of them and the mean weight of their training sets, which
    differ from it by less than random sub-samples do. Test rows affect only the preconditioner, by their x: each fold
    starts from its own training labels.
    """
    rows, basis, targets, (F, A, c) = problem.rows, problem.basis, problem.targets, problem.shape
    y = rows.take_column("y", ids)
    work = Workspace(device=device_here())
    chunk = Chunk(rows.take(ids), y=y, weight=weight, fold=fold, block_rows=STRIP_ROWS, work=work)
    # Bᵀ(y − 0) of the training rows of each fold in the sample, from which its first solution comes
    by_fold: Accumulator = {}
    if problem.folds:
        zeros = np.zeros((basis.width, F * c))
        products = ProductStatistic(basis.features(), targets, zeros, "start", residual=True, folds=ColumnFolds(F))
        by_fold = products.zero()
        products.update(by_fold, chunk)
        work.collect(by_fold)
    # the normal matrix of all rows of the sample
    moments = MomentStatistic(basis.features(), targets, sums=np.dtype(np.float64))
    total = moments.zero()
    work.on_block = _row_reporter(len(ids))
    moments.update(total, chunk)
    work.collect(total)
    del chunk, work
    total = moments.finish(total)
    C, n, s, t = (total[name] for name in ("C", "n", "s", "t"))
    if problem.folds:  # residuals of α = 0 over training rows
        C, n, s, t = by_fold["U"], _others(by_fold["n"]), _others(by_fold["s"]), by_fold["e"].reshape(F, c)
    C = C.reshape(basis.width, F, c)
    if problem.with_intercept:
        C = C - s.T[:, :, None] * (t / np.maximum(n, 1e-300)[:, None])
    # P ≈ BᵀwB + αK: the moments of the sample, scaled to the mean weight of a training set
    share = float(n.mean()) / max(float(total["n"][0]), 1e-300)
    with solving(problem.method):
        P = _factor_normal_matrix(problem, total, len(ids), share)
        return P, P.solve(np.tile(C, A).reshape(basis.width, -1))


def _row_reporter(rows: int) -> Callable[[int], None]:
    """Return a function that reports progress on the normal matrix now and then."""
    what, done, last = "rows of the normal matrix", 0, time.monotonic()
    emit(Step(what, 0, rows))

    def count_rows(count: int) -> None:
        nonlocal done, last
        done += count
        if done == rows or time.monotonic() - last > _REPORT_SECONDS:
            last = time.monotonic()
            emit(Step(what, done, rows))

    return count_rows


def _factor_normal_matrix(problem: CGProblem, total: Accumulator, rows: int, share: float) -> Preconditioner:
    """Factor the normal matrix of `rows` rows, from a share of their moments, whose G it overwrites."""
    # share (G − s sᵀ/n), a strip at a time in the memory of G
    A, s, n = total.pop("G")[0], total["s"][0], max(float(total["n"][0]), 1e-300)
    for start in range(0, len(A), STRIP_ROWS):
        strip = A[start : start + STRIP_ROWS]
        if problem.with_intercept:
            strip -= np.outer(s[start : start + STRIP_ROWS] / n, s)
        if share != 1:
            strip *= share
    # A + αK for one penalty of each decade, factored
    alphas, _ = decades(problem.penalties())
    factors: list[PreconditionerFactor] = []
    for place, alpha in enumerate(alphas):
        emit(Step("factors of the normal matrix", place, len(alphas)))
        own = A if place == len(alphas) - 1 else A.copy()
        for strip_rows, strip in problem.core.strips():
            own[strip_rows] += alpha * strip
        factors.append(factor_sample(own.T, rows))
    emit(Step("factors of the normal matrix", len(alphas), len(alphas)))
    return _for_columns(problem, factors, share * n)


def _for_columns(problem: CGProblem, factors: Sequence[PreconditionerFactor], n: float) -> Preconditioner:
    """Assign each column its factor, for n rows."""
    penalties = problem.penalties()
    alphas, which = decades(penalties)
    # the penalty of a column may be below that of its factor, which reduces P⁻¹A by at most their ratio
    least = np.array([P.least for P in factors])[which] * np.minimum(penalties / np.array(alphas)[which], 1)
    lost = [_count_lost(P, problem, alpha, n) for P, alpha in zip(factors, alphas, strict=True)]
    left_out = problem.left_out or (np.empty(0, np.int64),) * problem.shape[0]
    folds = np.repeat(np.arange(len(left_out)), len(which) // len(left_out))
    return Preconditioner(factors, which, least, np.array(lost)[which], folds, left_out)


def _count_lost(P: PreconditionerFactor, problem: CGProblem, alpha: float, n: float) -> float:
    """Estimate the number of directions in which A is below the rounding of P, or of sums of blocks over n rows."""
    core, m = problem.core, problem.core.width
    block_rounding = float(np.finfo(problem.basis.dtype).eps) / 2 * core.largest  # of an entry
    floor = max(P.floor, n * block_rounding**2)
    lost = floor * estimate_trace(P, m, lambda signs: signs)
    if lost < _FEW:
        return lost
    # directions where the core is rounding or the penalty dominates do not count: K(K + least)⁻¹ keeps the rest
    least = max(_NOTHING * m * float(np.finfo(np.float64).eps) * core.largest, _PENALISED * alpha * m / n)
    A = core.copy(np.float64)
    A[np.diag_indices(m)] += least
    shrunk = factor_sample(A, m)
    return max(floor * estimate_trace(P, m, lambda signs: signs - least * shrunk.solve(signs)), 0.0)
