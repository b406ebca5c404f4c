"""Fit methods from sums: columns, one sweep, a small solve, its estimated error.

A method is a frozen value (`Method`) that says what is summed and how the sums are solved. `sweep_until_precise`
repeats a sweep in the next precision where rounding may change predictions too much. Fits and searches share it; the
solves of a search are those of many candidates and folds (`search.sweeps`). Exact fits (`fit_exact`), conjugate
gradients, logistic regression and the QR factorisation after a fit do not use it.
Shapes: p columns, c targets, g groups of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Self, TypeVar, cast

import numpy as np

from bigkernel.arrays import Array
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import ConfigError, PlanTooLargeError
from bigkernel.estimators.checks import chosen_by_folds, finite, require_some, require_sums, solving
from bigkernel.estimators.fit_state import (
    AnyTargets,
    Columns,
    ExactFit,
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
    Training,
)
from bigkernel.estimators.folds import Choice, choose_by_folds, keep_folds, with_folds
from bigkernel.estimators.graph import NO_GRAPH, Graph
from bigkernel.estimators.inputs import ExactRows, read_exact
from bigkernel.estimators.kernel_basis import BasisChoice, LandmarkBasis, RowChoice, of_kernel
from bigkernel.estimators.precision import (
    Alpha,
    Coefficients,
    exact_errors,
    is_probed,
    next_precision,
    of_columns,
    perturbed_errors,
    probed_sweep,
    refit_by_qr,
    rounding_note,
    whitened,
    with_probe,
    worth_factoring,
)
from bigkernel.events.job import Note, emit, spent
from bigkernel.kernels.feature_maps import FeatureMap
from bigkernel.kernels.kept_blocks import KeptMap
from bigkernel.solvers.penalty_grid import Coordinates, SolveSettings
from bigkernel.solvers.residuals import ENOUGH, Errors, SolveDiagnostics
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import CellMomentStatistic, Cells
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets
from bigkernel.streaming.plan import Plan

ExactTargets = tuple[Array, Array | Cells]  # of an exact fit: see `Method.exact_targets`


@dataclass(frozen=True, eq=False, kw_only=True)
class Method(Generic[R, S]):
    """What one method sums up, and how it solves.

    Attributes
    ----------
    name : of the estimator, for messages
    alpha : its penalty, or the rule that chooses it
    probability : whether probabilities are calibrated on folds
    graph : of all rows, whose weight is 0 where a method has none
    unlabelled : "keep" where rows without a label (−1, NaN) shape the model, "drop" where they are left out
    has_formula : whether the error of a solution has a formula; otherwise sums are perturbed (`estimate_error`)
    rotates : whether its columns are used together, up to a rotation
    whitens : whether its columns are whitened to solve, and not only to probe rounding
    probed : whether vectors in the sweep probe the rounding of the sums
    uses_qr : whether the rows are factored by QR where moments lose too much
    """

    name: str
    alpha: Alpha = 0.0
    probability: bool = False
    graph: Graph = NO_GRAPH
    solution_type: ClassVar[type[Solution]] = Solution
    unlabelled: ClassVar[str] = "drop"
    semi_supervised: ClassVar[bool] = False
    has_formula: ClassVar[bool] = False
    rotates: ClassVar[bool] = False

    @property
    def by_folds(self) -> bool:
        """Whether the penalty is chosen on folds."""
        return chosen_by_folds(self.alpha)

    @property
    def holds_out(self) -> bool:
        """Whether the sums of folds are kept beside those of all rows."""
        return self.probability or self.by_folds

    @property
    def whitens(self) -> bool:
        return True

    @property
    def probed(self) -> bool:
        return True

    @property
    def uses_qr(self) -> bool:
        return False

    def check_settings(self, columns: BasisChoice) -> None:
        """Raise `ConfigError` for parameters that do not work with these columns."""

    # -- from rows to sums ---------------------------------------------------------------------------------------------

    def statistic(self, basis: Columns, targets: AnyTargets) -> MomentStatistic:
        """Return the statistic of the sweep, which sums by domain and class where rows have domains."""
        if isinstance(targets, Cells):
            return CellMomentStatistic(basis.centred(), targets, sums=basis.sum_dtype)
        assert isinstance(targets, Targets)
        return MomentStatistic(basis.centred(), targets, self.unlabelled, sums=basis.sum_dtype)

    def check(self, problem: Problem, rows: str) -> Problem:
        """Validate the sums of the named rows, and add what the method keeps beside them."""
        del rows
        return problem

    # -- from sums to coefficients -------------------------------------------------------------------------------------

    def whiten(self, basis: Columns, diagnostics: SolveDiagnostics | None = None) -> Whitening:
        """Return the whitening of the columns, without a warning."""
        columns = of_kernel(basis)
        if self.whitens:
            return columns.whitening(diagnostics=diagnostics or SolveDiagnostics())
        return replace(columns, dtype="float64").whitening(diagnostics=SolveDiagnostics())

    def require_range(self, problem: Problem) -> None:
        """Raise `DataError` where sums are out of the range of float64."""
        require_sums(problem.statistics)

    def reduce(self, problem: Problem, whitening: Whitening) -> R:
        """Return the data that all solves of a problem share, from its sums and the whitening of its columns."""
        del problem
        return cast(R, whitening)

    def solve(self, problem: Problem, reduced: R, diagnostics: SolveDiagnostics) -> S:
        """Return the solution from sums and the result of `reduce`."""
        raise TypeError(self.name)

    def leaves_unresolved(self, solution: S) -> bool:
        """Return whether rounding leaves directions of this solution unresolved that float64 might resolve."""
        del solution
        return False

    def resolved(self, solution: S) -> Self:
        """Return the method with the parameters that a solution chose."""
        return replace(self, alpha=solution.alpha) if isinstance(self.alpha, str) else self

    def with_choice(self, choice: Choice) -> Self:
        """Return the method with what folds have chosen."""
        return replace(self, alpha=choice.alpha)

    def exact_targets(self, exact: ExactRows, targets: AnyTargets) -> ExactTargets:
        """Return the targets of an exact fit, validated before its kernel matrix is made."""
        assert isinstance(targets, Targets)
        return exact.labels(targets)

    def solve_exact(self, problem: ExactProblem, diagnostics: SolveDiagnostics) -> S:
        """Return the solution from the kernel matrix of all rows."""
        raise TypeError(self.name)

    # -- from coefficients to predictions ------------------------------------------------------------------------------

    def predicting(self, features: FeatureMap) -> FeatureMap:
        """Return the part of a feature map that solutions have coefficients of."""
        return features

    def predicted_from(self, problem: Problem) -> Moments:
        """Return the moments of the columns that a solution has coefficients of."""
        return problem.moments

    # -- for searches and calibration ----------------------------------------------------------------------------------

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

    def classes(self, targets: AnyTargets) -> Targets:
        """Return which rows are labelled, and how."""
        assert isinstance(targets, Targets)
        return targets

    @property
    def joins(self) -> bool:
        """Whether held-out rows stay among the rows without a label."""
        return self.unlabelled == "keep"

    def reduce_without(self, reduced: R, problem: Problem) -> R:
        """Return the result of `reduce` for the sums without a fold, from that for all rows."""
        del problem
        return reduced

    # -- for the estimator after its fit -------------------------------------------------------------------------------

    def require_same(self, before: MomentFit) -> None:
        """Raise `ConfigError` where these parameters cannot continue a fit."""

    def landmark_count(self, basis: Columns) -> int:
        """Return `n_landmarks` of a fit."""
        return int(basis.width)

    def some_landmarks(self, before: MomentFit, count: int, columns: BasisChoice) -> Array:
        """Return the positions of `count` landmarks that represent those of a fit."""
        width = self.landmark_count(before.basis)
        if columns.fourier:
            raise ConfigError(
                f"with_landmarks: landmarks={columns.landmarks!r} gives random features, not landmarks; fit with a "
                "smaller n_landmarks"
            )
        if not 1 <= count <= width:
            raise ConfigError(f"with_landmarks: expected from 1 to the {width:,} landmarks of the fit, found {count}")
        if not isinstance(columns.landmarks, str):
            return np.arange(count)
        # sampled landmarks are in the order of their rows, which may be sorted by class or by time
        return np.sort(np.random.RandomState(0).permutation(width)[:count])

    def report(self, fit: Fit) -> Report:
        """Return figures of a fit that are specific to this method."""
        del fit
        return {}

    # -- the whole fit -------------------------------------------------------------------------------------------------

    def fit(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> Fit:
        """Fit on the columns of a basis, from the sums of a sweep; methods that solve otherwise override it."""
        return fit_moments(self, data, basis, choose=columns.dtype == "auto")

    def finish(self, solved: Solved[R, S], data: Training, sweep: Report, skipped_rows: int) -> MomentFit:
        """Return the fit of a first solution."""
        del data
        return finish(self, solved, sweep, skipped_rows)

    def plan(self, data: Training, columns: BasisChoice | RowChoice, basis: Columns) -> Plan:
        """Return the plan of the sweep that a fit makes."""
        del columns
        statistic = self.statistic(basis, data.targets)
        statistic = with_folds(statistic) if self.holds_out else statistic
        return plan_sweep(data.rows, with_probe(statistic, (), len(data.rows)) if self.probed else statistic)


def fit(method: Method[R, S], columns: BasisChoice | RowChoice, data: Training) -> Fit:
    """Fit a method to rows: exactly from their n×n kernel matrix, or on columns chosen for them."""
    if columns.exact:
        assert isinstance(columns, BasisChoice)
        return fit_exact(method, columns, data)
    return method.fit(data, columns, columns.choose(data.rows))


@dataclass(eq=False, kw_only=True)
class Trial(ABC):
    """All solves from the sums of one basis: a fit, or in a search all candidates of a kernel on all folds.

    Attributes
    ----------
    basis : of the columns
    choose : whether the dtype of blocks may be chosen
    errors : the largest estimated error of its solutions; None where it is unknown
    unresolved : whether rounding leaves directions unresolved that float64 might resolve
    reason, precision : why the rows were last swept again, and what was in float64 then
    notes : the same as a sentence, one for each repeated sweep
    """

    basis: Columns
    choose: bool
    errors: Errors | None = None
    unresolved: bool = False
    reason: str = ""
    precision: str = ""
    notes: list[str] = field(default_factory=list)

    def refine(self) -> bool:
        """Take the next precision where predictions would be off; return False where they are not, or there is none."""
        errors = self.errors
        finer = (
            None
            if errors is None
            else next_precision(self.basis, errors, choose=self.choose, unresolved=self.unresolved)
        )
        if errors is None or finer is None:
            return False
        exceeds = f"estimated {self.basis.dtype} error {errors.total:.1g} exceeds {ENOUGH:.1g}"
        self.reason = exceeds if errors.total > ENOUGH else "some directions are lost in rounding error"
        self.precision = ("computing" if finer.dtype == "float64" else "accumulating") + " in float64"
        self.basis = finer
        self.notes.append(f"{self.reason}: {self.precision}")
        return True

    @abstractmethod
    def keep_coarser(self, error: PlanTooLargeError) -> None:
        """Keep the present solution, because a sweep in the next precision does not fit."""


T = TypeVar("T", bound=Trial)


def sweep_until_precise(trials: list[T], attempt: Callable[[list[T]], None]) -> Iterator[list[T]]:
    """Sweep and solve, again in the next precision as long as there is one and predictions would be off.

    Parameters
    ----------
    trials : one in a fit; in a search one a kernel
    attempt : sweep the rows for some trials, solve from the sums, and note the errors of the solutions

    Yields
    ------
    Trials that are done.
    """
    attempt(trials)
    while again := [trial for trial in trials if trial.refine()]:
        yield [trial for trial in trials if trial not in again]
        trials = again
        try:
            attempt(trials)
        except PlanTooLargeError as error:
            for trial in trials:
                trial.keep_coarser(error)
            break
    yield trials


@dataclass(eq=False, kw_only=True)
class FitTrial(Trial, Generic[R, S]):
    """The fit of a method to rows.

    Attributes
    ----------
    problem : the sums; given where a sweep has been made already
    report : of the last sweep, if one was made
    solved : from the sums
    """

    method: Method[R, S]
    data: Training
    problem: Problem | None = None
    report: Report = field(default_factory=dict)
    solved: Solved[R, S] = field(init=False)

    def attempt(self) -> None:
        """Sweep the rows, unless there are sums, and solve."""
        method, problem = self.method, None if self.notes else self.problem
        choose = self.choose and method.whitens and problem is None
        basis, whitening, diagnostics = whitened(method.whiten, self.basis, choose=choose)
        if problem is None:
            if self.notes:
                emit(Note(f"{method.name}: {self.notes[-1]}"))
            problem, self.report = sum_up(method, self.data, basis, whitening if method.probed else None)
        unresolved = False
        if method.by_folds:
            with spent("solve"), solving(method):
                choice = choose_by_folds(method, problem)
            method, unresolved = method.with_choice(choice), choice.unresolved
        self.solved = solve(method, problem, whitening, diagnostics)
        self.basis, self.problem = basis, problem
        self.errors = diagnostics.errors if method.probed else None
        self.unresolved = unresolved or method.leaves_unresolved(self.solved.solution)

    def keep_coarser(self, error: PlanTooLargeError) -> None:
        """Keep the present solution, and note the error for the warnings of the solve."""
        self.notes.pop()
        note = f"{self.reason}, and {self.precision} does not fit in memory: {error}"
        self.solved.diagnostics.notes.append(note)

    def refit_by_qr(self) -> None:
        """Solve from the R factor of the rows, where moments lose too much and it fits."""
        method, solved = self.method, self.solved
        if not method.uses_qr:
            return
        columns = solved.problem.basis.width + self.data.labels.width
        if not worth_factoring(solved.diagnostics.errors, columns):
            return
        factored = refit_by_qr(method.name, solved.problem, self.data, solved.diagnostics, self.notes)
        if factored is not None:
            problem, self.report = factored
            diagnostics = SolveDiagnostics()
            method = method.resolved(solved.solution) if method.by_folds else method
            self.solved = solve(method, problem, method.whiten(problem.basis, diagnostics), diagnostics)


def fit_moments(
    method: Method[R, S], data: Training, basis: Columns, *, choose: bool, problem: Problem | None = None
) -> MomentFit:
    """Fit from sums of the rows: those of `problem`, if they are good enough, else of sweeps.

    Parameters
    ----------
    choose : the dtype of blocks may be chosen
    problem : the sums of a sweep that has been made already
    """
    trial = FitTrial(method=method, data=data, basis=basis, choose=choose, problem=problem)
    for _ in sweep_until_precise([trial], lambda trials: trials[0].attempt()):
        pass
    trial.refit_by_qr()
    report: Report = {**trial.report, "swept_again": trial.notes} if trial.report else {}
    return method.finish(trial.solved, data, report, skipped(report))


def sum_up(
    method: Method[R, S],
    data: Training,
    basis: Columns,
    whitening: Whitening | None = None,
    *,
    what: str = "moments",
    kept: KeptMap | None = None,
) -> tuple[Problem, Report]:
    """Sum up the rows by a sweep, and return the problem and the report; with a whitening, rounding is probed.

    `kept`: the map of the basis, if later sweeps use its blocks again.
    """
    statistic = method.statistic(basis, data.targets)
    statistic = with_folds(statistic) if method.holds_out else statistic
    if kept is not None:
        statistic = replace(statistic, features=replace(kept, shift=statistic.features.shift_of(0)))
    swept = probed_sweep(data.rows, statistic, whitening, what=what)
    report = swept.report()
    require_some(data.rows, skipped(report))
    shift = None if isinstance(basis, RowBasis) else getattr(statistic.features, "shift", None)
    problem = Problem.of_sums(data.inputs, basis, swept.total, shift)
    if method.holds_out:
        first, stay = int(method.unlabelled == "keep"), method.semi_supervised
        problem = keep_folds(problem, data.rows, first, semi_supervised=stay, joins=method.joins)
    return method.check(problem, data.rows.name), report


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
    method.require_range(problem)
    diagnostics = diagnostics or SolveDiagnostics()
    with spent("solve"), solving(method):
        if whitening is None:
            whitening = method.whiten(problem.basis, diagnostics)
        if reduced is None:
            reduced = method.reduce(problem, whitening)
        solution = finite(method, method.solve(problem, reduced, diagnostics))
        if estimate and not method.has_formula:
            diagnostics.errors = estimate_error(method, problem, whitening, solution)
    return Solved(problem, solution, diagnostics, reduced, whitening)


def finish(
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
    if method.probed and diagnostics.penalty_lost and diagnostics.errors is None and not isinstance(method.alpha, str):
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
    again, selected = method.resolved(solution), select(problem)

    def solve_other(other: Problem) -> Coefficients:
        other = select(other)
        known = whitening if other.basis is problem.basis else None
        return _coefficients(solve(again, other, known, estimate=False).solution)

    fitted = _coefficients(solution)
    moments, up_to_rotation = method.predicted_from(selected), method.rotates
    errors = perturbed_errors(
        problem, whitening, fitted, solve_other, moments, selected.basis, up_to_rotation=up_to_rotation
    )
    return None if errors is None else errors[0]


def _coefficients(solution: Solution) -> Coefficients:
    return solution.coef, solution.intercept


# -- continuing a fit --------------------------------------------------------------------------------------------------


def add_rows(method: Method[R, S], before: MomentFit, data: Training) -> MomentFit:
    """Fit to more rows, on the columns of a fit."""
    whitening = method.whiten(before.basis) if "E" in before.statistics else None
    more, report = sum_up(method, data, before.basis, whitening)
    return finish(method, solve(method, before.joined(more)), report, before.skipped_rows + skipped(report))


def solve_again(method: Method[R, S], before: MomentFit) -> MomentFit:
    """Solve again from the sums of a fit, with other parameters."""
    return finish(method, solve(method, before), before.sweep, before.skipped_rows, before.rounds)


def fit_columns(method: Method[R, S], before: MomentFit, columns: Array) -> MomentFit:
    """Fit on some of the landmarks of a fit, at positions (k,), from its sums."""

    def select(problem: Problem) -> Problem:
        return of_columns(problem, columns)

    solved = solve(method, select(before))
    if before.r_factor is None:  # a solve from an R factor estimates its own error
        whitening = method.whiten(before.basis)
        solved.diagnostics.errors = estimate_error(method, before, whitening, solved.solution, select)
    return finish(method, solved, before.sweep, before.skipped_rows)


# -- the exact form ----------------------------------------------------------------------------------------------------


def fit_exact(method: Method[R, S], columns: BasisChoice, data: Training) -> ExactFit:
    """Fit from the n×n kernel matrix of rows in memory."""
    exact = read_exact(method.name, data.rows, None if method.semi_supervised else data.labels)
    targets = method.exact_targets(exact, data.targets)
    kernel, K = exact.gram(columns.kernel)
    basis, folds = LandmarkBasis(kernel, exact.X, "float64"), exact.folds() if method.by_folds else None
    problem = ExactProblem(data.inputs, basis, K, targets, exact.weight, folds)
    diagnostics = SolveDiagnostics()
    with solving(method):
        solution = finite(method, method.solve_exact(problem, diagnostics))
        again = method.resolved(solution)
        diagnostics.errors = exact_errors(
            problem,
            _coefficients(solution),
            lambda other: _coefficients(again.solve_exact(other, SolveDiagnostics())),
            solution.alpha,
            left_out="eigen" in diagnostics.ratios,
            up_to_rotation=method.rotates,
        )
    return ExactFit(
        inputs=data.inputs,
        basis=problem.basis,
        solution=solution,
        diagnostics=report_solve(method, problem, solution, diagnostics),
        skipped_rows=exact.skipped,
        weight=exact.weight,
    )
