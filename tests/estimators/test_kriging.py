"""`Kriging`: the variogram of a simulated field, predictions of dense equations, blends and files."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from sklearn.model_selection import GridSearchCV, KFold, cross_validate

import bigkernel as bk
from bigkernel.errors import DataError
from bigkernel.solvers import variogram
from bigkernel.statistics.predictor import triangular_inverse

AXES = np.array([[0.8, 0.6], [-0.6, 0.8]])
RANGES, RATIO, MEAN = (0.4, 0.1), 0.05, 20.0


def correlation(h, nu):
    r = np.sqrt(2 * nu) * h
    return {0.5: 1, 1.5: 1 + r, 2.5: 1 + r + r * r / 3}[nu] * np.exp(-r)


def distances(A, B):
    u, v = ((one @ AXES.T) / RANGES for one in (A, B))
    return np.sqrt(np.square(u[:, None] - v).sum(axis=-1))


def simulate(n, nu, seed=0):
    """Return places (n, 2) and a field of variance 4 with noise of variance 0.2."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    V = 4 * (correlation(distances(X, X), nu) + RATIO * np.eye(n))
    return X, MEAN + np.linalg.cholesky(V) @ rng.standard_normal(n)


@pytest.fixture(scope="module")
def field():
    return simulate(2000, 0.5)


@pytest.fixture(scope="module")
def nested_field():
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(800, 2))
    h = np.sqrt(np.square(X[:, None] - X).sum(axis=-1))
    V = 0.4 * correlation(h / 0.02, 1.5) + 0.6 * correlation(h / 0.2, 0.5) + 1e-3 * np.eye(800)
    return X, np.linalg.cholesky(V) @ rng.standard_normal(800)


@pytest.fixture(scope="module")
def model(field):
    X, y = field
    return bk.Kriging(n_neighbors=500, random_state=0).fit(X[:1500], y[:1500])


@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_variogram_of_a_simulated_field_is_found(nu, field):
    X, y = field if nu == 0.5 else simulate(1000, nu)
    rng = np.random.RandomState(0)
    places = variogram.neighbourhoods(X, y[:, None], rng)
    found = variogram.choose_variogram(places, None, None, anisotropic=True)
    assert (found.correlation, found.trend) == (variogram.Correlation(nu), "constant")
    assert_allclose(found.ranges[1] / found.ranges[0], RANGES[1] / RANGES[0], rtol=0.3)
    assert abs(found.axes[0] @ AXES[0]) > 0.98
    # in one square sill and range are hardly told apart, but for the ratio of sill and range^2ν (Zhang 2004)
    assert_allclose(found.nugget, 0.2, rtol=0.5)
    assert_allclose((found.sill - found.nugget)[0] / found.ranges[1] ** (2 * nu), 4 / RANGES[1] ** (2 * nu), rtol=0.35)
    # the fitted curve goes through what pairs show at short lags
    short = found.lags < 1
    assert_allclose(found(found.lags[short]), found.semivariances[short], rtol=0.4)


def test_a_second_structure_of_longer_range_is_found(nested_field):
    X, y = nested_field
    places = variogram.neighbourhoods(X, y[:, None], np.random.RandomState(0))
    found = variogram.choose_variogram(places, 1.5, "constant", anisotropic=False)
    assert 0.3 < found.correlation.far < 0.9
    assert 4 < found.correlation.reach < 25


@pytest.mark.parametrize(("d", "anisotropic", "width"), [(2, True, 3), (4, True, 4), (2, False, 1)])
@pytest.mark.parametrize("trend", ["constant", "linear"])
def test_likelihood_has_the_gradient_of_its_differences(d, anisotropic, width, trend):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, d))
    y = np.sin(5 * X).sum(axis=1) + 0.1 * rng.standard_normal(300)
    places = variogram.neighbourhoods(X, np.column_stack([y, X[:, 0] + 0.1 * y]), np.random.RandomState(0))[:2]
    likelihood = variogram._Likelihood(places, trend, anisotropic)
    at = np.array([*[0.3, 0.2, -0.1, 0.1][:width], -2.0, 0.4, 1.2])
    for nu in variogram.SMOOTHNESS:
        for numbers in (at, at[:-2]):
            numeric = approx_fprime(numbers, lambda one, nu: likelihood.loss(one, nu)[0], 1e-6, nu)
            assert_allclose(likelihood.loss(numbers, nu)[1], numeric, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("trend", ["constant", "linear"])
def test_one_neighbourhood_is_kriging_by_its_equations(trend, nested, field, nested_field):
    X, y = nested_field if nested else (one[:200] for one in field)
    new = field[0][200:300]
    model = bk.Kriging(1.5, trend=trend, random_state=0).fit(X, y)
    mean, std = model.predict(new, return_std=True)
    A, ratio, found = model.variogram_.inverse_ranges, model.variogram_.ratio, model.variogram_.correlation
    assert (found.far > 0) == nested

    def rho(P, Q):
        h = np.sqrt(np.square((P @ A)[:, None] - Q @ A).sum(axis=-1))
        return (1 - found.far) * correlation(h, 1.5) + found.far * correlation(h / found.reach, 0.5)

    def columns(P):
        return np.hstack([np.ones((len(P), 1)), P][: 1 + (trend == "linear")])

    V, k, F, f = rho(X, X) + ratio * np.eye(len(X)), rho(new, X), columns(X), columns(new)
    VF, Vy = np.linalg.solve(V, F), np.linalg.solve(V, y)
    beta = np.linalg.solve(F.T @ VF, F.T @ Vy)
    # the prior of slopes is nearly flat
    assert_allclose(mean, f @ beta + k @ (Vy - VF @ beta), atol=1e-7 if trend == "constant" else 0.01)
    left = f - k @ VF
    variance = 1 + ratio - np.einsum("ij,ji->i", k, np.linalg.solve(V, k.T))
    variance += np.einsum("ij,ji->i", left, np.linalg.solve(F.T @ VF, left.T))
    assert np.std(std**2 / variance) < (1e-7 if trend == "constant" else 0.01) * np.mean(std**2 / variance)
    # of the field's deviation, without that of an observation; beyond its range nothing is known
    found = model.predict(new, return_share=True)
    assert_allclose(found[:2], (mean, std), rtol=1e-12)
    assert_allclose(found[2], np.sqrt(np.minimum(variance - ratio, 1)), atol=1e-6 if trend == "constant" else 0.01)
    assert model.predict(np.array([[1e3, 1e3]]), return_share=True)[2] == 1


@pytest.mark.parametrize("n", [1, 64, 65, 200])
def test_a_triangular_matrix_is_inverted_by_halves(n):
    L = np.tril(np.random.default_rng(0).uniform(size=(n, n))) + n * np.eye(n)
    inverse = triangular_inverse(L)
    assert_allclose(inverse @ L, np.eye(n), atol=1e-13)
    assert not np.triu(inverse, 1).any()


def test_blended_neighbourhoods_predict_nearly_as_all_rows_together(field, model):
    X, y = field
    whole = bk.Kriging(random_state=0, n_neighbors=2000).fit(X[:1500], y[:1500])
    assert len(model.leaves_) > 4 > len(whole.leaves_)
    (mean, std), (expected, of_whole) = (one.predict(X[1500:], return_std=True) for one in (model, whole))
    assert np.std(mean - expected) < 0.1 * np.std(expected - y[1500:])
    assert_allclose(std, of_whole, rtol=0.3)
    assert 0.92 < np.mean(np.abs(mean - y[1500:]) < 1.96 * std) < 0.98


def test_shares_do_not_depend_on_the_unit_and_are_variables_of_a_dataset(field):
    X, y = (one[:200] for one in field)
    lat, lon = np.linspace(-1, 2, 7), np.linspace(-1, 2, 5)
    model = bk.Kriging(0.5, trend="constant", anisotropic=False, n_neighbors=100, random_state=0)
    model.fit(pd.DataFrame(X, columns=["lat", "lon"]), np.column_stack([y, 9 - 5 * y]))
    places = np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1).reshape(-1, 2)
    found = model.predict(pd.DataFrame(places, columns=["lat", "lon"]), return_share=True)
    share = found[2]
    assert ((share >= 0) & (share <= 1)).all()
    assert_allclose(share[:, 0], share[:, 1], rtol=1e-9)
    assert share[((places < -0.4) | (places > 1.4)).any(axis=1)].min() > 0.8
    assert model.predict(pd.DataFrame(X, columns=["lat", "lon"]), return_share=True)[2].max() < 0.7
    filled = model.predict(xr.Dataset(coords={"lat": lat, "lon": lon}), return_share=True)
    assert [*filled] == [f"prediction_{i}{ending}" for ending in ("", "_std", "_share") for i in (0, 1)]
    for one, expected in zip(filled.values(), np.hstack(found).T, strict=True):
        assert_allclose(one.transpose("lat", "lon").values.ravel(), expected, rtol=1e-9, atol=1e-9)


def test_scores_of_spatial_folds_are_those_in_gaps_and_choose_the_noise():
    X, y = simulate(300, 1.5)
    model = bk.KernelRidge(bk.Matern(sigma=0.15, nu=1.5), alpha=RATIO)
    splitters = {"blocks": bk.SpatialKFold(4, size=0.25), "random": KFold(4, shuffle=True, random_state=0)}
    found = {name: cross_validate(model, X, y, cv=cv, scoring=bk.normal_scores) for name, cv in splitters.items()}
    rmse, crps = (
        {name: -np.mean(scores[f"test_neg_{score}"]) for name, scores in found.items()} for score in ("rmse", "crps")
    )
    assert rmse["random"] < 0.7 * rmse["blocks"]
    for name, scores in found.items():
        assert 0.5 < crps[name] / rmse[name] < 0.65  # 1/√π = 0.56 of a normal distribution
        assert 0.8 < np.mean(scores["test_coverage"]) <= 1
    search = GridSearchCV(model, {"alpha": [1e3, RATIO]}, cv=2, scoring=bk.normal_scores, refit="neg_crps")
    assert search.fit(X, y).best_params_["alpha"] == RATIO


def test_attributes_are_in_the_words_of_kriging(model):
    assert model.anisotropy_ == pytest.approx(model.range_[1] / model.range_[0])
    assert 0 < model.nugget_ < model.sill_
    assert model.fit_report()["trend"] == model.trend_ == "constant"


def test_a_model_from_a_file_and_one_of_dask_arrays_predict_the_same(field, model, tmp_path):
    da = pytest.importorskip("dask.array")
    X, _ = field
    expected = model.predict(X[1500:], return_std=True)
    bk.save_model(model, tmp_path / "m")
    loaded = bk.load_model(tmp_path / "m")
    assert_allclose(loaded.predict(X[1500:], return_std=True), expected, rtol=1e-12)
    assert loaded.sill_ == model.sill_
    assert_allclose(bk.Predictor.load(tmp_path / "m").predict(X[1500:]), expected[0], rtol=1e-12)
    lazy = model.predict(da.from_array(X[1500:], chunks=(200, 2)), return_std=True)
    assert_allclose(np.array([one.compute() for one in lazy]), expected, rtol=1e-9)


def test_weights_several_targets_and_a_plan(field):
    X, y = (one[:300] for one in field)
    weight = 1.0 * (np.arange(300) % 3 > 0)
    model = bk.Kriging(0.5, trend="constant", n_neighbors=100, anisotropic=False, random_state=0)
    both = bk.Kriging(**model.get_params()).fit(X, np.column_stack([y, 2 * y]), weight)
    assert_allclose(both.sill_[1] / both.sill_[0], 4, rtol=1e-6)
    assert_allclose(both.range_[0], both.range_[1])
    mean, std = both.predict(X[:20], return_std=True)
    assert_allclose(mean[:, 1], 2 * mean[:, 0], rtol=1e-9)
    assert_allclose(std[:, 1], 2 * std[:, 0], rtol=1e-6)
    # rows of weight 0 shape the variogram alone
    changed = np.where(weight > 0, y, y + 50)
    found = both.variogram_
    model._variogram = lambda *given: found
    own = model.fit(X, y, weight).predict(X[:20])
    assert_allclose(model.fit(X, changed, weight).predict(X[:20]), own, rtol=1e-9)
    assert model.plan(X, y).n_rows == 300


def test_a_line_of_places_has_a_trend_along_it(field):
    X = np.column_stack([np.linspace(0, 1, 200), np.full(200, 0.5)])
    y = 3 * X[:, 0] + 0.3 * np.sin(9 * X[:, 0]) + 0.01 * np.random.default_rng(0).normal(size=200)
    model = bk.Kriging(0.5, trend="linear", anisotropic=False, random_state=0).fit(X, y)
    assert np.isfinite(model.sill_)
    assert 0.05 < model.range_[0] < 50
    assert_allclose(model.predict(X), y, atol=0.1)


def test_too_few_rows_are_refused():
    with pytest.raises(DataError, match="whose targets differ"):
        bk.Kriging().fit(np.random.default_rng(0).uniform(size=(50, 2)), np.ones(50))
    with pytest.raises(DataError, match="expected at least 10 rows"):
        bk.Kriging().fit(np.eye(5), np.arange(5.0))
