"""scikit-learn's conventions: clone, parameters, tags, pickling, fitted or not; the plan; and events of observers."""

import pickle
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

import bigkernel as bk
from bigkernel.errors import BestAtEdgeWarning
from bigkernel.events.job import Note, Step, SweepStarted, observe
from bigkernel.search.results import edges

rng = np.random.default_rng(77)
N = 60
X = rng.normal(size=(N, 3))
Z = X[:8] + 0.03
y = np.sin(X[:, 0])
LABELS = np.arange(N) % 3
MODEL = bk.KernelRidge(bk.Gaussian(1.2), landmarks=Z)
CLASSIFIER = bk.KernelRidgeClassifier(bk.Gaussian(1.2), landmarks=Z)
GRID = {"alpha": [0.1, 1.0], "kernel__sigma": [0.8, 1.6]}


def test_parameters_are_kept_as_given_and_cloned():
    search = bk.SweepSearchCV(MODEL, GRID, cv=3, scoring="r2", refit=False, one_standard_error=True, random_state=4)
    params = search.get_params(deep=False)
    assert params == {
        "estimator": MODEL, "param_grid": GRID, "cv": 3, "scoring": "r2", "refit": False, "one_standard_error": True,
        "random_state": 4, "verbose": 0,
    }  # fmt: skip
    assert search.get_params()["estimator__kernel__sigma"] == 1.2
    again = clone(search.fit(X, y))
    assert again.get_params(deep=False).keys() == params.keys()
    assert again.estimator is not MODEL
    assert not hasattr(again, "cv_results_")
    search.set_params(estimator__kernel=bk.Laplacian(0.5), cv=4, param_grid={"alpha": [1.0]})
    assert search.fit(X, y).n_splits_ == 4
    assert MODEL.kernel == bk.Laplacian(0.5)
    MODEL.set_params(kernel=bk.Gaussian(1.2))


def test_fitting_changes_neither_the_estimator_nor_the_grid():
    grid = {"kernel": [bk.Gaussian(1.0), bk.Gaussian("scale")], "kernel__sigma": [0.5, 2.0], "alpha": [1.0]}
    model = bk.KernelRidge(bk.Gaussian(7.0), n_landmarks=6, random_state=0)
    bk.SweepSearchCV(model, grid, cv=3).fit(X, y)
    assert [kernel.sigma for kernel in grid["kernel"]] == [1.0, "scale"]
    assert model.kernel.sigma == 7.0
    assert [name for name in vars(model) if name.endswith("_")] == []


OF_CLASSES = [CLASSIFIER, bk.SSSLClassifier(landmarks=Z), make_pipeline(bk.UnitNormalizer(), CLASSIFIER)]


@pytest.mark.parametrize("model", [*OF_CLASSES, MODEL, bk.Ridge(), make_pipeline(bk.UnitNormalizer(), MODEL)])
def test_a_search_is_a_classifier_or_a_regressor_as_its_estimator_is(model):
    search, classifier = bk.SweepSearchCV(model, {}), model in OF_CLASSES
    assert is_classifier(search) == hasattr(search, "decision_function") == classifier
    assert is_regressor(search) == (not classifier)


def test_an_unfitted_search_raises():
    search = bk.SweepSearchCV(CLASSIFIER, GRID)
    for method in ("predict", "decision_function", "score"):
        with pytest.raises(NotFittedError):
            getattr(search, method)(X, *([LABELS] if method == "score" else []))
    with pytest.raises(NotFittedError):
        check_is_fitted(search)
    search.plan(X, LABELS)
    with pytest.raises(NotFittedError):
        check_is_fitted(search)
    check_is_fitted(search.fit(X, LABELS))
    without = bk.SweepSearchCV(CLASSIFIER, GRID, refit=False).fit(X, LABELS)
    with pytest.raises((NotFittedError, AttributeError)):
        without.predict(X)


def test_a_search_is_the_same_after_a_pickle():
    search = pickle.loads(pickle.dumps(bk.SweepSearchCV(CLASSIFIER, GRID, cv=3).fit(X, LABELS)))
    again = pickle.loads(pickle.dumps(search))
    assert_array_equal(again.predict(X), search.predict(X))
    assert_array_equal(again.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])
    assert str(again.plan_) == str(search.plan_)
    assert again.classes_.tolist() == [0, 1, 2]


def test_two_fits_give_the_same_bits_and_the_second_forgets_the_first():
    model = bk.KernelRidgeClassifier(bk.Gaussian(1.2), n_landmarks=6, random_state=0)
    search = bk.SweepSearchCV(model, GRID, cv=3).fit(X, LABELS)
    first = search.cv_results_["mean_test_score"]
    assert_array_equal(search.fit(X, LABELS).cv_results_["mean_test_score"], first)
    search.set_params(refit=False, cv=4).fit(X[:, :2], LABELS)
    assert search.n_features_in_ == 2
    assert search.n_splits_ == 4
    assert "split3_test_score" in search.cv_results_
    with pytest.raises((NotFittedError, AttributeError)):
        search.predict(X[:, :2])


def test_frames_bring_the_names_of_their_columns():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for model in (MODEL, make_pipeline(bk.UnitNormalizer(), MODEL)):
        search = bk.SweepSearchCV(model, {}, cv=3).fit(frame, pd.Series(y, index=range(100, 160)))
        assert search.feature_names_in_.tolist() == ["a", "b", "c"]
        assert_allclose(search.predict(frame), bk.SweepSearchCV(model, {}, cv=3).fit(X, y).predict(X))
        assert search.n_features_in_ == 3


def test_every_sweep_is_announced_and_none_else_runs():
    grid = [
        {"kernel": [bk.Gaussian(1.0), bk.Gaussian(2.0), bk.Laplacian(0.3)], "alpha": [0.1, 1.0]},
        {"landmarks": [Z[:5]], "alpha": [1.0]},
    ]
    events = []
    with observe(events.append):
        search = bk.SweepSearchCV(CLASSIFIER, grid, cv=3, scoring=["accuracy", "r2"], refit="r2").fit(X, LABELS)
    started = [event.what for event in events if isinstance(event, SweepStarted)]
    assert started == ["tune", "scores"] * 3
    assert len(search.plan_.sweeps) == 6
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert note == str(search.plan_) == str(search.plan(X, LABELS))
    steps = [(event.what, event.done, event.total) for event in events if isinstance(event, Step)]
    counted = [(0, 2), (1, 2), (2, 2), (0, 1), (1, 1), (0, 1), (1, 1)]
    assert steps == [("solve", done, total) for done, total in counted]
    kinds = [type(event) for event in events]
    assert kinds.index(Note) < kinds.index(SweepStarted)


@pytest.mark.parametrize("model", [bk.KernelRidge(landmarks=Z), bk.SSSLClassifier(landmarks=Z, n_components=5)])
def test_the_width_of_a_kernel_given_by_name_can_be_searched(model):
    search, explicit = (
        bk.SweepSearchCV(clone(model).set_params(kernel=kernel), GRID, cv=3).fit(X, LABELS)
        for kernel in ("rbf", bk.Gaussian())
    )
    assert_array_equal(search.cv_results_["mean_test_score"], explicit.cv_results_["mean_test_score"])
    assert search.best_estimator_.kernel_.sigma == search.best_params_["kernel__sigma"]


def test_columns_chosen_by_functions_are_scaled_in_one_sweep():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=np.resize(["x", "y", "z"], N))
    grid = {f"kernelridge__{name}": values for name, values in GRID.items()}

    def searched(numbers, kinds):
        columns = ColumnTransformer([("numbers", StandardScaler(), numbers), ("kinds", OneHotEncoder(), kinds)])
        model = make_pipeline(columns, bk.KernelRidge("rbf", n_landmarks=8, random_state=0))
        search = bk.SweepSearchCV(model, grid, cv=3).fit(frame, y)
        return search.plan_.count, search.cv_results_["mean_test_score"].tolist()

    chosen = searched(make_column_selector(dtype_include="number"), lambda rows: ["kind"])
    assert chosen == searched(["a", "b", "c"], ["kind"])
    assert chosen[0] == 1


def test_the_plan_counts_flops_and_memory():
    one = bk.SweepSearchCV(MODEL, {"alpha": [1.0]}, cv=3).plan(X, y)
    many = bk.SweepSearchCV(MODEL, {"alpha": np.geomspace(1e-3, 1, 50)}, cv=3).plan(X, y)
    assert (many.flops, many.task_bytes) == (one.flops, one.task_bytes)
    wide = bk.SweepSearchCV(MODEL, {"kernel__sigma": [0.5, 1.0, 2.0, 4.0]}, cv=3).plan(X, y)
    assert one.flops < wide.flops < 4 * one.flops  # distances once
    assert wide.task_bytes > one.task_bytes


rng = np.random.default_rng(2026)
MANY = rng.normal(size=(120, 3))
WAVES = np.column_stack([np.sin(2 * MANY[:, 0]), MANY[:, 1] * MANY[:, 2]]) + 0.2 * rng.normal(size=(120, 2))
APES = np.array(["ape", "bee", "cat"])[np.digitize(MANY[:, 0] + 0.5 * rng.normal(size=120), [-0.4, 0.5])]
SPLITS = list(StratifiedKFold(3, shuffle=True, random_state=0).split(MANY, APES))


def test_of_equal_scores_the_largest_penalty_is_chosen():
    flat = bk.SweepSearchCV(bk.Ridge(), {"alpha": [1e-9, 1e-3]}, cv=3).fit(MANY, np.full(120, 2.0))
    assert flat.best_params_ == {"alpha": 1e-3}
    assert flat.cv_results_["rank_test_score"].tolist() == [1, 1]
    grid = {"alpha": np.geomspace(1e-9, 1e-4, 6), "kernel__sigma": [0.9, 1.1]}
    search = bk.SweepSearchCV(
        bk.KernelRidgeClassifier(bk.Gaussian(1.0), landmarks=MANY[:14]), grid, cv=SPLITS, refit=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestAtEdgeWarning)
        results = search.fit(MANY, APES).cv_results_
    tied = results["rank_test_score"] == 1
    assert tied.sum() > 2  # else this tests nothing
    assert search.best_params_["alpha"] == results["param_alpha"][tied].max()


@pytest.mark.parametrize(
    "grid, best, message",
    [
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 0, "alpha: the best value 0.001 is the smallest of 3; add smaller .* 0.0001"),
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 2, "alpha: the best value 0.1 is the largest of 3; add larger values.* 1$"),
        ({"model__kernel": [bk.Gaussian(s) for s in (1.0, 2.0, 4.0)]}, 2, "kernel__sigma: .* largest of 3; .* 8$"),
        ({"n_components": [10, 20, 40]}, 2, "n_components: the best value 40 .* such as 80$"),
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 1, ""),
        ({"alpha": [0.0, 1e-2, 1e-1]}, 0, ""),  # 0 is the smallest alpha
        ({"n_components": [1, 2, 3]}, 0, ""),
        ({"alpha": [1, 10, 100]}, 0, "alpha: the best value 1 is the smallest of 3; .* such as 0.1$"),
        ({"alpha": [1e-3, 1e-2]}, 0, ""),
        ({"n_landmarks": [10, 20, 30]}, 2, ""),
        ({"kernel": [bk.Gaussian(1.0), bk.Laplacian(1.0), bk.Gaussian(2.0)]}, 2, ""),
    ],
)
def test_best_values_at_ends_of_the_grid_have_a_message_with_values_to_add(grid, best, message):
    ((name, values),) = grid.items()
    result = "; ".join(map(str, edges([{name: value} for value in values], best)))
    assert re.search(message, result) if message else result == ""
    ends = edges([{name: value} for value in values], best, inexact=True)  # beyond these rounding does not grow
    assert [(end.parameter, end.side) for end in ends] == re.findall("(n_components|alpha): .* the (largest)", result)


def test_a_search_warns_once_of_the_ends_where_its_best_candidate_lies():
    grid = {"alpha": [1e3, 1e4, 1e5], "kernel": [bk.Gaussian(s) for s in (0.3, 0.9, 30.0)]}
    with pytest.warns(BestAtEdgeWarning, match="alpha: the best value 1000 is the smallest of 3") as caught:
        result = bk.SweepSearchCV(bk.KernelRidge(landmarks=MANY[:14]), grid, cv=3).fit(MANY, WAVES)
    assert [one.filename for one in caught] == [__file__]
    assert [(edge.parameter, edge.side, edge.further) for edge in result.edges_] == [("alpha", "smallest", 100.0)]
