"""The arithmetic that kernels of a search begin in, foretold by an excerpt of the rows.

All kernels of a sweep are summed over an excerpt side by side, without folds, and each is solved for the candidates
that rounding moves farthest. See `estimators.arithmetic`, which does the same for a fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.estimators.arithmetic import (
    PREVIEW,
    as_all_rows,
    doubtful,
    foretold,
    preview_rows,
    seeing_sweep,
    whitening_for,
)
from bigkernel.estimators.fit_state import Inputs, Problem
from bigkernel.estimators.kernel_basis import LandmarkBasis
from bigkernel.events.kinds import Note
from bigkernel.events.scope import emit, spent
from bigkernel.search.arrangement import Candidate, Descents, SidedSweep, Sweep, about, fits
from bigkernel.search.scoring import Scoring
from bigkernel.search.splits import Partition
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import Whitening
from bigkernel.statistics.moments import Targets


def previewed_rows(one: Sweep, rows: int) -> int:
    """Rows of the excerpt that may be summed before a sweep of so many rows; 0: none will."""
    basis = one.lead.basis
    if isinstance(one, Descents | SidedSweep) or not isinstance(basis, LandmarkBasis) or basis.dtype != "float32":
        return 0
    if not one.lead.last.has_witness:
        return 0
    return preview_rows(rows, int(basis.width))


def foresee(
    one: Sweep, rows: Rows, targets: Targets, inputs: Inputs, partitions: list[Partition], scoring: Scoring
) -> None:
    """Give the candidates of kernels that an excerpt of the rows finds too coarse the arithmetic that they need."""
    count = previewed_rows(one, len(rows))
    if not count:
        return
    leads = [next((c.last for c in members if c.last.whitens), members[0].last) for members in one.members]
    doubted: list[tuple[list[Candidate], Whitening]] = []
    with threadpool_limits(limits=1, user_api="blas"):  # the same bits however many there are, as in the solves
        for members, last in zip(one.members, leads, strict=True):
            whitening = whitening_for(last, members[0].basis, Certificates())
            if doubtful(members[0].basis, whitening):
                doubted.append((members, whitening))
    if not doubted:
        return
    few = Sweep([members for members, _ in doubted])
    statistic = few.statistic(targets, partitions[0], count, [whitening for _, whitening in doubted])
    statistic, some = replace(statistic, folds=None), rows.excerpt(count)
    total = seeing_sweep(some, statistic, what=PREVIEW).total
    total, groups, changed = as_all_rows(total, len(rows) / len(some)), statistic.groups, 0
    for place, (members, whitening) in enumerate(doubted):
        own = {name: values[place * groups : (place + 1) * groups] for name, values in total.items()}
        problem = Problem.of_sums(inputs, members[0].basis, own, about(statistic, place))
        with spent("solve"), threadpool_limits(limits=1, user_api="blas"):
            finer = _finer(members, problem, whitening)
        if finer is not None and move(one, members, finer, rows, targets, partitions, scoring):
            changed += 1
    if changed:
        what = f"{changed} of {len(one.members)} kernels are swept in better arithmetic from the first"
        emit(Note(f"{what}, as {count:,} rows foretell"))


def move(
    one: Sweep,
    members: list[Candidate],
    finer: Any,
    rows: Rows,
    targets: Targets,
    partitions: list[Partition],
    scoring: Scoring,
) -> bool:
    """Give the candidates of a kernel a basis in better arithmetic; False: its sweeps would not fit."""
    moved = replace(one, members=[[replace(candidate, basis=finer) for candidate in members]])
    if not fits(moved, rows, targets, partitions, scoring):
        return False
    for candidate in members:
        candidate.basis = finer
    return True


def _finer(members: list[Candidate], problem: Problem, whitening: Whitening) -> Any:
    """The basis in the arithmetic that the candidates of a kernel ask for; None: that which it has."""
    choose, found = all(candidate.last.dtype == "auto" for candidate in members), None
    for candidate in _hardest(members):
        own = problem if candidate.penalty.fit_intercept else problem.of_targets()
        try:
            asked = foretold(candidate.last, own, whitening, choose=choose)
        except DataError:  # it may do with all rows
            continue
        if asked is not None and (found is None or asked[0].dtype == "float64"):
            found = asked[0]
    return found


def _hardest(members: list[Candidate]) -> list[Candidate]:
    """Of candidates that differ in penalty and number of components alone, that of the least and the most."""

    def ease(candidate: Candidate) -> tuple[float, int]:
        alpha = candidate.penalty.alpha
        return np.inf if isinstance(alpha, str) else float(np.min(alpha)), -(candidate.penalty.n_components or 0)

    groups: dict[Any, Candidate] = {}
    for candidate in sorted(members, key=ease):
        key = replace(candidate.penalty, alpha=0.0, n_components=None), getattr(candidate.last, "eigenfunctions", None)
        groups.setdefault(key, candidate)
    return list(groups.values())
