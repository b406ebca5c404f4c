"""Kernels against their equations: any shape, both precisions, far from 0, and scikit-learn's names."""

import numpy as np
import pytest
import reference
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels import blas
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import KERNELS, Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid, as_kernel
from bigkernel.streaming.chunk import Chunk

CASES = {
    "gaussian": (Gaussian(1.3), lambda X, Z: reference.gaussian(X, Z, 1.3)),
    "laplacian": (Laplacian(2.5), lambda X, Z: reference.laplacian(X, Z, 2.5)),
    "matern 1/2": (Matern(1.7, 0.5), lambda X, Z: reference.matern(X, Z, 1.7, 0.5)),
    "matern 3/2": (Matern(1.7, 1.5), lambda X, Z: reference.matern(X, Z, 1.7, 1.5)),
    "matern 5/2": (Matern(1.7, 2.5), lambda X, Z: reference.matern(X, Z, 1.7, 2.5)),
    "linear": (Linear(), reference.linear),
    "polynomial": (Polynomial(3, 0.3, 1.5), lambda X, Z: reference.polynomial(X, Z, 3, 0.3, 1.5)),
    "polynomial of degree 1": (Polynomial(1, 0.3, 0.0), lambda X, Z: reference.polynomial(X, Z, 1, 0.3, 0.0)),
    "sigmoid": (Sigmoid(0.2, -0.3), lambda X, Z: reference.sigmoid(X, Z, 0.2, -0.3)),
}
every_kernel = pytest.mark.parametrize(("kernel", "oracle"), CASES.values(), ids=list(CASES))
DISTANCE = {name: case for name, case in CASES.items() if name.split()[0] in ("gaussian", "laplacian", "matern")}
every_distance = pytest.mark.parametrize(("kernel", "oracle"), DISTANCE.values(), ids=list(DISTANCE))
shapes = {"n": st.integers(1, 30), "m": st.integers(1, 20), "d": st.integers(1, 8), "seed": st.integers(0, 10**6)}


def block(kernel, X, Z, dtype):
    """k(X, Z) as a sweep computes it: rows of any dtype through the landmark map of `dtype`."""
    return LandmarkMap(kernel, Z, np.dtype(dtype)).block(Chunk(X, block_rows=len(X)), slice(0, len(X))).copy()


def test_every_kernel_of_the_table_is_tested_here():
    assert {kernel.name for kernel, _ in CASES.values()} == set(KERNELS)


@every_kernel
@pytest.mark.parametrize("dtype, near, least", [(np.float32, 1e-4, 1e-5), (np.float64, 1e-10, 1e-10)])
@given(**shapes)
@example(n=30, m=20, d=1, seed=704)  # a row 1e-3 from a landmark: √ of the rounding of ‖x−z‖² is 2e-4
def test_a_kernel_equals_its_equation(kernel, oracle, dtype, near, least, n, m, d, seed):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(m, d)).astype(dtype)
    expected = oracle(X, Z)
    for result in (kernel(X, Z), block(kernel, X, Z, dtype)):
        assert result.dtype == dtype
        assert_allclose(result, expected, rtol=near, atol=least * max(1, np.abs(expected).max()))


@every_kernel
@pytest.mark.parametrize("wide", [blas.WIDE, 50])
def test_a_gram_matrix_holds_the_values_of_k_between_two_arrays(kernel, oracle, wide, rng, monkeypatch):
    monkeypatch.setattr(blas, "WIDE", wide)
    X = rng.normal(size=(200, 6))[np.r_[0, :199]] + 20  # the first row repeats
    K = kernel(X)
    assert_allclose(K, oracle(X, X), rtol=1e-10, atol=1e-7 if kernel == Matern(1.7, 0.5) else 1e-12)
    assert_array_equal(K, K.T)
    assert_allclose(K, kernel(X, X), rtol=1e-10, atol=1e-7 if kernel == Matern(1.7, 0.5) else 1e-12)
    if kernel.name in ("gaussian", "matern") and not kernel.kinked:
        assert_array_equal(np.diagonal(K), 1)


@every_distance
@pytest.mark.parametrize("dtype, most", [(np.float32, 2e-5), (np.float64, 2e-11)])
@pytest.mark.parametrize("d", [1, 2, 9])
def test_rows_that_nearly_touch_a_landmark_keep_their_digits(kernel, oracle, dtype, most, d, rng):
    Z = rng.normal(size=(15, d)).astype(dtype)
    ways = rng.normal(size=(15, d))
    X = np.vstack([Z + 10.0**-k * ways for k in range(12)] + [Z]).astype(dtype)
    for values in (kernel(X, Z), block(kernel, X, Z, dtype)):
        assert_allclose(values, oracle(X, Z), rtol=0, atol=most)
        assert values.max() <= 1 or not isinstance(kernel, Gaussian)
        if isinstance(kernel, Matern) and kernel.nu == 0.5:
            assert_array_equal(np.diagonal(values[-15:]), 1)


def test_rows_equal_to_all_landmarks_have_the_value_1():
    X, Z = np.full((2000, 30), 0.1), np.full((40, 30), 0.1)  # looked at again in many pieces
    X[7] += 1e-9
    for dtype in (np.float32, np.float64):
        values = block(Matern(2.0, 0.5), X, Z, dtype)
        assert_array_equal(np.delete(values, 7, axis=0), 1)
        assert_allclose(values[7], 1 if dtype == np.float32 else np.exp(-(30**0.5) * 1e-9 / 2), rtol=1e-15)


def test_every_feature_can_have_a_length_of_its_own(rng):
    X, Z, lengths = rng.normal(size=(23, 4)), rng.normal(size=(11, 4)), np.array([0.3, 1.0, 2.5, 8.0])
    assert_allclose(Gaussian(lengths)(X, Z), reference.gaussian(X, Z, lengths), rtol=1e-10, atol=1e-12)
    assert_allclose(Matern(lengths, 2.5)(X, Z), reference.matern(X, Z, lengths, 2.5), rtol=1e-9, atol=1e-12)
    assert_allclose(block(Gaussian(lengths), X, Z, np.float32), reference.gaussian(X, Z, lengths), atol=1e-4)
    assert_allclose(Gaussian(np.full(4, 1.3))(X, Z), Gaussian(1.3)(X, Z), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [1e3, 1e7])
@every_distance
def test_far_from_zero_a_kernel_is_within_its_bound_or_refused(kernel, oracle, offset, dtype, rng):
    X, Z = rng.normal(size=(60, 5)) + offset, rng.normal(size=(12, 5)) + offset
    try:
        got = block(kernel, X, Z, dtype)
    except DataError:
        assert dtype == np.float32  # a double holds these differences
        return
    # the bound that `bind` states: distances within 0.01 bandwidths
    assert np.abs(got - oracle(X, Z)).max() < (0.02 if dtype == np.float32 else 1e-6)
    assert got.min() >= 0
    assert got.max() <= 1 + np.finfo(dtype).eps


@pytest.mark.parametrize("offset", [1e5, 1e7])
def test_float32_rows_far_from_zero_keep_their_differences(offset, rng):
    X, Z = (rng.integers(-3, 4, (n, 5)) * 2.0 + offset for n in (40, 10))
    got = Gaussian(4.0)(X.astype(np.float32), Z.astype(np.float32))
    assert got.dtype == np.float32
    assert_allclose(got, reference.gaussian(X, Z, 4.0), atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_distance
def test_a_row_far_from_all_landmarks_has_the_value_0_or_is_refused(kernel, oracle, dtype, rng):
    Z = rng.normal(size=(6, 3))
    for far in (1e15, 1e20, 1e160, 1e300):
        X = rng.normal(size=(4, 3))
        X[2, 1] = far
        try:
            got = block(kernel, X, Z, dtype)
        except DataError:
            continue
        assert_allclose(got, oracle(X * (np.abs(X) < 1e10) + 1e3 * (np.abs(X) > 1e10), Z), atol=1e-4)


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_the_scale_of_the_data_does_not_matter_to_a_scaled_bandwidth(size, rng):
    X = rng.normal(size=(15, 3))
    for kernel in (Gaussian(), Matern(), Laplacian(), Polynomial(coef0=0.5)):
        assert_allclose(kernel(X * size), kernel(X), rtol=1e-9, atol=1e-7 * (kernel == Matern()))


@pytest.mark.parametrize("power", [-120, 120])
def test_rows_at_the_ends_of_float32_have_the_bits_of_rows_of_size_one(power, rng):
    X = rng.normal(size=(15, 3)).astype(np.float32)
    far = np.ldexp(X, power)
    for kernel in (Gaussian(), Matern(nu=0.5), Matern()):
        assert_array_equal(kernel(far, far[:5]), kernel(X, X[:5]))


@pytest.mark.parametrize("kernel", [Polynomial(), Sigmoid(), Laplacian()])
def test_a_gamma_at_an_end_of_float32_is_refused_there_and_right_in_float64(kernel, rng):
    X = rng.normal(size=(15, 3)).astype(np.float32)
    for power in (-120, 120):
        far = np.ldexp(X, power)
        with pytest.raises(DataError, match=r"expected gamma from .* in float32"):
            kernel(far, far[:5])
        assert_allclose(kernel(far.astype(np.float64)), kernel(X.astype(np.float64)), rtol=1e-12)


@pytest.mark.parametrize("sigma", [1e-200, 1e-160, 1e160, 1e200])
def test_an_extreme_bandwidth_gives_the_limit_or_is_refused(sigma, rng):
    X = rng.normal(size=(5, 3))
    for kernel in (Gaussian(sigma), Matern(sigma)):
        try:
            K = kernel(X)
        except (ConfigError, DataError):
            continue
        assert_allclose(K, np.ones((5, 5)) if sigma > 1 else np.eye(5), atol=1e-9)


def test_landmarks_of_another_width_or_beyond_the_dtype_are_refused(rng):
    Z = rng.normal(size=(5, 3)) * 1e150
    with pytest.raises(DataError, match="features in X and Z, found 2 and 3"):
        Gaussian()(np.ones((4, 2)), Z)
    with pytest.raises(DataError, match="float32"):
        Gaussian(1e150).bind(Z, np.float32)
    with pytest.raises(DataError, match="float64"):
        Gaussian(1.0).bind(Z, np.float64)


def test_a_weighted_bandwidth_is_that_of_repeated_rows(rng):
    X, times = rng.normal(size=(20, 3)), rng.integers(0, 4, 20)
    for kernel in (Gaussian(), Laplacian(), Matern(), Polynomial(), Sigmoid()):
        result = kernel.resolve(X, times.astype(float)).get_params()
        expected = kernel.resolve(np.repeat(X, times, axis=0)).get_params()
        assert result == pytest.approx(expected, rel=1e-12)


def test_rows_that_do_not_vary_resolve_to_a_finite_bandwidth():
    X = np.full((7, 3), 4.0)
    assert_array_equal(Gaussian()(X), np.ones((7, 7)))
    assert_allclose(Laplacian()(X), np.ones((7, 7)))


def test_a_kernel_object_is_taken_as_it_is_and_anything_else_refused():
    kernel = Matern(2.0)
    assert as_kernel(kernel) is kernel
    assert as_kernel("matern") == Matern()
    assert as_kernel("rbf") == as_kernel("gaussian") == Gaussian()
    for wrong in ("rfb", "", None, 3, Gaussian):
        with pytest.raises(ConfigError, match=r"kernel"):
            as_kernel(wrong)


WRONG = [
    *((kind, {name: value}) for kind, name in [(Gaussian, "sigma"), (Matern, "sigma"), (Laplacian, "sigma")]
      for value in (0, -1.0, 1e-200, float("nan"), float("inf"), True, "wide", [[1.0, 1.0]], [1.0, 0.0],
                    [1.0, float("nan")], [1.0] * 3)),
    *((Polynomial, {"degree": value}) for value in (0, 1.5, True, float("nan"), float("inf"), "3")),
    *((Polynomial, {"coef0": value}) for value in (-1, float("inf"))),
    *((kind, {"gamma": value}) for kind in (Polynomial, Sigmoid) for value in (0, float("nan"), [1.0, 1.0])),
    (Sigmoid, {"coef0": float("nan")}),
    *((Matern, {"nu": value}) for value in (1, 0, float("nan"), "1.5", None)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "params"), WRONG, ids=[f"{k.name}-{p}" for k, p in WRONG])
def test_a_wrong_parameter_is_refused_by_name(kind, params):
    with pytest.raises(ConfigError, match=rf"{kind.name} kernel: expected .*{next(iter(params))}"):
        kind(**params)(np.ones((3, 2)))


def test_a_width_by_its_other_name_is_that_sigma():
    assert Gaussian(gamma=0.3) == Gaussian(0.6**-0.5)
    assert Laplacian(gamma=0.4) == Laplacian(2.5)
    assert Matern(length_scale=1.7, nu=0.5) == Matern(1.7, 0.5)
    for word in ("scale", "auto"):
        named = [Gaussian(gamma=word), Laplacian(gamma=word), Matern(length_scale=word)]
        assert named == [Gaussian(word), Laplacian(word), Matern(word)]


@pytest.mark.parametrize("make", [list, np.array])
def test_every_feature_can_have_a_gamma_of_its_own(make, rng):
    X = rng.normal(size=(9, 2))
    assert_array_equal(Gaussian(gamma=make([0.5, 2.0]))(X), Gaussian([1.0, 0.5])(X))
    assert_array_equal(Matern(length_scale=make([1.0, 0.5]))(X), Matern([1.0, 0.5])(X))
    with pytest.raises(ConfigError, match=r"laplacian kernel: expected (gamma|sigma)"):
        Laplacian(gamma=make([1.0, 1.0]))(X)


@pytest.mark.parametrize(("kind", "name"), [(Gaussian, "gamma"), (Laplacian, "gamma"), (Matern, "length_scale")])
def test_two_widths_or_an_invalid_one_are_refused_at_once(kind, name):
    with pytest.raises(ConfigError, match=rf"expected sigma or {name}, found both"):
        kind(1.0, **{name: 1.0})
    for value in (0, -1.0, float("nan"), float("inf"), True):
        with pytest.raises(ConfigError, match=rf"{kind.name} kernel: expected a finite {name} above 0"):
            kind(**{name: value})


@every_kernel
def test_no_rows_give_an_empty_matrix_and_one_row_a_matrix_of_one(kernel, oracle, rng):
    Z = rng.normal(size=(5, 3))
    assert kernel(np.empty((0, 3)), Z).shape == (0, 5)
    assert_allclose(kernel(Z[:1], Z[1:2]), oracle(Z[:1], Z[1:2]), rtol=1e-10)
    assert_allclose(kernel([1.0, 2.0, 3.0], Z), oracle([[1.0, 2.0, 3.0]], Z), rtol=1e-10)


@every_kernel
def test_stored_bytes_give_the_same_kernel_as_numbers(kernel, oracle, rng):
    X, Z = rng.integers(0, 5, (20, 3), dtype=np.uint8), rng.integers(0, 5, (6, 3), dtype=np.uint8)
    before = X.copy()
    assert_allclose(kernel(X, Z), oracle(X, Z), rtol=1e-9, atol=1e-7)
    assert_array_equal(X, before)
