"""LAPACK called by address, against dense algebra; and where SciPy's signatures are not the ones we know."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import linalg

from bigkernel.kernels import lapack

SIZES = (1, 2, 3, 40, 300)


@pytest.fixture(params=["by address", "by SciPy"])
def way(request, monkeypatch):
    if request.param == "by SciPy":
        monkeypatch.setattr(lapack, "_routine", lambda name: None)
    return request.param


def symmetric(m, seed=0):
    half = np.random.default_rng(seed).standard_normal((m, m + 2))
    return half @ half.T


@pytest.mark.parametrize("m", SIZES)
def test_a_symmetric_matrix_is_made_tridiagonal_by_an_orthogonal_one(m, way):
    A = symmetric(m)
    before = A.copy()
    d, e, Q = lapack.tridiagonal(A)
    T = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    scale = 1e-14 * m * np.abs(A).max()
    assert_allclose(Q @ T @ Q.T, A, rtol=0, atol=scale)
    assert_allclose(Q.T @ Q, np.eye(m), atol=1e-14 * m)
    assert np.array_equal(A, before)


@pytest.mark.parametrize("m", SIZES)
def test_a_congruence_takes_and_writes_lower_triangles_alone(m, way):
    A, L = symmetric(m), np.linalg.cholesky(symmetric(m, 1) + np.eye(m))
    inverse = linalg.solve_triangular(L, np.eye(m), lower=True)
    given, factor = np.array(A, order="F"), np.array(L, order="F")
    above = np.triu_indices(m, 1)
    given[above] = factor[above] = 7.0
    found = lapack.congruent(given, factor)
    assert_allclose(np.tril(found), np.tril(inverse @ A @ inverse.T), atol=1e-12 * m)
    assert np.shares_memory(found, given)
    assert (found[above] == 7.0).all()


def test_an_empty_matrix_has_an_empty_form():
    d, e, Q = lapack.tridiagonal(np.zeros((0, 0)))
    assert d.shape == e.shape == (0,)
    assert Q.shape == (0, 0)


def test_the_routines_are_those_of_scipy_here():
    assert all(lapack._routine(name) is not None for name in lapack._SIGNATURES)


def test_another_signature_is_told_from_ours():
    wide = "void (char *, long *, __pyx_t_5scipy_6linalg_13cython_lapack_d *)"
    assert lapack._kinds(wide) == "c?d"


def test_rows_in_row_order_are_refused():
    with pytest.raises(ValueError, match="column order"):
        lapack.congruent(np.ascontiguousarray(symmetric(4)), np.asfortranarray(symmetric(4)))


def test_threads_find_the_bits_that_one_finds():
    matrices = [symmetric(120, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lapack.tridiagonal, matrices))
    for A, parts in zip(matrices, found, strict=True):
        for here, there in zip(parts, lapack.tridiagonal(A), strict=True):
            assert (here == there).all()
