"""Kernel estimators that are fitted from one sweep of moments, or exactly from the n×n kernel matrix.

Exact (`n_landmarks=None`): the n×n kernel matrix in memory, for some thousands of rows. Nyström (`n_landmarks=m`): one
sweep for the moments of the landmark block, then an m×m solve; they are kept for more rows or another alpha.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError
from bigkernel.estimators import arithmetic, reports
from bigkernel.estimators.base import RowsEstimator
from bigkernel.estimators.exact_rows import ExactRows, read_exact
from bigkernel.estimators.fit_state import ExactFit, Fitted, Inputs, IterativeFit, MomentFit, Problem, Solution, Solved
from bigkernel.estimators.inputs import with_domains
from bigkernel.estimators.kernel_basis import KernelEstimator, LandmarkBasis
from bigkernel.estimators.number_range import finite, require_sums, solving
from bigkernel.estimators.parameter_checks import require_some
from bigkernel.events.scope import part_of_job, spent
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import require_alpha
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments, MomentStatistic
from bigkernel.streaming.plan import Plan

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ExactProblem:
    """All that an exact solve starts from: K (n, n), what its rows are fitted to, and their weights (n,) or None."""

    inputs: Inputs
    basis: LandmarkBasis
    K: Array
    wanted: Any
    weight: Array | None


class LandmarkEstimator(KernelEstimator, RowsEstimator):
    """Base of the kernel estimators; a subclass says how moments (or the exact matrix) become coefficients."""

    tells_by_formula = False  # of the error; else one is drawn (`arithmetic.told`)
    turns = False  # its columns are used together, up to a rotation
    _solution_type: ClassVar[type[Solution]] = Solution
    statistics_ = Fitted("statistics_about_zero")
    sample_weight_ = Fitted("weight")

    @property
    def dual_coef_(self) -> Array:
        """Coefficients over the columns, (m, c); (m,) of one column of numbers."""
        fit = self._require("dual_coef_")
        coef: Array = fit.solution.coef
        return coef[:, 0] if fit.inputs.flat else coef

    # -- what a subclass gives -----------------------------------------------------------------------------------------

    @property
    def has_witness(self) -> bool:
        return True

    @property
    def factors_rows(self) -> bool:
        """True where a QR factorisation of the rows serves if moments lose too much."""
        return False

    def hides(self, solution: Any) -> bool:
        """Return whether rounding hides directions from this solution that float64 might show."""
        return False

    @property
    def whitens(self) -> bool:
        """True where columns are whitened to solve, and not for the witness alone."""
        return True

    def _reduce(self, problem: Problem, whitening: Whitening) -> Any:
        """Return what the solves of one problem share, from its sums and the whitening of its columns."""
        return whitening

    def _solve(self, problem: Problem, reduced: Any, certificates: Certificates) -> Solution:
        """Return the solution from sums and what `_reduce` made of them."""
        raise TypeError(type(self).__name__)

    def _exact_targets(self, exact: ExactRows, targets: Any) -> Any:
        """Return what the rows of an exact fit are fitted to, checked before their kernel matrix is made."""
        return exact.labels(targets)

    def _solve_exact(self, problem: ExactProblem, certificates: Certificates) -> Solution:
        """Return the solution from the kernel matrix of all rows."""
        raise TypeError(type(self).__name__)

    def predicted_from(self, problem: Problem) -> Moments:
        """Return the moments of the columns that a solution has coefficients of."""
        return problem.moments

    def _statistic(self, basis: Any, targets: Any) -> Any:
        """Return what the sweep sums up."""
        return MomentStatistic(basis.centred(), targets, self.unlabelled, sums=basis.sum_dtype)

    # -- fitting -------------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, sample_weight: Any, sample_domain: Any) -> Self:
        self.check_parameters()
        rows, targets, inputs = self._read_fit(X, y, sample_domain, sample_weight)
        with part_of_job(f"{type(self).__name__}.fit"):
            if self.exact:
                self._fitted = self._fit_exact(rows, targets, inputs)
            else:
                self._fitted = self._fit_landmarks(rows, targets, inputs, self.basis(rows))
        return self

    def _read_fit(self, X: Any, y: Any, sample_domain: Any, sample_weight: Any) -> tuple[Rows, Any, Inputs]:
        """Validated rows with their domains, what they are fitted to, and their names."""
        rows, targets, inputs = self.training(X, y, sample_weight)
        return with_domains(rows, sample_domain), targets, inputs

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        if isinstance(self._fitted, IterativeFit):
            self._require_moments("fit anew, or clone the estimator")
        before = self._fitted if isinstance(self._fitted, MomentFit) else None
        self.check_parameters()
        if self.exact:
            raise ConfigError(f"{type(self).__name__}: partial_fit needs n_landmarks; the exact form has no statistics")
        known = None if before is None else before.inputs
        rows, targets, inputs = self.training(X, y, sample_weight, known=known, classes=classes)
        with part_of_job(f"{type(self).__name__}.partial_fit"):
            if before is None:
                self._require_rows(rows)
                self._fitted = self._fit_moments(rows, targets, inputs, self.basis(rows))
            else:
                whitening = arithmetic.whitening_for(self, before.basis) if "E" in before.statistics else None
                more, report = self.sweep(rows, targets, inputs, before.basis, whitening)
                problem = before.joined(more)
                skipped = before.skipped_rows + report["skipped_rows"]
                self._fitted = self._settle(self._solved(problem), sweep=report, skipped_rows=skipped)
        return self

    def refit(self) -> Self:
        """Solve again from the statistics that are kept, after `set_params(alpha=…)` or `n_components=…`: no sweep.

        The kernel and the landmarks stay those of the fit.
        """
        check_is_fitted(self)
        self._check_settings()
        before = self._require_moments("fit again")
        kept = {"sweep": before.sweep, "skipped_rows": before.skipped_rows, "rounds": before.rounds}
        self._fitted = self._settle(self._solved(before), **kept)
        return self

    def _require_moments(self, advice: str) -> MomentFit:
        """The fit; `ConfigError` where it is another."""
        if isinstance(self._fitted, MomentFit):
            return self._fitted
        form = "the exact form" if isinstance(self._fitted, ExactFit) else "a fit by conjugate gradients"
        raise ConfigError(f"{type(self).__name__}: {form} keeps no statistics; {advice}")

    def with_landmarks(self, count: int) -> Self:
        """A model on `count` of the landmarks, from the statistics that are kept: no sweep.

        The moments of some landmarks are a part of those of all, so one fit with many landmarks tells what fewer would
        have given. Of landmarks that were drawn, a random draw is taken, of which every smaller one is a part, the
        same in every process; of an array that was given, the first ones. The kernel stays that of the fit.

        Parameters
        ----------
        count : int, from 1 to the landmarks of the fit

        Returns
        -------
        A fitted estimator with `n_landmarks=count`, which has no statistics in common with this one.

        Raises
        ------
        ConfigError
            More landmarks than there are, or an exact fit, which keeps no statistics.

        Examples
        --------
        >>> import numpy as np
        >>> from bigkernel import Gaussian, KernelRidge
        >>> X = np.linspace(0, 6, 50)[:, None]
        >>> model = KernelRidge(Gaussian(sigma=0.5), alpha=0.01, n_landmarks=12, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.with_landmarks(5).dual_coef_.shape
        (5,)
        """
        check_is_fitted(self)
        before = self._require_moments("fit with n_landmarks")
        if self._fourier:
            raise ConfigError(
                f"with_landmarks: landmarks={self.landmarks!r} are random features; fit with a smaller n_landmarks"
            )
        if not 1 <= count <= before.basis.width:
            raise ConfigError(
                f"with_landmarks: expected from 1 to the {before.basis.width:,} landmarks of the fit, found {count}"
            )
        drawn = isinstance(self.landmarks, str)
        # landmarks that were drawn stand in the order of their rows, which may be one of classes or of time
        order = np.random.RandomState(0).permutation(before.basis.width) if drawn else np.arange(count)
        return self._of_columns(before, count, np.sort(order[:count]))

    def _of_columns(self, before: MomentFit, count: int, columns: Array) -> Self:
        """A copy with n_landmarks=count, fitted to some columns of the fit."""
        fewer: Self = copy(self).set_params(n_landmarks=count)
        if not isinstance(self.landmarks, str):
            fewer.set_params(landmarks=np.asarray(self.landmarks)[columns])

        def part(whole: Any) -> Any:
            return arithmetic.of_columns(whole, columns)

        solved = fewer._solved(part(before))
        if before.triangle is None:  # which tells by itself
            whitening = arithmetic.whitening_for(self, before.basis)
            solved.certificates.errors = arithmetic.told(fewer, before, whitening, solved.solution, part)
        fewer._fitted = fewer._settle(solved, sweep=before.sweep, skipped_rows=before.skipped_rows)
        return fewer

    def plan(self, X: Any, y: Any = None, sample_domain: Any = None) -> Plan:
        """Return the plan of `fit` on these rows, without running it.

        Returns
        -------
        Plan
            Rows, chunks, segments, flops, bytes read and memory of a task of its sweep.
        """
        self._check_settings()
        if self.exact:
            raise ConfigError(f"{type(self).__name__}: the exact form has no sweep to plan; set n_landmarks")
        other = self.__class__(**self.get_params(deep=False))
        rows, targets, _ = other._read_fit(X, y, sample_domain, None)
        return other._planned(rows, targets, other._basis_of(rows, targets, look=False))

    def _basis_of(self, rows: Rows, targets: Any, *, look: bool = True) -> Any:
        """The columns of a fit of these rows."""
        return self.basis(rows, look=look)

    def _planned(self, rows: Rows, targets: Any, basis: Any) -> Plan:
        """The plan of the sweep that a fit makes."""
        return arithmetic.planned(self, rows, targets, basis)

    def _check_settings(self) -> None:
        require_alpha(0.0 if isinstance(self.alpha, str) else self.alpha)
        if self.dtype not in ("auto", "float32", "float64"):
            raise ConfigError(f"dtype: expected 'auto', 'float32' or 'float64', found {self.dtype!r}")
        self._check_landmarks()

    def sweep(
        self,
        rows: Rows,
        targets: Any,
        inputs: Inputs,
        basis: Any,
        whitening: Whitening | None = None,
        what: str = "moments",
    ) -> tuple[Problem, dict[str, Any]]:
        """Sum up the rows: what a solve starts from, and the report of the sweep; by a whitening a witness sees it."""
        statistic = self._statistic(basis, targets)
        swept = arithmetic.seeing_sweep(rows, statistic, whitening, what=what)
        report = swept.report()
        require_some(rows, report["skipped_rows"])
        problem = Problem.of_sums(inputs, basis, swept.total, statistic.features.shift)
        return self._summed(problem, rows), report

    def _summed(self, problem: Problem, rows: Rows) -> Problem:
        """What a solve starts from, of the sums of the rows: a subclass examines them, or adds to them."""
        return problem

    def adopt(self, rows: Rows, targets: Any, inputs: Inputs, basis: Any, problem: Problem | None) -> Self:
        """Become the model of these sums of the rows, or of a sweep where there are none or they prove too coarse."""
        self._see(inputs)
        if problem is None:
            self._fitted = self._fit_moments(rows, targets, inputs, basis)
        else:
            solved, kept = arithmetic.adopted(self, rows, targets, problem)
            self._fitted = self._settle(solved, **kept)
        return self

    def _fit_landmarks(self, rows: Rows, targets: Any, inputs: Inputs, basis: Any) -> MomentFit | IterativeFit:
        return self._fit_moments(rows, targets, inputs, basis)

    def _fit_moments(self, rows: Rows, targets: Any, inputs: Inputs, basis: Any) -> MomentFit:
        solved, report = arithmetic.sweep_until_right(self, rows, targets, inputs, basis)
        return self._settle(solved, sweep=report, skipped_rows=report["skipped_rows"])

    def _solved(
        self,
        problem: Problem,
        whitening: Whitening | None = None,
        certificates: Certificates | None = None,
        *,
        reduced: Any = None,
        tell: bool = True,
    ) -> Solved:
        """Solve, and tell the error where a witness saw the sums; what was made of them before need not be again."""
        problem.require_labels()
        certificates = certificates or Certificates()
        require_sums(problem.statistics)
        with spent("solve"), solving(self):
            if whitening is None:
                whitening = arithmetic.whitening_for(self, problem.basis, certificates)
            if reduced is None:
                reduced = self._reduce(problem, whitening)
            solution = finite(self, self._solve(problem, reduced, certificates))
            if tell and not self.tells_by_formula:
                certificates.errors = arithmetic.told(self, problem, whitening, solution)
        return Solved(problem, solution, certificates, reduced, whitening)

    def _settle(self, solved: Solved, **kept: Any) -> MomentFit:
        """The fit of a solution: warn of what the solve has met, and keep its certificates for the report."""
        return MomentFit.of(solved, certificates=self._certify(solved), **kept)

    def _certify(self, solved: Solved) -> dict[str, float | int]:
        certificates = solved.certificates  # "gcv" asks for what serves with the moments as they are
        if certificates.blind and certificates.errors is None and not isinstance(self.alpha, str):
            narrow = solved.problem.basis.dtype == "float32"
            advice = "dtype='float64' or " if narrow else "fewer landmarks, centred and scaled rows, or "
            certificates.notes.append(f"{arithmetic.rounding_note(solved)}; take {advice}a larger alpha")
        certificates.warn()
        return {**certificates.report(), **solved.problem.basis.figures()}

    def _fit_exact(self, rows: Rows, targets: Any, inputs: Inputs) -> ExactFit:
        exact = read_exact(type(self).__name__, rows, None if self._semi_supervised else targets)
        wanted = self._exact_targets(exact, targets)
        kernel, K = exact.gram(self.given_kernel())
        basis = LandmarkBasis(kernel, exact.X, "float64")
        problem, certificates = ExactProblem(inputs, basis, K, wanted, exact.weight), Certificates()
        with solving(self):
            solution = finite(self, self._solve_exact(problem, certificates))
        return ExactFit(
            inputs=inputs,
            basis=basis,
            solution=solution,
            certificates=self._certify(Solved(problem, solution, certificates)),
            skipped_rows=exact.skipped,
            weight=exact.weight,
        )

    # -- prediction ----------------------------------------------------------------------------------------------------

    def fit_report(self) -> dict[str, Any]:
        """Describe the fit as plain data.

        Kernel, landmarks, rank, dtype, the sweep's seconds, rates and peak memory, bad rows that were skipped,
        `trace_error`, tr(K − K̂)/tr(K) of the choice of landmarks (of the rows of the fit by their moments where
        k(x, x) = 1, else of 256 rows; None for random features and models from files of other kernels), and
        `certificates`: residual ratios of the solve (`solvers.residuals`; rounding leaves about 1, above 30 is an
        error), conditions of the core and of the solved matrix, effective degrees of freedom, the rounding of the
        moments, landmarks that repeat another and features that do not vary among them, and `prediction_error`: how far
        predictions are from least squares in float64, relative to their norm (`solvers.accuracy`).
        """
        check_is_fitted(self)
        fit = self._require("fit")
        report = reports.FitReport(
            estimator=type(self).__name__,
            kernel=fit.basis.kernel.described(),
            landmarks=fit.basis.width,
            landmark_choice=self.landmarks if isinstance(self.landmarks, str) else "given",
            rank=int(fit.solution.rank),
            dtype=fit.basis.dtype,
            sums=fit.basis.sums or fit.basis.dtype,
            alpha=np.asarray(fit.solution.alpha).tolist(),
            certificates=dict(fit.certificates),  # none of a model that was read from a file
            skipped_rows=fit.skipped_rows,
        )
        if isinstance(fit, IterativeFit):
            report |= {"labelled_rows": fit.rows, "sweep": dict(fit.sweep), "block_rows": settings().block_rows}
        if isinstance(fit, MomentFit):
            rows, sweep = fit.statistics["rows"], dict(fit.sweep)
            report |= {"trace_error": fit.basis.trace_error(fit.moments), "rows": int(rows.sum())}
            report |= {"labelled_rows": int(rows[-1]), "sweep": sweep, "block_rows": settings().block_rows}
            report |= {} if fit.triangle is None else {"sums": "qr"}
        return report
