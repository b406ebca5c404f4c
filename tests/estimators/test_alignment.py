"""CORAL and subspace alignment against dense linear algebra, for rows of both domains and every kind of input."""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import fractional_matrix_power
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import DataError

rng = np.random.default_rng(12)
N, M, D = 150, 120, 5
SOURCE = rng.normal(size=(N, D)) @ rng.normal(size=(D, D)) + 20
TARGET = rng.normal(size=(M, D)) @ rng.normal(size=(D, D)) - 3
ORDER = rng.permutation(N + M)
X, DOMAIN = np.concatenate([SOURCE, TARGET])[ORDER], np.repeat([1, -1], [N, M])[ORDER]
LABELS = np.where(DOMAIN > 0, X[:, 0] > 20, -1)
FLAT = np.where(DOMAIN[:, None] > 0, X, 1.0)


def coral(shrinkage):
    """Return the aligned rows of the source, and those of the target."""
    S = [np.cov(rows, rowvar=False, ddof=0) for rows in (SOURCE, TARGET)]
    C = [(1 - shrinkage) * one + shrinkage * np.trace(one) / D * np.eye(D) for one in S]
    return SOURCE @ fractional_matrix_power(C[0], -0.5) @ fractional_matrix_power(C[1], 0.5), TARGET


def subspace(count):
    """Return the aligned rows of the source, and the components of the target, whose largest weights are positive."""
    means = [rows.mean(axis=0) for rows in (SOURCE, TARGET)]
    V, W = (np.linalg.svd(rows - mean)[2][:count].T for rows, mean in zip((SOURCE, TARGET), means, strict=True))
    W = W * np.sign(W[np.abs(W).argmax(axis=0), np.arange(count)])
    return (SOURCE - means[0]) @ V @ (V.T @ W), (TARGET - means[1]) @ W


ALIGNED = {
    "coral": (bk.CORAL(), coral(0.1)),
    "coral of little shrinkage": (bk.CORAL(1e-6), coral(1e-6)),
    "coral of spheres": (bk.CORAL(1.0), coral(1.0)),
    "subspace": (bk.SubspaceAlignment(3), subspace(3)),
    "all axes": (bk.SubspaceAlignment(), subspace(D)),
}
each = pytest.mark.parametrize("model, sides", ALIGNED.values(), ids=ALIGNED)
both = pytest.mark.parametrize("model", [bk.CORAL(), bk.SubspaceAlignment()], ids=["coral", "subspace"])


@each
def test_rows_of_both_domains_are_mapped_as_by_dense_linear_algebra(model, sides):
    expected = np.concatenate(sides)[ORDER]
    named, numbers = np.where(DOMAIN > 0, "here", "there"), np.where(LABELS < 0, np.nan, 1.0)
    for y, domain in ((None, DOMAIN), (LABELS, None), (LABELS, named), (numbers, np.where(DOMAIN > 0, 4, 9))):
        assert_allclose(model.fit_transform(X, y, sample_domain=domain), expected, rtol=1e-8, atol=1e-8)
        if domain is not None:
            assert_allclose(model.transform(X, sample_domain=domain), expected, rtol=1e-8, atol=1e-8)
        assert_allclose(model.transform(TARGET), sides[1], rtol=1e-8, atol=1e-8)
    narrow = model.fit_transform(X.astype(np.float32), sample_domain=DOMAIN)
    assert narrow.dtype == np.float32
    assert_allclose(narrow, expected, rtol=1e-2, atol=1e-2)


@each
def test_lazy_rows_give_the_same_maps(model, sides, make_corpus, small_steps):
    lazy, corpus = da.from_array(X, chunks=(70, 3)), make_corpus(X, domain=DOMAIN)
    framing = clone(model).set_output(transform="pandas")  # of rows in memory alone
    mapped = framing.fit_transform(lazy, sample_domain=da.from_array(DOMAIN, chunks=50))
    assert isinstance(mapped, da.Array)
    assert_allclose(mapped, np.concatenate(sides)[ORDER], rtol=1e-8, atol=1e-8)
    model.fit(corpus)
    for rows, domain, expected in ((SOURCE, 1, sides[0]), (TARGET, -1, sides[1]), (TARGET, None, sides[1])):
        mapped = model.transform(as_rows(rows), sample_domain=domain)
        assert isinstance(mapped, Rows)
        assert_allclose(mapped.take(np.arange(len(rows))), expected, rtol=1e-8, atol=1e-8)
    with pytest.raises(DataError, match="map lazy rows of one domain"):
        model.fit_transform(corpus)


@both
def test_pipelines_and_searches_learn_from_aligned_rows_and_predict_the_target(model, tmp_path):
    krr = bk.LabelledRowsClassifier(bk.KernelRidgeClassifier(bk.Gaussian(3.0), 0.1, fit_intercept=True))
    pipeline, name = make_pipeline(model, krr), type(model).__name__.lower()
    pipeline.fit(X, LABELS, **{f"{name}__sample_domain": DOMAIN})
    Z = model.fit_transform(X, sample_domain=DOMAIN)
    alone = krr.fit(Z, LABELS)
    assert_array_equal(pipeline.predict(TARGET), alone.predict(model.transform(TARGET)))
    bk.save_model(pipeline, tmp_path / "m")
    assert_array_equal(bk.load_model(tmp_path / "m").predict(TARGET), pipeline.predict(TARGET))
    assert_array_equal(bk.Predictor.load(tmp_path / "m").predict(TARGET), pipeline.predict(TARGET))
    krr.set_params(estimator__landmarks=Z[:40])
    options, alphas = {"cv": np.arange(N + M) % 2, "refit": False, "scoring": "neg_log_loss"}, [0.1, 1.0]
    search = bk.SweepSearchCV(krr, {"estimator__alpha": alphas}, **options).fit(Z, LABELS)
    grid = {"labelledrowsclassifier__estimator__alpha": alphas}
    together = bk.SweepSearchCV(make_pipeline(model, krr), grid, **options).fit(X, LABELS, sample_domain=DOMAIN)
    assert_allclose(together.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


@both
def test_one_domain_or_equal_rows_are_refused(model):
    for rows, y, domain in ((X, None, None), (X, None, DOMAIN**2), (FLAT, None, DOMAIN)):
        with pytest.raises(DataError, match=r"found one of them|all rows of a domain are equal"):
            model.fit(rows, y, sample_domain=domain)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, sample_domain=DOMAIN).transform(X[:-1], sample_domain=DOMAIN)


def test_a_share_of_the_variance_may_need_fewer_axes():
    model = bk.SubspaceAlignment(0.5).fit(X, sample_domain=DOMAIN)
    assert len(model.components_) < D
    assert model.fit_transform(X, sample_domain=DOMAIN).shape == (N + M, len(model.components_))
