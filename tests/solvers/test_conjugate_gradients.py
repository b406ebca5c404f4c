"""Conjugate gradients and their preconditioners, against direct solves."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bigkernel import Gaussian
from bigkernel.errors import DataError
from bigkernel.solvers import conjugate_gradients as cg

rng = np.random.default_rng(1952)
N, M = 900, 60
X = rng.normal(size=(N, 3))
B, K = Gaussian(1.0)(X, X[:M]), Gaussian(1.0)(X[:M])
ALPHA = 0.1
A, C = B.T @ B + ALPHA * K, B.T @ rng.normal(size=(N, 2))
EXACT = np.linalg.solve(A, C)
HALF = np.full(2, 0.5)  # that the smallest eigenvalue of P⁻¹A is not expected to exceed


def excess(coef):
    return ((coef - EXACT) * (A @ (coef - EXACT))).sum(axis=0)


def fortran(matrix, dtype=np.float64):
    return np.array(matrix, dtype, order="F")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_sub_sample_is_the_inverse_of_its_matrix_and_lies_in_its_place(dtype):
    matrix = fortran(A, dtype)
    P = cg.factor_sample(matrix, N)
    assert np.shares_memory(P.lower, matrix)
    near = 1e-2 if dtype is np.float32 else 1e-9
    assert_allclose(A @ P.solve(C), C, rtol=near, atol=near * np.abs(C).max())
    assert P.solve(C).dtype == np.float64
    assert P.rows == N


@pytest.mark.parametrize("intercept", [False, True], ids=["through 0", "about the mean of the landmarks"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_falkon_is_the_inverse_of_its_formula_in_one_array(dtype, intercept):
    core = fortran(K, dtype)
    P = cg.factor_core(core, ALPHA, float(N), intercept=intercept)
    assert np.shares_memory(P.factors, core)
    mean = np.outer(K.sum(axis=0), K.sum(axis=0)) / M if intercept else 0.0
    expected = N / M * (K @ K - mean) + ALPHA * K
    near = 5e-2 if dtype is np.float32 else 1e-7
    R = expected @ EXACT
    assert_allclose(expected @ P.solve(R), R, rtol=near, atol=near * np.abs(R).max())
    assert_allclose(P.solve(R), P.solve(R), rtol=0)  # the diagonal that was lent is back


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_landmarks_that_are_left_out_are_those_of_a_smaller_matrix(dtype):
    out, kept = np.array([3, 17, 44]), np.delete(np.arange(M), [3, 17, 44])
    solved = cg.WithoutLandmarks(cg.factor_sample(fortran(A, dtype), N), out).solve(C)
    near = 0.1 if dtype is np.float32 else 1e-9
    assert_allclose(A[np.ix_(kept, kept)] @ solved[kept], C[kept], rtol=near, atol=near * np.abs(C).max())
    assert not solved[out].any()


def test_a_core_of_repeated_landmarks_takes_a_jitter():
    twice = Gaussian(1.0)(np.vstack([X[:40], X[:40]]))
    P = cg.factor_core(fortran(twice), ALPHA, float(N))
    assert 0 < P.jitter < 1e-9
    assert np.isfinite(P.solve(np.ones((80, 1)))).all()


def test_a_negative_matrix_is_refused():
    with pytest.raises(DataError, match="not positive definite"):
        cg.factor_sample(fortran(-K), N)


@pytest.mark.parametrize("kind", ["sub-sample", "falkon", "all rows"])
def test_decreases_are_those_of_the_excess_and_the_solution_is_the_direct_one(kind):
    if kind == "falkon":
        P = cg.factor_core(fortran(K), ALPHA, float(N))
    else:
        rows = slice(None) if kind == "all rows" else rng.permutation(N)[: 4 * M]
        share = N / len(B[rows])
        P = cg.factor_sample(fortran(share * B[rows].T @ B[rows] + ALPHA * K), len(B[rows]))
    state = cg.start_cg(np.zeros_like(C), C, P.solve, HALF)
    if kind == "all rows":
        assert_allclose(state.rho, excess(state.coef), rtol=1e-6)
    steps = 0
    while (excess(state.coef) > 1e-10 * excess(np.zeros_like(C))).any():
        before = excess(state.coef)
        state = cg.step_cg(state, A @ state.direction, P.solve)
        # the smallest excess that float64 resolves
        floor = 1e-12 * excess(np.zeros_like(C))
        assert_allclose(before - excess(state.coef), state.decrease, rtol=1e-4, atol=floor.max())
        steps += 1
        assert steps <= {"sub-sample": 25, "falkon": 60, "all rows": 2}[kind]
    assert_allclose(C - A @ state.coef, state.residual, atol=1e-7 * np.abs(C).max())


@pytest.mark.parametrize("kind", ["sub-sample", "falkon"])
def test_the_bound_of_the_excess_is_above_it_and_not_far(kind):
    rows = rng.permutation(N)[: 4 * M]
    matrix = fortran(N / len(rows) * B[rows].T @ B[rows] + ALPHA * K)
    P = cg.factor_sample(matrix, len(rows)) if kind == "sub-sample" else cg.factor_core(fortran(K), ALPHA, float(N))
    state = cg.start_cg(np.zeros_like(C), C, P.solve, np.full(2, P.least))
    for _ in range(6):
        state = cg.step_cg(state, A @ state.direction, P.solve)
        ratio = state.excess / excess(state.coef)
        assert (ratio > 1).all()
        assert (ratio < 50).all()


def test_the_smallest_ritz_value_comes_to_the_smallest_eigenvalue():
    P = cg.factor_core(fortran(K), ALPHA, float(N))
    smallest = np.linalg.eigvals(P.solve(A)).real.min()
    state = cg.start_cg(np.zeros_like(C), C, P.solve, np.full(2, np.inf))
    for _ in range(40):
        state = cg.step_cg(state, A @ state.direction, P.solve)
        assert (state.ritz >= 0.999 * smallest).all()
    assert state.ritz.min() < 1.2 * smallest


def test_a_column_that_is_done_stays_while_others_go_on():
    right = np.hstack([np.zeros((M, 1)), C[:, :1]])
    P = cg.factor_core(fortran(K), ALPHA, float(N))
    state = cg.start_cg(np.zeros_like(right), right, P.solve, HALF)
    for _ in range(30):
        state = cg.step_cg(state, A @ state.direction, P.solve)
    assert state.stalled[0]
    assert not state.coef[:, 0].any()
    assert excess(np.column_stack([state.coef[:, 1], EXACT[:, 1]]))[0] < 1e-4 * excess(np.zeros_like(C))[0]


def test_costs_grow_as_they_should_and_the_sooner_preconditioner_is_taken():
    assert cg.sweep_flops(2e6, 784, 1000, 10) > 1.9 * cg.sweep_flops(1e6, 784, 1000, 10)
    assert cg.direct_flops(1e6, 784, 20_000) > 3 * cg.direct_flops(1e6, 784, 10_000)
    few_rows = cg.choose_preconditioner(5_000, 20, 2_000, 2, 1e-3)
    assert few_rows.rows == 0  # 8,000 of 5,000
    many_rows = cg.choose_preconditioner(10**6, 784, 4_000, 10, 1e-3)
    assert many_rows.rows in (16_000, 32_000, 64_000)
    assert cg.choose_preconditioner(10**7, 10**5, 4_000, 10, 1e-3).rows == 0  # no sub-sample that memory holds
    assert many_rows.sweeps < few_rows.sweeps
    # training sets of folds differ from it, the more the fewer rows they have
    folds = [cg.choose_preconditioner(60_000, 784, 2_000, 10, 1e-3, trained) for trained in (None, 55_000, 30_000)]
    assert [choice.sweeps for choice in folds] == sorted(choice.sweeps for choice in folds)
    assert folds[0].sweeps < folds[2].sweeps
    # m³ of a sub-sample costs more than further sweeps of few rows
    assert cg.choose_preconditioner(200_000, 20, 20_000, 1, 1e-3).rows == 0
