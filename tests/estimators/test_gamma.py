"""`gamma` of kernels by name: "scale", "auto" and numbers mean the same as in scikit-learn."""

import numpy as np
import pytest
import sklearn.kernel_ridge
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.metrics import pairwise

import bigkernel
from bigkernel import KernelRidge, Nystroem
from bigkernel.errors import ConfigError
from bigkernel.kernels.functions import as_kernel

rng = np.random.default_rng(20260101)
N, D = 60, 4
UNITS = np.array([3.0, 2.0, 3.0, 4.0])
X = UNITS * rng.uniform(size=(N, D))  # above 0, for chi2
NEW = UNITS * rng.uniform(size=(20, D))
y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=N)
LANDMARKS = X[:15]
KINDS = [getattr(bigkernel, name) for name in bigkernel.__all__]
WITH_GAMMA = [kind for kind in KINDS if "gamma" in getattr(kind, "_parameter_constraints", {})]


def expected_gamma(name, gamma, Z):
    """Return γ from its definition."""
    if name == "chi2" and isinstance(gamma, str):
        return 1.0
    spread = np.std(Z) if name == "laplacian" else np.var(Z)
    return {"auto": 1 / D, "scale": 1 / (D * spread)}.get(gamma, gamma)


names = pytest.mark.parametrize("name", ["rbf", "laplacian", "poly", "polynomial", "linear", "chi2", "cosine"])
gammas = pytest.mark.parametrize("gamma", ["auto", "scale", 0.3])


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")  # of linear kernels
@names
@gammas
@pytest.mark.parametrize("landmarks", ["uniform", X], ids=["exact", "every row a landmark"])
def test_predictions_match_kernel_ridge_of_scikit_learn(name, gamma, landmarks):
    theirs = sklearn.kernel_ridge.KernelRidge(kernel=name, gamma=expected_gamma(name, gamma, X), alpha=0.7).fit(X, y)
    ours = KernelRidge(name, gamma=gamma, alpha=0.7, landmarks=landmarks, fit_intercept=False).fit(X, y)
    assert_allclose(ours.predict(NEW), theirs.predict(NEW), atol=1e-7)


@gammas
def test_sigmoid_and_matern_resolve_the_same_gamma(gamma):
    actual = as_kernel("sigmoid", gamma=gamma).resolve(X).gamma
    assert actual == pytest.approx(expected_gamma("sigmoid", gamma, X), rel=1e-12)
    length = as_kernel("matern", gamma=gamma).resolve(X).sigma
    assert 1 / (2 * length**2) == pytest.approx(expected_gamma("matern", gamma, X), rel=1e-12)


SHAPES = {"polynomial": {"degree": 2, "coef0": 0.5}, "sigmoid": {"coef0": 0.5}}


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")  # of the sigmoid
@pytest.mark.parametrize("name", ["rbf", "laplacian", "poly", "chi2", *SHAPES])
@gammas
def test_scale_uses_the_variance_of_the_landmarks_in_kernels_of_scikit_learn(name, gamma):
    given = SHAPES.get(name, {})
    features = Nystroem(name, gamma=gamma, landmarks=LANDMARKS, dtype="float64", **given).fit(X)
    given = {**given, "gamma": expected_gamma(name, gamma, LANDMARKS)}
    expected = pairwise.pairwise_kernels(NEW, LANDMARKS, metric=name, **given)
    assert_allclose(features.kernel_(NEW, LANDMARKS), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", WITH_GAMMA, ids=lambda kind: kind.__name__)
def test_every_estimator_accepts_valid_gammas_and_refuses_others(kind):
    assert kind().gamma == ("median" if "median" in repr(kind().gamma) else "scale")
    for gamma in ("scale", "auto", 0.5, np.float32(2)):
        estimator = clone(kind().set_params(gamma=gamma))
        estimator._validate_params()
        assert estimator.get_params()["gamma"] == gamma
    for gamma in ("wide", 0, -1.0, float("nan"), None, [1.0]):
        with pytest.raises(ValueError, match=r"'gamma' parameter of .* must be .*'auto'.* Got"):
            kind(gamma=gamma)._validate_params()


@pytest.mark.parametrize("gamma", ["wide", None, 0, -1, float("nan")])
def test_a_kernel_by_name_refuses_an_invalid_gamma(gamma):
    for name in ("rbf", "chi2", "laplacian"):
        with pytest.raises(ConfigError, match="gamma: expected a number above 0, 'scale' or 'auto', found"):
            as_kernel(name, gamma=gamma)
