"""Class weights multiply sample weights in every classifier, input and search."""

from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose
from peers import cells
from sklearn import metrics
from sklearn.base import clone
from sklearn.model_selection import KFold
from sklearn.preprocessing import normalize
from sklearn.utils.class_weight import compute_class_weight

from bigkernel import ARTLClassifier, Gaussian, KernelRidgeClassifier, SSSLClassifier, SweepSearchCV, XNVClassifier
from bigkernel.errors import ConfigError, DataError

rng = np.random.default_rng(5)
N = 200
X = rng.normal(size=(N, 3))
CODES = np.where(X[:, 0] + 0.5 * rng.normal(size=N) > 1, 2, (X[:, 1] > 0) * 1)
NAMES = ("aye", "bee", "sea")
TEXT = np.array(NAMES)[CODES]
WEIGHT = rng.uniform(0.2, 3, N)
GIVEN = {"kernel": Gaussian(1.5), "landmarks": X[:15]}
TABLE = {0: 0.5, 1: 2.0, 2: 3.0}
BALANCED = compute_class_weight("balanced", classes=np.arange(3), y=CODES, sample_weight=WEIGHT)
BY_NAME = dict(zip(NAMES, BALANCED.tolist(), strict=True))
MODELS = {
    "krr": KernelRidgeClassifier(**GIVEN),
    "krr exact": KernelRidgeClassifier(Gaussian(1.5)),
    "krr by conjugate gradients": KernelRidgeClassifier(solver="cg", tol=1e-9, **GIVEN),
    "sssl": SSSLClassifier(n_components=8, **GIVEN),
    "xnv": XNVClassifier(Gaussian(1.5), landmarks=X[:16]),
    "artl": ARTLClassifier(n_rounds=1, **GIVEN),
}


@pytest.mark.parametrize(
    "name, given, factors", [("krr", TABLE, [0.5, 2, 3]), *((name, "balanced", None) for name in MODELS)]
)
def test_class_weights_multiply_the_weights_of_labelled_rows(name, given, factors):
    model, y = MODELS[name], CODES.copy()
    if name in ("sssl", "xnv", "artl"):
        y[::3] = -1
    known = y != -1
    if factors is None:
        factors = compute_class_weight("balanced", classes=np.arange(3), y=y[known], sample_weight=WEIGHT[known])
    weight = WEIGHT.copy()
    weight[known] *= np.asarray(factors)[y[known]]
    expected = model.set_params(class_weight=None).fit(X, y, sample_weight=weight).decision_function(X)
    plain = model.fit(X, y, sample_weight=WEIGHT).decision_function(X)
    actual = model.set_params(class_weight=given).fit(X, y, sample_weight=WEIGHT).decision_function(X)
    assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)
    assert np.abs(plain - expected).max() > 1e-3


@pytest.mark.parametrize("given", ["balanced", BY_NAME], ids=["balanced", "dict"])
def test_lazy_rows_and_corpora_get_the_same_class_weights(make_corpus, small_steps, given):
    expected = KernelRidgeClassifier(**GIVEN).fit(X, TEXT, WEIGHT * BALANCED[CODES]).decision_function(X)
    model = KernelRidgeClassifier(class_weight=given, **GIVEN)
    corpus = make_corpus(X, y=CODES, weight=WEIGHT, classes=NAMES)
    assert_allclose(model.fit(corpus).decision_function(X), expected, rtol=1e-7)
    if given == "balanced":
        lazy = model.fit(da.from_array(X, chunks=(60, 3)), da.from_array(CODES, chunks=60), da.from_array(WEIGHT, 60))
        assert_allclose(lazy.decision_function(X), expected, rtol=1e-7)
    assert model.plan(corpus).n_rows == N


def test_partial_fit_applies_class_weights():
    expected = KernelRidgeClassifier(class_weight=TABLE, **GIVEN).fit(X, CODES).decision_function(X)
    more = KernelRidgeClassifier(class_weight=TABLE, **GIVEN)
    for rows in (slice(80), slice(80, None)):
        more.partial_fit(X[rows], CODES[rows], classes=[0, 1, 2])
    assert_allclose(more.decision_function(X), expected, rtol=1e-7)
    with pytest.raises(ConfigError, match="balanced"):
        KernelRidgeClassifier(class_weight="balanced", **GIVEN).partial_fit(X, CODES)


SCORES = {
    "accuracy": lambda y, f, w: metrics.accuracy_score(y, f.argmax(axis=1), sample_weight=w),
    "balanced_accuracy": lambda y, f, w: metrics.balanced_accuracy_score(y, f.argmax(axis=1), sample_weight=w),
    "f1_macro": lambda y, f, w: metrics.f1_score(y, f.argmax(axis=1), average="macro", sample_weight=w),
    "neg_log_loss": lambda y, f, w: -metrics.log_loss(y, normalize(np.clip(f, 1e-3, 1), "l1"), sample_weight=w),
    "neg_mean_squared_error": lambda y, f, w: -metrics.mean_squared_error(np.eye(3)[y], f, sample_weight=w),
    "neg_root_mean_squared_error": lambda y, f, w: -metrics.root_mean_squared_error(np.eye(3)[y], f, sample_weight=w),
    "r2": lambda y, f, w: metrics.r2_score(np.eye(3)[y], f, sample_weight=w),
}


@pytest.mark.parametrize(
    "name, weights, weight",
    [
        ("krr", [TABLE], None),
        ("krr", [None, TABLE, "balanced"], WEIGHT),
        ("sssl", [TABLE], None),
        ("xnv", ["balanced"], WEIGHT),
        ("artl", [TABLE], WEIGHT),
        pytest.param("krr by conjugate gradients", [None, TABLE, "balanced"], WEIGHT, marks=pytest.mark.slow),
    ],
)
def test_scores_of_a_search_use_sample_weights_but_no_class_weights(name, weights, weight):
    model, y, cv, semi = clone(MODELS[name]), CODES.copy(), KFold(2), name in ("sssl", "xnv", "artl")
    y[::4], tolerance = -1 if semi else y[::4], 1e-4 if "gradients" in name else 1e-8
    known, w = np.flatnonzero(y != -1), np.ones(N) if weight is None else weight
    grid = {"class_weight": weights, "alpha": [0.1, 10.0], "kernel__sigma": [1.5, 1.2]}
    search = SweepSearchCV(model, grid, cv=cv, scoring=list(SCORES), refit="r2")
    with pytest.warns(UserWarning, match="keep the weights of their classes") if semi else nullcontext():
        search.fit(X, y, sample_weight=weight)
    balanced = compute_class_weight("balanced", classes=np.arange(3), y=y[known], sample_weight=w[known])
    for params, train, test, score_of in cells(search, ((known[a], known[b]) for a, b in cv.split(known))):
        given = dict(enumerate(balanced)) if params["class_weight"] == "balanced" else params["class_weight"]
        fit, hidden = clone(model).set_params(**params | {"class_weight": given}), np.isin(np.arange(N), test)
        rows, own = train, {"sample_weight": w[train]}
        if semi:  # hidden rows keep the weights of their classes
            rows, own = slice(None), {"sample_weight": w * np.where(hidden, np.vectorize(given.get)(CODES), 1)}
        own |= {"sample_domain": (y == -1) * 1} if name == "artl" else {}
        values = fit.fit(X[rows], np.where(hidden, -1, y)[rows], **own).decision_function(X[test])
        for score, expected in SCORES.items():
            assert_allclose(score_of(score), expected(y[test], values, w[test]), rtol=0, atol=tolerance)
    assert search.best_estimator_.class_weight == search.best_params_["class_weight"]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({0: -1.0}, ConfigError, "-1.0 for class 0"),
        ({0: "two"}, ConfigError, "'two' for class 0"),
        ({0: np.nan}, ConfigError, "nan for class 0"),
        ({7: 1.0}, DataError, "7 is not one of them"),
        ("heavy", ValueError, "class_weight"),
    ],
)
def test_invalid_class_weights_are_refused(given, kind, message):
    with pytest.raises(kind, match=message):
        KernelRidgeClassifier(class_weight=given, **GIVEN).fit(X, CODES)


def test_generalised_cross_validation_needs_the_same_class_weights():
    grid = {"class_weight": [None, "balanced"], "alpha": [1.0, 2.0]}
    with pytest.raises(ConfigError, match="class_weight: neg_gcv"):
        SweepSearchCV(KernelRidgeClassifier(**GIVEN), grid, cv=0, scoring="neg_gcv").fit(X, CODES)
