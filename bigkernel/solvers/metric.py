"""Learn which features a kernel should see, on a sample in memory.

The metric is a matrix P (d, r): the kernel sees xP. Two ways to learn it, both through a Nyström fit of width 1:

scales   P is diagonal. Gradient descent (L-BFGS) on the squared error of held-out rows, for the logarithms of all
         scales and of the penalty at once; the gradient is that of the solution too, by its adjoint.
products P = M^½, where M is the mean of ∇f∇fᵀ over rows, f a fit with the last metric (average gradient outer product,
         Radhakrishnan et al., Science 2024; Beaglehole et al., xRFM, ICLR 2026).

Shapes: n rows x (n, d) with targets y (n, c), m landmarks z (m, d), slopes dk/d‖x−z‖² (n, m).
Sums over rows are taken by tiles in a fixed order, so that their bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from scipy import linalg, optimize

from bigkernel.arrays import Array, Index
from bigkernel.errors import DataError
from bigkernel.kernels.functions import Gaussian, Matern
from bigkernel.kernels.landmarks import median_width

T = TypeVar("T")
Radial = Gaussian | Matern
TILE = 2048
_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the median distance of landmarks
PENALTIES = tuple(np.geomspace(1e-7, 1e-1, 7))  # α, as a share of the rows
_RANGE = (1e-10, 10.0)  # of α
_PRECISION = 1e-6  # relative decrease of the error below which the descent ends
_KEPT_TRACE = 0.999
_RIDGE = 1e-7  # of the systems, as a share of the rows
_CLIPPED = 0.99  # quantile of |∇f| above which a row counts as one at it: a few huge gradients would rule the mean


class Run(Protocol):
    """Map a function over tiles, in order, such as the `map` of a pool of threads."""

    def __call__(self, function: Callable[[Index], T], tiles: Iterable[Index], /) -> Iterator[T]: ...


class Sample(NamedTuple):
    """Rows x (n, d) and their targets y (n, c)."""

    x: Array
    y: Array


@dataclass(frozen=True, eq=False)
class Metric:
    """The matrix P, for a kernel of width 1, with what was found on held-out rows."""

    weights: Array  # P (d, r), or its diagonal (d,)
    penalty: float  # α, as a share of the rows
    error: float  # mean squared error of held-out rows

    def apply(self, x: Array) -> Array:
        """Return xP in the dtype of x."""
        weights = self.weights.astype(x.dtype)
        mapped: Array = x * weights if weights.ndim == 1 else x @ weights
        return mapped


class _Block(NamedTuple):
    """Mapped rows with their kernel values and slopes."""

    x: Array
    k: Array
    slope: Array


@dataclass(frozen=True, eq=False)
class HeldOutLoss:
    """Mean squared error on held-out rows of a Nyström fit to others, with its gradient.

    w = H⁻¹Bᵀy, H = BᵀB + αnK, L = Σ‖Vw − v‖²/n_v; B and V are the blocks of the rows that are fitted and held out.
    """

    kernel: Radial
    fitted: Sample
    held_out: Sample
    landmarks: Array
    run: Run

    def mapped(self, metric: Metric) -> HeldOutLoss:
        """Return the loss on rows that a metric has mapped."""
        fitted, held_out = (one._replace(x=metric.apply(one.x)) for one in (self.fitted, self.held_out))
        return replace(self, fitted=fitted, held_out=held_out, landmarks=metric.apply(self.landmarks))

    def widths_and_penalties(self, widths: Sequence[float]) -> Array:
        """Return the errors for each width and each of `PENALTIES`; NaN where a system is singular."""
        errors = np.empty((len(widths), len(PENALTIES)))
        for line, width in zip(errors, widths, strict=True):
            inner = self.mapped(Metric(np.full(self.landmarks.shape[1], 1 / width), 0.0, 0.0))
            sums, held_out = inner._sums(inner._block(inner.fitted.x)), inner._block(inner.held_out.x)
            for place, penalty in enumerate(PENALTIES):
                w = _solved(sums.system(penalty), sums.right).astype(held_out.k.dtype)
                line[place] = ((held_out.k @ w - inner.held_out.y) ** 2).sum(axis=1).mean()
        return errors

    def with_gradient(self, scales: Array, penalty: float) -> tuple[float, Array, float]:
        """Return the error for scales (d,) and a penalty, and its slopes along their logarithms."""
        inner = self.mapped(Metric(scales, penalty, 0.0))
        B, V = inner._block(inner.fitted.x), inner._block(inner.held_out.x)
        sums = inner._sums(B)
        # w = H⁻¹Bᵀy of the fitted rows, H = BᵀB + αnK; the loss is ‖Vw − v‖² of the held-out ones
        H = linalg.cho_factor(sums.system(penalty), check_finite=False)
        w = linalg.cho_solve(H, sums.right, check_finite=False)
        w_, y, v = w.astype(B.k.dtype), inner.fitted.y, inner.held_out.y
        r, n_v = V.k @ w_ - v, len(v)
        u = linalg.cho_solve(H, np.asarray(V.k.T @ r, np.float64), check_finite=False)  # the adjoint of w
        # dJ = 2⟨r, dV w⟩ + 2⟨Vᵀr, dw⟩, and H dw = dBᵀ(y − Bw) − Bᵀ dB w − αn dK w, so with u = H⁻¹Vᵀr
        # dJ/2 = ⟨dV, r wᵀ⟩ + ⟨dB, (y − Bw)uᵀ − Bu wᵀ⟩ − αn⟨dK, u wᵀ⟩; `_slopes` takes d of k along log s
        u_, e, a = u.astype(B.k.dtype), y - B.k @ w_, penalty * len(y)
        slopes = inner._slopes(V, [(r, w_)])
        slopes += inner._slopes(B, [(e, u_), (-(B.k @ u_), w_)])
        slopes += inner._slopes(sums.core, [(-a * u, w)])
        error = float(np.einsum("ij,ij->", r, r, dtype=np.float64)) / n_v
        return error, 4 / n_v * slopes, float(-2 * a / n_v * np.einsum("ic,ij,jc->", u, sums.core.k, w))

    def errors(self, metric: Metric) -> Array:
        """Return the squared errors (n_v,) of the held-out rows under a metric."""
        inner = self.mapped(metric)
        sums = inner._sums(inner._block(inner.fitted.x))
        w = _solved(sums.system(metric.penalty), sums.right)
        errors: Array = ((inner._block(inner.held_out.x).k @ w - inner.held_out.y) ** 2).sum(axis=1)
        return errors

    def gradient_products(self, penalty: float, signs: Array) -> Array:
        """Return the mean of ∇f∇fᵀ (d, d) over the fitted rows, f the sum of the outputs with signs (n, c)."""
        B = self._block(self.fitted.x)
        sums = self._sums(B)
        w = _solved(sums.system(penalty), sums.right).astype(B.k.dtype)
        z = self.landmarks
        parts = self.run(lambda tile: _gradients(B, tile, signs[tile] @ w.T, z), _tiles(B.x))
        gradients = np.concatenate([*parts])
        lengths = np.linalg.norm(gradients, axis=1)
        most = np.quantile(lengths, _CLIPPED)
        gradients *= np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)[:, None]
        products = reduce(add, self.run(lambda tile: _gram(gradients[tile]), _tiles(B.x)))
        return np.asarray(products / len(gradients))

    def _block(self, x: Array) -> _Block:
        z = self.landmarks.astype(x.dtype)
        k, slope = np.empty((2, len(x), len(z)), x.dtype)
        squared_norms = np.einsum("ij,ij->i", z, z)

        def fill(tile: Index) -> None:
            rows = x[tile]
            squares = rows @ (-2 * z.T)
            squares += squared_norms
            squares += np.einsum("ij,ij->i", rows, rows)[:, None]
            k[tile], slope[tile] = self.kernel.with_slope(np.maximum(squares, 0, out=squares))

        list(self.run(fill, _tiles(x)))
        return _Block(x, k, slope)

    def _sums(self, B: _Block) -> _Sums:
        def part(tile: Index) -> tuple[Array, Array]:
            k = B.k[tile].astype(np.float64)
            return k.T @ k, k.T @ self.fitted.y[tile]

        gram, right = (reduce(add, parts) for parts in zip(*self.run(part, _tiles(B.x)), strict=True))
        core = self._block(self.landmarks.astype(np.float64))  # rounding would make a flat kernel indefinite
        np.fill_diagonal(core.k, 1)
        np.fill_diagonal(core.slope, 0)  # it does not move with the scales
        return _Sums(gram, right, core, len(B.x))

    def _slopes(self, block: _Block, factors: Sequence[tuple[Array, Array]]) -> Array:
        """Return Σ slope·(Σ pqᵀ)·(x−z)² over all pairs, (d,); p (n, c) and q (m, c) are the factors."""

        def part(tile: Index) -> Array:
            weights = reduce(add, (p[tile] @ q.T for p, q in factors))
            weights *= block.slope[tile]
            x, z = block.x[tile], self.landmarks.astype(weights.dtype)
            sums = weights.sum(axis=1) @ (x * x) + weights.sum(axis=0) @ (z * z)
            return np.asarray(sums - 2 * np.einsum("ij,ij->j", weights.T @ x, z), np.float64)

        return np.asarray(reduce(add, self.run(part, _tiles(block.x))))


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of a Nyström fit: BᵀB, Bᵀy, and K of the landmarks."""

    gram: Array
    right: Array
    core: _Block  # of the landmarks, in float64
    rows: int

    def system(self, penalty: float) -> Array:
        """Return BᵀB + αnK, with a ridge above the rounding of float32."""
        H = self.gram + penalty * self.rows * self.core.k
        H.flat[:: len(H) + 1] += self.rows * _RIDGE
        return H


def _solved(H: Array, right: Array) -> Array:
    """Return H⁻¹·right, or NaN where rounding or overflow made H singular."""
    try:
        solution: Array = linalg.cho_solve(linalg.cho_factor(H, check_finite=False), right, check_finite=False)
    except linalg.LinAlgError:
        return np.full_like(right, np.nan)
    return solution


def _tiles(x: Array) -> list[Index]:
    return [slice(start, start + TILE) for start in range(0, len(x), TILE)]


def _gram(x: Array) -> Array:
    x = x.astype(np.float64)
    return x.T @ x


def _gradients(block: _Block, tile: Index, coefficients: Array, z: Array) -> Array:
    """Return the gradients (b, d) at the rows of a tile of Σ aₗ k(x, zₗ), with coefficients a (b, m) of each row."""
    weights = 2 * block.slope[tile] * coefficients
    return np.asarray(weights.sum(axis=1)[:, None] * block.x[tile] - weights @ z)


def plain_metric(losses: Sequence[HeldOutLoss]) -> Metric:
    """Choose the width and penalty of the kernel on the rows as they are, by the mean error of all folds."""
    d = losses[0].landmarks.shape[1]
    median = median_width(losses[0].landmarks, share=1.0)
    widths = [factor * median for factor in _WIDTHS]
    errors = np.mean([loss.widths_and_penalties(widths) for loss in losses], axis=0)
    if np.isnan(errors).all():
        raise DataError("LearnedMetric: the errors of held-out rows are not finite; scale the rows")
    width, penalty = np.unravel_index(np.nanargmin(errors), errors.shape)
    return Metric(np.full(d, 1 / widths[width]), float(PENALTIES[penalty]), float(errors[width, penalty]))


def learn_scales(
    losses: Sequence[HeldOutLoss], start: Metric, max_iter: int, note: Callable[[float], None] = lambda error: None
) -> Metric:
    """Improve the scales of a diagonal metric by gradient descent, in at most `max_iter` evaluations of the loss."""
    best, left = start, max_iter

    def evaluate(logs: Array) -> tuple[float, Array]:
        nonlocal best, left
        if not left:
            raise StopIteration  # line searches do not count theirs
        left -= 1
        scales, penalty = np.exp(logs[:-1]), float(np.exp(logs[-1]))
        try:
            # mean error of all folds, and its slopes along the logarithms
            folds = [loss.with_gradient(scales, penalty) for loss in losses]
        except linalg.LinAlgError:  # a step too far
            return np.finfo(np.float64).max, np.zeros_like(logs)
        error = float(np.mean([fold[0] for fold in folds]))
        slopes = np.mean([np.append(*fold[1:]) for fold in folds], axis=0)
        if error < best.error:
            best = Metric(scales, penalty, error)
        note(best.error)
        return error / start.error, slopes / start.error

    # L-BFGS over logarithms, which keep scales positive
    logs = np.log(np.append(start.weights, start.penalty))
    bounds = [(log - 12, log + 8) for log in logs[:-1]] + [tuple(np.log(_RANGE))]
    if start.error > 0:
        with suppress(StopIteration):
            optimize.minimize(evaluate, logs, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": _PRECISION})
    return best


def learn_products(
    losses: Sequence[HeldOutLoss],
    start: Metric,
    rounds: int,
    rng: np.random.RandomState,
    *,
    diagonal: bool,
    note: Callable[[float], None] = lambda error: None,
) -> Metric:
    """Repeat: fit, and take the mean product of its gradients as the next metric; return the best round."""
    best = metric = start
    for _ in range(rounds):
        products = np.mean([_products(loss.mapped(metric), metric.penalty, rng) for loss in losses], axis=0)
        P = np.diag(metric.weights) if metric.weights.ndim == 1 else metric.weights
        M = P @ products @ P.T
        if not (trace := float(np.trace(M))) > 0:
            break
        weights = _root(M * (len(M) / trace), diagonal=diagonal)
        chosen = plain_metric([loss.mapped(Metric(weights, 0.0, 0.0)) for loss in losses])
        metric = replace(chosen, weights=weights * chosen.weights[0])
        note(metric.error)
        best = min(best, metric, key=lambda one: one.error)
    return best


def _products(loss: HeldOutLoss, penalty: float, rng: np.random.RandomState) -> Array:
    """Return products of gradients with a random sign for each output and row, whose mean is that of all outputs."""
    signs = np.where(rng.rand(*loss.fitted.y.shape) < 0.5, -1, 1).astype(loss.fitted.x.dtype)
    return loss.gradient_products(penalty, signs)


def _root(M: Array, *, diagonal: bool) -> Array:
    """Return M^½ without its smallest directions (d, r), or the roots of its diagonal (d,)."""
    if diagonal:
        scales = np.diagonal(M)
        return np.asarray(np.sqrt(np.maximum(scales, 1e-16 * scales.max())))
    values, vectors = linalg.eigh(M)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    kept = int(np.searchsorted(np.cumsum(values) / values.sum(), _KEPT_TRACE)) + 1
    return np.asarray(vectors[:, :kept] * np.sqrt(values[:kept]))
