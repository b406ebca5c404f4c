"""Probabilities of the classifiers, calibrated on held-out rows.

The sweep of a fit keeps the moments of five folds apart; those of all rows less a fold give, by a small solve, the f
that was fitted without it. One more sweep takes the values of these f at the rows of their fold
(`statistics.held_out`), and a softmax of them is fitted (`solvers.logistic`), without weights by class. Where moments
of five folds would not fit a worker, one fold is held out. Shapes: m landmarks, c classes, g folds.
Tests: estimators/test_probabilities.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.engine.context import forget
from bigkernel.engine.rows import ClassWeightSource, Rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import ConfigError, DataError, ResumeMismatchError
from bigkernel.estimators.fit.basis import LandmarkBasis
from bigkernel.estimators.fit.folds import held_out
from bigkernel.estimators.fit.method import Method, resolved, solve
from bigkernel.estimators.fit.state import Columns, ExactFit, ExactProblem, Fit, MomentFit, R, S, Solution
from bigkernel.estimators.inputs.checks import chosen_by_folds, solving
from bigkernel.estimators.inputs.class_weights import without_class_weights
from bigkernel.estimators.inputs.exact import read_exact
from bigkernel.estimators.inputs.training import Training
from bigkernel.events.job import spent
from bigkernel.solvers.logistic import fit_softmax
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds, HeldOutValues, most_rows
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import Calibration
from bigkernel.streaming.plan import Plan

PROBABILITY: dict[str, list[object]] = {"probability": ["boolean"]}


def refuse_folds(method: Method, what: str) -> None:
    """Raise `ConfigError` for an operation that would need the sums of folds again."""
    if chosen_by_folds(method.alpha):
        raise ConfigError(
            f"{what}: alpha={method.alpha!r} chooses by sums of folds, which are not kept; fit again, or set alpha to "
            "a number, such as `alpha_` of the fit"
        )
    if method.probability:
        raise ConfigError(
            f"{what}: probability=True needs the earlier rows for calibration, and they are not kept; fit again, or "
            "set probability=False"
        )


def with_sweeps(plan: Plan, more: Plan, count: int) -> Plan:
    """Add `count` sweeps of another kind to a plan; the memory of a task is that of the larger kind."""
    largest = max(plan, more, key=lambda one: one.task_bytes)
    flops, size = plan.flops + count * more.flops, plan.bytes_read + count * more.bytes_read
    return replace(largest, flops=flops, bytes_read=size)


def plan_calibration(method: Method, data: Training, basis: Columns, plan: Plan) -> Plan:
    """Add the sweep of the calibration, if there is one, to the plan of a fit."""
    if not method.probability:
        return plan
    classes = data.labels
    m, c = basis.width, classes.width
    # the coefficients of each fold, which are not known yet
    coef = np.broadcast_to(0.0, (1, FOLDS, m, c))
    features, folds = basis.features(), HeldOutFolds(FOLDS - 1)
    statistic = HeldOutValues(features, coef, coef[:, :, 0], folds, classes, most_rows(c), float(len(data.rows)))
    return with_sweeps(plan, plan_sweep(without_class_weights(data.rows), statistic), 1)


def calibrate(method: Method, fit: Fit, data: Training) -> Fit:
    """Calibrate a fit, if it has probabilities, and drop the sums of its folds."""
    if not method.probability:
        return replace(fit, folds=None) if isinstance(fit, MomentFit) else fit
    if isinstance(fit, ExactFit):
        return _calibrate_exact(method, fit, data)
    assert isinstance(fit, MomentFit)
    assert fit.folds is not None
    # f without each fold, from the sums of the others
    sums = fit.folds.sums
    _require_judged(sums["t"], data.rows)
    with spent("solve"), solving(method):
        solutions = _held_out_solutions(method, fit)
    count = len(sums["n"])
    # its values at rows of that fold, by one sweep
    classes = data.labels
    statistic = HeldOutValues(
        features=fit.basis.predicting(fit.basis.features()),
        targets=classes,
        folds=HeldOutFolds(count - 1),
        weights=np.stack([one.coef for one in solutions])[None],
        intercepts=np.stack([one.intercept for one in solutions])[None],
        most=most_rows(classes.width),
        rows=float(sums["rows"][: len(solutions)].sum()),
    )
    rows = without_class_weights(data.rows)
    try:
        total = sweep(rows, statistic, what="calibration").total
    except ResumeMismatchError:  # coefficients of another processor or another penalty
        forget("calibration")
        total = sweep(rows, statistic, what="calibration").total
    # p = softmax(a ∘ f + b), fitted to these values
    with spent("solve"), solving(method):
        calibration = fit_softmax(total["values"], total["truth"], total["weight"])
    return replace(fit, calibration=_with_weights(calibration, data.rows, classes), folds=None)


def _with_weights(calibration: Calibration, rows: Rows, classes: Targets) -> Calibration:
    """Add the weights of the classes, by which predictions multiply probabilities."""
    source = rows.columns.get("weight")
    if not isinstance(source, ClassWeightSource):
        return calibration
    weights, position = np.ones(classes.width), classes.position
    weights[np.arange(classes.width) if position is None else position] = source.factors
    return replace(calibration, log_weights=np.log(np.maximum(weights, np.finfo(np.float64).tiny)))


def _require_judged(weight: Array, rows: Rows) -> None:
    """Raise `DataError` where fewer than two classes are in more than one fold; `weight` (g, c) is theirs by fold."""
    known = int(((weight > 0).sum(axis=0) > 1).sum())
    if known >= 2:
        return
    what = "groups" if "group" in rows.columns else "rows"
    count = len(np.unique(np.asarray(rows.column("group")))) if what == "groups" and rows.in_memory else len(rows)
    size = f"groups of {count} rows" if what == "groups" and not rows.in_memory else f"{count} {what}"
    judged = "held-out rows of a single class" if known else "no held-out row"
    raise DataError(
        f"probability=True: {judged} to calibrate on ({size}: {known} of {weight.shape[1]} classes lie in more than "
        f"one fold, expected at least 2); add {what} or set probability=False"
    )


def _held_out_solutions(method: Method, fit: MomentFit) -> list[Solution]:
    """Solve without each of the held-out folds, and without the landmarks among its rows."""
    again, shared, solutions = resolved(method, fit.solution), None, []
    for rest, _, kept in held_out(fit):
        if kept is None:  # landmarks stay: folds share their whitening
            whitening, reduced = shared = shared or _reduced(method, fit)
            reduced = method.reduce_without(reduced, rest)
            solutions.append(solve(again, rest, whitening, reduced=reduced, estimate=False).solution)
            continue
        solution = solve(again, rest, estimate=False).solution
        coef = np.zeros((fit.basis.width, solution.coef.shape[1]))
        coef[kept] = solution.coef
        solutions.append(replace(solution, coef=coef))
    return solutions


def _reduced(method: Method[R, S], fit: MomentFit) -> tuple[Whitening, R]:
    whitening = fit.basis.whitening(solves=method.whitens)
    return whitening, method.reduce(fit, whitening)


def _calibrate_exact(method: Method, fit: ExactFit, data: Training) -> ExactFit:
    exact = read_exact(method.name, data.rows, None if method.semi_supervised else data.labels)
    Y, labelled = exact.labels(data.labels)
    basis = fit.basis
    assert isinstance(basis, LandmarkBasis)
    K, again = basis.core(), resolved(method, fit.solution)
    weight = np.ones(len(K)) if exact.weight is None else exact.weight
    fold = exact.folds()
    # Σ w y of each fold: two classes at least must be there to train on and to test
    sums = [weight[labelled & (fold == number)] @ Y[fold[labelled] == number] for number in range(FOLDS)]
    _require_judged(np.stack(sums), data.rows)
    # f of the rows of each fold, from K without their labels or weights
    values = np.zeros((len(K), Y.shape[1]))
    # f without each fold, at the rows of it
    for number in range(FOLDS):
        held = labelled & (fold == number)
        rest = labelled & ~held
        if not held.any():
            continue
        problem = ExactProblem(data.inputs, basis, K, (Y, labelled), exact.weight)
        if method.semi_supervised:  # held-out rows stay, without their labels
            problem = replace(problem, targets=(Y[rest[labelled]], rest))
        else:
            problem = replace(problem, weight=np.where(held, 0.0, weight))
        with solving(method):
            solution = again.solve_exact(problem, SolveDiagnostics())
        values[held] = K[held] @ solution.coef + solution.intercept
    # p = softmax(a ∘ f + b), fitted to these values by the weights of the rows alone
    given = without_class_weights(data.rows).column("weight")
    weight = np.ones(len(K)) if given is None else np.asarray(given, np.float64)[exact.keep]
    counts = labelled & (weight > 0)
    with solving(method):
        calibration = fit_softmax(values[counts], Y[counts[labelled]].argmax(axis=1), weight[counts])
    return replace(fit, calibration=_with_weights(calibration, data.rows, data.labels))
