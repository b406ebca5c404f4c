"""Invalid searches are refused by name, before the first sweep where possible."""

from contextlib import suppress
from itertools import product

import dask
import dask.array as da
import numpy as np
import pytest
import sklearn.linear_model
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.feature_selection import SelectKBest
from sklearn.metrics import f1_score, get_scorer_names, make_scorer
from sklearn.model_selection import GroupKFold, KFold, LeaveOneOut, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import bigkernel as bk
from bigkernel.errors import BigKernelError, ConfigError, DataError, PlanTooLargeError
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.events.job import SweepStarted, observe
from bigkernel.search.scorers import require_served
from bigkernel.search.scoring import chosen
from bigkernel.streaming.folds import HashFolds

rng = np.random.default_rng(404)
N = 60
X = rng.normal(size=(N, 3))
Z = X[:8]
y = np.sin(X[:, 0])
LABELS = np.arange(N) % 3
MODEL = bk.KernelRidge(bk.Gaussian(1.2), landmarks=Z)
CLASSIFIER = bk.KernelRidgeClassifier(bk.Gaussian(1.2), landmarks=Z)
GRID = {"alpha": [0.1, 1.0]}


def refuse(error, match, model=MODEL, grid=GRID, X=X, y=y, *, swept=False, fit=None, **options):
    """Check that the search raises this error, (unless `swept`) before its first sweep; return its message."""
    events = []
    search = bk.SweepSearchCV(model, grid, **options)
    with observe(events.append), pytest.raises(error, match=match) as caught:
        search.fit(X, y, **(fit or {}))
    assert isinstance(caught.value, BigKernelError)
    assert isinstance(caught.value, ValueError)  # what scikit-learn raises
    assert not hasattr(search, "best_estimator_")
    if not swept:
        assert not [event for event in events if isinstance(event, SweepStarted)]
    return str(caught.value)


@pytest.mark.parametrize(
    "values", [{"alpha": ["x"]}, {"alpha": [None]}, {"kernel": ["rbff"]}, {"n_landmarks": [0]}, {"gamma": [-1.0]}]
)
def test_values_that_the_estimator_refuses(values):
    search = bk.SweepSearchCV(MODEL, values)
    with pytest.raises(ValueError, match=f"{next(iter(values))}"):
        search.fit(X, y)


def test_missing_targets_and_a_missing_regressor_are_refused():
    refuse(DataError, f"1 of {N} rows have no target", y=np.where(np.arange(N) == 3, np.nan, y))
    refuse(ConfigError, "without a regressor", TransformedTargetRegressor(), {"check_inverse": [False]})


def test_scores_that_predictions_do_not_serve_are_refused():
    for score in ("neg_brier_score", "roc_auc_ovr"):
        assert refuse(ConfigError, f"scoring: '{score}' needs probabilities.*", CLASSIFIER, scoring=score, y=LABELS)
    for scorer in (len, lambda model, X, y: "good", lambda model, X, y: model.predict(X[:3]).sum()):
        assert refuse(DataError, "scoring: .* failed on a fold: ", scoring=scorer, swept=True)
    with dask.config.set({"bigkernel.memory-limit-bytes": 100_000_000, "bigkernel.worker-base-bytes": 0}):
        many = da.zeros((4 * 10**6, 3), chunks=(10**5, 3)), da.zeros(4 * 10**6, chunks=10**5)
        said = "scoring: score need the predictions for all held-out rows at once.*hold out fewer rows"
        assert refuse(PlanTooLargeError, said, X=many[0], y=many[1], scoring="neg_max_error")


def test_scores_of_scikit_learn_that_serve_are_not_refused():
    refused = {1: set(), 2: set(), 3: set()}  # by the number of targets or classes
    for kind, name in product(refused, get_scorer_names()):
        inputs = Inputs(3, classes=np.arange(kind) if kind > 1 else None, flat=kind == 1)
        with suppress(ConfigError):
            scoring = chosen(name, classifier=kind > 1)
            refused[kind].add(name)
            require_served(scoring, inputs, kind)
            refused[kind].remove(name)
    by_samples = {f"{name}_samples" for name in ("f1", "precision", "recall", "jaccard")}
    of_numbers = {"neg_mean_poisson_deviance", "neg_mean_gamma_deviance"}  # above 0
    assert refused[2] == by_samples | of_numbers
    binary = {"f1", "precision", "recall", "jaccard", "roc_auc"}
    binary |= {"positive_likelihood_ratio", "neg_negative_likelihood_ratio"}
    assert refused[3] == by_samples | of_numbers | binary
    assert not {name for name in refused[1] if name.startswith(("neg_m", "neg_root", "r2", "d2", "explained"))}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("model", [MODEL, bk.Ridge()], ids=["landmarks", "ridge"])
def test_scores_that_are_not_finite_are_refused(model):
    said = r"scoring: neg_mean_squared_error of candidate \{'alpha': 0.1\} on split 0 is (-inf|nan)|y: squares of its"
    assert refuse(DataError, said, model, y=y * 1e200, scoring="neg_mean_squared_error", swept=True)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_r2_of_a_fold_of_equal_targets_is_zero_as_in_scikit_learn(fit_intercept):
    steps, model = np.repeat([0.1, 0.2, 0.7], 20), clone(MODEL).set_params(fit_intercept=fit_intercept)
    search = bk.SweepSearchCV(model, GRID, cv=KFold(3)).fit(X, steps)
    assert [search.cv_results_[f"split{j}_test_score"].tolist() for j in range(3)] == [[0, 0]] * 3


def test_r2_of_a_constant_that_is_fitted_exactly_is_one():
    search = bk.SweepSearchCV(bk.Ridge(), GRID, cv=KFold(3)).fit(X, np.full(N, 0.1))
    assert search.cv_results_["mean_test_score"].tolist() == [1, 1]


def test_a_refused_search_can_be_corrected_and_fitted():
    search = bk.SweepSearchCV(MODEL, {"alpha": []})
    with pytest.raises(ConfigError):
        search.fit(X, y)
    assert search.set_params(param_grid=GRID).fit(X, y).best_params_["alpha"] in GRID["alpha"]


EVERY = np.arange(N)
LIGHT = (EVERY >= 20) * 1.0
NARROW = bk.KernelRidge(bk.Gaussian(1.0), landmarks=Z, dtype="float32")
SEMI, HALF = bk.SSSL(bk.Gaussian(1.2), landmarks=Z), np.where(EVERY < 30, y, np.nan)
LAZY = {"X": da.from_array(X, chunks=(20, 3)), "y": da.from_array(y, chunks=20)}
MISSING = "cv: split 0 has .*class.*(fewer or|stratified)"
STEP = ConfigError, "StandardScaler is fitted to .* fit_intercept=True, or use func"
NONE = [sklearn.linear_model.Ridge(), make_pipeline(bk.Standardizer(), sklearn.linear_model.Ridge()), bk.Standardizer(),
        make_pipeline(bk.Standardizer()), bk.SweepSearchCV(MODEL, GRID), bk.KernelRidge, None, "ridge"]  # fmt: skip
OF_TWO = make_scorer(f1_score)
UNKNOWN = ["mse", "roc_auc", ["r2", "mse"], "", [], {}, {"a": "mse"}, {"a": 3}, 3, [["r2"]], [None]]
NO_FOLDS = [object(), 1.5, True, "loo", KFold, np.zeros((N, 2), int), rng.uniform(size=N), ["a", "b"], 3j, {0: 1}]
FEW_FOLDS = [1, -3, np.int64(1), np.zeros(N, int), np.full(N, -1), [0] * N]
UNFIT = [
    *((score, {"model": CLASSIFIER, "y": LABELS}, "3 classes.*f1_macro") for score in ("f1", "roc_auc", OF_TWO)),
    ("f1", {"model": CLASSIFIER, "y": np.array(["no", "yes"])[LABELS % 2]}, "2 classes.*pos_label"),
    *((score, {"y": np.c_[y, y]}, "2 targets.*r2") for score in ("neg_max_error", "f1")),
]
BEFORE = [
    *((ConfigError, f"scoring: .* cannot be computed for {match}", {**given, "scoring": {"s": score}, "refit": "s"})
      for score, given, match in UNFIT),
    (ConfigError, "param_grid: .*at least one candidate", {"grid": []}),
    (ConfigError, "param_grid: .*alpha.*non-empty", {"grid": {"alpha": []}}),
    (ConfigError, "param_grid: .*dict or a list", {"grid": None}),
    (ConfigError, "param_grid: .*alpha.*needs to be a list", {"grid": {"alpha": 1.0}}),
    (ConfigError, "param_grid: .*Invalid parameter 'alhpa'", {"grid": {"alhpa": [1.0]}}),
    (ConfigError, "param_grid: .*unknown parameter 'gamma'; expected one of .*sigma", {"grid": {"kernel__gamma": [1]}}),
    (ConfigError, "param_grid: .*Invalid parameter 'sigma'", {"grid": [{"alpha": [1.0]}, {"sigma": [1.0]}]}),
    *((ConfigError, "estimator", {"model": model, "grid": {}}) for model in NONE),
    (*STEP, {"model": TransformedTargetRegressor(MODEL, transformer=StandardScaler()), "grid": {}}),
    (DataError, "y: expected targets in memory", {"model": TransformedTargetRegressor(MODEL), "grid": {}, "y": None}),
    (DataError, "'inverse_func' must also", {"model": TransformedTargetRegressor(MODEL, func=np.exp), "grid": {}}),
    (ConfigError, "neg_gcv is not on the original scale",
     {"model": TransformedTargetRegressor(MODEL), "grid": {}, "scoring": "neg_gcv"}),
    *((ConfigError, "scoring: ", {"scoring": scoring}) for scoring in UNKNOWN),
    *(((ConfigError, DataError), "cv: ", {"cv": cv}) for cv in NO_FOLDS),
    *((DataError, "cv: expected at least 2 folds, found", {"cv": cv}) for cv in FEW_FOLDS),
    *((ConfigError, "random_state: expected an integer", {**LAZY, "random_state": seed})
      for seed in (None, 1.5, True, "x", np.random.RandomState(0))),
    (DataError, "Input X contains NaN", {"X": np.where(X > 1.5, np.nan, X)}),
    (DataError, "Input y contains NaN", {"y": np.where(y > 0.9, np.nan, y)}),
    (DataError, "requires y", {"y": None}),
    (DataError, r"inconsistent numbers of samples: \[60, 5\]", {"y": y[:5]}),
    (DataError, "Expected 2D array", {"X": X[:, 0]}),
    (DataError, "0 sample", {"X": X[:0], "y": y[:0]}),
    (ConfigError, "alpha: expected a finite number of at least 0", {"grid": {"alpha": [1.0, -1.0]}}),
    (ConfigError, "alpha: expected a finite number of at least 0", {"model": bk.Ridge(), "grid": {"alpha": [np.nan]}}),
    (ConfigError, "exact.*share no sweep.*GridSearchCV",
     {"model": bk.KernelRidge(), "grid": {"n_landmarks": [5, None]}}),
    (ConfigError, "SSSL with n_landmarks=None and manifold=0.*=500",
     {"model": bk.SSSL(), "grid": {"manifold": [0, 1.0]}}),
    (ConfigError, "cv=0: r2 needs folds", {"cv": 0}),
    (ConfigError, "SelectKBest learns from y",
     {"model": Pipeline([("s", SelectKBest(k=2)), ("m", CLASSIFIER)]), "grid": {}, "y": LABELS}),
    (ConfigError, "refit: .*r2, neg_max_error", {"scoring": ["r2", "neg_max_error"], "refit": True}),
    (ConfigError, "scoring: 'accuracy' expects a classifier", {"scoring": "accuracy"}),
    (ConfigError, "scoring: 'neg_log_loss' expects a classifier", {"scoring": "neg_log_loss"}),
    (DataError, "sample_weight", {"fit": {"sample_weight": -np.ones(N)}}),
    (DataError, "sample_weight", {"fit": {"sample_weight": np.zeros(N)}}),
    (DataError, "sample_weight", {"fit": {"sample_weight": np.ones(3)}}),
    (ConfigError, "gaussian kernel: expected a finite sigma above 0", {"grid": {"kernel__sigma": [1, 0.0]}}),
    (ConfigError, r"expected sigma of shape \(3,\)", {"grid": {"kernel__sigma": [np.ones(2)]}}),
    (ConfigError, "only classifiers or only regressors",
     {"model": Pipeline([("m", MODEL)]), "grid": {"m": [CLASSIFIER, MODEL]}, "y": LABELS}),
    (DataError, r"landmarks: expected an array of shape \(m, 3\)", {"model": bk.KernelRidge(landmarks=Z[:, :2])}),
    (DataError, "cv: expected a fold for each of the 60 rows, found 5", {"cv": np.arange(5)}),
    (DataError, "cv: .*n_splits=61.*n_samples=60", {"cv": N + 1}),
    (DataError, "cv: expected at least one split", {"cv": []}),
    (DataError, "cv: split 0: .*0 to 59", {"cv": [(EVERY[:10], [N])]}),
    (DataError, "cv: split 0: .*0 to 59", {"cv": [(EVERY[:10], [-1])]}),
    (DataError, "cv: split 1: .*0 to 59", {"cv": [([0, 1], [2, 3]), (np.arange(10.0), [20])]}),
    (DataError, "cv: split 0 has row 5 in both train and test", {"cv": [(EVERY[:10], EVERY[5:20])]}),
    (DataError, "cv: split 0 holds a row twice", {"cv": [(np.r_[:10, :10], EVERY[20:40])]}),
    (DataError, "cv: split 0: expected rows to train on and to test on, found 10 and 0", {"cv": [(EVERY[:10], [])]}),
    (DataError, "cv: split 0: expected rows to train on and to test on, found 0 and 10", {"cv": [([], EVERY[:10])]}),
    (ConfigError, "cv: split 0", {"cv": [(EVERY[:10], EVERY[10:20], EVERY[20:30])]}),
    (DataError, "domain: .*needs a column of domains", {"cv": "domains"}),
    (DataError, "cv: expected at least 2 domains, found 1", {"cv": "domains", "fit": {"sample_domain": np.ones(N)}}),
    (DataError, "cv: .*groups", {"cv": GroupKFold(3)}),
    (DataError, "cv: 3 folds of whole groups .* found 1 among", {"cv": 3, "fit": {"groups": np.ones(N)}}),
    (DataError, "cv: 3 folds of whole groups .* found 2 among", {"cv": 3, "fit": {"groups": EVERY % 2}}),
    *(
        (ConfigError, "groups: not used with a cv of type .*; leave out one", {"cv": cv, "fit": {"groups": EVERY // 5}})
        for cv in (EVERY % 3, [(EVERY[:40], EVERY[40:])], "domains", HashFolds(3), 0)
    ),
    (DataError, "group: expected 60 values", {"fit": {"groups": np.ones(7)}}),
    (DataError, "expected one domain per row", {"cv": "domains", "fit": {"sample_domain": np.ones((N, 2))}}),
    (DataError, "group: expected numbers", {"fit": {"groups": EVERY.astype("M8[D]")}}),
    (DataError, "group: row 3 is missing", {"fit": {"groups": np.where(EVERY == 3, None, "a")}}),
    (DataError, "group: row 3 is missing", {"fit": {"groups": np.ma.array(EVERY, mask=EVERY == 3)}}),
    (DataError, "cv: expected at least 2 groups, found 1", {**LAZY, "cv": 3, "fit": {"groups": np.ones(N)}}),
    (DataError, "cv: .*n_samples=0", {"model": SEMI, "y": np.full(N, np.nan), "cv": 3}),
    (DataError, "cv: .*n_samples=1", {"model": SEMI, "y": np.where(EVERY == 7, y, np.nan), "cv": 3}),
    (DataError, "at least 2 classes", {"model": CLASSIFIER, "y": np.ones(N), "cv": StratifiedKFold(3)}),
]  # fmt: skip
AFTER = [
    (DataError, "in float32 is .* bandwidths", {"model": NARROW, "grid": {"kernel__sigma": [1.0, 1e-6]}}),
    (DataError, "r2 needs at least two .*neg_mean_squared_error", {"cv": LeaveOneOut()}),
    (DataError, MISSING, {"model": CLASSIFIER, "y": np.sort(LABELS), "cv": KFold(3)}),
    (DataError, MISSING, {"model": bk.SSSLClassifier(landmarks=Z), "y": np.sort(LABELS), "cv": KFold(3)}),
    (DataError, "class", {"model": CLASSIFIER, "y": (EVERY < 30) * 1, "cv": KFold(2)}),
    (DataError, "cv: split 2 expects a labelled row", {"model": SEMI, "y": HALF, "cv": EVERY // 15}),
    (DataError, "cv: split 0 expects a labelled row", {"model": SEMI, "y": HALF, "cv": EVERY // 30}),
    (DataError, "cv: split 0 expects .* positive weight", {"cv": KFold(3), "fit": {"sample_weight": LIGHT}}),
    (DataError, "cv: split 0 expects .* positive weight", {"cv": KFold(3), "fit": {"sample_weight": 1 - LIGHT}}),
]


@pytest.mark.parametrize("error, match, given", BEFORE)
def test_invalid_searches_are_refused_before_a_sweep(error, match, given):
    assert refuse(error, match, **given)


@pytest.mark.parametrize("error, match, given", AFTER)
def test_errors_of_rows_or_scores_are_raised_by_name(error, match, given):
    assert refuse(error, match, swept=True, **given)
