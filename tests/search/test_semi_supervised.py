"""The search over SSSL and XNV: labelled rows are folded, tested ones stay without labels, unlabelled ones always."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from peers import cells
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import KFold, ParameterGrid, ShuffleSplit, StratifiedKFold, TimeSeriesSplit

from bigkernel import SSSL, XNV, Gaussian, Laplacian, SSSLClassifier, SweepSearchCV, XNVClassifier
from bigkernel.events.job import SweepStarted, observe

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")  # grids are small
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
WEIGHT = rng.uniform(0.2, 2, N)
SCORE = {"scoring": "neg_mean_squared_error"}
FORMS = {form: {"landmarks": Z, "eigenfunctions": form, "manifold": 0.0} for form in ("all", "landmarks")}
every_form = pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
OF_NUMBERS = {
    "all": (SSSL(**FORMS["all"]), {"n_components": [1, 5, 13, 60]}),
    "landmarks": (SSSL(**FORMS["landmarks"]), {"n_components": [1, 5, 13, 60]}),
    "views given": (XNV(landmarks=Z), {"fit_intercept": [True, False], "view_alpha": [0.0, 1.0, 30.0]}),
    "views sampled": (XNV(n_landmarks=7, random_state=3), {"fit_intercept": [True, False]}),
}
COMPONENTS = {"n_components": [3, 10]}
OF_CLASSES = {
    "all": (SSSLClassifier(**FORMS["all"]), COMPONENTS),
    "landmarks": (SSSLClassifier(**FORMS["landmarks"]), COMPONENTS),
    "views": (XNVClassifier(n_landmarks=7, random_state=0), {}),
}


def without(target, ids):
    """The targets with those of some rows hidden."""
    hidden = target.copy()
    hidden[ids] = -1 if target.dtype.kind == "i" else np.nan
    return hidden


def of_ids(cv, y=None):
    """The splits of the labelled rows, by numbers of rows."""
    return [(IDS[train], IDS[test]) for train, test in cv.split(IDS, y)]


@pytest.mark.parametrize("name, weight", [*zip(OF_NUMBERS, [WEIGHT, None, WEIGHT, None], strict=True)])
def test_numbers_are_judged_by_refits_with_hidden_targets(name, weight):
    model, more = OF_NUMBERS[name]
    grid, cv, events = {"alpha": [1e-3, 0.1], "kernel__sigma": [1.0, 1.6], **more}, KFold(3), []
    model = clone(model).set_params(kernel=Gaussian())
    with observe(events.append):
        search = SweepSearchCV(model, grid, cv=cv, **SCORE).fit(X, PARTLY, sample_weight=weight)
    assert len([event for event in events if isinstance(event, SweepStarted)]) == search.plan_.count == 1
    for params, _, test, score in cells(search, of_ids(cv)):
        fitted = clone(model).set_params(**params).fit(X, without(PARTLY, test), sample_weight=weight)
        own = None if weight is None else weight[test]
        expected = -np.average((Y[test] - fitted.predict(X[test])) ** 2, axis=0, weights=own).mean()
        assert_allclose(score(), expected, rtol=1e-7)
    assert (search.cv_results_["prediction_error"] < 1e-6).all()
    alone = clone(model).set_params(**search.best_params_).fit(X, PARTLY, sample_weight=weight)
    assert_allclose(search.predict(X), alone.predict(X), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_classes_are_judged_by_refits_with_hidden_labels(name):
    model, more = OF_CLASSES[name]
    cv = StratifiedKFold(3) if name == "all" else ShuffleSplit(3, test_size=0.3, random_state=1)
    grid = {"alpha": [0.05, 1.0], "kernel": [Gaussian(1.0), Laplacian(0.3)], **more}
    search = SweepSearchCV(model, grid, cv=cv, scoring=["accuracy", "f1_macro"], refit="accuracy").fit(X, CODES)
    for params, _, test, score in cells(search, of_ids(cv, LABELS[IDS])):
        result = clone(model).set_params(**params).fit(X, without(CODES, test)).predict(X[test])
        assert score("accuracy") == accuracy_score(LABELS[test], result)
    expected = clone(model).set_params(**search.best_params_).fit(X, CODES)
    assert_array_equal(search.predict(NEW), expected.predict(NEW))
    assert_allclose(search.decision_function(NEW), expected.decision_function(NEW), atol=1e-8)


def test_graphs_of_all_weights_share_a_sweep():
    model, events = SSSLClassifier(Gaussian(1.2), landmarks=Z, n_components=10), []
    grid = {"manifold": [0.0, 10.0, "gcv"], "alpha": [0.01, 0.3, "gcv"], "n_components": [4, 10]}
    with observe(events.append):
        search = SweepSearchCV(model, grid, cv=KFold(3), **SCORE).fit(X, CODES)
    assert len([event for event in events if isinstance(event, SweepStarted)]) == search.plan_.count == 1
    assert search.plan_.sweeps[0].startswith("1 kernel, 18 candidates, 3 folds: moments")
    for params, _, test, score in cells(search, of_ids(KFold(3))):
        values = clone(model).set_params(**params).fit(X, without(CODES, test)).decision_function(X[test])
        assert_allclose(score(), -np.mean((values - np.eye(3)[LABELS[test]]) ** 2), rtol=1e-7)
    expected = clone(model).set_params(**search.best_params_).fit(X, CODES)
    assert_allclose(search.decision_function(NEW), expected.decision_function(NEW), atol=1e-8)


@every_form
def test_rows_that_a_split_leaves_out_shape_nothing(settings):
    model, cv = SSSL(Gaussian(1.2), n_components=6, **settings), TimeSeriesSplit(3)
    search = SweepSearchCV(model, {"alpha": [0.05, 1.0]}, cv=cv, **SCORE).fit(X, PARTLY[:, 0])
    for params, train, test, score in cells(search, of_ids(cv)):
        used = np.union1d(np.union1d(train, test), np.flatnonzero(~LABELLED))
        fitted = clone(model).set_params(**params).fit(X[used], without(PARTLY[:, 0], test)[used])
        assert_allclose(score(), -np.mean((Y[test, 0] - fitted.predict(X[test])) ** 2), atol=1e-8)


@every_form
def test_moments_are_kept_apart_for_the_refit(settings):
    search = SweepSearchCV(SSSL(Gaussian(1.2), **settings), {"alpha": [0.1], "n_components": [3, 7]}, cv=KFold(3))
    best = search.fit(X, PARTLY).best_estimator_
    alone = SSSL(Gaussian(1.2), alpha=0.1, n_components=best.n_components, **settings).fit(X, PARTLY)
    assert best.statistics_["rows"].tolist() == [N - LABELLED.sum(), LABELLED.sum()]
    for name, values in alone.statistics_.items():
        if name not in ("E", "probed_rows"):  # rounding, which differs from sum to sum
            assert_allclose(best.statistics_[name], values, rtol=1e-11, atol=1e-11, err_msg=name)
    more = NEW, np.full((15, 2), np.nan)
    assert_allclose(best.partial_fit(*more).predict(NEW), alone.partial_fit(*more).predict(NEW), atol=1e-9)
    assert best.n_components_ == best.n_components


def test_an_unlabelled_domain_shapes_every_fold_and_is_never_left_out():
    domain = np.arange(N) // 30 * 10  # 0, 10, 20
    target = np.where(domain == 20, np.nan, Y[:, 0])
    model = SSSL(Gaussian(1.2), landmarks=Z, n_components=6, alpha=0.1)
    search = SweepSearchCV(model, {}, cv="domains", **SCORE).fit(X, target, sample_domain=domain)
    assert search.n_splits_ == 2
    for _, _, test, score in cells(search, [(None, np.flatnonzero(domain == left_out)) for left_out in (0, 10)]):
        fitted = clone(model).fit(X, without(target, test))
        assert_allclose(score(), -np.mean((Y[test, 0] - fitted.predict(X[test])) ** 2), atol=1e-8)


@pytest.mark.filterwarnings(
    "ignore::bigkernel.errors.AccuracyWarning", "ignore::bigkernel.errors.RankDeficiencyWarning"
)
def test_a_view_that_loses_directions_to_rounding_is_summed_in_float64():
    rows = X.astype(np.float32)
    model = XNV(Gaussian(9.0), n_landmarks=20, random_state=0, alpha=1e-6, view_alpha=0.0)
    search = SweepSearchCV(model, {"alpha": [1e-6, 1e-2]}, cv=KFold(3)).fit(rows, PARTLY)
    alone = clone(model).set_params(**search.best_params_).fit(rows, PARTLY)
    assert search.best_estimator_.dtype_ == alone.dtype_ == "float64"
    assert search.best_estimator_.view_ranks_ == alone.view_ranks_


def test_each_candidate_of_eigenfunctions_knows_its_error():
    rows = np.asarray(np.random.default_rng(0).uniform(-1, 1, (400, 3)), np.float32)
    y = np.sin(3 * rows[:, 0])
    cv, grid = KFold(2), {"n_components": [4, 60], "alpha": [1e-9, 1.0]}
    coarse = SSSL(Gaussian(0.7), n_landmarks=60, dtype="float32", random_state=0)  # in float64 of the same rank
    for params in ParameterGrid(grid):
        # several candidates would share the precision of the worst of them
        alone = SweepSearchCV(coarse, {name: [value] for name, value in params.items()}, cv=cv, refit=False)
        estimated = alone.fit(rows, y).cv_results_["prediction_error"][0]
        of_fits, off = [], []
        for _, test in cv.split(rows):
            hidden = without(y, test)
            fine = clone(coarse).set_params(dtype="float64", **params).fit(rows, hidden).predict(rows)
            fitted = clone(coarse).set_params(**params).fit(rows, hidden)
            of_fits.append(fitted.diagnostics_["prediction_error"])
            off.append(np.linalg.norm(fitted.predict(rows) - fine) / np.linalg.norm(fine))
        # one sample of the rounding of other groups is as good an estimate
        assert max(off) / 10 <= estimated <= 30 * max(of_fits), (params, estimated, of_fits, off)
