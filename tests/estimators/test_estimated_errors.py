"""Estimated errors of methods without a formula are near the true ones, and every inaccurate fit warns.

The true error is that to the same fit in float64 blocks, and for SSSL to a singular value decomposition.
"""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from reference import ridge
from rounding import catch_warnings_of
from sklearn.base import clone
from sklearn.datasets import load_digits

from bigkernel import (
    DICA,
    JDA,
    SSSL,
    XNV,
    ARTLClassifier,
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    Polynomial,
    SweepSearchCV,
)
from bigkernel.errors import AccuracyWarning, DataError, RankDeficiencyWarning
from bigkernel.estimators.base import restore
from bigkernel.estimators.fit import method
from bigkernel.estimators.fit.deviations import posterior_of_sums
from bigkernel.estimators.fit.method import record, solve, sum_up
from bigkernel.estimators.fit.precision import estimate_errors, next_precision
from bigkernel.estimators.inputs.checks import solving
from bigkernel.solvers.residuals import ENOUGH, PROMISE

rng = np.random.default_rng(5)
N, M = 1500, 80
X = rng.normal(size=(N, 6)).astype(np.float32)
DOMAIN = (rng.random(N) < 0.4).astype(int)
X[DOMAIN == 1] += 0.5
CLASS = (np.sin(X[:, 0]) + X[:, 1] > 0).astype(int)
NUMBER = np.where(rng.random(N) < 0.2, np.sin(2 * X[:, 0]) + X[:, 1] ** 2, np.nan)
SOURCE = np.where(DOMAIN == 0, CLASS, -1)
Z = X[:M]
METHODS = {
    "SSSL": (SSSL(n_components=30, manifold=0), (X, NUMBER)),
    "SSSL of the core": (SSSL(n_components=30, manifold=0, eigenfunctions="landmarks"), (X, NUMBER)),
    "SSSL of a graph": (SSSL(n_components=30), (X, NUMBER)),
    "XNV": (XNV(), (X, NUMBER)),
    "DICA": (DICA(n_components=8), (X, CLASS, DOMAIN)),
    "UDICA": (DICA(n_components=8, supervised=False), (X, CLASS, DOMAIN)),
    "JDA": (JDA(n_components=20, n_rounds=0), (X, SOURCE, DOMAIN)),
    "ARTL": (ARTLClassifier(n_rounds=0), (X, SOURCE, DOMAIN)),
    "with a round": (ARTLClassifier(n_rounds=1), (X, SOURCE, DOMAIN)),
}
of_methods = pytest.mark.parametrize("name", METHODS)


@cache
def fitted(name, sigma, alpha, dtype="auto", count=N):
    """Return the fit, and whether it warned."""
    model, given = METHODS[name]
    model = type(model)(**model.get_params())
    model.set_params(kernel=Gaussian(sigma), alpha=alpha, landmarks=Z, dtype=dtype)
    given = [column[:count] for column in given]
    _, caught = catch_warnings_of(model.fit, *given)
    return model, bool({AccuracyWarning, RankDeficiencyWarning} & set(caught))


def values(model):
    """Return f or components of the rows, from kernel values in float64."""
    first = model.landmarks_[: len(model.dual_coef_)]
    coef = model.dual_coef_.reshape(len(first), -1)
    return model.kernel_(X.astype(float), first) @ coef + model.intercept_


def distance(model, exact):
    """Return the distance of the predictions of two models, relative to their norm."""
    F, R = values(model), values(exact)
    wide = max(F.shape[1], R.shape[1])
    F, R = (np.pad(one, ((0, 0), (0, wide - one.shape[1]))) for one in (F, R))
    if model._method().rotates:
        left, _, right = np.linalg.svd(R.T @ F, full_matrices=False)
        F = F @ (left @ right).T
    return np.linalg.norm(F - R) / np.linalg.norm(R)


def fit_in_float32(model, *given):
    """Fit to sums in float32 before another precision is tried; return them, the whitening and the estimated error."""
    model.check_parameters()
    method, data = model._method(), model._read_fit(*given, *[None] * (4 - len(given)))
    basis = replace(model._columns().choose(data.rows), dtype="float32")
    whitening = basis.whitening(solves=method.whitens)
    problem = sum_up(method, data, basis, whitening)[0]
    solved = solve(method, problem, whitening)
    restore(model, data.inputs, record(method, solved, sweep={}, skipped_rows=0))
    return problem, whitening, solved.diagnostics.errors.total


@cache
def float32_estimate(name, sigma, alpha):
    """Return the estimated error of the sums in float32, and their model."""
    model, given = METHODS[name]
    model = type(model)(**model.get_params()).set_params(kernel=Gaussian(sigma), alpha=alpha, landmarks=Z)
    return fit_in_float32(model, *given)[2], model


@of_methods
@pytest.mark.parametrize("sigma", [1.0, 5.0])
def test_predictions_keep_the_promise_or_warn(name, sigma):
    alpha = 1e-6 if sigma == 1 else 1.0
    model, warned = fitted(name, sigma, alpha)
    exact, _ = fitted(name, sigma, alpha, dtype="float64")
    assert warned or distance(model, exact) <= PROMISE
    assert model.diagnostics_["prediction_error"] > 0


@pytest.mark.parametrize("name", [name for name in METHODS if name != "with a round"])
@pytest.mark.filterwarnings(
    "ignore::bigkernel.errors.AccuracyWarning", "ignore::bigkernel.errors.RankDeficiencyWarning"
)
def test_estimated_errors_of_float32_sums_are_near_the_true_ones(name):
    ratios = []
    for sigma, alpha in ((1.0, 1e-6), (1.0, 1.0), (2.0, 1e-6), (2.0, 1.0)):
        estimate, model = float32_estimate(name, sigma, alpha)
        ratios.append(estimate / distance(model, fitted(name, sigma, alpha, dtype="float64")[0]))
    assert min(ratios) > 0.1
    assert max(ratios) < 60
    assert 0.3 < np.median(ratios) < 15


@pytest.mark.parametrize("name", ["SSSL", "SSSL of a graph"])
@pytest.mark.filterwarnings("ignore::bigkernel.errors.AccuracyWarning")
def test_a_small_error_of_eigenfunctions_is_estimated_without_another_solve(name, monkeypatch):
    calls, plain = [], method.estimate_error
    monkeypatch.setattr(method, "estimate_error", lambda *given: calls.append(0) or plain(*given))
    model, given = METHODS[name]
    for sigma, alpha, count in ((1.0, 1e-6, 0), (1.0, 1.0, 0), (5.0, 1.0, 1)):
        model = clone(model).set_params(kernel=Gaussian(sigma), alpha=alpha, landmarks=Z)
        problem, whitening, estimate = fit_in_float32(model, *given)
        assert len(calls) == count
        other = plain(model._method(), problem, whitening, model._fitted.solution).total
        exact = fitted(name, sigma, alpha, dtype="float64")[0]
        assert distance(model, exact) < estimate < 6 * other


@pytest.mark.parametrize("model", [SSSL(n_components=50, alpha=0.1), ARTLClassifier(n_rounds=0)], ids=["SSSL", "ARTL"])
def test_a_graph_of_rows_far_from_all_landmarks_keeps_the_promise(model):
    rows, labels = load_digits(return_X_y=True)
    rows = (rows / rows.std()).astype(np.float32)[:1000]
    y = np.where(np.arange(1000) < 400, labels[:1000], np.nan if isinstance(model, SSSL) else -1)
    predictions = []
    for dtype in ("auto", "float64"):
        given = {"kernel": Gaussian(1.2), "landmarks": rows[::8], "dtype": dtype}
        fit = type(model)(**model.get_params()).set_params(**given).fit(rows, y)
        predictions.append(fit.kernel_(rows.astype(float), fit.landmarks_) @ fit.dual_coef_.reshape(125, -1))
        assert fit.diagnostics_["prediction_error"] < PROMISE
    assert np.linalg.norm(predictions[0] - predictions[1]) < PROMISE / 10 * np.linalg.norm(predictions[1])


def test_eigenfunctions_match_a_singular_value_decomposition():
    model, warned = fitted("SSSL", 2.0, 1e-3)
    assert not warned
    K = model.kernel_(Z.astype(float))
    B, there = model.kernel_(X.astype(float), Z.astype(float)), ~np.isnan(NUMBER)
    phi = np.linalg.solve(np.linalg.cholesky(K), B.T).T
    _, root, Wt = np.linalg.svd(phi, full_matrices=False)
    features = phi @ (Wt[:30].T * root[:30])
    coef, intercept = ridge(features[there], NUMBER[there], 1e-3, fit_intercept=True)
    expected, actual = (features @ coef)[:, 0], values(model)[:, 0] - intercept
    assert np.linalg.norm(actual - expected) <= PROMISE * np.linalg.norm(expected)


@of_methods
@pytest.mark.filterwarnings(
    "ignore::bigkernel.errors.AccuracyWarning", "ignore::bigkernel.errors.RankDeficiencyWarning"
)
def test_float64_sums_replace_inaccurate_float32_sums(name):
    arithmetics = set()
    for sigma, alpha in ((1.0, 1e-6), (10.0, 1e-9)):
        estimate, _ = float32_estimate(name, sigma, alpha)
        model, _ = fitted(name, sigma, alpha, dtype="float32")
        arithmetics.add(model._fitted.basis.sums)
        assert (model._fitted.basis.sums == "float64") == (estimate > ENOUGH)
        assert estimate <= ENOUGH or model.diagnostics_["prediction_error"] < estimate
    assert arithmetics == {None, "float64"}


def test_refits_partial_fits_and_fewer_landmarks_estimate_their_error():
    model, _ = fitted("SSSL", 1.0, 1e-3, count=N // 2)
    first = model.diagnostics_["prediction_error"]
    model.set_params(alpha=10.0).refit()
    assert 0 < model.diagnostics_["prediction_error"] < first
    model.partial_fit(X[N // 2 :], NUMBER[N // 2 :])
    assert 0 < model.diagnostics_["prediction_error"] < PROMISE
    assert 0 < model.with_landmarks(30).diagnostics_["prediction_error"] < PROMISE
    whole = KernelRidge(Gaussian(1.0), alpha=1e-3, landmarks=Z).fit(X, CLASS)
    fewer = whole.with_landmarks(40)
    alone = KernelRidge(Gaussian(1.0), alpha=1e-3, landmarks=Z[:40]).fit(X, CLASS)
    ratio = fewer.diagnostics_["prediction_error"] / alone.diagnostics_["prediction_error"]
    assert 0.03 < ratio < 30


@pytest.mark.filterwarnings("ignore::bigkernel.errors.AccuracyWarning")
@pytest.mark.parametrize("sigma, alpha, scale", [(1.0, 1e-2, 1e6), (2.0, 1e-4, 1.0), (3.0, 1e-5, 1e6)])
def test_the_error_of_deviations_is_estimated(sigma, alpha, scale):
    alpha *= scale
    given = {
        "kernel": scale * Gaussian(sigma),
        "alpha": alpha,
        "landmarks": Z,
        "fit_intercept": False,
        "noise_variance": alpha,
    }
    exact = KernelRidge(**given, dtype="float64").fit(X, CLASS)
    expected = exact.predict(X[:300], return_std=True)[1]
    model = KernelRidge(**given)
    _, whitening, _ = fit_in_float32(model, X, CLASS)
    posterior, estimate = posterior_of_sums(model._fitted, whitening)
    block = model.kernel_(X[:300].astype(float), Z.astype(float))
    actual = np.sqrt(posterior.spread.variance(block, scale * np.ones(300)))
    off = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert off / 10 < estimate < 60 * off


def test_deviations_that_are_inaccurate_by_rounding_warn():
    coarse = KernelRidge(Gaussian(3.0), alpha=1e-5, landmarks=Z, dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coarse.fit(X, CLASS)
        fit = coarse._fitted
        noisy = {**fit.statistics, "E": 1e10 * fit.statistics["E"]}
        coarse._fitted = replace(fit, statistics=noisy)
    with pytest.warns(AccuracyWarning, match="return_std: standard deviations may be off"):
        _, deviations = coarse.predict(X[:5], return_std=True)
    assert np.isfinite(deviations).all()


@pytest.mark.parametrize("count", [1, 30])
def test_a_constant_target_has_a_small_estimated_error(count):
    y = np.full(N, np.nan)
    y[:count] = 1.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = XNV(Gaussian(1.0), landmarks=Z).fit(X, y)
    assert model.diagnostics_["prediction_error"] < 1e-6


def test_scores_of_a_search_do_not_depend_on_the_order_of_its_grid():
    scores = []
    for forms in (["all", "landmarks"], ["landmarks", "all"]):
        grid = {"eigenfunctions": forms, "alpha": [1e-6, 1.0], "n_components": [5, 20]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = SweepSearchCV(SSSL(Gaussian(8.0), manifold=0, landmarks=Z), grid, cv=3).fit(X, NUMBER)
        places = [str(sorted(one.items())) for one in search.cv_results_["params"]]
        scores.append(dict(zip(places, search.cv_results_["mean_test_score"], strict=True)))
    assert scores[0].keys() == scores[1].keys()
    assert max(abs(scores[0][key] - scores[1][key]) for key in scores[0]) < 1e-9


def test_an_overflow_of_python_is_an_error_with_advice():
    with pytest.raises(DataError, match=r"KernelRidge: .*use an alpha closer to 1"), solving(KernelRidge()._method()):
        (1e200) ** 2


def test_unsolvable_sums_have_an_infinite_estimated_error():
    model = KernelRidge(Gaussian(1.0), landmarks=Z)
    problem, whitening, _ = fit_in_float32(model, X, CLASS)
    infinite, finite = estimate_errors(problem, whitening, lambda total: np.array([np.inf, 1e-9]))
    assert infinite.total == infinite.blocks == np.inf
    assert next_precision(problem.basis, infinite, choose=True).basis.dtype == "float64"
    assert finite.total < ENOUGH


@pytest.mark.parametrize(
    "kernel, off", [("linear", 1e6), ("linear", 3e5), (Polynomial(2, gamma=1.0), 1e3), ("rbf", 1e6)]
)
@pytest.mark.parametrize("estimator", [KernelRidge, KernelRidgeClassifier, DICA])
@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
def test_exact_fits_warn_where_the_kernel_matrix_has_lost_the_rows(estimator, kernel, off):
    X = np.random.default_rng(0).normal(size=(200, 5))
    y = X[:, 0] > 0
    further = {"sample_domain": 1 + np.arange(200) % 2} if estimator is DICA else {}
    near, far = (estimator(kernel, n_landmarks=None) for _ in range(2))
    near, caught = catch_warnings_of(near.fit, X, y, **further)
    assert near.diagnostics_["prediction_error"] < 1e-5
    assert AccuracyWarning not in caught
    far, caught = catch_warnings_of(far.fit, X + off, y, **further)
    assert (AccuracyWarning in caught) == (kernel != "rbf")
