"""What a search takes, before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bigkernel.engine.sweep import plan_sweep
from bigkernel.search.arrangement import Candidate, Descents, Sweep
from bigkernel.search.previews import previewed_rows
from bigkernel.search.scoring import Scoring
from bigkernel.search.shared_sweeps import Work
from bigkernel.search.splits import Partition
from bigkernel.search.value_sweeps import batches
from bigkernel.solvers.preconditioners import named


@dataclass(frozen=True)
class SearchPlan:
    """The plan of a search: candidates, splits, sweeps and their cost.

    Attributes
    ----------
    candidates, splits : how many
    sweeps : a line each; of conjugate gradients one for all that are expected of a descent
    refits : fits of candidates that keep no statistics
    flops : of the sweeps
    task_bytes : most memory that a task of one of them needs, on top of the process
    count : of the sweeps
    driver_bytes : most memory that the arrays of a descent take on the driver, about; 0 where there is none
    """

    candidates: int
    splits: int
    sweeps: tuple[str, ...]
    refits: int
    flops: float
    task_bytes: int
    count: int
    driver_bytes: int = 0

    def with_more(self, more: SearchPlan) -> SearchPlan:
        """Of these candidates and then of others."""
        return SearchPlan(
            candidates=self.candidates + more.candidates,
            splits=self.splits,
            sweeps=self.sweeps + more.sweeps,
            refits=self.refits + more.refits,
            flops=self.flops + more.flops,
            task_bytes=max(self.task_bytes, more.task_bytes),
            count=self.count + more.count,
            driver_bytes=max(self.driver_bytes, more.driver_bytes),
        )

    def __str__(self) -> str:
        lines = [f"{self.candidates} candidates, {self.splits} splits: {self.count} sweeps, {self.refits} fits"]
        return "\n".join(lines + [f"  {line}" for line in self.sweeps])


@dataclass(frozen=True)
class _Line:
    """Sweeps that are told together, and each of their plans."""

    text: str
    flops: float
    task_bytes: int
    count: int = 1
    driver_bytes: int = 0


def planned(work: Sequence[tuple[Sequence[Candidate], Work]], scoring: Scoring) -> SearchPlan:
    """The plan of candidates with the work that judges them."""
    splits = sum(len(part.splits) for part in work[0][1].partitions)
    refits = sum(len(members) * splits for members, one in work if not one.sweeps)
    lines = [
        line
        for _, one in work
        for sweep in one.sweeps
        for part in one.partitions
        for line in _lines(sweep, part, one, scoring)
    ]
    return SearchPlan(
        candidates=sum(len(members) for members, _ in work),
        splits=splits,
        sweeps=tuple(line.text for line in lines),
        refits=refits,
        flops=sum((line.count * line.flops for line in lines), 0.0),
        task_bytes=max((line.task_bytes for line in lines), default=0),
        count=sum(line.count for line in lines),
        driver_bytes=max((line.driver_bytes for line in lines), default=0),
    )


def _lines(sweep: Sweep, partition: Partition, work: Work, scoring: Scoring) -> Iterator[_Line]:
    """The sweeps over a partition."""
    together: list[tuple[Sweep, Partition]] = [(sweep, partition)]
    if isinstance(sweep, Descents):
        together = [*sweep.at_once(work.rows, work.targets, partition, scoring)]
    if partition is work.partitions[0] and (count := previewed_rows(sweep, len(work.rows))):
        yield _Line(f"{count:,} rows first, where cores leave doubt of the arithmetic", 0.0, 0, 0)
    for one, part in together:
        rows = part.attach(work.rows)
        steps = plan_sweep(rows, one.statistic(work.targets, part, len(rows)))
        kernels, candidates = len(one.members), len(one.candidates)
        what = f"{kernels} kernel{'s' * (kernels > 1)}, {candidates} candidates, {len(part.splits)} folds: "
        if isinstance(one, Descents):
            number, held = one.choice.sweeps, one.driver_bytes(work.targets, part)
            what += f"about {number} sweeps of conjugate gradients by the {named(one.choice.rows)}, "
            what += f"{number * steps.flops:.2g} flops, {held / 1e6:,.0f} MB in this process"
            yield _Line(what, steps.flops, steps.task_bytes, number, held)
        else:
            yield _Line(what + f"moments, {steps.flops:.2g} flops", steps.flops, steps.task_bytes)
        if scoring.counts:
            counting = plan_sweep(rows, one.judge(work.targets, part, scoring=scoring))
            yield _Line(f"  scores of its {candidates} candidates", counting.flops, counting.task_bytes)
        for some, valuing in batches(Sweep(one.members), part, work, scoring) if scoring.scorers else []:
            said = f"  values of {len(some.candidates)} candidates at held-out rows"
            yield _Line(said, valuing.flops, valuing.task_bytes)
