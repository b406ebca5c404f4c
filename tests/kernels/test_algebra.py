"""Kernels made of kernels: their equations from dense parts, their parameters, memory, models and searches."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge as DenseKernelRidge

import bigkernel as bk
from bigkernel.errors import ConfigError, ModelRejectedError
from bigkernel.kernels.algebra import Product, Scaled, Sum
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.models.file import Packing, unpack
from bigkernel.streaming.chunk import Chunk

RNG = np.random.default_rng(5)
X, y = RNG.normal(size=(300, 4)), RNG.normal(size=300)
CASES = {
    "sum": (bk.Gaussian(1.3) + bk.Linear(), lambda X, Z: reference.gaussian(X, Z, 1.3) + X @ Z.T),
    "multiple": (0.25 * bk.Matern(1.7, 0.5), lambda X, Z: 0.25 * reference.matern(X, Z, 1.7, 0.5)),
    "product": (bk.Gaussian(2.0) * bk.Polynomial(2, 0.3, 1.0),
                lambda X, Z: reference.gaussian(X, Z, 2.0) * reference.polynomial(X, Z, 2, 0.3, 1.0)),
    "columns": (bk.OnColumns(bk.Gaussian(0.8), [2, 0]),
                lambda X, Z: reference.gaussian(X[:, [0, 2]], Z[:, [0, 2]], 0.8)),
    "all of it": (
        (bk.Gaussian(1.0) + bk.Matern(1.1, 1.5) * 2) * bk.OnColumns(bk.Linear() + 0.5 * bk.Gaussian(3.0), [1]),
        lambda X, Z: (reference.gaussian(X, Z, 1.0) + 2 * reference.matern(X, Z, 1.1, 1.5))
        * (X[:, [1]] @ Z[:, [1]].T + 0.5 * reference.gaussian(X[:, [1]], Z[:, [1]], 3.0)),
    ),
}  # fmt: skip
every_kernel = pytest.mark.parametrize(("kernel", "oracle"), CASES.values(), ids=CASES)


@every_kernel
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(n=st.integers(1, 300), m=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_blocks_and_matrices_follow_from_those_of_the_operands(kernel, oracle, dtype, n, m, seed):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, 4)).astype(dtype), rng.normal(size=(m, 4)).astype(dtype)
    expected, kept = oracle(X.astype(np.float64), Z.astype(np.float64)), X.copy()
    block = LandmarkMap(kernel, Z, np.dtype(dtype)).block(Chunk(X, block_rows=n), slice(0, n), spare=1)
    near = 2e-4 if dtype == np.float32 else 1e-9
    assert_allclose(block[:, :-1], expected, rtol=near, atol=near * max(1, np.abs(expected).max()))
    assert_allclose(kernel(X, Z), block[:, :-1], rtol=near, atol=near)
    assert_allclose(kernel.diag(X), np.diagonal(oracle(X, X)), rtol=near, atol=near)
    assert_array_equal(X, kept)


@every_kernel
def test_landmark_fits_of_all_rows_are_the_dense_fit(kernel, oracle):
    few = X[:40]
    dense = DenseKernelRidge(alpha=0.1, kernel="precomputed").fit(oracle(few, few), y[:40])
    expected = dense.predict(oracle(X, few))
    model = bk.KernelRidge(kernel, alpha=0.1, landmarks=few, fit_intercept=False).fit(few, y[:40])
    assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-5)
    exact = bk.KernelRidge(kernel, alpha=0.1, fit_intercept=False).fit(few, y[:40])
    assert_allclose(exact.predict(X), expected, rtol=1e-7, atol=1e-7)


def test_a_saved_model_has_the_same_kernel_and_says_it(tmp_path):
    kernel, _ = CASES["all of it"]
    model = bk.KernelRidge(kernel, alpha=0.1, n_landmarks=20, random_state=0).fit(X, y)
    bk.save_model(model, tmp_path / "a.model")
    loaded = bk.load_model(tmp_path / "a.model")
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.fit_report()["kernel"] == {"name": kernel.formula()}


def test_formulas_are_written_with_operators():
    kernel = (bk.Gaussian(1.0) + bk.Linear()) * bk.OnColumns(0.5 * bk.Gaussian(np.ones(2)), [1, 3])
    assert kernel.formula() == "((gaussian(sigma=1.0) + linear) * 0.5 * gaussian(sigma=(2,)) of 2 columns)"


def test_parameters_inside_are_searched_by_name():
    model = bk.KernelRidge(bk.Gaussian(1.0) + bk.Linear(), alpha=0.1, n_landmarks=30, random_state=0)
    assert clone(model).get_params()["kernel__k1__sigma"] == 1.0
    grid = {"kernel__k1__sigma": [0.5, 2.0], "alpha": [0.1, 10.0]}
    result = bk.SweepSearchCV(model, grid, cv=3).fit(X, y)
    assert {one["kernel__k1__sigma"] for one in result.cv_results_["params"]} == {0.5, 2.0}
    assert len(set(result.cv_results_["mean_test_score"])) == 4
    assert model.kernel.k1.sigma == 1.0


def test_scale_is_of_the_columns_of_a_kernel():
    wide = X * [1, 1, 100, 1]
    result = (bk.Gaussian() + bk.OnColumns(bk.Gaussian(), [0, 1])).resolve(wide)
    assert result.k2.kernel.sigma == bk.Gaussian().resolve(X[:, :2]).sigma
    assert result.k1.sigma == bk.Gaussian().resolve(wide).sigma


def test_sums_and_products_of_positive_kernels_are_positive():
    assert (bk.Gaussian() + 2 * bk.Linear()).positive
    assert not (bk.Gaussian() * bk.Sigmoid()).positive
    assert bk.OnColumns(bk.Matern(1.0, 0.5), [0]).kinked


@pytest.mark.parametrize(
    "kernel, message",
    [
        (-1 * bk.Gaussian(), "expected a finite factor above 0, found -1.0"),
        (Scaled(bk.Gaussian(), "2"), "expected a finite factor above 0, found '2'"),
        (Sum(bk.Gaussian(), 3), "sum kernel: expected kernels, found int"),
        (Product(bk.Gaussian(), None), "product kernel: expected kernels, found NoneType"),
        (bk.OnColumns(bk.Gaussian(), [0, 4]), r"expected distinct columns from 0 to 3, found \[0, 4\]"),
        (bk.OnColumns(bk.Gaussian(), [1, 1]), "expected distinct columns"),
        (bk.OnColumns(bk.Gaussian(), []), "expected distinct columns"),
        (bk.OnColumns(bk.Gaussian(), [0.5]), "expected distinct columns"),
        (bk.OnColumns("rbf", [0]), "columns kernel: expected kernels, found str"),
        (bk.Gaussian() + bk.Gaussian(-1.0), "expected a finite sigma above 0"),
    ],
)  # fmt: skip
def test_invalid_kernels_are_refused_by_name(kernel, message):
    with pytest.raises(ConfigError, match=message):
        bk.KernelRidge(kernel, n_landmarks=10).fit(X, y)


def test_operators_take_kernels_and_numbers_alone():
    for wrong in (lambda: bk.Gaussian() + 1, lambda: bk.Gaussian() * "2"):
        with pytest.raises(TypeError):
            wrong()


def test_hostile_nesting_in_a_file_is_refused():
    value = Packing(lambda name: None).pack(bk.Gaussian(1.0), "kernel")
    for _ in range(40):
        value = {"kernel": "scaled", "params": {"kernel": value, "factor": 1.0}}
    with pytest.raises(ModelRejectedError, match="more than 32 deep"):
        unpack(value, lambda name: None, None)


def test_the_cost_of_a_sum_is_that_of_its_terms():
    one, two = (
        LandmarkMap(kernel, X, np.dtype("f8")) for kernel in (bk.Gaussian(1.0), bk.Gaussian(1.0) + bk.Gaussian(2.0))
    )
    prepared = one.prepared.weights.nbytes
    assert two.cost.fixed_bytes - one.cost.fixed_bytes >= prepared
    assert two.cost.flops_per_row == 2 * one.cost.flops_per_row
