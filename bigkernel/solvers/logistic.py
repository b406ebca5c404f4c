"""Softmax regression from gradients summed by sweeps, and calibration of values of f to probabilities.

Regression, with φ' whitened and about its mean and b without penalty, is
    min Σ w −log softmax(φ'ᵀW + 1b)_y + α/2 ‖W‖².
Its Hessian is at most B = (½ Σ w φ'φ'ᵀ + α) ⊕ ½ Σ w, the same for every class (Böhning, Annals of the Institute of
Statistical Mathematics 1992), and is known from m×m moments, while the Hessian has (mc)² numbers. Steps with B alone
converge slowly; limited memory BFGS starts from B and learns the smaller curvature where probabilities are near 0 or 1
(Nocedal & Wright, algorithm 7.4). Its own estimate of the excess of the objective, Newton's decrement ½ gᵀH⁻¹g with the
curvature along the steps, misses small curvatures that no step met: the truth was up to 200 times larger. So a descent
ends with a step of Newton's method by conjugate gradients, a sweep for each product with the Hessian, with the inverse
of BFGS as preconditioner M (Morales & Nocedal, SIAM J. Optim. 2000). The decrement then is the decrease so far plus at
most ρ/(0.9 θ), ρ = rᵀMr of the residual, θ the smallest Ritz value (`solvers.conjugate_gradients`). After the step the
excess is known, as ½ gᵀMg/(0.9 θ), if the objective decreased as its quadratic model did; else the descent goes on.

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
from bigkernel.solvers.conjugate_gradients import start_cg, step_cg
from bigkernel.solvers.ridge import Factor
from bigkernel.statistics.predictor import Calibration, log_softmax

MEMORY = 20  # pairs of steps and changes of the gradient
_ARMIJO = 1e-4  # required share of the decrease predicted by the slope
_HALVINGS = 12
_ROUNDING = 4 * float(np.finfo(np.float64).eps)  # of the objective
_STEPS = 100
_RITZ = 10.0  # until Ritz values are less, θ is 1/(10 + steps²)
_SHARE = 4  # steps so far for each product with the Hessian, since M and θ must have seen enough directions
_EASY = 8  # steps before which the excess needs no Newton step to be known
_REST = 0.25  # share of the tolerance that a Newton step may leave
_FORCING = 0.1  # and share of its own decrease
_AGREES = 0.3  # relative difference from the predicted decrease
_ENOUGH = 1e-12  # predicted decrease per row at which Newton's method ends
_FLAT = 1e-9  # spread, relative to the mean, that counts as rounding
_SMALLEST = 1e-280  # least spread, whose inverse does not overflow
_LEAST = 1e-2  # least scale, so that uninformative f keeps its order
_COMMON = 1e-2  # curvature of the prior of a common scale


@dataclass(frozen=True, eq=False)
class HessianBound:
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
    pairs: tuple[tuple[Array, Array], ...] = ()  # steps and the changes of the gradient along them
    excess: float = np.inf  # estimate of the objective minus its least value
    certain: bool = False  # whether Newton's method found no larger excess

    def precondition(self, bound: HessianBound, gradient: Array) -> Array:
        """Multiply a gradient by the inverse Hessian estimated from the pairs."""
        q, shares = gradient.copy(), []
        for s, y in reversed(self.pairs):
            share = _inner(s, q) / _inner(s, y)
            shares.append(share)
            q -= share * y
        out = bound.solve(q)
        if self.pairs:
            s, y = self.pairs[-1]
            out *= _inner(s, y) / _inner(y, bound.solve(y))
        for (s, y), share in zip(self.pairs, reversed(shares), strict=True):
            out += (share - _inner(y, out) / _inner(s, y)) * s
        return out


def descend(
    start: Point,
    bound: HessianBound,
    evaluate: Callable[[Array], tuple[float, Array]],
    multiply: Callable[[Array, Array], Array],
    tol: float,
) -> Iterator[Point]:
    """Yield the points of a descent until the excess is known to be at most `tol` of the objective.

    It ends too where no step decreases the objective beyond rounding. By a sweep each, `evaluate` returns the objective
    and its gradient at Θ, and `multiply` the Hessian at Θ times a direction.
    """
    here, count = start, 0
    while True:
        # a step of BFGS, −Mg; its decrement ½ gᵀMg estimates the excess
        direction = -here.precondition(bound, here.gradient)
        here = replace(here, excess=max(-_inner(direction, here.gradient) / 2, 0.0))
        rounding = _ROUNDING * abs(here.objective)
        flat = here.excess <= _ROUNDING * rounding
        yield (here := replace(here, certain=here.certain or flat))
        if here.certain:
            return
        after = None
        # with a large penalty the first excess is small, though the classes are not separated yet
        if count == 0 or here.excess > tol * abs(here.objective):
            after, count = _step(here, direction, evaluate), count + 1
        if after is None:
            # near the end products with the Hessian tell the excess, and then give a step
            newton = _Newton(here, bound, count)
            while not newton.ended(tol):
                newton.multiply(multiply)
                told = newton.told <= tol * abs(here.objective)
                yield replace(here, excess=newton.told, certain=told and newton.enough and count < _EASY)
                if told and newton.enough and count < _EASY:
                    return
            after, count = newton.step(evaluate, tol), count + newton.products
            if after is None:
                yield replace(here, excess=newton.told, certain=told)
                return
        here = after


class _Newton:
    """A step of Newton's method by conjugate gradients, preconditioned by the pairs of a point; see the module."""

    def __init__(self, here: Point, bound: HessianBound, count: int) -> None:
        self.here, self.bound, self.products = here, bound, 0
        self.least = 1 + count // _SHARE  # products
        self.pairs: list[tuple[Array, Array]] = []
        self.decrease = 0.0  # of the quadratic model, twice
        right = -here.gradient.reshape(-1, 1)
        self.state = start_cg(np.zeros_like(right), right, self._precondition, np.array([1 / (_RITZ + count**2)]))

    def _precondition(self, right: Array) -> Array:
        return self.here.precondition(self.bound, right.reshape(self.here.theta.shape)).reshape(-1, 1)

    def multiply(self, multiply: Callable[[Array, Array], Array]) -> None:
        """Take a step of conjugate gradients, by a product with the Hessian."""
        direction = self.state.direction.reshape(self.here.theta.shape)
        product = multiply(self.here.theta, direction)
        self.pairs.append((direction, product))
        self.state = step_cg(self.state, product.reshape(-1, 1), self._precondition)
        self.decrease += float(self.state.decrease[0])
        self.products += 1

    @property
    def enough(self) -> bool:
        """Whether there were products enough to find small curvatures."""
        return self.products >= self.least

    @property
    def told(self) -> float:
        """Excess of the quadratic model at the point: its decrease so far, and a bound of the rest."""
        return (self.decrease + float(self.state.excess[0])) / 2

    def ended(self, tol: float) -> bool:
        """Return whether the step is good enough to be taken."""
        rest = float(self.state.excess[0]) / 2
        few = max(_REST * tol * abs(self.here.objective), _FORCING * self.decrease / 2)
        return bool(self.state.stalled[0]) or (self.enough and rest <= few)

    def step(self, evaluate: Callable[[Array], tuple[float, Array]], tol: float) -> Point | None:
        """Return the next point, which is known if the objective decreased as predicted; None if it does not."""
        here, predicted = self.here, self.decrease / 2
        after = _step(here, self.state.coef.reshape(here.theta.shape), evaluate)
        if after is None:
            return None
        some = np.unique(np.linspace(0, len(self.pairs) - 1, MEMORY).astype(int))
        bent = [(s, y) for s, y in (self.pairs[i] for i in some) if _curved(s, y)]
        right = -after.gradient.reshape(-1, 1)
        excess = float(start_cg(right, right, self._precondition, self.state.ritz).excess[0]) / 2
        off = abs(here.objective - after.objective - predicted) - _ROUNDING * abs(here.objective)
        certain = off <= _AGREES * predicted and excess <= tol * abs(after.objective)
        return replace(after, pairs=(*here.pairs, *bent)[-MEMORY:], excess=excess, certain=certain)


def _step(here: Point, direction: Array, evaluate: Callable[[Array], tuple[float, Array]]) -> Point | None:
    """Return the point after a step, halved until the objective decreases; None if it does not."""
    slope, rounding, length = _inner(direction, here.gradient), _ROUNDING * abs(here.objective), 1.0
    for _ in range(_HALVINGS):
        theta = here.theta + length * direction
        objective, gradient = evaluate(theta)
        if objective <= here.objective + _ARMIJO * length * slope + rounding:
            pair = theta - here.theta, gradient - here.gradient
            return Point(theta, objective, gradient, (*here.pairs, pair)[-MEMORY:] if _curved(*pair) else here.pairs)
        length /= 2
    return None


def _curved(step: Array, change: Array) -> bool:
    # SciPy's norms of vectors do not overflow
    sizes = [float(linalg.norm(one.ravel(), check_finite=False)) for one in (step, change)]
    return _inner(step, change) > 1e-14 * sizes[0] * sizes[1]


def _inner(a: Array, b: Array) -> float:
    return float((a * b).sum())


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
