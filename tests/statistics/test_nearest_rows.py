"""The labelled rows nearest to some points: those of a plain sort, however the rows are cut and whoever runs it."""

import dask
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.nearest_rows import NearestRows
from bigkernel.streaming.row_maps import UnitNorm


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(300, 4))
    X[250:] = X[:50]  # equal rows, of which the first counts first
    return as_rows(X, np.where(np.arange(300) % 7 == 3, -1, np.arange(300) % 3)).map(UnitNorm())


@pytest.mark.parametrize("client", ["serial", "threads"])
@pytest.mark.parametrize("chunk_bytes", [1024, 4096, 2**20])
def test_they_are_those_of_a_sort_and_the_same_bits_however_rows_are_cut(rows, client, chunk_bytes):
    X, y = rows.take(np.arange(300)), rows.column("y")
    points = np.concatenate([X[[11, 3]], X[5:6] + 0.1])
    with dask.config.set({"bigkernel.chunk-bytes": chunk_bytes, "bigkernel.block-rows": 16}):
        found = sweep(rows, NearestRows(points, Targets(3, np.arange(3)), 6), client=client).total
    distance = np.linalg.norm(X[None] - points[:, None], axis=2)
    distance[:, y == -1] = np.inf
    order = np.lexsort((np.broadcast_to(np.arange(300), distance.shape), distance), axis=1)[:, :6]
    assert_array_equal(found["row"], order)
    assert_allclose(found["distance"], np.take_along_axis(distance, order, 1), rtol=1e-14)
    assert found["distance"][0, :2].tolist() == [0, 0]  # row 11, and its double 261
    with dask.config.set({"bigkernel.block-rows": 300}):
        whole = sweep(rows, NearestRows(points, Targets(3, np.arange(3)), 6), client="serial").total
    assert_array_equal(whole["distance"], found["distance"])


def test_places_that_no_labelled_row_takes_say_so(rows):
    one = NearestRows(rows.take(np.array([0])), Targets(3, np.arange(3)), 400)
    found = sweep(rows, one, client="serial").total
    labelled = int((rows.column("y") != -1).sum())
    assert (found["row"][0, labelled:] == -1).all()
    assert np.isinf(found["distance"][0, labelled:]).all()
    assert np.isfinite(found["distance"][0, :labelled]).all()
