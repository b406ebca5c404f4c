"""Fits, searches and predictions on a device agree with those of NumPy, and rows go to it once."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from three_domains import CODES, DOMAIN, LABELS, PARTLY, WEIGHT, M, X, Y, y

import bigkernel as bk
from bigkernel.estimators import base
from bigkernel.kernels import on_device

GIVEN = {"kernel": bk.Gaussian(2.0), "landmarks": X[:M], "dtype": "float64"}
CASES = {
    "krr": (bk.KernelRidge(alpha=0.1, **GIVEN), Y),
    "krr float32": (bk.KernelRidge(alpha=0.1, **{**GIVEN, "dtype": "float32"}), Y),
    "krr folds": (bk.KernelRidge(alpha="cv", **GIVEN), y),
    "krr gcv": (bk.KernelRidge(alpha="gcv", **{**GIVEN, "kernel": bk.Matern(3.0, nu=0.5)}), y),
    "krr fourier": (bk.KernelRidge(bk.Gaussian(2.0), alpha=0.1, n_landmarks=M, landmarks="fourier", random_state=1), y),
    "krr cg": (bk.KernelRidge(alpha=0.1, solver="cg", tol=1e-12, **GIVEN), y),
    "classes": (bk.KernelRidgeClassifier(alpha=0.1, **{**GIVEN, "kernel": bk.Laplacian(3.0)}), LABELS),
    "calibrated": (bk.KernelRidgeClassifier(alpha=0.1, probability=True, **GIVEN), LABELS),
    "logistic": (bk.KernelLogisticClassifier(alpha=0.1, tol=1e-5, **GIVEN), LABELS),
    "sssl": (bk.SSSL(n_components=6, alpha=0.1, manifold=0, **GIVEN), PARTLY),
    "graph": (bk.SSSLClassifier(n_components=6, alpha=0.1, manifold=0.5, **GIVEN), CODES),
    "xnv": (bk.XNV(alpha=0.01, **GIVEN), PARTLY),
    "dica": (bk.DICA(n_components=3, alpha=0.1, epsilon=1e-3, **GIVEN), CODES),
    "jda": (bk.JDA(n_components=4, alpha=0.5, n_rounds=2, **GIVEN), CODES),
    "artl": (bk.ARTLClassifier(sharpness=4.0, n_rounds=2, **GIVEN), CODES),
    "ridge": (bk.Ridge(2.0), y),
    "exact": (bk.KernelRidge(bk.Gaussian(2.0), alpha=0.1), y),
    "qr": (bk.KernelRidge(alpha=1e-13, **{**GIVEN, "kernel": bk.Gaussian(20.0)}), y),
}
# float32 sums against those in float64; a solution that rounding moves further than its own error
TOLERANCES = {"krr float32": 1e-4, "qr": 1e-8}
GRID = {"kernel": [bk.Gaussian(1.5), bk.Gaussian(3.0)], "alpha": [0.1, 1.0]}
SEARCHES = {
    "numbers": (bk.SweepSearchCV(bk.KernelRidge(**GIVEN), GRID, cv=3), Y),
    "classes": (bk.SweepSearchCV(bk.KernelRidgeClassifier(**GIVEN), GRID, cv=3, scoring="neg_log_loss"), LABELS),
    "cg": (bk.SweepSearchCV(bk.KernelRidge(solver="cg", tol=1e-10, **GIVEN), GRID, cv=3), y),
}


def outcome(name):
    """Return predictions of a fit, values, probabilities and deviations where it has them."""
    model, targets = clone(CASES[name][0]), CASES[name][1]
    model.fit(X, targets, DOMAIN if name in ("dica", "jda", "artl") else WEIGHT)
    methods = ("predict", "decision_function", "predict_proba", "transform")
    return [getattr(model, one)(X[M::3]) for one in methods if hasattr(model, one)]


@pytest.mark.parametrize("name", CASES)
def test_fits_agree_with_numpy(name, device, monkeypatch):
    monkeypatch.setattr(base, "DEVICE_ROWS", 0)
    expected = outcome(name)
    with bk.executing(device=device.name):
        found = outcome(name)
    tolerance = TOLERANCES.get(name, 1e-12)
    for own, other in zip(found, expected, strict=True):
        assert_allclose(own, other, rtol=0, atol=tolerance * np.abs(other).max())


SOLVED = ["krr", "krr folds", "krr gcv", "krr cg", "calibrated", "sssl", "xnv", "dica", "artl", "qr"]


@pytest.mark.parametrize("name", [*SOLVED, "exact"])
def test_solves_on_a_device_agree_with_lapack(name, device, monkeypatch):
    expected = outcome(name)
    monkeypatch.setattr(on_device, "DEVICE_ORDER", 8)
    factored, cholesky = [], on_device.cholesky
    monkeypatch.setattr(on_device, "cholesky", lambda A, *least: factored.append(len(A)) or cholesky(A, *least))
    with bk.executing(device=device.name):
        found = outcome(name)
    assert factored
    for own, other in zip(found, expected, strict=True):
        assert_allclose(own, other, rtol=0, atol=TOLERANCES.get(name, 1e-11) * np.abs(other).max())


@pytest.mark.parametrize(
    "model",
    [
        bk.KernelRidge(bk.Gaussian(2.0) + bk.Pairwise("cosine"), alpha=0.1, landmarks=X[:M]),
        bk.PartitionedRegressor(n_leaves=2, posterior=True, random_state=0),
    ],
    ids=["kernel", "leaves"],
)
def test_what_a_device_cannot_predict_is_predicted_by_processors(model, device, monkeypatch):
    monkeypatch.setattr(base, "DEVICE_ROWS", 1)
    model = clone(model).fit(X, y)
    expected = model.predict(X)
    with bk.executing(device=device.name):
        assert_allclose(model.predict(X), expected, rtol=1e-12)
    assert_allclose(bk.Predictor.of(model, device=device.name).predict(X), expected, rtol=1e-12)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_agree_with_numpy(name, device):
    search, targets = SEARCHES[name]
    expected = clone(search).fit(X, targets)
    with bk.executing(device=device.name):
        found = clone(search).fit(X, targets)
    assert_allclose(found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-12)
    assert_allclose(found.predict(X), expected.predict(X), rtol=1e-10)
