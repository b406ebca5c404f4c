"""The variogram of a field from its values at places, by restricted likelihood (Patterson & Thompson 1971).

Neighbourhoods of places share the correlation ρ and the ratio of nugget and partial sill; each has a mean and a sill of
its own, so that the variance of the field may change from place to place.
Shapes: n places, d coordinates, c targets, k places of a neighbourhood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg
from scipy.optimize import minimize
from scipy.spatial import cKDTree

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels.algebra import Kernel, Scaled
from bigkernel.kernels.functions import Matern
from bigkernel.kernels.threads import one_thread

SMOOTHNESS = (0.5, 1.5, 2.5)
_COUNT, _SIZE = 20, 160  # neighbourhoods, and places of each
_REACH = 6  # half of the places are the nearest, the others are drawn from so many times as many
_LEAST, _MOST = 1e-6, 1e2  # ratios of nugget and partial sill
_LAGS = 20
_FAR, _REACHES, _SECOND = (0.01, 0.95), (1.5, 30.0), (0.3, np.log(4.0))  # of a second structure: bounds and start
_STEPS = 40  # of a descent
_ROTATED = 3  # most coordinates whose anisotropy has directions of its own


@dataclass(frozen=True)
class Correlation:
    """ρ = (1 − far)·M(r) + far·exp(−r/reach) of places r ranges apart: nested if far > 0.

    Parameters
    ----------
    nu : 0.5, 1.5 or 2.5
        Smoothness ν of M, which is of Matérn's class; 0.5 is exponential.
    far, reach : float
        Share of a second structure, and its range in units of the first one's.
    """

    nu: float
    far: float = 0.0
    reach: float = 1.0

    def kernel(self) -> Kernel:
        """Return ρ as a kernel of places in units of the range."""
        near = Matern(1.0, nu=self.nu)
        return Scaled(near, 1 - self.far) + Scaled(Matern(self.reach, nu=0.5), self.far) if self.far else near

    def with_slope(self, squares: Array) -> tuple[Array, Array, list[Array]]:
        """Return ρ at squared distances, its derivative by them, and if nested those by far and log reach."""
        rho, slope = Matern(1.0, nu=self.nu).with_slope(squares)
        if not self.far:
            return rho, slope, []
        far, fall = Matern(1.0, nu=0.5).with_slope(squares / self.reach**2)
        fall *= self.far / self.reach**2
        others = [far - rho, -2 * squares * fall]
        return (1 - self.far) * rho + self.far * far, (1 - self.far) * slope + fall, others


@dataclass(frozen=True, eq=False)
class Variogram:
    """γ(h) = nugget + (sill − nugget)(1 − ρ(‖hA‖)) of places that are h (d,) apart.

    Parameters
    ----------
    correlation : Correlation
        ρ.
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

    correlation: Correlation
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
        rho = self.correlation.with_slope(np.square(lags))[0]
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
    with one_thread():  # two threads of a product of 160 places wait for each other more than they compute
        return _choose(_Likelihood(places, trend or "constant", anisotropic), nu, trend)


def _choose(likelihood: _Likelihood, nu: float | None, trend: str | None) -> Variogram:
    # smoothness by smoothness; then the best one with a second structure, if that is clearly more likely for its two
    # parameters (Schwarz 1978)
    places, one, found = likelihood.places, likelihood.start(), []
    for smoothness in SMOOTHNESS if nu is None else (nu,):
        loss, one = likelihood.fit(smoothness, one)
        found.append((loss, smoothness, one))
    found.sort(key=lambda fit: fit[0])
    loss, smoothness, one = found[0]
    nested, two = likelihood.fit(smoothness, np.append(one, _SECOND))
    if likelihood.size * (loss - nested) > 2 * np.log(likelihood.size):
        found.insert(0, (nested, smoothness, two))
    # the most likely one, unless another predicts better where rows are held out, by a standard error
    candidates = [
        (covariance, one)
        for one in (("constant", "linear") if trend is None else (trend,))
        for covariance in [likelihood.covariance(*fit[1:]) for fit in found]
    ]
    errors = np.array([[_held_out_error(place, *one) for place in places] for one in candidates])
    best = 0
    for other in range(1, len(candidates)):
        gain = errors[best] - errors[other]
        if gain.mean() > gain.std() / np.sqrt(len(gain)):
            best = other
    covariance, trend = candidates[best]
    A, ratio = covariance.A, covariance.ratio
    sill = (1 + ratio) * np.mean([_residuals(one, covariance.rho(one), ratio, trend).sill for one in places], axis=0)
    return Variogram(covariance.correlation, A, ratio, trend, sill, *_empirical(places, A))


@dataclass(frozen=True, eq=False)
class _Covariance:
    """V = ρ + ratio·I, with ρ of ‖(x − x')A‖."""

    correlation: Correlation
    A: Array
    ratio: float

    def rho(self, place: Neighbourhood) -> Array:
        """Return ρ of all pairs (k, k)."""
        return self.correlation.with_slope(place.squares(self.A))[0]


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


def _residuals(place: Neighbourhood, rho: Array, ratio: float, trend: str) -> _Residuals:
    V = rho.copy()
    V[np.diag_indices(len(V))] = 1 + ratio
    L = linalg.cholesky(V, lower=True, check_finite=False, overwrite_a=True)
    triangle = np.tril(linalg.lapack.dpotri(L, lower=True)[0])
    inverse = triangle + np.tril(triangle, -1).T
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


@dataclass(frozen=True, eq=False)
class _Likelihood:
    """The restricted likelihood of neighbourhoods as a function of numbers.

    They are the entries of log A² / 2 in units of the spread of places, log ratio, and if nested far and log reach.
    """

    places: Sequence[Neighbourhood]
    trend: str
    anisotropic: bool

    @cached_property
    def size(self) -> int:
        """The number of places."""
        return sum(len(one.X) for one in self.places)

    @cached_property
    def spread(self) -> float:
        """The unit of ranges."""
        return float(np.median([np.std(one.X, axis=0).max() for one in self.places]))

    @cached_property
    def entries(self) -> tuple[Array, Array]:
        """Rows and columns of the matrix that are free: one for all of its diagonal, d, or d(d + 1)/2."""
        d = self.places[0].X.shape[1]
        rows, columns = np.triu_indices(d) if self.anisotropic and d <= _ROTATED else np.diag_indices(d)
        return rows, columns

    def start(self) -> Array:
        """Return where a first descent starts."""
        return np.append(np.zeros(len(self.entries[0]) if self.anisotropic else 1), np.log(0.05))

    def _metric(self, numbers: Array) -> tuple[Array, Array]:
        """Return eigenvalues (d,) and eigenvectors (d, d) of log A in units of the spread."""
        d = self.places[0].X.shape[1]
        upper = np.zeros((d, d))
        upper[self.entries] = numbers
        return np.linalg.eigh(upper + np.triu(upper, 1).T)

    def covariance(self, nu: float, numbers: Array) -> _Covariance:
        """Return the covariance of these numbers."""
        width = len(self.start()) - 1
        values, vectors = self._metric(numbers[:width])
        ratio, *second = numbers[width:].tolist()
        correlation = Correlation(nu, second[0], float(np.exp(second[1]))) if second else Correlation(nu)
        return _Covariance(correlation, (vectors * np.exp(values)) @ vectors.T / self.spread, float(np.exp(ratio)))

    def fit(self, nu: float, start: Array) -> tuple[float, Array]:
        """Return the least loss from a start, and its numbers."""
        width = len(self.start()) - 1
        bounds = [(-6.0, 6.0)] * width + [(np.log(_LEAST), np.log(_MOST)), _FAR, tuple(np.log(_REACHES))]
        descent = minimize(
            self.loss, start, nu, "L-BFGS-B", True, bounds=bounds[: len(start)], options={"maxiter": _STEPS}
        )
        return float(descent.fun), descent.x

    def loss(self, numbers: Array, nu: float) -> tuple[float, Array]:
        """Return −2 log of the likelihood a place, but for a constant, with the best sills, and its gradient.

        A place, since the first step of a descent is as long as the gradient: it would end where nothing is correlated.
        """
        covariance, width = self.covariance(nu, numbers), len(self.start()) - 1
        loss, of_metric, others = 0.0, np.zeros_like(covariance.A), np.zeros(len(numbers) - width)
        for place in self.places:
            rho, slope, slopes = covariance.correlation.with_slope(place.squares(covariance.A))
            found = _residuals(place, rho, covariance.ratio, self.trend)
            c = len(found.sill)
            loss += c * found.logarithms + found.free * float(np.log(found.sill).sum())
            # dV = W: c·(V⁻¹ − V⁻¹F(FᵀV⁻¹F)⁻¹FᵀV⁻¹) − Σ V⁻¹e eᵀV⁻¹ / sill
            W = c * (found.V_inverse - found.V_inverse_F @ found.of_trend @ found.V_inverse_F.T)
            W -= (found.weighted / found.sill) @ found.weighted.T
            others += [covariance.ratio * np.trace(W), *(np.vdot(W, one) for one in slopes)]
            # d‖(x − x')A‖² = (x − x')ᵀ dM (x − x') with M = A²
            S = W * slope
            X = place.X - place.X.mean(axis=0)
            of_metric += 2 * (X.T @ (S.sum(axis=1)[:, None] * X) - X.T @ S @ X)
        # the derivative of M = exp(2L) / spread² by L, in the eigenvectors of L
        values, vectors = self._metric(numbers[:width])
        gaps, doubled = 2 * (values[:, None] - values), np.exp(2 * values)
        near = np.abs(gaps) < 1e-9
        quotients = np.where(near, doubled[:, None], (doubled[:, None] - doubled) / np.where(near, 1, gaps))
        gradient = 2 * vectors @ (vectors.T @ of_metric @ vectors * quotients) @ vectors.T / self.spread**2
        rows, columns = self.entries
        entries = np.where(rows == columns, 1, 2) * gradient[rows, columns]
        entries = entries if len(entries) == width else entries.sum(keepdims=True)
        return loss / self.size, np.append(entries, others) / self.size


def _held_out_error(place: Neighbourhood, covariance: _Covariance, trend: str) -> float:
    """Return the mean squared error at the half nearest to the centre, predicted by the rest, over the variance."""
    held, kept = np.split(np.arange(len(place.X)), [len(place.X) // 2])
    F, rho = place.trend(trend), covariance.rho(place)
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
