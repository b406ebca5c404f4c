"""Every method gives the same model from any input, chunking and executor, by partial fits and by refits."""

from functools import cache

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import fit_arguments
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from three_domains import CODES, DOMAIN, LABELS, PARTLY, WEIGHT, D, M, N, X, Y, y

import bigkernel as bk
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import ConfigError, DataError

GIVEN = {"kernel": bk.Gaussian(2.0), "landmarks": X[:M]}
EXACT = {"kernel": bk.Gaussian(2.0)}
METHODS = {
    "krr": (bk.KernelRidge(alpha=0.1, **GIVEN), y),
    "krr sampled": (bk.KernelRidge(bk.Gaussian(2.0), alpha=0.1, n_landmarks=M, random_state=1), y),
    "krr fourier": (bk.KernelRidge(bk.Gaussian(2.0), alpha=0.1, n_landmarks=M, landmarks="fourier", random_state=1), y),
    "krr cg": (bk.KernelRidge(alpha=0.1, solver="cg", tol=1e-12, **GIVEN), y),
    "krr exact": (bk.KernelRidge(alpha=0.1, **EXACT), y),
    "classes": (bk.KernelRidgeClassifier(alpha=0.1, **GIVEN), LABELS),
    "classes exact": (bk.KernelRidgeClassifier(alpha=0.1, **EXACT), LABELS),
    "calibrated": (bk.KernelRidgeClassifier(probability=True, **GIVEN), LABELS),
    "logistic": (bk.KernelLogisticClassifier(tol=1e-5, **GIVEN), LABELS),
    "sssl": (bk.SSSL(n_components=6, manifold=0, **GIVEN), PARTLY),
    "sssl of landmarks": (bk.SSSL(n_components=6, manifold=0, eigenfunctions="landmarks", **GIVEN), PARTLY),
    "sssl exact": (bk.SSSL(n_components=6, manifold=0, **EXACT), PARTLY),
    "sssl classes": (bk.SSSLClassifier(n_components=6, manifold=0, **GIVEN), CODES),
    "sssl classes exact": (bk.SSSLClassifier(n_components=6, manifold=0, **EXACT), CODES),
    "graph of targets": (bk.SSSL(n_components=6, manifold=1, **GIVEN), PARTLY),
    "graph": (bk.SSSLClassifier(n_components=6, manifold=0.5, **GIVEN), CODES),
    "xnv": (bk.XNV(alpha=0.01, **GIVEN), PARTLY),
    "xnv sampled": (bk.XNV(bk.Gaussian(2.0), alpha=0.01, n_landmarks=M // 2, random_state=1), PARTLY),
    "xnv classes": (bk.XNVClassifier(alpha=0.01, **GIVEN), CODES),
    "dica": (bk.DICA(n_components=3, alpha=0.1, epsilon=1e-3, **GIVEN), CODES),
    "dica exact": (bk.DICA(n_components=3, alpha=0.1, epsilon=1e-3, **EXACT), CODES),
    "udica": (bk.DICA(n_components=3, alpha=0.1, epsilon=1e-3, supervised=False, **GIVEN), CODES),
    "jda": (bk.JDA(n_components=4, alpha=0.5, n_rounds=2, **GIVEN), CODES),
    "artl": (bk.ARTLClassifier(sharpness=4.0, n_rounds=2, **GIVEN), CODES),
    "least squares": (bk.LinearRegression(), y),
    "ridge": (bk.Ridge(2.0), y),
    "bands": (bk.Ridge(2.0, bands=np.arange(D) % 2, band_weights=[0.3, 1.0]), y),
}
STREAMED = [name for name in METHODS if "exact" not in name]
SUMMED = [name for name in STREAMED if hasattr(METHODS[name][0], "partial_fit")]
ROUNDS = ["jda", "artl"]
FEWER = [(name, 0.1) for name in ("krr sampled", "classes", "sssl of landmarks", "xnv", "xnv sampled")]
FEWER += [("krr", "gcv"), ("sssl", "gcv")]
WITH_WEIGHTS = ["dask rows", "dask blocks", "dask uneven", "dask one chunk", "zarr", "sharded zarr", "corpus",
                "corpus 1", "rows", "sparse"]  # fmt: skip
KINDS = [*((kind, WEIGHT) for kind in WITH_WEIGHTS), ("dask rows", None), ("zarr", None), ("corpus", None)]
# one of each kind of sweep or sweeps
JOBS = ["krr sampled", "krr fourier", "calibrated", "logistic", "artl"]
JOBS += [
    pytest.param(name, marks=pytest.mark.slow) for name in ("krr cg", "graph", "xnv classes", "dica", "jda", "ridge")
]
LESS = {"logistic": {"tol": 1e-2}}  # a few iterations have all kinds of sweeps
every_method = pytest.mark.parametrize("name", METHODS)
# methods see chunks, whatever the kind: each with two kinds of input or three, each kind with four; the others are slow
PAIRS = [
    pytest.param(
        name, *kind, id=f"{name}-{kind[0]}-{kind[1] is not None}", marks=[pytest.mark.slow] * ((i - j) % 6 != 0)
    )
    for i, name in enumerate(METHODS)
    for j, kind in enumerate(KINDS)
]

pytestmark = pytest.mark.usefixtures("small_steps")


def fit(name, rows=X, y=None, weight=None, domain=DOMAIN, **params):
    """Fit a method to rows that carry their columns, or to these columns."""
    model = clone(METHODS[name][0]).set_params(**params)
    if isinstance(rows, Rows) or hasattr(rows, "columns"):
        return model.fit(rows)
    more = {"sample_domain": domain} if isinstance(model, bk.DICA | bk.JDA | bk.ARTLClassifier) else {}
    return model.fit(rows, METHODS[name][1] if y is None else y, sample_weight=weight, **more)


def values(model, rows=X):
    """Return f or components of rows, lazy or not."""
    use = next(use for use in ("decision_function", "predict", "transform") if hasattr(model, use))
    computed = getattr(model, use)(rows)
    return computed.take(np.arange(N)) if isinstance(computed, Rows) else np.asarray(computed)


@cache
def expected_values(name, weighted=False):
    """Return f or components by the fit to NumPy arrays."""
    return values(fit(name, weight=WEIGHT if weighted else None))


def bits(model):
    """Return the coefficients, their estimated error, and the results of rounds and calibration."""
    more = [
        getattr(model, key, None)
        for key in ("intercept_", "training_mse_", "rounds_", "correlations_", "calibration_scale_")
    ]
    more.append(getattr(model, "diagnostics_", {}).get("prediction_error"))
    return getattr(model, "coef_" if hasattr(model, "coef_") else "dual_coef_").tobytes(), repr(more)


@pytest.fixture
def build(tmp_path, make_corpus):
    """Return what goes to `fit`: rows of a kind, and the columns that they do not carry."""

    def make(kind, y, weight, names=(0, 1, 2)):
        given = {"classes": names if y.dtype.kind == "i" else (), "chunk_rows": N if kind == "corpus 1" else 25}
        return fit_arguments(kind, X, make_corpus, tmp_path, **given, y=y, weight=weight, domain=DOMAIN)

    return make


@pytest.mark.parametrize("name, kind, weight", PAIRS)
def test_every_kind_of_input_gives_the_model_of_numpy(build, name, kind, weight):
    rows, *columns = build(kind, METHODS[name][1], weight)
    model = fit(name, rows, *columns)
    assert_allclose(values(model), expected_values(name, weight is not None), rtol=1e-7, atol=1e-8)
    assert_allclose(values(model, rows), values(model), rtol=1e-9, atol=1e-9)
    if is_classifier(model):
        assert_array_equal(model.classes_, [0, 1, 2])


@given(st.sampled_from(STREAMED), st.integers(1, 100), st.integers(1024, 4000), st.booleans())
def test_any_chunking_gives_the_same_model(name, block_rows, chunk_bytes, lazy):
    rows = da.from_array(X, chunks=(max(20, block_rows), D)) if lazy else X
    with dask.config.set({"bigkernel.block-rows": block_rows, "bigkernel.chunk-bytes": chunk_bytes}):
        model = fit(name, rows)
    assert_allclose(values(model), expected_values(name), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", [name for name, (_, target) in METHODS.items() if target.dtype.kind == "i"])
def test_a_corpus_of_named_classes_gives_their_names(build, name):
    names = ("three", "one", "two")
    model, expected = fit(name, build("corpus", METHODS[name][1], None, names)[0]), fit(name)
    if hasattr(model, "predict"):
        assert_array_equal(model.predict(X), np.array(names)[expected.predict(X)])
    else:
        assert_allclose(model.transform(X), expected.transform(X), atol=1e-8)
    assert name == "udica" or model.classes_.tolist() == sorted(names)


@pytest.mark.parametrize("name", JOBS)
def test_threads_a_run_and_its_resumption_give_the_bits_of_the_serial_executor(build, name, tmp_path):
    rows, *_ = build("corpus", METHODS[name][1], WEIGHT)
    run, models = tmp_path / "run", []
    for executor, how in (
        ("serial", {}),
        ("threads", {}),
        ("threads", {"run": run}),
        ("serial", {"run": run, "resume": True}),
    ):
        with bk.executing(executor, **how):
            models.append(fit(name, rows, **LESS.get(name, {})))
    assert len({bits(model) for model in models}) == 1
    sweep = models[-1].fit_report()["sweep"]
    assert sweep["resumed_segments"] >= sweep["segments"] > 1
    assert name != "artl" or {"moments", "round-1", "round-2"} <= {path.name for path in run.iterdir()}


@pytest.mark.cluster
@pytest.mark.parametrize("name", JOBS)
def test_a_cluster_gives_the_bits_of_this_process(build, name, client):
    rows, *_ = build("corpus", METHODS[name][1], WEIGHT)
    with bk.executing(client):
        there = fit(name, rows, **LESS.get(name, {}))
    assert there.fit_report()["sweep"]["executor"] == "dask"
    assert bits(there) == bits(fit(name, rows, **LESS.get(name, {})))


@pytest.mark.parametrize("name", [name for name in STREAMED if name not in ("calibrated", "logistic", "krr cg")])
def test_the_plan_matches_the_sweep(build, name):
    rows, *_ = build("corpus", METHODS[name][1], None)
    plan, model = METHODS[name][0].plan(rows), fit(name, rows)
    assert plan.summary().items() <= model.fit_report()["sweep"].items()
    assert plan.partial_bytes >= sum(sums.nbytes for sums in model.statistics_.values())


@every_method
def test_skipped_bad_rows_change_nothing(name):
    target = METHODS[name][1]
    columns = {"y": np.r_[target, target[:3]], "domain": np.r_[DOMAIN, DOMAIN[:3]]}
    model = fit(name, as_rows(np.vstack([X, np.full((3, D), np.nan)]), **columns).skip_bad_rows())
    assert model.skipped_rows_ == 3
    assert_allclose(values(model), expected_values(name), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", STREAMED)
def test_float32_rows_agree_to_their_precision(name):
    model, expected = fit(name, X.astype(np.float32)), expected_values(name)
    assert getattr(model, "dtype_", "float32") == "float32"
    assert_allclose(values(model), expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@pytest.mark.parametrize("name", SUMMED)
def test_partial_fits_of_labelled_and_unlabelled_rows_add_up_to_one_fit(name, weight):
    model, target = clone(METHODS[name][0]), METHODS[name][1]
    for rows in np.array_split(np.argsort(CODES == -1, kind="stable"), 3):  # the last has no label
        classes = {"classes": [0, 1, 2]} if is_classifier(model) else {}
        model.partial_fit(X[rows], target[rows], sample_weight=None if weight is None else weight[rows], **classes)
    points = {"landmarks": model.landmarks_, "n_landmarks": None} if "sampled" in name else {}
    assert_allclose(values(model), values(fit(name, weight=weight, **points)), rtol=1e-7, atol=1e-8)


CHANGES = {
    **{name: {"alpha": 3.0} for name in SUMMED if name != "least squares"},
    **{name: {"alpha": 3.0, "n_components": 4} for name in ("sssl", "sssl of landmarks", "graph", "graph of targets")},
    **{name: {"alpha": 3.0, "epsilon": 0.2, "n_components": 2, "invariance": 5.0} for name in ("dica", "udica")},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_refit_with_other_penalties_has_the_bits_of_a_fresh_fit(name):
    model = fit(name, weight=WEIGHT)
    before = bits(model)
    model.set_params(**CHANGES[name])
    assert bits(model) == before
    assert bits(model.refit()) == bits(fit(name, weight=WEIGHT, **CHANGES[name])) != before
    with pytest.raises(ValueError, match="alpha"):
        model.set_params(alpha=-1.0).refit()


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("name, alpha", FEWER)
def test_fewer_landmarks_match_a_fit_with_them(name, alpha, count):
    fewer = fit(name, alpha=alpha).with_landmarks(count)
    expected = fit(name, alpha=alpha, landmarks=fewer.landmarks_, n_landmarks=None)
    assert fewer.n_landmarks == count
    assert len(fewer.landmarks_) == (2 * count if "xnv" in name else count)
    assert_allclose(values(fewer), values(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ROUNDS)
def test_a_refit_uses_the_labels_of_the_last_round(name):
    model = fit(name)
    before = values(model)
    assert_allclose(values(model.refit()), before, atol=1e-10)
    model.set_params(**{"alpha": 3.0} if name == "artl" else {"n_components": 3}).refit()
    assert values(model).shape != before.shape or np.abs(values(model) - before).max() > 1e-3
    assert not {"_reduced", "_solution"} & set(vars(model))


@every_method
def test_no_label_and_labels_without_weight_are_refused(name):
    target = METHODS[name][1]
    nothing = np.full(N, -1 if target.dtype.kind == "i" else np.nan)
    if name != "udica":
        with pytest.raises(DataError, match="label"):
            fit(name, as_rows(X, y=nothing, domain=DOMAIN))
        with pytest.raises(DataError, match=r"weight|several domains, found 1"):
            fit(name, weight=1.0 * (CODES == -1) if target is CODES or target is PARTLY else np.zeros(N))


def test_transforms_do_not_predict_and_exact_fits_have_no_plan_partial_fit_or_refit():
    for name in METHODS:
        model = fit(name)
        assert (
            hasattr(model, "predict")
            == hasattr(model, "predict_to")
            == (name.split()[0] not in ("dica", "udica", "jda"))
        )
        if "exact" in name:
            assert not hasattr(model, "partial_fit")
            with pytest.raises(ConfigError, match="exact fit"):
                model.plan(X, METHODS[name][1])
            with pytest.raises(ConfigError, match="fit again"):
                model.refit()


@pytest.mark.parametrize("name", [name for name, (_, target) in METHODS.items() if target.dtype.kind == "f"])
def test_predictions_have_the_shape_of_the_targets(name):
    flat, column = fit(name), fit(name, y=METHODS[name][1][:, None])
    assert flat.predict(X).shape == (N,)
    assert isinstance(flat.intercept_, float)
    assert_array_equal(column.predict(X), flat.predict(X)[:, None])
    hidden = np.isnan(METHODS[name][1])[:, None]
    both = fit(name, y=np.where(hidden, np.nan, Y))
    assert_allclose(both.predict(X)[:, 0], flat.predict(X), rtol=1e-6 if name == "krr cg" else 1e-7, atol=1e-8)
    key = "coef_" if hasattr(flat, "coef_") else "dual_coef_"
    assert [getattr(model, key).ndim for model in (flat, both)] == [1, 2]
