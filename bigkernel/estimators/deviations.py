"""Standard deviations of predictions: the Gaussian process whose mean is a fit, and the effect of rounding on it."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from bigkernel.arrays import Array
from bigkernel.errors import AccuracyWarning, ConfigError
from bigkernel.estimators.checks import require_exact
from bigkernel.estimators.fit_state import ExactFit, IterativeFit, MomentFit, RidgeSolution
from bigkernel.estimators.kernel_basis import of_kernel
from bigkernel.estimators.precision import DRAW, SAFE, rounding_estimate
from bigkernel.solvers.accuracy import perturbations
from bigkernel.solvers.posterior import Posterior, exact_posterior, nystrom_posterior
from bigkernel.solvers.qr_ridge import qr_posterior
from bigkernel.solvers.residuals import ENOUGH, PROMISE
from bigkernel.solvers.ridge import rounding_of_rotation
from bigkernel.solvers.whitening import Whitening, centre_whitened, whiten_moments
from bigkernel.statistics.moments import Moments
from bigkernel.statistics.predictor import Spread

_DRAWS = 4  # perturbations; a single one estimated 8e-5 for deviations that were off by 3e-2


def spread_of(fit: ExactFit | MomentFit | IterativeFit, name: str, *, estimated: bool) -> Spread:
    """Return the spread of the Gaussian process whose mean is the fit of the estimator `name`.

    `estimated`: its scale is estimated, instead of that of the kernel.
    """
    posterior, solution = _posterior_of(fit, name), fit.solution
    assert isinstance(solution, RidgeSolution)
    if not estimated:
        return replace(posterior.spread, scale=np.ones(solution.coef.shape[1]))
    basis = of_kernel(fit.basis)
    if isinstance(fit, ExactFit):
        total, missing = float(basis.width if fit.weight is None else fit.weight.sum()), 0.0
    else:
        assert isinstance(fit, MomentFit)
        total, share, points = float(fit.moments.n), basis.trace_error(fit.moments), basis.sample_block()
        missing = 0.0 if share is None or points is None else share * float(points[1].mean())
    return posterior.scaled(solution.training_mse * total, missing)


def _posterior_of(fit: ExactFit | MomentFit | IterativeFit, name: str) -> Posterior:
    basis, solution = of_kernel(fit.basis), fit.solution
    assert isinstance(solution, RidgeSolution)
    kernel, flag = basis.kernel, solution.with_intercept
    if not kernel.positive:
        raise ConfigError(
            f"return_std: expected a positive definite kernel, found the {kernel.name} kernel; use another kernel"
        )
    if kernel.precomputed:
        raise ConfigError("return_std: k(x, x) of new rows is unknown for a precomputed kernel; use another kernel")
    if not isinstance(solution.alpha, float):
        raise ConfigError("return_std: expected a single penalty, found one for each target; pass one number for alpha")
    if isinstance(fit, IterativeFit):
        raise ConfigError("return_std: not available for a fit by conjugate gradients; use solver='direct'")
    alpha = solution.alpha
    if isinstance(fit, ExactFit):
        require_exact(name, basis.width)
        return exact_posterior(basis.core(), alpha, fit_intercept=flag, weight=fit.weight)
    whitening = basis.whitening(warn=False)
    if fit.r_factor is not None:
        rows = float(fit.statistics["rows"].sum())
        return qr_posterior(fit.r_factor, fit.centre, whitening, alpha, fit_intercept=flag, rows=rows)
    posterior, error = posterior_of_sums(fit, whitening)
    if error is not None and error > ENOUGH:
        warnings.warn(
            f"return_std: standard deviations may be off by about {error:.1g} of their size (expected at most "
            f"{PROMISE:g}); use dtype='float64', a larger alpha or fewer landmarks",
            AccuracyWarning,
            stacklevel=4,
        )
    return posterior


def posterior_of_sums(fit: MomentFit, whitening: Whitening) -> tuple[Posterior, float | None]:
    """Return the posterior, and the estimated relative error of its deviations; None where it is unknown.

    The sums are whitened once, and perturbed in whitened coordinates.
    """
    solution = fit.solution
    assert isinstance(solution, RidgeSolution)
    flag = solution.with_intercept
    whitened = whiten_moments(fit.moments, whitening)

    def perturbed(E: Array | float, others: Array) -> tuple[Moments, Posterior]:
        G = whitened.G.copy(order="K")
        G += E
        sums = replace(whitened, G=G, C=whitened.C + others[:, :-1], s=whitened.s + others[:, -1])
        rotated, small = centre_whitened(sums, whitening, fit_intercept=flag)
        return rotated, nystrom_posterior(small, whitened.rows, whitening, float(solution.alpha), fit_intercept=flag)

    rotated, posterior = perturbed(0.0, np.zeros((1, len(whitened.t) + 1)))
    estimate, points = rounding_estimate(fit, whitening), of_kernel(fit.basis).sample_block()
    if estimate is None or points is None:
        return posterior, None
    rows, probed_rows = float(fit.statistics["rows"].sum()), float(fit.statistics["probed_rows"].sum())
    # the rounding of the rotation, beside that of the sums, which was probed on a share of the rows
    raw = replace(fit.moments, shift=None) if flag else fit.moments
    rotation = whitening.restore(rounding_of_rotation(raw, rotated, whitening))
    both = {**fit.statistics, "E": fit.statistics["E"] + rotation / np.sqrt(max(rows / probed_rows, 1.0))}
    rng, deviations = np.random.default_rng(DRAW), np.sqrt(posterior.spread.variance(*points))
    largest = 0.0
    for _ in range(_DRAWS):
        _, other = perturbed(*next(perturbations(both, whitening, estimate, rng)))
        largest = max(largest, float(np.linalg.norm(np.sqrt(other.spread.variance(*points)) - deviations)))
    return posterior, SAFE * largest / max(float(np.linalg.norm(deviations)), 1e-300)
