"""Symmetric matrices in place: the same as with an m×m for each step, and without it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg
from traced import traced

from bigkernel.kernels.blas import mirror
from bigkernel.solvers.residuals import Upper, clear_upper, congruence, times_triangle
from bigkernel.solvers.whitening import whiten

rng = np.random.default_rng(11)
M = 600  # more than two strips
ROWS = rng.normal(size=(900, M))
G = ROWS.T @ ROWS
LOWER = np.asfortranarray(np.linalg.cholesky(G + 900 * np.eye(M)))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("lower", [True, False])
def test_one_triangle_becomes_the_other(lower, order):
    half = np.array(np.tril(G) if not lower else np.triu(G), order=order)
    mirror(half if lower else half.T)
    assert_array_equal(half, G)
    clear_upper(half)
    assert_array_equal(half, np.tril(G))


def test_a_congruence_of_some_rows_and_columns_is_symmetric_and_right():
    kept = rng.permutation(M)[:500]
    L = np.asfortranarray(LOWER[:500, :500])
    half = linalg.solve_triangular(L, G[np.ix_(kept, kept)], lower=True)
    result = congruence(L, G, kept)
    assert_allclose(result, linalg.solve_triangular(L, half.T, lower=True), rtol=1e-9, atol=1e-9)
    assert_array_equal(result, result.T)


def test_whitening_holds_one_factor_and_rotating_one_matrix():
    core = G + 900 * np.eye(M)
    whitening = whiten(core)
    for work in (lambda: whiten(core), lambda: whitening.rotate(G)):
        assert traced(work)[1] < 1.6 * G.nbytes
    assert traced(lambda: whiten(core, overwrite=True))[1] < 0.6 * G.nbytes


def test_a_symmetric_matrix_is_read_above_its_diagonal_alone():
    array = np.asfortranarray(np.triu(G, 1) + 1e30 * np.tril(rng.normal(size=(M, M))))
    above, C, some = Upper(array, np.diagonal(G).copy()), rng.normal(size=(M, 3)), rng.permutation(M)[:20]
    assert_allclose(above @ C, G @ C, rtol=1e-9, atol=1e-9)
    assert_array_equal(above.select(some), G[np.ix_(some, some)])
    assert_array_equal(above.whole(), G)


@pytest.mark.parametrize("lower", [True, False])
def test_products_with_a_triangle_read_nothing_of_the_other(lower):
    A, C = np.asfortranarray(rng.normal(size=(M, M))), rng.normal(size=(M, 3))
    triangle = np.tril(A) if lower else np.triu(A)
    assert_allclose(times_triangle(A, C, lower=lower), triangle @ C, rtol=1e-9, atol=1e-9)
    assert_allclose(times_triangle(A, C, lower=lower, transposed=True), triangle.T @ C, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("fall, rank", [(0.5, 60), (8.0, 60), (None, 40)])
def test_a_core_is_whitened_in_new_memory_or_in_its_own(fall, rank, overwrite):
    m = 60
    Q = np.linalg.qr(rng.normal(size=(m, m)))[0]
    K = (Q[:, :rank] * np.logspace(0, -(fall or 1.0), rank)) @ Q[:, :rank].T
    K = (K + K.T) / 2
    before = K.copy()
    whitening = whiten(K, warn=False, overwrite=overwrite)
    assert np.array_equal(K, before) or overwrite
    T = whitening.expand(np.eye(rank))
    assert_allclose(T.T @ before @ T, np.eye(rank), atol=1e-14 * 10 ** (fall or 1.0))
    assert (whitening.core is None) == (rank < m)
    if whitening.core is not None:
        assert_allclose(whitening.core @ Q, before @ Q, atol=1e-14)
