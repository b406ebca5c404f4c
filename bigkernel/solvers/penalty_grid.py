"""Solve every candidate of a grid from the moments of one sweep: train on the total less a fold, test on the fold.

Moments are first transformed to coordinates in which a method is plain ridge (`Coordinates`): whitened ones for KRR,
the leading eigenfunctions for SSSL, the rows themselves for ridge regression. Moments add in any coordinates, so each
fold is rotated once, and a candidate (s, α) costs one s×s solve. Only moments are read, no rows.

Shapes: p columns of the map, r coordinates, c targets, k candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from bigkernel.arrays import Array, Index
from bigkernel.errors import ConfigError
from bigkernel.solvers import gcv
from bigkernel.solvers.linear import linear_fit
from bigkernel.solvers.residuals import Errors, SolveDiagnostics
from bigkernel.solvers.ridge import SHARED, Penalties, RidgeSystem, RoundingEstimate, by_penalty
from bigkernel.solvers.whitening import Reduced, Whitening, centre, reduce_moments
from bigkernel.statistics.moments import SUMS, Moments

# weights (k, r, c), intercepts (k, c), and errors where they can be estimated
Fits = tuple[Array, Array, list[Errors | None]]
Fit = tuple[Array, Array, Errors | None]  # the same of one candidate, (r, c) and (c,)
Block = tuple[int, int]  # first coordinate, and the one after the last
_NUMBERS = 2**22  # of weights of candidates at a time
_NEAR = 1.2  # a block is chosen whose GCV is at most so many times the least


@dataclass(frozen=True)
class Coordinates:
    """Coordinates φ' = Bᵀ(Tᵀφ) in which a method is ridge, of a whitening T (p×r) and a basis B (r×s), both optional.

    Where they are ranked, a candidate may use the first s alone. `blocks` are ranges of them of which GCV chooses one;
    the last is preferred. With `origin` (p,) they are the rows themselves, whose moments are about this point.
    """

    whitening: Whitening | None = None
    basis: Array | None = None
    origin: Array | None = None
    scale: Array | None = None  # (p,) by which columns of rows are multiplied
    blocks: tuple[Block, ...] = ()

    @property
    def condition(self) -> float:
        """Condition of the whitening; 1 with a basis."""
        return 1.0 if self.whitening is None or self.basis is not None else self.whitening.condition

    def reduce(self, moments: Moments) -> Moments:
        """Transform moments to these coordinates."""
        if (D := self.scale) is not None:
            return replace(moments, G=D[:, None] * moments.G * D, C=D[:, None] * moments.C, s=D * moments.s)
        if self.whitening is not None:
            moments = reduce_moments(moments, self.whitening)
        if self.basis is not None:
            B = self.basis
            G = B.T @ moments.G @ B
            moments = replace(moments, G=(G + G.T) / 2, C=B.T @ moments.C, s=B.T @ moments.s)
        return moments

    def select(self, block: Block) -> Coordinates:
        """Return the coordinates of one block of a basis."""
        assert self.basis is not None
        return Coordinates(self.whitening, self.basis[:, slice(*block)])

    def expand(self, w: Array) -> Array:
        """Return the coefficients over the columns of the map, (p, c), of weights w (r, c)."""
        if self.scale is not None:
            return np.asarray(self.scale[:, None] * w)
        w = w if self.basis is None else self.basis @ w
        return w if self.whitening is None else self.whitening.expand(w)

    def intercepts(self, w: Array, b: Array) -> Array:
        """Return the intercepts over the columns of the map, (c,), of weights w (r, c) and intercepts b (c,)."""
        return b

    @property
    def unresolved(self) -> bool:
        """Whether rounding leaves directions unresolved that float64 might resolve."""
        return False

    def fits(self, train: Moments, grid: Sequence[SolveSettings], estimate: RoundingEstimate | None) -> Iterator[Fits]:
        """Solve for every candidate from moments in these coordinates, and yield some of them at a time."""
        each = self.each(train, grid, estimate)
        while some := [*islice(each, max(1, _NUMBERS // max(train.C.size, 1)))]:
            weights, intercepts, errors = zip(*some, strict=True)
            yield np.stack(weights), np.stack(intercepts), list(errors)

    def each(self, train: Moments, grid: Sequence[SolveSettings], estimate: RoundingEstimate | None) -> Iterator[Fit]:
        """Solve for every candidate, one by one."""
        if self.origin is None:
            yield from candidates(train, grid, self.condition, estimate, shared=len(grid) >= SHARED)
            return
        for settings in grid:
            flag, noted = settings.fit_intercept, SolveDiagnostics()
            w, b, *_ = linear_fit(train, self.origin, settings.alpha, fit_intercept=flag, diagnostics=noted)
            yield w, b, noted.errors


@dataclass(frozen=True)
class SolveSettings:
    """What may differ between candidates that share all moments."""

    alpha: Penalties | str  # "gcv" chooses one
    fit_intercept: bool = False
    n_components: int | None = None  # s; None: all
    block: Block | None = None  # of the coordinates; None: all
    weighting: str = ""  # of classes; all candidates must agree
    by_direction: bool = False  # each direction has a penalty besides α, so that there is no GCV
    by_target: bool = False  # folds choose for each target by itself
    column_weights: tuple[float, ...] = ()  # of the columns of rows, see `LinearMethod`

    def columns(self, width: int) -> slice[int, int, None]:
        """Return the coordinates of a candidate, of `width`."""
        start, stop = self.block or (0, width)
        return slice(start, stop if self.n_components is None else min(stop, start + self.n_components))


_Spectra = dict[tuple[bool, int | None, Block | None], gcv.Spectral]  # by all settings but the penalty


def resolve_gcv(train: Moments, grid: Sequence[SolveSettings], blocks: Sequence[Block] = ()) -> list[SolveSettings]:
    """Replace "gcv" by the penalties that it chooses on moments in their coordinates, and choose among blocks.

    The last block is chosen whose GCV is near the least, because few rows hardly tell such blocks apart.
    """
    spectra: _Spectra = {}
    chosen = []
    for settings in grid:
        options = [replace(settings, block=block) for block in blocks] or [settings]
        options = [replace(p, alpha=_penalty(train, p, spectra)) for p in options]
        if blocks:
            scores = [_spectral(train, p, spectra).gcv(float(p.alpha)) for p in options]
            options = [p for p, score in zip(options, scores, strict=True) if not score > _NEAR * min(scores)]
        chosen.append(options[-1])
    return chosen


def _penalty(train: Moments, settings: SolveSettings, spectra: _Spectra) -> Penalties:
    return _spectral(train, settings, spectra).best() if isinstance(settings.alpha, str) else settings.alpha


def _spectral(train: Moments, settings: SolveSettings, spectra: _Spectra) -> gcv.Spectral:
    """Return the spectral form of a candidate, from `spectra` where another one has computed it."""
    key = settings.fit_intercept, settings.n_components, settings.block
    if key not in spectra:
        small = _select(centre(train, fit_intercept=settings.fit_intercept), settings)
        spectra[key] = gcv.of_system(RidgeSystem(small, float(train.rows)), fit_intercept=settings.fit_intercept)
    return spectra[key]


def _select(small: Reduced, settings: SolveSettings) -> Reduced:
    """Select the coordinates of a candidate."""
    columns = settings.columns(len(small.G))
    return replace(small, G=small.G[columns, columns], C=small.C[columns])


def candidates(
    train: Moments,
    grid: Sequence[SolveSettings],
    condition: float = 1.0,
    estimate: RoundingEstimate | None = None,
    *,
    shared: bool = False,
) -> Iterator[Fit]:
    """Solve for every candidate from moments in their coordinates, one by one.

    Errors of predictions are estimated where the errors of the moments are known. The bits of a candidate depend on
    `shared` (see `RidgeSystem`), not on the other candidates.
    """
    r, c = train.C.shape
    # candidates of the same columns and intercept share a system and its factors
    systems: dict[tuple[bool, int, int], RidgeSystem] = {}
    centred = {flag: centre(train, fit_intercept=flag) for flag in {p.fit_intercept for p in grid}}
    for settings in grid:
        moments = centred[settings.fit_intercept]
        columns, weights = settings.columns(r), np.zeros((r, c))
        if (key := (settings.fit_intercept, columns.start, columns.stop)) not in systems:
            systems[key] = RidgeSystem(
                _select(moments, settings), float(train.rows), condition, estimate, shared=shared
            )
        system, alpha, noted = systems[key], settings.alpha, SolveDiagnostics()
        if isinstance(alpha, str):
            alpha = gcv.of_system(system, fit_intercept=settings.fit_intercept).best()
        (w,) = by_penalty(alpha, c, noted, partial(_solve, system))
        weights[columns] = w
        yield weights, moments.target_mean - moments.mean[columns] @ w, noted.errors


def _solve(system: RidgeSystem, alpha: float, columns: Index, noted: SolveDiagnostics) -> tuple[Array]:
    solution = system.solve(alpha, columns)
    noted.errors = system.error(solution)
    return (solution.w,)


def gcv_scores(train: Moments, grid: Sequence[SolveSettings]) -> list[float]:
    """Compute the GCV of every candidate from moments in their coordinates, a mean over the targets."""
    spectra: _Spectra = {}
    scores = []
    for settings in grid:
        alpha = _penalty(train, settings, spectra)
        if np.ndim(alpha):
            raise ConfigError("scoring: neg_gcv needs one penalty for all targets; use another score")
        scores.append(_spectral(train, settings, spectra).gcv(float(alpha)) / train.C.shape[1])
    return scores


def squared_errors(tested: Moments, weights: Array, intercepts: Array) -> Array:
    """Compute Σ w (y − f)² of the test rows, (k, c), from their moments in the candidates' coordinates."""
    k, r, c = weights.shape
    flat = weights.transpose(1, 0, 2).reshape(r, k * c)
    products = (tested.G @ flat).reshape(r, k, c).transpose(1, 0, 2)
    # q − 2⟨w,C⟩ + ⟨w,Gw⟩ + nb² − 2bt + 2b⟨s,w⟩
    products *= weights
    error = tested.q - 2 * (weights * tested.C).sum(axis=1) + products.sum(axis=1)
    error += intercepts * (tested.n * intercepts - 2 * tested.t + 2 * np.einsum("r,krc->kc", tested.s, weights))
    return np.asarray(np.maximum(error, 0))


def total_spread(tested: Moments) -> Array:
    """Compute Σ w (y − mean)² of the test rows, (c,), the denominator of R²; 0 where it is below rounding."""
    spread: Array = tested.q - tested.t**2 / max(float(tested.n), 1e-300)
    return np.where(spread <= 1e-12 * tested.q, 0, spread)


def add_moments(groups: Sequence[Moments]) -> Moments:
    """Add up the moments of several groups, all about the same point."""
    return Moments(**{name: sum(getattr(group, name) for group in groups) for name in SUMS}, shift=groups[0].shift)
