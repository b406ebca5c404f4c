"""A method: what is summed up, and how sums are solved; and the sweep and the solve that all methods share.

A method is a frozen value (`Method`). `sum_up` sweeps the rows for its sums, `solve` takes coefficients from them and
estimates their error, `record` makes a fit of both. `estimators.fit.fit` puts them in order; searches, calibration and
rounds of pseudo-labels call them too. Shapes: p columns, c targets, g groups of rows.
Tests: estimators/test_new_estimator.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import ClassVar, Generic, TypeVar, cast

from bigkernel.engine.executor import Look
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import ConfigError
from bigkernel.estimators.fit.basis import BasisChoice, RowChoice
from bigkernel.estimators.fit.folds import Choice, choose_by_folds, keep_folds, with_folds
from bigkernel.estimators.fit.graph import NO_GRAPH, Graph
from bigkernel.estimators.fit.precision import (
    Alpha,
    Coefficients,
    is_probed,
    perturbed_errors,
    probed_sweep,
    rounding_note,
    with_probe,
)
from bigkernel.estimators.fit.state import (
    Columns,
    ExactProblem,
    Fit,
    MomentFit,
    Problem,
    R,
    Report,
    RowBasis,
    S,
    Solution,
    Solved,
    SpectralSolution,
)
from bigkernel.estimators.inputs.checks import chosen_by_folds, finite, require_some, solving
from bigkernel.estimators.inputs.training import AnyTargets, Training
from bigkernel.events.job import spent
from bigkernel.kernels.kept_blocks import KeptMap
from bigkernel.solvers.penalty_grid import Coordinates, SolveSettings
from bigkernel.solvers.residuals import Errors, SolveDiagnostics
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import CellMomentStatistic, Cells
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.plan import Accumulator, Plan

FIRST_ROWS = 16  # least rows a column that tell the precision of a sweep
M = TypeVar("M", bound="Method")


@dataclass(frozen=True, eq=False, kw_only=True)
class Method(Generic[R, S]):
    """What one method sums up, and how it solves.

    `R` is what all solves of the same sums share, `S` the solution.

    Attributes
    ----------
    name : of the estimator, for messages
    alpha : its penalty, or the rule that chooses it
    probability : whether probabilities are calibrated on folds
    graph : of all rows, whose weight is 0 where a method has none
    semi_supervised : whether rows without a label (−1, NaN) shape the model; otherwise they are left out
    has_formula : whether it is least squares alone, whose error has a formula and which an R factor of the rows solves
        too; otherwise sums are perturbed (`estimate_error`)
    rotates : whether its columns are used together, up to a rotation
    whitens : whether its columns are whitened to solve, and not only to probe rounding
    """

    name: str
    alpha: Alpha = 0.0
    probability: bool = False
    graph: Graph = NO_GRAPH
    semi_supervised: ClassVar[bool] = False
    has_formula: ClassVar[bool] = False
    rotates: ClassVar[bool] = False

    @property
    def whitens(self) -> bool:
        return True

    def check_settings(self, columns: BasisChoice) -> None:
        """Raise `ConfigError` for parameters that do not work with these columns."""

    # -- from rows to sums ---------------------------------------------------------------------------------------------

    def statistic(self, basis: Columns, targets: AnyTargets) -> MomentStatistic:
        """Return the statistic of the sweep, which sums by domain and class where rows have domains."""
        if isinstance(targets, Cells):
            return CellMomentStatistic(basis.centred(), targets, sums=basis.sum_dtype)
        assert isinstance(targets, Targets)
        unlabelled = "keep" if self.semi_supervised else "drop"
        statistic = MomentStatistic(basis.centred(), targets, unlabelled, sums=basis.sum_dtype)
        # with sums of the nearest landmarks of each row, if there is a graph
        return self.graph.add_anchors(statistic)

    def check(self, problem: Problem, rows: str) -> Problem:
        """Validate the sums of the named rows, and add what the method keeps beside them."""
        return self.graph.with_neighbors(problem)

    # -- from sums to coefficients -------------------------------------------------------------------------------------

    def reduce(self, problem: Problem, whitening: Whitening) -> R:
        """Return the data that all solves of a problem share, from its sums and the whitening of its columns."""
        return cast(R, whitening)

    def reduce_without(self, reduced: R, problem: Problem) -> R:
        """Return the result of `reduce` for the sums without a fold, from that for all rows."""
        return reduced

    def solve(self, problem: Problem, reduced: R, diagnostics: SolveDiagnostics) -> S:
        """Return the solution from sums and the result of `reduce`."""
        raise TypeError(self.name)

    def solve_exact(self, problem: ExactProblem, diagnostics: SolveDiagnostics) -> S:
        """Return the solution from the kernel matrix of all rows."""
        raise TypeError(self.name)

    # -- for searches and choices on folds -----------------------------------------------------------------------------

    def solve_settings(self) -> SolveSettings:
        """Return the parameters that may differ between candidates with the same moments."""
        raise ConfigError(
            f"{self.name}: its penalty is not supported by SweepSearchCV; use scikit-learn's GridSearchCV"
        )

    def coordinates(self, problem: Problem, n_components: int, whitening: Whitening | None = None) -> Coordinates:
        """Return the coordinates in which the method is ridge, from the sums of all rows.

        `whitening` is that of the basis, if known.
        """
        raise TypeError(f"{self.name} has no coordinates")

    # -- around sums and their solve -----------------------------------------------------------------------------------

    def iterate(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> Fit | None:
        """Fit by steps of a sweep each; None where moments are summed and solved instead."""
        return None

    def finish(self, solved: Solved[R, S], data: Training, sweep: Report) -> MomentFit:
        """Return the fit of a first solution, after what a method does next with it."""
        return record(self, solved, sweep, skipped(sweep))

    def plan(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> Plan:
        """Return the plan of the sweeps that a fit makes."""
        return plan_sums(self, data, basis, probed=basis.probed)


# -- what follows from a method ----------------------------------------------------------------------------------------


def holds_out(method: Method) -> bool:
    """Return whether the sums of folds are kept beside those of all rows: to choose a penalty, or to calibrate."""
    return method.probability or chosen_by_folds(method.alpha)


def with_choice(method: M, choice: Choice) -> M:
    """Return the method with the penalty, and the weight of its graph, that folds have chosen."""
    return replace(method, alpha=choice.alpha, graph=method.graph.weighing(method.graph.weights[choice.block]))


@singledispatch
def choose_on_folds(method: Method, problem: Problem) -> tuple[Method, Choice | None]:
    """Return the method with what folds choose, and their choice; None if they have none."""
    if not chosen_by_folds(method.alpha):
        return method, None
    with spent("solve"), solving(method):
        choice = choose_by_folds(method, problem)
    return with_choice(method, choice), choice


def resolved(method: M, solution: Solution) -> M:
    """Return the method with the numbers of a solution in the place of the rules that chose them."""
    alpha = solution.alpha if isinstance(method.alpha, str) else method.alpha
    weight = solution.manifold if isinstance(solution, SpectralSolution) else method.graph.weights[0]
    return replace(method, alpha=alpha, graph=method.graph.weighing(weight))


# -- sums and solves ---------------------------------------------------------------------------------------------------


def plan_sums(method: Method, data: Training, basis: Columns, *, probed: bool) -> Plan:
    """Return the plan of the sweep of sums."""
    statistic = method.statistic(basis, data.targets)
    statistic = with_folds(statistic) if holds_out(method) else statistic
    return plan_sweep(data.rows, with_probe(statistic, (), len(data.rows)) if probed else statistic)


def sum_up(
    method: Method[R, S],
    data: Training,
    basis: Columns,
    whitening: Whitening | None = None,
    *,
    what: str = "moments",
    kept: KeptMap | None = None,
    judge: Callable[[Problem, float], object] | None = None,
) -> tuple[Problem, Report]:
    """Sum up the rows by a sweep, and return the problem and the report; with a whitening, rounding is probed.

    `kept`: the map of the basis, if later sweeps use its blocks again. `judge`: see `engine.executor.Look`.
    """
    statistic = method.statistic(basis, data.targets)
    statistic = with_folds(statistic) if holds_out(method) else statistic
    if kept is not None:
        statistic = replace(statistic, features=replace(kept, shift=statistic.features.shift_of(0)))

    def problem_of(total: Accumulator) -> Problem:
        shift = None if isinstance(basis, RowBasis) else getattr(statistic.features, "shift", None)
        # sums that were not probed are moved to 0; the others stay about the point where their rounding was measured
        problem = Problem.of_sums(data.inputs, basis, total, shift)
        if holds_out(method):
            # held-out rows join those without a label, but those of a source do not join the target
            joins = method.semi_supervised and isinstance(data.targets, Targets)
            problem = keep_folds(problem, data.rows, semi_supervised=method.semi_supervised, joins=joins)
        return method.check(problem, data.rows.name)

    # the first rows are judged where a solve costs little beside the sweep
    look = None
    if judge is not None and len(data.rows) >= least_rows(method, basis.width):
        rows = max(len(data.rows) // 10, FIRST_ROWS * basis.width)
        look = Look(rows, lambda total, share: judge(problem_of(total), share))
    # G, C, s and counts by group, and products of some rows with the vectors of a probe
    swept = probed_sweep(data.rows, statistic, whitening, what=what, look=look)
    report = swept.report()
    require_some(data.rows, skipped(report))
    return problem_of(swept.total), report


def least_rows(method: Method[R, S], columns: int) -> int:
    """Return from how many rows on a solve in the middle of a sweep takes less than a thirtieth of it, as measured."""
    if chosen_by_folds(method.alpha) or not method.has_formula:
        return 2000 * columns
    return columns * (400 if isinstance(method.alpha, str) else 150)


def skipped(report: Report) -> int:
    """Return the number of bad rows that a sweep left out, from its report."""
    count = report.get("skipped_rows", 0)
    assert isinstance(count, int)
    return count


def solve(
    method: Method[R, S],
    problem: Problem,
    whitening: Whitening | None = None,
    diagnostics: SolveDiagnostics | None = None,
    *,
    reduced: R | None = None,
    estimate: bool = True,
) -> Solved[R, S]:
    """Solve, and estimate the error where the sums were probed.

    `whitening` and `reduced` are computed unless they are given.
    """
    problem.require_labels()
    problem.basis.require_range(problem.statistics)
    diagnostics = diagnostics or SolveDiagnostics()
    with spent("solve"), solving(method):
        if whitening is None:
            whitening = problem.basis.whitening(diagnostics, solves=method.whitens)
        if reduced is None:
            reduced = method.reduce(problem, whitening)
        solution = finite(method, method.solve(problem, reduced, diagnostics))
        if estimate and not method.has_formula and diagnostics.errors is None:
            diagnostics.errors = estimate_error(method, problem, whitening, solution)
    return Solved(problem, solution, diagnostics, reduced, whitening)


def record(
    method: Method[R, S],
    solved: Solved[R, S],
    sweep: Mapping[str, object],
    skipped_rows: int,
    rounds: Sequence[Mapping[str, float]] = (),
) -> MomentFit:
    """Return the fit of a solution: emit the warnings of the solve, and keep its diagnostics for the report."""
    figures = report_solve(method, solved.problem, solved.solution, solved.diagnostics)
    return MomentFit.of(solved, figures, sweep, skipped_rows, rounds)


def report_solve(
    method: Method[R, S], problem: Problem | ExactProblem, solution: S, diagnostics: SolveDiagnostics
) -> dict[str, float | int]:
    """Emit the warnings of a solve, and return its figures."""
    basis = problem.basis
    # "gcv" chooses a penalty that suits the moments as they are
    if basis.probed and diagnostics.penalty_lost and diagnostics.errors is None and not isinstance(method.alpha, str):
        advice = "dtype='float64' or " if basis.dtype == "float32" else "fewer landmarks, centred and scaled rows, or "
        diagnostics.notes.append(f"{rounding_note(problem, solution, diagnostics)}; use {advice}a larger alpha")
    diagnostics.warn()
    return {**diagnostics.report(), **basis.figures()}


def estimate_error(
    method: Method[R, S],
    problem: Problem,
    whitening: Whitening | None,
    solution: S,
    select: Callable[[Problem], Problem] = lambda problem: problem,
) -> Errors | None:
    """Estimate the errors of a solution from solves of perturbed sums; None where the sums were not probed.

    `select` takes from the probed sums those that the solution was solved from.
    """
    if whitening is None or not is_probed(problem):
        return None
    again, selected = resolved(method, solution), select(problem)

    # the whitening of other sums is the same, unless their columns are others
    def solve_other(other: Problem) -> Coefficients:
        other = select(other)
        known = whitening if other.basis is problem.basis else None
        return coefficients_of(solve(again, other, known, estimate=False).solution)

    fitted = coefficients_of(solution)
    moments, up_to_rotation = selected.basis.predicted_from(selected.moments), method.rotates
    errors = perturbed_errors(
        problem, whitening, fitted, solve_other, moments, selected.basis, up_to_rotation=up_to_rotation
    )
    return None if errors is None else errors[0]


def coefficients_of(solution: Solution) -> Coefficients:
    """Return the coefficients and intercepts of a solution."""
    return solution.coef, solution.intercept
