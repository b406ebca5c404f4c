"""Probabilities of the classifiers, calibrated on rows that took no part in what they are judged by.

The sweep of a fit keeps the moments of five folds apart; those of all rows less a fold give, by a small solve, the f
that was fitted without it. One more sweep tells these f at the rows of their fold (`statistics.held_out`), and a
softmax of them is fitted (`solvers.logistic`). Where moments of five folds would not fit a worker, one fold is held
out. Shapes: m landmarks, c classes, g folds.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigkernel.config import settings
from bigkernel.engine.context import forget
from bigkernel.engine.frames import is_dask_array
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import ConfigError, DataError, ResumeMismatch
from bigkernel.estimators import arithmetic
from bigkernel.estimators.exact_rows import read_exact
from bigkernel.estimators.fit_state import ExactFit, Fitted, Inputs, MomentFit, Problem, Solution
from bigkernel.estimators.moment_estimator import ExactProblem, LandmarkEstimator
from bigkernel.estimators.number_range import solving
from bigkernel.estimators.parameter_checks import keeps_statistics
from bigkernel.events.scope import spent
from bigkernel.solvers.logistic import fit_softmax
from bigkernel.solvers.residuals import Certificates
from bigkernel.statistics.calibration import log_softmax, softmax
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds, HeldOutValues, most_rows
from bigkernel.statistics.moments import SUMS, MomentStatistic, Targets
from bigkernel.statistics.predictor import Predictor
from bigkernel.statistics.witness import WITNESSED
from bigkernel.streaming.merge_tree import Accumulator
from bigkernel.streaming.plan import Plan

Array = NDArray[Any]
PROBABILITY: dict[str, list[Any]] = {"probability": ["boolean"]}
_ROWS_ARE_GONE = (
    "{}: probability=True needs rows to calibrate on, and the earlier ones are not kept; fit again, or take "
    "probability=False"
)
_PARTIALS = 12  # that a task may hold at once, of some million rows


def _gives_probabilities(estimator: Any) -> bool:
    """True where a fit makes them; else an `AttributeError` that says how."""
    if not estimator.probability:
        raise AttributeError(
            f"{type(estimator).__name__} was made without probabilities; set probability=True and fit again"
        )
    return True


def _require_judged(weight: Array, rows: Rows) -> None:
    """Refuse folds whose rows meet no f that was fitted to their classes; `weight` (g, c) is of the classes by fold.

    Raises
    ------
    DataError
        Fewer than two classes lie in more than one fold.
    """
    known = int(((weight > 0).sum(axis=0) > 1).sum())
    if known >= 2:
        return
    what = "groups" if "group" in rows.columns else "rows"
    count = len(np.unique(np.asarray(rows.column("group")))) if what == "groups" and rows.in_memory else len(rows)
    found = f"groups of {count} rows" if what == "groups" and not rows.in_memory else f"{count} {what}"
    judged = "held-out rows of one class alone" if known else "no held-out row"
    raise DataError(
        f"probability=True: {judged} can be judged ({found}: {known} of {weight.shape[1]} classes lie in more than one "
        f"fold, at least 2 have to); give more {what} or take probability=False"
    )


def adds_rows(estimator: Any) -> bool:
    """True where a fit keeps what `partial_fit` adds to; an `AttributeError` where it could not calibrate again."""
    if estimator.probability:
        raise AttributeError(_ROWS_ARE_GONE.format("partial_fit"))
    return keeps_statistics(estimator)


def with_sweeps(plan: Plan, more: Plan, count: int) -> Plan:
    """A plan with `count` sweeps of another kind after it; a task takes what the larger kind does."""
    largest = max(plan, more, key=lambda one: one.task_bytes)
    flops, size = plan.flops + count * more.flops, plan.bytes_read + count * more.bytes_read
    return replace(largest, flops=flops, bytes_read=size)


class LogitProbabilities:
    """Mixin of the classifiers whose values of f are logits."""

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes for the rows X, (n, c): an array, or a lazy Dask array for lazy input.

        Raises
        ------
        AttributeError
            The estimator has the parameter `probability`, and it is False.
        ConfigError
            It was so when the model was fitted.
        """
        return self._of_logits(X, softmax)

    def predict_log_proba(self, X: Any) -> Any:
        """The logarithms of `predict_proba`, finite where those are too small for a number."""
        return self._of_logits(X, log_softmax)

    def _of_logits(self, X: Any, function: Any) -> Any:
        check_is_fitted(self)
        values = self._values(X)  # type: ignore[attr-defined]
        return values.map_blocks(function, dtype=np.float64) if is_dask_array(values) else function(values)


class Probabilities(LogitProbabilities, LandmarkEstimator):
    """Base of the classifiers with the parameter `probability`, right of those that say what is summed and solved.

    Where a model is calibrated its decision values are the logits a ∘ f + b, so that predictions, decision values and
    probabilities agree.

    Attributes
    ----------
    calibration_scale_, calibration_offset_ : (c,), p = softmax(scale ∘ f + offset); with `probability`
    """

    probability: bool
    calibration_scale_ = Fitted("calibration.scale")
    calibration_offset_ = Fitted("calibration.offset")

    # -- prediction ----------------------------------------------------------------------------------------------------

    def _coefficients(self) -> tuple[Array, Array]:
        (coef, intercept), found = super()._coefficients(), self._require("fit").calibration
        return (coef, intercept) if found is None else (coef * found.scale, found.logits(intercept))

    def _predictor(self) -> Predictor:
        return replace(super()._predictor(), logits=self._require("fit").calibration is not None)

    predict_proba = available_if(_gives_probabilities)(LogitProbabilities.predict_proba)
    predict_log_proba = available_if(_gives_probabilities)(LogitProbabilities.predict_log_proba)

    def _of_logits(self, X: Any, function: Any) -> Any:
        check_is_fitted(self)
        if self._require("fit").calibration is None:
            raise ConfigError(f"{type(self).__name__}: it was fitted with probability=False; fit again")
        return super()._of_logits(X, function)

    # -- what cannot be calibrated again -------------------------------------------------------------------------------

    def _refuse(self, what: str) -> None:
        if self.probability:
            raise ConfigError(_ROWS_ARE_GONE.format(what))

    def refit(self) -> Any:
        """See `KernelRidge.refit`; refused with `probability`, which needs the rows again."""
        self._refuse("refit")
        return super().refit()

    def _of_columns(self, before: MomentFit, count: int, columns: Array) -> Any:
        self._refuse("with_landmarks")
        return super()._of_columns(before, count, columns)

    def adopt(self, rows: Rows, targets: Any, inputs: Inputs, basis: Any, problem: Problem | None) -> Any:
        """See `RowsEstimator`; with `probability` of a sweep of one's own, whose folds are those of the calibration."""
        return super().adopt(rows, targets, inputs, basis, None if self.probability else problem)

    # -- sums of folds -------------------------------------------------------------------------------------------------

    def _statistic(self, basis: Any, targets: Any) -> Any:
        return self._folded(super()._statistic(basis, targets))

    def _folded(self, statistic: MomentStatistic) -> MomentStatistic:
        """The statistic with the labelled rows by fold: five where they fit a worker, else one and the rest."""
        if not self.probability:
            return statistic
        wanted, folded = settings(), replace(statistic, folds=HeldOutFolds(FOLDS - 1))
        size = folded.footprint(wanted.block_rows)
        if _PARTIALS * size.partial_bytes + size.work_bytes + wanted.worker_base_bytes <= wanted.memory_limit_bytes:
            return folded
        return replace(statistic, folds=HeldOutFolds(1))

    def _summed(self, problem: Problem, rows: Rows) -> Problem:
        """See `LandmarkEstimator`; with probabilities the sums of each fold stand beside those of all."""
        problem = super()._summed(problem, rows)
        if not self.probability:
            return problem
        total, first = problem.statistics, int(self.unlabelled == "keep")
        joined = dict(total)
        for name in {*SUMS, *WITNESSED} & set(total):
            labelled = total[name][first:].sum(axis=0, keepdims=True)
            joined[name] = np.concatenate([total[name][:first], labelled])
        return replace(problem, statistics=joined, folds={name: total[name][first:] for name in SUMS})

    def _planned(self, rows: Rows, targets: Any, basis: Any) -> Plan:
        plan = super()._planned(rows, targets, basis)
        if not self.probability:
            return plan
        classes = self._classes(targets)
        m, c = basis.width, classes.width
        # the coefficients of each fold, of which none is known yet
        coef = np.broadcast_to(0.0, (FOLDS, m, c))
        features, folds = basis.features(), HeldOutFolds(FOLDS - 1)
        statistic = HeldOutValues(features, classes, folds, coef, coef[:, 0], most_rows(c), float(len(rows)))
        more = plan_sweep(rows, statistic)
        return with_sweeps(plan, more, 1)

    # -- calibration ---------------------------------------------------------------------------------------------------

    def _classes(self, targets: Any) -> Targets:
        """Which rows are labelled, and how."""
        found: Targets = targets
        return found

    def _joins(self) -> bool:
        """True where held-out rows stay among the rows without a label."""
        return self.unlabelled == "keep"

    def _reduced_without(self, reduced: Any, part: Problem) -> Any:
        """What `_reduce` makes of the sums without a fold, from what it made of all."""
        return reduced

    def _fit_moments(self, rows: Rows, targets: Any, inputs: Inputs, basis: Any) -> MomentFit:
        return self._calibrated(super()._fit_moments(rows, targets, inputs, basis), rows, targets)

    def _calibrated(self, fit: MomentFit, rows: Rows, targets: Any) -> MomentFit:
        """The fit with its calibration, and without the sums of its folds."""
        if not self.probability:
            return fit
        assert fit.folds is not None
        _require_judged(fit.folds["t"], rows)
        with spent("solve"), solving(self):
            solutions = self._held_out_solutions(fit)
        count = len(fit.folds["n"])
        classes = self._classes(targets)
        statistic = HeldOutValues(
            features=self.predicting(fit.basis.features()),
            targets=classes,
            folds=HeldOutFolds(count - 1),
            coef=np.stack([one.coef for one in solutions]),
            intercept=np.stack([one.intercept for one in solutions]),
            most=most_rows(classes.width),
            rows=float(fit.folds["rows"][: len(solutions)].sum()),
        )
        try:
            total = sweep(rows, statistic, what="calibration").total
        except ResumeMismatch:  # of coefficients that another processor has rounded otherwise, or another penalty
            forget("calibration")
            total = sweep(rows, statistic, what="calibration").total
        with spent("solve"), solving(self):
            found = fit_softmax(total["values"], total["truth"], total["weight"])
        return replace(fit, calibration=found, folds=None)

    def _held_out_solutions(self, fit: MomentFit) -> list[Solution]:
        """The solution without each fold whose rows it is to be judged by."""
        assert fit.folds is not None
        again = copy(self).set_params(alpha=fit.solution.alpha)
        whitening = arithmetic.whitening_for(self, fit.basis)
        reduced = self._reduce(fit, whitening)
        count, solutions = len(fit.folds["n"]), []
        for number in range(count if count == FOLDS else 1):
            part = replace(fit, statistics=self._without(fit, {name: fit.folds[name][number] for name in SUMS}))
            of_part = self._reduced_without(reduced, part)
            solutions.append(again._solved(part, whitening, reduced=of_part, tell=False).solution)
        return solutions

    def _without(self, fit: MomentFit, held: Mapping[str, Array]) -> Accumulator:
        """The sums without those of a fold, whose rows are without a label where they join these."""
        left = {name: fit.statistics[name].copy() for name in SUMS}
        for name, values in held.items():
            left[name][-1] -= values
            if self._joins() and name in ("rows", "n", "G", "s"):
                left[name][0] += values
        return left

    def _fit_exact(self, rows: Rows, targets: Targets, inputs: Inputs) -> ExactFit:
        fit = super()._fit_exact(rows, targets, inputs)
        if not self.probability:
            return fit
        exact = read_exact(type(self).__name__, rows, None if self._semi_supervised else targets)
        Y, labelled = exact.labels(targets)
        K, again = fit.basis.core(), copy(self).set_params(alpha=fit.solution.alpha)
        weight = np.ones(len(K)) if exact.weight is None else exact.weight
        fold = HeldOutFolds(FOLDS - 1).of(exact.chunk)[exact.keep] % FOLDS
        sums = [weight[labelled & (fold == number)] @ Y[fold[labelled] == number] for number in range(FOLDS)]
        _require_judged(np.stack(sums), rows)
        values = np.zeros((len(K), Y.shape[1]))
        for number in range(FOLDS):
            held = labelled & (fold == number)
            rest = labelled & ~held
            if not held.any():
                continue
            whole = ExactProblem(inputs, fit.basis, K, (Y, labelled), exact.weight)
            if self._semi_supervised:  # they stay, without their labels
                part = replace(whole, wanted=(Y[rest[labelled]], rest))
            else:
                part = replace(whole, weight=np.where(held, 0.0, weight))
            with solving(self):
                solution = again._solve_exact(part, Certificates())
            values[held] = K[held] @ solution.coef + solution.intercept
        counts = labelled & (weight > 0)
        with solving(self):
            found = fit_softmax(values[counts], Y[counts[labelled]].argmax(axis=1), weight[counts])
        return replace(fit, calibration=found)

    # -- reports and files ---------------------------------------------------------------------------------------------

    def fit_report(self) -> dict[str, Any]:
        """See `KernelRidge.fit_report`; with `probability` the rows of the calibration and their log-loss."""
        report = super().fit_report()
        found = self._require("fit").calibration
        if found is not None and found.rows:
            report |= {"calibration_rows": found.rows, "calibration_log_loss": found.log_loss}
        return report
