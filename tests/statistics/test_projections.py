"""Projections as row maps: the same values in any blocks, and the next map gets rows of the new width."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from traced import traced

from bigkernel import Gaussian, Ridge
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap
from bigkernel.statistics.moments import MomentStatistic
from bigkernel.statistics.predictor import Predictor, Projection
from bigkernel.streaming.row_maps import UnitNorm

N, D, M, R = 300, 6, 20, 4


@pytest.fixture
def projection(rng):
    landmarks = rng.normal(size=(M, D))
    features = LandmarkMap(Gaussian(1.5), landmarks, np.dtype(np.float64))
    return Projection(D, Predictor(features, rng.normal(size=(M, R)), rng.normal(size=R)))


def dense(projection, X):
    predictor = projection.predictor
    return predictor.features.kernel(X, predictor.features.landmarks) @ predictor.coef + predictor.intercept


def test_rows_through_a_projection_have_its_width_and_its_values(projection, rng):
    X = rng.normal(size=(N, D))
    rows = as_rows(X).map(UnitNorm()).map(projection)
    expected = dense(projection, X / np.linalg.norm(X, axis=1)[:, None])
    assert rows.shape == (N, R)
    assert rows.x.shape[1] == D
    assert_allclose(rows.take(np.arange(N)), expected, rtol=1e-12, atol=1e-12)
    model = Ridge(0.1).fit(rows, expected[:, 0])
    plain = Ridge(0.1).fit(expected, expected[:, 0])
    assert model.n_features_in_ == R
    assert_allclose(model.coef_, plain.coef_, rtol=1e-9)
    assert_allclose(model.predict(rows), plain.predict(expected), rtol=1e-9)


def test_a_projection_of_float32_rows_is_float32(projection, rng):
    X = rng.normal(size=(9, D)).astype(np.float32)
    result = projection.apply(X.copy())
    assert result.dtype == np.float32
    assert_allclose(result, dense(projection, X.astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_a_whole_array_takes_no_more_buffers_than_a_block(rng):
    features = LandmarkMap(Gaussian(1.5), rng.normal(size=(400, D)), np.dtype(np.float64))
    wide, X = Projection(D, Predictor(features, rng.normal(size=(400, R)), np.zeros(R))), rng.normal(size=(20_000, D))
    result, peak = traced(wide.apply, X)
    assert peak < result.nbytes + wide.predictor.work_bytes(2048) + 2**20
    assert peak < 0.3 * 8 * len(X) * 400  # of all kernel values
    assert_allclose(result[::999], dense(wide, X[::999]), rtol=1e-10, atol=1e-12)


def test_rows_of_another_width_are_refused_before_anything_is_read(projection, rng):
    with pytest.raises(DataError, match=r"expected rows of 6 features, found 5"):
        as_rows(rng.normal(size=(4, 5))).map(projection)


def test_a_plan_counts_the_cost_of_the_projection(projection, rng):
    rows = as_rows(rng.normal(size=(N, D)))
    with_map = plan_sweep(rows.map(projection), MomentStatistic(IdentityMap(np.zeros(R))))
    without = plan_sweep(rows, MomentStatistic(IdentityMap(np.zeros(R))))
    assert with_map.flops - without.flops == pytest.approx(N * projection.predictor.flops_per_row)
    assert with_map.work_bytes - without.work_bytes > projection.predictor.fixed_bytes
    assert with_map.bytes_read == without.bytes_read
