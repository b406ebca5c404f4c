"""A penalty for each target, against fits of a single target and GridSearchCV."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from peers import peer, split_scores
from sklearn.model_selection import KFold

from bigkernel import Gaussian, KernelRidge, Ridge, Sigmoid, SweepSearchCV, load_model, save_model
from bigkernel.errors import ConfigError, DataError
from bigkernel.solvers import penalty_grid

rng = np.random.default_rng(2013)
N, C = 90, 3
X = rng.normal(size=(N, 4))
Z = X[:16] + 0.03
Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] + 3, rng.normal(size=N)]) + 0.1 * rng.normal(size=(N, C))
WEIGHT = rng.uniform(0.2, 3, N)
ALPHAS = np.array([1e-3, 10.0, 0.3])
MODELS = {
    "exact": KernelRidge(Gaussian(1.2), fit_intercept=False),
    "exact with intercept": KernelRidge(Gaussian(1.2)),
    "indefinite": KernelRidge(Sigmoid(0.05, 0.2), fit_intercept=False),
    "landmarks": KernelRidge(Gaussian(1.2), landmarks=Z, fit_intercept=False),
    "landmarks with intercept": KernelRidge(Gaussian(1.2), landmarks=Z),
    "linear": Ridge(),
    "linear without intercept": Ridge(fit_intercept=False),
}
CV = KFold(3, shuffle=True, random_state=0)
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
pytestmark = pytest.mark.filterwarnings(
    "ignore::bigkernel.errors.RankDeficiencyWarning"
)  # of the sigmoid, which is indefinite


@every_model
def test_each_target_is_fitted_with_its_own_penalty(model, tmp_path):
    actual = model.__class__(**{**model.get_params(deep=False), "alpha": [*ALPHAS[:2], ALPHAS[0]]}).fit(X, Y, WEIGHT)
    for k, alpha in enumerate([*ALPHAS[:2], ALPHAS[0]]):
        alone = model.__class__(**{**model.get_params(deep=False), "alpha": alpha}).fit(X, Y[:, k], WEIGHT)
        assert_allclose(actual.predict(X)[:, k], alone.predict(X), rtol=0, atol=1e-11)
        assert_allclose(np.broadcast_to(actual.intercept_, C)[k], alone.intercept_, atol=1e-11)
        if hasattr(actual, "training_mse_"):
            assert_allclose(actual.training_mse_[k], alone.training_mse_[0], rtol=1e-8)
    assert_array_equal(actual.alpha_, [*ALPHAS[:2], ALPHAS[0]])
    assert actual.fit_report()["alpha"] == [*ALPHAS[:2], ALPHAS[0]]
    save_model(actual, tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert_array_equal(again.predict(X), actual.predict(X))
    assert_array_equal(again.alpha_, actual.alpha_)


@every_model
def test_folds_choose_for_each_target_as_for_it_alone(model, monkeypatch):
    with_rule = lambda rule: model.__class__(**{**model.get_params(deep=False), "alpha": rule})  # noqa: E731
    alone = [with_rule("cv").fit(X, Y[:, k], WEIGHT) for k in range(C)]
    monkeypatch.setattr(penalty_grid, "_NUMBERS", 100)  # a few candidates at a time
    together = with_rule("cv-per-target").fit(X, Y, WEIGHT)
    assert_allclose(together.alpha_, [one.alpha_ for one in alone], rtol=1e-12)
    assert len({*together.alpha_}) > 1
    assert_allclose(together.predict(X), np.column_stack([one.predict(X) for one in alone]), rtol=0, atol=1e-9)
    if model in (MODELS["linear"], MODELS["landmarks with intercept"]):
        search = lambda y, rule: SweepSearchCV(model, {"alpha": [rule]}, cv=CV, refit=False).fit(X, y)  # noqa: E731
        scores = [split_scores(search(Y[:, k], "cv")) for k in range(C)]
        assert_allclose(split_scores(search(Y, "cv-per-target")), np.mean(scores, axis=0), rtol=1e-9)


def test_a_constant_target_leaves_the_penalty_of_the_others():
    alone = Ridge("cv", fit_intercept=False).fit(X + 1, X[:, 0] + 0.1 * Y[:, 2])
    beside = Ridge("cv", fit_intercept=False).fit(X + 1, np.column_stack([X[:, 0] + 0.1 * Y[:, 2], np.full(N, 5.0)]))
    assert beside.alpha_ <= 10 * alone.alpha_


@pytest.mark.parametrize("scoring", ["r2", "neg_mean_absolute_error"])
def test_a_search_compares_lists_of_penalties(scoring):
    grid = {"alpha": [1.0, list(ALPHAS), ALPHAS[::-1]]}
    for model in (MODELS["landmarks with intercept"], MODELS["linear"]):
        ours = SweepSearchCV(model, grid, cv=CV, scoring=scoring).fit(X, Y)
        theirs = peer(model, grid, X, Y, cv=CV, scoring=scoring)
        assert_allclose(split_scores(ours), split_scores(theirs), rtol=0, atol=1e-9)
        assert_allclose(ours.predict(X), theirs.predict(X), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"alpha": ALPHAS[:2]}, DataError, "alpha: expected a number, or one for each of 3 targets, found 2"),
        ({"alpha": [1.0, -1.0, 1.0]}, ConfigError, "alpha: expected a finite number of at least 0"),
        ({"alpha": [1.0, np.nan, 1.0]}, ValueError, "alpha|NaN"),
        ({"alpha": ALPHAS, "solver": "cg", "n_landmarks": 9}, ConfigError, "all targets share one penalty"),
    ],
)
def test_invalid_penalties_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        KernelRidge(Gaussian(1.2), **settings).fit(X, Y)


@pytest.mark.parametrize("model", [KernelRidge(Gaussian(1.2)), Ridge()], ids=["kernel", "linear"])
def test_penalties_that_are_no_numbers_are_refused(model):
    lists = [[1], [1, 2]], [], ["gcv"] * 3, [1j, 1, 1], [10**400, 1, 1], [1, None, 2]
    for alpha in (True, np.ones((3, 2)), *lists):
        with pytest.raises(ConfigError, match="alpha: expected a number, or one for each target"):
            model.set_params(alpha=alpha).fit(X, Y)


def test_deviations_need_a_single_penalty():
    with pytest.raises(ConfigError, match=r"return_std: .*a single penalty"):
        KernelRidge(Gaussian(1.2), ALPHAS, landmarks=Z).fit(X, Y).predict(X, return_std=True)
