"""BLAS and LAPACK by address and by panels, against NumPy: in one triangle, with threads, and where SciPy's differ."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg
from threadpoolctl import threadpool_limits

from bigkernel.kernels import blas

SIZES = (1, 2, 40, 300)
WIDTHS = (64, 65, 130)


@pytest.fixture(params=["by address", "by SciPy"])
def way(request, monkeypatch):
    if request.param == "by SciPy":
        monkeypatch.setattr(blas, "_routine", lambda name: None)


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(blas, "WIDE", 64)
    monkeypatch.setattr(blas, "PANEL", 24)


def positive(p, dtype="f8", seed=0):
    B = np.random.default_rng(p + seed).normal(size=(50, p)).astype(dtype)
    return B, (B.T.astype(float) @ B + np.eye(p)).astype(dtype)


@pytest.mark.parametrize("dtype, near", [("f4", 1e-4), ("f8", 1e-12)])
@pytest.mark.parametrize("share", [1, 3])
@pytest.mark.parametrize("p", WIDTHS)
def test_a_rank_k_update_leaves_the_lower_triangle(p, share, dtype, near, narrow):
    B, _ = positive(p, dtype)
    r = -(-p // share)  # rows of the product that are wanted
    out = np.random.default_rng(1).normal(size=(r, p)).astype(dtype)
    before, product = out.copy(), (B.T @ B)[:r]
    blas.syrk(B, out, accumulate=True)
    assert_allclose(np.triu(out), np.triu(before + product), rtol=near, atol=50 * near)
    blas.syrk(B, out, accumulate=False)
    assert_allclose(np.triu(out), np.triu(product), rtol=near, atol=50 * near)
    assert_array_equal(np.tril(out, -1), np.tril(before, -1))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype, near", [("f4", 1e-4), ("f8", 1e-12)])
@pytest.mark.parametrize("p", WIDTHS)
def test_cholesky_reads_and_writes_one_triangle(p, dtype, near, lower, order, narrow):
    _, expected = positive(p, dtype)
    A = np.array(expected, order=order)
    other = np.triu_indices(p, 1) if lower else np.tril_indices(p, -1)
    A[other] = 99
    assert blas.cholesky(A, lower=lower) == 0
    assert (A[other] == 99).all()
    L = np.tril(A) if lower else np.triu(A).T
    assert_allclose(L @ L.T, expected, rtol=near, atol=100 * near)
    expected[p // 2, p // 2] = -1
    assert blas.cholesky(np.array(expected, order=order), lower=lower) == p // 2 + 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("p", WIDTHS)
def test_a_triangle_times_itself_leaves_the_other_one(p, order, narrow):
    A = np.array(positive(p)[1], order=order)
    L, above = np.tril(A), np.triu(A, 1)
    blas.times_transposed(A)
    assert_allclose(np.tril(A), np.tril(L.T @ L), rtol=1e-12, atol=1e-9)
    assert_array_equal(np.triu(A, 1), above)


@pytest.mark.slow
def test_sums_wider_than_the_buffers_of_openblas_end_well():
    # without panels OpenBLAS ends the process here, on two threads
    p = 16_400
    B, out = np.ones((800, p)), np.zeros((p, p))
    with threadpool_limits(2, user_api="blas"):
        blas.syrk(B, out, accumulate=True)
    for i in range(0, p, 997):
        assert (out[i, i:] == 800).all()
        assert not out[i, :i].any()


@pytest.mark.parametrize("m", [0, *SIZES])
def test_a_symmetric_matrix_is_made_tridiagonal_by_an_orthogonal_one(m, way):
    A = positive(m)[1]
    before = A.copy()
    d, e, Q = blas.tridiagonal(A)
    T = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    scale = 1e-14 * m * np.abs(A).max(initial=0)
    assert_allclose(Q @ T @ Q.T, A, rtol=0, atol=scale)
    assert_allclose(Q.T @ Q, np.eye(m), atol=1e-14 * m)
    assert np.array_equal(A, before)


@pytest.mark.parametrize("m", SIZES)
def test_a_congruence_takes_and_writes_lower_triangles_alone(m, way):
    A, L = positive(m)[1], np.linalg.cholesky(positive(m, seed=1)[1])
    inverse = linalg.solve_triangular(L, np.eye(m), lower=True)
    given, factor = np.array(A, order="F"), np.array(L, order="F")
    above = np.triu_indices(m, 1)
    given[above] = factor[above] = 7.0
    result = blas.congruent(given, factor)
    assert_allclose(np.tril(result), np.tril(inverse @ A @ inverse.T), atol=1e-12 * m)
    assert np.shares_memory(result, given)
    assert (result[above] == 7.0).all()


def test_the_routines_are_those_of_scipy_here():
    assert None not in map(blas._routine, ["ssyrk", "dsyrk", "sgemm", "dgemm", "dsygst", "dsytrd", "dorgtr"])


def test_another_signature_differs_from_ours():
    wide = "void (char *, long *, __pyx_t_5scipy_6linalg_13cython_lapack_d *)"
    assert blas._kinds(wide, "d") == "c?r"
    assert blas._kinds(wide, "s") == "c??"


def test_rows_in_row_order_are_refused():
    with pytest.raises(ValueError, match="column order"):
        blas.congruent(np.ascontiguousarray(positive(4)[1]), np.asfortranarray(positive(4)[1]))


def test_threads_find_the_bits_that_one_finds():
    matrices = [positive(120, seed=seed)[1] for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(blas.tridiagonal, matrices))
    for A, factors in zip(matrices, result, strict=True):
        for here, there in zip(factors, blas.tridiagonal(A), strict=True):
            assert (here == there).all()
