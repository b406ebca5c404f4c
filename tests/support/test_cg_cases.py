"""The true excess of `cg_cases`: that of brute force where nothing is ill-conditioned, quadratic where much is."""

import warnings
from types import SimpleNamespace

import cg_cases
import numpy as np
import pytest
import reference
from cg_cases import ALPHAS, dense, kernels, tables, true_excess
from numpy.testing import assert_allclose

from bigkernel import Gaussian, KernelRidge
from bigkernel.errors import Inaccurate

rng = np.random.default_rng(1952)
N, M = 200, 12
X = rng.normal(size=(N, 3))
Y = np.column_stack([np.sin(X[:, 0]) + 3, X[:, 1] * X[:, 2]]) + 0.1 * rng.normal(size=(N, 2))
WEIGHT = rng.uniform(0.2, 3, N)


def objective(coef, intercept, B, K, Y, alpha, weight):
    """Return J of each target."""
    return weight @ (Y - B @ coef - intercept) ** 2 + alpha * np.einsum("ij,ij->j", coef, K @ coef)


@pytest.mark.parametrize("weight", [np.ones(N), WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_true_excess_is_that_of_brute_force(fit_intercept, weight):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Inaccurate)  # one step is not enough, and this is the point
        model = KernelRidge(
            Gaussian(0.7), alpha=0.5, landmarks=X[:M], fit_intercept=fit_intercept, solver="cg", max_iter=1, tol=1e-15
        ).fit(X, Y, sample_weight=weight)
    B, K = reference.gaussian(X, X[:M], 0.7), reference.gaussian(X[:M], X[:M], 0.7)
    best = reference.nystrom_krr(B, K, Y, 0.5, fit_intercept, weight)
    least = objective(*best, B, K, Y, 0.5, weight)
    perturbed = SimpleNamespace(
        kernel_=model.kernel_,
        landmarks_=model.landmarks_,
        alpha_=0.5,
        fit_intercept=fit_intercept,
        dual_coef_=model.dual_coef_ + 0.1 * rng.normal(size=(M, 2)),
        intercept_=model.intercept_ + 0.05 * fit_intercept,
    )
    for fitted in (model, perturbed):
        reached = objective(fitted.dual_coef_, fitted.intercept_, B, K, Y, 0.5, weight)
        found = true_excess(X, Y, fitted, sample_weight=weight)
        assert_allclose(found, reached / least - 1, rtol=1e-6, atol=1e-12)
    assert true_excess(X, Y, perturbed, sample_weight=weight).min() > 1e-3


def test_the_true_excess_is_quadratic_where_the_core_is_ill_conditioned():
    X, y = tables(300)["uniform-low-dim"]
    kernel, alpha, Z = Gaussian(4.0), 1e-4, X[:60]
    B, K = dense(kernel)(X, Z), dense(kernel)(Z, Z)
    assert np.linalg.cond(K) > 1e10
    values, vectors = np.linalg.eigh(K)
    T = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    best = np.linalg.lstsq(np.vstack([B, alpha**0.5 * T]), np.append(y, np.zeros(len(Z))), rcond=None)[0]
    given = {"kernel_": kernel, "landmarks_": Z, "alpha_": alpha, "fit_intercept": False, "intercept_": 0.0}
    found = {}
    for size in (0, 1e-2, 1e-7):
        moved = SimpleNamespace(**given, dual_coef_=best + size * vectors[:, -1])
        found[size] = true_excess(X, y, moved)
    assert found[1e-2] / found[1e-7] == pytest.approx(1e10, rel=1e-2)
    assert found[1e-7] < 1e-11  # of which the difference of two objectives keeps few digits
    assert found[0] < 1e-3 * found[1e-7]


@pytest.mark.parametrize("name", kernels())
def test_dense_kernels_are_those_of_the_package(name):
    X, _ = tables(50)["normal"]
    kernel = kernels()[name]
    assert_allclose(dense(kernel)(X, X[:20]), kernel(X, X[:20]), rtol=1e-9, atol=1e-13)


def test_the_tables_are_those_that_are_promised():
    found = tables(400)
    assert {*found} >= {
        "lognormal", "lognormal-half", "student", "normal", "clusters", "uniform-low-dim", "digits", "diabetes",
    }  # fmt: skip
    for name, (X, y) in found.items():
        assert X.shape[0] == len(y) == 400
        if name == "digits":
            assert_allclose(np.linalg.norm(X, axis=1), 1)
        else:
            assert_allclose(X.mean(axis=0), 0, atol=1e-12)
            assert_allclose(X.std(axis=0), 1)
    r = np.random.default_rng(0)
    X = cg_cases.standardise(r.lognormal(sigma=1, size=(400, 8)))
    assert_allclose(found["lognormal"][0], X)
    y = np.sin(X[:, 0]) + X[:, 1] * np.exp(-(X[:, 2] ** 2)) + 0.3 * r.normal(size=400)
    assert_allclose(found["lognormal"][1], y)
    assert found["uniform-low-dim"][0].shape[1] == 3
    assert len({(table, kernel, alpha) for table, kernel, alpha, *_ in cg_cases.cases(30)}) == len(found) * 8 * 5
    assert ALPHAS == (1e-6, 1e-4, 1e-2, 1, 10)
