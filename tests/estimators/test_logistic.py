"""Kernel logistic regression matches scikit-learn on the same features, resumes, and reports its excess."""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import cholesky, solve_triangular
from sklearn.linear_model import LogisticRegression

from bigkernel import Gaussian, KernelLogisticClassifier, SweepSearchCV, executing
from bigkernel.errors import AccuracyWarning, ConfigError, ResumeMismatchError

rng = np.random.default_rng(4)
N = 300
X = rng.normal(size=(N, 3))
Y = (X[:, 0] + 0.6 * rng.normal(size=N) > 0) + 1 * (X[:, 1] + 0.3 * rng.normal(size=N) > 0.8)
WEIGHT = rng.uniform(0.2, 3, N)
GIVEN = {"kernel": Gaussian(1.5), "landmarks": X[:25]}


def dense(y, weight, alpha):
    """Return probabilities of the rows by scikit-learn, on the whitened kernel values of the landmarks."""
    lower = cholesky(GIVEN["kernel"](X[:25]), lower=True)
    features = solve_triangular(lower, GIVEN["kernel"](X[:25], X), lower=True).T
    model = LogisticRegression(C=1 / alpha, tol=1e-12, max_iter=1000, solver="newton-cholesky")
    return model.fit(features, y, weight).predict_proba(features)


@pytest.mark.parametrize("alpha, y, weight", [(10.0, Y > 0, WEIGHT), (0.1, Y, WEIGHT), (10.0, Y, None)])
def test_probabilities_match_logistic_regression_on_the_same_features(alpha, y, weight):
    model = KernelLogisticClassifier(alpha=alpha, tol=1e-15, max_iter=300, **GIVEN).fit(X, y, weight)
    assert_allclose(model.predict_proba(X), dense(y, weight, alpha), atol=1e-6)
    assert_array_equal(model.predict(X), model.classes_[model.predict_proba(X).argmax(axis=1)])
    assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), rtol=1e-10)
    truth = np.searchsorted(model.classes_, y)
    loss = -np.average(model.predict_log_proba(X)[np.arange(N), truth], weights=weight)
    assert model.training_log_loss_ == pytest.approx(loss, rel=1e-6)


def test_the_reported_excess_bounds_the_true_one():
    def objective(tol):
        model = KernelLogisticClassifier(alpha=0.1, tol=tol, max_iter=300, **GIVEN).fit(X, Y)
        core = GIVEN["kernel"](X[:25])
        norm = (model.dual_coef_ * (core @ model.dual_coef_)).sum()
        return N * model.training_log_loss_ + 0.1 * norm / 2, model

    least, _ = objective(1e-14)
    for tol in (1e-2, 1e-4):
        reached, model = objective(tol)
        assert model.diagnostics_["excess"] <= tol
        assert reached / least - 1 < 4 * tol
        assert len(model.fit_report()["sweep"]["excess_by_step"]) == model.n_iter_ + 1


def test_a_large_penalty_is_solved_accurately():
    model = KernelLogisticClassifier(alpha=1e6, **GIVEN).fit(X, Y > 0)
    assert_allclose(model.predict_proba(X), dense(Y > 0, None, 1e6), atol=1e-6)
    assert model.n_iter_ >= 1


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_scaling_weights_and_penalty_changes_nothing(scale):
    expected = KernelLogisticClassifier(**GIVEN).fit(X, Y)
    actual = KernelLogisticClassifier(alpha=scale, **GIVEN).fit(X, Y, np.full(N, scale))
    assert actual.n_iter_ == expected.n_iter_ > 2
    assert_allclose(actual.predict_proba(X), expected.predict_proba(X), rtol=1e-6)


def test_without_landmarks_every_row_is_one():
    model = KernelLogisticClassifier(Gaussian(1.5), tol=1e-10).fit(X[:60], Y[:60])
    given = KernelLogisticClassifier(Gaussian(1.5), landmarks=X[:60], tol=1e-10).fit(X[:60], Y[:60])
    assert_allclose(model.predict_proba(X), given.predict_proba(X), rtol=1e-6)


def test_a_run_with_another_penalty_is_not_resumed(tmp_path, make_corpus):
    corpus = make_corpus(X, y=Y, classes=(0, 1, 2))
    model = KernelLogisticClassifier(tol=0.05, **GIVEN)
    with executing("serial", run=tmp_path / "run"):
        lazy = model.fit(corpus).predict_proba(da.from_array(X, chunks=(70, 3)))
    assert_allclose(lazy.compute(), model.predict_proba(X), atol=1e-12)
    assert model.plan(corpus).flops > N * 25 * 25
    assert (tmp_path / "run" / "logistic-1").is_dir()
    with executing("serial", run=tmp_path / "run", resume=True), pytest.raises(ResumeMismatchError, match="alpha"):
        model.set_params(alpha=3.0).fit(corpus)


def test_unsupported_methods_are_refused_and_too_few_iterations_warn():
    model = KernelLogisticClassifier(**GIVEN).fit(X, Y)
    assert not hasattr(model, "partial_fit")
    for call in (model.refit, lambda: model.with_landmarks(5)):
        with pytest.raises(ConfigError, match="keeps no statistics"):
            call()
    with pytest.raises(ConfigError, match="GridSearchCV"):
        SweepSearchCV(model, {"alpha": [1.0]}).fit(X, Y)
    with pytest.warns(AccuracyWarning, match="after 2 steps"):
        KernelLogisticClassifier(max_iter=2, **GIVEN).fit(X, Y)
