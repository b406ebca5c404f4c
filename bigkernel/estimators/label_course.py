"""The way of one model through its rounds of pseudo-labels: what each round asks of the target, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigkernel.estimators.fit_state import Solved
from bigkernel.solvers.pseudo_labels import Asked, Decision, PseudoLabels, Sides

FLAT = 0.75  # of the equivocation: labels that tell less than a quarter of what there is to know of a class
SLACK = 0.02  # by which it may rise above its least without being a collapse
TRIAL_ROUNDS = 3  # before labels are judged flat


@dataclass(eq=False)
class Course:
    """A solution and the rounds that follow it, at most `count`; fewer where no label changes or labels collapse.

    Each round is `asked`, a sweep of the target by whoever drives it, and `take`, a solve.

    Attributes
    ----------
    estimator : with `SidedEstimator`
    solved : the latest solution
    rounds : of each, `entropy`, `equivocation` and `changed` (see `SidedEstimator`)
    fault : why they ended early, or nothing; the least equivocal round is kept then
    ended : whether there is none to come
    """

    estimator: Any
    solved: Solved
    count: int
    rounds: list[dict[str, float]] = field(default_factory=list)
    fault: str = ""

    def __post_init__(self) -> None:
        self.ended = not self.count
        self._least, self._best = np.inf, self.solved.problem.pseudo_labels
        self._asked: Decision | None = None
        self._before: Decision | None = None

    @property
    def number(self) -> int:
        """Of the round that is to come, from 1."""
        return len(self.rounds) + 1

    def asked(self, features: Any, sides: Sides) -> Asked:
        """Whose labels this round wants, over the columns of a centred map."""
        decision, slope = self.estimator.decision(self.solved, self.number)
        self._asked = decision
        about, before = (
            None if f is None else replace(f, intercept=f.intercept + features.shift.astype(np.float64) @ f.coef)
            for f in (decision, self._before)
        )
        assert about is not None
        return Asked(sides, about, slope, before)

    def take(self, labels: PseudoLabels) -> None:
        """End the round: solve with its labels, unless they are those of before."""
        number, settled = self.number, labels.changed == 0 and bool(self.rounds)
        self._before = self._asked
        self.rounds.append({"entropy": labels.entropy, "equivocation": labels.equivocation, "changed": labels.changed})
        if labels.equivocation <= self._least:
            self._least, self._best = labels.equivocation, self.solved.problem.pseudo_labels
        last = number == self.count or settled
        self.fault = self._collapse(labels, number, last=last) if self.estimator.guarded else ""
        self.ended = last or bool(self.fault)
        if settled and not self.fault:
            return
        problem = replace(self.solved.problem, pseudo_labels=self._best if self.fault else labels)
        self.solved = self.estimator._solved(problem, self.solved.whitening, reduced=self.solved.reduced, tell=False)

    def _collapse(self, labels: PseudoLabels, number: int, *, last: bool) -> str:
        """Return the warning that is due, or nothing."""
        found, least, name = labels.equivocation, self._least, type(self.estimator).__name__
        if found > FLAT and (last or number >= TRIAL_ROUNDS):
            share = labels.counts.max() / max(labels.counts.sum(), 1e-300)
            return (
                f"{name}: after {number} rounds the pseudo-labels tell too little (equivocation {found:.2f}, expected "
                f"at most {FLAT}; the largest class has {100 * share:.0f} % of the target): the least equivocal round "
                "is kept; take a larger sharpness, or a source that is more like the target"
            )
        if found > least + SLACK:
            return (
                f"{name}: the equivocation of the pseudo-labels rises, from {least:.2f} to {found:.2f} in round "
                f"{number}: the least equivocal round is kept; take a larger sharpness or fewer rounds"
            )
        return ""
