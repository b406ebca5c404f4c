"""LinearRegression and Ridge against scikit-learn and 45 digits: weights, offsets, dependent columns, dtypes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from peers import peer, split_scores
from rounding import catch_warnings_of, precise_ridge
from sklearn import linear_model
from sklearn.model_selection import KFold

from bigkernel import LinearRegression, Ridge, SweepSearchCV, load_model, save_model
from bigkernel.errors import AccuracyWarning, ConfigError, DataError
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(20101231)
N, D = 130, 5
X = rng.normal(size=(N, D))
Y = X @ rng.normal(size=(D, 2)) + 0.3 * rng.normal(size=(N, 2)) + 4
y = Y[:, 0]
WEIGHT = rng.uniform(0, 2, N)

pytestmark = pytest.mark.usefixtures("small_steps")
PAIRS = {
    "least squares": (LinearRegression, linear_model.LinearRegression, {}),
    "ridge": (Ridge, linear_model.Ridge, {"alpha": 3.0}),
}
both = pytest.mark.parametrize("ours, theirs, params", PAIRS.values(), ids=PAIRS)


@pytest.mark.parametrize("target, weight", [(y, WEIGHT), (Y, None), (Y[:, :1], WEIGHT)], ids=["y", "Y", "column"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@both
def test_coefficients_match_scikit_learn(ours, theirs, params, fit_intercept, target, weight):
    model = ours(**params, fit_intercept=fit_intercept).fit(X, target, weight)
    expected = theirs(**params, fit_intercept=fit_intercept).fit(X, target, weight)
    assert model.coef_.shape == ((D,) if target.ndim == 1 else (target.shape[1], D))
    assert model.predict(X).shape == target.shape
    # Ridge of scikit-learn drops the axis of a single column of targets
    assert_allclose(model.coef_, np.reshape(expected.coef_, model.coef_.shape), atol=1e-10)
    assert_allclose(model.intercept_, expected.intercept_, atol=1e-10)
    assert_allclose(model.predict(X), expected.predict(X).reshape(target.shape), atol=1e-10)
    assert model.score(X, target, weight) == pytest.approx(expected.score(X, target, weight), abs=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("units", [np.ones(D), 10.0 ** np.arange(-4, 6, 2)], ids=["one unit", "several"])
@pytest.mark.parametrize("offset", [0.0, 1e5, 1e8])
def test_offsets_and_units_cost_no_accuracy(offset, units, fit_intercept, alpha):
    rows = (X + offset * np.array([1, -1, 2, 0, 1])) * units
    model = Ridge(alpha, fit_intercept=fit_intercept).fit(rows, y)
    expected = precise_ridge(rows, y, alpha, intercept=fit_intercept)
    assert np.linalg.norm(model.predict(rows) - expected) <= 1e-8 * np.linalg.norm(y)
    assert_allclose(model.training_mse_, ((y - expected) ** 2).mean(), rtol=1e-7)
    assert model.diagnostics_["prediction_error"] < 1e-12
    assert model.fit_report()["sums"] == "float64"


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("larger", [1e4, 1e8, 1e12])
def test_rows_dominated_by_one_row_are_fitted_accurately_or_warn(larger, alpha, fit_intercept):
    rows = np.vstack([larger * X[:1], X[1:60]])
    expected = precise_ridge(rows, y[:60], alpha, intercept=fit_intercept)
    model, caught = catch_warnings_of(Ridge(alpha=alpha, fit_intercept=fit_intercept).fit, rows, y[:60])
    error = np.linalg.norm(model.predict(rows) - expected) / np.linalg.norm(expected)
    estimate = model.fit_report()["diagnostics"]["prediction_error"]
    assert error < 1e-3 or caught == [AccuracyWarning]
    assert error < 4 * estimate or error < 1e-10
    assert (larger > 1e7) == (model.fit_report()["sums"] == "qr")
    # partial fits are solved from moments
    model = Ridge(alpha=alpha, fit_intercept=fit_intercept).partial_fit(rows[1:], y[1:60])
    _, caught = catch_warnings_of(model.partial_fit, rows[:1], y[:1])
    error = np.linalg.norm(model.predict(rows) - expected) / np.linalg.norm(expected)
    assert error < 1e-3 or caught == [AccuracyWarning]
    assert (larger > 1e7) == bool(caught)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_dependent_columns_do_not_warn(fit_intercept, dtype):
    many = rng.integers(-50, 50, size=(300, 20)).astype(dtype)
    kinds = np.eye(4, dtype=dtype)[rng.integers(0, 4, 300)]
    rows = np.hstack([many, many[:, :3], many @ rng.integers(-2, 3, size=(20, 3)).astype(dtype), kinds])
    for x in (rows, rows[:20]):
        target = 1e3 + x[:, 0] + rng.normal(size=len(x))
        model = LinearRegression(fit_intercept=fit_intercept).fit(x, target)
        assert model.fit_report()["diagnostics"]["prediction_error"] < 1e-9


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float16, np.float32])
def test_rows_of_every_dtype_are_fitted_in_full_precision(dtype):
    rows = rng.integers(0, 100, (N, D)).astype(dtype)
    model = Ridge(2.0).fit(rows, Y)
    expected = linear_model.Ridge(2.0).fit(rows.astype(float), Y)
    assert_allclose(model.coef_, expected.coef_, atol=1e-10)
    assert_allclose(model.predict(rows), expected.predict(rows.astype(float)), atol=1e-9)


def test_training_error_matches_the_residuals_despite_an_offset():
    model = Ridge(2.0).fit(X, Y, WEIGHT)
    assert_allclose(model.training_mse_, np.average((model.predict(X) - Y) ** 2, axis=0, weights=WEIGHT), rtol=1e-9)
    near, far = Ridge(2.0).fit(X, 0.1 * Y), Ridge(2.0).fit(X, 1e6 + 0.1 * Y)
    assert_allclose(far.training_mse_, near.training_mse_, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e7])
def test_a_constant_column_in_any_unit_fits_the_mean(unit):
    rows = np.column_stack([X[:, 0], np.full(N, unit)])
    model = LinearRegression(fit_intercept=False).fit(rows, 2 * X[:, 0] + 5)
    assert_allclose(model.coef_ * [1, unit], [2, 5], rtol=1e-9)
    assert_allclose(LinearRegression(fit_intercept=False).fit([[unit]], [4.0]).coef_ * unit, 4)


@pytest.mark.parametrize("offset", [1e6, 1e8])
def test_an_offset_does_not_change_the_penalty_of_gcv(offset):
    near, far = Ridge("gcv").fit(X, y), Ridge("gcv").fit(X + offset, y)
    assert far.alpha_ == pytest.approx(near.alpha_, rel=1e-4)


BANDS, BAND_WEIGHTS = np.array(["b", "a", "b", "a", "a"]), rng.dirichlet([1, 1], 6)
NUMBER = (BANDS == "b") * 1


@pytest.mark.parametrize("larger", [1.0, 1e8], ids=["moments", "qr"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weights", [[0.3, 0.7], [1.0, 0.0], [1e-6, 4.0]])
def test_bands_are_columns_times_the_roots_of_their_weights(weights, fit_intercept, larger, tmp_path):
    rows, scale = np.vstack([larger * X[:1], X[1:]]), np.sqrt(weights)[NUMBER]
    model = Ridge(2.0, bands=BANDS, band_weights=weights, fit_intercept=fit_intercept).fit(rows, Y)
    expected = Ridge(2.0, fit_intercept=fit_intercept).fit(rows * scale, Y)
    assert_allclose(model.predict(X), expected.predict(X * scale), atol=1e-9 if larger == 1 else 1e-5)
    assert_allclose(model.training_mse_, expected.training_mse_, rtol=1e-5)
    assert model.fit_report()["sums"] == expected.fit_report()["sums"]
    save_model(model, tmp_path / "m")
    assert_allclose(load_model(tmp_path / "m").band_weights_, weights)
    rows, more = np.vstack([X, X]), np.vstack([Y, Y])
    twice = Ridge(4.0, bands=BANDS, band_weights=weights, fit_intercept=fit_intercept).fit(X, Y).partial_fit(X, Y)
    assert_allclose(
        twice.predict(X), Ridge(4.0, fit_intercept=fit_intercept).fit(rows * scale, more).predict(X * scale)
    )


@pytest.mark.parametrize("rule", ["cv", "cv-per-target"])
def test_folds_choose_the_weights_of_bands(rule):
    many = np.column_stack([X @ [9, 0, 9, 0, 0], X @ [0, 9, 0, 9, 9]]) + 9 * rng.normal(size=(N, 2))
    model = Ridge(rule, bands=BANDS, band_weights=BAND_WEIGHTS).fit(X, many)
    fold = HeldOutFolds(FOLDS - 1).of(Chunk(X)) % FOLDS
    errors = np.zeros((len(BAND_WEIGHTS), 2))
    alphas = []
    for place, weights in enumerate(BAND_WEIGHTS):
        rows = X * np.sqrt(weights)[NUMBER]
        alphas.append(np.broadcast_to(Ridge(rule).fit(rows, many).alpha_, 2))
        for held in range(FOLDS):
            dense = linear_model.Ridge(alphas[-1]).fit(rows[fold != held], many[fold != held])
            left = ((dense.predict(rows[fold == held]) - many[fold == held]) ** 2).mean(axis=0)
            errors[place] += (fold == held).mean() * left / many[fold != held].var(axis=0)
    best = errors.argmin(axis=0) if rule == "cv-per-target" else np.repeat(errors.sum(axis=1).argmin(), 2)
    assert_allclose(np.broadcast_to(model.band_weights_, (2, 2)), BAND_WEIGHTS[best])
    assert_allclose(np.broadcast_to(model.alpha_, 2), np.array(alphas)[best, [0, 1]])
    for k, place in enumerate(best):
        scale = np.sqrt(BAND_WEIGHTS[place])[NUMBER]
        dense = linear_model.Ridge(alphas[place][k]).fit(X * scale, many[:, k])
        assert_allclose(model.predict(X)[:, k], dense.predict(X * scale), atol=1e-9)


def test_a_search_compares_bands_and_their_weights_from_one_sweep():
    cv, grid = KFold(3, shuffle=True, random_state=0), {"band_weights": list(BAND_WEIGHTS[:3]), "alpha": [0.1, 10.0]}
    grid["bands"], model = [BANDS, BANDS[::-1]], Ridge()
    ours, theirs = SweepSearchCV(model, grid, cv=cv).fit(X, Y), peer(model, grid, X, Y, cv=cv)
    assert ours.plan_.count == 1
    assert_allclose(split_scores(ours), split_scores(theirs), atol=1e-10)
    assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-10)


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"bands": [0, 1], "band_weights": [1, 1]}, DataError, r"band of each of 5 columns, found shape \(2,\)"),
        ({"bands": BANDS[:, None], "band_weights": [1, 1]}, DataError, r"found shape \(5, 1\)"),
        ({"bands": BANDS}, ConfigError, "both or neither, found only bands"),
        ({"band_weights": [1, 2]}, ConfigError, "both or neither, found only band_weights"),
        ({"bands": BANDS, "band_weights": [[0, 0], [1, 1]], "alpha": "cv"}, ConfigError, "of 2 bands, not all 0"),
        ({"bands": BANDS, "band_weights": np.ones((0, 2)), "alpha": "cv"}, ConfigError, "weights ≥ 0 of 2 bands"),
        ({"bands": BANDS, "band_weights": [1, 2, 3]}, ConfigError, "weights ≥ 0 of 2 bands"),
        ({"bands": BANDS, "band_weights": [1, -1]}, ConfigError, "weights ≥ 0 of 2 bands"),
        ({"bands": BANDS, "band_weights": BAND_WEIGHTS}, ConfigError, "or rows with 'cv'"),
    ],
)
def test_invalid_bands_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        Ridge(**settings).fit(X, Y)
    with pytest.raises(DataError, match="band of each of 5 columns, found shape"):
        Ridge().fit(X, Y).set_params(bands=[0, 1], band_weights=[1, 1]).refit()
    with pytest.raises(ConfigError, match="one weight of each band in a search"):
        SweepSearchCV(Ridge(bands=BANDS), {"band_weights": [BAND_WEIGHTS], "alpha": ["cv"]}).fit(X, Y)
