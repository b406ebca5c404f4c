"""Blocks of sparse rows: the values of dense rows, the same bits for any cut, and no more memory than is counted."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from bigkernel import Gaussian, Laplacian, Linear, Matern, OnColumns, Pairwise, Polynomial, Sigmoid
from bigkernel.kernels.families import LandmarkFamily
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.landmark_slices import in_slices
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.kernels.sparse_blocks import SparsePoints
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.row_maps import Scale, UnitNorm

N, D, M = 240, 400, 40
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.03)
X[7] = 0
Z = X[:M].copy()
Z[M - 1] = 0
LENGTHS = np.linspace(1, 3, D)
KERNELS = {
    "gaussian": Gaussian(2.0),
    "a length a feature": Gaussian(LENGTHS),
    "kinked": Matern(2.0, 0.5),
    "matern": Matern(2.0, 2.5),
    "laplacian": Laplacian(0.05),
    "linear": Linear(),
    "polynomial": Polynomial(2, 0.1),
    "sigmoid": Sigmoid(0.1),
    "cosine": Pairwise("cosine"),
    "a sum": Gaussian(2.0) + 0.5 * Linear(),
    "of columns": OnColumns(Gaussian(1.0), [3, 7, 100]) * Laplacian(0.01),
}


def overlap(X, Z):
    return np.minimum(X[:, None], Z).sum(axis=2)


def chunk(rows=X, **options):
    return Chunk(sparse.csr_array(rows), **options)


def blocks(features, rows, **options):
    cut = chunk(rows, **options)
    return np.concatenate([features.block(cut, block).copy() for block in cut.blocks()])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_values_are_those_of_dense_rows_and_no_cut_changes_a_bit(kernel, dtype):
    features = LandmarkMap(kernel, Z, np.dtype(dtype)).of_sparse_rows(0.03)
    assert isinstance(features.landmarks, SparsePoints)
    found, exact = blocks(features, X), kernel(X, Z)
    rounding = 8 if dtype == "f4" else 100  # in float64 that of the dense block too
    assert_allclose(found, exact, rtol=0, atol=rounding * np.finfo(dtype).eps * max(1, np.abs(exact).max()))
    assert_array_equal(found, blocks(features, X, block_rows=7))
    assert_array_equal(found[50:60], blocks(features, X[50:60]))
    assert_allclose(features.diagonal(chunk(), slice(None)), kernel.diag(X), rtol=1e-5)


def test_row_maps_families_and_slices_see_sparse_rows_as_dense_ones():
    maps = (Scale(3.0), UnitNorm())
    family = LandmarkFamily((Gaussian(1.0), Gaussian(2.0), Matern(1.0, 0.5)), Z, np.dtype("f8")).of_sparse_rows(0.03)
    wide = LandmarkMap(Gaussian(1.0), np.tile(Z, (250, 1)), np.dtype("f8"))
    slices = in_slices(wide).of_sparse_rows(0.03)
    assert slices.slice_width < slices.width
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    unit = X / np.where(norms > 0, norms, 1)
    for found, kernel in zip(family.blocks(chunk(row_maps=maps), slice(None)), family.kernels, strict=True):
        assert_allclose(found, kernel(unit, Z), atol=1e-13)
    parts = [(columns, part.copy()) for columns, part in slices.parts(chunk(row_maps=maps), slice(0, 9))]
    assert_allclose(np.hstack([part for _, part in parts]), Gaussian(1.0)(unit[:9], wide.landmarks), atol=1e-13)


@pytest.mark.parametrize("kernel", [Gaussian(2.0), Matern(2.0, 1.5), Laplacian(1.0)])
def test_rows_beyond_the_range_of_squares_are_far_from_all_landmarks(kernel):
    features = LandmarkMap(kernel, Z, np.dtype("f4")).of_sparse_rows(0.03)
    far = X * np.where(np.arange(N) == 3, 1e200, 1.0)[:, None]
    found = blocks(features, far)
    assert np.isfinite(found).all()
    assert not found[3].any()
    assert_array_equal(np.delete(found, 3, axis=0), np.delete(blocks(features, X), 3, axis=0))


def test_a_kinked_kernel_keeps_the_digits_of_rows_that_nearly_touch_a_landmark():
    near = Z[:5] * (1 + 1e-9)
    features = LandmarkMap(Matern(1.0, 0.5), Z, np.dtype("f8")).of_sparse_rows(0.03)
    gaps = 1 - blocks(features, near)[np.arange(5), np.arange(5)]
    assert_allclose(gaps, np.linalg.norm(near - Z[:5], axis=1), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(64, 64), (65, 33)])
def test_random_features_of_sparse_rows_are_those_of_dense_ones(sizes):
    width, block_rows = sizes
    features = FourierMap(Gaussian(2.0), 3, width, X.mean(axis=0), dtype=np.dtype("f8"))
    found = blocks(features.of_sparse_rows(0.03), X, block_rows=block_rows)
    assert_allclose(found, features.of(X), atol=1e-12)
    assert features.of_sparse_rows(0.2) is features


def test_dense_landmarks_and_kernels_without_a_sparse_form_keep_dense_blocks():
    dense = LandmarkMap(Gaussian(2.0), RNG.normal(size=(M, D)), np.dtype("f8"))
    assert dense.of_sparse_rows(0.03) is dense
    assert_allclose(blocks(dense, X), Gaussian(2.0)(X, dense.landmarks), atol=1e-13)
    function = LandmarkMap(Pairwise(overlap), Z, np.dtype("f8"))
    assert function.of_sparse_rows(0.03) is function
    assert_allclose(blocks(function, X[:9]), overlap(X[:9], Z), atol=1e-13)


@pytest.mark.parametrize("kernel", [Gaussian(2.0), Laplacian(0.1), Gaussian(2.0) + Linear()])
def test_a_block_takes_no_more_memory_than_is_counted(kernel):
    wide, b = 20_000, 2048
    rows = sparse.random_array((b, wide), density=0.002, rng=RNG, format="csr")
    features = LandmarkMap(kernel, rows[:500].toarray(), np.dtype("f4")).of_sparse_rows(0.002)
    counted = features.fixed_bytes + b * features.row_bytes
    assert counted < 8 * b * wide / 4
    tracemalloc.start()
    try:
        features.block(Chunk(rows), slice(None))
        assert tracemalloc.get_traced_memory()[1] <= counted
    finally:
        tracemalloc.stop()
