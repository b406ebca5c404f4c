"""LinearRegression and Ridge against scikit-learn's: weights, offsets, dependent columns, bytes, more rows."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn import linear_model

from bigkernel import LinearRegression, Ridge
from bigkernel.errors import AccuracyWarning

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
def test_coefficients_are_those_of_scikit_learn(ours, theirs, params, fit_intercept, target, weight):
    model = ours(**params, fit_intercept=fit_intercept).fit(X, target, weight)
    wanted = theirs(**params, fit_intercept=fit_intercept).fit(X, target, weight)
    assert model.coef_.shape == ((D,) if target.ndim == 1 else (target.shape[1], D))
    assert model.predict(X).shape == target.shape
    # for one column of targets scikit-learn's Ridge drops an axis, ours never does
    assert_allclose(model.coef_, np.reshape(wanted.coef_, model.coef_.shape), atol=1e-10)
    assert_allclose(model.intercept_, wanted.intercept_, atol=1e-10)
    assert_allclose(model.predict(X), wanted.predict(X).reshape(target.shape), atol=1e-10)
    assert model.score(X, target, weight) == pytest.approx(wanted.score(X, target, weight), abs=1e-10)


def right(rows, y, alpha, fit_intercept):
    """Fitted values and squared error of ridge by QR of columns of unit length, in 80 bits: nothing is squared."""
    A = np.hstack([rows, np.ones((len(rows), int(fit_intercept)))]).astype(np.longdouble)
    penalty = np.sqrt(np.longdouble(alpha)) * np.eye(A.shape[1])
    penalty[rows.shape[1] :] = 0
    tall, rest = np.vstack([A, penalty]), np.concatenate([y, np.zeros(len(penalty))]).astype(np.longdouble)
    tall /= np.sqrt((tall**2).sum(axis=0))
    for _ in range(2):  # modified Gram-Schmidt, twice
        for k in range(tall.shape[1]):
            tall[:, k] /= np.sqrt((tall[:, k] ** 2).sum())
            tall[:, k + 1 :] -= np.outer(tall[:, k], tall[:, k] @ tall[:, k + 1 :])
    fitted = (tall @ (tall.T @ rest))[: len(rows)]
    return fitted.astype(float), float(((y - fitted) ** 2).sum())


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("units", [np.ones(D), 10.0 ** np.arange(-4, 6, 2)], ids=["one unit", "several"])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_neither_offsets_nor_units_drop_a_direction(offset, units, fit_intercept, alpha):
    rows = (X + offset * np.array([1, -1, 2, 0, 1])) * units
    model = Ridge(alpha, fit_intercept=fit_intercept).fit(rows, y)
    wanted, error = right(rows, y, alpha, fit_intercept)
    assert np.linalg.norm(model.predict(rows) - wanted) <= 1e-8 * np.linalg.norm(y)
    assert_allclose(model.training_mse_ * N, error, rtol=1e-7)
    assert model.diagnostics_["prediction_error"] < 1e-12


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("larger", [1e4, 1e8, 1e12])
def test_rows_that_one_row_hides_are_right_or_told_of(larger, alpha, fit_intercept):
    rows = np.vstack([larger * X[:1], X[1:60]])
    wanted, _ = right(rows, y[:60], alpha, fit_intercept)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = Ridge(alpha=alpha, fit_intercept=fit_intercept).fit(rows, y[:60])
    error = np.linalg.norm(model.predict(rows) - wanted) / np.linalg.norm(wanted)
    estimate = model.fit_report()["diagnostics"]["prediction_error"]
    assert error < 1e-3 or [one.category for one in told] == [AccuracyWarning]
    assert error < 4 * estimate or error < 1e-10
    assert (larger > 1e7) == (model.fit_report()["sums"] == "qr")
    with warnings.catch_warnings(record=True) as told:  # in parts, from moments alone
        warnings.simplefilter("always")
        model = Ridge(alpha=alpha, fit_intercept=fit_intercept).partial_fit(rows[1:], y[1:60])
        model.partial_fit(rows[:1], y[:1])
    error = np.linalg.norm(model.predict(rows) - wanted) / np.linalg.norm(wanted)
    assert error < 1e-3 or [one.category for one in told] == [AccuracyWarning]
    assert (larger > 1e7) == bool(told)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_columns_that_do_depend_on_others_are_no_reason_to_warn(fit_intercept, dtype):
    many = rng.integers(-50, 50, size=(300, 20)).astype(dtype)
    kinds = np.eye(4, dtype=dtype)[rng.integers(0, 4, 300)]
    rows = np.hstack([many, many[:, :3], many @ rng.integers(-2, 3, size=(20, 3)).astype(dtype), kinds])
    for x in (rows, rows[:20]):
        target = 1e3 + x[:, 0] + rng.normal(size=len(x))
        model = LinearRegression(fit_intercept=fit_intercept).fit(x, target)
        assert model.fit_report()["diagnostics"]["prediction_error"] < 1e-9


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float16, np.float32])
def test_rows_of_every_number_type_count_at_full_precision(dtype):
    rows = rng.integers(0, 100, (N, D)).astype(dtype)
    model = Ridge(2.0).fit(rows, Y)
    wanted = linear_model.Ridge(2.0).fit(rows.astype(float), Y)
    assert_allclose(model.coef_, wanted.coef_, atol=1e-10)
    assert_allclose(model.predict(rows), wanted.predict(rows.astype(float)), atol=1e-9)


def test_training_error_is_that_of_the_residuals_and_keeps_its_digits_on_a_high_level_of_the_targets():
    model = Ridge(2.0).fit(X, Y, WEIGHT)
    assert_allclose(model.training_mse_, np.average((model.predict(X) - Y) ** 2, axis=0, weights=WEIGHT), rtol=1e-9)
    near, far = Ridge(2.0).fit(X, 0.1 * Y), Ridge(2.0).fit(X, 1e6 + 0.1 * Y)
    assert_allclose(far.training_mse_, near.training_mse_, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e7])
def test_a_constant_column_in_any_unit_meets_the_mean(unit):
    rows = np.column_stack([X[:, 0], np.full(N, unit)])
    model = LinearRegression(fit_intercept=False).fit(rows, 2 * X[:, 0] + 5)
    assert_allclose(model.coef_ * [1, unit], [2, 5], rtol=1e-9)
    assert_allclose(LinearRegression(fit_intercept=False).fit([[unit]], [4.0]).coef_ * unit, 4)


@pytest.mark.parametrize("offset", [1e6, 1e8])
def test_gcv_chooses_the_same_penalty_whatever_the_offset(offset):
    near, far = Ridge("gcv").fit(X, y), Ridge("gcv").fit(X + offset, y)
    assert far.alpha_ == pytest.approx(near.alpha_, rel=1e-4)
