"""The small problems against dense oracles: ranks, penalties, intercepts, weights and the three forms of SSSL."""

import numpy as np
import pytest
import reference
import scipy.linalg
from kernel_cases import quietly
from numpy.testing import assert_allclose, assert_array_equal
from peers import moments_of

from bigkernel.errors import ConfigError, RankDeficiencyWarning
from bigkernel.solvers.eigenfunctions import eigenfunctions_of_core, solve_labelled
from bigkernel.solvers.exact import exact_krr
from bigkernel.solvers.qr_ridge import RowSystem
from bigkernel.solvers.ridge import RidgeSystem, nystrom_ridge, ridge
from bigkernel.solvers.whitening import centre, top_eigen, whiten

N, M, D, SIGMA = 60, 15, 3, 0.9
rng = np.random.default_rng(11)
X = rng.normal(size=(N, D))
Z = X[:M] + 0.05
Y = np.column_stack([np.sin(X[:, 0]) + 3, X[:, 1] * X[:, 2] - 1]) + 0.1 * rng.normal(size=(N, 2))
WEIGHT = rng.uniform(0.2, 3, N)
WEIGHT[:4] = 0
B, CORE = reference.gaussian(X, Z, SIGMA), reference.gaussian(Z, Z, SIGMA)
NEW = reference.gaussian(rng.normal(size=(25, D)), Z, SIGMA)
K_GAUSSIAN = reference.gaussian(X, X, SIGMA)
K_REPEATED = K_GAUSSIAN[np.ix_(np.arange(N) % 20, np.arange(N) % 20)]


def test_whitening_makes_the_core_the_identity():
    w = whiten(CORE)
    T = w.expand(np.eye(w.rank))
    assert w.rank == M
    assert_allclose(T.T @ CORE @ T, np.eye(M), atol=1e-9)
    G, C = B.T @ B, B.T @ Y
    assert_allclose(w.rotate(G), T.T @ G @ T, atol=1e-7)
    assert_allclose(w.reduce(C), T.T @ C, atol=1e-9)
    assert_allclose(w.reduce(C[:, 0]), T.T @ C[:, 0], atol=1e-9)
    assert_array_equal(w.rotate(G), w.rotate(G).T)


@pytest.mark.parametrize("alpha", [1e-6, 10.0])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
def test_nystrom_ridge_is_the_dense_minimiser(alpha, fit_intercept, weight):
    coef, b, sse = nystrom_ridge(moments_of(B, Y, weight), whiten(CORE), alpha, fit_intercept=fit_intercept)
    expected, expected_b = reference.nystrom_krr(B, CORE, Y, alpha, fit_intercept, weight)
    assert_allclose(NEW @ coef + b, NEW @ expected + expected_b, rtol=1e-6, atol=1e-6)
    residual = Y - B @ expected - expected_b
    assert_allclose(sse, ((np.ones(N) if weight is None else weight)[:, None] * residual**2).sum(0), rtol=1e-6)


def test_problems_without_columns_or_rows_have_empty_or_zero_solutions():
    assert ridge(np.zeros((0, 0)), np.zeros((0, 2)), 1.0).shape == (0, 2)
    assert_array_equal(ridge(np.zeros((3, 3)), np.ones((3, 1)), 0.0), 0)
    for values in nystrom_ridge(moments_of(B[:0], Y[:0]), whiten(CORE), 1.0, fit_intercept=True):
        assert_array_equal(values, 0)


@pytest.mark.parametrize("alpha", [-1, float("nan"), float("inf"), -1e-300])
def test_an_invalid_penalty_is_refused(alpha):
    for solve in (
        lambda: ridge(CORE, np.ones((M, 1)), alpha),
        lambda: exact_krr(CORE, np.ones((M, 1)), alpha),
        lambda: exact_krr(CORE, np.ones((M, 1)), alpha, fit_intercept=True),
        lambda: exact_krr(CORE, np.ones((M, 1)), alpha, indefinite="sigmoid"),
        lambda: quietly(exact_krr, -CORE, np.ones((M, 1)), alpha, indefinite="sigmoid"),
        lambda: solve_labelled(eigenfunctions_of_core(CORE, 3)[0], moments_of(B, Y), alpha),
    ):
        with pytest.raises(ConfigError, match="alpha: expected a finite number of at least 0"):
            solve()


@pytest.mark.parametrize(
    "core",
    [
        np.array([[0.0, 1.0], [1.0, 0.0]]),
        np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 1e-3]]),
        np.diag([1.0, -1.0]),
        np.array([[1.0, 2.0], [2.0, 1.0]]),
    ],
    ids=["zero diagonal", "small diagonal", "diagonal", "full"],
)
def test_an_indefinite_core_keeps_its_positive_directions(core):
    with pytest.warns(RankDeficiencyWarning, match="not positive"):
        w = whiten(core, kernel="sigmoid")
    T = w.expand(np.eye(w.rank))
    expected = reference.whitening(core)
    assert_allclose(T @ T.T, expected @ expected.T, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
def test_the_exact_form_of_an_indefinite_kernel_solves_in_its_positive_directions(weight, fit_intercept, alpha):
    few = slice(0, 20)
    K, C = reference.sigmoid(X[few], X[few], 1.0, -0.5), reference.sigmoid(X[few] + 0.3, X[few], 1.0, -0.5)
    weight = None if weight is None else weight[few]
    options = {"fit_intercept": fit_intercept, "weight": weight}
    with pytest.warns(
        RankDeficiencyWarning, match=r"sigmoid kernel.*negative eigenvalues \(\d+\.\d% of .* \d+ of 20 directions"
    ):
        coef, b = exact_krr(K, Y[few], alpha, indefinite="sigmoid", **options)
    expected, expected_b = reference.nystrom_krr(K, K, Y[few], alpha, fit_intercept, weight)
    assert_allclose(C @ coef + b, C @ expected + expected_b, rtol=1e-7, atol=1e-8)
    # K without its negative eigenvalues gives the same
    values, U = scipy.linalg.eigh(K)
    positive = (U * np.maximum(values, 0)) @ U.T
    assert_allclose(K @ coef, positive @ coef, atol=1e-8 * np.abs(coef).max())
    if alpha >= 0.2 and weight is None and not fit_intercept:
        assert_allclose(K @ coef, positive @ reference.krr_exact(positive, Y[few], alpha), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
@pytest.mark.parametrize("K", [K_GAUSSIAN, K_REPEATED, np.zeros((N, N))], ids=["regular", "singular", "zero"])
def test_a_matrix_that_is_positive_is_solved_as_such_without_a_warning(K, weight, fit_intercept):
    options = {"fit_intercept": fit_intercept, "weight": weight}
    coef, b = exact_krr(K, Y, 0.3, indefinite="sigmoid", **options)
    expected, expected_b = exact_krr(K, Y, 0.3, **options)
    assert_array_equal(coef, expected)
    assert_array_equal(b, expected_b)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_negative_matrix_leaves_the_mean(fit_intercept):
    with pytest.warns(RankDeficiencyWarning, match=r"100\.0% of .* 0 of 60 directions"):
        coef, b = exact_krr(-K_GAUSSIAN, Y, 0.3, fit_intercept=fit_intercept, weight=WEIGHT, indefinite="sigmoid")
    assert_array_equal(coef, np.zeros((N, 2)))
    assert_allclose(b, np.average(Y, axis=0, weights=WEIGHT) if fit_intercept else [0, 0], rtol=1e-12)


def test_the_exact_forms_leave_the_matrix_as_it_was():
    for K in (K_GAUSSIAN, reference.sigmoid(X, X, 1.0, -0.5)):
        before = K.copy()
        quietly(exact_krr, K, Y, 0.3, indefinite="sigmoid")
        exact_krr(K, Y, 0.3, fit_intercept=True, weight=WEIGHT)
        assert_array_equal(K, before)


def test_a_core_of_zeros_gives_the_model_zero_and_the_mean_as_intercept():
    with pytest.warns(RankDeficiencyWarning, match=r"linear kernel: the kernel matrix of 5 landmarks is zero"):
        w = whiten(np.zeros((5, 5)), kernel="linear")
    coef, b, sse = nystrom_ridge(moments_of(np.zeros((N, 5)), Y, WEIGHT), w, 1.0, fit_intercept=True)
    assert_array_equal(coef, np.zeros((5, 2)))
    assert_allclose(b, np.average(Y, axis=0, weights=WEIGHT), rtol=1e-12)
    assert_allclose(sse, (WEIGHT[:, None] * (Y - b) ** 2).sum(0), rtol=1e-9)


@pytest.fixture(scope="module")
def large():
    """A symmetric matrix of 700 rows that is not positive, and all its eigenvalues, descending."""
    values = np.sort(np.random.default_rng(6).normal(size=700))[::-1]
    Q = np.linalg.qr(np.random.default_rng(7).normal(size=(700, 700)))[0]
    A = (Q * values) @ Q.T
    return (A + A.T) / 2, values


@pytest.mark.parametrize("size, count", [(600, 10), (601, 10), (601, 900), (700, 0), (700, 1), (700, 233), (700, 234)])
def test_the_largest_eigenpairs_of_a_large_matrix_are_those_of_numpy(large, size, count):
    A = large[0][:size, :size]
    before = A.copy()
    values, V = top_eigen(A, count)
    expected = np.linalg.eigvalsh(A)[::-1][:count]
    assert values.shape == (min(count, size),)
    assert V.shape == (size, min(count, size))
    assert_allclose(values, expected, atol=1e-12)
    assert_allclose(A @ V, V * values, atol=1e-11)
    assert_allclose(V.T @ V, np.eye(len(values)), atol=1e-11)
    assert_array_equal(A, before)
    if size == 700:
        assert_allclose(values, large[1][:count], atol=1e-12)


@pytest.mark.parametrize("rank", [1, 7, 20])
def test_a_core_of_single_precision_is_cut_at_single_precision(rank):
    F = np.random.default_rng(5).normal(size=(40, rank))
    core = (F @ F.T).astype(np.float32).astype(np.float64)
    with pytest.warns(RankDeficiencyWarning, match=f"numerical rank {rank};"):
        w = whiten(core, eps=float(np.finfo(np.float32).eps))
    assert w.rank == rank


@pytest.mark.parametrize("form", ["one penalty", "many penalties", "rows"])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 10.0])
def test_every_form_of_a_system_solves_and_counts_degrees_of_freedom(form, alpha):
    Phi = rng.normal(size=(N, 7))
    if form == "rows":
        nothing = np.zeros(7)
        system = RowSystem(Phi, Y, nothing, nothing, float(N), float(N), lambda C: C, lambda w: w)
    else:
        small = centre(moments_of(Phi, Y), fit_intercept=False)
        system = RidgeSystem(small, float(N), shared=form == "many penalties")
    H = Phi.T @ Phi + alpha * np.eye(7)
    for columns in (slice(None), np.array([1])):
        solution = system.solve(alpha, columns)
        assert_allclose(solution.w, np.linalg.solve(H, Phi.T @ Y[:, columns]), rtol=1e-9, atol=1e-12)
        assert_allclose(solution.squares, ((Phi @ solution.w - Y[:, columns]) ** 2).sum(axis=0), rtol=1e-9)
        assert_allclose(system.effective_dof(solution), np.trace(Phi @ np.linalg.solve(H, Phi.T)), rtol=1e-9)
