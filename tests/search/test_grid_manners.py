"""GridSearchCV's manners: scores of training rows, fits that fail, what is printed, ties and ends of the grid."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from peers import peer
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Laplacian, Ridge, SweepSearchCV
from bigkernel.errors import BestAtEdge, ConfigError, DataError
from bigkernel.search.axes import around, edges

rng = np.random.default_rng(2026)
N = 120
X = rng.normal(size=(N, 3))
Z = X[:14] + 0.03
Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2]]) + 0.2 * rng.normal(size=(N, 2))
LABELS = np.array(["ape", "bee", "cat"])[np.digitize(X[:, 0] + 0.5 * rng.normal(size=N), [-0.4, 0.5])]
GRID = {"alpha": [1e-3, 1.0], "kernel__sigma": [0.8, 1.6]}
NUMBERS = ["r2", "neg_mean_squared_error"]
CLASSES = ["accuracy", "balanced_accuracy"]
FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
SPLITS = list(FOLDS.split(X, LABELS))


@pytest.mark.parametrize(
    "model, grid, y, scoring, atol",
    [
        (KernelRidge(Gaussian(1.0), landmarks=Z, fit_intercept=True), GRID, Y + 5, NUMBERS, 1e-8),
        (KernelRidge(Gaussian(1.0)), GRID, Y, NUMBERS, 1e-12),
        (KernelRidge(Gaussian(1.0), landmarks=Z, solver="cg", tol=1e-9, max_iter=60), GRID, Y, NUMBERS, 1e-5),
        (Ridge(), {"alpha": [0.1, 10.0], "fit_intercept": [True, False]}, Y + 5, NUMBERS, 1e-8),
        (KernelRidgeClassifier(Gaussian(1.0), landmarks=Z), GRID, LABELS, CLASSES, 1e-12),
        (KernelRidgeClassifier(Gaussian(1.0)), GRID, LABELS, CLASSES, 1e-12),
    ],
    ids=["landmarks", "exact", "cg", "linear", "classes", "exact classes"],
)
def test_scores_of_training_rows_are_those_of_the_peer(model, grid, y, scoring, atol):
    options = {"cv": SPLITS, "scoring": scoring, "refit": False, "return_train_score": True}
    ours = SweepSearchCV(model, grid, **options).fit(X, y).cv_results_
    theirs = peer(model, grid, X, y, **options).cv_results_
    assert {name for name in ours if "train" in name} == {name for name in theirs if "train" in name}
    for name in (name for name in theirs if "_train_" in name or "_test_" in name):
        assert_allclose(ours[name], theirs[name], rtol=0, atol=atol, err_msg=name)


def test_a_function_chooses_and_masks_are_splits_too():
    def least_fit(results):
        return int(np.argmin(results["mean_test_r2"]))

    masks = [(np.isin(np.arange(N), train), np.isin(np.arange(N), test)) for train, test in SPLITS]
    given = {"scoring": NUMBERS, "refit": least_fit, "cv": masks}
    model = KernelRidge(Gaussian(1.0), landmarks=Z)
    search = SweepSearchCV(model, GRID, **given).fit(X, Y)
    assert search.best_index_ == least_fit(search.cv_results_)
    assert search.best_params_ == search.cv_results_["params"][search.best_index_]
    assert not hasattr(search, "best_score_")  # as in GridSearchCV
    named = SweepSearchCV(model, GRID, scoring=NUMBERS, refit=False, cv=SPLITS).fit(X, Y)
    assert_array_equal(search.cv_results_["mean_test_r2"], named.cv_results_["mean_test_r2"])
    assert_allclose(search.predict(X), model.set_params(**search.best_params_).fit(X, Y).predict(X), atol=1e-9)


def test_overlapping_splits_train_on_what_they_name():
    pairs = [(np.arange(50), np.arange(50, 90)), (np.arange(30, 100), np.arange(20))]
    model = KernelRidgeClassifier(Gaussian(1.0), landmarks=Z)
    options = {"cv": pairs, "scoring": "accuracy", "return_train_score": True, "refit": False}
    found, wanted = (search(model, GRID, **options).fit(X, LABELS) for search in (SweepSearchCV, GridSearchCV))
    for j in range(2):
        assert_array_equal(found.cv_results_[f"split{j}_train_score"], wanted.cv_results_[f"split{j}_train_score"])


BROKEN = {"kernel": [Gaussian(1.0), Gaussian(1e-6), Laplacian(0.5)], "alpha": [0.1, 1.0]}


@pytest.mark.parametrize("error_score", [np.nan, -3.0])
def test_kernels_that_fail_count_as_wanted_and_leave_the_others_as_they_are(error_score):
    model = KernelRidge(landmarks=Z, dtype="float32")
    with pytest.raises(DataError, match="float32"):
        SweepSearchCV(model, BROKEN, cv=SPLITS).fit(X, Y)
    with pytest.warns(FitFailedWarning, match="6 of 18 fits failed.* float32"):
        found = SweepSearchCV(model, BROKEN, cv=SPLITS, error_score=error_score).fit(X, Y)
    results, bad = found.cv_results_, np.array([p["kernel"] == Gaussian(1e-6) for p in found.cv_results_["params"]])
    assert_array_equal(results["mean_test_score"][bad], [error_score] * 2)
    assert (results["rank_test_score"][bad] > 4).all()
    sound = SweepSearchCV(model, {**BROKEN, "kernel": [Gaussian(1.0), Laplacian(0.5)]}, cv=SPLITS).fit(X, Y)
    assert_array_equal(results["mean_test_score"][~bad], sound.cv_results_["mean_test_score"])
    assert found.best_params_ == sound.best_params_


def test_where_all_fits_fail_the_reason_is_told_and_settings_that_are_none_are_refused():
    model = KernelRidge(Gaussian(1e-6), landmarks=Z, dtype="float32")
    with pytest.raises(DataError, match=r"all 6 fits failed, the first because of DataError: .*float32"):
        SweepSearchCV(model, {"alpha": [0.1, 1.0]}, cv=SPLITS, error_score=np.nan).fit(X, Y)
    for wrong in ("ignore", None, [0.0]):
        with pytest.raises(ConfigError, match="error_score: expected 'raise' or a number"):
            SweepSearchCV(Ridge(), {}, error_score=wrong).fit(X, Y)


@pytest.mark.parametrize("finite", [0, 1])
def test_scores_that_cannot_be_had_are_told(finite):
    called = []

    def partly(estimator, X, y):
        called.append(len(y))
        if not finite:
            raise ArithmeticError("no such score")
        return 1.0 if len(called) > 1 else np.nan

    model, grid = KernelRidge(Gaussian(1.0), landmarks=Z), {"alpha": [0.1, 1.0, 10.0]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = SweepSearchCV(model, grid, cv=SPLITS, scoring=partly, error_score=np.nan, refit=False).fit(X, Y)
    (told,) = [one for one in caught if one.category is FitFailedWarning]
    assert f"{1 if finite else 9} of 9 scores by partly could not be had or are not finite" in str(told.message)
    assert bool(found.edges_) == bool(finite)  # there is a best score at an end, or none at all


def test_gcv_is_a_score_of_training_rows():
    options = {"cv": SPLITS, "scoring": ["neg_gcv", "r2"], "refit": False, "return_train_score": True}
    results = SweepSearchCV(KernelRidge(Gaussian(1.0), landmarks=Z), GRID, **options).fit(X, Y).cv_results_
    assert np.isfinite(results["mean_train_neg_gcv"]).all()
    assert_array_equal(results["mean_train_neg_gcv"], results["mean_test_neg_gcv"])


def test_what_is_done_is_printed(capsys):
    counts = []
    for verbose in (0, 1, 2, 3):
        SweepSearchCV(KernelRidge(Gaussian(1.0), landmarks=Z), GRID, cv=3, verbose=verbose, refit=False).fit(X, Y)
        lines = capsys.readouterr().out.splitlines()
        counts.append(sum("[CV" in line for line in lines))
        assert (lines[:1] == ["Fitting 3 folds for each of 4 candidates, totalling 12 fits"]) == (verbose > 0)
    assert counts == [0, 0, 12, 12]
    assert "[CV 3/3] END alpha=1.0, kernel__sigma=1.6, score=" in lines[-1]


def test_of_equal_scores_the_largest_penalty_is_chosen():
    flat = SweepSearchCV(Ridge(), {"alpha": [1e-9, 1e-3]}, cv=3).fit(X, np.full(N, 2.0))
    assert flat.best_params_ == {"alpha": 1e-3}
    assert flat.cv_results_["rank_test_score"].tolist() == [1, 1]
    grid = {"alpha": np.geomspace(1e-9, 1e-4, 6), "kernel__sigma": [0.9, 1.1]}
    search = SweepSearchCV(KernelRidgeClassifier(Gaussian(1.0), landmarks=Z), grid, cv=SPLITS, refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestAtEdge)
        results = search.fit(X, LABELS).cv_results_
    tied = results["rank_test_score"] == 1
    assert tied.sum() > 2  # else this tests nothing
    assert search.best_params_["alpha"] == results["param_alpha"][tied].max()


@pytest.mark.parametrize(
    "grid, best, told",
    [
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 0, "alpha: the best value, 0.001, is the smallest of 3; add smaller .* 0.0001"),
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 2, "alpha: the best value, 0.1, is the largest of 3; add larger ones.* 1$"),
        ({"model__kernel": [Gaussian(s) for s in (1.0, 2.0, 4.0)]}, 2, "kernel__sigma: .* largest of 3; .* 8$"),
        ({"n_components": [10, 20, 40]}, 2, "n_components: the best value, 40, .* such as 80$"),
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 1, ""),
        ({"alpha": [0.0, 1e-2, 1e-1]}, 0, ""),  # less than none there is not
        ({"n_components": [1, 2, 3]}, 0, ""),
        ({"alpha": [1e-3, 1e-2]}, 0, ""),
        ({"n_landmarks": [10, 20, 30]}, 2, ""),
        ({"kernel": [Gaussian(1.0), Laplacian(1.0), Gaussian(2.0)]}, 2, ""),
    ],
)
def test_ends_of_the_grid_are_told_with_what_to_add(grid, best, told):
    ((name, values),) = grid.items()
    found = "; ".join(map(str, edges([{name: value} for value in values], best)))
    assert re.search(told, found) if told else found == ""


def test_a_search_warns_once_of_the_ends_where_its_best_candidate_lies():
    grid = {"alpha": [1e3, 1e4, 1e5], "kernel": [Gaussian(s) for s in (0.3, 0.9, 30.0)]}
    with pytest.warns(BestAtEdge, match="alpha: the best value, 1000, is the smallest of 3") as caught:
        found = SweepSearchCV(KernelRidge(landmarks=Z), grid, cv=3).fit(X, Y)
    assert [one.filename for one in caught] == [__file__]
    assert [(edge.parameter, edge.side, edge.further) for edge in found.edges_] == [("alpha", "smallest", 100.0)]


def test_a_finer_grid_halves_the_steps_around_the_best_and_goes_on_at_ends():
    grid = [{"alpha": a, "kernel": Gaussian(s)} for a in (0.01, 1.0, 100.0) for s in (1.0, 4.0)]
    finer = {(round(p["alpha"], 9), p["kernel"].sigma) for p in around(grid, 2)}
    assert finer == {(a, s) for a in (0.1, 1.0, 10.0) for s in (0.25, 1.0, 2.0)} - {(1.0, 1.0)}
    assert around([{"n_components": s} for s in (3, 4, 5)], 1) == []
