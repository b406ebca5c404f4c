"""Kernel values in slices of landmarks: those of the equation, whatever the slice, and the same bits for one slice."""

import pickle
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import Gaussian, Laplacian, Linear, Matern, OnColumns, Pairwise, Polynomial, Sigmoid
from bigkernel.errors import DataError
from bigkernel.kernels import feature_maps
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap, LandmarkSlices, in_slices
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(7)
M, D, N = 41, 5, 30
Z = 3 + rng.normal(size=(M, D))
X = np.concatenate([3 + rng.normal(size=(N - 3, D)), Z[[0, 20, 40]]])  # some rows touch a landmark
COEF, INTERCEPT = rng.normal(size=(M, 3)), rng.normal(size=3)
KERNELS = [
    Gaussian(2.0),
    Gaussian(np.linspace(1, 3, D)),
    Matern(2.0, 0.5),
    Matern(2.0, 2.5),
    Laplacian(0.2),
    Linear(),
    Polynomial(3, 0.1, 1.0),
    Sigmoid(0.05, 0.1),
    Gaussian(2.0) + 0.5 * Linear() * Matern(2.0, 0.5),
    OnColumns(Laplacian(0.2), [0, 3]) * OnColumns(Linear() + Gaussian(1.0), [1, 2, 4]),
    Pairwise("cosine"),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
either = pytest.mark.parametrize(("dtype", "error"), [("float32", 2e-5), ("float64", 1e-12)])


def sliced(kernel, dtype, width):
    bound = LandmarkMap(kernel, Z, np.dtype(dtype)).bound
    return LandmarkSlices(kernel, bound, M, width)


@either
@every_kernel
@pytest.mark.parametrize("width", [1, 7, 20, M])
def test_the_sum_over_slices_is_the_sum_over_all_landmarks(kernel, width, dtype, error):
    whole = kernel(X, Z) @ COEF + INTERCEPT
    predictor = pickle.loads(pickle.dumps(Predictor(sliced(kernel, dtype, width), COEF, INTERCEPT)))
    found = predictor.values(Chunk(X, block_rows=8))
    assert_allclose(found, whole, rtol=error, atol=error * np.abs(whole).max() * 10)


@either
@every_kernel
def test_one_slice_gives_the_bits_of_the_whole_map(kernel, dtype, error):
    plain = Predictor(LandmarkMap(kernel, Z, np.dtype(dtype)), COEF, INTERCEPT)
    one = Predictor(sliced(kernel, dtype, M), COEF, INTERCEPT)
    chunk = Chunk(X.astype(dtype), block_rows=8)
    assert_array_equal(one.values(chunk), plain.values(chunk))


def test_slices_are_summed_in_float64():
    # a thousand ones after 2²⁴ change nothing in float32
    big, ones = np.full((1, 1), 2.0**24), np.ones((1000, 1))
    landmarks = np.concatenate([big, ones])
    bound = LandmarkMap(Linear(), landmarks, np.dtype(np.float32)).bound
    predictor = Predictor(LandmarkSlices(Linear(), bound, 1001, 1), np.ones((1001, 1)), np.zeros(1))
    assert predictor.values(Chunk(np.ones((1, 1)))) == 2.0**24 + 1000


@pytest.mark.parametrize(("dtype", "m", "widths"), [("float32", 40, [14, 14, 12]), ("float64", 40, [8] * 5)])
def test_many_landmarks_go_in_equal_slices_and_few_stay_whole(monkeypatch, dtype, m, widths):
    monkeypatch.setattr(feature_maps, "SLICE_ROW_BYTES", 64)
    few, many = (LandmarkMap(Gaussian(2.0), Z[:count], np.dtype(dtype)) for count in (8, m))
    assert in_slices(few) is few
    identity = IdentityMap(np.zeros(D))
    assert in_slices(identity) is identity
    chunk = Chunk(X)
    found = [values.shape[1] for _, values in in_slices(many).parts(chunk, slice(0, 4))]
    assert found == widths
    assert max(buffer.size for buffer in chunk.work.buffers.values()) <= 4 * max(widths[0], D + 2)


def test_few_landmarks_of_many_features_travel_prepared(monkeypatch):
    monkeypatch.setattr(feature_maps, "PREPARED_BYTES", Z.nbytes - 1)
    plain = LandmarkMap(Gaussian(2.0), Z, np.dtype(np.float32))
    found = in_slices(plain)
    assert (found.slice_width, found.width) == (M, M)
    assert len(pickle.dumps(found)) < len(pickle.dumps(plain))  # float32 travels, not float64


def test_landmarks_that_float32_cannot_resolve_are_refused_before_anything_travels(monkeypatch):
    monkeypatch.setattr(feature_maps, "SLICE_ROW_BYTES", 64)
    with pytest.raises(DataError, match="float32 the distances between these landmarks"):
        in_slices(LandmarkMap(Gaussian(1e-3), Z + 1e4, np.dtype(np.float32)))


@pytest.mark.parametrize(
    "kernel", [Gaussian(9.0), Gaussian(np.full(50, 9.0)), Matern(9.0, 0.5), Laplacian(0.01)], ids=lambda k: k.name
)
def test_preparing_landmarks_takes_little_more_than_what_is_kept_of_them(kernel):
    landmarks = rng.normal(size=(20_000, 50))
    tracemalloc.start()
    bound = kernel.bind(landmarks, np.float32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < bound.nbytes + 8 * len(landmarks) * 4 + 2**21
    assert bound.nbytes < 0.55 * landmarks.nbytes * (1 + kernel.kinked)
