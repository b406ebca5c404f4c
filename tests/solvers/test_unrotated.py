"""Ridge by one factor of G + αK: the answers and the errors of rotated moments, and these where it does not serve."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from traced import traced

from bigkernel import Gaussian
from bigkernel.solvers import whitening as coordinates
from bigkernel.solvers.residuals import VECTORS, SolveDiagnostics
from bigkernel.solvers.ridge import RoundingEstimate, WhitenedGram, factorize_unrotated, nystrom_ridge
from bigkernel.solvers.whitening import centre, reduce_moments, whiten
from bigkernel.statistics.moments import Moments

rng = np.random.default_rng(77)
N, M = 900, 120
X = rng.normal(size=(N, 4))
Y = np.column_stack([np.sin(2 * X[:, 0]) + 3, X[:, 1] * X[:, 2]])
WEIGHT = rng.random(N) + 0.1


def problem(sigma, *, shifted=True):
    """Block B (n, m), the moments of it, and the whitening of its core."""
    kernel = Gaussian(sigma)
    B = kernel(X, X[:M])
    a = B[:50].mean(axis=0) if shifted else np.zeros(M)
    D, w = B - a, WEIGHT
    sums = {"G": (D.T * w) @ D, "C": (D.T * w) @ Y, "s": D.T @ w, "t": w @ Y, "q": w @ Y**2}
    return B, Moments(rows=N, n=w.sum(), **sums, shift=a if shifted else None), whiten(kernel(X[:M]), warn=False)


def least_squares(B, whitening, alpha, fit_intercept):
    """Fitted values (n, c) and squared errors (c,) by singular values of whitened rows, which squares no condition."""
    phi, root = B @ whitening.expand(np.eye(M)), np.sqrt(WEIGHT)[:, None]
    mean, mean_y = (np.average(one, axis=0, weights=WEIGHT) if fit_intercept else 0.0 for one in (phi, Y))
    tall = np.vstack([root * (phi - mean), np.sqrt(alpha) * np.eye(M)])
    w = np.linalg.lstsq(tall, np.vstack([root * (Y - mean_y), np.zeros((M, 2))]), rcond=None)[0]
    fitted = (phi - mean) @ w + mean_y
    return fitted, WEIGHT @ (fitted - Y) ** 2


def solved(moments, whitening, alpha, *, rotated, fit_intercept=False, estimate=None):
    diagnostics = SolveDiagnostics()
    whitening = replace(whitening, core=None) if rotated else whitening
    options = {"fit_intercept": fit_intercept, "diagnostics": diagnostics, "estimate": estimate}
    return nystrom_ridge(moments, whitening, alpha, **options), diagnostics


def rotates(monkeypatch, moments, whitening, alpha, *, fit_intercept=False):
    """True where moments are rotated for a solve."""
    calls, whiten = [], coordinates.whiten_moments
    monkeypatch.setattr(coordinates, "whiten_moments", lambda *given: calls.append(given) or whiten(*given))
    nystrom_ridge(moments, whitening, alpha, fit_intercept=fit_intercept)
    return bool(calls)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("sigma, alpha", [(0.5, 1e-3), (1.0, 1e-6), (1.0, 1.0), (2.0, 1.0)])
def test_predictions_are_those_of_least_squares(monkeypatch, sigma, alpha, shifted, fit_intercept):
    B, moments, whitening = problem(sigma, shifted=shifted)
    assert not rotates(monkeypatch, moments, whitening, alpha)
    (coef, intercept, error), _ = solved(moments, whitening, alpha, rotated=False, fit_intercept=fit_intercept)
    fitted, expected = least_squares(B, whitening, alpha, fit_intercept)
    assert_allclose(B @ coef + intercept, fitted, atol=1e-7)
    assert_allclose(error, expected, rtol=1e-6)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("sigma, alpha", [(0.5, 1e-3), (1.0, 1.0), (2.0, 1.0)])
def test_diagnostics_and_errors_are_those_of_rotated_moments(sigma, alpha, fit_intercept):
    _, moments, whitening = problem(sigma)
    rounding, noise = 1e-6 * rng.normal(size=(M, VECTORS)), 1e-7 * rng.normal(size=(40, M))
    probed = {"E": whitening.restore(rounding)[None], "probed_rows": np.ones(1), "rows": np.ones(1)}
    estimate = RoundingEstimate.of_probe(probed, noise, whitening)
    (_, one), (_, other) = (
        solved(moments, whitening, alpha, rotated=flag, fit_intercept=fit_intercept, estimate=estimate)
        for flag in (False, True)
    )
    assert one.ratios["solution"] < 1
    assert one.figures["effective_dof"] == pytest.approx(other.figures["effective_dof"], rel=1e-6)
    assert one.figures["solved_condition"] == pytest.approx(other.figures["solved_condition"], rel=0.9)  # other norms
    assert one.rounding == other.rounding == 0
    assert one.errors.sums == pytest.approx(other.errors.sums, rel=1e-4)
    assert one.errors.blocks == pytest.approx(other.errors.blocks, rel=1e-4)
    assert 0.1 * other.errors.solve < one.errors.solve < 10 * other.errors.solve


@pytest.mark.parametrize("sigma, alpha", [(1.0, 1e-4), (1.0, 1.0), (2.0, 1.0)])
def test_the_estimated_rounding_of_the_solve_is_near_the_true_one(sigma, alpha):
    B, moments, whitening = problem(sigma)
    whole = [np.asarray(getattr(moments, name), np.longdouble) for name in ("G", "C", "s", "t")]
    G, C, s, t = whole
    # the same moments about 0, and a solve that is refined in 80 bits
    a, n = moments.shift.astype(np.longdouble), np.longdouble(moments.n)
    G, C = G + np.outer(s, a) + np.outer(a, s) + n * np.outer(a, a), C + np.outer(a, t)
    H, exact = G + alpha * Gaussian(sigma)(X[:M]), np.zeros_like(C)
    for _ in range(40):
        exact += np.linalg.solve(H.astype(float), (C - H @ exact).astype(float))
    (coef, _, _), diagnostics = solved(
        moments, whitening, alpha, rotated=False, estimate=RoundingEstimate(np.zeros(M), None)
    )
    expected = B @ exact.astype(float)
    error = np.linalg.norm(B @ coef - expected) / np.linalg.norm(expected)
    assert error / 10 < diagnostics.errors.solve < 30 * error


@pytest.mark.parametrize("why", ["small", "zero", "negative", "ill-conditioned", "lost", "many"])
def test_moments_are_rotated_where_one_factor_does_not_serve(monkeypatch, why):
    _, moments, whitening = problem(3.0 if why == "ill-conditioned" else 1.0)
    alpha = {"small": 1e-13, "zero": 0.0, "ill-conditioned": 1e-2}.get(why, 0.1)
    if why == "negative":  # an eigenvalue of −3α/4, as rounding of sums in float32 leaves it
        values, vectors = np.linalg.eigh(centre(reduce_moments(moments, whitening), fit_intercept=True).G)
        along = whitening.restore(vectors[:, :1])
        moments = replace(moments, G=moments.G - (values[0] + 0.75 * alpha) * along @ along.T)
    if why == "lost":
        K = Gaussian(1.0)(X[:M])
        K[:, 1], K[1] = K[:, 0], K[0]
        whitening = whiten(K, warn=False)
    alpha = np.array([0.1, 0.2]) if why == "many" else alpha
    assert rotates(monkeypatch, moments, whitening, alpha, fit_intercept=why == "negative")


def test_a_solve_takes_one_matrix_of_the_size_of_the_moments():
    Z = rng.normal(size=(700, 4))
    B, whitening, one = Gaussian(1.0)(rng.normal(size=(N, 4)), Z), whiten(Gaussian(1.0)(Z), warn=False), np.ones(1)
    moments = Moments(rows=N, n=N, G=B.T @ B, C=B.T @ np.ones((N, 1)), s=B.sum(axis=0), t=one, q=one)
    _, peak = traced(lambda: nystrom_ridge(moments, whitening, 1.0, diagnostics=SolveDiagnostics()))
    assert peak < 1.6 * moments.G.nbytes


def test_products_and_solves_of_whitened_moments_are_those_of_rotated_ones():
    _, moments, whitening = problem(1.0)
    mean = moments.s / moments.n + moments.shift
    small, w = reduce_moments(moments, whitening), rng.normal(size=(M, 3))
    gram = WhitenedGram(moments, whitening, mean)
    assert len(gram) == M
    assert_allclose(gram @ w, small.G @ w, rtol=1e-8, atol=1e-8)
    factor = factorize_unrotated(gram, 0.1)
    assert_allclose(factor.solve(w), np.linalg.solve(small.G + 0.1 * np.eye(M), w), rtol=1e-6, atol=1e-8)
    assert_allclose(whitening.expand(whitening.weights(w)), w, atol=1e-9)
    assert_array_equal(factor.quadratic(gram, w) > 0, True)
