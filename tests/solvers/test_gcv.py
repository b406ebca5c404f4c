"""GCV against dense hat matrices, the alpha that it chooses in every estimator, and where it has nothing to say."""

import numpy as np
import pytest
import reference
from numpy.testing import assert_allclose
from peers import moments_of
from sklearn.base import clone
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from bigkernel import Gaussian, KernelRidge, Ridge, SweepSearchCV
from bigkernel.errors import ConfigError
from bigkernel.solvers.gcv import Spectral, best_alpha, best_alpha_exact, of_system
from bigkernel.solvers.ridge import RidgeSystem
from bigkernel.solvers.whitening import Reduced, Whitening, centre
from bigkernel.statistics.moments import Moments

SIGMA = 1.0
rng = np.random.default_rng(1979)
N, M = 120, 25
X = rng.normal(size=(N, 2))
NEW = rng.normal(size=(30, 2))
Z = X[:M] + 0.02
Y = np.column_stack([np.sin(2 * X[:, 0]) + 3, X[:, 1] ** 2]) + 0.3 * rng.normal(size=(N, 2))
y = Y[:, 0]
WEIGHT = rng.uniform(0.2, 3, N)
WEIGHTS = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
INTERCEPT = pytest.mark.parametrize("fit_intercept", [False, True])


def dense(H, Y, weight=None):
    """(Σ w (y − f)² / n) / (1 − tr H / n)², summed over the targets."""
    Y = Y[:, None] if Y.ndim == 1 else Y
    w = np.ones(len(Y)) if weight is None else weight
    return (w[:, None] * (Y - H @ Y) ** 2).sum() / len(Y) / (1 - np.trace(H) / len(Y)) ** 2


def linear_hat(Phi, alpha, fit_intercept=False, weight=None):
    """The matrix that takes targets to fits."""
    coef, b = reference.ridge(Phi, np.eye(len(Phi)), alpha, fit_intercept, weight)
    return Phi @ coef + b


def exact_hat(K, alpha, fit_intercept=False, weight=None):
    """The same matrix, as that of a square root of K."""
    values, vectors = reference.positive_eigenpairs(K)
    return linear_hat(vectors * np.sqrt(values), alpha, fit_intercept, weight)


def nystrom_features(sigma=SIGMA, points=Z, rows=X):
    return reference.gaussian(rows, points, sigma) @ reference.whitening(reference.gaussian(points, points, sigma))


def assert_least(gcv, chosen, low, high, slack=1e-6):
    """`chosen` scores no worse than any alpha of a fine grid."""
    values = [gcv(alpha) for alpha in np.geomspace(low, high, 25)]
    assert gcv(chosen) <= min(values) * (1 + slack)


@WEIGHTS
@INTERCEPT
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 10.0, 1e4])
def test_the_spectral_score_is_that_of_the_dense_hat_matrix(weight, fit_intercept, alpha):
    Phi = nystrom_features()
    small = centre(moments_of(Phi, Y, weight), fit_intercept=fit_intercept)
    spectral = of_system(RidgeSystem(small, float(N)), fit_intercept=fit_intercept)
    expected = dense(linear_hat(Phi, alpha, fit_intercept, weight), Y, weight)
    assert_allclose(spectral.gcv(alpha), expected, rtol=1e-8)


@INTERCEPT
@pytest.mark.parametrize("n", [10, 25, 26, 30])
def test_few_rows_leave_no_false_minimum(fit_intercept, n):
    # as many rows as directions: SSE and n − tr H both vanish with alpha, their quotient does not
    Phi, few = nystrom_features(rows=X[:n]), y[:n]
    small = centre(moments_of(Phi, few), fit_intercept=fit_intercept)
    spectral = of_system(RidgeSystem(small, float(n)), fit_intercept=fit_intercept)
    for alpha in (1e-6, 1e-4, 1e-2, 1.0):
        expected = dense(linear_hat(Phi, alpha, fit_intercept), few)
        assert_allclose(spectral.gcv(alpha), expected, rtol=1e-3)
    assert_least(lambda alpha: dense(linear_hat(Phi, alpha, fit_intercept), few), spectral.best(), 1e-6, 1e3, 1e-3)


@pytest.mark.filterwarnings("ignore::bigkernel.errors.AccuracyWarning")  # so small an alpha may be chosen
@pytest.mark.filterwarnings("ignore:.*has numerical rank:bigkernel.errors.RankDeficiencyWarning")
@pytest.mark.parametrize("sigma", [0.3, 1.0])
@pytest.mark.parametrize("n, m", [(60, 60), (120, 25), (45, 60)])
@INTERCEPT
def test_landmark_form_takes_the_alpha_of_least_dense_gcv(sigma, n, m, fit_intercept):
    rows, target = X[:n], y[:n]
    points = np.vstack([X, NEW])[:m] + 0.02
    model = KernelRidge(Gaussian(sigma), alpha="gcv", landmarks=points, fit_intercept=fit_intercept).fit(rows, target)
    Phi = nystrom_features(sigma, points, rows)
    assert_least(lambda alpha: dense(linear_hat(Phi, alpha, fit_intercept), target), model.alpha_, 1e-4, 1e3, 5e-3)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
@INTERCEPT
@WEIGHTS
def test_exact_form_takes_the_alpha_of_least_dense_gcv(sigma, fit_intercept, weight):
    rows, target, weight = X[:50], (Y if sigma == 1 else y)[:50], None if weight is None else weight[:50]
    model = KernelRidge(Gaussian(sigma), alpha="gcv", fit_intercept=fit_intercept)
    model.fit(rows, target, sample_weight=weight)
    K = reference.gaussian(rows, rows, sigma)
    assert_least(
        lambda alpha: dense(exact_hat(K, alpha, fit_intercept, weight), target, weight), model.alpha_, 1e-7, 1e3, 1e-4
    )


def test_a_row_with_a_weight_is_one_row_as_in_ridge_cv_and_the_unit_of_weights_is_free():
    own = np.random.default_rng(5)
    wide, weight = own.normal(size=(N, 40)), own.integers(1, 6, N)
    target, repeated = wide @ own.normal(size=40) + 6 * own.normal(size=N), np.repeat(np.arange(N), weight)
    chosen = Ridge("gcv").fit(wide, target, sample_weight=weight).alpha_
    assert_allclose(Ridge("gcv").fit(wide, target, sample_weight=10 * weight).alpha_, 10 * chosen, rtol=1e-3)
    others = RidgeCV(np.geomspace(1e-2, 1e4, 200))
    assert 0.4 < chosen / others.fit(wide, target, sample_weight=weight).alpha_ < 2.5
    for model in (Ridge("gcv"), others):  # a row predicts its copies
        assert model.fit(wide[repeated], target[repeated]).alpha_ < 0.5 * chosen


@INTERCEPT
def test_ridge_takes_the_alpha_of_least_dense_gcv(fit_intercept):
    wide = np.column_stack([X, X**2, X**3, rng.normal(size=(N, 20))]) + 1
    model = Ridge("gcv", fit_intercept=fit_intercept).fit(wide, Y)
    assert_least(lambda alpha: dense(linear_hat(wide, alpha, fit_intercept), Y), model.alpha_, 1e-4, 1e6)
    assert_allclose(model.predict(wide), Ridge(model.alpha_, fit_intercept=fit_intercept).fit(wide, Y).predict(wide))


@pytest.mark.parametrize(
    "model",
    [KernelRidge(Gaussian(SIGMA), alpha="gcv", landmarks=Z), KernelRidge(Gaussian(SIGMA), alpha="gcv"), Ridge("gcv")],
    ids=["landmarks", "exact", "ridge"],
)
@INTERCEPT
def test_rows_of_weight_zero_do_not_count(model, fit_intercept):
    weight = np.where(np.arange(N) % 3, WEIGHT, 0)
    there = weight > 0
    model = clone(model).set_params(fit_intercept=fit_intercept)
    weighted = model.fit(X, y, sample_weight=weight).alpha_
    assert_allclose(weighted, model.fit(X[there], y[there], sample_weight=weight[there]).alpha_, rtol=1e-5)


@pytest.mark.parametrize("settings", [{"landmarks": Z}, {}], ids=["landmarks", "exact"])
@pytest.mark.parametrize("constant", [0.0, -1e6])
def test_constant_targets_are_predicted_as_they_are(settings, constant):
    model = KernelRidge(Gaussian(SIGMA), alpha="gcv", fit_intercept=True, **settings).fit(X, np.full(N, constant))
    assert np.isfinite(model.alpha_)
    assert model.alpha_ >= 0
    assert_allclose(model.predict(NEW), constant, rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3])
@INTERCEPT
@pytest.mark.parametrize("settings", [{"landmarks": Z}, {"landmarks": Z[:1]}, {}], ids=["landmarks", "one", "exact"])
def test_very_few_rows(n, fit_intercept, settings):
    model = KernelRidge(Gaussian(SIGMA), alpha="gcv", fit_intercept=fit_intercept, **settings).fit(X[:n], y[:n])
    assert 0 <= model.alpha_ < np.inf
    assert np.isfinite(model.predict(NEW)).all()


def test_features_of_zeros_allow_any_alpha_and_a_fit_without_freedom_scores_infinity():
    assert Spectral(np.ones(3), np.ones(3), 0.0, 3.0, 1.0).gcv(0.0) == np.inf
    zero = Moments(N * 1.0, N * 1.0, np.zeros((3, 3)), np.zeros((3, 1)), np.zeros(3), np.zeros(1), np.ones(1))
    assert best_alpha(zero, Whitening(3, 3), fit_intercept=True) == 1.0
    assert best_alpha_exact(np.zeros((4, 4)), np.ones((4, 1)), fit_intercept=False)[0] == 1.0
    nothing = Reduced(4.0, np.zeros((0, 0)), np.zeros((0, 1)), np.ones(1), np.zeros(0), np.zeros(1))
    assert of_system(RidgeSystem(nothing, 4.0), fit_intercept=False).best() == 1.0


@pytest.mark.parametrize("model", [KernelRidge(Gaussian(SIGMA), alpha="gcv", landmarks=Z), Ridge("gcv")])
def test_more_rows_choose_anew_as_one_fit_would(model):
    whole = model.fit(X, y)
    alpha, values = whole.alpha_, whole.predict(NEW)
    grown = model.fit(X[:40], y[:40])
    assert grown.alpha_ != alpha
    grown.partial_fit(X[40:], y[40:])
    assert_allclose(grown.alpha_, alpha, rtol=1e-4)
    assert_allclose(grown.predict(NEW), values, rtol=1e-4)


def test_an_unknown_name_of_alpha_is_refused():
    for model in (KernelRidge(alpha="loo"), KernelRidge(alpha="loo", landmarks=Z), Ridge("loo")):
        with pytest.raises((ConfigError, ValueError), match=r"'alpha' parameter|alpha: expected"):
            model.fit(X, y)


@INTERCEPT
def test_the_score_of_a_search_is_gcv_of_the_rows_trained_on(fit_intercept):
    model = KernelRidge(Gaussian(0.5), landmarks=Z[:12], fit_intercept=fit_intercept)
    alphas, folds, Phi = [0.01, 0.3, 5.0], KFold(3), nystrom_features(0.5, Z[:12])
    search = SweepSearchCV(model, {"alpha": alphas}, cv=folds, scoring="neg_gcv").fit(X, Y)
    for j, (train, _) in enumerate(folds.split(X)):
        expected = [-dense(linear_hat(Phi[train], alpha, fit_intercept), Y[train]) / 2 for alpha in alphas]
        assert_allclose(search.cv_results_[f"split{j}_test_score"], expected, rtol=1e-8)
