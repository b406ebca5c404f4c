"""Models on disk: what is loaded is what was saved, to the last bit, and files appear whole or not at all."""

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import VarianceThreshold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

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
DRAWN = {"n_landmarks": M, "random_state": 0}
LENGTHS = np.array([0.5, 1.0, 2.0, 1.5])
WEIGHT = rng.uniform(0, 2, N)

MODELS = {
    "krr": (bk.KernelRidge(bk.Gaussian(1.4), 0.3, **DRAWN), Y[:, 0]),
    "krr of two targets with an intercept": (bk.KernelRidge("rbf", fit_intercept=True, **DRAWN), Y),
    "krr of given landmarks": (bk.KernelRidge(bk.Gaussian(LENGTHS), landmarks=X[:M]), Y),
    "krr exact": (bk.KernelRidge(bk.Matern(2.0, nu=2.5)), Y[:, 0]),
    "classifier": (bk.KernelRidgeClassifier(bk.Laplacian(0.2), **DRAWN), LABELS),
    "classifier of text": (bk.KernelRidgeClassifier(bk.Gaussian("scale"), **DRAWN), TEXT),
    "classifier exact of numbers": (bk.KernelRidgeClassifier("poly", degree=2), LABELS * 2.0),
    "classifier with probabilities": (bk.KernelRidgeClassifier(bk.Gaussian(1.4), probability=True, **DRAWN), TEXT),
    "classifier of classes that weigh": (
        bk.KernelRidgeClassifier(bk.Gaussian(1.4), class_weight={"één": 2.0, "two": 0.5}, **DRAWN),
        TEXT,
    ),
    "sigmoid": (bk.KernelRidge(bk.Sigmoid(0.01), **DRAWN), Y[:, 0]),
    "linear kernel": (bk.KernelRidge(bk.Linear(), **DRAWN), Y),
    "sssl": (bk.SSSL(bk.Gaussian(1.4), 5, **DRAWN), np.where(PARTLY < 0, np.nan, Y[:, 0])),
    "sssl exact": (bk.SSSL(bk.Gaussian(1.4), 5), Y[:, 0]),
    "sssl classifier": (bk.SSSLClassifier(bk.Gaussian(1.4), 5, **DRAWN), PARTLY),
    "krr of random features": (bk.KernelRidge(bk.Gaussian(1.4), landmarks="fourier", **DRAWN), Y),
    "classifier of orthogonal features": (
        bk.KernelRidgeClassifier(bk.Gaussian(LENGTHS), landmarks="orthogonal-fourier", **DRAWN),
        LABELS,
    ),
    "xnv": (bk.XNV(bk.Gaussian(1.4), **DRAWN), np.where(PARTLY < 0, np.nan, Y[:, 0])),
    "xnv classifier": (bk.XNVClassifier(bk.Gaussian(1.4), landmarks=X[: 2 * M], n_landmarks=None), PARTLY),
    "logistic": (bk.KernelLogisticClassifier(bk.Gaussian(1.4), class_weight={"two": 2.0}, **DRAWN), TEXT),
    "artl with probabilities": (bk.ARTLClassifier(bk.Gaussian(1.4), n_rounds=2, probability=True, **DRAWN), SHIFTED),
    "artl": (bk.ARTLClassifier(bk.Gaussian(1.4), n_rounds=2, **DRAWN), SHIFTED),
    "artl of one sharpness and no graph": (
        bk.ARTLClassifier(sharpness=4.0, manifold=0, landmarks="fourier", n_rounds=0, **DRAWN),
        SHIFTED,
    ),
    "least squares": (bk.LinearRegression(), Y),
    "ridge": (bk.Ridge(0.5), Y),
    "pipeline": (
        Pipeline(
            [
                ("eighth", bk.Rescaler(0.125)),
                ("norm", bk.UnitNormalizer()),
                ("z", bk.Standardizer()),
                ("last", bk.KernelRidgeClassifier(bk.Gaussian(1.0), **DRAWN)),
            ]
        ),
        TEXT,
    ),
    "pipeline of transforms": (Pipeline([("z", bk.Standardizer()), ("norm", bk.UnitNormalizer())]), None),
    "standardizer": (bk.Standardizer(), None),
    "components of domains": (bk.DICA(bk.Gaussian(1.4), 2, allow_single_domain=True, **DRAWN), LABELS),
    "components without labels": (
        bk.DICA(bk.Gaussian(1.4), 2, supervised=False, allow_single_domain=True, **DRAWN),
        None,
    ),
    "joint components": (bk.JDA(bk.Gaussian(1.4), 3, n_rounds=2, **DRAWN), SHIFTED),
    "transfer components of random features": (
        bk.JDA(bk.Gaussian(1.4), 3, n_rounds=0, landmarks="fourier", **DRAWN),
        SHIFTED,
    ),
    "landmark features": (bk.Nystroem(bk.Gaussian(1.4), M, random_state=0), None),
    "random features": (bk.RandomFourier(bk.Gaussian(LENGTHS), 7, orthogonal=True, random_state=0), None),
    "moments of images": (bk.MomentNormalizer(image_shape=(2, 2)), None),
    "strokes of images": (bk.OrientationFeatures(), None),
    "projector": (bk.Projector(2, whiten=True), None),
    "transforms side by side": (
        bk.RowUnion(
            [("z", bk.Standardizer()), ("chain", Pipeline([("norm", bk.UnitNormalizer()), ("few", bk.Projector(2))]))],
            transformer_weights={"chain": 0.5},
        ),
        None,
    ),
    "patches of images": (bk.ConvolutionalNystroem(patch_size=2, n_landmarks=3, random_state=0), None),
    "pipeline of a projection": (
        Pipeline(
            [("joint", bk.JDA(bk.Gaussian(1.4), 3, n_rounds=1, **DRAWN)), ("last", bk.XNVClassifier(n_landmarks=5))]
        ),
        SHIFTED,
    ),
}
PLAIN = {
    "StandardScaler": StandardScaler(),
    "StandardScaler of nothing": StandardScaler(with_std=False, with_mean=False),
    "MinMaxScaler": MinMaxScaler((-1, 2)),
    "MaxAbsScaler": MaxAbsScaler(),
    "RobustScaler": RobustScaler(quantile_range=(10, 90)),
    "Normalizer": Normalizer("max"),
    "QuantileTransformer": QuantileTransformer(n_quantiles=20, output_distribution="normal"),
    "PCA": PCA(3, whiten=True),
    "TruncatedSVD": TruncatedSVD(2, random_state=0),
    "VarianceThreshold": VarianceThreshold(0.1),
}
MODELS |= {
    f"after {name}": (
        make_pipeline(step, bk.UnitNormalizer(), bk.KernelRidgeClassifier(bk.Gaussian(1.4), **DRAWN)),
        TEXT,
    )
    for name, step in PLAIN.items()
}
every_model = pytest.mark.parametrize("model, y", MODELS.values(), ids=MODELS)
legitimate = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")


def use(model, X=X):
    """What the model says of rows."""
    if hasattr(model, "decision_function"):
        return np.column_stack([model.decision_function(X), np.unique(TEXT).searchsorted(model.predict(X).astype(str))])
    return model.predict(X) if hasattr(model, "predict") else model.transform(X)


# ---------------------------------------------------------------- what comes back


@legitimate
@every_model
def test_a_model_comes_back_as_it_was(tmp_path, model, y):
    model.fit(X, y)
    bk.save_model(model, tmp_path / "model")
    loaded = bk.load_model(tmp_path / "model")
    assert type(loaded) is type(model)
    assert_array_equal(use(loaded), use(model))
    parameters, wanted = loaded.get_params(), model.get_params()
    assert set(parameters) == set(wanted)
    for name, value in wanted.items():
        if not hasattr(value, "get_params") and not name.endswith(("steps", "transformer_list")):
            assert_array_equal(parameters[name], value)
    for mine, theirs in zip(
        getattr(model, "steps", [("", model)]), getattr(loaded, "steps", [("", loaded)]), strict=True
    ):
        assert mine[0] == theirs[0]
        assert type(mine[1]) is type(theirs[1])
        for name, values in getattr(mine[1], "statistics_", {}).items():
            assert_array_equal(theirs[1].statistics_[name], values)
        for name in ("alpha_", "_with_intercept", "sample_weight_"):
            assert hasattr(theirs[1], name) == hasattr(mine[1], name)
            assert_array_equal(getattr(theirs[1], name, 0), getattr(mine[1], name, 0))
        if hasattr(mine[1], "classes_"):
            assert_array_equal(theirs[1].classes_, mine[1].classes_)
            assert theirs[1].classes_.dtype == mine[1].classes_.dtype


@legitimate
@pytest.mark.parametrize("name", [name for name, (model, _) in MODELS.items() if hasattr(model, "partial_fit")])
def test_more_rows_after_loading_equal_more_rows_before(tmp_path, name):
    model, y = MODELS[name]
    model.fit(X[:60], y[:60])
    bk.save_model(model, tmp_path / "model")
    loaded = bk.load_model(tmp_path / "model")
    model.partial_fit(X[60:], y[60:])
    loaded.partial_fit(X[60:], y[60:])
    assert_array_equal(use(loaded), use(model))


@pytest.mark.parametrize(
    "form, fit_intercept, weight", [({}, True, None), ({}, False, WEIGHT), (DRAWN, True, WEIGHT), (DRAWN, False, None)]
)
def test_deviations_come_back_to_the_last_bit(tmp_path, form, fit_intercept, weight):
    settings = {"kernel": bk.Gaussian(1.4), "alpha": 0.25, "fit_intercept": fit_intercept, **form}
    model = bk.KernelRidge(**settings).fit(X, Y, weight)
    wanted = model.predict(X, return_std=True)
    model.set_params(alpha=7, fit_intercept=not fit_intercept)  # asked for, not yet solved
    bk.save_model(model, tmp_path / "model")
    for found, values in zip(bk.load_model(tmp_path / "model").predict(X, return_std=True), wanted, strict=True):
        assert_array_equal(found, values)


@pytest.mark.parametrize("kind", [bk.KernelRidge, bk.SSSL])
def test_a_model_that_was_fitted_twice_in_other_forms_comes_back(tmp_path, kind):
    model = kind(bk.Gaussian(1.4)).fit(X, Y, WEIGHT)
    for name, changes in (("landmarks", DRAWN), ("exact", {"n_landmarks": None})):
        model.set_params(**changes).fit(X[:60], Y[:60])
        bk.save_model(model, tmp_path / name)
        assert_array_equal(use(bk.load_model(tmp_path / name)), use(model))


@pytest.mark.parametrize("kind", [bk.KernelRidge, bk.SSSL])
def test_another_alpha_after_loading_costs_no_rows(tmp_path, kind):
    model = kind(bk.Gaussian(1.4), alpha=0.1, **DRAWN).fit(X, Y)
    bk.save_model(model, tmp_path / "model")
    loaded = bk.load_model(tmp_path / "model").set_params(alpha=3.0).refit()
    assert_array_equal(use(loaded), use(kind(bk.Gaussian(1.4), alpha=3.0, **DRAWN).fit(X, Y)))


def test_components_of_several_domains_come_back_and_are_solved_again(tmp_path):
    model = bk.DICA(bk.Gaussian(1.4), 2, **DRAWN).fit(X, LABELS, sample_domain=DOMAINS)
    bk.save_model(model, tmp_path / "model")
    loaded = bk.load_model(tmp_path / "model")
    assert loaded.fit_report()["distributional_variance"] == model.distributional_variance_
    assert_array_equal(loaded.domains_, model.domains_)
    for one in (model, loaded):
        one.set_params(alpha=3.0).refit()
    assert_array_equal(use(loaded), use(model))


@legitimate
@pytest.mark.parametrize("kind", [bk.ARTLClassifier, bk.JDA])
def test_pseudo_labels_come_back_for_another_solve(tmp_path, kind):
    model = kind(bk.Gaussian(1.4), n_rounds=2, **DRAWN).fit(X, SHIFTED + 0, DOMAINS - DOMAINS + (SHIFTED < 0))
    bk.save_model(model, tmp_path / "model")
    loaded = bk.load_model(tmp_path / "model")
    assert_array_equal(loaded.pseudo_labels_.sums, model.pseudo_labels_.sums)
    assert_array_equal(loaded.target_domains_, model.target_domains_)
    for one in (model, loaded):
        one.set_params(alpha=3.0).refit()
    assert_array_equal(use(loaded), use(model))


def test_names_of_features_come_back(tmp_path):
    import pandas

    table = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    bk.save_model(bk.Ridge().fit(table, Y), tmp_path / "model")
    loaded = bk.load_model(tmp_path / "model")
    assert_array_equal(loaded.feature_names_in_, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(table[["b", "a", "c", "d"]])


# ---------------------------------------------------------------- what is written


def test_a_step_that_is_not_ours_or_not_fitted_is_refused(tmp_path):
    class Mine(bk.Ridge):
        pass

    for kind, message, model in (
        (
            ConfigError,
            "PCA.*found PolynomialFeatures; joblib",
            make_pipeline(PolynomialFeatures(), bk.Ridge()).fit(X, Y),
        ),
        (ConfigError, "Ours", make_pipeline(type("Ours", (StandardScaler,), {})(), bk.Ridge()).fit(X, Y)),
        (NotFittedError, "StandardScaler", make_pipeline(StandardScaler(), bk.Ridge())),
        (ConfigError, "Mine", Mine().fit(X, Y)),
        (NotFittedError, "KernelRidge", bk.KernelRidge()),
    ):
        with pytest.raises(kind, match=message):
            bk.save_model(model, tmp_path / "model")
    assert not any(tmp_path.iterdir())


def test_rows_on_disk_are_refused_by_the_step_that_would_read_them_all():
    model = make_pipeline(StandardScaler(), bk.KernelRidge(**DRAWN)).fit(X, Y)
    with pytest.raises(ConfigError, match=r"StandardScaler.*in memory.*Standardizer"):
        split(model, as_rows(X))


def test_a_scaler_goes_on_from_its_file(tmp_path):
    holes = np.where(rng.random(X.shape) < 0.2, np.nan, X)  # rows are counted by feature
    for rows, step in product((holes, X), (StandardScaler(), StandardScaler(with_std=False))):
        bk.save_model(step.fit(rows), tmp_path / "model", overwrite=True)
        loaded = bk.load_model(tmp_path / "model").partial_fit(X[:7])
        step.partial_fit(X[:7])
        for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
            assert_array_equal(getattr(loaded, name), getattr(step, name))


def test_what_is_there_is_replaced_only_when_asked(tmp_path):
    first, second = bk.Ridge(0.5).fit(X, Y), bk.Ridge(50.0).fit(X, Y)
    bk.save_model(first, tmp_path / "model")
    with pytest.raises(DataError, match="already exists"):
        bk.save_model(second, tmp_path / "model")
    assert_array_equal(use(bk.load_model(tmp_path / "model")), use(first))
    bk.save_model(second, tmp_path / "model", overwrite=True)
    assert_array_equal(use(bk.load_model(tmp_path / "model")), use(second))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_path_without_a_model_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        bk.load_model(tmp_path / "nothing")


def test_a_file_without_moments_is_for_predictors_alone(tmp_path):
    model = bk.KernelRidge(bk.Gaussian(1.4), **DRAWN).fit(X, Y)
    bk.save_model(model, tmp_path / "whole")
    bk.save_model(model, tmp_path / "small", moments=False)
    assert (tmp_path / "small").stat().st_size < (tmp_path / "whole").stat().st_size / 2
    assert_array_equal(bk.Predictor.load(tmp_path / "small").predict(X), model.predict(X))
    with pytest.raises(DataError, match=r"without moments, for Predictor\.load"):
        bk.load_model(tmp_path / "small")
    with pytest.raises(ConfigError, match="FourierMap"):
        bk.save_model(bk.KernelRidge(landmarks="fourier", **DRAWN).fit(X, Y), tmp_path / "none", moments=False)
    assert not (tmp_path / "none").exists()


def test_what_a_model_and_its_predictor_share_stands_in_the_file_once(tmp_path):
    model = bk.KernelRidge(bk.Gaussian(1.4), **DRAWN).fit(X, Y)
    bk.save_model(model, tmp_path / "model")
    with opened(tmp_path / "model", limit_bytes=2**20) as contents:
        shapes = [tuple(entry["shape"]) for entry in contents.entries.values()]
    assert shapes.count((M, D)) == shapes.count((M, 2)) == 1


KILLED = """
import os, sys
import numpy as np
from bigkernel import Ridge, save_model

replace, count = os.replace, 0
os.replace = lambda *names: os._exit(9)
save_model(Ridge().fit(np.eye(4), np.ones(4)), sys.argv[1], overwrite=True)
"""


def test_a_process_that_dies_leaves_no_half_of_a_file(tmp_path):
    model = bk.Ridge(0.5).fit(X, Y)
    bk.save_model(model, tmp_path / "model")
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "model"], check=False)
    assert done.returncode == 9
    assert_array_equal(bk.load_model(tmp_path / "model").predict(X), model.predict(X))


def test_an_error_of_the_disk_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    model = bk.Ridge(0.5).fit(X, Y)
    bk.save_model(model, tmp_path / "model")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        bk.save_model(bk.Ridge(5.0).fit(X, Y), tmp_path / "model", overwrite=True)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith("claim")] == ["model"]
    assert_array_equal(bk.load_model(tmp_path / "model").predict(X), model.predict(X))
