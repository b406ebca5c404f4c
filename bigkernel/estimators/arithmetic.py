"""The arithmetic of a fit: how the sums of its sweep are rounded, what a witness says of it, and what is better.

Blocks of float32 rows are float32, and so are their products, summed over some thousand rows. Where the witness says
that predictions would be off by more than `accuracy.ENOUGH`, the rows are swept again: with products and sums in
float64, or, where the kernel values themselves are too coarse, with blocks in float64.

Nothing tells the error before the sweep: where the core's condition and the penalty are alike, errors of different
tables differ a hundredfold, by what the targets ask of weak directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import Swept, plan_sweep, sweep
from bigkernel.errors import DataError, PlanTooLarge
from bigkernel.estimators.triangle_sweeps import factor_rows, worth_factoring
from bigkernel.events.kinds import Note
from bigkernel.events.scope import emit
from bigkernel.solvers.accuracy import ENOUGH, VECTORS, Errors, Evidence, change, directions, moved, scaled
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics import triangle
from bigkernel.statistics.moments import GRAM_ROWS, MomentStatistic, selected
from bigkernel.statistics.witness import Witness, windows_to_skip
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Plan

Array = NDArray[Any]
DRAW = 20  # every process moves sums alike
SAFE = 2.0  # one draw tells an error to a factor of about four
ADVICE = "landmarks this alike and components this weak; take fewer of either, a narrower kernel or a larger alpha"


def witnessed(statistic: MomentStatistic, whitenings: Sequence[Whitening], rows: int) -> MomentStatistic:
    """The statistic with a witness, of a whitening for each block; without them one of the same cost, without sight."""
    vectors = np.zeros((statistic.features.count, statistic.features.width, VECTORS))
    for place, whitening in enumerate(whitenings):
        vectors[place] = whitening.expand(directions(whitening.rank))
    flops = statistic.footprint(1).flops_per_row
    every = windows_to_skip(flops, vectors.size, rows // GRAM_ROWS)
    return replace(statistic, witness=Witness(vectors, every))


def evidence_of(problem: Any, whitening: Whitening) -> Evidence | None:
    """What is known of the errors behind the moments of a problem; None where no witness saw them."""
    if "E" not in problem.statistics or not problem.statistics["seen"].sum():
        return None
    widest = problem.basis.dtype == "float64"
    return Evidence(directions(whitening.rank), scaled(problem.statistics), problem.basis.noise(), widest)


def whitening_for(estimator: Any, basis: Any, certificates: Certificates | None = None) -> Whitening:
    """The whitening that a witness of the sums has, and the solve, if it has one; nothing is warned of."""
    if estimator.whitens:
        found: Whitening = basis.whitening(certificates=certificates or Certificates())
        return found
    return replace(basis, dtype="float64").whitening(certificates=Certificates())  # type: ignore[no-any-return]


def whitened(basis: Any, *, choose: bool) -> tuple[Any, Whitening, Certificates]:
    """The basis, its whitening and what that has met; in float64 where float32 would leave out landmarks, to choose."""
    certificates = Certificates()
    whitening = basis.whitening(certificates=certificates)
    if choose and basis.dtype == "float32" and whitening.rank < basis.width:
        wider, more = replace(basis, dtype="float64"), Certificates()
        finer = wider.whitening(certificates=more)
        if finer.rank > whitening.rank:
            return wider, finer, more
    return basis, whitening, certificates


def better(basis: Any, errors: Errors, *, choose: bool, hidden: bool = False) -> Any:
    """The basis in the arithmetic that is to be tried next, or None.

    Parameters
    ----------
    choose : we may choose the dtype of blocks
    hidden : rounding hides directions that float64 might show
    """
    hidden = hidden and choose
    if basis.dtype == "float64" or (errors.total <= ENOUGH and not hidden):
        return None
    if hidden or (choose and not errors.blocks <= ENOUGH):
        return replace(basis, dtype="float64", sums=None)
    if basis.sums is None and not errors.sums <= ENOUGH:
        return replace(basis, sums="float64")
    return replace(basis, dtype="float64", sums=None) if choose else None


def told(
    estimator: Any,
    problem: Any,
    whitening: Whitening,
    solution: Any,
    part: Callable[[Any], Any] = lambda problem: problem,
) -> Errors | None:
    """The errors of a solution, from solves of sums that are moved as rounding moved them; None without a witness.

    `part`: what the solution was made of, of the sums that the witness saw.
    """
    evidence = evidence_of(problem, whitening)
    if evidence is None:
        return None
    again, own = copy(estimator), part(problem)
    if getattr(estimator, "alpha", None) == "gcv":
        again.set_params(alpha=solution.alpha)
    glance, moments = own.basis.glance(), estimator.predicted_from(own)
    seen = None if glance is None else glance[0][:, : len(moments.s)]

    def changed(total: Accumulator) -> Array:
        other = part(replace(problem, statistics=total))
        try:
            found = again._solved(other, None if other.basis is not problem.basis else whitening, tell=False).solution
        except DataError:  # it cannot be solved from these
            return np.array([np.inf])
        fit, there = ((one.coef, one.intercept) for one in (solution, found))
        return np.array([change(moments, fit, there, turned=estimator.turns, seen=seen)])

    (errors,) = drawn(problem, whitening, evidence, changed)
    return errors


def drawn(
    problem: Any, whitening: Whitening, evidence: Evidence, changed: Callable[[Accumulator], Array]
) -> list[Errors]:
    """The errors of solutions by what becomes of them: `changed` tells of moved sums the change of each, (k,)."""

    def moved_by(*, sums: bool) -> Array:
        total = moved(problem.statistics, whitening, evidence, np.random.default_rng(DRAW), sums=sums)
        return np.asarray(SAFE * changed(total))

    total = moved_by(sums=True)
    off = ~(total <= ENOUGH)
    if evidence.noise is None or not off.any():
        return [Errors(float(one), 0.0, 0.0, advice=ADVICE) for one in total]
    blocks = np.where(off, moved_by(sums=False), 0.0)
    apart = [max(float(one) ** 2 - float(of_blocks) ** 2, 0.0) for one, of_blocks in zip(total, blocks, strict=True)]
    return [
        Errors(rest**0.5, 0.0, float(of_blocks), advice=ADVICE) for rest, of_blocks in zip(apart, blocks, strict=True)
    ]


def of_columns(problem: Any, columns: Array) -> Any:
    """What a solve on some of the landmarks (k,) starts from."""
    basis, centre, R = problem.basis, problem.centre, problem.triangle
    return replace(
        problem,
        basis=replace(basis, landmarks=basis.landmarks[columns]),
        statistics=selected(problem.statistics, columns),
        centre=None if centre is None else centre[columns],
        triangle=None if R is None else triangle.selected(R, columns, basis.width),
    )


def rounding_note(solved: Any) -> str:
    """Of a solve whose penalty is lost in the rounding of its sums, or of its kernel values where it is exact."""
    basis, certificates = solved.problem.basis, solved.certificates
    values = "moments" if hasattr(solved.problem, "statistics") else "kernel values"
    condition = certificates.figures.get("core_condition")
    return (
        f"{basis.kernel.name} kernel: in {basis.dtype} the {values} carry rounding of up to "
        f"{certificates.rounding:.2g}, beyond alpha = {np.min(solved.solution.alpha):.3g}"
        + ("" if condition is None else f"; the core has the condition {condition:.1e}")
    )


def _off(errors: Errors) -> str:
    """What is wrong with a sweep of these errors."""
    return f"predictions would be off by {errors.total:.1g}" if errors.total > ENOUGH else "rounding hides directions"


def _in_float64(basis: Any) -> str:
    """Of the arithmetic of a sweep, what is better than float32."""
    return "blocks" if basis.dtype == "float64" else "sums"


def sweep_until_right(
    estimator: Any, rows: Any, targets: Any, inputs: Any, basis: Any, swept: tuple[Any, dict[str, Any]] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Sweep and solve, again in better arithmetic as long as there is one and predictions would be off.

    `swept`: the problem of a sweep that has been made already, and its report.
    """
    choose, notes = estimator.dtype == "auto", []
    if estimator.whitens:
        basis, whitening, certificates = whitened(basis, choose=choose and swept is None)
    else:
        whitening, certificates = whitening_for(estimator, basis), Certificates()
    problem, report = swept or estimator.sweep(rows, targets, inputs, basis, whitening)
    while True:
        solved = estimator._solved(problem, whitening, certificates)
        errors = certificates.errors
        hidden = estimator.hides(solved.solution)
        wider = None if errors is None else better(basis, errors, choose=choose, hidden=hidden)
        if wider is None:
            break
        what, note = _in_float64(wider), _off(errors)
        try:
            emit(Note(f"{type(estimator).__name__}: {note}: the rows are swept again, with {what} in float64"))
            noted = Certificates()
            whitening = whitening_for(estimator, wider, noted)
            problem, report = estimator.sweep(rows, targets, inputs, wider, whitening)
            basis = wider
        except PlanTooLarge as error:
            certificates.notes.append(f"{note} in {basis.dtype}, and {what} in float64 do not fit: {error}")
            break
        certificates = noted
        notes.append(f"{note}: swept again with {what} in float64")
    if estimator.factors_rows and worth_factoring(certificates.errors, basis.width + targets.width):
        solved, report = _factored(estimator, rows, targets, solved, report, notes)
    report["swept_again"] = notes
    return solved, report


def _factored(
    estimator: Any, rows: Any, targets: Any, solved: Any, report: dict[str, Any], notes: list[str]
) -> tuple[Any, dict[str, Any]]:
    """The solve from the triangle of the rows, and the report of its sweep; what there was where that does not fit."""
    problem = solved.problem
    found = factor_rows(estimator, problem, rows, targets, problem.centre, solved.certificates, notes)
    if found is None:
        return solved, report
    noted = Certificates()
    whitening = whitening_for(estimator, problem.basis, noted)
    return estimator._solved(found[0], whitening, noted), found[1]


def adopted(estimator: Any, rows: Any, targets: Any, problem: Any) -> tuple[Any, dict[str, Any]]:
    """The solve of sums that were made already, or of better ones where these prove too coarse; and their report."""
    solved, report = sweep_until_right(estimator, rows, targets, problem.inputs, problem.basis, (problem, {}))
    return solved, {"sweep": report, "skipped_rows": report["skipped_rows"]} if report["swept_again"] else {}


def planned(estimator: Any, rows: Rows, targets: Any, basis: Any) -> Plan:
    """The plan of the sweep that a fit makes."""
    statistic = estimator._statistic(basis, targets)
    if not estimator.has_witness:
        return plan_sweep(rows, statistic)
    return plan_sweep(rows, witnessed(statistic, (), len(rows)))


def seeing_sweep(rows: Rows, statistic: MomentStatistic, whitening: Whitening | None = None, *, what: str) -> Swept:
    """Sweep; once more where the windows that the witness was to see held no row of the statistic: seeing all then.

    `whitening`: of a witness that the statistic is given; None: it has one, or has none.
    """
    if whitening is not None:
        statistic = witnessed(statistic, [whitening], len(rows))
    swept, witness = sweep(rows, statistic, what=what), statistic.witness
    if witness is None or witness.every == 1 or swept.total["seen"].any() or not swept.total["rows"].any():
        return swept
    emit(Note("no row was among those that the witness of the sums was to see: the rows are swept again"))
    return sweep(rows, replace(statistic, witness=replace(witness, every=1)), what=what)
