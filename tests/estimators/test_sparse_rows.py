"""Sparse rows in memory become dense in pieces, and give the bits of dense rows."""

import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.plan import Sharing

RNG = np.random.default_rng(3)
X = RNG.normal(size=(240, 12)) * (RNG.random((240, 12)) < 0.6)
y = X[:, 0] + X[:, 1] * X[:, 2]
labels = (y > 0).astype(int)
PIPELINE = make_pipeline(bk.UnitNormalizer(), bk.KernelRidge(bk.Gaussian(1.0), n_landmarks=30, random_state=0))
MODELS = {
    "exact": bk.KernelRidge(bk.Gaussian(2.0), alpha=0.1),
    "landmarks": bk.KernelRidge(bk.Gaussian(2.0), alpha=0.1, n_landmarks=30, random_state=0),
    "linear": bk.Ridge(alpha=0.1),
    "a search of a pipeline": bk.SweepSearchCV(PIPELINE, {"kernelridge__alpha": [0.1, 1.0]}),
}


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_fits_and_predictions_equal_those_of_dense_rows(model, kind):
    dense = model.fit(X, y).predict(X)
    actual = model.fit(kind(X), y).predict(kind(X))
    assert isinstance(actual, np.ndarray)
    assert_array_equal(actual, dense)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, "COO"])
def test_a_dask_array_of_sparse_blocks_is_read_as_its_rows(kind):
    kind = pytest.importorskip("sparse").COO.from_numpy if kind == "COO" else kind
    dense = da.from_array(X, chunks=(100, 12))
    blocks, model = dense.map_blocks(kind), bk.KernelRidge(bk.Gaussian(2.0), n_landmarks=20, random_state=0)
    assert_array_equal(model.fit(blocks, y).predict(X), model.fit(dense, y).predict(X))
    assert_array_equal(model.predict(blocks), model.predict(dense))
    assert model.score(blocks, y) == model.score(dense, y)
    scaler = bk.Standardizer().fit(X)
    assert_array_equal(scaler.transform(blocks), scaler.transform(dense))
    pipeline = make_pipeline(bk.Standardizer(), model)
    assert_array_equal(pipeline.fit(blocks, y).predict(blocks), pipeline.fit(dense, y).predict(dense))
    search = bk.SweepSearchCV(model, {"alpha": [0.1, 1.0]}, cv=np.arange(240) % 2)
    assert_array_equal(search.fit(blocks, y).predict(blocks), search.fit(dense, y).predict(dense))


def test_wide_rows_become_dense_in_pieces():
    n, d = 4000, 5000  # 160 MB when dense
    S = sparse.random_array((n, d), density=0.002, format="csr", rng=np.random.default_rng(0))
    model = bk.KernelRidge(bk.Gaussian(2.0), n_landmarks=10, random_state=0)
    with dask.config.set({"bigkernel.chunk-bytes": 2**22, "bigkernel.block-rows": 100}), bk.executing("serial"):
        tracemalloc.start()
        try:
            values = model.fit(S, S[:, [0]].toarray()[:, 0]).predict(S)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert values.shape == (n,)
    assert peak < n * d * 8 / 4


def test_plans_count_a_dense_chunk():
    statistic = MomentStatistic(LandmarkMap(bk.Gaussian(2.0), X[:20], np.dtype("f8")), Targets(1))
    with dask.config.set({"bigkernel.chunk-bytes": 2**14}):
        held = plan_sweep(as_rows(sparse.csr_array(X), y), statistic)
    assert held.chunk_bytes >= held.chunk_rows * 12 * 8
    assert held.rows_bytes(Sharing()) >= held.chunk_bytes


def test_a_corpus_of_sparse_rows_holds_dense_ones(tmp_path):
    with dask.config.set({"bigkernel.chunk-bytes": 2**12}):
        corpus = bk.write_corpus(tmp_path / "c", sparse.csc_matrix(X), labels)
    assert corpus.n_rows > corpus.chunk_rows
    assert_array_equal(np.asarray(corpus), X)


def test_transforms_and_partial_fits_accept_sparse_rows():
    assert_array_equal(bk.UnitNormalizer().fit_transform(sparse.csr_array(X)), bk.UnitNormalizer().fit_transform(X))
    features = bk.Nystroem(bk.Linear(), n_components=5, random_state=0).fit_transform(sparse.csr_array(X))
    assert isinstance(features, np.ndarray)
    model = bk.KernelRidge(bk.Gaussian(2.0), n_landmarks=20, random_state=0)
    for rows in (slice(0, 100), slice(100, 240)):
        model.partial_fit(sparse.csr_array(X[rows]), y[rows])
    assert model.predict(sparse.csr_array(X[:5])).shape == (5,)
    assert model.predict(X[:5]).shape == (5,)


def test_invalid_sparse_rows_are_refused():
    bad = X.copy()
    bad[7, 2] = np.nan
    with pytest.raises(DataError, match="NaN"):
        bk.KernelRidge().fit(sparse.csr_array(bad), y)
    with pytest.raises(DataError, match=r"expected numbers"):
        as_rows(sparse.csr_array(X * 1j))
