"""Random Fourier features against integrals of their spectra and a dense map written from the papers."""

import pickle

import numpy as np
import pytest
import reference_fourier as oracle
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits
from traced import traced

from bigkernel import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels.random_fourier import FourierMap, FourierRows, spectrum_of
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.row_maps import Scale

rng = np.random.default_rng(20071203)
N, D, P = 40, 5, 400
X = rng.normal(size=(N, D)) + 2
LENGTHS = np.array([0.8, 1.0, 1.5, 2.0, 3.0])
KERNELS = {
    "gaussian": Gaussian(1.7),
    "a length a feature": Gaussian(LENGTHS),
    "laplacian": Laplacian(gamma=0.2),
    "matern 1/2": Matern(2.0, nu=0.5),
    "matern 3/2": Matern(2.0, nu=1.5),
    "matern 5/2": Matern(LENGTHS, nu=2.5),
}
ROUND = [name for name in KERNELS if name != "laplacian"]
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
round_kernels = pytest.mark.parametrize("kernel", [KERNELS[name] for name in ROUND], ids=ROUND)


def features(kernel, seed=0, width=P, orthogonal=False, dtype=np.float64, origin=None, **more):
    where = X.mean(axis=0) if origin is None else origin
    return FourierMap(kernel, seed, width, where, orthogonal, np.dtype(dtype), **more)


def errors(kernel, orthogonal, seeds=40):
    """φφᵀ − K for some seeds, (seeds, n, n)."""
    K = kernel(X)
    blocks = (features(kernel, seed, orthogonal=orthogonal).of(X) for seed in range(seeds))
    return np.array([phi @ phi.T - K for phi in blocks])


@every_kernel
def test_products_are_the_kernel_in_the_mean_with_the_error_that_theory_has(kernel):
    result, apart = errors(kernel, False), ~np.eye(N, dtype=bool)
    K, double = kernel(X), kernel(2 * X)
    # p/2 independent cosines of ωᵀ(x − z), each of variance (1 + k(2Δ))/2 − k(Δ)²
    variance = ((1 + double) / 2 - K**2) / (P / 2)
    mean = result.mean(axis=0)[apart] / np.sqrt(variance[apart] / len(result))
    assert np.abs(mean).max() < 5.5
    assert_allclose(np.sqrt((result[:, apart] ** 2).mean()), np.sqrt(variance[apart].mean()), rtol=0.12)
    assert_allclose(result[:, ~apart], 0, atol=1e-12)  # k(x, x) = 1 exactly


@round_kernels
def test_orthogonal_frequencies_keep_the_mean_and_lessen_the_error(kernel):
    plain, orthogonal, apart = errors(kernel, False), errors(kernel, True), ~np.eye(N, dtype=bool)
    spread = plain.std(axis=0)[apart].mean()
    assert np.abs(orthogonal.mean(axis=0)[apart]).max() < 5.5 * spread / np.sqrt(len(orthogonal))
    assert (orthogonal[:, apart] ** 2).mean() < 0.97 * (plain[:, apart] ** 2).mean()


@every_kernel
@pytest.mark.parametrize("width", [1, 7, 50])
def test_the_map_equals_a_dense_one_on_the_same_frequencies(kernel, width):
    frequencies, phases = spectrum_of(kernel, 11, D).frequencies(-(-width // 2))
    expected = oracle.features(X, frequencies, phases, width, X.mean(axis=0))
    assert_allclose(features(kernel, 11, width).of(X), expected, rtol=0, atol=1e-12)
    assert_allclose(features(kernel, 11, width, dtype=np.float32).of(X), expected, rtol=0, atol=2e-5)
    shift = np.arange(width) / width
    assert_allclose(features(kernel, 11, width, shift=shift).of(X), expected - shift, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "kernel, orthogonal", [(KERNELS[name], flag) for flag in (False, True) for name in (ROUND if flag else KERNELS)]
)
def test_frequencies_equal_those_of_a_plain_loop_over_the_generator(kernel, orthogonal):
    expected = oracle.frequencies(kernel, 5, D, 13, orthogonal)
    assert_allclose(spectrum_of(kernel, 5, D, orthogonal=orthogonal).frequencies(13)[0], expected, rtol=1e-9)


@pytest.mark.parametrize("block_rows", [1, 16])
def test_blocks_of_any_length_give_the_same_features_and_leave_room_for_more_columns(block_rows):
    phi, chunk = features(Gaussian(1.0), width=9), Chunk(X.copy(), block_rows=block_rows, row_maps=(Scale(1.0),))
    blocks = []
    for block in chunk.blocks():
        (given,) = phi.blocks(chunk, block, 3)
        assert given.flags.c_contiguous
        assert_array_equal(given[:, 9:], 0)
        blocks.append(given[:, :9].copy())
    assert_allclose(np.concatenate(blocks), phi.of(X), rtol=0, atol=1e-14)


def test_an_origin_rotates_pairs_and_changes_no_product():
    here, there = features(Gaussian(1.0)).of(X), features(Gaussian(1.0), origin=np.zeros(D)).of(X)
    assert np.abs(here - there).max() > 0.01
    assert_allclose(here @ here.T, there @ there.T, atol=1e-12)


def test_float32_keeps_its_digits_far_from_zero():
    far = X + 1000
    exact = features(Gaussian(1.0), origin=far.mean(axis=0)).of(far)
    assert_allclose(features(Gaussian(1.0), origin=far.mean(axis=0), dtype=np.float32).of(far), exact, atol=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_beyond_every_phase_give_finite_features(dtype):
    beyond = np.full((2, D), np.finfo(dtype).max) * np.array([[1], [-1]])
    assert np.isfinite(features(Gaussian(0.1), width=7, dtype=dtype).of(beyond)).all()


def test_rows_with_nan_give_nan_and_touch_no_other_row():
    spoilt = X.copy()
    spoilt[3, 1] = np.nan
    result, expected = (features(Gaussian(1.0), width=7).of(A) for A in (spoilt, X))
    assert_allclose(result, np.where(np.arange(N)[:, None] == 3, np.nan, expected), rtol=0, atol=1e-14)


@pytest.mark.parametrize("power", [-140, -120, 120])
@pytest.mark.parametrize("kernel", [Gaussian(), Matern()])
def test_features_of_rows_at_the_ends_of_float32_are_those_of_rows_of_size_one(kernel, power):
    X = np.random.default_rng(0).integers(-9, 9, (20, 3)).astype(np.float32) / 4
    far = np.ldexp(X, power)
    expected, result = (FourierMap(kernel.resolve(x), 0, 10, x[0]).of(x) for x in (X, far))
    assert_allclose(result, expected, atol=1e-5)


def test_a_task_gets_a_few_numbers_and_no_frequencies():
    phi = features(Gaussian(1.0), width=20_000)
    phi.of(X)
    assert len(pickle.dumps(phi)) < 2000
    assert_array_equal(pickle.loads(pickle.dumps(phi)).of(X), phi.of(X))


def test_the_bytes_that_are_announced_hold():
    d, width, rows = 60, 700, 300
    phi = FourierMap(Gaussian(1.0), 123, width, np.zeros(d), True, np.dtype(np.float64))
    chunk, block = Chunk(rng.normal(size=(rows, d)), block_rows=rows, work=Workspace()), slice(0, rows)
    _, peak = traced(phi.block, chunk, block)
    assert peak < phi.cost.fixed_bytes + rows * phi.cost.row_bytes + 2**19
    assert peak > (phi.cost.fixed_bytes + rows * phi.cost.row_bytes) / 3


@pytest.mark.parametrize("kernel", [Linear(), Polynomial(gamma=1.0), Sigmoid(gamma=1.0), Gaussian() + Gaussian()])
def test_kernels_that_are_no_function_of_the_difference_are_refused(kernel):
    with pytest.raises(ConfigError, match=rf"{kernel.name} kernel.*x − z"):
        features(kernel)
    with pytest.raises(ConfigError, match=r"laplacian.*orthogonal"):
        features(Laplacian(1.0), orthogonal=True)


def test_as_a_row_map_it_takes_the_dtype_of_the_rows_and_refuses_other_widths():
    row_map = FourierRows(features(Gaussian(1.0), width=8))
    assert row_map.width(D) == 8
    for dtype in (np.float32, np.float64):
        given = row_map.apply(X.astype(dtype))
        assert given.dtype == dtype
        assert_allclose(given, features(Gaussian(1.0), width=8).of(X), atol=1e-5)
    assert row_map.cost(D, 8).fixed_bytes > row_map.cost(D, 4).fixed_bytes
    with pytest.raises(DataError, match="5 features, found 4"):
        row_map.width(4)


def test_orthogonal_frequencies_do_not_depend_on_the_threads_of_blas():
    result = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            result.append(spectrum_of(Gaussian(1.0), 3, 784, orthogonal=True).frequencies(784)[0])
    assert_array_equal(*result)
