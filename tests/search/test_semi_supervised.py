"""The search over SSSL: labelled rows are folded, tested ones stay without labels, unlabelled ones always."""

import numpy as np
import pytest
import reference
from numpy.testing import assert_allclose, assert_array_equal
from peers import split_scores
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, TimeSeriesSplit

from bigkernel import SSSL, Gaussian, Laplacian, SSSLClassifier, SweepSearchCV

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdge")  # grids are small
rng = np.random.default_rng(20120706)
N, D, M = 90, 3, 14
X = rng.normal(size=(N, D))
NEW = rng.normal(size=(15, D))
Z = X[rng.permutation(N)[:M]] + 0.02
LABELLED = rng.permutation(N) < 48
IDS = np.flatnonzero(LABELLED)
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.normal(size=(N, 2))
PARTLY = np.where(LABELLED[:, None], Y, np.nan)
LABELS = np.digitize(X[:, 0] + 0.4 * rng.normal(size=N), [-0.5, 0.4])
CODES = np.where(LABELLED, LABELS, -1)
FORMS = {"all": {"landmarks": Z, "eigenfunctions": "all"}, "landmarks": {"landmarks": Z, "eigenfunctions": "landmarks"}}
every_form = pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)


def coefficients(form, there, target, s, alpha, sigma):
    """Of the dense form in which the rows `there` are labelled, and the rows that they belong to."""
    B, core = reference.gaussian(X, Z, sigma), reference.gaussian(Z, Z, sigma)
    if form == "all":
        return Z, reference.sssl_all(B, core, there, target, s, alpha)
    return Z, reference.sssl_landmarks(core, B[there].T, target, s, alpha)


@pytest.mark.parametrize("form", FORMS)
def test_every_cell_is_that_of_the_dense_form_with_the_labels_of_a_fold_hidden(form):
    grid = {"alpha": [0.05, 1.0], "n_components": [1, 5, 13, 60], "kernel__sigma": [0.8, 1.4]}
    folds = KFold(3, shuffle=True, random_state=2)
    search = SweepSearchCV(
        SSSL(Gaussian(), **FORMS[form]), grid, cv=folds, scoring="neg_mean_squared_error"
    ).fit(X, PARTLY)  # fmt: skip
    for j, (train, test) in enumerate(folds.split(IDS)):
        there = np.zeros(N, bool)
        there[IDS[train]] = True
        for i, params in enumerate(search.cv_results_["params"]):
            sigma = params["kernel__sigma"]
            points, coef = coefficients(form, there, Y[there], params["n_components"], params["alpha"], sigma)
            squares = (Y[IDS[test]] - reference.gaussian(X[IDS[test]], points, sigma) @ coef) ** 2
            assert_allclose(search.cv_results_[f"split{j}_test_score"][i], -squares.mean(), rtol=0, atol=1e-8)


@every_form
@pytest.mark.parametrize(
    "cv", [StratifiedKFold(3), ShuffleSplit(3, test_size=0.3, random_state=1)], ids=["k", "shuffle"]
)
def test_classes_are_judged_by_refits_with_hidden_labels(settings, cv):
    model = SSSLClassifier(Gaussian(1.2), **settings)
    grid = {"alpha": [0.05, 1.0], "n_components": [3, 10], "kernel": [Gaussian(1.0), Laplacian(0.3)]}
    search = SweepSearchCV(model, grid, cv=cv).fit(X, CODES)
    for j, (_, test) in enumerate(cv.split(IDS, LABELS[IDS])):
        hidden = CODES.copy()
        hidden[IDS[test]] = -1
        for i, params in enumerate(search.cv_results_["params"]):
            found = clone(model).set_params(**params).fit(X, hidden).predict(X[IDS[test]])
            assert search.cv_results_[f"split{j}_test_score"][i] == accuracy_score(LABELS[IDS[test]], found)
    wanted = clone(model).set_params(**search.best_params_).fit(X, CODES)
    assert_array_equal(search.predict(NEW), wanted.predict(NEW))
    assert_allclose(search.decision_function(NEW), wanted.decision_function(NEW), atol=1e-8)


@every_form
def test_rows_that_a_split_leaves_out_shape_nothing(settings):
    model, cv = SSSL(Gaussian(1.2), n_components=6, **settings), TimeSeriesSplit(3)
    search = SweepSearchCV(model, {"alpha": [0.05, 1.0]}, cv=cv, scoring="neg_mean_squared_error").fit(X, PARTLY[:, 0])
    for j, (train, test) in enumerate(cv.split(IDS)):
        seen = np.union1d(np.union1d(IDS[train], IDS[test]), np.flatnonzero(~LABELLED))
        hidden = PARTLY[:, 0].copy()
        hidden[IDS[test]] = np.nan
        for i, alpha in enumerate([0.05, 1.0]):
            fitted = clone(model).set_params(alpha=alpha).fit(X[seen], hidden[seen])
            wanted = -np.mean((Y[IDS[test], 0] - fitted.predict(X[IDS[test]])) ** 2)
            assert_allclose(search.cv_results_[f"split{j}_test_score"][i], wanted, atol=1e-8)


@every_form
def test_unlabelled_rows_count(settings):
    few = SweepSearchCV(SSSL(Gaussian(1.2), n_components=4, **settings), {"alpha": [0.05]}, cv=KFold(3))
    with_all, without = few.fit(X, PARTLY[:, 0]), clone(few).fit(X[IDS], PARTLY[IDS, 0])
    same = np.allclose(split_scores(with_all), split_scores(without), rtol=1e-6)
    assert same == (settings.get("eigenfunctions") == "landmarks")


@pytest.mark.parametrize("form", ["all", "landmarks"])
def test_moments_are_kept_apart_for_the_refit(form):
    search = SweepSearchCV(SSSL(Gaussian(1.2), **FORMS[form]), {"alpha": [0.1], "n_components": [3, 7]}, cv=KFold(3))
    best = search.fit(X, PARTLY).best_estimator_
    alone = SSSL(Gaussian(1.2), alpha=0.1, n_components=best.n_components, **FORMS[form]).fit(X, PARTLY)
    assert best.statistics_["rows"].tolist() == [N - LABELLED.sum(), LABELLED.sum()]
    for name, values in alone.statistics_.items():
        if name in ("E", "seen"):  # rounding, which differs from sum to sum
            continue
        assert_allclose(best.statistics_[name], values, rtol=1e-11, atol=1e-11, err_msg=name)
    more = NEW, np.full((15, 2), np.nan)
    assert_allclose(best.partial_fit(*more).predict(NEW), alone.partial_fit(*more).predict(NEW), atol=1e-9)
    assert best.n_components_ == best.n_components


def test_an_unlabelled_domain_shapes_every_fold_and_is_never_left_out():
    domain = np.arange(N) // 30 * 10  # 0, 10, 20
    target = np.where(domain == 20, np.nan, Y[:, 0])
    model = SSSL(Gaussian(1.2), landmarks=Z, n_components=6, alpha=0.1)
    search = SweepSearchCV(model, {}, cv="domains", scoring="neg_mean_squared_error").fit(
        X, target, sample_domain=domain
    )
    assert search.n_splits_ == 2
    for j, left_out in enumerate((0, 10)):
        hidden = np.where(domain == left_out, np.nan, target)
        wanted = -np.mean((Y[domain == left_out, 0] - clone(model).fit(X, hidden).predict(X[domain == left_out])) ** 2)
        assert_allclose(search.cv_results_[f"split{j}_test_score"][0], wanted, atol=1e-8)


def test_weights_of_semi_supervised_rows():
    weight = rng.uniform(0.2, 2, N)
    model, cv = SSSL(Gaussian(1.2), landmarks=Z, n_components=6, alpha=0.1), KFold(3)
    search = SweepSearchCV(model, {}, cv=cv, scoring="neg_mean_squared_error")
    search.fit(X, PARTLY[:, 0], sample_weight=weight)
    for j, (_, test) in enumerate(cv.split(IDS)):
        ids = IDS[test]
        hidden = PARTLY[:, 0].copy()
        hidden[ids] = np.nan
        fitted = clone(model).fit(X, hidden, sample_weight=weight)
        wanted = -np.average((Y[ids, 0] - fitted.predict(X[ids])) ** 2, weights=weight[ids])
        assert_allclose(search.cv_results_[f"split{j}_test_score"][0], wanted, atol=1e-8)
