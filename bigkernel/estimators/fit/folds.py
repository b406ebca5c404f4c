"""Sums of labelled rows by fold, and what is chosen by them: the penalty of `alpha="cv"`.

The sweep of a fit keeps the moments of five folds apart (`statistics.held_out`), that of a search those of its folds.
The moments of all rows less a fold are the sums of a fit without it (`hold_out`), which no landmark among its rows may
join: coefficients there would be nearly undetermined. A search chooses for each fold on the others: by fits without two
folds, each of which tests them for the choice without the other one (`choose_in_search`).
Where moments of five folds would not fit a worker, one fold is held out.

Shapes: m landmarks, c targets, g folds, k penalties. Tests: estimators/test_alpha_cv.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from bigkernel.arrays import Array
from bigkernel.config import settings
from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.estimators.fit.precision import of_columns, rounding_estimate
from bigkernel.estimators.fit.state import ExactProblem, FoldSums, Problem
from bigkernel.estimators.inputs.checks import PER_TARGET
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.solvers.penalty_grid import Block, Coordinates, SolveSettings, squared_errors, total_spread
from bigkernel.solvers.ridge import Penalties, RoundingEstimate, rounding_of_rotation
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds
from bigkernel.statistics.moments import PROBED, SUMS, Moments, MomentStatistic, without
from bigkernel.streaming.folds import NOT_USED
from bigkernel.streaming.plan import Accumulator

P = TypeVar("P", bound=Problem)
_PAIR_BYTES = 2**32  # of the sums without two folds that are solved in parallel
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
    tested = count if count == FOLDS else 1  # all five, or the first of two
    return replace(problem, statistics=join_folds(total, first), folds=FoldSums(sums, tested, landmarks, joins))


def held_out(problem: P) -> Iterator[tuple[P, P, Array | None]]:
    """Yield for each fold what `hold_out` returns: one at a time, of m×m sums each."""
    assert problem.folds is not None
    for fold in range(problem.folds.count):
        rest, (alone,), kept = hold_out(problem, fold)
        yield rest, alone, kept


def landmarks_without(landmarks: Array, *held: int) -> Array:
    """Return which landmarks are not among the rows of some folds, by the fold of the row of each: (m,) bool."""
    return ~np.isin(landmarks, (*held, NOT_USED))


def hold_out(problem: P, *held: int) -> tuple[P, list[P], Array | None]:
    """Return the problem without some folds, those of each fold alone, and the landmarks of all; None: every one."""
    folds = problem.folds
    assert folds is not None
    others = without(folds.sums, *held)
    rest = dict(problem.statistics)
    for name, values in others.items():
        rest[name] = np.concatenate([rest[name][:-1], values])
        # held-out rows stay as unlabelled ones, where they join those
        for fold in held if folds.joins and name in ("rows", "n", "G", "s") else ():
            rest[name][0] += folds.sums[name][fold]
    alone = [{name: sums[fold : fold + 1] for name, sums in folds.sums.items()} for fold in held]
    problems = [replace(problem, statistics=sums) for sums in (rest, *alone)]
    kept = None
    if folds.landmarks is not None:
        # coefficients at landmarks among held-out rows would be nearly undetermined by the other rows
        kept = np.flatnonzero(landmarks_without(folds.landmarks, *held))
        kept = kept if len(kept) else np.arange(len(folds.landmarks))  # of one or two landmarks all may be held out
        problems = [of_columns(one, kept, probed=True) for one in problems]
    return problems[0], problems[1:], kept


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
    """Moments of the rows without some folds, and of each of these alone, in coordinates of the rows without them."""

    coordinates: Coordinates
    train: Moments
    tests: list[Moments]
    estimate: RoundingEstimate | None = None  # of the training moments

    def judge(self, grid: Sequence[SolveSettings], inputs: Inputs) -> list[Judged | None]:
        """Fit all candidates without the folds, and test them on each; None where there is nothing to do so."""
        train, by_target = self.train, grid[0].by_target
        if not train.n > 0:
            return [None] * len(self.tests)
        # each target counts by its own variance, or square if it is constant, and classes by their frequency
        spread = total_spread(train)
        spread = np.maximum(np.where(spread > 0, spread, train.q) / train.n, 1e-300)
        unit = spread if inputs.classes is None else np.ones_like(spread)
        sizes = spread / unit if by_target else (spread / unit).sum(keepdims=True)
        errors, totals = [list[Array]() for _ in self.tests], list[float]()
        for fitted, intercepts, own in self.coordinates.fits(train, grid, self.estimate):
            totals += [0.0 if one is None else one.total for one in own]
            for of_test, test in zip(errors, self.tests, strict=True):
                squares = squared_errors(test, fitted, intercepts) / max(test.n, 1e-300) / unit
                of_test.append(squares if by_target else squares.sum(axis=1, keepdims=True))
        # by how much rounding may move the root of the error
        unsure = np.array(totals)[:, None] * np.sqrt(sizes)
        return [
            Judged(np.concatenate(of_test), float(test.n), unsure) if test.n > 0 else None
            for of_test, test in zip(errors, self.tests, strict=True)
        ]


class PartOf(Protocol):
    """What gives the part of a problem without some folds."""

    def __call__(self, *held: int) -> Part: ...


class Judged(NamedTuple):
    """Mean squared errors of candidates on a fold, its weight, and by how much rounding may move their roots."""

    errors: Array  # (k, c) by target, or (k, 1) of all together
    weight: float
    unsure: Array


class Choice(NamedTuple):
    """A penalty, the position of the block of coordinates it belongs to, and whether a smaller one was unresolved."""

    alpha: Penalties
    error: Array  # (1,), or (c,) by target: the mean over folds
    block: int
    unresolved: bool  # rounding hides how well it would predict


def choose_by_folds(method: RidgeInCoordinates, problem: Problem) -> Choice:
    """Choose the penalty of a method from the sums of folds; see `choose`."""
    asked, part_of = method.solve_settings(), _parts_of(method, problem)
    assert problem.folds is not None
    return choose((part_of(fold) for fold in range(problem.folds.count)), asked, problem.inputs)


def choose_in_search(
    method: RidgeInCoordinates, problem: Problem, pool: ThreadPoolExecutor, whitening: Whitening | None = None
) -> list[Choice]:
    """Choose the penalty of a method without each of the folds that a search tests, by the errors on the others.

    A fit without two folds tests both, each for the choice without the other one. `whitening`: of all columns.
    """
    asked, part_of, folds = method.solve_settings(), _parts_of(method, problem, whitening), problem.folds
    assert folds is not None
    pairs = list(combinations(range(folds.count), 2))
    # one grid for all of them
    first = part_of(*pairs[0])
    grid = _grid(asked, first.train, first.coordinates.blocks)
    beside = max(1, _PAIR_BYTES // (64 * problem.basis.width**2))  # sums of three groups, twice, and coordinates
    judged = [first.judge(grid, problem.inputs)]
    for start in range(1, len(pairs), beside):
        some = pairs[start : start + beside]
        judged += pool.map(lambda pair: part_of(*pair).judge(grid, problem.inputs), some)
    choices = []
    for fold in range(folds.count):
        others = [on[pair[0] == fold] for pair, on in zip(pairs, judged, strict=True) if fold in pair]
        choices.append(_least(grid, others, first.coordinates.blocks))
    return choices


def _parts_of(method: RidgeInCoordinates, problem: Problem, known: Whitening | None = None) -> PartOf:
    """Return what gives the part without some folds."""
    asked, whole = method.solve_settings(), problem
    if not asked.fit_intercept:
        whole = problem.of_targets()
    shared: tuple[Whitening, Coordinates] | None = None

    def part(*held: int) -> Part:
        nonlocal shared
        rest, alone, kept = hold_out(whole, *held)
        # without the landmarks of a fold the core is another one, with a whitening of its own
        if kept is not None or shared is None:
            given = known if kept is None else None
            whitening = given or rest.basis.whitening(solves=method.whitens)
            coordinates = method.coordinates(rest, asked.n_components or 0, whitening)
            shared = (whitening, coordinates) if kept is None else None
        else:
            whitening, coordinates = shared
        # labelled rows are the last group of either
        train = Moments.of(rest.statistics, -1, shift=rest.centre)
        reduced = coordinates.reduce(train)
        tests = [coordinates.reduce(Moments.of(one.statistics, 0, shift=one.centre)) for one in alone]
        estimate = rounding_estimate(rest, whitening) if method.has_formula else None
        if estimate is not None:
            estimate = estimate.with_solve(rounding_of_rotation(train, reduced, whitening), train.rows)
        return Part(coordinates, reduced, tests, estimate)

    return part


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
                yield Part(to, train, [test])

    return choose(parts(), asked, problem.inputs)


def choose(parts: Iterable[Part], asked: SolveSettings, inputs: Inputs) -> Choice:
    """Choose the penalty, and the block of coordinates, by the squared errors of held-out folds (`first_as_good`)."""
    grid, judged = list[SolveSettings](), list[Judged | None]()
    blocks: tuple[Block, ...] = ()
    for part in parts:
        # all candidates are fitted without the fold, and tested on it
        if part.train.n > 0:
            blocks = part.coordinates.blocks
            grid = grid or _grid(asked, part.train, blocks)
            judged += part.judge(grid, inputs)
    return _least(grid, judged, blocks)


def _least(grid: list[SolveSettings], judged: Sequence[Judged | None], blocks: Sequence[Block]) -> Choice:
    """Return the candidate of a grid, or one for each target, that is the simplest as good as the best of them.

    Candidates that rounding may change by more than their error are left out.
    """
    told = [one for one in judged if one is not None]
    if not told:
        raise DataError("alpha='cv': expected labelled rows in two folds at least, found one; pass a number")
    errors, share = np.stack([one.errors for one in told]), np.array([one.weight for one in told])
    # only candidates that rounding leaves clear may be chosen, the simplest if there is none
    sure = (np.stack([one.unsure for one in told]) <= np.sqrt(errors)).all(axis=0)
    sure[0] |= ~sure.any(axis=0)
    chosen = first_as_good(errors, share, sure)
    alphas, passed = np.array([one.alpha for one in grid])[chosen], chosen // len(_PENALTIES)
    # whether the next smaller penalty would be better, could rounding resolve it
    smaller = np.minimum(chosen + 1, (passed + 1) * len(_PENALTIES) - 1)
    pairs = np.take_along_axis(errors, np.stack([chosen, smaller])[None], axis=1)
    better = first_as_good(pairs, share, np.ones(pairs.shape[1:], bool)) == 1
    unresolved = bool((better & ~np.take_along_axis(sure, smaller[None], axis=0)[0]).any())
    alpha, error = alphas if grid[0].by_target else float(alphas[0]), share @ pairs[:, 0] / share.sum()
    return Choice(alpha, error, max(len(blocks), 1) - 1 - int(passed[0]), unresolved)


def _grid(asked: SolveSettings, train: Moments, blocks: Sequence[Block]) -> list[SolveSettings]:
    """Return settings from the simplest on: of the last block first, and of the largest penalty."""
    size = float(np.trace(train.G)) - float(train.s @ train.s) / float(train.n) * asked.fit_intercept
    alphas = _PENALTIES * max(size, 1e-300)
    own = replace(asked, by_target=asked.alpha == PER_TARGET)
    return [replace(own, alpha=float(alpha), block=block) for block in reversed(blocks or (None,)) for alpha in alphas]


def first_as_good(errors: Array, weights: Array, usable: Array) -> Array:
    """Return the first usable candidate of each target, (t,), that the folds do not tell from the best of them.

    That is one whose mean error exceeds the least by no more than the standard error of this difference over the folds
    (errors of a fold differ less between candidates than between folds), or than half a percent of it.

    Parameters
    ----------
    errors : (g, k, t) mean errors on each fold
    weights : (g,) of the folds
    usable : (k, t) bool
    """
    share = weights / weights.sum()
    means = np.where(usable, np.tensordot(share, errors, 1), np.inf)
    more = errors - np.take_along_axis(errors, means.argmin(axis=0)[None, None], axis=1)
    mean = np.tensordot(share, more, 1)
    deviation = np.sqrt(np.tensordot(share, (more - mean) ** 2, 1) / max(len(errors) - 1, 1))
    return np.asarray(np.argmax(usable & (mean <= np.maximum(deviation, _SAME * means.min(axis=0))), axis=0))
