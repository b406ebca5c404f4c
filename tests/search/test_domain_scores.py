"""Scores of a target without labels: against formulas over predictions of fits to the training rows."""

from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose
from peers import split_scores
from scipy.special import softmax
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

import bigkernel as bk
from bigkernel.errors import ConfigError, DataError
from bigkernel.search.planning import candidates_of, index_of_given
from bigkernel.search.results import choose
from bigkernel.search.scoring import OF_DOMAINS
from bigkernel.solvers.penalty_grid import SolveSettings

rng = np.random.default_rng(36)
N, M = 240, 200  # rows of the source and of the target
TRUTH = rng.integers(0, 3, N + M)
X = (
    np.array([[0, 0], [2, 0], [0, 2]])[TRUTH]
    + 0.6 * rng.normal(size=(N + M, 2))
    + 0.5 * (np.arange(N + M) >= N)[:, None]
)
Y = np.where(np.arange(N + M) < N, TRUTH, -1)
DOMAIN = np.repeat([1, -2], [N, M])
CV = KFold(3, shuffle=True, random_state=5)
KRR = bk.LabelledRowsClassifier(bk.KernelRidgeClassifier(bk.Gaussian(1.0), landmarks=X[::11], dtype="float64"))
ARTL = bk.ARTLClassifier(bk.Gaussian(1.0), landmarks=X[::11], dtype="float64", n_rounds=2, manifold=0.5)
SUMS = ["importance-weighted", "mutual-information"]


def searched(model, grid, X=X, y=Y, domain=None, **options):
    fit = {} if domain is None else {"sample_domain": domain}
    return bk.SweepSearchCV(model, grid, **{"cv": CV, "refit": False, **options}).fit(X, y, **fit)


def expected(values, weights, truth):
    """Scores by their definitions, from f at held-out rows of the source with weights, and at the target."""
    Q = softmax(3 * values[1] / np.sqrt(values[1].var(axis=0).sum()), axis=1)
    return [
        np.average(values[0].argmax(axis=1) == truth, weights=weights),
        (Q * np.log(Q)).sum(axis=1).mean() - Q.mean(axis=0) @ np.log(Q.mean(axis=0)),
    ]


def test_scores_are_their_definitions_on_predictions_of_fits_to_the_training_rows():
    search = searched(KRR, {"estimator__alpha": [0.1, 3.0], "estimator__kernel__sigma": [0.7, 1.5]}, scoring=SUMS)
    ratio = bk.ImportanceWeights(random_state=0).fit(X, sample_domain=DOMAIN).importance_weights_
    for number, params in enumerate(search.cv_results_["params"]):
        for fold, (train, test) in enumerate(CV.split(X[:N])):
            model = clone(KRR).set_params(**params).fit(X[train], Y[train]).estimator_
            values = [model._values(X[test]), model._values(X[N:])]
            for name, score in zip(SUMS, expected(values, ratio[test], Y[test]), strict=True):
                assert_allclose(search.cv_results_[f"split{fold}_test_{name}"][number], score, rtol=1e-6, err_msg=name)
    assert search.plan_.count == 3  # ratio, moments, and scores of the target


def test_lazy_rows_and_domains_without_a_sign_give_the_same_scores():
    fold = np.arange(N + M) % 3
    lazy = da.from_array(X, chunks=(100, 2)), da.from_array(Y, chunks=100)
    options = {"scoring": list(OF_DOMAINS), "cv": fold}
    one = searched(ARTL, {"alpha": [0.1, 3.0]}, domain=DOMAIN, **options)
    two = searched(ARTL, {"alpha": [0.1, 3.0]}, *lazy, domain=np.where(DOMAIN < 0, 7, 4), **options)
    for name in OF_DOMAINS:
        assert_allclose(split_scores(two, name), split_scores(one, name), rtol=1e-6)


def test_rows_of_weight_0_are_not_in_the_target():
    grid, fold = {"estimator__alpha": [0.1, 3.0]}, np.arange(N + M) % 3
    out = (np.arange(N + M) % 4 == 3) & (np.arange(N + M) >= N)
    expected = searched(KRR, grid, X[~out], Y[~out], scoring=SUMS, cv=fold[~out])
    search = bk.SweepSearchCV(KRR, grid, cv=fold, refit=False, scoring=SUMS)
    search.fit(np.where(out[:, None], 9.0, X), Y, sample_weight=np.where(out, 0.0, 1.0))
    assert_allclose(split_scores(search, SUMS[1]), split_scores(expected, SUMS[1]), rtol=1e-6)


LOGISTIC = bk.LabelledRowsClassifier(LogisticRegression(C=0.1))


@pytest.mark.parametrize("model, kinds", [(KRR, 3), (LogisticRegression(), 3), (LOGISTIC, 3), (LOGISTIC, 2), (KRR, 2)])
def test_scorers_are_their_definitions_on_the_values_of_any_classifier(model, kinds):
    y, rows = np.minimum(Y, kinds - 1), np.arange(N + M) % 3 == 0
    model = clone(model).fit(X[~rows & (y >= 0)], y[~rows & (y >= 0)])
    if hasattr(model, "predict_proba"):
        values = model.predict_proba(X[rows])
    else:
        f = model.decision_function(X[rows])
        values = f if kinds == 3 else np.stack([0.5 - f / 2, 0.5 + f / 2], axis=1)
    domain, source = DOMAIN[rows], DOMAIN[rows] > 0
    ratio = bk.ImportanceWeights(n_landmarks=rows.sum(), random_state=0).fit(X[rows], sample_domain=domain)
    weights = ratio.importance_weights_[source]
    scores = expected([values[source], values[~source]], weights, y[rows][source])
    for name, score in zip(SUMS, scores, strict=True):
        for given in (domain, None, np.where(source, "here", "there")):
            assert bk.DomainScorer(name)(model, X[rows], y[rows], given) == pytest.approx(score, rel=1e-6), name


def test_a_scorer_gives_the_score_of_a_sweep_for_many_rows_of_text_labels():
    far = np.concatenate([X, np.repeat(X[N:], 15, axis=0) + 0.1 * rng.normal(size=(15 * M, 2))])
    y = np.array(["a", "b", "c", "-1"])[np.append(Y, np.full(15 * M, -1))]
    domain, (train, test) = np.append(DOMAIN, np.full(15 * M, -2)), next(CV.split(X[:N]))
    search = searched(ARTL, {"alpha": [1.0]}, far, y, domain, cv=[(train, test)], scoring=SUMS[1])
    kept, hidden = np.delete(np.arange(len(far)), test), y.copy()
    hidden[train] = "-1"
    model = clone(ARTL).set_params(alpha=1.0).fit(far[kept], y[kept], sample_domain=domain[kept])
    score = bk.DomainScorer(SUMS[1])(model, far, hidden, domain)
    assert split_scores(search)[0][0] == pytest.approx(score, rel=1e-9)


def test_searches_of_scikit_learn_pass_the_domains_to_scorers():
    scoring = {name: bk.DomainScorer(name).set_score_request(sample_domain=True) for name in SUMS}
    grid, cv = {"alpha": [0.1, 3.0]}, KFold(2, shuffle=True, random_state=0)
    with config_context(enable_metadata_routing=True):
        model = ARTL.set_fit_request(sample_domain=True)
        search = GridSearchCV(clone(model), grid, scoring=scoring, refit=SUMS[1], cv=cv).fit(X, Y, sample_domain=DOMAIN)
        alone = bk.DomainScorer("importance-weighted").set_score_request(sample_domain="side")
        scores = cross_val_score(LOGISTIC, X, Y, scoring=alone, cv=cv, params={"side": DOMAIN})
    for fold, (train, test) in enumerate(cv.split(X)):
        fits = [clone(ARTL).set_params(alpha=a).fit(X[train], Y[train], sample_domain=DOMAIN[train]) for a in (0.1, 3)]
        for name in SUMS:
            wanted = [scoring[name](model, X[test], Y[test], DOMAIN[test]) for model in fits]
            assert_allclose(search.cv_results_[f"split{fold}_test_{name}"], wanted, rtol=1e-9)
        model = clone(LOGISTIC).fit(X[train], Y[train])
        assert scores[fold] == pytest.approx(alone(model, X[test], Y[test], DOMAIN[test]))


def test_a_scorer_refuses_other_names_and_rows_that_it_cannot_judge():
    with pytest.raises(ConfigError, match="expected mutual-information or importance-weighted, found 'circular'"):
        bk.DomainScorer("circular")
    model = LogisticRegression()
    with pytest.raises(DataError, match="fit LabelledRowsClassifier"):
        bk.DomainScorer(SUMS[1])(model.fit(X, Y), X, Y)
    model.fit(X[:N], Y[:N] > 0)
    with pytest.raises(DataError, match="found 440 and 0"):
        bk.DomainScorer(SUMS[1])(model, X, TRUTH, DOMAIN)
    with pytest.raises(DataError, match=r"found \[0, 1, 2\] after a fit to \[False, True\]"):
        bk.DomainScorer(SUMS[1])(model, X, Y, DOMAIN)


@pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")
@pytest.mark.parametrize("score", SUMS)
def test_the_estimator_as_it_is_is_left_only_for_a_clear_gain(score):
    def best(given, tried):
        model = clone(KRR).set_params(estimator__kernel__sigma=given)
        search = searched(model, {"estimator__kernel__sigma": tried}, scoring=score)
        assert len(search.cv_results_["params"]) == len({given, *tried})
        assert search.best_score_ == search.cv_results_["mean_test_score"][search.best_index_]
        return search.best_params_["estimator__kernel__sigma"]

    assert best(0.02, [0.01, 1.0]) == 1.0
    assert best(1.0, [0.02, 1.0]) == 1.0
    assert best(1.0, [0.02, 1.02]) == 1.0
    assert best(1.0, [0.02, 0.98]) == 1.0


SAME_TO_PRINT = np.zeros((300, 4)), np.diag(np.arange(300) == 150)[:, 148:152] * 1.0


@pytest.mark.parametrize(
    "given, grid, index",
    [
        ({"landmarks": SAME_TO_PRINT[0]}, [{"landmarks": SAME_TO_PRINT[1]}], 1),
        ({"landmarks": SAME_TO_PRINT[0]}, [{"landmarks": one.copy()} for one in SAME_TO_PRINT[::-1]], 1),
        ({"kernel": bk.Gaussian(), "n_landmarks": 9}, [{"kernel": bk.Matern(), "kernel__nu": 1.5}], 1),
        ({"n_landmarks": None}, [{"n_landmarks": 9}], None),  # exact
    ],
)
def test_the_estimator_as_it_is_has_the_parameters_that_it_has(given, grid, index):
    model = bk.KernelRidgeClassifier(**given)
    everyone = candidates_of(model, grid)
    assert index_of_given(model, grid, everyone) == index
    assert [one.index for one in everyone] == list(range(max(len(grid), 1 + (index or 0))))
    assert index is None or all(everyone[index].params[name] is not None for name in set(given) & set(grid[0]))


@pytest.mark.parametrize(
    "gains, others, chosen",
    [
        ([0.2, 0.3, 0.2], [0.1, 0.1], 1),
        ([0.6, -0.4, 0.1], [0.05, 0.05], 0),  # within the spread over splits
        ([0.2, 0.2, 0.2], [-2.0, 0.1], 0),  # within that of the candidates
        ([0.2], [0.1, 0.1], 1),
        ([0.2], [-2.0, 0.1], 0),
        ([-0.1, -0.2, -0.1], [-0.3, -0.4], 0),
    ],
)
def test_a_gain_is_clear_beyond_its_standard_error_and_the_spread_of_scores(gains, others, chosen):
    table = np.column_stack([np.zeros(len(gains)), gains, *(np.full(len(gains), one) for one in others)])
    found = {f"split{place}_test_score": row for place, row in enumerate(table)}
    found |= {"mean_test_score": table.mean(axis=0), "sem_test_score": table.std(axis=0)}
    found["rank_test_score"] = (-found["mean_test_score"]).argsort().argsort()
    everyone = [SimpleNamespace(basis=None, solve_settings=SolveSettings(1.0)) for _ in table[0]]
    assert choose(found, "score", everyone, one_standard_error=False, given=0) == chosen
    assert choose(found, "score", everyone, one_standard_error=False, given=None) == table.mean(axis=0).argmax()


def test_a_function_with_the_name_of_a_score_stays_a_function():
    def scorer(estimator, X, y):
        return 0.25

    scorer.__name__ = SUMS[1]
    assert (searched(KRR, {"estimator__alpha": [0.1]}, scoring=scorer).cv_results_["mean_test_score"] == 0.25).all()


def test_a_target_with_labels_and_regressors_are_refused():
    with pytest.raises(DataError, match="found 440 and 0; mask the labels of the target with −1"):
        searched(KRR, {"estimator__alpha": [1.0]}, y=TRUTH, scoring=SUMS[1])
    with pytest.raises(ConfigError, match="'mutual-information' expects a classifier"):
        searched(bk.KernelRidge(landmarks=X[:9]), {"alpha": [1.0]}, y=X[:, 0], scoring=SUMS[1])
