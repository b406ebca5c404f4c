"""Sums of labelled rows by fold, and what is chosen by them: the penalty of `alpha="cv"`.

The sweep of a fit keeps the moments of five folds apart (`statistics.held_out`). Those of all rows less a fold are the
sums of a fit without it, which no landmark among its rows may join: coefficients there would be nearly undetermined.
Where moments of five folds would not fit a worker, one fold is held out.

Shapes: m landmarks, c targets, g folds, k penalties. Tests: estimators/test_alpha_cv.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.estimators.fit.precision import of_columns, rounding_estimate
from bigkernel.estimators.fit.state import ExactProblem, FoldSums, Problem
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.solvers.penalty_grid import Block, Coordinates, SolveSettings, squared_errors, total_spread
from bigkernel.solvers.ridge import RoundingEstimate, rounding_of_rotation
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds
from bigkernel.statistics.moments import PROBED, SUMS, Moments, MomentStatistic, without
from bigkernel.streaming.plan import Accumulator

P = TypeVar("P", bound=Problem)
_PARTIALS = 12  # most partial results that a task holds at once, for some million rows
_SAME = 0.005  # relative difference of errors that is none
_PENALTIES = np.geomspace(10.0, 1e-13, 43)  # shares of the trace of the moments, from the largest on


def with_folds(statistic: MomentStatistic) -> MomentStatistic:
    """Return the statistic with labelled rows by fold: five if they fit a worker, else one and the others."""
    limits, folded = settings(), replace(statistic, folds=HeldOutFolds(FOLDS - 1))
    size = folded.footprint(limits.block_rows)
    if _PARTIALS * size.partial_bytes + size.work_bytes + limits.worker_base_bytes <= limits.memory_limit_bytes:
        return folded
    return replace(statistic, folds=HeldOutFolds(1))


def join_folds(total: Accumulator, first: int) -> Accumulator:
    """Return the sums with those of all labelled rows, which begin with the group `first`, as one group."""
    joined = dict(total)
    for name in {*SUMS, *PROBED} & set(total):
        labelled = total[name][first:].sum(axis=0, keepdims=True)
        joined[name] = np.concatenate([total[name][:first], labelled])
    return joined


def keep_folds(problem: P, rows: Rows, *, semi_supervised: bool, joins: bool) -> P:
    """Keep the sums of each fold beside those of all rows; the first group of semi-supervised methods has no label.

    Their landmarks stay in all folds, as do random features. `joins`: see `FoldSums`.
    """
    total, ids, first = problem.statistics, problem.basis.ids, int(semi_supervised)
    sums = {name: total[name][first:] for name in SUMS}
    count, landmarks = len(sums["n"]), None
    if ids is not None and not semi_supervised:
        landmarks = rows.folds_of(HeldOutFolds(count - 1), ids) % count
    return replace(problem, statistics=join_folds(total, first), folds=FoldSums(sums, landmarks, joins))


def held_out(problem: P) -> Iterator[tuple[P, P, Array | None]]:
    """Yield for each fold the problem without it, that of the fold alone, and the landmarks of both; None: all.

    One at a time, of m×m sums each.
    """
    folds = problem.folds
    assert folds is not None
    for fold in range(folds.count):
        alone = {name: sums[fold : fold + 1] for name, sums in folds.sums.items()}
        others = _without(problem.statistics, folds, fold)
        pair = replace(problem, statistics=others), replace(problem, statistics=alone)
        if folds.landmarks is None:
            yield *pair, None
            continue
        # coefficients at landmarks among held-out rows would be nearly undetermined by the other rows
        kept = np.flatnonzero(folds.landmarks != fold)
        kept = kept if len(kept) else np.arange(len(folds.landmarks))  # of one or two landmarks all may be held out
        rest, tested = (of_columns(one, kept, probed=True) for one in pair)
        yield rest, tested, kept


def _without(total: Accumulator, folds: FoldSums, fold: int) -> Accumulator:
    """Return the sums without those of a fold; its rows stay as unlabelled ones where they join those."""
    left = dict(total)
    for name, others in without(folds.sums, fold).items():
        left[name] = np.concatenate([total[name][:-1], others])
        if folds.joins and name in ("rows", "n", "G", "s"):
            left[name][0] += folds.sums[name][fold]
    return left


# -- the penalty of the least error on held-out rows -------------------------------------------------------------------


class RidgeInCoordinates(Protocol):
    """The members of a `Method` that solves ridge in some coordinates."""

    has_formula: ClassVar[bool]

    def solve_settings(self) -> SolveSettings:
        """Return its parameters."""

    @property
    def whitens(self) -> bool:
        """Whether it whitens its columns to solve."""

    def coordinates(self, problem: Problem, n_components: int, whitening: Whitening | None = None) -> Coordinates:
        """Return the coordinates."""


class Part(NamedTuple):
    """Moments of the rows without a fold, and of the fold alone, in coordinates of the rows without it."""

    coordinates: Coordinates
    train: Moments
    test: Moments
    estimate: RoundingEstimate | None = None  # of the training moments


class Choice(NamedTuple):
    """A penalty, the position of the block of coordinates it belongs to, and whether a smaller one was unresolved."""

    alpha: float
    block: int
    unresolved: bool  # rounding hides how well it would predict


def choose_by_folds(method: RidgeInCoordinates, problem: Problem) -> Choice:
    """Choose the penalty of a method from the sums of folds; see `choose`."""
    asked = method.solve_settings()
    return choose(_parts(method, problem if asked.fit_intercept else problem.of_targets()), asked, problem.inputs)


def _parts(method: RidgeInCoordinates, problem: Problem) -> Iterator[Part]:
    coordinates = None
    for rest, alone, kept in held_out(problem):
        # without the landmarks of a fold the core is another one, with a whitening of its own
        if coordinates is None or kept is not None:
            whitening = rest.basis.whitening(solves=method.whitens)
            coordinates = method.coordinates(rest, method.solve_settings().n_components or 0, whitening)
        # labelled rows are the last group of either
        train = Moments.of(rest.statistics, -1, shift=rest.centre)
        reduced = coordinates.reduce(train)
        test = coordinates.reduce(Moments.of(alone.statistics, 0, shift=alone.centre))
        estimate = rounding_estimate(rest, whitening) if method.has_formula else None
        if estimate is not None:
            estimate = estimate.with_solve(rounding_of_rotation(train, reduced, whitening), train.rows)
        yield Part(coordinates, reduced, test, estimate)


def choose_by_rows(
    asked: SolveSettings,
    problem: ExactProblem,
    Y: Array,
    weight: Array,
    folds: Array,
    phi_of: Callable[[Array], tuple[Coordinates, Array]],
) -> Choice:
    """Choose the penalty from labelled rows in memory, with targets Y (l, c), weights and folds (l,); see `choose`.

    `phi_of` returns the coordinates of a fit to some of them, (k,) positions, and all in its columns, (l, p).
    """

    def parts() -> Iterator[Part]:
        for fold in range(FOLDS):
            sides = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            if len(sides[0]) and len(sides[1]):
                to, phi = phi_of(sides[0])
                train, test = (to.reduce(Moments.of_rows(phi[rows], Y[rows], weight[rows])) for rows in sides)
                yield Part(to, train, test)

    return choose(parts(), asked, problem.inputs)


def choose(parts: Iterable[Part], asked: SolveSettings, inputs: Inputs) -> Choice:
    """Choose the penalty, and the block of coordinates, by the squared errors of held-out folds (`first_as_good`).

    Candidates that rounding may change by more than their error are left out. Each target counts by its own variance,
    and classes by their frequency.
    """
    grid = list[SolveSettings]()
    errors, weights, unsure = [], [], []
    for coordinates, train, test, estimate in parts:
        if not (train.n > 0 and test.n > 0):
            continue
        # all candidates are fitted without the fold, and tested on it
        blocks = coordinates.blocks or (None,)
        grid = grid or _grid(asked, train, blocks)
        fitted, intercepts, estimates = coordinates.fit(train, grid, estimate)
        # targets are compared in units of their variance
        spread = np.maximum(total_spread(train) / train.n, 1e-300)
        unit = spread if inputs.classes is None else np.ones_like(spread)
        errors.append((squared_errors(test, fitted, intercepts) / test.n / unit).sum(axis=1))
        weights.append(float(test.n))
        # by how much rounding may move the root of the error
        rounding = np.array([0.0 if one is None else one.total for one in estimates])
        unsure.append(rounding * np.sqrt((spread / unit).sum()))
    if not errors:
        raise DataError("alpha='cv': expected labelled rows in two folds at least, found one; pass a number")
    # only candidates that rounding leaves clear may be chosen, the simplest if there is none
    told, share = np.stack(errors), np.array(weights)
    sure = (np.stack(unsure) <= np.sqrt(told)).all(axis=0)
    sure[0] |= not sure.any()
    chosen = first_as_good(told, share, sure)
    alpha, passed = grid[chosen].alpha, chosen // len(_PENALTIES)
    assert isinstance(alpha, float)
    # whether the next smaller penalty would be better, could rounding resolve it
    smaller = min(chosen + 1, (passed + 1) * len(_PENALTIES) - 1)
    better = first_as_good(told[:, [chosen, smaller]], share, np.ones(2, bool)) == 1
    return Choice(alpha, len(blocks) - 1 - passed, unresolved=better and not sure[smaller])


def _grid(asked: SolveSettings, train: Moments, blocks: Sequence[Block | None]) -> list[SolveSettings]:
    """Return settings from the simplest on: of the last block first, and of the largest penalty."""
    size = float(np.trace(train.G)) - float(train.s @ train.s) / float(train.n) * asked.fit_intercept
    alphas = _PENALTIES * max(size, 1e-300)
    return [replace(asked, alpha=float(alpha), block=block) for block in reversed(blocks) for alpha in alphas]


def first_as_good(errors: Array, weights: Array, usable: Array) -> int:
    """Return the first usable candidate that the folds do not tell from the best of them.

    That is one whose mean error exceeds the least by no more than the standard error of this difference over the folds
    (errors of a fold differ less between candidates than between folds), or than half a percent of it.

    Parameters
    ----------
    errors : (g, k) mean errors on each fold
    weights : (g,) of the folds
    usable : (k,) bool
    """
    means = np.where(usable, weights @ errors / weights.sum(), np.inf)
    more = errors - errors[:, [int(np.argmin(means))]]
    mean = weights @ more / weights.sum()
    deviation = np.sqrt(weights @ (more - mean) ** 2 / weights.sum() / max(len(errors) - 1, 1))
    return int(np.argmax(usable & (mean <= np.maximum(deviation, _SAME * means.min()))))
