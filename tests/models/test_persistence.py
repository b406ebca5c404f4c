"""Models on disk: what is loaded is what was saved, to the last bit; anything tampered with is refused, at once."""

import json
import os
import pickletools
import shutil
import time
from itertools import product
from pathlib import Path

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
from tampering import claims, deep, drop, edit, poisoned, put, reseal, rewritten, without

from bigkernel import (
    DICA,
    JDA,
    SSSL,
    XNV,
    ARTLClassifier,
    ConvolutionalNystroem,
    Gaussian,
    KernelLogisticClassifier,
    KernelRidge,
    KernelRidgeClassifier,
    Laplacian,
    Linear,
    LinearRegression,
    Matern,
    MomentNormalizer,
    Nystroem,
    OrientationFeatures,
    Polynomial,
    Projector,
    RandomFourier,
    Rescaler,
    Ridge,
    RowUnion,
    Sigmoid,
    SSSLClassifier,
    Standardizer,
    UnitNormalizer,
    XNVClassifier,
    load_model,
    save_model,
)
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError, ModelRejected
from bigkernel.estimators.evaluation import split

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
    "krr": (KernelRidge(Gaussian(1.4), 0.3, **DRAWN), Y[:, 0]),
    "krr of two targets with an intercept": (KernelRidge("rbf", fit_intercept=True, **DRAWN), Y),
    "krr in single precision": (KernelRidge(Gaussian(1.4), dtype="float32", **DRAWN), Y[:, 0]),
    "krr of a seed from NumPy": (KernelRidge(n_landmarks=M, random_state=np.int64(3)), Y),
    "krr of given landmarks": (KernelRidge(Gaussian(LENGTHS), landmarks=X[:M]), Y),
    "krr exact": (KernelRidge(Matern(2.0, nu=2.5)), Y[:, 0]),
    "classifier": (KernelRidgeClassifier(Laplacian(0.2), **DRAWN), LABELS),
    "classifier of text": (KernelRidgeClassifier(Gaussian("scale"), **DRAWN), TEXT),
    "classifier exact of numbers": (KernelRidgeClassifier("poly", degree=2), LABELS * 2.0),
    "classifier of two": (KernelRidgeClassifier(Polynomial(2), **DRAWN), LABELS > 0),
    "classifier with probabilities": (KernelRidgeClassifier(Gaussian(1.4), probability=True, **DRAWN), TEXT),
    "exact classifier with probabilities": (KernelRidgeClassifier(Gaussian(1.4), probability=True), LABELS),
    "classifier of classes that weigh": (
        KernelRidgeClassifier(Gaussian(1.4), class_weight={"één": 2.0, "two": 0.5}, **DRAWN),
        TEXT,
    ),
    "sigmoid": (KernelRidge(Sigmoid(0.01), **DRAWN), Y[:, 0]),
    "linear kernel": (KernelRidge(Linear(), **DRAWN), Y),
    "sssl": (SSSL(Gaussian(1.4), 5, **DRAWN), np.where(PARTLY < 0, np.nan, Y[:, 0])),
    "sssl of landmarks": (SSSL(Gaussian(1.4), 5, eigenfunctions="landmarks", **DRAWN), Y),
    "sssl exact": (SSSL(Gaussian(1.4), 5), Y[:, 0]),
    "sssl classifier": (SSSLClassifier(Gaussian(1.4), 5, **DRAWN), PARTLY),
    "krr of random features": (KernelRidge(Gaussian(1.4), landmarks="fourier", **DRAWN), Y),
    "classifier of orthogonal features": (
        KernelRidgeClassifier(Gaussian(LENGTHS), landmarks="orthogonal-fourier", **DRAWN),
        LABELS,
    ),
    "krr of centres": (KernelRidge(Gaussian(1.4), landmarks="k-means", **DRAWN), Y),
    "xnv": (XNV(Gaussian(1.4), **DRAWN), np.where(PARTLY < 0, np.nan, Y[:, 0])),
    "xnv classifier": (XNVClassifier(Gaussian(1.4), landmarks=X[: 2 * M], n_landmarks=None), PARTLY),
    "logistic": (KernelLogisticClassifier(Gaussian(1.4), class_weight={"two": 2.0}, **DRAWN), TEXT),
    "xnv with probabilities": (XNVClassifier(Gaussian(1.4), probability=True, **DRAWN), PARTLY),
    "artl with probabilities": (ARTLClassifier(Gaussian(1.4), n_rounds=2, probability=True, **DRAWN), SHIFTED),
    "artl": (ARTLClassifier(Gaussian(1.4), n_rounds=2, **DRAWN), SHIFTED),
    "artl of one sharpness and no graph": (
        ARTLClassifier(sharpness=4.0, manifold=0, landmarks="fourier", n_rounds=0, **DRAWN),
        SHIFTED,
    ),
    "least squares": (LinearRegression(), Y),
    "least squares of one": (LinearRegression(fit_intercept=False), Y[:, 0]),
    "ridge": (Ridge(0.5), Y),
    "pipeline": (
        Pipeline(
            [
                ("eighth", Rescaler(0.125)),
                ("norm", UnitNormalizer()),
                ("z", Standardizer()),
                ("last", KernelRidgeClassifier(Gaussian(1.0), **DRAWN)),
            ]
        ),
        TEXT,
    ),
    "pipeline of transforms": (Pipeline([("z", Standardizer()), ("norm", UnitNormalizer())]), None),
    "rescaler": (Rescaler(1 / 255), None),
    "unit norm": (UnitNormalizer(), None),
    "standardizer": (Standardizer(), None),
    "components of domains": (DICA(Gaussian(1.4), 2, allow_single_domain=True, **DRAWN), LABELS),
    "components without labels": (DICA(Gaussian(1.4), 2, supervised=False, allow_single_domain=True, **DRAWN), None),
    "exact components": (DICA(Gaussian(1.4), 2, allow_single_domain=True), LABELS),
    "joint components": (JDA(Gaussian(1.4), 3, n_rounds=2, **DRAWN), SHIFTED),
    "transfer components of random features": (
        JDA(Gaussian(1.4), 3, n_rounds=0, landmarks="fourier", **DRAWN),
        SHIFTED,
    ),
    "landmark features": (Nystroem(Gaussian(1.4), M, random_state=0), None),
    "random features": (RandomFourier(Gaussian(LENGTHS), 7, orthogonal=True, random_state=0), None),
    "moments of images": (MomentNormalizer(image_shape=(2, 2)), None),
    "strokes of images": (OrientationFeatures(), None),
    "projector": (Projector(2, whiten=True), None),
    "transforms side by side": (
        RowUnion(
            [("z", Standardizer()), ("chain", Pipeline([("norm", UnitNormalizer()), ("few", Projector(2))]))],
            transformer_weights={"chain": 0.5},
        ),
        None,
    ),
    "patches of images": (ConvolutionalNystroem(patch_size=2, n_landmarks=3, random_state=0), None),
    "pipeline of a projection": (
        Pipeline([("joint", JDA(Gaussian(1.4), 3, n_rounds=1, **DRAWN)), ("last", XNVClassifier(n_landmarks=5))]),
        SHIFTED,
    ),
}
PLAIN = {
    "StandardScaler": StandardScaler(),
    "StandardScaler of means": StandardScaler(with_std=False),
    "StandardScaler of nothing": StandardScaler(with_std=False, with_mean=False),
    "MinMaxScaler": MinMaxScaler((-1, 2)),
    "MaxAbsScaler": MaxAbsScaler(),
    "RobustScaler": RobustScaler(quantile_range=(10, 90)),
    "RobustScaler without scales": RobustScaler(with_scaling=False),
    "Normalizer": Normalizer("max"),
    "QuantileTransformer": QuantileTransformer(n_quantiles=20, output_distribution="normal"),
    "PCA": PCA(3, whiten=True),
    "PCA of a share": PCA(0.9, svd_solver="full"),
    "TruncatedSVD": TruncatedSVD(2, random_state=0),
    "VarianceThreshold": VarianceThreshold(0.1),
}
MODELS |= {
    f"after {name}": (make_pipeline(step, UnitNormalizer(), KernelRidgeClassifier(Gaussian(1.4), **DRAWN)), TEXT)
    for name, step in PLAIN.items()
}
every_model = pytest.mark.parametrize("model, y", MODELS.values(), ids=MODELS)
legitimate = pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficient")


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
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
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
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    model.partial_fit(X[60:], y[60:])
    loaded.partial_fit(X[60:], y[60:])
    assert_array_equal(use(loaded), use(model))


@pytest.mark.parametrize("name", ["classifier", "sssl classifier", "xnv classifier", "artl"])
def test_a_classifier_from_before_its_parameters_were_more_opens(tmp_path, name):
    model, y = MODELS[name]
    save_model(model.fit(X, y), tmp_path / "model")
    for parameter in ("class_weight", "probability"):
        drop("params", parameter)(tmp_path / "model")
    reseal(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert (loaded.class_weight, loaded.probability) == (None, False)
    assert_array_equal(use(loaded), use(model))


def test_a_graph_from_before_its_neighbours_were_stored_opens(tmp_path):
    model = SSSL(Gaussian(1.4), manifold=1.0, **DRAWN).fit(X, Y)
    save_model(model, tmp_path / "model")
    drop("fitted", "graph_neighbors_")(tmp_path / "model")
    reseal(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_array_equal(use(loaded), use(model))
    loaded.set_params(alpha=0.5, n_neighbors=4).refit()  # of the graph that is summed, whatever it was


@pytest.mark.parametrize("form", [{}, DRAWN], ids=["exact", "landmarks"])
@pytest.mark.parametrize("kind", [KernelRidge, SSSL])
def test_the_penalty_and_the_weights_of_the_fit_come_back(tmp_path, kind, form):
    model = kind(Gaussian(1.4), alpha=0.25, **form).fit(X, Y, WEIGHT).set_params(alpha=7)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert (loaded.alpha, loaded.alpha_) == (7, 0.25)
    assert loaded.fit_report()["alpha"] == 0.25
    assert hasattr(loaded, "sample_weight_") == (not form)
    if not form:
        assert_array_equal(loaded.sample_weight_, WEIGHT)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("form", [{}, DRAWN], ids=["exact", "landmarks"])
def test_deviations_come_back_to_the_last_bit(tmp_path, form, fit_intercept, weight):
    settings = {"kernel": Gaussian(1.4), "alpha": 0.25, "fit_intercept": fit_intercept, **form}
    model = KernelRidge(**settings).fit(X, Y, weight)
    wanted = model.predict(X, return_std=True)
    model.set_params(alpha=7, fit_intercept=not fit_intercept)  # asked for, not yet solved
    save_model(model, tmp_path / "model")
    for found, values in zip(load_model(tmp_path / "model").predict(X, return_std=True), wanted, strict=True):
        assert_array_equal(found, values)


@pytest.mark.parametrize("kind", [KernelRidge, SSSL])
def test_a_model_that_was_fitted_twice_in_other_forms_comes_back(tmp_path, kind):
    model = kind(Gaussian(1.4)).fit(X, Y, WEIGHT)
    for name, changes in (("landmarks", DRAWN), ("exact", {"n_landmarks": None})):
        model.set_params(**changes).fit(X[:60], Y[:60])
        save_model(model, tmp_path / name)
        assert_array_equal(use(load_model(tmp_path / name)), use(model))


@pytest.mark.parametrize("kind", [KernelRidge, SSSL])
def test_another_alpha_after_loading_costs_no_rows(tmp_path, kind):
    model = kind(Gaussian(1.4), alpha=0.1, **DRAWN).fit(X, Y)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model").set_params(alpha=3.0).refit()
    assert_array_equal(use(loaded), use(kind(Gaussian(1.4), alpha=3.0, **DRAWN).fit(X, Y)))


def test_components_of_several_domains_come_back_and_are_solved_again(tmp_path):
    model = DICA(Gaussian(1.4), 2, **DRAWN).fit(X, LABELS, sample_domain=DOMAINS)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.fit_report()["distributional_variance"] == model.distributional_variance_
    assert_array_equal(loaded.domains_, model.domains_)
    for one in (model, loaded):
        one.set_params(alpha=3.0).refit()
    assert_array_equal(use(loaded), use(model))


@legitimate
@pytest.mark.parametrize("kind", [ARTLClassifier, JDA])
def test_pseudo_labels_come_back_for_another_solve(tmp_path, kind):
    model = kind(Gaussian(1.4), n_rounds=2, **DRAWN).fit(X, SHIFTED + 0, DOMAINS - DOMAINS + (SHIFTED < 0))
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_array_equal(loaded.pseudo_labels_.sums, model.pseudo_labels_.sums)
    assert_array_equal(loaded.target_domains_, model.target_domains_)
    for one in (model, loaded):
        one.set_params(alpha=3.0).refit()
    assert_array_equal(use(loaded), use(model))


def test_names_of_features_come_back(tmp_path):
    import pandas

    table = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    save_model(Ridge().fit(table, Y), tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_array_equal(loaded.feature_names_in_, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(table[["b", "a", "c", "d"]])


@pytest.mark.parametrize("name", ["t", "G", "n", "0", "model"])
def test_a_relative_path_of_any_name_is_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    model = KernelRidge(Gaussian(1.4), **DRAWN).fit(X, Y)
    save_model(model, name)
    assert_array_equal(use(load_model(name)), use(model))


# ---------------------------------------------------------------- what is written


@legitimate
def test_no_file_of_a_model_is_a_pickle(tmp_path):
    model, y = MODELS["pipeline"]
    save_model(model.fit(X, y), tmp_path / "model")
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert {path.name for path in files if not path.name.isdigit() and path.name != "c"} == {"zarr.json"}
    for path in files:
        content = path.read_bytes()
        if path.name == "zarr.json":
            assert isinstance(json.loads(content), dict)
        elif content[:1] == b"\x80":
            with pytest.raises(ValueError, match=r"."):
                list(pickletools.genops(content))
        assert content[:2] not in (b"\x80\x03", b"\x80\x04", b"\x80\x05")


def test_a_step_that_is_not_ours_or_not_fitted_is_refused(tmp_path):
    class Mine(Ridge):
        pass

    for kind, message, model in (
        (ConfigError, "PolynomialFeatures .*PCA.*joblib", make_pipeline(PolynomialFeatures(), Ridge()).fit(X, Y)),
        (ConfigError, "Ours", make_pipeline(type("Ours", (StandardScaler,), {})(), Ridge()).fit(X, Y)),
        (NotFittedError, "StandardScaler", make_pipeline(StandardScaler(), Ridge())),
        (ConfigError, "Mine", Mine().fit(X, Y)),
        (NotFittedError, "KernelRidge", KernelRidge()),
    ):
        with pytest.raises(kind, match=message):
            save_model(model, tmp_path / "model")
    assert not any(tmp_path.iterdir())


def test_rows_on_disk_are_refused_by_the_step_that_would_read_them_all():
    model = make_pipeline(StandardScaler(), KernelRidge(**DRAWN)).fit(X, Y)
    with pytest.raises(ConfigError, match=r"StandardScaler.*in memory.*Standardizer"):
        split(model, as_rows(X))


def test_a_scaler_goes_on_from_its_file(tmp_path):
    holes = np.where(rng.random(X.shape) < 0.2, np.nan, X)  # rows are counted by feature
    for rows, step in product((holes, X), (StandardScaler(), StandardScaler(with_std=False))):
        save_model(step.fit(rows), tmp_path / "model", overwrite=True)
        loaded = load_model(tmp_path / "model").partial_fit(X[:7])
        step.partial_fit(X[:7])
        for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
            assert_array_equal(getattr(loaded, name), getattr(step, name))


def test_what_is_there_is_replaced_only_when_asked(tmp_path):
    first, second = Ridge(0.5).fit(X, Y), Ridge(50.0).fit(X, Y)
    save_model(first, tmp_path / "model")
    with pytest.raises(DataError, match="already exists"):
        save_model(second, tmp_path / "model")
    assert_array_equal(use(load_model(tmp_path / "model")), use(first))
    save_model(second, tmp_path / "model", overwrite=True)
    assert_array_equal(use(load_model(tmp_path / "model")), use(second))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_overwriting_spares_what_is_not_a_model(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    with pytest.raises(DataError, match="thesis"):
        save_model(Ridge().fit(X, Y), tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter").read_text() == "years of work"


def test_a_path_without_a_model_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_model(tmp_path / "nothing")


# ---------------------------------------------------------------- tampering


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier, a regressor, a ridge and a standardizer on disk, never to be changed."""
    root = tmp_path_factory.mktemp("saved")
    save_model(KernelRidgeClassifier(Gaussian(1.4), **DRAWN).fit(X, LABELS), root / "classifier")
    save_model(KernelRidge(Gaussian(1.4), **DRAWN).fit(X, Y[:, 0]), root / "regressor")
    save_model(Ridge().fit(X, Y), root / "ridge")
    save_model(Standardizer().fit(X), root / "standardizer")
    save_model(SSSL(Gaussian(1.4), 5, **DRAWN).fit(X, Y), root / "sssl")
    save_model(KernelRidge(Gaussian(1.4), fit_intercept=True).fit(X, Y[:, 0], WEIGHT), root / "weighted")
    for name in ("xnv", "artl", "components of domains", "joint components", "random features", "strokes of images"):
        model, y = MODELS[name]
        save_model(model.fit(X, y), root / name)
    save_model(KernelRidge(Gaussian(1.4), landmarks="fourier", **DRAWN).fit(X, Y), root / "fourier")
    for step in ("StandardScaler", "PCA", "QuantileTransformer", "Normalizer"):
        save_model(make_pipeline(PLAIN[step], Ridge()).fit(X, Y), root / step)
    return root


@pytest.fixture
def rejected(saved, tmp_path):
    """Copy a model, tamper with it, and tell why it was refused, in under a second; the path of the copy stays.

    Unless told otherwise it is sealed again, so that the seal is not what refuses it.
    """

    def check(tamper, of="classifier", match=".", sealed=True):
        path = tmp_path / "tampered"
        shutil.copytree(saved / of, path)
        tamper(path)
        if sealed:
            reseal(path)
        start = time.perf_counter()
        with pytest.raises(ModelRejected, match=match) as refused:
            load_model(path)
        assert time.perf_counter() - start < 1
        return str(refused.value)

    return check


def text(content):
    return lambda path: (path / "zarr.json").write_text(content)


def cut(path):
    chunk = path / "0.landmarks_" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])


def kernel_(kernel, **params):
    return put("fitted", "kernel_", {"kernel": kernel, "params": params})


NAN = float("nan")
TAMPERED = {
    "unknown class": (put("class", "os.system"), "unknown class"),
    "class of another package": (put("class", "Pipeline"), "unknown class"),
    "class that is no name": (put("class", ["Ridge"]), "."),
    "unknown kernel": (put("params", "kernel", {"kernel": "evil", "params": {}}), "unknown kernel"),
    "unknown fitted kernel": (kernel_("evil"), "unknown kernel"),
    "kernel that is no name": (put("params", "kernel", "kernel", ["gaussian"]), "."),
    "kernel of unknown parameters": (kernel_("gaussian", sigma=1.0, evil=1), "."),
    "fitted kernel that is text": (put("fitted", "kernel_", "gaussian"), "kernel_"),
    "bandwidth below 0": (kernel_("gaussian", sigma=-1.0), "sigma"),
    "bandwidth NaN": (kernel_("gaussian", sigma=NAN), "sigma"),
    "bandwidth that is text": (kernel_("gaussian", sigma="scale"), "sigma"),
    "bandwidth of no landmarks": (kernel_("gaussian", sigma="auto"), "sigma"),
    "bandwidths too few": (kernel_("gaussian", sigma=[1.0, 2.0]), "sigma"),
    "degree without end": (kernel_("polynomial", degree=10**12, gamma=1.0, coef0=1.0), "degree"),
    "extra parameter": (put("params", "evil", 1), "evil"),
    "missing parameter": (drop("params", "alpha"), "alpha"),
    "alpha that is text": (put("params", "alpha", "1"), "alpha"),
    "unknown fitted value": (put("fitted", "__class__", "x"), "unknown fitted value"),
    "number of features that is text": (put("fitted", "n_features_in_", "4"), "."),
    "another number of features": (put("fitted", "n_features_in_", 5), "shape"),
    "no number of features": (drop("fitted", "n_features_in_"), "."),
    "classes too few": (put("fitted", "classes_", [0, 1]), "classes_"),
    "classes too many": (put("fitted", "classes_", [0, 1, 2, 3]), "classes_"),
    "classes nested": (put("fitted", "classes_", [[0], [1], [2]]), "classes_"),
    "classes missing": (drop("fitted", "classes_"), "classes_"),
    "classes twice the same": (put("fitted", "classes_", [0, 1, 1]), "classes_"),
    "unknown dtype": (put("fitted", "dtype_", "float16"), "dtype_"),
    "dtype missing": (drop("fitted", "dtype_"), "dtype_"),
    "rank that is text": (put("fitted", "rank_", "evil"), "rank_"),
    "kernel missing": (drop("fitted", "kernel_"), "kernel_"),
    "future format": (edit(lambda a: a.update(format=99)), "99"),
    "no format": (edit(lambda a: a.pop("format")), "None"),
    "another kind": (edit(lambda a: a.update(kind="corpus")), "corpus"),
    "no steps": (edit(lambda a: a.update(steps=[])), "no step"),
    "steps that are none": (edit(lambda a: a.update(steps=None)), "."),
    "steps by name": (edit(lambda a: a.update(steps={"model": {}})), "."),
    "a second step without arrays": (edit(lambda a: a["steps"].append(a["steps"][0])), "landmarks_"),
    "path traversal": (put("arrays", "../../outside", {"shape": [1], "dtype": "<f8", "sha256": ""}), "outside"),
    "absolute path": (put("arrays", "/etc/passwd", {"shape": [1], "dtype": "<f8", "sha256": ""}), "passwd"),
    "another digest": (put("arrays", "dual_coef_", "sha256", "0" * 64), "SHA-256"),
    "another shape": (put("arrays", "dual_coef_", "shape", [3, 10]), "shape"),
    "array of an unknown name": (
        lambda path: (
            shutil.copytree(path / "0.dual_coef_", path / "0.evil"),
            edit(lambda a: a["steps"][0]["arrays"].update(evil=a["steps"][0]["arrays"]["dual_coef_"]))(path),
        ),
        "evil",
    ),
    "array that is not described": (lambda path: shutil.copytree(path / "0.dual_coef_", path / "0.evil"), "evil"),
    "8 TB in one chunk": (claims([10**6, 10**6], [10**6, 10**6]), "bytes"),
    "8 TB in chunks": (claims([10**6, 10**6], [1000, 1000]), "bytes"),
    "40 GB in one chunk": (claims([10**6, 5000], [10**6, 5000]), "."),
    "a million chunks": (claims([10**6, 4], [1, 4]), "."),
    "a negative shape": (claims([-1, 4], [1, 4]), "."),
    "a shape that is text": (claims(["a", 4], [1, 4]), "."),
    "an unknown codec": (edit(lambda a: a["codecs"].append({"name": "evil"}), "0.landmarks_/zarr.json"), "."),
    "pickled objects": (edit(lambda a: a.update(codecs=[{"name": "numcodecs.pickle"}]), "0.landmarks_/zarr.json"), "."),
    "objects": (edit(lambda a: a.update(data_type="string"), "0.landmarks_/zarr.json"), "."),
    "NaN weights": (poisoned(NAN), "finite"),
    "infinite landmarks": (poisoned(np.inf, "landmarks_"), "finite"),
    "missing array": (lambda path: shutil.rmtree(path / "0.dual_coef_"), "dual_coef_"),
    "a chunk cut short": (cut, "landmarks_"),
    "missing chunk": (lambda path: (path / "0.dual_coef_" / "c" / "0" / "0").unlink(), "missing"),
    "not JSON": (text("\x00"), "."),
    "empty file": (text(""), "."),
    "a list": (text("[]"), "."),
    "no attributes": (text('{"zarr_format": 3, "node_type": "group", "attributes": {}}'), "our attributes"),
    "a store of zarr 2": (text('{"zarr_format": 2}'), "."),
    "a file": (lambda path: (shutil.rmtree(path), path.write_text("model")), "."),
    "an empty directory": (lambda path: (shutil.rmtree(path), path.mkdir()), "no zarr v3 group"),
    "nested without end": (deep, "."),
    "a million attributes": (
        edit(lambda a: a["steps"][0]["fitted"].update({f"a{i}": i for i in range(10**6)})),
        "at most",
    ),
    "no landmarks and no coefficients": (
        lambda path: (
            edit(lambda a: a["steps"][0].update(arrays={}))(path),
            [shutil.rmtree(child) for child in path.iterdir() if child.is_dir()],
        ),
        "missing",
    ),
}


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed again", "not sealed again"])
@pytest.mark.parametrize("tamper, match", TAMPERED.values(), ids=TAMPERED)
def test_tampering_is_refused_at_once(rejected, tamper, match, sealed):
    assert rejected(tamper, match=match if sealed else ".", sealed=sealed)


@pytest.mark.parametrize(
    "of, name",
    [
        ("classifier", "dual_coef_"),
        ("classifier", "landmarks_"),
        ("classifier", "intercept_"),
        ("classifier", "statistics.C"),
        ("regressor", "dual_coef_"),
        ("sssl", "dual_coef_"),
        ("weighted", "landmarks_"),
        ("ridge", "coef_"),
        ("ridge", "intercept_"),
        ("ridge", "shift_"),
        ("ridge", "statistics.G"),
        ("standardizer", "mean_"),
        ("standardizer", "scale_"),
        ("fourier", "fourier_origin_"),
        ("fourier", "fourier_mean_"),
        ("random features", "fourier_origin_"),
        ("xnv", "correlations_"),
        ("xnv", "statistics.G"),
        ("artl", "statistics.degrees"),
        ("artl", "pseudo.counts"),
        ("artl", "dual_coef_"),
        ("components of domains", "eigenvalues_"),
        ("components of domains", "statistics.C"),
        ("joint components", "intercept_"),
        ("StandardScaler", "mean_"),
        ("PCA", "components_"),
        ("QuantileTransformer", "references_"),
    ],
)
def test_a_model_without_one_of_its_arrays_is_refused(rejected, of, name):
    assert rejected(without(name), of)


STRANGE = {
    "frequencies beyond memory": ("random features", put("params", "n_components", 10**12), "GB"),
    "frequencies of a kernel without any": (
        "fourier",
        put("fitted", "kernel_", {"kernel": "linear", "params": {}}),
        "x − z",
    ),
    "a seed of text": ("fourier", put("fitted", "fourier_seed_", "7"), "fourier_seed_"),
    "random features with landmarks": ("fourier", put("params", "landmarks", "uniform"), "landmarks_"),
    "landmarks for random features": ("regressor", put("params", "landmarks", "fourier"), "fourier"),
    "another number of random features": ("fourier", put("params", "n_landmarks", 9), "fourier_mean_"),
    "images of another size": ("strokes of images", put("fitted", "image_height_", 3), "3×2"),
    "no images": ("strokes of images", drop("fitted", "image_width_"), "image_width_"),
    "domains of text": ("components of domains", put("fitted", "domains_", ["a"]), "whole numbers"),
    "too many domains": ("components of domains", put("fitted", "domains_", [0, 1]), "statistics"),
    "no variances": ("components of domains", put("fitted", "distributional_variance_", {}), "features"),
    "no sharpness": ("artl", put("params", "sharpness", None), "."),
    "pseudo-labels of others": ("xnv", rewritten(lambda _: np.ones((2 * M, 1)), "pseudo.sums"), "pseudo-labels"),
    "views of other sizes": ("xnv", put("fitted", "view_ranks_", [3]), "view_ranks_"),
    "lists in lists": ("artl", put("params", "sharpness", [[3.0], 10.0]), "."),
    "NaN intercept": ("regressor", put("fitted", "intercept_", NAN), "."),
    "intercept of text": ("regressor", put("fitted", "intercept_", "0"), "."),
    "nested intercept": ("regressor", put("fitted", "intercept_", [[0.5]]), "."),
    "no intercept": ("regressor", drop("fitted", "intercept_"), "."),
    "no number of targets": ("regressor", drop("fitted", "_flat"), "."),
    "targets of text": ("regressor", put("fitted", "_flat", "yes"), "."),
    "weights of rows and not of landmarks": (
        "regressor",
        rewritten(lambda _: np.ones(N), "sample_weight_"),
        "sample_weight_ must be 10 numbers",
    ),
    "a deviation of zero": ("standardizer", poisoned(0.0, "scale_"), "."),
    "a scale of zero": ("StandardScaler", poisoned(0.0, "scale_"), "scale_ must be above 0"),
    "a step out of the table": ("StandardScaler", put("class", "sklearn.FunctionTransformer"), "unknown class"),
    "a step by its module": ("StandardScaler", put("class", "sklearn.preprocessing.StandardScaler"), "unknown class"),
    "another step's arrays": ("StandardScaler", put("class", "sklearn.MinMaxScaler"), "unknown or missing"),
    "a step's unknown parameter": ("Normalizer", put("params", "func", "os.system"), "func"),
    "a norm that is none": ("Normalizer", put("params", "norm", "l7"), "norm"),
    "a step's unknown value": ("Normalizer", put("fitted", "transform", "x"), "unknown fitted value 'transform'"),
    "a step's private value": ("StandardScaler", put("fitted", "__class__", "x"), "unknown fitted value"),
    "components without number": ("PCA", put("fitted", "n_components_", 10**12), "components_ must have the shape"),
    "components of other rows": ("PCA", put("fitted", "n_features_in_", 10**12), "components_ must have the shape"),
    "components in no order": ("PCA", put("fitted", "components_order", "A"), "components_order"),
    "quantiles of other features": ("QuantileTransformer", put("fitted", "n_features_in_", 3), "quantiles_ must"),
    "less than no rows": ("StandardScaler", put("fitted", "n_samples_seen_", -1), "n_samples_seen_"),
    "rows of text": ("StandardScaler", put("fitted", "n_samples_seen_", ["1"] * D), "n_samples_seen_"),
}


@pytest.mark.parametrize("of, tamper, match", STRANGE.values(), ids=STRANGE)
def test_models_are_refused_where_their_parts_do_not_fit(rejected, of, tamper, match):
    assert rejected(tamper, of, match)


NO_PENALTY = [-1.0, NAN, np.inf, -1e-300, None, True, "0.3", [0.3], {"kernel": "gaussian", "params": {}}, 10**400]


@pytest.mark.parametrize("of", ["regressor", "classifier", "sssl", "weighted", "xnv", "artl", "components of domains"])
@pytest.mark.parametrize(
    "tamper",
    [drop("fitted", "alpha_"), *(put("fitted", "alpha_", value) for value in NO_PENALTY)],
    ids=["nothing", *map(repr, NO_PENALTY)],
)
def test_a_penalty_that_is_none_is_refused(rejected, of, tamper):
    assert rejected(tamper, of, "alpha_ must be a number of at least 0")


@pytest.mark.parametrize("of", ["regressor", "weighted"])
@pytest.mark.parametrize(
    "tamper",
    [drop("fitted", "_with_intercept"), *(put("fitted", "_with_intercept", v) for v in (1, 0.0, None, "yes", [True]))],
)
def test_a_regressor_that_does_not_say_whether_it_has_an_intercept_is_refused(rejected, of, tamper):
    assert rejected(tamper, of, "_with_intercept")


WEIGHTS = {
    "one below 0": lambda w: np.where(np.arange(N) == 3, -1e-9, w),
    "none above 0": np.zeros_like,
    "NaN": lambda w: np.where(np.arange(N) == 3, np.nan, w),
    "infinite": lambda w: np.where(np.arange(N) == 3, np.inf, w),
    "too few": lambda w: w[:-1],
    "too many": lambda w: np.append(w, 1.0),
    "a column": lambda w: w[:, None],
    "a number": lambda w: w[0],
    "nothing": lambda w: w[:0],
    "whole numbers": lambda w: np.ones(N, np.int64),
}


@pytest.mark.parametrize("change", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_that_are_none_are_refused(rejected, change):
    assert rejected(rewritten(change, "sample_weight_"), "weighted", "sample_weight_")


def test_weights_removed_or_changed_by_force_change_deviations_alone(saved, tmp_path):
    """Nothing else rests on them: what is predicted is in the coefficients."""
    shutil.copytree(saved / "weighted", tmp_path / "tampered")
    rewritten(lambda w: w + 1, "sample_weight_")(tmp_path / "tampered")
    mine, theirs = (
        load_model(path).predict(X, return_std=True) for path in (saved / "weighted", tmp_path / "tampered")
    )
    assert_array_equal(mine[0], theirs[0])
    assert (mine[1] > theirs[1]).all()


def test_a_flipped_byte_anywhere_in_a_chunk_is_refused(saved, tmp_path):
    chunks = sorted(path.relative_to(saved) for path in (saved / "classifier").rglob("c/**/*") if path.is_file())
    assert len(chunks) == 14
    for chunk in chunks:
        size = (saved / chunk).stat().st_size
        for position in {0, size // 2, size - 1, int(rng.integers(size))}:
            path = tmp_path / "tampered"
            shutil.copytree(saved / "classifier", path, dirs_exist_ok=True)
            content = bytearray((saved / chunk).read_bytes())
            content[position] ^= 1 << int(rng.integers(8))
            (tmp_path / "tampered" / chunk.relative_to("classifier")).write_bytes(content)
            with pytest.raises(ModelRejected, match="0\\."):
                load_model(path)


@pytest.mark.parametrize("of", ["regressor", "weighted"])
def test_any_flipped_bit_of_the_description_is_refused_or_harmless(saved, tmp_path, of):
    """Whatever a flip does to the JSON: a model that still loads predicts finite numbers, without another error."""
    source = (saved / of / "zarr.json").read_bytes()
    path = tmp_path / "tampered"
    shutil.copytree(saved / of, path)
    wrong = []
    for _ in range(150):
        content = bytearray(source)
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(7))
        (path / "zarr.json").write_bytes(content)
        reseal(path)
        try:
            if not np.isfinite(load_model(path).predict(X, return_std=True)).all():
                wrong.append("not finite")
        except ModelRejected:
            continue
        except Exception as error:
            wrong.append(repr(error))
    assert not wrong


def test_a_link_to_an_array_outside_is_not_followed(rejected, saved):
    def link(path):
        shutil.rmtree(path / "0.dual_coef_")
        os.symlink(saved / "classifier" / "0.dual_coef_", path / "0.dual_coef_")

    assert rejected(link)


def test_a_claim_above_the_limit_is_refused_without_reading(saved, monkeypatch):
    from bigkernel.data import zarr_arrays

    monkeypatch.setattr(zarr_arrays, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(ModelRejected, match="limit of 100"):
        load_model(saved / "classifier", limit_bytes=100)


def test_a_rejected_model_is_named_once(saved, tmp_path):
    shutil.copytree(saved / "ridge", tmp_path / "tampered")
    put("class", "evil")(tmp_path / "tampered")
    reseal(tmp_path / "tampered")
    with pytest.raises(ModelRejected) as caught:
        load_model(tmp_path / "tampered")
    assert str(caught.value).count(str(tmp_path / "tampered")) == 1
    assert isinstance(caught.value, ValueError)
    assert Path(tmp_path / "tampered").exists()
