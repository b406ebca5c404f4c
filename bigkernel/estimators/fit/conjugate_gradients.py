"""Kernel ridge by conjugate gradients: m beyond what m×m sums allow.

Every step is one sweep for all columns that have not converged, which sums m numbers for each; a run resumes inside the
iteration. A fit and a search solve the same `CGProblem`. Shapes: m landmarks, F folds, A penalties,
c targets. Tests: estimators/test_cg_fits.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from bigkernel.arrays import Array
from bigkernel.errors import AccuracyWarning
from bigkernel.estimators.fit.cg_problem import (
    CGProblem,
    Residual,
    leverage_sample,
    precondition_by_core,
    precondition_by_sample,
)
from bigkernel.estimators.fit.method import skipped
from bigkernel.estimators.fit.state import IterativeFit, IterativeSolution, Report
from bigkernel.estimators.inputs.checks import require_labelled, require_some, require_squares, solving
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.events.job import Note, emit, spent
from bigkernel.solvers.conjugate_gradients import CGState, Preconditioner, describe_preconditioner, start_cg, step_cg
from bigkernel.solvers.residuals import PROMISE

_HALVED = 0.5  # share of the bound that steps between two exact residuals leave, unless rounding stops them


@dataclass(frozen=True, eq=False)
class CGResult:
    """The solution of all columns and bounds on its error.

    Attributes
    ----------
    problem : the equations that were solved
    coef : coefficients v, (m, columns)
    residual : at `coef`
    excess : bound on the objective minus its least value, (columns,)
    rounded : whether rounding has ended the iteration
    history : after each step the largest bound of the excess, relative to the objective
    preconditioner : its description
    jitter : the largest in its factors
    """

    problem: CGProblem
    coef: Array
    residual: Residual
    excess: Array
    rounded: bool
    history: list[float]
    preconditioner: str
    jitter: float

    @property
    def relative_excess(self) -> Array:
        """The largest excess of a target, relative to its objective, (F, A)."""
        share = self.excess / np.maximum(self.residual.least_objective, 1e-300)
        return np.asarray(share.reshape(self.problem.shape).max(axis=2))

    @property
    def stopping_error(self) -> Array:
        """Bound on the error of predictions from stopping early, relative to their norm, (F, A)."""
        # ‖f − f*‖² is at most the excess, apart from rounding
        excess, squares = (
            values.reshape(self.problem.shape).sum(axis=2) for values in (self.excess, self.residual.sums["squares"])
        )
        return np.asarray(np.sqrt(excess / np.maximum(squares, 1e-300)))

    def cancellation_error(self, inputs: Inputs) -> Array:
        """Estimate the error of predictions from coefficients that nearly cancel, relative to their norm, (F, A)."""
        basis, sums, n = self.problem.basis, self.residual.sums, self.residual.weight
        squares = sums["squares"]
        if self.problem.with_intercept:  # f is then about its mean, and y about a point near its own
            shift = np.resize(inputs.shift, squares.shape)  # repeats the targets
            squares = np.maximum(squares - sums["e"] ** 2 / n, 0) + n * shift**2
        rounded = 8 * np.finfo(np.float64).eps * np.abs(self.coef).sum(axis=0)
        rounded += np.finfo(basis.dtype).eps * np.linalg.norm(self.coef, axis=0)  # of blocks, each by itself
        lost, squares = (values.reshape(self.problem.shape).sum(axis=2) for values in (n * rounded**2, squares))
        return np.asarray(self.problem.core.largest * np.sqrt(lost / np.maximum(squares, 1e-300)))


def solve_cg(problem: CGProblem, require_labels: Callable[[Residual], None], start: Array | None = None) -> CGResult:
    """Solve for all columns, from `start` (m, columns) where it is given, else from the rows of the sub-sample.

    `require_labels` raises, after the first sweep of all rows, where they cannot be fitted.

    Raises
    ------
    DataError
        No labelled row to train on, or targets whose squares overflow float64.
    """
    stopping = problem.stopping
    P: Preconditioner | None = None
    # v = 0, or the solution of a sample of rows, whose normal matrix is the preconditioner
    coef = np.zeros((problem.basis.width, len(problem.penalties())))
    if problem.sample_rows:
        P, coef = _draw_preconditioner(problem)
    coef = coef if start is None else start
    # r = Bᵀw(y − Bv) − αKv of all rows, in one sweep
    residual = problem.residual(coef)
    require_some(problem.rows, skipped(problem.reports[0]))
    require_labels(residual)
    require_squares("y", residual.sums["sse"] + residual.sums["squares"], residual.values)
    # without a sample landmarks stand for rows: BᵀwB + αK is taken for (n/m)K² + αK
    if P is None:
        emit(Note(f"factoring the kernel matrix of {problem.basis.width:,} landmarks"))
        with spent("preconditioner"):
            P = precondition_by_core(problem, float(np.maximum(residual.sums["n"], 1e-300).mean()))
    # where targets are noise, each direction lost to rounding takes 1/n of the objective
    lost = P.lost / np.maximum(residual.count, 1)
    enough = np.maximum(stopping.tol - lost, stopping.tol / 2)
    with solving(problem.method):
        state = start_cg(coef, residual.values, P.solve, P.least)
    history: list[float] = []
    # all steps, then again from the residual of the rows, as long as that halves the excess of a column
    while True:
        steps, before = len(history), state.excess
        coef, ritz = _iterate(problem, residual, state, P, enough, history)
        # the recursive residual drifts from that of the rows by rounding
        residual = problem.residual(coef)
        with solving(problem.method):
            state = start_cg(coef, residual.values, P.solve, ritz)
        over = state.excess > enough * residual.least_objective
        nearer = over & (state.excess < _HALVED * before)
        if not nearer.any() or len(history) >= stopping.max_iter or len(history) == steps:
            break
    # what rounding takes counts as excess too
    rounded = bool((over & (len(history) < stopping.max_iter) | (lost > stopping.tol)).any())
    excess = state.excess + lost * residual.least_objective
    name, jitter = describe_preconditioner(P.factors[0].rows), max(factor.jitter for factor in P.factors)
    return CGResult(problem, coef, residual, excess, rounded, history, name, jitter)


def _draw_preconditioner(problem: CGProblem) -> tuple[Preconditioner, Array]:
    """Draw a sub-sample in one sweep; return its preconditioner and the solution of its rows alone."""
    with spent("preconditioner"):
        statistic = leverage_sample(problem)
    ids, weight, fold = statistic.sample(problem.sweep(statistic))
    require_some(problem.rows, skipped(problem.reports[-1]))
    require_labelled(len(ids), float(weight.sum()))
    emit(Note(f"computing the normal matrix of {len(ids):,} rows"))
    with spent("preconditioner"):
        return precondition_by_sample(problem, ids, weight, fold)


def _iterate(
    problem: CGProblem, residual: Residual, state: CGState, P: Preconditioner, enough: Array, history: list[float]
) -> tuple[Array, Array]:
    """Step until every column has converged or stalled; penalties whose columns all have are left out of later sweeps.

    Return v (m, columns) and the smallest Ritz values (columns,), and append the bound after each step to `history`.
    """
    (F, A, c), stopping = problem.shape, problem.stopping
    coef, ritz = state.coef.copy(), state.ritz.copy()
    objective, null = residual.objective, residual.null_objective
    columns, active = np.arange(F * A * c), np.arange(A)  # those that `state` still has
    while True:
        # a penalty ends when the columns of all its folds and targets are near the minimum, or stall
        near = state.excess <= enough[columns] * np.minimum(objective, null)
        ended = near.reshape(F, -1, c).all(axis=(0, 2)) | state.stalled.reshape(F, -1, c).all(axis=(0, 2))
        going = np.flatnonzero(~ended)
        last = not len(going) or len(history) >= stopping.max_iter
        if last or len(going) < len(active):
            coef[:, columns], ritz[columns] = state.coef, state.ritz
        if last:
            return coef, ritz
        # those that have ended take no part in later sweeps
        if len(going) < len(active):
            kept = np.arange(len(columns)).reshape(F, -1, c)[:, going].ravel()
            columns, active = columns[kept], active[going]
            state, P, objective, null = state.select(kept), P.select(kept), objective[kept], null[kept]
        # one sweep for Ap of all columns, and a step along p in each
        product = problem.product(state.direction, active, residual)
        with solving(problem.method):
            state = step_cg(state, product, P.solve)
        objective = objective - state.decrease
        history.append(float((state.excess / np.maximum(np.minimum(objective, null), 1e-300)).max()))
        progress = (
            f"step {len(history)} of at most {stopping.max_iter}: relative excess of the objective at most "
            f"{history[-1]:.1g}"
        )
        emit(Note(f"{progress} (tol={stopping.tol:g})"))


def fit_by_cg(problem: CGProblem, inputs: Inputs, start: Array | None = None) -> tuple[IterativeFit, str]:
    """Fit one penalty to all rows, from coefficients `start` (m, c) if given; return how it misses `tol`, or ""."""

    def require_labels(residual: Residual) -> None:
        require_labelled(float(residual.sums["rows"][0]), float(residual.sums["n"][0]))

    # one penalty and no folds: the columns are the targets
    result = solve_cg(problem, require_labels, start)
    basis, tol, residual, steps = problem.basis, problem.stopping.tol, result.residual, len(result.history)
    errors = result.relative_excess, result.stopping_error, result.cancellation_error(inputs)
    share, error, cancellation = (float(values[0, 0]) for values in errors)
    # too large an excess is the caller's to solve otherwise; coefficients that nearly cancel are warned of
    missed = ""
    if share > tol:
        advice = "rounding error allows no smaller one; use" if result.rounded else "increase max_iter, or use"
        missed = (
            f"conjugate gradients stopped after {steps} steps with a relative excess of the objective up to "
            f"{share:.1g}, above tol={tol:g}: {advice} a larger alpha, or solver='direct'"
        )
    elif cancellation > max(PROMISE, error):
        warnings.warn(
            f"predictions may differ from least squares in float64 by about {cancellation:.1g} of their norm: the "
            "landmarks are nearly dependent under the kernel, and their coefficients cancel; use fewer landmarks, a "
            "larger alpha, dtype='float64' or solver='direct'",
            AccuracyWarning,
            stacklevel=3,
        )
    # b, training errors and counts are those of the last residual
    fit = IterativeFit(
        inputs=inputs,
        basis=basis,
        solution=IterativeSolution(
            coef=result.coef,
            intercept=residual.intercept + inputs.shift,
            rank=basis.width,
            alpha=problem.alphas[0],
            training_mse=np.maximum(residual.squared_error, 0) / residual.weight,
            with_intercept=problem.with_intercept,
            iterations=steps,
        ),
        diagnostics={
            "excess": share,
            "prediction_error": max(error, cancellation),
            "iterations": steps,
            "jitter": result.jitter,
            **basis.figures(),
        },
        sweep={
            **_join_reports(problem.reports),
            "preconditioner": result.preconditioner,
            "excess_by_step": result.history,
            "tol": tol,
        },
        skipped_rows=skipped(problem.reports[0]),
        rows=int(residual.sums["rows"][0]),
    )
    return fit, missed


def _join_reports(reports: list[Report]) -> Report:
    """Join the reports of all sweeps: the last one, with totals of times and counts."""
    counts = ("retries", "lost_workers", "repeated_segments", "damaged_partials", "resumed_segments")
    figures = cast(list[dict[str, float]], reports)
    total = {name: sum(report[name] for report in figures) for name in ("flops", "bytes_read", "seconds", *counts)}
    total |= {name: max(report[name] for report in figures) for name in ("peak_bytes", "planned_bytes")}
    stages: dict[str, float] = {}
    for report in cast(list[dict[str, dict[str, float]]], reports):
        for name, seconds in report["stage_seconds"].items():
            stages[name] = stages.get(name, 0.0) + seconds
    incidents = [text for report in cast(list[dict[str, list[str]]], reports) for text in report["incidents"]]
    return {**reports[-1], **total, "incidents": incidents, "stage_seconds": stages, "sweeps": len(reports)}
