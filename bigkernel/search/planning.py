"""What a search takes, before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bigkernel.engine.sweep import plan_sweep
from bigkernel.events.kinds import SweepStarted
from bigkernel.html import columns, table
from bigkernel.search.arrangement import Candidate, Descents, SidedSweep, Sweep
from bigkernel.search.scoring import Scoring
from bigkernel.search.shared_sweeps import Work
from bigkernel.search.side_sweeps import planned_rounds
from bigkernel.search.splits import Partition
from bigkernel.search.value_sweeps import batches
from bigkernel.solvers.preconditioners import describe_preconditioner
from bigkernel.streaming.plan import Plan


@dataclass(frozen=True)
class SearchPlan:
    """The plan of a search: candidates, splits, sweeps and their cost.

    Attributes
    ----------
    candidates, splits : how many
    sweeps : a line each; of conjugate gradients one for all that are expected of a descent
    flops : of the sweeps
    task_bytes : most memory that a task of one of them needs, on top of the process
    count : of the sweeps
    driver_bytes : most memory that the arrays of a descent take on the driver, about; 0 where there is none
    """

    candidates: int
    splits: int
    sweeps: tuple[str, ...]
    flops: float
    task_bytes: int
    count: int
    driver_bytes: int = 0

    def _repr_html_(self) -> str:
        figures = {
            "candidates": self.candidates,
            "splits": self.splits,
            "sweeps": self.count,
            "flops": self.flops,
            "task_bytes": self.task_bytes,
            "driver_bytes": self.driver_bytes or None,
        }
        return table("plan of a search", figures) + columns(["its sweeps"], [[line.strip()] for line in self.sweeps])

    def __str__(self) -> str:
        lines = [f"{self.candidates} candidates, {self.splits} splits: {self.count} sweeps"]
        return "\n".join(lines + [f"  {line}" for line in self.sweeps])


@dataclass(frozen=True)
class _Line:
    """Sweeps that are told together, and each of their plans."""

    text: str
    flops: float
    task_bytes: int
    count: int = 1
    driver_bytes: int = 0


def planned(
    work: Sequence[tuple[Sequence[Candidate], Work]],
    scoring: Scoring,
    *,
    learned: Sequence[SweepStarted] = (),
    refit: bool = True,
) -> SearchPlan:
    """The plan of candidates with the work that judges them.

    `learned`: the sweeps that their transforms took; `refit`: with those of the best on all rows.
    """
    splits = sum(len(part.splits) for part in work[0][1].partitions)
    lines = [_Line(f"transforms: the sweep of {one.what}", one.plan.flops, one.plan.task_bytes) for one in learned]
    lines += [
        line
        for _, one in work
        for sweep in one.sweeps
        for part in one.partitions
        for line in _lines(sweep, part, one, scoring)
    ]
    if refit:  # the best is of one work, not known of which
        lines += max(([*_of_best(one)] for _, one in work), key=lambda found: sum(line.count for line in found))
    return SearchPlan(
        candidates=sum(len(members) for members, _ in work),
        splits=splits,
        sweeps=tuple(line.text for line in lines),
        flops=sum((line.count * line.flops for line in lines), 0.0),
        task_bytes=max((line.task_bytes for line in lines), default=0),
        count=sum(line.count for line in lines),
        driver_bytes=max((line.driver_bytes for line in lines), default=0),
    )


def _of_rounds(whose: str, rounds: int, sweeps: Sequence[Plan]) -> _Line:
    """Rounds of pseudo-labels, each of these sweeps; they may be fewer."""
    flops, largest = sum(plan.flops for plan in sweeps), max(plan.task_bytes for plan in sweeps)
    said = f"  at most {rounds * len(sweeps)} sweeps for the pseudo-labels {whose}, {rounds * flops:.2g} flops"
    return _Line(said, flops / len(sweeps), largest, rounds * len(sweeps))


def _of_best(work: Work) -> Iterator[_Line]:
    """The sweeps that the best candidate may take on all rows, beside what it goes on from."""
    direct = [one for one in work.sweeps if not isinstance(one, Descents)]
    calibrated = any(getattr(candidate.last, "probability", False) for one in direct for candidate in one.candidates)
    whole = next((part for part in work.partitions if part.whole), None)
    if direct and (calibrated or whole is None):
        part = whole or work.partitions[0]
        steps = [
            plan_sweep(part.attach(work.rows), one.statistic(work.targets, part, len(work.rows))) for one in direct
        ]
        largest = max(steps, key=lambda plan: plan.flops)
        yield _Line("the best on all rows: moments", largest.flops, largest.task_bytes)
        if calibrated:
            yield _Line("the best on all rows: values to calibrate on", largest.flops, largest.task_bytes)
    sided = [one for one in direct if isinstance(one, SidedSweep)]
    if rounds := max((one.rounds for one in sided), default=0):
        part = work.partitions[0]
        each = [planned_rounds(one, work.rows, work.targets, part, best=True) for one in sided]
        yield _of_rounds("of the best on all rows", rounds, max(each, key=lambda plans: plans[0].flops))


def _lines(sweep: Sweep, partition: Partition, work: Work, scoring: Scoring) -> Iterator[_Line]:
    """The sweeps over a partition."""
    together: list[tuple[Sweep, Partition]] = [(sweep, partition)]
    if isinstance(sweep, Descents):
        together = [*sweep.at_once(work.rows, work.targets, partition, scoring)]
    for one, part in together:
        rows = part.attach(work.rows)
        steps = plan_sweep(rows, one.statistic(work.targets, part, len(rows)))
        kernels, candidates = len(one.members), len(one.candidates)
        what = f"{kernels} kernel{'s' * (kernels > 1)}, {candidates} candidates, {len(part.splits)} folds: "
        if isinstance(one, Descents):
            number, held = one.choice.sweeps, one.driver_bytes(work.targets, part)
            what += f"about {number} sweeps of conjugate gradients by the {describe_preconditioner(one.choice.rows)}, "
            what += f"{number * steps.flops:.2g} flops, {held / 1e6:,.0f} MB in this process"
            drawn = [plan_sweep(rows, statistic).task_bytes for statistic in one.draws(work.targets)]
            yield _Line(what, steps.flops, max(steps.task_bytes, *drawn, 0), number, held)
        else:
            yield _Line(what + f"moments, {steps.flops:.2g} flops", steps.flops, steps.task_bytes)
        if isinstance(one, SidedSweep) and one.rounds:
            of_round = planned_rounds(one, work.rows, work.targets, part)
            yield _of_rounds("of all of them", one.rounds, of_round)
        if scoring.counts:
            counting = plan_sweep(rows, one.judge(work.targets, part, scoring=scoring))
            yield _Line(f"  scores of its {candidates} candidates", counting.flops, counting.task_bytes)
        for some, valuing in batches(Sweep(one.members), part, work, scoring) if scoring.scorers else []:
            said = f"  values of {len(some.candidates)} candidates at held-out rows"
            yield _Line(said, valuing.flops, valuing.task_bytes)
