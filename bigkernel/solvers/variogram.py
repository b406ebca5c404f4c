"""The variogram of a field from its values at places, by restricted likelihood (Patterson & Thompson 1971).

Neighbourhoods of places share the correlation ρ and the ratio of nugget and partial sill; each has a mean and a sill of
its own, so that the variance of the field may change from place to place.
Shapes: n places, d coordinates, c targets, k places of a neighbourhood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy.optimize import minimize
from scipy.spatial import cKDTree

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels.functions import Matern

SMOOTHNESS = (0.5, 1.5, 2.5)
_COUNT, _SIZE = 20, 160  # neighbourhoods, and places of each
_REACH = 6  # half of the places are the nearest, the others are drawn from so many times as many
_LEAST, _MOST = 1e-6, 1e2  # ratios of nugget and partial sill
_LAGS = 20
_ROTATED = 3  # most coordinates whose anisotropy has directions of its own


@dataclass(frozen=True, eq=False)
class Variogram:
    """γ(h) = nugget + (sill − nugget)(1 − ρ(‖hA‖)) of places that are h (d,) apart, ρ of Matérn's class.

    Parameters
    ----------
    nu : 0.5, 1.5 or 2.5
        Smoothness ν; 0.5 is the exponential variogram.
    inverse_ranges : (d, d)
        A, symmetric: its eigenvectors are the axes of the anisotropy, its eigenvalues 1 over the ranges.
    ratio : float
        Nugget over partial sill, which is sill − nugget.
    trend : "constant" or "linear"
        Mean of each neighbourhood.
    sill : (c,)
        In squared units of the targets, with the nugget.
    lags, semivariances : (b,) and (b, c)
        The empirical variogram by ‖hA‖, half the mean square difference of pairs of a lag.
    """

    nu: float
    inverse_ranges: Array
    ratio: float
    trend: str
    sill: Array
    lags: Array
    semivariances: Array

    @property
    def nugget(self) -> Array:
        """The nugget (c,), in squared units of the targets."""
        return self.sill * self.ratio / (1 + self.ratio)

    @property
    def ranges(self) -> Array:
        """Ranges along the axes of the anisotropy (d,), the largest first, in units of the coordinates."""
        return np.asarray(1 / np.linalg.eigvalsh(self.inverse_ranges))

    @property
    def axes(self) -> Array:
        """Unit vectors (d, d) of the axes of the anisotropy, in rows."""
        return np.asarray(np.linalg.eigh(self.inverse_ranges)[1].T)

    def __call__(self, lags: Array) -> Array:
        """Compute γ (b, c) at lags ‖hA‖ (b,) above 0."""
        rho = Matern(1.0, nu=self.nu).with_slope(np.square(lags))[0]
        return np.asarray(self.nugget + (self.sill - self.nugget) * (1 - rho)[:, None])


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Places around the first one, with their targets."""

    X: Array  # (k, d)
    Y: Array  # (k, c)

    def squares(self, A: Array) -> Array:
        """Compute ‖(x − x')A‖² of all pairs, (k, k)."""
        U = (self.X - self.X.mean(axis=0)) @ A
        norms = np.einsum("kd,kd->k", U, U)
        return np.asarray(np.maximum(norms[:, None] + norms - 2 * U @ U.T, 0))

    def trend(self, trend: str) -> Array:
        """Return the columns of the trend, (k, 1) or (k, 1 + d)."""
        ones = np.ones((len(self.X), 1))
        centred = self.X - self.X.mean(axis=0)
        return np.hstack([ones, centred / (np.abs(centred).max() or 1)]) if trend == "linear" else ones


def neighbourhoods(X: Array, Y: Array, rng: np.random.RandomState) -> list[Neighbourhood]:
    """Return neighbourhoods of random places among X (n, d) with targets Y (n, c)."""
    tree, size = cKDTree(X), min(_SIZE, len(X))
    found = []
    for centre in rng.choice(len(X), min(_COUNT, len(X)), replace=False):
        near = tree.query(X[centre], min(len(X), _REACH * size))[1]
        far = rng.choice(near[size // 2 :], size - size // 2, replace=False)
        taken = np.concatenate([near[: size // 2], far])
        varied = np.ptp(Y[taken], axis=0).min() > 0 and np.ptp(X[taken], axis=0).max() > 0
        found += [Neighbourhood(X[taken], Y[taken])] if varied else []
    return found


def choose_variogram(
    places: Sequence[Neighbourhood], nu: float | None, trend: str | None, *, anisotropic: bool
) -> Variogram:
    """Fit variograms to neighbourhoods; without `nu` or `trend` take those that suit the neighbourhoods better."""
    spread = float(np.median([np.std(one.X, axis=0).max() for one in places]))
    d = places[0].X.shape[1]
    width = 1 if not anisotropic else d * (d + 1) // 2 if d <= _ROTATED else d
    start, found = np.append(np.zeros(width), np.log(0.05)), []
    bounds = [(-6.0, 6.0)] * width + [(np.log(_LEAST), np.log(_MOST))]
    for smoothness in SMOOTHNESS if nu is None else (nu,):
        arguments = places, smoothness, trend or "constant", spread
        result = minimize(_loss, start, arguments, "L-BFGS-B", True, bounds=bounds, options={"maxiter": 40})
        start = result.x
        covariance = _Covariance(smoothness, _matrix(start[:-1], d) / spread, float(np.exp(start[-1])))
        found.append((float(result.fun), smoothness, covariance))
    # the most likely one, unless another predicts better where rows are held out, by a standard error
    candidates = [
        (covariance, one)
        for one in (("constant", "linear") if trend is None else (trend,))
        for *_, covariance in sorted(found)
    ]
    errors = np.array([[_held_out_error(place, *one) for place in places] for one in candidates])
    best = 0
    for other in range(1, len(candidates)):
        gain = errors[best] - errors[other]
        if gain.mean() > gain.std() / np.sqrt(len(gain)):
            best = other
    covariance, trend = candidates[best]
    sill = (1 + covariance.ratio) * np.mean([_residuals(one, covariance, trend).sill for one in places], axis=0)
    return Variogram(covariance.nu, covariance.A, covariance.ratio, trend, sill, *_empirical(places, covariance.A))


@dataclass(frozen=True, eq=False)
class _Covariance:
    """V = ρ + ratio·I, with ρ a function of ‖(x − x')A‖."""

    nu: float
    A: Array
    ratio: float

    def correlation(self, squares: Array) -> tuple[Array, Array]:
        """Return ρ, and its derivative by squared distances."""
        return Matern(1.0, nu=self.nu).with_slope(squares)


def _symmetric(entries: Array, d: int) -> Array:
    """Return the symmetric matrix (d, d) of these entries: one for all of its diagonal, d, or d(d + 1)/2."""
    if len(entries) <= d:
        return np.diag(np.broadcast_to(entries, d))
    upper = np.zeros((d, d))
    upper[np.triu_indices(d)] = entries
    return np.asarray(upper + np.triu(upper, 1).T)


def _matrix(entries: Array, d: int) -> Array:
    """Return the symmetric positive matrix whose logarithm has these entries."""
    values, vectors = np.linalg.eigh(_symmetric(entries, d))
    return np.asarray((vectors * np.exp(values)) @ vectors.T)


@dataclass(frozen=True, eq=False)
class _Residuals:
    """The residuals of generalised least squares of a neighbourhood, V = ρ + ratio·I."""

    V_inverse: Array  # (k, k)
    V_inverse_F: Array  # (k, p)
    of_trend: Array  # (FᵀV⁻¹F)⁻¹ (p, p)
    weighted: Array  # V⁻¹(y − Fβ) (k, c)
    sill: Array  # partial sill (c,)
    free: int  # degrees of freedom
    logarithms: float  # log|V| + log|FᵀV⁻¹F|


def _residuals(place: Neighbourhood, covariance: _Covariance, trend: str) -> _Residuals:
    V = covariance.correlation(place.squares(covariance.A))[0]
    V[np.diag_indices(len(V))] = 1 + covariance.ratio
    L = linalg.cholesky(V, lower=True, check_finite=False)
    inverse = linalg.cho_solve((L, True), np.eye(len(V)), check_finite=False)
    F = place.trend(trend)
    VF, Vy = inverse @ F, inverse @ place.Y
    # columns of the trend that do not vary, or depend on others, have no coefficient
    values, vectors = np.linalg.eigh(F.T @ VF)
    kept = values > 1e-12 * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    of_trend = (vectors / values) @ vectors.T
    weighted = Vy - VF @ (of_trend @ (F.T @ Vy))
    free = max(len(V) - len(values), 1)
    sill = np.maximum(np.einsum("kc,kc->c", place.Y, weighted) / free, 1e-300)
    logarithms = 2 * float(np.log(np.diag(L)).sum()) + float(np.log(values).sum())
    return _Residuals(inverse, VF, of_trend, weighted, sill, free, logarithms)


def _loss(
    parameters: Array, places: Sequence[Neighbourhood], nu: float, trend: str, spread: float
) -> tuple[float, Array]:
    """Return −2 log of the restricted likelihood a place, but for a constant, with the best sills, and its gradient.

    A place, since the first step of a descent is as long as the gradient: it would end where nothing is correlated.
    """
    d, ratio = places[0].X.shape[1], float(np.exp(parameters[-1]))
    values, vectors = np.linalg.eigh(_symmetric(parameters[:-1], d))
    covariance = _Covariance(nu, (vectors * np.exp(values)) @ vectors.T / spread, ratio)
    loss, of_metric, of_ratio = 0.0, np.zeros((d, d)), 0.0
    for place in places:
        found = _residuals(place, covariance, trend)
        c = len(found.sill)
        loss += c * found.logarithms + found.free * float(np.log(found.sill).sum())
        # dV = W: c·(V⁻¹ − V⁻¹F(FᵀV⁻¹F)⁻¹FᵀV⁻¹) − Σ V⁻¹e eᵀV⁻¹ / sill
        W = c * (found.V_inverse - found.V_inverse_F @ found.of_trend @ found.V_inverse_F.T)
        W -= (found.weighted / found.sill) @ found.weighted.T
        of_ratio += float(np.trace(W))
        # d‖(x − x')A‖² = (x − x')ᵀ dM (x − x') with M = A²
        S = W * covariance.correlation(place.squares(covariance.A))[1]
        X = place.X - place.X.mean(axis=0)
        of_metric += 2 * (X.T @ (S.sum(axis=1)[:, None] * X) - X.T @ S @ X)
    # the derivative of M = exp(2L) / spread² by L, in the eigenvectors of L
    gaps, doubled = 2 * (values[:, None] - values), np.exp(2 * values)
    near = np.abs(gaps) < 1e-9
    quotients = np.where(near, doubled[:, None], (doubled[:, None] - doubled) / np.where(near, 1, gaps))
    gradient = 2 * vectors @ (vectors.T @ of_metric @ vectors * quotients) @ vectors.T / spread**2
    count = len(parameters) - 1
    if count > d:
        entries = (gradient * (2 - np.eye(d)))[np.triu_indices(d)]
    else:
        entries = np.diag(gradient) if count == d else np.array([np.trace(gradient)])
    size = sum(len(place.X) for place in places)
    return loss / size, np.append(entries, ratio * of_ratio) / size


def _held_out_error(place: Neighbourhood, covariance: _Covariance, trend: str) -> float:
    """Return the mean squared error at the half nearest to the centre, predicted by the rest, over the variance."""
    held, kept = np.split(np.arange(len(place.X)), [len(place.X) // 2])
    F, rho = place.trend(trend), covariance.correlation(place.squares(covariance.A))[0]
    V = rho[np.ix_(kept, kept)] + covariance.ratio * np.eye(len(kept))
    VF, Vy = np.split(linalg.solve(V, np.hstack([F[kept], place.Y[kept]]), assume_a="pos"), [F.shape[1]], axis=1)
    beta = np.linalg.lstsq(F[kept].T @ VF, F[kept].T @ Vy)[0]
    values = F[held] @ beta + rho[np.ix_(held, kept)] @ (Vy - VF @ beta)
    return float(np.mean(np.square(values - place.Y[held]) / np.var(place.Y, axis=0)))


def _empirical(places: Sequence[Neighbourhood], A: Array) -> tuple[Array, Array]:
    """Return lags (b,) and half the mean square differences of targets (b, c) of pairs of neighbourhoods."""
    pairs = np.triu_indices(min(len(one.X) for one in places), 1)
    h = np.concatenate([np.sqrt(one.squares(A)[pairs]) for one in places])
    halves = np.concatenate([np.square(one.Y[pairs[0]] - one.Y[pairs[1]]) / 2 for one in places])
    borders = np.linspace(0, np.quantile(h, 0.9), _LAGS + 1)
    group = np.searchsorted(borders, h, side="left") - 1
    here = [np.flatnonzero(group == b) for b in range(_LAGS)]
    some = [one for one in here if len(one)]
    if not some:
        raise DataError("variogram: expected places apart from each other, found equal ones")
    return np.array([h[one].mean() for one in some]), np.array([halves[one].mean(axis=0) for one in some])
