"""SweepSearchCV against GridSearchCV over the same folds, landmarks and candidates, cell by cell."""

import copy
import warnings

import numpy as np
import pytest
import reference
from kernel_cases import KERNELS, ignore_rank_warnings
from numpy.testing import assert_allclose, assert_array_equal
from peers import assert_like_peer, cells, comparable, peer, split_scores
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline

import bigkernel as bk
from bigkernel.errors import AccuracyWarning, RankDeficiencyWarning

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")  # grids are small
rng = np.random.default_rng(19930117)
N, D, M = 96, 4, 12
X = rng.normal(size=(N, D))
NEW = rng.normal(size=(20, D))
Z = X[rng.permutation(N)[:M]] + 0.03  # a row that is a landmark costs Matérn 1/2 half the digits
Y = np.column_stack([np.sin(X[:, 0]) + 2, X[:, 1] * X[:, 2]]) + 0.1 * rng.normal(size=(N, 2))
y = Y[:, 0]
LABELS = np.array(["ape", "bee", "cat"])[np.digitize(X[:, 0] + 0.5 * rng.normal(size=N), [-0.4, 0.5])]
WEIGHT = rng.uniform(0.2, 3, N)
NUMBERS = ["neg_mean_squared_error", "neg_root_mean_squared_error", "r2"]
FOLDS = KFold(3, shuffle=True, random_state=1)
GIVEN = bk.KernelRidge(bk.Gaussian(1.4), landmarks=Z)
CLASSIFIER = bk.KernelRidgeClassifier(bk.Gaussian(1.4), landmarks=Z)


@ignore_rank_warnings
@pytest.mark.parametrize("name", KERNELS)
def test_every_cell_of_a_kernel_is_that_of_the_dense_oracle(name):
    grid = {"alpha": [1e-2, 1.0, 30.0], "fit_intercept": [False, True]}
    model = bk.KernelRidge(KERNELS[name], landmarks=Z)
    search = bk.SweepSearchCV(model, grid, cv=FOLDS, scoring=NUMBERS, refit="r2").fit(X, Y)
    oracle = reference.of_kernel(KERNELS[name])
    B, core = oracle(X, Z), oracle(Z, Z)
    for params, train, test, score in cells(search, FOLDS.split(X)):
        coef, b = reference.nystrom_krr(B[train], core, Y[train], params["alpha"], params["fit_intercept"])
        squares = (Y[test] - B[test] @ coef - b) ** 2
        r2 = np.mean(1 - squares.sum(0) / ((Y[test] - Y[test].mean(0)) ** 2).sum(0))
        expected = [-squares.mean(), -np.sqrt(squares.mean(0)).mean(), r2]
        # the distance of a landmark to itself is 0 to rounding, 1e-16, of which Matérn 1/2 takes the root
        assert_allclose(list(map(score, NUMBERS)), expected, rtol=0, atol=1e-7 if name == "matern 1/2" else 1e-8)


def test_a_list_of_grids_with_parameters_of_their_own():
    grid = [
        {"kernel": ["rbf", "laplacian"], "gamma": [0.1, 0.4], "alpha": [0.1, 1.0]},
        {"kernel": ["poly"], "degree": [2], "gamma": [0.2], "coef0": [0.5, 1.0]},
        {"kernel": [bk.Matern(2.0)], "fit_intercept": [True, False]},
    ]
    search = assert_like_peer(bk.KernelRidge(landmarks=Z), grid, X, y, cv=FOLDS, scoring=["r2"], refit="r2", new=NEW)
    assert search.cv_results_["param_degree"].mask.tolist() == [True] * 8 + [False] * 2 + [True] * 2


def test_landmarks_may_be_candidates():
    grid = {"landmarks": [Z[:5], Z, X[40:60].tolist()], "alpha": [0.1, 1.0], "kernel__sigma": [1.0, 2.0]}
    search = assert_like_peer(bk.KernelRidge(bk.Gaussian(1.0)), grid, X, y, cv=FOLDS, new=NEW)
    assert len(search.plan_.sweeps) == 3
    assert len(search.best_estimator_.landmarks_) == len(search.best_params_["landmarks"])


@pytest.mark.parametrize("seed", [0, np.int64(7), np.random.RandomState(3), None])
def test_landmarks_of_each_number_are_sampled_once_from_all_rows(seed):
    grid = {"n_landmarks": [6, M], "alpha": [0.1, 1.0]}
    model = bk.KernelRidge(bk.Gaussian(1.4), random_state=seed)
    if seed is None:
        np.random.seed(5)  # noqa: NPY002, what None means in scikit-learn
    state = np.random.get_state()  # noqa: NPY002
    search = bk.SweepSearchCV(model, grid, cv=FOLDS).fit(X, y)
    if seed is None:
        np.random.set_state(state)  # noqa: NPY002
    scores = []
    for m in grid["n_landmarks"]:
        sampled = bk.KernelRidge(bk.Gaussian(1.4), n_landmarks=m, random_state=copy.deepcopy(seed)).fit(X, y).landmarks_
        for train, test in FOLDS.split(X):  # without landmarks that are test rows
            own = sampled[~(sampled[:, None] == X[test]).all(axis=2).any(axis=1)]
            theirs = peer(
                bk.KernelRidge(bk.Gaussian(1.4), landmarks=own), {"alpha": grid["alpha"]}, X, y, cv=[(train, test)]
            )
            scores.append(split_scores(theirs)[:, 0])
    by_alpha = np.array(scores).reshape(2, 3, 2).transpose(2, 0, 1).reshape(4, 3)  # the grid varies n_landmarks first
    assert_allclose(split_scores(search), by_alpha, rtol=0, atol=1e-8)


@pytest.mark.parametrize("solver", ["direct", "cg"])
def test_a_narrow_kernel_and_a_tiny_penalty_score_as_in_a_fit_to_the_training_rows(solver):
    model = bk.KernelRidge(
        bk.Gaussian(0.5), alpha=1e-4, n_landmarks=N // 2, random_state=1, solver=solver, max_iter=500
    )
    options = {"cv": KFold(4, shuffle=True, random_state=1), "scoring": "r2", "refit": False}
    search = bk.SweepSearchCV(model, {"alpha": [1e-4]}, **options).fit(X, y)
    theirs = peer(model.set_params(solver="direct"), {"alpha": [1e-4]}, X, y, **options)
    assert abs(search.cv_results_["mean_test_score"] - theirs.cv_results_["mean_test_score"]) < 0.2  # with all: -40


class ByValue:
    """Folds of a user, by the rows themselves."""

    count = 2

    def of(self, chunk):
        return (chunk.x[:, 0] > 0).astype(np.int64)


def test_landmarks_at_rows_without_a_label_stay_and_folds_may_read_rows():
    labels = np.where(np.arange(N) < 40, X[:, 0] > 0, -1)
    model = bk.LabelledRowsClassifier(bk.KernelRidgeClassifier(bk.Gaussian(1.4), n_landmarks=20, random_state=0))
    split = ShuffleSplit(2, train_size=0.4, test_size=0.3, random_state=1)
    search = bk.SweepSearchCV(model, {"estimator__alpha": [0.1]}, cv=split, refit=False).fit(X, labels)
    assert search.cv_results_["mean_test_score"] > 0.6
    krr = bk.KernelRidge(bk.Gaussian(1.4), n_landmarks=20, random_state=0)
    one, two = (bk.SweepSearchCV(krr, {"alpha": [0.1]}, cv=cv).fit(X, y) for cv in (ByValue(), (X[:, 0] > 0) * 1))
    assert_array_equal(split_scores(one), split_scores(two))


def test_no_landmark_among_the_training_rows_is_refused():
    groups = (np.arange(N) < N // 2).astype(int)
    model = bk.KernelRidge(bk.Gaussian(1.4), n_landmarks=1, random_state=0)
    with pytest.raises(bk.errors.DataError, match="has no landmark among its training rows"):
        bk.SweepSearchCV(model, {"alpha": [1.0]}, cv=2).fit(X, y, groups=groups)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_rows_far_from_zero_with_and_without_an_intercept(offset):
    grid = {"fit_intercept": [True, False], "alpha": [0.1, 1.0]}
    search = bk.SweepSearchCV(bk.Ridge(), grid, cv=FOLDS, scoring="neg_mean_squared_error").fit(X + offset, y)
    theirs = peer(bk.Ridge(), grid, X + offset, y, cv=FOLDS, scoring="neg_mean_squared_error")
    result, expected = split_scores(search), split_scores(theirs)
    assert_allclose(result[::2], expected[::2], rtol=1e-9)
    # without an intercept the offset is the signal, and squares of it are what is summed
    assert_allclose(result[1::2], expected[1::2], rtol=max(1e-9, 1e-14 * offset**2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes_may_be_candidates(dtype):
    grid = {"dtype": [dtype, "float64"], "alpha": [0.1, 1.0], "kernel__sigma": [0.7, 1.4]}
    search = bk.SweepSearchCV(GIVEN, grid, cv=FOLDS).fit(X, y)
    theirs = peer(GIVEN, grid, X, y, cv=FOLDS)
    single = np.array([params["dtype"] == "float32" for params in search.cv_results_["params"]])
    assert_allclose(split_scores(search)[~single], split_scores(theirs)[~single], rtol=0, atol=1e-8)
    assert_allclose(split_scores(search), split_scores(theirs), rtol=1e-5, atol=1e-5)
    assert len(search.plan_.sweeps) == 1 + single.any()


@pytest.mark.parametrize("model", [bk.Ridge(), bk.LinearRegression()], ids=["ridge", "least squares"])
@pytest.mark.parametrize("target", [y, Y], ids=["y", "Y"])
def test_linear_models(model, target):
    grid = {"fit_intercept": [True, False]} | ({"alpha": [0.1, 1.0, 50.0]} if isinstance(model, bk.Ridge) else {})
    search = assert_like_peer(model, grid, X + 1, target, cv=FOLDS, scoring=NUMBERS, refit="r2", new=NEW)
    assert len(search.plan_.sweeps) == 1


def test_classes_with_the_scores_that_need_predictions():
    kernels = [KERNELS[name] for name in ("gaussian", "laplacian", "gaussian of four lengths")]
    grid = {"kernel": kernels, "alpha": [1e-3, 1.0], "fit_intercept": [False, True]}
    search = assert_like_peer(
        CLASSIFIER, grid, X, LABELS, cv=StratifiedKFold(4), scoring=["accuracy", "balanced_accuracy"],
        refit="balanced_accuracy", new=NEW,
    )  # fmt: skip
    assert search.classes_.tolist() == ["ape", "bee", "cat"]
    assert_allclose(search.decision_function(NEW), search.best_estimator_.decision_function(NEW))


@pytest.mark.parametrize(
    "labels",
    [np.where(X[:, 0] > 0, 1, -1), X[:, 1] > 0.2, LABELS, np.digitize(X[:, 0], [0.0]) * 1.0],
    ids=["minus one", "bool", "text", "float"],
)
def test_labels_of_every_kind_and_the_folds_of_a_number(labels):
    search = assert_like_peer(CLASSIFIER, {"alpha": [1e-3, 1.0, 100.0]}, X, labels, cv=3, new=NEW)
    assert search.predict(NEW).dtype == labels.dtype


def test_pipelines_of_row_wise_transforms():
    model = make_pipeline(bk.Rescaler(0.5), bk.UnitNormalizer(), GIVEN)
    grid = {
        "kernelridge__alpha": [0.01, 1.0],
        "kernelridge__kernel__sigma": [0.4, 1.0],
        "rescaler__factor": [1.0, -2.0],
    }
    search = assert_like_peer(model, grid, X, y, cv=FOLDS, new=NEW)
    assert len(search.plan_.sweeps) == 2  # one a factor
    assert [name for name, _ in search.best_estimator_.steps] == ["rescaler", "unitnormalizer", "kernelridge"]


def test_transforms_that_learn_are_fitted_on_all_rows():
    model = make_pipeline(bk.Standardizer(), bk.Ridge())
    search = bk.SweepSearchCV(model, {"ridge__alpha": [0.1, 1.0, 10.0]}, cv=FOLDS).fit(X * 7 + 3, y)
    scaled = (X - X.mean(0)) / X.std(0)
    theirs = peer(bk.Ridge(), {"alpha": [0.1, 1.0, 10.0]}, scaled, y, cv=FOLDS)
    assert_allclose(split_scores(search), split_scores(theirs), rtol=0, atol=1e-8)
    assert_allclose(search.best_estimator_["standardizer"].mean_, X.mean(0) * 7 + 3)


def test_steps_may_be_candidates():
    model = Pipeline([("map", "passthrough"), ("model", bk.Ridge())])
    grid = {"map": ["passthrough", bk.UnitNormalizer(), bk.Rescaler(3.0)], "model__alpha": [0.1, 1.0]}
    search = assert_like_peer(model, grid, X, y, cv=FOLDS, new=NEW)
    assert len(search.plan_.sweeps) == 3


@pytest.mark.parametrize("target, last", [(y, False), (Y, False), (Y, True)], ids=["y", "Y", "Y in the last step"])
def test_functions_of_targets_are_scored_on_the_original_scale(target, last):
    inner = GIVEN if last else make_pipeline(bk.UnitNormalizer(), GIVEN)
    model = TransformedTargetRegressor(inner, func=np.arcsinh, inverse_func=np.sinh, check_inverse=False)
    model, at = (Pipeline([("scale", bk.UnitNormalizer()), ("f", model)]), "f__") if last else (model, "")
    alphas = {f"{at}regressor__{'' if last else 'kernelridge__'}alpha": [0.1, 1.0]}
    grid = [alphas, {f"{at}func": [np.rint], f"{at}inverse_func": [np.positive], **alphas}]
    search = assert_like_peer(model, grid, X, 4 * target, cv=FOLDS, scoring=NUMBERS, refit="r2", new=NEW)
    assert search.plan_.count == 4


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weight", [WEIGHT, np.where(np.arange(N) % 5, WEIGHT, 0)], ids=["", "some zero"])
def test_weights_count_in_the_fit_and_in_the_errors(fit_intercept, weight):
    B, core = reference.gaussian(X, Z, 1.4), reference.gaussian(Z, Z, 1.4)
    model = bk.KernelRidge(bk.Gaussian(1.4), landmarks=Z, fit_intercept=fit_intercept)
    search = bk.SweepSearchCV(model, {"alpha": [0.01, 1.0]}, cv=FOLDS, scoring=NUMBERS, refit="r2")
    search.fit(X, Y, sample_weight=weight)
    for params, train, test, score in cells(search, FOLDS.split(X)):
        coef, b = reference.nystrom_krr(B[train], core, Y[train], params["alpha"], fit_intercept, weight[train])
        mse, spread = (
            np.average(squares, axis=0, weights=weight[test])
            for squares in (
                (Y[test] - B[test] @ coef - b) ** 2,
                (Y[test] - np.average(Y[test], axis=0, weights=weight[test])) ** 2,
            )
        )
        expected = [-mse.mean(), -np.sqrt(mse).mean(), np.mean(1 - mse / spread)]
        assert_allclose(list(map(score, NUMBERS)), expected, rtol=0, atol=1e-8)
    expected = clone(model).set_params(**search.best_params_).fit(X, Y, sample_weight=weight)
    assert_allclose(search.predict(NEW), expected.predict(NEW), atol=1e-8)


def test_a_log_loss_of_decision_values_is_reported_for_calibrated_models():
    calibrated = clone(CLASSIFIER).set_params(probability=True)
    with pytest.warns(UserWarning, match="neg_log_loss is that of decision values"):
        bk.SweepSearchCV(calibrated, {"alpha": [0.01, 1.0]}, scoring="neg_log_loss").plan(X, LABELS)


def test_equal_candidates_share_the_lowest_rank():
    search = assert_like_peer(GIVEN, {"alpha": [10.0, 0.1, 0.1, 1000.0, 0.1]}, X, y, cv=FOLDS, new=NEW)
    assert search.cv_results_["rank_test_score"].tolist() == [4, 1, 1, 5, 1]
    assert search.best_index_ == 1


def test_without_refit_there_is_a_best_candidate_and_no_model():
    search = assert_like_peer(GIVEN, {"alpha": [0.1, 1.0]}, X, y, cv=FOLDS, refit=False)
    assert not hasattr(search, "best_estimator_")
    several = bk.SweepSearchCV(GIVEN, {"alpha": [0.1, 1.0]}, cv=FOLDS, scoring=NUMBERS, refit=False).fit(X, y)
    assert not hasattr(several, "best_index_")


@pytest.mark.parametrize("refit", NUMBERS)
def test_refit_names_the_score_that_chooses(refit):
    grid = {"alpha": [1e-4, 0.1, 1.0, 100.0], "kernel__sigma": [0.5, 3.0]}
    assert_like_peer(GIVEN, grid, X, Y * [1, 50], cv=FOLDS, scoring=NUMBERS, refit=refit, new=NEW, atol=1e-6)


def test_within_one_standard_error_the_simplest_candidate_is_taken():
    grid = {"alpha": [1e-4, 1e-3, 1e-2, 0.1, 100.0], "kernel__sigma": [1.0, 1.4, 2.0]}
    noisy = X[:, 0] + 2 * rng.normal(size=N)
    search = bk.SweepSearchCV(GIVEN, grid, cv=FOLDS, one_standard_error=True).fit(X, noisy)
    mean, error = search.cv_results_["mean_test_score"], search.cv_results_["sem_test_score"]
    best = int(np.argmax(mean))
    near = [i for i in range(len(mean)) if mean[i] >= mean[best] - error[best]]
    params = search.cv_results_["params"]
    expected = max(near, key=lambda i: (params[i]["alpha"], params[i]["kernel__sigma"]))
    assert expected != best
    assert params[expected]["alpha"] >= params[best]["alpha"]
    assert search.best_index_ == expected
    assert search.best_score_ == mean[expected]
    assert comparable(search.best_params_) == comparable(params[expected])
    assert search.best_estimator_.alpha_ == params[expected]["alpha"]


def test_alpha_chosen_by_gcv_may_stand_among_the_candidates():
    grid = {"alpha": ["gcv", 0.1, 1.0], "fit_intercept": [False, True]}
    search = assert_like_peer(GIVEN, grid, X, y, cv=FOLDS, new=NEW)
    simple = bk.SweepSearchCV(GIVEN, grid, cv=FOLDS, one_standard_error=True).fit(X, y)
    assert simple.best_score_ >= search.best_score_ - search.cv_results_["sem_test_score"][search.best_index_]


@pytest.mark.parametrize("flags", [[False], [True, False]], ids=str)
@pytest.mark.parametrize("alpha", [0.1, "gcv"])
def test_the_best_model_is_a_fit_in_every_way(flags, alpha, tmp_path):
    grid = {"fit_intercept": flags, "alpha": [alpha]}
    search = bk.SweepSearchCV(GIVEN, grid, cv=FOLDS).fit(X, y + 100)
    best, alone = search.best_estimator_, clone(GIVEN).set_params(**search.best_params_).fit(X, y + 100)
    bk.save_model(best, tmp_path / "model")
    for model in (best, bk.load_model(tmp_path / "model")):
        assert_allclose(model.alpha_, alone.alpha_, rtol=1e-6)
        assert_allclose(model.statistics_["G"], alone.statistics_["G"], rtol=1e-11, atol=1e-11)
        assert_allclose(model.predict(NEW), alone.predict(NEW), rtol=1e-9)
        assert_allclose(model.predict(NEW, return_std=True)[1], alone.predict(NEW, return_std=True)[1], rtol=1e-6)
        assert_allclose(model.training_mse_, alone.training_mse_, rtol=1e-6)
        expected = clone(alone).fit(np.r_[X, NEW], np.r_[y + 100, np.ones(20)])
        assert_allclose(model.partial_fit(NEW, np.ones(20)).predict(NEW), expected.predict(NEW), rtol=1e-7)
        expected.set_params(alpha=5.0).refit()
        assert_allclose(model.set_params(alpha=5.0).refit().predict(NEW), expected.predict(NEW), rtol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        bk.KernelRidge("rbf", gamma=0.1, alpha=1e-2, n_landmarks=40, random_state=0),
        bk.KernelRidge("rbf", gamma=0.1, alpha=1e-9, n_landmarks=90, random_state=0, fit_intercept=True),
        bk.KernelRidgeClassifier("laplacian", gamma=0.1, alpha=1e-2, n_landmarks=40, random_state=0),
        bk.SSSL("rbf", gamma=0.1, alpha=1e-2, n_components=20, n_landmarks=40, random_state=0),
        bk.Ridge(0.1),
    ],
    ids=["ridge", "ill-conditioned", "classes", "sssl", "linear"],
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_one_candidate_without_folds_is_a_fit_to_the_bit(model, dtype):
    rows = np.random.default_rng(0).normal(size=(400, 5)).astype(dtype)
    y = np.sin(rows[:, 0].astype(float))
    y = (y > 0.2) + (y > 0.7) * 1 if isinstance(model, bk.KernelRidgeClassifier) else y
    search = bk.SweepSearchCV(model, {"alpha": [model.alpha]}, cv=0, scoring="neg_gcv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (RankDeficiencyWarning, AccuracyWarning))
        best, fit = search.fit(rows, y).best_estimator_, clone(model).fit(rows, y)
    for name in ("dual_coef_", "coef_", "intercept_"):
        if hasattr(fit, name):
            assert_array_equal(getattr(best, name), getattr(fit, name))
    assert search.n_splits_ == 1
