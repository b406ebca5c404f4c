"""Standard deviations of predictions: the Gaussian process whose mean is a fit, and the effect of rounding on it.

Tests: estimators/test_return_std.py.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from bigkernel.arrays import Array
from bigkernel.errors import AccuracyWarning, ConfigError
from bigkernel.estimators.fit.basis import of_kernel
from bigkernel.estimators.fit.precision import DRAW, SAFE, rounding_estimate
from bigkernel.estimators.fit.state import ExactFit, IterativeFit, MomentFit, RidgeSolution
from bigkernel.estimators.inputs.checks import require_exact
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.solvers.accuracy import perturbations
from bigkernel.solvers.posterior import Posterior, exact_posterior, nystrom_posterior
from bigkernel.solvers.qr_ridge import qr_posterior
from bigkernel.solvers.residuals import ENOUGH, PROMISE
from bigkernel.solvers.ridge import rounding_of_rotation
from bigkernel.solvers.whitening import Whitening, centre_whitened, whiten_moments
from bigkernel.statistics.moments import Moments
from bigkernel.statistics.predictor import ExactSpread, Predictor, Spread

_ROUNDING = 1e-8  # share of squares that a difference of sums does not resolve
_CONDITION = 1e-10  # least penalty over the trace of K for factors that are computed without pivots
_DRAWS = 4  # perturbations; a single one estimated 8e-5 for deviations that were off by 3e-2


def spread_of(fit: ExactFit | MomentFit | IterativeFit, name: str, noise_variance: float | ArrayLike | None) -> Spread:
    """Return the spread of the Gaussian process whose mean is the fit of the estimator `name`.

    Its scale is that of `noise_variance`, of observations of weight 1; None: estimated, for each target.
    """
    posterior, solution, basis = _posterior_of(fit, name), fit.solution, of_kernel(fit.basis)
    alpha, coef = posterior.alpha, solution.coef
    assert isinstance(solution, RidgeSolution)
    # a given variance σ² of the noise determines the scale: s² = σ²/α
    if noise_variance is not None:
        given = np.asarray(noise_variance, np.float64)
        if given.shape not in ((), (coef.shape[1],)) or not ((given > 0) == (alpha > 0)).all():
            raise ConfigError(
                f"noise_variance: expected a number above 0 or one for each of {coef.shape[1]} targets, as alpha = "
                f"{alpha:g} (0 for alpha = 0), found {noise_variance!r}; None estimates it"
            )
        squares = np.broadcast_to(given / alpha if alpha else 1.0, coef.shape[1])
        return posterior.scaled(np.sqrt(squares), alpha)
    if isinstance(fit, ExactFit):
        # a row's error without it is a/A⁻¹ᵢᵢ, of variance s²/A⁻¹ᵢᵢ, A = K + αW⁻¹ (Rasmussen & Williams 2006, eq. 5.12)
        parts = [(factor**2).sum(axis=1) for factor in (posterior.explained, posterior.prior[0])]
        inverse = parts[0] - parts[1]
        used = inverse > _ROUNDING * parts[0]
        squares = (coef[used] ** 2 / inverse[used, None]).sum(axis=0) / max(np.count_nonzero(used), 1)
        weight = 1.0 if fit.weight is None else float(fit.weight[fit.weight > 0].mean())
        return posterior.scaled(np.sqrt(squares), alpha, weight=weight)
    assert isinstance(fit, MomentFit)
    rows, total, share = float(fit.moments.rows), float(fit.moments.n), basis.trace_error(fit.moments) or 0.0
    least = (share + 16 * float(np.finfo(basis.dtype).eps)) * basis.mean_diagonal
    # what landmarks miss is noise to the fit; σ̂² = Σw(y − f)²/(n − tr H) without bias (Wahba 1990, eq. 4.7.2)
    noise = alpha + least
    left, missed = posterior.left, solution.training_mse * total
    squares = missed / max(left, 1.0) / noise
    # where the fit meets all rows, but for rounding, ‖f‖² is s² times their number
    met = (left < 1) | (missed <= _ROUNDING * fit.moments.q)
    if met.any():
        squares = np.where(met, np.einsum("pc,pc->c", coef, basis.core() @ coef) / rows, squares)
    return posterior.scaled(np.sqrt(squares), noise, least, weight=total / rows)


def without_factors(predictor: Predictor, fit: ExactFit) -> Predictor:
    """Return the predictor of an exact fit that computes the factors of its spread when needed, if these are precise.

    They need the rows' noise above 0, and K + αW⁻¹ well enough conditioned for a Cholesky factor.
    """
    spread, alpha = predictor.spread, float(cast(RidgeSolution, fit.solution).alpha)
    assert isinstance(spread, Spread)
    weight = np.ones(len(spread.explained)) if fit.weight is None else fit.weight
    trace = float((of_kernel(fit.basis).core_diagonal() * weight).sum())
    if not (alpha > trace * _CONDITION and (weight > 0).all() and isinstance(predictor.features, LandmarkMap)):
        return predictor
    bare = ExactSpread(alpha / weight, len(spread.centre) > 0, spread.level, spread.scale)
    return replace(predictor, spread=bare)


def _posterior_of(fit: ExactFit | MomentFit | IterativeFit, name: str) -> Posterior:
    basis, solution = of_kernel(fit.basis), fit.solution
    assert isinstance(solution, RidgeSolution)
    kernel, flag = basis.kernel, solution.with_intercept
    # only a covariance function, with one noise variance, has a posterior
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
    # from what the fit keeps: its kernel matrix, the R factor of its rows, or its sums
    alpha = solution.alpha
    if isinstance(fit, ExactFit):
        require_exact(name, basis.width)
        return exact_posterior(basis.core(), alpha, fit_intercept=flag, weight=fit.weight)
    whitening = basis.whitening()
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

    # the posterior of other sums G + E and [C, s] + others, in whitened coordinates
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
    # the largest change of deviations at some points over draws of a rounding of the probed size
    rng, deviations = np.random.default_rng(DRAW), np.sqrt(posterior.spread.variance(*points))
    largest = 0.0
    for _ in range(_DRAWS):
        _, other = perturbed(*next(perturbations(both, whitening, estimate, rng)))
        largest = max(largest, float(np.linalg.norm(np.sqrt(other.spread.variance(*points)) - deviations)))
    return posterior, SAFE * largest / max(float(np.linalg.norm(deviations)), 1e-300)
