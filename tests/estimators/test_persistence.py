"""Models on disk are loaded bit by bit as they were saved, and files are written whole or not at all."""

import os
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline

import bigkernel as bk
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.evaluation import split
from bigkernel.models.file import opened

rng = np.random.default_rng(99)
N, D, M = 80, 4, 10
X = rng.normal(size=(N, D))
Y = np.column_stack([X[:, 0], np.sin(X[:, 1])])
LABELS = rng.integers(0, 3, N)
TEXT = np.array(["één", "two", "tre"])[LABELS]
PARTLY = np.where(np.arange(N) % 3 == 0, -1, LABELS)
SHIFTED = np.where(np.arange(N) < 40, np.digitize(X[:, 0], [-0.5, 0.5]), -1)
DOMAINS = np.arange(N) % 3 + 2
SMALL = {"n_landmarks": M, "random_state": 0}
GAUSSIAN = bk.Gaussian(1.4)
LENGTHS = np.array([0.5, 1.0, 2.0, 1.5])
WEIGHT = rng.uniform(0, 2, N)

CHAIN = Pipeline([("norm", bk.UnitNormalizer()), ("few", bk.Projector(2))])
MODELS = {
    "krr": (bk.KernelRidge(GAUSSIAN, 0.3, fit_intercept=False, **SMALL), Y[:, 0]),
    "krr of two targets with an intercept": (bk.KernelRidge("rbf", fit_intercept=True, **SMALL), Y),
    "krr of given landmarks": (bk.KernelRidge(bk.Gaussian(LENGTHS), landmarks=X[:M]), Y),
    "krr exact": (bk.KernelRidge(bk.Matern(2.0, nu=2.5)), Y[:, 0]),
    "classifier": (bk.KernelRidgeClassifier(bk.Laplacian(gamma=0.2), **SMALL), LABELS),
    "classifier of text": (bk.KernelRidgeClassifier(bk.Gaussian("scale"), **SMALL), TEXT),
    "classifier exact of numbers": (bk.KernelRidgeClassifier("poly", degree=2), LABELS * 2.0),
    "classifier with probabilities": (bk.KernelRidgeClassifier(GAUSSIAN, probability=True, **SMALL), TEXT),
    "class weights": (bk.KernelRidgeClassifier(GAUSSIAN, class_weight={"één": 2.0, "two": 0.5}, **SMALL), TEXT),
    "sigmoid": (bk.KernelRidge(bk.Sigmoid(0.01), **SMALL), Y[:, 0]),
    "linear kernel": (bk.KernelRidge(bk.Linear(), **SMALL), Y),
    "sssl": (bk.SSSL(GAUSSIAN, 5, **SMALL), np.where(PARTLY < 0, np.nan, Y[:, 0])),
    "sssl exact": (bk.SSSL(GAUSSIAN, 5, manifold=0), Y[:, 0]),
    "sssl classifier": (bk.SSSLClassifier(GAUSSIAN, 5, **SMALL), PARTLY),
    "krr of random features": (bk.KernelRidge(GAUSSIAN, landmarks="fourier", **SMALL), Y),
    "orthogonal": (bk.KernelRidgeClassifier(bk.Gaussian(LENGTHS), landmarks="orthogonal-fourier", **SMALL), LABELS),
    "xnv": (bk.XNV(GAUSSIAN, **SMALL), np.where(PARTLY < 0, np.nan, Y[:, 0])),
    "xnv classifier": (bk.XNVClassifier(GAUSSIAN, landmarks=X[: 2 * M], n_landmarks=None), PARTLY),
    "logistic": (bk.KernelLogisticClassifier(GAUSSIAN, class_weight={"two": 2.0}, **SMALL), TEXT),
    "artl with probabilities": (bk.ARTLClassifier(GAUSSIAN, n_rounds=2, probability=True, **SMALL), SHIFTED),
    "artl": (bk.ARTLClassifier(GAUSSIAN, n_rounds=2, **SMALL), SHIFTED),
    "artl, no graph": (bk.ARTLClassifier(sharpness=4.0, manifold=0, landmarks="fourier", n_rounds=0, **SMALL), SHIFTED),
    "least squares": (bk.LinearRegression(), Y),
    "ridge": (bk.Ridge(0.5), Y),
    "pipeline": (
        make_pipeline(bk.Rescaler(0.125), bk.UnitNormalizer(), bk.Standardizer(), bk.KernelRidgeClassifier(**SMALL)),
        TEXT,
    ),
    "pipeline of transforms": (Pipeline([("z", bk.Standardizer()), ("norm", bk.UnitNormalizer())]), None),
    "standardizer": (bk.Standardizer(), None),
    "components of domains": (bk.DICA(GAUSSIAN, 2, allow_single_domain=True, **SMALL), LABELS),
    "no labels": (bk.DICA(GAUSSIAN, 2, supervised=False, allow_single_domain=True, **SMALL), None),
    "joint components": (bk.JDA(GAUSSIAN, 3, n_rounds=2, **SMALL), SHIFTED),
    "transfer components": (bk.JDA(GAUSSIAN, 3, n_rounds=0, landmarks="fourier", **SMALL), SHIFTED),
    "landmark features": (bk.Nystroem(GAUSSIAN, M, random_state=0), None),
    "random features": (bk.RandomFourier(bk.Gaussian(LENGTHS), 7, orthogonal=True, random_state=0), None),
    "moments of images": (bk.MomentNormalizer(image_shape=(2, 2)), None),
    "strokes of images": (bk.OrientationFeatures(), None),
    "projector": (bk.Projector(2, whiten=True), None),
    "correlations": (bk.CORAL(), SHIFTED),
    "subspaces": (bk.SubspaceAlignment(2), SHIFTED),
    "union": (bk.RowUnion([("z", bk.Standardizer()), ("chain", CHAIN)], transformer_weights={"chain": 0.5}), None),
    "projection": (make_pipeline(bk.JDA(GAUSSIAN, 3, n_rounds=1, **SMALL), bk.XNVClassifier(n_landmarks=5)), SHIFTED),
}
PLAIN = {
    "StandardScaler": pre.StandardScaler(),
    "StandardScaler of nothing": pre.StandardScaler(with_std=False, with_mean=False),
    "MinMaxScaler": pre.MinMaxScaler((-1, 2)),
    "MaxAbsScaler": pre.MaxAbsScaler(),
    "RobustScaler": pre.RobustScaler(quantile_range=(10, 90)),
    "Normalizer": pre.Normalizer("max"),
    "QuantileTransformer": pre.QuantileTransformer(n_quantiles=20, output_distribution="normal"),
    "PCA": PCA(3, whiten=True),
    "TruncatedSVD": TruncatedSVD(2, random_state=0),
    "VarianceThreshold": VarianceThreshold(0.1),
}
WRAPPED = {"func": np.arcsinh, "inverse_func": np.sinh}, {"transformer": pre.StandardScaler()}
MODELS |= {
    f"of {next(iter(given))}": (TransformedTargetRegressor(bk.KernelRidge(**SMALL), **given), Y) for given in WRAPPED
}
MODELS |= {
    f"after {name}": (make_pipeline(step, bk.UnitNormalizer(), bk.KernelRidgeClassifier(GAUSSIAN, **SMALL)), TEXT)
    for name, step in PLAIN.items()
}
legitimate = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")


def use(model, X=X):
    """Return the predictions or the features of rows."""
    if hasattr(model, "decision_function"):
        return np.column_stack([model.decision_function(X), np.unique(TEXT).searchsorted(model.predict(X).astype(str))])
    return model.predict(X) if hasattr(model, "predict") else model.transform(X)


def reloaded(model, folder):
    """Save a model, and load it."""
    bk.save_model(model, folder / "model", overwrite=True)
    return bk.load_model(folder / "model")


# ---------------------------------------------------------------- models and their fitted attributes


@legitimate
@pytest.mark.parametrize("model, y", MODELS.values(), ids=MODELS)
def test_a_loaded_model_equals_the_saved_one(tmp_path, model, y):
    loaded = reloaded(model.fit(X, y), tmp_path)
    assert type(loaded) is type(model)
    assert_array_equal(use(loaded), use(model))
    parameters, expected = loaded.get_params(), model.get_params()
    assert set(parameters) == set(expected)
    for name, value in expected.items():
        if not hasattr(value, "get_params") and not name.endswith(("steps", "transformer_list")):
            assert_array_equal(parameters[name], value)
    steps = [getattr(each, "steps", [("", each)]) for each in (model, loaded)]
    for (name, saved), (loaded_name, step) in zip(*steps, strict=True):
        assert name == loaded_name
        assert type(saved) is type(step)
        for key, values in getattr(saved, "statistics_", {}).items():
            assert_array_equal(step.statistics_[key], values)
        for key in ("alpha_", "_with_intercept", "sample_weight_", "classes_"):
            assert hasattr(step, key) == hasattr(saved, key)
            assert_array_equal(getattr(step, key, 0), getattr(saved, key, 0), strict=key == "classes_")


@legitimate
@pytest.mark.parametrize("name", [name for name, (model, _) in MODELS.items() if hasattr(model, "partial_fit")])
def test_partial_fit_after_loading_equals_partial_fit_before(tmp_path, name):
    model, y = MODELS[name]
    loaded = reloaded(model.fit(X[:60], y[:60]), tmp_path)
    assert_array_equal(use(loaded.partial_fit(X[60:], y[60:])), use(model.partial_fit(X[60:], y[60:])))


@pytest.mark.parametrize(
    "form, fit_intercept, weight", [({}, True, None), ({}, False, WEIGHT), (SMALL, True, WEIGHT), (SMALL, False, None)]
)
def test_standard_deviations_are_loaded_bit_by_bit(tmp_path, form, fit_intercept, weight):
    settings = {"kernel": GAUSSIAN, "alpha": 0.25, "fit_intercept": fit_intercept, **form}
    model = bk.KernelRidge(**settings).fit(X, Y, weight)
    expected = model.predict(X, return_std=True)
    model.set_params(alpha=7, fit_intercept=not fit_intercept)  # not yet solved
    assert_array_equal(reloaded(model, tmp_path).predict(X, return_std=True), expected)


@pytest.mark.parametrize("kind", [bk.KernelRidge, partial(bk.SSSL, manifold=0)], ids=["KernelRidge", "SSSL"])
def test_a_model_refitted_in_another_form_is_loaded(tmp_path, kind):
    model = kind(GAUSSIAN).fit(X, Y, WEIGHT)
    for changes in (SMALL, {"n_landmarks": None}):
        model.set_params(**changes).fit(X[:60], Y[:60])
        assert_array_equal(use(reloaded(model, tmp_path)), use(model))


REFITTED = {
    "KernelRidge": (bk.KernelRidge(GAUSSIAN, alpha=0.1, **SMALL), (Y,)),
    "SSSL": (bk.SSSL(GAUSSIAN, alpha=0.1, **SMALL), (Y,)),
    "DICA": (bk.DICA(GAUSSIAN, 2, **SMALL), (LABELS, DOMAINS)),
    "ARTL": (bk.ARTLClassifier(GAUSSIAN, n_rounds=2, **SMALL), (SHIFTED, 1 * (SHIFTED < 0))),
    "JDA": (bk.JDA(GAUSSIAN, n_rounds=2, **SMALL), (SHIFTED, 1 * (SHIFTED < 0))),
}


@legitimate
@pytest.mark.parametrize("model, columns", REFITTED.values(), ids=REFITTED)
def test_a_loaded_model_is_refitted_with_another_alpha_without_rows(tmp_path, model, columns):
    model = clone(model).fit(X, *columns)
    loaded = reloaded(model, tmp_path)
    for name in ("domains_", "target_domains_", "distributional_variance_"):
        assert hasattr(loaded, name) == hasattr(model, name)
        assert_array_equal(getattr(loaded, name, 0), getattr(model, name, 0))
    if hasattr(model, "pseudo_labels_"):
        assert_array_equal(loaded.pseudo_labels_.sums, model.pseudo_labels_.sums)
    for one in (model, loaded):
        one.set_params(alpha=3.0).refit()
    assert_array_equal(use(loaded), use(model))


def test_feature_names_are_loaded(tmp_path):
    table = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    loaded = reloaded(bk.Ridge().fit(table, Y), tmp_path)
    assert_array_equal(loaded.feature_names_in_, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(table[["b", "a", "c", "d"]])


# ---------------------------------------------------------------- files


def test_unknown_and_unfitted_steps_are_refused(tmp_path):
    class Mine(bk.Ridge):
        pass

    given = Pipeline([("log", Pipeline([("of", pre.FunctionTransformer(lambda x: x))])), ("ridge", bk.Ridge())])
    columns = make_pipeline(ColumnTransformer([("n", pre.StandardScaler(), [0])]), bk.Ridge())
    unknown = make_pipeline(pre.PolynomialFeatures(), bk.Ridge()).fit(X, Y)
    ours = "step '{}': expected .*for tables TableEncoder.* found {}; joblib"
    for kind, message, model in (
        (ConfigError, "PCA.*found PolynomialFeatures; joblib", unknown),
        (ConfigError, "Ours", make_pipeline(type("Ours", (pre.StandardScaler,), {})(), bk.Ridge()).fit(X, Y)),
        (ConfigError, "^save_model: step 'log': step 'of': Func.*func = .*NumPy's", given.fit(X, Y)),
        (ConfigError, ours.format("columntransformer", "ColumnTransformer"), columns.fit(X, Y)),
        (ConfigError, ours.format("onehot", "OneHotEncoder"), Pipeline([("onehot", pre.OneHotEncoder().fit(X))])),
        (ConfigError, ours.format("fill", "SimpleImputer"), Pipeline([("fill", SimpleImputer().fit(X))])),
        (NotFittedError, "StandardScaler", make_pipeline(pre.StandardScaler(), bk.Ridge())),
        (ConfigError, "Mine", Mine().fit(X, Y)),
        (NotFittedError, "KernelRidge", bk.KernelRidge()),
    ):
        with pytest.raises(kind, match=message):
            bk.save_model(model, tmp_path / "model")
    assert not any(tmp_path.iterdir())


def test_rows_on_disk_are_refused_by_a_step_that_reads_all_rows():
    model = make_pipeline(pre.StandardScaler(), bk.KernelRidge(**SMALL)).fit(X, Y)
    with pytest.raises(ConfigError, match=r"StandardScaler.*in memory.*Standardizer"):
        split(model, as_rows(X))


def test_a_loaded_scaler_accepts_more_rows(tmp_path):
    holes = np.where(rng.random(X.shape) < 0.2, np.nan, X)  # rows are counted by feature
    for rows, step in product((holes, X), (pre.StandardScaler(), pre.StandardScaler(with_std=False))):
        loaded = reloaded(step.fit(rows), tmp_path).partial_fit(X[:7])
        step.partial_fit(X[:7])
        for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
            assert_array_equal(getattr(loaded, name), getattr(step, name))


def test_an_existing_model_is_replaced_with_overwrite_alone(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        bk.load_model(tmp_path / "model")
    first, second = bk.Ridge(0.5).fit(X, Y), bk.Ridge(50.0).fit(X, Y)
    bk.save_model(first, tmp_path / "model")
    with pytest.raises(DataError, match="already exists"):
        bk.save_model(second, tmp_path / "model")
    assert_array_equal(use(bk.load_model(tmp_path / "model")), use(first))
    bk.save_model(second, tmp_path / "model", overwrite=True)
    assert_array_equal(use(bk.load_model(tmp_path / "model")), use(second))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_without_moments_is_loaded_by_predictors_alone(tmp_path):
    model = bk.KernelRidge(GAUSSIAN, **SMALL).fit(X, Y)
    bk.save_model(model, tmp_path / "whole")
    bk.save_model(model, tmp_path / "small", moments=False)
    assert (tmp_path / "small").stat().st_size < (tmp_path / "whole").stat().st_size / 2
    assert_array_equal(bk.Predictor.load(tmp_path / "small").predict(X), model.predict(X))
    with pytest.raises(DataError, match=r"without moments, for Predictor\.load"):
        bk.load_model(tmp_path / "small")
    with pytest.raises(ConfigError, match="FourierMap"):
        bk.save_model(bk.KernelRidge(landmarks="fourier", **SMALL).fit(X, Y), tmp_path / "none", moments=False)
    assert not (tmp_path / "none").exists()


def test_arrays_of_a_model_and_its_predictor_are_stored_once(tmp_path):
    model = bk.KernelRidge(GAUSSIAN, **SMALL).fit(X, Y)
    bk.save_model(model, tmp_path / "model")
    with opened(tmp_path / "model", limit_bytes=2**20) as contents:
        shapes = [tuple(entry["shape"]) for entry in contents.entries.values()]
    assert shapes.count((M, D)) == shapes.count((M, 2)) + shapes.count((2, M)) == 1  # landmarks and coefficients


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_existing_model(tmp_path, monkeypatch, call):
    model = bk.Ridge(0.5).fit(X, Y)
    bk.save_model(model, tmp_path / "model")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DataError, match="No space left"):
        bk.save_model(bk.Ridge(5.0).fit(X, Y), tmp_path / "model", overwrite=True)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith("claim")] == ["model"]
    assert_array_equal(bk.load_model(tmp_path / "model").predict(X), model.predict(X))
