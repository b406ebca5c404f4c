"""Fits that are inaccurate from moments are solved by QR of the rows: against ridge in 80 bits."""

import dask
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from rounding import TABLES, M, catch_warnings_of, distance, long_doubles, precise_ridge
from scipy import linalg

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, load_model, save_model
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import AccuracyWarning, RankDeficiencyWarning
from bigkernel.kernels.blas import add_rows
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.solvers.qr_ridge import Stacked
from bigkernel.solvers.whitening import whiten
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.qr import QRStatistic, select_columns, shift_columns

rng = np.random.default_rng(77)
ROWS = 700
X, y = (values[:ROWS] for values in TABLES[4])


def in_80_bits(kernel, landmarks, y, alpha, *, intercept=False, weight=None):
    """Return fitted values of ridge on the whitened rows X, in long doubles."""
    Z = landmarks[whiten(kernel(landmarks), warn=False).pivots].astype(np.longdouble)
    gamma, m = 1 / (2 * np.longdouble(kernel.sigma) ** 2), len(Z)

    def k(a):
        return np.exp(-gamma * ((a[:, None] - Z) ** 2).sum(axis=-1))

    K, phi, L = k(Z), k(X.astype(np.longdouble)), np.zeros((m, m), np.longdouble)
    for j in range(m):
        L[j, j] = np.sqrt(K[j, j] - L[j, :j] @ L[j, :j])
        L[j + 1 :, j] = (K[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j]) / L[j, j]
        phi[:, j] = (phi[:, j] - phi[:, :j] @ L[j, :j]) / L[j, j]
    return precise_ridge(phi, y, alpha, intercept=intercept, weight=weight, number=long_doubles)


@pytest.mark.parametrize("sigma, alpha, intercept, weighted", [(4.0, 1e-6, False, True), (6.0, 1e-6, True, False)])
def test_fits_by_qr_have_the_estimated_error(sigma, alpha, intercept, weighted):
    weight = rng.random(ROWS) + 0.1 if weighted else None
    model = KernelRidge(Gaussian(sigma), alpha, n_landmarks=M, fit_intercept=intercept, random_state=2)
    model.fit(X, y + 3, weight)  # warnings are errors here
    expected = in_80_bits(model.kernel_, model.landmarks_, y + 3, alpha, intercept=intercept, weight=weight)
    error, estimate = distance(model.predict(X), expected), model.diagnostics_["prediction_error"]
    assert model.fit_report()["sums"] == "qr"
    assert "QR factorisation" in model.fit_report()["sweep"]["swept_again"][-1]
    assert error < 1e-5
    assert estimate / 10 < error < 10 * estimate
    mse = np.average((model.predict(X) - y - 3) ** 2, weights=weight)
    assert_allclose(model.training_mse_, mse, rtol=1e-5)


def test_classifiers_refit_from_the_r_factor_and_add_rows_to_moments(tmp_path):
    labels = (y > y.mean()).astype(int)
    model = KernelRidgeClassifier(Gaussian(4.0), alpha=1e-6, n_landmarks=M, random_state=2).fit(X, labels)
    model.set_params(alpha=1e-4).refit()
    expected = in_80_bits(model.kernel_, model.landmarks_, np.eye(2)[labels], 1e-4)
    values = model.kernel_(X, model.landmarks_) @ model.dual_coef_ + model.intercept_
    assert distance(values, expected) < 1e-6
    save_model(model, tmp_path / "a.model")
    read = load_model(tmp_path / "a.model")
    assert_array_equal(read.predict(X), model.predict(X))
    assert_array_equal(read.refit().dual_coef_, model.dual_coef_)
    with pytest.warns(AccuracyWarning):
        model.partial_fit(X, labels)
    assert model.fit_report()["sums"] == "float64"
    with pytest.warns(AccuracyWarning):  # the fits without each fold use moments
        KernelRidgeClassifier(Gaussian(4.0), alpha=1e-6, n_landmarks=M, probability=True, random_state=2).fit(X, labels)


@pytest.mark.parametrize("sigma, alpha, intercept", [(4.0, 1e-5, False), (6.0, 1e-8, True)])
def test_deviations_come_from_the_r_factor_and_saved_ones_are_accurate_or_warn(tmp_path, sigma, alpha, intercept):
    settings = {"n_landmarks": M, "fit_intercept": intercept, "random_state": 2}
    model = KernelRidge(Gaussian(sigma), alpha, noise_variance=alpha, **settings).fit(X, y)
    assert model.fit_report()["sums"] == "qr"
    K, Z = model.kernel_, model.landmarks_
    T = whiten(K(Z), warn=False)
    phi = linalg.solve_triangular(T.factor, K(X, Z)[:, T.pivots].T, lower=True).T
    rows = np.column_stack([phi, np.ones(ROWS)]) if intercept else phi
    penalty = np.sqrt(alpha) * np.eye(len(rows.T))[: len(phi.T)]
    half = linalg.solve_triangular(np.linalg.qr(np.vstack([rows, penalty]), mode="r"), rows.T, trans="T")
    expected = np.sqrt(alpha * (half**2).sum(axis=0) + np.maximum(1 - (phi**2).sum(axis=1), 0) + alpha)
    assert distance(model.predict(X, return_std=True)[1], expected) < 1e-5
    save_model(model, tmp_path / "model")
    (_, actual), caught = catch_warnings_of(load_model(tmp_path / "model").predict, X, return_std=True)
    assert distance(actual, expected) < 1e-3 or AccuracyWarning in caught


def test_fewer_landmarks_are_solved_from_the_r_factor():
    model = KernelRidge(Gaussian(4.0), alpha=1e-6, n_landmarks=M, fit_intercept=True, random_state=2).fit(X, y)
    fewer = model.with_landmarks(M - 10)  # warnings are errors here
    expected = in_80_bits(fewer.kernel_, fewer.landmarks_, y, 1e-6, intercept=True)
    error, estimate = distance(fewer.predict(X), expected), fewer.diagnostics_["prediction_error"]
    assert fewer.fit_report()["sums"] == "qr"
    assert error < 1e-5
    assert estimate / 10 < error < 10 * estimate


def test_advice_on_inaccurate_float64_values_suggests_no_dtype():
    with pytest.warns((AccuracyWarning, RankDeficiencyWarning)) as caught:
        model = KernelRidge(Gaussian(300.0), alpha=1e-14, n_landmarks=M, random_state=2).fit(X, y)
    assert model.fit_report()["sums"] == "qr"
    (message,) = (str(one.message) for one in caught if issubclass(one.category, AccuracyWarning))
    assert "rounding error of kernel values" in message
    assert "float64'" not in message


@pytest.mark.parametrize("count", [1, 5, ROWS])
def test_the_r_factor_is_that_of_all_labelled_rows(count):
    rows, weight, target = X[:count], rng.random(count) + 0.1, y[:count].copy()
    target[2::3] = np.nan
    shift = X.mean(axis=0)
    statistic = QRStatistic(IdentityMap(shift), Targets(1, shift=np.array([1.0])))
    with dask.config.set({"bigkernel.chunk-bytes": 1024, "bigkernel.min-segments": 5, "bigkernel.block-rows": 9}):
        swept = sweep(as_rows(rows, target, weight=weight), statistic, client="serial")
        held = sum(values.nbytes for values in swept.total.values())
        assert plan_sweep(as_rows(rows, target, weight=weight), statistic).partial_bytes == held
    R, known = swept.total["R"], ~np.isnan(target)
    A = np.column_stack([np.ones(count), rows, target])[known] * np.sqrt(weight[known, None])
    centred = A - np.sqrt(weight[known, None]) * np.concatenate([[0], shift, [1]])
    assert swept.total["rows"] == known.sum()
    assert_array_equal(R, np.triu(R))
    assert (np.diagonal(R) >= 0).all()
    assert_allclose(R.T @ R, centred.T @ centred, atol=1e-12 * np.abs(centred.T @ centred).max())
    for actual, expected in (
        (shift_columns(R, shift, np.array([1.0])), A),
        (select_columns(R, np.array([0, 3]), 4), centred[:, [0, 1, 4, 5]]),
        (add_rows(R, R, triangular=True), np.vstack([centred, centred])),
    ):
        assert_allclose(actual.T @ actual, expected.T @ expected, atol=1e-12 * np.abs(expected.T @ expected).max())


def test_a_singular_r_factor_without_a_penalty_gives_the_solution_of_least_norm():
    F = rng.normal(size=(9, 4)) @ rng.normal(size=(4, 6))
    Y = rng.normal(size=(9, 2))
    stacked = Stacked.of(F, Y, 0.0)
    assert_allclose(stacked.w, np.linalg.lstsq(F, Y, rcond=1e-12)[0], atol=1e-12)
    assert_allclose(stacked.inverse(np.eye(6)), np.linalg.pinv(F.T @ F, rcond=1e-12), rtol=1e-8, atol=1e-10)
