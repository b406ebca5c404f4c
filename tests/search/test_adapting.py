"""The search over ARTLClassifier: every cell is a fit to the labels that its split leaves, and rounds share sweeps."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from peers import cells
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.errors import ConfigError, DataError
from bigkernel.events.job import SweepStarted, observe

rng = np.random.default_rng(2014)
N_S, N_T, D, M = 72, 48, 3, 12
N = N_S + N_T
TRUTH = np.resize([0, 1, 2], N)
X = np.array([[0.0, 0.0, 0.0], [2.5, 0.0, 0.0], [0.0, 2.5, 0.0]])[TRUTH] + 0.8 * rng.normal(size=(N, D))
X[N_S:] += [0.6, -0.4, 0.5]
SIDE = (np.arange(N) >= N_S) * 1
CODES = np.where(SIDE == 0, TRUTH, -1)
DOMAIN = np.where(SIDE == 0, np.arange(N) % 2, 7)
WEIGHT = rng.uniform(0.2, 2, N)
Z = X[:: N // M][:M] + 0.01
MODEL = bk.ARTLClassifier(bk.Gaussian(1.5), landmarks=Z, sharpness=4.0, n_rounds=3)

pytestmark = [
    pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning"),  # grids are small
    pytest.mark.filterwarnings("ignore::bigkernel.errors.CollapsedLabelsWarning"),  # of fits that are compared with
]


def separate(params, y, train, domain, weight=None):
    """The fit of a candidate to the labels of some rows alone."""
    shown = np.full(N, -1)
    shown[train] = y[train]
    return clone(MODEL).set_params(**params).fit(X, shown, sample_domain=domain, sample_weight=weight)


def require_cells(search, y, splits, domain, weight=None):
    """Squared errors and shares of right classes, as separate fits have them."""
    w = np.ones(N) if weight is None else weight
    for params, train, test, score in cells(search, splits):
        values = separate(params, y, train, domain, weight).decision_function(X[test])
        error = np.average((values - np.eye(3)[y[test]]) ** 2, axis=0, weights=w[test]).mean()
        right = np.average(values.argmax(axis=1) == y[test], weights=w[test])
        assert_allclose(score("error"), -error, rtol=1e-7, err_msg=f"{params}")
        assert_allclose(score("right"), right, rtol=1e-12, err_msg=f"{params}")


SCORES = {"scoring": {"error": "neg_mean_squared_error", "right": "accuracy"}}


@pytest.mark.parametrize(
    "grid",
    [
        {"kernel__sigma": [1.0, 1.6], "alpha": [0.05], "manifold": [0.0, 1.0], "n_rounds": [0, 3]},
        {"mmd": [0.0, 10.0], "balance": [0.2], "sharpness": [5.0, (2.0, 8.0)], "n_neighbors": [2, 3]},
    ],
    ids=["penalties", "rounds"],
)
def test_every_cell_is_a_fit_with_the_labels_of_a_fold_hidden(grid):
    cv, events = StratifiedKFold(3), []
    with observe(events.append):
        search = bk.SweepSearchCV(MODEL, grid, cv=cv, refit="right", **SCORES).fit(X, CODES, sample_weight=WEIGHT)
    require_cells(search, TRUTH, cv.split(X[:N_S], TRUTH[:N_S]), SIDE, WEIGHT)
    assert (search.cv_results_["prediction_error"] < 1e-6).all()
    # two kernels, or two graphs: moments and scores of each, and its rounds
    names = [event.what for event in events if isinstance(event, SweepStarted)]
    assert (names.count("tune"), names.count("scores")) == (2, 2)
    assert 4 < len(names) <= search.plan_.count == 4 + 3 * 3
    alone = clone(MODEL).set_params(**search.best_params_).fit(X, CODES, sample_weight=WEIGHT)
    assert_allclose(search.decision_function(X), alone.decision_function(X), rtol=1e-7, atol=1e-10)
    assert len(search.best_estimator_.rounds_) == len(alone.rounds_)


def pair(train, test):
    return np.flatnonzero(train), np.flatnonzero(test)


HALF, SOME = [(np.arange(N_S), np.arange(N_S, N, 2))], [(np.arange(40), np.arange(40, 60))]
SPLITS = {
    "labelled domains": ("domains", CODES, [pair((d != DOMAIN) & (SIDE == 0), d == DOMAIN) for d in (0, 1)]),
    "all domains are labelled": ("domains", TRUTH, [pair(d != DOMAIN, d == DOMAIN) for d in (0, 1, 7)]),
    "half of the target is tested": (HALF, np.where((SIDE == 0) | (np.arange(N) % 2 == 0), TRUTH, -1), HALF),
    "some rows of the source are not trained on": (SOME, CODES, SOME),
}


@pytest.mark.parametrize("cv, y, splits", SPLITS.values(), ids=SPLITS)
def test_source_and_target_of_a_split_follow_from_its_labels(cv, y, splits):
    search = bk.SweepSearchCV(MODEL, {"alpha": [0.1, 1.0]}, cv=cv, refit=False, **SCORES)
    require_cells(search.fit(X, y, sample_domain=DOMAIN), y, splits, DOMAIN)


def test_landmarks_and_the_bandwidth_are_those_of_a_fit_to_all_rows():
    model = bk.ARTLClassifier(n_landmarks=M, landmarks="balanced-k-means", sharpness=4.0, n_rounds=2, random_state=0)
    search = bk.SweepSearchCV(model, {"alpha": [0.05, 0.5]}, cv=3).fit(X, CODES)
    alone = clone(model).set_params(**search.best_params_).fit(X, CODES)
    assert_array_equal(search.best_estimator_.landmarks_, alone.landmarks_)
    assert search.best_estimator_.kernel_.sigma == alone.kernel_.sigma
    assert_allclose(search.decision_function(X), alone.decision_function(X), rtol=1e-7, atol=1e-10)


@pytest.mark.filterwarnings("ignore:class_weight. held-out", "ignore:scoring. labels are by decision")
def test_the_best_model_has_all_that_a_fit_of_its_own_has(tmp_path):
    model = clone(MODEL).set_params(probability=True, class_weight="balanced")
    search = bk.SweepSearchCV(model, {"alpha": [0.05, 0.5]}, cv=3).fit(X, CODES, sample_domain=DOMAIN)
    alone = clone(model).set_params(**search.best_params_).fit(X, CODES, sample_domain=DOMAIN)
    assert_allclose(search.predict_proba(X), alone.predict_proba(X), rtol=1e-7)
    best = search.best_estimator_
    assert_array_equal(best.target_domains_, [7])
    assert_array_equal(best.source_domains_, [0, 1])
    plain = bk.SweepSearchCV(MODEL, {"manifold": [0.0, 1.0]}, cv=3).fit(X, CODES).best_estimator_
    bk.save_model(plain, tmp_path / "best")
    assert_array_equal(bk.load_model(tmp_path / "best").predict(X), plain.predict(X))
    assert ("anchors" in plain.statistics_) == (plain.manifold > 0)


def test_float32_rows_of_a_wide_kernel_are_swept_again_where_candidates_would_be_off():
    rows = X.astype(np.float32)
    model = clone(MODEL).set_params(kernel=bk.Gaussian(12.0), alpha=1e-4, n_rounds=1)
    search = bk.SweepSearchCV(model, {"alpha": [1e-4, 1e-3]}, cv=3).fit(rows, CODES)
    alone = clone(model).set_params(**search.best_params_).fit(rows, CODES)
    assert search.best_estimator_.dtype_ == alone.dtype_ == "float64"
    assert (search.cv_results_["prediction_error"] < 1e-3).all()


def test_splits_without_a_target_are_refused_before_any_sweep():
    events = []
    with observe(events.append):
        with pytest.raises(DataError, match=r"split 0 leaves labels in every domain.*cv='domains'"):
            bk.SweepSearchCV(MODEL, {"alpha": [0.1]}, cv=3, refit=False).fit(X, TRUTH, sample_domain=DOMAIN)
        with pytest.raises(ConfigError, match=r"refit: every domain has labelled rows.*refit=False"):
            bk.SweepSearchCV(MODEL, {"alpha": [0.1]}, cv="domains").fit(X, TRUTH, sample_domain=DOMAIN)
        with pytest.raises(ConfigError, match="neg_gcv needs one penalty for all directions"):
            bk.SweepSearchCV(MODEL, {"alpha": [0.1]}, scoring="neg_gcv").fit(X, CODES)
    assert not [event for event in events if isinstance(event, SweepStarted)]


def test_methods_that_share_no_sweep_are_refused_with_an_alternative():
    for model, message in (
        (bk.JDA(n_landmarks=M), "JDA has no predictions to score; search a Pipeline"),
        (bk.KernelLogisticClassifier(n_landmarks=M), r"every step is a sweep for one model.*KernelRidgeClassifier"),
    ):
        with pytest.raises(ConfigError, match=message):
            bk.SweepSearchCV(model, {"alpha": [0.1, 1.0]}).fit(X, CODES)
    projected = make_pipeline(
        bk.JDA(bk.Gaussian(1.5), n_components=3, landmarks=Z, n_rounds=1),
        bk.SSSLClassifier(bk.Gaussian(1.0), n_landmarks=M, random_state=0),
    )
    assert bk.SweepSearchCV(projected, {"jda__alpha": [0.1, 1.0]}, cv=3).fit(X, CODES).best_score_ > 0.8


def test_transforms_of_a_pipeline_get_the_domains():
    y = np.where(np.arange(N) % 5 == 0, -1, CODES)  # with rows of the source that have no label, and are no target
    jda = bk.JDA(bk.Gaussian(1.5), n_components=3, landmarks=Z, n_rounds=1)
    last = bk.SSSLClassifier(bk.Gaussian(1.0), n_landmarks=M, random_state=0)
    search = bk.SweepSearchCV(make_pipeline(jda, last), {"ssslclassifier__alpha": [1.0]}, cv=3)
    result = search.fit(X, y, sample_domain=DOMAIN).best_estimator_
    assert_array_equal(result[0].transform(X), clone(jda).fit(X, y, sample_domain=DOMAIN).transform(X))
