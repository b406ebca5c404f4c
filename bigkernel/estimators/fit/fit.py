"""A fit: its columns, their sums, a small solve, its error, and again in the next precision where that is too large.

`fit_sums` is the whole of a fit from sums. A search goes the same way for many candidates and folds
(`search.judging`). `add_rows`, `solve_again` and `fit_columns` continue a fit from the sums it keeps. Shapes: p
columns, c targets. Tests: estimators/test_every_method.py.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple, cast

import numpy as np

from bigkernel.arrays import Array
from bigkernel.engine.executor import EndedEarly
from bigkernel.errors import ConfigError, DataError, PlanTooLargeError
from bigkernel.estimators.fit.basis import BasisChoice, LandmarkBasis, RowChoice
from bigkernel.estimators.fit.calibration import calibrate
from bigkernel.estimators.fit.graph import Graph
from bigkernel.estimators.fit.method import (
    Method,
    choose_on_folds,
    coefficients_of,
    estimate_error,
    record,
    report_solve,
    resolved,
    skipped,
    solve,
    sum_up,
)
from bigkernel.estimators.fit.precision import (
    Finer,
    Whitened,
    exact_errors,
    factor,
    next_precision,
    of_columns,
    precision_of_first_rows,
    whitened,
    worth_factoring,
)
from bigkernel.estimators.fit.state import (
    AlignedSolution,
    Columns,
    ExactFit,
    ExactProblem,
    Fit,
    MomentFit,
    Problem,
    R,
    Report,
    S,
    Solved,
)
from bigkernel.estimators.inputs.checks import chosen_by_folds, finite, solving
from bigkernel.estimators.inputs.exact import read_exact
from bigkernel.estimators.inputs.training import Training
from bigkernel.events.job import Note, emit
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.whitening import Whitening


def fit(method: Method[R, S], columns: BasisChoice | RowChoice, data: Training) -> Fit:
    """Fit a method to rows."""
    # without a number of landmarks every row is one: an n×n matrix, and no sweep
    if columns.exact:
        assert isinstance(columns, BasisChoice)
        return fit_exact(method, columns, data)
    # landmarks are drawn, or features, before the first sweep
    basis = columns.choose(data.rows)
    # steps that sum products with vectors, where m×m sums would cost more
    iterated = method.iterate(data, columns, basis)
    return iterated or fit_sums(method, data, basis, choose=columns.dtype == "auto")


def fit_sums(method: Method[R, S], data: Training, basis: Columns, *, choose: bool, sums: Summed | None = None) -> Fit:
    """Fit from these sums of the rows, if they are precise enough, else from sweeps.

    `choose`: the dtype of blocks may be chosen.
    """
    # G = BᵀB and C = BᵀY of all rows, and T with TᵀKT = I, K the core of the landmarks
    sums = sums or sum_in_precision(method, data, basis, choose=choose)
    notes = [*sums.notes]
    while True:
        # α and what else folds choose, from sums without each of them
        chosen, choice = choose_on_folds(method, sums.problem)
        # (TᵀGT + αI)u = TᵀC, W = Tu, and how far rounding moves the predictions
        solved = solve(chosen, sums.problem, sums.whitening, deepcopy(sums.diagnostics))
        unresolved = solved.solution.unresolved or (choice is not None and choice.unresolved)
        # the same in the next precision, as long as there is one and they would be off
        errors = solved.diagnostics.errors
        finer = next_precision(sums.problem.basis, errors, choose=choose, unresolved=unresolved)
        if finer is None:
            break
        try:
            emit(Note(f"{method.name}: {finer}"))
            sums = sum_in_precision(method, data, finer.basis, choose=choose, white=sums.white)
            notes += [str(finer), *sums.notes]
        except PlanTooLargeError as error:
            solved.diagnostics.notes.append(f"{finer.reason}, and {finer.remedy} does not fit in memory: {error}")
            break
    # R with RᵀR = [B, Y]ᵀ[B, Y], where squares lose too much
    solved, report = refit_by_qr(chosen, data, solved, sums, notes)
    # what the method does with a first solution, such as rounds of pseudo-labels, and the warnings of its solve
    fit = method.finish(solved, data, {**report, "swept_again": notes} if report else {})
    # probabilities, from values of f at rows that were held out
    return calibrate(method, fit, data)


class Summed(NamedTuple):
    """Sums of the rows, the whitening of their columns with its diagnostics, and the report of their sweep."""

    problem: Problem
    whitening: Whitening
    diagnostics: SolveDiagnostics
    report: Report
    notes: tuple[str, ...] = ()  # why sweeps before it ended early

    @property
    def white(self) -> Whitened:
        """The columns with their whitening."""
        return self.problem.basis, self.whitening, self.diagnostics


def sum_in_precision(
    method: Method[R, S],
    data: Training,
    basis: Columns,
    *,
    choose: bool,
    white: Whitened | None = None,
    look: bool = True,
) -> Summed:
    """Sum up the rows, in float64 if a float32 core would lose landmarks; a whitening of the same dtype is reused.

    A sweep ends if a `look` at its first rows shows that its precision is not enough, and the next one begins.
    """
    # T with TᵀKT = I, which also probes how sums are rounded
    if white is None or white[0].dtype != basis.dtype:
        white = whitened(basis, choose=choose and method.whitens, solves=method.whitens)
        basis = white[0]
    _, whitening, diagnostics = white
    judge = judge_of_first_rows(method, basis, whitening, choose=choose) if look else None
    try:
        problem, report = sum_up(method, data, basis, whitening if basis.probed else None, judge=judge)
        return Summed(problem, whitening, diagnostics, report)
    except EndedEarly as early:
        finer = cast(Finer, early.found)
    emit(Note(f"{method.name}: {finer}"))
    try:
        sums = sum_in_precision(method, data, finer.basis, choose=choose, white=white)
    except PlanTooLargeError:  # to the last row then, and with a warning
        return sum_in_precision(method, data, basis, choose=choose, white=white, look=False)
    return sums._replace(notes=(str(finer), *sums.notes))


def judge_of_first_rows(
    method: Method[R, S], basis: Columns, whitening: Whitening, *, choose: bool
) -> Callable[[Problem, float], Finer | None] | None:
    """Return what judges the sums of the first rows of a sweep, where there is a finer precision."""
    if not basis.probed or basis.dtype == "float64":
        return None

    def judge(problem: Problem, share: float) -> Finer | None:
        try:
            chosen, _ = choose_on_folds(method, problem)
            errors = solve(chosen, problem, whitening).diagnostics.errors
        except DataError:  # of too few rows for a solve
            return None
        return precision_of_first_rows(problem.basis, errors, share, choose=choose)

    return judge


def refit_by_qr(
    method: Method[R, S], data: Training, solved: Solved[R, S], sums: Summed, notes: list[str]
) -> tuple[Solved[R, S], Report]:
    """Solve from the R factor of the rows, where moments lose too much and it fits; else return what is given."""
    columns = solved.problem.basis.width + data.labels.width
    factors = method.has_formula and not method.probability  # without a fold there are moments alone
    if not factors or not worth_factoring(solved.diagnostics.errors, columns):
        return solved, sums.report
    factored = factor(method.name, solved.problem, data, solved.diagnostics, notes)
    if factored is None:
        return solved, sums.report
    problem, report = factored
    return solve(method, problem, sums.whitening, sums.diagnostics), report


# -- continuing a fit --------------------------------------------------------------------------------------------------


def add_rows(method: Method[R, S], before: MomentFit, data: Training) -> MomentFit:
    """Fit to more rows, on the columns of a fit."""
    whitening = before.basis.whitening(solves=method.whitens) if "E" in before.statistics else None
    more, report = sum_up(method, data, before.basis, whitening)
    return record(method, solve(method, before.joined(more)), report, before.skipped_rows + skipped(report))


def solve_again(method: Method[R, S], before: MomentFit) -> MomentFit:
    """Solve again from the sums of a fit, with other parameters."""
    return record(method, solve(method, before), before.sweep, before.skipped_rows, before.rounds)


def some_landmarks(before: MomentFit, graph: Graph, count: int, columns: BasisChoice) -> Array:
    """Return the positions of `count` landmarks, of each view, that represent those of a fit."""
    basis = before.basis
    m = basis.width // basis.views
    if isinstance(before.solution, AlignedSolution):
        raise ConfigError(f"with_landmarks: needs new rounds of pseudo-labels; fit with n_landmarks={count}")
    if graph.exists:
        what = f"with manifold={graph.manifold!r}, whose graph joins all landmarks"
        raise ConfigError(f"with_landmarks: not supported {what}; fit again")
    if columns.fourier:
        raise ConfigError(
            f"with_landmarks: landmarks={columns.landmarks!r} gives random features, not landmarks; fit with a "
            "smaller n_landmarks"
        )
    if not 1 <= count <= m:
        whose = "the fit" if basis.views == 1 else "a view of the fit"
        raise ConfigError(f"with_landmarks: expected from 1 to the {m:,} landmarks of {whose}, found {count}")
    if basis.views > 1 or not isinstance(columns.landmarks, str):  # in random order, or in the order given
        return (m * np.arange(basis.views)[:, None] + np.arange(count)).ravel()
    # sampled landmarks are in the order of their rows, which may be sorted by class or by time
    return np.sort(np.random.RandomState(0).permutation(m)[:count])


def fit_columns(method: Method[R, S], before: MomentFit, columns: Array) -> MomentFit:
    """Fit on some of the landmarks of a fit, at positions (k,), from its sums."""

    def select(problem: Problem) -> Problem:
        return of_columns(problem, columns)

    solved = solve(method, select(before))
    if before.r_factor is None:  # a solve from an R factor estimates its own error
        whitening = before.basis.whitening(solves=method.whitens)
        solved.diagnostics.errors = estimate_error(method, before, whitening, solved.solution, select)
    return record(method, solved, before.sweep, before.skipped_rows)


# -- the exact form ----------------------------------------------------------------------------------------------------


def fit_exact(method: Method[R, S], columns: BasisChoice, data: Training) -> Fit:
    """Fit from the n×n kernel matrix of rows in memory."""
    # the rows, targets and n×n kernel matrix, all in memory
    exact = read_exact(method.name, data.rows, None if method.semi_supervised else data.targets)
    targets = exact.targets(data.targets)
    kernel, K = exact.gram(columns.kernel)
    basis, folds = LandmarkBasis(kernel, exact.X, "float64"), exact.folds() if chosen_by_folds(method.alpha) else None
    problem = ExactProblem(data.inputs, basis, K, targets, exact.weight, folds)
    diagnostics = SolveDiagnostics()
    with solving(method):
        solution = finite(method, method.solve_exact(problem, diagnostics))
        again = resolved(method, solution)
        # the same solve with other rounding errors tells how far they move predictions
        diagnostics.errors = exact_errors(
            problem,
            coefficients_of(solution),
            lambda other: coefficients_of(again.solve_exact(other, SolveDiagnostics())),
            solution.alpha,
            left_out="eigen" in diagnostics.ratios,
            up_to_rotation=method.rotates,
        )
    fit = ExactFit(
        inputs=data.inputs,
        basis=problem.basis,
        solution=solution,
        diagnostics=report_solve(method, problem, solution, diagnostics),
        skipped_rows=exact.skipped,
        weight=exact.weight,
    )
    return calibrate(method, fit, data)
