"""Softmax regression from gradients summed by sweeps, and calibration of values of f to probabilities.

Regression, with φ' whitened and about its mean and b without penalty, is
    min Σ w −log softmax(φ'ᵀW + 1b)_y + α/2 ‖W‖².
Its Hessian is at most B = (½ Σ w φ'φ'ᵀ + α) ⊕ ½ Σ w, the same for every class (Böhning, Annals of the Institute of
Statistical Mathematics 1992), and is known from m×m moments, while the Hessian has (mc)² numbers. Steps with B alone
converge slowly; limited memory BFGS starts from B and learns the smaller curvature where probabilities are near 0 or 1
(Nocedal & Wright, algorithm 7.4). Newton steps by conjugate gradients, with a sweep per product, take as many sweeps.

Calibration is by maximum a posteriori, a convex problem of 2c numbers,
    min −Σ w log p_y + ½ Σ (a_k − ā)² + ½ Σ b_k² + ½ 0.01 Σ a_k²,   p = softmax(a ∘ z + log π + b),
with y the class of a row, z the standardised f, π the class frequencies and ā the mean of a. With few rows all classes
share nearly one scale, with many each has its own; scales stay finite where f separates all classes, and at least 0.01
where few rows would reverse f. Weights w are normalised to sum to the effective number of rows (Σw)²/Σw².
On digits (20,000 rows, m = 1,000) the log-loss of this is 0.1259, of one scale for all 0.1291, and of isotonic
regression of each class against the rest at least 0.1446; Platt's smoothed targets were worse throughout.
Platt (1999); Lin, Lin & Weng (2007); Guo, Pleiss, Sun & Weinberger (ICML 2017, vector scaling).
Shapes: n rows, r coordinates, c classes; Θ = (W; b), (r + 1, c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.solvers.ridge import Factor
from bigkernel.statistics.predictor import Calibration, log_softmax

MEMORY = 20  # pairs of steps and changes of the gradient
_ARMIJO = 1e-4  # required share of the decrease predicted by the slope
_HALVINGS = 12
_ROUNDING = 4 * float(np.finfo(np.float64).eps)  # of the objective
_STEPS = 100
_ENOUGH = 1e-12  # predicted decrease per row at which Newton's method ends
_FLAT = 1e-9  # spread, relative to the mean, that counts as rounding
_SMALLEST = 1e-280  # least spread, whose inverse does not overflow
_LEAST = 1e-2  # least scale, so that uninformative f keeps its order
_COMMON = 1e-2  # curvature of the prior of a common scale


@dataclass(frozen=True, eq=False)
class Bound:
    """B⁻¹: `factor` of Σ w φ'φ'ᵀ + 2α, (r, r), and `n` = Σ w."""

    factor: Factor
    n: float

    def solve(self, gradient: Array) -> Array:
        """Multiply B⁻¹ by a gradient (r + 1, c)."""
        return np.vstack([2 * self.factor.solve(gradient[:-1]), 2 * gradient[-1:] / self.n])


@dataclass(frozen=True, eq=False)
class Point:
    """Θ, the objective at Θ and its gradient."""

    theta: Array
    objective: float
    gradient: Array
    pairs: tuple[tuple[Array, Array], ...] = ()  # the last steps and changes of the gradient
    # Newton decrement by the estimated curvature, which estimates the objective minus its least value
    excess: float = np.inf


def descend(start: Point, bound: Bound, evaluate: Callable[[Array], tuple[float, Array]]) -> Iterator[Point]:
    """Yield the points of a descent; `evaluate` returns the objective and its gradient at Θ, by a sweep.

    It ends when no step decreases the objective beyond rounding.
    """
    here = start
    while True:
        direction = -_product(here, bound)
        slope = float((direction * here.gradient).sum())
        here = replace(here, excess=max(-slope / 2, 0.0))
        yield here
        rounding = _ROUNDING * abs(here.objective)
        if here.excess <= _ROUNDING * rounding:
            return
        length = 1.0
        for _ in range(_HALVINGS):
            theta = here.theta + length * direction
            objective, gradient = evaluate(theta)
            if objective <= here.objective + _ARMIJO * length * slope + rounding:
                break
            length /= 2
        else:
            return
        pair = theta - here.theta, gradient - here.gradient
        # SciPy's norms of vectors do not overflow
        step_size, gradient_size = (float(linalg.norm(one.ravel(), check_finite=False)) for one in pair)
        curved = float((pair[0] * pair[1]).sum()) > 1e-14 * step_size * gradient_size
        pairs = (*here.pairs, pair)[-MEMORY:] if curved else here.pairs
        here = Point(theta, objective, gradient, pairs)


def _product(here: Point, bound: Bound) -> Array:
    """Multiply the gradient by the inverse Hessian estimated from the pairs."""
    q, shares = here.gradient.copy(), []
    for s, y in reversed(here.pairs):
        share = float((s * q).sum() / (s * y).sum())
        shares.append(share)
        q -= share * y
    out = bound.solve(q)
    if here.pairs:
        s, y = here.pairs[-1]
        out *= float((s * y).sum() / (y * bound.solve(y)).sum())
    for (s, y), share in zip(here.pairs, reversed(shares), strict=True):
        out += (share - float((y * out).sum() / (s * y).sum())) * s
    return out


def fit_softmax(values: Array, truth: Array, weight: Array) -> Calibration:
    """Calibrate held-out values (n, c) of rows of classes `truth` (n,) by Newton's method."""
    n, c = values.shape
    if not n:
        raise DataError("probability=True: expected held-out rows to calibrate on, found none")
    truth, weight = truth.astype(np.int64), weight / weight.max()
    w = weight * (weight.sum() / (weight @ weight))
    largest = max(float(np.abs(values).max()), 1e-300)  # against overflow of squares
    mean = largest * ((w @ (values / largest)) / w.sum())
    unit = largest * float(np.sqrt((w @ ((values - mean) / largest) ** 2).mean() / w.sum()))
    if unit <= _FLAT * float(np.abs(mean).max()):
        unit = 1.0  # constant except for rounding
    unit = max(unit, _SMALLEST)
    shares = np.log((np.bincount(truth, w, c) + 1) / (w.sum() + c))
    scale, offset = _Problem((values - mean) / unit, np.eye(c)[truth], w, shares).minimise()
    scale = scale / unit
    result = Calibration(scale, shares + offset - scale * mean)
    loss = -float(weight @ log_softmax(result.logits(values))[np.arange(n), truth]) / float(weight.sum())
    return Calibration(result.scale, result.offset, n, loss)


class _Problem:
    """The objective of calibration over θ = (a, b), (2c,), and its derivatives.

    For values z and one-hot classes t (n, c), weights w (n,) and log π (c,).
    """

    def __init__(self, z: Array, t: Array, w: Array, shares: Array) -> None:
        self.z, self.t, self.w, self.shares = z, t, w, shares
        c = z.shape[1]
        spread = np.eye(c) - 1 / c if c > 2 else np.zeros((c, c))
        self.prior = linalg.block_diag(spread + _COMMON * np.eye(c), np.eye(c))
        # two classes share one scale
        self.basis = np.eye(2 * c) if c > 2 else np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])

    def logarithms(self, theta: Array) -> Array:
        """Compute log p (n, c)."""
        c = self.z.shape[1]
        return log_softmax(theta[:c] * self.z + (self.shares + theta[c:]))

    def value(self, theta: Array) -> float:
        """Compute the objective."""
        return float(-(self.w @ (self.t * self.logarithms(theta)).sum(axis=1)) + theta @ self.prior @ theta / 2)

    def derivatives(self, theta: Array) -> tuple[Array, Array]:
        """Compute gradient (2c,) and Hessian (2c, 2c)."""
        z, w = self.z, self.w[:, None]
        p = np.exp(self.logarithms(theta))
        off = w * (p - self.t)
        gradient = np.concatenate([(off * z).sum(axis=0), off.sum(axis=0)]) + self.prior @ theta
        # Σ w (diag(p) − ppᵀ) ⊗ (z, 1)(z, 1)ᵀ
        both = np.hstack([p * z, p])
        within = [[np.diag((w * p * z**2).sum(axis=0)), np.diag((w * p * z).sum(axis=0))]]
        within.append([within[0][1], np.diag((w * p).sum(axis=0))])
        return gradient, np.block(within) - both.T @ (w * both) + self.prior

    def minimise(self) -> tuple[Array, Array]:
        """Solve for a and b; scales below the least are fixed there, and the rest is solved again."""
        c, free = self.z.shape[1], np.ones(self.basis.shape[1], bool)
        theta = np.zeros(2 * c)
        while True:
            theta = self._newton(theta, self.basis[:, free])
            low = theta[:c] < _LEAST
            if not low.any():
                return theta[:c], theta[c:]
            theta[:c][low] = _LEAST
            free &= ~self.basis[:c][low].any(axis=0)

    def _newton(self, theta: Array, B: Array) -> Array:
        """Minimise over θ + Bφ by Newton steps that are halved until the objective decreases."""
        now = self.value(theta)
        for _ in range(_STEPS):
            gradient, hessian = self.derivatives(theta)
            step = B @ linalg.solve(B.T @ hessian @ B, -(B.T @ gradient), assume_a="pos")
            predicted = -float(gradient @ step)
            if predicted <= _ENOUGH * len(self.w):
                break
            length = 1.0
            while (then := self.value(theta + length * step)) > now - 1e-4 * length * predicted and length > 1e-6:
                length /= 2
            if then >= now:
                break
            theta, now = theta + length * step, then
        return theta
