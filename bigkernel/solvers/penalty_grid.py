"""Every candidate of a grid from the fold-wise moments of one sweep: train on the total less a fold, test on the fold.

Moments are first taken to the coordinates in which a method is plain ridge (`Coordinates`): whitened ones for KRR, the
leading eigenfunctions for SSSL, the rows themselves for ridge regression. Moments add in any coordinates, so each
fold is rotated once, and candidates (s, α) cost an s×s solve. Shapes: p columns of the map, r coordinates, c targets,
k candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bigkernel.arrays import Array, Index
from bigkernel.errors import ConfigError
from bigkernel.solvers import gcv
from bigkernel.solvers.linear import linear_fit
from bigkernel.solvers.residuals import Errors, SolveDiagnostics
from bigkernel.solvers.ridge import SHARED, Penalties, RidgeSystem, RoundingEstimate, by_penalty
from bigkernel.solvers.whitening import Reduced, Whitening, centre, positive_part, reduced, top_eigen
from bigkernel.statistics.moments import SUMS, Moments

Fits = tuple[Array, Array, list[Errors | None]]  # weights (k, r, c), intercepts (k, c), and errors where they are known


@dataclass(frozen=True)
class Coordinates:
    """The ridge of a method is in φ' = Bᵀ(Tᵀφ), with a whitening T (p×r) and a basis B (r×s), or without either.

    A candidate may take the first s of them, where they are ranked. `origin` (p,): they are the rows themselves, and
    their moments are about this point.
    """

    whitening: Whitening | None = None
    basis: Array | None = None
    origin: Array | None = None

    @property
    def condition(self) -> float:
        """Of the whitening, where it is all there is."""
        return 1.0 if self.whitening is None or self.basis is not None else self.whitening.condition

    def reduce(self, moments: Moments) -> Moments:
        """The moments in these coordinates."""
        if self.whitening is not None:
            moments = reduced(moments, self.whitening)
        if self.basis is not None:
            B = self.basis
            G = B.T @ moments.G @ B
            moments = replace(moments, G=(G + G.T) / 2, C=B.T @ moments.C, s=B.T @ moments.s)
        return moments

    def expand(self, w: Array) -> Array:
        """Coefficients over the columns of the map, (p, c), of weights w (r, c)."""
        w = w if self.basis is None else self.basis @ w
        return w if self.whitening is None else self.whitening.expand(w)

    def intercepts(self, w: Array, b: Array) -> Array:
        """Intercepts over the columns of the map, (c,), of weights w (r, c) and intercepts b (c,) in these."""
        return b

    @property
    def hidden(self) -> bool:
        """True where rounding hides directions that float64 might show."""
        return False

    def fit(self, train: Moments, penalties: Sequence[Penalty], known: RoundingEstimate | None = None) -> Fits:
        """Every candidate on moments in these coordinates; see `candidates`."""
        if self.origin is None:
            return candidates(train, penalties, self.condition, known, shared=len(penalties) >= SHARED)
        fits, errors = [], []
        for penalty in penalties:
            flag, noted = penalty.fit_intercept, SolveDiagnostics()
            fits.append(linear_fit(train, self.origin, penalty.alpha, fit_intercept=flag, diagnostics=noted))
            errors.append(noted.errors)
        return np.stack([w for w, *_ in fits]), np.stack([b for _, b, *_ in fits]), errors


def sssl_coordinates(everything: Moments, core: Array, whitening: Whitening | None, n_components: int) -> Coordinates:
    """Leading eigenfunctions, of all rows where there is a whitening, else of the core's landmarks."""
    if whitening is None:
        _, V = positive_part(*top_eigen(core, n_components))
        return Coordinates(Whitening(len(core), len(core)), V)
    values, W = positive_part(*top_eigen(reduced(everything, whitening).G, n_components))
    return Coordinates(whitening, W * np.sqrt(values))


@dataclass(frozen=True)
class Penalty:
    """In what candidates that share all moments differ."""

    alpha: Penalties | str  # "gcv" chooses one
    fit_intercept: bool = False
    n_components: int | None = None  # s; None: all
    weighting: str = ""  # how classes are weighed, in which they may not differ
    by_direction: bool = False  # directions have penalties of their own beside α, so that there is no GCV


def resolve_penalties(train: Moments, penalties: Sequence[Penalty]) -> list[Penalty]:
    """The same with a number, or one for each target, in the place of "gcv", on moments in their coordinates."""
    return [replace(p, alpha=_spectral(train, p).best()) if isinstance(p.alpha, str) else p for p in penalties]


def _spectral(train: Moments, penalty: Penalty) -> gcv.Spectral:
    small = _leading(centre(train, fit_intercept=penalty.fit_intercept), penalty.n_components)
    return gcv.of_system(RidgeSystem(small, float(train.rows)), fit_intercept=penalty.fit_intercept)


def _leading(small: Reduced, count: int | None) -> Reduced:
    """Of the first coordinates, as many as there are or `count`."""
    s = len(small.G) if count is None else min(len(small.G), count)
    return replace(small, G=small.G[:s, :s], C=small.C[:s])


def candidates(
    train: Moments,
    penalties: Sequence[Penalty],
    condition: float = 1.0,
    known: RoundingEstimate | None = None,
    *,
    shared: bool = False,
) -> Fits:
    """Weights (k, r, c) and intercepts (k, c) of every candidate on moments in their coordinates; see `solvers.ridge`.

    And, where something is known of the errors behind the moments, those of their predictions. The bits of a candidate
    depend on `shared` (see `RidgeSystem`), and not on its neighbours.
    """
    if len({penalty.weighting for penalty in penalties}) > 1:
        raise ConfigError(
            "class_weight: expected the same weights in all candidates of a search; run one search for each"
        )
    r, c = train.C.shape
    weights, intercepts = np.zeros((len(penalties), r, c)), np.zeros((len(penalties), c))
    errors: list[Errors | None] = [None] * len(penalties)
    systems: dict[tuple[bool, int], RidgeSystem] = {}
    centred = {flag: centre(train, fit_intercept=flag) for flag in {p.fit_intercept for p in penalties}}
    for place, penalty in enumerate(penalties):
        moments = centred[penalty.fit_intercept]
        part = _leading(moments, penalty.n_components)
        s = len(part.G)
        if (key := (penalty.fit_intercept, s)) not in systems:
            systems[key] = RidgeSystem(part, float(train.rows), condition, known, shared=shared)
        system, alpha, noted = systems[key], penalty.alpha, SolveDiagnostics()
        if isinstance(alpha, str):
            alpha = gcv.of_system(system, fit_intercept=penalty.fit_intercept).best()
        (w,) = by_penalty(alpha, c, noted, partial(_solve, system))
        weights[place, :s], errors[place] = w, noted.errors
        intercepts[place] = moments.target_mean - moments.mean[:s] @ w
    return weights, intercepts, errors


def _solve(system: RidgeSystem, alpha: float, columns: Index, noted: SolveDiagnostics) -> tuple[Array]:
    solution = system.solve(alpha, columns)
    noted.errors = system.error(solution)
    return (solution.w,)


def gcv_scores(train: Moments, penalties: Sequence[Penalty]) -> list[float]:
    """GCV of every candidate on moments in their coordinates, a mean over the targets."""
    spectra: dict[tuple[bool, int | None], gcv.Spectral] = {}
    scores = []
    for penalty in penalties:
        key = (penalty.fit_intercept, penalty.n_components)
        spectra[key] = spectra.get(key) or _spectral(train, penalty)
        alpha = spectra[key].best() if isinstance(penalty.alpha, str) else penalty.alpha
        if np.ndim(alpha):
            raise ConfigError("scoring: neg_gcv needs one penalty for all targets; use another score")
        scores.append(spectra[key].gcv(float(alpha)) / train.C.shape[1])
    return scores


def squared_errors(tested: Moments, weights: Array, intercepts: Array) -> Array:
    """Σ w (y − f)² of the tested rows, (k, c), from their moments in the candidates' coordinates."""
    k, r, c = weights.shape
    flat = weights.transpose(1, 0, 2).reshape(r, k * c)
    products = (tested.G @ flat).reshape(r, k, c).transpose(1, 0, 2)
    # q − 2⟨w,C⟩ + ⟨w,Gw⟩ + nb² − 2bt + 2b⟨s,w⟩
    error = tested.q - 2 * (weights * tested.C).sum(axis=1) + (weights * products).sum(axis=1)
    error += intercepts * (tested.n * intercepts - 2 * tested.t + 2 * np.einsum("r,krc->kc", tested.s, weights))
    return np.asarray(np.maximum(error, 0))


def total_spread(tested: Moments) -> Array:
    """Σ w (y − mean)² of the tested rows, (c,): what R² divides by; 0 where it is rounding."""
    spread: Array = tested.q - tested.t**2 / max(float(tested.n), 1e-300)
    return np.where(spread <= 1e-12 * tested.q, 0, spread)


def summed(parts: Sequence[Moments]) -> Moments:
    """The moments of several groups together, all about the same point."""
    return Moments(**{name: sum(getattr(part, name) for part in parts) for name in SUMS}, shift=parts[0].shift)
