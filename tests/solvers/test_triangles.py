"""Symmetric matrices in place: the same as with an m×m for each step, and without it."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg

from bigkernel.solvers.ridge import whiten
from bigkernel.solvers.triangles import add_outer, clear_upper, congruence, mirror

rng = np.random.default_rng(11)
M = 600  # more than two strips
ROWS = rng.normal(size=(900, M))
G = ROWS.T @ ROWS
LOWER = np.asfortranarray(np.linalg.cholesky(G + 900 * np.eye(M)))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("lower", [True, False])
def test_one_triangle_becomes_the_other(lower, order):
    half = np.array(np.tril(G) if not lower else np.triu(G), order=order)
    mirror(half, lower=lower)
    assert_array_equal(half, G)
    clear_upper(half)
    assert_array_equal(half, np.tril(G))


@pytest.mark.parametrize("order", ["C", "F"])
def test_outer_products_are_added(order):
    left, right = rng.normal(size=(M, 2)), rng.normal(size=(M, 2))
    found = np.array(G, order=order)
    add_outer(found, left, right)
    assert_allclose(found, G + left @ right.T, rtol=1e-12, atol=1e-9)


def test_a_congruence_of_some_rows_and_columns_is_symmetric_and_right():
    kept = rng.permutation(M)[:500]
    L = np.asfortranarray(LOWER[:500, :500])
    half = linalg.solve_triangular(L, G[np.ix_(kept, kept)], lower=True)
    found = congruence(L, G, kept)
    assert_allclose(found, linalg.solve_triangular(L, half.T, lower=True), rtol=1e-9, atol=1e-9)
    assert_array_equal(found, found.T)


def test_whitening_holds_one_factor_and_rotating_one_matrix():
    core = G + 900 * np.eye(M)
    whitening = whiten(core)
    for work in (lambda: whiten(core), lambda: whitening.rotate(G)):
        tracemalloc.start()
        kept = work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert kept is not None
        assert peak < 1.6 * G.nbytes
