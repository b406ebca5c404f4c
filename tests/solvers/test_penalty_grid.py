"""Candidates from moments against ridge on the rows themselves: coordinates, weights and errors of any settings."""

from dataclasses import replace

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from peers import moments_of

from bigkernel.solvers import penalty_grid
from bigkernel.solvers.penalty_grid import Coordinates, SolveSettings, squared_errors, total_spread
from bigkernel.solvers.ridge import RoundingEstimate
from bigkernel.solvers.whitening import whiten

rng = np.random.default_rng(31)
N, P, C = 70, 6, 2
PHI = rng.normal(size=(N, P)) @ np.diag([3, 2, 1, 1, 0.5, 0.2]) + 0.5
Y = PHI @ rng.normal(size=(P, C)) + rng.normal(size=(N, C)) + 2
WEIGHT = np.where(rng.uniform(size=N) > 0.1, rng.uniform(0, 2, N), 0)
X = rng.normal(size=(N, 3))
Z = X[:12] + 0.02
B, CORE = reference.gaussian(X, Z, 0.8), reference.gaussian(Z, Z, 0.8)


def candidates(*given, **options):
    weights, intercepts, errors = zip(*penalty_grid.candidates(*given, **options), strict=True)
    return np.array(weights), np.array(intercepts), list(errors)


def squares(values, Y, weight=None):
    return ((1.0 if weight is None else weight[:, None]) * (Y - values) ** 2).sum(axis=0)


GRID = [
    SolveSettings(alpha, flag, s) for alpha in (1e-3, 1.0, 1e3) for flag in (False, True) for s in (None, 1, 3, P, 50)
]


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
def test_every_candidate_is_ridge_on_its_first_coordinates(weight):
    weights, intercepts, _ = candidates(moments_of(PHI, Y, weight), GRID)
    assert (weights.shape, intercepts.shape) == ((len(GRID), P, C), (len(GRID), C))
    for place, settings in enumerate(GRID):
        s = min(P, settings.n_components or P)
        coef, b = reference.ridge(PHI[:, :s], Y, settings.alpha, settings.fit_intercept, weight)
        assert_allclose(weights[place, :s], coef, rtol=1e-9, atol=1e-10)
        assert_array_equal(weights[place, s:], 0)
        assert_allclose(intercepts[place], b, rtol=1e-9, atol=1e-10)


def test_a_candidate_does_not_depend_on_its_neighbours():
    alone = [candidates(moments_of(PHI, Y), [settings]) for settings in GRID]
    weights, intercepts, _ = candidates(moments_of(PHI, Y), GRID)
    for place, (w, b, _) in enumerate(alone):
        assert_array_equal(weights[place], w[0])
        assert_array_equal(intercepts[place], b[0])


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_without_a_penalty_dependent_columns_give_the_least_norm(fit_intercept):
    twice = np.hstack([PHI[:, :2], PHI[:, :2]])
    weights, intercepts, _ = candidates(moments_of(twice, Y), [SolveSettings(0.0, fit_intercept)])
    coef, b = reference.ridge(twice, Y, 0.0, fit_intercept)
    assert_allclose(weights[0], coef, rtol=1e-8, atol=1e-9)
    assert_allclose(intercepts[0], b, rtol=1e-8, atol=1e-9)


def test_no_coordinates_leave_the_mean_or_nothing():
    empty = moments_of(np.zeros((N, 0)), Y)
    weights, intercepts, _ = candidates(empty, [SolveSettings(1.0, True), SolveSettings(1.0, False)])
    assert weights.shape == (2, 0, C)
    assert_allclose(intercepts, [Y.mean(axis=0), [0, 0]])
    assert_allclose(squared_errors(empty, weights, intercepts), [squares(Y.mean(axis=0), Y), squares(0, Y)], rtol=1e-12)


@given(seed=st.integers(0, 99), k=st.integers(1, 4), n=st.integers(0, 40), c=st.integers(1, 3), weighted=st.booleans())
def test_errors_of_any_weights_are_those_of_the_residuals(seed, k, n, c, weighted):
    rng = np.random.default_rng(seed)
    Phi, Y = rng.normal(size=(n, P)), rng.normal(size=(n, c)) + 1
    weight = rng.uniform(0, 2, n) if weighted else None
    weights, intercepts = rng.normal(size=(k, P, c)), rng.normal(size=(k, c))
    tested = moments_of(Phi, Y, weight)
    result = squared_errors(tested, weights, intercepts)
    expected = np.array([squares(Phi @ w + b, Y, weight) for w, b in zip(weights, intercepts, strict=True)]).reshape(
        k, c
    )
    assert result.shape == (k, c)
    assert_allclose(result, expected, rtol=1e-10, atol=1e-11 * max(1.0, float(np.max(tested.q, initial=0))))
    w = np.ones(n) if weight is None else weight
    mean = w @ Y / max(w.sum(), 1e-300)
    assert_allclose(total_spread(tested), squares(mean, Y, weight), rtol=1e-9, atol=1e-11)


def test_squared_errors_of_a_perfect_fit_are_zero_and_not_negative():
    w = rng.normal(size=(P, C))
    result = squared_errors(moments_of(PHI, PHI @ w + 7), w[None], np.full((1, C), 7.0))
    assert (result >= 0).all()
    assert result.max() < 1e-9


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
def test_constant_targets_have_no_spread_at_all_and_those_that_hardly_vary_have_theirs(weight):
    for constant in (0.0, 1 / 3, -1e9):
        assert_array_equal(total_spread(moments_of(PHI, np.full((N, 1), constant), weight)), 0)
    target = 10 + 1e-3 * rng.normal(size=(N, 1))
    assert_allclose(total_spread(moments_of(PHI, target)), N * target.var(), rtol=1e-6)


FORMS = {
    "rows": (Coordinates(), lambda: PHI),
    "whitened": (Coordinates(whiten(CORE)), lambda: B),
    "basis": (Coordinates(basis=rng.normal(size=(P, 4))), lambda: PHI),
    "whitened, with a basis": (Coordinates(whiten(CORE), rng.normal(size=(12, 5))), lambda: B),
}


@pytest.mark.parametrize("coordinates, rows", FORMS.values(), ids=FORMS)
def test_reducing_moments_is_reducing_rows(coordinates, rows):
    Phi = rows()
    size = coordinates.reduce(moments_of(Phi, Y)).G.shape[0]
    T = coordinates.expand(np.eye(size))  # what takes the columns of the map to coordinates
    result, dense = coordinates.reduce(moments_of(Phi, Y, WEIGHT)), moments_of(Phi @ T, Y, WEIGHT)
    for name in ("G", "C", "s", "t", "q", "n", "rows"):
        expected = getattr(dense, name)
        assert_allclose(getattr(result, name), expected, rtol=1e-8, atol=1e-8 * np.max(np.abs(expected)), err_msg=name)
    if not (coordinates.whitening is None and coordinates.basis is None):
        assert_array_equal(result.G, result.G.T)


@pytest.mark.parametrize("noisy", [False, True], ids=["sums", "blocks"])
def test_one_decomposition_gives_the_weights_and_errors_of_a_factor_for_each_penalty(noisy):
    draw = np.random.default_rng(5)
    wide = draw.normal(size=(200, 40)) * np.geomspace(1, 1e-4, 40)
    targets = wide @ draw.normal(size=(40, 3)) + 0.1 * draw.normal(size=(200, 3))
    sums, solve, blocks = 1e-9 * draw.uniform(size=(3, 40)) * np.geomspace(1, 1e-5, 40)
    known = RoundingEstimate(sums, blocks, solve=solve, rows=200.0)
    known = known if noisy else replace(known, blocks=None)
    # the first two are lost in rounding, and are solved as ever
    alphas = [0.0, 1e-15, *np.geomspace(1e-8, 1e3, 8)]
    several = SolveSettings(np.array([1e-6, 1e-2, 1e-6]), fit_intercept=True)
    grid = [SolveSettings(float(alpha), flag) for alpha in alphas for flag in (False, True)] + [several]
    moments = moments_of(wide, targets)
    weights, intercepts, errors = candidates(moments, grid, estimate=known)
    result, constants, shared_errors = candidates(moments, grid, estimate=known, shared=True)
    values = np.einsum("nr,krc->knc", wide, weights)
    assert_allclose(np.einsum("nr,krc->knc", wide, result), values, rtol=0, atol=1e-9 * np.abs(values).max())
    assert_allclose(constants, intercepts, rtol=1e-8, atol=1e-9)
    for one, other in zip(shared_errors, errors, strict=True):
        assert_allclose(list(one.figures().values()), list(other.figures().values()), rtol=1e-4)
    for flag in (False, True):  # and the direct one is right
        coef, _ = reference.ridge(wide, targets, alphas[5], flag)
        assert_allclose(result[2 * 5 + flag], coef, rtol=1e-6, atol=1e-9)
    assert_array_equal(candidates(moments, grid[6:7], estimate=known, shared=True)[0][0], result[6])


@pytest.mark.parametrize("seed", range(4))
def test_estimated_errors_are_near_the_true_ones_where_rounding_exceeds_the_penalty(seed):
    draw, r = np.random.default_rng(seed), 40
    basis, _ = np.linalg.qr(draw.normal(size=(r, r)))
    rows = draw.normal(size=(200, r)) * np.geomspace(1, 1e-6, r) @ basis.T
    targets = rows @ draw.normal(size=(r, 1)) + draw.choice([0.01, 1.0]) * draw.normal(size=(200, 1))
    sums, solve, blocks = 1e-9 * draw.uniform(0.1, 1, (3, r)) * np.geomspace(1, 1e3, r)
    half = np.sqrt((sums + solve) / np.sqrt((sums + solve).sum()))
    E, moments = np.triu(draw.normal(size=(r, r))) * np.outer(half, half), moments_of(rows, targets)
    moments = replace(moments, G=moments.G + E + np.triu(E, 1).T)
    known = RoundingEstimate(sums, None, solve=solve, rows=200.0)
    grid = [SolveSettings(alpha) for alpha in np.geomspace(1e-8, 1, 9)]
    weights, _, errors = candidates(moments, grid, estimate=known)
    for settings, w, error in zip(grid, weights, errors, strict=True):
        expected = rows @ reference.ridge(rows, targets, settings.alpha)[0]
        off = np.linalg.norm(rows @ w - expected) / np.linalg.norm(expected)
        assert 0.5 * off < error.total < 30 * off
    for noise in (known, replace(known, blocks=1e-3 * blocks)):  # by one decomposition as by a factor for each penalty
        both = [candidates(moments, grid, estimate=noise, shared=shared)[2] for shared in (False, True)]
        for one, other in zip(*both, strict=True):
            assert_allclose(list(one.figures().values()), list(other.figures().values()), rtol=1e-4)
