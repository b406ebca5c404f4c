"""The precision of a sweep: the rounding of its sums, its effect on predictions, and the next precision.

Blocks of float32 rows are float32, and so are their products, summed over some thousand rows. Products of some rows
with a few vectors in float64 probe the rounding of the sums (`statistics.moments`). Where predictions would be off by
more than `residuals.ENOUGH`, the rows are swept again: with products and sums in float64, or, where the kernel values
themselves are too coarse, with blocks in float64; and finally by QR, which squares nothing.

The error cannot be predicted before the sweep: with equal conditions of the core and equal penalties, errors of
different tables differ a hundredfold, depending on how much of the targets lies in weak directions. The sums of the
first rows tell it: a sweep whose tenth part shows that its precision cannot do ends there (`precision_of_first_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import numpy as np

from bigkernel.arrays import Array
from bigkernel.engine.executor import Look
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import Swept, sweep
from bigkernel.errors import DataError, PlanTooLargeError
from bigkernel.estimators.fit.basis import LandmarkBasis, of_kernel
from bigkernel.estimators.fit.state import Columns, ExactProblem, Problem, Report, RowBasis, Solution
from bigkernel.estimators.inputs.training import Training
from bigkernel.events.job import Note, emit
from bigkernel.solvers.accuracy import changes, perturb_sums
from bigkernel.solvers.qr_ridge import EPS, nystrom_ridge_of
from bigkernel.solvers.residuals import ENOUGH, VECTORS, Errors, SolveDiagnostics, frobenius, probes
from bigkernel.solvers.ridge import RoundingEstimate
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics import qr
from bigkernel.statistics.moments import (
    GRAM_ROWS,
    Moments,
    MomentStatistic,
    RoundingProbe,
    probe_interval,
    select_columns,
)
from bigkernel.statistics.qr import MOST_COLUMNS, QRStatistic
from bigkernel.streaming.plan import Accumulator

C = TypeVar("C", bound=Columns)
P = TypeVar("P", bound=Problem)
Alpha = float | str | Array  # a number, one for each target, or a rule
Coefficients = tuple[Array, Array]  # (p, c) and intercepts (c,)
Whitened = tuple[Columns, Whitening, SolveDiagnostics]  # columns, their whitening, and what it notes
DRAW = 20  # seed of the perturbations, the same in every process
SAFE = 2.0  # a single perturbation estimates an error to a factor of about four
ADVICE = "similar landmarks and weak components; use fewer of either, a narrower kernel or a larger alpha"
EXACT_ADVICE = "rows far from 0 or alike, and a small penalty; centre and scale the rows, or use a larger alpha"
_STEP = 2.0**-30  # relative change of points, to measure the effect of their rounding on values
_POINTS = 64


# -- probes of the rounding of sums ------------------------------------------------------------------------------------


def with_probe(statistic: MomentStatistic, whitenings: Sequence[Whitening], rows: int) -> MomentStatistic:
    """Return the statistic with a probe, from a whitening for each block; from none one of equal cost, for a plan."""
    vectors = np.zeros((statistic.features.count, statistic.features.width, VECTORS))
    for place, whitening in enumerate(whitenings):
        vectors[place] = whitening.expand(probes(whitening.rank, VECTORS))
    # windows of rows between probes, so that these take a small share of the sweep
    flops = statistic.footprint(1).flops_per_row
    every = probe_interval(flops, vectors.size, rows // GRAM_ROWS)
    return replace(statistic, probe=RoundingProbe(vectors, every))


def probed_sweep(
    rows: Rows, statistic: MomentStatistic, whitening: Whitening | None = None, *, what: str, look: Look | None = None
) -> Swept:
    """Sweep; once more, probing all rows, where the sampled windows of the probe held no row of the statistic.

    With `whitening`, a probe is added; None: the statistic has one, or needs none.
    """
    if whitening is not None:
        statistic = with_probe(statistic, [whitening], len(rows))
    swept, probe = sweep(rows, statistic, what=what, look=look), statistic.probe
    if probe is None or probe.every == 1 or swept.total["probed_rows"].any() or not swept.total["rows"].any():
        return swept
    emit(Note("the sampled windows held no row of the rounding probe: repeating the sweep with all windows"))
    return sweep(rows, replace(statistic, probe=replace(probe, every=1)), what=what)


def is_probed(problem: Problem) -> bool:
    """Return whether the rounding of the sums was probed on some rows."""
    return "E" in problem.statistics and bool(problem.statistics["probed_rows"].sum())


def rounding_estimate(problem: Problem, whitening: Whitening | None) -> RoundingEstimate | None:
    """Estimate the rounding of the moments of a problem; None where they were not probed."""
    if whitening is None or not is_probed(problem):
        return None
    widest = problem.basis.dtype == "float64"
    return RoundingEstimate.of_probe(problem.statistics, problem.basis.noise(), whitening, widest=widest)


def estimate_errors(
    problem: Problem, whitening: Whitening | None, changed: Callable[[Accumulator], Array]
) -> list[Errors] | None:
    """Estimate the errors of k solutions; `changed` solves from perturbed sums and returns the changes, (k,).

    None where the sums were not probed.
    """
    estimate = rounding_estimate(problem, whitening)
    if estimate is None:
        return None
    assert whitening is not None

    def perturbed(*, sums: bool) -> Array:
        total = perturb_sums(problem.statistics, whitening, estimate, np.random.default_rng(DRAW), sums=sums)
        return np.asarray(SAFE * changed(total))

    total = perturbed(sums=True)
    off = ~(total <= ENOUGH)
    if estimate.blocks is None or not off.any():
        return [Errors(float(one), 0.0, 0.0, advice=ADVICE) for one in total]
    blocks = np.where(off, perturbed(sums=False), 0.0)
    with np.errstate(invalid="ignore"):
        # where the rounding of blocks alone changes as much, even infinitely, all of the error is theirs
        apart = np.where(blocks >= total, 0.0, np.sqrt(total**2 - blocks**2))
    return [
        Errors(float(rest), 0.0, float(of_blocks), advice=ADVICE) for rest, of_blocks in zip(apart, blocks, strict=True)
    ]


def perturbed_errors(
    problem: Problem,
    whitening: Whitening | None,
    fitted: Coefficients,
    solve: Callable[[Problem], Coefficients],
    moments: Moments,
    basis: Columns,
    count: int = 1,
    *,
    up_to_rotation: bool = False,
) -> list[Errors] | None:
    """Estimate the errors of `count` solutions by solving perturbed sums; None where the sums were not probed.

    Parameters
    ----------
    fitted : coefficients (p, k·c) and intercepts (k·c,)
    solve : returns the same from other sums; `DataError` or NaN where these cannot be solved
    moments, basis : of the columns that coefficients belong to
    up_to_rotation : whether solutions are compared up to a rotation of their columns
    """
    if whitening is None or not is_probed(problem):
        return None
    sampled = basis.sample_block()
    points = None if sampled is None else sampled[0][:, : len(moments.s)]

    def changed(total: Accumulator) -> Array:
        try:
            others = solve(replace(problem, statistics=total))
        except DataError:
            return np.full(count, np.inf)
        far = changes(moments, fitted, others, count, up_to_rotation=up_to_rotation, points=points)
        return np.where(np.isnan(far), np.inf, far)

    return estimate_errors(problem, whitening, changed)


def exact_errors(
    problem: ExactProblem,
    fitted: Coefficients,
    solve: Callable[[ExactProblem], Coefficients],
    alpha: float | Array,
    *,
    left_out: bool,
    up_to_rotation: bool = False,
) -> Errors:
    """Estimate the error of an exact solution by a solve of the kernel matrix with other rounding errors.

    They are those of its values and of a Cholesky factor. `left_out`: eigenvectors were chosen; further parameters are
    those of `perturbed_errors`.
    """
    n, root = len(problem.K), np.sqrt(np.abs(np.diagonal(problem.K)))
    # K + E + Eᵀ, entries of E as large as the rounding of a value, ε √(k(x, x) k(z, z))
    E = np.random.default_rng(DRAW).standard_normal((n, n))
    E *= EPS * np.outer(root, root)
    K = problem.K + E
    K += E.T
    # the rounding of a factorisation
    lost = 10 * n * EPS * frobenius(problem.K)
    if left_out and 0 < np.min(alpha) < lost:  # of directions that rounding does not resolve: here they are kept
        K[np.diag_indices(n)] += 2 * lost
    # the distance of both solutions over the rows, relative to the predictions
    try:
        others = solve(replace(problem, K=K))
    except DataError:
        far = np.inf
    else:
        c, values = fitted[0].shape[1], np.hstack([problem.K @ fitted[0], K @ others[0]])
        weight = np.ones(n) if problem.weight is None else problem.weight
        first = np.eye(values.shape[1])
        moments = Moments.of_rows(values, values[:, :0], weight)
        pair = (first[:, :c], fitted[1]), (first[:, c:], others[1])
        far = SAFE * float(changes(moments, *pair, up_to_rotation=up_to_rotation)[0])
    return Errors(0.0, far if far >= 0 else np.inf, 0.0, advice=EXACT_ADVICE)


# -- the next precision ------------------------------------------------------------------------------------------------


def whitened(basis: C, *, choose: bool, solves: bool = True) -> tuple[C, Whitening, SolveDiagnostics]:
    """Return the basis, its whitening and the diagnostics; in float64 if float32 would drop landmarks.

    `solves`: see `Columns.whitening`.
    """
    diagnostics, wide_diagnostics = SolveDiagnostics(), SolveDiagnostics()
    whitening = basis.whitening(diagnostics, solves=solves)
    if choose and basis.dtype == "float32" and whitening.rank < basis.width:
        wide = cast(C, _float64(basis))
        wide_whitening = wide.whitening(wide_diagnostics)
        if wide_whitening.rank > whitening.rank:
            return wide, wide_whitening, wide_diagnostics
    return basis, whitening, diagnostics


class Finer(NamedTuple):
    """The columns in the precision that is to be tried next, why, and what is in float64 then."""

    basis: Columns
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


def next_precision(basis: Columns, errors: Errors | None, *, choose: bool, unresolved: bool = False) -> Finer | None:
    """Return the precision that is to be tried next; None where predictions are not off, or there is none.

    `choose`: the dtype of blocks may be chosen. `unresolved`: rounding leaves directions unresolved that float64 might
    resolve.
    """
    unresolved = unresolved and choose
    if errors is None or isinstance(basis, RowBasis) or basis.dtype == "float64":
        return None
    off = not errors.total <= ENOUGH
    if not off and not unresolved:
        return None
    reason = "some directions are lost in rounding error"
    if off:
        reason = f"estimated {basis.dtype} error {errors.total:.1g} exceeds {ENOUGH:.1g}"
    if not unresolved and basis.sums is None and not errors.sums <= ENOUGH and (not choose or errors.blocks <= ENOUGH):
        return Finer(replace(of_kernel(basis), sums="float64"), reason, "accumulating in float64")
    return Finer(_float64(basis), reason, "computing in float64") if choose else None


def precision_of_first_rows(basis: Columns, errors: Errors | None, share: float, *, choose: bool) -> Finer | None:
    """Return the precision to be tried next if a share of the rows leaves no doubt of it; None otherwise.

    `errors`: of the solution of these rows with that share of the penalty. The rounding of sums is independent, so
    that of all rows is about √share of it; each estimate is known to a factor of two.
    """
    if errors is None:
        return None
    least = np.sqrt(share) / 2
    least_errors = replace(errors, sums=least * errors.sums, solve=least * errors.solve, blocks=errors.blocks / 2)
    finer = next_precision(basis, least_errors, choose=choose)
    if finer is None:
        return None
    found = f"estimated {basis.dtype} error {errors.total:.1g} after {share:.0%} of the rows"
    return finer._replace(reason=f"{found} leaves more than {ENOUGH:.1g} of all")


def _float64(basis: Columns) -> Columns:
    return replace(of_kernel(basis), dtype="float64", sums=None)


def rounding_note(problem: Problem | ExactProblem, solution: Solution, diagnostics: SolveDiagnostics) -> str:
    """Describe a solve whose penalty is lost in the rounding of its sums, or of its kernel values where it is exact."""
    basis = of_kernel(problem.basis)
    values = "moments" if isinstance(problem, Problem) else "kernel values"
    condition = diagnostics.figures.get("core_condition")
    return (
        f"{basis.kernel.name} kernel: the rounding error of the {values} in {basis.dtype} is up to "
        f"{diagnostics.rounding:.2g}, more than alpha = {np.min(solution.alpha):.3g}"
        + ("" if condition is None else f"; condition number of the kernel matrix of the landmarks {condition:.1e}")
    )


def of_columns(problem: P, columns: Array, *, probed: bool = False) -> P:
    """Return the problem of some of the landmarks, at positions (k,); `probed`: with the sums of a probe, if any."""
    basis, centre, R, total = problem.basis, problem.centre, problem.r_factor, problem.statistics
    assert isinstance(basis, LandmarkBasis)
    ids = None if basis.ids is None else basis.ids[columns]
    probe = {"E": total["E"][:, columns], "probed_rows": total["probed_rows"]} if probed and "E" in total else {}
    return replace(
        problem,
        basis=replace(basis, landmarks=basis.landmarks[columns], ids=ids),
        statistics=select_columns(total, columns) | probe,
        centre=None if centre is None else centre[columns],
        r_factor=None if R is None else qr.select_columns(R, columns, basis.width),
    )


# -- rows factored by QR -----------------------------------------------------------------------------------------------


def worth_factoring(errors: Errors | None, columns: int) -> bool:
    """Return whether to factor rows of p + c columns: not if moments suffice, nor if blocks are too coarse."""
    if errors is None or columns >= MOST_COLUMNS:
        return False
    return not max(errors.total, errors.doubt) <= ENOUGH and errors.blocks <= ENOUGH


def factor(
    name: str, problem: Problem, data: Training, before: SolveDiagnostics, notes: list[str]
) -> tuple[Problem, Report] | None:
    """Return the problem with the R factor of its rows, and the report of the sweep; None where that does not fit.

    The diagnostics `before`, of the solve from moments, get a note where the sweep does not fit; `notes` get the reason
    why the rows are swept again.
    """
    basis = problem.basis
    features = basis.centred()
    assert before.errors is not None
    off, doubt = before.errors.total, before.errors.doubt
    note = (
        f"estimated error {off:.1g} exceeds {ENOUGH:.1g}"
        if not off <= ENOUGH
        else (f"estimated error may reach {doubt:.1g}")
    )
    try:
        emit(Note(f"{name}: {note}: computing a QR factorisation of the rows"))
        swept = sweep(data.rows, QRStatistic(features, data.labels), what="qr")
    except PlanTooLargeError as error:
        before.notes.append(f"{note}, and a QR factorisation of the rows does not fit in memory: {error}")
        return None
    notes.append(f"{note}: used a QR factorisation of the rows")
    zero = np.zeros(features.width)
    centre = basis.shift if isinstance(basis, RowBasis) else problem.centre
    further = (zero if features.shift is None else features.shift) - (zero if centre is None else centre)
    return replace(problem, r_factor=qr.shift_columns(swept.total["R"], further)), swept.report()


def r_factor_of(problem: Problem, *, fit_intercept: bool) -> Array:
    """Return R (q, q) of a problem; without an intercept that of targets without a shift."""
    shift, R = problem.inputs.shift, problem.r_factor
    assert R is not None
    return np.asarray(R if fit_intercept or not np.ndim(shift) else qr.shift_columns(R, None, shift))


def solve_r_factor(
    problem: Problem, whitening: Whitening, alpha: Alpha, diagnostics: SolveDiagnostics, *, fit_intercept: bool
) -> tuple[Array, Array, Array, float | Array]:
    """Solve ridge from the R factor: coefficients, intercept, training squared errors and α (`nystrom_ridge_of`)."""
    result = nystrom_ridge_of(
        r_factor_of(problem, fit_intercept=fit_intercept),
        problem.centre,
        whitening,
        alpha,
        fit_intercept=fit_intercept,
        rows=float(problem.statistics["rows"].sum()),
        noise=block_noise(problem.basis),
        diagnostics=diagnostics,
    )
    if diagnostics.errors is not None:
        diagnostics.errors = replace(diagnostics.errors, widest=problem.basis.dtype == "float64")
    return result


def block_noise(basis: Columns) -> float:
    """Return the standard deviation of the rounding of a kernel value.

    Measured on float32 blocks; for float64 ones, the effect of a relative change ε of points about the mean of the
    landmarks.
    """
    noise = basis.noise()
    if noise is not None:
        return float(np.sqrt(np.mean(noise**2)))
    if not isinstance(basis, LandmarkBasis) or basis.kernel.precomputed:
        return 2 * EPS
    Z = basis.landmarks
    points, mean = Z[:_POINTS], Z.mean(axis=0)
    signs = np.where(np.random.default_rng(0).random(points.shape) < 0.5, -1.0, 1.0)
    values = basis.kernel(points, Z)
    change = basis.kernel(points + _STEP * signs * (points - mean), Z) - values
    return EPS * float(np.sqrt(np.mean(values**2) + np.mean((change / _STEP) ** 2)))
