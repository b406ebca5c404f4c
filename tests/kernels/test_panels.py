"""Factors and sums of wide matrices by panels: those of NumPy, in one triangle, and no end of the process."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from bigkernel.kernels import blas, panels

WIDTHS = (64, 65, 100, 130)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    for module in (panels, blas):
        monkeypatch.setattr(module, "WIDE", 64)
        monkeypatch.setattr(module, "PANEL", 24)


def positive(p, dtype):
    B = np.random.default_rng(p).normal(size=(50, p)).astype(dtype)
    return B, (B.T.astype(float) @ B + np.eye(p)).astype(dtype)


@pytest.mark.parametrize("dtype, near", [("f4", 1e-4), ("f8", 1e-12)])
@pytest.mark.parametrize("p", WIDTHS)
def test_a_rank_k_update_leaves_the_lower_triangle(p, dtype, near):
    B, _ = positive(p, dtype)
    out = np.random.default_rng(1).normal(size=(p, p)).astype(dtype)
    before = out.copy()
    blas.syrk(B, out, accumulate=True)
    assert_allclose(np.triu(out), np.triu(before + B.T @ B), rtol=near, atol=50 * near)
    blas.syrk(B, out, accumulate=False)
    assert_allclose(np.triu(out), np.triu(B.T @ B), rtol=near, atol=50 * near)
    assert_array_equal(np.tril(out, -1), np.tril(before, -1))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype, near", [("f4", 1e-4), ("f8", 1e-12)])
@pytest.mark.parametrize("p", WIDTHS)
def test_cholesky_reads_and_writes_one_triangle(p, dtype, near, lower, order):
    _, wanted = positive(p, dtype)
    A = np.array(wanted, order=order)
    other = np.triu_indices(p, 1) if lower else np.tril_indices(p, -1)
    A[other] = 99
    assert panels.cholesky(A, lower=lower) == 0
    assert (A[other] == 99).all()
    L = np.tril(A) if lower else np.triu(A).T
    assert_allclose(L @ L.T, wanted, rtol=near, atol=100 * near)
    wanted[p // 2, p // 2] = -1
    assert panels.cholesky(np.array(wanted, order=order), lower=lower) == p // 2 + 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("p", WIDTHS)
def test_a_triangle_times_itself_leaves_the_other_one(p, order):
    A = np.array(positive(p, "f8")[1], order=order)
    L, above = np.tril(A), np.triu(A, 1)
    panels.times_transposed(A)
    assert_allclose(np.tril(A), np.tril(L.T @ L), rtol=1e-12, atol=1e-9)
    assert_array_equal(np.triu(A, 1), above)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_sums_wider_than_the_buffers_of_openblas_end_well(monkeypatch, dtype):
    # without panels OpenBLAS ends the process here, on two threads
    monkeypatch.undo()
    p = 16_400
    B, out = np.ones((800, p), dtype), np.zeros((p, p), dtype)
    with threadpool_limits(2, user_api="blas"):
        blas.syrk(B, out, accumulate=True)
    for i in range(0, p, 997):
        assert (out[i, i:] == 800).all()
        assert not out[i, :i].any()
